//! Which test tries what each page that a user reads states; and the pages of security and of the
//! first steps with a store, tried.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::pages::{page, pages, root};
use crate::common::*;

/// Each page with the files of the tests that try its statements, and one test of each. Numbers
/// beside constants, flags, names and messages of all pages are compared in `docs_numbers.rs` and
/// `docs_names.rs`, too.
const PAGES: [(&str, &[(&str, &str)]); 28] = [
    ("store.md", &[(RACKS, "docs_pages::docs_first_steps_are_as_shown")]),
    ("tasks.md", &[(RACKS, "falcon::jobs_are_done_and_tell_how")]),
    ("applications.md", &[("tests/apps/run.py", "def main")]),
    ("coordination.md", &[(RACKS, "coord::keys_are_read_written_and_refused_with_one_line")]),
    ("network.md", &[("crates/concord/tests/network.rs", "the_guides_example_runs")]),
    ("shared-memory.md", &[(RACKS, "memory::keys_of_a_shared_memory_are_at_all_nodes")]),
    ("write-your-own.md", &[("crates/sim/Cargo.toml", "write_your_own")]),
    (
        "alerts.md",
        &[(RACKS, "operations::promtool_finds_nothing_wrong_with_the_metrics_of_any_role")],
    ),
    ("capacity.md", &[(RACKS, "docs_numbers::docs_numbers_beside_a_constant_are_its_value")]),
    (
        "durability.md",
        &[
            (RACKS, "durable::t7_a_chain_comes_back_from_a_power_cut"),
            (RACKS, "backup::bug_24_6_a_backup_that_is_not_complete_is_refused"),
        ],
    ),
    (
        "operations.md",
        &[
            (RACKS, "docs_runbook::docs_runbook_rows_are_all_tried"),
            (RACKS, "docs_status::docs_status_has_every_key_that_is_named"),
            (RACKS, "exit_status::docs_exit_statuses_are_all_tried"),
        ],
    ),
    ("problems.md", &[(RACKS, "docs_numbers::docs_messages_are_those_of_the_code")]),
    ("reconfiguration.md", &[(RACKS, "rolling::replica_added_and_removed_as_documented")]),
    ("security.md", &[(RACKS, "docs_pages::docs_files_and_sockets_are_the_stated_ones")]),
    ("upgrade.md", &[(RACKS, "rolling::a_rolling_restart_as_documented_gives_no_client_an_error")]),
    (
        "commands.md",
        &[
            (RACKS, "docs_semantics::docs_semantics_of_commands_with_the_memory_engine"),
            (RACKS, "docs_semantics::docs_semantics_of_commands_with_the_redis_engine"),
        ],
    ),
    ("reference.md", &[("crates/concord/src/reference.rs", "the_reference_is_as_it_is_committed")]),
    ("semantics.md", &[(RACKS, "docs_errors::docs_errors_are_the_ones_that_are_sent")]),
    (
        "blocking.md",
        &[
            (RACKS, "blocking::each_element_goes_to_one_worker_with_the_memory_engine"),
            ("crates/gateway/tests/blocked/mod.rs", "fn "),
        ],
    ),
    ("limits.md", &[(RACKS, "large_commands::bug_22_152_every_limit_of_the_page_is_true")]),
    (
        "pubsub.md",
        &[
            (RACKS, "pubsub::messages_cross_gateways_in_order"),
            (RACKS, "events::events_are_those_of_redis_server_at_both_gateways"),
        ],
    ),
    (
        "scripts.md",
        &[
            ("crates/lua/tests/docs_scripts.rs", "fn docs_"),
            ("crates/engine/tests/redis_engine/scripts.rs", "fn "),
            (RACKS, "hangs::bug_15_7_a_script_without_an_end_is_stopped_in_a_chain"),
        ],
    ),
    ("tasks.md", &[(RACKS, "falcon::worker_death_loses_and_repeats_nothing")]),
    ("time.md", &[("crates/protocols/src/expiry.rs", "fn ")]),
    (
        "transactions.md",
        &[
            (RACKS, "replies::bug_24_2_long_replies_of_writes_arrive"),
            (RACKS, "databases::replicas_with_the_memory_engine_tell_databases_apart"),
            ("crates/engine/tests/redis_engine/long.rs", "bug_22_179_"),
        ],
    ),
    ("types.md", &[("crates/engine/tests/against_redis/main.rs", "fn ")]),
    ("users.md", &[(RACKS, "users::users_are_the_same_at_all_gateways_and_survive")]),
    ("wire.md", &[("crates/wire/tests", "")]),
];

/// The tests of this program, by module and name.
const RACKS: &str = "crates/concord/tests/racks";

#[test]
fn docs_pages_have_tests() {
    let listed: BTreeSet<&str> = PAGES.iter().map(|(name, _)| *name).collect();
    for (name, _) in pages() {
        assert!(listed.contains(name.as_str()), "no test is named for {name}");
    }
    for (page, tests) in PAGES {
        for (file, test) in tests {
            let (path, wanted) = match *file {
                RACKS => {
                    let (module, name) = test.split_once("::").unwrap();
                    (format!("{RACKS}/{module}.rs"), format!("fn {name}"))
                }
                file => (file.to_string(), test.to_string()),
            };
            let path = root().join(path);
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(text.contains(&wanted), "{page}: {} has no {wanted}", path.display());
        }
    }
}

/// What `concord status` ends with, as the page shows it.
fn shown_problems(text: &str) -> Vec<String> {
    let shown = text.split("`status` now ends with what is wrong").nth(1).unwrap_or_default();
    let block = shown.split("```").nth(1).unwrap_or_default();
    block.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string).collect()
}

/// The first steps with a store: what the page shows is what there is.
#[test]
fn docs_first_steps_are_as_shown() {
    let text = page("start/store.md");
    let rack = Rack::start("docs-store", &[]);
    let mut client = rack.client();
    assert!(text.contains("127.0.0.1:7379> SET city Rotterdam\nOK"), "the page's example");
    assert_eq!(client.say("SET city Rotterdam"), "+OK");
    assert!(text.contains("127.0.0.1:7379> INCR visits\n(integer) 1"), "the page's example");
    assert_eq!(client.say("INCR visits"), ":1");
    let said = client.call(&[b"CONCORD", b"EXPLAIN", b"GET", b"city"]).unwrap();
    let said = format!("{} {}", said.0, String::from_utf8_lossy(&said.1));
    assert!(!said.starts_with('-'), "{said}");
    let mut pids: Vec<String> = rack.pids().into_iter().map(|(name, _)| name).collect();
    pids.retain(|name| name.starts_with("replica-"));
    assert_eq!(pids.len(), 3, "{pids:?}");
    Rack::signal(rack.pid("replica-2"), "-9");
    until("the replica is removed", || rack.members().len() == 2);
    let status = concord(&["status", "--config", &rack.file()]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let wanted = shown_problems(&text);
    assert!(wanted.len() >= 4, "{wanted:?}");
    for line in wanted {
        assert!(status.lines().any(|own| own.trim() == line), "no {line:?} in {status}");
    }
}

/// The sockets of a process on which somebody may call: the protocol, the address and the port.
fn sockets(pid: u32) -> Vec<(&'static str, String, u16)> {
    let inodes: BTreeSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            let link = link.to_string_lossy().into_owned();
            Some(link.strip_prefix("socket:[")?.trim_end_matches(']').to_string())
        })
        .collect();
    let mut found = Vec::new();
    // TCP sockets that listen (0A), and UDP ones.
    for (protocol, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{protocol}"));
        for line in table.unwrap_or_default().lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (address, port) = words[1].rsplit_once(':').unwrap();
            if words[3] == state && inodes.contains(words[9]) {
                let port = u16::from_str_radix(port, 16).unwrap();
                found.push((protocol, address.to_string(), port));
            }
        }
    }
    found
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// docs/operate/security.md: who listens where, and who may read which file.
#[test]
fn docs_files_and_sockets_are_the_stated_ones() {
    let text = page("operate/security.md");
    let rack = Rack::start("docs-security", &["--durability", "fsync"]);
    assert_eq!(rack.client().say("SET k v"), "+OK");
    let file = rack.file();
    let file = Path::new(&file);
    // The run directory is one that `up` made itself, in the tests of Falcon (`bug_21_57_*`).
    let row = "| its `rack.toml` | 0600 |";
    assert!(text.contains(row), "the page has no row {row}");
    assert_eq!(mode(file), 0o600, "{}", file.display());
    let rack_file = std::fs::read_to_string(file).unwrap();
    for (name, pid) in rack.pids() {
        for (protocol, address, port) in sockets(pid) {
            // 127.0.0.1, as the kernel prints it.
            assert_eq!(address, "0100007F", "{name} listens to strangers: {protocol} {port}");
            let is_named = rack_file.contains(&format!("127.0.0.1:{port}"));
            assert!(is_named, "{name}: {protocol} {port} is not in the rack file:\n{rack_file}");
        }
        let udp = sockets(pid).iter().filter(|(protocol, ..)| *protocol == "udp").count();
        assert!(udp >= 1, "{name} has no UDP socket");
    }
}
