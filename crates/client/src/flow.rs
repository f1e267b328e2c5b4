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

use concord_core::{Duration, Instant, MS};

use crate::slots::{Slot, Slots, State};

/// Most large writes that have their turn at once.
const LARGE_WRITES_MAX: u32 = 16;
/// Most bytes of large writes that are taken, those that wait for their turn included.
const LARGE_WRITES_BYTES_MAX: usize = 64 << 20;
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

/// Whether a large write has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It has.
    Has,
    /// It waits; `is_new` if it did not before.
    Waits { is_new: bool },
}

/// What is under way, and what waits for its turn.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Fragments under way.
    out: u32,
    out_max: u32,
    arrived: u32,
    cut_at: Instant,
    timed: Option<Timed>,
    timed_again: u8,
    /// Large writes that have their turn, and those that wait for it.
    large_writes: u32,
    waiting_writes: BTreeSet<u64>,
    /// Bytes of all large writes.
    large_bytes: usize,
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

    /// Fragments are under way.
    pub fn sent(&mut self, count: u32) {
        self.out += count;
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
    pub fn timed(&mut self, now: Instant, number: u64, part: u32) -> Option<Duration> {
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

    /// Whether another large write would be taken.
    pub fn has_room_for_large(&self) -> bool {
        self.large_bytes < LARGE_WRITES_BYTES_MAX
    }

    /// A large write was taken.
    pub fn take_large(&mut self, slot: &Slot) {
        self.large_bytes += slot.packet.len();
    }

    /// Takes a turn for a large write, or lets it wait. In their order: one that waits for another one
    /// has its turn later. Who may go on now is put to `ready`.
    pub fn take_turn(&mut self, slot: &mut Slot, ready: &mut VecDeque<u64>) -> Turn {
        if slot.has_turn {
            return Turn::Has;
        }
        let number = slot.number;
        let is_first = self.waiting_writes.first().is_none_or(|first| number <= *first);
        if !is_first || self.large_writes >= self.transfers_max(LARGE_WRITES_MAX) {
            return Turn::Waits { is_new: self.waiting_writes.insert(number) };
        }
        self.waiting_writes.remove(&number);
        self.large_writes += 1;
        slot.has_turn = true;
        ready.extend(self.waiting_writes.first());
        Turn::Has
    }

    /// A request ends: others have their turn, and are put to `ready`.
    pub fn end_turns(&mut self, slot: &mut Slot, ready: &mut VecDeque<u64>) {
        self.end_download(slot);
        if !slot.is_large() {
            return;
        }
        self.large_bytes = self.large_bytes.saturating_sub(slot.packet.len());
        self.waiting_writes.remove(&slot.number);
        if core::mem::take(&mut slot.has_turn) {
            self.large_writes -= 1;
        }
        ready.extend(self.waiting_writes.first());
    }

    /// Takes a turn for a long reply of `bytes`, or keeps the one that it has; whether it has one.
    pub fn take_download_turn(&mut self, slot: &mut Slot, bytes: u32) -> bool {
        if slot.is_downloading {
            self.download_bytes -= slot.reply_bytes as usize;
        } else if !self.has_turn_for(bytes as usize) {
            slot.reply_bytes = bytes;
            return false;
        } else {
            self.downloads += 1;
        }
        slot.is_downloading = true;
        slot.reply_bytes = bytes;
        self.download_bytes += bytes as usize;
        true
    }

    /// A long reply is not pulled any more.
    pub fn end_download(&mut self, slot: &mut Slot) {
        if core::mem::take(&mut slot.is_downloading) {
            self.downloads -= 1;
            self.download_bytes -= slot.reply_bytes as usize;
            self.ended += 1;
        }
    }

    /// A long reply waits for its turn.
    pub fn park(&mut self, number: u64) {
        self.parked.push_back(number);
    }

    /// The next request that is to be sent again: its long reply waited, and has its turn now.
    pub fn next_parked(&mut self, slots: &mut Slots) -> Option<u64> {
        while let Some(number) = self.parked.front().copied() {
            let waits = |s: &&mut Slot| {
                s.state == State::Parked && s.transfer.is_none() && !s.is_downloading
            };
            let Some(slot) = slots.live_mut(number).filter(waits) else {
                self.parked.pop_front();
                continue;
            };
            let bytes = slot.reply_bytes;
            if !self.take_download_turn(slot, bytes) {
                return None;
            }
            self.parked.pop_front();
            return Some(number);
        }
        None
    }

    /// The next read that is to be sent again: a replica had no room to answer it, and another long
    /// reply has come since.
    pub fn next_refused(&mut self, slots: &Slots) -> Option<u64> {
        while self.ended > 0 {
            self.ended -= 1;
            let Some(number) = self.refused.pop_front() else { continue };
            if slots.live(number).is_some_and(|slot| slot.state == State::Sent) {
                return Some(number);
            }
        }
        None
    }

    /// The next long reply whose bytes are to be granted, and their number.
    pub fn poll_offer(&mut self, slots: &Slots) -> Option<(u64, u32)> {
        while let Some((number, bytes)) = self.offers.pop_front() {
            let slot = slots.live(number);
            if slot.is_some_and(|slot| slot.state == State::Parked && slot.granted_bytes < bytes) {
                return Some((number, bytes));
            }
        }
        None
    }
}
