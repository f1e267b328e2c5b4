//! The trait of transports, and their interface to a driver: a clock, the network, timers.

use super::managed::Hop;
use super::network::{NetEvent, Network};
use super::packet::Packet;
use super::topology::{HostIndex, NodeIndex};
use crate::engine::{EventQueue, Time};

/// A flow: bytes that one host sends to another, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// The sender.
    pub from: HostIndex,
    /// The receiver.
    pub to: HostIndex,
    /// The payload.
    pub bytes: u64,
}

/// The senders and receivers of all flows of a run. The driver adds flows, starts each at its time,
/// and passes on the packets that hosts receive and the timers that the transport set. A transport
/// depends only on these calls: it has no clock and no randomness of its own.
pub trait Transport {
    /// Its header in a packet.
    type Header;

    /// Adds a flow; returns its index, counted from 0.
    fn add_flow(&mut self, flow: FlowSpec) -> u32;

    /// Prepares the network before anything is sent: a transport with a switch program makes its
    /// switches programmed ones.
    fn begin(&mut self, _network: &mut Network<Self::Header>) {}

    /// Handles a packet that has reached a programmed switch.
    fn pass(
        &mut self,
        _wire: &mut Wire<'_, Self::Header>,
        _switch: NodeIndex,
        _packet: Packet<Self::Header>,
    ) {
    }

    /// Begins a flow.
    fn start(&mut self, wire: &mut Wire<'_, Self::Header>, flow: u32);

    /// Handles the expiry of a timer that [`Wire::timer`] set.
    fn timer(&mut self, wire: &mut Wire<'_, Self::Header>, flow: u32, token: u32);

    /// Handles a packet that has reached its host.
    fn deliver(&mut self, wire: &mut Wire<'_, Self::Header>, packet: Packet<Self::Header>);

    /// The size on the wire of a flow with `bytes` of payload, headers included, and that of its
    /// last packet. Used for the ideal time of a flow.
    fn wire_bytes(&self, bytes: u64) -> WireBytes;

    /// The payload of a flow that its receiver has, each byte counted once, in any order.
    fn received_bytes(&self, flow: u32) -> u64;

    /// The number of a data packet in its flow; `None` for other packets.
    fn number(header: &Self::Header) -> Option<u32>;

    /// The function that writes the telemetry of managed ports into its packets, if it uses any.
    fn telemetry(&self) -> Option<fn(&mut Self::Header, &Hop)> {
        None
    }

    /// The number of messages that it refused, if it refuses any.
    fn rejected(&self) -> Option<u64> {
        None
    }

    /// The bounds of the queues that the transport promises, if it promises any. A run that exceeds
    /// one ends with a panic.
    fn promise(&self) -> Option<Promise> {
        None
    }

    /// The reservation that carried the last packet of a flow, if the transport reserves.
    fn way(&self, _flow: u32) -> Option<Way> {
        None
    }

    /// The counters that a user should know, in the order of printing.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// Bounds of queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The class of packets whose queues are bounded.
    pub class: u8,
    /// For each port, the bytes of that class that may wait; `u64::MAX` without a bound.
    pub ports: Vec<u64>,
    /// The bound for every port that the transport's paper states, in bytes.
    pub paper_bytes: u64,
}

/// A reservation, as it was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The receiver's slot.
    pub slot: u8,
    /// How many reservations the flow had.
    pub reservations: u32,
    /// The switches from the sender on, and at each the virtual link by which the data came.
    pub hops: Vec<(NodeIndex, u16)>,
}

/// The size of a flow on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireBytes {
    /// The size of all data packets, each once.
    pub all: u64,
    /// The size of the last one.
    pub last: u32,
}

/// The events of a run with a transport.
#[derive(Debug)]
pub enum TransportEvent<H> {
    /// An event of the network.
    Net(NetEvent<H>),
    /// The start of a flow.
    Start {
        /// The index of the flow.
        flow: u32,
    },
    /// The expiry of a transport's timer.
    Timer {
        /// The index of the flow.
        flow: u32,
        /// The token that the transport gave.
        token: u32,
    },
}

impl<H> From<NetEvent<H>> for TransportEvent<H> {
    fn from(event: NetEvent<H>) -> TransportEvent<H> {
        TransportEvent::Net(event)
    }
}

/// The interface of a transport to its driver.
pub struct Wire<'a, H> {
    /// The events of the run.
    pub queue: &'a mut EventQueue<TransportEvent<H>>,
    /// The network.
    pub network: &'a mut Network<H>,
    /// The flows that have finished since the driver last looked.
    pub finished: &'a mut Vec<u32>,
}

impl<H> Wire<'_, H> {
    /// The current time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.queue.now()
    }

    /// Sends a packet from its host.
    pub fn send(&mut self, packet: Packet<H>) {
        self.network.send(self.queue, packet);
    }

    /// Calls [`Transport::timer`] at a time. A timer cannot be cancelled: the transport checks
    /// whether it still matters.
    pub fn timer(&mut self, at: Time, flow: u32, token: u32) {
        self.queue.schedule(at, TransportEvent::Timer { flow, token });
    }

    /// Reports that the receiver of a flow has every byte, for the first time.
    pub fn finished(&mut self, flow: u32) {
        self.finished.push(flow);
    }
}

/// Handles one event. If it delivered a packet to a host, returns the host.
pub fn step<T: Transport>(
    transport: &mut T,
    wire: &mut Wire<'_, T::Header>,
    event: TransportEvent<T::Header>,
) -> Option<u32> {
    match event {
        TransportEvent::Net(event) => {
            let delivery = wire.network.handle(wire.queue, event)?;
            if delivery.node.0 >= wire.network.hosts() {
                transport.pass(wire, delivery.node, delivery.packet);
                return None;
            }
            transport.deliver(wire, delivery.packet);
            return Some(delivery.node.0);
        }
        TransportEvent::Start { flow } => transport.start(wire, flow),
        TransportEvent::Timer { flow, token } => transport.timer(wire, flow, token),
    }
    None
}
