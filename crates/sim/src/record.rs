//! The record of a run, packet by packet: the source of diagrams and captures.

use crate::systems::store::fault::Node;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at that virtual time, in ns. (A paused or busy node takes it later.)
    Arrives(u64),
    /// It was lost on the way.
    Lost,
}

/// One packet on one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Who sent it: a place in [`Recording::nodes`].
    pub from: usize,
    /// Who was to get it.
    pub to: usize,
    /// When it left, in virtual ns.
    pub sent_ns: u64,
    /// What became of it.
    pub fate: Fate,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

/// Something beside packets: a fault, an operation's begin or end, an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When, in virtual ns.
    pub at_ns: u64,
    /// Where: a place in [`Recording::nodes`]; `None` for what concerns everybody.
    pub node: Option<usize>,
    /// What.
    pub text: String,
    /// It is a fault or a violation.
    pub is_fault: bool,
}

/// Everything that was sent in a run, and what was done to it.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The nodes, in the order of their addresses.
    pub nodes: Vec<Node>,
    /// Every packet, in the order of sending.
    pub flights: Vec<Flight>,
    /// Everything else, in order.
    pub marks: Vec<Mark>,
}

/// Where the world notes what happens.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub recording: Recording,
}

impl Recorder {
    pub(crate) fn packet(&mut self, ends: (usize, usize), sent_ns: u64, fate: Fate, bytes: &[u8]) {
        let (from, to) = ends;
        self.recording.flights.push(Flight { from, to, sent_ns, fate, bytes: bytes.to_vec() });
    }

    /// A packet, by its place, reached its node.
    pub(crate) fn arrived(&mut self, at: usize, at_ns: u64) {
        self.recording.flights[at].fate = Fate::Arrives(at_ns);
    }

    pub(crate) fn mark(&mut self, at_ns: u64, node: Option<usize>, text: String, is_fault: bool) {
        self.recording.marks.push(Mark { at_ns, node, text, is_fault });
    }
}
