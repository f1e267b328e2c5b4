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

/// The next operation: every third key holds a list, the others strings.
pub(crate) fn draw(rng: &mut Rng, keys: u64, writes_percent: u64, unique: u64) -> Op {
    let n = rng.below(keys);
    let key = format!("k{n}");
    let key = key.as_str();
    let value = format!("v{unique}");
    let list = n % 3 == 2;
    if !rng.chance(writes_percent, 100) {
        return match (list, rng.below(3)) {
            (true, 0) => op(Class::Read, &["LLEN", key]),
            (true, _) => op(Class::Read, &["LRANGE", key, "0", "-1"]),
            (false, 0) => op(Class::Read, &["EXISTS", key]),
            (false, _) => op(Class::Read, &["GET", key]),
        };
    }
    if list {
        return match rng.below(3) {
            0 => op(Class::Write, &["LPOP", key]),
            _ => op(Class::Write, &["LPUSH", key, &value]),
        };
    }
    if n % 3 == 1 {
        return match rng.below(8) {
            0 => op(Class::Write, &["DEL", key]),
            1 => op(Class::Write, &["GETDEL", key]),
            _ => op(Class::Write, &["INCR", key]),
        };
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

/// A RESP2 reply as the checker takes it.
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
        b'*' if line == "-1" => Some(Reply::Nil),
        b'*' => {
            let items: usize = line.parse().ok()?;
            (0..items).map(|_| parse_one(rest)).collect::<Option<Vec<_>>>().map(Reply::Array)
        }
        _ => None,
    }
}
