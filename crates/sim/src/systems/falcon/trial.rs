//! A run of Falcon as swarms take it, and plans that do a little less.

use super::plan::Plan;
use super::rack::{Totals, run};
use crate::systems::frame::{Smaller, trial};

trial!(Plan, Totals, run, smaller);

/// Without a fault, a job, or the half of one; without noise.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut all = Smaller::than(plan).without_each(|p| &mut p.faults).with(|p| p.cancels.clear());
    for index in 0..plan.jobs.len() {
        // Jobs keep their places, which cancels name.
        all = all.with(|p| p.jobs[index].2.tasks.clear()).with(|p| {
            let tasks = &mut p.jobs[index].2.tasks;
            tasks.truncate(tasks.len() / 2);
        });
    }
    all.with(|p| p.journal = false)
        .with(|p| p.readers.iter_mut().for_each(|reader| *reader = None))
        .with(|p| p.loss_ppm = 0)
        .with(|p| p.duplicate_ppm = 0)
        .with(|p| p.late_ppm = 0)
        .with(|p| p.fail_ppm = 0)
        .all()
}
