//! Storage engines behind one trait, the command table, and times to live.
//!
//! Read [`Engine`] and [`Command`] first. An engine takes operations in order and completes them in
//! order: the memory engine at once, the Redis engine when its server has answered. Time and
//! randomness, which would make replicas differ, come in with [`Context`], which the node that
//! orders writes fills in and replicates.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod acl;
pub mod backend;
pub mod blocking;
pub mod command;
pub mod copy;
pub mod databases;
mod deadlines;
pub mod digest;
pub mod early;
pub mod events;
pub mod functions;
pub mod info;
pub mod keys;
pub mod memory;
mod plan;
mod rdb;
pub mod redis;
pub mod resp;
pub mod resp_scan;
pub mod script;
pub mod several;
pub mod table;
pub mod texts;
pub mod ttl;
pub mod users;

pub use backend::{
    Backend, BackendDone, Effect, Outcome, Published, Reach, Step, Submitted, Told, TtlChange,
};
pub use command::{Command, CommandBuf, CommandError};
pub use digest::{PLACES, RangeDigest};
pub use early::Touched;
pub use memory::Memory;
pub use memory::glob::matches as glob_matches;
pub use redis::RedisEngine;
pub use table::{CommandSpec, CommandTable};
pub use ttl::Shimmed;

use alloc::vec::Vec;

use concord_core::Instant;

/// Longest string, in bytes. A reply is 64 MiB at most, so that nobody could read a longer one; and
/// making Redis' 512 MiB of zeros takes a replica so long that the others believe it dead.
pub const STRING_BYTES_MAX: usize = (64 << 20) - 64;

/// Longest reply, in bytes.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// The replies in place of a longer one: to a read, to a write that was refused for it, and to one
/// that was executed.
pub const READ_TOO_LONG: &[u8] = b"-ERR the reply is longer than 64 MiB (Concord's limit)\r\n";
/// See [`READ_TOO_LONG`].
pub const NOT_DONE_TOO_LONG: &[u8] =
    b"-ERR the reply would be longer than 64 MiB (Concord's limit): nothing was changed\r\n";
/// See [`READ_TOO_LONG`].
pub const DONE_TOO_LONG: &[u8] =
    b"-ERR executed, but the reply is longer than 64 MiB (Concord's limit)\r\n";

/// Whether an operation may change state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Changes nothing; any replica that holds a lease may answer it.
    Read,
    /// Replicated, numbered by the switch.
    Write,
}

/// The decisions of the node that orders writes, for all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Wall clock of the ordering node in ms since the Unix epoch. For a read: of the reader.
    pub now_ms: u64,
    /// Randomness, for SPOP and the like. For a read: anything.
    pub entropy: u64,
    /// The place in the log of a write (contiguous from 1); 0 for a read.
    pub position: u64,
    /// The reply is encoded as RESP3 (else RESP2): replies are opaque to everything above.
    pub resp3: bool,
    /// This node decides: it executes before anyone else, and may replicate an effect
    /// ([`Completion::effect`]) in the command's stead.
    pub decide: bool,
    /// The node that decides has executed it, and refused nothing as a whole: what it looked at
    /// before, to refuse it, need not be looked at again.
    pub is_passed: bool,
    /// The ordering node's data took more than its limit: commands that need memory are refused
    /// with Redis' OOM error. No other replica looks at its own memory: one that copies holds less.
    pub memory_full: bool,
}

/// Whether the reply is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The reply was appended.
    Done,
    /// The reply will come by [`Engine::poll`], in the order of submission.
    Pending,
}

/// The completion of an operation that was [`Progress::Pending`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The reply, RESP-encoded.
    pub reply: Vec<u8>,
    /// If the deciding node's engine drew something at random or by its clock: the encoded command
    /// that does the same without, to be replicated in place of the original (with `reply`).
    pub effect: Option<Vec<u8>>,
    /// Whether a script ran for too long here and was stopped: it changed nothing, and no other
    /// replica may let it run to its end.
    pub stopped: bool,
    /// During a copy: the keys that the operation's scripts used.
    pub touched: Option<Touched>,
}

/// A storage engine. One instance serves one replica.
pub trait Engine {
    /// Executes `command`, or passes it on to the engine's server. If `Done`, the RESP reply was
    /// appended to `reply`. Malformed or failing commands are answered by a RESP error and change
    /// nothing. Operations take effect in the order of their submission (trap T10).
    fn submit(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress;

    /// The next completion of a pending operation, in submission order. An engine that
    /// [works](Engine::works) does a slice of its work.
    fn poll(&mut self) -> Option<Completion>;

    /// Whether it has more to do by itself: [`Engine::poll`] is to be called again soon, and
    /// nothing else will wake it. What it does between two `None`s is bounded, so that a replica
    /// can say meanwhile that it lives.
    fn works(&self) -> bool {
        false
    }

    /// The time since which the engine's server has been at work on one operation; `None` if it is
    /// not, or that is unknown. A server at work does not count as silent, however long it takes.
    fn at_work_since(&self) -> Option<Instant> {
        None
    }

    /// Makes ready to be copied; whether [`Engine::copy`] may be called by now.
    fn prepare_copy(&mut self) -> bool;

    /// Ends the copy: no receiver needs it any more.
    fn end_copy(&mut self);

    /// Copies the objects from the cursor `from` on ([`mod@copy`]), up to about `bytes_max` bytes
    /// and the end of a place, as they are after all operations submitted before. If the cursor has
    /// a ticket: the next pieces of its unfinished objects, as they were. The chunk is appended to
    /// `chunk` if `Done`; otherwise it is the reply of a [`Completion`].
    fn copy(&mut self, from: u64, bytes_max: usize, chunk: &mut Vec<u8>) -> Progress;

    /// Copies those of `keys` that were not copied since the newest copy began ([`mod@early`]), as
    /// they are after all operations submitted before. `None` if there are none, or no copy is in
    /// progress. The chunk may have no objects.
    fn copy_keys(&mut self, keys: &[&[u8]], chunk: &mut Vec<u8>) -> Option<Progress> {
        let (_, _) = (keys, chunk);
        None
    }

    /// Another one that copies takes what is left of the objects of a chunk, which leads to
    /// `cursor`: that one's cursor.
    fn fork_copy(&mut self, cursor: u64) -> u64 {
        cursor
    }

    /// Drops the rest of a chunk's objects, to which `cursor` leads: it will not be requested.
    fn release_copy(&mut self, cursor: u64) {
        let _ = cursor;
    }

    /// During a copy: the keys that the scripts of the last [`Progress::Done`] operation used.
    fn take_touched(&mut self) -> Option<Touched> {
        None
    }

    /// Sets the objects of a chunk, whatever their keys held, between the operations submitted
    /// before and those to come. `Pending` comes back as an empty [`Completion`].
    ///
    /// # Errors
    /// [`copy::BadChunk`] if the bytes are no chunk of this kind of engine; what is set then is
    /// of no use.
    fn install(&mut self, chunk: &[u8]) -> Result<Progress, copy::BadChunk>;

    /// Forgets everything, as an operation like [`Engine::install`].
    fn clear(&mut self) -> Progress;

    /// When the earliest key with a time to live is due, in ms since the Unix epoch.
    fn next_expiry_ms(&self) -> Option<u64>;

    /// Appends up to `limit` keys that are due at `now_ms`, each with its deadline, earliest first,
    /// after the key and deadline in `after`, if given. Keys that `skip` names are left out and do
    /// not count. The ordering node turns each into a sequenced `CONCORD.EXPIRE key deadline` (trap
    /// T12).
    fn due(
        &self,
        now_ms: u64,
        after: Option<&(Vec<u8>, u64)>,
        limit: usize,
        skip: &dyn Fn(&[u8], u64) -> bool,
        out: &mut Vec<(Vec<u8>, u64)>,
    );

    /// The engine lost its state or cannot say what it applied: the replica must leave (T4, T11).
    fn lost(&self) -> bool;

    /// The engine was lost because a script does not end: its request must not be tried at another
    /// replica, which would be lost as well.
    fn is_poisoned(&self) -> bool {
        false
    }

    /// Number of keys (including those due but not yet deleted), where cheaply known.
    fn keys(&self) -> u64;

    /// Bytes that the data takes, roughly.
    fn memory_bytes(&self) -> u64;

    /// Whether the data takes more than its limit; for the node that orders writes
    /// ([`Context::memory_full`]).
    fn is_full(&self) -> bool {
        false
    }

    /// A digest of the whole state, equal on replicas that hold the same: for tests; O(state).
    /// `None` where the engine cannot tell.
    fn digest(&self) -> Option<u64>;

    /// A digest of a bounded part of the state ([`mod@digest`]), for comparisons while the replicas
    /// run: from the place `first` on. `salt` chooses the part of a large value. Equal at all
    /// replicas that hold the same; `None` where the engine cannot tell.
    fn digest_range(&self, first: u16, salt: u64) -> Option<RangeDigest> {
        let (_, _) = (first, salt);
        None
    }

    /// For tests of such comparisons: changes the value of one key without a command, as a defect
    /// would. `which` chooses it. The place of the key; `None` if there is no key, or the engine
    /// cannot.
    fn damage(&mut self, which: u64) -> Option<u16> {
        let _ = which;
        None
    }
}
