//! Latencies in logarithmic buckets, four to a doubling.

use concord_core::Duration;

const BUCKETS: usize = 160;
/// The smallest and the largest bound that are shown, as powers of two.
const LOG_MIN: u32 = 14;
const LOG_MAX: u32 = 35;

/// A histogram of latencies. (`hdrhistogram` needs std.)
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: [u64; BUCKETS],
    total: u64,
    sum_ns: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { counts: [0; BUCKETS], total: 0, sum_ns: 0 }
    }
}

fn bucket(ns: Duration) -> usize {
    let ns = ns.max(4);
    let log = ns.ilog2();
    let quarter = (ns >> (log - 2)) & 3;
    (log as usize * 4 + quarter as usize).min(BUCKETS - 1)
}

fn upper_ns(bucket: usize) -> Duration {
    let (log, quarter) = (bucket as u32 / 4, bucket as u64 % 4);
    (1u64 << log) + ((quarter + 1) << log >> 2)
}

impl Latencies {
    /// Counts one latency.
    pub fn add(&mut self, ns: Duration) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// The number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// An upper bound of the `percent`-th percentile in ns, within 25%; 0 if there is none.
    #[must_use]
    pub fn percentile_ns(&self, percent: u64) -> Duration {
        let wanted = (self.total * percent).div_ceil(100);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return upper_ns(at);
            }
        }
        0
    }

    /// The sum of all latencies, in ns.
    #[must_use]
    pub fn sum_ns(&self) -> Duration {
        self.sum_ns
    }

    /// Upper bounds in ns, from 2^14 (16 us) to 2^35 (34 s), each double the one before, with the
    /// number of latencies up to each.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> {
        (LOG_MIN..=LOG_MAX).map(|log| (1 << log, self.counts[..log as usize * 4].iter().sum()))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn quantiles_are_within_a_quarter() {
        let mut l = Latencies::default();
        assert_eq!(l.percentile_ns(50), 0);
        for us in 1..=100u64 {
            l.add(us * 1_000);
        }
        let within = |got: u64, want: u64| got >= want && got <= want + want / 4;
        assert!(within(l.percentile_ns(50), 50_000), "{}", l.percentile_ns(50));
        assert!(within(l.percentile_ns(99), 99_000), "{}", l.percentile_ns(99));
    }

    #[test]
    fn what_is_cumulative_counts_what_was_not_longer() {
        let mut l = Latencies::default();
        assert!(l.cumulative().all(|(_, count)| count == 0));
        for ns in [1_000, 20_000, 40_000, u64::MAX] {
            l.add(ns);
        }
        let all: Vec<_> = l.cumulative().collect();
        assert_eq!(all[..3], [(16_384, 1), (32_768, 2), (65_536, 3)]);
        assert_eq!(all[all.len() - 2..], [(1 << 34, 3), (1 << 35, 3)]);
        assert_eq!(l.count(), 4);
    }
}
