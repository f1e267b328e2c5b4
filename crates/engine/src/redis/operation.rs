//! Operations of the server, as they wait for its replies.

use alloc::vec::Vec;

use super::guarded::GUARD_COMMANDS;
use super::heard::Awaited;
use super::{ASKING_COMMANDS, Ask, RECORDING_COMMANDS};

#[derive(Debug)]
pub(super) enum Kind {
    Read,
    Write {
        position: u64,
        delete_first: bool,
        want_exists: bool,
    },
    /// DUMPs of these keys; where the chunk begins, the next place, and the bytes wanted.
    Copy {
        names: Vec<Vec<u8>>,
        from: u64,
        next: u64,
        bytes_max: usize,
    },
    /// RESTOREs or a FLUSHALL: each must be answered by OK.
    Install,
    /// Deadlines for scripts.
    Tell,
    Ask(Ask),
}

/// A command that draws something ([`effects`]), encoded.
#[derive(Debug)]
pub(super) struct Draws {
    pub(super) index: usize,
    pub(super) command: Vec<u8>,
}

/// An operation whose replies have not all come.
#[derive(Debug)]
pub(super) struct Operation {
    /// The requests, RESP-encoded, without a HELLO in front: it is sent again as it is.
    pub(super) request: Vec<u8>,
    pub(super) kind: Kind,
    /// Number of the step's commands, and of those among them that ask for digests.
    pub(super) commands: usize,
    pub(super) questions: usize,
    pub(super) resp3: bool,
    /// A HELLO was sent in front, on this connection.
    pub(super) switched: bool,
    /// Nobody else has executed it before: what becomes of it is decided here.
    pub(super) decides: bool,
    /// The answer, where the command was refused here.
    pub(super) refusal: Option<Vec<u8>>,
    pub(super) draws: Vec<Draws>,
    /// Commands that came out as scripts, and answer nothing by a null array.
    pub(super) arrays: Vec<usize>,
    /// Scripts that are sent as a whole: the place of each, its own text, and its hash with the
    /// prologue.
    pub(super) taught: Vec<(usize, Vec<u8>, [u8; 40])>,
    /// A write with scripts: what they told is asked for.
    pub(super) has_scripts: bool,
    /// [`Step::is_beside`].
    pub(super) is_beside: bool,
    /// It was sent behind a look at what it would answer ([`super::guarded`]).
    pub(super) is_guarded: bool,
    /// It was sent with marks.
    pub(super) awaited: Option<Awaited>,
}

impl Operation {
    /// Whether it does nothing but one command, so that nothing has happened if that was stopped.
    pub(super) fn is_alone(&self) -> bool {
        match self.kind {
            Kind::Write { delete_first, .. } => {
                self.commands == self.questions + 1 && !delete_first && !self.is_beside
            }
            Kind::Read | Kind::Copy { .. } | Kind::Install | Kind::Tell | Kind::Ask(_) => {
                !self.is_beside
            }
        }
    }

    /// Which of its replies that to EXEC is, of a write.
    pub(super) fn exec_index(&self) -> Option<usize> {
        let Kind::Write { delete_first, .. } = self.kind else { return None };
        let guards = if self.is_guarded { GUARD_COMMANDS } else { 0 };
        let before = guards
            + usize::from(self.switched)
            + usize::from(self.awaited.is_some())
            + usize::from(delete_first);
        // MULTI, and what is queued.
        Some(before + 1 + self.commands + self.recording_commands())
    }

    pub(super) fn recording_commands(&self) -> usize {
        // Marks: one behind each command, and one behind all.
        let marks = if self.awaited.is_some() { self.commands + 1 } else { 0 };
        marks + RECORDING_COMMANDS + if self.has_scripts { ASKING_COMMANDS } else { 0 }
    }
}
