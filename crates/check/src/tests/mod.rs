//! Histories known good and known bad, and random ones.

mod brute;
mod generate;
mod judge;
mod known;
mod random;
mod serial;

use crate::command::parse;
use crate::model::Moment;
use crate::op::Op;
use crate::{Operation, Options, Reply, Verdict, check};

/// An operation of client `client` in `call..=at`; `at` 0 means that its outcome is unknown.
fn op(client: u64, call: u64, at: u64, cmd: &str, reply: Reply) -> Operation {
    let known = at != 0;
    Operation {
        client,
        ordinal: None,
        call_ns: call,
        return_ns: known.then_some(at),
        cmd: cmd.split(' ').map(|arg| arg.as_bytes().to_vec()).collect(),
        reply: known.then_some(reply),
        path: None,
    }
}

fn open(client: u64, call: u64, cmd: &str) -> Operation {
    op(client, call, 0, cmd, Reply::Nil)
}

fn bulk(value: &str) -> Reply {
    Reply::bulk(value)
}

fn exact() -> Options {
    Options { grace_ns: 0, early_ns: 0, time_max: None, ..Options::default() }
}

fn verdict(history: &[Operation]) -> Verdict {
    check(history, &exact()).unwrap().verdict
}

fn op_of(source: usize, operation: &Operation) -> Op<'_> {
    let moment = Moment {
        call_ns: operation.call_ns,
        return_ns: operation.return_ns.unwrap_or(u64::MAX),
        early_ns: 0,
        grace_ns: 0,
        calm: None,
    };
    let (_, command) = parse(&operation.cmd).unwrap();
    let reply = operation.reply.as_ref().filter(|reply| **reply != Reply::Unseen);
    Op::new(source as u32, command, moment, reply)
}
