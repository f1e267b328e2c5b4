//! Commands about the connection itself, which the gateway answers without the rack.

use alloc::format;
use alloc::string::{String, ToString};

use concord_engine::table::UpperName;
use concord_engine::{databases, resp};

use crate::commands::Failure;
use crate::connection::Replies;
use crate::state::{Core, Turn};

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

pub(crate) fn time(_: &mut Core, turn: &mut Turn<'_>, _: &[&[u8]]) -> Result<(), Failure> {
    let unix_ms = turn.now.unix_ms;
    turn.connection.answer(|out| {
        resp::array(out, 2);
        resp::bulk(out, (unix_ms / 1_000).to_string().as_bytes());
        resp::bulk(out, (unix_ms % 1_000 * 1_000).to_string().as_bytes());
    });
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
    core.end_tracking(connection);
    core.end_monitor(connection);
    connection.replies = Replies::On;
    connection.is_silent = false;
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

/// ROLE: to a client there is one server, and nobody follows it.
pub(crate) fn role(_: &mut Core, turn: &mut Turn<'_>, _: &[&[u8]]) -> Result<(), Failure> {
    turn.connection.answer(|out| {
        resp::array(out, 3);
        resp::bulk(out, b"master");
        resp::integer(out, 0);
        resp::array(out, 0);
    });
    Ok(())
}

/// MODULE LIST: there are none.
pub(crate) fn module(_: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    if UpperName::of(args[1]).bytes() != b"LIST" {
        return Err("ERR Concord does not support modules: there are none".into());
    }
    turn.connection.answer(|out| resp::array(out, 0));
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

pub(crate) fn check_name(name: &[u8]) -> Result<(), Failure> {
    if name.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return Ok(());
    }
    Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
}
