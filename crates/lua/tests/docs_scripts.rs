//! Statements of the docs' page on scripts, with the memory engine: they hold at the number that
//! is stated, and not beyond it.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Tests outside test functions, for clippy.

use concord_engine::{Class, Command, CommandBuf, Context, Engine, Memory, Progress, Shimmed};

/// The page, with one space in the place of any white space.
fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/semantics/scripts.md");
    std::fs::read_to_string(path).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The number between these words of the page.
fn stated(before: &str, after: &str) -> u64 {
    let page = page();
    let from = page.find(before).unwrap_or_else(|| panic!("the page says no more: {before}"));
    let rest = page[from + before.len()..].trim_start();
    let end = rest.find(after).unwrap_or_else(|| panic!("the page says no more: {after}"));
    rest[..end].trim().replace(',', "").parse().unwrap()
}

fn eval(script: &str) -> String {
    let mut engine = Shimmed::new(Memory::new(0)).with_scripts(concord_lua::run);
    let bytes = CommandBuf::new().encode(0, [b"EVAL", script.as_bytes(), b"0"]).to_vec();
    let context = Context { position: 1, entropy: 7, ..Context::default() };
    let mut reply = Vec::new();
    let command = Command::parse(&bytes).unwrap();
    if engine.submit(&context, Class::Write, &command, &mut reply) == Progress::Pending {
        reply = loop {
            if let Some(done) = engine.poll() {
                break done.reply;
            }
        };
    }
    String::from_utf8_lossy(&reply).into_owned()
}

#[test]
fn docs_scripts_how_many_values_are_given_and_taken() {
    let unpacked = stated("`unpack` gives at most", "values that are not numbers");
    let list = "local t = {} for i = 1, 7990 do t[i] = 'x' end ";
    let give = |count: u64| eval(&format!("{list} return select('#', unpack(t, 1, {count}))"));
    assert_eq!(give(unpacked), format!(":{unpacked}\r\n"));
    assert!(give(unpacked + 1).contains("too many results to unpack"), "{}", give(unpacked + 1));

    let few = stated("(`string.find` and the like:", ")");
    let take = |count: u64| {
        eval(&format!(
            "{list} local ok, why = pcall(function() return string.find(unpack(t, 1, {count})) end) return {{tostring(ok), tostring(why)}}"
        ))
    };
    let is_refused = |reply: &str| reply.contains("too many arguments");
    assert!(!is_refused(&take(few)), "{}", take(few));
    assert!(is_refused(&take(few + 1)), "{}", take(few + 1));
}

#[test]
fn docs_scripts_how_deep_a_result_is_nested() {
    let deep = stated("and a script's result may be nested", "deep");
    let nested =
        |levels: u64| eval(&format!("local t = 1 for i = 1, {levels} do t = {{t}} end return t"));
    let reply = nested(deep);
    assert_eq!(reply, "*1\r\n".repeat(deep as usize) + ":1\r\n");
    assert!(!nested(deep + 1).starts_with(&reply), "{}", nested(deep + 1));
}

#[test]
fn docs_scripts_what_a_script_may_hold_and_cost() {
    let held = stated("A script holds at most", "MiB where no garbage is");
    let hold = |mib: u64| {
        eval(&format!(
            "local t = {{}} for i = 1, {mib} do t[i] = ('x'):rep(2^20 - 4) .. i end return #t"
        ))
    };
    assert_eq!(hold(held - 2), format!(":{}\r\n", held - 2));
    let refused = hold(held * 2);
    assert!(refused.starts_with("-ERR the script took more than 32 MiB of memory"), "{refused}");

    let million = stated("**What a script may cost.**", "million units");
    // Two instructions a round.
    let spend =
        |rounds: u64| eval(&format!("local n = 0 for i = 1, {rounds} do n = n + 1 end return 1"));
    assert_eq!(spend(million * 490_000), ":1\r\n");
    assert!(spend(million * 510_000).starts_with("-ERR the script ran for too long"));
    // A number that is put into a string is counted as the page says.
    let number = match page().contains("`'f' .. number` thirty more for each number") {
        true => 30,
        false => panic!("the page says no more what a number in a string costs"),
    };
    let join =
        |rounds: u64| eval(&format!("for i = 1, {rounds} do local s = 'f' .. i % 9 end return 1"));
    let most = million * 1_000_000 / number;
    assert_eq!(join(most / 2), ":1\r\n");
    assert!(join(most).starts_with("-ERR the script ran for too long"));
}

#[test]
fn docs_scripts_what_is_refused_and_what_is_the_same() {
    let page = page();
    for (sentence, script, wanted) in [
        (
            "Bytecode is refused",
            "return tostring(loadstring(string.char(27) .. 'Lua'))",
            "$3\r\nnil\r\n",
        ),
        (
            "`math.random` is seeded by the record",
            "local a = math.random(1000000) return {a == math.random(1000000) and 1 or 0}",
            "*1\r\n:0\r\n",
        ),
        (
            "refuse a table whose keys are tables or functions",
            "return tostring(pcall(pairs, {[{}] = 1}))",
            "$5\r\nfalse\r\n",
        ),
        (
            "numbers tables and functions instead of showing addresses",
            "return {tostring({}), tostring({})}",
            "*2\r\n$21\r\ntable: 0x000000000001\r\n$21\r\ntable: 0x000000000002\r\n",
        ),
        ("in a script answer 0", "return redis.call('PUBLISH', 'c', 'm')", ":0\r\n"),
    ] {
        assert!(page.contains(sentence), "the page says no more: {sentence}");
        let reply = eval(script);
        // Messages of a script come in front of its reply.
        assert!(reply.ends_with(wanted), "{sentence}: {reply:?}");
        assert_eq!(eval(script), reply, "{sentence}: at another replica");
    }
}
