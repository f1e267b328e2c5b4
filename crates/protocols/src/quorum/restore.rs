//! The restart of a replica from its disk (docs/operate/durability.md).
//!
//! The replica reads its log, executes the records known to be committed, and has all its promises:
//! its view, the log of its last normal view, the incarnations that it knew. It still begins a new
//! incarnation, so that packets to the earlier process do not count. First it asks like a replica
//! that has lost everything ([`crate::quorum::vr::recovery`]): if a view is in progress, it joins,
//! and needs only the records that it missed. After a power cut of all replicas there is no view,
//! and nobody answers. It then takes part in the next view with its log, like a replica that has
//! lost nothing; but not before the leases that it may have granted are over (trap T2).

use concord_core::{Guard, NodeId, Now, Position, Seq, ViewNumber};
use concord_engine::Engine;
use concord_engine::copy::{continues, next_place};
use concord_log::{Entry, Part, ViewMarks};
use concord_wire::control::{Config, LogEnd};
use concord_wire::record::Record;
use concord_wire::{Addr, Sink};

use super::{CrashVector, QuorumReplica, Stage};
use crate::early::{is_early, parse};
use crate::journal::{BadEntry, DiskState};
use crate::ordered::{Fit, Room};
use crate::parts::{PART_OBJECTS, PART_RESULTS, Table};
use crate::quorum::copy::copying::Copying;
use crate::quorum::raft::voters::Configuration;

/// The sink during a restore, in which nothing is sent.
struct Nobody;

impl Sink for Nobody {
    fn send(&mut self, _to: Addr, _packet: &[u8]) {}
}

impl<E: Engine> QuorumReplica<E> {
    /// Reads the next entry of this replica's log, from the beginning of the state on. Comes before
    /// all other calls to a new replica.
    ///
    /// # Errors
    /// [`BadEntry`]: the log is not one of this kind of replica or engine.
    pub fn restore(&mut self, now: Now, entry: &Entry<'_>) -> Result<(), BadEntry> {
        self.local_ms = now.unix_ms;
        match entry {
            Entry::Record(bytes) => self.restore_record(bytes),
            Entry::Committed(position) => {
                self.heard_committed = self.heard_committed.max(Position(*position));
                // The parts of a snapshot belong to earlier positions.
                if self.copying.is_some() { Ok(()) } else { self.restore_committed(now) }
            }
            Entry::Origin(origin) => {
                let is_executed = self.executed == self.ordered.end() && self.pending.is_empty();
                if !is_executed || self.ordered.log.end() != origin.end {
                    return Err(BadEntry);
                }
                self.serving.sessions.give_up(self.executed);
                self.origin_end = self.executed;
                self.journal.begin_with(*origin);
                Ok(())
            }
            Entry::Cut(end) => {
                if Position(end.position) < self.submitted || end.position > self.ordered.end().0 {
                    return Err(BadEntry);
                }
                self.ordered.log.cut(end.position);
                self.group.voters.cut(Position(end.position));
                if self.ordered.log.end() == *end { Ok(()) } else { Err(BadEntry) }
            }
            // A part of another snapshot than the one with which the state begins belongs to an
            // incomplete one: ignore it. A snapshot as of no record is empty: complete or not, all
            // records follow it.
            Entry::Part(part)
                if part.is_first && part.position > 0 && self.ordered.end() == Position(0) =>
            {
                self.restore_table(part).ok_or(BadEntry)
            }
            Entry::Part(part) if self.copying.is_some() => {
                self.restore_part(now, part).ok_or(BadEntry)
            }
            Entry::Part(_) | Entry::Marks(_) | Entry::Reset => Ok(()),
        }
    }

    fn restore_record(&mut self, bytes: &[u8]) -> Result<(), BadEntry> {
        let record = Record::parse(bytes).map_err(|_| BadEntry)?;
        match self.ordered.fit(&record, bytes) {
            Fit::Next => {}
            // The record is repeated after the first part of a snapshot.
            Fit::Known => return Ok(()),
            Fit::Gap | Fit::Mismatch => return Err(BadEntry),
        }
        self.ordered.last_seq = self.ordered.last_seq.max(record.seq);
        self.ordered.take(Room::restored(), &record, bytes, self.local_ms);
        self.note_voters(&record);
        Ok(())
    }

    fn restore_committed(&mut self, now: Now) -> Result<(), BadEntry> {
        self.restore_up_to(now, self.heard_committed.min(self.ordered.end()))
    }

    /// Executes the log up to `committed`.
    fn restore_up_to(&mut self, now: Now, committed: Position) -> Result<(), BadEntry> {
        self.committed = self.committed.max(committed);
        self.execute_committed(now, &mut Nobody);
        self.trim();
        if self.stage == Stage::Left { Err(BadEntry) } else { Ok(()) }
    }

    fn restore_table(&mut self, part: &Part<'_>) -> Option<()> {
        let (hash, table) = Table::parse(part.bytes)?;
        let end = LogEnd { position: part.position, hash };
        self.stand_at(end, Seq::from_u64(table.last_seq), (table.last_now_ms, table.term));
        self.group.voters.reset(Configuration::parse_copied(&table.voters));
        self.serving.sessions.restore(table.sessions);
        let wanted = PART_OBJECTS;
        self.copying =
            Some(Copying { begun: true, wanted, ..Copying::begin(0, LogEnd::default()) });
        Some(())
    }

    fn restore_part(&mut self, now: Now, part: &Part<'_>) -> Option<()> {
        if part.is_last {
            self.copying = None;
            self.learn_results(part.bytes)?;
            return self.restore_committed(now).ok();
        }
        if part.position > self.ordered.end().0 {
            return None;
        }
        if is_early(part.bytes) {
            return self.restore_early(now, part);
        }
        let reached = self.copying.as_ref()?.reached();
        let reached = reached.behind(next_place(part.bytes).ok()?, continues(part.bytes))?;
        // Pieces have the position of the first one.
        if !continues(part.bytes) {
            self.restore_up_to(now, Position(part.position)).ok()?;
            if self.submitted != Position(part.position) {
                return None;
            }
        }
        self.install_chunk(part.bytes)?;
        self.copying.as_mut()?.has_objects(reached);
        Some(())
    }

    /// Installs keys that were copied early. Before the first chunk, and after the last one, they
    /// have no effect.
    fn restore_early(&mut self, now: Now, part: &Part<'_>) -> Option<()> {
        let early = parse(part.bytes)?;
        let wanted = self.copying.as_ref()?.wanted;
        if wanted <= PART_OBJECTS || wanted >= PART_RESULTS {
            return Some(());
        }
        self.restore_up_to(now, Position(part.position)).ok()?;
        if self.submitted != Position(part.position) {
            return None;
        }
        let reached = self.copying.as_ref()?.reached();
        let reached = reached.behind_early(next_place(early.chunk).ok()?)?;
        self.install_chunk(early.chunk)?;
        let copying = self.copying.as_mut()?;
        copying.here.take(&early);
        copying.has_objects(reached);
        Some(())
    }

    /// The number of restored operations that the engine has not completed yet.
    #[must_use]
    pub fn restoring(&self) -> usize {
        self.pending.len()
    }

    /// Ends the restore: the whole log was read, and the engine owes nothing. From now on
    /// everything is kept on the disk that `kept` describes. It has `log_bytes` since the beginning
    /// of the newest snapshot, and an earlier start may have granted leases of up to `lease_ns`.
    ///
    /// # Errors
    /// [`BadEntry`]: the restored state is incomplete.
    pub fn keep(
        &mut self,
        now: Now,
        mut kept: DiskState,
        (log_bytes, lease_ns): (u64, u64),
    ) -> Result<(), BadEntry> {
        if !self.pending.is_empty() || self.copying.is_some() || self.stage == Stage::Left {
            return Err(BadEntry);
        }
        let (config, view, vote) = (
            kept.marks.config.take(),
            kept.marks.view.take(),
            core::mem::take(&mut kept.marks.vote),
        );
        let promised = config.zip(view).filter(|_| kept.is_intact);
        let end = self.ordered.end();
        let has_come_back = match promised {
            Some((config, _)) if !config.kind.is_quorum() => return Err(BadEntry),
            Some((config, view)) => {
                let has_come = self.come_back(now, (config, view), lease_ns, kept.owed);
                // The vote in that view: a node's number; 0 is none.
                if let Some(member) = self.group.index_of(NodeId(vote)).filter(|_| has_come) {
                    self.ballot.vote_for(member);
                }
                has_come
            }
            None => false,
        };
        let begins = end == Position(0) || self.journal.origin().is_some();
        self.heard_committed = Position(0);
        // Its promises are lost, and without them its state is of no use.
        self.gives_up = !has_come_back && !begins;
        self.is_new = kept.is_intact && !has_come_back && begins;
        self.journal.keep(NodeId(self.setup.me.node), kept, end, log_bytes);
        self.promise();
        Ok(())
    }

    /// Returns to the group; false if that is impossible. A replica that may lack records that it
    /// acknowledged (`owed`) has to recover like one that lost everything, and begins with its log.
    fn come_back(
        &mut self,
        now: Now,
        (config, view): (Config, ViewMarks),
        lease_ns: u64,
        owed: bool,
    ) -> bool {
        let me = self.setup.me;
        let Some(index) = config.members.iter().position(|m| m.node == me.node) else {
            return false;
        };
        let members = config.members.len();
        let mut crash_vector = CrashVector::new(view.crash_vector, index, self.setup.guards);
        if crash_vector.vector().len() != members || !crash_vector.renew_mine(me.incarnation) {
            return false;
        }
        self.crash_vector = crash_vector;
        self.suspicion.enter_group(now.instant, members);
        self.recovery.enter_group(members);
        self.group.enter(config, index);
        (self.view, self.last_normal) = (ViewNumber(view.view), ViewNumber(view.last_normal));
        self.switch = view.switch;
        let elects = self.group.elects();
        if !elects {
            self.sequence.set_floor(Seq::from_u64(view.floor));
        }
        let quiet_ns = if self.setup.guards.on(Guard::QuietStart) { lease_ns } else { 0 };
        self.recovery.begin_kept(quiet_ns);
        // Raft: the log that was given up for a copy may have had a configuration that this replica
        // helped to commit.
        let gave_up = elects && view.last_normal == 0 && view.floor > 0;
        let gave_up = gave_up && self.setup.guards.on(Guard::CopyFloor);
        if (owed && self.setup.guards.on(Guard::Intact)) || gave_up {
            self.recovery.begin();
        }
        self.stage = Stage::Recovering;
        self.vr_count.recoveries += 1;
        self.next_retry = now.instant;
        true
    }

    /// Whether this replica takes part in the change to `view`: it has all its promises. One that
    /// restarted from its disk takes part from then on.
    pub(super) fn takes_part(&mut self, now: Now, view: ViewNumber) -> bool {
        if !self.recovery.is_under_way() {
            return true;
        }
        let returns =
            view > self.view && self.recovery.may_return(now.instant, self.setup.lease_ns);
        if returns {
            self.recovery.end();
        }
        returns
    }

    /// Enters the next view if no leader has answered, and enough members are heard for it to
    /// begin.
    pub(super) fn return_alone(&mut self, now: Now, sink: &mut impl Sink) {
        let (lease_ns, quorum) = (self.setup.lease_ns, self.group.quorum());
        let is_time = self.recovery.has_waited(now.instant, 3 * lease_ns);
        if is_time && self.recovery.hears(now.instant, 2 * lease_ns) + 1 >= quorum {
            let next = self.next_view(1);
            if !self.takes_part(now, next) {
                return;
            }
            if self.group.elects() {
                self.return_to_election(now);
            } else {
                self.enter_view(now, next, sink);
            }
        }
    }
}
