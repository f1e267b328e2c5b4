//! The part of a run that a seed draws before its steps.

use concord_core::{Guards, MS, Rng};
use concord_wire::control::{Program, Protocol};

use crate::systems::store::plan::any_protocol;
use crate::systems::store::written::protocol_name;

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
