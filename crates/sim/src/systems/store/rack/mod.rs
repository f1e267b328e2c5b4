//! A rack of the shipped machines in a [`World`], its run, and the check of its history.
//!
//! A run has a safety phase, in which the plan's faults happen. Then all faults end, and in the
//! liveness phase all nodes that are alive must make progress. Then the rack comes to rest, and all
//! members must have the same data.

mod build;
mod cache;
mod clients;
mod damage;
mod disk;
mod file;
mod gateway;
mod inject;
mod messages;
mod moves;
mod pipeline;
mod power;
mod progress;
mod rest;
mod socket;
mod step;
mod subscribers;
mod together;
mod voters;
mod watch;
mod watch_vr;

use std::collections::VecDeque;
use std::time::Duration;

use concord_check::{
    Calm, Decision, Operation, Options, Report, Transaction, Verdict, check_transactions,
    is_too_little,
};
use concord_client::Client;
use concord_core::machine::Deadline;
use concord_core::{Addr, Guards, MS, Machine, Nothing, Now, RequestNumber, Rng, SEC, Sink};
use concord_engine::Shimmed;
use concord_protocols::Node as Replicas;
use concord_wire::GroupId;
use concord_wire::control::{Config, Member};

use crate::record::{Recorder, Recording};
use crate::systems::Overdue;
use crate::systems::store::build::Blueprint;
use crate::systems::store::fault::{Fault, Node};
use crate::systems::store::plan::Plan;
use crate::systems::store::storage::Store;
use crate::systems::store::totals::Totals;
use crate::world::{CONTROLLER, Outgoing, REPLICAS, SWITCH, World};

use clients::GOOD_MIN;
use disk::ReplicaDisk;
use file::StateFile;
use gateway::Redis;
use messages::Board;
pub use power::run_with_power_cut;
use progress::Progress;
use voters::VoterRequest;
use watch::Watch;

/// The maximum time between the end of a key's time to live and its deletion when nothing is wrong,
/// in ns: the search for expired keys is periodic, and a deletion is a write.
const CALM_GRACE_NS: u64 = 350 * MS;
/// The maximum duration of the safety phase, in ns, even if operations are missing then; the
/// liveness phase reports why.
const SAFETY_NS_MAX: u64 = 60 * SEC;
/// The maximum number of events: a run with more makes no progress in spite of much activity.
const EVENTS_MAX: u64 = 20_000_000;

/// The maximum time for which a history is checked if a guard is removed.
const MUTANT_CHECK_MAX: Duration = Duration::from_secs(2);

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The violation, if there was one: a history that is not linearizable, a broken invariant,
    /// replicas with different data, no progress.
    pub violation: Option<String>,
    /// The history.
    pub history: Vec<Operation>,
    /// The counts of the run.
    pub totals: Totals,
    /// The hash of all events of the run, in order; equal on every machine and in every build.
    pub digest: u64,
}

pub(crate) type Replica = Replicas<Shimmed<Store>>;

pub(crate) type Role = crate::systems::store::role::Role<Shimmed<Store>, Process>;

/// A node: its machine, and the state of its host.
pub(crate) struct Slot {
    role: Role,
    /// The packets that wait for the node: sender and bytes.
    inbox: VecDeque<(usize, Vec<u8>)>,
    paused_until_ns: u64,
    busy_until_ns: u64,
    /// The time at which the node is woken, in ns; `u64::MAX` if that is not scheduled.
    wake_at_ns: u64,
    /// Whether an event is scheduled that lets the node handle its next packet.
    serve_scheduled: bool,
    /// The number of packets left in the current batch, and the clock when it was received: like
    /// the runtime's driver, a node reads the clock once for all packets that it receives at once.
    batch: Option<(usize, Now)>,
    /// Whether the node's deadline passed while it was paused or busy.
    tick_due: bool,
    /// How often in a row its next deadline had passed already when it had just been woken.
    overdue: Overdue,
    /// The additional time for every packet, in ns, and the time until which that lasts.
    slow: (u64, u64),
    /// The number of scheduled completions of the storage engine.
    completions_scheduled: usize,
    /// The time until which the storage engine is stalled, in ns.
    engine_stalled_until_ns: u64,
    /// The time until which a fault may make others take the node for dead, in ns.
    troubled_until_ns: u64,
    /// Whether a fault has made its storage engine lose its state.
    engine_lost: bool,
    /// Set if it was told to shut down: how long it is to be gone, in ns. Once it has ended, it is
    /// restarted after that time.
    retiring_for_ns: Option<u64>,
}

impl Slot {
    fn new(role: Role) -> Slot {
        Slot {
            role,
            inbox: VecDeque::new(),
            paused_until_ns: 0,
            busy_until_ns: 0,
            wake_at_ns: u64::MAX,
            serve_scheduled: false,
            batch: None,
            tick_due: false,
            overdue: Overdue::default(),
            slow: (0, 0),
            completions_scheduled: 0,
            engine_stalled_until_ns: 0,
            troubled_until_ns: 0,
            engine_lost: false,
            retiring_for_ns: None,
        }
    }

    fn replica(&self) -> Option<&Replica> {
        match &self.role {
            Role::Replica(replica) => Some(replica),
            Role::Controller(_) | Role::Switch(_) | Role::Client(_) | Role::Dead => None,
        }
    }
}

struct Connection {
    underway: Option<(RequestNumber, Operation)>,
    last_write: Option<RequestNumber>,
    rng: Rng,
    /// The number of operations that were begun and answered after all faults had ended.
    good: u64,
}

/// A process whose connections use the rack's native client.
pub(crate) struct Native {
    client: Client,
    connections: Vec<Connection>,
}

/// A client process.
pub(crate) enum Process {
    Native(Box<Native>),
    Redis(Box<Redis>),
}

impl Process {
    /// The rack's client in the process, for its counters.
    fn client(&self) -> &Client {
        match self {
            Process::Native(native) => &native.client,
            Process::Redis(redis) => redis.gateway.client(),
        }
    }

    /// Whether every connection has had operations answered since all faults ended.
    fn is_lively(&self) -> bool {
        match self {
            Process::Native(native) => native.connections.iter().all(|c| c.good >= GOOD_MIN),
            Process::Redis(redis) => redis.is_lively(),
        }
    }

    /// The connections without enough answers since all faults ended.
    fn lacking(&self) -> String {
        match self {
            Process::Native(native) => native
                .connections
                .iter()
                .enumerate()
                .filter(|(_, c)| c.good < GOOD_MIN)
                .map(|(at, c)| format!(", connection {at} got {} good replies", c.good))
                .collect(),
            Process::Redis(redis) => redis.lacking(),
        }
    }

    /// Whether an operation is pending.
    fn is_busy(&self) -> bool {
        match self {
            Process::Native(native) => native.connections.iter().any(|c| c.underway.is_some()),
            Process::Redis(redis) => redis.is_busy(),
        }
    }
}

impl Machine for Process {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        match self {
            Process::Native(native) => native.client.handle(now, from, packet, sink),
            Process::Redis(redis) => redis.gateway.handle(now, from, packet, sink),
        }
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        match self {
            Process::Native(native) => native.client.tick(now, sink),
            Process::Redis(redis) => redis.gateway.tick(now, sink),
        }
    }

    fn deadline(&self) -> Deadline {
        match self {
            Process::Native(native) => native.client.deadline(),
            Process::Redis(redis) => redis.gateway.deadline(),
        }
    }

    fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        match self {
            Process::Native(native) => native.client.flush(now, sink),
            Process::Redis(redis) => redis.gateway.flush(now, sink),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Safety,
    Liveness {
        since_ns: u64,
    },
    /// All nodes are well, and clients continue.
    Calm,
    Rest,
}

struct Rack<'a> {
    plan: &'a Plan,
    blueprint: Blueprint,
    /// The controllers' state as it is stored.
    file: StateFile,
    /// The number of replicas at the start and those that join later.
    replicas: usize,
    /// The number of replicas that were started.
    started: usize,
    world: World,
    slots: Vec<Slot>,
    /// The disks of the replicas, which outlive their processes.
    disks: Vec<ReplicaDisk>,
    history: Vec<Operation>,
    /// Transactions on several keys, which are not in the history.
    transactions: Vec<Transaction>,
    /// Pushes of moves for which it is unknown which element they moved, if any.
    unknown_pushes: Vec<Operation>,
    stage: Stage,
    /// The time at which all faults ended, in ns.
    healed_ns: Option<u64>,
    /// The time at which the calm period began, in ns.
    calm_from_ns: Option<u64>,
    begun: usize,
    /// The number of the plan's faults that have not begun.
    faults_left: usize,
    fast_since_heal: u64,
    /// The number of values written so far: each is unique.
    unique: u64,
    /// Whether a client of a gateway was told that the function library is loaded.
    has_library: bool,
    /// The messages published through gateways.
    board: Board,
    /// The time for which the only member left was paused or cut off, in ns: no expiry could be
    /// decided.
    alone_held_ns: u64,
    /// Whether a replica's data was damaged.
    is_damaged: bool,
    /// The number of keys written so that they expire together.
    due: u64,
    /// The generator of seeds for machines that start during the run.
    incarnations: Rng,
    totals: Totals,
    outgoing: Outgoing,
    watch: Watch,
    progress: Progress,
    /// Raft: an operator's requests for changes of voters.
    asked: Vec<VoterRequest>,
    /// The first broken invariant, if there is one.
    broken: Option<String>,
}

/// Runs a plan, and checks its history.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    run_rack(Rack::new(plan)).0
}

/// Runs a plan, checks its history, and records every packet.
#[must_use]
pub fn run_recorded(plan: &Plan) -> (Outcome, Recording) {
    let mut rack = Rack::new(plan);
    let mut recorder = Recorder::default();
    recorder.recording.nodes = (0..rack.slots.len()).map(|node| rack.name_of(node)).collect();
    rack.world.recorder = Some(recorder);
    let (outcome, rack) = run_rack(rack);
    let recording = rack.world.recorder.map(|r| r.recording).unwrap_or_default();
    (outcome, recording)
}

fn run_rack(mut rack: Rack<'_>) -> (Outcome, Rack<'_>) {
    let wrong = rack.run_to_end();
    rack.collect();
    let without_writes_ns =
        rack.without_controller_ns() + rack.hung_disks_ns() + rack.alone_held_ns;
    let without_writes_ns = without_writes_ns + rack.plan.disks.slow_ns();
    let clock_error_ns = rack.clock_error_ns(rack.world.now_ns);
    let grace_ns = 3 * SEC + clock_error_ns + without_writes_ns;
    // Without a guard the search might not end; a history that it leaves undecided is no violation.
    let is_whole = rack.plan.guards == Guards::ALL;
    let time_max = (!is_whole).then_some(MUTANT_CHECK_MAX);
    // If a switch's numbers are used up soon, its writes often wait for another switch id.
    let calm_from_ns = rack.calm_from_ns.filter(|_| rack.plan.bounds.counter_bits == 0);
    let calm = calm_from_ns.map(|from_ns| {
        let slow_ns = rack.plan.disks.slow_ns() + rack.plan.engine_work_ns;
        let clock_error_ns = rack.clock_error_ns(rack.plan.calm_ns);
        Calm { from_ns, grace_ns: CALM_GRACE_NS + clock_error_ns + slow_ns }
    });
    let options = Options { grace_ns, calm, time_max, ..Options::default() };
    // The log's time decides on expiries.
    let options = Options { early_ns: 20 * MS + clock_error_ns, ..options };
    let unknown = std::mem::take(&mut rack.unknown_pushes);
    let checked = moves::check_with(&mut rack.history, unknown, &options);
    if let Ok(report) = &checked {
        rack.count_judged(report);
    }
    // A run that was stopped has pending operations, which its history does not contain.
    let violation = wrong.or_else(|| match checked {
        Ok(report) if report.is_ok() => None,
        Ok(report) if !is_whole && report.verdict == Verdict::Unknown => None,
        Ok(report) => Some(report.to_string()),
        Err(error) => Some(error.to_string()),
    });
    let violation = violation.or_else(|| rack.without_order());
    if let Some(text) = &violation {
        rack.mark(None, text.lines().next().unwrap_or_default().into(), true);
    }
    let digest = rack.world.digest;
    let history = std::mem::take(&mut rack.history);
    (Outcome { violation, history, totals: rack.totals, digest }, rack)
}

impl Rack<'_> {
    /// Runs all phases. Returns a violation if there is one.
    fn run_to_end(&mut self) -> Option<String> {
        if let Some(text) = self.run_safety() {
            return Some(text);
        }
        if self.is_lost() {
            // Faults that would exceed the failure bound are skipped, so that this must not happen.
            return Some(self.standing("no member of the newest epoch is alive"));
        }
        self.heal();
        let wrong = self.run_liveness().or_else(|| self.run_calm()).or_else(|| self.run_to_rest());
        let wrong = wrong.or_else(|| self.run_cached()).or_else(|| self.run_subscribed());
        wrong.or_else(|| self.run_damaged())
    }

    /// Runs until every operation has ended and every fault has begun.
    fn run_safety(&mut self) -> Option<String> {
        let last_ns = self.plan.faults.last().map_or(0, |f| f.at_ns);
        let linger_until_ns = last_ns + self.plan.linger_ns;
        loop {
            let is_done = self.ended() >= self.plan.operations
                && self.faults_left == 0
                && self.world.now_ns >= linger_until_ns;
            if is_done || self.world.now_ns > SAFETY_NS_MAX {
                return None;
            }
            if self.world.events.is_multiple_of(1_024) && self.is_lost() {
                return None;
            }
            self.ask_again();
            if let Some(text) = self.next_event().or_else(|| self.look_at_progress()) {
                return Some(text);
            }
        }
    }

    /// The number of operations and transactions that have ended.
    fn ended(&self) -> usize {
        self.history.len() + self.transactions.len()
    }

    /// Counts the operations that were checked, and the transactions on several keys that were
    /// answered.
    fn count_judged(&mut self, report: &Report) {
        let judged = self.transactions.iter().filter(|own| own.return_ns.is_some()).count();
        let judged = judged + report.judged;
        self.totals.judged = judged as u64;
        self.totals.refused = report.refused as u64;
        self.totals.expiries = [report.expiries.set as u64, report.expiries.judged as u64];
        let issued = report.operations + self.transactions.len();
        self.totals.runs_too_little = u64::from(is_too_little(judged, issued));
    }

    /// Checks that the transactions on several keys have an order; returns a violation otherwise.
    fn without_order(&self) -> Option<String> {
        let anomaly = match check_transactions(&self.transactions) {
            Ok(Decision::Ordered(_)) => return None,
            // Without a guard, an undecided check is no violation.
            Ok(Decision::Open(_)) if self.plan.guards != Guards::ALL => return None,
            Ok(Decision::Open(why)) => {
                return Some(format!(
                    "UNKNOWN: the order of transactions was left open: out of {why}"
                ));
            }
            Err(anomaly) => anomaly,
        };
        let mut text = format!("transactions of several keys have no order: {anomaly}");
        for at in anomaly.transactions() {
            text += &format!("\n{at}: {}", together::describe(&self.transactions[at]));
        }
        Some(text)
    }

    /// Handles one event. Returns a violation if there is one.
    fn next_event(&mut self) -> Option<String> {
        let Some(event) = self.world.pop() else { return Some("nothing to do".into()) };
        if self.world.events > EVENTS_MAX {
            return Some(self.standing("too many events"));
        }
        self.recover_state(false);
        self.step(event);
        self.broken.take()
    }

    /// The maximum difference in ns between virtual time and the log's time over `within_ns`: the
    /// drift of monotonic clocks, and the rate at which two clocks follow others; without jumps of
    /// a wall clock.
    fn clock_error_ns(&self, within_ns: u64) -> u64 {
        let drift_ns = within_ns / 1_000_000 * self.plan.drift_ppm;
        drift_ns + 2 * within_ns / concord_core::clock::SLEW
    }

    /// The maximum time in ns for which the node that orders writes (and expiries) could not be
    /// replaced, where the controller replaces it: the controller was paused, or a node that
    /// received nothing was heard. A quorum finds another leader by itself.
    fn without_controller_ns(&self) -> u64 {
        let faults = || self.plan.faults.iter().map(|f| f.fault);
        if faults().any(|fault| matches!(fault, Fault::OldState { .. })) {
            // A state is made anew only once every member is heard, and the operator may have to
            // try again.
            let tries_ns = 4 * self.plan.failure_ns + SEC;
            return faults().map(|fault| fault.for_ns() + tries_ns).sum();
        }
        let spans = self.plan.faults.iter().map(|f| match f.fault {
            Fault::Pause { node: Node::Controller, for_ns }
            | Fault::CutController { for_ns, .. }
            | Fault::OldState { for_ns, .. }
            | Fault::FullController { for_ns }
            | Fault::Deaf { for_ns, .. } => for_ns,
            _ => 0,
        });
        let is_quorum = self.plan.protocol.is_quorum();
        // Nor does a switch get numbers that restarts, or whose numbers are used up.
        let is_switch = |fault: &Fault| {
            matches!(
                fault,
                Fault::RestartSwitch
                    | Fault::ReplaceSwitch { .. }
                    | Fault::Split { .. }
                    | Fault::Reboot { node: Node::Switch }
            )
        };
        let has_switches = self.plan.faults.iter().any(|f| is_switch(&f.fault));
        if !is_quorum || has_switches || self.plan.bounds.counter_bits > 0 {
            return spans.sum();
        }
        // Without a switch no write is ordered at all.
        let without = self.plan.faults.iter().map(|f| match f.fault {
            Fault::CutController { with_switch: true, for_ns } => for_ns,
            _ => 0,
        });
        without.sum()
    }

    /// The total time in ns for which at least one replica's disk hung: no write, and no election,
    /// may have ended meanwhile.
    fn hung_disks_ns(&self) -> u64 {
        let (mut all_ns, mut until_ns) = (0, 0);
        for timed in &self.plan.faults {
            if let Fault::HangDisk { for_ns, .. } = timed.fault {
                let ends_ns = until_ns.max(timed.at_ns + for_ns);
                all_ns += ends_ns - until_ns.max(timed.at_ns);
                until_ns = ends_ns;
            }
        }
        all_ns
    }

    /// The state of all nodes, for the engineer who looks for the cause.
    fn standing(&self, why: &str) -> String {
        let mut text = format!("{why}, at {} ms", self.world.now_ns / MS);
        for (node, slot) in self.slots.iter().enumerate() {
            let now = self.world.clock(node);
            text += &format!("\n{}: ", self.name_of(node));
            text += &match &slot.role {
                Role::Controller(c) => format!(
                    "{}{}; counted: {}",
                    c.state().config(GroupId::FIRST).map_or("no epoch".into(), describe_config),
                    c.problem().map_or(String::new(), |problem| format!("; {problem}")),
                    counted(c.counters().each())
                ),
                Role::Switch(s) => {
                    let (program, view) = (s.program(), s.program().view());
                    format!(
                        "id {}, epoch {}, number {}, last committed {}, {} cells; counted: {} {}",
                        program.switch_id(),
                        s.epoch(),
                        view.seq,
                        view.last_committed,
                        view.occupied,
                        counted(program.store().counters().each()),
                        counted(s.counters().each())
                    )
                }
                Role::Replica(r) => {
                    let s = r.status(now);
                    format!(
                        "{:?} {} in epoch {}, executed {}, committed {}, {}; counted: {}",
                        s.phase,
                        s.role,
                        s.epoch,
                        s.executed,
                        s.committed,
                        if s.leased { "leased" } else { "no lease" },
                        counted(r.each_counter())
                    )
                }
                Role::Client(p) => format!(
                    "{} unanswered{}; counted: {}",
                    p.client().unanswered(),
                    p.lacking(),
                    counted(p.client().counters().each())
                ),
                Role::Dead => "dead".into(),
            };
        }
        text
    }

    fn name_of(&self, node: usize) -> Node {
        match node {
            CONTROLLER => Node::Controller,
            SWITCH => Node::Switch,
            _ if node == self.other_controller() => Node::OtherController,
            _ if node == self.other_switch() => Node::OtherSwitch,
            _ if node < REPLICAS + self.replicas => Node::Replica(node - REPLICAS),
            _ => Node::Client(node - REPLICAS - self.replicas),
        }
    }

    fn index_of(&self, node: Node) -> usize {
        match node {
            Node::Controller => CONTROLLER,
            Node::OtherController => self.other_controller(),
            Node::Switch => SWITCH,
            Node::OtherSwitch => self.other_switch(),
            Node::Replica(n) => REPLICAS + n,
            Node::Client(n) => REPLICAS + self.replicas + n,
        }
    }

    fn other_controller(&self) -> usize {
        REPLICAS + self.replicas + self.plan.clients
    }

    fn other_switch(&self) -> usize {
        self.other_controller() + 1
    }

    fn mark(&mut self, node: Option<usize>, text: String, is_fault: bool) {
        let at_ns = self.world.now_ns;
        if let Some(recorder) = &mut self.world.recorder {
            recorder.mark(at_ns, node, text, is_fault);
        }
    }

    fn retire_counters(&mut self, node: usize) {
        match &self.slots[node].role {
            Role::Replica(r) => {
                self.totals.replicas.add(r.counters());
                if let Replicas::Vr(vr) = &**r {
                    self.totals.vr.add(vr.vr_counters());
                }
            }
            Role::Switch(s) => self.totals.switch.add(s.program().store().counters()),
            Role::Controller(c) => self.totals.control.add(c.counters()),
            Role::Client(p) => {
                self.totals.switches_heard_of += p.client().counters().switch_changed;
                self.totals.sessions_lost += p.client().counters().sessions_expired;
                if let Process::Redis(redis) = &***p {
                    self.totals.gateway.add(redis.gateway.counters());
                    self.totals.fast_reads += p.client().counters().fast_reads;
                }
            }
            Role::Dead => {}
        }
    }

    fn collect(&mut self) {
        for node in 0..self.slots.len() {
            self.retire_counters(node);
        }
        self.totals.operations = self.ended() as u64;
        self.totals.packets = self.world.packets;
        self.totals.lost = self.world.lost;
        self.totals.duplicated = self.world.duplicated;
        if let Some(fabric) = &self.world.fabric {
            self.totals.with_links = 1;
            self.totals.dropped_port = fabric.dropped();
        }
        self.totals.odd = self.world.odd.count;
        self.totals.events = self.world.events;
        self.totals.virtual_ns = self.world.now_ns;
    }
}

fn describe_config(config: &Config) -> String {
    let names = |members: &[Member]| -> String {
        members.iter().map(|m| format!(" replica-{}", m.node)).collect()
    };
    let joining = if config.joining.is_empty() { "" } else { ", joining" };
    let (members, joiners) = (names(&config.members), names(&config.joining));
    let (epoch, id) = (config.epoch, config.switch_id);
    format!("epoch {epoch}, switch id {id},{members}{joining}{joiners}")
}

/// The counters that are not zero.
fn counted(counters: impl Iterator<Item = (&'static str, &'static str, u64)>) -> String {
    let seen = counters.filter(|(_, _, value)| *value > 0);
    seen.map(|(name, _, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}
