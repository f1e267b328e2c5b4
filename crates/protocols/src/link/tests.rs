//! One stream over a path that is cut, loses packets, or is slow.

use alloc::vec;

use concord_core::US;
use concord_wire::control::LogEnd;

use super::*;

const RECEIVER: Addr = Addr { ip: 2, port: 1 };
/// How often a receiver acknowledges what came if nothing comes.
const BEAT_NS: Duration = 30 * MS;
/// No two fit into a packet.
const RECORD_BYTES: usize = 1_000;
const STEP_NS: Duration = 100 * US;

/// A sender and a receiver, and what is under way between them.
struct Path {
    now: Instant,
    latency_ns: Duration,
    is_cut: bool,
    /// The receiver takes one packet a step in the first `.0` of each `.1`.
    quota: Option<(Duration, Duration)>,
    /// So many of the packets that are sent next are lost.
    lose: usize,
    log: Log,
    sender: Sender,
    receiver: Receiver,
    next_beat: Instant,
    data: VecDeque<(Instant, Vec<u8>)>,
    acks: VecDeque<(Instant, Ack)>,
    sent: usize,
}

impl Path {
    fn new(latency_ns: Duration) -> Path {
        let end = LogEnd { position: 0, hash: 0 };
        let log = Log::starting_at(end);
        let (me, peer) = (NodeId(1), (NodeId(2), RECEIVER));
        Path {
            now: Instant(0),
            latency_ns,
            is_cut: false,
            quota: None,
            lose: 0,
            log,
            sender: Sender::new(me, Epoch(1), peer, Position(0), 0),
            receiver: Receiver::new(me, 0),
            next_beat: Instant(0),
            data: VecDeque::new(),
            acks: VecDeque::new(),
            sent: 0,
        }
    }

    /// So long, while a record is written every `every_ns`.
    fn run(&mut self, for_ns: Duration, every_ns: Duration) {
        let end = self.now.after(for_ns);
        let mut next_record = self.now;
        while self.now < end {
            if self.now >= next_record {
                next_record = self.now.after(every_ns);
                self.log.push(&vec![0; RECORD_BYTES], 0);
            }
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.now;
        let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
        let (log, mut scratch) = (&self.log, Vec::new());
        while self.acks.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, ack)) = self.acks.pop_front() else { break };
            self.sender.on_ack(now, &ack, log, Position(0), &mut scratch, &mut out);
        }
        let upto = Position(log.end().position);
        self.sender.pump(now, log, upto, Position(0), &mut scratch, &mut out);
        self.sender.tick(now, log, Position(0), &mut scratch, &mut out);
        for (_, packet) in out {
            self.sent += 1;
            if self.lose > 0 {
                self.lose -= 1;
            } else if !self.is_cut {
                self.data.push_back((now.after(self.latency_ns), packet));
            }
        }
        if self.quota.is_none_or(|(run_ns, period_ns)| now.0 % period_ns < run_ns) {
            self.receive();
        }
        self.now = now.after(STEP_NS);
    }

    fn receive(&mut self) {
        let now = self.now;
        let mut most = if self.quota.is_some() { 1 } else { usize::MAX };
        while most > 0 && self.data.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, packet)) = self.data.pop_front() else { break };
            self.receiver.offer(&Data::parse(&packet).unwrap());
            while self.receiver.next_held().is_some() {}
            most -= 1;
        }
        if self.receiver.ack_due || now >= self.next_beat {
            self.next_beat = now.after(BEAT_NS);
            let ack = self.receiver.ack(Epoch(1), NodeId(2), Position(0), Position(0));
            if !self.is_cut {
                self.acks.push_back((now.after(self.latency_ns), ack));
            }
        }
    }

    /// Records written and not arrived, in order.
    fn lacking(&self) -> u64 {
        self.log.end().position + 1 - self.receiver.next
    }
}

/// docs/internals/bugs.md, 2.
#[test]
fn bug_2_a_path_that_was_cut_is_not_taken_for_a_slow_one() {
    let mut path = Path::new(250 * US);
    path.run(200 * MS, 5 * MS);
    assert!(path.lacking() <= 1);
    path.is_cut = true;
    path.run(1_500 * MS, 5 * MS);
    assert!(path.lacking() > 250);
    // What is lost while it catches up costs round trips, not another second.
    path.is_cut = false;
    path.run(BEAT_NS + 10 * MS, 5 * MS);
    path.lose = 3;
    path.run(150 * MS, 5 * MS);
    assert!(path.lacking() <= 1, "{} records are missing", path.lacking());
    // Nor does what is lost later.
    for _ in 0..10 {
        path.lose = 1;
        path.run(40 * MS, 5 * MS);
        assert!(path.lacking() <= 1, "{} records are missing", path.lacking());
    }
}

/// Of 100, what share was sent again while the path was as it is for a while.
fn resent_percent(path: &mut Path, for_ns: Duration) -> u64 {
    path.run(for_ns, MS);
    let (sent, resent) = (path.sent, path.sender.resent);
    path.run(for_ns, MS);
    assert!(path.sent - sent >= 500);
    100 * (path.sender.resent - resent) / (path.sent - sent) as u64
}

/// Neither a slow peer nor one that pauses is sent everything twice.
#[test]
fn slow_peer_is_not_sent_everything_twice() {
    for latency_ns in [50 * MS, 100 * MS, 400 * MS] {
        let mut path = Path::new(250 * US);
        assert_eq!(resent_percent(&mut path, 500 * MS), 0);
        path.latency_ns = latency_ns;
        assert!(resent_percent(&mut path, 4_000 * MS) <= 1);
    }
    for (run_ns, period_ns) in [(20 * MS, 100 * MS), (5 * MS, 20 * MS), (40 * MS, 180 * MS)] {
        let mut path = Path::new(250 * US);
        path.quota = Some((run_ns, period_ns));
        let percent = resent_percent(&mut path, 4_000 * MS);
        assert!(percent <= 50, "{percent}% with {run_ns} of {period_ns} ns");
    }
}

/// docs/internals/bugs.md, 3: who passes a batch on at its end only makes those behind it wait for
/// all of it.
#[test]
fn bug_3_full_packets_go_out_in_the_middle_of_a_batch() {
    let mut path = Path::new(250 * US);
    let (now, none) = (path.now, Position(0));
    let mut scratch = Vec::new();
    let mut packets: Vec<(Addr, Vec<u8>)> = Vec::new();
    let sizes = [100, 400, 500, 300, 101, 3_000, 100, 1_000, 400];
    for len in sizes {
        path.log.push(&vec![0; len], 0);
        let upto = Position(path.log.end().position);
        path.sender.pump_full(now, &path.log, upto, none, &mut scratch, &mut packets);
    }
    let pieces = |packets: &[(Addr, Vec<u8>)]| -> Vec<usize> {
        packets.iter().map(|(_, bytes)| Data::parse(bytes).unwrap().piece.len()).collect()
    };
    let long = 3_000 - 2 * PIECE_BYTES_MAX;
    let full = vec![1_300, 101, PIECE_BYTES_MAX, PIECE_BYTES_MAX, long, 1_100];
    assert_eq!(pieces(&packets), full);
    // The rest at the end, as if nothing had gone before.
    let upto = Position(path.log.end().position);
    path.sender.pump(now, &path.log, upto, none, &mut scratch, &mut packets);
    assert_eq!(pieces(&packets)[full.len()..], [400]);
    assert_eq!(pieces(&packets).iter().sum::<usize>(), sizes.iter().sum::<usize>());
}

/// A sender with so many packets in flight, all sent at 0, of a log of records that each take one.
fn in_flight(count: u64) -> (Sender, Log) {
    let mut log = Log::starting_at(LogEnd { position: 0, hash: 0 });
    (0..count).for_each(|_| log.push(&vec![0; RECORD_BYTES], 0));
    let mut sender = Sender::new(NodeId(1), Epoch(1), (NodeId(2), RECEIVER), Position(0), 0);
    let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
    sender.pump(Instant(0), &log, Position(count), Position(0), &mut Vec::new(), &mut out);
    (sender, log)
}

/// What a sender sends when it hears that all below `next` arrived, and of the others those in
/// `held`.
fn acknowledge(sender: &mut Sender, log: &Log, at_ms: u64, next: u64, held: u64) -> Vec<u64> {
    let ack = Ack {
        epoch: Epoch(1),
        from: NodeId(2),
        stream: 0,
        next,
        held,
        applied: Position(next - 1),
        committed: Position(0),
        entry: 0,
        is_short: false,
        is_at_work: false,
        queue: 0,
    };
    let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
    sender.on_ack(Instant(at_ms * MS), &ack, log, Position(0), &mut Vec::new(), &mut out);
    numbers(&out)
}

fn time_out(sender: &mut Sender, log: &Log, now: Instant) -> Vec<u64> {
    let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
    sender.tick(now, log, Position(0), &mut Vec::new(), &mut out);
    numbers(&out)
}

fn numbers(packets: &[(Addr, Vec<u8>)]) -> Vec<u64> {
    packets.iter().map(|(_, bytes)| Data::parse(bytes).unwrap().link_seq).collect()
}

/// A packet is lost once three later ones are there and a round trip has passed.
#[test]
fn loss_needs_three_later_packets_and_a_round_trip() {
    for (at_ms, held, lost) in [
        (6, 0b11, vec![]),
        (6, 0b111, vec![1]),
        (5, 0b111, vec![]),
        // Of 1 to 9 the third, fourth and ninth are there, and then others between.
        (6, 0b1000_0110, vec![1, 2, 5, 6]),
        (6, 0b0011_0110, vec![1, 2]),
    ] {
        let (mut sender, log) = in_flight(12);
        assert_eq!(acknowledge(&mut sender, &log, at_ms, 1, held), lost, "{held:b} at {at_ms} ms");
        assert_eq!(sender.resent, lost.len() as u64);
        let again = acknowledge(&mut sender, &log, at_ms + 1, 1, held);
        assert!(again.is_empty() || lost.is_empty(), "each once in a round trip: {again:?}");
    }
}

/// The time out is four deviations above the round trip and doubles up to a second.
#[test]
fn timeout_has_four_deviations_and_doubles() {
    let (mut sender, log) = in_flight(3);
    assert_eq!(sender.deadline(), Instant(25 * MS), "5 and 4 times 5 ms before anything is known");
    assert_eq!(time_out(&mut sender, &log, Instant(25 * MS - 1)), []);
    let mut now = sender.deadline();
    for wait_ms in [50, 100, 200, 400, 800, 1_000, 1_000] {
        assert_eq!(time_out(&mut sender, &log, now), [1], "the oldest alone");
        assert_eq!(sender.deadline(), now.after(wait_ms * MS));
        now = sender.deadline();
    }
    // A round trip of 13 ms: 5 + 1 ms, and 5 - 5/4 + 8/4 of deviation.
    let (mut sender, log) = in_flight(3);
    acknowledge(&mut sender, &log, 13, 2, 0);
    assert_eq!(sender.deadline(), Instant(29 * MS));
    // No time-out is below 10 ms, however short the path.
    for next in 1..=200 {
        let (one, more) = in_flight(3);
        (sender.in_flight, sender.oldest) = (one.in_flight, 1);
        acknowledge(&mut sender, &more, 0, 1 + next % 2 + 1, 0);
    }
    assert_eq!(sender.deadline(), Instant(10 * MS));
    acknowledge(&mut sender, &log, 0, 4, 0);
    assert_eq!(sender.deadline(), Instant::NEVER, "nothing is in flight");
}

/// After a time out what was in flight goes again two for each that arrives.
#[test]
fn after_a_timeout_two_go_for_each_arrival() {
    let (mut sender, log) = in_flight(8);
    assert_eq!(time_out(&mut sender, &log, Instant(25 * MS)), [1]);
    assert_eq!(acknowledge(&mut sender, &log, 26, 2, 0), [2, 3]);
    assert_eq!(acknowledge(&mut sender, &log, 27, 4, 0), [4, 5, 6, 7]);
    assert_eq!(acknowledge(&mut sender, &log, 28, 8, 0), [8]);
    assert_eq!(acknowledge(&mut sender, &log, 29, 9, 0), []);
    // One that has more than what was sent again had only missed the first.
    let (mut sender, log) = in_flight(8);
    assert_eq!(time_out(&mut sender, &log, Instant(25 * MS)), [1]);
    assert_eq!(acknowledge(&mut sender, &log, 26, 5, 0), []);
    assert_eq!(acknowledge(&mut sender, &log, 27, 6, 0), []);
}

/// The window grows with what arrives and is halved when all of it was lost.
#[test]
fn window_grows_and_halves_when_all_is_lost() {
    let (mut sender, log) = in_flight(5_000);
    assert_eq!(sender.in_flight.len(), 256);
    acknowledge(&mut sender, &log, 1, 101, 0);
    assert_eq!(sender.window, 356);
    time_out(&mut sender, &log, Instant(60 * MS));
    acknowledge(&mut sender, &log, 61, 102, 0);
    assert_eq!(sender.window, 178, "the first that was sent again was enough for itself only");
    let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
    for round in 0..40 {
        let (none, upto) = (Position(0), Position(5_000));
        sender.pump(Instant(round), &log, upto, none, &mut Vec::new(), &mut out);
        let next = sender.oldest + sender.in_flight.len() as u64;
        acknowledge(&mut sender, &log, 62, next, 0);
    }
    assert_eq!(sender.window, 4_096, "and no further");
}

#[test]
fn what_nobody_can_have_said_is_ignored() {
    let (mut sender, log) = in_flight(8);
    acknowledge(&mut sender, &log, 1, 5, 0);
    assert_eq!((sender.oldest, sender.first_needed()), (5, Position(5)));
    acknowledge(&mut sender, &log, 1, 4, 0);
    acknowledge(&mut sender, &log, 1, 10, 0);
    assert_eq!((sender.oldest, sender.in_flight.len()), (5, 4), "older, and never sent");
    acknowledge(&mut sender, &log, 1, 9, 0);
    assert_eq!((sender.oldest, sender.first_needed()), (9, Position(9)));
}

/// What the peer has from elsewhere is not sent unless it is under way.
#[test]
fn records_known_from_elsewhere_are_skipped() {
    let (mut sender, log) = in_flight(3);
    sender.skip_to(Position(9));
    assert_eq!(sender.next.0, Position(4), "some are under way");
    acknowledge(&mut sender, &log, 1, 4, 0);
    sender.skip_to(Position(2));
    assert_eq!(sender.next.0, Position(4), "it goes back for nobody");
    sender.skip_to(Position(4));
    assert_eq!((sender.next.0, sender.first_needed()), (Position(5), Position(5)));
}

fn piece(link_seq: u64, first: bool, last: bool, piece: &[u8]) -> Data<'_> {
    let (epoch, from, committed) = (Epoch(1), NodeId(1), Position(0));
    Data { epoch, from, stream: 0, link_seq, committed, first, last, piece }
}

/// Pieces are joined in order whatever the order in which they came and each once.
#[test]
fn pieces_join_in_any_order() {
    let mut receiver = Receiver::new(NodeId(1), 0);
    let mut got: Vec<Vec<u8>> = Vec::new();
    let mut take = |receiver: &mut Receiver, data: &Data<'_>| {
        receiver.take(data, |record| {
            got.push(record.to_vec());
            Ok(true)
        })
    };
    assert_eq!(take(&mut receiver, &piece(3, false, true, b"c")), Ok(Arrival::Held));
    assert_eq!(take(&mut receiver, &piece(3, false, true, b"c")), Ok(Arrival::Dropped));
    assert_eq!(take(&mut receiver, &piece(1, true, false, b"a")), Ok(Arrival::InOrder));
    let (epoch, me, none) = (Epoch(1), NodeId(2), Position(0));
    let ack = receiver.ack(epoch, me, none, none);
    assert_eq!((ack.next, ack.held, receiver.is_partial()), (2, 1, true));
    assert_eq!(take(&mut receiver, &piece(2, false, false, b"b")), Ok(Arrival::InOrder));
    assert_eq!(take(&mut receiver, &piece(2, false, false, b"b")), Ok(Arrival::Dropped));
    let ack = receiver.ack(epoch, me, none, none);
    assert_eq!((ack.next, ack.held, receiver.is_partial()), (4, 0, false));
    // The rest of nothing, and a beginning amid another record.
    assert_eq!(take(&mut receiver, &piece(4, false, true, b"d")), Err(BrokenStream));
    assert_eq!(got, [b"abc"]);
    let mut receiver = Receiver::new(NodeId(1), 0);
    let nothing = |_: &[u8]| Ok(true);
    assert_eq!(receiver.take(&piece(1, true, false, b"a"), nothing), Ok(Arrival::InOrder));
    assert_eq!(receiver.take(&piece(2, true, false, b"b"), nothing), Err(BrokenStream));
}

/// What came too early is told in 64 bits and held within a bound.
#[test]
fn early_packets_in_64_bits_and_bounded() {
    let mut receiver = Receiver::new(NodeId(1), 0);
    for seq in [3, 4, 65, 66] {
        assert_eq!(receiver.offer(&piece(seq, true, true, b"x")), Arrival::Held);
    }
    assert!(receiver.ack_due);
    let ack = receiver.ack(Epoch(1), NodeId(2), Position(0), Position(0));
    assert_eq!((ack.next, ack.held), (1, 0b110 | 1 << 63), "2 is missing, 66 too far");
    assert!(!receiver.ack_due);
    for seq in 100..100 + HELD_MAX as u64 {
        receiver.offer(&piece(seq, true, true, b"x"));
    }
    assert_eq!(receiver.held.len(), HELD_MAX);
    assert_eq!(receiver.offer(&piece(2, true, true, b"x")), Arrival::Dropped);
    assert_eq!(
        receiver.offer(&piece(1, true, true, b"x")),
        Arrival::InOrder,
        "this one needs none"
    );
}

#[test]
fn a_late_packet_of_one_stream_is_none_of_another() {
    let mut receiver = Receiver::new(NodeId(1), 7);
    assert_eq!(receiver.offer(&piece(1, true, true, b"x")), Arrival::Dropped);
    assert_eq!(receiver.offer(&piece((7 << 40) + 1, true, true, b"x")), Arrival::InOrder);
}

/// The window had no room for all pieces of a record.
#[test]
fn record_in_pieces_finishes_in_mid_batch() {
    let mut path = Path::new(250 * US);
    let pumped = |path: &mut Path| {
        let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
        let upto = Position(path.log.end().position);
        let (now, log) = (path.now, &path.log);
        path.sender.pump_full(now, log, upto, Position(0), &mut Vec::new(), &mut out);
        (out.len(), path.sender.next)
    };
    path.sender.window = 2;
    path.log.push(&vec![0; 3 * PIECE_BYTES_MAX + 1], 0);
    assert_eq!(pumped(&mut path), (2, (Position(1), 2 * PIECE_BYTES_MAX as u32)));
    path.sender.window = 10;
    path.log.push(&vec![0; PIECE_BYTES_MAX], 0);
    assert_eq!(pumped(&mut path), (2, (Position(2), 0)), "the next one may get company");
    path.log.push(&[0], 0);
    path.log.push(&vec![0; PIECE_BYTES_MAX], 0);
    assert_eq!(pumped(&mut path), (2, (Position(4), 0)), "each ends a packet");
}

/// Several records share a packet up to where they are to be sent and go again together.
#[test]
fn records_share_packets_and_resend_together() {
    let mut path = Path::new(250 * US);
    (0..5).for_each(|_| path.log.push(&[0; 100], 0));
    let (now, none) = (Instant(0), Position(0));
    let mut out: Vec<(Addr, Vec<u8>)> = Vec::new();
    let packets = path.sender.pump(now, &path.log, Position(3), none, &mut Vec::new(), &mut out);
    assert_eq!(
        (packets, path.sender.next, path.sender.first_needed()),
        (1, (Position(4), 0), Position(1))
    );
    let late = path.sender.deadline();
    path.sender.tick(late, &path.log, none, &mut Vec::new(), &mut out);
    let pieces = out.iter().map(|(_, bytes)| Data::parse(bytes).unwrap().piece.len());
    assert_eq!(pieces.collect::<Vec<_>>(), [300, 300]);
}

#[test]
fn a_receiver_gives_no_more_records_than_are_taken() {
    let mut records = Vec::new();
    Record::EMPTY.emit(0, &mut records);
    let one = records.clone();
    Record::EMPTY.emit(0, &mut records);
    for (most, given) in [(1, 1), (2, 2), (3, 3), (9, 3)] {
        let mut receiver = Receiver::new(NodeId(1), 0);
        let mut got = 0;
        let mut each = |record: &[u8]| {
            assert_eq!(record, one);
            got += 1;
            Ok(got < most)
        };
        assert_eq!(receiver.take(&piece(2, true, true, &one), &mut each), Ok(Arrival::Held));
        assert_eq!(receiver.take(&piece(1, true, true, &records), &mut each), Ok(Arrival::InOrder));
        assert_eq!(got, given, "of at most {most}");
    }
    let mut receiver = Receiver::new(NodeId(1), 0);
    let cut = &records[..records.len() - 1];
    assert_eq!(receiver.take(&piece(1, true, true, cut), |_| Ok(true)), Err(BrokenStream));
    let refused = receiver.take(&piece(2, true, true, &one), |_| Err(BrokenStream));
    assert_eq!(refused, Err(BrokenStream));
}

#[test]
fn a_record_without_end_breaks_the_stream() {
    for (excess, is_taken) in [(0, true), (1, false)] {
        let mut receiver = Receiver::new(NodeId(1), 0);
        let long = vec![0; COMMAND_BYTES_MAX + REPLY_BYTES_MAX + excess];
        assert_eq!(receiver.join(true, false, &long), Ok(None));
        assert_eq!(receiver.join(false, true, b"x").is_ok(), is_taken);
    }
}

#[test]
fn the_window_is_never_below_16() {
    let (mut sender, log) = in_flight(8);
    sender.window = 20;
    time_out(&mut sender, &log, Instant(25 * MS));
    acknowledge(&mut sender, &log, 26, 2, 0);
    assert_eq!(sender.window, 16);
}

/// What a peer applied never falls and its last word counts of its disk.
#[test]
fn applied_never_falls_and_disk_word_is_last() {
    let (mut sender, log) = in_flight(8);
    acknowledge(&mut sender, &log, 1, 5, 0);
    assert_eq!(sender.applied, Position(4));
    let mut receiver = Receiver::new(NodeId(1), 0);
    let ack = receiver.ack(Epoch(1), NodeId(2), Position(2), Position(0));
    for is_short in [true, false] {
        let (ack, mut out) = (Ack { is_short, ..ack }, Vec::<(Addr, Vec<u8>)>::new());
        sender.on_ack(Instant(MS), &ack, &log, Position(0), &mut Vec::new(), &mut out);
        assert_eq!((sender.applied, sender.is_short), (Position(4), is_short));
    }
}
