//! A power cut after any given event of a run.

use concord_core::Duration;

use super::{Outcome, Rack, run_rack};
use crate::systems::store::fault::Fault;
use crate::systems::store::plan::Plan;

/// Runs a plan, and cuts the power of all its replicas for `for_ns` after `after_events` events,
/// counted from the beginning. `None` if all of the plan's operations have begun before.
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
