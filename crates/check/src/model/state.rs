//! The state of one key, and the replies that the model gives in it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::Reply;
use crate::command::Bytes;

/// A period without faults at the end of a history, in which keys are deleted soon after their time
/// to live has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calm {
    /// The time at which it begins, in ns of the history's clock. Times to live that were set
    /// earlier count from then.
    pub from_ns: u64,
    /// The time in ns after its deadline by which a key must be gone.
    pub grace_ns: u64,
}

/// The data of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    #[default]
    Missing,
    Str(Bytes),
    /// A list, never empty, head first.
    List(Vec<Bytes>),
    /// A set, never empty.
    Set(BTreeSet<Bytes>),
    /// A hash, never empty: fields and values.
    Hash(BTreeMap<Bytes, Bytes>),
    /// A sorted set, never empty: scores, which are whole numbers here, and members.
    Sorted(BTreeSet<(i64, Bytes)>),
}

/// The interval of time in which a key with a time to live vanishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expiry {
    /// The earliest time, in ns of the recorder's clock.
    pub(crate) earliest_ns: u64,
    /// The latest time. An operation that is called later must find the key gone.
    pub(crate) latest_ns: u64,
}

/// The whole state of one key. A missing key has no expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) value: Value,
    pub(crate) expiry: Option<Expiry>,
}

/// The times of a command's call and return, and the precision of expiry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) call_ns: u64,
    /// The time of the return, or `u64::MAX` if it never returned.
    pub(crate) return_ns: u64,
    pub(crate) early_ns: u64,
    pub(crate) grace_ns: u64,
    pub(crate) calm: Option<Calm>,
}

impl Moment {
    pub(crate) fn expiry(&self, ttl_ms: u64) -> Expiry {
        let ttl_ns = ttl_ms.saturating_mul(1_000_000);
        let latest_ns = self.return_ns.saturating_add(ttl_ns).saturating_add(self.grace_ns);
        let calm_ns = self.calm.map_or(u64::MAX, |calm| {
            let set_ns = self.return_ns.max(calm.from_ns);
            set_ns.saturating_add(ttl_ns).saturating_add(calm.grace_ns)
        });
        Expiry {
            earliest_ns: self.call_ns.saturating_add(ttl_ns).saturating_sub(self.early_ns),
            latest_ns: latest_ns.min(calm_ns),
        }
    }
}

/// What is known about the reply of a command.
#[derive(Clone, Copy)]
pub(crate) enum Want<'a> {
    /// The reply was this.
    Reply(&'a Reply),
    /// The outcome is unknown.
    Anything,
    /// The model is asked for its reply, for a report.
    Tell(&'a Cell<Option<Reply>>),
}

/// The state after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Same,
    State(State),
}

/// The model's reply, borrowed from the state.
pub(super) enum Got<'a> {
    Nil,
    Ok,
    Int(i64),
    Bulk(&'a [u8]),
    Array(&'a [Bytes]),
    /// A list, last element first.
    Reversed(&'a [Bytes]),
    /// Members in any order.
    Members(&'a BTreeSet<Bytes>),
    /// Fields, each followed by its value, in any order.
    Pairs(&'a BTreeMap<Bytes, Bytes>),
    /// A member and its score, if there is one.
    Ranked(Option<&'a (i64, Bytes)>),
    Error(&'static str),
}

pub(super) const WRONG_TYPE: &str = "WRONGTYPE";
pub(super) const NOT_INTEGER: &str = "ERR value is not an integer";
pub(super) const OVERFLOW: &str = "ERR increment or decrement would overflow";

/// The prefixes of errors that the model predicts. Any other error means that the command was
/// refused and nothing was executed.
pub(crate) const PREDICTED_ERRORS: [&str; 3] = [WRONG_TYPE, NOT_INTEGER, OVERFLOW];

pub(super) fn bulk_of(reply: &Reply) -> Option<&[u8]> {
    match reply {
        Reply::Bulk(value) => Some(value),
        Reply::Nil
        | Reply::Ok
        | Reply::Int(_)
        | Reply::Array(_)
        | Reply::Error(_)
        | Reply::Unseen => None,
    }
}

pub(super) fn pair_of([field, value]: &[Reply; 2]) -> Option<(&[u8], &[u8])> {
    Some((bulk_of(field)?, bulk_of(value)?))
}

impl Got<'_> {
    pub(super) fn is(&self, reply: &Reply) -> bool {
        let same = |a: &Bytes, b: &Reply| matches!(b, Reply::Bulk(b) if **a == **b);
        match (self, reply) {
            (Got::Nil, Reply::Nil) | (Got::Ok, Reply::Ok) => true,
            (Got::Int(a), Reply::Int(b)) => a == b,
            (Got::Bulk(a), Reply::Bulk(b)) => a == b,
            (Got::Array(a), Reply::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
            }
            (Got::Reversed(a), Reply::Array(b)) => {
                a.len() == b.len() && a.iter().rev().zip(b).all(|(a, b)| same(a, b))
            }
            (Got::Members(members), Reply::Array(b)) => {
                let seen = || b.iter().filter_map(bulk_of).collect::<BTreeSet<&[u8]>>();
                members.len() == b.len() && members.iter().map(|m| &**m).eq(seen())
            }
            (Got::Pairs(fields), Reply::Array(b)) => {
                let (pairs, rest) = b.as_chunks::<2>();
                let seen = || pairs.iter().filter_map(pair_of).collect::<BTreeMap<_, _>>();
                let own = fields.iter().map(|(field, value)| (&**field, &**value));
                rest.is_empty() && fields.len() == pairs.len() && own.eq(seen())
            }
            (Got::Ranked(None), Reply::Array(b)) => b.is_empty(),
            (Got::Ranked(Some((score, member))), Reply::Array(b)) => {
                let score = Reply::Bulk(score.to_string().into_bytes());
                matches!(&b[..], [own, of] if same(member, own) && *of == score)
            }
            (Got::Error(prefix), Reply::Error(text)) => text.starts_with(prefix),
            _ => false,
        }
    }

    pub(super) fn to_reply(&self) -> Reply {
        let bulk = |item: &Bytes| Reply::Bulk(item.to_vec());
        match self {
            Got::Nil => Reply::Nil,
            Got::Ok => Reply::Ok,
            Got::Int(value) => Reply::Int(*value),
            Got::Bulk(value) => Reply::Bulk(value.to_vec()),
            Got::Array(items) => Reply::Array(items.iter().map(bulk).collect()),
            Got::Reversed(items) => Reply::Array(items.iter().rev().map(bulk).collect()),
            Got::Members(members) => Reply::Array(members.iter().map(bulk).collect()),
            Got::Pairs(fields) => {
                Reply::Array(fields.iter().flat_map(|(f, v)| [bulk(f), bulk(v)]).collect())
            }
            Got::Ranked(ranked) => {
                let parts = |(score, member): &&(i64, Bytes)| {
                    [bulk(member), Reply::Bulk(score.to_string().into_bytes())]
                };
                Reply::Array(ranked.iter().flat_map(parts).collect())
            }
            Got::Error(prefix) => Reply::Error((*prefix).into()),
        }
    }
}

impl Want<'_> {
    /// `Some` if the model's reply agrees with the one that was seen.
    pub(super) fn check(&self, got: &Got<'_>) -> Option<()> {
        match self {
            Want::Reply(reply) => got.is(reply).then_some(()),
            Want::Anything => Some(()),
            Want::Tell(cell) => {
                cell.set(Some(got.to_reply()));
                Some(())
            }
        }
    }

    pub(super) fn same(&self, got: &Got<'_>) -> Option<Next> {
        self.check(got).map(|()| Next::Same)
    }

    pub(super) fn optional(&self, value: Option<&Bytes>) -> Option<()> {
        self.check(&value.map_or(Got::Nil, |v| Got::Bulk(v)))
    }
}

/// The key holds a type that the command is not for.
pub(super) struct WrongType;

pub(super) type Stepped = Result<Option<Next>, WrongType>;

impl State {
    pub(super) fn with(value: Value, expiry: Option<Expiry>) -> Option<Next> {
        Some(Next::State(State { value, expiry }))
    }

    /// The state with `value` in place of the old one; the time to live stays.
    pub(super) fn put(&self, value: Value) -> Option<Next> {
        State::with(value, self.expiry)
    }

    pub(super) fn gone() -> Option<Next> {
        Some(Next::State(State::default()))
    }

    pub(super) fn exists(&self) -> bool {
        self.value != Value::Missing
    }

    pub(super) fn string(&self) -> Result<Option<&Bytes>, WrongType> {
        match &self.value {
            Value::Missing => Ok(None),
            Value::Str(value) => Ok(Some(value)),
            _ => Err(WrongType),
        }
    }

    pub(super) fn list(&self) -> Result<&[Bytes], WrongType> {
        match &self.value {
            Value::Missing => Ok(&[]),
            Value::List(items) => Ok(items),
            _ => Err(WrongType),
        }
    }

    /// The approximate memory of the state in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        // The bytes of list, set and hash elements are shared with the commands.
        let data = match &self.value {
            Value::Missing => 0,
            Value::Str(value) => value.len(),
            Value::List(items) => 16 * items.len(),
            Value::Set(items) => 32 * items.len(),
            Value::Sorted(items) => 40 * items.len(),
            Value::Hash(items) => 64 * items.len(),
        };
        size_of::<State>() + data
    }
}
