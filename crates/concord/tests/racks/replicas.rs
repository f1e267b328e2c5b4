//! A replica is added and removed as docs/operate/operations.md says, under each protocol: it is
//! done, or a line says why it is not and what to do.

use crate::common::units::*;
use crate::common::{concord, refused, until};

/// Takes the entry of a replica out of the rack file.
fn take_out(rack: &Units, node: u64) {
    let text = std::fs::read_to_string(rack.file()).unwrap();
    let from = text.find(&format!("[[replica]]\nnode = {node}\n")).unwrap();
    let upto = text[from + 1..].find("\n[[").map_or(text.len(), |at| from + 1 + at);
    std::fs::write(rack.file(), [&text[..from], &text[upto..]].concat()).unwrap();
}

fn wait_fails(rack: &Units, timeout: &str) -> String {
    refused(&["wait", "--timeout", timeout, "--config", &rack.file()])
}

/// A replica is added, and removed for good: `concord wait` ends with 0 once that is so.
fn joins_and_goes(name: &str, top: &str) {
    let mut rack = Units::start(name, top);
    rack.append("[[replica]]", "node = 4\n");
    rack.add("replica-4", &["replica", "--node", "4"]);
    rack.wait();
    assert_eq!(rack.members(), [1, 2, 3, 4]);
    // It is not gone because the file does not have it.
    let text = std::fs::read_to_string(rack.file()).unwrap();
    rack.take_out("[[replica]]");
    let line = wait_fails(&rack, "1");
    assert!(line.contains("replica 4 is a member, and the rack file does not have it"), "{line}");
    std::fs::write(rack.file(), text).unwrap();
    rack.stop("replica-4");
    rack.take_out("[[replica]]");
    rack.wait();
    assert_eq!(rack.members(), [1, 2, 3]);
    // One of the first is removed like any other.
    rack.stop("replica-1");
    take_out(&rack, 1);
    rack.wait();
    assert_eq!(rack.members(), [2, 3]);
}

/// Nobody joins: `concord wait` says so at once, with what to do, and so do the logs.
fn stays_outside(name: &str, protocol: &str) -> Units {
    let mut rack = Units::start(name, &format!("protocol = \"{protocol}\""));
    rack.append("[[replica]]", "node = 4\n");
    rack.add("replica-4", &["replica", "--node", "4"]);
    until("line of the controller", || rack.log("controller").contains("replica stays outside"));
    let line = wait_fails(&rack, "60");
    let words = format!("a {protocol} group keeps the replicas that it began with (1 2 3)");
    assert!(line.contains("replica 4 is not a member, and will not be one"), "{line}");
    assert!(line.contains(&words) && line.contains("begins with a backup"), "{line}");
    until("line of the replica", || {
        rack.log("replica-4").contains("keeps the replicas that it began with")
    });
    rack.stop("replica-4");
    rack.take_out("[[replica]]");
    rack.wait();
    rack
}

#[test]
fn bug_24_3_a_replica_of_a_chain_joins_and_goes() {
    joins_and_goes("joins-chain", "");
}

#[test]
fn bug_24_3_a_replica_of_primary_backup_joins_and_goes() {
    joins_and_goes("joins-primary", "protocol = \"primary-backup\"");
}

#[test]
fn bug_24_3_a_replica_of_craq_joins_and_goes() {
    joins_and_goes("joins-craq", "protocol = \"craq\"\naccel = \"none\"");
}

/// VR and NOPaxos: a member stays one, whatever the file says.
fn stays_inside(name: &str, protocol: &str) {
    let mut rack = stays_outside(name, protocol);
    rack.stop("replica-3");
    take_out(&rack, 3);
    let line = wait_fails(&rack, "60");
    assert!(line.contains("replica 3 is a member, and the rack file does not have it"), "{line}");
    assert!(line.contains(&format!("a {protocol} group keeps")), "{line}");
}

#[test]
fn bug_24_3_a_vr_group_says_that_it_keeps_its_replicas() {
    stays_inside("keeps-vr", "vr");
}

#[test]
fn bug_24_3_a_nopaxos_group_says_that_it_keeps_its_replicas() {
    stays_inside("keeps-nopaxos", "nopaxos");
}

/// Raft: whoever does not vote is removed for good.
#[test]
fn bug_24_3_a_raft_replica_without_a_vote_is_removed() {
    let mut rack = stays_outside("keeps-raft", "raft");
    let text = std::fs::read_to_string(rack.file()).unwrap();
    rack.stop("replica-3");
    take_out(&rack, 3);
    let line = wait_fails(&rack, "2");
    assert!(line.contains("replica 3 votes, and the rack file does not have it"), "{line}");
    assert!(line.contains("`concord voters --remove 3`"), "{line}");
    std::fs::write(rack.file(), text).unwrap();
    let done = concord(&["voters", "--config", &rack.file(), "--timeout", "30", "--remove", "3"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    take_out(&rack, 3);
    rack.wait();
}
