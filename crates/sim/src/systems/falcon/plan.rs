//! A rack of owners, workers and switches, and its faults, drawn from one seed.

use std::sync::Arc;

use concord_core::{Guards, MS, Rng, SEC, US};
use concord_scheduler::{Job, TaskSpec};
use concord_switch::{Form, QueueLayout};
use concord_wire::falcon::{PRIORITIES_MAX, Parameters, QUEUES_MAX, queue_of_node};

/// A fault, and its duration in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A worker dies with all its runs, and is restarted later.
    KillWorker(usize, u64),
    /// A worker pauses, with its runs.
    PauseWorker(usize, u64),
    /// An owner dies; its tasks then have no owner, unless it has a journal. It is restarted later,
    /// with another session.
    KillOwner(usize, u64),
    /// An owner pauses.
    PauseOwner(usize, u64),
    /// A worker and all other nodes cannot reach each other.
    CutWorker(usize, u64),
    /// A worker and an owner cannot reach each other.
    CutPair(usize, usize, u64),
    /// The switch loses its queue, and returns as a new incarnation.
    RestartSwitch(u64),
    /// The switch pauses.
    PauseSwitch(u64),
    /// The switch and the controller cannot reach each other: the standby takes over, and the old
    /// switch keeps running, and hears of it only later.
    OtherSwitch(u64),
    /// The controller dies, and is restarted with its state.
    RestartController(u64),
    /// The controller pauses.
    PauseController(u64),
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of everything that is drawn during the run.
    pub seed: u64,
    /// The layout of the switch's queues.
    pub queue: QueueLayout,
    /// The number of owners.
    pub owners: usize,
    /// The number of executors of each worker.
    pub workers: Vec<u16>,
    /// The queues that each worker's executors ask, by bit: those of its classes, and that of its
    /// node.
    pub queues: Vec<u32>,
    /// The number of tasks for which an executor asks while it still runs one.
    pub prefetch: u8,
    /// The jobs: time in ns, owner, and job.
    pub jobs: Vec<(u64, usize, Job)>,
    /// The cancellations: time in ns, and index of the job.
    pub cancels: Vec<(u64, usize)>,
    /// The minimum and maximum latency of a packet, in ns.
    pub latency_ns: (u64, u64),
    /// Packets lost, per million.
    pub loss_ppm: u64,
    /// Packets duplicated, per million.
    pub duplicate_ppm: u64,
    /// Packets delayed by up to 20 ms, per million.
    pub late_ppm: u64,
    /// The maximum time that an executor waits in the switch, in ns.
    pub wait_ns: u64,
    /// The share of runs that fail, per million.
    pub fail_ppm: u64,
    /// The maximum duration of a run, in ns.
    pub run_ns_max: u64,
    /// The duration of a worker's lease on its runs, in ns: a worker that is silent for longer
    /// counts as lost.
    pub lease_ns: u64,
    /// The faults, and their times in ns.
    pub faults: Vec<(u64, Fault)>,
    /// Whether owners have a journal, so that their jobs outlive them.
    pub journal: bool,
    /// The maximum duration of a sync of their disks, in ns.
    pub sync_ns_max: u64,
    /// The number of attempts that begin before the journal has to store a higher number.
    pub attempts_noted: u16,
    /// The outputs of tasks.
    pub outputs: Outputs,
    /// The maximum number of bytes of outputs that an owner keeps.
    pub room_bytes: usize,
    /// For each job, the interval at which a reader asks for its outcomes, in ns; `None`: it has no
    /// reader.
    pub readers: Vec<Option<u64>>,
    /// The guards that are on.
    pub guards: Guards,
}

/// The sizes of the tasks' outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// A few bytes, except for each fifth task, whose output has 80 KB.
    Few,
    /// As many bytes as fit into a result packet.
    Small,
    /// Up to 40 KB.
    Long,
}

impl Outputs {
    /// The output of a task.
    #[must_use]
    pub fn of(self, tid: u32) -> Vec<u8> {
        let times = match self {
            Outputs::Few if tid.is_multiple_of(5) => 20_000,
            Outputs::Few => 1,
            Outputs::Small => 250,
            Outputs::Long => 1 + tid as usize * 7_919 % 10_000,
        };
        tid.to_be_bytes().repeat(times)
    }

    /// The length of the longest output, in bytes.
    #[must_use]
    pub fn longest_bytes(self) -> usize {
        match self {
            Outputs::Few => 80_000,
            Outputs::Small => 1_000,
            Outputs::Long => 40_000,
        }
    }
}

impl Plan {
    /// Draws a plan from a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let form = if rng.chance(1, 2) { Form::Paired } else { Form::Repair };
        let slots = 1 << rng.between(1, 7);
        let queue = QueueLayout::one(slots, rng.between(1, slots.into()) as u32, form);
        let owners = rng.between(1, 2) as usize;
        let workers: Vec<u16> = (0..rng.between(1, 4)).map(|_| rng.between(1, 4) as u16).collect();
        let jobs = (0..rng.between(1, 5))
            .map(|_| (rng.below(2 * SEC), rng.below(owners as u64) as usize, job(rng)));
        let mut jobs: Vec<(u64, usize, Job)> = jobs.collect();
        fetched(seed, &mut jobs);
        paced(seed, &mut jobs);
        let classes = classes(seed, queue, workers.len(), &mut jobs);
        // These limits let a rack without faults finish within seconds: a run takes a fifteenth of
        // the maximum on average, and the executor of a task that is never run twice waits for two
        // syncs, which together take at most as long as the longest one.
        let run_ns_most = longest_ns(15 * SEC, &workers, &classes.queues, &jobs, |_| true);
        let sync_ns_most = longest_ns(4 * SEC, &workers, &classes.queues, &jobs, |job| job.once);
        let cancels = jobs.iter().enumerate().filter(|_| rng.chance(1, 6));
        let cancels: Vec<(u64, usize)> = cancels.map(|(index, job)| (job.0, index)).collect();
        let later = |(at, index)| (at + rng.below(SEC / 4), index);
        let cancels = cancels.into_iter().map(later).collect();
        let (outputs, room_bytes, readers) = read(seed, jobs.len());
        let shortest = rng.between(2, 100) * US;
        let noise = |rng: &mut Rng, most| if rng.chance(1, 2) { rng.below(most) } else { 0 };
        Plan {
            seed,
            queue: classes.queue,
            queues: classes.queues,
            prefetch: classes.prefetch,
            owners,
            jobs,
            cancels,
            latency_ns: (shortest, shortest + rng.below(300) * US),
            loss_ppm: noise(rng, 40_000),
            duplicate_ppm: noise(rng, 40_000),
            late_ppm: noise(rng, 20_000),
            wait_ns: *[0, 5 * MS, 100 * MS].get(rng.below(3) as usize).unwrap_or(&0),
            fail_ppm: noise(rng, 200_000),
            run_ns_max: (rng.between(1, 40) * 10 * MS).min(run_ns_most),
            lease_ns: rng.between(5, 20) * 10 * MS,
            faults: faults(rng, owners, workers.len()),
            workers,
            journal: Rng::new(seed ^ 0x10b5_d15c).chance(1, 3),
            sync_ns_max: [3 * MS, 3 * MS, 15 * MS, 60 * MS]
                .get(Rng::new(seed ^ 0x510d_d15c).below(4) as usize)
                .map_or(MS, |longest| sync_ns_most.min(*longest)),
            attempts_noted: *[1, 2, 100]
                .get(Rng::new(seed ^ 0xa77e_d15c).below(3) as usize)
                .unwrap_or(&100),
            outputs,
            room_bytes,
            readers,
            guards: Guards::ALL,
        }
    }

    /// Whether all workers are alive and reachable all the time.
    #[must_use]
    pub fn keeps_workers(&self) -> bool {
        !self.faults.iter().any(|(_, fault)| match fault {
            Fault::KillWorker(..)
            | Fault::PauseWorker(..)
            | Fault::CutWorker(..)
            | Fault::CutPair(..) => true,
            Fault::KillOwner(..)
            | Fault::PauseOwner(..)
            | Fault::RestartSwitch(_)
            | Fault::PauseSwitch(_)
            | Fault::OtherSwitch(_)
            | Fault::RestartController(_)
            | Fault::PauseController(_) => false,
        })
    }

    /// The end of the last fault, in ns.
    #[must_use]
    pub fn quiet_at_ns(&self) -> u64 {
        let over = |(at, fault): &(u64, Fault)| {
            at + match *fault {
                Fault::KillWorker(_, ns)
                | Fault::PauseWorker(_, ns)
                | Fault::KillOwner(_, ns)
                | Fault::PauseOwner(_, ns)
                | Fault::CutWorker(_, ns)
                | Fault::CutPair(_, _, ns)
                | Fault::RestartSwitch(ns)
                | Fault::PauseSwitch(ns)
                | Fault::OtherSwitch(ns)
                | Fault::RestartController(ns)
                | Fault::PauseController(ns) => ns,
            }
        };
        let faults = self.faults.iter().map(over);
        let jobs = self.jobs.iter().map(|job| job.0);
        faults.chain(jobs).chain(self.cancels.iter().map(|cancel| cancel.0)).max().unwrap_or(0)
    }
}

/// The time in ns that each task of the counted jobs may occupy its executor, so that all of them
/// together occupy none for longer than `all_ns`. Classes have few executors, which may belong to
/// other classes as well: the tasks of each set of classes share the executors of any of these.
fn longest_ns(
    all_ns: u64,
    workers: &[u16],
    queues: &[u32],
    jobs: &[(u64, usize, Job)],
    counts: impl Fn(&Job) -> bool,
) -> u64 {
    let of_classes = |classes: u32| {
        let able = workers.iter().zip(queues).filter(|(_, queues)| *queues & classes != 0);
        let executors: u64 = able.map(|(slots, _)| u64::from(*slots)).sum();
        let jobs = jobs.iter().map(|job| &job.2);
        let in_need = jobs.filter(|job| counts(job) && 1 << job.needs & classes != 0);
        let tasks: u64 = in_need.map(|job| job.tasks.len() as u64).sum();
        all_ns * executors / tasks.max(1)
    };
    // There are no tasks of a class that has no worker.
    (1..16).map(of_classes).filter(|ns| *ns > 0).min().unwrap_or(all_ns)
}

fn job(rng: &mut Rng) -> Job {
    let tasks = (0..rng.between(1, 40) as u32).map(|tid| TaskSpec {
        function: 1,
        parameters: Parameters::new(&tid.to_be_bytes()).unwrap_or_default(),
    });
    Job {
        tasks: tasks.collect(),
        once: rng.chance(1, 2),
        retries: rng.below(4) as u16,
        limit_ms: if rng.chance(1, 3) { rng.between(20, 400) as u32 } else { 0 },
        ..Job::default()
    }
}

/// Draws data that executors fetch: a third of the jobs has a body, a third long parameters.
fn fetched(seed: u64, jobs: &mut [(u64, usize, Job)]) {
    let mut rng = Rng::new(seed ^ 0x0b0d_1e5f);
    let some = |rng: &mut Rng| -> Arc<[u8]> {
        let bytes = rng.below(4_000);
        (0..bytes).map(|_| rng.below(256) as u8).collect()
    };
    for (_, _, job) in jobs {
        if rng.chance(1, 3) {
            job.body = Some(some(&mut rng));
        }
        let is_long = rng.chance(1, 3);
        for tid in 0..job.tasks.len() as u32 {
            if is_long && rng.chance(1, 2) {
                job.long.insert(tid, some(&mut rng));
            }
        }
    }
}

/// Draws the outputs of tasks, how much of them an owner keeps, and their readers: half of the jobs
/// have a reader. An owner keeps less than the outputs of all jobs, and at least 16 times the
/// longest output.
fn read(seed: u64, jobs: usize) -> (Outputs, usize, Vec<Option<u64>>) {
    let mut rng = Rng::new(seed ^ 0x0bad_4ead);
    let outputs = match rng.below(3) {
        0 => Outputs::Few,
        1 => Outputs::Small,
        _ => Outputs::Long,
    };
    let room_bytes = rng.between(16, 64) as usize * outputs.longest_bytes();
    let reader = |rng: &mut Rng| rng.chance(1, 2).then(|| rng.between(1, 40) * MS);
    (outputs, room_bytes, (0..jobs).map(|_| reader(&mut rng)).collect())
}

/// Draws the pace of submissions: a quarter of the jobs pauses before retries, a quarter has few
/// tasks in progress at a time.
fn paced(seed: u64, jobs: &mut [(u64, usize, Job)]) {
    let mut rng = Rng::new(seed ^ 0x0ace_d111);
    for (_, _, job) in jobs {
        job.retry_ns = if rng.chance(1, 4) { rng.below(50 * MS) } else { 0 };
        job.running_max = if rng.chance(1, 4) { rng.between(4, 20) as u32 } else { 0 };
    }
}

/// The classes, priorities and nodes of a plan.
struct Classes {
    queue: QueueLayout,
    queues: Vec<u32>,
    prefetch: u8,
}

/// Draws classes: half of the seeds with paired pointers have all queues and priorities. Workers
/// then have up to two classes beside the first, and a queue of their own; tasks need a class that
/// some worker has, or prefer to run near a worker.
fn classes(seed: u64, one: QueueLayout, workers: usize, jobs: &mut [(u64, usize, Job)]) -> Classes {
    let mut rng = Rng::new(seed ^ 0x0c1a_55e5);
    let rng = &mut rng;
    let prefetch = if rng.chance(1, 3) { rng.between(1, 3) as u8 } else { 0 };
    if one.form != Form::Paired || rng.chance(1, 2) {
        return Classes { queue: one, queues: vec![1; workers], prefetch };
    }
    let (queues, priorities) = (QUEUES_MAX, PRIORITIES_MAX);
    let slots = (2 * u32::from(queues) * u32::from(priorities)) << rng.below(4);
    let queue = QueueLayout { slots, capacity: one.capacity, queues, priorities, ..one };
    let near = |worker: usize| queue_of_node(worker as u16);
    let of = |worker| {
        let mut classes = 1 | 1 << near(worker);
        for _ in 0..rng.below(3) {
            classes |= 1 << rng.between(1, 3);
        }
        classes
    };
    let queues: Vec<u32> = (0..workers).map(of).collect();
    for (_, _, job) in jobs {
        job.priority = rng.below(u64::from(PRIORITIES_MAX)) as u8;
        let (worker, class) = (rng.below(workers as u64) as usize, rng.between(0, 3) as u8);
        job.needs = if queues.iter().any(|own| own >> class & 1 == 1) { class } else { 0 };
        if rng.chance(1, 3) {
            job.near = Some(worker as u16);
            job.locality_wait_ns = rng.below(SEC);
        }
    }
    Classes { queue, queues, prefetch }
}

fn faults(rng: &mut Rng, owners: usize, workers: usize) -> Vec<(u64, Fault)> {
    let mut all = Vec::new();
    for _ in 0..rng.below(8) {
        let (worker, owner) =
            (rng.below(workers as u64) as usize, rng.below(owners as u64) as usize);
        let ns = rng.between(1, 60) * 10 * MS;
        let fault = match rng.below(11) {
            0 => Fault::KillWorker(worker, ns),
            1 => Fault::PauseWorker(worker, ns),
            2 => Fault::PauseOwner(owner, ns),
            3 => Fault::CutWorker(worker, ns),
            4 => Fault::CutPair(worker, owner, ns),
            5 => Fault::RestartSwitch(ns),
            6 => Fault::PauseSwitch(ns),
            7 => Fault::KillOwner(owner, ns),
            8 => Fault::RestartController(ns),
            9 => Fault::PauseController(ns),
            _ => Fault::OtherSwitch(ns),
        };
        all.push((rng.below(3 * SEC), fault));
    }
    all.sort_by_key(|fault| fault.0);
    all
}
