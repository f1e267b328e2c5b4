//! NetCRAQ and NetChain: both algorithms as printed ([`printed`], [`netchain`]), and the switch
//! program that ships ([`shipped`]), in every interleaving ([`explore`]).

pub mod explore;
pub mod netchain;
pub mod printed;
pub mod shipped;
