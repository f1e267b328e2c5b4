//! A group of the rack: the part that all kinds of groups have in common, and the decisions that
//! each kind makes.
//!
//! A further kind is a file with its [`Rules`], and a line in [`Members`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use concord_core::{Duration, Guard, Guards, Instant, MS};
use concord_wire::control::{
    Assembly, Config, GroupKind, Heard, Held, Member, Program, Protocol, Standing, Voting,
};
use concord_wire::{Addr, GroupId};

use crate::chain::Chain;
use crate::compare::Comparisons;
use crate::hear::Hearing;
use crate::memory::Memory;
use crate::replicas::Replicas;
use crate::workers::Workers;
use crate::{GroupState, Problem, Storage};

/// The configuration of a group at the controller's start.
#[derive(Clone, Debug)]
pub struct GroupSetup {
    /// Its number, unique within the rack.
    pub id: GroupId,
    /// The kind of its members.
    pub members: Members,
}

/// The kind of a group's members.
#[derive(Clone, Debug)]
pub enum Members {
    /// Replicas of a store.
    Replicas(Replicas),
    /// Workers, which run tasks.
    Workers(Workers),
    /// Nodes of a shared memory.
    Memory(Memory),
    /// Switches that hold the data themselves.
    Switches(Chain),
}

impl GroupSetup {
    /// A group of replicas, the only one of its rack.
    #[must_use]
    pub fn replicas(replicas: Vec<u16>, protocol: Protocol, program: Program) -> GroupSetup {
        let members = Members::Replicas(Replicas { replicas, protocol, program });
        GroupSetup { id: GroupId::FIRST, members }
    }

    /// A group of workers with this number.
    #[must_use]
    pub fn workers(id: GroupId, program: Program) -> GroupSetup {
        GroupSetup { id, members: Members::Workers(Workers { program }) }
    }

    /// Nodes of a shared memory, as the group of that number.
    #[must_use]
    pub fn memory(id: GroupId, program: Program) -> GroupSetup {
        GroupSetup { id, members: Members::Memory(Memory { program }) }
    }

    /// A chain of switches, as the group of that number.
    #[must_use]
    pub fn chain(id: GroupId, chain: Chain) -> GroupSetup {
        GroupSetup { id, members: Members::Switches(chain) }
    }

    pub(crate) fn rules(&self) -> &dyn Rules {
        match &self.members {
            Members::Replicas(replicas) => replicas,
            Members::Workers(workers) => workers,
            Members::Memory(memory) => memory,
            Members::Switches(chain) => chain,
        }
    }
}

/// The decisions of a kind of group, all made from the view that it gets.
pub(crate) trait Rules {
    /// The kind in a configuration, and the switch program.
    fn template(&self) -> (GroupKind, Program);

    /// The members of the first configuration, or of the first one after the data was given up.
    ///
    /// # Errors
    /// The reason for which it waits; `None` if a group without members is normal.
    fn founders(&self, look: &Look<'_>) -> Result<Vec<Member>, Option<Problem>>;

    /// The places of the next configuration: the present members that stay, and new ones.
    fn survivors(&self, look: &Look<'_>, old: &Config) -> Places;

    /// The members that have all the data, if the group can continue with these members.
    ///
    /// # Errors
    /// The reason for which it cannot; `None` if it is not known yet.
    fn go_on(
        &self,
        look: &Look<'_>,
        old: &Config,
        members: &[Member],
    ) -> Result<Vec<u16>, Option<Problem>>;

    /// Whether it goes on with the rack's switch alone: a new one there is a new epoch here.
    fn needs_switch(&self) -> bool {
        true
    }

    /// Whether a group of these members can have that switch id.
    fn takes_number(&self, _switch_id: u32) -> bool {
        true
    }

    /// After which silence a member is removed, where that is not what the rack has.
    fn failure_ns(&self) -> Option<Duration> {
        None
    }

    /// Whether the controller configures the switch, and not a leader of the group.
    fn tells_switch(&self) -> bool;

    /// Whether its members hold data.
    fn holds_data(&self) -> bool;

    /// A problem of the group in its present state.
    fn problem(&self, look: &Look<'_>, config: &Config) -> Option<Problem>;

    /// The members with which to continue from `newest` in a rebuilt state, if those in `gone`
    /// never return.
    ///
    /// # Errors
    /// The reason for which that is not known yet.
    fn left(&self, look: &Look<'_>, newest: &Config, gone: &[u16]) -> Result<Left, Problem>;
}

/// The time for which a node is heard at another address before its group is told: two processes of
/// one number would alternate.
const MOVED_NS: Duration = 250 * MS;

/// The time after which two members that are heard, and do not hear each other, count as cut off
/// from each other.
pub(crate) const fn cut_ns(failure_ns: Duration) -> Duration {
    failure_ns / 3
}

/// The places in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    pub members: Vec<Member>,
    pub joining: Vec<Member>,
}

/// The members with which a group continues in a rebuilt state.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub members: Vec<Member>,
    pub caught_up: Vec<u16>,
    /// The position of the best member, if none has all the data.
    pub lost_behind: Option<Held>,
}

/// A node, as it was last heard.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub member: Member,
    /// Its clock when it sent the keepalive.
    pub sent_at: u64,
    /// Its rack; 0 if it has none yet.
    pub rack: u64,
    pub epoch: u32,
    pub standing: Standing,
    pub held: Held,
    /// Whether this process has reported that its disk has everything that it ever had.
    pub was_kept: bool,
    /// Its data directory, if it has one.
    pub storage: Option<Storage>,
    /// Raft: the voters according to its log, if it has one.
    pub voting: Option<Voting>,
    /// Members that it does not hear, with the time since which it has continuously reported so.
    pub unheard: Vec<(u16, Instant)>,
    pub heard_at: Instant,
    /// The time since which it has been heard continuously, in its present epoch.
    pub steady_since: Instant,
}

impl Node {
    /// The origin that it has, if it waits for a rack to begin with that.
    pub(crate) fn origin(&self) -> Option<u64> {
        if let Standing::Founding { origin, .. } = self.standing { Some(origin) } else { None }
    }

    /// Whether it is in no epoch, and its disk has everything that it ever had.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.standing, Standing::Returning { intact: true } | Standing::Founding { .. })
    }

    /// Whether it runs on the directory that `storages` has for its node.
    pub(crate) fn is_on(&self, storages: &[Storage]) -> bool {
        let is_own = |s: &Storage| s.node == self.member.node;
        let known = storages.iter().find(|s| is_own(s));
        known.zip(self.storage).is_some_and(|(known, own)| known.id == own.id)
    }
}

/// The positions that nodes have reported as durable: the highest that any process of a node
/// reported for its directory. This is in the controller's memory alone; if the controller restarts
/// as well, [`Guard::ColdStart`] makes the group wait for all members, whose logs are compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Durable {
    known: BTreeMap<u16, (u64, Held)>,
    /// Whether positions are compared alone, without epochs: in a group that chooses its leaders by
    /// itself, the committed position counts.
    by_position: bool,
    /// By node: the incarnation that was last reported to the operator.
    told: BTreeMap<u16, u64>,
}

impl Durable {
    /// Takes a node's report. A node without data reports nothing about an earlier process.
    pub(crate) fn hear(&mut self, node: &Node) {
        let Some(storage) = node.storage.filter(|_| node.held.epoch > 0) else { return };
        let held = self.comparable(node.held);
        let known = self.known.entry(node.member.node).or_insert((storage.id, held));
        if known.0 == storage.id {
            known.1 = known.1.max(held);
        } else {
            *known = (storage.id, held);
        }
    }

    fn comparable(&self, held: Held) -> Held {
        if self.by_position { Held { epoch: 0, ..held } } else { held }
    }

    /// The highest position that was reported for a node's disk.
    pub(crate) fn of(&self, node: u16) -> Option<Held> {
        self.known.get(&node).map(|(_, held)| *held)
    }

    /// Whether it was not reported yet that this process of a node has less.
    pub(crate) fn is_news(&mut self, node: u16, incarnation: u64) -> bool {
        self.told.insert(node, incarnation) != Some(incarnation)
    }

    /// Whether a node has everything that was reported for its disk: a later epoch, or a higher
    /// position in one epoch, includes all earlier ones.
    fn is_there(&self, node: &Node) -> bool {
        let known = self.known.get(&node.member.node);
        let known = known.filter(|(id, _)| node.storage.is_some_and(|own| own.id == *id));
        known.is_none_or(|(_, known)| self.comparable(node.held) >= *known)
    }
}

/// The controller's knowledge of a group, beside the persisted state.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub setup: GroupSetup,
    /// Whether it begins anew with the nodes that register, and the data of earlier members is
    /// given up.
    pub is_fresh: bool,
    /// Every node of the group that was heard.
    pub nodes: BTreeMap<u16, Node>,
    /// The highest numbers that any node reported, of any rack.
    pub highest: Heard,
    /// Numbers that a node of this rack has heard of and that exceed the state's, if any.
    pub ahead: Option<Heard>,
    /// Whether the configuration in force is known to be the newest: this controller made it, or
    /// heard all its members at once.
    pub is_confirmed: bool,
    /// The positions that nodes have reported as durable, and their directories.
    pub durable: Durable,
    /// The time at which the first member was heard again after all had been silent.
    pub back_since: Instant,
    /// While the state is rebuilt: a configuration of several packets, in assembly.
    pub assembly: Assembly,
    /// The comparison of the replicas' states.
    pub comparisons: Comparisons,
}

impl Group {
    pub(crate) fn new(setup: GroupSetup, is_fresh: bool) -> Group {
        let (nodes, highest) = (BTreeMap::new(), Heard::default());
        let (back_since, assembly) = (Instant(0), Assembly::new(1));
        let by_position = setup.rules().template().0.is_quorum();
        let durable = Durable { by_position, ..Durable::default() };
        let (ahead, is_confirmed) = (None, false);
        let comparisons = Comparisons::default();
        #[rustfmt::skip]
        let group = Group { setup, is_fresh, nodes, highest, ahead, is_confirmed, durable, back_since, assembly, comparisons };
        group
    }

    pub(crate) fn id(&self) -> GroupId {
        self.setup.id
    }

    /// After which silence its members are removed, in ns.
    pub(crate) fn failure_ns(&self, of_rack_ns: Duration) -> Duration {
        self.setup.rules().failure_ns().unwrap_or(of_rack_ns)
    }

    /// Whether to send a node the group's configuration: a node that waits to found a rack has a
    /// place only in the one that began with its directory.
    pub(crate) fn is_told(&self, known: Option<&GroupState>, node: &Node) -> bool {
        node.origin().is_none() || known.is_some_and(|group| node.is_on(&group.storages))
    }

    /// The data directories of the members and joining nodes of `config`: as reported, or as in the
    /// configuration `before`.
    pub(crate) fn storages(&self, before: Option<&GroupState>, config: &Config) -> Vec<Storage> {
        let own = |m: &Member| {
            let said = self.nodes.get(&m.node).filter(|n| n.member == *m).and_then(|n| n.storage);
            let stays =
                |b: &&GroupState| b.config.members.iter().chain(&b.config.joining).any(|p| p == m);
            let known = before.filter(stays).map_or(&[][..], |b| &b.storages);
            said.or_else(|| known.iter().find(|s| s.node == m.node).copied())
        };
        config.members.iter().chain(&config.joining).filter_map(own).collect()
    }
}

/// The reason for which a node loses its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Silent,
    Restarted,
    Leaving,
    /// The node and another member do not hear each other.
    Cut,
}

/// The reason for which the data of a restarted replica does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistrust {
    /// It has another directory than before: a new one, since the old one was lost or damaged.
    OtherDirectory,
    /// An older directory was put back in the place of its last one.
    OlderDirectory,
    /// It reports that something is missing.
    Incomplete,
}

impl fmt::Display for Mistrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mistrust::OtherDirectory => "another data directory than it had",
            Mistrust::OlderDirectory => "an older data directory than it had: was it put back?",
            Mistrust::Incomplete => "a data directory that lacks something",
        })
    }
}

/// The controller's knowledge of a group, as its kind gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    pub now: Instant,
    pub nodes: &'a BTreeMap<u16, Node>,
    /// The epoch of the state.
    pub epoch: u32,
    /// The members that have all the data, according to the state.
    pub caught_up: &'a [u16],
    /// The members' data directories, according to the state.
    pub storages: &'a [Storage],
    pub durable: &'a Durable,
    pub hearing: &'a Hearing,
    /// Whether the state is known to be the newest.
    pub is_confirmed: bool,
    /// The time at which the first member was heard again after all had been silent.
    pub back_since: Instant,
    pub failure_ns: Duration,
    pub guards: Guards,
}

impl Look<'_> {
    /// The members with which a group continues in a rebuilt state whose nodes register by
    /// themselves: those that are heard, but for those in `gone`.
    pub(crate) fn left_of_heard(&self, newest: &Config, gone: &[u16]) -> Left {
        let stays = |m: &&Member| {
            let own = self.nodes.get(&m.node).filter(|n| self.is_heard(n));
            !gone.contains(&m.node) && own.is_some_and(|n| n.member == **m)
        };
        let members = newest.members.iter().filter(stays).copied().collect();
        Left { members, caught_up: Vec::new(), lost_behind: None }
    }

    /// The reason for which a node loses its place in that epoch, if it does.
    pub(crate) fn gone(&self, epoch: u32, member: &Member) -> Option<Gone> {
        let known = self.nodes.get(&member.node);
        let heard_at = known.map(|n| n.heard_at);
        // Nodes that lost power together return together, or nearly so.
        let back_since = if self.guards.on(Guard::Deaf) { self.back_since } else { Instant(0) };
        let silent_since = self.hearing.silent_since(heard_at, self.guards).max(back_since);
        let is_other_incarnation =
            |n: &Node| n.member.incarnation != member.incarnation && n.epoch == epoch;
        if known.is_some_and(is_other_incarnation) && self.guards.on(Guard::Incarnation) {
            Some(Gone::Restarted)
        } else if known.is_some_and(|n| n.standing == Standing::Leaving && n.epoch == epoch) {
            Some(Gone::Leaving)
        } else if self.hearing.heard_until(self.now, self.guards).since(silent_since)
            > self.failure_ns
        {
            Some(Gone::Silent)
        } else {
            None
        }
    }

    /// The new incarnation of a member that restarted with everything on its disk, if that includes
    /// everything that was ever committed: it is not a stranger (trap T4). Every committed record
    /// is on the disk of every member, so this holds for a member that was caught up before, or in
    /// this epoch.
    pub(crate) fn returned(&self, old: &Config, member: &Member) -> Option<Member> {
        let has_heard = self.nodes.get(&member.node).is_some_and(|n| n.epoch == old.epoch);
        self.came_back(old, member).filter(|_| has_heard)
    }

    /// The same for a member that may not have heard of that epoch, if it is the state's.
    pub(crate) fn came_back(&self, old: &Config, member: &Member) -> Option<Member> {
        let node = self.nodes.get(&member.node).filter(|n| self.is_heard(n))?;
        let is_intact = matches!(node.standing, Standing::Returning { intact: true })
            || node.origin().is_some();
        let was_caught_up = self.caught_up.contains(&member.node) || node.held.epoch == old.epoch;
        let is_back = node.member.incarnation != member.incarnation
            && old.epoch == self.epoch
            && (is_intact || !self.guards.on(Guard::Intact))
            && self.has_directory(node)
            && self.has_durable(node)
            && was_caught_up;
        is_back.then_some(node.member)
    }

    /// Whether a node was restarted on its directory.
    pub(crate) fn has_directory(&self, node: &Node) -> bool {
        let known = self.storages.iter().find(|s| s.node == node.member.node);
        let Some((own, known)) = node.storage.zip(known) else { return false };
        let is_same = known.id == own.id || !self.guards.on(Guard::SameStorage);
        let is_newer = own.run > known.run || !self.guards.on(Guard::NewerRun);
        is_same && is_newer
    }

    /// Whether a restarted node has everything that was reported for its disk.
    pub(crate) fn has_durable(&self, node: &Node) -> bool {
        self.durable.is_there(node) || !self.guards.on(Guard::HeardDurable)
    }

    /// A member of `config` that was restarted with an older directory than it had, if there is
    /// one.
    pub(crate) fn put_back(&self, config: &Config) -> Option<u16> {
        let is_older = |m: &&Member| self.mistrust(m) == Some(Mistrust::OlderDirectory);
        config.members.iter().find(is_older).map(|m| m.node)
    }

    /// Whether a member is heard and would know of a later epoch if it had been in one: it is the
    /// same process, or has its directory.
    pub(crate) fn attests(&self, member: &Member) -> bool {
        let node = self.nodes.get(&member.node).filter(|n| self.is_heard(n));
        node.is_some_and(|n| n.member == *member || (self.has_directory(n) && self.has_durable(n)))
    }

    /// The reason for which a member that was restarted with a data directory is still a stranger,
    /// if there is one.
    pub(crate) fn mistrust(&self, member: &Member) -> Option<Mistrust> {
        let node = self.nodes.get(&member.node)?;
        let known = self.storages.iter().find(|s| s.node == member.node)?;
        let own = node.storage.filter(|_| node.member.incarnation != member.incarnation)?;
        if own.id != known.id {
            Some(Mistrust::OtherDirectory)
        } else if own.run <= known.run || (node.is_kept() && !self.has_durable(node)) {
            Some(Mistrust::OlderDirectory)
        } else {
            matches!(node.standing, Standing::Returning { intact: false })
                .then_some(Mistrust::Incomplete)
        }
    }

    /// The address of a member whose place does not depend on its incarnation: another process of
    /// its node, heard continuously for some time, may have another one.
    pub(crate) fn listens(&self, member: &Member) -> Addr {
        let moved = self.nodes.get(&member.node).filter(|n| {
            self.is_heard(n)
                && n.standing != Standing::Leaving
                && n.member.incarnation != member.incarnation
                && self.now.since(n.steady_since) >= MOVED_NS
        });
        moved.map_or(member.addr, |n| n.member.addr)
    }

    /// Whether a node was heard recently.
    pub(crate) fn is_heard(&self, node: &Node) -> bool {
        self.now.since(node.heard_at) <= self.failure_ns
    }

    /// Which members and joining nodes keep their places. A silent one loses it once all that are
    /// not gone were heard within half of that silence: members that lose power together fall
    /// silent one after the other, and the last one would be left in an epoch of its own, dead, so
    /// that only its data counted.
    pub(crate) fn keep_their_places<'l>(&'l self, config: &'l Config) -> impl Fn(&Member) -> bool {
        let is_alive = |m: &Member| {
            let node = self.nodes.get(&m.node);
            node.is_some_and(|n| self.now.since(n.heard_at) <= self.failure_ns / 2)
        };
        let mut left = config.members.iter().filter(|m| self.gone(config.epoch, m).is_none());
        let are_alive = left.all(is_alive);
        move |m| match self.gone(config.epoch, m) {
            None => true,
            Some(Gone::Silent) => !are_alive,
            Some(Gone::Restarted | Gone::Leaving | Gone::Cut) => false,
        }
    }

    /// Whether every member has opened that configuration.
    pub(crate) fn is_open_everywhere(&self, config: &Config) -> bool {
        let open = |m: &Member| {
            let node = self.nodes.get(&m.node);
            node.is_some_and(|n| {
                matches!(n.standing, Standing::Open { .. }) && n.epoch == config.epoch
            })
        };
        config.members.iter().all(open)
    }
}
