//! A replica that starts again with the data on its disk. It replays its log as a joining replica
//! executes what it receives ([`super::join`]), and is caught up in no epoch before it is a member
//! again.

use concord_core::{Guard, NodeId, Now, Position};
use concord_engine::Engine;
use concord_engine::copy::next_place;
use concord_log::{Entry, Part};
use concord_wire::Sink;
use concord_wire::record::Record;

use super::Replica;
use crate::early::is_early;
use crate::journal::{BadEntry, DiskState};
use crate::ordered::{Fit, Room};
use crate::setup::Phase;

/// A sink for a replay, during which nothing is sent.
struct Nobody;

impl Sink for Nobody {
    fn send(&mut self, _to: concord_wire::Addr, _packet: &[u8]) {}
}

impl<E: Engine> Replica<E> {
    /// Replays the next entry of its own log, from the beginning of the state on. To be called on a
    /// new replica before anything else.
    ///
    /// # Errors
    /// [`BadEntry`] if the log belongs to another kind of replica or engine.
    pub fn restore(&mut self, now: Now, entry: &Entry<'_>) -> Result<(), BadEntry> {
        self.phase = Phase::Joining;
        match entry {
            Entry::Record(bytes) => self.restore_record(now, bytes),
            // A part of another snapshot than the one with which the state begins belongs to an
            // incomplete one: ignore it. A snapshot as of no record is empty: complete or not, all
            // records follow it.
            Entry::Part(part)
                if part.is_first && part.position > 0 && self.ordered.end() == Position(0) =>
            {
                self.copy.begin_anew();
                let position = Position(part.position);
                self.install_table(now, position, part.bytes).map(|_| ()).ok_or(BadEntry)
            }
            Entry::Part(part) if !self.copy.is_caught_up() => self.restore_part(part),
            Entry::Part(_) | Entry::Marks(_) | Entry::Reset => Ok(()),
            // All that a member has is committed, or will be.
            Entry::Committed(_) => Ok(()),
            Entry::Origin(origin) => {
                if !self.queue.is_empty() || self.ordered.log.end() != origin.end {
                    return Err(BadEntry);
                }
                self.serving.sessions.give_up(Position(origin.end.position));
                self.journal.begin_with(*origin);
                Ok(())
            }
            // It is of a group that chooses its views by itself.
            Entry::Cut(_) => Err(BadEntry),
        }
    }

    fn restore_record(&mut self, now: Now, bytes: &[u8]) -> Result<(), BadEntry> {
        let record = Record::parse(bytes).map_err(|_| BadEntry)?;
        match self.ordered.fit(&record, bytes) {
            Fit::Next => {}
            // It is repeated after the first part of a snapshot.
            Fit::Known => return Ok(()),
            Fit::Gap | Fit::Mismatch => return Err(BadEntry),
        }
        self.ordered.take(Room::restored(), &record, bytes, now.unix_ms);
        if !self.copy.holds() {
            self.follow(&record, &mut Nobody);
        }
        // This many may be missing elsewhere; older ones are on every disk.
        if self.ordered.log.is_full(&self.setup.limits) {
            let base = Position(self.ordered.log.base().position + 1);
            self.ordered.log.truncate(base.min(self.executed));
        }
        if self.phase == Phase::Joining { Ok(()) } else { Err(BadEntry) }
    }

    fn restore_part(&mut self, part: &Part<'_>) -> Result<(), BadEntry> {
        if part.is_last {
            return self.install_results(part.bytes).ok_or(BadEntry);
        }
        let position = Position(part.position);
        if is_early(part.bytes) {
            return self.restore_early(position, part.bytes).ok_or(BadEntry);
        }
        if next_place(part.bytes).is_err() || position > self.ordered.end() {
            return Err(BadEntry);
        }
        self.install_objects(position, part.bytes, &mut Nobody).ok_or(BadEntry)?;
        if !self.copy.holds() {
            self.follow_log(self.ordered.end(), &mut Nobody);
        }
        Ok(())
    }

    /// Installs keys copied early. Those from before the first chunk, or after the last one, are
    /// not needed.
    fn restore_early(&mut self, position: Position, bytes: &[u8]) -> Option<()> {
        if position > self.ordered.end() {
            return None;
        }
        if !self.copy.holds() || !self.copy.has_begun() {
            return Some(());
        }
        self.install_early(position, bytes, &mut Nobody)
    }

    /// The number of restored operations that the engine still owes.
    #[must_use]
    pub fn restoring(&self) -> usize {
        self.queue.len()
    }

    /// The whole log was replayed, and the engine owes nothing. From now on everything is written
    /// to the disk that `kept` describes: it has `log_bytes` after the beginning of the newest
    /// snapshot, and an earlier start may have granted leases of up to `lease_ns`.
    ///
    /// # Errors
    /// [`BadEntry`] if the state is incomplete.
    pub fn keep(
        &mut self,
        now: Now,
        kept: DiskState,
        (log_bytes, lease_ns): (u64, u64),
    ) -> Result<(), BadEntry> {
        let is_left = self.phase == Phase::Left;
        if !self.queue.is_empty() || !self.copy.is_caught_up() || is_left {
            return Err(BadEntry);
        }
        self.phase = Phase::Out;
        // Trap T4: it is not known which writes the objects have seen; none is newer than this.
        let end = self.ordered.end();
        if self.setup.guards.on(Guard::Floor) {
            self.applied.note_all(self.ordered.last_seq, end);
        }
        self.role.config.clone_from(&kept.marks.config);
        self.held_epoch = kept.marks.held_epoch;
        if lease_ns > 0 {
            self.quiet_until = now.instant.after(lease_ns);
        }
        self.journal.keep(NodeId(self.setup.me.node), kept, end, log_bytes);
        Ok(())
    }
}
