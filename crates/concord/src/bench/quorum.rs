//! `concord bench quorum`: VR, NOPaxos and Raft with and without the switch's help, compared with
//! etcd. Each replica is capped to the same share of a core, and nothing is on disk (Harmonia §9.5,
//! Figure 9(c) to (f)).
//!
//! As in [`super::scale`], all systems that are compared run at once and are measured in turn.

use clap::Args;
use concord_core::{SEC, US};
use concord_runtime::Error;

use super::etcd::{Etcd, Grpc, Setup};
use super::load::{Measured, Plan, Target, fill, run};
use super::native::Native;
use super::rig::{Rig, Shape, name_of};
use super::workload::{Choice, Mix, Workload};
use super::ycsb::installed;
use crate::results::{Mark, Plot, Results, Scale, Table, load_average, spread};
use crate::systems::store::{Accel, KeyGroups, Protocol};

const COLUMNS: [&str; 9] = [
    "replicas",
    "store",
    "workload",
    "repeat",
    "ops/s",
    "p50 ms",
    "fast reads",
    "failed",
    "load avg",
];
/// The measured mixes: indices in [`Mix::SCALE`].
const MIXES: [usize; 2] = [0, 1];
/// The measured protocols.
const PROTOCOLS: [Protocol; 3] = [Protocol::Vr, Protocol::NoPaxos, Protocol::Raft];
/// The number of pending writes while keys are loaded.
const FILL_CLIENTS: u32 = 256;
/// The number of client machines of a rack, and the pause in which their replies become batches: as
/// in `scale`.
const SESSIONS: u32 = 4;
const PAUSE_NS: u64 = 2_000 * US;

/// `concord bench quorum`.
#[derive(Args, Clone, Debug)]
pub struct QuorumArgs {
    /// Numbers of replicas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,3,5")]
    pub replicas: Vec<u16>,
    /// Share of a core for each replica, and for each node of etcd
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub share: f64,
    /// Number of keys, all loaded; chosen uniformly
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    pub keys: u64,
    /// Length of values in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub value_bytes: usize,
    /// Number of pending operations for each replica
    #[arg(long, value_name = "N", default_value_t = 9_000)]
    pub outstanding: u32,
    /// Number of pending operations for each node of etcd, which refuses more than some thousand
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub etcd_outstanding: u32,
    /// Duration of the measurement in each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    pub seconds: f64,
    /// Duration of the warm-up before it, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub warmup: f64,
    /// Number of runs of each configuration
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Only these stores, as the results name them (`raft,raft+flair,vr,vr+harmonia`); all if left
    /// out. etcd is measured in any case
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub stores: Vec<String>,
    /// Number of key groups of FLAIR's switch, a power of two
    #[arg(long, value_name = "N", default_value_t = KeyGroups::default().groups)]
    pub key_groups: u32,
    /// Leave etcd out
    #[arg(long)]
    pub no_etcd: bool,
}

impl QuorumArgs {
    fn wants(&self, protocol: Protocol, accel: Accel) -> bool {
        let name = store(protocol, accel).replace(' ', "");
        self.stores.is_empty() || self.stores.iter().any(|wanted| wanted.replace(' ', "") == name)
    }

    /// Checks that each wanted store exists.
    fn check(&self) -> Result<(), Error> {
        let all = PROTOCOLS.into_iter().flat_map(|p| Accel::serving(p).map(move |a| store(p, a)));
        let all: Vec<String> = all.map(|name| name.replace(' ', "")).collect();
        let known = |name: &&String| all.contains(&name.replace(' ', ""));
        match self.stores.iter().find(|name| !known(name)) {
            Some(name) => Err(Error::new(format!("no store {name:?}: {}", all.join(", ")))),
            None => KeyGroups { groups: self.key_groups, ..KeyGroups::default() }
                .check()
                .map_err(|(_, line)| Error::new(format!("--key-groups is {line}"))),
        }
    }
}

/// A measured store.
struct Side {
    store: String,
    outstanding: u32,
    target: Box<dyn Target>,
    /// The processes, which end with this.
    _processes: Processes,
}

#[expect(dead_code, reason = "held until they are to end")]
enum Processes {
    Rig(Box<Rig>),
    Etcd(Etcd),
}

/// The result of one run.
struct Point {
    replicas: u16,
    store: String,
    mix: usize,
    rate: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &QuorumArgs, results: &Results) -> Result<(), Error> {
    if !(args.share > 0.0 && args.share <= 1.0) {
        return Err(Error::new("--share must be above 0 and at most 1"));
    }
    args.check()?;
    let mut table = Table::new(&COLUMNS);
    let mut points = Vec::new();
    for &replicas in &args.replicas {
        let mut sides = sides(args, replicas)?;
        for repeat in 0..args.repeats {
            // The first store may find the machine in another state: they take turns.
            sides.rotate_left(1);
            for mix in MIXES {
                for side in &mut sides {
                    let measured = measure(args, side, mix, repeat)?;
                    row(&mut table, replicas, side, mix, repeat, &measured);
                    let (store, rate) = (side.store.clone(), measured.rate());
                    points.push(Point { replicas, store, mix, rate });
                }
            }
        }
    }
    let summary = summarise(args, &points);
    summary.print();
    results.csv("quorum", &table)?;
    results.csv("quorum-summary", &summary)?;
    results.plot("quorum", &plot(args, &points))
}

/// All stores that are compared at this number of replicas, loaded and then capped.
fn sides(args: &QuorumArgs, replicas: u16) -> Result<Vec<Side>, Error> {
    let mut sides = Vec::new();
    for protocol in PROTOCOLS {
        for accel in Accel::serving(protocol).filter(|accel| args.wants(protocol, *accel)) {
            let shape = Shape {
                accel,
                capped: true,
                key_groups: accel.has_key_groups().then_some(args.key_groups),
                ..Shape::new(protocol, replicas)
            };
            let mut rig = Rig::start(shape)?;
            let mut native = Native::new(rig.switch, SESSIONS, PAUSE_NS)?;
            fill(&mut native, args.keys, args.value_bytes, FILL_CLIENTS)?;
            rig.cap(args.share)?;
            sides.push(Side {
                store: store(protocol, accel),
                outstanding: args.outstanding * u32::from(replicas),
                target: Box::new(native),
                _processes: Processes::Rig(Box::new(rig)),
            });
        }
    }
    if !args.no_etcd && installed("etcd") {
        let mut etcd = Etcd::start(usize::from(replicas), Setup::Capped)?;
        let mut grpc = Grpc::new(&etcd.clients)?;
        fill(&mut grpc, args.keys, args.value_bytes, FILL_CLIENTS)?;
        etcd.cap(args.share)?;
        sides.push(Side {
            store: "etcd".to_string(),
            outstanding: args.etcd_outstanding * u32::from(replicas),
            target: Box::new(grpc),
            _processes: Processes::Etcd(etcd),
        });
    }
    Ok(sides)
}

/// The name of a store: "vr", or "vr + harmonia".
fn store(protocol: Protocol, accel: Accel) -> String {
    let name = name_of(protocol);
    if accel == Accel::None { name } else { format!("{name} + {}", name_of(accel)) }
}

fn measure(args: &QuorumArgs, side: &mut Side, mix: usize, repeat: u32) -> Result<Measured, Error> {
    let plan = Plan {
        clients: side.outstanding,
        value_bytes: args.value_bytes,
        rate: None,
        warmup_ns: (args.warmup * SEC as f64) as u64,
        measure_ns: (args.seconds * SEC as f64) as u64,
    };
    let seed = u64::from(repeat) + 1;
    let mut workload = Workload::new(Mix::SCALE[mix], Choice::Uniform, args.keys, seed)?;
    run(&mut side.target.as_mut(), &mut workload, plan)
}

fn row(table: &mut Table, replicas: u16, side: &Side, mix: usize, repeat: u32, seen: &Measured) {
    table.row(vec![
        replicas.to_string(),
        side.store.clone(),
        Mix::SCALE[mix].name.to_string(),
        repeat.to_string(),
        format!("{:.0}", seen.rate()),
        format!("{:.1}", seen.reads.value_at_quantile(0.5) as f64 / 1e6),
        format!("{:.3}", seen.fast_share()),
        seen.failed.to_string(),
        load_average(),
    ]);
    table.print_last();
}

/// The rates of a store, in the order of their repeats.
fn rates(points: &[Point], replicas: u16, store: &str, mix: usize) -> Vec<f64> {
    let same = |p: &&Point| p.replicas == replicas && p.store == store && p.mix == mix;
    points.iter().filter(same).map(|p| p.rate).collect()
}

fn ratios(these: &[f64], those: &[f64]) -> String {
    if those.is_empty() {
        return "-".to_string();
    }
    spread(&these.iter().zip(those).map(|(a, b)| a / b).collect::<Vec<_>>(), 2)
}

fn summarise(args: &QuorumArgs, points: &[Point]) -> Table {
    let mut table = Table::new(&[
        "replicas",
        "workload",
        "store",
        "without ops/s",
        "with ops/s",
        "etcd ops/s",
        "with / without",
        "without / etcd",
        "with / etcd",
    ]);
    for &replicas in &args.replicas {
        for mix in MIXES {
            let etcd = rates(points, replicas, "etcd", mix);
            for protocol in PROTOCOLS {
                let without = rates(points, replicas, &store(protocol, Accel::None), mix);
                for accel in Accel::serving(protocol).skip(1) {
                    let with = rates(points, replicas, &store(protocol, accel), mix);
                    if with.is_empty() {
                        continue;
                    }
                    table.row(vec![
                        replicas.to_string(),
                        Mix::SCALE[mix].name.to_string(),
                        store(protocol, accel),
                        if without.is_empty() { "-".to_string() } else { spread(&without, 0) },
                        spread(&with, 0),
                        if etcd.is_empty() { "-".to_string() } else { spread(&etcd, 0) },
                        ratios(&with, &without),
                        ratios(&without, &etcd),
                        ratios(&with, &etcd),
                    ]);
                }
            }
        }
    }
    table
}

fn plot(args: &QuorumArgs, points: &[Point]) -> Plot {
    let mut stores: Vec<&str> = points.iter().map(|p| p.store.as_str()).collect();
    stores.sort_unstable();
    stores.dedup();
    let mut series = Vec::new();
    for store in stores {
        for mix in MIXES {
            let at = |&n: &u16| {
                let rates = rates(points, n, store, mix);
                Some(Mark::at_median(f64::from(n), &rates)?.in_units_of(1e3))
            };
            let marks = args.replicas.iter().filter_map(at).collect();
            series.push((format!("{store}, {}", Mix::SCALE[mix].name), marks));
        }
    }
    Plot {
        title: format!("Each replica {:.0}% of a core", args.share * 100.0),
        x: "replicas",
        y: "thousand operations/s",
        x_names: Vec::new(),
        scale: Scale::Places,
        series,
    }
}
