//! How much of long values is under way at once (trap T17). A replica has room for some transfers, and
//! each socket on the way for some packets: a few transfers go on at a time and the others wait, so that
//! those that were begun come to their end.
//!
//! - Large writes have their turn one after the other, in their order: from the first fragment of the
//!   body until the write is answered.
//! - A long reply that has no turn is given back to its replica, and asked for again in its turn.
//! - Fragments under way are bounded by a window that grows with what arrives and is halved by what is
//!   lost (Jacobson 1988).

use alloc::collections::{BTreeSet, VecDeque};

use concord_core::{Duration, Instant, MS, Now, RequestNumber};
use concord_wire::Sink;
use concord_wire::rpc::READ_BIT;

use crate::api::Withdrawn;
use crate::client::Client;
use crate::slots::State;
use crate::timers::Lane;
use crate::transfer::Transfer;

/// Most large writes that have their turn at once.
const LARGE_WRITES_MAX: u32 = 16;
/// Most bytes of large writes that are taken, those that wait for their turn included.
pub const LARGE_WRITES_BYTES_MAX: usize = 64 << 20;
/// Most long replies that are pulled at once.
const DOWNLOADS_MAX: u32 = 16;
/// Most bytes of long replies that are pulled at once, if it is more than one.
const DOWNLOADS_BYTES_MAX: usize = 32 << 20;
/// Bounds of the window of fragments under way, of all requests together.
const PARTS_MIN: u32 = 64;
const PARTS_START: u32 = 256;
const PARTS_MAX: u32 = 1_024;
/// By how much the window grows when a window of fragments has arrived.
const PARTS_STEP: u32 = 16;
/// What is lost at once halves the window once.
const CUT_NS: Duration = 50 * MS;
/// Fragments that each transfer may have under way, however small the window: a window is not shared
/// by more transfers than have that much of it.
const PARTS_EACH: u32 = 16;
/// A fragment whose round trip takes longer is not waited for.
const TIMED_NS_MAX: Duration = 1_000 * MS;
/// So many measured parts in a row that were sent again were not all lost: the time-out is too short.
const TIMED_AGAIN_MAX: u8 = 4;

/// The fragment, or block of them, whose round trip is measured.
#[derive(Clone, Copy, Debug)]
struct Timed {
    number: u64,
    part: u32,
    sent_at: Instant,
    sent_again: bool,
}

/// What is under way, and what waits for its turn.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Fragments under way.
    pub out: u32,
    out_max: u32,
    arrived: u32,
    cut_at: Instant,
    timed: Option<Timed>,
    timed_again: u8,
    /// Large writes that have their turn, and those that wait for it.
    large_writes: u32,
    waiting_writes: BTreeSet<u64>,
    /// Bytes of all large writes.
    pub large_bytes: usize,
    /// Long replies that have their turn.
    downloads: u32,
    download_bytes: usize,
    /// Long replies that wait for their turn.
    parked: VecDeque<u64>,
    /// Reads that a replica had no room to answer.
    refused: VecDeque<u64>,
    /// Downloads that ended since refused reads were sent again.
    ended: u32,
    /// Long replies whose bytes the client's user has not granted yet.
    offers: VecDeque<(u64, u32)>,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            out: 0,
            out_max: PARTS_START,
            arrived: 0,
            cut_at: Instant(0),
            timed: None,
            timed_again: 0,
            large_writes: 0,
            waiting_writes: BTreeSet::new(),
            large_bytes: 0,
            downloads: 0,
            download_bytes: 0,
            parked: VecDeque::new(),
            refused: VecDeque::new(),
            ended: 0,
            offers: VecDeque::new(),
        }
    }
}

impl Flow {
    /// How many fragments a transfer may have under way, `window` at most.
    pub fn window(&self, window: u32) -> u32 {
        if self.out < self.out_max { window } else { PARTS_EACH.min(window) }
    }

    /// How many transfers of a kind share the window.
    fn transfers_max(&self, most: u32) -> u32 {
        (self.out_max / PARTS_EACH).clamp(1, most)
    }

    /// Fragments arrived, or are not waited for any more.
    pub fn ended(&mut self, count: u32) {
        self.out = self.out.saturating_sub(count);
    }

    /// A fragment arrived.
    pub fn arrived(&mut self) {
        self.ended(1);
        self.arrived += 1;
        if self.arrived >= self.out_max {
            self.arrived = 0;
            self.out_max = (self.out_max + PARTS_STEP).min(PARTS_MAX);
        }
    }

    /// Fragments were lost, or somebody had no room for them.
    pub fn lost(&mut self, now: Instant) {
        if now >= self.cut_at.after(CUT_NS) {
            self.cut_at = now;
            self.out_max = (self.out_max / 2).max(PARTS_MIN);
        }
    }

    /// A part was sent for the first time.
    pub fn time(&mut self, now: Instant, number: u64, part: u32) {
        let is_old = |timed: &Timed| now.since(timed.sent_at) > TIMED_NS_MAX;
        if self.timed.as_ref().is_none_or(is_old) {
            self.timed = Some(Timed { number, part, sent_at: now, sent_again: false });
        }
    }

    /// A part is sent again.
    pub fn time_again(&mut self, number: u64, part: u32) {
        if let Some(timed) = self.timed.as_mut().filter(|t| (t.number, t.part) == (number, part)) {
            timed.sent_again = true;
        }
    }

    /// The round trip of a part that has come, if it was measured. Of one that was sent again nobody
    /// knows which sending arrived (Karn, Partridge 1987): it counts only if that is so for several in
    /// a row.
    fn timed(&mut self, now: Instant, number: u64, part: u32) -> Option<Duration> {
        let timed = self.timed.take_if(|t| (t.number, t.part) == (number, part))?;
        self.timed_again = if timed.sent_again { self.timed_again + 1 } else { 0 };
        if timed.sent_again && self.timed_again < TIMED_AGAIN_MAX {
            return None;
        }
        self.timed_again = 0;
        Some(now.since(timed.sent_at))
    }

    fn has_turn_for(&self, bytes: usize) -> bool {
        self.downloads == 0
            || (self.downloads < self.transfers_max(DOWNLOADS_MAX)
                && self.download_bytes + bytes <= DOWNLOADS_BYTES_MAX)
    }

    /// A read that a replica had no room to answer goes again when another one's reply has come, or
    /// when its time has.
    pub fn refused(&mut self, number: u64) {
        self.refused.push_back(number);
    }

    /// A long reply is there for whoever grants its bytes.
    pub fn offer(&mut self, number: u64, bytes: u32) {
        self.offers.push_back((number, bytes));
    }
}

impl Client {
    /// Whether a large write has its turn; else it waits for it. In their order: one that waits for
    /// another one has its turn later.
    pub(crate) fn take_turn(&mut self, number: u64) -> bool {
        let flow = &mut self.flow;
        let Some(slot) = self.slots.live_mut(number) else { return false };
        if slot.has_turn {
            return true;
        }
        let is_first = flow.waiting_writes.first().is_none_or(|first| number <= *first);
        if !is_first || flow.large_writes >= flow.transfers_max(LARGE_WRITES_MAX) {
            if flow.waiting_writes.insert(number) {
                self.count.large_waited += 1;
            }
            return false;
        }
        flow.waiting_writes.remove(&number);
        flow.large_writes += 1;
        slot.has_turn = true;
        self.ready.extend(flow.waiting_writes.first());
        true
    }

    /// A request ends: others have their turn.
    pub(crate) fn end_turns(&mut self, number: u64) {
        self.end_download(number);
        let flow = &mut self.flow;
        let Some(slot) = self.slots.live_mut(number).filter(|slot| slot.is_large()) else { return };
        flow.large_bytes = flow.large_bytes.saturating_sub(slot.packet.len());
        flow.waiting_writes.remove(&number);
        if core::mem::take(&mut slot.has_turn) {
            flow.large_writes -= 1;
        }
        self.ready.extend(flow.waiting_writes.first());
    }

    /// Takes a turn for a long reply, or keeps the one that it has.
    pub(crate) fn take_download_turn(&mut self, number: u64, bytes: u32) -> bool {
        let flow = &mut self.flow;
        let Some(slot) = self.slots.live_mut(number) else { return false };
        if slot.is_downloading {
            flow.download_bytes -= slot.reply_bytes as usize;
        } else if !flow.has_turn_for(bytes as usize) {
            slot.reply_bytes = bytes;
            return false;
        } else {
            flow.downloads += 1;
        }
        slot.is_downloading = true;
        slot.reply_bytes = bytes;
        flow.download_bytes += bytes as usize;
        true
    }

    pub(crate) fn end_download(&mut self, number: u64) {
        let Some(slot) = self.slots.live_mut(number) else { return };
        if core::mem::take(&mut slot.is_downloading) {
            self.flow.downloads -= 1;
            self.flow.download_bytes -= slot.reply_bytes as usize;
            self.flow.ended += 1;
        }
    }

    /// A long reply waits for its turn.
    pub(crate) fn park(&mut self, number: u64, sink: &mut impl Sink) {
        self.give_back_reply(number, sink);
        self.count.replies_waited += 1;
        self.flow.parked.push_back(number);
    }

    /// Long replies that waited are asked for again, as far as it is their turn.
    pub(crate) fn run_parked(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(number) = self.flow.parked.front().copied() {
            let waits = |s: &&mut crate::slots::Slot| {
                s.state == State::Parked && s.transfer.is_none() && !s.is_downloading
            };
            let Some(bytes) = self.slots.live_mut(number).filter(waits).map(|s| s.reply_bytes)
            else {
                self.flow.parked.pop_front();
                continue;
            };
            if !self.take_download_turn(number, bytes) {
                break;
            }
            self.flow.parked.pop_front();
            self.transmit(now, number, sink);
        }
        while self.flow.ended > 0 {
            self.flow.ended -= 1;
            let Some(number) = self.flow.refused.pop_front() else { continue };
            if self.slots.live(number).is_some_and(|slot| slot.state == State::Sent) {
                self.transmit(now, number, sink);
            }
        }
    }

    /// The next long reply that waits for [`Client::grant`] or [`Client::withdraw`], and its length in
    /// bytes; only with [`crate::ClientConfig::grants_replies`].
    pub fn poll_offer(&mut self) -> Option<(RequestNumber, u32)> {
        while let Some((number, bytes)) = self.flow.offers.pop_front() {
            let slot = self.slots.live(number);
            if slot.is_some_and(|slot| slot.state == State::Parked && slot.granted_bytes < bytes) {
                return Some((RequestNumber(number), bytes));
            }
        }
        None
    }

    /// The reply to an unanswered request may have so many bytes. One that was offered is pulled.
    pub fn grant(&mut self, now: Now, request: RequestNumber, bytes: u32, sink: &mut impl Sink) {
        let number = request.0;
        let Some(slot) = self.slots.live_mut(number) else { return };
        slot.granted_bytes = bytes;
        if slot.state == State::Parked {
            self.begin_download(now, number, sink);
            self.run_ready(now, sink);
        }
    }

    /// Takes a read back whose reply was offered: it is not answered any more, and may be submitted
    /// anew. Its replica need not keep the reply.
    pub fn withdraw(&mut self, read: RequestNumber, sink: &mut impl Sink) -> Option<Withdrawn> {
        let number = read.0;
        let is_offered = |s: &&crate::slots::Slot| {
            number & READ_BIT != 0 && matches!(s.transfer.as_deref(), Some(Transfer::Offer(_)))
        };
        self.slots.live(number).filter(is_offered)?;
        self.count.replies_waited += 1;
        self.give_back_reply(number, sink);
        self.end_turns(number);
        let slot = self.slots.live_mut(number)?;
        let (obj_id, flags) = (slot.obj_id, slot.flags);
        let packet = core::mem::take(&mut slot.packet);
        self.slots.remove(number);
        Some(Withdrawn { obj_id, flags, packet })
    }

    /// A part has come: its round trip, if it was measured.
    pub(crate) fn sample_part(&mut self, now: Instant, number: u64, part: u32) {
        if let Some(rtt_ns) = self.flow.timed(now, number, part) {
            self.timers.sample(Lane::Part, rtt_ns);
        }
    }
}
