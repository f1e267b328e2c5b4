//! Runs a [`Plan`]: the hosts and the switch program that ship, on virtual time, over links with
//! queues, with a network that loses, duplicates and delays packets, and clocks that drift.
//!
//! Checked: at every moment each virtual link of a switch is free, or held once; each message has
//! one outcome, within its stated time, and is delivered at most once, and exactly once if it is
//! complete; the data that waits for a link stays within the bound of trap H1, whatever the faults;
//! at rest all slots and virtual links are free; and without faults no message fails.

use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher as _};

use concord_core::{Instant, MS, Machine as _, NodeId, Now, Rng, SEC};
use concord_pisa::{Metadata, Verdict};
use concord_switch::{Harmony, Ingress, LinksLayout, PortTable, SwitchProgram as _};
use concord_transport::{Host, HostSettings, Outcome};
use concord_wire::Addr;
use concord_wire::harmony::HEAD_BYTES;
use rustc_hash::FxHasher;

use super::links::{Link, Queued, packet_bytes};
use super::plan::{Fault, Plan};
use super::seen::{Seen, content, salt};
use super::topology::{addr, node_of, twice};
use crate::engine::{EventQueue, NS, Time};

/// The maximum number of events of a run.
const EVENTS_MAX: u64 = 3_000_000;
/// The maximum delay of a late packet, in ns.
const LATE_NS: u64 = MS;
/// The time of a recirculation, in ns.
const ROUND_NS: u64 = 400;
/// The maximum delay of a control packet in a host, beside the network's, in ns.
const HOST_NS: u64 = 2_000;

concord_core::counters! {
    /// Counts of what happened in a run.
    pub struct Totals {
        /// Messages that were submitted.
        submitted,
        /// Messages that were delivered.
        delivered,
        /// Messages whose senders learned that they were delivered.
        complete,
        /// Messages that were rejected.
        rejected,
        /// Messages that failed.
        failed,
        /// Grants: `rsvp` packets.
        granted,
        /// Virtual links that were reserved.
        reserved,
        /// Reservations refused by switches.
        refused,
        /// Virtual links whose reservation expired.
        expired,
        /// Data packets with a reservation.
        data_reserved,
        /// Data packets without a reservation, sent as best effort.
        data_best_effort,
        /// Restarts of hosts and switches.
        restarts,
        /// The maximum amount of data that waited for a link, per thousand of its bound.
        queued_per_mille_max,
        /// Events of the simulation.
        events,
    }
}

/// The result of a run.
pub type Ran = crate::systems::Ran<Totals>;

enum Event {
    /// A packet reaches a node, for its first pass or a later one.
    Packet(usize, Addr, Vec<u8>, u8, Metadata),
    /// A link has finished sending its packet.
    Sent(usize, usize),
    Wake(usize, u64),
    Submit(usize),
    Fault(usize),
    Start(usize),
}

enum Role {
    Host(Box<Host>),
    Switch(Box<Harmony>),
    Dead,
}

struct Node {
    role: Role,
    /// The incarnation of the node, raised at each restart.
    process: u32,
    wake_at: u64,
    paused_until: u64,
    /// The offset of its clock; and its drift, in parts per million.
    offset_ns: u64,
    drift_ppm: i64,
}

struct Network<'a> {
    plan: &'a Plan,
    rng: Rng,
    now: u64,
    queue: EventQueue<Event>,
    nodes: Vec<Node>,
    links: BTreeMap<(usize, usize), Link>,
    /// The number of messages that each host has submitted.
    submitted: Vec<u32>,
    /// The switches that are cut off, and until when.
    cuts: BTreeMap<usize, u64>,
    ports: PortTable,
    seen: Seen,
    digest: FxHasher,
    violation: Option<String>,
    totals: Totals,
}

/// Runs a plan, and checks it.
#[must_use]
pub fn run(plan: &Plan) -> Ran {
    let mut network = Network::new(plan);
    while network.violation.is_none() && network.queue.taken() < EVENTS_MAX {
        let Some((at, event)) = network.queue.next_until(Time(SEC * NS)) else { break };
        network.now = at.0 / NS;
        network.happens(event);
        if network.is_done() {
            break;
        }
    }
    network.ends()
}

impl<'a> Network<'a> {
    fn new(plan: &'a Plan) -> Network<'a> {
        let mut network = Network {
            plan,
            rng: Rng::new(plan.seed ^ 0x4a7_2024),
            now: 0,
            queue: EventQueue::new(),
            nodes: Vec::new(),
            links: BTreeMap::new(),
            submitted: vec![0; plan.hosts()],
            cuts: BTreeMap::new(),
            ports: PortTable::default(),
            seen: Seen::default(),
            digest: FxHasher::default(),
            violation: None,
            totals: Totals::default(),
        };
        for node in 0..plan.nodes() {
            let offset_ns = network.rng.below(1_000 * SEC);
            let drift_ppm = network.rng.below(200) as i64 - 100;
            network.nodes.push(Node {
                role: Role::Dead,
                process: 0,
                wake_at: u64::MAX,
                paused_until: 0,
                offset_ns,
                drift_ppm,
            });
            network.start(node);
        }
        for host in 0..plan.hosts() {
            network.next(host);
        }
        for (index, (at, _)) in plan.faults.iter().enumerate() {
            network.at(*at, Event::Fault(index));
        }
        network
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.queue.schedule(Time(at_ns.max(self.now) * NS), event);
    }

    fn clock(&self, node: usize) -> Now {
        let own = &self.nodes[node];
        let drift = i128::from(self.now) * i128::from(own.drift_ppm) / 1_000_000;
        let local = i128::from(own.offset_ns) + i128::from(self.now) + drift;
        Now { instant: Instant(local as u64), unix_ms: 0 }
    }

    /// The time at which a node's clock shows `local`.
    fn when(&self, node: usize, local: Instant) -> u64 {
        if local == Instant::NEVER {
            return u64::MAX;
        }
        let own = &self.nodes[node];
        let since = u128::from(local.0.saturating_sub(own.offset_ns));
        (since * 1_000_000 / (1_000_000 + i128::from(own.drift_ppm)) as u128) as u64 + 1
    }

    /// The time of a packet on a link, in ns.
    fn packet_ns(&self) -> u64 {
        packet_bytes(self.plan.fragment_bytes)
    }

    /// The maximum round trip of control packets, in ns: at every link each waits for the packet
    /// that is being sent, and for as much data as the bound allows.
    fn round_ns(&self) -> u64 {
        let wait = (2 + 4 * u64::from(self.plan.slots)) * self.packet_ns();
        2 * 4 * (self.plan.latency_ns + HEAD_BYTES as u64 + wait + ROUND_NS) + HOST_NS
    }

    fn settings(&self, host: usize) -> HostSettings {
        let plan = self.plan;
        let phase_ns = self.packet_ns() * (100 + plan.headroom_percent) / 100;
        let cycle_ns = phase_ns * u64::from(plan.slots);
        HostSettings {
            node: NodeId(1 + host as u16),
            place: host as u16,
            incarnation: self.nodes[host].process,
            hosts: (0..plan.hosts()).map(addr).collect(),
            switch: Some(addr(plan.topology().tor_of(host))),
            slots: plan.slots,
            phase_ns,
            fragment_bytes: plan.fragment_bytes,
            admission_ns: plan.admission_ns,
            life_ns: self.life_ns(cycle_ns),
            round_ns: self.round_ns(),
            extra_bytes: 4 * plan.fragment_bytes as u32,
            message_bytes_max: 1 << 20,
            tries_again: plan.tries_again,
            guards: plan.guards,
            ..HostSettings::EXAMPLE
        }
    }

    /// The lifetime of a reservation in ns: that of the plan, or what a few packets need if that is
    /// longer.
    fn life_ns(&self, cycle_ns: u64) -> u64 {
        self.plan.life_ns.max(2 * self.round_ns() + 6 * cycle_ns)
    }

    /// Starts a new process of a node.
    fn start(&mut self, node: usize) {
        self.nodes[node].process += 1;
        let is_anew = self.nodes[node].process > 1;
        self.totals.restarts += u64::from(is_anew);
        let role = if node < self.plan.hosts() {
            let host = Host::new(self.settings(node)).map_err(|why| why.to_string());
            host.map(|host| Role::Host(Box::new(host)))
        } else {
            let settings = self.settings(0);
            let layout = LinksLayout {
                hosts: self.plan.hosts() as u16,
                slots: self.plan.slots,
                choice: self.plan.choice,
                life_ns: settings.life_ns,
                ..LinksLayout::DEFAULT
            };
            let now = self.clock(node).instant;
            let switch = Harmony::new(layout, addr(node), self.plan.guards);
            switch.map_err(|why| why.to_string()).and_then(|mut switch| {
                let filled = switch.fill(now, self.plan.topology().tables(node), is_anew);
                filled.map_err(|_| "the tables do not fit".to_owned())?;
                Ok(Role::Switch(Box::new(switch)))
            })
        };
        match role {
            Ok(role) => self.nodes[node].role = role,
            Err(why) => self.violation = Some(why),
        }
        self.nodes[node].wake_at = u64::MAX;
        self.nodes[node].paused_until = 0;
        self.after(node, Vec::new());
    }

    fn happens(&mut self, event: Event) {
        let node = match &event {
            Event::Packet(node, ..) | Event::Wake(node, _) | Event::Submit(node) => Some(*node),
            Event::Sent(..) | Event::Fault(_) | Event::Start(_) => None,
        };
        if let Some(until) = node.map(|node| self.nodes[node].paused_until)
            && self.now < until
        {
            return self.at(until, event);
        }
        match event {
            Event::Packet(node, from, bytes, passes, metadata) => {
                self.packet(node, from, bytes, (passes, metadata));
            }
            Event::Sent(from, to) => self.sent(from, to),
            Event::Wake(node, process) => self.wake(node, process),
            Event::Submit(host) => self.submit(host),
            Event::Fault(index) => self.fault(self.plan.faults[index].1),
            Event::Start(node) => {
                // It may have been restarted since: two restarts overlap.
                self.die(node);
                self.start(node);
            }
        }
    }

    fn packet(&mut self, node: usize, from: Addr, mut bytes: Vec<u8>, pass: (u8, Metadata)) {
        (self.now, node, &bytes).hash(&mut self.digest);
        let now = self.clock(node);
        match &mut self.nodes[node].role {
            Role::Host(host) => {
                let mut sent = Vec::new();
                host.handle(now, from, &mut bytes, &mut sent);
                self.after(node, sent);
            }
            Role::Switch(_) => self.pass(node, from, bytes, pass),
            Role::Dead => {}
        }
    }

    /// Runs a packet's pass through a switch.
    fn pass(&mut self, node: usize, from: Addr, mut bytes: Vec<u8>, pass: (u8, Metadata)) {
        let (passes, metadata) = pass;
        let now = self.clock(node);
        let Role::Switch(program) = &mut self.nodes[node].role else { return };
        let first = Ingress::first(now, from, &self.ports);
        let ingress = Ingress { passes, metadata, ..first };
        let verdict = program.process(&ingress, &mut bytes);
        let violation = twice(program).map(|link| {
            format!("at {} virtual link {link} of switch {node} is lost, or held twice", self.now)
        });
        self.violation = self.violation.take().or(violation);
        match verdict {
            Verdict::Forward { to, size_bytes } => {
                bytes.truncate(size_bytes);
                self.after(node, vec![(to, bytes)]);
            }
            Verdict::Recirculate { metadata, size_bytes } => {
                bytes.truncate(size_bytes);
                let round = Event::Packet(node, from, bytes, passes + 1, metadata);
                self.at(self.now + ROUND_NS, round);
            }
            _ => {}
        }
    }

    fn wake(&mut self, node: usize, process: u64) {
        let own = &mut self.nodes[node];
        if u64::from(own.process) != process || self.now < own.wake_at {
            return;
        }
        own.wake_at = u64::MAX;
        let (now, mut sent) = (self.clock(node), Vec::new());
        let mut sweeps = Vec::new();
        match &mut self.nodes[node].role {
            Role::Host(host) => host.tick(now, &mut sent),
            Role::Switch(program) => {
                while let Some(mut sweep) = program.upkeep(now.instant) {
                    sweeps.push(sweep.packet().to_vec());
                }
            }
            Role::Dead => {}
        }
        for sweep in sweeps {
            self.pass(node, addr(node), sweep, (0, Metadata::default()));
        }
        self.after(node, sent);
    }

    /// Handles the packets, outcomes and deadlines of a node after an event.
    fn after(&mut self, node: usize, sent: Vec<(Addr, Vec<u8>)>) {
        for (to, bytes) in sent {
            self.send(node, node_of(to), bytes);
        }
        let (now, place) = (self.now, node as u16);
        let process = self.nodes[node].process;
        let deadline = match &mut self.nodes[node].role {
            Role::Host(host) => {
                let mut judged = Ok(());
                while let Some(got) = host.poll_delivered() {
                    self.totals.delivered += 1;
                    judged = judged.and_then(|()| self.seen.delivered(place, &got));
                }
                while let Some(done) = host.poll_completion() {
                    match done.outcome {
                        Outcome::Complete => self.totals.complete += 1,
                        Outcome::Reject(_) => self.totals.rejected += 1,
                        Outcome::Failure(_) => self.totals.failed += 1,
                    }
                    let is_failure = matches!(done.outcome, Outcome::Failure(_));
                    if is_failure && self.plan.is_calm() {
                        judged = Err(format!("{place}: {done:?}, and nothing went wrong"));
                    }
                    judged =
                        judged.and_then(|()| self.seen.completed((place, process), now, &done));
                }
                if let Err(why) = judged {
                    self.violation.get_or_insert(why);
                }
                host.deadline()
            }
            Role::Switch(program) => program.deadline(),
            Role::Dead => return,
        };
        let due = self.when(node, deadline.at).max(self.now + 1);
        if due < self.nodes[node].wake_at {
            self.nodes[node].wake_at = due;
            self.at(due, Event::Wake(node, process.into()));
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let is_cut = |node| self.cuts.get(&node).is_some_and(|until| self.now < *until);
        if to >= self.nodes.len() || is_cut(from) || is_cut(to) {
            return;
        }
        let link = self.links.entry((from, to)).or_default();
        if let Some(ns) = link.push(Queued::new(bytes)) {
            self.at(self.now + ns, Event::Sent(from, to));
        }
    }

    /// Ends the transmission of a link's packet, which is now on its way.
    fn sent(&mut self, from: usize, to: usize) {
        let Some(link) = self.links.get_mut(&(from, to)) else { return };
        let (packet, next) = link.done();
        if let Some(ns) = next {
            self.at(self.now + ns, Event::Sent(from, to));
        }
        let Some(Queued { bytes, is_data, .. }) = packet else { return };
        let plan = self.plan;
        let (loss_ppm, doubles) = if is_data {
            (plan.data_loss_ppm, false)
        } else {
            (plan.loss_ppm, self.rng.chance(plan.duplicate_ppm, 1_000_000))
        };
        for _ in 0..1 + u64::from(doubles) {
            if self.rng.chance(loss_ppm, 1_000_000) {
                continue;
            }
            let mut at = self.now + plan.latency_ns;
            if !is_data && self.rng.chance(plan.late_ppm, 1_000_000) {
                at += self.rng.below(LATE_NS);
            }
            let packet = Event::Packet(to, addr(from), bytes.clone(), 0, Metadata::default());
            self.at(at, packet);
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::PauseHost(host, ns) => {
                let paused = &mut self.nodes[host].paused_until;
                *paused = (self.now + ns).max(*paused);
            }
            Fault::RestartHost(node, ns) | Fault::RestartSwitch(node, ns) => {
                self.die(node);
                self.at(self.now + ns, Event::Start(node));
            }
            Fault::CutSwitch(switch, ns) => {
                let until = self.cuts.entry(switch).or_default();
                *until = (*until).max(self.now + ns);
            }
        }
    }

    /// Ends the process of a node, with all its state.
    fn die(&mut self, node: usize) {
        self.count(node);
        self.nodes[node].role = Role::Dead;
        if node < self.plan.hosts() {
            self.seen.died(node as u16);
        }
    }

    /// Schedules a host's next message.
    fn next(&mut self, host: usize) {
        let at = self.now + self.rng.below(self.plan.think_ns + 1);
        self.at(at, Event::Submit(host));
    }

    fn submit(&mut self, host: usize) {
        if self.submitted[host] >= self.plan.messages {
            return;
        }
        self.submitted[host] += 1;
        let hosts = self.plan.hosts() as u64;
        let away = self.rng.between(1, hosts - 1);
        let other = (host as u64 + away) % hosts;
        let to = if self.plan.is_incast && host != 0 { 0 } else { other as u16 };
        let packets = self.rng.between(1, self.plan.packets_max);
        let bytes = packets as usize * self.plan.fragment_bytes - self.rng.below(100) as usize;
        let (now, process) = (self.clock(host), self.nodes[host].process);
        let paused_ns = self.plan.quiet_at_ns();
        if let Role::Host(own) = &mut self.nodes[host].role {
            // The number of the message is known beforehand: hosts count from one.
            let settings = own.settings();
            let stated_ns =
                settings.outcome_ns(bytes as u32) + settings.admission_ns + settings.restart_ns();
            let number = own.numbers() + 1;
            let name = (host as u16, process, number);
            if own.submit(now, to, content(salt(name), bytes)) == Ok(number) {
                self.totals.submitted += 1;
                // Clocks drift; a host that was paused reports the outcome late.
                let due_ns = self.now.max(paused_ns) + stated_ns + stated_ns / 1_000;
                self.seen.submitted(name, to, bytes, due_ns);
            }
            self.after(host, Vec::new());
        }
        self.next(host);
    }

    /// Whether all messages have outcomes, and all slots and virtual links are free.
    fn is_done(&self) -> bool {
        let is_over = self.submitted.iter().all(|own| *own >= self.plan.messages)
            && self.plan.quiet_at_ns() < self.now
            && self.seen.is_done();
        is_over
            && self.nodes.iter().all(|node| match &node.role {
                Role::Host(host) => host.is_idle(),
                Role::Switch(program) => program.reservations().next().is_none(),
                Role::Dead => false,
            })
    }

    /// The maximum of data that may wait at a link, in bytes: 2^(h-1)(K-1) packets at the h-th
    /// switch of a path (trap H1). In addition, at each switch, a packet that is being sent, and
    /// the control packets that may precede the data of all slots.
    fn bound(&self, from: usize, to: usize) -> usize {
        let (hosts, spine) = (self.plan.hosts(), self.plan.hosts() + self.plan.tors);
        let hop = match (from, to) {
            (_, to) if to >= spine => 1,
            (from, _) if from >= spine => 2,
            _ if self.plan.spines == 0 || to >= hosts => 1,
            _ => 3,
        };
        let (slots, packet) = (usize::from(self.plan.slots), self.packet_ns() as usize);
        let control = 4 * slots * HEAD_BYTES;
        (1 << (hop - 1)) * (slots - 1) * packet + hop * (packet + control)
    }

    fn queues(&mut self) -> Option<String> {
        let mut wrong = None;
        for ((from, to), link) in &self.links {
            let bound = self.bound(*from, *to);
            let per_mille = (1_000 * link.most_bytes / bound) as u64;
            let most = &mut self.totals.queued_per_mille_max;
            *most = per_mille.max(*most);
            if link.most_bytes > bound && *from >= self.plan.hosts() {
                let most = link.most_bytes;
                wrong = Some(format!("{most} bytes waited from {from} to {to}, above {bound}"));
            }
        }
        wrong
    }

    /// Adds the counters of a node's process to the totals.
    fn count(&mut self, node: usize) {
        let totals = &mut self.totals;
        match &self.nodes[node].role {
            Role::Host(host) => totals.granted += host.counters().1.granted,
            Role::Switch(program) => {
                let c = program.counters();
                totals.reserved += c.reserved;
                totals.refused += c.refused_no_link + c.refused_busy + c.refused_restarted;
                totals.expired += c.expired;
                totals.data_reserved += c.data_reserved;
                totals.data_best_effort += c.data_best_effort;
            }
            Role::Dead => {}
        }
    }

    fn ends(mut self) -> Ran {
        let is_done = self.is_done();
        for node in 0..self.nodes.len() {
            self.count(node);
        }
        self.totals.events = self.queue.taken();
        let violation = self.violation.take().or_else(|| self.seen.overdue(self.now));
        let violation = violation.or_else(|| self.queues());
        let violation = violation.or_else(|| (!is_done).then(|| self.not_at_rest()));
        Ran { violation, digest: self.digest.finish(), totals: self.totals }
    }

    fn not_at_rest(&self) -> String {
        let mut all = vec![format!("not at rest at {} ns", self.now)];
        for (index, node) in self.nodes.iter().enumerate() {
            match &node.role {
                Role::Host(host) if !host.is_idle() => {
                    all.push(format!("host {index} holds {:?} slots", host.slots_held()));
                }
                Role::Switch(program) => {
                    all.extend(program.reservations().map(|held| format!("{index}: {held:?}")));
                }
                _ => {}
            }
        }
        all.join("; ")
    }
}
