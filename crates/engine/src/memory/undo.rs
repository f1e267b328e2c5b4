//! The changes of a script, kept so that all of them can be undone: a script that is stopped has
//! changed nothing.
//!
//! Large values are not copied. A value that is deleted or replaced is moved here. A collection
//! that is changed in place records the inverse of each change ([`Notes`]). Only strings, and a
//! stream's groups and blocks, are copied when they are first changed. A key that the script itself
//! created needs nothing more.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::store::{Bytes, Keys, Value};

/// The inverse of each change of a collection, oldest first; `None` while nothing has to be undone.
/// A copy of the collection has none.
#[derive(Debug)]
pub(super) struct Notes<T>(Option<Vec<T>>);

impl<T> Default for Notes<T> {
    fn default() -> Notes<T> {
        Notes(None)
    }
}

impl<T> Clone for Notes<T> {
    fn clone(&self) -> Notes<T> {
        Notes(None)
    }
}

impl<T> Notes<T> {
    /// Notes from now on; false if it does already.
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.0.is_none();
        if begins {
            self.0 = Some(Vec::new());
        }
        begins
    }

    /// Notes this, if anything is noted.
    #[inline]
    pub(super) fn add(&mut self, note: impl FnOnce() -> T) {
        if let Some(notes) = &mut self.0 {
            notes.push(note());
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Forgets the notes, which are returned in the order in which they are undone.
    pub(super) fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.0.take().unwrap_or_default().into_iter().rev()
    }
}

/// One thing that a script did to the keys.
#[derive(Debug)]
pub(super) enum Was {
    /// There was no such key.
    Absent(Bytes),
    /// The key had this value.
    Held(Bytes, Value),
    /// Its value has notes.
    Changed(Bytes),
    /// The first has become the second.
    Renamed(Bytes, Bytes),
    /// There were these keys, and all of them went.
    Flushed(Box<Keys>),
}

/// The changes of a script so far, oldest first.
#[derive(Debug, Default)]
pub(super) struct Undo {
    was: Vec<Was>,
    /// Keys whose value is the script's own, or that it deleted: nothing more has to be known of
    /// them.
    own: HashSet<Bytes, FxBuildHasher>,
}

impl Undo {
    /// Whether nothing has to be noted of this key.
    pub(super) fn is_own(&self, key: &[u8]) -> bool {
        self.own.contains(key)
    }

    /// There was no such key until now.
    pub(super) fn absent(&mut self, key: &[u8]) {
        if self.own.insert(key.into()) {
            self.was.push(Was::Absent(key.into()));
        }
    }

    /// The key had this value, which goes. The number of what is noted of it; the value, if it is
    /// the script's own and nothing is.
    pub(super) fn held(&mut self, key: &[u8], value: Value) -> Result<usize, Value> {
        if !self.own.insert(key.into()) {
            return Err(value);
        }
        self.was.push(Was::Held(key.into(), value));
        Ok(self.was.len() - 1)
    }

    /// Its value begins to have notes.
    pub(super) fn changed(&mut self, key: &[u8]) {
        self.was.push(Was::Changed(key.into()));
    }

    /// A value that is not the script's own goes from one key to another, of which it is known what
    /// it was.
    pub(super) fn renamed(&mut self, from: &[u8], to: &[u8]) {
        self.own.remove(to);
        self.was.push(Was::Renamed(from.into(), to.into()));
    }

    pub(super) fn flushed(&mut self, keys: Keys) {
        self.was.push(Was::Flushed(Box::new(keys)));
    }

    /// The changes to revert, newest first, each with its number.
    pub(super) fn into_undone(self) -> impl Iterator<Item = (usize, Was)> {
        self.was.into_iter().enumerate().rev()
    }

    /// The keys whose values have notes, which are not needed any more. `gone` gets the values that
    /// were removed, each with its number.
    pub(super) fn into_noting(
        self,
        mut gone: impl FnMut(usize, Value),
    ) -> HashSet<Bytes, FxBuildHasher> {
        let mut noting: HashSet<Bytes, FxBuildHasher> = HashSet::default();
        for (index, was) in self.was.into_iter().enumerate() {
            match was {
                Was::Changed(key) => {
                    noting.insert(key);
                }
                Was::Renamed(from, to) => {
                    if noting.remove(&from) {
                        noting.insert(to);
                    }
                }
                Was::Held(key, value) => {
                    noting.remove(&key);
                    gone(index, value);
                }
                Was::Flushed(_) => noting.clear(),
                Was::Absent(_) => {}
            }
        }
        noting
    }
}
