//! The progress of a replica that was told to end ([`super::retire`]).

use concord_core::{Instant, ViewNumber};

use crate::retire::Retiring;

/// The number of times that a follower announces that it leaves.
const FAREWELLS: u8 = 3;

/// A replica that was told to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Farewell {
    pub(super) retiring: Retiring,
    /// The view whose leader was told, and how often.
    told: (ViewNumber, u8),
    /// Whether no view with another leader began in time.
    in_vain: bool,
}

impl Farewell {
    pub(super) fn begin(now: Instant) -> Farewell {
        Farewell { retiring: Retiring::begin(now), told: (ViewNumber(0), 0), in_vain: false }
    }

    pub(super) fn is_in_vain(&self) -> bool {
        self.in_vain
    }

    /// Whether the time is up. Makes the next step due at once.
    pub(super) fn gives_up(&mut self, now: Instant) -> bool {
        let is_over = now >= self.retiring.until;
        if is_over {
            self.in_vain = true;
            self.retiring.next_at = now;
        }
        is_over
    }

    /// Follower: whether to tell the leader of `view` once more. Otherwise makes the next step due
    /// at once.
    pub(super) fn tells(&mut self, now: Instant, view: ViewNumber) -> bool {
        if self.told.0 != view {
            self.told = (view, 0);
        }
        let tells = self.told.1 < FAREWELLS;
        if tells {
            self.told.1 += 1;
        } else {
            self.retiring.next_at = now;
        }
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retire::RETIRE_NS_MAX;

    #[test]
    fn who_goes_waits_for_as_long_as_it_may_and_then_goes_in_vain() {
        let mut f = Farewell::begin(Instant(5));
        f.retiring.next_at = Instant(7);
        let last = Instant(5).after(RETIRE_NS_MAX);
        assert!(!f.gives_up(Instant(last.0 - 1)) && !f.is_in_vain());
        assert_eq!(f.retiring.next_at, Instant(7));
        assert!(f.gives_up(last) && f.is_in_vain());
        assert_eq!(f.retiring.next_at, last, "the next step is due at once");
    }

    #[test]
    fn the_leader_of_each_view_is_told_three_times() {
        let mut f = Farewell::begin(Instant(0));
        f.retiring.next_at = Instant(50);
        for view in [4, 5] {
            assert!((0..3).all(|_| f.tells(Instant(9), ViewNumber(view))));
            assert_eq!(f.retiring.next_at, Instant(50));
        }
        assert!(!f.tells(Instant(9), ViewNumber(5)));
        assert_eq!(f.retiring.next_at, Instant(9), "the next step is due at once");
    }
}
