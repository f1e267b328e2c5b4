//! Jobs that outlive their owner: the state that a process takes over from the one before
//! ([`crate::JournaledOwner`]).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use concord_core::{Addr, Instant, MS, Now};
use concord_wire::tasks::Run;

use super::{At, Grant, LEASE_MARGIN, Owner};
use crate::journal::FoundJob;

/// Stands for a run of the process before that was not heard of.
pub(super) const NOBODY: Run = Run { session: 0, run: 0, worker: Addr { ip: 0, port: 0 } };

/// A process that continues with jobs hears of their runs within this fraction of a lease: a worker
/// reports each run four times a lease.
const HEARD_PART: u64 = 3;

impl Owner {
    /// The number of its tasks that each worker runs.
    #[must_use]
    pub fn held_by(&self) -> BTreeMap<Addr, usize> {
        let mut all = BTreeMap::new();
        for (_, run) in self.held().filter(|(_, run)| *run != NOBODY) {
            *all.entry(run.worker).or_default() += 1;
        }
        all
    }

    /// The number of the next job.
    pub(crate) fn next_jid(&self) -> u32 {
        self.next_jid
    }

    pub(crate) fn begin_with(&mut self, next_jid: u32) {
        self.next_jid = self.next_jid.max(next_jid);
    }

    /// Continues with a job of the process before. Its finished tasks stay finished. Those that are
    /// never run twice and were granted to a run are held by it, and its worker is asked; if that
    /// stays silent they are unknown.
    pub(crate) fn resume(&mut self, now: Now, found: &FoundJob) {
        let next_jid = core::mem::replace(&mut self.next_jid, found.jid);
        let is_taken = self.submit(now, found.job.clone()).is_some();
        self.next_jid = next_jid.max(found.jid + 1);
        let over = found.over();
        // Monotonic clocks of an earlier start of this host are not comparable: the job's age
        // follows from the wall clock.
        let age_ns = now.unix_ms.saturating_sub(found.unix_ms).saturating_mul(MS);
        let taken_at = Instant(now.instant.0.saturating_sub(age_ns));
        // If no number is written, none of its attempts had a higher one than may begin without it.
        // Another one is noted once it begins.
        let attempt = found.attempts_up_to.unwrap_or(self.config.attempts_noted);
        let Some(job) = self.jobs.get_mut(&found.jid).filter(|_| is_taken) else { return };
        for (tid, item) in (0..).zip(&mut job.items) {
            (item.attempt, item.attempts_before) = (attempt, attempt);
            item.is_spent = attempt == u16::MAX;
            item.trace.taken_at = taken_at;
            if over.contains(&tid) {
                item.at = At::Over;
                job.open -= 1;
                self.open -= 1;
            }
        }
        job.attempts_up_to = attempt;
        job.let_in = job.items.iter().filter(|i| !matches!(i.at, At::Withheld | At::Over)).count();
        // They may still be running, and are reported as over only when none can be.
        let lease_ns = self.config.lease_ns;
        let until = now.instant.after(lease_ns + lease_ns / LEASE_MARGIN);
        for (tid, granted) in found.begun.iter().filter(|(tid, _)| !over.contains(tid)) {
            let name = (found.jid, *tid);
            let (run, until) = match *granted {
                Some((of, run)) => (run, now.instant.after(self.inquire(name, of, run))),
                None => (NOBODY, until),
            };
            if let Some((item, _)) = self.item(name) {
                let was = core::mem::replace(&mut item.at, At::Held(run, until));
                (item.trace.started_at, item.trace.worker) = (now.instant, run.worker);
                self.note_let_in(found.jid, was);
                self.timers.insert((until, name));
            }
        }
        self.let_in(found.jid);
    }

    /// Takes over the jobs of these sessions: runs that they started go on if they are heard of in
    /// time. Nothing is submitted until then: each run is reported a few times a lease.
    pub(crate) fn succeed(&mut self, now: Now, sessions: &[u64]) {
        let own = self.config.session.0;
        self.before = sessions.iter().copied().filter(|uid| *uid != own).collect();
        if !self.before.is_empty() && self.open > 0 {
            self.submit_at = now.instant.after(self.config.lease_ns / HEARD_PART);
        }
    }

    /// The jobs whose limit of attempt numbers was raised since the last call, with the new limit.
    pub(crate) fn take_raised(&mut self) -> Vec<(u32, u16)> {
        core::mem::take(&mut self.raised)
    }

    /// The decisions about tasks that are never run twice since the last call.
    pub(crate) fn take_grants(&mut self) -> Vec<Grant> {
        core::mem::take(&mut self.grants)
    }
}
