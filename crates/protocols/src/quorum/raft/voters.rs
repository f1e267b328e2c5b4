//! Raft: the voters, according to the configurations in the log (Ongaro's dissertation §4).
//!
//! The members of a group keep their places for good. Only the set of *voters*, which alone count
//! in quorums, changes, by one member at a time. The others follow the log like the dissertation's
//! non-voting servers (§4.2.1). A configuration is in force as long as its record is in the log.

use alloc::vec::Vec;

use concord_core::{Position, ViewNumber};
use concord_wire::Flags;
use concord_wire::record::Record;
use concord_wire::vr::LastRecord;

/// The reason for which a change of the voters is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// This replica does not lead a Raft group.
    NotLeader,
    /// There is no such member.
    NotMember,
    /// The member already is as requested.
    NothingToDo,
    /// The last change is not committed, or no record of this term is, or leases counted by an
    /// earlier configuration are not over, or the log is full.
    NotYet,
    /// The member has not caught up.
    Behind,
    /// Too few of the new voters are heard: nothing could be committed any more.
    NoQuorum,
}

/// A configuration, from its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quorum) struct Configuration {
    /// The position of its record.
    pub(in crate::quorum) position: Position,
    /// The term of the record.
    pub(in crate::quorum) term: ViewNumber,
    /// The group to which it belongs: a rack may begin with the log of another one.
    pub(in crate::quorum) group: u64,
    /// The voters, as bits by member.
    pub(in crate::quorum) voters: u64,
}

impl Configuration {
    /// The configuration in `record`, if it has one: it is a no-op with a reply, which no client's
    /// packet has.
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

    /// Encodes a configuration for its record.
    pub(in crate::quorum) fn emit(group: u64, voters: u64) -> [u8; 16] {
        (u128::from(group) << 64 | u128::from(voters)).to_be_bytes()
    }

    /// Encodes a configuration for a copied state.
    pub(in crate::quorum) fn copied(&self) -> Vec<u8> {
        let mut bytes = self.position.0.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.term.0.to_be_bytes());
        bytes.extend_from_slice(&Configuration::emit(self.group, self.voters));
        bytes
    }

    /// Decodes a configuration from a copied state.
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

/// The configurations of the log: the last executed one, if there is one, and all after it.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Voters {
    /// By position. Empty if nothing has changed, so that all members vote.
    history: Vec<Configuration>,
}

impl Voters {
    /// The configuration in force, if it is not the first one.
    pub(in crate::quorum) fn newest(&self) -> Option<&Configuration> {
        self.history.last()
    }

    /// Whether the voters have not changed since the group was founded, according to the log here.
    pub(in crate::quorum) fn are_founders(&self) -> bool {
        self.history.is_empty()
    }

    /// The position of the record of the configuration in force; 0 for the first one.
    pub(in crate::quorum) fn position(&self) -> Position {
        self.newest().map_or(Position(0), |newest| newest.position)
    }

    /// The same position with its term, as votes compare it.
    pub(in crate::quorum) fn last_record(&self) -> LastRecord {
        let newest = self.newest();
        newest.map_or(LastRecord::default(), |c| LastRecord {
            term: c.term.0,
            position: c.position.0,
        })
    }

    /// The configuration that was in force when the log ended at `position`; `None` for the first
    /// one.
    pub(in crate::quorum) fn as_of(&self, position: Position) -> Option<&Configuration> {
        self.history.iter().rev().find(|c| c.position <= position)
    }

    /// All known configurations.
    pub(in crate::quorum) fn iter(&self) -> impl Iterator<Item = &Configuration> {
        self.history.iter()
    }

    /// Notes a configuration whose record was logged.
    pub(in crate::quorum) fn note(&mut self, configuration: Configuration) {
        self.cut(Position(configuration.position.0.saturating_sub(1)));
        self.history.push(configuration);
    }

    /// Rolls back the configurations after `end`, where the log was cut.
    pub(in crate::quorum) fn cut(&mut self, end: Position) {
        self.history.retain(|c| c.position <= end);
    }

    /// Forgets all but the last of the configurations up to `executed`, which are never rolled
    /// back.
    pub(in crate::quorum) fn forget_before(&mut self, executed: Position) {
        let over = self.history.iter().filter(|c| c.position <= executed).count();
        self.history.drain(..over.saturating_sub(1));
    }

    /// Drops the configurations of other groups than `group`.
    pub(in crate::quorum) fn enter_group(&mut self, group: u64) {
        self.history.retain(|c| c.group == group);
    }

    /// Begins anew with the given configuration.
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
