//! The replication protocols of the store, as state machines without I/O: primary-backup, chain
//! replication and CRAQ in [`replica`]; Viewstamped Replication, NOPaxos and Raft in [`quorum`].
//! All but CRAQ run with and without the switch's help (Harmonia §8; FLAIR).
//!
//! Read [`Replica`] and [`sessions::Sessions`] first. The parts that every protocol needs exist
//! once, and own their state: the ordered log (with its hash, numbers and time), the stream between
//! two replicas, the client table, the service to clients, leases, the format of copies. The
//! machines in [`replica`] and [`quorum`] are made of them, with parts of their own.
//!
//! The law of the API: call [`Replica::handle`] for every packet, [`Replica::engine_ready`] when
//! the engine may have completed an operation, [`Replica::flush`] at the end of a batch, and
//! [`Replica::tick`] at [`Replica::deadline`]. All packets to send go into the sink.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod applied;
pub mod bodies;
mod chunks;
mod compare;
mod counters;
mod early;
mod expiry;
mod flair;
mod flair_weights;
pub mod journal;
pub mod limits;
mod link;
pub mod log;
pub mod node;
mod ordered;
mod part_number;
mod parts;
mod pending;
pub mod quorum;
mod relevance;
pub mod replica;
mod retire;
mod serve;
pub mod sessions;
mod setup;
mod shown;
pub mod status;
mod waiting;
mod watch;

pub use counters::ReplicaCounters;
pub use flair::HEARTBEAT_NS;
pub use journal::{BadEntry, DiskState, SNAPSHOT_EVERY_BYTES};
pub use limits::Limits;
pub use node::Node;
pub use quorum::{QuorumCounters, QuorumReplica};
pub use replica::Replica;
pub use retire::Retired;
pub use setup::{Phase, ReplicaConfig, SlowReads};
pub use status::ReplicaStatus;
