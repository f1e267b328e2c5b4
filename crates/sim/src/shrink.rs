//! A failing plan made small: what its system leaves out one by one, while it still fails.

use concord_core::rng::splitmix64;

use crate::swarm::Found;
use crate::systems::Trial;

/// A plan that does less may fail with other random draws only: so many are tried.
const TRIES: u64 = 4;

/// Makes a failing plan smaller, in at most `runs_max` runs; `report` hears of every smaller plan.
/// The result fails like any other plan: its own seed replays it.
pub fn shrink<P: Trial>(found: &Found<P>, runs_max: usize, mut report: impl FnMut(&P)) -> Found<P> {
    let mut best = found.clone();
    let mut runs = 0;
    loop {
        let smaller = best.plan.smaller().into_iter().find_map(|plan| {
            if runs >= runs_max {
                return None;
            }
            fails(&plan, &mut runs)
        });
        let Some(smaller) = smaller else { return best };
        report(&smaller.plan);
        best = smaller;
    }
}

/// The plan with a seed with which it fails, if there is one.
fn fails<P: Trial>(plan: &P, runs: &mut usize) -> Option<Found<P>> {
    for attempt in 0..TRIES {
        let seed = if attempt == 0 { plan.seed() } else { splitmix64(plan.seed() ^ attempt) };
        let plan = plan.with_seed(seed);
        *runs += 1;
        if let Some(violation) = plan.run().1 {
            return Some(Found { plan, violation });
        }
    }
    None
}
