//! The figures: the loads that are run at each point (Concordia §7.2).

use concord_core::Duration;
use concord_sim::concordia::load::{Costs, Load, System};

use super::seen::{Figure, Line};

/// The time of an access with Concordia and with the base, in ns: fitted to 133 million accesses
/// per second of 32 threads at full locality.
pub const HIT_NS: Duration = 240;
/// The time of an access with GAM, in ns: fitted to 23 million.
pub const GAM_HIT_NS: Duration = 1_391;
/// The latency between hosts, one way, in ns (ours).
pub const WAY_NS: Duration = 2_000;

/// The shares of accesses to shared blocks, in percent.
const SHARES: [u64; 6] = [0, 20, 40, 60, 80, 100];
/// The shares of reads, in percent.
const READS: [u64; 6] = [0, 20, 40, 60, 80, 100];
/// The shares of accesses to the block of the previous access, in percent.
const LOCALITIES: [u64; 6] = [0, 20, 40, 60, 80, 100];
/// The shares of accesses to shared blocks at which other costs of messages are tried, in percent.
const TRIED: [u64; 3] = [20, 60, 100];
/// The share of accesses to shared blocks in figure 12, in percent (ours: the paper does not say).
const LOCALITY_SHARE: u64 = 60;

/// The lines of all figures, in this order.
pub const CONCORDIA: usize = 0;
/// Homes own all blocks.
pub const BASE: usize = 1;
/// Homes gather acknowledgements.
pub const GAM: usize = 2;
/// No caches.
pub const GRAPPA: usize = 3;
/// GAM's default: blocks of 512 bytes; in figure 9 alone.
pub const GAM_SMALL: usize = 4;

/// The names of all figures.
pub const NAMES: [&str; 6] = ["9", "11-20", "11-60", "12", "half", "double"];

/// The names of the compared systems.
const COMPARED: [(&str, System); 4] = [
    ("Concordia", System::Concordia),
    ("base", System::Base),
    ("GAM-style, 4 KB", System::Gam),
    ("Grappa-style", System::Grappa),
];

fn of(system: System, costs: Costs, scale: u64) -> Load {
    let hit_ns = if system == System::Gam { GAM_HIT_NS } else { costs.hit_ns };
    Load::paper(system, Costs { hit_ns, ..costs }, scale)
}

fn compared(
    name: &'static str,
    title: &'static str,
    x: &'static str,
    points: &[u64],
    load: impl Fn(System, u64) -> Load,
) -> Figure {
    let lines = COMPARED.map(|(name, system)| {
        let points = points.iter().map(|x| (*x as f64, load(system, *x))).collect();
        Line { name: name.to_string(), points }
    });
    Figure { name, title, x, lines: lines.into() }
}

/// All figures.
pub fn all(costs: Costs, scale: u64) -> Vec<Figure> {
    let shared = "accesses to shared blocks in percent";
    let sharing = |costs: Costs| {
        move |system, sharing_percent| Load { sharing_percent, ..of(system, costs, scale) }
    };
    let reads = |sharing_percent| {
        move |system, reads_percent| Load {
            sharing_percent,
            reads_percent,
            ..of(system, costs, scale)
        }
    };
    let locality = |system, locality_percent| Load {
        sharing_percent: LOCALITY_SHARE,
        locality_percent,
        ..of(system, costs, scale)
    };
    let mut by_sharing = compared("9", "throughput by sharing", shared, &SHARES, sharing(costs));
    let small = SHARES.iter().map(|x| (*x as f64, sharing(costs)(System::Gam, *x).small_blocks()));
    let name = "GAM-style, 512 B".to_string();
    by_sharing.lines.push(Line { name, points: small.collect() });
    let half = Costs { message_ns: costs.message_ns / 2, ..costs };
    let double = Costs { message_ns: costs.message_ns * 2, ..costs };
    let percent = "reads in percent";
    let again = "accesses to the block of the access before in percent";
    vec![
        by_sharing,
        compared("11-20", "throughput by reads, 20% shared", percent, &READS, reads(20)),
        compared("11-60", "throughput by reads, 60% shared", percent, &READS, reads(60)),
        compared("12", "throughput by locality, 60% shared", again, &LOCALITIES, locality),
        compared("half", "messages at half the cost", shared, &TRIED, sharing(half)),
        compared("double", "messages at twice the cost", shared, &TRIED, sharing(double)),
    ]
}
