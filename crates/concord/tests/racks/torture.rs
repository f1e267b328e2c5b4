//! `concord torture` against plain redis-servers: it must accept one, and must not accept two that
//! know nothing of each other behind one name.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Output;
use std::time::Duration;

use crate::common::*;

fn torture(args: &[&str]) -> Output {
    concord(&[&["torture", "--json", "--ops", "20000"], args].concat())
}

fn report(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn one_redis_server_is_linearizable() {
    let server = PlainRedis::start();
    let target = server.listen.to_string();
    for more in [&["--keys", "8"][..], &["--keys", "8", "--pipeline", "4"], &["--keys", "1000"]] {
        let output = torture(&[&["--target", &target], more].concat());
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", report(&output));
        let report = report(&output);
        assert!(report["operations"].as_u64() >= Some(20_000), "{report}");
        assert_eq!((&report["operations"], &report["unknown"]), (&report["judged"], &0.into()));
        assert!(report["expiries"]["judged"].as_u64() > Some(0), "{report}");
        let wrong_types = report["errors"]["WRONGTYPE"].as_u64();
        assert!(wrong_types > Some(0), "commands of the wrong type are among them: {report}");
    }
}

#[test]
fn two_unrelated_redis_servers_are_not_one_store() {
    let servers = [PlainRedis::start(), PlainRedis::start()];
    let targets = servers.each_ref().map(|s| s.listen.to_string());
    let output = torture(&["--keys", "8", "--target", &targets[0], "--target", &targets[1]]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report(&output)["verdict"], "violation");
}

/// Transactions on one redis server have an order and on two they have not.
#[test]
fn transactions_on_one_redis_server_and_on_two() {
    let servers = [PlainRedis::start(), PlainRedis::start()];
    let targets = servers.each_ref().map(|s| s.listen.to_string());
    let accounts = ["--accounts", "20", "--clients", "8"];
    let output = torture(&[&accounts[..], &["--target", &targets[0]]].concat());
    let one = report(&output);
    assert_eq!((output.status.code(), &one["verdict"]), (Some(0), &"ok".into()), "{one}");
    let counts = ["moves", "sums", "list_transactions"].map(|name| one[name].as_u64().unwrap());
    assert!(counts.iter().all(|count| *count > 1_000), "{one}");
    for way in ["multi", "watch", "script", "script_without_keys", "script_in_multi"] {
        let done = ["moves_by", "list_transactions_by"].map(|kind| one[kind][way].as_u64());
        assert!(done.iter().all(|done| *done > Some(200)), "{way}: {one}");
    }
    assert!(one["aborted"].as_u64() > Some(10), "{one}");
    let both = [&accounts[..], &["--target", &targets[0], "--target", &targets[1]]].concat();
    let output = torture(&both);
    let two = report(&output);
    assert_eq!((output.status.code(), &two["verdict"]), (Some(1), &"violation".into()), "{two}");
    assert!(!two["anomaly"].is_null(), "{two}");
}

/// Passes bytes on to a server and back, but for those words that it changes.
fn a_proxy(server: SocketAddr, word: &'static [u8], other: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut from, mut to) = (stream.unwrap(), TcpStream::connect(server).unwrap());
            let (mut back, mut replies) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut replies, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut bytes = [0; 16_384];
                while let Ok(length @ 1..) = from.read(&mut bytes) {
                    while let Some(at) = bytes[..length].windows(word.len()).position(|w| w == word)
                    {
                        bytes[at..at + word.len()].copy_from_slice(other);
                    }
                    if to.write_all(&bytes[..length]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    target
}

#[test]
fn a_store_that_forgets_what_is_watched_is_caught() {
    let server = PlainRedis::start();
    let target = a_proxy(server.listen, b"WATCH", b"TOUCH").to_string();
    let output = torture(&["--accounts", "10", "--clients", "8", "--target", &target]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(!report["anomaly"].is_null() && report["wrong_sums"][0].is_i64(), "{report}");
}

#[test]
fn a_store_whose_scripts_append_at_the_wrong_end_is_caught() {
    let server = PlainRedis::start();
    let target = a_proxy(server.listen, b"'RPUSH'", b"'LPUSH'").to_string();
    let output = torture(&["--accounts", "10", "--clients", "8", "--target", &target]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(!report["anomaly"].is_null() && report["wrong_sums"][0].is_null(), "{report}");
}

/// Does what a broken store might do, again and again while torture runs.
fn beside(server: SocketAddr, args: &[&str], mut harm: impl FnMut(&mut Resp)) -> Output {
    let target = server.to_string();
    let args = [args, &["--target", &target]].concat();
    std::thread::scope(|scope| {
        let torture = scope.spawn(|| torture(&args));
        let mut redis = Resp::open(server);
        while !torture.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
            harm(&mut redis);
        }
        torture.join().unwrap()
    })
}

#[test]
fn queues_of_one_redis_server_give_each_element_once() {
    let server = PlainRedis::start();
    let output = torture(&["--queues", "4", "--target", &server.listen.to_string()]);
    let report = report(&output);
    assert_eq!((output.status.code(), &report["verdict"]), (Some(0), &"ok".into()), "{report}");
    assert_eq!(report["pushed"], 20_000);
    for way in ["blpop", "brpop", "blmove", "workers_died"] {
        assert!(report[way].as_u64() > Some(5), "{report}");
    }
}

#[test]
fn queues_that_lose_elements_or_give_them_twice_are_caught() {
    let server = PlainRedis::start();
    let queues = ["--queues", "2"];
    let output = beside(server.listen, &queues, |redis| {
        redis.say("LPOP torture:queue:0");
    });
    let lost = report(&output);
    assert_eq!(output.status.code(), Some(1), "{lost}");
    assert!(!lost["lost"].as_array().unwrap().is_empty(), "{lost}");
    let output = beside(server.listen, &queues, |redis| {
        let element = redis.say("LINDEX torture:queue:1 0");
        if element.contains('-') && element != "$-1" {
            redis.say(&format!("RPUSH torture:queue:0 {element}"));
        }
    });
    let twice = report(&output);
    assert_eq!(output.status.code(), Some(1), "{twice}");
    assert!(!twice["twice"].as_array().unwrap().is_empty(), "{twice}");
}

/// A server that takes what there is to prepare, and answers all else with an error.
fn one_that_refuses(error: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 65_536];
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    let sent = &bytes[..length];
                    let count = sent.iter().filter(|byte| **byte == b'*').count();
                    let is_first = sent.windows(7).any(|word| word == b"$3\r\nDEL");
                    let reply = if is_first { ":0\r\n".into() } else { format!("-{error}\r\n") };
                    if stream.write_all(reply.repeat(count).as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    target
}

/// What was refused, or never known, was not judged: no pass, whatever the run is for. Every phase
/// ends.
#[test]
fn bug_25_10_a_run_that_judged_nothing_is_no_pass() {
    for error in ["ERR no", "TIMEOUT no", "UNKNOWN who knows"] {
        let target = one_that_refuses(error);
        let runs: [&[&str]; 2] = [
            &["--keys", "8", "--ops", "500"],
            &["--queues", "2", "--ops", "500", "--timeout", "1"],
        ];
        for more in runs {
            let output = concord(&[&["torture", "--json", "--target", &target], more].concat());
            assert_eq!(output.status.code(), Some(3), "{error}, {more:?}: {}", report(&output));
            let report = report(&output);
            assert_eq!(report["verdict"], "too little was judged", "{report}");
        }
    }
    let dir = directory("torture-nothing");
    let file = dir.join("history.jsonl");
    std::fs::write(&file, "").unwrap();
    let checked = concord(&["check", &file.display().to_string()]);
    assert_eq!(checked.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("TOO LITTLE WAS JUDGED"));
}

/// Keys that never expire are found by a short run.
#[test]
fn bug_25_4_a_store_that_forgets_times_to_live_is_caught() {
    let server = PlainRedis::start();
    // Seconds for milliseconds: none comes to its end during the run.
    let target = a_proxy(server.listen, b"$2\r\nPX\r\n", b"$2\r\nEX\r\n").to_string();
    let output = torture(&["--keys", "241", "--target", &target]);
    assert_eq!(output.status.code(), Some(1), "{}", report(&output));
}

#[test]
fn its_history_is_what_concord_check_reads() {
    let server = PlainRedis::start();
    let dir = directory("torture-history");
    let file = dir.join("history.jsonl").display().to_string();
    let target = server.listen.to_string();
    assert!(torture(&["--keys", "50", "--target", &target, "--history", &file]).status.success());
    let checked = concord(&["check", &file]);
    assert!(checked.status.success());
    assert!(String::from_utf8_lossy(&checked.stdout).contains(" operations on 51 keys"));
}

#[test]
fn a_target_that_is_not_there_or_goes_away_is_said() {
    let line = refused(&["torture", "--target", "127.0.0.1:1"]);
    assert!(line.starts_with("concord: cannot connect to 127.0.0.1:1"), "{line}");
    let server = PlainRedis::start();
    let target = server.listen.to_string();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(server);
    });
    let output = concord(&["torture", "--ops", "100000000", "--timeout", "1", "--target", &target]);
    ends.join().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("16 clients gave up: no target took a connection for 1 s"), "{errors}");
}

/// A gateway that dies when it has taken some writes.
fn one_that_dies() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 4_096];
        for _ in 0..50 {
            assert!(stream.read(&mut bytes).unwrap() > 0);
            stream.write_all(b"+OK\r\n").unwrap();
        }
    });
    target
}

#[test]
fn torture_makes_its_accounts_at_another_gateway_when_one_dies() {
    let server = PlainRedis::start();
    let targets = [one_that_dies(), server.listen.to_string()];
    let accounts = ["--accounts", "100", "--clients", "4", "--ops", "2000"];
    let both = ["--target", &targets[0], "--target", &targets[1]];
    let output = concord(&[&["torture", "--json"], &accounts[..], &both].concat());
    let report = report(&output);
    assert_eq!((output.status.code(), &report["verdict"]), (Some(0), &"ok".into()), "{report}");
    assert!(report["sums"].as_u64() > Some(50), "{report}");
    // What the one that died was sent may be executed yet: its names are not used again.
    let mut redis = Resp::open(server.listen);
    assert_eq!(redis.say("EXISTS torture:account:1 torture:1:account:1"), ":1");
}
