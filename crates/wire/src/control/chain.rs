//! Messages between the control planes of a chain's switches, while an epoch opens, and while a
//! switch copies what a chain holds. The cells themselves go through the pipelines
//! ([`crate::netcraq`]).

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use super::Message;
use crate::header::Kind;

/// Into how many blocks a switch's cells, and its sessions, are divided to be compared.
pub const BLOCKS: usize = 64;

/// A block's digest: two switches whose digests are equal hold the same there.
pub type Digest = [u8; 8];

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
}

impl Message for ChainMessage {
    const KIND: Kind = Kind::Chain;

    fn sender(&self) -> (NodeId, Epoch) {
        match *self {
            ChainMessage::AskBlocks { epoch, from }
            | ChainMessage::Blocks { epoch, from, .. }
            | ChainMessage::AskOpen { epoch, from }
            | ChainMessage::Open { epoch, from } => (NodeId(from), Epoch(epoch)),
        }
    }

    fn set_sender(&mut self, node: NodeId, in_epoch: Epoch) {
        match self {
            ChainMessage::AskBlocks { epoch, from }
            | ChainMessage::Blocks { epoch, from, .. }
            | ChainMessage::AskOpen { epoch, from }
            | ChainMessage::Open { epoch, from } => (*epoch, *from) = (in_epoch.0, node.0),
        }
    }
}
