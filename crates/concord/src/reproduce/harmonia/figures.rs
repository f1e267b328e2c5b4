//! The figures: the loads that are run at each point (Harmonia §10). Parameters that the paper does
//! not give are marked as ours.

use std::sync::LazyLock;

use concord_core::{MS, SEC};
use concord_sim::Service;
use concord_sim::load::{Keys, Load, Measured, Separate};
use concord_wire::control::Protocol;

use crate::reproduce::figure::{Drawn, Figure, Value};

const MILLION: f64 = 1e6;
/// The number of pending operations for each replica: enough that it never waits for work.
const DEPTH: usize = 96;
/// The additional time of an operation for each byte of its value, in ps (ours: 1 GB/s).
const BYTE_PS: u64 = 1_000;
/// The latency of an aggregation switch, one way, in ns (ours).
const RACK_NS: u64 = 2_000;
/// The factor by which rates of the run over minutes (figure 15) are lower (ours).
const SLOWER: u64 = 100;
/// The latency between replicas, one way, in ns, where writes are slow: two of them make 5 ms.
const SLOW_PEER_NS: u64 = 2_500_000;
/// The number of pending operations there, of which some 600 are writes.
const SLOW_DEPTH: usize = 1_200;
/// The minimum time before a client's retry, in ns, where writes are dropped for want of a slot
/// (ours).
const RETRY_NS: u64 = 2 * MS;

/// The time of an acknowledgement or a version query, in ns, where protocols are compared (ours: a
/// tenth of a write).
const ACK_NS: u64 = 125;

/// Adds two lines: chain replication alone, and with Harmonia.
trait Both {
    fn both<T: Copy>(self, points: &[T], x: impl Fn(T) -> f64, load: impl Fn(T) -> Load) -> Self;
}

impl Both for Figure {
    fn both<T: Copy>(self, points: &[T], x: impl Fn(T) -> f64, load: impl Fn(T) -> Load) -> Figure {
        self.line("CR", points, &x, |p| load(p).over(Protocol::Chain, false)).line(
            "Harmonia (CR)",
            points,
            &x,
            |p| load(p).over(Protocol::Chain, true),
        )
    }
}

/// Zipf 0.9 over a million objects, computed once.
static ZIPF: LazyLock<Keys> = LazyLock::new(|| Keys::zipf(1_000_000, 0.9));

/// The default load, saturated.
fn saturated(replicas: usize, writes_permille: u64) -> Load {
    Load { replicas, writes_permille, outstanding: DEPTH * replicas, ..Load::default() }
}

/// A load with writes at a rate, and as many reads as possible.
fn reads_beside(writes_per_second: u64) -> Load {
    Load { writes_per_second, ..saturated(3, 0) }
}

/// All figures, in the paper's order, and ablations.
pub fn all() -> Vec<Figure> {
    let mut all =
        vec![latency("5a", "latency of reads", 0), latency("5b", "latency of writes", 1_000)];
    all.extend([mixed_by_rate(), mixed_by_ratio(), value_size(), dataset_size(), benchmarks()]);
    let replicas = [("9a", 0), ("9b", 1_000), ("9c", 50), ("9d", 100), ("9e", 150), ("9f", 200)];
    all.extend(replicas.map(|(name, permille)| scaling(name, permille)));
    all.extend([racks(), rack_latency()]);
    all.extend([table_size(), in_flight(), storage_latency(), switch_overhead()]);
    all.extend([primary_backup_protocols(), quorum_protocols(), switch_failure()]);
    all.extend([
        late_completions(),
        lost_completions(),
        completions_separate(),
        commit_acks_separate(),
    ]);
    all
}

fn latency(name: &'static str, title: &'static str, writes_permille: u64) -> Figure {
    let depths = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384];
    let x: Value = Measured::total;
    let y: Value = if writes_permille == 0 { |m| m.read.mean_ns } else { |m| m.write.mean_ns };
    let figure = Figure::new(name, title, "operations a second");
    let figure =
        Figure { x_value: Some(x), y: "mean latency in us", y_value: y, y_unit: 1e3, ..figure };
    figure.both(
        &depths,
        |depth| depth as f64,
        |outstanding| Load { outstanding, ..saturated(3, writes_permille) },
    )
}

/// The rates of writes, in thousands per second.
const WRITE_RATES: [u64; 9] = [0, 100, 200, 300, 400, 500, 600, 700, 780];

/// The rate of answered writes, in millions per second: it does not exceed the rack's capacity.
fn write_rate(m: &Measured) -> f64 {
    m.writes_per_second / MILLION
}

fn mixed_by_rate() -> Figure {
    let figure = Figure::new("6a", "reads beside writes", "writes, million a second");
    let figure = Figure { x_value: Some(write_rate), ..figure };
    let figure = Figure { y: "million reads a second", y_value: |m| m.reads_per_second, ..figure };
    figure.both(&WRITE_RATES, |rate| rate as f64 / 1e3, |rate| reads_beside(rate * 1_000))
}

fn mixed_by_ratio() -> Figure {
    let percents = [0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
    Figure::new("6b", "mixed workloads", "percent of writes").both(
        &percents,
        |percent| percent as f64,
        |percent| saturated(3, percent * 10),
    )
}

fn value_size() -> Figure {
    let sizes = [16, 64, 128, 256, 512, 1_024];
    Figure::new("7a", "value size (1 ns a byte, ours)", "bytes of a value").both(
        &sizes,
        |size| size as f64,
        |size| {
            let load = saturated(3, 50);
            let extra_ns = (size as u64 - 16) * BYTE_PS / 1_000;
            Load { value_bytes: size, service: longer(load.service, extra_ns), ..load }
        },
    )
}

/// The service times, all longer by `extra_ns`.
fn longer(service: Service, extra_ns: u64) -> Service {
    Service {
        read_ns: service.read_ns + extra_ns,
        write_ns: service.write_ns + extra_ns,
        record_ns: service.record_ns + extra_ns,
        ..service
    }
}

fn dataset_size() -> Figure {
    let millions = [1u64, 10, 50, 100];
    Figure::new("7b", "dataset size", "million objects").both(
        &millions,
        |keys| keys as f64,
        |keys| Load { keys: Keys::Uniform(keys * 1_000_000), ..saturated(3, 50) },
    )
}

fn benchmarks() -> Figure {
    let mixes = [(1, 50), (2, 500), (3, 1_000)];
    let figure = Figure::new("8b", "the read/write mixes of three benchmarks", "").named(&[
        "YCSB, 5% writes",
        "Epinions, 50%",
        "Voter, 100%",
    ]);
    figure.both(&mixes, |(at, _)| f64::from(at), |(_, permille)| saturated(3, permille))
}

fn scaling(name: &'static str, writes_permille: u64) -> Figure {
    let title = match writes_permille {
        0 => "reads only",
        1_000 => "writes only",
        50 => "5% writes",
        100 => "10% writes",
        150 => "15% writes",
        _ => "20% writes",
    };
    let replicas: Vec<usize> = (1..=10).collect();
    let names: Vec<String> = replicas.iter().map(ToString::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Figure::new(name, title, "replicas").named(&names).both(
        &replicas,
        |n| n as f64,
        |n| saturated(n, writes_permille),
    )
}

/// Three racks of servers, four in each, behind the aggregation switch, which runs Harmonia.
fn across_racks(racks: usize) -> Load {
    let load = saturated(4 * racks, 50);
    Load {
        latency_ns: load.latency_ns + RACK_NS,
        peer_latency_ns: load.peer_latency_ns + 2 * RACK_NS,
        ..load
    }
}

fn racks() -> Figure {
    let racks = [1, 2, 3];
    Figure::new("11a", "racks of four replicas, 5% writes", "racks").named(&["1", "2", "3"]).both(
        &racks,
        |n| n as f64,
        across_racks,
    )
}

fn rack_latency() -> Figure {
    let places = [(1, 0), (2, 1_000)];
    let figure = Figure::new("11b", "latency across racks, idle", "").named(&["read", "write"]);
    let y: Value = |m| m.read.mean_ns.max(m.write.mean_ns);
    let figure = Figure { y: "mean latency in us", y_value: y, y_unit: 1e3, ..figure };
    let idle = |permille| Load {
        outstanding: 1,
        writes_permille: permille,
        measure_ns: 100 * MS,
        ..across_racks(1)
    };
    // Without Harmonia the aggregation switch is not programmable, and as fast as the others.
    figure
        .line(
            "CR",
            &places,
            |(at, _)| f64::from(at),
            |(_, permille)| {
                let load = idle(permille);
                let service = Service { switch_ns: 300, ..load.service };
                Load { service, ..load }.over(Protocol::Chain, false)
            },
        )
        .line("Harmonia (CR)", &places, |(at, _)| f64::from(at), |(_, permille)| idle(permille))
}

/// The numbers of slots in each of the three stages.
const SLOTS: [u32; 9] = [4, 16, 32, 64, 128, 256, 512, 1_024, 65_536];

/// The position of this number of slots per stage in figure 13(a).
pub fn slots_at(slots: u32) -> f64 {
    SLOTS.iter().position(|s| *s == slots).map_or(f64::NAN, |at| at as f64 + 1.0)
}

fn table_size() -> Figure {
    let names: Vec<String> = SLOTS.iter().map(|slots| (3 * slots).to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let places: Vec<usize> = (0..SLOTS.len()).collect();
    let x = |at: usize| at as f64 + 1.0;
    let load = |at: usize, keys: &Keys| Load {
        slots: SLOTS[at],
        keys: keys.clone(),
        retry_min_ns: RETRY_NS,
        ..saturated(3, 50)
    };
    // The number of pending writes for the paper's 2,000 slots (§7.2): writes take longer, by the
    // latency between replicas, and reads do not.
    let slow = |at: usize, keys: &Keys| Load {
        peer_latency_ns: SLOW_PEER_NS,
        outstanding: SLOW_DEPTH,
        retry_min_ns: 4 * SLOW_PEER_NS,
        warm_up_ns: 60 * MS,
        measure_ns: 60 * MS,
        ..load(at, keys)
    };
    let uniform = Keys::Uniform(1_000_000);
    Figure::new("13a", "slots of the dirty set, 5% writes", "slots in all")
        .named(&names)
        .line("uniform", &places, x, |at| load(at, &uniform))
        .line("zipf 0.9", &places, x, |at| load(at, &ZIPF))
        .line("uniform, writes take 5 ms", &places, x, |at| slow(at, &uniform))
        .line("zipf 0.9, writes take 5 ms", &places, x, |at| slow(at, &ZIPF))
}

fn in_flight() -> Figure {
    let stuck = [0, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000];
    let load = |keys: u64| {
        move |stuck_writes| Load { stuck_writes, keys: Keys::Uniform(keys), ..saturated(3, 0) }
    };
    let x = |stuck: u64| stuck as f64;
    let figure = Figure::new("13b", "writes in flight for ever", "objects in the dirty set");
    let figure = Figure { y: "million reads a second", y_value: |m| m.reads_per_second, ..figure };
    figure
        .line("100,000 objects", &stuck, x, load(100_000))
        .line("1 million objects", &stuck, x, load(1_000_000))
        .line("10 million objects", &stuck, x, load(10_000_000))
}

fn storage_latency() -> Figure {
    let extra = [0, 1, 2, 4, 8, 16];
    Figure::new("13c", "slower storage, 5% writes", "us added to each operation").both(
        &extra,
        |us| us as f64,
        |us| {
            let load = saturated(3, 50);
            Load { service: longer(load.service, us * 1_000), ..load }
        },
    )
}

fn switch_overhead() -> Figure {
    let depths = [1, 4, 16, 64];
    let x: Value = Measured::total;
    let y: Value = |m| m.read.mean_ns;
    let figure = Figure::new("13d", "one server, reads", "operations a second");
    let mut figure =
        Figure { x_value: Some(x), y: "mean latency in us", y_value: y, y_unit: 1e3, ..figure };
    let ways =
        [("direct link", 0, false), ("conventional switch", 300, false), ("Harmonia", 600, true)];
    for (name, switch_ns, with_help) in ways {
        figure = figure.line(
            name,
            &depths,
            |depth| depth as f64,
            |outstanding| {
                let load = saturated(1, 0);
                let service = Service { switch_ns, ..load.service };
                Load { outstanding, service, ..load }.over(Protocol::Chain, with_help)
            },
        );
    }
    figure
}

/// A load with writes at a rate in thousands per second, and as many reads as possible; packets
/// other than those of the store take time, too.
fn compared(protocol: Protocol, with_help: bool) -> impl Fn(u64) -> Load {
    move |rate| {
        let load = reads_beside(rate * 1_000);
        let service = Service { ack_ns: ACK_NS, query_ns: ACK_NS, ..load.service };
        Load { service, ..load }.over(protocol, with_help)
    }
}

fn compare(name: &'static str, title: &'static str) -> Figure {
    let figure = Figure::new(name, title, "writes, million a second");
    let figure = Figure { x_value: Some(write_rate), ..figure };
    Figure { y: "million reads a second", y_value: |m| m.reads_per_second, ..figure }
}

fn primary_backup_protocols() -> Figure {
    let x = |rate: u64| rate as f64 / 1e3;
    let (pb, cr, craq) = (Protocol::PrimaryBackup, Protocol::Chain, Protocol::Craq);
    compare("14a", "primary-backup protocols")
        .line("PB", &WRITE_RATES, x, compared(pb, false))
        .line("CR", &WRITE_RATES, x, compared(cr, false))
        .line("CRAQ (ours: one execution)", &WRITE_RATES, x, compared(craq, false))
        .line("CRAQ (the paper's: two phases)", &WRITE_RATES, x, |rate| {
            let load = compared(craq, false)(rate);
            // Marking an object dirty, and committing, are an operation of the store each.
            Load { commit_ns: load.service.write_ns, ..load }
        })
        .line("Harmonia (PB)", &WRITE_RATES, x, compared(pb, true))
        .line("Harmonia (CR)", &WRITE_RATES, x, compared(cr, true))
}

fn quorum_protocols() -> Figure {
    let x = |rate: u64| rate as f64 / 1e3;
    compare("14b", "quorum protocols")
        .line("VR", &WRITE_RATES, x, compared(Protocol::Vr, false))
        .line("Harmonia (VR)", &WRITE_RATES, x, compared(Protocol::Vr, true))
        .line("NOPaxos", &WRITE_RATES, x, compared(Protocol::NoPaxos, false))
        .line("Harmonia (NOPaxos)", &WRITE_RATES, x, compared(Protocol::NoPaxos, true))
}

fn switch_failure() -> Figure {
    let figure = Figure::new("15", "the switch fails (rates a hundredth)", "s");
    let slow = |ns: u64| ns * SLOWER;
    let load = |()| {
        let load = saturated(3, 50);
        let s = load.service;
        let service = Service {
            read_ns: slow(s.read_ns),
            write_ns: slow(s.write_ns),
            record_ns: slow(s.record_ns),
            ack_ns: slow(s.ack_ns),
            ..s
        };
        Load {
            service,
            warm_up_ns: SEC,
            measure_ns: 40 * SEC,
            bucket_ns: SEC / 2,
            switch_stops: Some((20 * SEC, 24 * SEC)),
            ..load
        }
    };
    let figure = Figure {
        y: "thousand operations a second",
        y_unit: 1e3,
        drawn: Drawn::Timeline { bucket_s: 0.5 },
        ..figure
    };
    figure.both(&[()], |()| 0.0, load)
}

/// Late completions keep objects dirty, and delay the last-committed point.
fn late_completions() -> Figure {
    let delays_us = [0, 100, 200, 500, 1_000, 2_000, 5_000];
    let load = |us: u64, keys: &Keys| Load {
        keys: keys.clone(),
        completions_separate: Some(Separate { delay_ns: us * 1_000, lost_ppm: 0 }),
        ..saturated(3, 50)
    };
    let x = |us: u64| us as f64;
    Figure::new("late", "completions held back, 5% writes", "us")
        .line("uniform", &delays_us, x, |us| load(us, &Keys::Uniform(1_000_000)))
        .line("zipf 0.9", &delays_us, x, |us| load(us, &ZIPF))
}

/// Lost completions leave stray entries (§6.2), which reads, inserts and the sweep remove. There
/// are few enough objects that reads meet the entries within the run.
fn lost_completions() -> Figure {
    let percents = [0, 1, 5, 10, 20, 50];
    let load = |percent: u64, is_swept: bool| {
        let load = saturated(3, 50);
        Load {
            slots: 1_024,
            keys: Keys::Uniform(100_000),
            completions_separate: Some(Separate { delay_ns: 0, lost_ppm: percent * 10_000 }),
            sweep_interval_ns: if is_swept { load.sweep_interval_ns } else { SEC },
            measure_ns: 100 * MS,
            ..load
        }
    };
    let x = |percent: u64| percent as f64;
    let figure = Figure::new("lost", "stray entries, 5% writes", "percent of completions lost");
    let occupied: Value = |m| f64::from(m.occupied);
    let y = "slots of 3,072 in use at the end";
    let figure = Figure { y, y_value: occupied, y_unit: 1.0, ..figure };
    figure.line("swept", &percents, x, |percent| load(percent, true)).line(
        "removed by reads and inserts only",
        &percents,
        x,
        |percent| load(percent, false),
    )
}

/// A completion in the reply costs no packet; a separate one costs the tail (ours: as much as an
/// acknowledgement).
fn completions_separate() -> Figure {
    let percents = [0, 5, 10, 20, 50, 100];
    let load = |percent: u64, is_apart: bool| {
        let load = saturated(3, percent * 10);
        let service = Service { ack_ns: ACK_NS, ..load.service };
        Load { service, completions_separate: is_apart.then_some(Separate::default()), ..load }
    };
    let x = |percent: u64| percent as f64;
    Figure::new("apart", "completions in replies, and apart", "percent of writes")
        .line("in the reply", &percents, x, |percent| load(percent, false))
        .line("apart", &percents, x, |percent| load(percent, true))
}

/// §8.3 piggybacks COMMIT-ACKs on PREPARE-OKs; if they are separate, the leader receives two more
/// packets.
fn commit_acks_separate() -> Figure {
    let percents = [0, 5, 10, 20, 50, 100];
    let load = |percent: u64, commit_acks_separate: bool| {
        let load = saturated(3, percent * 10);
        let service = Service { ack_ns: ACK_NS, ..load.service };
        Load { service, commit_acks_separate, ..load }.over(Protocol::Vr, true)
    };
    let x = |percent: u64| percent as f64;
    Figure::new("acks", "Harmonia (VR), COMMIT-ACKs in PREPARE-OKs, and apart", "percent of writes")
        .line("in PREPARE-OKs", &percents, x, |percent| load(percent, false))
        .line("apart", &percents, x, |percent| load(percent, true))
}
