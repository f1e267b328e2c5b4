//! WATCH: `CONCORD.DIGEST` answers a digest of each of its keys, and `CONCORD.WATCHED` at the
//! beginning of a `CONCORD.EXEC` has the digests that keys must still have. A digest covers the
//! value, and when it is due; a key that was changed and changed back counts as unchanged, unless
//! its client has read it in between: gateways see to that.
//!
//! A digest hangs on nothing but what the key holds (Redis' DEBUG DIGEST-VALUE), so that it may be
//! read at one replica and compared at all of them.

use alloc::format;
use alloc::vec::Vec;

use super::{EXEC_COMMAND, Pending, Shimmed, Work, step_of};
use crate::backend::{Backend, Step, Submitted};
use crate::command::{Command, CommandBuf};
use crate::plan::After;
use crate::{Class, Context, Progress, resp};

/// The internal read that answers the digests of its keys.
pub const DIGEST_COMMAND: &[u8] = b"CONCORD.DIGEST";
/// The first command of a transaction: keys, each with the digest that it must have.
pub const WATCHED_COMMAND: &[u8] = b"CONCORD.WATCHED";

/// What the digest of a key that is not there is made of.
const ZERO: u8 = b'0';

/// A transaction whose watched keys are looked at.
#[derive(Debug)]
pub(super) struct Watched {
    class: Class,
    /// The CONCORD.EXEC.
    command: Vec<u8>,
}

/// The first command of a transaction, if it tells what keys must hold.
pub(crate) fn watched<'a>(command: &Command<'a>) -> Option<Command<'a>> {
    if !command.name().eq_ignore_ascii_case(EXEC_COMMAND) {
        return None;
    }
    let first = Command::parse(command.args().nth(1)?).ok()?;
    (first.name() == WATCHED_COMMAND && first.argc() % 2 == 1).then_some(first)
}

/// The transaction without what it watches.
fn without_watched(command: &Command<'_>) -> Vec<u8> {
    let args = command.args().enumerate().filter(|(at, _)| *at != 1).map(|(_, arg)| arg);
    CommandBuf::new().encode(0, args).to_vec()
}

/// For the backend, a command for each key.
fn questions<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let ask = |key| CommandBuf::new().encode(0, [&b"DEBUG"[..], b"DIGEST-VALUE", key]).to_vec();
    keys.map(ask).collect()
}

/// The digest in the backend's reply to one of them.
fn digest_in(reply: &[u8]) -> Option<&[u8]> {
    let text = reply.strip_prefix(b"*1\r\n+")?.strip_suffix(b"\r\n")?;
    (!text.is_empty()).then_some(text)
}

/// Makes of the backend's replies the digests of keys with these deadlines, for a reader at
/// `now_ms`.
fn digests(
    deadlines: impl Iterator<Item = Option<u64>>,
    now_ms: u64,
    mut replies: &[u8],
) -> Option<Vec<Vec<u8>>> {
    let mut digests = Vec::new();
    for deadline_ms in deadlines {
        let (own, rest) = replies.split_at_checked(resp::value_length(replies)?)?;
        replies = rest;
        let digest = digest_in(own)?;
        let is_there = digest.iter().any(|digit| *digit != ZERO);
        digests.push(match deadline_ms {
            _ if !is_there => Vec::from([ZERO]),
            Some(at) if at <= now_ms => Vec::from([ZERO]),
            Some(at) => [digest, format!("-{at}").as_bytes()].concat(),
            None => digest.to_vec(),
        });
    }
    Some(digests)
}

/// The reply to CONCORD.DIGEST, in place of the backend's.
pub(super) fn settle_digest(deadlines: &[Option<u64>], reply: &mut Vec<u8>, start: usize) {
    // Whether a key that is due is there is for a write to say: a read tells what it finds.
    let Some(digests) = digests(deadlines.iter().copied(), 0, &reply[start..]) else {
        if !reply[start..].starts_with(b"-") {
            reply.truncate(start);
            resp::error(reply, b"ERR the engine cannot tell what a key holds");
        }
        return;
    };
    reply.truncate(start);
    resp::array(reply, digests.len());
    digests.iter().for_each(|digest| resp::bulk(reply, digest));
}

impl<B: Backend> Shimmed<B> {
    /// CONCORD.DIGEST key ...
    pub(super) fn start_digest(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let keys = || command.args().skip(1);
        let asked = questions(keys());
        let inner: Vec<Command<'_>> = asked.iter().filter_map(|b| Command::parse(b).ok()).collect();
        // Of class Write where the read does not fit one packet.
        let step = step_of(class, None, &inner);
        // As they are now: writes behind it may change them before the backend answers.
        let deadlines = keys().map(|key| self.deadlines.of(key)).collect();
        self.submit_step(context, &step, None, Work::Digest(deadlines), reply)
    }

    /// A CONCORD.EXEC that watches keys: looks at them first, and nothing else runs until it has.
    pub(super) fn start_watched(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        watched: &Command<'_>,
        reply: &mut Vec<u8>,
    ) -> Progress {
        let asked = questions(watched.args().skip(1).step_by(2));
        let inner: Vec<Command<'_>> = asked.iter().filter_map(|b| Command::parse(b).ok()).collect();
        let step: Step<'_> = step_of(Class::Read, None, &inner);
        let mut found = Vec::new();
        match self.backend.submit(context, &step, &mut found) {
            Submitted::Done(_) => self.go_on_watched(context, class, command, &found, reply),
            Submitted::Pending => {
                self.watches_pending = true;
                let watched = Watched { class, command: command.bytes().to_vec() };
                self.pending.push_back(Pending::of(Work::Watched(watched), *context));
                Progress::Pending
            }
        }
    }

    /// What the watched keys hold is known: the transaction is executed, or answered with nil.
    fn go_on_watched(
        &mut self,
        context: &Context,
        class: Class,
        command: &Command<'_>,
        found: &[u8],
        reply: &mut Vec<u8>,
    ) -> Progress {
        let wanted = watched(command);
        let args = || wanted.iter().flat_map(|wanted| wanted.args().skip(1));
        // Nothing else ran since they were looked at.
        let deadlines = args().step_by(2).map(|key| self.deadlines.of(key));
        // A write runs at the time that its record says, when a key may be due that is not deleted
        // yet.
        let now_ms = if class == Class::Write { context.now_ms } else { 0 };
        let Some(digests) = digests(deadlines, now_ms, found) else {
            return self.refuse(
                context,
                class,
                b"ERR the engine cannot tell what a key holds",
                reply,
            );
        };
        if args().skip(1).step_by(2).eq(digests.iter().map(Vec::as_slice)) {
            let bytes = without_watched(command);
            return match Command::parse(&bytes) {
                Ok(command) => self.start_exec(context, class, &command, reply),
                Err(_) => self.refuse(context, class, b"ERR CONCORD.EXEC: malformed", reply),
            };
        }
        let mut nil = Vec::new();
        resp::null_array(&mut nil, context.resp3);
        let work = Work::One(After::Answer(nil));
        self.submit_step(context, &step_of(class, None, &[]), None, work, reply)
    }

    /// The backend has told what the watched keys hold; the reply, if there is one by now.
    pub(super) fn complete_watched(
        &mut self,
        context: &Context,
        watched: &Watched,
        found: &[u8],
    ) -> Option<Vec<u8>> {
        self.watches_pending = false;
        let mut reply = Vec::new();
        let Ok(command) = Command::parse(&watched.command) else { return Some(reply) };
        let progress = self.go_on_watched(context, watched.class, &command, found, &mut reply);
        (progress == Progress::Done).then_some(reply)
    }
}
