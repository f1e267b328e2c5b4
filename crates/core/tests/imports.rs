//! No file imports one that imports it, directly or through others (ARCHITECTURE.md), so that a
//! reader can read a file after the files that it imports. Circles that are left are listed.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose files are looked at: all.
const CRATES: [&str; 18] = [
    "check",
    "client",
    "concord",
    "control",
    "core",
    "engine",
    "gateway",
    "log",
    "lua",
    "memory",
    "pisa",
    "protocols",
    "runtime",
    "scheduler",
    "sim",
    "switch",
    "transport",
    "wire",
];

/// Circles that are left: a crate, one of the files, how many files there are at most, and where
/// the circle could be cut. Every other file of every crate is in none. None grows; the row of a
/// circle that was cut goes.
const CIRCLES: [(&str, &str, usize, &str); 19] = [
    (
        "concord",
        "cli",
        57,
        "at most: `Cli` and `Command`, which name every system and bench, in `main`",
    ),
    ("concord", "torture::lists", 5, "`TortureArgs` and the pauses beside `torture::workload`"),
    ("control", "hear", 6, "the list of all `Rules` in `lib`; `Hearing` without `Group`"),
    ("engine", "functions", 6, "the key and the names of libraries in a file below `copy`"),
    ("engine", "memory::store", 33, "the table of commands in a file above `Memory` and its state"),
    ("engine", "redis::rights", 4, "`is_script` and `encode` in files of their own"),
    ("engine", "ttl", 9, "the names of the engine's own commands in a file below all of them"),
    ("engine", "table", 2, "`CommandSpec` and `Flags` in a file that `memory_specs` imports"),
    ("lua", "clib", 3, "`Outside` in a file below `meter`"),
    ("lua", "natives", 9, "`HostCall`, `Shared` and places of errors in a file below `natives`"),
    ("runtime", "directory", 5, "`RESERVE`, paths and `sync` in a file below `disk`"),
    (
        "runtime",
        "falcon::owner",
        6,
        "`OwnerRole` in a file that names neither: the routes call them from above",
    ),
    ("runtime", "falcon::worker::reaper", 2, "`kill` in a file of its own"),
    ("runtime", "roles::replica", 2, "`DiskSetup` and `EngineIo` in a file below"),
    ("scheduler", "owner", 7, "`Name`, `At`, `Job` in a file below `owner`"),
    ("scheduler", "worker", 2, "`Work` and `WorkerConfig` in a file below both"),
    ("switch", "program", 14, "`Settings`, which names each program's, beside `registry`"),
    ("switch", "falcon::stages", 2, "`Ask`, `Phv` and `Side` in a file below `pointers`"),
    ("wire", "control", 10, "`Message`, `LogEnd` and `Member` in files below `control`"),
];

/// Folders whose files count as one, and may import each other (ARCHITECTURE.md says why).
const AS_ONE: [&str; 2] = ["systems::falcon::rack", "systems::store::rack"];

type Name = Vec<String>;

/// All files below `folder` but tests, by their path in Rust.
fn files(folder: &Path, path: &[String], found: &mut BTreeMap<Name, PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut name = path.to_vec();
        if stem == "tests" {
            continue;
        } else if file.is_dir() {
            name.push(stem);
            files(&file, &name, found);
        } else if file.extension().is_some_and(|e| e == "rs") {
            if !["mod", "lib", "main"].contains(&&*stem) {
                name.push(stem);
            }
            found.insert(name, file);
        }
    }
}

/// A file's text without comments and without its tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let text = text.replace("pub(in crate::", "pub(in ");
    text.lines().map(|l| l.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The paths that a use tree names: `a::{b, c::d}` names `a::b` and `a::c::d`.
fn expand(tree: &str, before: &[String], found: &mut Vec<Name>) {
    let (head, inner) = match tree.find('{') {
        Some(open) => (&tree[..open], Some(&tree[open + 1..tree.rfind('}').unwrap()])),
        None => (tree.split(" as ").next().unwrap(), None),
    };
    let mut path = before.to_vec();
    path.extend(head.split("::").map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned));
    let Some(inner) = inner else { return found.push(path) };
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[from..at].trim().is_empty() {
                    expand(&inner[from..at], &path, found);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// Paths of the own crate in a file's text: in `use`, and in full elsewhere.
fn paths(code: &str) -> Vec<Name> {
    let mut found = Vec::new();
    let mut rest = String::new();
    for statement in code.split_inclusive(';') {
        let used = ["\nuse ", "\npub use ", "\n    use "].iter().find_map(|word| {
            let at = format!("\n{statement}").find(word)?;
            Some(format!("\n{statement}")[at + word.len()..].to_owned())
        });
        match used {
            Some(tree) => expand(tree.trim_end_matches(';'), &[], &mut found),
            None => rest.push_str(statement),
        }
    }
    for root in ["crate::", "super::"] {
        for (at, _) in rest.match_indices(root) {
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let path = rest[at..].split(|c| !is_path(c)).next().unwrap();
            found.push(path.split("::").map(str::to_owned).collect());
        }
    }
    found
}

/// The name under which a file counts.
fn counted(name: &Name) -> Name {
    let text = name.join("::");
    let whole = AS_ONE.into_iter().find(|whole| text.starts_with(&format!("{whole}::")));
    whole.map_or(name.clone(), |whole| whole.split("::").map(str::to_owned).collect())
}

/// The files that each file of a crate imports.
fn imports(name: &str) -> BTreeMap<Name, BTreeSet<Name>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut modules = BTreeMap::new();
    files(&crates.join(name).join("src"), &[], &mut modules);
    assert!(modules.len() > 2, "{name} has moved");
    let mut edges: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
    for (name, file) in &modules {
        // The crate's root names everything, and is named by nothing.
        if name.is_empty() {
            continue;
        }
        let code = code(file);
        let mut all = paths(&code);
        // A child's items in full.
        let children = modules.keys().filter(|m| m.split_last().is_some_and(|(_, of)| of == name));
        for child in children.map(|m| m.last().unwrap()) {
            let full = format!("{child}::");
            let is_whole = |at: usize| {
                !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
            };
            if code.match_indices(&full).any(|(at, _)| is_whole(at)) {
                all.push(vec![child.clone()]);
            }
        }
        for found in all {
            let mut to = name.clone();
            let mut words = found.iter();
            match found[0].as_str() {
                "crate" => to.clear(),
                "self" => {}
                "super" => drop(to.pop()),
                child if modules.contains_key(&[&name[..], &[child.to_owned()]].concat()) => {
                    to.push(child.to_owned());
                }
                _ => continue,
            }
            words.next();
            for word in words {
                if word == "super" {
                    to.pop();
                } else {
                    to.push(word.clone());
                }
            }
            while !modules.contains_key(&to) && to.pop().is_some() {}
            let (from, to) = (counted(name), counted(&to));
            if !to.is_empty() && to != from && modules.contains_key(&to) {
                edges.entry(from).or_default().insert(to);
            }
        }
    }
    edges
}

/// All files that `from` imports, directly or through others.
fn reached(edges: &BTreeMap<Name, BTreeSet<Name>>, from: &Name) -> BTreeSet<Name> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for next in edges.get(file).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    found
}

/// The circles: sets of files of which each imports all others, directly or through others.
fn circles(edges: &BTreeMap<Name, BTreeSet<Name>>) -> BTreeSet<BTreeSet<String>> {
    let all: BTreeMap<&Name, BTreeSet<Name>> =
        edges.keys().map(|file| (file, reached(edges, file))).collect();
    let is_in_one = |file: &&Name| all[*file].contains(*file);
    let with = |file: &Name| {
        let others =
            all[file].iter().filter(|other| all.get(other).is_some_and(|r| r.contains(file)));
        others.map(|other| other.join("::")).collect()
    };
    all.keys().copied().filter(is_in_one).map(with).collect()
}

#[test]
fn no_further_file_is_in_an_import_circle() {
    let (mut new, mut known) = (Vec::new(), BTreeSet::new());
    for name in CRATES {
        let edges = imports(name);
        assert!(!edges.is_empty(), "{name}: no imports found");
        for circle in circles(&edges) {
            let row = CIRCLES.iter().find(|(of, file, count, _)| {
                *of == name && circle.contains(*file) && circle.len() <= *count
            });
            match row {
                Some((of, file, ..)) => drop(known.insert((*of, *file))),
                None => new.push(format!("{name}: {} files, {circle:?}", circle.len())),
            }
        }
    }
    let gone = CIRCLES.iter().filter(|(of, file, ..)| !known.contains(&(*of, *file)));
    let gone: Vec<String> = gone.map(|(of, file, ..)| format!("{of}: {file}")).collect();
    assert!(new.is_empty() && gone.is_empty(), "circles: {new:#?}\nrows without one: {gone:#?}");
}

/// The list above names every crate.
#[test]
fn every_crate_is_looked_at() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found: Vec<String> = fs::read_dir(crates)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, CRATES);
}

#[test]
fn circles_of_files() {
    let name = |text: &str| vec![text.to_owned()];
    let edge = |from: &str, to: &[&str]| (name(from), to.iter().map(|to| name(to)).collect());
    let edges = [edge("a", &["b", "x"]), edge("b", &["c"]), edge("c", &["a"]), edge("d", &["a"])];
    let found = circles(&edges.into_iter().collect());
    let circle: BTreeSet<String> = ["a", "b", "c"].into_iter().map(str::to_owned).collect();
    assert_eq!(found, [circle].into_iter().collect());
}

#[test]
fn use_trees_and_full_paths_are_found() {
    let text =
        "//! x\nuse crate::a::{B, c::{self, D}};\nuse super::e;\nfn f() { crate::g::h(); }\n";
    let mut found: Vec<String> = paths(text).iter().map(|path| path.join("::")).collect();
    found.sort();
    let wanted = ["crate::a::B", "crate::a::c::D", "crate::a::c::self", "crate::g::h", "super::e"];
    assert_eq!(found, wanted);
}
