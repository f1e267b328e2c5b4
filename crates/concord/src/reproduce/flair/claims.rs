//! The paper's statements about its figures, as numbers where its text has some, compared with
//! measurements.

use concord_sim::load::Measured;

use super::figures::{
    ALONE, BUCKET_S, FLAIR, HARMONIA, LEADER, LEASES, QUORUM, READ_INDEX, ZIPF, groups_at, latency,
    revoked_share,
};
use crate::reproduce::claims::Paper::{Above, Is, Silent};
use crate::reproduce::claims::{Claim, exact, millions, over, total};
use crate::reproduce::runner::Mean;
use crate::reproduce::seen::Seen;

const CROWD: f64 = 300.0;

/// The ratio of one line to another at x.
fn gain(seen: &Seen, of: usize, over_line: usize, x: f64) -> Option<Mean> {
    over(seen.at(of, x, total), seen.at(over_line, x, total))
}

/// The largest ratio of FLAIR to another line.
fn most(seen: &Seen, over_line: usize, value: fn(&Measured) -> f64, is_less: bool) -> Option<Mean> {
    let points = seen.of(FLAIR);
    let gains = points.filter_map(|p| {
        let (ours, theirs) = (seen.at(FLAIR, p.x, value), seen.at(over_line, p.x, value));
        if is_less { over(theirs, ours) } else { over(ours, theirs) }
    });
    gains.max_by(|a, b| a.mean.total_cmp(&b.mean))
}

/// The smallest ratio of FLAIR to another line.
fn least(seen: &Seen, over_line: usize) -> Option<Mean> {
    let points = seen.of(FLAIR);
    let gains = points.filter_map(|p| gain(seen, FLAIR, over_line, p.x));
    gains.min_by(|a, b| a.mean.total_cmp(&b.mean))
}

fn percent(mean: Option<Mean>) -> Option<Mean> {
    mean.map(|m| Mean { mean: 100.0 * m.mean, half: 100.0 * m.half })
}

fn leader_share(m: &Measured) -> f64 {
    m.leader_reads_share
}

/// How often the switch counted something, per read of an object.
fn of_reads(m: &Measured, name: &str) -> f64 {
    let count = |name: &str| m.counts.get(name).copied().unwrap_or_default() as f64;
    count(name) / (count("reads_unstable") + count("reads_stable") + count("reads_no_holder"))
}

fn unstable_share(m: &Measured) -> f64 {
    of_reads(m, "reads_unstable")
}

fn stale_share(m: &Measured) -> f64 {
    of_reads(m, "replies_stale")
}

/// The share of reads that a follower without a lease for their key group passed to the leader.
fn redirected_share(m: &Measured) -> f64 {
    let r = &m.replicas;
    let passed = (r.refused_revoked + r.refused_lease) as f64;
    passed / (r.reads_fast + r.reads_slow).max(1) as f64
}

/// By how much the slowest reads, at a percentile, are faster than with follower leases, in percent
/// of these.
fn faster_slowest(seen: &Seen, percent_of: fn(&Measured) -> f64) -> Option<Mean> {
    let ratio = over(seen.at(FLAIR, 0.0, percent_of), seen.at(LEASES, 0.0, percent_of))?;
    percent(Some(Mean { mean: 1.0 - ratio.mean, half: ratio.half }))
}

fn slowest(m: &Measured, percent: usize) -> f64 {
    let each = &m.read.each_hundredth_ns;
    let slow = each.get(each.len().saturating_sub(percent)..).unwrap_or_default();
    slow.iter().map(|ns| f64::from(*ns)).sum::<f64>() / slow.len().max(1) as f64
}

/// The maximum by which FLAIR's mean latency is below that of follower leases, in percent of that.
fn sooner(seen: &Seen) -> Option<Mean> {
    let less = most(seen, LEASES, latency, true)?;
    percent(Some(Mean { mean: 1.0 - 1.0 / less.mean, half: less.half / (less.mean * less.mean) }))
}

/// The operations answered in each bucket between two times of a timeline, in s.
fn between(seen: &Seen, from_s: usize, to_s: usize) -> Option<&[u64]> {
    let (_, measured) = seen.points.first()?.runs.first()?;
    let at = |s: usize| (s as f64 / BUCKET_S) as usize;
    measured.buckets.get(at(from_s)..at(to_s))
}

/// The time from the failure at 10 s on for which less than half of the previous rate is answered,
/// in ms.
fn outage_ms(seen: &Seen) -> Option<Mean> {
    let before = between(seen, 0, 10)?;
    let half = before.iter().sum::<u64>() / before.len() as u64 / 2;
    let few = between(seen, 10, 34)?.iter().filter(|count| **count < half).count();
    exact(Some(few as f64 * BUCKET_S * 1e3))
}

/// The operations answered in the ten seconds after the failure, as a ratio to those in the ten
/// before.
fn left(seen: &Seen) -> Option<Mean> {
    let sum = |buckets: &[u64]| buckets.iter().sum::<u64>() as f64;
    exact(Some(sum(between(seen, 24, 34)?) / sum(between(seen, 0, 10)?)))
}

/// The median read latency of FLAIR, in percent of that of Raft with a leader lease.
fn median(seen: &Seen) -> Option<Mean> {
    let of = |line| seen.at(line, 0.0, |m: &Measured| f64::from(m.read.median_ns));
    percent(over(of(FLAIR), of(LEADER)))
}

/// All statements, in the figures' order.
pub const CLAIMS: &[Claim] = &[
    Claim {
        figure: "18a",
        says: "FLAIR over Opt. Raft, at most",
        paper: Is(2.1),
        ours: |s| most(s, LEADER, total, false),
        reason: "the leader's CPU bounds both",
    },
    Claim {
        figure: "18a",
        says: "FLAIR over Opt. Raft, at least",
        paper: Is(1.3),
        ours: |s| least(s, LEADER),
        reason: "with few clients nobody waits in a queue",
    },
    Claim {
        figure: "18a",
        says: "FLAIR over unreplicated, at most",
        paper: Is(2.1),
        ours: |s| most(s, ALONE, total, false),
        reason: "",
    },
    Claim {
        figure: "18a",
        says: "FLAIR over Raft (ReadIndex), VR and Fast Paxos, 300 clients",
        paper: Above(4.0),
        ours: |s| gain(s, FLAIR, READ_INDEX, CROWD),
        reason: "their implementations could not use the machines (\"Alternatives\"); ours asks a quorum once for all reads that wait",
    },
    Claim {
        figure: "18a",
        says: "reads that the leader answers, of 100, 300 clients",
        paper: Is(2.0),
        ours: |s| percent(s.at(FLAIR, CROWD, leader_share)),
        reason: "3% of reads find their group unstable: writes wait in the leader's queue, 3.4 ms in all",
    },
    Claim {
        figure: "18a",
        says: "Harmonia over Raft, over FLAIR, 300 clients",
        paper: Silent,
        ours: |s| gain(s, HARMONIA, FLAIR, CROWD),
        reason: "Harmonia spares no leader: reads of clean objects go to all alike",
    },
    Claim {
        figure: "18a",
        says: "FLAIR over follower leases, at most",
        paper: Is(1.42),
        ours: |s| most(s, LEASES, total, false),
        reason: "",
    },
    Claim {
        figure: "18a",
        says: "follower leases: reads that the leader answers, of 100, 300 clients",
        paper: Is(34.0),
        ours: |s| percent(s.at(LEASES, CROWD, leader_share)),
        reason: "a third of the clients' choices, and what followers pass on",
    },
    Claim {
        figure: "18a",
        says: "FLAIR over quorum reads (Fast Paxos), 300 clients",
        paper: Above(4.0),
        ours: |s| gain(s, FLAIR, QUORUM, CROWD),
        reason: "ours asks once for all reads that wait, and any replica answers",
    },
    Claim {
        figure: "18b",
        says: "Zipf: FLAIR over Opt. Raft, at most",
        paper: Is(1.8),
        ours: |s| most(s, LEADER, total, false),
        reason: "",
    },
    Claim {
        figure: "18b",
        says: "Zipf: reads that the leader answers, of 100, 300 clients",
        paper: Is(21.0),
        ours: |s| percent(s.at(FLAIR, CROWD, leader_share)),
        reason: "",
    },
    Claim {
        figure: "18b",
        says: "Zipf: stale replies, of 100 reads (\"redirected from followers\")",
        paper: Is(1.0),
        ours: |s| percent(s.at(FLAIR, CROWD, stale_share)),
        reason: "a write has to come while a read is under way, which takes 0.2 ms here",
    },
    Claim {
        figure: "18b",
        says: "Zipf: FLAIR over follower leases, at most",
        paper: Is(1.26),
        ours: |s| most(s, LEASES, total, false),
        reason: "",
    },
    Claim {
        figure: "18b",
        says: "Zipf: follower leases: reads that the leader answers, of 100, 300 clients",
        paper: Is(37.0),
        ours: |s| percent(s.at(LEASES, CROWD, leader_share)),
        reason: "",
    },
    Claim {
        figure: "18b",
        says: "Zipf: follower leases: reads that followers pass on, of 100",
        paper: Is(4.0),
        ours: |s| percent(s.at(LEASES, CROWD, redirected_share)),
        reason: "",
    },
    Claim {
        figure: "18c",
        says: "mean latency: Opt. Raft's over FLAIR's, at most",
        paper: Is(2.4),
        ours: |s| most(s, LEADER, latency, true),
        reason: "",
    },
    Claim {
        figure: "18c",
        says: "mean latency below that of follower leases, of 100, at most",
        paper: Is(23.7),
        ours: sooner,
        reason: "",
    },
    Claim {
        figure: "18d",
        says: "Zipf: mean latency: Opt. Raft's over FLAIR's, at most",
        paper: Is(2.4),
        ours: |s| most(s, LEADER, latency, true),
        reason: "",
    },
    Claim {
        figure: "18d",
        says: "Zipf: mean latency below that of follower leases, of 100, at most",
        paper: Is(18.1),
        ours: sooner,
        reason: "",
    },
    Claim {
        figure: "19a",
        says: "over all others, Zipf 0.5",
        paper: Is(2.25),
        ours: |s| gain(s, FLAIR, ALONE, ZIPF[0]),
        reason: "over one server here; its 1.26 is over follower leases",
    },
    Claim {
        figure: "19a",
        says: "over follower leases, Zipf 0.99",
        paper: Is(1.17),
        ours: |s| gain(s, FLAIR, LEASES, ZIPF[ZIPF.len() - 1]),
        reason: "17% to 26%",
    },
    Claim {
        figure: "19b",
        says: "mean latency: others' over FLAIR's, at most",
        paper: Is(2.48),
        ours: |s| most(s, LEADER, latency, true),
        reason: "",
    },
    Claim {
        figure: "20",
        says: "FLAIR over Opt. Raft, read-only",
        paper: Is(2.8),
        ours: |s| gain(s, FLAIR, LEADER, 100.0),
        reason: "three servers instead of one; the switch chooses by hash, so queues differ in length",
    },
    Claim {
        figure: "20",
        says: "FLAIR over Opt. Raft, half of it writes",
        paper: Is(1.25),
        ours: |s| gain(s, FLAIR, LEADER, 50.0),
        reason: "the leader's writes bound both",
    },
    Claim {
        figure: "20",
        says: "FLAIR over unreplicated, 70% reads",
        paper: Above(1.0),
        ours: |s| gain(s, FLAIR, ALONE, 70.0),
        reason: "",
    },
    Claim {
        figure: "20",
        says: "FLAIR over follower leases, at most",
        paper: Is(1.5),
        ours: |s| most(s, LEASES, total, false),
        reason: "",
    },
    Claim {
        figure: "20",
        says: "FLAIR over follower leases, read-only (\"comparable\")",
        paper: Is(1.0),
        ours: |s| gain(s, FLAIR, LEASES, 100.0),
        reason: "",
    },
    Claim {
        figure: "21a",
        says: "median read over Opt. Raft's, of 100",
        paper: Is(8.0),
        ours: median,
        reason: "2 to 8 in the paper",
    },
    Claim {
        figure: "21a",
        says: "slowest 40% of reads: faster than follower leases, of 100",
        paper: Is(38.0),
        ours: |s| faster_slowest(s, |m| slowest(m, 40)),
        reason: "\"at least\"",
    },
    Claim {
        figure: "21b",
        says: "Zipf: slowest half of reads: faster than follower leases, of 100",
        paper: Is(35.0),
        ours: |s| faster_slowest(s, |m| slowest(m, 50)),
        reason: "\"up to\"",
    },
    Claim {
        figure: "22",
        says: "time of a write for which followers have no lease, of 100",
        paper: Is(75.0),
        ours: |s| percent(s.at(0, CROWD, revoked_share)),
        reason: "ours waits for the store behind the commit, when the lease is there again",
    },
    Claim {
        figure: "23",
        says: "the switch loses its registers: ms with less than half the answers",
        paper: Is(750.0),
        ours: outage_ms,
        reason: "a switch that starts says so, and the controller gives it an id; the paper's leader has to miss three heartbeats",
    },
    Claim {
        figure: "24",
        says: "the leader dies: ms with less than half the answers",
        paper: Silent,
        ours: outage_ms,
        reason: "the text gives heartbeats, no time; followers answer reads until the switch steps down, and the next view begins before",
    },
    Claim {
        figure: "24",
        says: "throughput after, over before",
        paper: Is(0.67),
        ours: left,
        reason: "\"one leader and one follower\"",
    },
    Claim {
        figure: "25",
        says: "a follower dies: throughput after, over before",
        paper: Is(0.67),
        ours: left,
        reason: "\"drops by 33%\"",
    },
    Claim {
        figure: "26a",
        says: "leader avoidance over random",
        paper: Is(1.4),
        ours: |s| gain(s, 0, 1, CROWD),
        reason: "what the leader's time for a write was fitted to",
    },
    Claim {
        figure: "26b",
        says: "load awareness over leader avoidance",
        paper: Is(1.17),
        ours: |s| gain(s, 0, 1, CROWD),
        reason: "all three answer 2.9 times what a quick one does, and 2.7 times where each gets as many reads: 1.07 at most",
    },
    Claim {
        figure: "26b",
        says: "mean latency: load awareness below leader avoidance, of 100",
        paper: Is(10.0),
        ours: |s| {
            let ratio = over(s.at(0, CROWD, latency), s.at(1, CROWD, latency))?;
            percent(Some(Mean { mean: 1.0 - ratio.mean, half: ratio.half }))
        },
        reason: "as many clients wait, and are answered sooner by as much: 7 at most",
    },
    Claim {
        figure: "27",
        says: "six replicas, million reads a second",
        paper: Is(5.4),
        ours: |s| millions(s.at(0, 6.0, total)),
        reason: "what a read's time was fitted to",
    },
    Claim {
        figure: "27",
        says: "six replicas over one (\"linear\")",
        paper: Is(6.0),
        ours: |s| over(s.at(0, 6.0, total), s.at(0, 1.0, total)),
        reason: "",
    },
    Claim {
        figure: "A",
        says: "workload A, Zipf 0.99: reads that find their group unstable, of 100",
        paper: Is(29.0),
        ours: |s| percent(s.at(FLAIR, CROWD, unstable_share)),
        reason: "",
    },
    Claim {
        figure: "A",
        says: "workload A, Zipf 0.99: follower leases: reads that followers pass on, of 100",
        paper: Is(4.0),
        ours: |s| percent(s.at(LEASES, CROWD, redirected_share)),
        reason: "",
    },
    Claim {
        figure: "A",
        says: "workload A, Zipf 0.99: reads that the leader answers, of 100",
        paper: Is(29.0),
        ours: |s| percent(s.at(FLAIR, CROWD, leader_share)),
        reason: "",
    },
    Claim {
        figure: "A",
        says: "workload A, Zipf 0.99: follower leases: the same",
        paper: Is(37.0),
        ours: |s| percent(s.at(LEASES, CROWD, leader_share)),
        reason: "",
    },
    Claim {
        figure: "C",
        says: "workload C: FLAIR over follower leases",
        paper: Silent,
        ours: |s| gain(s, FLAIR, LEASES, CROWD),
        reason: "",
    },
    Claim {
        figure: "C",
        says: "workload C: FLAIR over Opt. Raft",
        paper: Is(2.8),
        ours: |s| gain(s, FLAIR, LEADER, CROWD),
        reason: "",
    },
    Claim {
        figure: "1M",
        says: "a million keys: FLAIR over follower leases, uniform",
        paper: Silent,
        ours: |s| gain(s, FLAIR, LEASES, 0.0),
        reason: "\"slightly higher\" than with 100,000",
    },
    Claim {
        figure: "1M",
        says: "a million keys: FLAIR over follower leases, Zipf 0.99",
        paper: Silent,
        ours: |s| gain(s, FLAIR, LEASES, 0.99),
        reason: "",
    },
    Claim {
        figure: "groups",
        says: "Zipf 0.99: 65,536 groups over 4,096",
        paper: Silent,
        ours: |s| over(s.at(1, groups_at(16), total), s.at(1, groups_at(12), total)),
        reason: "hot keys are what is unstable, not their neighbours",
    },
    Claim {
        figure: "groups",
        says: "uniform: 64 groups over 4,096",
        paper: Silent,
        ours: |s| over(s.at(0, groups_at(6), total), s.at(0, groups_at(12), total)),
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
