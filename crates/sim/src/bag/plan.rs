//! The part of a run that is drawn before its steps.

use concord_core::{Guards, MS, Rng};
use concord_wire::control::{Program, Protocol};

use crate::systems::store::plan::any_protocol;
use crate::systems::store::written::protocol_name;

/// The parameters of a run, drawn from a seed; its steps are drawn later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BagPlan {
    /// The seed.
    pub seed: u64,
    /// The replication protocol.
    pub protocol: Protocol,
    /// The number of replicas.
    pub replicas: usize,
    /// The number of client processes.
    pub clients: usize,
    /// The switch program.
    pub program: Program,
    /// The number of steps before everything is delivered fairly.
    pub steps: u64,
    /// Whether the group is open before the first step.
    pub begins_open: bool,
    /// The number of slots of the dirty set.
    pub slots: u32,
    /// The duration of a lease, in ns.
    pub lease_ns: u64,
    /// The time of silence after which a replica is removed, in ns.
    pub failure_ns: u64,
    /// The approximate size of a chunk of a copy, in bytes.
    pub copy_bytes: usize,
    /// VR, NOPaxos: the approximate number of executed records that are retained.
    pub records_kept: usize,
    /// Whether storage engines answer later.
    pub engine_is_slow: bool,
    /// Whether clocks differ, and drift.
    pub drifts: bool,
    /// The guards that are on.
    pub guards: Guards,
}

impl BagPlan {
    /// Draws the plan of a seed, for the given protocol or for any.
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
