//! Damage to one replica's data once the rack is at rest. The replicas' comparison of their states
//! has to find it, name the replica and the part, and report nothing more once the replica has
//! copied the state again. Without damage no comparison may ever find a difference.

use concord_control::{Controller, Problem};
use concord_core::{Guards, MS, Rng, SEC};
use concord_engine::Engine;
use concord_wire::GroupId;

use super::{Rack, Role};
use crate::systems::store::fault::Fault;
use crate::world::REPLICAS;

/// The seed mask for the draw of the damaged replica and key.
const DAMAGE: u64 = 0xda3a_6ed0;
/// The number of comparison intervals that a round of comparisons takes in an idle rack, for each
/// part.
const PAUSES: u64 = 60;
/// The additional time until the controller is told, in ns: keepalives carry the digests, and
/// packets are lost.
const TOLD_NS: u64 = 4 * SEC;
/// The maximum time until a replica that begins anew has copied the state, in ns.
const COPIED_NS: u64 = 30 * SEC;

impl Rack<'_> {
    /// Whether a controller reports a difference between replicas although no data was damaged.
    pub(super) fn is_false_alarm(&self, node: usize) -> bool {
        let Role::Controller(controller) = &self.slots[node].role else { return false };
        controller.counters().digests_unequal > 0 && !self.is_damaged
    }

    /// The difference that the controller in force reports. (A controller with a lost state may
    /// keep an old report.)
    fn difference(&self) -> Option<Problem> {
        let controllers = self.slots.iter().filter_map(|slot| match &slot.role {
            Role::Controller(controller) => Some(&**controller),
            Role::Switch(_) | Role::Replica(_) | Role::Client(_) | Role::Dead => None,
        });
        let epoch = |c: &&Controller| c.state().config(GroupId::FIRST).map(|c| c.epoch);
        controllers.max_by_key(epoch)?.difference()
    }

    /// Damages one key of one member, if the plan says so. Returns a violation if the comparison
    /// does not find it, or goes on reporting it.
    pub(super) fn run_damaged(&mut self) -> Option<String> {
        // Runs without a guard compare nothing.
        let is_whole = self.plan.guards == Guards::ALL;
        if !self.plan.damages || self.plan.compare_ns == 0 || !is_whole {
            return None;
        }
        let mut rng = Rng::new(self.plan.seed ^ DAMAGE);
        let members: Vec<usize> = (REPLICAS..REPLICAS + self.replicas)
            .filter(|node| self.member(*node).is_some())
            .collect();
        if members.len() < 2 {
            return None;
        }
        let node = members[rng.below(members.len() as u64) as usize];
        let Role::Replica(replica) = &mut self.slots[node].role else { return None };
        // A rack without keys has nothing to damage.
        let place = replica.engine_mut().damage(rng.next_u64())?;
        self.is_damaged = true;
        self.totals.damaged_states += 1;
        self.mark(Some(node), format!("a key of place {place} is damaged"), true);
        let own = (node - REPLICAS) as u16;
        let is_found = |problem: Option<Problem>| match problem {
            Some(Problem::Differs { node, first, end, .. }) => {
                node == own && (first..end).contains(&place)
            }
            Some(Problem::Differ { first, end, .. }) => {
                members.len() == 2 && (first..end).contains(&place)
            }
            _ => false,
        };
        let found_ns = self.world.now_ns + 3 * PAUSES * self.plan.compare_ns + TOLD_NS;
        if let Some(text) = self.run_until(found_ns, |rack| is_found(rack.difference())) {
            return Some(text);
        }
        // A digest covers only a part of a large value, a different one each time: the damage may
        // be found after this run. `tests/compare.rs` counts how often it is found.
        if !is_found(self.difference()) {
            return None;
        }
        self.totals.damages_found += 1;
        // A snapshot may contain the damage: an operator would move such a directory away.
        if self.keeps(node) {
            return None;
        }
        // If a group has lost a member already, no other member may lose its data.
        if self.plan.protocol.is_quorum() && members.len() < self.plan.replicas {
            return None;
        }
        let skipped = self.totals.faults_skipped;
        self.inject(Fault::Restart { replica: node - REPLICAS });
        if self.totals.faults_skipped > skipped {
            return None;
        }
        let copied_ns = self.world.now_ns + COPIED_NS + self.plan.disks.slow_ns();
        if let Some(text) = self.run_until(copied_ns, |rack| rack.difference().is_none()) {
            return Some(text);
        }
        let problem = self.difference()?;
        Some(self.standing(&format!("the replica began anew, and still: {problem}")))
    }

    /// Runs until `is_over`, or until that time. Returns a violation if there is one.
    fn run_until(&mut self, until_ns: u64, is_over: impl Fn(&Self) -> bool) -> Option<String> {
        let mut look_ns = self.world.now_ns;
        while self.world.now_ns < until_ns {
            if self.world.now_ns >= look_ns {
                if is_over(self) {
                    return None;
                }
                look_ns = self.world.now_ns + 10 * MS;
            }
            if let Some(text) = self.next_event() {
                return Some(text);
            }
        }
        None
    }
}
