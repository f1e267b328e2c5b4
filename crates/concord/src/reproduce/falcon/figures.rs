//! The figures: the loads that are run at each point (Falcon §3.5). Parameters that the paper does
//! not give are marked as ours.

use concord_core::{Duration, MS, SEC, US};
use concord_sim::falcon::load::{Arrivals, Costs, Delays, Load, Measured, System, Times};

use super::seen::{Figure, Line, Shown};
use crate::results::Scale;

/// The time that a host of Falcon's prototype is busy with each packet, job and end of a task, in
/// ns: fitted at 50%.
pub const FALCON_HOST_NS: Duration = 21_200;
/// The time that a process of Sparrow is busy with a message, in ns: fitted at 50%.
pub const SPARROW_PROCESS_NS: Duration = 43_000;
/// The time from a client's call until Sparrow's scheduler has the job, in ns, if its processes
/// were as fast as Falcon's hosts: fitted at 50%.
const SPARROW_SUBMIT_NS: Duration = 1_000_000;
/// The time that Spark's driver is busy with a task that it sends, and with the report of its end,
/// in ns: fitted at 50%.
pub const SPARK_PROCESS_NS: Duration = 183_300;
/// The durations of the measurements with 32,000 executors, and with 320, in ns.
const LARGE_NS: Duration = 150 * MS;
const SHORT_NS: Duration = 30 * MS;

/// The utilizations, in percent.
const UTILIZATIONS: [u64; 9] = [20, 30, 40, 50, 60, 70, 80, 90, 95];
/// The utilizations for Spark, whose runs take a minute.
const SPARKS: [u64; 3] = [40, 50, 60];
/// The highest utilization.
pub const FULL: f64 = 95.0;
/// The utilization at which host costs are fitted.
pub const HALF: f64 = 50.0;
/// The utilization at which steps are measured.
const STEPS_AT: f64 = 0.8;
/// The time between a client's jobs (§3.5), in ns.
const PERIOD_NS: Duration = 10 * MS;
/// The number of jobs of both clients per second.
const JOBS_PER_SECOND: u64 = 200;

/// The lines of the figures on §3.5, in this order.
pub const FALCON: usize = 0;
/// Sparrow with two probes per task.
pub const SPARROW: usize = 1;
/// A central server.
pub const SPARK: usize = 4;

/// The latency between a host and the switch, one way (ours), and the latency of the switch, in ns.
const LATENCY_NS: Duration = 2 * US;

/// The costs of hosts of Falcon's prototype. With half of the executors busy, the median task
/// begins 0.09 ms after its job was submitted (the paper: "did not change" up to 95%, where it is
/// 0.09). This number fits one cost: the time of a host for a packet.
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

/// The costs of Sparrow: its median at 50% is 22 times Falcon's. This number fits one cost: the
/// time of its schedulers and monitors for a message.
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

/// The costs of Spark: a driver that cannot quite keep up with 3,000 tasks per second, so that the
/// median delay in a run of a minute is 3 s.
fn spark_costs() -> Costs {
    Costs { process_ns: SPARK_PROCESS_NS, ..falcon_costs() }
}

fn schedulers(probe_ratio: f64) -> System {
    System::Sparrow { probe_ratio, schedulers: 2 }
}

/// A compared system: its name, the system, and the costs of its hosts.
type Compared = (&'static str, System, fn() -> Costs);

/// The systems that are compared in §3.5.
const COMPARED: [Compared; 5] = [
    ("Falcon", System::Falcon, falcon_costs),
    ("Sparrow", System::Sparrow { probe_ratio: 2.0, schedulers: 2 }, sparrow_costs),
    ("Sparrow, ratio 1.05", System::Sparrow { probe_ratio: 1.05, schedulers: 2 }, sparrow_costs),
    ("ideal queue", System::Ideal, falcon_costs),
    ("Spark", System::Central, spark_costs),
];

/// The load of §3.5 at a utilization.
pub fn paper(system: System, costs: Costs, arrivals: Arrivals, utilization: f64) -> Load {
    let (warm_up_ns, measure_ns) = match arrivals {
        // Periodic arrivals are the same in each period.
        Arrivals::Periodic { .. } => (SEC / 2, 2 * SEC),
        Arrivals::Poisson { .. } => (SEC, 10 * SEC),
    };
    let load = Load { system, costs, arrivals, warm_up_ns, measure_ns, ..Load::default() };
    // The paper's loads count only the tasks: 28.5 tasks per job are 95%.
    load.at(utilization, 0)
}

/// Clients half a period apart (ours: the paper does not say).
const APART: Arrivals = Arrivals::Periodic { period_ns: PERIOD_NS, phase_ns: PERIOD_NS / 2 };
const POISSON: Arrivals = Arrivals::Poisson { jobs_per_second: JOBS_PER_SECOND };

/// A figure of delays over x.
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

/// All figures.
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

/// Sparrow with processes that take the time of Falcon's hosts for a message, and an additional
/// time before that, which keeps no process busy.
fn submit() -> Figure {
    let costs =
        Costs { submit_ns: SPARROW_SUBMIT_NS, process_ns: FALCON_HOST_NS, ..falcon_costs() };
    let load = |x: u64| paper(schedulers(2.0), costs, APART, x as f64 / 100.0);
    let points = UTILIZATIONS.iter().map(|x| (*x as f64, load(*x))).collect();
    let line = Line { name: "Sparrow, slow to submit".to_string(), points };
    let title = "Sparrow at Falcon's costs, and a submission of 1 ms";
    Figure::new("submit", title, "percent of the executors' time", vec![line])
}

/// 28.5 tasks per job, of clients with more than 10 ms between jobs.
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

/// The systems that are compared at scale.
const AT_SCALE: [(&str, System); 6] = [
    ("Falcon", System::Falcon),
    ("ideal queue", System::Ideal),
    ("JBSQ(3)", System::Jbsq(3)),
    ("power of two", System::PowerOfTwo),
    ("Sparrow", System::Sparrow { probe_ratio: 2.0, schedulers: 64 }),
    ("central server", System::Central),
];
/// The number of jobs per second at scale (ours): about 16 tasks each.
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

/// The names of distributions of times, in the order of the x axis.
pub const TIMES: [Times; 3] = [Times::Fixed, Times::Exponential, Times::Bimodal];

/// 32,000 executors with tasks of 10 ms, at 95%.
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

/// 320 executors with tasks of 0.1 ms, and Falcon with prefetch besides.
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
    // A central server would be far beyond its capacity.
    let lines = AT_SCALE[..SCALE_PREFETCH].iter().map(|(name, system)| line(name, *system, 0));
    let prefetch = line("Falcon, prefetch 1", System::Falcon, 1);
    let lines = lines.chain([prefetch]).collect();
    let title = "320 executors, 0.1 ms: p99";
    let figure = Figure::new(name, title, "percent of the executors' time", lines);
    Figure { shown: Shown::P99, ..figure }
}

/// The indices of systems in [`AT_SCALE`]: Falcon.
pub const SCALE_FALCON: usize = 0;
/// The ideal queue.
pub const SCALE_IDEAL: usize = 1;
/// JBSQ(3).
pub const SCALE_JBSQ: usize = 2;
/// Power of two choices.
pub const SCALE_TWO: usize = 3;
/// Sparrow.
pub const SCALE_SPARROW: usize = 4;

/// Falcon with one task fetched ahead by each executor, in the figures of short tasks.
pub const SCALE_PREFETCH: usize = 5;

/// A delay in ms.
pub fn ms(ns: u32) -> f64 {
    f64::from(ns) / 1e6
}

/// The delays of tasks.
pub fn task(m: &Measured) -> &Delays {
    &m.task
}
