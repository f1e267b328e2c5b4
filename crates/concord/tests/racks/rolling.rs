//! docs/operate/operations.md, "Changing a running rack", followed to the letter under load: no
//! client gets an error, and the longest pause of each step is printed.

use std::time::{Duration, SystemTime};

use crate::common::units::*;
use crate::common::until;

/// Clients, half of them at each gateway.
const CLIENTS: usize = 4;
/// For how long a step may keep a write waiting: less than what a replica costs that dies
/// (`failure_ms`). That is for machines that are busy: what is measured is some 20 to 100 ms.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a replica may take to go.
const GOES_WITHIN: Duration = Duration::from_millis(1_200);

/// Steps with a name each, and when they were done.
#[derive(Default)]
struct Steps(Vec<(String, (SystemTime, SystemTime))>);

impl Steps {
    fn take(&mut self, name: &str, step: impl FnOnce()) {
        self.0.push((name.to_string(), timed(step)));
    }

    /// A role is started again, and all is well before the next step.
    fn restart(&mut self, rack: &mut Units, what: &str, role: &str, node: u64) {
        self.take(&format!("{what}restart of {role} {node}"), || {
            rack.restart(&format!("{role}-{node}"));
            rack.wait();
        });
    }

    /// Prints how long each one kept clients waiting, and holds it against the bound.
    fn judge(&self, seen: &Seen) {
        for (name, window) in &self.0 {
            let pause = seen.longest(*window).length();
            let took = window.1.duration_since(window.0).unwrap();
            println!(
                "{name}: longest pause {} ms, took {} ms",
                pause.as_millis(),
                took.as_millis()
            );
            assert!(pause < PAUSE_MAX, "{name}: {pause:?}");
        }
        println!("{} writes, {} connections ended", seen.writes, seen.ends);
        assert_eq!(seen.errors, Vec::<String>::new());
    }
}

/// A replica that knew its data, and leases that it had granted, was a member before these were
/// over: all waited for it, a lease each time.
#[test]
fn bug_16_20_replica_with_data_returns_without_a_pause() {
    let mut rack = Units::start("rolling-fsync", "durability = \"fsync\"");
    let mut steps = Steps::default();
    let seen = while_used(&mut rack, CLIENTS, |rack| {
        (1..=3).for_each(|node| steps.restart(rack, "fsync: ", "replica", node));
    });
    steps.judge(&seen);
    assert_eq!(seen.ends, 0);
}

/// The tail waited for what the others were to say of their disks, which they never do where they
/// do not wait for these.
#[test]
fn bug_16_21_durability_is_changed_one_replica_after_the_other() {
    let mut rack = Units::start("rolling-durability", "durability = \"none\"");
    let mut steps = Steps::default();
    let seen = while_used(&mut rack, CLIENTS, |rack| {
        for (from, to) in [("none", "fsync"), ("fsync", "interval"), ("interval", "fsync")] {
            rack.replace(&format!("durability = \"{from}\""), &format!("durability = \"{to}\""));
            for node in 1..=3 {
                steps.restart(rack, &format!("{from} to {to}: "), "replica", node);
                assert_eq!(rack.role("replica", node)["durability"], to);
            }
        }
    });
    steps.judge(&seen);
    assert_eq!(seen.ends, 0);
}

#[test]
fn a_rolling_restart_as_documented_gives_no_client_an_error() {
    let mut rack = Units::start("rolling", "");
    let mut steps = Steps::default();
    let seen = while_used(&mut rack, CLIENTS, |rack| {
        (1..=3).for_each(|node| steps.restart(rack, "", "replica", node));
        rack.append("[[standby]]", "node = 1\n");
        rack.add("standby-1", &["switch", "--standby", "--node", "1"]);
        rack.wait();
        steps.take("restart of the switch", || {
            rack.restart("switch");
            rack.wait();
        });
        steps.take("restart of the controller", || {
            rack.restart("controller");
            rack.wait();
        });
        (1..=2).for_each(|node| steps.restart(rack, "", "gateway", node));
    });
    steps.judge(&seen);
    // All clients are at one gateway, then at the other: each goes over twice at most.
    assert!(seen.ends <= 2 * CLIENTS as u64, "{} connections ended", seen.ends);
}

/// A replica is added and removed for good as documented without an error.
#[test]
fn replica_added_and_removed_as_documented() {
    let mut rack = Units::start("added", "");
    let mut steps = Steps::default();
    let seen = while_used(&mut rack, CLIENTS, |rack| {
        steps.take("a replica is added", || {
            rack.append("[[replica]]", "node = 4\n");
            rack.add("replica-4", &["replica", "--node", "4"]);
            rack.wait();
        });
        until("four members", || rack.members() == [1, 2, 3, 4]);
        steps.take("it is removed for good", || {
            rack.stop("replica-4");
            rack.take_out("[[replica]]");
            rack.wait();
        });
        until("three members", || rack.members() == [1, 2, 3]);
    });
    steps.judge(&seen);
    assert_eq!(seen.ends, 0);
}

/// The replica that has that place now.
fn replica_at(rack: &Units, place: &str) -> u64 {
    let is_there = |node: &u64| rack.role("replica", *node)["place"] == place;
    (1..=3).find(is_there).unwrap_or_else(|| panic!("nobody is {place}"))
}

/// Tells the replica of each place to end, one after the other.
fn each_goes(name: &str, top: &str, places: &[&str]) {
    let mut rack = Units::start(name, top);
    let mut steps = Steps::default();
    let seen = while_used(&mut rack, CLIENTS, |rack| {
        for place in places {
            let node = replica_at(rack, place);
            let unit = format!("replica-{node}");
            let times = |rack: &Units| rack.logged(&unit, "left: the others go on").len();
            let before = times(rack);
            steps.take(&format!("{name}: SIGTERM of the {place}"), || {
                let took = rack.stop(&unit);
                assert!(took < GOES_WITHIN, "{place}: it took {took:?} to go");
                std::thread::sleep(Duration::from_millis(500));
            });
            assert_eq!(times(rack), before + 1, "{place}");
            rack.start_again(&unit);
            rack.wait();
        }
    });
    steps.judge(&seen);
    assert_eq!(seen.ends, 0);
}

#[test]
fn each_replica_of_a_chain_goes_in_order() {
    each_goes("chain", "", &["head", "middle", "tail"]);
}

#[test]
fn each_replica_of_primary_backup_and_of_craq_goes_in_order() {
    each_goes("primary-backup", "protocol = \"primary-backup\"", &["primary", "backup"]);
    let craq = "protocol = \"craq\"\naccel = \"none\"";
    each_goes("craq", craq, &["head", "middle", "tail"]);
}

#[test]
fn each_replica_of_a_quorum_goes_in_order() {
    each_goes("vr", "protocol = \"vr\"", &["leader", "follower"]);
    each_goes("nopaxos", "protocol = \"nopaxos\"", &["leader", "follower"]);
}

/// Whom the controller does not hear it does not take out; it goes all the same.
#[test]
fn retiring_replica_without_a_controller() {
    let mut rack = Units::start("alone", "");
    rack.kill("controller");
    let took = rack.stop("replica-2");
    assert!((Duration::from_millis(700)..GOES_WITHIN).contains(&took), "{took:?}");
    let log = std::fs::read_to_string(rack.run.join("replica-2.log")).unwrap();
    assert!(log.contains("the controller is not reached, or no other replica"), "{log}");
}

/// How far the times of the log and those of a client may be from each other.
const AGREE: Duration = Duration::from_secs(1);

/// Whether a line was logged while clients saw that pause, or at most a second before or after.
#[track_caller]
fn agrees(what: &str, line: &serde_json::Value, pause: Pause) {
    let at = time_of(line);
    let near = |later: SystemTime, earlier: SystemTime| {
        later.duration_since(earlier).map_or(Duration::ZERO, |d| d)
    };
    let off = near(pause.from, at).max(near(at, pause.until));
    println!("{what}: {off:?} outside the client's pause of {:?}", pause.length());
    assert!(off < AGREE, "{what}: {line} and {pause:?}");
}

/// It was stopped, or cut off, and hears of its replacement when it is back.
#[test]
fn bug_16_13_replaced_switch_stands_by() {
    let mut rack = Units::start("replaced", "");
    rack.append("[[standby]]", "node = 1\n");
    rack.add("standby-1", &["switch", "--standby", "--node", "1"]);
    rack.wait();
    rack.pause("switch", || until("takeover", || rack.role("standby", 1)["ready"] == true));
    until("it stands by", || rack.role("switch", 1)["stands_by"] == true);
    rack.wait();
    assert_eq!(rack.role("standby", 1)["stands_by"], false);
}

/// Each has one line in the controller's log, whose time is the client's.
#[test]
fn log_agrees_with_what_clients_see() {
    let mut rack = Units::start("times", "");
    rack.append("[[standby]]", "node = 1\n");
    rack.add("standby-1", &["switch", "--standby", "--node", "1"]);
    rack.wait();
    let mut windows = Vec::new();
    let seen = while_used(&mut rack, CLIENTS, |rack| {
        // Dead, removed, come back, a member again.
        windows.push(timed(|| {
            rack.kill("replica-3");
            until_gone(rack, 3);
            std::thread::sleep(Duration::from_millis(500));
        }));
        rack.start_again("replica-3");
        rack.wait();
        windows.push((SystemTime::now(), SystemTime::now()));
        windows.push(timed(|| {
            rack.kill("switch");
            until("takeover", || rack.role("standby", 1)["ready"] == true);
            std::thread::sleep(Duration::from_millis(500));
        }));
    });
    let one = |message: &str, replica: u64| {
        let lines = rack.logged("controller", message);
        let of: Vec<_> = lines.into_iter().filter(|line| line["replica"] == replica).collect();
        assert!(!of.is_empty(), "{message} {replica}");
        of
    };
    let removed = one("replica removed", 3);
    assert_eq!(removed.len(), 1);
    agrees("removal", &removed[0], seen.longest(windows[0]));
    // A join makes no client wait: its end is when `concord wait` saw it.
    let joined = one("replica is a member", 3);
    let (ready, _) = windows[1];
    agrees("join", joined.last().unwrap(), Pause { from: ready, until: ready });
    let actives = rack.logged("controller", "switch is active");
    assert_eq!(actives.len(), 2);
    agrees("takeover", &actives[1], seen.longest(windows[2]));
    // All that have the data die: nobody is served any more.
    let stopped = SystemTime::now();
    (1..=3).for_each(|node| rack.kill(&format!("replica-{node}")));
    until("PROBLEM", || !rack.logged("controller", "PROBLEM").is_empty());
    let problems = rack.logged("controller", "PROBLEM");
    assert!(problems[0]["problem"].as_str().unwrap().contains("no member that has all the data"));
    // Once they have been silent for `failure_ms`.
    let due = stopped + Duration::from_millis(1_500);
    agrees("PROBLEM", &problems[0], Pause { from: stopped, until: due });
}
