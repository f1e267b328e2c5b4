//! An adversary against Theorem 3.1 (trap H1): it chooses the phases, paths and ends of paced
//! messages, and searches for the longest queue at the last switch.
//!
//! The network is a tree. Messages from K ports arrive at the last port, and at each of those
//! messages from K further ones; one of the messages of a port continues, and the others leave for
//! other receivers. Each message has a sender of its own, which sends packets of one length, one in
//! each cycle of K transmission times, beginning at a time and with a number of packets that the
//! adversary chooses. There are no propagation delays, no control packets, and no clock drift: none
//! of these helps a message. The K subtrees of the last port behave alike, so that only one of them
//! is searched.

use concord_core::Rng;

use crate::engine::NS;

/// The transmission time of a packet, in ps: 1,500 bytes at 100 Gb/s.
pub const PACKET_PS: u64 = 120 * NS;
/// The number of cycles within which messages begin.
const CYCLES: u64 = 6;
/// The maximum number of packets of a message.
const COUNT_MAX: u64 = 6;

/// One message of the adversary: packets a cycle apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paced {
    /// When its first packet is sent, in ps.
    pub first_ps: u64,
    /// The number of packets.
    pub count: u64,
}

/// The result of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worst {
    /// The maximum number of packets that waited at the last port, without the one that was being
    /// sent.
    pub waiting: u64,
    /// The number of schedules tried.
    pub tried: u64,
    /// The messages of each of the K subtrees: K^(hops-1), those of one port together, and among
    /// them the one that continues first.
    pub messages: Vec<Paced>,
}

/// Searches for the longest queue at the last of `hops` switches with `slots` virtual links: random
/// changes of a schedule, of which those are kept that are not worse, from `begins` random initial
/// schedules.
#[must_use]
pub fn worst_queue(hops: u32, slots: u64, (begins, changes): (u64, u64), seed: u64) -> Worst {
    let mut rng = Rng::new(seed);
    let cycle_ps = slots * PACKET_PS;
    let count = slots.pow(hops - 1) as usize;
    let draw = |rng: &mut Rng| Paced {
        first_ps: rng.below(CYCLES * cycle_ps / QUANTUM_PS) * QUANTUM_PS,
        count: rng.between(1, COUNT_MAX),
    };
    let mut worst = Worst { waiting: 0, tried: 0, messages: Vec::new() };
    let mut worst_ps = 0;
    for _ in 0..begins {
        let mut own: Vec<Paced> = (0..count).map(|_| draw(&mut rng)).collect();
        let mut own_ps = backlog_ps(&own, hops, slots);
        for _ in 0..changes {
            let mut next = own.clone();
            for _ in 0..rng.between(1, 3) {
                change(&mut rng, &mut next, slots, &draw);
            }
            worst.tried += 1;
            let next_ps = backlog_ps(&next, hops, slots);
            if next_ps >= own_ps {
                (own, own_ps) = (next, next_ps);
            }
        }
        if own_ps > worst_ps {
            worst_ps = own_ps;
            worst.messages = own;
        }
    }
    worst.waiting = worst_ps.div_ceil(PACKET_PS).saturating_sub(1);
    worst
}

/// Changes a message, or the messages of a port together.
fn change(rng: &mut Rng, all: &mut [Paced], slots: u64, draw: &impl Fn(&mut Rng) -> Paced) {
    let places = all.len() as u64;
    let place = rng.below(places) as usize;
    let other = all[rng.below(places) as usize];
    let of_port = |place: usize| {
        let first = place - place % slots as usize;
        first..(first + slots as usize).min(places as usize)
    };
    let port = of_port(place);
    match rng.below(8) {
        0 => all[place] = draw(rng),
        1 => all[place].count = rng.between(1, COUNT_MAX),
        2 => all[place] = other,
        3 => {
            let later_ps = rng.below(4 * slots) * QUANTUM_PS;
            all[place].first_ps = (all[place].first_ps + later_ps).saturating_sub(later_ps / 2);
        }
        4 => {
            let (later_ps, earlier_ps) = (rng.below(4 * slots), rng.below(4 * slots));
            for one in &mut all[port] {
                let first_ps = one.first_ps + later_ps * QUANTUM_PS;
                one.first_ps = first_ps.saturating_sub(earlier_ps * QUANTUM_PS);
            }
        }
        5 => {
            let from = of_port(rng.below(places) as usize);
            all.copy_within(from, port.start);
        }
        // The others of a port end when a packet of the continuing message arrives.
        6 => {
            let Paced { first_ps, count } = all[port.start];
            let at_ps = first_ps + rng.below(count) * slots * PACKET_PS;
            all[port][1..].fill(Paced { first_ps: at_ps, count: 1 });
        }
        _ => {
            let at_ps = other.first_ps;
            for one in &mut all[port] {
                one.first_ps = at_ps;
            }
        }
    }
}

/// Phases are multiples of this part of a packet's transmission time.
const QUANTUM_PS: u64 = PACKET_PS / 4;

/// The number of ports that a message passes below the last one.
fn levels(place: usize, hops: u32, slots: u64) -> u64 {
    let mut place = place as u64;
    let mut levels = 1;
    while levels < u64::from(hops) && place.is_multiple_of(slots) {
        place /= slots;
        levels += 1;
    }
    levels
}

/// The times at which the packets of a message are sent, in ps. The packets of a continuing message
/// are a few ps later than those of others, so that they come after these.
#[must_use]
pub fn sent_ps(messages: &[Paced], place: usize, hops: u32, slots: u64) -> Vec<u64> {
    let Paced { first_ps, count } = messages[place];
    let late = levels(place, hops, slots);
    (0..count).map(|n| first_ps + n * slots * PACKET_PS + late).collect()
}

/// The maximum backlog of the last port, with the packet that is being sent, as transmission time
/// in ps.
fn backlog_ps(messages: &[Paced], hops: u32, slots: u64) -> u64 {
    let mut streams: Vec<Vec<u64>> =
        (0..messages.len()).map(|place| sent_ps(messages, place, hops, slots)).collect();
    while streams.len() > 1 {
        streams = streams.chunks(slots as usize).map(through).collect();
    }
    let (mut left_ps, mut most_ps, mut before) = (0u64, 0, 0);
    for &at in streams.iter().flatten() {
        left_ps = left_ps.saturating_sub(at - before) + slots * PACKET_PS;
        (most_ps, before) = (left_ps.max(most_ps), at);
    }
    most_ps
}

/// The times at which the packets of the first stream have left a port that sends those of all
/// streams in the order of their arrival, in ps; these are also their arrival times at the next
/// port.
fn through(streams: &[Vec<u64>]) -> Vec<u64> {
    let each =
        streams.iter().zip(0..).flat_map(|(s, stream)| s.iter().map(move |&at| (at, stream)));
    let mut all: Vec<(u64, u32)> = each.collect();
    all.sort_unstable();
    let (mut free_at, mut left) = (0, Vec::new());
    for (at, stream) in all {
        free_at = at.max(free_at) + PACKET_PS;
        if stream == 0 {
            left.push(free_at);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The adversary exceeds the paper's bound, #H (K-1), and never 2^(h-1) (K-1).
    #[test]
    fn h1_queue_exceeds_the_papers_bound_and_keeps_ours() {
        let mut found = Vec::new();
        for slots in [2, 4] {
            for hops in 1..=3 {
                let worst = worst_queue(hops, slots, (20, 4_000), 1);
                let ours = (1 << (hops - 1)) * (slots - 1);
                assert!(worst.waiting <= ours, "K={slots} h={hops}: {worst:?}");
                found.push((slots, hops, worst.waiting, u64::from(hops) * (slots - 1), ours));
            }
        }
        println!("{found:?}");
        assert!(
            found
                .iter()
                .any(|&(slots, hops, most, paper, _)| { (slots, hops) == (4, 3) && most > paper })
        );
    }
}
