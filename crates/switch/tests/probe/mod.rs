//! A program that does what its packets ask for, so that tests see every verdict executed. Its
//! packets are of a kind that no shipped program takes: the common header, and a body.

use concord_core::machine::Deadline;
use concord_core::{Instant, MS, Now};
use concord_pisa::{Copies, Metadata, Pass, PortSet, RegisterArray, Report, Verdict};
use concord_switch::program::{
    Copied, Count, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
    Wants,
};
use concord_wire::control::Config;
use concord_wire::header::{COMMON_BYTES, Header, set_length};
use concord_wire::{Addr, GroupId, Kind, WireError};

/// The maximum number of recirculations of its packets, as it declares.
pub const ROUNDS_MAX: u8 = 4;
/// The only multicast group.
const ALL: u16 = 7;
/// The offset in the body at which each pass writes the number of passes before it.
const FOUND: usize = COMMON_BYTES + 1;
const BODY_BYTES: usize = 1 + 8 + 1;

/// The request of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Drop,
    Forward,
    Reply,
    Group,
    /// To add the sender's port to the bitmap.
    Remember,
    Ports,
    /// To be recirculated that many times, and then answered.
    Round(u8),
}

impl Ask {
    fn op(self) -> u8 {
        match self {
            Ask::Drop => 1,
            Ask::Forward => 2,
            Ask::Reply => 3,
            Ask::Group => 4,
            Ask::Remember => 5,
            Ask::Ports => 6,
            Ask::Round(_) => 7,
        }
    }
}

/// A packet for the pipeline.
pub fn ask(group: GroupId, ask: Ask) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header { group, ..Header::new(Kind::Craq, ask.op()) }.begin(&mut bytes);
    let rounds = if let Ask::Round(rounds) = ask { rounds } else { 0 };
    bytes.push(rounds);
    bytes.resize(COMMON_BYTES + BODY_BYTES, 0);
    set_length(&mut bytes);
    bytes
}

/// The passes that each pass of an answered packet found before it.
pub fn metadata_of(bytes: &[u8]) -> Vec<u8> {
    bytes[FOUND..FOUND + 8].iter().copied().filter(|byte| *byte != 0).collect()
}

/// A message to the control plane: inject a packet now, and one every `every_ms`.
pub fn message(group: GroupId, every_ms: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header { group, ..Header::new(Kind::NoPaxos, 1) }.begin(&mut bytes);
    bytes.push(every_ms);
    set_length(&mut bytes);
    bytes
}

/// The reason for dropping a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Requested,
    Done,
    Malformed(WireError),
    Unconfigured,
}

#[derive(Clone, Debug)]
pub struct Probe {
    members: Vec<Addr>,
    group: GroupId,
    /// The number of passes so far.
    passes: RegisterArray<u32>,
    /// The ports of the senders that asked to be remembered.
    low: RegisterArray<u64>,
    drops: u64,
    looks: u64,
    beat_ns: u64,
    beat_at: Instant,
}

impl Probe {
    pub fn passes(&self) -> u32 {
        self.passes.peek(0)
    }

    pub fn looks(&self) -> u64 {
        self.looks
    }

    fn beat(&self) -> Injection {
        Injection::new(&ask(self.group, Ask::Forward))
    }
}

impl Load for Probe {
    fn load(_: &Settings) -> Result<Probe, LoadError> {
        Ok(Probe {
            members: Vec::new(),
            group: GroupId(0),
            passes: RegisterArray::new("passes", 0, 1),
            low: RegisterArray::new("ports", 1, 1),
            drops: 0,
            looks: 0,
            beat_ns: 0,
            beat_at: Instant::NEVER,
        })
    }
}

impl SwitchProgram for Probe {
    type Reason = Reason;

    fn takes(&self, kind: Kind) -> Takes {
        match kind {
            Kind::Craq => Takes::Data,
            Kind::NoPaxos => Takes::Control,
            _ => Takes::Nothing,
        }
    }

    fn install(&mut self, _: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        if config.members.is_empty() {
            return Err(Refused);
        }
        self.group = config.group;
        self.members = config.members.iter().map(|member| member.addr).collect();
        Ok(None)
    }

    fn uninstall(&mut self) {
        self.members.clear();
        self.passes.reset();
        self.low.reset();
    }

    fn process(&mut self, ingress: &Ingress<'_>, packet: &mut [u8]) -> Verdict<Reason> {
        let drop = |drops: &mut u64, reason| {
            *drops += 1;
            Verdict::Drop(reason)
        };
        let (hdr, size_bytes) = match Header::parse(packet) {
            Ok((hdr, packet)) => (hdr, packet.len()),
            Err(error) => return drop(&mut self.drops, Reason::Malformed(error)),
        };
        let Some(first) = self.members.first().copied() else {
            return drop(&mut self.drops, Reason::Unconfigured);
        };
        let mut pass = Pass::begin();
        let (passes, ports) = (self.passes.port(), self.low.port());
        let found = passes.access(&mut pass, 0, |cell| {
            *cell += 1;
            *cell
        });
        match hdr.op {
            2 => Verdict::Forward { to: first, size_bytes },
            3 => Verdict::Reply { size_bytes },
            4 => Verdict::Multicast { to: Copies::Group(ALL), size_bytes },
            5 => {
                let set = PortSet::default().with(ingress.port()).0 as u64;
                ports.access(&mut pass, 0, |cell| *cell |= set);
                drop(&mut self.drops, Reason::Done)
            }
            6 => {
                let set = ports.access(&mut pass, 0, |cell| *cell);
                // Port 0 is the uplink, which is no particular sender's.
                let set = PortSet(u128::from(set & !1));
                Verdict::Multicast { to: Copies::Ports(set), size_bytes }
            }
            7 => {
                let Metadata([mut seen, _]) = ingress.metadata;
                seen |= u64::from(found) << (8 * ingress.passes.min(7));
                if ingress.passes < packet[COMMON_BYTES] {
                    return Verdict::Recirculate { metadata: Metadata([seen, 0]), size_bytes };
                }
                packet[FOUND..FOUND + 8].copy_from_slice(&seen.to_le_bytes());
                Verdict::Reply { size_bytes }
            }
            _ => drop(&mut self.drops, Reason::Requested),
        }
    }

    fn member(&self, group: u16, index: usize) -> Option<Addr> {
        self.members.get(index).copied().filter(|_| group == ALL)
    }

    fn uses_ports(&self) -> bool {
        true
    }

    fn rewrites_copies(&self) -> bool {
        true
    }

    fn egress(&mut self, copy: &Copied, packet: &mut [u8]) {
        if let Some(last) = packet.last_mut() {
            *last = copy.index as u8;
        }
    }

    fn control(&mut self, now: Now, packet: &[u8]) -> Result<Option<Injection>, WireError> {
        let (_, packet) = Header::parse(packet)?;
        let every_ms = packet.get(COMMON_BYTES).ok_or(WireError::Truncated)?;
        self.beat_ns = u64::from(*every_ms) * MS;
        self.beat_at = Instant(now.instant.0 / MS * MS).after(self.beat_ns);
        Ok(Some(self.beat()))
    }

    fn look(&mut self, _: Instant) -> Wants {
        self.looks += 1;
        Wants::Nothing
    }

    fn upkeep(&mut self, now: Instant) -> Option<Injection> {
        if now < self.beat_at {
            return None;
        }
        self.beat_at = self.beat_at.after(self.beat_ns);
        Some(self.beat())
    }

    fn deadline(&self) -> Deadline {
        Deadline { at: self.beat_at, reason: "the probe's beat" }
    }

    fn counts(&self) -> Vec<Count> {
        vec![("drops", "Packets dropped.", self.drops)]
    }

    fn describe(&self) -> Report {
        let arrays = vec![self.passes.report(), self.low.report()];
        let (recirculations_max, multicast_groups) = (u32::from(ROUNDS_MAX), 1);
        Report { recirculations_max, multicast_groups, ..Report::new("craq", arrays) }
    }
}
