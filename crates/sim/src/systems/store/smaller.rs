//! Smaller plans: faults, operations, clients, keys and noise are removed from a plan.

use super::disks::Disks;
use super::edges::{Bounds, Packets, Sizes};
use super::gateways::Gateways;
use super::links::Links;
use super::plan::{Plan, Service, Timed};

/// The plans to try, those with the largest reduction first.
pub(super) fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut all = fewer_faults(plan);
    // A fault may name a replica that another fault lets join.
    all.retain(|smaller| smaller.validate().is_ok());
    let mut with = |change: fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        if smaller != *plan && smaller.validate().is_ok() {
            all.push(smaller);
        }
    };
    with(|p| p.operations = (p.operations / 8).max(1));
    with(|p| p.operations = (p.operations / 2).max(1));
    with(|p| p.operations = (p.operations * 9 / 10).max(1));
    with(|p| p.gateways.count = 0);
    with(|p| (p.clients, p.gateways.count) = (1, p.gateways.count.min(1)));
    with(|p| {
        p.clients -= 1;
        p.gateways.count = p.gateways.count.min(p.clients);
    });
    with(|p| p.connections = 1);
    with(|p| p.connections -= 1);
    with(|p| p.keys = 1);
    with(|p| p.keys /= 2);
    with(|p| p.replicas -= 1);
    with(|p| p.rush_ns = 0);
    with(|p| p.linger_ns = 0);
    with(|p| p.calm_ns = 0);
    with(|p| p.damages = false);
    with(|p| p.compare_ns = 0);
    with(|p| p.loss_ppm = 0);
    with(|p| p.duplicate_ppm = 0);
    with(|p| p.reorder_ppm = 0);
    with(|p| p.drift_ppm = 0);
    with(|p| p.long_values_percent = 0);
    with(|p| p.flushes_permille = 0);
    with(|p| p.engine_work_ns = 0);
    with(|p| p.sizes = Sizes::default());
    with(|p| p.sizes.key_bytes_max = 0);
    with(|p| p.sizes.value_bytes_max = 0);
    with(|p| p.sizes.elements_max /= 2);
    with(|p| p.sizes.ttl_ms_max = 0);
    with(|p| p.sizes.due_at_once /= 2);
    with(|p| p.sizes.all_keys_permille = 0);
    with(|p| p.bounds = Bounds::default());
    with(|p| p.bounds.memory_bytes_max = 0);
    with(|p| (p.bounds.log_records_max, p.bounds.log_bytes_max) = (0, 0));
    with(|p| p.bounds.log_memory_bytes = 0);
    with(|p| p.bounds.sessions_max = 0);
    with(|p| p.bounds.counter_bits = 0);
    with(|p| (p.bounds.last_epoch, p.bounds.first_view, p.bounds.first_request) = (0, 0, 0));
    with(|p| p.packets.own_ppm = 0);
    with(|p| p.gateways = Gateways { count: p.gateways.count, ..Gateways::default() });
    with(|p| p.gateways.pipeline_max = 1);
    with(|p| p.gateways.pipeline_max /= 2);
    with(|p| p.gateways.multi_percent = 0);
    with(|p| p.gateways.split_percent = 0);
    with(|p| p.gateways.waiting_percent = 0);
    with(|p| p.gateways.databases_percent = 0);
    with(|p| p.gateways.scripts_percent = 0);
    with(|p| p.gateways.together_percent = 0);
    with(|p| p.gateways.moves_percent = 0);
    with(|p| p.gateways.caches = false);
    with(|p| p.gateways.users = false);
    with(|p| p.gateways.subscribers = false);
    with(|p| p.gateways.slow_percent = 0);
    with(|p| p.gateways.broken_permille = 0);
    with(|p| p.packets = Packets::default());
    with(|p| p.packets.truncated_ppm = 0);
    with(|p| p.packets.forged_ppm = 0);
    with(|p| p.packets.padded_ppm = 0);
    with(|p| p.packets.late_ppm = 0);
    with(|p| p.service = Service::default());
    with(|p| p.links = Links::default());
    with(|p| p.links.both = false);
    with(|p| p.links.look_ns = 0);
    with(|p| p.disks.partial = false);
    with(|p| (p.disks.mixed, p.disks.partial) = (false, false));
    with(|p| p.disks = Disks { interval: false, mixed: false, partial: false, ..p.disks });
    with(|p| {
        if p.disks.is_on() {
            p.disks.snapshot_bytes = 1 << 30;
        }
    });
    with(|p| (p.engine_ns, p.replicate_replies) = (0, false));
    with(|p| p.peer_latency_ns = p.latency_ns);
    with(|p| p.table_stages = 1);
    with(|p| p.read_index = false);
    with(|p| p.follower_leases = false);
    with(|p| p.quorum_reads = false);
    with(|p| p.load_awareness = false);
    with(|p| p.avoid_leader = true);
    with(|p| p.run_bits = 0);
    with(|p| p.batch_packets = 1);
    all
}

/// The plan without all faults, without each half of them, and without each single one.
fn fewer_faults(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut size = plan.faults.len();
    while size > 0 {
        for start in (0..plan.faults.len()).step_by(size) {
            let kept: Vec<Timed> = plan
                .faults
                .iter()
                .enumerate()
                .filter(|(at, _)| !(start..start + size).contains(at))
                .map(|(_, fault)| *fault)
                .collect();
            all.push(Plan { faults: kept, ..plan.clone() });
        }
        size /= 2;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Aim;

    #[test]
    fn candidates_do_less_and_can_be_run() {
        let plan = Plan::draw_aimed(3, Aim::default());
        let all = candidates(&plan);
        assert!(all.len() > 10);
        for smaller in all {
            assert_ne!(smaller, plan);
            assert_eq!(smaller.validate(), Ok(()));
        }
    }
}
