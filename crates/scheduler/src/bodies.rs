//! Data that is fetched in fragments (trap T17). Workers fetch the bodies of jobs, and parameters
//! that are too long for the queue, from owners. Owners fetch outputs that are too long for a
//! result from workers. Fragments come in any order, late and repeatedly; the data of a name never
//! changes.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::{Addr, Duration, Instant, MS, Sink};
use concord_wire::GroupId;
use concord_wire::control::Message as _;
use concord_wire::tasks::{BODY_BYTES_MAX, FRAGMENT_BYTES, FRAGMENTS_ASKED_MAX, TaskMessage};

/// The bytes that are kept for tasks to come.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// The number of bodies that are kept: those of a day of short jobs are many, and never reach the
/// limit of bytes.
const KEPT_MAX: usize = 1 << 12;
/// The number of bodies that are asked for at once: at most this many times [`FRAGMENTS_ASKED_MAX`]
/// fragments are in flight.
const AT_ONCE_MAX: usize = 16;
/// The time in ns after which fragments are asked for again; longer each time.
const AGAIN_NS: Duration = 5 * MS;
const AGAIN_DOUBLINGS_MAX: u32 = 5;

#[derive(Clone, Debug)]
enum Body {
    /// Some fragments are missing.
    Partial {
        /// The node that has it.
        holder: Addr,
        /// The length of the whole, or `None` before the first fragment came.
        total_bytes: Option<usize>,
        bytes: Vec<u8>,
        /// Which fragments have arrived.
        here: Vec<bool>,
        /// The first missing fragment.
        first: usize,
        /// The end of the fragments that were asked for.
        asked: usize,
        again_at: Instant,
        tries: u32,
    },
    Whole(Arc<[u8]>),
}

/// Complete and partial bodies, by name.
#[derive(Clone, Debug)]
pub(crate) struct Bodies<K> {
    all: BTreeMap<K, (Body, u64)>,
    /// The partial ones: work done for every packet must not grow with the number of complete ones.
    partial: BTreeSet<K>,
    /// The complete ones, by their last use.
    by_use: BTreeSet<(u64, K)>,
    /// A counter of uses: the least recently used body goes first.
    clock: u64,
    kept_bytes: usize,
    /// The longest body in bytes.
    length_max: usize,
}

impl<K> Default for Bodies<K> {
    fn default() -> Bodies<K> {
        Bodies::of_length(BODY_BYTES_MAX)
    }
}

impl<K> Bodies<K> {
    /// Bodies of up to `length_max` bytes.
    pub(crate) fn of_length(length_max: usize) -> Bodies<K> {
        let (partial, by_use) = (BTreeSet::new(), BTreeSet::new());
        Bodies { all: BTreeMap::new(), partial, by_use, clock: 0, kept_bytes: 0, length_max }
    }
}

impl<K: Ord + Copy> Bodies<K> {
    /// The body, if it is complete.
    pub(crate) fn whole(&mut self, name: K) -> Option<Arc<[u8]>> {
        self.clock += 1;
        let (body, used) = self.all.get_mut(&name)?;
        let was = core::mem::replace(used, self.clock);
        match body {
            Body::Whole(bytes) => {
                self.by_use.remove(&(was, name));
                self.by_use.insert((self.clock, name));
                Some(Arc::clone(bytes))
            }
            Body::Partial { .. } => None,
        }
    }

    /// Notes that a body is wanted: the next [`Bodies::ask`] asks for it if it is not complete.
    pub(crate) fn want(&mut self, name: K, holder: Addr) {
        let body = Body::Partial {
            holder,
            total_bytes: None,
            bytes: Vec::new(),
            here: Vec::new(),
            first: 0,
            asked: 0,
            again_at: Instant(0),
            tries: 0,
        };
        if let Entry::Vacant(vacant) = self.all.entry(name) {
            vacant.insert((body, self.clock));
            self.partial.insert(name);
        }
    }

    /// Forgets a body that is wrong, or that is not wanted any more.
    pub(crate) fn forget(&mut self, name: K) {
        match self.all.remove(&name) {
            Some((Body::Whole(bytes), used)) => {
                self.kept_bytes -= bytes.len();
                self.by_use.remove(&(used, name));
            }
            Some((Body::Partial { .. }, _)) => _ = self.partial.remove(&name),
            None => {}
        }
    }

    /// Forgets the partial bodies that are not wanted any more.
    pub(crate) fn retain_wanted(&mut self, is_wanted: impl Fn(K) -> bool) {
        let all = &mut self.all;
        self.partial.retain(|name| {
            let stays = is_wanted(*name);
            if !stays {
                all.remove(name);
            }
            stays
        });
    }

    /// The time at which fragments are asked for again.
    pub(crate) fn deadline(&self) -> Instant {
        let again =
            self.partial.iter().take(AT_ONCE_MAX).filter_map(|name| match self.all.get(name) {
                Some((Body::Partial { again_at, .. }, _)) => Some(*again_at),
                Some((Body::Whole(_), _)) | None => None,
            });
        again.min().unwrap_or(Instant::NEVER)
    }

    /// Asks for missing fragments that are due: of a name, from the first one, so many.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        message: impl Fn(K, u32, u8) -> TaskMessage,
        group: GroupId,
        buffer: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        for name in self.partial.iter().take(AT_ONCE_MAX) {
            let Some((Body::Partial { holder, here, first, asked, again_at, tries, .. }, _)) =
                self.all.get_mut(name)
            else {
                continue;
            };
            if *again_at > now {
                continue;
            }
            let left = if here.is_empty() { usize::MAX } else { here.len() - *first };
            let count = left.min(FRAGMENTS_ASKED_MAX.into());
            *asked = *first + count;
            *again_at = now.after(AGAIN_NS << (*tries).min(AGAIN_DOUBLINGS_MAX));
            *tries += 1;
            message(*name, *first as u32, count as u8).emit_in(group, buffer);
            sink.send(*holder, buffer);
        }
    }

    /// Takes a fragment. Returns whether the body is complete with it.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        name: K,
        total_bytes: u32,
        index: u32,
        fragment: &[u8],
    ) -> bool {
        let (total, index) = (total_bytes as usize, index as usize);
        let Some((body, used)) = self.all.get_mut(&name) else { return false };
        let Body::Partial { total_bytes, bytes, here, first, asked, again_at, tries, .. } = body
        else {
            return false;
        };
        let count = total.div_ceil(FRAGMENT_BYTES).max(1);
        let at = index * FRAGMENT_BYTES;
        let fits = total <= self.length_max
            && total_bytes.is_none_or(|known| known == total)
            && index < count
            && fragment.len() == (total - at).min(FRAGMENT_BYTES);
        if !fits {
            return false;
        }
        if total_bytes.is_none() {
            *total_bytes = Some(total);
            bytes.resize(total, 0);
            here.resize(count, false);
        }
        if core::mem::replace(&mut here[index], true) {
            return false;
        }
        bytes[at..at + fragment.len()].copy_from_slice(fragment);
        while *first < count && here[*first] {
            *first += 1;
        }
        if *first < count {
            // All fragments that were asked for have arrived: continue with the next ones.
            if *first >= *asked {
                (*again_at, *tries) = (now, 0);
            }
            return false;
        }
        let whole: Arc<[u8]> = core::mem::take(bytes).into();
        self.kept_bytes += whole.len();
        *body = Body::Whole(whole);
        self.partial.remove(&name);
        self.by_use.insert((*used, name));
        self.make_room(name);
        true
    }

    /// Forgets the least recently used bodies, except `newest`.
    fn make_room(&mut self, newest: K) {
        while self.kept_bytes > KEPT_BYTES_MAX || self.by_use.len() > KEPT_MAX {
            let oldest = self.by_use.iter().find(|(_, name)| *name != newest);
            let Some((_, name)) = oldest.copied() else { return };
            self.forget(name);
        }
    }
}

/// The requested fragments of a complete body: the length of the whole, and the number and bytes of
/// each fragment.
pub(crate) fn fragments(
    body: &[u8],
    first: u32,
    count: u8,
) -> impl Iterator<Item = (u32, u32, Vec<u8>)> {
    let all = body.len().div_ceil(FRAGMENT_BYTES).max(1);
    let first = (first as usize).min(all);
    let end = (first + usize::from(count.min(FRAGMENTS_ASKED_MAX))).min(all);
    (first..end).map(move |index| {
        let at = index * FRAGMENT_BYTES;
        let bytes = body[at..(at + FRAGMENT_BYTES).min(body.len())].to_vec();
        (body.len() as u32, index as u32, bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use concord_core::Rng;
    use concord_wire::tasks::BodyName;

    const OWNER: Addr = Addr { ip: 1, port: 1 };
    const WORKER: Addr = Addr { ip: 2, port: 2 };

    /// What comes back when what is missing was asked for at this time.
    fn asked(bodies: &mut Bodies<BodyName>, at_ms: u64, body: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
        let (mut buffer, mut sent) = (vec![], Vec::<(Addr, Vec<u8>)>::new());
        let fetch = |name, first, count| TaskMessage::Fetch { name, worker: WORKER, first, count };
        bodies.ask(Instant(at_ms * MS), fetch, GroupId::FIRST, &mut buffer, &mut sent);
        let mut back = vec![];
        for (to, bytes) in sent {
            assert_eq!(to, OWNER);
            if let Ok(TaskMessage::Fetch { first, count, .. }) = TaskMessage::parse(&bytes) {
                back.extend(fragments(body, first, count));
            }
        }
        back
    }

    #[test]
    fn t17_a_body_comes_whole_whatever_is_lost_late_or_double() {
        let mut rng = Rng::new(5);
        for size in [0, 1, FRAGMENT_BYTES - 1, FRAGMENT_BYTES, 100 * FRAGMENT_BYTES + 7] {
            let body: Vec<u8> = (0..size).map(|_| rng.below(256) as u8).collect();
            let (mut bodies, name) = (Bodies::default(), BodyName { uid: 1, jid: 2, tid: 3 });
            bodies.want(name, OWNER);
            let (mut at_ms, mut late) = (0, vec![]);
            while bodies.whole(name).is_none() {
                at_ms += 1;
                assert!(at_ms < 20_000, "{size} bytes never came");
                let mut come = asked(&mut bodies, at_ms, &body);
                come.extend(core::mem::take(&mut late));
                for fragment in come {
                    let (total_bytes, index, bytes) = &fragment;
                    match rng.below(4) {
                        0 => {}
                        1 => late.push(fragment.clone()),
                        _ => {
                            let now = Instant(at_ms * MS);
                            bodies.take(now, name, *total_bytes, *index, bytes);
                        }
                    }
                }
            }
            assert_eq!(bodies.whole(name).as_deref(), Some(&body[..]));
        }
    }

    #[test]
    fn fragments_that_do_not_fit_together_change_nothing() {
        let (mut bodies, name) = (Bodies::default(), BodyName::default());
        let now = Instant(0);
        assert!(!bodies.take(now, name, 1, 0, b"x"), "nobody wants it");
        bodies.want(name, OWNER);
        assert!(!bodies.take(now, name, u32::MAX, 0, &[0; FRAGMENT_BYTES]), "too long");
        assert!(!bodies.take(now, name, 2_000, 2, b""), "there are two");
        assert!(!bodies.take(now, name, 2_000, 1, b"short"));
        assert!(!bodies.take(now, name, 2_000, 1, &[1; 976]));
        assert!(!bodies.take(now, name, 3_000, 0, &[2; FRAGMENT_BYTES]), "of another total");
        assert!(bodies.take(now, name, 2_000, 0, &[2; FRAGMENT_BYTES]));
        let whole = bodies.whole(name).unwrap();
        assert_eq!((whole.len(), whole[0], whole[1_999]), (2_000, 2, 1));
    }

    /// A day of one-task jobs: what is walked for a packet, and what is kept, has a bound of its
    /// own.
    #[test]
    fn bug_21_49_many_small_bodies_are_neither_kept_nor_walked() {
        let mut bodies = Bodies::default();
        for jid in 0..3 * KEPT_MAX as u32 {
            let name = BodyName { uid: 1, jid, tid: 0 };
            bodies.want(name, OWNER);
            assert_eq!(bodies.partial.len(), 1, "what a deadline looks at");
            assert!(bodies.take(Instant(0), name, 1, 0, b"x"));
            assert!(bodies.partial.is_empty());
        }
        assert_eq!((bodies.all.len(), bodies.by_use.len()), (KEPT_MAX, KEPT_MAX));
        assert_eq!(bodies.kept_bytes, KEPT_MAX);
    }

    #[test]
    fn what_was_used_longest_ago_is_forgotten_first() {
        let mut bodies = Bodies::default();
        let name = |jid| BodyName { uid: 1, jid, tid: 0 };
        for jid in 0..70 {
            bodies.want(name(jid), OWNER);
            for index in 0..1_024 {
                bodies.take(Instant(0), name(jid), 1 << 20, index, &[7; FRAGMENT_BYTES]);
            }
            assert!(bodies.whole(name(0)).is_some(), "it is used all the time");
        }
        let here: Vec<u32> = (0..70).filter(|jid| bodies.whole(name(*jid)).is_some()).collect();
        assert_eq!((here.len(), here[1]), (64, 7));
        bodies.forget(name(0));
        assert!(bodies.whole(name(0)).is_none());
        bodies.want(name(80), OWNER);
        assert_eq!(bodies.deadline(), Instant(0));
        bodies.retain_wanted(|_| false);
        assert_eq!(bodies.deadline(), Instant::NEVER);
    }
}
