//! Primary-backup and chain replication, with and without the switch's help (Harmonia §8.2), as
//! state machines without I/O.
//!
//! Read [`Replica`] and [`sessions::Sessions`] first. What every protocol needs stands once, as
//! parts that own their state: what was ordered (the log, its hash, numbers and time), the stream
//! between two replicas, the client table, serving clients, leases, the format of copies.
//! [`replica`] and [`quorum`] are the machines made of them, with parts of their own.
//!
//! The law of the API: [`Replica::handle`] for every packet, [`Replica::engine_ready`] when the
//! engine may have completed something, [`Replica::flush`] at the end of a batch, and
//! [`Replica::tick`] at [`Replica::deadline`]. Everything that is to be sent goes into the sink.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod applied;
pub mod bodies;
mod chunks;
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
