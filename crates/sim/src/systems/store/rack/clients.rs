//! The client processes, and the history of their operations.

use concord_check::{Operation, Reply};
use concord_client::{Class, Done, Outcome as Ended, Request, SubmitError};
use concord_core::{MS, Rng, hash};
use concord_engine::CommandBuf;
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Flags, Reason};

use super::{Process, Rack, Role, Stage};
use crate::systems::store::plan::Plan;
use crate::systems::store::seen::is_short_of_room;
use crate::systems::store::workload::{Mix, Op, draw, draw_read, due_write, is_read, parse_reply};
use crate::world::Event;

/// The minimum pause between operations beyond the plan's number, while faults go on, in ns.
const SPARE_THINK_NS: u64 = 5 * MS;
/// The maximum pause between operations around a fault, in ns.
const RUSH_THINK_NS: u64 = MS;
/// The time at which the keys expire that expire together, in ns.
const DUE_NS: u64 = 1_500 * MS;
/// The pause between operations of the liveness phase, in ns.
const LIVENESS_THINK_NS: u64 = MS;
/// The maximum pause between operations of the calm period after it, in ns.
const CALM_THINK_NS: u64 = 20 * MS;
/// The number of operations of each connection that must be answered after all faults have ended.
pub(super) const GOOD_MIN: u64 = 4;

/// The pace at which connections send operations.
pub(super) struct Pace {
    pub now_ns: u64,
    pub stage: Stage,
    /// Whether all of the plan's operations have begun.
    pub is_spare: bool,
}

impl Pace {
    /// The time at which a connection sends its next operation, if it sent `before` operations
    /// together.
    pub(super) fn next_ns(&self, plan: &Plan, rng: &mut Rng, before: u64) -> u64 {
        if self.stage == Stage::Calm {
            return self.now_ns + rng.below(CALM_THINK_NS) * before;
        }
        if self.stage != Stage::Safety {
            return self.now_ns + LIVENESS_THINK_NS * before;
        }
        let think_ns = if rng.chance(1, 3) { 0 } else { rng.below(plan.think_ns + 1) };
        let think_ns = if self.is_spare { think_ns.max(SPARE_THINK_NS) } else { think_ns };
        let next_ns = self.now_ns + think_ns * before;
        let hurried_ns = rng.below(RUSH_THINK_NS) * before;
        // The first rush that is in progress or begins before then: each fault begins and ends.
        let ends = plan.faults.iter().flat_map(|f| [f.at_ns, f.at_ns + f.fault.for_ns()]);
        let begins = ends.map(|at_ns| at_ns.saturating_sub(plan.rush_ns / 2));
        let is_soon =
            |at_ns: &u64| *at_ns <= next_ns && self.now_ns < at_ns.saturating_add(plan.rush_ns);
        let rush = begins.filter(is_soon).min();
        rush.map_or(next_ns, |begins_ns| next_ns.min(begins_ns.max(self.now_ns) + hurried_ns))
    }
}

impl Rack<'_> {
    pub(super) fn next_operation(&mut self, node: usize, connection: usize) {
        let Role::Client(process) = &self.slots[node].role else { return };
        if matches!(***process, Process::Redis(_)) {
            return self.turn(node, connection);
        }
        if self.stage == Stage::Rest {
            return;
        }
        let now_ns = self.world.now_ns;
        let paused_until_ns = self.slots[node].paused_until_ns;
        if paused_until_ns > now_ns {
            return self.world.push(paused_until_ns, Event::Next { node, connection });
        }
        let now = self.world.clock(node);
        let mix = self.mix();
        let Role::Client(process) = &mut self.slots[node].role else { return };
        let (process, mut out) = process.input(&mut self.outgoing);
        let Process::Native(process) = process else { return };
        let Some(slot) = process.connections.get_mut(connection) else { return };
        if slot.underway.is_some() {
            return;
        }
        self.unique += 1;
        let is_due = self.stage == Stage::Safety
            && self.due < self.plan.sizes.due_at_once
            && now_ns < DUE_NS
            && slot.rng.chance(3, 4);
        let op = if matches!(self.stage, Stage::Liveness { .. }) && slot.good >= GOOD_MIN {
            draw_read(&mut slot.rng, &mix)
        } else if is_due {
            self.due += 1;
            due_write(self.due - 1, self.unique, (DUE_NS - now_ns) / MS)
        } else {
            draw(&mut slot.rng, &mix, self.unique)
        };
        let Op { class, cmd, of_all_keys } = op;
        let mut command = CommandBuf::new();
        let first_key = u8::from(!of_all_keys);
        let command = command.encode(first_key, cmd.iter().map(Vec::as_slice));
        // A read that does not fit into a packet is sent like a write, as the gateway does it.
        let class = if command.len() > BODY_BYTES_MAX { Class::Write } else { class };
        let key = if of_all_keys { &b""[..] } else { cmd.get(1).map_or(&b""[..], Vec::as_slice) };
        let request = Request {
            class,
            obj_id: hash::object_id(key),
            further: concord_wire::FurtherIds::NONE,
            flags: if of_all_keys { Flags::WILDCARD } else { Flags(0) },
            after: slot.last_write,
            command,
        };
        match process.client.submit(now, request, &mut out) {
            Ok(number) => {
                self.begun += 1;
                if class == Class::Write {
                    slot.last_write = Some(number);
                }
                let operation = Operation {
                    client: (node * 100 + connection) as u64,
                    ordinal: None,
                    call_ns: now_ns,
                    return_ns: None,
                    cmd,
                    reply: None,
                    path: None,
                };
                slot.underway = Some((number, operation));
                self.world.note(5, node, &number.0.to_be_bytes());
            }
            Err(SubmitError::Full | SubmitError::TooLarge) => {
                self.world.push(now_ns + MS, Event::Next { node, connection });
            }
        }
        self.after(node, 0);
    }

    pub(super) fn mix(&self) -> Mix {
        Mix {
            keys: self.plan.keys,
            writes_percent: self.plan.writes_percent,
            long_values_percent: self.plan.long_values_percent,
            flushes_permille: self.plan.flushes_permille,
            sizes: self.plan.sizes,
            expires: self.stage == Stage::Calm,
        }
    }

    /// Takes the completed operations of a client process, and lets its connections continue.
    pub(super) fn take_done(&mut self, node: usize) {
        loop {
            let Role::Client(process) = &mut self.slots[node].role else { return };
            let Process::Native(process) = &mut ***process else { return };
            let Some(done) = process.client.poll() else { return };
            let of = |c: &super::Connection| {
                c.underway.as_ref().is_some_and(|(number, _)| *number == done.request)
            };
            let Some(connection) = process.connections.iter().position(of) else { continue };
            let slot = &mut process.connections[connection];
            let Some((_, operation)) = slot.underway.take() else { continue };
            let is_good = done.outcome == Ended::Reply;
            if let Stage::Liveness { since_ns } = self.stage
                && is_good
                && operation.call_ns >= since_ns
            {
                slot.good += 1;
                self.fast_since_heal += u64::from(done.trace.reason == Reason::Fast);
            }
            let pace = Pace {
                now_ns: self.world.now_ns,
                stage: self.stage,
                is_spare: self.begun >= self.plan.operations,
            };
            let is_burst = self.due < self.plan.sizes.due_at_once && pace.now_ns < DUE_NS;
            let next_ns = pace.next_ns(self.plan, &mut slot.rng, 1);
            let next_ns = if is_burst { pace.now_ns } else { next_ns };
            self.record(node, operation, &done);
            self.world.push(next_ns, Event::Next { node, connection });
        }
    }

    fn record(&mut self, node: usize, mut operation: Operation, done: &Done) {
        operation.path = Some(format!("{:?} at {}", done.trace.reason, done.trace.node));
        if done.trace.reason == Reason::Fast {
            self.totals.fast_reads += 1;
        }
        let ended = Some(self.world.now_ns);
        match done.outcome {
            Ended::Reply => {
                operation.return_ns = ended;
                operation.reply = parse_reply(&done.reply);
            }
            Ended::ReadTimeout | Ended::Busy | Ended::WriteNotExecuted => {
                operation.return_ns = ended;
                operation.reply = Some(Reply::Error("TIMEOUT not executed".into()));
            }
            Ended::WriteUnknown => self.totals.unknown += 1,
            Ended::Malformed | Ended::TooLarge => {
                operation.return_ns = ended;
                operation.reply = Some(Reply::Error("ERR refused".into()));
            }
        }
        self.world.note(6, node, &done.reply);
        self.see(&operation);
        if self.world.recorder.is_some() {
            self.mark(Some(node), describe(&operation), false);
        }
        self.history.push(operation);
    }

    /// Counts a completed operation.
    pub(super) fn see(&mut self, operation: &Operation) {
        let is_refused = |reply: &Reply| match reply {
            Reply::Error(text) => !is_short_of_room(text),
            _ => false,
        };
        if operation.reply.as_ref().is_some_and(|reply| !is_refused(reply)) {
            self.progress.see(self.world.now_ns, !is_read(&operation.cmd));
        }
        self.totals.large.see(operation);
    }

    /// Ends the pending requests of a client process that dies: their outcome is unknown.
    pub(super) fn abandon(&mut self, node: usize) {
        let Role::Client(process) = &mut self.slots[node].role else { return };
        let Process::Native(process) = &mut ***process else { return self.give_all_up(node) };
        for connection in &mut process.connections {
            if let Some((_, operation)) = connection.underway.take() {
                self.totals.unknown += 1;
                self.history.push(operation);
            }
        }
    }
}

/// The description of an operation in a line, for traces.
pub(super) fn describe(operation: &Operation) -> String {
    let mut text = String::new();
    for arg in &operation.cmd {
        let arg = String::from_utf8_lossy(arg);
        text.extend(arg.chars().take(24));
        text += if arg.len() > 24 { "... " } else { " " };
    }
    let reply = match &operation.reply {
        None => "unknown".into(),
        Some(reply) => {
            let reply = format!("{reply:?}");
            reply.chars().take(60).collect::<String>()
        }
    };
    let path = operation.path.as_deref().unwrap_or_default();
    format!("{text}= {reply} ({path}, called at {} us)", operation.call_ns / 1_000)
}
