//! The messages that the controller hears, and its conclusions from silence.
//!
//! It decides nothing by the silence of others while it hears nobody itself, and counts theirs from
//! when it could hear again: its link was down, or it slept; and up to when it heard anybody last.
//! Nor does it go on without having heard from those with whom it would go on. And it decides
//! nothing at all while members have heard of more than its state says (trap T3): then the state is
//! not the newest, and its numbers were used. All groups have one state, so what is heard of one
//! holds for all.

use concord_core::{Duration, Guard, Guards, Instant, MS, Now};
use concord_wire::control::{Heard, Member};
use concord_wire::{Addr, GroupId};

use crate::group::{Group, Node, cut_ns};
use crate::state::Trouble;
use crate::{Controller, Problem, State};

/// Everybody says that it lives ten times a second. Where nobody did for half of the time after
/// which one is called silent, and for that long at least, the controller is who was cut off.
const DEAF_NS_MIN: Duration = 140 * MS;
/// How long a stranger is shown.
const STRANGER_NS: Duration = 2_000 * MS;

/// What the controller heard, of whomever.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hearing {
    /// Since when it could hear: its start, or the end of the last time that it heard nobody.
    pub since: Option<Instant>,
    /// When it heard anybody last.
    last: Instant,
    /// A node of another rack, and when it was heard.
    stranger: Option<(Addr, Instant)>,
}

impl Hearing {
    /// Whether nobody is heard, so that it is the controller who is cut off, or slept.
    pub(crate) fn is_deaf(&self, now: Instant, failure_ns: Duration, guards: Guards) -> bool {
        let patience_ns = (failure_ns / 2).max(DEAF_NS_MIN);
        self.since.is_some() && now.since(self.last) > patience_ns && guards.on(Guard::Deaf)
    }

    /// Until when the silence of others counts: until anybody was heard last. Behind that nobody
    /// knows whose it is.
    pub(crate) fn heard_until(&self, now: Instant, guards: Guards) -> Instant {
        if guards.on(Guard::Deaf) { self.last } else { now }
    }

    /// When a node that was heard at `heard_at`, if ever, fell silent, as far as that can be known.
    pub(crate) fn silent_since(&self, heard_at: Option<Instant>, guards: Guards) -> Instant {
        let since = self.since.unwrap_or(Instant(0));
        match heard_at {
            Some(at) if guards.on(Guard::Deaf) => at.max(since),
            Some(at) => at,
            None => since,
        }
    }
}

impl Group {
    /// The state is another one: what is ahead of it is yet to be heard.
    pub(crate) fn know(&mut self, state: &State) {
        let epoch = state.config(self.id()).map_or(0, |c| c.epoch);
        let known = |h: &Heard| h.epoch <= epoch && h.switch_id <= state.last_switch_id;
        self.ahead.take_if(|heard| known(heard));
    }

    /// Somebody has heard of these numbers: if the state says less, it is not the newest.
    pub(crate) fn note_ahead(&mut self, state: &State, heard: &Heard) {
        let config = state.config(self.id());
        // One without members begins above all that is heard.
        let begins = config.is_some_and(|c| c.members.is_empty());
        let epoch = if begins { u32::MAX } else { config.map_or(0, |c| c.epoch) };
        if heard.epoch > epoch || heard.switch_id > state.last_switch_id {
            let ahead = self.ahead.get_or_insert_default();
            ahead.epoch = ahead.epoch.max(heard.epoch);
            ahead.switch_id = ahead.switch_id.max(heard.switch_id);
        }
    }

    /// A node is heard: if it is the first of the group's members after all were silent, the
    /// silence of the others counts from now on.
    pub(crate) fn note_return(
        &mut self,
        now: Instant,
        failure_ns: Duration,
        members: &[Member],
        node: &Node,
    ) {
        let is_silent = |m: &Member| {
            let known = self.nodes.get(&m.node);
            known.is_none_or(|n| now.since(n.heard_at) > failure_ns)
        };
        if members.iter().any(|m| m.node == node.member.node) && members.iter().all(is_silent) {
            self.back_since = now;
        }
    }

    /// What a node said before goes on, where it says the same again.
    pub(crate) fn go_on(&self, failure_ns: Duration, now: &mut Node) {
        let Some(before) = self.nodes.get(&now.member.node).filter(|b| b.member == now.member)
        else {
            return;
        };
        now.was_kept |= before.was_kept;
        if before.epoch != now.epoch {
            // Whom it did not hear was perhaps in another epoch, and those who did not hear it
            // were.
            return;
        }
        // A shorter pause than that counts for no cut by itself.
        if now.heard_at.since(before.heard_at) <= cut_ns(failure_ns) {
            now.steady_since = before.steady_since;
        }
        for (node, since) in &mut now.unheard {
            if let Some((_, earlier)) = before.unheard.iter().find(|(other, _)| other == node) {
                *since = *earlier;
            }
        }
    }
}

impl Controller {
    /// Somebody of a group says that it lives, and what it heard of. Whether it is one of this
    /// rack; one that has its place in the configuration is, though it may not have heard of it yet
    /// (`--fresh`).
    pub(crate) fn hears(
        &mut self,
        now: Now,
        index: usize,
        addr: Addr,
        heard: &Heard,
        is_placed: bool,
    ) -> bool {
        self.note_hearing(now.instant);
        let group = &mut self.groups[index];
        group.highest.epoch = group.highest.epoch.max(heard.epoch);
        group.highest.switch_id = group.highest.switch_id.max(heard.switch_id);
        let is_fresh = group.is_fresh;
        // The numbers of a state that begins go on behind all that is heard.
        if let Some(recovery) = &self.recovery {
            let meant = self.rack_meant(recovery).ok().flatten();
            let is_own = meant.is_none_or(|rack| heard.rack == 0 || heard.rack == rack);
            self.count.foreign += u64::from(!is_own);
            return is_own;
        }
        if !self.setup.guards.on(Guard::StateHeard) {
            return true;
        }
        // Its nodes may be of the rack before, if that is known.
        let (rack, before) = (self.state.rack, self.rack_before);
        let is_own = heard.rack == rack || (is_fresh && (before == 0 || heard.rack == before));
        if rack != 0 && heard.rack != 0 && !is_own && !is_placed {
            self.count.foreign += 1;
            // One of several, so that the problem stays the same one.
            let known = self.hearing.stranger;
            let known = known.filter(|(_, at)| now.instant.since(*at) <= STRANGER_NS);
            self.hearing.stranger = Some((known.map_or(addr, |(addr, _)| addr), now.instant));
            self.reconsider(now);
            return false;
        }
        if !is_fresh {
            self.groups[index].note_ahead(&self.state, heard);
        }
        true
    }

    /// It can hear. Looked at with every packet, since the first one after a silence comes before
    /// the first tick.
    fn note_hearing(&mut self, now: Instant) {
        if self.hearing.is_deaf(now, self.setup.switch_failure_ns(), self.setup.guards) {
            self.count.deaf += 1;
            self.hearing.since = Some(now);
        }
        self.hearing.since.get_or_insert(now);
        self.hearing.last = self.hearing.last.max(now);
    }

    /// Whether it decides nothing and tells nobody anything: its state is not the newest, or is yet
    /// to be made.
    pub(crate) fn is_mute(&self) -> bool {
        self.is_behind() || self.recovery.is_some()
    }

    /// What is to be said of what is heard.
    pub(crate) fn heard_problem(&self, now: Instant) -> Option<Trouble> {
        let ahead = |group: &Group| {
            let problem = self.ahead_problem(group.id(), group.ahead?);
            Some(Trouble::of(group.id(), problem))
        };
        if let Some(problem) = self.groups.iter().find_map(ahead) {
            return Some(problem);
        }
        if let Some((addr, at)) = self.hearing.stranger
            && now.since(at) <= STRANGER_NS
        {
            return Some(Problem::Stranger { addr }.into());
        }
        self.groups.iter().find_map(|group| {
            let config = self.state.config(group.id())?;
            let problem = group.setup.rules().problem(&self.look(now, group), config)?;
            Some(Trouble::of(group.id(), problem))
        })
    }

    fn ahead_problem(&self, group: GroupId, ahead: Heard) -> Problem {
        let (heard_epoch, heard_switch_id) = (ahead.epoch, ahead.switch_id);
        match self.state.config(group) {
            Some(config) => Problem::StateOld { epoch: config.epoch, heard_epoch, heard_switch_id },
            None => Problem::StateLost { heard_epoch, heard_switch_id },
        }
    }
}
