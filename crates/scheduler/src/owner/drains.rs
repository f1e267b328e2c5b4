//! Workers that are to end: they take no more tasks, and end when their runs have ended.
//!
//! A worker is asked for its session first, and then told to end: a late or repeated packet ends no
//! process that was started since.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::{Addr, Duration, Instant, MS, SEC, Sink};
use concord_wire::tasks::TaskMessage;

use super::Owner;

/// The time for which a worker is asked, and the interval, in ns.
const ASKED_NS: Duration = 2 * SEC;
const AGAIN_NS: Duration = 50 * MS;

/// The result of draining a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// It takes no more tasks, and has this many.
    Takes(u32),
    /// It does not answer.
    Silent,
}

#[derive(Clone, Copy, Debug)]
struct DrainRequest {
    /// The worker's session, or 0 until it is known.
    session: u64,
    within_ms: Option<u64>,
    next_at: Instant,
    until: Instant,
}

/// All workers that are to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Drains {
    asked: BTreeMap<Addr, DrainRequest>,
    told: VecDeque<(Addr, Drained)>,
}

impl Drains {
    pub(super) fn deadline(&self) -> Instant {
        let times = self.asked.values().map(|asked| asked.next_at.min(asked.until));
        times.min().unwrap_or(Instant::NEVER)
    }
}

impl Owner {
    /// Drains a worker: it takes no more tasks, and ends when its runs have ended, or were killed
    /// after `within_ms`. [`Owner::poll_drained`] returns the result.
    pub fn drain(
        &mut self,
        now: Instant,
        worker: Addr,
        within_ms: Option<u64>,
        sink: &mut impl Sink,
    ) {
        let until = now.after(ASKED_NS);
        self.drains
            .asked
            .insert(worker, DrainRequest { session: 0, within_ms, next_at: now, until });
        self.ask_drains(now, sink);
    }

    /// The next worker that was told to end, or that did not answer.
    pub fn poll_drained(&mut self) -> Option<(Addr, Drained)> {
        self.drains.told.pop_front()
    }

    pub(super) fn ask_drains(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.drains.deadline() > now {
            return;
        }
        let late = |(at, asked): (&Addr, &DrainRequest)| (asked.until <= now).then_some(*at);
        let late: Vec<Addr> = self.drains.asked.iter().filter_map(late).collect();
        for worker in late {
            self.drains.asked.remove(&worker);
            self.drains.told.push_back((worker, Drained::Silent));
        }
        let owner = self.config.addr;
        let mut messages = Vec::new();
        for (worker, asked) in &mut self.drains.asked {
            if asked.next_at <= now {
                asked.next_at = now.after(AGAIN_NS);
                let DrainRequest { session, within_ms, .. } = *asked;
                messages.push((*worker, TaskMessage::Drain { owner, session, within_ms }));
            }
        }
        for (worker, message) in messages {
            self.say(worker, &message, sink);
        }
    }

    pub(super) fn on_draining(
        &mut self,
        now: Instant,
        (worker, session): (Addr, u64),
        tasks: Option<u32>,
        sink: &mut impl Sink,
    ) {
        let Some(asked) = self.drains.asked.get_mut(&worker) else { return };
        if let Some(tasks) = tasks.filter(|_| asked.session == session) {
            self.drains.asked.remove(&worker);
            self.drains.told.push_back((worker, Drained::Takes(tasks)));
        } else if asked.session != session {
            (asked.session, asked.next_at) = (session, now);
            self.ask_drains(now, sink);
        }
    }
}
