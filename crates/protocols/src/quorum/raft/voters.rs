//! Raft: which members vote, by the configurations in the log (Ongaro's dissertation §4).
//!
//! The members of a group keep their places for good. What changes, by one member at a time, is
//! which of them are *voters*: only these are counted in quorums. The others follow the log as the
//! dissertation's non-voting servers do (§4.2.1). A configuration is in force as soon as its record
//! is in the log, and as long as it is.

use alloc::vec::Vec;

use concord_core::{Position, ViewNumber};
use concord_wire::Flags;
use concord_wire::record::Record;
use concord_wire::vr::LastRecord;

/// Why a change of the voters is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// This replica does not lead a Raft group.
    NotLeader,
    /// There is no such member.
    NotMember,
    /// It is so already.
    NothingToDo,
    /// The change before is not committed, or nothing of this term is, or leases that count by an
    /// earlier configuration are not over, or the log is full.
    NotYet,
    /// The member has not caught up.
    Behind,
    /// Too few of those who would vote are there: nothing could be committed any more.
    NoQuorum,
}

/// A configuration, as its record says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quorum) struct Configuration {
    /// Where its record is.
    pub(in crate::quorum) position: Position,
    /// The term of the record.
    pub(in crate::quorum) term: ViewNumber,
    /// Of which group it is: a rack may begin with the log of another one.
    pub(in crate::quorum) group: u64,
    /// Bit i: member i votes.
    pub(in crate::quorum) voters: u64,
}

impl Configuration {
    /// What `record` says, if it is one of a configuration: a no-op with a reply. No client's
    /// packet has a reply.
    pub(in crate::quorum) fn of(record: &Record<'_>) -> Option<Configuration> {
        let (group, voters) = record.reply.split_first_chunk()?;
        let is_one = record.flags.has(Flags::NOOP);
        Some(Configuration {
            position: record.position,
            term: ViewNumber(record.epoch.0),
            group: u64::from_be_bytes(*group),
            voters: u64::from_be_bytes(voters.try_into().ok().filter(|_| is_one)?),
        })
    }

    /// What stands in its record.
    pub(in crate::quorum) fn emit(group: u64, voters: u64) -> [u8; 16] {
        (u128::from(group) << 64 | u128::from(voters)).to_be_bytes()
    }

    /// What stands in a copied state.
    pub(in crate::quorum) fn copied(&self) -> Vec<u8> {
        let mut bytes = self.position.0.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.term.0.to_be_bytes());
        bytes.extend_from_slice(&Configuration::emit(self.group, self.voters));
        bytes
    }

    /// Of what stands in a copied state.
    pub(in crate::quorum) fn parse_copied(bytes: &[u8]) -> Option<Configuration> {
        let (position, rest) = bytes.split_first_chunk()?;
        let (term, rest) = rest.split_first_chunk()?;
        let (group, voters) = rest.split_first_chunk()?;
        Some(Configuration {
            position: Position(u64::from_be_bytes(*position)),
            term: ViewNumber(u32::from_be_bytes(*term)),
            group: u64::from_be_bytes(*group),
            voters: u64::from_be_bytes(voters.try_into().ok()?),
        })
    }
}

/// The configurations of the log: the last one that is executed, if there is one, and all behind
/// it.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Voters {
    /// By position. Empty: nothing was changed, so that all members vote.
    history: Vec<Configuration>,
}

impl Voters {
    /// The one in force, if it is not that of the founding.
    pub(in crate::quorum) fn newest(&self) -> Option<&Configuration> {
        self.history.last()
    }

    /// Whether nothing was changed since the group was founded, as far as the log here says.
    pub(in crate::quorum) fn are_founders(&self) -> bool {
        self.history.is_empty()
    }

    /// Where the record of the one in force is; 0 for that of the founding.
    pub(in crate::quorum) fn position(&self) -> Position {
        self.newest().map_or(Position(0), |newest| newest.position)
    }

    /// The same with its term, as votes compare it.
    pub(in crate::quorum) fn last_record(&self) -> LastRecord {
        let newest = self.newest();
        newest.map_or(LastRecord::default(), |c| LastRecord {
            term: c.term.0,
            position: c.position.0,
        })
    }

    /// The one that was in force where the log ended at `position`; that of the founding is none.
    pub(in crate::quorum) fn as_of(&self, position: Position) -> Option<&Configuration> {
        self.history.iter().rev().find(|c| c.position <= position)
    }

    /// All that are known.
    pub(in crate::quorum) fn iter(&self) -> impl Iterator<Item = &Configuration> {
        self.history.iter()
    }

    /// Its record took its place in the log.
    pub(in crate::quorum) fn note(&mut self, configuration: Configuration) {
        self.cut(Position(configuration.position.0.saturating_sub(1)));
        self.history.push(configuration);
    }

    /// The log ends at `end` from now on: what was behind is rolled back.
    pub(in crate::quorum) fn cut(&mut self, end: Position) {
        self.history.retain(|c| c.position <= end);
    }

    /// All up to `executed` is executed, and is never rolled back: of these the last one is kept.
    pub(in crate::quorum) fn forget_before(&mut self, executed: Position) {
        let over = self.history.iter().filter(|c| c.position <= executed).count();
        self.history.drain(..over.saturating_sub(1));
    }

    /// The group is `group`: what the log says of others is none of it.
    pub(in crate::quorum) fn enter_group(&mut self, group: u64) {
        self.history.retain(|c| c.group == group);
    }

    /// The log begins anew, with that configuration.
    pub(in crate::quorum) fn reset(&mut self, configuration: Option<Configuration>) {
        self.history = configuration.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64, voters: u64) -> Configuration {
        Configuration { position: Position(position), term: ViewNumber(7), group: 9, voters }
    }

    #[test]
    fn a_configuration_survives_its_record_and_a_copy_of_the_state() {
        let c = at(5, 0b101);
        let reply = Configuration::emit(c.group, c.voters);
        let epoch = concord_core::Epoch(7);
        let record = Record { position: c.position, epoch, reply: &reply, ..Record::EMPTY };
        assert_eq!(Configuration::of(&Record { flags: Flags::NOOP, ..record }), Some(c));
        assert_eq!(Configuration::of(&record), None, "a reply to something");
        let no_op = Record { flags: Flags::NOOP, command: &reply, ..Record::EMPTY };
        assert_eq!(Configuration::of(&no_op), None, "a client may have sent that");
        let copied = c.copied();
        assert_eq!(Configuration::parse_copied(&copied), Some(c));
        assert_eq!(Configuration::parse_copied(&copied[..copied.len() - 1]), None);
        assert_eq!(Configuration::parse_copied(&[]), None);
    }

    /// The newest in the log is in force and rolled back with it.
    #[test]
    fn raft_d_4_1_newest_configuration_in_the_log_is_in_force() {
        let mut voters = Voters::default();
        assert!(voters.are_founders());
        voters.note(at(5, 0b011));
        voters.note(at(9, 0b111));
        assert_eq!(voters.newest().unwrap().voters, 0b111);
        assert_eq!(voters.as_of(Position(8)).unwrap().voters, 0b011);
        assert_eq!(voters.as_of(Position(4)), None);
        voters.cut(Position(8));
        assert_eq!(voters.position(), Position(5));
        voters.note(at(7, 0b001));
        voters.forget_before(Position(6));
        assert_eq!(voters.iter().count(), 2);
        voters.forget_before(Position(7));
        assert_eq!((voters.iter().count(), voters.position()), (1, Position(7)));
        voters.enter_group(9);
        assert_eq!(voters.position(), Position(7));
        voters.enter_group(8);
        assert!(voters.are_founders(), "of the group that was here before");
    }
}
