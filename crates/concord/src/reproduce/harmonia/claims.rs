//! The paper's statements about its figures, as numbers where its text has some, compared with
//! measurements.

use concord_sim::load::Measured;

use super::figures::slots_at;
use crate::reproduce::claims::Paper::{Above, Below, Is, Silent};
use crate::reproduce::claims::{Claim, exact, millions, over, read_us, reads, total, writes};
use crate::reproduce::runner::Mean;
use crate::reproduce::seen::Seen;

fn slots(m: &Measured) -> f64 {
    f64::from(m.occupied)
}

/// The ratio of Harmonia to CR at x.
fn gain(seen: &Seen, x: f64, value: fn(&Measured) -> f64) -> Option<Mean> {
    over(seen.at(1, x, value), seen.at(0, x, value))
}

/// The ratio of writes answered with this number of slots per stage to those with plenty, of a
/// series of figure 13(a). (Reads take the place of writes that are dropped, so that the total says
/// little.)
fn of_plenty(seen: &Seen, series: usize, slots: u32) -> Option<Mean> {
    over(seen.at(series, slots_at(slots), writes), seen.at(series, slots_at(65_536), writes))
}

/// Harmonia's operations per second between two times of a timeline, in s.
fn between(seen: &Seen, from_s: f64, to_s: f64) -> Option<f64> {
    let (_, measured) = seen.of(1).next()?.runs.first()?;
    let buckets = measured.buckets.get((2.0 * from_s) as usize..(2.0 * to_s) as usize)?;
    Some(buckets.iter().sum::<u64>() as f64 / (to_s - from_s))
}

/// All statements, in the figures' order.
pub const CLAIMS: &[Claim] = &[
    Claim {
        figure: "5a",
        says: "CR's reads are bounded by one server: the most (M/s)",
        paper: Is(0.92),
        ours: |s| millions(exact(s.most(0, total))),
        reason: "the service time is the paper's",
    },
    Claim {
        figure: "5a",
        says: "Harmonia uses all three replicas: its most reads over CR's",
        paper: Is(3.0),
        ours: |s| over(exact(s.most(1, total)), exact(s.most(0, total))),
        reason: "replicas are chosen by hash, so that their queues differ in length",
    },
    Claim {
        figure: "5b",
        says: "write-only: Harmonia over CR (\"identical\")",
        paper: Is(1.0),
        ours: |s| over(exact(s.most(1, total)), exact(s.most(0, total))),
        reason: "",
    },
    Claim {
        figure: "6a",
        says: "reads over CR's at a low write rate (0.1 M/s here)",
        paper: Is(3.0),
        ours: |s| gain(s, 0.1, reads),
        reason: "",
    },
    Claim {
        figure: "6a",
        says: "total over CR's at a high write rate (\"similar\"; 0.78 M/s here)",
        paper: Is(1.0),
        ours: |s| gain(s, 0.78, total),
        reason: "0.73 M/s are answered: a tenth of a server is left for reads, and Harmonia has three",
    },
    Claim {
        figure: "6b",
        says: "write-only: Harmonia over CR (\"little benefit\")",
        paper: Is(1.0),
        ours: |s| gain(s, 100.0, total),
        reason: "",
    },
    Claim {
        figure: "7a",
        says: "Harmonia outperforms CR regardless of the value size: over CR at 1,024 bytes",
        paper: Above(1.0),
        ours: |s| gain(s, 1_024.0, total),
        reason: "service times allow 2.71",
    },
    Claim {
        figure: "7a",
        says: "throughput decreases with the value's size: Harmonia at 1,024 bytes over 16",
        paper: Below(1.0),
        ours: |s| over(s.at(1, 1_024.0, total), s.at(1, 16.0, total)),
        reason: "1 ns a byte is ours",
    },
    Claim {
        figure: "7b",
        says: "not affected by the dataset size: 100 M objects over 1 M",
        paper: Is(1.0),
        ours: |s| over(s.at(1, 100.0, total), s.at(1, 1.0, total)),
        reason: "caches are not simulated",
    },
    Claim {
        figure: "8b",
        says: "YCSB (95% reads): a substantial improvement over CR",
        paper: Above(2.0),
        ours: |s| gain(s, 1.0, total),
        reason: "service times allow 2.69",
    },
    Claim {
        figure: "8b",
        says: "Epinions (50% reads): a modest one",
        paper: Above(1.0),
        ours: |s| gain(s, 2.0, total),
        reason: "service times allow 1.45",
    },
    Claim {
        figure: "8b",
        says: "Voter (100% writes): none, and no penalty",
        paper: Is(1.0),
        ours: |s| gain(s, 3.0, total),
        reason: "",
    },
    Claim {
        figure: "9a",
        says: "reads only, 10 replicas: over CR",
        paper: Is(10.0),
        ours: |s| gain(s, 10.0, total),
        reason: "",
    },
    Claim {
        figure: "9b",
        says: "writes only: no benefit regardless of replicas (10): over CR",
        paper: Is(1.0),
        ours: |s| gain(s, 10.0, total),
        reason: "",
    },
    Claim {
        figure: "9b",
        says: "writes only: CR stays the same as replicas are added: 10 over 1",
        paper: Is(1.0),
        ours: |s| over(s.at(0, 10.0, total), s.at(0, 1.0, total)),
        reason: "",
    },
    Claim {
        figure: "9c",
        says: "5% writes: nearly linear: 10 replicas over 1",
        paper: Is(10.0),
        ours: |s| over(s.at(1, 10.0, total), s.at(1, 1.0, total)),
        reason: "every replica executes every write: service times allow 6.6; the text gives no number, and says that the tail becomes the bottleneck at 10",
    },
    Claim {
        figure: "9f",
        says: "20% writes: keeps increasing: 10 replicas over 5",
        paper: Above(1.0),
        ours: |s| over(s.at(1, 10.0, total), s.at(1, 5.0, total)),
        reason: "service times allow 1.26",
    },
    Claim {
        figure: "11a",
        says: "scales with racks: 3 over 1",
        paper: Above(1.0),
        ours: |s| over(s.at(1, 3.0, total), s.at(1, 1.0, total)),
        reason: "all 12 replicas execute the 5% writes: service times allow 2.16",
    },
    Claim {
        figure: "11b",
        says: "a slight increase in latency: Harmonia's read over CR's",
        paper: Above(1.0),
        ours: |s| gain(s, 1.0, read_us),
        reason: "the programmable switch is 300 ns slower (ours), and passed twice",
    },
    Claim {
        figure: "13a",
        says: "about 2,000 slots are enough: writes answered with 3,072 over 196,608, uniform, writes of 5 ms",
        paper: Is(1.0),
        ours: |s| of_plenty(s, 2, 1_024),
        reason: "what is needed is rate x duration of writes (§7.2): 600 are in flight here",
    },
    Claim {
        figure: "13a",
        says: "the same, zipf 0.9",
        paper: Is(1.0),
        ours: |s| of_plenty(s, 3, 1_024),
        reason: "",
    },
    Claim {
        figure: "13a",
        says: "fewer are not: 1,536 over 196,608, uniform",
        paper: Below(1.0),
        ours: |s| of_plenty(s, 2, 512),
        reason: "",
    },
    Claim {
        figure: "13a",
        says: "fewer are not: 192 over 196,608, uniform",
        paper: Below(1.0),
        ours: |s| of_plenty(s, 2, 64),
        reason: "dropped writes are tried again after 10 ms and more; reads go on",
    },
    Claim {
        figure: "13a",
        says: "skewed workloads suffer more: the same ratio of zipf 0.9 over uniform's, 192 slots",
        paper: Below(1.0),
        ours: |s| over(of_plenty(s, 3, 64), of_plenty(s, 2, 64)),
        reason: "writes in flight of one hot object share its slot, so that fewer are needed; what the paper counts, writes that collide with it, is less",
    },
    Claim {
        figure: "13a",
        says: "at our network's speed: 48 over 196,608, uniform",
        paper: Silent,
        ours: |s| of_plenty(s, 0, 16),
        reason: "writes take 40 us: some 5 are in flight",
    },
    Claim {
        figure: "13b",
        says: "fewer reads with more writes in flight: 20,000 of 100,000 objects over none",
        paper: Below(1.0),
        ours: |s| over(s.at(0, 20_000.0, reads), s.at(0, 0.0, reads)),
        reason: "a fifth of the reads, and a third of the others, go to the tail: 0.71",
    },
    Claim {
        figure: "13b",
        says: "smaller with more objects: the same of 10 M",
        paper: Is(1.0),
        ours: |s| over(s.at(2, 20_000.0, reads), s.at(2, 0.0, reads)),
        reason: "",
    },
    Claim {
        figure: "13c",
        says: "throughput decreases with slower storage: Harmonia at 16 us more over none",
        paper: Below(1.0),
        ours: |s| over(s.at(1, 16.0, total), s.at(1, 0.0, total)),
        reason: "",
    },
    Claim {
        figure: "13c",
        says: "and it still improves significantly: over CR at 16 us",
        paper: Above(2.0),
        ours: |s| gain(s, 16.0, total),
        reason: "service times allow 2.72",
    },
    Claim {
        figure: "13d",
        says: "no significant difference in throughput: Harmonia over a direct link",
        paper: Is(1.0),
        ours: |s| over(exact(s.most(2, total)), exact(s.most(0, total))),
        reason: "",
    },
    Claim {
        figure: "14a",
        says: "CRAQ's writes are much slower: its most over CR's",
        paper: Below(1.0),
        ours: |s| over(exact(s.most(3, writes)), exact(s.most(1, writes))),
        reason: "as in the paper, marking dirty and committing are an operation of the store each",
    },
    Claim {
        figure: "14a",
        says: "the same, our CRAQ",
        paper: Silent,
        ours: |s| over(exact(s.most(2, writes)), exact(s.most(1, writes))),
        reason: "ours holds a write back and executes it once: no slower than CR by much (docs/internals/craq.md)",
    },
    Claim {
        figure: "14a",
        says: "CR's writes are faster than PB's: its most over PB's",
        paper: Above(1.0),
        ours: |s| over(exact(s.most(1, writes)), exact(s.most(0, writes))),
        reason: "the primary hears two backups' acknowledgements, a tenth of a write each (ours)",
    },
    Claim {
        figure: "14a",
        says: "CRAQ's reads scale: over CR's, at 0.1 M writes/s",
        paper: Above(1.0),
        ours: |s| over(s.at(3, 0.1, reads), s.at(1, 0.1, reads)),
        reason: "",
    },
    Claim {
        figure: "14a",
        says: "Harmonia (CR) over CRAQ: reads at 0.3 M writes/s (\"much better\")",
        paper: Above(1.0),
        ours: |s| over(s.at(5, 0.3, reads), s.at(3, 0.3, reads)),
        reason: "",
    },
    Claim {
        figure: "14a",
        says: "without writes CRAQ scales as Harmonia (CR): reads",
        paper: Is(1.0),
        ours: |s| over(s.at(3, 0.0, reads), s.at(5, 0.0, reads)),
        reason: "",
    },
    Claim {
        figure: "14a",
        says: "Harmonia (PB) over PB: reads at 0.1 M writes/s (\"significantly higher\")",
        paper: Above(1.0),
        ours: |s| over(s.at(4, 0.1, reads), s.at(0, 0.1, reads)),
        reason: "",
    },
    Claim {
        figure: "14b",
        says: "Harmonia (VR) over VR: reads at 0.1 M writes/s (\"significantly\")",
        paper: Above(1.0),
        ours: |s| over(s.at(1, 0.1, reads), s.at(0, 0.1, reads)),
        reason: "",
    },
    Claim {
        figure: "14b",
        says: "writes are not slower for it: the most of Harmonia (VR) over VR's",
        paper: Is(1.0),
        ours: |s| over(exact(s.most(1, writes)), exact(s.most(0, writes))),
        reason: "the text speaks of CR; COMMIT-ACKs are piggybacked (§8.3)",
    },
    Claim {
        figure: "14b",
        says: "Harmonia (NOPaxos) over NOPaxos: reads at 0.1 M writes/s (\"significantly\")",
        paper: Above(1.0),
        ours: |s| over(s.at(3, 0.1, reads), s.at(2, 0.1, reads)),
        reason: "",
    },
    Claim {
        figure: "14b",
        says: "writes are not slower for it: the most of Harmonia (NOPaxos) over NOPaxos'",
        paper: Is(1.0),
        ours: |s| over(exact(s.most(3, writes)), exact(s.most(2, writes))),
        reason: "",
    },
    Claim {
        figure: "15",
        says: "throughput drops to zero while the switch is stopped (operations/s)",
        paper: Is(0.0),
        ours: |s| exact(between(s, 21.0, 24.0)),
        reason: "",
    },
    Claim {
        figure: "15",
        says: "and is back within a few seconds: 2 s after over before",
        paper: Is(1.0),
        ours: |s| exact(Some(between(s, 26.0, 40.0)? / between(s, 5.0, 20.0)?)),
        reason: "",
    },
    Claim {
        figure: "late",
        says: "completions 1 ms late over in time, uniform",
        paper: Silent,
        ours: |s| over(s.at(0, 1_000.0, total), s.at(0, 0.0, total)),
        reason: "§8.3 holds them back for read-behind protocols; here each only keeps its object dirty",
    },
    Claim {
        figure: "late",
        says: "the same, zipf 0.9",
        paper: Silent,
        ours: |s| over(s.at(1, 1_000.0, total), s.at(1, 0.0, total)),
        reason: "hot objects are always dirty then",
    },
    Claim {
        figure: "lost",
        says: "10% of completions lost, throughput over none lost",
        paper: Silent,
        ours: |s| over(s.at(0, 10.0, total), s.at(0, 0.0, total)),
        reason: "a later completion makes them stray (§6.2), and a stray entry makes no read slow",
    },
    Claim {
        figure: "lost",
        says: "the same without the sweep",
        paper: Silent,
        ours: |s| over(s.at(1, 10.0, total), s.at(1, 0.0, total)),
        reason: "reads and inserts remove strays",
    },
    Claim {
        figure: "lost",
        says: "slots in use, without the sweep over with it, 10% lost",
        paper: Silent,
        ours: |s| over(s.at(1, 10.0, slots), s.at(0, 10.0, slots)),
        reason: "what the sweep is for: entries of objects that nobody asks for",
    },
    Claim {
        figure: "apart",
        says: "completions apart over in the reply, 5% writes",
        paper: Silent,
        ours: |s| over(s.at(1, 5.0, total), s.at(0, 5.0, total)),
        reason: "a packet more of the tail for each write, as dear as an acknowledgement (ours)",
    },
    Claim {
        figure: "apart",
        says: "the same, write-only",
        paper: Silent,
        ours: |s| over(s.at(1, 100.0, total), s.at(0, 100.0, total)),
        reason: "",
    },
    Claim {
        figure: "acks",
        says: "VR: COMMIT-ACKs apart over in PREPARE-OKs, 5% writes",
        paper: Silent,
        ours: |s| over(s.at(1, 5.0, total), s.at(0, 5.0, total)),
        reason: "an acknowledgement stands for many writes at once (batching)",
    },
    Claim {
        figure: "acks",
        says: "the same, write-only",
        paper: Silent,
        ours: |s| over(s.at(1, 100.0, total), s.at(0, 100.0, total)),
        reason: "",
    },
];

#[cfg(test)]
mod tests {
    use super::super::figures;
    use super::*;

    #[test]
    fn every_claim_is_about_a_figure_that_is_run() {
        crate::reproduce::claims::all_are_run(CLAIMS, &figures::all());
    }
}
