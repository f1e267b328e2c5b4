//! Infrequent messages: an enum for each kind, with the controller and about epochs
//! ([`Membership`]), about leases ([`LeaseMessage`]), about copies of the state ([`CopyMessage`]),
//! among the switches of a chain ([`ChainMessage`]), and of views ([`crate::vr`]). The operation is
//! the variant's place in its enum, from 1. The common header has the sender and the epoch; the
//! rest follows, encoded by postcard ([`Message`]).

mod chain;
mod config;
mod copy;
mod lease;
mod membership;
mod message;
mod parts;

pub use chain::{BLOCKS, ChainMessage, Digest, Finding, NAMES_MAX};
pub use config::{Config, GroupKind, MEMBERS_MAX, MEMORY_NODES_MAX, Program, Protocol};
pub use copy::CopyMessage;
pub use lease::LeaseMessage;
pub use membership::{Membership, ReplicaAlive};
pub use message::Message;
pub use parts::{Assembly, ConfigPart, PARTS_MAX, PLACES_MAX, PLACES_OF_PART};

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::Addr;
use crate::vr::LastRecord;

/// A member of an epoch: a node in one of its lives (trap T4), and where it listens. 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node's number.
    #[serde(with = "postcard::fixint::be")]
    pub node: u16,
    /// Its incarnation.
    #[serde(with = "postcard::fixint::be")]
    pub incarnation: u64,
    /// Its UDP address.
    pub addr: Addr,
}

/// The standing of a replica, as it reports it to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// In no epoch; it asks to be let in.
    Out,
    /// It is joining, and lacks a part of the state.
    Copying,
    /// It is joining, and has all of the state.
    Copied,
    /// A member; the epoch is not open here.
    Opening {
        /// Whether it was caught up in the epoch before, and so has everything that was ever
        /// committed.
        caught_up: bool,
    },
    /// A member; the epoch is open here.
    Open {
        /// All that the members agreed on, at the opening of some epoch since it became one, is
        /// executed here. Only a whole member can go on without the others.
        caught_up: bool,
    },
    /// It asks to be removed: it was told to end, it lost its engine, or its log does not match the
    /// others' (traps T4, T11).
    Leaving,
    /// In no epoch; it asks to be let in, and what it held ([`Held`]) is what its disk has.
    Returning {
        /// All that was ever synced there was found at this start, and nothing else was
        /// acknowledged.
        intact: bool,
    },
    /// In no epoch; its disk has the state that a rack begins with, and it waits for that rack's
    /// first configuration.
    Founding {
        /// Which state: all that begin together have the same.
        origin: u64,
        /// The highest switch id that the rack before may have used.
        switch_id: u32,
    },
}

/// The highest numbers that a node has heard of, from any sender: a controller whose state has
/// lower ones has lost its file, or has another's (trap T3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The rack of its configuration; 0 if it has none.
    pub rack: u64,
    /// The highest epoch; 0 if none, and from a switch whose epochs are views.
    pub epoch: u32,
    /// The highest switch id; 0 if none.
    pub switch_id: u32,
}

/// A replica's data directory, and a run on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataDir {
    /// Its number.
    pub id: u64,
    /// The number of starts of a replica on it, with this one.
    pub run: u64,
}

/// A complete state that a replica has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// The last epoch in which it had all that was agreed; 0 if what is here is not complete.
    pub epoch: u32,
    /// The end of its log.
    pub position: u64,
}

/// Raft: which members vote, by the newest configuration in a replica's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voting {
    /// The end of that log.
    pub last: LastRecord,
    /// Bit i: the member at place i of the configuration votes.
    pub voters: u64,
}

/// Raft: who votes, as a replica knows it, and what became of an operator's change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VotersTold {
    /// Echo of the question.
    pub number: u64,
    /// The sender.
    pub node: u16,
    /// The outcome of the requested change.
    pub outcome: VoterOutcome,
    /// All members, in the configuration's order.
    pub members: Vec<u16>,
    /// Bit i: the member at place i votes, by the newest configuration in the sender's log.
    pub voters: u64,
    /// Whether that configuration is known there to be committed.
    pub is_committed: bool,
}

/// The outcome of a change of the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VoterOutcome {
    /// The voters are as requested, nothing was requested, or the change is in the leader's log.
    Done,
    /// This replica does not lead a Raft group, and does nothing.
    NotLeader,
    /// There is no such member.
    NotMember,
    /// The change before is not committed, or leases that count by it are not over. Ask again.
    NotYet,
    /// The member has not caught up. Ask again.
    Behind,
    /// Too few of those who would vote are there: nothing could be committed any more.
    NoQuorum,
}

/// The digest that a replica made of a part of its state, when it had executed one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// The position.
    pub position: u64,
    /// The running hash there: replicas with another one have executed another log.
    pub hash: u64,
    /// The first place of the part.
    pub first: u16,
    /// The place after the last one.
    pub end: u16,
    /// The number of keys there.
    pub keys: u32,
    /// The digest.
    pub digest: u64,
}

/// The end of a replica's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEnd {
    /// The last record applied; 0 if none.
    pub position: u64,
    /// The running hash there.
    pub hash: u64,
}

#[cfg(test)]
mod tests;
