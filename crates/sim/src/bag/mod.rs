//! Groups of the shipped machines with no network between them: every packet that was ever sent stays
//! in a bag, and any of it may arrive at any time, late, again, in another incarnation of its
//! receiver. A seed draws what happens, so that there is progress as well (`choose`); invariants are
//! looked at after every step (`watch`), and at the end all is delivered fairly and the group has to
//! come to rest (`rest`).
//!
//! Time is one for all, and each host's clock goes at about its rate, from when it booted: leases count
//! on that. How late a packet is, and how long a node sleeps, is bounded by nothing. Nobody is cut off:
//! what is not chosen does not arrive.
//!
//! ```
//! use concord_sim::bag::{BagPlan, run_bag};
//! use concord_wire::control::Protocol;
//! assert!(run_bag(&BagPlan::draw(7, Some(Protocol::Chain))).violation.is_none());
//! ```

mod calls;
mod choose;
mod group;
mod many;
mod packets;
mod rest;
mod shrink;
mod watch;

use concord_core::{Guards, MS, Rng};
use concord_wire::control::{Program, Protocol};

use choose::Chooser;
use group::{Group, Step};

use crate::describe::describe;
use crate::systems::store::plan::{any_protocol, protocol_name};

pub use many::{BagFound, BagOptions, BagReport, run_bags};
pub use shrink::{Shrunk, shrink_bag};

/// What a seed draws of a run, but for its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BagPlan {
    /// The seed.
    pub seed: u64,
    /// How the replicas replicate.
    pub protocol: Protocol,
    /// How many.
    pub replicas: usize,
    /// How many client processes.
    pub clients: usize,
    /// What the switch runs.
    pub program: Program,
    /// Steps before everything is delivered fairly.
    pub steps: u64,
    /// Whether the group is open before the first step.
    pub begins_open: bool,
    /// Slots of the dirty set.
    pub slots: u32,
    /// How long a lease lasts, in ns.
    pub lease_ns: u64,
    /// A replica that is not heard of for so long is removed, in ns.
    pub failure_ns: u64,
    /// About how many bytes a chunk of a copy has.
    pub copy_bytes: usize,
    /// VR, NOPaxos: about how many executed records are kept.
    pub records_kept: usize,
    /// Whether storage engines answer later.
    pub engine_is_slow: bool,
    /// Whether clocks differ, and drift.
    pub drifts: bool,
    /// Which guards are on.
    pub guards: Guards,
}

impl BagPlan {
    /// The plan of a seed, of a protocol or of any.
    #[must_use]
    pub fn draw(seed: u64, protocol: Option<Protocol>) -> BagPlan {
        let mut rng = Rng::new(seed ^ 0xba6_0f0a);
        let any = any_protocol(seed, &mut rng);
        let protocol = protocol.unwrap_or(any);
        let replicas = if rng.chance(1, 2) { 5 } else { 3 };
        BagPlan {
            seed,
            protocol,
            replicas: if protocol.is_quorum() || rng.chance(1, 4) { replicas } else { 3 },
            clients: rng.between(1, 2) as usize,
            program: Program::of(protocol, protocol != Protocol::Craq && rng.chance(9, 10)),
            steps: rng.between(300, 1_500),
            begins_open: rng.chance(7, 8),
            slots: 1 << rng.below(7),
            lease_ns: rng.between(60, 150) * MS,
            failure_ns: rng.between(200, 600) * MS,
            copy_bytes: rng.between(1, 500) as usize,
            records_kept: if rng.chance(1, 2) { rng.between(1, 20) as usize } else { 32_768 },
            engine_is_slow: rng.chance(1, 4),
            drifts: rng.chance(1, 2),
            guards: Guards::ALL,
        }
    }

    /// The plan in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let help = if self.program.has_dirty_set() { "" } else { " without the switch's help" };
        format!(
            "seed {:#x}: {} replicas, {}{help}, {} steps",
            self.seed,
            self.replicas,
            protocol_name(self.protocol),
            self.steps
        )
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct BagOutcome {
    /// What is wrong.
    pub violation: Option<String>,
    /// The hash of everything that happened.
    pub digest: u64,
    /// What was seen.
    pub totals: BagTotals,
}

/// What runs saw, so that thin ones are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BagTotals {
    /// Runs.
    pub runs: u64,
    /// Steps, those of the fair ends left out.
    pub steps: u64,
    /// Different packets.
    pub packets: u64,
    /// Calls answered.
    pub answered: u64,
    /// Calls without an answer.
    pub unknown: u64,
    /// Epochs decided on, or views.
    pub epochs: u64,
    /// Runs that ended with a group that was beyond its failure bound.
    pub lost: u64,
}

impl BagTotals {
    fn add(&mut self, other: &BagTotals) {
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

/// Runs a plan, and gives its steps.
fn run_noted(plan: &BagPlan) -> (BagOutcome, Vec<Step>) {
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

/// Runs a plan with these steps in the place of those that its seed draws. What a step names and is not
/// there is left out.
fn run_steps(plan: &BagPlan, steps: &[Step]) -> BagOutcome {
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

/// Steps in words, as they happen in a run.
fn narrate(plan: &BagPlan, steps: &[Step]) -> Vec<String> {
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
