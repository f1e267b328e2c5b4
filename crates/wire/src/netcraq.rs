//! NetCRAQ's packets: between clients and the switches of a chain, and among these. The switches
//! answer reads and writes by themselves.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 16 | the fields that all headers share: the sending member, and its epoch (0: a client) |
//! | 16 | 4 | cell |
//! | 20 | 1 + 1 | command and condition of a WRITE |
//! | 22 | 1 | outcome |
//! | 23 | 1 | flags: 1 the packet has the content of the cell, 2 the head gave the cell to the name, 4 the key keeps its deadline |
//! | 24 | 4 + 2 | the client that is answered: address, port |
//! | 30 | 2 | length and kind of the value that a WRITE expects |
//! | 32 | 8 | stamp: generation of the session (24 bits), its request (24), its slot (16); in a READ_REPLY, the member that sent the READ on to the tail, as the generation |
//! | 40 | 8 | state: version (54 bits), length (7), number (1), present (1), dirty (1) |
//! | 48 | 8 | the version that a WRITE expects; otherwise the version that the outcome refers to |
//! | 56 | 8 | in a request, the operand of INCR, or the random number that the client drew for OPEN or READ; in a reply, the resulting number |
//! | 64 | 8 | deadline of the key in the chain's time, in ns, 0: none; in a WRITE or a READ_REPLY, the time to live of the key, in ns |
//! | 72 | 8 | in an UPDATE, the chain's time when its sender sent it, in ns |
//! | 80 | 32 | name, padded with zeroes |
//! | 112 | 16, 32 or 64 | value, in READ, READ_REPLY, WRITE, UPDATE, RESEND, COPY and EXPIRE |
//! | | the same | in a WRITE, the value that it expects |
//!
//! All values of a chain have the same size, so that a switch can rewrite packets in place. The
//! header as the paper prints it is [`Printed`]: 162 bits, which take 21 bytes.

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use crate::byte_enum::byte_enum;
use crate::header::{COMMON_BYTES, Header, Kind};
use crate::{Addr, GroupId, WireError, u16_at, u32_at, u64_at};

/// The maximum number of 64-bit words in a value.
pub const WORDS_MAX: usize = 8;
/// The number of 64-bit words in a name.
pub const NAME_WORDS: usize = 4;
/// The maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 8 * NAME_WORDS;
/// The length of a packet without its value, in bytes.
pub const HEAD_BYTES: usize = 112;
/// The length of the longest packet, in bytes.
pub const BYTES_MAX: usize = HEAD_BYTES + 16 * WORDS_MAX;
/// The number of versions that a key can have in one chain. The number of a chain is the upper part
/// of its versions, so that a chain that is founded anew uses other versions, and none is reused.
pub const VERSIONS_OF_A_CHAIN: u64 = 1 << 40;
/// The maximum time to live of a key, in ns: 146 years.
pub const TTL_MAX_NS: u64 = 1 << 62;
/// The highest number of a chain.
pub const CHAIN_NUMBER_MAX: u32 = (State::VERSION_MAX >> 40) as u32;
/// The length of the paper's header, in bytes: 2 + 32 + 128 bits.
pub const PRINTED_BYTES: usize = 21;

/// The offsets of the fields, in bytes.
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

/// The packet has the content of the cell.
const FLAG_CONTENT: u8 = 1;
/// The head gave the cell to the name.
const FLAG_GIVEN: u8 = 2;
/// The write leaves the deadline of the key as it is.
const FLAG_KEEPS: u8 = 4;
const FLAGS: u8 = FLAG_CONTENT | FLAG_GIVEN | FLAG_KEEPS;

byte_enum! {
    /// The operation of a packet.
    Op {
        /// A read, from a client. A member whose version is dirty forwards it to the tail.
        Read = 1,
        /// The answer to a READ.
        ReadReply = 2,
        /// A write, from a client: only the head executes it.
        Write = 3,
        /// A write that the head has given a version, from each member to its successor.
        Update = 4,
        /// From the tail to the other members: it has this version, which is now clean.
        Acknowledgement = 5,
        /// The answer to a WRITE: the tail's if it was executed, the head's if it was refused.
        WriteReply = 6,
        /// From a member's control plane to its own pipeline: send again the version that is not
        /// yet acknowledged.
        Resend = 7,
        /// From a switch's control plane to another switch, which answers with an UPDATE: a request
        /// for its content of the cell (flag 1 set) or for its state of the session (flag 1 clear).
        Copy = 8,
        /// From the head's control plane to its own pipeline: delete the key in the cell if its
        /// deadline has passed.
        Expire = 9,
    }
}

byte_enum! {
    /// The effect of a WRITE.
    Command {
        /// Sets the value.
        Set = 0,
        /// Deletes the key.
        Del = 1,
        /// Adds to a number; a missing key counts as 0.
        Incr = 2,
        /// Begins a session, and changes no key. The outcome is always [`Outcome::Refused`], and
        /// the resulting number is the random number in the request, by which the client recognizes
        /// it.
        Open = 3,
        /// Sets the deadline of the key to the one in the request, or removes it. To remove it from
        /// a key that has none is refused.
        Expire = 4,
    }
}

byte_enum! {
    /// The condition under which a WRITE takes effect.
    Condition {
        /// Always.
        Always = 0,
        /// If the key does not exist.
        Absent = 1,
        /// If the key exists.
        Present = 2,
        /// If the key has the version that the WRITE expects.
        Version = 3,
        /// If the key has the value that the WRITE expects.
        Equal = 4,
    }
}

byte_enum! {
    /// The outcome of a request.
    Outcome {
        /// The request was executed.
        Done = 0,
        /// The key does not exist.
        Absent = 1,
        /// The condition does not hold; nothing was changed.
        Refused = 2,
        /// The value is no number, or the sum does not fit into 64 bits; nothing was changed.
        NotNumber = 3,
        /// Another write of the cell is in progress; nothing was changed, and the client may try
        /// again.
        Busy = 4,
        /// The cell belongs to another name; nothing was changed.
        Taken = 5,
        /// The session has made a later request, or its slot has passed to another session; nothing
        /// was changed.
        Stale = 6,
        /// The cell or the slot does not exist; nothing was changed.
        NoCell = 7,
    }
}

/// The identity of a request: the slot and generation of its session, and its number in the
/// session. Stamps of one slot are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The highest generation of a slot, and the highest number of a request.
    pub const NUMBER_MAX: u32 = (1 << 24) - 1;

    /// The stamp of a request; generation and request are truncated to 24 bits each.
    #[must_use]
    pub const fn new(slot: u16, generation: u32, request: u32) -> Stamp {
        let mask = Stamp::NUMBER_MAX;
        let numbers = ((generation & mask) as u64) << 40 | ((request & mask) as u64) << 16;
        Stamp(numbers | slot as u64)
    }

    /// The slot of the session.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> u16 {
        self.0 as u16
    }

    /// The generation: which session of the slot this is.
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// The number of the request within its session.
    #[must_use]
    pub const fn request(self) -> u32 {
        (self.0 >> 16) as u32 & Stamp::NUMBER_MAX
    }
}

/// The version of a cell and the kind of its content, as registers hold them: a single word, so
/// that a switch changes all of it in one register access.
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

    /// A clean version without a value: the key was deleted.
    #[must_use]
    pub const fn deleted(version: u64) -> State {
        State(version << State::VERSION_AT)
    }

    /// A clean version with a value of `length_bytes` bytes.
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

    /// The length of the value, in bytes.
    #[must_use]
    #[inline]
    pub const fn length_bytes(self) -> u8 {
        (self.0 >> State::LENGTH_AT) as u8 & 0x7f
    }

    /// Whether the value is a number, held in its first word.
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

    /// Whether the version is dirty: this member does not know that the tail has it.
    #[must_use]
    #[inline]
    pub const fn is_dirty(self) -> bool {
        self.0 & State::DIRTY != 0
    }

    /// The same state, marked dirty.
    #[must_use]
    #[inline]
    pub const fn dirty(self) -> State {
        State(self.0 | State::DIRTY)
    }

    /// The same state, marked clean.
    #[must_use]
    #[inline]
    pub const fn clean(self) -> State {
        State(self.0 & !State::DIRTY)
    }

    /// The same content with another version.
    #[must_use]
    #[inline]
    pub const fn as_version(self, version: u64) -> State {
        State(self.0 & ((1 << State::VERSION_AT) - 1) | version << State::VERSION_AT)
    }
}

/// The name of a key, padded with zeroes; all zeroes is no name.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Name(pub [u64; NAME_WORDS]);

impl Name {
    /// The name with these bytes; `None` if they are empty, too long, or contain a zero.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Name> {
        if bytes.is_empty() || bytes.len() > NAME_BYTES_MAX || bytes.contains(&0) {
            return None;
        }
        let mut padded = [0; NAME_BYTES_MAX];
        padded[..bytes.len()].copy_from_slice(bytes);
        Some(Name(core::array::from_fn(|word| u64_at(&padded, 8 * word))))
    }

    /// The bytes of the name with their padding.
    #[must_use]
    pub fn bytes(&self) -> [u8; NAME_BYTES_MAX] {
        let mut bytes = [0; NAME_BYTES_MAX];
        for (out, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// The length of the name without its padding, in bytes.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.bytes().iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES_MAX)
    }
}

/// The 64-bit words of a value. A chain uses the first 2, 4 or 8 of them; the rest are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Words(pub [u64; WORDS_MAX]);

impl Words {
    /// The words of these bytes, padded with zeroes; `None` if there are too many.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Words> {
        let mut padded = [0; 8 * WORDS_MAX];
        padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Words(core::array::from_fn(|word| u64_at(&padded, 8 * word))))
    }

    /// The bytes of all words.
    #[must_use]
    pub fn bytes(&self) -> [u8; 8 * WORDS_MAX] {
        let mut bytes = [0; 8 * WORDS_MAX];
        for (out, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }
}

/// The meaning of a packet. A field that the operation does not use is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repr {
    /// The operation.
    pub op: Op,
    /// The group of switches that form the chain.
    pub group: GroupId,
    /// The member that sends the packet; 0 for a client.
    pub from: NodeId,
    /// The epoch of the sender; 0 for a client.
    pub epoch: Epoch,
    /// The index of the cell.
    pub cell: u32,
    /// The effect of a WRITE.
    pub command: Command,
    /// The condition under which a WRITE takes effect.
    pub condition: Condition,
    /// The outcome of the request.
    pub outcome: Outcome,
    /// Whether an UPDATE has the content of the cell; without it, the UPDATE is about the session
    /// alone.
    pub has_content: bool,
    /// Whether the head gave the cell to the name of a WRITE, in the epoch of the packet, when the
    /// cell had the version in `state`.
    pub is_given: bool,
    /// Whether a WRITE leaves the deadline of the key as it is.
    pub keeps_deadline: bool,
    /// The client that is answered; the unspecified address if nobody is.
    pub client: Addr,
    /// The length in bytes of the value that a WRITE expects, and whether it is a number.
    pub expected_state: (u8, bool),
    /// The identity of the request; in a READ_REPLY see [`Repr::sent_on_by`].
    pub stamp: Stamp,
    /// Version and kind of the cell's content; in a WRITE, those of the new content.
    pub state: State,
    /// The version that a WRITE expects; otherwise the version that the outcome refers to.
    pub basis: u64,
    /// In a request, the operand of INCR; in a reply, the resulting number.
    pub number: u64,
    /// The deadline of the key in the chain's time, in ns; 0 for none. In a WRITE and in a
    /// READ_REPLY, the time to live of the key, in ns.
    pub deadline: u64,
    /// In an UPDATE, the chain's time when it was sent, in ns.
    pub time: u64,
    /// The name of the key.
    pub name: Name,
    /// The number of words in each value: 2, 4 or 8.
    pub words: u8,
    /// The value.
    pub value: Words,
    /// The value that a WRITE expects.
    pub expected: Words,
}

impl Repr {
    /// A packet about a cell, with all other fields zero.
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

    /// The answer of the tail to a READ that this member sent on, since its version was dirty.
    #[must_use]
    pub const fn for_member(self, member: NodeId) -> Repr {
        let stamp = Stamp::new(self.stamp.slot(), member.0 as u32, self.stamp.request());
        Repr { stamp, ..self }
    }

    /// Of a READ_REPLY, which member sent the READ on to the tail; `None`: the switch that was
    /// asked has answered.
    #[must_use]
    pub const fn sent_on_by(&self) -> Option<NodeId> {
        match self.stamp.generation() {
            0 => None,
            member => Some(NodeId(member as u16)),
        }
    }

    /// The length of the packet, in bytes.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        HEAD_BYTES + 8 * self.words as usize * values_of(self.op)
    }

    /// Parses a packet.
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

    /// Writes the packet to the beginning of `out`, and returns its length in bytes; `None` if it
    /// does not fit.
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

    /// The bytes of the packet.
    #[must_use]
    pub fn packet(&self) -> alloc::vec::Vec<u8> {
        let mut bytes = alloc::vec![0; self.size_bytes()];
        let _ = self.write(&mut bytes);
        bytes
    }
}

/// The number of values in a packet of this operation.
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
        /// A read.
        Read = 0,
        /// The reply to a read.
        ReadReply = 1,
        /// A write.
        Write = 2,
        /// The acknowledgement of a write.
        Acknowledgement = 3,
    }
}

/// The header as the paper prints it (§III.A.2), directly over UDP. Only tests and figures use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Printed {
    /// KV_OP, 2 bits.
    pub op: PrintedOp,
    /// KEY_ID, 32 bits.
    pub key_id: u32,
    /// VALUE, 128 bits.
    pub value: [u8; 16],
}

impl Printed {
    /// The bytes of the header: 162 bits, and six bits of padding.
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

    /// Parses a header.
    ///
    /// # Errors
    /// [`WireError`] if it is cut short, or its padding is not zero.
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
        // A length of 64 bytes in a value of 16 bytes.
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

    /// 2 + 32 + 128 bits (§III.A.2) take 21 bytes, not the 20 that §IV.A counts (hole N10).
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
