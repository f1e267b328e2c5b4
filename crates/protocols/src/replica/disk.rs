//! The disk's completions and their consequences (trap T7): the tail, the primary or a single
//! member commits what is on every disk; each member of a chain tells the next one up to where the
//! logs from the head to its own are durable; snapshots of the own state are taken part by part.

use concord_core::machine::Persist;
use concord_core::{Guard, Now, Position};
use concord_engine::Engine;
use concord_engine::copy::{continues, next_place};
use concord_log::Batch;
use concord_wire::control::{LogEnd, Protocol};
use concord_wire::link::Durable;
use concord_wire::{Addr, Sink};

use super::Replica;
use crate::parts::{HASH_BYTES, PART_RESULTS, PART_TABLE, is_rest};
use crate::setup::{Phase, RETRY_NS};

impl<E: Engine> Replica<E> {
    /// The batch that is to be written to the disk, if the one before is durable. Call
    /// [`Replica::persisted`] afterwards.
    pub fn poll_persist(&mut self) -> Option<Persist<Batch>> {
        self.journal.poll(self.ordered.end())
    }

    /// The batch with this number is durable.
    pub fn persisted(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        if let Some(config) = self.journal.persisted(number)
            && config.epoch > self.role.epoch().0
        {
            self.configure(now, config, sink);
        }
        if self.phase != Phase::Open {
            return;
        }
        if !self.caught_up {
            self.note_caught_up();
        }
        // The primary waits to hear of it.
        if self.role.is_protocol(Protocol::PrimaryBackup) {
            self.streams.acknowledge();
        }
    }

    /// A written batch is not needed any more; its memory is reused.
    pub fn disk_is_done_with(&mut self, batch: Batch) {
        self.journal.reuse(batch);
    }

    /// Notes whether the disk has room. The member that orders is told.
    pub fn disk_room(&mut self, is_short: bool) {
        self.journal.set_short(is_short);
        self.streams.acknowledge();
    }

    /// Whether this replica refuses the writes that it orders or hears of last: its disk has no
    /// room, or that of a member after it.
    pub(super) fn refuses_writes(&self) -> bool {
        (self.journal.is_short() || self.streams.is_short())
            && self.setup.guards.on(Guard::DiskRoom)
    }

    /// The process ends in order: the next batch of [`Replica::poll_persist`] is the last.
    pub fn close(&mut self) {
        self.journal.close();
    }

    /// The data on the disk is damaged: another snapshot replaces all of it.
    pub fn renew_snapshot(&mut self) {
        self.journal.renew();
    }

    /// The disk failed for good: the replica leaves.
    pub fn disk_failed(&mut self) {
        self.journal.die();
        self.fail_stop();
    }

    /// The position up to which executed records are on this disk.
    pub(super) fn durable_here(&self) -> Position {
        if self.setup.guards.on(Guard::DurableCommit) {
            self.executed.min(self.journal.durable())
        } else {
            self.executed
        }
    }

    /// The position up to which the log is on the disks of all members before this one.
    pub(super) fn durable_before(&self) -> Position {
        let counts = self.setup.guards.on(Guard::DurableBefore);
        if counts { self.journal.before() } else { Position(u64::MAX) }
    }

    /// Handles the end of a batch of inputs, in an epoch in which disks may delay commits.
    pub(super) fn keep_durable(&mut self, now: Now, sink: &mut impl Sink) {
        if self.role.is_protocol(Protocol::PrimaryBackup) {
            self.commit_acknowledged(now, sink);
        } else {
            if self.role.is_reader() {
                self.commit_durable(now, sink);
            }
            self.tell_durable(now, sink);
        }
        self.take_snapshot();
    }

    /// Tail: commits what is on every disk. Its predecessor is told with the next acknowledgement,
    /// which is due now.
    fn commit_durable(&mut self, now: Now, sink: &mut impl Sink) {
        let committed = self.durable_here().min(self.durable_before());
        if committed > self.committed {
            self.raise_committed(committed);
            self.streams.acknowledge();
        }
        self.answer_committed(now, sink);
    }

    /// Tells the next member in the chain up to where all logs from the head on are durable.
    /// Committed positions are already known.
    fn tell_durable(&mut self, now: Now, sink: &mut impl Sink) {
        let next =
            self.role.others().find(|m| self.role.is_successor(concord_core::NodeId(m.node)));
        let Some(to) = next.map(|m| m.addr) else { return };
        let Some(durable) = self.journal.tell(now.instant, RETRY_NS) else { return };
        self.say_durable(to, durable, sink);
    }

    fn say_durable(&mut self, to: Addr, durable: Position, sink: &mut impl Sink) {
        let (epoch, from) = (self.role.epoch(), self.role.node());
        Durable { epoch, from, durable }.emit(&mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// The predecessor says up to where its log, and those of all members before it, are durable,
    /// and is told that this was received; or the successor tells that.
    pub(super) fn on_durable(&mut self, said: &Durable, sink: &mut impl Sink) {
        let addr = self.role.member_addr(said.from).filter(|_| self.role.is_epoch(said.epoch));
        let Some(to) = addr.filter(|_| self.phase == Phase::Open) else {
            self.count.link_dropped += 1;
            return;
        };
        if self.role.predecessor() == Some(said.from) {
            self.journal.hear_before(said.durable);
            self.say_durable(to, said.durable, sink);
        } else if self.role.is_successor(said.from) {
            self.journal.confirm(said.durable);
        } else {
            self.count.link_dropped += 1;
        }
    }

    /// Takes the next part of a snapshot, if one is due or in progress.
    fn take_snapshot(&mut self) {
        if self.journal.take_left_objects() && self.source.is_empty() {
            self.serving.engine.end_copy();
        }
        let Some(number) = self.journal.part_wanted() else { return };
        if !self.caught_up || !self.serving.engine.prepare_copy() {
            return;
        }
        self.journal.begin_part(Position(self.submitted.position));
        self.take_part(self.role.epoch(), self.role.node(), number);
    }

    /// Handles a finished part of the own snapshot.
    pub(super) fn snapshot_part(&mut self, number: u64, bytes: &[u8]) {
        let Some(position) = self.journal.part_position(number) else { return };
        let mut end = LogEnd { position: position.0, hash: 0 };
        let next = match number {
            PART_TABLE => {
                // The hash is in the log now: everything before was executed.
                let Some(hash) = self.ordered.log.hash_at(position) else {
                    return self.journal.end_snapshot();
                };
                end.hash = hash;
                let table = bytes.get(HASH_BYTES..).unwrap_or_default();
                let bytes = [&hash.to_be_bytes()[..], table].concat();
                self.journal.end_part(end, &bytes, Some(0));
                // A recovery that begins with this part needs all records that follow its position,
                // also those that were written before it.
                for behind in position.0 + 1..=self.ordered.end().0 {
                    self.journal.record(self.ordered.log.record(Position(behind)));
                }
                return;
            }
            PART_RESULTS => {
                if self.source.is_empty() {
                    self.serving.engine.end_copy();
                }
                None
            }
            _ => match next_place(bytes) {
                Ok(cursor) if continues(bytes) == is_rest(number) => Some(cursor),
                // The snapshot in progress is aborted: all keys are gone, or it began too long ago.
                Ok(_) | Err(_) => return self.journal.end_snapshot(),
            },
        };
        self.journal.end_part(end, bytes, next);
        self.count.snapshots_refused = self.journal.refused();
    }
}
