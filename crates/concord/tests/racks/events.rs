//! Keyspace events over real processes: beside a redis-server, at two gateways, with every
//! protocol, and with a replica or a gateway killed. Random commands: `tests/differential`.

use std::net::SocketAddr;

use crate::common::*;

fn second(rack: &Rack) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], rack.listen.port() + 1))
}

/// A client that hears all events.
fn listen(target: SocketAddr) -> Resp {
    let mut client = Resp::open(target);
    assert_eq!(client.say("PSUBSCRIBE __key*@*__:*"), "*3");
    (0..3).for_each(|_| drop(client.next().unwrap()));
    client
}

/// The next event: the channel, and what it says.
fn event(client: &mut Resp) -> String {
    assert_eq!(client.next().unwrap().0, "*4");
    let mut text = || String::from_utf8(client.next().unwrap().1).unwrap();
    text();
    text();
    format!("{} {}", text(), text())
}

/// The events up to that of a write to this key.
fn events_up_to(client: &mut Resp, key: &str) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let one = event(client);
        if one.ends_with(&format!("__:set {key}")) {
            return all;
        }
        if !one.contains(key) {
            all.push(one);
        }
    }
}

/// A reply, whatever it is, read to its end.
fn skip(client: &mut Resp, first: &str) {
    if let Some(count) = first.strip_prefix('*').and_then(|n| n.parse::<i64>().ok()) {
        for _ in 0..count.max(0) {
            let (next, _) = client.next().unwrap();
            skip(client, &next);
        }
    }
}

fn say(client: &mut Resp, line: &str) {
    // Words in quotes are one.
    let mut words: Vec<String> = Vec::new();
    for (nth, part) in line.split('"').enumerate() {
        match nth % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_string)),
            _ => words.push(part.to_string()),
        }
    }
    let args: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    let (first, _) = client.call(&args).unwrap();
    skip(client, &first);
}

/// All sorts of commands; each row goes on from what those before it left.
const COMMANDS: &[&str] = &[
    "SET a 1",
    "SET a 2",
    "SET a 3 XX",
    "SET a 4 NX",
    "SETNX b 1",
    "SETNX b 1",
    "MSET c 1 d 2",
    "MSETNX c 1 e 2",
    "GETSET a 5",
    "APPEND a x",
    "SETRANGE a 1 yy",
    "INCR n",
    "DECRBY n 5",
    "INCRBYFLOAT n 0.5",
    "GETDEL b",
    "GETDEL b",
    "SETBIT bits 7 1",
    "SETBIT bits 7 1",
    "BITFIELD bits SET u8 0 1",
    "BITOP NOT dest bits",
    "BITOP AND dest none",
    "SET a 1 EX 1000",
    "SETEX a 1000 v",
    "EXPIRE a 100",
    "EXPIRE a 100 NX",
    "PERSIST a",
    "PERSIST a",
    "EXPIRE a -1",
    "SET a 1 PX 100000 GET",
    "GETEX a PERSIST",
    "GETEX a EX 100",
    "GETEX a",
    "PEXPIREAT a 1",
    "EXPIRE none 10",
    "LPUSH l a b c",
    "RPUSH l d",
    "LPUSHX none x",
    "LINSERT l BEFORE a z",
    "LINSERT l BEFORE q z",
    "LSET l 0 y",
    "LREM l 0 nothing",
    "LREM l 0 a",
    "LTRIM l 0 2",
    "LPOP l",
    "RPOP l 5",
    "RPUSH l 1 2 3",
    "LMOVE l m LEFT RIGHT",
    "RPOPLPUSH l l",
    "LMPOP 2 none l LEFT COUNT 9",
    "BLPOP none m 1",
    "RPUSH l 3 1 2",
    "SORT l STORE sorted",
    "SORT none STORE sorted",
    "LTRIM l 9 9",
    "SADD s a b c",
    "SADD s a",
    "SREM s x",
    "SREM s a",
    "SMOVE s t b",
    "SMOVE s t c",
    "SADD u c d",
    "SINTERSTORE dst t u",
    "SUNIONSTORE dst t u",
    "SDIFFSTORE dst none u",
    "SPOP t 0",
    "SPOP t 9",
    "SPOP u",
    "SPOP u",
    "HSET h f 1 g 2",
    "HSETNX h f 1",
    "HSETNX h i 1",
    "HINCRBY h f 1",
    "HINCRBYFLOAT h f 1.5",
    "HDEL h nothing",
    "HDEL h f g i",
    "ZADD z 1 a 2 b 3 c",
    "ZADD z 1 a",
    "ZADD z XX CH 5 a",
    "ZINCRBY z 1 b",
    "ZADD z INCR 1 q",
    "ZREM z nothing",
    "ZREM z q",
    "ZUNIONSTORE zd 2 z none",
    "ZINTERSTORE zd 2 z none",
    "ZRANGESTORE zd z 0 -1",
    "ZDIFFSTORE zd 2 none z",
    "ZPOPMIN z 0",
    "ZPOPMIN z",
    "BZPOPMAX z 1",
    "ZMPOP 1 z MAX",
    "ZADD z 1 a 2 b 3 c",
    "ZREMRANGEBYRANK z 0 0",
    "ZREMRANGEBYSCORE z 2 2",
    "ZREMRANGEBYLEX z - +",
    "GEOADD g 13.4 52.5 berlin 2.3 48.8 paris",
    "GEOSEARCHSTORE near g FROMMEMBER berlin BYRADIUS 10 km",
    "GEORADIUSBYMEMBER g paris 10 km STORE near",
    "PFADD p a",
    "PFADD p a",
    "PFMERGE p2 p",
    "XADD x 1-1 f v",
    "XADD x MAXLEN 1 2-1 f v",
    "XGROUP CREATE x grp 0",
    "XGROUP CREATE y grp $ MKSTREAM",
    "XGROUP CREATECONSUMER x grp one",
    "XREADGROUP GROUP grp two STREAMS x >",
    "XCLAIM x grp three 0 2-1",
    "XAUTOCLAIM x grp four 0 0",
    "XACK x grp 2-1",
    "XGROUP SETID x grp 0",
    "XGROUP DELCONSUMER x grp one",
    "XGROUP DELCONSUMER x grp one",
    "XGROUP DESTROY x grp",
    "XDEL x 2-1",
    "XDEL x 2-1",
    "XSETID x 9-9",
    "XTRIM x MAXLEN 0",
    "RENAME x xx",
    "RENAMENX xx y",
    "RENAME xx y",
    "COPY y yy",
    "COPY y yy",
    "COPY y yy REPLACE",
    "MOVE yy 3",
    "COPY y yy DB 4",
    "DEL y nothing z",
    "UNLINK g near",
    "SELECT 5",
    "SET k 1",
    "DEL k",
    "SET k 2",
    "FLUSHDB",
    "SELECT 0",
    "SET v 1 EX 1000",
    "GETEX v PERSIST",
    "MULTI",
    "SET tx 1 EX 100",
    "RPUSH txl a",
    "LPOP txl",
    "INCR tx2",
    "EXPIRE tx2 50",
    "PERSIST tx2",
    "DEL tx",
    "EXEC",
    "MULTI",
    "SET never 1",
    "DISCARD",
    "EVAL \"redis.call('SET', KEYS[1], 1) redis.call('EXPIRE', KEYS[1], 100) redis.call('DEL', KEYS[1]) return 1\" 1 one",
    "EVAL \"redis.call('SET', 'i', 1) redis.call('RENAME', 'i', 'j') return redis.call('LPUSH', 'w', 1)\" 0",
    "EVAL \"redis.call('SET', 'before', 1) redis.call('INCR', 'w')\" 0",
    "FUNCTION LOAD REPLACE \"#!lua name=lib\\n\"",
    "INCR l",
    "LPUSH tx2 x",
    "SET e 1 EXAT 1",
    "SET e 2",
    "SET e 3 XX EXAT 1",
    "FLUSHALL",
];

/// Events of one connection's commands, alone or in other classes, as a redis-server tells them.
fn beside_redis_server(name: &str, more: &[&str]) {
    let rack = Rack::start(name, &[&["--gateways", "2"], more].concat());
    let plain = PlainRedis::start();
    let (mut one, mut other) = (rack.client(), Resp::open(second(&rack)));
    let mut server = Resp::open(plain.listen);
    until("both serve", || one.say("SET up 1") == "+OK" && other.say("SET up 1") == "+OK");
    one.say("FLUSHALL");
    let listeners = [rack.listen, second(&rack), plain.listen].map(listen);
    let mut compared = 0;
    let [mut here, mut there, mut oracle] = listeners;
    for (round, classes) in ["KEAn", "Kg$xl", "Ezhst", "E", "$", "KA"].into_iter().enumerate() {
        let set = format!("CONFIG SET notify-keyspace-events {classes}");
        assert_eq!([one.say(&set), server.say(&set)], ["+OK", "+OK"]);
        for command in COMMANDS {
            say(&mut one, command);
            say(&mut server, command);
            // Where a time has passed Redis waits until somebody looks.
            if command.contains("EXAT 1") {
                say(&mut server, "GET e");
            }
        }
        let set = "CONFIG SET notify-keyspace-events KEA";
        assert_eq!([other.say(set), server.say(set)], ["+OK", "+OK"]);
        let mark = format!("mark{round}");
        for client in [&mut other, &mut server] {
            say(client, &format!("SET {mark} x"));
        }
        let wanted = events_up_to(&mut oracle, &mark);
        assert_eq!(events_up_to(&mut here, &mark), wanted, "{name}: {classes}");
        assert_eq!(events_up_to(&mut there, &mark), wanted, "{name}: {classes}");
        compared += wanted.len();
    }
    println!("{name}: {compared} events were those of redis-server, at both gateways");
    assert!(compared > 400, "{compared}");
}

#[test]
fn events_are_those_of_redis_server_at_both_gateways() {
    beside_redis_server("events-chain", &[]);
}

#[test]
fn events_are_those_of_redis_server_with_vr() {
    beside_redis_server("events-vr", &["--protocol", "vr"]);
}

#[test]
fn events_are_those_of_redis_server_with_the_redis_engine() {
    beside_redis_server("events-redis", &["--engine", "redis"]);
}

/// Events are those of redis server with the redis engine and vr.
#[test]
fn redis_engine_events_match_redis_server() {
    beside_redis_server("events-redis-vr", &["--engine", "redis", "--protocol", "vr"]);
}

#[test]
fn events_are_told_with_every_protocol() {
    for (name, more) in [
        ("events-pb", &["--protocol", "primary-backup"][..]),
        ("events-craq", &["--protocol", "craq", "--accel", "none"]),
        ("events-nopaxos", &["--protocol", "nopaxos"]),
        ("events-raft", &["--protocol", "raft", "--accel", "none"]),
        ("events-flair", &["--protocol", "vr", "--accel", "flair"]),
        ("events-pb-redis", &["--protocol", "primary-backup", "--engine", "redis"]),
        ("events-nopaxos-redis", &["--protocol", "nopaxos", "--engine", "redis"]),
    ] {
        let rack = Rack::start(name, more);
        let mut client = rack.client();
        assert_eq!(client.say("CONFIG SET notify-keyspace-events KEA"), "+OK");
        let mut listener = listen(rack.listen);
        for n in 0..200 {
            assert_eq!(client.say(&format!("PSETEX k{n} 50 x")), "+OK");
        }
        let mut all: Vec<String> = (0..1_200).map(|_| event(&mut listener)).collect();
        let of = |all: &[String], what: &str| -> Vec<String> {
            all.iter().filter(|one| one.contains(what)).cloned().collect()
        };
        let sets: Vec<String> = (0..200).map(|n| format!("__keyevent@0__:set k{n}")).collect();
        assert_eq!(of(&all, "__keyevent@0__:set"), sets, "{name}");
        assert_eq!(of(&all, "__keyevent@0__:expired").len(), 200, "{name}");
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 1_200, "{name}: none twice");
    }
}

/// Who subscribes hears what comes then and of keys that nobody touches.
#[test]
fn subscriber_hears_later_events() {
    let rack = Rack::start("events-begin", &["--gateways", "2"]);
    let (mut one, mut other) = (rack.client(), Resp::open(second(&rack)));
    until("both serve", || one.say("SET up 1") == "+OK" && other.say("SET up 1") == "+OK");
    assert_eq!(one.say("CONFIG SET notify-keyspace-events KEA"), "+OK");
    // As soon as it is answered, at both.
    assert_eq!(other.say("CONFIG GET notify-keyspace-events"), "*2");
    other.next().unwrap();
    assert_eq!(other.next().unwrap().1, b"AKE");
    // Nothing from before, and everything from then on, however often and wherever.
    for n in 0..100 {
        one.say(&format!("SET before{n} x"));
        let mut listener = listen(if n % 2 == 0 { rack.listen } else { second(&rack) });
        one.say(&format!("SET after{n} x"));
        assert_eq!(event(&mut listener), format!("__keyspace@0__:after{n} set"));
    }
    // One channel alone.
    let mut listener = Resp::open(second(&rack));
    assert_eq!(listener.say("SUBSCRIBE __keyevent@0__:expired"), "*3");
    (0..3).for_each(|_| drop(listener.next().unwrap()));
    for n in 0..50 {
        one.say(&format!("PSETEX gone{n} {} x", 20 + n));
    }
    let mut gone: Vec<String> = (0..50)
        .map(|_| {
            assert_eq!(listener.next().unwrap().0, "*3");
            (0..2).for_each(|_| drop(listener.next().unwrap()));
            String::from_utf8(listener.next().unwrap().1).unwrap()
        })
        .collect();
    gone.sort();
    let mut wanted: Vec<String> = (0..50).map(|n| format!("gone{n}")).collect();
    wanted.sort();
    assert_eq!(gone, wanted);
    // Letters that are none, and what is not built.
    let error = one.say("CONFIG SET notify-keyspace-events Kq");
    assert!(error.contains("Invalid event class character"), "{error}");
    assert!(one.say("CONFIG SET notify-keyspace-events KEm").contains("read found no key"));
    assert_eq!(one.call(&[b"CONFIG", b"SET", b"notify-keyspace-events", b""]).unwrap().0, "+OK");
}

/// What a listener heard of keys `k0` to `k<n>`, written in this order: each at most once, in this
/// order.
fn numbers(heard: &[String]) -> Vec<u64> {
    let number = |one: &String| one.strip_prefix("__keyevent@0__:set k")?.parse().ok();
    let all: Vec<u64> = heard.iter().filter_map(number).collect();
    assert!(all.is_sorted_by(|a, b| a < b), "each once, and in the order of the writes");
    all
}

#[test]
fn no_event_is_wrong_where_a_replica_or_a_gateway_is_killed() {
    for (name, more) in [
        ("events-killed", &[][..]),
        ("events-killed-vr", &["--protocol", "vr"]),
        ("events-killed-redis", &["--engine", "redis"]),
    ] {
        let flags = [&["--gateways", "2", "--restart-gateways"], more].concat();
        let rack = Rack::start(name, &flags);
        let (mut one, mut other) = (rack.client(), Resp::open(second(&rack)));
        until("both serve", || one.say("SET up 1") == "+OK" && other.say("SET up 1") == "+OK");
        assert_eq!(one.say("CONFIG SET notify-keyspace-events E$"), "+OK");
        let mut listener = listen(rack.listen);
        let victim = if more.contains(&"vr") { "replica-1" } else { "replica-3" };
        let victim = rack.pids().into_iter().find(|(own, _)| own == victim).map(|(_, pid)| pid);
        let victim = victim.expect("three replicas");
        // Writes go on while a replica dies that answers, and then the gateway that they come by.
        let mut written = Vec::new();
        for n in 0..2_000u64 {
            if n == 500 {
                Rack::signal(victim, "-9");
            }
            if n == 1_500 {
                Rack::signal(rack.pid("gateway-2"), "-9");
                until("the gateway is back", || {
                    other = Resp::open(second(&rack));
                    other.call(&[b"PING"]).is_ok_and(|(reply, _)| reply == "+PONG")
                });
            }
            let key = format!("k{n}");
            match other.call(&[b"SET", key.as_bytes(), b"x"]) {
                Ok((reply, _)) if reply == "+OK" => written.push(n),
                Ok((reply, _)) => assert!(reply.starts_with("-UNKNOWN"), "{reply}"),
                Err(_) => other = Resp::open(second(&rack)),
            }
        }
        one.say("SET end x");
        let heard = numbers(&events_up_to(&mut listener, "end"));
        let lost = written.iter().filter(|n| heard.binary_search(n).is_err()).count();
        println!("{name}: {} written, {} heard, {lost} lost", written.len(), heard.len());
        assert_eq!(lost, 0, "what was answered is heard");
        // The setting is the rack's: the gateway that came anew has it.
        assert_eq!(other.say("CONFIG GET notify-keyspace-events"), "*2");
        other.next().unwrap();
        assert_eq!(other.next().unwrap().1, b"$E");
    }
}

#[test]
fn the_setting_survives_with_the_data() {
    let flags = ["--durability", "fsync"];
    let mut rack = Rack::start("events-kept", &flags);
    assert_eq!(rack.client().say("CONFIG SET notify-keyspace-events Ex"), "+OK");
    rack.cut_power();
    rack = rack.again("events-kept", &flags);
    let mut client = rack.client();
    until("it serves again", || client.say("SET up 1") == "+OK");
    let mut listener = listen(rack.listen);
    client.say("PSETEX k 100 x");
    assert_eq!(event(&mut listener), "__keyevent@0__:expired k");
}
