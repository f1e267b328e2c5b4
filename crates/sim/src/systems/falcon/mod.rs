//! Simulations of Falcon: its switch program in every interleaving ([`explore`]); racks of owners,
//! workers and switches from a seed ([`Plan`], [`run`]); and the waiting times of tasks, compared
//! with models of other schedulers ([`load`]).

pub mod explore;
pub mod load;
mod plan;
mod rack;
mod trial;

pub use plan::{Fault, Plan};
pub use rack::{PATIENCE_NS, Ran, Totals, run};
