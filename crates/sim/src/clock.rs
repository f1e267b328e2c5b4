//! The clocks of a node: a monotonic clock that drifts, and a wall clock that may be set, read
//! through the clock types that ship.

use concord_core::{Instant, Now, SteadyClock};

const MILLION: u64 = 1_000_000;
const WALL_MS: u64 = 1_700_000_000_000;

/// The clocks of one node. Instants of two nodes cannot be compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The reading of the monotonic clock at the start of the run, in ns; negative if its host has
    /// rebooted since.
    offset_ns: i64,
    /// How much faster than virtual time the monotonic clock runs, per million; negative if slower.
    drift_ppm: i64,
    /// How far the wall clock is ahead of virtual time, in ms.
    wall_ahead_ms: i64,
    /// The wall clock as machines see it.
    steady: SteadyClock,
}

impl Clock {
    pub(crate) fn new(offset_ns: u64, drift_ppm: i64) -> Clock {
        // Wall clocks differ by a few ms from the start.
        let (offset_ns, wall_ahead_ms) = (offset_ns as i64, (offset_ns % 7) as i64);
        let mut clock = Clock { offset_ns, drift_ppm, wall_ahead_ms, steady: SteadyClock::NEW };
        clock.restart(0);
        clock
    }

    /// Reboots the host: its monotonic clock shows `shows_ns` at the virtual time `now_ns`.
    pub(crate) fn reboot(&mut self, now_ns: u64, shows_ns: u64) {
        self.offset_ns = shows_ns as i64 - self.drifted(now_ns) as i64;
        self.restart(now_ns);
    }

    /// Sets the wall clock forward by `by_ms`, or back if negative.
    pub(crate) fn jump(&mut self, now_ns: u64, by_ms: i64) {
        self.read(now_ns);
        self.wall_ahead_ms += by_ms;
    }

    /// Starts a process, whose steady clock begins with the wall clock.
    pub(crate) fn restart(&mut self, now_ns: u64) {
        self.steady = SteadyClock::NEW;
        self.read(now_ns);
    }

    /// The time since the start of the run by the monotonic clock, in ns.
    fn drifted(&self, now_ns: u64) -> u64 {
        (now_ns as i64 + now_ns as i64 * self.drift_ppm / MILLION as i64) as u64
    }

    /// The readings of monotonic and wall clock after `drifted_ns` by the monotonic one.
    fn both(&self, drifted_ns: u64) -> (Instant, u64) {
        let wall_ns = WALL_MS * MILLION + drifted_ns;
        (
            Instant(drifted_ns.saturating_add_signed(self.offset_ns)),
            wall_ns.saturating_add_signed(self.wall_ahead_ms * MILLION as i64),
        )
    }

    fn read(&mut self, now_ns: u64) {
        let (instant, wall_ns) = self.both(self.drifted(now_ns));
        self.steady.read(instant, wall_ns);
    }

    /// The readings of the clocks at the virtual time `now_ns`.
    pub(crate) fn at(&self, now_ns: u64) -> Now {
        let (instant, wall_ns) = self.both(self.drifted(now_ns));
        Now { instant, unix_ms: self.steady.peek(instant, wall_ns) / MILLION }
    }

    /// A virtual time at which the monotonic clock shows `instant`, or slightly more.
    pub(crate) fn when(&self, instant: Instant) -> u64 {
        let elapsed = instant.0.saturating_sub_signed(self.offset_ns);
        if self.drift_ppm == 0 {
            return elapsed;
        }
        let rate = (MILLION as i64 + self.drift_ppm) as u128;
        let exact = u128::from(elapsed) * u128::from(MILLION) / rate;
        // Both conversions round down.
        u64::try_from(exact).map_or(u64::MAX, |ns| ns.saturating_add(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wake-up comes when the drifting clock shows its time, and not much later.
    #[test]
    fn drifting_wake_up_is_on_time() {
        for drift_ppm in [-40_000, -1, 0, 7, 40_000] {
            let clock = Clock::new(5_000_000_123, drift_ppm);
            for wanted in [5_000_000_123, 5_000_001_000, 6_234_567_891, 125_000_000_001] {
                let at = clock.when(Instant(wanted));
                let shown = clock.at(at).instant.0;
                assert!((wanted..wanted + 5).contains(&shown), "{drift_ppm}: {shown}");
            }
            assert!(clock.when(Instant::NEVER) > u64::MAX / 2);
        }
    }

    #[test]
    fn a_rebooted_host_counts_from_its_boot() {
        let mut clock = Clock::new(5_000_000_123, -300);
        let wall_ms = clock.at(9_000_000).unix_ms;
        clock.reboot(9_000_000, 700);
        let now = clock.at(9_000_000);
        assert_eq!((now.instant, now.unix_ms), (Instant(700), wall_ms));
        let at = clock.when(Instant(1_000_700));
        assert!((9_900_000..10_100_000).contains(&at), "{at}");
    }
}
