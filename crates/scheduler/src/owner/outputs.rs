//! Bodies and outputs that are sent in fragments (trap T17): outputs that are too long for a
//! result, which an owner fetches from workers, and data that workers fetch from their tasks'
//! owner.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::{Addr, Instant, Sink};
use concord_wire::GroupId;
use concord_wire::tasks::{
    ANSWER_BYTES_MAX, Attempt, BodyName, Ended, JOB_BODY, Run, TaskMessage, output_bytes_max,
};

use super::{At, Name, Owner, Told};
use crate::bodies::{Bodies, fragments};

/// A run that ended, and whose output is being fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedRun {
    pub(super) of: Attempt,
    pub(super) run: Run,
    pub(super) ended: Ended,
    /// The length of its output, and the part of it that the worker has, in bytes.
    pub(super) output_bytes: u64,
    pub(super) kept_bytes: usize,
}

/// The outputs that are being fetched.
#[derive(Clone, Debug)]
pub(super) struct Outputs {
    all: BTreeMap<Run, EndedRun>,
    bodies: Bodies<Run>,
    /// The sum of their lengths in bytes.
    bytes: usize,
    /// The bytes that are fetched at a time, except for the last output; the others stay at their
    /// workers until there is room.
    bytes_max: usize,
}

impl Outputs {
    pub(super) fn new(bytes_max: usize) -> Outputs {
        let bodies = Bodies::of_length(ANSWER_BYTES_MAX);
        Outputs { all: BTreeMap::new(), bodies, bytes: 0, bytes_max }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The run with this output, if it is being fetched.
    pub(super) fn of(&self, run: Run) -> Option<EndedRun> {
        self.all.get(&run).copied()
    }

    /// Notes that an output is wanted: the next [`Outputs::ask`] asks for it.
    pub(super) fn want(&mut self, ended: EndedRun) {
        if let Entry::Vacant(vacant) = self.all.entry(ended.run) {
            vacant.insert(ended);
            self.bytes += ended.kept_bytes;
        }
        self.bodies.want(ended.run, ended.run.worker);
    }

    /// Forgets the outputs that are not wanted any more.
    pub(super) fn retain_wanted(&mut self, is_wanted: impl Fn(&EndedRun) -> bool) {
        let bytes = &mut self.bytes;
        self.all.retain(|_, ended| {
            let stays = is_wanted(ended);
            *bytes -= if stays { 0 } else { ended.kept_bytes };
            stays
        });
        let all = &self.all;
        self.bodies.retain_wanted(|run| all.contains_key(&run));
    }

    /// Takes a fragment. Returns the output if it is complete with it, and forgets it here.
    pub(super) fn take(
        &mut self,
        now: Instant,
        run: Run,
        total_bytes: u32,
        index: u32,
        fragment: &[u8],
    ) -> Option<Vec<u8>> {
        let kept = self.all.get(&run)?.kept_bytes;
        if kept != total_bytes as usize || !self.bodies.take(now, run, total_bytes, index, fragment)
        {
            return None;
        }
        let whole = self.bodies.whole(run)?.to_vec();
        self.bodies.forget(run);
        self.all.remove(&run);
        self.bytes -= kept;
        Some(whole)
    }

    /// Whether a further output must wait.
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    pub(super) fn deadline(&self) -> Instant {
        self.bodies.deadline()
    }

    /// Asks for missing fragments that are due.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        group: GroupId,
        buffer: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        let fetch = |run, first, count| TaskMessage::FetchOutput { run, first, count };
        self.bodies.ask(now, fetch, group, buffer, sink);
    }
}

impl Owner {
    /// The bytes that a worker has of an output of this length.
    pub(super) fn kept_bytes(&mut self, name: Name, output_bytes: u64) -> usize {
        let function = self.item(name).map_or(0, |(item, _)| item.spec.function);
        output_bytes.min(output_bytes_max(function) as u64) as usize
    }

    /// Whether a result must wait: for the rest of its output, or with any output until there is
    /// room. It is the last result of its task. The run holds its task meanwhile, even if another
    /// run that has not ended does too.
    pub(super) fn waits_for_output(
        &mut self,
        now: Instant,
        told: EndedRun,
        sink: &mut impl Sink,
    ) -> bool {
        let EndedRun { of, run, ended, .. } = told;
        let name = (of.jid, of.tid);
        let Some((item, once)) = self.item(name) else { return false };
        let (at, over_to) = (item.at, item.over_to);
        let is_other = matches!(at, At::Held(holder, _) if holder != run);
        let is_last = once || item.retries_left == 0;
        let ends = ended == Ended::Done || (is_last && !is_other && over_to < of.attempt);
        if at == At::Over || !ends {
            return false;
        }
        if let At::Held(holder, _) = at
            && is_other
        {
            if self.outputs.of(holder).is_some() {
                return true;
            }
            if let Some((item, _)) = self.item(name) {
                // Its worker hears that it is cancelled when it asks for its lease.
                item.at = At::Ready;
            }
            self.let_go(name, at);
        }
        self.holds(now, of, run, Told::Ended);
        if self.outputs.of(run).is_none() && (self.is_held_back || self.outputs.is_full()) {
            // Its worker hears that its owner lives, and repeats the result later.
            let later = TaskMessage::FetchOutput { run, first: 0, count: 0 };
            self.say(run.worker, &later, sink);
            return true;
        }
        self.outputs.want(told);
        true
    }

    /// Takes a fragment of an output, which shows that its worker lives.
    pub(super) fn on_output(
        &mut self,
        now: Instant,
        run: Run,
        (total_bytes, index): (u32, u32),
        bytes: &[u8],
    ) {
        self.counters.output_fragments += 1;
        let Some(EndedRun { of, ended, output_bytes, .. }) = self.outputs.of(run) else { return };
        if !self.holds(now, of, run, Told::Runs) {
            return;
        }
        if let Some(output) = self.outputs.take(now, run, total_bytes, index, bytes) {
            self.on_result(now, of, run, ended, (output, output_bytes));
            self.known.push((of, run));
        }
    }

    /// Asks for missing fragments of outputs. Outputs of runs that do not hold their tasks any more
    /// are forgotten.
    pub(super) fn fetch(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.outputs.is_empty() || self.outputs.deadline() > now {
            return;
        }
        let jobs = &self.jobs;
        self.outputs.retain_wanted(|told| {
            let job = jobs.get(&told.of.jid);
            let item = job.and_then(|job| job.items.get(told.of.tid as usize));
            item.is_some_and(|item| matches!(item.at, At::Held(holder, _) if holder == told.run))
        });
        self.outputs.ask(now, self.config.group, &mut self.buffer, sink);
    }

    /// Answers a worker that lacks data of its task. Data of a finished job is not sent: a worker
    /// that still runs a task of it is told so when it asks for its lease.
    pub(super) fn on_fetch(
        &mut self,
        name: BodyName,
        worker: Addr,
        first: u32,
        count: u8,
        sink: &mut impl Sink,
    ) {
        let Some(job) = self.jobs.get(&name.jid) else { return };
        let body = if name.tid == JOB_BODY { job.body.as_ref() } else { job.long.get(&name.tid) };
        // A run that goes on from the process before may lack its data: the jobs are the same.
        let is_own = name.uid == self.config.session.0 || self.before.contains(&name.uid);
        let Some(body) = body.filter(|_| is_own) else { return };
        let body = Arc::clone(body);
        for (total_bytes, index, bytes) in fragments(&body, first, count) {
            let fragment = TaskMessage::Fragment { name, total_bytes, index, bytes };
            self.counters.fragments += 1;
            self.say(worker, &fragment, sink);
        }
    }
}
