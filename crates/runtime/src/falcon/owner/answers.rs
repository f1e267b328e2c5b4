//! Answers that wait: for the disk, for outcomes, or for a job's end.

use concord_core::{Instant, MS, Now};
use serde_json::{Value, json};

use super::{Ending, OwnerRole, Reader, number};
use crate::falcon::jobs;
use crate::http::api::{Answer, Ask};
use crate::udp::Outbox;

/// The largest number of outcomes in one answer.
pub(super) const PAGE_MAX: usize = 1_000;
/// The largest number of bytes of outputs in one answer, without those of the last outcome.
pub(super) const PAGE_BYTES_MAX: usize = 1 << 20;
/// The longest wait for an outcome, in ms.
const WAIT_MS_MAX: u64 = 30_000;

/// A client that waits for outcomes.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) ask: Ask,
    pub(super) jid: u32,
    pub(super) from: usize,
    pub(super) until: Instant,
    /// Whether it only looks, and is not the reader of an attached job.
    pub(super) peeks: bool,
    /// If it is the answer to a submission, which waits for the job's end: the number of tasks.
    pub(super) submitted: Option<usize>,
}

/// The effect of a request, which is answered once that is durable.
#[derive(Clone, Copy, Debug)]
pub(super) enum Taking {
    /// A job was submitted.
    Job {
        jid: u32,
        tasks: usize,
        /// Until when the answer waits for the job's end, if the client asked for that.
        until: Option<Instant>,
    },
    /// A job was cancelled: its JID and its number of open tasks.
    Cancel(u32, u32),
    /// One task, and whether it was cancelled.
    Task(u32, u32, bool),
}

impl OwnerRole {
    /// Takes a job, whose submission is answered when the job is over, if the client asks for that.
    pub(super) fn submit_for(
        &mut self,
        now: Now,
        ask: &Ask,
        read: jobs::Read,
        out: &mut Outbox,
    ) -> Result<Taking, Answer> {
        let wait_ms = number(&ask.query, "wait_ms")?.unwrap_or(0).min(WAIT_MS_MAX);
        let until = (wait_ms > 0).then(|| now.instant.after(wait_ms * MS));
        let (jid, tasks) = self.submit(now, read, out)?;
        Ok(Taking::Job { jid, tasks, until })
    }

    /// Answers the requests whose effect is durable.
    pub(super) fn answer_taken(&mut self) {
        for (ask, taking) in std::mem::take(&mut self.taking) {
            if !self.is_durable(taking) {
                self.taking.push((ask, taking));
                continue;
            }
            let answer = match taking {
                // An owner that ends waits for no job's end: it says that it has the job.
                Taking::Job { jid, tasks, until: Some(until) } if self.ending == Ending::No => {
                    if let Some(reader) = self.attached.get_mut(&jid) {
                        reader.connection = Some(ask.connection.clone());
                    }
                    let (from, peeks, submitted) = (0, false, Some(tasks));
                    self.waiting.push(Waiting { ask, jid, from, until, peeks, submitted });
                    continue;
                }
                Taking::Job { jid, tasks, .. } => {
                    Answer { status: 201, ..Answer::ok(&json!({ "job": jid, "tasks": tasks })) }
                }
                Taking::Cancel(jid, open) => Answer::ok(&json!({ "job": jid, "cancelled": open })),
                Taking::Task(jid, tid, is_cancelled) => {
                    let task = self.book.job(jid).map_or(tid, |job| job.number(tid));
                    let cancelled = u32::from(is_cancelled);
                    Answer::ok(&json!({ "job": jid, "task": task, "cancelled": cancelled }))
                }
            };
            ask.answer(answer);
        }
    }

    pub(super) fn is_durable(&self, taking: Taking) -> bool {
        match taking {
            Taking::Job { jid, .. } => self.owner.is_taken(jid),
            // The outcomes of its tasks are told once they are written.
            Taking::Cancel(jid, _) => self.book.job(jid).is_none_or(|job| job.over_at.is_some()),
            Taking::Task(jid, tid, is_cancelled) => {
                let job = self.book.job(jid);
                !is_cancelled || job.is_none_or(|job| job.outcome(tid).is_some())
            }
        }
    }

    /// Lets a client that asks for the next outcomes wait until there are any.
    pub(super) fn wait(
        &self,
        now: Now,
        jid: &str,
        query: &str,
    ) -> Result<(u32, usize, Instant), Answer> {
        let job = self.job(jid)?;
        let from = number(query, "from")?.unwrap_or(0);
        let wait_ms = number(query, "wait_ms")?.unwrap_or(0).min(WAIT_MS_MAX);
        Ok((job.jid, from as usize, now.instant.after(wait_ms * MS)))
    }

    /// Answers the waiting clients for which there are outcomes, a page of outputs an iteration: to
    /// write the longest ones takes a tenth of a second, and leases must be extended in between.
    pub(super) fn answer_waiting(&mut self, now: Now) {
        let mut written = 0;
        self.answers_left = false;
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { jid, from, until, peeks, submitted, .. } = waiting;
            if waiting.ask.is_given_up() {
                if let Some(reader) = self.attached.get_mut(&jid).filter(|_| !peeks) {
                    *reader = Reader { is_broken: true, ..Reader::seen(now.instant) };
                }
                continue;
            }
            let Some(job) = self.book.job(jid) else {
                waiting.ask.answer(Answer::refused(404, &format!("job {jid} was forgotten")));
                continue;
            };
            let is_over = job.over_at.is_some();
            let has_any = job.outcomes().len() > from && submitted.is_none();
            if !has_any && !is_over && until > now.instant {
                self.waiting.push(waiting);
                continue;
            }
            if written >= PAGE_BYTES_MAX {
                self.answers_left = true;
                self.waiting.push(waiting);
                continue;
            }
            if let Some(reader) = self.attached.get_mut(&jid).filter(|_| !peeks) {
                *reader = Reader::asked(now.instant, &waiting.ask);
            }
            let mut bytes = 0;
            let page = job.outcomes().iter().skip(from).take(PAGE_MAX).take_while(|told| {
                let has_room = bytes < PAGE_BYTES_MAX;
                bytes += told.outcome.output().len();
                has_room
            });
            let results: Vec<Value> = page.map(|told| jobs::result(job, told)).collect();
            written += bytes;
            let next = from.min(job.outcomes().len()) + results.len();
            let is_last = is_over && next >= job.outcomes().len();
            let mut answer =
                json!({ "job": jid, "next": next, "is_last": is_last, "results": results });
            if let Some(tasks) = submitted {
                answer["tasks"] = tasks.into();
            }
            let status = if submitted.is_some() { 201 } else { 200 };
            waiting.ask.answer(Answer { status, ..Answer::ok(&answer) });
            if is_last && !peeks && self.attached.remove(&jid).is_some() {
                self.book.detach(jid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Role as _, Stop};
    use crate::falcon::owner::tests::{role, sync};
    use concord_core::{Machine as _, SEC};
    use concord_scheduler::{Book, Outcome, TaskOutcome, Trace};
    use concord_wire::control::Message as _;
    use concord_wire::tasks::{Attempt, Ended, Run, TaskMessage};
    use concord_wire::{Addr, GroupId};
    use tokio::sync::oneshot::Receiver;

    type Answered = Receiver<Answer>;

    const JOB: &str = r#"{"function": "no-op", "array": [4, 5], "attached": true, "key": "a"}"#;

    fn post(role: &mut OwnerRole, out: &mut Outbox, query: &str) -> Answered {
        let (mut ask, answered) = Ask::of("POST", "/jobs", JOB);
        ask.query = query.to_string();
        role.serve(crate::clock::now(), ask, out);
        answered
    }

    /// Its outcomes are durable, and its waiting clients were looked at.
    fn cancel(role: &mut OwnerRole, out: &mut Outbox, tid: u32) {
        let now = crate::clock::now();
        let (owner, mut sink) = role.owner.input(out);
        assert!(owner.cancel_task(now, 1, tid, false, &mut sink));
        sync(role, out);
    }

    fn told(answered: &mut Answered) -> Option<(u16, Value)> {
        let answer = answered.try_recv().ok()?;
        Some((answer.status, serde_json::from_str(&answer.body).unwrap()))
    }

    /// A submission that waits is answered with the outcomes once all tasks have ended, not at the
    /// first one, and never before the job is durable.
    #[test]
    fn a_submission_that_waits_has_the_jobs_results() {
        let (mut role, mut out) = role();
        let mut answered = post(&mut role, &mut out, "wait_ms=30000");
        role.attend(crate::clock::now(), &mut out).unwrap();
        assert!(role.waiting.is_empty(), "it is not durable");
        sync(&mut role, &mut out);
        assert_eq!((role.waiting.len(), told(&mut answered)), (1, None));
        cancel(&mut role, &mut out, 1);
        assert_eq!(told(&mut answered), None);
        cancel(&mut role, &mut out, 0);
        let (status, answer) = told(&mut answered).unwrap();
        assert_eq!((status, &answer["job"], &answer["tasks"]), (201, &json!(1), &json!(2)));
        assert_eq!((&answer["next"], &answer["is_last"]), (&json!(2), &json!(true)));
        assert_eq!(answer["results"][0]["task"], 5, "as they ended");
        // Sent again, since that answer was lost, it is told the same.
        let mut again = post(&mut role, &mut out, "wait_ms=30000");
        sync(&mut role, &mut out);
        assert_eq!(told(&mut again), Some((201, answer)));
        let mut wrong = post(&mut role, &mut out, "wait_ms=soon");
        assert_eq!(told(&mut wrong).unwrap().0, 400);
    }

    /// What takes longer is answered in time with what there is, and with the place to go on from.
    #[test]
    fn a_submission_waits_no_longer_than_its_client_says() {
        let (mut role, mut out) = role();
        let mut answered = post(&mut role, &mut out, "wait_ms=50");
        sync(&mut role, &mut out);
        cancel(&mut role, &mut out, 0);
        assert!(role.wakes_at().at <= crate::clock::now().instant.after(50 * MS));
        let later = |ns| {
            let now = crate::clock::now();
            Now { instant: now.instant.after(ns), ..now }
        };
        role.attend(later(SEC), &mut out).unwrap();
        let (status, answer) = told(&mut answered).unwrap();
        assert_eq!((status, &answer["next"], &answer["is_last"]), (201, &json!(1), &json!(false)));
        // Its client is the reader of the job, as if it had asked for results.
        assert!(role.attached[&1].is_there());
    }

    /// The client whose connection broke while it waited is gone, unless it sends the job again.
    #[test]
    fn a_client_that_breaks_off_a_submission_may_send_it_again() {
        let (mut role, mut out) = role();
        drop(post(&mut role, &mut out, "wait_ms=30000"));
        sync(&mut role, &mut out);
        sync(&mut role, &mut out);
        assert!(role.waiting.is_empty() && role.attached[&1].is_broken);
        let mut again = post(&mut role, &mut out, "wait_ms=30000");
        sync(&mut role, &mut out);
        assert!(!role.attached[&1].is_broken);
        let now = crate::clock::now();
        let later = Now { instant: now.instant.after(20 * SEC), ..now };
        role.attend(later, &mut out).unwrap();
        assert_eq!((role.owner.owner().open(), told(&mut again)), (2, None), "it goes on");
    }

    /// An owner that ends answers those that wait so that they ask the next one; what it had taken
    /// and not said, it says.
    #[test]
    fn an_owner_that_ends_answers_submissions_that_wait() {
        let (mut role, mut out) = role();
        let mut waits = post(&mut role, &mut out, "wait_ms=30000");
        sync(&mut role, &mut out);
        let mut other = {
            let body = r#"{"function": "no-op"}"#;
            let (mut ask, answered) = Ask::of("POST", "/jobs", body);
            ask.query = "wait_ms=30000".to_string();
            role.serve(crate::clock::now(), ask, &mut out);
            answered
        };
        assert!(!role.stop(crate::clock::now(), Stop::Signal));
        assert_eq!(told(&mut waits).unwrap().0, 503);
        sync(&mut role, &mut out);
        assert_eq!(told(&mut other), Some((201, json!({ "job": 2, "tasks": 1 }))));
    }

    /// Long outputs that several clients wait for are written one an iteration.
    #[test]
    fn bug_21_99_long_outputs_are_written_one_an_iteration() {
        let (mut role, mut out) = role();
        let now = crate::clock::now();
        for _ in 0..3 {
            role.serve(now, Ask::of("POST", "/jobs", r#"{"function": "no-op"}"#).0, &mut out);
            sync(&mut role, &mut out);
        }
        let mut all = ["/jobs/1/results", "/jobs/2/results", "/jobs/3/results"].map(|path| {
            let (mut ask, answered) = Ask::of("GET", path, "");
            ask.query = "wait_ms=30000".to_string();
            role.serve(now, ask, &mut out);
            answered
        });
        role.answer_waiting(now);
        assert!(!role.answers_left && role.wakes_at().at > now.instant);
        for jid in 1..=3 {
            let (outcome, trace) = (Outcome::Done(vec![b'x'; PAGE_BYTES_MAX]), Trace::default());
            let output_bytes = PAGE_BYTES_MAX as u64;
            role.book.note(TaskOutcome { jid, tid: 0, attempts: 1, outcome, output_bytes, trace });
        }
        for answered in 1..=3 {
            role.answer_waiting(now);
            let left = role.waiting.len();
            assert_eq!((left, role.answers_left), (3 - answered, answered < 3));
            assert_eq!(role.wakes_at().at == Instant(0), answered < 3);
        }
        assert!(all.iter_mut().all(|answered| told(answered).unwrap().0 == 200));
    }

    /// Of an attached job that is read slowly no output is dropped: once much of it is not read,
    /// the next outputs stay at their workers until the reader says that it has the earlier ones.
    #[test]
    fn bug_21_50_outputs_wait_for_their_reader() {
        let (mut role, mut out) = role();
        role.book = Book::with_room(1_000);
        let body = r#"{"function": "no-op", "array": [0, 9], "attached": true}"#;
        role.serve(crate::clock::now(), Ask::of("POST", "/jobs", body).0, &mut out);
        sync(&mut role, &mut out);
        let ends = |role: &mut OwnerRole, out: &mut Outbox, tid: u32| {
            let worker = Addr { ip: 0x7f00_0001, port: 7 };
            let of = Attempt { uid: 1, jid: 1, tid, attempt: 1 };
            let run = Run { session: 9, run: tid, worker };
            let (ended, output, mut bytes) = (Ended::Done, vec![b'x'; 100], Vec::new());
            let result = TaskMessage::Result { of, run, ended, output_bytes: 100, output };
            result.emit_in(GroupId::FIRST, &mut bytes);
            role.owner.handle(crate::clock::now(), worker, &mut bytes, out);
            sync(role, out);
            role.book.job(1).unwrap().outcomes().len()
        };
        let taken: Vec<usize> = (0..10).map(|tid| ends(&mut role, &mut out, tid)).collect();
        assert_eq!(taken, [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]);
        for tid in 4..10 {
            let (mut ask, mut answered) = Ask::of("GET", "/jobs/1/results", "");
            ask.query = format!("from={tid}&wait_ms=30000");
            role.serve(crate::clock::now(), ask, &mut out);
            sync(&mut role, &mut out);
            assert_eq!(ends(&mut role, &mut out, tid), tid as usize + 1);
            let answer = told(&mut answered).unwrap().1;
            assert_eq!(answer["results"][0]["output"].as_str().map(str::len), Some(100));
        }
        assert_eq!(role.book.forgotten(), (0, 0), "none was dropped");
    }
}
