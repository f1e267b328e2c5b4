//! A switch program: a write-through cache. The switch numbers writes, knows the newest one of each
//! key, and answers reads of keys whose newest write has been answered.

use concord_core::Now;
use concord_pisa::{Pass, RegisterArray, Report, Verdict};
use concord_switch::program::{
    Count, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
};
use concord_wire::control::Config;
use concord_wire::header::{COMMON_BYTES, Header, at, set_length};
use concord_wire::{Addr, Kind, WireError};

/// Keys are places in the registers: 0 to `KEYS` - 1.
pub const KEYS: usize = 4;
/// The kind of its packets. A shipped program has one of its own; this borrows that of CRAQ's
/// queries.
const KIND: Kind = Kind::Craq;
/// The own header, behind the common one: key, value, number, client's address, request.
const OWN_BYTES: usize = 4 + 4 + 8 + 6 + 4;
const BYTES: usize = COMMON_BYTES + OWN_BYTES;

/// What a packet wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Client to server.
    Read = 1,
    /// Client to server.
    Write,
    /// To the client, from the server or the switch.
    ReadReply,
    /// Server to client.
    WriteReply,
}

/// The header: all that there is in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hdr {
    /// What it wants.
    pub op: Op,
    /// The key.
    pub key: u32,
    /// The value; 0 is none.
    pub value: u32,
    /// The number of a write, which the switch gives: switch id << 32 | counter, so that the
    /// numbers of a new switch are above those of the one before.
    pub seq: u64,
    /// Who asks.
    pub client: Addr,
    /// The client's number of the request.
    pub request: u32,
}

impl Hdr {
    /// What came from the network is checked before it is believed.
    pub fn parse(packet: &[u8]) -> Result<Hdr, WireError> {
        let (common, packet) = Header::parse(packet)?;
        let own: &[u8; OWN_BYTES] =
            packet.get(COMMON_BYTES..).and_then(<[u8]>::first_chunk).ok_or(WireError::Truncated)?;
        let op = [Op::Read, Op::Write, Op::ReadReply, Op::WriteReply];
        let op = op.into_iter().find(|op| *op as u8 == common.op).ok_or(WireError::Op)?;
        let word = |from: usize| own[from..].iter().take(4).fold(0, |n, b| n << 8 | u32::from(*b));
        let key = word(0);
        if key as usize >= KEYS {
            // An index is cut to the array's width: it would be another key's.
            return Err(WireError::Field);
        }
        let seq = u64::from(word(8)) << 32 | u64::from(word(12));
        let client = Addr { ip: word(16), port: u16::from_be_bytes([own[20], own[21]]) };
        Ok(Hdr { op, key, value: word(4), seq, client, request: word(22) })
    }

    /// The packet.
    pub fn packet(&self) -> Vec<u8> {
        let mut packet = Vec::with_capacity(BYTES);
        Header::new(KIND, self.op as u8).begin(&mut packet);
        packet.resize(BYTES, 0);
        self.write(&mut packet);
        set_length(&mut packet);
        packet
    }

    /// Rewrites a packet of the same length in place.
    fn write(&self, packet: &mut [u8]) {
        packet[at::OP] = self.op as u8;
        let own = &mut packet[COMMON_BYTES..BYTES];
        own[0..4].copy_from_slice(&self.key.to_be_bytes());
        own[4..8].copy_from_slice(&self.value.to_be_bytes());
        own[8..16].copy_from_slice(&self.seq.to_be_bytes());
        own[16..20].copy_from_slice(&self.client.ip.to_be_bytes());
        own[20..22].copy_from_slice(&self.client.port.to_be_bytes());
        own[22..26].copy_from_slice(&self.request.to_be_bytes());
    }
}

/// Why a packet ends here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is no packet of this program.
    Malformed,
    /// Nobody has said yet where the server is.
    Unconfigured,
    /// There are no numbers left under this switch id.
    Exhausted,
}

/// The program: a table that the control plane fills, and the registers, in stage order. Each
/// packet touches each at most once.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The switch id in force, and where the server is.
    table: Option<(u32, Addr)>,
    /// The last number given out.
    seq: RegisterArray<u32>,
    /// The number of the newest write of each key; 0: none yet.
    newest: RegisterArray<u32>,
    /// The value that the server answered last, and the number of the write: number << 32 | value.
    cached: RegisterArray<u64>,
    /// Reads answered here.
    hits: u64,
    /// Packets that ended here.
    drops: u64,
}

impl Cache {
    /// Reads answered here.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// One packet through the pipeline: the header as it leaves, and where to.
    fn pass(&mut self, mut hdr: Hdr) -> Result<(Hdr, Addr), Reason> {
        let (switch_id, server) = self.table.ok_or(Reason::Unconfigured)?;
        let pass = &mut Pass::begin();
        let (seq, newest, cached) = (self.seq.port(), self.newest.port(), self.cached.port());
        match hdr.op {
            Op::Write => {
                let counter = seq.access(pass, 0, |cell| {
                    *cell = cell.saturating_add(1);
                    *cell
                });
                if counter == u32::MAX {
                    return Err(Reason::Exhausted);
                }
                // From here on what is cached of the key is of an older number.
                newest.access(pass, hdr.key, |cell| *cell = counter);
                hdr.seq = u64::from(switch_id) << 32 | u64::from(counter);
                Ok((hdr, server))
            }
            Op::WriteReply => {
                // Of a number that another switch gave, nothing is known here.
                let counter =
                    if hdr.seq >> 32 == u64::from(switch_id) { hdr.seq as u32 } else { 0 };
                let is_newest =
                    newest.access(pass, hdr.key, |cell| counter != 0 && *cell == counter);
                if is_newest {
                    let value = u64::from(counter) << 32 | u64::from(hdr.value);
                    cached.access(pass, hdr.key, |cell| *cell = value);
                }
                Ok((hdr, hdr.client))
            }
            Op::Read => {
                let number = newest.access(pass, hdr.key, |cell| *cell);
                let entry = cached.access(pass, hdr.key, |cell| *cell);
                if number == 0 || entry >> 32 != u64::from(number) {
                    return Ok((hdr, server));
                }
                self.hits += 1;
                (hdr.op, hdr.value) = (Op::ReadReply, entry as u32);
                Ok((hdr, hdr.client))
            }
            Op::ReadReply => Ok((hdr, hdr.client)),
        }
    }
}

impl Load for Cache {
    fn load(_: &Settings) -> Result<Cache, LoadError> {
        Ok(Cache {
            table: None,
            seq: RegisterArray::new("seq", 0, 1),
            newest: RegisterArray::new("newest", 1, KEYS),
            cached: RegisterArray::new("cached", 2, KEYS),
            hits: 0,
            drops: 0,
        })
    }
}

impl SwitchProgram for Cache {
    type Reason = Reason;

    fn takes(&self, kind: Kind) -> Takes {
        if kind == KIND { Takes::Data } else { Takes::Nothing }
    }

    /// The server is the group's first member. A new switch id begins with empty registers.
    fn install(&mut self, _: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        let server = config.members.first().ok_or(Refused)?;
        if self.table.is_some_and(|(switch_id, _)| switch_id != config.switch_id) {
            self.uninstall();
        }
        self.table = Some((config.switch_id, server.addr));
        Ok(None)
    }

    fn uninstall(&mut self) {
        self.table = None;
        self.seq.reset();
        self.newest.reset();
        self.cached.reset();
    }

    fn process(&mut self, _: &Ingress<'_>, packet: &mut [u8]) -> Verdict<Reason> {
        let passed = Hdr::parse(packet).map_err(|_| Reason::Malformed).and_then(|h| self.pass(h));
        match passed {
            Ok((hdr, to)) => {
                hdr.write(packet);
                Verdict::Forward { to, size_bytes: BYTES }
            }
            Err(reason) => {
                self.drops += 1;
                Verdict::Drop(reason)
            }
        }
    }

    fn counts(&self) -> Vec<Count> {
        vec![
            ("hits", "Reads answered by the switch.", self.hits),
            ("drops", "Packets that ended at the switch.", self.drops),
        ]
    }

    fn describe(&self) -> Report {
        Report::new("cache", vec![self.seq.report(), self.newest.report(), self.cached.report()])
    }
}

concord_switch::hosted! {
    /// What a switch of this tutorial has to choose from. A shipped program has a name of its own
    /// in `concord_wire::control::Program`; this one borrows CRAQ's.
    #[derive(Clone, Debug)]
    pub enum Own {
        /// The cache.
        Craq(Cache),
    }
}
