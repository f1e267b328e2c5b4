//! Raft: an operator changes which members are voters; and the configurations that may be in force
//! then.

use concord_core::{Duration, MS, Machine, NodeId};
use concord_protocols::quorum::ChangeRefused;

use super::{Rack, Replicas, Role};
use crate::world::REPLICAS;

/// The interval at which the operator repeats a request, in ns.
const ASK_NS: Duration = 5 * MS;

/// A request of the operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct VoterRequest {
    /// The node of the member.
    node: usize,
    /// Whether it shall be a voter: the opposite of its state at the first leader that was asked.
    votes: Option<bool>,
    until_ns: u64,
    next_ns: u64,
}

impl Rack<'_> {
    /// Begins a request, which is made to the current leader again and again.
    pub(super) fn ask_for_change(&mut self, node: usize, for_ns: Duration) {
        let now_ns = self.world.now_ns;
        let asked = VoterRequest { node, votes: None, until_ns: now_ns + for_ns, next_ns: now_ns };
        self.asked.push(asked);
    }

    pub(super) fn ask_again(&mut self) {
        let now_ns = self.world.now_ns;
        if self.asked.iter().all(|asked| now_ns < asked.next_ns) {
            return;
        }
        let mut asked = std::mem::take(&mut self.asked);
        asked.retain_mut(|asked| {
            if now_ns >= asked.next_ns {
                asked.next_ns = now_ns + ASK_NS;
                return now_ns < asked.until_ns && !self.ask(asked);
            }
            true
        });
        self.asked = asked;
    }

    /// Makes the request to all leaders that are not paused; returns whether one of them executed
    /// it.
    fn ask(&mut self, asked: &mut VoterRequest) -> bool {
        for node in REPLICAS..REPLICAS + self.plan.replicas {
            let is_awake = self.slots[node].paused_until_ns <= self.world.now_ns;
            if is_awake && self.ask_leader(node, asked) {
                return true;
            }
        }
        false
    }

    fn ask_leader(&mut self, node: usize, asked: &mut VoterRequest) -> bool {
        let Some(Replicas::Vr(vr)) = self.slots[node].replica() else { return false };
        if !vr.leads() {
            return false;
        }
        let bit = 1 << (asked.node - REPLICAS);
        let Some(voters) = vr.configurations().last().map(|(_, voters)| voters) else {
            return false;
        };
        let votes = *asked.votes.get_or_insert(voters & bit == 0);
        let others = if votes { voters | bit } else { voters & !bit };
        // Nothing is promised beyond the failure bound of the next configuration.
        let has_quorum = is_quorum(self.intact(None), others);
        if others.count_ones() < 2 || !has_quorum || !self.quorum_is_intact(None) {
            return false;
        }
        let now = self.world.clock(node);
        let Role::Replica(replica) = &mut self.slots[node].role else { return false };
        let Replicas::Vr(vr) = &mut **replica else { return false };
        let done = vr.change_voter(now, NodeId((asked.node - REPLICAS) as u16), votes);
        if done == Ok(()) {
            let Role::Replica(replica) = &mut self.slots[node].role else { return false };
            replica.flush(now, &mut self.outgoing);
            self.mark(Some(node), format!("voters {others:b}"), true);
            self.restart_progress();
            self.after(node, 0);
        }
        matches!(done, Ok(()) | Err(ChangeRefused::NothingToDo))
    }

    /// The replicas other than `node` that have lost nothing, or have it back: bit i is replica i.
    pub(super) fn intact(&self, node: Option<usize>) -> u64 {
        let replicas = REPLICAS..REPLICAS + self.plan.replicas;
        let intact = replicas.filter(|other| Some(*other) != node).filter(|other| {
            let slot = &self.slots[*other];
            let intact = |r: &super::Replica| matches!(r, Replicas::Vr(vr) if vr.is_intact());
            !slot.engine_lost
                && slot.retiring_for_ns.is_none()
                && slot.replica().is_some_and(intact)
        });
        intact.fold(0, |set, other| set | 1 << (other - REPLICAS))
    }

    /// Whether the replicas in `set` are a quorum by each configuration that may be in force: the
    /// latest that some replica knows to be committed, and all that follow it in some replica's
    /// log.
    pub(super) fn are_quorum(&self, set: u64) -> bool {
        let replicas = REPLICAS..REPLICAS + self.plan.replicas;
        let replicas = replicas.filter_map(|node| match self.slots[node].replica() {
            Some(Replicas::Vr(vr)) => Some(vr),
            Some(Replicas::Replica(_)) | None => None,
        });
        let known: Vec<(u64, u64, bool)> = replicas
            .flat_map(|vr| {
                let committed = vr.committed();
                let known = vr.configurations().filter(|(_, voters)| *voters != 0);
                known.map(move |(at, voters)| (at.0, voters, at <= committed))
            })
            .collect();
        let committed = known.iter().filter(|(.., is_committed)| *is_committed);
        let latest = committed.map(|(at, ..)| *at).max().unwrap_or(0);
        let founders = (1 << self.plan.replicas) - 1;
        let mut may_count =
            known.iter().filter(|(at, ..)| *at >= latest).map(|(_, voters, _)| *voters);
        may_count.all(|voters| is_quorum(set, voters)) && (latest > 0 || is_quorum(set, founders))
    }
}

fn is_quorum(set: u64, voters: u64) -> bool {
    (set & voters).count_ones() > voters.count_ones() / 2
}
