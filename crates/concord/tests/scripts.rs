//! Scripts on racks with the memory engine: what applications do with them, under every protocol, and
//! that one without an end holds nobody up for long and costs no replica.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::*;

const LOCK: &[u8] = b"return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
const RELEASE: &[u8] = b"if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) end return 0";
const LIMIT: &[u8] = b"local n = redis.call('INCR', KEYS[1]) \
    if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n";
const JOB: &[u8] = b"local job = cjson.decode(ARGV[1]) job.at = redis.call('TIME')[1] \
    job.draw = math.random(1000000) redis.call('RPUSH', KEYS[1], cjson.encode(job)) \
    return redis.call('LLEN', KEYS[1])";

/// How long others may wait for a script that does not end.
const PAUSE_MAX: Duration = Duration::from_secs(4);

fn eval(client: &mut Resp, script: &[u8], key: &[u8], args: &[&[u8]]) -> String {
    let all: Vec<&[u8]> =
        [&b"EVAL"[..], script, b"1", key].into_iter().chain(args.iter().copied()).collect();
    client.call(&all).unwrap().0
}

fn open_members(rack: &Rack) -> usize {
    let status = rack.status();
    let roles = status["roles"].as_array().unwrap();
    let is_open = |r: &&serde_json::Value| r["role"] == "replica" && r["status"]["phase"] == "open";
    roles.iter().filter(is_open).count()
}

fn scripts_work(protocol: &str, more: &[&str]) {
    let arguments = [&["--protocol", protocol], more].concat();
    let rack = Rack::start(&format!("scripts-{protocol}"), &arguments);
    let mut client = rack.client();
    until("lock", || eval(&mut client, LOCK, b"lock", &[b"a", b"60000"]) == "+OK");
    assert_eq!(eval(&mut client, LOCK, b"lock", &[b"b", b"60000"]), "$-1");
    assert_eq!(eval(&mut client, RELEASE, b"lock", &[b"b"]), ":0");
    assert_eq!(eval(&mut client, RELEASE, b"lock", &[b"a"]), ":1");
    assert_eq!(eval(&mut client, LOCK, b"lock", &[b"b", b"300"]), "+OK");
    until("the lock ends", || eval(&mut client, LOCK, b"lock", &[b"c", b"60000"]) == "+OK");
    for n in 1..=20 {
        assert_eq!(eval(&mut client, LIMIT, b"limit", &[b"60000"]), format!(":{n}"));
        assert_eq!(eval(&mut client, JOB, b"jobs", &[b"{\"name\":\"x\"}"]), format!(":{n}"));
    }
    // By its hash, as clients' libraries do; a read-only one too.
    let (_, sha) = client.call(&[b"SCRIPT", b"LOAD", LIMIT]).unwrap();
    assert_eq!(client.call(&[b"EVALSHA", &sha, b"1", b"limit", b"9"]).unwrap().0, ":21");
    let reads = b"return #redis.call('LRANGE', KEYS[1], 0, -1)";
    assert_eq!(client.call(&[b"EVAL_RO", reads, b"1", b"jobs"]).unwrap().0, ":20");

    let mut other = rack.client();
    for name in ["EVAL", "EVAL_RO"] {
        let began = Instant::now();
        let endless = [name.as_bytes(), b"while true do end", b"1", b"k"];
        let (reply, _) = client.call(&endless).unwrap();
        assert!(reply.starts_with("-ERR the script ran for too long"), "{protocol}: {reply}");
        assert_eq!(other.say("SET other v"), "+OK");
        let pause = began.elapsed();
        println!("{protocol}: {name} without an end: {pause:?}");
        assert!(pause < PAUSE_MAX, "{protocol} {name}: {pause:?}");
    }
    assert_eq!(open_members(&rack), 3, "{protocol}");
}

#[test]
fn scripts_work_under_chain_and_craq() {
    scripts_work("chain", &[]);
    scripts_work("craq", &["--accel", "none"]);
}

#[test]
fn scripts_work_under_primary_backup_vr_and_nopaxos() {
    scripts_work("primary-backup", &[]);
    scripts_work("vr", &[]);
    scripts_work("nopaxos", &[]);
}
