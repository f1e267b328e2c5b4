//! The configuration that is explored: what clients call, what may go wrong, what it begins with.

use concord_core::Guards;
use concord_switch::Layout;
use concord_wire::control::{Program, Protocol};

/// The registers that are small enough to be explored.
const LAYOUT: Layout = Layout { table_stages: 1, slots: 4, counter_bits: 32, run_bits: 0 };

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
    pub(super) fn args(&self) -> Vec<&'static str> {
        match *self {
            Call::Get(key) => vec!["GET", key],
            Call::Set(key, value) => vec!["SET", key, value],
            Call::Incr(key) => vec!["INCR", key],
            Call::GetBoth([one, other]) => vec!["MGET", one, other],
            Call::SetBoth([one, other], value) => vec!["MSET", one, value, other, value],
        }
    }

    /// The keys that it names.
    pub(super) fn keys(&self) -> Vec<&'static str> {
        match *self {
            Call::Get(key) | Call::Set(key, _) | Call::Incr(key) => vec![key],
            Call::GetBoth(keys) | Call::SetBoth(keys, _) => keys.to_vec(),
        }
    }

    pub(super) fn is_write(&self) -> bool {
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
    /// A replica is cut off from the others and the controller, not from the switch; what was
    /// granted to it last is still under way (T2).
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
    /// Some replicas got it, the leader died or did not, and time passed. What was said since is
    /// under way.
    Missed {
        /// The replicas that did not get the write, by bits.
        missed: u8,
        /// The leader is dead.
        leader_dies: bool,
    },
    /// FLAIR: the session is over, and time passed until the leader says that the next one begins.
    /// What switch, replicas and clients said to each other is under way; all else has arrived.
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
    Sequenced,
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
    /// Another switch took over beside the first one, which heard of it, and the first client has,
    /// too.
    Rival,
    /// The same, but the first switch and the last replica are cut off from the controller, the
    /// other replicas and the other switch.
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
            layout: LAYOUT,
            guards: Guards::ALL,
            ordered: false,
            reduced: true,
            states_max: 5_000_000,
        }
    }
}
