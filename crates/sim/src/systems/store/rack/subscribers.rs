//! Clients of a gateway that subscribe, and one that publishes (docs/reference/semantics/pubsub.md,
//! "Publish and subscribe").
//!
//! The messages that subscribers receive are checked in [`super::messages`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use concord_core::{MS, Now, Rng, Sink};
use concord_engine::{resp, resp_scan};
use concord_gateway::{ConnectionId, Gateway};

use super::messages::{Answer, Contact};
use super::socket::Socket;
use super::{Process, Rack, Role, Stage};
use crate::world::Event;

/// The channels. Subscribers choose among these and two patterns.
pub(super) const CHANNELS: [&str; 4] = ["c0", "c1", "c2", "c3"];
pub(super) const TOPICS: [&str; 6] = ["c0", "c1", "c2", "c3", "c*", "c[01]"];
/// The number of connections: two that subscribe, and one that publishes.
pub(super) const LINKS: usize = 3;
pub(super) const PUBLISHER: usize = 2;
/// The id of the first connection; later ones have smaller ids. The ids of other clients count from
/// 1, and the client that caches has the last two.
const FIRST_ID: u64 = u64::MAX - 2;
/// The maximum time between two commands, in ns.
const GAP_NS_MAX: u64 = 20 * MS;
/// The maximum number of awaited replies of a connection when its client sends another command.
const AWAITED_MAX: usize = 8;
/// The maximum length of a message beside its number, in bytes: several packets between gateways.
const PADDING_MAX: u64 = 4_000;
const SHOWN: usize = 200;

/// The command to which a reply belongs.
#[derive(Clone, Debug)]
pub(super) enum Awaited {
    Greeting,
    /// A read, with any result.
    Read,
    /// MULTI, or a command within its transaction.
    Queued,
    Begins {
        topic: usize,
        count: usize,
        contacts: Vec<(usize, Contact)>,
    },
    Ends {
        topic: usize,
        count: usize,
    },
    Published(usize),
    Executed(Vec<usize>),
}

/// A confirmed subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) confirmed_ns: u64,
    /// For each other gateway, the contact with it when the subscription was requested.
    contacts: Vec<(usize, Contact)>,
    /// Whether its end was requested.
    pub(super) is_leaving: bool,
    /// The messages that it received.
    pub(super) got: BTreeSet<usize>,
}

/// A connection.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// The id of the connection at the gateway, if it is open; another one after each connect.
    pub(super) id: Option<ConnectionId>,
    pub(super) socket: Socket,
    pub(super) asked: VecDeque<Awaited>,
    /// The topics to which it is subscribed once all commands that were sent are executed; and
    /// those of them that are confirmed.
    topics: BTreeSet<usize>,
    pub(super) subscriptions: BTreeMap<usize, Subscription>,
    /// The newest message of each publisher, by topic.
    pub(super) newest: BTreeMap<(usize, u64), usize>,
    pub(super) newest_of_all: BTreeMap<u64, usize>,
}

impl Link {
    pub(super) fn subscribe(&mut self, topics: &[usize], contacts: &[(usize, Contact)]) {
        for (is_pattern, word) in [(false, &b"SUBSCRIBE"[..]), (true, b"PSUBSCRIBE")] {
            let is_it = |topic: &&usize| (**topic >= CHANNELS.len()) == is_pattern;
            let topics: Vec<usize> = topics.iter().filter(is_it).copied().collect();
            if topics.is_empty() {
                continue;
            }
            let names = topics.iter().map(|topic| TOPICS[*topic].as_bytes());
            self.socket.send(&[word].into_iter().chain(names).collect::<Vec<&[u8]>>());
            for topic in topics {
                self.topics.insert(topic);
                let (count, contacts) = (self.topics.len(), contacts.to_vec());
                self.asked.push_back(Awaited::Begins { topic, count, contacts });
            }
        }
    }

    fn unsubscribe(&mut self, topic: usize) {
        let is_pattern = topic >= CHANNELS.len();
        let word: &[u8] = if is_pattern { b"PUNSUBSCRIBE" } else { b"UNSUBSCRIBE" };
        self.socket.send(&[word, TOPICS[topic].as_bytes()]);
        self.topics.remove(&topic);
        self.asked.push_back(Awaited::Ends { topic, count: self.topics.len() });
        if let Some(subscription) = self.subscriptions.get_mut(&topic) {
            subscription.is_leaving = true;
        }
    }
}

/// The clients of one gateway.
#[derive(Debug)]
pub(super) struct Subscribers {
    rng: Rng,
    pub(super) incarnation: u64,
    pub(super) links: [Link; LINKS],
    next_id: u64,
    /// The time at which one of them sends its next command, in ns.
    next_ns: u64,
}

impl Subscribers {
    pub(super) fn new(incarnation: u64, rng: Rng) -> Subscribers {
        Subscribers { rng, incarnation, links: Default::default(), next_id: FIRST_ID, next_ns: 0 }
    }

    /// The number of their connections to the gateway.
    pub(super) fn connections() -> usize {
        LINKS
    }

    pub(super) fn connect(&mut self, at: usize, gateway: &mut Gateway, now: Now) -> bool {
        let id = ConnectionId(self.next_id);
        self.next_id -= 1;
        self.links[at] = Link { id: Some(id), ..Link::default() };
        let version: &[u8] = if self.rng.chance(1, 2) { b"2" } else { b"3" };
        self.links[at].socket.send(&[b"HELLO", version]);
        self.links[at].asked.push_back(Awaited::Greeting);
        gateway.connected(now, id, "10.0.0.1:50002")
    }

    /// Transfers data between the gateway and a connection, if it is one of these.
    pub(super) fn serve(
        &mut self,
        id: ConnectionId,
        gateway: &mut Gateway,
        now: Now,
        out: &mut impl Sink,
    ) {
        let Some(link) = self.links.iter_mut().find(|link| link.id == Some(id)) else { return };
        link.socket.carry(id, gateway, now, out);
    }

    /// Changes the subscriptions of a connection.
    fn change(&mut self, at: usize, contacts: &[(usize, Contact)]) {
        let link = &mut self.links[at];
        if !link.asked.is_empty() && !self.rng.chance(1, 4) {
            return;
        }
        let topic = self.rng.below(TOPICS.len() as u64) as usize;
        let other = self.rng.below(TOPICS.len() as u64) as usize;
        match self.rng.below(6) {
            0 | 1 => link.subscribe(&[topic], contacts),
            2 => link.subscribe(&[topic, other], contacts),
            3 => link.unsubscribe(topic),
            4 => {
                link.unsubscribe(topic);
                link.subscribe(&[topic], contacts);
            }
            _ => {
                link.subscribe(&[topic], contacts);
                link.unsubscribe(other);
            }
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.links.iter().any(|link| link.id.is_some() && !link.asked.is_empty())
    }
}

fn wrong(what: &str, bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes).chars().take(SHOWN).collect();
    format!("{what}: {text}")
}

/// The words of a reply or a push message.
fn words(bytes: &[u8]) -> Vec<&[u8]> {
    resp_scan::elements(bytes).map(|part| resp_scan::text(part).unwrap_or_default()).collect()
}

impl Rack<'_> {
    pub(super) fn subscribers(&mut self, node: usize) -> Option<(&mut Gateway, &mut Subscribers)> {
        let Role::Client(process) = &mut self.slots[node].role else { return None };
        let Process::Redis(redis) = &mut ***process else { return None };
        Some((&mut redis.gateway, redis.subscribers.as_mut()?))
    }

    /// Lets one of the clients send a command.
    pub(super) fn subscribers_turn(&mut self, node: usize) {
        let (now_ns, now) = (self.world.now_ns, self.world.clock(node));
        let paused_until_ns = self.slots[node].paused_until_ns;
        let (place, is_rest) = (self.plan.connections + 1, self.stage == Stage::Rest);
        let contacts = self.contacts(node);
        let Some((_, subscribers)) = self.subscribers(node) else { return };
        // An event of an earlier incarnation of the process finds nothing to do.
        if now_ns < subscribers.next_ns || is_rest {
            return;
        }
        let gap_ns = 1 + subscribers.rng.below(GAP_NS_MAX);
        subscribers.next_ns = paused_until_ns.max(now_ns + gap_ns);
        let next_ns = subscribers.next_ns;
        self.world.push(next_ns, Event::Next { node, connection: place });
        if paused_until_ns > now_ns {
            return;
        }
        let Some((gateway, subscribers)) = self.subscribers(node) else { return };
        let at = if subscribers.rng.chance(1, 4) {
            subscribers.rng.below(PUBLISHER as u64) as usize
        } else {
            PUBLISHER
        };
        // Now and then a client disconnects, and connects again.
        if at != PUBLISHER
            && let Some(id) = subscribers.links[at].id
            && subscribers.rng.chance(1, 40)
        {
            gateway.closed(id);
            subscribers.links[at] = Link::default();
        }
        if subscribers.links[at].id.is_none() && !subscribers.connect(at, gateway, now) {
            self.broken = Some("a gateway refuses a client that subscribes".into());
            return;
        }
        if at == PUBLISHER {
            self.publish(node);
        } else {
            subscribers.change(at, &contacts);
        }
        self.serve_subscribers(node);
    }

    /// Lets the publisher send a message, or several.
    fn publish(&mut self, node: usize) {
        let Some((_, subscribers)) = self.subscribers(node) else { return };
        let mut rng = subscribers.rng.fork();
        if subscribers.links[PUBLISHER].asked.len() >= AWAITED_MAX {
            return;
        }
        let in_multi = rng.chance(1, 6);
        let count = if in_multi || rng.chance(1, 4) { rng.between(1, 4) } else { 1 };
        let messages: Vec<(usize, usize)> = (0..count)
            .map(|_| rng.below(CHANNELS.len() as u64) as usize)
            .map(|c| (self.number(node, c), c))
            .collect();
        let key = format!("k{}", rng.below(self.plan.keys));
        let Some((_, subscribers)) = self.subscribers(node) else { return };
        let link = &mut subscribers.links[PUBLISHER];
        if in_multi {
            link.socket.send(&[b"MULTI"]);
            link.asked.push_back(Awaited::Queued);
        }
        // After a read it waits for the rack.
        if rng.chance(1, 8) {
            link.socket.send(&[b"GET", key.as_bytes()]);
            link.asked.push_back(if in_multi { Awaited::Queued } else { Awaited::Read });
        }
        for (number, channel) in &messages {
            let padding = if rng.chance(1, 16) { rng.below(PADDING_MAX) as usize } else { 0 };
            let text = format!("{number}:{}", "x".repeat(padding));
            link.socket.send(&[b"PUBLISH", CHANNELS[*channel].as_bytes(), text.as_bytes()]);
            link.asked.push_back(if in_multi {
                Awaited::Queued
            } else {
                Awaited::Published(*number)
            });
        }
        if in_multi {
            link.socket.send(&[b"EXEC"]);
            link.asked.push_back(Awaited::Executed(messages.iter().map(|(n, _)| *n).collect()));
        }
    }

    /// Transfers data between the clients and their gateway.
    pub(super) fn serve_subscribers(&mut self, node: usize) {
        let now = self.world.clock(node);
        let Role::Client(process) = &mut self.slots[node].role else { return };
        let (process, mut out) = process.input(&mut self.outgoing);
        if let Process::Redis(redis) = process
            && let Some(subscribers) = &mut redis.subscribers
        {
            for at in 0..LINKS {
                if let Some(id) = subscribers.links[at].id {
                    subscribers.serve(id, &mut redis.gateway, now, &mut out);
                }
            }
        }
        self.after(node, 0);
    }

    /// Handles the messages and replies that the clients received; those of the publisher last.
    pub(super) fn take_messages(&mut self, node: usize) {
        for at in 0..LINKS {
            while let Some((gateway, subscribers)) = self.subscribers(node) {
                let link = &mut subscribers.links[at];
                let Some(value) = link.socket.next_value() else {
                    if link.id.is_some_and(|id| gateway.wants_close(id)) {
                        self.broken = Some("a gateway ends the connection of a subscriber".into());
                    }
                    break;
                };
                self.world.note(6, node, &value);
                if let Err(why) = self.take_value(node, at, &value) {
                    let text = format!("node {node}, connection {at}: {}", wrong(&why, &value));
                    self.broken = Some(text);
                    return;
                }
            }
        }
    }

    fn take_value(&mut self, node: usize, at: usize, value: &[u8]) -> Result<(), String> {
        let said = words(value);
        match said[..] {
            [b"message", channel, payload] => {
                return self.heard(node, at, channel, channel, payload);
            }
            [b"pmessage", pattern, channel, payload] => {
                return self.heard(node, at, pattern, channel, payload);
            }
            _ => {}
        }
        let now_ns = self.world.now_ns;
        let Some((_, subscribers)) = self.subscribers(node) else { return Ok(()) };
        let link = &mut subscribers.links[at];
        let is_error = value.starts_with(b"-");
        match link.asked.pop_front().ok_or("a reply that nobody waits for")? {
            Awaited::Greeting | Awaited::Queued if is_error => {
                return Err("a client that subscribes or publishes is refused".into());
            }
            Awaited::Greeting | Awaited::Queued | Awaited::Read => {}
            Awaited::Begins { topic, count, contacts } => {
                confirms(&said, ["subscribe", "psubscribe"], topic, count)?;
                let ends = |asked: &Awaited| matches!(asked, Awaited::Ends { topic: t, .. } if *t == topic);
                let is_leaving = link.asked.iter().any(ends);
                let got = BTreeSet::new();
                link.subscriptions.entry(topic).or_insert(Subscription {
                    confirmed_ns: now_ns,
                    contacts,
                    is_leaving,
                    got,
                });
            }
            Awaited::Ends { topic, count } => {
                confirms(&said, ["unsubscribe", "punsubscribe"], topic, count)?;
                link.subscriptions.remove(&topic);
            }
            Awaited::Published(number) => {
                let receivers =
                    value.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n"));
                let receivers = receivers.and_then(resp::number).ok_or("no reply to PUBLISH")?;
                return self.published(number, Some(receivers as u64));
            }
            Awaited::Executed(numbers) if is_error => {
                for number in numbers {
                    let message = &mut self.board.messages[number];
                    message.answer = Answer::Never;
                    if message.delivered > 0 {
                        return Err("its messages were published".into());
                    }
                }
            }
            Awaited::Executed(numbers) => {
                for number in numbers {
                    self.published(number, None)?;
                }
            }
        }
        Ok(())
    }
}

impl Subscription {
    /// Whether this gateway, at `node`, must receive the messages of the gateway `by`: the two have
    /// heard each other ever since the subscription was requested.
    pub(super) fn hears(&self, node: usize, by: usize, contact: Contact) -> bool {
        let is_there = contact.breaks.iter().all(|(_, is_there)| *is_there);
        let mut before = self.contacts.iter().filter(|(other, _)| *other == by);
        node == by || is_there && before.any(|(_, before)| *before == contact)
    }
}

/// Checks the confirmation of a topic: its word, for channels or for patterns, and its count.
fn confirms(said: &[&[u8]], by: [&str; 2], topic: usize, count: usize) -> Result<(), String> {
    let word = by[usize::from(topic >= CHANNELS.len())];
    let count = count.to_string();
    let wanted = [word.as_bytes(), TOPICS[topic].as_bytes(), count.as_bytes()];
    if said == wanted { Ok(()) } else { Err(format!("no confirmation {word} {}", TOPICS[topic])) }
}
