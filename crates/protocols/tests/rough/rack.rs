//! A rack of three replicas, with a small switch, controller and clients.

use std::collections::{BTreeMap, BTreeSet};

use crate::disk::Disk;
use concord_core::machine::Persist;
use concord_core::{
    Guards, Instant, LogClock, MS, Machine, Now, RequestNumber, Rng, Seq, SessionId, SwitchId, hash,
};
use concord_engine::memory::Memory;
use concord_engine::{CommandBuf, Engine, Shimmed};
use concord_protocols::{Limits, Node, Phase, ReplicaConfig};
use concord_wire::control::{
    Config, Held, Member, Membership, Message as _, Program, Protocol, ReplicaAlive, Standing,
};
use concord_wire::fragment::FragmentHdr;
use concord_wire::nopaxos::Stamp;
use concord_wire::rpc::READ_BIT;
use concord_wire::{Addr, Flags, GroupId, Kind, Op, PacketMut, Repr, Status, kind};

const SWITCH: Addr = Addr { ip: 1, port: 200 };
const CONTROLLER: Addr = Addr { ip: 1, port: 300 };
const CLIENT: u16 = 100;
pub const NODES: u16 = 3;
pub const CLIENTS: usize = 4;
const KEYS: u64 = 3;
const LEASE_MS: u64 = 60;
/// A node that the controller has not heard of for so long is taken out.
const FAILURE_MS: u64 = 250;
/// What is due at one moment takes so many steps at most.
const TICKS_MAX: usize = 3;
/// Clients send again after that.
const RETRY_MS: u64 = 25;
const START_MS: u64 = 1_700_000_000_000;
pub const ALL: [Protocol; 5] =
    [Protocol::PrimaryBackup, Protocol::Chain, Protocol::Craq, Protocol::Vr, Protocol::NoPaxos];

fn addr(port: u16) -> Addr {
    Addr { ip: 1, port }
}

/// How often, in a thousand, a packet is lost, comes twice, or comes late.
#[derive(Clone, Copy)]
pub struct Weather {
    lost: u64,
    twice: u64,
    late: u64,
}

pub const CALM: Weather = Weather { lost: 0, twice: 0, late: 0 };
pub const ROUGH: Weather = Weather { lost: 40, twice: 20, late: 30 };

/// A request of a client, and its end.
#[derive(Clone, Debug)]
pub struct Call {
    /// Counters, and what only one client writes, a longer value each time.
    pub key: String,
    pub is_write: bool,
    began: u64,
    ended: u64,
    value: u64,
}

/// A client: one request at a time.
struct Client {
    addr: Addr,
    session: SessionId,
    is_registered: bool,
    writes: u64,
    reads: u64,
    /// What it last wrote to the key of its own.
    written: u64,
    attempt: u16,
    sent_ms: u64,
    call: Option<Call>,
}

impl Client {
    fn number(&self, is_write: bool) -> RequestNumber {
        RequestNumber(if is_write { self.writes } else { READ_BIT | self.reads })
    }
}

/// What a node said of itself last, and when.
struct Said {
    member: Member,
    epoch: u32,
    standing: Standing,
    held: Held,
    at_ms: u64,
}

/// Who is who, as a controller would have it.
#[derive(Default)]
struct Directory {
    epoch: u32,
    members: Vec<Member>,
    joining: Vec<Member>,
    /// Members that have all that was ever committed.
    caught_up: Vec<Member>,
    heard: BTreeMap<u16, Said>,
}

/// What the switch knows: Harmonia's dirty set, NOPaxos' clock.
#[derive(Default)]
struct Switch {
    counter: u32,
    dirty: BTreeMap<u32, u32>,
    last_committed: u32,
    clock: LogClock,
}

pub struct Rack {
    pub protocol: Protocol,
    pub rng: Rng,
    weather: Weather,
    pub nodes: Vec<Node<Shimmed<Memory>>>,
    pub dead: BTreeSet<u16>,
    pub cut: Option<u16>,
    /// What each node keeps, if it keeps anything.
    pub disks: Vec<Disk>,
    now_ms: u64,
    /// Packets by when they arrive.
    wire: BTreeMap<(u64, u64), (Addr, Vec<u8>)>,
    events: u64,
    directory: Directory,
    switch: Switch,
    clients: Vec<Client>,
    /// Clients begin no more.
    is_closing: bool,
    pub history: Vec<Call>,
}

fn node(protocol: Protocol, node: u16, incarnation: u64) -> Node<Shimmed<Memory>> {
    let setup = ReplicaConfig {
        me: Member { node, incarnation, addr: addr(node) },
        controller: CONTROLLER,
        lease_ns: LEASE_MS * MS,
        replies_via_switch: true,
        copy_bytes: 2_000,
        records_kept: 40,
        weigh_ns: concord_core::SEC,
        reads: concord_protocols::SlowReads::default(),
        replicate_replies: false,
        compare_ns: 0,
        limits: Limits { log_memory_bytes: 0, ..Limits::default() },
        guards: Guards::ALL,
    };
    Node::new(protocol, setup, Shimmed::new(Memory::new(0)))
}

impl Rack {
    /// A rack whose replicas keep all on disks.
    pub fn on_disks(protocol: Protocol, seed: u64, weather: Weather) -> Rack {
        let mut rack = Rack::empty(protocol, seed, weather);
        rack.disks = (1..=NODES).map(Disk::new).collect();
        (1..=NODES).for_each(|n| rack.start(n, 10));
        rack.found();
        rack
    }

    pub fn new(protocol: Protocol, seed: u64, weather: Weather) -> Rack {
        let mut rack = Rack::empty(protocol, seed, weather);
        rack.found();
        rack
    }

    fn found(&mut self) {
        self.directory.members = self.nodes.iter().map(|n| *n.member()).collect();
        self.directory.caught_up.clone_from(&self.directory.members);
        self.next_epoch();
    }

    /// A node begins: with nothing, or with what its disk has.
    pub fn start(&mut self, n: u16, incarnation: u64) {
        let (now, at) = (self.now(), usize::from(n) - 1);
        self.nodes[at] = node(self.protocol, n, incarnation);
        if let Some(disk) = self.disks.get_mut(at) {
            disk.restore(now, &mut self.nodes[at]);
        }
        self.dead.remove(&n);
    }

    /// The power of a node goes.
    pub fn cut_power(&mut self, n: u16) {
        self.dead.insert(n);
        let is_torn = self.rng.chance(1, 2);
        if let Some(disk) = self.disks.get_mut(usize::from(n) - 1) {
            disk.cut(is_torn);
        }
    }

    /// What a node has gathered goes to its disk, which takes some time.
    fn sync(&mut self, n: u16) {
        let (now, now_ms, at) = (self.now(), self.now_ms, usize::from(n) - 1);
        let takes_ms = self.rng.between(1, 4);
        let Some(disk) = self.disks.get_mut(at) else { return };
        let mut sent = vec![];
        if let Some(number) = disk.finish(now_ms) {
            self.nodes[at].persisted(now, number, &mut sent);
            self.nodes[at].flush(now, &mut sent);
        }
        if !disk.is_busy()
            && let Some(Persist { number, what }) = self.nodes[at].poll_persist()
        {
            disk.write(what, number, now_ms + takes_ms);
        }
        self.send(addr(n), sent);
    }

    fn empty(protocol: Protocol, seed: u64, weather: Weather) -> Rack {
        let client = |n: usize| Client {
            addr: addr(CLIENT + n as u16),
            session: SessionId(10 + n as u64),
            is_registered: false,
            writes: 0,
            reads: 0,
            written: 0,
            attempt: 0,
            sent_ms: 0,
            call: None,
        };
        Rack {
            protocol,
            rng: Rng::new(seed),
            weather,
            nodes: (1..=NODES).map(|n| node(protocol, n, 10)).collect(),
            dead: BTreeSet::new(),
            disks: vec![],
            cut: None,
            now_ms: 1_000,
            wire: BTreeMap::new(),
            events: 0,
            directory: Directory::default(),
            switch: Switch::default(),
            clients: (0..CLIENTS).map(client).collect(),
            is_closing: false,
            history: vec![],
        }
    }

    fn at(&self, node: u16) -> &Node<Shimmed<Memory>> {
        &self.nodes[usize::from(node) - 1]
    }

    fn now(&self) -> Now {
        Now { instant: Instant(self.now_ms * MS), unix_ms: START_MS + self.now_ms }
    }

    fn is_off(&self, to: Addr) -> bool {
        self.dead.contains(&to.port) || self.cut == Some(to.port)
    }

    /// Puts a packet on the wire.
    fn post(&mut self, from: Addr, to: Addr, bytes: &[u8]) {
        if self.is_off(from) || self.is_off(to) || self.rng.chance(self.weather.lost, 1_000) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(self.weather.twice, 1_000));
        for _ in 0..copies {
            let is_late = self.rng.chance(self.weather.late, 1_000);
            let wait_ms = if is_late { self.rng.between(1, 8) } else { 0 };
            self.events += 1;
            self.wire.insert((self.now_ms + wait_ms, self.events), (to, bytes.to_vec()));
        }
    }

    fn send(&mut self, from: Addr, sent: Vec<(Addr, Vec<u8>)>) {
        for (to, bytes) in sent {
            self.post(from, to, &bytes);
        }
    }

    /// Everything that arrives by now.
    fn deliver(&mut self) {
        while let Some(first) = self.wire.first_entry().filter(|e| e.key().0 <= self.now_ms) {
            let (to, mut bytes) = first.remove();
            if self.is_off(to) {
                continue;
            }
            match to {
                SWITCH => self.switch(bytes),
                CONTROLLER => self.hear(&bytes),
                _ if to.port >= CLIENT => self.on_reply(&bytes),
                _ => {
                    let (now, mut sent) = (self.now(), vec![]);
                    let node = &mut self.nodes[usize::from(to.port) - 1];
                    node.handle(now, Addr::default(), &mut bytes, &mut sent);
                    node.flush(now, &mut sent);
                    self.send(to, sent);
                }
            }
        }
    }

    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ms += 1;
            for n in 1..=NODES {
                if self.dead.contains(&n) {
                    continue;
                }
                let (now, mut sent) = (self.now(), vec![]);
                let node = &mut self.nodes[usize::from(n) - 1];
                for _ in 0..TICKS_MAX {
                    if node.deadline().at <= now.instant {
                        node.tick(now, &mut sent);
                    }
                    node.flush(now, &mut sent);
                }
                assert!(node.deadline().at > now.instant, "it spins: {:?}", node.deadline());
                self.send(addr(n), sent);
                self.sync(n);
            }
            (0..CLIENTS).for_each(|n| self.call(n));
            self.deliver();
        }
    }
}

/// The switch.
impl Rack {
    /// Who orders writes, and who answers reads by the normal protocol.
    fn places(&self) -> (Addr, Addr) {
        let members = &self.directory.members;
        match self.protocol {
            Protocol::PrimaryBackup => (members[0].addr, members[0].addr),
            Protocol::Chain | Protocol::Craq => (members[0].addr, members[members.len() - 1].addr),
            Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => {
                let view = |n: u16| self.at(n).status(self.now()).epoch.0;
                let live = (1..=NODES).filter(|n| !self.is_off(addr(*n)));
                let view = live.map(view).max().unwrap_or(1).max(1);
                let leader = addr((view - 1) as u16 % NODES + 1);
                (leader, leader)
            }
        }
    }

    fn switch(&mut self, mut bytes: Vec<u8>) {
        if kind(&bytes) != Ok(Kind::Store) {
            if let Ok(Stamp { now_ms, .. }) = Stamp::parse(&bytes) {
                let clock = &mut self.switch.clock;
                if clock.is_unset() || now_ms > clock.read(self.now_ms) {
                    clock.note(now_ms, self.now_ms);
                }
            }
            return;
        }
        let mut packet = PacketMut::parse(&mut bytes).unwrap();
        let repr = packet.view().repr();
        let (head, reader) = self.places();
        let own = &mut self.switch;
        match repr.op {
            // What a sequencer cannot stamp yet it drops.
            Op::Write if self.protocol == Protocol::NoPaxos && own.clock.is_unset() => {}
            Op::Write => {
                own.counter += 1;
                packet.set_seq(Seq::new(SwitchId(1), own.counter));
                own.dirty.insert(repr.obj_id.0, own.counter);
                if self.protocol != Protocol::NoPaxos {
                    return self.post(SWITCH, head, &bytes);
                }
                packet.set_time_ms(own.clock.read(self.now_ms));
                (1..=NODES).for_each(|n| self.post(SWITCH, addr(n), &bytes));
            }
            Op::Read if self.protocol == Protocol::Craq => {
                let to = self.any_member();
                self.post(SWITCH, to, &bytes);
            }
            Op::Read if own.last_committed > 0 && !own.dirty.contains_key(&repr.obj_id.0) => {
                packet.set_flags(repr.flags.with(Flags::FAST));
                packet.set_last_committed(Seq::new(SwitchId(1), own.last_committed));
                let to = self.any_member();
                self.post(SWITCH, to, &bytes);
            }
            Op::Read => self.post(SWITCH, reader, &bytes),
            Op::WRest => self.post(SWITCH, head, &bytes),
            Op::WriteReply | Op::WriteCompletion | Op::ReadReply | Op::WRestAck => {
                if repr.op == Op::WriteCompletion || repr.flags.has(Flags::COMPLETION) {
                    own.last_committed = own.last_committed.max(repr.seq.counter);
                    own.dirty.retain(|_, counter| *counter > own.last_committed);
                }
                if repr.client.port >= CLIENT {
                    self.post(SWITCH, repr.client, &bytes);
                }
            }
            Op::Pull | Op::Fragment | Op::Push | Op::Sweep => {}
        }
    }

    fn any_member(&mut self) -> Addr {
        let members = &self.directory.members;
        members[self.rng.below(members.len() as u64) as usize].addr
    }
}

/// The controller.
impl Rack {
    fn config(&self) -> Config {
        Config {
            group: GroupId(0),
            epoch: self.directory.epoch,
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: SWITCH,
            kind: self.protocol.into(),
            program: Program::of(self.protocol, true),
            members: self.directory.members.clone(),
            joining: self.directory.joining.clone(),
        }
    }

    fn configure(&mut self, to: Addr) {
        let mut bytes = vec![];
        Membership::Configure(self.config().into()).emit(&mut bytes);
        self.post(CONTROLLER, to, &bytes);
    }

    fn next_epoch(&mut self) {
        self.directory.epoch += 1;
        (1..=NODES).for_each(|n| self.configure(addr(n)));
    }

    fn hear(&mut self, bytes: &[u8]) {
        let alive = match Membership::parse(bytes) {
            Ok(Membership::ReplicaAlive(alive) | Membership::VoterAlive { alive, .. }) => alive,
            _ => return,
        };
        let ReplicaAlive { member, heard, standing, held, .. } = alive;
        let own = &mut self.directory;
        let (epoch, at_ms) = (heard.epoch, self.now_ms);
        own.heard.insert(member.node, Said { member, epoch, standing, held, at_ms });
        let says_caught_up = matches!(
            standing,
            Standing::Open { caught_up: true } | Standing::Opening { caught_up: true }
        );
        if says_caught_up && epoch == own.epoch && !own.caught_up.contains(&member) {
            own.caught_up.push(member);
        }
        if epoch < own.epoch {
            self.configure(member.addr);
        } else if !self.protocol.is_quorum() {
            self.reconsider();
        }
    }

    /// Who keeps its place: one that was heard lately, or that is back with all that it had.
    fn place(&self, m: &Member) -> Option<Member> {
        let own = &self.directory;
        let Some(said) = own.heard.get(&m.node) else { return Some(*m) };
        let is_intact = matches!(said.standing, Standing::Returning { intact: true, .. });
        let was_caught_up = own.caught_up.contains(m) || said.held.epoch == own.epoch;
        if said.epoch == own.epoch && said.member != *m {
            return (is_intact && was_caught_up).then_some(said.member);
        }
        let is_out = said.epoch == own.epoch && said.standing == Standing::Leaving;
        let is_silent = self.now_ms - said.at_ms > FAILURE_MS;
        (!is_out && !is_silent).then_some(*m)
    }

    fn reconsider(&mut self) {
        let own = &self.directory;
        let stands = |m: &Member, wanted: fn(&Standing) -> bool| {
            own.heard.get(&m.node).is_some_and(|said| {
                said.member == *m && said.epoch == own.epoch && wanted(&said.standing)
            })
        };
        let is_out = |s: &Standing| matches!(s, Standing::Out | Standing::Returning { .. });
        let mut members: Vec<Member> = own.members.iter().filter_map(|m| self.place(m)).collect();
        let stays = |m: &&Member| self.place(m) == Some(**m);
        let mut joining: Vec<Member> = own.joining.iter().filter(stays).copied().collect();
        let was = |m: &Member| own.members.iter().find(|old| old.node == m.node);
        let is_caught_up =
            |m: &Member| own.caught_up.contains(m) || was(m).is_some_and(|old| old != m);
        let mut caught_up: Vec<Member> =
            members.iter().filter(|m| is_caught_up(m)).copied().collect();
        if caught_up.is_empty() {
            return;
        }
        let copied = |m: &mut Member| stands(m, |s| *s == Standing::Copied);
        members.extend(joining.extract_if(.., copied));
        if own.members.iter().all(|m| stands(m, |s| matches!(s, Standing::Open { .. }))) {
            for said in own.heard.values() {
                let mut places = members.iter().chain(&joining);
                let is_known = places.any(|m| m.node == said.member.node);
                if !is_known && stands(&said.member, is_out) {
                    joining.push(said.member);
                }
            }
        }
        if (&members, &joining) != (&own.members, &own.joining) {
            let own = &mut self.directory;
            core::mem::swap(&mut own.caught_up, &mut caught_up);
            (own.members, own.joining) = (members, joining);
            self.next_epoch();
        }
    }

    /// Whether all are members again, and serve.
    fn is_well(&self) -> bool {
        let own = &self.directory;
        let is_in = |n: u16| own.members.contains(self.at(n).member());
        let serves =
            |n: u16| self.at(n).phase() == Phase::Open && self.at(n).status(self.now()).caught_up;
        (1..=NODES).all(|n| serves(n) && (self.protocol.is_quorum() || is_in(n)))
    }
}

/// The clients.
impl Rack {
    /// A client's request, a new one or the one that is not answered.
    fn call(&mut self, n: usize) {
        let client = &mut self.clients[n];
        if client.is_registered && client.call.is_none() {
            if self.is_closing {
                return;
            }
            let is_write = self.rng.chance(1, 2);
            let own = self.rng.chance(1, 8);
            let whose = if is_write { n as u64 } else { self.rng.below(CLIENTS as u64) };
            let key =
                if own { format!("own{whose}") } else { format!("k{}", self.rng.below(KEYS)) };
            client.writes += u64::from(is_write);
            client.reads += u64::from(!is_write);
            client.written += u64::from(is_write && own);
            client.attempt = 0;
            self.events += 1;
            client.call = Some(Call { key, is_write, began: self.events, ended: 0, value: 0 });
        } else if self.now_ms < client.sent_ms + RETRY_MS {
            return;
        } else {
            client.attempt += 1;
        }
        client.sent_ms = self.now_ms;
        let request = Repr { session: client.session, client: client.addr, ..Repr::new(Op::Write) };
        let Some(call) = client.call.clone() else {
            return self.submit(Repr { flags: Flags::REGISTER, ..request }, &[]);
        };
        let attempt = client.attempt;
        let (request_number, written) = (client.number(call.is_write), client.written);
        let obj_id = hash::object_id(call.key.as_bytes());
        let repr = Repr { request: request_number, obj_id, attempt, ..request };
        let key = call.key.as_bytes();
        let is_own = call.key.starts_with("own");
        match (call.is_write, is_own) {
            (true, false) => self.submit(repr, &[b"INCR", key]),
            (true, true) => self.submit_long(repr, key, written),
            (false, false) => self.submit(Repr { op: Op::Read, ..repr }, &[b"GET", key]),
            (false, true) => {
                self.submit(Repr { op: Op::Read, ..repr }, &[b"GETRANGE", key, b"0", b"7"]);
            }
        }
    }

    fn submit(&mut self, repr: Repr, args: &[&[u8]]) {
        let (mut command, mut bytes) = (CommandBuf::new(), vec![]);
        let body: &[u8] =
            if args.is_empty() { &[] } else { command.encode(1, args.iter().copied()) };
        repr.emit(body, &mut bytes);
        self.post(repr.client, SWITCH, &bytes);
    }

    /// A value of several packets: its body goes first.
    fn submit_long(&mut self, repr: Repr, key: &[u8], number: u64) {
        let value = format!("{number:08}{}", "x".repeat(2_500));
        let (mut buffer, mut bytes, mut body) = (CommandBuf::new(), vec![], vec![]);
        let command = buffer.encode(1, [&b"SET"[..], key, value.as_bytes()]);
        let total_bytes = command.len() as u32;
        let version = hash::hash64(0, command);
        let caught_up = FragmentHdr { version, total_bytes, index: 0, count: 1 };
        let mut packets = vec![];
        for index in 0..caught_up.fragments() {
            body.clear();
            FragmentHdr { index, ..caught_up }.emit_of(command, &mut body);
            Repr { op: Op::WRest, ..repr }.emit(&body, &mut bytes);
            packets.push(bytes.clone());
        }
        body.clear();
        FragmentHdr { count: caught_up.fragments(), ..caught_up }.emit(&mut body);
        Repr { flags: Flags::BODY_STAGED, ..repr }.emit(&body, &mut bytes);
        packets.push(bytes);
        for bytes in packets {
            self.post(repr.client, SWITCH, &bytes);
        }
    }

    fn on_reply(&mut self, bytes: &[u8]) {
        let packet = concord_wire::Packet::parse(bytes).unwrap();
        let (repr, text) = (packet.repr(), String::from_utf8_lossy(packet.body()).into_owned());
        let client = self.clients.iter_mut().find(|c| c.addr == repr.client).unwrap();
        if repr.op == Op::WRestAck {
            return;
        }
        if repr.request.0 == 0 {
            assert_eq!(repr.status, Status::Ok, "{:?}: registered", self.protocol);
            client.is_registered = true;
            return;
        }
        let is_current = |call: &&mut Call| {
            let number = if call.is_write { client.writes } else { READ_BIT | client.reads };
            repr.request.0 == number
        };
        let Some(call) = client.call.as_mut().filter(is_current) else { return };
        match repr.status {
            Status::Ok => {}
            Status::BodyMissing | Status::Busy => return,
            refused => panic!("{:?}: {call:?} was refused: {refused:?}", self.protocol),
        }
        let is_own = call.key.starts_with("own");
        call.value = match text.trim_end().rsplit("\r\n").next().unwrap() {
            "$-1" | "$0" => 0,
            "+OK" if is_own => client.written,
            number => number.trim_start_matches(':').parse().unwrap(),
        };
        self.events += 1;
        call.ended = self.events;
        self.history.extend(client.call.take());
    }

    /// Increments give each number once; whoever begins after another has ended sees what that saw.
    fn check(&self) {
        let keys: BTreeSet<&String> = self.history.iter().map(|c| &c.key).collect();
        for key in keys {
            let calls: Vec<&Call> = self.history.iter().filter(|c| c.key == *key).collect();
            let mut written: Vec<u64> =
                calls.iter().filter(|c| c.is_write).map(|c| c.value).collect();
            written.sort_unstable();
            let expected: Vec<u64> = (1..=written.len() as u64).collect();
            assert_eq!(written, expected, "{:?} {key}: each write once", self.protocol);
            for (later, earlier) in calls.iter().flat_map(|l| calls.iter().map(move |e| (l, e))) {
                let has_seen = if later.is_write {
                    later.value > earlier.value
                } else {
                    later.value >= earlier.value
                };
                let is_before = earlier.ended < later.began;
                assert!(!is_before || has_seen, "{:?} {later:?} after {earlier:?}", self.protocol);
            }
            // What was read had been written by somebody who had begun.
            for read in calls.iter().filter(|c| !c.is_write && c.value > 0) {
                let by = calls.iter().find(|c| c.is_write && c.value == read.value);
                assert!(by.is_some_and(|w| w.began < read.ended), "{:?} {read:?}", self.protocol);
            }
        }
    }

    /// Nobody asks for more, and the weather calms: everybody was answered, and all nodes are
    /// alike.
    pub fn close(&mut self) {
        (self.is_closing, self.weather) = (true, CALM);
        self.pass(400);
        let open: Vec<_> = self.clients.iter().filter_map(|c| c.call.as_ref()).collect();
        assert!(open.is_empty(), "{:?}: {open:?} were not answered", self.protocol);
        self.check();
        let of = |n: u16| {
            let node = self.at(n);
            (node.engine().digest(), node.sessions_digest(), node.executed())
        };
        for n in 2..=NODES {
            assert_eq!(of(n), of(1), "{:?}: replica {n}", self.protocol);
        }
    }

    /// Waits until all is well again.
    pub fn recover(&mut self, what: &str) {
        for _ in 0..400 {
            self.pass(10);
            if self.is_well() {
                return;
            }
        }
        let status: Vec<_> = self.nodes.iter().map(|n| n.status(self.now())).collect();
        panic!("{:?}: {what}: {status:#?}", self.protocol);
    }
}

/// How often each thing was counted, at all nodes.
pub fn total(rack: &Rack, name: &str) -> u64 {
    let of = |n: &Node<_>| n.each_counter().find(|c| c.0 == name).map_or(0, |c| c.2);
    rack.nodes.iter().map(of).sum()
}
