//! `concord bench scale`: throughput by the number of replicas, each capped to the same small share
//! of a core, for chain replication with and without the switch's help (Harmonia §9.2, Figure 7 and
//! 8).
//!
//! All racks that are compared run at once and are measured in turn, so that other work of the
//! machine affects each of them: without help, with help, and for reads one replica alone.

use clap::{Args, ValueEnum};
use concord_core::{SEC, US};
use concord_runtime::{Error, clock};

use super::cgroup::Cap;
use super::load::{Plan, fill, run};
use super::native::Native;
use super::rig::{Rig, Shape, name_of};
use super::workload::{Choice, Mix, Workload};
use crate::results::{Mark, Plot, Results, Scale, Table, load_average, spread};
use crate::systems::store::{Accel, Protocol};

const COLUMNS: [&str; 17] = [
    "figure",
    "replicas",
    "accel",
    "workload",
    "repeat",
    "cap",
    "share",
    "keys",
    "outstanding",
    "ops/s",
    "p50 ms",
    "fast reads",
    "failed",
    "cpu of cap min..max",
    "generator's cpu",
    "load avg",
    "set",
];
/// The number of pending writes while keys are loaded.
const FILL_CLIENTS: u32 = 2_048;
/// The pause before replies are received, in ns: latency is hundreds of ms under a quota anyway,
/// and batches leave more of the cores to the replicas.
const PAUSE_NS: u64 = 5_000 * US;
/// The number of sessions of a generator: each has at most 8,192 pending writes.
const SESSIONS: u32 = 4;
/// The maximum number of pending writes for each replica if the flags do not say: they wait for a
/// whole chain of replicas that stall in turn, and more of them would only be sent again.
const WRITES_OUTSTANDING_MAX: u32 = 3_000;
/// The maximum number of pending operations of all sessions: three times what ten replicas serve in
/// a period of their quota. With three times as many, the state of the generator does not fit into
/// its caches, and ten replicas wait for the generator.
const OUTSTANDING_MAX: u32 = 30_000;
/// The maximum number of keys if the replicas' own token bucket caps them: it does so from the
/// start, while keys are loaded, too.
const BUCKET_KEYS_MAX: u64 = 50_000;
/// The maximum number of replicas at which the quota is cross-checked with the token bucket.
const BUCKET_REPLICAS_MAX: u16 = 4;

/// The mechanism that caps replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CapBy {
    /// A quota if the machine allows it, otherwise the token bucket.
    Auto,
    /// A quota of the system.
    Quota,
    /// The replica's own token bucket.
    Bucket,
}

/// The workloads, in the order of [`Mix::SCALE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScaleWorkload {
    /// Reads only.
    ReadOnly,
    /// 5% writes.
    #[value(name = "5%-writes")]
    FewWrites,
    /// Writes only.
    WriteOnly,
}

/// `concord bench scale`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord bench scale                                  the whole figure
  concord bench scale --replicas 1,3 --seconds 2 --pairs 3
  concord bench scale --replicas 3 --workloads 5%-writes --sets 5 --pairs 9 --no-cross-check
                                                       medians over five racks of each kind")]
pub struct ScaleArgs {
    /// Numbers of replicas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,2,3,4,5,6,7,8,9,10"
    )]
    pub replicas: Vec<u16>,
    /// Workloads
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "read-only,5%-writes,write-only"
    )]
    pub workloads: Vec<ScaleWorkload>,
    /// Share of a core for each replica
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    pub share: f64,
    /// The mechanism that caps replicas
    #[arg(long, value_enum, default_value_t = CapBy::Auto)]
    pub cap: CapBy,
    /// Number of keys, all loaded; chosen uniformly
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    pub keys: u64,
    /// Length of values in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub value_bytes: usize,
    /// Number of pending operations for each replica (at most 30,000 in all): more than it serves
    /// in one period of its quota, so that it has work while those of the others wait
    #[arg(long, value_name = "N", default_value_t = 9_000)]
    pub outstanding: u32,
    /// Duration of the measurement in each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.5)]
    pub seconds: f64,
    /// Duration of the warm-up before it, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.7)]
    pub warmup: f64,
    /// Number of runs of each configuration
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Number of runs of each configuration at --pairs-at replicas
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub pairs: u32,
    /// Number of replicas at which writes with and without help are compared more often
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub pairs_at: u16,
    /// Number of times that the racks are started anew, for as many runs each time: a replica keeps
    /// the memory that it got, so that racks differ more than runs on one of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sets: u32,
    /// Leave out the cross-check with the token bucket
    #[arg(long)]
    pub no_cross_check: bool,
}

/// The result of one run.
#[derive(Clone, Debug)]
struct Point {
    /// The number of replicas in the figure to which this run belongs. The single replica that is
    /// measured in turn with them has another number.
    figure: u16,
    replicas: u16,
    accel: Accel,
    mix: usize,
    bucket: bool,
    rate: f64,
}

/// A rack and its load generator.
struct Side {
    replicas: u16,
    accel: Accel,
    rig: Rig,
    native: Native,
}

/// The index of the read-only mix in [`Mix::SCALE`].
const READS: usize = ScaleWorkload::ReadOnly as usize;

struct Bench<'a> {
    args: &'a ScaleArgs,
    /// One replica, with help, with which reads at more replicas are compared.
    one: Option<Side>,
    /// How many times the racks were started anew.
    set: u32,
    table: Table,
    points: Vec<Point>,
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &ScaleArgs, results: &Results) -> Result<(), Error> {
    if !(args.share > 0.0 && args.share <= 1.0) {
        return Err(Error::new("--share must be above 0 and at most 1"));
    }
    let bucket = match args.cap {
        CapBy::Quota => false,
        CapBy::Bucket => true,
        CapBy::Auto => !Cap::is_possible(args.share),
    };
    if bucket {
        println!("replicas are capped by their own token bucket");
    }
    let (table, points) = (Table::new(&COLUMNS), Vec::new());
    let mut bench = Bench { args, one: None, set: 0, table, points };
    for set in 0..args.sets {
        bench.set = set;
        bench.run_set(bucket)?;
    }
    let summary = bench.summary();
    summary.print();
    results.csv("scale", &bench.table)?;
    results.csv("scale-summary", &summary)?;
    results.plot("scale", &bench.plot(bucket))
}

impl Bench<'_> {
    /// Makes all runs, on racks of their own.
    fn run_set(&mut self, bucket: bool) -> Result<(), Error> {
        let args = self.args;
        let mixes: Vec<usize> = args.workloads.iter().map(|w| *w as usize).collect();
        self.one = None;
        for &replicas in &args.replicas {
            self.at(replicas, bucket, &mixes)?;
        }
        if !bucket && !args.no_cross_check {
            self.one = None;
            for &replicas in args.replicas.iter().filter(|&&n| n <= BUCKET_REPLICAS_MAX) {
                self.at(replicas, true, &[READS])?;
            }
        }
        Ok(())
    }

    /// Makes all runs of the workloads `mixes` at `replicas` replicas.
    fn at(&mut self, replicas: u16, bucket: bool, mixes: &[usize]) -> Result<(), Error> {
        let mut sides = Vec::new();
        for accel in [Accel::None, Accel::default()] {
            sides.push(self.side(replicas, accel, bucket)?);
        }
        if replicas > 1 && mixes.contains(&READS) && self.one.is_none() {
            self.one = Some(self.side(1, Accel::default(), bucket)?);
        }
        let runs = if replicas == self.args.pairs_at && !bucket {
            self.args.pairs.max(self.args.repeats)
        } else {
            self.args.repeats
        };
        for repeat in 0..runs {
            for &mix in mixes {
                // The first rack may find the machine in another state: they take turns.
                sides.reverse();
                for side in &mut sides {
                    self.measure(side, replicas, bucket, mix, repeat)?;
                }
                if mix == READS
                    && replicas > 1
                    && let Some(mut one) = self.one.take()
                {
                    self.measure(&mut one, replicas, bucket, mix, repeat)?;
                    self.one = Some(one);
                }
            }
        }
        Ok(())
    }

    fn keys(&self, bucket: bool) -> u64 {
        if bucket { self.args.keys.min(BUCKET_KEYS_MAX) } else { self.args.keys }
    }

    fn side(&self, replicas: u16, accel: Accel, bucket: bool) -> Result<Side, Error> {
        let share = bucket.then_some(self.args.share);
        let mut rig = Rig::start(Shape {
            accel,
            capped: true,
            bucket: share,
            ..Shape::new(Protocol::Chain, replicas)
        })?;
        let mut native = Native::new(rig.switch, SESSIONS, PAUSE_NS)?;
        fill(&mut native, self.keys(bucket), self.args.value_bytes, FILL_CLIENTS)?;
        if !bucket {
            rig.cap(self.args.share)?;
        }
        Ok(Side { replicas, accel, rig, native })
    }

    fn measure(
        &mut self,
        side: &mut Side,
        figure: u16,
        bucket: bool,
        mix: usize,
        repeat: u32,
    ) -> Result<(), Error> {
        let (args, replicas) = (self.args, side.replicas);
        let is_write_only = mix == ScaleWorkload::WriteOnly as usize;
        let most = if is_write_only { WRITES_OUTSTANDING_MAX } else { OUTSTANDING_MAX };
        let each = args.outstanding.min(most);
        let clients = (each * u32::from(replicas)).min(OUTSTANDING_MAX);
        let plan = Plan {
            clients,
            value_bytes: args.value_bytes,
            rate: None,
            warmup_ns: (args.warmup * SEC as f64) as u64,
            measure_ns: (args.seconds * SEC as f64) as u64,
        };
        let (accel, keys) = (side.accel, self.keys(bucket));
        let mix_of = Mix::SCALE[mix];
        let mut workload = Workload::new(mix_of, Choice::Uniform, keys, u64::from(repeat) + 1)?;
        let (before, began) = (side.rig.replica_cpu_ns(), clock::now().instant);
        let own_ns = clock::thread_cpu_ns();
        let measured = run(&mut side.native, &mut workload, plan)?;
        let own_ns = (clock::thread_cpu_ns() - own_ns) as f64;
        let elapsed_ns = clock::now().instant.since(began) as f64;
        let after = side.rig.replica_cpu_ns();
        let used = before.iter().zip(&after).map(|(b, a)| a.saturating_sub(*b) as f64);
        let used: Vec<f64> = used.map(|ns| ns / elapsed_ns / args.share).collect();
        let (least, most) = used.iter().fold((f64::MAX, 0.0), |(l, m), &u| (u.min(l), u.max(m)));
        let histogram = if measured.reads.is_empty() { &measured.writes } else { &measured.reads };
        self.table.row(vec![
            figure.to_string(),
            replicas.to_string(),
            name_of(accel),
            mix_of.name.to_string(),
            repeat.to_string(),
            if bucket { "bucket" } else { "quota" }.to_string(),
            args.share.to_string(),
            keys.to_string(),
            clients.to_string(),
            format!("{:.0}", measured.rate()),
            format!("{:.1}", histogram.value_at_quantile(0.5) as f64 / 1e6),
            format!("{:.3}", measured.fast_share()),
            measured.failed.to_string(),
            format!("{least:.2}..{most:.2}"),
            format!("{:.2}", own_ns / elapsed_ns),
            load_average(),
            self.set.to_string(),
        ]);
        self.table.print_last();
        self.points.push(Point { figure, replicas, accel, mix, bucket, rate: measured.rate() });
        Ok(())
    }

    /// The rates of a configuration, in the order of their repeats.
    fn rates(&self, replicas: u16, accel: Accel, mix: usize, bucket: bool) -> Vec<f64> {
        self.rates_beside(replicas, replicas, accel, mix, bucket)
    }

    /// The rates of `replicas` replicas that took turns with `figure`.
    fn rates_beside(
        &self,
        figure: u16,
        replicas: u16,
        accel: Accel,
        mix: usize,
        bucket: bool,
    ) -> Vec<f64> {
        let wanted = (figure, replicas, accel, mix, bucket);
        let same = |p: &&Point| (p.figure, p.replicas, p.accel, p.mix, p.bucket) == wanted;
        self.points.iter().filter(same).map(|p| p.rate).collect()
    }

    fn summary(&self) -> Table {
        let mut table = Table::new(&[
            "replicas",
            "workload",
            "cap",
            "without ops/s",
            "with ops/s",
            "with / without",
            "pairs",
            "with / (n x one in turn)",
        ]);
        for bucket in [false, true] {
            for mix in 0..Mix::SCALE.len() {
                for &n in &self.args.replicas {
                    let without = self.rates(n, Accel::None, mix, bucket);
                    let with = self.rates(n, Accel::default(), mix, bucket);
                    if with.is_empty() {
                        continue;
                    }
                    let pairs: Vec<f64> = with.iter().zip(&without).map(|(w, o)| w / o).collect();
                    let one = self.rates_beside(n, 1, Accel::default(), mix, bucket);
                    let scaled = with.iter().zip(&one).map(|(w, o)| w / (f64::from(n) * o));
                    let scaled: Vec<f64> = scaled.collect();
                    table.row(vec![
                        n.to_string(),
                        Mix::SCALE[mix].name.to_string(),
                        if bucket { "bucket" } else { "quota" }.to_string(),
                        spread(&without, 0),
                        spread(&with, 0),
                        spread(&pairs, 3),
                        pairs.len().to_string(),
                        if scaled.is_empty() { String::new() } else { spread(&scaled, 3) },
                    ]);
                }
            }
        }
        table
    }

    fn plot(&self, bucket: bool) -> Plot {
        let mut series = Vec::new();
        for (mix, name) in Mix::SCALE.iter().map(|m| m.name).enumerate() {
            for accel in [Accel::default(), Accel::None] {
                let at = |&n: &u16| {
                    let rates = self.rates(n, accel, mix, bucket);
                    Some(Mark::at_median(f64::from(n), &rates)?.in_units_of(1e3))
                };
                let marks: Vec<Mark> = self.args.replicas.iter().filter_map(at).collect();
                if !marks.is_empty() {
                    series.push((format!("{name}, {}", name_of(accel)), marks));
                }
            }
        }
        let share = self.args.share * 100.0;
        Plot {
            title: format!("Chain replication, each replica {share:.0}% of a core"),
            x: "replicas",
            y: "thousand operations/s",
            x_names: Vec::new(),
            scale: Scale::Places,
            series,
        }
    }
}
