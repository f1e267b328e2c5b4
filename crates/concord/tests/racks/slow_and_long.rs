//! Racks whose disks are slow, and racks that are at work for long: minutes each, and so only with
//! `CONCORD_LONG=1`, or in a shorter form by the settings that the tests name.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::transactions::PROTOCOLS;

/// Within that time a rack whose syncs take a second begins, and goes on after a member died.
const SLOW_MAX: Duration = Duration::from_secs(15);
/// The size of a value, and the log after which a replica makes a snapshot, in bytes.
const VALUE_BYTES: usize = 64 << 10;
const SNAPSHOT_BYTES: u64 = 128 << 20;

/// Where a sync takes a second, every protocol begins within 15 s and goes on within 15 s after the
/// replica that orders has died. `CONCORD_SYNC_MS` is the time of a sync.
#[test]
fn bug_22_6_racks_with_syncs_of_a_second_begin_and_go_on() {
    let long = if setting("CONCORD_LONG", 0) > 0 { 1_000 } else { 0 };
    let hold_ms = setting("CONCORD_SYNC_MS", long).to_string();
    if hold_ms == "0" {
        return;
    }
    for (name, more) in PROTOCOLS {
        let began = Instant::now();
        let hold = ["--durability", "fsync", "--fault-disk-hold", &hold_ms];
        let rack = Rack::start(&format!("slow-{name}"), &[&hold, more].concat());
        let writes = || {
            let mut client = rack.client();
            client.say("SET k v") == "+OK"
        };
        until("write", writes);
        let begins = began.elapsed();
        let leads = |node: &u64| {
            let role = rack.role("replica", *node)["role"].as_str().unwrap_or("").to_string();
            ["head", "primary", "leader"].contains(&role.as_str())
        };
        let first = (1..=3).find(leads).unwrap_or(1);
        let died = Instant::now();
        Rack::signal(rack.pid(&format!("replica-{first}")), "-9");
        until("write after a death", writes);
        let goes_on = died.elapsed();
        println!(
            "{name}: syncs of {hold_ms} ms: begins after {begins:?}, goes on after {goes_on:?}"
        );
        assert!(begins < SLOW_MAX && goes_on < SLOW_MAX, "{name}: {begins:?}, {goes_on:?}");
    }
}

fn directory_bytes(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let sizes = entries.flatten().map(|entry| entry.metadata().map_or(0, |m| m.len()));
    sizes.sum()
}

/// Queues, scripts of several keys and renames beside large writes, for ten minutes: snapshots
/// complete, so that no directory is larger than two states (a snapshot, and the one that takes its
/// place) and the log between two snapshots; and a replica that comes back empty becomes a member.
/// `CONCORD_QUEUE_SECONDS` is the time, `CONCORD_QUEUE_MIB` the size of the data.
#[test]
fn bug_22_4_a_joiner_and_snapshots_beside_queues() {
    let long = if setting("CONCORD_LONG", 0) > 0 { 600 } else { 0 };
    let seconds = setting("CONCORD_QUEUE_SECONDS", long);
    if seconds == 0 {
        return;
    }
    let mib = setting("CONCORD_QUEUE_MIB", 256);
    let keys = mib * (1 << 20) / VALUE_BYTES as u64;
    let rack = Rack::start("beside-queues", &["--durability", "fsync"]);
    let value = vec![b'v'; VALUE_BYTES];
    let mut client = rack.client();
    for n in 0..keys {
        let key = format!("large:{n}");
        assert_eq!(client.call(&[b"SET", key.as_bytes(), &value]).unwrap().0, "+OK");
    }
    for n in 0..50 {
        assert!(client.say(&format!("RPUSH queue:a job:{n}")).starts_with(':'));
    }
    let (is_over, entangled, largest) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let until_over = |step: &dyn Fn(&mut Resp, u64), pause_ms: u64| {
        let mut client = Resp::open(rack.listen).waiting(Duration::from_secs(60));
        let mut n = 0;
        while !is_over.load(Ordering::Relaxed) {
            n += 1;
            step(&mut client, n);
            std::thread::sleep(Duration::from_millis(pause_ms));
        }
    };
    let queue = |client: &mut Resp, n: u64| {
        let script = "redis.call('INCR', KEYS[1]); return redis.call('INCR', KEYS[2])";
        let said = match n % 3 {
            0 => client.say("LMOVE queue:a queue:b LEFT RIGHT"),
            1 => client.say("LMOVE queue:b queue:a LEFT RIGHT"),
            _ => {
                let args: [&[u8]; 5] = [b"EVAL", script.as_bytes(), b"2", b"one", b"two"];
                client.call(&args).unwrap().0
            }
        };
        assert!(!said.starts_with('-'), "{said}");
        entangled.fetch_add(1, Ordering::Relaxed);
    };
    let write = |client: &mut Resp, n: u64| {
        let key = format!("large:{}", n * 7919 % keys);
        let line = client.call(&[b"SET", key.as_bytes(), &value]).unwrap().0;
        assert_eq!(line, "+OK");
    };
    let data = |node: u64| rack.run.join(format!("data/replica-{node}"));
    let watch = |_: &mut Resp, _: u64| {
        let now = (1..=3).map(|node| directory_bytes(&data(node))).max().unwrap_or(0);
        largest.fetch_max(now, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| until_over(&queue, 30));
        scope.spawn(|| until_over(&write, 20));
        scope.spawn(|| until_over(&watch, 200));
        let began = Instant::now();
        Rack::signal(rack.pid("replica-3"), "-9");
        until("epoch without it", || !rack.members().contains(&3));
        std::fs::remove_dir_all(data(3)).unwrap();
        let _again = ByHand::start(&rack, &["replica", "--node", "3"]);
        let joined = Instant::now();
        until_within("epoch with it", Duration::from_secs(240), || {
            let mut members = rack.members();
            members.sort_unstable();
            members == [1, 2, 3] && rack.role("replica", 3)["phase"] == "open"
        });
        println!("the replica that came back empty is a member after {:?}", joined.elapsed());
        std::thread::sleep(Duration::from_secs(seconds).saturating_sub(began.elapsed()));
        is_over.store(true, Ordering::Relaxed);
    });
    let most = 2 * (mib << 20) + SNAPSHOT_BYTES + (SNAPSHOT_BYTES >> 1);
    let (largest, entangled) = (largest.into_inner(), entangled.into_inner());
    println!("{entangled} entangled writes; {mib} MiB of data, {} MiB of directory", largest >> 20);
    assert!(largest < most, "{largest} bytes, at most {most}");
    assert!(entangled > seconds * 10, "{entangled} entangled writes");
    // Each element is in one of the queues.
    let length = |client: &mut Resp, key: &str| -> u64 {
        client.say(&format!("LLEN {key}")).trim_start_matches(':').parse().unwrap()
    };
    assert_eq!(length(&mut client, "queue:a") + length(&mut client, "queue:b"), 50);
}
