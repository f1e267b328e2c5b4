//! Falcon's scheduler: a circular queue of tasks in registers, from which each task goes to the
//! next free executor (Falcon §3.3).
//!
//! A JOB_SUBMISSION adds one task in each pass, and is recirculated for the next one (§3.3.3). Its
//! answer has each task's ticket, which is the value that add_ptr had, and the tasks for which
//! there was no room. A REQUEST takes the next task, or waits in the slot of its own ticket until a
//! task gets the same ticket (late binding): then a copy of the submission leaves as the executor's
//! TASK_ASSIGNMENT. An executor that waited too long is skipped, and the control plane removes it.
//!
//! There is a queue for each class of executors, others for nodes, and four priorities in each:
//! none blocks another. A submission and a request name their queue. An executor of several classes
//! asks one queue after the other, and may wait in all of them; when it gets a task from one, it
//! still waits in the others.
//!
//! Read `pointers.rs` first, where the forms of add_ptr and retrieve_ptr are compared, then
//! `stages.rs`.

mod entry;
mod layout;
mod pointers;
mod stages;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::hash::{Hash as _, Hasher};

use concord_core::machine::Deadline;
use concord_core::{Guard, Guards, Instant, Now, SwitchId};
use concord_pisa::{Metadata, Report, Verdict};
use concord_wire::control::Config;
use concord_wire::falcon::{
    Answer, HANDED_BYTES, OP_ASSIGNMENT, OP_NOOP, OP_REQUEST, OP_SUBMIT, OP_SUBMITTED, OP_SWEEP,
    REQUEST_BYTES, Reply, Request, SubmissionMut, Sweep, TASKS_MAX, hand_over,
};
use concord_wire::{Addr, Kind, WireError, op};

use crate::program::{
    Copied, Count, Gauge, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram,
    Takes,
};

use entry::{Entry, Waiter, Words};
pub use layout::{Form, QueueError, QueueLayout, SLOTS_MAX, SLOTS_MIN};
use pointers::{Repair, Which, ahead};
use stages::{Ask, Phv, Side, Stages};

/// How often a packet is recirculated at most: once for each of its tasks, and once for the answer.
const ROUNDS_MAX: u8 = TASKS_MAX as u8;
/// The longest time that an executor waits in the switch, in ns, whatever it asks for.
const WAIT_NS_MAX: u64 = 10 * concord_core::SEC;

/// The first queue, as a bit of `waiting_queues`.
const FIRST_QUEUE: u32 = 1;

/// The reason why a packet ends at the switch. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The packet is not one of Falcon's.
    Malformed(WireError),
    /// The switch has no configuration, or no longer has one.
    Unconfigured,
    /// The packet was recirculated under another switch id: its tickets are of a queue that is
    /// gone.
    OtherIncarnation,
    /// The packet is not for a switch.
    Misdirected,
    /// The packet does not say where its answer goes.
    NoAddress,
    /// The packet's work is done.
    Consumed,
}

concord_core::counters! {
    /// Counts of tasks and requests by their fate.
    pub struct FalconCounters {
        /// Tasks added to a queue of the switch.
        tasks_added,
        /// Tasks handed at once to an executor that waited for one.
        tasks_handed,
        /// Tasks that an executor's request took from a queue.
        tasks_retrieved,
        /// Submissions answered.
        submissions,
        /// Submissions that were not added completely because the queue was full; owners submit the
        /// rest again. A steady rise means more tasks than executors can run, or a queue too small.
        submissions_full,
        /// Submissions that were not added completely because their packet had reached the maximum
        /// number of recirculations; owners submit the rest again.
        submissions_rounds,
        /// Submissions and requests refused because they name a queue or priority that this switch
        /// does not have.
        no_queue,
        /// Submissions refused because they name another switch id: they were made for an earlier
        /// switch.
        submissions_other_switch,
        /// Requests that began to wait in the switch for a task.
        requests_waiting,
        /// Requests that found no task, and did not want to wait.
        requests_empty,
        /// Requests that found no task, and no room to wait.
        requests_full,
        /// Executors whose wait was too old when a task came for them; the task went elsewhere.
        waits_expired,
        /// Executors removed by the control plane because their wait was too old.
        waits_swept,
        /// Tickets at which neither a task nor an executor waited; they were skipped.
        tickets_missing,
        /// Passes that found the slot of their ticket in an unexpected state.
        slots_occupied,
        /// Queued tasks that were overwritten, which only the pointers as the paper prints them do;
        /// must stay 0.
        tasks_overwritten,
        /// Repairs of a queue pointer, each by a recirculated packet (Falcon §3.3).
        repairs,
        /// Packets dropped because they were still being recirculated when the switch id changed.
        dropped_other_life,
        /// Packets dropped because the switch has no configuration.
        dropped_unconfigured,
        /// Packets dropped because their operation is not for a switch.
        dropped_misdirected,
        /// Packets dropped because they do not contain the address for their answer.
        dropped_no_address,
        /// Sweeps of the control plane, which end at the switch by design.
        consumed,
        /// Packets dropped because they are malformed.
        malformed,
    }
}

/// The state that a packet carries from one pass to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Round {
    /// Whether the first task of its list is done.
    pop: bool,
    /// Whether the queue was full.
    full: bool,
    /// The pointer that it repairs.
    repair: Option<Repair>,
}

const POP: u64 = 1;
const FULL: u64 = 2;
const REPAIR_ADD: u64 = 4;
const REPAIR_RETRIEVE: u64 = 8;

impl Round {
    #[inline]
    fn metadata(self, switch_id: u32) -> Metadata {
        let mut flags = 0;
        if self.pop {
            flags |= POP;
        }
        if self.full {
            flags |= FULL;
        }
        let (mut generation, mut value) = (0, 0);
        if let Some(repair) = self.repair {
            flags |= match repair.which {
                Which::Add => REPAIR_ADD,
                Which::Retrieve => REPAIR_RETRIEVE,
            };
            (generation, value) = (repair.generation, repair.value);
        }
        let words = [u64::from(generation) << 32 | flags, u64::from(value) << 32];
        Metadata([words[0], words[1] | u64::from(switch_id)])
    }

    /// Decodes the state, and the switch id under which the packet was recirculated.
    #[inline]
    fn of(metadata: Metadata) -> (Round, u32) {
        let Metadata([first, second]) = metadata;
        let which = match first & (REPAIR_ADD | REPAIR_RETRIEVE) {
            REPAIR_ADD => Some(Which::Add),
            REPAIR_RETRIEVE => Some(Which::Retrieve),
            _ => None,
        };
        let (generation, value) = ((first >> 32) as u32, (second >> 32) as u32);
        let repair = which.map(|which| Repair { which, generation, value });
        let (pop, full) = (first & POP != 0, first & FULL != 0);
        (Round { pop, full, repair }, second as u32)
    }
}

/// Falcon's switch program.
#[derive(Clone, Debug)]
pub struct Falcon {
    layout: QueueLayout,
    guards: Guards,
    /// The switch's own address: only packets from it are sweeps.
    addr: Addr,
    /// `None` until there is a configuration.
    switch_id: Option<SwitchId>,
    stages: Stages,
    /// Read by the control plane: a bit for each queue in which an executor may wait. Always set
    /// for the first queue, where in the form `Repair` retrieve_ptr may be ahead without a waiting
    /// executor.
    waiting_queues: u32,
    counters: FalconCounters,
}

impl Load for Falcon {
    fn load(settings: &Settings) -> Result<Falcon, LoadError> {
        let layout = settings.sections.queue;
        layout.check()?;
        Ok(Falcon {
            layout,
            guards: settings.guards,
            addr: settings.addr,
            switch_id: None,
            stages: Stages::new(layout, settings.guards),
            waiting_queues: FIRST_QUEUE,
            counters: FalconCounters::default(),
        })
    }
}

/// The data plane.
impl Falcon {
    fn drop(&mut self, reason: DropReason) -> Verdict<DropReason> {
        let c = &mut self.counters;
        match reason {
            DropReason::Malformed(_) => c.malformed += 1,
            DropReason::Unconfigured => c.dropped_unconfigured += 1,
            DropReason::OtherIncarnation => c.dropped_other_life += 1,
            DropReason::Misdirected => c.dropped_misdirected += 1,
            DropReason::NoAddress => c.dropped_no_address += 1,
            DropReason::Consumed => c.consumed += 1,
        }
        Verdict::Drop(reason)
    }

    /// One pass of a JOB_SUBMISSION: the first task of its list is added, or the submission is
    /// answered.
    #[inline]
    fn on_submit(
        &mut self,
        ingress: &Ingress<'_>,
        switch_id: SwitchId,
        round: Round,
        bytes: &mut [u8],
    ) -> Result<Verdict<DropReason>, WireError> {
        let mut packet = SubmissionMut::parse(bytes)?;
        if packet.owner().port == 0 {
            return Ok(self.drop(DropReason::NoAddress));
        }
        if round.pop {
            packet = packet.pop_task();
        }
        if ingress.passes == 0 {
            packet.check_tasks()?;
        }
        let place = packet.queue();
        if !self.has(place) {
            let phv = Phv::new(Ask::Look, Words::default(), None);
            return Ok(self.answer(packet, Answer::NoQueue, switch_id, &phv));
        }
        let is_other = packet.switch_id() != 0 && packet.switch_id() != switch_id.0;
        // As printed, a repair is a packet of its own.
        let is_repair = round.repair.is_some() && self.layout.form == Form::Printed;
        let is_last = ingress.passes >= ROUNDS_MAX;
        let looks = packet.left() == 0 || is_other || round.full || is_repair || is_last;
        let (ask, words) = if looks {
            (Ask::Look, Words::default())
        } else {
            let (uid, jid, owner) = (packet.uid(), packet.jid(), packet.owner());
            (Ask::Add, Entry { uid, jid, owner, task: packet.first()? }.words())
        };
        let mut phv = Phv::of(place, ask, words, round.repair);
        self.stages.run(&mut phv);
        self.counters.tasks_overwritten += u64::from(phv.overwrote);
        let next = match phv.side {
            Side::None if is_repair && packet.left() > 0 && !round.full && !is_last => {
                Round::default()
            }
            Side::None => {
                let answer = if is_other {
                    Answer::OtherSwitch
                } else if round.full {
                    Answer::Full
                } else if packet.left() > 0 {
                    Answer::Rounds
                } else {
                    Answer::Added
                };
                return Ok(self.answer(packet, answer, switch_id, &phv));
            }
            Side::Put => {
                self.counters.tasks_added += 1;
                packet.push_ticket(phv.ticket);
                packet = packet.pop_task();
                if packet.left() == 0 && phv.fix.is_none() {
                    phv.add = phv.add.wrapping_add(1);
                    return Ok(self.answer(packet, Answer::Added, switch_id, &phv));
                }
                Round { repair: phv.fix, ..Round::default() }
            }
            Side::Hand => {
                let waiter = Waiter::of(&phv.words);
                if waiter.until > ingress.at || !self.guards.on(Guard::WaitExpiry) {
                    return Ok(self.hand(packet, &waiter, switch_id, &phv));
                }
                self.counters.waits_expired += 1;
                Round { repair: phv.fix, ..Round::default() }
            }
            Side::Full if phv.fix.is_none() => {
                return Ok(self.answer(packet, Answer::Full, switch_id, &phv));
            }
            Side::Full => Round { full: true, repair: phv.fix, ..Round::default() },
            Side::Repairing => Round { repair: phv.fix, ..Round::default() },
            Side::Missing => {
                self.counters.tickets_missing += 1;
                Round::default()
            }
            Side::Occupied | Side::Take | Side::Wait | Side::Empty => {
                self.counters.slots_occupied += 1;
                Round::default()
            }
        };
        self.counters.repairs += u64::from(next.repair.is_some());
        let size_bytes = packet.size_bytes();
        Ok(Verdict::Recirculate { metadata: next.metadata(switch_id.0), size_bytes })
    }

    /// Turns the submission into its answer. §3.3.3: "The error message contains the list of tasks
    /// not added."
    #[inline]
    fn answer(
        &mut self,
        mut packet: SubmissionMut<'_>,
        answer: Answer,
        switch_id: SwitchId,
        phv: &Phv,
    ) -> Verdict<DropReason> {
        self.counters.submissions += 1;
        match answer {
            Answer::Full => self.counters.submissions_full += 1,
            Answer::Rounds => self.counters.submissions_rounds += 1,
            Answer::OtherSwitch => self.counters.submissions_other_switch += 1,
            Answer::NoQueue => self.counters.no_queue += 1,
            Answer::None | Answer::Added | Answer::Waiting | Answer::Empty => {}
        }
        packet.answer(answer, switch_id.0, phv.retrieve, phv.add);
        Verdict::Forward { to: packet.owner(), size_bytes: packet.size_bytes() }
    }

    /// Hands the first task to a waiting executor, and recirculates the rest.
    #[inline]
    fn hand(
        &mut self,
        mut packet: SubmissionMut<'_>,
        waiter: &Waiter,
        switch_id: SwitchId,
        phv: &Phv,
    ) -> Verdict<DropReason> {
        self.counters.tasks_handed += 1;
        self.counters.repairs += u64::from(phv.fix.is_some());
        packet.push_ticket(phv.handed);
        packet.set_handed(&waiter.asker);
        Verdict::Mirror {
            to: waiter.asker.addr,
            copy_bytes: HANDED_BYTES,
            metadata: Round { pop: true, repair: phv.fix, ..Round::default() }
                .metadata(switch_id.0),
            size_bytes: packet.size_bytes(),
        }
    }

    /// A REQUEST: Listing 2, and late binding.
    #[inline]
    fn on_request(
        &mut self,
        ingress: &Ingress<'_>,
        switch_id: SwitchId,
        bytes: &mut [u8],
    ) -> Result<Verdict<DropReason>, WireError> {
        let request = Request::parse(bytes)?;
        let asker = request.asker;
        if asker.addr.port == 0 {
            return Ok(self.drop(DropReason::NoAddress));
        }
        let queue = request.queue;
        if !self.has((queue, 0)) {
            self.counters.no_queue += 1;
            Reply::NoOp { answer: Answer::NoQueue, ticket: 0, switch_id }.put(bytes)?;
            return Ok(Verdict::Forward { to: asker.addr, size_bytes: REQUEST_BYTES });
        }
        let wait_ns = (u64::from(request.wait_us) * concord_core::US).min(WAIT_NS_MAX);
        let until = ingress.at.after(wait_ns);
        let may_wait = wait_ns > 0 && self.layout.form != Form::Printed;
        let ask = match ingress.passes {
            0..ROUNDS_MAX => Ask::Retrieve { may_wait },
            ROUNDS_MAX.. => Ask::Look,
        };
        let mut phv = Phv::of((queue, 0), ask, Waiter { asker, until }.words(), None);
        self.stages.run(&mut phv);
        let noop = |answer| Reply::NoOp { answer, ticket: phv.ticket, switch_id };
        let c = &mut self.counters;
        let reply = match phv.side {
            Side::Take => {
                c.tasks_retrieved += 1;
                Reply::Task(Entry::of(&phv.words).assigned(phv.ticket, switch_id, queue))
            }
            Side::Wait => {
                c.requests_waiting += 1;
                self.waiting_queues |= 1 << queue;
                noop(Answer::Waiting)
            }
            Side::Missing => {
                c.tickets_missing += 1;
                let metadata = Round::default().metadata(switch_id.0);
                return Ok(Verdict::Recirculate { metadata, size_bytes: REQUEST_BYTES });
            }
            Side::Full | Side::Occupied => {
                c.requests_full += 1;
                noop(Answer::Full)
            }
            Side::None | Side::Empty | Side::Put | Side::Hand | Side::Repairing => {
                c.requests_empty += 1;
                noop(Answer::Empty)
            }
        };
        reply.put(bytes)?;
        Ok(Verdict::Forward { to: asker.addr, size_bytes: REQUEST_BYTES })
    }

    /// A packet of the switch itself: removes an executor that waited too long.
    fn on_sweep(
        &mut self,
        ingress: &Ingress<'_>,
        switch_id: SwitchId,
        bytes: &[u8],
    ) -> Result<Verdict<DropReason>, WireError> {
        let sweep = Sweep::parse(bytes)?;
        let is_own = ingress.sender == self.addr && sweep.switch_id == switch_id;
        if !is_own || !self.has((sweep.queue, 0)) {
            return Ok(self.drop(DropReason::Misdirected));
        }
        let mut phv = Phv::of((sweep.queue, 0), Ask::Sweep(sweep.ticket), Words::default(), None);
        self.stages.run(&mut phv);
        match phv.side {
            Side::Hand => self.counters.waits_swept += 1,
            Side::Missing => self.counters.tickets_missing += 1,
            _ => {}
        }
        Ok(self.drop(DropReason::Consumed))
    }
}

/// The view of the control plane.
impl Falcon {
    /// The program's counters.
    #[must_use]
    pub fn counters(&self) -> &FalconCounters {
        &self.counters
    }

    /// The queue's size and form.
    #[must_use]
    pub fn layout(&self) -> &QueueLayout {
        &self.layout
    }

    /// Whether this queue and priority exist.
    #[inline]
    fn has(&self, (queue, priority): (u8, u8)) -> bool {
        queue < self.layout.queues && priority < self.layout.priorities
    }

    /// add_ptr and retrieve_ptr of the first queue's lowest priority.
    #[must_use]
    pub fn pointers(&self) -> (u32, u32) {
        self.stages.pointers.peek(0, 0)
    }

    /// add_ptr and retrieve_ptr of a queue's priority.
    #[must_use]
    pub fn pointers_of(&self, queue: u8, priority: u8) -> (u32, u32) {
        self.stages.pointers.peek(queue, priority)
    }

    /// The number of tickets of a queue's priority that have no task, because it was handed to a
    /// waiting executor, and that are not skipped yet.
    #[must_use]
    pub fn skipped(&self, queue: u8, priority: u8) -> usize {
        let (add, retrieve) = self.stages.pointers.peek(queue, priority);
        if priority == 0 { 0 } else { self.stages.skipped(queue, priority, add, retrieve) }
    }

    /// Whether a pointer differs from its true value until a repair corrects it.
    #[must_use]
    pub fn is_repairing(&self) -> bool {
        self.stages.pointers.is_repairing()
    }

    /// The TIDs of the tasks in slots.
    #[must_use]
    pub fn tasks(&self) -> Vec<u32> {
        let (tasks, _) = self.stages.occupied();
        tasks.iter().map(|index| Entry::of(&self.stages.peek(*index)).task.tid).collect()
    }

    /// The executors that wait in slots: session, request number, and until when they wait.
    #[must_use]
    pub fn waiting(&self) -> Vec<(u64, u32, Instant)> {
        let (_, waiting) = self.stages.occupied();
        let waiter = |index: &u32| Waiter::of(&self.stages.peek(*index));
        let who = |w: Waiter| (w.asker.session.0, w.asker.number, w.until);
        waiting.iter().map(waiter).map(who).collect()
    }

    /// The executors that wait in a queue, longest first: session, request number, and until when
    /// they wait.
    #[must_use]
    pub fn waiting_in(&self, queue: u8) -> Vec<(u64, u32, Instant)> {
        let (add, retrieve) = self.stages.pointers.peek(queue, 0);
        let count = u32::try_from(ahead(retrieve, add)).unwrap_or(0);
        let tickets = (0..count).map(|behind| add.wrapping_add(behind));
        let waiter = |ticket| self.stages.waits(queue, ticket).map(|words| Waiter::of(&words));
        let who = |w: Waiter| (w.asker.session.0, w.asker.number, w.until);
        tickets.filter_map(waiter).map(who).collect()
    }

    /// The capacity of a queue's priority, in tasks.
    #[must_use]
    pub fn room(&self, queue: u8, priority: u8) -> u32 {
        self.layout.capacity.min(self.layout.ring(queue, priority).slots)
    }

    /// For tests: sets all pointers as if that many tasks had been added and retrieved.
    pub fn begin_at(&mut self, add_ptr: u32, retrieve_ptr: u32) {
        self.stages.pointers.begin_at(add_ptr, retrieve_ptr);
    }

    /// For explorers: hashes all that the program's next steps depend on. The words of empty slots
    /// are not included.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        self.switch_id.hash(hasher);
        self.stages.hash_state(hasher);
    }

    /// For explorers: whether a recirculated packet with this metadata was refused because the
    /// queue was full.
    #[must_use]
    pub fn is_refused(metadata: Metadata) -> bool {
        Round::of(metadata).0.full
    }

    /// For explorers: whether a recirculated packet with this metadata is done with the first task
    /// of its list.
    #[must_use]
    pub fn is_done_with_first(metadata: Metadata) -> bool {
        Round::of(metadata).0.pop
    }

    /// The ticket of the executor that waits longest in a queue, and until when it waits; the time
    /// is zero if no executor waits with that ticket.
    fn head_of(&self, queue: u8) -> Option<(u32, Instant)> {
        let (add, retrieve) = self.stages.pointers.peek(queue, 0);
        let is_there = self.layout.form != Form::Printed && ahead(retrieve, add) > 0;
        if self.switch_id.is_none() || !is_there || self.stages.pointers.is_repairing() {
            return None;
        }
        let waiter = self.stages.waits(queue, add);
        Some((add, waiter.map_or(Instant(0), |words| Waiter::of(&words).until)))
    }

    /// Of the executors that wait longest in their queues, the one whose wait ends first: its
    /// queue, its ticket, and when.
    fn head(&self) -> Option<(u8, u32, Instant)> {
        let mut left = self.waiting_queues;
        let mut first: Option<(u8, u32, Instant)> = None;
        while left != 0 {
            let queue = left.trailing_zeros() as u8;
            left &= left - 1;
            if let Some((ticket, until)) = self.head_of(queue)
                && first.is_none_or(|first| until < first.2)
            {
                first = Some((queue, ticket, until));
            }
        }
        first
    }
}

impl SwitchProgram for Falcon {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        if kind == Kind::Falcon { Takes::Data } else { Takes::Nothing }
    }

    /// A new switch id begins with an empty queue: owners submit again the tasks that have not
    /// begun.
    fn install(&mut self, _: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        if config.members.is_empty() {
            return Err(Refused);
        }
        let switch_id = SwitchId(config.switch_id);
        if self.switch_id != Some(switch_id) {
            self.stages.reset();
            self.waiting_queues = FIRST_QUEUE;
        }
        self.switch_id = Some(switch_id);
        Ok(None)
    }

    fn uninstall(&mut self) {
        self.switch_id = None;
        self.stages.reset();
        self.waiting_queues = FIRST_QUEUE;
    }

    #[inline]
    fn process(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let Some(switch_id) = self.switch_id else {
            return self.drop(DropReason::Unconfigured);
        };
        let (round, since) = Round::of(ingress.metadata);
        if ingress.passes > 0 && since != switch_id.0 && self.guards.on(Guard::RoundSwitch) {
            return self.drop(DropReason::OtherIncarnation);
        }
        let done = match op(bytes) {
            OP_SUBMIT => self.on_submit(ingress, switch_id, round, bytes),
            OP_REQUEST => self.on_request(ingress, switch_id, bytes),
            OP_SWEEP => self.on_sweep(ingress, switch_id, bytes),
            OP_SUBMITTED | OP_ASSIGNMENT | OP_NOOP => Ok(self.drop(DropReason::Misdirected)),
            _ => Err(WireError::Op),
        };
        done.unwrap_or_else(|error| self.drop(DropReason::Malformed(error)))
    }

    fn rewrites_copies(&self) -> bool {
        true
    }

    /// Turns the copy of a submission whose first task was handed over into the executor's
    /// assignment.
    fn egress(&mut self, copy: &Copied, packet: &mut [u8]) {
        let switch_id = self.switch_id.unwrap_or_default();
        // Only copies that `hand` made come here.
        if let Err(error) = hand_over(packet, switch_id.0, copy.to) {
            self.malformed(error);
        }
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.drop(DropReason::Malformed(error));
    }

    fn upkeep(&mut self, now: Instant) -> Option<Injection> {
        let others = (1..self.layout.queues).filter(|queue| self.waiting_queues >> queue & 1 == 1);
        let quiet = others.filter(|queue| self.head_of(*queue).is_none());
        self.waiting_queues &= !quiet.fold(0, |queues, queue| queues | 1 << queue);
        let (queue, ticket, until) = self.head()?;
        let switch_id = self.switch_id?;
        (until <= now).then(|| Injection::new(&Sweep { ticket, switch_id, queue }.bytes()))
    }

    fn deadline(&self) -> Deadline {
        self.head().map_or(Deadline::NONE, |(_, _, at)| Deadline { at, reason: "a request's wait" })
    }

    fn gauges(&self) -> Vec<Gauge> {
        let QueueLayout { queues, priorities, capacity, .. } = self.layout;
        let positive = |value: i32| u64::try_from(value).unwrap_or(0);
        let (mut tasks, mut executors, mut room) = (0, 0, 0);
        for (queue, priority) in
            (0..queues).flat_map(|queue| (0..priorities).map(move |priority| (queue, priority)))
        {
            let (add, retrieve) = self.stages.pointers.peek(queue, priority);
            tasks += positive(ahead(add, retrieve));
            executors += positive(ahead(retrieve, add));
            room += u64::from(capacity.min(self.layout.ring(queue, priority).slots));
        }
        let gauge = |name, help, value| Gauge { name, help, value };
        alloc::vec![
            gauge("queue_tasks", "Tasks in the queues.", tasks),
            gauge(
                "queue_executors",
                "Executors that wait for a task, each once for each of its classes.",
                executors
            ),
            gauge("queue_capacity", "Tasks that the queues have room for.", room),
        ]
    }

    fn counts(&self) -> Vec<Count> {
        self.counters.each().collect()
    }

    fn describe(&self) -> Report {
        let recirculations_max = u32::from(ROUNDS_MAX);
        Report { recirculations_max, ..Report::new("falcon", self.stages.report()) }
    }
}
