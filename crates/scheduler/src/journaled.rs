//! An owner whose jobs outlive it: what it decides is written down before anybody hears of it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::machine::{Deadline, Machine, Persist};
use concord_core::{Addr, Guard, Guards, Instant, Now, Sink};
use concord_wire::control::Message as _;
use concord_wire::tasks::TaskMessage;

use crate::journal::{Entry, Found, Journal, WrittenJob, WrittenOutcome};
use crate::outcome::TaskOutcome;
use crate::owner::{Job, Owner, OwnerConfig};

/// What waits for a frame of the journal to be durable.
#[derive(Clone, Copy, Debug)]
struct Writing {
    number: u64,
    /// Packets, outcomes and jobs that it is for.
    packets: usize,
    outcomes: usize,
    last_jid: u32,
    /// The number of the first submission that it is not for.
    next_submission: u32,
}

/// An owner, with or without a journal.
///
/// All that it sends but the extensions of leases, and all outcomes that it gives, wait until what was written before
/// them is durable: that a job was taken, that a task which is never run twice may begin, how a task ended, how far the
/// numbers of attempts may go. So a process that goes on with the journal contradicts nothing that anybody has heard.
#[derive(Clone, Debug)]
pub struct JournaledOwner {
    owner: Owner,
    journal: Option<Journal>,
    held: Vec<(Addr, Vec<u8>)>,
    /// Outcomes that are not durable, in their order.
    unwritten: VecDeque<TaskOutcome>,
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
        for job in found.jobs.values().filter(|job| !job.is_over()) {
            own.owner.resume(now, job);
        }
        own.write_down();
        own
    }

    fn with(config: OwnerConfig, journal: Option<Journal>) -> JournaledOwner {
        JournaledOwner {
            guards: config.guards,
            owner: Owner::new(config),
            journal,
            held: Vec::new(),
            unwritten: VecDeque::new(),
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
        }
        for (jid, up_to) in self.owner.take_raised() {
            self.push(Entry::Attempts { jid, up_to });
        }
        while let Some(told) = self.owner.poll_outcome() {
            if self.journal.is_some() {
                self.push(Entry::Over(WrittenOutcome::new(&told)));
                if self.guards.on(Guard::DurableCommit) {
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
        let waits = self.writing.is_some() || self.journal.as_ref().is_some_and(|j| !j.is_empty());
        let waits = waits && self.guards.on(Guard::DurableCommit);
        for (to, packet) in sent.drain(..) {
            if waits && !is_lease(&packet) {
                self.held.push((to, packet));
            } else {
                sink.send(to, &packet);
            }
        }
        if !waits {
            self.owner.sent(now.instant, self.owner.next_submission());
        }
        self.sent = sent;
    }

    /// As [`Owner::submit`]; `note` is written down with the job. It is taken once [`JournaledOwner::is_taken`].
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

    /// It ends: its workers are told to stop what runs. With a journal the next process goes on with its jobs.
    pub fn retire(&mut self, now: Now, sink: &mut impl Sink) {
        if self.journal.is_none() {
            return self.input(now, sink, |owner, sink| owner.retire(now, sink));
        }
        self.owner.retire(now, sink);
        while self.owner.poll_outcome().is_some() {}
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

/// Whether a packet extends the lease of a run. It says nothing that a journal has, and a run whose lease is over
/// while the disk is slow is killed: it never waits.
fn is_lease(packet: &[u8]) -> bool {
    matches!(TaskMessage::parse(packet), Ok(TaskMessage::Extended { .. }))
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
        let (packets, outcomes) = (self.held.len(), self.unwritten.len());
        let last_jid = self.owner.next_jid() - 1;
        let next_submission = self.owner.next_submission();
        self.writing = Some(Writing { number, packets, outcomes, last_jid, next_submission });
        Some(Persist { number, what })
    }

    fn persisted(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        let Some(writing) = self.writing.take_if(|writing| writing.number == number) else {
            return;
        };
        self.taken_jid = self.taken_jid.max(writing.last_jid);
        self.told.extend(self.unwritten.drain(..writing.outcomes));
        // What came since waits for the next frame, if there is something to write.
        let is_written = self.journal.as_ref().is_none_or(Journal::is_empty);
        let packets = if is_written { self.held.len() } else { writing.packets };
        let next = if is_written { self.owner.next_submission() } else { writing.next_submission };
        for (to, packet) in self.held.drain(..packets) {
            sink.send(to, &packet);
        }
        self.owner.sent(now.instant, next);
    }
}
