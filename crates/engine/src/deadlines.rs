//! The deadlines of keys with a time to live.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

use concord_core::hash::hash64;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::backend::TtlChange;
use crate::databases::{self, ALL, DATABASES};

/// A key whose deadline changed, and its present deadline.
pub(crate) type Changed = (Vec<u8>, Option<u64>);

fn left_ms(count: u64, sum_ms: u128, now_ms: u64) -> u64 {
    let average = sum_ms.checked_div(u128::from(count)).unwrap_or(0);
    u64::try_from(average).unwrap_or(u64::MAX).saturating_sub(now_ms)
}

/// The deadlines of keys with a time to live, in unix ms. Invariant: every key here exists in the
/// backend, once all steps are finished.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    by_key: HashMap<Arc<[u8]>, u64, FxBuildHasher>,
    by_time: BTreeSet<(u64, Arc<[u8]>)>,
    /// The sum of the lengths of all keys here, in bytes.
    key_bytes: u64,
    /// By database: the number of keys here, and the sum of their deadlines.
    of: [(u64, u128); DATABASES as usize],
    /// Keys whose deadlines changed since the last [`Deadlines::take_untold`]; `None` if it has to
    /// report all.
    untold: Option<BTreeSet<Vec<u8>>>,
    /// The changes of the script that is being executed, oldest first; `None` outside of one.
    undo: Option<Vec<Was>>,
}

/// A change by a script, as the state before it.
#[derive(Debug)]
enum Was {
    /// A key's deadline.
    Due(Vec<u8>, Option<u64>),
    /// All deadlines.
    All(Box<Deadlines>),
}

impl Deadlines {
    pub(crate) fn of(&self, key: &[u8]) -> Option<u64> {
        if self.by_key.is_empty() { None } else { self.by_key.get(key).copied() }
    }

    pub(crate) fn change(&mut self, key: &[u8], change: TtlChange) {
        if let Some(untold) = &mut self.untold
            && change != TtlChange::Keep
            && !untold.contains(key)
        {
            untold.insert(key.to_vec());
        }
        self.change_told(key, change);
    }

    /// A change that [`Deadlines::take_untold`] does not report.
    pub(crate) fn change_told(&mut self, key: &[u8], change: TtlChange) {
        let before = self.of(key);
        if let Some(undo) = &mut self.undo
            && change != TtlChange::Keep
            && !(change == TtlChange::Clear && before.is_none())
        {
            undo.push(Was::Due(key.to_vec(), before));
        }
        match change {
            TtlChange::Keep => {}
            TtlChange::Clear => {
                if let Some((key, old)) = self.by_key.remove_entry(key) {
                    self.key_bytes -= key.len() as u64;
                    let (count, sum_ms) = &mut self.of[usize::from(databases::of_key(&key))];
                    (*count, *sum_ms) = (*count - 1, *sum_ms - u128::from(old));
                    self.by_time.remove(&(old, key));
                }
            }
            TtlChange::Set(deadline_ms) => self.set(key, deadline_ms),
        }
    }

    fn set(&mut self, key: &[u8], deadline_ms: u64) {
        let (count, sum_ms) = &mut self.of[usize::from(databases::of_key(key))];
        let shared = match self.by_key.get_key_value(key) {
            Some((_, old)) if *old == deadline_ms => return,
            Some((shared, old)) => {
                let shared = shared.clone();
                *sum_ms -= u128::from(*old);
                self.by_time.remove(&(*old, shared.clone()));
                shared
            }
            None => {
                self.key_bytes += key.len() as u64;
                *count += 1;
                key.into()
            }
        };
        *sum_ms += u128::from(deadline_ms);
        self.by_key.insert(shared.clone(), deadline_ms);
        self.by_time.insert((deadline_ms, shared));
    }

    pub(crate) fn clear(&mut self) {
        self.replace(None);
    }

    /// Removes all deadlines and sets the keys to report. A script can undo this.
    fn replace(&mut self, untold: Option<BTreeSet<Vec<u8>>>) {
        let mut undo = self.undo.take();
        let before = core::mem::replace(self, Deadlines { untold, ..Deadlines::default() });
        if let Some(undo) = &mut undo {
            undo.push(Was::All(Box::new(before)));
        }
        self.undo = undo;
    }

    /// Begins a script, whose changes can be undone.
    pub(crate) fn begin_undo(&mut self) {
        self.undo = Some(Vec::new());
    }

    /// Ends a script, whose changes stay.
    pub(crate) fn end_undo(&mut self) {
        self.undo = None;
    }

    /// Ends a script and reverts its changes.
    pub(crate) fn undo(&mut self) {
        for was in self.undo.take().unwrap_or_default().into_iter().rev() {
            match was {
                Was::Due(key, None) => self.change(&key, TtlChange::Clear),
                Was::Due(key, Some(at)) => self.change(&key, TtlChange::Set(at)),
                Was::All(before) => *self = *before,
            }
        }
    }

    /// Removes the deadlines of one database's keys, or of all ([`databases::ALL`]). With `is_told`
    /// this is not reported.
    pub(crate) fn flush(&mut self, database: u8, is_told: bool) {
        let is_own = |key: &[u8]| database == ALL || databases::of_key(key) == database;
        let own = self.by_time.iter().filter(|(_, key)| is_own(key));
        let own: Vec<Arc<[u8]>> = own.map(|(_, key)| key.clone()).collect();
        match own.len() == self.by_time.len() {
            true if is_told => return self.clear_told(),
            true => return self.clear(),
            false => {}
        }
        for key in own {
            match is_told {
                true => self.change_told(&key, TtlChange::Clear),
                false => self.change(&key, TtlChange::Clear),
            }
        }
    }

    /// Removes all deadlines without a report: the reader has removed all of its own.
    pub(crate) fn clear_told(&mut self) {
        let untold = self.untold.take();
        self.replace(untold);
    }

    /// The changes since the last call; the flag says that they are all deadlines that exist, as in
    /// the first call.
    pub(crate) fn take_untold(&mut self) -> (bool, Vec<Changed>) {
        match self.untold.replace(BTreeSet::new()) {
            None => {
                (true, self.by_time.iter().map(|(at, key)| (key.to_vec(), Some(*at))).collect())
            }
            Some(keys) => (
                false,
                keys.into_iter()
                    .map(|key| (self.of(&key), key))
                    .map(|(at, key)| (key, at))
                    .collect(),
            ),
        }
    }

    /// The number of changes to report; 0 before the first [`Deadlines::take_untold`].
    pub(crate) fn untold(&self) -> usize {
        self.untold.as_ref().map_or(0, BTreeSet::len)
    }

    /// The earliest deadline, in unix ms.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(deadline_ms, _)| *deadline_ms)
    }

    /// Keys that are due at `now_ms`, each with its deadline, earliest first, from the one after
    /// `after` on.
    pub(crate) fn due(
        &self,
        now_ms: u64,
        after: Option<&(Vec<u8>, u64)>,
    ) -> impl Iterator<Item = (&[u8], u64)> {
        let from = match after {
            Some((key, at)) => Bound::Excluded((*at, Arc::from(&key[..]))),
            None => Bound::Unbounded,
        };
        let rest = self.by_time.range((from, Bound::Unbounded));
        let due = rest.take_while(move |(at, _)| *at <= now_ms);
        due.map(|(at, key)| (&**key, *at))
    }

    /// The number of keys that have a deadline.
    pub(crate) fn count(&self) -> u64 {
        self.by_time.len() as u64
    }

    /// The average time that these keys have left at `now_ms`, in ms; 0 if there are none.
    pub(crate) fn average_ms(&self, now_ms: u64) -> u64 {
        left_ms(self.count(), self.of.iter().map(|(_, sum_ms)| sum_ms).sum(), now_ms)
    }

    /// By database: the number of keys that have a deadline, and the average time they have left,
    /// in ms.
    pub(crate) fn of_databases(&self, now_ms: u64) -> [(u64, u64); DATABASES as usize] {
        self.of.map(|(count, sum_ms)| (count, left_ms(count, sum_ms, now_ms)))
    }

    /// An estimate: 64 bytes for each entry of a key, in the map and in the order by time.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.key_bytes + self.by_time.len() as u64 * 128
    }

    /// A digest that does not depend on the order of keys.
    pub(crate) fn digest(&self) -> u64 {
        let all = self.by_time.iter();
        all.fold(0, |sum, (at, key)| sum.wrapping_add(hash64(*at, key)))
    }
}
