//! The draw of disks and of their faults from a seed.

use concord_core::{Duration, MS, Rng, SEC, US};

use crate::systems::store::disks::Disks;
use crate::systems::store::fault::Fault;
use crate::systems::store::plan::{Plan, Timed};

/// One in this number of seeds has disks.
const WITH_DISKS: u64 = 4;
/// The seed mask for the draw of disks.
const DRAWN: u64 = 0xd15c;
/// The seed mask for the draw of disks that are full or damaged.
const FAULTY: u64 = 0xf011_d15c;
/// One in this number of seeds with disks syncs them every second.
const WITH_INTERVAL: u64 = 4;
/// The seed mask for the draw of syncs every second.
const INTERVAL: u64 = 0x5ec0_17d5;
/// The seed mask for the draw of whether some replicas wait for their disks nevertheless.
const MIXED: u64 = 0x3173_d15c;
/// The seed mask for the draw of directories that are copied and put back.
const PUT_BACK: u64 = 0x0c09_1ed5;
/// The seed mask for the draw of disks that hang.
const HUNG: u64 = 0x4a6d_d15c;
/// The seed mask for the draw of a controller whose disk is full, and of places that cannot be
/// read.
const BROKEN: u64 = 0xb0c3_d15c;
/// The seed mask for the draw of slow syncs, and of disks that hang for long.
const SLOW: u64 = 0x510c_d15c;
/// The duration of a disk's hang without end, and the time that a run goes on after it, in which
/// its replica has to leave.
const HANG_NS: Duration = 3_600 * SEC;
const HANG_SEEN_NS: Duration = 22 * SEC;
/// The maximum number of bytes that a full disk still has room for.
const RESERVE_BYTES_MAX: u64 = 20_000;
/// The seed mask for the draw of disks where every seed has them.
const DISKS: u64 = 0xd15c_d4a3;

/// Draws disks in one in [`WITH_DISKS`] seeds, by a generator of their own, so that the other draws
/// stay as they would be without.
pub(super) fn draw(plan: &mut Plan) {
    let mut rng = Rng::new(plan.seed ^ DRAWN);
    if rng.chance(1, WITH_DISKS) {
        draw_surely(plan, &mut rng);
    }
}

/// Draws disks if the seed has none.
pub(super) fn draw_if_none(plan: &mut Plan) {
    if !plan.disks.is_on() {
        draw_surely(plan, &mut Rng::new(plan.seed ^ DISKS));
    }
}

/// Draws disks and power cuts.
fn draw_surely(plan: &mut Plan, rng: &mut Rng) {
    plan.disks = Disks {
        sync_ns: rng.between(50, 5_000) * US,
        snapshot_bytes: rng.between(1_000, 30_000),
        interval: false,
        mixed: false,
        partial: false,
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
    draw_put_back(plan, last_ns, &mut Rng::new(plan.seed ^ PUT_BACK));
    draw_broken(plan, last_ns, &mut Rng::new(plan.seed ^ BROKEN));
    draw_slow(plan, last_ns, &mut Rng::new(plan.seed ^ SLOW));
    plan.faults.sort_by_key(|f| f.at_ns);
}

/// Draws a directory that is copied while its process runs, and put back, in one in four seeds. If
/// acknowledgements do not wait for disks, the other replicas keep their power. A controller that
/// received nothing from a replica knows less than the replica had.
fn draw_put_back(plan: &mut Plan, last_ns: Duration, rng: &mut Rng) {
    let is_deaf = |fault: &Fault| {
        matches!(
            fault,
            Fault::CutController { .. } | Fault::SecondController { .. } | Fault::OldState { .. }
        )
    };
    if !rng.chance(1, 4) || plan.faults.iter().any(|timed| is_deaf(&timed.fault)) {
        return;
    }
    let replica = rng.below(plan.replicas as u64) as usize;
    let last_ns = last_ns.max(90 * MS);
    let copied_ns = rng.between(30 * MS, last_ns);
    let put_back_ns = copied_ns + rng.between(MS, last_ns);
    let others_ns = rng.between(1, 3_000) * MS;
    let all = rng.chance(1, 2) && !plan.disks.interval;
    let fault = Fault::PutBack {
        replica,
        for_ns: rng.between(1, 700) * MS,
        others_ns: if all { others_ns } else { 0 },
    };
    plan.faults.push(Timed { at_ns: copied_ns, fault: Fault::CopyDisk { replica } });
    plan.faults.push(Timed { at_ns: put_back_ns, fault });
}

/// Draws a full disk of the controller's state, and a place of a replica's disk that cannot be
/// read.
fn draw_broken(plan: &mut Plan, last_ns: Duration, rng: &mut Rng) {
    let last_ns = last_ns.max(60 * MS);
    if rng.chance(1, 3) {
        let fault = Fault::FullController { for_ns: rng.between(1, 1_500) * MS };
        plan.faults.push(Timed { at_ns: rng.between(30 * MS, last_ns), fault });
    }
    if rng.chance(1, 4) {
        let replica = rng.below(plan.replicas as u64) as usize;
        let fault = Fault::Unreadable { replica, for_ns: rng.between(1, 700) * MS };
        plan.faults.push(Timed { at_ns: rng.between(30 * MS, last_ns), fault });
    }
}

/// Draws syncs of up to 50 ms, and disks that hang for long: one without end, or those of all
/// replicas.
fn draw_slow(plan: &mut Plan, last_ns: Duration, rng: &mut Rng) {
    let at_ns = rng.between(30 * MS, last_ns.max(60 * MS));
    let kind = rng.below(16);
    if matches!(kind, 2 | 3) {
        // Several successive hangs would be as long as one for which a replica leaves.
        plan.faults.retain(|timed| !matches!(timed.fault, Fault::HangDisk { .. }));
    }
    match kind {
        // Slower syncs are tested one at a time (`tests/slow_disks.rs`): together with many other
        // faults, elections may take longer than a run.
        0 | 1 => plan.disks.sync_ns = ((10 * MS) << rng.below(3)) + rng.below(10 * MS),
        2 => {
            let replica = rng.below(plan.replicas as u64) as usize;
            let fault = Fault::HangDisk { replica, for_ns: HANG_NS };
            plan.faults.push(Timed { at_ns, fault });
            plan.linger_ns = plan.linger_ns.max(HANG_SEEN_NS);
        }
        3 => {
            let for_ns = rng.between(1, 8) * SEC;
            let hang = |replica| Timed { at_ns, fault: Fault::HangDisk { replica, for_ns } };
            plan.faults.extend((0..plan.replicas).map(hang));
        }
        _ => {}
    }
}

/// Draws, in some seeds, acknowledgements that do not wait for disks. Power cuts of all replicas
/// then become power cuts of one.
fn draw_interval(plan: &mut Plan, rng: &mut Rng) {
    if !rng.chance(1, WITH_INTERVAL) {
        return;
    }
    plan.disks.interval = true;
    let mut mixed = Rng::new(plan.seed ^ MIXED);
    plan.disks.mixed = mixed.chance(1, 2);
    // If a majority decides, too many replicas would lose their data.
    plan.disks.partial = plan.disks.mixed && !plan.protocol.is_quorum() && mixed.chance(1, 2);
    for timed in &mut plan.faults {
        if let Fault::PowerCutAll { for_ns } = timed.fault {
            let replica = rng.below(plan.replicas as u64) as usize;
            timed.fault = Fault::PowerCut { replica, for_ns };
        }
    }
}

/// Draws disks that hang, long enough to delay the data that gathers meanwhile with `interval`.
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

/// Draws full disks, and damaged ones.
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
