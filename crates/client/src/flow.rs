//! Flow control of long values (trap T17). A replica has room for some transfers, and each socket
//! on the way for some packets: a few transfers run at a time and the others wait, so that
//! transfers that were begun complete.
//!
//! - Large writes are admitted in their order, each from the first fragment of its body until the
//!   write is answered.
//! - A long reply that is not admitted is released at its replica, and requested again later.
//! - A window bounds the fragments in flight. It grows with arrivals, is halved by losses (Jacobson
//!   1988), and shrinks while fragments queue on their way (Brakmo 1995), since small replies wait
//!   behind them.

use alloc::collections::{BTreeSet, VecDeque};

use concord_core::{Duration, Instant, MS, US};

use crate::api::Size;
use crate::slots::{Slot, Slots, State};

/// The largest number of large writes that are admitted at once.
const LARGE_WRITES_MAX: u32 = 16;
/// The largest total size of large writes, with those that wait, in bytes; and the same of huge
/// ones, which take nobody else's room.
const LARGE_WRITES_BYTES_MAX: usize = 64 << 20;
/// The largest number of long replies that are pulled at once.
const DOWNLOADS_MAX: u32 = 16;
/// The largest total size of long replies that are pulled at once, if there are several, in bytes.
const DOWNLOADS_BYTES_MAX: usize = 32 << 20;
/// Bounds of the window of fragments in flight, for all requests together.
const PARTS_MIN: u32 = 64;
const PARTS_START: u32 = 256;
const PARTS_MAX: u32 = 1_024;
/// By how much the window grows when a window of fragments has arrived.
const PARTS_STEP: u32 = 16;
/// By how much a round trip may be longer than the shortest one, of which it may be twice, before
/// fragments are taken to queue.
const QUEUE_NS: Duration = 100 * US;
/// Losses within this time halve the window once.
const CUT_NS: Duration = 50 * MS;
/// The number of fragments that each transfer may have in flight, however small the window: so many
/// fewer transfers share a small window.
const PARTS_EACH: u32 = 16;
/// The window while long replies must not delay others.
const PARTS_MODEST: u32 = 32;
/// A fragment whose round trip takes longer is not waited for.
const TIMED_NS_MAX: Duration = 1_000 * MS;
/// The number of successive measured parts that were resent after which the time-out counts as too
/// short.
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
pub enum Admission {
    /// The transfer is admitted.
    Admitted,
    /// The transfer waits; `is_new` if it did not before.
    Waits { is_new: bool },
}

/// The transfers in progress, and those that wait.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The number of fragments in flight.
    out: u32,
    out_max: u32,
    arrived: u32,
    cut_at: Instant,
    timed: Option<Timed>,
    timed_again: u8,
    /// The shortest round trip, which grows slowly, since ways change.
    shortest_ns: Option<Duration>,
    /// The last round trip was one of fragments that queue.
    is_queueing: bool,
    /// Whether long replies must not delay others.
    pub is_modest: bool,
    /// Large writes that have their turn, and those that wait for it.
    large_writes: u32,
    waiting_writes: BTreeSet<u64>,
    /// Bytes of all large writes, and of all huge ones.
    large_bytes: usize,
    huge_bytes: usize,
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
            shortest_ns: None,
            is_queueing: false,
            is_modest: false,
            large_writes: 0,
            waiting_writes: BTreeSet::new(),
            large_bytes: 0,
            huge_bytes: 0,
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
    /// The number of fragments that a transfer may have in flight, at most `window`.
    pub fn window(&self, window: u32) -> u32 {
        let out_max = if self.is_modest { PARTS_MODEST } else { self.out_max };
        if self.out < out_max { window.min(out_max) } else { PARTS_EACH.min(window) }
    }

    /// The number of transfers of a kind that share the window.
    fn transfers_max(&self, most: u32) -> u32 {
        (self.out_max / PARTS_EACH).clamp(1, most)
    }

    /// Notes that fragments were sent.
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
            let step = if self.is_queueing { 0 } else { PARTS_STEP };
            self.out_max = (self.out_max + step).min(PARTS_MAX);
        }
    }

    /// Adjusts the window by a round-trip time, which shows queues on the way.
    fn note_round_trip(&mut self, rtt_ns: Duration) {
        let known_ns = self.shortest_ns.unwrap_or(rtt_ns);
        let shortest_ns = rtt_ns.min(known_ns + known_ns / 64);
        self.shortest_ns = Some(shortest_ns);
        self.is_queueing = rtt_ns > 2 * shortest_ns + QUEUE_NS;
        if self.is_queueing {
            self.out_max = (self.out_max - self.out_max / 8).max(PARTS_MIN);
        }
    }

    /// Notes that fragments were lost, or that a replica had no room for them.
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

    /// The round-trip time of a part that has arrived, if it was measured. For a resent part it is
    /// ambiguous which transmission arrived (Karn and Partridge 1987): it counts only after several
    /// such parts in a row.
    pub fn timed(&mut self, now: Instant, number: u64, part: u32) -> Option<Duration> {
        let timed = self.timed.take_if(|t| (t.number, t.part) == (number, part))?;
        self.timed_again = if timed.sent_again { self.timed_again + 1 } else { 0 };
        if timed.sent_again && self.timed_again < TIMED_AGAIN_MAX {
            return None;
        }
        self.timed_again = 0;
        let rtt_ns = now.since(timed.sent_at);
        self.note_round_trip(rtt_ns);
        Some(rtt_ns)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.downloads == 0
            || (self.downloads < self.transfers_max(DOWNLOADS_MAX)
                && self.download_bytes + bytes <= DOWNLOADS_BYTES_MAX)
    }

    /// A read that a replica had no room to answer goes again when another one's reply has come, or
    /// when its time has.
    pub fn refused(&mut self, number: u64) {
        self.refused.push_back(number);
    }

    /// Offers a long reply, which is pulled once its bytes are granted.
    pub fn offer(&mut self, number: u64, bytes: u32) {
        self.offers.push_back((number, bytes));
    }

    /// Whether another write of that size would be taken.
    pub fn has_room_for_write(&self, size: Size) -> bool {
        match size {
            Size::Small => true,
            Size::Large => self.large_bytes < LARGE_WRITES_BYTES_MAX,
            Size::Huge => self.huge_bytes < LARGE_WRITES_BYTES_MAX,
        }
    }

    /// The bytes of all writes of that size.
    fn bytes_of(&mut self, size: Size) -> Option<&mut usize> {
        match size {
            Size::Small => None,
            Size::Large => Some(&mut self.large_bytes),
            Size::Huge => Some(&mut self.huge_bytes),
        }
    }

    /// A write was taken.
    pub fn take_write(&mut self, slot: &Slot) {
        if let Some(bytes) = self.bytes_of(slot.size()) {
            *bytes += slot.packet.len();
        }
    }

    /// Takes a turn for a large write, or lets it wait. In their order: one that waits for another
    /// one has its turn later. Who may go on now is put to `ready`.
    pub fn admit(&mut self, slot: &mut Slot, ready: &mut VecDeque<u64>) -> Admission {
        if slot.is_admitted {
            return Admission::Admitted;
        }
        let number = slot.number;
        let is_first = self.waiting_writes.first().is_none_or(|first| number <= *first);
        if !is_first || self.large_writes >= self.transfers_max(LARGE_WRITES_MAX) {
            return Admission::Waits { is_new: self.waiting_writes.insert(number) };
        }
        self.waiting_writes.remove(&number);
        self.large_writes += 1;
        slot.is_admitted = true;
        ready.extend(self.waiting_writes.first());
        Admission::Admitted
    }

    /// A request ends: others have their turn, and are put to `ready`.
    pub fn release(&mut self, slot: &mut Slot, ready: &mut VecDeque<u64>) {
        self.end_download(slot);
        if !slot.is_large() {
            return;
        }
        if let Some(bytes) = self.bytes_of(slot.size()) {
            *bytes = bytes.saturating_sub(slot.packet.len());
        }
        self.waiting_writes.remove(&slot.number);
        if core::mem::take(&mut slot.is_admitted) {
            self.large_writes -= 1;
        }
        ready.extend(self.waiting_writes.first());
    }

    /// Takes a turn for a long reply of `bytes`, or keeps the one that it has; whether it has one.
    pub fn admit_download(&mut self, slot: &mut Slot, bytes: u32) -> bool {
        if slot.is_downloading {
            self.download_bytes -= slot.reply_bytes as usize;
        } else if !self.has_room_for(bytes as usize) {
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
            if !self.admit_download(slot, bytes) {
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

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use concord_wire::rpc::{BODY_BYTES_MAX, HEADER_BYTES};

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * MS)
    }

    /// How many fragments may be under way before a transfer is held to a small window.
    fn room(flow: &Flow) -> u32 {
        let mut probe = flow.clone();
        probe.out = 0;
        let mut room = 0;
        while probe.window(64) == 64 {
            probe.sent(1);
            room += 1;
        }
        room
    }

    fn large_write(number: u64) -> Slot {
        let packet = vec![0; HEADER_BYTES + BODY_BYTES_MAX + 1];
        Slot { number, packet, ..Slot::default() }
    }

    /// The window grows with what arrives and is halved once by what is lost together.
    #[test]
    fn window_grows_and_halves_once_per_loss() {
        let mut flow = Flow::default();
        assert_eq!(room(&flow), 256);
        for _ in 0..256 {
            assert_eq!(room(&flow), 256);
            flow.sent(1);
            flow.arrived();
        }
        assert_eq!(room(&flow), 272, "a window of them has arrived");
        for (ms, left) in [(1_000, 136), (1_049, 136), (1_050, 68), (1_100, 64), (1_150, 64)] {
            flow.lost(at(ms));
            assert_eq!(room(&flow), left, "at {ms} ms");
        }
        for _ in 0..100_000 {
            flow.sent(1);
            flow.arrived();
        }
        assert_eq!(room(&flow), 1_024, "and no more");
    }

    /// The window shrinks while fragments queue and grows again once they do not.
    #[test]
    fn window_shrinks_while_fragments_queue() {
        let mut flow = Flow::default();
        let round_trip = |flow: &mut Flow, part: u32, us: u64| {
            flow.time(Instant(0), 1, part);
            flow.timed(Instant(us * US), 1, part).unwrap();
            for _ in 0..room(flow) {
                flow.sent(1);
                flow.arrived();
            }
            room(flow)
        };
        let rooms = [100, 299, 310, 400, 400, 400, 400, 400, 400, 400, 120].iter().zip(0..);
        let rooms: Vec<u32> = rooms.map(|(us, part)| round_trip(&mut flow, part, *us)).collect();
        assert_eq!(rooms, [272, 288, 252, 221, 194, 170, 149, 131, 115, 101, 117]);
    }

    #[test]
    fn beyond_the_window_each_transfer_has_a_small_one_of_its_own() {
        let mut flow = Flow::default();
        flow.sent(255);
        assert_eq!((flow.window(32), flow.window(8)), (32, 8));
        flow.sent(1);
        assert_eq!((flow.window(32), flow.window(8)), (16, 8));
        flow.ended(1);
        assert_eq!(flow.window(32), 32);
        flow.ended(1_000);
        assert_eq!(flow.window(32), 32, "more cannot end than was begun");
    }

    /// One part is timed at a time and one that takes too long is not waited for.
    #[test]
    fn one_part_is_timed_at_a_time() {
        let mut flow = Flow::default();
        flow.time(at(10), 1, 5);
        flow.time(at(11), 2, 6);
        assert_eq!(flow.timed(at(15), 2, 6), None);
        assert_eq!(flow.timed(at(15), 1, 4), None);
        assert_eq!(flow.timed(at(15), 1, 5), Some(5 * MS));
        assert_eq!(flow.timed(at(15), 1, 5), None, "once");
        flow.time(at(20), 1, 7);
        flow.time(at(1_020), 1, 8);
        assert_eq!(flow.timed(at(1_020), 1, 8), None, "the other one may come yet");
        flow.time(at(1_021), 1, 9);
        assert_eq!(flow.timed(at(1_022), 1, 9), Some(MS));
    }

    /// Karn: nobody knows which sending arrived; but where that is so again and again, the time-out
    /// is short.
    #[test]
    fn resent_parts_count_after_four_in_a_row() {
        let mut flow = Flow::default();
        let mut part = 0;
        let mut measure = |flow: &mut Flow, again: bool| {
            part += 1;
            flow.time(at(1), 1, part);
            flow.time_again(1, part + 1);
            flow.time_again(2, part);
            if again {
                flow.time_again(1, part);
            }
            flow.timed(at(3), 1, part)
        };
        let some = Some(2 * MS);
        for (again, expected) in [
            (true, None),
            (true, None),
            (true, None),
            (false, some),
            (true, None),
            (true, None),
            (true, None),
            (true, some),
            (true, None),
        ] {
            assert_eq!(measure(&mut flow, again), expected);
        }
    }

    /// Large writes have their turn in their order and others when one ends.
    #[test]
    fn large_writes_in_order() {
        let (mut flow, mut ready) = (Flow::default(), VecDeque::new());
        let mut slots: Vec<Slot> = (1..=20).map(large_write).collect();
        let mut admit = |slot: &mut Slot, ready: &mut VecDeque<u64>| flow.admit(slot, ready);
        for slot in &mut slots[..16] {
            assert_eq!(admit(slot, &mut ready), Admission::Admitted);
            assert_eq!(admit(slot, &mut ready), Admission::Admitted, "it keeps it");
        }
        assert_eq!(admit(&mut slots[17], &mut ready), Admission::Waits { is_new: true });
        assert_eq!(admit(&mut slots[17], &mut ready), Admission::Waits { is_new: false });
        assert_eq!(admit(&mut slots[16], &mut ready), Admission::Waits { is_new: true });
        assert!(ready.is_empty());
        flow.release(&mut slots[3], &mut ready);
        assert_eq!(ready.pop_front(), Some(17), "the lowest of those that wait");
        let mut admit = |slot: &mut Slot, ready: &mut VecDeque<u64>| flow.admit(slot, ready);
        assert_eq!(admit(&mut slots[17], &mut ready), Admission::Waits { is_new: false });
        assert_eq!(admit(&mut slots[16], &mut ready), Admission::Admitted);
        assert_eq!(ready.pop_front(), Some(18), "who may go on if there is room");
        assert_eq!(admit(&mut slots[17], &mut ready), Admission::Waits { is_new: false });
    }

    /// Large writes have bytes of their own, huge ones others, and small ones take none.
    #[test]
    fn the_bytes_of_large_writes_are_bounded_and_come_back() {
        for (size, bytes) in [(Size::Large, 1 << 20), (Size::Huge, 32 << 20)] {
            let (mut flow, mut ready) = (Flow::default(), VecDeque::new());
            let mut slot = Slot { packet: vec![0; bytes], ..Slot::default() };
            assert_eq!(slot.size(), size);
            for _ in 0..LARGE_WRITES_BYTES_MAX / bytes {
                assert!(flow.has_room_for_write(size));
                flow.take_write(&slot);
            }
            let free = [Size::Small, Size::Large, Size::Huge].map(|s| flow.has_room_for_write(s));
            assert_eq!(free, [true, size == Size::Huge, size == Size::Large]);
            flow.release(&mut slot, &mut ready);
            assert!(flow.has_room_for_write(size));
            flow.take_write(&slot);
            flow.release(&mut Slot::default(), &mut ready);
            assert!(!flow.has_room_for_write(size), "a small one has taken nothing");
        }
    }

    /// Long replies are pulled a few at a time by number and by bytes.
    #[test]
    fn long_replies_are_pulled_within_bounds() {
        let mut flow = Flow::default();
        let mut slots: Vec<Slot> = (0..18).map(|_| Slot::default()).collect();
        for slot in &mut slots[..16] {
            assert!(flow.admit_download(slot, 1_000));
        }
        assert!(!flow.admit_download(&mut slots[16], 1_000));
        assert_eq!(slots[16].reply_bytes, 1_000);
        flow.end_download(&mut slots[0]);
        flow.end_download(&mut slots[0]);
        assert!(flow.admit_download(&mut slots[16], 1_000));
        assert!(!flow.admit_download(&mut slots[17], 1_000), "one has ended, not two");
        // By bytes: the first has its turn however long it is, and may turn out longer.
        let mut flow = Flow::default();
        let [mut one, mut two, mut three] = [(); 3].map(|()| Slot::default());
        assert!(flow.admit_download(&mut one, 64 << 20));
        assert!(!flow.admit_download(&mut two, 1));
        assert!(flow.admit_download(&mut one, 16 << 20), "it keeps its turn");
        assert!(flow.admit_download(&mut two, 16 << 20));
        assert!(!flow.admit_download(&mut three, 1));
        flow.end_download(&mut one);
        assert!(flow.admit_download(&mut three, 16 << 20));
    }

    #[test]
    fn with_a_small_window_few_transfers_share_it() {
        let mut flow = Flow::default();
        (0..3).for_each(|n| flow.lost(at(1_000 + 50 * n)));
        assert_eq!(room(&flow), 64);
        let (mut ready, mut slots) = (VecDeque::new(), Vec::new());
        slots.extend((1..=5).map(large_write));
        let admissions = slots.iter_mut().map(|slot| flow.admit(slot, &mut ready));
        assert_eq!(admissions.filter(|admit| *admit == Admission::Admitted).count(), 4);
        let mut slots = [(); 5].map(|()| Slot::default());
        let admissions = slots.iter_mut().map(|slot| flow.admit_download(slot, 1));
        assert_eq!(admissions.filter(|has| *has).count(), 4);
    }

    /// A refused read goes again once for each long reply that ended.
    #[test]
    fn refused_read_retried_per_ended_reply() {
        let (mut flow, mut slots) = (Flow::default(), Slots::new(8, 1, 8));
        let sent =
            |slots: &mut Slots| slots.add_read(Slot { state: State::Sent, ..Slot::default() });
        let reads = [(); 3].map(|()| sent(&mut slots));
        reads.iter().for_each(|number| flow.refused(*number));
        assert_eq!(flow.next_refused(&slots), None, "none has ended");
        let [mut one, mut two] = [(); 2].map(|()| Slot::default());
        flow.admit_download(&mut one, 1);
        flow.admit_download(&mut two, 1);
        flow.end_download(&mut one);
        assert_eq!(flow.next_refused(&slots), Some(reads[0]));
        assert_eq!(flow.next_refused(&slots), None);
        // One that was answered meanwhile is none.
        slots.remove(reads[1]);
        flow.end_download(&mut two);
        assert_eq!(flow.next_refused(&slots), None);
    }
}
