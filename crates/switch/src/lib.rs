//! The switch programs, and the agents that run on a switch's own processor beside them.
//!
//! Read [`harmonia::Harmonia`] first (Harmonia's Algorithm 1 as a pipeline), then
//! [`agent::Agent`], the machine that a driver runs. The law: a datagram goes in, every packet
//! that results goes into the sink; no I/O, no clock, no random source but a seed.
//!
//! ```
//! use concord_core::{Incarnation, Now};
//! use concord_switch::{Agent, AgentConfig};
//! use concord_wire::Addr;
//!
//! let own = Addr { ip: 0x7f00_0001, port: 7000 };
//! let controller = Addr { ip: 0x7f00_0001, port: 6999 };
//! let mut agent = Agent::new(AgentConfig::new(Incarnation(1), own, controller))?;
//! let mut sink = Vec::new();
//! agent.tick(Now::default(), &mut sink);
//! assert_eq!(sink[0].0, controller, "the switch says that it lives, and waits to be configured");
//! # Ok::<(), concord_switch::ConfigError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod agent;
pub mod faults;
pub mod harmonia;

pub use agent::{Agent, AgentConfig, AgentCounters, Status};
pub use faults::{FaultCounters, FaultRates, Faults, FaultySink};
pub use harmonia::{ConfigError, Counters, DropReason, Harmonia, Layout, Tables};
