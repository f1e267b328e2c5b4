//! A failing plan made small: what its system leaves out one by one, while it still fails.

use concord_core::rng::splitmix64;

use crate::swarm::Found;
use crate::systems::{Tally, Trial};

/// A plan that does less may fail with other random draws only: so many are tried.
const TRIES: u64 = 4;

/// How much is done at most to make a plan small. A run without progress takes many steps: what
/// bounds the time is their sum.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Most runs.
    pub runs_max: usize,
    /// No run begins behind so many steps (events) of all of them.
    pub steps_max: u64,
}

/// A plan that was made small.
#[derive(Clone, Debug)]
pub struct Shrunk<P> {
    /// It fails like any other plan: its own seed replays it.
    pub found: Found<P>,
    /// Runs that it took.
    pub runs: usize,
    /// Their steps.
    pub steps: u64,
    /// The effort was over before all was tried.
    pub is_cut_short: bool,
}

/// Makes a failing plan smaller; `report` hears of every smaller plan.
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
    /// The plan with a seed with which it fails, if there is one.
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

    /// A run of so many thousand steps, which always fails.
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
