//! Replicas that come (back) and a switch that is replaced, by hand, while clients write and read:
//! nothing acknowledged is lost, nothing is executed twice, and the pauses are printed.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::counters::while_counting;
use crate::common::*;

/// Keys that nobody writes while replicas come and go.
const KEPT: usize = 2_000;
/// Connections that write all the time, each a key of its own.
const WRITERS: usize = 6;

/// Adds a role to the rack file, with free ports.
fn append(rack: &Rack, section: &str, node: u16) {
    let port = free_ports();
    let (http, directory) = (port + 1, rack.run.join(format!("replica-{node}")));
    let mut text = format!("\n[[{section}]]\nnode = {node}\naddr = \"127.0.0.1:{port}\"\n");
    text += &format!("http = \"127.0.0.1:{http}\"\n");
    if section == "replica" {
        text += &format!("directory = {directory:?}\n");
    }
    let mut file = std::fs::OpenOptions::new().append(true).open(rack.file()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Whether these are the members, and the process of that one knows it. Their order is not told: on
/// a machine that stalls others may have been missed meanwhile, and have come back by themselves.
fn is_member(rack: &Rack, all: &[u64], node: u64) -> bool {
    let mut members = rack.members();
    members.sort_unstable();
    members == all && rack.role("replica", node)["phase"] == "open"
}

fn fast_reads(rack: &Rack, node: u64) -> u64 {
    rack.role("replica", node)["counters"]["reads_fast"].as_u64().unwrap_or(0)
}

/// Reads the keys that nobody writes until the replica has answered some of them alone.
fn reads_fast(rack: &Rack, node: u64) {
    let before = fast_reads(rack, node);
    let mut client = rack.client();
    until(&format!("fast read at replica {node}"), || {
        for n in 0..200 {
            assert_eq!(client.say(&format!("GET kept:{n}")), format!("value {n}"));
        }
        fast_reads(rack, node) > before
    });
}

fn fill(rack: &Rack) {
    let mut client = rack.client();
    for n in 0..KEPT {
        let (key, value) = (format!("kept:{n}"), format!("value {n}"));
        let (line, _) = client.call(&[b"SET", key.as_bytes(), value.as_bytes()]).unwrap();
        assert_eq!(line, "+OK");
    }
}

/// Runs `change` while clients write; then everything that was acknowledged must be there.
fn while_writing(name: &str, rack: &Rack, change: impl FnOnce()) {
    fill(rack);
    while_counting(name, rack, WRITERS, change);
    let mut client = rack.client();
    for n in 0..KEPT {
        assert_eq!(client.say(&format!("GET kept:{n}")), format!("value {n}"));
    }
}

/// Kills a replica, starts it again by hand, and then kills all others: it has everything.
fn comes_back(name: &str, victim: u64, more: &[&str]) {
    let rack = Rack::start(name, more);
    let mut again = None;
    while_writing(name, &rack, || {
        Rack::signal(rack.pid(&format!("replica-{victim}")), "-9");
        until("epoch without it", || !rack.members().contains(&victim));
        let began = Instant::now();
        again = Some(ByHand::start(&rack, &["replica", "--node", &victim.to_string()]));
        until("epoch with it", || is_member(&rack, &[1, 2, 3], victim));
        println!("{name}: a member again after {:?}", began.elapsed());
        reads_fast(&rack, victim);
        for other in (1..=3).filter(|node| *node != victim) {
            Rack::signal(rack.pid(&format!("replica-{other}")), "-9");
        }
        until("epoch of it alone", || rack.members() == [victim]);
        reads_fast(&rack, victim);
    });
}

#[test]
fn a_dead_head_joins_again_as_the_tail() {
    comes_back("rejoin-head", 1, &[]);
}

#[test]
fn a_dead_tail_joins_again_with_its_redis_server() {
    comes_back("rejoin-tail-redis", 3, &["--engine", "redis"]);
}

#[test]
fn a_dead_primary_joins_again_as_a_backup() {
    comes_back("rejoin-primary", 1, &["--protocol", "primary-backup"]);
}

#[test]
fn a_dead_backup_joins_again_with_its_redis_server() {
    let more = ["--protocol", "primary-backup", "--engine", "redis"];
    comes_back("rejoin-backup-redis", 2, &more);
}

#[test]
fn a_replica_that_restarts_before_it_is_missed_is_a_stranger() {
    let rack = Rack::start("rejoin-fast", &[]);
    let mut again = None;
    while_writing("restarted at once", &rack, || {
        std::thread::sleep(Duration::from_millis(300));
        Rack::signal(rack.pid("replica-2"), "-9");
        again = Some(ByHand::start(&rack, &["replica", "--node", "2"]));
        until("epoch with the new process", || is_member(&rack, &[1, 2, 3], 2));
        reads_fast(&rack, 2);
    });
}

#[test]
fn a_new_replica_joins() {
    let rack = Rack::start("join-new", &[]);
    let mut new = None;
    while_writing("a new replica", &rack, || {
        append(&rack, "replica", 4);
        new = Some(ByHand::start(&rack, &["replica", "--node", "4"]));
        until("epoch with it", || is_member(&rack, &[1, 2, 3, 4], 4));
        reads_fast(&rack, 4);
    });
}

/// The id with which a switch helps, 0 if it does not. On a machine that stalls a switch may look
/// dead and be replaced, so that ids are compared, not expected.
fn switch_id(rack: &Rack, name: &str) -> u64 {
    let status = rack.role(name, 1);
    if status["ready"] == true { status["switch_id"].as_u64().unwrap_or(0) } else { 0 }
}

#[test]
fn a_standby_started_by_hand_takes_over_from_a_dead_switch() {
    let rack = Rack::start("standby", &[]);
    append(&rack, "standby", 1);
    let standby = ByHand::start(&rack, &["switch", "--standby"]);
    while_writing("switch killed", &rack, || {
        until("sign of life of the standby", || {
            let switches = rack.role("controller", 1)["switches"].clone();
            switches.as_array().is_some_and(|all| all.iter().any(|s| s["standby"] == true))
        });
        Rack::signal(rack.pid("switch"), "-9");
        until("switch that helps", || switch_id(&rack, "standby") > 1);
        reads_fast(&rack, 1);
        std::thread::sleep(Duration::from_millis(500));
    });
    drop(standby);
}

/// A switch that slept beside its standby stands by when it wakes up.
#[test]
fn switch_that_slept_stands_by() {
    let rack = Rack::start("standby-wakes", &["--standbys", "1"]);
    let switch = rack.pid("switch");
    while_writing("switch stopped", &rack, || {
        Rack::signal(switch, "-STOP");
        until("switch that helps", || switch_id(&rack, "standby") > 1);
        Rack::signal(switch, "-CONT");
        until("old switch that stands by", || {
            let switches = rack.role("controller", 1)["switches"].clone();
            let all = switches.as_array().cloned().unwrap_or_default();
            all.len() == 2
                && all.iter().filter(|s| s["standby"] == true).count() == 1
                && rack.role("switch", 1)["ready"] == false
        });
        let id = switch_id(&rack, "standby");
        assert!(id > 1);
        reads_fast(&rack, 2);
        Rack::signal(rack.pid("standby-1"), "-9");
        until("old switch that helps again", || switch_id(&rack, "switch") > id);
        std::thread::sleep(Duration::from_millis(500));
    });
}

#[test]
fn a_switch_that_is_started_again_gets_a_new_id() {
    let rack = Rack::start("switch-again", &[]);
    let mut again = None;
    while_writing("switch started again", &rack, || {
        Rack::signal(rack.pid("switch"), "-9");
        again = Some(ByHand::start(&rack, &["switch"]));
        until("switch that helps", || switch_id(&rack, "switch") > 1);
        reads_fast(&rack, 3);
    });
}

/// A replica that keeps its data is killed, and comes back 10 s later: what it missed comes from
/// records.
fn was_away(name: &str, victim: u64, more: &[&str]) {
    let rack = Rack::start(name, &[&["--durability", "fsync"], more].concat());
    let mut again = None;
    while_writing(name, &rack, || {
        Rack::signal(rack.pid(&format!("replica-{victim}")), "-9");
        std::thread::sleep(Duration::from_secs(10));
        let began = Instant::now();
        again = Some(ByHand::start(&rack, &["replica", "--node", &victim.to_string()]));
        until("member again", || is_member(&rack, &[1, 2, 3], victim));
        let took = began.elapsed();
        let status = rack.role("replica", victim);
        let records = |name: &str| status[name].as_u64().unwrap();
        let (had, has) = (records("restored_records"), records("executed"));
        println!("{name}: a member again after {took:?}, {} records later", has - had);
        assert_eq!(status["counters"]["copies_begun"], 0, "{status}");
        assert!(had > 0 && has > had, "{status}");
        reads_fast(&rack, victim);
    });
}

#[test]
fn a_replica_of_a_chain_that_was_away_for_10_s_copies_nothing() {
    was_away("away-chain", 3, &[]);
}

#[test]
fn a_backup_that_was_away_for_10_s_copies_nothing() {
    was_away("away-primary", 2, &["--protocol", "primary-backup", "--engine", "redis"]);
}

#[test]
fn a_follower_that_was_away_for_10_s_copies_nothing() {
    was_away("away-vr", 3, &["--protocol", "vr"]);
}
