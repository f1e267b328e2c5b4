//! kill -9 of a replica, a gateway or a client in the middle of writes: nothing acknowledged is
//! lost, nothing is executed twice, and the pause is printed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::counters::while_counting;
use crate::common::*;
use concord_wire::rpc::BODY_BYTES_MAX;

fn survive(name: &str, victim: &str, more: &[&str]) {
    let rack = Rack::start(name, more);
    while_counting(name, &rack, 8, || {
        std::thread::sleep(Duration::from_millis(700));
        Rack::signal(rack.pid(victim), "-9");
        std::thread::sleep(Duration::from_millis(4_500));
    });
}

#[test]
fn the_head_of_a_chain_dies() {
    survive("head", "replica-1", &[]);
}

#[test]
fn the_middle_of_a_chain_dies() {
    survive("middle", "replica-2", &[]);
}

#[test]
fn the_tail_of_a_chain_dies() {
    survive("tail", "replica-3", &[]);
}

#[test]
fn the_primary_dies() {
    survive("primary", "replica-1", &["--protocol", "primary-backup"]);
}

#[test]
fn a_backup_dies() {
    survive("backup", "replica-3", &["--protocol", "primary-backup"]);
}

#[test]
fn any_replica_of_craq_dies() {
    for (name, victim) in [("head", "replica-1"), ("middle", "replica-2"), ("tail", "replica-3")] {
        survive(&format!("craq-{name}"), victim, &["--protocol", "craq", "--accel", "none"]);
    }
}

#[test]
fn the_leader_of_a_vr_group_dies() {
    survive("vr-leader", "replica-1", &["--protocol", "vr"]);
}

#[test]
fn a_follower_of_a_vr_group_dies() {
    survive("vr-follower", "replica-3", &["--protocol", "vr"]);
}

#[test]
fn the_leader_of_a_nopaxos_group_dies() {
    survive("nopaxos-leader", "replica-1", &["--protocol", "nopaxos"]);
}

#[test]
fn a_follower_of_a_nopaxos_group_dies() {
    survive("nopaxos-follower", "replica-3", &["--protocol", "nopaxos"]);
}

#[test]
fn the_leader_of_a_raft_group_dies() {
    survive("raft-leader", "replica-1", &["--protocol", "raft"]);
}

#[test]
fn the_leader_of_a_raft_group_over_redis_servers_dies() {
    survive("raft-redis-leader", "replica-1", &["--protocol", "raft", "--engine", "redis"]);
}

#[test]
fn a_follower_of_a_raft_group_dies() {
    let more = ["--protocol", "raft", "--accel", "none", "--reads", "read-index"];
    survive("raft-follower", "replica-3", &more);
}

/// With FLAIR's help; the longest time without a read of a key that nobody writes is printed, too.
fn survive_with_flair(name: &str, victim: &str, protocol: &str) {
    let more = ["--protocol", protocol, "--accel", "flair", "--standbys", "1"];
    let rack = Rack::start(name, &more);
    assert_eq!(rack.client().say("SET quiet here"), "+OK");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| longest_without_a_read(&rack, &is_over));
        while_counting(name, &rack, 8, || {
            std::thread::sleep(Duration::from_millis(700));
            Rack::signal(rack.pid(victim), "-9");
            std::thread::sleep(Duration::from_millis(4_500));
            is_over.store(true, Ordering::Relaxed);
        });
        println!("{name}: reads paused for {:?}", reader.join().unwrap());
    });
}

fn longest_without_a_read(rack: &Rack, is_over: &AtomicBool) -> Duration {
    let mut client = rack.client();
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    let mut last = began;
    while !is_over.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
        let (line, value) = client.call(&[b"GET", b"quiet"]).unwrap();
        if line.starts_with('$') {
            assert_eq!(value, b"here");
            longest = longest.max(last.elapsed());
            last = Instant::now();
        } else {
            assert!(line.starts_with("-TIMEOUT"), "{line}");
        }
    }
    // Reads go on, and a pause that was under way at the end counts.
    until("read", || client.say("GET quiet") == "here");
    longest.max(last.elapsed())
}

#[test]
fn leader_follower_or_switch_of_flair_dies() {
    for protocol in ["vr", "raft"] {
        for (name, victim) in
            [("leader", "replica-1"), ("follower", "replica-3"), ("switch", "switch")]
        {
            survive_with_flair(&format!("flair-{protocol}-{name}"), victim, protocol);
        }
    }
}

#[test]
fn each_replica_of_a_raft_group_dies_in_turn_and_recovers() {
    all_recover("raft-recovery", "raft");
}

#[test]
fn each_replica_of_a_vr_group_dies_in_turn_and_recovers() {
    all_recover("vr-recovery", "vr");
}

#[test]
fn each_replica_of_a_nopaxos_group_dies_in_turn_and_recovers() {
    all_recover("nopaxos-recovery", "nopaxos");
}

/// Counts a key up, a thousand times in each of so many pipelines.
fn count_in_pipelines(rack: &Rack, key: &[u8], pipelines: usize) {
    let mut stream = std::net::TcpStream::connect(rack.listen).unwrap();
    let mut replies = std::io::BufReader::new(stream.try_clone().unwrap());
    let head = format!("*2\r\n$4\r\nINCR\r\n${}\r\n", key.len());
    let one = [head.as_bytes(), key, b"\r\n"].concat();
    for _ in 0..pipelines {
        std::io::Write::write_all(&mut stream, &one.repeat(1_000)).unwrap();
        for _ in 0..1_000 {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut replies, &mut line).unwrap();
            assert!(line.starts_with(':'), "{line}");
        }
    }
}

/// Without a disk: what a replica gets back, it gets from the others.
fn all_recover(name: &str, protocol: &str) {
    let rack = Rack::start(name, &["--protocol", protocol]);
    let mut client = rack.client();
    for n in 0..1_000 {
        client.say(&format!("SET key:{n} {n}"));
    }
    // More records than are kept: who comes back copies the state.
    count_in_pipelines(&rack, b"key:0", 40);
    client.say("SET key:0 0");
    let mut replacements = Vec::new();
    for node in 1..=3 {
        Rack::signal(rack.pid(&format!("replica-{node}")), "-9");
        assert_eq!(client.say(&format!("SET after:{node} {node}")), "+OK");
        // Supervised: it ends with the pipe that this test holds.
        let again = std::process::Command::new(CONCORD)
            .args(["replica", "--supervised", "--config", &rack.file()])
            .args(["--node", &node.to_string()])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        replacements.push(again);
        until("recovery", || {
            let status = rack.status();
            let roles = status["roles"].as_array().unwrap();
            let of = |r: &&serde_json::Value| r["role"] == "replica" && r["node"] == node;
            let own = roles.iter().find(of).unwrap();
            own["status"]["phase"] == "open" && own["status"]["keys"] == 1_000 + node
        });
    }
    for n in 0..1_000 {
        assert_eq!(client.say(&format!("GET key:{n}")), n.to_string());
    }
}

#[test]
fn a_gateway_dies() {
    survive("gateway", "gateway-1", &["--restart-gateways"]);
}

/// A client that dies in the middle of a write leaves a whole value or none.
#[test]
fn client_dies_in_mid_write() {
    let rack = Rack::start("client", &[]);
    for round in 0..20 {
        let mut cut = std::net::TcpStream::connect(rack.listen).unwrap();
        let value = vec![b'x'; 100_000];
        let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len());
        let whole = [head.as_bytes(), &value, b"\r\n"].concat();
        let upto = whole.len() * round / 19;
        std::io::Write::write_all(&mut cut, &whole[..upto]).unwrap();
        drop(cut);
        let mut client = rack.client();
        let (line, got) = client.call(&[b"GET", b"k"]).unwrap();
        assert!(line == "$-1" || got == value, "a torn value of {} bytes", got.len());
        client.say("DEL k");
    }
}

/// Values of 1 mib work at 1 percent loss and larger ones are refused.
#[test]
fn values_of_1_mib_at_1_percent_loss() {
    let loss = ["--fault-drop", "10000", "--fault-duplicate", "10000", "--fault-reorder", "10000"];
    let rack = Rack::start("large", &loss);
    let mut client = rack.client();
    for size in [1_200, BODY_BYTES_MAX, 5_000, 100_000, 1 << 20] {
        let value: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
        assert_eq!(client.call(&[b"SET", b"large", &value]).unwrap().0, "+OK", "{size}");
        assert!(client.call(&[b"GET", b"large"]).unwrap().1 == value, "GET of {size} bytes");
        let (_, deleted) = client.call(&[b"GETDEL", b"large"]).unwrap();
        assert!(deleted == value, "GETDEL of {size} bytes");
    }
    assert_eq!(client.say("CONFIG SET proto-max-bulk-len 1mb"), "+OK");
    let huge = vec![0; (1 << 20) + 1];
    let (error, _) = client.call(&[b"SET", b"large", &huge]).unwrap();
    assert!(error.starts_with("-ERR value is larger than proto-max-bulk-len"), "{error}");
    assert_eq!(client.say("GET large"), "$-1");
}
