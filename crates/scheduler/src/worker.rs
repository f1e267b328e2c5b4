//! A worker: a process of several executors, each a slot, that asks the switch for tasks and runs
//! them.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::machine::{Deadline, Machine};
use concord_core::{
    Addr, Duration, Guard, Guards, Instant, Key, MS, Nothing, Now, SEC, SessionId, Sink, SwitchId,
};
use concord_wire::control::{
    Heard, Held, Member, Membership, Message as _, ReplicaAlive, Standing,
};
use concord_wire::falcon::{Reply, Task, TaskFlags};
use concord_wire::tasks::{
    Attempt, BodyName, Ended, JOB_BODY, RESULT_BYTES_MAX, Run, TaskMessage, output_bytes_max,
};
use concord_wire::{GroupId, Kind};

use crate::bodies::{Bodies, fragments};
use crate::tags::{Tagged, Tags};

mod asking;
mod begun;
mod granted;
mod slots;

use begun::BegunRuns;
use slots::{Running, Slot, Slots};

/// The largest number of executors of a worker.
pub const SLOTS_MAX: usize = 1 << 12;
/// The largest number of tasks of a worker, running or waiting for an executor.
const TASKS_HELD_MAX: usize = 1 << 14;
/// The largest number of unacknowledged results; above it no new task is asked for.
const REPORTS_MAX: usize = 1 << 14;
/// The bytes of outputs that no owner has yet, above which no new task is asked for; running tasks
/// may add to them.
const REPORT_BYTES_MAX: usize = 64 << 20;
/// The interval in ns of its messages that it lives.
const ALIVE_NS: Duration = 100 * MS;
/// The number of times that a result is sent before its owner is given up.
const TRIES_MAX: u32 = 60;
/// The additional time in ns after which an owner that fetches an output is told again that there
/// is one.
const FETCHED_NS: Duration = 100 * MS;
/// The number of times that a lease is extended before it would end.
const BEATS: u64 = 4;
/// The number of attempts that are remembered as begun.
const BEGUN_MAX: usize = 1 << 16;
/// The time in ns for which a start is repeated until its owner answers.
const FIRST_BEAT_NS: Duration = 2 * MS;

/// The configuration of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Unique for each start of its process.
    pub session: SessionId,
    /// Its own address.
    pub addr: Addr,
    /// The address of the switch, until the controller names another one.
    pub switch: Addr,
    /// Its node's number, and the address of the controller to which it reports that it lives, if
    /// there is one.
    pub controller: Option<(u16, Addr)>,
    /// Its group.
    pub group: GroupId,
    /// The number of tasks that it runs at a time.
    pub slots: u16,
    /// The queues that its executors ask, one a bit: the highest first. Those below
    /// [`CLASSES_MAX`](concord_wire::falcon::CLASSES_MAX) are the classes that it is of.
    pub queues: u32,
    /// The number of tasks that an executor may hold beside the one that it runs, and asks for
    /// meanwhile.
    pub prefetch: u8,
    /// The guards that are on.
    pub guards: Guards,
    /// The rack's secret: with it, only tasks with its owner's tag are run, and no attempt is run
    /// twice.
    pub key: Option<Key>,
    /// The time in ns that an executor waits in the switch, varied by up to a half. With 0 it asks
    /// again and again.
    pub wait_ns: Duration,
    /// The pause in ns after that, or after an answer that there is no task, before it asks again.
    pub poll_ns: Duration,
    /// The time in ns that an answer of the switch may take; longer each time.
    pub answer_ns: Duration,
    /// The time in ns that an owner may take to say that a task may start.
    pub claim_ns: Duration,
    /// The time in ns that a task may run without its owner being heard, the same as the owner's.
    pub lease_ns: Duration,
    /// The bytes of outputs that their owners do not have above which it takes no more tasks.
    pub report_bytes_max: usize,
}

impl WorkerConfig {
    /// The default configuration.
    #[must_use]
    pub const fn new(session: SessionId, addr: Addr, switch: Addr, slots: u16) -> WorkerConfig {
        WorkerConfig {
            session,
            addr,
            switch,
            controller: None,
            group: GroupId::FIRST,
            slots,
            queues: 1,
            prefetch: 0,
            guards: Guards::ALL,
            key: None,
            wait_ns: 100 * MS,
            poll_ns: MS,
            answer_ns: 2 * MS,
            claim_ns: 50 * MS,
            lease_ns: SEC,
            report_bytes_max: REPORT_BYTES_MAX,
        }
    }
}

/// An order to its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Run a task.
    Start {
        /// The executor.
        slot: u16,
        /// The run's number, for [`Worker::finished`].
        run: u32,
        /// The attempt at the task, which the task may use as a fencing token.
        of: Attempt,
        /// The task.
        task: Task,
        /// The data shared by its job's tasks, if there is any.
        job: Option<Arc<[u8]>>,
        /// Its parameters, if they did not travel in the queue.
        parameters: Option<Arc<[u8]>>,
    },
    /// The time limit of a run has passed: stop it with all its descendants, and report its output
    /// so far by [`Worker::finished`], as [`Ended::TimedOut`].
    Stop {
        /// The executor.
        slot: u16,
        /// The run's number.
        run: u32,
    },
    /// Stop a run with all its descendants, and report nothing more about it.
    Kill {
        /// The executor.
        slot: u16,
        /// The run's number.
        run: u32,
        /// Whether its owner cancelled it: it may then be told before it is stopped, if that takes
        /// only a moment. Otherwise its lease is over, and it is stopped at once.
        is_cancelled: bool,
    },
}

/// The output of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output<'a> {
    /// Its first bytes; those beyond [`output_bytes_max`] are cut off.
    pub bytes: &'a [u8],
    /// Its total length in bytes.
    pub total_bytes: u64,
}

impl<'a> From<&'a [u8]> for Output<'a> {
    fn from(bytes: &'a [u8]) -> Output<'a> {
        Output { bytes, total_bytes: bytes.len() as u64 }
    }
}

concord_core::counters! {
    /// What a worker did.
    pub struct WorkerCounters {
        /// Requests sent to the switch.
        requests,
        /// Requests that were not answered in time.
        requests_unanswered,
        /// Runs that began.
        started,
        /// Runs that succeeded.
        done,
        /// Runs that failed.
        failed,
        /// Runs killed because they exceeded their time limit.
        timed_out,
        /// Runs killed because their lease had expired: their owner was not heard of.
        leases_over,
        /// Runs killed because their owner cancelled them.
        cancelled,
        /// Claims that their owner refused.
        claims_refused,
        /// Claims that were not answered in time.
        claims_unanswered,
        /// Tasks given back because no executor was free.
        returned,
        /// Tasks given back because they need a class that this worker does not have.
        returned_class,
        /// Tasks that arrived while all executors ran one (prefetch).
        prefetched,
        /// Assignments refused because their switch is no longer active.
        assignments_other_switch,
        /// Assignments dropped as duplicates, or because they are for an earlier process.
        assignments_stale,
        /// Assignments refused because their attempt had begun before.
        assignments_repeated,
        /// Tasks dropped because their tag is wrong: they were made without the rack's key, or
        /// changed on the way. A rise may be an attack.
        tags_wrong,
        /// Fragments of bodies and parameters received.
        fragments,
        /// Fragments of long outputs sent.
        output_fragments,
        /// Results given up because their owner did not acknowledge them.
        reports_given_up,
        /// Packets dropped because they are malformed, or not for a worker.
        unexpected,
    }
}

/// The task of a slot.
#[derive(Clone, Copy, Debug)]
struct Work {
    of: Attempt,
    run: u32,
    owner: Addr,
    ticket: u32,
    switch_id: SwitchId,
    task: Task,
}

impl Work {
    /// The names of the data that it fetches: the body of its job, its parameters.
    fn needs(&self) -> [Option<BodyName>; 2] {
        let Attempt { uid, jid, tid, .. } = self.of;
        let flags = self.task.flags;
        let name = |tid| BodyName { uid, jid, tid };
        [
            flags.has(TaskFlags::JOB_BODY).then_some(name(JOB_BODY)),
            flags.has(TaskFlags::FETCH).then_some(name(tid)),
        ]
    }
}

/// A message that an owner must acknowledge.
#[derive(Clone, Debug)]
struct Report {
    owner: Addr,
    message: TaskMessage,
    /// The whole output, if it is longer than a result can carry.
    long: Vec<u8>,
    next_at: Instant,
    tries: u32,
}

impl Report {
    /// The length of its output in bytes.
    fn bytes(&self) -> usize {
        match &self.message {
            TaskMessage::Result { output, .. } => output.len().max(self.long.len()),
            _ => 0,
        }
    }
}

/// A worker.
#[derive(Clone, Debug)]
pub struct Worker {
    config: WorkerConfig,
    switch: Addr,
    /// The newest switch that it heard of, or 0.
    switch_id: SwitchId,
    /// The newest configuration that it heard of.
    heard: Heard,
    /// The time at which it reports next that it lives.
    alive_at: Instant,
    slots: Slots,
    /// No run's lease ends before this time.
    lease_floor: Instant,
    /// The number of tasks that are asked for beside those for which executors are free: with
    /// prefetch, it grows with each task found in the queue, and is 0 once the queue is empty.
    ahead: usize,
    /// For each slot, the queues of the switch in which it is known to wait, and until when; also
    /// while it has a task.
    tokens: Vec<Vec<(u8, Instant)>>,
    next_number: u32,
    next_run: u32,
    /// The reports by run number.
    reports: BTreeMap<u32, Report>,
    /// The time at which each report is sent next.
    report_times: BTreeSet<(Instant, u32)>,
    /// The bytes of their long outputs.
    report_bytes: usize,
    orders: VecDeque<Order>,
    bodies: Bodies<BodyName>,
    tags: Option<Tags>,
    /// The attempts that were begun, and the same in order.
    begun: BTreeSet<Attempt>,
    begun_order: VecDeque<Attempt>,
    /// The runs that began of tasks that are never run twice.
    begun_runs: BegunRuns,
    /// Whether it takes no more tasks.
    is_retiring: bool,
    /// If an owner told it to end, the time at which its runs go back.
    drain_until: Option<Instant>,
    counters: WorkerCounters,
    buffer: Vec<u8>,
}

impl Worker {
    /// A worker without runs.
    #[must_use]
    pub fn new(config: WorkerConfig) -> Worker {
        let slots = usize::from(config.slots).clamp(1, SLOTS_MAX);
        let prefetch = usize::from(config.prefetch).min(TASKS_HELD_MAX / slots - 1) as u8;
        let config = WorkerConfig { slots: slots as u16, prefetch, ..config };
        let slots = slots * (1 + usize::from(config.prefetch));
        Worker {
            switch: config.switch,
            switch_id: SwitchId(0),
            heard: Heard::default(),
            alive_at: Instant(0),
            slots: Slots::new(slots),
            tokens: alloc::vec![Vec::new(); slots],
            next_number: 1,
            next_run: 1,
            reports: BTreeMap::new(),
            report_times: BTreeSet::new(),
            lease_floor: Instant::NEVER,
            ahead: 0,
            report_bytes: 0,
            orders: VecDeque::new(),
            bodies: Bodies::default(),
            tags: config.key.map(Tags::new),
            begun: BTreeSet::new(),
            begun_order: VecDeque::new(),
            begun_runs: BegunRuns::default(),
            is_retiring: false,
            drain_until: None,
            counters: WorkerCounters::default(),
            buffer: Vec::new(),
            config,
        }
    }

    /// The next order.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Whether the next order is to begin a run: orders to stop come first.
    #[must_use]
    pub fn begins_next(&self) -> bool {
        matches!(self.orders.front(), Some(Order::Start { .. }))
    }

    /// Whether there are orders. A driver with many runs to begin handles other events in between,
    /// so that leases are extended meanwhile.
    #[must_use]
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Notes that a run ended. A killed run is not reported.
    pub fn finished(
        &mut self,
        now: Now,
        run: u32,
        ended: Ended,
        output: Output<'_>,
        sink: &mut impl Sink,
    ) {
        let now = now.instant;
        self.leases(now);
        let Some((slot, work)) = self.running(run) else { return };
        match ended {
            Ended::Done => self.counters.done += 1,
            Ended::Failed | Ended::Exited(_) | Ended::Killed(_) => self.counters.failed += 1,
            Ended::TimedOut => self.counters.timed_out += 1,
        }
        self.slots.set(slot, Slot::Idle { until: now });
        self.report_end(now, &work, ended, output);
        self.begin_waiting(now);
        self.send_reports(now, sink);
        self.ask(now, sink);
    }

    /// Notes that an ordered run cannot begin here now: it goes back to its owner, and its slot
    /// does not ask for a while.
    pub fn returned(&mut self, now: Now, run: u32, sink: &mut impl Sink) {
        let now = now.instant;
        self.leases(now);
        let Some((slot, work)) = self.running(run) else { return };
        self.counters.returned += 1;
        self.begun_runs.remove(run);
        self.slots.set(slot, Slot::Idle { until: now.after(RETURNED_PAUSE_NS) });
        let message = TaskMessage::Returned { of: work.of, run: self.run(work.run) };
        self.report(now, &work, message, Vec::new());
        self.begin_waiting(now);
        self.send_reports(now, sink);
    }

    /// Gives back runs that do not end in time when the worker ends: they are killed, and go back
    /// to their owners, which do not suspect them of having ended the worker. For a task that is
    /// never run twice the owner hears nothing more.
    pub fn return_runs(&mut self, now: Now, sink: &mut impl Sink) {
        for index in 0..self.slots.len() {
            let Slot::Running(Running { work, is_started, .. }) = self.slots[index] else {
                continue;
            };
            let begun = is_started && !self.takes_back(work.run);
            if begun {
                let (slot, run) = (index as u16, work.run);
                self.orders.push_front(Order::Kill { slot, run, is_cancelled: false });
            }
            self.slots.set(index, Slot::Idle { until: now.instant });
            if !begun || !work.task.flags.has(TaskFlags::ONCE) {
                self.counters.returned += 1;
                let message = TaskMessage::Returned { of: work.of, run: self.run(work.run) };
                self.report(now.instant, &work, message, Vec::new());
            }
        }
        self.send_reports(now.instant, sink);
    }

    /// Tells the worker to end: it takes no more tasks.
    pub fn retire(&mut self) {
        self.is_retiring = true;
    }

    /// If an owner told it to end, the time until which its runs may go on.
    #[must_use]
    pub fn drain_until(&self) -> Option<Instant> {
        self.drain_until
    }

    /// Whether it runs nothing, and all its reports are acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_free = |slot: &Slot| !matches!(slot, Slot::Claiming { .. } | Slot::Running(_));
        self.reports.is_empty() && self.slots.iter().all(is_free)
    }

    /// The runs in progress.
    pub fn runs(&self) -> impl Iterator<Item = (u32, Attempt)> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Running(Running { work, is_started: true, .. }) => Some((work.run, work.of)),
            Slot::Running(_)
            | Slot::Idle { .. }
            | Slot::Asking { .. }
            | Slot::Waiting { .. }
            | Slot::Claiming { .. } => None,
        })
    }

    /// The newest configuration that it heard of.
    #[must_use]
    pub fn heard(&self) -> Heard {
        self.heard
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }
}

/// The time for which a slot does not ask after a run could not begin.
const RETURNED_PAUSE_NS: Duration = 50 * MS;

impl Machine for Worker {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, _: Addr, bytes: &mut [u8], sink: &mut impl Sink) {
        let now = now.instant;
        // Leases that are over by its clock end before any input that waited is handled (trap T1).
        self.leases(now);
        match concord_wire::kind(bytes) {
            Ok(Kind::Falcon) => match Reply::parse(bytes) {
                Ok((asker, reply)) => self.on_reply(now, &asker, reply, sink),
                Err(_) => self.counters.unexpected += 1,
            },
            Ok(Kind::Tasks) => match TaskMessage::parse(bytes) {
                Ok(message) => self.on_message(now, message, sink),
                Err(_) => self.counters.unexpected += 1,
            },
            Ok(Kind::Membership) => match Membership::parse(bytes) {
                Ok(Membership::Configure(part)) => {
                    let config = part.common();
                    if config.epoch < self.heard.epoch {
                        return;
                    }
                    self.heard.rack = config.rack;
                    self.heard.epoch = config.epoch;
                    self.heard.switch_id = self.heard.switch_id.max(config.switch_id);
                    self.on_switch(now, SwitchId(config.switch_id), config.switch);
                }
                Ok(_) | Err(_) => self.counters.unexpected += 1,
            },
            Ok(_) | Err(_) => self.counters.unexpected += 1,
        }
        self.begin_waiting(now);
        self.fetch(now, sink);
        self.ask(now, sink);
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        let now = now.instant;
        self.leases(now);
        self.live(now, sink);
        for slot in 0..self.slots.len() {
            self.tick_slot(now, slot, sink);
        }
        self.begin_waiting(now);
        self.send_reports(now, sink);
        self.fetch(now, sink);
        self.ask(now, sink);
    }

    /// Reports starts at the end of a batch: a run that is over by then needs only its result.
    fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        let now = now.instant;
        for index in 0..self.slots.len() {
            if let Slot::Running(Running { beat_at, .. }) = self.slots[index]
                && beat_at <= now
            {
                self.tick_slot(now, index, sink);
            }
        }
    }

    fn deadline(&self) -> Deadline {
        let at = |at, reason| Deadline { at, reason };
        let may_ask = self.may_ask() && self.slots.in_use().may_ask(&self.config, self.ahead);
        let slots = self.slots.iter().map(|slot| match *slot {
            Slot::Idle { until } if may_ask => at(until, "a request"),
            Slot::Idle { .. } => Deadline::NONE,
            Slot::Asking { until, .. } => at(until, "the switch's answer"),
            Slot::Waiting { until } => at(until, "the end of a wait"),
            Slot::Claiming { beat_at, until, .. } => at(beat_at.min(until), "a claim"),
            Slot::Running(Running { beat_at, lease_until, limit_at, .. }) => {
                at(beat_at.min(lease_until).min(limit_at), "a task that runs")
            }
        });
        let alive = match self.config.controller {
            Some(_) => at(self.alive_at, "a sign of life"),
            None => Deadline::NONE,
        };
        let report = self.report_times.first().map_or(Instant::NEVER, |(next_at, _)| *next_at);
        let bodies = at(self.bodies.deadline(), "fragments");
        slots.fold(alive.min(bodies).min(at(report, "a result")), Deadline::min)
    }
}

/// The part that deals with the controller.
impl Worker {
    /// Reports that it lives: a worker that is heard is a member.
    fn live(&mut self, now: Instant, sink: &mut impl Sink) {
        let Some((node, controller)) = self.config.controller else { return };
        if now < self.alive_at {
            return;
        }
        self.alive_at = now.after(ALIVE_NS);
        let standing = match (self.is_retiring, self.heard.epoch) {
            (true, _) => Standing::Leaving,
            (false, 0) => Standing::Out,
            (false, _) => Standing::Open { caught_up: true },
        };
        let incarnation = self.config.session.0;
        let alive = ReplicaAlive {
            member: Member { node, incarnation, addr: self.config.addr },
            sent_at: now.0,
            heard: self.heard,
            standing,
            held: Held::default(),
            data_dir: None,
            unheard: Vec::new(),
        };
        let alive = Membership::ReplicaAlive(alive);
        alive.emit_in(self.config.group, &mut self.buffer);
        sink.send(controller, &self.buffer);
    }
}

/// The data of tasks.
impl Worker {
    /// Whether an attempt was begun before. Under the rack's key an attempt is begun once, so that
    /// a replayed one is not run again.
    fn is_repeated(&mut self, of: &Attempt) -> bool {
        let is_repeated = self.begun.contains(of) && self.config.guards.on(Guard::TaskRepeat);
        self.counters.assignments_repeated += u64::from(is_repeated);
        is_repeated
    }

    /// The body of its job, and the parameters that did not travel in the queue; `None` while one
    /// is missing.
    fn needs(&mut self, work: &Work) -> Option<[Option<Arc<[u8]>>; 2]> {
        let mut found = [None, None];
        let mut is_missing = false;
        for (place, name) in found.iter_mut().zip(work.needs()) {
            let Some(name) = name else { continue };
            *place = self.bodies.whole(name);
            if place.is_none() {
                is_missing = true;
                self.bodies.want(name, work.owner);
            }
        }
        (!is_missing).then_some(found)
    }

    /// With prefetch: begins tasks that came while all executors were busy, the first first, if an
    /// executor is free.
    fn begin_waiting(&mut self, now: Instant) {
        if self.config.prefetch == 0 {
            return;
        }
        let mut after = None;
        while self.slots.in_use().started < self.config.slots.into()
            && let Some((run, index)) = self.slots.held_after(after)
        {
            self.begin(now, index);
            after = Some(run);
        }
    }

    /// Begins a run that is due, if its data is here.
    fn begin(&mut self, now: Instant, slot: usize) {
        let Slot::Running(running) = self.slots[slot] else { return };
        let work = running.work;
        if running.is_started {
            return;
        }
        if self.config.prefetch > 0 && self.slots.in_use().started >= self.config.slots.into() {
            return;
        }
        let Some([job, parameters]) = self.needs(&work) else { return };
        let is_tagged = self.is_tagged(&work, job.as_deref(), parameters.as_deref());
        if !is_tagged || self.is_repeated(&work.of) {
            self.counters.tags_wrong += u64::from(!is_tagged);
            // The fetched data may be what is wrong.
            work.needs().into_iter().flatten().for_each(|name| self.bodies.forget(name));
            self.slots.set(slot, Slot::Idle { until: now });
            return;
        }
        if let [_, Some(name)] = work.needs() {
            self.bodies.forget(name);
        }
        if self.tags.is_some() && self.begun.insert(work.of) {
            self.begun_order.push_back(work.of);
            if self.begun_order.len() > BEGUN_MAX
                && let Some(oldest) = self.begun_order.pop_front()
            {
                self.begun.remove(&oldest);
            }
        }
        self.counters.started += 1;
        let Work { of, run, task, .. } = work;
        if task.flags.has(TaskFlags::ONCE) {
            self.begun_runs.insert(run);
        }
        self.orders.push_back(Order::Start { slot: slot as u16, run, of, task, job, parameters });
        let limit_at = match task.limit_ms {
            0 => Instant::NEVER,
            ms => now.after(u64::from(ms) * MS),
        };
        self.slots.set(slot, Slot::Running(Running { limit_at, is_started: true, ..running }));
    }

    fn is_tagged(&self, work: &Work, job: Option<&[u8]>, parameters: Option<&[u8]>) -> bool {
        let Some(tags) = &self.tags else { return true };
        let of = |body: Option<&[u8]>| body.map_or(0, |bytes| tags.body(bytes));
        let tagged = Tagged {
            uid: SessionId(work.of.uid),
            jid: work.of.jid,
            owner: work.owner,
            job_body: of(job),
            parameters: of(parameters),
        };
        tags.task(&work.task, &tagged) == work.task.tag || !self.config.guards.on(Guard::TaskTag)
    }

    /// Asks for missing data.
    fn fetch(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.bodies.deadline() > now {
            return;
        }
        let slots = &self.slots;
        self.bodies.retain_wanted(|name| {
            slots.iter().any(|slot| {
                matches!(slot, Slot::Running(Running { work, is_started: false, .. })
                    if work.needs().contains(&Some(name)))
            })
        });
        let (own, group) = (self.config.addr, self.config.group);
        let fetch = |name, first, count| TaskMessage::Fetch { name, worker: own, first, count };
        self.bodies.ask(now, fetch, group, &mut self.buffer, sink);
    }
}

/// The part that deals with owners.
impl Worker {
    fn run(&self, run: u32) -> Run {
        Run { session: self.config.session.0, run, worker: self.config.addr }
    }

    fn say(&mut self, to: Addr, message: &TaskMessage, sink: &mut impl Sink) {
        message.emit_in(self.config.group, &mut self.buffer);
        sink.send(to, &self.buffer);
    }

    /// The slot of a run in progress, and its task.
    fn running(&self, run: u32) -> Option<(usize, Work)> {
        let index = self.slots.of_run(run)?;
        match self.slots[index] {
            Slot::Running(Running { work, .. }) => Some((index, work)),
            Slot::Idle { .. }
            | Slot::Asking { .. }
            | Slot::Waiting { .. }
            | Slot::Claiming { .. } => None,
        }
    }

    /// Stops runs that have no lease any more, before anything else.
    fn leases(&mut self, now: Instant) {
        if self.lease_floor > now {
            return;
        }
        self.lease_floor = Instant::NEVER;
        for index in 0..self.slots.len() {
            let Slot::Running(Running { work, lease_until, is_started, .. }) = self.slots[index]
            else {
                continue;
            };
            if lease_until > now || !self.config.guards.on(Guard::TaskLease) {
                self.lease_floor = self.lease_floor.min(lease_until);
                continue;
            }
            self.counters.leases_over += 1;
            if is_started && !self.takes_back(work.run) {
                let (slot, run) = (index as u16, work.run);
                self.orders.push_front(Order::Kill { slot, run, is_cancelled: false });
            } else if work.task.flags.has(TaskFlags::ONCE) {
                self.return_unbegun(now, &work);
            }
            self.slots.set(index, Slot::Idle { until: now });
        }
    }

    fn tick_slot(&mut self, now: Instant, index: usize, sink: &mut impl Sink) {
        match self.slots[index] {
            Slot::Idle { .. } => {}
            Slot::Asking { queue, until, tries, waits_until, .. }
                if until <= now && self.may_ask() =>
            {
                self.counters.requests_unanswered += 1;
                self.request(now, index, queue, tries + 1, waits_until.is_some(), sink);
            }
            Slot::Waiting { until } | Slot::Asking { until, .. } if until <= now => {
                self.slots.set(index, Slot::Idle { until: now });
            }
            Slot::Asking { .. } | Slot::Waiting { .. } => {}
            Slot::Claiming { work, until, .. } if until <= now => {
                // It never starts: a late answer names a run that does not exist.
                self.counters.claims_unanswered += 1;
                self.slots.set(index, Slot::Idle { until: now });
                let message = TaskMessage::Returned { of: work.of, run: self.run(work.run) };
                self.report(now, &work, message, Vec::new());
            }
            Slot::Claiming { work, since, beat_at, until } if beat_at <= now => {
                let (of, run, asked_at) = (work.of, self.run(work.run), now.0);
                self.say(work.owner, &TaskMessage::Claim { of, run, asked_at }, sink);
                let beat_at = now.after(FIRST_BEAT_NS);
                self.slots.set(index, Slot::Claiming { work, since, beat_at, until });
            }
            Slot::Running(running @ Running { work, limit_at, .. }) if limit_at <= now => {
                let (slot, run) = (index as u16, work.run);
                if self.takes_back(run) {
                    self.counters.timed_out += 1;
                    self.slots.set(index, Slot::Idle { until: now });
                    return self.report_end(now, &work, Ended::TimedOut, Output::default());
                }
                let running = Running { limit_at: Instant::NEVER, ..running };
                self.slots.set(index, Slot::Running(running));
                self.orders.push_front(Order::Stop { slot, run });
            }
            Slot::Running(running) if running.beat_at <= now => {
                let work = running.work;
                let (of, run, asked_at) = (work.of, self.run(work.run), now.0);
                self.say(work.owner, &TaskMessage::Running { of, run, asked_at }, sink);
                let beat_ns = self.config.lease_ns / BEATS;
                let beat_at = now.after(if running.is_heard { beat_ns } else { FIRST_BEAT_NS });
                self.slots.set(index, Slot::Running(Running { beat_at, ..running }));
            }
            Slot::Claiming { .. } | Slot::Running(_) => {}
        }
    }

    fn on_message(&mut self, now: Instant, message: TaskMessage, sink: &mut impl Sink) {
        match message {
            TaskMessage::Claimed { run, asked_at, granted, .. } => {
                if run.session == self.config.session.0 {
                    self.on_claimed(now, run.run, Instant(asked_at), granted);
                }
            }
            TaskMessage::Extended { run, asked_at, .. } => {
                let until = Instant(asked_at).after(self.config.lease_ns);
                if run.session == self.config.session.0
                    && let Some((index, _)) = self.running(run.run)
                    && let Slot::Running(running) = self.slots[index]
                {
                    let next_at = now.after(self.config.lease_ns / BEATS);
                    let beat_at = if running.is_heard { running.beat_at } else { next_at };
                    let lease_until = until.max(running.lease_until);
                    let heard = Running { beat_at, is_heard: true, lease_until, ..running };
                    self.slots.set(index, Slot::Running(heard));
                }
            }
            TaskMessage::Known { run, .. } => {
                if run.session == self.config.session.0
                    && let Some(report) = self.reports.remove(&run.run)
                {
                    self.report_bytes -= report.bytes();
                    self.report_times.remove(&(report.next_at, run.run));
                }
            }
            TaskMessage::Cancel { run, .. } => {
                if run.session == self.config.session.0 {
                    self.on_cancel(now, run.run);
                }
            }
            TaskMessage::Fragment { name, total_bytes, index, bytes } => {
                if self.bodies.take(now, name, total_bytes, index, &bytes) {
                    for slot in 0..self.slots.len() {
                        self.begin(now, slot);
                    }
                }
                self.counters.fragments += 1;
            }
            TaskMessage::FetchOutput { run, first, count } => {
                if run.session == self.config.session.0 {
                    self.on_fetch_output(now, run, first, count, sink);
                }
            }
            TaskMessage::Drain { owner, session, within_ms } => {
                self.on_drain(now, owner, session, within_ms, sink);
            }
            TaskMessage::Wait { run, .. } => {
                if run.session == self.config.session.0 {
                    self.on_wait(now, run);
                }
            }
            TaskMessage::Inquire { of, run, owner } => {
                self.on_inquiry(now, (of, run), owner, sink);
            }
            TaskMessage::Claim { .. }
            | TaskMessage::Running { .. }
            | TaskMessage::Result { .. }
            | TaskMessage::Returned { .. }
            | TaskMessage::Fetch { .. }
            | TaskMessage::Gone { .. }
            | TaskMessage::Draining { .. }
            | TaskMessage::OutputFragment { .. } => self.counters.unexpected += 1,
        }
    }

    /// Ends the worker if an owner means this process; otherwise tells it which process this is.
    fn on_drain(
        &mut self,
        now: Instant,
        owner: Addr,
        session: u64,
        within_ms: Option<u64>,
        sink: &mut impl Sink,
    ) {
        let own = self.config.session.0;
        let is_draining = session == own;
        if is_draining {
            self.is_retiring = true;
            let until = within_ms.map_or(Instant::NEVER, |ms| now.after(ms.saturating_mul(MS)));
            self.drain_until = Some(until);
        }
        let has_task = |slot: &&Slot| matches!(slot, Slot::Claiming { .. } | Slot::Running(_));
        let tasks = self.slots.iter().filter(has_task).count() as u32;
        let worker = self.config.addr;
        let answer = TaskMessage::Draining { worker, session: own, is_draining, tasks };
        self.say(owner, &answer, sink);
    }

    /// Whether a run was ordered and its driver has not begun it; it is then withdrawn. Orders to
    /// stop come before all orders to begin.
    fn takes_back(&mut self, run: u32) -> bool {
        let begins = |order: &Order| matches!(order, Order::Start { run: own, .. } if *own == run);
        let Some(at) = self.orders.iter().position(begins) else { return false };
        self.begun_runs.remove(run);
        self.orders.remove(at).is_some()
    }

    fn on_cancel(&mut self, now: Instant, run: u32) {
        for index in 0..self.slots.len() {
            match self.slots[index] {
                Slot::Running(Running { work, is_started, .. }) if work.run == run => {
                    if is_started && !self.takes_back(run) {
                        let slot = index as u16;
                        self.orders.push_front(Order::Kill { slot, run, is_cancelled: true });
                    }
                }
                Slot::Claiming { work, .. } if work.run == run => {}
                Slot::Idle { .. }
                | Slot::Asking { .. }
                | Slot::Waiting { .. }
                | Slot::Claiming { .. }
                | Slot::Running(_) => continue,
            }
            self.slots.set(index, Slot::Idle { until: now });
            self.counters.cancelled += 1;
        }
    }

    fn report_end(&mut self, now: Instant, work: &Work, ended: Ended, output: Output<'_>) {
        let most = output_bytes_max(work.task.function);
        let kept = &output.bytes[..output.bytes.len().min(most)];
        // The length tells the reader how much there is to fetch.
        let is_whole = kept.len() < most;
        let output_bytes = if is_whole { kept.len() as u64 } else { output.total_bytes };
        let output = kept[..kept.len().min(RESULT_BYTES_MAX)].to_vec();
        let long = if kept.len() > RESULT_BYTES_MAX { kept.to_vec() } else { Vec::new() };
        let run = self.run(work.run);
        let result = TaskMessage::Result { of: work.of, run, ended, output_bytes, output };
        self.report(now, work, result, long);
    }

    /// An owner fetches an output, which shows that it lives: it is reminded less often.
    fn on_fetch_output(
        &mut self,
        now: Instant,
        run: Run,
        first: u32,
        count: u8,
        sink: &mut impl Sink,
    ) {
        let Some(report) = self.reports.get_mut(&run.run) else { return };
        if report.long.is_empty() && count > 0 {
            return;
        }
        let was = report.next_at;
        (report.tries, report.next_at) = (1, was.max(now.after(FETCHED_NS)));
        self.report_times.remove(&(was, run.run));
        self.report_times.insert((report.next_at, run.run));
        for (total_bytes, index, bytes) in fragments(&report.long, first, count) {
            let fragment = TaskMessage::OutputFragment { run, total_bytes, index, bytes };
            fragment.emit_in(self.config.group, &mut self.buffer);
            sink.send(report.owner, &self.buffer);
            self.counters.output_fragments += 1;
        }
    }

    /// Repeats a report until its owner acknowledges it.
    fn report(&mut self, now: Instant, work: &Work, message: TaskMessage, long: Vec<u8>) {
        let report = Report { owner: work.owner, message, long, next_at: now, tries: 0 };
        self.report_bytes += report.bytes();
        self.reports.insert(work.run, report);
        self.report_times.insert((now, work.run));
    }

    fn send_reports(&mut self, now: Instant, sink: &mut impl Sink) {
        while let Some(&(next_at, run)) = self.report_times.first()
            && next_at <= now
        {
            self.report_times.pop_first();
            let Some(report) = self.reports.get_mut(&run) else { continue };
            if report.tries >= TRIES_MAX {
                self.counters.reports_given_up += 1;
                self.report_bytes -= report.bytes();
                self.reports.remove(&run);
                continue;
            }
            report.message.emit_in(self.config.group, &mut self.buffer);
            sink.send(report.owner, &self.buffer);
            report.next_at = now.after((5 * MS) << report.tries.min(6));
            report.tries += 1;
            self.report_times.insert((report.next_at, run));
        }
    }
}
