//! A replica's knowledge of its group: the members, the leader of each view, the quorum, and the
//! switch that the controller named.

use concord_core::{NodeId, ViewNumber, hash};
use concord_wire::Addr;
use concord_wire::control::{Config, Member, Program, Protocol};
use concord_wire::vr::{CrashVectorEntry, SwitchIncarnation};

use alloc::vec::Vec;

use crate::quorum::raft::voters::Voters;

/// The largest number of members; a replica does not join a larger group.
pub(super) const MEMBERS_MAX: usize = 64;

/// The newest configuration, and this replica's place in it.
#[derive(Clone, Debug)]
pub(super) struct Group {
    node: NodeId,
    pub(super) config: Option<Config>,
    /// The group's name: a hash of its founders and their incarnations.
    id: u64,
    /// This replica's index among the members.
    me: usize,
    /// Raft: the latest term with a known leader, and the leader's index.
    elected: Option<(ViewNumber, usize)>,
    /// Raft: the members that vote, according to the log.
    pub(super) voters: Voters,
}

impl Group {
    /// No group.
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

    /// Takes a newer configuration of the same group. Returns one of another group as the error.
    pub(super) fn renew(&mut self, config: Config) -> Result<(), Config> {
        if self.config.is_none() || id_of(&config.members) != self.id {
            return Err(config);
        }
        self.config = Some(config);
        Ok(())
    }

    /// Forgets the group.
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

    /// This replica's index among the members.
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

    /// The members that vote, as bits: all, unless Raft's log says otherwise.
    pub(super) fn voters(&self) -> u64 {
        self.voters.newest().map_or(self.all(), |newest| newest.voters)
    }

    /// All members, as bits.
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

    /// This replica's share of a quorum: 1, or 0 if it does not vote.
    pub(super) fn own_vote(&self) -> usize {
        usize::from(self.is_voter(self.me))
    }

    /// Whether no other member votes.
    pub(super) fn is_alone(&self) -> bool {
        self.voters() & !(1 << self.me) == 0
    }

    /// The size of a quorum: any two sets of so many voters have one in common.
    pub(super) fn quorum(&self) -> usize {
        quorum_of(self.voters())
    }

    /// The leader of `view`: the members take turns (VRR §4.2). In Raft the elected member, if it
    /// is known.
    pub(super) fn leader_of(&self, view: ViewNumber) -> Option<usize> {
        if self.elects() {
            return self.elected.filter(|(term, _)| *term == view).map(|(_, leader)| leader);
        }
        Some(self.operation_of(view))
    }

    /// The member whose turn `view` is; in Raft only for the first leader of a new group.
    pub(super) fn operation_of(&self, view: ViewNumber) -> usize {
        (view.0.max(1) as usize - 1) % self.members().len().max(1)
    }

    /// Raft: notes that `leader` leads `term`.
    pub(super) fn elect(&mut self, term: ViewNumber, leader: usize) {
        self.elected = Some((term, leader));
    }

    /// Whether the members elect a leader for each term (Raft) instead of taking turns.
    pub(super) fn elects(&self) -> bool {
        self.protocol().elects()
    }

    /// Whether this replica leads `view`, if that begins.
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

    /// The newest switch that the controller named.
    pub(super) fn known_switch(&self) -> SwitchIncarnation {
        self.config.as_ref().map_or(SwitchIncarnation::default(), |c| SwitchIncarnation {
            id: c.switch_id,
            incarnation: c.switch_incarnation,
            addr: c.switch,
        })
    }

    /// A tag for an incarnation in this group, for packets without a crash vector: views of another
    /// group may have the same numbers.
    pub(super) fn tag_of(&self, entry: CrashVectorEntry) -> u32 {
        entry.tag() ^ (self.id ^ (self.id >> 32)) as u32
    }
}

/// The size of a quorum of these voters: any two sets of so many have one in common.
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

#[cfg(test)]
mod tests {
    use concord_core::Position;
    use concord_wire::GroupId;

    use super::*;
    use crate::quorum::raft::voters::Configuration;

    fn member(index: usize) -> Member {
        let node = index as u16 + 1;
        Member { node, incarnation: 100, addr: Addr { ip: 1, port: node } }
    }

    fn config(protocol: Protocol, count: usize) -> Config {
        Config {
            group: GroupId(0),
            epoch: 5,
            rack: 1,
            switch_id: 3,
            switch: Addr { ip: 9, port: 1 },
            switch_incarnation: 4,
            kind: protocol.into(),
            program: Program::of(protocol, true),
            members: (0..count).map(member).collect(),
            joining: Vec::new(),
        }
    }

    /// A group of so many, with this replica as its second member, if there are two.
    fn group(protocol: Protocol, count: usize) -> Group {
        let me = usize::from(count > 1);
        let mut group = Group::new(member(me));
        group.enter(config(protocol, count), me);
        group
    }

    /// The same, of which only these vote.
    fn raft_of(count: usize, voters: u64) -> Group {
        let mut raft = group(Protocol::Raft, count);
        let (position, term, group) = (Position(3), ViewNumber(2), raft.id());
        raft.voters.note(Configuration { position, term, group, voters });
        raft
    }

    /// A group has the name of its founders and takes no configuration of others.
    #[test]
    fn group_is_named_by_its_founders() {
        let mut three = group(Protocol::Vr, 3);
        let id = three.id();
        assert_ne!(id, group(Protocol::Vr, 2).id());
        let newer = Config { epoch: 6, ..config(Protocol::Vr, 3) };
        assert_eq!(three.renew(newer.clone()), Ok(()));
        assert_eq!((three.epoch(), three.id()), (6, id));
        let mut reborn = Config { epoch: 7, ..newer.clone() };
        reborn.members[0].incarnation += 1;
        assert_eq!(three.renew(reborn.clone()), Err(reborn), "another life of a founder");
        assert_eq!(three.epoch(), 6);
        three.forget();
        assert_eq!(three.renew(newer.clone()), Err(newer), "it was given up");
        assert!(!three.is_known() && three.epoch() == 0);
    }

    #[test]
    fn vrr_4_2_the_members_take_turns() {
        let three = group(Protocol::Vr, 3);
        let operations =
            |view| (three.operation_of(ViewNumber(view)), three.leader_of(ViewNumber(view)));
        assert_eq!(
            [0, 1, 2, 3, 4].map(operations),
            [0, 0, 1, 2, 0].map(|operation| (operation, Some(operation)))
        );
        assert!(three.is_mine(ViewNumber(2)) && !three.is_mine(ViewNumber(3)));
        assert_eq!(three.leader_addr(ViewNumber(3)), Some(member(2).addr));
        let none = Group::new(member(1));
        assert_eq!((none.operation_of(ViewNumber(4)), none.leader_addr(ViewNumber(4))), (0, None));
    }

    #[test]
    fn raft_5_2_who_was_elected_leads_its_term_and_no_other_one() {
        let mut raft = group(Protocol::Raft, 3);
        assert!(raft.elects() && !group(Protocol::Vr, 3).elects());
        assert_eq!(raft.leader_of(ViewNumber(4)), None);
        raft.elect(ViewNumber(4), 1);
        assert_eq!([3, 4, 5].map(|term| raft.leader_of(ViewNumber(term))), [None, Some(1), None]);
        assert!(raft.is_mine(ViewNumber(4)) && !raft.is_mine(ViewNumber(5)));
        raft.enter(config(Protocol::Raft, 3), 1);
        assert_eq!(raft.leader_of(ViewNumber(4)), None, "of the group before");
    }

    #[test]
    fn all_vote_unless_the_log_says_otherwise() {
        for (count, all, quorum) in [(1, 1, 1), (2, 3, 2), (3, 7, 2), (4, 15, 3), (5, 31, 3)] {
            let g = group(Protocol::Vr, count);
            assert_eq!((g.all(), g.voters(), g.voter_count()), (all, all, count));
            assert_eq!((g.quorum(), g.own_vote(), g.is_alone()), (quorum, 1, count == 1));
        }
        assert_eq!(group(Protocol::Vr, MEMBERS_MAX - 1).all(), u64::MAX >> 1);
        assert_eq!(group(Protocol::Vr, MEMBERS_MAX).all(), u64::MAX);
        let raft = raft_of(5, 0b10101);
        assert_eq!((raft.all(), raft.voters(), raft.voter_count()), (0b11111, 0b10101, 3));
        assert_eq!((raft.quorum(), raft.own_vote()), (2, 0));
        assert!(raft.is_voter(2) && !raft.is_voter(3));
        assert!(raft.has_voter(NodeId(3)) && !raft.has_voter(NodeId(4)));
        assert!(!raft.has_voter(NodeId(9)), "no member");
        assert!(raft_of(3, 0b010).is_alone() && !raft_of(3, 0b001).is_alone());
    }

    #[test]
    fn the_others_are_all_but_this_replica() {
        let three = group(Protocol::Vr, 3);
        assert!(three.others().map(|(index, m)| (index, m.node)).eq([(0, 1), (2, 3)]));
        assert_eq!((three.me(), three.node(), three.node_of(2)), (1, NodeId(2), NodeId(3)));
        assert_eq!(three.index_of(NodeId(3)), Some(2));
        assert_eq!(three.index_of(NodeId(4)), None);
    }

    #[test]
    fn the_program_says_who_may_read_and_the_protocol_who_orders() {
        let running = |program| {
            let mut group = group(Protocol::Raft, 3);
            assert_eq!(group.renew(Config { program, ..config(Protocol::Raft, 3) }), Ok(()));
            (group.is_accelerated(), group.checks_replies(), group.has_readers())
        };
        assert_eq!(running(Program::Forward), (false, false, false));
        assert_eq!(running(Program::Harmonia), (true, false, true));
        assert_eq!(running(Program::Flair), (false, true, true));
        assert!(group(Protocol::NoPaxos, 3).is_sequenced());
        assert!(!group(Protocol::Raft, 3).is_sequenced());
        assert!(!Group::new(member(0)).is_sequenced());
    }

    #[test]
    fn the_switch_is_that_of_the_newest_configuration() {
        let told = SwitchIncarnation { id: 3, incarnation: 4, addr: Addr { ip: 9, port: 1 } };
        assert_eq!(group(Protocol::Vr, 3).known_switch(), told);
        assert_eq!(Group::new(member(0)).known_switch(), SwitchIncarnation::default());
    }

    #[test]
    fn a_life_s_tag_tells_lives_and_groups_apart() {
        let crash_vector = [0, 1].map(|count| CrashVectorEntry { count, incarnation: 7 });
        let tag = |id, entry: CrashVectorEntry| Group { id, ..Group::new(member(0)) }.tag_of(entry);
        for entry in crash_vector {
            assert_eq!(tag(0, entry), entry.tag());
            assert_eq!(
                tag(3 << 32 | 1, entry),
                entry.tag() ^ 2,
                "of both halves of the group's name"
            );
        }
        assert_ne!(tag(5, crash_vector[0]), tag(5, crash_vector[1]));
    }
}
