//! Packets that can change nothing any more, whenever they arrive: they are not under way. The
//! machines say so themselves ([`relevance`](concord_core::Machine::relevance)); what that means
//! for a state is here (docs/internals/exhaustive.md).

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
    pub(super) fn is_stale(&self, rig: &mut Rig, packet: PacketId) -> bool {
        let to = rig.packets[packet as usize].to;
        // Another incarnation would begin with no epoch.
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

    /// Whether a record came before another one on its link: it would be held, and taken when the
    /// other has come. So it waits for the other on its way, at no difference; unless that one was
    /// lost, and is sent again because others overtook it, or this one tells that more is
    /// committed, which lets a backup answer reads.
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
            && step.sent.iter().all(|reply| self.is_stale(rig, *reply))
    }
}
