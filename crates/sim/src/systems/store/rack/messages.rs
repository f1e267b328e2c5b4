//! The messages that clients of gateways publish, and those that subscribers receive
//! (docs/reference/semantics/pubsub.md, "Publish and subscribe").
//!
//! Each message has a number of its own, by which its receiver finds out who published it, when,
//! and whether the command was answered. Gateways keep their promises while they hear each other:
//! what a subscription receives of another gateway's messages is checked unless one of the two has
//! taken the other for gone since the subscription was requested. Once the rack is at rest all
//! gateways hear each other again, and every subscription receives everything.

use concord_core::{MS, SEC, US};
use concord_engine::resp;

use super::gateway::Redis;
use super::subscribers::{Awaited, CHANNELS, LINKS, PUBLISHER, TOPICS};
use super::{Process, Rack, Role};
use crate::systems::store::fault::{Fault, Node};

/// The maximum time until gateways know each other's subscribers after all faults have ended, in
/// ns: the time until a silence is noticed, and a keepalive.
const HEARD_NS: u64 = 2_500 * MS;
/// The maximum time until a client has its answers when the rack is at rest, in ns.
const ANSWERED_NS_MAX: u64 = 6 * SEC;

/// Whether messages to a channel go to the subscribers of a topic.
fn goes_to(channel: usize, topic: usize) -> bool {
    match topic {
        4 => true,
        5 => channel < 2,
        _ => channel == topic,
    }
}

/// How often a gateway took another one for gone or restarted, and whether it counts as there now.
pub(super) type Breaks = (u64, bool);

/// The incarnations of two gateways, and how often each has taken the other for gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contact {
    incarnations: [u64; 2],
    pub(super) breaks: [Breaks; 2],
}

/// A published message and its answer.
#[derive(Debug)]
pub(super) struct Message {
    node: usize,
    /// The incarnation of the gateway to which its publisher is connected.
    incarnation: u64,
    channel: usize,
    sent_ns: u64,
    /// For each other gateway, how often its gateway had taken it for gone by then.
    breaks: Vec<Breaks>,
    pub(super) answer: Answer,
    /// The number of subscriptions that received it.
    pub(super) delivered: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Awaited,
    /// It was published. With the gateways that must have received it by then.
    Published(Vec<usize>),
    /// It will not be published: its transaction was not executed.
    Never,
}

/// The messages published in a run.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) messages: Vec<Message>,
    incarnations: u64,
    /// Whether all gateways hear each other for good: each message goes to each subscription.
    is_final: bool,
}

impl Board {
    /// The number of a gateway's new incarnation.
    pub(super) fn begin_incarnation(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }
}

fn position(names: &[&str], name: &[u8]) -> Option<usize> {
    names.iter().position(|own| own.as_bytes() == name)
}

impl Rack<'_> {
    fn redis(&self, node: usize) -> Option<&Redis> {
        let Role::Client(process) = &self.slots[node].role else { return None };
        let Process::Redis(redis) = &***process else { return None };
        Some(redis)
    }

    fn incarnation(&self, node: usize) -> u64 {
        self.redis(node).and_then(|redis| redis.subscribers.as_ref()).map_or(0, |s| s.incarnation)
    }

    fn breaks(&self, node: usize, other: usize) -> Breaks {
        self.redis(node).map_or((0, false), |redis| redis.gateway.breaks_with(other as u16))
    }

    fn contact(&self, node: usize, other: usize) -> Contact {
        Contact {
            incarnations: [self.incarnation(node), self.incarnation(other)],
            breaks: [self.breaks(node, other), self.breaks(other, node)],
        }
    }

    pub(super) fn contacts(&self, node: usize) -> Vec<(usize, Contact)> {
        let others = self.hearing().into_iter().filter(|other| *other != node);
        others.map(|other| (other, self.contact(node, other))).collect()
    }

    /// The number of a new message.
    pub(super) fn number(&mut self, node: usize, channel: usize) -> usize {
        let breaks = self.hearing().into_iter().map(|other| self.breaks(node, other)).collect();
        self.totals.redis.published += 1;
        self.board.messages.push(Message {
            node,
            incarnation: self.incarnation(node),
            channel,
            sent_ns: self.world.now_ns,
            breaks,
            answer: Answer::Awaited,
            delivered: 0,
        });
        self.board.messages.len() - 1
    }

    /// A subscription receives a message.
    pub(super) fn heard(
        &mut self,
        node: usize,
        at: usize,
        topic: &[u8],
        channel: &[u8],
        payload: &[u8],
    ) -> Result<(), String> {
        let topic = position(&TOPICS, topic).ok_or("an unknown subscription")?;
        let number = payload.split(|b| *b == b':').next().and_then(resp::number);
        let number = number.and_then(|n| usize::try_from(n).ok()).ok_or("an unknown message")?;
        let message = self.board.messages.get_mut(number).ok_or("a message that nobody sent")?;
        message.delivered += 1;
        if position(&CHANNELS, channel) != Some(message.channel) || !goes_to(message.channel, topic)
        {
            return Err("a message of another channel".into());
        }
        let (by, incarnation) = (message.node, message.incarnation);
        let had_it = match &message.answer {
            Answer::Never => return Err("a message of a transaction that was not executed".into()),
            Answer::Published(had_it) => had_it.contains(&node),
            Answer::Awaited => false,
        };
        self.totals.redis.delivered += 1;
        let contact = self.contact(node, by);
        let Some((_, subscribers)) = self.subscribers(node) else { return Ok(()) };
        let link = &mut subscribers.links[at];
        let newest = link.newest.insert((topic, incarnation), number);
        if newest.is_some_and(|newest| newest >= number) {
            return Err("a message twice, or behind a later one".into());
        }
        let newest = link.newest_of_all.insert(incarnation, number);
        if newest.is_some_and(|newest| newest > number) {
            return Err("a message behind a later one of its publisher".into());
        }
        let subscription = link.subscriptions.get_mut(&topic);
        let subscription = subscription.ok_or("a message that was not subscribed to")?;
        subscription.got.insert(number);
        if had_it && subscription.hears(node, by, contact) {
            return Err("a message that comes after its PUBLISH was answered".into());
        }
        Ok(())
    }

    /// PUBLISH or EXEC was answered: all gateways that must have the message have it.
    pub(super) fn published(
        &mut self,
        number: usize,
        receivers: Option<u64>,
    ) -> Result<(), String> {
        let nodes = self.hearing();
        let message = &self.board.messages[number];
        let (by, channel, sent_ns) = (message.node, message.channel, message.sent_ns);
        let heard = nodes.iter().zip(&message.breaks);
        let heard = heard.filter(|(other, before)| self.breaks(by, **other) == **before);
        let had_it: Vec<usize> = heard.map(|(other, _)| *other).collect();
        self.board.messages[number].answer = Answer::Published(had_it);
        let (mut all, is_final) = (0, self.board.is_final);
        for node in nodes {
            let contact = self.contact(node, by);
            let Some((_, subscribers)) = self.subscribers(node) else { continue };
            for (at, link) in subscribers.links.iter().enumerate() {
                let to = link.subscriptions.iter().filter(|(topic, _)| goes_to(channel, **topic));
                for (topic, subscription) in to {
                    all += 1;
                    let must = is_final
                        || subscription.confirmed_ns < sent_ns
                            && !subscription.is_leaving
                            && subscription.hears(node, by, contact);
                    if must && !subscription.got.contains(&number) {
                        return Err(format!(
                            "message {number} was published at {} us, and connection {at} of node {node} did not get it, \
                             which had subscribed to {} at {} us",
                            sent_ns / US,
                            TOPICS[*topic],
                            subscription.confirmed_ns / US
                        ));
                    }
                }
            }
        }
        if is_final && receivers.is_some_and(|receivers| receivers != all) {
            return Err(format!("there are {all} subscriptions"));
        }
        Ok(())
    }

    /// Checks at rest that all requests are answered, and that each new message reaches all
    /// subscribers. Returns a violation otherwise.
    pub(super) fn run_subscribed(&mut self) -> Option<String> {
        let nodes = self.hearing();
        if nodes.is_empty() {
            return None;
        }
        let until_ns = self.world.now_ns + HEARD_NS;
        while self.world.now_ns < until_ns {
            if let Some(text) = self.next_event() {
                return Some(text);
            }
        }
        if let Some(text) = self.without_cause().or_else(|| self.run_to_answers(&nodes)) {
            return Some(text);
        }
        // Clients that were not connected before are connected now.
        for &node in &nodes {
            let (now, contacts) = (self.world.clock(node), self.contacts(node));
            let Some((gateway, subscribers)) = self.subscribers(node) else { continue };
            for at in 0..LINKS {
                if subscribers.links[at].id.is_none() && !subscribers.connect(at, gateway, now) {
                    return Some("a gateway refuses a client that subscribes".into());
                }
            }
            subscribers.links[1].subscribe(&[0, TOPICS.len() - 1], &contacts);
            self.serve_subscribers(node);
        }
        if let Some(text) = self.run_to_answers(&nodes) {
            return Some(text);
        }
        self.board.is_final = true;
        for &node in &nodes {
            let numbers: Vec<usize> =
                (0..CHANNELS.len()).map(|channel| self.number(node, channel)).collect();
            let Some((_, subscribers)) = self.subscribers(node) else { continue };
            let link = &mut subscribers.links[PUBLISHER];
            for (number, channel) in numbers.into_iter().zip(CHANNELS) {
                let text = format!("{number}:");
                link.socket.send(&[b"PUBLISH", channel.as_bytes(), text.as_bytes()]);
                link.asked.push_back(Awaited::Published(number));
            }
            self.serve_subscribers(node);
        }
        self.run_to_answers(&nodes)
    }

    /// Runs until all requests are answered. Returns a violation if that never happens.
    fn run_to_answers(&mut self, nodes: &[usize]) -> Option<String> {
        let until_ns = self.world.now_ns + ANSWERED_NS_MAX;
        let is_waiting = |rack: &mut Self| {
            nodes
                .iter()
                .find(|n| rack.subscribers(**n).is_some_and(|(_, s)| s.is_waiting()))
                .copied()
        };
        while let Some(node) = is_waiting(self) {
            if self.world.now_ns > until_ns {
                let name = self.name_of(node);
                let links = self.subscribers(node).map(|(_, s)| {
                    s.links.iter().map(|link| link.asked.front().cloned()).collect::<Vec<_>>()
                });
                return Some(self.standing(&format!(
                    "a client of {name} that subscribes or publishes gets no answer: {links:?}"
                )));
            }
            if let Some(text) = self.next_event() {
                return Some(text);
            }
        }
        self.broken.take()
    }

    /// Checks that no gateway has taken another one for gone if nothing kept them from hearing each
    /// other. Returns a violation otherwise.
    fn without_cause(&self) -> Option<String> {
        let is_cause = |fault: &Fault| match fault {
            Fault::LossBurst { .. } | Fault::Split { .. } | Fault::RestartClient { .. } => true,
            _ => fault.nodes().iter().any(|node| matches!(node, Node::Client(_))),
        };
        if self.plan.loss_ppm > 0 || self.plan.faults.iter().any(|f| is_cause(&f.fault)) {
            return None;
        }
        let nodes = self.hearing();
        let mut pairs = nodes.iter().flat_map(|a| nodes.iter().map(|b| (*a, *b)));
        let (one, other) = pairs.find(|(a, b)| self.breaks(*a, *b).0 > 0)?;
        let (one, other) = (self.name_of(one), self.name_of(other));
        Some(format!("{one} took {other} for gone, and nothing was between them"))
    }
}
