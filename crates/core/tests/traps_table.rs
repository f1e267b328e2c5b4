//! docs/internals/traps.md names tests for each trap: every name is one.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// All Rust sources below `dir`.
fn sources(dir: &Path, all: &mut String) {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_trap_has_tests_and_every_test_that_is_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = fs::read_to_string(root.join("docs/internals/traps.md")).unwrap();
    let mut code = String::new();
    sources(&root.join("crates"), &mut code);
    for trap in 1..=25 {
        let start = format!("| T{trap} ");
        let row = table.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("docs/internals/traps.md has no row of T{trap}"));
        let tests = row.rsplit('|').nth(1).unwrap_or_default();
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "T{trap} has no test");
        for name in names {
            let name = name.rsplit("::").next().unwrap_or_default();
            assert!(code.contains(&format!("fn {name}(")), "T{trap}: there is no test {name}");
        }
    }
}
