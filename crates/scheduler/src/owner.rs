//! The owner of tasks: it submits them, follows them, and reports the outcome of each, once.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::machine::{Deadline, Machine};
use concord_core::{
    Addr, Duration, Guard, Guards, Instant, Key, MS, Nothing, Now, Rng, SEC, SessionId, Sink,
    SwitchId,
};
use concord_wire::control::{Membership, Message as _};
use concord_wire::falcon::{Answer, Submission};
use concord_wire::tasks::{Attempt, BODY_BYTES_MAX, Ended, Run, TaskMessage};
use concord_wire::{GroupId, Kind};

use crate::book::OUTPUT_BYTES_KEPT_MAX;
use crate::outcome::{Outcome, TaskOutcome};
use crate::tags::Tags;
use crate::trace::Trace;

mod drains;
mod grants;
mod inquiries;
mod job;
mod lines;
mod outputs;
mod queue;
mod resume;
mod suspects;
mod withheld;

pub use drains::Drained;
use drains::Drains;
pub(crate) use grants::Grant;
use grants::Inquiries;
pub use job::{Job, TaskSpec};
use lines::{Line, Place, Places};
use outputs::{EndedRun, Outputs};
use resume::NOBODY;
use suspects::Suspicion;

/// The largest number of unanswered submissions.
const SUBMISSIONS_MAX: usize = 16;
/// The intervals in ns at which the controller is asked for the current switch: normally, and if
/// the switch does not answer.
const WHO_NS: Duration = SEC / 2;
const WHO_DOUBT_NS: Duration = 50 * MS;
/// The largest number of tasks that are not over.
pub const TASKS_OPEN_MAX: usize = 1 << 20;
/// The output of a task for which no attempt number is left.
const NO_NUMBER_LEFT: &[u8] = b"it was tried 65535 times, and no attempt has a higher number\n";
/// The largest number of attempts of a task whose workers went silent.
const LOST_MAX: u16 = 16;
/// The number of results that are acknowledged at once.
const KNOWN_MAX: usize = 64;
/// A worker stops by its own clock, so that the owner waits longer by this fraction of a lease.
const LEASE_MARGIN: u64 = 8;

/// The configuration of an owner.
#[derive(Clone, Copy, Debug)]
pub struct OwnerConfig {
    /// UID: unique for each start of its process (trap T16).
    pub session: SessionId,
    /// Its own address.
    pub addr: Addr,
    /// The address of the switch, until the controller names another one.
    pub switch: Addr,
    /// The address of the controller, if there is one.
    pub controller: Option<Addr>,
    /// The group of the workers.
    pub group: GroupId,
    /// The guards that are on.
    pub guards: Guards,
    /// Whether it notes the entries that a journal must contain before anyone is told, so that its
    /// submissions may wait for them ([`crate::JournaledOwner`]).
    pub has_journal: bool,
    /// The number of attempts of a job's tasks that begin before the journal must contain a higher
    /// limit: attempt numbers are fencing tokens, and the next process begins above the written
    /// limit.
    pub attempts_noted: u16,
    /// The rack's secret, with which each task is tagged.
    pub key: Option<Key>,
    /// The seed of back-off.
    pub seed: u64,
    /// The time in ns that a worker may run a task without being heard of.
    pub lease_ns: Duration,
    /// The time in ns after it was handed out within which a task's start must be reported.
    pub start_ns: Duration,
    /// The time in ns that an answer of the switch may take.
    pub answer_ns: Duration,
    /// The interval in ns at which the switch is asked for retrieve_ptr.
    pub ask_ns: Duration,
    /// The longest pause after a full queue, in ns.
    pub pause_ns_max: Duration,
    /// The longest time in ns before a worker is told that a result is known: far shorter than its
    /// interval of repeating the result. Results that become known meanwhile are acknowledged in
    /// one train.
    pub known_ns: Duration,
    /// The bytes of outputs for which its driver's [`crate::Book`] has room. A quarter of it is
    /// fetched at a time, and as much may wait to be durable.
    pub room_bytes: usize,
}

impl OwnerConfig {
    /// The default configuration.
    #[must_use]
    pub const fn new(session: SessionId, addr: Addr, switch: Addr) -> OwnerConfig {
        OwnerConfig {
            session,
            addr,
            switch,
            controller: None,
            group: GroupId::FIRST,
            guards: Guards::ALL,
            has_journal: false,
            attempts_noted: 100,
            key: None,
            seed: session.0,
            lease_ns: SEC,
            start_ns: 5 * MS,
            answer_ns: 5 * MS,
            ask_ns: 2 * MS,
            pause_ns_max: 100 * MS,
            known_ns: MS,
            room_bytes: OUTPUT_BYTES_KEPT_MAX,
        }
    }
}

concord_core::counters! {
    /// What an owner did.
    pub struct OwnerCounters {
        /// Submissions sent.
        submissions,
        /// Submissions that were not answered in time.
        submissions_unanswered,
        /// Answers that arrived after their submission had been answered or given up.
        answers_late,
        /// Answers by a switch that is no longer active.
        answers_other_switch,
        /// Tasks refused because the switch's queue was full, counted each time; they are submitted
        /// again.
        tasks_refused,
        /// Tasks submitted again because no worker reported that it runs them.
        tasks_unheard,
        /// Tasks submitted again because another switch became active.
        tasks_forgotten,
        /// Tasks that gave up waiting for the node near which they preferred to run.
        tasks_moved,
        /// Runs whose worker went silent: their leases expired.
        leases_over,
        /// Tasks given up because two workers went silent while they ran them.
        suspects_given_up,
        /// Runs that failed.
        failures,
        /// Runs cancelled because another run of the task continues, or the task is over.
        runs_cancelled,
        /// Tasks that workers gave back without beginning them.
        runs_returned,
        /// Results that arrived after their task was over.
        results_late,
        /// Fragments of bodies and parameters sent.
        fragments,
        /// Fragments of long outputs received.
        output_fragments,
        /// Tasks that are over, each counted once.
        outcomes,
        /// Packets dropped because they are malformed, or not for an owner.
        unexpected,
    }
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It is to be submitted.
    Ready,
    /// It is to be submitted at this time.
    Later(Instant),
    /// It is in this unanswered submission.
    Submitted(u32),
    /// It is in the queue with this ticket; and the time since which a worker is known to have it.
    Queued(i64, Option<Instant>),
    /// This run holds it, or may start it, under a lease until this time.
    Held(Run, Instant),
    /// It must not be submitted yet: its job waits for another one, or its limit of tasks in flight
    /// is reached.
    Withheld,
    /// It is over.
    Over,
}

/// A task.
#[derive(Clone, Debug)]
struct Item {
    spec: TaskSpec,
    at: At,
    /// The line that it is in, or was in last.
    place: Place,
    /// Whether it still waits for a node near which it is to run.
    is_near: bool,
    /// The number of its last attempt: the number of its submissions, plus the attempt number
    /// before the first one of this process.
    attempt: u16,
    attempts_before: u16,
    /// Whether an executor may have had the last attempt number that exists, so that the task
    /// cannot be submitted again.
    is_spent: bool,
    retries_left: u16,
    /// The number of workers that went silent while they ran it.
    lost: u16,
    suspicion: Suspicion,
    /// The highest attempt that is known to be over: it failed, or was given back. Earlier messages
    /// of its run may still arrive, and more than once.
    over_to: u16,
    trace: Trace,
}

impl Item {
    /// The number of its submissions to a queue that had room for it. A refused submission has an
    /// attempt number of its own too: it may have been duplicated, and have found room the second
    /// time.
    fn attempts(&self) -> u16 {
        (self.attempt - self.attempts_before).saturating_sub(self.trace.again.refused)
    }
}

#[derive(Clone, Debug)]
struct OpenJob {
    once: bool,
    body: Option<Arc<[u8]>>,
    /// The body's tag.
    body_tag: u64,
    long: BTreeMap<u32, Arc<[u8]>>,
    limit_ms: u32,
    needs: u8,
    places: Places,
    items: Vec<Item>,
    /// The number of its tasks that are not over.
    open: usize,
    retry_ns: Duration,
    /// The largest number of its tasks that are neither withheld nor over; 0 for no limit.
    running_max: u32,
    /// The number of tasks that are neither withheld nor over.
    let_in: usize,
    /// Withheld tasks that may be submitted next, in order; some are over by now.
    withheld: VecDeque<u32>,
    /// The highest attempt number that its tasks may have before the journal has a higher limit.
    attempts_up_to: u16,
}

/// A worker's message about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The run goes on.
    Runs,
    /// It asks whether it may begin.
    Claims,
    /// It ended, and has this output.
    Ended,
}

/// The name of a task: JID and TID.
type Name = (u32, u32);

#[derive(Clone, Debug)]
struct Pending {
    place: Place,
    tasks: Vec<Name>,
    /// The time at which its answer is late. [`Instant::NEVER`] while the submission waits for the
    /// journal, and was not sent.
    until: Instant,
}

/// An owner of tasks.
#[derive(Clone, Debug)]
pub struct Owner {
    config: OwnerConfig,
    rng: Rng,
    switch: Addr,
    /// The newest switch that it heard of, or 0.
    switch_id: SwitchId,
    jobs: BTreeMap<u32, OpenJob>,
    next_jid: u32,
    open: usize,
    lines: BTreeMap<Place, Line>,
    /// For each job, the time until which its tasks wait for a node.
    near_until: BTreeSet<(Instant, u32)>,
    /// The time at which a task is examined again: it is [`At::Later`], handed out or held until
    /// then.
    timers: BTreeSet<(Instant, Name)>,
    pending: BTreeMap<u32, Pending>,
    next_number: u32,
    /// The time at which the switch is asked next.
    ask_at: Instant,
    /// The time at which the controller is asked next for the current switch.
    who_at: Instant,
    /// Whether a submission was not answered since the switch was last heard.
    is_in_doubt: bool,
    /// The time at which it may be asked again, if the switch is silent.
    doubt_at: Instant,
    outcomes: VecDeque<TaskOutcome>,
    /// Results that are known but not acknowledged to their workers yet, and the time until which
    /// they need not be.
    known: Vec<(Attempt, Run)>,
    known_at: Instant,
    /// Decisions about tasks that are never run twice since the last [`Owner::take_grants`].
    grants: Vec<Grant>,
    /// Runs of the process before that are asked for.
    inquiries: Inquiries,
    /// Jobs whose limit of attempt numbers was raised, with the new limit.
    raised: Vec<(u32, u16)>,
    /// Outputs that are being fetched. Their tasks are held by the runs that produced them.
    outputs: Outputs,
    /// Whether no further outputs are fetched, because their readers have not read the earlier
    /// ones.
    is_held_back: bool,
    /// The time until which the owner itself may have been late, so that an expired lease says
    /// nothing about a worker.
    late_until: Instant,
    /// The sessions of the processes that had its jobs before; and the time until which nothing is
    /// submitted, since their runs must be heard of first.
    before: Vec<u64>,
    submit_at: Instant,
    /// Workers that went silent with suspects: the time, and the number of suspects that they ran
    /// beside the first one.
    silent: BTreeMap<u64, (Instant, usize)>,
    /// Workers that are to be told to end.
    drains: Drains,
    tags: Option<Tags>,
    counters: OwnerCounters,
    buffer: Vec<u8>,
}

/// A task that no worker reports is submitted again at once, and twice as late after each further
/// time, up to this many doublings.
const UNHEARD_DOUBLINGS_MAX: u16 = 6;

fn count(times: &mut u16) {
    *times = times.saturating_add(1);
}

impl Owner {
    /// An owner without tasks.
    #[must_use]
    pub fn new(config: OwnerConfig) -> Owner {
        Owner {
            rng: Rng::new(config.seed),
            switch: config.switch,
            switch_id: SwitchId(0),
            jobs: BTreeMap::new(),
            next_jid: 1,
            open: 0,
            lines: BTreeMap::new(),
            near_until: BTreeSet::new(),
            timers: BTreeSet::new(),
            pending: BTreeMap::new(),
            next_number: 1,
            ask_at: Instant(0),
            who_at: Instant(0),
            is_in_doubt: true,
            doubt_at: Instant(0),
            outcomes: VecDeque::new(),
            known: Vec::new(),
            known_at: Instant(0),
            grants: Vec::new(),
            inquiries: Inquiries::new(),
            raised: Vec::new(),
            outputs: Outputs::new(config.room_bytes / 4),
            is_held_back: false,
            late_until: Instant(0),
            before: Vec::new(),
            submit_at: Instant(0),
            silent: BTreeMap::new(),
            drains: Drains::default(),
            tags: config.key.map(Tags::new),
            counters: OwnerCounters::default(),
            buffer: Vec::new(),
            config,
        }
    }

    /// Accepts a job, whose tasks the next tick begins to submit, and returns its JID. `None` if
    /// too many tasks are open, it has none, or its body or a task's parameters are longer than
    /// [`BODY_BYTES_MAX`], so that no executor could fetch them. None of its tasks is accepted
    /// then.
    pub fn submit(&mut self, now: Now, job: Job) -> Option<u32> {
        if self.open + job.tasks.len() > TASKS_OPEN_MAX || job.tasks.is_empty() {
            return None;
        }
        if job.body.iter().chain(job.long.values()).any(|bytes| bytes.len() > BODY_BYTES_MAX) {
            return None;
        }
        let jid = self.next_jid;
        self.next_jid += 1;
        let places = Places::new(job.priority, job.needs, job.near);
        let place = places.near.unwrap_or(places.class);
        let is_withheld = job.is_held || job.running_max > 0;
        let item = |spec| Item {
            spec,
            at: if is_withheld { At::Withheld } else { At::Ready },
            place,
            is_near: places.near.is_some(),
            attempt: 0,
            attempts_before: 0,
            is_spent: false,
            retries_left: job.retries,
            lost: 0,
            suspicion: Suspicion::default(),
            over_to: 0,
            trace: Trace { taken_at: now.instant, ..Trace::default() },
        };
        let items: Vec<Item> = job.tasks.iter().copied().map(item).collect();
        let line = self.lines.entry(place).or_insert_with(Line::new);
        let all = 0..items.len() as u32;
        let mut withheld = VecDeque::new();
        if !is_withheld {
            line.ready.extend(all.map(|tid| (jid, tid)));
        } else if !job.is_held {
            withheld.extend(all);
        }
        if places.near.is_some() {
            self.near_until.insert((now.instant.after(job.locality_wait_ns), jid));
        }
        self.open += items.len();
        let open = items.len();
        let Job { once, limit_ms, needs, body, long, retry_ns, running_max, .. } = job;
        let tag = |body: &Arc<[u8]>| self.tags.map_or(0, |tags| tags.body(body));
        let body_tag = body.as_ref().map_or(0, tag);
        let attempts_up_to = self.config.attempts_noted;
        let job = OpenJob {
            once,
            body,
            body_tag,
            long,
            limit_ms,
            needs,
            places,
            items,
            open,
            retry_ns,
            running_max,
            let_in: if is_withheld { 0 } else { open },
            withheld,
            attempts_up_to,
        };
        self.jobs.insert(jid, job);
        self.let_in(jid);
        Some(jid)
    }

    /// Ends all unfinished tasks of a job. Runs are stopped as soon as their workers hear of it;
    /// tasks in the queue, when an executor gets them. `false` if there is no such job, or it is
    /// over.
    pub fn cancel(&mut self, now: Now, jid: u32, sink: &mut impl Sink) -> bool {
        let Some(job) = self.jobs.get(&jid) else { return false };
        let open = (0..).zip(&job.items).filter(|(_, item)| item.at != At::Over);
        let open: Vec<(u32, At, u16)> =
            open.map(|(tid, item)| (tid, item.at, item.attempt)).collect();
        for (tid, at, attempt) in open {
            if let At::Held(run, _) = at {
                let of = Attempt { uid: self.config.session.0, jid, tid, attempt };
                self.say(run.worker, &TaskMessage::Cancel { of, run }, sink);
            }
            self.end(now.instant, (jid, tid), Outcome::Cancelled, 0);
        }
        true
    }

    /// Ends the owner, and its tasks with it: runs are stopped as soon as their workers hear of it,
    /// by this or by their leases.
    pub fn retire(&mut self, now: Now, sink: &mut impl Sink) {
        let jobs: Vec<u32> = self.jobs.keys().copied().collect();
        for jid in jobs {
            self.cancel(now, jid, sink);
        }
        // With a journal a result is known once it is durable, which is not awaited here.
        if !self.config.has_journal {
            self.tell_known(now.instant, sink);
        }
    }

    /// Chooses whether long outputs stay at their workers, for lack of room here. Their tasks are
    /// not over meanwhile, and a worker with many of them takes no more tasks.
    pub fn hold_outputs(&mut self, is_held_back: bool) {
        self.is_held_back = is_held_back;
    }

    /// The next outcome of a task.
    pub fn poll_outcome(&mut self) -> Option<TaskOutcome> {
        self.outcomes.pop_front()
    }

    /// The number of outcomes that [`Owner::poll_outcome`] has not returned yet.
    #[must_use]
    pub fn outcomes_left(&self) -> usize {
        self.outcomes.len()
    }

    /// The number of tasks that are not over.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// The state of a task of an unfinished job, in words; the number of its submissions; and its
    /// trace. `None` if its job is over or unknown.
    #[must_use]
    pub fn explain(&self, jid: u32, tid: u32) -> Option<(&'static str, u16, Trace)> {
        let item = self.jobs.get(&jid)?.items.get(tid as usize)?;
        let stands = match item.at {
            At::Ready => "waits to be submitted",
            At::Later(_) => "waits to be submitted again",
            At::Submitted(_) => "was submitted; the switch has not answered",
            At::Queued(_, None) => "is in the queue",
            At::Queued(_, Some(_)) => "was handed to an executor",
            At::Held(..) => "runs",
            At::Withheld => "waits for another job, or until fewer tasks of its own run",
            At::Over => "is over",
        };
        Some((stands, item.attempts(), item.trace))
    }

    /// The tasks that are held by workers. Only those that were handed out are examined for it: a
    /// million may wait.
    fn held(&self) -> impl Iterator<Item = (Name, Run)> {
        self.timers.iter().filter_map(|&(at, (jid, tid))| {
            let item = self.jobs.get(&jid)?.items.get(tid as usize)?;
            match item.at {
                At::Held(run, until) if until == at => Some(((jid, tid), run)),
                At::Held(..)
                | At::Withheld
                | At::Ready
                | At::Later(_)
                | At::Submitted(_)
                | At::Queued(..)
                | At::Over => None,
            }
        })
    }

    /// The number of tasks of each job that are held by workers, without jobs that have none.
    #[must_use]
    pub fn running(&self) -> BTreeMap<u32, usize> {
        let mut running = BTreeMap::new();
        for ((jid, _), _) in self.held() {
            *running.entry(jid).or_default() += 1;
        }
        running
    }

    /// The newest switch that it heard of, and its address.
    #[must_use]
    pub fn switch(&self) -> (SwitchId, Addr) {
        (self.switch_id, self.switch)
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &OwnerCounters {
        &self.counters
    }
}

impl Machine for Owner {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, _: Addr, bytes: &mut [u8], sink: &mut impl Sink) {
        self.note_call(now.instant);
        match concord_wire::kind(bytes) {
            Ok(Kind::Falcon) => match Submission::parse(bytes) {
                Ok(answer) if answer.answer != Answer::None => self.on_answer(now.instant, &answer),
                Ok(_) | Err(_) => self.counters.unexpected += 1,
            },
            Ok(Kind::Tasks) => match TaskMessage::parse(bytes) {
                Ok(message) => self.on_message(now.instant, message, sink),
                Err(_) => self.counters.unexpected += 1,
            },
            Ok(Kind::Membership) => match Membership::parse(bytes) {
                Ok(Membership::Configure(part)) => {
                    let config = part.common();
                    self.on_switch(SwitchId(config.switch_id), Some(config.switch));
                }
                Ok(_) | Err(_) => self.counters.unexpected += 1,
            },
            Ok(_) | Err(_) => self.counters.unexpected += 1,
        }
        self.fetch(now.instant, sink);
        self.pump(now.instant, sink);
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        let now = now.instant;
        self.note_call(now);
        while let Some(&(at, name)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.on_timer(now, name);
        }
        let late = |(number, p): (&u32, &Pending)| (p.until <= now).then_some(*number);
        let late: Vec<u32> = self.pending.iter().filter_map(late).collect();
        for number in late {
            self.counters.submissions_unanswered += 1;
            self.note_unanswered(now, number);
            self.is_in_doubt = true;
            self.who_at = self.who_at.min(self.doubt_at);
            self.submit_again(number);
        }
        while let Some(&(at, jid)) = self.near_until.first()
            && at <= now
        {
            self.near_until.pop_first();
            self.move_away(jid);
        }
        if self.ask_at <= now && self.waits_in_queues() {
            self.ask_at = now.after(self.config.ask_ns);
            let queued = self.lines.iter().filter(|(_, line)| !line.queued.is_empty());
            let places: Vec<Place> = queued.map(|(place, _)| *place).collect();
            for place in places {
                self.send_submission(0, place, &[], sink);
            }
        }
        self.ask_who(now, sink);
        self.ask_drains(now, sink);
        self.ask_inquiries(now, sink);
        self.fetch(now, sink);
        self.pump(now, sink);
    }

    /// Acknowledges results. The first one after a while is acknowledged at once, those that follow
    /// soon after it in one train.
    fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        if self.known_at <= now.instant || self.known.len() >= KNOWN_MAX {
            self.tell_known(now.instant, sink);
        }
    }

    fn deadline(&self) -> Deadline {
        let at = |at, reason| Deadline { at, reason };
        let mut next = Deadline::NONE;
        if let Some((timer, _)) = self.timers.first() {
            next = next.min(at(*timer, "a task's start or lease"));
        }
        if let Some(until) = self.pending.values().map(|pending| pending.until).min() {
            next = next.min(at(until, "a submission's answer"));
        }
        if self.waits_in_queues() {
            next = next.min(at(self.ask_at, "where retrieve_ptr is"));
        }
        if self.pending.len() < SUBMISSIONS_MAX {
            let ready = self.lines.values().filter(|line| !line.ready.is_empty());
            let submit_at = self.submit_at;
            let until = ready.map(|line| at(line.pause_until.max(submit_at), "a full queue"));
            next = until.fold(next, Deadline::min);
        }
        if let Some((until, _)) = self.near_until.first() {
            next = next.min(at(*until, "a wait for a node"));
        }
        next = next.min(at(self.outputs.deadline(), "fragments of an output"));
        next = next.min(at(self.drains.deadline(), "a worker that is to end"));
        next = next.min(at(self.inquiries.deadline(), "runs of the process before"));
        if !self.known.is_empty() {
            next = next.min(at(self.known_at, "results that are known"));
        }
        if self.open > 0 && self.config.controller.is_some() {
            next = next.min(at(self.who_at, "who the switch is"));
        }
        next
    }
}

/// The part that deals with workers.
impl Owner {
    fn say(&mut self, to: Addr, message: &TaskMessage, sink: &mut impl Sink) {
        if to.port == 0 {
            return;
        }
        message.emit_in(self.config.group, &mut self.buffer);
        sink.send(to, &self.buffer);
    }

    fn tell_known(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.known.is_empty() {
            return;
        }
        self.known_at = now.after(self.config.known_ns);
        for (of, run) in core::mem::take(&mut self.known) {
            self.say(run.worker, &TaskMessage::Known { of, run }, sink);
        }
    }

    fn on_timer(&mut self, now: Instant, name: Name) {
        let start_ns = self.config.start_ns;
        let Some((item, once)) = self.item(name) else { return };
        match item.at {
            At::Later(at) if at <= now => {}
            At::Queued(_, Some(passed_at)) if passed_at.after(start_ns) <= now => {
                count(&mut item.trace.again.unheard);
                let times = item.trace.again.unheard;
                self.counters.tasks_unheard += 1;
                if times > 1 {
                    // It may be that no worker accepts it: workers with another key drop it.
                    let at = now.after(start_ns << (times - 1).min(UNHEARD_DOUBLINGS_MAX));
                    if let Some((item, _)) = self.item(name) {
                        item.at = At::Later(at);
                    }
                    self.timers.insert((at, name));
                    return;
                }
            }
            At::Held(run, until) if until <= now => {
                item.lost += 1;
                count(&mut item.trace.again.leases_over);
                let is_over = item.lost > LOST_MAX;
                self.counters.leases_over += 1;
                if once && self.is_asked_longer(now, name) {
                    return;
                } else if once {
                    return self.end(now, name, Outcome::Unknown, 0);
                } else if self.is_given_up(now, name, run) || is_over {
                    self.counters.suspects_given_up += u64::from(!is_over);
                    return self.end(now, name, Outcome::Lost, 0);
                }
            }
            // It has gone on since.
            At::Ready
            | At::Withheld
            | At::Later(_)
            | At::Submitted(_)
            | At::Queued(..)
            | At::Held(..)
            | At::Over => {
                return;
            }
        }
        self.make_ready(name, true);
    }

    fn on_message(&mut self, now: Instant, message: TaskMessage, sink: &mut impl Sink) {
        let (of, run) = match &message {
            TaskMessage::Claim { of, run, .. }
            | TaskMessage::Running { of, run, .. }
            | TaskMessage::Result { of, run, .. }
            | TaskMessage::Returned { of, run } => (*of, *run),
            TaskMessage::Fetch { name, worker, first, count } => {
                return self.on_fetch(*name, *worker, *first, *count, sink);
            }
            TaskMessage::OutputFragment { run, total_bytes, index, bytes } => {
                return self.on_output(now, *run, (*total_bytes, *index), bytes);
            }
            TaskMessage::Draining { worker, session, is_draining, tasks } => {
                let tasks = is_draining.then_some(*tasks);
                return self.on_draining(now, (*worker, *session), tasks, sink);
            }
            TaskMessage::Gone { of, run } => return self.on_gone(now, *of, *run),
            TaskMessage::Fragment { .. }
            | TaskMessage::Claimed { .. }
            | TaskMessage::Extended { .. }
            | TaskMessage::Known { .. }
            | TaskMessage::FetchOutput { .. }
            | TaskMessage::Drain { .. }
            | TaskMessage::Wait { .. }
            | TaskMessage::Inquire { .. }
            | TaskMessage::Cancel { .. } => {
                self.counters.unexpected += 1;
                return;
            }
        };
        // Another process had this address: its tasks have no owner any more, unless this one took
        // over its jobs.
        let is_held = self.is_held_by(of, run);
        let is_before = self.before.contains(&of.uid);
        let is_own = of.uid == self.config.session.0 || is_before || is_held;
        match message {
            TaskMessage::Claim { asked_at, .. } => {
                // What the process before granted, and what began since, goes on.
                let is_known = is_own && (!is_before || is_held);
                let granted = is_known && self.holds(now, of, run, Told::Claims);
                let answer = TaskMessage::Claimed { of, run, asked_at, granted };
                self.say(run.worker, &answer, sink);
            }
            TaskMessage::Running { asked_at, .. } => {
                let answer = if is_own && self.holds(now, of, run, Told::Runs) {
                    TaskMessage::Extended { of, run, asked_at }
                } else {
                    self.counters.runs_cancelled += 1;
                    TaskMessage::Cancel { of, run }
                };
                self.say(run.worker, &answer, sink);
            }
            TaskMessage::Result { ended, output, output_bytes, .. } => {
                let kept_bytes = self.kept_bytes((of.jid, of.tid), output_bytes);
                let told = EndedRun { of, run, ended, output_bytes, kept_bytes };
                if is_before {
                    // This run holds the task, if no other one is known.
                    self.holds(now, of, run, Told::Runs);
                }
                let is_part = output.len() < kept_bytes;
                let is_held_back = self.is_held_back && !output.is_empty();
                if is_own && (is_part || is_held_back) && self.waits_for_output(now, told, sink) {
                    return;
                }
                if is_own {
                    self.on_result(now, of, run, ended, (output, output_bytes));
                }
                self.known.push((of, run));
            }
            TaskMessage::Returned { .. } => {
                if is_own {
                    self.on_returned(of, run);
                }
                self.known.push((of, run));
            }
            TaskMessage::Claimed { .. }
            | TaskMessage::Extended { .. }
            | TaskMessage::Known { .. }
            | TaskMessage::Cancel { .. }
            | TaskMessage::Fetch { .. }
            | TaskMessage::FetchOutput { .. }
            | TaskMessage::OutputFragment { .. }
            | TaskMessage::Drain { .. }
            | TaskMessage::Draining { .. }
            | TaskMessage::Wait { .. }
            | TaskMessage::Inquire { .. }
            | TaskMessage::Gone { .. }
            | TaskMessage::Fragment { .. } => {}
        }
    }

    /// Whether this run is the one that holds the task. If so, its lease is extended. The first run
    /// that is heard of holds it; for a task that is never run twice, the first that asks before it
    /// starts.
    fn holds(&mut self, now: Instant, of: Attempt, run: Run, told: Told) -> bool {
        let lease_ns = self.config.lease_ns;
        let until = now.after(lease_ns + lease_ns / LEASE_MARGIN);
        let name = (of.jid, of.tid);
        // A run that began under the process before continues the task.
        let is_before = self.config.session.0 != of.uid;
        let Some((item, once)) = self.item(name) else { return false };
        let may = match item.at {
            At::Held(NOBODY, _) => is_before,
            At::Held(holder, _) => holder == run,
            At::Over => false,
            At::Withheld => is_before && !once,
            At::Ready | At::Later(_) | At::Submitted(_) | At::Queued(..) => match told {
                // Earlier messages of a run that is over may still arrive: no worker would run the
                // task.
                Told::Runs => !once && of.attempt > item.over_to,
                Told::Claims => of.attempt > item.over_to,
                Told::Ended => true,
            },
        };
        if may {
            let was = core::mem::replace(&mut item.at, At::Held(run, until));
            if !matches!(was, At::Held(..)) {
                item.is_spent |= item.attempt == u16::MAX;
                (item.trace.started_at, item.trace.worker) = (now, run.worker);
            }
            let is_new = !matches!(was, At::Held(holder, _) if holder == run);
            if is_new && once && self.config.has_journal {
                self.grants.push(Grant::To(of, run));
            }
            self.let_go(name, was);
            self.note_let_in(name.0, was);
            self.timers.insert((until, name));
            self.is_on_trial_still(now, name);
        }
        may
    }

    /// Removes a task from the structures in which it was in the state `was`.
    fn let_go(&mut self, name: Name, was: At) {
        self.inquiries.close(name);
        match was {
            At::Queued(ticket, None) => {
                let place = self.item(name).map(|(item, _)| item.place).unwrap_or_default();
                if let Some(line) = self.lines.get_mut(&place) {
                    line.queued.remove(&(ticket, name));
                }
            }
            At::Held(_, until) | At::Later(until) => {
                self.timers.remove(&(until, name));
            }
            At::Queued(_, Some(passed_at)) => {
                self.timers.remove(&(passed_at.after(self.config.start_ns), name));
            }
            At::Ready | At::Withheld | At::Submitted(_) | At::Over => {}
        }
    }

    fn on_result(
        &mut self,
        now: Instant,
        of: Attempt,
        run: Run,
        ended: Ended,
        (output, output_bytes): (Vec<u8>, u64),
    ) {
        let name = (of.jid, of.tid);
        let first_only = self.config.guards.on(Guard::FirstResult);
        let again_at = now.after(self.rng.between(MS, 5 * MS));
        let Some((item, once)) = self.item(name) else {
            self.counters.results_late += 1;
            return;
        };
        if item.at == At::Over && first_only {
            self.counters.results_late += 1;
            return;
        }
        if !matches!(item.at, At::Held(holder, _) if holder == run) {
            (item.trace.started_at, item.trace.worker) = (now, run.worker);
        }
        if ended == Ended::Done {
            return self.end(now, name, Outcome::Done(output), output_bytes);
        }
        // It is repeated until it is acknowledged, and another run may go on.
        let is_other = matches!(item.at, At::Held(holder, _) if holder != run);
        if item.over_to >= of.attempt || is_other {
            return;
        }
        item.over_to = of.attempt;
        self.counters.failures += 1;
        let Some((item, _)) = self.item(name) else { return };
        if once || item.retries_left == 0 {
            return self.end(now, name, Outcome::Failed(ended, output), output_bytes);
        }
        item.retries_left -= 1;
        count(&mut item.trace.again.failed);
        let times = item.trace.again.failed;
        let again_at = again_at.after(self.retry_pause(name, times));
        let Some((item, _)) = self.item(name) else { return };
        let was = core::mem::replace(&mut item.at, At::Later(again_at));
        self.let_go(name, was);
        self.timers.insert((again_at, name));
        self.clear(name);
    }

    /// Handles a run that did not begin, and never will.
    fn on_returned(&mut self, of: Attempt, run: Run) {
        let name = (of.jid, of.tid);
        let Some((item, once)) = self.item(name) else { return };
        let is_its = match item.at {
            At::Held(holder, _) => holder == run,
            At::Submitted(_) | At::Queued(..) => item.attempt == of.attempt,
            At::Ready | At::Withheld | At::Later(_) | At::Over => false,
        };
        if !is_its {
            return;
        }
        let was = item.at;
        item.over_to = item.over_to.max(of.attempt);
        count(&mut item.trace.again.returned);
        self.let_go(name, was);
        if once && self.config.has_journal && matches!(was, At::Held(..)) {
            self.grants.push(Grant::Back(name));
        }
        // The executors near that node may not be of the class that it needs.
        if let Some(job) = self.jobs.get_mut(&name.0)
            && job.needs != 0
            && let Some(item) = job.items.get_mut(name.1 as usize)
        {
            item.is_near = false;
        }
        self.counters.runs_returned += 1;
        self.make_ready(name, true);
    }

    /// Ends a task, and reports its outcome, once.
    fn end(&mut self, now: Instant, name: Name, outcome: Outcome, output_bytes: u64) {
        let Some((item, _)) = self.item(name) else { return };
        let was = core::mem::replace(&mut item.at, At::Over);
        item.trace.over_at = now;
        let (attempts, trace) = (item.attempts(), item.trace);
        self.let_go(name, was);
        self.counters.outcomes += 1;
        let (jid, tid) = name;
        self.outcomes.push_back(TaskOutcome { jid, tid, attempts, outcome, output_bytes, trace });
        if was == At::Over {
            return;
        }
        self.clear(name);
        self.open -= 1;
        let Some(job) = self.jobs.get_mut(&name.0) else { return };
        job.open -= 1;
        job.let_in -= usize::from(was != At::Withheld);
        // Later messages about it are answered that it is over, as those about an unknown job are.
        if job.open == 0 && self.config.guards.on(Guard::FirstResult) {
            self.jobs.remove(&name.0);
        } else {
            self.let_in(jid);
        }
    }
}
