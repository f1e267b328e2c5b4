//! A protocol: one server and its clients, over a network that loses, duplicates and reorders. A
//! write is executed once, and in the order of the switch's numbers.

use std::collections::BTreeMap;

use concord_wire::Addr;

use crate::switch::{Hdr, KEYS, Op};

/// The server.
pub struct Server {
    /// Of each key: its value, and the number of the newest write that was seen.
    keys: [(u32, u64); KEYS],
    /// Of each client: the last request that was executed. Clients have one request at a time.
    executed: BTreeMap<Addr, u32>,
    /// Whether numbers that come late are dropped: the check that the test removes.
    drops_late: bool,
    /// Writes that were dropped because a newer one was seen.
    pub late: u64,
}

impl Server {
    /// An empty one.
    pub fn new(drops_late: bool) -> Server {
        Server { keys: [(0, 0); KEYS], executed: BTreeMap::new(), drops_late, late: 0 }
    }

    /// One packet; its answer, if there is one.
    pub fn handle(&mut self, hdr: Hdr) -> Option<Hdr> {
        let (value, newest) = &mut self.keys[hdr.key as usize % KEYS];
        match hdr.op {
            Op::Read => Some(Hdr { op: Op::ReadReply, value: *value, ..hdr }),
            Op::Write => {
                if hdr.seq <= *newest && self.drops_late {
                    // The client asks again, and gets a newer number.
                    self.late += 1;
                    return None;
                }
                *newest = (*newest).max(hdr.seq);
                let executed = self.executed.entry(hdr.client).or_default();
                if hdr.request > *executed {
                    *executed = hdr.request;
                    *value = hdr.value;
                }
                // The answer to a retry says what the key holds by now: it may go into the cache.
                Some(Hdr { op: Op::WriteReply, value: *value, ..hdr })
            }
            Op::ReadReply | Op::WriteReply => None,
        }
    }
}

/// A client with one request at a time, which it sends again until it is answered.
pub struct Client {
    addr: Addr,
    request: u32,
    waits_for: Option<Hdr>,
}

impl Client {
    /// The client that hears at that address.
    pub fn new(addr: Addr) -> Client {
        Client { addr, request: 0, waits_for: None }
    }

    /// A new request: a write of `value`, or a read.
    pub fn begin(&mut self, key: u32, value: Option<u32>) -> Hdr {
        self.request += 1;
        let op = if value.is_some() { Op::Write } else { Op::Read };
        let (value, client) = (value.unwrap_or(0), self.addr);
        let hdr = Hdr { op, key, value, seq: 0, client, request: self.request };
        self.waits_for = Some(hdr);
        hdr
    }

    /// What is unanswered.
    pub fn waits_for(&self) -> Option<Hdr> {
        self.waits_for
    }

    /// What is to be sent again if the request of that number is still unanswered.
    pub fn timeout(&self, request: u32) -> Option<Hdr> {
        self.waits_for.filter(|hdr| hdr.request == request)
    }

    /// A reply; what it answers, if that was still waited for.
    pub fn handle(&mut self, hdr: Hdr) -> Option<Hdr> {
        let asked = self.waits_for.filter(|asked| asked.request == hdr.request)?;
        self.waits_for = None;
        Some(Hdr { value: if asked.op == Op::Read { hdr.value } else { asked.value }, ..asked })
    }
}
