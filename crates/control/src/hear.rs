//! What the controller hears, and what it makes of silence.
//!
//! It decides nothing by the silence of others while it hears nobody itself, and counts theirs from
//! when it could hear again: its link was down, or it slept. Nor does it go on without having heard
//! from those with whom it would go on. And it decides nothing at all while members have heard of more
//! than its state says (trap T3): then the state is not the newest, and its numbers were used.

use concord_core::{Duration, Guard, Instant, MS, Now};
use concord_wire::Addr;
use concord_wire::control::{Config, Heard, Member, Standing};

use crate::{Controller, Problem, Replica, State};

/// Everybody says that it lives ten times a second. Where nobody did for half of the time after which
/// one is called silent, and for that long at least, the controller is who was cut off.
const DEAF_NS_MIN: Duration = 140 * MS;
/// Two that were heard of within that time are there, both of them.
const RECENT_NS: Duration = 250 * MS;
/// How long a stranger is shown.
const STRANGER_NS: Duration = 2_000 * MS;

/// What the controller heard, of whomever.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hearing {
    /// Since when it could hear: its start, or the end of the last time that it heard nobody.
    pub since: Option<Instant>,
    /// When it heard anybody last.
    last: Instant,
    /// The highest numbers that anybody told of, of whichever rack.
    pub highest: Heard,
    /// Somebody of this rack has heard of that, and the state says less.
    pub ahead: Option<Heard>,
    /// A node of another rack, and when it was heard.
    stranger: Option<(Addr, Instant)>,
}

impl Hearing {
    /// The state is another one: what is ahead of it is yet to be heard.
    pub(crate) fn know(&mut self, state: &State) {
        let epoch = state.config.as_ref().map_or(0, |c| c.epoch);
        let known = |h: &Heard| h.epoch <= epoch && h.switch_id <= state.last_switch_id;
        self.ahead.take_if(|heard| known(heard));
    }
}

impl Controller {
    /// Somebody says that it lives, and what it heard of. Whether it is one of this rack; one that has
    /// its place in the configuration is, though it may not have heard of it yet (`--fresh`).
    pub(crate) fn hears(&mut self, now: Now, addr: Addr, heard: &Heard, is_placed: bool) -> bool {
        self.note_hearing(now.instant);
        let highest = &mut self.hearing.highest;
        highest.epoch = highest.epoch.max(heard.epoch);
        highest.switch_id = highest.switch_id.max(heard.switch_id);
        // The numbers of a state that begins go on behind all that is heard.
        if self.setup.fresh || self.recovery.is_some() || !self.setup.guards.on(Guard::StateHeard) {
            return true;
        }
        let rack = self.state.config.as_ref().map_or(0, |c| c.rack);
        if rack != 0 && heard.rack != 0 && heard.rack != rack && !is_placed {
            self.count.foreign += 1;
            // One of several, so that the problem stays the same one.
            let known = self.hearing.stranger;
            let known = known.filter(|(_, at)| now.instant.since(*at) <= STRANGER_NS);
            self.hearing.stranger = Some((known.map_or(addr, |(addr, _)| addr), now.instant));
            self.reconsider(now);
            return false;
        }
        self.note_ahead(heard);
        true
    }

    /// Somebody has heard of these numbers: if the state says less, it is not the newest.
    pub(crate) fn note_ahead(&mut self, heard: &Heard) {
        if !self.setup.guards.on(Guard::StateHeard) {
            return;
        }
        let epoch = self.state.config.as_ref().map_or(0, |c| c.epoch);
        if heard.epoch > epoch || heard.switch_id > self.state.last_switch_id {
            let ahead = self.hearing.ahead.get_or_insert_default();
            ahead.epoch = ahead.epoch.max(heard.epoch);
            ahead.switch_id = ahead.switch_id.max(heard.switch_id);
        }
    }

    /// It can hear. Looked at with every packet, since the first one after a silence comes before the
    /// first tick.
    fn note_hearing(&mut self, now: Instant) {
        if self.is_deaf(now) {
            self.count.deaf += 1;
            self.hearing.since = Some(now);
        }
        self.hearing.since.get_or_insert(now);
        self.hearing.last = self.hearing.last.max(now);
    }

    /// Whether nobody is heard, so that it is the controller who is cut off, or slept.
    pub(crate) fn is_deaf(&self, now: Instant) -> bool {
        let patience_ns = (self.setup.failure_ns / 2).max(DEAF_NS_MIN);
        self.hearing.since.is_some()
            && now.since(self.hearing.last) > patience_ns
            && self.setup.guards.on(Guard::Deaf)
    }

    /// When a node that was heard at `heard_at`, if ever, fell silent, as far as that can be known.
    pub(crate) fn silent_since(&self, heard_at: Option<Instant>) -> Instant {
        let since = self.hearing.since.unwrap_or(Instant(0));
        match heard_at {
            Some(at) if self.setup.guards.on(Guard::Deaf) => at.max(since),
            Some(at) => at,
            None => since,
        }
    }

    /// Whether it decides nothing and tells nobody anything: its state is not the newest, or is yet to
    /// be made.
    pub(crate) fn is_mute(&self) -> bool {
        self.hearing.ahead.is_some() || self.recovery.is_some()
    }

    /// Whether those with whom the group would go on have been heard since the controller could hear:
    /// all of them, or, where a majority decides, so many.
    pub(crate) fn has_heard(&self, members: &[Member]) -> bool {
        let since = self.hearing.since.unwrap_or(Instant(0));
        let is_quorum = self.setup.protocol.is_quorum();
        let heard = members.iter().filter(|m| {
            // One that restarted has lost what it heard, so that it counts only once it is in a view: there
            // it has heard of the newest switch from the others.
            let knows = |r: &Replica| {
                let is_in_view = is_quorum && matches!(r.standing, Standing::Open { .. });
                r.member.incarnation == m.incarnation || is_in_view
            };
            let own = self.replicas.get(&m.node);
            own.is_some_and(|r| r.heard_at >= since && knows(r))
        });
        let wanted = if is_quorum { members.len() / 2 + 1 } else { members.len() };
        heard.count() >= wanted || !self.setup.guards.on(Guard::Deaf)
    }

    /// What a replica said before goes on, where it says the same again.
    pub(crate) fn go_on(&self, before: &Replica, now: &mut Replica) {
        if before.member != now.member {
            return;
        }
        if now.heard_at.since(before.heard_at) <= self.setup.failure_ns / 2 {
            now.steady_since = before.steady_since;
        }
        if before.epoch != now.epoch {
            // Whom it did not hear was perhaps in another epoch.
            return;
        }
        for (node, since) in &mut now.unheard {
            if let Some((_, earlier)) = before.unheard.iter().find(|(other, _)| other == node) {
                *since = *earlier;
            }
        }
    }

    /// Two members of the epoch in force that are both heard here, and of which the first says that it does
    /// not hear the other.
    /// `for_ns`: for that long, without a break, and both were heard after it: neither has died.
    pub(crate) fn cut_pairs<'a>(
        &'a self,
        now: Instant,
        members: &'a [Member],
        for_ns: Duration,
    ) -> impl Iterator<Item = (u16, u16)> + 'a {
        let epoch = self.state.config.as_ref().map_or(0, |c| c.epoch);
        let is_there = move |node: u16, since: Instant| {
            let own = self.replicas.get(&node).filter(|_| members.iter().any(|m| m.node == node));
            own.is_some_and(|r| {
                r.epoch == epoch
                    && now.since(r.heard_at) <= RECENT_NS
                    && r.heard_at >= since.after(for_ns)
                    && r.heard_at >= r.steady_since.after(for_ns)
                    && matches!(r.standing, Standing::Opening { .. } | Standing::Open { .. })
            })
        };
        members.iter().flat_map(move |m| {
            let reporter = self.replicas.get(&m.node).filter(|r| r.member == *m);
            let unheard = reporter.map_or(&[][..], |r| &r.unheard).iter();
            unheard.filter_map(move |(other, since)| {
                (is_there(m.node, *since) && is_there(*other, *since)).then_some((m.node, *other))
            })
        })
    }

    /// Who of `members` goes, so that all others hear each other: who is in most cuts; of those who
    /// itself hears fewest, since its own ear may be what is wrong; of those the last one; and never the
    /// last one that is whole.
    pub(crate) fn cut_off(&self, now: Instant, old: &Config, members: &[Member]) -> Option<u16> {
        if !self.setup.guards.on(Guard::CutPair) || self.setup.protocol.is_quorum() {
            return None;
        }
        let patience_ns = self.setup.failure_ns / 3;
        self.cut_pairs(now, members, patience_ns).next()?;
        // Those that were cut in the same moment tell of it one after the other.
        let pairs: alloc::vec::Vec<(u16, u16)> =
            self.cut_pairs(now, members, patience_ns / 2).collect();
        let cuts = |node: u16| {
            let mut others: alloc::vec::Vec<u16> = pairs
                .iter()
                .filter(|(a, b)| *a == node || *b == node)
                .map(|(a, b)| if *a == node { *b } else { *a })
                .collect();
            others.sort_unstable();
            others.dedup();
            others.len()
        };
        let spares_whole = |m: &&Member| {
            members.iter().any(|other| other.node != m.node && self.is_whole(old, other))
        };
        let candidates = members.iter().filter(|m| cuts(m.node) > 0).filter(spares_whole);
        let misses = |node: u16| pairs.iter().filter(|(own, _)| *own == node).count();
        candidates.max_by_key(|m| (cuts(m.node), misses(m.node))).map(|m| m.node)
    }

    /// What is to be said of what is heard.
    pub(crate) fn heard_problem(&self, now: Instant) -> Option<Problem> {
        if let Some(ahead) = self.hearing.ahead {
            let config = self.state.config.as_ref();
            return Some(match config {
                Some(config) => Problem::StateOld {
                    epoch: config.epoch,
                    heard_epoch: ahead.epoch,
                    heard_switch_id: ahead.switch_id,
                },
                None => Problem::StateLost {
                    heard_epoch: ahead.epoch,
                    heard_switch_id: ahead.switch_id,
                },
            });
        }
        if let Some((addr, at)) = self.hearing.stranger
            && now.since(at) <= STRANGER_NS
        {
            return Some(Problem::Stranger { addr });
        }
        let config = self.state.config.as_ref()?;
        if let Some((one, other)) = self.cut_pairs(now, &config.members, 0).next() {
            return Some(Problem::CutPair { one, other });
        }
        // One that waits outside until it hears all members again.
        config.joining.iter().find_map(|joining| {
            let own = self.replicas.get(&joining.node).filter(|r| r.member == *joining)?;
            let long_ns = self.setup.failure_ns;
            let (other, _) = own.unheard.iter().find(|(other, since)| {
                now.since(*since) >= long_ns && config.members.iter().any(|m| m.node == *other)
            })?;
            Some(Problem::CutPair { one: *other, other: joining.node })
        })
    }
}
