//! The exit statuses of docs/operate/operations.md, each tried.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_concord");
const DOCS: &str = include_str!("../../../docs/operate/operations.md");

/// What ends with which status. `DEAD` is an address where nobody listens, `DIR` an empty
/// directory.
const ENDS: [(&str, i32); 17] = [
    ("sim --protocol chain --seeds 1 --first-seed 1", 0),
    ("sim --plan DIR/none.toml", 2),
    ("fuzz --protocol vr --seeds 1 --first-seed 1", 0),
    ("check DIR/none.jsonl", 2),
    ("torture --target DEAD --timeout 1 --ops 10", 2),
    ("torture --target DEAD --timeout 1 --accounts 10", 2),
    ("torture --target DEAD --timeout 1 --queues 2", 2),
    ("status --config DIR/none.toml", 1),
    ("wait --config DIR/none.toml", 1),
    ("explain --config DIR/none.toml GET k", 1),
    ("log", 2),
    ("backup --config DIR/none.toml DIR/backup", 1),
    ("restore DIR/none --config DIR/none.toml", 1),
    ("replica --config DIR/none.toml --node 1", 1),
    ("gateway --config DIR/none.toml --node 1", 1),
    ("--version", 0),
    ("status --no-such-flag", 2),
];

fn run(dir: &std::path::Path, dead: &str, line: &str) -> Output {
    let dir = dir.display().to_string();
    let args = line.split(' ').map(|word| word.replace("DIR", &dir).replace("DEAD", dead));
    Command::new(PROGRAM).args(args).output().unwrap()
}

/// Whoever runs a check in a script tells "wrong" (1) from "nothing was shown" (2): a target where
/// nobody listens, or a file that is not there, is no violation.
#[test]
fn bug_24_12_exit_statuses_are_the_documented_ones() {
    let dir: PathBuf = std::env::temp_dir().join(format!("concord-exits-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut differ = Vec::new();
    for (line, status) in ENDS {
        let output = run(&dir, &dead, line);
        if output.status.code() != Some(status) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            differ.push(format!("{line}: {:?}, not {status}: {said}", output.status));
        }
        let name = line.split(' ').next().unwrap();
        let row =
            DOCS.lines().find(|row| row.starts_with("| ") && row.contains(&format!("`{name}`")));
        if !name.starts_with('-') {
            assert!(row.is_some(), "docs/operate/operations.md has no exit status of {name}");
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
