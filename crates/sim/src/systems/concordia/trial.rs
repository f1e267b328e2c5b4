//! A run of Concordia as a trial of a swarm, and smaller plans to reduce a failing one.

use super::plan::Plan;
use super::run::{Totals, run};
use crate::systems::frame::{Smaller, trial};

trial!(Plan, Totals, run, smaller);

/// Plans with half the calls, one program, node or block less, one fault less, or without noise.
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
