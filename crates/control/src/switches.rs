//! The rack's switches: the active one, and the grants of switch ids. All groups share one switch.

use alloc::vec::Vec;

use concord_core::{Instant, Now};
use concord_wire::control::{Membership, Message as _};
use concord_wire::{Addr, GroupId, Sink};

use crate::{Controller, Problem, RETIRED_MAX, SWITCHES_MAX, State};

/// A switch that was heard.
#[derive(Clone, Debug)]
pub(crate) struct Switch {
    pub incarnation: u64,
    pub addr: Addr,
    pub sent_at: u64,
    /// The epoch that it runs for each group that it reported.
    pub epochs: Vec<(GroupId, u32)>,
    pub standby: bool,
    pub heard_at: Instant,
}

/// The switch with which a configuration continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextSwitch {
    pub incarnation: u64,
    pub addr: Addr,
    pub standby: bool,
}

impl NextSwitch {
    /// A group that is of no switch of the rack.
    pub(crate) const NONE: NextSwitch =
        NextSwitch { incarnation: 0, addr: Addr { ip: 0, port: 0 }, standby: false };
}

impl Switch {
    pub(crate) fn epoch(&self, group: GroupId) -> u32 {
        self.epochs.iter().find(|(id, _)| *id == group).map_or(0, |(_, epoch)| *epoch)
    }
}

impl Controller {
    pub(crate) fn on_switch(&mut self, now: Now, mut switch: Switch, sink: &mut impl Sink) {
        if !self.is_mute() && self.state.retired_switches.contains(&switch.incarnation) {
            // It was replaced while it was paused, or because of a late packet.
            let active = self.active_addr();
            let incarnation = switch.incarnation;
            let group = switch.epochs.first().map_or(GroupId::FIRST, |(id, _)| *id);
            let retired = Membership::SwitchRetired { incarnation, switch: active };
            retired.emit_in(group, &mut self.scratch);
            return sink.send(switch.addr, &self.scratch);
        }
        // Its reports on other groups stay.
        let known = self.switches.get(&switch.addr);
        if let Some(known) = known.filter(|k| k.incarnation == switch.incarnation) {
            let told = switch.epochs.first().map(|(id, _)| *id);
            let others = known.epochs.iter().filter(|(id, _)| Some(*id) != told);
            switch.epochs.extend(others);
        }
        self.switches.insert(switch.addr, switch);
        if self.switches.len() > SWITCHES_MAX {
            self.forget_switch();
        }
        self.reconsider(now);
        if !self.is_mute() {
            self.configure_switch(now.instant, sink);
        }
    }

    /// The address of the active switch, according to the newest configuration.
    fn active_addr(&self) -> Addr {
        let active = self.state.switch_incarnation;
        let mut configs = self.state.groups.iter().map(|g| &g.config);
        let own = configs.find(|c| c.switch_incarnation == active);
        own.map_or(Addr::default(), |c| c.switch)
    }

    /// Forgets the switch that has been silent for longest, among those that are not active.
    fn forget_switch(&mut self) {
        let active = self.state.switch_incarnation;
        let others = self.switches.values().filter(|s| s.incarnation != active);
        if let Some(addr) = others.min_by_key(|s| s.heard_at).map(|s| s.addr) {
            self.switches.remove(&addr);
        }
    }

    /// Configures the switch. It learns of an epoch only once that is open at every member: by then
    /// all of them refuse the fast reads of any other switch (Harmonia §6.3). In groups without
    /// data it does not wait: owners sort out what workers do for an old switch.
    ///
    /// Not in groups whose leader configures the switch, so that a view change needs no controller.
    pub(crate) fn configure_switch(&mut self, now: Instant, sink: &mut impl Sink) {
        let active = self.state.switch_incarnation;
        let mut scratch = core::mem::take(&mut self.scratch);
        for switch in self.switches.values().filter(|s| s.incarnation == active).take(1) {
            for group in &self.groups {
                let Some(config) = self.state.config(group.id()) else { continue };
                // A group that cannot continue still has the configuration of the earlier switch.
                let is_its = config.switch_incarnation == active;
                let rules = group.setup.rules();
                let waits = rules.holds_data();
                if rules.tells_switch()
                    && is_its
                    && !config.members.is_empty()
                    && config.epoch > switch.epoch(group.id())
                    && (!waits || self.look(now, group).is_open_everywhere(config))
                {
                    config.send(switch.addr, &mut scratch, sink);
                }
            }
        }
        self.scratch = scratch;
    }

    /// Grants a new switch id, which is persisted before any node is told (trap T20). Without a
    /// switch it is the number of a chain alone, and the rack's switch goes on with its own.
    pub(crate) fn grant(
        &mut self,
        state: &mut State,
        switch: Option<NextSwitch>,
    ) -> Result<(), Problem> {
        let id = state.last_switch_id.checked_add(1).ok_or(Problem::SwitchIdsExhausted)?;
        state.last_switch_id = id;
        self.count.switch_ids_granted += 1;
        let Some(switch) = switch else { return Ok(()) };
        if state.switch_incarnation != 0 && state.switch_incarnation != switch.incarnation {
            state.retired_switches.push(state.switch_incarnation);
            let excess = state.retired_switches.len().saturating_sub(RETIRED_MAX);
            state.retired_switches.drain(..excess);
        }
        state.switch_incarnation = switch.incarnation;
        self.count.standbys_taken += u64::from(switch.standby);
        Ok(())
    }

    /// The switch with which to continue: the active one; a new incarnation of it, or one that was
    /// started in its place; a standby once the active one is silent. `None` if there is none.
    pub(crate) fn next_switch(&self, now: Instant) -> Option<NextSwitch> {
        let active = self.state.switch_incarnation;
        let own = self.switches.values().find(|s| s.incarnation == active);
        let retired = &self.state.retired_switches;
        let others = self.switches.values().filter(|s| {
            s.incarnation != active
                && !retired.contains(&s.incarnation)
                && now.since(s.heard_at) <= self.setup.failure_ns
        });
        let newcomer = others.clone().filter(|s| !s.standby).max_by_key(|s| s.heard_at);
        let heard_at = own.map(|s| s.heard_at);
        let silent_since = self.hearing.silent_since(heard_at, self.setup.guards);
        let is_silent = now.since(silent_since) > self.setup.switch_failure_ns();
        let standby = others.max_by_key(|s| s.heard_at);
        let taking_over = if is_silent || active == 0 { standby } else { None };
        if let Some(other) = newcomer.or(taking_over).or(own) {
            let Switch { incarnation, addr, standby, .. } = *other;
            return Some(NextSwitch { incarnation, addr, standby });
        }
        // A controller that has just started knows the active switch from its state.
        let mut configs = self.state.groups.iter().map(|g| &g.config);
        let known = configs.find(|c| c.switch_incarnation == active && !c.members.is_empty())?;
        let addr = known.switch;
        (active != 0).then_some(NextSwitch { incarnation: active, addr, standby: false })
    }
}
