//! The number of packets that an operation costs each node, counted in runs of reads alone and of
//! writes alone.

use std::fmt::Write;

use concord_runtime::Error;
use concord_sim::load::{Load, Measured, Separate, measure};
use concord_sim::protocol_name;
use concord_wire::control::Protocol;

use crate::reproduce::runner::Runner;
use crate::results::Table;

/// The number of pending operations at which acknowledgements are batched.
const MANY: usize = 288;

/// A case that is counted.
struct Case {
    protocol: Protocol,
    with_help: bool,
    writes_permille: u64,
    outstanding: usize,
    apart: bool,
}

impl Case {
    fn load(&self) -> Load {
        Load {
            writes_permille: self.writes_permille,
            outstanding: self.outstanding,
            completions_separate: self.apart.then_some(Separate::default()),
            ..Load::default()
        }
        .over(self.protocol, self.with_help)
    }

    fn names(&self) -> [String; 3] {
        let help = if self.with_help { " with Harmonia" } else { "" };
        let apart = if self.apart { ", completion apart" } else { "" };
        let operation = if self.writes_permille == 0 { "read" } else { "write" };
        [
            format!("{}{help}", protocol_name(self.protocol)),
            format!("{operation}{apart}"),
            self.outstanding.to_string(),
        ]
    }
}

fn cases() -> Vec<Case> {
    let protocols = [
        (Protocol::PrimaryBackup, false),
        (Protocol::PrimaryBackup, true),
        (Protocol::Chain, false),
        (Protocol::Chain, true),
        (Protocol::Craq, false),
        (Protocol::Vr, false),
        (Protocol::Vr, true),
        (Protocol::NoPaxos, false),
        (Protocol::NoPaxos, true),
    ];
    let mut cases = Vec::new();
    for (protocol, with_help) in protocols {
        let ways = [(0, 1, false), (1_000, 1, false), (1_000, MANY, false), (1_000, 1, true)];
        for (writes_permille, outstanding, apart) in ways {
            // A quorum protocol's completions are separate in any case.
            if !apart || (with_help && !protocol.is_quorum()) {
                cases.push(Case { protocol, with_help, writes_permille, outstanding, apart });
            }
        }
    }
    cases
}

/// The number of runs.
pub fn runs() -> u64 {
    cases().len() as u64
}

/// Runs the cases; returns a table for CSV, and one in Markdown.
///
/// # Errors
/// A rack that did not run: a bug.
pub fn run(runner: &Runner) -> Result<(Table, String), Error> {
    let cases = cases();
    let loads: Vec<Load> = cases.iter().map(Case::load).collect();
    let all = runner.each("messages", &loads, measure)?;
    let mut table = Table::new(&[
        "protocol",
        "operation",
        "under_way",
        "switch",
        "head_or_leader",
        "second",
        "third_or_tail",
    ]);
    let mut text = "| protocol | operation | under way | switch | head, leader | second | \
                    third, tail |\n|---|---|---|---|---|---|---|\n"
        .to_string();
    for (case, measured) in cases.iter().zip(&all) {
        let cells = [case.names().to_vec(), each(measured)].concat();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        table.row(cells.into_iter().map(|cell| cell.replace(',', ";")).collect());
    }
    Ok((table, text))
}

/// The packets that each node received and sent, per answered operation.
fn each(measured: &Measured) -> Vec<String> {
    let per_operation = |count: u64| format!("{:.2}", count as f64 / measured.answered as f64);
    measured.packets.iter().map(|p| per_operation(p.got + p.sent)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three replicas, one operation at a time: the count in the protocols' papers. The switch
    /// receives and sends each packet once; a replica receives the write or the record, sends it
    /// on, and receives its acknowledgement.
    #[test]
    fn messages_of_a_write_in_a_chain_are_as_the_protocol_says() {
        let (_, text) = run(&Runner::new(2, runs())).unwrap();
        assert_eq!(text.lines().count() as u64, runs() + 2);
        let line = text.lines().find(|l| l.starts_with("| chain | write | 1 |")).unwrap();
        let counts: Vec<f64> =
            line.split('|').skip(4).filter_map(|c| c.trim().parse().ok()).collect();
        // Switch: write in and out, reply in and out. Head: write, record, acknowledgement. Middle:
        // record in and out, acknowledgement in and out. Tail: record, reply, acknowledgement.
        for (count, expected) in counts.iter().zip([4.0, 3.0, 4.0, 3.0]) {
            assert!((count - expected).abs() < 0.1, "{line}");
        }
    }
}
