//! The disk's completions and their consequences (trap T7): the tail, the primary, whoever is alone
//! commits what is on every disk; each member of a chain tells the next up to where the logs from
//! the head to its own are; snapshots of the own state are taken part by part.

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
    /// What is to be written to the disk, if the batch before is durable: then call
    /// [`Replica::persisted`].
    pub fn poll_persist(&mut self) -> Option<Persist<Batch>> {
        self.journal.poll(self.ordered.end())
    }

    /// What was handed out is durable.
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

    /// What was handed out is written, and of no more use: its memory is.
    pub fn disk_is_done_with(&mut self, batch: Batch) {
        self.journal.reuse(batch);
    }

    /// Whether the disk has room, as it is found now. Whoever orders hears of it.
    pub fn disk_room(&mut self, is_short: bool) {
        self.journal.set_short(is_short);
        self.streams.acknowledge();
    }

    /// Whether writes are refused that this replica orders, or hears of last: its disk has no room,
    /// or that of one after it.
    pub(super) fn refuses_writes(&self) -> bool {
        (self.journal.is_short() || self.streams.is_short())
            && self.setup.guards.on(Guard::DiskRoom)
    }

    /// The process ends in order: what [`Replica::poll_persist`] gives now is the last.
    pub fn close(&mut self) {
        self.journal.close();
    }

    /// What stands on the disk is damaged: another snapshot takes the place of all before.
    pub fn renew_snapshot(&mut self) {
        self.journal.renew();
    }

    /// The disk failed, for good: the replica leaves.
    pub fn disk_failed(&mut self) {
        self.journal.die();
        self.fail_stop();
    }

    /// Up to where what was executed here is on this disk.
    pub(super) fn durable_here(&self) -> Position {
        if self.setup.guards.on(Guard::DurableCommit) {
            self.executed.min(self.journal.durable())
        } else {
            self.executed
        }
    }

    /// Up to where the log is on the disks of all members before this one.
    pub(super) fn durable_before(&self) -> Position {
        let counts = self.setup.guards.on(Guard::DurableBefore);
        if counts { self.journal.before() } else { Position(u64::MAX) }
    }

    /// The end of a batch of inputs, in an epoch in which disks may delay what is committed.
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

    /// The tail: what is on every disk is committed. Its predecessor hears of it with the next
    /// acknowledgement, which is due now.
    fn commit_durable(&mut self, now: Now, sink: &mut impl Sink) {
        let committed = self.durable_here().min(self.durable_before());
        if committed > self.committed {
            self.raise_committed(committed);
            self.streams.acknowledge();
        }
        self.answer_committed(now, sink);
    }

    /// Tells the next one in the chain up to where all logs from the head on are durable. What is
    /// known to be committed is no news.
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

    /// The predecessor says up to where its own log, and those of all before it, are durable; it is
    /// told that this was heard. Or the successor tells that.
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

    /// Takes the next part of a snapshot, if one is due, or under way.
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

    /// A part of the own state is made.
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
                // Whoever begins with this part needs all that follows it, also what stands before.
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
                // What was under way is gone: all keys are, or it was too long ago.
                Ok(_) | Err(_) => return self.journal.end_snapshot(),
            },
        };
        self.journal.end_part(end, bytes, next);
        self.count.snapshots_refused = self.journal.refused();
    }
}
