//! Damage of one replica's data, once the rack is at rest: the replicas' comparison of their states
//! has to find it, name the replica and the part, and be silent again once the replica has copied
//! the state. Without damage no comparison may ever find a difference.

use concord_control::{Controller, Problem};
use concord_core::{Guards, MS, Rng, SEC};
use concord_engine::Engine;
use concord_wire::GroupId;

use super::{Rack, Role};
use crate::systems::store::fault::Fault;
use crate::world::REPLICAS;

/// What the seed of the choice of replica and key is other than that of the rest.
const DAMAGE: u64 = 0xda3a_6ed0;
/// A round of comparisons in an idle rack takes about so many pauses for each part.
const PAUSES: u64 = 60;
/// And so long in addition: keepalives carry the digests, and packets are lost.
const TOLD_NS: u64 = 4 * SEC;
/// A replica that begins anew has the state after so long.
const COPIED_NS: u64 = 30 * SEC;

impl Rack<'_> {
    /// Whether a controller has seen replicas differ though no data was damaged.
    pub(super) fn is_false_alarm(&self, node: usize) -> bool {
        let Role::Controller(controller) = &self.slots[node].role else { return false };
        controller.counters().digests_unequal > 0 && !self.is_damaged
    }

    /// What the controller in force says; one with a lost state may be left with an old word.
    fn difference(&self) -> Option<Problem> {
        let controllers = self.slots.iter().filter_map(|slot| match &slot.role {
            Role::Controller(controller) => Some(&**controller),
            Role::Switch(_) | Role::Replica(_) | Role::Client(_) | Role::Dead => None,
        });
        let epoch = |c: &&Controller| c.state().config(GroupId::FIRST).map(|c| c.epoch);
        controllers.max_by_key(epoch)?.difference()
    }

    /// Damages one key of one member, if the plan says so. Some text if that is not found, or does
    /// not end.
    pub(super) fn run_damaged(&mut self) -> Option<String> {
        // Without a guard nothing is compared.
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
        // Of large values a digest covers a part, which moves: the damage may be found after this
        // run. `tests/compare.rs` asks how many were found.
        if !is_found(self.difference()) {
            return None;
        }
        self.totals.damages_found += 1;
        // A snapshot may have what was damaged: an operator moves such a directory away.
        if self.keeps(node) {
            return None;
        }
        // Of a group that has lost a member already, no other one may lose what it has.
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

    /// Until `is_over`, or that time. Some text if something is wrong.
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
