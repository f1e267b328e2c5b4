//! A run of Harmony as a trial of a swarm, and smaller plans to reduce a failing one.

use super::plan::{Fault, Plan};
use super::run::{Totals, run};
use crate::systems::frame::{Smaller, trial};

trial!(Plan, Totals, run, smaller);

/// Plans with half the messages, one host, ToR switch, spine or slot less, one fault less, or
/// without noise.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let fits = |smaller: &Plan| {
        let (hosts, nodes) = (smaller.hosts(), smaller.nodes());
        smaller.faults.iter().all(|(_, fault)| match *fault {
            Fault::PauseHost(host, _) | Fault::RestartHost(host, _) => host < hosts,
            Fault::RestartSwitch(switch, _) | Fault::CutSwitch(switch, _) => {
                (hosts..nodes).contains(&switch)
            }
        })
    };
    let mut all = Smaller::than(plan)
        .without_each(|p| &mut p.faults)
        .with(|p| p.messages = p.messages.div_ceil(2))
        .with(|p| p.packets_max = p.packets_max.div_ceil(2))
        .with(|p| p.spines = p.spines.min(1))
        .with(|p| p.tor_hosts = (p.tor_hosts - 1).max(if p.tors == 1 { 2 } else { 1 }))
        .with(|p| p.slots = (p.slots - 1).max(1))
        .with(|p| p.loss_ppm = 0)
        .with(|p| p.data_loss_ppm = 0)
        .with(|p| p.duplicate_ppm = 0)
        .with(|p| p.late_ppm = 0)
        .with(|p| p.think_ns = 0)
        .all();
    all.retain(fits);
    all
}
