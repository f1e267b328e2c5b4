//! Falcon: its switch program in every interleaving ([`explore`]).

pub mod explore;
