//! The newest write applied to each object, as maxima by hash (trap T9): it outlives the object, is
//! bounded, and a collision costs a slow read only.

use alloc::vec::Vec;

use concord_core::{ObjectId, Position, Seq};

const CELLS: usize = 1 << 16;

/// Maxima of sequence numbers and log positions.
#[derive(Clone, Debug)]
pub struct Applied {
    cells: Vec<(Seq, Position)>,
    /// The newest write of all keys (trap T13).
    wildcard: (Seq, Position),
}

impl Default for Applied {
    fn default() -> Self {
        Applied {
            cells: alloc::vec![(Seq::NONE, Position(0)); CELLS],
            wildcard: (Seq::NONE, Position(0)),
        }
    }
}

impl Applied {
    /// Notes a write to `obj_id`.
    pub fn note(&mut self, obj_id: ObjectId, seq: Seq, position: Position) {
        let cell = &mut self.cells[obj_id.0 as usize % CELLS];
        *cell = (cell.0.max(seq), cell.1.max(position));
    }

    /// Notes a write to all keys.
    pub fn note_all(&mut self, seq: Seq, position: Position) {
        self.wildcard = (self.wildcard.0.max(seq), self.wildcard.1.max(position));
    }

    /// The newest write that may have touched `obj_id`.
    #[must_use]
    pub fn newest(&self, obj_id: ObjectId) -> (Seq, Position) {
        let cell = self.cells[obj_id.0 as usize % CELLS];
        (cell.0.max(self.wildcard.0), cell.1.max(self.wildcard.1))
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
        a.note(ObjectId(5), seq(9), Position(3));
        a.note(ObjectId(5), seq(4), Position(4));
        assert_eq!(a.newest(ObjectId(5)), (seq(9), Position(4)));
        assert_eq!(a.newest(ObjectId(6)), (Seq::NONE, Position(0)));
        a.note_all(seq(10), Position(5));
        assert_eq!(a.newest(ObjectId(6)), (seq(10), Position(5)));
    }
}
