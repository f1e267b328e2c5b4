//! Harmonia's conflict detector: Algorithm 1 as a pipeline with a multi-stage hash table
//! (Harmonia §6, §7.1).
//!
//! A packet goes through these steps, one register array each:
//! 1. `seq`: a WRITE is numbered; the number is burnt if the write is dropped later.
//! 2. `last_committed`: a completion with the own switch id raises it, all others read it.
//! 3. `wildcard_seq`: the number of the latest write of all keys (trap T13).
//! 4. `dirty_set`, one stage per array: insertion takes the first cell that is empty, stray or the
//!    object's own; search is "any"; deletion compares every stage.
//! 5. `occupied`: how many cells of the dirty set are in use.
//!
//! Under NOPaxos the program is the sequencer too (Harmonia §8.3; Li et al., OSDI 2016): step 1 numbers
//! every write, with or without help, and the write goes to all replicas. Switch id and session number
//! are one number, and so are their counters (trap T23). A write that finds no slot is not dropped: its
//! number would be missed by all. It goes on as a no-op.
//!
//! Then the match-action tables (who is head, who answers reads, which replicas) give the
//! destination. A cell of the dirty set is `object id << 32 | counter`; counter 0 means empty, so
//! that an object id of 0 is as good as any (trap T20). A cell whose counter is not above
//! `last_committed` is stray: its write is committed, or can never be (§6.2).

mod registers;

use core::fmt;

use alloc::vec::Vec;

use concord_core::hash::mix32;
use concord_core::{Guard, Guards, Seq, SwitchId};
use concord_pisa::{ASIC, Report, Verdict};
use concord_wire::control::{Config, Protocol};
use concord_wire::{Addr, Flags, Op, PacketMut, Reason, Repr, WireError};

use registers::{Completion, ReadPass, Registers, Slot};

/// Stages before and behind the dirty set's: `seq`, `last_committed`, `wildcard_seq`, `occupied`.
const OTHER_STAGES: usize = 4;
/// Most stages that the dirty set can have.
pub const TABLE_STAGES_MAX: u8 = (ASIC.stages - OTHER_STAGES) as u8;
/// Most cells in one stage of the dirty set.
pub const SLOTS_MAX: u32 = 1 << 24;
/// Longest run of reads to one replica, as a power of two.
pub const RUN_BITS_MAX: u8 = 16;

/// The size of the program's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Stages of the dirty set.
    pub table_stages: u8,
    /// Cells in each of them, a power of two.
    pub slots: u32,
    /// Width of the sequence counter in bits; fewer than 32 to test its end (trap T20).
    pub counter_bits: u8,
    /// Reads of a client that go to one replica in a row, as a power of two: a train of them is then
    /// one train to few replicas and not a short one to each.
    pub run_bits: u8,
}

impl Layout {
    /// Harmonia §7.2: three stages of 64K slots.
    pub const DEFAULT: Layout =
        Layout { table_stages: 3, slots: 65_536, counter_bits: 32, run_bits: 4 };

    /// The last number that a switch id has.
    #[must_use]
    pub const fn counter_max(&self) -> u32 {
        (((1u64) << self.counter_bits) - 1) as u32
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.table_stages == 0 || self.table_stages > TABLE_STAGES_MAX {
            return Err(ConfigError::TableStages(self.table_stages));
        }
        if !self.slots.is_power_of_two() || self.slots > SLOTS_MAX {
            return Err(ConfigError::Slots(self.slots));
        }
        if !(2..=32).contains(&self.counter_bits) {
            return Err(ConfigError::CounterBits(self.counter_bits));
        }
        if self.run_bits > RUN_BITS_MAX {
            return Err(ConfigError::RunBits(self.run_bits));
        }
        Ok(())
    }
}

/// A configuration that no switch can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// No stage for the dirty set, or more than a pipe has.
    TableStages(u8),
    /// Not a power of two, or too many.
    Slots(u32),
    /// Not within 2 to 32.
    CounterBits(u8),
    /// Too long a run.
    RunBits(u8),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::TableStages(n) => {
                write!(f, "the dirty set has {n} stages: give it 1 to {TABLE_STAGES_MAX}")
            }
            ConfigError::Slots(n) => {
                write!(f, "a stage has {n} slots: give it a power of two up to {SLOTS_MAX}")
            }
            ConfigError::CounterBits(n) => {
                write!(f, "the counter has {n} bits: give it 2 to 32")
            }
            ConfigError::RunBits(n) => {
                write!(f, "2^{n} reads in a row are too many: give it up to 2^{RUN_BITS_MAX}")
            }
        }
    }
}

impl core::error::Error for ConfigError {}

/// Why a packet ends at the switch. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Not a Harmonia packet.
    Malformed(WireError),
    /// The switch does not know its replicas (yet, or any more).
    Unconfigured,
    /// A write that found no slot (Harmonia §7.2); the client retries.
    TableFull,
    /// The counter is at its end: the switch needs a new id (trap T20).
    SeqExhausted,
    /// A Pull names a node that is not a member.
    NoSuchNode,
    /// A reply without a client address.
    NoClient,
    /// It did its work here: a completion, a sweep, a reply to the switch's own no-op.
    Consumed,
}

concord_core::counters! {
    /// What the program did, a counter for every path and every drop reason.
    pub struct Counters {
        /// Writes that were numbered and entered into the dirty set.
        writes_tracked,
        /// Writes of all keys, numbered (trap T13).
        writes_wildcard,
        /// Numbered no-ops of the switch's own agent (trap T18).
        writes_noop,
        /// Writes forwarded without a number, because the switch does not help.
        writes_unaided,
        /// Writes that found no slot and went on as no-ops (NOPaxos, trap T23).
        writes_as_noop,
        /// Writes forwarded though they found no slot: only without the drop-on-full guard.
        writes_untracked,
        /// Fragments of write bodies forwarded to the head.
        write_bodies,
        /// Completions with the own switch id.
        completions,
        /// Completions with another switch's id, ignored (Harmonia §6.3).
        completions_foreign,
        /// Completions with the own id and a number that was never given out, ignored.
        completions_impossible,
        /// Reads sent to one replica to answer alone.
        reads_fast,
        /// Reads on the normal path: the object has a write in flight.
        reads_slow_dirty,
        /// Reads on the normal path: no completion with the own switch id was seen yet.
        reads_slow_not_ready,
        /// Reads on the normal path: a write of all keys is in flight.
        reads_slow_wildcard,
        /// Reads on the normal path: the switch does not help.
        reads_slow_unaided,
        /// Reads sent to any replica, which asks the tail itself where it has to (CRAQ).
        reads_spread,
        /// Reads on the normal path: the command reads more than one object.
        reads_slow_all_keys,
        /// Stray entries that a read of their object removed.
        strays_read,
        /// Stray entries that a write took over.
        strays_replaced,
        /// Stray entries that the sweep removed.
        strays_swept,
        /// Replies and their fragments forwarded to clients.
        replies,
        /// Requests for more fragments of a reply, forwarded to the responder.
        pulls,
        /// Writes dropped because the dirty set had no slot (Harmonia §7.2).
        dropped_table_full,
        /// Writes dropped because the counter is at its end (trap T20).
        dropped_seq_exhausted,
        /// Packets dropped because the switch does not know its replicas.
        dropped_unconfigured,
        /// Requests for fragments dropped because they name no member.
        dropped_no_such_node,
        /// Replies dropped because they carry no client address.
        dropped_no_client,
        /// Packets that end at the switch by design.
        consumed,
        /// Packets dropped because they are shorter than they say.
        malformed_truncated,
        /// Packets dropped because they are not Concord's.
        malformed_magic,
        /// Packets dropped because they are of another wire version.
        malformed_version,
        /// Packets dropped because their operation is not known.
        malformed_op,
        /// Packets dropped because a field is out of range.
        malformed_field,
    }
}

/// The match-action tables: who is who. Only the control plane writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The own switch id, the first half of every number given out.
    pub switch_id: SwitchId,
    /// The switch's own address: what is sent to it ends here.
    pub switch: Addr,
    /// Whether the switch helps at all.
    pub accelerated: bool,
    /// Whether the switch orders writes and sends them to all replicas (NOPaxos).
    pub sequenced: bool,
    /// Who orders writes; the leader, under NOPaxos.
    pub head: Addr,
    /// Who answers the reads of the normal protocol.
    pub reader: Addr,
    /// Whether any replica takes reads without the switch's help: CRAQ.
    pub spread_reads: bool,
    /// Who may answer fast or spread reads: node number and address. Never empty.
    pub replicas: Vec<(u16, Addr)>,
}

impl Tables {
    /// The tables of a configuration; `None` if it has no members.
    #[must_use]
    pub fn of(config: &Config) -> Option<Tables> {
        Some(Tables {
            switch_id: SwitchId(config.switch_id),
            switch: config.switch,
            accelerated: config.program.has_dirty_set(),
            sequenced: config.protocol.is_sequenced(),
            head: config.head()?.addr,
            reader: config.reader()?.addr,
            spread_reads: config.protocol == Protocol::Craq,
            replicas: config.members.iter().map(|m| (m.node, m.addr)).collect(),
        })
    }

    /// The replica that a fast or spread read goes to. Harmonia's Algorithm 1, line 12, says "random"; a
    /// hash of the request is what every rendering of the program can compute alike, and of all but
    /// its lowest `run_bits`: a client's requests are numbered in their order. The attempt is
    /// added, not hashed in, so that a retry goes to another replica for certain (trap T21).
    fn replica(&self, hdr: &Repr, run_bits: u8) -> Addr {
        let (session, request) = (hdr.session.0, hdr.request.0 >> run_bits);
        let mut hash = mix32(1, (session >> 32) as u32);
        for word in [session as u32, (request >> 32) as u32, request as u32] {
            hash = mix32(1, hash ^ word);
        }
        let choice =
            hash.wrapping_add(u32::from(hdr.attempt)) as usize % self.replicas.len().max(1);
        self.replicas.get(choice).map_or(self.reader, |r| r.1)
    }
}

/// Harmonia's switch program (the paper's Algorithm 1).
#[derive(Clone, Debug)]
pub struct Harmonia {
    layout: Layout,
    guards: Guards,
    registers: Registers,
    /// `None` until the control plane says who is who: everything is dropped until then.
    tables: Option<Tables>,
    counters: Counters,
}

impl Harmonia {
    /// The program with empty registers and no tables.
    ///
    /// # Errors
    /// [`ConfigError`] if the layout cannot be.
    pub fn new(layout: Layout, guards: Guards) -> Result<Harmonia, ConfigError> {
        layout.check()?;
        Ok(Harmonia {
            layout,
            guards,
            registers: Registers::new(&layout),
            tables: None,
            counters: Counters::default(),
        })
    }

    /// Handles one datagram in place: parser, pipeline, deparser.
    pub fn process(&mut self, bytes: &mut [u8]) -> Verdict<DropReason> {
        let mut packet = match PacketMut::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.malformed(error),
        };
        let hdr = packet.view().repr();
        let size_bytes = packet.view().bytes().len();
        let to = match hdr.op {
            Op::Write => self.on_write(&hdr, &mut packet),
            Op::Read => self.on_read(&hdr, &mut packet),
            Op::WriteCompletion => self.on_completion(&hdr),
            Op::WriteReply => self.on_write_reply(&hdr),
            Op::WRestAck | Op::ReadReply | Op::Fragment | Op::Push => self.on_reply(&hdr),
            Op::WRest => self.on_write_body(),
            Op::Pull => self.on_pull(&hdr),
            Op::Sweep => self.on_sweep(&hdr),
        };
        match to {
            Ok(_) if hdr.op == Op::Write && self.is_sequencer() => {
                Verdict::Multicast { size_bytes }
            }
            Ok(to) => Verdict::Forward { to, size_bytes },
            Err(reason) => {
                self.count_drop(reason);
                Verdict::Drop(reason)
            }
        }
    }

    /// Whether it orders writes for NOPaxos.
    pub(crate) fn is_sequencer(&self) -> bool {
        self.tables.as_ref().is_some_and(|t| t.sequenced)
    }

    /// Counts a datagram that no parser accepts.
    pub(crate) fn malformed(&mut self, error: WireError) -> Verdict<DropReason> {
        self.count_drop(DropReason::Malformed(error));
        Verdict::Drop(DropReason::Malformed(error))
    }

    /// WRITE: Algorithm 1, lines 1-4. A write without a slot is dropped (§7.2).
    fn on_write(&mut self, hdr: &Repr, packet: &mut PacketMut<'_>) -> Result<Addr, DropReason> {
        let tables = self.tables.as_ref().ok_or(DropReason::Unconfigured)?;
        if !tables.accelerated && !tables.sequenced {
            packet.set_seq(Seq::NONE);
            self.counters.writes_unaided += 1;
            return Ok(tables.head);
        }
        let ports = self.registers.ports();
        // Without help a write takes a number, and no slot: as a no-op does.
        // Several objects would need a pass each: they are taken for all keys.
        let flags = if tables.accelerated {
            hdr.flags.set(Flags::WILDCARD, hdr.is_of_many())
        } else {
            Flags::NOOP
        };
        let write = ports.write(hdr.obj_id, flags, self.layout.counter_max());
        let (counter, slot) = write.ok_or(DropReason::SeqExhausted)?;
        match slot {
            Slot::Taken => self.counters.writes_tracked += 1,
            Slot::TakenFromStray => {
                self.counters.writes_tracked += 1;
                self.counters.strays_replaced += 1;
            }
            Slot::NotNeeded if !tables.accelerated => self.counters.writes_unaided += 1,
            Slot::NotNeeded if hdr.flags.has(Flags::NOOP) => self.counters.writes_noop += 1,
            Slot::NotNeeded => self.counters.writes_wildcard += 1,
            Slot::None if tables.sequenced && self.guards.on(Guard::DropOnFull) => {
                packet.set_flags(hdr.flags.with(Flags::NOOP));
                self.counters.writes_as_noop += 1;
            }
            Slot::None if self.guards.on(Guard::DropOnFull) => return Err(DropReason::TableFull),
            Slot::None => self.counters.writes_untracked += 1,
        }
        packet.set_seq(Seq::new(tables.switch_id, counter));
        Ok(tables.head)
    }

    /// READ: Algorithm 1, lines 9-12, and the reasons to take the normal path.
    fn on_read(&mut self, hdr: &Repr, packet: &mut PacketMut<'_>) -> Result<Addr, DropReason> {
        let tables = self.tables.as_ref().ok_or(DropReason::Unconfigured)?;
        // A cursor of one Redis server means nothing to another: reads of all keys go to one reader.
        let to_reader = hdr.is_of_many() && self.guards.on(Guard::OneReader);
        if tables.spread_reads && !to_reader {
            packet.set_flags(hdr.flags.without(Flags::FAST));
            packet.set_reason(Reason::None);
            self.counters.reads_spread += 1;
            return Ok(tables.replica(hdr, self.layout.run_bits));
        }
        let mut last_committed = 0;
        let reason = if !tables.accelerated {
            Reason::SlowUnaided
        } else if hdr.is_of_many() {
            Reason::SlowAllKeys
        } else {
            let read = self.registers.ports().read(hdr.obj_id);
            self.counters.strays_read += u64::from(read.strays_removed);
            last_committed = read.last_committed;
            self.reason(&read)
        };
        packet.set_reason(reason);
        if reason == Reason::Fast {
            packet.set_flags(hdr.flags.with(Flags::FAST));
            packet.set_last_committed(Seq::new(tables.switch_id, last_committed));
            self.counters.reads_fast += 1;
            return Ok(tables.replica(hdr, self.layout.run_bits));
        }
        packet.set_flags(hdr.flags.without(Flags::FAST));
        let reader = tables.reader;
        self.count_slow(reason);
        Ok(reader)
    }

    /// Which path a read takes after its pass.
    fn reason(&self, read: &ReadPass) -> Reason {
        // Harmonia §6.3: before the first completion with the own id, neither the last-committed
        // point nor the dirty set covers what the previous switch let through.
        if read.last_committed == 0 && self.guards.on(Guard::FirstCompletion) {
            Reason::SlowNotReady
        } else if read.wildcard_pending {
            Reason::SlowWildcard
        } else if read.dirty && self.guards.on(Guard::DirtySet) {
            Reason::SlowDirty
        } else {
            Reason::Fast
        }
    }

    /// A stand-alone WRITE-COMPLETION ends at the switch.
    fn on_completion(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        self.complete(hdr)?;
        Err(DropReason::Consumed)
    }

    /// A write's reply goes to its client, and may be a completion too (§6.1, "piggybacked").
    fn on_write_reply(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        if hdr.flags.has(Flags::COMPLETION) {
            self.complete(hdr)?;
        }
        self.on_reply(hdr)
    }

    /// WRITE-COMPLETION: Algorithm 1, lines 5-8. One of another switch is ignored: its numbers
    /// say nothing about this switch's dirty set (§6.3).
    fn complete(&mut self, hdr: &Repr) -> Result<(), DropReason> {
        let tables = self.tables.as_ref().ok_or(DropReason::Unconfigured)?;
        if !tables.accelerated {
            return Ok(());
        }
        if hdr.seq.switch_id != tables.switch_id {
            self.counters.completions_foreign += 1;
            return Ok(());
        }
        match self.registers.ports().complete(hdr.obj_id, hdr.seq.counter) {
            Completion::Done => self.counters.completions += 1,
            Completion::Impossible => self.counters.completions_impossible += 1,
        }
        Ok(())
    }

    fn on_reply(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        let tables = self.tables.as_ref().ok_or(DropReason::Unconfigured)?;
        if hdr.client.port == 0 {
            return Err(DropReason::NoClient);
        }
        // The reply to the agent's own no-op. Forwarded, it would come back here for ever.
        if hdr.client == tables.switch {
            return Err(DropReason::Consumed);
        }
        self.counters.replies += 1;
        Ok(hdr.client)
    }

    fn on_write_body(&mut self) -> Result<Addr, DropReason> {
        let tables = self.tables.as_ref().ok_or(DropReason::Unconfigured)?;
        self.counters.write_bodies += 1;
        Ok(tables.head)
    }

    fn on_pull(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        let tables = self.tables.as_ref().ok_or(DropReason::Unconfigured)?;
        let named = tables.replicas.iter().find(|r| r.0 == hdr.node.0);
        let to = named.ok_or(DropReason::NoSuchNode)?.1;
        self.counters.pulls += 1;
        Ok(to)
    }

    /// Trap T19: the sweep is a packet, so that no write can slip in between its look and its
    /// clearing. It clears nothing but strays, so whoever sends one does no harm.
    fn on_sweep(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        let removed = self.registers.ports().sweep(hdr.index);
        self.counters.strays_swept += u64::from(removed);
        Err(DropReason::Consumed)
    }

    fn count_slow(&mut self, reason: Reason) {
        let c = &mut self.counters;
        match reason {
            Reason::SlowDirty => c.reads_slow_dirty += 1,
            Reason::SlowNotReady => c.reads_slow_not_ready += 1,
            Reason::SlowWildcard => c.reads_slow_wildcard += 1,
            Reason::SlowUnaided => c.reads_slow_unaided += 1,
            Reason::SlowAllKeys => c.reads_slow_all_keys += 1,
            Reason::None
            | Reason::Fast
            | Reason::RefusedNewer
            | Reason::RefusedLease
            | Reason::RefusedSwitch
            | Reason::Misrouted
            | Reason::RefusedBehind
            | Reason::Clean
            | Reason::AskedTail => {}
        }
    }

    fn count_drop(&mut self, reason: DropReason) {
        let c = &mut self.counters;
        match reason {
            DropReason::Malformed(WireError::Truncated) => c.malformed_truncated += 1,
            DropReason::Malformed(WireError::Magic) => c.malformed_magic += 1,
            DropReason::Malformed(WireError::Version) => c.malformed_version += 1,
            DropReason::Malformed(WireError::Op) => c.malformed_op += 1,
            DropReason::Malformed(WireError::Field) => c.malformed_field += 1,
            DropReason::Unconfigured => c.dropped_unconfigured += 1,
            DropReason::TableFull => c.dropped_table_full += 1,
            DropReason::SeqExhausted => c.dropped_seq_exhausted += 1,
            DropReason::NoSuchNode => c.dropped_no_such_node += 1,
            DropReason::NoClient => c.dropped_no_client += 1,
            DropReason::Consumed => c.consumed += 1,
        }
    }
}

/// The control plane's side: tables, and a view of the registers.
impl Harmonia {
    /// Installs `tables`. A new switch id starts with empty registers (§6.3); under the same id
    /// the dirty set stays, whoever joined or left.
    pub fn install(&mut self, tables: Tables) {
        if self.tables.as_ref().map(|t| t.switch_id) != Some(tables.switch_id) {
            self.registers.reset();
        }
        self.tables = Some(tables);
    }

    /// Forgets who is who: everything is dropped from now on.
    pub fn uninstall(&mut self) {
        self.tables = None;
        self.registers.reset();
    }

    /// Who is who, if known.
    #[must_use]
    pub fn tables(&self) -> Option<&Tables> {
        self.tables.as_ref()
    }

    /// The size of the registers.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The last number given out; 0 if none.
    #[must_use]
    #[inline]
    pub fn seq(&self) -> u32 {
        self.registers.seq.peek(0)
    }

    /// The number of the latest write known to be committed; 0 before the first completion.
    #[must_use]
    #[inline]
    pub fn last_committed(&self) -> u32 {
        self.registers.last_committed.peek(0)
    }

    /// The number of the latest write of all keys; 0 if none.
    #[must_use]
    #[inline]
    pub fn wildcard_seq(&self) -> u32 {
        self.registers.wildcard_seq.peek(0)
    }

    /// How many cells of the dirty set are in use.
    #[must_use]
    #[inline]
    pub fn occupied(&self) -> u32 {
        self.registers.occupied.peek(0)
    }

    /// Cells of the dirty set in all stages.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        u32::from(self.layout.table_stages) * self.layout.slots
    }

    /// Every cell in use: stage of the dirty set, index, object id, counter.
    pub fn entries(&self) -> impl Iterator<Item = (usize, usize, u32, u32)> + '_ {
        self.registers.entries()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The stage table, for `concord switch --describe`.
    #[must_use]
    pub fn describe(&self) -> Report {
        let arrays = self.registers.report();
        // Reads, writes, completions and sweeps all end in one pass.
        Report { program: "harmonia", arrays, recirculations_max: 0 }
    }
}
