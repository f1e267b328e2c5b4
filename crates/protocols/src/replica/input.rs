//! The dispatch of inputs: clients' packets, the stream of records, and the messages of the
//! controller, the members and joining replicas.

use concord_core::{Epoch, Guard, Instant, NodeId, Now, Position};
use concord_engine::Engine;
use concord_wire::control::{CopyMessage, LeaseMessage, Membership, Message, Protocol};
use concord_wire::craq::{OP_QUERY, VersionAnswer, VersionQuery};
use concord_wire::fragment::FragmentHdr;
use concord_wire::link::{Ack, Data, Durable};
use concord_wire::{Kind, Op, Packet, Sink, WireError, link, op};

use super::Replica;
use crate::link::{Arrival, BrokenStream};
use crate::setup::Phase;

impl<E: Engine> Replica<E> {
    /// Handles one datagram.
    pub fn handle(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        let handled = match concord_wire::kind(bytes) {
            Ok(Kind::Store) => self.on_request(now, bytes, sink),
            Ok(Kind::Link) => self.on_link(now, bytes, sink),
            Ok(Kind::Craq) => self.on_craq(now, bytes, sink),
            Ok(Kind::Membership) => self.on_membership(now, bytes, sink),
            Ok(Kind::Lease) => self.on_lease(now, bytes, sink),
            Ok(Kind::Copy) => self.on_copy(now, bytes, sink),
            Ok(_) => {
                self.count.unexpected += 1;
                Ok(())
            }
            Err(error) => Err(error),
        };
        if handled.is_err() {
            self.count.malformed += 1;
        }
        self.pump_full(now, sink);
    }

    fn on_request(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let packet = Packet::parse(bytes)?;
        match packet.op() {
            Op::Read => self.on_read(now, &packet, sink),
            Op::Write => self.on_write(now, &packet, sink),
            Op::WRest => self.on_wrest(now, &packet, sink)?,
            Op::Pull => {
                let in_force = self.in_force();
                self.serving.pull(now, &packet, in_force, &mut self.count, sink)?;
            }
            Op::WRestAck
            | Op::WriteCompletion
            | Op::WriteReply
            | Op::ReadReply
            | Op::Fragment
            | Op::Push
            | Op::Sweep => self.count.unexpected += 1,
        }
        Ok(())
    }

    fn on_link(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        match op(bytes) {
            link::OP_DATA => self.on_data(now, &Data::parse(bytes)?, sink),
            link::OP_DURABLE => self.on_durable(&Durable::parse(bytes)?, sink),
            _ => self.on_ack(now, &Ack::parse(bytes)?, sink),
        }
        Ok(())
    }

    fn on_craq(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        match op(bytes) {
            OP_QUERY => self.on_version_query(now, &VersionQuery::parse(bytes)?, sink),
            _ => self.on_version_answer(now, &VersionAnswer::parse(bytes)?, sink),
        }
        Ok(())
    }

    fn on_membership(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let message = Membership::parse(bytes)?;
        self.note_heard(now, message.member_heard());
        match message {
            Membership::Configure(part) => {
                if let Some(config) = self.assembly.take(part) {
                    self.on_configure(now, config, sink);
                }
            }
            Membership::EpochState { epoch, from, end, ask, waits } => {
                self.on_epoch_state(now, Epoch(epoch), (NodeId(from), end), (ask, waits), sink);
            }
            Membership::Open { epoch, from, end, waits } => {
                self.on_open(now, Epoch(epoch), NodeId(from), (end, waits), sink);
            }
            Membership::Opened { epoch, from } => {
                if self.role.is_epoch(Epoch(epoch)) {
                    self.opening.on_opened(NodeId(from));
                }
            }
            Membership::Reach { epoch, from, ask } => {
                self.on_reach(Epoch(epoch), NodeId(from), ask, sink);
            }
            // The controller lost its state.
            Membership::WhoIsWho { client } => {
                if let Some(config) = &self.role.config {
                    config.send(client, &mut self.scratch, sink);
                }
            }
            Membership::ReplicaAlive(_)
            | Membership::VoterAlive { .. }
            | Membership::ChangeVoter { .. }
            | Membership::VotersTold(_)
            | Membership::Compared { .. }
            | Membership::WasDurable { .. }
            | Membership::SwitchAlive { .. }
            | Membership::SwitchRetired { .. } => self.count.unexpected += 1,
        }
        Ok(())
    }

    fn on_lease(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        let message = LeaseMessage::parse(bytes)?;
        self.note_heard(now, message.member_heard());
        match message {
            LeaseMessage::Request { epoch, from, asked_at } => {
                self.on_lease_request(now, Epoch(epoch), NodeId(from), asked_at, sink);
            }
            LeaseMessage::Grant { epoch, from, asked_at } => {
                if self.role.is_epoch(Epoch(epoch)) && self.phase == Phase::Open {
                    let is_asked = self.setup.guards.on(Guard::LeaseClock);
                    let counted = if is_asked { Instant(asked_at) } else { now.instant };
                    self.leases.on_grant(now.instant, NodeId(from), counted);
                }
            }
            LeaseMessage::Release { from, incarnation } => {
                self.leases.release(NodeId(from), incarnation, self.setup.guards);
                self.try_open(now, sink);
            }
        }
        Ok(())
    }

    /// Handles messages about copies of records and of the state.
    fn on_copy(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        let message = CopyMessage::parse(bytes)?;
        self.note_heard(now, message.member_heard());
        match message {
            CopyMessage::Fetch { epoch, from, position, index, missing } => {
                let wanted = (index, missing);
                self.on_fetch(Epoch(epoch), NodeId(from), Position(position), wanted, sink);
            }
            CopyMessage::Fetched { epoch, position, hash, total_bytes, index, piece } => {
                let hdr = FragmentHdr { version: hash, total_bytes, index, count: 1 };
                self.on_fetched(now, Epoch(epoch), Position(position), hdr, &piece, sink);
            }
            CopyMessage::Resume { epoch, from, attempt, end } => {
                self.on_resume(Epoch(epoch), (NodeId(from), attempt), end, sink);
            }
            CopyMessage::Resumed { epoch, from, attempt } => {
                self.on_resumed(now, Epoch(epoch), (NodeId(from), attempt), sink);
            }
            CopyMessage::LogMismatch { epoch, from, attempt } => {
                self.on_log_mismatch_message(now, Epoch(epoch), NodeId(from), attempt);
            }
            CopyMessage::Ask { epoch, from, attempt, part, index } => {
                self.on_copy_ask(Epoch(epoch), (NodeId(from), attempt), part, index, sink);
            }
            CopyMessage::Piece { epoch, attempt, part, position, total_bytes, index, piece } => {
                let hdr = FragmentHdr { version: position, total_bytes, index, count: 1 };
                self.on_copy_piece(now, Epoch(epoch), (attempt, part), hdr, &piece, sink);
            }
        }
        Ok(())
    }

    /// Handles a record, or pieces of one, from the predecessor or the donor.
    fn on_data(&mut self, now: Now, data: &Data<'_>, sink: &mut impl Sink) {
        // Records that the disk cannot keep up with are not taken, and are sent again.
        let is_late = self.journal.is_late(self.setup.guards);
        if !self.takes_records()
            || is_late
            || !self.role.is_epoch(data.epoch)
            || !self.streams.is_from(data.from)
        {
            self.count.link_dropped += 1;
            return;
        }
        let Some(mut receiver) = self.streams.take_receiver() else { return };
        let arrival = receiver.take(data, |record| {
            self.on_record(now, record, sink);
            Ok(self.takes_records())
        });
        match arrival {
            Ok(Arrival::InOrder) => {}
            Ok(Arrival::Held) => self.count.link_held += 1,
            Ok(Arrival::Dropped) => self.count.link_dropped += 1,
            Err(BrokenStream) => self.on_log_mismatch(),
        }
        if self.phase == Phase::Joining && self.copy.is_streamed() {
            self.streams.put_receiver(receiver);
            self.copy.note_committed(data.committed);
            self.raise_committed(data.committed.min(self.executed));
        } else if self.phase == Phase::Open {
            self.streams.put_receiver(receiver);
            // A backup hears from its primary what is committed, and may forget it.
            if self.role.is_protocol(Protocol::PrimaryBackup) {
                self.raise_committed(data.committed.min(self.executed));
            }
        }
    }

    /// Whether it takes records, as a member or a joining replica.
    fn takes_records(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Joining)
    }

    /// Handles the acknowledgement of a successor or a joining replica.
    fn on_ack(&mut self, now: Now, ack: &Ack, sink: &mut impl Sink) {
        if self.phase != Phase::Open || !self.role.is_epoch(ack.epoch) {
            self.count.link_dropped += 1;
            return;
        }
        let (known, scratch) = ((&self.ordered.log, self.committed), &mut self.scratch);
        let Some(resent) = self.streams.on_ack(now.instant, ack, known, scratch, sink) else {
            if !self.source.on_ack(now.instant, ack, known, scratch, sink) {
                self.repeat_log_mismatch(ack.from, sink);
            }
            return;
        };
        self.count.link_resent += resent;
        if self.role.is_protocol(Protocol::Craq) {
            self.commit_up_to(ack.committed, sink);
        } else if self.role.is_protocol(Protocol::Chain) {
            self.raise_committed(ack.committed.min(self.executed));
        } else {
            self.commit_acknowledged(now, sink);
        }
    }
}
