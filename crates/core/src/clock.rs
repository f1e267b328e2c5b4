//! The time by which keys expire (docs/reference/semantics/time.md): it moves with monotonic
//! clocks, and follows wall clocks at a bounded rate.
//!
//! Two steps, each of which runs at most one part in [`SLEW`] faster or slower than a monotonic
//! clock:
//! - [`SteadyClock`], at every node: its wall clock without jumps, which [`crate::Now`] has as
//!   `unix_ms`.
//! - [`LogClock`], at every replica: the log's time. The replica that orders writes stamps them
//!   with it, and decides by it which keys are due. It continues from the last record's stamp,
//!   whichever node made that, and follows the ordering node's steady clock.

use crate::time::{Instant, MS};

/// A clock that follows another one is at most one part in this number faster or slower.
pub const SLEW: u64 = 100;
/// A wall clock that is found so far from where the monotonic clock would have it was set.
const JUMP_NS: u64 = 500 * MS;

/// A node's wall clock, without its jumps.
#[derive(Clone, Copy, Debug, Default)]
pub struct SteadyClock {
    /// The last reading and its time; `None` before the first.
    last: Option<(Instant, u64)>,
    /// How far the wall clock was ahead at the last reading, in ns.
    ahead_ns: i64,
    jumps: u64,
}

impl SteadyClock {
    /// One that was never read.
    pub const NEW: SteadyClock = SteadyClock { last: None, ahead_ns: 0, jumps: 0 };

    /// The time at `instant`, in ns since the Unix epoch, while the wall clock shows `wall_ns`. The
    /// first reading is the wall clock's.
    #[must_use]
    pub fn peek(&self, instant: Instant, wall_ns: u64) -> u64 {
        let Some((at, shown_ns)) = self.last else { return wall_ns };
        let elapsed_ns = instant.since(at);
        follow(shown_ns.saturating_add(elapsed_ns), wall_ns, elapsed_ns)
    }

    /// The same, as the new reading. To be called often: between two readings the wall clock counts
    /// as if it had shown the later value.
    pub fn read(&mut self, instant: Instant, wall_ns: u64) -> u64 {
        let shown_ns = self.peek(instant, wall_ns);
        let ahead_ns = (wall_ns as i64).wrapping_sub(shown_ns as i64);
        let moved = ahead_ns.abs_diff(self.ahead_ns);
        self.jumps += u64::from(self.last.is_some() && moved > JUMP_NS);
        (self.last, self.ahead_ns) = (Some((instant, shown_ns)), ahead_ns);
        shown_ns
    }

    /// How far the wall clock was ahead of it at the last reading, in ms.
    #[must_use]
    pub fn wall_ahead_ms(&self) -> i64 {
        self.ahead_ns / MS as i64
    }

    /// The number of times that the wall clock was found to have been set.
    #[must_use]
    pub fn jumps(&self) -> u64 {
        self.jumps
    }
}

/// The log's time at a replica: what the last record was stamped with, and what has passed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogClock {
    /// In ms since the Unix epoch; 0: there was none yet.
    stamp_ms: u64,
    /// The node's steady clock when that was noted.
    noted_ms: u64,
}

impl LogClock {
    /// Notes the stamp of a record that arrived or was stamped here.
    pub fn note(&mut self, stamp_ms: u64, local_ms: u64) {
        (self.stamp_ms, self.noted_ms) = (stamp_ms, local_ms);
    }

    /// Whether nothing was noted yet.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        self.stamp_ms == 0
    }

    /// The log's time when the node's steady clock shows `local_ms`. It never falls without a
    /// [`LogClock::note`]. Before the first one it is the steady clock's.
    #[must_use]
    pub fn read(&self, local_ms: u64) -> u64 {
        if self.is_unset() {
            return local_ms;
        }
        let elapsed_ms = local_ms.saturating_sub(self.noted_ms);
        follow(self.stamp_ms.saturating_add(elapsed_ms), local_ms, elapsed_ms)
    }
}

/// `own` moved towards `wanted`, by no more than is due after so long.
fn follow(own: u64, wanted: u64, elapsed: u64) -> u64 {
    let slew = elapsed / SLEW;
    wanted.clamp(own.saturating_sub(slew), own.saturating_add(slew))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SEC;

    const DAY_NS: u64 = 86_400 * SEC;
    const START_NS: u64 = 1_700_000_000 * SEC;

    /// A wall clock that is set moves the time by a hundredth of what passes.
    #[test]
    fn bug_15_10_set_wall_clock_is_followed_at_a_hundredth() {
        for (set_by, sign) in [(DAY_NS as i64, 1), (-(DAY_NS as i64), -1)] {
            let mut clock = SteadyClock::default();
            assert_eq!(clock.read(Instant(5), START_NS), START_NS);
            let mut shown = START_NS;
            for ms in 1..=2_000 {
                let wall = (START_NS + ms * MS).saturating_add_signed(set_by);
                let next = clock.read(Instant(5 + ms * MS), wall);
                assert!(next > shown, "it never stands still, or falls");
                shown = next;
            }
            let moved = (shown - START_NS) as i64 - 2 * SEC as i64;
            assert_eq!(moved, sign * 20 * MS as i64);
            assert_eq!((clock.jumps(), clock.wall_ahead_ms() / 86_000_000), (1, sign));
        }
    }

    #[test]
    fn a_second_is_made_up_for_in_a_hundred() {
        let mut clock = SteadyClock::default();
        clock.read(Instant(0), START_NS);
        for s in 1..=101 {
            clock.read(Instant(s * SEC), START_NS + (s + 1) * SEC);
        }
        assert_eq!((clock.wall_ahead_ms(), clock.jumps()), (0, 1));
        assert_eq!(clock.peek(Instant(102 * SEC), START_NS + 103 * SEC), START_NS + 103 * SEC);
    }

    /// The log s time goes on where the last stamp was whatever the own clock says.
    #[test]
    fn bug_15_10_log_time_continues_from_the_last_stamp() {
        let mut log = LogClock::default();
        assert_eq!(log.read(5_000), 5_000);
        // The node that stamped so far was a day ahead, or a day behind.
        for stamp in [90_000_000, 1] {
            log.note(stamp, 100_000_000);
            assert_eq!(log.read(100_000_000), stamp);
            let after = log.read(100_010_000) - stamp;
            assert!((9_900..=10_100).contains(&after), "{after}");
        }
    }
}
