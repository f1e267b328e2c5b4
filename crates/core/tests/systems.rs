//! Which files name a system outside its own folders. Code that is not a system's own asks what a
//! program or a group can do, not who it is, so that a further system is one folder in each layer
//! and one line in each registry.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Words that are a system's.
const NAMES: [&str; 9] =
    ["harmonia", "Harmonia", "HARMONIA", "falcon", "Falcon", "FALCON", "flair", "Flair", "FLAIR"];

/// Folders and files of a system: they are called as it is.
const OWN: [&str; 6] = ["harmonia", "falcon", "flair", "craq", "forward", "nopaxos"];

/// Where each system has its line.
const REGISTRIES: [&str; 18] = [
    "concord/src/bench/mod.rs",
    "concord/src/cli.rs",
    "concord/src/main.rs",
    "concord/src/reproduce/mod.rs",
    "concord/src/systems/mod.rs",
    "concord/src/systems/simulated.rs",
    // What `--accel` takes.
    "concord/src/systems/store",
    "protocols/src/lib.rs",
    "protocols/src/quorum/mod.rs",
    "runtime/src/lib.rs",
    // How many operations each kind of packet has.
    "sim/src/bag/packets.rs",
    "sim/src/lib.rs",
    "sim/src/systems/mod.rs",
    "switch/src/lib.rs",
    "switch/src/settings.rs",
    "wire/src/control/config.rs",
    "wire/src/header.rs",
    "wire/src/lib.rs",
];

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

fn look(folder: &Path, crates: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let stem = file.file_stem().unwrap().to_str().unwrap();
        if stem == "tests" || stem == "registry" || OWN.iter().any(|own| stem.contains(own)) {
            continue;
        } else if file.is_dir() {
            look(&file, crates, found);
        } else if file.extension().is_some_and(|e| e == "rs")
            && names_a_system(&code(&fs::read_to_string(&file).unwrap()))
        {
            found.insert(file.strip_prefix(crates).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn no_further_file_names_a_system_outside_its_folders() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(crates).unwrap() {
        let one = entry.unwrap().path();
        // The scheduler is Falcon's.
        if !one.ends_with("scheduler") {
            look(&one.join("src"), crates, &mut found);
        }
    }
    let is_known = |file: &String| {
        REGISTRIES.iter().any(|known| file == known || file.starts_with(&format!("{known}/")))
    };
    let new: Vec<&String> = found.iter().filter(|file| !is_known(file)).collect();
    assert!(new.is_empty(), "put it into the system's own folder: {new:#?}");
    let is_gone = |known: &&str| {
        !found.iter().any(|file| file == known || file.starts_with(&format!("{known}/")))
    };
    let gone: Vec<&str> = REGISTRIES.iter().copied().filter(|k| is_gone(k)).collect();
    assert!(gone.is_empty(), "these name no system any more; take them off the list: {gone:#?}");
}
