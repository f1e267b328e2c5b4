//! The exit statuses of docs/operate/operations.md: each row and column of the table is tried, here
//! or where a list says.

use std::collections::BTreeSet;
use std::net::TcpListener;

use crate::common::pages::{page, quoted, table};
use crate::common::{Rack, concord, directory, until};

/// What ends with which status, without a rack. `DEAD` is an address where nobody listens, `DIR` an
/// empty directory.
const WITHOUT_RACK: [(&str, i32); 26] = [
    ("sim --protocol chain --seeds 1 --first-seed 1", 0),
    ("sim --plan DIR/none.toml", 2),
    ("fuzz --protocol vr --seeds 1 --first-seed 1", 0),
    ("fuzz --seeds none", 2),
    ("check DIR/right.jsonl", 0),
    ("check DIR/wrong.jsonl", 1),
    ("check DIR/none.jsonl", 2),
    ("check DIR/empty.jsonl", 3),
    ("torture --target DEAD --timeout 1 --ops 10", 2),
    ("torture --target DEAD --timeout 1 --accounts 10", 2),
    ("torture --target DEAD --timeout 1 --queues 2", 2),
    ("status --config DIR/none.toml", 1),
    ("wait --config DIR/none.toml", 1),
    ("voters --config DIR/none.toml", 1),
    ("explain --config DIR/none.toml GET k", 1),
    ("log inspect DIR/none", 1),
    ("log", 2),
    ("backup --config DIR/none.toml DIR/backup", 1),
    ("restore DIR/none --config DIR/none.toml", 1),
    ("job --config DIR/none.toml ls", 1),
    ("net DIR/net.toml --out DIR", 0),
    ("net DIR/none.toml", 1),
    ("up --config DIR/none.toml", 1),
    ("replica --config DIR/none.toml --node 1", 1),
    ("--version", 0),
    ("status --no-such-flag", 2),
];
/// The same of roles: one line says what is missing.
const ROLES: [&str; 5] = ["switch", "gateway", "controller", "worker", "owner"];

/// With a rack that serves: `FILE` is its rack file, `LISTEN` where its gateway does, `DATA` a
/// directory of its data.
const WITH_RACK: [(&str, i32); 15] = [
    ("wait --config FILE", 0),
    ("status --config FILE", 0),
    ("explain --config FILE GET k", 0),
    ("explain --config FILE --password wrong GET k", 1),
    ("explain --config FILE --user ann --password pw GET k", 0),
    ("explain --config FILE --user ann --password pw SET k w", 1),
    ("voters --config FILE", 0),
    ("voters --config FILE --add 9", 1),
    ("log inspect DATA", 0),
    ("backup --config FILE DIR/backup", 0),
    ("backup --config FILE DIR/backup", 1),
    ("backup --verify DIR/backup", 0),
    ("restore DIR/backup --run-dir DIR/restored", 0),
    ("restore DIR/backup --run-dir DIR/restored", 1),
    ("torture --target LISTEN --ops 4000 --keys 50", 0),
];

/// Statuses that other tests try, or none can in a short time.
const ELSEWHERE: [(&str, i32, &str); 11] = [
    ("sim", 1, "a seed that is wrong: make mutants removes guards"),
    ("fuzz", 1, "the same"),
    ("torture", 1, "crates/concord/tests/racks/torture.rs"),
    ("torture", 3, "crates/concord/tests/racks/torture.rs"),
    ("bench", 0, "takes a minute"),
    ("bench", 1, "needs a redis-server that does not start"),
    ("reproduce", 0, "takes a minute"),
    ("reproduce", 1, "needs a disk that is full"),
    ("switch", 0, "below: every role of a rack that is ended by a signal"),
    ("worker", 0, "the same"),
    ("owner", 0, "the same"),
];

const RIGHT: &str = r#"{"client":1,"call":1,"return":2,"cmd":["SET","k","v"],"reply":{"kind":"ok"}}
{"client":1,"call":3,"return":4,"cmd":["GET","k"],"reply":{"kind":"bulk","value":"v"}}
"#;

const NET: &str = "[topology]\nkind = \"dumbbell\"\npairs = 1\nhost_gbps = 1\nbetween_gbps = 1\n\
                   propagation_ns = 1\n[workload]\nkind = \"permutation\"\nbytes = 1000\n\
                   [run]\ntransports = [\"newreno\"]\n";

/// Tries a command; a line if its status is another one.
fn tried(line: &str, status: i32, names: &[(&str, &str)]) -> Option<String> {
    let put = |word: &str| {
        names.iter().fold(word.to_string(), |word, (name, value)| word.replace(name, value))
    };
    let args: Vec<String> = line.split(' ').map(put).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = concord(&args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() != Some(status) {
        return Some(format!("{line}: {}, not {status}: {said}", output.status));
    }
    // A person reads it.
    let is_one_line = status != 1 || said.is_empty() || said.trim_end().lines().count() == 1;
    (!is_one_line).then(|| format!("{line}: more than a line: {said}"))
}

/// Whoever runs a check in a script tells "wrong" (1) from "nothing was shown" (2): a target where
/// nobody listens, or a file that is not there, is no violation.
#[test]
fn bug_24_12_exit_statuses_are_the_documented_ones() {
    let dir = directory("exits");
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    write("right.jsonl", RIGHT);
    write("wrong.jsonl", &RIGHT.replace("\"value\":\"v\"", "\"value\":\"w\""));
    write("empty.jsonl", "");
    write("net.toml", NET);
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let path = dir.display().to_string();
    let names = [("DIR", path.as_str()), ("DEAD", dead.as_str())];
    let rows = WITHOUT_RACK.iter().map(|(line, status)| (line.to_string(), *status));
    let roles = ROLES.iter().map(|role| (format!("{role} --config DIR/none.toml"), 1));
    let differ: Vec<String> =
        rows.chain(roles).filter_map(|(line, status)| tried(&line, status, &names)).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

/// The same of a rack that serves, and of its roles once they are told to end.
#[test]
fn docs_exit_statuses_of_a_rack_that_serves() {
    let dir = directory("exits-rack");
    let mut rack = Rack::start("exits-raft", &["--durability", "fsync", "--protocol", "raft"]);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    assert_eq!(rack.client().say("ACL SETUSER ann on >pw ~* +get +concord|explain"), "+OK");
    let (path, file, at) = (dir.display().to_string(), rack.file(), rack.listen.to_string());
    let data = rack.run.join("data/replica-1").display().to_string();
    let names = [("DIR", &*path), ("FILE", &*file), ("LISTEN", &*at), ("DATA", &*data)];
    let differ: Vec<String> =
        WITH_RACK.iter().filter_map(|(line, status)| tried(line, *status, &names)).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    // A replica is gone.
    Rack::signal(rack.pid("replica-3"), "-9");
    for line in ["status --config FILE", "wait --timeout 1 --config FILE"] {
        assert_eq!(tried(line, 1, &names), None);
    }
    Rack::signal(rack.up.id(), "-TERM");
    assert_eq!(rack.up.wait().unwrap().code(), Some(0), "up");
}

/// Jobs, at a rack of workers.
#[test]
fn docs_exit_statuses_of_jobs() {
    let mut rack = Rack::start("exits-falcon", &["--system", "falcon"]);
    let file = rack.file();
    let names = [("FILE", &*file)];
    let rows = [
        ("submit --config FILE --array 0-9 --no-op --wait", 0),
        ("submit --config FILE --wait -- true", 0),
        ("submit --config FILE --wait -- false", 1),
        ("submit --config FILE --array 0-1 --wait -- false", 1),
        ("job --config FILE ls", 0),
        ("job --config FILE show 77", 1),
        ("explain --config FILE 77.1", 1),
    ];
    let differ: Vec<String> =
        rows.iter().filter_map(|(line, status)| tried(line, *status, &names)).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    Rack::signal(rack.up.id(), "-TERM");
    assert_eq!(rack.up.wait().unwrap().code(), Some(0), "up");
}

/// Roles that `up` started leave SIGINT and SIGHUP to it, which a terminal sends to all of them at
/// once; SIGTERM ends one. A role that was started by hand ends in order at each of the three.
#[test]
fn bug_24_8_signals_end_roles_as_documented() {
    let mut rack = Rack::start("exits-signals", &["--durability", "fsync"]);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    for (name, pid) in rack.pids() {
        Rack::signal(pid, "-INT");
        Rack::signal(pid, "-HUP");
        assert!(crate::common::is_alive(pid), "{name}");
    }
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(rack.pids().iter().all(|(_, pid)| crate::common::is_alive(*pid)));
    assert_eq!(rack.client().say("GET k"), "v");
    let log = |rack: &Rack| std::fs::read_to_string(rack.run.join("replica-3.log")).unwrap();
    let pid = rack.pid("replica-3");
    Rack::signal(pid, "-TERM");
    until("end of the replica", || !crate::common::is_alive(pid));
    assert!(log(&rack).contains("left: the others go on"), "{}", log(&rack));
    for signal in ["-TERM", "-INT", "-HUP"] {
        let mut own = std::process::Command::new(crate::common::CONCORD)
            .args(["replica", "--node", "3", "--config", &rack.file()])
            .stdin(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        until("three members", || rack.members().len() == 3);
        if signal == "-HUP" && is_hangup_ignored() {
            let _ = own.kill();
        } else {
            Rack::signal(own.id(), signal);
        }
        let status = own.wait().unwrap();
        assert!(status.code().is_none_or(|code| code == 0), "{signal}: {status}");
        until("two members", || rack.members().len() == 2);
    }
    Rack::signal(rack.up.id(), "-TERM");
    assert!(rack.up.wait().unwrap().success());
}

/// What this process ignores its children do.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(ignored, 16).unwrap() & 1 == 1
}

#[test]
fn docs_exit_statuses_are_all_tried() {
    let mut known: BTreeSet<(String, i32)> = BTreeSet::new();
    let lines = WITHOUT_RACK.iter().chain(&WITH_RACK).map(|(line, status)| (*line, *status));
    known.extend(lines.map(|(line, status)| (line.split(' ').next().unwrap().into(), status)));
    known.extend(ROLES.iter().map(|role| (role.to_string(), 1)));
    known.extend(ELSEWHERE.iter().map(|(name, status, _)| (name.to_string(), *status)));
    // Those that the functions above try one by one.
    for (name, status) in [
        ("submit", 0),
        ("submit", 1),
        ("job", 0),
        ("status", 1),
        ("up", 0),
        ("replica", 0),
        ("gateway", 0),
        ("controller", 0),
    ] {
        known.insert((name.to_string(), status));
    }
    let mut missing = Vec::new();
    for row in table(&page("operate/operations.md"), "### Exit statuses") {
        let names = quoted(&row[0]);
        for (status, cell) in (0..).zip(&row[1..]) {
            let is_said = !cell.trim().trim_matches('|').is_empty();
            for name in names.iter().filter(|_| is_said) {
                let command = name.split(' ').next().unwrap().to_string();
                if !known.contains(&(command.clone(), status)) {
                    missing.push(format!("{command} with {status}: {cell}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "no test tries {}", missing.join("; "));
}
