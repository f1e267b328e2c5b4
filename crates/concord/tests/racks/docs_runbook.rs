//! The rows of docs/operate/operations.md, "Changing a running rack": each is tried by a test over
//! processes, here or in the file that the list below names.

use crate::common::pages::{page, table};
use crate::common::units::*;
use crate::common::*;

/// How a row begins, and which test tries it.
const ROWS: [(&str, &str, &str); 10] = [
    ("restart of a replica", "rolling.rs", "bug_16_20_replica_with_data_returns_without_a_pause"),
    (
        "restart of the switch",
        "rolling.rs",
        "a_rolling_restart_as_documented_gives_no_client_an_error",
    ),
    (
        "restart of the controller",
        "rolling.rs",
        "a_rolling_restart_as_documented_gives_no_client_an_error",
    ),
    (
        "restart of a gateway",
        "rolling.rs",
        "a_rolling_restart_as_documented_gives_no_client_an_error",
    ),
    ("add a replica", "rolling.rs", "replica_added_and_removed_as_documented"),
    ("remove a replica for good", "rolling.rs", "replica_added_and_removed_as_documented"),
    (
        "remove a replica of a Raft group for good",
        "replicas.rs",
        "bug_24_3_a_raft_replica_without_a_vote_is_removed",
    ),
    ("another number of replicas", "docs_runbook.rs", "docs_runbook_another_number_of_replicas"),
    (
        "change `durability`",
        "rolling.rs",
        "bug_16_21_durability_is_changed_one_replica_after_the_other",
    ),
    ("the whole rack", "docs_runbook.rs", "docs_runbook_the_whole_rack"),
];
/// The row of a replica that is stopped for long.
const VOTERS: (&str, &str, &str) = (
    "stop a replica of a Raft group for a long time",
    "voters.rs",
    "an_operator_changes_who_votes_and_clients_notice_nothing",
);

#[test]
fn docs_runbook_rows_are_all_tried() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/racks");
    let known = || ROWS.iter().chain([&VOTERS]);
    for (row, file, test) in known() {
        let text = std::fs::read_to_string(tests.join(file)).unwrap();
        assert!(text.contains(&format!("fn {test}()")), "{row}: {file} has no test {test}");
    }
    for row in table(&page("operate/operations.md"), "## Changing a running rack") {
        let name = row[0].split("**").nth(1).unwrap_or_default().to_string();
        assert!(known().any(|(known, ..)| *known == name), "no test tries the row {name:?}");
    }
}

/// A group in which a majority decides gets another number of replicas by a backup.
#[test]
fn docs_runbook_another_number_of_replicas() {
    for (protocol, replicas, then) in [("raft", "3", "5"), ("nopaxos", "3", "5")] {
        let name = format!("runbook-{protocol}");
        let flags = ["--durability", "fsync", "--protocol", protocol];
        let rack = Rack::start(&name, &[&flags[..], &["--replicas", replicas]].concat());
        assert_eq!(rack.client().say("SET k v"), "+OK");
        let place = directory(&format!("{name}-backup"));
        let backup = place.join("monday").display().to_string();
        let made = concord(&["backup", "--config", &rack.file(), &backup]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        drop(rack);
        let run = directory(&format!("{name}-again"));
        let run_dir = run.display().to_string();
        let restored = concord(&["restore", &backup, "--run-dir", &run_dir, "--replicas", then]);
        assert!(restored.status.success());
        let rack = Rack::start_at(run, &[&flags[..], &["--replicas", then]].concat());
        assert_eq!(rack.client().say("GET k"), "v", "{protocol}");
        assert_eq!(rack.members().len().to_string(), then, "{protocol}");
    }
}

/// The gateways first, then the controller, then the rest; and all of it again.
#[test]
fn docs_runbook_the_whole_rack() {
    let mut rack = Units::start("runbook-whole", "durability = \"fsync\"");
    let mut client = Resp::open(rack.gateways[0]);
    assert_eq!(client.say("SET k v"), "+OK");
    let order =
        ["gateway-1", "gateway-2", "controller", "replica-1", "replica-2", "replica-3", "switch"];
    for name in order {
        rack.stop(name);
    }
    for name in order.iter().rev() {
        rack.start_again(name);
    }
    rack.wait();
    assert_eq!(Resp::open(rack.gateways[1]).say("GET k"), "v");
}
