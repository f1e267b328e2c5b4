//! The start of a session (§4.3.5): what a leader uploads to its switch, encoded as the messages of
//! [`crate::control`] are. Each step is confirmed by the switch; the session is active once all are
//! (trap T28). While it is, the leader may say how reads are to be shared among its replicas
//! (§4.4.2).

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId, SwitchId};
use serde::{Deserialize, Serialize};

use super::{Followers, REPLICAS_MAX, Sid};
use crate::control::Message;
use crate::header::Kind;

/// Key groups that one packet uploads.
pub const GROUPS_OF_CHUNK: usize = 64;

/// What the switch knows of a key group, beside the number of its last write: of a session's start,
/// 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// log_idx: its last write, or a later position.
    pub log_idx: u64,
    /// consistent_followers: whose logs are the leader's up to there.
    pub followers: Followers,
    /// is_stable: no write of it is under way.
    pub is_stable: bool,
}

/// What the switch has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// It has forgotten the session before.
    Begun {
        /// How many key groups it has: a power of two.
        groups: u32,
        /// load_awareness: it balances reads by the weights that it is told.
        load_awareness: bool,
    },
    /// It has the key groups of a chunk.
    Chunk {
        /// Which chunk.
        chunk: u32,
    },
    /// The session is active.
    Active,
    /// Reads are shared by these weights, or by later ones.
    Weighed {
        /// Which.
        round: u32,
    },
}

/// How many reads each replica is to get, in proportion: by its bit in [`Followers`].
pub type Weights = [u16; REPLICAS_MAX];

/// A message of a session's start, or about its weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionMessage {
    /// Leader to its switch: a session begins. The one before is over.
    Begin {
        /// The leader's view.
        #[serde(skip)]
        view: u32,
        /// The leader.
        #[serde(skip)]
        from: u16,
        /// The switch that it is at: of a rack that was founded anew, another one (trap T28).
        switch: u32,
        /// The session.
        sid: Sid,
        /// Which replica each bit of [`Followers`] stands for, by node number; at most
        /// [`super::REPLICAS_MAX`].
        replicas: Vec<u16>,
        /// What holds for writes of all keys (trap T13).
        all_keys: Group,
    },
    /// Leader to its switch: a chunk of the key groups.
    Groups {
        /// The leader's view.
        #[serde(skip)]
        view: u32,
        /// The leader.
        #[serde(skip)]
        from: u16,
        /// The switch that it is at: of a rack that was founded anew, another one (trap T28).
        switch: u32,
        /// The session.
        sid: Sid,
        /// Which chunk: its first group is `chunk` times [`GROUPS_OF_CHUNK`].
        chunk: u32,
        /// The groups, in order.
        groups: Vec<Group>,
    },
    /// Leader to its switch: everything was confirmed, the session is active.
    Activate {
        /// The leader's view.
        #[serde(skip)]
        view: u32,
        /// The leader.
        #[serde(skip)]
        from: u16,
        /// The switch that it is at: of a rack that was founded anew, another one (trap T28).
        switch: u32,
        /// The session.
        sid: Sid,
        /// The last probe of the switch that the leader has (trap T26), in ns.
        probe: u64,
    },
    /// Switch to the leader: what of it is done.
    Confirmed {
        /// The leader's view.
        #[serde(skip)]
        view: u32,
        /// The leader.
        #[serde(skip)]
        from: u16,
        /// The switch that it is at: of a rack that was founded anew, another one (trap T28).
        switch: u32,
        /// The session.
        sid: Sid,
        /// What was done.
        step: Step,
        /// The switch's clock in ns.
        probe: u64,
    },
    /// Leader to its switch, while the session is active: reads are to be shared by other weights.
    Weights {
        /// The leader's view.
        #[serde(skip)]
        view: u32,
        /// The leader.
        #[serde(skip)]
        from: u16,
        /// The switch that it is at: of a rack that was founded anew, another one (trap T28).
        switch: u32,
        /// The session.
        sid: Sid,
        /// Their ordinal within the session, from 1: those that come after later ones count no
        /// more.
        round: u32,
        /// They.
        weights: Weights,
    },
}

impl SessionMessage {
    /// The switch that it is said to, or by.
    #[must_use]
    pub fn switch(&self) -> SwitchId {
        match *self {
            SessionMessage::Begin { switch, .. }
            | SessionMessage::Groups { switch, .. }
            | SessionMessage::Activate { switch, .. }
            | SessionMessage::Confirmed { switch, .. }
            | SessionMessage::Weights { switch, .. } => SwitchId(switch),
        }
    }

    /// The session that it is about.
    #[must_use]
    pub fn sid(&self) -> Sid {
        match *self {
            SessionMessage::Begin { sid, .. }
            | SessionMessage::Groups { sid, .. }
            | SessionMessage::Activate { sid, .. }
            | SessionMessage::Confirmed { sid, .. }
            | SessionMessage::Weights { sid, .. } => sid,
        }
    }
}

impl Message for SessionMessage {
    const KIND: Kind = Kind::FlairSession;

    fn sender(&self) -> (NodeId, Epoch) {
        match *self {
            SessionMessage::Begin { view, from, .. }
            | SessionMessage::Groups { view, from, .. }
            | SessionMessage::Activate { view, from, .. }
            | SessionMessage::Confirmed { view, from, .. }
            | SessionMessage::Weights { view, from, .. } => (NodeId(from), Epoch(view)),
        }
    }

    fn set_sender(&mut self, node: NodeId, in_view: Epoch) {
        match self {
            SessionMessage::Begin { view, from, .. }
            | SessionMessage::Groups { view, from, .. }
            | SessionMessage::Activate { view, from, .. }
            | SessionMessage::Confirmed { view, from, .. }
            | SessionMessage::Weights { view, from, .. } => {
                (*view, *from) = (in_view.0, node.0);
            }
        }
    }
}
