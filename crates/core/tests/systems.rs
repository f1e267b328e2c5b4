//! The files that name a system outside its own folders, and those with a line for each protocol,
//! are the tables of docs/guides/write-your-own.md. Other code asks what a program, a group or a
//! protocol can do, not which one it is, so that a further system is one folder in each layer and
//! one line in each registry.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that are a system's.
const NAMES: [&str; 18] = [
    "harmonia",
    "Harmonia",
    "HARMONIA",
    "falcon",
    "Falcon",
    "FALCON",
    "flair",
    "Flair",
    "FLAIR",
    "netcraq",
    "NetCraq",
    "NETCRAQ",
    "concordia",
    "Concordia",
    "CONCORDIA",
    "harmony",
    "Harmony",
    "HARMONY",
];

/// Folders and files of a system: they are called as it is. NetChain is what NetCRAQ is compared
/// with.
const OWN: [&str; 9] = [
    "harmonia",
    "falcon",
    "flair",
    "craq",
    "forward",
    "nopaxos",
    "netchain",
    "concordia",
    "harmony",
];

/// Crates that are a system's: Falcon's, Concordia's and Harmony's.
const OWN_CRATES: [&str; 3] = ["scheduler", "memory", "transport"];

/// A file with lines for so many protocols has one for each that concerns it.
const PROTOCOLS_MIN: usize = 5;
/// The protocols of `concord_wire::control::Protocol`.
const PROTOCOLS: [&str; 6] = ["PrimaryBackup", "Chain", "Vr", "Craq", "NoPaxos", "Raft"];

/// A file's code, without comments and without its tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn names_a_system(code: &str) -> bool {
    NAMES.iter().any(|name| {
        code.match_indices(name).any(|(at, _)| {
            // The end of a longer word is none.
            let before = code[..at].chars().next_back();
            !before.is_some_and(|c| c.is_ascii_lowercase() && name.starts_with(char::is_lowercase))
        })
    })
}

/// All source files below `folder` but those of tests, with their code.
fn files(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        } else if file.is_dir() {
            files(&file, found);
        } else if file.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&file).unwrap();
            found.push((file, code(&text)));
        }
    }
}

/// Every file of every crate's `src`, by its path from `crates`, with its code.
fn all_files() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        files(&entry.unwrap().path().join("src"), &mut found);
    }
    assert!(found.len() > 300, "the crates have moved");
    let name = |file: &Path| file.strip_prefix(crates).unwrap().to_str().unwrap().to_owned();
    found.into_iter().map(|(file, code)| (name(&file), code)).collect()
}

/// Whether a file is a system's own, or the registry of all programs.
fn is_own(file: &str) -> bool {
    let mut parts = file.split('/').map(|part| part.trim_end_matches(".rs"));
    let is_crate = OWN_CRATES.iter().any(|own| file.starts_with(&format!("{own}/")));
    is_crate || parts.any(|part| part == "registry" || OWN.iter().any(|own| part.contains(own)))
}

/// The first cells of the table below a heading of the page, without their backticks.
fn listed(heading: &str) -> BTreeSet<String> {
    let page = "../../docs/guides/write-your-own.md";
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let (_, below) = page.split_once(&format!("\n{heading}\n")).expect(heading);
    let rows = below.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
}

/// Compares the files that were found with a table, whose rows may be folders.
fn compare(found: &[String], heading: &str) {
    let listed = listed(heading);
    let fits = |file: &str, row: &str| file == row || file.starts_with(&format!("{row}/"));
    let new: Vec<&String> =
        found.iter().filter(|file| !listed.iter().any(|row| fits(file, row))).collect();
    let gone: Vec<&String> =
        listed.iter().filter(|row| !found.iter().any(|file| fits(file, row))).collect();
    let page = "docs/guides/write-your-own.md";
    assert!(new.is_empty(), "move it to the system's folder, or list it in {page}: {new:#?}");
    assert!(gone.is_empty(), "name none any more; take them out of {page}: {gone:#?}");
}

/// The table of the places of a system is complete, and has no other rows.
#[test]
fn places_of_a_system() {
    let all = all_files().into_iter();
    let found = all.filter(|(file, code)| !is_own(file) && names_a_system(code));
    compare(&found.map(|(file, _)| file).collect::<Vec<_>>(), "## Places of a system");
}

/// The table of the places of a protocol is complete, and has no other rows.
#[test]
fn places_of_a_protocol() {
    let named = |code: &str| {
        let names = |protocol: &&&str| code.contains(&format!("Protocol::{protocol}"));
        PROTOCOLS.iter().filter(names).count()
    };
    let all = all_files().into_iter();
    let found = all.filter(|(_, code)| named(code) >= PROTOCOLS_MIN);
    compare(&found.map(|(file, _)| file).collect::<Vec<_>>(), "## Places of a protocol");
}
