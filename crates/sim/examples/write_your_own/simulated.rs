//! The rack in a simulated network that loses, duplicates and delays packets: one seed, one run.

use concord_check::{Operation, Options, check};
use concord_core::{Machine as _, Rng};
use concord_sim::engine::{EventQueue, Time};
use concord_switch::SwitchAgent;
use concord_wire::Addr;

use crate::protocol::{Client, Server};
use crate::rack::{at, hits, operation, switch};
use crate::switch::{Hdr, KEYS, Op, Own};

/// Operations of a run.
pub const OPERATIONS: usize = 300;
const CLIENTS: usize = 4;
const SWITCH: Addr = Addr { ip: 0x0a00_0001, port: 7_000 };
const SERVER: Addr = Addr { ip: 0x0a00_0002, port: 7_000 };
const HOP_NS: u64 = 10_000;
/// A late packet comes up to so much later: others overtake it.
const LATE_NS: u64 = 200_000;
const RETRY_NS: u64 = 100_000;
const LOST_PERCENT: u64 = 2;
const TWICE_PERCENT: u64 = 2;
const LATE_PERCENT: u64 = 20;

fn client_addr(client: usize) -> Addr {
    Addr { ip: 0x0a00_0100 + client as u32, port: 7_000 }
}

/// What happens at a time.
enum Event {
    Packet { from: Addr, to: Addr, bytes: Vec<u8> },
    Timeout { client: usize, request: u32 },
    Next { client: usize },
}

/// A rack of one switch, one server and some clients.
struct Rack {
    queue: EventQueue<Event>,
    rng: Rng,
    switch: SwitchAgent<Own>,
    server: Server,
    clients: Vec<Client>,
    /// When each client's request was made.
    called_ns: Vec<u64>,
    history: Vec<Operation>,
    values: u32,
}

impl Rack {
    fn new(seed: u64, drops_late: bool) -> Rack {
        let mut queue = EventQueue::new();
        (0..CLIENTS).for_each(|client| queue.schedule(Time(client as u64), Event::Next { client }));
        Rack {
            queue,
            rng: Rng::new(seed),
            switch: switch(SWITCH, SERVER),
            server: Server::new(drops_late),
            clients: (0..CLIENTS).map(|client| Client::new(client_addr(client))).collect(),
            called_ns: vec![0; CLIENTS],
            history: Vec::new(),
            values: 0,
        }
    }

    /// The queue's unit is as good as any: here it is a nanosecond.
    fn now_ns(&self) -> u64 {
        self.queue.now().0
    }

    fn schedule(&mut self, in_ns: u64, event: Event) {
        self.queue.schedule(Time(self.now_ns() + in_ns), event);
    }

    /// The network: some packets are lost, some come twice, some late.
    fn send(&mut self, from: Addr, to: Addr, bytes: &[u8]) {
        if self.rng.chance(LOST_PERCENT, 100) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(TWICE_PERCENT, 100));
        for _ in 0..copies {
            let late = self.rng.chance(LATE_PERCENT, 100);
            let extra_ns = if late { self.rng.below(LATE_NS) } else { 0 };
            self.schedule(HOP_NS + extra_ns, Event::Packet { from, to, bytes: bytes.to_vec() });
        }
    }

    fn ask(&mut self, client: usize, hdr: Hdr) {
        self.send(client_addr(client), SWITCH, &hdr.packet());
        self.schedule(RETRY_NS, Event::Timeout { client, request: hdr.request });
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Packet { from, to: SWITCH, mut bytes } => {
                let mut sent: Vec<(Addr, Vec<u8>)> = Vec::new();
                self.switch.handle(at(self.queue.now().0), from, &mut bytes, &mut sent);
                sent.iter().for_each(|(to, bytes)| self.send(SWITCH, *to, bytes));
            }
            Event::Packet { to: SERVER, bytes, .. } => {
                let reply = Hdr::parse(&bytes).ok().and_then(|hdr| self.server.handle(hdr));
                if let Some(reply) = reply {
                    self.send(SERVER, SWITCH, &reply.packet());
                }
            }
            Event::Packet { to, bytes, .. } => self.at_client(to, &bytes),
            Event::Timeout { client, request } => {
                if let Some(hdr) = self.clients[client].timeout(request) {
                    self.ask(client, hdr);
                }
            }
            Event::Next { client } => {
                self.values += 1;
                let value = self.rng.chance(1, 3).then_some(self.values);
                let key = self.rng.below(KEYS as u64) as u32;
                self.called_ns[client] = self.now_ns();
                let hdr = self.clients[client].begin(key, value);
                self.ask(client, hdr);
            }
        }
    }

    fn at_client(&mut self, to: Addr, bytes: &[u8]) {
        let Some(client) = (0..CLIENTS).find(|client| client_addr(*client) == to) else { return };
        let done = Hdr::parse(bytes).ok().and_then(|hdr| self.clients[client].handle(hdr));
        if let Some(done) = done {
            let (call_ns, return_ns) = (self.called_ns[client], self.now_ns());
            self.history.push(operation(client as u64, &done, call_ns, Some(return_ns)));
            let think_ns = self.rng.below(20_000);
            self.schedule(think_ns, Event::Next { client });
        }
    }
}

/// Runs a seed: how many reads the switch answered, or what is wrong.
pub fn run(seed: u64, drops_late: bool) -> Result<u64, String> {
    let mut rack = Rack::new(seed, drops_late);
    while rack.history.len() < OPERATIONS {
        let Some((_, event)) = rack.queue.next() else { return Err("nothing to do".into()) };
        rack.step(event);
    }
    // A write that is still under way may have been executed: it has no return.
    for (client, called_ns) in rack.called_ns.iter().enumerate() {
        if let Some(hdr) = rack.clients[client].waits_for().filter(|hdr| hdr.op == Op::Write) {
            rack.history.push(operation(client as u64, &hdr, *called_ns, None));
        }
    }
    let report = check(&rack.history, &Options::default()).map_err(|e| e.to_string())?;
    if report.is_ok() { Ok(hits(&rack.switch)) } else { Err(report.to_string()) }
}
