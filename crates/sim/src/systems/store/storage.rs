//! The replicas' storage in the simulator: the memory engine behind a connection that may take its
//! time and may break, as that to a server of the replica's own. The server may be slow, hang for a
//! while or for good, restart without its data, or have the connection cut in the middle of a
//! command.
//!
//! What is submitted is executed at once and its completion delayed: nobody can tell the difference
//! but by a cut. What the server had not executed by then is sent again and comes out the same; a
//! write that it had executed, and whose reply is lost, loses the engine (trap T11).

use std::collections::VecDeque;

use concord_core::Instant;
use concord_engine::copy::{BadChunk, Copied, Object};
use concord_engine::memory::Memory;
use concord_engine::{
    Backend, BackendDone, Class, CommandTable, Context, Outcome, RangeDigest, Step, Submitted,
};

/// About how many bytes of an object under way are made at a time, before a write to it.
const READY_BYTES: usize = 16;

/// Memory, at once or behind a connection, as a server of its own would be.
#[derive(Debug)]
pub(crate) struct Store {
    memory: Memory,
    /// Whether operations complete later, by [`Store::release`].
    is_remote: bool,
    /// Executed, in order; not yet known to the replica. With whether it wrote.
    under_way: VecDeque<(BackendDone, bool)>,
    /// How many of them have arrived.
    arrived: usize,
    /// Nothing arrives any more.
    hangs: bool,
    /// Since when it is at work on the operation whose answer comes next.
    at_work_since: Option<Instant>,
    lost: bool,
    /// A script runs: its commands are done at once, and its end comes later.
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

    /// Completions under way.
    pub(crate) fn waiting(&self) -> usize {
        if self.hangs { 0 } else { self.under_way.len() - self.arrived }
    }

    /// The next completion arrives.
    pub(crate) fn release(&mut self) {
        if self.hangs {
            return;
        }
        self.at_work_since = None;
        self.arrived = (self.arrived + 1).min(self.under_way.len());
    }

    /// The server takes no command any more, and its connection stands.
    pub(crate) fn hang(&mut self) {
        self.is_remote = true;
        self.hangs = true;
    }

    /// It is at work until the next completion arrives.
    pub(crate) fn work(&mut self, now: Instant) {
        self.at_work_since = Some(now);
    }

    /// From now on completions come by [`Store::release`].
    pub(crate) fn be_remote(&mut self) {
        self.is_remote = true;
    }

    /// The connection is cut; whether a write was executed of which nobody will know. If not, all
    /// is sent again, and arrives later.
    pub(crate) fn cut(&mut self) -> bool {
        self.lost |= self.under_way.iter().skip(self.arrived).any(|(_, wrote)| *wrote);
        self.lost
    }

    /// Done now, or later if the store is remote.
    fn later(&mut self) -> Submitted {
        if !self.is_remote {
            return Submitted::Done(Outcome::default());
        }
        self.under_way.push_back((BackendDone::default(), false));
        Submitted::Pending
    }

    /// The connection breaks: nobody can say what was applied (trap T11).
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
