//! Keys of a chain of switches for Redis clients, beside a store's, through one gateway.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::*;

const BOTH: &str = "\
coord_prefix = \"@\"
[[group]]
name = \"sessions\"
number = 1
protocol = \"chain\"
[[group]]
name = \"locks\"
number = 7
kind = \"switches\"
";

pub(crate) fn start(name: &str) -> Rack {
    let directory = directory(&format!("{name}-file"));
    let file = directory.join("both.toml");
    std::fs::write(&file, BOTH).unwrap();
    Rack::start(name, &["--config", file.to_str().unwrap(), RESTARTS])
}

#[test]
fn redis_clients_have_the_chains_keys_below_the_prefix() {
    let rack = start("coord-gateway");
    let file = rack.file();
    let mut client = rack.client();
    for (words, reply) in [
        ("SET @leader host-a NX PX 60000", "+OK"),
        ("SET @leader host-b NX", "$-1"),
        ("SET leader another", "+OK"),
        ("GET @leader", "host-a"),
        ("GET leader", "another"),
        ("EXISTS @leader", ":1"),
        ("TTL @leader", ":60"),
        ("EXPIRE @leader 100", ":1"),
        ("TTL @leader", ":100"),
        ("PERSIST @leader", ":1"),
        ("TTL @leader", ":-1"),
        ("CAS @leader host-a host-b", ":1"),
        ("CAD @leader host-a", ":0"),
        ("INCR @tickets", ":1"),
        ("INCRBY @tickets 41", ":42"),
        ("TYPE @tickets", "+string"),
        ("DEL @tickets", ":1"),
        ("GET @tickets", "$-1"),
        ("SELECT 3", "+OK"),
        ("GET @leader", "host-b"),
        ("SELECT 0", "+OK"),
    ] {
        assert_eq!(client.say(words), reply, "{words}");
    }
    let told = concord(&["coord", "--config", &file, "get", "@leader"]);
    assert_eq!(String::from_utf8_lossy(&told.stdout), "host-b\n");
    // What the chain cannot do changes nothing, and says so in one line.
    for words in [
        "APPEND @leader x",
        "DEL @leader @b",
        "DEL @leader leader",
        "MSET @leader x leader y",
        "RENAME leader @leader",
        "RENAME @leader leader",
        "LPUSH @leader x",
        "BLPOP @leader 0",
        "WATCH @leader",
        "EVAL return(1) 1 @leader",
        "CONCORD EXPLAIN MGET @leader leader",
        "SET @leader x EX 0",
        "GET @012345678901234567890123456789012",
    ] {
        let reply = client.say(words);
        assert!(reply.starts_with("-ERR "), "{words}: {reply}");
    }
    for (words, reply) in [("MULTI", "+OK"), ("SET leader within", "+QUEUED")] {
        assert_eq!(client.say(words), reply);
    }
    assert_eq!(client.say("SET @leader x"), "-ERR keys of the chain are not for transactions");
    assert!(client.say("EXEC").starts_with("-EXECABORT"));
    assert_eq!(
        (client.say("GET leader"), client.say("GET @leader")),
        ("another".into(), "host-b".into())
    );
    assert_eq!(client.say("SET @short x PX 300"), "+OK");
    until("end of the key", || client.say("GET @short") == "$-1");
    assert_eq!(client.say("INCR @leader"), "-ERR value is not an integer or out of range");
}

/// CONCORD EXPLAIN: whichever switch answers a read, the tail answers a write, whose version is a
/// token that rises.
#[test]
fn explain_names_the_switch_that_answered() {
    let rack = start("coord-explain");
    let file = rack.file();
    let explain = |words: &[&str]| -> std::collections::BTreeMap<String, String> {
        let words = [&["explain", "--config", &file], words].concat();
        let output = concord(&words);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        let fields = text.lines().filter_map(|line| line.split_once(": "));
        fields.map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let absent = explain(&["GET", "@k"]);
    assert_eq!((&*absent["path"], &*absent["switch"]), ("head", "1"), "{absent:?}");
    let first = explain(&["SET", "@k", "a", "NX"]);
    assert_eq!((&*first["path"], &*first["reply"]), ("ordered", "OK"), "{first:?}");
    assert_eq!(first["switch"], "3", "the tail: {first:?}");
    let read = explain(&["GET", "@k"]);
    assert_eq!((&*read["path"], &*read["reply"]), ("clean", "a"), "{read:?}");
    assert_eq!((&read["version"], &*read["switch"]), (&first["version"], "1"), "{read:?}");
    let second = explain(&["SET", "@k", "b", "IFEQ", "a"]);
    let version = |told: &std::collections::BTreeMap<String, String>| -> u64 {
        told["version"].parse().unwrap()
    };
    assert!(version(&second) > version(&first), "{first:?} {second:?}");
}

/// A prefix that the store's keys have already: one line says so, and nothing is changed.
#[test]
fn keys_of_the_store_below_the_prefix_are_a_problem() {
    let directory = directory("coord-shadowed-file");
    let path = directory.join("both.toml");
    std::fs::write(&path, BOTH.replace("coord_prefix = \"@\"\n", "")).unwrap();
    let rack = Rack::start("coord-shadowed", &["--config", path.to_str().unwrap()]);
    let mut client = rack.client();
    assert_eq!(client.say("SET @leader of-the-store"), "+OK");
    let file = rack.file();
    let text = std::fs::read_to_string(&file).unwrap();
    let begins = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let gateway = ByHand::start(&rack, &["gateway"]);
        until("a gateway", || TcpStream::connect(rack.listen).is_ok());
        gateway
    };
    let first = rack.pid("gateway-1");
    Rack::signal(first, "-9");
    until("end of the gateway", || !is_alive(first));
    let with_prefix = begins(&format!("coord_prefix = \"@\"\n{text}"));
    let line = "gateway 1: the store has keys that begin with coord_prefix, as @leader: no client reaches them";
    until("the line", || {
        let told = concord(&["status", "--config", &file]);
        String::from_utf8_lossy(&told.stdout).contains(line)
    });
    assert_eq!(rack.client().say("GET @leader"), "$-1");
    drop(with_prefix);
    let _without = begins(&text);
    assert_eq!(rack.client().say("GET @leader"), "of-the-store");
}

/// Both kinds of keys in one pipeline, while a switch of the chain is killed: replies come in
/// order, and each read sees the write before it, of either system (trap T22).
#[test]
fn t22_order_within_a_connection_holds_across_both_systems() {
    let rack = start("coord-pipeline");
    let stream = TcpStream::connect(rack.listen).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    let pipeline = |round: u64| -> String {
        let values = 8 * round..8 * round + 8;
        let of =
            |v: u64| format!("SET @k {v}\r\nSET k {v}\r\nGET @k\r\nGET k\r\nINCR @n\r\nINCR n\r\n");
        values.map(of).collect()
    };
    let (mut known, mut unknown) = (0, 0);
    for round in 0..60 {
        if round == 20 {
            Rack::signal(rack.pid("locks-switch-1"), "-9");
        }
        (&stream).write_all(pipeline(round).as_bytes()).unwrap();
        for value in 8 * round..8 * round + 8 {
            let is_set = next();
            assert_eq!(next(), "+OK");
            let read = |line: String, next: &mut dyn FnMut() -> String| {
                if line.starts_with('$') { next() } else { line }
            };
            let line = next();
            let of_chain = read(line, &mut next);
            let line = next();
            assert_eq!(read(line, &mut next), value.to_string());
            // Of unknown outcome are at most those that were under way when the switch died.
            if is_set == "+OK" && !of_chain.starts_with('-') {
                assert_eq!(of_chain, value.to_string());
                known += 1;
            } else {
                unknown += 1;
            }
            let counted = next();
            assert!(counted.starts_with(':') || counted.starts_with("-UNKNOWN"), "{counted}");
            assert_eq!(next(), format!(":{}", value + 1));
        }
    }
    println!("{known} known, {unknown} unknown");
    assert!(known > 400 && unknown < 20);
}
