//! Reduction of a failing run: steps are left out, many at a time and then one by one, while it
//! still fails.

use super::group::Step;
use super::plan::BagPlan;
use super::run::{narrate, run_noted, run_steps};

/// A failing run with few steps.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The description of the violation in it.
    pub violation: String,
    /// The number of steps of the run as its seed draws it.
    pub steps_before: usize,
    /// The descriptions of the remaining steps.
    pub steps: Vec<String>,
}

/// Makes the failing run of a plan smaller, in at most `runs_max` runs. `None` if it does not fail.
#[must_use]
pub fn shrink_bag(plan: &BagPlan, runs_max: usize) -> Option<Shrunk> {
    let (outcome, mut steps) = run_noted(plan);
    let mut violation = outcome.violation?;
    let steps_before = steps.len();
    let kind = kind_of(&violation);
    let mut runs = 0;
    let mut chunk = steps.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut is_smaller = false;
        while at < steps.len() && runs < runs_max {
            let end = (at + chunk).min(steps.len());
            let fewer: Vec<Step> = steps[..at].iter().chain(&steps[end..]).copied().collect();
            runs += 1;
            match run_steps(plan, &fewer).violation {
                Some(what) if kind_of(&what) == kind => {
                    (steps, violation, is_smaller) = (fewer, what, true);
                }
                _ => at = end,
            }
        }
        if runs >= runs_max || (chunk == 1 && !is_smaller) {
            break;
        }
        chunk = (chunk / 2).max(1);
    }
    Some(Shrunk { violation, steps_before, steps: narrate(plan, &steps) })
}

/// Whether the violation is that the group does not come to rest, and not a broken invariant: a
/// smaller run must fail in the same way.
fn kind_of(violation: &str) -> bool {
    violation.starts_with("no rest")
}
