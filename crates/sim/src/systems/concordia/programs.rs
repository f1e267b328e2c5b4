//! The programs of a simulated memory: their calls, and the check of their outcomes.
//!
//! The first word of each block is the target of additions and compare-and-swaps. Its second half
//! is written and read as a whole, filled with copies of a single word, so that a mix of two writes
//! would show.

use concord_check::{Operation, Options, Reply, check};
use concord_core::Rng;
use concord_memory::{Access, Call};
use concord_wire::concordia::Tag;

/// The client that stands for renewals of blocks.
const RENEWER: usize = 1 << 32;

/// A program, which makes one call after the other.
#[derive(Debug, Default)]
pub struct Program {
    /// The node of the program.
    pub node: usize,
    /// The number of calls that it has made.
    pub made: u32,
    /// The unanswered call.
    pub pending: Option<Pending>,
    /// The writes that were answered and may not have taken effect: no fence has ended since.
    pub unfenced: Vec<Pending>,
}

/// An unanswered call.
#[derive(Debug)]
pub struct Pending {
    /// The number of the call.
    pub id: u64,
    /// The time of the call, in ns.
    pub call_ns: u64,
    tag: Tag,
    access: Access,
    /// The command for the history if the outcome is unknown.
    cmd: Vec<Vec<u8>>,
}

/// The history of the programs' calls.
#[derive(Debug, Default)]
pub struct Seen {
    history: Vec<Operation>,
    /// Whether writes are asynchronous. Then a write ends with the next fence of its program, and a
    /// program's accesses to a word keep their order: coherence of each word, and fences.
    is_relaxed: bool,
}

fn text(word: u64) -> Vec<u8> {
    (word as i64).to_string().into_bytes()
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let count = bytes.len().min(8);
    word[..count].copy_from_slice(&bytes[..count]);
    u64::from_le_bytes(word)
}

fn key(tag: Tag, is_wide: bool) -> Vec<u8> {
    format!("{:x}.{}", tag.0, if is_wide { "half" } else { "word" }).into_bytes()
}

fn cmd(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    parts.iter().map(|part| part.to_vec()).collect()
}

impl Seen {
    /// An empty history: all blocks are zeroes.
    #[must_use]
    pub fn new(tags: &[Tag], is_relaxed: bool) -> Seen {
        let keys = tags.iter().flat_map(|tag| [key(*tag, false), key(*tag, true)]);
        let zero = |(client, key): (u64, Vec<u8>)| Operation {
            client: u64::MAX - client,
            ordinal: None,
            call_ns: 0,
            return_ns: Some(1),
            cmd: cmd(&[b"SET", &key, b"0"]),
            reply: Some(Reply::Ok),
            path: None,
        };
        Seen { history: (0..).zip(keys).map(zero).collect(), is_relaxed }
    }

    /// Adds a call; `reply` is `None` if its outcome is unknown.
    fn add(
        &mut self,
        client: usize,
        (id, call_ns): (u64, u64),
        cmd: Vec<Vec<u8>>,
        reply: Option<(u64, Reply)>,
    ) {
        let (return_ns, reply) = reply.unzip();
        // A program's calls have increasing numbers.
        let ordinal = self.is_relaxed.then_some(id);
        let (client, path) = (client as u64, None);
        self.history.push(Operation { client, ordinal, call_ns, return_ns, cmd, reply, path });
    }

    /// Adds the outcome of a program's call.
    ///
    /// # Errors
    /// The value is impossible: a mix of two writes.
    pub fn answered(
        &mut self,
        client: usize,
        now_ns: u64,
        pending: &Pending,
        got: &[u8],
    ) -> Result<(), String> {
        let key = key(pending.tag, pending.is_wide());
        let answer = |reply| Some((now_ns, reply));
        let (cmd, reply) = match &pending.access {
            Access::Read { .. } => {
                let word = word_of(got);
                if got.chunks(8).any(|other| word_of(other) != word) {
                    let key = String::from_utf8_lossy(&key).into_owned();
                    return Err(format!("{key}: half of one write, and half of another"));
                }
                (pending.cmd.clone(), Reply::bulk(text(word)))
            }
            Access::Fence => return Ok(()),
            Access::Write { .. } | Access::Posted { .. } | Access::Apply { .. } => {
                (pending.cmd.clone(), Reply::Ok)
            }
            Access::FetchAdd { add, .. } => {
                let sum = word_of(got).wrapping_add(*add);
                (pending.cmd.clone(), Reply::Int(sum as i64))
            }
            Access::CompareSwap { expected, .. } if word_of(got) == *expected => {
                (pending.cmd.clone(), Reply::Int(1))
            }
            // A compare-and-swap that failed counts as a read.
            Access::CompareSwap { .. } => (cmd(&[b"GET", &key]), Reply::bulk(text(word_of(got)))),
        };
        self.add(client, (pending.id, pending.call_ns), cmd, answer(reply));
        Ok(())
    }

    /// Adds a renewal: a lost block is zeroes from now on.
    pub fn renewed(&mut self, tag: Tag, now_ns: u64) {
        for key in [key(tag, false), key(tag, true)] {
            self.add(
                RENEWER,
                (now_ns, now_ns),
                cmd(&[b"SET", &key, b"0"]),
                Some((now_ns + 1, Reply::Ok)),
            );
        }
    }

    /// Adds a call whose outcome is unknown.
    pub fn unknown(&mut self, client: usize, pending: &Pending) {
        if pending.is_fence() {
            return;
        }
        self.add(client, (pending.id, pending.call_ns), pending.cmd.clone(), None);
    }

    /// Checks that the history is linearizable; returns the violation if it is not.
    #[must_use]
    pub fn judged(&self) -> Option<String> {
        let options = Options { time_max: None, configs_max: 2_000_000, ..Options::default() };
        match check(&self.history, &options) {
            Ok(report) if report.is_ok() => None,
            Ok(report) => Some(format!("{report}")),
            Err(error) => Some(error.to_string()),
        }
    }
}

impl Pending {
    fn is_wide(&self) -> bool {
        match &self.access {
            Access::Read { offset_bytes, .. } | Access::Write { offset_bytes, .. } => {
                *offset_bytes > 0
            }
            Access::FetchAdd { .. }
            | Access::CompareSwap { .. }
            | Access::Posted { .. }
            | Access::Fence
            | Access::Apply { .. } => false,
        }
    }

    /// Whether the call is a fence.
    #[must_use]
    pub fn is_fence(&self) -> bool {
        self.access == Access::Fence
    }

    /// Whether the call is a write, which may be answered before it takes effect.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.access, Access::Write { .. })
    }

    /// A fence.
    #[must_use]
    pub fn fence(id: u64, now_ns: u64, tag: Tag) -> Pending {
        Pending { id, call_ns: now_ns, tag, access: Access::Fence, cmd: Vec::new() }
    }

    /// The call, for its node.
    #[must_use]
    pub fn call(&self) -> Call {
        Call { id: self.id, tag: self.tag, access: self.access.clone() }
    }

    /// Draws the next call of a program.
    pub fn draw(
        rng: &mut Rng,
        (id, now_ns): (u64, u64),
        tag: Tag,
        block_bytes: usize,
        reads_percent: u64,
    ) -> Pending {
        let half = block_bytes / 2;
        let is_wide = rng.chance(1, 3);
        let name = key(tag, is_wide);
        let offset_bytes = if is_wide { half } else { 0 };
        let of = |access, cmd| Pending { id, call_ns: now_ns, tag, access, cmd };
        if rng.below(100) < reads_percent {
            let size_bytes = if is_wide { half } else { 8 };
            return of(Access::Read { offset_bytes, size_bytes }, cmd(&[b"GET", &name]));
        }
        if is_wide || rng.chance(1, 3) {
            let count = if is_wide { half / 8 } else { 1 };
            let data = id.to_le_bytes().repeat(count);
            return of(Access::Write { offset_bytes, data }, cmd(&[b"SET", &name, &text(id)]));
        }
        if rng.chance(1, 2) {
            let add = rng.between(1, 3);
            return of(
                Access::FetchAdd { offset_bytes, add },
                cmd(&[b"INCRBY", &name, &text(add)]),
            );
        }
        let (expected, new) = (rng.below(4), rng.below(4));
        of(
            Access::CompareSwap { offset_bytes, expected, new },
            cmd(&[b"CAS", &name, &text(expected), &text(new)]),
        )
    }
}
