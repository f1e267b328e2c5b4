//! Scripts of users who may not do everything, beside a redis-server that has such a user.

use concord_engine::acl::sent::argument;
use concord_engine::acl::{Catalogue, Rights};

use super::scripts::alike;
use super::*;

/// Rules behind `=`, and scripts of a user who has them.
const CASES: &str = include_str!("../rights.txt");

/// An argument that carries these rules.
fn sent(rules: &str) -> Vec<u8> {
    let (all, mut rights) = (Catalogue::default(), Rights::default());
    let rules: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
    for rule in concord_engine::acl::merged(rules).unwrap() {
        rights.apply(&all, &rule).unwrap();
    }
    let mut text = Vec::new();
    rights.describe(&all, &mut text);
    argument(&text)
}

fn eval(rules: &[u8], script: &str) -> Vec<u8> {
    CommandBuf::new().encode(0, [b"EVAL", script.as_bytes(), rules, b"0"]).to_vec()
}

/// Without what names the script.
fn told(reply: &str) -> String {
    if !reply.starts_with('-') {
        return reply.into();
    }
    reply.split(" script: ").next().unwrap().trim_end().into()
}

#[test]
fn scripts_of_users_answer_as_on_a_plain_server() {
    let mut p = Pair::new();
    let plain = Server::start(&[]);
    let (mut admin, mut user) = (plain.connect(), plain.connect());
    let mut rules = Vec::new();
    let mut differ = 0;
    for line in CASES.lines() {
        if let Some(own) = line.strip_prefix("= ") {
            rules = sent(own);
            let words = ["ACL", "SETUSER", "bob", "reset", "on", "nopass"].into_iter();
            let words: Vec<&str> = words.chain(own.split(' ')).chain(["+eval"]).collect();
            assert_eq!(ask(&mut admin, &words), "+OK\r\n", "{own}");
            assert_eq!(ask(&mut user, &["AUTH", "bob", "x"]), "+OK\r\n");
            ask(&mut admin, &["FLUSHALL"]);
            p.write_both(encode(&["FLUSHALL"]), &["FLUSHALL"]);
            continue;
        }
        let theirs = ask(&mut user, &["EVAL", line, "0"]);
        let ours = p.write_encoded(eval(&rules, line), &[line]);
        // What is published stands in front.
        let own = ours.rsplit_once("$1\r\nx\r\n:").map_or(ours.clone(), |(_, n)| format!(":{n}"));
        let is_other = own.contains("is not supported in scripts here")
            || own.contains("a script stays in the database");
        if !is_other && !alike(&told(&own), &told(&theirs)) {
            differ += 1;
            eprintln!("{line}\n   ours: {ours:?}\n theirs: {theirs:?}");
        }
    }
    assert_eq!(differ, 0);
}

const NO_KEY: &str = "-ERR The user executing the script can't access at least one of the keys";
const NO_COMMAND: &str = "-ERR The user executing the script can't run this command";

/// Rules hold for scripts of one key in transactions and for functions.
#[test]
fn rules_hold_for_scripts_and_functions() {
    let mut p = functions::pair();
    let rules = sent("~a* -@all +get +incr +memory|usage");
    // As a gateway sends one that touches its key alone.
    let own = |name: &[u8], script: &str, key: &str| {
        let args = [name, script.as_bytes(), &rules, b"1", key.as_bytes()];
        CommandBuf::new().encode(4, args).to_vec()
    };
    let script = "redis.call('incr', KEYS[1]) return redis.call('get', KEYS[1])";
    assert_eq!(p.write_encoded(own(b"EVAL", script, "a"), &["own"]), "$1\r\n1\r\n");
    assert!(p.write_encoded(own(b"EVAL", script, "b"), &["own"]).starts_with(NO_KEY));
    let deletes = "return redis.call('del', KEYS[1])";
    assert!(p.write_encoded(own(b"EVAL", deletes, "a"), &["own"]).starts_with(NO_COMMAND));
    let read = own(b"EVAL_RO", "return redis.call('get', KEYS[1])", "a");
    assert_eq!(p.head.run(Class::Read, &read).reply, b"$1\r\n1\r\n");
    // A script of somebody who may do everything has another wrapper, whichever came first.
    let free = CommandBuf::new().encode(3, [&b"EVAL"[..], deletes.as_bytes(), b"1", b"b"]).to_vec();
    assert_eq!(p.write_encoded(free, &["free"]), ":0\r\n");
    assert!(p.write_encoded(own(b"EVAL", deletes, "a"), &["own"]).starts_with(NO_COMMAND));
    // What the wrapper itself calls is not looked at.
    let asks = "return redis.call('memory', 'usage', 'a') > 0";
    assert_eq!(p.write_encoded(eval(&rules, asks), &["memory"]), ":1\r\n");
    let parts = [
        eval(&rules, "return redis.call('get', 'a')"),
        encode(&["SET", "b", "1"]),
        eval(&rules, "return redis.pcall('get', 'b')"),
        eval(&sent("~b -@all +get"), "return redis.call('get', 'b')"),
    ];
    let all = [&b"CONCORD.EXEC"[..]].into_iter().chain(parts.iter().map(Vec::as_slice));
    let all = CommandBuf::new().encode(0, all).to_vec();
    let reply = p.write_encoded(all, &["exec"]);
    assert!(reply.starts_with("*4\r\n$1\r\n1\r\n+OK\r\n-ERR The user"), "{reply}");
    assert!(reply.ends_with("\r\n$1\r\n1\r\n"), "{reply}");
    let code = "#!lua name=l\nredis.register_function('f', function(keys, args) return {redis.call('get', keys[1]), #args} end)";
    let load = ["FUNCTION", "LOAD", code];
    assert_eq!(p.write_encoded(functions::any(&load), &load), "$1\r\nl\r\n");
    let call = |key: &str| {
        let args = [&b"FCALL"[..], b"f", &rules, b"1", key.as_bytes(), b"x"];
        CommandBuf::new().encode(0, args).to_vec()
    };
    assert_eq!(p.write_encoded(call("a"), &["fcall"]), "*2\r\n$1\r\n1\r\n:1\r\n");
    assert!(p.write_encoded(call("b"), &["fcall"]).starts_with(NO_KEY));
    // An error in the wrapper opens nothing.
    let many = "local all = {} for i = 1, tonumber(ARGV[1]) do all[i] = 'a' end \
        pcall(redis.call, 'zunionstore', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', unpack(all)) return redis.pcall('get', 'b')";
    let rules = sent("~* +@all -get");
    for count in 7_960..8_000 {
        let count = count.to_string();
        let args = [b"EVAL", many.as_bytes(), &rules, b"0", count.as_bytes()];
        let many = CommandBuf::new().encode(0, args).to_vec();
        let reply = p.write_encoded(many, &[&count]);
        assert!(reply.starts_with(NO_COMMAND) || reply.contains("too many results"), "{reply}");
    }
    let deep = "local function down(n) if n > 0 then local reply = down(n - 1) return reply end \
        pcall(redis.call, 'set', 'a', 1) end for n = 5000, 20000, 1 do if n > 19900 or n < 5001 then pcall(down, n) end end \
        return redis.pcall('get', 'b')";
    let reply = p.write_encoded(eval(&rules, deep), &["deep"]);
    assert!(reply.starts_with(NO_COMMAND), "{reply}");
    // Rules that are none, and a number that is none.
    let wrong = eval(&argument(b"~a nonsense"), "return redis.call('get', 'a')");
    assert!(p.write_encoded(wrong, &["wrong"]).contains("malformed: Syntax error"));
    let args = [b"EVAL", &b"return 1"[..], &rules, b"x"];
    let wrong = CommandBuf::new().encode(0, args).to_vec();
    assert!(p.write_encoded(wrong, &["wrong"]).starts_with("-ERR value is not an integer"));
}
