//! The switch programs, and the seat that hosts them.
//!
//! Read [`harmonia::Harmonia`] first (Harmonia's Algorithm 1 as a pipeline), then
//! [`program::SwitchProgram`], the interface of a program to its seat, and [`agent::SwitchAgent`],
//! the machine that a driver runs. The law: a datagram goes in, and every packet that results goes
//! into the sink; there is no I/O, no clock, and no random source but a seed.
//!
//! ```
//! use concord_core::{Incarnation, Machine as _, Now};
//! use concord_switch::{Agent, AgentConfig};
//! use concord_wire::Addr;
//!
//! let own = Addr { ip: 0x7f00_0001, port: 7000 };
//! let controller = Addr { ip: 0x7f00_0001, port: 6999 };
//! let mut agent = Agent::new(AgentConfig::new(Incarnation(1), own, controller))?;
//! let mut sink = Vec::new();
//! agent.tick(Now::default(), &mut sink);
//! assert_eq!(sink[0].0, controller, "the switch says that it lives, and waits to be configured");
//! # Ok::<(), concord_switch::LoadError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod agent;
pub mod concordia;
pub mod craq;
pub mod fabric;
pub mod falcon;
pub mod faults;
pub mod flair;
pub mod forward;
pub mod harmonia;
pub mod harmony;
pub mod hosted;
pub mod netchain;
pub mod netcraq;
pub mod nopaxos;
pub mod nopaxos_harmonia;
pub mod ports;
pub mod program;
pub mod recirculation;
pub mod registry;
pub mod settings;
pub mod store;

pub use concord_pisa as pisa;

pub use agent::{Agent, AgentConfig, AgentCounters, Status, SwitchAgent};
pub use concordia::{BlocksLayout, Concordia};
pub use fabric::FabricCounters;
pub use falcon::{Falcon, Form, QueueLayout};
pub use faults::{FaultCounters, FaultRates, Faults, FaultySink};
pub use flair::{Flair, KeyGroupSettings};
pub use harmonia::{
    ConfigError, Harmonia, Layout, RUN_BITS_MAX, SLOTS_MAX, TABLE_STAGES_MAX, TableSettings,
};
pub use harmony::{Harmony, LinkTables, LinksLayout};
pub use netcraq::{ChainLayout, ChainMember, ChainSeat, NetCraq};
pub use ports::PortTable;
pub use program::{Host, Ingress, Load, SwitchProgram};
pub use recirculation::Loop;
pub use registry::Hosted;
pub use settings::{LoadError, Sections, Settings};
pub use store::{Counters, DropReason, Routes};
