//! FUNCTION and FCALL, where libraries are executed as scripts.

use concord_engine::functions::{Declared, FunctionFlags};

use super::scripts::{alike, exec, stop};
use super::*;

/// Finds what a library registers by looking at its text, where it stands in these forms alone.
fn by_text(code: &[u8], _cost: &mut u64) -> Result<Vec<Declared>, Vec<u8>> {
    let code = String::from_utf8_lossy(code);
    let mut all = Vec::new();
    for (at, _) in code.match_indices("register_function") {
        let rest =
            &code[at..code[at + 1..].find("register_function").map_or(code.len(), |n| at + 1 + n)];
        let name = rest.split('\'').nth(1).unwrap_or_default().as_bytes().to_vec();
        let flags = ["no-writes", "allow-oom"].into_iter().filter(|flag| rest.contains(flag));
        let with = |flags: FunctionFlags, flag: &str| flags.with(flag.as_bytes());
        let flags = flags.fold(FunctionFlags::default(), with);
        all.push(Declared { name, description: None, flags });
    }
    Ok(all)
}

pub(super) fn any(args: &[&str]) -> Vec<u8> {
    CommandBuf::new().encode(0, args.iter().map(|arg| arg.as_bytes())).to_vec()
}

pub(super) fn pair() -> Pair {
    let with = |replica: Replica| {
        let engine = replica.engine.with_functions(by_text);
        Replica { engine, ..replica }
    };
    let pair = Pair::new();
    Pair { head: with(pair.head), follower: with(pair.follower) }
}

/// Registered as `f`, with KEYS `a` and `b` and arguments `1` and `\n`.
const FUNCTIONS: [&str; 23] = [
    "redis.register_function('f', function(keys, args) return {keys[1], keys[2], args[1], args[2], #args} end)",
    "local n = 0\nredis.register_function('f', function(keys) n = n + 1 return redis.call('INCRBY', keys[1], n) end)",
    "redis.register_function{function_name='f', flags={'no-writes'}, callback=function(keys) return redis.call('GET', keys[1]) end}",
    "redis.register_function{function_name='f', flags={'no-writes'}, callback=function(keys) return redis.call('INCR', keys[1]) end}",
    "redis.register_function('f', function() error('boom') end)",
    "redis.register_function('f', function()\n\nerror('boom') end)",
    "redis.register_function('f', function() return 1 + nil end)",
    "\"text\" = 5",
    "local t = \"a\\tb\\\"c\\n\" redis.register_function('f', function() return t end)",
    "local t = [[\r\n\n\\x]] redis.register_function('f', function() return t end)",
    "local r = redis redis.register_function('f', function() return r.call('PING') end)",
    "redis.register_function('f', function() return redis.call('TTL', 'nosuch') end)",
    "redis.register_function('f', function(keys) redis.call('SET', keys[1], 1, 'EX', 100) return redis.call('TTL', keys[1]) end)",
    "redis.register_function('f', function() return redis.pcall('nosuch') end)",
    "redis.register_function('f', function() return {err = 'My error'} end)",
    "redis.register_function('f', function() return redis.status_reply('fine') end)",
    "redis.register_function('f', function() return redis.register_function == nil end)",
    "redis.register_function('f', function() nosuch() end)",
    "redis.register_function('f', function() x = 1 end)",
    "redis.register_function('f', function() return loadstring('return redis.call(\\'DBSIZE\\')')() end)",
    "redis.register_function('f', function() return cjson.encode({1, 'x'}) end)",
    "redis.register_function('other', function() return 1 end) redis.register_function('f', function() return 2 end)",
    "redis.register_function('F', function() return 3 end)",
];

#[test]
fn functions_answer_as_on_a_plain_server() {
    let mut p = pair();
    let plain = Server::start(&[]);
    let mut stream = plain.connect();
    for resp3 in [false, true] {
        speak(&mut p, &mut stream, resp3);
        for code in FUNCTIONS {
            let text = format!("#!lua name=l\n{code}");
            let load = ["FUNCTION", "LOAD", "REPLACE", &text];
            let theirs = ask(&mut stream, &load);
            if theirs.starts_with('-') {
                // By what the library does while it is loaded: the real loader says so.
                continue;
            }
            assert_eq!(p.write_encoded(any(&load), &load), theirs);
            // Local variables are those of a library that was loaded at once before.
            let calls = if code.contains("n = n + 1") {
                &["FCALL"][..]
            } else {
                &["FCALL", "FCALL_RO", "FCALL"]
            };
            for &call in calls {
                let line = [call, "f", "2", "a", "b", "1", "\n"];
                let ours = p.write_encoded(any(&line), &line);
                let theirs = ask(&mut stream, &line);
                // In which line an error came, the prologue hides.
                let told = |reply: &str| reply.split(", on @").next().unwrap().to_string();
                let (ours, theirs) = match theirs.starts_with('-') {
                    true => (told(&ours), told(&theirs)),
                    false => (ours, theirs),
                };
                assert!(alike(&ours, &theirs), "{code} (RESP3: {resp3}): {ours} {theirs}");
            }
        }
        for line in [
            &["FCALL", "nosuch", "0"][..],
            &["FCALL", "f", "x"],
            &["FCALL", "f", "-1"],
            &["FCALL", "f", "1"],
            &["FUNCTION", "STATS"],
            &["FUNCTION", "LIST"],
            &["FLUSHALL"],
            &["FCALL", "f", "0"],
            &["FUNCTION", "DELETE", "l"],
            &["FCALL", "f", "0"],
        ] {
            let ours = p.write_encoded(any(line), line);
            assert_eq!(ours, ask(&mut stream, line), "{line:?}");
        }
    }
}

/// A library that answers this.
fn answering(value: u32) -> String {
    format!("#!lua name=l\nredis.register_function('f', function() return {value} end)")
}

#[test]
fn a_call_finds_the_library_that_is_before_it_in_the_log() {
    let mut p = pair();
    for replica in [&mut p.head, &mut p.follower] {
        let mut expected = Vec::new();
        // In a pipeline.
        for n in 0..50 {
            let load = any(&["FUNCTION", "LOAD", "REPLACE", &answering(n)]);
            for command in [load, any(&["FCALL", "f", "0"]), any(&["INCR", "n"])] {
                assert_eq!(replica.submit(Class::Write, &command), None);
            }
            expected.push(format!(":{n}\r\n"));
        }
        for expected in expected {
            assert_eq!(replica.wait().reply, b"$1\r\nl\r\n");
            assert_eq!(String::from_utf8(replica.wait().reply).unwrap(), expected);
            replica.wait();
        }
    }
    p.assert_equal(&["all"]);
    // In a transaction, with one that watches.
    let parts = exec(&[
        &["FUNCTION", "LOAD", "REPLACE", &answering(77)],
        &["FCALL", "f", "0"],
        &["SET", "k", "v"],
        &["FUNCTION", "DELETE", "l"],
        &["FCALL", "f", "0"],
        &["EVAL", "return 5", "0"],
    ]);
    assert_eq!(
        p.write_encoded(parts, &["transaction"]),
        "*6\r\n$1\r\nl\r\n:77\r\n+OK\r\n+OK\r\n-ERR Function not found\r\n:5\r\n"
    );
    // What is replicated in its place has the library, too.
    p.write(&["SADD", "s", "a", "b", "c"]);
    let parts = exec(&[&["FUNCTION", "LOAD", &answering(78)], &["SPOP", "s"]]);
    p.write_encoded(parts, &["SPOP"]);
    let call = ["FCALL", "f", "0"];
    assert_eq!(p.write_encoded(any(&call), &call), ":78\r\n");
}

/// Of a transaction that is refused nothing happens to libraries.
#[test]
fn refused_transaction_changes_no_library() {
    let mut p = pair();
    let refused = exec(&[&["FUNCTION", "LOAD", &answering(1)], &["CONFIG", "GET", "x"]]);
    let reply = p.write_encoded(refused, &["refused"]);
    assert!(reply.starts_with("-ERR 'config' is not supported"), "{reply}");
    let call = ["FCALL", "f", "0"];
    assert_eq!(p.write_encoded(any(&call), &call), "-ERR Function not found\r\n");
    p.head.context.memory_full = true;
    let refused = exec(&[&["FUNCTION", "FLUSH"], &["SET", "k", "v"]]);
    let load = ["FUNCTION", "LOAD", &answering(1)];
    p.head.context.memory_full = false;
    p.write_encoded(any(&load), &load);
    p.head.context.memory_full = true;
    assert!(p.write_encoded(refused, &["full"]).starts_with("-OOM"));
    assert!(p.write_encoded(any(&load), &load).starts_with("-OOM"));
    assert!(p.write_encoded(any(&call), &call).starts_with("-OOM allow-oom flag is not set"));
    p.head.context.memory_full = false;
    assert_eq!(p.write_encoded(any(&call), &call), ":1\r\n");
}

#[test]
fn a_function_that_may_write_where_memory_is_short_does() {
    let mut p = pair();
    let text = "#!lua name=l\nredis.register_function{function_name='f', flags={'allow-oom'}, \
        callback=function(keys) return redis.call('SET', keys[1], 'v') end}";
    let load = ["FUNCTION", "LOAD", text];
    p.write_encoded(any(&load), &load);
    p.head.context.memory_full = true;
    let call = ["FCALL", "f", "1", "k"];
    assert_eq!(p.write_encoded(any(&call), &call), "+OK\r\n");
}

/// A function that is stopped beside a change of libraries is the end of its replica.
#[test]
fn stopped_function_beside_library_change_ends_replica() {
    let text = "#!lua name=l\nredis.register_function('f', function() while true do end end)";
    let mut p = pair();
    let load = ["FUNCTION", "LOAD", text];
    p.write_encoded(any(&load), &load);
    let done = stop(&mut p.head, Class::Write, &any(&["FCALL", "f", "0"])).unwrap();
    assert!(done.stopped);
    let follower = p.follower.run(Class::Write, &done.effect.unwrap());
    assert_eq!(follower.reply, done.reply);
    p.assert_equal(&["all"]);
    // The others would be told of an error alone, and have no library.
    let parts = exec(&[&["FUNCTION", "LOAD", "REPLACE", text], &["FCALL", "f", "0"]]);
    assert_eq!(stop(&mut p.head, Class::Write, &parts), None);
    assert!(p.head.engine.is_poisoned());
}

#[test]
fn a_copy_has_the_libraries_before_any_key() {
    let mut p = pair();
    for n in 0..100 {
        p.head.write(&["SET", &format!("k{n}"), "v"]);
    }
    p.head.run(Class::Write, &any(&["FUNCTION", "LOAD", &answering(5)]));
    let mut place = 0;
    while place < PLACE_END {
        while !p.head.engine.prepare_copy() {
            p.head.pump();
        }
        let mut chunk = Vec::new();
        assert_eq!(p.head.engine.copy(place, 500, &mut chunk), Progress::Pending);
        let chunk = p.head.wait().reply;
        if p.follower.engine.install(&chunk).unwrap() == Progress::Pending {
            p.follower.wait();
        }
        if place == 0 {
            let call = p.follower.run(Class::Read, &any(&["FUNCTION", "STATS"])).reply;
            assert!(call.ends_with(b"functions_count\r\n:1\r\n"));
        }
        place = next_place(&chunk).unwrap();
    }
    assert_eq!(p.follower.run(Class::Write, &any(&["FCALL", "f", "0"])).reply, b":5\r\n");
    assert_eq!(p.follower.server.cli(&["DBSIZE"]), "100");
}
