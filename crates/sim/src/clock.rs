//! A node's clocks: a monotonic one that drifts and a wall clock that is set, behind what ships.

use concord_core::{Instant, Now, SteadyClock};

const MILLION: u64 = 1_000_000;
const WALL_MS: u64 = 1_700_000_000_000;

/// The clocks of one node. Instants of two nodes mean nothing to each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// What the monotonic clock showed at the start of the run, in ns; less than 0 if its host was
    /// started since.
    offset_ns: i64,
    /// How much faster than the world's it runs, per million; slower if negative.
    drift_ppm: i64,
    /// How far the wall clock is ahead, in ms.
    wall_ahead_ms: i64,
    /// What the machines see of the wall clock.
    steady: SteadyClock,
}

impl Clock {
    pub(crate) fn new(offset_ns: u64, drift_ppm: i64) -> Clock {
        // Wall clocks differ by some ms from the start.
        let (offset_ns, wall_ahead_ms) = (offset_ns as i64, (offset_ns % 7) as i64);
        let mut clock = Clock { offset_ns, drift_ppm, wall_ahead_ms, steady: SteadyClock::NEW };
        clock.restart(0);
        clock
    }

    /// The host starts again: its monotonic clock shows `shows_ns` at the virtual time `now_ns`.
    pub(crate) fn reboot(&mut self, now_ns: u64, shows_ns: u64) {
        self.offset_ns = shows_ns as i64 - self.drifted(now_ns) as i64;
        self.restart(now_ns);
    }

    /// Sets the wall clock.
    pub(crate) fn jump(&mut self, now_ns: u64, by_ms: i64) {
        self.read(now_ns);
        self.wall_ahead_ms += by_ms;
    }

    /// A process is started: it begins with the wall clock.
    pub(crate) fn restart(&mut self, now_ns: u64) {
        self.steady = SteadyClock::NEW;
        self.read(now_ns);
    }

    /// Monotonic ns since the start of the run.
    fn drifted(&self, now_ns: u64) -> u64 {
        (now_ns as i64 + now_ns as i64 * self.drift_ppm / MILLION as i64) as u64
    }

    /// What the monotonic and the wall clock show when `drifted_ns` have passed by the first.
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

    /// What the clocks show at the virtual time `now_ns`.
    pub(crate) fn at(&self, now_ns: u64) -> Now {
        let (instant, wall_ns) = self.both(self.drifted(now_ns));
        Now { instant, unix_ms: self.steady.peek(instant, wall_ns) / MILLION }
    }

    /// A virtual time at which the monotonic clock shows `instant` or a little more.
    pub(crate) fn when(&self, instant: Instant) -> u64 {
        let elapsed = instant.0.saturating_sub_signed(self.offset_ns);
        if self.drift_ppm == 0 {
            return elapsed;
        }
        let rate = (MILLION as i64 + self.drift_ppm) as u128;
        let exact = u128::from(elapsed) * u128::from(MILLION) / rate;
        // Both directions round down.
        u64::try_from(exact).map_or(u64::MAX, |ns| ns.saturating_add(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wake up comes when the drifting clock shows its time and not much later.
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
