//! A chain of switches, its clients, and what goes wrong: drawn from one seed.

use concord_core::{Guards, MS, Rng, SEC, US};
use concord_switch::ChainLayout;
use concord_switch::netcraq::VALUE_BYTES;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A member stops for so long, in ns, and goes on: its packets wait.
    Pause(usize, u64),
    /// A member dies. The others hear of it at one moment, in an epoch of their own: as by a
    /// control plane that is always right (that of racks is not built yet).
    TakeOut(usize),
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For everything that is drawn on the way.
    pub seed: u64,
    /// How many switches.
    pub members: usize,
    /// Their store.
    pub layout: ChainLayout,
    /// Clients, each with a session.
    pub clients: usize,
    /// Keys: more than there are cells, so that some share one.
    pub keys: u32,
    /// Calls of each client.
    pub calls: u32,
    /// Longest pause of a client between two calls, in ns.
    pub think_ns: u64,
    /// Reads of a hundred calls.
    pub reads_percent: u64,
    /// Shortest and longest way of a packet, in ns.
    pub latency_ns: (u64, u64),
    /// Longest way round of a packet that comes back for its second pass, in ns.
    pub round_ns: u64,
    /// Packets lost, of a million.
    pub loss_ppm: u64,
    /// Packets that come twice, of a million.
    pub duplicate_ppm: u64,
    /// Packets that come up to 20 ms late, of a million.
    pub late_ppm: u64,
    /// A client asks again after so long, in ns, the next time after twice as long.
    pub patience_ns: u64,
    /// After so many attempts it gives up: what became of its call is unknown.
    pub attempts: u32,
    /// What goes wrong, and when.
    pub faults: Vec<(u64, Fault)>,
    /// Whether invariants are looked at after each event.
    pub invariants: bool,
    /// Which guards are on.
    pub guards: Guards,
}

impl Plan {
    /// What a seed draws.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let members = rng.between(1, 8) as usize;
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
        Plan {
            seed,
            members,
            layout,
            clients,
            keys: rng.between(1, 2 * u64::from(cells)) as u32,
            calls: rng.between(5, 40) as u32,
            think_ns: [0, 100 * US, 2 * MS][rng.below(3) as usize],
            reads_percent: rng.below(80),
            latency_ns: (shortest, shortest + rng.below(200) * US),
            round_ns: rng.below(50) * US,
            loss_ppm: noise(rng, 50_000),
            duplicate_ppm: noise(rng, 50_000),
            late_ppm: noise(rng, 30_000),
            patience_ns: rng.between(1, 5) * MS,
            attempts: if rng.chance(1, 4) { rng.between(1, 3) as u32 } else { 30 },
            faults: faults(rng, members),
            invariants: true,
            guards: Guards::ALL,
        }
    }
}

fn faults(rng: &mut Rng, members: usize) -> Vec<(u64, Fault)> {
    let mut all = Vec::new();
    for _ in 0..rng.below(4) {
        let member = rng.below(members as u64) as usize;
        let fault = if rng.chance(1, 2) {
            Fault::Pause(member, rng.between(1, 50) * MS)
        } else {
            Fault::TakeOut(member)
        };
        all.push((rng.below(SEC / 20), fault));
    }
    all.sort_by_key(|fault| fault.0);
    all
}
