//! A run of a bag's group: all its steps, then its fair end.

use concord_core::MS;

use super::choose::Chooser;
use super::group::{Group, Step};
use super::plan::BagPlan;
use crate::describe::describe;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct BagOutcome {
    /// The violation, if there was one.
    pub violation: Option<String>,
    /// The hash of all steps.
    pub digest: u64,
    /// The counts of the run.
    pub totals: BagTotals,
}

/// The counts of runs, by which runs that exercise too little are noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BagTotals {
    /// Runs.
    pub runs: u64,
    /// Steps, without those of the fair ends.
    pub steps: u64,
    /// Distinct packets.
    pub packets: u64,
    /// Calls answered.
    pub answered: u64,
    /// Calls without an answer.
    pub unknown: u64,
    /// Epochs, or views, that were decided.
    pub epochs: u64,
    /// Runs that ended with a group beyond its failure bound.
    pub lost: u64,
}

impl BagTotals {
    pub(super) fn add(&mut self, other: &BagTotals) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.packets += other.packets;
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.epochs += other.epochs;
        self.lost += other.lost;
    }
}

/// Runs a plan.
#[must_use]
pub fn run_bag(plan: &BagPlan) -> BagOutcome {
    run_noted(plan).0
}

/// Runs a plan; returns its steps, too.
pub(super) fn run_noted(plan: &BagPlan) -> (BagOutcome, Vec<Step>) {
    let mut group = Group::new(*plan);
    if plan.begins_open {
        group.begin();
    }
    let mut chooser = Chooser::new(plan.seed, plan.steps);
    let mut steps = Vec::with_capacity(plan.steps as usize);
    for _ in 0..plan.steps {
        if group.wrong.is_some() {
            break;
        }
        let step = chooser.next(&mut group);
        group.take(&step);
        steps.push(step);
    }
    (end(group, steps.len()), steps)
}

/// Runs a plan with these steps instead of those that its seed draws. A step that is not possible
/// is skipped.
pub(super) fn run_steps(plan: &BagPlan, steps: &[Step]) -> BagOutcome {
    let mut group = Group::new(*plan);
    if plan.begins_open {
        group.begin();
    }
    for step in steps {
        if group.wrong.is_some() {
            break;
        }
        group.take(step);
    }
    end(group, steps.len())
}

fn end(mut group: Group, steps: usize) -> BagOutcome {
    let mut lost = false;
    if group.wrong.is_none() {
        lost = !group.come_to_rest(group.plan.seed);
    }
    let epochs = (0..group.slots.len()).map(|node| group.epoch_of(node)).max().unwrap_or(0);
    let totals = BagTotals {
        runs: 1,
        steps: steps as u64,
        packets: group.bag.flights.len() as u64,
        answered: group.calls.answered.iter().sum(),
        unknown: group.calls.unknown,
        epochs: u64::from(epochs),
        lost: u64::from(lost),
    };
    BagOutcome { violation: group.wrong, digest: group.digest, totals }
}

/// The descriptions of steps, as they happen in a run.
pub(super) fn narrate(plan: &BagPlan, steps: &[Step]) -> Vec<String> {
    let mut group = Group::new(*plan);
    if plan.begins_open {
        group.begin();
    }
    let mut lines = Vec::new();
    for step in steps {
        let at_ms = group.now_ns as f64 / MS as f64;
        let text = match step {
            Step::Deliver(name) => match group.bag.find(name) {
                Some(id) => {
                    let flight = &group.bag.flights[id as usize];
                    let (from, to) = (usize::from(flight.from), usize::from(flight.to));
                    let (_, what) = describe(&flight.bytes);
                    format!("{} to {}: {what}", group.name_of(from), group.name_of(to))
                }
                None => continue,
            },
            Step::Tick(node) => format!("{} looks at the time", group.name_of(usize::from(*node))),
            Step::Pass(ns) => format!("{} us pass", ns / 1_000),
            other => format!("{other:?}"),
        };
        lines.push(format!("{at_ms:10.3} ms  {text}"));
        group.take(step);
    }
    lines
}
