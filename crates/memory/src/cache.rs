//! A node's cache: sets of blocks, of which the least recently used goes (§6).

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_wire::concordia::Tag;

/// What a node may do with its copy of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LineState {
    /// Nothing: the place is kept for a block that is on its way (trap C12).
    Reserved,
    /// Read it.
    Shared,
    /// Read and write it: no other node has a copy.
    Modified,
}

/// A block's place in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Which block.
    pub tag: Tag,
    /// What may be done with it.
    pub state: LineState,
    /// The block's version when the copy came; of a modified one, that of its own event.
    pub version: u64,
    /// The content.
    pub data: Vec<u8>,
    /// When it was used last, in uses of the cache.
    used: u64,
}

impl Line {
    /// Whether there is a copy.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.state != LineState::Reserved
    }
}

/// The cache.
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
        // Blocks that follow each other are in sets of their own; ranges begin at different ones.
        let spread = tag.0 ^ u64::from(tag.range()).wrapping_mul(0x9e37_79b9);
        (spread % self.sets.len() as u64) as usize
    }

    /// A block's line.
    #[must_use]
    pub fn line(&self, tag: Tag) -> Option<&Line> {
        self.sets[self.set(tag)].iter().find(|line| line.tag == tag)
    }

    /// A block's line, to be changed.
    pub fn line_mut(&mut self, tag: Tag) -> Option<&mut Line> {
        let set = self.set(tag);
        self.sets[set].iter_mut().find(|line| line.tag == tag)
    }

    /// A block's line, which is used now.
    pub fn use_line(&mut self, tag: Tag) -> Option<&mut Line> {
        self.uses += 1;
        let uses = self.uses;
        let line = self.line_mut(tag)?;
        line.used = uses;
        Some(line)
    }

    /// Whether there is room for a block that has no line.
    #[must_use]
    pub fn has_room(&self, tag: Tag) -> bool {
        self.sets[self.set(tag)].len() < self.ways
    }

    /// Keeps a place for a block that has none; `false` if there is no room.
    pub fn reserve(&mut self, tag: Tag) -> bool {
        if self.line(tag).is_some() || !self.has_room(tag) {
            return self.line(tag).is_some();
        }
        self.uses += 1;
        let (state, used, set) = (LineState::Reserved, self.uses, self.set(tag));
        self.sets[set].push(Line { tag, state, version: 0, data: Vec::new(), used });
        true
    }

    /// The block that has to go for `tag`: of those that may, the least recently used.
    #[must_use]
    pub fn victim(&self, tag: Tag, may_go: impl Fn(&Line) -> bool) -> Option<Tag> {
        let set = &self.sets[self.set(tag)];
        let oldest = set.iter().filter(|line| may_go(line)).min_by_key(|line| line.used)?;
        Some(oldest.tag)
    }

    /// Takes a block's line away.
    pub fn remove(&mut self, tag: Tag) -> Option<Line> {
        let set = self.set(tag);
        let at = self.sets[set].iter().position(|line| line.tag == tag)?;
        Some(self.sets[set].swap_remove(at))
    }

    /// All lines.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.sets.iter().flatten()
    }

    /// What tells its states apart: the lines of each set, in the order of their last use.
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

    /// The least recently used of those that may go makes room, and a set has a bound.
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
