//! Publish and subscribe over real processes: two gateways, one of which is killed, and redis-cli.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;

fn second(rack: &Rack) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], rack.listen.port() + 1))
}

/// The next message of a subscriber: what it says.
fn message(client: &mut Resp) -> String {
    assert_eq!(client.next().unwrap().0, "*3");
    assert_eq!(client.next().unwrap().1, b"message");
    client.next().unwrap();
    String::from_utf8(client.next().unwrap().1).unwrap()
}

fn subscribe(client: &mut Resp, channel: &str) {
    assert_eq!(client.say(&format!("SUBSCRIBE {channel}")), "*3");
    (0..3).for_each(|_| drop(client.next().unwrap()));
}

/// Messages cross gateways in order and a killed gateway comes back.
#[test]
fn messages_cross_gateways_in_order() {
    let rack = Rack::start("pubsub", &["--gateways", "2", "--restart-gateways"]);
    let (mut subscriber, mut publisher) = (rack.client(), Resp::open(second(&rack)));
    subscribe(&mut subscriber, "c");
    // Fifty more, of whom half are at each gateway.
    let mut more: Vec<Resp> = (0..50)
        .map(|n| if n % 2 == 0 { rack.client() } else { Resp::open(second(&rack)) })
        .collect();
    more.iter_mut().for_each(|client| subscribe(client, "c"));
    let began = Instant::now();
    const MESSAGES: usize = 2_000;
    for n in 0..MESSAGES {
        assert_eq!(publisher.say(&format!("PUBLISH c {n}")), ":51");
    }
    let each = began.elapsed() / MESSAGES as u32;
    println!("a message to 51 subscribers at two gateways: {each:?}");
    for client in more.iter_mut().chain([&mut subscriber]) {
        (0..MESSAGES).for_each(|n| assert_eq!(message(client), n.to_string()));
    }
    // A long one takes many packets.
    let long = "x".repeat(1_000_000);
    assert_eq!(publisher.say(&format!("PUBLISH c {long}")), ":51");
    assert!(message(&mut subscriber) == long);
    // What a write is followed by, its reader sees.
    for n in 0..100 {
        publisher.call(&[b"SET", b"k", format!("{n}").as_bytes()]).unwrap();
        publisher.say(&format!("PUBLISH c {n}"));
        assert_eq!(message(&mut subscriber), n.to_string());
        assert_eq!(rack.client().say("GET k"), n.to_string());
    }
    Rack::signal(rack.pid("gateway-2"), "-9");
    until("a new gateway", || {
        let mut publisher = Resp::open(second(&rack));
        publisher.call(&[b"PUBLISH", b"c", b"back"]).is_ok_and(|(reply, _)| reply == ":26")
    });
    assert_eq!(message(&mut subscriber), "back");
}

#[test]
fn redis_cli_subscribes() {
    let rack = Rack::start("pubsub-cli", &["--gateways", "2"]);
    let port = rack.listen.port().to_string();
    for more in [&[][..], &["-3"]] {
        let cli = Command::new("redis-cli")
            .args(["-p", &port])
            .args(more)
            .args(["PSUBSCRIBE", "n*"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut cli = cli.unwrap();
        let mut publisher = Resp::open(second(&rack));
        until("the subscriber", || publisher.say("PUBLISH news hello") == ":1");
        std::thread::sleep(Duration::from_millis(200));
        cli.kill().unwrap();
        let output = cli.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("pmessage") && text.contains("hello"), "{text}");
        until("nobody", || publisher.say("PUBLISH news hello") == ":0");
    }
}
