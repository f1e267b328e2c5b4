//! A fake rack behind a gateway: one node with the memory engine that behaves to clients like a
//! replicated store, and a network with delays drawn from one seed, which reorder.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use concord_client::ClientConfig;
use concord_core::{Duration, Instant, MS, Machine, NodeId, Now, ObjectId, Rng, SEC, US};
use concord_engine::acl::sent;
use concord_engine::ttl::EXEC_COMMAND;
use concord_engine::{
    Class, Command, CommandBuf, CommandTable, Context, Engine, Memory, Shimmed, resp,
};
use concord_gateway::{ConnectionId, Gateway, GatewayConfig, Limits};
use concord_wire::control::Config;
use concord_wire::fragment::{Assembly, FragmentHdr};
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Addr, Flags, Op, Packet, Reason, Repr, Status};

const GATEWAY: Addr = Addr { ip: 0x7f00_0001, port: 1 };
const SWITCH: Addr = Addr { ip: 0x7f00_0001, port: 2 };
pub const CONTROLLER: Addr = Addr { ip: 0x7f00_0001, port: 3 };
/// A chain's switch, which never answers.
pub const CHAIN: Addr = Addr { ip: 0x7f00_0001, port: 4 };

/// What the rack does with packets for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Serves,
    /// Reads and writes reach it, and no reply leaves it.
    Mute,
    /// Nothing reaches it.
    Dead,
    /// It works on one operation, and says so to who asks again: for so many ms.
    Works(u64),
    /// Whatever it is asked, it has an error.
    Fails,
}

pub struct Store {
    engine: Shimmed<Memory>,
    table: CommandTable,
    sessions: BTreeMap<u64, BTreeMap<u64, Vec<u8>>>,
    bodies: BTreeMap<u64, Assembly>,
    replies: BTreeMap<u64, Vec<u8>>,
    pub mood: Mood,
    /// Objects that somebody waits for; and whether it is told when they were written.
    waiting: BTreeSet<u32>,
    pub tells: bool,
    /// What was executed: the class, the name, the key, and whether it concerned all keys.
    pub log: Vec<(Class, String, String, bool)>,
    /// Rules that came with scripts and calls.
    pub rules: Vec<Vec<u8>>,
}

impl Store {
    fn execute(&mut self, repr: &Repr, class: Class, bytes: &[u8]) -> Vec<u8> {
        let command = Command::parse(bytes).expect("the gateway encodes commands");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all_keys = repr.flags.has(Flags::WILDCARD);
        let key = command.key().unwrap_or_default();
        self.log.push((class, text(command.name()).to_uppercase(), text(key), all_keys));
        if !all_keys && !key.is_empty() {
            assert_eq!(repr.obj_id, concord_core::hash::object_id(key));
        }
        self.note_rules(&command);
        if command.name() == b"EVAL" {
            let arguments: Vec<Vec<u8>> = command.args().map(<[u8]>::to_vec).collect();
            if arguments[1] == b"publish" {
                return b">3\r\n$7\r\npublish\r\n$1\r\nc\r\n$1\r\nm\r\n+x\r\n".to_vec();
            }
            return format!("+{}\r\n", text(&arguments[1])).into_bytes();
        }
        let context = Context {
            now_ms: 1_000,
            resp3: repr.flags.has(Flags::RESP3),
            position: self.log.len() as u64,
            ..Context::default()
        };
        let mut reply = vec![];
        self.engine.submit(&context, class, &command, &mut reply);
        reply
    }

    fn note_rules(&mut self, command: &Command<'_>) {
        if command.name() == EXEC_COMMAND {
            let parts = command.args().skip(1).filter_map(|part| Command::parse(part).ok());
            parts.for_each(|part| self.note_rules(&part));
        }
        let (_, rules) = sent::split(command.args().collect());
        self.rules.extend(rules.map(<[u8]>::to_vec));
    }

    /// The rack is founded anew, with nothing.
    pub fn lose_all(&mut self) {
        self.engine = Shimmed::new(Memory::new(0));
    }

    /// A write by somebody of whom the gateway hears nothing: another gateway, or a key's time that
    /// has come.
    pub fn write_elsewhere(&mut self, args: &[&[u8]]) {
        let encoded = CommandBuf::new().encode(1, args.iter().copied()).to_vec();
        let command = Command::parse(&encoded).unwrap();
        let context =
            Context { now_ms: 1_000, position: self.log.len() as u64, ..Context::default() };
        self.engine.submit(&context, Class::Write, &command, &mut vec![]);
    }

    fn handle(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        if self.mood == Mood::Dead {
            return vec![];
        }
        let packet = Packet::parse(bytes).unwrap();
        let repr = packet.repr();
        if let Mood::Works(time_ms) = self.mood {
            let op = if repr.op == Op::Read { Op::ReadReply } else { Op::WriteReply };
            let working = Repr { op, status: Status::Working, time_ms, ..repr };
            return if repr.attempt > 0 { vec![emit(&working, &[])] } else { vec![] };
        }
        match repr.op {
            Op::Read => {
                let reply = self.execute(&repr, Class::Read, packet.body());
                let (reason, op) = (Reason::Fast, Op::ReadReply);
                self.reply(&Repr { op, reason, ..repr }, reply)
            }
            Op::Write => match self.write(&repr, packet.body()) {
                Ok(reply) => {
                    let mut sent = self.tell(&repr, &reply);
                    sent.extend(self.reply(&Repr { op: Op::WriteReply, ..repr }, reply));
                    sent
                }
                Err(status) => vec![emit(&Repr { op: Op::WriteReply, status, ..repr }, &[])],
            },
            Op::WRest => {
                let (hdr, payload) = FragmentHdr::parse(packet.body()).unwrap();
                let body = self.bodies.entry(repr.request.0).or_insert_with(|| Assembly::new(hdr));
                body.add(&hdr, payload);
                vec![emit(&Repr { op: Op::WRestAck, ..repr }, &packet.body()[..20])]
            }
            Op::Pull => {
                let (asked, _) = FragmentHdr::parse(packet.body()).unwrap();
                if asked.count == 0 {
                    self.replies.remove(&repr.request.0);
                    return vec![];
                }
                let Some(whole) = self.replies.get(&repr.request.0) else {
                    let gone = Repr { op: Op::Fragment, status: Status::Gone, ..repr };
                    return vec![emit(&Repr { node: NodeId(7), ..gone }, packet.body())];
                };
                let last = (asked.index + asked.count).min(asked.fragments());
                let fragment = |index| {
                    let hdr = FragmentHdr { index, count: 1, ..asked };
                    emit_fragment(&Repr { op: Op::Fragment, node: NodeId(7), ..repr }, &hdr, whole)
                };
                (asked.index..last).map(fragment).collect()
            }
            other => panic!("a gateway never sends {other:?}"),
        }
    }

    /// As a replica: whoever waits for what was written hears of it.
    fn tell(&mut self, repr: &Repr, reply: &[u8]) -> Vec<Vec<u8>> {
        let further = repr.further.as_slice().iter().map(|id| id.0);
        let objects: Vec<u32> = [repr.obj_id.0].into_iter().chain(further).collect();
        if repr.flags.has(Flags::WAITS) && resp::ends_in_null(reply) {
            self.waiting.extend(objects);
            return vec![];
        }
        let is_waited_for = |id: &u32| self.waiting.remove(id) && self.tells;
        let written: Vec<u32> = objects.into_iter().filter(is_waited_for).collect();
        let push = |id| emit(&Repr { obj_id: ObjectId(id), ..Repr::new(Op::Push) }, &[]);
        written.into_iter().map(push).collect()
    }

    fn write(&mut self, repr: &Repr, body: &[u8]) -> Result<Vec<u8>, Status> {
        // The session is registered, or touched.
        if repr.request.0 == 0 {
            self.sessions.entry(repr.session.0).or_default();
            return Ok(vec![]);
        }
        let number = repr.request.0;
        let Some(session) = self.sessions.get(&repr.session.0) else {
            return Err(Status::SessionExpired);
        };
        if let Some(reply) = session.get(&number) {
            return Ok(reply.clone());
        }
        if repr.after_delta != 0 && !session.contains_key(&(number - u64::from(repr.after_delta))) {
            return Err(Status::Order);
        }
        let command = match self.bodies.get(&number) {
            Some(body) if repr.flags.has(Flags::BODY_STAGED) => body.bytes().to_vec(),
            _ => body.to_vec(),
        };
        let reply = self.execute(repr, Class::Write, &command);
        self.sessions.entry(repr.session.0).or_default().insert(number, reply.clone());
        Ok(reply)
    }

    fn reply(&mut self, repr: &Repr, reply: Vec<u8>) -> Vec<Vec<u8>> {
        if self.mood == Mood::Mute {
            return vec![];
        }
        let reply = match self.mood {
            Mood::Fails => b"-ERR the engine is gone\r\n".to_vec(),
            Mood::Serves | Mood::Mute | Mood::Dead | Mood::Works(_) => reply,
        };
        let repr = Repr { node: NodeId(7), ..*repr };
        if reply.len() <= BODY_BYTES_MAX {
            return vec![emit(&repr, &reply)];
        }
        let total_bytes = reply.len() as u32;
        let hdr = FragmentHdr { version: 1, total_bytes, index: 0, count: 1 };
        let flags = repr.flags.with(Flags::MORE);
        let first = emit_fragment(&Repr { flags, ..repr }, &hdr, &reply);
        self.replies.insert(repr.request.0, reply);
        vec![first]
    }
}

fn emit(repr: &Repr, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    repr.emit(body, &mut bytes);
    bytes
}

fn emit_fragment(repr: &Repr, hdr: &FragmentHdr, whole: &[u8]) -> Vec<u8> {
    let mut body = vec![];
    hdr.emit(&mut body);
    body.extend_from_slice(&whole[hdr.range()]);
    emit(repr, &body)
}

/// When a packet arrives, its ordinal, whether it goes to the rack, and its bytes.
type Event = (Instant, u64, bool, Vec<u8>);

/// A gateway, its connections, the network and the rack.
pub struct World {
    pub gateway: Gateway,
    pub store: Store,
    pub at: Instant,
    /// What each connection received; the driver drains the gateway's output at once.
    pub received: BTreeMap<u64, Vec<u8>>,
    /// Connections whose client does not read.
    pub stuck: Vec<u64>,
    pub delay_ns: (Duration, Duration),
    /// What the controller says to whoever asks, and how often it was asked.
    pub config: Option<Config>,
    pub asked: usize,
    /// What was sent to the chain's switch.
    pub to_chain: Vec<Vec<u8>>,
    rng: Rng,
    events: BinaryHeap<Reverse<Event>>,
    event_count: u64,
}

impl World {
    pub fn new(seed: u64) -> World {
        World::with(seed, |_| {})
    }

    pub fn with(seed: u64, change: impl FnOnce(&mut GatewayConfig)) -> World {
        let mut config = GatewayConfig {
            splits_reads: false,
            client: ClientConfig { window: 256, ..ClientConfig::new(GATEWAY, SWITCH) },
            requirepass: None,
            table: CommandTable::memory(),
            redis: false,
            connections_max: 100,
            limits: Limits::default(),
            others: vec![],
            node: 1,
            port: 7379,
        };
        change(&mut config);
        let mut rng = Rng::new(seed);
        let mut world = World {
            gateway: Gateway::new(config, rng.fork()),
            store: Store {
                engine: Shimmed::new(Memory::new(0)),
                table: CommandTable::memory(),
                sessions: BTreeMap::new(),
                bodies: BTreeMap::new(),
                replies: BTreeMap::new(),
                mood: Mood::Serves,
                waiting: BTreeSet::new(),
                tells: true,
                log: vec![],
                rules: vec![],
            },
            at: Instant(SEC),
            received: BTreeMap::new(),
            stuck: vec![],
            delay_ns: (10 * US, 2 * MS),
            config: None,
            asked: 0,
            to_chain: vec![],
            rng,
            events: BinaryHeap::new(),
            event_count: 0,
        };
        world.connect(1);
        world
    }

    pub fn connect(&mut self, id: u64) {
        let peer = format!("127.0.0.1:{}", 50_000 + id);
        assert!(self.gateway.connected(self.now(), ConnectionId(id), &peer));
        self.received.insert(id, vec![]);
    }

    pub fn now(&self) -> Now {
        Now { instant: self.at, unix_ms: 1_700_000_000_123 }
    }

    pub fn input(&mut self, id: u64, bytes: &[u8]) {
        let mut sent = vec![];
        self.gateway.input(self.now(), ConnectionId(id), bytes, &mut sent);
        self.after_input(sent);
    }

    /// As a driver: sends what there is to send, writes what there is to write.
    pub fn after_input(&mut self, mut sent: Vec<(Addr, Vec<u8>)>) {
        while let Some(id) = self.gateway.take_ready(self.now(), &mut sent) {
            if self.gateway.is_given_up(id) {
                self.gateway.closed(id);
            }
            if self.stuck.contains(&id.0) {
                continue;
            }
            let Some(output) = self.gateway.output(id) else { continue };
            let bytes = output.to_vec();
            if !bytes.is_empty() {
                self.received.entry(id.0).or_default().extend_from_slice(&bytes);
                self.gateway.written(self.now(), id, bytes.len(), &mut sent);
            }
        }
        for (to, bytes) in sent {
            if to == CONTROLLER {
                self.asked += 1;
                let mut told: Vec<(Addr, Vec<u8>)> = vec![];
                self.config.iter().for_each(|c| c.send(GATEWAY, &mut vec![], &mut told));
                told.into_iter().for_each(|(_, bytes)| self.carry(false, bytes));
                continue;
            }
            if to == CHAIN {
                self.to_chain.push(bytes);
                continue;
            }
            assert_eq!(to, SWITCH);
            self.carry(true, bytes);
        }
    }

    /// The client of a connection reads what there is.
    pub fn read(&mut self, id: u64) -> usize {
        self.take(id, usize::MAX)
    }

    /// The same of so many bytes at most.
    pub fn take(&mut self, id: u64, bytes_max: usize) -> usize {
        let Some(output) = self.gateway.output(ConnectionId(id)) else { return 0 };
        let bytes = output.len().min(bytes_max);
        let mut sent = vec![];
        if bytes > 0 {
            self.gateway.written(self.now(), ConnectionId(id), bytes, &mut sent);
        }
        self.after_input(sent);
        bytes
    }

    fn carry(&mut self, to_rack: bool, bytes: Vec<u8>) {
        let delay = self.rng.between(self.delay_ns.0, self.delay_ns.1);
        self.event_count += 1;
        self.events.push(Reverse((self.at.after(delay), self.event_count, to_rack, bytes)));
    }

    /// The next packet arrives.
    fn arrive(&mut self, sent: &mut Vec<(Addr, Vec<u8>)>) {
        let Some(Reverse((at, _, to_rack, mut bytes))) = self.events.pop() else { return };
        self.at = at;
        if to_rack {
            for reply in self.store.handle(&bytes) {
                self.carry(false, reply);
            }
        } else {
            self.gateway.handle(self.now(), Addr::default(), &mut bytes, sent);
        }
    }

    /// One packet arrives, or the gateway's deadline comes; false if neither before `until`.
    pub fn step(&mut self, until: Instant) -> bool {
        let packet_at = self.events.peek().map_or(Instant::NEVER, |e| e.0.0);
        let tick_at = self.gateway.deadline().at.max(self.at);
        if packet_at.min(tick_at) > until {
            self.at = until;
            return false;
        }
        let mut sent = vec![];
        if tick_at <= packet_at {
            self.at = tick_at;
            self.gateway.tick(self.now(), &mut sent);
            let next = self.gateway.deadline();
            assert!(next.at > self.at, "the gateway spins: {next:?}");
        } else {
            self.arrive(&mut sent);
        }
        self.after_input(sent);
        true
    }

    /// What comes in one batch: the packets of so long, and then these lines.
    pub fn batch(&mut self, ns: Duration, lines: &[(u64, &str)]) {
        let (until, mut sent) = (self.at.after(ns), vec![]);
        while self.events.peek().is_some_and(|event| event.0.0 <= until) {
            self.arrive(&mut sent);
        }
        self.at = until;
        for (id, line) in lines {
            let bytes = format!("{line}\r\n");
            self.gateway.input(self.now(), ConnectionId(*id), bytes.as_bytes(), &mut sent);
        }
        self.after_input(sent);
    }

    pub fn run_for(&mut self, ns: Duration) {
        let until = self.at.after(ns);
        while self.step(until) {}
    }

    /// What the connection received since the last call, for up to six seconds.
    pub fn replies(&mut self, id: u64) -> String {
        self.run_for(6 * SEC);
        let bytes = core::mem::take(self.received.get_mut(&id).unwrap());
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends lines as inline commands in one piece, and gives the replies.
    pub fn ask(&mut self, lines: &[&str]) -> String {
        let text: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        self.input(1, text.as_bytes());
        self.replies(1)
    }

    /// The names of what the rack executed, in order, and forgets them.
    pub fn executed(&mut self) -> Vec<String> {
        self.store.log.drain(..).map(|(_, name, key, _)| format!("{name} {key}")).collect()
    }

    pub fn table(&self) -> &CommandTable {
        &self.store.table
    }
}

/// A request as clients send it.
pub fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// What a client hears in 20 ms.
pub fn say(world: &mut World, id: u64, lines: &[&str]) -> String {
    let text: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    world.input(id, text.as_bytes());
    world.run_for(20 * MS);
    heard(world, id)
}

/// What has come for a client since.
pub fn heard(world: &mut World, id: u64) -> String {
    let bytes = core::mem::take(world.received.get_mut(&id).unwrap());
    String::from_utf8_lossy(&bytes).into_owned()
}
