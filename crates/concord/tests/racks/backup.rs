//! A rack's data as one piece: it is synced each second, and the power of all goes; it is backed up
//! while it serves, and restored into another rack.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;

/// What may be lost: the second, the sync, and what a busy machine takes beside.
const LOST_MAX: Duration = Duration::from_millis(1_800);
/// However long a sync takes: within that time it was acknowledged, and what a busy machine takes
/// beside.
const SPAN_MAX: Duration = Duration::from_millis(2_500);

/// The rack's number and the switch's id, as the controller says them.
fn numbers(rack: &Rack) -> (String, u64) {
    let status = rack.status();
    let roles = status["roles"].as_array().unwrap();
    let own = &roles.iter().find(|r| r["role"] == "controller").unwrap()["status"];
    (own["rack"].to_string(), own["switch_id"].as_u64().unwrap_or(0))
}

/// Syncs a file now and then until `is_over`, as the replicas do on the same disk; the longest that
/// this took. It may be seconds where others write gigabytes, and what is written meanwhile is on
/// no disk.
fn longest_sync(is_over: &AtomicBool) -> Duration {
    let path = std::env::temp_dir().join(format!(
        "concord-sync-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut file = std::fs::File::create(&path).unwrap();
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        file.write_all(&[0; 4_096]).and_then(|()| file.sync_data()).unwrap();
        longest = longest.max(began.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_file(&path).unwrap();
    longest
}

/// Counts up under load, the power of all goes, and again: nothing is missing that is older than a
/// second, what is there is a prefix, and it is another rack.
fn survive_but_for_a_second(name: &str, more: &[&str]) {
    survive(name, Duration::from_millis(2), more);
}

/// The same where each sync of the replicas takes so long.
fn survive(name: &str, hold: Duration, more: &[&str]) {
    let hold_ms = hold.as_millis().to_string();
    let flags = [&["--durability", "interval", "--fault-disk-hold", &hold_ms], more].concat();
    let mut rack = Rack::start(name, &flags);
    let mut last = 0;
    for _ in 0..2 {
        let before = numbers(&rack);
        let acknowledged: Mutex<Vec<(Instant, u64)>> = Mutex::default();
        let is_cut = AtomicBool::new(false);
        let (cut_at, sync) = std::thread::scope(|scope| {
            let (rack, acknowledged, is_cut) = (&rack, &acknowledged, &is_cut);
            scope.spawn(move || {
                let mut client = rack.client();
                while !is_cut.load(Ordering::Relaxed) {
                    let Ok((line, _)) = client.call(&[b"INCR", b"counter"]) else { return };
                    if let Some(value) = line.strip_prefix(':') {
                        let own = (Instant::now(), value.parse().unwrap());
                        acknowledged.lock().unwrap().push(own);
                    }
                }
            });
            let syncs = scope.spawn(|| longest_sync(is_cut));
            std::thread::sleep(Duration::from_millis(3_000) + 2 * hold);
            let cut_at = Instant::now();
            rack.cut_power();
            is_cut.store(true, Ordering::Relaxed);
            (cut_at, syncs.join().unwrap())
        });
        rack = rack.again(name, &flags);
        let value: u64 = rack.client().say("GET counter").parse().unwrap();
        let acknowledged = acknowledged.into_inner().unwrap();
        // One group may be on its way to the disk, and another one wait for that.
        let lost_max = LOST_MAX + 2 * sync.max(hold);
        let old = |(at, _): &&(Instant, u64)| *at + lost_max < cut_at;
        let kept = acknowledged.iter().filter(old).map(|(_, value)| *value).max().unwrap_or(0);
        let most = acknowledged.iter().map(|(_, value)| *value).max().unwrap() + 1;
        assert!((kept.max(last)..=most).contains(&value), "{name}: {value} of {kept} to {most}");
        let lost = || acknowledged.iter().filter(|(_, own)| *own > value).map(|(at, _)| *at);
        let span = lost().max().zip(lost().min()).map_or(Duration::ZERO, |(to, from)| to - from);
        assert!(span <= SPAN_MAX, "{name}: what is lost was acknowledged within {span:?}");
        println!(
            "{name}: {value} of {most}, {kept} before the last second; a sync took {sync:?}, what is lost was acknowledged within {span:?}"
        );
        let after = numbers(&rack);
        assert!(after.0 != before.0 && after.1 > before.1, "{before:?} {after:?}");
        assert_eq!(rack.client().say("INCR counter"), format!(":{}", value + 1));
        last = value + 1;
    }
}

/// However slow the disk what is lost was acknowledged within two seconds.
#[test]
fn bug_19_23_slow_disk_loses_at_most_two_seconds() {
    survive("slow-chain", Duration::from_millis(2_500), &[]);
}

#[test]
fn a_chain_that_syncs_each_second_loses_no_more_than_that() {
    survive_but_for_a_second("second-chain", &[]);
}

/// Primary backup that syncs each second loses no more than that.
#[test]
fn primary_backup_interval_loss() {
    survive_but_for_a_second("second-primary", &["--protocol", "primary-backup"]);
}

#[test]
fn craq_that_syncs_each_second_loses_no_more_than_that() {
    survive_but_for_a_second("second-craq", &["--protocol", "craq", "--accel", "none"]);
}

#[test]
fn vr_that_syncs_each_second_loses_no_more_than_that() {
    survive_but_for_a_second("second-vr", &["--protocol", "vr"]);
}

#[test]
fn nopaxos_that_syncs_each_second_loses_no_more_than_that() {
    survive_but_for_a_second("second-nopaxos", &["--protocol", "nopaxos"]);
}

#[test]
fn flair_that_syncs_each_second_loses_no_more_than_that() {
    survive_but_for_a_second("second-flair", &["--protocol", "vr", "--accel", "flair"]);
}

/// Redis servers of a chain that syncs each second lose no more than that.
#[test]
fn redis_chain_interval_loss() {
    survive_but_for_a_second("second-redis", &["--engine", "redis"]);
}

/// The power of one replica goes, and of another once that one is back: nobody misses anything.
/// Then the rack is stopped in order, and goes on as the same one.
fn lose_nothing_one_by_one(name: &str, more: &[&str]) {
    let flags = [&["--durability", "interval"], more].concat();
    let rack = Rack::start(name, &flags);
    let mut client = rack.client();
    let before = numbers(&rack);
    for key in 0..50 {
        assert_eq!(client.say(&format!("SET key:{key} {key}")), "+OK");
    }
    Rack::signal(rack.up.id(), "-TERM");
    until("end of the rack", || {
        !is_alive(rack.up.id()) || rack.run.join("pids").metadata().is_err()
    });
    let rack = rack.again(name, &flags);
    let mut client = rack.client();
    for key in 0..50 {
        assert_eq!(client.say(&format!("GET key:{key}")), key.to_string());
    }
    assert_eq!(numbers(&rack).0, before.0, "it is the same rack");
}

#[test]
fn a_chain_that_is_stopped_in_order_owes_nothing() {
    lose_nothing_one_by_one("owes-chain", &[]);
}

#[test]
fn vr_that_is_stopped_in_order_owes_nothing() {
    lose_nothing_one_by_one("owes-vr", &["--protocol", "vr"]);
}

/// Writes go on while a backup is made. It has all that was acknowledged before it was started,
/// nothing twice, and of two writes of a connection never the later one alone. It is restored into
/// a rack with other flags.
fn back_up_under_load(name: &str, more: &[&str], then: &[&str]) {
    let flags = [&["--durability", "fsync"], more].concat();
    let rack = Rack::start(name, &flags);
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let place = directory(&format!("{name}-backups"));
    let target = place.join("monday");
    let (low, high) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = rack.client();
            for n in 1.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                assert_eq!(client.say(&format!("SET first {n}")), "+OK");
                assert_eq!(client.say("INCR second"), format!(":{n}"));
                written.store(n, Ordering::SeqCst);
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        let low = written.load(Ordering::SeqCst);
        let made = concord(&["backup", "--config", &rack.file(), &target.display().to_string()]);
        let high = written.load(Ordering::SeqCst) + 1;
        is_over.store(true, Ordering::Relaxed);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        (low, high)
    });
    assert!(low > 0);
    let before = numbers(&rack);
    drop(rack);
    let run = directory(&format!("{name}-restored"));
    let words = ["restore", &target.display().to_string(), "--run-dir", &run.display().to_string()];
    let made = concord(&words);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let twice = refused(&words);
    assert!(twice.contains("holds something"), "{twice}");
    let flags = [&["--durability", "fsync"], then].concat();
    let rack = Rack::start_at(run, &flags);
    let mut client = rack.client();
    let first: u64 = client.say("GET first").parse().unwrap();
    let second: u64 = client.say("GET second").parse().unwrap();
    assert!(first == second || first == second + 1, "{first} {second}");
    assert!((low..=high).contains(&second), "{second} of {low} to {high}");
    assert_eq!(client.say("INCR second"), format!(":{}", second + 1));
    let after = numbers(&rack);
    assert!(after.0 != before.0 && after.1 > before.1, "{before:?} {after:?}");
    println!("{name}: {second} of {low} to {high}");
    // And it is a rack like any other.
    drop(client);
    rack.cut_power();
    let rack = rack.again(name, &flags);
    assert_eq!(rack.client().say("GET second"), (second + 1).to_string());
}

#[test]
fn a_chain_is_backed_up_while_it_serves_and_restored_under_vr() {
    back_up_under_load("backup-chain", &[], &["--protocol", "vr"]);
}

#[test]
fn vr_is_backed_up_while_it_serves_and_restored_as_a_chain() {
    back_up_under_load("backup-vr", &["--protocol", "vr"], &[]);
}

#[test]
fn nopaxos_is_backed_up_while_it_serves_and_restored() {
    let flags = ["--protocol", "nopaxos"];
    back_up_under_load("backup-nopaxos", &flags, &flags);
}

/// Numbers of writes have views in them, which begin again with a rack.
#[test]
fn bug_20_3_flair_is_backed_up_while_it_serves_and_restored() {
    let flags = ["--protocol", "vr", "--accel", "flair"];
    back_up_under_load("backup-flair", &flags, &flags);
}

#[test]
fn redis_servers_are_backed_up_while_they_serve_and_restored() {
    back_up_under_load("backup-redis", &["--engine", "redis"], &["--engine", "redis"]);
}

#[test]
fn what_cannot_be_backed_up_or_restored_is_said_in_a_line() {
    let rack = Rack::start("backup-lines", &["--durability", "fsync"]);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    let place = directory("backup-lines-backups");
    let path = |name: &str| place.join(name).display().to_string();
    let (file, run) = (rack.file(), rack.run.display().to_string());
    let backup = |target: &str| concord(&["backup", "--config", &file, target]).status.success();
    assert!(backup(&path("a")));
    let line = refused(&["backup", "--config", &file, &path("a")]);
    assert!(line.contains("is there already"), "{line}");
    let line = refused(&["backup", "--config", &path("none.toml"), &path("b")]);
    assert!(line.contains("none.toml"), "{line}");
    let line = refused(&["restore", &path("a"), "--run-dir", &run]);
    assert!(line.contains("a rack was there already"), "{line}");
    let line = refused(&["restore", &path("a"), "--config", &file]);
    assert!(line.contains("a rack was there already"), "{line}");
    let line = refused(&["restore", &path("a"), "--node", "1"]);
    assert!(line.contains("--data-dir"), "{line}");
    let data = rack.run.join("data/replica-1").display().to_string();
    let line = refused(&["restore", &data, "--run-dir", &path("c")]);
    assert!(line.contains("is not a backup"), "{line}");
    let line = refused(&["restore", &path("none"), "--run-dir", &path("c")]);
    assert!(line.contains("none"), "{line}");
    // One that is restored alone into a rack that goes on is left alone.
    assert!(backup(&path("d")));
    let own = concord(&["restore", &path("d"), "--node", "4", "--data-dir", &path("replica-4")]);
    assert!(own.status.success());
    let text = String::from_utf8(concord(&["log", "inspect", &path("replica-4")]).stdout).unwrap();
    assert!(text.contains("of replica 4") && text.contains("begins a new rack"), "{text}");
    drop(rack);
    let rack = Rack::start("backup-none", &["--durability", "none"]);
    let line = refused(&["backup", "--config", &rack.file(), &path("e")]);
    assert!(line.contains("nothing is on disk"), "{line}");
}

/// The segments of a backup, in their order.
fn segments(backup: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(backup).unwrap().map(|entry| entry.unwrap().path());
    let mut own: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
    own.sort();
    own
}

/// A backup of two segments, of which something is lost or changed: whatever looks at it says so,
/// with a status that is not 0.
#[test]
fn bug_24_6_a_backup_that_is_not_complete_is_refused() {
    let rack = Rack::start("backup-verify", &["--durability", "fsync"]);
    let mut client = rack.client();
    let value = "v".repeat(1_000_000);
    // More than a segment takes.
    for n in 0..70 {
        assert_eq!(client.say(&format!("SET key:{n} {value}")), "+OK");
    }
    let place = directory("backup-verify-backups");
    let backup = place.join("monday");
    let target = backup.display().to_string();
    assert!(concord(&["backup", "--config", &rack.file(), &target]).status.success());
    let whole = segments(&backup);
    assert!(whole.len() > 1, "{whole:?}");
    let verify: [&[&str]; 2] = [&["backup", "--verify", &target], &["log", "inspect", &target]];
    for words in verify {
        let done = concord(words);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let text = String::from_utf8(concord(verify[0]).stdout).unwrap();
    assert!(text.contains("is complete: 2 files") && text.contains("memory engine"), "{text}");
    // sha256sum knows the list.
    if let Ok(sum) = std::process::Command::new("sha256sum")
        .args(["--strict", "-c", "MANIFEST"])
        .current_dir(&backup)
        .output()
    {
        assert!(sum.status.success(), "{}", String::from_utf8_lossy(&sum.stderr));
    }
    let last = whole.last().unwrap();
    let bytes = std::fs::read(last).unwrap();
    let end = bytes.len();
    let flip = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        Some(bytes)
    };
    let manifest = backup.join("MANIFEST");
    let list = std::fs::read(&manifest).unwrap();
    let changes = [
        (last, None, "is missing"),
        (last, Some(bytes[..end - 8].to_vec()), "bytes, and the MANIFEST says"),
        (last, Some(bytes[..end / 2].to_vec()), "bytes, and the MANIFEST says"),
        (last, Some(Vec::new()), "bytes, and the MANIFEST says"),
        (last, flip(end - 12), "is damaged: its SHA-256"),
        (last, flip(end / 2), "is damaged: its SHA-256"),
        (last, flip(60), "is damaged: its SHA-256"),
        (&manifest, Some(list[..list.len() - 30].to_vec()), "is damaged, or of another version"),
    ];
    let run = place.join("restored").display().to_string();
    for (file, changed, words) in changes {
        let before = std::fs::read(file).unwrap();
        match changed {
            Some(changed) => std::fs::write(file, changed).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        let restore: &[&str] = &["restore", &target, "--run-dir", &run];
        for command in [verify[0], verify[1], restore] {
            let line = refused(command);
            assert!(line.contains(words) || line.contains("damaged at offset"), "{line}");
        }
        assert!(!Path::new(&run).exists(), "something was restored");
        std::fs::write(file, before).unwrap();
    }
    // Without its list it is no backup that could be verified.
    std::fs::rename(&manifest, place.join("MANIFEST")).unwrap();
    assert!(refused(verify[0]).contains("has no MANIFEST"));
    std::fs::remove_file(last).unwrap();
    assert!(refused(&["restore", &target, "--run-dir", &run]).contains("is not a backup"));
}

/// One engine cannot read what another one wrote: said before anything is written.
#[test]
fn bug_24_6_a_backup_goes_to_its_own_engine_only() {
    let rack = Rack::start("backup-engine", &["--durability", "fsync"]);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    let place = directory("backup-engine-backups");
    let target = place.join("monday").display().to_string();
    assert!(concord(&["backup", "--config", &rack.file(), &target]).status.success());
    let config = place.join("rack.toml");
    let state = place.join("state").display().to_string();
    let text = std::fs::read_to_string(rack.file()).unwrap();
    let text = text.replace("engine = \"memory\"", "engine = \"redis\"");
    let text = text.replace(&rack.run.join("controller.state").display().to_string(), &state);
    let data = place.join("data").display().to_string();
    let text = text.replace(&rack.run.join("data").display().to_string(), &data);
    std::fs::write(&config, text).unwrap();
    let config = config.display().to_string();
    let line = refused(&["restore", &target, "--config", &config]);
    assert!(line.contains("is of the memory engine, which the redis engine"), "{line}");
    assert!(!place.join("data").exists());
    // Into a run directory: the directories say it, and `up` reads that first.
    let run = directory("backup-engine-run");
    let run_dir = run.display().to_string();
    assert!(concord(&["restore", &target, "--run-dir", &run_dir]).status.success());
    let up = ["up", "--listen", "127.0.0.1:0", "--run-dir", &run_dir];
    let line = refused(&[&up[..], &["--engine", "redis"]].concat());
    assert!(line.contains("was kept with the memory engine"), "{line}");
    let rack = Rack::start_at(run, &["--durability", "fsync"]);
    assert_eq!(rack.client().say("GET k"), "v");
}
