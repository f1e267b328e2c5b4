//! The owner of a group's tasks: takes jobs over HTTP, submits their tasks to the switch, and tells how they ended.
//!
//! A role of its own and not a part of the gateway: the gateway is a session of Redis clients with replicas, and
//! has nothing in common with it but that somebody connects. So a flood of commands does not stop jobs, nor a job of
//! a million tasks the commands.

use std::net::SocketAddr;

use concord_core::machine::Deadline;
use concord_core::{Instant, Key, MS, Nothing, Now, SessionId};
use concord_gateway::Latencies;
use concord_scheduler::{Book, JobRecord, Outcome, Owner, OwnerConfig};
use concord_wire::{Addr, GroupId, OfGroup};
use serde_json::{Value, json};
use tracing::info;

use super::jobs;
use crate::driver::{Kept, ROLE_TOKEN_MIN, Role, Stop};
use crate::error::Error;
use crate::http::Snapshot;
use crate::http::api::{self, Answer, Api, Ask};
use crate::key_file;
use crate::logging;
use crate::poller::{Event, Interest, Token};
use crate::roles::{Place, unique};
use crate::udp::Outbox;

const ASKED: Token = Token(ROLE_TOKEN_MIN);
/// How long after it was handed out a task's start has to be heard of, in ns: a worker's loop may be busy.
const START_NS: u64 = 50 * MS;
/// Most outcomes of one answer.
const PAGE_MAX: usize = 1_000;
/// And most bytes of their outputs, but for those of the last one.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Longest wait for an outcome, in ms.
const WAIT_MS_MAX: u64 = 30_000;
/// Outcomes looked at for one answer about those that are dead.
const LOOKED_MAX: usize = 100_000;

/// What an owner is told beside its place.
#[derive(Clone, Copy, Debug)]
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
}

/// Somebody who waits for outcomes.
#[derive(Debug)]
struct Waiting {
    ask: Ask,
    jid: u32,
    from: usize,
    until: Instant,
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
    owner: OfGroup<Owner>,
    book: Book,
    api: Api,
    waiting: Vec<Waiting>,
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
    let mut role = OwnerRole {
        node: place.node,
        owner: OfGroup::new(setup.group, Owner::new(config)),
        book: Book::new(),
        api,
        waiting: Vec::new(),
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
        jobs::summary(job, self.owner.running(job.jid), now)
    }

    /// Answers a request, or has it wait.
    fn serve(&mut self, now: Now, ask: Ask, out: &mut Outbox) {
        let path = ask.path.clone();
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let answer = match (ask.method.as_str(), &parts[..]) {
            ("POST", ["jobs"]) => self.submit(now, &ask.body, out),
            ("GET", ["jobs"]) => {
                let last = self.book.jobs().rev().take(PAGE_MAX);
                let mut all: Vec<Value> = last.map(|job| self.summary(now, job)).collect();
                all.reverse();
                Ok(Answer::ok(&json!(all)))
            }
            ("GET", ["jobs", jid]) => self.job(jid).map(|job| Answer::ok(&self.summary(now, job))),
            ("GET", ["jobs", jid, "results"]) => match self.wait(now, jid, &ask.query) {
                Ok((jid, from, until)) => {
                    return self.waiting.push(Waiting { ask, jid, from, until });
                }
                Err(refused) => Err(refused),
            },
            ("GET", ["jobs", jid, "dead"]) => self.dead(jid, &ask.query),
            ("GET", ["jobs", jid, "tasks", task]) => self.explain(jid, task),
            ("DELETE", ["jobs", jid]) => self.cancel(now, jid, out),
            _ => Err(Answer::refused(
                404,
                "there is POST and GET /jobs, GET and DELETE /jobs/N, GET /jobs/N/results, /jobs/N/dead and \
                 /jobs/N/tasks/N",
            )),
        };
        ask.answer(answer.unwrap_or_else(|refused| refused));
    }

    fn submit(&mut self, now: Now, body: &[u8], out: &mut Outbox) -> Result<Answer, Answer> {
        let mut read = jobs::read(body).map_err(|why| Answer::refused(400, &why))?;
        let tasks = read.job.tasks.len();
        let mut record = read.record(0, tasks as u32, now);
        let Some(jid) = self.owner.submit(now, std::mem::take(&mut read.job)) else {
            let open = self.owner.open();
            let why =
                format!("{open} tasks are open already: submit {tasks} more when some are over");
            return Err(Answer::refused(429, &why));
        };
        let title: String = read.title.chars().take(80).collect();
        info!(job = jid, tasks, title, "job taken");
        record.jid = jid;
        self.book.open(record);
        let (owner, mut sink) = self.owner.input(out);
        concord_core::Machine::tick(owner, now, &mut sink);
        Ok(Answer { status: 201, ..Answer::ok(&json!({ "job": jid, "tasks": tasks })) })
    }

    fn cancel(&mut self, now: Now, jid: &str, out: &mut Outbox) -> Result<Answer, Answer> {
        let job = self.job(jid)?;
        let (jid, open) = (job.jid, job.tasks - job.counts.over());
        let (owner, mut sink) = self.owner.input(out);
        owner.cancel(now, jid, &mut sink);
        self.note();
        Ok(Answer::ok(&json!({ "job": jid, "cancelled": open })))
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
        let found = self.owner.explain(job.jid, tid);
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
            let Some(job) = self.book.job(jid) else {
                waiting.ask.answer(Answer::refused(404, &format!("job {jid} was forgotten")));
                continue;
            };
            let is_over = job.over_at.is_some();
            if job.outcomes().len() <= from && !is_over && until > now.instant {
                if !waiting.ask.is_given_up() {
                    self.waiting.push(waiting);
                }
                continue;
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
    type Machine = OfGroup<Owner>;

    fn machine(&mut self) -> &mut OfGroup<Owner> {
        &mut self.owner
    }

    fn persist(&mut self, what: Nothing) -> Result<Kept, Error> {
        match what {}
    }

    fn event(&mut self, event: Event, out: &mut Outbox) -> Result<(), Error> {
        if event.token == ASKED {
            self.api.heard();
            while let Some(ask) = self.api.take() {
                self.serve(crate::clock::now(), ask, out);
            }
        }
        Ok(())
    }

    fn attend(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        if self.ending == Ending::Told {
            let (owner, mut sink) = self.owner.input(out);
            owner.retire(now, &mut sink);
            self.ending = Ending::Retired;
        }
        self.note();
        if !self.waiting.is_empty() {
            self.answer_waiting(now);
        }
        Ok(())
    }

    fn wakes_at(&self) -> Deadline {
        let at = self.waiting.iter().map(|waiting| waiting.until).min();
        Deadline { at: at.unwrap_or(Instant::NEVER), reason: "somebody who waits for outcomes" }
    }

    fn log(&mut self, _now: Now) {
        let (switch_id, addr) = self.owner.switch();
        if std::mem::replace(&mut self.logged, switch_id.0) != switch_id.0 {
            info!(switch_id = switch_id.0, %addr, "switch");
        }
    }

    /// Its workers are told to stop what runs, before it ends. Where one does not hear of it, a lease sees to that.
    fn stop(&mut self, _now: Now, why: Stop) -> bool {
        for waiting in std::mem::take(&mut self.waiting) {
            waiting.ask.answer(Answer::refused(503, "the owner ends, and its jobs with it"));
        }
        if self.ending == Ending::No {
            self.ending = Ending::Told;
        }
        self.ending == Ending::Retired || why == Stop::Rack
    }

    fn snapshot(&self, _now: Now) -> Snapshot {
        let mut s = Snapshot::new("owner", self.node);
        s.count(self.owner.counters().each());
        s.count(self.owner.of_group_counters().each());
        let open = self.book.jobs().filter(|job| job.over_at.is_none()).count();
        s.gauge("jobs_open", "Jobs that are not over.", open as f64);
        s.gauge("tasks_open", "Tasks that are not over.", self.owner.open() as f64);
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
        s.tell("switch_id", self.owner.switch().0.0);
        s.tell("serving", true);
        s.tell("jobs_open", open);
        s
    }
}
