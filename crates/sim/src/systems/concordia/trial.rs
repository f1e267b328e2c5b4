//! A run of Concordia as swarms take it, and plans that do a little less.

use super::plan::Plan;
use super::run::{Totals, run};
use crate::systems::frame::{Smaller, trial};

trial!(Plan, Totals, run, smaller);

/// With half the calls, a program, node or block less, without a fault; without noise.
fn smaller(plan: &Plan) -> Vec<Plan> {
    Smaller::than(plan)
        .without_each(|p| &mut p.faults)
        .with(|p| p.calls = p.calls.div_ceil(2))
        .with(|p| p.programs = (p.programs - 1).max(1))
        .with(|p| p.blocks = (p.blocks - 1).max(1))
        .with(|p| p.nodes = (p.nodes - 1).max(2))
        .with(|p| p.lanes = (p.lanes - 1).max(1))
        .with(|p| p.loss_ppm = 0)
        .with(|p| p.duplicate_ppm = 0)
        .with(|p| p.late_ppm = 0)
        .with(|p| p.think_ns = 0)
        .with(|p| p.block_bytes = 512)
        .all()
}
