//! No file of these crates imports one that imports it, by whatever way around (ARCHITECTURE.md):
//! what a file builds on can be read, and understood, before it.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose files are looked at, and the path in Rust that leads to them.
const FOLDERS: [(&str, &[&str]); 5] = [
    ("client/src", &[]),
    ("gateway/src", &[]),
    ("memory/src", &[]),
    ("protocols/src", &[]),
    ("sim/src", &[]),
];

/// Folders whose files count as one, and may import each other (ARCHITECTURE.md says why).
const AS_ONE: [&str; 1] = ["systems::store::rack"];

/// Imports that are there all the same, and why: none.
const EXCEPTIONS: [(&str, &str, &str); 0] = [];

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

/// Which file each file imports.
fn imports(folder: &str, path: &[&str]) -> BTreeMap<Name, BTreeSet<Name>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path: Name = path.iter().map(|s| (*s).to_owned()).collect();
    let mut modules = BTreeMap::new();
    files(&crates.join(folder), &path, &mut modules);
    assert!(modules.len() > 3, "{folder} has moved");
    let mut edges: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
    for (name, file) in
        modules.iter().filter(|(name, _)| name.len() > path.len() || !path.is_empty())
    {
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

/// A way from `from` back to `to`.
fn way(
    edges: &BTreeMap<Name, BTreeSet<Name>>,
    from: &Name,
    to: &Name,
    seen: &mut BTreeSet<Name>,
) -> Option<Vec<String>> {
    if from == to {
        return Some(vec![to.join("::")]);
    }
    if !seen.insert(from.clone()) {
        return None;
    }
    let next = edges.get(from)?.iter().find_map(|next| way(edges, next, to, seen))?;
    Some([vec![from.join("::")], next].concat())
}

#[test]
fn no_file_imports_what_imports_it() {
    let mut circles = Vec::new();
    for (folder, path) in FOLDERS {
        let mut edges = imports(folder, path);
        for (from, to, _) in EXCEPTIONS {
            let name = |text: &str| text.split("::").map(str::to_owned).collect::<Name>();
            if let Some(of) = edges.get_mut(&name(from)) {
                of.remove(&name(to));
            }
        }
        assert!(!edges.is_empty(), "{folder}: no imports found");
        for (from, to) in edges.iter().flat_map(|(from, of)| of.iter().map(move |to| (from, to))) {
            if let Some(back) = way(&edges, to, from, &mut BTreeSet::new()) {
                circles.push(format!("{folder}: {} -> {}", from.join("::"), back.join(" -> ")));
            }
        }
    }
    assert!(circles.is_empty(), "import circles:\n{}", circles.join("\n"));
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
