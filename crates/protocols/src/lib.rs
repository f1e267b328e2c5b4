//! Primary-backup and chain replication, with and without the switch's help (Harmonia §8.2), as
//! state machines without I/O.
//!
//! Read [`Replica`] and [`sessions::Sessions`] first. What the two protocols share stands once: the
//! log and its hash, the stream between neighbours, the client table, leases, epochs. They differ in
//! three places, all in [`replica`]'s roles: who sends to whom, when a write is committed, and who
//! answers the reads of the normal protocol.
//!
//! The law of the API: [`Replica::handle`] for every packet, [`Replica::engine_ready`] when the
//! engine may have completed something, [`Replica::flush`] at the end of a batch, and
//! [`Replica::tick`] at [`Replica::deadline`]. Everything that is to be sent goes into the sink.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod applied;
pub mod bodies;
mod craq;
mod epochs;
mod expiry;
mod feed;
mod fetch;
mod join;
pub mod limits;
pub mod link;
pub mod log;
pub mod node;
mod reach;
mod reads;
pub mod replica;
mod retire;
mod serve;
pub mod sessions;
pub mod status;
pub mod vr;
mod watch;
mod writes;

pub use limits::Limits;
pub use node::Node;
pub use replica::{Phase, Replica, ReplicaConfig, ReplicaCounters};
pub use retire::Retired;
pub use status::ReplicaStatus;
pub use vr::{Vr, VrCounters};
