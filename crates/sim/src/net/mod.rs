//! A packet-level network on the [engine](crate::engine): links with bandwidth and propagation
//! delay, ports with strict priorities and finite buffers, switches with a pipeline latency, hosts
//! whose cores take time for each message, disks that lose what was not synced.
//!
//! [`Network`] is the part to read first: a driver gives it packets with [`Network::send`] and its
//! events with [`Network::handle`], and gets back the packets that reached their host.
//! [`Permutation`] is a small complete driver, [`Experiment`] the one for any flows and any
//! [`Transport`].

mod dctcp;
mod disk;
mod experiment;
mod host;
mod managed;
mod network;
mod newreno;
mod packet;
mod permutation;
mod port;
mod tcp;
mod topology;
mod transport;
mod windowed;
pub mod workload;

pub use dctcp::Dctcp;
pub use disk::{Disk, DiskFull, DiskSpec};
pub use experiment::{Experiment, FlowReport, Outcome, PlannedFlow, PortReport, ideal_ps};
pub use host::{HostSpec, KINDS};
pub use managed::{Hop, Marking, QueueCounters, QueueSpec, SHARES, VISITS_MAX, Visit};
pub use network::{Delivery, NetCounters, NetEvent, Network};
pub use newreno::NewReno;
pub use packet::{Ecn, Packet};
pub use permutation::{Permutation, PermutationReport};
pub use port::{CLASSES, PortCounters};
pub use tcp::{Acked, Congestion, Tcp, TcpConfig, TcpHeader, Window};
pub use topology::{HostIndex, LeafSpine, LinkSpec, NodeIndex, Routing, Topology, TopologyError};
pub use transport::{FlowSpec, Transport, TransportEvent, Wire, WireBytes, step};
pub use windowed::{Segment, Windowed, WindowedConfig, WindowedCounters};
