//! Long scripts over the engine: what they cost, how long an iteration is, and that those that are
//! stopped change nothing.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Tests outside test functions, for clippy.

#[path = "scripts/long.rs"]
mod long;

use std::time::{Duration, Instant};

use concord_engine::{Class, Command, CommandBuf, Context, Engine, Memory, Progress, Shimmed};
use long::LONG;

struct Run {
    engine: Shimmed<Memory>,
    position: u64,
    /// The longest call of the engine, and how many there were for the last operation.
    longest: Duration,
    calls: u64,
}

impl Run {
    fn new() -> Run {
        Run::of(concord_lua::run)
    }

    /// Where scripts are stopped soon.
    fn short() -> Run {
        Run::of(concord_lua::run_within::<3_000_000>)
    }

    fn of(interpreter: concord_engine::script::Interpreter) -> Run {
        let engine = Shimmed::new(Memory::new(0)).with_scripts(interpreter);
        Run { engine, position: 0, longest: Duration::ZERO, calls: 0 }
    }

    fn command(&mut self, key_index: u8, args: &[&[u8]]) -> Vec<u8> {
        let bytes = CommandBuf::new().encode(key_index, args.iter().copied()).to_vec();
        let command = Command::parse(&bytes).unwrap();
        let is_read = args[0] == b"CONCORD.EVENTS";
        let class = if is_read { Class::Read } else { Class::Write };
        self.position += u64::from(!is_read);
        let (now_ms, position) = (1_000_000, self.position);
        let context = Context { now_ms, position, entropy: 7, ..Context::default() };
        let mut reply = Vec::new();
        (self.longest, self.calls) = (Duration::ZERO, 1);
        let began = Instant::now();
        let progress = self.engine.submit(&context, class, &command, &mut reply);
        self.longest = began.elapsed();
        if progress == Progress::Done {
            return reply;
        }
        loop {
            let began = Instant::now();
            let done = self.engine.poll();
            self.longest = self.longest.max(began.elapsed());
            self.calls += 1;
            if let Some(done) = done {
                return done.reply;
            }
            assert!(self.engine.works(), "it waits for nobody else");
        }
    }

    fn eval(&mut self, script: &str) -> String {
        let reply = self.command(0, &[b"EVAL", script.as_bytes(), b"0"]);
        String::from_utf8_lossy(&reply).into_owned()
    }

    fn set(&mut self, args: &[&str]) -> String {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        String::from_utf8_lossy(&self.command(1, &args)).into_owned()
    }
}

/// Not a test of speed: it says what each costs, for whoever sets what natives cost.
#[test]
fn bug_24_1_long_scripts_end_or_are_stopped_in_slices() {
    for script in LONG {
        let mut run = Run::of(concord_lua::run_within::<30_000_000>);
        let began = Instant::now();
        let reply = run.eval(script);
        let (all, longest, calls) = (began.elapsed(), run.longest, run.calls);
        println!(
            "{all:>9.1?} in {calls:>4} calls, the longest {longest:>7.1?}: {} <- {script}",
            reply.trim_end()
        );
        // One that is not paused takes two.
        let least = if reply.starts_with(STOPPED) { 10 } else { 2 };
        assert!(calls >= least, "{calls} calls: {script}");
        assert!(calls < 100, "{script}");
    }
}

/// An instruction that acts on much is counted by that, also where nothing is allocated: these were
/// executed as if they cost nothing.
#[test]
fn bug_22_175_an_instruction_costs_what_it_acts_on() {
    const COUNT: u64 = 300;
    for (script, least) in [
        // Bytes of the two strings, and what is made of them.
        ("local s = ('x'):rep(2^20) for i = 1, 300 do x = s .. 'y' end", 32_000),
        ("for i = 1, 300 do x = 'f' .. i % 3 end", 30),
        ("for i = 1, 300 do x = 0.1 .. '' .. i % 3 end", 60),
        ("local t = {} for i = 1, 6000 do t[i] = i end for i = 1, 300 do f(unpack(t)) end", 3_000),
        ("local t = {} for i = 1, 6000 do t[i] = i end for i = 1, 300 do x = unpack(t) end", 1_500),
        (
            "local t = {} for i = 1, 6000 do t[i] = i end \
             (function(...) for i = 1, 300 do f(...) end end)(unpack(t))",
            1_500,
        ),
    ] {
        let script = format!("local x, f = 0, function() end {script} return 1");
        // A slice has a million units: with so many slices, each of them costs what it does.
        let mut run = Run::new();
        let twice = script.replace("300 do", "30000 do");
        let reply = run.eval(&twice);
        let calls = run.calls;
        let cost = (calls - 1).saturating_mul(1_000_000);
        let wanted = (least * COUNT * 100).min(140_000_000);
        assert!(cost >= wanted / 10 * 9, "{calls} calls, {wanted} units: {reply} <- {twice}");
    }
}

/// Lua's own had no room for one value more, which its checks see (in builds with debug
/// assertions).
#[test]
fn bug_22_177_pcall_returns_as_many_values_as_there_are() {
    let mut run = Run::new();
    let script = "local t, sum = {}, 0 for i = 1, 300 do t[i] = i end \
        local function count(ok, ...) assert(ok == true) return select('#', ...) end \
        for i = 0, 300 do \
            sum = sum + count(pcall(unpack, t, 1, i)) \
            sum = sum + count(xpcall(function() return unpack(t, 1, i) end, error)) end \
        local a, b, c = pcall(error, {1}) assert(a == false and type(b) == 'table' and c == nil) \
        a, b, c = xpcall(function() error('x', 0) end, function(e) return e .. 'y', 1 end) \
        assert(a == false and b == 'xy' and c == nil) \
        a, b = pcall(function(...) return select('#', ...) end, nil, nil) assert(a and b == 2) \
        return sum";
    assert_eq!(run.eval(script), format!(":{}\r\n", 300 * 301));
    assert_eq!(
        run.eval("return {pcall()}"),
        "*2\r\n$-1\r\n$31\r\nattempt to call a boolean value\r\n"
    );
}

/// What goes through a coroutine is as many values as there are, at its calls, its yields and its
/// end, up to the most that `unpack` gives: Lua's checks (in builds with debug assertions) see none
/// without a place.
#[test]
fn coroutines_pass_on_as_many_values_as_there_are() {
    let script = "local t, sum = {}, 0 for i = 1, 7000 do t[i] = i end \
        local function count(ok, ...) assert(ok == true) return select('#', ...) end \
        local i = 0 \
        while i <= 7000 do \
            local c = coroutine.create(function(...) \
                assert(select('#', coroutine.yield(unpack(t, 1, i))) == i) \
                return unpack(t, 1, i) end) \
            sum = sum + count(coroutine.resume(c)) \
            sum = sum + count(coroutine.resume(c, unpack(t, 1, i))) \
            c = coroutine.create(function(...) return ... end) \
            sum = sum + count(coroutine.resume(c, unpack(t, 1, i))) \
            local w = coroutine.wrap(function(...) coroutine.yield(...) return ... end) \
            sum = sum + select('#', w(unpack(t, 1, i))) sum = sum + select('#', w()) \
            c = coroutine.create(function() error('x', 0) end) \
            local ok, e = coroutine.resume(c, unpack(t, 1, i)) assert(ok == false and e == 'x') \
            ok, e = coroutine.resume(c, unpack(t, 1, i)) \
            assert(ok == false and e == 'cannot resume dead coroutine') \
            i = i < 300 and i + 1 or i + 335 end \
        return sum";
    let counts = (0..300).chain((300..=7_000).step_by(335));
    assert_eq!(Run::new().eval(script), format!(":{}\r\n", 5 * counts.sum::<u64>()));
}

/// Values of each type, small and large, some with a time to live.
fn fill(run: &mut Run) {
    run.eval(
        "for i = 1, 700 do redis.call('HSET', 'h', 'f' .. i, i) redis.call('RPUSH', 'l', i % 9) redis.call('SADD', 's', 'm' .. i) \
         redis.call('ZADD', 'z', i % 7, i) redis.call('XADD', 'x', i .. '-1', 'f', i) end \
         redis.call('XGROUP', 'CREATE', 'x', 'g', '0') redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', 5, 'STREAMS', 'x', '>') \
         redis.call('SET', 'a', ('a'):rep(3000)) redis.call('SET', 'due', 1, 'PX', 50000) redis.call('HSET', 'small', 'f', 1)",
    );
    run.set(&["PEXPIRE", "h", "70000"]);
}

/// What scripts do to the keys, each in the order of any other.
const CHANGES: [&str; 40] = [
    "redis.call('SET', 'a', 'b')",
    "redis.call('APPEND', 'a', 'more')",
    "redis.call('SETRANGE', 'a', 5000, 'x')",
    "redis.call('SETBIT', 'a', 3, 1)",
    "redis.call('DEL', 'a')",
    "redis.call('SET', 'new', 1, 'PX', 1000)",
    "redis.call('INCR', 'new')",
    "redis.call('PERSIST', 'due')",
    "redis.call('PEXPIRE', 'due', 900)",
    "redis.call('PEXPIRE', 'l', 900)",
    "redis.call('HSET', 'h', 'f3', 'x', 'g', 'y')",
    "redis.call('HDEL', 'h', 'f5', 'f6', 'f700')",
    "redis.call('HDEL', 'small', 'f')",
    "redis.call('HSET', 'small', 'f', 2)",
    "redis.call('HINCRBY', 'h', 'f9', 5)",
    "redis.call('LPUSH', 'l', 'x', 'y')",
    "redis.call('RPOP', 'l', 3)",
    "redis.call('LREM', 'l', -20, 4)",
    "redis.call('LSET', 'l', 5, 'z')",
    "redis.call('LINSERT', 'l', 'BEFORE', 3, 'w')",
    "redis.call('LTRIM', 'l', 2, 400)",
    "redis.call('LMOVE', 'l', 'l2', 'LEFT', 'RIGHT')",
    "redis.call('SADD', 's', 'new')",
    "redis.call('SREM', 's', 'm5', 'm700')",
    "redis.call('SPOP', 's', 7)",
    "redis.call('SMOVE', 's', 's2', 'm9')",
    "redis.call('ZADD', 'z', 3, 'new', 9, 17)",
    "redis.call('ZREM', 'z', 5, 6)",
    "redis.call('ZPOPMIN', 'z', 3)",
    "redis.call('ZUNIONSTORE', 'z2', 2, 'z', 's')",
    "redis.call('XADD', 'x', '*', 'f', 'v')",
    "redis.call('XTRIM', 'x', 'MAXLEN', 300)",
    "redis.call('XDEL', 'x', '500-1', '501-1')",
    "redis.call('XACK', 'x', 'g', '1-1')",
    "redis.call('XGROUP', 'DESTROY', 'x', 'g')",
    "redis.call('RENAME', 'h', 'h2')",
    "redis.call('RENAME', 'h2', 'a')",
    "redis.call('COPY', 's', 'copied')",
    "redis.call('DEL', 'h', 'l', 'nothing')",
    "redis.call('FLUSHALL')",
];

const STOPPED: &str =
    "-ERR the script ran for too long and was stopped; it has changed nothing\r\n";

/// 24.4: half of the effects of a script that was stopped stayed.
#[test]
fn bug_24_4_a_script_that_is_stopped_has_changed_nothing() {
    let mut rng = concord_core::Rng::new(24);
    for round in 0..60 {
        let mut run = Run::short();
        fill(&mut run);
        let before = run.engine.digest();
        let (keys, bytes) = (run.engine.keys(), run.engine.memory_bytes());
        let count = if round < CHANGES.len() { 1 } else { rng.between(2, 40) };
        let script: Vec<String> = (0..count)
            .map(|_| {
                let at = if count == 1 { round } else { rng.below(CHANGES.len() as u64) as usize };
                format!("pcall(function() {} end) ", CHANGES[at])
            })
            .collect();
        let script = script.concat();
        // The loop is in front in some, so that all is done in the interpreter of its own.
        let first = if rng.chance(1, 2) { "for i = 1, 100000 do end " } else { "" };
        let reply = run
            .eval(&format!("{first}{script} while true do redis.sha1hex(('x'):rep(1000000)) end"));
        assert_eq!(reply, STOPPED, "{script}");
        assert_eq!(run.engine.digest(), before, "{script}");
        let after = (run.engine.keys(), run.engine.memory_bytes());
        assert_eq!(after, (keys, bytes), "{script}");
        // What is undone is forgotten: the same again, to its end, twice.
        let mut other = Run::short();
        fill(&mut other);
        for _ in 0..2 {
            let (own, others) = (run.eval(&script), other.eval(&script));
            assert_eq!(own, others, "{script}");
        }
        assert_eq!(run.engine.digest(), other.engine.digest(), "{script}");
        assert_eq!(run.engine.memory_bytes(), other.engine.memory_bytes(), "{script}");
    }
}

/// Messages and events of a stopped script reach nobody, and a transaction goes on behind it.
#[test]
fn bug_24_4_nobody_hears_of_a_script_that_was_stopped() {
    let mut run = Run::short();
    run.command(0, &[b"CONCORD.USERS", b"SET", b"0", b"events KEA"]);
    let events = |run: &mut Run| run.command(0, &[b"CONCORD.EVENTS", b"END"]);
    let stopped = "redis.call('SET', 'k', 'v') redis.call('PUBLISH', 'c', 'm') redis.call('PEXPIRE', 'k', 100) \
        while true do redis.sha1hex(('x'):rep(1000000)) end";
    let before = events(&mut run);
    assert_eq!(run.eval(stopped), STOPPED);
    let got = run.command(0, &[b"CONCORD.EVENTS", b"GET", b"0", b"0"]);
    assert!(concord_engine::events::read(&got).is_some_and(|(_, _, events)| events.is_empty()));
    let eval =
        |script: &str| CommandBuf::new().encode(0, [b"EVAL", script.as_bytes(), b"0"]).to_vec();
    let set = |key: &str| CommandBuf::new().encode(1, [b"SET", key.as_bytes(), b"v"]).to_vec();
    let published = eval("for i = 1, 100000 do end return redis.call('PUBLISH', 'c', 'n')");
    let parts = [set("before"), eval(stopped), published, set("behind")];
    let args: Vec<&[u8]> =
        [&b"CONCORD.EXEC"[..]].into_iter().chain(parts.iter().map(Vec::as_slice)).collect();
    let reply = String::from_utf8(run.command(0, &args)).unwrap();
    let wanted =
        format!(">3\r\n$7\r\npublish\r\n$1\r\nc\r\n$1\r\nn\r\n*4\r\n+OK\r\n{STOPPED}:0\r\n+OK\r\n");
    assert_eq!(reply, wanted);
    assert_eq!(
        run.eval("return redis.call('KEYS', '*')"),
        "*2\r\n$6\r\nbefore\r\n$6\r\nbehind\r\n"
    );
    assert_ne!(events(&mut run), before, "what the others did is told");
}

/// Operations behind a long script wait for it, in their order, and what it does is done once.
#[test]
fn bug_24_1_what_comes_behind_a_long_script_waits_for_it() {
    let mut engine = Shimmed::new(Memory::new(0)).with_scripts(concord_lua::run);
    let submit = |engine: &mut Shimmed<Memory>, position, class, key_index, args: &[&[u8]]| {
        let bytes = CommandBuf::new().encode(key_index, args.iter().copied()).to_vec();
        let context = Context { position, ..Context::default() };
        engine.submit(&context, class, &Command::parse(&bytes).unwrap(), &mut Vec::new())
    };
    let script = b"for i = 1, 3000 do redis.call('INCR', 'n') redis.sha1hex(('x'):rep(10000)) end return 'ended'";
    assert_eq!(
        submit(&mut engine, 1, Class::Write, 0, &[b"EVAL", script, b"0"]),
        Progress::Pending
    );
    assert_eq!(submit(&mut engine, 0, Class::Read, 1, &[b"GET", b"n"]), Progress::Pending);
    assert_eq!(submit(&mut engine, 2, Class::Write, 1, &[b"INCR", b"n"]), Progress::Pending);
    let (mut replies, mut slices) = (Vec::new(), 0);
    while engine.works() {
        match engine.poll() {
            Some(done) => replies.push(String::from_utf8(done.reply).unwrap()),
            None => slices += 1,
        }
    }
    replies
        .extend(std::iter::from_fn(|| engine.poll()).map(|d| String::from_utf8(d.reply).unwrap()));
    assert_eq!(replies, ["$5\r\nended\r\n", "$4\r\n3000\r\n", ":3001\r\n"]);
    assert!(slices > 2, "{slices}");
    // One that is forgotten in between, with all that there is, ends nothing else.
    assert_eq!(
        submit(&mut engine, 3, Class::Write, 0, &[b"EVAL", script, b"0"]),
        Progress::Pending
    );
    engine.poll();
    drop(engine);
}

/// 24.4: these were stopped, and redis-server completes them; and 24.1: what a script holds is
/// bounded.
#[test]
fn bug_24_4_what_redis_server_completes_ends() {
    let mut run = Run::new();
    for (script, wanted) in [
        (
            "for i = 1, 58000 do redis.call('SET', 'key:' .. i, i) end return redis.call('DBSIZE')",
            ":58000\r\n",
        ),
        (
            "local n = 0 for j = 1, 10 do local s = '' for i = 1, 2000 do s = s .. ('x'):rep(50) end n = n + #s end return n",
            ":1000000\r\n",
        ),
        (
            "local t = {} for i = 1, 50000 do t[i] = {i, 'x' .. i} end return #cjson.encode(t)",
            ":827789\r\n",
        ),
        (
            "local t = {} for i = 1, 50000 do t[i] = i end local s = cjson.encode(t) for i = 1, 20 do t = cjson.decode(s) end return #t",
            ":50000\r\n",
        ),
        (
            "local s = ('x'):rep(2^20) for i = 1, 200 do s = s:upper() .. '' end return #s",
            ":1048576\r\n",
        ),
        ("local n = 0 for i = 1, 30000000 do n = n + 1 end return n", ":30000000\r\n"),
        (
            "local t = {} for i = 1, 60 do t[i] = i .. ('x'):rep(2^20) end return #t",
            "-ERR the script took more than 32 MiB of memory and was stopped; it has changed nothing\r\n",
        ),
        (
            "redis.call('SET', 'half', 1) local t = {} pcall(function() for i = 1, 60 do t[i] = i .. ('x'):rep(2^20) end end) while true do t[#t + 1] = #t .. ('x'):rep(2^20) end",
            "-ERR the script took more than 32 MiB of memory and was stopped; it has changed nothing\r\n",
        ),
        ("return redis.call('EXISTS', 'half')", ":0\r\n"),
    ] {
        assert_eq!(run.eval(script), wanted, "{script}");
    }
}

/// A script holds 32 MiB, and its reply is as long as any other: one that returns a value many
/// times gets it, up to what a reply may have, and changes nothing where it is longer.
#[test]
fn bug_22_170_a_reply_of_a_script_is_as_long_as_any() {
    let mut run = Run::new();
    assert_eq!(run.eval("redis.call('SET', 'k', ('x'):rep(2^23)) return 1"), ":1\r\n");
    let times = |n: u32| {
        format!(
            "redis.call('INCR', 'n') local s, t = redis.call('GET', 'k'), {{}} \
             for i = 1, {n} do t[i] = s end return t"
        )
    };
    let reply = run.eval(&times(7));
    assert!(reply.starts_with("*7\r\n$8388608\r\n") && reply.len() > 7 << 23, "{}", reply.len());
    let refused =
        "-ERR the reply would be longer than 64 MiB (Concord's limit): nothing was changed\r\n";
    for n in [8, 9, 30] {
        assert_eq!(run.eval(&times(n)), refused, "{n}");
    }
    assert_eq!(run.eval("return redis.call('GET', 'n')"), "$1\r\n1\r\n");
}
