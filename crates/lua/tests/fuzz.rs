//! Scripts that are written at random from all natives, with large arguments: each ends or is
//! stopped, at two replicas alike, and none keeps an iteration of the loop for long.
//! `make fuzz-scripts` says which took longest.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Tests outside test functions, for clippy.

use std::time::{Duration, Instant};

use concord_core::Rng;
use concord_engine::{Class, Command, CommandBuf, Context, Engine, Memory, Progress, Shimmed};

/// What a script may cost here.
const TESTED: u64 = 10_000_000;
/// A script that costs so much, and the slices of a native that is not paused, are not more calls
/// than that.
const CALLS_MAX: u64 = 60;

/// Expressions of strings: `s` is one that was made before, `n` a number up to some thousands.
const STRINGS: [&str; 22] = [
    "('x'):rep(n * 500)",
    "('ab'):rep(n) .. n",
    "('x'):rep(n) .. s",
    "s .. s",
    "s:upper()",
    "s:lower()",
    "s:reverse()",
    "s:sub(n)",
    "s:gsub('x', 'yz')",
    "s:gsub('.', {x = 'z'})",
    "s:gsub('%w', function(c) return c .. c end, n)",
    "string.format('%s-%q', s:sub(1, n), s)",
    "string.char(65 + n % 26):rep(n)",
    "table.concat(t, ',', 1, math.min(#t, n))",
    "cjson.encode(t)",
    "cjson.encode({a = s:sub(1, n), b = {n, {n}}})",
    "cmsgpack.pack(t)",
    "struct.pack('>I4s', n, s:sub(1, n))",
    "redis.sha1hex(s)",
    "tostring(n):rep(n)",
    "(' '):rep(n * 300) .. n",
    "(redis.call('GET', 'k') or 'x')",
];

/// Statements: `t` is a table, too.
const STATEMENTS: [&str; 44] = [
    "s = STRING",
    "s = STRING",
    "s = STRING",
    "t[#t + 1] = n",
    "t[#t + 1] = STRING",
    "t[n] = s:sub(1, 20)",
    "t['k' .. n] = n",
    "t['k' .. n] = nil",
    "for i = 1, n do t[i] = i end",
    "for i = 1, n do t[#t + 1] = i * 0.5 end",
    "for i = 1, n * 10 do t['f' .. i] = i end",
    "for k in pairs(t) do t[k] = nil end",
    "for k, v in pairs(t) do x = v end",
    "for i = 1, n do next(t) end",
    "table.insert(t, 1, n)",
    "table.remove(t, 1)",
    "pcall(table.sort, t)",
    "pcall(table.sort, t, function(a, b) return tostring(a) < tostring(b) end)",
    "x = tonumber(s)",
    "x = tonumber(s, 16)",
    "x = s < STRING",
    "x = s == STRING",
    "pcall(function() x = s + 1 end)",
    "x = s:find('yy', 1, true)",
    "x = s:find(s:sub(n), 1, true)",
    "x = s:find('x-y', n)",
    "x = s:match('(x*)y')",
    "for w in s:gmatch('%a+') do x = w end",
    "pcall(cjson.decode, s)",
    "pcall(cjson.decode, cjson.encode(t))",
    "pcall(cmsgpack.unpack, s)",
    "pcall(cmsgpack.unpack, cmsgpack.pack(t))",
    "pcall(struct.unpack, 's', s .. '\\0')",
    "x = bit.bxor(n, 7)",
    "pcall(bit.tobit, s)",
    "pcall(loadstring, 'return ' .. s)",
    "x = s:byte(n)",
    "pcall(unpack, t)",
    "redis.call('SET', 'k', s)",
    "redis.call('APPEND', 'k', s:sub(1, n))",
    "redis.call('RPUSH', 'l', n, s:sub(1, 50))",
    "x = redis.call('LRANGE', 'l', 0, -1)",
    "redis.call('DEL', 'l')",
    "redis.pcall('HSET', 'h' .. n, 'f', s:sub(1, n))",
];

fn script(rng: &mut Rng) -> String {
    let mut text = String::from("local s, t, n, x = 'x', {}, 7, nil ");
    let statements = rng.between(1, 12);
    for _ in 0..statements {
        let number = 1_u64 << rng.below(13);
        let one = STATEMENTS[rng.below(STATEMENTS.len() as u64) as usize];
        let string = STRINGS[rng.below(STRINGS.len() as u64) as usize];
        let one = one.replace("STRING", string);
        let times = if rng.chance(1, 2) { 1 } else { 1_u64 << rng.below(16) };
        text += &format!("n = {number} for round = 1, {times} do pcall(function() {one} end) end ");
    }
    text + "return {#s, #t, x and 1 or 0}"
}

struct Replica {
    engine: Shimmed<Memory>,
    position: u64,
}

impl Replica {
    fn new() -> Replica {
        let engine = Shimmed::new(Memory::new(0)).with_scripts(concord_lua::run_within::<TESTED>);
        Replica { engine, position: 0 }
    }

    /// The reply, how many calls of the engine it took, and the longest of them.
    fn eval(&mut self, script: &str) -> (Vec<u8>, u64, Duration) {
        let args = [&b"EVAL"[..], script.as_bytes(), b"0"];
        let bytes = CommandBuf::new().encode(0, args).to_vec();
        let command = Command::parse(&bytes).unwrap();
        self.position += 1;
        let context = Context { position: self.position, entropy: 7, ..Context::default() };
        let (mut reply, mut calls) = (Vec::new(), 1);
        let began = Instant::now();
        let progress = self.engine.submit(&context, Class::Write, &command, &mut reply);
        let mut longest = began.elapsed();
        if progress == Progress::Pending {
            loop {
                let began = Instant::now();
                let done = self.engine.poll();
                longest = longest.max(began.elapsed());
                calls += 1;
                if let Some(done) = done {
                    reply = done.reply;
                    break;
                }
            }
        }
        (reply, calls, longest)
    }
}

#[test]
fn scripts_at_random_end_in_slices_at_all_replicas_alike() {
    let count = std::env::var("CONCORD_SCRIPTS").map_or(60, |n| n.parse().unwrap());
    let first: u64 = std::env::var("CONCORD_FIRST_SCRIPT").map_or(1, |n| n.parse().unwrap());
    let mut slowest: Vec<(Duration, u64, String)> = Vec::new();
    let (mut one, mut other) = (Replica::new(), Replica::new());
    let (mut stopped, mut long) = (0, 0);
    for seed in first..first + count {
        let script = script(&mut Rng::new(seed));
        let before = one.engine.digest();
        let (reply, calls, longest) = one.eval(&script);
        let hint = || format!("CONCORD_FIRST_SCRIPT={seed} CONCORD_SCRIPTS=1: {script}");
        assert!(calls <= CALLS_MAX, "{calls} calls, {}", hint());
        if reply.ends_with(b"it has changed nothing\r\n") {
            stopped += 1;
            assert_eq!(one.engine.digest(), before, "{}", hint());
        }
        long += u64::from(calls > 1);
        // Other scripts ran there.
        other.eval("return cjson.encode({1, 2})");
        assert_eq!(other.eval(&script).0, reply, "{}", hint());
        assert_eq!(one.engine.digest(), other.engine.digest(), "{}", hint());
        slowest.push((longest, seed, script));
        slowest.sort_by_key(|(longest, _, _)| std::cmp::Reverse(*longest));
        slowest.truncate(5);
    }
    println!("{count} scripts, {long} of them long, {stopped} stopped");
    for (longest, seed, script) in slowest {
        println!("{longest:?}, seed {seed}: {script}");
    }
    assert!(count < 50 || long > count / 10 && stopped > 0, "{long} long, {stopped} stopped");
}
