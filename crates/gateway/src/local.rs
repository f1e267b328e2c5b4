//! Commands about the connection itself, which the gateway answers without the rack.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use concord_core::{Now, SEC};
use concord_engine::table::UpperName;
use concord_engine::{databases, resp};

use crate::commands::{Failure, no_subcommand};
use crate::connection::{Connection, ConnectionId};
use crate::state::{Core, Turn};
use crate::waiters::End;

/// The Redis version whose commands and replies are followed.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

pub(crate) fn wrong_arity(name: &str) -> Failure {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

pub(crate) fn ping(_: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    let is_mixed = !turn.connection.resp3 && !turn.connection.subscriber.is_empty();
    match args {
        [_] | [_, _] if is_mixed => turn.connection.answer(|out| {
            resp::array(out, 2);
            resp::bulk(out, b"pong");
            resp::bulk(out, args.get(1).copied().unwrap_or_default());
        }),
        [_] => turn.connection.answer(|out| resp::simple(out, "PONG")),
        [_, text] => turn.connection.answer(|out| resp::bulk(out, text)),
        [..] => return Err(wrong_arity("ping")),
    }
    Ok(())
}

pub(crate) fn echo(_: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    turn.connection.answer(|out| resp::bulk(out, args[1]));
    Ok(())
}

pub(crate) fn select(_: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    turn.connection.database = databases::number(args[1])?;
    turn.connection.ok();
    Ok(())
}

pub(crate) fn unwatch(_: &mut Core, turn: &mut Turn<'_>, _: &[&[u8]]) -> Result<(), Failure> {
    turn.connection.watch.end();
    turn.connection.ok();
    Ok(())
}

pub(crate) fn quit(_: &mut Core, turn: &mut Turn<'_>, _: &[&[u8]]) -> Result<(), Failure> {
    turn.connection.ok();
    turn.connection.closing = true;
    Ok(())
}

pub(crate) fn reset(core: &mut Core, turn: &mut Turn<'_>, _: &[&[u8]]) -> Result<(), Failure> {
    let connection = &mut *turn.connection;
    core.unsubscribe_all(connection);
    connection.resp3 = false;
    connection.multi = None;
    connection.database = 0;
    connection.watch.end();
    connection.name.clear();
    connection.authenticated = core.setup.requirepass.is_none();
    connection.answer(|out| resp::simple(out, "RESET"));
    Ok(())
}

pub(crate) fn acl(_: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    if UpperName::of(args[1]).bytes() != b"WHOAMI" {
        return Err("ERR Concord has no access control lists; see requirepass".into());
    }
    turn.connection.answer(|out| resp::bulk(out, b"default"));
    Ok(())
}

fn check_password(core: &Core, user: Option<&[u8]>, password: &[u8]) -> Result<(), Failure> {
    let is_default = user.is_none_or(|user| user == b"default");
    match &core.setup.requirepass {
        None if user.is_none() => {
            Err("ERR AUTH <password> called without any password configured \
             for the default user. Are you sure your configuration is correct?"
                .into())
        }
        None if is_default => Ok(()),
        Some(wanted) if is_default && is_equal(wanted, password) => Ok(()),
        None | Some(_) => {
            Err("WRONGPASS invalid username-password pair or user is disabled.".into())
        }
    }
}

/// Takes as long for every password of the right length.
fn is_equal(wanted: &[u8], given: &[u8]) -> bool {
    let differ = wanted.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b));
    wanted.len() == given.len() && differ == 0
}

pub(crate) fn auth(core: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    match args {
        [_, password] => check_password(core, None, password)?,
        [_, user, password] => check_password(core, Some(user), password)?,
        [..] => return Err("ERR syntax error".into()),
    }
    turn.connection.authenticated = true;
    turn.connection.ok();
    Ok(())
}

/// HELLO [2|3 [AUTH user password] [SETNAME name]]. Nothing changes if it fails.
pub(crate) fn hello(core: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    let resp3 = match args.get(1).copied() {
        None => turn.connection.resp3,
        Some(b"2") => false,
        Some(b"3") => true,
        Some(version) if resp::number(version).is_none() => {
            return Err("ERR Protocol version is not an integer or out of range".into());
        }
        Some(_) => return Err("NOPROTO unsupported protocol version".into()),
    };
    let mut authenticated = turn.connection.authenticated;
    let mut name = None;
    let mut rest = args.get(2..).unwrap_or_default();
    while let Some(word) = rest.first() {
        rest = match (UpperName::of(word).bytes(), rest) {
            (b"AUTH", [_, user, password, rest @ ..]) => {
                check_password(core, Some(user), password)?;
                authenticated = true;
                rest
            }
            (b"SETNAME", [_, value, rest @ ..]) => {
                check_name(value)?;
                name = Some(*value);
                rest
            }
            _ => {
                let word = String::from_utf8_lossy(word);
                return Err(format!("ERR Syntax error in HELLO option '{word}'").into());
            }
        };
    }
    if !authenticated {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
             the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
             and select the RESP protocol version at the same time"
                .into(),
        );
    }
    let connection = &mut *turn.connection;
    connection.resp3 = resp3;
    connection.authenticated = true;
    if let Some(name) = name {
        connection.name = name.to_vec();
    }
    let id = connection.id.0 as i64;
    connection.answer(|out| {
        resp::map(out, 7, resp3);
        for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
            resp::bulk(out, name.as_bytes());
            resp::bulk(out, value.as_bytes());
        }
        for (name, value) in [("proto", if resp3 { 3 } else { 2 }), ("id", id)] {
            resp::bulk(out, name.as_bytes());
            resp::integer(out, value);
        }
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            resp::bulk(out, name.as_bytes());
            resp::bulk(out, value.as_bytes());
        }
        resp::bulk(out, b"modules");
        resp::array(out, 0);
    });
    Ok(())
}

fn check_name(name: &[u8]) -> Result<(), Failure> {
    if name.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return Ok(());
    }
    Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
}

pub(crate) fn client(core: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    let sub = UpperName::of(args[1]);
    let (now, resp3) = (turn.now, turn.connection.resp3);
    match (sub.bytes(), &args[2..]) {
        (b"LIST", []) => {
            let mut all: Vec<&Connection> =
                turn.others.values().map(|c| &**c).chain([&*turn.connection]).collect();
            all.sort_by_key(|c| c.id);
            let list: String = all.into_iter().map(|c| describe(core, now, c)).collect();
            turn.connection.answer(|out| resp::bulk(out, list.as_bytes()));
        }
        (b"INFO", []) => {
            let text = describe(core, now, turn.connection);
            turn.connection.answer(|out| resp::bulk(out, text.as_bytes()));
        }
        (b"SETNAME", [name]) => {
            check_name(name)?;
            turn.connection.name = name.to_vec();
            turn.connection.ok();
        }
        (b"GETNAME", []) => {
            let name = turn.connection.name.clone();
            turn.connection.answer(|out| match name.is_empty() {
                true => resp::null(out, resp3),
                false => resp::bulk(out, &name),
            });
        }
        (b"ID", []) => {
            let id = turn.connection.id.0 as i64;
            turn.connection.answer(|out| resp::integer(out, id));
        }
        (b"SETINFO", [which, value]) => {
            check_name(value)?;
            match UpperName::of(which).bytes() {
                b"LIB-NAME" => turn.connection.library.0 = value.to_vec(),
                b"LIB-VER" => turn.connection.library.1 = value.to_vec(),
                _ => return Err("ERR Unrecognized option".into()),
            }
            turn.connection.ok();
        }
        (b"UNBLOCK", [id] | [id, _]) => {
            let end = match args.get(3).map(|how| UpperName::of(how)) {
                None => End::Timeout,
                Some(how) if how.is(b"TIMEOUT") => End::Timeout,
                Some(how) if how.is(b"ERROR") => End::Error,
                Some(_) => {
                    return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into());
                }
            };
            let id = resp::number(id).ok_or("ERR value is not an integer or out of range")?;
            let id = u64::try_from(id).map(ConnectionId);
            let was_waiting = id.is_ok_and(|id| core.waiters.end(id, end));
            turn.connection.answer(|out| resp::integer(out, i64::from(was_waiting)));
        }
        (b"NO-EVICT" | b"NO-TOUCH", [_]) => turn.connection.ok(),
        (b"REPLY", [on]) if on.eq_ignore_ascii_case(b"ON") => turn.connection.ok(),
        (
            b"TRACKING" | b"TRACKINGINFO" | b"CACHING" | b"GETREDIR" | b"PAUSE" | b"UNPAUSE"
            | b"KILL" | b"REPLY" | b"LIST",
            _,
        ) => {
            let sub = sub.lower();
            return Err(format!("ERR Concord does not support this form of 'client|{sub}'").into());
        }
        (
            b"INFO" | b"SETNAME" | b"GETNAME" | b"ID" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH"
            | b"UNBLOCK",
            _,
        ) => {
            return Err(wrong_arity(&format!("client|{}", sub.lower())));
        }
        _ => return Err(no_subcommand("client", args[1])),
    }
    Ok(())
}

/// A line of CLIENT LIST.
fn describe(core: &Core, now: Now, connection: &Connection) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let command = connection.last_command.map_or("NULL", |i| &core.commands.entry(i).name);
    format!(
        "id={} addr={} laddr= fd=0 name={} age={} idle={} flags={} db={} sub={} psub={} ssub={} \
         multi={} qbuf={} qbuf-free=0 argv-mem=0 multi-mem={} obl={} oll={} omem=0 tot-mem={} \
         events=r tot-cmds={} cmd={command} user=default redir=-1 lib-name={} lib-ver={} \
         resp={}\n",
        connection.id.0,
        connection.peer,
        text(&connection.name),
        now.instant.since(connection.since) / SEC,
        now.instant.since(connection.active_at) / SEC,
        match () {
            () if connection.multi.is_some() => "x",
            () if !connection.subscriber.is_empty() => "P",
            () if core.waiters.has(connection.id) => "b",
            () => "N",
        },
        connection.database,
        connection.subscriber.channels.len(),
        connection.subscriber.patterns.len(),
        connection.subscriber.shards.len(),
        connection.multi.as_ref().map_or(-1, |m| m.commands.len() as i64),
        connection.input.len(),
        connection.multi.as_ref().map_or(0, |m| m.bytes),
        connection.output.len(),
        connection.slots.len(),
        connection.input.len() + connection.output.len(),
        connection.commands,
        text(&connection.library.0),
        text(&connection.library.1),
        if connection.resp3 { 3 } else { 2 },
    )
}
