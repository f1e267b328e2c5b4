//! FLAIR (Figure 14): requests and answers between the switch and the replicas, and the heartbeats
//! of a session. What a leader uploads to its switch at a session's start is in [`SessionMessage`].
//!
//! A client's request is [`crate::rpc`]'s, of the kind that all stores have in common. The switch
//! makes it one of this kind, and an answer one of that kind again. So a client need not know that
//! the rack runs FLAIR, and takes no answer that the switch has not checked.
//!
//! | offset | bytes | field | in |
//! |---|---|---|---|
//! | 64 | 4 + 4 | SEQ: SID, counter | writes, their replies; reads and their replies: that of the group |
//! | 72 | 8 | LOG_IDX | replies to writes: where the write stands; reads: what must be executed before |
//! | 80 | 1 | CFLWRS, a bit for each replica | replies to writes |
//! | 81 | 1 | reserved | |
//! | 82 | 2 | ECHO: length of the command at the body's end | replies to reads; reads made of these |
//! | 84 | 4 | SWITCH: the switch's id | all |
//!
//! The paper has a field SID beside SEQ. Here it is the upper half of SEQ: one comparison of 64
//! bits covers both, and numbers of later sessions are higher. Who founds a rack anew counts
//! sessions from 1 again, and switch ids go on: SWITCH tells the sessions of both apart (trap T28).
//!
//! **ECHO** (trap T30). The paper's switch makes a new read of a stale reply's key. Commands are
//! opaque here, so a follower puts the command behind its reply, if both fit. The switch cuts it
//! off, or makes the reply a read whose command is its last bytes ([`Packet::command`]).
//!
//! | offset | bytes | HEARTBEAT (op 32) | PROBE (op 33) |
//! |---|---|---|---|
//! | 0 | 16 | what all headers have: the leader's node and view | the same |
//! | 16 | 4 | SID | the same |
//! | 20 | 4 | SWITCH: the switch's id | the same |
//! | 24 | 8 | the last probe that the leader has of its switch (trap T26) | the switch's clock in ns |
//! | 32 | 8 | LOG_IDX: up to where all of CFLWRS have its log | the same |
//! | 40 | 1 | CFLWRS: the replicas that keep up | the same |
//! | 41 | 7 | reserved | |

use alloc::vec::Vec;

use concord_core::{Epoch, Instant, NodeId, Position, Seq, SwitchId};
use serde::{Deserialize, Serialize};

use crate::header::{self, Header, Kind, set_length};
use crate::rpc;
use crate::{Flags, GroupId, Op, Reason, Status, WireError, u16_at, u32_at, u64_at};

mod session;

pub use session::{GROUPS_OF_CHUNK, Group, SessionMessage, Step, Weights};

/// Where the fields are.
pub mod at {
    use core::ops::Range;

    /// SID and counter.
    pub const SEQ: Range<usize> = 64..72;
    /// A position of the log.
    pub const LOG_IDX: Range<usize> = 72..80;
    /// Consistent followers.
    pub const CFLWRS: usize = 80;
    /// Length of the command at the body's end.
    pub const ECHO: Range<usize> = 82..84;
    /// The switch's id.
    pub const SWITCH: Range<usize> = 84..88;
    /// Where the fields end.
    pub const END: usize = 88;

    /// The session of a heartbeat.
    pub(super) const SID: usize = 16;
    /// The switch of a heartbeat.
    pub(super) const BEAT_SWITCH: usize = 20;
    /// The probe of a heartbeat.
    pub(super) const PROBE: usize = 24;
    /// Where that ends.
    pub(super) const PROBE_END: usize = 32;
    /// How far the replicas' logs go, in a heartbeat.
    pub(super) const BEAT_LOG_IDX: usize = 32;
    /// Whose do.
    pub(super) const BEAT_CFLWRS: usize = 40;
}

const _: () = assert!(at::SEQ.start == crate::rpc::at::SEQ.start);
const _: () = assert!(at::LOG_IDX.start == crate::rpc::at::LAST_COMMITTED.start);
const _: () = assert!(at::CFLWRS == crate::rpc::at::INDEX.start);
const _: () = assert!(at::SWITCH.start == crate::rpc::at::INDEX.end);
const _: () = assert!(at::END == rpc::at::OWN.end);

/// Operation of a leader's [`Heartbeat`].
pub const OP_HEARTBEAT: u8 = 32;
/// Operation of the switch's answer to one.
pub const OP_PROBE: u8 = 33;
/// Length of both in bytes.
pub const HEARTBEAT_BYTES: usize = 48;
/// Most replicas of a group: a bit for each.
pub const REPLICAS_MAX: usize = 8;

/// SID: which session. 0 is none.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Sid(pub u32);

impl Sid {
    /// The session of a number.
    #[must_use]
    pub const fn of(seq: Seq) -> Sid {
        Sid(seq.switch_id.0)
    }

    /// The `counter`-th number of this session.
    #[must_use]
    pub const fn number(self, counter: u32) -> Seq {
        Seq::new(SwitchId(self.0), counter)
    }
}

/// A bitmap of replicas: the paper's CFLWRS and consistent_followers. Which replica a bit stands
/// for is said at the session's start, and holds as long as the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followers(pub u8);

impl Followers {
    /// All that can be.
    pub const ALL: Followers = Followers(u8::MAX);

    /// Those of this set that are in the other one too.
    #[must_use]
    pub const fn and(self, other: Followers) -> Followers {
        Followers(self.0 & other.0)
    }

    /// Those of either set.
    #[must_use]
    pub const fn or(self, other: Followers) -> Followers {
        Followers(self.0 | other.0)
    }

    /// The set with `bit` beside what is in it.
    #[must_use]
    pub const fn with(self, bit: usize) -> Followers {
        Followers(self.0 | (1 << (bit % REPLICAS_MAX)))
    }

    /// The set without `bit`.
    #[must_use]
    pub const fn without(self, bit: usize) -> Followers {
        Followers(self.0 & !(1 << (bit % REPLICAS_MAX)))
    }

    /// Whether `bit` is in it.
    #[must_use]
    pub const fn has(self, bit: usize) -> bool {
        bit < REPLICAS_MAX && self.0 >> bit & 1 == 1
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The meaning of a header between the switch and the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// What all requests and answers have. Its fields that are Harmonia's stay empty.
    pub common: rpc::Repr,
    /// A position of the log.
    pub log_idx: Position,
    /// Whose logs are the leader's up to there.
    pub cflwrs: Followers,
    /// How many bytes at the body's end are the command.
    pub echo: u16,
    /// The switch that numbered it, or that is to check it.
    pub switch: SwitchId,
}

impl Repr {
    /// Writes the packet with `body` into `out`, replacing what was there.
    ///
    /// # Panics
    /// If the body does not fit a datagram, as [`rpc::Repr::emit`].
    pub fn emit(&self, body: &[u8], out: &mut Vec<u8>) {
        self.common.emit(body, out);
        out[header::at::KIND] = Kind::Flair as u8;
        out[at::LOG_IDX].copy_from_slice(&self.log_idx.0.to_be_bytes());
        out[at::CFLWRS..at::END].fill(0);
        out[at::CFLWRS] = self.cflwrs.0;
        out[at::ECHO].copy_from_slice(&self.echo.to_be_bytes());
        out[at::SWITCH].copy_from_slice(&self.switch.0.to_be_bytes());
    }
}

/// A checked view on a request or an answer.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(rpc::Packet<'a>);

impl<'a> Packet<'a> {
    /// As [`rpc::Packet::parse`]. The operation is one that all stores have, and the command lies
    /// within the body.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, WireError> {
        let packet = rpc::Packet::parse_kind(bytes, Kind::Flair)?;
        match packet.op() {
            Op::WriteCompletion | Op::Sweep => return Err(WireError::Op),
            Op::Write
            | Op::WRest
            | Op::WRestAck
            | Op::Read
            | Op::WriteReply
            | Op::ReadReply
            | Op::Pull
            | Op::Fragment
            | Op::Push => {}
        }
        let echo = u16_at(packet.bytes(), at::ECHO.start);
        if usize::from(echo) > packet.body().len() {
            return Err(WireError::Field);
        }
        Ok(Packet(packet))
    }

    /// The header and the body, without tag and padding.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.0.bytes()
    }

    /// What follows header and object ids: of a reply, what it says and then the command.
    #[must_use]
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        self.0.body()
    }

    /// A request's command: all of the body, but of a read that the switch made of a stale reply
    /// its end.
    #[must_use]
    pub fn command(&self) -> &'a [u8] {
        let (body, echo) = (self.body(), u16_at(self.bytes(), at::ECHO.start));
        if echo == 0 { body } else { &body[body.len() - usize::from(echo)..] }
    }

    /// The whole header's meaning.
    #[must_use]
    #[inline]
    pub fn repr(&self) -> Repr {
        let bytes = self.bytes();
        Repr {
            common: rpc::Repr { last_committed: Seq::NONE, index: 0, ..self.0.repr() },
            log_idx: Position(u64_at(bytes, at::LOG_IDX.start)),
            cflwrs: Followers(bytes[at::CFLWRS]),
            echo: u16_at(bytes, at::ECHO.start),
            switch: SwitchId(u32_at(bytes, at::SWITCH.start)),
        }
    }
}

/// A view through which the switch rewrites a packet on its way in or out.
#[derive(Debug)]
pub struct PacketMut<'a> {
    bytes: &'a mut [u8],
}

impl<'a> PacketMut<'a> {
    /// As [`Packet::parse`].
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<PacketMut<'a>, WireError> {
        let length = Packet::parse(bytes)?.bytes().len();
        Ok(PacketMut { bytes: &mut bytes[..length] })
    }

    /// Makes a client's request one of this kind. What it says in FLAIR's own fields is forgotten.
    ///
    /// # Errors
    /// [`WireError`], and nothing was changed, if it is none.
    #[inline]
    pub fn enter(bytes: &'a mut [u8]) -> Result<PacketMut<'a>, WireError> {
        let packet = rpc::Packet::parse(bytes)?;
        if !matches!(packet.op(), Op::Write | Op::Read) {
            return Err(WireError::Op);
        }
        let length = packet.bytes().len();
        let bytes = &mut bytes[..length];
        bytes[header::at::KIND] = Kind::Flair as u8;
        bytes[rpc::at::OWN].fill(0);
        Ok(PacketMut { bytes })
    }

    /// Makes an answer one that a client takes: of the kind that all stores have, and without the
    /// command. Gives its length; what is behind it is padding.
    #[inline]
    pub fn leave(self) -> usize {
        let echo = u16_at(self.bytes, at::ECHO.start);
        let length = self.bytes.len() - usize::from(echo);
        self.leave_with(length)
    }

    #[inline]
    fn leave_with(self, length: usize) -> usize {
        self.bytes[header::at::KIND] = Kind::Store as u8;
        self.bytes[rpc::at::OWN].fill(0);
        set_length(&mut self.bytes[..length]);
        length
    }

    /// Makes a reply to a read a read again, for the leader, if the command stands behind it.
    #[must_use]
    pub fn ask_again(&mut self, switch: SwitchId, seq: Seq) -> bool {
        if u16_at(self.bytes, at::ECHO.start) == 0 {
            return false;
        }
        let asked = Flags(u16_at(self.bytes, rpc::at::FLAGS.start));
        let flags = asked.without(Flags::MORE).without(Flags::FAST);
        self.bytes[header::at::OP] = Op::Read as u8;
        self.bytes[header::at::NODE].fill(0);
        self.bytes[header::at::EPOCH].fill(0);
        self.bytes[rpc::at::STATUS] = Status::Ok as u8;
        self.set_flags(flags);
        self.set_reason(Reason::SlowStaleReply);
        self.stamp(switch, seq, Position(0));
        true
    }

    /// Makes a reply to a read one without content, which says that the client is to ask again.
    /// Gives its length, as [`PacketMut::leave`].
    pub fn refuse(mut self) -> usize {
        let flags = Flags(u16_at(self.bytes, rpc::at::FLAGS.start)).without(Flags::MORE);
        self.set_flags(flags);
        self.set_reason(Reason::SlowStaleReply);
        self.bytes[rpc::at::STATUS] = Status::Busy as u8;
        let further = usize::from(self.bytes[rpc::at::FURTHER]) * crate::objects::ID_BYTES;
        self.leave_with(rpc::HEADER_BYTES + further)
    }

    /// Its length, without tag and padding.
    #[must_use]
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Gives a request its number, which is `switch`'s, and a read the position that must be
    /// executed before.
    #[inline]
    pub fn stamp(&mut self, switch: SwitchId, seq: Seq, log_idx: Position) {
        self.bytes[at::SWITCH].copy_from_slice(&switch.0.to_be_bytes());
        self.bytes[at::SEQ].copy_from_slice(&seq.to_u64().to_be_bytes());
        self.bytes[at::LOG_IDX].copy_from_slice(&log_idx.0.to_be_bytes());
    }

    /// Replaces the flags.
    #[inline]
    pub fn set_flags(&mut self, flags: Flags) {
        self.bytes[rpc::at::FLAGS].copy_from_slice(&flags.0.to_be_bytes());
    }

    /// Says which path and why.
    #[inline]
    pub fn set_reason(&mut self, reason: Reason) {
        self.bytes[rpc::at::REASON] = reason as u8;
    }
}

/// What a reply that the switch checks says beside what every reply does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The number of the request.
    pub seq: Seq,
    /// The switch that gave it.
    pub switch: SwitchId,
    /// What the request concerned, beside the flags that the reply has.
    pub flags: Flags,
    /// A write: where it stands.
    pub log_idx: Position,
    /// A write: whose logs are the leader's up to there.
    pub cflwrs: Followers,
}

/// Makes the reply in `out`, which was written as that of every store, one that the switch checks,
/// with `command` behind it if both fit (trap T30).
pub fn checked_reply(out: &mut Vec<u8>, checked: Checked, command: &[u8]) {
    let Ok(packet) = rpc::Packet::parse(out) else { return };
    let (length, flags) = (packet.bytes().len(), packet.flags().with(checked.flags));
    let fits = packet.body().len() + command.len() <= rpc::BODY_BYTES_MAX;
    let echo = if fits && !flags.has(Flags::MORE) { command } else { &[] };
    out.truncate(length);
    out.extend_from_slice(echo);
    out[header::at::KIND] = Kind::Flair as u8;
    out[rpc::at::OWN].fill(0);
    out[at::SEQ].copy_from_slice(&checked.seq.to_u64().to_be_bytes());
    out[at::LOG_IDX].copy_from_slice(&checked.log_idx.0.to_be_bytes());
    out[at::CFLWRS] = checked.cflwrs.0;
    out[at::ECHO].copy_from_slice(&(echo.len() as u16).to_be_bytes());
    out[at::SWITCH].copy_from_slice(&checked.switch.0.to_be_bytes());
    out[rpc::at::FLAGS].copy_from_slice(&flags.0.to_be_bytes());
    set_length(out);
}

/// The leader's word that the session goes on, and the switch's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which group.
    pub group: GroupId,
    /// The leader.
    pub from: NodeId,
    /// Its view.
    pub view: Epoch,
    /// The session.
    pub sid: Sid,
    /// The switch that it is at.
    pub switch: SwitchId,
    /// The switch's clock: when it last answered, as the leader has heard, and in an answer now.
    pub probe: Instant,
    /// The replicas that keep up with the log.
    pub caught_up: CaughtUp,
}

/// Replicas that keep up with the log: whatever was written up to `log_idx`, each of `followers`
/// has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaughtUp {
    /// A position of the log.
    pub log_idx: Position,
    /// Whose logs are the leader's up to there.
    pub followers: Followers,
}

impl Heartbeat {
    /// Reads a leader's heartbeat.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse(bytes: &[u8]) -> Result<Heartbeat, WireError> {
        Heartbeat::parse_op(bytes, OP_HEARTBEAT)
    }

    /// Reads the switch's answer.
    ///
    /// # Errors
    /// [`WireError`], which the caller counts.
    pub fn parse_probe(bytes: &[u8]) -> Result<Heartbeat, WireError> {
        Heartbeat::parse_op(bytes, OP_PROBE)
    }

    fn parse_op(bytes: &[u8], op: u8) -> Result<Heartbeat, WireError> {
        let (header, b) = Header::parse_kind(bytes, Kind::Flair, at::PROBE_END)?;
        if header.op != op {
            return Err(WireError::Op);
        }
        Ok(Heartbeat {
            group: header.group,
            from: header.node,
            view: header.epoch,
            sid: Sid(u32_at(b, at::SID)),
            switch: SwitchId(u32_at(b, at::BEAT_SWITCH)),
            probe: Instant(u64_at(b, at::PROBE)),
            // That of an older replica, or an older switch's answer, ends here.
            caught_up: b.get(..HEARTBEAT_BYTES).map_or_else(CaughtUp::default, |b| CaughtUp {
                log_idx: Position(u64_at(b, at::BEAT_LOG_IDX)),
                followers: Followers(b[at::BEAT_CFLWRS]),
            }),
        })
    }

    /// Writes a leader's heartbeat into `out`, replacing what was there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let header = Header::new(Kind::Flair, OP_HEARTBEAT);
        Header { group: self.group, node: self.from, epoch: self.view, ..header }.begin(out);
        out.extend_from_slice(&self.sid.0.to_be_bytes());
        out.extend_from_slice(&self.switch.0.to_be_bytes());
        out.extend_from_slice(&self.probe.0.to_be_bytes());
        out.extend_from_slice(&self.caught_up.log_idx.0.to_be_bytes());
        out.push(self.caught_up.followers.0);
        out.resize(HEARTBEAT_BYTES, 0);
        set_length(out);
    }

    /// Makes a heartbeat in `packet` the switch's answer to it, at the time `at`, and gives its
    /// length.
    ///
    /// # Errors
    /// [`WireError`], and nothing was changed, if it is none.
    pub fn answer(packet: &mut [u8], at: Instant) -> Result<usize, WireError> {
        Heartbeat::parse(packet)?;
        let length = Header::parse(packet)?.1.len();
        packet[header::at::OP] = OP_PROBE;
        packet[at::PROBE..at::PROBE_END].copy_from_slice(&at.0.to_be_bytes());
        Ok(length)
    }
}

#[cfg(test)]
mod tests;
