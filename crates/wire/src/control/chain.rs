//! Messages between the control planes of a NetCRAQ chain's switches: while an epoch opens, while a
//! switch copies the content of the chain, and to find the cell of a name. The content of cells
//! goes through the pipelines ([`crate::netcraq`]).

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use super::Message;
use crate::Addr;
use crate::header::Kind;
use crate::netcraq::Name;

/// The number of blocks into which a switch's cells, and its sessions, are divided for comparison.
pub const BLOCKS: usize = 64;

/// The digest of a block: switches with equal digests hold the same content in the block.
pub type Digest = [u8; 8];

/// The cell of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finding {
    /// The name has this cell, or may have it: if the cell does not yet belong to the name, a WRITE
    /// with `is_given` and this version gives it to the name.
    At {
        /// The index of the cell.
        cell: u32,
        /// The version of the cell when the head looked.
        version: u64,
    },
    /// The name has no cell: the key does not exist.
    Absent,
    /// The name has no cell, and no cell is free.
    Full,
}

/// The maximum number of names in an answer.
pub const NAMES_MAX: usize = 24;

/// A message between the control planes of a chain, or between a client and a chain's control
/// plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChainMessage {
    /// From a member to its predecessor, and from a joining switch to the tail: a request for the
    /// digests of its blocks.
    AskBlocks {
        /// The epoch of the sender.
        #[serde(skip)]
        epoch: u32,
        /// The node that asks.
        #[serde(skip)]
        from: u16,
    },
    /// The answer to `AskBlocks`, sent once the member holds the same content as its own
    /// predecessor.
    Blocks {
        /// The epoch of the sender.
        #[serde(skip)]
        epoch: u32,
        /// The member that answers.
        #[serde(skip)]
        from: u16,
        /// The digests of the cells: [`BLOCKS`] of them.
        cells: Vec<Digest>,
        /// The digests of the sessions: [`BLOCKS`] of them.
        sessions: Vec<Digest>,
    },
    /// From a member that holds the same content as its predecessor, to the tail: is the epoch
    /// open?
    AskOpen {
        /// The epoch of the sender.
        #[serde(skip)]
        epoch: u32,
        /// The member that asks.
        #[serde(skip)]
        from: u16,
    },
    /// From the tail to the other members: the epoch is open. All members hold the same content,
    /// and no switch outside the epoch can still hold a lease.
    Open {
        /// The epoch that is open.
        #[serde(skip)]
        epoch: u32,
        /// The tail.
        #[serde(skip)]
        from: u16,
    },
    /// From a client to any member, which forwards it to the head: which cell does this name have?
    Find {
        /// The epoch of the member that forwards it; 0 from the client.
        #[serde(skip)]
        epoch: u32,
        /// The member that forwards it; 0 from the client.
        #[serde(skip)]
        from: u16,
        /// The client that is answered.
        client: Addr,
        /// The number of the question, which the answer repeats.
        number: u64,
        /// The name of the key.
        name: Name,
        /// Whether the head reserves a cell for the name if it has none.
        gives: bool,
    },
    /// The head's answer to `Find`.
    Found {
        /// The epoch of the head.
        #[serde(skip)]
        epoch: u32,
        /// The head.
        #[serde(skip)]
        from: u16,
        /// The number of the question.
        number: u64,
        /// The cell of the name.
        finding: Finding,
    },
    /// From a client to any member, which forwards it to the head: which session can the client
    /// begin?
    AskSession {
        /// The epoch of the member that forwards it; 0 from the client.
        #[serde(skip)]
        epoch: u32,
        /// The member that forwards it; 0 from the client.
        #[serde(skip)]
        from: u16,
        /// The client that is answered.
        client: Addr,
        /// The number of the question, which the answer repeats.
        number: u64,
    },
    /// The head's answer to `AskSession`: the client can begin this session, unless another client
    /// has begun it by the time that its OPEN arrives.
    Session {
        /// The epoch of the head.
        #[serde(skip)]
        epoch: u32,
        /// The head.
        #[serde(skip)]
        from: u16,
        /// The number of the question.
        number: u64,
        /// The slot of the session.
        slot: u16,
        /// The generation: which session of the slot it would be.
        generation: u32,
    },
    /// From a client to any member, which forwards it to the head: which names have a key?
    List {
        /// The epoch of the member that forwards it; 0 from the client.
        #[serde(skip)]
        epoch: u32,
        /// The member that forwards it; 0 from the client.
        #[serde(skip)]
        from: u16,
        /// The client that is answered.
        client: Addr,
        /// The number of the question, which the answer repeats.
        number: u64,
        /// Only names greater than this one are listed, in the order of their bytes.
        after: Name,
    },
    /// The head's answer to `List`.
    Listed {
        /// The epoch of the head.
        #[serde(skip)]
        epoch: u32,
        /// The head.
        #[serde(skip)]
        from: u16,
        /// The number of the question.
        number: u64,
        /// The next names in order, [`NAMES_MAX`] of them; fewer if the list ends with them.
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
