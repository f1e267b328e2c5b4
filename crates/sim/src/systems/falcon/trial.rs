//! Runs of Falcon for swarms, and smaller plans.

use super::plan::Plan;
use super::rack::{Totals, run};
use crate::systems::frame::{Smaller, trial};

trial!(Plan, Totals, run, smaller);

/// Plans without a fault, without a job or half of its tasks, or without noise.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut all = Smaller::than(plan).without_each(|p| &mut p.faults).with(|p| p.cancels.clear());
    for index in 0..plan.jobs.len() {
        // Jobs keep their indices, which cancellations name.
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
