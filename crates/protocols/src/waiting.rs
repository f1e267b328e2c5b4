//! The clients that wait for a write of an object, since their commands found nothing there
//! ([`Flags::WAITS`]). The replica that answers writes remembers them in the order of their
//! commands, and tells each once when the object is written. This is soft state, in no copy and no
//! log: it is lost with the replica, and if there is too much of it. So clients also retry by
//! themselves now and then.

use alloc::vec::Vec;

use concord_core::ObjectId;
use concord_wire::{Addr, Flags, FurtherIds};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The largest number of pairs of an object and a client; beyond it the older half is forgotten.
pub(crate) const WAITING_MAX: usize = 131_072;

type ByObject = HashMap<ObjectId, Vec<Addr>, FxBuildHasher>;

/// Clients by the objects that they wait for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    newer: ByObject,
    newer_pairs: usize,
    older: ByObject,
}

/// The objects of a request; `None`: all.
fn objects(
    flags: Flags,
    first: ObjectId,
    further: &FurtherIds,
) -> Option<impl Iterator<Item = ObjectId>> {
    // A write of several objects that was overtaken counts as one of all keys, and still names its
    // objects.
    let is_of_all = flags.has(Flags::WILDCARD) && first == ObjectId(0) && further.is_empty();
    (!is_of_all).then(|| [first].into_iter().chain(further.as_slice().iter().copied()))
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.older.is_empty()
    }

    /// Remembers that a command of `client` on these objects found nothing.
    pub(crate) fn add(&mut self, client: Addr, first: ObjectId, further: &FurtherIds) {
        for object in [first].into_iter().chain(further.as_slice().iter().copied()) {
            if self.older.get(&object).is_some_and(|known| known.contains(&client)) {
                continue;
            }
            let clients = self.newer.entry(object).or_default();
            if !clients.contains(&client) {
                clients.push(client);
                self.newer_pairs += 1;
            }
        }
        if self.newer_pairs > WAITING_MAX / 2 {
            self.older = core::mem::take(&mut self.newer);
            self.newer_pairs = 0;
        }
    }

    /// Forgets and returns the clients that wait for one of these objects, which were written, each
    /// with the object; `None` for a client that waits for any.
    pub(crate) fn take(
        &mut self,
        flags: Flags,
        first: ObjectId,
        further: &FurtherIds,
    ) -> Vec<(Addr, Option<ObjectId>)> {
        let Some(objects) = objects(flags, first, further) else { return self.take_all() };
        let mut told = Vec::new();
        for object in objects {
            told.extend(
                self.older.remove(&object).into_iter().flatten().map(|c| (c, Some(object))),
            );
            for client in self.newer.remove(&object).into_iter().flatten() {
                self.newer_pairs -= 1;
                told.push((client, Some(object)));
            }
        }
        told
    }

    fn take_all(&mut self) -> Vec<(Addr, Option<ObjectId>)> {
        let known = core::mem::take(self);
        let mut clients: Vec<Addr> =
            known.older.into_values().chain(known.newer.into_values()).flatten().collect();
        clients.sort_unstable();
        clients.dedup();
        clients.into_iter().map(|client| (client, None)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Flags = Flags::WILDCARD;
    const ONE: Flags = Flags(0);

    fn client(port: u16) -> Addr {
        Addr { ip: 1, port }
    }

    fn told(waiting: &mut Waiting, flags: Flags, object: u32) -> Vec<u16> {
        let told = waiting.take(flags, ObjectId(object), &FurtherIds::NONE);
        told.into_iter().map(|(client, _)| client.port).collect()
    }

    #[test]
    fn who_waits_is_told_once_and_in_order() {
        let mut waiting = Waiting::default();
        let further = FurtherIds::new(&[ObjectId(8)]).unwrap();
        waiting.add(client(2), ObjectId(7), &further);
        waiting.add(client(1), ObjectId(7), &FurtherIds::NONE);
        waiting.add(client(2), ObjectId(7), &FurtherIds::NONE);
        assert_eq!(told(&mut waiting, ONE, 9), []);
        assert_eq!(told(&mut waiting, ONE, 7), [2, 1]);
        assert_eq!(told(&mut waiting, ONE, 7), []);
        assert_eq!(told(&mut waiting, ONE, 8), [2]);
        assert!(waiting.is_empty());
    }

    /// A write of all keys is told to all and one that names its own is not.
    #[test]
    fn all_keys_write_is_told_to_all() {
        let mut waiting = Waiting::default();
        for port in [3, 1, 2] {
            waiting.add(client(port), ObjectId(u32::from(port)), &FurtherIds::NONE);
            waiting.add(client(port), ObjectId(9), &FurtherIds::NONE);
        }
        assert_eq!(told(&mut waiting, ALL, 1), [1]);
        assert_eq!(told(&mut waiting, ALL, 0), [1, 2, 3]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn the_oldest_are_forgotten_when_there_are_too_many() {
        let mut waiting = Waiting::default();
        for n in 0..WAITING_MAX as u32 + 9 {
            waiting.add(client(1), ObjectId(n), &FurtherIds::NONE);
        }
        assert!(waiting.newer.len() + waiting.older.len() <= WAITING_MAX + 1);
        assert_eq!(told(&mut waiting, ONE, 0), []);
        assert_eq!(told(&mut waiting, ONE, WAITING_MAX as u32), [1]);
    }

    /// Object 0 is one like others and so are several of which it is the first.
    #[test]
    fn object_0_and_several_objects() {
        let mut waiting = Waiting::default();
        for object in [0, 1, 2] {
            waiting.add(client(1), ObjectId(object), &FurtherIds::NONE);
        }
        assert!(!waiting.is_empty());
        let further = FurtherIds::new(&[ObjectId(1)]).unwrap();
        let told = waiting.take(ALL, ObjectId(0), &further);
        assert_eq!(told, [0, 1].map(|object| (client(1), Some(ObjectId(object)))));
        waiting.add(client(1), ObjectId(0), &FurtherIds::NONE);
        let told = waiting.take(ONE, ObjectId(0), &FurtherIds::NONE);
        assert_eq!(told, [(client(1), Some(ObjectId(0)))]);
        let told = waiting.take(ALL, ObjectId(0), &FurtherIds::NONE);
        assert_eq!(told, [(client(1), None)], "of all keys");
    }

    #[test]
    fn the_older_half_is_told_too_and_knows_nobody_twice() {
        let mut waiting = Waiting::default();
        let half = WAITING_MAX as u32 / 2;
        (1..=half).for_each(|n| waiting.add(client(1), ObjectId(n), &FurtherIds::NONE));
        assert_eq!((waiting.newer_pairs, waiting.older.len()), (half as usize, 0));
        assert_eq!(told(&mut waiting, ONE, 1), [1]);
        assert_eq!(waiting.newer_pairs, half as usize - 1);
        for n in [half + 1, half + 2] {
            waiting.add(client(1), ObjectId(n), &FurtherIds::NONE);
        }
        assert_eq!((waiting.newer_pairs, waiting.newer.len()), (0, 0));
        assert!(!waiting.is_empty());
        waiting.add(client(1), ObjectId(2), &FurtherIds::NONE);
        assert_eq!(waiting.newer_pairs, 0, "that is known");
        waiting.add(client(2), ObjectId(2), &FurtherIds::NONE);
        assert_eq!(told(&mut waiting, ONE, 2), [1, 2]);
    }
}
