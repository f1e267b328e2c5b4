//! Messages between the control planes of a chain's switches, while an epoch opens, and while a
//! switch copies what a chain holds; and which cell is a name's. The cells themselves go through
//! the pipelines ([`crate::netcraq`]).

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use super::Message;
use crate::Addr;
use crate::header::Kind;
use crate::netcraq::Name;

/// Into how many blocks a switch's cells, and its sessions, are divided to be compared.
pub const BLOCKS: usize = 64;

/// A block's digest: two switches whose digests are equal hold the same there.
pub type Digest = [u8; 8];

/// Which cell is a name's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finding {
    /// This one, which had that version: if it is not the name's yet, a WRITE that says so
    /// (`is_given`) makes it that.
    At {
        /// The cell.
        cell: u32,
        /// Its version.
        version: u64,
    },
    /// None: there is no such key.
    Absent,
    /// None, and no cell is left.
    Full,
}

/// Most names in one answer.
pub const NAMES_MAX: usize = 24;

/// A message between the control planes of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChainMessage {
    /// A member to its predecessor, and a joining switch to the tail: what do you hold?
    AskBlocks {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// Which switch asks.
        #[serde(skip)]
        from: u16,
    },
    /// The answer of a member that holds what its own predecessor holds.
    Blocks {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// Which member answers.
        #[serde(skip)]
        from: u16,
        /// Of the cells, [`BLOCKS`] digests.
        cells: Vec<Digest>,
        /// Of the sessions, as many.
        sessions: Vec<Digest>,
    },
    /// A member that holds what its predecessor holds to the tail: is the epoch open?
    AskOpen {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// Which member asks.
        #[serde(skip)]
        from: u16,
    },
    /// The tail to the other members: all hold the same, and no outsider can hold a lease.
    Open {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The tail.
        #[serde(skip)]
        from: u16,
    },
    /// A client to any member, which sends it on to the head: which cell is this name's?
    Find {
        /// The epoch of the member that sends it on; 0: of the client.
        #[serde(skip)]
        epoch: u32,
        /// Which member sends it on; 0: the client.
        #[serde(skip)]
        from: u16,
        /// Who is answered.
        client: Addr,
        /// Comes back in the answer.
        number: u64,
        /// The name.
        name: Name,
        /// Whether it is to have a cell if it has none.
        gives: bool,
    },
    /// The head's answer.
    Found {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The head.
        #[serde(skip)]
        from: u16,
        /// Of the question.
        number: u64,
        /// Which cell.
        finding: Finding,
    },
    /// A client to any member, which sends it on to the head: which session can it begin?
    AskSession {
        /// The epoch of the member that sends it on; 0: of the client.
        #[serde(skip)]
        epoch: u32,
        /// Which member sends it on; 0: the client.
        #[serde(skip)]
        from: u16,
        /// Who is answered.
        client: Addr,
        /// Comes back in the answer.
        number: u64,
    },
    /// The head's answer: this one, if nobody else has begun it when its OPEN comes.
    Session {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The head.
        #[serde(skip)]
        from: u16,
        /// Of the question.
        number: u64,
        /// The slot.
        slot: u16,
        /// Which session of the slot.
        generation: u32,
    },
    /// A client to any member, which sends it on to the head: which names have a key?
    List {
        /// The epoch of the member that sends it on; 0: of the client.
        #[serde(skip)]
        epoch: u32,
        /// Which member sends it on; 0: the client.
        #[serde(skip)]
        from: u16,
        /// Who is answered.
        client: Addr,
        /// Comes back in the answer.
        number: u64,
        /// Only names above this one, in the order of their bytes.
        after: Name,
    },
    /// The head's answer.
    Listed {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The head.
        #[serde(skip)]
        from: u16,
        /// Of the question.
        number: u64,
        /// The next names in order, at most [`NAMES_MAX`]; fewer are the last.
        names: Vec<Name>,
    },
}

impl Message for ChainMessage {
    const KIND: Kind = Kind::Chain;

    fn sender(&self) -> (NodeId, Epoch) {
        match *self {
            ChainMessage::AskBlocks { epoch, from }
            | ChainMessage::Blocks { epoch, from, .. }
            | ChainMessage::AskOpen { epoch, from }
            | ChainMessage::Open { epoch, from }
            | ChainMessage::Find { epoch, from, .. }
            | ChainMessage::Found { epoch, from, .. }
            | ChainMessage::AskSession { epoch, from, .. }
            | ChainMessage::Session { epoch, from, .. }
            | ChainMessage::List { epoch, from, .. }
            | ChainMessage::Listed { epoch, from, .. } => (NodeId(from), Epoch(epoch)),
        }
    }

    fn set_sender(&mut self, node: NodeId, in_epoch: Epoch) {
        match self {
            ChainMessage::AskBlocks { epoch, from }
            | ChainMessage::Blocks { epoch, from, .. }
            | ChainMessage::AskOpen { epoch, from }
            | ChainMessage::Open { epoch, from }
            | ChainMessage::Find { epoch, from, .. }
            | ChainMessage::Found { epoch, from, .. }
            | ChainMessage::AskSession { epoch, from, .. }
            | ChainMessage::Session { epoch, from, .. }
            | ChainMessage::List { epoch, from, .. }
            | ChainMessage::Listed { epoch, from, .. } => {
                (*epoch, *from) = (in_epoch.0, node.0);
            }
        }
    }
}
