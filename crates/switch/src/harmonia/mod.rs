//! Harmonia's conflict detector: Algorithm 1 as a pipeline with a multi-stage hash table
//! (Harmonia §6, §7.1).
//!
//! A packet goes through these steps, one register array each:
//! 1. `seq`: a WRITE gets the next number; the number is burnt if the write is dropped later.
//! 2. `last_committed`: a completion with the switch's own id raises it, all others read it.
//! 3. `dirty_set`, one stage per array: insertion takes the first cell that is empty, stray or the
//!    object's own; search is "any"; deletion compares every stage.
//! 4. `occupied`: the number of cells of the dirty set that are in use.
//! 5. `wildcard_seq`: the number of the latest write of all keys (trap T13), or of a write that was
//!    retried and found no cell every time: it is treated as one of all keys.
//!
//! A request of several objects makes a pass for each of them (`several.rs`).
//!
//! Then the match-action tables (the head, the reader, the replicas) give the destination. A cell
//! of the dirty set is `object id << 32 | counter`; counter 0 means empty, so that an object id of
//! 0 is valid (trap T20). A cell whose counter is not above `last_committed` is stray: its write is
//! committed, or can never be (§6.2).

mod layout;
mod registers;
mod several;
mod watch;

use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Guard, Guards, Instant, Now, Seq};
use concord_pisa::{RegisterArray, Report, Verdict};
use concord_wire::control::Config;
use concord_wire::objects::FURTHER_MAX;
use concord_wire::{Addr, Flags, Kind, Op, PacketMut, Reason, Repr, WireError};

use crate::program::{
    Count, Gauge, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
    Wants,
};
use crate::store::{Counters, DropReason, Store};

pub use layout::{ConfigError, Layout, RUN_BITS_MAX, SLOTS_MAX, TABLE_STAGES_MAX, TableSettings};
pub use registers::cell_index;
pub(crate) use registers::next_number;
use registers::{Completion, ReadPass, Registers, Slot};
pub(crate) use several::Way;
pub use watch::View;
use watch::Watch;
pub(crate) use watch::noop;

/// From this attempt on, a write that finds no slot is treated as one of all keys, which needs no
/// slot: writes of other objects may occupy its slots indefinitely.
const OVERDUE_ATTEMPT: u16 = 3;

/// The fate of a write that finds no slot (Harmonia §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFull {
    /// It is dropped, and its client retries.
    Drop,
    /// It goes on as a no-op: under NOPaxos all replicas would miss its number (trap T23).
    Noop,
}

/// Harmonia's switch program (the paper's Algorithm 1).
#[derive(Clone, Debug)]
pub struct Harmonia {
    layout: Layout,
    guards: Guards,
    registers: Registers,
    pub(crate) store: Store,
    watch: Watch,
}

impl Load for Harmonia {
    fn load(settings: &Settings) -> Result<Harmonia, LoadError> {
        let layout = settings.sections.table.layout;
        layout.check()?;
        Ok(Harmonia {
            layout,
            guards: settings.guards,
            registers: Registers::new(&layout),
            store: Store::default(),
            watch: Watch::new(settings),
        })
    }
}

/// The data plane.
impl Harmonia {
    /// The destination of a packet that is not a write.
    #[inline]
    pub(crate) fn other(
        &mut self,
        hdr: &Repr,
        packet: &mut PacketMut<'_>,
    ) -> Result<Addr, DropReason> {
        match hdr.op {
            Op::Read => self.on_read(hdr, packet),
            Op::WriteCompletion => self.on_completion(hdr),
            Op::WriteReply => self.on_write_reply(hdr),
            Op::Sweep => self.on_sweep(hdr),
            Op::Write
            | Op::WRestAck
            | Op::ReadReply
            | Op::Fragment
            | Op::Push
            | Op::WRest
            | Op::Pull => self.store.pass_on(hdr, packet),
        }
    }

    /// WRITE: Algorithm 1, lines 1-4.
    #[inline]
    pub(crate) fn on_write(
        &mut self,
        hdr: &Repr,
        packet: &mut PacketMut<'_>,
        on_full: OnFull,
    ) -> Result<Addr, DropReason> {
        let routes = self.store.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        let ports = self.registers.ports();
        let is_overdue = hdr.attempt >= OVERDUE_ATTEMPT && self.guards.on(Guard::TriedAgain);
        let write = ports.write(hdr.obj_id, hdr.flags, is_overdue, self.layout.counter_max());
        let (counter, slot) = write.ok_or(DropReason::SeqExhausted)?;
        let (switch_id, head) = (routes.switch_id, routes.head);
        let counters = &mut self.store.counters;
        match slot {
            Slot::Taken => counters.writes_tracked += 1,
            Slot::TakenFromStray => {
                counters.writes_tracked += 1;
                counters.strays_replaced += 1;
            }
            Slot::NotNeeded if hdr.flags.has(Flags::NOOP) => counters.writes_noop += 1,
            Slot::NotNeeded => counters.writes_wildcard += 1,
            Slot::None => self.no_slot(hdr, packet, on_full)?,
            Slot::AllKeys => {
                counters.writes_overdue += 1;
                packet.set_flags(hdr.flags.with(Flags::WILDCARD));
            }
        }
        packet.set_seq(Seq::new(switch_id, counter));
        Ok(head)
    }

    /// Decides the fate of a write one of whose objects has no slot (§7.2).
    fn no_slot(
        &mut self,
        hdr: &Repr,
        packet: &mut PacketMut<'_>,
        on_full: OnFull,
    ) -> Result<(), DropReason> {
        if !self.guards.on(Guard::DropOnFull) {
            self.store.counters.writes_untracked += 1;
            return Ok(());
        }
        match on_full {
            OnFull::Drop => Err(DropReason::TableFull),
            OnFull::Noop => {
                packet.set_flags(hdr.flags.with(Flags::NOOP));
                self.store.counters.writes_as_noop += 1;
                Ok(())
            }
        }
    }

    /// READ: Algorithm 1, lines 9-12, and the conditions for the normal path.
    #[inline]
    fn on_read(&mut self, hdr: &Repr, packet: &mut PacketMut<'_>) -> Result<Addr, DropReason> {
        let routes = self.store.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        if hdr.flags.has(Flags::WILDCARD) {
            return self.store.on_read(hdr, packet, Reason::SlowAllKeys);
        }
        let read = self.registers.ports().read(hdr.obj_id);
        self.store.counters.strays_read += u64::from(read.strays_removed);
        let reason = reason(self.guards, &read);
        if reason != Reason::Fast {
            return self.store.on_read(hdr, packet, reason);
        }
        packet.set_reason(reason);
        packet.set_flags(hdr.flags.with(Flags::FAST));
        packet.set_last_committed(Seq::new(routes.switch_id, read.last_committed));
        self.store.counters.reads_fast += 1;
        Ok(routes.replica(hdr, self.layout.run_bits))
    }

    /// A stand-alone WRITE-COMPLETION ends at the switch.
    fn on_completion(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        self.complete(hdr)?;
        Err(DropReason::Consumed)
    }

    /// A write's reply goes to its client, and may carry a completion (§6.1, "piggybacked").
    fn on_write_reply(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        if hdr.flags.has(Flags::COMPLETION) {
            self.complete(hdr)?;
        }
        self.store.on_reply(hdr)
    }

    /// WRITE-COMPLETION: Algorithm 1, lines 5-8. A completion of another switch is ignored: its
    /// number says nothing about this switch's dirty set (§6.3).
    fn complete(&mut self, hdr: &Repr) -> Result<(), DropReason> {
        let routes = self.store.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        let counters = &mut self.store.counters;
        if hdr.seq.switch_id != routes.switch_id {
            counters.completions_foreign += 1;
            return Ok(());
        }
        match self.registers.ports().complete(hdr.obj_id, hdr.seq.counter) {
            Completion::Done => counters.completions += 1,
            Completion::Impossible => counters.completions_impossible += 1,
        }
        Ok(())
    }

    /// Trap T19: the sweep is a packet, so that no write can slip in between its check and its
    /// clearing. It clears only strays, so a sweep from any sender is harmless.
    fn on_sweep(&mut self, hdr: &Repr) -> Result<Addr, DropReason> {
        let removed = self.registers.ports().sweep(hdr.index);
        self.store.counters.strays_swept += u64::from(removed);
        Err(DropReason::Consumed)
    }
}

/// Trap T20: a successor of the switch id is requested while enough numbers are left.
#[inline]
pub(crate) fn wants(seq: &RegisterArray<u32>, layout: &Layout) -> Wants {
    if seq.peek(0) >= layout.ask_at() { Wants::SwitchId } else { Wants::Nothing }
}

/// The path of a read, by what its pass found.
#[inline]
fn reason(guards: Guards, read: &ReadPass) -> Reason {
    // Harmonia §6.3: before the first completion with the switch's own id, neither the
    // last-committed point nor the dirty set covers the writes that the previous switch let
    // through.
    if read.last_committed == 0 && guards.on(Guard::FirstCompletion) {
        Reason::SlowNotReady
    } else if read.wildcard_pending {
        Reason::SlowWildcard
    } else if read.dirty && guards.on(Guard::DirtySet) {
        Reason::SlowDirty
    } else {
        Reason::Fast
    }
}

/// The view of the control plane.
impl Harmonia {
    /// The size of the registers.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The registers of one cell.
    #[must_use]
    #[inline]
    pub fn view(&self) -> View {
        View {
            seq: self.registers.seq.peek(0),
            last_committed: self.registers.last_committed.peek(0),
            wildcard_seq: self.registers.wildcard_seq.peek(0),
            occupied: self.registers.occupied.peek(0),
        }
    }

    /// The number of cells of the dirty set in all stages.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        u32::from(self.layout.table_stages) * self.layout.slots
    }

    /// Every cell in use: stage of the dirty set, index, object id, counter.
    pub fn entries(&self) -> impl Iterator<Item = (usize, usize, u32, u32)> + '_ {
        self.registers.entries()
    }

    /// The part that it shares with the other programs for replicas.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The program's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.store.counters
    }

    /// A numbered no-op, to be sent through the pipeline at once.
    pub(crate) fn noop(&mut self, now: Instant) -> Injection {
        self.store.counters.noops_sent += 1;
        self.watch.noop(now)
    }
}

impl SwitchProgram for Harmonia {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        if kind == Kind::Store { Takes::Data } else { Takes::Nothing }
    }

    /// A new switch id starts with empty registers (§6.3), and with a no-op: without its completion
    /// no read is fast while there are no writes (trap T18).
    fn install(&mut self, now: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        let is_new = self.store.install(config)?;
        if is_new {
            self.registers.reset();
        }
        Ok(is_new.then(|| self.noop(now.instant)))
    }

    fn uninstall(&mut self) {
        self.store.routes = None;
        self.registers.reset();
        self.watch.rest();
    }

    fn process(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let mut packet = match PacketMut::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.store.malformed(error),
        };
        let (hdr, size_bytes) = (packet.view().repr(), packet.view().bytes().len());
        if !hdr.further.is_empty() {
            return match self.several(ingress, &hdr, &mut packet, OnFull::Drop) {
                Ok(Way::To(to)) => Verdict::Forward { to, size_bytes },
                Ok(Way::Round(metadata)) => Verdict::Recirculate { metadata, size_bytes },
                Err(reason) => self.store.drop(reason),
            };
        }
        let to = match hdr.op {
            Op::Write => self.on_write(&hdr, &mut packet, OnFull::Drop),
            _ => self.other(&hdr, &mut packet),
        };
        self.store.verdict(to, size_bytes)
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.store.malformed(error);
    }

    #[inline]
    fn look(&mut self, now: Instant) -> Wants {
        self.watch.look(now, &self.registers, self.store.routes.is_some());
        wants(&self.registers.seq, &self.layout)
    }

    fn upkeep(&mut self, now: Instant) -> Option<Injection> {
        let view = self.view();
        self.watch.upkeep(now, &view, &mut self.store.counters)
    }

    fn deadline(&self) -> Deadline {
        self.watch.deadline(&self.view())
    }

    /// It is ready once a write was completed through it.
    fn is_ready(&self) -> bool {
        self.view().last_committed > 0
    }

    fn gauges(&self) -> Vec<Gauge> {
        let View { seq, last_committed, occupied, .. } = self.view();
        let gauge = |name, help, value: u32| Gauge { name, help, value: value.into() };
        alloc::vec![
            gauge("sequence", "The last sequence number given out.", seq),
            gauge("last_committed", "The largest number committed.", last_committed),
            gauge("dirty_set_occupied", "Slots of the dirty set in use.", occupied),
            gauge("dirty_set_slots", "Slots of the dirty set.", self.capacity()),
        ]
    }

    fn counts(&self) -> Vec<Count> {
        self.store.counters.each().collect()
    }

    /// Reads, writes, completions and sweeps end in one pass, except requests of several objects.
    fn describe(&self) -> Report {
        let recirculations_max = FURTHER_MAX as u32;
        Report { recirculations_max, ..Report::new("harmonia", self.registers.report()) }
    }
}
