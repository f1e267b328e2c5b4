//! A packet-level network on the [engine](crate::engine): links with bandwidth and propagation
//! delay, ports with strict priorities and finite buffers, switches with a pipeline latency, hosts
//! whose cores take time for each message, and disks that lose data that was not synced.
//!
//! Read [`Network`] first: a driver gives it packets with [`Network::send`] and its events with
//! [`Network::handle`], and gets back the packets that reached their host. [`Permutation`] is a
//! small complete driver, [`Experiment`] the one for any flows and any [`Transport`]. [`scenario`]
//! reads one from a file.

mod arbiter;
mod dcpim;
mod dctcp;
mod disk;
mod experiment;
mod fastpass;
mod harmony;
mod host;
mod hpcc;
pub mod import;
mod managed;
mod matching;
mod network;
mod newreno;
mod numbers;
mod packet;
mod pcap;
mod permutation;
mod port;
mod round_robin;
pub mod scenario;
mod slowdown;
mod tcp;
mod topology;
mod transport;
mod windowed;
pub mod workload;

pub use dcpim::{Dcpim, DcpimConfig, DcpimHeader};
pub use dctcp::Dctcp;
pub use disk::{Disk, DiskFull, DiskSpec};
pub use experiment::{
    After, Experiment, FlowReport, Outcome, PlannedFlow, PortReport, PromiseReport, Trigger,
    TriggerKind, ideal_ps,
};
pub use fastpass::{Fastpass, FastpassConfig, FastpassHeader};
pub use harmony::{
    Allocation, Choice, Harmony, HarmonyConfig, HarmonyError, HarmonyHeader, Paced, QueueBounds,
    Worst, allocated_share, worst_queue,
};
pub use host::{HostSpec, KINDS};
pub use hpcc::{Hpcc, HpccConfig, HpccHeader};
pub use managed::{
    CAPTURED_MAX, Captured, Hop, Marking, QueueCounters, QueueSpec, SHARES, VISITS_MAX, Visit,
};
pub use network::{Delivery, NetCounters, NetEvent, Network};
pub use newreno::NewReno;
pub use packet::{Ecn, Packet};
pub use pcap::write_captured;
pub use permutation::{Permutation, PermutationReport};
pub use port::{CLASSES, PortCounters};
pub use slowdown::{IDEAL_TIME, Slowdowns};
pub use tcp::{Acked, Congestion, Tcp, TcpConfig, TcpHeader, Window};
pub use topology::{HostIndex, LeafSpine, LinkSpec, NodeIndex, Routing, Topology, TopologyError};
pub use transport::{FlowSpec, Promise, Transport, TransportEvent, Way, Wire, WireBytes, step};
pub use windowed::{Segment, Windowed, WindowedConfig, WindowedCounters};
