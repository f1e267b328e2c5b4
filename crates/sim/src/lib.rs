//! The deterministic simulator: a whole rack (switch, replicas, controller, clients) on virtual
//! time. Packets are lost, duplicated, reordered and delayed; nodes are paused, cut off, killed and
//! restarted; every history is checked for linearizability. One seed replays a run.
//!
//! Read [`Plan`] (the parameters and faults of a run, drawn from a seed) and [`run`] first. The
//! law: a run is a function of its plan. No clock, thread or map order influences it.
//!
//! ```
//! let outcome = concord_sim::run(&concord_sim::Plan::draw(7));
//! assert!(outcome.violation.is_none());
//! ```
#![forbid(unsafe_code)]

pub mod bag;
pub mod engine;
pub mod explore;
pub mod net;

mod capture;
mod clock;
mod describe;
mod diagram;
mod fabric;
pub mod load;
mod odd;
mod pcap;
mod record;
mod shrink;
mod swarm;
pub mod systems;
mod topic;
mod world;

pub use diagram::{Window, html, svg};
pub use odd::OddCounts;
pub use pcap::write_pcap;
pub use record::{Fate, Flight, Mark, Recording};
pub use shrink::{Effort, Shrunk, shrink};
pub use swarm::{Found, Progress, SwarmOptions, SwarmReport, swarm, swarm_of};
pub use systems::concordia;
pub use systems::falcon;
pub use systems::harmony;
pub use systems::netcraq;
pub use systems::store::disks::Disks;
pub use systems::store::draw::Aim;
pub use systems::store::edges::{Bounds, Packets, Sizes};
pub use systems::store::fault::{Fault, Node};
pub use systems::store::gateways::Gateways;
pub use systems::store::links::Links;
pub use systems::store::plan::{DRIFT_PPM_MAX, Plan, Service, Timed};
pub use systems::store::rack::{Outcome, run, run_recorded, run_with_power_cut};
pub use systems::store::seen::Large;
pub use systems::store::totals::Totals;
pub use systems::store::written::{
    PROTOCOLS, guard_name, parse_protocol, parse_seed, protocol_name, without_guard,
};
