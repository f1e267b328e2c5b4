//! An interpreter that is used again, for scripts that are short and leave nothing behind.
//!
//! To make one takes far longer than a short script does. So each thread keeps one, and a script
//! runs there first, with little to spend: [`COST_MAX`] and [`ALLOCATED_BYTES_MAX`]. If that is
//! enough, and what all scripts share is as it was ([`Interpreter::is_pristine`]), the next one
//! runs there too. If it is not enough, the script runs once more, in an interpreter of its own and
//! with all that a script may spend, and its commands are answered there with what they were
//! answered the first time; only those that follow are executed.
//!
//! Which of the two it is hangs on what ran before, which is another thing at each replica, and
//! must make no difference. What a script can see does not hang on it, since it finds the same
//! globals, numbers and draws. What it cannot see is memory: when garbage is collected (weak
//! tables, what a collection costs) and when there is too much of it. Here nothing is collected
//! while a script runs, and in an interpreter of its own not before it has allocated far more than
//! what is enough here ([`crate::GARBAGE_BYTES`]).

use std::cell::RefCell;

use concord_engine::script::{Host, Script};

use crate::sandbox::{Interpreter, Task};
use crate::{run_alone, text_of};

/// What a script may cost here (see [`crate::COST_MAX`]).
const COST_MAX: u64 = 200_000;
/// What it may allocate, in bytes.
const ALLOCATED_BYTES_MAX: usize = 256 << 10;
/// What fails here for want of memory fails in an interpreter of its own, too; what does not is
/// seen to be too much.
const MEMORY_BYTES_MAX: usize = crate::ALLOCATED_BYTES_MAX + (32 << 20);
/// Garbage between two scripts that is collected, in bytes; and what is left then, of compiled
/// scripts and of strings. If more is left another interpreter is made.
const GARBAGE_BYTES_MAX: usize = 2 << 20;
const LEFT_BYTES_MAX: usize = 16 << 20;

thread_local! {
    static KEPT: RefCell<Option<Interpreter>> = const { RefCell::new(None) };
}

/// The replies of the commands that a script executed.
#[derive(Default)]
struct Replies {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Executes commands, and keeps their replies.
struct Recording<'a> {
    host: &'a mut dyn Host,
    replies: &'a mut Replies,
}

impl Host for Recording<'_> {
    fn call(&mut self, resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) {
        let start = reply.len();
        self.host.call(resp3, args, reply);
        self.replies.bytes.extend_from_slice(&reply[start..]);
        self.replies.ends.push(self.replies.bytes.len());
    }

    fn may(&mut self, args: &[&[u8]]) -> Option<bool> {
        self.host.may(args)
    }
}

/// Answers the commands that were executed before with what they were answered, and executes the
/// others.
struct Replaying<'a> {
    host: &'a mut dyn Host,
    replies: &'a Replies,
    /// How many were answered.
    count: usize,
}

impl Host for Replaying<'_> {
    fn call(&mut self, resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) {
        let Some(end) = self.replies.ends.get(self.count) else {
            return self.host.call(resp3, args, reply);
        };
        let start = self.count.checked_sub(1).map_or(0, |before| self.replies.ends[before]);
        reply.extend_from_slice(&self.replies.bytes[start..*end]);
        self.count += 1;
    }

    /// Nothing comes of that: it is asked again.
    fn may(&mut self, args: &[&[u8]]) -> Option<bool> {
        self.host.may(args)
    }
}

/// Runs a script, and appends its reply.
///
/// # Errors
/// The error for the client.
pub(crate) fn run(
    script: &Script<'_>,
    task: Task<'_>,
    mut cost: u64,
    host: &mut dyn Host,
    reply: &mut Vec<u8>,
) -> Result<(), Vec<u8>> {
    let (start, mut replies) = (reply.len(), Replies::default());
    let mut recording = Recording { host, replies: &mut replies };
    if let Some(ended) = run_shortly(script, task, cost, &mut recording, reply) {
        return ended;
    }
    reply.truncate(start);
    let mut replaying = Replaying { host, replies: &replies, count: 0 };
    run_alone(script, task, &mut cost, &mut replaying, reply)
}

/// Runs it in the interpreter that is kept. `None`: that was not enough.
fn run_shortly(
    script: &Script<'_>,
    task: Task<'_>,
    cost: u64,
    host: &mut dyn Host,
    reply: &mut Vec<u8>,
) -> Option<Result<(), Vec<u8>>> {
    let mut interpreter = match KEPT.take() {
        Some(kept) => kept,
        None => Interpreter::new().ok()?,
    };
    interpreter.collect_nothing(MEMORY_BYTES_MAX, ALLOCATED_BYTES_MAX).ok()?;
    let meter = interpreter.shared.meter.clone();
    meter.begin(cost, COST_MAX);
    let before = interpreter.lua.used_memory();
    let ended = interpreter.run(script, task, host, reply);
    let allocated = interpreter.lua.used_memory().saturating_sub(before);
    if meter.is_over() || allocated > ALLOCATED_BYTES_MAX {
        return None;
    }
    if interpreter.is_pristine() && is_small(&mut interpreter) {
        KEPT.set(Some(interpreter));
    }
    Some(ended.map_err(text_of))
}

/// Whether it is worth to be kept; its garbage is collected if there is much of it.
fn is_small(interpreter: &mut Interpreter) -> bool {
    let lua = &interpreter.lua;
    if lua.used_memory() < interpreter.left_bytes + GARBAGE_BYTES_MAX {
        return true;
    }
    let is_collected = lua.gc_collect().is_ok();
    lua.gc_stop();
    interpreter.left_bytes = lua.used_memory();
    is_collected && interpreter.left_bytes < LEFT_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_engine::resp;

    /// Answers each command with its number, and its arguments.
    #[derive(Default)]
    struct Counting {
        calls: u64,
    }

    impl Host for Counting {
        fn call(&mut self, _resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) {
            self.calls += 1;
            resp::array(reply, args.len() + 1);
            resp::integer(reply, self.calls as i64);
            args.iter().for_each(|arg| resp::bulk(reply, arg));
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
        let ended = match alone {
            true => run_alone(&script, Task::Script, &mut 0, &mut host, &mut reply),
            false => run(&script, Task::Script, 0, &mut host, &mut reply),
        };
        if let Err(text) = ended {
            reply = text;
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
        for _ in 0..2 {
            for _ in 0..4_000 {
                run(&library, Task::Call(b"f"), 0, &mut host, &mut reply).unwrap();
            }
            let kept = KEPT.take().expect("an interpreter");
            kept.lua.gc_collect().unwrap();
            kept.lua.gc_stop();
            left.push(kept.lua.used_memory());
            KEPT.set(Some(kept));
        }
        assert!(left[1] < left[0] + (64 << 10), "{left:?}");
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
