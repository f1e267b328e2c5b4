//! Slowdowns of flows: their completion times relative to their ideal times.

use std::ops::RangeInclusive;

use super::experiment::{Experiment, Outcome};

/// How ideal times are computed, for the head of a table.
pub const IDEAL_TIME: &str = "the flow alone on an idle network: its last packet crosses each link \
    and switch of a shortest way, store and forward; the packets before it pass the slowest of those \
    links; headers count, acknowledgements and handshakes do not";

/// The slowdowns of a set of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slowdowns {
    /// The number of flows that began after the warm-up.
    pub flows: usize,
    /// The number of those without an end: they are in no mean and no percentile.
    pub unfinished: usize,
    /// The minimum; this and the following are NaN if no flow has ended.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The maximum.
    pub max: f64,
}

impl Slowdowns {
    /// The slowdowns of the flows that began, or should have begun, at the end of the warm-up or
    /// later, and whose size is in `bytes`.
    #[must_use]
    pub fn of(experiment: &Experiment, outcome: &Outcome, bytes: RangeInclusive<u64>) -> Slowdowns {
        let (mut all, mut unfinished) = (Vec::new(), 0);
        for (planned, flow) in experiment.flows.iter().zip(&outcome.flows) {
            // A flow that never began waited for one without an end.
            let is_warm = flow.began.is_none_or(|began| began >= experiment.warm_up);
            if !is_warm || !bytes.contains(&planned.spec.bytes) {
                continue;
            }
            match flow.completion_ps() {
                Some(taken) => all.push(taken as f64 / flow.ideal_ps.max(1) as f64),
                None => unfinished += 1,
            }
        }
        all.sort_unstable_by(f64::total_cmp);
        let flows = all.len() + unfinished;
        let at = |share: f64| match all.len() {
            0 => f64::NAN,
            count => all[((count as f64 * share).ceil() as usize).clamp(1, count) - 1],
        };
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let (min, max) = (at(0.0), at(1.0));
        Slowdowns {
            flows,
            unfinished,
            min,
            mean,
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max,
        }
    }
}
