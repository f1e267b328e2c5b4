//! Comparisons of the replicas' states while they run: a defect, a broken memory or two builds that
//! execute a command differently would otherwise stay unseen until a client reads both.
//!
//! The replica that orders writes sends a numbered no-op now and then, whose request number names a
//! place ([`concord_engine::digest`]). Each replica that executes it makes a digest of the part of
//! its state that begins there. At that moment it has executed all writes before the no-op and none
//! after, as all others have at theirs: the digests are equal, or the states are not. The digests
//! go to the controller, which compares those of one position and one running hash.
//!
//! To replicas of earlier builds the no-op is one like those that carry the log's time: they
//! execute nothing, and report nothing. A replica reports nothing, either, while its state is not
//! that of one position: when it copies the state, or when the engine has later writes already.
//!
//! The parts follow each other until all places were compared: a *round*. If no write was executed
//! in a round, the next one is slow, so that an idle rack writes hardly anything.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::{Duration, Instant, RequestNumber};
use concord_engine::{Engine, PLACES};
use concord_wire::control::{Compared, LogEnd};
use concord_wire::{Flags, Op, Repr, Sink};

use crate::expiry::Orderer;
use crate::pending::PendingWrite;

/// Marks the request number of such a no-op; the lower bits are the place. Other no-ops have 0.
const MARK: u64 = 1 << 62;
/// The factor by which a round is slower after one in which nothing was written.
const IDLE_FACTOR: u64 = 60;
/// The largest number of digests that wait to be reported; the oldest are dropped.
const MADE_MAX: usize = 16;
/// The number of reports that contain each digest: a packet may be lost.
const REPORTS: u8 = 2;

/// The progress of a round, and the digests made here.
#[derive(Clone, Debug)]
pub(crate) struct Comparing {
    /// The pause between two no-ops; 0: none are sent.
    every_ns: Duration,
    asked_at: Instant,
    /// The place at which the next part begins.
    next: u16,
    /// Whether a write was executed in this round, and in the one before.
    is_written: bool,
    was_written: bool,
    /// The digests, and the number of reports that contained each.
    made: VecDeque<(Compared, u8)>,
}

impl Comparing {
    pub(crate) fn new(every_ns: Duration) -> Comparing {
        Comparing {
            every_ns,
            asked_at: Instant(0),
            next: 0,
            is_written: true,
            was_written: true,
            made: VecDeque::new(),
        }
    }

    /// At the ordering replica: the time of the next no-op.
    pub(crate) fn next_at(&self) -> Instant {
        if self.every_ns == 0 {
            return Instant::NEVER;
        }
        let is_idle = !self.is_written && !self.was_written;
        let factor = if is_idle { IDLE_FACTOR } else { 1 };
        self.asked_at.after(self.every_ns.saturating_mul(factor))
    }

    /// At the ordering replica: has all replicas make a digest, if it is time and the log has room.
    /// A no-op that is lost is not sent again: the next one names the same place.
    pub(crate) fn ask<E>(
        &mut self,
        now: Instant,
        has_room: bool,
        by: Orderer<'_, E>,
        sink: &mut impl Sink,
    ) {
        if now < self.next_at() {
            return;
        }
        self.asked_at = now;
        if !has_room {
            return;
        }
        let noop = Repr {
            flags: Flags::INTERNAL.with(Flags::NOOP),
            request: RequestNumber(MARK | u64::from(self.next)),
            client: by.addr,
            node: by.node,
            ..Repr::new(Op::Write)
        };
        noop.emit(&[], by.scratch);
        sink.send(by.in_force.switch, by.scratch);
    }

    /// Notes an executed write. If it is such a no-op, returns the place that it names.
    pub(crate) fn executed(&mut self, operation: &PendingWrite) -> Option<u16> {
        let (flags, request) = (operation.asked.flags, operation.asked.request.0);
        if !flags.has(Flags::NOOP) {
            self.is_written = true;
            return None;
        }
        let is_own = flags.has(Flags::INTERNAL) && request & MARK != 0;
        is_own.then_some((request & !MARK).min(u64::from(PLACES) - 1) as u16)
    }

    /// Makes the digest of the state at this position and running hash, from the place `first` on.
    /// Returns whether the engine can.
    pub(crate) fn make(&mut self, first: u16, at: LogEnd, engine: &impl Engine) -> bool {
        let Some(range) = engine.digest_range(first, at.position) else { return false };
        self.next = range.end;
        if range.end >= PLACES {
            (self.next, self.was_written, self.is_written) = (0, self.is_written, false);
        }
        if self.made.len() == MADE_MAX {
            self.made.pop_front();
        }
        let made = Compared {
            position: at.position,
            hash: at.hash,
            first,
            end: range.end,
            keys: range.keys,
            digest: range.digest,
        };
        self.made.push_back((made, 0));
        true
    }

    /// The digests for the next report to the controller.
    pub(crate) fn report(&mut self) -> Vec<Compared> {
        self.made.iter_mut().for_each(|(_, reports)| *reports += 1);
        let all = self.made.iter().map(|(made, _)| *made).collect();
        self.made.retain(|(_, reports)| *reports < REPORTS);
        all
    }
}

#[cfg(test)]
mod tests {
    use concord_core::{Epoch, SEC};
    use concord_engine::{Class, Command, CommandBuf, Context, Memory, Progress, Shimmed};
    use concord_wire::record::Record;

    use super::*;

    type Own = Shimmed<Memory>;

    fn set(engine: &mut Own, key: &str, value: &str) {
        let mut command = CommandBuf::new();
        let bytes = command.encode(1, [b"SET", key.as_bytes(), value.as_bytes()]);
        let context = Context { now_ms: 1, position: 1, ..Context::default() };
        let command = Command::parse(bytes).unwrap();
        let done = engine.submit(&context, Class::Write, &command, &mut Vec::new());
        assert_eq!(done, Progress::Done);
    }

    fn marker(place: u64) -> PendingWrite {
        let flags = Flags::INTERNAL.with(Flags::NOOP);
        let request = RequestNumber(MARK | place);
        PendingWrite::of(&Record { flags, request, epoch: Epoch(1), ..Record::EMPTY })
    }

    fn write() -> PendingWrite {
        PendingWrite::of(&Record::EMPTY)
    }

    /// Executes a no-op that names a place; whether a digest was made.
    fn step(own: &mut Comparing, place: u64, position: u64, engine: &Own) -> bool {
        let first = own.executed(&marker(place)).unwrap();
        own.make(first, LogEnd { position, hash: 10 * position }, engine)
    }

    /// Equal states make equal digests at a position; a part that differs is reported as such.
    #[test]
    fn digests_of_one_position_show_a_difference() {
        let (mut a, mut b) = (Own::new(Memory::new(0)), Own::new(Memory::new(0)));
        set(&mut a, "k", "v");
        set(&mut b, "k", "v");
        let (mut one, mut other) = (Comparing::new(SEC), Comparing::new(0));
        assert!(step(&mut one, 0, 7, &a) && step(&mut other, 0, 7, &b));
        let (first, second) = (one.report(), other.report());
        assert_eq!(first, second);
        assert_eq!((first[0].first, first[0].end, first[0].keys), (0, PLACES, 1));
        set(&mut b, "k", "w");
        assert!(step(&mut one, 0, 8, &a) && step(&mut other, 0, 8, &b));
        let (first, second) = (one.report(), other.report());
        // The first ones are reported again.
        assert_eq!((first.len(), first[0]), (2, second[0]));
        assert_ne!(first[1].digest, second[1].digest);
        assert_eq!((one.report().len(), one.report().len()), (1, 0));
    }

    /// Other records name no place, and what waits to be reported is bounded.
    #[test]
    fn other_records_make_no_digest() {
        let engine = Own::new(Memory::new(0));
        let mut own = Comparing::new(SEC);
        let noop = PendingWrite::of(&Record { flags: Flags::NOOP, ..Record::EMPTY });
        let flags = Flags::INTERNAL.with(Flags::NOOP);
        let time = PendingWrite::of(&Record { flags, ..Record::EMPTY });
        for other in [write(), noop, time] {
            assert_eq!(own.executed(&other), None);
        }
        for position in 1..100 {
            assert!(step(&mut own, 9_999, position, &engine));
        }
        let report = own.report();
        assert_eq!((report.len(), report[MADE_MAX - 1].first), (MADE_MAX, PLACES - 1));
    }

    /// A round without a write is followed by slow ones, until there is a write.
    #[test]
    fn idle_rounds_are_slow() {
        let engine = Own::new(Memory::new(0));
        let mut own = Comparing::new(SEC);
        assert_eq!(own.next_at(), Instant(SEC));
        step(&mut own, 0, 7, &engine);
        assert_eq!(own.next_at(), Instant(SEC), "the round before may have had writes");
        step(&mut own, 0, 8, &engine);
        assert_eq!(own.next_at(), Instant(IDLE_FACTOR * SEC));
        own.executed(&write());
        assert_eq!(own.next_at(), Instant(SEC));
        assert_eq!(Comparing::new(0).next_at(), Instant::NEVER);
    }
}
