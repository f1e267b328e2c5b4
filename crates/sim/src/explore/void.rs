//! Packets that can change nothing any more, whenever they arrive: they are not under way. Each rule
//! says why (docs/exhaustive.md).

use concord_core::{Guard, Position, Seq};
use concord_protocols::{Node, Phase};
use concord_wire::control::{LeaseMessage, Membership, Message as _, Protocol};
use concord_wire::link::{Ack, Data, OP_ACK, OP_DATA};
use concord_wire::rpc::READ_BIT;
use concord_wire::vr::{VrBody, VrMessage};
use concord_wire::{Kind, Op, Packet, Repr, header, kind, op};

use super::Setup;
use super::rig::{Flight, Input, PacketId, Rig, Role};
use super::state::State;
use crate::world::node_of;

/// By what a packet may be of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Members take it in that epoch (view) alone, and epochs never fall.
    Epoch(u32),
    /// It opens that epoch, or a later one has begun.
    Config(u32),
    /// It acknowledges records in that epoch: what it tells is kept by its maximum.
    Ack(u32),
    /// It completes a write at the switch, and is passed on if it is a reply.
    Completion,
    /// It answers a client.
    Reply,
    /// A client's read at a replica; with the answer that its client would get.
    Read(PacketId),
    /// A numbered write: numbers are taken in order.
    Write(Seq),
    /// There is no rule for it.
    Any,
}

impl Rig {
    /// A packet without what its receiver does not look at: up to where a chain's log is committed
    /// concerns who joins.
    pub(super) fn plain(&self, flight: Flight) -> Flight {
        let is_chain = self.setup.protocol == Protocol::Chain && self.setup.has_links();
        if !(self.setup.reduced && is_chain) || link_number(&flight.bytes).is_none() {
            return flight;
        }
        let mut bytes = Vec::new();
        if let Ok(data) = Data::parse(&flight.bytes) {
            Data { committed: Position(0), ..data }.emit(&mut bytes);
        }
        Flight { bytes, ..flight }
    }

    /// What a packet is good for.
    pub(super) fn use_of(&mut self, flight: &Flight) -> Use {
        let bytes = &flight.bytes[..];
        match kind(bytes) {
            Ok(Kind::Link) if op(bytes) == OP_DATA => {
                Data::parse(bytes).map_or(Use::Any, |d| Use::Epoch(d.epoch.0))
            }
            Ok(Kind::Link) if op(bytes) == OP_ACK => {
                Ack::parse(bytes).map_or(Use::Any, |a| Use::Ack(a.epoch.0))
            }
            Ok(Kind::Membership) => match Membership::parse(bytes) {
                Ok(Membership::Configure(part)) => Use::Config(part.common().epoch),
                Ok(Membership::Open { epoch, .. }) => Use::Epoch(epoch),
                Ok(_) | Err(_) => Use::Any,
            },
            Ok(Kind::Lease) => match LeaseMessage::parse(bytes) {
                Ok(LeaseMessage::Grant { epoch, .. }) => Use::Epoch(epoch),
                Ok(LeaseMessage::Request { .. } | LeaseMessage::Release { .. }) | Err(_) => {
                    Use::Any
                }
            },
            Ok(Kind::Vr) => VrMessage::parse(bytes).map_or(Use::Any, |m| use_of_view(&m)),
            Ok(Kind::Harmonia) => {
                Packet::parse(bytes).map_or(Use::Any, |p| self.use_of_request(flight, &p.repr()))
            }
            Ok(
                Kind::Link | Kind::Craq | Kind::Copy | Kind::NoPaxos | Kind::Tasks | Kind::Falcon,
            )
            | Err(_) => Use::Any,
        }
    }

    fn use_of_request(&mut self, flight: &Flight, repr: &Repr) -> Use {
        match repr.op {
            Op::WriteReply | Op::WriteCompletion if self.is_switch(flight.to) => Use::Completion,
            Op::WriteReply | Op::ReadReply if self.is_client(flight.to) => Use::Reply,
            Op::Write if self.is_replica(flight.to) => Use::Write(repr.seq),
            Op::Read if self.is_replica(flight.to) && repr.request.0 & READ_BIT != 0 => {
                let answer = Repr { op: Op::ReadReply, ..*repr };
                let to = node_of(repr.client);
                let bytes = answer.header(0).to_vec();
                Use::Read(self.keep_packet(Flight { from: flight.to, to, bytes }))
            }
            _ => Use::Any,
        }
    }
}

fn use_of_view(message: &VrMessage) -> Use {
    match message.body {
        VrBody::StartViewChange
        | VrBody::DoViewChange { .. }
        | VrBody::StartView { .. }
        | VrBody::Lacks { .. }
        | VrBody::LeaseGrant { .. }
        | VrBody::Follow { .. } => Use::Epoch(message.view),
        // They tell of lives as well (crash vectors).
        VrBody::Suspect
        | VrBody::LeaseRequest { .. }
        | VrBody::Apart { .. }
        | VrBody::Retire { .. }
        | VrBody::Recovery
        | VrBody::RecoveryResponse { .. } => Use::Any,
    }
}

fn link_number(bytes: &[u8]) -> Option<u64> {
    if !header::is(bytes, Kind::Link, OP_DATA) {
        return None;
    }
    Data::parse(bytes).ok().map(|data| data.link_seq)
}

impl Setup {
    /// Whether records go from one member to the next (or the backups), and nobody joins.
    fn has_links(&self) -> bool {
        !self.protocol.is_quorum() && self.budget.restarts == 0
    }

    /// Whether records may as well arrive in the order of their link.
    fn keeps_order(&self) -> bool {
        self.reduced && self.has_links() && self.budget.losses == 0
    }
}

impl State {
    /// Whether nothing will ever come of a packet.
    pub(super) fn is_void(&self, rig: &mut Rig, packet: PacketId) -> bool {
        let to = rig.packets[packet as usize].to;
        let of = rig.uses[packet as usize];
        // Another life would begin with no epoch.
        let (lives, switches) = (self.left.restarts, self.left.replacements);
        if let Some(node) = rig.replica(self.machines[to]) {
            return match node {
                Node::Replica(replica) => {
                    let epoch = replica.config().map_or(0, |c| c.epoch);
                    match of {
                        Use::Epoch(of) => of < epoch && lives == 0,
                        Use::Config(of) => of <= epoch && lives == 0,
                        Use::Ack(of) if of == epoch => {
                            replica.phase() == Phase::Open && self.changes_nothing(rig, packet)
                        }
                        Use::Ack(of) => of < epoch && lives == 0,
                        Use::Write(seq) => {
                            let guards = rig.setup.guards;
                            let active = replica.config().map_or(0, |c| c.switch_id);
                            let taken =
                                guards.on(Guard::InOrderWrites) && seq <= replica.last_seq();
                            lives == 0 && seq.is_some() && (seq.switch_id.0 < active || taken)
                        }
                        Use::Read(answer) => self.is_void(rig, answer),
                        Use::Completion | Use::Reply | Use::Any => false,
                    }
                }
                Node::Vr(vr) => {
                    // A message of whatever view tells of new lives.
                    let one_life = rig.setup.budget.restarts == 0;
                    let over = |view: u32| {
                        view < vr.view().0 && one_life && rig.setup.guards.on(Guard::View)
                    };
                    match of {
                        // When it comes counts: it is a sign of life.
                        Use::Ack(view) if view == vr.view().0 => {
                            let counts_once = one_life && self.at.is_over && vr.leads();
                            counts_once && self.changes_nothing(rig, packet)
                        }
                        Use::Epoch(view) | Use::Ack(view) => over(view),
                        Use::Config(of) => lives == 0 && vr.config().is_some_and(|c| of <= c.epoch),
                        Use::Read(answer) => self.is_void(rig, answer),
                        Use::Write(_) | Use::Completion | Use::Reply | Use::Any => false,
                    }
                }
            };
        }
        match &rig.machines[self.machines[to] as usize] {
            Role::Switch(agent) => match of {
                Use::Config(of) => switches == 0 && of < agent.epoch().0,
                Use::Completion => self.completes_nothing(rig, packet),
                _ => false,
            },
            Role::Client(_) => of == Use::Reply && self.changes_nothing(rig, packet),
            Role::Controller(_) | Role::Replica(_) | Role::Dead => false,
        }
    }

    /// Whether a record came before another one on its link: it would be held, and taken when the
    /// other has come. So it waits for the other on its way, at no difference; unless that one was
    /// lost, and is sent again because others overtook it, or this one tells that more is committed,
    /// which lets a backup answer reads.
    pub(super) fn is_early(&self, rig: &mut Rig, packet: PacketId) -> bool {
        let Flight { to, ref bytes, .. } = rig.packets[packet as usize];
        let Some(number) = link_number(bytes).filter(|_| rig.setup.keeps_order()) else {
            return false;
        };
        let Some(Node::Replica(replica)) = rig.replica(self.machines[to]) else { return false };
        let committed = replica.committed();
        if Data::parse(bytes).is_ok_and(|data| data.committed > committed) {
            return false;
        }
        let step = rig.step(to, self.machines[to], Input::Packet(packet), self.at);
        step.sent.iter().any(|ack| {
            let ack = Ack::parse(&rig.packets[*ack as usize].bytes);
            ack.is_ok_and(|ack| ack.next <= number)
        })
    }

    /// Whether the receiver stays as it is, and says nothing.
    fn changes_nothing(&self, rig: &mut Rig, packet: PacketId) -> bool {
        let to = rig.packets[packet as usize].to;
        let step = rig.step(to, self.machines[to], Input::Packet(packet), self.at);
        step.next == self.machines[to] && step.sent.is_empty()
    }

    /// Numbers above were given out before, and entries below are none: a completion that finds
    /// nothing to do never will. Its client has the reply already.
    fn completes_nothing(&self, rig: &mut Rig, packet: PacketId) -> bool {
        let to = rig.packets[packet as usize].to;
        let step = rig.step(to, self.machines[to], Input::Packet(packet), self.at);
        let is_reply = Packet::parse(&rig.packets[packet as usize].bytes)
            .is_ok_and(|p| p.op() == Op::WriteReply);
        step.next == self.machines[to]
            && !(is_reply && step.sent.is_empty())
            && step.sent.iter().all(|reply| self.is_void(rig, *reply))
    }
}
