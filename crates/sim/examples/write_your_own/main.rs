//! A switch program and a protocol of one's own, simulated and checked: docs/write-your-own.md.

mod protocol;
mod switch;

use concord_check::{Operation, Options, Reply, check};
use concord_core::Rng;
use concord_sim::engine::{EventQueue, Time};

use protocol::{Client, Server};
use switch::{Cache, Hdr, KEYS, Op, To};

const CLIENTS: usize = 4;
const OPERATIONS: usize = 300;
const HOP_NS: u64 = 10_000;
/// A late packet comes up to so much later: others overtake it.
const LATE_NS: u64 = 200_000;
const RETRY_NS: u64 = 100_000;
const LOST_PERCENT: u64 = 2;
const TWICE_PERCENT: u64 = 2;
const LATE_PERCENT: u64 = 20;

/// What happens at a time.
enum Event {
    AtSwitch(Hdr),
    AtServer(Hdr),
    AtClient(Hdr),
    Timeout { client: usize, request: u32 },
    Next { client: usize },
}

/// A rack of one switch, one server and some clients.
struct Rack {
    queue: EventQueue<Event>,
    rng: Rng,
    cache: Cache,
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
            cache: Cache::new(),
            server: Server::new(CLIENTS, drops_late),
            clients: (0..CLIENTS).map(Client::new).collect(),
            called_ns: vec![0; CLIENTS],
            history: Vec::new(),
            values: 0,
        }
    }

    /// The queue's unit is as good as any: here it is a nanosecond.
    fn schedule(&mut self, in_ns: u64, event: Event) {
        self.queue.schedule(Time(self.queue.now().0 + in_ns), event);
    }

    /// The network: some packets are lost, some come twice, some late.
    fn send(&mut self, event: impl Fn() -> Event) {
        if self.rng.chance(LOST_PERCENT, 100) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(TWICE_PERCENT, 100));
        for _ in 0..copies {
            let late = self.rng.chance(LATE_PERCENT, 100);
            let extra_ns = if late { self.rng.below(LATE_NS) } else { 0 };
            self.schedule(HOP_NS + extra_ns, event());
        }
    }

    fn ask(&mut self, hdr: Hdr) {
        self.send(|| Event::AtSwitch(hdr));
        let timeout = Event::Timeout { client: hdr.client, request: hdr.request };
        self.schedule(RETRY_NS, timeout);
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::AtSwitch(mut hdr) => match self.cache.process(&mut hdr) {
                To::Server => self.send(|| Event::AtServer(hdr)),
                To::Client => self.send(|| Event::AtClient(hdr)),
            },
            Event::AtServer(hdr) => {
                if let Some(reply) = self.server.handle(hdr) {
                    self.send(|| Event::AtSwitch(reply));
                }
            }
            Event::AtClient(hdr) => {
                if let Some(done) = self.clients[hdr.client].handle(hdr) {
                    self.record(done);
                    let think_ns = self.rng.below(20_000);
                    self.schedule(think_ns, Event::Next { client: hdr.client });
                }
            }
            Event::Timeout { client, request } => {
                if let Some(hdr) = self.clients[client].timeout(request) {
                    self.ask(hdr);
                }
            }
            Event::Next { client } => {
                self.values += 1;
                let value = self.rng.chance(1, 3).then_some(self.values);
                let key = self.rng.below(KEYS as u64) as u32;
                self.called_ns[client] = self.queue.now().0;
                let hdr = self.clients[client].begin(key, value);
                self.ask(hdr);
            }
        }
    }

    fn record(&mut self, done: Hdr) {
        let (key, value) = (done.key.to_string(), done.value.to_string());
        let (cmd, reply): (Vec<&str>, Reply) = match done.op {
            Op::Write => (vec!["SET", &key, &value], Reply::Ok),
            _ if done.value == 0 => (vec!["GET", &key], Reply::Nil),
            _ => (vec!["GET", &key], Reply::bulk(value.as_str())),
        };
        self.history.push(Operation {
            client: done.client as u64,
            ordinal: None,
            call_ns: self.called_ns[done.client],
            return_ns: Some(self.queue.now().0),
            cmd: cmd.into_iter().map(|arg| arg.as_bytes().to_vec()).collect(),
            reply: Some(reply),
            path: None,
        });
    }
}

/// Runs a seed: how many reads the switch answered, or what is wrong.
fn run(seed: u64, drops_late: bool) -> Result<u64, String> {
    let mut rack = Rack::new(seed, drops_late);
    while rack.history.len() < OPERATIONS {
        let Some((_, event)) = rack.queue.next() else { return Err("nothing to do".into()) };
        rack.step(event);
    }
    // What is still under way may have been executed: it has no return.
    for client in 0..CLIENTS {
        let unanswered = |request| rack.clients[client].timeout(request);
        if let Some(hdr) = (0..=OPERATIONS as u32).find_map(unanswered)
            && hdr.op == Op::Write
        {
            rack.record(hdr);
            if let Some(last) = rack.history.last_mut() {
                (last.return_ns, last.reply) = (None, None);
            }
        }
    }
    let report = check(&rack.history, &Options::default()).map_err(|e| e.to_string())?;
    if report.is_ok() { Ok(rack.cache.hits) } else { Err(report.to_string()) }
}

fn main() {
    let mut hits = 0;
    for array in Cache::new().report() {
        println!(
            "stage {}: {}, {} x {} bits",
            array.stage, array.name, array.cells, array.cell_bits
        );
    }
    for seed in 0..500 {
        match run(seed, true) {
            Ok(more) => hits += more,
            Err(why) => return println!("seed {seed}: {why}"),
        }
    }
    println!(
        "500 seeds of {OPERATIONS} operations are linearizable; the switch answered {hits} reads"
    );
    match (0..5_000).find_map(|seed| run(seed, false).err().map(|why| (seed, why))) {
        Some((seed, why)) => println!("without dropping late numbers, seed {seed}: {why}"),
        None => println!("nobody misses the dropping of late numbers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_linearizable_and_the_switch_helps() {
        let hits: u64 = (0..500).map(|seed| run(seed, true).unwrap()).sum();
        assert!(hits > 10_000, "{hits}");
    }

    #[test]
    fn dropping_late_numbers_is_caught() {
        assert!((0..5_000).any(|seed| run(seed, false).is_err()));
    }
}
