//! The configuration that is explored: the clients' calls, the faults, the initial state.

use concord_core::Guards;
use concord_switch::Layout;
use concord_wire::control::{Program, Protocol};

/// Registers that are small enough for an exploration.
const LAYOUT: Layout = Layout { table_stages: 1, slots: 4, counter_bits: 32, run_bits: 0 };

/// A call of a client.
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

    /// The keys of the call.
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

/// The maximum number of faults of each kind on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Packets that are lost.
    pub losses: u8,
    /// Packets that are delivered once more later.
    pub duplicates: u8,
    /// Replicas that die.
    pub crashes: u8,
    /// Replicas that die and return at once, without their data (trap T4).
    pub restarts: u8,
    /// Replicas that are cut off from the others and the controller, but not from the switch; the
    /// leases granted to them last are still in flight (trap T2).
    pub isolations: u8,
    /// Replacements of the switch by another one at the same address, without its state (Harmonia
    /// §6.3).
    pub replacements: u8,
    /// Takeovers by another switch while the first one continues.
    pub rivals: u8,
    /// Moments that pass: packets that were delayed to share a datagram are sent, missing numbers
    /// are asked for. Nothing else is due.
    pub moments: u8,
    /// Waits that pass: everything due is sent again, silent nodes are removed.
    pub waits: u8,
}

impl Budget {
    /// No faults: only packets are reordered.
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

/// An initial state in which the first client has called a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Some replicas got the write, the leader may have died, and time has passed. The packets sent
    /// since are in flight.
    Missed {
        /// The replicas that did not get the write, by bits.
        missed: u8,
        /// Whether the leader is dead.
        leader_dies: bool,
    },
    /// FLAIR: the session is over, and time has passed until the leader announces the next one. The
    /// packets between switch, replicas and clients are in flight; all others have arrived.
    Session {
        /// The progress of the write.
        write: Write,
        /// The reason why the session is over.
        over: Over,
    },
}

/// The progress of the first client's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It has a number, and is in flight to the leader.
    Sequenced,
    /// The leader has executed it; its reply is in flight.
    Executed,
}

/// The reason why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The leader died.
    LeaderDied,
    /// The switch was replaced by another one at the same address.
    Replaced,
    /// Another switch took over beside the first one, which knows of it, as does the first client.
    Rival,
    /// Another switch took over, and the first switch and the last replica are cut off from the
    /// controller, the other replicas and the other switch.
    Split,
}

/// The configuration of an exploration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The replication protocol.
    pub protocol: Protocol,
    /// The switch program.
    pub program: Program,
    /// The number of replicas.
    pub replicas: usize,
    /// The calls of each client, made one after the other; at most four each.
    pub scripts: Vec<Vec<Call>>,
    /// The initial states, if they are not a rack that is ready (quorum protocols only).
    pub prepared: Vec<Prepared>,
    /// The faults that may happen.
    pub budget: Budget,
    /// The switch's registers.
    pub layout: Layout,
    /// The guards that are on.
    pub guards: Guards,
    /// Whether all packets arrive in the order in which they were sent (Harmonia §6.2: "an ideal
    /// network").
    pub ordered: bool,
    /// Whether states count as one that differ only in what cannot matter any more. Without this
    /// there are more states.
    pub reduced: bool,
    /// The maximum number of states.
    pub states_max: usize,
}

impl Setup {
    /// Three replicas, two clients, and no faults: only packets are reordered.
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
