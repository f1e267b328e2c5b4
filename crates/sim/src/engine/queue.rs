//! The event queue: hierarchical timing wheels (Varghese and Lauck, SOSP 1987, scheme 7) whose
//! lowest wheel has one slot for each picosecond, so that nothing is ever sorted or compared.
//!
//! A time is read as digits of [`DIGIT_BITS`] bits. An event waits in the wheel of the highest
//! digit in which its time differs from the cursor's, in the slot of that digit. When the lower
//! wheels are empty, the cursor moves to the next slot of the next wheel, whose events then differ
//! in a lower digit and move down. All events of one time are always in one slot, and slots are
//! first in, first out: hence ties leave in the order of `schedule`, without a sequence number.

use super::time::Time;

/// The number of bits in a digit: each wheel has 2,048 slots. Most events of a data-centre network
/// are less than 4 us away (2^22 ps), so that they move down once. The fastest value measured from
/// 6 to 12 (docs/internals/simulator.md).
const DIGIT_BITS: u32 = 11;
const SLOTS: usize = 1 << DIGIT_BITS;
const WORDS: usize = SLOTS / 64;
const WHEELS: usize = 64usize.div_ceil(DIGIT_BITS as usize);
const NONE: u32 = u32::MAX;

/// The first and the last entry of a list; meaningless if the slot's bit is clear.
#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
}

/// The slots of one digit, and which of them hold events.
struct Wheel {
    slots: [Slot; SLOTS],
    words: [u64; WORDS],
    /// Bit `w` is set if `words[w]` is not zero.
    summary: u64,
}

struct Entry<E> {
    at: u64,
    /// The next entry of the slot's list, or of the list of free entries.
    next: u32,
    event: Option<E>,
}

/// Pending events in order of time; those of the same time are in the order in which they were
/// scheduled. The memory grows with the number of pending events, and is reused: in steady state no
/// event allocates.
pub struct EventQueue<E> {
    /// The time of the last event taken, or the last limit that was reached, in ps.
    now: u64,
    /// The position of the wheels, in ps; never after `now`.
    cursor: u64,
    wheels: Box<[Wheel]>,
    /// Bit `w` is set if wheel `w` holds an event.
    occupied: u32,
    entries: Vec<Entry<E>>,
    free: u32,
    waiting: usize,
    taken: u64,
}

impl Wheel {
    fn new() -> Wheel {
        let slot = Slot { head: NONE, tail: NONE };
        Wheel { slots: [slot; SLOTS], words: [0; WORDS], summary: 0 }
    }

    fn first(&self) -> usize {
        let word = self.summary.trailing_zeros() as usize % WORDS;
        word * 64 + self.words[word].trailing_zeros() as usize % 64
    }

    fn set(&mut self, slot: usize) {
        self.words[slot / 64] |= 1 << (slot % 64);
        self.summary |= 1 << (slot / 64);
    }

    fn has(&self, slot: usize) -> bool {
        self.words[slot / 64] & 1 << (slot % 64) != 0
    }

    /// Clears the slot's bit; returns whether the wheel is then empty.
    fn clear(&mut self, slot: usize) -> bool {
        self.words[slot / 64] &= !(1 << (slot % 64));
        if self.words[slot / 64] == 0 {
            self.summary &= !(1 << (slot / 64));
        }
        self.summary == 0
    }
}

/// The time at which `slot` of `wheel` begins, for a cursor in the same revolution of that wheel.
fn slot_begin(cursor: u64, wheel: usize, slot: usize) -> u64 {
    let shift = wheel as u32 * DIGIT_BITS;
    // The digit of the top wheel is the top of the number: no digit of the cursor is above it.
    let above = cursor.checked_shr(shift + DIGIT_BITS).unwrap_or(0);
    (above.checked_shl(DIGIT_BITS).unwrap_or(0) | slot as u64) << shift
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue::new()
    }
}

impl<E> EventQueue<E> {
    /// An empty queue at time zero.
    #[must_use]
    pub fn new() -> EventQueue<E> {
        EventQueue {
            now: 0,
            cursor: 0,
            wheels: (0..WHEELS).map(|_| Wheel::new()).collect(),
            occupied: 0,
            entries: Vec::new(),
            free: NONE,
            waiting: 0,
            taken: 0,
        }
    }

    /// The time of the event that was taken last, or the limit that [`EventQueue::next_until`]
    /// reached.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.now)
    }

    /// The number of pending events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether no event is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The largest number of events that were pending at once.
    #[must_use]
    pub fn len_max(&self) -> usize {
        self.entries.len()
    }

    /// The number of events taken since the start.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Schedules an event.
    ///
    /// # Panics
    /// If `at` is before [`EventQueue::now`]: a driver that schedules into the past is broken.
    // Inlined, the event is built in its entry: a call would copy it there, some 10 % of a run.
    #[inline(always)]
    pub fn schedule(&mut self, at: Time, event: E) {
        assert!(at.0 >= self.now, "scheduled before now");
        let entry = Entry { at: at.0, next: NONE, event: Some(event) };
        let index = self.free;
        if index == NONE {
            let index = self.entries.len() as u32;
            assert!(index != NONE, "more than 2^32 - 1 events wait");
            self.entries.push(entry);
            self.place(index, at.0);
        } else {
            self.free = self.entries[index as usize].next;
            self.entries[index as usize] = entry;
            self.place(index, at.0);
        }
        self.waiting += 1;
    }

    /// Takes the next event, with its time.
    #[expect(clippy::should_implement_trait, reason = "the queue is no iterator: it grows")]
    pub fn next(&mut self) -> Option<(Time, E)> {
        self.take(u64::MAX)
    }

    /// Takes the next event that is not after `limit`. If there is none, the time advances to
    /// `limit`.
    pub fn next_until(&mut self, limit: Time) -> Option<(Time, E)> {
        let taken = self.take(limit.0);
        if taken.is_none() {
            self.now = self.now.max(limit.0);
        }
        taken
    }

    fn take(&mut self, limit: u64) -> Option<(Time, E)> {
        while self.occupied != 0 {
            let wheel = self.occupied.trailing_zeros() as usize;
            let slot = self.wheels[wheel].first();
            let Slot { head, tail } = self.wheels[wheel].slots[slot];
            // If the slot has a single entry, this is the earliest event of all, and need not move
            // down.
            if wheel == 0 || head == tail {
                let at = self.entries[head as usize].at;
                if at > limit {
                    return None;
                }
                return self.take_head(wheel, slot, head, tail);
            }
            let begin = slot_begin(self.cursor, wheel, slot);
            if begin > limit {
                return None;
            }
            self.cursor = begin;
            self.move_down(wheel, slot, head, tail);
        }
        None
    }

    fn take_head(&mut self, wheel: usize, slot: usize, head: u32, tail: u32) -> Option<(Time, E)> {
        let entry = &mut self.entries[head as usize];
        let (at, next) = (entry.at, entry.next);
        let event = entry.event.take();
        entry.next = self.free;
        self.free = head;
        if head == tail {
            self.clear(wheel, slot);
        } else {
            self.wheels[wheel].slots[slot].head = next;
        }
        self.cursor = at;
        self.now = at;
        self.waiting -= 1;
        self.taken += 1;
        event.map(|event| (Time(at), event))
    }

    fn clear(&mut self, wheel: usize, slot: usize) {
        if self.wheels[wheel].clear(slot) {
            self.occupied &= !(1 << wheel);
        }
    }

    /// Moves the entries of a slot to lower wheels, in their order.
    fn move_down(&mut self, wheel: usize, slot: usize, head: u32, tail: u32) {
        self.clear(wheel, slot);
        let mut index = head;
        loop {
            let Entry { at, next, .. } = self.entries[index as usize];
            self.place(index, at);
            if index == tail {
                break;
            }
            index = next;
        }
    }

    /// Appends an entry to the slot for its time.
    #[inline(always)]
    fn place(&mut self, index: u32, at: u64) {
        let wheel = (63 - ((at ^ self.cursor) | 1).leading_zeros()) / DIGIT_BITS;
        let slot = (at >> (wheel * DIGIT_BITS)) as usize % SLOTS;
        let wheel = wheel as usize;
        if self.wheels[wheel].has(slot) {
            let tail = self.wheels[wheel].slots[slot].tail;
            self.entries[tail as usize].next = index;
            self.wheels[wheel].slots[slot].tail = index;
        } else {
            self.wheels[wheel].slots[slot] = Slot { head: index, tail: index };
            self.wheels[wheel].set(slot);
            self.occupied |= 1 << wheel;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use concord_core::Rng;

    use super::*;

    /// A slow model of the queue, which defines what it must do.
    #[derive(Default)]
    struct Reference {
        heap: BinaryHeap<Reverse<(u64, u64)>>,
        scheduled: u64,
    }

    impl Reference {
        fn schedule(&mut self, at: u64) -> u64 {
            self.scheduled += 1;
            self.heap.push(Reverse((at, self.scheduled)));
            self.scheduled
        }

        fn next_until(&mut self, limit: u64) -> Option<(u64, u64)> {
            let Reverse((at, _)) = *self.heap.peek()?;
            if at > limit {
                return None;
            }
            self.heap.pop().map(|Reverse(next)| next)
        }
    }

    /// A random delay, of any magnitude; many are equal.
    fn delay(rng: &mut Rng) -> u64 {
        let bits = rng.below(40);
        match rng.below(4) {
            0 => 0,
            1 => 1 << bits,
            _ => rng.below(1 << bits),
        }
    }

    #[test]
    fn events_leave_in_order_of_time_and_then_of_schedule() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut queue, mut reference) = (EventQueue::new(), Reference::default());
            for _ in 0..5_000 {
                let now = queue.now().0;
                for _ in 0..rng.below(3) {
                    let at = now + delay(&mut rng);
                    let number = reference.schedule(at);
                    queue.schedule(Time(at), number);
                }
                let limit = now + delay(&mut rng);
                let taken = queue.next_until(Time(limit)).map(|(at, event)| (at.0, event));
                assert_eq!(taken, reference.next_until(limit));
                assert_eq!(queue.now().0, taken.map_or(limit, |(at, _)| at));
                assert_eq!(queue.len(), reference.heap.len());
            }
            while let Some((at, event)) = queue.next() {
                assert_eq!(Some((at.0, event)), reference.next_until(u64::MAX));
            }
            assert!(queue.is_empty() && reference.heap.is_empty());
            assert_eq!(queue.taken(), reference.scheduled);
        }
    }

    #[test]
    fn the_ends_of_time_are_in_order() {
        let mut queue = EventQueue::new();
        let times = [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 55, 1, 0, u64::MAX];
        for (index, at) in times.into_iter().enumerate() {
            queue.schedule(Time(at), index);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).map(|(_, event)| event).collect();
        assert_eq!(order, [6, 5, 4, 3, 2, 1, 0, 7]);
    }

    /// A limit that was reached becomes the current time, and events before a later limit come
    /// first.
    #[test]
    fn reached_limit_is_now_and_earlier_events_first() {
        let mut queue = EventQueue::new();
        queue.schedule(Time(1_000_000), 'z');
        queue.schedule(Time(1_000_001), 'z');
        assert_eq!(queue.next_until(Time(999_999)), None);
        assert_eq!(queue.now(), Time(999_999));
        queue.schedule(Time(999_999), 'a');
        assert_eq!(queue.next(), Some((Time(999_999), 'a')));
    }

    #[test]
    #[should_panic(expected = "scheduled before now")]
    fn the_past_is_refused() {
        let mut queue = EventQueue::new();
        queue.schedule(Time(5), ());
        queue.next();
        queue.schedule(Time(4), ());
    }

    #[test]
    fn entries_are_used_again() {
        let mut queue = EventQueue::new();
        for i in 0..10_000 {
            queue.schedule(Time(i), ());
            queue.schedule(Time(i + 1), ());
            queue.next();
            queue.next();
        }
        assert_eq!(queue.len_max(), 2);
    }
}
