//! An owner's submissions to the queue of the switch, and the signs that tasks have left it.

use alloc::vec::Vec;

use concord_core::{Addr, Guard, Instant, Sink, SwitchId};
use concord_wire::control::{Membership, Message as _};
use concord_wire::falcon::{Answer, Submission, Task, TaskFlags};
use concord_wire::tasks::Ended;

use super::lines::{Line, Place};
use super::{
    At, Item, NO_NUMBER_LEFT, Name, Owner, Pending, SUBMISSIONS_MAX, WHO_DOUBT_NS, WHO_NS, count,
};
use crate::outcome::Outcome;
use crate::tags::Tagged;

/// The part that deals with the switch.
impl Owner {
    pub(super) fn item(&mut self, (jid, tid): Name) -> Option<(&mut Item, bool)> {
        let job = self.jobs.get_mut(&jid)?;
        let once = job.once;
        job.items.get_mut(tid as usize).map(|item| (item, once))
    }

    /// Asks the controller for the current switch: soon, if the switch does not answer.
    pub(super) fn ask_who(&mut self, now: Instant, sink: &mut impl Sink) {
        let Some(controller) = self.config.controller else { return };
        if self.open == 0 || now < self.who_at {
            return;
        }
        self.doubt_at = now.after(WHO_DOUBT_NS);
        self.who_at = now.after(if self.is_in_doubt { WHO_DOUBT_NS } else { WHO_NS });
        let client = self.config.addr;
        Membership::WhoIsWho { client }.emit_in(self.config.group, &mut self.buffer);
        sink.send(controller, &self.buffer);
    }

    pub(super) fn waits_in_queues(&self) -> bool {
        self.lines.values().any(|line| !line.queued.is_empty())
    }

    /// Makes a task ready to be submitted, as the first or the last of its line.
    pub(super) fn make_ready(&mut self, name: Name, is_first: bool) {
        let Some(job) = self.jobs.get_mut(&name.0) else { return };
        let Some(item) = job.items.get_mut(name.1 as usize) else { return };
        item.at = At::Ready;
        item.place = job.places.near.filter(|_| item.is_near).unwrap_or(job.places.class);
        if !self.may_go(name) {
            return;
        }
        let Some((item, _)) = self.item(name) else { return };
        let place = item.place;
        let line = self.lines.entry(place).or_insert_with(Line::new);
        if is_first {
            line.ready.push_front(name);
        } else {
            line.ready.push_back(name);
        }
    }

    /// Moves the tasks of a job that have waited long enough for their node: those that no worker
    /// has go to the queue of all executors that may run them. Those in the node's queue stay
    /// there, and reach a worker as an attempt that is over.
    pub(super) fn move_away(&mut self, jid: u32) {
        let Some(job) = self.jobs.get_mut(&jid) else { return };
        let mut moved = Vec::new();
        for (tid, item) in (0..).zip(&mut job.items) {
            if !core::mem::replace(&mut item.is_near, false) {
                continue;
            }
            match item.at {
                At::Queued(ticket, None) => {
                    if let Some(line) = self.lines.get_mut(&item.place) {
                        line.queued.remove(&(ticket, (jid, tid)));
                    }
                }
                At::Ready => {}
                At::Withheld
                | At::Later(_)
                | At::Submitted(_)
                | At::Queued(..)
                | At::Held(..)
                | At::Over => {
                    continue;
                }
            }
            count(&mut item.trace.again.moved);
            moved.push((jid, tid));
        }
        self.counters.tasks_moved += moved.len() as u64;
        for name in moved {
            self.make_ready(name, false);
        }
    }

    /// Submits ready tasks as far as permitted, the most urgent first.
    pub(super) fn pump(&mut self, now: Instant, sink: &mut impl Sink) {
        while self.pending.len() < SUBMISSIONS_MAX && self.submit_at <= now {
            let Some((place, mut tasks)) = self.take_ready(now) else { return };
            tasks.retain(|name| !self.is_spent(now, *name));
            if tasks.is_empty() {
                continue;
            }
            let number = self.next_number;
            self.next_number = self.next_number.wrapping_add(1).max(1);
            // A submission that waits for the journal is sent later: its answer is awaited from
            // then on (`sent`).
            let has_journal = self.config.has_journal;
            let until = if has_journal { Instant::NEVER } else { now.after(self.config.answer_ns) };
            for name in &tasks {
                self.begin_attempt(*name, number);
            }
            self.counters.submissions += 1;
            self.send_submission(number, place, &tasks, sink);
            self.pending.insert(number, Pending { place, tasks, until });
        }
    }

    /// Whether a task ends here, since an executor may have had the last number of an attempt.
    fn is_spent(&mut self, now: Instant, name: Name) -> bool {
        let is_spent = self.item(name).is_some_and(|(item, _)| item.is_spent);
        if is_spent {
            let failed = Outcome::Failed(Ended::Failed, NO_NUMBER_LEFT.to_vec());
            self.end(now, name, failed, NO_NUMBER_LEFT.len() as u64);
        }
        is_spent
    }

    fn begin_attempt(&mut self, name: Name, number: u32) {
        let Some(job) = self.jobs.get_mut(&name.0) else { return };
        let Some(item) = job.items.get_mut(name.1 as usize) else { return };
        item.at = At::Submitted(number);
        item.attempt = item.attempt.saturating_add(1);
        if self.config.has_journal && item.attempt > job.attempts_up_to {
            job.attempts_up_to = job.attempts_up_to.saturating_add(self.config.attempts_noted);
            self.raised.push((name.0, job.attempts_up_to));
        }
    }

    /// The number of the next submission.
    pub(crate) fn next_submission(&self) -> u32 {
        self.next_number
    }

    /// Notes that submissions with numbers below `next` are sent: their answers are awaited from
    /// now on.
    pub(crate) fn sent(&mut self, now: Instant, next: u32) {
        let until = now.after(self.config.answer_ns);
        for (number, pending) in &mut self.pending {
            // Numbers wrap.
            let is_sent = (number.wrapping_sub(next) as i32) < 0;
            if is_sent && pending.until == Instant::NEVER {
                pending.until = until;
            }
        }
    }

    /// The next ready tasks of one job.
    pub(super) fn take_ready(&mut self, now: Instant) -> Option<(Place, Vec<Name>)> {
        let jobs = &self.jobs;
        let is_ready = |(jid, tid): Name, place: Place| {
            let item = jobs.get(&jid).and_then(|job| job.items.get(tid as usize));
            item.is_some_and(|item| {
                item.at == At::Ready && item.place == place && !item.suspicion.waits()
            })
        };
        let lines = self.lines.iter_mut().rev().filter(|(_, line)| line.pause_until <= now);
        for (place, line) in lines {
            let mut tasks: Vec<Name> = Vec::new();
            while tasks.len() < line.window
                && let Some(name) = line.ready.front().copied()
            {
                if tasks.first().is_some_and(|first| first.0 != name.0) {
                    break;
                }
                line.ready.pop_front();
                if is_ready(name, *place) && !tasks.contains(&name) {
                    tasks.push(name);
                }
            }
            if !tasks.is_empty() {
                return Some((*place, tasks));
            }
        }
        None
    }

    /// Sends a submission; one without tasks asks the switch for its pointers.
    pub(super) fn send_submission(
        &mut self,
        number: u32,
        place: Place,
        names: &[Name],
        sink: &mut impl Sink,
    ) {
        let jid = names.first().map_or(0, |name| name.0);
        let mut tasks = Vec::new();
        for name in names {
            let Some(job) = self.jobs.get(&name.0) else { continue };
            let Some(item) = job.items.get(name.1 as usize) else { continue };
            let long = job.long.get(&name.1);
            let flag = |is_set: bool, flag| if is_set { flag } else { TaskFlags::default() };
            let mut task = Task {
                tid: name.1,
                attempt: item.attempt,
                function: item.spec.function,
                flags: flag(job.once, TaskFlags::ONCE)
                    .with(flag(long.is_some(), TaskFlags::FETCH))
                    .with(flag(job.body.is_some(), TaskFlags::JOB_BODY)),
                needs: job.needs,
                limit_ms: job.limit_ms,
                parameters: item.spec.parameters,
                tag: 0,
            };
            if let Some(tags) = &self.tags {
                let (uid, owner) = (self.config.session, self.config.addr);
                let parameters = long.map_or(0, |bytes| tags.body(bytes));
                let tagged = Tagged { uid, jid, owner, job_body: job.body_tag, parameters };
                task.tag = tags.task(&task, &tagged);
            }
            tasks.push(task);
        }
        let submission = Submission {
            group: self.config.group,
            uid: self.config.session,
            jid,
            owner: self.config.addr,
            number,
            switch_id: self.switch_id,
            queue: place.queue,
            priority: place.priority,
            tasks,
            ..Submission::default()
        };
        submission.emit(&mut self.buffer);
        sink.send(self.switch, &self.buffer);
    }

    /// The switch did not answer. Each further submission uses up an attempt number of each of its
    /// tasks, so their line waits as after a full queue.
    pub(super) fn note_unanswered(&mut self, now: Instant, number: u32) {
        let Some(pending) = self.pending.get(&number) else { return };
        let mut is_submitted_again = false;
        for (jid, tid) in &pending.tasks {
            let item = self.jobs.get_mut(jid).and_then(|job| job.items.get_mut(*tid as usize));
            if let Some(item) = item.filter(|item| item.at == At::Submitted(number)) {
                count(&mut item.trace.again.unanswered);
                is_submitted_again = true;
            }
        }
        if let Some(line) = self.lines.get_mut(&pending.place)
            && is_submitted_again
            && line.pause_until <= now
        {
            line.unanswered(now, self.config.pause_ns_max, &mut self.rng);
        }
    }

    /// Makes the tasks that are still in a submission ready again.
    pub(super) fn submit_again(&mut self, number: u32) {
        let Some(pending) = self.pending.remove(&number) else { return };
        for name in pending.tasks.into_iter().rev() {
            if let Some((item, _)) = self.item(name)
                && item.at == At::Submitted(number)
            {
                self.make_ready(name, true);
            }
        }
    }

    pub(super) fn on_answer(&mut self, now: Instant, answer: &Submission) {
        if answer.uid != self.config.session {
            self.counters.unexpected += 1;
            return;
        }
        if answer.switch_id > self.switch_id {
            self.on_switch(answer.switch_id, None);
        }
        if answer.switch_id < self.switch_id {
            self.counters.answers_other_switch += 1;
            return;
        }
        self.is_in_doubt = false;
        let place = Place { priority: answer.priority, queue: answer.queue };
        self.on_retrieved(now, place, answer.retrieve_ptr);
        if answer.number == 0 {
            return;
        }
        // The answer to another submission says nothing about this one's tasks.
        let number = if self.pending.contains_key(&answer.number)
            || self.config.guards.on(Guard::SubmissionAnswer)
        {
            answer.number
        } else {
            self.pending.keys().next().copied().unwrap_or(0)
        };
        let Some(pending) = self.pending.remove(&number) else {
            self.counters.answers_late += 1;
            return;
        };
        let refused = pending.tasks.len().saturating_sub(answer.tickets.len());
        for (name, ticket) in pending.tasks.iter().zip(&answer.tickets) {
            self.on_queued(now, pending.place, *name, number, *ticket);
        }
        self.on_retrieved(now, place, answer.retrieve_ptr);
        for name in pending.tasks.iter().skip(answer.tickets.len()).rev() {
            if let Some((item, _)) = self.item(*name)
                && item.at == At::Submitted(number)
            {
                count(&mut item.trace.again.refused);
                self.make_ready(*name, true);
            }
        }
        self.counters.tasks_refused += refused as u64;
        let Some(line) = self.lines.get_mut(&pending.place) else { return };
        if matches!(answer.answer, Answer::Full | Answer::NoQueue) {
            let is_in_vain = answer.tickets.is_empty();
            line.full(now, self.config.pause_ns_max, is_in_vain, &mut self.rng);
        } else if refused == 0 {
            line.has_room();
        }
    }

    /// Notes that a task is in the queue.
    pub(super) fn on_queued(
        &mut self,
        now: Instant,
        place: Place,
        name: Name,
        number: u32,
        ticket: u32,
    ) {
        let is_first = !self.waits_in_queues();
        let line = self.lines.entry(place).or_insert_with(Line::new);
        let ticket = line.unwrapped(ticket);
        let ask_at = now.after(self.config.ask_ns);
        let Some((item, _)) = self.item(name) else { return };
        if item.at != At::Submitted(number) {
            // It runs already.
            if matches!(item.at, At::Held(..)) {
                (item.trace.queued_at, item.trace.ticket) = (now, ticket as u32);
            }
            return;
        }
        (item.trace.queued_at, item.trace.ticket) = (now, ticket as u32);
        (item.trace.passed_at, item.trace.started_at) = (Instant(0), Instant(0));
        let has_waited = item.place != place || !item.is_near;
        let is_away = self.jobs.get(&name.0).is_some_and(|job| job.places.near == Some(place));
        if has_waited && is_away {
            // Its time was over while it was on its way to the node's queue.
            return self.make_ready(name, false);
        }
        let Some((item, _)) = self.item(name) else { return };
        item.at = At::Queued(ticket, None);
        item.is_spent = item.attempt == u16::MAX;
        if is_first {
            self.ask_at = ask_at;
        }
        let line = self.lines.entry(place).or_insert_with(Line::new);
        line.queued.insert((ticket, name));
    }

    /// Notes that tasks whose tickets retrieve_ptr has passed were handed to a worker.
    pub(super) fn on_retrieved(&mut self, now: Instant, place: Place, retrieve_ptr: u32) {
        let until = now.after(self.config.start_ns);
        let Some(line) = self.lines.get_mut(&place) else { return };
        line.retrieved = line.retrieved.max(line.unwrapped(retrieve_ptr));
        while let Some(line) = self.lines.get_mut(&place)
            && let Some(&(ticket, name)) = line.queued.first()
            && ticket < line.retrieved
        {
            line.queued.pop_first();
            if let Some((item, _)) = self.item(name)
                && item.at == At::Queued(ticket, None)
            {
                item.at = At::Queued(ticket, Some(now));
                item.trace.passed_at = now;
                self.timers.insert((until, name));
            }
        }
    }

    /// Notes that the switch has another id: its queue is empty, and tasks in the old one are lost
    /// or refused.
    pub(super) fn on_switch(&mut self, switch_id: SwitchId, addr: Option<Addr>) {
        if switch_id < self.switch_id {
            return;
        }
        if let Some(addr) = addr {
            self.switch = addr;
        }
        if switch_id == self.switch_id {
            return;
        }
        let is_first = self.switch_id == SwitchId(0);
        self.switch_id = switch_id;
        if is_first {
            return;
        }
        let numbers: Vec<u32> = self.pending.keys().copied().collect();
        for number in numbers {
            self.submit_again(number);
        }
        self.lines.values_mut().for_each(Line::begin_anew);
        let mut forgotten = Vec::new();
        for (jid, job) in &mut self.jobs {
            for (tid, item) in (0..).zip(&mut job.items) {
                if matches!(item.at, At::Queued(..)) {
                    count(&mut item.trace.again.forgotten);
                    forgotten.push((*jid, tid));
                }
            }
        }
        self.counters.tasks_forgotten += forgotten.len() as u64;
        for name in forgotten {
            self.make_ready(name, false);
        }
    }
}
