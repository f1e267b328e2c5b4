//! Transactions and queues over real processes (`concord torture --accounts`, `--queues`), with
//! every protocol and both engines: the switch drops, duplicates and reorders 1% each of what
//! passes it, a gateway and the node that orders writes are killed. The accounts' sum never
//! differs, what transactions saw of lists has one order, and each element of a queue goes to one
//! worker, but for what the docs say.
//!
//! `CONCORD_TORTURE_OPS` sets the number of transactions of each (`make torture`: 200,000, and half
//! as many elements, with the reports kept in `CONCORD_RESULTS`), `CONCORD_TORTURE_SEED` the
//! workload.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;

/// Runs `torture` against both gateways of a rack, and kills what is to be killed while it runs;
/// its report.
fn under_faults(
    name: &str,
    rack: &[&str],
    torture: &[&str],
    victims: &[&str],
) -> serde_json::Value {
    let faults = ["--gateways", "2", "--restart-gateways", "--fault-drop", "10000"];
    let others = ["--fault-duplicate", "10000", "--fault-reorder", "10000"];
    let rack = Rack::start(&format!("all-{name}"), &[&faults[..], &others, rack].concat());
    let mut child = Command::new(CONCORD)
        .args(["torture", "--json", "--target", &rack.listen.to_string(), "--target"])
        .arg(format!("127.0.0.1:{}", rack.listen.port() + 1))
        .args(["--seed", &setting("CONCORD_TORTURE_SEED", 1).to_string()])
        .args(torture)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its first line says that the clients begin; the rest has to be read, or it could not print.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().is_some(), "torture starts");
    std::thread::spawn(move || lines.for_each(drop));
    let mut stdout = child.stdout.take().unwrap();
    let text = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text
    });
    for victim in victims {
        std::thread::sleep(Duration::from_millis(700));
        Rack::signal(rack.pid(victim), "-9");
    }
    let verdict = child.wait().unwrap();
    let text = text.join().unwrap();
    println!("{name}: {text}");
    assert!(verdict.success(), "{name}: {text}");
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(json["connections_broken"].as_u64() > Some(0), "{name}: nobody noticed the kills");
    if let Ok(results) = std::env::var("CONCORD_RESULTS") {
        json["killed"] = victims.join(", ").into();
        json["commit"] = std::env::var("CONCORD_COMMIT").unwrap_or_default().into();
        let text = serde_json::to_string_pretty(&json).unwrap();
        std::fs::write(format!("{results}/{name}.json"), text + "\n").unwrap();
    }
    json
}

fn transactions(name: &str, rack: &[&str]) {
    let ops = setting("CONCORD_TORTURE_OPS", 6_000).to_string();
    let torture = ["--accounts", "100", "--clients", "16", "--ops", &ops];
    let victims = ["gateway-1", "replica-1"];
    let json = under_faults(&format!("accounts-{name}"), rack, &torture, &victims);
    for way in ["multi", "watch", "script", "script_without_keys", "script_in_multi"] {
        for kind in ["moves_by", "list_transactions_by"] {
            assert!(json[kind][way].as_u64() > Some(0), "{name}: no {kind} {way}: {json}");
        }
    }
    assert!(json["sums"].as_u64() > Some(0) && json["aborted"].as_u64() > Some(0), "{json}");
}

fn queues(name: &str, rack: &[&str]) {
    let ops = (setting("CONCORD_TORTURE_OPS", 12_000) / 2).to_string();
    let torture = ["--queues", "4", "--clients", "16", "--ops", &ops];
    let victims = ["gateway-1", "replica-1", "gateway-2"];
    let json = under_faults(&format!("queues-{name}"), rack, &torture, &victims);
    for way in ["blpop", "brpop", "blmove", "workers_died"] {
        assert!(json[way].as_u64() > Some(0), "{name}: no {way}: {json}");
    }
}

/// Each protocol, and the flags of `up` for it.
pub(crate) const PROTOCOLS: [(&str, &[&str]); 6] = [
    ("chain", &[]),
    ("primary-backup", &["--protocol", "primary-backup"]),
    ("craq", &["--protocol", "craq", "--accel", "none"]),
    ("vr", &["--protocol", "vr"]),
    ("nopaxos", &["--protocol", "nopaxos"]),
    ("raft", &["--protocol", "raft"]),
];

fn with(name: &str, test: impl Fn(&str, &[&str])) {
    let (protocol, engine) = name.split_once('+').unwrap_or((name, ""));
    let (_, args) = PROTOCOLS.iter().find(|(known, _)| *known == protocol).unwrap();
    let engine: &[&str] = if engine.is_empty() { &[] } else { &["--engine", engine] };
    test(&name.replace('+', "-"), &[args, engine].concat());
}

#[test]
fn transactions_of_the_chain_family_have_an_order_under_faults() {
    for name in ["chain", "primary-backup", "craq"] {
        with(name, transactions);
    }
}

#[test]
fn transactions_of_quorums_have_an_order_under_faults() {
    for name in ["vr", "nopaxos", "raft"] {
        with(name, transactions);
    }
}

#[test]
fn transactions_over_redis_servers_have_an_order_under_faults() {
    for name in ["chain+redis", "primary-backup+redis", "craq+redis"] {
        with(name, transactions);
    }
}

/// Transactions of quorums over redis servers have an order under faults.
#[test]
fn quorum_transactions_over_redis_under_faults() {
    for name in ["vr+redis", "nopaxos+redis", "raft+redis"] {
        with(name, transactions);
    }
}

#[test]
fn each_element_goes_to_one_worker_under_faults() {
    for name in ["chain", "primary-backup", "craq", "vr", "nopaxos", "raft"] {
        with(name, queues);
    }
}

/// Each element goes to one worker over redis servers under faults.
#[test]
fn queue_elements_over_redis_under_faults() {
    let all = ["chain+redis", "vr+redis", "nopaxos+redis"];
    let further = ["primary-backup+redis", "craq+redis", "raft+redis"];
    // The long run has all protocols.
    let is_long = std::env::var("CONCORD_RESULTS").is_ok();
    for name in all.iter().chain(further.iter().filter(|_| is_long)) {
        with(name, queues);
    }
}
