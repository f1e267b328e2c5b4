//! The forwarding logic (Figure 15): a bitmap of followers, and whether to avoid the leader, select
//! an entry of the translation table. A hash of the request picks one of the entry's rows, which
//! gives a place in the ring of the eligible replicas, and the attempt advances from there: so a
//! retry goes to another replica, whatever the weights are (trap T21). Only the control plane
//! writes the tables.
//!
//! The number of a replica's rows in an entry is proportional to its weight (§4.4.2, "Follower load
//! awareness"), and at least one. Weights change how often a replica is chosen, but not which
//! replicas are eligible: the bitmap decides that.

use alloc::vec::Vec;

use concord_core::Rng;
use concord_pisa::TableReport;
use concord_wire::Addr;
use concord_wire::flair::{Followers, REPLICAS_MAX, Weights};

use crate::store::turns;

/// The number of rows of an entry, a power of two.
const ROWS: usize = 256;
/// The number of places of an entry's ring, a power of two.
const RING: usize = REPLICAS_MAX;
/// A place in the ring of an entry without eligible replicas.
const NOBODY: u8 = u8::MAX;
/// The seed of the order of an entry's rows.
const ORDER: u64 = 0xf1a1_4424;
/// Equal weights: all replicas get the same number of reads.
pub(super) const EVEN: Weights = [1; REPLICAS_MAX];

/// The forwarding tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forwarding {
    /// The inputs of the tables: the address of each bit whose replica is heard, the leader's bit,
    /// and the weights.
    addrs: Vec<Option<Addr>>,
    leader: usize,
    weights: Weights,
    /// [`ROWS`] places in the entry's ring for each bitmap of replicas, and then the same again
    /// without the leader.
    rows: Vec<u8>,
    /// [`RING`] bits for each entry: those of the eligible replicas, in turn.
    rings: Vec<u8>,
}

impl Forwarding {
    /// Fills the tables, if their inputs have changed.
    pub(super) fn fill(&mut self, addrs: Vec<Option<Addr>>, leader: usize, weights: &Weights) {
        if self.addrs == addrs && self.leader == leader && self.weights == *weights {
            return;
        }
        self.rows.clear();
        self.rings.clear();
        let heard = (0..REPLICAS_MAX).filter(|bit| addrs.get(*bit).copied().flatten().is_some());
        let heard = heard.fold(Followers::default(), Followers::with);
        for spares_leader in [false, true] {
            for bitmap in 0..1usize << addrs.len() {
                let all = Followers(bitmap as u8).and(heard);
                let others = all.without(leader);
                let chosen = if spares_leader && !others.is_empty() { others } else { all };
                self.add_entry(chosen, weights);
            }
        }
        (self.addrs, self.leader, self.weights) = (addrs, leader, *weights);
    }

    fn add_entry(&mut self, chosen: Followers, weights: &Weights) {
        let bits: Vec<u8> =
            (0..REPLICAS_MAX as u8).filter(|bit| chosen.has(usize::from(*bit))).collect();
        let weighed: Vec<u16> = bits.iter().map(|bit| weights[usize::from(*bit)]).collect();
        self.rows.extend(scattered(&shares(&weighed)));
        let nobody = [NOBODY];
        self.rings.extend(turns(if bits.is_empty() { &nobody } else { &bits }, RING));
    }

    /// Empties the tables: no replica is chosen until they are filled again.
    pub(super) fn clear(&mut self) {
        *self = Forwarding::default();
    }

    /// The address of the replica that gets a read; `None` if none of the set is heard.
    #[inline]
    pub(super) fn choose(
        &self,
        followers: Followers,
        spares_leader: bool,
        (row, attempt): (u32, u16),
    ) -> Option<Addr> {
        let bitmaps = 1 << self.addrs.len();
        let bitmap = usize::from(followers.0) & (bitmaps - 1);
        let entry = usize::from(spares_leader) * bitmaps + bitmap;
        let place = *self.rows.get(entry * ROWS + (row as usize & (ROWS - 1)))?;
        let place = (usize::from(place) + usize::from(attempt)) & (RING - 1);
        let bit = *self.rings.get(entry * RING + place)?;
        self.addrs.get(usize::from(bit)).copied().flatten()
    }
}

/// Distributes [`ROWS`] in proportion to the weights, at least one for each, the remainders to the
/// largest. A weight of 0 counts as 1.
fn shares(weights: &[u16]) -> Vec<usize> {
    let weights: Vec<usize> = weights.iter().map(|weight| usize::from((*weight).max(1))).collect();
    let spare = ROWS - weights.len();
    let sum: usize = weights.iter().sum::<usize>().max(1);
    let mut shares: Vec<usize> = weights.iter().map(|weight| 1 + spare * weight / sum).collect();
    let mut by_rest: Vec<usize> = (0..weights.len()).collect();
    by_rest.sort_by_key(|at| core::cmp::Reverse(spare * weights[*at] % sum));
    let left = if weights.is_empty() { 0 } else { ROWS - shares.iter().sum::<usize>() };
    for at in by_rest.into_iter().take(left) {
        shares[at] += 1;
    }
    shares
}

/// [`ROWS`] places, each as often as its share says, in a fixed pseudorandom order. The hash is
/// linear: a client's consecutive requests reach only the half of all rows with one parity of some
/// bits. If the places alternated, the share of one of three replicas in such a half could be up to
/// two thirds too large or too small.
fn scattered(shares: &[usize]) -> Vec<u8> {
    let of = |(place, rows): (u8, &usize)| core::iter::repeat_n(place, *rows);
    let mut places: Vec<u8> = (0..).zip(shares).flat_map(of).collect();
    places.resize(ROWS, 0);
    let mut rng = Rng::new(ORDER);
    for last in (1..ROWS).rev() {
        places.swap(last, rng.below(last as u64 + 1) as usize);
    }
    places
}

/// The resources of an ASIC that the tables need, with the maximum number of replicas.
pub(super) fn report() -> Vec<TableReport> {
    let entries = 2 << REPLICAS_MAX;
    alloc::vec![
        TableReport { name: "forward_row", rows: entries * ROWS, bits: 8 },
        TableReport { name: "forward_ring", rows: entries * RING, bits: 8 },
        TableReport { name: "forward_addr", rows: REPLICAS_MAX, bits: 48 },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(node: u16) -> Addr {
        Addr { ip: 1, port: 7_000 + node }
    }

    fn weighed(count: u16, silent: &[u16], weights: &Weights) -> Forwarding {
        let mut forwarding = Forwarding::default();
        let addrs = (0..count).map(|n| (!silent.contains(&n)).then(|| addr(n))).collect();
        forwarding.fill(addrs, 0, weights);
        forwarding
    }

    fn filled(count: u16, silent: &[u16]) -> Forwarding {
        weighed(count, silent, &EVEN)
    }

    fn chosen(forwarding: &Forwarding, set: u8, spares_leader: bool) -> Vec<Option<Addr>> {
        (0..256).map(|row| forwarding.choose(Followers(set), spares_leader, (row, 0))).collect()
    }

    fn share(rows: &[Option<Addr>], node: u16) -> usize {
        rows.iter().filter(|row| **row == Some(addr(node))).count()
    }

    #[test]
    fn each_follower_of_a_set_gets_its_share() {
        for count in 1..=8u16 {
            let rows = chosen(&filled(count, &[]), u8::MAX, false);
            for node in 0..count {
                let (share, fair) = (share(&rows, node), 256 / usize::from(count));
                assert!((fair..=fair + 1).contains(&share), "{count}: {share}");
            }
        }
    }

    /// The hashes of consecutive numbers miss the rows with one parity of some of their bits.
    #[test]
    fn followers_share_every_parity_half() {
        for count in 2..=3u16 {
            let rows = chosen(&filled(count, &[]), u8::MAX, false);
            for (parity, node) in (1..256u32).flat_map(|p| (0..count).map(move |node| (p, node))) {
                let is_of_half =
                    |row: &usize| (*row as u32 & parity).count_ones().is_multiple_of(2);
                let half = (0..256).filter(is_of_half).map(|row| rows[row]);
                let (share, fair) =
                    (half.filter(|to| *to == Some(addr(node))).count(), 128 / count);
                assert!(
                    share.abs_diff(fair.into()) <= 15,
                    "{count}: {share} of {fair}, {parity:b}"
                );
            }
        }
    }

    #[test]
    fn t21_a_retry_goes_to_another_one_whatever_the_weights_are() {
        for weights in [EVEN, [u16::MAX, 1, 0, 7, 300, 1, 1, 0]] {
            for count in 2..=8u16 {
                let forwarding = weighed(count, &[], &weights);
                for (row, attempt) in (0..256).flat_map(|row| (0..20).map(move |n| (row, n))) {
                    let to = |attempt| forwarding.choose(Followers::ALL, false, (row, attempt));
                    assert_ne!(to(attempt), to(attempt + 1), "{count} replicas, row {row}");
                }
                let asked = |row| (0..8).map(move |attempt| (row, attempt));
                for row in 0..256 {
                    let asked = asked(row).map(|at| forwarding.choose(Followers::ALL, false, at));
                    let asked: Vec<_> = asked.collect();
                    let all = (0..count).all(|node| asked.contains(&Some(addr(node))));
                    assert!(all, "each is asked in the end: {asked:?}");
                }
            }
        }
    }

    /// A replica that is to get twice the load has twice the rows.
    #[test]
    fn section_4_4_2_double_load_has_double_rows() {
        let forwarding = weighed(3, &[], &[200, 100, 100, 9, 9, 9, 9, 9]);
        let rows = chosen(&forwarding, 0b111, false);
        assert_eq!([0, 1, 2].map(|node| share(&rows, node)), [128, 64, 64]);
        // The same holds among the replicas of a bitmap, and without the leader.
        let rows = chosen(&forwarding, 0b011, false);
        assert_eq!([0, 1, 2].map(|node| share(&rows, node)), [170, 86, 0]);
        let rows = chosen(&forwarding, 0b111, true);
        assert_eq!([0, 1, 2].map(|node| share(&rows, node)), [0, 128, 128]);
    }

    #[test]
    fn weights_choose_among_the_bitmap_and_each_of_it_has_a_row() {
        let all = [EVEN, [0; 8], [u16::MAX; 8], [u16::MAX, 0, 0, 0, 1, 2, 3, 4]];
        for (weights, set) in all.iter().flat_map(|w| (0..=u8::MAX).map(move |set| (w, set))) {
            let rows = chosen(&weighed(8, &[5], weights), set, false);
            for node in 0..8 {
                let may = Followers(set).has(usize::from(node)) && node != 5;
                assert_eq!(share(&rows, node) > 0, may, "{weights:?}, set {set:b}, node {node}");
            }
            let nobody = Followers(set).without(5).is_empty();
            assert_eq!(rows.iter().filter(|row| row.is_none()).count(), 256 * usize::from(nobody));
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
