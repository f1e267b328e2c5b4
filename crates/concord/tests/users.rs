//! Users over real processes: two gateways that share them, a power cut, a replica that joins, and a gateway that starts
//! anew; with both engines.
#![allow(clippy::unwrap_used)]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::*;

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
    until("it knows", || Resp::open(second(&rack)).say("AUTH eve pw").starts_with("-WRONGPASS"));
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
