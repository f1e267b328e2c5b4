//! Packets that can have no effect any more, whenever they arrive, and are therefore not in flight.
//! The machines recognize them ([`relevance`](concord_core::Machine::relevance)); the consequences
//! for a state are here (docs/internals/exhaustive.md).

use concord_core::Position;
use concord_core::machine::Relevance;
use concord_protocols::Node;
use concord_wire::control::Protocol;
use concord_wire::link::{Ack, Data, OP_DATA};
use concord_wire::{Kind, Op, Packet, header};

use super::rig::{Flight, Input, PacketId, Rig};
use super::setup::Setup;
use super::state::State;
use crate::world::node_of;

impl Rig {
    /// A packet without the fields that its receiver ignores: the committed position of a chain's
    /// log matters only to joining replicas.
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
}

fn link_number(bytes: &[u8]) -> Option<u64> {
    if !header::is(bytes, Kind::Link, OP_DATA) {
        return None;
    }
    Data::parse(bytes).ok().map(|data| data.link_seq)
}

impl Setup {
    /// Whether records go from one member to the next (or to the backups), and no replica joins.
    fn has_links(&self) -> bool {
        !self.protocol.is_quorum() && self.budget.restarts == 0
    }

    /// Whether records may as well arrive in the order of their link.
    fn keeps_order(&self) -> bool {
        self.reduced && self.has_links() && self.budget.losses == 0
    }
}

impl State {
    /// Whether a packet can have no effect any more.
    pub(super) fn is_stale(&self, rig: &mut Rig, packet: PacketId) -> bool {
        let to = rig.packets[packet as usize].to;
        // Another incarnation would begin without an epoch.
        let may_restart = match rig.is_switch(to) {
            true => self.left.replacements > 0,
            false => self.left.restarts > 0,
        };
        let one_incarnation = rig.setup.budget.restarts == 0;
        match rig.relevance(self.machines[to], packet) {
            Relevance::Relevant => false,
            Relevance::Stale => !may_restart,
            Relevance::StaleButIncarnations => one_incarnation,
            Relevance::AsNow => self.changes_nothing(rig, packet),
            Relevance::AsNowButTime => {
                one_incarnation && self.at.is_over && self.changes_nothing(rig, packet)
            }
            Relevance::AsPassedOn => self.completes_nothing(rig, packet),
            Relevance::AsAnswer { to: client, packet } => {
                let answer = Flight { from: to, to: node_of(client), bytes: packet, among: 0 };
                let answer = rig.keep_packet(answer);
                self.is_stale(rig, answer)
            }
        }
    }

    /// Whether a record would arrive before another one of its link. It would be held, and accepted
    /// when the other has arrived, so that it makes no difference to let it wait in flight. The
    /// exceptions: the other one was lost, and is sent again because later ones overtook it; or
    /// this one announces a higher commit point, which lets a backup answer reads.
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

    /// Whether the receiver stays as it is, and sends nothing.
    fn changes_nothing(&self, rig: &mut Rig, packet: PacketId) -> bool {
        let to = rig.packets[packet as usize].to;
        let step = rig.step(to, self.machines[to], Input::Packet(packet), self.at);
        step.next == self.machines[to] && step.sent.is_empty()
    }

    /// Whether a completion finds no entry to remove. Later numbers have been given out, and
    /// earlier entries are not added any more, so that it never will. Its client has the reply
    /// already.
    fn completes_nothing(&self, rig: &mut Rig, packet: PacketId) -> bool {
        let to = rig.packets[packet as usize].to;
        let step = rig.step(to, self.machines[to], Input::Packet(packet), self.at);
        let is_reply = Packet::parse(&rig.packets[packet as usize].bytes)
            .is_ok_and(|p| p.op() == Op::WriteReply);
        step.next == self.machines[to]
            && !(is_reply && step.sent.is_empty())
            && step.sent.iter().all(|reply| self.is_stale(rig, *reply))
    }
}
