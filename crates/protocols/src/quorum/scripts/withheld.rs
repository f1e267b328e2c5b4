//! Answers that a leader withholds until a quorum knows the outcome of the scripts before them
//! ([`crate::quorum::scripts::decide`]).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::Position;

use crate::pending::{PendingRead, PendingWrite};

/// The largest number of withheld answers; others are dropped, and their clients ask again.
const WITHHELD_MAX: usize = 65_536;
/// The largest total size of replies to reads among them, in bytes; a single one may be larger.
const WITHHELD_BYTES_MAX: usize = 64 << 20;

/// A withheld answer.
#[derive(Clone, Debug)]
pub(in crate::quorum) enum Ready {
    /// An answer to a write, whose reply is in the client table.
    Write(PendingWrite),
    /// An answer to a read, with its reply.
    Read(PendingRead, Vec<u8>),
}

/// Withheld answers in order, each with the last script whose effect it may show.
#[derive(Clone, Debug, Default)]
pub(in crate::quorum) struct Withheld {
    answers: VecDeque<(Position, Ready)>,
    /// The total size of replies to reads, in bytes.
    bytes: usize,
}

impl Withheld {
    pub(in crate::quorum) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Withholds an answer that may show the effect of the script at `script`.
    pub(in crate::quorum) fn push(&mut self, script: Position, answer: Ready) {
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

    /// Removes and returns the next answer, if a quorum has executed all scripts that it may show:
    /// those up to `known`.
    pub(in crate::quorum) fn pop(&mut self, known: Position) -> Option<Ready> {
        let (_, answer) = self.answers.pop_front_if(|(script, _)| *script <= known)?;
        if let Ready::Read(_, reply) = &answer {
            self.bytes -= reply.len();
        }
        Some(answer)
    }

    /// Drops all answers, since the view is over.
    pub(in crate::quorum) fn forget(&mut self) {
        *self = Withheld::default();
    }
}

#[cfg(test)]
mod tests {
    use concord_wire::record::Record;
    use concord_wire::{Op, Reason, Repr};

    use super::*;

    fn read(bytes: usize) -> Ready {
        Ready::Read(PendingRead::of(&Repr::new(Op::Read), Reason::Fast), alloc::vec![0; bytes])
    }

    fn write() -> Ready {
        Ready::Write(PendingWrite::of(&Record::EMPTY))
    }

    fn len(withheld: &Withheld) -> usize {
        withheld.answers.len()
    }

    /// An answer waits for the scripts that it may have seen and for those before it.
    #[test]
    fn answer_waits_for_scripts_it_may_have_seen() {
        let mut w = Withheld::default();
        assert!(w.is_empty());
        w.push(Position(5), read(3));
        w.push(Position(4), write());
        assert!(w.pop(Position(4)).is_none() && !w.is_empty());
        assert!(matches!(w.pop(Position(5)), Some(Ready::Read(_, reply)) if reply.len() == 3));
        assert!(w.pop(Position(3)).is_none());
        assert!(matches!(w.pop(Position(4)), Some(Ready::Write(_))));
        w.push(Position(5), read(3));
        w.forget();
        assert!(w.is_empty() && w.bytes == 0);
    }

    /// Replies that are withheld are bounded by their bytes but for a single one.
    #[test]
    fn withheld_replies_are_bounded() {
        let mut w = Withheld::default();
        w.push(Position(1), read(WITHHELD_BYTES_MAX + 1));
        w.push(Position(1), read(1));
        assert_eq!((len(&w), w.bytes), (1, WITHHELD_BYTES_MAX + 1));
        w.push(Position(1), read(0));
        w.push(Position(1), write());
        assert_eq!(len(&w), 3, "they have none");
        w.pop(Position(1));
        w.push(Position(1), read(WITHHELD_BYTES_MAX - 1));
        w.push(Position(1), read(1));
        w.push(Position(1), read(1));
        assert_eq!((len(&w), w.bytes), (4, WITHHELD_BYTES_MAX));
    }

    #[test]
    fn answers_that_are_withheld_are_bounded_by_their_number() {
        let mut w = Withheld::default();
        (0..=WITHHELD_MAX).for_each(|_| w.push(Position(1), write()));
        assert_eq!(len(&w), WITHHELD_MAX);
        w.pop(Position(1));
        w.push(Position(1), write());
        assert_eq!(len(&w), WITHHELD_MAX);
    }
}
