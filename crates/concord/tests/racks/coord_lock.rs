//! Locks of a chain in Python, `concord.Lock`, through a gateway.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::coord_gateway::start;

fn python(rack: &Rack, function: &str, args: &[&str]) -> Child {
    let root = env!("CARGO_MANIFEST_DIR");
    Command::new("/usr/bin/python3")
        .arg(format!("{root}/tests/clients/coord_lock.py"))
        .arg(function)
        .arg(rack.listen.to_string())
        .args(args)
        .env("PYTHONPATH", format!("{root}/../../python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap)
}

#[test]
fn a_lock_in_python_is_renewed_released_and_lost() {
    let rack = start("coord-lock");
    let mut child = python(&rack, "main", &[]);
    let said: Vec<String> = lines(&mut child).collect();
    assert!(child.wait().unwrap().success());
    assert_eq!(said, ["done"]);
    // `concord coord lock` and a lock in Python are one.
    let file = rack.file();
    let mut holder = python(&rack, "hold", &[]);
    let token: u64 = lines(&mut holder).next().unwrap().parse().unwrap();
    let lock = ["coord", "--config", &file, "lock", "@job", "--ttl", "1s"];
    let refused = concord(&[&lock[..], &["--", "true"]].concat());
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("is held by 2000 "), "{why}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    let prints = ["--wait", "10s", "--", "sh", "-c", "echo $CONCORD_TOKEN"];
    let taken = concord(&[&lock[..], &prints].concat());
    let later: u64 = String::from_utf8_lossy(&taken.stdout).trim().parse().unwrap();
    assert!(later > token, "{later} {token}");
}

/// Of two processes one has the lock; when it is killed the other has it one lease later, with a
/// higher token. If all switches stand still, the holder knows by itself that it has lost it.
#[test]
fn a_killed_holders_lock_is_the_others_one_lease_later() {
    let rack = start("coord-lock-killed");
    let mut first = python(&rack, "hold", &[]);
    let token: u64 = lines(&mut first).next().unwrap().parse().unwrap();
    let mut second = python(&rack, "hold", &[]);
    std::thread::sleep(Duration::from_secs(3));
    first.kill().unwrap();
    first.wait().unwrap();
    let killed_at = Instant::now();
    let mut said = lines(&mut second);
    let later: u64 = said.next().unwrap().parse().unwrap();
    let after = killed_at.elapsed();
    println!("taken {after:?} after the kill");
    assert!(later > token, "{later} {token}");
    // The lease is 2 s, and was renewed half a second before the kill at the latest.
    assert!(after > Duration::from_millis(1_000) && after < Duration::from_secs(6), "{after:?}");
    for switch in 1..=3 {
        Rack::signal(rack.pid(&format!("locks-switch-{switch}")), "-STOP");
    }
    let stopped_at = Instant::now();
    assert_eq!(said.next().as_deref(), Some("lost"));
    let after = stopped_at.elapsed();
    println!("lost {after:?} after all switches stood still");
    assert!(after < Duration::from_millis(2_500), "{after:?}");
    assert_eq!(said.next().as_deref(), Some("told"));
    assert!(second.wait().unwrap().success());
    for switch in 1..=3 {
        Rack::signal(rack.pid(&format!("locks-switch-{switch}")), "-CONT");
    }
}

/// Three processes add to a number that only the lock guards, while a switch is killed.
#[test]
fn what_a_lock_guards_is_written_by_one_at_a_time() {
    let rack = start("coord-lock-count");
    let directory = directory("coord-lock-number");
    let path = directory.join("number");
    std::fs::write(&path, "0 0").unwrap();
    let path = path.to_str().unwrap();
    let mut all: Vec<Child> = (0..3).map(|_| python(&rack, "count", &[path, "20"])).collect();
    std::thread::sleep(Duration::from_millis(500));
    Rack::signal(rack.pid("locks-switch-1"), "-9");
    for child in &mut all {
        assert!(child.wait().unwrap().success());
    }
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(text.split(' ').next(), Some("60"), "{text}");
}
