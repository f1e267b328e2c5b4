//! Traces of traps.md over replicas that are driven by hand: every packet is delivered, dropped or
//! held on purpose.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::VecDeque;

#[cfg(feature = "mutants")]
use concord_core::Guard;
use concord_core::{
    Epoch, Guards, Instant, MS, NodeId, Now, ObjectId, Position, RequestNumber, Rng, Seq,
    SessionId, SwitchId, hash,
};
use concord_engine::memory::Memory;
use concord_engine::{CommandBuf, Shimmed};
use concord_protocols::{Limits, Phase, Replica, ReplicaConfig, Retired};
use concord_wire::control::{
    Config, CopyMessage, LeaseMessage, Member, Membership, Message as _, Program, Protocol,
    Standing,
};
use concord_wire::craq::{VersionAnswer, VersionQuery};
use concord_wire::fragment::FragmentHdr;
use concord_wire::header::is;
use concord_wire::link::{Data, OP_DATA};
use concord_wire::{Addr, Flags, FurtherIds, GroupId, Kind, Op, Packet, Reason, Repr, kind};

const SWITCH: Addr = Addr { ip: 1, port: 200 };
const CONTROLLER: Addr = Addr { ip: 1, port: 300 };
const CLIENT: Addr = Addr { ip: 1, port: 100 };
const LEASE_MS: u64 = 100;
const SESSION: SessionId = SessionId(7);

fn addr(node: u16) -> Addr {
    Addr { ip: 1, port: node }
}

/// A packet on its way: sender, receiver, bytes.
type Flight = (u16, Addr, Vec<u8>);

/// Replicas 1 to n, and what they sent to the switch.
struct Bench {
    replicas: Vec<Replica<Shimmed<Memory>>>,
    protocol: Protocol,
    now_ms: u64,
    wire: VecDeque<Flight>,
    /// Replies and completions, in order.
    answers: Vec<(Repr, Vec<u8>)>,
}

fn replica(node: u16, incarnation: u64) -> Replica<Shimmed<Memory>> {
    guarded(node, incarnation, Guards::ALL)
}

fn guarded(node: u16, incarnation: u64, guards: Guards) -> Replica<Shimmed<Memory>> {
    let setup = ReplicaConfig {
        me: Member { node, incarnation, addr: addr(node) },
        controller: CONTROLLER,
        lease_ns: LEASE_MS * MS,
        replies_via_switch: true,
        copy_bytes: 4_096,
        records_kept: 32_768,
        weigh_ns: concord_core::SEC,
        reads: concord_protocols::SlowReads::default(),
        replicate_replies: false,
        compare_ns: 0,
        limits: Limits { log_memory_bytes: 0, ..Limits::default() },
        guards,
    };
    Replica::new(setup, Shimmed::new(Memory::new(0)))
}

fn to_all(_: &Flight) -> bool {
    true
}

/// Whether a packet is a record on its way to `node`.
fn is_record_to(flight: &Flight, node: u16) -> bool {
    flight.1 == addr(node) && is(&flight.2, Kind::Link, OP_DATA)
}

impl Bench {
    /// Replicas 1 to `count` in epoch 1, open and leased, with a registered session.
    fn new(protocol: Protocol, count: u16) -> Bench {
        Bench::with_guards(protocol, count, Guards::ALL)
    }

    fn with_guards(protocol: Protocol, count: u16, guards: Guards) -> Bench {
        let replicas = (1..=count).map(|node| guarded(node, 10, guards)).collect();
        let (wire, answers) = (VecDeque::new(), Vec::new());
        let mut bench = Bench { replicas, protocol, now_ms: 1_000, wire, answers };
        let members: Vec<u16> = (1..=count).collect();
        bench.configure(1, &members, &members);
        bench.pass(60, to_all);
        bench.submit(1, 1, Flags::REGISTER, 1, &[]);
        bench.pass(1, to_all);
        bench.answers.clear();
        bench
    }

    fn now(&self) -> Now {
        Now { instant: Instant(self.now_ms * MS), unix_ms: self.now_ms }
    }

    fn at(&mut self, node: u16) -> &mut Replica<Shimmed<Memory>> {
        &mut self.replicas[usize::from(node) - 1]
    }

    fn executed(&mut self, node: u16) -> u64 {
        self.at(node).executed().0
    }

    /// Hands bytes to a replica, and puts what it sends on the wire.
    fn hand(&mut self, node: u16, bytes: &[u8]) {
        let (now, mut sent) = (self.now(), Vec::new());
        self.at(node).handle(now, bytes, &mut sent);
        self.at(node).flush(now, &mut sent);
        self.wire.extend(sent.into_iter().map(|(to, bytes)| (node, to, bytes)));
    }

    /// Tells `told` of an epoch of `members`.
    fn configure(&mut self, epoch: u32, members: &[u16], told: &[u16]) {
        self.configure_joining(epoch, (members, &[]), told);
    }

    /// Tells `told` of an epoch of `members`, to which others join.
    fn configure_joining(&mut self, epoch: u32, places: (&[u16], &[u16]), told: &[u16]) {
        let (members, joining) = places;
        let member = |node: &u16| *self.replicas[usize::from(*node) - 1].member();
        let config = Config {
            group: GroupId(0),
            epoch,
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: SWITCH,
            kind: self.protocol.into(),
            program: Program::of(self.protocol, true),
            members: members.iter().map(member).collect(),
            joining: joining.iter().map(member).collect(),
        };
        let mut bytes = Vec::new();
        Membership::Configure(config.into()).emit(&mut bytes);
        for node in told {
            self.hand(*node, &bytes);
        }
    }

    /// Delivers what passes and drops the rest, until nothing is under way, for so many ms.
    fn pass(&mut self, ms: u64, passes: impl Fn(&Flight) -> bool) {
        for _ in 0..ms {
            while let Some(flight) = self.wire.pop_front() {
                if flight.1 == SWITCH {
                    let packet = Packet::parse(&flight.2).unwrap();
                    self.answers.push((packet.repr(), packet.body().to_vec()));
                } else if flight.1.port <= self.replicas.len() as u16 && passes(&flight) {
                    self.hand(flight.1.port, &flight.2);
                }
            }
            self.now_ms += 1;
            for node in 1..=self.replicas.len() as u16 {
                let (now, mut sent) = (self.now(), Vec::new());
                if self.at(node).deadline().at <= now.instant {
                    self.at(node).tick(now, &mut sent);
                }
                self.wire.extend(sent.into_iter().map(|(to, bytes)| (node, to, bytes)));
            }
        }
    }

    /// A write that the switch numbered `counter`.
    fn submit(&mut self, node: u16, counter: u32, flags: Flags, request: u64, args: &[&str]) {
        let mut command = CommandBuf::new();
        let body: &[u8] = if args.is_empty() {
            &[]
        } else {
            let key = u8::from(args.len() > 1);
            command.encode(key, args.iter().map(|a| a.as_bytes()))
        };
        let repr = Repr {
            flags,
            obj_id: args.get(1).map_or(hash::object_id(b""), |k| hash::object_id(k.as_bytes())),
            seq: Seq::new(SwitchId(1), counter),
            session: SESSION,
            request: RequestNumber(request),
            low_delta: (request - 1) as u16,
            client: CLIENT,
            ..Repr::new(Op::Write)
        };
        let mut bytes = Vec::new();
        repr.emit(body, &mut bytes);
        self.hand(node, &bytes);
    }

    /// A write of a value of many packets: its body is staged, then the numbered packet comes.
    fn write_long(&mut self, node: u16, counter: u32, request: u64, args: &[&str]) {
        let mut buffer = CommandBuf::new();
        let command = buffer.encode(1, args.iter().map(|a| a.as_bytes()));
        let total_bytes = command.len() as u32;
        let version = hash::hash64(0, command);
        let caught_up = FragmentHdr { version, total_bytes, index: 0, count: 1 };
        let obj_id = hash::object_id(args[1].as_bytes());
        let (request, low_delta) = (RequestNumber(request), (request - 1) as u16);
        let of = Repr { obj_id, session: SESSION, request, client: CLIENT, ..Repr::new(Op::WRest) };
        let (mut body, mut bytes) = (Vec::new(), Vec::new());
        for index in 0..caught_up.fragments() {
            body.clear();
            FragmentHdr { index, ..caught_up }.emit_of(command, &mut body);
            of.emit(&body, &mut bytes);
            self.hand(node, &bytes);
        }
        let (seq, flags) = (Seq::new(SwitchId(1), counter), Flags::BODY_STAGED);
        body.clear();
        FragmentHdr { count: caught_up.fragments(), ..caught_up }.emit(&mut body);
        Repr { op: Op::Write, seq, flags, low_delta, ..of }.emit(&body, &mut bytes);
        self.hand(node, &bytes);
    }

    fn write(&mut self, node: u16, counter: u32, request: u64, args: &[&str]) {
        self.submit(node, counter, Flags(0), request, args);
    }

    /// A read that the switch made fast at `last_committed`, or slow.
    fn read(&mut self, node: u16, key: &str, last_committed: Option<u32>) {
        let mut command = CommandBuf::new();
        let body = command.encode(1, [&b"GET"[..], key.as_bytes()]);
        let repr = Repr {
            flags: if last_committed.is_some() { Flags::FAST } else { Flags(0) },
            obj_id: hash::object_id(key.as_bytes()),
            last_committed: last_committed.map_or(Seq::NONE, |l| Seq::new(SwitchId(1), l)),
            session: SESSION,
            request: RequestNumber(1_000 | concord_wire::rpc::READ_BIT),
            client: CLIENT,
            ..Repr::new(Op::Read)
        };
        let mut bytes = Vec::new();
        repr.emit(body, &mut bytes);
        self.hand(node, &bytes);
    }

    /// A command on several keys, `READ` or not.
    fn several(&mut self, node: u16, repr: Repr, args: &[&str]) {
        let ids: Vec<ObjectId> = args[1..].iter().map(|k| hash::object_id(k.as_bytes())).collect();
        let further = FurtherIds::new(&ids[1..]).unwrap();
        let repr = Repr { obj_id: ids[0], further, session: SESSION, client: CLIENT, ..repr };
        let (mut command, mut bytes) = (CommandBuf::new(), Vec::new());
        repr.emit(command.encode(0, args.iter().map(|a| a.as_bytes())), &mut bytes);
        self.hand(node, &bytes);
    }

    /// A fast read of several keys.
    fn read_several(&mut self, node: u16, last_committed: u32, keys: &[&str]) {
        let repr = Repr {
            flags: Flags::FAST,
            last_committed: Seq::new(SwitchId(1), last_committed),
            request: RequestNumber(1_000 | concord_wire::rpc::READ_BIT),
            ..Repr::new(Op::Read)
        };
        self.several(node, repr, &[&["MGET"], keys].concat());
    }

    /// The replies to reads that went to the switch since this was last asked.
    fn read_replies(&mut self) -> Vec<(Reason, Vec<u8>)> {
        self.pass(1, |_| false);
        let all = std::mem::take(&mut self.answers);
        let reads = all.into_iter().filter(|(repr, _)| repr.op == Op::ReadReply);
        reads.map(|(repr, body)| (repr.reason, body)).collect()
    }

    /// The numbers of the completions that went to the switch since this was last asked.
    fn completions(&mut self) -> Vec<u32> {
        let all = std::mem::take(&mut self.answers);
        let done = all.into_iter().filter(|(repr, _)| repr.flags.has(Flags::COMPLETION));
        done.map(|(repr, _)| repr.seq.counter).collect()
    }
}

/// What waited through a pause is judged by the time at which it is handled.
#[test]
fn t01_paused_input_is_judged_by_handling_time() {
    for protocol in [Protocol::Chain, Protocol::PrimaryBackup] {
        let mut b = Bench::new(protocol, 3);
        b.write(1, 2, 1, &["SET", "k", "old"]);
        b.pass(60, to_all);
        b.read(3, "k", Some(2));
        assert_eq!(b.read_replies(), [(Reason::Fast, b"$3\r\nold\r\n".to_vec())]);
        // Replica 3 sleeps; the read waits in its socket. The driver samples the clock when it
        // hands the read over.
        b.now_ms += LEASE_MS;
        b.read(3, "k", Some(2));
        assert_eq!(b.read_replies(), []);
        assert_eq!(b.at(3).counters().refused_lease, 1);
    }
}

/// A replica that is cut off answers neither fast nor as tail.
#[test]
fn t02_cut_off_replica_answers_neither_fast_nor_as_tail() {
    let mut b = Bench::new(Protocol::Chain, 3);
    b.write(1, 2, 1, &["SET", "k", "old"]);
    b.pass(60, to_all);
    // Replica 3 is cut from its peers and the controller, not from the switch.
    let not_3 = |flight: &Flight| flight.0 != 3 && flight.1 != addr(3);
    b.configure(2, &[1, 2], &[1, 2]);
    b.pass(1, not_3);
    assert_eq!(b.at(1).phase(), Phase::Opening, "what was granted to replica 3 has not ended");
    b.pass(LEASE_MS, not_3);
    assert_eq!((b.at(1).phase(), b.at(3).phase()), (Phase::Open, Phase::Open));
    b.write(1, 3, 2, &["SET", "k", "new"]);
    b.pass(60, not_3);
    assert_eq!(b.completions().last(), Some(&3));
    b.read(3, "k", Some(3));
    b.read(3, "k", None);
    assert_eq!(b.read_replies(), []);
}

#[test]
fn t02_a_forwarded_read_makes_one_hop_and_only_within_its_epoch() {
    let mut b = Bench::new(Protocol::Chain, 3);
    // To the head by an old table: it passes the read on to the tail, which answers.
    b.read(1, "k", None);
    let (_, to, bytes) = b.wire.pop_back().unwrap();
    assert_eq!(to, addr(3));
    // The same packet in a later epoch, of which replica 2 is the tail.
    b.configure(2, &[1, 2], &[1, 2]);
    b.pass(2 * LEASE_MS, |flight| flight.0 != 3 && flight.1 != addr(3));
    b.hand(2, &bytes);
    b.hand(1, &bytes);
    assert_eq!(b.read_replies(), []);
}

/// What replicas told the controller of where they stand.
fn standings(wire: &VecDeque<Flight>) -> Vec<(u16, Standing)> {
    let told = wire.iter().filter(|flight| flight.1 == CONTROLLER);
    told.filter_map(|flight| match Membership::parse(&flight.2) {
        Ok(Membership::ReplicaAlive(alive)) => Some((alive.member.node, alive.standing)),
        _ => None,
    })
    .collect()
}

fn is_release(flight: &Flight) -> bool {
    matches!(LeaseMessage::parse(&flight.2), Ok(LeaseMessage::Release { .. }))
}

impl Bench {
    /// Tells a replica to end, lets it look at the time, and gives what it says of where it stands.
    fn retire(&mut self, node: u16) -> Vec<(u16, Standing)> {
        let (now, mut sent) = (self.now(), Vec::new());
        self.at(node).retire(now);
        self.at(node).tick(now, &mut sent);
        self.wire.extend(sent.into_iter().map(|(to, bytes)| (node, to, bytes)));
        standings(&self.wire)
    }

    fn retired(&mut self, node: u16) -> Option<Retired> {
        let now = self.now();
        self.at(node).retired(now)
    }
}

/// A member that goes serves on and then gives its lease back.
#[test]
fn t02_retiring_member_serves_then_returns_its_lease() {
    for protocol in [Protocol::Chain, Protocol::PrimaryBackup, Protocol::Craq] {
        let fast = (protocol != Protocol::Craq).then_some(2);
        let mut b = Bench::new(protocol, 3);
        b.write(1, 2, 1, &["SET", "k", "old"]);
        b.pass(60, to_all);
        assert_eq!(b.retire(3), [(3, Standing::Leaving)]);
        b.write(1, 3, 2, &["SET", "other", "new"]);
        b.pass(60, to_all);
        assert!(b.completions().contains(&3), "{protocol:?}: writes go on with it");
        b.read(3, "k", fast);
        assert_eq!(b.read_replies().len(), 1, "{protocol:?}: and reads at it");
        assert_eq!(b.retired(3), None);
        b.configure(2, &[1, 2], &[1, 2, 3]);
        // The others have agreed, and wait for its lease.
        b.pass(1, |flight| !is_release(flight));
        assert_eq!(b.at(1).phase(), Phase::Opening);
        b.pass(25, to_all);
        assert_eq!((b.at(1).phase(), b.at(2).phase()), (Phase::Open, Phase::Open), "{protocol:?}");
        b.read(3, "k", fast);
        assert_eq!(b.read_replies(), []);
        b.pass(25, to_all);
        assert_eq!(b.retired(3), Some(Retired::InOrder));
    }
}

/// A lease that an earlier incarnation gave back is not the later ones.
#[test]
fn t02_returned_lease_is_of_its_incarnation() {
    let mut b = Bench::new(Protocol::Chain, 3);
    b.write(1, 2, 1, &["SET", "k", "old"]);
    b.pass(60, to_all);
    b.retire(3);
    b.configure(2, &[1, 2], &[1, 2, 3]);
    b.now_ms += 1;
    let (now, mut sent) = (b.now(), Vec::new());
    b.at(3).tick(now, &mut sent);
    let late: Vec<Flight> = sent.into_iter().map(|(to, bytes)| (3, to, bytes)).collect();
    let late: Vec<Flight> = late.into_iter().filter(is_release).collect();
    assert_eq!(late.len(), 2);
    b.pass(LEASE_MS, to_all);
    // Another incarnation joins, and holds a lease.
    b.replicas[2] = replica(3, 11);
    b.configure_joining(3, (&[1, 2], &[3]), &[1, 2, 3]);
    b.pass(100, to_all);
    b.configure(4, &[1, 2, 3], &[1, 2, 3]);
    b.pass(100, to_all);
    b.read(3, "k", Some(2));
    assert_eq!(b.read_replies(), [(Reason::Fast, b"$3\r\nold\r\n".to_vec())]);
    // What the one before said comes late; then the later one is cut off.
    for (_, to, bytes) in &late {
        b.hand(to.port, bytes);
    }
    let not_3 = |flight: &Flight| flight.0 != 3 && flight.1 != addr(3);
    b.configure(5, &[1, 2], &[1, 2]);
    b.pass(20, not_3);
    assert_eq!(b.at(1).phase(), Phase::Opening, "the later one may still answer");
    b.pass(LEASE_MS, not_3);
    assert_eq!(b.at(1).phase(), Phase::Open);
}

/// A replica that nobody takes out goes after a bounded wait and a lone one at once.
#[test]
fn unremoved_retiring_replica_has_a_bounded_wait() {
    let mut b = Bench::new(Protocol::Chain, 2);
    b.retire(2);
    // The controller is not reached. Until the end it serves.
    b.pass(790, to_all);
    assert_eq!(b.retired(2), None);
    b.write(1, 2, 1, &["SET", "k", "v"]);
    b.pass(5, to_all);
    assert_eq!(b.completions().last(), Some(&2));
    b.pass(20, to_all);
    b.read(2, "k", Some(2));
    assert_eq!((b.read_replies(), b.retired(2)), (vec![], None));
    b.pass(45, to_all);
    assert_eq!(b.retired(2), Some(Retired::InVain));
    // It is taken out once the controller is there again: nobody waits for its lease.
    b.configure(2, &[1], &[1]);
    assert_eq!(b.at(1).phase(), Phase::Open);
    let mut b = Bench::new(Protocol::Chain, 1);
    b.retire(1);
    assert_eq!(b.retired(1), Some(Retired::Alone));
}

/// A new life answers nothing in the epoch of the one before.
#[test]
fn t04_new_incarnation_answers_nothing_in_the_old_epoch() {
    let mut b = Bench::new(Protocol::Chain, 2);
    b.write(1, 2, 1, &["SET", "k", "old"]);
    b.pass(60, to_all);
    let config = b.at(2).config().unwrap().clone();
    b.replicas[1] = replica(2, 11);
    let mut bytes = Vec::new();
    Membership::Configure(config.into()).emit(&mut bytes);
    b.hand(2, &bytes);
    assert_eq!(b.at(2).phase(), Phase::Out);
    b.read(2, "k", Some(2));
    b.read(2, "k", None);
    assert_eq!(b.read_replies(), []);
}

#[test]
fn t05_an_epoch_opens_with_the_longest_log_of_its_members() {
    let mut b = Bench::new(Protocol::PrimaryBackup, 3);
    for (counter, value) in [(2, "a"), (3, "b"), (4, "c")] {
        b.write(1, counter, u64::from(counter) - 1, &["SET", &format!("k{value}"), value]);
    }
    // Replica 2 gets nothing of it, replica 3 all; then the primary dies.
    b.pass(20, |flight| !is_record_to(flight, 2));
    assert_eq!((b.executed(2), b.executed(3)), (1, 4));
    let without_1 = |flight: &Flight| flight.0 != 1 && flight.1 != addr(1);
    b.configure(2, &[2, 3], &[2, 3]);
    b.pass(2 * LEASE_MS, without_1);
    assert_eq!((b.at(2).phase(), b.executed(2)), (Phase::Open, 4));
    assert_eq!(b.at(2).log().end(), b.at(3).log().end());
    b.write(2, 5, 4, &["SET", "kd", "d"]);
    b.pass(60, without_1);
    b.completions();
    for node in [2, 3] {
        b.read(node, "kb", Some(5));
        assert_eq!(b.read_replies(), [(Reason::Fast, b"$1\r\nb\r\n".to_vec())]);
    }
}

/// Replica 2 becomes a member before it has executed all that was committed, replica 3 copies, and
/// the primary dies. What replica 2 lacks is nowhere a record any more. Then replica 3 is alone, if
/// the others let it.
fn what_only_a_copy_has(guards: Guards) -> Bench {
    let mut b = Bench::with_guards(Protocol::PrimaryBackup, 1, guards);
    b.replicas.push(guarded(2, 10, guards));
    b.configure_joining(2, (&[1], &[2]), &[1, 2]);
    b.pass(3 * LEASE_MS, to_all);
    b.replicas.push(guarded(3, 10, guards));
    for (counter, value) in [(2, "a"), (3, "b"), (4, "c")] {
        b.write(1, counter, u64::from(counter) - 1, &["SET", &format!("k{value}"), value]);
    }
    let not_to_2 = |flight: &Flight| !is_record_to(flight, 2);
    b.configure_joining(3, (&[1, 2], &[3]), &[1, 2, 3]);
    b.pass(3 * LEASE_MS, not_to_2);
    b.configure(4, &[1, 2, 3], &[1, 2, 3]);
    b.pass(3 * LEASE_MS, not_to_2);
    assert_eq!((b.executed(2), b.executed(3)), (1, 4));
    b.configure(5, &[2, 3], &[2, 3]);
    b.pass(3 * LEASE_MS, |flight| flight.0 != 1 && flight.1 != addr(1));
    b
}

#[test]
fn bug_15_21_a_head_that_lacks_what_only_a_copy_has_leaves() {
    let mut b = what_only_a_copy_has(Guards::ALL);
    assert_eq!((b.at(2).phase(), b.at(3).phase()), (Phase::Left, Phase::Opening));
    b.configure(6, &[3], &[3]);
    b.pass(3 * LEASE_MS, |flight| flight.0 == 3 && flight.1 == addr(3));
    assert_eq!((b.at(3).phase(), b.executed(3)), (Phase::Open, 4));
}

#[cfg(feature = "mutants")]
#[test]
fn bug_15_21_without_the_guard_it_waits_for_ever() {
    let mut b = what_only_a_copy_has(Guards::without(Guard::FetchLogMismatch));
    assert_eq!((b.at(2).phase(), b.at(3).phase()), (Phase::Opening, Phase::Opening));
}

#[test]
fn t06_the_primary_shows_nothing_that_is_not_committed() {
    let mut b = Bench::new(Protocol::PrimaryBackup, 2);
    b.write(1, 2, 1, &["SET", "k", "new"]);
    b.read(1, "k", None);
    assert_eq!(b.executed(1), 2, "it is executed here");
    assert_eq!(b.read_replies(), []);
    // Nothing got through: the primary sends the record again.
    b.pass(60, to_all);
    assert_eq!(b.read_replies(), [(Reason::None, b"$3\r\nnew\r\n".to_vec())]);
}

#[test]
fn t08_leases_go_on_without_the_controller() {
    let mut b = Bench::new(Protocol::Chain, 3);
    b.write(1, 2, 1, &["SET", "k", "v"]);
    for _ in 0..100 {
        b.pass(LEASE_MS, to_all);
        b.read(2, "k", Some(2));
        assert_eq!(b.read_replies(), [(Reason::Fast, b"$1\r\nv\r\n".to_vec())]);
    }
}

/// The test network's loss: one packet of a hundred, by a seed.
fn one_of_a_hundred_is_lost(seed: u64) -> impl Fn(&Flight) -> bool {
    let rng = RefCell::new(Rng::new(seed));
    move |_| !rng.borrow_mut().chance(1, 100)
}

#[test]
fn bug_15_9_what_came_of_a_long_record_is_not_fetched_again() {
    let value = "v".repeat(1 << 20);
    for seed in 0..3 {
        let mut b = Bench::new(Protocol::PrimaryBackup, 3);
        for request in 1..=4 {
            b.write_long(1, request + 1, request.into(), &["SET", &format!("k{request}"), &value]);
        }
        // Replica 2 gets nothing of it, replica 3 all; then the primary dies.
        b.pass(40, |flight| !is_record_to(flight, 2));
        assert_eq!((b.executed(2), b.executed(3)), (1, 5));
        let arrives = one_of_a_hundred_is_lost(seed);
        b.configure(2, &[2, 3], &[2, 3]);
        b.pass(2 * LEASE_MS + 100, |f| f.0 != 1 && f.1 != addr(1) && arrives(f));
        assert_eq!((b.at(2).phase(), b.executed(2)), (Phase::Open, 5), "seed {seed}");
        assert_eq!(b.at(2).log().end(), b.at(3).log().end());
        // 820 fragments a record; about one of a hundred is asked for again.
        let sent = b.at(3).counters().fragments_fetched;
        assert!((4 * 820..4 * 900).contains(&sent), "{sent} fragments");
    }
}

/// A forged write of a replica without a command is refused by all.
#[test]
fn bug_15_13_forged_internal_write_is_refused() {
    let cases: [(Flags, &[u8]); 4] = [
        (Flags::INTERNAL, b"no command"),
        (Flags::INTERNAL, b""),
        (Flags::INTERNAL.with(Flags::REGISTER), b"no command"),
        (Flags::INTERNAL.with(Flags::BODY_STAGED), &[0; 20]),
    ];
    for protocol in [Protocol::Chain, Protocol::PrimaryBackup, Protocol::Craq] {
        let mut b = Bench::new(protocol, 3);
        for (counter, (flags, body)) in (2..).zip(cases) {
            let seq = Seq::new(SwitchId(1), counter);
            let mut bytes = Vec::new();
            Repr { flags, seq, client: CLIENT, ..Repr::new(Op::Write) }.emit(body, &mut bytes);
            b.hand(1, &bytes);
        }
        b.write(1, 6, 1, &["SET", "k", "v"]);
        b.pass(60, to_all);
        for node in 1..=3 {
            assert_eq!((b.at(node).phase(), b.executed(node)), (Phase::Open, 6), "{protocol:?}");
        }
        assert_eq!(b.completions(), [2, 3, 4, 5, 6], "each completes in its turn (T14)");
    }
}

const DELETES: [&[&str]; 2] = [&["DEL", "k"], &["FLUSHALL"]];

/// A chain of three whose head alone has applied a delete of the object that was written before.
fn deleted_at_the_head(delete: &[&str]) -> Bench {
    let mut b = Bench::new(Protocol::Chain, 3);
    b.write(1, 2, 1, &["SET", "k", "v"]);
    b.pass(60, to_all);
    let flags = if delete.len() == 1 { Flags::WILDCARD } else { Flags(0) };
    b.submit(1, 3, flags, 2, delete);
    b
}

/// A delayed fast read is refused where a later delete was applied.
#[test]
fn t09_t13_delayed_fast_read_after_a_delete_is_refused() {
    for delete in DELETES {
        let mut b = deleted_at_the_head(delete);
        b.read(1, "k", Some(2));
        assert_eq!(b.at(1).counters().refused_newer, 1);
        let (_, to, bytes) = b.wire.pop_back().unwrap();
        assert_eq!(to, addr(3));
        b.wire.clear();
        b.hand(3, &bytes);
        assert_eq!(b.read_replies(), [(Reason::RefusedNewer, b"$1\r\nv\r\n".to_vec())]);
    }
}

/// A delayed fast read is answered where the later delete is known to be committed.
#[test]
fn t09_t13_delayed_fast_read_after_a_committed_delete() {
    for delete in DELETES {
        let mut b = deleted_at_the_head(delete);
        // The tail has executed it too, and the head has not heard of that.
        b.pass(60, |(_, to, _)| *to != addr(1));
        assert_eq!((b.executed(3), b.at(1).committed()), (3, Position(2)));
        b.read(1, "k", Some(2));
        assert_eq!(b.at(1).counters().refused_newer, 1);
        b.pass(60, to_all);
        assert_eq!(b.at(1).committed(), Position(3));
        b.read(1, "k", Some(2));
        assert_eq!(b.at(1).counters().refused_newer, 1);
        assert_eq!(b.read_replies().last(), Some(&(Reason::Fast, b"$-1\r\n".to_vec())));
    }
}

/// A chain whose head alone has executed a deletion of `k` and `l`.
fn several_deleted_at_the_head(guards: Guards) -> Bench {
    let mut b = Bench::with_guards(Protocol::Chain, 3, guards);
    b.write(1, 2, 1, &["SET", "l", "v"]);
    b.pass(60, to_all);
    let (seq, request) = (Seq::new(SwitchId(1), 3), RequestNumber(2));
    let repr = Repr { seq, request, low_delta: 1, ..Repr::new(Op::Write) };
    b.several(1, repr, &["DEL", "k", "l"]);
    b
}

/// A delayed fast read is refused where a later write of several was applied to any of its objects.
#[test]
fn delayed_fast_read_after_several_objects() {
    let mut b = several_deleted_at_the_head(Guards::ALL);
    b.read(1, "l", Some(2));
    assert_eq!(b.at(1).counters().refused_newer, 1);
    for keys in [&["x", "l"], &["l", "x"], &["k", "l"]] {
        b.read_several(1, 2, keys);
    }
    assert_eq!(b.at(1).counters().refused_newer, 4);
    b.read_several(1, 2, &["x", "y"]);
    b.read_several(1, 3, &["x", "l"]);
    assert_eq!((b.at(1).counters().refused_newer, b.at(1).counters().reads_fast), (4, 2));
}

/// Without the newest of each object a delayed fast read sees what is not committed.
#[cfg(feature = "mutants")]
#[test]
fn without_newest_per_object_a_read_is_uncommitted() {
    let mut b = several_deleted_at_the_head(Guards::without(Guard::SeveralNoted));
    b.read(1, "l", Some(2));
    assert_eq!(b.read_replies(), [(Reason::Fast, b"$-1\r\n".to_vec())]);
    let mut b = several_deleted_at_the_head(Guards::without(Guard::SeveralNewest));
    b.read_several(1, 2, &["x", "l"]);
    assert_eq!(b.read_replies(), [(Reason::Fast, b"*2\r\n$-1\r\n$-1\r\n".to_vec())]);
}

/// A retry that is answered from the table completes in its turn.
#[test]
fn t14_cached_retry_completes_in_order() {
    for protocol in [Protocol::Chain, Protocol::PrimaryBackup] {
        let mut b = Bench::new(protocol, 2);
        b.write(1, 2, 1, &["INCR", "a"]);
        b.pass(60, to_all);
        assert_eq!(b.completions(), [2]);
        // Request 2 does not get through; the retry of request 1 comes behind it.
        b.write(1, 3, 2, &["INCR", "b"]);
        b.write(1, 4, 1, &["INCR", "a"]);
        b.pass(5, |flight| !is_record_to(flight, 2));
        assert_eq!(b.completions(), []);
        b.pass(60, to_all);
        assert_eq!(b.completions(), [3, 4]);
        assert_eq!(b.at(1).counters().duplicates, 1);
        b.read(2, "a", Some(4));
        assert_eq!(b.read_replies(), [(Reason::Fast, b"$1\r\n1\r\n".to_vec())]);
    }
}

/// What the switch skips is skipped and what a neighbour lost is not.
#[test]
fn t15_switch_gaps_are_skipped_and_neighbour_gaps_not() {
    for protocol in [Protocol::Chain, Protocol::PrimaryBackup] {
        let mut b = Bench::new(protocol, 2);
        // The switch burnt 3 and 4: the head takes 5, and then 2 comes too late.
        b.write(1, 5, 1, &["SET", "k", "v5"]);
        b.write(1, 2, 2, &["SET", "k", "v2"]);
        assert_eq!((b.executed(1), b.at(1).counters().writes_out_of_order), (2, 1));
        b.write(1, 6, 2, &["SET", "k", "v6"]);
        b.write(1, 7, 3, &["SET", "k", "v7"]);
        // Of three records the second is lost once: the third waits for it.
        let is_second = |flight: &Flight| {
            is_record_to(flight, 2) && Data::parse(&flight.2).is_ok_and(|d| d.link_seq == 3)
        };
        b.pass(1, |flight| !is_second(flight));
        assert_eq!((b.executed(2), b.at(2).counters().link_held), (2, 1));
        b.pass(60, to_all);
        assert_eq!(b.executed(2), 4);
        assert_eq!(b.at(1).log().end(), b.at(2).log().end());
        assert_eq!(b.at(1).committed(), Position(4));
        assert_eq!(b.completions(), [5, 6, 7]);
    }
}

/// Whether a packet is one of CRAQ's version queries or answers.
fn is_about_versions(flight: &Flight) -> bool {
    kind(&flight.2) == Ok(Kind::Craq)
}

/// A dirty read is answered by what the tail of the epoch says under its lease.
#[test]
fn t25_dirty_read_needs_the_tails_lease() {
    let mut b = Bench::new(Protocol::Craq, 3);
    b.write(1, 0, 1, &["SET", "k", "old"]);
    b.pass(60, to_all);
    b.answers.clear();
    b.read(2, "k", None);
    assert_eq!(b.read_replies(), [(Reason::Clean, b"$3\r\nold\r\n".to_vec())]);
    // The next write does not reach the tail: to replica 2 the object is dirty.
    b.write(1, 0, 2, &["SET", "k", "new"]);
    b.pass(2, |flight| !is_record_to(flight, 3));
    b.read(2, "k", None);
    let query = b.wire.pop_back().unwrap();
    assert!(is_about_versions(&query) && query.1 == addr(3));
    assert_eq!(b.read_replies(), [], "it does not answer alone");
    // The tail slept longer than its lease: it says nothing.
    b.now_ms += LEASE_MS;
    b.hand(3, &query.2);
    assert!(b.wire.iter().all(|flight| !is_about_versions(flight)));
    assert_eq!(b.at(3).counters().version_refused, 1);
    // With a lease again it does: the old value is the committed one.
    b.pass(40, |flight| !is_record_to(flight, 3) && !is_about_versions(flight));
    b.hand(3, &query.2);
    let answer = b.wire.pop_back().unwrap();
    assert!(is_about_versions(&answer));
    b.answers.clear();
    b.hand(2, &answer.2);
    assert_eq!(b.read_replies(), [(Reason::AskedTail, b"$3\r\nold\r\n".to_vec())]);
}

#[test]
fn t25_neither_query_nor_answer_counts_in_another_epoch() {
    let mut b = Bench::new(Protocol::Craq, 3);
    b.write(1, 0, 1, &["SET", "k", "old"]);
    b.pass(60, to_all);
    b.write(1, 0, 2, &["SET", "k", "new"]);
    b.pass(2, |flight| !is_record_to(flight, 3));
    b.read(2, "k", None);
    let query = b.wire.pop_back().unwrap();
    b.hand(3, &query.2);
    let answer = b.wire.pop_back().unwrap();
    assert!(is_about_versions(&query) && is_about_versions(&answer));
    // Epoch 2 goes on without the tail, which does not know it.
    let not_3 = |flight: &Flight| flight.0 != 3 && flight.1 != addr(3);
    b.configure(2, &[1, 2], &[1, 2]);
    b.pass(2 * LEASE_MS, not_3);
    b.hand(2, &answer.2);
    assert_eq!(b.at(2).counters().version_refused, 1);
    b.hand(2, &query.2);
    assert_eq!(b.at(2).counters().version_refused, 2);
    // Replica 2 is the tail now: what it has is committed.
    b.answers.clear();
    b.read(2, "k", None);
    assert_eq!(b.read_replies(), [(Reason::Clean, b"$3\r\nnew\r\n".to_vec())]);
}

/// An answer that is not the tail's, of a replica with an uncommitted write: whether it is shown.
fn shows_what_another_says(guards: Guards) -> bool {
    let mut b = Bench::with_guards(Protocol::Craq, 3, guards);
    b.write(1, 0, 1, &["SET", "k", "old"]);
    b.pass(60, to_all);
    b.write(1, 0, 2, &["SET", "k", "new"]);
    b.pass(2, |flight| !is_record_to(flight, 3));
    b.answers.clear();
    b.read(2, "k", None);
    let query = b.wire.pop_back().unwrap();
    assert!(is_about_versions(&query));
    let number = VersionQuery::parse(&query.2).unwrap().number;
    let (epoch, from, committed) = (Epoch(1), NodeId(1), b.at(1).log().end().position);
    let mut bytes = vec![];
    VersionAnswer { epoch, from, number, committed: Position(committed) }.emit(&mut bytes);
    b.hand(2, &bytes);
    !b.read_replies().is_empty()
}

/// Another member's word, forged or by mistake, makes nothing committed.
#[test]
fn t25_tail_alone_says_what_is_committed() {
    assert!(!shows_what_another_says(Guards::ALL));
    #[cfg(feature = "mutants")]
    assert!(shows_what_another_says(Guards::without(Guard::VersionTail)));
}

/// What is said to a replica whose log cannot be gone on with.
fn is_apart(flight: &Flight) -> bool {
    matches!(CopyMessage::parse(&flight.2), Ok(CopyMessage::LogMismatch { .. }))
}

/// A joining replica that missed that it was dropped hears it again.
#[test]
fn bug_15_8_dropped_joiner_is_told_again() {
    for is_amid_its_copy in [false, true] {
        let mut b = Bench::new(Protocol::Chain, 2);
        for counter in 2..100 {
            b.submit(1, counter, Flags::NOOP, 1, &[]);
        }
        b.write(1, 100, 1, &["SET", "k", "v"]);
        b.pass(60, to_all);
        b.replicas.push(replica(3, 10));
        let is_piece = |flight: &Flight| matches!(CopyMessage::parse(&flight.2), Ok(CopyMessage::Piece { part, .. }) if part > 0);
        b.configure_joining(2, (&[1, 2], &[3]), &[1, 2, 3]);
        b.pass(3 * LEASE_MS, |flight| !(is_amid_its_copy && is_piece(flight)));
        assert_eq!(b.at(3).phase(), Phase::Joining);
        // Records do not reach it, until no more are kept for it; nor does the word of that.
        let lost = |flight: &Flight| is_record_to(flight, 3) || is_apart(flight);
        for counter in 101..33_100 {
            b.submit(1, counter, Flags::NOOP, 1, &[]);
            if counter % 100 == 0 {
                b.pass(1, |flight| !(lost(flight) || is_amid_its_copy && is_piece(flight)));
            }
        }
        b.pass(60, |flight| !(lost(flight) || is_amid_its_copy && is_piece(flight)));
        assert_eq!(b.at(2).counters().feeds_dropped, 1);
        b.pass(500, to_all);
        assert_eq!((b.at(3).counters().copies_begun, b.executed(3)), (2, b.executed(1)));
    }
}

/// A member left for good by the word of anybody, of whatever node.
#[test]
fn bug_22_104_only_who_streams_says_that_a_log_is_another() {
    for (to, from, leaves) in [(2, 3, false), (2, 9, false), (2, 1, true), (1, 9, false)] {
        let mut b = Bench::new(Protocol::Chain, 3);
        let mut bytes = vec![];
        CopyMessage::LogMismatch { epoch: 1, from, attempt: 0 }.emit(&mut bytes);
        b.hand(to, &bytes);
        assert_eq!(b.at(to).phase() == Phase::Left, leaves, "{from} to {to}");
    }
}
