//! The properties that make scripts safe to execute at every replica: they do the same, and they
//! end.

#![allow(clippy::unwrap_used)] // A test outside a test function, for clippy.

use std::time::{Duration, Instant};

use concord_engine::script::{Host, Ran, Script};
use concord_engine::{Class, Command, CommandBuf, Context, Engine, Memory, Progress, Shimmed};

/// What a script may cost here: a twentieth of what it may.
const TESTED: u64 = 20_000_000;

struct Replica {
    engine: Shimmed<Memory>,
    position: u64,
}

impl Replica {
    fn new() -> Replica {
        let engine = Shimmed::new(Memory::new(0)).with_scripts(concord_lua::run_within::<TESTED>);
        Replica { engine, position: 0 }
    }

    /// Its copy at another node: the same data by another way.
    fn copied(&mut self) -> Replica {
        let mut other = Replica::new();
        other.position = self.position;
        assert!(self.engine.prepare_copy());
        let mut from = 0;
        while from != concord_engine::copy::PLACE_END {
            let mut chunk = Vec::new();
            assert_eq!(self.engine.copy(from, 1 << 16, &mut chunk), Progress::Done);
            other.engine.install(&chunk).unwrap();
            from = concord_engine::copy::next_place(&chunk).unwrap();
        }
        other
    }

    fn at(&mut self, now_ms: u64, full: bool, key_index: u8, args: &[&[u8]]) -> String {
        self.position += 1;
        let context = Context {
            now_ms,
            entropy: concord_core::rng::splitmix64(self.position),
            position: self.position,
            memory_full: full,
            ..Context::default()
        };
        let mut buf = CommandBuf::new();
        let command = buf.encode(key_index, args.iter().copied());
        let command = Command::parse(command).unwrap();
        let mut reply = Vec::new();
        let progress = self.engine.submit(&context, Class::Write, &command, &mut reply);
        if progress == Progress::Pending {
            // A long script.
            reply = std::iter::repeat_with(|| self.engine.poll()).flatten().next().unwrap().reply;
        }
        String::from_utf8_lossy(&reply).into_owned()
    }

    fn eval(&mut self, script: &str) -> String {
        self.at(1_000_000, false, 0, &[b"EVAL", script.as_bytes(), b"0"])
    }
}

/// What replicas could differ by: the clock, draws, the order of tables and of keys, addresses,
/// memory.
const SCRIPTS: [&str; 12] = [
    "local t = redis.call('TIME') return redis.call('SET', 'time', t[1] .. '.' .. t[2])",
    "for i = 1, 50 do redis.call('SET', 'k' .. i, i) end return redis.call('DBSIZE')",
    "return redis.call('SET', 'drawn', redis.call('RANDOMKEY'))",
    "for i = 1, 5 do redis.call('RPUSH', 'all', redis.call('RANDOMKEY')) end",
    "for i, k in ipairs(redis.call('KEYS', 'k*')) do redis.call('RPUSH', 'order', k) end",
    "local r = redis.call('SCAN', '0', 'COUNT', '1000') \
     for i, k in ipairs(r[2]) do redis.call('RPUSH', 'order', k) end",
    "for i = 1, 40 do redis.call('SADD', 's', 'm' .. i) end \
     redis.call('SADD', 'o', redis.call('SPOP', 's'), unpack(redis.call('SRANDMEMBER', 's', 3)))",
    "for i = 1, 40 do redis.call('HSET', 'h', i, i) redis.call('ZADD', 'z', i % 7, i) end \
     redis.call('RPUSH', 'f', redis.call('HRANDFIELD', 'h'), redis.call('ZRANDMEMBER', 'z'))",
    "local t = {} for i = 1, 60 do t['key' .. math.random(1000000)] = i end \
     for k, v in pairs(t) do redis.call('RPUSH', 'pairs', k, v) end",
    "redis.call('SET', 'shown', tostring({}) .. tostring(redis.call) .. tostring({}))",
    "redis.call('SET', 'floats', math.sin(1) .. ' ' .. 2 ^ 0.5 .. ' ' .. 1e100 / 3)",
    "local t = setmetatable({}, {__mode = 'k'}) for i = 1, 1000 do t[{}] = i end \
     redis.call('SET', 'memory', collectgarbage('count') > 0 and 'some' or 'none')",
];

/// Replicas agree on scripts that draw that ask for the time and that walk tables.
#[test]
fn replicas_agree_on_random_time_and_tables() {
    let mut first = Replica::new();
    // The other's memory, and so its tables of keys, look different: it had other keys once.
    let mut second = Replica::new();
    for i in 0..5_000 {
        second.at(1, false, 1, &[b"SET", format!("old{i}").as_bytes(), b"v"]);
    }
    second.at(1, false, 0, &[b"FLUSHALL"]);
    second.position = 0;
    let mut third = None;
    for (number, script) in SCRIPTS.iter().chain(SCRIPTS.iter()).enumerate() {
        let replies = (first.eval(script), second.eval(script));
        assert_eq!(replies.0, replies.1, "{script}");
        assert!(!replies.0.starts_with('-'), "{script}: {}", replies.0);
        let copy: &mut Replica = third.get_or_insert_with(|| first.copied());
        if number > 0 {
            assert_eq!(copy.eval(script), replies.0, "{script}");
        }
        assert_eq!(first.engine.digest(), second.engine.digest(), "{script}");
        assert_eq!(first.engine.digest(), copy.engine.digest(), "{script}");
    }
    assert_eq!(
        first.at(1, false, 1, &[b"LLEN", b"order"]),
        second.at(1, false, 1, &[b"LLEN", b"order"])
    );
}

#[test]
fn tables_that_have_objects_as_keys_are_not_walked() {
    let mut replica = Replica::new();
    for script in [
        "local t = {} t[{}] = 1 for k, v in pairs(t) do end",
        "local t = {} t[function() end] = 1 return next(t)",
        "local t = {} t[{}] = 1 table.foreach(t, function() end)",
    ] {
        let reply = replica.eval(script);
        assert!(reply.contains("has no order"), "{script}: {reply}");
    }
}

#[test]
fn a_script_that_does_not_end_is_stopped_whatever_it_catches() {
    let mut replica = Replica::new();
    for script in [
        "redis.call('SET', 'k', 'before') while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() while true do xpcall(f, function() while true do end end) end end f()",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "local function f() while true do pcall(coroutine.wrap(f)) end end f()",
        "while true do redis.pcall('GET', 'k') end",
        "while true do redis.pcall('SET', 'k', string.rep('x', 100000)) end",
        "local s = 'x' while true do s = s .. s .. s end",
        "local t = {} while true do t[#t + 1] = string.rep('y', 10000) .. #t end",
        "local s = '' while true do s = s .. 'x' end",
        "return string.find(string.rep('a', 100000), '.-.-.-.-.-b')",
        "return string.gsub(string.rep('a', 100000), '(a*)*b', '')",
        "for _ in string.gmatch(string.rep('a', 100000), 'a-a-a-b') do end",
        "while true do string.rep('', 1e9) end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.insert(t, 1, 1) end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.sort(t) end",
        "return setmetatable({}, {__index = function(t, k) while true do end end}).x",
    ] {
        let began = Instant::now();
        let reply = replica.eval(script);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(15), "{script} took {took:?}");
        let is_stopped = reply.contains(" and was stopped; it has changed nothing\r\n");
        assert!(is_stopped, "{script}: {reply}");
    }
    // What it did before is undone; and the next one runs.
    let script = "redis.call('SET', 'k', 'before') while true do end";
    replica.eval(script);
    assert_eq!(replica.eval("return redis.call('GET', 'k')"), "$-1\r\n");
}

/// What counted collections was called by the collector, which also runs where nobody catches an
/// error: then Lua calls `exit`, and each replica ends. How far a collection is when a script ends
/// hangs on where the process has its memory, so it is many processes.
#[test]
fn bug_18_19_script_may_end_in_any_collection_phase() {
    const NAME: &str = "bug_18_19_script_may_end_in_any_collection_phase";
    if std::env::var_os("CONCORD_ONE_SCRIPT").is_some() {
        let mut replica = Replica::new();
        for _ in 0..5 {
            let reply = replica.eval("local s = 'x' while true do s = s .. s .. s end");
            assert!(reply.contains("more than 32 MiB"), "{reply}");
        }
        return;
    }
    for _ in 0..20 {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = again.args(["--exact", NAME]).env("CONCORD_ONE_SCRIPT", "1").output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    }
}

/// Answers each command with its number.
struct Counting(i64);

impl Host for Counting {
    fn call(&mut self, _resp3: bool, _args: &[&[u8]], reply: &mut Vec<u8>) -> u64 {
        self.0 += 1;
        concord_engine::resp::integer(reply, self.0);
        0
    }

    fn may(&mut self, _args: &[&[u8]]) -> Option<bool> {
        Some(true)
    }
}

/// Scripts that are stopped, that fill the memory and go on, and that have weak tables: what they
/// did before is the same in each process, and whatever ran before in one. How far Lua's own
/// collector is after so many steps hangs on addresses.
#[test]
fn bug_18_55_what_a_script_may_cost_hangs_on_no_address() {
    const NAME: &str = "bug_18_55_what_a_script_may_cost_hangs_on_no_address";
    let scripts = [
        "while true do pcall(redis.call, 'INCR', 'a') end",
        "local t = {} pcall(function() while true do t[#t + 1] = redis.call('INCR', 'b') .. string.rep('x', 10000) end end) \
         t = nil return redis.call('INCR', 'b')",
        "local w = setmetatable({}, {__mode = 'k'}) for i = 1, 200000 do w[{}] = i end \
         local n = 0 for i = 1, 200000 do w[{}] = nil end redis.call('SET', 'c', #redis.call('KEYS', '*'))",
        "local w = setmetatable({}, {__mode = 'v'}) for i = 1, 100000 do w[i] = {i} end \
         local n = 0 for i = 1, 100000 do if w[i] then n = n + 1 end end return redis.call('SET', 'd', n)",
        "local c = coroutine.wrap(function() while true do redis.call('INCR', 'e') coroutine.yield(string.rep('y', 5000)) end end) \
         while true do c() end",
    ];
    let state = || {
        let mut replica = Replica::new();
        scripts.iter().for_each(|script| drop(replica.eval(script)));
        // Of those that are stopped: how far they came, which is undone.
        let calls = scripts.map(|script| {
            let mut host = Counting(0);
            let nothing: [&[u8]; 0] = [];
            let script = Script {
                text: script.as_bytes(),
                code_at: 0,
                keys: &nothing,
                args: &nothing,
                resp3: false,
                seed: 7,
                function: None,
            };
            let mut ran = concord_lua::run_within::<TESTED>(&script, &mut host, &mut Vec::new());
            while let Ran::Paused(paused) = ran {
                ran = paused.go_on(&mut host, &mut Vec::new());
            }
            host.0
        });
        let value = |key: &str| {
            format!("{key}={} ", replica.eval(&format!("return redis.call('GET', '{key}')")))
        };
        let values = ["a", "b", "c", "d", "e"].map(value).concat().replace("\r\n", " ");
        format!("{values} {calls:?}")
    };
    let first = state();
    if std::env::var_os("CONCORD_ONE_SCRIPT").is_some() {
        println!("state {first}");
        return;
    }
    assert_eq!(first, state(), "in one process");
    for _ in 0..6 {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let again = again.args(["--exact", NAME, "--nocapture"]).env("CONCORD_ONE_SCRIPT", "1");
        let said = String::from_utf8(again.output().unwrap().stdout).unwrap();
        assert!(said.contains(&format!("state {first}\n")), "{first} beside {said}");
    }
}

#[test]
fn a_script_keeps_times_to_live_and_finds_what_is_due_gone() {
    let mut replica = Replica::new();
    let lock = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 500)";
    let release = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
        return redis.call('DEL', KEYS[1]) end return 0";
    let eval = |replica: &mut Replica, now_ms, script: &str, token: &[u8]| {
        replica.at(now_ms, false, 3, &[b"EVAL", script.as_bytes(), b"1", b"lock", token])
    };
    assert_eq!(eval(&mut replica, 1_000, lock, b"a"), "+OK\r\n");
    assert_eq!(eval(&mut replica, 1_400, lock, b"b"), "$-1\r\n");
    assert_eq!(eval(&mut replica, 1_400, release, b"b"), ":0\r\n");
    assert_eq!(replica.engine.next_expiry_ms(), Some(1_500));
    // The deadline has come, and the numbered delete has not: a write finds it gone all the same.
    assert_eq!(eval(&mut replica, 1_600, lock, b"b"), "+OK\r\n");
    assert_eq!(replica.engine.next_expiry_ms(), Some(2_100));
    assert_eq!(eval(&mut replica, 1_700, release, b"b"), ":1\r\n");
    assert_eq!(replica.engine.next_expiry_ms(), None);
    let limiter = "local n = redis.call('INCR', KEYS[1]) \
        if n == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end \
        return {n, redis.call('PTTL', KEYS[1])}";
    assert_eq!(eval(&mut replica, 2_000, limiter, b"10"), "*2\r\n:1\r\n:10000\r\n");
    assert_eq!(eval(&mut replica, 5_000, limiter, b"10"), "*2\r\n:2\r\n:7000\r\n");
    assert_eq!(eval(&mut replica, 12_000, limiter, b"10"), "*2\r\n:1\r\n:10000\r\n");
}

#[test]
fn a_script_on_one_key_touches_no_other() {
    let mut replica = Replica::new();
    for call in ["'GET', 'other'", "'DEL', KEYS[1], 'other'", "'KEYS', '*'", "'FLUSHALL'"] {
        let script = format!("return redis.call({call})");
        let reply = replica.at(1, false, 3, &[b"EVAL", script.as_bytes(), b"1", b"own"]);
        assert!(reply.contains("attempted to access a non local key"), "{call}: {reply}");
    }
}

/// Redis lets a script go on that has written, whatever it adds: a DEL first let 50 SETs of 100 KB
/// through. Here each command that needs memory fails, unless the script says `allow-oom`.
#[test]
fn bug_24_5_where_memory_is_full_each_call_that_needs_it_fails() {
    let mut replica = Replica::new();
    let full = |replica: &mut Replica, script: &str| {
        replica.at(1, true, 3, &[b"EVAL", script.as_bytes(), b"1", b"k"])
    };
    let set = "return redis.call('SET', KEYS[1], 'v')";
    assert!(full(&mut replica, set).starts_with("-OOM command not allowed"));
    let deletes = "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 'v')";
    assert!(full(&mut replica, deletes).starts_with("-OOM command not allowed"));
    let goes_on = "redis.call('DEL', KEYS[1]) return redis.pcall('SET', KEYS[1], 'v').err and 7";
    assert_eq!(full(&mut replica, goes_on), ":7\r\n");
    let flagged = "#!lua\nreturn redis.call('SET', KEYS[1], 'v')";
    assert!(full(&mut replica, flagged).starts_with("-OOM allow-oom flag"));
    let allowed = "#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], 'v')";
    assert_eq!(full(&mut replica, allowed), "+OK\r\n");
}

/// What Redis answers in no stated order: KEYS and SCAN as the engine walks its keys, SMEMBERS and
/// HGETALL in the order of insertion, in which the last one takes the place of one that is removed;
/// the same in a copy of the state.
#[test]
fn bug_24_20_unordered_replies_are_in_the_documented_order() {
    let mut first = Replica::new();
    let fill = "for i = 1, 40 do redis.call('SADD', 's', 'm' .. (i * 7 % 41)) \
                redis.call('HSET', 'h', 'f' .. (i * 11 % 41), i) redis.call('SET', 'k' .. i, i) end \
                for i = 1, 40, 3 do redis.call('SREM', 's', 'm' .. i) redis.call('HDEL', 'h', 'f' .. i) end \
                redis.call('SADD', 's', 'm1') redis.call('HSET', 'h', 'f1', 1)";
    assert_eq!(first.eval(fill), "$-1\r\n");
    let mut copy = first.copied();
    // The last member takes the place of one that is removed; a short hash closes up.
    let (mut set, mut hash) = (Vec::new(), Vec::new());
    for i in 1..=40 {
        set.push(i * 7 % 41);
        hash.push(i * 11 % 41);
    }
    for gone in (1..=40).step_by(3) {
        set.swap_remove(set.iter().position(|n| *n == gone).unwrap());
        hash.retain(|n| *n != gone);
    }
    set.push(1);
    hash.push(1);
    let names = |all: &[u32], letter: &str| {
        all.iter().map(|n| format!("{letter}{n}")).collect::<Vec<_>>().join(",")
    };
    let members = "return table.concat(redis.call('SMEMBERS', 's'), ',')";
    let fields = "return table.concat(redis.call('HKEYS', 'h'), ',')";
    for (script, wanted) in [(members, names(&set, "m")), (fields, names(&hash, "f"))] {
        let told = first.eval(script);
        assert_eq!(told.lines().nth(1), Some(&*wanted), "{script}");
        assert_eq!(copy.eval(script), told, "{script}");
    }
    for script in [
        "return redis.call('KEYS', '*')",
        "return redis.call('SCAN', '0', 'COUNT', '1000')[2]",
        "return redis.call('HGETALL', 'h')",
    ] {
        assert_eq!(copy.eval(script), first.eval(script), "{script}");
    }
}

/// A script's result is nested 127 deep at most.
#[test]
fn bug_24_20_results_are_as_deep_as_documented() {
    let mut replica = Replica::new();
    let mut nested = |depth: u32| {
        replica.eval(&format!("local t = 1 for i = 1, {depth} do t = {{t}} end return t"))
    };
    assert!(nested(127).starts_with("*1\r\n"));
    let refused = nested(128);
    assert!(refused.contains("-"), "{refused}");
}

/// A message is published in front of the script's own reply: a command that looks at a time to
/// live, or changes one, gets its own reply, and nothing is lost.
#[test]
fn bug_23_1_what_a_script_publishes_is_no_commands_reply() {
    let mut replica = Replica::new();
    let told = ">3\r\n$7\r\npublish\r\n$1\r\nc\r\n$2\r\nm1\r\n";
    for (call, reply) in [
        ("'TTL', 'k'", ":-1\r\n"),
        ("'PEXPIRE', 'k', '5000'", ":1\r\n"),
        ("'PTTL', 'k'", ":5000\r\n"),
        ("'GETEX', 'k', 'PERSIST'", "$1\r\nv\r\n"),
        ("'SET', 'k', 'w', 'PX', '10'", "+OK\r\n"),
        ("'GETDEL', 'k'", "$1\r\nw\r\n"),
        ("'MSET', 'k', '1', 'l', '2'", "+OK\r\n"),
        ("'RENAME', 'l', 'k'", "+OK\r\n"),
        ("'DEL', 'k'", ":1\r\n"),
        ("'FLUSHALL'", "+OK\r\n"),
    ] {
        if call.starts_with("'TTL") {
            assert_eq!(replica.eval("return redis.call('SET', 'k', 'v')"), "+OK\r\n");
        }
        let script = format!("redis.call('PUBLISH', 'c', 'm1') return redis.call({call})");
        assert_eq!(replica.eval(&script), format!("{told}{reply}"), "{call}");
    }
    // Beside other scripts of a transaction, in the order in which they were published.
    let mut parts = Vec::new();
    for (message, call) in [("m1", "'TTL', 'k'"), ("m2", "'PERSIST', 'k'")] {
        let text = format!("redis.call('PUBLISH', 'c', '{message}') return redis.call({call})");
        let args = [&b"EVAL"[..], text.as_bytes(), b"0"];
        parts.push(CommandBuf::new().encode(0, args).to_vec());
    }
    let ttl = CommandBuf::new().encode(1, [&b"TTL"[..], b"k"]).to_vec();
    let exec = replica.at(1, false, 0, &[b"CONCORD.EXEC", &parts[0], &ttl, &parts[1]]);
    let second = "$7\r\npublish\r\n$1\r\nc\r\n$2\r\nm2\r\n";
    let both = format!("{}{second}", told.replace(">3", ">6"));
    assert_eq!(exec, format!("{both}*3\r\n:-2\r\n:-2\r\n:0\r\n"));
}
