//! Jobs that run after other jobs. The owner holds them, and the client may go. A journal says
//! after which jobs one runs; whether it may begin follows from their outcomes.

use std::collections::{BTreeMap, BTreeSet};

use concord_core::Now;
use concord_scheduler::{JobRecord, Outcome, TaskOutcome};

use super::OwnerRole;
use crate::falcon::jobs::{self, After, When};
use crate::http::api::Answer;
use crate::udp::Outbox;

/// The largest number of jobs after which one may run.
const AFTER_MAX: usize = 64;

/// The jobs that wait for others.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    /// For each waiting job, the jobs that it waits for.
    waiting: BTreeMap<u32, Vec<After>>,
    /// For each awaited job, the jobs that wait for it as a whole.
    on: BTreeMap<u32, BTreeSet<u32>>,
    /// For each awaited job, the jobs whose tasks wait for its tasks. Each has as many tasks, so
    /// that these are few.
    each_on: BTreeMap<u32, BTreeSet<u32>>,
    /// The waiting jobs to be examined.
    changed: BTreeSet<u32>,
    /// Tasks that are over, of jobs for whose tasks others wait: the waiting job, the task's place,
    /// and whether the task succeeded.
    over: Vec<(u32, u32, bool)>,
}

/// Whether a job may begin.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Begins,
    Waits,
    /// It never may, for this reason.
    Never(String),
}

impl Dependents {
    fn of(&mut self, after: After) -> &mut BTreeMap<u32, BTreeSet<u32>> {
        match after.when {
            When::Each => &mut self.each_on,
            When::Ok | When::Any | When::NotOk => &mut self.on,
        }
    }

    /// Adds a job that was accepted, or found in a journal.
    pub(super) fn add(&mut self, jid: u32, after: Vec<After>) {
        if after.is_empty() {
            return;
        }
        for own in &after {
            self.of(*own).entry(own.job).or_default().insert(jid);
        }
        self.waiting.insert(jid, after);
        self.changed.insert(jid);
    }

    /// Notes that a task is over, and its job with it if it was the last. Jobs that wait for the
    /// job are examined only if that can change a verdict: a job may have 100,000 tasks, and 10,000
    /// jobs that wait for it.
    pub(super) fn note(&mut self, (jid, tid): (u32, u32), is_done: bool, job: Option<&JobRecord>) {
        if let Some(dependents) = self.each_on.get(&jid) {
            self.over.extend(dependents.iter().map(|own| (*own, tid, is_done)));
        }
        let is_over = job.is_none_or(|job| job.over_at.is_some());
        let is_first = job.is_some_and(|job| job.counts.over() - job.counts.done == 1) && !is_done;
        if is_over || is_first {
            self.changed.extend(self.on.get(&jid).into_iter().flatten());
        }
        if is_over {
            // The job waits for nothing any more, and neither do the tasks that waited for its own.
            self.forget(jid);
            let dependents = self.each_on.get(&jid).into_iter().flatten();
            // Jobs that are examined next handle the tasks that were over before they came.
            let known: Vec<u32> =
                dependents.filter(|j| !self.changed.contains(j)).copied().collect();
            known.into_iter().for_each(|own| self.forget(own));
        }
    }

    fn forget(&mut self, jid: u32) {
        for after in self.waiting.remove(&jid).unwrap_or_default() {
            let of = self.of(after);
            if let Some(dependents) = of.get_mut(&after.job) {
                dependents.remove(&jid);
                if dependents.is_empty() {
                    of.remove(&after.job);
                }
            }
        }
    }
}

/// The verdict of one awaited job on a job that runs after it. If the awaited job is not known any
/// more, it ended as required: otherwise the waiting job would have been cancelled then.
fn verdict(after: After, job: Option<&JobRecord>) -> Verdict {
    let Some(job) = job else { return Verdict::Begins };
    let (is_over, not_done) = (job.over_at.is_some(), job.counts.over() - job.counts.done);
    let jid = after.job;
    match after.when {
        When::Ok | When::Each if not_done > 0 => Verdict::Never(format!(
            "job {jid}, after which it was to run, has tasks that are not done"
        )),
        When::NotOk if is_over && not_done == 0 => Verdict::Never(format!(
            "all tasks of job {jid} are done: it was to run if some were not"
        )),
        When::Ok | When::Any | When::NotOk | When::Each if is_over => Verdict::Begins,
        When::Ok | When::Any | When::NotOk | When::Each => Verdict::Waits,
    }
}

impl OwnerRole {
    /// Refuses a job that runs after an unknown one.
    pub(super) fn check_after(&self, read: &jobs::Read) -> Result<(), Answer> {
        let refused = |why: String| Err(Answer::refused(400, &why));
        if read.after.len() > AFTER_MAX {
            return refused(format!("a job runs after at most {AFTER_MAX} others"));
        }
        for After { job, when } in &read.after {
            let Some(record) = self.book.job(*job) else {
                let why = format!("there is no job {job}, after which this one is to run");
                return Err(Answer::refused(404, &why));
            };
            if *when != When::Each {
                continue;
            }
            let (own, others) = (read.job.tasks.len(), record.tasks);
            if own != others as usize {
                return refused(format!(
                    "after each task of job {job}: it has {others} tasks, and this one {own}"
                ));
            }
            if read.after.len() > 1 {
                return refused(
                    "a job that runs after each task of another one runs after no \
                                third one"
                        .to_string(),
                );
            }
        }
        Ok(())
    }

    /// Begins or cancels the waiting jobs according to what has ended since the last call.
    pub(super) fn follow(&mut self, now: Now, out: &mut Outbox) {
        for (jid, tid, is_done) in std::mem::take(&mut self.dependents.over) {
            self.follow_task(now, (jid, tid), is_done, out);
        }
        while let Some(jid) = self.dependents.changed.pop_first() {
            let Some(after) = self.dependents.waiting.get(&jid).cloned() else { continue };
            if let [After { job, when: When::Each }] = after[..] {
                self.follow_each(now, jid, job, out);
                continue;
            }
            let verdicts: Vec<Verdict> =
                after.iter().map(|after| verdict(*after, self.book.job(after.job))).collect();
            let never = verdicts.iter().find_map(|verdict| match verdict {
                Verdict::Never(why) => Some(why.clone()),
                Verdict::Begins | Verdict::Waits => None,
            });
            if let Some(why) = never {
                self.dependents.forget(jid);
                self.book.cancelled(jid, &why);
                let (owner, mut sink) = self.owner.input(out);
                owner.cancel(now, jid, &mut sink);
                self.note();
            } else if verdicts.iter().all(|verdict| *verdict == Verdict::Begins) {
                self.dependents.forget(jid);
                let (owner, mut sink) = self.owner.input(out);
                owner.release(now, jid, &mut sink);
            }
        }
    }

    /// Handles a new job whose tasks run after those of another one, some of which may already be
    /// over.
    fn follow_each(&mut self, now: Now, jid: u32, on: u32, out: &mut Outbox) {
        let Some(job) = self.book.job(on) else {
            self.dependents.forget(jid);
            let (owner, mut sink) = self.owner.input(out);
            return owner.release(now, jid, &mut sink);
        };
        let told = |told: &TaskOutcome| (told.tid, matches!(told.outcome, Outcome::Done(_)));
        let over: Vec<(u32, bool)> = job.outcomes().iter().map(told).collect();
        if job.over_at.is_some() {
            self.dependents.forget(jid);
        }
        for (tid, is_done) in over {
            self.follow_task(now, (jid, tid), is_done, out);
        }
    }

    fn follow_task(&mut self, now: Now, (jid, tid): (u32, u32), is_done: bool, out: &mut Outbox) {
        let (owner, mut sink) = self.owner.input(out);
        if is_done {
            return owner.release_task(now, jid, tid, &mut sink);
        }
        owner.cancel_task(now, jid, tid, false, &mut sink);
        let why = "the task after which it was to run is not done";
        self.book.cancelled(jid, why);
        self.note();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    use crate::falcon::owner::tests::{role, sync};
    use crate::http::api::Ask;
    use serde_json::{Value, json};

    /// A request's status and answer.
    pub(in super::super) fn ask(
        role: &mut OwnerRole,
        out: &mut Outbox,
        method: &'static str,
        path: &'static str,
        body: &Value,
    ) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let (mut ask, mut answered) = Ask::of(method, path, body.leak());
        ask.query = query.to_string();
        role.serve(crate::clock::now(), ask, out);
        sync(role, out);
        sync(role, out);
        let answer = answered.try_recv().unwrap();
        (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
    }

    fn stands(role: &OwnerRole, jid: u32, tid: u32) -> &'static str {
        role.owner.owner().explain(jid, tid).map_or("is over", |(stands, _, _)| stands)
    }

    const WAITS: &str = "waits for another job, or until fewer tasks of its own run";

    /// Jobs that wait for others are the owner's: they begin, or are cancelled with a reason, when
    /// those end, and so do those that wait for them.
    #[test]
    fn jobs_begin_when_those_before_them_have_ended() {
        let (mut role, mut out) = role();
        let (role, out) = (&mut role, &mut out);
        let no_op = |after: Value| json!({ "function": "no-op", "after": after });
        let post = |role: &mut OwnerRole, out: &mut Outbox, job: Value| {
            ask(role, out, "POST", "/jobs", &job)
        };
        assert_eq!(post(role, out, json!({ "function": "no-op", "array": [3, 4] })).0, 201);
        assert_eq!(post(role, out, no_op(json!([{ "job": 1 }]))).0, 201);
        assert_eq!(post(role, out, no_op(json!([{ "job": 2, "when": "ok" }]))).0, 201);
        assert_eq!(post(role, out, no_op(json!([{ "job": 1, "when": "not-ok" }]))).0, 201);
        let each = json!([{ "job": 1, "when": "each" }]);
        let elements = json!({ "function": "no-op", "array": [0, 1], "after": each });
        assert_eq!(post(role, out, elements).0, 201);
        assert_eq!(post(role, out, no_op(json!([{ "job": 9 }]))).0, 404);
        let (status, why) = post(role, out, no_op(each));
        assert_eq!(
            (status, &why["error"]),
            (400, &json!("after each task of job 1: it has 2 tasks, and this one 1"))
        );
        for jid in 2..=5 {
            assert_eq!(stands(role, jid, 0), WAITS);
        }
        // One task of the first is cancelled: what was to run after all of them never will.
        let (_, told) = ask(role, out, "DELETE", "/jobs/1/tasks/3", &Value::Null);
        assert_eq!(told, json!({ "job": 1, "task": 3, "cancelled": 1 }));
        assert_eq!(["is over"; 2], [stands(role, 2, 0), stands(role, 3, 0)]);
        let job = role.book.job(3).unwrap();
        assert_eq!(
            job.cancelled_why,
            "job 2, after which it was to run, has tasks that are not done"
        );
        assert_eq!([stands(role, 5, 0), stands(role, 5, 1)], ["is over", WAITS]);
        assert_eq!(stands(role, 4, 0), WAITS, "the first is not over");
        ask(role, out, "DELETE", "/jobs/1", &Value::Null);
        assert_ne!(stands(role, 4, 0), WAITS);
    }

    /// However many jobs wait for a job, its outcomes are looked at by them only where one decides.
    #[test]
    fn bug_21_86_outcomes_that_decide_nothing_are_not_looked_at() {
        let mut book = concord_scheduler::Book::new();
        book.open(JobRecord::new(1, String::new(), 5, Now::default()));
        let mut dependents = Dependents::default();
        for jid in 2..=1_001 {
            let when = [When::Ok, When::Any, When::NotOk][jid as usize % 3];
            dependents.add(jid, vec![After { job: 1, when }]);
        }
        dependents.add(1_002, vec![After { job: 1, when: When::Each }]);
        dependents.changed.clear();
        let mut looked = |tid: u32, outcome: Outcome| {
            let is_done = matches!(outcome, Outcome::Done(_));
            let trace = Default::default();
            book.note(TaskOutcome { jid: 1, tid, attempts: 1, outcome, output_bytes: 0, trace });
            dependents.note((1, tid), is_done, book.job(1));
            (std::mem::take(&mut dependents.changed).len(), dependents.over.len())
        };
        let done = || Outcome::Done(vec![]);
        assert_eq!([looked(0, done()), looked(1, done())], [(0, 1), (0, 2)]);
        let lost = [looked(2, Outcome::Lost), looked(3, Outcome::Lost)];
        assert_eq!(lost, [(1_000, 3), (0, 4)], "the first that is not done says all");
        assert_eq!(looked(4, done()), (1_000, 5));
        (2..=1_001).for_each(|jid| dependents.forget(jid));
        assert!(dependents.waiting.is_empty() && dependents.on.is_empty());
        assert!(dependents.each_on.is_empty());
    }

    /// What was not done is tried again as a job of its own, whose tasks have their numbers.
    #[test]
    fn tasks_that_are_not_done_are_tried_again_by_their_numbers() {
        let (mut role, mut out) = role();
        let (role, out) = (&mut role, &mut out);
        let job = json!({ "command": ["echo", "{}"], "numbers": [2, 5, 9], "retries": 1 });
        assert_eq!(ask(role, out, "POST", "/jobs", &job).1, json!({ "job": 1, "tasks": 3 }));
        assert_eq!(ask(role, out, "POST", "/jobs/1/retry", &Value::Null).0, 409);
        let (_, told) = ask(role, out, "DELETE", "/jobs/1/tasks/5", &Value::Null);
        assert_eq!(told["cancelled"], 1);
        assert_eq!(ask(role, out, "DELETE", "/jobs/1/tasks/3", &Value::Null).0, 404);
        ask(role, out, "DELETE", "/jobs/1", &Value::Null);
        let (status, why) = ask(role, out, "POST", "/jobs/1/retry", &Value::Null);
        assert_eq!((status, &why["error"]), (409, &json!("no task of job 1 is to be tried again")));
        let told = ask(role, out, "POST", "/jobs/1/retry?cancelled=1", &Value::Null);
        assert_eq!(told, (201, json!({ "job": 2, "tasks": 3 })));
        assert_eq!(role.book.job(2).unwrap().number(1), 5);
        let body = role.specs.body_of(2).unwrap();
        assert_eq!(
            (body.number(1), &body.argv[..]),
            (5, &["echo".to_string(), "{}".to_string()][..])
        );
    }

    /// What each condition says while the other job runs, when it is done, and when it is not.
    #[test]
    fn each_condition_in_each_state() {
        let told = |outcome| TaskOutcome {
            jid: 1,
            tid: 0,
            attempts: 1,
            outcome,
            output_bytes: 0,
            trace: Default::default(),
        };
        let of = |outcome: Option<Outcome>| {
            let mut book = concord_scheduler::Book::new();
            book.open(JobRecord::new(1, String::new(), 1, Now::default()));
            outcome.into_iter().for_each(|outcome| book.note(told(outcome)));
            let verdicts = [When::Ok, When::Any, When::NotOk].map(|when| {
                match verdict(After { job: 1, when }, book.job(1)) {
                    Verdict::Begins => 'b',
                    Verdict::Waits => 'w',
                    Verdict::Never(_) => 'n',
                }
            });
            verdicts.iter().collect::<String>()
        };
        assert_eq!(of(None), "www");
        assert_eq!(of(Some(Outcome::Done(vec![]))), "bbn");
        assert_eq!(of(Some(Outcome::Cancelled)), "nbb");
        assert_eq!(of(Some(Outcome::Lost)), "nbb");
    }
}
