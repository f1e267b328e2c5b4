//! A replica that is told to end goes in order, so that nobody notices but by its absence.
//!
//! How is each protocol's own: `replica/retire.rs`, `quorum/retire.rs`.
//!
//! It does not wait for ever: the controller may be down, and it does not take out the last one
//! that has all the data. Then it stops answering, gives its leases back and goes all the same.

use concord_core::{Duration, Instant, MS};

use crate::setup::RETRY_NS;

/// How long a replica that was told to end waits at most until the others go on without it.
pub const RETIRE_NS_MAX: Duration = 800 * MS;
/// How often leases are given back: nobody answers that, and packets get lost.
pub(crate) const RELEASES: u8 = 3;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// The others have gone on without it, and wait for nothing of it.
    InOrder,
    /// It is the only member: nobody can go on.
    Alone,
    /// It has waited for as long as it may: the controller is not reached, or nobody else has all
    /// of the data, or no quorum goes on.
    InVain,
}

/// A replica that was told to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retiring {
    /// When it stops waiting.
    pub(crate) until: Instant,
    /// How often it has said that it holds no lease any more.
    pub(crate) releases: u8,
    /// When to do the next step.
    pub(crate) next_at: Instant,
}

impl Retiring {
    pub(crate) fn begin(now: Instant) -> Retiring {
        Retiring { until: now.after(RETIRE_NS_MAX), releases: 0, next_at: now }
    }

    /// Whether the next step is due; the one behind it comes as late as what is said again.
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
