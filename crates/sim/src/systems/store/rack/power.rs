//! A power cut at any event of a run.

use concord_core::Duration;

use super::{Outcome, Rack, run_rack};
use crate::systems::store::fault::Fault;
use crate::systems::store::plan::Plan;

/// Runs a plan, and has the power of all its replicas go for so long once so many events have
/// happened, counted from the beginning: between any two of them it may. `None` where the plan's
/// operations have all begun before.
#[must_use]
pub fn run_with_power_cut(plan: &Plan, after_events: u64, for_ns: Duration) -> Option<Outcome> {
    let mut rack = Rack::new(plan);
    while rack.world.events < after_events {
        if let Some(text) = rack.next_event() {
            rack.broken = Some(text);
            break;
        }
        if rack.ended() >= plan.operations {
            return None;
        }
    }
    rack.inject(Fault::PowerCutAll { for_ns });
    Some(run_rack(rack).0)
}
