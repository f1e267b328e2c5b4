//! Databases 0 to 15 in one key space.
//!
//! A key of database n > 0 is stored under [`MARKER`], a letter for n, and the key. A key of
//! database 0 is stored as it is, unless it begins with the marker: then it is prefixed with the
//! marker and the letter of 0, so that stored names are unique. The gateway replaces a client's
//! arguments by [`localize`]d ones, and [`show`]s the names in replies; everything in between sees
//! keys that are a little longer. Commands that name no key of their database (FLUSHDB, DBSIZE,
//! RANDOMKEY) and scripts carry it beside their arguments ([`crate::Command::database`]).

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::table::{CommandSpec, UpperName};
use crate::{Command, keys, resp, resp_scan};

/// The number of databases.
pub const DATABASES: u8 = 16;
/// Stands for all databases.
pub(crate) const ALL: u8 = u8::MAX;
/// The beginning of stored keys of all databases but 0. It is not valid UTF-8, and has no meaning
/// in a pattern of KEYS.
pub const MARKER: [u8; 4] = *b"\xff\xfedb";
/// The letter of database 0.
const FIRST: u8 = b'a';
/// The marker and the letter.
pub const PREFIX_BYTES: usize = 5;

const OUT_OF_RANGE: &str = "ERR DB index is out of range";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_AN_INT: &str = "ERR value is out of range, value must between -2147483648 and 2147483647";
const SAME: &str = "ERR source and destination objects are the same";
const SYNTAX: &str = "ERR syntax error";

/// The arguments of a command, with keys as they are stored.
pub type Localized<'a> = Vec<Cow<'a, [u8]>>;

/// The number of a database.
///
/// # Errors
/// The error in Redis' words.
pub fn number(text: &[u8]) -> Result<u8, &'static str> {
    let number = resp::number(text).ok_or(NOT_AN_INTEGER)?;
    let number = i32::try_from(number).map_err(|_| NOT_AN_INT)?;
    u8::try_from(number).ok().filter(|number| *number < DATABASES).ok_or(OUT_OF_RANGE)
}

/// The prefix of the stored keys of a database other than 0.
#[must_use]
pub fn prefix(database: u8) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = MARKER;
    [a, b, c, d, FIRST + database]
}

/// The stored form of a key of a database.
#[must_use]
pub fn stored(database: u8, key: &[u8]) -> Cow<'_, [u8]> {
    if database == 0 && !key.starts_with(&MARKER) {
        return Cow::Borrowed(key);
    }
    Cow::Owned([&prefix(database)[..], key].concat())
}

/// The database of a stored key.
#[must_use]
#[inline]
pub fn of_key(stored: &[u8]) -> u8 {
    match stored.strip_prefix(&MARKER) {
        Some([letter, ..]) => match letter.wrapping_sub(FIRST) {
            database @ 0..DATABASES => database,
            _ => 0,
        },
        Some([]) | None => 0,
    }
}

/// The key as its clients know it.
#[must_use]
pub fn own_name(stored: &[u8]) -> &[u8] {
    if stored.starts_with(&MARKER) {
        return stored.get(PREFIX_BYTES..).unwrap_or_default();
    }
    stored
}

/// The database whose keys a command deletes altogether, if any, or [`ALL`].
pub(crate) fn flushed(name: &UpperName, command: &Command<'_>) -> Option<u8> {
    match name.bytes() {
        b"FLUSHALL" => Some(ALL),
        b"FLUSHDB" => Some(command.database()),
        _ => None,
    }
}

/// Whether [`localize`] may change something.
#[must_use]
#[inline]
pub fn may_change(database: u8, args: &[&[u8]]) -> bool {
    database != 0 || args.iter().any(|arg| arg.first() == Some(&MARKER[0]))
}

/// The arguments of a client's command as they are stored: keys, and patterns of keys. MOVE and
/// COPY into another database become RENAMENX and COPY. `spec` is that of the engine's table, of
/// the subcommand where there is one.
///
/// # Errors
/// The error for the client.
pub fn localize<'a>(
    database: u8,
    spec: Option<&CommandSpec>,
    name: &UpperName,
    args: &[&'a [u8]],
) -> Result<Localized<'a>, &'static str> {
    let mut all: Localized<'a> = args.iter().map(|arg| Cow::Borrowed(*arg)).collect();
    match (name.bytes(), args) {
        (b"MOVE", [_, key, to]) => {
            let to = number(to)?;
            if to == database {
                return Err(SAME);
            }
            let rename = Cow::Borrowed(&b"RENAMENX"[..]);
            return Ok([rename, stored(database, key), stored(to, key)].into());
        }
        (b"COPY", [name, from, to, options @ ..]) => {
            return copy(database, [name, from, to], options);
        }
        (b"KEYS", [_, pattern]) => all[1] = stored(database, pattern),
        (b"SCAN", [_, _, ..]) => scan(database, args, &mut all),
        (b"SORT" | b"SORT_RO", _) => sort(database, args, &mut all),
        (b"WATCH", _) => (1..args.len()).for_each(|at| all[at] = stored(database, args[at])),
        _ => {}
    }
    let Some(spec) = spec else { return Ok(all) };
    for at in keys::places(spec, name.bytes(), args) {
        all[at] = stored(database, args[at]);
    }
    Ok(all)
}

/// COPY source destination [DB destination-db] [REPLACE].
fn copy<'a>(
    database: u8,
    [name, from, to]: [&'a [u8]; 3],
    mut options: &[&'a [u8]],
) -> Result<Localized<'a>, &'static str> {
    let mut into = database;
    let mut kept = Vec::new();
    while let [option, rest @ ..] = options {
        if option.eq_ignore_ascii_case(b"DB") {
            let [value, rest @ ..] = rest else { return Err(SYNTAX) };
            into = number(value)?;
            options = rest;
        } else if option.eq_ignore_ascii_case(b"REPLACE") {
            kept.push(Cow::Borrowed(*option));
            options = rest;
        } else {
            return Err(SYNTAX);
        }
    }
    let mut all = Vec::from([Cow::Borrowed(name), stored(database, from), stored(into, to)]);
    all.append(&mut kept);
    Ok(all)
}

/// SCAN cursor [MATCH pattern] ...: the last pattern counts.
fn scan<'a>(database: u8, args: &[&'a [u8]], all: &mut Localized<'a>) {
    for at in (2..args.len().saturating_sub(1)).step_by(2) {
        if args[at].eq_ignore_ascii_case(b"MATCH") {
            all[at + 1] = stored(database, args[at + 1]);
        }
    }
    if database != 0 {
        all.splice(2..2, [Cow::Borrowed(&b"MATCH"[..]), stored(database, b"*")]);
    }
}

/// The patterns of keys after BY and GET.
fn sort<'a>(database: u8, args: &[&'a [u8]], all: &mut [Cow<'a, [u8]>]) {
    let mut at = 2;
    while at + 1 < args.len() {
        let is = |word: &[u8]| args[at].eq_ignore_ascii_case(word);
        if is(b"LIMIT") {
            at += 2;
        } else if is(b"BY") || is(b"GET") {
            at += 1;
            if args[at].contains(&b'*') {
                all[at] = stored(database, args[at]);
            }
        } else if is(b"STORE") {
            at += 1;
        }
        at += 1;
    }
}

/// The parts of a command's reply that name keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// In errors only.
    #[default]
    Errors,
    /// Nowhere: a script has the names of its client.
    Scripts,
    /// The whole reply is one (RANDOMKEY).
    Whole,
    /// Each element is one, of all databases (KEYS).
    Elements,
    /// An array of keys after a cursor.
    Scanned,
    /// The first element (BLPOP, LMPOP and their kin).
    First,
    /// The first of each element, or the keys of a map (XREAD).
    Streams,
    /// MOVE, which was sent as RENAMENX.
    Moved,
}

impl Names {
    /// Those of a command, by its name in upper case.
    #[must_use]
    pub fn of(name: &[u8]) -> Names {
        match name {
            b"RANDOMKEY" => Names::Whole,
            b"KEYS" => Names::Elements,
            b"SCAN" => Names::Scanned,
            b"BLPOP" | b"BRPOP" | b"BZPOPMIN" | b"BZPOPMAX" | b"LMPOP" | b"ZMPOP" | b"BLMPOP"
            | b"BZMPOP" => Names::First,
            b"XREAD" | b"XREADGROUP" => Names::Streams,
            b"MOVE" => Names::Moved,
            b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO" | b"FCALL" | b"FCALL_RO" => {
                Names::Scripts
            }
            _ => Names::Errors,
        }
    }

    /// Whether the command looks at the names of all databases, so that its reply has to be looked
    /// at in any.
    #[must_use]
    pub fn are_of_all(self) -> bool {
        matches!(self, Names::Whole | Names::Elements | Names::Scanned)
    }
}

/// The reply to a command of `database` with the names of keys as the client knows them. What is
/// not of the expected form stays as it is.
#[must_use]
pub fn show(names: Names, database: u8, reply: Vec<u8>) -> Vec<u8> {
    if names == Names::Scripts {
        return reply;
    }
    if matches!(reply.first(), Some(b'-' | b'!')) {
        return shown_error(names, database, reply);
    }
    if resp::is_null(&reply) {
        return reply;
    }
    let mut out = Vec::with_capacity(reply.len());
    let is_written = match names {
        Names::Errors | Names::Scripts | Names::Moved => return reply,
        Names::Whole => write_name(&mut out, &reply),
        Names::Elements => write_names(&mut out, database, &reply),
        Names::Scanned => write_scanned(&mut out, database, &reply),
        Names::First => write_first(&mut out, &reply),
        Names::Streams => write_streams(&mut out, &reply),
    };
    if is_written.is_some() { out } else { reply }
}

/// An error names keys between other words.
fn shown_error(names: Names, database: u8, reply: Vec<u8>) -> Vec<u8> {
    if names == Names::Moved && reply.starts_with(b"-ERR no such key") {
        return b":0\r\n".to_vec();
    }
    if reply[0] != b'-' {
        return reply;
    }
    let prefix = prefix(database);
    let mut out = Vec::with_capacity(reply.len());
    let mut rest = &reply[..];
    while let Some(at) = rest.windows(PREFIX_BYTES).position(|part| part == prefix) {
        out.extend_from_slice(&rest[..at]);
        // The byte after a prefix belongs to the key, which may itself begin like a prefix.
        let key = &rest[at + PREFIX_BYTES..];
        let (first, behind) = key.split_at(key.len().min(1));
        out.extend_from_slice(first);
        rest = behind;
    }
    out.extend_from_slice(rest);
    out
}

fn write_name(out: &mut Vec<u8>, name: &[u8]) -> Option<()> {
    resp::bulk(out, own_name(resp_scan::text(name)?));
    Some(())
}

/// The names of this database among those of all.
fn write_names(out: &mut Vec<u8>, database: u8, reply: &[u8]) -> Option<()> {
    let names = || resp_scan::elements(reply).filter_map(resp_scan::text);
    let own = || names().filter(|name| of_key(name) == database);
    (reply.first() == Some(&b'*')).then_some(())?;
    resp::array(out, own().count());
    own().for_each(|name| resp::bulk(out, own_name(name)));
    Some(())
}

fn write_scanned(out: &mut Vec<u8>, database: u8, reply: &[u8]) -> Option<()> {
    let mut parts = resp_scan::elements(reply);
    let (cursor, names) = (parts.next()?, parts.next()?);
    resp::array(out, 2);
    out.extend_from_slice(cursor);
    write_names(out, database, names)
}

fn write_first(out: &mut Vec<u8>, reply: &[u8]) -> Option<()> {
    let header = resp::line_length(reply).filter(|_| reply.first() == Some(&b'*'))?;
    let (header, rest) = reply.split_at(header);
    let (name, rest) = rest.split_at_checked(resp::value_length(rest)?)?;
    out.extend_from_slice(header);
    write_name(out, name)?;
    out.extend_from_slice(rest);
    Some(())
}

fn write_streams(out: &mut Vec<u8>, reply: &[u8]) -> Option<()> {
    let (header, mut rest) = reply.split_at(resp::line_length(reply)?);
    out.extend_from_slice(header);
    while !rest.is_empty() {
        let (one, behind) = rest.split_at_checked(resp::value_length(rest)?)?;
        rest = behind;
        if reply.first() == Some(&b'*') {
            write_first(out, one)?;
            continue;
        }
        // A map of keys to their entries.
        let (entries, behind) = rest.split_at_checked(resp::value_length(rest)?)?;
        rest = behind;
        write_name(out, one)?;
        out.extend_from_slice(entries);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandTable;
    use alloc::string::String;

    fn words(line: &str) -> Vec<&[u8]> {
        line.split(' ').map(str::as_bytes).collect()
    }

    /// The localized command, its marker and letter shown as the number of the database and a
    /// colon.
    fn localized(database: u8, line: &str) -> Result<String, &'static str> {
        let args = words(line);
        let table = CommandTable::memory();
        let name = UpperName::of(args[0]);
        let spec = table.spec_of(name.bytes(), args.get(1).copied());
        let shown = |arg: Cow<'_, [u8]>| match arg.strip_prefix(&MARKER) {
            Some([letter, rest @ ..]) => {
                alloc::format!("{}:{}", letter - FIRST, String::from_utf8_lossy(rest))
            }
            Some([]) | None => String::from_utf8_lossy(&arg).into_owned(),
        };
        let all = localize(database, spec, &name, &args)?;
        Ok(all.into_iter().map(shown).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_name_is_that_of_one_key_and_a_key_has_one_name() {
        let keys: [&[u8]; 6] = [b"", b"k", b"\xff", &MARKER, b"\xff\xfedba", b"\xff\xfedbbk"];
        let mut names = alloc::collections::BTreeSet::new();
        for (database, key) in (0..DATABASES).flat_map(|n| keys.iter().map(move |key| (n, *key))) {
            let name = stored(database, key).into_owned();
            assert_eq!((of_key(&name), own_name(&name)), (database, key));
            assert!(names.insert(name));
        }
        assert_eq!(stored(0, b"k"), &b"k"[..]);
        for letter in prefix(15) {
            assert!(
                !b"*?[]^-\\\0".contains(&letter),
                "no glob has it, nor does C end a string by it"
            );
        }
        assert!(of_key(&MARKER) == 0 && of_key(b"\xff\xfedb~k") == 0, "nobody writes these");
    }

    #[test]
    fn keys_and_patterns_are_localized_and_nothing_else() {
        for (line, expected) in [
            ("SET a a", "SET 3:a a"),
            ("MSET a 1 b 2", "MSET 3:a 1 3:b 2"),
            ("ZUNIONSTORE d 2 a b WEIGHTS 1 2", "ZUNIONSTORE 3:d 2 3:a 3:b WEIGHTS 1 2"),
            ("BLMPOP 0 2 a b LEFT", "BLMPOP 0 2 3:a 3:b LEFT"),
            ("BLPOP a b 0", "BLPOP 3:a 3:b 0"),
            ("XREAD COUNT 1 STREAMS a b 0 0", "XREAD COUNT 1 STREAMS 3:a 3:b 0 0"),
            ("XREAD STREAMS a b 0", "XREAD STREAMS 3:a 3:b 0"),
            ("XINFO STREAM a", "XINFO STREAM 3:a"),
            ("OBJECT ENCODING a", "OBJECT ENCODING 3:a"),
            ("EVAL return 2 a b c", "EVAL return 2 3:a 3:b c"),
            ("DBSIZE", "DBSIZE"),
            ("WATCH a b", "WATCH 3:a 3:b"),
            ("KEYS a*", "KEYS 3:a*"),
            ("SCAN 0", "SCAN 0 MATCH 3:*"),
            ("SCAN 7 COUNT 2 match x? TYPE set", "SCAN 7 MATCH 3:* COUNT 2 match 3:x? TYPE set"),
            ("SCAN 0 MATCH", "SCAN 0 MATCH 3:* MATCH"),
            (
                "SORT a BY w_* LIMIT 0 1 GET # GET h_*->f STORE d",
                "SORT 3:a BY 3:w_* LIMIT 0 1 GET # GET 3:h_*->f STORE 3:d",
            ),
            ("SORT a BY nosort", "SORT 3:a BY nosort"),
            ("MOVE a 0", "RENAMENX 3:a a"),
            ("MOVE a 15", "RENAMENX 3:a 15:a"),
            ("COPY a b", "COPY 3:a 3:b"),
            ("copy a a db 4 REPLACE", "copy 3:a 4:a REPLACE"),
        ] {
            assert_eq!(localized(3, line).as_deref(), Ok(expected));
        }
        assert_eq!(localized(0, "COPY a a DB 1").as_deref(), Ok("COPY a 1:a"));
        for (line, error) in [
            ("MOVE a 3", SAME),
            ("MOVE a 16", OUT_OF_RANGE),
            ("MOVE a -1", OUT_OF_RANGE),
            ("MOVE a x", NOT_AN_INTEGER),
            ("MOVE a 99999999999", NOT_AN_INT),
            ("COPY a b DB", SYNTAX),
            ("COPY a b DB 16", OUT_OF_RANGE),
            ("COPY a b X DB 16", SYNTAX),
        ] {
            assert_eq!(localized(3, line), Err(error), "{line}");
        }
    }

    fn shown(name: &str, database: u8, reply: &[u8]) -> Vec<u8> {
        show(Names::of(name.as_bytes()), database, reply.to_vec())
    }

    #[test]
    fn names_in_replies_are_those_of_the_client_and_values_stay() {
        let key = &stored(1, b"k")[..];
        let bulk = |bytes: &[u8]| {
            let mut out = Vec::new();
            resp::bulk(&mut out, bytes);
            out
        };
        let (own, inner) = (bulk(key), bulk(b"k"));
        // A value that looks like a name.
        assert_eq!(shown("GET", 1, &own), own);
        assert_eq!(shown("RANDOMKEY", 1, &own), inner);
        let popped = |name: &[u8]| [b"*2\r\n", name, &own].concat();
        assert_eq!(shown("BLPOP", 1, &popped(&own)), popped(&inner));
        assert_eq!(shown("BLPOP", 1, b"*-1\r\n"), b"*-1\r\n");
        assert_eq!(shown("LMPOP", 1, b"_\r\n"), b"_\r\n");
        let names = [b"*3\r\n", &own[..], &bulk(b"zero"), &bulk(&stored(0, &MARKER))].concat();
        assert_eq!(shown("KEYS", 1, &names), [b"*1\r\n", &inner[..]].concat());
        assert_eq!(
            shown("KEYS", 0, &names),
            [b"*2\r\n", &bulk(b"zero")[..], &bulk(&MARKER)].concat()
        );
        let scanned = |names: &[u8]| [b"*2\r\n$1\r\n7\r\n", names].concat();
        assert_eq!(shown("SCAN", 2, &scanned(&names)), scanned(b"*0\r\n"));
        let read = |header: &[u8], name: &[u8]| [header, name, b"*1\r\n", &own].concat();
        let array = b"*1\r\n*2\r\n";
        assert_eq!(shown("XREAD", 1, &read(array, &own)), read(array, &inner));
        assert_eq!(shown("XREADGROUP", 1, &read(b"%1\r\n", &own)), read(b"%1\r\n", &inner));
    }

    #[test]
    fn errors_name_keys_as_the_client_does() {
        let error = [b"-NOGROUP No such key '", &stored(5, b"k")[..], b"' or group\r\n"].concat();
        assert_eq!(shown("XREADGROUP", 5, &error), b"-NOGROUP No such key 'k' or group\r\n");
        assert_eq!(shown("GET", 5, b"-ERR no such key\r\n"), b"-ERR no such key\r\n");
        assert_eq!(shown("MOVE", 5, b"-ERR no such key\r\n"), b":0\r\n");
        assert_eq!(shown("MOVE", 5, b":1\r\n"), b":1\r\n");
        let error = |name: &[u8]| [b"-NOGROUP No such key '", name, b"' or group\r\n"].concat();
        // Keys that begin like a prefix: only one, that of the database, is taken off.
        for (database, key) in [(0, prefix(0)), (0, prefix(3)), (3, prefix(3)), (3, prefix(0))] {
            for key in [&key[..], &MARKER, &[&key[..], b"x"].concat()] {
                let stored = stored(database, key);
                assert_eq!(shown("XREADGROUP", database, &error(&stored)), error(key));
                assert_eq!(shown("EVAL", database, &error(key)), error(key));
            }
        }
    }
}
