//! The donor's side: the member that commits (tail, primary) sends its state to joining replicas,
//! part by part, and streams its records to them, while writes go on ([`super::source`]). A joining
//! replica asks for each part ([`crate::parts`]) when it has the one before.

use alloc::vec::Vec;

use concord_core::{Epoch, Guard, NodeId, Position};
use concord_engine::{Engine, Progress};
use concord_wire::control::{CopyMessage, LogEnd};
use concord_wire::{Addr, Sink};

use super::Replica;
use super::queue::Pending;
use super::source::PartAnswer;
use crate::early::part_of;
use crate::link::Sender;
use crate::parts::{PART_RESULTS, PART_TABLE, Table, cursor_of_part, is_rest, say_gone};
use crate::setup::Phase;

impl<E: Engine> Replica<E> {
    /// The address of `node` if this replica is its donor in `epoch`.
    fn source(&self, epoch: Epoch, node: NodeId) -> Option<Addr> {
        if self.phase != Phase::Open || !self.role.is_epoch(epoch) || !self.role.is_reader() {
            return None;
        }
        self.role.joining_addr(node)
    }

    /// A joining replica has a state already, from another donor or from an earlier membership: if
    /// its log is a prefix of ours, records are enough (trap T5).
    pub(super) fn on_resume(
        &mut self,
        epoch: Epoch,
        (from, attempt): (NodeId, u64),
        end: LogEnd,
        sink: &mut impl Sink,
    ) {
        let Some(addr) = self.source(epoch, from) else { return };
        let me = self.role.node();
        if !self.source.knows(from) {
            let position = Position(end.position);
            let known = self.ordered.log.hash_at(position);
            let agrees = known == Some(end.hash) || !self.setup.guards.on(Guard::EpochAgreement);
            if known.is_none() || !agrees {
                let apart = CopyMessage::LogMismatch { epoch: epoch.0, from: me.0, attempt };
                return self.send_control(addr, &apart, sink);
            }
            let sender = Sender::new(me, epoch, (from, addr), position, attempt);
            self.source.resume((from, addr), attempt, sender);
        }
        if self.source.streams(from, attempt) {
            let resumed = CopyMessage::Resumed { epoch: epoch.0, from: me.0, attempt };
            self.send_control(addr, &resumed, sink);
        } else {
            self.repeat_log_mismatch(from, sink);
        }
    }

    /// A joining replica that was told to restart its copy goes on as before: it is told again.
    pub(super) fn repeat_log_mismatch(&mut self, node: NodeId, sink: &mut impl Sink) {
        if let Some((addr, attempt)) = self.source.dropped(node)
            && self.setup.guards.on(Guard::LogMismatchAgain)
        {
            let (epoch, from) = (self.role.epoch().0, self.role.node().0);
            self.send_control(addr, &CopyMessage::LogMismatch { epoch, from, attempt }, sink);
        }
    }

    /// A joining replica asks for a part.
    pub(super) fn on_copy_ask(
        &mut self,
        epoch: Epoch,
        (from, attempt): (NodeId, u64),
        part: u64,
        index: u32,
        sink: &mut impl Sink,
    ) {
        let Some(addr) = self.source(epoch, from) else { return };
        let is_known = is_rest(part) || part_of(part).0 <= PART_RESULTS;
        if !is_known || !self.serving.engine.prepare_copy() {
            return;
        }
        match self.source.on_ask((from, addr), attempt, part, self.committed) {
            PartAnswer::Nothing => {}
            PartAnswer::Dropped => self.repeat_log_mismatch(from, sink),
            PartAnswer::Gone => {
                say_gone((epoch.0, attempt), part, addr, &mut self.scratch, sink);
            }
            PartAnswer::Serve { is_made } => {
                if !is_made {
                    self.take_part(epoch, from, part);
                }
                self.source.send_part(epoch, from, index, &mut self.scratch, sink);
            }
        }
    }

    /// Takes a part of the state as of everything submitted so far.
    pub(super) fn take_part(&mut self, epoch: Epoch, to: NodeId, number: u64) {
        let position = Position(self.submitted.position);
        let mut bytes = Vec::new();
        let mut is_made = true;
        let part = part_of(number).0;
        if number == PART_TABLE {
            self.source.begin_stream((self.role.node(), epoch), to, position);
            let table = Table {
                last_seq: self.ordered.last_seq.to_u64(),
                last_now_ms: self.ordered.last_now_ms,
                sessions: self.serving.sessions.save(),
                term: 0,
                voters: Vec::new(),
            };
            // The hash is known when everything before is in the log.
            bytes = table.emit(0);
            if !self.queue.is_empty() {
                self.queue.push(Pending::Table(to, bytes));
                (bytes, is_made) = (Vec::new(), false);
            }
        } else if part != PART_RESULTS {
            let from = cursor_of_part(part);
            let bytes_max = self.setup.part_bytes(to == self.role.node());
            is_made = self.serving.engine.copy(from, bytes_max, &mut bytes) == Progress::Done;
            if !is_made {
                self.queue.push(Pending::Copy(to, number));
            }
        } else {
            bytes = postcard::to_allocvec(&self.serving.sessions.save()).unwrap_or_default();
        }
        self.source.begin_part(to, number, position);
        if is_made {
            self.part_taken(to, number, bytes);
        }
    }

    /// Everything before a part was executed, and its bytes are ready.
    pub(super) fn part_taken(&mut self, to: NodeId, number: u64, bytes: Vec<u8>) {
        if to == self.role.node() {
            return self.snapshot_part(number, &bytes);
        }
        self.count.parts_copied += 1;
        self.source.end_part(to, number, bytes, &self.ordered.log);
    }
}
