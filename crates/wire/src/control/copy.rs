//! Copies: of single records while an epoch opens (trap T5), and of the whole state to joining
//! replicas.

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use super::{LogEnd, Message};
use crate::header::Kind;

/// A message about a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyMessage {
    /// Head to a member whose log is longer: send me records from here on.
    Fetch {
        /// The epoch that is to open.
        #[serde(skip)]
        epoch: u32,
        /// The asking replica.
        #[serde(skip)]
        from: u16,
        /// The record that is wanted.
        position: u64,
        /// The first fragment of it that is missing.
        index: u32,
        /// Which are: bit i is fragment `index + i`.
        missing: u64,
    },
    /// A piece of an encoded record, for [`CopyMessage::Fetch`].
    Fetched {
        /// The epoch that is to open.
        #[serde(skip)]
        epoch: u32,
        /// Which record.
        position: u64,
        /// Its running hash: fragments of two records are never mixed.
        hash: u64,
        /// Length of the whole record in bytes.
        total_bytes: u32,
        /// Which fragment of it.
        index: u32,
        /// The fragment.
        piece: Vec<u8>,
    },
    /// Joining replica to its donor: its state is as of this log end, and it asks for the records
    /// after it.
    Resume {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The asking replica.
        #[serde(skip)]
        from: u16,
        /// Which copy of the state it is; counted up by the joining replica.
        attempt: u64,
        /// The end of its log.
        end: LogEnd,
    },
    /// Feeder to joining replica: the records come.
    Resumed {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The sender.
        #[serde(skip)]
        from: u16,
        /// Echo of the request.
        attempt: u64,
    },
    /// To a replica whose log is not the sender's, or ends before what the sender kept (trap T5): a
    /// joining one copies anew, a member leaves.
    LogMismatch {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The sender.
        #[serde(skip)]
        from: u16,
        /// Which copy of a joining replica; 0 for a member.
        attempt: u64,
    },
    /// Joining replica to its feeder: send me a part of the state, from this fragment on.
    Ask {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The asking replica.
        #[serde(skip)]
        from: u16,
        /// Which copy.
        attempt: u64,
        /// Which part; parts are asked for in rising order.
        part: u64,
        /// The first fragment wanted.
        index: u32,
    },
    /// A fragment of a part of the state. Its place in the part is that of a
    /// [`crate::fragment::FragmentHdr`].
    Piece {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// Which copy.
        attempt: u64,
        /// Which part.
        part: u64,
        /// The log position at which the part was taken.
        position: u64,
        /// Length of the whole part in bytes.
        total_bytes: u32,
        /// Which fragment.
        index: u32,
        /// The fragment.
        piece: Vec<u8>,
    },
}

impl CopyMessage {
    /// The member of an epoch that says this to another one, and the epoch: a sign that it is
    /// heard.
    #[must_use]
    pub fn member_heard(&self) -> Option<(u32, u16)> {
        match *self {
            CopyMessage::Fetch { epoch, from, .. } => Some((epoch, from)),
            CopyMessage::Fetched { .. }
            | CopyMessage::Resume { .. }
            | CopyMessage::Resumed { .. }
            | CopyMessage::LogMismatch { .. }
            | CopyMessage::Ask { .. }
            | CopyMessage::Piece { .. } => None,
        }
    }
}

impl Message for CopyMessage {
    const KIND: Kind = Kind::Copy;

    fn sender(&self) -> (NodeId, Epoch) {
        match *self {
            CopyMessage::Fetch { epoch, from, .. }
            | CopyMessage::Resume { epoch, from, .. }
            | CopyMessage::Resumed { epoch, from, .. }
            | CopyMessage::LogMismatch { epoch, from, .. }
            | CopyMessage::Ask { epoch, from, .. } => (NodeId(from), Epoch(epoch)),
            CopyMessage::Fetched { epoch, .. } | CopyMessage::Piece { epoch, .. } => {
                (NodeId(0), Epoch(epoch))
            }
        }
    }

    fn set_sender(&mut self, node: NodeId, in_epoch: Epoch) {
        match self {
            CopyMessage::Fetch { epoch, from, .. }
            | CopyMessage::Resume { epoch, from, .. }
            | CopyMessage::Resumed { epoch, from, .. }
            | CopyMessage::LogMismatch { epoch, from, .. }
            | CopyMessage::Ask { epoch, from, .. } => (*epoch, *from) = (in_epoch.0, node.0),
            CopyMessage::Fetched { epoch, .. } | CopyMessage::Piece { epoch, .. } => {
                *epoch = in_epoch.0;
            }
        }
    }
}
