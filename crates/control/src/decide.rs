//! Which configuration comes next: who is gone, who comes, which switch is active.

use alloc::vec::Vec;

use concord_core::{Guard, Instant, Now};
use concord_wire::control::{Config, Member, Standing};
use concord_wire::{Addr, GroupId};

use crate::{Controller, Problem, REPLICAS_MAX, RETIRED_MAX, Replica, State, Switch};

/// Why a replica loses its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    Silent,
    Restarted,
    Leaving,
    /// It and another member do not hear each other.
    Cut,
}

impl Controller {
    /// Whether what is known asks for another configuration; if so, proposes it.
    pub(crate) fn reconsider(&mut self, now: Now) {
        if self.proposed.is_some() {
            return;
        }
        self.problem = self.heard_problem(now.instant);
        if self.recovery.is_some() {
            return self.try_recover(now.instant);
        }
        self.hearing.since.get_or_insert(now.instant);
        let is_deaf = self.is_deaf(now.instant);
        if is_deaf && self.state.config.is_none() {
            self.note_wait(now.instant, self.founders().err().unwrap_or(Problem::WaitsForSwitch));
        }
        if is_deaf || self.is_mute() {
            return;
        }
        let Some(switch) = self.next_switch(now.instant) else {
            return self.note_wait(now.instant, Problem::WaitsForSwitch);
        };
        let old = self.state.config.clone().unwrap_or_else(|| self.nothing());
        let (members, joining, whole) = if old.members.is_empty() {
            let members = match self.founders() {
                Ok(members) => members,
                Err(waits) => return self.note_wait(now.instant, waits),
            };
            let whole = members.iter().map(|m| m.node).collect();
            (members, Vec::new(), whole)
        } else {
            let (members, joining) = self.survivors(now.instant, &old);
            let same_switch =
                switch.incarnation == self.state.switch_incarnation && switch.addr == old.switch;
            if members == old.members && joining == old.joining && same_switch {
                return;
            }
            let is_whole = |m: &&Member| self.is_whole(&old, m);
            let whole: Vec<u16> = members.iter().filter(is_whole).map(|m| m.node).collect();
            if whole.is_empty() {
                // Where all who are heard are of another rack, that is why.
                self.problem.get_or_insert(Problem::NobodyWhole);
                return;
            }
            if !self.has_heard(&members) {
                return;
            }
            (members, joining, whole)
        };
        let mut state = self.state.clone();
        state.version += 1;
        state.whole = whole;
        let mut rack = old.rack;
        let mut last_epoch = old.epoch;
        if old.members.is_empty() {
            // The first configuration, or the first after what was before was given up: its numbers
            // go on behind all that anybody has heard of.
            rack = self.setup.rack;
            last_epoch = last_epoch.max(self.hearing.highest.epoch);
            state.last_switch_id = state.last_switch_id.max(self.hearing.highest.switch_id);
        }
        // A group that was founded anew beside a running switch: its numbers, its registers and, in VR, its
        // views are those of the group before, so it gets a new id.
        let is_anew = old.members.is_empty() && state.last_switch_id > 0;
        let is_other = switch.incarnation != state.switch_incarnation;
        if (is_other || is_anew) && !self.grant(&mut state, &switch) {
            return;
        }
        let Some(epoch) = last_epoch.checked_add(1) else {
            self.problem = Some(Problem::EpochsExhausted);
            return;
        };
        self.count_changes(now.instant, &old, &members, &joining);
        state.config = Some(Config {
            epoch,
            group: GroupId(0),
            rack,
            switch_id: state.last_switch_id,
            switch_incarnation: switch.incarnation,
            switch: switch.addr,
            protocol: self.setup.protocol,
            program: self.setup.program,
            members,
            joining,
        });
        self.proposed = Some(state);
        self.handed_out = false;
    }

    /// The configuration before the first.
    fn nothing(&self) -> Config {
        Config {
            epoch: 0,
            group: GroupId(0),
            rack: 0,
            switch_id: 0,
            switch_incarnation: 0,
            switch: Addr::default(),
            protocol: self.setup.protocol,
            program: self.setup.program,
            members: Vec::new(),
            joining: Vec::new(),
        }
    }

    /// A new switch id, persisted before anybody hears of it (trap T20).
    fn grant(&mut self, state: &mut State, switch: &Switch) -> bool {
        let Some(id) = state.last_switch_id.checked_add(1) else {
            self.problem = Some(Problem::SwitchIdsExhausted);
            return false;
        };
        if state.switch_incarnation != 0 && state.switch_incarnation != switch.incarnation {
            state.retired_switches.push(state.switch_incarnation);
            let excess = state.retired_switches.len().saturating_sub(RETIRED_MAX);
            state.retired_switches.drain(..excess);
        }
        state.switch_incarnation = switch.incarnation;
        state.last_switch_id = id;
        self.count.switch_ids_granted += 1;
        self.count.standbys_taken += u64::from(switch.standby);
        true
    }

    /// The switch to go on with: the active one; a new life of it, or one that was started in its
    /// place; a standby once the active one is silent. `None` if there is none.
    fn next_switch(&self, now: Instant) -> Option<Switch> {
        let active = self.state.switch_incarnation;
        let own = self.switches.values().find(|s| s.incarnation == active);
        let retired = &self.state.retired_switches;
        let others = self.switches.values().filter(|s| {
            s.incarnation != active
                && !retired.contains(&s.incarnation)
                && now.since(s.heard_at) <= self.setup.failure_ns
        });
        let newcomer = others.clone().filter(|s| !s.standby).max_by_key(|s| s.heard_at);
        let silent_since = self.silent_since(own.map(|s| s.heard_at));
        let is_silent = now.since(silent_since) > self.setup.failure_ns;
        let standby = others.max_by_key(|s| s.heard_at);
        let taking_over = if is_silent || active == 0 { standby } else { None };
        if let Some(other) = newcomer.or(taking_over) {
            return Some(*other);
        }
        // A controller that was just started knows of the active switch what it wrote.
        own.copied().or_else(|| {
            let config = self.state.config.as_ref()?;
            (active != 0 && !config.members.is_empty()).then_some(Switch {
                incarnation: active,
                addr: config.switch,
                sent_at: 0,
                epoch: config.epoch,
                standby: false,
                heard_at: silent_since,
            })
        })
    }

    /// The members of the first epoch: everybody who was expected, once all are there.
    fn founders(&self) -> Result<Vec<Member>, Problem> {
        let stays = |r: &&Replica| r.standing != Standing::Leaving;
        let founder = |node: u16| self.replicas.get(&node).filter(stays).map(|r| r.member);
        let expected = self.setup.replicas.iter().copied();
        let mut missing = expected.clone().filter(|node| founder(*node).is_none());
        if let Some(node) = missing.next() {
            let others = u16::try_from(missing.count()).unwrap_or(u16::MAX);
            return Err(Problem::WaitsForReplicas { node, others });
        }
        Ok(expected.filter_map(founder).collect())
    }

    /// The first epoch waits. Roles that are started together come within moments, so that this is
    /// said only once they had the time.
    fn note_wait(&mut self, now: Instant, waits: Problem) {
        let since = self.hearing.since.unwrap_or(now);
        if now.since(since) > self.setup.failure_ns {
            self.problem.get_or_insert(waits);
        }
    }

    /// Whether a member has everything that was committed: it had, or it has said so since.
    pub(crate) fn is_whole(&self, old: &Config, member: &Member) -> bool {
        let said = self.replicas.get(&member.node).is_some_and(|r| {
            r.member.incarnation == member.incarnation
                && r.epoch == old.epoch
                && matches!(
                    r.standing,
                    Standing::Open { whole: true } | Standing::Opening { whole: true }
                )
        });
        said || self.state.whole.contains(&member.node) || !self.setup.guards.on(Guard::Whole)
    }

    /// Who of the old configuration still has its place, and who comes. In VR all have, for ever,
    /// and nobody comes: who is silent is outvoted, who restarted recovers, and the founders' lives
    /// are the group's name.
    fn survivors(&self, now: Instant, old: &Config) -> (Vec<Member>, Vec<Member>) {
        if self.setup.protocol.is_quorum() {
            return (old.members.clone(), Vec::new());
        }
        let stays = |m: &&Member| self.gone(now, old.epoch, m).is_none();
        let mut members: Vec<Member> = old.members.iter().filter(stays).copied().collect();
        let mut joining: Vec<Member> = old.joining.iter().filter(stays).copied().collect();
        if members.is_empty() {
            return (members, joining);
        }
        if let Some(node) = self.cut_off(now, old, &members) {
            members.retain(|m| m.node != node);
        }
        let cut_counts = self.setup.guards.on(Guard::CutPair);
        let hears_all = |r: &Replica| {
            !r.unheard.iter().any(|(node, _)| members.iter().any(|m| m.node == *node))
        };
        let copied = |m: &Member| {
            let said = self.replicas.get(&m.node);
            said.is_some_and(|r| {
                r.epoch == old.epoch
                    && r.standing == Standing::Copied
                    && (hears_all(r) || !cut_counts)
            })
        };
        let copied: Vec<u16> = joining.iter().filter(|m| copied(m)).map(|m| m.node).collect();
        members.extend(joining.extract_if(.., |m| copied.contains(&m.node)));
        // One change at a time: the last must be over before others come.
        if self.is_open_everywhere() {
            for replica in self.replicas.values() {
                let known = members.iter().chain(&joining).any(|m| m.node == replica.member.node);
                let asks = replica.standing == Standing::Out
                    && replica.epoch == old.epoch
                    && now.since(replica.heard_at) <= self.setup.failure_ns;
                if asks && !known && members.len() + joining.len() < REPLICAS_MAX {
                    joining.push(replica.member);
                }
            }
        }
        (members, joining)
    }

    /// Why a replica loses its place in that epoch, if it does.
    fn gone(&self, now: Instant, epoch: u32, member: &Member) -> Option<Gone> {
        let known = self.replicas.get(&member.node);
        let silent_since = self.silent_since(known.map(|r| r.heard_at));
        let is_other_life =
            |r: &Replica| r.member.incarnation != member.incarnation && r.epoch == epoch;
        let restarted =
            known.is_some_and(is_other_life) && self.setup.guards.on(Guard::Incarnation);
        if restarted {
            Some(Gone::Restarted)
        } else if known.is_some_and(|r| r.standing == Standing::Leaving && r.epoch == epoch) {
            Some(Gone::Leaving)
        } else if now.since(silent_since) > self.setup.failure_ns {
            Some(Gone::Silent)
        } else {
            None
        }
    }

    fn count_changes(
        &mut self,
        now: Instant,
        old: &Config,
        members: &[Member],
        joining: &[Member],
    ) {
        for member in old.members.iter().filter(|m| !members.contains(m)) {
            match self.gone(now, old.epoch, member).unwrap_or(Gone::Cut) {
                Gone::Restarted => self.count.removed_restarted += 1,
                Gone::Leaving => self.count.removed_leaving += 1,
                Gone::Silent => self.count.removed_silent += 1,
                Gone::Cut => self.count.removed_cut += 1,
            }
        }
        let came = |m: &&Member| !old.joining.contains(m);
        self.count.admitted += joining.iter().filter(came).count() as u64;
        for member in old.joining.iter().filter(|m| !joining.contains(m)) {
            let promoted = u64::from(members.contains(member));
            self.count.promoted += promoted;
            self.count.joining_removed += 1 - promoted;
        }
    }
}
