//! Keys that are copied before their turn, so that a copy of the state survives writes whose effect
//! on one key depends on others ([`concord_engine::early`]): LMOVE, RENAME, SINTERSTORE, scripts of
//! several keys.
//!
//! Before such a write, the snapshot source copies those of its keys that it has not copied early
//! yet. An *early part* holds them, as of the position before the write. It stands between the
//! chunks in the order of positions: the copying replica has these keys when it reaches the write,
//! executes all of the write, and all later writes of these keys. A key is copied early at most
//! once in a copy.
//!
//! The keys of a script are known only after its execution. The source then names the position of
//! the script in an early part. A replica that has only some of the keys cannot execute a script
//! that no early part names, nor one that looked at all keys: its copy begins anew.
//!
//! A chunk has the first piece of a large key; the other pieces, as of the same position, follow
//! before any other part ([`concord_engine::copy`]). So keys that are copied early wait until the
//! objects of the present chunk are complete.
//!
//! An early part is: [`MARK`], `count: u32`, as many positions of scripts, a chunk.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use concord_core::Position;
use concord_engine::Command;
use concord_engine::copy::{
    PLACE_EARLY, next_place, objects, place_of_key, ticket_of_cursor, with_next,
};
use concord_engine::several::keys;

use crate::part_number::is_rest;

/// Stands in an early part where a chunk has the place of the next one.
const MARK: u64 = u64::MAX;
/// The length of a chunk without objects.
const EMPTY_CHUNK_BYTES: usize = 8;
/// The largest number of scripts without new keys that one early part names.
const SCRIPTS_MAX: usize = 1_024;
/// The largest total size of early parts that wait for a copying replica, or for the rest of an
/// object, in bytes.
pub(crate) const WAITING_BYTES_MAX: usize = 64 << 20;
/// The bit from which on the number of a requested part holds the number of the next early part.
const NEXT_SHIFT: u32 = 33;

/// The part number of every early part on the disk.
pub(crate) const PART_EARLY: u64 = (1 << NEXT_SHIFT) - 1;

/// The number in a request for `part` by a replica that has installed `taken` early parts.
pub(crate) fn asked(part: u64, taken: u64) -> u64 {
    part | taken << NEXT_SHIFT
}

/// The reverse of [`asked`]: the part, and the number of early parts that the requester has
/// installed.
pub(crate) fn part_of(asked: u64) -> (u64, u64) {
    if is_rest(asked) { (asked, 0) } else { (asked & PART_EARLY, asked >> NEXT_SHIFT) }
}

/// The keys that a snapshot source copied early, before the record after `before`.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    /// The position of the state that was copied.
    pub(crate) before: Position,
    /// The keys, as a chunk.
    pub(crate) chunk: Vec<u8>,
    /// Whether the record is a script that used no other keys than these and those copied before.
    pub(crate) is_script: bool,
}

impl Copied {
    /// Whether no key was copied.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunk.len() <= EMPTY_CHUNK_BYTES
    }

    /// The cursor of the rest of the keys, if there is one.
    pub(crate) fn rest(&self) -> Option<u64> {
        next_place(&self.chunk).ok().filter(|next| ticket_of_cursor(*next) != 0)
    }

    /// The same keys for another copying replica, with a cursor of its own for the rest, which
    /// `fork` makes. `None` if the rest was dropped.
    pub(crate) fn fork(&self, fork: impl FnOnce(u64) -> u64) -> Option<Copied> {
        let Some(rest) = self.rest() else { return Some(self.clone()) };
        let own = fork(rest);
        let chunk = (ticket_of_cursor(own) != 0).then(|| with_next(&self.chunk, own))?;
        Some(Copied { chunk, ..*self })
    }
}

/// Collects scripts and keys into early parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    /// Positions of scripts that used no new keys.
    scripts: Vec<u64>,
}

impl Parts {
    /// Adds what was copied. Returns the early parts to send now; scripts are named before the
    /// copying replica reaches them.
    pub(crate) fn add(
        &mut self,
        copied: &Copied,
    ) -> impl Iterator<Item = (Position, Vec<u8>)> + use<> {
        let script = copied.is_script.then_some(copied.before.0 + 1);
        let (mut named, mut part) = (None, None);
        if copied.is_empty() {
            self.scripts.extend(script);
            if self.scripts.len() >= SCRIPTS_MAX {
                named = self.flush();
            }
        } else {
            named = self.flush();
            part = Some((copied.before, emit(script.as_slice(), &copied.chunk)));
        }
        named.into_iter().chain(part)
    }

    /// The scripts that no early part named yet: before another part is written that is as of a
    /// later position.
    pub(crate) fn flush(&mut self) -> Option<(Position, Vec<u8>)> {
        let scripts = core::mem::take(&mut self.scripts);
        let before = Position(scripts.first()? - 1);
        Some((before, emit(&scripts, &PLACE_EARLY.to_be_bytes())))
    }

    pub(crate) fn clear(&mut self) {
        self.scripts.clear();
    }
}

fn emit(scripts: &[u64], chunk: &[u8]) -> Vec<u8> {
    let mut bytes = MARK.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(scripts.len() as u32).to_be_bytes());
    scripts.iter().for_each(|position| bytes.extend_from_slice(&position.to_be_bytes()));
    bytes.extend_from_slice(chunk);
    bytes
}

/// An early part, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EarlyPart<'a> {
    scripts: Vec<u64>,
    pub(crate) chunk: &'a [u8],
}

/// The early part, if it is one.
pub(crate) fn parse(bytes: &[u8]) -> Option<EarlyPart<'_>> {
    let rest = bytes.strip_prefix(&MARK.to_be_bytes())?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (positions, chunk) = rest.split_at_checked(u32::from_be_bytes(*count) as usize * 8)?;
    objects(chunk).ok()?;
    let words = positions.chunks_exact(8).filter_map(|word| word.first_chunk());
    Some(EarlyPart { scripts: words.map(|word| u64::from_be_bytes(*word)).collect(), chunk })
}

/// Whether the bytes begin as an early part does.
pub(crate) fn is_early(bytes: &[u8]) -> bool {
    bytes.starts_with(&MARK.to_be_bytes())
}

/// The keys that a copying replica has beyond the objects before its present place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Here {
    keys: BTreeSet<Vec<u8>>,
    scripts: BTreeSet<u64>,
    /// The number of installed early parts.
    taken: u64,
}

impl Here {
    /// The number of installed early parts.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Notes that an early part was installed.
    pub(crate) fn take(&mut self, part: &EarlyPart<'_>) {
        let found = objects(part.chunk).unwrap_or_default();
        self.keys.extend(found.iter().map(|object| object.key.to_vec()));
        self.scripts.extend(&part.scripts);
        self.taken += 1;
    }

    /// Notes that all keys are here: the copy is complete.
    pub(crate) fn has_all(&mut self) {
        (self.keys, self.scripts) = (BTreeSet::new(), BTreeSet::new());
    }

    /// Whether no key is here before its turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether the key is here; all keys before place `from` are.
    pub(crate) fn has(&self, key: &[u8], from: u64) -> bool {
        place_of_key(key) < from || self.keys.contains(key)
    }

    /// Whether the key of a command with one key is here, in whatever form the command names it.
    pub(crate) fn has_of(&self, command: &[u8], from: u64) -> bool {
        let Ok(command) = Command::parse(command) else { return false };
        keys(&command).into_iter().any(|key| self.has(key, from))
    }

    /// Whether all keys that the script at `position` uses are here.
    pub(crate) fn has_of_script(&self, position: Position) -> bool {
        self.scripts.contains(&position.0)
    }
}

/// Early parts that wait for a copying replica, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    parts: VecDeque<(Position, Vec<u8>)>,
    bytes: usize,
    /// The number of the first one; `None` if the replica got its first chunk elsewhere: then it
    /// lacks earlier early parts, which are not sent again.
    next: Option<u64>,
    named: Parts,
}

impl Waiting {
    /// Handles a request for a chunk, the first one or a later one, by a replica that has installed
    /// `taken` early parts. Returns the early part that precedes the chunk, if there is one.
    pub(crate) fn take(&mut self, is_first: bool, taken: u64) -> Option<(Position, Vec<u8>)> {
        if is_first {
            self.next.get_or_insert(taken);
        }
        let next = self.next?;
        if taken != next {
            return None;
        }
        self.named.flush().into_iter().for_each(|part| self.push(part));
        let (position, bytes) = self.parts.pop_front()?;
        self.bytes -= bytes.len();
        self.next = Some(next + 1);
        Some((position, bytes))
    }

    /// Whether keys are copied early for this replica.
    pub(crate) fn is_on(&self) -> bool {
        self.next.is_some()
    }

    /// Queues what was copied early. False if too much waits: the copy has to begin anew.
    pub(crate) fn add(&mut self, copied: &Copied) -> bool {
        let parts = self.named.add(copied);
        parts.for_each(|part| self.push(part));
        self.bytes <= WAITING_BYTES_MAX
    }

    fn push(&mut self, (position, bytes): (Position, Vec<u8>)) {
        self.bytes += bytes.len();
        self.parts.push_back((position, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that touched nothing new was named by the next part that was copied early, which is
    /// as of behind it: whoever copied came to the script first, could not execute it, and began
    /// anew; a start found its own snapshot of no use.
    #[test]
    fn bug_22_4_scripts_are_named_before_they_come() {
        let mut parts = Parts::default();
        let mut add = |before, key: &[u8], is_script| -> Vec<(u64, Vec<u64>)> {
            let mut chunk = PLACE_EARLY.to_be_bytes().to_vec();
            if !key.is_empty() {
                chunk.extend_from_slice(&[0, 0, 0, key.len() as u8, 0, 0, 0, 0]);
                chunk.extend_from_slice(&[0; 8]);
                chunk.extend_from_slice(key);
            }
            let made = parts.add(&Copied { before: Position(before), chunk, is_script });
            made.map(|(at, bytes)| (at.0, parse(&bytes).unwrap().scripts)).collect()
        };
        assert_eq!(add(10, b"", true), []);
        assert_eq!(add(20, b"", true), []);
        assert_eq!(add(30, b"k", false), [(10, [11, 21].into()), (30, [].into())]);
        assert_eq!(add(40, b"l", true), [(40, [41].into())]);
        let many: Vec<_> = (0..SCRIPTS_MAX as u64).flat_map(|n| add(50 + n, b"", true)).collect();
        assert!(many.len() == 1 && many[0].0 == 50 && many[0].1.len() == SCRIPTS_MAX);
    }
}
