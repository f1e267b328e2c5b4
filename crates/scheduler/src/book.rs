//! The book of jobs: those that go on, and the last ones that are over. For whoever asks an owner
//! about them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use concord_core::{Instant, Now};

use crate::{Outcome, TaskOutcome};

/// Most tasks of jobs that are over of which the outcomes are kept.
pub(crate) const TASKS_KEPT_MAX: usize = 1 << 20;
/// Most bytes of outputs that are kept. What comes beyond, with no older job left to forget, is
/// dropped.
pub(crate) const OUTPUT_BYTES_KEPT_MAX: usize = 256 << 20;

/// How the tasks of a job ended: how many each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Done.
    pub done: u32,
    /// Failed for good.
    pub failed: u32,
    /// Their worker went silent, and they are not to be run twice.
    pub unknown: u32,
    /// Too many workers went silent while they ran them.
    pub lost: u32,
    /// Cancelled.
    pub cancelled: u32,
}

impl Counts {
    /// How many are over.
    #[must_use]
    pub fn over(&self) -> u32 {
        self.done + self.failed + self.unknown + self.lost + self.cancelled
    }

    /// How many are over and neither done nor cancelled.
    #[must_use]
    pub fn dead(&self) -> u32 {
        self.failed + self.unknown + self.lost
    }

    fn count(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::Done(_) => &mut self.done,
            Outcome::Failed(..) => &mut self.failed,
            Outcome::Unknown => &mut self.unknown,
            Outcome::Lost => &mut self.lost,
            Outcome::Cancelled => &mut self.cancelled,
        } += 1;
    }
}

/// A job.
#[derive(Clone, Debug)]
pub struct JobRecord {
    /// JID.
    pub jid: u32,
    /// What it is, for a person.
    pub title: String,
    /// How many tasks it has.
    pub tasks: u32,
    /// The number of its first task, for a person: those of an array do not begin at 0.
    pub first: u32,
    /// No task of it is ever run twice.
    pub once: bool,
    /// How often a task that failed is tried again.
    pub retries: u16,
    /// How long a task may take, in ms; 0: for ever.
    pub limit_ms: u32,
    /// 3 is the most urgent.
    pub priority: u8,
    /// The class of executors that it needs, for a person; empty: any.
    pub needs: String,
    /// The node near which it is to run.
    pub near: Option<u16>,
    /// When it was taken.
    pub taken_at: Now,
    /// When its last task was over.
    pub over_at: Option<Instant>,
    /// How its tasks ended.
    pub counts: Counts,
    /// In the order in which they ended.
    outcomes: Vec<TaskOutcome>,
    /// By TID, 1 and where in `outcomes` it is; 0 if it is not over.
    places: Vec<u32>,
    output_bytes: usize,
}

impl JobRecord {
    /// A job that was just taken; the other fields are to be filled in.
    #[must_use]
    pub fn new(jid: u32, title: String, tasks: u32, taken_at: Now) -> JobRecord {
        JobRecord {
            jid,
            title,
            tasks,
            first: 0,
            once: false,
            retries: 0,
            limit_ms: 0,
            priority: 0,
            needs: String::new(),
            near: None,
            taken_at,
            over_at: None,
            counts: Counts::default(),
            outcomes: Vec::new(),
            places: alloc::vec![0; tasks as usize],
            output_bytes: 0,
        }
    }

    /// How its tasks ended, in the order in which they did.
    #[must_use]
    pub fn outcomes(&self) -> &[TaskOutcome] {
        &self.outcomes
    }

    /// How a task ended; `None` if it is not over.
    #[must_use]
    pub fn outcome(&self, tid: u32) -> Option<&TaskOutcome> {
        let place = *self.places.get(tid as usize)?;
        self.outcomes.get((place as usize).checked_sub(1)?)
    }
}

/// All jobs that are known.
#[derive(Clone, Debug, Default)]
pub struct Book {
    jobs: BTreeMap<u32, JobRecord>,
    /// Those that are over, in the order in which they were.
    over: VecDeque<u32>,
    tasks_over: usize,
    output_bytes: usize,
    /// Jobs that were forgotten.
    forgotten: u64,
    outputs_dropped: u64,
}

impl Book {
    /// A book of no jobs.
    #[must_use]
    pub fn new() -> Book {
        Book::default()
    }

    /// A job was taken.
    pub fn open(&mut self, record: JobRecord) {
        self.jobs.insert(record.jid, record);
    }

    /// A task is over.
    pub fn note(&mut self, mut ended: TaskOutcome) {
        let Some(job) = self.jobs.get_mut(&ended.jid) else { return };
        let Some(place) = job.places.get_mut(ended.tid as usize) else { return };
        if let Outcome::Done(output) | Outcome::Failed(_, output) = &mut ended.outcome {
            if self.output_bytes + output.len() > OUTPUT_BYTES_KEPT_MAX && self.over.len() <= 1 {
                self.outputs_dropped += 1;
                output.clear();
            }
            job.output_bytes += output.len();
            self.output_bytes += output.len();
        }
        job.counts.count(&ended.outcome);
        let over_at = ended.trace.over_at;
        job.outcomes.push(ended);
        *place = job.outcomes.len() as u32;
        if job.counts.over() == job.tasks {
            job.over_at = Some(over_at);
            self.tasks_over += job.tasks as usize;
            self.over.push_back(job.jid);
        }
        self.forget();
    }

    /// Forgets the jobs that were over first, as many as are too many; the last one stays.
    fn forget(&mut self) {
        while (self.tasks_over > TASKS_KEPT_MAX || self.output_bytes > OUTPUT_BYTES_KEPT_MAX)
            && self.over.len() > 1
        {
            let Some(jid) = self.over.pop_front() else { return };
            if let Some(job) = self.jobs.remove(&jid) {
                self.tasks_over -= job.tasks as usize;
                self.output_bytes -= job.output_bytes;
                self.forgotten += 1;
            }
        }
    }

    /// A job; `None` if it never was, or was forgotten.
    #[must_use]
    pub fn job(&self, jid: u32) -> Option<&JobRecord> {
        self.jobs.get(&jid)
    }

    /// All of them, the newest last.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &JobRecord> {
        self.jobs.values()
    }

    /// How many jobs were forgotten, and how many outputs dropped, for want of room.
    #[must_use]
    pub fn forgotten(&self) -> (u64, u64) {
        (self.forgotten, self.outputs_dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trace;
    use alloc::string::ToString;
    use alloc::vec;

    fn ended(jid: u32, tid: u32, outcome: Outcome) -> TaskOutcome {
        let trace = Trace { over_at: Instant(u64::from(tid) + 1), ..Trace::default() };
        TaskOutcome { jid, tid, attempts: 1, outcome, output_bytes: 0, trace }
    }

    fn open(book: &mut Book, jid: u32, tasks: u32) {
        book.open(JobRecord::new(jid, "job".to_string(), tasks, Now::default()));
    }

    /// Tasks are found in the order in which they ended and by their numbers.
    #[test]
    fn tasks_by_end_order_and_number() {
        let mut book = Book::new();
        open(&mut book, 1, 3);
        book.note(ended(1, 2, Outcome::Done(b"two".to_vec())));
        book.note(ended(1, 0, Outcome::Unknown));
        let job = book.job(1).unwrap();
        assert_eq!(job.outcomes().iter().map(|o| o.tid).collect::<Vec<_>>(), [2, 0]);
        assert_eq!(job.outcome(2).map(|o| &o.outcome), Some(&Outcome::Done(b"two".to_vec())));
        assert_eq!((job.outcome(1), job.outcome(7), job.over_at), (None, None, None));
        assert_eq!((job.counts.over(), job.counts.dead()), (2, 1));
        book.note(ended(1, 1, Outcome::Cancelled));
        assert_eq!(book.job(1).unwrap().over_at, Some(Instant(2)));
        book.note(ended(9, 0, Outcome::Unknown));
        assert_eq!(book.jobs().count(), 1);
    }

    /// Jobs that were over first are forgotten first and those that go on never.
    #[test]
    fn oldest_finished_jobs_are_forgotten_first() {
        let mut book = Book::new();
        open(&mut book, 1, 2);
        let large = vec![7; OUTPUT_BYTES_KEPT_MAX / 4];
        for jid in 2..8 {
            open(&mut book, jid, 1);
            book.note(ended(jid, 0, Outcome::Done(large.clone())));
        }
        let kept: Vec<u32> = book.jobs().map(|job| job.jid).collect();
        assert_eq!((kept, book.forgotten()), (vec![1, 4, 5, 6, 7], (2, 0)));
        // One that goes on may take all the room there is, and no more.
        open(&mut book, 8, 9);
        for tid in 0..9 {
            book.note(ended(8, tid, Outcome::Done(large.clone())));
        }
        assert!(book.output_bytes <= OUTPUT_BYTES_KEPT_MAX + large.len());
        assert!(book.job(1).is_some());
    }
}
