//! Groups of the shipped machines without a network between them. Every packet that was ever sent
//! stays in a bag, and any of them may arrive at any time: late, repeatedly, or in another
//! incarnation of its receiver. The steps are drawn from a seed, such that there is progress as
//! well (`choose`). Invariants are checked after every step (`look`). At the end all packets are
//! delivered fairly, and the group has to come to rest (`rest`).
//!
//! Time is the same for all, and each host's clock runs at about its rate, from when the host
//! booted: leases depend on that. The delay of a packet, and the pause of a node, have no bound.
//! Links are not cut: a packet that is not chosen does not arrive.
//!
//! ```
//! use concord_sim::bag::{BagPlan, run_bag};
//! use concord_wire::control::Protocol;
//! assert!(run_bag(&BagPlan::draw(7, Some(Protocol::Chain))).violation.is_none());
//! ```

mod calls;
mod choose;
mod group;
mod look;
mod many;
mod packets;
mod plan;
mod rest;
mod run;
mod shrink;
mod watch;

pub use many::{BagFound, BagOptions, BagReport, run_bags};
pub use plan::BagPlan;
pub use run::{BagOutcome, BagTotals, run_bag};
pub use shrink::{Shrunk, shrink_bag};
