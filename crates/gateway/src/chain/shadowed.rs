//! Keys of the store that begin with the chain's prefix, as they do if they were there before the
//! prefix was said: no client reaches them any more. A gateway looks for them once, after its
//! start, in steps between which its clients' commands go, and says which one it has found. It
//! changes none.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_client::{Done, Outcome};
use concord_core::{Duration, Instant, MS, RequestNumber, SEC};
use concord_engine::databases::{MARKER, own_name};
use concord_engine::resp;

/// How many keys a step looks at.
const STEP_KEYS: &[u8] = b"1000";
/// Time from one step to the next, and to the next try of one that was not answered.
const STEP_NS: Duration = 10 * MS;
const AGAIN_NS: Duration = SEC;
/// Where SCAN begins, and ends.
const BEGIN: &[u8] = b"0";

/// How far it has looked.
#[derive(Debug)]
pub(crate) struct Shadowed {
    prefix: Vec<u8>,
    /// The patterns of names that are still to be looked for.
    patterns: VecDeque<Vec<u8>>,
    cursor: Vec<u8>,
    request: Option<RequestNumber>,
    step_at: Instant,
    found: Option<Vec<u8>>,
}

impl Shadowed {
    pub(crate) fn new(prefix: &[u8]) -> Shadowed {
        let mut literal = Vec::new();
        for byte in prefix {
            if b"*?[]^-\\".contains(byte) {
                literal.push(b'\\');
            }
            literal.push(*byte);
        }
        // The names of database 0, and those of the others, which have a letter before them.
        let patterns = [&literal[..], b"*"].concat();
        let others = [&MARKER[..], b"?", &literal, b"*"].concat();
        Shadowed {
            prefix: prefix.to_vec(),
            patterns: [patterns, others].into(),
            cursor: BEGIN.to_vec(),
            request: None,
            step_at: Instant(0),
            found: None,
        }
    }

    pub(crate) fn is_asked(&self, request: RequestNumber) -> bool {
        self.request == Some(request)
    }

    /// When the next step is due.
    pub(crate) fn deadline(&self) -> Instant {
        let waits = self.request.is_none() && !self.patterns.is_empty();
        if waits { self.step_at } else { Instant::NEVER }
    }

    /// The words of the next step, which is due; `None`: it has looked at all keys.
    pub(crate) fn step(&mut self, now: Instant) -> Option<[&[u8]; 6]> {
        let pattern = self.patterns.front()?;
        // Also if it cannot go.
        self.step_at = now.after(STEP_NS);
        Some([b"SCAN", &self.cursor, b"MATCH", pattern, b"COUNT", STEP_KEYS])
    }

    /// A step went, or could not.
    pub(crate) fn sent(&mut self, request: Option<RequestNumber>) {
        self.request = request;
    }

    /// A key that no client reaches.
    pub(crate) fn found(&self) -> Option<&[u8]> {
        self.found.as_deref()
    }

    /// The answer to a step.
    pub(crate) fn take(&mut self, now: Instant, done: &Done) {
        self.request = None;
        let told = (done.outcome == Outcome::Reply).then(|| step_of(&done.reply)).flatten();
        let Some((cursor, names)) = told else {
            self.step_at = now.after(AGAIN_NS);
            return;
        };
        self.step_at = now.after(STEP_NS);
        let mut names = names.into_iter().map(own_name);
        if let Some(name) = names.find(|name| name.starts_with(&self.prefix)) {
            self.found = Some(name.to_vec());
            self.patterns.clear();
        } else if cursor == BEGIN {
            self.patterns.pop_front();
        }
        self.cursor = cursor.to_vec();
    }
}

/// The cursor and the names of a reply to SCAN.
fn step_of(reply: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let [cursor, names] = resp::array_items(reply)?[..] else { return None };
    let names = resp::array_items(names)?.into_iter().map(resp::bulk_payload);
    Some((resp::bulk_payload(cursor)?, names.collect::<Option<_>>()?))
}
