//! Sorted sets: scores by member, and all entries in order, in chunks.
//!
//! Finding a rank or an entry is a binary search over chunks and one within; an insertion moves at
//! most a chunk. For a million members that is within a small factor of Redis' skip list, and it
//! is a tenth of the code.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;

use concord_core::hash::hash64;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::store::ELEMENT_BYTES;
use super::undo::Notes;

/// The largest number of entries of a chunk.
const CHUNK_MAX: usize = 256;

/// A member with its score.
#[derive(Clone, Debug)]
pub(super) struct Scored {
    pub(super) score: f64,
    pub(super) member: Arc<[u8]>,
}

/// A sorted set.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorted {
    scores: HashMap<Arc<[u8]>, f64, FxBuildHasher>,
    /// In order of score, then member; none is empty, none longer than `CHUNK_MAX`.
    chunks: Vec<Vec<Scored>>,
    bytes: u64,
    /// Each member that was changed, and the score that it had.
    notes: Notes<(Arc<[u8]>, Option<f64>)>,
}

/// The order of (score, member); scores are never NaN.
fn order(a: &Scored, score: f64, member: &[u8]) -> Ordering {
    let by_score = a.score.partial_cmp(&score).unwrap_or(Ordering::Equal);
    by_score.then_with(|| (*a.member).cmp(member))
}

impl Sorted {
    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Sets a member's score, adding it if need be.
    pub(super) fn set(&mut self, member: &[u8], score: f64) {
        let old = self.score(member);
        if old == Some(score) {
            return;
        }
        let shared: Arc<[u8]> = member.into();
        self.notes.add(|| (shared.clone(), old));
        if old.is_some() {
            self.take(member);
        }
        self.bytes += member.len() as u64 + 2 * ELEMENT_BYTES;
        self.scores.insert(shared.clone(), score);
        let scored = Scored { score, member: shared };
        let is_before = |chunk: &Vec<Scored>| {
            chunk.last().is_some_and(|last| order(last, score, member).is_lt())
        };
        let at = self.chunks.partition_point(is_before).min(self.chunks.len().saturating_sub(1));
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(alloc::vec![scored]);
            return;
        };
        let within = chunk.partition_point(|own| order(own, score, member).is_lt());
        chunk.insert(within, scored);
        if chunk.len() > CHUNK_MAX {
            let upper = chunk.split_off(CHUNK_MAX / 2);
            self.chunks.insert(at + 1, upper);
        }
    }

    /// Removes a member.
    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let old = self.take(member);
        if old.is_some() {
            self.notes.add(|| (member.into(), old));
        }
        old.is_some()
    }

    /// Removes a member, which is for the caller to note; its score.
    fn take(&mut self, member: &[u8]) -> Option<f64> {
        let score = self.scores.remove(member)?;
        self.bytes -= member.len() as u64 + 2 * ELEMENT_BYTES;
        let is_before = |chunk: &Vec<Scored>| {
            chunk.last().is_some_and(|last| order(last, score, member).is_lt())
        };
        let at = self.chunks.partition_point(is_before);
        let within = self.chunks[at].partition_point(|own| order(own, score, member).is_lt());
        self.chunks[at].remove(within);
        self.join(at);
        Some(score)
    }

    /// Notes how each change is undone, from now on; false if it does already.
    pub(super) fn begin_notes(&mut self) -> bool {
        self.notes.begin()
    }

    pub(super) fn end_notes(&mut self) {
        drop(self.notes.take());
    }

    /// Becomes what it was when its notes began.
    pub(super) fn undo(&mut self) {
        for (member, score) in self.notes.take() {
            match score {
                Some(score) => self.set(&member, score),
                None => {
                    self.take(&member);
                }
            }
        }
    }

    /// Keeps chunks from becoming many and small.
    fn join(&mut self, at: usize) {
        if self.chunks[at].is_empty() {
            self.chunks.remove(at);
            return;
        }
        let next = self.chunks.get(at + 1).map_or(CHUNK_MAX, Vec::len);
        if self.chunks[at].len() + next <= CHUNK_MAX / 2 {
            let mut upper = self.chunks.remove(at + 1);
            self.chunks[at].append(&mut upper);
        }
    }

    /// The number of entries from the front that satisfy `before`, which holds only up to some
    /// entry.
    pub(super) fn count_while(&self, before: impl Fn(&Scored) -> bool) -> usize {
        let at = self.chunks.partition_point(|chunk| chunk.last().is_some_and(&before));
        let full: usize = self.chunks[..at].iter().map(Vec::len).sum();
        full + self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(before))
    }

    /// The place of a member in the order.
    pub(super) fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(self.count_while(|own| order(own, score, member).is_lt()))
    }

    /// The entries of the ranks `start..end`, in order.
    pub(super) fn range(&self, start: usize, end: usize) -> Vec<&Scored> {
        let mut out = Vec::with_capacity(end.saturating_sub(start).min(self.len()));
        let mut first = 0;
        for chunk in &self.chunks {
            if first >= end {
                break;
            }
            if first + chunk.len() > start {
                let from = start.saturating_sub(first);
                let to = chunk.len().min(end - first);
                out.extend(&chunk[from..to]);
            }
            first += chunk.len();
        }
        out
    }

    /// All entries, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Scored> {
        self.chunks.iter().flatten()
    }

    /// The entries from that rank on, in order.
    pub(super) fn iter_from(&self, rank: usize) -> impl Iterator<Item = &Scored> {
        let mut before = rank;
        let is_before = move |chunk: &&Vec<Scored>| {
            let skips = before >= chunk.len();
            before -= if skips { chunk.len() } else { 0 };
            skips
        };
        let full: usize = self.chunks.iter().take_while(is_before).map(Vec::len).sum();
        self.chunks.iter().skip_while(is_before).flatten().skip(rank - full)
    }

    pub(super) fn digest(&self, seed: u64) -> u64 {
        self.iter().fold(seed, |d, own| hash64(d ^ own.score.to_bits(), &own.member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::rng::Rng;

    #[test]
    fn order_and_ranks_are_those_of_a_sorted_vector() {
        let mut rng = Rng::new(1);
        let mut sorted = Sorted::default();
        let mut model: Vec<(i64, Vec<u8>)> = Vec::new();
        for _ in 0..20_000 {
            let member = rng.below(3000).to_string().into_bytes();
            model.retain(|(_, own)| *own != member);
            if rng.chance(1, 3) {
                sorted.remove(&member);
            } else {
                let score = rng.below(50) as i64;
                sorted.set(&member, score as f64);
                model.push((score, member));
            }
        }
        model.sort();
        assert_eq!(sorted.len(), model.len());
        for (rank, (own, (score, member))) in sorted.iter().zip(&model).enumerate() {
            assert_eq!((own.score as i64, &*own.member), (*score, &member[..]));
            assert_eq!(sorted.rank(member), Some(rank));
        }
        let middle = sorted.range(500, 900);
        assert_eq!(middle.len(), 400);
        assert_eq!(*middle[0].member, model[500].1[..]);
        for (_, member) in &model {
            sorted.remove(member);
        }
        assert_eq!((sorted.len(), sorted.chunks.len(), sorted.bytes), (0, 0, 0));
    }

    extern crate std;
    use std::string::ToString;
}
