//! `event_queue [EVENTS]`: the event queue beside a binary heap in the hold model (take an event,
//! schedule another), with the sizes and delays of network experiments.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Instant;

use concord_core::Rng;
use concord_sim::engine::{EventQueue, NS, Time};

/// As large as an event that carries a packet.
type Event = [u32; 9];

/// Smallest time, then smallest number, first.
struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// What a hop takes: an idle port, one with up to 16 packets, and now and then a timer.
fn delay(rng: &mut Rng) -> u64 {
    match rng.below(64) {
        0 => 500_000 * NS,
        n if n < 32 => 320 * NS,
        _ => (320 + 120 * rng.below(16)) * NS + rng.below(120 * NS),
    }
}

fn event_queue(waiting: u64, events: u64) -> u64 {
    let mut rng = Rng::new(1);
    let mut queue = EventQueue::new();
    for n in 0..waiting {
        queue.schedule(Time(delay(&mut rng)), [n as u32; 9]);
    }
    let mut check = 0;
    for _ in 0..events {
        let Some((now, event)) = queue.next() else { break };
        check ^= now.0.wrapping_mul(u64::from(event[8]) + 1);
        queue.schedule(now.after(delay(&mut rng)), event);
    }
    check
}

fn binary_heap(waiting: u64, events: u64) -> u64 {
    let mut rng = Rng::new(1);
    let mut heap = BinaryHeap::new();
    for number in 0..waiting {
        heap.push(Entry { at: delay(&mut rng), number, event: [number as u32; 9] });
    }
    let mut check = 0;
    for number in waiting..waiting + events {
        let Some(Entry { at, event, .. }) = heap.pop() else { break };
        check ^= at.wrapping_mul(u64::from(event[8]) + 1);
        heap.push(Entry { at: at + delay(&mut rng), number, event });
    }
    check
}

fn best(events: u64, run: impl Fn() -> u64) -> (f64, u64) {
    let mut best = f64::INFINITY;
    let mut check = 0;
    for _ in 0..3 {
        let began = Instant::now();
        check = run();
        best = best.min(began.elapsed().as_secs_f64() * 1e9 / events as f64);
    }
    (best, check)
}

fn main() {
    let events = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(3_000_000);
    println!("waiting   event queue   binary heap   (ns an event)");
    for waiting in [100, 1_000, 10_000, 100_000, 1_000_000] {
        let (wheels, a) = best(events, || event_queue(waiting, events));
        let (heap, b) = best(events, || binary_heap(waiting, events));
        assert_eq!(a, b, "the two differ in order");
        println!("{waiting:>7} {wheels:>13.1} {heap:>13.1}");
    }
}
