//! The journal of an owner, by which jobs outlive it: the jobs that it took, how their tasks ended,
//! and which tasks that are never run twice may have been begun. No I/O: whoever has a disk writes
//! these bytes, and gives back what it finds.
//!
//! A journal is a header and frames, each of which was synced as a whole before the next one was
//! written. So the last one alone can be torn: it is cut. One that is damaged with another one
//! behind it is damage, and nothing is made of such a journal.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use concord_core::hash::hash64;
use concord_wire::falcon::Parameters;
use concord_wire::tasks::Ended;
use serde::{Deserialize, Serialize};

use crate::book::{OUTPUT_BYTES_KEPT_MAX, TASKS_KEPT_MAX};
use crate::outcome::Outcome;
use crate::owner::{Job, TaskSpec};

const MAGIC: &[u8; 8] = b"CNCRDJB1";
/// Magic number, the journal's own number, its checksum.
const HEADER_BYTES: usize = 24;
const FRAME: &[u8; 4] = b"CJF1";
/// Marker, length, checksum.
const FRAME_HEADER_BYTES: usize = 16;

/// A task as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenTask {
    function: u16,
    parameters: Vec<u8>,
    is_long: bool,
}

/// A job as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrittenJob {
    jid: u32,
    /// When it was taken, in ms since the Unix epoch.
    unix_ms: u64,
    /// What its owner's driver wants to know of it.
    note: Vec<u8>,
    tasks: Vec<WrittenTask>,
    body: Option<Vec<u8>>,
    once: bool,
    retries: u16,
    limit_ms: u32,
    priority: u8,
    needs: u8,
    near: Option<u16>,
    locality_wait_ns: u64,
}

impl WrittenJob {
    pub(crate) fn new(jid: u32, unix_ms: u64, job: &Job, note: &[u8]) -> WrittenJob {
        // All fields are named: what a job has else must be written, too.
        let Job {
            tasks,
            body,
            long,
            once,
            retries,
            limit_ms,
            priority,
            needs,
            near,
            locality_wait_ns,
        } = job;
        let task = |(tid, spec): (u32, &TaskSpec)| {
            let TaskSpec { function, parameters } = spec;
            let long = long.get(&tid);
            let parameters = long.map_or(parameters.bytes(), |bytes| bytes);
            WrittenTask {
                function: *function,
                parameters: parameters.to_vec(),
                is_long: long.is_some(),
            }
        };
        WrittenJob {
            jid,
            unix_ms,
            note: note.to_vec(),
            tasks: (0..).zip(tasks).map(task).collect(),
            body: body.as_ref().map(|body| body.to_vec()),
            once: *once,
            retries: *retries,
            limit_ms: *limit_ms,
            priority: *priority,
            needs: *needs,
            near: *near,
            locality_wait_ns: *locality_wait_ns,
        }
    }

    fn job(&self) -> Job {
        let mut long = BTreeMap::new();
        let mut tasks = Vec::with_capacity(self.tasks.len());
        for (tid, task) in (0..).zip(&self.tasks) {
            let short = Parameters::new(&task.parameters).filter(|_| !task.is_long);
            if short.is_none() {
                long.insert(tid, task.parameters.clone().into());
            }
            let parameters = short.unwrap_or_default();
            tasks.push(TaskSpec { function: task.function, parameters });
        }
        let body = self.body.clone().map(Into::into);
        Job {
            tasks,
            body,
            long,
            once: self.once,
            retries: self.retries,
            limit_ms: self.limit_ms,
            priority: self.priority,
            needs: self.needs,
            near: self.near,
            locality_wait_ns: self.locality_wait_ns,
        }
    }
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum How {
    Done,
    Failed(Ended),
    Unknown,
    Lost,
    Cancelled,
}

/// How a task ended, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrittenOutcome {
    jid: u32,
    tid: u32,
    attempts: u16,
    how: How,
    output: Vec<u8>,
    output_bytes: u64,
    /// How long after its job was taken.
    over_ns: u64,
}

impl WrittenOutcome {
    pub(crate) fn new(told: &crate::TaskOutcome) -> WrittenOutcome {
        WrittenOutcome {
            jid: told.jid,
            tid: told.tid,
            attempts: told.attempts,
            how: match &told.outcome {
                Outcome::Done(_) => How::Done,
                Outcome::Failed(ended, _) => How::Failed(*ended),
                Outcome::Unknown => How::Unknown,
                Outcome::Lost => How::Lost,
                Outcome::Cancelled => How::Cancelled,
            },
            output: told.outcome.output().to_vec(),
            output_bytes: told.output_bytes,
            over_ns: told.trace.over_at.since(told.trace.taken_at),
        }
    }
}

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// An owner began: the number of its next job. How many began is how often the journal was gone
    /// on with.
    Began { next_jid: u32 },
    /// A job was taken.
    Took(WrittenJob),
    /// A task that is never run twice may be begun from now on.
    Begun { jid: u32, tid: u32 },
    /// A task is over.
    Over(WrittenOutcome),
    /// Attempts of a job's tasks have numbers up to this one from now on.
    Attempts { jid: u32, up_to: u16 },
}

/// How a task ended, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundOutcome {
    /// TID.
    pub tid: u32,
    /// How often it was submitted.
    pub attempts: u16,
    /// How.
    pub outcome: Outcome,
    /// How much it gave.
    pub output_bytes: u64,
    /// How long after its job was taken, in ns.
    pub over_ns: u64,
}

/// A job that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundJob {
    /// JID.
    pub jid: u32,
    /// When it was taken, in ms since the Unix epoch.
    pub unix_ms: u64,
    /// What was noted with it.
    pub note: Vec<u8>,
    /// The job.
    pub job: Job,
    /// How its tasks ended, in the order in which they did.
    pub outcomes: Vec<FoundOutcome>,
    /// Tasks that may have been begun, if they are never run twice.
    pub(crate) begun: BTreeSet<u32>,
    /// Tasks that are over.
    over: BTreeSet<u32>,
    /// No attempt of its tasks had a higher number; `None`: none is written.
    pub(crate) attempts_up_to: Option<u16>,
    written: WrittenJob,
}

impl FoundJob {
    /// Whether all of its tasks are over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.outcomes.len() == self.job.tasks.len()
    }

    /// The tasks that are over.
    pub(crate) fn over(&self) -> &BTreeSet<u32> {
        &self.over
    }
}

/// What was found in a journal.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The journal's own number.
    pub number: u64,
    /// The jobs, by JID.
    pub jobs: BTreeMap<u32, FoundJob>,
    /// How long it is without a torn end.
    pub length: usize,
    /// How much was cut off.
    pub cut: usize,
    next_jid: u32,
}

impl Found {
    /// The number of the next job.
    #[must_use]
    pub fn next_jid(&self) -> u32 {
        self.next_jid.max(self.jobs.keys().last().map_or(0, |jid| jid + 1)).max(1)
    }
}

/// A journal writes frames.
#[derive(Clone, Debug)]
pub struct Journal {
    number: u64,
    length: usize,
    entries: Vec<Entry>,
}

/// How much of the jobs that are over is kept when a journal is written anew.
#[derive(Clone, Copy, Debug)]
struct Most {
    jobs: usize,
    tasks: usize,
    output_bytes: usize,
}

impl Most {
    /// Whether there is room for a job, which takes it up.
    fn takes(&mut self, job: &FoundJob) -> bool {
        let output_bytes = job.outcomes.iter().map(|told| told.outcome.output().len()).sum();
        let left = (
            self.jobs.checked_sub(1),
            self.tasks.checked_sub(job.job.tasks.len()),
            self.output_bytes.checked_sub(output_bytes),
        );
        let (Some(jobs), Some(tasks), Some(output_bytes)) = left else { return false };
        *self = Most { jobs, tasks, output_bytes };
        true
    }
}

fn checksum(number: u64, at: usize, body: &[u8]) -> u64 {
    hash64(number ^ (at as u64).rotate_left(32), body)
}

/// The frame at `at`: its body, and where the next one begins. `None`: there is no whole one.
fn frame(number: u64, bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let header = bytes.get(at..)?.get(..FRAME_HEADER_BYTES)?;
    let (marker, rest) = header.split_first_chunk::<4>()?;
    let (length, sum) = rest.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    let from = at + FRAME_HEADER_BYTES;
    let body = bytes.get(from..from.checked_add(length)?)?;
    let is_right = marker == FRAME
        && sum.first_chunk().map(|sum| u64::from_be_bytes(*sum))
            == Some(checksum(number, at, body));
    is_right.then_some((body, from + length))
}

impl Journal {
    /// A new one: its first bytes.
    #[must_use]
    pub fn create(number: u64) -> (Journal, Vec<u8>) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&hash64(1, &number.to_be_bytes()).to_be_bytes());
        (Journal { number, length: HEADER_BYTES, entries: Vec::new() }, bytes)
    }

    /// One that goes on after what was found; its torn end has to be cut off first.
    #[must_use]
    pub fn resume(found: &Found) -> Journal {
        Journal { number: found.number, length: found.length, entries: Vec::new() }
    }

    /// A new journal of what is worth to be kept: jobs that go on, and the last `over_max` that are
    /// over, if they have no more tasks and outputs than a [`crate::Book`] keeps.
    #[must_use]
    pub fn rewritten(number: u64, found: &Found, over_max: usize) -> Vec<u8> {
        let most =
            Most { jobs: over_max, tasks: TASKS_KEPT_MAX, output_bytes: OUTPUT_BYTES_KEPT_MAX };
        Journal::rewritten_within(number, found, most)
    }

    fn rewritten_within(number: u64, found: &Found, mut most: Most) -> Vec<u8> {
        let (mut journal, mut bytes) = Journal::create(number);
        let over = found.jobs.values().rev().filter(|job| job.is_over());
        let kept: BTreeSet<u32> =
            over.take_while(|job| most.takes(job)).map(|job| job.jid).collect();
        journal.push(Entry::Began { next_jid: found.next_jid() });
        journal.frame(&mut bytes);
        for job in found.jobs.values() {
            if job.is_over() && !kept.contains(&job.jid) {
                continue;
            }
            journal.push(Entry::Took(job.written.clone()));
            if let Some(up_to) = job.attempts_up_to {
                journal.push(Entry::Attempts { jid: job.jid, up_to });
            }
            for tid in &job.begun {
                journal.push(Entry::Begun { jid: job.jid, tid: *tid });
            }
            for told in &job.outcomes {
                journal.push(Entry::Over(told.written(job.jid)));
            }
            journal.frame(&mut bytes);
        }
        bytes
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Whether there is something to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How long it is, with all frames that were made.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Appends what there is to write, as one frame.
    pub(crate) fn frame(&mut self, bytes: &mut Vec<u8>) {
        if self.entries.is_empty() {
            return;
        }
        // Encoding into memory cannot fail; the types are plain.
        let body = postcard::to_allocvec(&self.entries).unwrap_or_default();
        assert!(!body.is_empty(), "entries are encoded");
        self.entries.clear();
        bytes.extend_from_slice(FRAME);
        bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&checksum(self.number, self.length, &body).to_be_bytes());
        bytes.extend_from_slice(&body);
        self.length += FRAME_HEADER_BYTES + body.len();
    }

    /// What can be trusted of a journal's bytes. `None`: nothing was ever written.
    ///
    /// # Errors
    /// One line that says what is damaged.
    pub fn recover(bytes: &[u8]) -> Result<Option<Found>, String> {
        let Some(header) = bytes.get(..HEADER_BYTES) else {
            // It was never whole, so nobody was told anything.
            let is_torn =
                bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes) || bytes.starts_with(MAGIC);
            return if is_torn { Ok(None) } else { Err("it is no journal of jobs".into()) };
        };
        let (magic, rest) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err("it is no journal of jobs, or one of another version".into());
        }
        let (number, sum) = rest.split_at(8);
        if hash64(1, number).to_be_bytes() != *sum {
            return Err("its header is damaged".into());
        }
        let number = number.first_chunk().map_or(0, |n| u64::from_be_bytes(*n));
        let mut found = Found { number, length: HEADER_BYTES, ..Found::default() };
        while let Some((body, next)) = frame(number, bytes, found.length) {
            let at = found.length;
            let entries: Vec<Entry> = postcard::from_bytes(body)
                .map_err(|_| alloc::format!("what is written at byte {at} makes no sense"))?;
            for entry in entries {
                found.take(entry).map_err(|why| alloc::format!("at byte {at}: {why}"))?;
            }
            found.length = next;
        }
        // Only the last frame can be torn: it was not synced when the next one was made.
        let torn = found.length;
        let later = (torn + 1..bytes.len()).find(|at| frame(number, bytes, *at).is_some());
        if let Some(later) = later {
            return Err(alloc::format!(
                "it is damaged at byte {torn}, before what is written at byte {later}"
            ));
        }
        found.cut = bytes.len() - torn;
        Ok(Some(found))
    }
}

impl FoundOutcome {
    fn written(&self, jid: u32) -> WrittenOutcome {
        let how = match &self.outcome {
            Outcome::Done(_) => How::Done,
            Outcome::Failed(ended, _) => How::Failed(*ended),
            Outcome::Unknown => How::Unknown,
            Outcome::Lost => How::Lost,
            Outcome::Cancelled => How::Cancelled,
        };
        WrittenOutcome {
            jid,
            tid: self.tid,
            attempts: self.attempts,
            how,
            output: self.outcome.output().to_vec(),
            output_bytes: self.output_bytes,
            over_ns: self.over_ns,
        }
    }
}

impl Found {
    fn take(&mut self, entry: Entry) -> Result<(), String> {
        match entry {
            Entry::Began { next_jid } => {
                self.next_jid = self.next_jid.max(next_jid);
            }
            Entry::Took(written) => {
                let WrittenJob { jid, unix_ms, note, .. } = written.clone();
                if jid == u32::MAX {
                    return Err("job numbers have run out".into());
                }
                let job = FoundJob {
                    jid,
                    unix_ms,
                    note,
                    job: written.job(),
                    outcomes: Vec::new(),
                    begun: BTreeSet::new(),
                    over: BTreeSet::new(),
                    attempts_up_to: None,
                    written,
                };
                if self.jobs.insert(jid, job).is_some() {
                    return Err(alloc::format!("job {jid} is written twice"));
                }
            }
            Entry::Begun { jid, tid } => {
                self.job(jid, tid)?.begun.insert(tid);
            }
            Entry::Attempts { jid, up_to } => {
                let job = self.job(jid, 0)?;
                job.attempts_up_to = job.attempts_up_to.max(Some(up_to));
            }
            Entry::Over(told) => {
                let WrittenOutcome { jid, tid, attempts, how, output, output_bytes, over_ns } =
                    told;
                let outcome = match how {
                    How::Done => Outcome::Done(output),
                    How::Failed(ended) => Outcome::Failed(ended, output),
                    How::Unknown => Outcome::Unknown,
                    How::Lost => Outcome::Lost,
                    How::Cancelled => Outcome::Cancelled,
                };
                let told = FoundOutcome { tid, attempts, outcome, output_bytes, over_ns };
                let job = self.job(jid, tid)?;
                if !job.over.insert(tid) {
                    return Err(alloc::format!("task {jid}.{tid} is over twice"));
                }
                job.outcomes.push(told);
            }
        }
        Ok(())
    }

    fn job(&mut self, jid: u32, tid: u32) -> Result<&mut FoundJob, String> {
        let job = self.jobs.get_mut(&jid).filter(|job| (tid as usize) < job.job.tasks.len());
        job.ok_or_else(|| alloc::format!("there is no task {jid}.{tid}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn written() -> (Vec<u8>, Vec<usize>) {
        let (mut journal, mut bytes) = Journal::create(7);
        let mut ends = vec![bytes.len()];
        let mut job = Job { tasks: vec![TaskSpec::default(); 3], once: true, ..Job::default() };
        job.long.insert(1, vec![9; 100].into());
        job.body = Some(b"body"[..].into());
        let over = WrittenOutcome {
            jid: 1,
            tid: 2,
            attempts: 4,
            how: How::Failed(Ended::Exited(3)),
            output: b"why".to_vec(),
            output_bytes: 3,
            over_ns: 5,
        };
        let all = [
            Entry::Began { next_jid: 1 },
            Entry::Took(WrittenJob::new(1, 77, &job, b"note")),
            Entry::Begun { jid: 1, tid: 0 },
            Entry::Attempts { jid: 1, up_to: 200 },
            Entry::Over(over),
        ];
        for entry in all {
            journal.push(entry);
            journal.frame(&mut bytes);
            ends.push(bytes.len());
        }
        assert_eq!(journal.length(), bytes.len());
        (bytes, ends)
    }

    #[test]
    fn what_was_written_is_found_and_written_anew_is_the_same() {
        let (bytes, _) = written();
        let found = Journal::recover(&bytes).unwrap().unwrap();
        let job = &found.jobs[&1];
        assert_eq!((job.job.tasks.len(), job.job.long[&1].len(), job.unix_ms), (3, 100, 77));
        assert_eq!((&job.note[..], job.begun.len(), job.is_over()), (&b"note"[..], 1, false));
        let failed = Outcome::Failed(Ended::Exited(3), b"why".to_vec());
        assert_eq!((&job.outcomes[0].outcome, job.outcomes[0].attempts), (&failed, 4));
        assert_eq!((found.next_jid(), found.cut), (2, 0));
        assert_eq!(job.attempts_up_to, Some(200));
        let again = Journal::recover(&Journal::rewritten(8, &found, 0)).unwrap().unwrap();
        assert_eq!(again.jobs, found.jobs);
        assert_eq!((again.next_jid(), again.number), (2, 8));
    }

    /// Of jobs that are over the newest are kept as far as there is room.
    #[test]
    fn bug_21_40_newest_finished_jobs_are_retained() {
        let mut found = Found::default();
        let job = Job { tasks: vec![TaskSpec::default(); 2], ..Job::default() };
        for jid in 1..=4 {
            found.take(Entry::Took(WrittenJob::new(jid, 77, &job, b""))).unwrap();
            for tid in (0..2).filter(|_| jid != 1) {
                let (how, output, output_bytes) = (How::Done, vec![7; 10], 10);
                let (attempts, over_ns) = (1, 5);
                found
                    .take(Entry::Over(WrittenOutcome {
                        jid,
                        tid,
                        attempts,
                        how,
                        output,
                        output_bytes,
                        over_ns,
                    }))
                    .unwrap();
            }
        }
        let kept = |jobs, tasks, output_bytes| {
            let most = Most { jobs, tasks, output_bytes };
            let bytes = Journal::rewritten_within(8, &found, most);
            let again = Journal::recover(&bytes).unwrap().unwrap();
            again.jobs.into_keys().collect::<Vec<u32>>()
        };
        assert_eq!(kept(9, 9, 99), [1, 2, 3, 4]);
        assert_eq!(kept(2, 9, 99), [1, 3, 4]);
        assert_eq!(kept(9, 5, 99), [1, 3, 4]);
        assert_eq!(kept(9, 9, 39), [1, 4]);
        assert_eq!(kept(9, 1, 99), [1], "one that goes on is kept");
    }

    #[test]
    fn a_torn_end_is_cut_wherever_it_is_torn() {
        let (bytes, ends) = written();
        for length in 0..bytes.len() {
            let found = Journal::recover(&bytes[..length]).unwrap();
            let whole = ends.iter().filter(|end| **end <= length).count();
            let Some(found) = found else {
                assert!(length < ends[0]);
                continue;
            };
            assert_eq!((found.length, found.cut), (ends[whole - 1], length - ends[whole - 1]));
        }
        // A page of the last frame never got to the disk.
        let mut holed = bytes.clone();
        let last = ends[ends.len() - 2];
        holed[last + 20] ^= 0x40;
        assert_eq!(Journal::recover(&holed).unwrap().unwrap().length, last);
    }

    #[test]
    fn damage_before_the_end_is_never_cut() {
        let (bytes, ends) = written();
        for at in 0..ends[ends.len() - 2] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let why = Journal::recover(&damaged).map(|found| found.map(|found| found.length));
            assert!(why.is_err(), "byte {at}: {why:?}");
        }
        assert!(Journal::recover(b"something else, and long enough").is_err());
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut rng = concord_core::Rng::new(1);
        let (bytes, _) = written();
        for _ in 0..20_000 {
            let mut other = bytes.clone();
            for _ in 0..rng.between(1, 4) {
                let at = rng.below(other.len() as u64) as usize;
                other[at] = rng.below(256) as u8;
            }
            other.truncate(rng.below(other.len() as u64 + 1) as usize);
            let _ = Journal::recover(&other);
        }
    }
}
