//! What a seed draws: the rack, the workload's size and the faults.

use concord_core::{Duration, Guards, MS, Rng, US};
use concord_wire::control::Protocol;

/// Makes the draw of CRAQ one of its own.
const CRAQ: u64 = 0x6372_6171;

/// One fault, at a time of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A replica stops for so long and goes on, its packets waiting for it (trap T1).
    Pause {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// A replica dies for good.
    Kill {
        /// Which replica, from 0.
        replica: usize,
    },
    /// A replica dies and is back at once, empty (trap T4).
    Restart {
        /// Which replica, from 0.
        replica: usize,
    },
    /// A replica is cut off from the other replicas and the controller, not from the switch (T2).
    Isolate {
        /// Which replica, from 0.
        replica: usize,
        /// For how long, in ns.
        for_ns: Duration,
        /// The controller does not reach the switch meanwhile either.
        stale_switch: bool,
    },
    /// The replicas from `first` on are cut off together from those before and from the controller,
    /// not from the switch, which the controller does not reach meanwhile either (trap T25).
    Detach {
        /// The first of them, from 0.
        first: usize,
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// The switch is replaced by one that knows nothing.
    RestartSwitch,
    /// The controller stops and goes on.
    PauseController {
        /// For how long, in ns.
        for_ns: Duration,
    },
    /// A client process dies with its requests under way, and a new one takes its place.
    RestartClient {
        /// Which client process, from 0.
        client: usize,
    },
}

/// A whole run, drawn from one seed; change fields to aim.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// How the replicas replicate.
    pub protocol: Protocol,
    /// Whether the switch helps.
    pub accelerated: bool,
    /// The ordering node's replies are replicated, as over redis-servers: it executes first.
    pub replicate_replies: bool,
    /// Number of replicas.
    pub replicas: usize,
    /// Client processes, each with a session of its own.
    pub clients: usize,
    /// Connections of each client process; one operation at a time each.
    pub connections: usize,
    /// Operations of the whole run.
    pub operations: usize,
    /// Number of keys.
    pub keys: u64,
    /// Writes among 100 operations.
    pub writes_percent: u64,
    /// Longest pause of a connection between two operations, in ns.
    pub think_ns: Duration,
    /// Stages of the switch's table.
    pub table_stages: u8,
    /// Slots of each stage.
    pub slots: u32,
    /// Packets lost, per million.
    pub loss_ppm: u64,
    /// Packets duplicated, per million.
    pub duplicate_ppm: u64,
    /// Packets delayed by up to `delay_ns`, per million; others overtake them.
    pub reorder_ppm: u64,
    /// One way from node to node, in ns.
    pub latency_ns: Duration,
    /// One way between two replicas, in ns.
    pub peer_latency_ns: Duration,
    /// Longest extra delay, in ns.
    pub delay_ns: Duration,
    /// How long leases last, in ns.
    pub lease_ns: Duration,
    /// Silence after which a replica is removed, in ns.
    pub failure_ns: Duration,
    /// Faults and when they happen.
    pub faults: Vec<(Duration, Fault)>,
    /// Which guards are on.
    pub guards: Guards,
}

impl Plan {
    /// What `seed` draws.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let rough = rng.chance(3, 4);
        let ppm = |rng: &mut Rng, most: u64| if rough { rng.below(most) } else { 0 };
        let chain = rng.chance(1, 2);
        let replicas = [2, 3, 3, 3, 4][rng.below(5) as usize];
        let mut plan = Plan {
            seed,
            protocol: if chain { Protocol::Chain } else { Protocol::PrimaryBackup },
            accelerated: !rng.chance(1, 10),
            replicate_replies: false,
            replicas,
            clients: rng.between(1, 3) as usize,
            connections: rng.between(2, 4) as usize,
            operations: rng.between(300, 500) as usize,
            keys: rng.between(2, 8),
            writes_percent: rng.between(20, 60),
            think_ns: rng.below(4_000) * US,
            table_stages: rng.between(1, 3) as u8,
            slots: 1 << rng.below(7),
            loss_ppm: ppm(rng, 40_000),
            duplicate_ppm: ppm(rng, 40_000),
            reorder_ppm: ppm(rng, 100_000),
            latency_ns: rng.between(20, 200) * US,
            peer_latency_ns: rng.between(20, 2_000) * US,
            delay_ns: rng.between(1, 20) * MS,
            lease_ns: rng.between(60, 150) * MS,
            failure_ns: rng.between(450, 600) * MS,
            faults: Vec::new(),
            guards: Guards::ALL,
        };
        // The failure bound: one replica is spared, whichever of the others fail.
        let spared = rng.below(replicas as u64) as usize;
        for _ in 0..rng.below(4) {
            let at = rng.between(50, 900) * MS;
            let other = rng.below(replicas as u64 - 1) as usize;
            let replica = if other < spared { other } else { other + 1 };
            let for_ns = rng.between(50, 1_500) * MS;
            let fault = match rng.below(8) {
                0 => Fault::Pause { replica, for_ns },
                1 => Fault::Kill { replica },
                2 => Fault::Restart { replica },
                3 | 4 => Fault::Isolate { replica, for_ns, stale_switch: rng.chance(1, 2) },
                5 => Fault::RestartSwitch,
                6 => Fault::PauseController { for_ns },
                _ => Fault::RestartClient { client: rng.below(plan.clients as u64) as usize },
            };
            plan.faults.push((at, fault));
        }
        plan.faults.sort_by_key(|(at, _)| *at);
        // Drawn apart, so that the other seeds stay what they were.
        if Rng::new(seed ^ CRAQ).chance(1, 3) { plan.under_craq() } else { plan }
    }

    /// The same under CRAQ, which no switch helps.
    #[must_use]
    pub fn under_craq(self) -> Plan {
        let replicate_replies = Rng::new(self.seed ^ !CRAQ).chance(1, 4);
        Plan { protocol: Protocol::Craq, accelerated: false, replicate_replies, ..self }
    }
}
