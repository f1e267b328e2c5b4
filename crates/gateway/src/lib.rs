//! The Redis protocol's gateway as a state machine without I/O: connections on one side, the rack's
//! client on the other.
//!
//! Read [`Gateway`] first, then docs/reference/semantics.md for what it promises. The law of the
//! API is that of every [`Machine`](concord_core::Machine), with inputs of its own
//! ([`Gateway::input`] for bytes of a connection, [`Gateway::written`]); after each input
//! [`Gateway::take_ready`] until it is empty: write what [`Gateway::output`] holds, and ask
//! [`Gateway::wants_input`] and [`Gateway::wants_close`]. Replies come in the order of the commands
//! of their connection, always.
//!
//! Replies of the rack are complete RESP bytes and pass untouched. The request parser is our own:
//! it resumes where it stopped and gives ranges of the input, where the `redis-protocol` crate
//! starts a partial request again and builds a vector of frames (50 to 80 ns a GET against 310 ns).
//!
//! ```
//! use concord_client::ClientConfig;
//! use concord_core::{Now, Rng};
//! use concord_engine::CommandTable;
//! use concord_gateway::{ConnectionId, Gateway, GatewayConfig, Limits};
//! use concord_wire::Addr;
//!
//! let addr = |port| Addr { ip: 0x7f00_0001, port };
//! let config = GatewayConfig {
//!     splits_reads: false,
//!     client: ClientConfig::new(addr(1), addr(2)),
//!     requirepass: None,
//!     table: CommandTable::memory(),
//!     redis: false,
//!     connections_max: 100,
//!     limits: Limits::default(),
//!     others: Vec::new(),
//!     node: 1,
//!     port: 7379,
//! };
//! let mut gateway = Gateway::new(config, Rng::new(42));
//! let (now, id) = (Now::default(), ConnectionId(1));
//! assert!(gateway.connected(now, id, "127.0.0.1:50000"));
//! let mut packets = Vec::new();
//! gateway.input(now, id, b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", &mut packets);
//! assert_eq!(gateway.take_ready(now, &mut packets), Some(id));
//! assert_eq!(gateway.output(id).unwrap(), b"+PONG\r\n");
//! assert_eq!(packets.len(), 1, "the GET, on its way to the switch");
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod blocking;
mod chain;
mod commands;
mod connection;
mod gateway;
mod memory;
mod process;
mod pubsub;
mod replies;
mod request;
mod scripts;
mod setup;
mod state;
mod tracking;
mod users;

pub use chain::callers::ChainSetup;
pub use commands::latencies::Latencies;
pub use connection::ConnectionId;
pub use gateway::Gateway;
pub use memory::inputs::{INPUT_BYTES_MAX, LONG_INPUTS_MAX, READ_BYTES_MAX};
pub use memory::tentative::TENTATIVE_MIN;
pub use memory::{
    CONNECTION_REPLIES_BYTES_MAX, OVER_LIMIT_NS, REPLIES_BYTES_MAX, REPLIES_BYTES_MIN,
    RESERVED_BYTES, STUCK_NS,
};
pub use process::{CpuTime, Process};
pub use request::{Parsed, Parser, ProtocolError, REQUEST_BYTES_MAX};
pub use setup::{GatewayConfig, GatewayCounters, Limits};
