//! The controller as a machine: who is who. Epochs, switch ids, failure detection.
//!
//! Read [`Controller`] and [`State`] first. A configuration exists only after it was persisted by
//! compare-and-swap (trap T3): [`Controller::poll_persist`] gives the state to write, and nobody
//! hears of it before [`Controller::persisted`]. Leases are not the controller's (trap T8): the data
//! path goes on without it.
//!
//! A replica is let in by two epochs: in the first it is among those who join, and copies the state
//! while nobody waits for it; when it has all, the second makes it the last member. Until it said
//! that all which was agreed is executed there, the group cannot go on with it alone.
//!
//! What it decides by is what it hears, and it may be the one that hears nothing, or the one whose
//! file is not the newest: the module `hear` says when it decides nothing.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod decide;
mod hear;
mod recover;
mod state;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Guards, Instant, MS, Now, counters};
use concord_wire::control::{
    Heard, Held, Member, Membership, Message as _, Program, Protocol, Standing,
};
use concord_wire::{Addr, Kind, Sink};

use hear::Hearing;
use recover::Recovery;
pub use recover::{Recover, Recovered};
pub use state::{Problem, State};

const TICK_NS: Duration = 50 * MS;
const RETIRED_MAX: usize = 64;
/// Most members and joining replicas.
const REPLICAS_MAX: usize = 64;
/// Most switches that are known of at a time.
const SWITCHES_MAX: usize = 8;

/// What the controller is told at its start.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The nodes that the first epoch waits for, in order: head first.
    pub replicas: Vec<u16>,
    /// How they replicate.
    pub protocol: Protocol,
    /// What the switch runs for them.
    pub program: Program,
    /// A replica that is not heard of for so long is removed, in ns.
    pub failure_ns: Duration,
    /// Start anew with whoever registers: the data of earlier members is given up. Epochs and switch
    /// ids go on.
    pub fresh: bool,
    /// Make the state anew from what the members have heard.
    pub recover: Option<Recover>,
    /// The rack's number, where this controller makes its first configuration: drawn at random.
    pub rack: u64,
    /// Where the controller listens, as its peers reach it.
    pub addr: Addr,
    /// Which guards are on; all of them outside tests.
    pub guards: Guards,
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
        /// Replicas removed because they and another member did not hear each other.
        removed_cut,
        /// Times that nobody was heard, for so long that the controller must have been cut off.
        deaf,
        /// Packets of another rack's nodes, ignored.
        foreign,
        /// Signs of life that came later than newer ones, ignored.
        stale,
        /// Replicas let in, to copy the state.
        admitted,
        /// Replicas made members after they had copied the state.
        promoted,
        /// Joining replicas given up because they were silent, restarted or asked for it.
        joining_removed,
        /// Switch ids granted.
        switch_ids_granted,
        /// Standby switches that took over from a silent one.
        standbys_taken,
        /// States refused because another controller was faster (trap T3).
        superseded,
        /// Malformed datagrams dropped.
        malformed,
        /// Packets of no use here dropped.
        unexpected,
    }
}

#[derive(Clone, Debug)]
struct Replica {
    member: Member,
    /// Its clock when it said all this.
    sent_at: u64,
    epoch: u32,
    standing: Standing,
    held: Held,
    /// Members that it does not hear, and since when it says so without a break.
    unheard: Vec<(u16, Instant)>,
    heard_at: Instant,
    /// Since when it was heard without a break.
    steady_since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Switch {
    incarnation: u64,
    addr: Addr,
    sent_at: u64,
    epoch: u32,
    standby: bool,
    heard_at: Instant,
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Controller {
    setup: ControllerConfig,
    state: State,
    /// Written but not yet known to be persisted.
    proposed: Option<State>,
    /// Whether `proposed` was handed to the driver.
    handed_out: bool,
    replicas: BTreeMap<u16, Replica>,
    /// Every switch that was heard of, by its address; the active one among them.
    switches: BTreeMap<Addr, Switch>,
    problem: Option<Problem>,
    hearing: Hearing,
    /// While the state is made anew.
    recovery: Option<Recovery>,
    recovered: Option<Recovered>,
    next_tick: Instant,
    scratch: Vec<u8>,
    count: ControllerCounters,
}

impl Controller {
    /// A controller that goes on from `state`, or begins.
    #[must_use]
    pub fn new(setup: ControllerConfig, state: Option<State>) -> Controller {
        let mut state = state.unwrap_or_default();
        if setup.fresh
            && let Some(config) = &mut state.config
        {
            // The next epoch is the first of the new group; its number goes on.
            config.members.clear();
            config.joining.clear();
            state.whole.clear();
        }
        let recovery = setup.recover.clone().map(Recovery::new);
        Controller {
            setup,
            state,
            proposed: None,
            handed_out: false,
            replicas: BTreeMap::new(),
            switches: BTreeMap::new(),
            problem: None,
            hearing: Hearing::default(),
            recovery,
            recovered: None,
            next_tick: Instant(0),
            scratch: Vec::new(),
            count: ControllerCounters::default(),
        }
    }

    /// Takes one datagram.
    pub fn handle(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        let message = match concord_wire::kind(bytes) {
            Ok(Kind::Membership) => Membership::parse(bytes),
            Ok(
                Kind::Lease
                | Kind::Copy
                | Kind::Vr
                | Kind::Link
                | Kind::Craq
                | Kind::NoPaxos
                | Kind::Harmonia,
            ) => {
                self.count.unexpected += 1;
                return;
            }
            Err(error) => Err(error),
        };
        match message {
            Ok(Membership::ReplicaAlive { member, sent_at, heard, standing, held, unheard }) => {
                let known = self.replicas.get(&member.node).filter(|r| r.member == member);
                if known.is_some_and(|r| sent_at < r.sent_at) {
                    // Late: it says nothing of now, nor that anything can be heard now.
                    self.count.stale += 1;
                    return;
                }
                let mut places =
                    self.state.config.iter().flat_map(|c| c.members.iter().chain(&c.joining));
                let is_placed = places.any(|m| *m == member);
                if self.hears(now, member.addr, &heard, is_placed) {
                    let (epoch, heard_at) = (heard.epoch, now.instant);
                    let unheard = unheard.into_iter().map(|node| (node, heard_at)).collect();
                    let steady_since = heard_at;
                    self.on_replica(
                        now,
                        Replica {
                            member,
                            sent_at,
                            epoch,
                            standing,
                            held,
                            unheard,
                            heard_at,
                            steady_since,
                        },
                        sink,
                    );
                }
            }
            Ok(Membership::SwitchAlive { incarnation, addr, sent_at, epoch, heard, standby }) => {
                let known = self.switches.get(&addr).filter(|s| s.incarnation == incarnation);
                if known.is_some_and(|s| sent_at < s.sent_at) {
                    self.count.stale += 1;
                    return;
                }
                let is_placed = incarnation == self.state.switch_incarnation;
                if self.hears(now, addr, &heard, is_placed) {
                    let heard_at = now.instant;
                    let switch = Switch { incarnation, addr, sent_at, epoch, standby, heard_at };
                    self.on_switch(now, switch, sink);
                }
            }
            Ok(Membership::Configure(config)) => self.on_config(config),
            Ok(Membership::WhoIsWho { client }) => {
                if let Some(config) = self.state.config.as_ref().filter(|_| !self.is_mute()) {
                    Membership::Configure(config.clone()).emit(&mut self.scratch);
                    sink.send(client, &self.scratch);
                }
            }
            Ok(_) => self.count.unexpected += 1,
            Err(_) => self.count.malformed += 1,
        }
    }

    fn on_replica(&mut self, now: Now, mut replica: Replica, sink: &mut impl Sink) {
        if !self.is_stray(&replica) {
            if let Some(before) = self.replicas.get(&replica.member.node) {
                self.go_on(before, &mut replica);
            }
            self.replicas.insert(replica.member.node, replica.clone());
            self.reconsider(now);
        }
        if self.is_mute() {
            return;
        }
        let Some(config) = &self.state.config else { return };
        if config.epoch > replica.epoch && !config.members.is_empty() {
            Membership::Configure(config.clone()).emit(&mut self.scratch);
            sink.send(replica.member.addr, &self.scratch);
        } else if config.epoch == replica.epoch && matches!(replica.standing, Standing::Open { .. })
        {
            self.configure_switch(sink);
        }
    }

    /// Whether it may be a late packet of an earlier life of a node that has its place in another:
    /// only who has heard of the configuration in force, or of a later one, has certainly begun since.
    fn is_stray(&self, replica: &Replica) -> bool {
        let Some(config) = &self.state.config else { return false };
        let mut places = config.members.iter().chain(&config.joining);
        let own = places.find(|m| m.node == replica.member.node);
        own.is_some_and(|m| m.incarnation != replica.member.incarnation)
            && replica.epoch < config.epoch
    }

    fn on_switch(&mut self, now: Now, switch: Switch, sink: &mut impl Sink) {
        if !self.is_mute() && self.state.retired_switches.contains(&switch.incarnation) {
            // It was replaced while it slept, or because of a late packet.
            let active = self.state.config.as_ref().map_or(Addr::default(), |c| c.switch);
            let incarnation = switch.incarnation;
            Membership::SwitchRetired { incarnation, switch: active }.emit(&mut self.scratch);
            return sink.send(switch.addr, &self.scratch);
        }
        self.switches.insert(switch.addr, switch);
        if self.switches.len() > SWITCHES_MAX {
            self.forget_switch();
        }
        self.reconsider(now);
        if !self.is_mute() {
            self.configure_switch(sink);
        }
    }

    fn tell_switch(&mut self, switch: &Switch, sink: &mut impl Sink) {
        if let Some(config) = &self.state.config
            && !config.members.is_empty()
            && config.epoch > switch.epoch
        {
            Membership::Configure(config.clone()).emit(&mut self.scratch);
            sink.send(switch.addr, &self.scratch);
        }
    }

    /// The one that was silent for longest, of those that are not active.
    fn forget_switch(&mut self) {
        let active = self.state.switch_incarnation;
        let others = self.switches.values().filter(|s| s.incarnation != active);
        if let Some(addr) = others.min_by_key(|s| s.heard_at).map(|s| s.addr) {
            self.switches.remove(&addr);
        }
    }

    /// The switch hears of an epoch only when it is open at every member: all of them refuse the
    /// fast reads of any other switch by then (Harmonia §6.3).
    ///
    /// Not in VR: its leader tells the switch itself, so that a view change waits for no controller.
    fn configure_switch(&mut self, sink: &mut impl Sink) {
        if self.setup.protocol.is_quorum() {
            return;
        }
        let active = self.state.switch_incarnation;
        let switch = self.switches.values().find(|s| s.incarnation == active).copied();
        if let Some(switch) = switch
            && self.is_open_everywhere()
        {
            self.tell_switch(&switch, sink);
        }
    }

    /// Whether every member has opened the epoch in force.
    fn is_open_everywhere(&self) -> bool {
        let Some(config) = &self.state.config else { return false };
        let open = |m: &Member| {
            let replica = self.replicas.get(&m.node);
            replica.is_some_and(|r| {
                matches!(r.standing, Standing::Open { .. }) && r.epoch == config.epoch
            })
        };
        config.members.iter().all(open)
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
        self.hearing.know(&self.state);
        // From here on whoever knows more knows of a newer state.
        self.setup.fresh = false;
        self.recovery = None;
        self.count.epochs += 1;
        let Some(config) = &self.state.config else { return };
        Membership::Configure(config.clone()).emit(&mut self.scratch);
        for replica in self.replicas.values() {
            sink.send(replica.member.addr, &self.scratch);
        }
    }

    /// What was handed out does not follow what is stored: another controller was faster, and
    /// `stored` is what it wrote. This one goes on from there (trap T3).
    pub fn superseded(&mut self, stored: State) {
        self.count.superseded += 1;
        self.proposed = None;
        let before = core::mem::replace(&mut self.state, stored);
        // A file of yesterday does not take back what this controller gave out itself.
        let epoch = before.config.as_ref().map_or(0, |c| c.epoch);
        let switch_id = before.last_switch_id;
        self.note_ahead(&Heard { epoch, switch_id, ..Heard::default() });
        self.hearing.know(&self.state);
    }

    /// Whether members have heard of more than the state says (trap T3): another controller may have
    /// stored a newer one, to be handed to [`Controller::superseded`].
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.hearing.ahead.is_some()
    }

    /// How the state was made anew, once it was.
    #[must_use]
    pub fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    /// Why it cannot do what it should, if it cannot.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        self.problem
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if now.instant < self.next_tick {
            return;
        }
        self.next_tick = now.instant.after(TICK_NS);
        self.ask_configs(sink);
        self.reconsider(now);
        if !self.is_mute() {
            self.configure_switch(sink);
        }
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

    /// Every replica that was heard of: node, epoch, where it stands, ns since it was heard.
    pub fn replicas(
        &self,
        now: Now,
    ) -> impl Iterator<Item = (Member, u32, Standing, Duration)> + '_ {
        let known = self.replicas.values();
        known.map(move |r| (r.member, r.epoch, r.standing, now.instant.since(r.heard_at)))
    }

    /// Every switch that was heard of: its life, its address, whether it stands by, ns since it was
    /// heard.
    pub fn switches(&self, now: Now) -> impl Iterator<Item = (u64, Addr, bool, Duration)> + '_ {
        let known = self.switches.values();
        known.map(move |s| (s.incarnation, s.addr, s.standby, now.instant.since(s.heard_at)))
    }
}

#[cfg(test)]
mod tests;
