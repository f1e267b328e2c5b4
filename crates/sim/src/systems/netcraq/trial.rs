//! A run of NetCRAQ as swarms take it, and plans that do a little less.

use super::plan::Plan;
use super::rack::{Totals, run};
use crate::systems::frame::{Smaller, trial};

trial!(Plan, Totals, run, smaller);

/// With half the calls, one client, member or key less, without a fault; without noise.
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
