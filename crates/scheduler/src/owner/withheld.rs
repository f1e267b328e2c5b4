//! Tasks that are not submitted yet: those of a job that waits for another one, and those above the
//! limit of a job's tasks in flight. Also the cancelling of single tasks, and the delays of failed
//! tasks.

use concord_core::{Duration, Now, SEC, Sink};
use concord_wire::tasks::{Attempt, TaskMessage};

use super::{At, Name, Owner};
use crate::outcome::Outcome;

/// The largest number of times that the delay of a failed task doubles.
const RETRY_DOUBLINGS_MAX: u16 = 10;
/// The longest delay in ns, unless a job specifies a longer one.
const RETRY_NS_MAX: Duration = 300 * SEC;

impl Owner {
    /// Lets further tasks of a job be submitted, up to its limit of tasks in flight.
    pub(super) fn let_in(&mut self, jid: u32) {
        while let Some(job) = self.jobs.get_mut(&jid)
            && (job.running_max == 0 || job.let_in < job.running_max as usize)
            && let Some(tid) = job.withheld.pop_front()
        {
            let is_withheld =
                job.items.get(tid as usize).is_some_and(|item| item.at == At::Withheld);
            if is_withheld {
                job.let_in += 1;
                self.make_ready((jid, tid), false);
            }
        }
    }

    /// Notes that a task that was in the state `was` is in flight now.
    pub(super) fn note_let_in(&mut self, jid: u32, was: At) {
        if let Some(job) = self.jobs.get_mut(&jid) {
            job.let_in += usize::from(was == At::Withheld);
        }
    }

    /// Allows all tasks of a held job to be submitted.
    pub fn release(&mut self, now: Now, jid: u32, sink: &mut impl Sink) {
        let Some(job) = self.jobs.get_mut(&jid) else { return };
        let withheld = (0..).zip(&job.items).filter(|(_, item)| item.at == At::Withheld);
        job.withheld = withheld.map(|(tid, _)| tid).collect();
        self.let_in(jid);
        self.pump(now.instant, sink);
    }

    /// Allows one task of a held job to be submitted.
    pub fn release_task(&mut self, now: Now, jid: u32, tid: u32, sink: &mut impl Sink) {
        let Some(job) = self.jobs.get_mut(&jid) else { return };
        job.withheld.push_back(tid);
        self.let_in(jid);
        self.pump(now.instant, sink);
    }

    /// Ends one task that is not over; with `is_waiting`, only if it is not known to run. `false`
    /// if it goes on, or is over.
    pub fn cancel_task(
        &mut self,
        now: Now,
        jid: u32,
        tid: u32,
        is_waiting: bool,
        sink: &mut impl Sink,
    ) -> bool {
        let Some((item, _)) = self.item((jid, tid)) else { return false };
        let (at, attempt) = (item.at, item.attempt);
        match at {
            At::Over => return false,
            At::Held(..) | At::Queued(_, Some(_)) if is_waiting => return false,
            At::Held(run, _) => {
                let of = Attempt { uid: self.config.session.0, jid, tid, attempt };
                self.say(run.worker, &TaskMessage::Cancel { of, run }, sink);
            }
            At::Ready | At::Withheld | At::Later(_) | At::Submitted(_) | At::Queued(..) => {}
        }
        self.end(now.instant, (jid, tid), Outcome::Cancelled, 0);
        self.pump(now.instant, sink);
        true
    }

    /// The delay in ns of a task that failed for the `times`th time.
    pub(super) fn retry_pause(&mut self, name: Name, times: u16) -> Duration {
        let retry_ns = self.jobs.get(&name.0).map_or(0, |job| job.retry_ns);
        if retry_ns == 0 {
            return 0;
        }
        let doublings = times.saturating_sub(1).min(RETRY_DOUBLINGS_MAX);
        let most = retry_ns.saturating_mul(1 << doublings).min(RETRY_NS_MAX.max(retry_ns));
        // Tasks that failed together do not all come back together.
        self.rng.between(most - most / 4, most)
    }
}
