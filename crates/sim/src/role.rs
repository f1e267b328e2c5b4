//! A node of a rack: the machine that it runs, whichever that is. Time, packets and order come from
//! whoever drives it: the swarm's rack, a load, the explorer.

use std::borrow::BorrowMut;

use concord_client::Client;
use concord_control::Controller;
use concord_core::Now;
use concord_core::machine::Deadline;
use concord_engine::Engine;
use concord_protocols::Node;
use concord_switch::Agent;
use concord_wire::Addr;

use crate::world::Outgoing;

/// A process with clients of the rack.
pub(crate) trait Clients {
    /// Takes a packet.
    fn handle(&mut self, now: Now, bytes: &[u8], out: &mut Outgoing);
    /// Time passed.
    fn tick(&mut self, now: Now, out: &mut Outgoing);
    /// When it wants to be woken.
    fn deadline(&self) -> Deadline;
}

impl<C: BorrowMut<Client>> Clients for C {
    fn handle(&mut self, now: Now, bytes: &[u8], out: &mut Outgoing) {
        self.borrow_mut().handle(now, bytes, out);
    }

    fn tick(&mut self, now: Now, out: &mut Outgoing) {
        self.borrow_mut().tick(now, out);
    }

    fn deadline(&self) -> Deadline {
        self.borrow().deadline()
    }
}

/// A node with engines `E`, and clients in processes `C`.
#[derive(Clone, Debug)]
pub(crate) enum Role<E, C> {
    Controller(Box<Controller>),
    Switch(Box<Agent>),
    Replica(Node<E>),
    Client(Box<C>),
    Dead,
}

impl<E: Engine, C: Clients> Role<E, C> {
    /// Takes a packet, and ends the batch.
    pub(crate) fn handle(&mut self, now: Now, bytes: &mut [u8], out: &mut Outgoing) {
        self.take(now, bytes, out);
        self.flush(now, out);
    }

    /// Takes a packet of a batch.
    pub(crate) fn take(&mut self, now: Now, bytes: &mut [u8], out: &mut Outgoing) {
        match self {
            Role::Controller(c) => c.handle(now, bytes, out),
            // Whoever sent it: no program for replicas asks.
            Role::Switch(s) => s.handle(now, Addr::default(), bytes, out),
            Role::Replica(r) => r.handle(now, bytes, out),
            Role::Client(p) => p.handle(now, bytes, out),
            Role::Dead => {}
        }
    }

    /// The end of a batch.
    pub(crate) fn flush(&mut self, now: Now, out: &mut Outgoing) {
        if let Role::Replica(r) = self {
            r.flush(now, out);
        }
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, now: Now, out: &mut Outgoing) {
        match self {
            Role::Controller(c) => c.tick(now, out),
            Role::Switch(s) => s.tick(now, out),
            Role::Replica(r) => {
                r.tick(now, out);
                r.flush(now, out);
            }
            Role::Client(p) => p.tick(now, out),
            Role::Dead => {}
        }
    }

    /// When it wants to be woken.
    pub(crate) fn deadline(&self) -> Deadline {
        match self {
            Role::Controller(c) => c.deadline(),
            Role::Switch(s) => s.deadline(),
            Role::Replica(r) => r.deadline(),
            Role::Client(p) => p.deadline(),
            Role::Dead => Deadline::NONE,
        }
    }
}
