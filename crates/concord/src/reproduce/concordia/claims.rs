//! The paper's statements about its figures, as numbers where its text has some, compared with
//! measurements.

use concord_sim::concordia::load::Measured;

use super::figures::{BASE, CONCORDIA, GAM, GAM_SMALL, GRAPPA};
use super::seen::Seen;
use crate::reproduce::claims::Paper::{Above, Below, Is, Silent};
use crate::reproduce::claims::{ClaimOf, exact, over, table_of};
use crate::reproduce::runner::Mean;

/// The reason why our GAM differs from the paper's.
const NOT_GAM: &str = "ours has GAM's protocol and not its code, and its writes wait for nobody: \
                       how much each explains was not measured";

/// A statement about one figure.
pub type Claim = ClaimOf<fn(&Seen) -> Option<Mean>>;

fn speed(m: &Measured) -> f64 {
    m.per_second() / 1e6
}

/// The ratio of the throughput of one line to that of another.
fn gain(seen: &Seen, line: usize, other: usize, x: f64) -> Option<Mean> {
    over(seen.at(line, x, speed), seen.at(other, x, speed))
}

/// The minimum or the maximum of that ratio at these positions.
fn bound(seen: &Seen, lines: (usize, usize), at: &[f64], is_least: bool) -> Option<Mean> {
    let gains = at.iter().map(|x| gain(seen, lines.0, lines.1, *x).map(|m| m.mean));
    let gains = gains.collect::<Option<Vec<f64>>>()?;
    let least = if is_least { f64::min } else { f64::max };
    exact(gains.into_iter().reduce(least))
}

/// The ratio of a line's value at one x to that at another.
fn fall(seen: &Seen, line: usize, from: f64, to: f64) -> Option<Mean> {
    over(seen.at(line, from, speed), seen.at(line, to, speed))
}

const SHARED: [f64; 4] = [40.0, 60.0, 80.0, 100.0];
const FEW_READS: [f64; 3] = [0.0, 20.0, 40.0];

/// All statements.
pub const CLAIMS: &[Claim] = &[
    Claim {
        figure: "9",
        says: "the base's fall from no sharing to all",
        paper: Is(3.8),
        ours: |seen| fall(seen, BASE, 0.0, 100.0),
        reason: "",
    },
    Claim {
        figure: "9",
        says: "figure 2(a): GAM's loss at 20% shared, percent",
        paper: Is(75.0),
        ours: |seen| {
            let lost = fall(seen, GAM, 20.0, 0.0)?;
            Some(Mean { mean: 100.0 * (1.0 - lost.mean), half: 100.0 * lost.half })
        },
        reason: NOT_GAM,
    },
    Claim {
        figure: "9",
        says: "GAM's fall from no sharing to all",
        paper: Is(17.0),
        ours: |seen| fall(seen, GAM, 0.0, 100.0),
        reason: "the same; and its writes wait for nobody",
    },
    Claim {
        figure: "9",
        says: "the same of blocks of 512 bytes, GAM's default",
        paper: Silent,
        ours: |seen| fall(seen, GAM_SMALL, 0.0, 100.0),
        reason: "",
    },
    Claim {
        figure: "9",
        says: "no sharing: GAM over Concordia",
        paper: Above(1.0),
        ours: |seen| gain(seen, GAM, CONCORDIA, 0.0),
        reason: "fully associative, as GAM's cache",
    },
    Claim {
        figure: "9",
        says: "the base over GAM, least of 20% shared and more",
        paper: Is(1.25),
        ours: |seen| bound(seen, (BASE, GAM), &[20.0, 40.0, 60.0, 80.0, 100.0], true),
        reason: NOT_GAM,
    },
    Claim {
        figure: "9",
        says: "the same, most",
        paper: Is(3.5),
        ours: |seen| bound(seen, (BASE, GAM), &[20.0, 40.0, 60.0, 80.0, 100.0], false),
        reason: "",
    },
    Claim {
        figure: "9",
        says: "Concordia over the base above 20% shared, least",
        paper: Is(1.3),
        ours: |seen| bound(seen, (CONCORDIA, BASE), &SHARED, true),
        reason: "",
    },
    Claim {
        figure: "9",
        says: "the same, most",
        paper: Is(1.48),
        ours: |seen| bound(seen, (CONCORDIA, BASE), &SHARED, false),
        reason: "",
    },
    Claim {
        figure: "9",
        says: "all shared: Concordia over GAM",
        paper: Silent,
        ours: |seen| gain(seen, CONCORDIA, GAM, 100.0),
        reason: "the protocol's part",
    },
    Claim {
        figure: "9",
        says: "figure 2(b): GAM's packets an access, all shared over 20%",
        paper: Silent,
        ours: |seen| {
            over(
                seen.at(GAM, 100.0, Measured::packets_each),
                seen.at(GAM, 20.0, Measured::packets_each),
            )
        },
        reason: "18 in the paper, of 20% shared over none, where ours sends none: its cache holds all",
    },
    Claim {
        figure: "9",
        says: "figure 10: packets of home agents, base over Concordia, 80% shared",
        paper: Is(4.8),
        ours: |seen| {
            let at = |line| seen.at(line, 80.0, Measured::home_packets_each);
            over(at(BASE), at(CONCORDIA))
        },
        reason: "an access, and \"up to\"; all shared, homes have none: the switch owns all blocks",
    },
    Claim {
        figure: "9",
        says: "figure 10: Concordia's packets of home agents, all shared over 20%",
        paper: Below(1.1),
        ours: |seen| {
            let at = |x| seen.at(CONCORDIA, x, Measured::home_packets_each);
            over(at(100.0), at(20.0))
        },
        reason: "steady, the paper says; the bound is ours",
    },
    Claim {
        figure: "9",
        says: "all shared: Concordia's accesses that need no message, percent",
        paper: Is(39.0),
        ours: |seen| {
            seen.at(CONCORDIA, 100.0, |m| 100.0 * m.hits as f64 / m.accesses.max(1) as f64)
        },
        reason: "uniform accesses of 8 nodes, half of them writes, hit no more: the paper's are of another distribution",
    },
    Claim {
        figure: "9",
        says: "all shared: Concordia's packets at hosts an access",
        paper: Silent,
        ours: |seen| seen.at(CONCORDIA, 100.0, Measured::packets_each),
        reason: "sent and received, with unlocks and their answers",
    },
    Claim {
        figure: "9",
        says: "the same of the base",
        paper: Silent,
        ours: |seen| seen.at(BASE, 100.0, Measured::packets_each),
        reason: "",
    },
    Claim {
        figure: "9",
        says: "the same of GAM, unlocks left out",
        paper: Silent,
        ours: |seen| seen.at(GAM, 100.0, Measured::packets_each),
        reason: "",
    },
    Claim {
        figure: "11-20",
        says: "below 50% reads, 20% shared: Concordia over the base",
        paper: Is(1.22),
        ours: |seen| bound(seen, (CONCORDIA, BASE), &FEW_READS, false),
        reason: "",
    },
    Claim {
        figure: "11-20",
        says: "the same: Concordia over GAM, most",
        paper: Is(3.9),
        ours: |seen| bound(seen, (CONCORDIA, GAM), &FEW_READS, false),
        reason: NOT_GAM,
    },
    Claim {
        figure: "11-60",
        says: "below 50% reads, 60% shared: Concordia over the base",
        paper: Is(1.5),
        ours: |seen| bound(seen, (CONCORDIA, BASE), &FEW_READS, false),
        reason: "",
    },
    Claim {
        figure: "11-60",
        says: "the same: Concordia over GAM, most",
        paper: Is(5.1),
        ours: |seen| bound(seen, (CONCORDIA, GAM), &FEW_READS, false),
        reason: NOT_GAM,
    },
    Claim {
        figure: "11-60",
        says: "all reads, 60% shared: Concordia, million a second",
        paper: Is(60.0),
        ours: |seen| seen.at(CONCORDIA, 100.0, speed),
        reason: "not explained",
    },
    Claim {
        figure: "11-60",
        says: "the same of GAM",
        paper: Is(16.0),
        ours: |seen| seen.at(GAM, 100.0, speed),
        reason: "",
    },
    Claim {
        figure: "12",
        says: "80% local over none: Concordia",
        paper: Above(1.0),
        ours: |seen| fall(seen, CONCORDIA, 80.0, 0.0),
        reason: "",
    },
    Claim {
        figure: "12",
        says: "the same of Grappa",
        paper: Is(1.0),
        ours: |seen| fall(seen, GRAPPA, 80.0, 0.0),
        reason: "no cache",
    },
    Claim {
        figure: "12",
        says: "all local: Concordia, million a second (fitted)",
        paper: Is(133.0),
        ours: |seen| seen.at(CONCORDIA, 100.0, speed),
        reason: "",
    },
    Claim {
        figure: "12",
        says: "all local: GAM, million a second (fitted)",
        paper: Is(23.0),
        ours: |seen| seen.at(GAM, 100.0, speed),
        reason: "",
    },
    Claim {
        figure: "half",
        says: "messages at half the cost, all shared: Concordia over the base",
        paper: Silent,
        ours: |seen| gain(seen, CONCORDIA, BASE, 100.0),
        reason: "",
    },
    Claim {
        figure: "half",
        says: "the same: Concordia over GAM",
        paper: Silent,
        ours: |seen| gain(seen, CONCORDIA, GAM, 100.0),
        reason: "",
    },
    Claim {
        figure: "double",
        says: "messages at twice the cost, all shared: Concordia over the base",
        paper: Silent,
        ours: |seen| gain(seen, CONCORDIA, BASE, 100.0),
        reason: "",
    },
    Claim {
        figure: "double",
        says: "the same: Concordia over GAM",
        paper: Silent,
        ours: |seen| gain(seen, CONCORDIA, GAM, 100.0),
        reason: "",
    },
];

/// The table, in Markdown.
pub fn table(all: &[(&'static str, Seen)]) -> String {
    let row = |claim: &Claim| {
        let (_, seen) = all.iter().find(|(of, _)| *of == claim.figure)?;
        Some(claim.row((claim.ours)(seen)?))
    };
    table_of(CLAIMS.iter().filter_map(row), 2)
}

#[cfg(test)]
mod tests {
    use super::super::figures::NAMES;
    use super::*;

    #[test]
    fn every_claim_is_about_a_figure_that_is_run() {
        for claim in CLAIMS {
            assert!(NAMES.contains(&claim.figure), "{}", claim.figure);
        }
    }
}
