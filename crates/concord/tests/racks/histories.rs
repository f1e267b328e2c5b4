//! Histories over real processes: the switch drops, duplicates and reorders 1% each of what passes
//! it, a gateway is killed and comes back, in some a replica dies too, and what the clients saw
//! must be linearizable.
//!
//! `CONCORD_TORTURE_OPS` sets the number of operations of each (`make torture`: 200,000, with the
//! reports kept in `CONCORD_RESULTS`), `CONCORD_TORTURE_SEED` the workload.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;

/// A history in which a gateway is killed, and `victim` too if there is one.
fn history(name: &str, keys: u64, more: &[&str], victim: Option<&str>) {
    let ops = setting("CONCORD_TORTURE_OPS", 20_000);
    let dir = directory(&format!("torture-{name}"));
    let config = dir.join("faults.toml");
    std::fs::write(&config, "replies_via_switch = true\n").unwrap();
    let config = config.display().to_string();
    let faults = [
        "--config",
        &config,
        "--gateways",
        "2",
        "--restart-gateways",
        "--fault-drop",
        "10000",
        "--fault-duplicate",
        "10000",
        "--fault-reorder",
        "10000",
    ];
    let rack = Rack::start(&format!("history-{name}"), &[&faults[..], more].concat());
    let (first, second) = (rack.listen, rack.listen.port() + 1);
    let mut torture = Command::new(CONCORD)
        .args(["torture", "--json", "--target", &first.to_string(), "--target"])
        .arg(format!("127.0.0.1:{second}"))
        .args(["--ops", &ops.to_string(), "--keys", &keys.to_string()])
        .args(["--seed", &setting("CONCORD_TORTURE_SEED", 1).to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its first line says that the clients begin; the rest has to be read, or it could not print.
    let mut lines = BufReader::new(torture.stderr.take().unwrap()).lines();
    assert!(lines.next().is_some(), "torture starts");
    std::thread::spawn(move || lines.for_each(drop));
    std::thread::sleep(Duration::from_millis(200 + ops / 100));
    Rack::signal(rack.pid("gateway-1"), "-9");
    if let Some(victim) = victim {
        Rack::signal(rack.pid(victim), "-9");
    }
    let mut report = String::new();
    std::io::Read::read_to_string(&mut torture.stdout.take().unwrap(), &mut report).unwrap();
    let verdict = torture.wait().unwrap();
    let status = rack.status();
    let count = |role: &str, counter: &str| Rack::counter(&status, role, counter);
    let is_craq = more.contains(&"craq");
    let is_alone = more.windows(2).any(|pair| pair == ["--accel", "none"]);
    let (alone, asked) =
        if is_craq { ("reads_clean", "reads_dirty") } else { ("reads_fast", "reads_slow") };
    // Who reads behind (VR, NOPaxos, Raft) refuses what is ahead of it.
    let is_behind = ["vr", "nopaxos", "raft"].iter().any(|name| more.contains(name));
    let refused = if is_behind { "refused_behind" } else { "refused_newer" };
    let fast = count("replica", alone);
    let slow = count("replica", asked);
    let seen = [
        (alone, fast),
        (asked, slow),
        (refused, count("replica", refused)),
        // NOPaxos forwards a write without a slot as a no-op (T23).
        ("table_full", count("switch", "dropped_table_full") + count("switch", "writes_as_noop")),
        ("duplicates", count("replica", "duplicates")),
        ("seq_gaps", count("replica", "seq_gaps")),
        ("link_resent", count("replica", "link_resent")),
        ("writes_out_of_order", count("replica", "writes_out_of_order")),
        ("dropped", count("switch", "faults_dropped_in") + count("switch", "faults_dropped_out")),
        ("duplicated", count("switch", "faults_duplicated")),
        ("reordered", count("switch", "faults_reordered")),
    ];
    let mut json: serde_json::Value = serde_json::from_str(&report).unwrap();
    for (counter, value) in seen {
        json["rack"][counter] = value.into();
    }
    println!("{name}: {json}");
    if let Ok(results) = std::env::var("CONCORD_RESULTS") {
        let killed = victim.map_or("gateway-1".into(), |v| format!("gateway-1, {v}"));
        json["run"] = format!("{ops} operations, {keys} keys, {}", more.join(" ")).into();
        json["killed"] = killed.into();
        json["commit"] = std::env::var("CONCORD_COMMIT").unwrap_or_default().into();
        let text = serde_json::to_string_pretty(&json).unwrap();
        std::fs::write(format!("{results}/{name}.json"), text + "\n").unwrap();
    }
    assert!(verdict.success(), "{name} is linearizable: {report}");
    let number = |field: &str| json[field].as_u64().unwrap();
    // The last look at what was to expire comes on top.
    assert!(number("operations") >= ops, "{name}");
    assert!(number("judged") * 10 >= ops * 9, "{name}: too much was refused or unknown: {report}");
    assert!(json["expiries"]["judged"].as_u64() > Some(0), "{name}: no expiry was judged");
    assert!(number("connections_broken") > 0, "{name}: the gateway died before or after the run");
    if keys >= 1_000 {
        assert!(fast * 100 >= (fast + slow) * 30, "{name}: {fast} fast, {slow} slow");
    }
    for (counter, value) in seen {
        let expected = match counter {
            "table_full" => more.contains(&"--table-slots"),
            // Links between replicas do not pass the switch: nothing is lost there on purpose, but
            // a neighbour that dies is sent to in vain.
            "link_resent" => victim.is_some_and(|v| v != "replica-1"),
            // What the killed replica had counted is gone.
            _ if victim.is_some() => false,
            // No switch numbers CRAQ's writes, nor any without its help.
            "refused_newer" | "seq_gaps" | "writes_out_of_order" if is_craq || is_alone => false,
            // Rare: only a long run on few keys surely sees it.
            "refused_newer" => ops >= 200_000 && keys < 100,
            // VR's completions wait until replicas have executed (§8.3).
            "refused_behind" => ops >= 200_000 && more.contains(&"nopaxos"),
            _ => true,
        };
        assert!(value > 0 || !expected, "{name}: no {counter}");
    }
}

#[test]
fn chain_on_8_keys() {
    history("chain-8-keys", 8, &[], None);
}

#[test]
fn chain_on_1000_keys() {
    history("chain-1000-keys", 1_000, &[], None);
}

#[test]
fn chain_with_a_dirty_set_of_16_slots() {
    history("chain-16-slots", 1_000, &["--table-stages", "1", "--table-slots", "16"], None);
}

#[test]
fn primary_backup_on_8_keys() {
    history("primary-backup-8-keys", 8, &["--protocol", "primary-backup"], None);
}

#[test]
fn primary_backup_on_1000_keys() {
    history("primary-backup-1000-keys", 1_000, &["--protocol", "primary-backup"], None);
}

#[test]
fn chain_over_redis_servers_on_1000_keys() {
    history("chain-redis-1000-keys", 1_000, &["--engine", "redis"], None);
}

#[test]
fn chain_whose_head_dies() {
    history("chain-head-dies", 100, &[], Some("replica-1"));
}

#[test]
fn chain_whose_middle_dies() {
    history("chain-middle-dies", 100, &[], Some("replica-2"));
}

#[test]
fn chain_whose_tail_dies() {
    history("chain-tail-dies", 100, &[], Some("replica-3"));
}

#[test]
fn primary_backup_whose_primary_dies() {
    let protocol = ["--protocol", "primary-backup"];
    history("primary-dies", 100, &protocol, Some("replica-1"));
}

const CRAQ: [&str; 4] = ["--protocol", "craq", "--accel", "none"];

#[test]
fn craq_on_8_keys() {
    history("craq-8-keys", 8, &CRAQ, None);
}

#[test]
fn craq_on_1000_keys() {
    history("craq-1000-keys", 1_000, &CRAQ, None);
}

#[test]
fn craq_over_redis_servers_on_1000_keys() {
    history("craq-redis-1000-keys", 1_000, &[&CRAQ[..], &["--engine", "redis"]].concat(), None);
}

#[test]
fn craq_whose_head_dies() {
    history("craq-head-dies", 100, &CRAQ, Some("replica-1"));
}

#[test]
fn craq_whose_tail_dies() {
    history("craq-tail-dies", 100, &CRAQ, Some("replica-3"));
}

const VR: [&str; 2] = ["--protocol", "vr"];

#[test]
fn vr_on_8_keys() {
    history("vr-8-keys", 8, &VR, None);
}

#[test]
fn vr_on_1000_keys() {
    history("vr-1000-keys", 1_000, &VR, None);
}

#[test]
fn vr_over_redis_servers_on_1000_keys() {
    history("vr-redis-1000-keys", 1_000, &["--protocol", "vr", "--engine", "redis"], None);
}

#[test]
fn vr_whose_leader_dies() {
    history("vr-leader-dies", 100, &VR, Some("replica-1"));
}

#[test]
fn vr_whose_follower_dies() {
    history("vr-follower-dies", 100, &VR, Some("replica-3"));
}

const FLAIR: [&str; 4] = ["--protocol", "vr", "--accel", "flair"];

#[test]
fn flair_over_vr_on_8_keys() {
    history("flair-8-keys", 8, &FLAIR, None);
}

#[test]
fn flair_over_vr_on_1000_keys() {
    history("flair-1000-keys", 1_000, &FLAIR, None);
}

#[test]
fn flair_over_redis_servers_on_1000_keys() {
    history("flair-redis-1000-keys", 1_000, &[&FLAIR[..], &["--engine", "redis"]].concat(), None);
}

#[test]
fn flair_over_vr_whose_leader_dies() {
    history("flair-leader-dies", 100, &FLAIR, Some("replica-1"));
}

#[test]
fn flair_over_vr_whose_follower_dies() {
    history("flair-follower-dies", 100, &FLAIR, Some("replica-3"));
}

const RAFT: [&str; 2] = ["--protocol", "raft"];

#[test]
fn raft_on_8_keys() {
    history("raft-8-keys", 8, &RAFT, None);
}

#[test]
fn raft_by_read_index_on_8_keys() {
    history("raft-read-index", 8, &[&RAFT[..], &["--reads", "read-index"]].concat(), None);
}

const LEASES: [&str; 6] = ["--protocol", "raft", "--accel", "none", "--reads", "follower-lease"];

#[test]
fn raft_by_follower_leases_on_8_keys() {
    history("raft-leases-8-keys", 8, &LEASES, None);
}

#[test]
fn raft_by_follower_leases_whose_follower_dies() {
    history("raft-leases-follower-dies", 100, &LEASES, Some("replica-3"));
}

#[test]
fn raft_by_quorum_reads_on_8_keys() {
    history("raft-quorum", 8, &[&LEASES[..5], &["quorum"]].concat(), None);
}

#[test]
fn flair_over_raft_on_1000_keys() {
    history("raft-flair", 1_000, &["--protocol", "raft", "--accel", "flair"], None);
}

#[test]
fn raft_over_redis_servers_on_1000_keys() {
    history("raft-redis-1000-keys", 1_000, &[&RAFT[..], &["--engine", "redis"]].concat(), None);
}

#[test]
fn flair_over_raft_over_redis_servers_whose_leader_dies() {
    let more = [&RAFT[..], &["--accel", "flair", "--engine", "redis"]].concat();
    history("raft-flair-redis-leader-dies", 100, &more, Some("replica-1"));
}

const NOPAXOS: [&str; 2] = ["--protocol", "nopaxos"];

#[test]
fn nopaxos_on_8_keys() {
    history("nopaxos-8-keys", 8, &NOPAXOS, None);
}

#[test]
fn nopaxos_on_1000_keys() {
    history("nopaxos-1000-keys", 1_000, &NOPAXOS, None);
}

#[test]
fn nopaxos_over_redis_servers_on_1000_keys() {
    let more = ["--protocol", "nopaxos", "--engine", "redis"];
    history("nopaxos-redis-1000-keys", 1_000, &more, None);
}

#[test]
fn nopaxos_with_a_dirty_set_of_16_slots() {
    let more = ["--protocol", "nopaxos", "--table-stages", "1", "--table-slots", "16"];
    history("nopaxos-16-slots", 1_000, &more, None);
}

#[test]
fn nopaxos_whose_leader_dies() {
    history("nopaxos-leader-dies", 100, &NOPAXOS, Some("replica-1"));
}

#[test]
fn nopaxos_whose_follower_dies() {
    history("nopaxos-follower-dies", 100, &NOPAXOS, Some("replica-3"));
}
