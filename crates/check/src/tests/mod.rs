//! Histories known good and known bad, and random ones.

mod brute;
mod generate;
mod known;
mod random;
mod serial;

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
