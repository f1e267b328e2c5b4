//! The names that [`hosted!`](macro@crate::hosted) needs where it is used.

pub use alloc::vec::Vec;

pub use concord_core::machine::Deadline;
pub use concord_core::{Instant, Now};
pub use concord_pisa::{Report, Verdict};
pub use concord_wire::control::{Config, Program};
pub use concord_wire::{Addr, Kind, Sink, WireError};

pub use crate::fabric::{Arrival, Fabric};
pub use crate::program::*;
