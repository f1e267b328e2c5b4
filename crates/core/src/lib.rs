//! The base that every Concord crate shares: time, identifiers, a seeded random source, and the law
//! that every node is a state machine without I/O.
//!
//! Read [`Instant`] and [`Seq`] first, then [`Machine`]: the law, as a trait.
//!
//! ```
//! use concord_core::{Seq, SwitchId};
//! // A sequence number is ordered by switch first, by counter second (Harmonia §6.3).
//! assert!(Seq::new(SwitchId(2), 1) > Seq::new(SwitchId(1), 4_000_000_000));
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod addr;
pub mod clock;
pub mod counters;
pub mod guard;
pub mod hash;
pub mod ids;
pub mod key;
pub mod lease;
pub mod machine;
pub mod rng;
pub mod time;

pub use addr::{Addr, Sink};
pub use clock::{LogClock, SteadyClock};
pub use guard::{Guard, Guards};
pub use ids::{
    Epoch, Incarnation, NodeId, ObjectId, Position, RequestNumber, Seq, SessionId, SwitchId,
    ViewNumber,
};
pub use key::Key;
pub use lease::Leases;
pub use machine::{Machine, Nothing};
pub use rng::Rng;
pub use time::{Duration, Instant, MS, Now, SEC, US};
