//! The forwarding logic (Figure 15): a bitmap of followers, and whether the leader is to be spared, name an
//! entry of the translation table; a hash of the request picks one of its rows; the row is the place of
//! an address in the other table. Only the control plane writes both.

use alloc::vec::Vec;

use concord_wire::Addr;
use concord_wire::flair::{Followers, REPLICAS_MAX};

use crate::store::turns;

/// Rows of an entry, a power of two.
const ROWS: usize = 64;
/// Bitmaps.
const BITMAPS: usize = 1 << REPLICAS_MAX;
/// A row of an entry that has nobody.
const NOBODY: u8 = u8::MAX;

/// Both tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forwarding {
    /// What the tables were made of: each bit's address, if its replica is heard, and the leader's bit.
    addrs: Vec<Option<Addr>>,
    leader: usize,
    /// [`ROWS`] for each bitmap, and the same once more without the leader.
    rows: Vec<u8>,
}

impl Forwarding {
    /// Fills the tables, if they are to be others than they are.
    pub(super) fn fill(&mut self, addrs: Vec<Option<Addr>>, leader: usize) {
        if self.addrs == addrs && self.leader == leader && !self.rows.is_empty() {
            return;
        }
        self.rows.clear();
        let heard = (0..REPLICAS_MAX).filter(|bit| addrs.get(*bit).copied().flatten().is_some());
        let heard = heard.fold(Followers::default(), Followers::with);
        for spares_leader in [false, true] {
            for bitmap in 0..BITMAPS {
                let all = Followers(bitmap as u8).and(heard);
                let others = all.without(leader);
                let chosen = if spares_leader && !others.is_empty() { others } else { all };
                let bits: Vec<u8> =
                    (0..REPLICAS_MAX as u8).filter(|b| chosen.has(usize::from(*b))).collect();
                let nobody = [NOBODY];
                let bits = if bits.is_empty() { &nobody[..] } else { &bits };
                self.rows.extend(turns(bits, ROWS));
            }
        }
        (self.addrs, self.leader) = (addrs, leader);
    }

    /// Nobody is chosen until the tables are filled again.
    pub(super) fn clear(&mut self) {
        *self = Forwarding::default();
    }

    /// The bit and the address of the replica that gets a read; `None` if none of the set is heard.
    #[inline]
    pub(super) fn choose(
        &self,
        followers: Followers,
        spares_leader: bool,
        choice: u32,
    ) -> Option<Addr> {
        let entry = usize::from(spares_leader) * BITMAPS + usize::from(followers.0);
        let row = self.rows.get(entry * ROWS + (choice as usize & (ROWS - 1)))?;
        self.addrs.get(usize::from(*row)).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(node: u16) -> Addr {
        Addr { ip: 1, port: 7_000 + node }
    }

    fn filled(count: u16, silent: &[u16]) -> Forwarding {
        let mut forwarding = Forwarding::default();
        let addrs = (0..count).map(|n| (!silent.contains(&n)).then(|| addr(n))).collect();
        forwarding.fill(addrs, 0);
        forwarding
    }

    fn chosen(forwarding: &Forwarding, set: u8, spares_leader: bool) -> Vec<Option<Addr>> {
        (0..64).map(|c| forwarding.choose(Followers(set), spares_leader, c)).collect()
    }

    #[test]
    fn each_follower_of_a_set_gets_its_share_and_a_retry_goes_to_another_one() {
        for count in 2..=8u16 {
            let forwarding = filled(count, &[]);
            let rows = chosen(&forwarding, u8::MAX, false);
            for (at, row) in rows.iter().enumerate() {
                assert_ne!(*row, rows[(at + 1) % rows.len()], "{count} replicas, row {at}");
            }
            for node in 0..count {
                let share = rows.iter().filter(|row| **row == Some(addr(node))).count();
                let fair = 64 / usize::from(count);
                assert!((fair.saturating_sub(1)..=fair + 1).contains(&share), "{count}: {share}");
            }
        }
    }

    #[test]
    fn who_is_silent_or_not_in_the_set_gets_nothing() {
        let forwarding = filled(3, &[1]);
        assert!(chosen(&forwarding, 0b111, false).iter().all(|to| *to != Some(addr(1))));
        assert!(chosen(&forwarding, 0b110, false).iter().all(|to| *to == Some(addr(2))));
        assert!(chosen(&forwarding, 0b010, false).iter().all(Option::is_none));
        assert!(chosen(&Forwarding::default(), 0b111, false).iter().all(Option::is_none));
    }

    #[test]
    fn the_leader_is_spared_where_another_one_can_answer() {
        let forwarding = filled(3, &[]);
        assert!(chosen(&forwarding, 0b111, true).iter().all(|to| *to != Some(addr(0))));
        assert!(chosen(&forwarding, 0b001, true).iter().all(|to| *to == Some(addr(0))));
        assert!(chosen(&forwarding, 0b111, false).contains(&Some(addr(0))));
    }
}
