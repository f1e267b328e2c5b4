//! A client's subscriptions.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use concord_core::Instant;

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sort {
    Channel = 0,
    Pattern = 1,
    /// A channel of SSUBSCRIBE and SPUBLISH.
    Shard = 2,
    /// No channel of clients: by it gateways tell each other what was written
    /// ([`crate::tracking`]).
    Written = 3,
}

impl Sort {
    pub(crate) fn of_byte(byte: u8) -> Option<Sort> {
        let all = [Sort::Channel, Sort::Pattern, Sort::Shard, Sort::Written];
        all.into_iter().find(|sort| *sort as u8 == byte)
    }
}

/// What was published: for this gateway's clients, or by a transaction that is not executed yet.
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

/// A SUBSCRIBE that not every other gateway knows of.
#[derive(Debug)]
pub(crate) struct PendingSubscribe {
    /// What it begins with.
    pub begins: Vec<(Sort, Vec<u8>)>,
    pub reply: Vec<u8>,
}

/// What a connection has subscribed to.
#[derive(Debug, Default)]
pub(crate) struct Subscriber {
    pub channels: BTreeSet<Vec<u8>>,
    pub patterns: BTreeSet<Vec<u8>>,
    pub shards: BTreeSet<Vec<u8>>,
    pub asked: Option<PendingSubscribe>,
    /// Since when it has left much unread.
    pub slow_since: Option<Instant>,
    /// Messages that came within a reply which is written in parts.
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

    /// Whether it is new.
    pub(crate) fn add(&mut self, sort: Sort, name: &[u8]) -> bool {
        self.set(sort).insert(name.to_vec())
    }

    /// Whether it was there.
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

    /// The number in a confirmation.
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
