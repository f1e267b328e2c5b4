//! Several groups of one rack over real processes: two stores and a group of workers share
//! controller and switch.

use std::net::SocketAddr;

use crate::common::*;

const GROUPS: &str = "\
[queue]
slots = 4096
capacity = 4096
[[group]]
name = \"sessions\"
number = 1
protocol = \"primary-backup\"
[[group]]
name = \"tasks\"
number = 7
kind = \"workers\"
";
/// What the role says of each group, in the order of the rack file.
fn groups<'a>(status: &'a serde_json::Value, role: &str, list: &str) -> Vec<&'a serde_json::Value> {
    let own = status["roles"].as_array().unwrap().iter().find(|r| r["role"] == role).unwrap();
    own["status"][list].as_array().unwrap().iter().collect()
}

fn epochs(status: &serde_json::Value) -> Vec<u64> {
    groups(status, "controller", "groups").iter().map(|g| g["epoch"].as_u64().unwrap()).collect()
}

/// Groups of two kinds share controller and switch and one loses a member.
#[test]
fn two_kinds_of_groups_share_a_rack() {
    let directory = directory("groups-file");
    let file = directory.join("groups.toml");
    std::fs::write(&file, GROUPS).unwrap();
    let rack = Rack::start("groups", &["--config", file.to_str().unwrap(), "--replicas", "3"]);

    // Two stores, each behind a gateway of its own.
    let mut store = rack.client();
    let mut sessions = Resp::open(SocketAddr::new(rack.listen.ip(), rack.listen.port() + 1));
    assert_eq!(store.say("SET k store"), "+OK");
    assert_eq!(sessions.say("GET k"), "$-1");
    assert_eq!(sessions.say("SET k sessions"), "+OK");
    assert_eq!((store.say("GET k"), sessions.say("GET k")), ("store".into(), "sessions".into()));
    assert!(sessions.say("INFO concord").contains("protocol:primary-backup"));

    // Workers come, and the switch has a program for them, too.
    until("workers in their places", || {
        let status = rack.status();
        let members =
            groups(&status, "controller", "groups")[2]["members"].as_array().unwrap().len();
        members == 2 && groups(&status, "switch", "programs").len() == 3
    });
    let status = rack.status();
    let programs = groups(&status, "switch", "programs");
    let told = |name: &str| programs.iter().map(|p| p[name].clone()).collect::<Vec<_>>();
    assert_eq!(told("name"), ["store", "sessions", "tasks"]);
    assert_eq!(told("program"), ["harmonia", "harmonia", "falcon"]);
    let before = epochs(&status);

    // A worker is gone: the stores hear nothing of it.
    Rack::signal(rack.pid("tasks-worker-2"), "-KILL");
    let mut after_worker = before.clone();
    until("a worker's end", || {
        after_worker = epochs(&rack.status());
        after_worker[2] > before[2]
    });
    assert_eq!(after_worker[..2], before[..2], "the stores' epochs stay");
    assert!(after_worker[2] > before[2]);

    // A replica of the second store is killed: neither the first store nor the workers hear of it.
    Rack::signal(rack.pid("sessions-replica-3"), "-KILL");
    let mut now = after_worker.clone();
    until("the end of a replica", || {
        now = epochs(&rack.status());
        now[1] > after_worker[1]
    });
    assert_eq!((now[0], now[2]), (after_worker[0], after_worker[2]));
    assert_eq!(sessions.say("SET k again"), "+OK");
    assert_eq!((store.say("GET k"), sessions.say("GET k")), ("store".into(), "again".into()));
    let status = concord(&["status", "--config", &rack.file()]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(
        !status.status.success() && text.contains("sessions replica 3 is not a member"),
        "{text}"
    );
    assert!(text.contains("sessions: primary-backup, harmonia, memory engine"), "{text}");
}

#[test]
fn a_replica_is_started_again_by_the_name_of_its_group() {
    let directory = directory("named-file");
    let file = directory.join("groups.toml");
    std::fs::write(&file, "[[group]]\nname = \"b\"\nnumber = 1\n").unwrap();
    let rack = Rack::start("named", &["--config", file.to_str().unwrap(), "--replicas", "1"]);
    let line = refused(&["replica", "--config", &rack.file(), "--node", "1"]);
    let which = "which replica? Say --group with one of store, b";
    assert_eq!(line, format!("concord: {}: {which}", rack.file()));
    let line = refused(&["replica", "--config", &rack.file(), "--node", "4"]);
    assert!(line.contains("--group with one of store, b"), "{line}");
    Rack::signal(rack.pid("b-replica-2"), "-KILL");
    until("the end of a replica", || epochs(&rack.status())[1] > 1);
    // Node 2 is in one group alone: its name is not needed.
    let mut own = std::process::Command::new(CONCORD)
        .args(["replica", "--config", &rack.file(), "--node", "2"])
        .spawn()
        .unwrap();
    let done = concord(&["wait", "--config", &rack.file(), "--timeout", "20"]);
    let _ = own.kill();
    let _ = own.wait();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
