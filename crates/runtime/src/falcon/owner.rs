//! The owner of a group's tasks: takes jobs over HTTP, submits their tasks to the switch, and tells
//! how they ended.
//!
//! A role of its own and not a part of the gateway: the gateway is a session of Redis clients with
//! replicas, and has nothing in common with it but that somebody connects. So a flood of commands
//! does not stop jobs, nor a job of a million tasks the commands.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use concord_core::machine::Deadline;
use concord_core::{Instant, Key, MS, Now, SEC, SessionId};
use concord_gateway::Latencies;
use concord_scheduler::{Book, JobRecord, JournaledOwner, Outcome, OwnerConfig};
use concord_wire::{Addr, GroupId, OfGroup};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::job_journal::{JobJournal, JournalThread};
use super::jobs;
pub use super::jobs::Executors;
use crate::driver::{Persisted, ROLE_TOKEN_MIN, Role, Stop};
use crate::error::Error;
use crate::http::Snapshot;
use crate::http::api::{self, Answer, Api, Ask};
use crate::key_file;
use crate::logging;
use crate::poller::{Event, Interest, Token};
use crate::roles::{Place, unique};
use crate::udp::Outbox;

const ASKED: Token = Token(ROLE_TOKEN_MIN);
const JOURNAL: Token = Token(ROLE_TOKEN_MIN + 1);
/// How long after it was handed out a task's start has to be heard of, in ns: a worker's loop may
/// be busy.
const START_NS: u64 = 50 * MS;
/// Most outcomes of one answer.
const PAGE_MAX: usize = 1_000;
/// And most bytes of their outputs, but for those of the last one.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Longest wait for an outcome, in ms.
const WAIT_MS_MAX: u64 = 30_000;
/// Outcomes looked at for one answer about those that are dead.
const LOOKED_MAX: usize = 100_000;

/// How long nobody may ask for the results of an attached job before it is cancelled, in ns.
const ATTACHED_NS: u64 = 10 * SEC;

/// What an owner is told beside its place.
#[derive(Clone, Debug)]
pub struct OwnerSetup {
    /// The group of the workers.
    pub group: GroupId,
    /// Where the switch listens.
    pub switch: Addr,
    /// Where the controller listens, who knows if another switch took over.
    pub controller: Addr,
    /// Where jobs are submitted.
    pub listen: SocketAddr,
    /// How long a task may run without being heard of, in ns: the same for all of the group.
    pub lease_ns: u64,
    /// The rack's secret, with which tasks are tagged.
    pub key: Key,
    /// Which executors there are.
    pub executors: Executors,
    /// Where its jobs are written down, so that they outlive it; `None`: they end with it.
    pub journal: Option<PathBuf>,
}

/// Somebody who waits for outcomes.
#[derive(Debug)]
struct Waiting {
    ask: Ask,
    jid: u32,
    from: usize,
    until: Instant,
}

/// What a request did that is answered once it is durable.
#[derive(Clone, Copy, Debug)]
enum Taking {
    /// A job was submitted: JID, and how many tasks it has.
    Job(u32, usize),
    /// A job was cancelled, and how many of its tasks were open.
    Cancel(u32, u32),
}

/// Whether it is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    Told,
    /// Its workers know.
    Retired,
}

#[derive(Debug)]
struct OwnerRole {
    node: u16,
    owner: OfGroup<JournaledOwner>,
    journal: Option<JournalThread>,
    book: Book,
    executors: Executors,
    api: Api,
    waiting: Vec<Waiting>,
    /// Requests whose effect is not durable yet.
    taking: Vec<(Ask, Taking)>,
    /// Jobs that end if nobody asks for their results, and when somebody did last.
    attached: BTreeMap<u32, Instant>,
    /// From when its job was taken, each of a task that is done.
    to_start: Latencies,
    to_result: Latencies,
    /// The switch id logged last.
    logged: u32,
    ending: Ending,
}

/// Runs an owner until it is told to end.
///
/// # Errors
/// One line for a person.
pub fn run(place: &Place, setup: &OwnerSetup) -> Result<(), Error> {
    let _span = logging::span("owner", place.node).entered();
    let mut driver = place.driver()?;
    let api = api::serve(setup.listen, &key_file::token(setup.key))?;
    driver.poller().add(&api, ASKED, Interest::READ)?;
    let session = SessionId(unique()?);
    let config = OwnerConfig {
        controller: Some(setup.controller),
        lease_ns: setup.lease_ns,
        start_ns: START_NS,
        key: Some(setup.key),
        ..OwnerConfig::new(session, place.addr, setup.switch)
    };
    let now = crate::clock::now();
    let (mut book, mut attached) = (Book::new(), BTreeMap::new());
    let (owner, journal) = match &setup.journal {
        None => (JournaledOwner::new(config), None),
        Some(path) => {
            let (file, journal, mut found) = JobJournal::open(path)?;
            for job in found.jobs.values_mut().filter(|job| !job.is_over()) {
                let is_gone = jobs::find_class(job, &setup.executors)
                    .map_err(|why| Error::new(format!("the journal {}: {why}", path.display())))?;
                if let Some(needs) = is_gone {
                    warn!(job = job.jid, needs, "no worker has what a job needs: its tasks wait");
                }
            }
            for job in found.jobs.values() {
                let is_attached = jobs::found(&mut book, now, job);
                if is_attached && !job.is_over() {
                    attached.insert(job.jid, now.instant);
                }
            }
            let open = found.jobs.values().filter(|job| !job.is_over()).count();
            info!(path = %path.display(), jobs = found.jobs.len(), open, "journal");
            let thread = file.start()?;
            driver.poller().add(&thread, JOURNAL, Interest::READ)?;
            (JournaledOwner::resume(config, now, journal, &found), Some(thread))
        }
    };
    let mut role = OwnerRole {
        node: place.node,
        owner: OfGroup::new(setup.group, owner),
        journal,
        book,
        executors: setup.executors.clone(),
        api,
        waiting: Vec::new(),
        taking: Vec::new(),
        attached,
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

/// A number of a query such as `from=7&max=10`.
fn number(query: &str, name: &str) -> Result<Option<u64>, Answer> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let Some(value) = value else { return Ok(None) };
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
        jobs::summary(job, self.owner.owner().running(job.jid), now)
    }

    /// Answers a request, or has it wait.
    fn serve(&mut self, now: Now, ask: Ask, out: &mut Outbox) {
        let path = ask.path.clone();
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let answer = match (ask.method.as_str(), &parts[..]) {
            ("POST" | "DELETE", _) if self.ending != Ending::No => {
                Err(Answer::refused(503, self.ends()))
            }
            ("POST", ["jobs"]) => match self.submit(now, &ask.body, out) {
                // It is answered when it is there to stay.
                Ok(taking) => {
                    self.taking.push((ask, taking));
                    return self.answer_taken();
                }
                Err(refused) => Err(refused),
            },
            ("GET", ["workers"]) => {
                let held = self.owner.owner().held_by();
                let worker = |(at, running): (&Addr, &usize)| json!({ "worker": at.to_string(), "running": running });
                Ok(Answer::ok(&json!(held.iter().map(worker).collect::<Vec<_>>())))
            }
            ("GET", ["jobs"]) => {
                let last = self.book.jobs().rev().take(PAGE_MAX);
                let mut all: Vec<Value> = last.map(|job| self.summary(now, job)).collect();
                all.reverse();
                Ok(Answer::ok(&json!(all)))
            }
            ("GET", ["jobs", jid]) => self.job(jid).map(|job| Answer::ok(&self.summary(now, job))),
            ("GET", ["jobs", jid, "results"]) => match self.wait(now, jid, &ask.query) {
                Ok((jid, from, until)) => {
                    if let Some(asked_at) = self.attached.get_mut(&jid) {
                        *asked_at = now.instant;
                    }
                    return self.waiting.push(Waiting { ask, jid, from, until });
                }
                Err(refused) => Err(refused),
            },
            ("GET", ["jobs", jid, "dead"]) => self.dead(jid, &ask.query),
            ("GET", ["jobs", jid, "tasks", task]) => self.explain(jid, task),
            ("DELETE", ["jobs", jid]) => match self.cancel(now, jid, out) {
                // So that it is not gone on with when the owner is started again.
                Ok(taking) => {
                    self.taking.push((ask, taking));
                    return self.answer_taken();
                }
                Err(refused) => Err(refused),
            },
            _ => Err(Answer::refused(
                404,
                "there is POST and GET /jobs, GET and DELETE /jobs/N, GET /jobs/N/results, /jobs/N/dead, \
                 /jobs/N/tasks/N and /workers",
            )),
        };
        ask.answer(answer.unwrap_or_else(|refused| refused));
    }

    fn submit(&mut self, now: Now, body: &[u8], out: &mut Outbox) -> Result<Taking, Answer> {
        let mut read =
            jobs::read(body, &self.executors).map_err(|why| Answer::refused(400, &why))?;
        let tasks = read.job.tasks.len();
        let mut record = read.record(0, tasks as u32, now);
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
        if read.attached {
            self.attached.insert(jid, now.instant);
        }
        let (owner, mut sink) = self.owner.input(out);
        concord_core::Machine::tick(owner, now, &mut sink);
        Ok(Taking::Job(jid, tasks))
    }

    /// Answers requests whose effect is durable.
    fn answer_taken(&mut self) {
        for (ask, taking) in std::mem::take(&mut self.taking) {
            if !self.is_durable(taking) {
                self.taking.push((ask, taking));
                continue;
            }
            ask.answer(match taking {
                Taking::Job(jid, tasks) => {
                    Answer { status: 201, ..Answer::ok(&json!({ "job": jid, "tasks": tasks })) }
                }
                Taking::Cancel(jid, open) => Answer::ok(&json!({ "job": jid, "cancelled": open })),
            });
        }
    }

    fn is_durable(&self, taking: Taking) -> bool {
        match taking {
            Taking::Job(jid, _) => self.owner.is_taken(jid),
            // How its tasks ended is told once it is written.
            Taking::Cancel(jid, _) => self.book.job(jid).is_none_or(|job| job.over_at.is_some()),
        }
    }

    /// Cancels attached jobs for whose results nobody asks any more.
    fn let_go(&mut self, now: Now, out: &mut Outbox) {
        let asks = |jid: &u32| self.waiting.iter().any(|w| w.jid == *jid && !w.ask.is_given_up());
        let is_late = |at: &Instant| at.after(ATTACHED_NS) <= now.instant;
        let late = self.attached.iter().filter(|(jid, at)| is_late(at) && !asks(jid));
        let late: Vec<u32> = late.map(|(jid, _)| *jid).collect();
        for jid in late {
            self.attached.remove(&jid);
            info!(job = jid, "its submitter is gone: cancelled");
            let (owner, mut sink) = self.owner.input(out);
            owner.cancel(now, jid, &mut sink);
        }
    }

    fn cancel(&mut self, now: Now, jid: &str, out: &mut Outbox) -> Result<Taking, Answer> {
        let job = self.job(jid)?;
        let (jid, open) = (job.jid, job.tasks - job.counts.over());
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

    fn explain(&self, jid: &str, task: &str) -> Result<Answer, Answer> {
        let job = self.job(jid)?;
        let tid = task.parse::<u32>().ok().and_then(|task| task.checked_sub(job.first));
        let tid = tid.filter(|tid| *tid < job.tasks).ok_or_else(|| {
            let last = job.first + (job.tasks - 1);
            let (jid, first) = (job.jid, job.first);
            Answer::refused(404, &format!("job {jid} has no task {task}, only {first} to {last}"))
        })?;
        let number = job.first + tid;
        if let Some(told) = job.outcome(tid) {
            let mut way = jobs::way(number, job.jid, "is over", told.attempts, &told.trace);
            way["result"] = jobs::result(job, told);
            return Ok(Answer::ok(&way));
        }
        let found = self.owner.owner().explain(job.jid, tid);
        let (stands, attempts, trace) = found.unwrap_or(("is over", 0, Default::default()));
        Ok(Answer::ok(&jobs::way(number, job.jid, stands, attempts, &trace)))
    }

    /// Tasks that failed for good, are unknown or lost: those among the next outcomes.
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

    /// Who asks for the next outcomes is answered at once if there are any, else when there are.
    fn wait(&self, now: Now, jid: &str, query: &str) -> Result<(u32, usize, Instant), Answer> {
        let job = self.job(jid)?;
        let from = number(query, "from")?.unwrap_or(0);
        let wait_ms = number(query, "wait_ms")?.unwrap_or(0).min(WAIT_MS_MAX);
        Ok((job.jid, from as usize, now.instant.after(wait_ms * MS)))
    }

    /// Answers who waits, where there is something to say.
    fn answer_waiting(&mut self, now: Now) {
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { jid, from, until, .. } = waiting;
            if waiting.ask.is_given_up() {
                continue;
            }
            let Some(job) = self.book.job(jid) else {
                waiting.ask.answer(Answer::refused(404, &format!("job {jid} was forgotten")));
                continue;
            };
            let is_over = job.over_at.is_some();
            if job.outcomes().len() <= from && !is_over && until > now.instant {
                self.waiting.push(waiting);
                continue;
            }
            if let Some(asked_at) = self.attached.get_mut(&jid) {
                *asked_at = now.instant;
            }
            let mut bytes = 0;
            let page = job.outcomes().iter().skip(from).take(PAGE_MAX).take_while(|told| {
                let has_room = bytes < PAGE_BYTES_MAX;
                bytes += told.outcome.output().len();
                has_room
            });
            let results: Vec<Value> = page.map(|told| jobs::result(job, told)).collect();
            let next = from.min(job.outcomes().len()) + results.len();
            let is_last = is_over && next >= job.outcomes().len();
            let answer =
                json!({ "job": jid, "next": next, "is_last": is_last, "results": results });
            waiting.ask.answer(Answer::ok(&answer));
        }
    }

    /// Notes how tasks ended.
    fn note(&mut self) {
        while let Some(told) = self.owner.poll_outcome() {
            let trace = &told.trace;
            if matches!(told.outcome, Outcome::Done(_)) {
                self.to_start.add(trace.started_at.since(trace.taken_at));
                self.to_result.add(trace.over_at.since(trace.taken_at));
            }
            let jid = told.jid;
            self.book.note(told);
            if self.book.job(jid).is_none_or(|job| job.over_at.is_some()) {
                self.attached.remove(&jid);
            }
            if let Some(job) = self.book.job(jid)
                && let Some(over_at) = job.over_at
            {
                let ms = over_at.since(job.taken_at.instant) / MS;
                let (done, dead, cancelled) =
                    (job.counts.done, job.counts.dead(), job.counts.cancelled);
                info!(job = jid, done, dead, cancelled, ms, "job over");
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
        self.answer_taken();
        // It knows of no job any more then: what was asked for before is durable.
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
        Ok(())
    }

    fn wakes_at(&self) -> Deadline {
        if self.taking.iter().any(|(_, taking)| self.is_durable(*taking)) {
            return Deadline { at: Instant(0), reason: "a request to be answered" };
        }
        let waiting = self.waiting.iter().map(|waiting| waiting.until);
        // While somebody waits for its results they are asked for.
        let asks = |jid: &u32| self.waiting.iter().any(|w| w.jid == *jid);
        let silent = self.attached.iter().filter(|(jid, _)| !asks(jid));
        let at = waiting.chain(silent.map(|(_, at)| at.after(ATTACHED_NS))).min();
        Deadline { at: at.unwrap_or(Instant::NEVER), reason: "somebody who waits for outcomes" }
    }

    fn log(&mut self, _now: Now) {
        let (switch_id, addr) = self.owner.owner().switch();
        if std::mem::replace(&mut self.logged, switch_id.0) != switch_id.0 {
            info!(switch_id = switch_id.0, %addr, "switch");
        }
    }

    /// What was asked for is made durable, and its workers are told to stop what runs, before it
    /// ends. Where one does not hear of it, a lease sees to that.
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
    use concord_scheduler::{Found, Journal};

    /// An owner with a journal whose disk the test is.
    fn role() -> (OwnerRole, Outbox) {
        let socket = Socket::bind(Addr { ip: 0x7f00_0001, port: 0 }).unwrap();
        let config = OwnerConfig::new(SessionId(1), socket.addr().unwrap(), Addr::default());
        let (journal, _) = Journal::create(1);
        let now = crate::clock::now();
        let owner = JournaledOwner::resume(config, now, journal, &Found::default());
        let role = OwnerRole {
            node: 1,
            owner: OfGroup::new(GroupId::FIRST, owner),
            journal: None,
            book: Book::new(),
            executors: Executors::default(),
            api: api::serve(([127, 0, 0, 1], 0).into(), "token").unwrap(),
            waiting: Vec::new(),
            taking: Vec::new(),
            attached: BTreeMap::new(),
            to_start: Latencies::default(),
            to_result: Latencies::default(),
            logged: 0,
            ending: Ending::No,
        };
        (role, Outbox::new(socket))
    }

    /// The disk has written what there was to write.
    fn sync(role: &mut OwnerRole, out: &mut Outbox) {
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
