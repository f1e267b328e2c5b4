//! What the paper says of its figures, in numbers where its text has some, beside what was seen.

use std::fmt::Write;

use concord_sim::load::Measured;

use super::figures::Figure;
use super::runner::{Mean, Seen};

/// A statement of the paper about a figure.
struct Claim {
    figure: &'static str,
    /// In the paper's words, shortened.
    says: &'static str,
    /// The paper's number.
    paper: f64,
    /// The same from our runs; `None` if a point is missing.
    ours: fn(&Seen) -> Option<Mean>,
    /// Why it differs, or where the number comes from.
    reason: &'static str,
}

fn total(m: &Measured) -> f64 {
    m.total()
}

fn reads(m: &Measured) -> f64 {
    m.reads_per_second
}

fn writes(m: &Measured) -> f64 {
    m.writes_per_second
}

fn read_us(m: &Measured) -> f64 {
    m.read.mean_ns / 1e3
}

/// `a / b`, with the interval that both bring.
fn over(a: Option<Mean>, b: Option<Mean>) -> Option<Mean> {
    let (a, b) = (a?, b?);
    let mean = a.mean / b.mean;
    let relative = (a.half / a.mean).hypot(b.half / b.mean);
    Some(Mean { mean, half: mean * relative })
}

/// Harmonia over CR at x.
fn gain(seen: &Seen, x: f64, value: fn(&Measured) -> f64) -> Option<Mean> {
    over(seen.at(1, x, value), seen.at(0, x, value))
}

fn millions(mean: Option<Mean>) -> Option<Mean> {
    mean.map(|m| Mean { mean: m.mean / 1e6, half: m.half / 1e6 })
}

/// Operations a second between two times of a timeline, in s, of Harmonia.
fn between(seen: &Seen, from_s: f64, to_s: f64) -> Option<f64> {
    let (_, measured) = seen.points.iter().find(|p| p.series == 1)?.runs.first()?;
    let buckets = measured.buckets.get((2.0 * from_s) as usize..(2.0 * to_s) as usize)?;
    Some(buckets.iter().sum::<u64>() as f64 / (to_s - from_s))
}

fn exact(value: Option<f64>) -> Option<Mean> {
    value.map(|mean| Mean { mean, half: 0.0 })
}

const CLAIMS: &[Claim] = &[
    Claim {
        figure: "5a",
        says: "CR's reads are bounded by one server (M/s)",
        paper: 0.92,
        ours: |s| millions(exact(s.most(0, total))),
        reason: "the service time is the paper's",
    },
    Claim {
        figure: "5a",
        says: "Harmonia uses all three replicas: its reads over CR's",
        paper: 3.0,
        ours: |s| over(exact(s.most(1, total)), exact(s.most(0, total))),
        reason: "replicas are chosen by hash, so that their queues differ in length",
    },
    Claim {
        figure: "5b",
        says: "write-only: Harmonia over CR (\"identical\")",
        paper: 1.0,
        ours: |s| over(exact(s.most(1, total)), exact(s.most(0, total))),
        reason: "",
    },
    Claim {
        figure: "6a",
        says: "reads over CR's at a low write rate (0.1 M/s here)",
        paper: 3.0,
        ours: |s| gain(s, 0.1, reads),
        reason: "",
    },
    Claim {
        figure: "6a",
        says: "reads over CR's at a high write rate (\"similar\"; 0.78 M/s here)",
        paper: 1.0,
        ours: |s| gain(s, 0.78, reads),
        reason: "writes take almost all of each server: what is left for reads is small, and three times as much with three replicas",
    },
    Claim {
        figure: "6b",
        says: "write-only: Harmonia over CR (\"little benefit\")",
        paper: 1.0,
        ours: |s| gain(s, 100.0, total),
        reason: "",
    },
    Claim {
        figure: "7a",
        says: "Harmonia outperforms CR regardless of the value size: over CR at 1,024 bytes",
        paper: 3.0,
        ours: |s| gain(s, 1_024.0, total),
        reason: "no number in the text; the read-only bound is 3, with 5% writes 2.74",
    },
    Claim {
        figure: "7b",
        says: "not affected by the dataset size: 100 M objects over 1 M",
        paper: 1.0,
        ours: |s| over(s.at(1, 100.0, total), s.at(1, 1.0, total)),
        reason: "",
    },
    Claim {
        figure: "8b",
        says: "YCSB (95% reads): a substantial improvement, over CR",
        paper: 3.0,
        ours: |s| gain(s, 1.0, total),
        reason: "no number in the text: the bound of three replicas",
    },
    Claim {
        figure: "8b",
        says: "Epinions (50% reads): a modest one",
        paper: 1.3,
        ours: |s| gain(s, 2.0, total),
        reason: "no number in the text: 1.35 is what the service times allow",
    },
    Claim {
        figure: "8b",
        says: "Voter (100% writes): none, and no penalty",
        paper: 1.0,
        ours: |s| gain(s, 3.0, total),
        reason: "",
    },
    Claim {
        figure: "9a",
        says: "reads only, 10 replicas: over CR",
        paper: 10.0,
        ours: |s| gain(s, 10.0, total),
        reason: "",
    },
    Claim {
        figure: "9b",
        says: "writes only: no benefit regardless of replicas (10)",
        paper: 1.0,
        ours: |s| gain(s, 10.0, total),
        reason: "",
    },
    Claim {
        figure: "9b",
        says: "writes only: CR stays the same as replicas are added: 10 over 1",
        paper: 1.0,
        ours: |s| over(s.at(0, 10.0, total), s.at(0, 1.0, total)),
        reason: "",
    },
    Claim {
        figure: "9c",
        says: "5% writes: nearly linear: 10 replicas over 1",
        paper: 10.0,
        ours: |s| over(s.at(1, 10.0, total), s.at(1, 1.0, total)),
        reason: "every replica executes every write: 6.7 is what the service times allow; the paper's text names the tail as the bottleneck at 10, and gives no number",
    },
    Claim {
        figure: "9f",
        says: "20% writes: keeps increasing: 10 replicas over 5",
        paper: 1.0,
        ours: |s| over(s.at(1, 10.0, total), s.at(1, 5.0, total)),
        reason: "no number in the text: above 1 is the claim",
    },
    Claim {
        figure: "11a",
        says: "scales with racks: 3 racks over 1",
        paper: 3.0,
        ours: |s| over(s.at(1, 3.0, total), s.at(1, 1.0, total)),
        reason: "5% writes are executed by all 12 replicas",
    },
    Claim {
        figure: "11b",
        says: "a slight increase in latency: Harmonia's read over CR's",
        paper: 1.0,
        ours: |s| gain(s, 1.0, read_us),
        reason: "the programmable switch is 300 ns slower here, passed twice",
    },
    Claim {
        figure: "13a",
        says: "about 2,000 slots are enough: 1,536 over 196,608, uniform",
        paper: 1.0,
        ours: |s| over(s.at(0, 8.0, total), s.at(0, 9.0, total)),
        reason: "",
    },
    Claim {
        figure: "13a",
        says: "below, skewed workloads suffer more: zipf over uniform at 96 slots",
        paper: 1.0,
        ours: |s| over(s.at(1, 4.0, total), s.at(0, 4.0, total)),
        reason: "no number in the text: below 1 is the claim",
    },
    Claim {
        figure: "13b",
        says: "fewer reads with more writes in flight: 20,000 of 100,000 objects over none",
        paper: 1.0,
        ours: |s| over(s.at(0, 20_000.0, reads), s.at(0, 0.0, reads)),
        reason: "no number in the text: below 1 is the claim; a fifth of the reads, and a third of the rest, go to the tail: 0.71",
    },
    Claim {
        figure: "13b",
        says: "the effect is smaller with more objects: the same of 10 M",
        paper: 1.0,
        ours: |s| over(s.at(2, 20_000.0, reads), s.at(2, 0.0, reads)),
        reason: "",
    },
    Claim {
        figure: "13c",
        says: "significant improvements with slower storage too: over CR at 16 us",
        paper: 3.0,
        ours: |s| gain(s, 16.0, total),
        reason: "no number in the text",
    },
    Claim {
        figure: "13d",
        says: "no significant difference in throughput: Harmonia over a direct link",
        paper: 1.0,
        ours: |s| over(exact(s.most(2, total)), exact(s.most(0, total))),
        reason: "",
    },
    Claim {
        figure: "14a",
        says: "CRAQ's write throughput is much lower: its highest rate over CR's",
        paper: 1.0,
        ours: |s| over(exact(s.most(3, writes)), exact(s.most(1, writes))),
        reason: "no number in the text: below 1 is the claim. With two phases as in the paper; ours holds writes back and executes once, and is as fast as CR",
    },
    Claim {
        figure: "14a",
        says: "CR achieves higher write throughput than PB: its highest rate over PB's",
        paper: 1.0,
        ours: |s| over(exact(s.most(1, writes)), exact(s.most(0, writes))),
        reason: "no number in the text: above 1 is the claim. What is other is the acknowledgements of two backups, a tenth of a write each here",
    },
    Claim {
        figure: "14a",
        says: "Harmonia (CR) performs much better than CRAQ: reads at 0.3 M writes/s",
        paper: 1.0,
        ours: |s| over(s.at(5, 0.3, reads), s.at(3, 0.3, reads)),
        reason: "no number in the text: above 1 is the claim",
    },
    Claim {
        figure: "14a",
        says: "CRAQ as Harmonia without writes: reads",
        paper: 1.0,
        ours: |s| over(s.at(3, 0.0, reads), s.at(5, 0.0, reads)),
        reason: "",
    },
    Claim {
        figure: "15",
        says: "throughput drops to zero while the switch is stopped (operations/s)",
        paper: 0.0,
        ours: |s| exact(between(s, 21.0, 24.0)),
        reason: "",
    },
    Claim {
        figure: "15",
        says: "and is back within a few seconds: 2 s after over before",
        paper: 1.0,
        ours: |s| exact(Some(between(s, 26.0, 40.0)? / between(s, 5.0, 20.0)?)),
        reason: "",
    },
];

/// The table, in Markdown.
pub fn table(all: &[(Figure, Seen)]) -> String {
    let mut text = "| figure | the paper says | paper | ours | ours / paper | |\n\
                    |---|---|---|---|---|---|\n"
        .to_string();
    for claim in CLAIMS {
        let Some((_, seen)) = all.iter().find(|(f, _)| f.name == claim.figure) else { continue };
        let Some(ours) = (claim.ours)(seen) else { continue };
        let half = if ours.half > 0.005 { format!(" ± {:.2}", ours.half) } else { String::new() };
        let ratio = if claim.paper > 0.0 {
            format!("{:.2}", ours.mean / claim.paper)
        } else {
            "-".to_string()
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.2}{half} | {ratio} | {} |",
            claim.figure, claim.says, claim.paper, ours.mean, claim.reason
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::figures;

    #[test]
    fn every_claim_is_about_a_figure_that_is_run() {
        let figures = figures::all();
        for claim in CLAIMS {
            assert!(figures.iter().any(|f| f.name == claim.figure), "{}", claim.figure);
        }
    }
}
