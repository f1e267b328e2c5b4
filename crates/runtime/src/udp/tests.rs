use super::*;
use concord_wire::{GroupId, Header, Kind, header};
use std::cell::RefCell;

const LOCALHOST: u32 = 0x7f00_0001;

fn any_port() -> Addr {
    Addr { ip: LOCALHOST, port: 0 }
}

/// Messages that say who they are: a length, a number, then a pattern.
fn message(number: u32, len: usize) -> Vec<u8> {
    let mut m = Vec::with_capacity(len);
    m.extend_from_slice(&(len as u32).to_be_bytes());
    m.extend_from_slice(&number.to_be_bytes());
    m.extend((m.len()..len).map(|i| (i as u32 * 31 + number) as u8));
    m
}

fn parse(padded: &[u8]) -> Vec<u8> {
    let len = u32::from_be_bytes([padded[0], padded[1], padded[2], padded[3]]) as usize;
    assert!(padded[len..].iter().all(|&b| b == 0), "padding is zeros");
    padded[..len].to_vec()
}

fn receive_all(inbox: &mut Inbox, wanted: usize) -> Vec<(Addr, Vec<u8>)> {
    let mut got = Vec::new();
    let started = std::time::Instant::now();
    while got.len() < wanted && started.elapsed().as_secs() < 5 {
        inbox.receive();
        for mut train in inbox.trains() {
            let from = train.from;
            got.extend(train.messages().map(|m| (from, parse(m))));
        }
    }
    got
}

/// What a test's carrier was asked to send: to whom, the bytes, and the segment size.
type Carried = (Addr, Vec<u8>, Option<usize>);

/// Remembers what it was asked to carry; has room for `room` trains.
struct Memory {
    carried: RefCell<Vec<Carried>>,
    room: usize,
    segments_max: usize,
}

impl Memory {
    fn new(room: usize, segments_max: usize) -> Memory {
        Memory { carried: RefCell::default(), room, segments_max }
    }
}

impl Carrier for &Memory {
    fn carry(&self, to: Addr, contents: &[u8], segment: Option<usize>) -> io::Result<()> {
        if self.carried.borrow().len() == self.room {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.carried.borrow_mut().push((to, contents.to_vec(), segment));
        Ok(())
    }

    fn segments_max(&self) -> usize {
        self.segments_max
    }
}

fn unpack(carried: &[Carried]) -> Vec<Vec<u8>> {
    carried
        .iter()
        .flat_map(|(_, bytes, segment)| bytes.chunks(segment.unwrap_or(bytes.len())).map(parse))
        .collect()
}

#[test]
fn big_and_small_messages_cross_the_loopback_in_order_and_whole() {
    let receivers = [Socket::bind(any_port()).unwrap(), Socket::bind(any_port()).unwrap()];
    let sender = Socket::bind(any_port()).unwrap();
    let mut outbox = Outbox::new(Rc::clone(&sender));
    let lens = [64usize, 64, 70, 1_400, 9, 64, 300, 301, 302, 8, 1_399, 1_400];
    let mut sent = [Vec::new(), Vec::new()];
    for number in 0..2_000u32 {
        let which = (number / 7 % 2) as usize;
        let m = message(number, lens[(number as usize * 5) % lens.len()]);
        outbox.send(receivers[which].addr().unwrap(), &m);
        sent[which].push(m);
    }
    outbox.flush();
    for (receiver, sent) in receivers.into_iter().zip(sent) {
        let mut inbox = Inbox::new(receiver);
        let got = receive_all(&mut inbox, sent.len());
        assert!(got.iter().all(|(from, _)| *from == sender.addr().unwrap()));
        let got: Vec<_> = got.into_iter().map(|(_, m)| m).collect();
        assert_eq!(got, sent);
        assert_eq!(inbox.counters().messages_received, sent.len() as u64);
    }
    let c = outbox.counters();
    assert_eq!((c.messages_sent, c.dropped_send_error), (2_000, 0));
    assert!(c.trains_sent < 600, "{} system calls for 2,000 messages", c.trains_sent);
}

#[test]
fn messages_of_one_size_ride_full_trains_without_padding() {
    let memory = Memory::new(usize::MAX, 64);
    let mut outbox = Outbox::new(&memory);
    for number in 0..130 {
        outbox.send(any_port(), &message(number, 100));
    }
    assert_eq!(memory.carried.borrow().len(), 2, "full trains leave at once");
    outbox.flush();
    let carried = memory.carried.borrow();
    let shape: Vec<_> = carried.iter().map(|(_, b, s)| (b.len(), *s)).collect();
    assert_eq!(shape, [(6_400, Some(100)), (6_400, Some(100)), (200, Some(100))]);
    assert_eq!(outbox.counters().padding_bytes_sent, 0);
}

#[test]
fn a_single_message_goes_plain_and_an_empty_flush_sends_nothing() {
    let memory = Memory::new(usize::MAX, 64);
    let mut outbox = Outbox::new(&memory);
    outbox.flush();
    outbox.send(any_port(), &message(0, 77));
    outbox.flush();
    outbox.flush();
    assert_eq!(*memory.carried.borrow(), [(any_port(), message(0, 77), None)]);
}

#[test]
fn every_mix_of_sizes_keeps_order_and_bounds() {
    let mut rng = concord_core::Rng::new(1);
    for _ in 0..300 {
        let memory = Memory::new(usize::MAX, 64);
        let mut outbox = Outbox::new(&memory);
        let spread = rng.between(8, 1_400);
        let count = rng.between(1, 200) as u32;
        let sent: Vec<_> =
            (0..count).map(|n| message(n, rng.between(8, spread.max(9)) as usize)).collect();
        for m in &sent {
            outbox.send(any_port(), m);
        }
        outbox.flush();
        let carried = memory.carried.borrow();
        assert_eq!(unpack(&carried), sent);
        for (_, bytes, segment) in carried.iter() {
            let segments = segment.map_or(1, |s| bytes.len().div_ceil(s));
            assert!(segments <= TRAIN_SEGMENTS_MAX && bytes.len() <= TRAIN_BYTES_MAX);
            let payload: usize =
                bytes.chunks(segment.unwrap_or(bytes.len())).map(|m| parse(m).len()).sum();
            assert!(bytes.len() - payload <= PADDING_BYTES_MAX);
        }
        let c = outbox.counters();
        assert_eq!(c.messages_sent, u64::from(count));
        let bytes: usize = sent.iter().map(Vec::len).sum();
        assert_eq!(c.bytes_sent - c.padding_bytes_sent, bytes as u64);
    }
}

/// Small messages behind a big one are not all padded to its size.
#[test]
fn small_messages_are_not_padded_to_a_big_one() {
    let memory = Memory::new(usize::MAX, 64);
    let mut outbox = Outbox::new(&memory);
    outbox.send(any_port(), &message(0, 1_400));
    for number in 1..60 {
        outbox.send(any_port(), &message(number, 64));
    }
    outbox.flush();
    let c = outbox.counters();
    assert!(c.trains_sent <= 3 && c.padding_bytes_sent <= 11_000, "{c:?}");
}

/// What finds no room is dropped and counted and other peers are served.
#[test]
fn full_peer_is_dropped_and_others_served() {
    let memory = Memory::new(1, 64);
    let mut outbox = Outbox::new(&memory);
    let other = Addr { ip: LOCALHOST, port: 9 };
    for number in 0..5 {
        outbox.send(any_port(), &message(number, 64));
    }
    for number in 0..3 {
        outbox.send(other, &message(number, 64));
    }
    outbox.flush();
    let c = *outbox.counters();
    assert_eq!((c.messages_sent, c.dropped_send_buffer_full), (5, 3));
    outbox.flush();
    assert_eq!(*outbox.counters(), c, "dropped means dropped");
}

#[test]
fn without_segmentation_every_message_goes_alone() {
    let memory = Memory::new(usize::MAX, 1);
    let mut outbox = Outbox::new(&memory);
    let sent: Vec<_> = (0..10).map(|n| message(n, 50 + n as usize)).collect();
    for m in &sent {
        outbox.send(any_port(), m);
    }
    outbox.flush();
    let carried = memory.carried.borrow();
    assert!(carried.len() == 10 && carried.iter().all(|(_, _, segment)| segment.is_none()));
    assert_eq!(unpack(&carried), sent);
}

#[test]
fn a_taken_port_is_one_clear_line() {
    let socket = Socket::bind(any_port()).unwrap();
    let addr = socket.addr().unwrap();
    let line = Socket::bind(addr).unwrap_err().to_string();
    assert!(line.starts_with(&format!("cannot listen on UDP {addr}: address in use")), "{line}");
}

#[test]
fn lanes_are_forgotten_when_there_are_too_many() {
    let memory = Memory::new(usize::MAX, 64);
    let mut outbox = Outbox::new(&memory);
    for port in 1..=(LANES_MAX as u16 + 2) {
        outbox.send(Addr { ip: LOCALHOST, port }, &message(0, 64));
    }
    outbox.flush();
    assert_eq!(outbox.lanes.len(), 0);
    outbox.send(any_port(), &message(1, 64));
    outbox.flush();
    assert_eq!(memory.carried.borrow().len(), LANES_MAX + 3);
}

#[test]
fn a_full_receive_buffer_shows_in_the_kernels_count() {
    let receiver = Socket::bind(any_port()).unwrap();
    let addr = receiver.addr().unwrap();
    assert_eq!((kernel_drops(addr), waiting(addr)), (Some(0), 0));
    sockopt::set_socket_recv_buffer_size(&receiver.socket, 4_096).unwrap();
    let mut outbox = Outbox::new(Socket::bind(any_port()).unwrap());
    for number in 0..2_000 {
        outbox.send(addr, &message(number, 1_000));
    }
    outbox.flush();
    assert!(kernel_drops(addr).unwrap() > 0 && waiting(addr) > 0);
}

/// What a node sends is of its group whatever its place in a train.
#[test]
fn packets_in_a_train_carry_their_group() {
    let memory = Memory::new(8, 64);
    let mut outbox = Outbox::new(&memory);
    let packet = |len: usize| {
        let mut packet = vec![];
        Header::new(Kind::Link, 1).begin(&mut packet);
        packet.resize(len, 0xee);
        header::set_length(&mut packet);
        packet
    };
    let packets = [packet(20), packet(40), packet(30), packet(40)];
    let patch = Patch { at: header::at::GROUP.start, bytes: [1, 2] };
    packets.iter().for_each(|p| outbox.send_patched(any_port(), p, patch));
    outbox.flush();
    let carried = memory.carried.borrow();
    let [(_, bytes, Some(segment))] = &carried[..] else { panic!("one train") };
    for (sent, packet) in bytes.chunks(*segment).zip(&packets) {
        let mut expected = packet.clone();
        header::set_group(&mut expected, GroupId(0x0102));
        assert_eq!(sent[..packet.len()], expected);
        assert_eq!(header::group(sent), GroupId(0x0102));
    }
}
