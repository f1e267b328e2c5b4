//! Questions about tasks that are never run twice and were granted to a run by the process before.
//!
//! The journal has each grant with its run before the worker hears of it, so that a process that
//! continues with it knows the one run of a task that may have begun. It asks the worker, which
//! knows which runs it began: what did not begin is begun again, and what may have ended without an
//! outcome is unknown. Only if the worker is gone is a task unknown that perhaps never began.

use alloc::vec::Vec;

use concord_core::{Duration, Instant, Sink};
use concord_wire::tasks::{Attempt, Run, TaskMessage};

use super::{At, Name, Owner};
use crate::outcome::Outcome;

/// The workers are asked this many times a lease.
const INQUIRIES: u64 = 16;
/// They have this many leases to answer.
const LEASES: u64 = 2;

impl Owner {
    /// The process before granted a task to this run, which is to be heard of within the time that
    /// is returned, in ns.
    pub(super) fn inquire(&mut self, name: Name, of: Attempt, run: Run) -> Duration {
        self.inquiries.open.insert(name, (of, run));
        self.config.lease_ns * LEASES
    }

    /// The time of a run that was asked for is over. If this owner itself was stopped meanwhile,
    /// its worker has as much time again.
    pub(super) fn is_asked_longer(&mut self, now: Instant, name: Name) -> bool {
        let is_asked = self.inquiries.open.contains_key(&name);
        if !is_asked || now >= self.late_until {
            return false;
        }
        let until = now.after(self.config.lease_ns * LEASES);
        if let Some((item, _)) = self.item(name)
            && let At::Held(run, _) = item.at
        {
            item.at = At::Held(run, until);
            self.timers.insert((until, name));
        }
        true
    }

    /// Asks the workers of runs that were not heard of.
    pub(super) fn ask_inquiries(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.inquiries.deadline() > now {
            return;
        }
        self.inquiries.next_at = now.after(self.config.lease_ns / INQUIRIES);
        let owner = self.config.addr;
        let open: Vec<(Attempt, Run)> = self.inquiries.open.values().copied().collect();
        for (of, run) in open {
            self.say(run.worker, &TaskMessage::Inquire { of, run, owner }, sink);
        }
    }

    /// Whether this run holds its task, so that also one of an earlier process goes on.
    pub(super) fn is_held_by(&self, of: Attempt, run: Run) -> bool {
        let item = self.jobs.get(&of.jid).and_then(|job| job.items.get(of.tid as usize));
        item.is_some_and(|item| matches!(item.at, At::Held(holder, _) if holder == run))
    }

    /// A run may have begun, and its worker knows no outcome.
    pub(super) fn on_gone(&mut self, now: Instant, of: Attempt, run: Run) {
        let name = (of.jid, of.tid);
        if self.inquiries.open.get(&name) == Some(&(of, run)) && self.is_held_by(of, run) {
            self.end(now, name, Outcome::Unknown, 0);
        }
    }
}
