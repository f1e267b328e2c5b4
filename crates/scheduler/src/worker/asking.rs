//! A worker's requests for tasks to the switch.

use alloc::vec::Vec;

use concord_core::{Addr, Guard, Instant, Sink, SwitchId, US};
use concord_wire::falcon::{Answer, Asker, Assigned, CLASSES_MAX, Reply, Request, TaskFlags};
use concord_wire::tasks::{Attempt, TaskMessage};

use super::slots::{InUse, Running, Slot};
use super::{REPORTS_MAX, Work, Worker};

/// The part that deals with the switch.
impl Worker {
    pub(super) fn may_ask(&self) -> bool {
        let has_room =
            self.reports.len() < REPORTS_MAX && self.report_bytes < self.config.report_bytes_max;
        !self.is_retiring && has_room
    }

    /// Lets every free executor that is due ask for a task; with prefetch, also those that run one.
    pub(super) fn ask(&mut self, now: Instant, sink: &mut impl Sink) {
        if !self.may_ask() {
            return;
        }
        while self.slots.in_use().may_ask(&self.config, self.ahead)
            && let Some(slot) = self.slots.idle(now)
        {
            self.ask_next(now, slot, sink);
            if matches!(self.slots[slot], Slot::Idle { until } if until <= now) {
                return;
            }
        }
    }

    /// Begins to ask the queues in which the executor does not wait, the highest first.
    fn ask_next(&mut self, now: Instant, slot: usize, sink: &mut impl Sink) {
        let waits = self.has_executor_for(slot);
        self.ask_queue(now, slot, u32::MAX, waits, sink);
    }

    /// Asks the highest of the queues `left` in which the executor does not wait. If there is none,
    /// it waits or pauses.
    fn ask_queue(
        &mut self,
        now: Instant,
        slot: usize,
        left: u32,
        waits: bool,
        sink: &mut impl Sink,
    ) {
        let tokens = &mut self.tokens[slot];
        tokens.retain(|(_, until)| *until > now);
        let waits_in = tokens.iter().fold(0, |queues, (queue, _)| queues | 1 << queue);
        let left = self.config.queues & left & !waits_in;
        if let Some(queue) = left.checked_ilog2() {
            return self.request(now, slot, queue as u8, 0, waits, sink);
        }
        let first = tokens.iter().map(|(_, until)| *until).min();
        let next = match first.filter(|_| waits) {
            Some(until) => Slot::Waiting { until },
            // It asked when all executors had a task. If one is free by now, it is to wait in all
            // of its queues.
            None if !waits && self.has_executor_for(slot) => Slot::Idle { until: now },
            None => Slot::Idle { until: now.after(self.config.poll_ns) },
        };
        self.slots.set(slot, next);
    }

    /// Whether an executor is free for the task of this slot. If not, the slot does not wait in the
    /// switch: no task is bound to a busy executor while another one is free.
    fn has_executor_for(&self, slot: usize) -> bool {
        let InUse { asking, held, started } = self.slots.in_use();
        let own = usize::from(!matches!(self.slots[slot], Slot::Idle { .. }));
        self.config.prefetch == 0 || asking + held + started - own < self.config.slots.into()
    }

    /// The end of a wait that begins now: the same for all executors, so that they ask again in one
    /// train.
    fn wait_ends(&self, now: Instant) -> Instant {
        match self.config.wait_ns {
            0 => now,
            wait_ns => Instant(now.after(wait_ns / 2).0.next_multiple_of(wait_ns)),
        }
    }

    pub(super) fn request(
        &mut self,
        now: Instant,
        slot: usize,
        queue: u8,
        tries: u32,
        waits: bool,
        sink: &mut impl Sink,
    ) {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1);
        let asker = Asker {
            session: self.config.session,
            number,
            slot: slot as u16,
            addr: self.config.addr,
        };
        let waits_until = waits.then(|| self.wait_ends(now));
        let wait_ns = waits_until.map_or(0, |until| until.since(now));
        let wait_us = u32::try_from(wait_ns / US).unwrap_or(u32::MAX);
        Request { group: self.config.group, asker, queue, wait_us }.emit(&mut self.buffer);
        sink.send(self.switch, &self.buffer);
        let until = now.after(self.config.answer_ns << tries.min(6));
        self.slots.set(slot, Slot::Asking { queue, number, until, tries, waits_until });
        self.counters.requests += 1;
    }

    pub(super) fn on_reply(
        &mut self,
        now: Instant,
        asker: &Asker,
        reply: Reply,
        sink: &mut impl Sink,
    ) {
        let slot = usize::from(asker.slot);
        if asker.session != self.config.session || slot >= self.slots.len() {
            self.counters.assignments_stale += 1;
            return;
        }
        match reply {
            Reply::Task(assigned) => {
                self.tokens[slot].retain(|(queue, _)| *queue != assigned.queue);
                // It was in the queue when it was asked for, so that there may be more.
                if matches!(self.slots[slot], Slot::Asking { number, .. } if number == asker.number)
                {
                    self.ahead = (2 * self.ahead + 1).min(self.slots.len());
                }
                self.on_assigned(now, slot, &assigned, sink);
            }
            Reply::NoOp { answer, switch_id, .. } => {
                self.hear_of(switch_id);
                let Slot::Asking { queue, number, waits_until, .. } = self.slots[slot] else {
                    return;
                };
                if number != asker.number {
                    return;
                }
                self.ahead = 0;
                if answer == Answer::Waiting
                    && let Some(until) = waits_until
                {
                    self.tokens[slot].push((queue, until.after(self.config.poll_ns)));
                }
                self.ask_queue(now, slot, (1 << queue) - 1, waits_until.is_some(), sink);
            }
        }
    }

    /// Handles a new switch: executors that asked the old one ask again.
    pub(super) fn free_slot(&self) -> Option<usize> {
        let is_free = |slot: &Slot| {
            matches!(slot, Slot::Idle { .. } | Slot::Asking { .. } | Slot::Waiting { .. })
        };
        self.slots.iter().position(is_free)
    }

    pub(super) fn hear_of(&mut self, switch_id: SwitchId) {
        self.switch_id = self.switch_id.max(switch_id);
    }

    /// Another switch: who asked the old one asks again.
    pub(super) fn on_switch(&mut self, now: Instant, switch_id: SwitchId, addr: Addr) {
        if switch_id < self.switch_id {
            return;
        }
        let is_new = switch_id > self.switch_id || addr != self.switch;
        (self.switch_id, self.switch) = (switch_id, addr);
        for slot in 0..self.slots.len() {
            if is_new && matches!(self.slots[slot], Slot::Asking { .. } | Slot::Waiting { .. }) {
                self.slots.set(slot, Slot::Idle { until: now });
            }
        }
        if is_new {
            self.tokens.iter_mut().for_each(Vec::clear);
        }
    }

    pub(super) fn on_assigned(
        &mut self,
        now: Instant,
        mut slot: usize,
        assigned: &Assigned,
        sink: &mut impl Sink,
    ) {
        let task = assigned.task;
        let (uid, jid) = (assigned.uid.0, assigned.jid);
        let of = Attempt { uid, jid, tid: task.tid, attempt: task.attempt };
        // Its owner has submitted it again to the new switch.
        if assigned.switch_id < self.switch_id && self.config.guards.on(Guard::AssignmentSwitch) {
            self.counters.assignments_other_switch += 1;
            return;
        }
        self.hear_of(assigned.switch_id);
        let work = Work {
            of,
            run: self.next_run,
            owner: assigned.owner,
            ticket: assigned.ticket,
            switch_id: assigned.switch_id,
            task,
        };
        if let Slot::Claiming { work: own, .. } | Slot::Running(Running { work: own, .. }) =
            self.slots[slot]
        {
            let is_same =
                (own.of, own.ticket, own.switch_id) == (work.of, work.ticket, work.switch_id);
            if is_same {
                self.counters.assignments_stale += 1;
                return;
            }
            // The slot waited in another queue too, or its request was duplicated.
            let Some(free) = self.free_slot() else {
                self.counters.returned += 1;
                return self.give_back(now, &work, sink);
            };
            slot = free;
        }
        let is_of_class = self.config.queues >> task.needs & 1 == 1;
        if task.needs != 0 && !is_of_class && self.config.guards.on(Guard::TaskClass) {
            self.counters.returned_class += 1;
            self.slots.set(slot, Slot::Idle { until: now });
            return self.give_back(now, &work, sink);
        }
        if self.is_repeated(&of) {
            self.slots.set(slot, Slot::Idle { until: now });
            return;
        }
        self.next_run = self.next_run.wrapping_add(1);
        // A task left in a node's queue may be over, or run elsewhere by now: its owner is asked
        // first, too.
        let asks_first = task.flags.has(TaskFlags::ONCE) || assigned.queue >= CLASSES_MAX;
        if asks_first && self.config.guards.on(Guard::Claim) {
            let until = now.after(self.patience_ns(of));
            self.slots.set(slot, Slot::Claiming { work, since: now, beat_at: now, until });
            self.tick_slot(now, slot, sink);
        } else {
            self.hold(now, slot, work, now.after(self.config.lease_ns));
        }
    }

    /// Gives a task that does not begin here back to its owner.
    pub(super) fn give_back(&mut self, now: Instant, work: &Work, sink: &mut impl Sink) {
        self.next_run = self.next_run.wrapping_add(1);
        let message = TaskMessage::Returned { of: work.of, run: self.run(work.run) };
        self.report(now, work, message, Vec::new());
        self.send_reports(now, sink);
    }

    /// A task may run: it begins as soon as its data is here.
    pub(super) fn hold(&mut self, now: Instant, slot: usize, work: Work, lease_until: Instant) {
        let running = Running {
            work,
            beat_at: now,
            is_heard: false,
            lease_until,
            limit_at: Instant::NEVER,
            is_started: false,
        };
        self.slots.set(slot, Slot::Running(running));
        self.lease_floor = self.lease_floor.min(lease_until);
        let is_next =
            self.config.prefetch > 0 && self.slots.in_use().started >= self.config.slots.into();
        self.counters.prefetched += u64::from(is_next);
        self.begin(now, slot);
    }
}
