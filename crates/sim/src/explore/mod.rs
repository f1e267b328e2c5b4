//! Every interleaving of a small rack of the shipped machines, breadth first, so that what goes
//! wrong is shown by a shortest trace.
//!
//! A state is every machine's (by the hash of what it is), the packets under way, what the clients
//! called and got, and what may still go wrong. From each state every packet may be delivered next,
//! so that all reorderings are there, or be lost or duplicated; a client calls; a replica crashes
//! or is cut off; the switch is replaced; time passes. A packet of several objects comes round in
//! the switch between any two others. Each reply is followed by a search for an order of the
//! history so far.
//!
//! What the switch draws (which replica gets a fast read) is drawn in every way, under FLAIR among
//! those that it lets answer. What a client sends and gets waits nowhere between it and the switch:
//! that would only leave more orders open. But a reply that FLAIR's switch checks is under way to
//! it.
//!
//! What is left out, so that the states can be counted: heartbeats, leases and the ends of the
//! members' logs arrive at once (a member takes no records while an epoch opens, so that its end is
//! the same whenever it is told), all else arrives in any order; time stands still but for so many
//! waits, in which everything that was due is sent again; a packet is under way once, however often
//! it is sent before it arrives.

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

/// What was found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps from state to state.
    pub transitions: u64,
    /// States in which every call was answered and nothing is under way.
    pub ends: usize,
    /// Different histories: what the clients called and got, and what before what.
    pub histories: usize,
    /// The longest shortest way to a state.
    pub depth: usize,
    /// Whether there are no other states.
    pub is_complete: bool,
    /// What goes wrong, and how it comes to it, step by step.
    pub violation: Option<(String, Vec<String>)>,
}

/// Explores every state, or up to the first that is wrong.
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
    // How each state was reached: from which one, and by what. The first ones are reached from
    // themselves.
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

/// The way to the state that was reached last, in words.
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
