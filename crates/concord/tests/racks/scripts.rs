//! Scripts on racks with both engines: what applications do with them, under every protocol, and
//! that one without an end holds nobody up for long and costs no replica.

use std::time::{Duration, Instant};

use crate::common::*;

const LOCK: &[u8] = b"return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
const RELEASE: &[u8] = b"if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) end return 0";
const LIMIT: &[u8] = b"local n = redis.call('INCR', KEYS[1]) \
    if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n";
const JOB: &[u8] = b"local job = cjson.decode(ARGV[1]) job.at = redis.call('TIME')[1] \
    job.draw = math.random(1000000) redis.call('RPUSH', KEYS[1], cjson.encode(job)) \
    return redis.call('LLEN', KEYS[1])";

/// How long others may wait for a script that does not end. Its work is bounded, not its time:
/// alone on the machine it takes 3 s here.
const PAUSE_MAX: Duration = Duration::from_secs(30);

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

    // Of a key with a time to live as well.
    assert_eq!(client.say("PEXPIRE jobs 600000"), ":1");
    assert_eq!(client.call(&[b"EVAL_RO", reads, b"1", b"jobs"]).unwrap().0, ":20", "{protocol}");
    let asks = b"return redis.call('TTL', KEYS[1]) > 500 and 1 or 0";
    assert_eq!(client.call(&[b"EVAL_RO", asks, b"1", b"jobs"]).unwrap().0, ":1", "{protocol}");
    let writes = b"return redis.call('DEL', KEYS[1])";
    let (reply, _) = client.call(&[b"EVAL_RO", writes, b"1", b"jobs"]).unwrap();
    assert!(reply.starts_with("-ERR Write commands are not allowed"), "{protocol}: {reply}");

    touches_other_keys(&mut client);

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

/// Several keys, and keys that are computed: what a script wrote is read behind it, and it takes
/// effect as a whole.
fn touches_other_keys(client: &mut Resp) {
    let put = b"return redis.call('SET', 'put:' .. ARGV[1], ARGV[1])";
    for n in 0..150 {
        let value = n.to_string();
        let key = format!("put:{n}");
        assert_eq!(client.call(&[b"EVAL", put, b"0", value.as_bytes()]).unwrap().0, "+OK");
        assert_eq!(client.call(&[b"GET", key.as_bytes()]).unwrap().1, value.as_bytes(), "{key}");
    }
    let move_one = b"if redis.call('DECRBY', KEYS[1], 1) < 0 then \
        redis.call('INCR', KEYS[1]) return 0 end return redis.call('INCR', KEYS[2])";
    assert_eq!(client.say("SET from 10"), "+OK");
    for _ in 0..20 {
        client.call(&[b"EVAL", move_one, b"2", b"from", b"to"]).unwrap();
    }
    assert_eq!(client.say("GET from"), "0");
    assert_eq!(client.say("GET to"), "10");
    // In a transaction, beside other commands.
    for line in ["MULTI", "SET t 5", "EVAL return(redis.call('INCRBY','t',2)) 0", "GET t"] {
        let said = client.say(line);
        assert!(said == "+OK" || said == "+QUEUED", "{line}: {said}");
    }
    let replies: Vec<String> = (0..4)
        .map(|at| if at == 0 { client.say("EXEC") } else { client.next().unwrap().0 })
        .collect();
    assert_eq!(replies, ["*3", "+OK", ":7", "$1"]);
    // Commands of several keys.
    assert_eq!(client.say("SET name v EX 100"), "+OK");
    assert_eq!(client.say("RENAME name renamed"), "+OK");
    assert_eq!(client.say("GET renamed"), "v");
    assert!(client.say("TTL renamed").starts_with(':'));
    assert_eq!(client.say("RPUSH q1 a b"), ":2");
    assert_eq!(client.say("LMOVE q1 q2 LEFT RIGHT"), "a");
    assert_eq!(client.say("LLEN q2"), ":1");
    assert_eq!(client.say("SADD s1 a b c"), ":3");
    assert_eq!(client.say("SADD s2 b c d"), ":3");
    assert_eq!(client.say("SINTERSTORE s3 s1 s2"), ":2");
    assert_eq!(client.say("SCARD s3"), ":2");
    // One that is sent for one key, as it looks like it, and touches another, does not.
    let hidden = b"redis[ARGV[1]]('SET', ARGV[2], 'v') return redis.call('GET', ARGV[2])";
    assert_eq!(client.call(&[b"EVAL", hidden, b"1", b"k", b"call", b"x"]).unwrap().1, b"v");
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

#[test]
fn scripts_work_with_the_redis_engine() {
    scripts_work("chain", &["--engine", "redis"]);
    scripts_work("vr", &["--engine", "redis"]);
}

/// What a client that has subscribed is pushed next: the message.
fn pushed(subscriber: &mut Resp) -> String {
    let said: Vec<String> = (0..4).map(|_| subscriber.next().unwrap().0).collect();
    said.join(" ")
}

fn scripts_publish(engine: &str) {
    let rack = Rack::start(&format!("publish-{engine}"), &["--engine", engine]);
    let mut client = rack.client();
    until("the rack answers", || client.say("SET k v") == "+OK");
    let mut subscriber = rack.client();
    subscriber.say("SUBSCRIBE c");
    (0..3).for_each(|_| drop(subscriber.next()));
    let one = b"redis.call('PUBLISH', 'c', ARGV[1]) return redis.call('INCR', KEYS[1])";
    let any = b"redis.call('SET', 'x' .. ARGV[1], 1) return redis.call('PUBLISH', 'c', ARGV[1])";
    let fails = b"redis.call('PUBLISH', 'c', ARGV[1]) error('no')";
    for n in 1..=20 {
        let text = n.to_string();
        let reply = client.call(&[b"EVAL", one, b"1", b"n", text.as_bytes()]).unwrap().0;
        assert_eq!(reply, format!(":{n}"));
        assert!(pushed(&mut subscriber).starts_with("*3"));
        let reply = client.call(&[b"EVAL", any, b"0", text.as_bytes()]).unwrap().0;
        assert_eq!(reply, ":0");
        assert!(pushed(&mut subscriber).starts_with("*3"));
    }
    let reply = client.call(&[b"EVAL", fails, b"0", b"m"]).unwrap().0;
    assert!(reply.starts_with("-ERR"), "{reply}");
    assert!(pushed(&mut subscriber).starts_with("*3"));
    client.say("MULTI");
    client.call(&[b"EVAL", any, b"0", b"in"]).unwrap();
    client.say("PUBLISH c queued");
    let replies: Vec<String> = (0..3)
        .map(|at| if at == 0 { client.say("EXEC") } else { client.next().unwrap().0 })
        .collect();
    assert_eq!(replies, ["*2", ":0", ":1"]);
    (0..2).for_each(|_| assert!(pushed(&mut subscriber).starts_with("*3")));
}

#[test]
fn scripts_publish_with_either_engine() {
    scripts_publish("memory");
    scripts_publish("redis");
}
