//! Concordia's program: the switch serialises the coherence requests of a shared memory with locks,
//! checks them, and sends them to the nodes that they concern (docs/internals/concordia.md).
//!
//! The coherence state changes at lock and unlock only. Three things make a lost or late copy of a
//! packet harmless: a requester's lane has the number of its newest event, and whether that event
//! is open; a lock names the event, or the nodes, that hold it; and a block has a version, which
//! each event with the write lock raises, and which requests and invalidations carry.
//!
//! Numbered steps: **1** check the epoch, **2** access the registers (`stages`), **3** choose the
//! destination (table 3).

mod layout;
pub mod printed;
mod stages;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::{Epoch, Now};
use concord_pisa::hash::{Crc32, POLYNOMIALS};
use concord_pisa::{Copies, Metadata, Pass, PortSet, Report, Verdict};
use concord_wire::concordia::{
    Copyset, GlobalStatus, HEAD_BYTES, NODES_MAX, NUMBER_MAX, Op, Outcome, Repr, Tag, home_place,
};
use concord_wire::control::{Config, GroupKind};
use concord_wire::{Addr, GroupId, Kind, WireError};

use crate::program::{
    Count, Gauge, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
};
use stages::{Ask, NO_WAY, Phv, Stages, Standing};

pub use layout::{BlocksError, BlocksLayout, WAY_BLOCKS_MAX, WAYS_MAX};

/// The hash unit that chooses the data provider from the block and the event, so that each copy of
/// a request chooses the same one while the copyset stays the same (trap C7).
static PROVIDERS: Crc32 = Crc32::new(POLYNOMIALS[0]);

/// The reason why a packet ends at the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The packet is malformed.
    Malformed(WireError),
    /// The switch serves no memory.
    Unconfigured,
    /// The packet is of another epoch, whose coherence state is gone.
    OtherEpoch,
    /// The packet's sender is not a member, or its block is in a range that no member has.
    NoSuchNode,
    /// The packet is stale: its requester, or its home, has begun a later event.
    Over,
    /// The packet unlocks another version than the block has.
    OtherVersion,
    /// The packet is not for a switch.
    Misdirected,
}

concord_core::counters! {
    /// Counts of coherence requests by their fate.
    pub struct ConcordiaCounters {
        /// Coherence requests that hold the lock of their block, repeated ones included.
        requests_locked,
        /// Coherence requests refused because their block is locked; nodes try them again. A fast
        /// rise means that many nodes contend for few blocks.
        requests_busy,
        /// Coherence requests refused because they are not valid in the state of their block (table
        /// 2).
        requests_invalid,
        /// Requests and unlocks passed on to the homes that own their blocks.
        passed_to_homes,
        /// Invalidations sent to nodes.
        invalidations,
        /// Unlocks executed.
        unlocks,
        /// Unlocks that had been executed before: their answer was lost or late.
        unlocks_repeated,
        /// Blocks that homes moved to the switch.
        blocks_added,
        /// Blocks that homes offered, and the switch had no room for. A steady rise means that the
        /// hot blocks do not fit into the switch's tables.
        blocks_refused,
        /// Blocks that homes took back from the switch.
        blocks_removed,
        /// Packets dropped because they belong to another epoch.
        dropped_other_epoch,
        /// Packets dropped because their sender is no member.
        dropped_no_node,
        /// Packets dropped because the event, or the home's move, that they belong to is over.
        dropped_over,
        /// Unlocks dropped because the block has another version by now.
        dropped_other_version,
        /// Packets dropped because their operation is not for a switch.
        dropped_misdirected,
        /// Packets dropped because the switch has no configuration of a memory yet.
        dropped_unconfigured,
        /// Packets dropped because they are malformed.
        malformed,
    }
}

/// The members, by place: tables that the control plane fills.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Nodes {
    group: GroupId,
    epoch: Epoch,
    addrs: Vec<Addr>,
    /// The address of each range's home, by range.
    homes: Vec<Addr>,
}

impl Nodes {
    fn addr(&self, place: u8) -> Option<Addr> {
        self.addrs.get(usize::from(place)).copied()
    }

    /// The home of a block: the node whose range it is in.
    fn home(&self, tag: Tag) -> Option<Addr> {
        self.homes.get(usize::from(tag.range())).copied()
    }
}

/// Concordia's switch program.
#[derive(Clone, Debug)]
pub struct Concordia {
    nodes: Option<Nodes>,
    stages: Stages,
    counters: ConcordiaCounters,
}

impl Load for Concordia {
    fn load(settings: &Settings) -> Result<Concordia, LoadError> {
        let layout = settings.sections.blocks;
        layout.check().map_err(LoadError::Blocks)?;
        Ok(Concordia {
            nodes: None,
            stages: Stages::new(&layout, settings.guards),
            counters: ConcordiaCounters::default(),
        })
    }
}

/// The output of a pass.
enum Leaves {
    To(Addr, Repr),
    /// To the members at these places.
    Copies(Copyset, Repr),
    /// Recirculated, to insert the block in that way.
    Round(u8, Repr),
}

impl Concordia {
    fn drop(&mut self, reason: DropReason) -> Verdict<DropReason> {
        let c = &mut self.counters;
        match reason {
            DropReason::Malformed(_) => c.malformed += 1,
            DropReason::Unconfigured => c.dropped_unconfigured += 1,
            DropReason::OtherEpoch => c.dropped_other_epoch += 1,
            DropReason::NoSuchNode => c.dropped_no_node += 1,
            DropReason::Over => c.dropped_over += 1,
            DropReason::OtherVersion => c.dropped_other_version += 1,
            DropReason::Misdirected => c.dropped_misdirected += 1,
        }
        Verdict::Drop(reason)
    }

    /// Steps 1 and 2.
    fn dispatch(
        &mut self,
        nodes: &Nodes,
        ingress: &Ingress<'_>,
        packet: Repr,
    ) -> Result<Leaves, DropReason> {
        let round = (ingress.passes > 0).then_some(ingress.metadata.0);
        // Recirculated packets outlive the registers, so they carry the epoch in which they left.
        let left_in = round.map_or(packet.epoch.0.into(), |metadata| metadata[1]);
        if u64::from(nodes.epoch.0) != left_in || packet.epoch != nodes.epoch {
            return Err(DropReason::OtherEpoch);
        }
        let requester = nodes.addr(packet.place).ok_or(DropReason::NoSuchNode)?;
        let home = nodes.home(packet.tag).ok_or(DropReason::NoSuchNode)?;
        let ask = match (packet.op, round) {
            (op, None) if op.is_request() => Ask::Request(op),
            (Op::Unlock, None) => Ask::Unlock(packet.is_exclusive),
            (Op::Add, None) => Ask::Look,
            (Op::Add, Some([way, _])) => Ask::Insert(way as u8),
            (Op::Remove, None) => Ask::Take,
            (Op::Forget, None) => Ask::Forget,
            _ => return Err(DropReason::Misdirected),
        };
        let mut phv = phv(ask, &packet);
        self.stages.run(&mut phv);
        let found =
            Repr { status: phv.status, version: phv.version, copyset: phv.copyset, ..packet };
        let packet = Repr { is_locked: phv.has_lock, ..found };
        match ask {
            Ask::Request(_) | Ask::Unlock(_) if phv.standing == Standing::Over => {
                Err(DropReason::Over)
            }
            Ask::Request(_) if phv.way.is_none() => {
                self.counters.passed_to_homes += 1;
                let is_first = phv.standing == Standing::First;
                Ok(Leaves::To(home, Repr { is_first, version: phv.moves, ..packet }))
            }
            Ask::Unlock(_) if phv.way.is_none() => {
                self.counters.passed_to_homes += 1;
                Ok(Leaves::To(home, packet))
            }
            Ask::Request(op) => Ok(self.on_request(op, requester, home, &phv, packet)),
            Ask::Unlock(_) if !phv.is_valid => Err(DropReason::OtherVersion),
            Ask::Unlock(_) => {
                let is_first = phv.standing == Standing::First;
                self.counters.unlocks += u64::from(is_first);
                self.counters.unlocks_repeated += u64::from(!is_first);
                Ok(Leaves::To(requester, Repr { op: Op::Unlocked, ..packet }))
            }
            _ if phv.moving == Standing::Over => Err(DropReason::Over),
            Ask::Look | Ask::Insert(_) => Ok(self.on_add(ask, home, &phv, packet)),
            Ask::Take => {
                let outcome = match (phv.way, phv.has_lock) {
                    (Some(_), true) => Outcome::Done,
                    (Some(_), false) => Outcome::Busy,
                    (None, _) => Outcome::Invalid,
                };
                Ok(Leaves::To(home, Repr { op: Op::Removed, outcome, ..packet }))
            }
            Ask::Forget => {
                let is_first = phv.way.is_some() && phv.moving == Standing::First;
                self.counters.blocks_removed += u64::from(is_first);
                Ok(Leaves::To(home, Repr { op: Op::Forgotten, ..packet }))
            }
        }
    }

    /// Step 3, after lock and check: table 3.
    fn on_request(
        &mut self,
        op: Op,
        requester: Addr,
        home: Addr,
        phv: &Phv,
        packet: Repr,
    ) -> Leaves {
        let answer = |outcome| Leaves::To(requester, Repr { op: Op::Ack, outcome, ..packet });
        if !phv.has_lock {
            let is_invalid = !phv.is_valid;
            self.counters.requests_invalid += u64::from(is_invalid);
            self.counters.requests_busy += u64::from(!is_invalid);
            return answer(if is_invalid { Outcome::Invalid } else { Outcome::Busy });
        }
        self.counters.requests_locked += 1;
        let others = phv.copyset.without(Copyset::of(packet.place));
        let low = |word: u64| word as u32 ^ (word >> 32) as u32;
        let hash = PROVIDERS.of([low(packet.tag.0), u32::from(packet.place), low(packet.number)]);
        let provider = if op == Op::WriteShared { None } else { others.choose(hash) };
        let packet = Repr { provider, ..packet };
        match (op, provider) {
            (Op::EvictShared | Op::EvictModified, _) => answer(Outcome::Done),
            (Op::WriteShared, _) if others.is_empty() => answer(Outcome::Done),
            (Op::ReadMiss | Op::WriteMiss, None) => Leaves::To(home, packet),
            (Op::ReadMiss, Some(place)) => Leaves::Copies(Copyset::of(place), packet),
            _ => Leaves::Copies(others, packet),
        }
    }

    /// ADD-TO-SWITCH: a block that the switch already owns stays as it is (trap C5). The second
    /// pass ends the move, whether there was room or not.
    fn on_add(&mut self, ask: Ask, home: Addr, phv: &Phv, packet: Repr) -> Leaves {
        if phv.way.is_some() {
            self.counters.blocks_added += u64::from(phv.inserted);
            return Leaves::To(home, Repr { op: Op::Added, outcome: Outcome::Done, ..packet });
        }
        if ask == Ask::Look && phv.moving == Standing::First {
            return Leaves::Round(phv.free.unwrap_or(NO_WAY), packet);
        }
        self.counters.blocks_refused += 1;
        let in_the_way = phv.in_the_way.unwrap_or(packet.tag);
        let version = in_the_way.0 & NUMBER_MAX;
        let provider = Some(in_the_way.range() as u8);
        let refused = Repr { op: Op::Added, outcome: Outcome::Full, ..packet };
        Leaves::To(home, Repr { version, provider, ..refused })
    }

    /// Rewrites the packet in place, and returns the verdict.
    fn leave(
        &mut self,
        nodes: &Nodes,
        ingress: &Ingress<'_>,
        leaves: Leaves,
        bytes: &mut [u8],
    ) -> Verdict<DropReason> {
        let mut write = |packet: &Repr| packet.write(bytes).unwrap_or(0);
        match leaves {
            Leaves::To(to, packet) => Verdict::Forward { to, size_bytes: write(&packet) },
            Leaves::Copies(places, packet) => {
                // A table with a row for each place.
                let ports = places.filter_map(|place| nodes.addr(place));
                let ports = ports.map(|addr| ingress.ports.port_of(addr));
                let ports = ports.fold(PortSet::default(), PortSet::with);
                self.counters.invalidations += u64::from(ports.count());
                Verdict::Multicast { to: Copies::Ports(ports), size_bytes: write(&packet) }
            }
            Leaves::Round(way, packet) => {
                let metadata = Metadata([way.into(), nodes.epoch.0.into()]);
                Verdict::Recirculate { metadata, size_bytes: write(&packet) }
            }
        }
    }

    /// A block's status, version and copyset, and whether it is locked, as the control plane reads
    /// them; `None` if its home owns it.
    #[must_use]
    pub fn peek(&self, tag: Tag) -> Option<(GlobalStatus, u64, Copyset, bool)> {
        let (status, version, copyset, lock) = self.stages.peek(tag)?;
        Some((status, version, copyset, lock.holders() != 0))
    }

    /// Whether a writer of the block was refused since the last writer had the lock: readers wait
    /// for the next writer.
    #[must_use]
    pub fn is_wanted(&self, tag: Tag) -> bool {
        self.stages.peek(tag).is_some_and(|(.., lock)| lock.is_wanted())
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &ConcordiaCounters {
        &self.counters
    }

    /// Hashes what distinguishes its states: registers and tables.
    pub fn hash_registers(&self, hasher: &mut impl Hasher) {
        for cell in self.stages.cells() {
            cell.hash(hasher);
        }
        self.nodes.as_ref().map(|nodes| nodes.epoch.0).hash(hasher);
    }
}

fn phv(ask: Ask, packet: &Repr) -> Phv {
    Phv {
        pass: Pass::begin(),
        ask,
        tag: packet.tag,
        place: packet.place,
        lane: packet.lane,
        number: packet.number,
        status: packet.status,
        version: packet.version,
        copyset: packet.copyset,
        way: None,
        free: None,
        inserted: false,
        in_the_way: None,
        moving: Standing::First,
        moves: 0,
        standing: Standing::First,
        is_valid: true,
        has_lock: false,
    }
}

impl SwitchProgram for Concordia {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        if kind == Kind::Concordia { Takes::Data } else { Takes::Nothing }
    }

    /// All coherence state ends with its epoch: another epoch begins with empty registers.
    fn install(&mut self, _now: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        let is_older = self.nodes.as_ref().is_some_and(|own| config.epoch < own.epoch.0);
        let is_size = (1..=NODES_MAX).contains(&config.members.len());
        if config.kind != GroupKind::Memory || !is_size || is_older {
            return Err(Refused);
        }
        let addrs: Vec<Addr> = config.members.iter().map(|member| member.addr).collect();
        let members: Vec<u16> = config.members.iter().map(|member| member.node).collect();
        let homes = (0..NODES_MAX as u16).filter_map(|range| home_place(range, &members));
        let homes = homes.map(|place| addrs[usize::from(place)]).collect();
        let nodes = Nodes { group: config.group, epoch: Epoch(config.epoch), addrs, homes };
        if self.nodes.as_ref() != Some(&nodes) {
            self.stages.reset();
        }
        self.nodes = Some(nodes);
        Ok(None)
    }

    fn uninstall(&mut self) {
        self.nodes = None;
        self.stages.reset();
    }

    fn process(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let packet = match Repr::parse(bytes) {
            Ok((packet, _)) => packet,
            Err(error) => return self.drop(DropReason::Malformed(error)),
        };
        let Some(nodes) = self.nodes.take() else { return self.drop(DropReason::Unconfigured) };
        let verdict = match self.dispatch(&nodes, ingress, packet) {
            Ok(leaves) => self.leave(&nodes, ingress, leaves, bytes),
            Err(reason) => self.drop(reason),
        };
        self.nodes = Some(nodes);
        verdict
    }

    /// Copysets have a bit for each place, and each place has a port.
    fn uses_ports(&self) -> bool {
        true
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.drop(DropReason::Malformed(error));
    }

    fn gauges(&self) -> Vec<Gauge> {
        let help = "Blocks of the shared memory that the switch owns.";
        alloc::vec![Gauge { name: "memory_blocks", help, value: self.stages.blocks() as u64 }]
    }

    fn counts(&self) -> Vec<Count> {
        self.counters.each().collect()
    }

    fn describe(&self) -> Report {
        Report { recirculations_max: 1, ..Report::new("concordia", self.stages.report()) }
    }
}

// A recirculated packet is as long as the one that arrived.
const _: () = assert!(HEAD_BYTES <= crate::program::INJECTION_BYTES_MAX);
