//! A scripted fake rack: one node that behaves to clients like a replicated store, behind a network
//! that loses, duplicates and reorders; virtual time, one seed.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use concord_client::{Class, Client, ClientConfig, Done, Outcome, Request, SubmitError, Withdrawn};
use concord_core::hash::hash64;
use concord_core::{
    Duration, Instant, MS, Machine, NodeId, Now, ObjectId, RequestNumber, Rng, SEC, US,
};
use concord_wire::fragment::{Assembly, FRAGMENT_BYTES, FragmentHdr, PULL_MAX};
use concord_wire::rpc::{BODY_BYTES_MAX, READ_BIT};
use concord_wire::{Addr, Flags, Op, Packet, Reason, Repr, Status, WINDOW_MAX};

pub const CLIENT: Addr = Addr { ip: 0x7f00_0001, port: 1 };
pub const SWITCH: Addr = Addr { ip: 0x7f00_0001, port: 2 };

pub fn now(at: Instant) -> Now {
    Now { instant: at, unix_ms: 0 }
}

/// A command: how long its reply is to be, then filling of its own length.
pub fn command(reply_bytes: u32, filling: &[u8]) -> Vec<u8> {
    [&reply_bytes.to_be_bytes()[..], filling].concat()
}

/// The reply that the rack gives to `command`.
pub fn reply_of(command: &[u8]) -> Vec<u8> {
    let length = u32::from_be_bytes(command[..4].try_into().unwrap()) as usize;
    let hash = hash64(1, command).to_be_bytes();
    (0..length).map(|i| hash[i % 8] ^ (i / 8) as u8).collect()
}

#[derive(Default)]
pub struct Session {
    pub low: u64,
    pub results: BTreeMap<u64, Vec<u8>>,
}

/// The store. What it executed is in `log`.
#[derive(Default)]
pub struct Rack {
    pub sessions: BTreeMap<u64, Session>,
    pub log: Vec<(u64, u64)>,
    pub executed: BTreeSet<(u64, u64)>,
    pub bodies: BTreeMap<(u64, u64), Assembly>,
    pub kept: BTreeMap<(u64, u64), (u64, Vec<u8>)>,
    pub versions: u64,
    pub node: u16,
    /// Answers nothing.
    pub dead: bool,
    /// One in that many pulls finds nothing; 0 never.
    pub gone_in: u64,
    /// Forget the next staged body once.
    pub lose_body: bool,
    pub seen: BTreeMap<Op, u64>,
    /// Most bodies that are staged, and most replies that are kept, at once.
    pub bodies_max: usize,
    pub kept_max: usize,
}

impl Rack {
    pub fn handle(&mut self, bytes: &[u8], rng: &mut Rng, out: &mut Vec<(Addr, Vec<u8>)>) {
        if self.dead {
            return;
        }
        let packet = Packet::parse(bytes).unwrap();
        let repr = packet.repr();
        assert_eq!(repr.client, CLIENT);
        *self.seen.entry(repr.op).or_default() += 1;
        let key = (repr.session.0, repr.request.0);
        match repr.op {
            Op::Write => {
                let (status, reply) = self.write(&repr, packet.body());
                self.reply(&Repr { op: Op::WriteReply, status, ..repr }, &reply, out);
            }
            Op::Read => {
                assert!(repr.request.0 & READ_BIT != 0);
                let reply = reply_of(packet.body());
                let reason = Reason::Fast;
                self.reply(&Repr { op: Op::ReadReply, reason, ..repr }, &reply, out);
            }
            Op::WRest => {
                let (hdr, payload) = FragmentHdr::parse(packet.body()).unwrap();
                let sub_header = &packet.body()[..20];
                if self.executed.contains(&key) {
                    return self.emit(&Repr { op: Op::WRestAck, ..repr }, sub_header, out);
                }
                if !self.bodies.contains_key(&key) && self.bodies.len() >= self.bodies_max {
                    let busy = Repr { op: Op::WRestAck, status: Status::Busy, ..repr };
                    return self.emit(&busy, sub_header, out);
                }
                let body = self.bodies.entry(key).or_insert_with(|| Assembly::new(hdr));
                if body.version() != hdr.version {
                    *body = Assembly::new(hdr);
                }
                assert!(body.add(&hdr, payload));
                self.emit(&Repr { op: Op::WRestAck, ..repr }, &packet.body()[..20], out);
            }
            Op::Pull => self.pull(&repr, packet.body(), rng, out),
            _ => panic!("a client never sends {:?}", repr.op),
        }
    }

    fn write(&mut self, repr: &Repr, body: &[u8]) -> (Status, Vec<u8>) {
        let key = (repr.session.0, repr.request.0);
        if repr.flags.has(Flags::REGISTER) {
            assert!(body.is_empty());
            self.sessions.entry(key.0).or_insert(Session { low: 1, ..Session::default() });
            return (Status::Ok, vec![]);
        }
        let Some(session) = self.sessions.get_mut(&key.0) else {
            return (Status::SessionExpired, vec![]);
        };
        let low = key.1 - u64::from(repr.low_delta);
        session.low = session.low.max(low);
        session.results = session.results.split_off(&session.low);
        if key.1 < session.low {
            return (Status::Stale, vec![]);
        }
        if key.1 - session.low >= WINDOW_MAX {
            return (Status::Window, vec![]);
        }
        if let Some(result) = session.results.get(&key.1) {
            return (Status::Ok, result.clone());
        }
        let staged = repr.flags.has(Flags::BODY_STAGED);
        if staged && std::mem::take(&mut self.lose_body) {
            self.bodies.remove(&key);
        }
        if staged {
            let (hdr, _) = FragmentHdr::parse(body).unwrap();
            let whole = self.bodies.get(&key).filter(|b| b.is_complete());
            if whole.is_none_or(|b| b.version() != hdr.version) {
                return (Status::BodyMissing, vec![]);
            }
        }
        let after = key.1 - u64::from(repr.after_delta);
        if repr.after_delta != 0 && after >= session.low && !session.results.contains_key(&after) {
            return (Status::Order, vec![]);
        }
        let command =
            if staged { self.bodies.remove(&key).unwrap().into_bytes() } else { body.to_vec() };
        if command.len() < 4 {
            return (Status::Malformed, vec![]);
        }
        let result = reply_of(&command);
        session.results.insert(key.1, result.clone());
        assert!(self.executed.insert(key), "{key:?} was executed twice");
        self.log.push(key);
        (Status::Ok, result)
    }

    fn reply(&mut self, repr: &Repr, reply: &[u8], out: &mut Vec<(Addr, Vec<u8>)>) {
        let repr = Repr { node: NodeId(self.node), ..*repr };
        if reply.len() <= BODY_BYTES_MAX {
            self.emit(&repr, reply, out);
            return;
        }
        let key = (repr.session.0, repr.request.0);
        if !self.kept.contains_key(&key) && self.kept.len() >= self.kept_max {
            return self.emit(&Repr { status: Status::Busy, ..repr }, &[], out);
        }
        self.versions += 1;
        self.kept.insert(key, (self.versions, reply.to_vec()));
        let total_bytes = reply.len() as u32;
        let hdr = FragmentHdr { version: self.versions, total_bytes, index: 0, count: 1 };
        let mut body = vec![];
        hdr.emit(&mut body);
        body.extend_from_slice(&reply[hdr.range()]);
        self.emit(&Repr { flags: repr.flags.with(Flags::MORE), ..repr }, &body, out);
    }

    fn pull(&mut self, asked: &Repr, body: &[u8], rng: &mut Rng, out: &mut Vec<(Addr, Vec<u8>)>) {
        let (wanted, _) = FragmentHdr::parse(body).unwrap();
        assert!(wanted.count <= PULL_MAX);
        let key = (asked.session.0, asked.request.0);
        if wanted.count == 0 {
            self.kept.retain(|of, (version, _)| *of != key || *version != wanted.version);
            return;
        }
        let repr = Repr { op: Op::Fragment, node: NodeId(self.node), ..*asked };
        if self.gone_in != 0 && rng.chance(1, self.gone_in) {
            self.kept.remove(&key);
        }
        let kept = self.kept.get(&key).filter(|(version, _)| *version == wanted.version);
        let Some((_, whole)) = kept.filter(|_| asked.node.0 == self.node) else {
            self.emit(&Repr { status: Status::Gone, ..repr }, body, out);
            return;
        };
        for index in wanted.index..(wanted.index + wanted.count).min(wanted.fragments()) {
            let hdr = FragmentHdr { index, count: 1, ..wanted };
            let mut part = vec![];
            hdr.emit(&mut part);
            part.extend_from_slice(&whole[hdr.range()]);
            self.emit(&repr, &part, out);
        }
    }

    fn emit(&self, repr: &Repr, body: &[u8], out: &mut Vec<(Addr, Vec<u8>)>) {
        let mut bytes = vec![];
        repr.emit(body, &mut bytes);
        out.push((CLIENT, bytes));
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event(std::cmp::Reverse<(Instant, u64)>, bool, Vec<u8>);

/// One client, one rack, and the network between them.
pub struct World {
    pub client: Client,
    pub rack: Rack,
    pub rng: Rng,
    pub at: Instant,
    pub loss_permille: u64,
    pub duplicate_permille: u64,
    pub reorder_permille: u64,
    /// Drop these packets to the rack, by their place in the order of sending.
    pub drop_sent: BTreeSet<u64>,
    pub sent: u64,
    /// Writes submitted whose `Done` did not come yet.
    pub unanswered: BTreeSet<u64>,
    pub done: Vec<Done>,
    events: BinaryHeap<Event>,
    event_count: u64,
}

impl World {
    pub fn new(seed: u64, change: impl FnOnce(&mut ClientConfig)) -> World {
        let mut config = ClientConfig::new(CLIENT, SWITCH);
        change(&mut config);
        let mut rng = Rng::new(seed);
        World {
            client: Client::new(config, rng.fork()),
            rack: Rack { node: 1, bodies_max: usize::MAX, kept_max: usize::MAX, ..Rack::default() },
            rng,
            at: Instant(SEC),
            loss_permille: 0,
            duplicate_permille: 0,
            reorder_permille: 0,
            drop_sent: BTreeSet::new(),
            sent: 0,
            unanswered: BTreeSet::new(),
            done: vec![],
            events: BinaryHeap::new(),
            event_count: 0,
        }
    }

    pub fn faults(mut self, loss: u64, duplicate: u64, reorder: u64) -> World {
        self.loss_permille = loss;
        self.duplicate_permille = duplicate;
        self.reorder_permille = reorder;
        self
    }

    pub fn submit(
        &mut self,
        class: Class,
        after: Option<RequestNumber>,
        command: &[u8],
    ) -> Result<RequestNumber, SubmitError> {
        let mut sink = vec![];
        let obj_id = ObjectId(7);
        let further = concord_wire::FurtherIds::NONE;
        let flags = Flags::default();
        let request = Request { class, obj_id, further, flags, after, command };
        let number = self.client.submit(now(self.at), request, &mut sink);
        if let Ok(number) = number
            && class == Class::Write
        {
            self.unanswered.insert(number.0);
        }
        self.after_input(sink);
        number
    }

    pub fn write(&mut self, after: Option<RequestNumber>, command: &[u8]) -> RequestNumber {
        self.submit(Class::Write, after, command).unwrap()
    }

    pub fn read(&mut self, command: &[u8]) -> RequestNumber {
        self.submit(Class::Read, None, command).unwrap()
    }

    /// Hands bytes to the client as if they came from the network.
    pub fn inject(&mut self, bytes: &[u8]) {
        let mut sink = vec![];
        self.client.handle(now(self.at), SWITCH, &mut bytes.to_vec(), &mut sink);
        self.after_input(sink);
    }

    pub fn grant(&mut self, request: RequestNumber, bytes: u32) {
        let mut sink = vec![];
        self.client.grant(now(self.at), request, bytes, &mut sink);
        self.after_input(sink);
    }

    pub fn withdraw(&mut self, request: RequestNumber) -> Withdrawn {
        let mut sink = vec![];
        let withdrawn = self.client.withdraw(request, &mut sink).unwrap();
        self.after_input(sink);
        withdrawn
    }

    fn after_input(&mut self, sent: Vec<(Addr, Vec<u8>)>) {
        while let Some(done) = self.client.poll() {
            if done.class == Class::Write {
                assert!(self.unanswered.remove(&done.request.0), "{done:?} ended twice");
            }
            self.done.push(done);
        }
        for (to, bytes) in sent {
            assert_eq!(to, SWITCH);
            self.check_sent(&bytes);
            self.sent += 1;
            if !self.drop_sent.contains(&self.sent) {
                self.carry(true, bytes);
            }
        }
    }

    /// T16: no packet claims that an unanswered write was answered.
    fn check_sent(&self, bytes: &[u8]) {
        let repr = Packet::parse(bytes).unwrap().repr();
        assert_ne!(repr.session.0, 0);
        // A registration names a position of the log, not a request.
        let is_registration = repr.flags.has(Flags::REGISTER);
        if repr.op == Op::Write && repr.request.0 != 0 && !is_registration {
            let low = repr.request.0 - u64::from(repr.low_delta);
            let lowest = self.unanswered.first().copied().unwrap_or(repr.request.0);
            assert!(low <= lowest, "low {low} is above the unanswered {lowest}");
        }
    }

    fn carry(&mut self, to_rack: bool, bytes: Vec<u8>) {
        if self.rng.chance(self.loss_permille, 1000) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(self.duplicate_permille, 1000));
        for _ in 0..copies {
            let late = self.rng.chance(self.reorder_permille, 1000);
            let wait_ns = if late { self.rng.between(50 * US, 3 * MS) } else { 50 * US };
            self.event_count += 1;
            let order = std::cmp::Reverse((self.at.after(wait_ns), self.event_count));
            self.events.push(Event(order, to_rack, bytes.clone()));
        }
    }

    /// One packet arrives, or the client's deadline comes; false if neither before `until`.
    pub fn step(&mut self, until: Instant) -> bool {
        let packet_at = self.events.peek().map_or(Instant::NEVER, |e| e.0.0.0);
        let tick_at = self.client.deadline().at.max(self.at);
        if packet_at.min(tick_at) > until {
            self.at = until;
            return false;
        }
        let mut sink = vec![];
        if tick_at <= packet_at {
            self.at = tick_at;
            self.client.tick(now(self.at), &mut sink);
            assert!(self.client.deadline().at > self.at, "{:?}", self.client.deadline());
        } else {
            let Some(Event(_, to_rack, mut bytes)) = self.events.pop() else { return false };
            self.at = packet_at;
            if to_rack {
                let mut replies = vec![];
                self.rack.handle(&bytes, &mut self.rng, &mut replies);
                for (_, reply) in replies {
                    self.carry(false, reply);
                }
            } else {
                self.client.handle(now(self.at), SWITCH, &mut bytes, &mut sink);
            }
        }
        self.after_input(sink);
        true
    }

    pub fn run_for(&mut self, ns: Duration) {
        let until = self.at.after(ns);
        while self.step(until) {}
    }

    /// Runs until `count` requests ended, or the time is up.
    pub fn run_until_done(&mut self, count: usize, ns: Duration) {
        let until = self.at.after(ns);
        while self.done.len() < count && self.step(until) {}
    }

    pub fn outcome(&self, number: RequestNumber) -> Option<Outcome> {
        self.done.iter().find(|d| d.request == number).map(|d| d.outcome)
    }

    pub fn fragments(&self, bytes: usize) -> u64 {
        bytes.div_ceil(FRAGMENT_BYTES) as u64
    }
}
