//! Simulations of NetCRAQ and NetChain: both algorithms as printed ([`printed`], [`netchain`]) and
//! the switch program that ships ([`shipped`]), in every interleaving ([`explore`]); and chains of
//! switches with a controller and clients from a seed ([`Plan`], [`run`]).

mod calls;
pub mod explore;
pub mod netchain;
mod nodes;
mod plan;
pub mod printed;
mod rack;
pub mod shipped;
mod trial;

pub use plan::{Cut, Fault, Plan};
pub use rack::{Ran, Totals, run};
