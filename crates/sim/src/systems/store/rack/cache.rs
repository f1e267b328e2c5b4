//! A client of a gateway that keeps what it has read until it is told that it has changed (CLIENT
//! TRACKING).
//!
//! Once the rack is at rest, another client of the same gateway reads all of it again. The client
//! must be told of every difference within the time that the gateway needs to look at each key; a
//! stale value that it still has after that would stay forever.

use std::collections::{BTreeMap, VecDeque};

use concord_core::{MS, Now, Rng, SEC, Sink};
use concord_engine::resp_scan;
use concord_gateway::{ConnectionId, Gateway};

use super::socket::Socket;
use super::{Process, Rack, Role, Stage};
use crate::systems::store::workload::draw_read;
use crate::world::Event;

/// The maximum time between two reads, in ns.
const GAP_NS_MAX: u64 = 20 * MS;
/// The maximum time until the client is told of a change, in ns: each key is looked at once per
/// second, and the answer takes time.
const TOLD_NS_MAX: u64 = 2_500 * MS;
/// The maximum time until a client has its answers when the rack is at rest, in ns.
const ANSWERED_NS_MAX: u64 = 6 * SEC;
/// The ids of its connections; those of other clients count from 1.
const IDS: [ConnectionId; 2] = [ConnectionId(u64::MAX - 1), ConnectionId(u64::MAX)];
const SHOWN: usize = 200;

type Cmd = Vec<Vec<u8>>;

/// The request to which a reply belongs.
#[derive(Clone, Debug)]
enum Awaited {
    Greeting,
    Read(Cmd),
}

/// A connection of the client.
#[derive(Debug, Default)]
struct Link {
    is_open: bool,
    socket: Socket,
    asked: VecDeque<Awaited>,
}

impl Link {
    fn ask(&mut self, words: &[&[u8]], asked: Awaited) {
        self.socket.send(words);
        self.asked.push_back(asked);
    }

    fn read(&mut self, cmd: Cmd) {
        let words: Vec<&[u8]> = cmd.iter().map(Vec::as_slice).collect();
        self.ask(&words, Awaited::Read(cmd.clone()));
    }
}

/// The client with its cache, and the client that reads the same keys at rest.
#[derive(Debug)]
pub(super) struct Cache {
    rng: Rng,
    /// The connection of the client, and that of the other client.
    links: [Link; 2],
    /// The cached replies, by command.
    held: BTreeMap<Cmd, Vec<u8>>,
    /// The replies that the other client got, by command.
    found: BTreeMap<Cmd, Vec<u8>>,
    /// The time of the next read, in ns.
    next_ns: u64,
}

impl Cache {
    pub(super) fn new(rng: Rng) -> Cache {
        let (held, found) = (BTreeMap::new(), BTreeMap::new());
        Cache { rng, links: Default::default(), held, found, next_ns: 0 }
    }

    /// The number of connections to the gateway.
    pub(super) fn connections() -> usize {
        IDS.len()
    }

    fn connect(&mut self, at: usize, gateway: &mut Gateway, now: Now) -> bool {
        self.links[at] = Link { is_open: true, ..Link::default() };
        let link = &mut self.links[at];
        link.ask(&[b"HELLO", b"3"], Awaited::Greeting);
        if at == 0 {
            self.held.clear();
            link.ask(&[b"CLIENT", b"TRACKING", b"ON"], Awaited::Greeting);
        }
        gateway.connected(now, IDS[at], "10.0.0.1:50001")
    }

    /// Handles a connection if it is one of these; returns whether it is.
    pub(super) fn serve(
        &mut self,
        id: ConnectionId,
        gateway: &mut Gateway,
        now: Now,
        out: &mut impl Sink,
    ) -> bool {
        let Some(at) = IDS.iter().position(|own| *own == id) else { return false };
        let link = &mut self.links[at];
        link.socket.carry(id, gateway, now, out);
        if gateway.wants_close(id) {
            gateway.closed(id);
            *link = Link::default();
            if at == 0 {
                self.held.clear();
            }
        }
        true
    }

    /// Handles the data that a connection has received.
    fn take(&mut self, at: usize) -> Result<(), String> {
        while let Some(value) = self.links[at].socket.next_value() {
            let bytes = &value[..];
            if bytes.starts_with(b">") {
                self.forget(bytes)?;
                continue;
            }
            let asked = self.links[at].asked.pop_front();
            match asked.ok_or_else(|| wrong("a reply that nobody waits for", bytes))? {
                Awaited::Greeting if bytes.starts_with(b"-") => {
                    return Err(wrong("a client that caches is refused", bytes));
                }
                // An error is not cached: the client may ask again.
                Awaited::Read(_) if bytes.starts_with(b"-") => {}
                Awaited::Greeting => {}
                Awaited::Read(cmd) if at == 0 => drop(self.held.insert(cmd, value)),
                Awaited::Read(cmd) => drop(self.found.insert(cmd, value)),
            }
        }
        Ok(())
    }

    /// Handles `>2 invalidate [key ...]`; null instead of keys stands for all keys.
    fn forget(&mut self, push: &[u8]) -> Result<(), String> {
        let parts: Vec<&[u8]> = resp_scan::elements(push).collect();
        match parts[..] {
            [b"$10\r\ninvalidate\r\n", b"_\r\n"] => self.held.clear(),
            [b"$10\r\ninvalidate\r\n", keys] if keys.starts_with(b"*") => {
                for key in resp_scan::elements(keys).filter_map(resp_scan::text) {
                    self.held.retain(|cmd, _| cmd[1] != key);
                }
            }
            _ => return Err(wrong("a push of another kind", push)),
        }
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        self.links.iter().any(|link| link.is_open && !link.asked.is_empty())
    }

    /// The cached replies that are stale.
    fn stale(&self) -> BTreeMap<Cmd, Vec<u8>> {
        let is_stale = |(cmd, reply): &(&Cmd, &Vec<u8>)| {
            self.found.get(*cmd).is_some_and(|found| sorted(cmd, found) != sorted(cmd, reply))
        };
        self.held.iter().filter(is_stale).map(|(cmd, reply)| (cmd.clone(), reply.clone())).collect()
    }
}

fn wrong(what: &str, bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes).chars().take(SHOWN).collect();
    format!("{what}: {text}")
}

/// A reply in a normal form, if its elements have no order.
fn sorted(cmd: &Cmd, reply: &[u8]) -> Vec<Vec<u8>> {
    let mut elements = vec![reply.to_vec()];
    if cmd[0] == b"SMEMBERS" || cmd[0] == b"HGETALL" {
        elements = resp_scan::elements(reply).map(<[u8]>::to_vec).collect();
        elements.sort();
    }
    elements
}

impl Rack<'_> {
    fn cache(&mut self, node: usize) -> Option<(&mut Gateway, &mut Cache)> {
        let Role::Client(process) = &mut self.slots[node].role else { return None };
        let Process::Redis(redis) = &mut ***process else { return None };
        Some((&mut redis.gateway, redis.cache.as_mut()?))
    }

    /// Lets the client make its next read.
    pub(super) fn cache_turn(&mut self, node: usize) {
        let (now_ns, now) = (self.world.now_ns, self.world.clock(node));
        let (paused_until_ns, mix) = (self.slots[node].paused_until_ns, self.mix());
        let (place, is_rest) = (self.plan.connections, self.stage == Stage::Rest);
        let Some((gateway, cache)) = self.cache(node) else { return };
        // An event of an earlier incarnation of the process finds nothing to do.
        if now_ns < cache.next_ns || is_rest {
            return;
        }
        cache.next_ns = paused_until_ns.max(now_ns + 1 + cache.rng.below(GAP_NS_MAX));
        let next_ns = cache.next_ns;
        let mut is_refused = false;
        if paused_until_ns <= now_ns {
            if !cache.links[0].is_open {
                is_refused = !cache.connect(0, gateway, now);
            }
            let cmd = draw_read(&mut cache.rng, &mix).cmd;
            // Mostly one read after the other: of two at once, the one that is answered last may
            // have executed first.
            if !cache.is_waiting() || cache.rng.chance(1, 4) {
                cache.links[0].read(cmd);
                self.totals.redis.cached += 1;
            }
        }
        if is_refused {
            self.broken = Some("a gateway refuses a client that caches".into());
        }
        self.world.push(next_ns, Event::Next { node, connection: place });
        self.serve_cache(node);
    }

    /// Transfers data between the client and its gateway.
    fn serve_cache(&mut self, node: usize) {
        let now = self.world.clock(node);
        let Role::Client(process) = &mut self.slots[node].role else { return };
        let (process, mut out) = process.input(&mut self.outgoing);
        if let Process::Redis(redis) = process
            && let Some(cache) = &mut redis.cache
        {
            for (id, link) in IDS.into_iter().zip(0..) {
                if cache.links[link].is_open {
                    cache.serve(id, &mut redis.gateway, now, &mut out);
                }
            }
        }
        self.after(node, 0);
    }

    /// Handles the replies and invalidations that the client received.
    pub(super) fn take_cached(&mut self, node: usize) {
        let Some((_, cache)) = self.cache(node) else { return };
        let taken = cache.take(0).and_then(|()| cache.take(1));
        if let Err(why) = taken {
            self.broken = Some(why);
        }
    }

    /// Checks at rest that no client caches a stale reply; returns a violation if one does.
    pub(super) fn run_cached(&mut self) -> Option<String> {
        let nodes: Vec<usize> =
            (0..self.slots.len()).filter(|n| self.cache(*n).is_some()).collect();
        if nodes.is_empty() {
            return None;
        }
        let suspected = match self.look_again(&nodes) {
            Ok(suspected) => suspected,
            Err(text) => return Some(text),
        };
        let until_ns = self.world.now_ns + TOLD_NS_MAX;
        while self.world.now_ns < until_ns {
            if let Some(text) = self.next_event() {
                return Some(text);
            }
        }
        let stale = match self.look_again(&nodes) {
            Ok(stale) => stale,
            Err(text) => return Some(text),
        };
        let kept = stale.iter().find(|(place, reply)| suspected.get(*place) == Some(*reply));
        kept.map(|((node, cmd), reply)| {
            let text = |bytes: &[u8]| -> String {
                String::from_utf8_lossy(bytes).chars().take(SHOWN).collect()
            };
            let cmd = text(&cmd.join(&b' '));
            let reply = text(reply);
            self.standing(&format!(
                "a client of node {node} keeps {reply:?} of {cmd}, and it is another"
            ))
        })
    }

    /// The stale replies in the caches of these nodes.
    fn look_again(&mut self, nodes: &[usize]) -> Result<BTreeMap<(usize, Cmd), Vec<u8>>, String> {
        for &node in nodes {
            let now = self.world.clock(node);
            let Some((gateway, cache)) = self.cache(node) else { continue };
            cache.found.clear();
            if !cache.links[1].is_open && !cache.connect(1, gateway, now) {
                return Err("a gateway refuses a client that looks".into());
            }
            let all: Vec<Cmd> = cache.held.keys().cloned().collect();
            all.into_iter().for_each(|cmd| cache.links[1].read(cmd));
            self.serve_cache(node);
        }
        let until_ns = self.world.now_ns + ANSWERED_NS_MAX;
        let is_waiting = |rack: &mut Self| {
            nodes.iter().any(|n| rack.cache(*n).is_some_and(|(_, c)| c.is_waiting()))
        };
        while is_waiting(self) {
            if self.world.now_ns > until_ns {
                return Err(self.standing("a client that looks what is cached gets no answer"));
            }
            if let Some(text) = self.next_event() {
                return Err(text);
            }
        }
        let mut stale = BTreeMap::new();
        for &node in nodes {
            let Some((_, cache)) = self.cache(node) else { continue };
            stale.extend(cache.stale().into_iter().map(|(cmd, reply)| ((node, cmd), reply)));
        }
        Ok(stale)
    }
}
