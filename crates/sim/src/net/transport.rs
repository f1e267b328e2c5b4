//! The trait of transports, and what a driver gives them: a clock, the network, timers.

use super::managed::Hop;
use super::network::{NetEvent, Network};
use super::packet::Packet;
use super::topology::HostIndex;
use crate::engine::{EventQueue, Time};

/// Bytes that one host sends to another, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// The sender.
    pub from: HostIndex,
    /// The receiver.
    pub to: HostIndex,
    /// Payload.
    pub bytes: u64,
}

/// The senders and receivers of all flows of a run. The driver adds flows, starts each at its
/// time, and hands over what its host receives and the timers that it asked for. A transport is a
/// function of these calls: no clock, no randomness of its own.
pub trait Transport {
    /// What it puts in a packet.
    type Header;

    /// Adds a flow; flows are numbered from 0.
    fn add_flow(&mut self, flow: FlowSpec) -> u32;

    /// Begins a flow.
    fn start(&mut self, wire: &mut Wire<'_, Self::Header>, flow: u32);

    /// A timer that [`Wire::timer`] set.
    fn timer(&mut self, wire: &mut Wire<'_, Self::Header>, flow: u32, token: u32);

    /// A packet has reached its host.
    fn deliver(&mut self, wire: &mut Wire<'_, Self::Header>, packet: Packet<Self::Header>);

    /// Bytes on the wire of a flow of that many bytes of payload, headers included, and those of
    /// its last packet. For the ideal time of a flow.
    fn wire_bytes(&self, bytes: u64) -> WireBytes;

    /// Payload of a flow that its receiver has, each byte once, in any order.
    fn received_bytes(&self, flow: u32) -> u64;

    /// The number of a data packet in its flow; nothing for other packets.
    fn number(header: &Self::Header) -> Option<u32>;

    /// What reads the telemetry of managed ports into its packets, if it uses any.
    fn telemetry(&self) -> Option<fn(&mut Self::Header, &Hop)> {
        None
    }

    /// Messages that it refused, if it refuses any.
    fn rejected(&self) -> Option<u64> {
        None
    }

    /// What it did that a user should know, in the order of printing.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// The size of a flow on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireBytes {
    /// All data packets, each once.
    pub all: u64,
    /// The last one.
    pub last: u32,
}

/// The events of a run with a transport.
#[derive(Debug)]
pub enum TransportEvent<H> {
    /// The network's.
    Net(NetEvent<H>),
    /// A flow begins.
    Start {
        /// The flow.
        flow: u32,
    },
    /// A transport's timer.
    Timer {
        /// The flow.
        flow: u32,
        /// What the transport gave.
        token: u32,
    },
}

impl<H> From<NetEvent<H>> for TransportEvent<H> {
    fn from(event: NetEvent<H>) -> TransportEvent<H> {
        TransportEvent::Net(event)
    }
}

/// What a transport sees of the world.
pub struct Wire<'a, H> {
    /// The events of the run.
    pub queue: &'a mut EventQueue<TransportEvent<H>>,
    /// The network.
    pub network: &'a mut Network<H>,
    /// Flows that have finished since the driver looked.
    pub finished: &'a mut Vec<u32>,
}

impl<H> Wire<'_, H> {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.queue.now()
    }

    /// Sends a packet from its host.
    pub fn send(&mut self, packet: Packet<H>) {
        self.network.send(self.queue, packet);
    }

    /// Calls [`Transport::timer`] then. A timer is never taken back: the transport looks whether it
    /// still matters.
    pub fn timer(&mut self, at: Time, flow: u32, token: u32) {
        self.queue.schedule(at, TransportEvent::Timer { flow, token });
    }

    /// The receiver of a flow has every byte, for the first time.
    pub fn finished(&mut self, flow: u32) {
        self.finished.push(flow);
    }
}

/// Deals with one event; the network's delivery, if it was one: its host and time.
pub fn step<T: Transport>(
    transport: &mut T,
    wire: &mut Wire<'_, T::Header>,
    event: TransportEvent<T::Header>,
) -> Option<u32> {
    match event {
        TransportEvent::Net(event) => {
            let delivery = wire.network.handle(wire.queue, event)?;
            transport.deliver(wire, delivery.packet);
            return Some(delivery.node.0);
        }
        TransportEvent::Start { flow } => transport.start(wire, flow),
        TransportEvent::Timer { flow, token } => transport.timer(wire, flow, token),
    }
    None
}
