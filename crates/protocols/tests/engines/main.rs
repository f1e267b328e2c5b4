//! Replicas of every protocol whose engines are servers of their own: they answer when the test
//! lets them, or never.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use concord_core::{
    Guards, Instant, MS, Machine, Now, ObjectId, RequestNumber, Seq, SessionId, SwitchId, hash,
};
use concord_engine::copy::{BadChunk, Copied, Object};
use concord_engine::memory::Memory;
use concord_engine::{
    Backend, BackendDone, CommandBuf, Context, Outcome, Shimmed, Step, Submitted,
};
use concord_protocols::{Limits, Node, Phase, ReplicaConfig, SlowReads};
use concord_wire::control::{
    Config, CopyMessage, Member, Membership, Message as _, Program, Protocol,
};
use concord_wire::header::is;
use concord_wire::link::OP_DATA;
use concord_wire::rpc::READ_BIT;
use concord_wire::{Addr, Flags, GroupId, Kind, Op, Packet, Reason, Repr, Status};

mod scripts;
mod work;

const SWITCH: Addr = Addr { ip: 1, port: 200 };
const CLIENT: Addr = Addr { ip: 1, port: 100 };
const CONTROLLER: Addr = Addr { ip: 1, port: 300 };
const SESSION: SessionId = SessionId(7);
const LEASE_MS: u64 = 100;
const SILENCE_MS: u64 = 400;

/// Memory whose completions arrive when they are let through.
#[derive(Debug)]
struct Server {
    memory: Memory,
    done: VecDeque<BackendDone>,
    hangs: bool,
    /// So many more completions are let through.
    lets: usize,
    submitted: usize,
    /// Scripts are stopped.
    stops: bool,
    /// Scripts take the engine with them.
    is_poisoned: bool,
    /// It says that it is at work.
    at_work_since: Option<Instant>,
    /// Scripts that ran to their end; each counts a key up.
    scripts: usize,
}

impl Server {
    fn later(&mut self, done: BackendDone) -> Submitted {
        self.submitted += 1;
        self.done.push_back(done);
        Submitted::Pending
    }
}

impl Backend for Server {
    fn submit(&mut self, context: &Context, step: &Step<'_>, _: &mut Vec<u8>) -> Submitted {
        let mut done = BackendDone::default();
        if step.commands.first().is_some_and(concord_engine::redis::is_script) {
            done.outcome.stopped = self.stops;
            done.reply = b"-ERR stopped\r\n".to_vec();
            if !self.stops && !self.hangs {
                self.scripts += 1;
                done.reply = b":1\r\n".to_vec();
            }
            return self.later(done);
        }
        if let Submitted::Done(outcome) = self.memory.submit(context, step, &mut done.reply) {
            done.outcome = outcome;
        }
        self.later(done)
    }

    fn poll(&mut self) -> Option<BackendDone> {
        if self.hangs || self.is_poisoned || self.lets == 0 {
            return None;
        }
        let done = self.done.pop_front()?;
        self.lets -= 1;
        Some(done)
    }

    fn prepare_copy(&mut self) -> bool {
        self.memory.prepare_copy()
    }

    fn end_copy(&mut self) {
        self.memory.end_copy();
    }

    fn copy(&mut self, from: u64, bytes_max: usize) -> Option<Copied> {
        let copied = self.memory.copy(from, bytes_max);
        self.later(BackendDone { copied, ..BackendDone::default() });
        None
    }

    fn copy_keys(&mut self, keys: &[Vec<u8>], wanted: (usize, usize), onto: u64) -> Option<Copied> {
        let copied = self.memory.copy_keys(keys, wanted, onto);
        self.later(BackendDone { copied, ..BackendDone::default() });
        None
    }

    fn make_ready(&mut self, keys: &[&[u8]]) -> bool {
        self.memory.make_ready(keys)
    }

    fn fork_copy(&mut self, cursor: u64) -> u64 {
        self.memory.fork_copy(cursor)
    }

    fn release_copy(&mut self, cursor: u64) {
        self.memory.release_copy(cursor);
    }

    fn install(&mut self, objects: &[Object<'_>]) -> Result<Submitted, BadChunk> {
        self.memory.install(objects)?;
        Ok(self.later(BackendDone::default()))
    }

    fn clear(&mut self) -> Submitted {
        self.memory.clear();
        self.later(BackendDone { outcome: Outcome::default(), ..BackendDone::default() })
    }

    fn at_work_since(&self) -> Option<Instant> {
        self.at_work_since
    }

    fn lost(&self) -> bool {
        self.is_poisoned
    }

    fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }

    fn keys(&self) -> u64 {
        self.memory.keys()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory.memory_bytes()
    }

    fn digest(&self) -> Option<u64> {
        self.memory.digest()
    }
}

type Flight = (u16, Addr, Vec<u8>);

/// Replicas 1 to n, and what they sent to the switch or the client.
struct Bench {
    replicas: Vec<Node<Shimmed<Server>>>,
    protocol: Protocol,
    head: u16,
    now_ms: u64,
    wire: VecDeque<Flight>,
    answers: Vec<(Repr, Vec<u8>)>,
    counter: u32,
    request: u64,
    last_write: (Repr, Vec<u8>),
}

fn member(node: u16) -> Member {
    Member { node, incarnation: 10, addr: Addr { ip: 1, port: node } }
}

fn to_all(_: &Flight) -> bool {
    true
}

/// All but records, so that nothing more is committed.
fn no_records(flight: &Flight) -> bool {
    !is(&flight.2, Kind::Link, OP_DATA)
}

impl Bench {
    fn new(protocol: Protocol, guards: Guards) -> Bench {
        Bench::limited(protocol, guards, Limits::default())
    }

    fn limited(protocol: Protocol, guards: Guards, limits: Limits) -> Bench {
        Bench::reading(protocol, SlowReads::default(), guards, limits)
    }

    fn reading(protocol: Protocol, reads: SlowReads, guards: Guards, limits: Limits) -> Bench {
        let replica = |node| {
            let setup = ReplicaConfig {
                me: member(node),
                controller: CONTROLLER,
                lease_ns: LEASE_MS * MS,
                replies_via_switch: true,
                copy_bytes: 4_096,
                records_kept: 32_768,
                weigh_ns: concord_core::SEC,
                reads,
                replicate_replies: true,
                compare_ns: 0,
                limits: Limits { engine_silence_ns: SILENCE_MS * MS, ..limits },
                guards,
            };
            let memory = Memory::new(0);
            let server = Server {
                memory,
                done: VecDeque::new(),
                hangs: false,
                lets: usize::MAX,
                submitted: 0,
                stops: false,
                is_poisoned: false,
                at_work_since: None,
                scripts: 0,
            };
            Node::new(protocol, setup, Shimmed::new(server))
        };
        let mut bench = Bench {
            replicas: (1..=3).map(replica).collect(),
            protocol,
            head: 1,
            now_ms: 1_000,
            wire: VecDeque::new(),
            answers: Vec::new(),
            counter: 0,
            request: 0,
            last_write: (Repr::new(Op::Write), Vec::new()),
        };
        bench.configure(1, 1);
        bench.pass(60, to_all);
        bench.write(Flags::REGISTER, &[]);
        bench.pass(5, to_all);
        bench.answers.clear();
        bench
    }

    /// The controller's word: an epoch of the nodes from `head` on.
    fn configure(&mut self, epoch: u32, head: u16) {
        self.head = head;
        let members = (head..=3).map(member).collect();
        self.configure_as(epoch, members, Vec::new());
    }

    fn configure_as(&mut self, epoch: u32, members: Vec<Member>, joining: Vec<Member>) {
        let config = Config {
            group: GroupId(0),
            epoch,
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: SWITCH,
            kind: self.protocol.into(),
            // Raft has quorum reads without a switch's help.
            program: Program::of(self.protocol, self.protocol != Protocol::Raft),
            members,
            joining,
        };
        let mut bytes = Vec::new();
        Membership::Configure(config.into()).emit(&mut bytes);
        (1..=3).for_each(|node| self.hand(node, &bytes));
    }

    fn at(&mut self, node: u16) -> &mut Node<Shimmed<Server>> {
        &mut self.replicas[usize::from(node) - 1]
    }

    fn server(&mut self, node: u16) -> &mut Server {
        self.at(node).engine_mut().backend_mut()
    }

    fn now(&self) -> Now {
        Now { instant: Instant(self.now_ms * MS), unix_ms: self.now_ms }
    }

    fn hand(&mut self, node: u16, bytes: &[u8]) {
        let (now, mut sent) = (self.now(), Vec::new());
        self.at(node).handle(now, Addr::default(), &mut bytes.to_vec(), &mut sent);
        self.at(node).flush(now, &mut sent);
        self.wire.extend(sent.into_iter().map(|(to, bytes)| (node, to, bytes)));
    }

    /// The engines answer, unless they hang.
    fn engines(&mut self) {
        for node in 1..=3 {
            let (now, mut sent) = (self.now(), Vec::new());
            self.at(node).engine_ready(now, &mut sent);
            self.at(node).flush(now, &mut sent);
            self.wire.extend(sent.into_iter().map(|(to, bytes)| (node, to, bytes)));
        }
    }

    /// Delivers what passes and drops the rest, for so many ms.
    fn pass(&mut self, ms: u64, passes: impl Fn(&Flight) -> bool) {
        for _ in 0..ms {
            self.engines();
            while let Some(flight) = self.wire.pop_front() {
                if flight.1 == SWITCH || flight.1 == CLIENT {
                    if let Ok(packet) = Packet::parse(&flight.2) {
                        if packet.op() == Op::Write {
                            if passes(&flight) {
                                self.number(packet.repr(), packet.body());
                            }
                            continue;
                        }
                        self.answers.push((packet.repr(), packet.body().to_vec()));
                    }
                } else if flight.1.port <= 3 && passes(&flight) {
                    self.hand(flight.1.port, &flight.2);
                    self.engines();
                }
            }
            self.now_ms += 1;
            for node in 1..=3 {
                let (now, mut sent) = (self.now(), Vec::new());
                if self.at(node).deadline().at <= now.instant {
                    self.at(node).tick(now, &mut sent);
                }
                self.at(node).flush(now, &mut sent);
                self.wire.extend(sent.into_iter().map(|(to, bytes)| (node, to, bytes)));
            }
        }
    }

    /// A write as the switch numbers it: to who orders.
    fn write(&mut self, flags: Flags, args: &[&str]) {
        self.request += 1;
        let mut command = CommandBuf::new();
        let key = if args.first() == Some(&"EVAL") { 3 } else { usize::from(args.len() > 1) };
        let body: &[u8] = match args {
            [] => &[],
            args => command.encode(key as u8, args.iter().map(|a| a.as_bytes())),
        };
        let repr = Repr {
            flags,
            obj_id: args.get(key).map_or(ObjectId(0), |k| hash::object_id(k.as_bytes())),
            session: SESSION,
            request: RequestNumber(self.request),
            low_delta: (self.request - 1).min(1_000) as u16,
            client: CLIENT,
            ..Repr::new(Op::Write)
        };
        self.last_write = (repr, body.to_vec());
        let body = self.last_write.1.clone();
        self.number(repr, &body);
    }

    /// The last write again, as another attempt.
    fn again(&mut self, attempt: u16) {
        let (repr, body) = self.last_write.clone();
        self.number(Repr { attempt, ..repr }, &body);
        self.drain();
    }

    /// What was sent to clients so far.
    fn drain(&mut self) {
        self.pass(1, to_all);
    }

    /// What the switch does with a write.
    fn number(&mut self, repr: Repr, body: &[u8]) {
        self.counter += 1;
        let seq = Seq::new(SwitchId(1), self.counter);
        let last_committed = Seq::from_u64(self.now_ms);
        let mut bytes = Vec::new();
        Repr { seq, last_committed, ..repr }.emit(body, &mut bytes);
        let orders = self.leader().unwrap_or(self.head);
        let to = if self.protocol == Protocol::NoPaxos { 1..=3 } else { orders..=orders };
        to.for_each(|node| self.hand(node, &bytes));
    }

    /// The replies to writes since this was last asked.
    fn write_replies(&mut self) -> Vec<String> {
        let all = std::mem::take(&mut self.answers);
        let replies = all.into_iter().filter(|(repr, _)| repr.op == Op::WriteReply);
        replies.map(|(_, body)| String::from_utf8(body).unwrap()).collect()
    }

    fn scripts(&mut self) -> [usize; 3] {
        [1, 2, 3].map(|node| self.server(node).scripts)
    }

    /// A slow read of one key, or of all where there is none.
    fn read(&mut self, node: u16, number: u64, args: &[&str]) {
        self.read_as(node, number, (Flags(0), Seq::NONE), args);
    }

    fn read_as(&mut self, node: u16, number: u64, (flags, seen): (Flags, Seq), args: &[&str]) {
        let mut command = CommandBuf::new();
        let body = command.encode(u8::from(args.len() > 1), args.iter().map(|a| a.as_bytes()));
        let repr = Repr {
            flags: if args.len() > 1 { flags } else { Flags::WILDCARD },
            last_committed: seen,
            obj_id: args.get(1).map_or(ObjectId(0), |k| hash::object_id(k.as_bytes())),
            session: SESSION,
            request: RequestNumber(number | READ_BIT),
            client: CLIENT,
            ..Repr::new(Op::Read)
        };
        let mut bytes = Vec::new();
        repr.emit(body, &mut bytes);
        self.hand(node, &bytes);
    }

    /// The replies to reads since this was last asked.
    fn read_replies(&mut self) -> Vec<Vec<u8>> {
        let all = std::mem::take(&mut self.answers);
        all.into_iter().filter(|(repr, _)| repr.op == Op::ReadReply).map(|(_, body)| body).collect()
    }

    /// Who leads the newest view.
    fn leader(&self) -> Option<u16> {
        let leads = |node: &Node<_>| matches!(node, Node::Vr(vr) if vr.leads());
        let epoch = |node: &u16| self.replicas[usize::from(*node) - 1].status(self.now()).epoch;
        (1..=3).filter(|n| leads(&self.replicas[usize::from(*n) - 1])).max_by_key(epoch)
    }
}

const QUORUM: [Protocol; 3] = [Protocol::Vr, Protocol::NoPaxos, Protocol::Raft];
const CHAIN_FAMILY: [Protocol; 3] = [Protocol::PrimaryBackup, Protocol::Chain, Protocol::Craq];

fn uncommitted_all_keys(guards: Guards) -> Vec<Vec<u8>> {
    let mut b = Bench::new(Protocol::PrimaryBackup, guards);
    // The engine has the write and has not answered when the read comes.
    b.write(Flags(0), &["SET", "k", "v"]);
    b.read(1, 1, &["DBSIZE"]);
    b.pass(20, no_records);
    b.read_replies()
}

/// A read of all keys shows nothing that is not committed.
#[test]
fn bug_15_5_all_keys_read_shows_only_commits() {
    assert_eq!(uncommitted_all_keys(Guards::ALL), Vec::<Vec<u8>>::new());
    let mut b = Bench::new(Protocol::PrimaryBackup, Guards::ALL);
    b.write(Flags(0), &["SET", "k", "v"]);
    b.read(1, 1, &["DBSIZE"]);
    b.pass(20, to_all);
    assert_eq!(b.read_replies(), [b":1\r\n".to_vec()]);
}

/// The position that the read waits for may be another write's in the next epoch.
#[test]
fn t6_read_finished_in_a_later_epoch_waits_for_no_old_write() {
    let mut b = Bench::new(Protocol::PrimaryBackup, Guards::ALL);
    b.server(1).lets = 0;
    b.write(Flags(0), &["SET", "k", "v"]);
    b.read(1, 1, &["GET", "k"]);
    b.pass(1, no_records);
    b.configure(2, 1);
    b.server(1).lets = usize::MAX;
    b.pass(1, no_records);
    assert_eq!(b.at(1).counters().reads_dropped, 1);
    b.pass(3 * LEASE_MS, to_all);
    assert_eq!((b.read_replies(), b.scripts()), (vec![], [0; 3]));
    b.write(Flags(0), &["SET", "k", "w"]);
    b.pass(60, to_all);
    b.read(1, 2, &["GET", "k"]);
    b.pass(20, to_all);
    b.read(1, 3, &["DBSIZE"]);
    b.pass(20, to_all);
    assert_eq!(b.read_replies(), [b"$1\r\nw\r\n".to_vec(), b":1\r\n".to_vec()]);
    assert_eq!(b.at(1).counters().reads_waited, 1, "what the others saw was committed");
}

/// Whether an epoch opens at a head whose engine owes a write, and once it owes nothing.
fn opens(guards: Guards) -> [bool; 2] {
    let mut b = Bench::new(Protocol::Chain, guards);
    b.server(1).lets = 0;
    b.write(Flags(0), &["SET", "k", "v"]);
    b.configure(2, 1);
    b.pass(LEASE_MS / 2, to_all);
    let is_open = |b: &mut Bench| b.at(1).phase() == Phase::Open;
    let before = is_open(&mut b);
    b.server(1).lets = usize::MAX;
    b.pass(3 * LEASE_MS, to_all);
    [before, is_open(&mut b)]
}

/// What an engine owes is of the epoch in which it was asked for.
#[test]
fn epoch_opens_once_the_engine_owes_nothing() {
    assert_eq!(opens(Guards::ALL), [false, true]);
    #[cfg(feature = "mutants")]
    assert!(opens(Guards::without(concord_core::Guard::OpensIdle))[0]);
}

/// Craqs head passes a read of all keys on while a write is at its engine.
#[test]
fn bug_15_5_craq_head_passes_all_keys_reads_on() {
    let mut b = Bench::new(Protocol::Craq, Guards::ALL);
    b.write(Flags(0), &["SET", "k", "v"]);
    b.read(1, 1, &["DBSIZE"]);
    b.pass(20, no_records);
    assert_eq!(b.read_replies(), [b":0\r\n".to_vec()], "the tail answers");
}

/// Craqs head takes writes after an epoch in which its full log was executed.
#[test]
fn bug_15_23_craq_head_takes_writes_after_a_full_log() {
    const RECORDS: usize = 8;
    let limits = Limits { log_records_max: RECORDS, ..Limits::default() };
    let mut b = Bench::limited(Protocol::Craq, Guards::ALL, limits);
    // The next head has them all, and has executed none when the tail commits them.
    b.server(2).hangs = true;
    (0..RECORDS).for_each(|_| b.write(Flags(0), &["SET", "k", "v"]));
    b.pass(150, to_all);
    b.configure(2, 2);
    b.pass(5, to_all);
    b.server(2).hangs = false;
    b.pass(200, to_all);
    assert_eq!(b.at(2).phase(), Phase::Open);
    b.write_replies();
    b.write(Flags(0), &["SET", "k", "w"]);
    b.pass(50, to_all);
    assert_eq!(b.write_replies(), ["+OK\r\n"]);
}

#[cfg(feature = "mutants")]
#[test]
fn bug_15_5_is_seen_without_its_guard() {
    let without = Guards::without(concord_core::Guard::AllKeysSubmitted);
    assert_eq!(uncommitted_all_keys(without), [b":1\r\n".to_vec()]);
}

/// A key that is written all the time can be read all the same.
#[test]
fn bug_15_5_constantly_written_key_is_readable() {
    let mut b = Bench::new(Protocol::PrimaryBackup, Guards::ALL);
    b.write(Flags(0), &["SET", "k", "first"]);
    b.read(1, 1, &["GET", "k"]);
    // There is always a newer write that is not committed.
    for _ in 0..20 {
        b.write(Flags(0), &["SET", "k", "later"]);
        b.hand(1, &[]);
        b.pass(1, to_all);
        b.write(Flags(0), &["SET", "k", "later"]);
    }
    assert_eq!(b.read_replies(), [b"$5\r\nfirst\r\n".to_vec()]);
}

#[test]
fn bug_15_7_a_replica_whose_engine_hangs_leaves() {
    for protocol in CHAIN_FAMILY.into_iter().chain(QUORUM) {
        for node in 1..=3 {
            let mut b = Bench::new(protocol, Guards::ALL);
            b.server(node).hangs = true;
            b.write(Flags(0), &["SET", "k", "v"]);
            b.pass(SILENCE_MS / 4, to_all);
            assert_ne!(b.at(node).phase(), Phase::Left, "{protocol:?} {node}");
            // The first look comes a step late at most.
            b.pass(SILENCE_MS, to_all);
            assert_eq!(b.at(node).phase(), Phase::Left, "{protocol:?} {node}");
        }
    }
}

#[cfg(feature = "mutants")]
#[test]
fn bug_15_7_is_seen_without_its_guard() {
    let without = Guards::without(concord_core::Guard::EngineSilence);
    for protocol in CHAIN_FAMILY.into_iter().chain(QUORUM) {
        let mut b = Bench::new(protocol, without);
        b.server(3).hangs = true;
        b.write(Flags(0), &["SET", "k", "v"]);
        b.pass(10 * SILENCE_MS, to_all);
        assert_eq!(b.at(3).phase(), Phase::Open);
    }
}

#[test]
fn bug_15_7_an_engine_that_is_slow_and_answers_is_kept() {
    for protocol in CHAIN_FAMILY.into_iter().chain(QUORUM) {
        let mut b = Bench::new(protocol, Guards::ALL);
        for _ in 0..5 {
            b.write(Flags(0), &["SET", "k", "v"]);
            b.server(3).hangs = true;
            b.pass(SILENCE_MS * 3 / 4, to_all);
            b.server(3).hangs = false;
            b.pass(SILENCE_MS / 4, to_all);
        }
        assert_eq!(b.at(3).phase(), Phase::Open, "{protocol:?}");
        assert_eq!(b.at(3).executed(), b.at(1).executed(), "{protocol:?}");
    }
}

fn leader_hangs(protocol: Protocol, guards: Guards) -> (Option<u16>, Phase, u64) {
    let mut b = Bench::new(protocol, guards);
    assert_eq!(b.leader(), Some(1));
    b.server(1).hangs = true;
    b.write(Flags(0), &["SET", "k", "v"]);
    b.pass(SILENCE_MS * 3 / 4, to_all);
    let written = b.at(2).executed().0;
    (b.leader(), b.at(1).phase(), written)
}

#[test]
fn bug_15_7_a_leader_whose_engine_hangs_lets_another_lead() {
    for protocol in QUORUM {
        let (leader, phase, written) = leader_hangs(protocol, Guards::ALL);
        assert!(matches!(leader, Some(2 | 3)), "{protocol:?}: {leader:?}");
        assert_eq!(phase, Phase::Open, "{protocol:?}: it follows, for now");
        assert!(written >= 2, "{protocol:?}: {written}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn bug_15_7_a_leader_keeps_its_view_without_the_guard() {
    let without = Guards::without(concord_core::Guard::StepDown);
    assert_eq!(leader_hangs(Protocol::Vr, without).0, Some(1));
}

/// A read that is sent again is given to the engine once.
#[test]
fn bug_15_7_resent_read_reaches_the_engine_once() {
    for protocol in CHAIN_FAMILY.into_iter().chain(QUORUM) {
        let reader =
            if protocol.is_quorum() || protocol == Protocol::PrimaryBackup { 1 } else { 3 };
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(reader).hangs = true;
        let before = b.server(reader).submitted;
        (0..10).for_each(|_| b.read(reader, 1, &["GET", "k"]));
        assert_eq!(b.server(reader).submitted, before + 1, "{protocol:?}");
        b.server(reader).hangs = false;
        b.pass(5, to_all);
        assert_eq!(b.read_replies(), [b"$-1\r\n".to_vec()], "{protocol:?}");
        b.read(reader, 1, &["GET", "k"]);
        b.pass(5, to_all);
        assert_eq!(b.read_replies().len(), 1, "{protocol:?}: it may be asked again");
    }
}

#[test]
fn bug_15_7_what_waits_for_an_engine_is_bounded() {
    let mut b = Bench::new(Protocol::Chain, Guards::ALL);
    b.server(1).hangs = true;
    for _ in 0..70_000 {
        b.write(Flags(0), &["SET", "k", "v"]);
    }
    let count = b.at(1).counters();
    assert_eq!(count.writes_ordered, 65_536 + 1);
    assert_eq!(count.writes_queued, 70_000 - 65_536);
    b.server(3).hangs = true;
    for number in 0..20_000 {
        b.read(3, number, &["GET", "k"]);
    }
    assert_eq!(b.at(3).counters().reads_queued, 20_000 - 16_384);
}
