//! Falcon: its switch program in every interleaving ([`explore`]), and racks of owners, workers and switches from a
//! seed ([`Plan`], [`run`]).

pub mod explore;
mod plan;
mod rack;

pub use plan::{Fault, Plan};
pub use rack::{PATIENCE_NS, Ran, Totals, run};
