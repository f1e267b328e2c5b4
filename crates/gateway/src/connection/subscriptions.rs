//! A client's subscriptions.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use concord_core::Instant;

/// The kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sort {
    Channel = 0,
    Pattern = 1,
    /// A channel of SSUBSCRIBE and SPUBLISH.
    Shard = 2,
    /// A name between gateways, not a channel of clients: by it they tell each other which objects
    /// were written ([`crate::tracking`]).
    Written = 3,
}

impl Sort {
    pub(crate) fn of_byte(byte: u8) -> Option<Sort> {
        let all = [Sort::Channel, Sort::Pattern, Sort::Shard, Sort::Written];
        all.into_iter().find(|sort| *sort as u8 == byte)
    }
}

/// A published message: for this gateway's clients, or of a transaction that is not executed yet.
#[derive(Debug)]
pub(crate) struct Message {
    pub sort: Sort,
    pub channel: Vec<u8>,
    pub payload: Vec<u8>,
}

/// A command of publish and subscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PubSub {
    Subscribe(Sort),
    Unsubscribe(Sort),
    Publish(Sort),
    /// PUBSUB.
    Look,
}

/// A SUBSCRIBE that some other gateway does not know of yet.
#[derive(Debug)]
pub(crate) struct PendingSubscribe {
    /// The subscriptions with which it begins.
    pub begins: Vec<(Sort, Vec<u8>)>,
    pub reply: Vec<u8>,
}

/// The subscriptions of a connection.
#[derive(Debug, Default)]
pub(crate) struct Subscriber {
    pub channels: BTreeSet<Vec<u8>>,
    pub patterns: BTreeSet<Vec<u8>>,
    pub shards: BTreeSet<Vec<u8>>,
    pub asked: Option<PendingSubscribe>,
    /// The time since which it has left much unread.
    pub slow_since: Option<Instant>,
    /// Messages that arrived within a reply that is written in parts.
    pub held: Vec<u8>,
}

impl Subscriber {
    fn set(&mut self, sort: Sort) -> &mut BTreeSet<Vec<u8>> {
        match sort {
            Sort::Channel => &mut self.channels,
            Sort::Pattern => &mut self.patterns,
            Sort::Shard | Sort::Written => &mut self.shards,
        }
    }

    /// Adds a subscription. Returns whether it is new.
    pub(crate) fn add(&mut self, sort: Sort, name: &[u8]) -> bool {
        self.set(sort).insert(name.to_vec())
    }

    /// Removes a subscription. Returns whether it existed.
    pub(crate) fn remove(&mut self, sort: Sort, name: &[u8]) -> bool {
        self.set(sort).remove(name)
    }

    pub(crate) fn names(&self, sort: Sort) -> &BTreeSet<Vec<u8>> {
        match sort {
            Sort::Channel => &self.channels,
            Sort::Pattern => &self.patterns,
            Sort::Shard | Sort::Written => &self.shards,
        }
    }

    /// The number for a confirmation.
    pub(crate) fn count(&self, sort: Sort) -> usize {
        match sort {
            Sort::Channel | Sort::Pattern => self.channels.len() + self.patterns.len(),
            Sort::Shard | Sort::Written => self.shards.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shards.is_empty()
    }
}
