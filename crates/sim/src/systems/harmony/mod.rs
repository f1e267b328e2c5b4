//! Simulation of Harmony: its hosts and switches on a network of links with queues, from a seed
//! ([`Plan`], [`run`]).

mod links;
mod plan;
mod run;
mod seen;
mod trial;

pub use plan::{Fault, Plan};
pub use run::{Ran, Totals, run};
