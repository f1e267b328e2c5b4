//! The clients of a load: a fixed number of pending operations (closed loop), and writes at a rate
//! besides (open loop).

use concord_client::{Class, Client, Outcome, Request, SubmitError};
use concord_core::machine::Deadline;
use concord_core::{Addr, Machine, Nothing, Now, RequestNumber, Rng, Sink, hash};
use concord_engine::CommandBuf;
use concord_wire::Flags;

use super::setup::{Keys, Load};

/// A client process: its machine, and its operations.
pub(super) struct Process {
    pub client: Client,
    rng: Rng,
    keys: Keys,
    value: Vec<u8>,
    /// The number of operations that it keeps pending, once it has started.
    outstanding: usize,
    pub is_started: bool,
    writes_permille: u64,
    /// The mean time between the writes of its open loop, in ns; 0 for none.
    pub gap_ns: u64,
    /// The pending writes of the open loop; all others belong to the closed loop.
    open: Vec<RequestNumber>,
    /// The number of pending operations of the closed loop.
    closed: usize,
    /// The number of writes of the open loop that found no room.
    pub crowded: u64,
    command: CommandBuf,
}

impl Machine for Process {
    type Persist = Nothing;

    fn handle(&mut self, now: Now, from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        self.client.handle(now, from, packet, sink);
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        self.client.tick(now, sink);
    }

    fn deadline(&self) -> Deadline {
        self.client.deadline()
    }
}

/// An operation that was answered.
pub(super) struct Answer {
    pub is_write: bool,
    pub latency_ns: u64,
}

impl Process {
    pub fn new(client: Client, load: &Load, mut rng: Rng, outstanding: usize) -> Process {
        Process {
            client,
            rng: rng.fork(),
            keys: load.keys.clone(),
            value: vec![b'x'; load.value_bytes],
            outstanding,
            is_started: false,
            writes_permille: load.writes_permille,
            gap_ns: 0,
            open: Vec::new(),
            closed: 0,
            crowded: 0,
            command: CommandBuf::new(),
        }
    }

    /// Begins operations until the wanted number is pending.
    pub fn fill(&mut self, now: Now, out: &mut impl Sink) {
        while self.is_started && self.closed < self.outstanding {
            let is_write = self.rng.chance(self.writes_permille, 1_000);
            if self.submit(now, is_write, out).is_err() {
                return;
            }
            self.closed += 1;
        }
    }

    /// Begins a write of the open loop; returns the time until the next, in ns.
    pub fn write(&mut self, now: Now, out: &mut impl Sink) -> u64 {
        match self.submit(now, true, out) {
            Ok(number) => self.open.push(number),
            Err(_) => self.crowded += 1,
        }
        // Uniform up to twice the mean.
        self.rng.below(2 * self.gap_ns).max(1)
    }

    fn submit(
        &mut self,
        now: Now,
        is_write: bool,
        out: &mut impl Sink,
    ) -> Result<RequestNumber, SubmitError> {
        let key = format!("k{}", self.keys.draw(&mut self.rng));
        let key = key.as_bytes();
        let (class, args): (Class, &[&[u8]]) = if is_write {
            (Class::Write, &[b"SET", key, &self.value])
        } else {
            (Class::Read, &[b"GET", key])
        };
        let request = Request {
            class,
            obj_id: hash::object_id(key),
            further: concord_wire::FurtherIds::NONE,
            flags: Flags(0),
            after: None,
            command: self.command.encode(1, args.iter().copied()),
        };
        self.client.submit(now, request, out)
    }

    /// Takes the operations that were answered since the last call.
    pub fn take(&mut self, answers: &mut Vec<Answer>) {
        while let Some(done) = self.client.poll() {
            match self.open.iter().position(|number| *number == done.request) {
                Some(at) => {
                    self.open.swap_remove(at);
                }
                None => self.closed -= 1,
            }
            if done.outcome == Outcome::Reply {
                let is_write = done.class == Class::Write;
                answers.push(Answer { is_write, latency_ns: done.trace.latency_ns });
            }
            self.client.give_back(done.reply);
        }
    }
}
