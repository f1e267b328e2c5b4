//! A command that waits: what it is tried as, on all of its keys or on some.

use alloc::vec::Vec;
use core::ops::Range;

use concord_core::{Duration, MS};
use concord_engine::blocking::{Blocking, Form};

/// The size of each of its keys beside the text, in bytes.
const KEY_BYTES: usize = 256;

/// A command that waits.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) blocking: Blocking,
    args: Vec<Vec<u8>>,
    pub(crate) keys: Range<usize>,
    /// The time for which it waits; `None`: for ever.
    pub(crate) timeout_ns: Option<Duration>,
    /// The consumer group on whose behalf it reads.
    pub(crate) group: Option<Vec<u8>>,
}

impl Wanted {
    /// The command in `args`; `None` if something is wrong with it.
    pub(crate) fn of(blocking: Blocking, args: &[&[u8]]) -> Option<Wanted> {
        let timeout_ms = blocking.timeout_ms(args).ok()?;
        let args = &blocking.without_waiting(args)[..];
        let keys = blocking.awaited_keys(args)?;
        let timeout_ns = (timeout_ms != 0).then(|| timeout_ms.saturating_mul(MS));
        let group = blocking.group(args).map(<[u8]>::to_vec);
        let args = args.iter().map(|arg| arg.to_vec()).collect();
        Some(Wanted { blocking, args, keys, timeout_ns, group })
    }

    /// The keys that it reads from their ends on (`$`).
    pub(crate) fn ends(&self) -> Vec<&[u8]> {
        self.at_ends().map(|at| &self.args[at - self.keys.len()][..]).collect()
    }

    /// The indices of `$`.
    fn at_ends(&self) -> impl Iterator<Item = usize> {
        let ids = self.keys.end..self.args.len();
        let is_end = |at: &usize| self.args[*at] == b"$" && self.group.is_none();
        let is_read = self.blocking.form == Form::Streams;
        ids.filter(move |at| is_read && is_end(at))
    }

    /// The same command with these ids.
    pub(crate) fn behind(mut self, ids: Vec<Vec<u8>>) -> Wanted {
        let at: Vec<usize> = self.at_ends().collect();
        for (at, id) in at.into_iter().zip(ids) {
            self.args[at] = id;
        }
        self
    }

    pub(crate) fn keys(&self) -> &[Vec<u8>] {
        &self.args[self.keys.clone()]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.args.iter().map(Vec::len).sum::<usize>() + self.keys.len() * KEY_BYTES
    }

    /// As it is encoded.
    pub(crate) fn text_bytes(&self) -> usize {
        self.args.iter().map(|arg| arg.len() + 4).sum()
    }

    /// The command on these of its keys only, which are counted from the first.
    pub(crate) fn on(&self, keys: Range<usize>) -> Vec<&[u8]> {
        let own = self.keys.start + keys.start..self.keys.start + keys.end;
        let text = |range: Range<usize>| self.args[range].iter().map(Vec::as_slice);
        match self.blocking.form {
            Form::Counted if keys.len() != self.keys.len() => {
                // A number of one digit: there are at most eight.
                const DIGITS: &[u8] = b"0123456789";
                let count = &DIGITS[keys.len().min(9)..][..1];
                let head = text(0..2).chain([count]).chain(text(own));
                head.chain(text(self.keys.end..self.args.len())).collect()
            }
            Form::Counted | Form::Move => text(0..self.args.len()).collect(),
            Form::Streams => {
                let ids = self.keys.end + keys.start..self.keys.end + keys.end;
                text(0..self.keys.start).chain(text(own)).chain(text(ids)).collect()
            }
            Form::Pop => {
                text(0..1).chain(text(own)).chain(text(self.keys.end..self.args.len())).collect()
            }
        }
    }
}
