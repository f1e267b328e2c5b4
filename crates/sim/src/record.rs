//! The record of a run, packet by packet: the source of diagrams and captures.

use crate::systems::store::fault::Node;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this virtual time, in ns. (A node that is paused or busy handles it later.)
    Arrives(u64),
    /// It was lost.
    Lost,
}

/// A packet from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The sender: a place in [`Recording::nodes`].
    pub from: usize,
    /// The destination: a place in [`Recording::nodes`].
    pub to: usize,
    /// The virtual time when it was sent, in ns.
    pub sent_ns: u64,
    /// The fate of the packet.
    pub fate: Fate,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

/// An event other than a packet: a fault, the begin or end of an operation, an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The virtual time, in ns.
    pub at_ns: u64,
    /// The node: a place in [`Recording::nodes`]; `None` if the event concerns all nodes.
    pub node: Option<usize>,
    /// The description of the event.
    pub text: String,
    /// Whether it is a fault or a violation.
    pub is_fault: bool,
}

/// All packets of a run with their fates, and all other events.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The names of the nodes, in the order of their addresses.
    pub nodes: Vec<Node>,
    /// All packets, in the order in which they were sent.
    pub flights: Vec<Flight>,
    /// All other events, in order.
    pub marks: Vec<Mark>,
}

/// The recording while the run is in progress.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub recording: Recording,
}

impl Recorder {
    pub(crate) fn packet(&mut self, ends: (usize, usize), sent_ns: u64, fate: Fate, bytes: &[u8]) {
        let (from, to) = ends;
        self.recording.flights.push(Flight { from, to, sent_ns, fate, bytes: bytes.to_vec() });
    }

    /// Notes that the packet with this index has reached its node.
    pub(crate) fn arrived(&mut self, at: usize, at_ns: u64) {
        self.recording.flights[at].fate = Fate::Arrives(at_ns);
    }

    pub(crate) fn mark(&mut self, at_ns: u64, node: Option<usize>, text: String, is_fault: bool) {
        self.recording.marks.push(Mark { at_ns, node, text, is_fault });
    }
}
