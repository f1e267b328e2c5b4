//! Retry timers: queues whose entries all wait equally long, so that the first is always the next.
//!
//! Setting one is a push, and what was answered meanwhile is skipped: no heap, no wheel, a few
//! nanoseconds an operation.

use alloc::collections::VecDeque;

use concord_core::machine::Deadline;
use concord_core::{Duration, Instant, MS};

/// The number of times that a time-out doubles before it stays the same.
pub const ROUNDS: u8 = 6;
/// A time-out doubles up to so much, and up to twice the first one where that is more: who takes
/// over from a dead switch or replica is found soon, and a rack that is slow is not asked more
/// often.
pub const BACKOFF_NS_MAX: Duration = 160 * MS;
/// The time after which a write that was refused with [`concord_wire::Status::Order`] is sent
/// again, if nothing else triggers it (trap T22).
pub const ORDER_RETRY_NS: Duration = 2 * MS;
/// The part of a timer that concerns the request itself and no fragment of it.
pub const WHOLE: u32 = u32::MAX;

const LANES: usize = 3;
const QUEUES: usize = LANES * ROUNDS as usize + 1;
const ORDER_QUEUE: usize = QUEUES - 1;

/// A class of round-trip times: writes pass every replica, all other packets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Reads.
    Read = 0,
    /// Numbered writes.
    Write = 1,
    /// Fragments in both directions, which wait for each other on their way.
    Part = 2,
}

/// A timer and its subject.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    pub set_at: Instant,
    pub number: u64,
    /// [`WHOLE`], the index of a fragment (upload), or of a block of fragments (download).
    pub part: u32,
    /// The slot's tag when it was set: any other means that it is of no interest any more.
    pub tag: u16,
    /// The number of successive expiries without an answer.
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

    /// The duration of a round: srtt + 4 var, doubled each time, up to [`BACKOFF_NS_MAX`].
    pub fn timeout_ns(&self, lane: Lane, round: u8) -> Duration {
        let rtt = self.rtt[lane as usize];
        let rto_ns = rtt.srtt_ns.saturating_add(rtt.var_ns.saturating_mul(4));
        let first_ns = rto_ns.clamp(self.min_ns, self.max_ns);
        let most_ns = BACKOFF_NS_MAX.max(2 * first_ns).min(self.max_ns);
        (first_ns << round.min(ROUNDS - 1)).min(most_ns)
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

    /// Forgets what was answered (`is_past`) at the front of a queue, so that queues stay as short
    /// as what is unanswered.
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
    use concord_core::SEC;

    use super::*;

    /// The timeout follows the round trips within its bounds and doubles.
    #[test]
    fn timeout_follows_round_trips() {
        let mut t = Timers::new(20 * MS, 500 * MS);
        assert_eq!(t.timeout_ns(Lane::Read, 0), 20 * MS);
        for _ in 0..100 {
            t.sample(Lane::Write, 50 * MS);
        }
        let rto_ns = t.timeout_ns(Lane::Write, 0);
        assert!((50 * MS..60 * MS).contains(&rto_ns), "{rto_ns}");
        assert_eq!(t.timeout_ns(Lane::Write, 1), 2 * rto_ns);
        assert_eq!(t.timeout_ns(Lane::Write, 200), BACKOFF_NS_MAX);
        assert_eq!(t.timeout_ns(Lane::Read, 2), 80 * MS);
    }
    fn timer(set_ms: u64, number: u64, round: u8) -> Timer {
        let (set_at, part) = (Instant(set_ms * MS), WHOLE);
        Timer { set_at, number, part, tag: 0, round, missing: 0 }
    }

    fn none_is_past(_: &Timer) -> bool {
        false
    }

    #[test]
    fn the_round_trip_is_smoothed_as_rfc_6298_says() {
        let mut t = Timers::new(1, 1_000 * MS);
        t.sample(Lane::Part, 80 * MS);
        assert_eq!(t.timeout_ns(Lane::Part, 0), 240 * MS, "R + 4 R/2");
        t.sample(Lane::Part, 160 * MS);
        // RTTVAR = 3/4 40 + 1/4 80 = 50, SRTT = 7/8 80 + 1/8 160 = 90.
        assert_eq!(t.timeout_ns(Lane::Part, 0), 290 * MS);
        assert_eq!(t.timeout_ns(Lane::Read, 0), 1, "each lane has its own");
        t.sample(Lane::Read, 0);
        assert_eq!(t.timeout_ns(Lane::Read, 0), 1, "no round trip takes no time at all");
    }

    /// Timers come when their round is over whatever the lane and once.
    #[test]
    fn timers_fire_once_after_their_round() {
        let mut t = Timers::new(20 * MS, 500 * MS);
        for (number, lane) in [(1, Lane::Read), (2, Lane::Write), (3, Lane::Part)] {
            t.set(lane, timer(10, number, 0));
            t.set(lane, timer(10, 10 + number, 1));
        }
        t.set_order(timer(10, 99, 0));
        let due = |t: &mut Timers, ms: u64| -> VecDeque<u64> {
            let pop = || t.pop_due(Instant(ms * MS), none_is_past).map(|timer| timer.number);
            core::iter::from_fn(pop).collect()
        };
        assert_eq!(t.deadline().at, Instant(12 * MS), "one that was refused for its order");
        assert_eq!(due(&mut t, 11), []);
        assert_eq!(due(&mut t, 12), [99]);
        assert_eq!(t.deadline().at, Instant(30 * MS));
        assert_eq!(due(&mut t, 29), []);
        assert_eq!(due(&mut t, 30), [1, 2, 3]);
        assert_eq!(t.deadline().at, Instant(50 * MS));
        assert_eq!(due(&mut t, 50), [11, 12, 13]);
        assert_eq!((due(&mut t, 9_999), t.deadline()), (VecDeque::new(), Deadline::NONE));
    }

    #[test]
    fn each_round_of_each_lane_waits_as_long_as_that_lane_says() {
        for (lane, rtt_ns) in [(Lane::Read, MS), (Lane::Write, 4 * MS), (Lane::Part, 9 * MS)] {
            for round in 0..ROUNDS {
                let mut t = Timers::new(1, SEC);
                t.sample(Lane::Read, MS);
                t.sample(Lane::Write, 4 * MS);
                t.sample(Lane::Part, 9 * MS);
                t.set(lane, timer(10, 1, round));
                let wait_ns = ((3 * rtt_ns) << round).min(BACKOFF_NS_MAX);
                assert_eq!(t.deadline().at, Instant(10 * MS + wait_ns), "{lane:?} {round}");
            }
        }
    }

    #[test]
    fn what_was_answered_is_skipped_and_pruned() {
        let mut t = Timers::new(20 * MS, 500 * MS);
        (1..=4).for_each(|number| t.set(Lane::Write, timer(number, number, 3)));
        t.prune(Lane::Read, 3, |_| true);
        t.prune(Lane::Write, 2, |_| true);
        assert_eq!(t.deadline().at, Instant(161 * MS));
        t.prune(Lane::Write, 3, |timer| timer.number == 1);
        assert_eq!(t.deadline().at, Instant(162 * MS));
        let is_past = |timer: &Timer| timer.number < 4;
        assert_eq!(t.pop_due(Instant(162 * MS), is_past).map(|t| t.number), None);
        assert_eq!(t.pop_due(Instant(164 * MS), is_past).map(|t| t.number), Some(4));
    }
}
