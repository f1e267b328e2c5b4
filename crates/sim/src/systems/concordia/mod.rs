//! Concordia's shared memory: its nodes and their switch in every interleaving of a few calls
//! ([`explore`]).

mod rack;

pub mod explore;

pub use rack::{Rack, Shape};
