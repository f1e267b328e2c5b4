//! The controller as a machine: who is who. Epochs, switch ids, failure detection.
//!
//! Read [`Controller`] and [`State`] first. A configuration exists only after it was persisted by
//! compare-and-swap (trap T3): [`Controller::poll_persist`] gives the state to write, and nobody
//! hears of it before [`Controller::persisted`]. Leases are not the controller's (trap T8): the data
//! path goes on without it.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Guard, Guards, Instant, MS, Now, counters};
use concord_wire::control::{Config, Control, Member, Protocol};
use concord_wire::{Addr, Kind, Sink};
use serde::{Deserialize, Serialize};

const TICK_NS: Duration = 50 * MS;
const RETIRED_MAX: usize = 64;

/// What the controller is told at its start.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The nodes that the first epoch waits for, in order: head first.
    pub replicas: Vec<u16>,
    /// How they replicate.
    pub protocol: Protocol,
    /// Whether the switch helps.
    pub accelerated: bool,
    /// A replica that is not heard of for so long is removed, in ns.
    pub failure_ns: Duration,
    /// Start anew with whoever registers: the data of earlier members is given up. Switch ids go on.
    pub fresh: bool,
    /// Which guards are on; all of them outside tests.
    pub guards: Guards,
}

/// What is persisted. `version` rises by one with each write: the compare-and-swap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Number of this state.
    pub version: u64,
    /// The configuration in force; `None` before the first.
    pub config: Option<Config>,
    /// The switch's life to which the active switch id was granted.
    pub switch_incarnation: u64,
    /// The last switch id that was granted; never goes back (trap T20).
    pub last_switch_id: u32,
    /// Earlier lives of the switch: one that wakes up is not granted anything again.
    pub retired_switches: Vec<u64>,
}

counters! {
    /// What the controller counted.
    pub struct ControllerCounters {
        /// Configurations put in force.
        epochs,
        /// Replicas removed because they were silent.
        removed_silent,
        /// Replicas removed because they restarted.
        removed_restarted,
        /// Replicas removed because they asked for it.
        removed_leaving,
        /// Switch ids granted.
        switch_ids_granted,
        /// Malformed datagrams dropped.
        malformed,
        /// Packets of no use here dropped.
        unexpected,
    }
}

#[derive(Clone, Copy, Debug)]
struct Replica {
    member: Member,
    epoch: u32,
    open: bool,
    leaving: bool,
    heard_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Switch {
    incarnation: u64,
    addr: Addr,
    epoch: u32,
}

/// The controller.
#[derive(Debug)]
pub struct Controller {
    setup: ControllerConfig,
    state: State,
    /// Written but not yet known to be persisted.
    proposed: Option<State>,
    /// Whether `proposed` was handed to the driver.
    handed_out: bool,
    replicas: BTreeMap<u16, Replica>,
    switch: Option<Switch>,
    started_at: Option<Instant>,
    /// When it last took an input.
    awake_at: Instant,
    next_tick: Instant,
    scratch: Vec<u8>,
    count: ControllerCounters,
}

impl Controller {
    /// A controller that goes on from `state`, or begins.
    #[must_use]
    pub fn new(setup: ControllerConfig, state: Option<State>) -> Controller {
        let mut state = state.unwrap_or_default();
        let epoch = state.config.as_ref().map_or(0, |c| c.epoch);
        if setup.fresh
            && let Some(config) = &mut state.config
        {
            // The next epoch is the first of the new group; its number goes on.
            config.members.clear();
            config.epoch = epoch;
        }
        Controller {
            setup,
            state,
            proposed: None,
            handed_out: false,
            replicas: BTreeMap::new(),
            switch: None,
            started_at: None,
            awake_at: Instant(0),
            next_tick: Instant(0),
            scratch: Vec::new(),
            count: ControllerCounters::default(),
        }
    }

    /// A controller that was paused has not heard what arrived meanwhile: everybody gets another
    /// chance before it calls them silent. Looked at with every input, since the first packet after
    /// the pause comes before the first tick.
    fn note_pause(&mut self, now: Now) {
        if now.instant.since(self.awake_at) > self.setup.failure_ns / 2 {
            for replica in self.replicas.values_mut() {
                replica.heard_at = replica.heard_at.max(now.instant);
            }
            self.started_at = Some(now.instant);
        }
        self.awake_at = self.awake_at.max(now.instant);
    }

    /// Takes one datagram.
    pub fn handle(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        self.note_pause(now);
        let message = match concord_wire::kind(bytes) {
            Ok(Kind::Control) => Control::parse(bytes),
            Ok(Kind::Harmonia | Kind::Link) => {
                self.count.unexpected += 1;
                return;
            }
            Err(error) => Err(error),
        };
        match message {
            Ok(Control::ReplicaAlive { member, epoch, open, leaving }) => {
                let heard_at = now.instant;
                let replica = Replica { member, epoch, open, leaving, heard_at };
                self.on_replica(now, replica, sink);
            }
            Ok(Control::SwitchAlive { incarnation, addr, epoch }) => {
                self.on_switch(now, Switch { incarnation, addr, epoch }, sink);
            }
            Ok(Control::WhoIsWho { client }) => {
                if let Some(config) = &self.state.config {
                    Control::Configure(config.clone()).emit(&mut self.scratch);
                    sink.send(client, &self.scratch);
                }
            }
            Ok(_) => self.count.unexpected += 1,
            Err(_) => self.count.malformed += 1,
        }
    }

    fn on_replica(&mut self, now: Now, replica: Replica, sink: &mut impl Sink) {
        self.replicas.insert(replica.member.node, replica);
        self.reconsider(now);
        let Some(config) = &self.state.config else { return };
        if config.epoch > replica.epoch && !config.members.is_empty() {
            Control::Configure(config.clone()).emit(&mut self.scratch);
            sink.send(replica.member.addr, &self.scratch);
        } else if config.epoch == replica.epoch && replica.open {
            self.configure_switch(sink);
        }
    }

    fn on_switch(&mut self, now: Now, switch: Switch, sink: &mut impl Sink) {
        if self.state.retired_switches.contains(&switch.incarnation) {
            return;
        }
        self.switch = Some(switch);
        self.reconsider(now);
        self.configure_switch(sink);
    }

    /// The switch hears of an epoch only when it is open at every member: all of them refuse the
    /// fast reads of any other switch by then (Harmonia §6.3).
    ///
    /// Not in VR: its leader tells the switch itself, so that a view change waits for no controller.
    fn configure_switch(&mut self, sink: &mut impl Sink) {
        if self.setup.protocol == Protocol::Vr {
            return;
        }
        let (Some(config), Some(switch)) = (&self.state.config, &self.switch) else { return };
        let open = |m: &Member| {
            let replica = self.replicas.get(&m.node);
            replica.is_some_and(|r| r.open && r.epoch == config.epoch)
        };
        let granted = switch.incarnation == self.state.switch_incarnation;
        if granted
            && switch.epoch < config.epoch
            && !config.members.is_empty()
            && config.members.iter().all(open)
        {
            Control::Configure(config.clone()).emit(&mut self.scratch);
            sink.send(switch.addr, &self.scratch);
        }
    }

    /// Whether what is known asks for another configuration; if so, proposes it.
    fn reconsider(&mut self, now: Now) {
        if self.proposed.is_some() {
            return;
        }
        let Some(switch) = self.switch else { return };
        let started_at = *self.started_at.get_or_insert(now.instant);
        let members = match self.state.config.clone() {
            Some(config) if !config.members.is_empty() => {
                let old = &config.members;
                let (left, removed) = self.survivors(now.instant, started_at, old);
                let same_switch = switch.incarnation == self.state.switch_incarnation
                    && switch.addr == config.switch;
                if left.is_empty() || (left.len() == old.len() && same_switch) {
                    return;
                }
                self.count.add(&removed);
                left
            }
            _ => match self.founders() {
                Some(members) => members,
                None => return,
            },
        };
        let mut state = self.state.clone();
        state.version += 1;
        if switch.incarnation != state.switch_incarnation {
            if state.switch_incarnation != 0 {
                state.retired_switches.push(state.switch_incarnation);
                let excess = state.retired_switches.len().saturating_sub(RETIRED_MAX);
                state.retired_switches.drain(..excess);
            }
            state.switch_incarnation = switch.incarnation;
            state.last_switch_id += 1;
            self.count.switch_ids_granted += 1;
        }
        state.config = Some(Config {
            epoch: self.state.config.as_ref().map_or(0, |c| c.epoch) + 1,
            switch_id: state.last_switch_id,
            switch: switch.addr,
            switch_incarnation: switch.incarnation,
            protocol: self.setup.protocol,
            accelerated: self.setup.accelerated,
            members,
        });
        self.proposed = Some(state);
        self.handed_out = false;
    }

    /// The members of the first epoch: everybody who was expected, once all are there.
    fn founders(&self) -> Option<Vec<Member>> {
        self.setup.replicas.iter().map(|node| self.replicas.get(node).map(|r| r.member)).collect()
    }

    /// Who of the old members is still one, and the count of why others are not. In VR all are, for
    /// ever: who is silent is outvoted, who restarted recovers, and the founders' incarnations are
    /// the group's name.
    fn survivors(
        &self,
        now: Instant,
        started_at: Instant,
        old: &[Member],
    ) -> (Vec<Member>, ControllerCounters) {
        let (mut left, mut count) = (Vec::new(), ControllerCounters::default());
        if self.setup.protocol == Protocol::Vr {
            return (old.to_vec(), count);
        }
        for member in old {
            let known = self.replicas.get(&member.node);
            let heard_at = known.map_or(started_at, |r| r.heard_at);
            let restarted = known.is_some_and(|r| r.member.incarnation != member.incarnation)
                && self.setup.guards.on(Guard::Incarnation);
            if restarted {
                count.removed_restarted += 1;
            } else if known.is_some_and(|r| r.leaving) {
                count.removed_leaving += 1;
            } else if now.since(heard_at) > self.setup.failure_ns {
                count.removed_silent += 1;
            } else {
                left.push(*member);
            }
        }
        (left, count)
    }

    /// The state to persist, if there is one: write it durably if and only if the stored version is
    /// one less, then call [`Controller::persisted`].
    pub fn poll_persist(&mut self) -> Option<State> {
        if self.handed_out {
            return None;
        }
        let state = self.proposed.clone()?;
        self.handed_out = true;
        Some(state)
    }

    /// What was handed out is durable: now everybody may hear of it.
    pub fn persisted(&mut self, _now: Now, sink: &mut impl Sink) {
        let Some(state) = self.proposed.take() else { return };
        self.state = state;
        self.count.epochs += 1;
        let Some(config) = &self.state.config else { return };
        Control::Configure(config.clone()).emit(&mut self.scratch);
        for replica in self.replicas.values() {
            sink.send(replica.member.addr, &self.scratch);
        }
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if now.instant < self.next_tick {
            return;
        }
        self.note_pause(now);
        self.next_tick = now.instant.after(TICK_NS);
        self.reconsider(now);
        self.configure_switch(sink);
    }

    /// When to call [`Controller::tick`] next.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline { at: self.next_tick, reason: "failure detection" }
    }

    /// The state in force.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &ControllerCounters {
        &self.count
    }

    /// Every replica that was heard of: node, epoch, whether open, ns since it was heard.
    pub fn replicas(&self, now: Now) -> impl Iterator<Item = (Member, u32, bool, Duration)> + '_ {
        let known = self.replicas.values();
        known.map(move |r| (r.member, r.epoch, r.open, now.instant.since(r.heard_at)))
    }
}

#[cfg(test)]
mod tests;
