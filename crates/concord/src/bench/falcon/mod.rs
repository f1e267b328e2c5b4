//! `concord bench tasks`: how long a task waits for its start and its result, and how many tasks
//! per second are done, by a rack of workers and by other systems, in one run and in turn.
//!
//! All systems have the same number of executors. Clocks are CLOCK_BOOTTIME, which all processes of
//! a host share: a task returns the time of its start. A system that is not installed is left out,
//! with a message.

mod floor;
mod line;
mod nats;
mod python;
mod rack;
mod redis;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use concord_runtime::{Context as _, Error};

use super::load::check_stop;
use super::ycsb::installed;
use crate::results::{Results, Table, load_average, median, spread};

/// The maximum number of tasks without a result at another system: more would only make its queue
/// longer.
const WINDOW: u32 = 8_192;
/// The number of tasks before the measurement, in which connections open and caches fill.
const WARM_UP: u32 = 50;
const IDLE: Duration = Duration::from_secs(3);

/// `concord bench tasks`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The rack is compared with other systems, if they are installed: NATS (nats-server; a core queue group, and a JetStream
work queue in memory), BRPOP at redis-server, xargs -P, and for calls of Python functions Dask and Ray:
  apt-get install nats-server redis-server
  python3 -m venv venv; venv/bin/pip install 'dask[distributed]' ray
  concord bench tasks --python venv/bin/python3")]
pub struct TasksArgs {
    /// Number of runs of each, in turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Number of no-ops that are submitted at once
    #[arg(long, value_name = "N", default_value_t = 200_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tasks: u32,
    /// Number of tasks that are submitted one after the other
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub singles: u32,
    /// Number of commands (/bin/true) that are submitted at once
    #[arg(long, value_name = "N", default_value_t = 2_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub commands: u32,
    /// Number of calls of a Python function that are submitted at once
    #[arg(long, value_name = "N", default_value_t = 5_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub calls: u32,
    /// Number of workers of the rack
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub workers: u16,
    /// Number of tasks that each worker runs at a time
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub slots: u16,
    /// Number of tasks that each executor of the second rack fetches ahead; 0 leaves that rack out
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u8).range(..=64))]
    pub prefetch: u8,
    /// The Python interpreter of the rack's executor, of Dask and of Ray
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: String,
    /// Leave the comparisons from Python out
    #[arg(long)]
    pub no_python: bool,
}

/// The times of one task since its submission.
#[derive(Clone, Copy, Debug)]
struct Single {
    start_ns: u64,
    result_ns: u64,
}

/// A system that takes tasks and returns results.
trait Queue {
    /// Runs a task without waiting tasks before it.
    fn single(&mut self) -> Result<Single, Error>;

    /// Runs `count` tasks that are submitted at once.
    fn many(&mut self, count: u32) -> Result<(), Error>;
}

/// The measurements of one system, a value for each repeat.
#[derive(Debug, Default)]
struct Figures {
    start_p50: Vec<f64>,
    start_p99: Vec<f64>,
    result_p50: Vec<f64>,
    result_p99: Vec<f64>,
    rate: Vec<f64>,
}

fn percentile(of: &mut [f64], percent: usize) -> f64 {
    of.sort_by(f64::total_cmp);
    let at = (of.len() * percent).div_ceil(100).saturating_sub(1);
    of.get(at).copied().unwrap_or(f64::NAN)
}

/// All systems, and their raw measurements.
struct Report {
    all: Vec<(&'static str, Figures)>,
    raw: Table,
}

impl Report {
    fn new() -> Report {
        let columns = [
            "what",
            "repeat",
            "start p50 us",
            "start p99 us",
            "result p50 us",
            "result p99 us",
            "tasks/s",
            "load avg",
        ];
        Report { all: Vec::new(), raw: Table::new(&columns) }
    }

    /// Adds a run of one system.
    fn add(&mut self, name: &'static str, repeat: u32, singles: Option<[f64; 4]>, rate: f64) {
        let at = self.all.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            self.all.push((name, Figures::default()));
            self.all.len() - 1
        });
        let figures = &mut self.all[at].1;
        let mut cells = vec![name.to_string(), repeat.to_string()];
        let places = [
            &mut figures.start_p50,
            &mut figures.start_p99,
            &mut figures.result_p50,
            &mut figures.result_p99,
        ];
        for (at, place) in places.into_iter().enumerate() {
            let value = singles.map(|values| values[at]);
            place.extend(value);
            cells.push(value.map_or_else(|| "-".to_string(), |value| format!("{value:.1}")));
        }
        figures.rate.push(rate);
        cells.extend([format!("{rate:.0}"), load_average()]);
        self.raw.row(cells);
        self.raw.print_last();
    }

    fn summary(&self) -> Table {
        let mut table = Table::new(&[
            "what",
            "start p50 us",
            "start p99 us",
            "result p50 us",
            "result p99 us",
            "tasks/s",
        ]);
        for (name, figures) in &self.all {
            let of = |values: &[f64], digits| match values {
                [] => "-".to_string(),
                values => spread(values, digits),
            };
            table.row(vec![
                name.to_string(),
                of(&figures.start_p50, 0),
                of(&figures.start_p99, 0),
                of(&figures.result_p50, 0),
                of(&figures.result_p99, 0),
                of(&figures.rate, 0),
            ]);
        }
        table
    }

    /// Prints the ratio of the rack to each of the others, by medians.
    fn print_ratios(&self) {
        let find = |name| self.all.iter().find(|(known, _)| *known == name).map(|(_, f)| f);
        for (own, others) in [
            (RACK, &[NATS, JETSTREAM, REDIS][..]),
            (RACK_AHEAD, &[NATS, JETSTREAM, REDIS]),
            (RACK_COMMANDS, &[XARGS]),
            (RACK_PYTHON, &[DASK, RAY]),
        ] {
            let Some(own_figures) = find(own) else { continue };
            for other in others {
                let Some(figures) = find(other) else { continue };
                let rate = median(&own_figures.rate) / median(&figures.rate);
                let mut line = format!("{own} / {other}: tasks/s {rate:.2}");
                if !figures.start_p50.is_empty() {
                    let start = median(&own_figures.start_p50) / median(&figures.start_p50);
                    let result = median(&own_figures.result_p50) / median(&figures.result_p50);
                    line += &format!(", to start {start:.2}, to result {result:.2}");
                }
                println!("{line}");
            }
        }
    }
}

const FLOOR: &str = "bare UDP one by one";
const RACK: &str = "concord";
const NATS: &str = "NATS queue group";
const JETSTREAM: &str = "NATS JetStream";
const REDIS: &str = "redis BRPOP";
const RACK_AHEAD: &str = "concord, prefetch";
const RACK_HTTP: &str = "concord over HTTP";
const RACK_HTTP_AHEAD: &str = "concord over HTTP, prefetch";
const RACK_COMMANDS: &str = "concord /bin/true";
const XARGS: &str = "xargs -P /bin/true";
const RACK_PYTHON: &str = "concord.Executor";
const DASK: &str = "Dask";
const RAY: &str = "Ray";

/// Measures one system.
fn measure(
    name: &'static str,
    repeat: u32,
    args: &TasksArgs,
    queue: &mut impl Queue,
    report: &mut Report,
) -> Result<(), Error> {
    check_stop()?;
    for _ in 0..WARM_UP.min(args.singles) {
        queue.single()?;
    }
    let (mut starts, mut results) = (Vec::new(), Vec::new());
    for _ in 0..args.singles {
        check_stop()?;
        let Single { start_ns, result_ns } = queue.single()?;
        starts.push(start_ns as f64 / 1e3);
        results.push(result_ns as f64 / 1e3);
    }
    let began = Instant::now();
    queue.many(args.tasks)?;
    let rate = f64::from(args.tasks) / began.elapsed().as_secs_f64();
    let singles = [
        percentile(&mut starts, 50),
        percentile(&mut starts, 99),
        percentile(&mut results, 50),
        percentile(&mut results, 99),
    ];
    report.add(name, repeat, Some(singles), rate);
    Ok(())
}

/// Measures `/bin/true` by `xargs -P`.
fn xargs(count: u32, executors: u16) -> Result<f64, Error> {
    check_stop()?;
    let began = Instant::now();
    let mut numbers = Command::new("seq")
        .arg(count.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .cannot("start seq")?;
    let input = numbers.stdout.take().ok_or_else(|| Error::new("seq has no output"))?;
    let status = Command::new("xargs")
        .args(["-P", &executors.to_string(), "-n", "1", "/bin/true"])
        .stdin(input)
        .status()
        .cannot("run xargs")?;
    numbers.wait().cannot("run seq")?;
    if !status.success() {
        return Err(Error::new(format!("xargs ended with {status}")));
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

/// Makes one run of each system.
fn repeat(number: u32, args: &TasksArgs, has: Installed, report: &mut Report) -> Result<(), Error> {
    let executors = args.workers * args.slots;
    let few = TasksArgs { tasks: args.singles, ..args.clone() };
    measure(FLOOR, number, &few, &mut floor::Bare::start()?, report)?;
    if has.nats {
        for (name, kind) in [(NATS, nats::Kind::Core), (JETSTREAM, nats::Kind::JetStream)] {
            let mut group = nats::Group::start(kind, args.workers)?;
            measure(name, number, args, &mut group, report)?;
        }
    }
    if has.redis {
        measure(REDIS, number, args, &mut redis::Lists::start(executors)?, report)?;
    }
    if args.prefetch > 0 {
        let mut rack = rack::Workers::start(args, args.prefetch)?;
        measure(RACK_AHEAD, number, args, &mut rack, report)?;
        let rate = f64::from(args.tasks) / rack.no_ops(args.tasks)?;
        report.add(RACK_HTTP_AHEAD, number, None, rate);
    }
    let mut rack = rack::Workers::start(args, 0)?;
    measure(RACK, number, args, &mut rack, report)?;
    let rate = f64::from(args.tasks) / rack.no_ops(args.tasks)?;
    report.add(RACK_HTTP, number, None, rate);
    let seconds = rack.commands(args.commands)?;
    report.add(RACK_COMMANDS, number, None, f64::from(args.commands) / seconds);
    if has.xargs {
        report.add(XARGS, number, None, xargs(args.commands, executors)?);
    }
    if number == 1 {
        let idle = rack.idle(IDLE)?;
        let all: f64 = idle.iter().map(|(_, share)| share).sum();
        let each: Vec<String> =
            idle.iter().map(|(name, share)| format!("{name} {:.2}%", share * 100.0)).collect();
        println!("idle: {:.2}% of a core ({})", all * 100.0, each.join(", "));
    }
    if !args.no_python {
        let token = rack.owner.token().to_string();
        let own = (&rack.listen[..], &token[..]);
        for (name, system, owner) in
            [(RACK_PYTHON, "concord", Some(own)), (DASK, "dask", None), (RAY, "ray", None)]
        {
            check_stop()?;
            match python::measure(system, args, owner) {
                Err(line) if number == 1 => println!("{line}"),
                Err(_) => {}
                Ok(mut measured) => {
                    let (starts, results) = (&mut measured.start_us, &mut measured.result_us);
                    let singles = [
                        percentile(starts, 50),
                        percentile(starts, 99),
                        percentile(results, 50),
                        percentile(results, 99),
                    ];
                    report.add(name, number, Some(singles), measured.calls_per_second);
                }
            }
        }
    }
    Ok(())
}

/// The systems that are installed for comparison.
#[derive(Clone, Copy)]
struct Installed {
    nats: bool,
    redis: bool,
    xargs: bool,
}

/// Runs the benchmark.
///
/// # Errors
/// One line for a person; no process is left running.
pub fn bench(args: &TasksArgs, results: &Results) -> Result<(), Error> {
    let has = Installed {
        nats: installed("nats-server"),
        redis: installed("redis-server"),
        xargs: installed("xargs"),
    };
    let mut report = Report::new();
    for number in 1..=args.repeats {
        repeat(number, args, has, &mut report)?;
    }
    let summary = report.summary();
    summary.print();
    println!();
    report.print_ratios();
    results.csv("tasks", &report.raw)?;
    results.csv("tasks-summary", &summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((percentile(&mut values, 50), percentile(&mut values, 99)), (50.0, 99.0));
        assert_eq!(percentile(&mut [7.0], 99), 7.0);
        assert!(percentile(&mut [], 50).is_nan());
    }
}
