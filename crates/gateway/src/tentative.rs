//! Reads whose replies may turn out to be long. A replica executes such a read, and if there is no room for
//! its reply it did so in vain, while others waited behind it. How many are out at a time halves with each
//! reply that has to wait, and grows by one with each short one: where all replies are short there is no
//! bound but the client's own.

use crate::connection::Target;

/// Bounds of how many reads of unknown length are out.
pub const TENTATIVE_MIN: usize = 16;
const TENTATIVE_MAX: usize = 16_384;

#[derive(Debug)]
pub(crate) struct Tentative {
    out: usize,
    max: usize,
}

impl Default for Tentative {
    fn default() -> Tentative {
        Tentative { out: 0, max: TENTATIVE_MAX }
    }
}

impl Tentative {
    pub(crate) fn has_room(&self) -> bool {
        self.out < self.max
    }

    /// A read was sent about whose reply nothing is known.
    pub(crate) fn sent(&mut self) {
        self.out += 1;
    }

    /// The length of a reply is known, or it is not waited for any more.
    pub(crate) fn settle(&mut self, target: &mut Target) {
        if core::mem::take(&mut target.is_tentative) {
            self.out -= 1;
        }
    }

    pub(crate) fn note_short_reply(&mut self) {
        self.max = (self.max + 1).min(TENTATIVE_MAX);
    }

    pub(crate) fn note_long_reply(&mut self) {
        self.max = (self.max / 2).max(TENTATIVE_MIN);
    }
}
