//! The messages of a run, and their outcomes at the hosts.

use std::collections::BTreeMap;

use concord_core::hash::hash64;
use concord_transport::{Completion, Delivered, Outcome};

/// The name of a message: its sender, the sender's incarnation, its number.
pub(super) type Name = (u16, u32, u64);

/// The state of a message.
#[derive(Clone, Copy, Debug)]
struct Message {
    to: u16,
    bytes: usize,
    /// The latest time of its outcome, in ns, unless its sender dies before.
    due_ns: u64,
    delivered: u32,
    outcome: Option<Outcome>,
}

/// The messages of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    messages: BTreeMap<Name, Message>,
}

/// The content of a message, which is unique to its salt.
pub(super) fn content(salt: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).map(|word| hash64(salt, &word.to_be_bytes()));
    let mut data: Vec<u8> = words.flat_map(u64::to_be_bytes).collect();
    data.truncate(bytes);
    data
}

/// The salt of a message's content, from its name.
pub(super) fn salt((from, incarnation, number): Name) -> u64 {
    hash64(u64::from(from) << 32 | u64::from(incarnation), &number.to_be_bytes())
}

impl Seen {
    pub(super) fn submitted(&mut self, name: Name, to: u16, bytes: usize, due_ns: u64) {
        let message = Message { to, bytes, due_ns, delivered: 0, outcome: None };
        self.messages.insert(name, message);
    }

    /// Notes that a host received a message.
    ///
    /// # Errors
    /// It was not sent, or not to this host, its content differs, or it was delivered before.
    pub(super) fn delivered(&mut self, at: u16, got: &Delivered) -> Result<(), String> {
        let name = (got.from, got.incarnation, got.number);
        let message = self.messages.get_mut(&name);
        let message = message.ok_or_else(|| format!("host {at} got {name:?}, which none sent"))?;
        if message.to != at || got.data != content(salt(name), message.bytes) {
            return Err(format!("host {at} got another message than {name:?}"));
        }
        message.delivered += 1;
        match (message.delivered, message.outcome) {
            (1, Some(Outcome::Reject(_))) => Err(format!("{name:?} was rejected, and delivered")),
            (1, _) => Ok(()),
            _ => Err(format!("{name:?} was delivered twice")),
        }
    }

    /// Notes the outcome of a message.
    ///
    /// # Errors
    /// It already had an outcome, or the outcome is late or wrong.
    pub(super) fn completed(
        &mut self,
        (from, incarnation): (u16, u32),
        now_ns: u64,
        done: &Completion,
    ) -> Result<(), String> {
        let name = (from, incarnation, done.number);
        let message = self.messages.get_mut(&name).filter(|m| m.to == done.to);
        let message = message.ok_or_else(|| format!("{name:?} has an outcome, and is unknown"))?;
        if let Some(before) = message.outcome {
            return Err(format!("{name:?} has two outcomes: {before:?}, {:?}", done.outcome));
        }
        if now_ns > message.due_ns {
            let late = now_ns - message.due_ns;
            return Err(format!("{name:?} has its outcome {late} ns after its time"));
        }
        message.outcome = Some(done.outcome);
        match (done.outcome, message.delivered) {
            (Outcome::Complete, 0) => Err(format!("{name:?} is complete, and was not delivered")),
            (Outcome::Reject(_), 1..) => Err(format!("{name:?} was delivered, and is rejected")),
            _ => Ok(()),
        }
    }

    /// Notes that a host has died: the outcomes of its messages are no longer expected.
    pub(super) fn died(&mut self, host: u16) {
        let own = (host, 0, 0)..(host + 1, 0, 0);
        for (_, message) in self.messages.range_mut(own) {
            message.due_ns = if message.outcome.is_none() { u64::MAX } else { message.due_ns };
        }
    }

    /// A message without an outcome whose time is over.
    pub(super) fn overdue(&self, now_ns: u64) -> Option<String> {
        let mut without = self.messages.iter().filter(|(_, m)| m.outcome.is_none());
        without.find(|(_, m)| m.due_ns < now_ns).map(|(name, message)| {
            format!("{name:?} to {} has no outcome at {now_ns}, {}", message.to, message.due_ns)
        })
    }

    /// Whether every message has an outcome, or its sender is dead.
    pub(super) fn is_done(&self) -> bool {
        self.messages.values().all(|m| m.outcome.is_some() || m.due_ns == u64::MAX)
    }
}
