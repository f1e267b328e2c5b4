//! An interpreter that is reused for scripts that are short and leave nothing behind.
//!
//! Creating one takes far longer than a short script does. So each thread keeps one, and a script
//! runs in it first, with small limits: [`COST_MAX`] and [`ALLOCATED_BYTES_MAX`]. If these suffice,
//! and the state shared by scripts is unchanged ([`Interpreter::is_pristine`]), the next script
//! runs in it too. If they do not suffice, the script runs once more, in an interpreter of its own
//! with the full limits; its first commands get the same replies as the first time, and only those
//! that follow are executed.
//!
//! Which of the two it is depends on the scripts that ran before, which differ between replicas,
//! and must make no difference. The visible state does not depend on it: a script finds the same
//! globals, numbers and random draws. What remains is memory: when garbage is collected (weak
//! tables, the cost of a collection) and when there is too much of it. Here nothing is collected
//! while a script runs, and in an interpreter of its own not before it has allocated far more than
//! the limit here ([`crate::GARBAGE_BYTES`]).

use std::cell::RefCell;

use concord_engine::script::{Host, Paused, Ran, Script};

use crate::clib;
use crate::meter::Meter;
use crate::sandbox::{Interpreter, Task};
use crate::slices::{self, Ended};
use crate::{run_alone, text_of};

/// The cost limit of a script here (see [`crate::COST_MAX`]).
const COST_MAX: u64 = 200_000;
/// The limit of its allocations in bytes.
const ALLOCATED_BYTES_MAX: usize = 256 << 10;
/// A script that lacks memory here lacks it in an interpreter of its own too; one that does not is
/// found to exceed the limit of allocations.
const MEMORY_BYTES_MAX: usize = crate::ALLOCATED_BYTES_MAX + (32 << 20);
/// The bytes of garbage above which it is collected between two scripts. If more than this is left
/// afterwards, of compiled scripts and strings, another interpreter is created.
const GARBAGE_BYTES_MAX: usize = 2 << 20;
const LEFT_BYTES_MAX: usize = 16 << 20;

thread_local! {
    static KEPT: RefCell<Option<Interpreter>> = const { RefCell::new(None) };
}

/// Runs a script, and appends its reply.
pub(crate) fn run(
    script: &Script<'_>,
    task: Task<'_>,
    (cost, cost_max): (u64, u64),
    host: &mut dyn Host,
    reply: &mut Vec<u8>,
) -> Ran {
    let meter = match run_shortly(script, task, cost, host) {
        Ok(ended) => return ended.tell(reply),
        Err(meter) => meter,
    };
    match begin_alone(script, (cost, cost_max), &meter) {
        Ok(paused) => Ran::Paused(paused),
        // Without memory for a stack it is executed in one piece.
        Err(run) => {
            let _counting = clib::count_by(&meter);
            meter.counts().outside().lend(host, run).tell(reply)
        }
    }
}

/// An owned copy of a script.
struct Owned {
    text: Vec<u8>,
    code_at: usize,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
    resp3: bool,
    seed: u64,
    function: Option<Vec<u8>>,
}

impl Owned {
    fn of(script: &Script<'_>) -> Owned {
        let all = |list: &[&[u8]]| list.iter().map(|bytes| bytes.to_vec()).collect();
        Owned {
            text: script.text.to_vec(),
            code_at: script.code_at,
            keys: all(script.keys),
            args: all(script.args),
            resp3: script.resp3,
            seed: script.seed,
            function: script.function.map(<[u8]>::to_vec),
        }
    }

    fn run(&self, meter: &Meter) -> Ended {
        let keys: Vec<&[u8]> = self.keys.iter().map(Vec::as_slice).collect();
        let args: Vec<&[u8]> = self.args.iter().map(Vec::as_slice).collect();
        let script = Script {
            text: &self.text,
            code_at: self.code_at,
            keys: &keys,
            args: &args,
            resp3: self.resp3,
            seed: self.seed,
            function: self.function.as_deref(),
        };
        run_alone(&script, script.function.map_or(Task::Script, Task::Call), meter)
    }
}

/// Begins a script in an interpreter of its own. Its first commands were executed before, with the
/// replies `before`.
fn begin_alone(
    script: &Script<'_>,
    (cost, cost_max): (u64, u64),
    before: &Meter,
) -> Result<Box<dyn Paused>, Box<dyn FnOnce() -> Ended>> {
    let (owned, meter) = (Owned::of(script), Meter::default());
    meter.begin(cost, cost_max);
    meter.replay(before.take_replies().rewound());
    let own = meter.clone();
    slices::begin(&meter, Box::new(move || owned.run(&own)))
}

/// Runs it in the reused interpreter. `Err` if the limits did not suffice; the meter has the
/// replies to its commands.
fn run_shortly(
    script: &Script<'_>,
    task: Task<'_>,
    cost: u64,
    host: &mut dyn Host,
) -> Result<Ended, Meter> {
    let mut interpreter = match KEPT.take() {
        Some(kept) => kept,
        None => Interpreter::new(Meter::default()).map_err(|_| Meter::default())?,
    };
    let meter = interpreter.shared.meter.clone();
    drop(meter.take_replies());
    interpreter.collect_nothing(MEMORY_BYTES_MAX, ALLOCATED_BYTES_MAX);
    meter.begin(cost, COST_MAX);
    let before = interpreter.lua.used_memory();
    let mut reply = Vec::new();
    let ended = meter.counts().outside().lend(host, || {
        let _counting = clib::count_by(&meter);
        interpreter.run(script, task, &mut reply)
    });
    let allocated = interpreter.lua.used_memory().saturating_sub(before);
    if meter.is_over() || allocated > ALLOCATED_BYTES_MAX {
        return Err(meter);
    }
    let ended = match ended {
        Ok(()) => Ended::Reply(reply),
        Err(failed) => Ended::Error(text_of(failed)),
    };
    // Whether it is stopped for that is decided in an interpreter with the same memory at all
    // replicas.
    if ended.lacks_memory() {
        return Err(meter);
    }
    drop(meter.take_replies());
    if interpreter.is_pristine() && is_small(&mut interpreter) {
        KEPT.set(Some(interpreter));
    }
    Ok(ended)
}

/// Whether the interpreter is small enough to be reused; its garbage is collected if there is much.
fn is_small(interpreter: &mut Interpreter) -> bool {
    let lua = &interpreter.lua;
    if lua.used_memory() < interpreter.left_bytes + GARBAGE_BYTES_MAX {
        return true;
    }
    let is_collected = interpreter.collect_all();
    interpreter.left_bytes = lua.used_memory();
    is_collected && interpreter.left_bytes < LEFT_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_engine::resp;

    const TESTED: u64 = 20_000_000;

    /// Answers each command with its number, and its arguments.
    #[derive(Default)]
    struct Counting {
        calls: u64,
    }

    impl Host for Counting {
        fn call(&mut self, _resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) -> u64 {
            self.calls += 1;
            resp::array(reply, args.len() + 1);
            resp::integer(reply, self.calls as i64);
            args.iter().for_each(|arg| resp::bulk(reply, arg));
            7
        }

        fn may(&mut self, args: &[&[u8]]) -> Option<bool> {
            Some(args.len() > 1)
        }
    }

    fn script<'a>(text: &'a str, lists: &'a [&'a [u8]; 2]) -> Script<'a> {
        let (keys, args) = lists.split_at(1);
        let text = text.as_bytes();
        Script { text, code_at: 0, keys, args, resp3: false, seed: 7, function: None }
    }

    /// What a script answers, and how many commands it executed; `alone` or where others ran before
    /// it.
    fn answer(text: &str, alone: bool) -> (String, u64) {
        let (lists, mut host, mut reply) = ([&b"k"[..], b"v"], Counting::default(), Vec::new());
        let script = script(text, &lists);
        let mut ran = match alone {
            true => Ran::Paused(
                begin_alone(&script, (0, TESTED), &Meter::default()).ok().expect("a stack"),
            ),
            false => run(&script, Task::Script, (0, TESTED), &mut host, &mut reply),
        };
        while let Ran::Paused(paused) = ran {
            ran = paused.go_on(&mut host, &mut reply);
        }
        (String::from_utf8_lossy(&reply).into_owned(), host.calls)
    }

    fn is_kept() -> bool {
        let kept = KEPT.take();
        let is_kept = kept.is_some();
        KEPT.set(kept);
        is_kept
    }

    /// Scripts that try to leave something, or that hang on what may be left.
    const SCRIPTS: [&str; 19] = [
        "return {KEYS[1], ARGV[1], #KEYS, math.random(1000000)}",
        "return {redis.acl_check_cmd('get', 'k'), redis.acl_check_cmd('get')}",
        "math.randomseed(3) redis.setresp(3) return math.random(100)",
        "return tostring({}) .. tostring(redis.call) .. tostring({})",
        "cjson.encode_max_depth(2) cjson.encode_sparse_array(true) return cjson.encode({{1}})",
        "return cjson.encode({{{1}}}) .. tostring(pcall(cjson.encode, {[1000] = 1}))",
        "local c = cjson.new() c.encode = nil return tostring(cjson.new().encode ~= nil)",
        "cjson.encode = nil",
        "KEYS[1] = 'x' ARGV = nil",
        "table.insert(_G, 'mark') return 1",
        "return tostring(_G[1]) .. tostring(rawget(_G, 1))",
        "getmetatable('').__index = nil",
        "rawset(getmetatable(''), '__add', function() return 'mark' end)",
        "getmetatable('').__add = function() return 'mark' end return 'a' + 'b'",
        "return tostring(pcall(function() return 'a' + 'b' end))",
        "getmetatable(getmetatable(string)).mark = 1 return 1",
        "return tostring(getmetatable(getmetatable(string)).mark)",
        "local w = setmetatable({}, {__mode = 'kv'}) for i = 1, 100 do w[i] = {} end \
         local n = 0 for i = 1, 100 do if w[i] then n = n + 1 end end return n",
        "local c = coroutine.create(function() while true do coroutine.yield(1) end end) \
         coroutine.resume(c) return redis.call('SET', KEYS[1], coroutine.status(c))",
    ];

    #[test]
    fn a_script_answers_the_same_whatever_ran_before_it() {
        let ours = include_str!("../tests/scripts.lua").split("\n----\n");
        let texts: Vec<&str> = SCRIPTS.into_iter().chain(ours).collect();
        let alone: Vec<_> = texts.iter().map(|text| answer(text, true)).collect();
        for round in 0..3 {
            for (at, text) in texts.iter().enumerate() {
                assert_eq!(answer(text, false), alone[at], "round {round}: {text}");
                // And behind what one of those left that try to.
                answer(SCRIPTS[(at + round) % SCRIPTS.len()], false);
            }
        }
    }

    #[test]
    fn what_leaves_nothing_is_kept_and_what_does_is_not() {
        answer("return 1", false);
        assert!(is_kept());
        answer("table.insert(string, 1) return 1", false);
        assert!(!is_kept());
        answer("return redis.call('GET', KEYS[1])", false);
        assert!(is_kept());
    }

    /// The tables that a script can see: by its globals, what these have, and metatables.
    const WALK: &str = "local seen, list = {}, {} \
        local function walk(t) \
          if type(t) ~= 'table' or seen[t] then return end \
          seen[t] = true list[#list + 1] = t \
          local ok, f = pcall(pairs, t) \
          if ok then for _, v in pairs(t) do walk(v) walk(getmetatable(v)) end end \
          walk(getmetatable(t)) \
        end \
        walk(_G) walk(getmetatable('')) walk(cjson) walk(cmsgpack) walk(bit) walk(struct) walk(getmetatable(cjson.null)) ";

    #[test]
    fn no_table_that_scripts_see_has_room_for_what_one_leaves() {
        let looks = format!(
            "{WALK} local n = 0 for _, t in ipairs(list) do \
               local meta = getmetatable(t) \
               if rawget(t, 'mark') or rawget(t, 77) or (type(meta) == 'table' and rawget(meta, 'marked')) then n = n + 1 end \
             end return n"
        );
        let (count, _) = answer(&format!("{WALK} return #list"), true);
        let count: usize = count[1..].trim().parse().unwrap();
        assert!(count >= 14, "{count}");
        let ways = [
            "t.mark = 1",
            "rawset(t, 'mark', 1)",
            "t[77] = 1",
            "for i = 1, 77 do table.insert(t, i) end",
            "setmetatable(t, {marked = 1})",
            "table.sort(t, function() t.mark = 1 return false end)",
            "t.__index = nil t.mark = 1",
        ];
        for at in 1..=count {
            for way in ways {
                answer(&format!("{WALK} local t = list[{at}] pcall(function() {way} end)"), false);
                assert_eq!(answer(&looks, false).0, ":0\r\n", "{way} of {at}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_runs_again_and_executes_each_command_once() {
        let many = "for i = 1, 300 do redis.call('SET', i, ARGV[1]) end ";
        for rest in [
            "local n = 0 for i = 1, 1000000 do n = n + i end return redis.call('GET', n)",
            "local t = {} for i = 1, 100000 do t[i] = i end return redis.call('GET', #t)",
            "return #string.rep('x', 1000000)",
            "return #string.rep('x', 40000000)",
            "local s = 'x' while true do s = s .. s end",
            "local t = {} for i = 1, 3000000 do t[1] = {i} end return redis.call('GET', #t)",
            "for i = 1, 200 do redis.sha1hex(string.rep('x', 100000)) end return redis.call('GET', 'k')",
            "while true do pcall(redis.call, 'SET', 'a', 'b') end",
            "local ok, e = pcall(function() while true do end end) return 1",
            "error('after that')",
        ] {
            let text = format!("{many}{rest}");
            assert_eq!(answer(&text, false), answer(&text, true), "{rest}");
        }
    }

    /// Each left a table that the interpreter never forgot, and all of them were looked at after
    /// each.
    #[test]
    fn bug_18_64_calls_of_functions_leave_nothing() {
        let (lists, mut host, mut reply) = ([&b"k"[..], b"v"], Counting::default(), Vec::new());
        let library = script("redis.register_function('f', function() return 1 end)", &lists);
        let mut left = Vec::new();
        for _ in 0..5 {
            for _ in 0..4_000 {
                let ran = run(&library, Task::Call(b"f"), (0, TESTED), &mut host, &mut reply);
                assert!(matches!(ran, Ran::Ended));
            }
            let kept = KEPT.take().expect("an interpreter");
            kept.lua.gc_collect().unwrap();
            kept.lua.gc_stop();
            left.push(kept.lua.used_memory());
            KEPT.set(Some(kept));
        }
        assert!(left[4] < left[3] + (64 << 10), "{left:?}");
    }

    #[test]
    fn scripts_that_allocate_do_not_fill_the_memory() {
        answer("return 1", false);
        for n in 0..2_000 {
            answer(
                &format!("local t = {{}} for i = 1, 1000 do t[i] = {n} .. i end return #t"),
                false,
            );
        }
        let kept = KEPT.take().expect("an interpreter");
        assert!(kept.lua.used_memory() < 8 << 20, "{}", kept.lua.used_memory());
    }
}
