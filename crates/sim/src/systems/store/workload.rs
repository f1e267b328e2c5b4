//! The commands that connections send, and the parsing of their replies.

use concord_check::Reply;
use concord_client::Class;
use concord_core::Rng;
use concord_engine::resp::line_length;
use concord_wire::rpc::BODY_BYTES_MAX;

use crate::odd::up_to;
use crate::systems::store::edges::Sizes;

/// An operation to send.
pub(crate) struct Op {
    pub class: Class,
    pub cmd: Vec<Vec<u8>>,
    pub of_all_keys: bool,
}

fn op(class: Class, args: &[&str]) -> Op {
    let cmd = args.iter().map(|a| a.as_bytes().to_vec()).collect();
    Op { class, cmd, of_all_keys: false }
}

fn of_all_keys(class: Class, args: &[&str]) -> Op {
    Op { of_all_keys: true, ..op(class, args) }
}

/// The frequencies of the kinds of operations.
pub(crate) struct Mix {
    pub keys: u64,
    pub writes_percent: u64,
    pub long_values_percent: u64,
    pub flushes_permille: u64,
    pub sizes: Sizes,
    /// Whether three of four operations are on keys that are written with a short time to live, and
    /// read around its end.
    pub expires: bool,
}

/// The time to live of keys in runs that have only one, in ms.
const TTL_MS: u64 = 40;
/// The minimum and the maximum length of long values where the plan does not say, in bytes.
const LONG_BYTES: (u64, u64) = (2_000, 8_000);
/// One in `DUE_READS` reads is of a key that expires at the same time as others, and one in
/// `TTL_WRITES` writes changes a time to live.
const DUE_READS: u64 = 8;
const TTL_WRITES: u64 = 12;

/// `BRIEF_WRITES` successive operations write the same key with a short time to live, and reads
/// choose among the last `BRIEF_BACK` such keys.
const BRIEF_WRITES: u64 = 4;
const BRIEF_BACK: u64 = 60;
/// The maximum of these times to live, in ms.
const BRIEF_MS_MAX: u64 = 60;

/// Draws the next operation. `unique` makes its value different from all others.
pub(crate) fn draw(rng: &mut Rng, mix: &Mix, unique: u64) -> Op {
    let brief = unique / BRIEF_WRITES;
    match if mix.expires { rng.below(4) } else { 0 } {
        1 => return brief_write(brief, unique, rng.between(1, BRIEF_MS_MAX)),
        2 | 3 => return brief_read(brief.saturating_sub(rng.below(BRIEF_BACK))),
        _ => {}
    }
    if rng.chance(mix.flushes_permille, 1_000) {
        return of_all_keys(Class::Write, &["FLUSHALL"]);
    }
    if mix.sizes.all_keys_permille > 0 && rng.chance(mix.sizes.all_keys_permille, 1_000) {
        return of_all_keys(
            Class::Read,
            match rng.below(4) {
                0 => &["DBSIZE"],
                1 => &["SCAN", "0", "COUNT", "10"],
                2 => &["SCAN", "0", "COUNT", "100000"],
                _ => &["KEYS", "*"],
            },
        );
    }
    if !rng.chance(mix.writes_percent, 100) {
        return draw_read(rng, mix);
    }
    let n = rng.below(mix.keys);
    let key = name_of(n, &mix.sizes);
    let key = key.as_str();
    if mix.sizes.ttl_ms_max > 0 && rng.chance(1, TTL_WRITES) {
        return match rng.below(3) {
            0 => op(Class::Write, &["PERSIST", key]),
            _ => op(Class::Write, &["PEXPIRE", key, &draw_ttl(rng, mix)]),
        };
    }
    let value = format!("v{unique}");
    match kind_of(n, &mix.sizes) {
        Kind::List => match rng.below(3) {
            0 => draw_pop(rng, mix, key),
            _ => with_elements(rng, mix, &["LPUSH", key], &value),
        },
        Kind::Counter => match rng.below(8) {
            0 => op(Class::Write, &["DEL", key]),
            1 => op(Class::Write, &["GETDEL", key]),
            _ => op(Class::Write, &["INCR", key]),
        },
        Kind::Set => match rng.below(4) {
            0 => with_elements(rng, mix, &["SREM", key], "m"),
            1 => op(Class::Write, &["DEL", key]),
            _ => with_elements(rng, mix, &["SADD", key], "m"),
        },
        Kind::Hash => match rng.below(4) {
            0 => with_elements(rng, mix, &["HDEL", key], "f"),
            1 => op(Class::Write, &["DEL", key]),
            _ => with_fields(rng, mix, key, &value),
        },
        Kind::Text => draw_text(rng, mix, key, value),
    }
}

fn draw_text(rng: &mut Rng, mix: &Mix, key: &str, mut value: String) -> Op {
    if rng.chance(mix.long_values_percent, 100) {
        let length = match mix.sizes.value_bytes_max {
            0 => rng.between(LONG_BYTES.0, LONG_BYTES.1) as usize,
            most => (up_to(rng, most as u64) as usize).min(most.saturating_sub(value.len())),
        };
        value.push_str(&".".repeat(length));
        return op(Class::Write, &["SET", key, &value]);
    }
    match rng.below(10) {
        0 => op(Class::Write, &["DEL", key]),
        1 => op(Class::Write, &["SET", key, &value, "NX"]),
        2 => op(Class::Write, &["APPEND", key, &value]),
        3 => op(Class::Write, &["SET", key, &value, "PX", &draw_ttl(rng, mix)]),
        4 => op(Class::Write, &["GETDEL", key]),
        _ => op(Class::Write, &["SET", key, &value]),
    }
}

fn draw_pop(rng: &mut Rng, mix: &Mix, key: &str) -> Op {
    match mix.sizes.elements_max {
        0 => op(Class::Write, &["LPOP", key]),
        most => op(Class::Write, &["LPOP", key, &up_to(rng, 2 * most as u64).to_string()]),
    }
}

/// Draws a time to live, in ms.
fn draw_ttl(rng: &mut Rng, mix: &Mix) -> String {
    match mix.sizes.ttl_ms_max {
        0 => TTL_MS.to_string(),
        most => up_to(rng, most).to_string(),
    }
}

/// Draws a command that adds or removes elements: new ones of a list, or some of those that a set
/// or hash may have.
fn with_elements(rng: &mut Rng, mix: &Mix, args: &[&str], prefix: &str) -> Op {
    let mut op = op(Class::Write, args);
    match mix.sizes.elements_max as u64 {
        0 => op.cmd.push(prefix.into()),
        most => {
            let first = if prefix.len() > 1 { 0 } else { rng.below(2 * most) };
            let count = up_to(rng, most);
            op.cmd.extend((first..first + count).map(|n| format!("{prefix}.{n}").into_bytes()));
        }
    }
    op
}

fn with_fields(rng: &mut Rng, mix: &Mix, key: &str, value: &str) -> Op {
    let mut op = with_elements(rng, mix, &["HSET", key], "f");
    let names = op.cmd.split_off(2);
    op.cmd.extend(names.into_iter().flat_map(|name| [name, value.into()]));
    op
}

/// Draws a read.
pub(crate) fn draw_read(rng: &mut Rng, mix: &Mix) -> Op {
    if mix.sizes.due_at_once > 0 && rng.chance(1, DUE_READS) {
        let key = due_name(rng.below(mix.sizes.due_at_once));
        return op(Class::Read, &["GET", &key]);
    }
    let n = rng.below(mix.keys);
    let key = name_of(n, &mix.sizes);
    let key = key.as_str();
    match (kind_of(n, &mix.sizes), rng.below(3)) {
        (Kind::List, 0) => op(Class::Read, &["LLEN", key]),
        (Kind::List, _) => op(Class::Read, &["LRANGE", key, "0", "-1"]),
        (Kind::Set, 0) => op(Class::Read, &["SCARD", key]),
        (Kind::Set, _) => op(Class::Read, &["SMEMBERS", key]),
        (Kind::Hash, 0) => op(Class::Read, &["HLEN", key]),
        (Kind::Hash, _) => op(Class::Read, &["HGETALL", key]),
        (Kind::Counter | Kind::Text, 0) => op(Class::Read, &["EXISTS", key]),
        (Kind::Counter | Kind::Text, _) => op(Class::Read, &["GET", key]),
    }
}

/// Whether a drawn command is a read.
pub(crate) fn is_read(cmd: &[Vec<u8>]) -> bool {
    const READS: [&[u8]; 11] = [
        b"GET",
        b"EXISTS",
        b"LLEN",
        b"LRANGE",
        b"SCARD",
        b"SMEMBERS",
        b"HLEN",
        b"HGETALL",
        b"KEYS",
        b"SCAN",
        b"DBSIZE",
    ];
    cmd.first().is_some_and(|name| READS.contains(&name.as_slice()))
}

/// The write of the n-th of the keys that expire at the same time.
pub(crate) fn due_write(n: u64, unique: u64, ttl_ms: u64) -> Op {
    let (value, ttl_ms) = (format!("v{unique}"), ttl_ms.max(1).to_string());
    op(Class::Write, &["SET", &due_name(n), &value, "PX", &ttl_ms])
}

fn brief_write(n: u64, unique: u64, ttl_ms: u64) -> Op {
    let (key, value, ttl_ms) = (format!("brief{n}"), format!("v{unique}"), ttl_ms.to_string());
    op(Class::Write, &["SET", &key, &value, "PX", &ttl_ms])
}

fn brief_read(n: u64) -> Op {
    op(Class::Read, &["GET", &format!("brief{n}")])
}

fn due_name(n: u64) -> String {
    format!("due{n}")
}

/// Whether some key is short enough for its reads to fit into a packet.
pub(super) fn has_short_key(keys: u64, sizes: &Sizes) -> bool {
    (0..keys).any(|n| name_of(n, sizes).len() <= BODY_BYTES_MAX / 2)
}

/// The name of the n-th key, whose length is a function of n.
fn name_of(n: u64, sizes: &Sizes) -> String {
    let mut name = format!("k{n}");
    if sizes.key_bytes_max > name.len() {
        let length =
            up_to(&mut Rng::new(n ^ (sizes.key_bytes_max as u64) << 8), sizes.key_bytes_max as u64)
                as usize;
        name.push_str(&"-".repeat(length.saturating_sub(name.len())));
    }
    name
}

enum Kind {
    Text,
    Counter,
    List,
    Set,
    Hash,
}

/// The type of the n-th key.
fn kind_of(n: u64, sizes: &Sizes) -> Kind {
    let kinds = if sizes.elements_max > 0 { 5 } else { 3 };
    match n % kinds {
        0 => Kind::Text,
        1 => Kind::Counter,
        2 => Kind::List,
        3 => Kind::Set,
        _ => Kind::Hash,
    }
}

/// Parses a reply of either protocol version for the checker.
pub(crate) fn parse_reply(bytes: &[u8]) -> Option<Reply> {
    let mut rest = bytes;
    let reply = parse_one(&mut rest)?;
    rest.is_empty().then_some(reply)
}

fn parse_one(rest: &mut &[u8]) -> Option<Reply> {
    let end = line_length(rest)? - 2;
    let line = std::str::from_utf8(&rest[1..end]).ok()?;
    let kind = rest[0];
    *rest = &rest[end + 2..];
    match kind {
        b'+' if line == "OK" => Some(Reply::Ok),
        b'+' | b',' => Some(Reply::bulk(line)),
        b'-' => Some(Reply::Error(line.into())),
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
