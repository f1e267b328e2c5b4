//! Crash vectors (Michael, Ports, Sharma, Szekeres: *Recovering Shared Objects Without Stable
//! Storage*, DISC 2017): the newest incarnation that a replica knows of each member.
//!
//! A replica without a disk forgets its promises in a crash. Its vote for a later view may still be
//! in flight when it has recovered in the earlier one, where it acknowledges writes that the vote
//! does not cover. So each message carries the sender's vector, a receiver drops the messages of
//! older incarnations, and a replica takes part again only after so many others know its new
//! incarnation that every quorum has one of them.

use alloc::vec::Vec;

use concord_core::{Guard, Guards};
use concord_wire::vr::CrashVectorEntry;

/// The result of comparing a message's vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The sender has restarted since: the message does not count.
    Stale,
    /// Others know a higher incarnation of this node, a later or an earlier process: the promises
    /// of this process do not count any more.
    Superseded,
    /// The message counts. The bits are the members with a newer incarnation than was known.
    Fresh(u64),
}

/// The newest known incarnation of each member, in the configuration's order.
#[derive(Clone, Debug, Default)]
pub struct CrashVector {
    known: Vec<CrashVectorEntry>,
    me: usize,
    guards: Guards,
}

impl CrashVector {
    /// The vector at the start; `known[me]` is this process's incarnation.
    #[must_use]
    pub fn new(known: Vec<CrashVectorEntry>, me: usize, guards: Guards) -> CrashVector {
        CrashVector { known, me, guards }
    }

    /// The vector, for messages.
    #[must_use]
    pub fn vector(&self) -> &[CrashVectorEntry] {
        &self.known
    }

    /// This process's incarnation.
    #[must_use]
    pub fn mine(&self) -> CrashVectorEntry {
        self.known.get(self.me).copied().unwrap_or_default()
    }

    /// The newest known incarnation of member `index`.
    #[must_use]
    pub fn of(&self, index: usize) -> CrashVectorEntry {
        self.known.get(index).copied().unwrap_or_default()
    }

    /// Numbers this process's incarnation above `above`, which others know of this node. Returns
    /// false if there is no higher number.
    #[must_use]
    pub fn raise_mine(&mut self, above: CrashVectorEntry) -> bool {
        let (Some(mine), Some(count)) = (self.known.get_mut(self.me), above.count.checked_add(1))
        else {
            return false;
        };
        mine.count = mine.count.max(count);
        true
    }

    /// Begins a new incarnation of this node, which has all its promises.
    #[must_use]
    pub fn renew_mine(&mut self, incarnation: u64) -> bool {
        let is_there = self.raise_mine(self.mine());
        if let Some(mine) = self.known.get_mut(self.me) {
            mine.incarnation = incarnation;
        }
        is_there
    }

    /// Compares and merges the vector of a message of member `from`.
    pub fn hear(&mut self, from: usize, theirs: &[CrashVectorEntry]) -> Heard {
        if theirs.len() != self.known.len() {
            return Heard::Stale;
        }
        let (own, mine) = (theirs[from], theirs[self.me]);
        let is_stale = own < self.known[from] || is_another(own, self.known[from]);
        if is_stale && self.guards.on(Guard::CrashVector) {
            return Heard::Stale;
        }
        if mine > self.known[self.me] || is_another(mine, self.known[self.me]) {
            return Heard::Superseded;
        }
        let mut renewed = 0;
        for (index, (known, theirs)) in self.known.iter_mut().zip(theirs).enumerate() {
            if *theirs > *known && !is_another(*theirs, *known) {
                *known = *theirs;
                renewed |= 1 << index;
            }
        }
        Heard::Fresh(renewed)
    }
}

/// Whether two processes of a node took the same number for their incarnations: the later one has
/// an older data directory, or none, and has to learn of the other.
fn is_another(one: CrashVectorEntry, other: CrashVectorEntry) -> bool {
    one.count == other.count && one.incarnation != other.incarnation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(count: u32) -> CrashVectorEntry {
        CrashVectorEntry { count, incarnation: 7 }
    }

    #[test]
    fn disc_2017_what_came_of_an_older_life_counts_no_more() {
        let mut crash_vector =
            CrashVector::new(alloc::vec![entry(0), entry(0), entry(0)], 0, Guards::ALL);
        assert_eq!(crash_vector.hear(1, &[entry(0), entry(0), entry(0)]), Heard::Fresh(0));
        // Member 2 tells that member 1 has recovered.
        assert_eq!(crash_vector.hear(2, &[entry(0), entry(1), entry(0)]), Heard::Fresh(0b10));
        assert_eq!(crash_vector.hear(1, &[entry(0), entry(0), entry(0)]), Heard::Stale);
        assert_eq!(crash_vector.hear(1, &[entry(0), entry(1), entry(0)]), Heard::Fresh(0));
        assert_eq!(crash_vector.hear(2, &[entry(1), entry(1), entry(0)]), Heard::Superseded);
        assert_eq!(crash_vector.hear(2, &[entry(0)]), Heard::Stale, "another group's");
    }

    #[test]
    fn of_two_lives_with_one_number_each_learns_of_the_other() {
        let (one, other) = (
            CrashVectorEntry { count: 1, incarnation: 3 },
            CrashVectorEntry { count: 1, incarnation: 4 },
        );
        for (known, said) in [(one, other), (other, one)] {
            let mut crash_vector = CrashVector::new(alloc::vec![entry(0), known], 0, Guards::ALL);
            assert_eq!(crash_vector.hear(1, &[entry(0), said]), Heard::Stale);
            assert_eq!(crash_vector.hear(1, &[entry(0), known]), Heard::Fresh(0), "it is kept");
            let mut said_to = CrashVector::new(alloc::vec![entry(0), said], 1, Guards::ALL);
            assert_eq!(said_to.hear(0, &[entry(0), known]), Heard::Superseded);
        }
        let mut mine = CrashVector::new(alloc::vec![one], 0, Guards::ALL);
        assert!(mine.raise_mine(other));
        assert_eq!(mine.mine(), CrashVectorEntry { count: 2, incarnation: 3 });
        assert!(
            !mine.raise_mine(CrashVectorEntry { count: u32::MAX, incarnation: 0 }),
            "none is higher"
        );
    }
}
