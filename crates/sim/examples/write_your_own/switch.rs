//! A switch program: a write-through cache. The switch numbers writes, knows the newest one of each
//! key, and answers reads of keys whose newest write has been answered.

use concord_pisa::{ArrayReport, Pass, RegisterArray};

/// Keys are places in the registers: 0 to `KEYS` - 1.
pub const KEYS: usize = 4;

/// What a packet wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Client to server.
    Read,
    /// Client to server.
    Write,
    /// To the client, from the server or the switch.
    ReadReply,
    /// Server to client.
    WriteReply,
}

/// The header: all that there is in a packet.
#[derive(Clone, Copy, Debug)]
pub struct Hdr {
    /// What it wants.
    pub op: Op,
    /// The key.
    pub key: u32,
    /// The value; 0 is none.
    pub value: u32,
    /// The number of a write, which the switch gives.
    pub seq: u32,
    /// Who asks.
    pub client: usize,
    /// The client's number of the request.
    pub request: u32,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The server.
    Server,
    /// The client of the header.
    Client,
}

/// The registers, in stage order. Each packet touches each at most once.
pub struct Cache {
    /// The last number given out.
    seq: RegisterArray<u32>,
    /// The number of the newest write of each key; 0: none yet.
    newest: RegisterArray<u32>,
    /// The value that the server answered last, and the number of the write: number << 32 | value.
    cached: RegisterArray<u64>,
    /// Reads answered here.
    pub hits: u64,
}

impl Cache {
    /// Empty registers.
    pub fn new() -> Cache {
        Cache {
            seq: RegisterArray::new("seq", 0, 1),
            newest: RegisterArray::new("newest", 1, KEYS),
            cached: RegisterArray::new("cached", 2, KEYS),
            hits: 0,
        }
    }

    /// One packet through the pipeline, rewritten in place.
    pub fn process(&mut self, hdr: &mut Hdr) -> To {
        let pass = &mut Pass::begin();
        let (seq, newest, cached) = (self.seq.port(), self.newest.port(), self.cached.port());
        match hdr.op {
            Op::Write => {
                hdr.seq = seq.access(pass, 0, |cell| {
                    *cell += 1;
                    *cell
                });
                // From here on what is cached of the key is of an older number.
                newest.access(pass, hdr.key, |cell| *cell = hdr.seq);
                To::Server
            }
            Op::WriteReply => {
                let is_newest = newest.access(pass, hdr.key, |cell| *cell == hdr.seq);
                if is_newest {
                    let value = u64::from(hdr.seq) << 32 | u64::from(hdr.value);
                    cached.access(pass, hdr.key, |cell| *cell = value);
                }
                To::Client
            }
            Op::Read => {
                let number = newest.access(pass, hdr.key, |cell| *cell);
                let entry = cached.access(pass, hdr.key, |cell| *cell);
                if number == 0 || entry >> 32 != u64::from(number) {
                    return To::Server;
                }
                self.hits += 1;
                (hdr.op, hdr.value) = (Op::ReadReply, entry as u32);
                To::Client
            }
            Op::ReadReply => To::Client,
        }
    }

    /// What it costs on an ASIC.
    pub fn report(&self) -> Vec<ArrayReport> {
        vec![self.seq.report(), self.newest.report(), self.cached.report()]
    }
}
