//! The book of jobs, for questions to an owner: the jobs in progress, and the latest finished ones.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use concord_core::{Instant, Now};

use crate::{Outcome, TaskOutcome};

/// The number of tasks of finished jobs whose outcomes are kept.
pub(crate) const TASKS_KEPT_MAX: usize = 1 << 20;
/// The number of finished jobs that are kept.
const JOBS_KEPT_MAX: usize = 1 << 14;
/// The bytes of outputs that are kept. Those of the jobs that finished first are dropped first; if
/// nothing older is left to drop, a new output is dropped too. A task whose output was dropped has
/// its length, and no bytes.
pub const OUTPUT_BYTES_KEPT_MAX: usize = 256 << 20;

/// The bytes of outputs unread by the readers of attached jobs from which on further ones stay at
/// the workers: three eighths of the room. A quarter is for outputs in transfer from workers, with
/// one of the longest beside them, and a quarter for those that are not durable yet.
const fn unread_bytes_max(room_bytes: usize) -> usize {
    room_bytes / 8 * 3
}

/// The number of tasks of a job by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks that succeeded.
    pub done: u32,
    /// Tasks that failed for good.
    pub failed: u32,
    /// Tasks whose worker went silent, and which must not be run twice.
    pub unknown: u32,
    /// Tasks during which too many workers went silent.
    pub lost: u32,
    /// Tasks that were cancelled.
    pub cancelled: u32,
}

impl Counts {
    /// The number of tasks that are over.
    #[must_use]
    pub fn over(&self) -> u32 {
        self.done + self.failed + self.unknown + self.lost + self.cancelled
    }

    /// The number of tasks that are over, and neither succeeded nor were cancelled.
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

/// The record of a job.
#[derive(Clone, Debug)]
pub struct JobRecord {
    /// JID.
    pub jid: u32,
    /// Its title, for a person.
    pub title: String,
    /// The number of its tasks.
    pub tasks: u32,
    /// The number of its first task as shown to a person: arrays need not begin at 0.
    pub first: u32,
    /// The numbers of its tasks, if they are not consecutive from `first`.
    pub numbers: Vec<u32>,
    /// Whether its tasks are never run twice.
    pub once: bool,
    /// The number of times that a failed task is tried again.
    pub retries: u16,
    /// The time limit of a task in ms; 0 for none.
    pub limit_ms: u32,
    /// Its priority; 3 is the most urgent.
    pub priority: u8,
    /// The class of executors that it needs, as shown to a person; empty for any.
    pub needs: String,
    /// The node near which it is to run.
    pub near: Option<u16>,
    /// The reason for its cancellation, as shown to a person.
    pub cancelled_why: String,
    /// The time at which it was accepted.
    pub taken_at: Now,
    /// The time at which its last task was over.
    pub over_at: Option<Instant>,
    /// Its tasks by outcome.
    pub counts: Counts,
    /// The outcomes, in the order in which the tasks ended.
    outcomes: Vec<TaskOutcome>,
    /// For each TID, 1 + the index of its outcome in `outcomes`, or 0 if it is not over.
    places: Vec<u32>,
    output_bytes: usize,
    /// If it has a reader, the number of outcomes that the reader has: their outputs are dropped
    /// before others.
    read_to: Option<usize>,
    /// The number of outcomes, from the first, whose outputs were dropped.
    dropped_to: usize,
}

impl JobRecord {
    /// The record of a job that was just accepted; the other fields are to be filled in.
    #[must_use]
    pub fn new(jid: u32, title: String, tasks: u32, taken_at: Now) -> JobRecord {
        JobRecord {
            jid,
            title,
            tasks,
            first: 0,
            numbers: Vec::new(),
            once: false,
            retries: 0,
            limit_ms: 0,
            priority: 0,
            needs: String::new(),
            near: None,
            cancelled_why: String::new(),
            taken_at,
            over_at: None,
            counts: Counts::default(),
            outcomes: Vec::new(),
            places: alloc::vec![0; tasks as usize],
            output_bytes: 0,
            read_to: None,
            dropped_to: 0,
        }
    }

    /// The number of a task, as shown to a person.
    #[must_use]
    pub fn number(&self, tid: u32) -> u32 {
        let own = self.numbers.get(tid as usize).copied();
        own.unwrap_or_else(|| self.first.saturating_add(tid))
    }

    /// The TID of the task with this number.
    #[must_use]
    pub fn tid(&self, number: u32) -> Option<u32> {
        let tid = if self.numbers.is_empty() {
            number.checked_sub(self.first)?
        } else {
            self.numbers.iter().position(|own| *own == number)? as u32
        };
        (tid < self.tasks).then_some(tid)
    }

    /// Drops the outputs of its outcomes up to `end`. Returns the bytes and the number of tasks.
    fn drop_outputs(&mut self, end: usize) -> (usize, u64) {
        let (mut bytes, mut count) = (0, 0);
        let from = self.dropped_to.min(end);
        for told in self.outcomes.iter_mut().take(end).skip(from) {
            if let Outcome::Done(output) | Outcome::Failed(_, output) = &mut told.outcome {
                bytes += output.len();
                count += u64::from(!output.is_empty());
                // Clearing it would keep its capacity.
                *output = Vec::new();
            }
        }
        self.dropped_to = self.dropped_to.max(end);
        self.output_bytes -= bytes;
        (bytes, count)
    }

    /// The outcomes of its tasks, in the order in which they ended.
    #[must_use]
    pub fn outcomes(&self) -> &[TaskOutcome] {
        &self.outcomes
    }

    /// The outcome of a task, or `None` if it is not over.
    #[must_use]
    pub fn outcome(&self, tid: u32) -> Option<&TaskOutcome> {
        let place = *self.places.get(tid as usize)?;
        self.outcomes.get((place as usize).checked_sub(1)?)
    }
}

/// All known jobs.
#[derive(Clone, Debug)]
pub struct Book {
    /// The bytes of outputs for which there is room.
    room_bytes: usize,
    jobs: BTreeMap<u32, JobRecord>,
    /// The finished jobs, in the order in which they finished.
    over: VecDeque<u32>,
    tasks_over: usize,
    /// Those of them whose outputs were not dropped.
    with_outputs: VecDeque<u32>,
    /// Jobs in progress that have outputs, but no reader.
    unattached: BTreeSet<u32>,
    /// Jobs with a reader.
    attached: BTreeSet<u32>,
    output_bytes: usize,
    /// The bytes of outputs that readers of attached jobs have not read.
    unread_bytes: usize,
    /// The number of jobs that were forgotten.
    forgotten: u64,
    outputs_dropped: u64,
}

impl Default for Book {
    fn default() -> Book {
        Book::with_room(OUTPUT_BYTES_KEPT_MAX)
    }
}

impl Book {
    /// A book of no jobs.
    #[must_use]
    pub fn new() -> Book {
        Book::default()
    }

    /// An empty book with room for this many bytes of outputs.
    #[must_use]
    pub fn with_room(room_bytes: usize) -> Book {
        Book {
            room_bytes,
            jobs: BTreeMap::new(),
            over: VecDeque::new(),
            tasks_over: 0,
            with_outputs: VecDeque::new(),
            unattached: BTreeSet::new(),
            attached: BTreeSet::new(),
            output_bytes: 0,
            unread_bytes: 0,
            forgotten: 0,
            outputs_dropped: 0,
        }
    }

    /// Adds a job that was accepted.
    pub fn open(&mut self, record: JobRecord) {
        self.jobs.insert(record.jid, record);
    }

    /// Notes that a job has a reader, which asks for its outcomes in order: what it has not read is
    /// not dropped for lack of room as long as [`Book::is_full`] is respected.
    pub fn attach(&mut self, jid: u32) {
        if let Some(job) = self.jobs.get_mut(&jid)
            && job.read_to.is_none()
        {
            job.read_to = Some(job.outcomes.len());
            self.attached.insert(jid);
        }
    }

    /// Notes that the reader of an attached job has its first `count` outcomes.
    pub fn read(&mut self, jid: u32, count: usize) {
        let Some(job) = self.jobs.get_mut(&jid) else { return };
        let Some(read_to) = &mut job.read_to else { return };
        let count = count.min(job.outcomes.len());
        let read = job.outcomes.iter().take(count).skip(*read_to);
        self.unread_bytes -= read.map(|told| told.outcome.output().len()).sum::<usize>();
        *read_to = count.max(*read_to);
    }

    /// Notes that it is not known how much the reader of an attached job has, since another process
    /// sent it: everything counts as unread until the reader asks.
    pub fn unread(&mut self, jid: u32) {
        let Some(job) = self.jobs.get_mut(&jid) else { return };
        let Some(read_to) = &mut job.read_to else { return };
        let from = job.dropped_to.min(*read_to);
        let again = job.outcomes.iter().take(*read_to).skip(from);
        self.unread_bytes += again.map(|told| told.outcome.output().len()).sum::<usize>();
        *read_to = from;
    }

    /// Notes that an attached job has no reader any more.
    pub fn detach(&mut self, jid: u32) {
        self.read(jid, usize::MAX);
        if let Some(job) = self.jobs.get_mut(&jid) {
            job.read_to = None;
            if job.over_at.is_none() && job.output_bytes > 0 {
                self.unattached.insert(jid);
            }
        }
        self.attached.remove(&jid);
    }

    /// Whether a job has a reader.
    #[must_use]
    pub fn is_attached(&self, jid: u32) -> bool {
        self.attached.contains(&jid)
    }

    /// Whether so much waits for readers that no more outputs should be taken from workers.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.unread_bytes > unread_bytes_max(self.room_bytes)
    }

    /// Notes the reason for which the unfinished tasks of a job will be cancelled.
    pub fn cancelled(&mut self, jid: u32, why: &str) {
        if let Some(job) = self.jobs.get_mut(&jid)
            && job.over_at.is_none()
        {
            job.cancelled_why = String::from(why);
        }
    }

    /// Notes that a task is over.
    pub fn note(&mut self, mut ended: TaskOutcome) {
        let output_bytes = ended.outcome.output().len();
        let is_attached = self.attached.contains(&ended.jid);
        self.make_room(output_bytes, is_attached);
        let Some(job) = self.jobs.get_mut(&ended.jid) else { return };
        let Some(place) = job.places.get_mut(ended.tid as usize) else { return };
        if let Outcome::Done(output) | Outcome::Failed(_, output) = &mut ended.outcome {
            if self.output_bytes + output_bytes > self.room_bytes {
                self.outputs_dropped += 1;
                *output = Vec::new();
            }
            job.output_bytes += output.len();
            self.output_bytes += output.len();
            self.unread_bytes += if job.read_to.is_some() { output.len() } else { 0 };
            if job.read_to.is_none() && !output.is_empty() {
                self.unattached.insert(job.jid);
            }
        }
        job.counts.count(&ended.outcome);
        let over_at = ended.trace.over_at;
        job.outcomes.push(ended);
        *place = job.outcomes.len() as u32;
        if job.counts.over() == job.tasks {
            job.over_at = Some(over_at);
            self.unattached.remove(&job.jid);
            self.tasks_over += job.tasks as usize;
            self.over.push_back(job.jid);
            self.with_outputs.push_back(job.jid);
        }
        self.forget();
    }

    /// Drops outputs, the oldest first, until one of `bytes` has room: what its reader has read of
    /// attached jobs, and all outputs of other finished jobs. For an output that a reader waits
    /// for, those of jobs in progress without a reader are dropped too.
    fn make_room(&mut self, bytes: usize, is_attached: bool) {
        if self.output_bytes + bytes <= self.room_bytes {
            return;
        }
        for jid in &self.attached {
            if let Some(job) = self.jobs.get_mut(jid) {
                let (dropped, _) = job.drop_outputs(job.read_to.unwrap_or(0));
                self.output_bytes -= dropped;
            }
        }
        for _ in 0..self.with_outputs.len() {
            if self.output_bytes + bytes <= self.room_bytes {
                return;
            }
            let Some(jid) = self.with_outputs.pop_front() else { break };
            let Some(job) = self.jobs.get_mut(&jid) else { continue };
            if job.read_to.is_some_and(|read_to| read_to < job.outcomes.len()) {
                self.with_outputs.push_back(jid);
                continue;
            }
            let (dropped, count) = job.drop_outputs(usize::MAX);
            self.output_bytes -= dropped;
            self.outputs_dropped += count;
        }
        while is_attached
            && self.output_bytes + bytes > self.room_bytes
            && let Some(jid) = self.unattached.first().copied()
        {
            let Some(job) = self.jobs.get_mut(&jid).filter(|job| job.output_bytes > 0) else {
                self.unattached.remove(&jid);
                continue;
            };
            let (dropped, count) = job.drop_outputs(job.dropped_to + 1);
            self.output_bytes -= dropped;
            self.outputs_dropped += count;
        }
    }

    /// Forgets the jobs that finished first, as many as are too many; the last one stays.
    fn forget(&mut self) {
        while (self.tasks_over > TASKS_KEPT_MAX || self.over.len() > JOBS_KEPT_MAX)
            && self.over.len() > 1
        {
            let Some(jid) = self.over.pop_front() else { return };
            self.detach(jid);
            if self.with_outputs.front() == Some(&jid) {
                self.with_outputs.pop_front();
            }
            if let Some(job) = self.jobs.remove(&jid) {
                self.tasks_over -= job.tasks as usize;
                self.output_bytes -= job.output_bytes;
                self.forgotten += 1;
            }
        }
    }

    /// A job, or `None` if it never existed or was forgotten.
    #[must_use]
    pub fn job(&self, jid: u32) -> Option<&JobRecord> {
        self.jobs.get(&jid)
    }

    /// All jobs, the newest last.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &JobRecord> + ExactSizeIterator {
        self.jobs.values()
    }

    /// The number of jobs that were forgotten, and of outputs that were dropped, for lack of room.
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

    #[test]
    fn outputs_of_jobs_that_were_over_first_are_dropped_first() {
        let mut book = Book::new();
        open(&mut book, 1, 2);
        let large = vec![7; OUTPUT_BYTES_KEPT_MAX / 4];
        for jid in 2..8 {
            open(&mut book, jid, 1);
            book.note(ended(jid, 0, Outcome::Done(large.clone())));
        }
        let has = |jid: u32| {
            let job = book.job(jid)?;
            Some(!job.outcome(0)?.outcome.output().is_empty())
        };
        let some = |is_kept| Some(is_kept);
        assert_eq!((1..8).map(has).collect::<Vec<_>>()[..3], [None, some(false), some(false)]);
        assert_eq!((has(4), has(7), book.forgotten()), (some(true), some(true), (0, 2)));
        // One that goes on may take all the room there is, and no more.
        open(&mut book, 8, 9);
        for tid in 0..9 {
            book.note(ended(8, tid, Outcome::Done(large.clone())));
        }
        assert!(book.output_bytes <= OUTPUT_BYTES_KEPT_MAX);
        assert!(book.job(1).is_some() && book.job(2).is_some());
    }

    /// A day of one-task jobs: what is kept of them has a bound.
    #[test]
    fn bug_21_49_of_many_small_jobs_the_newest_are_kept() {
        let mut book = Book::new();
        for jid in 1..=2 * JOBS_KEPT_MAX as u32 {
            open(&mut book, jid, 1);
            book.note(ended(jid, 0, Outcome::Done(vec![1])));
        }
        let (jobs, bytes) = (book.jobs.len(), book.output_bytes);
        assert_eq!((jobs, bytes, book.with_outputs.len()), (JOBS_KEPT_MAX, jobs, jobs));
    }

    /// A reader that is slower than its job's tasks loses nothing: it is said that no more is to be
    /// taken, and what it has read goes first.
    #[test]
    fn bug_21_50_unread_output_of_an_attached_reader_stays() {
        let (tasks, bytes) = (2_000, 1 << 20);
        let mut book = Book::new();
        open(&mut book, 1, tasks);
        book.attach(1);
        let (mut read, mut tid) = (0, 0);
        while read < tasks as usize {
            while !book.is_full() && tid < tasks {
                book.note(ended(1, tid, Outcome::Done(vec![7; bytes])));
                tid += 1;
            }
            assert!(book.output_bytes <= OUTPUT_BYTES_KEPT_MAX);
            let job = book.job(1).unwrap();
            for told in job.outcomes().iter().skip(read).take(3) {
                assert_eq!(told.outcome.output().len(), bytes);
                read += 1;
            }
            book.read(1, read);
        }
        assert_eq!((book.unread_bytes, book.forgotten()), (0, (0, 0)));
        book.detach(1);
        assert!(book.attached.is_empty());
    }

    /// A job without a reader that takes all the room takes none of what a reader waits for.
    #[test]
    fn bug_21_91_outputs_without_a_reader_go_first() {
        let mut book = Book::with_room(1_000);
        open(&mut book, 1, 30);
        open(&mut book, 2, 3);
        for tid in 0..20 {
            book.note(ended(1, tid, Outcome::Done(vec![1; 100])));
        }
        book.attach(2);
        book.note(ended(2, 0, Outcome::Done(vec![2; 100])));
        let lengths = |book: &Book, jid| -> Vec<usize> {
            let all = book.job(jid).unwrap().outcomes().iter();
            all.map(|told| told.outcome.output().len()).collect()
        };
        assert_eq!((lengths(&book, 2), lengths(&book, 1)[..2] == [0, 100]), (vec![100], true));
        assert_eq!((book.output_bytes, book.forgotten()), (1_000, (0, 11)));
        // Its reader is gone: then it is one without.
        book.detach(2);
        assert_eq!(book.unattached.iter().copied().collect::<Vec<_>>(), [1, 2]);
    }

    /// After another process nobody knows what a reader has: nothing of it is dropped before it
    /// says.
    #[test]
    fn bug_21_92_a_reader_that_finds_its_job_again_loses_nothing() {
        let mut book = Book::with_room(1_000);
        open(&mut book, 1, 30);
        book.attach(1);
        for tid in 0..8 {
            book.read(1, tid as usize);
            book.note(ended(1, tid, Outcome::Done(vec![1; 100])));
        }
        assert!(!book.is_full());
        book.unread(1);
        assert!(book.is_full() && book.unread_bytes == 800);
        book.read(1, 5);
        assert!(!book.is_full() && book.unread_bytes == 300);
    }

    /// Where outputs have no reader and no room, what was dropped holds no memory.
    #[test]
    fn bug_21_51_an_output_that_is_dropped_frees_its_bytes() {
        let mut book = Book::new();
        open(&mut book, 1, 300);
        for tid in 0..300 {
            book.note(ended(1, tid, Outcome::Done(vec![7; 1 << 20])));
        }
        let capacity = |told: &TaskOutcome| match &told.outcome {
            Outcome::Done(output) => output.capacity(),
            _ => 0,
        };
        let held =
            |book: &Book| -> usize { book.job(1).unwrap().outcomes().iter().map(capacity).sum() };
        assert_eq!((held(&book), book.forgotten()), (OUTPUT_BYTES_KEPT_MAX, (0, 44)));
        // Nor does what is dropped later, for an output that a reader waits for.
        open(&mut book, 2, 1);
        book.attach(2);
        book.note(ended(2, 0, Outcome::Done(vec![7; 1 << 20])));
        assert_eq!(held(&book), 0);
    }

    /// A large job that is over hides none of those before it.
    #[test]
    fn bug_21_58_a_job_of_large_outputs_hides_no_older_one() {
        let mut book = Book::new();
        open(&mut book, 1, 1);
        book.note(ended(1, 0, Outcome::Done(vec![1])));
        open(&mut book, 2, 300);
        for tid in 0..300 {
            book.note(ended(2, tid, Outcome::Done(vec![7; 1 << 20])));
        }
        assert_eq!(book.jobs().map(|job| job.jid).collect::<Vec<_>>(), [1, 2]);
    }
}
