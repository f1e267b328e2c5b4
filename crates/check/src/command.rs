//! The commands that have a model, parsed from their arguments.
//!
//! Written independently of the engines' command table on purpose: a mistake there must not hide
//! here.

use std::rc::Rc;

/// Bytes shared by commands and states.
pub(crate) type Bytes = Rc<[u8]>;

/// The condition of a SET.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Condition {
    Always,
    IfMissing,
    IfExists,
    IfEqual(Bytes),
}

/// The effect of a SET on the time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ttl {
    Clear,
    Keep,
    /// Sets it to this many ms.
    Set(u64),
}

/// A command on one key, without the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    Get,
    Strlen,
    Exists,
    Set {
        value: Bytes,
        condition: Condition,
        get: bool,
        ttl: Ttl,
    },
    SetNx(Bytes),
    GetSet(Bytes),
    GetDel,
    Append(Bytes),
    IncrBy(i64),
    /// DEL or UNLINK of one key.
    Del,
    /// FLUSHALL or FLUSHDB, as one key sees it.
    Flush,
    /// CAS key expected value. It replies 1 if it set the value (the time to live stays), 0 if it
    /// did not, -1 if there is no key.
    Cas {
        expected: Bytes,
        value: Bytes,
    },
    /// CAD key expected. It replies 1 if it deleted the key, 0 if it did not, -1 if there is no
    /// key.
    Cad(Bytes),
    /// EXPIRE or PEXPIRE, in ms.
    Expire(i64),
    Persist,
    Push {
        left: bool,
        values: Vec<Bytes>,
    },
    Pop {
        left: bool,
        count: Option<usize>,
    },
    Llen,
    Lrange(i64, i64),
    Sadd(Vec<Bytes>),
    Srem(Vec<Bytes>),
    Sismember(Bytes),
    Hset(Vec<(Bytes, Bytes)>),
    Hget(Bytes),
    Hdel(Vec<Bytes>),
    /// EXEC: all commands at one moment.
    Exec(Vec<Command>),
    Scard,
    Smembers,
    Hlen,
    Hgetall,
    /// ZADD of one member without options. Scores are whole numbers.
    Zadd(i64, Bytes),
    /// ZPOPMIN or ZPOPMAX of one member.
    Zpop {
        least: bool,
    },
    Zcard,
    /// KEYS * or SCAN: the keys that exist.
    Keys,
    Dbsize,
}

impl Command {
    /// Whether the command never changes anything.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Command::Get
            | Command::Strlen
            | Command::Exists
            | Command::Llen
            | Command::Lrange(..)
            | Command::Sismember(_)
            | Command::Hget(_)
            | Command::Scard
            | Command::Smembers
            | Command::Hlen
            | Command::Hgetall
            | Command::Zcard
            | Command::Keys
            | Command::Dbsize => true,
            Command::Exec(commands) => commands.iter().all(Command::is_read),
            Command::Set { .. }
            | Command::SetNx(_)
            | Command::GetSet(_)
            | Command::GetDel
            | Command::Append(_)
            | Command::IncrBy(_)
            | Command::Del
            | Command::Flush
            | Command::Cas { .. }
            | Command::Cad(_)
            | Command::Expire(_)
            | Command::Persist
            | Command::Push { .. }
            | Command::Pop { .. }
            | Command::Sadd(_)
            | Command::Srem(_)
            | Command::Hset(_)
            | Command::Zadd(..)
            | Command::Zpop { .. }
            | Command::Hdel(_) => false,
        }
    }
}

/// The longest name in bytes of a command that has a model.
const NAME_BYTES_MAX: usize = 16;

/// Parses arguments, the name first, into the key (`None` for all keys) and the command on it.
pub(crate) fn parse(args: &[Vec<u8>]) -> Result<(Option<&[u8]>, Command), String> {
    let Some((name, rest)) = args.split_first() else {
        return Err("a command without arguments".into());
    };
    let (mut short, long);
    let name = match name.len() {
        length @ ..=NAME_BYTES_MAX if name.is_ascii() => {
            short = [0; NAME_BYTES_MAX];
            short[..length].copy_from_slice(name);
            short.make_ascii_uppercase();
            str::from_utf8(&short[..length]).unwrap_or_default()
        }
        _ => {
            long = String::from_utf8_lossy(name).to_ascii_uppercase();
            &long
        }
    };
    if matches!(name, "FLUSHALL" | "FLUSHDB") {
        let options = [&b"ASYNC"[..], b"SYNC"];
        let known = |arg: &Vec<u8>| options.iter().any(|o| arg.eq_ignore_ascii_case(o));
        return match rest {
            [] => Ok((None, Command::Flush)),
            [option] if known(option) => Ok((None, Command::Flush)),
            _ => Err(format!("{name} takes ASYNC, SYNC or nothing")),
        };
    }
    if let Some(command) = all_keys(name, rest)? {
        return Ok((None, command));
    }
    if name == "EXEC" {
        return exec(rest);
    }
    let Some((key, rest)) = rest.split_first() else {
        return Err(format!("{name} without a key: no model"));
    };
    let command = match rest {
        [] => bare(name),
        [a] => with_one(name, a)?,
        _ => None,
    };
    let command = match command {
        Some(command) => Some(command),
        None => with_many(name, rest)?,
    };
    let arity = || format!("{name} with {} arguments behind the key: no model for it", rest.len());
    Ok((Some(key), command.ok_or_else(arity)?))
}

/// Parses the commands of an EXEC, all on one key, each preceded by the number of its arguments.
fn exec(mut rest: &[Vec<u8>]) -> Result<(Option<&[u8]>, Command), String> {
    let (mut key, mut commands) = (None, Vec::new());
    while let Some((length, others)) = rest.split_first() {
        let Some((args, behind)) = others.split_at_checked(count(length)?) else {
            return Err("EXEC: a command has fewer arguments than it says".into());
        };
        match parse(args)? {
            (_, Command::Exec(_)) => return Err("EXEC inside EXEC: no model for it".into()),
            (Some(of), command) if *key.get_or_insert(of) == of => commands.push(command),
            _ => return Err("EXEC of several keys: no model for it".into()),
        }
        rest = behind;
    }
    match key {
        Some(_) => Ok((key, Command::Exec(commands))),
        None => Err("EXEC of nothing".into()),
    }
}

/// Parses a read of all keys.
fn all_keys(name: &str, rest: &[Vec<u8>]) -> Result<Option<Command>, String> {
    match (name, rest) {
        ("DBSIZE", []) => Ok(Some(Command::Dbsize)),
        ("KEYS", [pattern]) if pattern == b"*" => Ok(Some(Command::Keys)),
        ("SCAN", [_]) => Ok(Some(Command::Keys)),
        ("SCAN", [_, option, _]) if option.eq_ignore_ascii_case(b"COUNT") => {
            Ok(Some(Command::Keys))
        }
        ("DBSIZE" | "KEYS" | "SCAN", _) => {
            Err(format!("{name} with these arguments: no model for it"))
        }
        _ => Ok(None),
    }
}

fn bare(name: &str) -> Option<Command> {
    Some(match name {
        "GET" => Command::Get,
        "STRLEN" => Command::Strlen,
        "EXISTS" => Command::Exists,
        "GETDEL" => Command::GetDel,
        "INCR" => Command::IncrBy(1),
        "DECR" => Command::IncrBy(-1),
        "DEL" | "UNLINK" => Command::Del,
        "PERSIST" => Command::Persist,
        "LPOP" => Command::Pop { left: true, count: None },
        "RPOP" => Command::Pop { left: false, count: None },
        "LLEN" => Command::Llen,
        "SCARD" => Command::Scard,
        "SMEMBERS" => Command::Smembers,
        "HLEN" => Command::Hlen,
        "HGETALL" => Command::Hgetall,
        "ZPOPMIN" => Command::Zpop { least: true },
        "ZPOPMAX" => Command::Zpop { least: false },
        "ZCARD" => Command::Zcard,
        _ => return None,
    })
}

fn with_one(name: &str, a: &[u8]) -> Result<Option<Command>, String> {
    Ok(Some(match name {
        "SETNX" => Command::SetNx(a.into()),
        "GETSET" => Command::GetSet(a.into()),
        "APPEND" => Command::Append(a.into()),
        "INCRBY" => Command::IncrBy(number(a)?),
        "DECRBY" => Command::IncrBy(number(a)?.checked_neg().ok_or("decrement too large")?),
        "CAD" => Command::Cad(a.into()),
        "EXPIRE" => Command::Expire(number(a)?.checked_mul(1000).ok_or("time too large")?),
        "PEXPIRE" => Command::Expire(number(a)?),
        "LPOP" => Command::Pop { left: true, count: Some(count(a)?) },
        "RPOP" => Command::Pop { left: false, count: Some(count(a)?) },
        "SISMEMBER" => Command::Sismember(a.into()),
        "HGET" => Command::Hget(a.into()),
        _ => return Ok(None),
    }))
}

fn with_many(name: &str, rest: &[Vec<u8>]) -> Result<Option<Command>, String> {
    let all = || rest.iter().map(|a| a.as_slice().into()).collect::<Vec<Bytes>>();
    Ok(Some(match (name, rest) {
        ("SET", [value, options @ ..]) => set(value, options)?,
        ("CAS", [expected, value]) => {
            Command::Cas { expected: expected.as_slice().into(), value: value.as_slice().into() }
        }
        ("LRANGE", [from, to]) => Command::Lrange(number(from)?, number(to)?),
        ("LPUSH", [_, ..]) => Command::Push { left: true, values: all() },
        ("RPUSH", [_, ..]) => Command::Push { left: false, values: all() },
        ("SADD", [_, ..]) => Command::Sadd(all()),
        ("SREM", [_, ..]) => Command::Srem(all()),
        ("HDEL", [_, ..]) => Command::Hdel(all()),
        ("ZADD", [score, member]) => Command::Zadd(number(score)?, member.as_slice().into()),
        ("HSET", [_, _, ..]) if rest.len().is_multiple_of(2) => Command::Hset(
            rest.chunks(2).map(|p| (p[0].as_slice().into(), p[1].as_slice().into())).collect(),
        ),
        _ => return Ok(None),
    }))
}

fn set(value: &[u8], options: &[Vec<u8>]) -> Result<Command, String> {
    let (mut condition, mut get, mut ttl) = (Condition::Always, false, Ttl::Clear);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let name = String::from_utf8_lossy(option).to_ascii_uppercase();
        let mut value = || options.next().ok_or_else(|| format!("SET: {name} without a value"));
        match name.as_str() {
            "NX" => condition = Condition::IfMissing,
            "XX" => condition = Condition::IfExists,
            "IFEQ" => condition = Condition::IfEqual(value()?.as_slice().into()),
            "GET" => get = true,
            "KEEPTTL" => ttl = Ttl::Keep,
            "PX" => ttl = Ttl::Set(lifetime(value()?, 1)?),
            "EX" => ttl = Ttl::Set(lifetime(value()?, 1000)?),
            _ => return Err(format!("SET with {name}: no model for it")),
        }
    }
    Ok(Command::Set { value: value.into(), condition, get, ttl })
}

/// Parses a time to live given in units of `unit_ms`, and returns it in ms.
fn lifetime(text: &[u8], unit_ms: u64) -> Result<u64, String> {
    match u64::try_from(number(text)?) {
        Ok(value) if value > 0 => Ok(value.saturating_mul(unit_ms)),
        _ => Err("SET: a time to live is positive".into()),
    }
}

fn count(text: &[u8]) -> Result<usize, String> {
    usize::try_from(number(text)?).map_err(|_| "a count is not negative".into())
}

fn number(text: &[u8]) -> Result<i64, String> {
    integer(text).ok_or_else(|| "not an integer where one is needed".into())
}

/// Parses an integer as Redis does (`string2ll`): no sign but a minus, no leading zeros, no blanks.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = matches!(digits, [b'1'..=b'9', ..]) || text == b"0";
    is_canonical.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}
