//! What disks replicas have, and how they fail.

use concord_core::{Duration, MS, Rng, US};
use concord_wire::control::Protocol;
use serde::{Deserialize, Serialize};

use crate::systems::store::draw::Aim;
use crate::systems::store::edges::Within;
use crate::systems::store::fault::Fault;
use crate::systems::store::plan::{Plan, Timed};

/// Longest sync, in ns.
const SYNC_NS_MAX: Duration = 1_000 * MS;
/// Most bytes between two snapshots.
const SNAPSHOT_BYTES_MAX: u64 = 1 << 30;
/// One seed of so many has disks.
const WITH_DISKS: u64 = 4;
/// What the seed of this draw is other than that of the rest.
const DRAWN: u64 = 0xd15c;
/// And that of disks that are full, or damaged.
const FAULTY: u64 = 0xf011_d15c;
/// One seed with disks of so many syncs them each second.
const WITH_INTERVAL: u64 = 4;
/// What the seed of the draw of that is other than that of the rest.
const INTERVAL: u64 = 0x5ec0_17d5;
/// And that of disks that stand still.
const HUNG: u64 = 0x4a6d_d15c;
/// Most bytes that a full disk has held back.
const RESERVE_BYTES_MAX: u64 = 20_000;
/// And where every seed has disks.
const DISKS: u64 = 0xd15c_d4a3;

/// The disks of a rack's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Disks {
    /// How long a sync takes about, in ns; 0: nothing is on disk.
    pub sync_ns: Duration,
    /// Bytes of log after which a snapshot begins.
    pub snapshot_bytes: u64,
    /// Nothing that is acknowledged waits for the disk, which is synced each second (`durability = "interval"`).
    /// Then the power of all does not go: what it would take is allowed, and the check does not know what that is.
    pub interval: bool,
}

impl Disks {
    /// Whether replicas keep their data.
    pub(crate) fn is_on(&self) -> bool {
        self.sync_ns > 0
    }

    pub(crate) fn validate(&self, within: Within<'_>) -> Result<(), String> {
        within("sync_ns", self.sync_ns, 0, SYNC_NS_MAX)?;
        within("snapshot_bytes", self.snapshot_bytes, 0, SNAPSHOT_BYTES_MAX)
    }
}

impl Plan {
    /// What `seed` draws, with disks and power cuts.
    #[must_use]
    pub fn draw_with_disks(seed: u64, protocol: Protocol) -> Plan {
        let aim = Aim { protocol: Some(protocol), ..Aim::default() };
        let mut plan = Plan::draw_aimed(seed, aim);
        if !plan.disks.is_on() {
            draw_surely(&mut plan, &mut Rng::new(seed ^ DISKS));
        }
        plan
    }
}

/// One seed of [`WITH_DISKS`] has disks: by a generator of its own, so that the others draw what they would draw
/// without.
pub(super) fn draw(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ DRAWN);
    if rng.chance(1, WITH_DISKS) {
        draw_surely(plan, &mut rng);
    }
}

/// Draws disks and power cuts.
fn draw_surely(plan: &mut Plan, rng: &mut Rng) {
    plan.disks = Disks {
        sync_ns: rng.between(50, 5_000) * US,
        snapshot_bytes: rng.between(1_000, 30_000),
        interval: false,
    };
    let last_ns = plan.faults.last().map_or(MS, |f| f.at_ns);
    for _ in 0..rng.between(1, 3) {
        let replica = rng.below(plan.replicas as u64) as usize;
        let for_ns = rng.between(1, 700) * MS;
        let fault = match rng.below(6) {
            0 | 1 => Fault::PowerCut { replica, for_ns },
            2 => Fault::FailSync { replica },
            _ => Fault::PowerCutAll { for_ns },
        };
        plan.faults.push(Timed { at_ns: rng.between(30 * MS, last_ns.max(60 * MS)), fault });
    }
    draw_faulty(plan, last_ns, &mut Rng::new(plan.seed ^ FAULTY));
    draw_interval(plan, &mut Rng::new(plan.seed ^ INTERVAL));
    draw_hung(plan, last_ns, &mut Rng::new(plan.seed ^ HUNG));
    plan.faults.sort_by_key(|f| f.at_ns);
}

/// In one seed of some nothing waits for the disk. Then the power of one goes where that of all would.
fn draw_interval(plan: &mut Plan, rng: &mut Rng) {
    if !rng.chance(1, WITH_INTERVAL) {
        return;
    }
    plan.disks.interval = true;
    for timed in &mut plan.faults {
        if let Fault::PowerCutAll { for_ns } = timed.fault {
            let replica = rng.below(plan.replicas as u64) as usize;
            timed.fault = Fault::PowerCut { replica, for_ns };
        }
    }
}

/// Disks that stand still: for so long that what gathers meanwhile with `interval` is late.
fn draw_hung(plan: &mut Plan, last_ns: Duration, rng: &mut Rng) {
    if !rng.chance(1, if plan.disks.interval { 2 } else { 4 }) {
        return;
    }
    for _ in 0..rng.between(1, 3) {
        let replica = rng.below(plan.replicas as u64) as usize;
        let fault = Fault::HangDisk { replica, for_ns: rng.between(1, 3_000) * MS };
        plan.faults.push(Timed { at_ns: rng.between(30 * MS, last_ns.max(60 * MS)), fault });
    }
}

/// Disks without room, and damaged ones.
fn draw_faulty(plan: &mut Plan, last_ns: Duration, rng: &mut Rng) {
    let mut add = |rng: &mut Rng, of: fn(usize, &mut Rng) -> Fault| {
        let fault = of(rng.below(plan.replicas as u64) as usize, rng);
        plan.faults.push(Timed { at_ns: rng.between(30 * MS, last_ns.max(60 * MS)), fault });
    };
    if rng.chance(1, 2) {
        for _ in 0..rng.between(1, 3) {
            add(rng, |replica, rng| Fault::FullDisk {
                replica,
                for_ns: rng.between(1, 500) * MS,
                bytes: rng.below(RESERVE_BYTES_MAX) as usize,
            });
        }
    }
    if rng.chance(1, 3) {
        add(rng, |replica, rng| Fault::FlipBit { replica, for_ns: rng.between(1, 700) * MS });
    }
}
