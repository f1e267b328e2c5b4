//! docs/operate/operations.md, Status: every key that the tables name is there, in what a rack with
//! both kinds of groups says of itself; and what the docs say of defaults.

use std::collections::BTreeSet;

use crate::common::pages::{page, quoted, table};
use crate::common::*;

/// Stores and workers, which share a rack.
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

/// All keys of an object, and of what is in it.
fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                found.insert(key.clone());
                keys(value, found);
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

/// The names in a cell that are keys: `groups[]` is a list of that name.
fn named(cell: &str) -> Vec<String> {
    let names = quoted(cell).into_iter().map(|name| name.trim_end_matches("[]").to_string());
    let is_key = |name: &String| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    names.filter(is_key).collect()
}

#[test]
fn docs_status_has_every_key_that_is_named() {
    let directory = directory("docs-status-file");
    let file = directory.join("groups.toml");
    std::fs::write(&file, GROUPS).unwrap();
    let flags = ["--config", file.to_str().unwrap(), "--durability", "fsync"];
    let rack = Rack::start("docs-status", &flags);
    let mut client = rack.client();
    assert_eq!(client.say("SET k v"), "+OK");
    until("workers in their places", || rack.role("worker", 1)["member"] == true);
    assert_eq!(client.say("GET k"), "v");
    let status = rack.status();
    let operations = page("operate/operations.md");
    let mut missing = Vec::new();

    // What `concord status --json` prints.
    let mut all = BTreeSet::new();
    keys(&status, &mut all);
    for row in table(&operations, "### `concord status`") {
        for key in named(&row[0]).into_iter().chain(named(&row[1])) {
            let own = key.rsplit('.').next().unwrap().to_string();
            // `http` is a key of the rack file.
            if own != "http" && !all.contains(&own) {
                missing.push(format!("concord status --json: {key}"));
            }
        }
    }

    // What each role says of itself.
    let (_, roles) = operations.split_once("A role's `/status` has").unwrap();
    let (common, rows) = roles.split_once("and:").unwrap();
    let rows = table(&format!("\nrows\n{rows}"), "rows");
    for role in status["roles"].as_array().unwrap() {
        let name = role["role"].as_str().unwrap();
        let mut own = BTreeSet::new();
        keys(&role["status"], &mut own);
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name}"));
        let wanted = named(common).into_iter().chain(named(&row[1]));
        let absent = wanted.filter(|key| !own.contains(key));
        missing.extend(absent.map(|key| format!("/status of {name}: {key}")));
    }
    let seen: BTreeSet<&str> =
        status["roles"].as_array().unwrap().iter().filter_map(|r| r["role"].as_str()).collect();
    for row in &rows {
        assert!(seen.contains(row[0].as_str()), "no {} in the rack", row[0]);
    }

    // And what durability.md names beside them.
    let durability = page("operate/durability.md");
    let (_, named_there) = durability.split_once("`/status` of a replica\nhas").unwrap();
    let (named_there, _) = named_there.split_once(';').unwrap();
    let replica = rack.role("replica", 1);
    for key in named(named_there) {
        if replica.get(&key).is_none() {
            missing.push(format!("/status of a replica (durability.md): {key}"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// What the pages for beginners and the reference say of defaults is what `--help` does.
#[test]
fn docs_defaults_are_those_of_the_commands() {
    let help = |command: &str| {
        String::from_utf8(concord(&[command, "--help"]).stdout).unwrap().replace('\n', " ")
    };
    let up = help("up");
    for (page_name, stated, flag, default) in [
        ("start/store.md", "redis-cli -p 7379", "--listen", "127.0.0.1:7379"),
        ("start/store.md", "three replicas", "--replicas", "3"),
        ("start/store.md", "run/rack.toml", "--run-dir", "run"),
        ("operate/durability.md", "`fsync`, the default", "--durability", "fsync"),
    ] {
        assert!(page(page_name).contains(stated), "{page_name} does not say {stated:?}");
        let (_, from) = up.split_once(&format!("{flag} <")).unwrap_or_else(|| panic!("{flag}"));
        let own: String = from.chars().take(600).collect();
        let own = own.split(" --").next().unwrap_or_default().to_string();
        let said = own.contains(&format!("[default: {default}]")) || own.contains(default);
        assert!(said, "{flag}: {default} is not in {own}");
    }
}
