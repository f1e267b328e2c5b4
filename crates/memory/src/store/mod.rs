//! A store of keys in the shared memory: a bucket is a block, and a command on one key is one
//! access to it. So each key is linearizable, whichever node is asked, and keys that are read often
//! are served from the cache of the node that is asked.
//!
//! Read [`Store`]: it is a [`MemoryNode`] with sessions of clients, without I/O like every machine.
//! A session has one command in progress; its reply is in [`Store::output`] at once, or once
//! [`Store::take_ready`] has named the session.

mod bucket;
mod command;
mod explain;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_core::machine::{Deadline, Machine};
use concord_core::{Addr, Duration, Instant, Nothing, Now, SEC, Sink};
use concord_wire::concordia::{NUMBER_MAX, Tag};

use crate::access::{Access, Call, Failure};
use crate::member::MemoryNode;
use bucket::{bulk, error, integer};
use command::{Request, Steps};

pub use bucket::place_of_key;

/// The maximum time that a command waits, for a change of members or anything else, in ns.
pub const WAIT_NS: Duration = 5 * SEC;

concord_core::counters! {
    /// Counts of commands by their outcome.
    pub struct StoreCounters {
        /// Commands on keys.
        commands,
        /// Commands on keys that were answered at once, from this node's cache, or refused.
        commands_at_once,
        /// Commands answered LOST: the key's block was lost with a node.
        lost,
        /// Commands answered FULL: the key's bucket has no room.
        full,
        /// Commands answered UNKNOWN: whether they took effect is not known.
        unknown,
        /// Commands that did not take effect, in time or because the node leaves.
        not_done,
    }
}

/// A command that waits for the memory.
#[derive(Debug)]
struct Running {
    call: u64,
    /// The time at which the command fails.
    until: Instant,
    steps: Steps,
    /// The number of keys that are done, and the sum of their replies.
    done: usize,
    sum: i64,
}

#[derive(Debug, Default)]
struct Session {
    is_known: bool,
    closes: bool,
    running: Option<Running>,
    output: Vec<u8>,
}

/// A node of a shared memory, and its clients.
#[derive(Debug)]
pub struct Store {
    memory: MemoryNode,
    /// The password that clients have to give; none if empty.
    password: Vec<u8>,
    sessions: BTreeMap<u64, Session>,
    /// The calls in progress, with their sessions.
    calls: BTreeMap<u64, u64>,
    next_call: u64,
    /// The times at which waiting commands fail, with their sessions.
    waits: BTreeSet<(Instant, u64)>,
    /// The sessions whose command was answered later.
    ready: VecDeque<u64>,
    counters: StoreCounters,
}

/// The reply to a client whose command was not performed.
fn refusal(failure: Failure) -> Vec<u8> {
    let text = match failure {
        Failure::Lost => {
            "LOST the only copy of the key's block was at a node that is gone: it is of no use to try again; \
             concord memory renew empties what is lost"
        }
        Failure::Busy => "BUSY too many commands wait at this node: not done, try again",
        Failure::NoNode => "NONODE this node leaves the memory: not done, ask another one",
        Failure::NoBlock | Failure::Outside | Failure::Misaligned => {
            "ERR the memory has no such block"
        }
    };
    error(text)
}

impl Store {
    /// The store at a node. If `password` is not empty, clients have to give it.
    #[must_use]
    pub fn new(memory: MemoryNode, password: &[u8]) -> Store {
        Store {
            memory,
            password: password.to_vec(),
            sessions: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            waits: BTreeSet::new(),
            ready: VecDeque::new(),
            counters: StoreCounters::default(),
        }
    }

    /// The node of the memory.
    #[must_use]
    pub fn memory(&self) -> &MemoryNode {
        &self.memory
    }

    /// The counters of the store.
    #[must_use]
    pub fn counters(&self) -> &StoreCounters {
        &self.counters
    }

    /// The number of open sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The number of commands that wait for the memory.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.calls.len()
    }

    /// Opens the session of a new client; `session` must not be in use.
    pub fn opened(&mut self, session: u64) {
        let is_known = self.password.is_empty();
        self.sessions.insert(session, Session { is_known, ..Session::default() });
    }

    /// Closes the session of a client. Its command in progress is cancelled, if it has had no
    /// effect.
    pub fn closed(&mut self, session: u64) {
        let Some(own) = self.sessions.remove(&session) else { return };
        if let Some(running) = own.running {
            self.memory.cancel(running.call);
            self.calls.remove(&running.call);
            self.waits.remove(&(running.until, session));
        }
    }

    /// Whether a session has no command in progress, so that it may get the next.
    #[must_use]
    pub fn is_idle(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|own| own.running.is_none() && !own.closes)
    }

    /// Whether the session is authenticated, or needs no password.
    #[must_use]
    pub fn is_known(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|own| own.is_known)
    }

    /// Whether the session closes once its output is written.
    #[must_use]
    pub fn closes(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|own| own.closes)
    }

    /// The replies that the client has not received yet; the caller removes those that it writes.
    pub fn output(&mut self, session: u64) -> Option<&mut Vec<u8>> {
        self.sessions.get_mut(&session).map(|own| &mut own.output)
    }

    /// A session whose command was answered after [`Store::command`] had returned.
    pub fn take_ready(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }

    /// Leaves the memory ([`MemoryNode::leave`]).
    pub fn leave(&mut self, now: Now, sink: &mut impl Sink) {
        self.memory.leave(now);
        self.pump(now, sink);
    }

    /// Refuses a client that broke Redis' protocol: sends it an error, and closes the session.
    pub fn refuse(&mut self, session: u64, text: &str) {
        if let Some(own) = self.sessions.get_mut(&session) {
            own.output.extend_from_slice(&error(text));
            own.closes = true;
        }
    }

    /// Executes a command of an idle session, given as its words.
    pub fn command(&mut self, now: Now, session: u64, args: &[&[u8]], sink: &mut impl Sink) {
        let is_known = self.is_known(session);
        if args.is_empty() || !self.is_idle(session) {
            return;
        }
        let request = command::parse(args, self.memory.settings().block_bytes);
        let reply = match request {
            Request::Auth(password) => self.greet(session, Some(&password), bucket::OK.to_vec()),
            Request::Hello(password) => self.greet(session, password.as_deref(), hello(session)),
            Request::Close => {
                if let Some(own) = self.sessions.get_mut(&session) {
                    own.closes = true;
                }
                bucket::OK.to_vec()
            }
            _ if !is_known => error("NOAUTH Authentication required."),
            Request::Reply(reply) => reply,
            Request::Explain(key) => self.explain(place_of_key(&key, self.range_blocks())),
            Request::ExplainBlock(range, block) => match block < self.range_blocks() {
                true => self.explain(Tag::new(range, block)),
                false => error(&format!("ERR a range has {} blocks", self.range_blocks())),
            },
            Request::Renew => match self.memory.renew_all(now) {
                Some(count) => integer(i64::try_from(count).unwrap_or(i64::MAX)),
                None => {
                    error("NONODE this node is in no open epoch: nothing was renewed, try again")
                }
            },
            Request::Info => self.info(),
            Request::Run(steps) => return self.run(now, session, steps, sink),
        };
        if let Some(own) = self.sessions.get_mut(&session) {
            own.output.extend_from_slice(&reply);
        }
    }

    fn range_blocks(&self) -> u64 {
        self.memory.settings().range_blocks.min(NUMBER_MAX)
    }

    fn explain(&self, tag: Tag) -> Vec<u8> {
        bulk(explain::explain(&self.memory, tag).as_bytes())
    }

    /// Authenticates a client that may have given a password: the reply is `fine` if none is
    /// needed, or it is right.
    fn greet(&mut self, session: u64, password: Option<&[u8]>, fine: Vec<u8>) -> Vec<u8> {
        let Some(own) = self.sessions.get_mut(&session) else { return fine };
        match password {
            Some(_) if self.password.is_empty() => {
                error("ERR AUTH is called without a password configured for the rack")
            }
            Some(said) if said != self.password => {
                error("WRONGPASS invalid username-password pair or user is disabled.")
            }
            Some(_) => {
                own.is_known = true;
                fine
            }
            None if !own.is_known => error("NOAUTH HELLO must be called with the password"),
            None => fine,
        }
    }

    fn info(&self) -> Vec<u8> {
        let (settings, members) = (self.memory.settings(), self.memory.members().count());
        let keys = [
            ("redis_mode", String::from("standalone")),
            ("concord_node", format!("{}", settings.node.0)),
            ("concord_epoch", format!("{}", self.memory.epoch())),
            ("concord_members", format!("{members}")),
            ("concord_block_bytes", format!("{}", settings.block_bytes)),
            ("connected_clients", format!("{}", self.sessions.len())),
            ("total_commands_processed", format!("{}", self.counters.commands)),
        ];
        let lines = keys.iter().map(|(name, value)| format!("{name}:{value}\r\n"));
        bulk(lines.collect::<String>().as_bytes())
    }

    /// Begins a command on the memory.
    fn run(&mut self, now: Now, session: u64, steps: Steps, sink: &mut impl Sink) {
        self.counters.commands += 1;
        let until = now.instant.after(WAIT_NS);
        let Some(own) = self.sessions.get_mut(&session) else { return };
        own.running = Some(Running { call: 0, until, steps, done: 0, sum: 0 });
        let before = self.ready.len();
        self.step(now, session, sink);
        self.pump(now, sink);
        if self.is_waiting(session) {
            self.waits.insert((until, session));
        } else {
            self.counters.commands_at_once += 1;
        }
        // The caller itself handles this session now.
        let later = self.ready.split_off(before);
        self.ready.extend(later.into_iter().filter(|ready| *ready != session));
    }

    fn is_waiting(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|own| own.running.is_some())
    }

    /// Continues a session's command with its next key.
    fn step(&mut self, now: Now, session: u64, sink: &mut impl Sink) {
        let range_blocks = self.range_blocks();
        let own = self.sessions.get_mut(&session).and_then(|own| own.running.as_mut());
        let Some(running) = own else { return };
        let Some(key) = running.steps.keys.get(running.done) else { return };
        let rest = running.steps.rest.iter().map(Vec::as_slice);
        let argument = bucket::pack([&key[..]].into_iter().chain(rest));
        let access = Access::Apply { function: running.steps.function, argument };
        running.call = self.next_call;
        self.next_call += 1;
        self.calls.insert(running.call, session);
        let call = Call { id: running.call, tag: place_of_key(key, range_blocks), access };
        self.memory.call(now, call, sink);
    }

    /// Processes the outcomes of calls: commands go on, or are answered.
    fn pump(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(done) = self.memory.poll_done() {
            let Some(session) = self.calls.remove(&done.id) else { continue };
            match done.result {
                Ok(reply) => self.stepped(now, session, reply, sink),
                Err(failure) => self.failed(session, failure),
            }
        }
    }

    /// Adds the reply for one key of a command.
    fn stepped(&mut self, now: Now, session: u64, reply: Vec<u8>, sink: &mut impl Sink) {
        let own = self.sessions.get_mut(&session).and_then(|own| own.running.as_mut());
        let Some(running) = own else { return };
        if !running.steps.is_sum {
            self.counters.full += u64::from(reply.starts_with(b"-FULL"));
            return self.answer(session, &reply);
        }
        let digits = reply.strip_prefix(b":").and_then(|reply| reply.strip_suffix(b"\r\n"));
        running.sum += digits.and_then(bucket::number).unwrap_or(0);
        running.done += 1;
        if running.done < running.steps.keys.len() {
            return self.step(now, session, sink);
        }
        let sum = integer(running.sum);
        self.answer(session, &sum);
    }

    /// Ends a command before all of it is done. The current call has had no effect, but the keys
    /// before it were processed.
    fn failed(&mut self, session: u64, failure: Failure) {
        let counter = match failure {
            Failure::Lost => &mut self.counters.lost,
            _ => &mut self.counters.not_done,
        };
        *counter += 1;
        self.fails(session, refusal(failure));
    }

    fn fails(&mut self, session: u64, refusal: Vec<u8>) {
        let own = self.sessions.get(&session).and_then(|own| own.running.as_ref());
        let Some(running) = own else { return };
        let is_read = matches!(running.steps.function.work, crate::access::Work::View(_));
        let text = match running.done {
            done @ 1.. if !is_read => {
                self.counters.unknown += 1;
                let (all, why) = (running.steps.keys.len(), String::from_utf8_lossy(&refusal));
                let why = why.trim_start_matches('-').trim_end();
                error(&format!("UNKNOWN {done} of {all} keys are done, the others are not: {why}"))
            }
            _ => refusal,
        };
        self.answer(session, &text);
    }

    fn answer(&mut self, session: u64, reply: &[u8]) {
        let Some(own) = self.sessions.get_mut(&session) else { return };
        own.output.extend_from_slice(reply);
        if let Some(running) = own.running.take() {
            self.waits.remove(&(running.until, session));
        }
        self.ready.push_back(session);
    }

    /// Fails commands that have waited for too long.
    fn expire(&mut self, now: Now) {
        while let Some((until, session)) = self.waits.first().copied()
            && until <= now.instant
        {
            self.waits.remove(&(until, session));
            let own = self.sessions.get(&session).and_then(|own| own.running.as_ref());
            let Some(call) = own.map(|running| running.call) else { continue };
            self.calls.remove(&call);
            if self.memory.cancel(call) {
                self.counters.not_done += 1;
                let seconds = WAIT_NS / SEC;
                self.fails(
                    session,
                    error(&format!(
                        "NONODE the memory did not get to it in {seconds} s, as while its members change: not done, try again"
                    )),
                );
            } else {
                self.counters.unknown += 1;
                self.answer(session, &error("UNKNOWN it may have been done, or not"));
            }
        }
    }
}

/// The reply to a client's greeting.
fn hello(session: u64) -> Vec<u8> {
    let mut reply = b"*14\r\n".to_vec();
    let mut say = |name: &str, value: Vec<u8>| {
        reply.extend_from_slice(&bulk(name.as_bytes()));
        reply.extend_from_slice(&value);
    };
    say("server", bulk(b"redis"));
    say("version", bulk(b"7.0.0"));
    say("proto", integer(2));
    say("id", integer(i64::try_from(session).unwrap_or(i64::MAX)));
    say("mode", bulk(b"standalone"));
    say("role", bulk(b"master"));
    say("modules", b"*0\r\n".to_vec());
    reply
}

impl Machine for Store {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        self.memory.handle(now, from, packet, sink);
        self.pump(now, sink);
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        self.memory.tick(now, sink);
        self.pump(now, sink);
        self.expire(now);
    }

    fn deadline(&self) -> Deadline {
        let at = self.waits.first().map_or(Instant::NEVER, |(until, _)| *until);
        self.memory.deadline().min(Deadline { at, reason: "a command has waited for too long" })
    }
}
