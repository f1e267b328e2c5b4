//! CLIENT: questions of a connection about itself and the others of its gateway.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_core::{MS, Now, SEC};
use concord_engine::resp;
use concord_engine::table::UpperName;

use crate::blocking::waiters::End;
use crate::commands::{Failure, no_subcommand};
use crate::connection::local::{check_name, wrong_arity};
use crate::connection::{Connection, ConnectionId, Replies};
use crate::state::{CommandContext, Core};

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

const HELP: [&str; 51] = [
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CACHING (YES|NO)",
    "    Enable/disable tracking of the keys for next command in OPTIN/OPTOUT modes.",
    "GETREDIR",
    "    Return the client ID we are redirecting to when tracking is enabled.",
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current client connection.",
    "KILL <ip:port>",
    "    Kill connection made from <ip:port>.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Kill connections. Options are:",
    "    * ADDR (<ip:port>|<unixsocket>:0)",
    "      Kill connections made from the specified address",
    "    * ID <client-id>",
    "      Kill the connection with this ID.",
    "    * LADDR (<ip:port>|<unixsocket>:0)",
    "      Kill connections made to specified local address",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Kill connections by type.",
    "    * USER <username>",
    "      Kill connections authenticated by <username>.",
    "    * SKIPME (YES|NO)",
    "      Skip killing current connection (default: yes).",
    "LIST [options ...]",
    "    Return information about client connections. Options:",
    "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
    "      Return clients of specified type.",
    "    * ID <client-id> [<client-id> ...]",
    "      Return clients with these IDs.",
    "PAUSE <timeout> [WRITE|ALL]",
    "    Suspend all, or just write, clients for <timeout> milliseconds.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "UNPAUSE",
    "    Stop the current client pause, resuming traffic.",
    "UNBLOCK <clientid> [TIMEOUT|ERROR]",
    "    Unblock the specified blocked client.",
    "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
    "         [OPTIN] [OPTOUT] [NOLOOP]",
    "    Control server assisted client side caching.",
    "TRACKINGINFO",
    "    Report tracking status for the current connection.",
    "NO-EVICT (ON|OFF)",
    "    Protect current client connection from eviction.",
    "HELP",
];

/// Lines of help, as Redis answers them.
pub(crate) fn help(call: &mut CommandContext<'_>, lines: &[&str]) {
    call.connection.answer(|out| {
        resp::array(out, lines.len() + 1);
        lines.iter().for_each(|line| resp::simple(out, line));
        resp::simple(out, "    Prints this help.");
    });
}

pub(crate) fn client(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    let sub = UpperName::of(args[1]);
    let resp3 = call.connection.resp3;
    match (sub.bytes(), &args[2..]) {
        (b"HELP", []) => help(call, &HELP),
        (b"LIST", filter) => return list(core, call, filter),
        (b"INFO", []) => {
            let text = describe(core, call.now, call.connection);
            call.connection.answer(|out| verbatim(out, &text, resp3));
        }
        (b"KILL", filter @ [_, ..]) => return kill(core, call, filter),
        (b"REPLY", [how]) => return reply(call, how),
        (b"SETNAME", [name]) => {
            check_name(name)?;
            call.connection.name = name.to_vec();
            call.connection.ok();
        }
        (b"GETNAME", []) => {
            let name = call.connection.name.clone();
            call.connection.answer(|out| match name.is_empty() {
                true => resp::null(out, resp3),
                false => resp::bulk(out, &name),
            });
        }
        (b"ID", []) => {
            let id = call.connection.id.0 as i64;
            call.connection.answer(|out| resp::integer(out, id));
        }
        (b"SETINFO", [which, value]) => {
            check_name(value)?;
            match UpperName::of(which).bytes() {
                b"LIB-NAME" => call.connection.library.0 = value.to_vec(),
                b"LIB-VER" => call.connection.library.1 = value.to_vec(),
                _ => return Err("ERR Unrecognized option".into()),
            }
            call.connection.ok();
        }
        (b"UNBLOCK", [id] | [id, _]) => return unblock(core, call, id, args.get(3).copied()),
        (b"NO-EVICT" | b"NO-TOUCH", [how]) => match UpperName::of(how).bytes() {
            // No additional client is disconnected for its memory, and reads do not update access
            // times.
            b"ON" | b"OFF" => call.connection.ok(),
            _ => return Err(SYNTAX.into()),
        },
        (b"TRACKING", [_, ..]) => return core.client_tracking(call, &args[2..]),
        (b"CACHING", [how]) => return core.client_caching(call, how),
        (b"GETREDIR", []) => {
            let redirect = call.connection.redirect();
            call.connection.answer(|out| resp::integer(out, redirect));
        }
        (b"TRACKINGINFO", []) => core.tracking_info(call),
        (b"PAUSE", [timeout] | [timeout, _]) => {
            return pause(core, call, timeout, args.get(3).copied());
        }
        (b"UNPAUSE", []) => {
            core.pause.end();
            call.connection.ok();
        }
        (
            b"HELP" | b"INFO" | b"KILL" | b"REPLY" | b"SETNAME" | b"GETNAME" | b"ID" | b"SETINFO"
            | b"NO-EVICT" | b"NO-TOUCH" | b"UNBLOCK" | b"TRACKING" | b"CACHING" | b"GETREDIR"
            | b"TRACKINGINFO" | b"PAUSE" | b"UNPAUSE",
            _,
        ) => return Err(wrong_arity(&format!("client|{}", sub.lower()))),
        _ => return Err(no_subcommand("client", args[1])),
    }
    Ok(())
}

/// CLIENT PAUSE timeout [WRITE | ALL]
fn pause(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    timeout: &[u8],
    mode: Option<&[u8]>,
) -> Result<(), Failure> {
    let writes_only = match mode.map(UpperName::of) {
        None => false,
        Some(mode) if mode.is(b"ALL") => false,
        Some(mode) if mode.is(b"WRITE") => true,
        Some(_) => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
    };
    let ms = resp::number(timeout).ok_or("ERR timeout is not an integer or out of range")?;
    let ms = u64::try_from(ms).map_err(|_| "ERR timeout is negative")?;
    let until = call.now.instant.after(ms.min(u64::from(u32::MAX)) * MS);
    core.pause.begin(until, writes_only);
    call.connection.ok();
    Ok(())
}

fn unblock(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    id: &[u8],
    how: Option<&[u8]>,
) -> Result<(), Failure> {
    let end = match how.map(UpperName::of) {
        None => End::Timeout,
        Some(how) if how.is(b"TIMEOUT") => End::Timeout,
        Some(how) if how.is(b"ERROR") => End::Error,
        Some(_) => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into()),
    };
    let id = resp::number(id).ok_or(NOT_AN_INTEGER)?;
    let id = u64::try_from(id).map(ConnectionId);
    let was_waiting = id.is_ok_and(|id| core.waiters.end(id, end) || core.members.end(id, end));
    call.connection.answer(|out| resp::integer(out, i64::from(was_waiting)));
    Ok(())
}

/// CLIENT REPLY. Only ON has a reply itself.
fn reply(call: &mut CommandContext<'_>, how: &[u8]) -> Result<(), Failure> {
    let connection = &mut *call.connection;
    match UpperName::of(how).bytes() {
        b"ON" => {
            connection.replies = Replies::On;
            connection.is_silent = false;
            connection.ok();
        }
        b"OFF" => {
            connection.replies = Replies::Off;
            connection.is_silent = true;
            connection.ok();
        }
        b"SKIP" => {
            if connection.replies == Replies::On {
                connection.replies = Replies::SkipNext;
            }
            connection.is_silent = true;
            connection.ok();
        }
        _ => return Err(SYNTAX.into()),
    }
    Ok(())
}

/// The types of CLIENT LIST and CLIENT KILL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Normal,
    PubSub,
    /// A gateway's clients are never replicas or masters.
    Other,
}

impl Type {
    fn parse(text: &[u8]) -> Result<Type, Failure> {
        match UpperName::of(text).bytes() {
            b"NORMAL" => Ok(Type::Normal),
            b"PUBSUB" => Ok(Type::PubSub),
            b"MASTER" | b"REPLICA" | b"SLAVE" => Ok(Type::Other),
            _ => {
                let text = String::from_utf8_lossy(text);
                Err(format!("ERR Unknown client type '{text}'").into())
            }
        }
    }

    fn of(connection: &Connection) -> Type {
        if connection.subscriber.is_empty() { Type::Normal } else { Type::PubSub }
    }
}

/// All connections of the gateway, the oldest first.
fn all<'a>(call: &'a CommandContext<'_>) -> Vec<&'a Connection> {
    let others = call.others.values().map(|c| &**c).filter(|c| !c.is_given_up);
    let mut all: Vec<&Connection> = others.chain([&*call.connection]).collect();
    all.sort_by_key(|c| c.id);
    all
}

/// CLIENT LIST [TYPE type | ID id ...]
fn list(core: &mut Core, call: &mut CommandContext<'_>, filter: &[&[u8]]) -> Result<(), Failure> {
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    let mut wanted: (Option<Type>, Option<Vec<u64>>) = (None, None);
    match filter {
        [] => {}
        [word, kind] if is(word, "type") => wanted.0 = Some(Type::parse(kind)?),
        [word, ids @ ..] if is(word, "id") && !ids.is_empty() => {
            let id = |id: &&[u8]| {
                // As in Redis, unused ids are ignored.
                let id = resp::number(id).ok_or("ERR Invalid client ID")?;
                Ok::<u64, Failure>(u64::try_from(id).unwrap_or(0))
            };
            wanted.1 = Some(ids.iter().map(id).collect::<Result<_, _>>()?);
        }
        _ => return Err(SYNTAX.into()),
    }
    let now = call.now;
    let list: String = match &wanted.1 {
        // In the order in which they are given.
        Some(ids) => {
            let all = all(call);
            let find = |id: &u64| all.iter().find(|c| c.id.0 == *id);
            ids.iter().filter_map(find).map(|c| describe(core, now, c)).collect()
        }
        None => {
            let all = all(call).into_iter();
            let is_wanted = |c: &&Connection| wanted.0.is_none_or(|kind| Type::of(c) == kind);
            all.filter(is_wanted).map(|c| describe(core, now, c)).collect()
        }
    };
    let resp3 = call.connection.resp3;
    call.connection.answer(|out| verbatim(out, &list, resp3));
    Ok(())
}

/// CLIENT KILL addr, CLIENT KILL filter value ...
fn kill(core: &mut Core, call: &mut CommandContext<'_>, filter: &[&[u8]]) -> Result<(), Failure> {
    let is_old = filter.len() == 1;
    let (mut id, mut kind, mut addr, mut laddr, mut skips_own) = (None, None, None, None, true);
    let mut user = None;
    if is_old {
        (addr, skips_own) = (Some(filter[0]), false);
    } else {
        for pair in filter.chunks(2) {
            let [word, value] = pair else { return Err(SYNTAX.into()) };
            match UpperName::of(word).bytes() {
                b"ID" => {
                    let number = resp::number(value).filter(|id| *id > 0);
                    id = Some(number.ok_or("ERR client-id should be greater than 0")? as u64);
                }
                b"TYPE" => kind = Some(Type::parse(value)?),
                b"ADDR" => addr = Some(*value),
                b"LADDR" => laddr = Some(*value),
                b"USER" if core.users.find(value).is_some() => user = Some(*value),
                b"USER" => {
                    let user = String::from_utf8_lossy(value);
                    return Err(format!("ERR No such user '{user}'").into());
                }
                b"SKIPME" => match UpperName::of(value).bytes() {
                    b"YES" => skips_own = true,
                    b"NO" => skips_own = false,
                    _ => return Err(SYNTAX.into()),
                },
                _ => return Err(SYNTAX.into()),
            }
        }
    }
    let own = call.connection.id;
    let is_meant = |c: &&Connection| {
        id.is_none_or(|id| c.id.0 == id)
            && kind.is_none_or(|kind| Type::of(c) == kind)
            && addr.is_none_or(|addr| c.peer.as_bytes() == addr)
            && laddr.is_none_or(|laddr| c.local.as_bytes() == laddr)
            && user.is_none_or(|user| c.user.name == user)
            && !(skips_own && c.id == own)
    };
    let killed: Vec<ConnectionId> = all(call).into_iter().filter(is_meant).map(|c| c.id).collect();
    if is_old && killed.is_empty() {
        return Err("ERR No such client".into());
    }
    match is_old {
        true => call.connection.ok(),
        false => call.connection.answer(|out| resp::integer(out, killed.len() as i64)),
    }
    if killed.contains(&own) {
        // It is closed once it has its reply.
        call.connection.closing = true;
    }
    core.killed.extend(killed.into_iter().filter(|id| *id != own));
    Ok(())
}

/// Writes text, as a verbatim string in RESP3.
fn verbatim(out: &mut Vec<u8>, text: &str, resp3: bool) {
    if !resp3 {
        return resp::bulk(out, text.as_bytes());
    }
    out.extend_from_slice(format!("={}\r\ntxt:{text}\r\n", text.len() + 4).as_bytes());
}

/// A line of CLIENT LIST: Redis' fields in Redis' order, with 0 for those that are meaningless
/// here, then Concord's own.
pub(crate) fn describe(core: &Core, now: Now, connection: &Connection) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut command = connection
        .last_command
        .map_or_else(|| String::from("NULL"), |i| core.commands.entry(i).name.clone());
    if !connection.last_sub.is_empty() {
        command.push('|');
        command.push_str(&connection.last_sub);
    }
    let (input, output) = (connection.query_bytes, connection.output.len());
    format!(
        "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} db={} sub={} psub={} ssub={} \
         multi={} qbuf={input} qbuf-free=0 argv-mem=0 multi-mem={} rbs=0 rbp=0 obl=0 oll={} omem=0 \
         tot-mem={} events=r cmd={command} user={} redir={} resp={} tot-cmds={} lib-name={} \
         lib-ver={}\n",
        connection.id.0,
        connection.peer,
        connection.local,
        text(&connection.name),
        now.instant.since(connection.since) / SEC,
        now.instant.since(connection.active_at) / SEC,
        flags(core, connection),
        connection.database,
        connection.subscriber.channels.len(),
        connection.subscriber.patterns.len(),
        connection.subscriber.shards.len(),
        connection.multi.as_ref().map_or(-1, |m| m.commands.len() as i64),
        connection.multi.as_ref().map_or(0, |m| m.bytes),
        connection.slots.len(),
        input + output,
        text(&connection.user.name),
        connection.redirect(),
        if connection.resp3 { 3 } else { 2 },
        connection.commands,
        text(&connection.library.0),
        text(&connection.library.1),
    )
}

/// The letters of a client's state, in Redis' order.
fn flags(core: &Core, connection: &Connection) -> String {
    let tracking = connection.tracking.as_deref();
    let all = [
        ('O', connection.is_monitor),
        ('P', !connection.subscriber.is_empty()),
        ('x', connection.multi.is_some()),
        ('b', core.waiters.has(connection.id) || core.members.has(connection.id)),
        ('t', tracking.is_some()),
        ('R', tracking.is_some_and(|tracking| tracking.is_broken)),
        ('B', tracking.is_some_and(|tracking| tracking.prefixes.is_some())),
        ('c', connection.closing),
    ];
    let set: String = all.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).collect();
    if set.is_empty() { String::from("N") } else { set }
}
