//! NetCRAQ and NetChain: both algorithms as printed ([`printed`], [`netchain`]), and the switch
//! program that ships ([`shipped`]), in every interleaving ([`explore`]); and chains of switches
//! with clients from a seed ([`Plan`], [`run`]).

pub mod explore;
pub mod netchain;
mod plan;
pub mod printed;
mod rack;
pub mod shipped;
mod trial;

pub use plan::{Fault, Plan};
pub use rack::{Ran, Totals, run};
