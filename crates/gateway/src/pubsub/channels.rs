//! Subscriptions: the clients of this gateway, and of the others how many there are; and replies
//! that wait until the others have heard of a change.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_engine::glob_matches;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::connection::ConnectionId;
use crate::connection::subscriptions::Sort;
use crate::pubsub::events::may_be_of_events;

type Name = (Sort, Vec<u8>);

/// An item that one gateway sends another. A message has one or several of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told<'a> {
    /// The number of its clients that have subscribed to this name.
    Subscribers(Sort, &'a [u8], u32),
    Published(Sort, &'a [u8], &'a [u8]),
    /// The text of the users ([`crate::users`]).
    Users(&'a [u8]),
}

const SUBSCRIBERS: u8 = 1;
const PUBLISHED: u8 = 2;
const USERS: u8 = 3;

impl<'a> Told<'a> {
    /// Appends it: what it is, the sort, the length of the name, the name, and the number, or the
    /// length of the payload and the payload.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let (what, sort, name) = match self {
            Told::Subscribers(sort, name, _) => (SUBSCRIBERS, sort, name),
            Told::Published(sort, name, _) => (PUBLISHED, sort, name),
            Told::Users(users) => (USERS, &Sort::Channel, users),
        };
        out.extend_from_slice(&[what, *sort as u8]);
        out.extend_from_slice(&(name.len() as u32).to_be_bytes());
        out.extend_from_slice(name);
        match self {
            Told::Subscribers(.., count) => out.extend_from_slice(&count.to_be_bytes()),
            Told::Published(.., payload) => {
                out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
                out.extend_from_slice(payload);
            }
            Told::Users(_) => {}
        }
    }

    /// The first item of `bytes`, and the rest.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<(Told<'a>, &'a [u8])> {
        let [what, sort, rest @ ..] = bytes else { return None };
        let sort = Sort::of_byte(*sort)?;
        let (name, rest) = counted(rest)?;
        match *what {
            SUBSCRIBERS => {
                let (count, rest) = rest.split_first_chunk()?;
                Some((Told::Subscribers(sort, name, u32::from_be_bytes(*count)), rest))
            }
            PUBLISHED => {
                let (payload, rest) = counted(rest)?;
                Some((Told::Published(sort, name, payload), rest))
            }
            USERS => Some((Told::Users(name), rest)),
            _ => None,
        }
    }
}

/// Encodes the numbers of subscribers in messages of bounded length.
pub(crate) fn messages<'a>(counts: impl Iterator<Item = (Sort, &'a [u8], u32)>) -> Vec<Vec<u8>> {
    const BYTES: usize = 32 << 10;
    let mut messages: Vec<Vec<u8>> = Vec::new();
    for (sort, name, count) in counts {
        if messages.last().is_none_or(|last| last.len() >= BYTES) {
            messages.push(Vec::new());
        }
        if let Some(last) = messages.last_mut() {
            Told::Subscribers(sort, name, count).emit(last);
        }
    }
    messages
}

/// A length, and as many bytes.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// Subscriptions of this gateway's clients and of the others'.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    /// Clients here that get what is published; in the order in which they came.
    here: BTreeMap<Name, Vec<ConnectionId>>,
    /// By name: the number of subscribers here, as the others were told.
    asked: BTreeMap<Name, u32>,
    /// By name: the number of subscribers at each other gateway.
    there: Vec<BTreeMap<Name, u32>>,
    /// Whether one of them wants to hear of writes.
    wants_writes: bool,
    /// The number of names subscribed to here that may be of events.
    of_events: usize,
}

/// A receiver of a message: a client, with the pattern if it matched one.
pub(crate) type Receiver<'a> = (ConnectionId, Option<&'a [u8]>);

impl Channels {
    pub(crate) fn new(others: usize) -> Channels {
        Channels { there: (0..others).map(|_| BTreeMap::new()).collect(), ..Channels::default() }
    }

    /// One more client has asked for this: how many have.
    pub(crate) fn ask(&mut self, sort: Sort, name: &[u8]) -> u32 {
        let count = self.asked.entry((sort, name.to_vec())).or_default();
        *count += 1;
        self.of_events += usize::from(*count == 1 && may_be_of_events(sort, name));
        *count
    }

    /// Whether a client here may hear of events.
    pub(crate) fn may_hear_events(&self) -> bool {
        self.of_events > 0
    }

    /// Begins a subscription: the client gets messages published from now on.
    pub(crate) fn begin(&mut self, sort: Sort, name: &[u8], id: ConnectionId) {
        self.here.entry((sort, name.to_vec())).or_default().push(id);
    }

    /// A client does not want it any more: how many do.
    pub(crate) fn end(&mut self, sort: Sort, name: &[u8], id: ConnectionId) -> u32 {
        let key = (sort, name.to_vec());
        if let Some(ids) = self.here.get_mut(&key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.here.remove(&key);
            }
        }
        let left = self.asked.get(&key).map_or(0, |count| count - 1);
        if left == 0 && self.asked.contains_key(&key) && may_be_of_events(sort, name) {
            self.of_events -= 1;
        }
        match left {
            0 => drop(self.asked.remove(&key)),
            left => drop(self.asked.insert(key, left)),
        }
        left
    }

    /// All that another gateway has to know, in messages.
    pub(crate) fn all(&self) -> Vec<Vec<u8>> {
        messages(self.asked.iter().map(|((sort, name), count)| (*sort, &name[..], *count)))
    }

    /// Sets the number of another gateway's subscribers.
    pub(crate) fn set_there(&mut self, other: usize, sort: Sort, name: &[u8], count: u32) {
        let Some(there) = self.there.get_mut(other) else { return };
        match count {
            0 => drop(there.remove(&(sort, name.to_vec()))),
            count => drop(there.insert((sort, name.to_vec()), count)),
        }
        if sort == Sort::Written {
            self.look_for_wants();
        }
    }

    fn look_for_wants(&mut self) {
        let written = (Sort::Written, Vec::new());
        self.wants_writes = self.there.iter().any(|there| there.contains_key(&written));
    }

    /// Whether another gateway wants to hear of writes.
    pub(crate) fn are_writes_wanted(&self) -> bool {
        self.wants_writes
    }

    /// Forgets another gateway's subscribers.
    pub(crate) fn forget_there(&mut self, other: usize) {
        if let Some(there) = self.there.get_mut(other) {
            there.clear();
        }
        self.look_for_wants();
    }

    /// The number of receivers of a message at another gateway.
    pub(crate) fn receivers_there(&self, other: usize, sort: Sort, channel: &[u8]) -> u32 {
        let Some(there) = self.there.get(other).filter(|there| !there.is_empty()) else { return 0 };
        let by_name = there.get(&(sort, channel.to_vec())).copied().unwrap_or(0);
        if sort != Sort::Channel {
            return by_name;
        }
        by_name
            + of_sort(there, Sort::Pattern)
                .filter(|(pattern, _)| glob_matches(pattern, channel))
                .map(|(_, count)| count)
                .sum::<u32>()
    }

    /// The receivers of a message here, in Redis' order: by the channel, then by patterns.
    pub(crate) fn receivers(&self, sort: Sort, channel: &[u8]) -> Vec<Receiver<'_>> {
        let mut all: Vec<Receiver<'_>> = Vec::new();
        if self.here.is_empty() {
            return all;
        }
        if let Some(ids) = self.here.get(&(sort, channel.to_vec())) {
            all.extend(ids.iter().map(|id| (*id, None)));
        }
        if sort == Sort::Channel {
            for (pattern, ids) in of_sort(&self.here, Sort::Pattern) {
                if glob_matches(pattern, channel) {
                    all.extend(ids.iter().map(|id| (*id, Some(pattern))));
                }
            }
        }
        all
    }

    /// The number of subscribers to this name at all gateways.
    pub(crate) fn count(&self, sort: Sort, name: &[u8]) -> u64 {
        let key = (sort, name.to_vec());
        let tables = self.there.iter().chain([&self.asked]);
        tables.filter_map(|table| table.get(&key)).map(|count| u64::from(*count)).sum()
    }

    /// The names of this sort that have subscribers at any gateway, each once, in order.
    pub(crate) fn names(&self, sort: Sort) -> Vec<&[u8]> {
        let tables = self.there.iter().chain([&self.asked]);
        let mut names: Vec<&[u8]> =
            tables.flat_map(|table| of_sort(table, sort).map(|(name, _)| name)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// The entries of a sort.
fn of_sort<T>(table: &BTreeMap<Name, T>, sort: Sort) -> impl Iterator<Item = (&[u8], &T)> {
    let from = (sort, Vec::new());
    table.range(from..).take_while(move |((own, _), _)| *own == sort).map(|((_, n), v)| (&n[..], v))
}

/// A reply that waits until other gateways have acknowledged a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// A PUBLISH, in this slot of its connection.
    Published { id: ConnectionId, slot: u64 },
    /// A SUBSCRIBE.
    Subscribed(ConnectionId),
    /// A gateway that was not heard of tells of writes again.
    Regained,
}

/// All of it, by the streams that have to be acknowledged, and up to where.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    waiting: HashMap<u64, (usize, Waits), FxBuildHasher>,
    next: u64,
    by_other: Vec<VecDeque<(u64, u64)>>,
    open: VecDeque<Waits>,
}

impl Gates {
    pub(crate) fn new(others: usize) -> Gates {
        Gates { by_other: (0..others).map(|_| VecDeque::new()).collect(), ..Gates::default() }
    }

    /// Waits for the other gateways, up to a place in the stream to each.
    pub(crate) fn wait(&mut self, what: Waits, until: &[(usize, u64)]) {
        if until.is_empty() {
            return self.open.push_back(what);
        }
        let gate = self.next;
        self.next += 1;
        self.waiting.insert(gate, (until.len(), what));
        for (other, number) in until {
            if let Some(queue) = self.by_other.get_mut(*other) {
                queue.push_back((*number, gate));
            }
        }
    }

    /// Another gateway has heard all up to there.
    pub(crate) fn heard(&mut self, other: usize, up_to: u64) {
        while let Some((_, gate)) =
            self.by_other.get(other).and_then(VecDeque::front).filter(|(n, _)| *n <= up_to)
        {
            let gate = *gate;
            self.by_other[other].pop_front();
            let Some((left, what)) = self.waiting.get_mut(&gate) else { continue };
            *left -= 1;
            if *left == 0 {
                let what = *what;
                self.waiting.remove(&gate);
                self.open.push_back(what);
            }
        }
    }

    /// The stream to another gateway begins anew: what subscriptions wait for ends there now, and
    /// messages are waited for no longer.
    pub(crate) fn begin_anew(&mut self, other: usize, end: Option<u64>) {
        let Some(queue) = self.by_other.get_mut(other) else { return };
        let all = core::mem::take(queue);
        let waiting = &self.waiting;
        let is_kept = |gate: &u64| {
            matches!(waiting.get(gate), Some((_, Waits::Subscribed(_)))) && end.is_some()
        };
        let (kept, given_up) = all.into_iter().partition(|(_, gate)| is_kept(gate));
        let kept: VecDeque<(u64, u64)> = kept;
        *queue = given_up;
        self.heard(other, u64::MAX);
        let end = end.unwrap_or_default();
        self.by_other[other] = kept.into_iter().map(|(_, gate)| (end, gate)).collect();
    }

    /// The next that waits no longer.
    pub(crate) fn poll(&mut self) -> Option<Waits> {
        self.open.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const ID: ConnectionId = ConnectionId(1);

    #[test]
    fn what_gateways_tell_each_other_survives() {
        let all = [
            Told::Subscribers(Sort::Pattern, b"a*", 7),
            Told::Published(Sort::Shard, b"c", b""),
            Told::Users(b"version and text"),
            Told::Published(Sort::Channel, b"", b"text"),
        ];
        let mut bytes = vec![];
        all.iter().for_each(|told| told.emit(&mut bytes));
        let mut rest = &bytes[..];
        for told in all {
            let (own, behind) = Told::parse(rest).unwrap();
            assert_eq!(own, told);
            rest = behind;
        }
        assert!(rest.is_empty());
        for cut in 0..bytes.len() {
            let mut rest = &bytes[..cut];
            while let Some((_, behind)) = Told::parse(rest) {
                rest = behind;
            }
            assert!(rest.len() < bytes.len());
        }
        assert_eq!(Told::parse(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    /// Messages go to channels and patterns and those of shards to shards.
    #[test]
    fn channels_patterns_and_shards() {
        let mut channels = Channels::new(1);
        assert_eq!(
            (channels.ask(Sort::Channel, b"news"), channels.ask(Sort::Channel, b"news")),
            (1, 2)
        );
        channels.begin(Sort::Channel, b"news", ID);
        channels.begin(Sort::Channel, b"news", ConnectionId(2));
        channels.ask(Sort::Pattern, b"n*");
        channels.begin(Sort::Pattern, b"n*", ID);
        channels.ask(Sort::Shard, b"news");
        channels.begin(Sort::Shard, b"news", ConnectionId(3));
        let to = channels.receivers(Sort::Channel, b"news");
        assert_eq!(to, [(ID, None), (ConnectionId(2), None), (ID, Some(&b"n*"[..]))]);
        assert_eq!(channels.receivers(Sort::Shard, b"news"), [(ConnectionId(3), None)]);
        channels.set_there(0, Sort::Pattern, b"*s", 4);
        channels.set_there(0, Sort::Channel, b"news", 2);
        assert_eq!(channels.receivers_there(0, Sort::Channel, b"news"), 6);
        assert_eq!(channels.receivers_there(0, Sort::Channel, b"nothing"), 0);
        assert_eq!(channels.count(Sort::Channel, b"news"), 4);
        assert_eq!(channels.names(Sort::Pattern), [&b"*s"[..], b"n*"]);
        assert_eq!(channels.end(Sort::Channel, b"news", ID), 1);
        assert_eq!(channels.end(Sort::Channel, b"news", ConnectionId(2)), 0);
        channels.forget_there(0);
        assert_eq!(channels.names(Sort::Channel), Vec::<&[u8]>::new());
        assert_eq!(channels.all().len(), 1);
    }

    #[test]
    fn what_waits_goes_on_when_all_have_heard() {
        let mut gates = Gates::new(2);
        gates.wait(Waits::Subscribed(ID), &[]);
        assert_eq!(gates.poll(), Some(Waits::Subscribed(ID)));
        gates.wait(Waits::Published { id: ID, slot: 1 }, &[(0, 5), (1, 9)]);
        gates.wait(Waits::Published { id: ID, slot: 2 }, &[(0, 6)]);
        gates.heard(0, 6);
        assert_eq!(gates.poll(), Some(Waits::Published { id: ID, slot: 2 }));
        assert_eq!(gates.poll(), None);
        gates.heard(1, u64::MAX);
        assert_eq!(gates.poll(), Some(Waits::Published { id: ID, slot: 1 }));
    }
}
