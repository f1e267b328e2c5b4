//! Every interleaving of a small rack of the shipped machines, breadth first, so that what goes wrong
//! is shown by a shortest trace.
//!
//! A state is every machine's (by the hash of what it is), the packets under way, what the clients
//! called and got, and what may still go wrong. From each state every packet may be delivered next, so
//! that all reorderings are there, or be lost or duplicated; a client calls; a replica crashes or is
//! cut off; the switch is replaced; time passes. A packet of several objects comes round in the switch between
//! any two others. Each reply is followed by a search for an order of the history so far.
//!
//! What the switch draws (which replica gets a fast read) is drawn in every way, under FLAIR among those that it
//! lets answer. What a client sends and gets waits nowhere between it and the switch: that would only leave
//! more orders open. But a reply that FLAIR's switch checks is under way to it.
//!
//! What is left out, so that the states can be counted: heartbeats, leases and the ends of the members'
//! logs arrive at once (a member takes no records while an epoch opens, so that its end is the same
//! whenever it is told), all else arrives in any order; time stands still but for so many waits, in
//! which everything that was due is sent again; a packet is under way once, however often it is sent
//! before it arrives.

mod canonical;
mod order;
mod registers;
mod rig;
mod state;
mod travel;
mod void;

use std::collections::{HashSet, VecDeque};

use concord_core::Guards;
use concord_switch::Layout;
use concord_wire::control::{Program, Protocol};
use rustc_hash::FxBuildHasher;

use rig::Rig;
use state::{Action, State};
pub(crate) use travel::Sort;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// GET key.
    Get(&'static str),
    /// SET key value.
    Set(&'static str, &'static str),
    /// INCR key.
    Incr(&'static str),
    /// MGET of two keys.
    GetBoth([&'static str; 2]),
    /// MSET of two keys to the same value.
    SetBoth([&'static str; 2], &'static str),
}

impl Call {
    fn args(&self) -> Vec<&'static str> {
        match *self {
            Call::Get(key) => vec!["GET", key],
            Call::Set(key, value) => vec!["SET", key, value],
            Call::Incr(key) => vec!["INCR", key],
            Call::GetBoth([one, other]) => vec!["MGET", one, other],
            Call::SetBoth([one, other], value) => vec!["MSET", one, value, other, value],
        }
    }

    /// The keys that it names.
    fn keys(&self) -> Vec<&'static str> {
        match *self {
            Call::Get(key) | Call::Set(key, _) | Call::Incr(key) => vec![key],
            Call::GetBoth(keys) | Call::SetBoth(keys, _) => keys.to_vec(),
        }
    }

    fn is_write(&self) -> bool {
        !matches!(self, Call::Get(_) | Call::GetBoth(_))
    }
}

/// How often each thing may go wrong on one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// A packet is lost.
    pub losses: u8,
    /// A packet is delivered, and once more later.
    pub duplicates: u8,
    /// A replica dies.
    pub crashes: u8,
    /// A replica dies and is back at once, empty (T4).
    pub restarts: u8,
    /// A replica is cut off from the others and the controller, not from the switch; what was granted
    /// to it last is still under way (T2).
    pub isolations: u8,
    /// The switch is replaced by another one of the same address, which knows nothing (§6.3).
    pub replacements: u8,
    /// Another switch takes over beside the first one, which goes on.
    pub rivals: u8,
    /// A moment passes: what was delayed so that it could share a packet is sent, a missing number
    /// is asked for. Nothing else is due.
    pub moments: u8,
    /// Time passes: all that is due is sent again, who is silent is removed.
    pub waits: u8,
}

impl Budget {
    /// Nothing goes wrong but the order of packets.
    pub const NOTHING: Budget = Budget {
        losses: 0,
        duplicates: 0,
        crashes: 0,
        restarts: 0,
        isolations: 0,
        replacements: 0,
        rivals: 0,
        moments: 0,
        waits: 0,
    };
}

/// A state to begin with, in which the first client has called, a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Some replicas got it, the leader died or did not, and time passed. What was said since is under way.
    Missed {
        /// The replicas that did not get the write, by bits.
        missed: u8,
        /// The leader is dead.
        leader_dies: bool,
    },
    /// FLAIR: the session is over, and time passed until the leader says that the next one begins. What switch, replicas and
    /// clients said to each other is under way; all else has arrived.
    Session {
        /// How far the write is.
        write: Write,
        /// Why the session is over.
        over: Over,
    },
}

/// How far the first client's write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It has a number, and is on its way to the leader.
    Numbered,
    /// The leader has executed it. Its reply is on its way.
    Executed,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The leader is dead.
    LeaderDied,
    /// The switch was replaced by another one of the same address.
    Replaced,
    /// Another switch took over beside the first one, which heard of it, and the first client has, too.
    Rival,
    /// The same, but the first switch and the last replica are cut off from the controller, the other replicas and
    /// the other switch.
    Split,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How the replicas replicate.
    pub protocol: Protocol,
    /// What the switch runs.
    pub program: Program,
    /// How many.
    pub replicas: usize,
    /// What each client calls, one call after the other; at most four.
    pub scripts: Vec<Vec<Call>>,
    /// What it begins with, if not with a rack that is ready (quorum protocols only).
    pub prepared: Vec<Prepared>,
    /// What may go wrong.
    pub budget: Budget,
    /// The switch's registers.
    pub layout: Layout,
    /// Which guards are on.
    pub guards: Guards,
    /// All packets arrive in the order in which they were sent (§6.2: "an ideal network").
    pub ordered: bool,
    /// States that differ in what can matter no more count as one. If not, they are the more.
    pub reduced: bool,
    /// Most states.
    pub states_max: usize,
}

impl Setup {
    /// Three replicas, two clients, nothing that goes wrong but the order of packets.
    #[must_use]
    pub fn new(protocol: Protocol, scripts: Vec<Vec<Call>>) -> Setup {
        Setup {
            protocol,
            program: Program::of(protocol, true),
            replicas: 3,
            scripts,
            prepared: Vec::new(),
            budget: Budget::NOTHING,
            layout: rig::LAYOUT,
            guards: Guards::ALL,
            ordered: false,
            reduced: true,
            states_max: 5_000_000,
        }
    }
}

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
    // How each state was reached: from which one, and by what. The first ones are reached from themselves.
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
