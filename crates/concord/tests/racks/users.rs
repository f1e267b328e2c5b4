//! Users over real processes: two gateways that share them, a power cut, a replica that joins, and
//! a gateway that starts anew; with both engines.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::*;

/// How long a gateway that was not told may go on with old users: it asks once a second.
const SOON: Duration = Duration::from_secs(5);

fn second(rack: &Rack) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], rack.listen.port() + 1))
}

fn share(name: &str, more: &[&str]) {
    let flags =
        [&["--gateways", "2", "--restart-gateways", "--durability", "fsync"], more].concat();
    let mut rack = Rack::start(name, &flags);
    let (mut one, mut other) = (rack.client(), Resp::open(second(&rack)));
    until("both serve", || one.say("SET up 1") == "+OK" && other.say("SET up 1") == "+OK");
    // As soon as it is answered, at both.
    for n in 0..20 {
        assert_eq!(one.say(&format!("ACL SETUSER bob reset on >pw{n} ~a* +@all")), "+OK");
        assert_eq!(other.say(&format!("AUTH bob pw{n}")), "+OK");
    }
    assert_eq!(other.say("SET a 1"), "+OK");
    assert!(other.say("GET b").starts_with("-NOPERM"));
    // Both at once change them: no change is lost.
    let (mut left, mut right) = (rack.client(), Resp::open(second(&rack)));
    std::thread::scope(|scope| {
        for (client, name) in [(&mut left, "l"), (&mut right, "r")] {
            scope.spawn(move || {
                (0..30).for_each(|n| {
                    assert_eq!(client.say(&format!("ACL SETUSER {name}{n} on")), "+OK");
                });
            });
        }
    });
    assert_eq!(one.say("ACL USERS"), "*62");
    (0..62).for_each(|_| drop(one.next().unwrap()));
    // A user that is deleted is disconnected at the other gateway, and refused.
    assert_eq!(one.say("ACL DELUSER bob"), ":1");
    assert!(other.call(&[b"GET", b"a"]).is_err(), "its connection is closed");
    let mut other = Resp::open(second(&rack));
    assert!(other.say("AUTH bob pw19").starts_with("-WRONGPASS"));
    // What is kept survives the power, FLUSHALL and a gateway.
    assert_eq!(one.say("ACL SETUSER eve on >pw ~e* +@all"), "+OK");
    assert_eq!(one.say("FLUSHALL"), "+OK");
    rack.cut_power();
    rack = rack.again(name, &flags);
    let mut one = rack.client();
    until("it serves again", || one.say("SET up 1") == "+OK");
    assert_eq!(one.say("AUTH eve pw"), "+OK");
    assert_eq!(one.say("SET e 1"), "+OK");
    assert!(one.say("SET up 1").starts_with("-NOPERM"));
    Rack::signal(rack.pid("gateway-2"), "-9");
    let began = Instant::now();
    until("the other one is back", || {
        std::net::TcpStream::connect(second(&rack)).is_ok()
            && Resp::open(second(&rack)).say("AUTH eve pw") == "+OK"
    });
    println!("a killed gateway knew the users again after {:?}", began.elapsed());
    // While a gateway stands still it is not waited for, and it knows soon after.
    let still = rack.pid("gateway-2");
    Rack::signal(still, "-STOP");
    let mut admin = rack.client();
    assert_eq!(admin.say("ACL DELUSER eve"), ":1");
    Rack::signal(still, "-CONT");
    let began = Instant::now();
    // As it hears of it, it closes connections of that user without a reply.
    until("it knows", || {
        let reply = Resp::open(second(&rack)).call(&[b"AUTH", b"eve", b"pw"]);
        reply.is_ok_and(|(line, _)| line.starts_with("-WRONGPASS"))
    });
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn users_are_the_same_at_all_gateways_and_survive() {
    share("users-chain", &[]);
}

#[test]
fn users_are_the_same_with_vr() {
    share("users-vr", &["--protocol", "vr"]);
}

#[test]
fn users_are_the_same_with_the_redis_engine() {
    share("users-redis", &["--engine", "redis"]);
}

/// What a restricted user's scripts answer is what a redis-server says to such a user, at every
/// gateway, in transactions and functions too; new rules hold for the next script.
fn scripts(name: &str, more: &[&str]) {
    let rack = Rack::start(name, &[&["--gateways", "2"], more].concat());
    let plain = PlainRedis::start();
    let set = "ACL SETUSER bob reset on nopass ~a* %R~r* &c* -@all +@scripting +@transaction +get +set +incr +publish";
    let code = "#!lua name=l\nredis.register_function('f', function(keys) return redis.call('get', keys[1]) end)";
    let mut clients = Vec::new();
    for target in [plain.listen, rack.listen, second(&rack)] {
        let mut admin = Resp::open(target);
        until("it serves", || admin.say("SET r1 v") == "+OK");
        if target != second(&rack) {
            assert_eq!(admin.say(set), "+OK");
            assert_eq!(admin.call(&[b"FUNCTION", b"LOAD", code.as_bytes()]).unwrap().1, b"l");
        }
        let mut bob = Resp::open(target);
        assert_eq!(bob.say("AUTH bob x"), "+OK");
        clients.push((admin, bob));
    }
    let told = |(line, value): (String, Vec<u8>)| {
        let line = line.split(" script: ").next().unwrap().to_string();
        format!("{line} {}", String::from_utf8_lossy(&value))
    };
    let compare = |clients: &mut [(Resp, Resp)], args: &[&[u8]]| {
        let ask = |(_, bob): &mut (Resp, Resp)| told(bob.call(args).unwrap());
        let replies: Vec<String> = clients.iter_mut().map(ask).collect();
        let shown: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
        assert_eq!((&replies[1], &replies[2]), (&replies[0], &replies[0]), "{name}: {shown:?}");
        replies[0].clone()
    };
    let denied = "-ERR The user executing the script can't";
    for (script, key, is_denied) in [
        ("return redis.call('get', 'r1')", None, false),
        ("return redis.call('set', 'r1', 1)", None, true),
        ("return redis.call('set', KEYS[1], 1)", Some("a"), false),
        ("return redis.call('del', KEYS[1])", Some("a"), true),
        ("return redis.call('get', 'b')", Some("a"), true),
        ("return redis.call('publish', 'd', 1)", None, true),
        ("return redis.call('publish', 'c', 1)", None, false),
        ("return tostring(redis.acl_check_cmd('set', 'r1', 1))", None, false),
    ] {
        let rest: Vec<&[u8]> = match key {
            Some(key) => vec![b"1", key.as_bytes()],
            None => vec![b"0"],
        };
        let eval: Vec<&[u8]> =
            [b"EVAL", script.as_bytes()].into_iter().chain(rest.clone()).collect();
        let reply = compare(&mut clients, &eval);
        assert_eq!(reply.starts_with(denied), is_denied, "{script}: {reply}");
        let sha = concord_engine::script::hash_of(script.as_bytes());
        let eval: Vec<&[u8]> = [&b"EVALSHA"[..], &sha].into_iter().chain(rest).collect();
        assert_eq!(compare(&mut clients, &eval), reply, "{script}");
    }
    assert_eq!(compare(&mut clients, &[b"FCALL", b"f", b"1", b"a"]), "$1 1");
    assert!(
        compare(&mut clients, &[b"FCALL_RO", b"f", b"1", b"a"]).starts_with("-ERR Can not execute")
    );
    for line in ["MULTI", "EVAL x 1 b", "DISCARD", "MULTI", "FCALL f 1 a"] {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        compare(&mut clients, &args);
    }
    compare(&mut clients, &[b"EVAL", b"return redis.pcall('set', 'r1', 1)", b"0"]);
    assert_eq!(compare(&mut clients, &[b"EXEC"]), "*2 ");
    for _ in 0..2 {
        let next = |(_, bob): &mut (Resp, Resp)| told(bob.next().unwrap());
        let parts: Vec<String> = clients.iter_mut().map(next).collect();
        assert!(parts[1..].iter().all(|part| *part == parts[0]), "{parts:?}");
    }
    // At both gateways, once it is answered.
    for at in [0, 1] {
        assert_eq!(clients[at].0.say("ACL SETUSER bob -get"), "+OK");
    }
    assert!(compare(&mut clients, &[b"FCALL", b"f", b"1", b"a"]).starts_with(denied));
}

#[test]
fn scripts_of_users_are_looked_at_by_every_replica() {
    scripts("users-scripts", &[]);
    scripts("users-scripts-redis", &["--engine", "redis", "--protocol", "vr"]);
}
