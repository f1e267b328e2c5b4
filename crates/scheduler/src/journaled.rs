//! An owner whose jobs outlive it: what it decides is written down before anybody hears of it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::machine::{Deadline, Machine, Persist};
use concord_core::{Addr, Guard, Guards, Instant, Now, Sink};
use concord_wire::Kind;
use concord_wire::control::Message as _;
use concord_wire::falcon::Submission;
use concord_wire::tasks::TaskMessage;

use crate::journal::{Entry, Found, Journal, WrittenJob, WrittenOutcome};
use crate::outcome::TaskOutcome;
use crate::owner::{Drained, Job, Owner, OwnerConfig};

/// What waits for a frame of the journal to be durable.
#[derive(Clone, Copy, Debug)]
struct Writing {
    number: u64,
    /// Outcomes and jobs that it is for.
    outcomes: usize,
    last_jid: u32,
    /// The number of the first submission that it is not for.
    next_submission: u32,
}

/// An owner, with or without a journal.
///
/// What it sends, and all outcomes that it gives, wait until what was written before them is
/// durable: that a job was taken, that a task which is never run twice may begin, how a task ended,
/// how far the numbers of attempts may go. So a process that goes on with the journal contradicts
/// nothing that anybody has heard. What says nothing that is written does not wait: the extension
/// of a lease, a fragment, a question; and a grant waits for its own task alone, so that a disk
/// which is always busy keeps no task from its start.
#[derive(Clone, Debug)]
pub struct JournaledOwner {
    owner: Owner,
    journal: Option<Journal>,
    /// Packets, each with the number of the frame that has to be durable before it goes out.
    held: Vec<(u64, Addr, Vec<u8>)>,
    /// Tasks that are never run twice and may be begun once a frame is durable: its number, by JID
    /// and TID.
    begun: BTreeMap<(u32, u32), u64>,
    /// Outcomes that are not durable, in their order.
    unwritten: VecDeque<TaskOutcome>,
    /// Bytes of their outputs.
    unwritten_bytes: usize,
    room_bytes: usize,
    /// Those that are.
    told: VecDeque<TaskOutcome>,
    writing: Option<Writing>,
    next_number: u64,
    /// Jobs up to this one are taken.
    taken_jid: u32,
    guards: Guards,
    sent: Vec<(Addr, Vec<u8>)>,
}

impl JournaledOwner {
    /// One without a journal: its jobs end with it.
    #[must_use]
    pub fn new(config: OwnerConfig) -> JournaledOwner {
        JournaledOwner::with(config, None)
    }

    /// One that goes on with what was found in a journal, or begins with an empty one.
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

    /// What its owner decided goes into the journal, if there is one.
    fn write_down(&mut self) {
        for (jid, tid) in self.owner.take_begun() {
            self.push(Entry::Begun { jid, tid });
            if self.journal.is_some() {
                self.begun.insert((jid, tid), self.next_number);
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

    /// An input: what it sends goes out at once only where nothing is to be written before.
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
                Some(frame) => self.held.push((frame, to, packet)),
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

    /// The frame with the last entry that is not durable.
    fn last_frame(&self) -> Option<u64> {
        if self.journal.as_ref().is_some_and(|journal| !journal.is_empty()) {
            return Some(self.next_number);
        }
        self.writing.map(|writing| writing.number)
    }

    /// The frame that a packet waits for: `last`, but for what says nothing that is written, and
    /// for a grant, which says of its own task alone that it may begin.
    fn waits_for(&self, packet: &[u8], last: u64) -> Option<u64> {
        match TaskMessage::parse(packet) {
            Ok(
                TaskMessage::Extended { .. }
                | TaskMessage::Fragment { .. }
                | TaskMessage::FetchOutput { .. }
                | TaskMessage::Drain { .. },
            ) => None,
            Ok(TaskMessage::Claimed { of, granted: true, .. }) => {
                self.begun.get(&(of.jid, of.tid)).copied()
            }
            Ok(_) => Some(last),
            Err(_) => (!is_question(packet)).then_some(last),
        }
    }

    /// As [`Owner::submit`]; `note` is written down with the job. It is taken once
    /// [`JournaledOwner::is_taken`].
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

    /// Whether a job that was submitted is there to stay.
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

    /// As [`Owner::release`]. Nothing is written of it: its driver knows what a job waits for, and
    /// holds it again when another process goes on with it.
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

    /// As [`Owner::hold_outputs`]; so they are while the disk is far behind.
    pub fn hold_outputs(&mut self, is_held_back: bool) {
        // With so many bytes that are not durable further ones stay at the workers.
        let is_far_behind = self.unwritten_bytes > self.room_bytes / 4;
        self.owner.hold_outputs(is_held_back || is_far_behind);
    }

    /// It ends. Without a journal its workers are told to stop what runs; with one the next process
    /// goes on with its jobs, and with what runs if it is there before the leases are over.
    pub fn retire(&mut self, now: Now, sink: &mut impl Sink) {
        if self.journal.is_none() {
            self.input(now, sink, |owner, sink| owner.retire(now, sink));
        }
    }

    /// How the next task ended: it is durable.
    pub fn poll_outcome(&mut self) -> Option<TaskOutcome> {
        self.told.pop_front()
    }

    /// The owner, to be looked at.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// How long its journal is, in bytes; `None` if it has none.
    #[must_use]
    pub fn journal_bytes(&self) -> Option<usize> {
        self.journal.as_ref().map(Journal::length)
    }
}

/// Whether a packet asks the switch where its pointers are, or the controller who the switch is.
fn is_question(packet: &[u8]) -> bool {
    match concord_wire::kind(packet) {
        Ok(Kind::Falcon) => Submission::parse(packet).is_ok_and(|asked| asked.tasks.is_empty()),
        Ok(kind) => kind == Kind::Membership,
        Err(_) => false,
    }
}

/// Where packets go.
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

    /// What is to be appended to the journal, and synced.
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
