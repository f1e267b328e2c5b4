//! MONITOR: shows a client the commands of all clients of its gateway.

use alloc::format;
use alloc::vec::Vec;

use concord_core::Now;
use concord_engine::table::UpperName;

use crate::commands::Failure;
use crate::connection::{Connection, ConnectionId};
use crate::state::{CommandContext, Core};

/// Commands that are not shown, as in Redis: they concern the server and not its data.
const HIDDEN: [&[u8]; 13] = [
    b"MONITOR",
    b"CONFIG",
    b"ACL",
    b"DEBUG",
    b"SHUTDOWN",
    b"SLOWLOG",
    b"LATENCY",
    b"MODULE",
    b"CLUSTER",
    b"REPLICAOF",
    b"SLAVEOF",
    b"FAILOVER",
    b"PSYNC",
];
/// The hidden subcommands of CLIENT.
const HIDDEN_OF_CLIENT: [&[u8]; 5] = [b"LIST", b"KILL", b"NO-EVICT", b"PAUSE", b"UNPAUSE"];

impl Core {
    pub(crate) fn end_monitor(&mut self, connection: &mut Connection) {
        if core::mem::take(&mut connection.is_monitor) {
            self.monitors.ids.remove(&connection.id);
        }
    }

    /// Shows an executed or queued command to all monitors.
    #[inline]
    pub(crate) fn show_command(
        &mut self,
        call: &mut CommandContext<'_>,
        name: &UpperName,
        args: &[&[u8]],
    ) {
        if !self.monitors.ids.is_empty() && !is_hidden(name, args) {
            self.show_line(call, name, args);
        }
    }

    fn show_line(&mut self, call: &mut CommandContext<'_>, name: &UpperName, args: &[&[u8]]) {
        let line = line_of(call.now, call.connection, name, args);
        match &mut call.connection.multi {
            Some(multi) if !name.is(b"MULTI") => multi.shown.push(line),
            Some(_) | None => self.show_lines([line]),
        }
    }

    /// Shows lines to all current monitors.
    pub(crate) fn show_lines(&mut self, lines: impl IntoIterator<Item = Vec<u8>>) {
        let ids: Vec<ConnectionId> = self.monitors.ids.iter().copied().collect();
        if !ids.is_empty() {
            self.monitors.lines.extend(lines.into_iter().map(|line| (ids.clone(), line)));
        }
    }

    /// Whether a monitor may not send this command: it would confuse the reply with monitored
    /// lines.
    #[inline]
    pub(crate) fn must_only_look(&self, connection: &Connection, name: &[u8]) -> Option<Failure> {
        if !connection.is_monitor {
            return None;
        }
        let may = [&b"PING"[..], b"QUIT", b"RESET", b"MONITOR", b"SUBSCRIBE", b"PSUBSCRIBE"];
        (!may.contains(&name)).then(|| "ERR Replica can't interact with the keyspace".into())
    }
}

/// MONITOR
pub(crate) fn monitor(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    _: &[&[u8]],
) -> Result<(), Failure> {
    call.connection.is_monitor = true;
    core.monitors.ids.insert(call.connection.id);
    call.connection.ok();
    Ok(())
}

fn is_hidden(name: &UpperName, args: &[&[u8]]) -> bool {
    let sub = args.get(1).map(|sub| UpperName::of(sub));
    // CONCORD EXPLAIN of another command.
    if name.is(b"CONCORD") && args.len() > 2 {
        return is_hidden(&UpperName::of(args[2]), &args[2..])
            || args[2].eq_ignore_ascii_case(b"AUTH");
    }
    HIDDEN.contains(&name.bytes())
        || name.is(b"CLIENT") && sub.is_some_and(|sub| HIDDEN_OF_CLIENT.contains(&sub.bytes()))
}

/// A command in Redis' format: the time, the database, the client, and the arguments without
/// passwords.
fn line_of(now: Now, connection: &Connection, name: &UpperName, args: &[&[u8]]) -> Vec<u8> {
    let (seconds, ms) = (now.unix_ms / 1_000, now.unix_ms % 1_000);
    let (database, peer) = (connection.database, &connection.peer);
    let mut line = format!("+{seconds}.{ms:03}000 [{database} {peer}]").into_bytes();
    let mut hidden = if name.is(b"AUTH") { 1..args.len() } else { 0..0 };
    if name.is(b"HELLO") {
        let auth = args.iter().position(|arg| arg.eq_ignore_ascii_case(b"AUTH"));
        hidden = auth.map_or(0..0, |at| at + 1..at + 3);
    }
    for (at, arg) in args.iter().enumerate() {
        line.push(b' ');
        match hidden.contains(&at) {
            true => line.extend_from_slice(b"\"(redacted)\""),
            false => quote(&mut line, arg),
        }
    }
    line.extend_from_slice(b"\r\n");
    line
}

/// Writes text in quotes, with escapes for unprintable characters.
fn quote(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(*byte),
            other => out.extend_from_slice(format!("\\x{other:02x}").as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_as_redis_does() {
        let mut out = Vec::new();
        quote(&mut out, b"a\x00b\n\"\\\x07\xff ~");
        assert_eq!(out, b"\"a\\x00b\\n\\\"\\\\\\a\\xff ~\"");
    }
}
