//! Commands about the server, which the gateway answers without the rack: CONFIG, COMMAND, TIME.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use concord_engine::resp;
use concord_engine::table::UpperName;

use crate::commands::{Failure, no_subcommand};
use crate::keys::{Keys, keys};
use crate::local::wrong_arity;
use crate::state::{Core, Turn};

pub(crate) fn time(_: &mut Core, turn: &mut Turn<'_>, _: &[&[u8]]) -> Result<(), Failure> {
    let unix_ms = turn.now.unix_ms;
    turn.connection.answer(|out| {
        resp::array(out, 2);
        resp::bulk(out, (unix_ms / 1_000).to_string().as_bytes());
        resp::bulk(out, (unix_ms % 1_000 * 1_000).to_string().as_bytes());
    });
    Ok(())
}

/// COMMAND [COUNT | INFO | DOCS | LIST | GETKEYS]: the engine's table.
pub(crate) fn command(core: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    let (table, resp3) = (&core.setup.table, turn.connection.resp3);
    let Some(sub) = args.get(1) else {
        turn.connection.answer(|out| table.encode_all(out, resp3));
        return Ok(());
    };
    let names = &args[2..];
    match UpperName::of(sub).bytes() {
        b"COUNT" => turn.connection.answer(|out| table.encode_count(out)),
        b"INFO" => turn.connection.answer(|out| table.encode_info(out, names, resp3)),
        b"DOCS" => turn.connection.answer(|out| table.encode_docs(out, names, resp3)),
        b"LIST" => turn.connection.answer(|out| {
            let names = || table.specs().iter().filter(|spec| !spec.name.contains('|'));
            resp::array(out, names().count());
            names().for_each(|spec| resp::bulk(out, spec.name.as_bytes()));
        }),
        b"GETKEYS" if !names.is_empty() => {
            let name = UpperName::of(names[0]);
            let Some(spec) = table.find(name.bytes()) else {
                return Err("ERR Invalid command specified".into());
            };
            if !spec.accepts(names.len()) {
                return Err("ERR Invalid number of arguments specified for command".into());
            }
            match keys(spec, name.bytes(), names) {
                Keys::One(key) => turn.connection.answer(|out| {
                    resp::array(out, 1);
                    resp::bulk(out, names[key as usize]);
                }),
                Keys::Several(at) | Keys::AndOthers(at) => turn.connection.answer(|out| {
                    resp::array(out, at.len());
                    at.iter().for_each(|at| resp::bulk(out, names[*at]));
                }),
                Keys::None | Keys::BadNumber | Keys::Unsupported => {
                    return Err("ERR The command has no key arguments".into());
                }
            }
        }
        _ => return Err(no_subcommand("command", sub)),
    }
    Ok(())
}

/// What CONFIG GET knows: what clients and tools ask for.
const CONFIG: [(&str, &str); 12] = [
    ("appendonly", "no"),
    ("bind", ""),
    ("client-output-buffer-limit", "normal 0 0 0 slave 0 0 0 pubsub 33554432 8388608 60"),
    ("databases", "16"),
    ("io-threads", "1"),
    ("maxmemory", ""),
    ("maxmemory-policy", "noeviction"),
    ("notify-keyspace-events", ""),
    ("proto-max-bulk-len", "1048576"),
    ("save", ""),
    ("timeout", "0"),
    ("maxclients", ""),
];

/// CONFIG GET pattern ..., CONFIG RESETSTAT.
pub(crate) fn config(core: &mut Core, turn: &mut Turn<'_>, args: &[&[u8]]) -> Result<(), Failure> {
    let resp3 = turn.connection.resp3;
    match (UpperName::of(args[1]).bytes(), &args[2..]) {
        (b"GET", patterns @ [_, ..]) => {
            let asked = |name: &str| patterns.iter().any(|p| matches(p, name.as_bytes()));
            let mut found = settings(core);
            found.retain(|(name, _)| asked(name));
            turn.connection.answer(|out| {
                resp::map(out, found.len(), resp3);
                for (name, value) in found {
                    resp::bulk(out, name.as_bytes());
                    resp::bulk(out, value.as_bytes());
                }
            });
        }
        (b"RESETSTAT", []) => {
            core.commands.reset_counts();
            core.reads = Default::default();
            core.writes = Default::default();
            core.counted_from = core.totals();
            turn.connection.ok();
        }
        (b"GET" | b"RESETSTAT", _) => {
            let sub = UpperName::of(args[1]).lower();
            return Err(wrong_arity(&format!("config|{sub}")));
        }
        (b"SET", pairs) if change_nothing(pairs, &settings(core)) => turn.connection.ok(),
        (b"SET" | b"REWRITE", _) => {
            return Err(
                "ERR Concord is configured by its own file and flags; see concord --help".into()
            );
        }
        _ => return Err(no_subcommand("config", args[1])),
    }
    Ok(())
}

/// How a server packs small values: nothing that a client can see but OBJECT ENCODING, so CONFIG SET of these is
/// accepted, and changes nothing: CONFIG GET has Redis' defaults.
const PACKING: [(&str, &str); 12] = [
    ("hash-max-listpack-entries", "512"),
    ("hash-max-listpack-value", "64"),
    ("hash-max-ziplist-entries", "512"),
    ("hash-max-ziplist-value", "64"),
    ("list-compress-depth", "0"),
    ("list-max-listpack-size", "-2"),
    ("list-max-ziplist-size", "-2"),
    ("set-max-intset-entries", "512"),
    ("zset-max-listpack-entries", "128"),
    ("zset-max-listpack-value", "64"),
    ("zset-max-ziplist-entries", "128"),
    ("zset-max-ziplist-value", "64"),
];

/// What CONFIG GET answers.
fn settings(core: &Core) -> Vec<(&'static str, String)> {
    let value = |(name, value): &(&'static str, &str)| match *name {
        "maxclients" => (*name, core.setup.connections_max.to_string()),
        "maxmemory" => (*name, core.memory_bytes_max.to_string()),
        name => (name, (*value).to_string()),
    };
    CONFIG.iter().chain(&PACKING).map(value).collect()
}

/// Whether each of these is a setting of [`PACKING`] with a number, or has the value that it is set to.
fn change_nothing(pairs: &[&[u8]], settings: &[(&str, String)]) -> bool {
    let (pairs, rest) = pairs.as_chunks::<2>();
    let is_one = |[name, value]: &[&[u8]; 2]| {
        let is_it = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let is_packing = PACKING.iter().any(|(known, _)| is_it(known));
        is_packing && resp::number(value).is_some()
            || settings.iter().any(|(known, own)| is_it(known) && own.as_bytes() == *value)
    };
    !pairs.is_empty() && rest.is_empty() && pairs.iter().all(is_one)
}

/// Whether `name` fits a pattern with `*` and `?`, whatever the case.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', [])), _) => true,
        // Names are short and patterns have few stars.
        (Some((b'*', rest)), _) => (0..=name.len()).any(|at| matches(rest, &name[at..])),
        (Some((b'?', pattern)), Some((_, name))) => matches(pattern, name),
        (Some((p, pattern)), Some((n, name))) => {
            p.eq_ignore_ascii_case(n) && matches(pattern, name)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{change_nothing, matches};
    use alloc::string::ToString;

    #[test]
    fn settings_that_change_nothing_are_accepted_and_no_others() {
        let settings = [("save", "".to_string()), ("maxmemory", "5".to_string())];
        let are_of_packing = |pairs: &[&[u8]]| change_nothing(pairs, &settings);
        assert!(are_of_packing(&[b"save", b"", b"MaxMemory", b"5"]));
        assert!(!are_of_packing(&[b"save", b"900 1"]));
        assert!(are_of_packing(&[b"zset-max-ziplist-entries", b"0"]));
        assert!(are_of_packing(&[b"List-Compress-Depth", b"1", b"list-max-listpack-size", b"-2"]));
        assert!(!are_of_packing(&[b"zset-max-ziplist-entries", b"x"]));
        assert!(!are_of_packing(&[b"zset-max-ziplist-entries", b"1", b"maxmemory", b"1"]));
        assert!(!are_of_packing(&[b"zset-max-ziplist-entries"]));
        assert!(!are_of_packing(&[]));
    }

    #[test]
    fn patterns_have_stars_and_question_marks() {
        for (pattern, fits) in
            [("*", true), ("max*", true), ("*MEMORY", true), ("m?xmemory", true), ("max", false)]
        {
            assert_eq!(matches(pattern.as_bytes(), b"maxmemory"), fits, "{pattern}");
        }
    }
}
