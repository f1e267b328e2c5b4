//! Retries on request, as a new job of the tasks that did not succeed; and the cancelling of single
//! tasks.

use std::collections::BTreeMap;

use concord_core::Now;
use concord_scheduler::{Job, JobRecord, Outcome};
use concord_wire::tasks::{BODY_BYTES_MAX, Function};

use super::{OwnerRole, Taking, number, value};
use crate::falcon::jobs;
use crate::falcon::worker::CommandBody;
use crate::http::api::Answer;
use crate::udp::Outbox;

/// The largest number of tasks of a job that can be retried.
const TASKS_MAX: usize = 1 << 16;
/// The largest number of tasks, and of bytes, of all finished jobs that can be retried.
const KEPT_TASKS_MAX: usize = 1 << 18;
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Jobs as they were submitted: those in progress, and the latest finished ones with tasks that did
/// not succeed.
#[derive(Debug, Default)]
pub(super) struct Specs {
    all: BTreeMap<u32, Job>,
    /// The number of tasks of the finished ones.
    tasks: usize,
    bytes: usize,
    over: BTreeMap<u32, (usize, usize)>,
}

/// The bytes of its bodies.
fn bytes_of(job: &Job) -> usize {
    job.body.iter().chain(job.long.values()).map(|bytes| bytes.len()).sum()
}

impl Specs {
    /// The copy of a job that is kept, or `None` if it has too many tasks.
    pub(super) fn of(job: &Job) -> Option<Job> {
        (job.tasks.len() <= TASKS_MAX).then(|| job.clone())
    }

    #[cfg(test)]
    pub(super) fn job(&self, jid: u32) -> Option<&Job> {
        self.all.get(&jid)
    }

    #[cfg(test)]
    pub(super) fn body_of(&self, jid: u32) -> Option<CommandBody> {
        CommandBody::read(self.all.get(&jid)?.body.as_ref()?)
    }

    pub(super) fn keep(&mut self, jid: u32, job: &Job) {
        self.insert(jid, Specs::of(job));
    }

    pub(super) fn insert(&mut self, jid: u32, job: Option<Job>) {
        if let Some(job) = job {
            self.all.insert(jid, job);
        }
    }

    /// Notes that a job is over.
    pub(super) fn over(&mut self, jid: u32, record: Option<&JobRecord>) {
        let is_done = record.is_none_or(|record| record.counts.done == record.tasks);
        let Some(job) = self.all.get(&jid) else { return };
        if is_done {
            self.all.remove(&jid);
            return;
        }
        let size = (job.tasks.len(), bytes_of(job));
        if self.over.insert(jid, size).is_none() {
            self.tasks += size.0;
            self.bytes += size.1;
        }
        while (self.tasks > KEPT_TASKS_MAX || self.bytes > KEPT_BYTES_MAX)
            && let Some((oldest, (tasks, bytes))) = self.over.pop_first()
        {
            self.all.remove(&oldest);
            self.tasks -= tasks;
            self.bytes -= bytes;
        }
    }
}

/// A job of some tasks of another one, with their numbers.
fn part(job: &Job, record: &JobRecord, tids: &[u32]) -> Result<(Job, Vec<u32>), String> {
    let numbers: Vec<u32> = tids.iter().map(|tid| record.number(*tid)).collect();
    let mut own = Job { tasks: Vec::new(), long: BTreeMap::new(), is_held: false, ..job.clone() };
    for (at, tid) in (0..).zip(tids) {
        own.tasks.extend(job.tasks.get(*tid as usize));
        if let Some(long) = job.long.get(tid) {
            own.long.insert(at, long.clone());
        }
    }
    let function = job.tasks.first().map_or(0, |task| task.function);
    let is_command =
        [Function::Command, Function::Handler].map(Function::number).contains(&function);
    if let Some(body) = job.body.as_ref().filter(|_| is_command) {
        let body = CommandBody::read(body).ok_or("its command cannot be read")?;
        let body = CommandBody { numbers: numbers.clone(), ..body };
        let body = postcard::to_allocvec(&body).map_err(|e| e.to_string())?;
        if body.len() > BODY_BYTES_MAX {
            return Err(format!("{} tasks are too many to be tried again so", tids.len()));
        }
        own.body = Some(body.into());
    }
    Ok((own, numbers))
}

impl OwnerRole {
    /// Retries the tasks of a job that failed, are lost or unknown, and with `cancelled=1` also
    /// those that were cancelled: as a new job, in which they keep their numbers.
    pub(super) fn retry(
        &mut self,
        now: Now,
        jid: &str,
        query: &str,
        out: &mut Outbox,
    ) -> Result<Taking, Answer> {
        let refused = |status: u16, why: &str| Answer::refused(status, why);
        let with_cancelled = number(query, "cancelled")?.unwrap_or(0) > 0;
        let record = self.job(jid)?;
        if record.over_at.is_none() {
            return Err(refused(409, &format!("job {jid} is not over: cancel it, or wait")));
        }
        let is_wanted = |outcome: &Outcome| match outcome {
            Outcome::Done(_) => false,
            Outcome::Cancelled => with_cancelled,
            Outcome::Failed(..) | Outcome::Unknown | Outcome::Lost => true,
        };
        let wanted = record.outcomes().iter().filter(|told| is_wanted(&told.outcome));
        let mut tids: Vec<u32> = wanted.map(|told| told.tid).collect();
        tids.sort_unstable();
        if tids.is_empty() {
            return Err(refused(409, &format!("no task of job {jid} is to be tried again")));
        }
        let Some(job) = self.specs.all.get(&record.jid) else {
            let why = format!(
                "job {jid} is not known well enough to be tried again: it had more than {TASKS_MAX} tasks, or many jobs \
                 had tasks that are not done since"
            );
            return Err(refused(410, &why));
        };
        let (mut job, numbers) = part(job, record, &tids).map_err(|why| refused(413, &why))?;
        // Another process with another rack file may have accepted it.
        if !record.needs.is_empty() {
            job.needs = self.executors.class(&record.needs).map_err(|why| refused(409, &why))?;
        }
        let key = value(query, "key").unwrap_or_default();
        if key.len() > jobs::KEY_CHARS_MAX {
            return Err(refused(400, "the key is too long"));
        }
        let read = jobs::Read {
            job,
            title: record.title.clone(),
            first: record.first,
            needs: record.needs.clone(),
            attached: false,
            key: key.to_string(),
            numbers,
            after: Vec::new(),
        };
        let (jid, tasks) = self.submit(now, read, out)?;
        Ok(Taking::Job { jid, tasks, until: None })
    }

    /// Cancels one task; with `waiting=1` only if it is not known to run.
    pub(super) fn cancel_task(
        &mut self,
        now: Now,
        jid: &str,
        task: &str,
        query: &str,
        out: &mut Outbox,
    ) -> Result<Taking, Answer> {
        let is_waiting = number(query, "waiting")?.unwrap_or(0) > 0;
        let (job, tid) = self.task(jid, task)?;
        let jid = job.jid;
        let (owner, mut sink) = self.owner.input(out);
        let is_cancelled = owner.cancel_task(now, jid, tid, is_waiting, &mut sink);
        self.note();
        Ok(Taking::Task(jid, tid, is_cancelled))
    }
}

#[cfg(test)]
mod tests {
    use crate::falcon::owner::dependents::tests::ask;
    use crate::falcon::owner::tests::role;
    use serde_json::{Value, json};

    /// A second click, and an answer that was lost, are one job.
    #[test]
    fn bug_21_89_trying_again_twice_with_a_key_is_one_job() {
        let (mut role, mut out) = role();
        let mut ask = |method, path, body: &Value| ask(&mut role, &mut out, method, path, body);
        ask("POST", "/jobs", &json!({ "function": "no-op" }));
        ask("DELETE", "/jobs/1", &Value::Null);
        let mut again = |path| ask("POST", path, &Value::Null);
        let told = |job: u32| (201, json!({ "job": job, "tasks": 1 }));
        assert_eq!(again("/jobs/1/retry?cancelled=1&key=a"), told(2));
        assert_eq!(again("/jobs/1/retry?cancelled=1&key=a"), told(2));
        assert_eq!(again("/jobs/1/retry?cancelled=1&key=b"), told(3));
        assert_eq!(again("/jobs/1/retry?cancelled=1"), told(4));
        let long = format!("/jobs/1/retry?cancelled=1&key={}", "x".repeat(65));
        assert_eq!(again(long.leak()).0, 400);
    }
}
