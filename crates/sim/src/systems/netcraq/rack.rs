//! A run of a [`Plan`]: switches and a controller as they ship, clients that repeat requests, and a
//! network that loses, duplicates and reorders packets. The history of the clients must be
//! linearizable; invariants are checked after each event.

use std::hash::{Hash, Hasher};

use concord_check::{Operation, Options, Reply, check};
use concord_client::coord::{Coord, CoordConfig, Ended};
use concord_client::coord_commands::CoordCall;
use concord_core::machine::Persist;
use concord_core::{Instant, MS, Machine as _, Now, Rng, SEC};
use concord_switch::NetCraq;
use concord_wire::netcraq::{Outcome, Repr};
use concord_wire::{Addr, GroupId};
use rustc_hash::FxHasher;

use super::calls::{Words, call_of, draw, lock, reply_to, unlock};
use super::nodes::{
    CONTROLLER, Controlling, Sent, Switch, agent, at_rest, controller, node_of, wrong,
};
use super::plan::{Cut, Fault, Plan};
use super::shipped::{addr_of, client_at, client_of, member_at};
use crate::engine::{EventQueue, NS, Time};

/// The maximum time until the rack comes to rest after the last call and fault, in ns.
const REST_NS: u64 = 3 * SEC;
/// The maximum duration of the calls, in ns.
const CALLS_NS: u64 = 120 * SEC;
/// The maximum number of events in a run.
const EVENTS_MAX: u64 = 5_000_000;
/// The interval at which the rack is checked for rest, in ns.
const LOOK_NS: u64 = 20 * MS;

concord_core::counters! {
    /// Counts of what happened in a run.
    pub struct Totals {
        /// Calls that were answered.
        answered,
        /// Calls whose outcome is unknown.
        unknown,
        /// Reads that members answered by themselves, with a clean version; the tail included.
        reads_clean,
        /// Reads forwarded to the tail.
        reads_to_tail,
        /// Writes that the head gave a version.
        writes,
        /// Writes that found another write of their cell in progress.
        busy,
        /// Repeated writes, which were answered with their outcome.
        repeated,
        /// Versions sent again.
        resent,
        /// Keys deleted at their deadlines.
        expired,
        /// Times that a client acquired the lock.
        held,
        /// Packets dropped because a switch had no lease.
        no_lease,
        /// Cells and sessions copied.
        copied,
        /// Members removed.
        taken_out,
        /// Switches that joined, and became members.
        joined,
        /// Requests that found another name, or none, in their cell.
        taken,
        /// Events of the simulation.
        events,
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The first violation, if there was one.
    pub violation: Option<String>,
    /// The hash of all events: equal plans give equal digests.
    pub digest: u64,
    /// The counts of the run.
    pub totals: Totals,
    /// The periods without an acknowledged write of at least 5 ms: begin and duration, in ns. A
    /// client without an answer does not write on, so that with few clients a period is longer than
    /// the chain stood still.
    pub pauses: Vec<(u64, u64)>,
    /// For each switch that restarted, the time until it was a member of an open epoch, in ns.
    pub returns_ns: Vec<u64>,
}

/// The minimum period without acknowledged writes that is noted, in ns.
pub const PAUSE_NS: u64 = 5 * MS;

/// A client as it ships, and its calls so far.
struct Client {
    coord: Coord,
    calls: u32,
    /// The pending call, and the time of its begin, in ns.
    pending: Option<(Words, CoordCall, u64)>,
    /// The time at which it is woken next, in ns; `u64::MAX` if never.
    wake_at: u64,
    /// The value with which it takes the lock, and the time until which it holds the lock, in ns.
    own: Vec<u8>,
    holds_until: u64,
}

enum Event {
    /// A packet arrives. One that was sent to a switch which has restarted since arrives at the new
    /// incarnation.
    Packet(usize, Addr, Vec<u8>),
    Wake(usize),
    ToController(Addr, Vec<u8>),
    WakeController,
    /// A state of this start of the controller is on disk.
    Stored(u64, Persist<concord_control::State>),
    Answer(usize, Vec<u8>),
    Next(usize),
    WakeClient(usize),
    Fault(usize),
    Return(usize),
    ReturnController,
}

struct Rack<'a> {
    plan: &'a Plan,
    rng: Rng,
    now: u64,
    queue: EventQueue<Event>,
    switches: Vec<Switch>,
    controlling: Controlling,
    cuts: Vec<(Cut, u64)>,
    /// The time when the last fault is over, in ns.
    quiet_at: u64,
    /// For each switch, the time until which it may be taken for silent after a pause or a cut, in
    /// ns.
    silent_until: Vec<u64>,
    /// For each switch, the time when the controller last heard of it, in ns.
    heard_at: Vec<u64>,
    /// The time until which a switch that has ended may be taken for a live one, in ns.
    crash_known_at: u64,
    /// The time when the controller is back, in ns.
    controller_back_at: u64,
    clients: Vec<Client>,
    history: Vec<Operation>,
    digest: FxHasher,
    totals: Totals,
    violation: Option<String>,
    /// The time when the last write was acknowledged, in ns.
    written_at: u64,
    pauses: Vec<(u64, u64)>,
    /// For each switch, the time of its restart, until it is a member of an open epoch.
    returned_at: Vec<Option<u64>>,
    returns_ns: Vec<u64>,
}

/// Runs a plan.
#[must_use]
pub fn run(plan: &Plan) -> Ran {
    let mut rack = match Rack::new(plan) {
        Ok(rack) => rack,
        Err(why) => {
            let (totals, pauses, returns_ns) = (Totals::default(), Vec::new(), Vec::new());
            return Ran { violation: Some(why), digest: 0, totals, pauses, returns_ns };
        }
    };
    // Once the calls are over, the rack comes to rest sooner or later.
    let (mut end_ns, mut look_at, mut is_over) = (CALLS_NS, 0, false);
    while rack.violation.is_none() && rack.queue.taken() < EVENTS_MAX {
        let Some((at, event)) = rack.queue.next_until(Time(end_ns * NS)) else { break };
        rack.now = at.0 / NS;
        let is_clients = matches!(event, Event::Next(_) | Event::WakeClient(_) | Event::Answer(..));
        rack.happens(event);
        if plan.invariants && !is_clients && rack.violation.is_none() {
            rack.violation = rack.wrong();
        }
        if !is_over && rack.is_done() {
            (is_over, end_ns, look_at) = (true, rack.now + REST_NS, rack.now);
        }
        if is_over && rack.now >= look_at {
            if rack.at_rest().is_none() {
                break;
            }
            look_at = rack.now + LOOK_NS;
        }
    }
    rack.ends()
}

/// A client, which knows the switches in an order of its own.
fn client(plan: &Plan, index: usize, rng: &mut Rng) -> Client {
    let switches: Vec<Addr> = (0..plan.members + plan.spares).map(addr_of).collect();
    let config = CoordConfig {
        guards: plan.guards,
        words: plan.layout.words(),
        patience_ns: plan.patience_ns,
        attempts: plan.attempts,
        ..CoordConfig::new(client_of(index), GroupId::FIRST, switches)
    };
    let coord = Coord::new(config, Rng::new(rng.below(u64::MAX)));
    let (own, holds_until) = (Vec::new(), 0);
    Client { coord, calls: 0, pending: None, wake_at: u64::MAX, own, holds_until }
}

impl<'a> Rack<'a> {
    fn new(plan: &'a Plan) -> Result<Rack<'a>, String> {
        let mut rng = Rng::new(plan.seed ^ 0x0ce7_c4a9);
        let switches = (0..plan.members + plan.spares).map(|index| {
            let (agent, offset_ns) = (Some(agent(plan, index, 1)?), rng.below(10 * SEC));
            let clock = plan.clock(offset_ns);
            Ok(Switch { agent, incarnation: 1, clock, paused_until: 0, wake_at: u64::MAX })
        });
        let switches = switches.collect::<Result<Vec<Switch>, String>>()?;
        let clients: Vec<Client> =
            (0..plan.clients).map(|index| client(plan, index, &mut rng)).collect();
        let controller = Some(controller(plan, None));
        let mut rack = Rack {
            plan,
            rng,
            now: 0,
            queue: EventQueue::new(),
            switches,
            controlling: Controlling {
                controller,
                stored: None,
                proposed: None,
                wake_at: u64::MAX,
                run: 1,
            },
            cuts: Vec::new(),
            quiet_at: 0,
            silent_until: vec![0; plan.members + plan.spares],
            heard_at: vec![0; plan.members + plan.spares],
            crash_known_at: 0,
            controller_back_at: 0,
            clients,
            history: Vec::new(),
            digest: FxHasher::default(),
            totals: Totals::default(),
            violation: None,
            written_at: 0,
            pauses: Vec::new(),
            returned_at: vec![None; plan.members + plan.spares],
            returns_ns: Vec::new(),
        };
        for switch in 0..rack.switches.len() {
            rack.wake(switch);
        }
        rack.wake_controller();
        for client in 0..plan.clients {
            rack.at(rack.now, Event::Next(client));
        }
        for (index, (at, _)) in plan.faults.iter().enumerate() {
            rack.at(*at, Event::Fault(index));
        }
        Ok(rack)
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.queue.schedule(Time(at_ns.max(self.now) * NS), event);
    }

    fn happens(&mut self, event: Event) {
        let switch = match &event {
            Event::Packet(switch, ..) | Event::Wake(switch) => Some(*switch),
            _ => None,
        };
        if let Some(until) = switch.map(|switch| self.switches[switch].paused_until)
            && self.now < until
        {
            return self.at(until, event);
        }
        match event {
            Event::Packet(switch, from, bytes) => self.packet(switch, from, bytes),
            Event::Wake(switch) => self.tick(switch),
            Event::ToController(from, mut bytes) => {
                let now = self.wall();
                let mut sent = Sent::new();
                if let Some(controller) = &mut self.controlling.controller {
                    controller.handle(now, from, &mut bytes, &mut sent);
                    let switch = member_at(from).and_then(|at| self.heard_at.get_mut(at));
                    switch.into_iter().for_each(|at| *at = self.now);
                }
                self.controlled(sent);
            }
            Event::WakeController => {
                self.controlling.wake_at = u64::MAX;
                let now = self.wall();
                let mut sent = Sent::new();
                if let Some(controller) = &mut self.controlling.controller {
                    controller.tick(now, &mut sent);
                }
                self.controlled(sent);
            }
            Event::Stored(run, state) => self.stored(run, state),
            Event::Answer(client, bytes) => self.answered(client, &bytes),
            Event::Next(client) => self.call(client),
            Event::WakeClient(client) => {
                // A later wake-up has replaced this one.
                if self.now < self.clients[client].wake_at {
                    return;
                }
                self.clients[client].wake_at = u64::MAX;
                let now = self.wall();
                self.client(client, |coord, sent| coord.tick(now, sent));
            }
            Event::Fault(index) => self.fault(self.plan.faults[index].1),
            Event::Return(switch) => self.returns(switch),
            Event::ReturnController => {
                let stored = self.controlling.stored.as_ref();
                self.controlling.controller = Some(controller(self.plan, stored));
                self.controlling.run += 1;
                self.wake_controller();
            }
        }
    }

    fn packet(&mut self, switch: usize, from: Addr, mut bytes: Vec<u8>) {
        (self.now, switch, &bytes).hash(&mut self.digest);
        let own = &mut self.switches[switch];
        let now = own.now(self.now);
        let Some(agent) = &mut own.agent else { return };
        let mut sent = Sent::new();
        agent.handle(now, from, &mut bytes, &mut sent);
        self.sends(addr_of(switch), sent);
        self.wake(switch);
    }

    fn tick(&mut self, switch: usize) {
        let own = &mut self.switches[switch];
        // A later wake-up has replaced this one.
        if self.now < own.wake_at {
            return;
        }
        own.wake_at = u64::MAX;
        let now = own.now(self.now);
        let Some(agent) = &mut own.agent else { return };
        let mut sent = Sent::new();
        agent.tick(now, &mut sent);
        self.sends(addr_of(switch), sent);
        self.wake(switch);
    }

    fn wake(&mut self, switch: usize) {
        if let Some(at) = self.returned_at[switch]
            && self.switches[switch].chain().and_then(NetCraq::standing).is_some_and(|s| s.2)
        {
            self.returns_ns.push(self.now - at);
            self.returned_at[switch] = None;
        }
        let own = &mut self.switches[switch];
        let at = own.deadline();
        if at != u64::MAX && at.max(self.now) < own.wake_at {
            own.wake_at = at.max(self.now);
            let at = own.wake_at;
            self.at(at, Event::Wake(switch));
        }
    }

    fn wall(&self) -> Now {
        Now { instant: Instant(self.now), unix_ms: self.now / MS }
    }

    /// Handles the controller's outputs after an event.
    fn controlled(&mut self, sent: Sent) {
        self.sends(CONTROLLER, sent);
        let run = self.controlling.run;
        if let Some(controller) = &mut self.controlling.controller
            && let Some(state) = controller.poll_persist()
        {
            self.controlling.proposed = Some(state.what.clone());
            let at = self.now + self.rng.below(self.plan.persist_ns + 1);
            self.at(at, Event::Stored(run, state));
        }
        self.wake_controller();
    }

    fn wake_controller(&mut self) {
        let Some(controller) = &self.controlling.controller else { return };
        let at = controller.deadline().at.0.max(self.now);
        if at < self.controlling.wake_at {
            self.controlling.wake_at = at;
            self.at(at, Event::WakeController);
        }
    }

    fn stored(&mut self, run: u64, Persist { number, what }: Persist<concord_control::State>) {
        // A controller that has ended since has not stored it.
        if run != self.controlling.run {
            return;
        }
        let now = self.wall();
        let mut sent = Sent::new();
        if let Some(controller) = &mut self.controlling.controller {
            self.controlling.stored = Some(what);
            controller.persisted(now, number, &mut sent);
        }
        self.controlled(sent);
    }

    fn sends(&mut self, from: Addr, sent: Sent) {
        for (to, bytes) in sent {
            self.send(from, to, &bytes);
        }
    }

    /// Whether packets between the two nodes are lost.
    fn is_cut(&self, one: Addr, other: Addr) -> bool {
        let is = |addr: Addr, switch: usize| member_at(addr) == Some(switch);
        let is_between = |own: usize, is_other: &dyn Fn(Addr) -> bool| {
            (is(one, own) && is_other(other)) || (is(other, own) && is_other(one))
        };
        let mut cuts = self.cuts.iter().filter(|(_, until)| self.now < *until);
        cuts.any(|(cut, _)| match *cut {
            Cut::Controller(own) => is_between(own, &|addr| addr == CONTROLLER),
            Cut::AllButClients(own) => is_between(own, &|addr| client_at(addr).is_none()),
            Cut::Pair(own, other) => is_between(own, &|addr| is(addr, other)),
        })
    }

    fn send(&mut self, from: Addr, to: Addr, bytes: &[u8]) {
        let plan = self.plan;
        let copies = 1 + u64::from(self.rng.chance(plan.duplicate_ppm, 1_000_000));
        for _ in 0..copies {
            if self.rng.chance(plan.loss_ppm, 1_000_000) || self.is_cut(from, to) {
                continue;
            }
            let (shortest, longest) = plan.latency_ns;
            let mut at = self.now + self.rng.between(shortest, longest);
            if self.rng.chance(plan.late_ppm, 1_000_000) {
                at += self.rng.below(plan.late_ns);
            }
            let bytes = bytes.to_vec();
            if to == CONTROLLER {
                self.at(at, Event::ToController(from, bytes));
            } else if let Some(switch) = member_at(to).filter(|at| *at < self.switches.len()) {
                self.at(at, Event::Packet(switch, from, bytes));
            } else if let Some(client) = client_at(to) {
                self.at(at, Event::Answer(client, bytes));
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        let mut ends_at = self.now;
        match fault {
            Fault::Pause(switch, ns) if self.may_be_silent(&[switch], ns) => {
                let until = &mut self.switches[switch].paused_until;
                *until = (*until).max(self.now + ns);
                ends_at = *until;
            }
            Fault::Crash(switch, back) if self.may_crash(switch, back.is_some()) => {
                self.count(switch);
                self.switches[switch].agent = None;
                self.crash_known_at = self.known_at(self.now);
                if let Some(ns) = back {
                    ends_at = self.now + ns;
                    self.at(ends_at, Event::Return(switch));
                }
            }
            Fault::Cut(cut, ns) if self.may_be_silent(&cut.switches(), ns) => {
                ends_at = self.now + ns;
                self.cuts.push((cut, ends_at));
            }
            Fault::Controller(ns) if self.controlling.controller.is_some() => {
                self.count_controller();
                self.controlling.controller = None;
                ends_at = self.now + ns;
                self.controller_back_at = ends_at;
                // Everything that the controller would have noticed by then, it notices later.
                let (now, known_at) = (self.now, self.known_at(ends_at));
                let all = self.silent_until.iter_mut().chain([&mut self.crash_known_at]);
                all.filter(|at| **at > now).for_each(|at| *at = known_at.max(*at));
                self.at(ends_at, Event::ReturnController);
            }
            Fault::Pause(..) | Fault::Cut(..) | Fault::Crash(..) | Fault::Controller(_) => {}
        }
        self.quiet_at = self.quiet_at.max(ends_at);
    }

    /// The time by which all nodes know that a switch is silent from `from` on, or is silent no
    /// more, in ns.
    fn known_at(&self, from: u64) -> u64 {
        let plan = self.plan;
        from.max(self.controller_back_at) + plan.failure_ns + 3 * plan.alive_ns + plan.late_ns
    }

    /// Whether a switch may end: another switch with everything that was committed is left, and
    /// cannot be taken for silent; the loss of the last one would lose data. Nor does a chain begin
    /// without its founders: while it is founded, only one of several switches ends, and returns.
    /// (The only one may have a place already, and nobody could know that it has not used it.)
    fn may_crash(&self, switch: usize, returns: bool) -> bool {
        let runs = |own: &Switch| own.agent.is_some();
        if !self.switches.get(switch).is_some_and(runs) {
            return false;
        }
        if self.controlling.stored.is_some() {
            return self.is_left_without(&[switch]);
        }
        let has_others = self.plan.members > 1 && self.switches.iter().all(runs);
        returns && has_others && self.is_left_without(&[switch])
    }

    /// Notes that switches fall silent, if they may. While another switch that has ended may be
    /// taken for a live one, the last switch with everything that was committed may not fall
    /// silent: it would lose its place to that one.
    fn may_be_silent(&mut self, silent: &[usize], ns: u64) -> bool {
        if silent.iter().any(|switch| *switch >= self.switches.len()) {
            return false;
        }
        if self.now < self.crash_known_at && !self.is_left_without(silent) {
            return false;
        }
        let until = self.known_at(self.now + ns);
        for switch in silent {
            self.silent_until[*switch] = self.silent_until[*switch].max(until);
        }
        true
    }

    fn is_left_without(&self, without: &[usize]) -> bool {
        let states = [self.controlling.stored.as_ref(), self.controlling.proposed.as_ref()];
        states.into_iter().flatten().all(|state| self.is_left_in(state, without))
    }

    fn is_left_in(&self, state: &concord_control::State, without: &[usize]) -> bool {
        let Some(group) = state.group(GroupId::FIRST) else { return true };
        let is_left = |index: usize, other: &Switch| {
            let node = node_of(index);
            let mut members = group.config.members.iter();
            let is_same = members.any(|m| m.node == node && m.incarnation == other.incarnation);
            // A switch whose keepalives were lost until now may still lose its place.
            let heard_ns = self.now - self.heard_at[index];
            let is_heard =
                self.now >= self.silent_until[index] && heard_ns <= self.plan.failure_ns / 2;
            !without.contains(&index)
                && is_heard
                && other.agent.is_some()
                && is_same
                && group.caught_up.contains(&node)
        };
        self.switches.iter().enumerate().any(|(index, other)| is_left(index, other))
    }

    fn returns(&mut self, switch: usize) {
        let own = &mut self.switches[switch];
        own.incarnation += 1;
        self.returned_at[switch] = Some(self.now);
        // It may be on another host, with another clock.
        own.clock = self.plan.clock(self.rng.below(10 * SEC));
        (own.paused_until, own.wake_at) = (0, u64::MAX);
        match agent(self.plan, switch, own.incarnation) {
            Ok(agent) => own.agent = Some(agent),
            Err(why) => self.violation = Some(why),
        }
        self.wake(switch);
    }

    /// A client makes its next call.
    fn call(&mut self, client: usize) {
        if self.clients[client].calls >= self.plan.calls {
            return;
        }
        self.clients[client].calls += 1;
        let cmd = self.draw(client);
        let call = match call_of(&cmd, self.plan) {
            Ok(call) => call,
            Err(why) => {
                self.violation = Some(format!("{cmd:?} is no call: {why}"));
                return;
            }
        };
        let packet = call.packet;
        self.clients[client].pending = Some((cmd, call, self.now));
        let now = self.wall();
        // Clients go from one switch to another, and so would notice older content.
        let first = self.rng.below(self.switches.len() as u64) as usize;
        let mut refused = None;
        self.client(client, |coord, sent| {
            coord.prefer(now.instant, first);
            refused = coord.submit(now, packet, sent).err();
        });
        if let Some(why) = refused {
            self.violation = Some(format!("client {client} cannot call: {why:?}"));
        }
    }

    /// Draws a client's next call; if it holds the lock, it may have to release that.
    fn draw(&mut self, client: usize) -> Words {
        let (plan, own) = (self.plan, &mut self.clients[client]);
        if plan.locks_percent == 0 || self.rng.below(100) >= plan.locks_percent {
            return draw(&mut self.rng, plan, (client, own.calls));
        }
        if self.now < own.holds_until {
            // From now on another client may take it.
            own.holds_until = 0;
            return unlock(&own.own);
        }
        own.own = format!("{client}.{}", own.calls).into_bytes();
        lock(&mut self.rng, plan, &own.own)
    }

    /// Notes that a client has the lock, and checks that no other client does.
    fn takes_lock(&mut self, client: usize) {
        // As `concord coord lock`, whose keys live 2% longer than their holders hold them.
        let until = self.clients[client].coord.holds_until().0;
        let until = until.saturating_sub(self.plan.early_ns());
        if until <= self.now {
            return;
        }
        self.totals.held += 1;
        let other = self.clients.iter().position(|other| self.now < other.holds_until);
        if let Some(other) = other {
            let why = format!("at {} client {client} holds the lock, and {other} does", self.now);
            self.violation.get_or_insert(why);
        }
        self.clients[client].holds_until = until;
    }

    /// Lets a client act, and handles its outputs.
    fn client(&mut self, client: usize, does: impl FnOnce(&mut Coord, &mut Sent)) {
        let own = &mut self.clients[client];
        let mut sent = Sent::new();
        does(&mut own.coord, &mut sent);
        let (ended, at) = (own.coord.poll(), own.coord.deadline().at.0);
        if at < own.wake_at {
            own.wake_at = at;
            self.at(at, Event::WakeClient(client));
        }
        self.sends(client_of(client), sent);
        if let Some(ended) = ended {
            self.ended(client, ended);
        }
    }

    fn ended(&mut self, client: usize, ended: Ended) {
        let Some((cmd, call, call_ns)) = self.clients[client].pending.take() else { return };
        let reply = reply_to(&call, &ended);
        match &ended {
            Ended::Answer(answer) if reply.is_some() => {
                self.totals.answered += 1;
                if !call.is_read() && answer.outcome == Outcome::Done {
                    self.note_write();
                    let is_lock = cmd[0] == b"SET" && cmd[2] == self.clients[client].own;
                    if is_lock {
                        self.takes_lock(client);
                    }
                }
            }
            _ => self.totals.unknown += 1,
        }
        self.record(client, cmd, call_ns, reply);
        let at = self.now + self.rng.below(self.plan.think_ns + 1);
        self.at(at, Event::Next(client));
    }

    fn note_write(&mut self) {
        let pause_ns = self.now - self.written_at;
        if self.written_at != 0 && pause_ns >= PAUSE_NS {
            self.pauses.push((self.written_at, pause_ns));
        }
        self.written_at = self.now;
    }

    fn answered(&mut self, client: usize, bytes: &[u8]) {
        if client >= self.clients.len() {
            return;
        }
        let is_taken = Repr::parse(bytes).is_ok_and(|answer| answer.outcome == Outcome::Taken);
        self.totals.taken += u64::from(is_taken);
        let now = self.wall();
        self.client(client, |coord, sent| coord.handle(now, bytes, sent));
    }

    fn record(&mut self, client: usize, cmd: Vec<Vec<u8>>, call_ns: u64, reply: Option<Reply>) {
        self.history.push(Operation {
            client: client as u64,
            ordinal: None,
            call_ns,
            return_ns: reply.as_ref().map(|_| self.now),
            cmd,
            reply,
            path: None,
        });
    }

    fn is_done(&self) -> bool {
        let is_over = |client: &Client| client.pending.is_none() && client.calls >= self.plan.calls;
        self.clients.iter().all(is_over)
            && self.plan.faults.iter().all(|(at, _)| *at < self.now)
            && self.quiet_at <= self.now
    }

    fn config(&self) -> Option<&concord_wire::control::Config> {
        self.controlling.stored.as_ref()?.config(GroupId::FIRST)
    }

    fn wrong(&self) -> Option<String> {
        wrong(&self.switches, self.plan.layout.cells, self.config()?)
    }

    fn at_rest(&self) -> Option<String> {
        let Some(config) = self.config() else { return Some("there is no chain".into()) };
        at_rest(&self.switches, self.plan, config, self.now)
    }

    fn count(&mut self, switch: usize) {
        let Some(program) = self.switches[switch].chain() else { return };
        let (c, totals) = (*program.counters(), &mut self.totals);
        totals.reads_clean += c.reads_clean;
        totals.reads_to_tail += c.reads_to_tail;
        totals.writes += c.writes_numbered;
        totals.busy += c.writes_busy;
        totals.repeated += c.writes_repeated;
        totals.resent += c.resent;
        totals.expired += c.expired;
        totals.no_lease += c.dropped_no_lease;
        totals.copied += c.copied;
    }

    fn count_controller(&mut self) {
        let Some(controller) = &self.controlling.controller else { return };
        let c = controller.counters();
        self.totals.taken_out +=
            c.removed_silent + c.removed_restarted + c.removed_leaving + c.removed_cut;
        self.totals.joined += c.promoted;
    }

    fn ends(mut self) -> Ran {
        for switch in 0..self.switches.len() {
            self.count(switch);
        }
        self.count_controller();
        self.totals.events = self.queue.taken();
        if self.violation.is_none() && !self.is_done() {
            let rest = self.at_rest().unwrap_or_default();
            self.violation = Some(format!("the clients are not done; {rest}"));
        }
        // Calls that are over, and one that may be pending.
        for client in 0..self.clients.len() {
            if let Some((cmd, _, call_ns)) = self.clients[client].pending.take() {
                self.record(client, cmd, call_ns, None);
            }
        }
        let broken = self.violation.take();
        self.violation = broken.or_else(|| self.judged()).or_else(|| self.at_rest());
        Ran {
            violation: self.violation,
            digest: self.digest.finish(),
            totals: self.totals,
            pauses: self.pauses,
            returns_ns: self.returns_ns,
        }
    }

    /// Checks that the clients' history is linearizable; returns the violation if it is not.
    fn judged(&self) -> Option<String> {
        let options = Options {
            time_max: None,
            configs_max: 2_000_000,
            early_ns: self.plan.early_ns(),
            ..Options::default()
        };
        match check(&self.history, &options) {
            Ok(report) if report.is_ok() => None,
            Ok(report) => Some(format!("{report}")),
            Err(error) => Some(error.to_string()),
        }
    }
}
