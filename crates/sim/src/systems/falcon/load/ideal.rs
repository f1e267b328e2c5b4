//! One queue without a cost: each task begins on the executor that is free first, in the order of
//! arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::jobs::Jobs;
use super::seen::{Open, Seen};
use super::{Load, Measured};

pub(super) fn run(load: &Load) -> Measured {
    let mut seen = Seen::new(load, &[]);
    // For each executor, the time at which it is free.
    let mut free_ns: BinaryHeap<Reverse<u64>> = (0..load.executors()).map(|_| Reverse(0)).collect();
    let mut events = 0;
    for job in Jobs::new(load) {
        if job.at_ns >= load.warm_up_ns + load.measure_ns {
            break;
        }
        seen.job(job.at_ns, job.times_ns.len());
        let mut open = Open::new(job.at_ns, job.times_ns);
        for tid in 0..open.times_ns.len() {
            let free = free_ns.pop().map_or(0, |Reverse(ns)| ns);
            let begins_ns = free.max(open.at_ns);
            seen.begins(begins_ns, &mut open, tid);
            free_ns.push(Reverse(begins_ns + u64::from(open.times_ns[tid])));
            events += 1;
        }
    }
    Measured { events, ..seen.measured(std::iter::empty()) }
}
