//! Power cuts of whole racks: every process is killed at once, under load, while disks keep what is not synced
//! from their files; then the rack is started again. Nothing that was acknowledged is missing (trap T7).
//!
//! `CONCORD_POWER_CUTS` sets how often.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;

/// A counter that one connection counts up, and what it was told.
struct Counter {
    key: String,
    acknowledged: u64,
    unknown: u64,
    seen: u64,
}

/// Counts until the connection breaks, which it does when the gateway is killed.
fn count(counter: &mut Counter, rack: &Rack, is_cut: &AtomicBool) {
    let mut client = rack.client();
    while !is_cut.load(Ordering::Relaxed) {
        match client.call(&[b"INCR", counter.key.as_bytes()]) {
            Ok((line, _)) if line.starts_with(':') => {
                counter.acknowledged += 1;
                counter.seen = line[1..].parse().unwrap();
            }
            Ok((line, _)) => {
                assert!(line.starts_with('-'), "{line}");
                counter.unknown += 1;
            }
            Err(_) => {
                counter.unknown += 1;
                return;
            }
        }
        // What a read shows is no less durable.
        if let Ok((line, value)) = client.call(&[b"GET", counter.key.as_bytes()])
            && line.starts_with('$')
            && line != "$-1"
        {
            counter.seen = counter.seen.max(String::from_utf8_lossy(&value).parse().unwrap());
        }
    }
}

fn survive(name: &str, more: &[&str]) {
    let flags = [&["--durability", "fsync", "--fault-disk-hold", "2"], more].concat();
    let mut rack = Rack::start(name, &flags);
    let counter =
        |n: u64| Counter { key: format!("counter:{n}"), acknowledged: 0, unknown: 0, seen: 0 };
    let mut counters: Vec<Counter> = (0..6).map(counter).collect();
    for cut in 0..setting("CONCORD_POWER_CUTS", 3) {
        let is_cut = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for counter in &mut counters {
                let (rack, is_cut) = (&rack, &is_cut);
                scope.spawn(move || count(counter, rack, is_cut));
            }
            std::thread::sleep(Duration::from_millis(400 + 130 * cut));
            rack.cut_power();
            is_cut.store(true, Ordering::Relaxed);
        });
        rack = rack.again(name, &flags);
        let mut client = rack.client();
        for counter in &counters {
            let value = client.say(&format!("GET {}", counter.key));
            let value: u64 = if value == "$-1" { 0 } else { value.parse().unwrap() };
            let (low, high) = (counter.acknowledged, counter.acknowledged + counter.unknown);
            assert!(
                (low.max(counter.seen)..=high).contains(&value),
                "{}: {value}, {low} acknowledged, {} seen, {} unknown",
                counter.key,
                counter.seen,
                counter.unknown
            );
        }
        // Whatever became of those of unknown outcome is known now.
        for counter in &mut counters {
            let value = client.say(&format!("GET {}", counter.key));
            counter.acknowledged = if value == "$-1" { 0 } else { value.parse().unwrap() };
            (counter.seen, counter.unknown) = (counter.acknowledged, 0);
        }
    }
    let all: u64 = counters.iter().map(|c| c.acknowledged).sum();
    println!("{name}: {all} writes");
    assert!(all > 0);
    let text = concord(&["log", "inspect", &rack.run.join("data/replica-1").display().to_string()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("of replica 1") && text.contains("ends with record"), "{text}");
}

#[test]
fn t7_a_chain_comes_back_from_a_power_cut() {
    survive("power-chain", &[]);
}

#[test]
fn t7_primary_backup_comes_back_from_a_power_cut() {
    survive("power-primary", &["--protocol", "primary-backup"]);
}

#[test]
fn t7_craq_comes_back_from_a_power_cut() {
    survive("power-craq", &["--protocol", "craq", "--accel", "none"]);
}

#[test]
fn t7_redis_servers_are_filled_again_after_a_power_cut() {
    survive("power-redis", &["--engine", "redis"]);
}

#[test]
fn t7_vr_comes_back_from_a_power_cut() {
    survive("power-vr", &["--protocol", "vr"]);
}

#[test]
fn t7_flair_comes_back_from_a_power_cut() {
    survive("power-flair", &["--protocol", "vr", "--accel", "flair"]);
}

#[test]
fn t7_raft_comes_back_from_a_power_cut() {
    survive("power-raft", &["--protocol", "raft"]);
}

#[test]
fn t7_nopaxos_comes_back_from_a_power_cut() {
    survive("power-nopaxos", &["--protocol", "nopaxos"]);
}

#[test]
fn another_kind_of_protocol_does_not_go_on_from_what_is_kept() {
    let flags = ["--durability", "fsync"];
    let rack = Rack::start("kept-chain", &flags);
    let mut client = rack.client();
    assert_eq!(client.say("SET k v"), "+OK");
    rack.cut_power();
    let run = rack.run.display().to_string();
    let line = refused(&["up", "--protocol", "vr", "--run-dir", &run]);
    assert!(line.contains("was kept under chain, and vr cannot go on from that"), "{line}");
    let dir = rack.run.join("data/replica-1").display().to_string();
    std::fs::write(rack.run.join("vr.toml"), {
        let text = std::fs::read_to_string(rack.file()).unwrap();
        text.replace("protocol = \"chain\"", "protocol = \"vr\"")
    })
    .unwrap();
    let file = rack.run.join("vr.toml").display().to_string();
    let replica = concord(&["replica", "--config", &file, "--node", "1", "--data-dir", &dir]);
    let text = String::from_utf8_lossy(&replica.stderr).into_owned();
    assert!(text.contains("kept under Chain, and Vr cannot go on from that"), "{text}");
    let more = [&flags[..], &["--protocol", "craq", "--accel", "none"]].concat();
    let rack = rack.again("kept-chain", &more);
    assert_eq!(rack.client().say("GET k"), "v");
}

#[test]
fn t7_redis_servers_under_vr_are_filled_again_after_a_power_cut() {
    survive("power-vr-redis", &["--protocol", "vr", "--engine", "redis"]);
}

/// A bit on a disk changes while its replica serves: it is found, and a new snapshot takes the place of the log.
#[test]
fn damage_on_a_disk_is_found_while_the_rack_serves() {
    let file = directory("scrub-file");
    let config = file.join("rack.toml");
    std::fs::write(&config, "durability = \"fsync\"\nscrub_seconds = 1\n").unwrap();
    let flags = ["--durability", "fsync", "--config", &config.display().to_string()];
    let rack = Rack::start("scrub", &flags);
    let mut client = rack.client();
    for n in 0..200 {
        assert_eq!(client.say(&format!("SET key:{n} {n}")), "+OK");
    }
    let data = rack.run.join("data/replica-2");
    let names = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path());
    let segment = names.filter(|path| path.extension().is_some_and(|e| e == "log")).max().unwrap();
    let bytes = std::fs::read(&segment).unwrap();
    let at = bytes.len() / 2;
    let damaged = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
    damaged.write_all_at(&[bytes[at] ^ 8], at as u64).unwrap();
    let counter = |name: &str| Rack::counter(&rack.status(), "replica", name);
    until("damage that is found", || counter("scrub_damages") > 0);
    let inspect = || concord(&["log", "inspect", &data.display().to_string()]);
    until("snapshot that takes its place", || inspect().status.success());
    let is_well = |role: &serde_json::Value| role["status"]["scrub_damage"].is_null();
    until("look that finds none", || {
        rack.status()["roles"].as_array().unwrap().iter().all(is_well)
    });
    assert_eq!(counter("copies_begun"), 0);
    assert!(!segment.exists());
    rack.cut_power();
    let rack = rack.again("scrub", &flags);
    let mut client = rack.client();
    for n in 0..200 {
        assert_eq!(client.say(&format!("GET key:{n}")), n.to_string());
    }
}
