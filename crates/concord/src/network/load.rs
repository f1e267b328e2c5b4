//! `--find-load`: the highest load that a transport carries.
//!
//! A load is carried if at least 99% of the bytes that flows offer between the warm-up and the last
//! arrival arrive in that period. Flows in progress at both ends of the period cancel out, and a
//! growing backlog shows. A transport that rejects messages carries a load only if it rejects none.

use concord_runtime::Error;
use concord_sim::engine::Time;
use concord_sim::net::scenario::{Options, Point, Scenario, TransportKind};

use super::Plan;
use crate::reproduce::Runner;
use crate::results::{Results, Table};

/// Loads are multiples of 1/`STEPS`.
const STEPS: u64 = 100;
/// The minimum share of the offered bytes that has to arrive.
const ARRIVED_SHARE_MIN: f64 = 0.99;

/// The result of a load that was tried, over all seeds.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// The load, in 1/[`STEPS`].
    load: u64,
    /// The ratio of the bytes that arrived to those offered.
    arrived_share: f64,
    /// The number of messages that the transport rejected, if it can reject messages.
    rejected: Option<u64>,
}

impl Tried {
    fn is_carried(&self) -> bool {
        match self.rejected {
            Some(rejected) => rejected == 0,
            None => self.arrived_share >= ARRIVED_SHARE_MIN,
        }
    }
}

/// The search for one transport: the loads in the order in which they were tried, and the highest
/// that is carried.
fn search(
    scenario: &Scenario,
    plan: &Plan,
    transport: TransportKind,
) -> Result<(Vec<Tried>, u64), String> {
    let (mut low, mut high) = (0, STEPS + 1);
    let mut tried = Vec::new();
    while high - low > 1 {
        let middle = low.midpoint(high);
        let seen = tried_at(scenario, plan, transport, middle)?;
        tried.push(seen);
        if seen.is_carried() {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok((tried, low))
}

/// Runs all seeds at a load.
fn tried_at(
    scenario: &Scenario,
    plan: &Plan,
    transport: TransportKind,
    hundredths: u64,
) -> Result<Tried, String> {
    let options = Options { is_cut_off: true, ..Options::default() };
    let (mut offered, mut arrived, mut rejected) = (0, 0, None);
    for &seed in &plan.seeds {
        let load = Some(hundredths as f64 / STEPS as f64);
        let point = Point { transport, load, seed };
        let (experiment, outcome) = scenario.run(&point, &options).map_err(|e| e.to_string())?;
        let is_measured = |at: Time| at >= experiment.warm_up;
        let flows = experiment.flows.iter().filter(|flow| is_measured(flow.at));
        offered += flows.map(|flow| flow.spec.bytes).sum::<u64>();
        arrived += outcome.arrived_bytes;
        if let Some(count) = outcome.rejected {
            rejected = Some(rejected.unwrap_or(0) + count);
        }
    }
    let arrived_share = arrived as f64 / (offered as f64).max(1.0);
    Ok(Tried { load: hundredths, arrived_share, rejected })
}

/// Searches for the loads of all transports side by side.
///
/// # Errors
/// A workload without a load, or results that cannot be written.
pub fn find(
    scenario: &Scenario,
    plan: &Plan,
    runner: &Runner,
    results: impl Fn() -> Result<Results, Error>,
) -> Result<(), Error> {
    let all = runner.each("--find-load", &plan.transports, |&t| search(scenario, plan, t));
    runner.finish();
    let all = all?;
    println!(
        "carried: at least 99% of the bytes offered after the warm-up arrive by the last arrival; of a \
         transport that rejects messages, none is rejected"
    );
    let mut table = Table::new(&["transport", "load", "arrived_share", "rejected", "carried"]);
    for (transport, (tried, _)) in plan.transports.iter().zip(&all) {
        let mut tried = tried.clone();
        tried.sort_by_key(|seen| seen.load);
        for seen in tried {
            table.row(vec![
                transport.name().into(),
                (seen.load as f64 / STEPS as f64).to_string(),
                format!("{:.4}", seen.arrived_share),
                seen.rejected.map_or("-".into(), |count| count.to_string()),
                seen.is_carried().to_string(),
            ]);
        }
    }
    table.print();
    println!();
    for (transport, (_, highest)) in plan.transports.iter().zip(&all) {
        println!("{}: highest load {}", transport.name(), *highest as f64 / STEPS as f64);
    }
    results()?.csv("find-load", &table)
}
