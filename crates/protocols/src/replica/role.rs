//! The role of a replica in its group: which member orders, passes on, commits and reads, according
//! to the configuration in force.

use concord_core::{Epoch, NodeId};
use concord_wire::Addr;
use concord_wire::control::{Config, Heard, Member, Protocol};

/// The configuration in force, and this replica's place in it.
#[derive(Clone, Debug)]
pub(super) struct Role {
    me: Member,
    /// The configuration. Its epoch never decreases.
    pub(super) config: Option<Config>,
}

impl Role {
    /// A replica in no group yet.
    pub(super) fn new(me: Member) -> Role {
        Role { me, config: None }
    }

    pub(super) fn node(&self) -> NodeId {
        NodeId(self.me.node)
    }

    /// The epoch in force, or 0 if there is none.
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

    /// Whether there is no other member.
    pub(super) fn is_alone(&self) -> bool {
        self.config.as_ref().is_some_and(|c| c.members.len() == 1)
    }

    /// The member that orders writes: the head, the primary.
    pub(super) fn head(&self) -> Option<&Member> {
        self.config.as_ref().and_then(Config::head)
    }

    /// The member that commits and replies to writes, answers the reads of the normal protocol, and
    /// is the donor of joining replicas: the tail, the primary.
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

    /// The active switch, or 0 if there is none.
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

    /// Whether the configuration has a place for this very process, as a member or a joining
    /// replica.
    pub(super) fn has_place(&self) -> bool {
        let is_me = |m: &Member| (m.node, m.incarnation) == (self.me.node, self.me.incarnation);
        self.config.iter().any(|c| c.members.iter().chain(&c.joining).any(is_me))
    }

    fn index(&self) -> Option<usize> {
        self.members().iter().position(|m| m.node == self.me.node)
    }

    /// The member from which this replica receives its records.
    pub(super) fn predecessor(&self) -> Option<NodeId> {
        let config = self.config.as_ref()?;
        let index = self.index()?.checked_sub(1)?;
        let from = match config.protocol()? {
            Protocol::Chain | Protocol::Craq => index,
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => 0,
        };
        Some(NodeId(config.members[from].node))
    }

    /// The number of members that receive their records from this one.
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

    /// The newest numbers that this replica has heard of, as reported to the controller.
    pub(super) fn heard(&self) -> Heard {
        self.config.as_ref().map_or_else(Heard::default, |c| Heard {
            rack: c.rack,
            epoch: c.epoch,
            switch_id: c.switch_id,
        })
    }

    /// The name of this member's role.
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

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use concord_wire::GroupId;
    use concord_wire::control::{GroupKind, Program};

    use super::*;

    const SWITCH: Addr = Addr { ip: 9, port: 9 };

    fn member(node: u16) -> Member {
        Member { node, incarnation: 1, addr: Addr { ip: 1, port: node } }
    }

    /// Node `me` in epoch 4 of these members; node 9 joins.
    fn role(me: u16, kind: impl Into<GroupKind>, members: &[u16]) -> Role {
        let mut role = Role::new(member(me));
        role.config = Some(Config {
            group: GroupId(0),
            epoch: 4,
            rack: 5,
            switch_id: 6,
            switch_incarnation: 7,
            switch: SWITCH,
            kind: kind.into(),
            program: Program::Harmonia,
            members: members.iter().map(|node| member(*node)).collect(),
            joining: [member(9)].into(),
        });
        role
    }

    /// From whom it gets its records, how many get theirs from it, and which of 1 to 4.
    fn place(me: u16, kind: impl Into<GroupKind>) -> (Option<u16>, usize, Vec<u16>) {
        let role = role(me, kind, &[1, 2, 3]);
        let successors = (1..=4).filter(|node| role.is_successor(NodeId(*node))).collect();
        (role.predecessor().map(|node| node.0), role.successors(), successors)
    }

    #[test]
    fn records_go_along_a_chain_and_from_a_primary_to_all() {
        for chain in [Protocol::Chain, Protocol::Craq] {
            assert_eq!(place(1, chain), (None, 1, [2].into()));
            assert_eq!(place(2, chain), (Some(1), 1, [3].into()));
            assert_eq!(place(3, chain), (Some(2), 0, [].into()));
            assert_eq!(place(9, chain), (None, 0, [].into()), "no member");
        }
        let (from, count, successors) = place(1, Protocol::PrimaryBackup);
        assert_eq!((from, count), (None, 2));
        assert!(successors.starts_with(&[2, 3]) || successors.starts_with(&[1, 2, 3]));
        for backup in [2, 3] {
            assert_eq!(place(backup, Protocol::PrimaryBackup), (Some(1), 0, [].into()));
        }
        assert_eq!(place(1, Protocol::Vr), (None, 0, [].into()));
        assert_eq!(place(2, GroupKind::Workers), (None, 0, [].into()));
    }

    #[test]
    fn a_member_is_called_by_what_it_does() {
        let names = |protocol: Protocol| [1, 2, 3].map(|me| role(me, protocol, &[1, 2, 3]).name());
        assert_eq!(names(Protocol::Chain), ["head", "middle", "tail"]);
        assert_eq!(names(Protocol::Craq), ["head", "middle", "tail"]);
        assert_eq!(names(Protocol::PrimaryBackup), ["primary", "backup", "backup"]);
        assert_eq!(names(Protocol::Raft), ["none"; 3]);
        let alone = role(1, Protocol::Chain, &[1]);
        assert!(alone.is_alone() && alone.is_head() && alone.is_reader());
        assert_eq!((alone.name(), Role::new(member(1)).name()), ("alone", "none"));
    }

    #[test]
    fn the_head_orders_and_the_tail_of_a_chain_reads() {
        let does = |me, protocol: Protocol| {
            let role = role(me, protocol, &[1, 2, 3]);
            assert!(!role.is_alone());
            (role.is_head(), role.is_reader())
        };
        let chain = [1, 2, 3].map(|me| does(me, Protocol::Chain));
        assert_eq!(chain, [(true, false), (false, false), (false, true)]);
        let primary = [1, 2, 3].map(|me| does(me, Protocol::PrimaryBackup));
        assert_eq!(primary, [(true, true), (false, false), (false, false)]);
    }

    /// A place is of one life of a node as a member or to become one.
    #[test]
    fn place_belongs_to_one_incarnation() {
        assert!(role(2, Protocol::Chain, &[1, 2]).has_place());
        assert!(role(9, Protocol::Chain, &[1, 2]).has_place());
        assert!(!role(3, Protocol::Chain, &[1, 2]).has_place());
        let mut another = role(2, Protocol::Chain, &[1, 2]);
        another.me.incarnation = 2;
        assert!(!another.has_place());
        assert!(!Role::new(member(2)).has_place());
    }

    #[test]
    fn members_are_found_by_their_node_and_who_joins_is_none() {
        let role = role(2, Protocol::Chain, &[1, 2, 3]);
        let (own, joins) = (member(3).addr, member(9).addr);
        assert!(role.is_member(NodeId(3)) && !role.is_member(NodeId(9)));
        assert_eq!((role.member_addr(NodeId(3)), role.member_addr(NodeId(9))), (Some(own), None));
        assert_eq!(
            (role.joining_addr(NodeId(3)), role.joining_addr(NodeId(9))),
            (None, Some(joins))
        );
        assert_eq!(role.others().map(|m| m.node).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((role.members().len(), role.node()), (3, NodeId(2)));
    }

    /// What the configuration says holds and without one nothing does.
    #[test]
    fn role_without_a_configuration() {
        let mut own = role(2, Protocol::Chain, &[1, 2]);
        assert_eq!((own.epoch(), own.switch_id(), own.switch_addr()), (Epoch(4), 6, SWITCH));
        assert!(own.is_epoch(Epoch(4)) && !own.is_epoch(Epoch(3)));
        assert!(own.is_protocol(Protocol::Chain) && !own.is_protocol(Protocol::Craq));
        assert_eq!(own.heard(), Heard { rack: 5, epoch: 4, switch_id: 6 });
        assert!(own.is_accelerated());
        own.config.as_mut().unwrap().program = Program::Forward;
        assert!(!own.is_accelerated());
        let none = Role::new(member(2));
        assert_eq!((none.epoch(), none.switch_id()), (Epoch(0), 0));
        assert_eq!((none.switch_addr(), none.heard()), (Addr::default(), Heard::default()));
        assert!(!none.is_epoch(Epoch(0)) && !none.is_protocol(Protocol::Chain));
        assert!(!none.is_alone() && !none.is_head() && !none.is_reader() && !none.is_accelerated());
        assert!(!none.is_member(NodeId(2)) && !none.is_successor(NodeId(2)));
        assert_eq!((none.predecessor(), none.successors()), (None, 0));
    }
}
