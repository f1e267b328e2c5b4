//! A worker: it asks the switch for tasks, and executes them.
//!
//! The orders of its machine are carried out at the end of a batch, after its messages were sent:
//! starting a command takes as long as a thousand packets.

mod busy;
mod descendants;
mod functions;
mod handlers;
mod processes;
mod reaper;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use concord_core::machine::Deadline;
use concord_core::{Instant, Key, MS, Machine as _, Nothing, Now, SessionId};
use concord_scheduler::{Order, Output, Worker, WorkerConfig};
use concord_wire::falcon::Task;
use concord_wire::tasks::{Attempt, Ended, Function};
use concord_wire::{Addr, GroupId, OfGroup};
use rustc_hash::FxBuildHasher;
use tracing::{info, warn};

use crate::driver::{Persisted, ROLE_TOKEN_MIN, Role, STOP_NS_MAX, Stop};
use crate::error::Error;
use crate::falcon::tasks::Functions;
use crate::http::{Health, Snapshot};
use crate::logging;
use crate::poller::{Event, Interest, Token};
use crate::roles::{Place, unique};
use crate::udp::Outbox;

use busy::Busy;
use descendants::{Descendants, SharedDescendants};
use functions::Calls;
use handlers::Handlers;
use processes::{Finished, Processes, Stopped};

pub use processes::CommandBody;
pub use reaper::reap;

const THREADS: Token = Token(ROLE_TOKEN_MIN);
const CALLS: Token = Token(ROLE_TOKEN_MIN + 1);
/// The time in ns that an executor waits in the switch. Meanwhile a task may be handed to a worker
/// that is gone: its owner submits it again soon. A shorter time would keep idle racks busy.
const WAIT_NS: u64 = 200 * MS;
/// The time in ns for which tasks are begun in one iteration of the loop: starting a command takes
/// up to milliseconds, and leases must be extended meanwhile.
const STARTS_NS: u64 = 5 * MS;
/// The largest number of descriptors that it asks the system for: a few for each running command.
const DESCRIPTORS_MAX: u64 = 1 << 16;
/// The number of job bodies that are kept decoded.
const BODIES_MAX: usize = 64;

/// The configuration of a worker, beside its place.
#[derive(Clone, Debug)]
pub struct WorkerSetup {
    /// The group of the worker.
    pub group: GroupId,
    /// The address of the switch.
    pub switch: Addr,
    /// The address of the controller.
    pub controller: Addr,
    /// The number of tasks that it runs at a time.
    pub slots: u16,
    /// The queues from which it takes tasks, one a bit.
    pub queues: u32,
    /// The number of tasks that an executor may hold beside the one that it runs.
    pub prefetch: u8,
    /// The time in ns that a task may run without its owner being heard, the same for all of the
    /// group.
    pub lease_ns: u64,
    /// The rack's secret: it runs only what was tagged with it.
    pub key: Key,
    /// If it executes commands, the command line that runs [`reap`] on its standard input. The
    /// process must then be the worker's alone: children that it starts in another way may be taken
    /// for descendants of commands, and are waited for.
    pub exec: Option<Vec<String>>,
    /// The functions that it executes beside the built-in ones.
    pub functions: Functions,
    /// The time in ns that its runs may take after it was told to end.
    pub drain_ns: u64,
}

/// The time in ns that a worker has, once its runs are killed, to tell its owners.
const GIVE_BACK_NS: u64 = 300 * MS;

/// The body of a job, encoded and decoded.
type Decoded = (Arc<[u8]>, Arc<CommandBody>);

#[derive(Debug)]
struct WorkerRole {
    node: u16,
    slots: u16,
    worker: OfGroup<Worker>,
    busy: Busy,
    calls: Calls,
    /// The commands, or `None` if it executes none.
    processes: Option<Processes>,
    /// The handlers, or `None` if it executes no commands.
    handlers: Option<Handlers>,
    /// The descendants of both, of which none may be left.
    descendants: Option<SharedDescendants>,
    /// Decoded bodies by the address of the encoded bytes, which each entry keeps alive.
    bodies: HashMap<*const u8, Decoded, FxBuildHasher>,
    /// Runs that ended, to be reported.
    finished: Vec<Finished>,
    /// Runs that could not begin, to be given back.
    returned: Vec<u32>,
    /// The epoch and the number of wrong tags that were logged last.
    logged: (u32, u64),
    drain_ns: u64,
    /// When its runs go back to their owners, once it was told to end.
    give_back_at: Option<Instant>,
    /// Whether the process that started it told it to end.
    is_told: bool,
    /// Whether an owner told it to end, and until when its runs may go on.
    drain_until: Option<Instant>,
}

/// Runs a worker until it is told to end. Returns whether an owner told it.
///
/// # Errors
/// One line for a person.
pub fn run(place: &Place, setup: &WorkerSetup) -> Result<bool, Error> {
    let _span = logging::span("worker", place.node).entered();
    raise_descriptors();
    let mut driver = place.driver()?;
    let session = SessionId(unique()?);
    let config = WorkerConfig {
        controller: Some((place.node, setup.controller)),
        lease_ns: setup.lease_ns,
        queues: setup.queues,
        prefetch: setup.prefetch,
        key: Some(setup.key),
        wait_ns: WAIT_NS,
        ..WorkerConfig::new(session, place.addr, setup.switch, setup.slots)
    };
    let busy = Busy::new()?;
    driver.poller().add(&busy, THREADS, Interest::READ)?;
    let calls = Calls::new(setup.functions.clone(), setup.slots.into())?;
    driver.poller().add(&calls, CALLS, Interest::READ)?;
    let executes = setup.exec.clone().map(|program| {
        let descendants = Descendants::shared(Some(program))?;
        let handlers = Handlers::new(driver.poller(), Rc::clone(&descendants), setup.slots.into());
        let processes = Processes::new(driver.poller(), Rc::clone(&descendants));
        Ok::<_, Error>((descendants, processes, handlers))
    });
    let (descendants, processes, handlers) = match executes.transpose()? {
        Some((descendants, processes, handlers)) => {
            (Some(descendants), Some(processes), Some(handlers))
        }
        None => (None, None, None),
    };
    let mut role = WorkerRole {
        node: place.node,
        slots: setup.slots,
        worker: OfGroup::new(setup.group, Worker::new(config)),
        busy,
        calls,
        processes,
        handlers,
        descendants,
        bodies: HashMap::default(),
        finished: Vec::new(),
        returned: Vec::new(),
        logged: (0, 0),
        drain_ns: setup.drain_ns,
        give_back_at: None,
        is_told: false,
        drain_until: None,
    };
    let exec = setup.exec.is_some();
    info!(addr = %place.addr, slots = setup.slots, exec, "started");
    driver.run(&mut role)?;
    let is_drained = role.is_over();
    info!(is_drained, "stopped");
    Ok(is_drained)
}

/// Raises the limit of descriptors as far as permitted: the usual 1,024 may be too few for a
/// worker's executors or an owner's connections.
pub(super) fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS_MAX, |most| most.min(DESCRIPTORS_MAX));
    if current.is_some_and(|current| current < wanted) {
        // Without it fewer commands run at a time, and the others are given back.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Parses the microseconds of a sleeping or spinning task.
fn microseconds(parameters: &[u8]) -> Option<u64> {
    parameters.first_chunk().filter(|_| parameters.len() == 8).map(|b| u64::from_be_bytes(*b))
}

impl WorkerRole {
    /// Begins a run. `Err` if it is over with that.
    fn start(
        &mut self,
        now: Instant,
        run: u32,
        of: Attempt,
        task: &Task,
        job: Option<Arc<[u8]>>,
        parameters: &[u8],
    ) -> Result<(), Finished> {
        let failed = |why: &str| Finished::failed(run, Ended::Failed, why);
        match Function::numbered(task.function) {
            Some(Function::NoOp) => Err(Finished::failed(run, Ended::Done, "")),
            Some(Function::Sleep) => {
                let us = microseconds(parameters);
                self.busy.sleep(now, run, us.ok_or_else(|| failed("no time to sleep for"))?);
                Ok(())
            }
            Some(Function::Spin) => {
                let us = microseconds(parameters).ok_or_else(|| failed("no time to spin for"))?;
                self.busy.spin(run, us).map_err(|error| failed(&error.to_string()))
            }
            Some(Function::Command) => {
                let body = job.and_then(|bytes| self.body(bytes));
                let body = body.ok_or_else(|| failed("no command in its job"))?;
                let Some(processes) = &mut self.processes else {
                    return Err(failed("this worker was not started with --allow-exec\n"));
                };
                processes.start(run, of, &body, parameters)
            }
            Some(Function::Handler) => {
                let body = job.and_then(|bytes| self.body(bytes));
                let body = body.ok_or_else(|| failed("no handler in its job"))?;
                let Some(handlers) = &mut self.handlers else {
                    return Err(failed("this worker was not started with --allow-exec\n"));
                };
                handlers.start(run, of, &body, parameters)
            }
            None => self.calls.start(run, task.function, of, parameters),
        }
    }

    /// The decoded body of a job.
    fn body(&mut self, bytes: Arc<[u8]>) -> Option<Arc<CommandBody>> {
        if let Some((_, body)) = self.bodies.get(&bytes.as_ptr()) {
            return Some(Arc::clone(body));
        }
        let body: Arc<CommandBody> = Arc::new(CommandBody::read(&bytes)?);
        if self.bodies.len() >= BODIES_MAX {
            self.bodies.clear();
        }
        self.bodies.insert(bytes.as_ptr(), (bytes, Arc::clone(&body)));
        Some(body)
    }

    /// Carries out the machine's orders.
    fn obey(&mut self, now: Now, out: &mut Outbox) {
        let mut is_told = false;
        let until = now.instant.after(STARTS_NS);
        while self.worker.has_orders() {
            if self.worker.begins_next() && crate::clock::now().instant >= until {
                return;
            }
            let Some(order) = self.worker.poll_order() else { return };
            match order {
                Order::Start { run, task, .. } if !self.calls.has_room(task.function) => {
                    self.returned.push(run);
                }
                Order::Start { run, of, task, job, parameters, .. } => {
                    if !is_told && task.function == Function::Command.number() {
                        // It is told that they run before they are started, since starting takes
                        // time.
                        self.worker.flush(now, out);
                        out.flush();
                        is_told = true;
                    }
                    let own = task.parameters.bytes();
                    let parameters = parameters.as_deref().unwrap_or(own);
                    if let Err(finished) = self.start(now.instant, run, of, &task, job, parameters)
                    {
                        if finished.is_returned {
                            self.returned.push(run);
                        } else {
                            self.finished.push(finished);
                        }
                    }
                }
                Order::Stop { run, .. } => {
                    let told = self.stop_run(now.instant, run);
                    self.finished.extend(told);
                }
                Order::Kill { run, is_cancelled, .. } => {
                    self.busy.kill(run);
                    self.calls.kill(run);
                    if let Some(processes) = &mut self.processes {
                        processes.kill(now.instant, run, is_cancelled);
                    }
                    if let Some(handlers) = &mut self.handlers {
                        handlers.kill(now.instant, run, is_cancelled);
                    }
                }
            }
        }
    }

    /// Stops a run whose time limit has passed. Returns its output so far, or `None` if it has a
    /// while to end by itself.
    fn stop_run(&mut self, now: Instant, run: u32) -> Option<Finished> {
        self.busy.kill(run);
        self.calls.kill(run);
        if let Some(handlers) = &mut self.handlers {
            handlers.kill(now, run, false);
        }
        match self.processes.as_mut().and_then(|processes| processes.stop(now, run)) {
            Some(Stopped::Told(told)) => Some(told),
            Some(Stopped::Later) => None,
            None => Some(Finished::failed(run, Ended::TimedOut, "")),
        }
    }

    /// Tells the machine which runs have ended.
    fn tell(&mut self, now: Now, out: &mut Outbox) {
        for finished in std::mem::take(&mut self.finished) {
            let Finished { run, ended, output, output_bytes, .. } = finished;
            let output = Output { bytes: &output, total_bytes: output_bytes };
            let (worker, mut sink) = self.worker.input(out);
            worker.finished(now, run, ended, output, &mut sink);
        }
        for run in std::mem::take(&mut self.returned) {
            let (worker, mut sink) = self.worker.input(out);
            worker.returned(now, run, &mut sink);
        }
    }

    fn done(&mut self, run: u32) {
        self.finished.push(Finished::failed(run, Ended::Done, ""));
    }
}

impl Role for WorkerRole {
    type Machine = OfGroup<Worker>;

    fn machine(&mut self) -> &mut OfGroup<Worker> {
        &mut self.worker
    }

    fn persist(&mut self, what: Nothing) -> Result<Persisted, Error> {
        match what {}
    }

    fn event(&mut self, event: Event, _out: &mut Outbox) -> Result<(), Error> {
        if event.token == THREADS {
            self.busy.heard();
            while let Some(run) = self.busy.spun() {
                self.done(run);
            }
        } else if event.token == CALLS {
            self.calls.heard();
            while let Some(finished) = self.calls.ended() {
                self.finished.push(finished);
            }
        } else if Handlers::owns(event.token) {
            if let Some(handlers) = &mut self.handlers {
                self.finished.extend(handlers.event(event)?);
            }
        } else if let Some(processes) = &mut self.processes {
            self.finished.extend(processes.event(event)?);
        }
        Ok(())
    }

    fn attend(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        while let Some(run) = self.busy.woken(now.instant) {
            self.done(run);
        }
        let told = self.worker.drain_until();
        if told != self.drain_until {
            self.drain_until = told;
            info!("an owner has it drained: it takes no more tasks");
            if !self.is_told {
                self.give_back_at = told;
            }
        }
        if self.give_back_at.is_some_and(|at| at <= now.instant) {
            self.give_back_at = Some(Instant::NEVER);
            // Runs that it orders to be killed are killed before that is told to anyone.
            let (worker, mut sink) = self.worker.input(out);
            worker.return_runs(now, &mut sink);
        }
        if let Some(handlers) = &mut self.handlers {
            handlers.end_late(now.instant);
        }
        if let Some(processes) = &mut self.processes {
            processes.end_late(now.instant);
        }
        if let Some(descendants) = &self.descendants {
            descendants.borrow_mut().sweep(now.instant);
        }
        self.obey(now, out);
        while !self.finished.is_empty() || !self.returned.is_empty() {
            self.tell(now, out);
            // It orders runs without a lease to be killed before it takes a result (trap T1).
            self.obey(now, out);
        }
        Ok(())
    }

    fn wakes_at(&self) -> Deadline {
        if self.worker.has_orders() {
            return Deadline { at: Instant(0), reason: "tasks to be begun" };
        }
        let give_back = self.give_back_at.unwrap_or(Instant::NEVER);
        let sleeping = Deadline { at: give_back, reason: "what runs goes back" }
            .min(Deadline { at: self.busy.wakes_at(), reason: "a task that sleeps" });
        let at = self.handlers.as_ref().map_or(Instant::NEVER, Handlers::wakes_at);
        let killed = self.processes.as_ref().map_or(Instant::NEVER, Processes::wakes_at);
        let swept = self.descendants.as_ref().map_or(Instant::NEVER, |own| own.borrow().wakes_at());
        sleeping
            .min(Deadline { at, reason: "a handler whose task was cancelled" })
            .min(Deadline { at: killed, reason: "a command that was told to end" })
            .min(Deadline { at: swept, reason: "what commands left behind" })
    }

    fn log(&mut self, _now: Now) {
        let (epoch, wrong) = (self.worker.heard().epoch, self.worker.counters().tags_wrong);
        let (logged_epoch, logged_wrong) = std::mem::replace(&mut self.logged, (epoch, wrong));
        if epoch != logged_epoch {
            let switch_id = self.worker.heard().switch_id;
            info!(epoch, switch_id, "is a member");
        }
        if logged_wrong == 0 && wrong > 0 {
            warn!("tasks without the tag of the rack's key are dropped; tags_wrong counts them");
        }
    }

    /// Takes no more tasks, and ends when its runs have ended. Runs that take longer are killed,
    /// and begun again elsewhere.
    fn stop(&mut self, now: Now, why: Stop) -> bool {
        self.worker.retire();
        if !self.is_told {
            self.is_told = true;
            let at = now.instant.after(self.drain_ns);
            self.give_back_at = Some(self.give_back_at.map_or(at, |drained| drained.min(at)));
        }
        self.worker.is_idle() || why == Stop::Rack
    }

    fn is_over(&self) -> bool {
        self.drain_until.is_some() && self.worker.is_idle()
    }

    fn stop_ns(&self, why: Stop) -> u64 {
        match why {
            Stop::Rack => STOP_NS_MAX,
            Stop::Signal => self.drain_ns + GIVE_BACK_NS,
        }
    }

    fn snapshot(&self, _now: Now) -> Snapshot {
        let mut s = Snapshot::new("worker", self.node);
        s.count(self.worker.counters().each());
        s.count(self.worker.of_group_counters().each());
        let running = self.worker.runs().count();
        s.gauge("slots", "Tasks that it runs at a time at most.", self.slots.into());
        s.gauge("running", "Tasks that it runs.", running as f64);
        let processes = self.processes.as_ref().map_or(0, Processes::len);
        s.gauge(
            "processes",
            "Commands that run, or were killed and have not ended.",
            processes as f64,
        );
        let handlers = self.handlers.as_ref().map_or(0, Handlers::len);
        s.gauge("handlers", "Handlers that run, with a task or without.", handlers as f64);
        let heard = self.worker.heard();
        s.gauge("epoch", "The configuration that it is in.", heard.epoch.into());
        s.tell("epoch", heard.epoch);
        s.tell("switch_id", heard.switch_id);
        s.tell("member", heard.epoch > 0);
        s.tell("exec", self.processes.is_some());
        s.tell("draining", self.is_told || self.drain_until.is_some());
        if heard.epoch == 0 {
            s.health = Health::NotYet("the controller has not made it a member yet".to_string());
        }
        s
    }
}
