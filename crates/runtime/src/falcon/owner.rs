//! The owner of a group's tasks: it accepts jobs over HTTP, submits their tasks to the switch, and
//! reports their outcomes.
//!
//! The owner is a role of its own and not a part of the gateway. A gateway is a session of Redis
//! clients with replicas; all that both have in common is that clients connect to them. As separate
//! processes, a flood of commands does not stop jobs, nor a job of a million tasks the commands.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use concord_core::machine::Deadline;
use concord_core::{Instant, Key, MS, Now, SEC, SessionId};
use concord_gateway::Latencies;
use concord_scheduler::{Book, JobRecord, JournaledOwner, Outcome, OwnerConfig};
use concord_wire::{Addr, GroupId, OfGroup};
use serde_json::{Value, json};
use tracing::info;

use super::job_journal::{JobJournal, JournalThread};
use super::jobs;
pub use super::jobs::Executors;
use super::reading::{Reading, Submission};
use super::worker::raise_descriptors;
use crate::driver::{Persisted, ROLE_TOKEN_MIN, Role, Stop};
use crate::error::Error;
use crate::http::Snapshot;
use crate::http::api::{self, Answer, Api, Ask};
use crate::http::listener::Connection;
use crate::key_file;
use crate::logging;
use crate::poller::{Event, Interest, Token};
use crate::roles::{Place, unique};
use crate::udp::Outbox;

mod answers;
mod dependents;
mod known;
mod retries;
mod workers;

use answers::{PAGE_BYTES_MAX, PAGE_MAX, Taking, Waiting};
use dependents::Dependents;
use known::Known;
use retries::Specs;
use workers::Draining;

const ASKED: Token = Token(ROLE_TOKEN_MIN);
const JOURNAL: Token = Token(ROLE_TOKEN_MIN + 1);
const READ: Token = Token(ROLE_TOKEN_MIN + 2);
/// The longest submission in bytes that is parsed in the loop; longer ones are parsed in a thread.
const READ_HERE_MAX: usize = 32 << 10;
/// The time in ns after it was handed out within which a task's start must be reported: a worker's
/// loop may be busy.
const START_NS: u64 = 50 * MS;
/// The number of outcomes that are examined for one answer about dead tasks.
const LOOKED_MAX: usize = 100_000;

/// The time in ns after which an attached job is cancelled if its results are not asked for:
/// counted from when its reader's last connection broke, and from when that was answered. A program
/// may be stopped, or busy, for longer than an owner takes to start again. While its connection
/// stands, there is no limit, unless so many outcomes wait for readers that others would have to
/// wait.
const ATTACHED_NS: u64 = 10 * SEC;
const ATTACHED_SILENT_NS: u64 = 60 * SEC;
const READER_GONE: &str = "whoever submitted it attached asked for no results for too long";
/// The answer to a client whose job belongs to another incarnation.
const OTHER_OWNER: &str =
    "the owner was started again without a journal, and its jobs ended with it";
const ASKED_TO: &str = "somebody asked for that";
/// The number of keys that are kept, as a multiple of the jobs that are kept.
const KEYS_PER_JOB_MAX: usize = 2;
const KEYS_MIN: usize = 1_024;

/// The reader of an attached job.
#[derive(Clone, Debug)]
struct Reader {
    /// The time of its last request or answer.
    asked_at: Instant,
    /// Whether its connection broke while it waited, or it was checked since.
    is_broken: bool,
    /// The connection of its last request.
    connection: Option<Connection>,
}

impl Reader {
    fn seen(now: Instant) -> Reader {
        Reader { asked_at: now, is_broken: false, connection: None }
    }

    fn asked(now: Instant, ask: &Ask) -> Reader {
        Reader { connection: Some(ask.connection.clone()), ..Reader::seen(now) }
    }

    fn is_there(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_open)
    }

    /// The time at which it is given up.
    fn until(&self) -> Instant {
        self.asked_at.after(if self.is_broken { ATTACHED_NS } else { ATTACHED_SILENT_NS })
    }
}

/// The configuration of an owner, beside its place.
#[derive(Clone, Debug)]
pub struct OwnerSetup {
    /// The group of the workers.
    pub group: GroupId,
    /// The address of the switch.
    pub switch: Addr,
    /// The address of the controller, which knows whether another switch took over.
    pub controller: Addr,
    /// The address for HTTP clients.
    pub listen: SocketAddr,
    /// The time in ns that a task may run without being heard of, the same for all of the group.
    pub lease_ns: u64,
    /// The rack's secret, with which tasks are tagged.
    pub key: Key,
    /// The executors that exist.
    pub executors: Executors,
    /// The journal in which jobs are kept across restarts; `None` if they end with the process.
    pub journal: Option<PathBuf>,
}

/// Whether the owner is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    Told,
    /// Its workers know that it ends.
    Retired,
}

#[derive(Debug)]
struct OwnerRole {
    node: u16,
    owner: OfGroup<JournaledOwner>,
    /// The incarnation to which the numbers of its jobs belong: each process without a journal has
    /// its own, and a journal has one. A client that names its incarnation never gets an answer
    /// about another's job.
    incarnation: String,
    journal: Option<JournalThread>,
    book: Book,
    executors: Executors,
    reader: Reading,
    api: Api,
    waiting: Vec<Waiting>,
    /// Whether some of them have outcomes that are not written yet.
    answers_left: bool,
    /// The requests whose effect is not durable yet.
    taking: Vec<(Ask, Taking)>,
    draining: Vec<Draining>,
    /// Attached jobs, with their readers.
    attached: BTreeMap<u32, Reader>,
    /// Jobs by the keys with which they were submitted.
    keys: BTreeMap<String, u32>,
    dependents: Dependents,
    specs: Specs,
    /// For each successful task, the time from its job's acceptance to its start.
    to_start: Latencies,
    to_result: Latencies,
    /// The switch id that was logged last.
    logged: u32,
    ending: Ending,
}

/// Runs an owner until it is told to end.
///
/// # Errors
/// One line for a person.
pub fn run(place: &Place, setup: &OwnerSetup) -> Result<(), Error> {
    let _span = logging::span("owner", place.node).entered();
    raise_descriptors();
    let mut driver = place.driver()?;
    let api = api::serve(setup.listen, &key_file::token(setup.key))?;
    driver.poller().add(&api, ASKED, Interest::READ)?;
    let reader = Reading::start(setup.executors.clone())?;
    driver.poller().add(&reader, READ, Interest::READ)?;
    let session = SessionId(unique()?);
    let config = OwnerConfig {
        controller: Some(setup.controller),
        lease_ns: setup.lease_ns,
        start_ns: START_NS,
        key: Some(setup.key),
        ..OwnerConfig::new(session, place.addr, setup.switch)
    };
    let now = crate::clock::now();
    let (owner, journal, known, incarnation) = match &setup.journal {
        None => (JournaledOwner::new(config), None, Known::default(), unique()?),
        Some(path) => {
            let (file, journal, mut found) = JobJournal::open(path)?;
            let known = Known::found(&mut found, &setup.executors, now)
                .map_err(|why| Error::new(format!("the journal {}: {why}", path.display())))?;
            let open = found.jobs.values().filter(|job| !job.is_over()).count();
            info!(path = %path.display(), jobs = found.jobs.len(), open, "journal");
            let thread = file.start()?;
            driver.poller().add(&thread, JOURNAL, Interest::READ)?;
            let owner = JournaledOwner::resume(config, now, journal, &found);
            (owner, Some(thread), known, found.incarnation)
        }
    };
    let mut role = OwnerRole {
        node: place.node,
        owner: OfGroup::new(setup.group, owner),
        incarnation: format!("{incarnation:016x}"),
        journal,
        book: known.book,
        executors: setup.executors.clone(),
        reader,
        api,
        waiting: Vec::new(),
        answers_left: false,
        taking: Vec::new(),
        draining: Vec::new(),
        attached: known.attached,
        keys: known.keys,
        dependents: known.dependents,
        specs: known.specs,
        to_start: Latencies::default(),
        to_result: Latencies::default(),
        logged: 0,
        ending: Ending::No,
    };
    info!(addr = %place.addr, listen = %setup.listen, "started");
    driver.run(&mut role)?;
    info!("stopped");
    Ok(())
}

/// The value of a key in a query such as `from=7&key=abc`.
fn value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// The number for a key in a query.
fn number(query: &str, name: &str) -> Result<Option<u64>, Answer> {
    let Some(value) = value(query, name) else { return Ok(None) };
    let wrong = || Answer::refused(400, &format!("{name}={value}: not a number"));
    value.parse().map(Some).map_err(|_| wrong())
}

impl OwnerRole {
    fn job(&self, jid: &str) -> Result<&JobRecord, Answer> {
        let found = jid.parse().ok().and_then(|jid| self.book.job(jid));
        found.ok_or_else(|| {
            let why = format!("there is no job {jid}; `concord job ls` lists those that are known");
            Answer::refused(404, &why)
        })
    }

    fn summary(&self, now: Now, job: &JobRecord) -> Value {
        let running = self.owner.owner().running();
        jobs::summary(job, running.get(&job.jid).copied().unwrap_or(0), now)
    }

    /// Answers a request, or lets it wait.
    fn serve(&mut self, now: Now, ask: Ask, out: &mut Outbox) {
        let path = ask.path.clone();
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        if value(&ask.query, "owner").is_some_and(|other| other != self.incarnation) {
            return ask.answer(Answer::refused(410, OTHER_OWNER));
        }
        let answer = match (ask.method.as_str(), &parts[..]) {
            ("POST" | "DELETE", _) if self.ending != Ending::No => {
                Err(Answer::refused(503, self.ends()))
            }
            // Parsing a long submission takes up to seconds, and leases must be extended meanwhile.
            ("POST", ["jobs"]) if ask.body.len() > READ_HERE_MAX => return self.reader.read(ask),
            ("POST", ["jobs"]) => match jobs::read(&ask.body, &self.executors)
                .map_err(|why| Answer::refused(400, &why))
                .and_then(|read| self.submit_for(now, &ask, read, out))
            {
                // The request is answered when its effect is durable.
                Ok(taking) => {
                    self.taking.push((ask, taking));
                    return self.answer_taken();
                }
                Err(refused) => Err(refused),
            },
            ("GET", ["owner"]) => Ok(Answer::ok(&json!({ "owner": self.incarnation }))),
            ("GET", ["workers"]) => Ok(self.workers()),
            ("POST", ["workers", node, "drain"]) => return self.drain(now, node, ask, out),
            ("GET", ["jobs"]) => {
                let last = self.book.jobs().rev().take(PAGE_MAX);
                let running = self.owner.owner().running();
                let of = |job: &JobRecord| running.get(&job.jid).copied().unwrap_or(0);
                let mut all: Vec<Value> =
                    last.map(|job| jobs::summary(job, of(job), now)).collect();
                all.reverse();
                Ok(Answer::ok(&json!(all)))
            }
            ("GET", ["jobs", jid]) => self.job(jid).map(|job| Answer::ok(&self.summary(now, job))),
            ("GET", ["jobs", jid, "results"]) => match self.wait(now, jid, &ask.query) {
                Ok((jid, from, until)) => {
                    let peeks = ask.query.split('&').any(|pair| pair == "peek=1");
                    if let Some(reader) = self.attached.get_mut(&jid).filter(|_| !peeks) {
                        *reader = Reader::asked(now.instant, &ask);
                        // Outcomes of the pages before need not be kept for it any more.
                        self.book.read(jid, from);
                    }
                    let submitted = None;
                    return self.waiting.push(Waiting { ask, jid, from, until, peeks, submitted });
                }
                Err(refused) => Err(refused),
            },
            ("GET", ["jobs", jid, "dead"]) => self.dead(jid, &ask.query),
            ("GET", ["jobs", jid, "tasks", task]) => self.explain(jid, task),
            ("POST", ["jobs", jid, "retry"]) => match self.retry(now, jid, &ask.query, out) {
                Ok(taking) => {
                    self.taking.push((ask, taking));
                    return self.answer_taken();
                }
                Err(refused) => Err(refused),
            },
            ("DELETE", ["jobs", jid, "tasks", task]) => {
                match self.cancel_task(now, jid, task, &ask.query, out) {
                    Ok(taking) => {
                        self.taking.push((ask, taking));
                        return self.answer_taken();
                    }
                    Err(refused) => Err(refused),
                }
            }
            ("DELETE", ["jobs", jid]) => match self.cancel(now, jid, out) {
                // It is answered when durable, so that a restarted owner does not continue the job.
                Ok(taking) => {
                    self.taking.push((ask, taking));
                    return self.answer_taken();
                }
                Err(refused) => Err(refused),
            },
            _ => Err(Answer::refused(
                404,
                "there is POST and GET /jobs, GET and DELETE /jobs/N, GET /jobs/N/results, /jobs/N/dead, \
                 POST /jobs/N/retry, GET and DELETE /jobs/N/tasks/N, GET /workers and /owner, \
                 POST /workers/N/drain",
            )),
        };
        ask.answer(answer.unwrap_or_else(|refused| refused));
    }

    /// Handles a long submission that was parsed.
    fn on_read(&mut self, now: Now, (ask, read): Submission, out: &mut Outbox) {
        let taking = match read {
            Err(why) => Err(Answer::refused(400, &why)),
            Ok(_) if self.ending != Ending::No => Err(Answer::refused(503, self.ends())),
            Ok(read) => self.submit_for(now, &ask, read, out),
        };
        match taking {
            Ok(taking) => {
                self.taking.push((ask, taking));
                self.answer_taken();
            }
            Err(refused) => ask.answer(refused),
        }
    }

    fn submit(
        &mut self,
        now: Now,
        mut read: jobs::Read,
        out: &mut Outbox,
    ) -> Result<(u32, usize), Answer> {
        if let Some(jid) = self.keys.get(&read.key).filter(|_| !read.key.is_empty())
            && let Some(job) = self.book.job(*jid)
        {
            if let Some(reader) = self.attached.get_mut(jid) {
                *reader = Reader::seen(now.instant);
            }
            return Ok((*jid, job.tasks as usize));
        }
        let tasks = read.job.tasks.len();
        self.check_after(&read)?;
        let mut record = read.record(0, tasks as u32, now);
        let spec = Specs::of(&read.job);
        let note = read.note();
        let Some(jid) = self.owner.submit(now, std::mem::take(&mut read.job), &note) else {
            let open = self.owner.owner().open();
            let why =
                format!("{open} tasks are open already: submit {tasks} more when some are over");
            return Err(Answer::refused(429, &why));
        };
        let title: String = read.title.chars().take(80).collect();
        info!(job = jid, tasks, title, "job taken");
        record.jid = jid;
        self.book.open(record);
        self.specs.insert(jid, spec);
        self.dependents.add(jid, std::mem::take(&mut read.after));
        if read.attached {
            self.attached.insert(jid, Reader::seen(now.instant));
            self.book.attach(jid);
        }
        if !read.key.is_empty() {
            self.keys.insert(read.key, jid);
            let book = &self.book;
            if self.keys.len() > (KEYS_PER_JOB_MAX * book.jobs().len()).max(KEYS_MIN) {
                self.keys.retain(|_, jid| book.job(*jid).is_some());
            }
        }
        let (owner, mut sink) = self.owner.input(out);
        concord_core::Machine::tick(owner, now, &mut sink);
        self.follow(now, out);
        Ok((jid, tasks))
    }

    /// Cancels the attached jobs whose results are not asked for any more.
    fn let_go(&mut self, now: Now, out: &mut Outbox) {
        let asks = |jid: &u32| {
            self.waiting.iter().any(|w| w.jid == *jid && !w.peeks && !w.ask.is_given_up())
        };
        let is_late = |reader: &Reader| reader.until() <= now.instant;
        let late = self.attached.iter().filter(|(jid, reader)| is_late(reader) && !asks(jid));
        let late: Vec<u32> = late.map(|(jid, _)| *jid).collect();
        for jid in late {
            let is_full = self.book.is_full();
            if let Some(reader) = self.attached.get_mut(&jid).filter(|r| !is_full && r.is_there()) {
                // The reader is stopped or busy: it is checked again later.
                *reader = Reader { asked_at: now.instant, is_broken: true, ..reader.clone() };
                continue;
            }
            self.attached.remove(&jid);
            self.book.detach(jid);
            if self.book.job(jid).is_none_or(|job| job.over_at.is_some()) {
                continue;
            }
            info!(job = jid, "its submitter is gone: cancelled");
            self.book.cancelled(jid, READER_GONE);
            let (owner, mut sink) = self.owner.input(out);
            owner.cancel(now, jid, &mut sink);
        }
    }

    fn cancel(&mut self, now: Now, jid: &str, out: &mut Outbox) -> Result<Taking, Answer> {
        let job = self.job(jid)?;
        let (jid, open) = (job.jid, job.tasks - job.counts.over());
        self.book.cancelled(jid, ASKED_TO);
        let (owner, mut sink) = self.owner.input(out);
        owner.cancel(now, jid, &mut sink);
        self.note();
        Ok(Taking::Cancel(jid, open))
    }

    fn ends(&self) -> &'static str {
        match self.journal {
            Some(_) => "the owner ends, and goes on with its jobs when it is started again",
            None => "the owner ends, and its jobs with it",
        }
    }

    /// A task of a job, by its number.
    fn task(&self, jid: &str, task: &str) -> Result<(&JobRecord, u32), Answer> {
        let job = self.job(jid)?;
        let tid = task.parse::<u32>().ok().and_then(|task| job.tid(task));
        let tid = tid.ok_or_else(|| {
            let (jid, first, last) = (job.jid, job.number(0), job.number(job.tasks - 1));
            Answer::refused(404, &format!("job {jid} has no task {task}, only {first} to {last}"))
        })?;
        Ok((job, tid))
    }

    fn explain(&self, jid: &str, task: &str) -> Result<Answer, Answer> {
        let (job, tid) = self.task(jid, task)?;
        let number = job.number(tid);
        if let Some(told) = job.outcome(tid) {
            let mut way = jobs::way(number, job.jid, "is over", told.attempts, &told.trace);
            way["result"] = jobs::result(job, told);
            return Ok(Answer::ok(&way));
        }
        let found = self.owner.owner().explain(job.jid, tid);
        let (stands, attempts, trace) = found.unwrap_or(("is over", 0, Default::default()));
        Ok(Answer::ok(&jobs::way(number, job.jid, stands, attempts, &trace)))
    }

    /// The tasks that failed for good, are unknown or lost, among the next outcomes.
    fn dead(&self, jid: &str, query: &str) -> Result<Answer, Answer> {
        let job = self.job(jid)?;
        let from = number(query, "from")?.unwrap_or(0) as usize;
        let is_dead = |outcome: &Outcome| !matches!(outcome, Outcome::Done(_) | Outcome::Cancelled);
        let (mut next, mut bytes) = (from, 0);
        let mut results = Vec::new();
        for told in job.outcomes().iter().skip(from).take(LOOKED_MAX) {
            if results.len() == PAGE_MAX || bytes >= PAGE_BYTES_MAX {
                break;
            }
            next += 1;
            if is_dead(&told.outcome) {
                bytes += told.outcome.output().len();
                results.push(jobs::result(job, told));
            }
        }
        let is_last = next >= job.outcomes().len();
        Ok(Answer::ok(
            &json!({ "job": job.jid, "next": next, "is_last": is_last, "results": results }),
        ))
    }

    /// Notes the outcomes of tasks.
    fn note(&mut self) {
        while let Some(told) = self.owner.poll_outcome() {
            let trace = &told.trace;
            if matches!(told.outcome, Outcome::Done(_)) {
                self.to_start.add(trace.started_at.since(trace.taken_at));
                self.to_result.add(trace.over_at.since(trace.taken_at));
            }
            let (jid, tid) = (told.jid, told.tid);
            let is_done = matches!(told.outcome, Outcome::Done(_));
            self.book.note(told);
            self.dependents.note((jid, tid), is_done, self.book.job(jid));
            if self.book.job(jid).is_none() {
                self.attached.remove(&jid);
            }
            if let Some(job) = self.book.job(jid)
                && let Some(over_at) = job.over_at
            {
                let ms = over_at.since(job.taken_at.instant) / MS;
                let (done, dead, cancelled) =
                    (job.counts.done, job.counts.dead(), job.counts.cancelled);
                info!(job = jid, done, dead, cancelled, ms, "job over");
                self.specs.over(jid, self.book.job(jid));
            }
        }
    }
}

impl Role for OwnerRole {
    type Machine = OfGroup<JournaledOwner>;

    fn machine(&mut self) -> &mut OfGroup<JournaledOwner> {
        &mut self.owner
    }

    fn persist(&mut self, what: Vec<u8>) -> Result<Persisted, Error> {
        if let Some(journal) = &mut self.journal {
            journal.write(what)?;
        }
        Ok(Persisted::Later)
    }

    fn event(&mut self, event: Event, out: &mut Outbox) -> Result<(), Error> {
        if event.token == ASKED {
            self.api.heard();
            while let Some(ask) = self.api.take() {
                self.serve(crate::clock::now(), ask, out);
            }
        } else if event.token == READ {
            self.reader.heard();
            while let Some(submission) = self.reader.next() {
                self.on_read(crate::clock::now(), submission, out);
            }
        } else if event.token == JOURNAL
            && let Some(journal) = &mut self.journal
            && let Some(number) = journal.written()?
        {
            let now = crate::clock::now();
            concord_core::Machine::persisted(&mut self.owner, now, number, out);
        }
        Ok(())
    }

    fn attend(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        self.note();
        self.follow(now, out);
        self.answer_taken();
        self.answer_drained();
        // It knows of no job any more then: the effects of earlier requests are durable.
        if self.ending == Ending::Told && self.taking.is_empty() {
            let (owner, mut sink) = self.owner.input(out);
            owner.retire(now, &mut sink);
            self.ending = Ending::Retired;
            self.note();
        }
        self.let_go(now, out);
        if !self.waiting.is_empty() {
            self.answer_waiting(now);
        }
        self.owner.hold_outputs(self.book.is_full());
        Ok(())
    }

    fn wakes_at(&self) -> Deadline {
        if self.taking.iter().any(|(_, taking)| self.is_durable(*taking)) {
            return Deadline { at: Instant(0), reason: "a request to be answered" };
        }
        if self.answers_left {
            return Deadline { at: Instant(0), reason: "outcomes to be written" };
        }
        let waiting = self.waiting.iter().map(|waiting| waiting.until);
        // A reader that waits for results counts as asking.
        let asks = |jid: &u32| self.waiting.iter().any(|w| w.jid == *jid && !w.peeks);
        let silent = self.attached.iter().filter(|(jid, _)| !asks(jid));
        let at = waiting.chain(silent.map(|(_, reader)| reader.until())).min();
        Deadline { at: at.unwrap_or(Instant::NEVER), reason: "somebody who waits for outcomes" }
    }

    fn log(&mut self, _now: Now) {
        let (switch_id, addr) = self.owner.owner().switch();
        if std::mem::replace(&mut self.logged, switch_id.0) != switch_id.0 {
            info!(switch_id = switch_id.0, %addr, "switch");
        }
    }

    /// Makes the effects of requests durable, and tells workers to stop its runs, before the owner
    /// ends. If a worker does not hear of it, the lease ends its runs.
    fn stop(&mut self, _now: Now, why: Stop) -> bool {
        for waiting in std::mem::take(&mut self.waiting) {
            waiting.ask.answer(Answer::refused(503, self.ends()));
        }
        self.answer_taken();
        if self.ending == Ending::No {
            self.ending = Ending::Told;
        }
        (self.ending == Ending::Retired || why == Stop::Rack) && self.taking.is_empty()
    }

    fn snapshot(&self, _now: Now) -> Snapshot {
        let mut s = Snapshot::new("owner", self.node);
        s.count(self.owner.owner().counters().each());
        s.count(self.owner.of_group_counters().each());
        let open = self.book.jobs().filter(|job| job.over_at.is_none()).count();
        s.gauge("jobs_open", "Jobs that are not over.", open as f64);
        s.gauge("tasks_open", "Tasks that are not over.", self.owner.owner().open() as f64);
        if let Some(bytes) = self.owner.journal_bytes() {
            s.gauge("journal_bytes", "Length of the journal.", bytes as f64);
        }
        let (jobs, outputs) = self.book.forgotten();
        let help = "Jobs that are over and were forgotten for want of room.";
        s.count([("jobs_forgotten", help, jobs)].into_iter());
        let help = "Outputs dropped for want of room.";
        s.count([("outputs_dropped", help, outputs)].into_iter());
        let mut latencies = |name, help, l: &Latencies| {
            s.histogram(name, help, l.count(), l.sum_ns(), l.cumulative());
        };
        let help = "From a job's submission to a task's start, in seconds.";
        latencies("start_seconds", help, &self.to_start);
        let help = "From a job's submission to a task's result, in seconds.";
        latencies("result_seconds", help, &self.to_result);
        s.tell("switch_id", self.owner.owner().switch().0.0);
        s.tell("serving", true);
        s.tell("jobs_open", open);
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::Socket;
    use concord_core::Machine as _;
    use concord_scheduler::{Found, Journal, TaskOutcome};

    /// An owner with a journal whose disk the test is.
    pub(super) fn role() -> (OwnerRole, Outbox) {
        let socket = Socket::bind(Addr { ip: 0x7f00_0001, port: 0 }).unwrap();
        let config = OwnerConfig::new(SessionId(1), socket.addr().unwrap(), Addr::default());
        let (journal, _) = Journal::create(1);
        let now = crate::clock::now();
        let owner = JournaledOwner::resume(config, now, journal, &Found::default());
        let role = OwnerRole {
            node: 1,
            owner: OfGroup::new(GroupId::FIRST, owner),
            incarnation: "1".to_string(),
            journal: None,
            book: Book::new(),
            executors: Executors::default(),
            reader: Reading::start(Executors::default()).unwrap(),
            api: api::serve(([127, 0, 0, 1], 0).into(), "token").unwrap(),
            waiting: Vec::new(),
            answers_left: false,
            taking: Vec::new(),
            draining: Vec::new(),
            attached: BTreeMap::new(),
            keys: BTreeMap::new(),
            dependents: Dependents::default(),
            specs: Specs::default(),
            to_start: Latencies::default(),
            to_result: Latencies::default(),
            logged: 0,
            ending: Ending::No,
        };
        (role, Outbox::new(socket))
    }

    /// The disk has written what there was to write.
    pub(super) fn sync(role: &mut OwnerRole, out: &mut Outbox) {
        let now = crate::clock::now();
        while let Some(persist) = role.owner.poll_persist() {
            role.owner.persisted(now, persist.number, out);
        }
        role.attend(now, out).unwrap();
    }

    #[test]
    fn bug_21_34_a_cancel_is_answered_once_it_is_durable() {
        let (mut role, mut out) = role();
        let now = crate::clock::now();
        let (ask, mut answered) = Ask::of("POST", "/jobs", r#"{"function": "no-op"}"#);
        role.serve(now, ask, &mut out);
        role.attend(now, &mut out).unwrap();
        assert!(answered.try_recv().is_err());
        sync(&mut role, &mut out);
        assert_eq!(answered.try_recv().unwrap().status, 201);
        let (ask, mut answered) = Ask::of("DELETE", "/jobs/1", "");
        role.serve(now, ask, &mut out);
        role.attend(now, &mut out).unwrap();
        assert!(answered.try_recv().is_err());
        sync(&mut role, &mut out);
        let answer = answered.try_recv().unwrap();
        assert_eq!((answer.status, &answer.body[..]), (200, "{\"cancelled\":1,\"job\":1}\n"));
    }

    /// A long submission is read beside the loop, and answered like any other.
    #[test]
    fn bug_21_54_a_long_submission_is_read_in_a_thread() {
        let (mut role, mut out) = role();
        let now = crate::clock::now();
        let lines = vec!["0123456789"; READ_HERE_MAX / 10];
        let text = json!({ "command": ["true"], "lines": lines }).to_string();
        let wrong = format!("{text} and more");
        for (body, status) in [(text, 201), (wrong, 400)] {
            let (ask, mut answered) = Ask::of("POST", "/jobs", body.leak());
            let open = role.owner.owner().open();
            role.serve(now, ask, &mut out);
            assert_eq!(role.owner.owner().open(), open, "nothing was read in the loop");
            let began = std::time::Instant::now();
            let submission = loop {
                role.reader.heard();
                if let Some(submission) = role.reader.next() {
                    break submission;
                }
                assert!(began.elapsed().as_secs() < 60);
                std::thread::yield_now();
            };
            role.on_read(now, submission, &mut out);
            sync(&mut role, &mut out);
            assert_eq!(answered.try_recv().unwrap().status, status);
        }
    }

    /// A request whose answer was lost is sent again, and is one job.
    #[test]
    fn bug_21_60_a_job_that_is_sent_again_with_its_key_is_the_same() {
        let (mut role, mut out) = role();
        let now = crate::clock::now();
        let jobs = ["a", "a", "b"].map(|key| {
            let text = format!(r#"{{"function": "no-op", "key": "{key}"}}"#);
            let (ask, mut answered) = Ask::of("POST", "/jobs", text.leak());
            role.serve(now, ask, &mut out);
            sync(&mut role, &mut out);
            answered.try_recv().unwrap().body
        });
        let of = |jid: u32| format!("{{\"job\":{jid},\"tasks\":1}}\n");
        assert_eq!(jobs, [of(1), of(1), of(2)]);
    }

    /// A process without a journal counts jobs from 1, as the one before did: who names that one is
    /// told of no other's job, cancels none, and has no job taken twice.
    #[test]
    fn bug_21_80_a_job_of_another_incarnation_is_nobody_elses() {
        let (mut role, mut out) = role();
        let now = crate::clock::now();
        let mut status = |method: &str, path: &str, query: &str, body: &'static str| {
            let (mut ask, mut answered) = Ask::of(method, path, body);
            ask.query = query.to_string();
            role.serve(now, ask, &mut out);
            sync(&mut role, &mut out);
            let answer = answered.try_recv().unwrap();
            (answer.status, answer.body)
        };
        let job = r#"{"function": "no-op", "once": true, "key": "a"}"#;
        let own = status("GET", "/owner", "", "").1;
        assert_eq!(own, "{\"owner\":\"1\"}\n");
        assert_eq!(status("POST", "/jobs", "owner=2", job).0, 410);
        assert_eq!(status("POST", "/jobs", "owner=1", job).0, 201);
        for (method, path) in [
            ("GET", "/jobs/1"),
            ("GET", "/jobs/1/results"),
            ("DELETE", "/jobs/1/tasks/0"),
            ("DELETE", "/jobs/1"),
            ("POST", "/jobs/1/retry"),
        ] {
            assert_eq!(status(method, path, "from=0&owner=2", "").0, 410, "{method} {path}");
        }
        assert_eq!(status("GET", "/jobs/1", "owner=1", "").0, 200);
        assert_eq!(status("DELETE", "/jobs/1", "owner=1", "").0, 200);
    }

    /// A program that is stopped, or busy, for a while is not gone: its last request was answered.
    #[test]
    fn bug_21_61_a_reader_that_is_silent_for_a_while_keeps_its_job() {
        let (mut role, mut out) = role();
        let now = crate::clock::now();
        let (ask, _answered) =
            Ask::of("POST", "/jobs", r#"{"function": "no-op", "attached": true}"#);
        role.serve(now, ask, &mut out);
        sync(&mut role, &mut out);
        let later = |ns| Now { instant: now.instant.after(ns), ..now };
        let is_open = |role: &OwnerRole| role.owner.owner().open() == 1;
        role.attend(later(30 * SEC), &mut out).unwrap();
        assert!(is_open(&role));
        // Whoever only looks is no reader.
        let (mut ask, _answered) = Ask::of("GET", "/jobs/1/results", "");
        ask.query = "peek=1&wait_ms=30000".to_string();
        role.serve(later(5 * SEC), ask, &mut out);
        assert_eq!(role.attached[&1].asked_at, now.instant);
        assert!(role.waiting.iter().all(|waiting| waiting.peeks));
        // One whose connection broke is gone.
        let (ask, answered) = Ask::of("GET", "/jobs/1/results", "");
        role.serve(now, ask, &mut out);
        drop(answered);
        role.answer_waiting(now);
        role.attend(later(9 * SEC), &mut out).unwrap();
        assert!(is_open(&role));
        role.attend(later(11 * SEC), &mut out).unwrap();
        assert!(!is_open(&role));
        sync(&mut role, &mut out);
        let job = role.book.job(1).unwrap();
        assert_eq!(job.cancelled_why, READER_GONE);
        assert_eq!(jobs::result(job, job.outcome(0).unwrap())["why"], READER_GONE);
    }

    /// A program that is stopped for long has its connection all the same: its job goes on, unless
    /// others would have to wait for it.
    #[test]
    fn bug_21_90_a_stopped_readers_job_waits_for_it() {
        let (mut role, mut out) = role();
        let now = crate::clock::now();
        let later = |s: u64| Now { instant: now.instant.after(s * SEC), ..now };
        let mut connections = vec![];
        for _ in 0..2 {
            let job = r#"{"function": "no-op", "array": [0, 1], "attached": true}"#;
            let (ask, _answered) = Ask::of("POST", "/jobs", job);
            role.serve(now, ask, &mut out);
        }
        sync(&mut role, &mut out);
        for path in ["/jobs/1/results", "/jobs/2/results"] {
            let (ask, _answered) = Ask::of("GET", path, "");
            connections.push(ask.connection.clone());
            role.serve(now, ask, &mut out);
            role.answer_waiting(now);
        }
        let open = |role: &OwnerRole| role.owner.owner().open();
        for s in (10..3_600).step_by(10) {
            role.attend(later(s), &mut out).unwrap();
        }
        assert_eq!(open(&role), 4);
        connections[0].close();
        role.attend(later(3_611), &mut out).unwrap();
        assert_eq!(open(&role), 2, "it is gone");
        let trace = concord_scheduler::Trace::default();
        let outcome = Outcome::Done(vec![7; 200 << 20]);
        let told = (2, 0, 1, outcome, 200 << 20, trace);
        let (jid, tid, attempts, outcome, output_bytes, trace) = told;
        role.book.note(TaskOutcome { jid, tid, attempts, outcome, output_bytes, trace });
        role.attend(later(3_622), &mut out).unwrap();
        assert_eq!(open(&role), 0, "others would have to wait");
    }

    /// An owner that ends does not refuse a job that it has written.
    #[test]
    fn bug_21_34_ending_owner_does_not_refuse_a_written_job() {
        let (mut role, mut out) = role();
        let now = crate::clock::now();
        let post = |role: &mut OwnerRole, out: &mut Outbox| {
            let (ask, answered) = Ask::of("POST", "/jobs", r#"{"function": "no-op"}"#);
            role.serve(now, ask, out);
            answered
        };
        let mut answered = post(&mut role, &mut out);
        assert!(!role.stop(now, Stop::Signal) && !role.stop(now, Stop::Rack));
        role.attend(now, &mut out).unwrap();
        assert!(!role.stop(now, Stop::Signal));
        assert_eq!(post(&mut role, &mut out).try_recv().unwrap().status, 503);
        sync(&mut role, &mut out);
        assert_eq!(answered.try_recv().unwrap().status, 201);
        assert!(role.stop(now, Stop::Signal));
    }
}
