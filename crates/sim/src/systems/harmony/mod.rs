//! Simulation of Harmony: its hosts and switches on a network of links with queues, from a seed
//! ([`Plan`], [`run`]), and every interleaving of a few messages over a small one ([`explore`]).

pub mod explore;
mod links;
mod plan;
mod run;
mod seen;
mod topology;
mod trial;

pub use plan::{Fault, Plan};
pub use run::{Ran, Totals, run};
pub use topology::Topology;
