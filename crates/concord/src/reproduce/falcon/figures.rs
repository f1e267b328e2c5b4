//! The figures: what is run at each point. Falcon §3.5; parameters that the paper does not give are
//! marked as ours.

use concord_core::{Duration, MS, SEC, US};
use concord_sim::falcon::load::{Arrivals, Costs, Delays, Load, Measured, System, Times};

use super::seen::{Figure, Line, Shown};
use crate::results::Scale;

/// What a host of Falcon's prototype is busy with each packet, job and end of a task, in ns: fitted
/// at 50%.
pub const FALCON_HOST_NS: Duration = 21_200;
/// What a process of Sparrow's is busy with a message, in ns: fitted at 50%.
pub const SPARROW_PROCESS_NS: Duration = 43_000;
/// If it were as quick as a host of Falcon's: from a client's call to when its scheduler has the
/// job; fitted at 50%.
const SPARROW_SUBMIT_NS: Duration = 1_000_000;
/// What Spark's driver is busy with a task that it sends, and with the report of its end: fitted at
/// 50%.
pub const SPARK_PROCESS_NS: Duration = 183_300;
/// What is measured of 32,000 executors, and of 320.
const LARGE_NS: Duration = 150 * MS;
const SHORT_NS: Duration = 30 * MS;

/// Utilizations, in percent.
const UTILIZATIONS: [u64; 9] = [20, 30, 40, 50, 60, 70, 80, 90, 95];
/// Those of Spark: its runs take a minute.
const SPARKS: [u64; 3] = [40, 50, 60];
/// The highest.
pub const FULL: f64 = 95.0;
/// Where host costs are fitted.
pub const HALF: f64 = 50.0;
/// Where steps are measured.
const STEPS_AT: f64 = 0.8;
/// Time between a client's jobs (§3.5).
const PERIOD_NS: Duration = 10 * MS;
/// Jobs of both clients a second.
const JOBS_PER_SECOND: u64 = 200;

/// Lines of the figures on §3.5, in this order.
pub const FALCON: usize = 0;
/// Sparrow with two probes a task.
pub const SPARROW: usize = 1;
/// A central server.
pub const SPARK: usize = 4;

/// One way between a host and the switch (ours), and the switch.
const LATENCY_NS: Duration = 2 * US;

/// Hosts of Falcon's prototype: with half the executors busy a task begins 0.09 ms after its job
/// was submitted, in the median ("did not change" up to 95%, where it is 0.09). One number fits one
/// cost: what a host does with a packet.
fn falcon_costs() -> Costs {
    let host_ns = FALCON_HOST_NS;
    Costs {
        latency_ns: LATENCY_NS,
        job_ns: host_ns,
        message_ns: host_ns,
        end_ns: host_ns,
        start_ns: 0,
        ..Costs::QUICK
    }
}

/// Sparrow's: its median at 50% is 22 times Falcon's. One number fits one cost: what its schedulers
/// and monitors do with a message.
fn sparrow_costs() -> Costs {
    let process_ns = SPARROW_PROCESS_NS;
    Costs {
        job_ns: process_ns,
        message_ns: process_ns,
        end_ns: process_ns,
        process_ns,
        ..falcon_costs()
    }
}

/// Spark's: a driver that cannot quite keep up with 3,000 tasks a second, so that in a run of a
/// minute the median delay is 3 s.
fn spark_costs() -> Costs {
    Costs { process_ns: SPARK_PROCESS_NS, ..falcon_costs() }
}

fn schedulers(probe_ratio: f64) -> System {
    System::Sparrow { probe_ratio, schedulers: 2 }
}

/// A name, the system, and what its hosts cost.
type Compared = (&'static str, System, fn() -> Costs);

/// Who is compared in §3.5, and at which costs.
const COMPARED: [Compared; 5] = [
    ("Falcon", System::Falcon, falcon_costs),
    ("Sparrow", System::Sparrow { probe_ratio: 2.0, schedulers: 2 }, sparrow_costs),
    ("Sparrow, ratio 1.05", System::Sparrow { probe_ratio: 1.05, schedulers: 2 }, sparrow_costs),
    ("ideal queue", System::Ideal, falcon_costs),
    ("Spark", System::Central, spark_costs),
];

/// §3.5 at a utilization.
pub fn paper(system: System, costs: Costs, arrivals: Arrivals, utilization: f64) -> Load {
    let (warm_up_ns, measure_ns) = match arrivals {
        // What comes each period is the same each period.
        Arrivals::Periodic { .. } => (SEC / 2, 2 * SEC),
        Arrivals::Poisson { .. } => (SEC, 10 * SEC),
    };
    let load = Load { system, costs, arrivals, warm_up_ns, measure_ns, ..Load::default() };
    // Its loads count nothing but the tasks: 28.5 of a job are 95%.
    load.at(utilization, 0)
}

/// Clients half a period apart (ours: the paper does not say).
const APART: Arrivals = Arrivals::Periodic { period_ns: PERIOD_NS, phase_ns: PERIOD_NS / 2 };
const POISSON: Arrivals = Arrivals::Poisson { jobs_per_second: JOBS_PER_SECOND };

/// Delays by what x is.
fn compared(
    name: &'static str,
    title: &'static str,
    x: &'static str,
    points: &[u64],
    load: impl Fn(System, Costs, f64) -> Load,
    only: usize,
) -> Figure {
    let lines = COMPARED.iter().take(only).map(|(name, system, costs)| {
        let points = points.iter().filter(|x| *system != System::Central || SPARKS.contains(x));
        let points = points.map(|x| (*x as f64, load(*system, costs(), *x as f64))).collect();
        Line { name: (*name).to_string(), points }
    });
    Figure::new(name, title, x, lines.collect())
}

/// All of them.
pub fn all() -> Vec<Figure> {
    let percent = "percent of the executors' time";
    let by = |arrivals| {
        move |system, costs, x: f64| {
            let mut load = paper(system, costs, arrivals, x / 100.0);
            if system == System::Central {
                load.measure_ns = 60 * SEC;
                load.warm_up_ns = 0;
            }
            load
        }
    };
    let phase = |system, costs, ms: f64| {
        let phase_ns = (ms * MS as f64) as Duration;
        let arrivals = Arrivals::Periodic { period_ns: PERIOD_NS, phase_ns };
        paper(system, costs, arrivals, FULL / 100.0)
    };
    let mut figures = vec![
        compared("8", "delay of tasks by utilization", percent, &UTILIZATIONS, by(APART), 5),
        compared("poisson", "the same, jobs at any time", percent, &UTILIZATIONS, by(POISSON), 4),
        compared("phase", "95%, by the clients' phase", "ms", &[0, 1, 2, 3, 4, 5], phase, 4),
        steps("9", "Falcon's steps, 80%", FALCON),
        steps("10", "Sparrow's steps, 80%", SPARROW),
        submit(),
        period(),
    ];
    figures.push(large());
    figures.extend([Times::Fixed, Times::Exponential, Times::Bimodal].map(short));
    figures
}

fn steps(name: &'static str, title: &'static str, line: usize) -> Figure {
    let (system_name, system, costs) = COMPARED[line];
    let load = Load { steps: true, ..paper(system, costs(), APART, STEPS_AT) };
    let line = Line { name: system_name.to_string(), points: vec![(100.0 * STEPS_AT, load)] };
    Figure { shown: Shown::Steps, ..Figure::new(name, title, "us", vec![line]) }
}

/// Sparrow whose processes do with a message what Falcon's hosts do, and whose time before that
/// keeps nobody busy.
fn submit() -> Figure {
    let costs =
        Costs { submit_ns: SPARROW_SUBMIT_NS, process_ns: FALCON_HOST_NS, ..falcon_costs() };
    let load = |x: u64| paper(schedulers(2.0), costs, APART, x as f64 / 100.0);
    let points = UTILIZATIONS.iter().map(|x| (*x as f64, load(*x))).collect();
    let line = Line { name: "Sparrow, slow to submit".to_string(), points };
    let title = "Sparrow at Falcon's costs, and a submission of 1 ms";
    Figure::new("submit", title, "percent of the executors' time", vec![line])
}

/// 28.5 tasks a job, of clients that take longer than 10 ms from one to the next.
fn period() -> Figure {
    let load = |system, costs, us: f64| {
        let period_ns = us as Duration * US;
        let arrivals = Arrivals::Periodic { period_ns, phase_ns: period_ns / 2 };
        let full = paper(system, costs, APART, FULL / 100.0);
        Load { arrivals, ..full }
    };
    let points = [10_000, 10_050, 10_100, 10_200, 10_500];
    compared("period", "28.5 tasks a job, by the clients' period", "us", &points, load, 2)
}

/// Who is compared at scale.
const AT_SCALE: [(&str, System); 6] = [
    ("Falcon", System::Falcon),
    ("ideal queue", System::Ideal),
    ("JBSQ(3)", System::Jbsq(3)),
    ("power of two", System::PowerOfTwo),
    ("Sparrow", System::Sparrow { probe_ratio: 2.0, schedulers: 64 }),
    ("central server", System::Central),
];
/// Jobs a second at scale (ours): about 16 tasks each.
const JOBS_AT_SCALE: u64 = 200_000;

fn at_scale(load: Load, utilization: f64) -> Load {
    let load = Load {
        clients: 64,
        arrivals: Arrivals::Poisson { jobs_per_second: JOBS_AT_SCALE },
        costs: Costs::QUICK,
        ..load
    };
    let round_trip_ns = load.costs.round_trip_ns();
    load.at(utilization, round_trip_ns)
}

/// Names of times, in the order of the x axis.
pub const TIMES: [Times; 3] = [Times::Fixed, Times::Exponential, Times::Bimodal];

/// 32,000 executors at 10 ms, 95%.
fn large() -> Figure {
    let line = |(name, system): &(&str, System)| {
        let point = |(at, times): (usize, &Times)| {
            let load = Load {
                system: *system,
                workers: 2_000,
                slots: 16,
                times: *times,
                task_ns: 10 * MS,
                warm_up_ns: 150 * MS,
                measure_ns: LARGE_NS,
                ..Load::default()
            };
            ((at + 1) as f64, at_scale(load, FULL / 100.0))
        };
        Line { name: (*name).to_string(), points: TIMES.iter().enumerate().map(point).collect() }
    };
    let lines = AT_SCALE.iter().map(line).collect();
    let figure = Figure::new("large", "32,000 executors, 10 ms, 95%: p99", "tasks' times", lines);
    let names = ["fixed", "exponential", "bimodal"].map(String::from).to_vec();
    Figure { x_names: names, scale: Scale::Places, shown: Shown::P99, ..figure }
}

/// 320 executors at 0.1 ms, and Falcon with prefetch beside the others.
fn short(times: Times) -> Figure {
    let name = match times {
        Times::Fixed => "short-fixed",
        Times::Exponential => "short-exponential",
        Times::Bimodal => "short-bimodal",
    };
    let line = |name: &str, system: System, prefetch: u8| {
        let point = |x: &u64| {
            let load = Load {
                system,
                workers: 40,
                slots: 8,
                prefetch,
                times,
                task_ns: 100 * US,
                warm_up_ns: 10 * MS,
                measure_ns: SHORT_NS,
                ..Load::default()
            };
            (*x as f64, at_scale(load, *x as f64 / 100.0))
        };
        let points = [50, 60, 70, 80, 90, 95].iter().map(point).collect();
        Line { name: name.to_string(), points }
    };
    // A central server is far beyond what it can do.
    let lines = AT_SCALE[..SCALE_PREFETCH].iter().map(|(name, system)| line(name, *system, 0));
    let prefetch = line("Falcon, prefetch 1", System::Falcon, 1);
    let lines = lines.chain([prefetch]).collect();
    let title = "320 executors, 0.1 ms: p99";
    let figure = Figure::new(name, title, "percent of the executors' time", lines);
    Figure { shown: Shown::P99, ..figure }
}

/// Where [`AT_SCALE`] has them.
pub const SCALE_FALCON: usize = 0;
/// The ideal queue.
pub const SCALE_IDEAL: usize = 1;
/// JBSQ(3).
pub const SCALE_JBSQ: usize = 2;
/// Power of two choices.
pub const SCALE_TWO: usize = 3;
/// Sparrow.
pub const SCALE_SPARROW: usize = 4;

/// Falcon with a task ahead for each executor, in the figures of short tasks.
pub const SCALE_PREFETCH: usize = 5;

/// What delays are given in.
pub fn ms(ns: u32) -> f64 {
    f64::from(ns) / 1e6
}

/// The delays of tasks.
pub fn task(m: &Measured) -> &Delays {
    &m.task
}
