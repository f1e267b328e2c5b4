//! The time that tasks wait until they begin: Falcon's owners, workers and switch program as they
//! ship, on hosts that take their time, and beside them models of other schedulers. Jobs come
//! whether or not those before are over (open loop), and are the same for each system of a seed.
//!
//! A host is one queue: each packet keeps it busy, and what it sends leaves after that. The switch
//! is a pipeline: it delays packets and never queues; but what comes round waits for its turn at
//! the recirculation port. Executors sleep: a task takes its time, whatever else goes on at its
//! host.
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

/// Who schedules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum System {
    /// The machines that ship.
    Falcon,
    /// One queue of which every executor knows at once, at no cost.
    Ideal,
    /// R2P2's JBSQ(n): the switch has a queue, and gives an executor up to so many tasks at a time.
    Jbsq(u32),
    /// RackSched: the switch draws two workers and takes the one with fewer tasks, which queue
    /// there.
    PowerOfTwo,
    /// Sparrow: so many probes a task, late binding, cancellation; by each of so many schedulers.
    Sparrow {
        /// Probes a task.
        probe_ratio: f64,
        /// Processes that schedule.
        schedulers: usize,
    },
    /// One process has the queue and knows who is free, as Spark's driver.
    Central,
}

/// When jobs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// From each client, one each period.
    Periodic {
        /// Time between a client's jobs, in ns.
        period_ns: Duration,
        /// How much later than the client before it each client begins, in ns.
        phase_ns: Duration,
    },
    /// At any time; so many a second, from any client.
    Poisson {
        /// Jobs a second.
        jobs_per_second: u64,
    },
}

/// How long tasks take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// All the same.
    Fixed,
    /// Exponentially distributed.
    Exponential,
    /// One of ten takes ten times as long as the other nine.
    Bimodal,
}

/// What takes time beside the tasks, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// One way between a host and the switch.
    pub latency_ns: Duration,
    /// A pass through the switch.
    pub switch_ns: Duration,
    /// From the end of a pass to the begin of the next, beside the time at the port.
    pub round_ns: Duration,
    /// The recirculation port's rate, in bits a second.
    pub round_bits_per_s: u64,
    /// Packets that wait at the recirculation port; more are lost.
    pub round_packets_max: u64,
    /// A client is busy with a job that it takes.
    pub job_ns: Duration,
    /// Clients and workers are busy with a packet that they get.
    pub message_ns: Duration,
    /// A worker is busy with a task that ended.
    pub end_ns: Duration,
    /// From when a worker has a task until it runs.
    pub start_ns: Duration,
    /// Sparrow, central: from when the client has a job until the scheduler has it; nobody is busy
    /// with it.
    pub submit_ns: Duration,
    /// Sparrow, central: a process is busy with a message that it gets or a task or probe that it
    /// sends.
    pub process_ns: Duration,
}

impl Costs {
    /// Hosts that bypass their kernel, a switch that is an ASIC, 100 Gb/s.
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

    /// What an executor has nothing to do for between two tasks, if one waits: its request to the
    /// switch, and back.
    #[must_use]
    pub const fn round_trip_ns(&self) -> Duration {
        self.end_ns + 2 * self.latency_ns + self.switch_ns + self.message_ns + self.start_ns
    }
}

/// What is asked of a rack.
#[derive(Clone, Debug)]
pub struct Load {
    /// Of all that is drawn.
    pub seed: u64,
    /// Who schedules.
    pub system: System,
    /// Hosts with executors.
    pub workers: usize,
    /// Executors of each.
    pub slots: usize,
    /// Falcon: tasks that a worker asks for ahead for each executor.
    pub prefetch: u8,
    /// Hosts with clients.
    pub clients: usize,
    /// When jobs come.
    pub arrivals: Arrivals,
    /// Tasks of a job, on average: as many, or one more.
    pub tasks_per_job: f64,
    /// How long tasks take.
    pub times: Times,
    /// The same on average, in ns.
    pub task_ns: Duration,
    /// What takes time beside.
    pub costs: Costs,
    /// Jobs that come before are not measured.
    pub warm_up_ns: Duration,
    /// Jobs that come in this time are.
    pub measure_ns: Duration,
    /// Whether steps are measured, too: it costs time.
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
    /// Executors in all.
    #[must_use]
    pub fn executors(&self) -> usize {
        self.workers * self.slots
    }

    /// Jobs a second.
    #[must_use]
    pub fn jobs_per_second(&self) -> f64 {
        match self.arrivals {
            Arrivals::Periodic { period_ns, .. } => {
                self.clients as f64 * SEC as f64 / period_ns as f64
            }
            Arrivals::Poisson { jobs_per_second } => jobs_per_second as f64,
        }
    }

    /// The same with as many tasks a job as make up a share of the executors' time. With
    /// `round_trip_ns` an executor is taken for so much longer by each task.
    #[must_use]
    pub fn at(self, load: f64, round_trip_ns: Duration) -> Load {
        let each_ns = (self.task_ns + round_trip_ns) as f64;
        let per_second = load * self.executors() as f64 * SEC as f64 / each_ns;
        Load { tasks_per_job: per_second / self.jobs_per_second(), ..self }
    }
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Tasks whose jobs came while it was measured.
    pub tasks: u64,
    /// Of these, the ones that had not begun at the end: their delay so far is what counts.
    pub unstarted: u64,
    /// From when its job came to when it began, of each task.
    pub task: Delays,
    /// The same of each job's last task to begin.
    pub job: Delays,
    /// From a job's coming to a task's end, over the time that the task takes alone; 99% are below.
    /// Of all tasks.
    pub slowdown_p99: f64,
    /// The steps of a task's way.
    pub steps: Vec<Step>,
    /// Falcon: tasks of each client that began while it was measured, whenever their jobs came.
    pub begun: Vec<u64>,
    /// What machines counted.
    pub counts: BTreeMap<&'static str, u64>,
    /// Events of the simulation.
    pub events: u64,
}

/// Runs a load.
///
/// # Errors
/// A line if the rack did not get ready: a bug.
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
