//! A node of a rack: the machine that it runs. Time, packets and their order come from the driver:
//! the swarm's rack, a load, or the explorer.

use concord_control::{Controller, State};
use concord_core::machine::{Deadline, Persist, Relevance};
use concord_core::{Addr, Machine, Nothing, Now, Sink};
use concord_engine::Engine;
use concord_protocols::Node;
use concord_switch::Agent;
use concord_wire::OfGroup;

/// A node with storage engines `E`, and clients in processes `C`.
#[derive(Clone, Debug)]
pub(crate) enum Role<E, C> {
    Controller(Box<Controller>),
    Switch(Box<Agent>),
    Replica(OfGroup<Node<E>>),
    Client(Box<OfGroup<C>>),
    Dead,
}

impl<E: Engine, C: Machine<Persist = Nothing>> Machine for Role<E, C> {
    type Persist = State;

    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        match self {
            Role::Controller(c) => c.handle(now, from, packet, sink),
            Role::Switch(s) => s.handle(now, from, packet, sink),
            Role::Replica(r) => r.handle(now, from, packet, sink),
            Role::Client(p) => p.handle(now, from, packet, sink),
            Role::Dead => {}
        }
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        match self {
            Role::Controller(c) => c.tick(now, sink),
            Role::Switch(s) => s.tick(now, sink),
            Role::Replica(r) => r.tick(now, sink),
            Role::Client(p) => p.tick(now, sink),
            Role::Dead => {}
        }
    }

    fn deadline(&self) -> Deadline {
        match self {
            Role::Controller(c) => c.deadline(),
            Role::Switch(s) => s.deadline(),
            Role::Replica(r) => r.deadline(),
            Role::Client(p) => p.deadline(),
            Role::Dead => Deadline::NONE,
        }
    }

    fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        match self {
            Role::Controller(c) => c.flush(now, sink),
            Role::Switch(s) => s.flush(now, sink),
            Role::Replica(r) => r.flush(now, sink),
            Role::Client(p) => p.flush(now, sink),
            Role::Dead => {}
        }
    }

    fn poll_persist(&mut self) -> Option<Persist<State>> {
        match self {
            Role::Controller(c) => c.poll_persist(),
            Role::Switch(_) | Role::Replica(_) | Role::Client(_) | Role::Dead => None,
        }
    }

    fn persisted(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        match self {
            Role::Controller(c) => c.persisted(now, number, sink),
            Role::Switch(_) | Role::Replica(_) | Role::Client(_) | Role::Dead => {}
        }
    }

    fn relevance(&self, packet: &[u8]) -> Relevance {
        match self {
            Role::Controller(c) => c.relevance(packet),
            Role::Switch(s) => s.relevance(packet),
            Role::Replica(r) => r.relevance(packet),
            Role::Client(p) => p.relevance(packet),
            Role::Dead => Relevance::Relevant,
        }
    }
}

/// Delivers one packet to a machine, as a batch of its own.
pub(crate) fn deliver(
    machine: &mut impl Machine,
    now: Now,
    from: Addr,
    packet: &mut [u8],
    sink: &mut impl Sink,
) {
    machine.handle(now, from, packet, sink);
    machine.flush(now, sink);
}

/// Wakes a machine, in a batch without packets.
pub(crate) fn wake(machine: &mut impl Machine, now: Now, sink: &mut impl Sink) {
    machine.tick(now, sink);
    machine.flush(now, sink);
}
