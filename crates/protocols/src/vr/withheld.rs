//! Answers that a leader withholds until a quorum knows what became of the scripts before them
//! ([`super::decide`]).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::Position;

use crate::turn::{ReadTurn, Turn};

/// Most answers that are withheld. More are dropped: their clients ask again.
const WITHHELD_MAX: usize = 65_536;
/// Most bytes of replies to reads among them; a single one may be larger.
const WITHHELD_BYTES_MAX: usize = 64 << 20;

/// An answer that is ready, and withheld.
#[derive(Clone, Debug)]
pub(super) enum Ready {
    /// To a write; the client table has the reply.
    Write(Turn),
    /// To a read.
    Read(ReadTurn, Vec<u8>),
}

/// Answers, in the order in which they were ready, each with the last script that it may have seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Withheld {
    answers: VecDeque<(Position, Ready)>,
    /// Bytes of replies to reads.
    bytes: usize,
}

impl Withheld {
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// An answer that may have seen the script at `script`.
    pub(super) fn push(&mut self, script: Position, answer: Ready) {
        let added = match &answer {
            Ready::Write(_) => 0,
            Ready::Read(_, reply) => reply.len(),
        };
        let is_full = self.answers.len() >= WITHHELD_MAX
            || (added > 0 && self.bytes > 0 && self.bytes + added > WITHHELD_BYTES_MAX);
        if !is_full {
            self.bytes += added;
            self.answers.push_back((script, answer));
        }
    }

    /// The next answer, if a quorum has executed all scripts that it may have seen: those up to `known`.
    pub(super) fn pop(&mut self, known: Position) -> Option<Ready> {
        let (_, answer) = self.answers.pop_front_if(|(script, _)| *script <= known)?;
        if let Ready::Read(_, reply) = &answer {
            self.bytes -= reply.len();
        }
        Some(answer)
    }

    /// The view is over.
    pub(super) fn forget(&mut self) {
        *self = Withheld::default();
    }
}
