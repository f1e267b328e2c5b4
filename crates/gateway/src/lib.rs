//! The Redis protocol's gateway as a state machine without I/O: connections on one side, the rack's
//! client on the other.
//!
//! Read [`Gateway`] first. The law of the API: [`Gateway::input`] for bytes of a connection,
//! [`Gateway::packet`] for datagrams of the rack, [`Gateway::tick`] at [`Gateway::deadline`]; then
//! [`Gateway::take_ready`] until it is empty, and write what [`Gateway::output`] holds. Replies come
//! in the order of the commands of their connection, always.
//!
//! Replies of the rack are complete RESP bytes and pass untouched. The request parser is our own:
//! it gives ranges of the input and allocates nothing, where the `redis-protocol` crate builds a
//! frame for every argument.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod connection;
mod gateway;
mod keys;
mod local;
mod request;
mod stats;

pub use connection::ConnectionId;
pub use gateway::{Gateway, GatewayConfig, GatewayCounters};
pub use request::{Parsed, ProtocolError, parse_request};
pub use stats::Latencies;
