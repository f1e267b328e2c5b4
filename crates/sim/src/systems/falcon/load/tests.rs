//! The models compared with queueing theory, and Falcon compared with an ideal queue. Seeds are
//! fixed.

use super::*;

/// Costs of zero: only tasks take time.
const FREE: Costs = Costs {
    latency_ns: 0,
    switch_ns: 0,
    round_ns: 0,
    round_bits_per_s: 1_000_000_000_000_000,
    round_packets_max: 1_000,
    job_ns: 0,
    message_ns: 0,
    end_ns: 0,
    start_ns: 0,
    submit_ns: 0,
    process_ns: 0,
};
/// The mean duration of a task, in ns.
const TASK_NS: f64 = 1e5;

/// Jobs of one task at random times, at this share of all executors' time, and with about `tasks`
/// tasks.
fn single(workers: usize, slots: usize, load: f64, tasks: u64) -> Load {
    let jobs_per_second = (load * (workers * slots) as f64 * SEC as f64 / TASK_NS) as u64;
    Load {
        workers,
        slots,
        arrivals: Arrivals::Poisson { jobs_per_second },
        tasks_per_job: 1.0,
        times: Times::Exponential,
        task_ns: TASK_NS as Duration,
        costs: FREE,
        warm_up_ns: tasks * SEC / jobs_per_second / 10,
        measure_ns: tasks * SEC / jobs_per_second,
        ..Load::default()
    }
}

fn run(load: Load, system: System) -> Measured {
    let measured = measure(&Load { system, ..load }).unwrap();
    assert_eq!(measured.unstarted, 0);
    measured
}

/// The mean delay, in mean durations of tasks.
fn mean(load: Load, system: System) -> f64 {
    run(load, system).task.mean_ns / TASK_NS
}

#[track_caller]
fn close(ours: f64, known: f64, tolerance: f64) {
    assert!((ours / known - 1.0).abs() < tolerance, "{ours} is not {known}");
}

/// Erlang's C over c (1 - load): the mean wait of M/M/c, in mean durations of tasks.
fn erlang_c(c: usize, load: f64) -> f64 {
    let offered = load * c as f64;
    let mut blocked = 1.0;
    for n in 1..=c {
        blocked = offered * blocked / (n as f64 + offered * blocked);
    }
    blocked / (1.0 - load * (1.0 - blocked)) / (c as f64 * (1.0 - load))
}

#[test]
fn the_ideal_queue_is_m_m_c_and_m_d_1() {
    for (executors, load) in [(1, 0.7), (8, 0.8), (60, 0.95)] {
        let ours = mean(single(1, executors, load, 1_000_000), System::Ideal);
        close(ours, erlang_c(executors, load), 0.05);
    }
    // Pollaczek and Khinchine: half of the wait with exponential durations.
    let fixed = Load { times: Times::Fixed, ..single(1, 1, 0.8, 500_000) };
    close(mean(fixed, System::Ideal), 0.8 / (2.0 * 0.2), 0.03);
    // With a second moment of 0.9 s^2 + 0.1 (10 s)^2, for s = 1 / 1.9.
    let second = (0.9 + 10.0) / (1.9 * 1.9);
    let bimodal = Load { times: Times::Bimodal, ..single(1, 1, 0.5, 500_000) };
    close(mean(bimodal, System::Ideal), 0.5 * second / (2.0 * 0.5), 0.05);
}

#[test]
fn what_costs_nothing_and_waits_in_one_place_is_the_ideal_queue() {
    let load = Load { tasks_per_job: 3.5, ..single(1, 12, 0.25, 20_000) };
    let ideal = run(load.clone(), System::Ideal);
    let sparrow = System::Sparrow { probe_ratio: 2.0, schedulers: 2 };
    for system in [System::Jbsq(1), System::PowerOfTwo, System::Central, sparrow] {
        let ours = run(load.clone(), system);
        assert_eq!((&ours.task, &ours.job), (&ideal.task, &ideal.job), "{system:?}");
    }
}

/// Mitzenmacher (1996), Vvedenskaya et al. (1996): among many queues a share of load^(2^k - 1) has
/// k tasks or more.
#[test]
fn the_shorter_of_two_queues_is_as_long_as_is_known() {
    let load: f64 = 0.8;
    let stays: f64 = (1..8).map(|k| load.powi(2_i32.pow(k) - 2)).sum();
    close(mean(single(400, 1, load, 400_000), System::PowerOfTwo), stays - 1.0, 0.03);
}

/// Late binding with two probes chooses the queue of two with less work. Hellemans and Van Houdt
/// (2018): a share of 1 / (load + (1 / load - load) e^w) of tasks waits for more than w at many
/// queues.
#[test]
fn late_binding_of_two_probes_waits_as_long_as_is_known() {
    let load: f64 = 0.8;
    let step = 1e-3;
    let tail = |w: f64| 1.0 / (load + (1.0 / load - load) * w.exp());
    let known: f64 = (0..40_000).map(|n| tail((f64::from(n) + 0.5) * step).powi(2) * step).sum();
    let sparrow = System::Sparrow { probe_ratio: 2.0, schedulers: 4 };
    close(mean(single(400, 1, load, 400_000), sparrow), known, 0.03);
}

/// With unlimited room JBSQ is the shortest queue: better than one of two, and worse than a single
/// queue.
#[test]
fn jbsq_is_between_the_ideal_queue_and_the_shorter_of_two() {
    let load = single(10, 1, 0.95, 100_000);
    let [ideal, one, three, many, two] =
        [System::Ideal, System::Jbsq(1), System::Jbsq(3), System::Jbsq(50), System::PowerOfTwo]
            .map(|system| mean(load.clone(), system));
    assert!((one - ideal).abs() < 1e-9, "{one} {ideal}");
    assert!(ideal < three && three < many && many < two, "{ideal} {three} {many} {two}");
}

/// A process that takes 10 us per message cannot send more than 50,000 tasks a second and hear of
/// their ends.
#[test]
fn a_central_process_is_what_limits_it() {
    let costs = Costs { process_ns: 10 * US, ..FREE };
    let most = |per_second: f64| {
        let load = single(1, 100, per_second * TASK_NS / 1e9 / 100.0, 20_000);
        let measured = measure(&Load { system: System::Central, costs, ..load }).unwrap();
        measured.unstarted as f64 / measured.tasks as f64
    };
    assert_eq!(most(45_000.0), 0.0);
    assert!(most(80_000.0) > 0.1);
}

#[test]
fn falcon_is_the_ideal_queue_but_for_its_round_trips() {
    let load = Load { clients: 4, tasks_per_job: 7.5, ..single(10, 6, 0.11, 3_000) };
    let ideal = run(load.clone(), System::Ideal);
    let ours = run(load.clone(), System::Falcon);
    close(ours.task.mean_ns, ideal.task.mean_ns, 0.01);
    assert!(ours.task.p99_ns.abs_diff(ideal.task.p99_ns) < 1_000);
    for (name, count) in &ours.counts {
        let is_wrong = name.contains("unanswered") || name.contains("unheard");
        assert!(!is_wrong || *count == 0, "{name}: {count}");
    }
    let costs = Costs::QUICK;
    let quick = run(Load { costs, ..load }, System::Falcon);
    // To the switch, up to eight passes, to the worker.
    assert!(quick.task.p5_ns >= 2 * 1_000 + 400 + 1_000 + 500, "{:?}", quick.task);
    let more = quick.task.mean_ns - ours.task.mean_ns;
    assert!((3_000.0..30_000.0).contains(&more), "{more}");
}

/// Ten clients that want twice the capacity: the queue is full, and each gets a tenth.
#[test]
fn ten_clients_at_twice_the_capacity_get_equal_shares() {
    let period_ns = 2 * MS;
    let load = Load {
        clients: 10,
        task_ns: MS,
        arrivals: Arrivals::Periodic { period_ns, phase_ns: period_ns / 10 },
        warm_up_ns: 2 * SEC,
        measure_ns: SEC,
        ..Load::default()
    };
    let ours = measure(&load.at(2.0, 0)).unwrap();
    assert!(ours.counts["tasks_refused"] > 0, "{:?}", ours.counts);
    let all: u64 = ours.begun.iter().sum();
    // Retries at the full queue lose nothing.
    assert!(all > 58_000, "{all} of 60,000");
    for (client, begun) in ours.begun.iter().enumerate() {
        close(*begun as f64 / (all as f64 / 10.0), 1.0, 0.1);
        println!("client {client}: {begun}");
    }
}

/// A recirculation port that is too slow loses packets, and owners submit the tasks again.
#[test]
fn what_the_recirculation_port_loses_is_submitted_again() {
    let costs = Costs { round_bits_per_s: 20_000_000_000, round_packets_max: 1, ..FREE };
    let load = Load { clients: 4, tasks_per_job: 15.0, costs, ..single(10, 6, 0.04, 4_000) };
    let ours = run(load, System::Falcon);
    assert!(ours.counts["rounds_lost"] > 0, "{:?}", ours.counts);
    assert!(ours.counts["submissions_unanswered"] > 0);
}

/// §3.5 at 95%, for a second: a fixed seed always gives the same numbers.
#[test]
fn falcon_3_5_a_fixed_run_is_the_same() {
    let costs = Costs { job_ns: 20 * US, message_ns: 20 * US, end_ns: 20 * US, ..Costs::QUICK };
    let load = Load { costs, measure_ns: SEC, steps: true, ..Load::default() }.at(0.95, 0);
    let numbers = |system| {
        let m = run(load.clone(), system);
        let Delays { count, p5_ns, median_ns, p95_ns, .. } = m.task;
        (count, p5_ns, median_ns, p95_ns, m.job.median_ns, m.events)
    };
    let known = (5_700, 42_400, 242_400, 441_600, 459_200, 130_745);
    assert_eq!(numbers(System::Falcon), known);
    let ideal = numbers(System::Ideal);
    assert_eq!((ideal.0, ideal.3), (5_700, 0));
}

#[test]
fn steps_make_up_the_delay() {
    let load = Load { measure_ns: SEC, steps: true, ..Load::default() }.at(0.8, 0);
    let m = run(load, System::Falcon);
    let names: Vec<&str> = m.steps.iter().map(|step| step.name).collect();
    assert_eq!(names, ["submission", "queueing", "retrieval"]);
    for step in &m.steps {
        assert_eq!(step.delays.count, m.tasks, "{}", step.name);
    }
    let sum: f64 = m.steps.iter().map(|step| step.delays.mean_ns).sum();
    // An executor's request may have arrived before the task.
    assert!(sum >= m.task.mean_ns, "{sum}");
}
