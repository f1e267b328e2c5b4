//! Latencies in logarithmic buckets: four to a doubling, so that a quantile is within 25%.

use concord_core::Duration;

const BUCKETS: usize = 160;

/// A histogram of latencies. (`hdrhistogram` needs std.)
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: [u64; BUCKETS],
    total: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { counts: [0; BUCKETS], total: 0 }
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
    /// Counts one.
    pub fn add(&mut self, ns: Duration) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// An upper bound of the `percent`-th percentile in ns; 0 if there is none.
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
}

#[cfg(test)]
mod tests {
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
        l.add(u64::MAX);
        l.add(0);
    }
}
