//! The backend of the shim that keeps times to live: the data, without any notion of expiry.

use alloc::vec::Vec;

use concord_core::Instant;

use crate::command::Command;
use crate::copy::{BadChunk, Copied, Object};
use crate::digest::RangeDigest;
use crate::events::{Classes, Event};
use crate::table::CommandTable;
use crate::{Class, Context};

/// Redis' error for a command that needs memory where there is none.
pub const OUT_OF_MEMORY: &[u8] = b"OOM command not allowed when used memory > 'maxmemory'.";

/// One operation for the backend, executed atomically.
///
/// In this order: the key is deleted if `delete_first`, or those that are `due`; the `commands`
/// run; the key's existence is looked up if `want_exists`. None of the `commands` carries a time to
/// live, so that a server used as backend never expires anything by its own clock (trap T12).
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// A step of class `Read` must not change anything; the backend refuses commands that could.
    pub class: Class,
    /// The one key of all `commands`; `None` for commands without a key, or with several.
    pub key: Option<&'a [u8]>,
    /// The keys of `commands` if they have several.
    pub keys: &'a [&'a [u8]],
    /// Those of `keys` whose time to live has passed: they are deleted first.
    pub due: &'a [&'a [u8]],
    /// The key's time to live had passed when the ordering node stamped this write: delete it.
    pub delete_first: bool,
    /// The commands to execute: none (the position of a write is still recorded), one, or several
    /// (MULTI/EXEC). The step's reply is the concatenation of their replies, without an array
    /// header; it is empty for no commands. A command that fails has its error as its reply, and
    /// the others still run, as in Redis. A backend that has to refuse a step of several commands
    /// as a whole answers with exactly one RESP error.
    pub commands: &'a [Command<'a>],
    /// Report in [`Outcome::exists`] whether `key` exists after the commands.
    pub want_exists: bool,
    /// The key's time to live as unix ms; for scripts, which may ask for it. Everything else can
    /// ignore it.
    pub deadline_ms: Option<u64>,
    /// The keys that scripts among `commands` may use.
    pub reach: Reach,
    /// The shim did something that belongs to the step: a script among `commands` that is stopped
    /// cannot be taken for one that has changed nothing.
    pub is_beside: bool,
}

/// Which keys the scripts of a step may touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// The step's key alone.
    #[default]
    OneKey,
    /// Any. Their deadlines are what [`Backend::tell_deadlines`] told, and what scripts did since.
    AnyKey {
        /// Some key has, or may have, a deadline.
        is_timed: bool,
    },
}

/// A message that a script published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Whether it was published by SPUBLISH.
    pub is_sharded: bool,
    /// The channel.
    pub channel: Vec<u8>,
    /// What.
    pub message: Vec<u8>,
}

/// An effect of a script that is outside the backend's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The script set the deadline of this key.
    Due {
        /// Which.
        key: Vec<u8>,
        /// In ms since the Unix epoch; `None` if it has no deadline.
        deadline_ms: Option<u64>,
    },
    /// The script deleted all keys of this database, or of all ([`crate::databases`]).
    Flush(u8),
    /// The script published a message.
    Published(Published),
    /// During a copy: the script used this key for the first time, which had this value.
    Early {
        /// Which.
        key: Vec<u8>,
        /// As [`Backend::copy`] would copy it; `None` if it was not there.
        value: Option<Vec<u8>>,
    },
    /// During a copy: the script looked at all keys.
    LookedAtAll,
}

/// The effect on a key's time to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TtlChange {
    /// It stays as it is.
    #[default]
    Keep,
    /// The key has none from now on.
    Clear,
    /// The key is due at this unix ms.
    Set(u64),
}

/// The replacement for a command that drew something at random or by a clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Which of the step's `commands`, counted from 0.
    pub index: usize,
    /// The encoded command that does the same without.
    pub command: Vec<u8>,
}

/// The results of a finished step beside its reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the key exists now; `Some` iff the step wanted to know.
    pub exists: Option<bool>,
    /// The effects of the step's scripts, in order, if the backend executes scripts itself.
    pub told: Vec<Told>,
    /// On the deciding node ([`Context::decide`]): what to replicate in place of the commands.
    pub effects: Vec<Effect>,
    /// A script ran for too long and was stopped, before it had changed anything.
    pub stopped: bool,
}

/// Whether a step is finished already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The reply was appended.
    Done(Outcome),
    /// [`Backend::poll`] will return it, in submission order.
    Pending,
}

/// A finished step that was [`Submitted::Pending`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendDone {
    /// The concatenated RESP replies of the step's commands.
    pub reply: Vec<u8>,
    /// The rest.
    pub outcome: Outcome,
    /// The result of a [`Backend::copy`].
    pub copied: Option<Copied>,
}

/// Data without times to live. [`crate::Shimmed`] makes an [`crate::Engine`] of it.
///
/// The shim submits the next step without waiting for the outcome of the last one, unless the next
/// one's plan depends on a time to live that the last one may change.
pub trait Backend {
    /// Executes `step`, or queues it. Steps take effect in the order of submission (trap T10);
    /// every step of class `Write` carries its place in the log ([`Context::position`]), one
    /// without commands too (trap T11).
    fn submit(&mut self, context: &Context, step: &Step<'_>, reply: &mut Vec<u8>) -> Submitted;

    /// The next finished step that was pending.
    fn poll(&mut self) -> Option<BackendDone>;

    /// The commands that scripts may call on top of this backend ([`mod@crate::script`]); `None` if
    /// it cannot be used in that way.
    fn commands(&self) -> Option<&CommandTable> {
        None
    }

    /// Takes the deadlines of keys as of the steps submitted so far, for scripts that may use any
    /// key ([`Reach::AnyKey`]). With `is_all` no other key has one. `None` for a key that has none
    /// any more.
    fn tell_deadlines(&mut self, is_all: bool, deadlines: &[(&[u8], Option<u64>)]) {
        let (_, _) = (is_all, deadlines);
    }

    /// The error by which [`Backend::submit`] would refuse the step as a whole.
    fn refusal(&self, context: &Context, step: &Step<'_>) -> Option<Vec<u8>> {
        let (_, _) = (context, step);
        None
    }

    /// The class of a command, if the backend knows it.
    fn class_of(&self, command: &Command<'_>) -> Option<Class> {
        let _ = command;
        None
    }

    /// Events of these classes are to be collected from now on ([`mod@crate::events`]); false if
    /// this backend knows of none.
    fn want_events(&mut self, classes: Classes) -> bool {
        let _ = classes;
        false
    }

    /// The events of the steps since the last call, each with the number of its command in its
    /// step.
    fn take_events(&mut self) -> Vec<(usize, Event)> {
        Vec::new()
    }

    /// Whether a FLUSHDB of this database has to delete keys by name, since those of others are to
    /// stay.
    fn flushes_by_name(&self, database: u8) -> bool {
        let _ = database;
        false
    }

    /// A script begins, or a transaction with scripts: up to its end every step is
    /// [`Submitted::Done`] at once, as a part of it.
    fn begin_script(&mut self) {}

    /// Ends a script, with its reply, which is taken if it comes later by [`Backend::poll`].
    fn end_script(&mut self, class: Class, reply: &mut Vec<u8>) -> Submitted {
        let (_, _) = (class, reply);
        Submitted::Done(Outcome::default())
    }

    /// Begins to record changes of a script, so that they can be undone. `alone`: the script is not
    /// part of a transaction.
    fn begin_undo(&mut self, alone: bool) {
        let _ = alone;
    }

    /// A script has ended: what it did since [`Backend::begin_undo`] stays, or has not happened.
    fn end_undo(&mut self, stays: bool) {
        let _ = stays;
    }

    /// The cost of everything executed so far, in the units of [`crate::script`]; the same at all
    /// replicas.
    fn spent(&self) -> u64 {
        0
    }

    /// See [`crate::Engine::prepare_copy`].
    fn prepare_copy(&mut self) -> bool;

    /// See [`crate::Engine::end_copy`].
    fn end_copy(&mut self);

    /// Copies the objects from place `from` on ([`crate::copy`]), until there are about `bytes_max`
    /// bytes; `None` if the answer comes by [`Backend::poll`]. Nothing is pending when it is
    /// called, and nothing is submitted before its answer.
    fn copy(&mut self, from: u64, bytes_max: usize) -> Option<Copied>;

    /// Copies those of `keys` that exist, up to about `wanted.0` bytes; of large objects the first
    /// pieces, whose later pieces have about `wanted.1` bytes. Their rest is joined with that of
    /// the cursor `onto`, if it has a ticket. Called like [`Backend::copy`], or while a script is
    /// executed.
    fn copy_keys(&mut self, keys: &[Vec<u8>], wanted: (usize, usize), onto: u64) -> Option<Copied>;

    /// The same for values that the backend has already reported.
    fn cut_early(&mut self, copied: Copied, wanted: (usize, usize), onto: u64) -> Copied {
        let (_, _) = (wanted, onto);
        copied
    }

    /// A write to these keys is about to be submitted. Of what is copied in pieces the rest is made
    /// before it, a bounded step at a time: whether the write may be submitted now.
    fn make_ready(&mut self, keys: &[&[u8]]) -> bool {
        let _ = keys;
        true
    }

    /// See [`crate::Engine::fork_copy`].
    fn fork_copy(&mut self, cursor: u64) -> u64;

    /// See [`crate::Engine::release_copy`].
    fn release_copy(&mut self, cursor: u64);

    /// A copy begins: scripts say which keys they touch first from now on ([`Told::Early`]).
    fn begin_early(&mut self) {}

    /// Sets the objects, replacing those of the same keys. Called like [`Backend::copy`].
    ///
    /// # Errors
    /// [`BadChunk`] if a value is malformed.
    fn install(&mut self, objects: &[Object<'_>]) -> Result<Submitted, BadChunk>;

    /// Forgets all keys and positions. Called like [`Backend::copy`].
    fn clear(&mut self) -> Submitted;

    /// See [`crate::Engine::lost`].
    fn lost(&self) -> bool;

    /// See [`crate::Engine::at_work_since`].
    fn at_work_since(&self) -> Option<Instant> {
        None
    }

    /// See [`crate::Engine::is_poisoned`].
    fn is_poisoned(&self) -> bool {
        false
    }

    /// See [`crate::Engine::keys`].
    fn keys(&self) -> u64;

    /// See [`crate::Engine::memory_bytes`].
    fn memory_bytes(&self) -> u64;

    /// The limit of [`Backend::memory_bytes`], deadlines included; 0 for none.
    fn memory_bytes_max(&self) -> u64 {
        0
    }

    /// See [`crate::Engine::digest`].
    fn digest(&self) -> Option<u64>;

    /// See [`crate::Engine::digest_range`]. `deadline` says when a key is due, in unix ms.
    fn digest_range(
        &self,
        first: u16,
        salt: u64,
        deadline: &dyn Fn(&[u8]) -> Option<u64>,
    ) -> Option<RangeDigest> {
        let (_, _, _) = (first, salt, deadline);
        None
    }

    /// See [`crate::Engine::damage`].
    fn damage(&mut self, which: u64) -> Option<u16> {
        let _ = which;
        None
    }
}
