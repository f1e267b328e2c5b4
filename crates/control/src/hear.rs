//! The messages that the controller hears, and its conclusions from silence.
//!
//! While the controller hears no node, it draws no conclusion from silence: its own link may be
//! down, or it was paused. Silence counts from the time at which it could hear again, and up to the
//! last message of any node. It continues a group only with members that it has heard since. And it
//! decides nothing while members have heard of higher numbers than its state has (trap T3): then
//! the state is not the newest, and its next numbers were used. All groups share one state, so this
//! holds for all of them.

use concord_core::{Duration, Guard, Guards, Instant, MS, Now};
use concord_wire::control::{Heard, Member};
use concord_wire::{Addr, GroupId};

use crate::group::{Group, Node, cut_ns};
use crate::state::Trouble;
use crate::{Controller, Problem, State};

/// The shortest time without any message after which the controller is the one that was cut off,
/// and at least half of the time after which a node counts as silent. Every node sends ten
/// keepalives a second.
const DEAF_NS_MIN: Duration = 140 * MS;
/// The time for which a node of another rack is reported.
const STRANGER_NS: Duration = 2_000 * MS;

/// The controller's hearing, of any node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hearing {
    /// The time since which it could hear: its start, or the end of the last time without any
    /// message.
    pub since: Option<Instant>,
    /// The time of the last message of any node.
    last: Instant,
    /// A node of another rack, with the time of its message.
    stranger: Option<(Addr, Instant)>,
}

impl Hearing {
    /// Whether no node is heard, so that the controller itself was cut off or paused.
    pub(crate) fn is_deaf(&self, now: Instant, failure_ns: Duration, guards: Guards) -> bool {
        let patience_ns = (failure_ns / 2).max(DEAF_NS_MIN);
        self.since.is_some() && now.since(self.last) > patience_ns && guards.on(Guard::Deaf)
    }

    /// The end of the time in which silence counts: the last message of any node. After it, the
    /// cause of silence is unknown.
    pub(crate) fn heard_until(&self, now: Instant, guards: Guards) -> Instant {
        if guards.on(Guard::Deaf) { self.last } else { now }
    }

    /// The time since which a node that was heard at `heard_at`, if ever, counts as silent.
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
    /// Takes another state, and forgets the numbers that were ahead of the old one.
    pub(crate) fn know(&mut self, state: &State) {
        let epoch = state.config(self.id()).map_or(0, |c| c.epoch);
        let known = |h: &Heard| h.epoch <= epoch && h.switch_id <= state.last_switch_id;
        self.ahead.take_if(|heard| known(heard));
    }

    /// Notes numbers that a node has heard of: if they exceed the state's, the state is not the
    /// newest.
    pub(crate) fn note_ahead(&mut self, state: &State, heard: &Heard) {
        let config = state.config(self.id());
        // A group without members begins above all numbers.
        let begins = config.is_some_and(|c| c.members.is_empty());
        let epoch = if begins { u32::MAX } else { config.map_or(0, |c| c.epoch) };
        if heard.epoch > epoch || heard.switch_id > state.last_switch_id {
            let ahead = self.ahead.get_or_insert_default();
            ahead.epoch = ahead.epoch.max(heard.epoch);
            ahead.switch_id = ahead.switch_id.max(heard.switch_id);
        }
    }

    /// Notes a message of a node: if it is the first of the group's members after all were silent,
    /// the silence of the others counts from now on.
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

    /// Carries the times of a node's earlier reports over, if it repeats them.
    pub(crate) fn go_on(&self, failure_ns: Duration, now: &mut Node) {
        let Some(before) = self.nodes.get(&now.member.node).filter(|b| b.member == now.member)
        else {
            return;
        };
        now.was_kept |= before.was_kept;
        if before.epoch != now.epoch {
            // Members that it did not hear may have been in another epoch.
            return;
        }
        // A shorter pause is not a cut.
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
    /// Handles the numbers in a keepalive of a group's node. Returns whether the node belongs to
    /// this rack; a member of the configuration does, even if it has not heard of that yet
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
        // The numbers of a new state are above all that any node has heard of.
        if let Some(recovery) = &self.recovery {
            let meant = self.rack_meant(recovery).ok().flatten();
            let is_own = meant.is_none_or(|rack| heard.rack == 0 || heard.rack == rack);
            self.count.foreign += u64::from(!is_own);
            return is_own;
        }
        if !self.setup.guards.on(Guard::StateHeard) {
            return true;
        }
        // Its nodes may belong to the earlier rack, if that is known.
        let (rack, before) = (self.state.rack, self.rack_before);
        let is_own = heard.rack == rack || (is_fresh && (before == 0 || heard.rack == before));
        if rack != 0 && heard.rack != 0 && !is_own && !is_placed {
            self.count.foreign += 1;
            // Keeps reporting the same one of several.
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

    /// Notes that the controller can hear. Called for every packet, since the first one after a
    /// silence precedes the first tick.
    fn note_hearing(&mut self, now: Instant) {
        if self.hearing.is_deaf(now, self.setup.switch_failure_ns(), self.setup.guards) {
            self.count.deaf += 1;
            self.hearing.since = Some(now);
        }
        self.hearing.since.get_or_insert(now);
        self.hearing.last = self.hearing.last.max(now);
    }

    /// Whether the controller neither decides nor sends configurations: its state is not the
    /// newest, or is still to be rebuilt.
    pub(crate) fn is_mute(&self) -> bool {
        self.is_behind() || self.recovery.is_some()
    }

    /// A problem that follows from the messages heard.
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
        let of_group = self.groups.iter().find_map(|group| {
            let config = self.state.config(group.id())?;
            let problem = group.setup.rules().problem(&self.look(now, group), config)?;
            Some(Trouble::of(group.id(), problem))
        });
        let differs = |group: &Group| Some(Trouble::of(group.id(), group.comparisons.problem()?));
        of_group.or_else(|| self.groups.iter().find_map(differs))
    }

    fn ahead_problem(&self, group: GroupId, ahead: Heard) -> Problem {
        let (heard_epoch, heard_switch_id) = (ahead.epoch, ahead.switch_id);
        match self.state.config(group) {
            Some(config) => Problem::StateOld { epoch: config.epoch, heard_epoch, heard_switch_id },
            None => Problem::StateLost { heard_epoch, heard_switch_id },
        }
    }
}
