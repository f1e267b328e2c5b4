//! The seeded in-memory driver: a whole rack (switch, replicas, controller, clients) on virtual time,
//! with packets lost, duplicated, reordered and delayed, nodes paused, cut off, killed and restarted,
//! and every history checked for linearizability. One seed replays a run.
//!
//! Read [`Plan`] (what a seed draws) and [`run`] first.
//!
//! ```
//! let outcome = concord_sim::run(&concord_sim::Plan::draw(7));
//! assert!(outcome.violation.is_none());
//! ```
#![forbid(unsafe_code)]

pub mod engine;
pub mod net;

mod plan;
mod rack;
mod workload;
mod world;

pub use plan::{Fault, Plan};
pub use rack::{Outcome, Totals, run};
