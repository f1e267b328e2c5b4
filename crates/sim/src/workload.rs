//! What connections ask for, and how replies read.

use concord_check::Reply;
use concord_client::Class;
use concord_core::Rng;

/// An operation to send.
pub(crate) struct Op {
    pub class: Class,
    pub cmd: Vec<Vec<u8>>,
}

fn op(class: Class, args: &[&str]) -> Op {
    Op { class, cmd: args.iter().map(|a| a.as_bytes().to_vec()).collect() }
}

/// What is asked for how often.
pub(crate) struct Mix {
    pub keys: u64,
    pub writes_percent: u64,
    pub long_values_percent: u64,
    pub flushes_permille: u64,
}

/// The next operation. `unique` is in no other value.
pub(crate) fn draw(rng: &mut Rng, mix: &Mix, unique: u64) -> Op {
    if rng.chance(mix.flushes_permille, 1_000) {
        return op(Class::Write, &["FLUSHALL"]);
    }
    if !rng.chance(mix.writes_percent, 100) {
        return draw_read(rng, mix.keys);
    }
    let n = rng.below(mix.keys);
    let key = format!("k{n}");
    let key = key.as_str();
    let mut value = format!("v{unique}");
    match kind_of(n) {
        Kind::List => match rng.below(3) {
            0 => op(Class::Write, &["LPOP", key]),
            _ => op(Class::Write, &["LPUSH", key, &value]),
        },
        Kind::Counter => match rng.below(8) {
            0 => op(Class::Write, &["DEL", key]),
            1 => op(Class::Write, &["GETDEL", key]),
            _ => op(Class::Write, &["INCR", key]),
        },
        Kind::Text => {
            if rng.chance(mix.long_values_percent, 100) {
                let length = rng.between(2_000, 8_000) as usize;
                value.extend(std::iter::repeat_n('.', length));
                return op(Class::Write, &["SET", key, &value]);
            }
            match rng.below(10) {
                0 => op(Class::Write, &["DEL", key]),
                1 => op(Class::Write, &["SET", key, &value, "NX"]),
                2 => op(Class::Write, &["APPEND", key, &value]),
                3 => op(Class::Write, &["SET", key, &value, "PX", "40"]),
                4 => op(Class::Write, &["GETDEL", key]),
                _ => op(Class::Write, &["SET", key, &value]),
            }
        }
    }
}

/// A read.
pub(crate) fn draw_read(rng: &mut Rng, keys: u64) -> Op {
    let n = rng.below(keys);
    let key = format!("k{n}");
    let key = key.as_str();
    match (kind_of(n), rng.below(3)) {
        (Kind::List, 0) => op(Class::Read, &["LLEN", key]),
        (Kind::List, _) => op(Class::Read, &["LRANGE", key, "0", "-1"]),
        (Kind::Counter | Kind::Text, 0) => op(Class::Read, &["EXISTS", key]),
        (Kind::Counter | Kind::Text, _) => op(Class::Read, &["GET", key]),
    }
}

enum Kind {
    Text,
    Counter,
    List,
}

/// What a key holds.
fn kind_of(n: u64) -> Kind {
    match n % 3 {
        0 => Kind::Text,
        1 => Kind::Counter,
        _ => Kind::List,
    }
}

/// A reply as the checker takes it, of either version of the protocol.
pub(crate) fn parse_reply(bytes: &[u8]) -> Option<Reply> {
    let mut rest = bytes;
    let reply = parse_one(&mut rest)?;
    rest.is_empty().then_some(reply)
}

fn parse_one(rest: &mut &[u8]) -> Option<Reply> {
    let end = rest.windows(2).position(|w| w == b"\r\n")?;
    let line = std::str::from_utf8(&rest[1..end]).ok()?.to_string();
    let kind = rest[0];
    *rest = &rest[end + 2..];
    match kind {
        b'+' if line == "OK" => Some(Reply::Ok),
        b'+' => Some(Reply::bulk(line)),
        b'-' => Some(Reply::Error(line)),
        b':' => line.parse().ok().map(Reply::Int),
        b'$' if line == "-1" => Some(Reply::Nil),
        b'$' => {
            let length: usize = line.parse().ok()?;
            let (value, tail) = rest.split_at_checked(length)?;
            *rest = tail.get(2..)?;
            Some(Reply::bulk(value))
        }
        b'_' => Some(Reply::Nil),
        b'*' if line == "-1" => Some(Reply::Nil),
        b'*' | b'~' | b'%' => {
            let items: usize = line.parse().ok()?;
            let items = if kind == b'%' { items.checked_mul(2)? } else { items };
            (0..items).map(|_| parse_one(rest)).collect::<Option<Vec<_>>>().map(Reply::Array)
        }
        _ => None,
    }
}
