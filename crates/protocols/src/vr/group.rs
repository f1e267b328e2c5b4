//! The part of a replica in its group: who the members are, who leads which view, what a quorum is, and
//! which switch the controller told of.

use concord_core::{NodeId, ViewNumber, hash};
use concord_wire::Addr;
use concord_wire::control::{Config, Member, Program, Protocol};
use concord_wire::vr::{Life, SwitchLife};

use alloc::vec::Vec;

use super::voters::Voters;

/// Most members of a group; a larger one is not joined.
pub(super) const MEMBERS_MAX: usize = 64;

/// The newest configuration of the controller, and the own place in it.
#[derive(Clone, Debug)]
pub(super) struct Group {
    node: NodeId,
    pub(super) config: Option<Config>,
    /// The group's name: its founders and their lives.
    id: u64,
    /// The own index among the members.
    me: usize,
    /// Raft: the latest term whose leader is known, and that one's index.
    elected: Option<(ViewNumber, usize)>,
    /// Raft: which of the members vote, by the log.
    pub(super) voters: Voters,
}

impl Group {
    /// None yet.
    pub(super) fn new(me: Member) -> Group {
        let (node, voters) = (NodeId(me.node), Voters::default());
        Group { node, config: None, id: 0, me: 0, elected: None, voters }
    }

    /// Joins the group of `config`, as its member `me`.
    pub(super) fn enter(&mut self, config: Config, me: usize) {
        self.me = me;
        self.id = id_of(&config.members);
        self.config = Some(config);
        self.elected = None;
        self.voters.enter_group(self.id);
    }

    /// Takes a newer configuration of the same group; gives it back if it is of another one.
    pub(super) fn renew(&mut self, config: Config) -> Result<(), Config> {
        if self.config.is_none() || id_of(&config.members) != self.id {
            return Err(config);
        }
        self.config = Some(config);
        Ok(())
    }

    /// The group is none any more.
    pub(super) fn forget(&mut self) {
        self.config = None;
        self.elected = None;
    }

    pub(super) fn is_known(&self) -> bool {
        self.config.is_some()
    }

    /// The epoch of the newest configuration; 0 if there is none.
    pub(super) fn epoch(&self) -> u32 {
        self.config.as_ref().map_or(0, |c| c.epoch)
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    /// The own index among the members.
    pub(super) fn me(&self) -> usize {
        self.me
    }

    pub(super) fn members(&self) -> &[Member] {
        self.config.as_ref().map_or(&[], |c| &c.members)
    }

    pub(super) fn node_of(&self, index: usize) -> NodeId {
        NodeId(self.members()[index].node)
    }

    pub(super) fn index_of(&self, node: NodeId) -> Option<usize> {
        self.members().iter().position(|m| m.node == node.0)
    }

    /// The other members, with their indices.
    pub(super) fn others(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members().iter().enumerate().filter(|(index, _)| *index != self.me)
    }

    /// Bit i: member i votes. All do, unless Raft's log says otherwise.
    pub(super) fn voters(&self) -> u64 {
        self.voters.newest().map_or(self.all(), |newest| newest.voters)
    }

    /// Bit i: there is a member i.
    pub(super) fn all(&self) -> u64 {
        match self.members().len() {
            MEMBERS_MAX.. => u64::MAX,
            members => (1 << members) - 1,
        }
    }

    pub(super) fn voter_count(&self) -> usize {
        self.voters().count_ones() as usize
    }

    pub(super) fn is_voter(&self, index: usize) -> bool {
        self.voters() >> index & 1 == 1
    }

    /// Whether `node` is a member that votes.
    pub(super) fn has_voter(&self, node: NodeId) -> bool {
        self.index_of(node).is_some_and(|index| self.is_voter(index))
    }

    /// How many of a quorum this replica itself is: one, or none if it does not vote.
    pub(super) fn own_vote(&self) -> usize {
        usize::from(self.is_voter(self.me))
    }

    /// Whether no other member votes.
    pub(super) fn is_alone(&self) -> bool {
        self.voters() & !(1 << self.me) == 0
    }

    /// Any two sets of so many voters share one.
    pub(super) fn quorum(&self) -> usize {
        quorum_of(self.voters())
    }

    /// Who leads `view`: the members take turns (VRR §4.2). In Raft whoever was elected, if that is known.
    pub(super) fn leader_of(&self, view: ViewNumber) -> Option<usize> {
        if self.elects() {
            return self.elected.filter(|(term, _)| *term == view).map(|(_, leader)| leader);
        }
        Some(self.turn_of(view))
    }

    /// Whose turn `view` is; in Raft that of a founded group's first leader.
    pub(super) fn turn_of(&self, view: ViewNumber) -> usize {
        (view.0.max(1) as usize - 1) % self.members().len().max(1)
    }

    /// Raft: `leader` leads `term`.
    pub(super) fn elect(&mut self, term: ViewNumber, leader: usize) {
        self.elected = Some((term, leader));
    }

    /// Whether the members elect a leader for each term (Raft), and take no turns.
    pub(super) fn elects(&self) -> bool {
        self.protocol().elects()
    }

    /// Whether this replica is the leader of `view`, should that begin.
    pub(super) fn is_mine(&self, view: ViewNumber) -> bool {
        self.leader_of(view) == Some(self.me)
    }

    pub(super) fn leader_addr(&self, view: ViewNumber) -> Option<Addr> {
        self.members().get(self.leader_of(view)?).map(|m| m.addr)
    }

    pub(super) fn program(&self) -> Program {
        self.config.as_ref().map_or(Program::Forward, |c| c.program)
    }

    /// Whether the switch keeps a dirty set, so that any member may answer reads.
    pub(super) fn is_accelerated(&self) -> bool {
        self.program().has_dirty_set()
    }

    /// Whether the switch checks replies: the view is its session.
    pub(super) fn checks_replies(&self) -> bool {
        self.program().checks_replies()
    }

    /// Whether any member may answer reads.
    pub(super) fn has_readers(&self) -> bool {
        self.is_accelerated() || self.checks_replies()
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.config.as_ref().and_then(Config::protocol).unwrap_or(Protocol::Vr)
    }

    /// NOPaxos: whether the switch orders the writes.
    pub(super) fn is_sequenced(&self) -> bool {
        self.config.as_ref().is_some_and(|c| c.kind.is_sequenced())
    }

    /// The newest switch that the controller told of.
    pub(super) fn known_switch(&self) -> SwitchLife {
        self.config.as_ref().map_or(SwitchLife::default(), |c| SwitchLife {
            id: c.switch_id,
            incarnation: c.switch_incarnation,
            addr: c.switch,
        })
    }

    /// What stands for a life of this group in packets that carry no vector. Views of another group may have
    /// the same numbers.
    pub(super) fn tag_of(&self, life: Life) -> u32 {
        life.tag() ^ (self.id ^ (self.id >> 32)) as u32
    }
}

/// Any two sets of so many of these share one.
pub(super) fn quorum_of(voters: u64) -> usize {
    voters.count_ones() as usize / 2 + 1
}

fn id_of(members: &[Member]) -> u64 {
    let mut bytes = Vec::with_capacity(members.len() * 10);
    for member in members {
        bytes.extend_from_slice(&member.node.to_be_bytes());
        bytes.extend_from_slice(&member.incarnation.to_be_bytes());
    }
    hash::hash64(0, &bytes)
}
