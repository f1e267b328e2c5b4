//! The search for an order of a few calls, some of them with several keys, that explains all
//! replies.
//!
//! [`concord_check::check`] checks each key by itself, which says nothing about two keys at one
//! moment. Here all orders are tried: there are only a handful of calls.

use std::collections::BTreeMap;

use concord_check::Reply;

use super::setup::Call;

/// A call that was made, and not refused.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// The call's bit.
    pub bit: u32,
    /// The calls that had returned before this one was made, by their bits.
    pub after: u32,
    pub call: Call,
    /// The reply; `None` if the call may have been executed or not.
    pub reply: Option<Reply>,
}

type Keys = BTreeMap<&'static str, String>;

/// Whether there is an order.
pub(super) fn has_order(events: &[Event]) -> bool {
    goes_on(events, 0, &Keys::new())
}

/// Whether the calls that are not `done` have an order that explains the rest.
fn goes_on(events: &[Event], done: u32, keys: &Keys) -> bool {
    let mut left = events.iter().filter(|event| done & event.bit == 0);
    if left.clone().all(|event| event.reply.is_none()) {
        return true;
    }
    left.any(|event| {
        // A call that had returned before this one was made comes before it, if it was executed.
        let is_next = events.iter().all(|other| {
            event.after & other.bit == 0 || done & other.bit != 0 || other.reply.is_none()
        });
        let mut keys = keys.clone();
        let reply = executed(event.call, &mut keys);
        is_next
            && event.reply.as_ref().is_none_or(|known| *known == reply)
            && goes_on(events, done | event.bit, &keys)
    })
}

/// Executes a call; returns its reply.
fn executed(call: Call, keys: &mut Keys) -> Reply {
    let value = |keys: &Keys, key| match keys.get(key) {
        Some(value) => Reply::bulk(value.as_str()),
        None => Reply::Nil,
    };
    match call {
        Call::Get(key) => value(keys, key),
        Call::GetBoth(both) => Reply::Array(both.iter().map(|key| value(keys, key)).collect()),
        Call::Set(key, new) => {
            keys.insert(key, new.into());
            Reply::Ok
        }
        Call::SetBoth(both, new) => {
            both.iter().for_each(|key| drop(keys.insert(key, new.into())));
            Reply::Ok
        }
        Call::Incr(key) => {
            let next = keys.get(key).and_then(|value| value.parse().ok()).unwrap_or(0_i64) + 1;
            keys.insert(key, next.to_string());
            Reply::Int(next)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u32, after: u32, call: Call, reply: Option<Reply>) -> Event {
        Event { bit: 1 << number, after, call, reply }
    }

    fn both(one: &str, other: &str) -> Option<Reply> {
        let value = |text: &str| if text.is_empty() { Reply::Nil } else { Reply::bulk(text) };
        Some(Reply::Array(vec![value(one), value(other)]))
    }

    const WRITE: Call = Call::SetBoth(["a", "b"], "1");
    const READ: Call = Call::GetBoth(["a", "b"]);

    #[test]
    fn two_keys_are_seen_at_one_moment() {
        let write = event(0, 0, WRITE, Some(Reply::Ok));
        for (reply, is_right) in
            [(both("", ""), true), (both("1", "1"), true), (both("1", ""), false)]
        {
            assert_eq!(has_order(&[write.clone(), event(1, 0, READ, reply)]), is_right);
        }
        // After the write had returned.
        for (reply, is_right) in [(both("", ""), false), (both("1", "1"), true)] {
            assert_eq!(has_order(&[write.clone(), event(1, 1, READ, reply)]), is_right);
        }
    }

    /// A call of unknown outcome may have been executed at any time, or never.
    #[test]
    fn unknown_operation_may_run_any_time_or_never() {
        let write = event(0, 0, WRITE, None);
        let read = |number, after, reply| event(number, after, READ, reply);
        assert!(has_order(&[write.clone(), read(1, 0, both("", "")), read(2, 2, both("1", "1"))]));
        assert!(!has_order(&[write.clone(), read(1, 0, both("1", "1")), read(2, 2, both("", ""))]));
        assert!(!has_order(&[write, read(1, 0, both("", "1"))]));
    }

    #[test]
    fn calls_of_one_key_are_seen_beside_them() {
        let calls = [
            event(0, 0, Call::Incr("a"), Some(Reply::Int(1))),
            event(1, 1, Call::Set("b", "2"), Some(Reply::Ok)),
            event(2, 3, READ, both("1", "2")),
            event(3, 7, Call::Get("b"), Some(Reply::Nil)),
        ];
        assert!(has_order(&calls[..3]));
        assert!(!has_order(&calls));
    }
}
