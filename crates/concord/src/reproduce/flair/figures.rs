//! The figures: the loads that are run at each point (FLAIR §4.5). Parameters that the paper does
//! not give are marked as ours.
//!
//! "Opt. Raft" is Raft whose leader answers reads alone by its lease, "Raft" one that asks a quorum
//! for each batch of reads (ReadIndex); both are ours, at hosts as fast as those of the other
//! systems.

use std::sync::LazyLock;

use concord_core::{MS, SEC};
use concord_sim::Service;
use concord_sim::load::{Dies, Keys, Load, Measured, SlowReads};
use concord_switch::KeyGroupSettings;
use concord_wire::control::{Program, Protocol};

use crate::reproduce::figure::{Drawn, Figure, Value};
use crate::results::Scale;

/// The duration of a timeline's bucket, in s.
pub const BUCKET_S: f64 = 0.01;

/// The time that a replica is busy with a read, in ns: six answer 5.4 M per second (§4.5.5).
const READ_NS: u64 = 1_111;
/// How many times longer the leader is busy with a write (ours: this makes leader avoidance worth
/// 40%, figure 26a; §4.5.1 says that a write *takes* 30 times as long without replication).
const WRITE_FACTOR: u64 = 15;
/// How many times longer a follower is busy with a record (ours).
const RECORD_FACTOR: u64 = 5;
/// The latency between a host and the switch, one way, in ns (ours).
const LATENCY_NS: u64 = 5_000;
/// The latency of a read in an idle rack, in ns: two round trips to the switch, two passes, and the
/// read.
const READ_TAKES_NS: u64 = 4 * LATENCY_NS + 2 * SWITCH_NS + READ_NS;
const SWITCH_NS: u64 = 600;
/// The additional latency of a write that keeps no node busy, in ns: a write takes the time of 30
/// reads in all (§4.5.1).
const WRITE_WAIT_NS: u64 = 29 * READ_TAKES_NS - (WRITE_FACTOR - 1) * READ_NS;
/// The latency between replicas, one way, in ns: a replicated write takes the time of 35 reads
/// (§4.5.1).
const PEER_NS: u64 = 5 * READ_TAKES_NS / 2;
/// The number of keys (§4.5, "Workload").
const KEYS: u64 = 100_000;
/// The numbers of clients, each with one pending operation (§4.5.1).
const CLIENTS: [usize; 7] = [10, 50, 100, 150, 200, 250, 300];
/// The maximum number of clients.
const CROWD: usize = 300;
/// The factor by which rates of the runs over seconds (figures 23 to 25) are lower (ours).
const SLOWER: u64 = 100;

/// The corresponding factor of figure 26b, where the leader reads the queues once per second
/// (ours).
const SLOWER_26B: u64 = 10;
/// The additional time of the slowed follower in figure 26b, per thousand: its frequency is lower
/// by 10%.
const SLOWED_PERMILLE: u64 = 111;

/// The exponents of the Zipf distributions in figure 19.
pub const ZIPF: [f64; 6] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.99];
static RANKS: LazyLock<Vec<Keys>> =
    LazyLock::new(|| ZIPF.iter().map(|exponent| Keys::zipf(KEYS, *exponent)).collect());

/// Zipf with exponent 0.99.
fn zipf() -> Keys {
    RANKS[ZIPF.len() - 1].clone()
}

/// A load of 300 clients with values of 1 KB, and the time of a write.
pub fn busy(replicas: usize, writes_permille: u64) -> Load {
    let of = Load::default();
    let service = Service {
        read_ns: READ_NS,
        write_ns: WRITE_FACTOR * READ_NS,
        record_ns: RECORD_FACTOR * READ_NS,
        switch_ns: SWITCH_NS,
        ..of.service
    };
    Load {
        service,
        replicas,
        writes_permille,
        outstanding: CROWD,
        write_wait_ns: WRITE_WAIT_NS,
        latency_ns: LATENCY_NS,
        peer_latency_ns: PEER_NS,
        keys: Keys::Uniform(KEYS),
        value_bytes: 1_024,
        measure_ns: 60 * MS,
        ..of
    }
}

/// The compared systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    /// FLAIR over Raft, with leader avoidance.
    Flair,
    /// FLAIR over Raft, without leader avoidance.
    Random,
    /// FLAIR over Raft, with leader avoidance and load awareness.
    Weighed,
    /// Raft: the leader answers reads by its lease.
    Leader,
    /// Raft: the leader asks a quorum for each batch of reads.
    ReadIndex,
    /// Raft: followers answer reads by leases of key groups.
    Leases,
    /// Raft: any replica answers once it has asked a quorum. It stands for the normal case of Fast
    /// Paxos, which reads this way.
    Quorum,
    /// Harmonia over Raft.
    Harmonia,
    /// One server.
    Alone,
}

impl System {
    const fn name(self) -> &'static str {
        match self {
            System::Flair => "FLAIR",
            System::Random => "FLAIR, random",
            System::Weighed => "FLAIR, by load",
            System::Leader => "Raft, leader lease",
            System::ReadIndex => "Raft, ReadIndex",
            System::Leases => "Raft, follower leases",
            System::Quorum => "Raft, quorum reads",
            System::Harmonia => "Harmonia (Raft)",
            System::Alone => "unreplicated",
        }
    }

    fn load(self, load: Load) -> Load {
        let program = match self {
            System::Flair | System::Random | System::Weighed => Program::Flair,
            System::Leader
            | System::ReadIndex
            | System::Leases
            | System::Quorum
            | System::Alone => Program::Forward,
            System::Harmonia => Program::Harmonia,
        };
        let replicas = if self == System::Alone { 1 } else { load.replicas };
        let (avoid_leader, load_awareness) = (self != System::Random, self == System::Weighed);
        let key_groups =
            KeyGroupSettings { avoid_leader, load_awareness, run_bits: 0, ..load.key_groups };
        let reads = match self {
            System::ReadIndex => SlowReads::ReadIndex,
            System::Leases => SlowReads::FollowerLease,
            System::Quorum => SlowReads::Quorum,
            System::Flair
            | System::Random
            | System::Weighed
            | System::Leader
            | System::Harmonia
            | System::Alone => SlowReads::LeaderLease,
        };
        Load { protocol: Protocol::Raft, program, replicas, key_groups, reads, ..load }
    }
}

/// The lines of a figure, in this order.
const COMPARED: [System; 7] = [
    System::Flair,
    System::Leader,
    System::Harmonia,
    System::Alone,
    System::ReadIndex,
    System::Leases,
    System::Quorum,
];

/// The index of FLAIR in [`COMPARED`].
pub const FLAIR: usize = 0;
/// The index of Raft with a leader lease.
pub const LEADER: usize = 1;
/// The index of Harmonia.
pub const HARMONIA: usize = 2;
/// The index of one server.
pub const ALONE: usize = 3;
/// The index of Raft without leases.
pub const READ_INDEX: usize = 4;
/// The index of Raft with follower leases.
pub const LEASES: usize = 5;
/// The index of Raft with quorum reads.
pub const QUORUM: usize = 6;

fn compared<T: Copy>(
    mut figure: Figure,
    systems: &[System],
    points: &[T],
    x: impl Fn(T) -> f64,
    load: impl Fn(T) -> Load,
) -> Figure {
    for system in systems {
        figure = figure.line(system.name(), points, &x, |point| system.load(load(point)));
    }
    figure
}

/// The mean latency of all operations, in ns.
pub fn latency(m: &Measured) -> f64 {
    let (reads, writes) = (m.reads_per_second, m.writes_per_second);
    (reads * m.read.mean_ns + writes * m.write.mean_ns) / (reads + writes)
}

fn in_us(figure: Figure, y_value: Value) -> Figure {
    Figure { y: "mean latency in us", y_value, y_unit: 1e3, ..figure }
}

/// All figures, in the paper's order, and our own.
pub fn all() -> Vec<Figure> {
    let uniform = Keys::Uniform(KEYS);
    let mut all = vec![
        by_clients("18a", "workload B, uniform", &uniform),
        by_clients("18b", "workload B, Zipf 0.99", &zipf()),
        in_us(by_clients("18c", "workload B, uniform", &uniform), latency),
        in_us(by_clients("18d", "workload B, Zipf 0.99", &zipf()), latency),
        by_skew("19a"),
        in_us(by_skew("19b"), latency),
        by_ratio(),
        distribution("21a", "reads, workload B, uniform", &uniform),
        distribution("21b", "reads, workload B, Zipf 0.99", &zipf()),
    ];
    all.extend(failures());
    all.extend([revoked(), avoidance(), awareness(), by_replicas(), write_heavy()]);
    all.extend([read_only(), million_keys(), by_groups()]);
    all
}

fn by_clients(name: &'static str, title: &'static str, keys: &Keys) -> Figure {
    let load = |outstanding| Load { outstanding, keys: keys.clone(), ..busy(3, 50) };
    let figure = Figure::new(name, title, "clients");
    compared(figure, &COMPARED, &CLIENTS, |clients| clients as f64, load)
}

fn by_skew(name: &'static str) -> Figure {
    let at: Vec<usize> = (0..ZIPF.len()).collect();
    let load = |at: usize| Load { keys: RANKS[at].clone(), ..busy(3, 50) };
    let figure = Figure::new(name, "workload B, 300 clients", "Zipf constant");
    compared(figure, &COMPARED, &at, |at| ZIPF[at], load)
}

fn by_ratio() -> Figure {
    let percents = [50, 60, 70, 80, 90, 95, 100];
    let load = |percent: u64| busy(3, 1_000 - 10 * percent);
    let figure = Figure::new("20", "read ratios, uniform, 300 clients", "percent of reads");
    compared(figure, &COMPARED, &percents, |percent| percent as f64, load)
}

fn distribution(name: &'static str, title: &'static str, keys: &Keys) -> Figure {
    let figure = Figure::new(name, title, "us");
    let figure = Figure {
        y: "share of reads that are faster",
        y_unit: 1.0,
        drawn: Drawn::Distribution,
        ..figure
    };
    compared(figure, &COMPARED, &[()], |()| 0.0, |()| Load { keys: keys.clone(), ..busy(3, 50) })
}

/// Figures 23 to 25: a replica or the switch fails at 10 s, in racks that are slower.
fn failures() -> [Figure; 3] {
    let slow = |ns: u64| ns * SLOWER;
    let load = busy(3, 0);
    let s = load.service;
    let service = Service {
        read_ns: slow(s.read_ns),
        write_ns: slow(s.write_ns),
        record_ns: slow(s.record_ns),
        ..s
    };
    let load = Load {
        service,
        write_wait_ns: 0,
        warm_up_ns: SEC,
        measure_ns: 35 * SEC,
        bucket_ns: (BUCKET_S * SEC as f64) as u64,
        ..load
    };
    let timeline = |name, title, load: Load| {
        let figure = Figure::new(name, title, "s");
        let figure = Figure {
            y: "thousand operations a second",
            y_unit: 1e3,
            drawn: Drawn::Timeline { bucket_s: BUCKET_S },
            ..figure
        };
        compared(figure, &[System::Flair], &[()], |()| 0.0, |()| load.clone())
    };
    let switch = Load { switch_stops: Some((10 * SEC, 10 * SEC + MS)), ..load.clone() };
    let dies = |who| Load { dies: Some((who, 10 * SEC)), ..load.clone() };
    [
        timeline("23", "the switch loses all it has (workload C, rates a hundredth)", switch),
        timeline("24", "the leader dies (workload C, rates a hundredth)", dies(Dies::Leader)),
        timeline("25", "a follower dies (workload C, rates a hundredth)", dies(Dies::Follower)),
    ]
}

fn avoidance() -> Figure {
    let systems = [System::Flair, System::Random];
    let figure = Figure::new("26a", "leader avoidance, workload B, uniform", "clients");
    let load = |outstanding| Load { outstanding, ..busy(3, 50) };
    compared(figure, &systems, &CLIENTS, |clients| clients as f64, load)
}

/// Figure 26b: one follower is slower by a tenth. Each client is a process, as the paper says.
fn awareness() -> Figure {
    let title = "load awareness, a follower slower by 10%, workload C (rates a tenth)";
    let figure = Figure::new("26b", title, "clients");
    let load = |outstanding| {
        let of = busy(3, 0);
        let service = Service { read_ns: SLOWER_26B * READ_NS, ..of.service };
        let of = Load { service, outstanding, processes: CROWD, ..of };
        let of = Load { slower_permille: SLOWED_PERMILLE, weigh_ns: SEC, ..of };
        Load { warm_up_ns: 8 * SEC, measure_ns: 2 * SEC, ..of }
    };
    let systems = [System::Weighed, System::Flair];
    compared(figure, &systems, &[CROWD], |clients| clients as f64, load)
}

fn by_replicas() -> Figure {
    let replicas = [1, 2, 3, 4, 5, 6];
    let load = |replicas| Load { outstanding: 100 * replicas, ..busy(replicas, 0) };
    let figure = Figure::new("27", "workload C", "replicas");
    compared(figure, &[System::Flair, System::Leader], &replicas, |n| n as f64, load)
}

/// Workload A, Zipf 0.99 (§4.5.2).
fn write_heavy() -> Figure {
    let figure = Figure::new("A", "workload A, Zipf 0.99", "clients");
    let load = |outstanding| Load { outstanding, keys: zipf(), ..busy(3, 500) };
    compared(figure, &COMPARED, &[CROWD], |clients| clients as f64, load)
}

/// Workload C.
fn read_only() -> Figure {
    let figure = Figure::new("C", "workload C, uniform", "clients");
    let load = |outstanding| Load { outstanding, ..busy(3, 0) };
    compared(figure, &COMPARED, &[CROWD], |clients| clients as f64, load)
}

/// A million keys instead of 100,000 (§4.5, "Workload").
fn million_keys() -> Figure {
    let figure = Figure::new("1M", "workload B, a million keys, 300 clients", "Zipf constant");
    let keys = [Keys::Uniform(10 * KEYS), Keys::zipf(10 * KEYS, 0.99)];
    let load = |at: usize| Load { keys: keys[at].clone(), ..busy(3, 50) };
    compared(figure, &COMPARED, &[0, 1], |at| [0.0, 0.99][at], load)
}

/// Figure 22: the share of a write's time at the switch for which its key group is revoked at
/// followers; with FLAIR it is unstable all the time.
fn revoked() -> Figure {
    let figure = Figure::new("22", "workload A, Zipf 0.99", "clients");
    let figure = Figure {
        y: "share of a write's time without a lease",
        y_value: revoked_share,
        y_unit: 1.0,
        ..figure
    };
    let load = |outstanding| Load { outstanding, keys: zipf(), ..busy(3, 500) };
    compared(figure, &[System::Leases], &CLIENTS, |clients| clients as f64, load)
}

/// The time that a record is in a follower's log and not executed, as a share of the time of its
/// write at the switch.
pub fn revoked_share(m: &Measured) -> f64 {
    m.record_open_ns / (m.write.mean_ns - 2.0 * LATENCY_NS as f64)
}

/// The number of key groups that is needed.
fn by_groups() -> Figure {
    let bits = [6, 8, 10, 12, 14, 16];
    let keys = [("uniform", Keys::Uniform(KEYS)), ("Zipf 0.99", zipf())];
    let mut figure = Figure::new("groups", "workload B, 300 clients", "key groups")
        .named(&["64", "256", "1,024", "4,096", "16,384", "65,536"]);
    figure.scale = Scale::Places;
    for (name, keys) in keys {
        let load = |group_bits: u8| {
            let key_groups = KeyGroupSettings { group_bits, ..KeyGroupSettings::DEFAULT };
            System::Flair.load(Load { key_groups, keys: keys.clone(), ..busy(3, 50) })
        };
        figure = figure.line(name, &bits, groups_at, load);
    }
    figure
}

/// The position of 2^`bits` key groups in the figure on key groups.
pub fn groups_at(bits: u8) -> f64 {
    f64::from(bits) / 2.0 - 2.0
}
