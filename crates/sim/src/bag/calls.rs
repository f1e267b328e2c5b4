//! The clients' operations, and the check that their answers have an order.
//!
//! Keys are counters, so that a reply tells how many writes of its key were executed before it. A
//! history of increments and reads is linearizable only if versions never decrease: a call that
//! begins after a version was seen returns at least that version, and an increment a larger one; no
//! two increments return the same version, and none returns more than the number of increments that
//! were called.

use concord_check::Reply;
use concord_client::{Class, Client, Outcome, Request};
use concord_core::{Now, RequestNumber, Sink, hash};
use concord_engine::CommandBuf;
use concord_wire::Flags;
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use crate::systems::store::workload::parse_reply;

/// The number of keys; the name of the last is so long that its writes are staged.
pub(super) const KEYS: u8 = 3;
const LONG_NAME_BYTES: usize = 1_500;
/// The maximum number of unanswered calls of a client.
const UNANSWERED_MAX: usize = 5;

/// An unanswered call.
#[derive(Clone, Copy, Debug)]
struct Call {
    client: usize,
    number: RequestNumber,
    key: u8,
    writes: bool,
    /// The newest version that was seen before the call.
    floor: i64,
}

/// The observations of a key.
#[derive(Debug, Default)]
struct Key {
    /// The newest version that a reply has shown.
    seen: i64,
    /// The number of writes that were called, without those that were surely not executed.
    possible: i64,
    /// The versions that increments returned.
    made: HashSet<i64, FxBuildHasher>,
}

/// The clients' calls, and the observations of all keys.
#[derive(Debug)]
pub(super) struct Calls {
    under_way: Vec<Call>,
    keys: HashMap<u8, Key, FxBuildHasher>,
    last_write: Vec<Option<RequestNumber>>,
    /// The number of answered calls, by client.
    pub answered: Vec<u64>,
    /// The number of calls that ended without an answer.
    pub unknown: u64,
}

impl Calls {
    pub(super) fn new(clients: usize) -> Calls {
        Calls {
            under_way: Vec::new(),
            keys: HashMap::default(),
            last_write: vec![None; clients],
            answered: vec![0; clients],
            unknown: 0,
        }
    }

    pub(super) fn under_way(&self, client: usize) -> usize {
        self.under_way.iter().filter(|c| c.client == client).count()
    }

    pub(super) fn has_room(&self, client: usize) -> bool {
        self.under_way(client) < UNANSWERED_MAX
    }

    pub(super) fn call(
        &mut self,
        client: usize,
        machine: &mut Client,
        now: Now,
        (key, writes): (u8, bool),
        out: &mut impl Sink,
    ) {
        // A read has to fit into a packet.
        let key = if writes { key } else { key % (KEYS - 1) };
        let mut name = format!("k{key}");
        if key + 1 == KEYS {
            name.extend(std::iter::repeat_n('.', LONG_NAME_BYTES));
        }
        let verb = if writes { "INCR" } else { "GET" };
        let mut command = CommandBuf::new();
        let request = Request {
            class: if writes { Class::Write } else { Class::Read },
            obj_id: hash::object_id(name.as_bytes()),
            further: concord_wire::FurtherIds::NONE,
            flags: Flags(0),
            after: self.last_write[client],
            command: command.encode(1, [verb.as_bytes(), name.as_bytes()]),
        };
        let Ok(number) = machine.submit(now, request, out) else { return };
        let known = self.keys.entry(key).or_default();
        if writes {
            known.possible += 1;
            self.last_write[client] = Some(number);
        }
        let floor = known.seen;
        self.under_way.push(Call { client, number, key, writes, floor });
    }

    /// Ends the calls of a client process that dies: their outcomes are unknown.
    pub(super) fn abandon(&mut self, client: usize) {
        self.unknown += self.under_way(client) as u64;
        self.under_way.retain(|c| c.client != client);
        self.last_write[client] = None;
    }

    /// Takes the completed calls; returns a violation if an answer has no place in the order.
    pub(super) fn take_done(&mut self, client: usize, machine: &mut Client) -> Option<String> {
        while let Some(done) = machine.poll() {
            let is_it = |c: &Call| c.client == client && c.number == done.request;
            let Some(at) = self.under_way.iter().position(is_it) else { continue };
            let call = self.under_way.swap_remove(at);
            let known = self.keys.entry(call.key).or_default();
            match done.outcome {
                Outcome::Reply => {}
                Outcome::WriteUnknown => {
                    self.unknown += 1;
                    continue;
                }
                Outcome::WriteNotExecuted | Outcome::ReadTimeout | Outcome::Busy => {
                    known.possible -= i64::from(call.writes);
                    continue;
                }
                Outcome::Malformed | Outcome::TooLarge => {
                    return Some(format!("{call:?} was refused: {:?}", done.outcome));
                }
            }
            self.answered[client] += 1;
            let version = match parse_reply(&done.reply) {
                Some(Reply::Int(version)) if call.writes => version,
                Some(Reply::Nil) if !call.writes => 0,
                Some(Reply::Bulk(text)) if !call.writes => {
                    std::str::from_utf8(&text).ok().and_then(|t| t.parse().ok()).unwrap_or(-1)
                }
                other => return Some(format!("{call:?} got {other:?}")),
            };
            if let Some(why) = known.judge(&call, version) {
                let trace = done.trace;
                return Some(format!(
                    "key {} {}: {why} ({:?} at node {}, epoch {})",
                    call.key,
                    if call.writes { "incremented" } else { "read" },
                    trace.reason,
                    trace.node,
                    trace.epoch
                ));
            }
        }
        None
    }
}

impl Key {
    /// The reason why a call cannot return `version`, if there is one.
    fn judge(&mut self, call: &Call, version: i64) -> Option<String> {
        let least = call.floor + i64::from(call.writes);
        if version < least {
            return Some(format!("version {version}, and {} was seen before the call", call.floor));
        }
        if version > self.possible {
            return Some(format!("version {version} of at most {}", self.possible));
        }
        if call.writes && !self.made.insert(version) {
            return Some(format!("version {version} was made twice"));
        }
        self.seen = self.seen.max(version);
        None
    }
}
