//! Scripts that mean harm: to other users, to the process, and to replicas that would do something
//! else.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Tests outside test functions, for clippy.

use std::process::Command;

use concord_engine::resp;
use concord_engine::script::{Host, Script};

/// Answers each command with its number.
#[derive(Default)]
struct Counting {
    calls: i64,
}

impl Host for Counting {
    fn call(&mut self, _resp3: bool, _args: &[&[u8]], reply: &mut Vec<u8>) {
        self.calls += 1;
        resp::integer(reply, self.calls);
    }

    fn may(&mut self, _args: &[&[u8]]) -> Option<bool> {
        Some(true)
    }
}

fn eval(text: &str) -> String {
    let (keys, args): ([&[u8]; 1], [&[u8]; 1]) = ([b"k"], [b"v"]);
    let (text, keys, args) = (text.as_bytes(), &keys[..], &args[..]);
    let script = Script { text, code_at: 0, keys, args, resp3: false, seed: 7, function: None };
    let mut reply = Vec::new();
    concord_lua::run(&script, &mut Counting::default(), &mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

/// `pairs` gave loops the tables behind those that may be read alone, and with them what all
/// scripts find.
#[test]
fn bug_18_61_a_loop_has_no_table_that_all_scripts_see() {
    for (change, look, seen) in [
        ("t.rep = function() return 'theirs' end", "return string.rep('x', 3)", "$3\r\nxxx\r\n"),
        ("t.mark = KEYS[1]", "return tostring(rawget(_G, 'mark'))", "$3\r\nnil\r\n"),
        ("t.call = function() return 'theirs' end", "return redis.call('GET', 'k')", ":1\r\n"),
    ] {
        for of in ["string", "_G", "redis", "cjson", "table"] {
            eval(&format!("local _, t = pairs({of}) pcall(function() {change} end) return 1"));
            assert_eq!(eval(look), seen, "{change} of {of}");
        }
    }
    let names = "local t = {} for k in pairs(coroutine) do t[#t + 1] = k end table.sort(t) return table.concat(t, ' ')";
    assert_eq!(eval(names), "$39\r\ncreate resume running status wrap yield\r\n");
}

#[test]
fn bug_18_61_a_loop_has_no_next_that_goes_through_any_keys() {
    let fill = "local t = {} for i = 1, 9 do t[{}] = i end";
    for script in [
        format!("local go = pairs({{}}) {fill} for k, v in go, t do redis.call('SET', 'k', v) end"),
        format!("{fill} local go = pairs(string) for k, v in go, t do if type(k) == 'table' then return 'walked' end end return 'none'"),
        "local t = {1, 2} table.foreach(t, function() for i = 1, 9 do t[{}] = i end end) return 'walked'"
            .into(),
    ] {
        let reply = eval(&script);
        assert!(reply.contains("has no order") || reply.ends_with("none\r\n"), "{reply}");
    }
}

/// A table that is empty again gives back what it had: a script was kept that had more in between
/// than where garbage is collected, and in an interpreter of its own it found what is weak gone.
#[test]
fn bug_18_62_what_a_script_had_in_between_counts() {
    let small = "local w = setmetatable({}, {__mode = 'v'}) w[1] = {} ";
    let nils = "nil, ".repeat(10_000);
    let large = format!(
        "local function f() return {{{nils}}} end local a = {{}} for i = 1, 40 do a[i] = f() end \
         for i = 1, 1000 do end for i = 1, 40 do a[i].x = 1 end "
    );
    let look = "return type(w[1])";
    eval("return 1");
    // With so much more it is alone.
    let alone = format!("{small}{large}local x = string.rep('x', 1000000) {look}");
    assert_eq!(eval(&format!("{small}{large}{look}")), eval(&alone));
}

/// Each of these is executed by a process of its own.
const HARMFUL: [&str; 13] = [
    "cjson.decode_max_depth(10000) return cjson.decode(string.rep('[', 9000) .. string.rep(']', 9000))",
    "cjson.encode_max_depth(10000) local t = {} for i = 1, 3000 do t = {a = t} end return cjson.encode(t)",
    "local t = {1} for i = 1, 60 do t = {t, t} end return cjson.encode(t)",
    "local t = {1} for i = 1, 60 do t = {t, t} end return t",
    "local t = {1} for i = 1, 60 do t = {map = {[1] = t, [2] = t}} end return t",
    "local t = {1} for i = 1, 15 do local u = {} for j = 1, 50 do u[j] = t end t = u end return cmsgpack.pack(t)",
    "local s = string.rep('x', 3e7) local t = {} for i = 1, 7000 do t[i] = s end return redis.call('DEL', unpack(t))",
    "local s = string.rep('x', 3e7) local t = {} for i = 1, 7000 do t[i] = s end return cmsgpack.pack(unpack(t))",
    "local s = string.rep('x', 1e7) return #s:gsub('.*', string.rep('%0', 1e6))",
    "cjson.encode_sparse_array(false, 0, 0) return cjson.encode({[2000000000] = 1})",
    "local s = string.rep('x', 3e7) local t = {} for i = 1, 1000 do t[i] = s:gmatch('y') end error('no harm')",
    "local s = string.rep('x', 3e7) while true do redis.sha1hex(s) end",
    "local s = '\"' .. string.rep('x', 1e7) .. '\"' local t = cjson.decode(s) while true do cjson.decode(s) end",
];

/// What Rust makes of a script's values, and how deep, was bounded by nothing: the process ended,
/// or went on for hours.
#[test]
fn bug_18_63_what_natives_make_ends_no_process() {
    const NAME: &str = "bug_18_63_what_natives_make_ends_no_process";
    if let Ok(number) = std::env::var("CONCORD_ONE_SCRIPT") {
        let reply = eval(HARMFUL[number.parse::<usize>().unwrap()]);
        assert!(reply.starts_with('-'), "{}", reply.len());
        return;
    }
    for (number, script) in HARMFUL.iter().enumerate() {
        let began = std::time::Instant::now();
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -v 2000000; exec timeout 60 \"$0\" --exact \"$1\""]);
        limited.arg(std::env::current_exe().unwrap()).arg(NAME);
        let ended = limited.env("CONCORD_ONE_SCRIPT", number.to_string()).output().unwrap();
        assert!(ended.status.success(), "{script} after {:?}: {ended:?}", began.elapsed());
    }
}
