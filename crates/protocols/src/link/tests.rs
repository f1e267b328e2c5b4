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
                self.log.push(vec![0; RECORD_BYTES], 0);
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

/// docs/bugs.md, 2.
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

#[test]
fn neither_a_slow_peer_nor_one_that_pauses_is_sent_everything_twice() {
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

/// docs/bugs.md, 3: who passes a batch on at its end only makes those behind it wait for all of it.
#[test]
fn bug_3_full_packets_go_out_in_the_middle_of_a_batch() {
    let mut path = Path::new(250 * US);
    let (now, none) = (path.now, Position(0));
    let mut scratch = Vec::new();
    let mut packets: Vec<(Addr, Vec<u8>)> = Vec::new();
    let sizes = [100, 400, 500, 300, 101, 3_000, 100, 1_000, 400];
    for len in sizes {
        path.log.push(vec![0; len], 0);
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
