//! Checks whether a recorded history is linearizable.
//!
//! Read [`check`] and [`Operation`] first. The law: the verdict [`Verdict::Ok`] is given only if an
//! order was found for every key, and [`Verdict::Violation`] only if every order of some key was
//! ruled out. A search that ran out of its budget is [`Verdict::Unknown`], never ok.
//!
//! ```
//! use concord_check::{Operation, Options, Reply, check};
//! let operation = |client, call_ns, return_ns, cmd: &str, reply| Operation {
//!     client,
//!     ordinal: None,
//!     call_ns,
//!     return_ns: Some(return_ns),
//!     cmd: cmd.split(' ').map(|arg| arg.as_bytes().to_vec()).collect(),
//!     reply: Some(reply),
//!     path: None,
//! };
//! let mut history = vec![
//!     operation(1, 0, 10, "SET k old", Reply::Ok),
//!     operation(1, 20, 30, "SET k new", Reply::Ok),
//!     operation(2, 25, 35, "GET k", Reply::bulk("old")),
//! ];
//! assert!(check(&history, &Options::default())?.is_ok());
//! history[2].call_ns = 31; // Now the read began after the write had returned.
//! assert!(!check(&history, &Options::default())?.is_ok());
//! # Ok::<(), concord_check::HistoryError>(())
//! ```
//!
//! # The format
//! JSON Lines, one operation a line, in any order:
//! ```json
//! {"client": 3, "call": 1200, "return": 1900, "cmd": ["SET", "k", "v", "NX"],
//!  "reply": {"kind": "ok"}, "path": "slow: dirty"}
//! ```
//! (on one line). `call` and `return` are ns of one monotone clock; `return` is null, and `reply`
//! null or absent, when the outcome is unknown: the operation may take effect once, at any time
//! after its call, or never. Kinds of replies: `nil`, `ok`, `int`, `bulk`, `array`, `error`, with
//! the `value` where there is one; `unseen` is the reply of what was executed, whatever it
//! answered. Bytes that are not UTF-8 are `{"hex": "00ff"}`. `path` is optional, and so is
//! `ordinal`: what a client sent before the replies to earlier commands came is ordered by it
//! (reads of one key among each other are not).
//!
//! # What is modelled
//! SET (NX, XX, IFEQ, GET, EX, PX, KEEPTTL), GET, SETNX, GETSET, GETDEL, APPEND, STRLEN, INCR,
//! DECR, INCRBY, DECRBY, DEL, UNLINK and EXISTS of one key, CAS (key expected value), CAD (key
//! expected), EXPIRE, PEXPIRE, PERSIST, LPUSH, RPUSH, LPOP, RPOP, LLEN, LRANGE, SADD, SREM,
//! SISMEMBER, SCARD, SMEMBERS, HSET, HGET, HDEL, HLEN, HGETALL, ZADD of one member with a whole
//! number, ZPOPMIN, ZPOPMAX and ZCARD, FLUSHALL, FLUSHDB, KEYS of `*`, SCAN without a pattern,
//! DBSIZE, and EXEC: commands on one key as one, `["EXEC", "2", "GET", "k", "3", "SET", "k", "v"]`
//! (before each the number of its arguments), with an array of replies. The models are written
//! apart from the engines on purpose. A command without a model is an error, not ignored.
//!
//! An error reply that the model predicts (WRONGTYPE, not an integer, overflow) must be predicted.
//! Any other error means that the command was refused and had no effect.
//!
//! A key with a time to live, set by an operation with ttl t, may vanish at any moment from call +
//! t on, and is gone for what is called after return + t + [`Options::grace_ns`].
//!
//! # Several keys
//! Transactions over several keys are checked by [`check_transactions`] for strict serializability:
//! an order of all of them is found and replayed, or every order is ruled out.
//!
//! # What is not checked
//! Every key is checked by itself, which is enough for commands on one key: linearizability is
//! local (Horn and Kroening 2015). FLUSHALL is not one: it must fit every key's history at some
//! moment between its call and return, but that this was the same moment for all keys is not
//! checked. So it is with KEYS and SCAN, which see for each key whether it exists (a call of SCAN
//! that is not the whole scan says nothing of keys that it does not name), and with DBSIZE: each
//! key may have existed when it counted or not, and the count is between the least and the most.
#![forbid(unsafe_code)]

mod check;
mod command;
mod history;
mod lists;
mod minimise;
mod model;
mod op;
mod plan;
mod record;
mod report;
mod search;
mod seen;
mod serial;
mod start;

pub use check::{JUDGED_PERCENT_MIN, Options, check, check_file, is_too_little};
pub use history::{History, HistoryError, Operation, Reply};
pub use model::Calm;
pub use record::{Pending, Recorder};
pub use report::{Expiries, GaveUp, Report, Stuck, Verdict, Violation};
pub use serial::{Access, Anomaly, Decision, Edge, Transaction, check_transactions, is_order};

#[cfg(test)]
mod tests;
