//! The rules of a group of replicas: which members have the data, which nodes copy it, and which
//! lose their places.

use alloc::vec::Vec;

use concord_core::{Duration, Guard, Instant, MS};
use concord_wire::control::{Config, GroupKind, Member, Program, Protocol, Standing, Voting};

use crate::group::{Left, Look, Node, Places, Rules, cut_ns};
use crate::{Problem, REPLICAS_MAX};

/// Two nodes that were heard within this time are both alive.
const RECENT_NS: Duration = 250 * MS;

/// Replicas of a store.
#[derive(Clone, Debug)]
pub struct Replicas {
    /// The nodes for which the first epoch waits, in order, the head first.
    pub replicas: Vec<u16>,
    /// The replication protocol.
    pub protocol: Protocol,
    /// The switch program that serves them.
    pub program: Program,
}

impl Rules for Replicas {
    fn template(&self) -> (GroupKind, Program) {
        (self.protocol.into(), self.program)
    }

    /// All expected nodes, once they have registered.
    fn founders(&self, look: &Look<'_>) -> Result<Vec<Member>, Option<Problem>> {
        let stays = |n: &&Node| n.standing != Standing::Leaving;
        let founder = |node: u16| look.nodes.get(&node).filter(stays).map(|n| n.member);
        let expected = self.replicas.iter().copied();
        let mut missing = expected.clone().filter(|node| founder(*node).is_none());
        if let Some(node) = missing.next() {
            let others = u16::try_from(missing.count()).unwrap_or(u16::MAX);
            return Err(Some(Problem::WaitsForReplicas { node, others }));
        }
        // All begin with the same origin, or with none.
        let origin = |node: u16| look.nodes.get(&node).and_then(Node::origin);
        let restored = expected.clone().find(|node| origin(*node).is_some());
        let differs = |one: &u16| expected.clone().find(|node| origin(*node) != origin(*one));
        if let Some((one, other)) = restored.and_then(|one| Some((one, differs(&one)?))) {
            return Err(Some(Problem::OriginsDiffer { one, other }));
        }
        Ok(expected.filter_map(founder).collect())
    }

    /// In VR, NOPaxos and Raft the members keep their places for ever, and none is added: a silent
    /// one is outvoted, a restarted one recovers, and the founders' incarnations are the group's
    /// name. A restarted one may have another address.
    fn survivors(&self, look: &Look<'_>, old: &Config) -> Places {
        if self.protocol.is_quorum() {
            if let Some(members) = Self::never_began(look, old) {
                return Places { members, joining: Vec::new() };
            }
            let member = |m: &Member| Member { addr: look.listens(m), ..*m };
            return Places {
                members: old.members.iter().map(member).collect(),
                joining: Vec::new(),
            };
        }
        let keeps_place = look.keep_their_places(old);
        let stays = |m: &&Member| keeps_place(m);
        let place = |m: &Member| look.returned(old, m).or_else(|| stays(&m).then_some(*m));
        let mut members: Vec<Member> = old.members.iter().filter_map(place).collect();
        let mut joining: Vec<Member> = old.joining.iter().filter(stays).copied().collect();
        if members.is_empty() {
            return Places { members, joining };
        }
        if let Some(node) = cut_off(look, old, &members) {
            members.retain(|m| m.node != node);
        }
        let copied = joining.iter().filter(|m| has_copied(look, old, &members, m));
        let copied: Vec<u16> = copied.map(|m| m.node).collect();
        members.extend(joining.extract_if(.., |m| copied.contains(&m.node)));
        // One change at a time: new nodes wait until the last change is complete.
        if look.is_open_everywhere(old) {
            for node in look.nodes.values() {
                let known = members.iter().chain(&joining).any(|m| m.node == node.member.node);
                let is_out = matches!(node.standing, Standing::Out | Standing::Returning { .. });
                let asks = is_out && node.epoch == old.epoch && look.is_heard(node);
                if asks && !known && members.len() + joining.len() < REPLICAS_MAX {
                    joining.push(node.member);
                }
            }
        }
        Places { members, joining }
    }

    fn go_on(
        &self,
        look: &Look<'_>,
        old: &Config,
        members: &[Member],
    ) -> Result<Vec<u16>, Option<Problem>> {
        let is_caught_up = |m: &&Member| is_caught_up(look, old, m);
        let caught_up: Vec<u16> = members.iter().filter(is_caught_up).map(|m| m.node).collect();
        if caught_up.is_empty() {
            let older = look.put_back(old).map(|node| Problem::OlderDirectory { node });
            return Err(Some(older.unwrap_or(Problem::NobodyCaughtUp)));
        }
        if let Some(problem) = self.cold_start(look, old, members) {
            return Err(Some(problem));
        }
        if self.has_heard(look, old, members) { Ok(caught_up) } else { Err(None) }
    }

    /// In VR, NOPaxos and Raft the leader configures the switch.
    fn tells_switch(&self) -> bool {
        !self.protocol.is_quorum()
    }

    fn holds_data(&self) -> bool {
        true
    }

    fn problem(&self, look: &Look<'_>, config: &Config) -> Option<Problem> {
        if let Some((one, other)) = cut_pairs(look, config, &config.members, 0).next() {
            return Some(Problem::CutPair { one, other });
        }
        let stays_out =
            |n: &&Node| n.origin().is_some() && look.is_heard(n) && !n.is_on(look.storages);
        if let Some(node) = look.nodes.values().find(stays_out) {
            return Some(Problem::Restored { node: node.member.node });
        }
        // A node that waits outside until it hears all members again.
        config.joining.iter().find_map(|joining| {
            let own = look.nodes.get(&joining.node).filter(|n| n.member == *joining)?;
            let is_there = |node: u16| look.nodes.get(&node).is_some_and(|n| look.is_heard(n));
            let (other, _) = own.unheard.iter().find(|(other, since)| {
                look.now.since(*since) >= look.failure_ns
                    && config.members.iter().any(|m| m.node == *other)
                    && is_there(*other)
            })?;
            Some(Problem::CutPair { one: *other, other: joining.node })
        })
    }

    fn left(&self, look: &Look<'_>, newest: &Config, gone: &[u16]) -> Result<Left, Problem> {
        let heard = |m: &Member| look.nodes.get(&m.node).filter(|n| look.is_heard(n));
        // Another incarnation of a node has only the data on its disk: everything, if it was caught
        // up in that epoch, or before one that never opened.
        let has_all = |n: &Node| {
            let own = newest.members.iter().find(|m| m.node == n.member.node);
            let is_lost = own.is_some_and(|m| look.mistrust(m).is_some());
            let came_back = || own.is_some_and(|m| look.came_back(newest, m).is_some());
            !is_lost && (keeps_all(n, newest) || came_back())
        };
        // A node that is heard is not gone, whatever the operator said.
        let is_there = |m: &Member| heard(m).is_some_and(|n| n.member == *m || has_all(n));
        let is_gone = |m: &Member| gone.contains(&m.node) && !is_there(m);
        if self.protocol.is_quorum() {
            // The group stays the same. In Raft a member that lost its data does not say who votes.
            let elects = self.protocol.elects();
            let is_same = |m: &Member, n: &Node| n.member.incarnation == m.incarnation;
            let knows = |m: &Member| heard(m).filter(|n| !elects || is_same(m, n) || is_back(n));
            if !self.are_quorum(newest, knows) {
                return Err(Problem::NotHeard { node: None, epoch: newest.epoch });
            }
            let caught_up = newest.members.iter().map(|m| m.node).collect();
            return Ok(Left { members: newest.members.clone(), caught_up, lost_behind: None });
        }
        let missing = newest.members.iter().find(|m| !is_gone(m) && heard(m).is_none());
        if let Some(missing) = missing {
            return Err(Problem::NotHeard { node: Some(missing.node), epoch: newest.epoch });
        }
        let stays = |m: &Member| {
            let n = heard(m).filter(|n| !is_gone(m) && n.standing != Standing::Leaving)?;
            let is_same = n.member.incarnation == m.incarnation || has_all(n);
            is_same.then_some(n.member)
        };
        let members: Vec<Member> = newest.members.iter().filter_map(stays).collect();
        let is_caught_up = |m: &&Member| heard(m).is_some_and(|n| says_caught_up(n) || has_all(n));
        let caught_up: Vec<u16> = members.iter().filter(is_caught_up).map(|m| m.node).collect();
        if !caught_up.is_empty() {
            return Ok(Left { members, caught_up, lost_behind: None });
        }
        if let Some(members) = Self::before_opening(look, newest) {
            let caught_up = members.iter().map(|m| m.node).collect();
            return Ok(Left { members, caught_up, lost_behind: None });
        }
        let rest = look.nodes.values().filter(|n| !is_gone(&n.member));
        let stays = |n: &&Node| look.is_heard(n) && n.standing != Standing::Leaving;
        let rest = rest.filter(stays).filter(|n| n.held.epoch > 0);
        let best = rest.max_by_key(|n| n.held).ok_or(Problem::NothingLeft)?;
        let (members, caught_up) = (alloc::vec![best.member], alloc::vec![best.member.node]);
        Ok(Left { members, caught_up, lost_behind: Some(best.held) })
    }
}

impl Replicas {
    /// The running processes of a VR, NOPaxos or Raft group that lost power before it could begin:
    /// all members are heard, and according to their disks so many have no promises that the others
    /// are no quorum. Messages from before the last of them registered may be of earlier processes.
    fn never_began(look: &Look<'_>, old: &Config) -> Option<Vec<Member>> {
        let is_back = |n: &Node| n.is_kept() && n.held.epoch == 0 && look.has_directory(n);
        let known = || old.members.iter().filter_map(|m| look.nodes.get(&m.node));
        let back_at = known().filter(|n| is_back(n)).map(|n| n.steady_since).max()?;
        let is_there = |n: &&Node| look.is_heard(n) && n.heard_at >= back_at;
        let nodes: Vec<&Node> = known().filter(is_there).collect();
        let promised = nodes.iter().filter(|n| !is_back(n)).count();
        let is_left = nodes.len() == old.members.len() && promised < old.members.len() / 2 + 1;
        is_left.then(|| nodes.iter().map(|n| n.member).collect())
    }

    /// The members that have all the data, if the newest epoch never opened, as a member that has
    /// run since reports. All its members are heard, and at least one had everything that was
    /// agreed in the last opened epoch: a member that has all of that has everything that was
    /// acknowledged.
    fn before_opening(look: &Look<'_>, newest: &Config) -> Option<Vec<Member>> {
        let known =
            |m: &Member| look.nodes.get(&m.node).filter(|n| look.is_heard(n)).map(|n| (*m, n));
        let own: Vec<(Member, &Node)> = newest.members.iter().filter_map(known).collect();
        let was_there = |(m, n): &(Member, &Node)| n.member == *m;
        let knows = |(m, n): &(Member, &Node)| {
            n.member == *m || (n.is_kept() && n.held.epoch > 0 && look.mistrust(m).is_none())
        };
        let last = own.iter().map(|(_, n)| n.held.epoch).max().filter(|last| *last > 0)?;
        let is_sure = own.len() == newest.members.len()
            && own.iter().any(was_there)
            && own.iter().all(knows)
            && look.nodes.values().all(|n| n.held.epoch <= last);
        let has_all = own.iter().filter(|(_, n)| n.held.epoch == last);
        let stays = has_all.filter(|(_, n)| n.standing != Standing::Leaving);
        let members: Vec<Member> = stays.map(|(_, n)| n.member).collect();
        (is_sure && !members.is_empty()).then_some(members)
    }

    /// The problem of a cold start: all members and the controller restarted, so that no process
    /// ran all the time and would know of a newer epoch. The state may be an old one, and with it
    /// the data of the members that are back. A newer epoch may have consisted of any one member
    /// alone, so the group waits for each, which reports if it was in one. If all have their
    /// directories, that confirms the state. A member without its directory has no newer data, but
    /// would not know of a replica that was admitted since, so that the group then waits for all
    /// replicas of the rack.
    fn cold_start(&self, look: &Look<'_>, old: &Config, members: &[Member]) -> Option<Problem> {
        let was_there = |m: &Member| old.members.contains(m) || old.joining.contains(m);
        if self.protocol.is_quorum()
            || look.is_confirmed
            || members.iter().any(was_there)
            || !look.guards.on(Guard::ColdStart)
        {
            return None;
        }
        let is_back = |node: &u16| look.nodes.get(node).is_some_and(|n| look.is_heard(n));
        let mut all = old.members.iter().map(|m| m.node).chain(self.replicas.iter().copied());
        let node = all.find(|node| !is_back(node))?;
        Some(Problem::ColdStart { node, epoch: old.epoch })
    }

    /// Whether the members with which the group would continue were heard since the controller
    /// could hear: all of them, or a majority where that decides.
    fn has_heard(&self, look: &Look<'_>, old: &Config, members: &[Member]) -> bool {
        let since = look.hearing.since.unwrap_or(Instant(0)).max(look.back_since);
        let is_quorum = self.protocol.is_quorum();
        let heard = |m: &Member| {
            let own = look.nodes.get(&m.node).filter(|n| n.heard_at >= since)?;
            let is_same = own.member.incarnation == m.incarnation;
            (is_same || (is_quorum && is_back(own))).then_some(own)
        };
        let has_heard = if is_quorum {
            self.are_quorum(&Config { members: members.to_vec(), ..old.clone() }, heard)
        } else {
            members.iter().all(|m| heard(m).is_some())
        };
        has_heard || !look.guards.on(Guard::Deaf)
    }

    /// Whether the `heard` members of a group in which a majority decides are one: then some of
    /// them have heard of every switch that the group has accepted.
    ///
    /// In Raft this is a majority of the voters according to the most up-to-date log among theirs:
    /// they could elect the member with that log, which therefore has all committed records (Raft
    /// §5.4.1, Ongaro's dissertation §4.1). Other members do not count, and no member without a
    /// vote is waited for.
    fn are_quorum<'a>(&self, config: &Config, heard: impl Fn(&Member) -> Option<&'a Node>) -> bool {
        let founders = Voting { voters: u64::MAX, ..Voting::default() };
        let voting = |m: &Member| {
            let own = heard(m)?;
            let has_joined = own.rack == config.rack;
            match own.voting {
                _ if !self.protocol.elects() => Some(founders),
                Some(voting) if has_joined => Some(voting),
                // It has no configuration yet, or one of an earlier group: its log is empty.
                _ => (!has_joined && own.member.incarnation == m.incarnation).then_some(founders),
            }
        };
        let logs: Vec<Option<Voting>> = config.members.iter().map(voting).collect();
        let best = logs.iter().flatten().max_by_key(|v| v.last).unwrap_or(&founders);
        let is_voter = |place: &usize| *place >= 64 || best.voters >> place & 1 == 1;
        let voters = (0..logs.len()).filter(is_voter);
        voters.clone().filter(|place| logs[*place].is_some()).count() > voters.count() / 2
    }
}

/// The member to remove so that the others hear each other: the one in most cuts; among equals the
/// one that hears the fewest, since its own link may be the cause; among these the last one; and
/// never the last one that is caught up.
pub(crate) fn cut_off(look: &Look<'_>, old: &Config, members: &[Member]) -> Option<u16> {
    if !look.guards.on(Guard::CutPair) {
        return None;
    }
    let patience_ns = cut_ns(look.failure_ns);
    cut_pairs(look, old, members, patience_ns).next()?;
    // Those that were cut in the same moment tell of it one after the other.
    let pairs: Vec<(u16, u16)> = cut_pairs(look, old, members, patience_ns / 2).collect();
    let cuts = |node: u16| {
        let mut others: Vec<u16> = pairs
            .iter()
            .filter(|(a, b)| *a == node || *b == node)
            .map(|(a, b)| if *a == node { *b } else { *a })
            .collect();
        others.sort_unstable();
        others.dedup();
        others.len()
    };
    let spares_caught_up = |m: &&Member| {
        members.iter().any(|other| other.node != m.node && is_caught_up(look, old, other))
    };
    let candidates = members.iter().filter(|m| cuts(m.node) > 0).filter(spares_caught_up);
    let misses = |node: u16| pairs.iter().filter(|(own, _)| *own == node).count();
    candidates.max_by_key(|m| (cuts(m.node), misses(m.node))).map(|m| m.node)
}

/// Whether a switch or replica that joins has said that it has copied the state, and hears those
/// with whom it would go on.
pub(crate) fn has_copied(look: &Look<'_>, old: &Config, members: &[Member], m: &Member) -> bool {
    let hears_all =
        |n: &Node| !n.unheard.iter().any(|(node, _)| members.iter().any(|m| m.node == *node));
    let said = look.nodes.get(&m.node);
    said.is_some_and(|n| {
        n.epoch == old.epoch
            && n.standing == Standing::Copied
            && (hears_all(n) || !look.guards.on(Guard::CutPair))
    })
}

/// Whether a restarted member has its earlier knowledge: from its disk, or since it is in a view,
/// where the others have told it of the newest switch.
fn is_back(node: &Node) -> bool {
    match node.standing {
        Standing::Open { .. } => true,
        Standing::Returning { intact } => intact && node.was_kept,
        Standing::Opening { .. } => node.was_kept,
        _ => false,
    }
}

/// Whether a node reports that it is caught up.
pub(crate) fn says_caught_up(node: &Node) -> bool {
    matches!(
        node.standing,
        Standing::Open { caught_up: true } | Standing::Opening { caught_up: true }
    )
}

/// Whether its disk has everything that was committed up to the newest epoch that any node has
/// heard of.
fn keeps_all(node: &Node, newest: &Config) -> bool {
    matches!(node.standing, Standing::Returning { intact: true, .. })
        && node.held.epoch == newest.epoch
}

/// Whether a member has everything that was committed: according to the state, or its report since.
pub(crate) fn is_caught_up(look: &Look<'_>, old: &Config, member: &Member) -> bool {
    let said = look.nodes.get(&member.node).is_some_and(|n| {
        n.member.incarnation == member.incarnation && n.epoch == old.epoch && says_caught_up(n)
    });
    let returned = || old.members.iter().any(|m| look.returned(old, m) == Some(*member));
    said || look.caught_up.contains(&member.node) || returned() || !look.guards.on(Guard::CaughtUp)
}

/// Pairs of members of the epoch in force that are both heard here, of which the first reports that
/// it does not hear the other: continuously for `for_ns`, after which both were heard, so that
/// neither has died. A member that has not heard of the epoch is heard by no other, which is not a
/// cut.
fn cut_pairs<'a>(
    look: &'a Look<'_>,
    config: &Config,
    members: &'a [Member],
    for_ns: Duration,
) -> impl Iterator<Item = (u16, u16)> + 'a {
    let epoch = config.epoch;
    let is_there = move |node: u16, since: Instant| {
        let own = look.nodes.get(&node).filter(|_| members.iter().any(|m| m.node == node));
        own.is_some_and(|n| {
            n.epoch == epoch
                && look.now.since(n.heard_at) <= RECENT_NS
                && n.heard_at >= since.after(for_ns)
                && n.heard_at >= n.steady_since.after(for_ns)
                && matches!(n.standing, Standing::Opening { .. } | Standing::Open { .. })
        })
    };
    members.iter().flat_map(move |m| {
        let reporter = look.nodes.get(&m.node).filter(|n| n.member == *m);
        let unheard = reporter.map_or(&[][..], |n| &n.unheard).iter();
        unheard.filter_map(move |(other, since)| {
            (is_there(m.node, *since) && is_there(*other, *since)).then_some((m.node, *other))
        })
    })
}
