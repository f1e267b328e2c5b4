//! `concord voters`: an operator changes which members of a Raft group vote, under load.

use std::time::Duration;

use crate::common::units::*;
use crate::common::{concord, refused, until};

/// `concord voters` with these.
fn voters(rack: &Units, more: &[&str]) -> String {
    let file = rack.file();
    let out = concord(&[&["voters", "--config", &file, "--timeout", "30"], more].concat());
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{more:?}: {why}");
    String::from_utf8(out.stdout).unwrap()
}

/// Who leads, and who votes.
fn who(text: &str) -> (u64, Vec<u64>) {
    let node = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    let leader = text.lines().find(|line| line.ends_with(", leads")).and_then(node);
    let votes = text.lines().filter(|line| line.contains("  votes")).filter_map(node);
    (leader.unwrap(), votes.collect())
}

#[test]
fn an_operator_changes_who_votes_and_clients_notice_nothing() {
    let mut rack = Units::start("voters", "protocol = \"raft\"\n");
    let (leader, votes) = who(&voters(&rack, &[]));
    assert_eq!(votes, [1, 2, 3]);
    let gone = votes.iter().copied().find(|node| *node != leader).unwrap();
    let (node, name) = (gone.to_string(), format!("replica-{gone}"));
    let others: Vec<u64> = votes.iter().copied().filter(|node| *node != gone).collect();
    let seen = while_used(&mut rack, 2, |rack| {
        assert_eq!(who(&voters(rack, &["--remove", &node])), (leader, others.clone()));
        assert_eq!(who(&voters(rack, &["--remove", &node])).1, others, "it is so already");
        rack.kill(&name);
        // A leader goes by what it has heard of late, less than a lease ago (500 ms).
        std::thread::sleep(Duration::from_millis(600));
        let file = rack.file();
        let line = refused(&["voters", "--config", &file, "--add", &node, "--timeout", "1"]);
        assert!(line.contains("not heard, or has not caught up"), "{line}");
        rack.start_again(&name);
        assert_eq!(who(&voters(rack, &["--add", &node])).1, [1, 2, 3]);
        // Whoever leads may be voted out, and another one is elected.
        let leader = leader.to_string();
        voters(rack, &["--remove", &leader]);
        until("another one leads", || who(&voters(rack, &[])).0.to_string() != leader);
        assert_eq!(who(&voters(rack, &["--add", &leader])).1, [1, 2, 3]);
    });
    assert_eq!(seen.errors, Vec::<String>::new());
    assert!(seen.writes > 0);
    let file = rack.file();
    let line = refused(&["voters", "--config", &file, "--add", "9"]);
    assert!(line.contains("has no replica 9"), "{line}");
    for node in [1, 2, 3] {
        rack.stop(&format!("replica-{node}"));
    }
    let line = refused(&["voters", "--config", &file, "--timeout", "1"]);
    assert!(line.contains("no replica answers"), "{line}");
}

#[test]
fn who_votes_is_fixed_where_nobody_is_elected() {
    let rack = Units::start("no-voters", "");
    let file = rack.file();
    let line = refused(&["voters", "--config", &file, "--remove", "3"]);
    assert!(line.contains("no group with protocol = \"raft\""), "{line}");
    let line = refused(&["voters", "--config", &file, "--group", "store"]);
    assert!(line.contains("is no Raft group"), "{line}");
}
