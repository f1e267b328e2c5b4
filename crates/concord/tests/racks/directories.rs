//! Data directories and their mishaps: they are swapped, put back from yesterday, taken from
//! another rack, lose a file, may not be written. A clear line says so each time; nothing
//! acknowledged is lost, and no answer is wrong. (A disk without room: `full.rs`.)

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::*;

const FLAGS: [&str; 2] = ["--durability", "fsync"];

fn data(rack: &Rack, replica: u64) -> PathBuf {
    rack.run.join(format!("data/replica-{replica}"))
}

/// Copies a directory's files.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// What a role logged.
fn log(rack: &Rack, role: &str) -> String {
    std::fs::read_to_string(rack.run.join(format!("{role}.log"))).unwrap()
}

/// Keys of all rounds up to this one.
fn write(rack: &Rack, round: u64) {
    let mut client = rack.client();
    for n in 0..20 {
        assert_eq!(client.say(&format!("SET key:{round}:{n} {round}.{n}")), "+OK");
        assert_eq!(client.say(&format!("SET latest:{n} {round}")), "+OK");
    }
}

fn check(rack: &Rack, round: u64) {
    // All are members again, and each answers reads.
    let waited = concord(&["wait", "--config", &rack.file()]);
    assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
    let mut client = rack.client();
    for n in 0..20 {
        for round in 0..=round {
            assert_eq!(client.say(&format!("GET key:{round}:{n}")), format!("{round}.{n}"));
        }
        assert_eq!(client.say(&format!("GET latest:{n}")), round.to_string());
    }
}

/// The line of a `concord up` that must fail in that run directory.
fn up_refuses(rack: &Rack) -> String {
    let (run, listen) = (rack.run.display().to_string(), format!("127.0.0.1:{}", free_ports()));
    refused(&[&["up", "--run-dir", &run, "--listen", &listen], &FLAGS[..]].concat())
}

/// Cuts the power, does something to the data, and starts the rack again.
fn meanwhile(name: &str, rack: Rack, more: &[&str], change: impl FnOnce(&Rack)) -> Rack {
    rack.cut_power();
    change(&rack);
    rack.again(name, &[&FLAGS[..], more].concat())
}

fn an_older_one_and_one_that_lacks_a_file(name: &str, more: &[&str]) -> Rack {
    let mut rack = Rack::start(name, &[&FLAGS[..], more].concat());
    let yesterday = directory(&format!("{name}-yesterday"));
    write(&rack, 0);
    rack = meanwhile(name, rack, more, |rack| copy(&data(rack, 2), &yesterday));
    check(&rack, 0);
    write(&rack, 1);
    rack = meanwhile(name, rack, more, |_| {});
    check(&rack, 1);
    write(&rack, 2);
    // Yesterday's directory of the second replica is put back.
    rack = meanwhile(name, rack, more, |rack| copy(&yesterday, &data(rack, 2)));
    check(&rack, 2);
    if more.is_empty() {
        let lines = log(&rack, "controller");
        assert!(lines.contains("an older data directory than it had: was it put back?"), "{lines}");
    }
    write(&rack, 3);
    // The third one lacks a segment.
    rack = meanwhile(name, rack, more, |rack| {
        let names = std::fs::read_dir(data(rack, 3)).unwrap().map(|entry| entry.unwrap().path());
        let mut segments: Vec<PathBuf> =
            names.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
        segments.sort();
        assert!(segments.len() > 2, "{segments:?}");
        std::fs::remove_file(&segments[segments.len() - 2]).unwrap();
    });
    check(&rack, 3);
    let line = log(&rack, "replica-3");
    assert!(line.contains("missing, and later segments are there"), "{line}");
    assert!(line.contains(".damaged-1") && data(&rack, 3).with_extension("damaged-1").exists());
    rack
}

#[test]
fn a_chain_loses_nothing_by_what_happens_to_directories() {
    let name = "directories-chain";
    let rack = an_older_one_and_one_that_lacks_a_file(name, &[]);
    let lines = log(&rack, "controller");
    assert!(lines.contains("another data directory than it had"), "{lines}");
    // Two are swapped: nobody starts, and nothing is changed.
    write(&rack, 4);
    rack.cut_power();
    let swap = || {
        let aside = rack.run.join("data/aside");
        std::fs::rename(data(&rack, 1), &aside).unwrap();
        std::fs::rename(data(&rack, 2), data(&rack, 1)).unwrap();
        std::fs::rename(&aside, data(&rack, 2)).unwrap();
    };
    swap();
    let line = up_refuses(&rack);
    assert!(line.contains("were directories swapped?"), "{line}");
    swap();
    // One may not be written: the replica's own user is not root, who may do all.
    std::fs::set_permissions(rack.file(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut replica = Command::new("setpriv");
    replica.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(CONCORD);
    replica.args(["replica", "--config", &rack.file(), "--node", "1"]);
    replica.arg("--data-dir").arg(data(&rack, 1));
    let output = replica.stdin(Stdio::null()).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    let says = line.contains("Permission denied") && line.contains("replica-1");
    assert!(says && !output.status.success() || line.contains("setpriv"), "{line}");
    let rack = rack.again(name, &FLAGS);
    check(&rack, 4);
}

#[test]
fn vr_loses_nothing_by_what_happens_to_directories() {
    an_older_one_and_one_that_lacks_a_file("directories-vr", &["--protocol", "vr"]);
}

#[test]
fn a_directory_of_another_rack_is_told_and_changes_nothing() {
    let name = "directories-other";
    let (rack, other) = (Rack::start(name, &FLAGS), Rack::start("directories-others", &FLAGS));
    write(&rack, 0);
    assert_eq!(other.client().say("SET latest:0 other"), "+OK");
    let own = directory("directories-other-own");
    rack.cut_power();
    other.cut_power();
    copy(&data(&rack, 2), &own);
    copy(&data(&other, 2), &data(&rack, 2));
    let words = [&["controller"][..], &["switch"]];
    let roles: Vec<Role> = words.into_iter().map(|words| start(&rack, words)).collect();
    let replicas = ["1", "2", "3"].map(|node| start(&rack, &["replica", "--node", node]));
    let config = rack.file();
    let problem = || controller(&config)["problem"].as_str().unwrap_or("").to_string();
    until("line of the controller", || problem().contains("is of another rack"));
    // All were down, and what the second one had may be newer.
    let epoch = controller(&config)["epoch"].clone();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(controller(&config)["epoch"], epoch);
    drop((roles, replicas));
    copy(&own, &data(&rack, 2));
    let rack = rack.again(name, &FLAGS);
    check(&rack, 0);
}

/// The host of the controller and of the first replica was put back to yesterday, and comes back
/// before the others: it does not go on alone with yesterday's data, and the others' word stops it.
#[test]
fn t4_yesterdays_host_alone_does_not_go_on_where_all_were_down() {
    let name = "directories-host";
    let rack = Rack::start(name, &FLAGS);
    let yesterday = directory("directories-host-yesterday");
    let state = yesterday.join("controller.state");
    write(&rack, 0);
    let rack = meanwhile(name, rack, &[], |rack| {
        copy(&data(rack, 1), &yesterday);
        std::fs::copy(rack.run.join("controller.state"), &state).unwrap();
    });
    write(&rack, 1);
    asks_for_the_others(&rack, &yesterday, &["1"], &["2", "3"]);
}

/// The third replica was away when the others wrote on, and comes back first, beside yesterday's
/// host: what the second has, whom they wait for, is the only good copy.
#[test]
fn t4_yesterdays_host_beside_one_more_does_not_go_on() {
    let name = "directories-two";
    let rack = Rack::start(name, &FLAGS);
    let yesterday = directory("directories-two-yesterday");
    write(&rack, 0);
    check(&rack, 0);
    copy(&data(&rack, 1), &yesterday);
    std::fs::copy(rack.run.join("controller.state"), yesterday.join("controller.state")).unwrap();
    Rack::signal(rack.pid("replica-3"), "-STOP");
    until("epoch without the third", || {
        controller(&rack.file())["members"] == serde_json::json!([1, 2])
    });
    write(&rack, 1);
    asks_for_the_others(&rack, &yesterday, &["1", "3"], &["2"]);
}

/// What `concord status` shows of a rack's controller.
fn controller(config: &str) -> serde_json::Value {
    let output = concord(&["status", "--json", "--interval-ms", "10", "--config", config]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut roles = status["roles"].as_array().unwrap().iter();
    roles.find(|role| role["role"] == "controller").unwrap()["status"].clone()
}

/// The power of all goes. The host of the controller and of replica 1 is put back to yesterday, and
/// these replicas come first; then the others.
fn asks_for_the_others(rack: &Rack, yesterday: &Path, first: &[&str], others: &[&str]) {
    rack.cut_power();
    let state = yesterday.join("controller.state");
    std::fs::copy(&state, rack.run.join("controller.state")).unwrap();
    std::fs::remove_file(&state).unwrap();
    copy(yesterday, &data(rack, 1));
    let config = rack.file();
    let replica = |node: &&str| start(rack, &["replica", "--node", node]);
    let _alone = [start(rack, &["controller"]), start(rack, &["switch"])];
    let _first: Vec<Role> = first.iter().map(replica).collect();
    let problem = || controller(&config)["problem"].as_str().unwrap_or("").to_string();
    until("line that asks for the others", || {
        problem().contains("start replica 2, or, if it is gone for good")
    });
    let _others: Vec<Role> = others.iter().map(replica).collect();
    until("line that the state is old", || problem().contains("nodes have heard of epoch"));
}

/// Starts a role of a rack, without the others.
fn start(rack: &Rack, words: &[&str]) -> Role {
    let mut role = Command::new(CONCORD);
    role.arg(words[0]).args(["--config", &rack.file()]).args(&words[1..]);
    if words[0] == "replica" {
        role.arg("--data-dir").arg(data(rack, words[2].parse().unwrap()));
    }
    let name = format!("{}.log", words.join("-").replace("---node", ""));
    let log = std::fs::File::options().append(true).create(true).open(rack.run.join(name)).unwrap();
    Role(role.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
}

/// A process that ends with the test.
struct Role(std::process::Child);

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
