//! A load over the rack's own protocol: client machines that send batches of packets (GSO) over
//! UDP.

use concord_client::{Class, Client, ClientConfig, Outcome, Request};
use concord_core::{Instant, MS, Machine, Now, RequestNumber, Rng, SEC, hash::object_id};
use concord_engine::CommandBuf;
use concord_runtime::poller::{Event, Interest, Poller, Token};
use concord_runtime::udp::{Inbox, Outbox, Socket};
use concord_runtime::{Context, Error, clock};
use concord_wire::{Addr, Flags, Sink, WINDOW_MAX};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use rustix::event::epoll;

use super::load::{Answer, Ask, Target};

/// The minimum time before a retry: packets are not lost on this host, and a capped replica may
/// stall for long, so that a retry would only be more load.
const RETRY_NS_MIN: u64 = 5 * SEC;
const DEADLINE_NS: u64 = 20 * SEC;
/// The maximum number of unanswered reads of one session.
const READS_MAX: usize = 65_536;
/// The maximum number of receive calls in one iteration, so that queued packets are sent in
/// between.
const RECEIVES_MAX: usize = 8;

/// The requests of an iteration, which are sent together once the last one is made. This thread
/// takes so long for one that batches sent as they fill would reach an idle switch one by one, and
/// the switch would split each among the replicas.
#[derive(Debug, Default)]
struct Burst {
    bytes: Vec<u8>,
    /// The destination of each packet, and its end in `bytes`.
    packets: Vec<(Addr, usize)>,
}

impl Sink for Burst {
    fn send(&mut self, to: Addr, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.packets.push((to, self.bytes.len()));
    }
}

impl Burst {
    fn release(&mut self, out: &mut impl Sink) {
        let mut begin = 0;
        for (to, end) in self.packets.drain(..) {
            out.send(to, &self.bytes[begin..end]);
            begin = end;
        }
        self.bytes.clear();
    }
}

/// One client machine with its socket.
#[derive(Debug)]
struct Session {
    client: Client,
    inbox: Inbox,
    burst: Burst,
    outbox: Outbox,
    slots: HashMap<RequestNumber, u32, FxBuildHasher>,
}

/// The client machines that share the load.
pub struct Native {
    sessions: Vec<Session>,
    poller: Poller,
    raw: Vec<epoll::Event>,
    events: Vec<Event>,
    command: CommandBuf,
    /// The pause before replies are received, in ns: it makes longer batches, for a rack that is
    /// slower than this thread.
    pause_ns: u64,
}

impl Native {
    /// `sessions` client machines that use the switch at `switch`.
    ///
    /// # Errors
    /// If the system refuses a socket.
    pub fn new(switch: Addr, sessions: u32, pause_ns: u64) -> Result<Native, Error> {
        let poller = Poller::new()?;
        let mut all = Vec::new();
        for token in 0..sessions {
            let socket = Socket::bind(Addr { ip: switch.ip, port: 0 })?;
            poller.add(&*socket, Token(u64::from(token)), Interest::READ)?;
            let addr = socket.addr().cannot("see the address of a socket")?;
            let config = ClientConfig {
                window: WINDOW_MAX,
                reads_max: READS_MAX,
                write_deadline_ns: DEADLINE_NS,
                read_deadline_ns: DEADLINE_NS,
                retry_min_ns: RETRY_NS_MIN,
                retry_max_ns: DEADLINE_NS,
                ..ClientConfig::new(addr, switch)
            };
            let seed = clock::entropy().cannot("draw a seed")?;
            all.push(Session {
                client: Client::new(config, Rng::new(seed)),
                inbox: Inbox::new(socket.clone()),
                burst: Burst::default(),
                outbox: Outbox::new(socket),
                slots: HashMap::default(),
            });
        }
        let (raw, events) = (Vec::new(), Vec::new());
        Ok(Native { sessions: all, poller, raw, events, command: CommandBuf::new(), pause_ns })
    }

    fn wait(&mut self, until: Instant) -> Result<(), Error> {
        if self.pause_ns > 0 {
            std::thread::sleep(std::time::Duration::from_nanos(self.pause_ns));
        }
        let deadlines = self.sessions.iter().map(|s| s.client.deadline().at);
        let until = deadlines.fold(until, Instant::min);
        let now = clock::now().instant;
        // The poller counts in ms: it does not wait for a time before its next one.
        let until = if until.since(now) < MS { now } else { until };
        self.poller.wait(now, until, &mut self.raw, &mut self.events)
    }
}

impl Target for Native {
    fn submit(&mut self, now: Now, ask: Ask<'_>) -> Result<bool, Error> {
        let count = self.sessions.len();
        let session = &mut self.sessions[ask.slot as usize % count];
        let (class, command) = match ask.value {
            None => (Class::Read, self.command.encode(1, [&b"GET"[..], ask.key])),
            Some(value) => (Class::Write, self.command.encode(1, [&b"SET"[..], ask.key, value])),
        };
        let request = Request {
            class,
            obj_id: object_id(ask.key),
            further: concord_wire::FurtherIds::NONE,
            flags: Flags::default(),
            after: None,
            command,
        };
        match session.client.submit(now, request, &mut session.burst) {
            Ok(number) => {
                session.slots.insert(number, ask.slot);
                Ok(true)
            }
            Err(concord_client::SubmitError::Full) => Ok(false),
            Err(e) => Err(Error::new(e.to_string())),
        }
    }

    fn iterate(&mut self, until: Instant, answers: &mut Vec<Answer>) -> Result<(), Error> {
        for session in &mut self.sessions {
            session.burst.release(&mut session.outbox);
            session.outbox.flush();
        }
        self.wait(until)?;
        for session in &mut self.sessions {
            session.receive();
            let now = clock::now();
            if session.client.deadline().at <= now.instant {
                session.client.tick(now, &mut session.outbox);
            }
            while let Some(done) = session.client.poll() {
                if let Some(slot) = session.slots.remove(&done.request) {
                    // Replies are RESP, in which only errors begin with a minus sign.
                    let ok = done.outcome == Outcome::Reply && done.reply.first() != Some(&b'-');
                    answers.push(Answer { slot, ok, fast: done.trace.is_fast() });
                }
                session.client.give_back(done.reply);
            }
            session.outbox.flush();
        }
        Ok(())
    }
}

impl Session {
    fn receive(&mut self) {
        for _ in 0..RECEIVES_MAX {
            if self.inbox.receive() == 0 {
                return;
            }
            // The clock is read after the packets were received (trap T1).
            let now = clock::now();
            for mut train in self.inbox.trains() {
                let from = train.from;
                for message in train.messages() {
                    self.client.handle(now, from, message, &mut self.outbox);
                }
            }
        }
    }
}
