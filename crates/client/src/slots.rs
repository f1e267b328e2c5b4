//! The places of unanswered requests: writes in a ring by their number, reads in a slab whose index
//! is part of their number.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::{Instant, ObjectId, SessionId};
use concord_wire::rpc::{HEADER_BYTES, READ_BIT};
use concord_wire::{Flags, FurtherIds};

use crate::api::Size;
use crate::timers::{Lane, Timer};
use crate::transfer::Transfer;

const READ_INDEX_BITS: u32 = 16;
/// How much longer a write may take for each byte of its body: it comes at 4 MB/s at least.
const BODY_NS_OF_BYTE: u64 = 250;
/// The largest number of unanswered reads: their index takes 16 bits of the request number.
pub const READS_MAX: usize = 1 << READ_INDEX_BITS;

/// The state of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Unused, or answered.
    #[default]
    Idle,
    /// A write that waits for the session to be registered.
    Waiting,
    /// A write that waits until its predecessor was sent (trap T22).
    Held,
    /// A write whose body is sent fragment by fragment (trap T17).
    Staging,
    /// Sent; the reply is awaited.
    Sent,
    /// The first part of a long reply came; the rest is pulled.
    Pulling,
    /// The first part of a long reply came; the rest waits until there is room for it.
    Parked,
}

/// An unanswered request.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    pub number: u64,
    pub state: State,
    /// The session under which it was sent.
    pub session: SessionId,
    pub obj_id: ObjectId,
    pub further: FurtherIds,
    pub flags: Flags,
    /// Room for the header, then the command.
    pub packet: Vec<u8>,
    /// The write that must be executed before; 0 if none.
    pub after: u64,
    /// The writes that are to follow this one as soon as it was sent (again), a list through
    /// `next_waiter`; 0 ends it. A slot is not reused while one that it waited for is unanswered,
    /// because the ring is as long as the window.
    pub first_waiter: u64,
    pub next_waiter: u64,
    pub is_linked: bool,
    /// The last attempt was refused for its order.
    pub is_refused: bool,
    /// The whole body was acknowledged.
    pub is_staged: bool,
    pub submitted_at: Instant,
    /// When its body came further, no later than its length allows ([`Slot::since`]).
    pub body_at: Instant,
    pub first_sent_at: Instant,
    pub sent_at: Instant,
    /// The ordinal of the last attempt among the packets of the client: which of two was sent
    /// later.
    pub stamp: u64,
    /// The number of times that the request itself was sent. The attempt on the wire is one less.
    pub sends: u16,
    /// The number of times that it was sent while no earlier write of its connection was
    /// unanswered: then it is not its order that prevents its execution.
    pub sends_as_first: u16,
    /// Changes whenever older timers lose their meaning.
    pub tag: u16,
    pub round: u8,
    /// A large write that has its turn.
    pub is_admitted: bool,
    /// A long reply that has its turn, and its length.
    pub is_downloading: bool,
    pub reply_bytes: u32,
    /// The largest reply that is granted, in bytes.
    pub granted_bytes: u32,
    pub transfer: Option<Box<Transfer>>,
}

impl Slot {
    /// The encoded command.
    pub fn command(&self) -> &[u8] {
        self.packet.get(HEADER_BYTES..).unwrap_or(&[])
    }

    /// How large the command is.
    pub fn size(&self) -> Size {
        Size::of(self.packet.len().saturating_sub(HEADER_BYTES))
    }

    /// Whether the command does not fit one datagram.
    pub fn is_large(&self) -> bool {
        self.size() != Size::Small
    }

    /// A fragment of its body arrived for the first time.
    pub fn note_body(&mut self, now: Instant) {
        let for_ns = self.packet.len() as u64 * BODY_NS_OF_BYTE;
        self.body_at = now.min(self.submitted_at.after(for_ns));
    }

    /// From when on its deadline counts: a body that arrives piece by piece takes its time.
    pub fn since(&self) -> Instant {
        self.submitted_at.max(self.body_at)
    }

    /// The number of the last attempt on the wire.
    pub fn attempt(&self) -> u16 {
        self.sends.saturating_sub(1)
    }

    /// The lane whose round-trip times it has.
    pub fn lane(&self) -> Lane {
        if self.number & READ_BIT != 0 { Lane::Read } else { Lane::Write }
    }
}

/// All unanswered requests.
#[derive(Clone, Debug)]
pub struct Slots {
    writes: Vec<Slot>,
    window: u64,
    /// The lowest unanswered write, or `next` if there is none. All below were answered or
    /// abandoned.
    low: u64,
    next: u64,
    reads: Vec<Slot>,
    reads_max: usize,
    free: Vec<u16>,
    reads_counter: u64,
    /// Reads as they were submitted: the first reaches its deadline first.
    reads_order: VecDeque<(Instant, u64)>,
}

impl Slots {
    /// For `window` writes, the first of which gets the number `first`, and `reads_max` reads.
    pub fn new(window: u64, first: u64, reads_max: usize) -> Slots {
        let mut writes = Vec::new();
        writes.resize_with(window.next_power_of_two() as usize, Slot::default);
        Slots {
            writes,
            window,
            low: first,
            next: first,
            reads: Vec::new(),
            reads_max: reads_max.min(READS_MAX),
            free: Vec::new(),
            reads_counter: 0,
            reads_order: VecDeque::new(),
        }
    }

    /// The lowest unanswered write.
    pub fn low(&self) -> u64 {
        self.low
    }

    /// The number that the next write gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether another write fits the window.
    pub fn has_room_for_write(&self) -> bool {
        self.next - self.low < self.window
    }

    /// Whether another read may be out.
    pub fn has_room_for_read(&self) -> bool {
        self.reads_out() < self.reads_max
    }

    /// Unanswered reads.
    pub fn reads_out(&self) -> usize {
        self.reads.len() - self.free.len()
    }

    fn index(&self, number: u64) -> usize {
        if number & READ_BIT != 0 {
            number as usize % READS_MAX
        } else {
            number as usize & (self.writes.len() - 1)
        }
    }

    /// The unanswered request of that number.
    pub fn live(&self, number: u64) -> Option<&Slot> {
        let slots = if number & READ_BIT != 0 { &self.reads } else { &self.writes };
        let slot = slots.get(self.index(number))?;
        (slot.number == number && slot.state != State::Idle).then_some(slot)
    }

    /// The unanswered request of that number, to change.
    pub fn live_mut(&mut self, number: u64) -> Option<&mut Slot> {
        let index = self.index(number);
        let slots = if number & READ_BIT != 0 { &mut self.reads } else { &mut self.writes };
        let slot = slots.get_mut(index)?;
        (slot.number == number && slot.state != State::Idle).then_some(slot)
    }

    /// Whether what a timer was set for is over.
    pub fn is_past(&self, timer: &Timer) -> bool {
        self.live(timer.number).is_none_or(|slot| slot.tag != timer.tag)
    }

    /// Takes a slot for a write. The caller saw that there is room.
    #[inline]
    pub fn add_write(&mut self, slot: Slot) -> u64 {
        let number = self.next;
        self.next += 1;
        let index = self.index(number);
        let tag = self.writes[index].tag;
        self.writes[index] = Slot { number, tag, ..slot };
        number
    }

    /// Takes a slot for a read. The caller saw that there is room.
    #[inline]
    pub fn add_read(&mut self, slot: Slot) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.reads.push(Slot::default());
            (self.reads.len() - 1) as u16
        });
        self.reads_counter += 1;
        let number = READ_BIT | (self.reads_counter << READ_INDEX_BITS) | u64::from(index);
        let index = usize::from(index);
        self.reads_order.push_back((slot.submitted_at, number));
        self.reads[index] = Slot { number, ..slot };
        number
    }

    /// Ends a request: its slot is free, and the lowest unanswered write moves on.
    #[inline]
    pub fn remove(&mut self, number: u64) {
        let Some(slot) = self.live_mut(number) else { return };
        slot.state = State::Idle;
        slot.tag = slot.tag.wrapping_add(1);
        if number & READ_BIT != 0 {
            self.free.push((number as usize % READS_MAX) as u16);
            self.prune_reads();
        } else {
            while self.low < self.next && self.live(self.low).is_none() {
                self.low += 1;
            }
        }
    }

    /// The read that was submitted first, and when.
    pub fn oldest_read(&self) -> Option<(Instant, u64)> {
        self.reads_order.front().copied()
    }

    fn prune_reads(&mut self) {
        while self.reads_order.front().is_some_and(|(_, number)| self.live(*number).is_none()) {
            self.reads_order.pop_front();
        }
    }

    /// Whether `number` is an unanswered write that was never sent.
    pub fn is_unsent(&self, number: u64) -> bool {
        self.live(number).is_some_and(|slot| slot.sends == 0)
    }

    /// Lets `number` follow `leader` as soon as that was sent.
    pub fn link(&mut self, leader: u64, number: u64) {
        let Some(first) = self.live(leader).map(|slot| slot.first_waiter) else { return };
        let Some(slot) = self.live_mut(number) else { return };
        if slot.is_linked {
            return;
        }
        slot.is_linked = true;
        slot.next_waiter = first;
        if let Some(slot) = self.live_mut(leader) {
            slot.first_waiter = number;
        }
    }

    /// Moves all that were to follow `leader`, answered or not, to `ready`.
    pub fn unlink_all(&mut self, leader: u64, ready: &mut VecDeque<u64>) {
        let index = self.index(leader);
        let mut number = core::mem::take(&mut self.writes[index].first_waiter);
        while number != 0 {
            ready.push_back(number);
            let index = self.index(number);
            let slot = &mut self.writes[index];
            slot.is_linked = false;
            number = core::mem::take(&mut slot.next_waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use concord_core::SEC;
    use concord_wire::rpc::BODY_BYTES_MAX;

    use super::*;
    use crate::timers::WHOLE;

    fn sent() -> Slot {
        Slot { state: State::Sent, sends: 1, ..Slot::default() }
    }

    /// Writes are numbered from one and the window goes by the lowest unanswered.
    #[test]
    fn write_numbers_and_window() {
        let mut slots = Slots::new(3, 1, 4);
        let numbers = [(); 3].map(|()| slots.add_write(sent()));
        assert_eq!(numbers, [1, 2, 3]);
        assert!(!slots.has_room_for_write());
        slots.remove(2);
        assert_eq!((slots.low(), slots.next(), slots.has_room_for_write()), (1, 4, false));
        slots.remove(1);
        assert_eq!((slots.low(), slots.has_room_for_write()), (3, true));
        assert_eq!((slots.add_write(sent()), slots.add_write(sent())), (4, 5));
        assert!(slots.live(1).is_none() && slots.live(2).is_none(), "their slots are others' now");
        (3..=5).for_each(|number| slots.remove(number));
        assert_eq!((slots.low(), slots.next()), (6, 6));
    }

    /// Reads have numbers of their own and the first that is unanswered is the oldest.
    #[test]
    fn read_numbers_and_oldest_unanswered() {
        let mut slots = Slots::new(2, 1, 3);
        let at = |ns| Slot { submitted_at: Instant(ns), ..sent() };
        let reads = [5, 6, 7].map(|ns| slots.add_read(at(ns)));
        assert!(reads.iter().all(|number| number & READ_BIT != 0));
        assert!(!slots.has_room_for_read());
        assert_eq!(slots.oldest_read(), Some((Instant(5), reads[0])));
        slots.remove(reads[1]);
        assert_eq!((slots.reads_out(), slots.oldest_read().unwrap().1), (2, reads[0]));
        slots.remove(reads[0]);
        assert_eq!(slots.oldest_read(), Some((Instant(7), reads[2])));
        let again = slots.add_read(at(8));
        assert!(!reads.contains(&again), "another number in the same place");
        assert!(slots.live(reads[0]).is_none() && slots.live(again).is_some());
        assert_eq!((slots.low(), slots.next()), (1, 1), "they take nothing from writes");
        let write = slots.add_write(sent());
        let lanes = [write, again].map(|number| slots.live(number).unwrap().lane());
        assert_eq!(lanes, [Lane::Write, Lane::Read], "nor their round trips");
    }

    #[test]
    fn a_timer_of_an_earlier_tag_is_past() {
        let mut slots = Slots::new(2, 1, 2);
        let number = slots.add_write(sent());
        let tag = slots.live(number).unwrap().tag;
        let timer =
            |tag| Timer { set_at: Instant(0), number, part: WHOLE, tag, round: 0, missing: 0 };
        assert!(!slots.is_past(&timer(tag)) && slots.is_past(&timer(tag + 1)));
        slots.remove(number);
        assert!(slots.is_past(&timer(tag)));
    }

    #[test]
    fn those_that_follow_a_write_are_let_go_together_and_each_once() {
        let mut slots = Slots::new(8, 1, 2);
        let [leader, one, two, other] = [(); 4].map(|()| slots.add_write(sent()));
        let mut ready = VecDeque::new();
        slots.link(leader, one);
        slots.link(leader, two);
        slots.link(leader, one);
        slots.link(other, one);
        slots.link(9, two);
        slots.remove(leader);
        slots.unlink_all(leader, &mut ready);
        ready.make_contiguous().sort_unstable();
        assert_eq!(ready, [one, two]);
        ready.clear();
        slots.unlink_all(leader, &mut ready);
        slots.unlink_all(other, &mut ready);
        assert!(ready.is_empty());
        slots.link(other, one);
        slots.unlink_all(other, &mut ready);
        assert_eq!(ready, [one], "it may follow another one now");
    }

    #[test]
    fn a_command_is_large_above_what_one_packet_holds() {
        for (bytes, is_large) in [(BODY_BYTES_MAX, false), (BODY_BYTES_MAX + 1, true)] {
            let packet = alloc::vec![0; HEADER_BYTES + bytes];
            let slot = Slot { packet, ..Slot::default() };
            assert_eq!((slot.is_large(), slot.command().len()), (is_large, bytes));
        }
    }

    /// A body has its time from when it last came on, as long as it comes at 4 MB/s or faster.
    #[test]
    fn bug_22_155_a_body_that_comes_on_has_its_time() {
        let mut slot =
            Slot { submitted_at: Instant(7), packet: alloc::vec![0; 4_000_000], ..sent() };
        assert_eq!(slot.since(), Instant(7));
        for (came_ns, since_ns) in [(500, 500), (SEC, SEC), (9 * SEC, SEC + 7)] {
            slot.note_body(Instant(came_ns));
            assert_eq!(slot.since(), Instant(since_ns), "{came_ns}");
        }
        let mut short = Slot { submitted_at: Instant(7), packet: alloc::vec![0; 8], ..sent() };
        short.note_body(Instant(SEC));
        assert_eq!(short.since(), Instant(7 + 8 * BODY_NS_OF_BYTE));
    }
}
