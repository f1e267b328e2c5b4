//! How a worker asks the switch for tasks.

use alloc::vec::Vec;

use concord_core::{Addr, Guard, Instant, Sink, SwitchId, US};
use concord_wire::falcon::{Answer, Asker, Assigned, CLASSES_MAX, Reply, Request, TaskFlags};
use concord_wire::tasks::{Attempt, TaskMessage};

use super::{REPORT_BYTES_MAX, REPORTS_MAX, Slot, Work, Worker};

/// The answer to a claim is waited for longer by these doublings at most.
const CLAIM_DOUBLINGS_MAX: u16 = 3;

/// With the switch.
impl Worker {
    pub(super) fn may_ask(&self) -> bool {
        let has_room = self.reports.len() < REPORTS_MAX && self.report_bytes < REPORT_BYTES_MAX;
        !self.is_retiring && has_room
    }

    /// Executors that ask, wait or have a task that has not begun: never more than there are.
    pub(super) fn unstarted(&self) -> usize {
        let is_unstarted = |slot: &&Slot| match slot {
            Slot::Idle { .. } | Slot::Running { is_started: true, .. } => false,
            Slot::Asking { .. }
            | Slot::Waiting { .. }
            | Slot::Claiming { .. }
            | Slot::Running { .. } => true,
        };
        self.slots.iter().filter(is_unstarted).count()
    }

    pub(super) fn started(&self) -> usize {
        let is_started = |slot: &&Slot| matches!(slot, Slot::Running { is_started: true, .. });
        self.slots.iter().filter(is_started).count()
    }

    /// Every executor that is free, and whose time it is, asks for a task; with prefetch, each that runs one too.
    pub(super) fn ask(&mut self, now: Instant, sink: &mut impl Sink) {
        if !self.may_ask() {
            return;
        }
        for slot in 0..self.slots.len() {
            if let Slot::Idle { until } = self.slots[slot]
                && until <= now
                && (!self.config.prefetch || self.unstarted() < usize::from(self.config.slots))
            {
                self.ask_next(now, slot, u32::MAX, sink);
            }
        }
    }

    /// Asks the highest of the queues `left` in which it does not wait; where there is none, it waits, or pauses.
    pub(super) fn ask_next(&mut self, now: Instant, slot: usize, left: u32, sink: &mut impl Sink) {
        let tokens = &mut self.tokens[slot];
        tokens.retain(|(_, until)| *until > now);
        let waits = tokens.iter().fold(0, |queues, (queue, _)| queues | 1 << queue);
        let left = self.config.queues & left & !waits;
        if let Some(queue) = left.checked_ilog2() {
            return self.request(now, slot, queue as u8, 0, sink);
        }
        self.slots[slot] = match tokens.iter().map(|(_, until)| *until).min() {
            Some(until) => Slot::Waiting { until },
            None => Slot::Idle { until: now.after(self.config.poll_ns) },
        };
    }

    pub(super) fn request(
        &mut self,
        now: Instant,
        slot: usize,
        queue: u8,
        tries: u32,
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
        // Who asks for the next task while it runs one does not wait for it: a task is not bound to it while another
        // executor is free.
        let is_next = self.config.prefetch && {
            let own = usize::from(!matches!(self.slots[slot], Slot::Idle { .. }));
            self.unstarted() - own + self.started() >= usize::from(self.config.slots)
        };
        let wait_ns = if is_next { 0 } else { self.config.wait_ns };
        let wait_us = u32::try_from(wait_ns / US).unwrap_or(u32::MAX);
        Request { group: self.config.group, asker, queue, wait_us }.emit(&mut self.buffer);
        sink.send(self.switch, &self.buffer);
        let until = now.after(self.config.answer_ns << tries.min(6));
        self.slots[slot] = Slot::Asking { queue, number, until, tries };
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
                self.on_assigned(now, slot, &assigned, sink);
            }
            Reply::NoOp { answer, switch_id, .. } => {
                self.hear_of(switch_id);
                let Slot::Asking { queue, number, .. } = self.slots[slot] else { return };
                if number != asker.number {
                    return;
                }
                if answer == Answer::Waiting {
                    let until = now.after(self.config.wait_ns + self.config.poll_ns);
                    self.tokens[slot].push((queue, until));
                }
                self.ask_next(now, slot, (1 << queue) - 1, sink);
            }
        }
    }

    /// Where a task may begin that came to a slot that has one.
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
        for slot in &mut self.slots {
            if is_new && matches!(slot, Slot::Asking { .. } | Slot::Waiting { .. }) {
                *slot = Slot::Idle { until: now };
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
        // Its owner has submitted it again, to the new switch.
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
        if let Slot::Claiming { work: own, .. } | Slot::Running { work: own, .. } = self.slots[slot]
        {
            let is_same =
                (own.of, own.ticket, own.switch_id) == (work.of, work.ticket, work.switch_id);
            if is_same {
                self.counters.assignments_stale += 1;
                return;
            }
            // It waited in another queue too, or its request came twice.
            let Some(free) = self.free_slot() else {
                self.counters.returned += 1;
                return self.give_back(now, &work, sink);
            };
            slot = free;
        }
        let is_of_class = self.config.queues >> task.needs & 1 == 1;
        if task.needs != 0 && !is_of_class && self.config.guards.on(Guard::TaskClass) {
            self.counters.returned_class += 1;
            self.slots[slot] = Slot::Idle { until: now };
            return self.give_back(now, &work, sink);
        }
        if self.is_repeated(&of) {
            self.slots[slot] = Slot::Idle { until: now };
            return;
        }
        self.next_run = self.next_run.wrapping_add(1);
        // What is left in a node's queue may be over, or run elsewhere by now: its owner is asked first, too.
        let asks_first = task.flags.has(TaskFlags::ONCE) || assigned.queue >= CLASSES_MAX;
        if asks_first && self.config.guards.on(Guard::Claim) {
            // An owner with a journal answers when its disk has synced: of each further attempt it may take longer.
            let doublings = of.attempt.saturating_sub(1).min(CLAIM_DOUBLINGS_MAX);
            let until = now.after(self.config.claim_ns << doublings);
            self.slots[slot] = Slot::Claiming { work, beat_at: now, until };
            self.tick_slot(now, slot, sink);
        } else {
            self.hold(now, slot, work, now.after(self.config.lease_ns), sink);
        }
    }

    /// A task that does not begin here goes back to its owner.
    pub(super) fn give_back(&mut self, now: Instant, work: &Work, sink: &mut impl Sink) {
        self.next_run = self.next_run.wrapping_add(1);
        let message = TaskMessage::Returned { of: work.of, run: self.run(work.run) };
        self.report(now, work, message, Vec::new());
        self.send_reports(now, sink);
    }

    /// It may run: it begins as soon as what it needs is here.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        slot: usize,
        work: Work,
        lease_until: Instant,
        sink: &mut impl Sink,
    ) {
        let (is_heard, is_started, limit_at) = (false, false, Instant::NEVER);
        let running =
            Slot::Running { work, beat_at: now, is_heard, lease_until, limit_at, is_started };
        self.slots[slot] = running;
        let is_next = self.config.prefetch && self.started() >= usize::from(self.config.slots);
        self.counters.prefetched += u64::from(is_next);
        self.begin(now, slot);
        self.tick_slot(now, slot, sink);
    }
}
