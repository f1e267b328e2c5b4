//! Runs of NetCRAQ for swarms, and smaller plans.

use super::plan::Plan;
use super::rack::{Totals, run};
use crate::systems::frame::{Smaller, trial};

trial!(Plan, Totals, run, smaller);

/// Plans with half the calls, with one client, member or key less, without a fault, or without
/// noise.
fn smaller(plan: &Plan) -> Vec<Plan> {
    Smaller::than(plan)
        .without_each(|p| &mut p.faults)
        .with(|p| p.calls = p.calls.div_ceil(2))
        .with(|p| p.clients = (p.clients - 1).max(1))
        .with(|p| p.keys = (p.keys - 1).max(1))
        .with(|p| p.members = (p.members - 1).max(1))
        .with(|p| p.spares = p.spares.saturating_sub(1))
        .with(|p| p.locks_percent = 0)
        .with(|p| p.ttls_percent = 0)
        .with(|p| p.loss_ppm = 0)
        .with(|p| p.duplicate_ppm = 0)
        .with(|p| p.late_ppm = 0)
        .with(|p| p.think_ns = 0)
        .all()
}
