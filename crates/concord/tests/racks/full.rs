//! A disk without room, over real processes: writes are refused with an error of its own, reads are
//! served, and with room again all goes on. The disk is a small tmpfs, which a test mounts and
//! unmounts: where that is not possible it says so, and shows nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::*;

/// A file system of its own, for a replica's data or a rack's, and what is removed after it.
struct Small(PathBuf, PathBuf);

impl Small {
    fn mount(at: PathBuf, run: &Path, mib: u64) -> Option<Small> {
        std::fs::create_dir_all(&at).unwrap();
        let size = format!("size={mib}m");
        let mut mount = Command::new("mount");
        let made = mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(&at).output();
        made.is_ok_and(|output| output.status.success()).then_some(Small(at, run.to_path_buf()))
    }

    /// And what has become free since.
    fn fill_rest(&self) {
        use std::io::Write as _;
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).append(true).open(self.other()).unwrap();
        while file.write_all(&[7; 4_096]).is_ok() {}
    }

    /// Something else takes what is free.
    fn fill(&self) {
        let written = std::fs::write(self.other(), vec![7; 256 << 20]);
        assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }

    fn other(&self) -> PathBuf {
        self.0.join("of-somebody-else")
    }

    fn make_room(&self) {
        std::fs::remove_file(self.other()).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        // The run directory could not be removed before.
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

fn run_dir(name: &str, nodes: &[u16], mib: u64) -> Option<(Directory, Vec<Small>)> {
    let run = directory(name);
    let at = |node: &u16| Path::new(&*run).join(format!("data/replica-{node}"));
    let small: Option<Vec<Small>> =
        nodes.iter().map(|node| Small::mount(at(node), &run, mib)).collect();
    if small.is_none() {
        println!("{name}: a tmpfs cannot be mounted here, so that nothing is shown");
    }
    Some((run, small?))
}

/// The disks of these replicas have no room for a while.
fn refuse_and_recover(name: &str, nodes: &[u16], more: &[&str]) {
    let Some((run, small)) = run_dir(name, nodes, 64) else { return };
    let flags = [&["--durability", "fsync"], more].concat();
    let rack = Rack::start_at(run, &flags);
    let mut client = rack.client();
    let value = "x".repeat(100_000);
    for n in 0..20 {
        assert_eq!(client.say(&format!("SET before:{n} {n}")), "+OK");
    }
    for round in 0..2 {
        small.iter().for_each(Small::fill);
        let mut refused = String::new();
        until("a refusal", || {
            refused = client.say(&format!("SET k:{round} {value}"));
            refused != "+OK"
        });
        assert!(refused.starts_with("-DISKFULL the disk of a replica has no room"), "{refused}");
        // All that comes is refused, and takes next to nothing; reads are served.
        for n in 0..300 {
            let said = client.say(&format!("INCR refused:{n}"));
            assert!(said.starts_with("-DISKFULL"), "{said}");
            assert_eq!(client.say(&format!("GET before:{}", n % 20)), (n % 20).to_string());
        }
        assert_eq!(client.say("EXISTS refused:1"), ":0");
        let status = concord(&["status", "--config", &rack.file()]);
        let text = String::from_utf8(status.stdout).unwrap();
        assert!(
            text.contains(&format!("PROBLEM: replica {}: its disk has no room", nodes[0])),
            "{text}"
        );
        assert!(!text.contains("is not a member"), "{text}");
        small.iter().for_each(Small::make_room);
        until("a write", || client.say(&format!("SET after:{round} {round}")) == "+OK");
        for n in 0..50 {
            assert_eq!(client.say(&format!("SET k:{n} {value}")), "+OK");
        }
    }
    drop(client);
    rack.cut_power();
    let rack = rack.again(name, &flags);
    let mut client = rack.client();
    for n in 0..20 {
        assert_eq!(client.say(&format!("GET before:{n}")), n.to_string());
    }
    assert_eq!(
        (client.say("GET after:1"), client.say("EXISTS refused:1")),
        ("1".into(), ":0".into())
    );
    drop(rack);
    drop(small);
}

#[test]
fn t14_a_chain_refuses_writes_while_its_head_has_no_room() {
    refuse_and_recover("full-head", &[1], &[]);
}

#[test]
fn t14_a_chain_refuses_writes_while_its_tail_has_no_room() {
    refuse_and_recover("full-tail", &[3], &[]);
}

#[test]
fn t14_primary_backup_refuses_writes_while_a_backup_has_no_room() {
    refuse_and_recover("full-backup", &[2], &["--protocol", "primary-backup"]);
}

#[test]
fn t14_craq_refuses_writes_while_its_tail_has_no_room() {
    refuse_and_recover("full-craq", &[3], &["--protocol", "craq", "--accel", "none"]);
}

#[test]
fn t14_vr_refuses_writes_while_a_majority_has_no_room() {
    refuse_and_recover("full-vr", &[1, 2, 3], &["--protocol", "vr"]);
}

#[test]
fn t14_nopaxos_refuses_writes_while_a_majority_has_no_room() {
    refuse_and_recover("full-nopaxos", &[1, 2, 3], &["--protocol", "nopaxos"]);
}

/// Writes come so fast that the disk is full before anybody has looked: what was held back is used.
#[test]
fn t14_a_disk_that_is_full_at_once_has_room_for_what_it_refuses() {
    let Some((run, small)) = run_dir("full-at-once", &[2], 24) else { return };
    let rack = Rack::start_at(run, &["--durability", "fsync"]);
    let mut client = rack.client();
    let value = vec![b'x'; 200_000];
    let refused = (0..300).find(|n| {
        let (line, _) = client.call(&[b"SET", format!("k{n}").as_bytes(), &value]).unwrap();
        line != "+OK"
    });
    assert!(refused.is_some_and(|n| n > 20), "{refused:?}");
    std::thread::sleep(Duration::from_millis(500));
    assert!(client.say("SET small 1").starts_with("-DISKFULL"));
    assert_eq!(client.say("STRLEN k1"), ":200000");
    // There is no room until somebody makes some.
    Command::new("mount").args(["-o", "remount,size=96m"]).arg(&small[0].0).status().unwrap();
    until("a write", || client.say("SET small 1") == "+OK");
    assert_eq!(client.call(&[b"SET", b"large", &value]).unwrap().0, "+OK");
}

/// The controller ended when its disk was full at the next epoch, and stayed away; `up` ended the
/// rack as soon as a role died. The controller acts with what it held back; without that it changes
/// nothing, says so, and goes on once there is room.
#[test]
fn bug_22_130_rack_on_a_full_disk_goes_on() {
    let run = directory("full-rack");
    let Some(small) = Small::mount(run.to_path_buf(), &run, 160) else {
        return println!("a tmpfs cannot be mounted here, so that nothing is shown");
    };
    let mut rack = Rack::start_at(run, &["--durability", "fsync"]);
    let mut client = rack.client();
    let controller = rack.pid("controller");
    for n in 0..20 {
        assert_eq!(client.say(&format!("SET before:{n} {n}")), "+OK");
    }
    let pids = rack.pids();
    let pid = |name: &str| pids.iter().find(|(n, _)| n == name).unwrap().1;
    let problem = |rack: &Rack, text: &str| {
        let status = concord(&["status", "--config", &rack.file()]);
        String::from_utf8(status.stdout).unwrap().contains(text)
    };
    small.fill();
    until("word of the controller's disk", || {
        problem(&rack, "PROBLEM: controller: the disk of its state has no room")
    });
    Rack::signal(pid("replica-3"), "-9");
    until("an epoch without replica 3", || rack.members() == [1, 2]);
    // What the controller held back is taken as well.
    let reserve = rack.run.join("controller.state.reserve");
    until("a disk without a byte left", || {
        let _ = std::fs::remove_file(&reserve);
        small.fill_rest();
        !reserve.exists()
    });
    Rack::signal(pid("replica-2"), "-9");
    until("a PROBLEM", || problem(&rack, "PROBLEM: the disk of the controller's state is full"));
    assert_eq!(rack.members(), [1, 2]);
    assert!(is_alive(controller) && rack.up.try_wait().unwrap().is_none());
    small.make_room();
    until("an epoch without replica 2", || rack.members() == [1]);
    until("a write", || client.say("SET after 1") == "+OK");
    assert_eq!(client.say("GET before:7"), "7");
    until("an end of the PROBLEM", || !problem(&rack, "the disk of"));
    assert!(is_alive(controller) && rack.up.try_wait().unwrap().is_none());
    // Whoever runs is written down again.
    until("a list of who runs", || rack.pids().iter().all(|(name, _)| name != "replica-2"));
    drop(client);
    drop(rack);
    drop(small);
}

/// Writes go on though the disk of one of three hangs for ever; a PROBLEM and its log say so.
fn goes_on_beside_a_hung_disk(name: &str, more: &[&str], hangs: impl Fn(&Rack) -> u64) {
    let (run, dir) = (directory(name), directory(&format!("{name}-hangs")));
    let hang = dir.to_str().unwrap();
    let flags = [&["--durability", "fsync", "--fault-disk-hang", hang], more].concat();
    let rack = Rack::start_at(run, &flags);
    let mut client = rack.client();
    assert_eq!(client.say("SET before 1"), "+OK");
    let node = hangs(&rack);
    std::fs::write(dir.join(format!("replica-{node}")), "").unwrap();
    let problem = format!("PROBLEM: replica {node}: its disk has not answered for");
    let mut was_said = false;
    // No write is acknowledged while the disk is waited for: each attempt ends with an error.
    until("a write", || {
        let written = client.say("SET after 1") == "+OK";
        let status = concord(&["status", "--config", &rack.file()]);
        was_said |= String::from_utf8(status.stdout).unwrap().contains(&problem);
        written && was_said
    });
    assert_eq!(client.say("GET before"), "1");
    let log = || std::fs::read_to_string(rack.run.join(format!("replica-{node}.log"))).unwrap();
    assert!(log().contains("the disk has not answered for a second"), "{}", log());
    if more.is_empty() {
        until("an epoch without it", || !rack.members().contains(&node));
        assert!(log().contains("the disk does not answer: the replica leaves"), "{}", log());
    } else {
        until("another leader", || hangs(&rack) != node);
    }
    std::fs::remove_file(dir.join(format!("replica-{node}"))).unwrap();
    if more.is_empty() {
        // Once its disk answers it copies what it missed.
        until("an epoch with it", || rack.members().contains(&node));
        assert_eq!(client.say("SET again 1"), "+OK");
    }
}

#[test]
fn bug_22_5_a_chain_goes_on_beside_a_hung_disk() {
    goes_on_beside_a_hung_disk("hung-chain", &[], |_| 1);
}

#[test]
fn bug_22_5_raft_goes_on_beside_its_leaders_hung_disk() {
    let leads = |rack: &Rack| {
        let is_leader = |node: &u64| rack.role("replica", *node)["place"] == "leader";
        let mut leader = None;
        until("a leader", || {
            leader = (1..=3).find(is_leader);
            leader.is_some()
        });
        leader.unwrap()
    };
    goes_on_beside_a_hung_disk("hung-raft", &["--protocol", "raft", "--accel", "none"], leads);
}
