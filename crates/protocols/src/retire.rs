//! Graceful shutdown: a replica that is told to end hands over and leaves, so that clients notice
//! nothing.
//!
//! The steps depend on the protocol: `replica/retire.rs`, `quorum/retire.rs`.
//!
//! The replica does not wait for ever: the controller may be down, and never removes the last
//! member that has all the data. After [`RETIRE_NS_MAX`] it stops answering, gives its leases back
//! and ends anyway.

use concord_core::{Duration, Instant, MS};

use crate::setup::RETRY_NS;

/// The longest time that a replica waits until the others continue without it.
pub const RETIRE_NS_MAX: Duration = 800 * MS;
/// The number of times that leases are given back: no answer confirms it, and packets get lost.
pub(crate) const RELEASES: u8 = 3;

/// The outcome of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// The others continue without the replica, and wait for nothing from it.
    InOrder,
    /// The replica was the only member: the group cannot continue.
    Alone,
    /// The time ran out: the controller is not reached, no other member has all the data, or no
    /// quorum continues.
    InVain,
}

/// The progress of a replica that was told to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retiring {
    /// The end of its patience.
    pub(crate) until: Instant,
    /// The number of times that it has given its leases back.
    pub(crate) releases: u8,
    /// The time of the next step.
    pub(crate) next_at: Instant,
}

impl Retiring {
    pub(crate) fn begin(now: Instant) -> Retiring {
        Retiring { until: now.after(RETIRE_NS_MAX), releases: 0, next_at: now }
    }

    /// Whether the next step is due. Sets the time of the one after it.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_at;
        if is_due {
            self.next_at = now.after(RETRY_NS);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first step is due at once and each other one a while after.
    #[test]
    fn steps_are_spaced() {
        let mut retiring = Retiring::begin(Instant(5));
        assert_eq!((retiring.until, retiring.releases), (Instant(5).after(RETIRE_NS_MAX), 0));
        assert!(!retiring.is_due(Instant(4)));
        assert!(retiring.is_due(Instant(5)) && !retiring.is_due(Instant(5)));
        let next = Instant(5).after(RETRY_NS);
        assert!(!retiring.is_due(Instant(next.0 - 1)) && retiring.is_due(next));
        assert_eq!(retiring.next_at, next.after(RETRY_NS));
    }
}
