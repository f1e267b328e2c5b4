//! A cap on a replica's CPU time, for benches of scale-out on few cores: a token bucket charged
//! with the thread's own CPU time. The system's own quotas stall a thread for tens of ms at a time;
//! this does not.

use std::time::Duration;

use concord_core::Instant;

use crate::clock;

/// The largest unused CPU time that may be saved up, in ns.
const BUCKET_NS: f64 = 5_000_000.0;
/// The shortest sleep in ns. For shorter ones the wake-up itself would be the load.
const SLEEP_NS_MIN: f64 = 1_000_000.0;

/// The bucket.
#[derive(Debug)]
pub struct CpuShare {
    share: f64,
    tokens_ns: f64,
    filled_at: Instant,
    charged_ns: u64,
}

impl CpuShare {
    /// Allows `share` of one core, between 0 and 1.
    #[must_use]
    pub fn new(share: f64) -> CpuShare {
        CpuShare {
            share,
            tokens_ns: BUCKET_NS,
            filled_at: clock::now().instant,
            charged_ns: clock::thread_cpu_ns(),
        }
    }

    /// Charges the CPU time that the thread used since the last call, and returns how long it must
    /// sleep.
    fn charge(&mut self, now: Instant, cpu_ns: u64) -> Option<Duration> {
        let earned = now.since(self.filled_at) as f64 * self.share;
        let used = cpu_ns.saturating_sub(self.charged_ns) as f64;
        self.tokens_ns = (self.tokens_ns + earned).min(BUCKET_NS) - used;
        (self.filled_at, self.charged_ns) = (now, cpu_ns);
        let owed = -self.tokens_ns / self.share;
        (owed > 0.0).then(|| Duration::from_nanos(owed.max(SLEEP_NS_MIN) as u64))
    }

    /// Sleeps for as long as the thread is over its share.
    pub fn pay(&mut self) {
        if let Some(sleep) = self.charge(clock::now().instant, clock::thread_cpu_ns()) {
            std::thread::sleep(sleep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A busy thread gets its share and an idle one saves at most a bucket.
    #[test]
    fn busy_thread_gets_its_share() {
        let mut share =
            CpuShare { share: 0.1, tokens_ns: 0.0, filled_at: Instant(0), charged_ns: 0 };
        let (mut now, mut cpu) = (0u64, 0u64);
        for _ in 0..10_000 {
            now += 500_000;
            cpu += 500_000;
            if let Some(sleep) = share.charge(Instant(now), cpu) {
                now += sleep.as_nanos() as u64;
            }
        }
        let got = cpu as f64 / now as f64;
        assert!((0.099..0.101).contains(&got), "{got}");
        now += 60_000_000_000;
        assert!(share.charge(Instant(now), cpu).is_none());
        assert!(share.charge(Instant(now), cpu + 5_100_000).is_some());
    }
}
