//! Leases, which the members of an epoch grant each other (trap T2). Those of views are in
//! [`crate::vr`].

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

use super::Message;
use crate::header::Kind;

/// A message about a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseMessage {
    /// Replica to the other members: grant me a lease, counted from when I asked (trap T2).
    Request {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The asking replica.
        #[serde(skip)]
        from: u16,
        /// The asker's clock when it asked, echoed.
        asked_at: u64,
    },
    /// The grant.
    Grant {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The granting replica.
        #[serde(skip)]
        from: u16,
        /// Echo of the request.
        asked_at: u64,
    },
    /// From a leaving replica to those that may have granted it a lease: this incarnation holds
    /// none any more, and never will again, so that none waits for its end (trap T2).
    Release {
        /// Which node.
        #[serde(skip)]
        from: u16,
        /// Which incarnation of it.
        incarnation: u64,
    },
}

impl LeaseMessage {
    /// The member of an epoch that says this to another one, and the epoch: a sign that it is
    /// heard.
    #[must_use]
    pub fn member_heard(&self) -> Option<(u32, u16)> {
        match *self {
            LeaseMessage::Request { epoch, from, .. } | LeaseMessage::Grant { epoch, from, .. } => {
                Some((epoch, from))
            }
            LeaseMessage::Release { .. } => None,
        }
    }
}

impl Message for LeaseMessage {
    const KIND: Kind = Kind::Lease;

    fn sender(&self) -> (NodeId, Epoch) {
        match *self {
            LeaseMessage::Request { epoch, from, .. } | LeaseMessage::Grant { epoch, from, .. } => {
                (NodeId(from), Epoch(epoch))
            }
            LeaseMessage::Release { from, .. } => (NodeId(from), Epoch(0)),
        }
    }

    fn set_sender(&mut self, node: NodeId, in_epoch: Epoch) {
        match self {
            LeaseMessage::Request { epoch, from, .. } | LeaseMessage::Grant { epoch, from, .. } => {
                (*epoch, *from) = (in_epoch.0, node.0);
            }
            LeaseMessage::Release { from, .. } => *from = node.0,
        }
    }
}
