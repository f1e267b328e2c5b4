//! Retry timers: queues whose entries all wait equally long, so that the first is always the next.
//!
//! Setting one is a push, and what was answered meanwhile is skipped: no heap, no wheel, a few
//! nanoseconds an operation.

use alloc::collections::VecDeque;

use concord_core::machine::Deadline;
use concord_core::{Duration, Instant, MS};

/// How often a time-out doubles before it stays.
pub const ROUNDS: u8 = 6;
/// How long after [`concord_wire::Status::Order`] a write is tried again, if nothing happened
/// before (trap T22).
pub const ORDER_RETRY_NS: Duration = 2 * MS;
/// The part of a timer that concerns the request itself and no fragment of it.
pub const WHOLE: u32 = u32::MAX;

const LANES: usize = 3;
const QUEUES: usize = LANES * ROUNDS as usize + 1;
const ORDER_QUEUE: usize = QUEUES - 1;

/// Whose round trips: a write's takes every replica, that of all else takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Reads.
    Read = 0,
    /// Numbered writes.
    Write = 1,
    /// Fragments in both directions, which wait for each other on their way.
    Part = 2,
}

/// What to look at when the time has come.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    pub set_at: Instant,
    pub number: u64,
    /// [`WHOLE`], the index of a fragment (upload), or of a block of fragments (download).
    pub part: u32,
    /// The slot's tag when it was set: any other means that it is of no interest any more.
    pub tag: u16,
    /// How many times in a row it was in vain.
    pub round: u8,
    /// Download: how many fragments of the block were missing.
    pub missing: u8,
}

/// Smoothed round trip and its deviation (RFC 6298 §2).
#[derive(Clone, Copy, Debug, Default)]
struct Rtt {
    srtt_ns: Duration,
    var_ns: Duration,
}

impl Rtt {
    fn sample(&mut self, rtt_ns: Duration) {
        if self.srtt_ns == 0 {
            *self = Rtt { srtt_ns: rtt_ns.max(1), var_ns: rtt_ns / 2 };
            return;
        }
        self.var_ns = self.var_ns - self.var_ns / 4 + self.srtt_ns.abs_diff(rtt_ns) / 4;
        self.srtt_ns = (self.srtt_ns - self.srtt_ns / 8 + rtt_ns / 8).max(1);
    }
}

/// All retry timers of a client.
#[derive(Clone, Debug)]
pub struct Timers {
    queues: [VecDeque<Timer>; QUEUES],
    rtt: [Rtt; LANES],
    min_ns: Duration,
    max_ns: Duration,
}

impl Timers {
    /// Time-outs stay between `min_ns` and `max_ns`.
    pub fn new(min_ns: Duration, max_ns: Duration) -> Timers {
        Timers {
            queues: core::array::from_fn(|_| VecDeque::new()),
            rtt: [Rtt::default(); LANES],
            min_ns: min_ns.max(1),
            max_ns: max_ns.max(min_ns).max(1),
        }
    }

    /// A reply took `rtt_ns`.
    pub fn sample(&mut self, lane: Lane, rtt_ns: Duration) {
        self.rtt[lane as usize].sample(rtt_ns);
    }

    /// How long a round waits: srtt + 4 var, doubled each time.
    pub fn timeout_ns(&self, lane: Lane, round: u8) -> Duration {
        let rtt = self.rtt[lane as usize];
        let rto_ns = rtt.srtt_ns.saturating_add(rtt.var_ns.saturating_mul(4));
        (rto_ns.clamp(self.min_ns, self.max_ns) << round.min(ROUNDS - 1)).min(self.max_ns)
    }

    /// Sets a timer for its round.
    pub fn set(&mut self, lane: Lane, timer: Timer) {
        let round = timer.round.min(ROUNDS - 1);
        self.queues[queue_index(lane, round)].push_back(timer);
    }

    /// Sets a timer for a write that was refused for its order.
    pub fn set_order(&mut self, timer: Timer) {
        self.queues[ORDER_QUEUE].push_back(timer);
    }

    /// Forgets what was answered (`is_past`) at the front of a queue, so that queues stay as short as
    /// what is unanswered.
    pub fn prune(&mut self, lane: Lane, round: u8, is_past: impl Fn(&Timer) -> bool) {
        let queue = &mut self.queues[queue_index(lane, round.min(ROUNDS - 1))];
        while queue.front().is_some_and(&is_past) {
            queue.pop_front();
        }
    }

    /// The next timer whose time has come and is not past. Ends: what is set meanwhile is not due.
    pub fn pop_due(&mut self, now: Instant, is_past: impl Fn(&Timer) -> bool) -> Option<Timer> {
        for index in 0..QUEUES {
            let wait_ns = self.queue_timeout_ns(index);
            let queue = &mut self.queues[index];
            while let Some(timer) = queue.front().copied() {
                let past = is_past(&timer);
                if !past && timer.set_at.after(wait_ns) > now {
                    break;
                }
                queue.pop_front();
                if !past {
                    return Some(timer);
                }
            }
        }
        None
    }

    /// When the first is due.
    pub fn deadline(&self) -> Deadline {
        let mut first = Deadline::NONE;
        for (index, queue) in self.queues.iter().enumerate() {
            if let Some(timer) = queue.front() {
                let at = timer.set_at.after(self.queue_timeout_ns(index));
                first = first.min(Deadline { at, reason: "retry" });
            }
        }
        first
    }

    fn queue_timeout_ns(&self, index: usize) -> Duration {
        if index == ORDER_QUEUE {
            return ORDER_RETRY_NS;
        }
        let lane = match index / ROUNDS as usize {
            0 => Lane::Read,
            1 => Lane::Write,
            _ => Lane::Part,
        };
        self.timeout_ns(lane, (index % ROUNDS as usize) as u8)
    }
}

fn queue_index(lane: Lane, round: u8) -> usize {
    lane as usize * ROUNDS as usize + round as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_round_trips_within_its_bounds_and_doubles() {
        let mut t = Timers::new(20 * MS, 500 * MS);
        assert_eq!(t.timeout_ns(Lane::Read, 0), 20 * MS);
        for _ in 0..100 {
            t.sample(Lane::Write, 50 * MS);
        }
        let rto_ns = t.timeout_ns(Lane::Write, 0);
        assert!((50 * MS..60 * MS).contains(&rto_ns), "{rto_ns}");
        assert_eq!(t.timeout_ns(Lane::Write, 1), 2 * rto_ns);
        assert_eq!(t.timeout_ns(Lane::Write, 200), 500 * MS);
        assert_eq!(t.timeout_ns(Lane::Read, 2), 80 * MS);
    }
}
