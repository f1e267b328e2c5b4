//! Reduction of a failing plan: parts of it are left out one by one while it still fails.

use concord_core::rng::splitmix64;

use crate::swarm::Found;
use crate::systems::{Tally, Trial};

/// The number of seeds tried for each smaller plan: it may fail with other random draws only.
const TRIES: u64 = 4;

/// The maximum effort to make a plan small. A run without progress takes many steps, so that the
/// sum of the steps is what bounds the time.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The maximum number of runs.
    pub runs_max: usize,
    /// The maximum number of steps (events) of all runs, after which no further run begins.
    pub steps_max: u64,
}

/// A reduced plan.
#[derive(Clone, Debug)]
pub struct Shrunk<P> {
    /// The plan, which still fails; its own seed replays it.
    pub found: Found<P>,
    /// The number of runs that the reduction took.
    pub runs: usize,
    /// The number of steps (events) of these runs.
    pub steps: u64,
    /// Whether the effort was exhausted before all reductions were tried.
    pub is_cut_short: bool,
}

/// Makes a failing plan smaller; calls `report` with every smaller plan that fails.
pub fn shrink<P: Trial>(found: &Found<P>, effort: Effort, mut report: impl FnMut(&P)) -> Shrunk<P> {
    let mut best = Shrunk { found: found.clone(), runs: 0, steps: 0, is_cut_short: false };
    loop {
        let mut smaller = best.found.plan.smaller().into_iter();
        let Some(found) = smaller.find_map(|plan| best.fails(&plan, effort)) else { return best };
        report(&found.plan);
        best.found = found;
    }
}

impl<P: Trial> Shrunk<P> {
    /// The plan with a seed for which it fails, if one is found.
    fn fails(&mut self, plan: &P, effort: Effort) -> Option<Found<P>> {
        for attempt in 0..TRIES {
            if self.runs >= effort.runs_max || self.steps >= effort.steps_max {
                self.is_cut_short = true;
                return None;
            }
            let seed = if attempt == 0 { plan.seed() } else { splitmix64(plan.seed() ^ attempt) };
            let plan = plan.with_seed(seed);
            let (totals, violation) = plan.run();
            self.runs += 1;
            self.steps += totals.steps();
            if let Some(violation) = violation {
                return Some(Found { plan, violation });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of this number of thousand steps, which always fails.
    #[derive(Clone, Debug)]
    struct Long(u64);

    #[derive(Default)]
    struct Steps(u64);

    impl Tally for Steps {
        fn add(&mut self, other: &Steps) {
            self.0 += other.0;
        }

        fn steps(&self) -> u64 {
            self.0
        }
    }

    impl Trial for Long {
        type Totals = Steps;

        fn seed(&self) -> u64 {
            7
        }

        fn with_seed(&self, _: u64) -> Long {
            self.clone()
        }

        fn run(&self) -> (Steps, Option<String>) {
            (Steps(self.0 * 1_000), Some("no progress".into()))
        }

        fn smaller(&self) -> Vec<Long> {
            self.0.checked_sub(1).map(Long).into_iter().collect()
        }
    }

    #[test]
    fn runs_that_take_long_end_the_shrinking_by_their_steps() {
        let found = Found { plan: Long(100), violation: String::new() };
        let small = shrink(&found, Effort { runs_max: 1_000, steps_max: 250_000 }, |_| {});
        assert_eq!((small.found.plan.0, small.runs, small.is_cut_short), (97, 3, true));
        assert_eq!(small.steps, 99_000 + 98_000 + 97_000);
        let small = shrink(&found, Effort { runs_max: 1_000, steps_max: u64::MAX }, |_| {});
        assert_eq!((small.found.plan.0, small.runs, small.is_cut_short), (0, 100, false));
        let small = shrink(&found, Effort { runs_max: 5, steps_max: u64::MAX }, |_| {});
        assert_eq!((small.found.plan.0, small.runs, small.is_cut_short), (95, 5, true));
    }
}
