//! The newest write applied to each object (trap T9), kept after the object is deleted, in bounded
//! memory. Writes are remembered one by one until they are known to be committed. If there are too
//! many, the oldest are forgotten, and every object that is not remembered counts as written when
//! the newest of those was.

use alloc::collections::VecDeque;

use concord_core::{ObjectId, Position, Seq};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use rustc_hash::FxBuildHasher;

/// The largest number of writes that are remembered one by one: more than can be on their way
/// through the group.
const RECENT_MAX: usize = 1 << 16;

/// Sequence numbers and log positions of the newest writes.
#[derive(Clone, Debug)]
pub struct Applied {
    recent: HashMap<u32, (Seq, Position), FxBuildHasher>,
    /// The same writes in the order of their arrival.
    order: VecDeque<(u32, Position)>,
    /// The newest of the forgotten writes and of the writes of all keys (trap T13).
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
    /// Notes a write to `obj_id`.
    pub fn note(&mut self, obj_id: ObjectId, seq: Seq, position: Position) {
        if self.order.len() >= RECENT_MAX
            && let Some((seq, position)) = self.forget_oldest()
        {
            self.note_all(seq, position);
        }
        self.order.push_back((obj_id.0, position));
        let newest = self.recent.entry(obj_id.0).or_insert((seq, position));
        *newest = (newest.0.max(seq), newest.1.max(position));
    }

    /// Forgets the writes up to `committed`: a read of their objects shows nothing that a later
    /// read could miss.
    pub fn commit(&mut self, committed: Position) {
        while self.order.front().is_some_and(|(_, position)| *position <= committed) {
            self.forget_oldest();
        }
        if self.rest.1 <= committed {
            self.rest = (Seq::NONE, Position(0));
        }
    }

    /// Forgets the oldest write. Returns it if it was the newest of its object.
    fn forget_oldest(&mut self) -> Option<(Seq, Position)> {
        let (obj_id, position) = self.order.pop_front()?;
        match self.recent.entry(obj_id) {
            Entry::Occupied(newest) if newest.get().1 == position => Some(newest.remove()),
            _ => None,
        }
    }

    /// The newest of [`Applied::newest`] of all these objects.
    #[must_use]
    pub fn newest_of(&self, obj_ids: impl IntoIterator<Item = ObjectId>) -> (Seq, Position) {
        obj_ids.into_iter().fold(self.rest, |newest, obj_id| {
            let own = self.newest(obj_id);
            (newest.0.max(own.0), newest.1.max(own.1))
        })
    }

    /// Notes a write to all keys.
    pub fn note_all(&mut self, seq: Seq, position: Position) {
        self.rest = (self.rest.0.max(seq), self.rest.1.max(position));
    }

    /// The newest write that may concern `obj_id` and is not known to be committed.
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

    /// The number outlives the object and t13 a wildcard covers all.
    #[test]
    fn t9_number_outlives_the_object_and_t13_all_keys() {
        let mut a = Applied::default();
        let seq = |n| Seq::new(SwitchId(1), n);
        a.note(ObjectId(5), seq(9), Position(3));
        a.note(ObjectId(5), seq(4), Position(4));
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
            a.note(ObjectId(object), seq(n), Position(u64::from(n)));
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
    fn t9_what_is_committed_is_forgotten_and_nothing_else() {
        let mut a = Applied::default();
        let seq = |n| Seq::new(SwitchId(1), n);
        for (n, object) in [(1, 7), (2, 8), (3, 7), (4, 9)] {
            a.note(ObjectId(object), seq(n), Position(u64::from(n)));
        }
        a.commit(Position(2));
        assert_eq!(a.newest(ObjectId(8)), (Seq::NONE, Position(0)));
        assert_eq!(a.newest(ObjectId(7)), (seq(3), Position(3)));
        a.note_all(seq(5), Position(5));
        a.commit(Position(4));
        assert_eq!(a.newest(ObjectId(9)), (seq(5), Position(5)));
        a.commit(Position(5));
        assert_eq!(a.newest(ObjectId(9)), (Seq::NONE, Position(0)));
        assert!(a.recent.is_empty() && a.order.is_empty());
    }
}
