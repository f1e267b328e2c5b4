//! The generator behind `math.random`: that of Redis (`rand.c`), so that a script that sets the
//! seed gets the same numbers as there, and at every replica.

use std::cell::Cell;

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const LOW: u64 = 0x330E;
const MASK: u64 = (1 << 48) - 1;
const DRAWN_MAX: f64 = 2_147_483_647.0;

/// POSIX' lrand48.
#[derive(Default)]
pub(crate) struct Random(Cell<u64>);

impl Random {
    pub(crate) fn seed(&self, seed: i32) {
        self.0.set((u64::from(seed as u32) << 16) | LOW);
    }

    /// A number in [0, 1).
    pub(crate) fn draw(&self) -> f64 {
        let next = (self.0.get().wrapping_mul(MULTIPLIER) + 0xB) & MASK;
        self.0.set(next);
        let drawn = (next >> 17) as f64;
        if drawn >= DRAWN_MAX { 0.0 } else { drawn / DRAWN_MAX }
    }
}
