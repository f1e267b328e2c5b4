//! An adversary against Theorem 3.1 (trap H1): it chooses phases, paths and message ends of paced
//! senders, and looks for the longest queue at the last switch.
//!
//! The network is a tree. To the last port come K messages from K ports, to each of those K from K
//! further ones; of the messages of a port one goes on, and the others leave for other receivers.
//! All have a sender of their own, which sends a packet of one length in each cycle of K packets'
//! times, from the adversary's first time on and as many as it wants. Links take no time beside the
//! packets' own, there are no control packets, and no clock drifts: none of this helps a message.
//! The K subtrees of the last port do the same, so that one of them is searched.

use concord_core::Rng;

use crate::engine::NS;

/// The time of a packet in ps: 1,500 bytes at 100 Gb/s.
pub const PACKET_PS: u64 = 120 * NS;
/// Cycles within which messages begin.
const CYCLES: u64 = 6;
/// The most packets of a message.
const COUNT_MAX: u64 = 6;

/// One message of the adversary: packets a cycle apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paced {
    /// When its first packet is sent, in ps.
    pub first_ps: u64,
    /// How many packets it has.
    pub count: u64,
}

/// What the adversary found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worst {
    /// The most packets that waited at the last port, without the one that was being sent.
    pub waiting: u64,
    /// The schedules that it tried.
    pub tried: u64,
    /// The messages of each of the K subtrees: K^(hops-1), those of one port together, and the one
    /// that goes on first among them.
    pub messages: Vec<Paced>,
}

/// Looks for the longest queue at the last of `hops` switches with `slots` virtual links: random
/// changes of a schedule, those kept that are not worse, from `begins` random ones.
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

/// Changes a message, or those of a port together.
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
        // The others of a port end as one packet of the message that goes on comes.
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

/// Phases are whole parts of a packet's time.
const QUANTUM_PS: u64 = PACKET_PS / 4;

/// How many ports a message passes below the last one.
fn levels(place: usize, hops: u32, slots: u64) -> u64 {
    let mut place = place as u64;
    let mut levels = 1;
    while levels < u64::from(hops) && place.is_multiple_of(slots) {
        place /= slots;
        levels += 1;
    }
    levels
}

/// When the packets of a message are sent. One that goes on is a few ps later than those that do
/// not, so that it comes behind them.
#[must_use]
pub fn sent_ps(messages: &[Paced], place: usize, hops: u32, slots: u64) -> Vec<u64> {
    let Paced { first_ps, count } = messages[place];
    let late = levels(place, hops, slots);
    (0..count).map(|n| first_ps + n * slots * PACKET_PS + late).collect()
}

/// The most bytes that are at the last port, the packet that is being sent included, as the time
/// that they take.
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

/// When the packets of the first stream have left a port that sends those of all, in the order in
/// which they come; that is also when they come to the next one.
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
