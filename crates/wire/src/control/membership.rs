//! Membership messages: with the controller, and among members while an epoch opens.

use alloc::vec::Vec;

use concord_core::{Epoch, NodeId};
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Compared, ConfigPart, DataDir, Heard, Held, LogEnd, Member, Message, Standing, VotersTold,
    Voting,
};
use crate::Addr;
use crate::header::Kind;

/// A replica lives: who it is, and all that the controller decides by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaAlive {
    /// The node, its incarnation and its address.
    pub member: Member,
    /// Its clock when it said so, in ns: what arrives late is told apart.
    pub sent_at: u64,
    /// The newest numbers that it has heard of; its standing is in that epoch.
    pub heard: Heard,
    /// Its standing in the epoch.
    pub standing: Standing,
    /// The data that it has.
    pub held: Held,
    /// The data directory that it was started on, if it keeps its data.
    pub data_dir: Option<DataDir>,
    /// Members that it has not heard of lately, though it should; of one that joins, all members
    /// that did not answer lately.
    pub unheard: Vec<u16>,
}

/// A message about who is who.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Membership {
    /// Replica to controller, periodically: I live.
    ReplicaAlive(ReplicaAlive),
    /// Switch to controller, periodically: I live.
    SwitchAlive {
        /// The switch's incarnation.
        incarnation: u64,
        /// Its address.
        addr: Addr,
        /// Its clock when it said so, in ns.
        sent_at: u64,
        /// The configuration it runs; 0 if none.
        epoch: u32,
        /// The newest numbers that it has heard of.
        heard: Heard,
        /// Whether it is a standby, which takes over only when the active switch is silent.
        standby: bool,
    },
    /// Controller to members, and to the switch once open: a configuration, or a part of it.
    Configure(ConfigPart),
    /// Gateway or client to controller: which configuration is in force? Controller to a replica,
    /// to recover: which one is yours?
    WhoIsWho {
        /// The address for the answer.
        client: Addr,
    },
    /// Controller to an incarnation of a switch whose place another has: it may register again as a
    /// new incarnation.
    SwitchRetired {
        /// That incarnation.
        incarnation: u64,
        /// The address of the active switch.
        switch: Addr,
    },
    /// Replica to replica: where my log ends, in this epoch (trap T5).
    EpochState {
        /// The epoch that is to open.
        #[serde(skip)]
        epoch: u32,
        /// The sender.
        #[serde(skip)]
        from: u16,
        /// The end of its log.
        end: LogEnd,
        /// Whether the receiver's own end is wanted in return.
        ask: bool,
        /// Whether it acknowledges nothing before that is on its disk.
        #[serde(deserialize_with = "said")]
        waits: bool,
    },
    /// Head to members: the epoch is open; the log up to here is agreed.
    Open {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The sender.
        #[serde(skip)]
        from: u16,
        /// The end of the agreed log.
        end: LogEnd,
        /// Whether any member waits for its disk: all say then what is durable.
        #[serde(deserialize_with = "said")]
        waits: bool,
    },
    /// Member to head: I opened it.
    Opened {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The sender.
        #[serde(skip)]
        from: u16,
    },
    /// Joining replica to members: do you hear me? And the answer.
    Reach {
        /// The epoch.
        #[serde(skip)]
        epoch: u32,
        /// The sender.
        #[serde(skip)]
        from: u16,
        /// Whether an answer is wanted.
        ask: bool,
    },
    /// Raft replica to controller, in the place of `ReplicaAlive`: I live, and that is who votes by
    /// my log.
    VoterAlive {
        /// As any replica says it.
        alive: ReplicaAlive,
        /// The voters according to its log.
        voting: Voting,
    },
    /// Operator to the replicas of a Raft group: who votes? Each answers.
    ChangeVoter {
        /// The address for the answer.
        client: Addr,
        /// Echoed by it.
        number: u64,
        /// The leader's to do before: this member is to vote, or not to.
        change: Option<(u16, bool)>,
    },
    /// Replica to operator: the answer.
    VotersTold(VotersTold),
    /// Controller to a replica whose group chooses its leaders by itself: the process was started
    /// with less on its disk than its node was heard to have there, so that an older directory was
    /// put back.
    WasDurable {
        /// Which process.
        incarnation: u64,
        /// The position that an earlier process of its node had reported as durable.
        held: Held,
    },
    /// Replica to controller: digests of parts of the state, for comparison. Older controllers drop
    /// it.
    Compared {
        /// The node.
        node: u16,
        /// Its incarnation.
        incarnation: u64,
        /// The digests, oldest first.
        made: Vec<Compared>,
    },
}

/// A message of an older build ends before it, and says nothing.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(bool::deserialize(from).unwrap_or_default())
}

impl Membership {
    /// The member of an epoch that says this to another one, and the epoch: a sign that it is
    /// heard.
    #[must_use]
    pub fn member_heard(&self) -> Option<(u32, u16)> {
        match *self {
            Membership::EpochState { epoch, from, .. }
            | Membership::Open { epoch, from, .. }
            | Membership::Opened { epoch, from }
            | Membership::Reach { epoch, from, .. } => Some((epoch, from)),
            Membership::ReplicaAlive(_)
            | Membership::VoterAlive { .. }
            | Membership::SwitchAlive { .. }
            | Membership::Configure(_)
            | Membership::WhoIsWho { .. }
            | Membership::ChangeVoter { .. }
            | Membership::VotersTold(_)
            | Membership::WasDurable { .. }
            | Membership::Compared { .. }
            | Membership::SwitchRetired { .. } => None,
        }
    }
}

impl Message for Membership {
    const KIND: Kind = Kind::Membership;

    fn sender(&self) -> (NodeId, Epoch) {
        let (epoch, from) = self.member_heard().unwrap_or_default();
        (NodeId(from), Epoch(epoch))
    }

    fn set_sender(&mut self, node: NodeId, in_epoch: Epoch) {
        match self {
            Membership::EpochState { epoch, from, .. }
            | Membership::Open { epoch, from, .. }
            | Membership::Opened { epoch, from }
            | Membership::Reach { epoch, from, .. } => (*epoch, *from) = (in_epoch.0, node.0),
            Membership::ReplicaAlive(_)
            | Membership::VoterAlive { .. }
            | Membership::SwitchAlive { .. }
            | Membership::Configure(_)
            | Membership::WhoIsWho { .. }
            | Membership::ChangeVoter { .. }
            | Membership::VotersTold(_)
            | Membership::WasDurable { .. }
            | Membership::Compared { .. }
            | Membership::SwitchRetired { .. } => {}
        }
    }
}
