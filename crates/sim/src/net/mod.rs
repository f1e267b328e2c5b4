//! A packet-level network on the [engine](crate::engine): links with bandwidth and propagation
//! delay, ports with strict priorities and finite buffers, switches with a pipeline latency, hosts
//! whose cores take time for each message, disks that lose what was not synced.
//!
//! [`Network`] is the part to read first: a driver gives it packets with [`Network::send`] and its
//! events with [`Network::handle`], and gets back the packets that reached their host.
//! [`Permutation`] is a small complete driver.

mod disk;
mod host;
mod network;
mod packet;
mod permutation;
mod port;
mod topology;
mod windowed;

pub use disk::{Disk, DiskFull, DiskSpec};
pub use host::{HostSpec, KINDS};
pub use network::{Delivery, NetCounters, NetEvent, Network};
pub use packet::Packet;
pub use permutation::{Permutation, PermutationReport};
pub use port::{CLASSES, PortCounters};
pub use topology::{HostIndex, LeafSpine, LinkSpec, NodeIndex, Routing, Topology, TopologyError};
pub use windowed::{Segment, Windowed, WindowedConfig, WindowedCounters};
