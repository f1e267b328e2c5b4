//! The jobs that an owner knows when it starts: those of its journal.

use std::collections::BTreeMap;

use concord_core::Now;
use concord_scheduler::{Book, Found};
use tracing::warn;

use super::Reader;
use super::dependents::Dependents;
use super::retries::Specs;
use crate::falcon::jobs::{self, Executors, Note};

/// The jobs of a journal.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub book: Book,
    /// Attached jobs (they end if their results are not asked for), with their readers.
    pub attached: BTreeMap<u32, Reader>,
    /// The jobs by the keys with which they were submitted.
    pub keys: BTreeMap<String, u32>,
    pub dependents: Dependents,
    pub specs: Specs,
}

impl Known {
    /// The jobs of a journal, completed with the classes that the rack file has now.
    ///
    /// # Errors
    /// One line, if an unfinished job cannot go on.
    pub(super) fn found(
        found: &mut Found,
        executors: &Executors,
        now: Now,
    ) -> Result<Known, String> {
        let mut known = Known::default();
        for job in found.jobs.values_mut() {
            let note = Note::of(job);
            // A finished job may be tried again.
            note.complete(job);
            if !job.is_over()
                && let Some(needs) = jobs::find_class(job, executors)?
            {
                warn!(job = job.jid, needs, "no worker has what a job needs: its tasks wait");
            }
            let is_attached = jobs::found(&mut known.book, now, job);
            if is_attached && !job.is_over() {
                known.attached.insert(job.jid, Reader::seen(now.instant));
            }
            if !note.key.is_empty() {
                known.keys.insert(note.key, job.jid);
            }
            known.specs.keep(job.jid, &job.job);
            if job.is_over() {
                known.specs.over(job.jid, known.book.job(job.jid));
            } else {
                known.dependents.add(job.jid, note.after);
            }
        }
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::falcon::owner::dependents::tests::ask;
    use crate::falcon::owner::tests::role;
    use crate::http::api::Ask;
    use concord_core::{MS, Machine as _};
    use concord_scheduler::Journal;
    use serde_json::{Value, json};

    /// A job that was over when its owner was started again is tried again as it was submitted,
    /// where the rack file has what it needs now.
    #[test]
    fn bug_21_85_a_job_of_a_journal_is_tried_again_as_it_was() {
        let of = |classes: &[&str]| {
            let classes = classes.iter().map(ToString::to_string).collect();
            Executors { classes, ..Executors::default() }
        };
        let (mut role, mut out) = role();
        role.executors = of(&["gpu"]);
        let (_, mut bytes) = Journal::create(1);
        let now = crate::clock::now();
        let job =
            json!({ "command": ["x"], "needs": "gpu", "retry_delay_ms": 77, "running_max": 3 });
        let _answers = [("POST", "/jobs", job.to_string()), ("DELETE", "/jobs/1", String::new())]
            .map(|(method, path, body)| {
                let (ask, answered) = Ask::of(method, path, body.leak());
                role.serve(now, ask, &mut out);
                while let Some(persist) = role.owner.poll_persist() {
                    bytes.extend(persist.what);
                    role.owner.persisted(now, persist.number, &mut out);
                }
                answered
            });
        let mut again = |classes: &[&str]| {
            let mut found = Journal::recover(&bytes).unwrap().unwrap();
            let known = Known::found(&mut found, &of(classes), now).unwrap();
            (role.book, role.specs, role.executors) = (known.book, known.specs, of(classes));
            let path = "/jobs/1/retry?cancelled=1";
            let told = ask(&mut role, &mut out, "POST", path, &Value::Null);
            (told, role.specs.job(2).cloned())
        };
        let ((status, why), _) = again(&["cpu"]);
        assert_eq!((status, &why["error"]), (409, &json!("no worker has \"gpu\": there are cpu")));
        let (told, job) = again(&["cpu", "gpu"]);
        assert_eq!(told, (201, json!({ "job": 2, "tasks": 1 })));
        let job = job.unwrap();
        assert_eq!((job.needs, job.retry_ns, job.running_max), (2, 77 * MS, 3));
    }
}
