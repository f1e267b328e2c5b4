//! Statements of docs/reference/semantics on single commands, tried at a rack of each engine: a row
//! names its page, words of the sentence that it tries (so that a sentence that changes is tried
//! anew), the commands, and how the last one is answered.

use crate::common::pages::page;
use crate::common::*;

/// A page, words of a sentence in it, commands of one connection, and how the last reply begins;
/// words of a command that stand in braces hold blanks.
type Row = (&'static str, &'static str, &'static [&'static str], &'static str);

/// With the memory engine.
const MEMORY: [Row; 58] = [
    ("transactions", "`SELECT` takes `0` to `15`", &["SELECT 15"], "+OK"),
    ("transactions", "`SELECT` takes `0` to `15`", &["SELECT 16"], "-ERR DB index is out of range"),
    ("transactions", "`SWAPDB` is refused", &["SWAPDB 0 1"], "-ERR"),
    ("transactions", "`MULTI`/`EXEC` takes any keys, or none", &["MULTI", "EXEC"], "*0"),
    ("transactions", "are answered when they are queued", &["MULTI", "PING"], "+QUEUED"),
    ("transactions", "`INFO` (what a replica tells", &["MULTI", "INFO"], "+QUEUED"),
    ("transactions", "`CAS key old new`", &["SET c a", "CAS c a b", "GET c"], "b"),
    ("transactions", "`CAS key old new`", &["SET c a", "CAS c b c", "GET c"], "a"),
    ("transactions", "`CAD key old`", &["SET c a", "CAD c b", "EXISTS c"], ":1"),
    ("transactions", "`CAD key old`", &["SET c a", "CAD c a", "EXISTS c"], ":0"),
    ("transactions", "`SET key new IFEQ old`", &["SET c a", "SET c x IFEQ b", "GET c"], "a"),
    ("transactions", "`SET key new IFEQ old`", &["SET c a", "SET c x IFEQ a", "GET c"], "x"),
    (
        "transactions",
        "`SELECT`, and\n  `MOVE` and `COPY` into another database, are refused in scripts",
        &["EVAL {return redis.call('SELECT', 1)} 0"],
        "-ERR",
    ),
    (
        "transactions",
        "`MOVE` and `COPY ... DB` are atomic writes of two keys, and keep the time to live",
        &["SET m v EX 100", "SELECT 3", "DEL m", "SELECT 0", "MOVE m 3", "SELECT 3", "TTL m"],
        ":",
    ),
    (
        "scripts",
        "`PUBLISH` and `SPUBLISH` in a script answer 0",
        &["EVAL {return redis.call('PUBLISH', 'c', 'm')} 0"],
        ":0",
    ),
    (
        "scripts",
        "a script publishes\nat most 4 MiB",
        &[
            "EVAL {local m = ('x'):rep(2^20) for i = 1, 5 do redis.call('PUBLISH', 'c', m) end return 1} 0",
        ],
        "-ERR",
    ),
    (
        "scripts",
        "Channel and message have at most 1 MiB",
        &["EVAL {redis.call('PUBLISH', 'c', ('x'):rep(2^20 + 1)) return 1} 0"],
        "-ERR",
    ),
    (
        "scripts",
        "`pairs` and `next` refuse a table whose keys are tables or functions",
        &["EVAL {for k in pairs({[{}] = 1}) do end return 1} 0"],
        "-ERR",
    ),
    (
        "scripts",
        "Bytecode is refused",
        &["EVAL {return loadstring(string.char(27) .. 'Lua') and 1 or 0} 0"],
        ":0",
    ),
    (
        "scripts",
        "`unpack` gives at most 7,001 values",
        &["EVAL {local t = {} for i = 1, 7002 do t[i] = 'x' end return select('#', unpack(t))} 0"],
        "-ERR",
    ),
    (
        "scripts",
        "`unpack` gives at most 7,001 values",
        &["EVAL {local t = {} for i = 1, 7001 do t[i] = 'x' end return select('#', unpack(t))} 0"],
        ":7001",
    ),
    (
        "scripts",
        "nested 127 deep",
        &["EVAL {local t = {} for i = 1, 126 do t = {t} end return t} 0"],
        "*1",
    ),
    ("scripts", "So there is never a script to kill", &["SCRIPT KILL"], "-NOTBUSY"),
    ("scripts", "`FUNCTION KILL`\n  answers `NOTBUSY`", &["FUNCTION KILL"], "-NOTBUSY"),
    (
        "scripts",
        "keeps the effects of its earlier commands",
        &["DEL e", "EVAL {redis.call('SET', 'e', 1) error('no')} 0", "EXISTS e"],
        ":1",
    ),
    (
        "scripts",
        "is stopped, or that needs more than 32 MiB of memory and does not catch the error",
        &["DEL e", "EVAL {redis.call('SET', 'e', 1) while true do end} 0", "EXISTS e"],
        ":0",
    ),
    (
        "scripts",
        "Functions whose names differ only in case are refused",
        &["FUNCTION LOAD {#!lua name=one\nredis.register_function('f', function() return 1 end) \
             redis.register_function('F', function() return 1 end)}"],
        "-ERR",
    ),
    (
        "scripts",
        "Administrative commands are refused",
        &["EVAL {return redis.call('SHUTDOWN')} 0"],
        "-ERR",
    ),
    (
        "blocking",
        "`numreplicas` up to this number is answered at once",
        &["SET w v", "WAIT 2 0"],
        ":2",
    ),
    ("blocking", "With a larger number the client waits", &["SET w v", "WAIT 9 50"], ":2"),
    ("blocking", "in scripts it is refused", &["EVAL {return redis.call('WAIT', 1, 1)} 0"], "-ERR"),
    ("blocking", "`WAITAOF`", &["WAITAOF 0 0 0"], "-ERR"),
    ("blocking", "Of up to 8 keys", &["XREAD STREAMS x0 x1 0 0"], "*-1"),
    (
        "blocking",
        "An `XREAD` of more than eight streams",
        &[
            "XADD x2 1-1 f v",
            "XREAD COUNT 1 STREAMS x2 x3 x4 x5 x6 x7 x8 x9 x10 x11 0 0 0 0 0 0 0 0 0 0",
        ],
        "*1",
    ),
    ("blocking", "is an error at once", &["SET b v", "BLPOP b 0"], "-WRONGTYPE"),
    (
        "users",
        "`ACL SAVE` and `LOAD` are refused",
        &["ACL SAVE"],
        "-ERR This Redis instance is not",
    ),
    (
        "users",
        "`ACL SAVE` and `LOAD` are refused",
        &["ACL LOAD"],
        "-ERR This Redis instance is not",
    ),
    ("users", "inside `MULTI`", &["MULTI", "ACL SETUSER u on", "EXEC"], "*1"),
    ("users", "inside `MULTI`", &["MULTI", "ACL DELUSER u", "EXEC"], "*1"),
    ("users", "`MODULE LIST` is empty", &["MODULE LIST"], "*0"),
    ("users", "(`*-listpack-*`, `lfu-*`, `hz` ...)", &["CONFIG SET hz 20"], "+OK"),
    ("users", "takes only the value", &["CONFIG SET maxmemory 100mb"], "-ERR"),
    ("users", "takes only the value", &["CONFIG SET appendonly yes"], "-ERR"),
    ("users", "takes only the value", &["CONFIG SET maxmemory-policy allkeys-lru"], "-ERR"),
    ("users", "takes only the value", &["CONFIG SET save {3600 1}"], "-ERR"),
    ("users", "sets all or none", &["CONFIG SET hz 30 appendonly yes"], "-ERR"),
    ("pubsub", "are refused within `MULTI`", &["MULTI", "SUBSCRIBE c"], "-ERR"),
    ("pubsub", "are refused within `MULTI`", &["MULTI", "PUBSUB CHANNELS"], "-ERR"),
    (
        "pubsub",
        "(a read found no key) is refused",
        &["CONFIG SET notify-keyspace-events Km"],
        "-ERR",
    ),
    ("pubsub", "`e` and `d` are accepted", &["CONFIG SET notify-keyspace-events Ked"], "+OK"),
    ("pubsub", "The setting belongs to the rack", &["CONFIG SET notify-keyspace-events {}"], "+OK"),
    ("types", "`OBJECT IDLETIME` is refused", &["SET o v", "OBJECT IDLETIME o"], "-ERR"),
    ("types", "`PFDEBUG` and `PFSELFTEST` are refused", &["PFDEBUG ENCODING h"], "-ERR"),
    ("types", "`PFDEBUG` and `PFSELFTEST` are refused", &["PFSELFTEST"], "-ERR"),
    (
        "types",
        "`LCS` compares 64 million pairs of bytes at most",
        &["SETRANGE l1 8000 x", "SETRANGE l2 8001 x", "LCS l1 l2 LEN"],
        "-ERR",
    ),
    (
        "types",
        "`LCS` compares 64 million pairs of bytes at most",
        &["SETRANGE l3 7998 x", "SETRANGE l4 7998 x", "LCS l3 l4 LEN"],
        ":7999",
    ),
    ("time", "`EXPIRETIME`", &["SET t v EXAT 4000000000", "EXPIRETIME t"], ":4000000000"),
    (
        "scripts",
        "Administrative commands are refused",
        &["EVAL {return redis.call('CONFIG', 'GET', 'hz')} 0"],
        "-ERR",
    ),
];

/// What differs with the Redis engine.
const REDIS: [Row; 8] = [
    ("scripts", "they answer `-NOTBUSY`", &["SCRIPT KILL"], "-NOTBUSY"),
    ("scripts", "they answer `-NOTBUSY`", &["FUNCTION KILL"], "-NOTBUSY"),
    (
        "scripts",
        "In scripts, `OBJECT`, `RESTORE` with a time\n  to live",
        &["SET o v", "EVAL {return redis.call('OBJECT', 'ENCODING', 'o')} 0"],
        "-ERR",
    ),
    ("transactions", "`SELECT` takes `0` to `15`", &["SELECT 15"], "+OK"),
    (
        "scripts",
        "with the Redis engine KEYS, SMEMBERS and HGETALL are sorted",
        &["SADD s c a b", "EVAL {return table.concat(redis.call('SMEMBERS', 's'))} 0"],
        "abc",
    ),
    ("transactions", "`SWAPDB` is refused", &["SWAPDB 0 1"], "-ERR"),
    (
        "blocking",
        "`numreplicas` up to this number is answered at once",
        &["SET w v", "WAIT 2 0"],
        ":2",
    ),
    ("types", "`PFCOUNT` leaves the string as it is", &["PFADD h a", "PFCOUNT h"], ":1"),
];

/// Values that CONFIG GET gives, beside the sentence that states them.
const SETTINGS: [(&str, &str, &str, &str); 6] = [
    ("users", "`slowlog-log-slower-than` (10 ms\nby default)", "slowlog-log-slower-than", "10000"),
    ("pubsub", "up to 100,000 keys", "tracking-table-max-keys", "100000"),
    ("limits", "With 10,000 connections (`maxclients`)", "maxclients", "10000"),
    (
        "pubsub",
        "(`client-output-buffer-limit pubsub 32mb 8mb 60`)",
        "client-output-buffer-limit",
        "normal 0 0 0 slave 0 0 0 pubsub 33554432 8388608 60",
    ),
    ("transactions", "`SELECT` takes `0` to `15`", "databases", "16"),
    ("limits", "without eviction", "maxmemory-policy", "noeviction"),
];

/// The words of a command; a group in braces is one.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![];
    let mut rest = command;
    while !rest.is_empty() {
        // Lua has braces, too: a group ends before a blank or at the end.
        let (word, after) = if let Some(inner) = rest.strip_prefix('{') {
            let end = inner.rfind("} ").filter(|_| !inner.ends_with('}'));
            let end = end.or_else(|| inner.rfind('}')).unwrap();
            (&inner[..end], &inner[end + 1..])
        } else {
            rest.split_at(rest.find(' ').unwrap_or(rest.len()))
        };
        words.push(word.to_string());
        rest = after.trim_start_matches(' ');
    }
    words
}

fn say(client: &mut Resp, command: &str) -> String {
    let words = words(command);
    let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let (line, value) = client.call(&args).unwrap();
    let is_text = line.starts_with('$') && line != "$-1";
    if is_text { String::from_utf8_lossy(&value).into_owned() } else { line }
}

/// The page that a row names, with the sentence in it.
fn is_stated(name: &str, words: &str) -> bool {
    page(&format!("reference/semantics/{name}.md")).contains(words)
}

/// Tries each row with a connection of its own; lines of those that are answered otherwise.
fn differing(rack: &Rack, rows: &[Row]) -> Vec<String> {
    let mut differ = Vec::new();
    for (name, sentence, commands, expected) in rows {
        if !is_stated(name, sentence) {
            differ.push(format!("{name}.md does not say {sentence:?}"));
        }
        let mut client = rack.client();
        let said = commands.iter().map(|command| say(&mut client, command)).last().unwrap();
        if !said.starts_with(expected) {
            differ.push(format!("{name}.md: {commands:?}: {expected} is not {said}"));
        }
    }
    differ
}

fn setting_of(client: &mut Resp, name: &str) -> String {
    assert_eq!(say(client, &format!("CONFIG GET {name}")), "*2", "{name}");
    client.next().unwrap();
    String::from_utf8(client.next().unwrap().1).unwrap()
}

#[test]
fn docs_semantics_of_commands_with_the_memory_engine() {
    let rack = Rack::start("docs-memory", &[]);
    let mut differ = differing(&rack, &MEMORY);
    let mut client = rack.client();
    for (name, sentence, setting, expected) in SETTINGS {
        let said = setting_of(&mut client, setting);
        if said != expected || !is_stated(name, sentence) {
            differ.push(format!("{name}.md: {sentence:?}: {setting} is {said}, not {expected}"));
        }
    }
    // An argument is as long as CONFIG GET says, and no longer.
    let longest: usize = setting_of(&mut client, "proto-max-bulk-len").parse().unwrap();
    let value = vec![b'v'; longest + 1];
    assert_eq!(client.call(&[b"SET", b"long", &value[1..]]).unwrap().0, "+OK");
    let (said, _) = rack.client().call(&[b"SET", b"long", &value]).unwrap();
    assert!(said.starts_with("-ERR"), "{said}");
    // What CONCORD EXPLAIN tells.
    let text = page("reference/semantics.md");
    let told = text.split("## Why a read was fast or slow").nth(1).unwrap();
    let (line, _) = client.call(&[b"CONCORD", b"EXPLAIN", b"GET", b"c"]).unwrap();
    let count: usize = line[1..].parse().unwrap();
    let said: Vec<String> = (0..count)
        .map(|_| String::from_utf8_lossy(&client.next().unwrap().1).into_owned())
        .collect();
    for key in ["path", "reason", "replica", "attempts", "epoch", "latency_us", "last_committed"] {
        let is_there = said.iter().any(|word| word == key) && told.contains(&format!("`{key}`"));
        assert!(is_there, "{key}: {said:?}");
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn docs_semantics_of_commands_with_the_redis_engine() {
    let rack = Rack::start("docs-redis", &["--engine", "redis"]);
    let mut client = rack.client();
    until("the commands are known", || say(&mut client, "EVAL {return 1} 0") == ":1");
    let differ = differing(&rack, &REDIS);
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

/// What `concord status` and `/status` call `keys` is asked of redis-server, and of each replica's.
#[test]
fn bug_24_9_keys_of_redis_servers_are_counted() {
    let rack = Rack::start("keys-redis", &["--engine", "redis"]);
    let mut client = rack.client();
    until("the commands are known", || say(&mut client, "EVAL {return 1} 0") == ":1");
    for n in 0..7 {
        assert_eq!(say(&mut client, &format!("SET key:{n} v")), "+OK");
    }
    for node in 1..=3 {
        until("its keys", || rack.role("replica", node)["keys"] == 7);
    }
}
