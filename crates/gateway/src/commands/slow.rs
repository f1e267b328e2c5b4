//! SLOWLOG and LATENCY, on the data of [`crate::commands::slowlog`].

use alloc::format;
use alloc::vec::Vec;

use concord_engine::resp;
use concord_engine::table::UpperName;

use crate::commands::{Failure, no_subcommand};
use crate::connection::client::help;
use crate::connection::local::wrong_arity;
use crate::state::{CommandContext, Core};

/// The name of the event of slow commands in LATENCY.
const EVENT: &[u8] = b"command";

const SLOWLOG_HELP: [&str; 11] = [
    "SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET [<count>]",
    "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
    "    Entries are made of:",
    "    id, timestamp, time in microseconds, arguments array, client IP and port,",
    "    client name",
    "LEN",
    "    Return the length of the slowlog.",
    "RESET",
    "    Reset the slowlog.",
    "HELP",
];

/// SLOWLOG GET [count], LEN, RESET
pub(crate) fn slowlog(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    let log = &mut core.slow_log;
    match (UpperName::of(args[1]).bytes(), &args[2..]) {
        (b"GET", [] | [_]) => {
            let count = match args.get(2) {
                None => 10,
                Some(count) => match resp::number(count) {
                    Some(count @ -1..) => count,
                    _ => return Err("ERR count should be greater than or equal to -1".into()),
                },
            };
            let count = usize::try_from(count).unwrap_or(usize::MAX).min(log.entries.len());
            call.connection.answer(|out| {
                resp::array(out, count);
                for entry in log.entries.iter().rev().take(count) {
                    resp::array(out, 6);
                    resp::integer(out, entry.id as i64);
                    resp::integer(out, entry.unix_seconds as i64);
                    resp::integer(out, entry.us as i64);
                    resp::array(out, entry.args.len());
                    entry.args.iter().for_each(|arg| resp::bulk(out, arg));
                    resp::bulk(out, entry.peer.as_bytes());
                    resp::bulk(out, &entry.name);
                }
            });
        }
        (b"LEN", []) => {
            let count = log.entries.len() as i64;
            call.connection.answer(|out| resp::integer(out, count));
        }
        (b"RESET", []) => {
            log.clear();
            call.connection.ok();
        }
        (b"HELP", []) => help(call, &SLOWLOG_HELP),
        (b"GET" | b"LEN" | b"RESET" | b"HELP", _) => {
            return Err(wrong_arity(&format!("slowlog|{}", UpperName::of(args[1]).lower())));
        }
        _ => return Err(no_subcommand("slowlog", args[1])),
    }
    Ok(())
}

const LATENCY_HELP: [&str; 8] = [
    "LATENCY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "HISTORY <event>",
    "    Return time-latency samples for the <event> class.",
    "LATEST",
    "    Return the latest latency samples for all events.",
    "RESET [<event> ...]",
    "    Reset latency data of one or more <event> classes.",
    "HELP",
];

/// LATENCY LATEST, HISTORY event, RESET [event ...]
pub(crate) fn latency(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    let log = &mut core.slow_log;
    match (UpperName::of(args[1]).bytes(), &args[2..]) {
        (b"LATEST", []) => {
            let (latest, longest_ms) = (log.history.back().copied(), log.longest_ms);
            call.connection.answer(|out| {
                resp::array(out, usize::from(latest.is_some()));
                if let Some((second, ms)) = latest {
                    resp::array(out, 4);
                    resp::bulk(out, EVENT);
                    [second, ms, longest_ms].iter().for_each(|n| resp::integer(out, *n as i64));
                }
            });
        }
        (b"HISTORY", [event]) => {
            let is_it = *event == EVENT;
            let all: Vec<(u64, u64)> = log.history.iter().filter(|_| is_it).copied().collect();
            call.connection.answer(|out| {
                resp::array(out, all.len());
                for (second, ms) in all {
                    resp::array(out, 2);
                    [second, ms].iter().for_each(|n| resp::integer(out, *n as i64));
                }
            });
        }
        (b"RESET", events) => {
            let is_asked = events.is_empty() || events.contains(&EVENT);
            let was_there = is_asked && !log.history.is_empty();
            if was_there {
                log.history.clear();
                log.longest_ms = 0;
            }
            call.connection.answer(|out| resp::integer(out, i64::from(was_there)));
        }
        (b"HELP", []) => help(call, &LATENCY_HELP),
        (b"LATEST" | b"HISTORY" | b"HELP", _) => {
            return Err(wrong_arity(&format!("latency|{}", UpperName::of(args[1]).lower())));
        }
        (b"DOCTOR" | b"GRAPH" | b"HISTOGRAM", _) => {
            let text = "ERR Concord does not support this form of 'latency': see the histograms \
                        in the metrics of the gateway";
            return Err(text.into());
        }
        _ => return Err(no_subcommand("latency", args[1])),
    }
    Ok(())
}

impl Core {
    /// Applies a parameter that defines slow commands.
    pub(crate) fn set_slow(&mut self, name: &str, value: &str) {
        self.slow_log.set(name, value);
        self.client.keep_commands_from(self.slow_log.slow_ns());
    }
}
