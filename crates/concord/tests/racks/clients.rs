//! Unmodified Redis clients: redis-cli, redis-benchmark, redis-py, and Perl's Redis.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

use crate::common::*;

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|e| {
        panic!("{program} is needed ({e}): scripts/install-test-packages installs it")
    });
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {out}{err}");
    format!("{out}{err}")
}

fn script(name: &str) -> String {
    format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn redis_cli_and_redis_benchmark() {
    let rack = Rack::start("cli", &[]);
    let port = rack.listen.port().to_string();
    let cli = |args: &[&str]| run("redis-cli", &[&["-p", &port], args].concat());
    assert_eq!(cli(&["SET", "a", "1"]), "OK\n");
    assert_eq!(cli(&["-3", "HSET", "h", "f", "v"]), "1\n");
    assert!(cli(&["-3", "HGETALL", "h"]).contains('f'));
    // One read may be slow on a busy machine (a lease ran out, a write was sent twice): not each.
    let explained = || cli(&["CONCORD", "EXPLAIN", "GET", "a"]);
    until(&format!("fast read, only {}", explained()), || explained().contains("fast"));
    assert!(cli(&["BLPOP", "a", "1"]).contains("WRONGTYPE"));
    assert_eq!(cli(&["BLPOP", "none", "0.1"]), "\n");
    assert!(cli(&["NOSUCH", "x"]).contains("ERR unknown command 'NOSUCH'"));
    let bench = ["-p", &port, "-n", "5000", "-q", "-t", "ping,set,get,incr,lpush,lpop,sadd,hset"];
    assert!(run("redis-benchmark", &[&bench[..], &["-P", "16"]].concat()).contains("HSET"));
}

/// As `printf ... | nc -N` or `socat` does.
#[test]
fn bug_18_70_a_client_that_shuts_its_side_has_its_replies() {
    let rack = Rack::start("half-closed", &[]);
    for _ in 0..20 {
        let mut stream = TcpStream::connect(rack.listen).unwrap();
        stream.write_all(b"PING\r\nSET a 1\r\nGET a\r\nSTRLEN a\r\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        assert_eq!(replies, "+PONG\r\n+OK\r\n$1\r\n1\r\n:1\r\n");
    }
    // Who waits for an element waits no more.
    let mut stream = TcpStream::connect(rack.listen).unwrap();
    stream.write_all(b"BLPOP none 0\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn redis_py_with_the_memory_engine() {
    let rack = Rack::start("py-memory", &["--gateways", "2"]);
    run("/usr/bin/python3", &[&script("redis_py.py"), &rack.listen.port().to_string(), "memory"]);
}

#[test]
fn redis_py_with_the_redis_engine() {
    let rack = Rack::start("py-redis", &["--engine", "redis"]);
    run("/usr/bin/python3", &[&script("redis_py.py"), &rack.listen.port().to_string(), "redis"]);
}

#[test]
fn perl_redis() {
    let rack = Rack::start("perl", &[]);
    run("perl", &[&script("redis.pl"), &rack.listen.port().to_string()]);
}

#[test]
fn a_password_is_asked_for() {
    let rack = Rack::start("password", &["--requirepass", "secret"]);
    let mut client = rack.client();
    assert_eq!(client.say("GET a"), "-NOAUTH Authentication required.");
    assert!(client.say("AUTH wrong").starts_with("-WRONGPASS"));
    assert_eq!(client.say("AUTH secret"), "+OK");
    assert_eq!(client.say("GET a"), "$-1");
}
