//! Requests of several objects: a register array can be accessed once in a pass, so each object
//! takes a pass of its own. The packet is recirculated until the last one.
//!
//! A write gets its number in its first pass, and goes on when all its objects are in the dirty
//! set. If one finds no slot, the write is dropped, and the entries made so far turn stray. Other
//! writes pass in between: the node that orders writes takes numbers in ascending order, and would
//! refuse a write that was overtaken. So an overtaken write gets a new number, and becomes one of
//! all keys (trap T13), which needs no further pass.
//!
//! A retried write is of all keys from its first pass on: if its own objects share a slot, or the
//! dirty set is full, it would find no room on every attempt.
//!
//! A read is fast only if each of its objects is clean in its pass. It gets the last-committed
//! point of the last pass: a write of a later object that completed meanwhile must be seen, and the
//! writes that preceded an earlier object's pass are below that point as well.

use concord_core::{Guard, Seq};
use concord_pisa::Metadata;
use concord_wire::{Addr, Flags, Op, PacketMut, Reason, Repr};

use super::registers::{Entered, Slot};
use super::{Harmonia, OnFull, reason};
use crate::program::Ingress;
use crate::store::DropReason;

/// The path of a packet after a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// It leaves the switch.
    To(Addr),
    /// It is recirculated, for another pass.
    Round(Metadata),
}

impl Harmonia {
    /// A pass of a packet that names several objects.
    #[cold]
    pub(crate) fn several(
        &mut self,
        ingress: &Ingress<'_>,
        hdr: &Repr,
        packet: &mut PacketMut<'_>,
        on_full: OnFull,
    ) -> Result<Way, DropReason> {
        let takes_none = hdr.flags.has(Flags::WILDCARD) || hdr.flags.has(Flags::NOOP);
        match hdr.op {
            Op::Write if takes_none => self.on_write(hdr, packet, on_full).map(Way::To),
            Op::Read if takes_none => self.other(hdr, packet).map(Way::To),
            Op::Write => self.write_several(ingress, hdr, packet, on_full),
            Op::Read => self.read_several(ingress, hdr, packet),
            Op::WRest
            | Op::WRestAck
            | Op::WriteReply
            | Op::ReadReply
            | Op::Pull
            | Op::Fragment
            | Op::Push
            | Op::WriteCompletion
            | Op::Sweep => self.other(hdr, packet).map(Way::To),
        }
    }

    fn write_several(
        &mut self,
        ingress: &Ingress<'_>,
        hdr: &Repr,
        packet: &mut PacketMut<'_>,
        on_full: OnFull,
    ) -> Result<Way, DropReason> {
        if ingress.passes == 0 && hdr.attempt > 0 && self.guards.on(Guard::TriedAgain) {
            let all = Repr { flags: hdr.flags.with(Flags::WILDCARD), ..*hdr };
            packet.set_flags(all.flags);
            return self.on_write(&all, packet, on_full).map(Way::To);
        }
        let Some(at) = usize::from(ingress.passes).checked_sub(1) else {
            let to = self.on_write(hdr, packet, on_full)?;
            let is_noop = packet.view().flags().has(Flags::NOOP);
            if is_noop || !self.guards.on(Guard::SeveralEntered) {
                return Ok(Way::To(to));
            }
            return Ok(Way::Round(Metadata::default()));
        };
        let routes = self.store.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        let (switch_id, head) = (routes.switch_id, routes.head);
        if hdr.seq.switch_id != switch_id {
            return Err(DropReason::Outlived);
        }
        let ids = hdr.further.as_slice();
        let Some(obj_id) = ids.get(at) else { return Ok(Way::To(head)) };
        let (keeps, counter_max) = (on_full == OnFull::Noop, self.layout.counter_max());
        match self.registers.ports().enter_further(*obj_id, hdr.seq.counter, keeps, counter_max) {
            Entered::Exhausted => return Err(DropReason::SeqExhausted),
            Entered::Overtaken(number) => {
                self.store.counters.writes_overtaken += 1;
                packet.set_seq(Seq::new(switch_id, number));
                packet.set_flags(hdr.flags.with(Flags::WILDCARD));
                return Ok(Way::To(head));
            }
            Entered::Slot(Slot::None) => {
                self.no_slot(hdr, packet, on_full)?;
                if packet.view().flags().has(Flags::NOOP) {
                    return Ok(Way::To(head));
                }
            }
            Entered::Slot(Slot::TakenFromStray) => self.store.counters.strays_replaced += 1,
            Entered::Slot(Slot::Taken | Slot::NotNeeded | Slot::AllKeys) => {}
        }
        if at + 1 < ids.len() {
            return Ok(Way::Round(Metadata::default()));
        }
        self.store.counters.writes_several += 1;
        Ok(Way::To(head))
    }

    /// A pass of a read. Its metadata for the next pass is the switch id under which the objects so
    /// far were clean.
    fn read_several(
        &mut self,
        ingress: &Ingress<'_>,
        hdr: &Repr,
        packet: &mut PacketMut<'_>,
    ) -> Result<Way, DropReason> {
        let routes = self.store.routes.as_ref().ok_or(DropReason::Unconfigured)?;
        let (ids, passes) = (hdr.further.as_slice(), usize::from(ingress.passes));
        let obj_id = passes.checked_sub(1).and_then(|at| ids.get(at)).copied();
        let read = self.registers.ports().read(obj_id.unwrap_or(hdr.obj_id));
        self.store.counters.strays_read += u64::from(read.strays_removed);
        let own = u64::from(routes.switch_id.0);
        let mut reason = reason(self.guards, &read);
        if passes > 0 && ingress.metadata.0[0] != own {
            reason = Reason::SlowNotReady;
        }
        if reason != Reason::Fast {
            return self.store.on_read(hdr, packet, reason).map(Way::To);
        }
        if passes < ids.len() && self.guards.on(Guard::SeveralClean) {
            return Ok(Way::Round(Metadata([own, 0])));
        }
        packet.set_reason(reason);
        packet.set_flags(hdr.flags.with(Flags::FAST));
        packet.set_last_committed(Seq::new(routes.switch_id, read.last_committed));
        self.store.counters.reads_fast += 1;
        self.store.counters.reads_several += 1;
        Ok(Way::To(routes.replica(hdr, self.layout.run_bits)))
    }
}
