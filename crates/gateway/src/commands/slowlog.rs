//! The commands that took long, as their client saw it. The time of a request to the rack is
//! measured, from its sending to its reply; commands that the gateway answers itself take no time.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_client::Done;
use concord_core::{Duration, MS, Now, US};
use concord_engine::Command;
use concord_engine::acl::sent;
use concord_engine::databases::own_name;
use concord_engine::table::UpperName;
use concord_engine::ttl::EXEC_COMMAND;

use crate::connection::Connection;

/// The parameters of CONFIG SET that define slow commands: the duration in us, the number of
/// entries kept, and LATENCY's duration in ms.
pub(crate) const SLOWER_THAN: &str = "slowlog-log-slower-than";
pub(crate) const ENTRIES_MAX: &str = "slowlog-max-len";
pub(crate) const THRESHOLD: &str = "latency-monitor-threshold";

/// The largest number of a command's arguments that are kept, as in Redis.
const ARGS_MAX: usize = 32;
const ARG_BYTES_MAX: usize = 128;
/// The largest number of bytes of all entries together.
const BYTES_MAX: usize = 4 << 20;
/// The largest number of commands of one second that are logged.
const ENTRIES_A_SECOND: u32 = 1_000;
/// The largest number of seconds in LATENCY HISTORY, as in Redis.
const HISTORY_MAX: usize = 160;

/// A slow command.
#[derive(Debug)]
pub(crate) struct Entry {
    pub id: u64,
    pub unix_seconds: u64,
    pub us: u64,
    pub args: Vec<Vec<u8>>,
    pub peer: String,
    pub name: Vec<u8>,
}

impl Entry {
    fn bytes(&self) -> usize {
        let args: usize = self.args.iter().map(|arg| arg.len() + 32).sum();
        args + self.peer.len() + self.name.len() + 100
    }
}

/// The slow commands.
#[derive(Debug)]
pub(crate) struct SlowLog {
    /// The duration from which on a command is slow.
    slow_ns: Duration,
    entries_max: usize,
    /// The newest last.
    pub entries: VecDeque<Entry>,
    bytes: usize,
    next_id: u64,
    /// The second in which a command was last logged, and the number logged in it.
    second: (u64, u32),
    /// The duration for LATENCY; 0 for never.
    threshold_ns: Duration,
    /// For each second with a slow command, the longest one: second and ms.
    pub history: VecDeque<(u64, u64)>,
    pub longest_ms: u64,
}

impl Default for SlowLog {
    fn default() -> SlowLog {
        SlowLog {
            slow_ns: 10 * MS,
            entries_max: 128,
            entries: VecDeque::new(),
            bytes: 0,
            next_id: 0,
            second: (0, 0),
            threshold_ns: 0,
            history: VecDeque::new(),
            longest_ms: 0,
        }
    }
}

impl SlowLog {
    /// The duration from which on the command must be known.
    pub(crate) fn slow_ns(&self) -> Duration {
        self.slow_ns
    }

    /// Applies a parameter.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        let number: i64 = value.parse().unwrap_or(0);
        match name {
            SLOWER_THAN => {
                let us = u64::try_from(number).ok();
                self.slow_ns = us.map_or(Duration::MAX, |us| us.saturating_mul(US));
            }
            ENTRIES_MAX => {
                self.entries_max = usize::try_from(number).unwrap_or(0);
                self.make_room();
            }
            THRESHOLD => self.threshold_ns = number.unsigned_abs().saturating_mul(MS),
            _ => {}
        }
    }

    /// Forgets all entries.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    fn make_room(&mut self) {
        while self.entries.len() > self.entries_max || self.bytes > BYTES_MAX {
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= entry.bytes();
        }
    }

    fn add<'a>(
        &mut self,
        now: Now,
        connection: &Connection,
        ns: Duration,
        args: impl ExactSizeIterator<Item = &'a [u8]>,
    ) {
        let (id, unix_seconds) = (self.next_id, now.unix_ms / 1_000);
        self.next_id += 1;
        let (peer, name) = (connection.peer.clone(), connection.name.clone());
        let entry = Entry { id, unix_seconds, us: ns / US, args: shortened(args), peer, name };
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
        self.make_room();
    }

    /// Notes that a request of a client ended.
    pub(crate) fn note(&mut self, now: Now, connection: &Connection, done: &Done) {
        let ns = done.trace.latency_ns;
        if self.threshold_ns > 0 && ns >= self.threshold_ns {
            let (second, ms) = (now.unix_ms / 1_000, ns / MS);
            self.longest_ms = self.longest_ms.max(ms);
            match self.history.back_mut() {
                Some((last, longest)) if *last == second => *longest = (*longest).max(ms),
                _ => self.history.push_back((second, ms)),
            }
            while self.history.len() > HISTORY_MAX {
                self.history.pop_front();
            }
        }
        if ns < self.slow_ns || self.is_full(now) {
            return;
        }
        let Ok(command) = Command::parse(&done.command) else { return };
        if command.name() != EXEC_COMMAND {
            // A request that the gateway made on its own is not a command of the client.
            if !command.name().starts_with(b"CONCORD.") {
                let args: Vec<&[u8]> = words_of(&command);
                self.add(now, connection, ns, args.into_iter());
            }
            return;
        }
        // Requests that were added to the client's commands are not shown.
        let inner: Vec<Command<'_>> = command
            .args()
            .skip(1)
            .filter_map(|part| Command::parse(part).ok())
            .filter(|part| part.name() != b"DEBUG" && !part.name().starts_with(b"CONCORD."))
            .take(ARGS_MAX)
            .collect();
        let words = |part: &Command<'_>| -> Vec<Vec<u8>> {
            let args: Vec<&[u8]> = words_of(part);
            shortened(args.into_iter())
        };
        let args: Vec<Vec<u8>> = match &inner[..] {
            [only] => words(only),
            all => {
                let line = |part: &Command<'_>| words(part).join(&b' ');
                core::iter::once(b"EXEC".to_vec()).chain(all.iter().map(line)).collect()
            }
        };
        self.add(now, connection, ns, args.iter().map(Vec::as_slice));
    }

    /// Whether the limit for this second is reached: if all commands are slow, the log must not
    /// make them slower.
    fn is_full(&mut self, now: Now) -> bool {
        let second = now.unix_ms / 1_000;
        if self.second.0 != second {
            self.second = (second, 0);
        }
        self.second.1 += 1;
        self.second.1 > ENTRIES_A_SECOND
    }

    /// Notes a command that the gateway answered itself, which is slow only if all are.
    pub(crate) fn note_local(&mut self, now: Now, connection: &Connection, args: &[&[u8]]) {
        if self.slow_ns > 0 || self.is_full(now) {
            return;
        }
        match UpperName::of(args[0]).bytes() {
            // These may contain passwords.
            b"AUTH" | b"HELLO" | b"ACL" => {}
            b"CONFIG" => self.add(now, connection, 0, args.iter().copied().take(3)),
            _ => self.add(now, connection, 0, args.iter().copied()),
        }
    }
}

/// A command as its client sent it: without the rules of a restricted user.
fn words_of<'a>(command: &Command<'a>) -> Vec<&'a [u8]> {
    command.args().filter(|arg| !arg.starts_with(sent::MARKER)).map(own_name).collect()
}

/// The part of a command's arguments that is kept.
fn shortened<'a>(args: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let count = args.len();
    let kept = if count > ARGS_MAX { ARGS_MAX - 1 } else { count };
    let short = |arg: &[u8]| match arg.split_at_checked(ARG_BYTES_MAX) {
        Some((head, rest)) if !rest.is_empty() => {
            let more = format!("... ({} more bytes)", rest.len());
            [head, more.as_bytes()].concat()
        }
        _ => arg.to_vec(),
    };
    let mut all: Vec<Vec<u8>> = args.take(kept).map(short).collect();
    if kept < count {
        all.push(format!("... ({} more arguments)", count - kept).into_bytes());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_commands_are_shortened_as_in_redis() {
        let long = alloc::vec![b'x'; ARG_BYTES_MAX + 3];
        let all: Vec<&[u8]> = core::iter::repeat_n(&long[..], 40).collect();
        let kept = shortened(all.iter().copied());
        assert_eq!(kept.len(), ARGS_MAX);
        assert!(kept[0].ends_with(b"x... (3 more bytes)"));
        assert_eq!(kept[ARGS_MAX - 1], b"... (9 more arguments)");
        assert_eq!(shortened([&b"GET"[..], b"k"].into_iter()), [b"GET".to_vec(), b"k".to_vec()]);
    }
}
