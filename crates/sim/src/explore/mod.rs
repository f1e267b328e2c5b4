//! The exploration of every interleaving of a small rack of the shipped machines, breadth first, so
//! that a violation is shown by a shortest trace.
//!
//! A state consists of every machine (by the hash of its content), the packets in flight, the calls
//! and replies of the clients, and the faults that may still happen. From each state every packet
//! in flight may be delivered next, so that all reorderings are covered, or be lost or duplicated;
//! a client may make a call; a replica may crash or be cut off; the switch may be replaced; time
//! may pass. A packet of several objects is recirculated in the switch between any two others.
//! After each reply, the history so far is searched for an order.
//!
//! Random choices of the switch (the replica that gets a fast read) are explored in every way,
//! under FLAIR among the replicas that it allows. The packets of clients to and from the switch are
//! never in flight: that would only leave more orders open. But a reply that FLAIR's switch checks
//! is in flight to it.
//!
//! To keep the states countable, some things are left out. Heartbeats, leases and the ends of the
//! members' logs arrive at once (a member accepts no records while an epoch opens, so that its end
//! is the same whenever it is reported); all other packets arrive in any order. Time stands still
//! except for a number of waits, in which everything that was due is sent again. A packet is in
//! flight once, however often it is sent before it arrives.

pub(crate) mod canonical;
mod order;
mod registers;
mod rig;
pub(crate) mod setup;
pub(crate) mod sort;
mod stale;
mod state;
mod travel;

use std::collections::{HashSet, VecDeque};

use rustc_hash::FxBuildHasher;

use rig::Rig;
use state::{Action, State};

pub use setup::{Budget, Call, Over, Prepared, Setup, Write};

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Explored {
    /// The number of distinct states.
    pub states: usize,
    /// The number of steps between states.
    pub transitions: u64,
    /// The number of states in which every call was answered and no packet is in flight.
    pub ends: usize,
    /// The number of distinct histories: the calls, the replies, and which call returned before
    /// which began.
    pub histories: usize,
    /// The maximum length of a shortest path to a state, in steps.
    pub depth: usize,
    /// Whether all states were reached, within the maximum.
    pub is_complete: bool,
    /// The first violation, and the steps that lead to it.
    pub violation: Option<(String, Vec<String>)>,
}

/// Explores all states, or up to the first violation.
#[must_use]
pub fn explore(setup: Setup) -> Explored {
    let states_max = setup.states_max;
    let mut rig = Rig::new(setup);
    let mut found = Explored {
        states: 1,
        transitions: 0,
        ends: 0,
        histories: 0,
        depth: 0,
        is_complete: true,
        violation: None,
    };
    let first = match State::first(&mut rig) {
        Ok(first) => first,
        Err(why) => {
            found.violation = Some((why, Vec::new()));
            return found;
        }
    };
    let first = match rig.setup.prepared.clone() {
        none if none.is_empty() => vec![first],
        prepared => prepared.into_iter().map(|how| first.prepared(&mut rig, how)).collect(),
    };
    let mut seen: HashSet<u128, FxBuildHasher> = HashSet::default();
    // How each state was reached: the previous state and the action. Initial states have themselves
    // as previous state.
    let mut ways: Vec<(u32, Action)> = Vec::new();
    let mut queue = VecDeque::new();
    for (index, state) in first.iter().enumerate() {
        seen.insert(state.fingerprint());
        ways.push((index as u32, Action::Wait));
        queue.push_back((index as u32, 0_usize, state.clone()));
    }
    while let Some((index, depth, state)) = queue.pop_front() {
        found.depth = depth;
        found.ends += usize::from(state.is_end(&rig));
        for action in state.actions(&mut rig) {
            found.transitions += 1;
            let next = state.after(&mut rig, action);
            if !seen.insert(next.fingerprint()) {
                continue;
            }
            ways.push((index, action));
            if let Some(why) = next.is_wrong(&mut rig) {
                found.violation = Some((why, trace(&mut rig, &first, &ways)));
                found.states = ways.len();
                return found;
            }
            if ways.len() >= states_max {
                found.is_complete = false;
                found.states = ways.len();
                return found;
            }
            queue.push_back((ways.len() as u32 - 1, depth + 1, next));
        }
    }
    found.states = ways.len();
    found.histories = rig.orders.len();
    found
}

/// The descriptions of the actions that lead to the state that was reached last.
fn trace(rig: &mut Rig, first: &[State], ways: &[(u32, Action)]) -> Vec<String> {
    let mut actions = Vec::new();
    let mut at = ways.len() - 1;
    while at >= first.len() {
        let (before, action) = ways[at];
        actions.push(action);
        at = before as usize;
    }
    let mut state = first[at].clone();
    let prepared = rig.setup.prepared.get(at);
    let mut lines: Vec<String> =
        prepared.map(|how| format!("begins {how:?}")).into_iter().collect();
    for action in actions.into_iter().rev() {
        let before = state.replies();
        state = state.after(rig, action);
        let mut line = action.describe(rig);
        for (client, reply) in state.replies().into_iter().filter(|r| !before.contains(r)) {
            line += &format!("; client-{client} gets {:?}", rig.replies[reply as usize]);
        }
        lines.push(line);
    }
    lines
}
