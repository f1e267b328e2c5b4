//! One client's connection: its settings, its input, and its commands in order.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::Class;
use concord_core::{Instant, ObjectId, RequestNumber};
use concord_engine::resp;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// A connection, as the driver numbers it; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// How the parts of a command over several keys become one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    /// DEL, EXISTS, ...: the sum.
    Sum,
    /// MGET: an array.
    Array,
    /// MSET: OK.
    AllOk,
}

/// One command's place in the order of replies.
#[derive(Debug)]
pub(crate) enum Slot {
    /// Its reply has not come.
    Waiting,
    /// Its reply is wanted with the path that it took.
    Explaining,
    /// Its reply, once everything before it was written.
    Ready(Vec<u8>),
    /// A command over several keys: replies so far.
    Parts(Box<Parts>),
}

#[derive(Debug)]
pub(crate) struct Parts {
    pub combine: Combine,
    pub replies: Vec<Option<Vec<u8>>>,
    pub missing: usize,
}

impl Parts {
    /// The reply of the whole; the first error if there is one.
    pub(crate) fn reply(&self, resp3: bool) -> Vec<u8> {
        let replies = || self.replies.iter().flatten();
        let mut out = Vec::new();
        let error = replies().find(|r| matches!(r.first(), Some(b'-' | b'!')));
        match (self.combine, error) {
            (Combine::Array, _) => {
                resp::array(&mut out, self.replies.len());
                for reply in replies() {
                    // MGET answers nil for what is no string.
                    match reply.first() {
                        Some(b'-') if reply.starts_with(b"-WRONGTYPE") => {
                            resp::null(&mut out, resp3);
                        }
                        _ => out.extend_from_slice(reply),
                    }
                }
            }
            (_, Some(error)) => out.extend_from_slice(error),
            (Combine::Sum, None) => {
                let number = |r: &Vec<u8>| {
                    let text = r.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
                    resp::number(text)
                };
                resp::integer(&mut out, replies().filter_map(number).sum());
            }
            (Combine::AllOk, None) => resp::simple(&mut out, "OK"),
        }
        out
    }
}

/// A part of a command over several keys that could not be sent yet.
#[derive(Debug)]
pub(crate) struct Unsent {
    pub slot: u64,
    pub part: u32,
    pub class: Class,
    pub obj_id: ObjectId,
    pub command: Vec<u8>,
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    pub commands: Vec<Vec<u8>>,
    pub key: Option<Vec<u8>>,
    /// A command was refused: EXEC aborts.
    pub failed: bool,
    /// Commands of different keys: EXEC says so.
    pub several: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub peer: String,
    pub name: Vec<u8>,
    pub library: (Vec<u8>, Vec<u8>),
    pub since: Instant,
    pub active_at: Instant,
    pub resp3: bool,
    pub authed: bool,
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    /// Commands whose replies are not written yet; the first has number `first_slot`.
    pub slots: VecDeque<Slot>,
    pub first_slot: u64,
    pub last_write: Option<RequestNumber>,
    /// Unanswered reads and writes by object (trap T22).
    pub busy: HashMap<u32, (u32, u32), FxBuildHasher>,
    /// Unanswered reads and writes, and commands over all keys among them.
    pub unanswered: (u32, u32, u32),
    pub unsent: VecDeque<Unsent>,
    pub multi: Option<Multi>,
    /// The next command must wait for replies of earlier ones, or for room.
    pub blocked: bool,
    /// Close once the output is written.
    pub closing: bool,
    pub last_command: String,
    pub commands: u64,
}

impl Connection {
    pub(crate) fn new(peer: &str, now: Instant, authed: bool) -> Connection {
        Connection {
            peer: peer.into(),
            name: Vec::new(),
            library: (Vec::new(), Vec::new()),
            since: now,
            active_at: now,
            resp3: false,
            authed,
            input: Vec::new(),
            output: Vec::new(),
            slots: VecDeque::new(),
            first_slot: 0,
            last_write: None,
            busy: HashMap::default(),
            unanswered: (0, 0, 0),
            unsent: VecDeque::new(),
            multi: None,
            blocked: false,
            closing: false,
            last_command: String::new(),
            commands: 0,
        }
    }

    /// Whether a request must wait (trap T22): a read for the earlier writes of its object, a write
    /// for the earlier reads; a command over all keys for everything, and everything for it.
    pub(crate) fn conflicts(&self, class: Class, obj_id: Option<ObjectId>) -> bool {
        let (reads, writes, wildcards) = self.unanswered;
        let Some(obj_id) = obj_id else { return reads + writes > 0 };
        if wildcards > 0 {
            return true;
        }
        let against = match class {
            Class::Read => writes,
            Class::Write => reads,
        };
        if against == 0 {
            return false;
        }
        let (reads, writes) = self.busy.get(&obj_id.0).copied().unwrap_or_default();
        match class {
            Class::Read => writes > 0,
            Class::Write => reads > 0,
        }
    }

    /// A request was sent.
    pub(crate) fn note_sent(&mut self, class: Class, obj_id: Option<ObjectId>) {
        let counts = match obj_id {
            Some(obj_id) => self.busy.entry(obj_id.0).or_default(),
            None => {
                self.unanswered.2 += 1;
                &mut (0, 0)
            }
        };
        match class {
            Class::Read => {
                counts.0 += 1;
                self.unanswered.0 += 1;
            }
            Class::Write => {
                counts.1 += 1;
                self.unanswered.1 += 1;
            }
        }
    }

    /// A request ended.
    pub(crate) fn note_done(&mut self, class: Class, obj_id: Option<ObjectId>) {
        match class {
            Class::Read => self.unanswered.0 -= 1,
            Class::Write => self.unanswered.1 -= 1,
        }
        let Some(obj_id) = obj_id else {
            self.unanswered.2 -= 1;
            return;
        };
        if let Some(counts) = self.busy.get_mut(&obj_id.0) {
            match class {
                Class::Read => counts.0 -= 1,
                Class::Write => counts.1 -= 1,
            }
            if *counts == (0, 0) {
                self.busy.remove(&obj_id.0);
            }
        }
    }

    /// Takes the next place in the order of replies.
    pub(crate) fn push_slot(&mut self, slot: Slot) -> u64 {
        self.slots.push_back(slot);
        self.first_slot + self.slots.len() as u64 - 1
    }

    pub(crate) fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        self.slots.get_mut(number.checked_sub(self.first_slot)? as usize)
    }

    /// Answers a command that needs nothing of the rack, in its turn.
    pub(crate) fn answer(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.slots.is_empty() {
            write(&mut self.output);
            self.first_slot += 1;
        } else {
            let mut reply = Vec::new();
            write(&mut reply);
            self.slots.push_back(Slot::Ready(reply));
        }
    }

    /// Answers with an error.
    pub(crate) fn error(&mut self, text: &[u8]) {
        self.answer(|out| resp::error(out, text));
    }
}
