//! NetCRAQ's packets: between clients and the switches of a chain, and among these. The switches
//! answer by themselves.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 16 | what all headers have: the member that sends, and its epoch (0: a client) |
//! | 16 | 4 | cell |
//! | 20 | 1 + 1 | command and condition of a WRITE |
//! | 22 | 1 | outcome |
//! | 23 | 1 | flags: 1 the cell's content is in the packet, 2 the cell was given to the name, 4 the key keeps its deadline |
//! | 24 | 4 + 2 | the client: address, port |
//! | 30 | 2 | length and kind of the value that a WRITE expects |
//! | 32 | 8 | stamp: a session's generation (24 bits), its request (24), its slot (16) |
//! | 40 | 8 | state: version (54 bits), length (7), number (1), present (1), dirty (1) |
//! | 48 | 8 | the version that a WRITE expects; otherwise the version that the outcome is of |
//! | 56 | 8 | what INCR adds, or OPEN and READ have drawn; otherwise the number that came of it |
//! | 64 | 8 | deadline of the key in the chain's time, in ns, 0: none; of a WRITE or a READ_REPLY how long the key lives |
//! | 72 | 8 | UPDATE: the chain's time, in ns, when its sender sent it |
//! | 80 | 32 | name, with zeroes behind it |
//! | 112 | 16, 32 or 64 | value: READ, READ_REPLY, WRITE, UPDATE, RESEND, COPY, EXPIRE |
//! | | as many | the value that a WRITE expects |
//!
//! All values of a chain have the same size, so that packets are rewritten in place. As the paper
//! prints it, the header is [`Printed`]: 162 bits, which are 21 bytes.

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use crate::byte_enum::byte_enum;
use crate::header::{COMMON_BYTES, Header, Kind};
use crate::{Addr, GroupId, WireError, u16_at, u32_at, u64_at};

/// Most 64-bit words of a value.
pub const WORDS_MAX: usize = 8;
/// Words of a name.
pub const NAME_WORDS: usize = 4;
/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 8 * NAME_WORDS;
/// Length of a packet without a value in bytes.
pub const HEAD_BYTES: usize = 112;
/// Length of the longest packet in bytes.
pub const BYTES_MAX: usize = HEAD_BYTES + 16 * WORDS_MAX;
/// Versions that a key can have in one chain. A chain that is founded anew has others, by its
/// number, so that none comes back.
pub const VERSIONS_OF_A_CHAIN: u64 = 1 << 40;
/// Longest time to live of a key, in ns: 146 years.
pub const TTL_MAX_NS: u64 = 1 << 62;
/// The highest number of a chain.
pub const CHAIN_NUMBER_MAX: u32 = (State::VERSION_MAX >> 40) as u32;
/// Length of the paper's header in bytes: 2 + 32 + 128 bits.
pub const PRINTED_BYTES: usize = 21;

/// Where the fields are.
mod at {
    pub(super) const CELL: usize = 16;
    pub(super) const COMMAND: usize = 20;
    pub(super) const CONDITION: usize = 21;
    pub(super) const OUTCOME: usize = 22;
    pub(super) const FLAGS: usize = 23;
    pub(super) const CLIENT_IP: usize = 24;
    pub(super) const CLIENT_PORT: usize = 28;
    pub(super) const EXPECTED: usize = 30;
    pub(super) const STAMP: usize = 32;
    pub(super) const STATE: usize = 40;
    pub(super) const BASIS: usize = 48;
    pub(super) const NUMBER: usize = 56;
    pub(super) const DEADLINE: usize = 64;
    pub(super) const TIME: usize = 72;
    pub(super) const NAME: usize = 80;
    pub(super) const VALUE: usize = super::HEAD_BYTES;
}

/// The cell's content is in the packet.
const FLAG_CONTENT: u8 = 1;
/// The head gave the cell to the name.
const FLAG_GIVEN: u8 = 2;
/// The key keeps the deadline that it has.
const FLAG_KEEPS: u8 = 4;
const FLAGS: u8 = FLAG_CONTENT | FLAG_GIVEN | FLAG_KEEPS;

byte_enum! {
    /// What a packet is.
    Op {
        /// A client reads; a member whose version is dirty sends it on to the tail.
        Read = 1,
        /// The answer.
        ReadReply = 2,
        /// A client writes: for the head.
        Write = 3,
        /// A numbered write, from member to member.
        Update = 4,
        /// The tail has that version.
        Acknowledgement = 5,
        /// The tail's answer to a WRITE, or the head's that it was not taken.
        WriteReply = 6,
        /// From a member's control plane into its own pipeline: the version that is not
        /// acknowledged is sent again.
        Resend = 7,
        /// From a switch's control plane to another switch, which answers with an UPDATE: what have
        /// you in that cell (with the cell's content), or of that session (without)?
        Copy = 8,
        /// From the head's control plane into its own pipeline: the key in that cell is deleted if
        /// its deadline has passed.
        Expire = 9,
    }
}

byte_enum! {
    /// What a WRITE does.
    Command {
        /// Sets the value.
        Set = 0,
        /// Deletes the key.
        Del = 1,
        /// Adds to a number; a missing key counts as 0.
        Incr = 2,
        /// Begins a session, and changes no key: the outcome is always "refused", and its number is
        /// the one in the request, which the client drew.
        Open = 3,
        /// Gives the key the deadline in the request, or none: with one that has none already, that
        /// is refused.
        Expire = 4,
    }
}

byte_enum! {
    /// When a WRITE does it.
    Condition {
        /// Always.
        Always = 0,
        /// If there is no such key.
        Absent = 1,
        /// If there is one.
        Present = 2,
        /// If it has that version.
        Version = 3,
        /// If it has that value.
        Equal = 4,
    }
}

byte_enum! {
    /// What became of a request.
    Outcome {
        /// It is done: read, written.
        Done = 0,
        /// There is no such key.
        Absent = 1,
        /// The condition does not hold: nothing was changed.
        Refused = 2,
        /// Not a number, or the sum is none of 64 bits: nothing was changed.
        NotNumber = 3,
        /// A write of the cell is under way: nothing was changed, and it may be tried again.
        Busy = 4,
        /// The cell is another name's: nothing was changed.
        Taken = 5,
        /// The session has gone on, or is another's by now: nothing was changed.
        Stale = 6,
        /// There is no such cell or slot: nothing was changed.
        NoCell = 7,
    }
}

/// Which request of which session: those of a slot are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Most generations of a slot, and most requests of a generation.
    pub const NUMBER_MAX: u32 = (1 << 24) - 1;

    /// The stamp of a session's request; numbers are cut to width.
    #[must_use]
    pub const fn new(slot: u16, generation: u32, request: u32) -> Stamp {
        let mask = Stamp::NUMBER_MAX;
        let numbers = ((generation & mask) as u64) << 40 | ((request & mask) as u64) << 16;
        Stamp(numbers | slot as u64)
    }

    /// The session's slot.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> u16 {
        self.0 as u16
    }

    /// Which session of the slot.
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// Its number within the session.
    #[must_use]
    pub const fn request(self) -> u32 {
        (self.0 >> 16) as u32 & Stamp::NUMBER_MAX
    }
}

/// A cell's version and what is in it, as registers keep it: one word, so that it changes at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State(pub u64);

impl State {
    /// The highest version.
    pub const VERSION_MAX: u64 = (1 << (64 - State::VERSION_AT)) - 1;
    const DIRTY: u64 = 1;
    const PRESENT: u64 = 1 << 1;
    const NUMBER: u64 = 1 << 2;
    const LENGTH_AT: u32 = 3;
    const VERSION_AT: u32 = 10;

    /// A clean version without a value: a key that was deleted.
    #[must_use]
    pub const fn deleted(version: u64) -> State {
        State(version << State::VERSION_AT)
    }

    /// A clean version with a value of so many bytes.
    #[must_use]
    pub const fn present(version: u64, length_bytes: u8, is_number: bool) -> State {
        let length = (length_bytes as u64 & 0x7f) << State::LENGTH_AT;
        let number = if is_number { State::NUMBER } else { 0 };
        State(version << State::VERSION_AT | length | number | State::PRESENT)
    }

    /// The version.
    #[must_use]
    #[inline]
    pub const fn version(self) -> u64 {
        self.0 >> State::VERSION_AT
    }

    /// The value's length in bytes.
    #[must_use]
    #[inline]
    pub const fn length_bytes(self) -> u8 {
        (self.0 >> State::LENGTH_AT) as u8 & 0x7f
    }

    /// Whether the value is a number: its first word.
    #[must_use]
    #[inline]
    pub const fn is_number(self) -> bool {
        self.0 & State::NUMBER != 0
    }

    /// Whether there is a value.
    #[must_use]
    #[inline]
    pub const fn is_present(self) -> bool {
        self.0 & State::PRESENT != 0
    }

    /// Whether the tail has not acknowledged it here.
    #[must_use]
    #[inline]
    pub const fn is_dirty(self) -> bool {
        self.0 & State::DIRTY != 0
    }

    /// The same, not acknowledged.
    #[must_use]
    #[inline]
    pub const fn dirty(self) -> State {
        State(self.0 | State::DIRTY)
    }

    /// The same, acknowledged.
    #[must_use]
    #[inline]
    pub const fn clean(self) -> State {
        State(self.0 & !State::DIRTY)
    }

    /// The same content as another version.
    #[must_use]
    #[inline]
    pub const fn as_version(self, version: u64) -> State {
        State(self.0 & ((1 << State::VERSION_AT) - 1) | version << State::VERSION_AT)
    }
}

/// A name, with zeroes behind it: empty is no name.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Name(pub [u64; NAME_WORDS]);

impl Name {
    /// The name of these bytes; `None` if there are none, too many, or one of them is 0.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Name> {
        if bytes.is_empty() || bytes.len() > NAME_BYTES_MAX || bytes.contains(&0) {
            return None;
        }
        let mut padded = [0; NAME_BYTES_MAX];
        padded[..bytes.len()].copy_from_slice(bytes);
        Some(Name(core::array::from_fn(|word| u64_at(&padded, 8 * word))))
    }

    /// The bytes, with the zeroes behind them.
    #[must_use]
    pub fn bytes(&self) -> [u8; NAME_BYTES_MAX] {
        let mut bytes = [0; NAME_BYTES_MAX];
        for (out, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// How many of them are the name's.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.bytes().iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES_MAX)
    }
}

/// A value's words: as many as all values of the chain have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Words(pub [u64; WORDS_MAX]);

impl Words {
    /// The words of these bytes, with zeroes behind them; `None` if they do not fit.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Words> {
        let mut padded = [0; 8 * WORDS_MAX];
        padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Words(core::array::from_fn(|word| u64_at(&padded, 8 * word))))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 8 * WORDS_MAX] {
        let mut bytes = [0; 8 * WORDS_MAX];
        for (out, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }
}

/// A packet's meaning. What an operation has no use for is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repr {
    /// What it is.
    pub op: Op,
    /// Which chain.
    pub group: GroupId,
    /// The member that sends it; 0: a client.
    pub from: NodeId,
    /// Its epoch; 0: a client's.
    pub epoch: Epoch,
    /// Which cell.
    pub cell: u32,
    /// What a WRITE does.
    pub command: Command,
    /// And when.
    pub condition: Condition,
    /// What became of it.
    pub outcome: Outcome,
    /// Whether an UPDATE has the cell's content; without it, it is about the session alone.
    pub has_content: bool,
    /// Whether the head gave a WRITE's cell to its name, in the epoch of the packet, when the cell
    /// had the version in `state`.
    pub is_given: bool,
    /// Whether a WRITE leaves the key the deadline that it has.
    pub keeps_deadline: bool,
    /// Who is answered; the unspecified address: nobody.
    pub client: Addr,
    /// Length in bytes of the value that a WRITE expects, and whether it is a number.
    pub expected_state: (u8, bool),
    /// Which request.
    pub stamp: Stamp,
    /// Version and content of the cell; of a WRITE the new content.
    pub state: State,
    /// The version that a WRITE expects; otherwise the version that the outcome is of.
    pub basis: u64,
    /// What INCR adds; otherwise the number that it gave.
    pub number: u64,
    /// The key's deadline in the chain's time, in ns; 0: none. Of a WRITE, or its READ_REPLY, how
    /// long the key is to live, or lives yet.
    pub deadline: u64,
    /// The chain's time when an UPDATE was sent, in ns.
    pub time: u64,
    /// The key.
    pub name: Name,
    /// How many words values have: 2, 4 or 8.
    pub words: u8,
    /// The value.
    pub value: Words,
    /// The value that a WRITE expects.
    pub expected: Words,
}

impl Repr {
    /// A packet for a cell that says nothing else.
    #[must_use]
    pub const fn new(op: Op, cell: u32, words: u8) -> Repr {
        Repr {
            op,
            group: GroupId::FIRST,
            from: NodeId(0),
            epoch: Epoch(0),
            cell,
            command: Command::Set,
            condition: Condition::Always,
            outcome: Outcome::Done,
            has_content: false,
            is_given: false,
            keeps_deadline: false,
            client: Addr { ip: 0, port: 0 },
            expected_state: (0, false),
            stamp: Stamp(0),
            state: State(0),
            basis: 0,
            number: 0,
            deadline: 0,
            time: 0,
            name: Name([0; NAME_WORDS]),
            words,
            value: Words([0; WORDS_MAX]),
            expected: Words([0; WORDS_MAX]),
        }
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        HEAD_BYTES + 8 * self.words as usize * values_of(self.op)
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Repr, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::NetCraq, HEAD_BYTES)?;
        let op = Op::from_byte(header.op).ok_or(WireError::Op)?;
        let words = match values_of(op) {
            0 => 0,
            values => (b.len() - HEAD_BYTES) / (8 * values),
        };
        let has_size = b.len() == HEAD_BYTES + 8 * words * values_of(op);
        let is_size = matches!((values_of(op), words), (0, 0) | (1.., 2 | 4 | 8));
        if !has_size || !is_size || b[at::FLAGS] & !FLAGS != 0 {
            return Err(WireError::Field);
        }
        let mut repr = Repr {
            group: header.group,
            from: header.node,
            epoch: header.epoch,
            command: Command::from_byte(b[at::COMMAND]).ok_or(WireError::Field)?,
            condition: Condition::from_byte(b[at::CONDITION]).ok_or(WireError::Field)?,
            outcome: Outcome::from_byte(b[at::OUTCOME]).ok_or(WireError::Field)?,
            has_content: b[at::FLAGS] & FLAG_CONTENT != 0,
            is_given: b[at::FLAGS] & FLAG_GIVEN != 0,
            keeps_deadline: b[at::FLAGS] & FLAG_KEEPS != 0,
            client: Addr { ip: u32_at(b, at::CLIENT_IP), port: u16_at(b, at::CLIENT_PORT) },
            expected_state: (b[at::EXPECTED], b[at::EXPECTED + 1] == 1),
            stamp: Stamp(u64_at(b, at::STAMP)),
            state: State(u64_at(b, at::STATE)),
            basis: u64_at(b, at::BASIS),
            number: u64_at(b, at::NUMBER),
            deadline: u64_at(b, at::DEADLINE),
            time: u64_at(b, at::TIME),
            name: Name(core::array::from_fn(|word| u64_at(b, at::NAME + 8 * word))),
            ..Repr::new(op, u32_at(b, at::CELL), words as u8)
        };
        let is_too_long = usize::from(repr.state.length_bytes()) > 8 * words && words > 0;
        if b[at::EXPECTED + 1] > 1 || is_too_long {
            return Err(WireError::Field);
        }
        for word in 0..words {
            repr.value.0[word] = u64_at(b, at::VALUE + 8 * word);
            if op == Op::Write {
                repr.expected.0[word] = u64_at(b, at::VALUE + 8 * (words + word));
            }
        }
        Ok(repr)
    }

    /// Writes the packet over the beginning of `out`, and says how long it is; `None` if it does
    /// not fit.
    #[must_use]
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        let (size_bytes, words) = (self.size_bytes(), usize::from(self.words));
        let b = out.get_mut(..size_bytes)?;
        let header = Header::new(Kind::NetCraq, self.op as u8);
        let header = Header { group: self.group, node: self.from, epoch: self.epoch, ..header };
        b[..COMMON_BYTES].copy_from_slice(&header.bytes(size_bytes));
        let mut put = |at: usize, field: &[u8]| b[at..at + field.len()].copy_from_slice(field);
        put(at::CELL, &self.cell.to_be_bytes());
        put(at::COMMAND, &[self.command as u8, self.condition as u8, self.outcome as u8]);
        let flag = |is_on: bool, flag: u8| u8::from(is_on) * flag;
        let content = flag(self.has_content, FLAG_CONTENT);
        let given = flag(self.is_given, FLAG_GIVEN);
        put(at::FLAGS, &[content | given | flag(self.keeps_deadline, FLAG_KEEPS)]);
        put(at::CLIENT_IP, &self.client.ip.to_be_bytes());
        put(at::CLIENT_PORT, &self.client.port.to_be_bytes());
        put(at::EXPECTED, &[self.expected_state.0, u8::from(self.expected_state.1)]);
        put(at::STAMP, &self.stamp.0.to_be_bytes());
        put(at::STATE, &self.state.0.to_be_bytes());
        put(at::BASIS, &self.basis.to_be_bytes());
        put(at::NUMBER, &self.number.to_be_bytes());
        put(at::DEADLINE, &self.deadline.to_be_bytes());
        put(at::TIME, &self.time.to_be_bytes());
        for (word, value) in self.name.0.iter().enumerate() {
            put(at::NAME + 8 * word, &value.to_be_bytes());
        }
        let both = [&self.value, &self.expected];
        for (place, value) in both.into_iter().take(values_of(self.op)).enumerate() {
            for (word, value) in value.0.iter().take(words).enumerate() {
                put(at::VALUE + 8 * (place * words + word), &value.to_be_bytes());
            }
        }
        Some(size_bytes)
    }

    /// The packet's bytes.
    #[must_use]
    pub fn packet(&self) -> alloc::vec::Vec<u8> {
        let mut bytes = alloc::vec![0; self.size_bytes()];
        let _ = self.write(&mut bytes);
        bytes
    }
}

/// How many values a packet has room for.
const fn values_of(op: Op) -> usize {
    match op {
        Op::Read | Op::ReadReply | Op::Update | Op::Resend | Op::Copy | Op::Expire => 1,
        Op::Write => 2,
        Op::Acknowledgement | Op::WriteReply => 0,
    }
}

byte_enum! {
    /// The paper's KV_OP (§III.A.2).
    PrintedOp {
        /// A read request.
        Read = 0,
        /// Its reply.
        ReadReply = 1,
        /// A write request.
        Write = 2,
        /// An acknowledgement.
        Acknowledgement = 3,
    }
}

/// The header as the paper prints it (§III.A.2), directly over UDP: for tests and figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Printed {
    /// KV_OP, 2 bits.
    pub op: PrintedOp,
    /// KEY_ID.
    pub key_id: u32,
    /// VALUE.
    pub value: [u8; 16],
}

impl Printed {
    /// Its bytes: 162 bits, and six of padding.
    #[must_use]
    pub fn bytes(&self) -> [u8; PRINTED_BYTES] {
        let mut bytes = [0; PRINTED_BYTES];
        bytes[0] = (self.op as u8) << 6;
        let fields = self.key_id.to_be_bytes().into_iter().chain(self.value);
        for (index, byte) in fields.enumerate() {
            bytes[index] |= byte >> 2;
            bytes[index + 1] = byte << 6;
        }
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`WireError`] if it is cut short, or its padding is none.
    pub fn parse(bytes: &[u8]) -> Result<Printed, WireError> {
        let b = bytes.first_chunk::<PRINTED_BYTES>().ok_or(WireError::Truncated)?;
        if b[PRINTED_BYTES - 1] & 0x3f != 0 {
            return Err(WireError::Field);
        }
        let field = |index: usize| b[index] << 2 | b[index + 1] >> 6;
        let value = core::array::from_fn(|index| field(4 + index));
        let key_id = u32::from_be_bytes(core::array::from_fn(field));
        Ok(Printed { op: PrintedOp::from_byte(b[0] >> 6).ok_or(WireError::Field)?, key_id, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn example(op: Op, words: u8) -> Repr {
        let has_values = values_of(op) > 0;
        let words = if has_values { words } else { 0 };
        let mut repr = Repr {
            group: GroupId(3),
            from: NodeId(2),
            epoch: Epoch(7),
            command: Command::Incr,
            condition: Condition::Equal,
            outcome: Outcome::Refused,
            has_content: true,
            is_given: words == 4,
            keeps_deadline: words == 8,
            client: Addr { ip: 0x0a00_0001, port: 9_000 },
            expected_state: (5, true),
            stamp: Stamp::new(11, 3, 400),
            state: State::present(77, 9, false).dirty(),
            basis: 76,
            number: u64::MAX - 4,
            deadline: 0x0102_0304_0506,
            time: 0x0908_0706_0504,
            name: Name::new(b"lock/leader").unwrap(),
            ..Repr::new(op, 513, words)
        };
        for word in 0..usize::from(words) {
            repr.value.0[word] = 0x1111 * (word as u64 + 1);
            if op == Op::Write {
                repr.expected.0[word] = 0x2222 * (word as u64 + 1);
            }
        }
        repr
    }

    const OPS: [Op; 9] = [
        Op::Read,
        Op::ReadReply,
        Op::Write,
        Op::Update,
        Op::Acknowledgement,
        Op::WriteReply,
        Op::Resend,
        Op::Copy,
        Op::Expire,
    ];

    #[test]
    fn netcraq_packets_survive_the_wire_and_golden_bytes_hold() {
        let mut packets = Vec::new();
        for op in OPS {
            for words in [2, 4, 8] {
                let repr = example(op, words);
                let packet = repr.packet();
                assert_eq!(Repr::parse(&packet), Ok(repr), "{op:?}, {words}");
                for cut in 0..packet.len() {
                    assert!(Repr::parse(&packet[..cut]).is_err(), "{op:?} cut at {cut}");
                }
                if words == 2 {
                    packets.push(packet);
                }
            }
        }
        crate::golden("netcraq.hex", &packets);
        assert_eq!(example(Op::Write, 8).size_bytes(), BYTES_MAX);
    }

    #[test]
    fn netcraq_refuses_what_no_field_can_have() {
        let packet = example(Op::Write, 2).packet();
        let with = |at: usize, byte: u8| {
            let mut other = packet.clone();
            other[at] = byte;
            Repr::parse(&other).unwrap_err()
        };
        assert_eq!(with(4, 0), WireError::Op);
        for at in [at::COMMAND, at::CONDITION, at::OUTCOME, at::FLAGS, at::EXPECTED + 1] {
            assert_eq!(with(at, 0x88), WireError::Field, "byte {at}");
        }
        // A length of 64 bytes in a value of 16.
        assert_eq!(with(at::STATE + 6, 0xff), WireError::Field);
        let mut rng = concord_core::Rng::new(18);
        for op in OPS {
            let packet = example(op, 4).packet();
            for _ in 0..20_000 {
                let mut other = packet.clone();
                for _ in 0..rng.between(1, 6) {
                    let at = rng.below(other.len() as u64) as usize;
                    other[at] = rng.below(256) as u8;
                }
                other.truncate(rng.between(0, 8 * packet.len() as u64) as usize);
                if let Ok(repr) = Repr::parse(&other) {
                    assert_eq!(Repr::parse(&repr.packet()), Ok(repr));
                }
            }
        }
    }

    #[test]
    fn netcraq_names_stamps_and_states_keep_their_parts() {
        assert_eq!(Name::new(b""), None);
        assert_eq!(Name::new(&[b'x'; NAME_BYTES_MAX + 1]), None);
        assert_eq!(Name::new(b"a\0"), None, "or a name and a longer one would be one");
        assert_ne!(Name::new(b"a"), Name::new(b"aa"));
        let stamp = Stamp::new(9, 2, 5);
        assert_eq!((stamp.slot(), stamp.request()), (9, 5));
        assert!(Stamp::new(9, 3, 0) > Stamp::new(9, 2, Stamp::NUMBER_MAX));
        let state = State::present(8, 64, true);
        assert_eq!((state.version(), state.length_bytes()), (8, 64));
        assert!(state.is_present() && state.is_number() && state.dirty().is_dirty());
        assert_eq!(state.dirty().clean(), state);
        assert!(State::deleted(9) > state.dirty() && state.dirty() > state);
        assert_eq!(state.as_version(9).as_version(8), state);
        assert_eq!(&Words::new(b"abc").unwrap().bytes()[..4], b"abc\0");
        assert_eq!(Words::new(&[0; 65]), None);
    }

    /// §III.A.2: 2 + 32 + 128 bits are 21 bytes, not the 20 that §IV.A counts (hole N10).
    #[test]
    fn n10_the_printed_header_has_21_bytes() {
        let printed = Printed { op: PrintedOp::Write, key_id: 0x8000_0001, value: [0xa5; 16] };
        let bytes = printed.bytes();
        assert_eq!((2 + 32 + 128_usize).div_ceil(8), bytes.len());
        assert_eq!(Printed::parse(&bytes), Ok(printed));
        crate::golden("netcraq_printed.hex", &[bytes.to_vec()]);
        for cut in 0..PRINTED_BYTES {
            assert_eq!(Printed::parse(&bytes[..cut]), Err(WireError::Truncated));
        }
    }
}
