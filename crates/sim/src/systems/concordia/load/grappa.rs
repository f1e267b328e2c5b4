//! A baseline without caches, modelled on Grappa (Nelson et al., *Latency-Tolerant Software
//! Distributed Shared Memory*, USENIX ATC 2015): a task delegates each access to the home of its
//! word, delegations to a node travel together, and a core continues with another task meanwhile.
//!
//! No cost is fitted: a delegation takes a core the same time as a cache hit, where it is made,
//! where it is executed, and where its answer arrives.

use std::collections::BTreeMap;

use concord_core::Rng;

use super::setup::{FLUSH_NS, Load, Measured};
use crate::engine::{EventQueue, NS, Time};

/// The number of tasks of a thread, which hide the latency of each other's delegations.
const TASKS: usize = 128;
/// The maximum number of delegations in a packet: 4,096 bytes.
const AGGREGATED_MAX: usize = 128;

/// An access of a task to a word at its home, or the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delegation {
    /// Reads a word.
    Read(u64),
    /// Adds to a word, and returns its value before.
    Add(u64, u64),
    /// The word's value.
    Answer(u64),
}

/// A delegation or its answer, and the node and the task that made it.
type Named = (usize, usize, Delegation);

/// The words of a home, and its delegations to other nodes that wait for each other.
#[derive(Clone, Debug, Default)]
struct Delegator {
    words: BTreeMap<u64, u64>,
    /// The delegations that wait, by receiver.
    buffers: Vec<Vec<Named>>,
}

impl Delegator {
    fn new(nodes: usize) -> Delegator {
        Delegator { words: BTreeMap::new(), buffers: vec![Vec::new(); nodes] }
    }

    /// Executes a delegation at its home.
    fn execute(&mut self, delegation: Delegation) -> u64 {
        match delegation {
            Delegation::Read(word) => self.words.get(&word).copied().unwrap_or(0),
            Delegation::Add(word, add) => {
                let value = self.words.entry(word).or_default();
                let before = *value;
                *value = before.wrapping_add(add);
                before
            }
            Delegation::Answer(value) => value,
        }
    }

    /// Adds a delegation to the packet for a node. Returns the packet if it is full, and whether
    /// the delegation is the first in it.
    fn add(&mut self, to: usize, named: Named) -> (Option<Vec<Named>>, bool) {
        let buffer = &mut self.buffers[to];
        buffer.push(named);
        let is_first = buffer.len() == 1;
        let full = (buffer.len() >= AGGREGATED_MAX).then(|| std::mem::take(buffer));
        (full, is_first)
    }
}

enum Event {
    /// A packet arrives at a host.
    Arrive(usize, Vec<Named>),
    /// A packet that may be full already leaves: sender, receiver.
    Flush(usize, usize),
    /// A task makes its next access.
    Next(usize, usize),
}

struct Grappa<'a> {
    load: &'a Load,
    rng: Rng,
    now: u64,
    queue: EventQueue<Event>,
    homes: Vec<Delegator>,
    /// The times at which the cores of a host are free, as one common time.
    free_at: Vec<u64>,
    /// For each task, the time of its access, and the word that it had accessed before.
    tasks: Vec<Vec<(u64, u64)>>,
    seen: Measured,
}

/// Runs a load.
pub(super) fn measure(load: &Load) -> Measured {
    let nodes = usize::from(load.nodes);
    let mut grappa = Grappa {
        load,
        rng: Rng::new(load.seed),
        now: 1,
        queue: EventQueue::new(),
        homes: vec![Delegator::new(nodes); nodes],
        free_at: vec![1; nodes],
        tasks: vec![vec![(0, 0); load.threads * TASKS]; nodes],
        seen: Measured::default(),
    };
    for host in 0..nodes {
        for task in 0..load.threads * TASKS {
            let at = grappa.now + grappa.rng.below(1_000);
            grappa.at(at, Event::Next(host, task));
        }
    }
    grappa.run(load.warm_up_ns);
    grappa.seen = Measured::default();
    grappa.run(load.measure_ns);
    Measured { ns: load.measure_ns, ..grappa.seen }
}

impl Grappa<'_> {
    fn at(&mut self, at_ns: u64, event: Event) {
        self.queue.schedule(Time(at_ns.max(self.now) * NS), event);
    }

    fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while let Some((at, event)) = self.queue.next_until(Time(end * NS)) {
            self.now = at.0 / NS;
            match event {
                Event::Next(host, task) => self.access(host, task),
                Event::Arrive(host, packet) => self.arrive(host, packet),
                Event::Flush(host, to) => {
                    let packet = std::mem::take(&mut self.homes[host].buffers[to]);
                    self.send(host, to, packet);
                }
            }
        }
        self.now = end;
    }

    /// Occupies one of a host's cores; returns the time when it is done, in ns.
    fn work(&mut self, host: usize, ns: u64) -> u64 {
        let at = self.free_at[host].max(self.now) + ns / self.load.threads as u64;
        self.free_at[host] = at;
        at
    }

    fn send(&mut self, host: usize, to: usize, packet: Vec<Named>) {
        if packet.is_empty() {
            return;
        }
        self.seen.packets += 1;
        let at = self.work(host, self.load.costs.message_ns) + self.load.costs.way_ns;
        self.at(at, Event::Arrive(to, packet));
    }

    fn delegate(&mut self, host: usize, to: usize, named: Named) {
        let (full, is_first) = self.homes[host].add(to, named);
        match full {
            Some(packet) => self.send(host, to, packet),
            None if is_first => self.at(self.now + FLUSH_NS, Event::Flush(host, to)),
            None => {}
        }
    }

    fn access(&mut self, host: usize, task: usize) {
        let load = self.load;
        let blocks = load.shared_blocks + load.private_blocks * u64::from(load.nodes);
        let last = self.tasks[host][task].1;
        let repeats = last > 0 && self.rng.below(100) < load.locality_percent;
        // A word stands for its block.
        let word = if repeats { last } else { 1 + self.rng.below(blocks) };
        self.tasks[host][task] = (self.now, word);
        let is_read = self.rng.below(100) < load.reads_percent;
        let delegation = if is_read { Delegation::Read(word) } else { Delegation::Add(word, 1) };
        let home = (word % u64::from(load.nodes)) as usize;
        let at = self.work(host, load.costs.hit_ns);
        if home == host {
            self.homes[host].execute(delegation);
            self.seen.hits += 1;
            self.ends(host, task, at);
        } else {
            self.delegate(host, home, (host, task, delegation));
        }
    }

    fn arrive(&mut self, host: usize, packet: Vec<Named>) {
        self.seen.packets += 1;
        self.seen.home_packets += 1;
        self.work(host, self.load.costs.message_ns);
        for (from, task, delegation) in packet {
            let at = self.work(host, self.load.costs.hit_ns);
            let value = self.homes[host].execute(delegation);
            match delegation {
                Delegation::Answer(_) => self.ends(from, task, at),
                Delegation::Read(_) | Delegation::Add(..) => {
                    self.delegate(host, from, (from, task, Delegation::Answer(value)));
                }
            }
        }
    }

    fn ends(&mut self, host: usize, task: usize, at_ns: u64) {
        self.seen.accesses += 1;
        self.seen.waited.0 += 1;
        self.seen.waited.1 += at_ns.saturating_sub(self.tasks[host][task].0);
        self.at(at_ns, Event::Next(host, task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delegations to a word take effect one after the other at its home, and packets leave once
    /// they are full or old.
    #[test]
    fn delegations_take_effect_at_the_home_of_their_word() {
        let mut home = Delegator::new(2);
        assert_eq!(home.execute(Delegation::Add(7, 2)), 0);
        assert_eq!(home.execute(Delegation::Add(7, 3)), 2);
        assert_eq!(home.execute(Delegation::Read(7)), 5);
        let named = (0, 0, Delegation::Read(7));
        assert_eq!(home.add(1, named), (None, true));
        for _ in 2..AGGREGATED_MAX {
            assert_eq!(home.add(1, named), (None, false));
        }
        let (full, _) = home.add(1, named);
        assert_eq!(full.map(|packet| packet.len()), Some(AGGREGATED_MAX));
        assert_eq!(home.add(1, named), (None, true));
    }
}
