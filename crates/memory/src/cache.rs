//! A node's cache: sets of blocks, each with least-recently-used replacement (§6).

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_wire::concordia::Tag;

/// The state of a line: what the node may do with its copy of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LineState {
    /// No access: the place is reserved for a block that is on its way (trap C12).
    Reserved,
    /// Reads.
    Shared,
    /// Reads and writes: no other node has a copy.
    Modified,
}

/// A line: the place of a block in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The block.
    pub tag: Tag,
    /// The state of the copy.
    pub state: LineState,
    /// The block's version when the copy arrived; for a modified copy, the version of its own
    /// event.
    pub version: u64,
    /// The content of the copy.
    pub data: Vec<u8>,
    /// When the line was last used, counted in uses of the cache.
    used: u64,
}

impl Line {
    /// Whether the line holds a copy.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.state != LineState::Reserved
    }
}

/// A set-associative cache.
#[derive(Clone, Debug)]
pub struct Cache {
    sets: Vec<Vec<Line>>,
    ways: usize,
    uses: u64,
}

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(sets: usize, ways: usize) -> Cache {
        Cache { sets: alloc::vec![Vec::new(); sets], ways, uses: 0 }
    }

    fn set(&self, tag: Tag) -> usize {
        // Consecutive blocks are in different sets, and ranges begin at different ones.
        let spread = tag.0 ^ u64::from(tag.range()).wrapping_mul(0x9e37_79b9);
        (spread % self.sets.len() as u64) as usize
    }

    /// The line of a block.
    #[must_use]
    pub fn line(&self, tag: Tag) -> Option<&Line> {
        self.sets[self.set(tag)].iter().find(|line| line.tag == tag)
    }

    /// The line of a block, for changes.
    pub fn line_mut(&mut self, tag: Tag) -> Option<&mut Line> {
        let set = self.set(tag);
        self.sets[set].iter_mut().find(|line| line.tag == tag)
    }

    /// The line of a block, which now counts as used.
    pub fn use_line(&mut self, tag: Tag) -> Option<&mut Line> {
        self.uses += 1;
        let uses = self.uses;
        let line = self.line_mut(tag)?;
        line.used = uses;
        Some(line)
    }

    /// Whether a block without a line has room.
    #[must_use]
    pub fn has_room(&self, tag: Tag) -> bool {
        self.sets[self.set(tag)].len() < self.ways
    }

    /// Reserves a line for a block that has none; `false` if there is no room.
    pub fn reserve(&mut self, tag: Tag) -> bool {
        if self.line(tag).is_some() || !self.has_room(tag) {
            return self.line(tag).is_some();
        }
        self.uses += 1;
        let (state, used, set) = (LineState::Reserved, self.uses, self.set(tag));
        self.sets[set].push(Line { tag, state, version: 0, data: Vec::new(), used });
        true
    }

    /// The block to evict for `tag`: the least recently used of those that may be evicted.
    #[must_use]
    pub fn victim(&self, tag: Tag, may_go: impl Fn(&Line) -> bool) -> Option<Tag> {
        let set = &self.sets[self.set(tag)];
        let oldest = set.iter().filter(|line| may_go(line)).min_by_key(|line| line.used)?;
        Some(oldest.tag)
    }

    /// Removes the line of a block.
    pub fn remove(&mut self, tag: Tag) -> Option<Line> {
        let set = self.set(tag);
        let at = self.sets[set].iter().position(|line| line.tag == tag)?;
        Some(self.sets[set].swap_remove(at))
    }

    /// All lines.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.sets.iter().flatten()
    }

    /// Hashes what distinguishes its states: the lines of each set, in the order of their last use.
    pub fn hash_state(&self, hasher: &mut impl Hasher) {
        for set in &self.sets {
            let mut lines: Vec<&Line> = set.iter().collect();
            lines.sort_by_key(|line| line.used);
            for line in lines {
                (line.tag, line.state, line.version, &line.data).hash(hasher);
            }
            u8::MAX.hash(hasher);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The least recently used of the evictable lines makes room, and a set is bounded.
    #[test]
    fn cache_evicts_the_least_recently_used_of_a_set() {
        let (mut cache, tag) = (Cache::new(1, 2), |block| Tag::new(0, block));
        assert!(cache.reserve(tag(1)) && cache.reserve(tag(2)) && cache.reserve(tag(1)));
        assert!(!cache.reserve(tag(3)));
        assert_eq!(cache.victim(tag(3), |_| true), Some(tag(1)));
        cache.use_line(tag(1)).unwrap();
        assert_eq!(cache.victim(tag(3), |_| true), Some(tag(2)));
        assert_eq!(cache.victim(tag(3), Line::is_valid), None);
        assert!(cache.remove(tag(2)).is_some() && cache.reserve(tag(3)));
        assert_eq!(cache.lines().count(), 2);
    }
}
