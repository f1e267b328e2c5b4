//! Runs a [`Plan`]: switches with the program that ships, clients that ask again, a network that
//! loses, doubles and reorders. What clients saw has to be linearizable; invariants are looked at
//! after each event.

use std::hash::{Hash, Hasher};

use concord_check::{Operation, Options, Reply, check};
use concord_core::{Instant, MS, Now, Rng, SEC};
use concord_pisa::Metadata;
use concord_switch::{NetCraq, SwitchProgram as _};
use concord_wire::Addr;
use concord_wire::netcraq::{Command, Condition, Name, Op, Outcome, Repr, Stamp, State, Words};
use rustc_hash::FxHasher;

use super::plan::{Fault, Plan};
use super::shipped::{Passed, addr_of, client_at, client_of, config, member_at, pass, switch};
use crate::engine::{EventQueue, NS, Time};

/// How long everything may take to come to rest once the last call is over, in ns.
const REST_NS: u64 = 2 * SEC;
/// Longest run of calls, in ns.
const CALLS_NS: u64 = 60 * SEC;
/// Most events of a run.
const EVENTS_MAX: u64 = 5_000_000;
/// Longest delay of a late packet, in ns.
const LATE_NS: u64 = 20 * MS;
/// Most that the time between two attempts doubles.
const BACKOFF_MAX: u32 = 5;

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls whose outcome is unknown.
    pub unknown: u64,
    /// Answers of clean versions by members other than the tail.
    pub reads_clean: u64,
    /// Reads that went to the tail.
    pub reads_to_tail: u64,
    /// Writes that the head numbered.
    pub writes: u64,
    /// Writes that found another one under way.
    pub busy: u64,
    /// Writes that came again.
    pub repeated: u64,
    /// Versions that were sent again.
    pub resent: u64,
    /// Members that were taken out.
    pub taken_out: u64,
    /// Events.
    pub events: u64,
}

impl Totals {
    /// Adds another run's.
    pub fn add(&mut self, other: &Totals) {
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.reads_clean += other.reads_clean;
        self.reads_to_tail += other.reads_to_tail;
        self.writes += other.writes;
        self.busy += other.busy;
        self.repeated += other.repeated;
        self.resent += other.resent;
        self.taken_out += other.taken_out;
        self.events += other.events;
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What went wrong first.
    pub violation: Option<String>,
    /// The same for the same plan.
    pub digest: u64,
    /// What happened.
    pub totals: Totals,
}

/// A call that is not answered.
struct Pending {
    packet: Repr,
    cmd: Vec<Vec<u8>>,
    call_ns: u64,
    attempt: u32,
}

struct Client {
    requests: u32,
    pending: Option<Pending>,
}

enum Event {
    Packet(usize, Addr, Vec<u8>),
    Round(usize, Metadata, Vec<u8>),
    Answer(usize, Vec<u8>),
    Next(usize),
    Again(usize, Stamp, u32),
    Upkeep(usize),
    Fault(usize),
}

struct Member {
    program: Option<NetCraq>,
    paused_until: u64,
    wake_at: u64,
}

struct Rack<'a> {
    plan: &'a Plan,
    rng: Rng,
    now: u64,
    queue: EventQueue<Event>,
    members: Vec<Member>,
    epoch: u32,
    clients: Vec<Client>,
    history: Vec<Operation>,
    digest: FxHasher,
    totals: Totals,
    violation: Option<String>,
}

/// Runs a plan.
#[must_use]
pub fn run(plan: &Plan) -> Ran {
    let mut rack = match Rack::new(plan) {
        Ok(rack) => rack,
        Err(why) => return Ran { violation: Some(why), digest: 0, totals: Totals::default() },
    };
    let mut end_ns = CALLS_NS;
    while rack.violation.is_none() && rack.queue.taken() < EVENTS_MAX {
        let Some((at, event)) = rack.queue.next_until(Time(end_ns * NS)) else { break };
        rack.now = at.0 / NS;
        rack.happens(event);
        if plan.invariants && rack.violation.is_none() {
            rack.violation = rack.wrong();
        }
        if end_ns == CALLS_NS && rack.is_done() {
            end_ns = rack.now + REST_NS;
        }
    }
    rack.ends()
}

impl<'a> Rack<'a> {
    fn new(plan: &'a Plan) -> Result<Rack<'a>, String> {
        let members = (0..plan.members).map(|index| {
            let program = switch(index, plan.layout, plan.guards).map_err(|e| e.to_string())?;
            Ok(Member { program: Some(program), paused_until: 0, wake_at: u64::MAX })
        });
        let members = members.collect::<Result<Vec<Member>, String>>()?;
        let clients = (0..plan.clients).map(|_| Client { requests: 0, pending: None });
        let mut rack = Rack {
            plan,
            rng: Rng::new(plan.seed ^ 0x0ce7_c4a9),
            now: 0,
            queue: EventQueue::new(),
            members,
            epoch: 0,
            clients: clients.collect(),
            history: Vec::new(),
            digest: FxHasher::default(),
            totals: Totals::default(),
            violation: None,
        };
        rack.install()?;
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

    fn live(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|index| self.members[*index].program.is_some()).collect()
    }

    /// The next epoch, at all that are left.
    fn install(&mut self) -> Result<(), String> {
        self.epoch += 1;
        let live = self.live();
        let config = config(self.epoch, &live);
        let now = Now { instant: Instant(self.now), unix_ms: 0 };
        for index in live {
            if let Some(program) = &mut self.members[index].program {
                program.install(now, &config).map_err(|_| "it refuses its chain")?;
            }
            self.wake(index);
        }
        Ok(())
    }

    fn happens(&mut self, event: Event) {
        let member = match &event {
            Event::Packet(member, ..) | Event::Round(member, ..) | Event::Upkeep(member) => {
                Some(*member)
            }
            Event::Answer(..) | Event::Next(_) | Event::Again(..) | Event::Fault(_) => None,
        };
        if let Some(until) = member.map(|member| self.members[member].paused_until)
            && self.now < until
        {
            return self.at(until, event);
        }
        match event {
            Event::Packet(member, from, bytes) => self.pass(member, from, None, bytes),
            Event::Round(member, metadata, bytes) => {
                self.pass(member, addr_of(member), Some(metadata), bytes);
            }
            Event::Answer(client, bytes) => self.answered(client, &bytes),
            Event::Next(client) => self.call(client),
            Event::Again(client, stamp, attempt) => self.again(client, stamp, attempt),
            Event::Upkeep(member) => self.upkeep(member),
            Event::Fault(index) => self.fault(self.plan.faults[index].1),
        }
    }

    fn pass(&mut self, member: usize, from: Addr, round: Option<Metadata>, mut bytes: Vec<u8>) {
        (self.now, member, &bytes).hash(&mut self.digest);
        let now = Instant(self.now);
        let Some(program) = &mut self.members[member].program else { return };
        let passed = pass(program, now, from, round, &mut bytes);
        self.leaves(member, passed);
        self.wake(member);
    }

    fn leaves(&mut self, member: usize, passed: Passed) {
        for (to, bytes) in passed.sent {
            self.send(addr_of(member), to, &bytes);
        }
        if let Some((metadata, bytes)) = passed.round
            && !self.rng.chance(self.plan.loss_ppm / 4, 1_000_000)
        {
            let at = self.now + 1 + self.rng.below(self.plan.round_ns + 1);
            self.at(at, Event::Round(member, metadata, bytes));
        }
    }

    fn send(&mut self, from: Addr, to: Addr, bytes: &[u8]) {
        let plan = self.plan;
        let copies = 1 + u64::from(self.rng.chance(plan.duplicate_ppm, 1_000_000));
        for _ in 0..copies {
            if self.rng.chance(plan.loss_ppm, 1_000_000) {
                continue;
            }
            let (shortest, longest) = plan.latency_ns;
            let mut at = self.now + self.rng.between(shortest, longest);
            if self.rng.chance(plan.late_ppm, 1_000_000) {
                at += self.rng.below(LATE_NS);
            }
            let bytes = bytes.to_vec();
            if let Some(member) = member_at(to).filter(|member| *member < self.members.len()) {
                self.at(at, Event::Packet(member, from, bytes));
            } else if let Some(client) = client_at(to) {
                self.at(at, Event::Answer(client, bytes));
            }
        }
    }

    fn wake(&mut self, member: usize) {
        let own = &mut self.members[member];
        let Some(program) = &own.program else { return };
        let at = program.deadline().at.0;
        if at != u64::MAX && at < own.wake_at {
            own.wake_at = at.max(self.now);
            let at = own.wake_at;
            self.at(at, Event::Upkeep(member));
        }
    }

    fn upkeep(&mut self, member: usize) {
        self.members[member].wake_at = u64::MAX;
        let now = Instant(self.now);
        while let Some(program) = &mut self.members[member].program
            && let Some(mut injection) = program.upkeep(now)
        {
            let passed = pass(program, now, addr_of(member), None, injection.packet());
            self.leaves(member, passed);
        }
        self.wake(member);
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Pause(member, ns) if member < self.members.len() => {
                self.members[member].paused_until = self.now + ns;
            }
            Fault::TakeOut(member) if self.live().contains(&member) && self.live().len() > 1 => {
                self.count(member);
                self.members[member].program = None;
                self.totals.taken_out += 1;
                if let Err(why) = self.install() {
                    self.violation = Some(why);
                }
            }
            Fault::Pause(..) | Fault::TakeOut(_) => {}
        }
    }

    /// A client makes its next call.
    fn call(&mut self, client: usize) {
        if self.clients[client].requests >= self.plan.calls {
            return;
        }
        self.clients[client].requests += 1;
        let request = self.clients[client].requests;
        let stamp = Stamp::new(client as u16, 1, request);
        let (packet, cmd) = self.draw(client, request);
        let packet = Repr { stamp, client: client_of(client), ..packet };
        let pending = Pending { packet, cmd, call_ns: self.now, attempt: 0 };
        self.clients[client].pending = Some(pending);
        self.again(client, stamp, 0);
    }

    /// A key and its cell: some keys share one.
    fn key(&mut self) -> (Vec<u8>, Name, u32) {
        let number = self.rng.below(u64::from(self.plan.keys)) as u32;
        let text = format!("k{number}").into_bytes();
        let name = Name::new(&text).unwrap_or_default();
        (text, name, number & (self.plan.layout.cells - 1))
    }

    /// What a client calls: the packet, and the command for the history.
    fn draw(&mut self, client: usize, request: u32) -> (Repr, Vec<Vec<u8>>) {
        let (key, name, cell) = self.key();
        let words = self.plan.layout.words();
        let read = Repr { name, ..Repr::new(Op::Read, cell, words) };
        let cmd = |parts: &[&[u8]]| parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>();
        if self.rng.below(100) < self.plan.reads_percent {
            return (read, cmd(&[b"GET", &key]));
        }
        let write = Repr { op: Op::Write, ..read };
        let value = self.value(client, request);
        let expected = self.value(client, request);
        let set = with_value(write, &value);
        let expecting = |packet: Repr| {
            let state = state_of(&expected);
            Repr {
                condition: Condition::Equal,
                expected: words_of(&expected),
                expected_state: (state.length_bytes(), state.is_number()),
                ..packet
            }
        };
        let del = Repr { command: Command::Del, ..write };
        match self.rng.below(8) {
            0 | 1 => (set, cmd(&[b"SET", &key, &value])),
            2 => {
                (Repr { condition: Condition::Absent, ..set }, cmd(&[b"SET", &key, &value, b"NX"]))
            }
            3 => {
                (Repr { condition: Condition::Present, ..set }, cmd(&[b"SET", &key, &value, b"XX"]))
            }
            4 => (expecting(set), cmd(&[b"SET", &key, &value, b"IFEQ", &expected])),
            5 => (expecting(del), cmd(&[b"CAD", &key, &expected])),
            6 => (del, cmd(&[b"DEL", &key])),
            _ => {
                let incr = Repr { command: Command::Incr, number: 1, ..write };
                (incr, cmd(&[b"INCR", &key]))
            }
        }
    }

    /// A small number, which others may write too, or a long text, of which every word says whose
    /// it is.
    fn value(&mut self, client: usize, request: u32) -> Vec<u8> {
        if self.rng.chance(1, 2) {
            return self.rng.below(6).to_string().into_bytes();
        }
        let part = format!("{client:03}-{request:03}.");
        part.repeat(usize::from(self.plan.layout.words())).into_bytes()
    }

    /// It asks, once more if it was not answered.
    fn again(&mut self, client: usize, stamp: Stamp, attempt: u32) {
        let (plan, live) = (self.plan, self.live());
        let Some(pending) = &mut self.clients[client].pending else { return };
        if pending.packet.stamp != stamp || pending.attempt != attempt {
            return;
        }
        if attempt >= plan.attempts {
            return self.gives_up(client);
        }
        pending.attempt += 1;
        let bytes = pending.packet.packet();
        // Another member with each attempt (trap T21).
        let to = live[self.rng.below(live.len() as u64) as usize];
        self.send(client_of(client), addr_of(to), &bytes);
        let wait_ns = plan.patience_ns << attempt.min(BACKOFF_MAX);
        let at = self.now + wait_ns + self.rng.below(wait_ns);
        self.at(at, Event::Again(client, stamp, attempt + 1));
    }

    fn gives_up(&mut self, client: usize) {
        if let Some(pending) = self.clients[client].pending.take() {
            self.totals.unknown += 1;
            self.record(client, pending, None);
        }
        self.next(client);
    }

    fn next(&mut self, client: usize) {
        let at = self.now + self.rng.below(self.plan.think_ns + 1);
        self.at(at, Event::Next(client));
    }

    fn answered(&mut self, client: usize, bytes: &[u8]) {
        let Ok(packet) = Repr::parse(bytes) else { return };
        let Some(own) = self.clients.get_mut(client) else { return };
        let is_awaited = own.pending.as_ref().is_some_and(|p| p.packet.stamp == packet.stamp);
        // Busy: the next attempt comes by itself. Stale: of an earlier attempt, or the session is
        // another's.
        if !is_awaited || matches!(packet.outcome, Outcome::Busy | Outcome::Stale) {
            return;
        }
        let Some(pending) = own.pending.take() else { return };
        let reply = reply_to(&pending.cmd, &packet);
        self.totals.answered += 1;
        self.record(client, pending, Some(reply));
        self.next(client);
    }

    fn record(&mut self, client: usize, pending: Pending, reply: Option<Reply>) {
        self.history.push(Operation {
            client: client as u64,
            ordinal: None,
            call_ns: pending.call_ns,
            return_ns: reply.as_ref().map(|_| self.now),
            cmd: pending.cmd,
            reply,
            path: None,
        });
    }

    fn is_done(&self) -> bool {
        let is_over =
            |client: &Client| client.pending.is_none() && client.requests >= self.plan.calls;
        self.clients.iter().all(is_over) && self.plan.faults.iter().all(|(at, _)| *at <= self.now)
    }

    /// Versions never rise along the chain; clean means that the tail has it; members that have one
    /// version have the same.
    fn wrong(&self) -> Option<String> {
        let live = self.live();
        let programs: Vec<&NetCraq> =
            live.iter().filter_map(|index| self.members[*index].program.as_ref()).collect();
        let tail = programs.last()?;
        for cell in 0..self.plan.layout.cells {
            let committed = tail.peek(cell).0;
            let mut before: Option<(State, Name, Words)> = None;
            for (place, program) in programs.iter().enumerate() {
                let seen = program.peek(cell);
                let state = seen.0;
                if !state.is_dirty() && state.version() > committed.version() {
                    return Some(format!(
                        "cell {cell}: member {} takes {state:?} as clean, the tail has {committed:?}",
                        live[place]
                    ));
                }
                let Some((other, name, value)) = before.replace(seen) else { continue };
                if state.version() > other.version() {
                    return Some(format!("cell {cell}: {state:?} stands behind {other:?}"));
                }
                let is_same = (state.clean(), seen.1, seen.2) == (other.clean(), name, value);
                if state.version() == other.version() && !is_same {
                    return Some(format!(
                        "cell {cell}: two contents of version {}",
                        state.version()
                    ));
                }
            }
        }
        None
    }

    fn count(&mut self, member: usize) {
        let Some(program) = &self.members[member].program else { return };
        let (c, is_tail) = (*program.counters(), self.live().last() == Some(&member));
        self.totals.reads_clean += if is_tail { 0 } else { c.reads_clean };
        self.totals.reads_to_tail += c.reads_to_tail;
        self.totals.writes += c.writes_numbered;
        self.totals.busy += c.writes_busy;
        self.totals.repeated += c.writes_repeated;
        self.totals.resent += c.resent;
    }

    fn ends(mut self) -> Ran {
        for member in 0..self.members.len() {
            self.count(member);
        }
        self.totals.events = self.queue.taken();
        if self.violation.is_none() && !self.is_done() {
            self.violation = Some("the clients are not done".into());
        }
        // Calls that are over, and one that may be under way.
        for client in 0..self.clients.len() {
            if let Some(pending) = self.clients[client].pending.take() {
                self.record(client, pending, None);
            }
        }
        self.violation = self.violation.take().or_else(|| self.at_rest()).or_else(|| self.judged());
        Ran { violation: self.violation, digest: self.digest.finish(), totals: self.totals }
    }

    /// At rest all keys are clean, and the same everywhere.
    fn at_rest(&self) -> Option<String> {
        let live = self.live();
        let head = self.members[*live.first()?].program.as_ref()?;
        for member in live {
            let program = self.members[member].program.as_ref()?;
            for cell in 0..self.plan.layout.cells {
                let (own, first) = (program.peek(cell), head.peek(cell));
                if own.0.is_dirty() {
                    return Some(format!("at rest cell {cell} of member {member} is dirty"));
                }
                if own != first {
                    return Some(format!(
                        "at rest cell {cell}: {own:?} at member {member}, {first:?}"
                    ));
                }
            }
        }
        None
    }

    /// What the clients saw.
    fn judged(&self) -> Option<String> {
        let options = Options { time_max: None, configs_max: 2_000_000, ..Options::default() };
        match check(&self.history, &options) {
            Ok(report) if report.is_ok() => None,
            Ok(report) => Some(format!("{report}")),
            Err(error) => Some(error.to_string()),
        }
    }
}

fn is_number(value: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

fn state_of(value: &[u8]) -> State {
    match is_number(value) {
        Some(_) => State::present(0, 8, true),
        None => State::present(0, value.len() as u8, false),
    }
}

fn words_of(value: &[u8]) -> Words {
    match is_number(value) {
        Some(number) => {
            let mut words = Words::default();
            words.0[0] = number as u64;
            words
        }
        None => Words::new(value).unwrap_or_default(),
    }
}

fn with_value(packet: Repr, value: &[u8]) -> Repr {
    Repr { state: state_of(value), value: words_of(value), ..packet }
}

/// What a client hears, as Redis would say it.
fn reply_to(cmd: &[Vec<u8>], packet: &Repr) -> Reply {
    let name = cmd.first().map_or(&b""[..], |name| &name[..]);
    let refused = |why: &str| Reply::Error(why.into());
    match (name, packet.outcome) {
        (_, Outcome::NoCell) => refused("NOCELL there is no such cell or session"),
        (b"GET", Outcome::Done) if packet.state.is_number() => {
            Reply::bulk((packet.value.0[0] as i64).to_string())
        }
        (b"GET", Outcome::Done) => {
            let length = usize::from(packet.state.length_bytes());
            Reply::bulk(&packet.value.bytes()[..length])
        }
        // The cell is another name's: there is no key of this one.
        (b"GET", _) => Reply::Nil,
        (_, Outcome::Taken) => refused("TAKEN the key's cell is another key's"),
        (b"SET", Outcome::Done) => Reply::Ok,
        (b"SET", _) => Reply::Nil,
        (b"INCR", Outcome::Done) => Reply::Int(packet.number as i64),
        (b"INCR", _) => refused("ERR value is not an integer or out of range"),
        (b"CAD", Outcome::Absent) => Reply::Int(-1),
        (b"DEL" | b"CAD", Outcome::Done) => Reply::Int(1),
        (_, _) => Reply::Int(0),
    }
}
