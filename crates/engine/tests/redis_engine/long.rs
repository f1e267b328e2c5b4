//! Replies that are longer than a reply may be.

use super::scripts::{any, exec};
use super::*;

const NOT_DONE: &str =
    "-ERR the reply would be longer than 64 MiB (Concord's limit): nothing was changed\r\n";
const DONE: &str = "-ERR executed, but the reply is longer than 64 MiB (Concord's limit)\r\n";

/// Elements of 1 MiB in a list, a sorted set and a set.
fn filled() -> Pair {
    let mut pair = Pair::new();
    for n in 0..66 {
        let element = format!("{n:02}{}", "v".repeat(1 << 20));
        for args in [["RPUSH", "l", &element, ""], ["SADD", "s", &element, ""]] {
            pair.write_both(encode(&args[..3]), &args[..2]);
        }
        let score = n.to_string();
        pair.write_both(encode(&["ZADD", "z", &score, &element]), &["ZADD"]);
    }
    pair
}

/// A pop whose reply would be too long pops nothing, and one whose reply is not does.
#[test]
fn bug_22_111_a_pop_with_too_long_a_reply_pops_nothing() {
    let mut pair = filled();
    for args in [
        &["LPOP", "l", "66"][..],
        &["RPOP", "l", "64"],
        &["ZPOPMIN", "z", "66"],
        &["ZPOPMAX", "z", "64"],
        &["SPOP", "s", "66"],
        &["LMPOP", "1", "l", "LEFT", "COUNT", "66"],
        &["ZMPOP", "1", "z", "MAX", "COUNT", "66"],
    ] {
        let key = usize::from(!args[0].ends_with("MPOP"));
        let command =
            CommandBuf::new().encode(key as u8, args.iter().map(|a| a.as_bytes())).to_vec();
        assert_eq!(pair.write_encoded(command, args), NOT_DONE, "{args:?}");
    }
    assert_eq!(pair.head.read(&["LLEN", "l"]), ":66\r\n");
    for args in [["LPOP", "l", "63"], ["ZPOPMIN", "z", "31"], ["RPOP", "none", "9"]] {
        let reply = pair.write(&args);
        assert!(reply.starts_with('*'), "{args:?}: {}", reply.len());
        assert!(args[1] == "none" || reply.len() > 31 << 20, "{args:?}");
    }
    assert_eq!(pair.head.read(&["LLEN", "l"]), ":3\r\n");
    let wrong = pair.write(&["LPOP", "s", "2"]);
    assert!(wrong.starts_with("-WRONGTYPE"), "{wrong}");
    assert_eq!(pair.write(&["LPOP", "l", "2", "3"]).split(' ').next(), Some("-ERR"));
}

/// What makes a reply of 70 MiB.
const LONG: &str =
    "local s = string.rep('v', 1048576) local all = {} for i = 1, 70 do all[i] = s end ";

/// Of a reply that is too long nothing is kept, whether it is that of a read or stands in one to a
/// transaction; what comes after it is answered.
#[test]
fn bug_22_112_too_long_a_reply_is_dropped_as_it_comes() {
    let mut r = Replica::new(true);
    let many = format!("{LONG} redis.call('SET', KEYS[1], 'done') return all");
    let one = "redis.call('SET', KEYS[1], 'one') return string.rep('v', 70000000)";
    for (script, left) in [(many.as_str(), "done"), (one, "one")] {
        // A read in the same transaction: neither is too long by itself for the server to know.
        let parts: [&[&str]; 2] = [&["EVAL", script, "1", "k"], &["FLUSHALL"]];
        r.submit(Class::Write, &exec(&parts));
        r.submit(Class::Write, &encode(&["EVAL", script, "1", "k"]));
        r.submit(Class::Write, &encode(&["INCR", "n"]));
        let reply = String::from_utf8_lossy(&r.wait().reply).into_owned();
        assert_eq!(reply, format!("*2\r\n{NOT_DONE}+OK\r\n"), "{left}");
        assert_eq!(String::from_utf8_lossy(&r.wait().reply), NOT_DONE);
        assert_eq!(String::from_utf8_lossy(&r.wait().reply), ":1\r\n");
        assert_eq!(r.read(&["GET", "k"]), "$-1\r\n");
    }
    let reads = format!("{LONG} return all");
    let read = r.read(&["EVAL_RO", &reads, "1", "k"]);
    assert_eq!(read, "-ERR the reply is longer than 64 MiB (Concord's limit)\r\n");
    let below = "return string.rep('v', 67000000)";
    assert_eq!(r.write(&["EVAL", below, "1", "k"]).len(), 67_000_000 + 13);
    assert_eq!(r.read(&["GET", "n"]), "$1\r\n1\r\n");
}

/// What a script does whose reply turns out to be too long is taken back, whatever it did: to small
/// keys and large ones, to times to live, and to keys that were due.
#[test]
fn bug_22_178_a_script_with_too_long_a_reply_changed_nothing() {
    let mut pair = Pair::new();
    pair.write_both(any(&["EVAL", FILL, "0"]), &["FILL"]);
    for (key, ms) in [("hb", "90000"), ("ls", "90000"), ("tb", "5"), ("zs", "5")] {
        pair.write(&["PEXPIRE", key, ms]);
    }
    (pair.head.context.now_ms, pair.follower.context.now_ms) = (NOW_MS + 6, NOW_MS + 6);
    // Without the position, and what is kept for the next script.
    let state = |pair: &Pair| {
        let server = &pair.head.server;
        let data = server.cli(&[&["DEBUG", "DIGEST-VALUE"], &KEYS[..]].concat());
        let beside = server.cli(&["-n", "1", "EVAL", BESIDE, "0"]);
        (data, beside)
    };
    let mut rng = concord_core::Rng::new(48);
    // The first makes what is kept beside the data.
    pair.write_both(any(&["EVAL", "return redis.call('TTL', 'hb')", "0"]), &[]);
    let before = state(&pair);
    for round in 0..30 {
        let some = (0..1 + rng.below(8)).map(|_| CHANGES[rng.below(CHANGES.len() as u64) as usize]);
        let some: Vec<String> = some.map(|line| format!("redis.pcall({line}) ")).collect();
        let script = format!("{}{LONG} return all", some.concat());
        let said = pair.write_encoded(any(&["EVAL", &script, "0"]), &["EVAL"]);
        assert_eq!(said, NOT_DONE, "{round}: {some:?}");
        assert_eq!(state(&pair), before, "{round}: {some:?}");
    }
    // Each of them by itself is executed, and the next is not hindered by what was kept.
    for line in CHANGES {
        let script = format!("redis.pcall({line}) return 1");
        let said = pair.write_encoded(any(&["EVAL", &script, "0"]), &[line]);
        // What it publishes stands in front.
        assert!(said.ends_with(":1\r\n"), "{line}: {said}");
    }
    let (_, beside) = state(&pair);
    assert!(!beside.contains("kept"), "{beside}");
}

/// What there is beside the data, and how many keys.
const BESIDE: &str = "local all = redis.call('KEYS', '*') table.sort(all) \
     all[#all + 1] = redis.call('HLEN', 'concord:deadlines') redis.call('SELECT', 0) \
     all[#all + 1] = redis.call('DBSIZE') return all";

const KEYS: [&str; 12] = ["ls", "lb", "ts", "tb", "hs", "hb", "zs", "zb", "xs", "xb", "ss", "sb"];

/// A small and a large value of each type.
const FILL: &str = "for name, count in pairs({s = 5, b = 300}) do for i = 1, count do \
     redis.call('RPUSH', 'l' .. name, 'e' .. i % 50) redis.call('SADD', 't' .. name, 'm' .. i) \
     redis.call('HSET', 'h' .. name, 'f' .. i, i) redis.call('ZADD', 'z' .. name, i % 7 + 0.1, 'm' .. i) \
     redis.call('XADD', 'x' .. name, i .. '-1', 'f', i) end \
     redis.call('XGROUP', 'CREATE', 'x' .. name, 'g', '0') \
     redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', 3, 'STREAMS', 'x' .. name, '>') end \
     redis.call('SET', 'ss', '12') redis.call('SET', 'sb', string.rep('a', 70000))";

const CHANGES: [&str; 62] = [
    "'RPUSH', 'lb', 'x', 'y'",
    "'LPUSH', 'lb', 'x', 'y', 'z'",
    "'RPUSHX', 'ls', 'x'",
    "'LPOP', 'lb'",
    "'RPOP', 'lb', 7",
    "'LPOP', 'lb', 400",
    "'RPOPLPUSH', 'lb', 'ls'",
    "'LMOVE', 'ls', 'lb', 'LEFT', 'RIGHT'",
    "'LMOVE', 'lb', 'lb', 'RIGHT', 'LEFT'",
    "'LSET', 'lb', -3, 'x'",
    "'LREM', 'lb', 2, 'e4'",
    "'LINSERT', 'lb', 'BEFORE', 'e7', 'new'",
    "'LTRIM', 'lb', 3, 100",
    "'LMPOP', 2, 'no', 'lb', 'LEFT', 'COUNT', 3",
    "'SADD', 'tb', 'm3', 'new'",
    "'SREM', 'tb', 'm3', 'm4', 'none'",
    "'SMOVE', 'tb', 'ts', 'm77'",
    "'SPOP', 'tb', 4",
    "'SPOP', 'ts'",
    "'SUNIONSTORE', 'ts', 'tb', 'ts'",
    "'HSET', 'hb', 'f3', 'x', 'new', 'y'",
    "'HDEL', 'hb', 'f5', 'none'",
    "'HINCRBY', 'hb', 'f9', 5",
    "'HINCRBYFLOAT', 'hb', 'new2', 0.3",
    "'HSETNX', 'hs', 'f1', 'x'",
    "'ZADD', 'zb', 3.3333333333333, 'm3', 'inf', 'new'",
    "'ZADD', 'zb', 'GT', 'CH', 5, 'm9'",
    "'ZADD', 'zs', 'INCR', 0.1, 'm1'",
    "'ZINCRBY', 'zb', 0.7, 'm12'",
    "'ZREM', 'zb', 'm5', 'none'",
    "'ZPOPMIN', 'zb', 4",
    "'ZPOPMAX', 'zb'",
    "'ZREMRANGEBYSCORE', 'zb', 2, 4",
    "'ZREMRANGEBYRANK', 'zb', 0, 5",
    "'ZREMRANGEBYLEX', 'zb', '-', '[m2'",
    "'ZUNIONSTORE', 'zs', 2, 'zb', 'zs'",
    "'XADD', 'xb', '*', 'a', 'b'",
    "'XADD', 'xs', 'MAXLEN', 4, '*', 'a', 'b'",
    "'XDEL', 'xb', '3-1'",
    "'XACK', 'xb', 'g', '1-1'",
    "'XREADGROUP', 'GROUP', 'g', 'c2', 'COUNT', 2, 'STREAMS', 'xb', '>'",
    "'XCLAIM', 'xs', 'g', 'c3', 0, '1-1'",
    "'SET', 'lb', 'v', 'PX', 9000",
    "'SET', 'sb', 'v', 'KEEPTTL'",
    "'SET', 'no', 'v', 'PX', 9000",
    "'APPEND', 'sb', 'xyz'",
    "'SETRANGE', 'sb', 69999, 'qqq'",
    "'SETBIT', 'sb', 700000, 1",
    "'INCR', 'ss'",
    "'GETDEL', 'sb'",
    "'MSET', 'ss', 1, 'no2', 2",
    "'BITOP', 'NOT', 'ss', 'sb'",
    "'DEL', 'hb', 'xb'",
    "'UNLINK', 'zb'",
    "'RENAME', 'hb', 'hs'",
    "'COPY', 'zb', 'no', 'REPLACE'",
    "'EXPIRE', 'zb', 100",
    "'PEXPIRE', 'lb', -1",
    "'PERSIST', 'hb'",
    "'SORT', 'lb', 'ALPHA', 'STORE', 'no'",
    "'GEOADD', 'zb', 13, 38, 'p'",
    "'PUBLISH', 'c', 'm'",
];

/// Of a key of more than 10,000 elements some changes cannot be taken back, which all replicas find
/// alike: the script was executed, and the client is told.
#[test]
fn bug_22_178_what_cannot_be_taken_back_is_said() {
    let mut pair = Pair::new();
    let fill = "for i = 1, 10001 do redis.call('SADD', KEYS[1], i) end return 1";
    assert_eq!(pair.write(&["EVAL", fill, "1", "s"]), ":1\r\n");
    for (line, said) in [
        ("'SREM', KEYS[1], 5, 6", NOT_DONE),
        ("'DEL', KEYS[1]", DONE),
        ("'SADD', KEYS[1], 5", NOT_DONE),
    ] {
        let script = format!("redis.call({line}) {LONG} return all");
        assert_eq!(pair.write(&["EVAL", &script, "1", "s"]), said, "{line}");
    }
    assert_eq!(pair.head.read(&["EXISTS", "s"]), ":0\r\n");
}

/// A transaction whose replies would be too long together is refused before it has done anything,
/// if what they would be does not depend on its own changes.
#[test]
fn bug_22_179_a_transaction_with_too_long_replies_is_refused() {
    let mut pair = filled();
    let half = "v".repeat(40 << 20);
    for (key, _) in [("a", 1), ("b", 2)] {
        pair.write_both(encode(&["SET", key, &half]), &["SET", key]);
    }
    let set: &[&str] = &["SET", "done", "x"];
    for long in [
        &[&["LRANGE", "l", "0", "-1"][..]][..],
        &[&["GET", "a"], &["GET", "b"]],
        &[&["GETDEL", "a"], &["LRANGE", "l", "5", "40"]],
        &[&["LPOP", "l", "40"], &["GET", "b"]],
        &[&["SMEMBERS", "s"]],
        &[&["ZRANGE", "z", "0", "-1"]],
        &[&["ZPOPMAX", "z", "30"], &["RPOP", "l", "40"]],
        &[&["MGET", "a", "b"]],
    ] {
        let lines: Vec<&[&str]> = [set].into_iter().chain(long.iter().copied()).collect();
        assert_eq!(pair.exec(&lines), NOT_DONE, "{long:?}");
        assert_eq!(pair.head.read(&["EXISTS", "done"]), ":0\r\n", "{long:?}");
    }
    pair.assert_equal(&["EXEC"]);
    for short in [
        &[&["LRANGE", "l", "0", "9"][..], &["GET", "a"]][..],
        &[&["GET", "a"], &["HGETALL", "none"], &["LRANGE", "a", "0", "-1"]],
        // What is deleted before is not answered.
        &[&["DEL", "l"], &["LRANGE", "l", "0", "-1"]],
    ] {
        let lines: Vec<&[&str]> = [set].into_iter().chain(short.iter().copied()).collect();
        let said = pair.exec(&lines);
        assert!(said.starts_with(&format!("*{}\r\n+OK", lines.len())), "{short:?}: {}", said.len());
        assert_eq!(pair.write_both(encode(&["DEL", "done"]), &["DEL"]), ":1\r\n", "{short:?}");
    }
    assert_eq!(pair.head.read(&["LLEN", "l"]), ":0\r\n");
}

/// Long replies are moved and not copied: each is in its place, and so is what stands around it.
#[test]
fn long_replies_are_in_their_places() {
    let mut r = Replica::new(true);
    let (a, b) = ("a".repeat(2 << 20), "b".repeat(3 << 20));
    for (key, value) in [("a", &a), ("b", &b)] {
        assert_eq!(r.write(&["SET", key, value, "PX", "5000"]), "+OK\r\n");
    }
    let bulk = |value: &str| format!("${}\r\n{value}\r\n", value.len());
    let lines: [&[&str]; 7] = [
        &["SET", "x", "1"],
        &["GET", "a"],
        &["INCR", "n"],
        &["GETDEL", "b"],
        &["PTTL", "a"],
        &["GET", "a"],
        &["STRLEN", "b"],
    ];
    let said = String::from_utf8(r.run(Class::Write, &exec(&lines)).reply).unwrap();
    let all = ["+OK\r\n", &bulk(&a), ":1\r\n", &bulk(&b), ":5000\r\n", &bulk(&a), ":0\r\n"];
    assert!(said == format!("*7\r\n{}", all.concat()), "{} bytes", said.len());
    for _ in 0..3 {
        r.submit(Class::Read, &encode(&["GET", "x"]));
        r.submit(Class::Read, &encode(&["GET", "a"]));
    }
    r.submit(Class::Write, &encode(&["GETDEL", "a"]));
    for _ in 0..3 {
        assert_eq!(r.wait().reply, bulk("1").into_bytes());
        assert!(r.wait().reply == bulk(&a).into_bytes());
    }
    assert!(r.wait().reply == bulk(&a).into_bytes());
    assert_eq!(r.read(&["EXISTS", "a"]), ":0\r\n");
}
