//! The stream of messages between this gateway and another one: in order, each once, as long as
//! both hear each other. A gateway that is not heard of for a second counts as gone: what was under
//! way to it is given up, and when it is heard again, or another process is there in its place, the
//! stream begins anew.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::{Duration, Instant, MS, NodeId, SEC};
use concord_wire::gateways::{PART_BYTES_MAX, StreamHdr};
use concord_wire::{Addr, Sink};

/// After that long without a packet a gateway counts as gone.
pub(crate) const SILENCE_NS: Duration = SEC;
/// The interval of keepalives.
const ALIVE_NS: Duration = 200 * MS;
/// Time until a packet is sent again, at first and at most.
const RESEND_MIN_NS: Duration = 10 * MS;
const RESEND_MAX_NS: Duration = 160 * MS;
/// The largest number of packets in flight.
const WINDOW: u64 = 512;
/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
const ARRIVED_BITS: u64 = 64;

#[derive(Debug)]
struct Part {
    number: u64,
    bytes: Vec<u8>,
    is_last: bool,
    /// When it was sent last; `None`: not yet.
    sent_at: Option<Instant>,
    sends: u32,
    has_arrived: bool,
}

/// One other gateway.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Which one.
    pub node: u16,
    addr: Addr,
    own: (NodeId, u64),
    /// Its incarnation; 0 if it was never heard of.
    incarnation: u64,
    heard_at: Instant,
    is_up: bool,
    /// The number of times that it counted as gone or began anew.
    breaks: u64,
    alive_at: Instant,
    /// The stream to it: its number, the unacknowledged parts, and their size in bytes.
    out: u32,
    parts: VecDeque<Part>,
    next_number: u64,
    bytes: usize,
    /// The stream from it.
    inn: u32,
    next: u64,
    held: BTreeMap<u64, (Vec<u8>, bool)>,
    message: Vec<u8>,
    owes_ack: bool,
}

/// The result of a packet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// The other gateway began anew: its earlier reports do not count any more.
    pub began_anew: bool,
    /// Messages in flight to it are given up, and it has to be told everything.
    pub is_back: bool,
    /// It has to be told everything again, after the messages in flight.
    pub has_forgotten: bool,
    /// Whole messages, in order.
    pub messages: Vec<Vec<u8>>,
    /// More of what goes to it has arrived.
    pub acknowledged: bool,
}

impl Stream {
    pub(crate) fn new(now: Instant, own: (NodeId, u64), node: u16, addr: Addr) -> Stream {
        Stream {
            node,
            addr,
            own,
            incarnation: 0,
            heard_at: now,
            is_up: true,
            breaks: 0,
            alive_at: now,
            out: 1,
            parts: VecDeque::new(),
            next_number: 1,
            bytes: 0,
            inn: 0,
            next: 1,
            held: BTreeMap::new(),
            message: Vec::new(),
            owes_ack: false,
        }
    }

    /// Whether it is heard of.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// The number of times that it counted as gone or began anew.
    pub(crate) fn breaks(&self) -> u64 {
        self.breaks
    }

    /// Bytes that wait for it.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a message. Returns its end in the stream; `None` if the other gateway counts as
    /// gone.
    pub(crate) fn push(&mut self, message: &[u8]) -> Option<u64> {
        if !self.is_up {
            return None;
        }
        let count = message.len().div_ceil(PART_BYTES_MAX).max(1);
        for (index, bytes) in message.chunks(PART_BYTES_MAX).enumerate() {
            let is_last = index + 1 == count;
            let (number, bytes) = (self.next_number, bytes.to_vec());
            self.bytes += bytes.len();
            self.next_number += 1;
            let (sent_at, sends, has_arrived) = (None, 0, false);
            self.parts.push_back(Part { number, bytes, is_last, sent_at, sends, has_arrived });
        }
        Some(self.next_number - 1)
    }

    /// The position up to which it has acknowledged the stream.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.parts.front().map_or(self.next_number, |part| part.number) - 1
    }

    /// A packet of it came.
    pub(crate) fn on_packet(&mut self, now: Instant, hdr: &StreamHdr, part: &[u8]) -> News {
        let mut news = News::default();
        if self.is_over(hdr) {
            return news;
        }
        self.heard_at = now;
        let is_other = self.incarnation != hdr.incarnation;
        let was_known = self.incarnation != 0;
        let is_new = is_other || hdr.stream != self.inn;
        if is_new {
            self.incarnation = hdr.incarnation;
            (self.inn, self.next) = (hdr.stream, 1);
            self.held.clear();
            self.message.clear();
            news.began_anew = true;
            self.breaks += u64::from(was_known);
        }
        // The other gateway begins anew after it took this one for gone, which this one may not
        // have noticed: it has forgotten all reports. The stream also begins anew if it lacks a
        // part that is not kept any more, because it meanwhile took an earlier process for the
        // sender.
        let lacks_some = is_new && self.had(hdr) < self.acknowledged();
        if !self.is_up || is_other && was_known || lacks_some {
            self.begin_anew();
            news.is_back = true;
        } else {
            news.has_forgotten = is_new && was_known;
        }
        if hdr.to_incarnation == self.own.1 && hdr.ack_stream == self.out {
            news.acknowledged = self.on_ack(hdr.next, hdr.arrived);
        }
        if hdr.number > 0 {
            self.owes_ack = true;
            self.take(hdr.number, part, hdr.is_last, &mut news.messages);
        }
        news
    }

    /// Whether a packet is of a stream, or of a process, that is over. Incarnations grow: of two
    /// the later one is there, and an earlier one is believed only if that is not heard of.
    fn is_over(&self, hdr: &StreamHdr) -> bool {
        let is_same = hdr.incarnation == self.incarnation;
        is_same && hdr.stream < self.inn || self.is_up && hdr.incarnation < self.incarnation
    }

    /// The position in the stream up to which it had received when it sent a packet.
    fn had(&self, hdr: &StreamHdr) -> u64 {
        let is_it = hdr.to_incarnation == self.own.1 && hdr.ack_stream == self.out;
        if is_it { hdr.next.saturating_sub(1) } else { 0 }
    }

    fn begin_anew(&mut self) {
        self.is_up = true;
        self.out += 1;
        self.parts.clear();
        self.bytes = 0;
        self.next_number = 1;
    }

    fn on_ack(&mut self, next: u64, arrived: u64) -> bool {
        let mut is_more = false;
        while let Some(part) = self.parts.front().filter(|part| part.number < next) {
            if part.sent_at.is_none() {
                break; // A forged one.
            }
            self.bytes -= part.bytes.len();
            self.parts.pop_front();
            is_more = true;
        }
        for part in self.parts.iter_mut().take(ARRIVED_BITS as usize + 1) {
            let bit = part.number.checked_sub(next + 1).filter(|bit| *bit < ARRIVED_BITS);
            part.has_arrived |= bit.is_some_and(|bit| arrived >> bit & 1 == 1);
        }
        is_more
    }

    fn take(&mut self, number: u64, part: &[u8], is_last: bool, messages: &mut Vec<Vec<u8>>) {
        if number < self.next || number >= self.next + WINDOW {
            return;
        }
        self.held.entry(number).or_insert_with(|| (part.to_vec(), is_last));
        while let Some((part, is_last)) = self.held.remove(&self.next) {
            self.next += 1;
            if self.message.len() + part.len() <= MESSAGE_BYTES_MAX {
                self.message.extend_from_slice(&part);
            }
            if is_last {
                messages.push(core::mem::take(&mut self.message));
            }
        }
    }

    /// Sends what is due. True: it counts as gone from now on.
    pub(crate) fn tick(&mut self, now: Instant, sink: &mut impl Sink) -> bool {
        let is_gone = self.is_up && now.since(self.heard_at) >= SILENCE_NS;
        if is_gone {
            self.is_up = false;
            self.breaks += 1;
            self.parts.clear();
            self.bytes = 0;
        }
        self.send_due(now, sink);
        if now >= self.alive_at {
            self.owes_ack = true;
        }
        self.send_ack(now, sink);
        is_gone
    }

    fn resend_at(part: &Part) -> Instant {
        let wait = (RESEND_MIN_NS << part.sends.saturating_sub(1).min(4)).min(RESEND_MAX_NS);
        part.sent_at.map_or(Instant(0), |at| at.after(wait))
    }

    /// Sends the parts that were not, and those whose acknowledgement is late.
    pub(crate) fn send_due(&mut self, now: Instant, sink: &mut impl Sink) {
        let hdr = self.hdr();
        let Some(first) = self.parts.front().map(|part| part.number) else { return };
        let mut packet = Vec::new();
        let mut is_sent = false;
        for part in self.parts.iter_mut().take_while(|part| part.number < first + WINDOW) {
            if part.has_arrived || Stream::resend_at(part) > now {
                continue;
            }
            StreamHdr { number: part.number, is_last: part.is_last, ..hdr }
                .emit(&part.bytes, &mut packet);
            sink.send(self.addr, &packet);
            part.sent_at = Some(now);
            part.sends += 1;
            is_sent = true;
        }
        if is_sent {
            self.owes_ack = false;
            self.alive_at = now.after(ALIVE_NS);
        }
    }

    /// Acknowledges what came, if no other packet has.
    pub(crate) fn send_ack(&mut self, now: Instant, sink: &mut impl Sink) {
        if !core::mem::take(&mut self.owes_ack) {
            return;
        }
        let mut packet = Vec::new();
        self.hdr().emit(&[], &mut packet);
        sink.send(self.addr, &packet);
        self.alive_at = now.after(ALIVE_NS);
    }

    fn hdr(&self) -> StreamHdr {
        let mut arrived = 0;
        for number in self.held.keys() {
            let bit = number.saturating_sub(self.next + 1);
            if bit < ARRIVED_BITS {
                arrived |= 1 << bit;
            }
        }
        StreamHdr {
            from: self.own.0,
            incarnation: self.own.1,
            stream: self.out,
            number: 0,
            is_last: false,
            to_incarnation: self.incarnation,
            ack_stream: self.inn,
            next: self.next,
            arrived,
        }
    }

    /// When it is to be looked at again.
    pub(crate) fn deadline(&self) -> Instant {
        let silent = if self.is_up { self.heard_at.after(SILENCE_NS) } else { Instant::NEVER };
        // The first that is not acknowledged has not arrived, and was sent first.
        let resend = self.parts.front().map_or(Instant::NEVER, Stream::resend_at);
        self.alive_at.min(silent).min(resend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use concord_core::Rng;

    fn stream(node: u16, incarnation: u64, other: u16) -> Stream {
        let addr = Addr { ip: 1, port: other };
        Stream::new(Instant(0), (NodeId(node), incarnation), other, addr)
    }

    /// Two ends and what is on its way between them, of which some is lost, doubled and late.
    struct Pair {
        ends: [Stream; 2],
        wire: Vec<(Instant, usize, Vec<u8>)>,
        now: Instant,
        rng: Rng,
        loss: u64,
        got: [Vec<Vec<u8>>; 2],
        news: [(u32, u32); 2],
    }

    impl Pair {
        fn new(seed: u64, loss: u64) -> Pair {
            let ends = [stream(1, 101, 2), stream(2, 102, 1)];
            let (wire, rng) = (vec![], Rng::new(seed));
            Pair {
                ends,
                wire,
                now: Instant(0),
                rng,
                loss,
                got: [vec![], vec![]],
                news: [(0, 0); 2],
            }
        }

        fn send(&mut self, from: usize, sent: Vec<(Addr, Vec<u8>)>) {
            for (_, bytes) in sent {
                for _ in 0..self.rng.between(1, 2) {
                    if self.rng.below(100) >= self.loss {
                        let at = self.now.after(self.rng.between(MS / 10, 3 * MS));
                        self.wire.push((at, 1 - from, bytes.clone()));
                    }
                }
            }
        }

        fn run_for(&mut self, ns: Duration) {
            let until = self.now.after(ns);
            while self.now < until {
                self.now = self.now.after(MS / 10);
                let (now, mut due) = (self.now, vec![]);
                self.wire.retain(|(at, to, bytes)| {
                    let is_due = *at <= now;
                    due.extend(is_due.then(|| (*to, bytes.clone())));
                    !is_due
                });
                for (to, bytes) in due {
                    let (hdr, part) = StreamHdr::parse(&bytes).unwrap();
                    let news = self.ends[to].on_packet(now, &hdr, part);
                    self.got[to].extend(news.messages);
                    self.news[to].0 += u32::from(news.began_anew);
                    self.news[to].1 += u32::from(news.is_back);
                }
                for end in 0..2 {
                    let mut sent = vec![];
                    if self.ends[end].deadline() <= now {
                        self.ends[end].tick(now, &mut sent);
                    }
                    self.ends[end].send_due(now, &mut sent);
                    self.ends[end].send_ack(now, &mut sent);
                    self.send(end, sent);
                }
            }
        }
    }

    #[test]
    fn messages_come_once_and_in_order_whatever_is_lost() {
        for seed in 0..30 {
            let mut pair = Pair::new(seed, [0, 10, 30][seed as usize % 3]);
            let mut sent = [vec![], vec![]];
            for n in 0..200u32 {
                let end = pair.rng.below(2) as usize;
                let length = if n % 20 == 0 { 5_000 } else { 20 };
                let mut message = n.to_be_bytes().to_vec();
                message.resize(length, n as u8);
                let at = pair.ends[end].push(&message);
                assert!(at.is_some());
                sent[end].push(message);
                let some = pair.rng.below(2 * MS);
                pair.run_for(some);
            }
            pair.run_for(3 * SEC);
            assert!(pair.got[1] == sent[0] && pair.got[0] == sent[1], "seed {seed}");
            for end in &pair.ends {
                assert_eq!((end.acknowledged(), end.bytes()), (end.next_number - 1, 0));
            }
            assert_eq!(pair.news, [(1, 0), (1, 0)], "nobody began anew but at the start");
        }
    }

    #[test]
    fn who_is_silent_counts_as_gone_and_begins_anew() {
        let mut pair = Pair::new(1, 0);
        pair.run_for(SEC);
        pair.loss = 100;
        pair.ends[0].push(b"lost").unwrap();
        pair.run_for(2 * SEC);
        assert!(!pair.ends[0].is_up() && pair.ends[0].push(b"to nobody").is_none());
        pair.loss = 0;
        pair.run_for(SEC);
        assert!(pair.ends[0].is_up() && pair.ends[1].is_up());
        assert_eq!(pair.news, [(2, 1), (2, 1)]);
        pair.ends[0].push(b"heard").unwrap();
        pair.run_for(50 * MS);
        assert_eq!(pair.got[1], [b"heard".to_vec()]);
        // Another process in its place.
        pair.ends[1] = stream(2, 103, 1);
        pair.ends[1].heard_at = pair.now;
        pair.ends[1].push(b"new").unwrap();
        pair.run_for(SEC);
        pair.ends[0].push(b"again").unwrap();
        pair.run_for(50 * MS);
        assert_eq!(
            (&pair.got[0][..], &pair.got[1][1..]),
            (&[b"new".to_vec()][..], &[b"again".to_vec()][..])
        );
    }
}
