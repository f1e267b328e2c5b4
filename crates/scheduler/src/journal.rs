//! The journal of an owner, by which jobs outlive it: the accepted jobs, the outcomes of their
//! tasks, and the tasks that are never run twice and may have begun. It does no I/O: the caller
//! writes these bytes to a disk, and passes in those that it reads.
//!
//! A journal is a header and frames, each of which was synced as a whole before the next one was
//! written. So only the last one can be torn: it is cut off. A damaged frame with another one after
//! it is damage, and such a journal is rejected.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use concord_core::hash::hash64;
use concord_wire::falcon::Parameters;
use concord_wire::tasks::{Attempt, Ended, Run};
use serde::{Deserialize, Serialize};

use crate::book::{OUTPUT_BYTES_KEPT_MAX, TASKS_KEPT_MAX};
use crate::outcome::Outcome;
use crate::owner::{Job, TaskSpec};

const MAGIC: &[u8; 8] = b"CNCRDJB1";
/// The bytes of the magic number, the journal's own number and its checksum.
const HEADER_BYTES: usize = 24;
/// A frame of a rewritten journal takes no further entry once it has this many bytes; its length
/// field has 32 bits.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// The number of sessions that are remembered: runs of an older one have no lease any more.
const SESSIONS_MAX: usize = 64;
const FRAME: &[u8; 4] = b"CJF1";
/// The bytes of marker, length and checksum.
const FRAME_HEADER_BYTES: usize = 16;

/// A task in its written form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenTask {
    function: u16,
    parameters: Vec<u8>,
    is_long: bool,
}

/// A job in its written form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrittenJob {
    jid: u32,
    /// The time at which it was accepted, in ms since the Unix epoch.
    unix_ms: u64,
    /// The data that its owner's driver keeps with it.
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
        // All fields are named, so that a new field of a job cannot be forgotten here.
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
            // These are in the driver's note.
            retry_ns: _,
            running_max: _,
            is_held: _,
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
            ..Job::default()
        }
    }
}

/// The kind of a task's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum How {
    Done,
    Failed(Ended),
    Unknown,
    Lost,
    Cancelled,
}

/// A task's outcome in its written form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrittenOutcome {
    jid: u32,
    tid: u32,
    attempts: u16,
    how: How,
    output: Vec<u8>,
    output_bytes: u64,
    /// The time in ns from its job's acceptance to its end.
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

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// An owner began, with the number of its next job. The number of these entries is the number
    /// of processes that used the journal.
    Began { next_jid: u32 },
    /// A job was accepted.
    Took(WrittenJob),
    /// A task that is never run twice may begin from now on. Written by earlier versions, which did
    /// not say in which run.
    Begun { jid: u32, tid: u32 },
    /// A task is over.
    Over(WrittenOutcome),
    /// Attempts of a job's tasks may have numbers up to this one from now on.
    Attempts { jid: u32, up_to: u16 },
    /// An owner with this session began.
    Session { uid: u64 },
    /// The incarnation to which the numbers of its jobs belong.
    Incarnation { number: u64 },
    /// A task that is never run twice may begin in this run from now on.
    Granted { of: Attempt, run: Run },
    /// The run to which it was granted last did not begin, and never will.
    GivenBack { jid: u32, tid: u32 },
}

/// A task's outcome, as it was read from a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundOutcome {
    /// TID.
    pub tid: u32,
    /// The number of times that it was submitted.
    pub attempts: u16,
    /// The outcome.
    pub outcome: Outcome,
    /// The length of its output in bytes.
    pub output_bytes: u64,
    /// The time from its job's acceptance to its end, in ns.
    pub over_ns: u64,
}

/// A job that was read from a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundJob {
    /// JID.
    pub jid: u32,
    /// The time at which it was accepted, in ms since the Unix epoch.
    pub unix_ms: u64,
    /// The note of its driver.
    pub note: Vec<u8>,
    /// The job.
    pub job: Job,
    /// The outcomes of its tasks, in the order in which they ended.
    pub outcomes: Vec<FoundOutcome>,
    /// The tasks that are never run twice and may have begun, each with the run in which, if that
    /// is written.
    pub(crate) begun: BTreeMap<u32, Option<(Attempt, Run)>>,
    /// The tasks that are over.
    over: BTreeSet<u32>,
    /// The highest number that an attempt of its tasks may have had; `None` if none is written.
    pub(crate) attempts_up_to: Option<u16>,
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

/// The contents of a journal.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The journal's own number.
    pub number: u64,
    /// The jobs, by JID.
    pub jobs: BTreeMap<u32, FoundJob>,
    /// Its length in bytes without a torn end.
    pub length: usize,
    /// The bytes that were cut off.
    pub cut: usize,
    /// The incarnation to which the numbers of its jobs belong: the same for all processes that use
    /// it, however often it is rewritten. 0 if none is written.
    pub incarnation: u64,
    next_jid: u32,
    /// The sessions of the last owners that used it.
    pub(crate) sessions: Vec<u64>,
    /// The finished jobs that have their outputs, the earliest first, with the bytes of these; and
    /// the sum of the bytes.
    over: VecDeque<(u32, usize)>,
    over_bytes: usize,
}

impl Found {
    /// The number of the next job.
    #[must_use]
    pub fn next_jid(&self) -> u32 {
        self.next_jid.max(self.jobs.keys().last().map_or(0, |jid| jid + 1)).max(1)
    }
}

/// Writes the frames of a journal.
#[derive(Clone, Debug)]
pub struct Journal {
    number: u64,
    length: usize,
    entries: Vec<Entry>,
}

/// The limits of the finished jobs that are kept when a journal is rewritten.
#[derive(Clone, Copy, Debug)]
struct Most {
    jobs: usize,
    tasks: usize,
    output_bytes: usize,
}

impl Most {
    /// Whether there is room for a job. If so, the job takes it.
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

/// The result of looking for a frame in bytes that begin at `base` of their journal.
enum Frame<'a> {
    /// Its body, and the offset of the next one in the bytes.
    Whole(&'a [u8], usize),
    /// It may be complete with more bytes.
    Begun,
    /// There is no frame.
    None,
}

fn checksum(number: u64, at: usize, body: &[u8]) -> u64 {
    hash64(number ^ (at as u64).rotate_left(32), body)
}

/// The frame at `at` of bytes that begin at `base` of their journal.
fn frame_at(number: u64, bytes: &[u8], base: usize, at: usize) -> Frame<'_> {
    let Some(header) = bytes.get(at..).and_then(|rest| rest.get(..FRAME_HEADER_BYTES)) else {
        return Frame::Begun;
    };
    let Some((marker, rest)) = header.split_first_chunk::<4>() else { return Frame::None };
    let Some((length, sum)) = rest.split_first_chunk::<4>() else { return Frame::None };
    if marker != FRAME {
        return Frame::None;
    }
    let from = at + FRAME_HEADER_BYTES;
    let Some(end) = from.checked_add(u32::from_be_bytes(*length) as usize) else {
        return Frame::None;
    };
    let Some(body) = bytes.get(from..end) else { return Frame::Begun };
    let sum = sum.first_chunk().map(|sum| u64::from_be_bytes(*sum));
    let is_right = sum == Some(checksum(number, base + at, body));
    if is_right { Frame::Whole(body, end) } else { Frame::None }
}

/// The frame at `at` of a whole journal: its body, and the offset of the next one.
#[cfg(test)]
fn frame(number: u64, bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    match frame_at(number, bytes, 0, at) {
        Frame::Whole(body, next) => Some((body, next)),
        Frame::Begun | Frame::None => None,
    }
}

/// Reads a journal piece by piece: no more than a frame of it is in memory, and its contents. Of
/// the outputs of finished jobs no more is kept than a [`crate::Book`] keeps.
#[derive(Clone, Debug, Default)]
pub struct JournalReader {
    found: Option<Found>,
    /// The bytes that are not parsed yet, which begin at `base`.
    bytes: Vec<u8>,
    base: usize,
    /// Whether there was no frame where one should begin.
    is_torn: bool,
}

impl JournalReader {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// One line that says what is damaged.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes.extend_from_slice(bytes);
        if self.found.is_none() {
            let Some(header) = self.bytes.get(..HEADER_BYTES) else { return Ok(()) };
            let number = number_of(header)?;
            self.found = Some(Found { number, length: HEADER_BYTES, ..Found::default() });
            self.drop_read(HEADER_BYTES);
        }
        let Some(found) = &mut self.found else { return Ok(()) };
        let mut at = 0;
        while !self.is_torn {
            match frame_at(found.number, &self.bytes, self.base, at) {
                Frame::Whole(body, next) => {
                    let place = self.base + at;
                    let entries: Vec<Entry> = postcard::from_bytes(body).map_err(|_| {
                        alloc::format!("what is written at byte {place} makes no sense")
                    })?;
                    for entry in entries {
                        found
                            .take(entry)
                            .map_err(|why| alloc::format!("at byte {place}: {why}"))?;
                    }
                    found.length = self.base + next;
                    at = next;
                }
                Frame::Begun => break,
                Frame::None => self.is_torn = true,
            }
        }
        self.drop_read(at);
        Ok(())
    }

    fn drop_read(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.base += count;
    }

    /// Ends the input. Returns the contents that can be trusted, or `None` if nothing was ever
    /// written.
    ///
    /// # Errors
    /// One line that says what is damaged.
    pub fn finish(self) -> Result<Option<Found>, String> {
        let bytes = &self.bytes;
        let Some(mut found) = self.found else {
            // It was never complete, so nothing of it was told.
            let is_torn =
                bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes) || bytes.starts_with(MAGIC);
            return if is_torn { Ok(None) } else { Err("it is no journal of jobs".into()) };
        };
        // Only the last frame can be torn: it was not synced when the next one was made.
        let is_whole =
            |at: &usize| matches!(frame_at(found.number, bytes, self.base, *at), Frame::Whole(..));
        if let Some(later) = (1..bytes.len()).find(is_whole) {
            return Err(alloc::format!(
                "it is damaged at byte {}, before what is written at byte {}",
                self.base,
                self.base + later
            ));
        }
        found.cut = bytes.len();
        Ok(Some(found))
    }
}

/// The number of the journal that begins with `header`.
fn number_of(header: &[u8]) -> Result<u64, String> {
    let (magic, rest) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err("it is no journal of jobs, or one of another version".into());
    }
    let (number, sum) = rest.split_at(8);
    if hash64(1, number).to_be_bytes() != *sum {
        return Err("its header is damaged".into());
    }
    Ok(number.first_chunk().map_or(0, |n| u64::from_be_bytes(*n)))
}

impl Journal {
    /// A new journal, and its first bytes.
    #[must_use]
    pub fn create(number: u64) -> (Journal, Vec<u8>) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&hash64(1, &number.to_be_bytes()).to_be_bytes());
        (Journal { number, length: HEADER_BYTES, entries: Vec::new() }, bytes)
    }

    /// A journal that continues after `found`. Its torn end must be cut off first.
    #[must_use]
    pub fn resume(found: &Found) -> Journal {
        Journal { number: found.number, length: found.length, entries: Vec::new() }
    }

    /// Writes a new journal of the entries that are still needed: jobs in progress, and the last
    /// `over_max` finished ones, if they have no more tasks and outputs than a [`crate::Book`]
    /// keeps. `found` then describes the new journal. `emit` gets its bytes in pieces.
    ///
    /// # Errors
    /// The error of `emit`; `found` is of no use then.
    pub fn rewrite<E>(
        number: u64,
        found: &mut Found,
        over_max: usize,
        emit: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let most =
            Most { jobs: over_max, tasks: TASKS_KEPT_MAX, output_bytes: OUTPUT_BYTES_KEPT_MAX };
        Journal::rewrite_within(number, found, most, emit)
    }

    /// As [`Journal::rewrite`], in memory.
    #[must_use]
    pub fn rewritten(number: u64, found: &Found, over_max: usize) -> Vec<u8> {
        let (mut found, mut bytes) = (found.clone(), Vec::new());
        let emit = |some: &[u8]| {
            bytes.extend_from_slice(some);
            Ok::<(), core::convert::Infallible>(())
        };
        match Journal::rewrite(number, &mut found, over_max, emit) {
            Ok(()) => bytes,
            Err(never) => match never {},
        }
    }

    fn rewrite_within<E>(
        number: u64,
        found: &mut Found,
        mut most: Most,
        mut emit: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut journal, mut bytes) = Journal::create(number);
        let over = found.jobs.values().rev().filter(|job| job.is_over());
        let kept: BTreeSet<u32> = over.filter(|job| most.takes(job)).map(|job| job.jid).collect();
        found.next_jid = found.next_jid();
        found.jobs.retain(|jid, job| !job.is_over() || kept.contains(jid));
        journal.push(Entry::Began { next_jid: found.next_jid });
        if found.incarnation != 0 {
            journal.push(Entry::Incarnation { number: found.incarnation });
        }
        for uid in &found.sessions {
            journal.push(Entry::Session { uid: *uid });
        }
        journal.emit(&mut bytes, &mut emit)?;
        for job in found.jobs.values() {
            let mut frame_bytes = 0;
            let written = WrittenJob::new(job.jid, job.unix_ms, &job.job, &job.note);
            journal.push(Entry::Took(written));
            if let Some(up_to) = job.attempts_up_to {
                journal.push(Entry::Attempts { jid: job.jid, up_to });
            }
            for (tid, granted) in &job.begun {
                journal.push(match *granted {
                    Some((of, run)) => Entry::Granted { of, run },
                    None => Entry::Begun { jid: job.jid, tid: *tid },
                });
            }
            for told in &job.outcomes {
                journal.push(Entry::Over(told.written(job.jid)));
                frame_bytes += told.outcome.output().len();
                // It is synced as a whole before it is used, so that it may have any number of
                // frames.
                if frame_bytes > FRAME_BYTES_MAX {
                    journal.emit(&mut bytes, &mut emit)?;
                    frame_bytes = 0;
                }
            }
            journal.emit(&mut bytes, &mut emit)?;
        }
        (found.number, found.length, found.cut) = (number, journal.length, 0);
        Ok(())
    }

    /// Passes on the pending entries as one frame.
    fn emit<E>(
        &mut self,
        bytes: &mut Vec<u8>,
        emit: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.frame(bytes);
        let written = emit(bytes);
        bytes.clear();
        written
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Whether there are no pending entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Its length in bytes, with all frames that were made.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Appends the pending entries to `bytes` as one frame.
    pub(crate) fn frame(&mut self, bytes: &mut Vec<u8>) {
        if self.entries.is_empty() {
            return;
        }
        // Encoding into memory cannot fail; the types are plain.
        let body = postcard::to_allocvec(&self.entries).unwrap_or_default();
        assert!(!body.is_empty(), "entries are encoded");
        self.entries.clear();
        let length = u32::try_from(body.len());
        // A truncated length would be damage. The process ends, and the journal has everything that
        // was told.
        let length = length.expect("entries of more than 4 GiB wait for one write of the journal");
        bytes.extend_from_slice(FRAME);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&checksum(self.number, self.length, &body).to_be_bytes());
        bytes.extend_from_slice(&body);
        self.length += FRAME_HEADER_BYTES + body.len();
    }

    /// The contents of a journal's bytes that can be trusted, or `None` if nothing was ever
    /// written.
    ///
    /// # Errors
    /// One line that says what is damaged.
    pub fn recover(bytes: &[u8]) -> Result<Option<Found>, String> {
        let mut reader = JournalReader::default();
        reader.take(bytes)?;
        reader.finish()
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
            Entry::Session { uid } => {
                self.sessions.push(uid);
                if self.sessions.len() > SESSIONS_MAX {
                    self.sessions.remove(0);
                }
            }
            Entry::Incarnation { number } => self.incarnation = number,
            Entry::Took(written) => {
                let (jid, unix_ms) = (written.jid, written.unix_ms);
                if jid == u32::MAX {
                    return Err("job numbers have run out".into());
                }
                let job = FoundJob {
                    jid,
                    unix_ms,
                    job: written.job(),
                    note: written.note,
                    outcomes: Vec::new(),
                    begun: BTreeMap::new(),
                    over: BTreeSet::new(),
                    attempts_up_to: None,
                };
                if self.jobs.insert(jid, job).is_some() {
                    return Err(alloc::format!("job {jid} is written twice"));
                }
            }
            Entry::Begun { jid, tid } => {
                self.job(jid, tid)?.begun.insert(tid, None);
            }
            Entry::Granted { of, run } => {
                self.job(of.jid, of.tid)?.begun.insert(of.tid, Some((of, run)));
            }
            Entry::GivenBack { jid, tid } => {
                self.job(jid, tid)?.begun.remove(&tid);
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
                if job.is_over() {
                    self.note_over(jid);
                }
            }
        }
        Ok(())
    }

    /// Notes that a job is finished: outputs of the jobs that finished first are dropped if there
    /// are more than are kept.
    fn note_over(&mut self, jid: u32) {
        let length = |told: &FoundOutcome| told.outcome.output().len();
        let Some(job) = self.jobs.get(&jid) else { return };
        let bytes = job.outcomes.iter().map(length).sum();
        self.over_bytes += bytes;
        self.over.push_back((jid, bytes));
        while self.over_bytes > OUTPUT_BYTES_KEPT_MAX
            && let Some((oldest, bytes)) = self.over.pop_front()
        {
            self.over_bytes -= bytes;
            for told in self.jobs.get_mut(&oldest).into_iter().flat_map(|job| &mut job.outcomes) {
                if let Outcome::Done(output) | Outcome::Failed(_, output) = &mut told.outcome {
                    *output = Vec::new();
                }
            }
        }
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

    fn rewritten_within(found: &Found, most: Most) -> Vec<u8> {
        let (mut found, mut bytes) = (found.clone(), Vec::new());
        let emit = |some: &[u8]| {
            bytes.extend_from_slice(some);
            Ok::<(), ()>(())
        };
        Journal::rewrite_within(8, &mut found, most, emit).unwrap();
        // What was found is what is in it.
        let again = Journal::recover(&bytes).unwrap().unwrap();
        assert!(again.jobs == found.jobs && again.length == found.length);
        assert_eq!((again.number, again.cut, again.next_jid()), (8, 0, found.next_jid()));
        bytes
    }

    fn rewritten(found: &Found, jobs: usize) -> Vec<u8> {
        let most = Most { jobs, tasks: TASKS_KEPT_MAX, output_bytes: OUTPUT_BYTES_KEPT_MAX };
        rewritten_within(found, most)
    }

    /// However it is cut into pieces, a journal is read as it is as a whole.
    #[test]
    fn bug_21_73_a_journal_is_read_piece_by_piece() {
        let (bytes, _) = written();
        let whole = Journal::recover(&bytes).unwrap().unwrap();
        for size in 1..bytes.len() {
            let mut reader = JournalReader::default();
            for piece in bytes.chunks(size) {
                reader.take(piece).unwrap();
            }
            assert!(reader.bytes.is_empty(), "what was read is dropped");
            let found = reader.finish().unwrap().unwrap();
            assert!(found.jobs == whole.jobs && found.length == whole.length);
        }
    }

    /// Of many jobs that are over, a start holds no more outputs than are kept.
    #[test]
    fn bug_21_73_outputs_above_the_bound_are_dropped_while_reading() {
        let mut found = Found::default();
        let job = Job { tasks: vec![TaskSpec::default()], ..Job::default() };
        let bytes = OUTPUT_BYTES_KEPT_MAX / 4;
        for jid in 1..=9 {
            found.take(Entry::Took(WrittenJob::new(jid, 77, &job, b""))).unwrap();
            let outcome = Outcome::Done(vec![7; bytes]);
            let told = FoundOutcome { tid: 0, attempts: 1, outcome, output_bytes: 1, over_ns: 5 };
            found.take(Entry::Over(told.written(jid))).unwrap();
            let kept = found.jobs.values().map(|job| job.outcomes[0].outcome.output().len());
            assert!(kept.sum::<usize>() <= OUTPUT_BYTES_KEPT_MAX);
        }
        let has = |jid: u32| !found.jobs[&jid].outcomes[0].outcome.output().is_empty();
        assert_eq!((has(5), has(6), has(9)), (false, true, true));
    }

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
        let again = Journal::recover(&rewritten(&found, 0)).unwrap().unwrap();
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
            let bytes = rewritten_within(&found, most);
            let again = Journal::recover(&bytes).unwrap().unwrap();
            again.jobs.into_keys().collect::<Vec<u32>>()
        };
        assert_eq!(kept(9, 9, 99), [1, 2, 3, 4]);
        assert_eq!(kept(2, 9, 99), [1, 3, 4]);
        assert_eq!(kept(9, 5, 99), [1, 3, 4]);
        assert_eq!(kept(9, 9, 39), [1, 4]);
        assert_eq!(kept(9, 1, 99), [1], "one that goes on is kept");
    }

    /// All outcomes of an open job in one frame: above 4 GiB its length was cut to 32 bits.
    #[test]
    fn bug_21_52_a_job_of_large_outputs_is_written_anew_in_frames() {
        let mut found = Found::default();
        let job = Job { tasks: vec![TaskSpec::default(); 80], ..Job::default() };
        found.take(Entry::Took(WrittenJob::new(1, 77, &job, b""))).unwrap();
        for tid in 0..70 {
            let output = vec![tid as u8; 1 << 20];
            let (attempts, output_bytes, over_ns) = (1, 1 << 20, 5);
            let outcome = Outcome::Done(output);
            let told = FoundOutcome { tid, attempts, outcome, output_bytes, over_ns };
            found.take(Entry::Over(told.written(1))).unwrap();
        }
        let bytes = rewritten(&found, 0);
        let mut at = HEADER_BYTES;
        while let Some((body, next)) = frame(8, &bytes, at) {
            assert!(body.len() < FRAME_BYTES_MAX + (2 << 20), "{} bytes", body.len());
            at = next;
        }
        assert_eq!(at, bytes.len());
        assert!(Journal::recover(&bytes).unwrap().unwrap().jobs == found.jobs);
    }

    /// The outputs of one job that is over hid all older jobs.
    #[test]
    fn bug_21_58_a_job_that_is_too_large_hides_no_older_one() {
        let mut found = Found::default();
        let job = Job { tasks: vec![TaskSpec::default()], ..Job::default() };
        for (jid, bytes) in [(1, 10), (2, 1_000), (3, 10)] {
            found.take(Entry::Took(WrittenJob::new(jid, 77, &job, b""))).unwrap();
            let outcome = Outcome::Done(vec![7; bytes]);
            let told = FoundOutcome { tid: 0, attempts: 1, outcome, output_bytes: 10, over_ns: 5 };
            found.take(Entry::Over(told.written(jid))).unwrap();
        }
        let most = Most { jobs: 9, tasks: 9, output_bytes: 99 };
        let again = Journal::recover(&rewritten_within(&found, most));
        let kept: Vec<u32> = again.unwrap().unwrap().jobs.into_keys().collect();
        assert_eq!(kept, [1, 3]);
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
