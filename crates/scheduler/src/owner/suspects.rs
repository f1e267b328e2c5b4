//! Suspects: tasks whose worker went silent while it ran them. One of them may have caused that, as
//! a command that kills its parent or takes all memory does, and would end one worker after the
//! other.
//!
//! A suspect that was the only one on its worker when a second worker went silent is given up. Few
//! suspects of a line are in flight at a time, so that one of them is soon alone: one at first,
//! twice as many after each that ended or ran for a while, and one again after another worker went
//! silent. Those that were not alone by then run alone the next time. So if a worker of many
//! executors dies, its other tasks are not given up together with the one that caused it.

use alloc::collections::{BTreeSet, VecDeque};

use concord_core::{Duration, Instant, SEC};
use concord_wire::tasks::Run;

use super::lines::{Line, Place};
use super::resume::NOBODY;
use super::{At, Name, Owner};

/// The time in ns that a suspect runs before others stop waiting for it.
const TRIAL_NS: Duration = SEC;
/// The largest number of suspects of a line in flight.
const WINDOW_MAX: usize = 1 << 12;
/// The number of workers that are remembered after they went silent with suspects.
const SILENT_MAX: usize = 64;

/// The state of a task as a suspect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Suspicion {
    /// The worker that went silent with it: the session of its process.
    of: Option<u64>,
    /// Its line, if it is one of the few suspects in flight.
    trial: Option<Place>,
    /// Whether a second worker went silent with it and with others, so that it is to run alone.
    is_doubtful: bool,
    /// Whether it ran for so long that the others need not wait for it.
    is_free: bool,
}

impl Suspicion {
    /// Whether it is a suspect that must wait for others.
    pub(super) fn waits(self) -> bool {
        self.of.is_some() && self.trial.is_none()
    }
}

/// The suspects of a line.
#[derive(Clone, Debug)]
pub(super) struct Suspects {
    waiting: VecDeque<Name>,
    on_trial: BTreeSet<Name>,
    /// The suspect that runs alone, if there is one.
    alone: Option<Name>,
    window: usize,
}

impl Suspects {
    fn remove(&mut self, name: Name) {
        self.on_trial.remove(&name);
        self.alone.take_if(|own| *own == name);
    }
}

impl Default for Suspects {
    fn default() -> Suspects {
        Suspects { waiting: VecDeque::new(), on_trial: BTreeSet::new(), alone: None, window: 1 }
    }
}

impl Owner {
    /// Notes a call of the owner. If a timer is long overdue, the owner itself was stopped or busy,
    /// and expired leases say nothing about workers.
    pub(super) fn note_call(&mut self, now: Instant) {
        let late_ns = self.config.lease_ns / 4;
        if self.timers.first().is_some_and(|(at, _)| at.after(late_ns) < now) {
            self.late_until = now.after(late_ns);
        }
    }

    /// A worker went silent with a task. Returns whether the task is given up.
    pub(super) fn is_given_up(&mut self, now: Instant, name: Name, run: Run) -> bool {
        // Silence after this owner's own start says nothing about a worker.
        if now < self.late_until || run == NOBODY {
            return false;
        }
        let Some((item, _)) = self.item(name) else { return false };
        let (was, place) = (item.suspicion, item.place);
        item.suspicion.of = Some(run.session);
        let is_second = was.of.is_some_and(|session| session != run.session);
        let is_alone = is_second && self.suspects_beside(now, name, run) == 0;
        if let Some(line) = self.lines.get_mut(&place) {
            line.suspects.window = 1;
        }
        self.stand_down(name, false);
        if let Some((item, _)) = self.item(name) {
            item.suspicion.is_doubtful |= is_second && !is_alone;
        }
        is_alone
    }

    /// The number of suspects on a worker that went silent, without the first one that was noted.
    fn suspects_beside(&mut self, now: Instant, name: Name, run: Run) -> usize {
        let known = self.silent.get(&run.session).copied();
        if let Some((_, count)) = known.filter(|(at, _)| at.after(self.config.lease_ns) > now) {
            return count;
        }
        let is_other = |((jid, tid), held): &(Name, Run)| {
            let item = self.jobs.get(jid).and_then(|job| job.items.get(*tid as usize));
            let is_suspect = item.is_some_and(|item| item.suspicion.of.is_some());
            (*jid, *tid) != name && held.session == run.session && is_suspect
        };
        let count = self.held().filter(is_other).count();
        if self.silent.len() >= SILENT_MAX {
            let oldest = self.silent.iter().min_by_key(|(_, (at, _))| *at).map(|(own, _)| *own);
            oldest.map(|session| self.silent.remove(&session));
        }
        self.silent.insert(run.session, (now, count));
        count
    }

    /// Whether a ready task may be submitted: of suspects, few at a time.
    pub(super) fn may_go(&mut self, name: Name) -> bool {
        let Some((item, _)) = self.item(name) else { return false };
        let (suspicion, place) = (item.suspicion, item.place);
        if suspicion.of.is_none() || suspicion.trial == Some(place) {
            return true;
        }
        self.stand_down(name, false);
        let line = self.lines.entry(place).or_insert_with(Line::new);
        line.suspects.waiting.push_back(name);
        self.try_next(place);
        // It is put into its line when it may go.
        false
    }

    /// Lets the next suspects of a line go, as many as permitted.
    fn try_next(&mut self, place: Place) {
        while let Some(line) = self.lines.get_mut(&place)
            && line.suspects.on_trial.len() < line.suspects.window
            && line.suspects.alone.is_none()
            && let Some(name) = line.suspects.waiting.pop_front()
        {
            let is_first = line.suspects.on_trial.is_empty();
            let Some((item, _)) = self.item(name) else { continue };
            if item.at != At::Ready || item.place != place || !item.suspicion.waits() {
                continue;
            }
            let is_doubtful = item.suspicion.is_doubtful;
            if is_doubtful && !is_first {
                if let Some(line) = self.lines.get_mut(&place) {
                    line.suspects.waiting.push_front(name);
                }
                return;
            }
            item.suspicion = Suspicion { trial: Some(place), is_free: false, ..item.suspicion };
            if let Some(line) = self.lines.get_mut(&place) {
                line.suspects.alone = is_doubtful.then_some(name);
                line.suspects.on_trial.insert(name);
                line.ready.push_front(name);
            }
        }
    }

    /// Lets the others of its line go on without it. `is_well`: its worker lives.
    fn stand_down(&mut self, name: Name, is_well: bool) {
        let Some((item, _)) = self.item(name) else { return };
        let Some(place) = item.suspicion.trial.take() else { return };
        if let Some(line) = self.lines.get_mut(&place) {
            line.suspects.remove(name);
            if is_well {
                line.suspects.window = (line.suspects.window * 2).min(WINDOW_MAX);
            }
        }
        self.try_next(place);
    }

    /// Notes that a run was heard of. After a while the others need not wait for it.
    pub(super) fn is_on_trial_still(&mut self, now: Instant, name: Name) {
        let Some((item, _)) = self.item(name) else { return };
        let Suspicion { trial: Some(place), is_free: false, .. } = item.suspicion else { return };
        if now < item.trace.started_at.after(TRIAL_NS) {
            return;
        }
        item.suspicion.is_free = true;
        if let Some(line) = self.lines.get_mut(&place) {
            line.suspects.remove(name);
            line.suspects.window = (line.suspects.window * 2).min(WINDOW_MAX);
        }
        self.try_next(place);
    }

    /// Notes that a task ended, or failed and is to be tried again: its worker lives.
    pub(super) fn clear(&mut self, name: Name) {
        self.stand_down(name, true);
        if let Some((item, _)) = self.item(name) {
            item.suspicion = Suspicion::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::{Job, OwnerConfig, TaskSpec};
    use concord_core::{Addr, MS, Now, SessionId};

    /// A run of the process before that nobody tells of is not a worker that went silent.
    #[test]
    fn bug_21_82_an_owner_that_starts_again_is_no_dead_worker() {
        let own = Addr { ip: 1, port: 1 };
        let mut owner = Owner::new(OwnerConfig::new(SessionId(1), own, own));
        let job = Job { tasks: alloc::vec![TaskSpec::default()], ..Job::default() };
        owner.submit(Now::default(), job);
        let (name, at) = ((1, 0), Instant(0).after(MS));
        let run = |session| Run { session, run: 1, worker: own };
        assert!(!owner.is_given_up(at, name, run(7)));
        assert!(!owner.is_given_up(at, name, NOBODY), "it is the second one");
        assert!(owner.is_given_up(at, name, run(8)));
    }
}
