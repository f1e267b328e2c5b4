//! A group of replicas: who has the data, who copies it, and who loses its place.

use alloc::vec::Vec;

use concord_core::{Duration, Guard, Instant, MS};
use concord_wire::control::{Config, GroupKind, Member, Program, Protocol, Standing, Voting};

use crate::group::{Left, Look, Node, Places, Rules, cut_ns};
use crate::{Problem, REPLICAS_MAX};

/// Two that were heard of within that time are there, both of them.
const RECENT_NS: Duration = 250 * MS;

/// Replicas of a store.
#[derive(Clone, Debug)]
pub struct Replicas {
    /// The nodes that the first epoch waits for, in order: head first.
    pub replicas: Vec<u16>,
    /// How they replicate.
    pub protocol: Protocol,
    /// What the switch runs for them.
    pub program: Program,
}

impl Rules for Replicas {
    fn template(&self) -> (GroupKind, Program) {
        (self.protocol.into(), self.program)
    }

    /// Everybody who was expected, once all are there.
    fn founders(&self, look: &Look<'_>) -> Result<Vec<Member>, Option<Problem>> {
        let stays = |n: &&Node| n.standing != Standing::Leaving;
        let founder = |node: u16| look.nodes.get(&node).filter(stays).map(|n| n.member);
        let expected = self.replicas.iter().copied();
        let mut missing = expected.clone().filter(|node| founder(*node).is_none());
        if let Some(node) = missing.next() {
            let others = u16::try_from(missing.count()).unwrap_or(u16::MAX);
            return Err(Some(Problem::WaitsForReplicas { node, others }));
        }
        // All begin with the same: what was restored, or nothing.
        let origin = |node: u16| look.nodes.get(&node).and_then(Node::origin);
        let restored = expected.clone().find(|node| origin(*node).is_some());
        let differs = |one: &u16| expected.clone().find(|node| origin(*node) != origin(*one));
        if let Some((one, other)) = restored.and_then(|one| Some((one, differs(&one)?))) {
            return Err(Some(Problem::OriginsDiffer { one, other }));
        }
        Ok(expected.filter_map(founder).collect())
    }

    /// In VR all have their places, for ever, and nobody comes: who is silent is outvoted, who
    /// restarted recovers, and the founders' lives are the group's name. Whoever comes again may
    /// listen elsewhere.
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
        let stays = |m: &&Member| look.gone(old.epoch, m).is_none();
        let place = |m: &Member| look.returned(old, m).or_else(|| stays(&m).then_some(*m));
        let mut members: Vec<Member> = old.members.iter().filter_map(place).collect();
        let mut joining: Vec<Member> = old.joining.iter().filter(stays).copied().collect();
        if members.is_empty() {
            return Places { members, joining };
        }
        if let Some(node) = Self::cut_off(look, old, &members) {
            members.retain(|m| m.node != node);
        }
        let cut_counts = look.guards.on(Guard::CutPair);
        let hears_all =
            |n: &Node| !n.unheard.iter().any(|(node, _)| members.iter().any(|m| m.node == *node));
        let copied = |m: &Member| {
            let said = look.nodes.get(&m.node);
            said.is_some_and(|n| {
                n.epoch == old.epoch
                    && n.standing == Standing::Copied
                    && (hears_all(n) || !cut_counts)
            })
        };
        let copied: Vec<u16> = joining.iter().filter(|m| copied(m)).map(|m| m.node).collect();
        members.extend(joining.extract_if(.., |m| copied.contains(&m.node)));
        // One change at a time: the last must be over before others come.
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
            return Err(Some(Problem::NobodyCaughtUp));
        }
        if let Some(problem) = self.cold_start(look, old, members) {
            return Err(Some(problem));
        }
        if self.has_heard(look, old, members) { Ok(caught_up) } else { Err(None) }
    }

    /// In VR the leader does.
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
        // One that waits outside until it hears all members again.
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
        // Another life of a node has nothing of what the one before had, but what its disk has:
        // everything, if it was whole in that epoch, or before one that never opened.
        let has_all = |n: &Node| {
            let own = newest.members.iter().find(|m| m.node == n.member.node);
            let is_lost = own.is_some_and(|m| look.mistrust(m).is_some());
            let came_back = || own.is_some_and(|m| look.came_back(newest, m).is_some());
            !is_lost && (keeps_all(n, newest) || came_back())
        };
        // Whoever is heard of is not gone, though it was when the operator said so.
        let is_there = |m: &Member| heard(m).is_some_and(|n| n.member == *m || has_all(n));
        let is_gone = |m: &Member| gone.contains(&m.node) && !is_there(m);
        if self.protocol.is_quorum() {
            // The group stays. In Raft whoever lost its data does not say who votes.
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
    /// Who is there, where the power went before a group that chooses its views by itself could
    /// begin: all are heard, and by their disks so many have promised nothing yet that the others
    /// are no quorum. What was heard before the last of these came was perhaps said by processes
    /// that are no more.
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

    /// Who has all the data where the newest epoch never opened, as one of its members says, which
    /// has been there since. Its members are all here, and at least one of them had all that was
    /// agreed in the last epoch that did open: so whoever has all of that has all that was
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

    /// All members started again, and so did the controller, so that nobody was there all the time
    /// who would know of a newer epoch: the state may be of yesterday, and with it the data of
    /// those that are back. A newer epoch may have had any one of the members alone, so that each
    /// of them is waited for; whoever was in one says so. Where all have the directories that they
    /// had, the state is confirmed by that. Where one comes without, it has nothing newer itself,
    /// but would not know of a replica that was let in since: so all of the rack are waited for.
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

    /// Whether those with whom the group would go on have been heard since the controller could
    /// hear: all of them, or, where a majority decides, so many.
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

    /// Whether those who were `heard` of a group in which a majority decides are one: then one of
    /// them has heard of every switch that the group has accepted.
    ///
    /// In Raft a majority of those who vote by the most up-to-date log among theirs: so they could
    /// elect whoever has that log, which therefore has all that is committed (Raft §5.4.1, Ongaro's
    /// dissertation §4.1). What is said of other members does not count, nor is anybody waited for
    /// who does not vote.
    fn are_quorum<'a>(&self, config: &Config, heard: impl Fn(&Member) -> Option<&'a Node>) -> bool {
        let founders = Voting { voters: u64::MAX, ..Voting::default() };
        let voting = |m: &Member| {
            let own = heard(m)?;
            let has_joined = own.rack == config.rack;
            match own.voting {
                _ if !self.protocol.elects() => Some(founders),
                Some(voting) if has_joined => Some(voting),
                // It has heard of no configuration yet, or of one of an earlier group: its log is
                // empty.
                _ => (!has_joined && own.member.incarnation == m.incarnation).then_some(founders),
            }
        };
        let logs: Vec<Option<Voting>> = config.members.iter().map(voting).collect();
        let best = logs.iter().flatten().max_by_key(|v| v.last).unwrap_or(&founders);
        let is_voter = |place: &usize| *place >= 64 || best.voters >> place & 1 == 1;
        let voters = (0..logs.len()).filter(is_voter);
        voters.clone().filter(|place| logs[*place].is_some()).count() > voters.count() / 2
    }

    /// Who of `members` goes, so that all others hear each other: who is in most cuts; of those who
    /// itself hears fewest, since its own ear may be what is wrong; of those the last one; and
    /// never the last one that is whole.
    fn cut_off(look: &Look<'_>, old: &Config, members: &[Member]) -> Option<u16> {
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
}

/// Whether one that restarted has what it heard before: its disk has it, or it is in a view, where
/// it has heard of the newest switch from the others.
fn is_back(node: &Node) -> bool {
    match node.standing {
        Standing::Open { .. } => true,
        Standing::Returning { intact } => intact && node.was_kept,
        Standing::Opening { .. } => node.was_kept,
        _ => false,
    }
}

/// Whether it says that it is whole.
fn says_caught_up(node: &Node) -> bool {
    matches!(
        node.standing,
        Standing::Open { caught_up: true } | Standing::Opening { caught_up: true }
    )
}

/// Whether its disk has everything that was committed up to the newest epoch that anybody heard of.
fn keeps_all(node: &Node, newest: &Config) -> bool {
    matches!(node.standing, Standing::Returning { intact: true, .. })
        && node.held.epoch == newest.epoch
}

/// Whether a member has everything that was committed: it had, or it has said so since.
fn is_caught_up(look: &Look<'_>, old: &Config, member: &Member) -> bool {
    let said = look.nodes.get(&member.node).is_some_and(|n| {
        n.member.incarnation == member.incarnation && n.epoch == old.epoch && says_caught_up(n)
    });
    let returned = || old.members.iter().any(|m| look.returned(old, m) == Some(*member));
    said || look.caught_up.contains(&member.node) || returned() || !look.guards.on(Guard::CaughtUp)
}

/// Two members of the epoch in force that are both heard here, and of which the first says that it
/// does not hear the other. `for_ns`: for that long, without a break, and both were heard after it:
/// neither has died. Nobody is heard by the members of an epoch that it has not heard of, so that
/// is no cut.
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
