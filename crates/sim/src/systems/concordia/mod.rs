//! Simulations of Concordia's shared memory: its nodes and their switch in every interleaving of a
//! few calls ([`explore`]), under load ([`load`]), and from a seed ([`Plan`], [`run`]).

mod plan;
mod programs;
mod rack;
mod run;
mod trial;

pub mod explore;
pub mod litmus;
pub mod load;

pub use plan::{Fault, Plan};
pub use rack::{Rack, Shape};
pub use run::{PATIENCE_NS, Ran, Totals, run};
