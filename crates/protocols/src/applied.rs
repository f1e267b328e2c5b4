//! The newest write applied to each object (trap T9): it outlives the object, and is bounded. The
//! last writes are known one by one; any other object counts as written when the oldest of them
//! was, which costs a slow read where the switch's word is older than that.

use alloc::collections::VecDeque;

use concord_core::{ObjectId, Position, Seq};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use rustc_hash::FxBuildHasher;

/// How many writes are known one by one at most: more than are on their way through the group.
const RECENT_MAX: usize = 1 << 16;
/// How many of them stay known after they were committed: a read may have passed the switch before.
/// Few enough to stay in the cache of a core.
const COMMITTED_MAX: usize = 4_096;

/// Sequence numbers and log positions of the newest writes.
#[derive(Clone, Debug)]
pub struct Applied {
    recent: HashMap<u32, (Seq, Position), FxBuildHasher>,
    /// The same writes in the order in which they came.
    order: VecDeque<(u32, Position)>,
    /// The newest of the writes that are no longer known one by one, and of writes of all keys
    /// (trap T13).
    rest: (Seq, Position),
}

impl Default for Applied {
    fn default() -> Self {
        Applied {
            recent: HashMap::default(),
            order: VecDeque::new(),
            rest: (Seq::NONE, Position(0)),
        }
    }
}

impl Applied {
    /// Notes a write to `obj_id`; all up to `committed` are committed.
    pub fn note(&mut self, obj_id: ObjectId, seq: Seq, position: Position, committed: Position) {
        while self.order.len() >= COMMITTED_MAX
            && (self.order.len() >= RECENT_MAX || self.is_oldest_within(committed))
        {
            self.forget_oldest();
        }
        self.order.push_back((obj_id.0, position));
        let newest = self.recent.entry(obj_id.0).or_insert((seq, position));
        *newest = (newest.0.max(seq), newest.1.max(position));
    }

    /// Whether, without the oldest, enough committed writes stay known.
    fn is_oldest_within(&self, committed: Position) -> bool {
        self.order.front().is_some_and(|(_, p)| p.0 + COMMITTED_MAX as u64 <= committed.0)
    }

    fn forget_oldest(&mut self) {
        let Some((obj_id, position)) = self.order.pop_front() else { return };
        if let Entry::Occupied(newest) = self.recent.entry(obj_id)
            && newest.get().1 == position
        {
            let (seq, position) = newest.remove();
            self.note_all(seq, position);
        }
    }

    /// Notes a write to all keys.
    pub fn note_all(&mut self, seq: Seq, position: Position) {
        self.rest = (self.rest.0.max(seq), self.rest.1.max(position));
    }

    /// The newest write that may have touched `obj_id`.
    #[must_use]
    pub fn newest(&self, obj_id: ObjectId) -> (Seq, Position) {
        match self.recent.get(&obj_id.0) {
            Some(newest) => (newest.0.max(self.rest.0), newest.1.max(self.rest.1)),
            None => self.rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::SwitchId;

    #[test]
    fn t9_the_number_outlives_the_object_and_t13_a_wildcard_covers_all() {
        let mut a = Applied::default();
        let seq = |n| Seq::new(SwitchId(1), n);
        a.note(ObjectId(5), seq(9), Position(3), Position(0));
        a.note(ObjectId(5), seq(4), Position(4), Position(3));
        assert_eq!(a.newest(ObjectId(5)), (seq(9), Position(4)));
        assert_eq!(a.newest(ObjectId(6)), (Seq::NONE, Position(0)));
        a.note_all(seq(10), Position(5));
        assert_eq!(a.newest(ObjectId(6)), (seq(10), Position(5)));
    }

    #[test]
    fn t9_what_is_forgotten_bounds_every_other_object() {
        let mut a = Applied::default();
        let seq = |n| Seq::new(SwitchId(1), n);
        for n in 1..=RECENT_MAX as u32 + 10 {
            // Object 0 is written again and again: its newest write is never forgotten.
            let object = if n % 3 == 0 { 0 } else { n };
            a.note(ObjectId(object), seq(n), Position(u64::from(n)), Position(0));
        }
        let (last, bound) = a.newest(ObjectId(u32::MAX));
        assert_eq!((last, bound), (seq(10), Position(10)));
        assert_eq!(a.newest(ObjectId(10)), (seq(10), Position(10)));
        assert_eq!(a.newest(ObjectId(11)), (seq(11), Position(11)));
        let end = RECENT_MAX as u64 + 10;
        assert_eq!(a.newest(ObjectId(0)).1, Position(end - end % 3));
        assert!(a.recent.len() <= RECENT_MAX && a.order.len() == RECENT_MAX);
    }

    #[test]
    fn few_committed_writes_stay_known() {
        let mut a = Applied::default();
        for n in 1..=20_000u64 {
            let seq = Seq::new(SwitchId(1), n as u32);
            a.note(ObjectId(n as u32), seq, Position(n), Position(n - 1));
        }
        assert_eq!(a.order.len(), COMMITTED_MAX + 1);
        assert_eq!(a.newest(ObjectId(1)).1, Position(20_000 - COMMITTED_MAX as u64 - 1));
        assert_eq!(a.newest(ObjectId(20_000)).1, Position(20_000));
    }
}
