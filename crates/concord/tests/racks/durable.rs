//! Power cuts of whole racks: every process is killed at once, under load, while disks keep what is
//! not synced from their files; then the rack is started again. The history across it is
//! linearizable, and nothing that was acknowledged or read is missing (trap T7).
//!
//! Three kinds of cuts take turns: what is not synced is gone; all directories end with a torn
//! group; and, besides, a bit of one directory is flipped before its end.
//!
//! `CONCORD_POWER_CUTS` sets how many there are of each kind; `make power` asks for 20.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use concord_check::{Operation, Options, Reply, check};
use concord_core::Rng;

/// Connections, and the keys of each kind that they share.
const CLIENTS: u64 = 8;
const KEYS: u64 = 4;
const REPLICAS: u64 = 3;

/// What a power cut leaves besides what was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Nothing, or what the fault of the disks leaves of a group.
    Lost,
    /// A torn group in each directory.
    Torn,
    /// That, and a flipped bit before it in the directory of one replica.
    Flipped,
}

/// Keys that are set, and keys that are counted up.
fn keys() -> impl Iterator<Item = String> {
    (0..KEYS).flat_map(|n| [format!("register:{n}"), format!("counter:{n}")])
}

fn operation(client: u64, call: Duration, cmd: &[&[u8]]) -> Operation {
    Operation {
        client,
        ordinal: None,
        call_ns: call.as_nanos() as u64,
        return_ns: None,
        cmd: cmd.iter().map(|arg| arg.to_vec()).collect(),
        reply: None,
        path: None,
    }
}

/// One command, recorded; whether the connection is of further use.
fn call(
    history: &mut Vec<Operation>,
    client: (u64, &mut Resp),
    epoch: Instant,
    cmd: &[&[u8]],
) -> bool {
    let (number, connection) = client;
    let mut own = operation(number, epoch.elapsed(), cmd);
    let answer = connection.call(cmd);
    let reply = match &answer {
        Ok((line, _)) if line == "+OK" => Some(Reply::Ok),
        Ok((line, _)) if line == "$-1" => Some(Reply::Nil),
        Ok((line, value)) if line.starts_with('$') => Some(Reply::bulk(value.clone())),
        Ok((line, _)) if line.starts_with(':') => line[1..].parse().ok().map(Reply::Int),
        // It may have been executed.
        Ok((line, _)) if line.starts_with("-UNKNOWN") => None,
        Ok((line, _)) if line.starts_with('-') => Some(Reply::Error(line[1..].to_string())),
        Ok((line, _)) => panic!("{line}"),
        Err(_) => None,
    };
    own.return_ns = reply.as_ref().map(|_| epoch.elapsed().as_nanos() as u64);
    own.reply = reply;
    history.push(own);
    answer.is_ok()
}

/// Reads and writes until the connection breaks, which it does when the gateway is killed.
fn work(
    rack: &Rack,
    number: u64,
    seed: u64,
    epoch: Instant,
    is_cut: &AtomicBool,
) -> Vec<Operation> {
    let (mut history, mut connection) = (Vec::new(), rack.client());
    let mut rng = Rng::new(seed);
    while !is_cut.load(Ordering::Relaxed) {
        let register = format!("register:{}", rng.below(KEYS));
        let counter = format!("counter:{}", rng.below(KEYS));
        let value = format!("{seed:x}.{}", history.len());
        let cmd: &[&[u8]] = match rng.below(4) {
            0 => &[b"SET", register.as_bytes(), value.as_bytes()],
            1 => &[b"INCR", counter.as_bytes()],
            2 => &[b"GET", register.as_bytes()],
            _ => &[b"GET", counter.as_bytes()],
        };
        if !call(&mut history, (number, &mut connection), epoch, cmd) {
            break;
        }
    }
    history
}

/// What the keys hold before anything is done, as writes that were over before.
fn beginning(values: &[(String, Option<Vec<u8>>)]) -> Vec<Operation> {
    let set = |(key, value): &(String, Option<Vec<u8>>)| {
        let cmd = [b"SET", key.as_bytes(), value.as_deref()?];
        let own = operation(CLIENTS + 1, Duration::ZERO, &cmd);
        Some(Operation { return_ns: Some(1), reply: Some(Reply::Ok), ..own })
    };
    values.iter().filter_map(set).collect()
}

fn read_all(
    history: &mut Vec<Operation>,
    rack: &Rack,
    epoch: Instant,
) -> Vec<(String, Option<Vec<u8>>)> {
    let mut connection = rack.client();
    let mut read = |key: String| {
        // The first request of a rack may find a switch that does not help yet.
        until("an answer", || {
            assert!(call(history, (CLIENTS, &mut connection), epoch, &[b"GET", key.as_bytes()]));
            matches!(history.last().unwrap().reply, Some(Reply::Bulk(_) | Reply::Nil))
        });
        match &history.last().unwrap().reply {
            Some(Reply::Bulk(value)) => (key, Some(value.clone())),
            _ => (key, None),
        }
    };
    keys().map(&mut read).collect()
}

fn data(rack: &Rack, replica: u64) -> PathBuf {
    rack.run.join(format!("data/replica-{replica}"))
}

fn inspect(directory: &Path) -> String {
    let output = concord(&["log", "inspect", &directory.display().to_string()]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The segment that was written last.
fn last_segment(directory: &Path) -> PathBuf {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|e| e == "log")).max().unwrap()
}

/// Every directory ends with a group that is not complete, where that was not so.
fn tear_ends(rack: &Rack, rng: &mut Rng) {
    for replica in 1..=REPLICAS {
        let directory = data(rack, replica);
        if !inspect(&directory).contains("an incomplete group") {
            let mut segment =
                std::fs::OpenOptions::new().append(true).open(last_segment(&directory)).unwrap();
            let torn: Vec<u8> = (0..1 + rng.below(3_000)).map(|_| rng.below(256) as u8).collect();
            segment.write_all(&torn).unwrap();
        }
        let text = inspect(&directory);
        assert!(text.contains("an incomplete group"), "{text}");
    }
}

/// A bit of a group that was acknowledged, with complete ones behind it; not of what a later
/// snapshot took the place of.
fn flip_a_bit(rack: &Rack, replica: u64, rng: &mut Rng) {
    let segment = last_segment(&data(rack, replica));
    let length = std::fs::metadata(&segment).unwrap().len();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&segment).unwrap();
    let at = length / 8 + rng.below(length / 4);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << rng.below(8))], at).unwrap();
}

/// Works, cuts the power of all, starts the rack again, and checks the history.
fn cut(name: &str, rack: Rack, flags: &[&str], number: u64, kind: Cut) -> (Rack, usize) {
    let (epoch, is_cut, mut rng) = (Instant::now(), AtomicBool::new(false), Rng::new(number));
    let mut history = Vec::new();
    let values = read_all(&mut history, &rack, epoch);
    history.splice(0..0, beginning(&values));
    std::thread::scope(|scope| {
        let (rack, is_cut) = (&rack, &is_cut);
        let work =
            |client| scope.spawn(move || work(rack, client, number << 8 | client, epoch, is_cut));
        let clients: Vec<_> = (0..CLIENTS).map(work).collect();
        std::thread::sleep(Duration::from_millis(400 + 37 * (number % 10)));
        rack.cut_power();
        is_cut.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| history.extend(client.join().unwrap()));
    });
    if kind != Cut::Lost {
        tear_ends(&rack, &mut rng);
    }
    let damaged = 1 + number / 3 % REPLICAS;
    let aside = rack.run.join(format!("data/replica-{damaged}.damaged-1"));
    if kind == Cut::Flipped {
        let _ = std::fs::remove_dir_all(&aside);
        flip_a_bit(&rack, damaged, &mut rng);
    }
    let rack = rack.again(name, flags);
    read_all(&mut history, &rack, epoch);
    let report = check(&history, &Options::default()).unwrap();
    assert!(report.is_ok(), "{name}, cut {number}, {kind:?}: {report:?}");
    let is_write =
        |own: &&Operation| own.client < CLIENTS && own.reply.is_some() && own.cmd[0] != b"GET";
    let writes = history.iter().filter(is_write).count();
    // The next cut finds all three with all the data.
    let waited = concord(&["wait", "--config", &rack.file()]);
    assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
    assert_eq!(aside.exists(), kind == Cut::Flipped, "what is damaged is set aside");
    let _ = std::fs::remove_dir_all(&aside);
    (rack, writes)
}

fn survive(name: &str, more: &[&str]) {
    let flags = [&["--durability", "fsync", "--fault-disk-hold", "2"], more].concat();
    let mut rack = Rack::start(name, &flags);
    let (cuts, mut writes) = (setting("CONCORD_POWER_CUTS", 1), 0);
    for number in 0..3 * cuts {
        let kind = [Cut::Lost, Cut::Torn, Cut::Flipped][number as usize % 3];
        let (again, more) = cut(name, rack, &flags, number, kind);
        (rack, writes) = (again, writes + more);
    }
    println!("{name}: {cuts} cuts of each kind, {writes} writes acknowledged");
    assert!(writes > 0);
    let text = inspect(&data(&rack, 1));
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

/// What `concord up` refuses is in `run_directory.rs`; a replica that is started by hand refuses
/// too.
#[test]
fn bug_24_7_a_replica_keeps_its_protocol_and_engine() {
    let flags = ["--durability", "fsync"];
    let rack = Rack::start("kept-chain", &flags);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    rack.cut_power();
    let dir = rack.run.join("data/replica-1").display().to_string();
    let text = std::fs::read_to_string(rack.file()).unwrap();
    let file = rack.run.join("other.toml").display().to_string();
    let refusal = |from: &str, to: &str| {
        std::fs::write(&file, text.replace(from, to)).unwrap();
        let replica = concord(&["replica", "--config", &file, "--node", "1", "--data-dir", &dir]);
        assert_eq!(replica.status.code(), Some(1));
        String::from_utf8_lossy(&replica.stderr).into_owned()
    };
    for (other, name) in [("vr", "Vr"), ("primary-backup", "PrimaryBackup")] {
        let line = refusal("protocol = \"chain\"", &format!("protocol = \"{other}\""));
        assert!(line.contains(&format!("kept under Chain, and {name} cannot go on")), "{line}");
    }
    let line = refusal("engine = \"memory\"", "engine = \"redis\"");
    assert!(line.contains("kept with the memory engine, and the redis engine cannot"), "{line}");
    let rack = rack.again("kept-chain", &flags);
    assert_eq!(rack.client().say("GET k"), "v");
}

/// Redis servers under every protocol are filled again after a power cut.
#[test]
#[ignore = "as long as the others: make power"]
fn t7_redis_servers_are_refilled_after_a_power_cut() {
    survive("power-primary-redis", &["--protocol", "primary-backup", "--engine", "redis"]);
    survive("power-craq-redis", &["--protocol", "craq", "--accel", "none", "--engine", "redis"]);
    survive("power-nopaxos-redis", &["--protocol", "nopaxos", "--engine", "redis"]);
    survive("power-raft-redis", &["--protocol", "raft", "--engine", "redis"]);
}

#[test]
fn t7_redis_servers_under_vr_are_filled_again_after_a_power_cut() {
    survive("power-vr-redis", &["--protocol", "vr", "--engine", "redis"]);
}

/// A bit on a disk changes while its replica serves: it is found, and a new snapshot takes the
/// place of the log.
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

/// The numbers of a replica's segments.
fn segments(rack: &Rack, replica: u64) -> Vec<u64> {
    let names = std::fs::read_dir(data(rack, replica)).unwrap().map(|entry| entry.unwrap().path());
    let logs = names.filter(|path| path.extension().is_some_and(|e| e == "log"));
    logs.map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        name.rsplit('-').next().unwrap().parse().unwrap()
    })
    .collect()
}

/// A key that is larger than a snapshot's parts, written while snapshots are made of it, is served
/// again after all were killed: one of 2 GiB was a part above the limit of a frame, so that every
/// replica set its directory aside and all keys were lost. `CONCORD_HUGE_MIB` is its size; without,
/// and without `CONCORD_LONG=1`, nothing is done.
#[test]
fn bug_22_1_a_huge_key_is_served_again() {
    let long = if setting("CONCORD_LONG", 0) > 0 { 2_100 } else { 0 };
    let mib = setting("CONCORD_HUGE_MIB", long);
    if mib == 0 {
        return;
    }
    let flags = ["--durability", "fsync"];
    let rack = Rack::start("huge", &flags);
    let mut client = rack.client();
    assert_eq!(client.say("SET beside value"), "+OK");
    let item = |number: u64| {
        let mut item = vec![b'i'; 1 << 20];
        item[..8].copy_from_slice(&number.to_be_bytes());
        item
    };
    for number in 0..mib {
        let (line, _) = client.call(&[b"RPUSH", b"huge", &item(number)]).unwrap();
        assert_eq!(line, format!(":{}", number + 1));
    }
    // A snapshot of the whole key took the place of what was written first.
    for replica in 1..=REPLICAS {
        until("segments that go", || segments(&rack, replica).iter().all(|number| *number > 1));
    }
    assert_eq!(Rack::counter(&rack.status(), "replica", "snapshots_refused"), 0);
    rack.cut_power();
    let rack = rack.again("huge", &flags);
    let mut client = rack.client();
    assert_eq!(client.say("LLEN huge"), format!(":{mib}"));
    for number in (0..mib).step_by(7).chain([mib - 1]) {
        let at = number.to_string();
        let (_, bytes) = client.call(&[b"LINDEX", b"huge", at.as_bytes()]).unwrap();
        assert!(bytes == item(number), "item {number}");
    }
    assert_eq!(client.say("GET beside"), "value");
    for replica in 1..=REPLICAS {
        assert!(!rack.run.join(format!("data/replica-{replica}.damaged-1")).exists());
    }
}
