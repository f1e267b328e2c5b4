//! The owner of tasks: submits them, follows them, and says how each ended, once.

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
mod job;
mod lines;
mod outputs;
mod queue;
mod resume;
mod suspects;
mod withheld;

pub use drains::Drained;
use drains::Drains;
pub use job::{Job, TaskSpec};
use lines::{Line, Place, Places};
use outputs::{EndedRun, Outputs};
use resume::NOBODY;
use suspects::Suspicion;

/// Most submissions that are not answered.
const SUBMISSIONS_MAX: usize = 16;
/// How often the controller is asked who the switch is, in ns; and if the switch does not answer.
const WHO_NS: Duration = SEC / 2;
const WHO_DOUBT_NS: Duration = 50 * MS;
/// Most tasks that are not over.
pub const TASKS_OPEN_MAX: usize = 1 << 20;
/// What is told of a task that would need an attempt without a number.
const NO_NUMBER_LEFT: &[u8] = b"it was tried 65535 times, and no attempt has a higher number\n";
/// Most attempts of a task whose workers went silent.
const LOST_MAX: u16 = 16;
/// So many results that are known are told of at once.
const KNOWN_MAX: usize = 64;
/// A worker stops by its own clock: the owner waits longer by this part of a lease.
const LEASE_MARGIN: u64 = 8;

/// What an owner is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct OwnerConfig {
    /// UID: unique for each start of its process (trap T16).
    pub session: SessionId,
    /// Where it is.
    pub addr: Addr,
    /// Where the switch is, until the controller says otherwise.
    pub switch: Addr,
    /// Who says where the switch is, if anybody does.
    pub controller: Option<Addr>,
    /// The group of the workers.
    pub group: GroupId,
    /// Which guards are on.
    pub guards: Guards,
    /// It notes what a journal has to have before anybody hears of it, and what it submits may wait
    /// for that ([`crate::JournaledOwner`]).
    pub has_journal: bool,
    /// How many attempts of a job's tasks are begun before the journal has to have a higher number
    /// of them: numbers of attempts are fencing tokens, and the next process begins above what is
    /// written.
    pub attempts_noted: u16,
    /// The rack's secret, which each task is tagged with.
    pub key: Option<Key>,
    /// For back-off.
    pub seed: u64,
    /// How long a worker may run a task without being heard of, in ns.
    pub lease_ns: Duration,
    /// How long after it was handed out a task's start has to be heard of, in ns.
    pub start_ns: Duration,
    /// How long an answer of the switch may take, in ns.
    pub answer_ns: Duration,
    /// How often the switch is asked where retrieve_ptr is, in ns.
    pub ask_ns: Duration,
    /// The longest pause after a full queue, in ns.
    pub pause_ns_max: Duration,
    /// How long a worker may wait until it hears that a result is known, in ns: far shorter than it
    /// waits before it tells the result again. What is known meanwhile is told in one train.
    pub known_ns: Duration,
    /// Most bytes of outputs of which its driver keeps a [`crate::Book`]. A quarter of it is wanted
    /// at a time, and as much may wait to be durable.
    pub room_bytes: usize,
}

impl OwnerConfig {
    /// The defaults.
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
        /// Answers that belong to no submission that waits for one.
        answers_late,
        /// Answers of a switch whose time is over.
        answers_other_switch,
        /// Tasks that the queue had no room for, each time.
        tasks_refused,
        /// Tasks submitted again because nobody said that it runs them.
        tasks_unheard,
        /// Tasks submitted again because the switch was another one.
        tasks_forgotten,
        /// Tasks that waited long enough for the node near which they were to run.
        tasks_moved,
        /// Tasks whose worker went silent while it ran them.
        leases_over,
        /// Tasks that are not tried again, since two workers went silent while they ran them.
        suspects_given_up,
        /// Tasks that failed, each time.
        failures,
        /// Runs that were stopped because another one goes on or the task is over.
        runs_cancelled,
        /// Runs that were not begun, and given back.
        runs_returned,
        /// Results of tasks that were over.
        results_late,
        /// Fragments of bodies and parameters sent.
        fragments,
        /// Fragments of long outputs that came.
        output_fragments,
        /// Tasks that were over, each once.
        outcomes,
        /// Packets that are malformed or no owner's.
        unexpected,
    }
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// To be submitted.
    Ready,
    /// To be submitted later.
    Later(Instant),
    /// In a submission that is not answered.
    Submitted(u32),
    /// In the queue, with its ticket; and when it was known that somebody has it.
    Queued(i64, Option<Instant>),
    /// Somebody runs it or may start it, and holds a lease until then.
    Held(Run, Instant),
    /// Not to be submitted yet: its job waits for another one, or as many as may are under way.
    Withheld,
    /// Over.
    Over,
}

/// A task.
#[derive(Clone, Debug)]
struct Item {
    spec: TaskSpec,
    at: At,
    /// In which line it is, or was.
    place: Place,
    /// It is to run near a node, and has not waited for long enough.
    is_near: bool,
    /// How often it was submitted; and the number of the attempt before the first of this process.
    attempt: u16,
    attempts_before: u16,
    /// An executor may have had the last number that there is: the task cannot be submitted again.
    is_spent: bool,
    /// It is noted that it may be begun, if it is never to be run twice.
    is_noted: bool,
    retries_left: u16,
    /// How many workers went silent while they ran it.
    lost: u16,
    suspicion: Suspicion,
    /// The highest attempt that is known to be over: it failed, or was given back. What its run
    /// said before may come later, and more than once.
    over_to: u16,
    trace: Trace,
}

impl Item {
    /// How often it was submitted to a queue that had room for it. What was refused has a number of
    /// its own all the same: the submission may have come twice, and have found room the second
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
    /// Tasks that are not over.
    open: usize,
    retry_ns: Duration,
    /// Most tasks that are neither withheld nor over; 0: all.
    running_max: u32,
    /// How many are.
    let_in: usize,
    /// Withheld tasks that may be let in, the next first; some are over by now.
    withheld: VecDeque<u32>,
    /// Attempts of its tasks have no number above this one before the journal has a higher one.
    attempts_up_to: u16,
}

/// What a worker says of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// That it goes on.
    Runs,
    /// It asks whether it may begin.
    Claims,
    /// That it ended, and has the output.
    Ended,
}

/// Which task: JID and TID.
type Name = (u32, u32);

#[derive(Clone, Debug)]
struct Pending {
    place: Place,
    tasks: Vec<Name>,
    /// When its answer is late. [`Instant::NEVER`] while it waits for the journal: it was not sent.
    until: Instant,
}

/// An owner of tasks.
#[derive(Clone, Debug)]
pub struct Owner {
    config: OwnerConfig,
    rng: Rng,
    switch: Addr,
    /// The newest switch that it heard of; 0 if none.
    switch_id: SwitchId,
    jobs: BTreeMap<u32, OpenJob>,
    next_jid: u32,
    open: usize,
    lines: BTreeMap<Place, Line>,
    /// When the tasks of a job have waited long enough for a node.
    near_until: BTreeSet<(Instant, u32)>,
    /// When a task is looked at again: it is [`At::Later`], handed out or held until then.
    timers: BTreeSet<(Instant, Name)>,
    pending: BTreeMap<u32, Pending>,
    next_number: u32,
    /// When the switch is asked next.
    ask_at: Instant,
    /// When the controller is asked next who the switch is.
    who_at: Instant,
    /// A submission was not answered since the switch was heard last.
    is_in_doubt: bool,
    /// When it may be asked again, if the switch is silent.
    doubt_at: Instant,
    outcomes: VecDeque<TaskOutcome>,
    /// Results that are known, and whose workers were not told so yet; and until when they need not
    /// be.
    known: Vec<(Attempt, Run)>,
    known_at: Instant,
    /// Tasks that are never run twice, and were granted to a run since they were asked for.
    begun: Vec<Name>,
    /// Jobs whose attempts may have higher numbers from now on, and up to which.
    raised: Vec<(u32, u16)>,
    /// Outputs on their way. Their tasks are held by the runs that gave them.
    outputs: Outputs,
    /// No further outputs are fetched: whoever is to read them has not read what is here.
    is_held_back: bool,
    /// Until when it may have been late itself, so that a lease which is over says nothing of a
    /// worker.
    late_until: Instant,
    /// The sessions of the processes before, which had its jobs; and until when nothing is
    /// submitted, since their runs are to be heard of first.
    before: Vec<u64>,
    submit_at: Instant,
    /// Workers that went silent with suspects: when, and how many they ran beside the first one.
    silent: BTreeMap<u64, (Instant, usize)>,
    /// Workers that are to be told to end.
    drains: Drains,
    tags: Option<Tags>,
    counters: OwnerCounters,
    buffer: Vec<u8>,
}

/// A task of which nobody says that it runs is submitted again at once, and after each further time
/// twice as late.
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
            begun: Vec::new(),
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

    /// Takes a job, whose tasks the next tick begins to submit, and gives its JID. `None`: too many
    /// tasks are open, it has none, or its body or a task's parameters are longer than
    /// [`BODY_BYTES_MAX`], so that no executor could fetch them. None of its tasks was taken then.
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
            is_noted: false,
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

    /// Ends all tasks of a job that are not over. What runs is stopped as soon as its worker hears
    /// of it; what is in the queue, when an executor gets it. `false`: there is no such job, or it
    /// is over.
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

    /// It ends, and its tasks with it: what runs is stopped as soon as its worker hears of it, by
    /// this or by its lease.
    pub fn retire(&mut self, now: Now, sink: &mut impl Sink) {
        let jobs: Vec<u32> = self.jobs.keys().copied().collect();
        for jid in jobs {
            self.cancel(now, jid, sink);
        }
        // With a journal a result is known once it is durable, which is not waited for here.
        if !self.config.has_journal {
            self.tell_known(now.instant, sink);
        }
    }

    /// Whether long outputs stay at the workers that have them, for want of room here. Their tasks
    /// are not over meanwhile, and a worker with many of them takes no more tasks.
    pub fn hold_outputs(&mut self, is_held_back: bool) {
        self.is_held_back = is_held_back;
    }

    /// How the next task ended.
    pub fn poll_outcome(&mut self) -> Option<TaskOutcome> {
        self.outcomes.pop_front()
    }

    /// Outcomes that [`Owner::poll_outcome`] has not given yet.
    #[must_use]
    pub fn outcomes_left(&self) -> usize {
        self.outcomes.len()
    }

    /// Tasks that are not over.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Where a task of a job that is not over is, in words; how often it was submitted; and its
    /// way. `None` if its job is over, or there is none.
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

    /// The tasks that are held by workers. What is looked at for it are those that were handed out:
    /// a million may wait.
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

    /// How many tasks of each job are held by workers, if any is.
    #[must_use]
    pub fn running(&self) -> BTreeMap<u32, usize> {
        let mut running = BTreeMap::new();
        for ((jid, _), _) in self.held() {
            *running.entry(jid).or_default() += 1;
        }
        running
    }

    /// The newest switch that it heard of, and where it is.
    #[must_use]
    pub fn switch(&self) -> (SwitchId, Addr) {
        (self.switch_id, self.switch)
    }

    /// What it did.
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
        self.fetch(now, sink);
        self.pump(now, sink);
    }

    /// The first result after a while is acknowledged at once, those that come soon after it in one
    /// train.
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
        if !self.known.is_empty() {
            next = next.min(at(self.known_at, "results that are known"));
        }
        if self.open > 0 && self.config.controller.is_some() {
            next = next.min(at(self.who_at, "who the switch is"));
        }
        next
    }
}

/// With workers.
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
                    // Perhaps no worker will have it: another key than theirs makes them drop it.
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
                if once {
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
            TaskMessage::Fragment { .. }
            | TaskMessage::Claimed { .. }
            | TaskMessage::Extended { .. }
            | TaskMessage::Known { .. }
            | TaskMessage::FetchOutput { .. }
            | TaskMessage::Drain { .. }
            | TaskMessage::Cancel { .. } => {
                self.counters.unexpected += 1;
                return;
            }
        };
        // Another process had this address: its tasks are nobody's any more, if its jobs are not
        // this one's.
        let is_before = self.before.contains(&of.uid);
        let is_own = of.uid == self.config.session.0 || is_before;
        match message {
            TaskMessage::Claim { asked_at, .. } => {
                let granted = is_own && !is_before && self.holds(now, of, run, Told::Claims);
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
                    // It is the run that goes on, if none is known.
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
            | TaskMessage::Fragment { .. } => {}
        }
    }

    /// Whether this run is the one that goes on. If so, its lease is extended. The first that is
    /// heard of is; of a task that is never run twice, the first that asks before it starts.
    fn holds(&mut self, now: Instant, of: Attempt, run: Run, told: Told) -> bool {
        let lease_ns = self.config.lease_ns;
        let until = now.after(lease_ns + lease_ns / LEASE_MARGIN);
        let name = (of.jid, of.tid);
        // What runs since the process before had its task began by that one's word.
        let is_before = self.config.session.0 != of.uid;
        let Some((item, once)) = self.item(name) else { return false };
        let may = match item.at {
            At::Held(NOBODY, _) => is_before,
            At::Held(holder, _) => holder == run,
            At::Over => false,
            At::Withheld => is_before && !once,
            At::Ready | At::Later(_) | At::Submitted(_) | At::Queued(..) => match told {
                // What a run that is over said before may come later: nobody would run the task.
                Told::Runs => !once && of.attempt > item.over_to,
                Told::Claims => of.attempt > item.over_to,
                Told::Ended => true,
            },
        };
        if may {
            let was = core::mem::replace(&mut item.at, At::Held(run, until));
            if !matches!(was, At::Held(..)) {
                let is_new = once && !core::mem::replace(&mut item.is_noted, true);
                item.is_spent |= item.attempt == u16::MAX;
                (item.trace.started_at, item.trace.worker) = (now, run.worker);
                if is_new && self.config.has_journal {
                    self.begun.push(name);
                }
            }
            self.let_go(name, was);
            self.note_let_in(name.0, was);
            self.timers.insert((until, name));
            self.is_on_trial_still(now, name);
        }
        may
    }

    /// What is kept of a task because it was there, and is not any more.
    fn let_go(&mut self, name: Name, was: At) {
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
        // It comes until it is known; and another run may go on.
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

    /// A run that was not begun, and never will be.
    fn on_returned(&mut self, of: Attempt, run: Run) {
        let name = (of.jid, of.tid);
        let Some((item, _)) = self.item(name) else { return };
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
        // Who is near may not be of the class that it needs.
        if let Some(job) = self.jobs.get_mut(&name.0)
            && job.needs != 0
            && let Some(item) = job.items.get_mut(name.1 as usize)
        {
            item.is_near = false;
        }
        self.counters.runs_returned += 1;
        self.make_ready(name, true);
    }

    /// A task is over, and its outcome is told, once.
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
        // Whoever still speaks of it is told that it is over: of a job that is not known, too.
        if job.open == 0 && self.config.guards.on(Guard::FirstResult) {
            self.jobs.remove(&name.0);
        } else {
            self.let_in(jid);
        }
    }
}
