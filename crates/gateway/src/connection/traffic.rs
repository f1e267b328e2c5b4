//! The bytes that clients sent and read, and their rates: averages over the last 1.6 seconds, as
//! Redis' `instantaneous_...` fields are, without a timer: samples are taken when data is sent or
//! received.

use concord_core::{Duration, Instant, MS, SEC};

const SAMPLES: usize = 16;
/// The shortest time between two samples.
const SAMPLE_NS: Duration = 100 * MS;

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at: Instant,
    commands: u64,
    input_bytes: u64,
    output_bytes: u64,
}

/// Amounts per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub commands: f64,
    pub input_bytes: f64,
    pub output_bytes: f64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub input_bytes: u64,
    pub output_bytes: u64,
    samples: [Sample; SAMPLES],
    /// The number of samples taken; each one replaces the oldest.
    taken: usize,
}

impl Traffic {
    /// Takes a sample if one is due. Call it before current traffic is counted.
    pub(crate) fn sample(&mut self, now: Instant, commands: u64) {
        let newest = self.samples[self.taken.wrapping_sub(1) % SAMPLES];
        if self.taken > 0 && now.since(newest.at) < SAMPLE_NS {
            return;
        }
        let Traffic { input_bytes, output_bytes, .. } = *self;
        self.samples[self.taken % SAMPLES] =
            Sample { at: now, commands, input_bytes, output_bytes };
        self.taken += 1;
    }

    /// The rates since the oldest sample of the last 1.6 s, or since the last one before.
    pub(crate) fn rates(&self, now: Instant, commands: u64) -> Rates {
        let age = |sample: &Sample| now.since(sample.at);
        let known = &self.samples[..self.taken.min(SAMPLES)];
        let settled = || known.iter().filter(|sample| age(sample) >= SAMPLE_NS);
        let recent =
            settled().filter(|s| age(s) <= SAMPLES as u64 * SAMPLE_NS).max_by_key(|s| age(s));
        let Some(from) = recent.or_else(|| settled().min_by_key(|s| age(s))) else {
            return Rates::default();
        };
        let per_second = |now: u64, then: u64| (now - then) as f64 * SEC as f64 / age(from) as f64;
        Rates {
            commands: per_second(commands, from.commands),
            input_bytes: per_second(self.input_bytes, from.input_bytes),
            output_bytes: per_second(self.output_bytes, from.output_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates are those of the last seconds and fall when nothing comes.
    #[test]
    fn rates_cover_the_last_seconds() {
        let mut traffic = Traffic::default();
        assert_eq!(traffic.rates(Instant(0), 0), Rates::default());
        // 1,000 commands a second, then 5,000.
        let mut commands = 0;
        for ms in 0..20_000u64 {
            traffic.sample(Instant(ms * MS), commands);
            commands += if ms < 10_000 { 1 } else { 5 };
            traffic.input_bytes += 1_024;
            let rates = traffic.rates(Instant(ms * MS), commands);
            match ms {
                2_000..10_000 => assert!((rates.commands - 1_000.0).abs() < 20.0, "{rates:?}"),
                12_000.. => assert!((rates.commands - 5_000.0).abs() < 50.0, "{rates:?}"),
                _ => {}
            }
        }
        let idle = traffic.rates(Instant(120 * SEC), commands);
        assert!(idle.commands < 10.0 && idle.input_bytes < 1_100.0, "{idle:?}");
        traffic.sample(Instant(120 * SEC), commands);
        assert!(traffic.rates(Instant(120 * SEC), commands).commands < 10.0);
    }
}
