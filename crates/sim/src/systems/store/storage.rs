//! The replicas' storage in the simulator: the memory engine behind a simulated connection, which
//! may be slow and may break, like that to a storage server. The server may be slow, hang for a
//! while or for good, restart without its data, or have its connection cut in the middle of a
//! command.
//!
//! A submitted command is executed at once, and its completion is delayed; this makes a difference
//! only if the connection is cut. Commands that count as not executed by then are sent again, with
//! the same result. If a write counts as executed and its reply is lost, the engine is lost (trap
//! T11).

use std::collections::VecDeque;

use concord_core::Instant;
use concord_engine::copy::{BadChunk, Copied, Object};
use concord_engine::memory::Memory;
use concord_engine::{
    Backend, BackendDone, Class, CommandTable, Context, Outcome, RangeDigest, Step, Submitted,
};

/// The approximate number of bytes of an object in transfer that are prepared at a time before a
/// write to it.
const READY_BYTES: usize = 16;

/// The memory engine, which answers at once, or later like a storage server.
#[derive(Debug)]
pub(crate) struct Store {
    memory: Memory,
    /// Whether operations complete later, by [`Store::release`].
    is_remote: bool,
    /// Operations that were executed, in order, and whose completion the replica does not know yet;
    /// each with whether it wrote.
    under_way: VecDeque<(BackendDone, bool)>,
    /// The number of completions that have arrived.
    arrived: usize,
    /// Whether the server hangs: no completion arrives any more.
    hangs: bool,
    /// The time since when the server works on the operation whose answer comes next.
    at_work_since: Option<Instant>,
    lost: bool,
    /// Whether a script runs: its commands are executed at once, and its end comes later.
    in_script: bool,
}

impl Store {
    pub(crate) fn new(is_remote: bool, memory_bytes_max: u64) -> Store {
        Store {
            memory: Memory::new(memory_bytes_max).with_ready_bytes(READY_BYTES),
            is_remote,
            under_way: VecDeque::new(),
            arrived: 0,
            hangs: false,
            at_work_since: None,
            lost: false,
            in_script: false,
        }
    }

    /// The number of completions that have not arrived.
    pub(crate) fn waiting(&self) -> usize {
        if self.hangs { 0 } else { self.under_way.len() - self.arrived }
    }

    /// Delivers the next completion.
    pub(crate) fn release(&mut self) {
        if self.hangs {
            return;
        }
        self.at_work_since = None;
        self.arrived = (self.arrived + 1).min(self.under_way.len());
    }

    /// Makes the server hang: it accepts no command any more, and its connection stays open.
    pub(crate) fn hang(&mut self) {
        self.is_remote = true;
        self.hangs = true;
    }

    /// Makes the server work on an operation until the next completion arrives.
    pub(crate) fn work(&mut self, now: Instant) {
        self.at_work_since = Some(now);
    }

    /// Makes completions wait for [`Store::release`] from now on.
    pub(crate) fn be_remote(&mut self) {
        self.is_remote = true;
    }

    /// Cuts the connection; returns whether a write was executed whose outcome the replica cannot
    /// learn. If not, all pending commands are sent again, and their completions arrive later.
    pub(crate) fn cut(&mut self) -> bool {
        self.lost |= self.under_way.iter().skip(self.arrived).any(|(_, wrote)| *wrote);
        self.lost
    }

    /// The result of a submission: done at once, or pending if the store is remote.
    fn later(&mut self) -> Submitted {
        if !self.is_remote {
            return Submitted::Done(Outcome::default());
        }
        self.under_way.push_back((BackendDone::default(), false));
        Submitted::Pending
    }

    /// Breaks the connection: which commands were executed cannot be known (trap T11).
    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }
}

impl Backend for Store {
    fn submit(&mut self, context: &Context, step: &Step<'_>, reply: &mut Vec<u8>) -> Submitted {
        if !self.is_remote || self.in_script {
            return self.memory.submit(context, step, reply);
        }
        let mut done = BackendDone::default();
        if let Submitted::Done(outcome) = self.memory.submit(context, step, &mut done.reply) {
            done.outcome = outcome;
        }
        self.under_way.push_back((done, step.class == Class::Write));
        Submitted::Pending
    }

    fn poll(&mut self) -> Option<BackendDone> {
        self.arrived = self.arrived.checked_sub(1)?;
        self.under_way.pop_front().map(|(done, _)| done)
    }

    fn commands(&self) -> Option<&CommandTable> {
        self.memory.commands()
    }

    fn begin_script(&mut self) {
        self.in_script = true;
        self.memory.begin_script();
    }

    fn end_script(&mut self, class: Class, reply: &mut Vec<u8>) -> Submitted {
        self.in_script = false;
        let _ = self.memory.end_script(class, reply);
        if !self.is_remote {
            return Submitted::Done(Outcome::default());
        }
        let done = BackendDone { reply: std::mem::take(reply), ..BackendDone::default() };
        self.under_way.push_back((done, class == Class::Write));
        Submitted::Pending
    }

    fn begin_undo(&mut self, alone: bool) {
        self.memory.begin_undo(alone);
    }

    fn end_undo(&mut self, stays: bool) {
        self.memory.end_undo(stays);
    }

    fn spent(&self) -> u64 {
        self.memory.spent()
    }

    fn prepare_copy(&mut self) -> bool {
        self.memory.prepare_copy()
    }

    fn end_copy(&mut self) {
        self.memory.end_copy();
    }

    fn copy(&mut self, from: u64, bytes_max: usize) -> Option<Copied> {
        let copied = self.memory.copy(from, bytes_max);
        if !self.is_remote {
            return copied;
        }
        self.under_way.push_back((BackendDone { copied, ..BackendDone::default() }, false));
        None
    }

    fn copy_keys(&mut self, keys: &[Vec<u8>], wanted: (usize, usize), onto: u64) -> Option<Copied> {
        let copied = self.memory.copy_keys(keys, wanted, onto);
        if !self.is_remote || self.in_script {
            return copied;
        }
        self.under_way.push_back((BackendDone { copied, ..BackendDone::default() }, false));
        None
    }

    fn make_ready(&mut self, keys: &[&[u8]]) -> bool {
        self.memory.make_ready(keys)
    }

    fn fork_copy(&mut self, cursor: u64) -> u64 {
        self.memory.fork_copy(cursor)
    }

    fn release_copy(&mut self, cursor: u64) {
        self.memory.release_copy(cursor);
    }

    fn install(&mut self, objects: &[Object<'_>]) -> Result<Submitted, BadChunk> {
        self.memory.install(objects)?;
        Ok(self.later())
    }

    fn clear(&mut self) -> Submitted {
        self.memory.clear();
        self.later()
    }

    fn at_work_since(&self) -> Option<Instant> {
        self.at_work_since.filter(|_| !self.under_way.is_empty() && !self.hangs)
    }

    fn lost(&self) -> bool {
        self.lost
    }

    fn keys(&self) -> u64 {
        self.memory.keys()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory.memory_bytes()
    }

    fn memory_bytes_max(&self) -> u64 {
        self.memory.memory_bytes_max()
    }

    fn digest(&self) -> Option<u64> {
        self.memory.digest()
    }

    fn digest_range(
        &self,
        first: u16,
        salt: u64,
        deadline: &dyn Fn(&[u8]) -> Option<u64>,
    ) -> Option<RangeDigest> {
        self.memory.digest_range(first, salt, deadline)
    }

    fn damage(&mut self, which: u64) -> Option<u16> {
        self.memory.damage(which)
    }
}
