//! Follower load awareness (FLAIR §4.4.2): a leader's knowledge of the queues at its group's hosts,
//! and the weights by which the switch shares reads among them.
//!
//! The paper computes weights in proportion to the queues' lengths once a second. Here each second
//! moves the weights by a little. All clients of a group end up waiting in the queue of the slowest
//! host, even if it is slower by only 1%. So the lengths show which host has too many reads, and
//! not by how many: weights in proportion to them would send nearly all reads elsewhere, and back
//! in the next second.

use concord_core::{Duration, Instant};
use concord_wire::flair::{REPLICAS_MAX, Weights};

/// The weight of a host whose share is even.
const EVEN: i64 = 8_192;
/// The smallest weight: a host that gets hardly any reads does not show how many it could take.
const LEAST: i64 = EVEN / 4;
const MOST: i64 = 2 * EVEN;
/// The divisor of the gain: a host without a queue, beside others with long ones, gains this
/// fraction of its weight.
const GAIN: i64 = 64;
/// The divisor of the decay: each time, a weight moves this fraction of the way back to an even
/// share.
const BACK: i64 = 256;
/// Queues of fewer packets do not move reads.
const SHORT: i64 = 16;
/// Lengths are counted in units of a packet divided by this.
const PARTS: i64 = 16;
/// The smallest difference that changes something at the switch: one of its 256 rows.
const ROW: i64 = EVEN / 256;

/// The mean of the lengths noted since it was last taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Average {
    sum: u64,
    count: u64,
}

impl Average {
    pub(crate) fn note(&mut self, value: u32) {
        self.sum = self.sum.saturating_add(value.into());
        self.count += 1;
    }

    /// In [`PARTS`]; `None` if nothing was noted.
    fn take(&mut self) -> Option<i64> {
        let Average { sum, count } = core::mem::take(self);
        let in_parts = sum.saturating_mul(PARTS as u64).checked_div(count)?;
        Some(i64::try_from(in_parts).unwrap_or(i64::MAX).min(u32::MAX.into()))
    }
}

/// The queue at this replica's host, for reports to the leader.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    since_told: Average,
    told: u32,
}

impl Queue {
    /// Notes the number of packets that wait after a batch.
    pub(crate) fn note(&mut self, packets: u32) {
        self.since_told.note(packets);
    }

    /// The average number of waiting packets since the last call, or the last result if nothing was
    /// noted.
    pub(crate) fn tell(&mut self) -> u32 {
        if let Some(parts) = self.since_told.take() {
            self.told = (parts / PARTS) as u32;
        }
        self.told
    }
}

/// The group's queues, by the bits of a session, and the weights.
#[derive(Clone, Debug)]
pub(crate) struct Balance {
    queues: [Average; REPLICAS_MAX],
    weights: [i64; REPLICAS_MAX],
    /// The weights that the switch has.
    told: [i64; REPLICAS_MAX],
    every_ns: Duration,
    next_at: Instant,
}

impl Balance {
    /// Even shares. From `now` on the weights are computed every `every_ns`.
    pub(crate) fn new(now: Instant, every_ns: Duration) -> Balance {
        let (queues, even) = ([Average::default(); REPLICAS_MAX], [EVEN; REPLICAS_MAX]);
        Balance { queues, weights: even, told: even, every_ns, next_at: now.after(every_ns) }
    }

    /// So many packets wait at the host of `bit`.
    pub(crate) fn note(&mut self, bit: usize, packets: u32) {
        if let Some(queue) = self.queues.get_mut(bit) {
            queue.note(packets);
        }
    }

    /// New weights for the switch, if they are due and differ from those that it has.
    pub(crate) fn weigh(&mut self, now: Instant) -> Option<Weights> {
        if now < self.next_at {
            return None;
        }
        self.next_at = now.after(self.every_ns);
        let lengths = self.queues.each_mut().map(Average::take);
        let heard = lengths.iter().flatten().count() as i64;
        let mean = lengths.iter().flatten().sum::<i64>().checked_div(heard)?;
        for (weight, length) in self.weights.iter_mut().zip(lengths) {
            let Some(length) = length else { continue };
            // From -2 for the longest queue to 1 for an empty one.
            let whole = mean + SHORT * PARTS;
            let lacks = (mean - length).clamp(-2 * whole, whole);
            *weight += *weight * lacks / (GAIN * whole) + (EVEN - *weight) / BACK;
            *weight = (*weight).clamp(LEAST, MOST);
        }
        let has_moved = |(weight, told): (&i64, &i64)| (weight - told).abs() >= ROW;
        if !self.weights.iter().zip(&self.told).any(has_moved) {
            return None;
        }
        self.told = self.weights;
        Some(self.weights.map(|weight| u16::try_from(weight).unwrap_or(u16::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::WEIGH_NS;

    const S: u64 = WEIGH_NS;

    /// Three hosts, whose queues are as `queue` says of the weights: what they are after so many
    /// seconds.
    fn after(seconds: u64, queue: impl Fn([i64; 3]) -> [u32; 3]) -> [i64; 3] {
        let mut balance = Balance::new(Instant(0), S);
        let now = |b: &Balance| [0, 1, 2].map(|bit: usize| b.weights[bit]);
        for second in 1..=seconds {
            let lengths = queue(now(&balance));
            for (bit, length) in lengths.into_iter().enumerate() {
                balance.note(bit, length);
            }
            balance.weigh(Instant(second * S));
        }
        now(&balance)
    }

    /// Nine hundred clients wait at whichever of three hosts is the busiest for its speed.
    fn at_the_slowest(weights: [i64; 3], speeds: [i64; 3]) -> [u32; 3] {
        let busy = [0, 1, 2].map(|bit: usize| weights[bit] * 1_000 / speeds[bit]);
        let most = busy.iter().max().copied().unwrap_or_default();
        let near = busy.map(|busy| busy * 100 > most * 99);
        let count = near.iter().filter(|near| **near).count() as u32;
        near.map(|near| if near { 900 / count } else { 0 })
    }

    /// The slower host gets as much less as it is slower and stays there.
    #[test]
    fn section_4_4_2_slower_host_gets_proportionally_less() {
        for seconds in 10..40 {
            let [a, b, slow] = after(seconds, |weights| at_the_slowest(weights, [100, 100, 90]));
            let percent = 200 * slow / (a + b);
            assert!((86..=94).contains(&percent), "{seconds} s: {percent}");
        }
    }

    /// Weights stay even where hosts are alike or hardly anybody waits.
    #[test]
    fn weights_stay_even_without_queues() {
        assert_eq!(after(1_000, |_| [300; 3]), [EVEN; 3]);
        let [a, _, c] = after(1_000, |_| [0, 0, 1]);
        assert!((EVEN..EVEN + EVEN / 8).contains(&a) && c > EVEN - EVEN / 4, "{a} {c}");
    }

    #[test]
    fn no_share_is_lost_for_good() {
        let silent = |_| [0, 0, 1_000_000];
        let [most, _, least] = after(1_000, silent);
        assert!((LEAST..EVEN).contains(&least) && (EVEN + 1..=MOST).contains(&most));
        let mut balance = Balance::new(Instant(0), S);
        (balance.weights[0], balance.weights[1]) = (LEAST, MOST);
        for second in 1..2_000 {
            (0..3).for_each(|bit| balance.note(bit, 0));
            balance.weigh(Instant(second * S));
        }
        let back = balance.weights[0].max(balance.weights[1]) - balance.weights[2];
        assert!(back.abs() <= BACK, "what was learnt is forgotten: {:?}", balance.weights);
    }

    /// The switch is told once a second and only what it does not know.
    #[test]
    fn switch_is_told_changes_once_a_second() {
        let mut balance = Balance::new(Instant(0), S);
        balance.note(1, 900);
        balance.note(0, 0);
        assert_eq!(balance.weigh(Instant(S - 1)), None);
        let weights = balance.weigh(Instant(S)).unwrap();
        assert!(weights[1] < weights[2] && weights[0] > weights[2], "{weights:?}");
        assert_eq!(i64::from(weights[2]), EVEN, "of whom nothing was heard");
        assert_eq!(balance.weigh(Instant(2 * S)), None, "nothing was heard");
        balance.note(0, 5);
        balance.note(1, 5);
        assert_eq!(balance.weigh(Instant(3 * S)), None, "no row would be another");
    }

    /// A queue is told by its mean and again where nothing was noted.
    #[test]
    fn queue_is_reported_by_its_mean() {
        let mut queue = Queue::default();
        assert_eq!(queue.tell(), 0);
        [3, 4, 8].into_iter().for_each(|packets| queue.note(packets));
        assert_eq!((queue.tell(), queue.tell()), (5, 5));
        queue.note(0);
        assert_eq!(queue.tell(), 0);
        (0..3).for_each(|_| queue.note(u32::MAX));
        assert_eq!(queue.tell(), u32::MAX / 16);
    }
}
