//! The next configurations: the work that all kinds of groups have in common. The decisions of each
//! kind are in its own file.

use alloc::vec::Vec;

use concord_core::{Instant, Now};
use concord_wire::control::{Config, Member};

use crate::group::{Gone, Group, Look, Node, Places};
use crate::state::Trouble;
use crate::switches::NextSwitch;
use crate::{Controller, GroupState, Problem, REPLICAS_MAX, State};

/// A group's next step.
enum Next {
    /// Nothing changes, or nothing can be changed now.
    Same,
    /// It cannot begin yet.
    Waits(Problem),
    /// It cannot continue.
    Stuck(Problem),
    /// Another configuration: the places, and the members that have all the data.
    Change(Places, Vec<u16>),
}

impl Controller {
    /// Proposes other configurations, if the present knowledge requires them.
    pub(crate) fn reconsider(&mut self, now: Now) {
        if self.proposed.is_some() {
            return;
        }
        let now = now.instant;
        if now < self.store_again_at {
            return;
        }
        self.before_proposal = (self.count, self.mistrusted.len());
        self.problem = self.heard_problem(now);
        if self.recovery.is_some() {
            return self.try_recover(now);
        }
        self.hearing.since.get_or_insert(now);
        let is_deaf = self.hearing.is_deaf(now, self.setup.switch_failure_ns(), self.setup.guards);
        if is_deaf && self.state.groups.is_empty() {
            self.note_wait(now, self.first_wait(now));
        }
        if is_deaf || self.is_mute() {
            return;
        }
        self.confirm(now);
        let active = self.next_switch(now);
        let mut changes = Vec::new();
        for index in 0..self.groups.len() {
            let id = self.groups[index].id();
            let needs_switch = self.groups[index].setup.rules().needs_switch();
            let switch = if needs_switch { active } else { Some(NextSwitch::NONE) };
            let Some(switch) = switch else {
                self.note_wait(now, Problem::WaitsForSwitch.into());
                continue;
            };
            match self.next_of(now, &self.groups[index], switch) {
                Next::Same => {}
                Next::Waits(problem) => self.note_wait(now, Trouble::of(id, problem)),
                // If all heard nodes are of another rack, that is the reason.
                Next::Stuck(problem) => {
                    self.problem.get_or_insert(Trouble::of(id, problem));
                }
                Next::Change(places, caught_up) => match self.next_epoch(&self.groups[index]) {
                    Ok(_) => changes.push((index, places, caught_up)),
                    // The other groups continue.
                    Err(problem) => self.problem = Some(Trouble::of(id, problem)),
                },
            }
        }
        if changes.is_empty() {
            return;
        }
        if let Err(problem) = self.propose(now, active.unwrap_or(NextSwitch::NONE), changes) {
            self.problem = Some(problem);
        }
    }

    /// Notes the groups whose configurations are known to be the newest: all members are heard, and
    /// none has heard of a later one.
    fn confirm(&mut self, now: Instant) {
        for index in 0..self.groups.len() {
            let group = &self.groups[index];
            let Some(config) = self.founded(group).filter(|_| !group.is_confirmed) else {
                continue;
            };
            let look = self.look(now, group);
            let is_confirmed = config.members.iter().all(|m| look.attests(m));
            self.groups[index].is_confirmed = is_confirmed;
        }
    }

    /// The view of the controller's knowledge that a kind of group gets.
    pub(crate) fn look<'a>(&'a self, now: Instant, group: &'a Group) -> Look<'a> {
        Look {
            now,
            nodes: &group.nodes,
            epoch: self.state.config(group.id()).map_or(0, |c| c.epoch),
            caught_up: self.state.group(group.id()).map_or(&[][..], |g| &g.caught_up),
            storages: self.state.group(group.id()).map_or(&[][..], |g| &g.storages),
            durable: &group.durable,
            hearing: &self.hearing,
            is_confirmed: group.is_confirmed,
            back_since: group.back_since,
            failure_ns: group.failure_ns(self.setup.failure_ns),
            guards: self.setup.guards,
        }
    }

    /// The reason for which the first group of a new rack waits.
    fn first_wait(&self, now: Instant) -> Trouble {
        let waits = |group: &Group| {
            let waits = group.setup.rules().founders(&self.look(now, group)).err()??;
            Some(Trouble::of(group.id(), waits))
        };
        self.groups.iter().find_map(waits).unwrap_or(Problem::WaitsForSwitch.into())
    }

    fn next_of(&self, now: Instant, group: &Group, switch: NextSwitch) -> Next {
        let (rules, look) = (group.setup.rules(), self.look(now, group));
        let Some(old) = self.founded(group) else {
            if self.is_left_out(group) {
                return Next::Stuck(Problem::LeftOut);
            }
            return match rules.founders(&look) {
                Ok(members) => {
                    let caught_up = members.iter().map(|m| m.node).collect();
                    Next::Change(Places { members, joining: Vec::new() }, caught_up)
                }
                Err(Some(waits)) => Next::Waits(waits),
                Err(None) => Next::Same,
            };
        };
        let places = rules.survivors(&look, old);
        let same_switch = !rules.needs_switch()
            || switch.incarnation == old.switch_incarnation && switch.addr == old.switch;
        if places.members == old.members && places.joining == old.joining && same_switch {
            return Next::Same;
        }
        match rules.go_on(&look, old, &places.members) {
            Ok(caught_up) => Next::Change(places, caught_up),
            Err(Some(problem)) => Next::Stuck(problem),
            Err(None) => Next::Same,
        }
    }

    /// Whether the state was rebuilt without this group, which has data all the same: the members
    /// that have all of it are not known.
    fn is_left_out(&self, group: &Group) -> bool {
        let has_data = |n: &Node| n.rack == self.state.rack && n.epoch > 0;
        group.setup.rules().holds_data()
            && !group.is_fresh
            && self.state.config(group.id()).is_some()
            && group.nodes.values().any(has_data)
    }

    /// A group's configuration in force, unless the group begins with the next one.
    fn founded(&self, group: &Group) -> Option<&Config> {
        self.state.config(group.id()).filter(|c| !c.members.is_empty())
    }

    /// Proposes the groups' next configurations, in one state, with the rack's switch.
    fn propose(
        &mut self,
        now: Instant,
        active: NextSwitch,
        changes: Vec<(usize, Places, Vec<u16>)>,
    ) -> Result<(), Trouble> {
        let mut state = self.state.clone();
        state.version += 1;
        if state.rack == 0 {
            state.rack = self.setup.rack;
        }
        for (index, ..) in &changes {
            // The numbers of a new group are above all that any node has heard of.
            let group = &self.groups[*index];
            if self.founded(group).is_none() {
                state.last_switch_id = state.last_switch_id.max(group.highest.switch_id);
            }
        }
        // A group that is founded (again) beside a running switch gets a new switch id: the switch
        // may still have numbers, registers and, in VR, views of an earlier group. So does a group
        // whose program has changed since the controller's start: a switch does not change a
        // program under one id.
        let asks_for_id = |(index, places, _): &&(usize, Places, Vec<u16>)| {
            let group = &self.groups[*index];
            self.founded(group).is_none_or(|old| {
                let rules = group.setup.rules();
                (rules.needs_switch() && old.switch_incarnation != active.incarnation)
                    || (old.kind.is_quorum() && !same_crash_vector(&old.members, &places.members))
                    || (old.kind, old.program) != rules.template()
            })
        };
        let renewed: Vec<usize> = changes.iter().filter(asks_for_id).map(|(i, ..)| *i).collect();
        // After the state was rebuilt, no switch has the last id: the next configurations take it.
        let is_spared = !state.groups.iter().any(|g| g.config.switch_id == state.last_switch_id);
        if !renewed.is_empty() {
            let takes = |index: &usize| self.groups[*index].setup.rules().needs_switch();
            let switch = if renewed.iter().any(takes) { Some(active) } else { None };
            self.grant(&mut state, switch)?;
        }
        for (index, places, caught_up) in changes {
            let group = &self.groups[index];
            let epoch = self.next_epoch(group).map_err(|p| Trouble::of(group.id(), p))?;
            // A chain has its number for ever: with another one it would begin anew.
            let keeps = !is_spared || !group.setup.rules().needs_switch();
            let known = self.founded(group).filter(|_| keeps && !renewed.contains(&index));
            let switch_id = known.map_or(state.last_switch_id, |c| c.switch_id);
            if !group.setup.rules().takes_number(switch_id) {
                return Err(Trouble::of(group.id(), Problem::SwitchIdsExhausted));
            }
            let (kind, program) = group.setup.rules().template();
            let needs_switch = group.setup.rules().needs_switch();
            let switch = if needs_switch { active } else { NextSwitch::NONE };
            let group = group.id();
            self.count_changes(now, index, &places);
            let config = Config {
                epoch,
                group,
                rack: state.rack,
                switch_id,
                switch_incarnation: switch.incarnation,
                switch: switch.addr,
                kind,
                program,
                members: places.members,
                joining: places.joining,
            };
            let storages = self.groups[index].storages(self.state.group(group), &config);
            state.put(GroupState { config, caught_up, storages });
        }
        self.suggest(state);
        Ok(())
    }

    /// A state to be persisted.
    pub(crate) fn suggest(&mut self, state: State) {
        self.proposed = Some(state);
        self.handed_out = false;
    }

    fn next_epoch(&self, group: &Group) -> Result<u32, Problem> {
        let mut last = self.state.config(group.id()).map_or(0, |c| c.epoch);
        if self.founded(group).is_none() {
            last = last.max(group.highest.epoch);
        }
        last.checked_add(1).ok_or(Problem::EpochsExhausted)
    }

    /// Notes that the first epoch waits. This is reported only after a while, since roles that are
    /// started together register within moments.
    fn note_wait(&mut self, now: Instant, waits: Trouble) {
        let since = self.hearing.since.unwrap_or(now);
        if now.since(since) > self.setup.failure_ns {
            self.problem.get_or_insert(waits);
        }
    }

    fn count_changes(&mut self, now: Instant, index: usize, next: &Places) {
        let group = &self.groups[index];
        let look = self.look(now, group);
        let Some(old) = self.founded(group) else { return };
        let mut count = self.count;
        let mistrusted = |m: &Member| Some((group.id(), m.node, look.mistrust(m)?));
        let mut mistrusted: Vec<_> = old.members.iter().filter_map(mistrusted).collect();
        mistrusted.retain(|(_, node, _)| !next.members.iter().any(|m| m.node == *node));
        for member in old.members.iter().filter(|m| !next.members.contains(m)) {
            if look.returned(old, member).is_some_and(|m| next.members.contains(&m)) {
                count.returned += 1;
                continue;
            }
            match look.gone(old.epoch, member).unwrap_or(Gone::Cut) {
                Gone::Restarted => count.removed_restarted += 1,
                Gone::Leaving => count.removed_leaving += 1,
                Gone::Silent => count.removed_silent += 1,
                Gone::Cut => count.removed_cut += 1,
            }
        }
        // A member of a memory that leaves is among those who join: it did not come.
        let came = |m: &&Member| !old.joining.contains(m) && !old.members.contains(m);
        count.admitted += next.joining.iter().filter(came).count() as u64;
        for member in old.joining.iter().filter(|m| !next.joining.contains(m)) {
            let promoted = u64::from(next.members.contains(member));
            count.promoted += promoted;
            count.joining_removed += 1 - promoted;
        }
        self.count = count;
        self.mistrusted.append(&mut mistrusted);
        self.mistrusted.truncate(REPLICAS_MAX);
    }
}

/// Whether these are the same processes, at whatever addresses.
fn same_crash_vector(one: &[Member], other: &[Member]) -> bool {
    let incarnation = |m: &Member| (m.node, m.incarnation);
    one.iter().map(incarnation).eq(other.iter().map(incarnation))
}
