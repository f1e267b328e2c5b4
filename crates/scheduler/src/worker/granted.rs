//! The tasks that are never run twice: their grants, and the answers to a process that continues
//! with their owner's journal.

use concord_core::{Addr, Duration, Guard, Instant, MS, SEC, Sink};
use concord_wire::tasks::{Attempt, Run, TaskMessage};

use super::{Running, Slot, Work, Worker};

/// The largest number of times that the wait for the answer to a claim doubles.
const CLAIM_DOUBLINGS_MAX: u16 = 3;
/// The longest wait in ns for an owner's disk: if it hangs, the executor is there for others.
const WAIT_NS_MAX: Duration = 10 * SEC;
/// The interval in ns at which a claim is repeated whose owner waits for its disk.
const WAIT_BEAT_NS: Duration = 20 * MS;

impl Worker {
    /// The time for which an executor waits for a grant. An owner with a journal answers when its
    /// disk has synced: for each further attempt it may take longer.
    pub(super) fn patience_ns(&self, of: Attempt) -> Duration {
        let doublings = of.attempt.saturating_sub(1).min(CLAIM_DOUBLINGS_MAX);
        self.config.claim_ns << doublings
    }

    pub(super) fn on_claimed(&mut self, now: Instant, run: u32, asked_at: Instant, granted: bool) {
        let Some((index, _)) = self.claiming(run) else { return };
        let Slot::Claiming { work, until, .. } = self.slots[index] else { return };
        if !granted {
            self.counters.claims_refused += 1;
            self.slots.set(index, Slot::Idle { until: now });
            return;
        }
        let lease_until = asked_at.after(self.config.lease_ns);
        // A grant that took too long to arrive is ignored.
        if lease_until <= now || until <= now {
            return;
        }
        self.hold(now, index, work, lease_until);
    }

    /// An owner lives, and its disk has not written the grant yet.
    pub(super) fn on_wait(&mut self, now: Instant, run: Run) {
        let Some((index, work)) = self.claiming(run.run) else { return };
        let Slot::Claiming { since, .. } = self.slots[index] else { return };
        let until = now.after(self.patience_ns(work.of)).min(since.after(WAIT_NS_MAX));
        let beat_at = now.after(WAIT_BEAT_NS);
        self.slots.set(index, Slot::Claiming { work, since, beat_at, until });
    }

    /// The slot that claims this run, and its task.
    pub(super) fn claiming(&self, run: u32) -> Option<(usize, Work)> {
        let found = |(index, slot): (usize, &Slot)| match slot {
            Slot::Claiming { work, .. } if work.run == run => Some((index, *work)),
            Slot::Claiming { .. }
            | Slot::Idle { .. }
            | Slot::Asking { .. }
            | Slot::Waiting { .. }
            | Slot::Running(_) => None,
        };
        self.slots.iter().enumerate().find_map(found)
    }

    /// A task that is never run twice, and whose run did not begin and has no lease any more, goes
    /// back to its owner: nobody else knows that it did not begin.
    pub(super) fn return_unbegun(&mut self, now: Instant, work: &Work) {
        let message = TaskMessage::Returned { of: work.of, run: self.run(work.run) };
        self.report(now, work, message, alloc::vec::Vec::new());
    }

    /// Answers an owner that continues with a journal, and asks what came of a run.
    pub(super) fn on_inquiry(
        &mut self,
        now: Instant,
        (of, run): (Attempt, Run),
        owner: Addr,
        sink: &mut impl Sink,
    ) {
        let asked_at = now.0;
        if run.session != self.config.session.0 {
            return self.say(owner, &TaskMessage::Gone { of, run }, sink);
        }
        let answer = if let Some((index, work)) = self.running(run.run) {
            if let Slot::Running(running) = self.slots[index] {
                // Its lease may be about to end: the answer extends it.
                self.slots.set(index, Slot::Running(Running { is_heard: false, ..running }));
            }
            TaskMessage::Running { of: work.of, run, asked_at }
        } else if let Some((_, work)) = self.claiming(run.run) {
            TaskMessage::Claim { of: work.of, run, asked_at }
        } else if let Some(report) = self.reports.get(&run.run) {
            report.message.clone()
        } else if self.begun_runs.may_contain(run.run) && self.config.guards.on(Guard::InquiredRun)
        {
            TaskMessage::Gone { of, run }
        } else {
            TaskMessage::Returned { of, run }
        };
        self.say(owner, &answer, sink);
    }
}
