//! Messages between gateways: who has subscribed to what, and what is published. Each has a stream
//! to each.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::{Instant, NodeId, Now};
use concord_wire::gateways::StreamHdr;
use concord_wire::{Addr, Sink};

use crate::connection::ConnectionId;
use crate::connection::subscriptions::{Message, Sort};
use crate::pubsub::channels::{Channels, Gates, Told, Waits, messages};
use crate::pubsub::stream::Stream;
use crate::tracking::footprint::encode_written;

/// The size of messages that wait for another gateway at which publishers wait, in bytes.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Bits of an incarnation that are random; those above are the time of its beginning, in ms.
const RANDOM_BITS: u32 = 20;

/// All of publish and subscribe but the connections.
#[derive(Debug)]
pub(crate) struct Exchange {
    own: (NodeId, u64),
    others: Vec<(u16, Addr)>,
    /// To the others, in their order; none before the first tick.
    streams: Vec<Stream>,
    pub channels: Channels,
    pub gates: Gates,
    /// Messages for clients here.
    pub messages: VecDeque<Message>,
    /// Other gateways' reports of writes.
    pub written: VecDeque<Vec<u8>>,
    /// Other gateways' reports of users.
    pub users: VecDeque<Vec<u8>>,
    /// A gateway was not heard of: what it had to tell of writes may be lost.
    pub has_lost_contact: bool,
    /// The others were not told of writes, and are to be told that all keys were written.
    owes_all_written: bool,
    /// Connections that wait to publish.
    pub waiting: VecDeque<ConnectionId>,
}

impl Exchange {
    /// The exchange of gateway `node`, in its incarnation `incarnation`, with these others.
    pub(crate) fn new(node: u16, incarnation: u64, others: Vec<(u16, Addr)>) -> Exchange {
        Exchange {
            own: (NodeId(node), incarnation),
            channels: Channels::new(others.len()),
            gates: Gates::new(others.len()),
            others,
            streams: Vec::new(),
            messages: VecDeque::new(),
            written: VecDeque::new(),
            users: VecDeque::new(),
            has_lost_contact: false,
            owes_all_written: false,
            waiting: VecDeque::new(),
        }
    }

    fn must_begin(&self) -> bool {
        self.streams.len() < self.others.len()
    }

    /// Tells the others how many clients here have subscribed to each of these; where in which
    /// streams.
    pub(crate) fn tell(&mut self, counts: &[(Sort, &[u8], u32)]) -> Vec<(usize, u64)> {
        let messages = messages(counts.iter().copied());
        let mut until = Vec::new();
        for (other, stream) in self.streams.iter_mut().enumerate() {
            let mut end = None;
            for message in &messages {
                end = stream.push(message);
            }
            until.extend(end.map(|number| (other, number)));
        }
        until
    }

    /// Whether another gateway wants to hear of writes.
    pub(crate) fn is_written_asked_for(&self) -> bool {
        self.channels.are_writes_wanted()
    }

    /// The number of times that another gateway counted as gone or began anew, and whether it
    /// counts as present.
    pub(crate) fn breaks_with(&self, node: u16) -> (u64, bool) {
        let stream = self.streams.iter().find(|stream| stream.node == node);
        stream.map_or((0, true), |stream| (stream.breaks(), stream.is_up()))
    }

    /// Whether too much waits to be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.streams.iter().any(|stream| stream.bytes() > WAITING_BYTES_MAX)
    }

    /// The number of receivers of a message, as far as is known.
    pub(crate) fn receivers(&self, sort: Sort, channel: &[u8]) -> u64 {
        let here = self.channels.receivers(sort, channel).len() as u64;
        let there = self.streams.iter().enumerate().filter(|(_, stream)| stream.is_up());
        let there = there.map(|(other, _)| self.channels.receivers_there(other, sort, channel));
        here + there.map(u64::from).sum::<u64>()
    }

    /// Publishes a message; where in the streams of those who get it.
    pub(crate) fn publish(
        &mut self,
        sort: Sort,
        channel: &[u8],
        payload: &[u8],
    ) -> Vec<(usize, u64)> {
        let mut until = Vec::new();
        let mut message = Vec::new();
        for (other, stream) in self.streams.iter_mut().enumerate() {
            if self.channels.receivers_there(other, sort, channel) == 0 {
                continue;
            }
            if message.is_empty() {
                Told::Published(sort, channel, payload).emit(&mut message);
            }
            until.extend(stream.push(&message).map(|number| (other, number)));
        }
        self.give(sort, channel, payload);
        until
    }

    /// Tells all others of users; where in which streams.
    pub(crate) fn tell_users(&mut self, users: &[u8]) -> Vec<(usize, u64)> {
        let mut message = Vec::new();
        Told::Users(users).emit(&mut message);
        let streams = self.streams.iter_mut().enumerate();
        streams.filter_map(|(other, stream)| Some((other, stream.push(&message)?))).collect()
    }

    /// Reports writes to the gateways that track them; if too much is in flight, later and as a
    /// write of all keys.
    pub(crate) fn tell_written(&mut self, keys: &[Vec<u8>], flushes: bool) {
        if !self.is_written_asked_for() {
            return;
        }
        if self.is_full() {
            self.owes_all_written = true;
            return;
        }
        let flushes = flushes || core::mem::take(&mut self.owes_all_written);
        self.publish(Sort::Written, b"", &encode_written(keys, flushes));
    }

    /// A message for clients here.
    fn give(&mut self, sort: Sort, channel: &[u8], payload: &[u8]) {
        if !self.channels.receivers(sort, channel).is_empty() {
            let (channel, payload) = (channel.to_vec(), payload.to_vec());
            self.messages.push_back(Message { sort, channel, payload });
        }
    }

    /// A packet of another gateway.
    pub(crate) fn on_packet(&mut self, now: Instant, hdr: &StreamHdr, part: &[u8]) {
        let is_it = |stream: &Stream| stream.node == hdr.from.0;
        let Some(other) = self.streams.iter().position(is_it) else { return };
        let news = self.streams[other].on_packet(now, hdr, part);
        if news.began_anew {
            self.channels.forget_there(other);
        }
        if news.is_back || news.has_forgotten {
            let mut end = None;
            for message in self.channels.all() {
                end = self.streams[other].push(&message).or(end);
            }
            if news.is_back {
                self.gates.begin_anew(other, end);
            }
            if let Some(end) = end {
                self.gates.wait(Waits::Regained, &[(other, end)]);
            }
        }
        if news.acknowledged {
            self.gates.heard(other, self.streams[other].acknowledged());
        }
        for message in news.messages {
            let mut rest = &message[..];
            while let Some((told, behind)) = Told::parse(rest) {
                rest = behind;
                match told {
                    Told::Subscribers(sort, name, count) => {
                        self.channels.set_there(other, sort, name, count);
                    }
                    Told::Published(Sort::Written, _, written) => {
                        self.written.push_back(written.to_vec());
                    }
                    Told::Users(users) => self.users.push_back(users.to_vec()),
                    Told::Published(sort, channel, payload) => self.give(sort, channel, payload),
                }
            }
        }
    }

    pub(crate) fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        if self.must_begin() {
            // Later ones are larger, unless a clock is set back; and no two are equal.
            self.own.1 = now.unix_ms << RANDOM_BITS | self.own.1 >> (64 - RANDOM_BITS);
            let stream =
                |(node, addr): &(u16, Addr)| Stream::new(now.instant, self.own, *node, *addr);
            self.streams = self.others.iter().map(stream).collect();
            let all = self.channels.all();
            for stream in &mut self.streams {
                for message in &all {
                    stream.push(message);
                }
            }
        }
        for (other, stream) in self.streams.iter_mut().enumerate() {
            if stream.tick(now.instant, sink) {
                self.channels.forget_there(other);
                self.gates.heard(other, u64::MAX);
                self.has_lost_contact = true;
            }
        }
    }

    /// Sends what is to be sent by now.
    pub(crate) fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        if self.owes_all_written {
            self.tell_written(&[], true);
        }
        for stream in &mut self.streams {
            stream.send_due(now.instant, sink);
            stream.send_ack(now.instant, sink);
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        if self.must_begin() {
            return Instant(0);
        }
        self.streams.iter().map(Stream::deadline).min().unwrap_or(Instant::NEVER)
    }

    /// Waits until the others have heard.
    pub(crate) fn wait(&mut self, what: Waits, until: &[(usize, u64)]) {
        self.gates.wait(what, until);
    }
}
