//! Bodies and outputs that go in fragments (trap T17): outputs that are too long for a result,
//! which an owner fetches of the workers that have them; and what workers fetch of their tasks'
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

/// A run that ended, and whose output is on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedRun {
    pub(super) of: Attempt,
    pub(super) run: Run,
    pub(super) ended: Ended,
    /// How much it gave, and how much of that its worker has.
    pub(super) output_bytes: u64,
    pub(super) kept_bytes: usize,
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Outputs {
    all: BTreeMap<Run, EndedRun>,
    bodies: Bodies<Run>,
    /// How long they are.
    bytes: usize,
    /// Most bytes that are wanted at a time, but for the last one; the others stay at their workers
    /// until there is room.
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

    /// The run whose output that is, if it is on its way.
    pub(super) fn of(&self, run: Run) -> Option<EndedRun> {
        self.all.get(&run).copied()
    }

    /// It is wanted: the next [`Outputs::ask`] asks for it.
    pub(super) fn want(&mut self, ended: EndedRun) {
        if let Entry::Vacant(vacant) = self.all.entry(ended.run) {
            vacant.insert(ended);
            self.bytes += ended.kept_bytes;
        }
        self.bodies.want(ended.run, ended.run.worker);
    }

    /// Forgets those that are not wanted any more.
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

    /// A fragment came. The output, if it is whole by it: it is forgotten here.
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

    /// Whether another one has to wait.
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    pub(super) fn deadline(&self) -> Instant {
        self.bodies.deadline()
    }

    /// Asks for what is missing, where it is time.
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
    /// How much of an output of that length its worker has.
    pub(super) fn kept_bytes(&mut self, name: Name, output_bytes: u64) -> usize {
        let function = self.item(name).map_or(0, |(item, _)| item.spec.function);
        output_bytes.min(output_bytes_max(function) as u64) as usize
    }

    /// Whether a result has to wait: for the rest of its output, or with any output until there is
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
            // Its worker hears that its owner lives, and tells it again in a while.
            let later = TaskMessage::FetchOutput { run, first: 0, count: 0 };
            self.say(run.worker, &later, sink);
            return true;
        }
        self.outputs.want(told);
        true
    }

    /// A fragment of an output came: its worker lives.
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

    /// Asks for the outputs that are on their way, where something is missing. Those of runs that
    /// do not hold their tasks any more are forgotten.
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

    /// A worker lacks what its task needs. Of a job that is over nobody needs anything: who runs it
    /// is told so when it says that it does.
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
        let Some(body) = body.filter(|_| name.uid == self.config.session.0) else { return };
        let body = Arc::clone(body);
        for (total_bytes, index, bytes) in fragments(&body, first, count) {
            let fragment = TaskMessage::Fragment { name, total_bytes, index, bytes };
            self.counters.fragments += 1;
            self.say(worker, &fragment, sink);
        }
    }
}
