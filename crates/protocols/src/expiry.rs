//! Deletion of expired keys (trap T12). The replica that orders writes deletes each expired key by
//! a write of its own, which the switch numbers like any other: one write for each key, since the
//! switch keeps fast reads away from the objects of writes in flight, and from no others.
//!
//! A window bounds the number of deletes in flight. It grows with each that is ordered and shrinks
//! with each that is lost: a switch whose dirty set is full drops them, like clients' writes. The
//! search for due keys skips those in flight, and comes back to a key only after all other due
//! keys: keys whose deletion is lost again and again (their slot of the dirty set is held by a hot
//! key) do not hold up others.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::hash::{hash64, object_id};
use concord_core::{Epoch, Guard, Guards, Instant, MS, NodeId, Now, Position, RequestNumber};
use concord_engine::ttl::EXPIRE_COMMAND;
use concord_engine::{CommandBuf, Engine};
use concord_wire::fragment::FragmentHdr;
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Addr, Flags, Op, Repr, Sink};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::counters::ReplicaCounters;
use crate::setup::InForce;

/// The interval of the search for due keys, if nothing else triggers it.
const SCAN_NS: u64 = 5 * MS;
/// The time after which an expiry that was not ordered is sent again.
const RETRY_NS: u64 = 150 * MS;
/// An expiry counts as lost once one that was sent so many later is ordered.
const REORDERED_MAX: u64 = 16;
/// Bounds of the window, in expiries. The upper one is the largest number of writes that a gateway
/// has pending, so that expiries get as large a share as a gateway where writes wait for each
/// other.
const WINDOW_MIN: usize = 16;
const WINDOW_MAX: usize = 8_192;
/// The age of the last record after which a record with the log's time is written, and the interval
/// of its retries.
const TELL_TIME_MS: u64 = 1_000;
const TELL_AGAIN_NS: u64 = 250 * MS;
/// The largest number of expiries that are remembered, with the lost ones, and the largest total
/// size of their keys.
const SENT_MAX: usize = 16_384;
const SENT_BYTES_MAX: usize = 16 << 20;

/// The expiries in flight.
#[derive(Clone, Debug)]
pub(crate) struct Expiring {
    /// By key. Never iterated.
    sent: HashMap<Vec<u8>, Sent, FxBuildHasher>,
    /// The keys of expiries that were not ordered yet, by the number of their request.
    unordered: BTreeMap<u64, Vec<u8>>,
    /// Ordered expiries by position, until all replicas that count have them.
    ordered: VecDeque<(Position, u64, Vec<u8>)>,
    /// The number of expiries in `unordered` that do not count as lost.
    flying: usize,
    /// Expiries in `unordered` with lower numbers count as lost.
    lost_below: u64,
    /// The total size of the keys in `sent`, in bytes.
    bytes: usize,
    window: usize,
    /// The number of the last request.
    number: u64,
    /// The epoch (view) in which they were sent.
    epoch: Epoch,
    /// Whether more keys were due than the window had room for.
    backlog: bool,
    /// The last expiry that was sent, while later keys are due.
    cursor: Option<(Vec<u8>, u64)>,
    /// The time of the next search.
    next_at: Instant,
    /// The earliest time of the next record with the log's time.
    tell_at: Instant,
}

/// The ordering replica's parts that an expiry needs: the keys, and the session that deletes them.
pub(crate) struct Orderer<'a, E> {
    pub(crate) engine: &'a mut E,
    pub(crate) node: NodeId,
    pub(crate) addr: Addr,
    pub(crate) in_force: InForce,
    pub(crate) guards: Guards,
    pub(crate) scratch: &'a mut Vec<u8>,
    pub(crate) count: &'a mut ReplicaCounters,
}

/// One expiry.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    deadline_ms: u64,
    at: Instant,
    is_lost: bool,
}

impl Default for Expiring {
    fn default() -> Expiring {
        Expiring {
            sent: HashMap::default(),
            unordered: BTreeMap::new(),
            ordered: VecDeque::new(),
            flying: 0,
            lost_below: 0,
            bytes: 0,
            window: WINDOW_MIN,
            number: 0,
            epoch: Epoch(0),
            backlog: false,
            cursor: None,
            next_at: Instant(0),
            tell_at: Instant(0),
        }
    }
}

impl Expiring {
    /// Whether it is time to search for keys to delete. Sets the next time.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_at;
        if is_due {
            self.next_at = now.after(SCAN_NS);
        }
        is_due
    }

    /// The time of the next search for keys to delete.
    pub(crate) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Whether there are more keys to delete, and room for some of them. Expiries ordered up to
    /// `settled` are complete.
    pub(crate) fn goes_on(&mut self, settled: Position) -> bool {
        self.settle(settled);
        self.backlog && self.room() > self.window / 2
    }

    /// Notes that one of these writes was ordered at `position`.
    pub(crate) fn on_ordered(&mut self, repr: &Repr, position: Position) {
        let number = repr.request.0;
        let Some(key) = self.unordered.remove(&number) else { return };
        if let Some(sent) = self.sent.get(&key) {
            self.flying -= usize::from(!sent.is_lost);
            self.window = (self.window + 1).min(WINDOW_MAX);
        }
        self.ordered.push_back((position, number, key));
        let lost_from = self.lost_below;
        self.lost_below = lost_from.max(number.saturating_sub(REORDERED_MAX));
        for (_, key) in self.unordered.range(lost_from..self.lost_below) {
            if let Some(sent) = self.sent.get_mut(key).filter(|sent| !sent.is_lost) {
                sent.is_lost = true;
                self.flying -= 1;
                self.window = narrower(self.window);
            }
        }
    }

    /// The command of one of these writes whose body is too long for a packet; the packet has the
    /// body's hash.
    pub(crate) fn body(&self, repr: &Repr, hdr: &[u8]) -> Option<Vec<u8>> {
        if !repr.flags.has(Flags::INTERNAL.with(Flags::BODY_STAGED)) {
            return None;
        }
        let (hdr, _) = FragmentHdr::parse(hdr).ok()?;
        let key = self.unordered.get(&repr.request.0)?;
        let sent = self.sent.get(key)?;
        let mut command = CommandBuf::new();
        let body = encode(&mut command, key, sent.deadline_ms);
        (hash64(0, body) == hdr.version).then(|| body.to_vec())
    }

    /// Forgets the expiries that were ordered up to `settled`.
    fn settle(&mut self, settled: Position) {
        while let Some((position, ..)) = self.ordered.front()
            && *position <= settled
        {
            let Some((_, number, key)) = self.ordered.pop_front() else { return };
            if self.sent.get(&key).is_some_and(|sent| sent.number == number) {
                self.forget(&key);
            }
        }
    }

    /// Counts expiries that were not ordered in time as lost, so that they are sent again.
    fn give_up(&mut self, now: Instant) {
        while let Some((number, key)) = self.unordered.first_key_value() {
            let sent = self.sent.get(key).filter(|sent| sent.number == *number);
            if sent.is_some_and(|sent| now.since(sent.at) < RETRY_NS) {
                return;
            }
            if sent.is_some_and(|sent| !sent.is_lost) {
                self.flying -= 1;
                self.window = narrower(self.window);
            }
            if let Some((_, key)) = self.unordered.pop_first() {
                self.forget(&key);
            }
        }
    }

    fn forget(&mut self, key: &[u8]) {
        if self.sent.remove(key).is_some() {
            self.bytes -= key.len();
        }
    }

    fn room(&self) -> usize {
        if self.bytes >= SENT_BYTES_MAX {
            return 0;
        }
        let under_way = self.flying + self.ordered.len();
        self.window.saturating_sub(under_way).min(SENT_MAX.saturating_sub(self.sent.len()))
    }

    /// Whether this expiry is in flight, or was lost a moment ago.
    fn has(&self, key: &[u8], deadline_ms: u64) -> bool {
        self.sent.get(key).is_some_and(|sent| sent.deadline_ms == deadline_ms)
    }

    /// Remembers an expiry. Returns its number.
    fn note(&mut self, now: Instant, key: Vec<u8>, deadline_ms: u64) -> u64 {
        self.number += 1;
        let number = self.number;
        // The expiry of an earlier deadline of this key: when it is executed, the key is not due.
        if let Some(old) = self.sent.get(&key)
            && self.unordered.remove(&old.number).is_some()
        {
            self.flying -= usize::from(!old.is_lost);
        }
        self.forget(&key);
        self.bytes += key.len();
        self.flying += 1;
        self.unordered.insert(number, key.clone());
        self.sent.insert(key, Sent { number, deadline_ms, at: now, is_lost: false });
        number
    }

    /// Has a record carry the log's time at least once per [`TELL_TIME_MS`] while keys have times
    /// to live: a replica that takes over continues from the last record.
    fn tell_time<E>(
        &mut self,
        now: Instant,
        since_last_ms: u64,
        by: &mut Orderer<'_, E>,
        sink: &mut impl Sink,
    ) {
        if since_last_ms >= TELL_TIME_MS && now >= self.tell_at {
            self.tell_at = now.after(TELL_AGAIN_NS);
            let flags = Flags::INTERNAL.with(Flags::NOOP);
            let (client, node) = (by.addr, by.node);
            let noop = Repr { flags, client, node, ..Repr::new(Op::Write) };
            noop.emit(&[], by.scratch);
            sink.send(by.in_force.switch, by.scratch);
        }
    }

    /// At the ordering replica: sends expiries of due keys, as many as there is room for. Expiries
    /// ordered up to `settled` are complete; `last_ms` is the stamp of the last record.
    pub(crate) fn expire<E: Engine>(
        &mut self,
        now: Now,
        (settled, last_ms): (Position, u64),
        mut by: Orderer<'_, E>,
        sink: &mut impl Sink,
    ) {
        let guards = by.guards;
        if self.epoch != by.in_force.epoch {
            let Expiring { number, next_at, .. } = *self;
            let (epoch, lost_below) = (by.in_force.epoch, number);
            *self = Expiring { number, next_at, epoch, lost_below, ..Expiring::default() };
        }
        self.settle(settled);
        self.give_up(now.instant);
        self.backlog = false;
        let Some(next_ms) = by.engine.next_expiry_ms() else { return };
        let is_steady = guards.on(Guard::LogClock);
        let now_ms = if is_steady { by.in_force.clock.read(now.unix_ms) } else { now.unix_ms };
        self.tell_time(now.instant, now_ms.saturating_sub(last_ms), &mut by, sink);
        let room = self.room();
        if room == 0 || next_ms > now_ms {
            return;
        }
        let mut due = Vec::new();
        let skips = guards.on(Guard::ExpirySkip);
        let under_way = |key: &[u8], deadline_ms: u64| self.has(key, deadline_ms);
        let skip = |key: &[u8], deadline_ms: u64| skips && under_way(key, deadline_ms);
        let cursor = self.cursor.as_ref().filter(|_| skips);
        by.engine.due(now_ms, cursor, room, &skip, &mut due);
        self.backlog = due.len() == room;
        self.cursor = due.last().filter(|_| due.len() == room).cloned();
        due.retain(|(key, deadline_ms)| skips || !self.has(key, *deadline_ms));
        let mut command = CommandBuf::new();
        for (key, deadline_ms) in due {
            let obj_id = object_id(&key);
            let body = encode(&mut command, &key, deadline_ms);
            let number = self.note(now.instant, key, deadline_ms);
            let repr = Repr {
                flags: Flags::INTERNAL,
                obj_id,
                request: RequestNumber(number),
                client: by.addr,
                node: by.node,
                ..Repr::new(Op::Write)
            };
            if body.len() <= BODY_BYTES_MAX {
                repr.emit(body, by.scratch);
            } else {
                // The body stays here, at the replica that orders and needs it (trap T17).
                let (version, total_bytes) = (hash64(0, body), body.len() as u32);
                let mut hdr = Vec::new();
                FragmentHdr { version, total_bytes, index: 0, count: 1 }.emit(&mut hdr);
                let flags = repr.flags.with(Flags::BODY_STAGED);
                Repr { flags, ..repr }.emit(&hdr, by.scratch);
            }
            sink.send(by.in_force.switch, by.scratch);
            by.count.expiries_sent += 1;
        }
    }
}

fn narrower(window: usize) -> usize {
    window.saturating_sub(1 + window / 16).max(WINDOW_MIN)
}

fn encode<'a>(command: &'a mut CommandBuf, key: &[u8], deadline_ms: u64) -> &'a [u8] {
    let digits = alloc::format!("{deadline_ms}");
    command.encode(1, [EXPIRE_COMMAND, key, digits.as_bytes()])
}

#[cfg(test)]
mod tests {
    use alloc::{format, vec};

    use concord_core::{LogClock, SEC};
    use concord_engine::{Class, Command, Context, Memory, Shimmed};
    use concord_wire::Packet;

    use super::*;

    const SWITCH: Addr = Addr { ip: 9, port: 1 };
    const START_MS: u64 = 10_000;

    /// Who orders, its keys, and what it has sent.
    struct Bench {
        expiring: Expiring,
        engine: Shimmed<Memory>,
        epoch: Epoch,
        ms: u64,
        last_ms: u64,
        sent: Vec<(Addr, Vec<u8>)>,
    }

    impl Bench {
        /// With `count` keys, each due a ms after the one before, the first one at once.
        fn new(count: u64) -> Bench {
            let mut bench = Bench {
                expiring: Expiring::default(),
                engine: Shimmed::new(Memory::new(0)),
                epoch: Epoch(1),
                ms: START_MS,
                last_ms: START_MS,
                sent: Vec::new(),
            };
            for n in 0..count {
                bench.command(&[
                    b"SET",
                    &key(n),
                    b"v",
                    b"PXAT",
                    format!("{}", START_MS + n).as_bytes(),
                ]);
            }
            bench
        }

        fn command(&mut self, args: &[&[u8]]) {
            let context = Context { now_ms: START_MS - 1, position: 1, ..Context::default() };
            let (mut command, mut reply) = (CommandBuf::new(), Vec::new());
            let body = command.encode(1, args.iter().copied());
            let command = Command::parse(body).unwrap();
            self.engine.submit(&context, Class::Write, &command, &mut reply);
            assert!(!reply.starts_with(b"-"));
        }

        /// The numbers of the expiries that are sent now, where all up to `settled` is done.
        fn expire(&mut self, settled: u64) -> Vec<u64> {
            let now = Now { instant: Instant(SEC + self.ms * MS), unix_ms: self.ms };
            let (mut scratch, mut count) = (Vec::new(), ReplicaCounters::default());
            let clock = LogClock::default();
            let by = Orderer {
                engine: &mut self.engine,
                node: NodeId(1),
                addr: Addr::default(),
                in_force: InForce { epoch: self.epoch, switch: SWITCH, checked: None, clock },
                guards: Guards::ALL,
                scratch: &mut scratch,
                count: &mut count,
            };
            self.sent.clear();
            let ordered = (Position(settled), self.last_ms);
            self.expiring.expire(now, ordered, by, &mut self.sent);
            let expiries = self.sent.iter().map(|(_, bytes)| Packet::parse(bytes).unwrap().repr());
            expiries.filter(|r| !r.flags.has(Flags::NOOP)).map(|repr| repr.request.0).collect()
        }

        /// The expiry of key `of` is ordered at `position`, and its key deleted.
        fn order(&mut self, number: u64, of: u64, position: u64) {
            self.on_ordered(number, position);
            self.command(&[b"DEL", &key(of)]);
        }

        fn on_ordered(&mut self, number: u64, position: u64) {
            let repr = Repr { request: RequestNumber(number), ..Repr::new(Op::Write) };
            self.expiring.on_ordered(&repr, Position(position));
        }
    }

    fn key(n: u64) -> Vec<u8> {
        format!("key {n:03}").into_bytes()
    }

    #[test]
    fn t12_keys_are_deleted_when_they_are_due_and_each_once() {
        let mut b = Bench::new(5);
        b.ms -= 1;
        assert_eq!(b.expire(0), []);
        b.ms = START_MS + 1;
        assert_eq!(b.expire(0), [1, 2]);
        assert_eq!(b.expire(0), [], "they are on their way");
        b.ms += 1;
        assert_eq!(b.expire(0), [3]);
        assert!(!b.expiring.goes_on(Position(0)), "there are no more");
    }

    #[test]
    fn more_expiries_are_sent_once_half_of_the_window_is_open() {
        let mut b = Bench::new(100);
        b.ms += 100;
        assert_eq!(b.expire(0).len(), WINDOW_MIN);
        assert!(!b.expiring.goes_on(Position(0)), "all are under way");
        // Of a window of 24, 8 are not ordered, and others not done.
        (1..=8).for_each(|n| b.order(n, n - 1, n));
        assert!(!b.expiring.goes_on(Position(4)));
        assert!(b.expiring.goes_on(Position(5)));
        assert_eq!(b.expire(5).len(), 13);
        assert!(!b.expiring.goes_on(Position(5)));
    }

    /// An expiry that many later ones overtook is lost and closes the window.
    #[test]
    fn overtaken_expiry_is_lost_and_closes_the_window() {
        let mut b = Bench::new(100);
        b.ms += 100;
        b.expire(0);
        (2..=16).for_each(|n| b.order(n, n - 1, n));
        assert_eq!(
            b.expire(16),
            (17..=46).collect::<Vec<_>>(),
            "a window of 31, of which one is out"
        );
        b.order(17, 16, 17);
        assert_eq!((b.expiring.window, b.expiring.flying), (32, 30), "it may be late");
        b.order(18, 17, 18);
        assert_eq!((b.expiring.window, b.expiring.flying), (33 - 3, 28), "it is lost");
        // Should it come nevertheless, it counts as any other.
        b.order(1, 0, 19);
        assert_eq!((b.expiring.window, b.expiring.flying), (31, 28));
    }

    /// An expiry that is not ordered in time is sent again by another number.
    #[test]
    fn unordered_expiry_is_resent_under_a_new_number() {
        let mut b = Bench::new(2);
        b.ms += 1;
        assert_eq!(b.expire(0), [1, 2]);
        b.order(2, 1, 1);
        let at = b.ms;
        for ms in [RETRY_NS / MS - 1, RETRY_NS / MS] {
            b.ms = at + ms;
            assert_eq!(b.expire(1), if ms < RETRY_NS / MS { vec![] } else { vec![3] });
        }
        assert_eq!((b.expiring.flying, b.expiring.bytes), (1, key(0).len()));
        b.on_ordered(1, 2);
        assert_eq!(b.expiring.flying, 1, "the first one is nobody's by now");
    }

    /// A key that got another time to live meanwhile takes another turn.
    #[test]
    fn key_with_a_new_ttl_takes_another_try() {
        let mut b = Bench::new(1);
        assert_eq!(b.expire(0), [1]);
        let at = format!("{}", START_MS + 2);
        b.command(&[b"SET", &key(0), b"w", b"PXAT", at.as_bytes()]);
        b.ms += 1;
        assert_eq!(b.expire(0), []);
        b.ms += 1;
        assert_eq!(b.expire(0), [2]);
        assert_eq!((b.expiring.flying, b.expiring.bytes), (1, key(0).len()));
        // It is done with its own, not with that of the first.
        b.on_ordered(1, 5);
        b.on_ordered(2, 6);
        assert_eq!((b.expiring.flying, b.expire(5)), (0, vec![]));
        assert_eq!(b.expire(6), [3], "the key is still there");
    }

    /// A later epoch begins with nothing under way and its numbers are new.
    #[test]
    fn later_epoch_begins_with_nothing_in_flight() {
        let mut b = Bench::new(3);
        b.ms += 3;
        assert_eq!(b.expire(0), [1, 2, 3]);
        b.epoch = Epoch(2);
        assert_eq!(b.expire(0), [4, 5, 6]);
        b.on_ordered(2, 1);
        assert_eq!((b.expiring.flying, b.expiring.ordered.len()), (3, 0), "of the epoch before");
    }

    /// An expiry of a long key goes by its hash and its body is known until it is ordered.
    #[test]
    fn t17_long_keys_expiry_uses_its_hash() {
        let mut b = Bench::new(0);
        let long = vec![b'k'; BODY_BYTES_MAX];
        let at = format!("{START_MS}");
        b.command(&[b"SET", &long, b"v", b"PXAT", at.as_bytes()]);
        assert_eq!(b.expire(0), [1]);
        let (to, bytes) = b.sent.pop().unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        let (repr, hdr) = (packet.repr(), packet.body());
        assert_eq!((to, repr.flags), (SWITCH, Flags::INTERNAL.with(Flags::BODY_STAGED)));
        let body = b.expiring.body(&repr, hdr).unwrap();
        assert!(Command::parse(&body).unwrap().args().eq([EXPIRE_COMMAND, &long, at.as_bytes()]));
        let other = Repr { request: RequestNumber(2), ..repr };
        assert_eq!(b.expiring.body(&other, hdr), None);
        let of_client = Repr { flags: Flags::BODY_STAGED, ..repr };
        assert_eq!(b.expiring.body(&of_client, hdr), None);
        let mut forged = Vec::new();
        FragmentHdr { version: 7, total_bytes: 9, index: 0, count: 1 }.emit(&mut forged);
        assert_eq!(b.expiring.body(&repr, &forged), None, "another command");
        b.on_ordered(1, 1);
        assert_eq!(b.expiring.body(&repr, hdr), None);
    }

    /// The logs time is told when the last record is old and keys have times to live.
    #[test]
    fn t12_log_time_is_told_when_the_last_record_is_old() {
        let told = |b: &mut Bench, ms: u64| {
            b.ms = START_MS + ms;
            b.expire(0);
            b.sent
                .iter()
                .any(|(_, bytes)| Packet::parse(bytes).unwrap().repr().flags.has(Flags::NOOP))
        };
        let mut b = Bench::new(1);
        assert!(!told(&mut b, TELL_TIME_MS - 1));
        assert!(told(&mut b, TELL_TIME_MS));
        let again_ms = TELL_AGAIN_NS / MS;
        assert!(!told(&mut b, TELL_TIME_MS + again_ms - 1));
        assert!(told(&mut b, TELL_TIME_MS + again_ms), "that came to nothing");
        b.last_ms = b.ms;
        assert!(!told(&mut b, TELL_TIME_MS + 3 * again_ms));
        assert!(!told(&mut Bench::new(0), TELL_TIME_MS), "nobody asks for the time");
    }

    #[test]
    fn keys_that_are_due_are_looked_for_now_and_then() {
        let mut expiring = Expiring::default();
        let at = Instant(SEC);
        assert!(expiring.is_due(at) && expiring.next_at() == at.after(SCAN_NS));
        assert!(!expiring.is_due(at.after(SCAN_NS - 1)) && expiring.is_due(at.after(SCAN_NS)));
    }

    #[test]
    fn an_expiry_that_was_lost_closes_the_window_once() {
        let mut b = Bench::new(46);
        b.ms += 100;
        b.expire(0);
        (2..=16).for_each(|n| b.order(n, n - 1, n));
        assert_eq!(b.expire(16).len(), 30);
        (17..=18).for_each(|n| b.order(n, n - 1, n));
        assert_eq!(b.expiring.flying, 28, "the first one is lost");
        // Its key gets another time to live.
        let at = format!("{}", b.ms + 1);
        b.command(&[b"SET", &key(0), b"w", b"PXAT", at.as_bytes()]);
        b.ms += 1;
        assert_eq!(b.expire(18), [47]);
        assert_eq!(b.expiring.flying, 29);
        b.ms += RETRY_NS / MS;
        let again = b.expire(18);
        assert_eq!(b.expiring.flying, again.len(), "all before were given up");
    }

    /// Expiries that are remembered are bounded by their number and their bytes.
    #[test]
    fn remembered_expiries_are_bounded() {
        let mut expiring = Expiring::default();
        for n in 0..SENT_MAX as u64 - 3 {
            expiring.note(Instant(0), n.to_be_bytes().to_vec(), 1);
        }
        assert_eq!(expiring.room(), 0, "all are under way");
        expiring.flying = 0;
        assert_eq!(expiring.room(), 3, "all are lost");
        expiring.bytes = SENT_BYTES_MAX - 1;
        assert_eq!(expiring.room(), 3);
        expiring.bytes = SENT_BYTES_MAX;
        assert_eq!(expiring.room(), 0);
    }
}
