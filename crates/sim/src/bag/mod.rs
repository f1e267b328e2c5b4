//! Groups of the shipped machines with no network between them: every packet that was ever sent
//! stays in a bag, and any of it may arrive at any time, late, again, in another incarnation of its
//! receiver. A seed draws what happens, so that there is progress as well (`choose`); invariants
//! are looked at after every step (`look`), and at the end all is delivered fairly and the group
//! has to come to rest (`rest`).
//!
//! Time is one for all, and each host's clock goes at about its rate, from when it booted: leases
//! count on that. How late a packet is, and how long a node sleeps, is bounded by nothing. Nobody
//! is cut off: what is not chosen does not arrive.
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
