//! Litmus tests of the memory's order (Alglave, Maranget, Tautschnig 2014): a few threads write and
//! read a few words, and a single order of all accesses must explain the values that they read.
//!
//! The nodes and the switch run as they ship, and the next step is drawn: the arrival of any
//! packet, however late, an occasional loss, or the next access of any thread. Each thread waits
//! for an access before its next.

use std::collections::{BTreeMap, BTreeSet};

use concord_core::{Guards, Rng};
use concord_memory::{Access, Call, Coherence};
use concord_wire::concordia::Tag;

use super::rack::{Rack, Shape};

/// An access of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes a one into the variable.
    Write(u8),
    /// Reads the variable.
    Read(u8),
    /// Waits for the writes before it.
    Fence,
}

/// A litmus test.
#[derive(Clone, Copy, Debug)]
pub struct Litmus {
    /// Its name in the literature.
    pub name: &'static str,
    /// The accesses of the threads, each at a node of its own. All variables are zero at first.
    pub threads: &'static [&'static [Step]],
    /// The outcome that no order explains: the values of the reads in the order of the threads.
    pub forbidden: &'static [u8],
}

const X: u8 = 0;
const Y: u8 = 1;

/// The tests of the issue: they would show store buffers, delayed or reordered invalidations, and
/// writes that are not visible to all nodes at once.
pub const LITMUS: [Litmus; 6] = [
    Litmus {
        name: "SB",
        threads: &[&[Step::Write(X), Step::Read(Y)], &[Step::Write(Y), Step::Read(X)]],
        forbidden: &[0, 0],
    },
    Litmus {
        name: "MP",
        threads: &[&[Step::Write(X), Step::Write(Y)], &[Step::Read(Y), Step::Read(X)]],
        forbidden: &[1, 0],
    },
    Litmus {
        name: "LB",
        threads: &[&[Step::Read(X), Step::Write(Y)], &[Step::Read(Y), Step::Write(X)]],
        forbidden: &[1, 1],
    },
    Litmus {
        name: "WRC",
        threads: &[
            &[Step::Write(X)],
            &[Step::Read(X), Step::Write(Y)],
            &[Step::Read(Y), Step::Read(X)],
        ],
        forbidden: &[1, 1, 0],
    },
    Litmus {
        name: "IRIW",
        threads: &[
            &[Step::Write(X)],
            &[Step::Write(Y)],
            &[Step::Read(X), Step::Read(Y)],
            &[Step::Read(Y), Step::Read(X)],
        ],
        forbidden: &[1, 0, 1, 0],
    },
    Litmus {
        name: "CoRR",
        threads: &[&[Step::Write(X)], &[Step::Read(X), Step::Read(X)]],
        forbidden: &[1, 0],
    },
];

/// SB with fences between the accesses of each thread. With asynchronous writes its outcome is
/// forbidden, while that of SB is allowed.
pub const SB_FENCED: Litmus = Litmus {
    name: "SB, fenced",
    threads: &[
        &[Step::Write(X), Step::Fence, Step::Read(Y)],
        &[Step::Write(Y), Step::Fence, Step::Read(X)],
    ],
    forbidden: &[0, 0],
};
/// MP with fences between the accesses of each thread.
pub const MP_FENCED: Litmus = Litmus {
    name: "MP, fenced",
    threads: &[&[Step::Write(X), Step::Fence, Step::Write(Y)], &[Step::Read(Y), Step::Read(X)]],
    forbidden: &[1, 0],
};

/// The blocks of the variables, with two different homes.
const BLOCKS: [Tag; 2] = [Tag(0), Tag(1 << 48)];
/// The share of packets that are lost, in percent.
const LOST_PERCENT: u64 = 2;
/// The maximum number of steps of a run.
const STEPS_MAX: usize = 20_000;

/// The values of the reads in the order of the threads, and how often they were observed.
pub type Outcomes = BTreeMap<Vec<u8>, u64>;

impl Litmus {
    /// The outcomes that some order of all accesses explains: all orders are enumerated.
    #[must_use]
    pub fn allowed(&self) -> BTreeSet<Vec<u8>> {
        let mut all = BTreeSet::new();
        let reads = self.threads.iter().map(|_| Vec::new()).collect();
        self.explain(&mut vec![0; self.threads.len()], [0, 0], reads, &mut all);
        all
    }

    fn explain(
        &self,
        at: &mut Vec<usize>,
        values: [u8; 2],
        reads: Vec<Vec<u8>>,
        all: &mut BTreeSet<Vec<u8>>,
    ) {
        let mut is_over = true;
        for thread in 0..self.threads.len() {
            let Some(step) = self.threads[thread].get(at[thread]) else { continue };
            is_over = false;
            let (mut values, mut reads) = (values, reads.clone());
            match *step {
                Step::Write(variable) => values[usize::from(variable)] = 1,
                Step::Read(variable) => reads[thread].push(values[usize::from(variable)]),
                Step::Fence => {}
            }
            at[thread] += 1;
            self.explain(at, values, reads, all);
            at[thread] -= 1;
        }
        if is_over {
            all.insert(reads.concat());
        }
    }

    /// Runs the test `runs` times, from a seed.
    ///
    /// # Panics
    /// If a run does not end.
    #[must_use]
    pub fn run(&self, runs: u64, seed: u64, coherence: Coherence, guards: Guards) -> Outcomes {
        let mut rng = Rng::new(seed);
        let shape = Shape { nodes: 4, cache_ways: 2, lanes: 2, coherence, guards };
        // The possible numbers of blocks that the switch owns; homes own the others.
        let counts: &[usize] = if coherence == Coherence::Concordia { &[0, 1, 2] } else { &[0] };
        let rack = |count: &usize| Rack::new(&shape, &BLOCKS[..*count], &BLOCKS[*count..]);
        let racks: Vec<Rack> = counts.iter().map(rack).collect();
        let mut seen = Outcomes::new();
        for _ in 0..runs {
            let mut rack = racks[rng.below(racks.len() as u64) as usize].clone();
            // Some nodes begin with copies.
            for (node, tag) in (0..4).flat_map(|node| BLOCKS.map(|tag| (node, tag))) {
                if rng.chance(1, 3) {
                    rack.call(node, call(tag, Step::Read(0)));
                    rack.settle(&[]).expect("a read at rest");
                    while rack.nodes[node].poll_done().is_some() {}
                }
            }
            *seen.entry(self.once(&mut rng, rack)).or_default() += 1;
        }
        seen
    }

    fn once(&self, rng: &mut Rng, mut rack: Rack) -> Vec<u8> {
        let first = rng.below(4) as usize;
        let node_of = |thread: usize| (first + thread) % 4;
        let mut made = vec![0; self.threads.len()];
        let mut reads: Vec<Vec<u8>> = vec![Vec::new(); self.threads.len()];
        let mut is_waiting = vec![false; self.threads.len()];
        for _ in 0..STEPS_MAX {
            for (thread, steps) in self.threads.iter().enumerate() {
                while let Some(done) = rack.nodes[node_of(thread)].poll_done() {
                    let read = done.result.expect("no access is refused");
                    if matches!(steps[made[thread] - 1], Step::Read(_)) {
                        reads[thread].push(read[0]);
                    }
                    is_waiting[thread] = false;
                }
            }
            let may_call = |thread: &usize| {
                !is_waiting[*thread] && made[*thread] < self.threads[*thread].len()
            };
            let callers: Vec<usize> = (0..self.threads.len()).filter(may_call).collect();
            let (calls, flights) = (callers.len() as u64, rack.flights.len() as u64);
            if calls + flights == 0 {
                if !is_waiting.contains(&true) {
                    return reads.concat();
                }
                // A packet was lost, or a request failed.
                for (node, lane, _) in rack.lanes() {
                    rack.wake(node, lane);
                }
                continue;
            }
            let drawn = rng.below(calls + flights);
            if drawn < calls {
                let thread = callers[drawn as usize];
                let step = self.threads[thread][made[thread]];
                (made[thread], is_waiting[thread]) = (made[thread] + 1, true);
                let variable = match step {
                    Step::Write(variable) | Step::Read(variable) => variable,
                    Step::Fence => X,
                };
                rack.call(node_of(thread), call(BLOCKS[usize::from(variable)], step));
                continue;
            }
            let flight = rack.flights.remove((drawn - calls) as usize);
            if rng.below(100) >= LOST_PERCENT {
                rack.comes(&flight).expect("nothing is checked here");
            }
        }
        panic!("{}: a run does not end", self.name)
    }
}

fn call(tag: Tag, step: Step) -> Call {
    let access = match step {
        Step::Write(_) => Access::Write { offset_bytes: 0, data: vec![1] },
        Step::Read(_) => Access::Read { offset_bytes: 0, size_bytes: 1 },
        Step::Fence => Access::Fence,
    };
    Call { id: 0, tag, access }
}
