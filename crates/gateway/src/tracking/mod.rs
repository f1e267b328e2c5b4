//! Client-side caching: the keys that clients may have cached, and the clients to tell when one of
//! them is written (docs/reference/semantics/pubsub.md, "Client-side caching").
//!
//! That no client keeps a stale value for long rests on this alone: each value that it reads comes
//! with a digest of the key, as of the same moment. As long as the client may have cached the key,
//! its digest is read again and again, and the client is told when the digest differs or cannot be
//! read. Reports between gateways only make this faster.

pub(crate) mod client_tracking;
pub(crate) mod footprint;
pub(crate) mod invalidate;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_core::{Duration, Instant, MS, SEC};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::connection::id::ConnectionId;
use crate::tracking::footprint::Footprint;

/// A key is looked at so long after the last time, or after it was read.
pub(crate) const CHECK_NS: Duration = SEC;
/// The interval of requests that check keys; then the number of keys of each, and the number in
/// flight.
const PACE_NS: Duration = MS;
pub(crate) const CHECK_KEYS: usize = 8;
const CHECKS_MAX: usize = 64;
/// When no request can be sent.
const RETRY_NS: Duration = 20 * MS;
/// The default for the largest number of cached keys (`tracking-table-max-keys`), and their largest
/// total size.
const KEYS_MAX: usize = 100_000;
const BYTES_MAX: usize = 64 << 20;
/// A longer key is not to be cached.
const KEY_BYTES_MAX: usize = 64 << 10;
/// The size of an entry beside its key, in bytes.
const ENTRY_BYTES: usize = 160;

/// The options of a client's tracking (CLIENT TRACKING ON).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientTracking {
    /// The client that is told instead.
    pub redirect: Option<ConnectionId>,
    /// BCAST: all keys that begin so.
    pub prefixes: Option<BTreeSet<Vec<u8>>>,
    pub opts_in: bool,
    pub opts_out: bool,
    pub no_loop: bool,
    /// CLIENT CACHING, for the next command.
    pub caching: Option<bool>,
    /// The one who was told instead is gone.
    pub is_broken: bool,
}

impl ClientTracking {
    /// Whether it may cache what the next command reads.
    pub(crate) fn remembers_reads(&self) -> bool {
        match self.prefixes {
            Some(_) => false,
            None if self.opts_in => self.caching == Some(true),
            None => !self.opts_out || self.caching != Some(false),
        }
    }
}

/// An invalidation for a client: of these keys, or of all with `None`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalidation {
    pub to: ConnectionId,
    pub keys: Option<Vec<Vec<u8>>>,
}

/// A key that clients may have cached.
#[derive(Debug)]
struct Entry {
    /// Which one: a key that is read again after it was written has another.
    number: u64,
    /// The digest of the value when it was read; unknown for a written key until it is checked.
    digest: Option<Vec<u8>>,
    /// The clients that have read it, each with the number of its tracking at that time.
    clients: Vec<(ConnectionId, u64)>,
    /// Whether clients that track its prefix are told.
    is_broadcast: bool,
}

/// A key, and the number of its entry.
pub(crate) type Numbered = (Arc<[u8]>, u64);
/// A key that is to be looked at.
type Due = (Instant, Arc<[u8]>, u64);

/// The tracking state of a client.
#[derive(Debug, Default)]
struct Client {
    /// The number of its present tracking: reads of an earlier one do not count.
    number: u64,
    no_loop: bool,
    prefixes: Option<BTreeSet<Vec<u8>>>,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Tracking {
    clients: BTreeMap<ConnectionId, Client>,
    table: BTreeMap<Arc<[u8]>, Entry>,
    /// Each entry once, and what was entries; in the order in which they are due.
    order: VecDeque<Due>,
    next_number: u64,
    bytes: usize,
    /// Pairs of a key and a client.
    items: usize,
    keys_max: usize,
    pub outbox: VecDeque<Invalidation>,
    /// Keys that are being looked at, by request.
    pub checks: HashMap<u64, Vec<Numbered>, FxBuildHasher>,
    check_at: Instant,
    /// Writes in flight whose clients have disconnected, by connection and slot.
    pub orphans: BTreeMap<(ConnectionId, u64), Box<Footprint>>,
}

impl Default for Tracking {
    fn default() -> Tracking {
        Tracking {
            clients: BTreeMap::new(),
            table: BTreeMap::new(),
            order: VecDeque::new(),
            next_number: 0,
            bytes: 0,
            items: 0,
            keys_max: KEYS_MAX,
            outbox: VecDeque::new(),
            checks: HashMap::default(),
            check_at: Instant(0),
            orphans: BTreeMap::new(),
        }
    }
}

impl Tracking {
    /// A client tracks from now on, or in another way.
    pub(crate) fn begin(&mut self, id: ConnectionId, how: &ClientTracking) {
        self.next_number += 1;
        let number = self.clients.get(&id).map_or(self.next_number, |client| client.number);
        let (no_loop, prefixes) = (how.no_loop, how.prefixes.clone());
        self.clients.insert(id, Client { number, no_loop, prefixes });
    }

    /// Ends a client's tracking: its earlier reads do not count any more.
    pub(crate) fn end(&mut self, id: ConnectionId) {
        self.clients.remove(&id);
        if self.clients.is_empty() {
            self.table.clear();
            self.order.clear();
            (self.bytes, self.items) = (0, 0);
        }
    }

    fn is_current(&self, (id, number): &(ConnectionId, u64)) -> bool {
        self.clients.get(id).is_some_and(|client| client.number == *number)
    }

    /// Number of clients, keys, pairs of both, and prefixes, for INFO.
    pub(crate) fn counts(&self) -> [usize; 4] {
        let prefixes: BTreeSet<&[u8]> = self.prefixes().collect();
        let keys = self.table.values().filter(|entry| !entry.clients.is_empty()).count();
        [self.clients.len(), keys, self.items, prefixes.len()]
    }

    fn prefixes(&self) -> impl Iterator<Item = &[u8]> {
        self.clients.values().filter_map(|c| c.prefixes.as_ref()).flatten().map(Vec::as_slice)
    }

    pub(crate) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Whether a client tracks a prefix of this key, by the name that clients use.
    pub(crate) fn is_broadcast(&self, key: &[u8]) -> bool {
        self.prefixes().any(|prefix| key.starts_with(prefix))
    }

    pub(crate) fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// Sets how many keys may be cached; those that are too many by that are forgotten.
    pub(crate) fn set_keys_max(&mut self, keys: usize) {
        self.keys_max = keys;
        self.make_room();
    }

    fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let entry = self.table.remove(key)?;
        self.bytes -= key.len() + ENTRY_BYTES;
        self.items -= entry.clients.len();
        Some(entry)
    }

    /// Tells about keys that are too many, the oldest ones.
    fn make_room(&mut self) {
        while self.table.len() > self.keys_max || self.bytes > BYTES_MAX {
            let Some((_, key, number)) = self.order.pop_front() else { return };
            if self.table.get(&key).is_some_and(|entry| entry.number == number) {
                self.changed(&key, number);
            }
        }
    }

    /// A client (`None`: only those who asked for its prefix) may have cached a key, which held
    /// what has this digest.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        key: &[u8],
        digest: Option<&[u8]>,
        id: Option<ConnectionId>,
    ) {
        let id = id.and_then(|id| Some((id, self.clients.get(&id)?)));
        let id = id.filter(|(_, c)| c.prefixes.is_none()).map(|(id, c)| (id, c.number));
        let is_broadcast = self.is_broadcast(shown(key));
        if id.is_none() && !is_broadcast {
            return;
        }
        if key.len() > KEY_BYTES_MAX {
            self.tell_all(id.into_iter().collect(), key, None);
            if is_broadcast {
                self.broadcast(&[key.to_vec()], None);
            }
            return;
        }
        if let Some(entry) = self.table.get_mut(key) {
            if let Some(id) = id.filter(|id| !entry.clients.contains(id)) {
                entry.clients.push(id);
                self.items += 1;
            }
            entry.is_broadcast |= is_broadcast;
            match (&entry.digest, digest) {
                (Some(was), Some(is)) if was != is => {}
                (None, Some(is)) => return entry.digest = Some(is.to_vec()),
                (Some(_), Some(_)) | (_, None) => return,
            }
            // It was written between two reads, of which the one that arrived last may be the
            // older.
            let number = entry.number;
            return self.changed(key, number);
        }
        self.next_number += 1;
        let (number, key): (u64, Arc<[u8]>) = (self.next_number, key.into());
        self.bytes += key.len() + ENTRY_BYTES;
        self.items += usize::from(id.is_some());
        self.order.push_back((now.after(CHECK_NS), key.clone(), number));
        let digest = digest.map(<[u8]>::to_vec);
        let clients = id.into_iter().collect();
        self.table.insert(key, Entry { number, digest, clients, is_broadcast });
        self.make_room();
    }

    /// Handles a key whose value differs from the one that was read, or cannot be read.
    fn changed(&mut self, key: &[u8], number: u64) {
        if self.table.get(key).is_none_or(|entry| entry.number != number) {
            return;
        }
        let Some(entry) = self.remove(key) else { return };
        self.tell_all(entry.clients, key, None);
        if entry.is_broadcast {
            self.broadcast(&[key.to_vec()], None);
        }
    }

    /// A client is told that these keys are not as it has read them, whatever it has tracked.
    pub(crate) fn tell(&mut self, to: ConnectionId, keys: &[Vec<u8>]) {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| shown(key).to_vec()).collect();
        if !keys.is_empty() {
            self.outbox.push_back(Invalidation { to, keys: Some(keys) });
        }
    }

    /// These keys were written, by this client of the gateway if it was one of those.
    pub(crate) fn written(&mut self, keys: &[Vec<u8>], by: Option<ConnectionId>) {
        for key in keys {
            let Some(entry) = self.remove(key) else { continue };
            self.tell_all(entry.clients, key, by);
        }
        self.broadcast(keys, by);
    }

    /// Clients that have read a key are told of it.
    fn tell_all(&mut self, to: Vec<(ConnectionId, u64)>, key: &[u8], by: Option<ConnectionId>) {
        for one in to {
            if self.is_current(&one) && !self.is_loop(one.0, by) {
                let keys = Some([shown(key).to_vec()].into());
                self.outbox.push_back(Invalidation { to: one.0, keys });
            }
        }
    }

    fn is_loop(&self, to: ConnectionId, by: Option<ConnectionId>) -> bool {
        by == Some(to) && self.clients.get(&to).is_some_and(|client| client.no_loop)
    }

    /// Tells those who have asked for a prefix of some of these keys: for each prefix once.
    fn broadcast(&mut self, keys: &[Vec<u8>], by: Option<ConnectionId>) {
        for (to, client) in &self.clients {
            let Some(prefixes) = &client.prefixes else { continue };
            if by == Some(*to) && client.no_loop {
                continue;
            }
            for prefix in prefixes {
                let own = keys.iter().map(|key| shown(key)).filter(|key| key.starts_with(prefix));
                let own: Vec<Vec<u8>> = own.map(<[u8]>::to_vec).collect();
                if !own.is_empty() {
                    self.outbox.push_back(Invalidation { to: *to, keys: Some(own) });
                }
            }
        }
    }

    /// All keys were written.
    pub(crate) fn flushed(&mut self) {
        self.table.clear();
        self.order.clear();
        (self.bytes, self.items) = (0, 0);
        let told = self.clients.keys().map(|to| Invalidation { to: *to, keys: None });
        self.outbox.extend(told);
    }

    /// Writes of other gateways may not have been told: what was read here is looked at anyway.
    pub(crate) fn lost_contact(&mut self) {
        let told = self.clients.iter().filter(|(_, client)| client.prefixes.is_some());
        let told = told.map(|(to, _)| Invalidation { to: *to, keys: None });
        self.outbox.extend(told);
    }

    /// The keys that are to be looked at by now, a few at a time.
    pub(crate) fn next_due(&mut self, now: Instant) -> Vec<Numbered> {
        let mut due = Vec::new();
        if now < self.check_at || self.checks.len() >= CHECKS_MAX {
            return due;
        }
        while due.len() < CHECK_KEYS
            && let Some((_, key, number)) = self.order.pop_front_if(|(at, ..)| *at <= now)
        {
            if self.table.get(&key).is_some_and(|entry| entry.number == number) {
                due.push((key, number));
            }
        }
        if !due.is_empty() {
            self.check_at = now.after(PACE_NS);
        }
        due
    }

    /// Takes back keys that could not be checked yet.
    pub(crate) fn put_back(&mut self, now: Instant, due: Vec<Numbered>) {
        self.check_at = now.after(RETRY_NS);
        for (key, number) in due.into_iter().rev() {
            self.order.push_front((now, key, number));
        }
    }

    /// Handles the check of a key; `None` if it failed.
    pub(crate) fn looked(&mut self, now: Instant, key: &[u8], number: u64, digest: Option<&[u8]>) {
        let Some((key, _)) = self.table.get_key_value(key) else { return };
        let key = key.clone();
        let Some(entry) = self.table.get_mut(&key).filter(|entry| entry.number == number) else {
            return;
        };
        let is_same = match (&entry.digest, digest) {
            (_, None) => false,
            (Some(was), Some(is)) => was == is,
            // It was written, and has been deleted since.
            (None, Some(is)) => is.iter().any(|digit| *digit != b'0'),
        };
        if !is_same {
            return self.changed(&key, number);
        }
        entry.digest = digest.map(<[u8]>::to_vec);
        let (before, clients) = (entry.clients.len(), &self.clients);
        let is_current = |(id, number): &(ConnectionId, u64)| {
            clients.get(id).is_some_and(|client| client.number == *number)
        };
        entry.clients.retain(is_current);
        self.items -= before - entry.clients.len();
        if entry.clients.is_empty() && !entry.is_broadcast {
            self.remove(&key);
            return;
        }
        self.order.push_back((now.after(CHECK_NS), key, number));
    }

    pub(crate) fn deadline(&self) -> Instant {
        match self.order.front() {
            Some((at, ..)) if self.checks.len() < CHECKS_MAX => (*at).max(self.check_at),
            Some(_) | None => Instant::NEVER,
        }
    }
}

/// A key as clients name it.
fn shown(key: &[u8]) -> &[u8] {
    concord_engine::databases::own_name(key)
}
