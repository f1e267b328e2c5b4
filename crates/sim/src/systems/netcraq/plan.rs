//! A chain of switches, its clients, and faults, drawn from one seed.

use concord_core::{Guards, MS, Rng, SEC, US};
use concord_switch::ChainLayout;
use concord_switch::netcraq::VALUE_BYTES;

use crate::clock::Clock;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A switch pauses for this time, in ns; its packets wait.
    Pause(usize, u64),
    /// A switch ends, and returns after this time, in ns, as another incarnation without content;
    /// `None`: it never returns. Skipped if it is the last switch with everything that was
    /// committed.
    Crash(usize, Option<u64>),
    /// No packet passes between these nodes for this time, in ns.
    Cut(Cut, u64),
    /// The controller ends, and continues from its stored state after this time, in ns.
    Controller(u64),
}

/// The nodes between which no packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A switch and the controller.
    Controller(usize),
    /// A switch on the one side, all other switches and the controller on the other; clients still
    /// reach it.
    AllButClients(usize),
    /// Two switches.
    Pair(usize, usize),
}

impl Cut {
    /// The switches that are cut off from others.
    pub(super) fn switches(self) -> Vec<usize> {
        match self {
            Cut::Controller(switch) | Cut::AllButClients(switch) => vec![switch],
            Cut::Pair(one, other) => vec![one, other],
        }
    }
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of everything that is drawn during the run.
    pub seed: u64,
    /// The number of switches in the chain.
    pub members: usize,
    /// The number of spare switches.
    pub spares: usize,
    /// The layout of the switches' store.
    pub layout: ChainLayout,
    /// The duration of a lease, in ns.
    pub lease_ns: u64,
    /// The time of silence after which a switch is removed, in ns.
    pub failure_ns: u64,
    /// The interval of keepalives, in ns.
    pub alive_ns: u64,
    /// The time that the controller's disk takes, in ns.
    pub persist_ns: u64,
    /// The number of clients, each with a session.
    pub clients: usize,
    /// The number of keys: more than there are cells, so that some share one.
    pub keys: u32,
    /// The number of calls of each client.
    pub calls: u32,
    /// The maximum pause of a client between two calls, in ns.
    pub think_ns: u64,
    /// The share of reads among the calls, in percent.
    pub reads_percent: u64,
    /// The share of writes that set or change times to live, in percent.
    pub ttls_percent: u64,
    /// The maximum time to live, in ms.
    pub ttl_ms_max: u64,
    /// The share of calls that take a lock for a time, or release it, in percent.
    pub locks_percent: u64,
    /// The maximum difference of rate between a switch's clock and a client's, per million.
    pub drift_ppm: u64,
    /// The minimum and maximum latency of a packet, in ns.
    pub latency_ns: (u64, u64),
    /// The time of a packet's recirculation, in ns.
    pub round_ns: u64,
    /// Packets lost, per million.
    pub loss_ppm: u64,
    /// Packets duplicated, per million.
    pub duplicate_ppm: u64,
    /// Packets delayed by up to `late_ns`, per million.
    pub late_ppm: u64,
    /// The maximum delay of these packets, in ns.
    pub late_ns: u64,
    /// The time after which a client repeats a request, in ns; it doubles each time.
    pub patience_ns: u64,
    /// The number of attempts after which it gives up: the outcome of its call is then unknown.
    pub attempts: u32,
    /// The faults, and their times in ns.
    pub faults: Vec<(u64, Fault)>,
    /// Whether invariants are checked after each event.
    pub invariants: bool,
    /// The guards that are on.
    pub guards: Guards,
}

/// Combined with the plan's seed by XOR for the draw of clocks.
const DRIFT: u64 = 0xd21f_7a1e;
/// The maximum drift, per million: two clocks of a chain differ in rate by at most 2%.
const DRIFT_PPM_MAX: u64 = 10_000;

impl Plan {
    /// Draws a plan from a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let members = rng.between(1, 8) as usize;
        let spares = rng.below(3) as usize;
        let clients = rng.between(1, 6) as usize;
        let cells = 1 << rng.below(3);
        let layout = ChainLayout {
            cells,
            sessions: 8,
            value_bytes: VALUE_BYTES[rng.below(3) as usize],
            patience_ns: rng.between(1, 20) * MS,
        };
        let shortest = rng.between(1, 50) * US;
        let noise = |rng: &mut Rng, most| if rng.chance(1, 2) { rng.below(most) } else { 0 };
        let alive_ns = rng.between(6, 20) * MS;
        let plan = Plan {
            seed,
            members,
            spares,
            layout,
            lease_ns: rng.between(10, 250) * MS,
            failure_ns: alive_ns * rng.between(3, 5),
            alive_ns,
            persist_ns: rng.below(5 * MS),
            clients,
            keys: rng.between(1, 2 * u64::from(cells)) as u32,
            calls: rng.between(5, 40) as u32,
            think_ns: [100 * US, 2 * MS, 10 * MS, 20 * MS][rng.below(4) as usize],
            reads_percent: rng.below(80),
            ttls_percent: 0,
            ttl_ms_max: 1,
            locks_percent: 0,
            drift_ppm: 0,
            latency_ns: (shortest, shortest + rng.below(200) * US),
            round_ns: rng.below(50) * US,
            loss_ppm: noise(rng, 50_000),
            duplicate_ppm: noise(rng, 50_000),
            late_ppm: noise(rng, 30_000),
            late_ns: [20 * MS, 20 * MS, 300 * MS][rng.below(3) as usize],
            patience_ns: rng.between(1, 5) * MS,
            attempts: if rng.chance(1, 4) { rng.between(1, 3) as u32 } else { 40 },
            faults: faults(rng, members + spares),
            invariants: true,
            guards: Guards::ALL,
        };
        let [ttls_percent, locks_percent] =
            [60, 40].map(|most| if rng.chance(1, 2) { 1 + rng.below(most) } else { 0 });
        let ttl_ms_max = [5, 50, 300][rng.below(3) as usize];
        let drift_ppm = if Rng::new(seed ^ DRIFT).chance(1, 2) { DRIFT_PPM_MAX } else { 0 };
        Plan { ttls_percent, ttl_ms_max, locks_percent, drift_ppm, ..plan }
    }

    /// A switch's clock, with the reading `offset_ns` at the start.
    pub(super) fn clock(&self, offset_ns: u64) -> Clock {
        let drawn = Rng::new(self.seed ^ DRIFT ^ offset_ns).below(2 * self.drift_ppm + 1);
        Clock::new(offset_ns, drawn as i64 - self.drift_ppm as i64)
    }

    /// How much earlier than a client expects a key may end, in ns, since the clocks of the chain
    /// may run faster.
    pub(super) fn early_ns(&self) -> u64 {
        2 * self.drift_ppm * self.ttl_ms_max
    }
}

fn faults(rng: &mut Rng, switches: usize) -> Vec<(u64, Fault)> {
    let mut all = Vec::new();
    for _ in 0..rng.below(7) {
        let switch = rng.below(switches as u64) as usize;
        let long = |rng: &mut Rng| [10 * MS, 60 * MS, 300 * MS][rng.below(3) as usize];
        let ns = long(rng);
        let ns = 1 + rng.below(ns);
        let fault = match rng.below(10) {
            0 | 1 => Fault::Pause(switch, ns),
            2 | 3 => Fault::Crash(switch, Some(ns)),
            4 => Fault::Crash(switch, None),
            5 | 6 => Fault::Cut(Cut::AllButClients(switch), ns),
            7 => Fault::Cut(Cut::Controller(switch), ns),
            8 => Fault::Cut(Cut::Pair(switch, rng.below(switches as u64) as usize), ns),
            _ => Fault::Controller(ns),
        };
        all.push((rng.below(SEC / 5), fault));
    }
    all.sort_by_key(|fault| fault.0);
    all
}
