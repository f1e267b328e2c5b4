//! The deterministic simulator: a whole rack (switch, replicas, controller, clients) on virtual time,
//! with packets lost, duplicated, reordered and delayed, nodes paused, cut off, killed and restarted,
//! and every history checked for linearizability. One seed replays a run.
//!
//! Read [`Plan`] (what a seed draws) and [`run`] first. The law: a run is a function of its plan.
//! No clock, no thread and no map order has a part in it.
//!
//! ```
//! let outcome = concord_sim::run(&concord_sim::Plan::draw(7));
//! assert!(outcome.violation.is_none());
//! ```
#![forbid(unsafe_code)]

pub mod bag;
pub mod engine;
pub mod explore;
pub mod falcon;
pub mod net;

mod clock;
mod describe;
mod diagram;
mod draw;
mod edges;
mod experiment;
mod fault;
mod gateways;
pub mod load;
mod odd;
mod pcap;
mod plan;
mod rack;
mod record;
mod role;
mod seen;
mod shrink;
mod store;
mod swarm;
mod totals;
mod workload;
mod world;

pub use diagram::{Window, html, svg};
pub use draw::Aim;
pub use edges::{Bounds, Packets, Sizes};
pub use experiment::{guard_name, parse_protocol, parse_seed, without_guard};
pub use fault::{Fault, Node};
pub use gateways::Gateways;
pub use odd::OddCounts;
pub use pcap::write_pcap;
pub use plan::{DRIFT_PPM_MAX, PROTOCOLS, Plan, Service, Timed, protocol_name};
pub use rack::{Outcome, run, run_recorded};
pub use record::{Fate, Flight, Mark, Recording};
pub use seen::Large;
pub use shrink::shrink;
pub use swarm::{Found, Progress, SwarmOptions, SwarmReport, swarm, swarm_of};
pub use totals::Totals;
