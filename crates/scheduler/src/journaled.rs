//! An owner whose jobs outlive it: its decisions are written down before anyone is told.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::machine::{Deadline, Machine, Persist};
use concord_core::{Addr, Guard, Guards, Instant, Now, Sink};
use concord_wire::control::Message as _;
use concord_wire::falcon::Submission;
use concord_wire::tasks::TaskMessage;
use concord_wire::{GroupId, Kind};

use crate::journal::{Entry, Found, Journal, WrittenJob, WrittenOutcome};
use crate::outcome::TaskOutcome;
use crate::owner::{Drained, Grant, Job, Owner, OwnerConfig};

/// A frame of the journal that is being made durable.
#[derive(Clone, Copy, Debug)]
struct Writing {
    number: u64,
    /// The number of outcomes and jobs that it covers.
    outcomes: usize,
    last_jid: u32,
    /// The number of the first submission that it does not cover.
    next_submission: u32,
}

/// An owner, with or without a journal.
///
/// Its packets and outcomes wait until the entries written before them are durable: that a job was
/// accepted, that a task which is never run twice may begin, a task's outcome, the limit of attempt
/// numbers. So a process that continues with the journal contradicts nothing that was told. Packets
/// that say nothing about entries do not wait: the extension of a lease, a fragment, a question.
/// And a grant waits only for its own task, so that a disk which is always busy delays no start.
#[derive(Clone, Debug)]
pub struct JournaledOwner {
    owner: Owner,
    journal: Option<Journal>,
    /// Packets, each with the number of the frame that must be durable before it is sent.
    held: Vec<(u64, Addr, Vec<u8>)>,
    /// For each task that is never run twice and may begin once a frame is durable, by JID and TID,
    /// the number of that frame.
    begun: BTreeMap<(u32, u32), u64>,
    /// Outcomes that are not durable yet, in order.
    unwritten: VecDeque<TaskOutcome>,
    /// The bytes of their outputs.
    unwritten_bytes: usize,
    room_bytes: usize,
    /// Outcomes that are durable.
    told: VecDeque<TaskOutcome>,
    writing: Option<Writing>,
    next_number: u64,
    /// The last job whose acceptance is durable.
    taken_jid: u32,
    guards: Guards,
    group: GroupId,
    sent: Vec<(Addr, Vec<u8>)>,
}

impl JournaledOwner {
    /// An owner without a journal: its jobs end with it.
    #[must_use]
    pub fn new(config: OwnerConfig) -> JournaledOwner {
        JournaledOwner::with(config, None)
    }

    /// An owner that continues with the contents of a journal, or begins with an empty one.
    #[must_use]
    pub fn resume(
        config: OwnerConfig,
        now: Now,
        journal: Journal,
        found: &Found,
    ) -> JournaledOwner {
        let config = OwnerConfig { has_journal: true, ..config };
        let mut own = JournaledOwner::with(config, Some(journal));
        own.owner.begin_with(found.next_jid());
        own.push(Entry::Began { next_jid: found.next_jid() });
        own.push(Entry::Session { uid: config.session.0 });
        for job in found.jobs.values().filter(|job| !job.is_over()) {
            own.owner.resume(now, job);
        }
        own.owner.succeed(now, &found.sessions);
        own.write_down();
        own
    }

    fn with(config: OwnerConfig, journal: Option<Journal>) -> JournaledOwner {
        JournaledOwner {
            guards: config.guards,
            group: config.group,
            room_bytes: config.room_bytes,
            owner: Owner::new(config),
            journal,
            held: Vec::new(),
            begun: BTreeMap::new(),
            unwritten: VecDeque::new(),
            unwritten_bytes: 0,
            told: VecDeque::new(),
            writing: None,
            next_number: 1,
            taken_jid: 0,
            sent: Vec::new(),
        }
    }

    fn push(&mut self, entry: Entry) {
        if let Some(journal) = &mut self.journal {
            journal.push(entry);
        }
    }

    /// Adds the owner's decisions to the journal, if there is one.
    fn write_down(&mut self) {
        for grant in self.owner.take_grants() {
            match grant {
                Grant::To(of, run) => {
                    self.push(Entry::Granted { of, run });
                    if self.journal.is_some() {
                        self.begun.insert((of.jid, of.tid), self.next_number);
                    }
                }
                Grant::Back((jid, tid)) => self.push(Entry::GivenBack { jid, tid }),
            }
        }
        for (jid, up_to) in self.owner.take_raised() {
            self.push(Entry::Attempts { jid, up_to });
        }
        while let Some(told) = self.owner.poll_outcome() {
            if self.journal.is_some() {
                self.push(Entry::Over(WrittenOutcome::new(&told)));
                if self.guards.on(Guard::DurableCommit) {
                    self.unwritten_bytes += told.outcome.output().len();
                    self.unwritten.push_back(told);
                } else {
                    self.told.push_back(told);
                }
            } else {
                self.told.push_back(told);
            }
        }
    }

    /// Handles an input. Its output is sent at once only if nothing must be written before.
    fn input<S: Sink>(
        &mut self,
        now: Now,
        sink: &mut S,
        input: impl FnOnce(&mut Owner, &mut Outlet<'_, S>),
    ) {
        if self.journal.is_none() {
            input(&mut self.owner, &mut Outlet::Through(sink));
            return self.write_down();
        }
        let mut sent = core::mem::take(&mut self.sent);
        input(&mut self.owner, &mut Outlet::Held(&mut sent));
        self.write_down();
        let last = self.last_frame().filter(|_| self.guards.on(Guard::DurableCommit));
        for (to, packet) in sent.drain(..) {
            match last.and_then(|last| self.waits_for(&packet, last)) {
                Some(frame) => {
                    tell_to_wait(to, &packet, self.group, sink);
                    self.held.push((frame, to, packet));
                }
                None => sink.send(to, &packet),
            }
        }
        let next = self.owner.next_submission();
        if last.is_none() {
            self.owner.sent(now.instant, next);
        } else if let Some(writing) = self.writing.as_mut().filter(|own| last == Some(own.number)) {
            writing.next_submission = next;
        }
        self.sent = sent;
    }

    /// The number of the frame with the last entry that is not durable.
    fn last_frame(&self) -> Option<u64> {
        if self.journal.as_ref().is_some_and(|journal| !journal.is_empty()) {
            return Some(self.next_number);
        }
        self.writing.map(|writing| writing.number)
    }

    /// The frame that a packet waits for: `last`, except for packets that say nothing about
    /// entries, and for a grant, which says only that its own task may begin.
    fn waits_for(&self, packet: &[u8], last: u64) -> Option<u64> {
        match TaskMessage::parse(packet) {
            Ok(
                TaskMessage::Extended { .. }
                | TaskMessage::Fragment { .. }
                | TaskMessage::FetchOutput { .. }
                | TaskMessage::Inquire { .. }
                | TaskMessage::Drain { .. },
            ) => None,
            Ok(TaskMessage::Claimed { of, granted: true, .. }) => {
                self.begun.get(&(of.jid, of.tid)).copied()
            }
            Ok(_) => Some(last),
            Err(_) => (!is_question(packet)).then_some(last),
        }
    }

    /// As [`Owner::submit`]; `note` is written with the job. It is accepted once
    /// [`JournaledOwner::is_taken`] says so.
    pub fn submit(&mut self, now: Now, job: Job, note: &[u8]) -> Option<u32> {
        let jid = self.owner.next_jid();
        let written = self.journal.as_ref().map(|_| WrittenJob::new(jid, now.unix_ms, &job, note));
        let jid = self.owner.submit(now, job)?;
        match written {
            Some(written) => self.push(Entry::Took(written)),
            None => self.taken_jid = jid,
        }
        Some(jid)
    }

    /// Whether the acceptance of a submitted job is durable.
    #[must_use]
    pub fn is_taken(&self, jid: u32) -> bool {
        jid <= self.taken_jid
    }

    /// As [`Owner::cancel`].
    pub fn cancel(&mut self, now: Now, jid: u32, sink: &mut impl Sink) -> bool {
        let mut is_open = false;
        self.input(now, sink, |owner, sink| is_open = owner.cancel(now, jid, sink));
        is_open
    }

    /// As [`Owner::cancel_task`].
    pub fn cancel_task(
        &mut self,
        now: Now,
        jid: u32,
        tid: u32,
        is_waiting: bool,
        sink: &mut impl Sink,
    ) -> bool {
        let mut is_cancelled = false;
        self.input(now, sink, |owner, sink| {
            is_cancelled = owner.cancel_task(now, jid, tid, is_waiting, sink);
        });
        is_cancelled
    }

    /// As [`Owner::release`]. Nothing is written: its driver knows what a job waits for, and holds
    /// it again when another process continues with it.
    pub fn release(&mut self, now: Now, jid: u32, sink: &mut impl Sink) {
        self.input(now, sink, |owner, sink| owner.release(now, jid, sink));
    }

    /// As [`Owner::release_task`].
    pub fn release_task(&mut self, now: Now, jid: u32, tid: u32, sink: &mut impl Sink) {
        self.input(now, sink, |owner, sink| owner.release_task(now, jid, tid, sink));
    }

    /// As [`Owner::drain`].
    pub fn drain(&mut self, now: Now, worker: Addr, within_ms: Option<u64>, sink: &mut impl Sink) {
        self.input(now, sink, |owner, sink| owner.drain(now.instant, worker, within_ms, sink));
    }

    /// As [`Owner::poll_drained`].
    pub fn poll_drained(&mut self) -> Option<(Addr, Drained)> {
        self.owner.poll_drained()
    }

    /// As [`Owner::hold_outputs`]; outputs are also held while the disk is far behind.
    pub fn hold_outputs(&mut self, is_held_back: bool) {
        // With this many bytes that are not durable, further outputs stay at the workers.
        let is_far_behind = self.unwritten_bytes > self.room_bytes / 4;
        self.owner.hold_outputs(is_held_back || is_far_behind);
    }

    /// Ends the owner. Without a journal its workers are told to stop its runs; with one the next
    /// process continues with its jobs, and with the runs if it starts before the leases are over.
    pub fn retire(&mut self, now: Now, sink: &mut impl Sink) {
        if self.journal.is_none() {
            self.input(now, sink, |owner, sink| owner.retire(now, sink));
        }
    }

    /// The next outcome that is durable.
    pub fn poll_outcome(&mut self) -> Option<TaskOutcome> {
        self.told.pop_front()
    }

    /// The owner, for inspection.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The length of its journal in bytes; `None` if it has none.
    #[must_use]
    pub fn journal_bytes(&self) -> Option<usize> {
        self.journal.as_ref().map(Journal::length)
    }
}

/// A worker whose claim is granted once the grant is durable waits for it, however slow the disk
/// is.
fn tell_to_wait(to: Addr, packet: &[u8], group: GroupId, sink: &mut impl Sink) {
    if let Ok(TaskMessage::Claimed { of, run, granted: true, .. }) = TaskMessage::parse(packet) {
        let mut wait = Vec::new();
        TaskMessage::Wait { of, run }.emit_in(group, &mut wait);
        sink.send(to, &wait);
    }
}

/// Whether a packet asks the switch for its pointers, or the controller for the switch.
fn is_question(packet: &[u8]) -> bool {
    match concord_wire::kind(packet) {
        Ok(Kind::Falcon) => Submission::parse(packet).is_ok_and(|asked| asked.tasks.is_empty()),
        Ok(kind) => kind == Kind::Membership,
        Err(_) => false,
    }
}

/// The destination of packets.
enum Outlet<'a, S> {
    Through(&'a mut S),
    Held(&'a mut Vec<(Addr, Vec<u8>)>),
}

impl<S: Sink> Sink for Outlet<'_, S> {
    fn send(&mut self, to: Addr, packet: &[u8]) {
        match self {
            Outlet::Through(sink) => sink.send(to, packet),
            Outlet::Held(held) => held.push((to, packet.to_vec())),
        }
    }
}

impl Machine for JournaledOwner {
    type Persist = Vec<u8>;

    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        self.input(now, sink, |owner, sink| owner.handle(now, from, packet, sink));
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        self.input(now, sink, |owner, sink| owner.tick(now, sink));
    }

    fn deadline(&self) -> Deadline {
        if !self.told.is_empty() {
            return Deadline { at: Instant(0), reason: "outcomes to be told" };
        }
        self.owner.deadline()
    }

    fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        self.input(now, sink, |owner, sink| owner.flush(now, sink));
    }

    /// The bytes that are to be appended to the journal, and synced.
    fn poll_persist(&mut self) -> Option<Persist<Vec<u8>>> {
        let journal = self.journal.as_mut()?;
        if journal.is_empty() || self.writing.is_some() {
            return None;
        }
        let (number, mut what) = (self.next_number, Vec::new());
        journal.frame(&mut what);
        self.next_number += 1;
        let outcomes = self.unwritten.len();
        let last_jid = self.owner.next_jid() - 1;
        let next_submission = self.owner.next_submission();
        self.writing = Some(Writing { number, outcomes, last_jid, next_submission });
        Some(Persist { number, what })
    }

    fn persisted(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(writing) = self.writing.take_if(|writing| writing.number == number) else {
            return;
        };
        self.taken_jid = self.taken_jid.max(writing.last_jid);
        for told in self.unwritten.drain(..writing.outcomes) {
            self.unwritten_bytes -= told.outcome.output().len();
            self.told.push_back(told);
        }
        self.begun.retain(|_, frame| *frame > number);
        self.held.retain(|(frame, to, packet)| {
            let is_durable = *frame <= number;
            if is_durable {
                sink.send(*to, packet);
            }
            !is_durable
        });
        self.owner.sent(now.instant, writing.next_submission);
    }
}
