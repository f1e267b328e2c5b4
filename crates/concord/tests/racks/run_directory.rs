//! `concord up` in a run directory that has data already: whatever flags change, the data is
//! served, or one line says which flag does not fit what is there, and nothing was written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::*;

const FSYNC: [&str; 2] = ["--durability", "fsync"];

/// Ends a rack in order.
fn stop(rack: &mut Rack) {
    Rack::signal(rack.up.id(), "-TERM");
    assert!(rack.up.wait().unwrap().success());
}

/// Every file below a directory, but the locks.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if !path.to_string_lossy().contains("lock") && path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            all.insert(path, bytes);
        }
    }
    all
}

/// Each of these is refused in a line that says what to do, and changes nothing.
fn are_refused(run: &Path, rows: &[(&[&str], &[&str])]) {
    let before = files(run);
    for (flags, words) in rows {
        let own = ["up", "--listen", "127.0.0.1:0", "--run-dir", run.to_str().unwrap()];
        let line = refused(&[&own, *flags].concat());
        for word in *words {
            assert!(line.contains(word), "{flags:?}: {word:?} is not in {line}");
        }
        assert!(files(run) == before, "{flags:?} changed a file: {line}");
    }
}

#[test]
fn bug_23_8_up_with_other_flags_serves_or_says_why_not() {
    let mut rack = Rack::start("flags-chain", &FSYNC);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    stop(&mut rack);
    let begun = "was begun with --protocol chain --accel harmonia";
    let rows: [(&[&str], &[&str]); 8] = [
        (&["--durability", "none"], &["data/replica-", "--durability none", "another --run-dir"]),
        (&["--protocol", "primary-backup"], &[begun]),
        (&["--protocol", "raft"], &[begun]),
        (&["--protocol", "craq", "--accel", "none"], &[begun]),
        (&["--accel", "none"], &[begun, "chain and none now"]),
        (&["--engine", "redis"], &["kept with the memory engine", "say --engine memory"]),
        (&["--replicas", "2"], &["replica 3", "say --replicas 3"]),
        (&["--system", "falcon"], &["data of the group store", "say --system store"]),
    ];
    are_refused(&rack.run, &rows);
    // What a rack may change is changed, and the data is served.
    let more: [&[&str]; 4] = [
        &["--durability", "fsync", "--replicas", "4"],
        &["--durability", "interval", "--replicas", "4", "--gateways", "2"],
        &["--durability", "fsync", "--replicas", "4", "--requirepass", "", "--maxmemory", "1gb"],
        &["--durability", "fsync", "--replicas", "4", "--standbys", "1"],
    ];
    for flags in more {
        rack = rack.again("flags-chain", flags);
        until("all replicas", || rack.open_replicas() == 4);
        assert_eq!(rack.client().say("GET k"), "v", "{flags:?}");
        stop(&mut rack);
    }
    // The rack file of before says it no more, and the directories do.
    std::fs::remove_file(rack.run.join("rack.toml")).unwrap();
    for (flags, words) in &rows[..6] {
        are_refused(&rack.run, &[(&[*flags, &["--replicas", "4"]].concat(), words)]);
    }
    let rack = rack.again("flags-chain", more[0]);
    assert_eq!(rack.client().say("GET k"), "v");
}

/// A rack that kept nothing leaves nothing that a later one would take for its own.
#[test]
fn bug_23_8_after_a_rack_without_data_one_with_data_begins() {
    let mut rack = Rack::start("flags-none", &["--durability", "none"]);
    assert_eq!(rack.client().say("SET k before"), "+OK");
    stop(&mut rack);
    let mut rack = rack.again("flags-none", &FSYNC);
    assert_eq!(rack.client().say("GET k"), "$-1");
    assert_eq!(rack.client().say("SET k v"), "+OK");
    stop(&mut rack);
    let rack = rack.again("flags-none", &FSYNC);
    assert_eq!(rack.client().say("GET k"), "v");
}

/// Of two groups one keeps its data, whatever becomes of the other.
#[test]
fn bug_23_8_a_group_without_data_beside_one_with_data() {
    let place = directory("flags-groups-file");
    let file = place.join("two.toml");
    let text =
        "durability = \"none\"\n[[group]]\nname = \"b\"\nnumber = 1\ndurability = \"fsync\"\n";
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let flags = ["--config", &file, "--replicas", "2", "--durability", "none"];
    let mut rack = Rack::start("flags-groups", &flags);
    let other = |rack: &Rack| {
        let mut listen = rack.listen;
        listen.set_port(listen.port() + 1);
        Resp::open(listen)
    };
    assert_eq!(rack.client().say("SET k v"), "+OK");
    assert_eq!(other(&rack).say("SET k v"), "+OK");
    stop(&mut rack);
    let mut rack = rack.again("flags-groups", &flags);
    assert_eq!((rack.client().say("GET k"), other(&rack).say("GET k")), ("$-1".into(), "v".into()));
    stop(&mut rack);
    are_refused(&rack.run, &[(&FSYNC, &["data of the group b", "put its [[group]] back"])]);
}

/// Where a majority decides, a group keeps the replicas that it began with.
#[test]
fn bug_23_8_a_raft_group_keeps_its_replicas() {
    let flags = ["--durability", "fsync", "--protocol", "raft"];
    let mut rack = Rack::start("flags-raft", &flags);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    stop(&mut rack);
    let raft = ["--protocol", "raft"];
    let with = |more: [&'static str; 2]| [raft, more].concat();
    are_refused(
        &rack.run,
        &[
            (&with(["--replicas", "5"]), &["keeps the 3 replicas", "restore it with --replicas 5"]),
            (&with(["--replicas", "1"]), &["say --replicas 3"]),
            (&with(["--accel", "flair"]), &["begun with --protocol raft --accel harmonia"]),
        ],
    );
    let rack = rack.again("flags-raft", &flags);
    assert_eq!(rack.client().say("GET k"), "v");
}

/// A password that clients set counts, whatever `up` is started with: the rack serves, and the
/// gateway says in its log that its own does not count.
#[test]
fn bug_24_13_a_kept_password_counts_and_is_said() {
    let flags = ["--durability", "fsync", "--requirepass", "first"];
    let mut rack = Rack::start("flags-password", &flags);
    let mut client = rack.client();
    assert_eq!(client.say("AUTH first"), "+OK");
    assert_eq!(client.say("SET k v"), "+OK");
    assert_eq!(client.say("CONFIG SET requirepass second"), "+OK");
    stop(&mut rack);
    for more in [&flags[..], &FSYNC] {
        rack = rack.again("flags-password", more);
        let mut client = rack.client();
        assert!(client.say("AUTH first").starts_with("-WRONGPASS"));
        assert_eq!(client.say("AUTH second"), "+OK");
        assert_eq!(client.say("GET k"), "v");
        let log = || std::fs::read_to_string(rack.run.join("gateway-1.log")).unwrap();
        until("line of the gateway", || log().contains("keeps another password"));
        stop(&mut rack);
    }
}
