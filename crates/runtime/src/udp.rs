//! UDP with trains: under load, consecutive messages to one peer cross the kernel once
//! (UDP_SEGMENT), and are received at once (UDP_GRO). The stack costs about 3 us a packet, a
//! message in a train of 32 about 0.14 us (docs/internals/harmonia.md, "Where the time goes").
//!
//! A train's segments are of one size, so shorter messages are padded; every header gives the
//! length of its body, so that padding after it is harmless.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use concord_core::addr::Patch;
use concord_core::counters;
use concord_wire::{Addr, Sink};
use hashbrown::HashMap;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustc_hash::FxBuildHasher;
use rustix::net::sockopt;

use crate::error::Error;

/// The largest number of segments of one train: the kernel's UDP_MAX_SEGMENTS.
pub const TRAIN_SEGMENTS_MAX: usize = 64;
/// Largest train in bytes, below the 65,507 that one UDP send may carry.
pub const TRAIN_BYTES_MAX: usize = 64_000;
/// The largest padding of a train in bytes: copying this much costs about as much as the system
/// call that a second train would cost.
pub const PADDING_BYTES_MAX: usize = 8 * 1024;
/// The number of trains received in one system call.
pub const TRAINS_PER_RECEIVE: usize = 32;
const RECEIVE_BYTES: usize = 1 << 16;
/// The largest number of peers that are remembered. Beyond it the lanes are dropped (they are empty
/// after a flush).
const LANES_MAX: usize = 4_096;
/// The bytes that the kernel may queue for a socket. A full receive buffer loses packets silently,
/// and trains of small messages take several times their own size there.
const SOCKET_BUFFER_BYTES: usize = 32 << 20;
/// The approximate bytes that a small packet takes in a receive buffer, including the kernel's own
/// data.
const WAITING_BYTES: usize = 768;

counters! {
    /// Counters of the UDP layer at the sender.
    pub struct SendCounters {
        /// Messages sent.
        messages_sent,
        /// System calls that sent messages: batches (GSO) and single messages.
        trains_sent,
        /// Bytes sent, padding included.
        bytes_sent,
        /// Padding sent between messages of different sizes.
        padding_bytes_sent,
        /// Messages dropped because the socket's send buffer was full.
        dropped_send_buffer_full,
        /// Messages dropped because the kernel refused to send them.
        dropped_send_error,
    }
}

counters! {
    /// Counters of the UDP layer at the receiver.
    pub struct ReceiveCounters {
        /// Messages received.
        messages_received,
        /// Batches (GRO) and single messages received.
        trains_received,
        /// Bytes received, padding included.
        bytes_received,
        /// Receive calls that failed.
        receive_errors,
    }
}

/// The sender of trains: the socket, or a test's stand-in.
pub trait Carrier {
    /// Sends `contents`, cut into segments of `segment` bytes (the last may be shorter) if given.
    ///
    /// # Errors
    /// The system's; `WouldBlock` if there is no room.
    fn carry(&self, to: Addr, contents: &[u8], segment: Option<usize>) -> io::Result<()>;
    /// The largest number of segments of one train; 1 if segmentation is not supported.
    fn segments_max(&self) -> usize;
}

/// A bound UDP socket with segmentation and coalescing where the kernel has them.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Socket {
    /// Binds `addr`, with buffers as large as the system allows.
    ///
    /// # Errors
    /// One line that names the address.
    pub fn bind(addr: Addr) -> Result<Rc<Socket>, Error> {
        let failed = |e: &io::Error| Error::listening(&format!("UDP {addr}"), e, "the rack file");
        let socket = UdpSocket::bind(to_std(addr)).map_err(|e| failed(&e))?;
        let state = UdpSocketState::new((&socket).into()).map_err(|e| failed(&e))?;
        enlarge_buffers(&socket);
        Ok(Rc::new(Socket { socket, state }))
    }

    /// The address to which it is bound, with the port that the system chose if 0 was asked for.
    ///
    /// # Errors
    /// The system cannot tell, or the address is not IPv4.
    pub fn addr(&self) -> io::Result<Addr> {
        from_std(self.socket.local_addr()?).ok_or_else(|| io::Error::other("not an IPv4 address"))
    }
}

/// Datagrams that the kernel dropped because the receive buffer of the socket bound to `addr` was
/// full, from /proc/net/udp; `None` where that cannot be read.
#[must_use]
pub fn kernel_drops(addr: Addr) -> Option<u64> {
    local_line(addr)?.split_whitespace().last()?.parse().ok()
}

/// The line of /proc/net/udp about the socket bound to `addr`.
fn local_line(addr: Addr) -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/udp").ok()?;
    // The kernel prints the address as one native-endian word.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(addr.ip.to_be_bytes()), addr.port);
    let mut lines = table.lines();
    lines.find(|line| line.split_whitespace().nth(1) == Some(&local)).map(Into::into)
}

/// The approximate number of packets that wait in the receive buffer of the socket bound to `addr`,
/// from /proc/net/udp; 0 if that cannot be read. The kernel counts bytes, including its own data.
#[must_use]
pub fn waiting(addr: Addr) -> usize {
    let queued = local_line(addr).and_then(|line| {
        let (_, received) = line.split_whitespace().nth(4)?.split_once(':')?;
        usize::from_str_radix(received, 16).ok()
    });
    queued.map_or(0, |bytes| bytes.div_ceil(WAITING_BYTES))
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Carrier for Rc<Socket> {
    fn carry(&self, to: Addr, contents: &[u8], segment: Option<usize>) -> io::Result<()> {
        let transmit = Transmit {
            destination: to_std(to),
            ecn: None,
            contents,
            segment_size: segment,
            src_ip: None,
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }
}

/// Asks for large buffers: beyond the system's limit if permitted (CAP_NET_ADMIN), otherwise up to
/// it. Smaller ones only cost retries, so failures are not errors.
fn enlarge_buffers(socket: &UdpSocket) {
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    }
}

/// Converts to the type of the standard library.
#[must_use]
pub fn to_std(addr: Addr) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(addr.ip), addr.port))
}

/// Converts to the wire's type; `None` for IPv6.
#[must_use]
pub fn from_std(addr: SocketAddr) -> Option<Addr> {
    match addr {
        SocketAddr::V4(v4) => Some(Addr { ip: u32::from(*v4.ip()), port: v4.port() }),
        SocketAddr::V6(_) => None,
    }
}

/// The messages queued for one peer, which become a train.
#[derive(Debug)]
struct Lane {
    to: Addr,
    /// The messages at multiples of `segment`; the last one is not padded yet.
    bytes: Vec<u8>,
    segment: usize,
    count: usize,
    /// Bytes of the messages without padding.
    carried: usize,
    /// Whether it is on the outbox's list of waiting lanes.
    listed: bool,
}

impl Lane {
    fn new(to: Addr) -> Lane {
        Lane { to, bytes: Vec::new(), segment: 0, count: 0, carried: 0, listed: false }
    }

    /// Whether a message of `len` bytes may join a train of at most `segments_max`, order kept.
    fn admits(&self, len: usize, segments_max: usize) -> bool {
        let segment = self.segment.max(len);
        // Every message but the new one is padded; growing the segment moves what is queued,
        // which costs no more than padding does.
        self.count == 0
            || (self.count < segments_max.min(TRAIN_SEGMENTS_MAX)
                && (self.count + 1) * segment <= TRAIN_BYTES_MAX
                && self.count * segment - self.carried <= PADDING_BYTES_MAX
                && (segment == self.segment || self.bytes.len() <= PADDING_BYTES_MAX))
    }

    fn push(&mut self, packet: &[u8]) {
        if packet.len() > self.segment {
            self.widen(packet.len());
        }
        self.bytes.resize(self.count * self.segment, 0);
        self.bytes.extend_from_slice(packet);
        self.count += 1;
        self.carried += packet.len();
    }

    /// Moves the queued messages to multiples of a larger segment size.
    fn widen(&mut self, segment: usize) {
        let old = self.segment;
        self.segment = segment;
        if self.count < 2 {
            return;
        }
        let last = self.bytes.len() - (self.count - 1) * old;
        self.bytes.resize((self.count - 1) * segment + last, 0);
        for i in (1..self.count).rev() {
            let len = if i == self.count - 1 { last } else { old };
            self.bytes.copy_within(i * old..i * old + len, i * segment);
            let before = (i - 1) * segment + old;
            self.bytes[before..i * segment].fill(0);
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        (self.segment, self.count, self.carried) = (0, 0, 0);
    }
}

/// The output of a machine: one lane per peer, in order, sent as trains by [`Outbox::flush`], or
/// before when a train is full. It allocates nothing once its lanes exist.
#[derive(Debug)]
pub struct Outbox<C = Rc<Socket>> {
    carrier: C,
    lanes: Vec<Lane>,
    lane_of: HashMap<Addr, usize, FxBuildHasher>,
    /// The nonempty lanes, in the order of their first message.
    waiting: Vec<usize>,
    /// The lane used last: consecutive messages mostly go to one peer.
    recent: usize,
    counters: SendCounters,
}

impl<C: Carrier> Outbox<C> {
    /// An empty outbox over `carrier`.
    pub fn new(carrier: C) -> Outbox<C> {
        Outbox {
            carrier,
            lanes: Vec::new(),
            lane_of: HashMap::default(),
            waiting: Vec::new(),
            recent: 0,
            counters: SendCounters::default(),
        }
    }

    /// Sends everything that is queued.
    pub fn flush(&mut self) {
        for i in 0..self.waiting.len() {
            self.ship(self.waiting[i]);
            self.lanes[self.waiting[i]].listed = false;
        }
        self.waiting.clear();
        if self.lanes.len() > LANES_MAX {
            self.lanes.clear();
            self.lane_of.clear();
        }
    }

    /// The counters of sent and dropped messages.
    #[must_use]
    pub fn counters(&self) -> &SendCounters {
        &self.counters
    }

    fn lane(&mut self, to: Addr) -> usize {
        if self.lanes.get(self.recent).is_some_and(|lane| lane.to == to) {
            return self.recent;
        }
        let lanes = &mut self.lanes;
        self.recent = *self.lane_of.entry(to).or_insert_with(|| {
            lanes.push(Lane::new(to));
            lanes.len() - 1
        });
        self.recent
    }

    /// Sends the train of lane `index`. If it cannot be sent, it is dropped and counted: the
    /// protocols above retry, and waiting here would hold up every other peer.
    fn ship(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        if lane.count == 0 {
            return;
        }
        let segment = (lane.count > 1).then_some(lane.segment);
        let messages = lane.count as u64;
        match self.carrier.carry(lane.to, &lane.bytes, segment) {
            Ok(()) => {
                self.counters.messages_sent += messages;
                self.counters.trains_sent += 1;
                self.counters.bytes_sent += lane.bytes.len() as u64;
                self.counters.padding_bytes_sent += (lane.bytes.len() - lane.carried) as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.counters.dropped_send_buffer_full += messages;
            }
            Err(_) => self.counters.dropped_send_error += messages,
        }
        lane.clear();
    }
}

impl<C: Carrier> Outbox<C> {
    /// Queues a packet, and returns the copy.
    fn queue(&mut self, to: Addr, packet: &[u8]) -> Option<&mut [u8]> {
        if packet.is_empty() || packet.len() > TRAIN_BYTES_MAX {
            self.counters.dropped_send_error += 1;
            return None;
        }
        let index = self.lane(to);
        if !self.lanes[index].admits(packet.len(), self.carrier.segments_max()) {
            self.ship(index);
        }
        let lane = &mut self.lanes[index];
        lane.push(packet);
        if !lane.listed {
            lane.listed = true;
            self.waiting.push(index);
        }
        let start = lane.bytes.len() - packet.len();
        Some(&mut lane.bytes[start..])
    }
}

impl<C: Carrier> Sink for Outbox<C> {
    fn send(&mut self, to: Addr, packet: &[u8]) {
        self.queue(to, packet);
    }

    fn send_patched(&mut self, to: Addr, packet: &[u8], patch: Patch) {
        if let Some(copy) = self.queue(to, packet) {
            patch.write(copy);
        }
    }
}

/// Receives trains, and returns their messages one by one.
#[derive(Debug)]
pub struct Inbox {
    socket: Rc<Socket>,
    buffer: Vec<u8>,
    metas: [RecvMeta; TRAINS_PER_RECEIVE],
    received: usize,
    counters: ReceiveCounters,
}

/// One train, or a single message.
#[derive(Debug)]
pub struct Train<'a> {
    /// The address of the sender.
    pub from: Addr,
    bytes: &'a mut [u8],
    stride: usize,
}

impl Train<'_> {
    /// Its messages in order, possibly followed by padding.
    pub fn messages(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.bytes.chunks_mut(self.stride)
    }
}

impl Inbox {
    /// An inbox over `socket`.
    #[must_use]
    pub fn new(socket: Rc<Socket>) -> Inbox {
        Inbox {
            socket,
            buffer: vec![0; TRAINS_PER_RECEIVE * RECEIVE_BYTES],
            metas: [RecvMeta::default(); TRAINS_PER_RECEIVE],
            received: 0,
            counters: ReceiveCounters::default(),
        }
    }

    /// Receives what has arrived, up to a bounded number of trains, and returns their number. They
    /// are read by [`Inbox::trains`], for which the clock is sampled only after this (trap T1).
    pub fn receive(&mut self) -> usize {
        let mut rest = self.buffer.as_mut_slice();
        let mut slices: [IoSliceMut<'_>; TRAINS_PER_RECEIVE] = std::array::from_fn(|_| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(RECEIVE_BYTES);
            rest = tail;
            IoSliceMut::new(head)
        });
        let socket = &self.socket;
        self.received =
            match socket.state.recv((&socket.socket).into(), &mut slices, &mut self.metas) {
                Ok(trains) => trains,
                Err(e) => {
                    let idle = e.kind() == io::ErrorKind::WouldBlock;
                    self.counters.receive_errors += u64::from(!idle);
                    0
                }
            };
        for meta in &self.metas[..self.received] {
            self.counters.trains_received += 1;
            self.counters.bytes_received += meta.len as u64;
            self.counters.messages_received += meta.len.div_ceil(meta.stride.max(1)) as u64;
        }
        self.received
    }

    /// The trains of the last [`Inbox::receive`], in the order of their arrival.
    pub fn trains(&mut self) -> impl Iterator<Item = Train<'_>> {
        let slots = self.buffer.chunks_mut(RECEIVE_BYTES);
        self.metas[..self.received].iter().zip(slots).filter_map(|(meta, slot)| {
            let bytes = slot.get_mut(..meta.len)?;
            Some(Train { from: from_std(meta.addr)?, bytes, stride: meta.stride.max(1) })
        })
    }

    /// The counters of received messages.
    #[must_use]
    pub fn counters(&self) -> &ReceiveCounters {
        &self.counters
    }
}

#[cfg(test)]
mod tests;
