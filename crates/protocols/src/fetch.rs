//! Records that the head lacks when an epoch opens, from a member with a longer log (trap T5).
//!
//! A record may have hundreds of fragments (trap T17): what has come is kept, and only what is missing is
//! asked for, up to [`ASKED_MAX`] fragments at a time. The last one of a question leads to the next
//! question, so that a lost fragment costs a round trip and not a time-out.

use concord_core::{Epoch, Guard, NodeId, Now, Position};
use concord_engine::Engine;
use concord_wire::control::{CopyMessage, Message as _};
use concord_wire::fragment::{Assembly, FragmentHdr};
use concord_wire::{COMMAND_BYTES_MAX, REPLY_BYTES_MAX, Sink};

use crate::replica::{Phase, Replica};

/// Most fragments that one question asks for: its bitmap has as many bits.
const ASKED_MAX: u32 = u64::BITS;
/// Longest encoded record that is taken, in bytes.
const RECORD_BYTES_MAX: usize = COMMAND_BYTES_MAX + REPLY_BYTES_MAX;

/// What the head has of the record that it fetches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fetching {
    position: Position,
    record: Option<Assembly>,
    /// The last fragment of the last question.
    last_asked: u32,
}

impl Fetching {
    /// The first missing fragment, and bits for it and those that follow.
    fn missing(&self) -> (u32, u64) {
        let Some(record) = &self.record else { return (0, u64::MAX) };
        let first = (0..record.fragments()).find(|index| !record.has(*index)).unwrap_or(0);
        let end = first.saturating_add(ASKED_MAX).min(record.fragments());
        let bit = |index: u32| u64::from(!record.has(index)) << (index - first);
        (first, (first..end).map(bit).sum())
    }

    /// Takes a fragment. Those of another record are given up: it is not asked for any more.
    fn take(&mut self, hdr: &FragmentHdr, piece: &[u8]) {
        let other = |own: &mut Assembly| {
            own.version() != hdr.version || own.total_bytes() != hdr.total_bytes
        };
        self.record.take_if(other);
        self.record.get_or_insert_with(|| Assembly::new(*hdr)).add(hdr, piece);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.record.as_ref().is_some_and(Assembly::is_complete)
    }
}

impl<E: Engine> Replica<E> {
    /// Longest wins (trap T5): the head asks for the records that another member has beyond its own.
    pub(crate) fn fetch_longer(&mut self, now: Now, sink: &mut impl Sink) {
        self.take_fetched(now, sink);
        if !self.is_head() || !self.setup.guards.on(Guard::EpochAgreement) {
            return;
        }
        let next = Position(self.log.end().position + 1);
        let longest = self.ends.iter().max_by_key(|(_, end)| end.position).copied();
        let Some((node, _)) = longest.filter(|(_, end)| end.position >= next.0) else { return };
        let Some(addr) = self.member_addr(node) else { return };
        if self.fetching.position != next {
            self.fetching = Fetching { position: next, ..Fetching::default() };
        }
        if self.fetching.is_complete() {
            return;
        }
        let (index, missing) = self.fetching.missing();
        self.fetching.last_asked = index + missing.ilog2();
        let (epoch, from) = (self.epoch().0, self.node().0);
        let fetch = CopyMessage::Fetch { epoch, from, position: next.0, index, missing };
        self.send_control(addr, &fetch, sink);
    }

    pub(crate) fn on_fetch(
        &mut self,
        epoch: Epoch,
        from: NodeId,
        position: Position,
        (first, missing): (u32, u64),
        sink: &mut impl Sink,
    ) {
        let Some(addr) = self.member_addr(from) else { return };
        if !self.is_epoch(epoch) || self.phase != Phase::Opening {
            return;
        }
        let Some((record, hash)) = self.log.record(position).zip(self.log.hash_at(position)) else {
            if position.0 <= self.log.base().position && self.setup.guards.on(Guard::FetchApart) {
                // It came with a copy, which has what was committed only: the head lacks some of that.
                self.count.members_apart += 1;
                let (epoch, from) = (epoch.0, self.node().0);
                self.send_control(addr, &CopyMessage::Apart { epoch, from, attempt: 0 }, sink);
            }
            return;
        };
        let total_bytes = record.len() as u32;
        let fragments = FragmentHdr { version: hash, total_bytes, index: 0, count: 1 }.fragments();
        let asked = (0..ASKED_MAX).filter(|bit| missing & (1 << bit) != 0);
        for index in asked.filter_map(|bit| first.checked_add(bit)).take_while(|i| *i < fragments) {
            let hdr = FragmentHdr { version: hash, total_bytes, index, count: 1 };
            let piece = record[hdr.range()].to_vec();
            let (epoch, position) = (epoch.0, position.0);
            CopyMessage::Fetched { epoch, position, hash, total_bytes, index, piece }
                .emit(&mut self.scratch);
            sink.send(addr, &self.scratch);
            self.count.fragments_fetched += 1;
        }
    }

    pub(crate) fn on_fetched(
        &mut self,
        now: Now,
        epoch: Epoch,
        position: Position,
        hdr: FragmentHdr,
        piece: &[u8],
        sink: &mut impl Sink,
    ) {
        if !self.is_epoch(epoch)
            || self.phase != Phase::Opening
            || position.0 != self.log.end().position + 1
            || position != self.fetching.position
            || hdr.total_bytes as usize > RECORD_BYTES_MAX
            || hdr.index >= hdr.fragments()
        {
            return;
        }
        self.fetching.take(&hdr, piece);
        let last = self.fetching.last_asked.min(hdr.fragments() - 1);
        if self.fetching.is_complete() || hdr.index == last {
            self.fetch_longer(now, sink);
        }
    }

    /// Takes the record that was fetched, once nothing is pending: a write that this replica ordered
    /// itself may still move the end of its log.
    fn take_fetched(&mut self, now: Now, sink: &mut impl Sink) {
        let is_next = self.fetching.position.0 == self.log.end().position + 1;
        if self.phase != Phase::Opening
            || !is_next
            || !self.fetching.is_complete()
            || !self.pending.is_empty()
        {
            return;
        }
        let Some(record) = core::mem::take(&mut self.fetching).record else { return };
        self.count.records_fetched += 1;
        self.on_record(now, &record.into_bytes(), sink);
        self.try_open(now, sink);
    }
}
