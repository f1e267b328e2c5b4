//! Readers of the outcomes of jobs, page by page. A reader finds its job again after the owner was
//! restarted: each outcome comes once, in the order in which it was first reported, with the
//! complete output.

use std::collections::BTreeSet;

use concord_core::{Instant, MS, Now};
use concord_scheduler::{Found, JobRecord, Outcome, TaskOutcome, Trace};

use super::{Event, Rack, Role};

/// The maximum number of outcomes in a page, and of bytes of their outputs without the last one.
const PAGE_MAX: usize = 20;
const PAGE_BYTES_MAX: usize = 256 << 10;
/// The time after which an owner that is gone is asked again, in ns.
const AGAIN_NS: u64 = 20 * MS;

/// A reader of a job's outcomes.
#[derive(Debug)]
pub(super) struct Reader {
    /// The owner's session, or its name if it has a journal; and the JID.
    job: (u64, u32),
    /// The number of outcomes that it has.
    from: usize,
    seen: BTreeSet<u32>,
}

impl Rack<'_> {
    /// Enters a job into its owner's book, with a reader if the plan gives it one.
    pub(super) fn attach(&mut self, index: usize, jid: u32) {
        let (_, node, job) = &self.plan.jobs[index];
        let tasks = job.tasks.len() as u32;
        let book = &mut self.nodes[*node].book;
        book.open(JobRecord::new(jid, String::new(), tasks, Now::default()));
        let Some(read_ns) = self.plan.readers[index].filter(|_| tasks > 0) else { return };
        book.attach(jid);
        let job = (self.name_of(self.session(*node)), jid);
        self.readers.insert(index, Reader { job, from: 0, seen: BTreeSet::new() });
        self.at(self.now + read_ns, Event::Read(index));
    }

    /// Enters the content of an owner's journal into its book, as its driver does: how much readers
    /// have is not known then.
    pub(super) fn found(&mut self, node: usize, found: &Found) {
        for job in found.jobs.values() {
            let reads = |(_, reader): (&usize, &super::Reader)| reader.job.1 == job.jid;
            let mut own =
                self.readers.iter().filter(|(index, _)| self.plan.jobs[**index].1 == node);
            let is_read = own.any(reads) && !job.is_over();
            let book = &mut self.nodes[node].book;
            let tasks = job.job.tasks.len() as u32;
            book.open(JobRecord::new(job.jid, String::new(), tasks, Now::default()));
            if is_read {
                book.attach(job.jid);
            }
            for (number, told) in job.outcomes.iter().enumerate() {
                if is_read {
                    book.read(job.jid, number);
                }
                let (jid, tid, attempts) = (job.jid, told.tid, told.attempts);
                let (outcome, output_bytes) = (told.outcome.clone(), told.output_bytes);
                let trace = Trace { over_at: Instant(1), ..Trace::default() };
                book.note(TaskOutcome { jid, tid, attempts, outcome, output_bytes, trace });
            }
            book.unread(job.jid);
        }
    }

    /// Lets a reader ask for its next page.
    pub(super) fn read(&mut self, index: usize) {
        let node = self.plan.jobs[index].1;
        let Some(Reader { job: (name, jid), from, .. }) = self.readers.get(&index) else { return };
        let (name, jid, from) = (*name, *jid, *from);
        if name != self.name_of(self.session(node)) {
            // Its jobs ended with the earlier incarnation.
            self.readers.remove(&index);
            return;
        }
        let is_away = matches!(self.nodes[node].role, Role::Dead);
        if is_away || self.now < self.nodes[node].paused_until {
            return self.at(self.now + AGAIN_NS, Event::Read(index));
        }
        let book = &mut self.nodes[node].book;
        book.read(jid, from);
        let Some(record) = book.job(jid) else {
            return self.wrong(format!("job {index} has a reader, and was forgotten"));
        };
        let mut bytes = 0;
        let page = record.outcomes().iter().skip(from).take(PAGE_MAX).take_while(|told| {
            let has_room = bytes < PAGE_BYTES_MAX;
            bytes += told.outcome.output().len();
            has_room
        });
        let page: Vec<TaskOutcome> = page.cloned().collect();
        let next = from + page.len();
        let is_last = record.over_at.is_some() && next >= record.outcomes().len();
        // Outcomes from before the owner's restart are kept while there is room.
        let is_attached = book.is_attached(jid);
        for told in page {
            let is_whole = match &told.outcome {
                Outcome::Done(output) => *output == self.plan.outputs.of(told.tid),
                Outcome::Failed(..) | Outcome::Unknown | Outcome::Lost | Outcome::Cancelled => true,
            };
            if is_attached && !is_whole {
                self.wrong(format!("the output of task {index}.{} was dropped", told.tid));
            }
            let is_new = self.readers.get_mut(&index).is_none_or(|own| own.seen.insert(told.tid));
            if !is_new {
                self.wrong(format!("task {index}.{} is told twice", told.tid));
            }
        }
        let Some(reader) = self.readers.get_mut(&index) else { return };
        reader.from = next;
        if is_last {
            let (seen, tasks) = (reader.seen.len(), self.plan.jobs[index].2.tasks.len());
            if seen != tasks {
                self.wrong(format!(
                    "the reader of job {index} was told of {seen} of {tasks} tasks"
                ));
            }
            self.readers.remove(&index);
            self.nodes[node].book.detach(jid);
            return self.hold(node);
        }
        self.hold(node);
        let read_ns = self.plan.readers[index].unwrap_or(AGAIN_NS);
        self.at(self.now + read_ns, Event::Read(index));
    }

    /// Lets outputs stay at the workers while readers have too much to read.
    pub(super) fn hold(&mut self, node: usize) {
        let is_full = self.nodes[node].book.is_full();
        if let Role::Owner(owner) = &mut self.nodes[node].role {
            owner.hold_outputs(is_full);
        }
    }
}
