//! The part of a replica in its group: who orders, passes on, commits and reads, by the configuration in
//! force.

use concord_core::{Epoch, NodeId};
use concord_wire::Addr;
use concord_wire::control::{Config, Heard, Member, Protocol};

/// The configuration in force, and the own place in it.
#[derive(Clone, Debug)]
pub(super) struct Role {
    me: Member,
    /// Never goes back to a lower epoch.
    pub(super) config: Option<Config>,
}

impl Role {
    /// In no group yet.
    pub(super) fn new(me: Member) -> Role {
        Role { me, config: None }
    }

    pub(super) fn node(&self) -> NodeId {
        NodeId(self.me.node)
    }

    /// The epoch in force; 0 if none is.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.config.as_ref().map_or(0, |c| c.epoch))
    }

    /// Whether this replica is in `epoch`.
    pub(super) fn is_epoch(&self, epoch: Epoch) -> bool {
        self.config.as_ref().is_some_and(|c| c.epoch == epoch.0)
    }

    pub(super) fn is_protocol(&self, protocol: Protocol) -> bool {
        self.config.as_ref().is_some_and(|c| c.protocol() == Some(protocol))
    }

    pub(super) fn is_accelerated(&self) -> bool {
        self.config.as_ref().is_some_and(|c| c.program.has_dirty_set())
    }

    /// Whether nobody else is a member.
    pub(super) fn is_alone(&self) -> bool {
        self.config.as_ref().is_some_and(|c| c.members.len() == 1)
    }

    /// Who orders writes: the head, the primary.
    pub(super) fn head(&self) -> Option<&Member> {
        self.config.as_ref().and_then(Config::head)
    }

    /// Who commits and replies to writes, answers the reads of the normal protocol, and feeds those who
    /// join: the tail, the primary.
    pub(super) fn reader(&self) -> Option<&Member> {
        self.config.as_ref().and_then(Config::reader)
    }

    /// Whether this replica orders writes.
    pub(super) fn is_head(&self) -> bool {
        self.head().is_some_and(|m| m.node == self.me.node)
    }

    /// Whether this replica commits, replies and reads.
    pub(super) fn is_reader(&self) -> bool {
        self.reader().is_some_and(|m| m.node == self.me.node)
    }

    /// The active switch; 0 if there is none.
    pub(super) fn switch_id(&self) -> u32 {
        self.config.as_ref().map_or(0, |c| c.switch_id)
    }

    pub(super) fn switch_addr(&self) -> Addr {
        self.config.as_ref().map_or(Addr::default(), |c| c.switch)
    }

    pub(super) fn members(&self) -> &[Member] {
        self.config.as_ref().map_or(&[], |c| &c.members)
    }

    pub(super) fn is_member(&self, node: NodeId) -> bool {
        self.member_of(node).is_some()
    }

    pub(super) fn member_of(&self, node: NodeId) -> Option<Member> {
        self.members().iter().find(|m| m.node == node.0).copied()
    }

    pub(super) fn member_addr(&self, node: NodeId) -> Option<Addr> {
        self.member_of(node).map(|m| m.addr)
    }

    pub(super) fn joining_addr(&self, node: NodeId) -> Option<Addr> {
        let joining = &self.config.as_ref()?.joining;
        joining.iter().find(|m| m.node == node.0).map(|m| m.addr)
    }

    /// The other members.
    pub(super) fn others(&self) -> impl Iterator<Item = &Member> {
        self.members().iter().filter(|m| m.node != self.me.node)
    }

    /// Whether the configuration has a place for this very process, as a member or to become one.
    pub(super) fn has_place(&self) -> bool {
        let is_me = |m: &Member| (m.node, m.incarnation) == (self.me.node, self.me.incarnation);
        self.config.iter().any(|c| c.members.iter().chain(&c.joining).any(is_me))
    }

    fn index(&self) -> Option<usize> {
        self.members().iter().position(|m| m.node == self.me.node)
    }

    /// From whom this replica gets its records.
    pub(super) fn predecessor(&self) -> Option<NodeId> {
        let config = self.config.as_ref()?;
        let index = self.index()?.checked_sub(1)?;
        let from = match config.protocol()? {
            Protocol::Chain | Protocol::Craq => index,
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => 0,
        };
        Some(NodeId(config.members[from].node))
    }

    /// How many members get their records from this one.
    pub(super) fn successors(&self) -> usize {
        let Some((config, index)) = self.config.as_ref().zip(self.index()) else { return 0 };
        let Some(protocol) = config.protocol() else { return 0 };
        match protocol {
            Protocol::Chain | Protocol::Craq => usize::from(index + 1 < config.members.len()),
            Protocol::PrimaryBackup if index == 0 => config.members.len() - 1,
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => 0,
        }
    }

    /// Whether `node` is one of them.
    pub(super) fn is_successor(&self, node: NodeId) -> bool {
        let Some((config, index)) = self.config.as_ref().zip(self.index()) else { return false };
        let Some(protocol) = config.protocol() else { return false };
        match protocol {
            Protocol::Chain | Protocol::Craq => {
                config.members.get(index + 1).is_some_and(|m| m.node == node.0)
            }
            Protocol::PrimaryBackup => index == 0,
            Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => false,
        }
    }

    /// What the controller is told that this replica has heard of.
    pub(super) fn heard(&self) -> Heard {
        self.config.as_ref().map_or_else(Heard::default, |c| Heard {
            rack: c.rack,
            epoch: c.epoch,
            switch_id: c.switch_id,
        })
    }

    /// What a member is called.
    pub(super) fn name(&self) -> &'static str {
        let Some(protocol) = self.config.as_ref().and_then(Config::protocol) else { return "none" };
        match (self.is_alone(), protocol, self.is_head(), self.is_reader()) {
            (true, ..) => "alone",
            (false, Protocol::PrimaryBackup, true, _) => "primary",
            (false, Protocol::PrimaryBackup, false, _) => "backup",
            (false, Protocol::Vr | Protocol::NoPaxos | Protocol::Raft, ..) => "none",
            (false, Protocol::Chain | Protocol::Craq, true, _) => "head",
            (false, Protocol::Chain | Protocol::Craq, false, true) => "tail",
            (false, Protocol::Chain | Protocol::Craq, false, false) => "middle",
        }
    }
}
