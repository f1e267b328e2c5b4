//! Explores every interleaving of tasks, requests and recirculated packets over the switch program
//! that ships, breadth first: a failure is shown by a shortest trace.
//!
//! A state consists of the program's registers, the recirculating packets, and the events that may
//! still happen. From each state the next submission or request may arrive; any recirculating
//! packet may arrive next, however late, or be lost or duplicated; a moment may pass, after which
//! waiting executors have waited too long; the control plane may sweep. Submissions with equally
//! many tasks are interchangeable, and so are requests: they arrive in one order.
//!
//! In each state: every task that was accepted and not handed out is in its slot; no executor waits
//! beside a task; and if no recirculating packet ever arrived, all tasks would be handed out in
//! order, the waiting executors would get the next ones in order, and the queue could be filled up.
//! In each step: the task that is handed out is the next one, and a submission is refused only if
//! the queue is full.

use std::collections::VecDeque;
use std::hash::Hash;

use concord_core::{Guards, Incarnation, Instant, MS, Now, SessionId};
use concord_pisa::{Metadata, Verdict};
use concord_switch::program::Copied;
use concord_switch::{
    AgentConfig, Falcon, Form, Ingress, Load as _, PortTable, QueueLayout, SwitchProgram as _,
};
use concord_wire::control::{Config, GroupKind, Member, Program};
use concord_wire::falcon::{Answer, Asker, Reply, Request, Submission, Task};
use concord_wire::{Addr, GroupId};
use rustc_hash::FxHasher;

use crate::systems::frame;
pub use crate::systems::frame::Explored;

const SWITCH: Addr = Addr { ip: 1, port: 1 };
const OWNER: Addr = Addr { ip: 2, port: 2 };
const EXECUTOR: Addr = Addr { ip: 3, port: 3 };
/// The largest number of passes in which the rest is handed out or filled up.
const PASSES_MAX: u32 = 200;

/// The configuration of an exploration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The queue.
    pub layout: QueueLayout,
    /// The number of submissions with one task, with two, and so on.
    pub submissions: Vec<u8>,
    /// The number of requests that wait if there is no task.
    pub requests: u8,
    /// The number of requests that do not wait.
    pub polls: u8,
    /// The load of the other queues and priorities.
    pub more: Vec<Load>,
    /// Whether there is an executor of all queues: it asks one after the other while it has no
    /// task, and gives back tasks that come while it has one.
    pub executor: bool,
    /// Whether executors ask only when there is a task.
    pub asks_in_vain: bool,
    /// The number of recirculating packets that may be lost.
    pub losses: u8,
    /// The number of recirculating packets that may be duplicated.
    pub doubles: u8,
    /// The number of times that the switch may get another id, with an empty queue.
    pub replacements: u8,
    /// The number of moments that may pass, after each of which waiting executors have waited too
    /// long.
    pub moments: u8,
    /// Whether to check only that no task is overwritten.
    pub overwrites_only: bool,
    /// The initial add_ptr and retrieve_ptr.
    pub begin_at: (u32, u32),
    /// The guards that are on.
    pub guards: Guards,
    /// The largest number of states.
    pub states_max: usize,
}

impl Setup {
    /// A queue with this many slots, in which only the order varies.
    #[must_use]
    pub fn new(form: Form, slots: u32) -> Setup {
        Setup {
            layout: QueueLayout::one(slots, slots, form),
            submissions: Vec::new(),
            requests: 0,
            polls: 0,
            more: Vec::new(),
            executor: false,
            asks_in_vain: true,
            losses: 0,
            doubles: 0,
            replacements: 0,
            moments: 0,
            overwrites_only: false,
            begin_at: (0, 0),
            guards: Guards::ALL,
            states_max: 20_000_000,
        }
    }
}

/// The load of one priority of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Load {
    /// The queue.
    pub queue: u8,
    /// The priority.
    pub priority: u8,
    /// The number of submissions with one task, with two, and so on.
    pub submissions: Vec<u8>,
    /// The number of requests that wait if there is no task; they are of the queue, whatever the
    /// priority.
    pub requests: u8,
    /// The number of requests that do not wait.
    pub polls: u8,
}

/// An executor of all queues.
#[derive(Clone, Copy, Debug, Hash)]
struct Executor {
    is_busy: bool,
    /// The queues that it asked and in which it waits, one a bit.
    waits: u32,
}

/// A possible next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A submission with this many tasks arrives.
    Submit(usize),
    /// A request that waits arrives.
    Request,
    /// A request that does not wait arrives.
    Poll,
    /// The same events for another queue or priority, by the index of its load.
    SubmitTo(usize, usize),
    RequestOf(usize),
    PollOf(usize),
    /// The executor of all queues asks this one.
    Ask(u8),
    /// It has finished its task.
    Finish,
    /// A task that it gave back is submitted again, to this queue and priority.
    Again(usize),
    /// A recirculating packet arrives.
    Round(usize),
    /// A recirculating packet arrives, and will arrive once more.
    Double(usize),
    /// A recirculating packet is lost.
    Lose(usize),
    /// The switch gets another id.
    Replace,
    /// A moment passes.
    Moment,
    /// The control plane does its due work.
    Sweep,
}

/// A recirculating packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Flight {
    bytes: Vec<u8>,
    metadata: [u64; 2],
    passes: u8,
}

#[derive(Clone, Debug)]
struct State {
    falcon: Falcon,
    /// The packets in sorted order, so that states are equal however they were reached.
    flights: Vec<Flight>,
    submissions: Vec<u8>,
    requests: u8,
    polls: u8,
    more: Vec<Load>,
    executor: Option<Executor>,
    /// For each queue's priorities, the tasks that the executor gave back.
    returned: Vec<u8>,
    losses: u8,
    doubles: u8,
    replacements: u8,
    moments: u8,
    now: Instant,
    overwrites_only: bool,
    /// The number of accepted tasks.
    next_tid: u32,
    /// For each queue's priorities, the tasks that were accepted and not handed out: ticket and
    /// TID.
    outstanding: Vec<VecDeque<(u32, u32)>>,
}

/// The output of a pass, beside the registers.
#[derive(Clone, Debug, Default)]
struct Passed {
    round: Option<Flight>,
    /// The packet that left for an executor.
    reply: Option<(Asker, Reply)>,
    /// The packet that left for an owner.
    answer: Option<Submission>,
    notes: Vec<String>,
}

fn config(switch_id: u32) -> Config {
    Config {
        epoch: switch_id,
        group: GroupId(0),
        rack: 1,
        switch_id,
        switch_incarnation: 1,
        switch: SWITCH,
        kind: GroupKind::Workers,
        program: Program::Falcon,
        members: vec![Member { node: 1, incarnation: 1, addr: EXECUTOR }],
        joining: Vec::new(),
    }
}

impl frame::State for State {
    type Setup = Setup;
    type Action = Action;

    fn begin(setup: &Setup) -> Result<State, String> {
        let mut told = AgentConfig::new(Incarnation(1), SWITCH, SWITCH);
        (told.sections.queue, told.guards) = (setup.layout, setup.guards);
        let mut falcon = Falcon::load(&told.settings()).map_err(|error| error.to_string())?;
        falcon
            .install(Now::default(), &config(1))
            .map_err(|_| "it takes no workers".to_string())?;
        falcon.begin_at(setup.begin_at.0, setup.begin_at.1);
        let rings = usize::from(setup.layout.queues) * usize::from(setup.layout.priorities);
        Ok(State {
            falcon,
            flights: Vec::new(),
            submissions: setup.submissions.clone(),
            requests: setup.requests,
            polls: setup.polls,
            more: setup.more.clone(),
            executor: setup.executor.then_some(Executor { is_busy: false, waits: 0 }),
            returned: vec![0; rings],
            losses: setup.losses,
            doubles: setup.doubles,
            replacements: setup.replacements,
            overwrites_only: setup.overwrites_only,
            moments: setup.moments,
            now: Instant(MS),
            next_tid: 0,
            outstanding: vec![VecDeque::new(); rings],
        })
    }

    fn states_max(setup: &Setup) -> usize {
        setup.states_max
    }

    fn hash_state(&self, hasher: &mut FxHasher) {
        self.falcon.hash_state(hasher);
        self.flights.hash(hasher);
        (&self.submissions, self.requests, self.polls).hash(hasher);
        (&self.more, self.executor, &self.returned).hash(hasher);
        (self.losses, self.doubles, self.replacements, self.moments, self.now.0).hash(hasher);
        self.outstanding.hash(hasher);
    }

    fn actions(&self, setup: &Setup) -> Vec<Action> {
        let mut all = Vec::new();
        for (index, left) in self.submissions.iter().enumerate() {
            if *left > 0 {
                all.push(Action::Submit(index + 1));
            }
        }
        let asks = setup.asks_in_vain || self.outstanding.iter().any(|tasks| !tasks.is_empty());
        if self.requests > 0 && asks {
            all.push(Action::Request);
        }
        if self.polls > 0 && asks {
            all.push(Action::Poll);
        }
        for (index, load) in self.more.iter().enumerate() {
            let tasks = (1..).zip(&load.submissions).filter(|(_, left)| **left > 0);
            all.extend(tasks.map(|(tasks, _)| Action::SubmitTo(index, tasks)));
            if load.requests > 0 {
                all.push(Action::RequestOf(index));
            }
            if load.polls > 0 {
                all.push(Action::PollOf(index));
            }
        }
        if let Some(executor) = self.executor {
            let queues = (0..setup.layout.queues).filter(|queue| executor.waits >> queue & 1 == 0);
            match executor.is_busy {
                true => all.push(Action::Finish),
                false => all.extend(queues.map(Action::Ask)),
            }
            let returned = self.returned.iter().enumerate().filter(|(_, left)| **left > 0);
            all.extend(returned.map(|(ring, _)| Action::Again(ring)));
        }
        for (index, flight) in self.flights.iter().enumerate() {
            if index > 0 && self.flights[index - 1] == *flight {
                continue;
            }
            all.push(Action::Round(index));
            if self.doubles > 0 {
                all.push(Action::Double(index));
            }
            if self.losses > 0 {
                all.push(Action::Lose(index));
            }
        }
        if self.replacements > 0 {
            all.push(Action::Replace);
        }
        if self.moments > 0 && !self.falcon.waiting().is_empty() {
            all.push(Action::Moment);
        }
        if self.falcon.deadline().at <= self.now {
            all.push(Action::Sweep);
        }
        all
    }

    fn step(&mut self, action: Action, _: &Setup) -> Result<String, String> {
        let mut said = format!("{action:?}");
        match action {
            Action::Submit(tasks) => {
                self.submissions[tasks - 1] -= 1;
                said += &self.comes(submission((0, 0), tasks))?;
            }
            Action::Request => {
                self.requests -= 1;
                said += &self.comes(request(0, 1_000))?;
            }
            Action::Poll => {
                self.polls -= 1;
                said += &self.comes(request(0, 0))?;
            }
            Action::SubmitTo(load, tasks) => {
                let load = &mut self.more[load];
                load.submissions[tasks - 1] -= 1;
                let place = (load.queue, load.priority);
                said += &self.comes(submission(place, tasks))?;
            }
            Action::RequestOf(load) => {
                self.more[load].requests -= 1;
                said += &self.comes(request(self.more[load].queue, 1_000))?;
            }
            Action::PollOf(load) => {
                self.more[load].polls -= 1;
                said += &self.comes(request(self.more[load].queue, 0))?;
            }
            Action::Ask(queue) => {
                if let Some(executor) = &mut self.executor {
                    executor.waits |= 1 << queue;
                }
                said += &self.comes(request(queue, 1_000))?;
            }
            Action::Finish => {
                if let Some(executor) = &mut self.executor {
                    executor.is_busy = false;
                }
            }
            Action::Again(ring) => {
                self.returned[ring] -= 1;
                let priorities = usize::from(self.falcon.layout().priorities);
                let place = ((ring / priorities) as u8, (ring % priorities) as u8);
                said += &self.comes(submission(place, 1))?;
            }
            Action::Round(index) => {
                let flight = self.flights.remove(index);
                said += &self.comes(flight)?;
            }
            Action::Double(index) => {
                self.doubles -= 1;
                let flight = self.flights[index].clone();
                said += &self.comes(flight)?;
            }
            Action::Lose(index) => {
                self.losses -= 1;
                self.flights.remove(index);
            }
            Action::Replace => {
                self.replacements -= 1;
                let switch_id = 2 + u32::from(self.replacements);
                let done = self.falcon.install(Now::default(), &config(switch_id));
                done.map_err(|_| "it takes no other id".to_string())?;
                self.outstanding.iter_mut().for_each(VecDeque::clear);
            }
            Action::Moment => {
                self.moments -= 1;
                self.now = self.now.after(2 * MS);
            }
            Action::Sweep => {
                if let Some(mut injection) = self.falcon.upkeep(self.now) {
                    let bytes = injection.packet().to_vec();
                    said += &self.comes(Flight { bytes, metadata: [0; 2], passes: 0 })?;
                }
            }
        }
        Ok(said)
    }

    fn check(&self, _: &Setup) -> Result<(), String> {
        self.is_right()
    }
}

impl State {
    /// Handles an arriving packet, and compares its effect with the permitted ones.
    fn comes(&mut self, mut flight: Flight) -> Result<String, String> {
        name_first(&mut flight, self.next_tid);
        let before = Submission::parse(&flight.bytes).ok();
        let was_refused = Falcon::is_refused(Metadata(flight.metadata));
        let may_wait = Request::parse(&flight.bytes).is_ok_and(|request| request.wait_us > 0);
        let (queue, priority) = place_of(&flight);
        let ring = self.ring(queue, priority);
        let skipped = self.falcon.skipped(queue, priority);
        let passed = self.pass(flight)?;
        let after = passed.answer.clone().or_else(|| {
            passed.round.as_ref().and_then(|round| Submission::parse(&round.bytes).ok())
        });
        if let (Some(before), Some(after)) = (before, after) {
            self.accepts(&before, &after, passed.reply.is_some())?;
        }
        let is_refused = passed.answer.as_ref().is_some_and(|a| a.answer == Answer::Full)
            || passed.round.as_ref().is_some_and(|r| Falcon::is_refused(Metadata(r.metadata)));
        let room = self.falcon.room(queue, priority) as usize;
        let tasks = self.outstanding[ring].len();
        if !self.overwrites_only && is_refused && !was_refused && tasks + skipped < room {
            return Err(format!("refused with {tasks} tasks in the queue"));
        }
        match passed.reply {
            Some((_, Reply::Task(assigned))) => {
                let task = (assigned.ticket, assigned.task.tid);
                let rings = self.rings_of(assigned.queue);
                let next = rings.rev().find(|ring| !self.outstanding[*ring].is_empty());
                match next.and_then(|ring| self.outstanding[ring].pop_front()) {
                    Some(next) if next == task => {}
                    Some(_) if self.overwrites_only => {}
                    next => return Err(format!("{task:?} was handed out, and next was {next:?}")),
                }
                if let (Some(executor), Some(ring)) = (&mut self.executor, next) {
                    executor.waits &= !(1 << assigned.queue);
                    self.returned[ring] += u8::from(executor.is_busy);
                    executor.is_busy = true;
                }
            }
            Some((_, Reply::NoOp { answer, .. })) => {
                let (add, retrieve) = self.falcon.pointers_of(queue, 0);
                let waiting = retrieve.wrapping_sub(add) as i32;
                let tasks: usize = self.rings_of(queue).map(|r| self.outstanding[r].len()).sum();
                let is_wrong = match answer {
                    Answer::Empty => may_wait || tasks > 0,
                    Answer::Waiting => tasks > 0,
                    Answer::Full => waiting < self.falcon.room(queue, 0) as i32,
                    _ => true,
                };
                if is_wrong && !self.overwrites_only {
                    return Err(format!("{answer:?} with {tasks} tasks and {waiting} executors"));
                }
            }
            None => {}
        }
        if let (Some((_, Reply::NoOp { answer, .. })), Some(executor)) =
            (&passed.reply, &mut self.executor)
            && *answer != Answer::Waiting
        {
            executor.waits &= !(1 << queue);
        }
        frame::add_in_order(&mut self.flights, passed.round);
        Ok(passed.notes.concat())
    }

    fn ring(&self, queue: u8, priority: u8) -> usize {
        usize::from(queue) * usize::from(self.falcon.layout().priorities) + usize::from(priority)
    }

    /// The rings of a queue, the most urgent last.
    fn rings_of(&self, queue: u8) -> std::ops::Range<usize> {
        self.ring(queue, 0)..self.ring(queue + 1, 0)
    }

    /// The executors that wait in a queue, and until when.
    fn waiting(&self, queue: u8) -> Vec<(u64, u32, Instant)> {
        match self.falcon.layout().queues {
            1 => self.falcon.waiting(),
            2.. | 0 => self.falcon.waiting_in(queue),
        }
    }

    /// The number of those that have not waited too long.
    fn live(&self, queue: u8) -> usize {
        self.waiting(queue).iter().filter(|w| w.2 > self.now).count()
    }

    /// Notes that a pass added a task, if the packet has one more ticket than before.
    fn accepts(
        &mut self,
        before: &Submission,
        after: &Submission,
        handed: bool,
    ) -> Result<(), String> {
        if after.tickets.len() == before.tickets.len() {
            return Ok(());
        }
        let ticket = *after.tickets.last().ok_or("a ticket was taken back")?;
        let taken = before.tasks.len() - after.tasks.len();
        let task = if handed { after.tasks.first() } else { before.tasks.get(taken - 1) };
        let tid = task.ok_or("a ticket without a task")?.tid;
        let others = self.rings_of(after.queue).any(|ring| !self.outstanding[ring].is_empty());
        if handed && others {
            return Err(format!("task {tid} overtook {:?}", self.outstanding));
        }
        let ring = self.ring(after.queue, after.priority);
        self.outstanding[ring].push_back((ticket, tid));
        self.next_tid += 1;
        Ok(())
    }

    /// One pass of one packet.
    fn pass(&mut self, flight: Flight) -> Result<Passed, String> {
        let Flight { mut bytes, metadata, passes } = flight;
        let ports = PortTable::default();
        let now = Now { instant: self.now, unix_ms: 0 };
        let first = Ingress::first(now, SWITCH, &ports);
        let ingress = Ingress { passes, metadata: Metadata(metadata), ..first };
        let mut passed = Passed::default();
        let left = |passed: &mut Passed, to: Addr, bytes: &[u8]| {
            if to == OWNER {
                let answer = Submission::parse(bytes).map_err(|error| error.to_string())?;
                passed.notes.push(format!(": {:?}, tickets {:?}", answer.answer, answer.tickets));
                passed.answer = Some(answer);
            } else {
                let (asker, reply) = Reply::parse(bytes).map_err(|error| error.to_string())?;
                passed.notes.push(match &reply {
                    Reply::Task(a) => format!(": task {} to {}", a.task.tid, asker.number),
                    Reply::NoOp { answer, .. } => format!(": {answer:?}"),
                });
                passed.reply = Some((asker, reply));
            }
            Ok::<(), String>(())
        };
        let round = |passed: &mut Passed, bytes: &[u8], metadata: Metadata| {
            passed.notes.push(": comes round".into());
            let bytes = bytes.to_vec();
            // A limit of recirculations is not modelled: see the program's own tests.
            passed.round = Some(Flight { bytes, metadata: metadata.0, passes: 1 });
        };
        match self.falcon.process(&ingress, &mut bytes) {
            Verdict::Drop(reason) => passed.notes.push(format!(": {reason:?}")),
            Verdict::Forward { to, size_bytes } => left(&mut passed, to, &bytes[..size_bytes])?,
            Verdict::Mirror { to, copy_bytes, metadata, size_bytes } => {
                let mut copy = bytes[..copy_bytes].to_vec();
                self.falcon.egress(&Copied { index: 0, port: None, to }, &mut copy);
                left(&mut passed, to, &copy)?;
                round(&mut passed, &bytes[..size_bytes], metadata);
            }
            Verdict::Recirculate { metadata, size_bytes } => {
                round(&mut passed, &bytes[..size_bytes], metadata);
            }
            other => return Err(format!("no verdict of this program: {other:?}")),
        }
        Ok(passed)
    }

    /// Whether the state satisfies all conditions.
    fn is_right(&self) -> Result<(), String> {
        let mut slots = self.falcon.tasks();
        for (ticket, tid) in self.outstanding.iter().flatten() {
            let Some(at) = slots.iter().position(|slot| slot == tid) else {
                return Err(format!("task {tid} with ticket {ticket} is not in its slot any more"));
            };
            slots.swap_remove(at);
        }
        if self.overwrites_only {
            return Ok(());
        }
        for queue in 0..self.falcon.layout().queues {
            let waiting = self.waiting(queue);
            let has_tasks = self.rings_of(queue).any(|ring| !self.outstanding[ring].is_empty());
            if has_tasks && !waiting.is_empty() {
                return Err(format!("{} executors wait beside tasks", waiting.len()));
            }
        }
        self.hands_out_all()?;
        for queue in 0..self.falcon.layout().queues {
            for priority in 0..self.falcon.layout().priorities {
                self.fills_up(queue, priority)?;
            }
        }
        Ok(())
    }

    /// Checks that executors would get every task in order if nothing else arrived.
    fn hands_out_all(&self) -> Result<(), String> {
        let mut rest = State { flights: Vec::new(), executor: None, ..self.clone() };
        for queue in 0..self.falcon.layout().queues {
            let tasks: usize = self.rings_of(queue).map(|ring| self.outstanding[ring].len()).sum();
            for _ in 0..tasks {
                rest.alone(request(queue, 0)).map_err(|why| format!("then {why}"))?;
            }
        }
        match rest.outstanding.iter().flatten().next() {
            Some((_, tid)) => Err(format!("task {tid} is stranded")),
            None => Ok(()),
        }
    }

    /// Checks that waiting executors would get a task each, and the rest would fill the queue, if
    /// nothing else arrived.
    fn fills_up(&self, queue: u8, priority: u8) -> Result<(), String> {
        let mut rest = State { flights: Vec::new(), executor: None, ..self.clone() };
        let (ring, waiting) = (self.ring(queue, priority), self.live(queue));
        let (tasks, skipped) = (self.outstanding[ring].len(), self.falcon.skipped(queue, priority));
        let room = self.falcon.room(queue, priority) as usize - tasks - skipped + waiting;
        // If a ticket without a task is not skipped, neither are the next ones until an executor
        // reaches it.
        let all_waiting = self.waiting(queue).len();
        let at_least = if skipped > 0 { room.saturating_sub(all_waiting) } else { room };
        for _ in 0..room {
            let done = rest.alone(submission((queue, priority), 1));
            if skipped == 0 {
                done.map_err(|why| format!("then {why}"))?;
            }
        }
        let accepted = rest.outstanding[ring].len() + waiting;
        if accepted < tasks + at_least || accepted > tasks + room || rest.live(queue) > 0 {
            return Err(format!("{accepted} tasks fit where there is room for {room}"));
        }
        Ok(())
    }

    /// Handles a packet until nothing is recirculated any more.
    fn alone(&mut self, flight: Flight) -> Result<(), String> {
        self.comes(flight)?;
        for _ in 0..PASSES_MAX {
            let Some(flight) = self.flights.pop() else { return Ok(()) };
            self.comes(flight)?;
        }
        Err("it comes round for ever".into())
    }
}

/// Tasks have no TID before one is added: the order in which submissions arrive makes no difference
/// to the state.
fn submission((queue, priority): (u8, u8), tasks: usize) -> Flight {
    let tasks = vec![Task::default(); tasks];
    let mut bytes = Vec::new();
    let said = Submission { uid: SessionId(1), owner: OWNER, tasks, ..Submission::default() };
    Submission { queue, priority, ..said }.emit(&mut bytes);
    Flight { bytes, metadata: [0; 2], passes: 0 }
}

/// The queue and the priority that a packet is for.
fn place_of(flight: &Flight) -> (u8, u8) {
    match (Submission::parse(&flight.bytes), Request::parse(&flight.bytes)) {
        (Ok(packet), _) => (packet.queue, packet.priority),
        (_, Ok(request)) => (request.queue, 0),
        (Err(_), Err(_)) => (0, 0),
    }
}

/// Gives the task that may be added now this TID.
fn name_first(flight: &mut Flight, tid: u32) {
    let Ok(mut packet) = Submission::parse(&flight.bytes) else { return };
    let first = usize::from(Falcon::is_done_with_first(Metadata(flight.metadata)));
    for (index, task) in packet.tasks.iter_mut().enumerate() {
        task.tid = if index == first { tid } else { 0 };
    }
    packet.emit(&mut flight.bytes);
}

fn request(queue: u8, wait_us: u32) -> Flight {
    let asker = Asker { session: SessionId(1), number: 1, slot: 0, addr: EXECUTOR };
    let mut bytes = Vec::new();
    Request { asker, queue, wait_us, ..Request::default() }.emit(&mut bytes);
    Flight { bytes, metadata: [0; 2], passes: 0 }
}

/// Explores all states.
///
/// # Errors
/// The switch cannot load such a queue.
pub fn explore(setup: &Setup) -> Result<Explored, String> {
    frame::explore::<State>(setup)
}
