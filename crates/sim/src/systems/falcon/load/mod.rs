//! The delay of tasks until they begin: Falcon's owners, workers and switch program as they ship,
//! on hosts that take time, and models of other schedulers for comparison. Jobs arrive
//! independently of earlier ones (open loop), and are the same for each system with one seed.
//!
//! A host is one queue: each packet keeps it busy, and its output leaves after that. The switch is
//! a pipeline: it delays packets and never queues them, except that recirculated ones wait for the
//! recirculation port. Executors sleep: a task takes its time, whatever else its host does.
//!
//! Read [`Load`] first, then `falcon.rs`; `ideal.rs`, `bounded.rs`, `sparrow.rs` and `central.rs`
//! are the models.

mod bounded;
mod central;
mod clock;
mod falcon;
mod ideal;
mod jobs;
mod seen;
mod sparrow;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use concord_core::{Duration, MS, SEC, US};

pub use seen::{Delays, Step};

/// The scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum System {
    /// Falcon: the machines that ship.
    Falcon,
    /// One queue that all executors know at once, at no cost.
    Ideal,
    /// R2P2's JBSQ(n): the switch has a queue, and gives an executor up to n tasks at a time.
    Jbsq(u32),
    /// RackSched: the switch draws two workers and chooses the one with fewer tasks, which queue
    /// there.
    PowerOfTwo,
    /// Sparrow: several probes for each task, late binding, cancellation, by several schedulers.
    Sparrow {
        /// The number of probes for each task.
        probe_ratio: f64,
        /// The number of scheduling processes.
        schedulers: usize,
    },
    /// One process has the queue and knows which executors are free, as Spark's driver.
    Central,
}

/// The arrivals of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// One job from each client in each period.
    Periodic {
        /// The time between a client's jobs, in ns.
        period_ns: Duration,
        /// The delay of each client's first job after that of the client before, in ns.
        phase_ns: Duration,
    },
    /// A Poisson process, over all clients.
    Poisson {
        /// The mean number of jobs per second.
        jobs_per_second: u64,
    },
}

/// The distribution of the tasks' times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// All times are equal.
    Fixed,
    /// Exponentially distributed.
    Exponential,
    /// One task of ten takes ten times as long as the other nine.
    Bimodal,
}

/// The times of everything but tasks, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The latency between a host and the switch, one way.
    pub latency_ns: Duration,
    /// A pass through the switch.
    pub switch_ns: Duration,
    /// The time from the end of a pass to the beginning of the next, without that at the port.
    pub round_ns: Duration,
    /// The recirculation port's rate, in bits a second.
    pub round_bits_per_s: u64,
    /// The number of packets that may wait at the recirculation port; further ones are lost.
    pub round_packets_max: u64,
    /// The time that a client is busy with a job that it takes.
    pub job_ns: Duration,
    /// The time that clients and workers are busy with a received packet.
    pub message_ns: Duration,
    /// The time that a worker is busy with a task that ended.
    pub end_ns: Duration,
    /// The time from a task's arrival at a worker until it runs.
    pub start_ns: Duration,
    /// Sparrow, central: the time from a job's arrival at the client until the scheduler has it; it
    /// keeps no host busy.
    pub submit_ns: Duration,
    /// Sparrow, central: the time that a process is busy with a received message, or with a task or
    /// probe that it sends.
    pub process_ns: Duration,
}

impl Costs {
    /// Hosts that bypass their kernel, an ASIC as the switch, 100 Gb/s.
    pub const QUICK: Costs = Costs {
        latency_ns: US,
        switch_ns: 400,
        round_ns: 300,
        round_bits_per_s: 100_000_000_000,
        round_packets_max: 1_024,
        job_ns: US,
        message_ns: 500,
        end_ns: 200,
        start_ns: 0,
        submit_ns: 0,
        process_ns: 500,
    };

    /// The time that an executor is idle between two tasks even if one waits: its request to the
    /// switch, and the answer.
    #[must_use]
    pub const fn round_trip_ns(&self) -> Duration {
        self.end_ns + 2 * self.latency_ns + self.switch_ns + self.message_ns + self.start_ns
    }
}

/// The configuration of a simulated rack.
#[derive(Clone, Debug)]
pub struct Load {
    /// The seed of all random draws.
    pub seed: u64,
    /// The scheduler.
    pub system: System,
    /// The number of hosts with executors.
    pub workers: usize,
    /// The number of executors of each.
    pub slots: usize,
    /// Falcon: the number of tasks that a worker prefetches for each executor.
    pub prefetch: u8,
    /// The number of hosts with clients.
    pub clients: usize,
    /// The arrivals of jobs.
    pub arrivals: Arrivals,
    /// The mean number of tasks of a job, which has this rounded down, or one more.
    pub tasks_per_job: f64,
    /// The distribution of the tasks' times.
    pub times: Times,
    /// The mean time of a task, in ns.
    pub task_ns: Duration,
    /// The times of everything else.
    pub costs: Costs,
    /// The time before the measurement: jobs that arrive in it are not measured.
    pub warm_up_ns: Duration,
    /// The time of the measurement: jobs that arrive in it are measured.
    pub measure_ns: Duration,
    /// Whether steps are measured too, which takes time.
    pub steps: bool,
}

impl Default for Load {
    /// §3.5 at half load: ten workers of six executors, two clients with a job every 10 ms each,
    /// half a period apart.
    fn default() -> Load {
        Load {
            seed: 1,
            system: System::Falcon,
            workers: 10,
            slots: 6,
            prefetch: 0,
            clients: 2,
            arrivals: Arrivals::Periodic { period_ns: 10 * MS, phase_ns: 5 * MS },
            tasks_per_job: 15.0,
            times: Times::Fixed,
            task_ns: 10 * MS,
            costs: Costs::QUICK,
            warm_up_ns: SEC,
            measure_ns: 10 * SEC,
            steps: false,
        }
    }
}

impl Load {
    /// The number of executors.
    #[must_use]
    pub fn executors(&self) -> usize {
        self.workers * self.slots
    }

    /// The mean number of jobs per second.
    #[must_use]
    pub fn jobs_per_second(&self) -> f64 {
        match self.arrivals {
            Arrivals::Periodic { period_ns, .. } => {
                self.clients as f64 * SEC as f64 / period_ns as f64
            }
            Arrivals::Poisson { jobs_per_second } => jobs_per_second as f64,
        }
    }

    /// The same load with as many tasks a job as make up this share of the executors' time. Each
    /// task counts as `round_trip_ns` longer.
    #[must_use]
    pub fn at(self, load: f64, round_trip_ns: Duration) -> Load {
        let each_ns = (self.task_ns + round_trip_ns) as f64;
        let per_second = load * self.executors() as f64 * SEC as f64 / each_ns;
        Load { tasks_per_job: per_second / self.jobs_per_second(), ..self }
    }
}

/// The results of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The number of tasks whose jobs arrived during the measurement.
    pub tasks: u64,
    /// The number of those that had not begun at the end: their delay until then is counted.
    pub unstarted: u64,
    /// For each task, the time from its job's arrival to its beginning.
    pub task: Delays,
    /// For each job, the time from its arrival until its last task begins.
    pub job: Delays,
    /// The 99th percentile, over all tasks, of the time from the job's arrival to the task's end,
    /// divided by the task's own time.
    pub slowdown_p99: f64,
    /// The steps of a task.
    pub steps: Vec<Step>,
    /// Falcon: for each client, the number of tasks that began during the measurement, whenever
    /// their jobs arrived.
    pub begun: Vec<u64>,
    /// The machines' counters.
    pub counts: BTreeMap<&'static str, u64>,
    /// The number of events of the simulation.
    pub events: u64,
}

/// Simulates a load.
///
/// # Errors
/// One line if the rack did not get ready, which is a bug.
pub fn measure(load: &Load) -> Result<Measured, String> {
    match load.system {
        System::Falcon => falcon::run(load),
        System::Ideal => Ok(ideal::run(load)),
        System::Jbsq(most) => Ok(bounded::run(load, bounded::Choice::Shortest { most })),
        System::PowerOfTwo => Ok(bounded::run(load, bounded::Choice::OfTwo)),
        System::Sparrow { probe_ratio, schedulers } => {
            Ok(sparrow::run(load, probe_ratio, schedulers))
        }
        System::Central => Ok(central::run(load)),
    }
}
