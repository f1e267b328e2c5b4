//! Commands about the connection itself, which the gateway answers without the rack.

use alloc::format;
use alloc::string::{String, ToString};

use concord_core::MS;
use concord_engine::table::UpperName;
use concord_engine::{databases, resp};

use crate::commands::{Failure, REPLICATES};
use crate::connection::Replies;
use crate::state::{CommandContext, Core};

/// The Redis version whose commands and replies are reproduced.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

pub(crate) fn wrong_arity(name: &str) -> Failure {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

pub(crate) fn ping(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    let is_mixed = !call.connection.resp3 && !call.connection.subscriber.is_empty();
    match args {
        [_] | [_, _] if is_mixed => call.connection.answer(|out| {
            resp::array(out, 2);
            resp::bulk(out, b"pong");
            resp::bulk(out, args.get(1).copied().unwrap_or_default());
        }),
        [_] => call.connection.answer(|out| resp::simple(out, "PONG")),
        [_, text] => call.connection.answer(|out| resp::bulk(out, text)),
        [..] => return Err(wrong_arity("ping")),
    }
    Ok(())
}

pub(crate) fn echo(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    call.connection.answer(|out| resp::bulk(out, args[1]));
    Ok(())
}

pub(crate) fn time(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    _: &[&[u8]],
) -> Result<(), Failure> {
    let unix_ms = call.now.unix_ms;
    call.connection.answer(|out| {
        resp::array(out, 2);
        resp::bulk(out, (unix_ms / 1_000).to_string().as_bytes());
        resp::bulk(out, (unix_ms % 1_000 * 1_000).to_string().as_bytes());
    });
    Ok(())
}

pub(crate) fn select(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    call.connection.database = databases::number(args[1])?;
    call.connection.ok();
    Ok(())
}

pub(crate) fn unwatch(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    _: &[&[u8]],
) -> Result<(), Failure> {
    call.connection.watch.end();
    call.connection.ok();
    Ok(())
}

pub(crate) fn quit(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    _: &[&[u8]],
) -> Result<(), Failure> {
    call.connection.ok();
    call.connection.closing = true;
    Ok(())
}

pub(crate) fn reset(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    _: &[&[u8]],
) -> Result<(), Failure> {
    let connection = &mut *call.connection;
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
    connection.authenticated = core.users.are_open();
    connection.user = core.users.default_user();
    connection.answer(|out| resp::simple(out, "RESET"));
    Ok(())
}

/// ROLE: to a client there is one server, without replicas.
pub(crate) fn role(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    _: &[&[u8]],
) -> Result<(), Failure> {
    call.connection.answer(|out| {
        resp::array(out, 3);
        resp::bulk(out, b"master");
        resp::integer(out, 0);
        resp::array(out, 0);
    });
    Ok(())
}

/// MODULE LIST: there are no modules.
pub(crate) fn module(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    if UpperName::of(args[1]).bytes() != b"LIST" {
        return Err("ERR Concord does not support modules: there are none".into());
    }
    if args.len() > 2 {
        return Err("ERR wrong number of arguments for 'module|list' command".into());
    }
    call.connection.answer(|out| resp::array(out, 0));
    Ok(())
}

/// DEBUG ERROR text: replies with the error, for tests of clients. No other form of DEBUG is
/// supported.
pub(crate) fn debug(
    _: &mut Core,
    _: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    match (UpperName::of(args[1]).bytes(), &args[2..]) {
        (b"ERROR", [text]) => {
            let shown = |byte: &u8| if byte.is_ascii_control() { ' ' } else { char::from(*byte) };
            Err(text.iter().map(shown).collect::<String>().into())
        }
        _ => {
            Err("ERR Concord does not support administration by 'debug'; see concord --help".into())
        }
    }
}

/// LASTSAVE: there are no dumps, so that it replies as a redis-server that has made none: with the
/// time of its start.
pub(crate) fn last_save(
    core: &mut Core,
    call: &mut CommandContext<'_>,
    _: &[&[u8]],
) -> Result<(), Failure> {
    let now = call.now;
    let up_ms = core.started_at.map_or(0, |at| now.instant.since(at) / MS);
    call.connection
        .answer(|out| resp::integer(out, (now.unix_ms.saturating_sub(up_ms) / 1_000) as i64));
    Ok(())
}

/// LOLWUT: the version, without a picture.
pub(crate) fn lolwut(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    if let [_, word, number, ..] = args
        && UpperName::of(word).is(b"VERSION")
        && resp::number(number).is_none()
    {
        return Err("ERR value is not an integer or out of range".into());
    }
    let text = format!("Concord, which answers as Redis ver. {REDIS_VERSION}\n");
    call.connection.answer(|out| resp::bulk(out, text.as_bytes()));
    Ok(())
}

/// REPLICAOF NO ONE: the server is no replica.
pub(crate) fn replica_of(
    _: &mut Core,
    call: &mut CommandContext<'_>,
    args: &[&[u8]],
) -> Result<(), Failure> {
    match (UpperName::of(args[1]).bytes(), UpperName::of(args[2]).bytes()) {
        (b"NO", b"ONE") => {
            call.connection.ok();
            Ok(())
        }
        _ => Err(REPLICATES.into()),
    }
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), Failure> {
    if name.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return Ok(());
    }
    Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
}
