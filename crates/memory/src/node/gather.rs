//! The coherence of GAM (Cai et al., *Efficient Distributed Memory Management with RDMA and
//! Caching*, VLDB 2018), as far as it differs from that of CONCORDIA-base.
//!
//! - A home gathers the acknowledgements of invalidations, and grants a write once it has all of
//!   them. In Concordia the writer gathers them itself.
//! - A home answers reads itself if it has the newest value. The owner of a modified block sends
//!   the block to the reader and to the home.
//! - Writes are asynchronous: callers receive the outcome before the write takes effect. A fence
//!   waits for the writes before it. An access to a block never overtakes the node's earlier writes
//!   of that block.
//!
//! Locks, event numbers, versions and unlocks are those of the other coherences: GAM's connections
//! deliver messages in order and without loss, and our packets may be lost or reordered.

use alloc::vec::Vec;

use concord_core::{Guard, Sink};
use concord_wire::concordia::{Copyset, Op, Outcome, Repr};

use super::{Node, send_data};
use crate::access::{Access, Call, Done};
use crate::blocks::parts;
use crate::gathers::{Gather, POSTED_MAX};
use crate::settings::Coherence;

impl Node {
    /// Whether homes gather acknowledgements.
    pub(super) fn gathers_here(&self) -> bool {
        self.settings.coherence == Coherence::Gam
    }

    /// Notes which copies a write request, sent to the nodes `to`, invalidates. Returns the nodes
    /// to which it still has to be sent: those that have not acknowledged, and the data provider.
    pub(super) fn gather(&mut self, asked: &Repr, to: Copyset, sink: &mut impl Sink) -> Copyset {
        if !matches!(asked.op, Op::WriteMiss | Op::WriteShared) || to.is_empty() {
            return to;
        }
        let provider = asked.provider.map_or(Copyset::default(), Copyset::of);
        let all = to.without(provider);
        if all.is_empty() {
            return to;
        }
        let lane = (asked.place, asked.lane);
        let is_same = |own: &&Gather| own.asked.number == asked.number;
        let known = self.gathers.get(&lane).filter(is_same).map(|own| own.missing);
        let waits = self.has(Guard::HomeGathered);
        let missing = known.unwrap_or(all);
        self.gathers.insert(lane, Gather { asked: *asked, missing });
        if missing.is_empty() || !waits {
            self.grant(asked, sink);
        }
        Copyset(missing.0 | provider.0)
    }

    /// Tells the requester that all other copies are invalidated.
    fn grant(&self, asked: &Repr, sink: &mut impl Sink) {
        let Some(requester) = self.settings.nodes.get(usize::from(asked.place)).copied() else {
            return;
        };
        let answer = Repr { provider: None, ..*asked };
        if asked.op == Op::WriteMiss && asked.provider.is_none() {
            send_data(requester, &answer, &self.home.data(asked.tag), sink);
        } else {
            let ack = Repr { op: Op::Ack, outcome: Outcome::Done, ..answer };
            sink.send(requester, &ack.packet(&[]));
        }
    }

    /// Handles the acknowledgement of an agent that has invalidated its copy.
    pub(super) fn on_gathered(&mut self, packet: &Repr, sink: &mut impl Sink) {
        let by = packet.provider.map_or(Copyset::default(), Copyset::of);
        let own = self.gathers.get_mut(&(packet.place, packet.lane));
        let is_its = |own: &&mut Gather| {
            let asked = &own.asked;
            (asked.number, asked.tag) == (packet.number, packet.tag)
        };
        let awaited = own.filter(is_its).filter(|own| own.missing.without(by) != own.missing);
        let Some(own) = awaited else {
            self.counters.stale += 1;
            return;
        };
        own.missing = own.missing.without(by);
        let asked = own.asked;
        if own.missing.is_empty() && self.has(Guard::HomeGathered) {
            self.grant(&asked, sink);
        }
    }

    /// Sends the content of a copy that was downgraded from modified to shared to the home of its
    /// block. If a packet is lost, the home's value stays stale, as the block's status says.
    pub(super) fn send_downgraded(&self, answer: &Repr, data: &[u8], sink: &mut impl Sink) {
        let Some(home) = self.home_of(answer.tag) else { return };
        for (offset_bytes, part) in parts(data) {
            sink.send(home, &Repr { op: Op::WriteBack, offset_bytes, ..*answer }.packet(part));
        }
    }

    /// Answers the newest call if it is an asynchronous write that has to wait: it takes effect
    /// later.
    pub(super) fn post(&mut self) {
        if !self.gathers_here() {
            return;
        }
        let posted = self.calls.iter().filter(|call| call.access.is_posted()).count();
        let Some(Call { id, access, .. }) = self.calls.back_mut() else { return };
        if let Access::Write { offset_bytes, data } = access
            && posted < POSTED_MAX
        {
            let (offset_bytes, data) = (*offset_bytes, core::mem::take(data));
            *access = Access::Posted { offset_bytes, data };
            self.done.push_back(Done { id: *id, result: Ok(Vec::new()) });
        }
    }
}
