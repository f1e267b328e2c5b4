//! A group of the rack: what all kinds of groups have in common, and what each kind decides itself.
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

use crate::hear::Hearing;
use crate::replicas::Replicas;
use crate::workers::Workers;
use crate::{GroupState, Problem, Storage};

/// What the controller is told of a group.
#[derive(Clone, Debug)]
pub struct GroupSetup {
    /// Its number, which no other group of the rack has.
    pub id: GroupId,
    /// What its members are.
    pub members: Members,
}

/// What the members of a group are.
#[derive(Clone, Debug)]
pub enum Members {
    /// Replicas of a store.
    Replicas(Replicas),
    /// Workers, who take tasks.
    Workers(Workers),
}

impl GroupSetup {
    /// Replicas that are the only group of their rack.
    #[must_use]
    pub fn replicas(replicas: Vec<u16>, protocol: Protocol, program: Program) -> GroupSetup {
        let members = Members::Replicas(Replicas { replicas, protocol, program });
        GroupSetup { id: GroupId::FIRST, members }
    }

    /// Workers, as the group of that number.
    #[must_use]
    pub fn workers(id: GroupId, program: Program) -> GroupSetup {
        GroupSetup { id, members: Members::Workers(Workers { program }) }
    }

    pub(crate) fn rules(&self) -> &dyn Rules {
        match &self.members {
            Members::Replicas(replicas) => replicas,
            Members::Workers(workers) => workers,
        }
    }
}

/// What a kind of group decides itself. All that it is asked is answered from what it is shown.
pub(crate) trait Rules {
    /// What a configuration says of its members, and what the switch runs for them.
    fn template(&self) -> (GroupKind, Program);

    /// The members of the first configuration, or of the first after what was before was given up.
    ///
    /// # Errors
    /// What it waits for; nothing, if a group without members is nothing to speak of.
    fn founders(&self, look: &Look<'_>) -> Result<Vec<Member>, Option<Problem>>;

    /// Who of the configuration in force keeps its place, and who comes.
    fn survivors(&self, look: &Look<'_>, old: &Config) -> Places;

    /// Whether the group can go on with these members, and which of them have all the data.
    ///
    /// # Errors
    /// Why not; nothing, if that is only not known yet.
    fn go_on(
        &self,
        look: &Look<'_>,
        old: &Config,
        members: &[Member],
    ) -> Result<Vec<u16>, Option<Problem>>;

    /// Whether the controller tells the switch: not where a leader of the group does.
    fn tells_switch(&self) -> bool;

    /// Whether its members hold data, which is lost with them.
    fn holds_data(&self) -> bool;

    /// What is to be said of the group as it is.
    fn problem(&self, look: &Look<'_>, config: &Config) -> Option<Problem>;

    /// With whom to go on from `newest` where the state is made anew, if those in `gone` never come
    /// back.
    ///
    /// # Errors
    /// Why that cannot be said yet.
    fn left(&self, look: &Look<'_>, newest: &Config, gone: &[u16]) -> Result<Left, Problem>;
}

/// How long a node is heard elsewhere before its group is told: two processes of one number take
/// turns.
const MOVED_NS: Duration = 250 * MS;

/// For how long two members that are heard do not hear each other before that is a cut.
pub(crate) const fn cut_ns(failure_ns: Duration) -> Duration {
    failure_ns / 3
}

/// Who has which place in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    pub members: Vec<Member>,
    pub joining: Vec<Member>,
}

/// With whom a group goes on whose state is made anew.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub members: Vec<Member>,
    pub caught_up: Vec<u16>,
    /// What the best of them has, if nobody has all the data.
    pub lost_behind: Option<Held>,
}

/// A node that was heard of.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub member: Member,
    /// Its clock when it said all this.
    pub sent_at: u64,
    /// The rack that it is of; 0 if of none yet.
    pub rack: u64,
    pub epoch: u32,
    pub standing: Standing,
    pub held: Held,
    /// This process has said that its disk has all that it ever had.
    pub was_kept: bool,
    /// Its data directory, if it has one.
    pub storage: Option<Storage>,
    /// Raft: who votes by its log, if it has one.
    pub voting: Option<Voting>,
    /// Members that it does not hear, and since when it says so without a break.
    pub unheard: Vec<(u16, Instant)>,
    pub heard_at: Instant,
    /// Since when it was heard without a break, in the epoch that it has heard of.
    pub steady_since: Instant,
}

impl Node {
    /// The state that it has for a rack to begin with, if it waits for one.
    pub(crate) fn origin(&self) -> Option<u64> {
        if let Standing::Founding { origin, .. } = self.standing { Some(origin) } else { None }
    }

    /// Whether it is in no epoch, and its disk has all that it ever had.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.standing, Standing::Returning { intact: true } | Standing::Founding { .. })
    }

    /// Whether it runs on the directory that a node of its number has by `storages`.
    pub(crate) fn is_on(&self, storages: &[Storage]) -> bool {
        let is_own = |s: &Storage| s.node == self.member.node;
        let known = storages.iter().find(|s| is_own(s));
        known.zip(self.storage).is_some_and(|(known, own)| known.id == own.id)
    }
}

/// A group as the controller knows it beside its state.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub setup: GroupSetup,
    /// It begins anew with whoever registers: the data of earlier members is given up.
    pub is_fresh: bool,
    /// Every node of it that was heard of.
    pub nodes: BTreeMap<u16, Node>,
    /// The highest numbers that anybody told of, of whichever rack.
    pub highest: Heard,
    /// Somebody of this rack has heard of that, and the state says less.
    pub ahead: Option<Heard>,
    /// This controller made the configuration in force, or was in contact with all its members at
    /// once: nobody has a later one.
    pub is_confirmed: bool,
    /// When the first of its members was heard again, after all of them had been silent.
    pub back_since: Instant,
    /// While the state is made anew: a configuration of several parts.
    pub assembly: Assembly,
}

impl Group {
    pub(crate) fn new(setup: GroupSetup, is_fresh: bool) -> Group {
        let (nodes, highest) = (BTreeMap::new(), Heard::default());
        let (back_since, assembly) = (Instant(0), Assembly::new(1));
        let (ahead, is_confirmed) = (None, false);
        Group { setup, is_fresh, nodes, highest, ahead, is_confirmed, back_since, assembly }
    }

    pub(crate) fn id(&self) -> GroupId {
        self.setup.id
    }

    /// Whether a node is to hear of the group's configuration: one that waits for a rack to begin
    /// has its place in the one that began with its directory, and in no other.
    pub(crate) fn is_told(&self, known: Option<&GroupState>, node: &Node) -> bool {
        node.origin().is_none() || known.is_some_and(|group| node.is_on(&group.storages))
    }

    /// The data directories of those who have a place in `config`: as they said, or as they had
    /// them in the configuration `before`.
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

/// Why a node loses its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Silent,
    Restarted,
    Leaving,
    /// It and another member do not hear each other.
    Cut,
}

/// Why the data of a replica that was started again does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistrust {
    /// It has another directory than before: a new one, since what it had is lost or damaged.
    OtherDirectory,
    /// An older one was put back in the place of the one that it had.
    OlderDirectory,
    /// It says that something is missing.
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

/// What a kind is shown of its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    pub now: Instant,
    pub nodes: &'a BTreeMap<u16, Node>,
    /// The epoch of the state.
    pub epoch: u32,
    /// Who has all the data, by the state.
    pub caught_up: &'a [u16],
    /// Whose data directory is whose, by the state.
    pub storages: &'a [Storage],
    pub hearing: &'a Hearing,
    /// The state is known to be the newest.
    pub is_confirmed: bool,
    /// When the first of its members was heard again, after all of them had been silent.
    pub back_since: Instant,
    pub failure_ns: Duration,
    pub guards: Guards,
}

impl Look<'_> {
    /// Why a node loses its place in that epoch, if it does.
    pub(crate) fn gone(&self, epoch: u32, member: &Member) -> Option<Gone> {
        let known = self.nodes.get(&member.node);
        let heard_at = known.map(|n| n.heard_at);
        // Those whose power went together come back together, or nearly so.
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

    /// The new incarnation of a member that started again with everything that it had on its disk,
    /// if that is everything that was ever committed: it is no stranger (trap T4). Whatever is
    /// committed is on the disk of every member, so that whoever was whole is, and whoever was
    /// whole in this epoch.
    pub(crate) fn returned(&self, old: &Config, member: &Member) -> Option<Member> {
        let has_heard = self.nodes.get(&member.node).is_some_and(|n| n.epoch == old.epoch);
        self.came_back(old, member).filter(|_| has_heard)
    }

    /// The same of one that may not have heard of that epoch, if it is the state's.
    pub(crate) fn came_back(&self, old: &Config, member: &Member) -> Option<Member> {
        let node = self.nodes.get(&member.node).filter(|n| self.is_heard(n))?;
        let is_intact = matches!(node.standing, Standing::Returning { intact: true })
            || node.origin().is_some();
        let was_caught_up = self.caught_up.contains(&member.node) || node.held.epoch == old.epoch;
        let is_back = node.member.incarnation != member.incarnation
            && old.epoch == self.epoch
            && (is_intact || !self.guards.on(Guard::Intact))
            && self.has_directory(node)
            && was_caught_up;
        is_back.then_some(node.member)
    }

    /// Whether a node was started again on the directory that it had.
    pub(crate) fn has_directory(&self, node: &Node) -> bool {
        let known = self.storages.iter().find(|s| s.node == node.member.node);
        let Some((own, known)) = node.storage.zip(known) else { return false };
        let is_same = known.id == own.id || !self.guards.on(Guard::SameStorage);
        let is_newer = own.run > known.run || !self.guards.on(Guard::NewerRun);
        is_same && is_newer
    }

    /// Whether a member is heard, and would know of a later epoch than the state's if it had been
    /// in one: it is the same process, or has the directory that it had.
    pub(crate) fn attests(&self, member: &Member) -> bool {
        let node = self.nodes.get(&member.node).filter(|n| self.is_heard(n));
        node.is_some_and(|n| n.member == *member || self.has_directory(n))
    }

    /// Why a member that was started again with a data directory is a stranger all the same, if
    /// that is why.
    pub(crate) fn mistrust(&self, member: &Member) -> Option<Mistrust> {
        let node = self.nodes.get(&member.node)?;
        let known = self.storages.iter().find(|s| s.node == member.node)?;
        let own = node.storage.filter(|_| node.member.incarnation != member.incarnation)?;
        if own.id != known.id {
            Some(Mistrust::OtherDirectory)
        } else if own.run <= known.run {
            Some(Mistrust::OlderDirectory)
        } else {
            matches!(node.standing, Standing::Returning { intact: false })
                .then_some(Mistrust::Incomplete)
        }
    }

    /// Where a member listens whose place does not hang on its life: another process of its node,
    /// heard for some time without a break, may have another address.
    pub(crate) fn listens(&self, member: &Member) -> Addr {
        let moved = self.nodes.get(&member.node).filter(|n| {
            self.is_heard(n)
                && n.standing != Standing::Leaving
                && n.member.incarnation != member.incarnation
                && self.now.since(n.steady_since) >= MOVED_NS
        });
        moved.map_or(member.addr, |n| n.member.addr)
    }

    /// Whether it was heard of lately.
    pub(crate) fn is_heard(&self, node: &Node) -> bool {
        self.now.since(node.heard_at) <= self.failure_ns
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
