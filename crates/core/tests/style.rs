//! Rules of style that a machine can check, over all crates (CONTRIBUTING.md, Rules).
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// The widest line of a comment, in characters.
const COMMENT_COLUMNS_MAX: usize = 100;
/// The longest name of a test, in characters.
const TEST_NAME_MAX: usize = 60;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust files below `folder`.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Every line of every Rust file with its place, `path:number`.
fn lines() -> Vec<(String, String)> {
    let mut all = Vec::new();
    files(&crates(), &mut all);
    assert!(all.len() > 500, "the crates have moved");
    let mut lines = Vec::new();
    for path in all {
        let name = path.strip_prefix(crates()).unwrap().display().to_string();
        for (index, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            lines.push((format!("{name}:{}", index + 1), line.to_owned()));
        }
    }
    lines
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark))
}

/// Comments are at most 100 columns wide, except rows of tables and lines of examples.
#[test]
fn comment_width() {
    let mut is_example = false;
    let mut wide = Vec::new();
    for (place, line) in lines() {
        let Some(text) = comment(&line) else {
            is_example = false;
            continue;
        };
        let text = text.trim_start();
        if text.starts_with("```") {
            is_example = !is_example;
        }
        let is_exempt = is_example || text.starts_with('|') || !text.contains(' ');
        if line.chars().count() > COMMENT_COLUMNS_MAX && !is_exempt {
            wide.push(place);
        }
    }
    assert!(wide.is_empty(), "comments wider than {COMMENT_COLUMNS_MAX} columns: {wide:#?}");
}

/// A test's name is a topic of at most 60 characters; its sentence is the doc comment above it.
#[test]
fn test_name_length() {
    let mut is_test = false;
    let mut long = Vec::new();
    for (place, line) in lines() {
        let line = line.trim_start();
        if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            let name = rest.split('(').next().unwrap();
            if is_test && name.len() > TEST_NAME_MAX {
                long.push(format!("{place} {name}"));
            }
            is_test = false;
        }
    }
    assert!(long.is_empty(), "test names longer than {TEST_NAME_MAX} characters: {long:#?}");
}

/// A module's header names its subject with a noun: "The dirty set", never "What is in flight".
#[test]
fn module_headers() {
    let mut questions = Vec::new();
    for (place, line) in lines() {
        let is_header = ["//! What ", "//! Who ", "//! How ", "//! Where "]
            .iter()
            .any(|opening| line.starts_with(opening));
        if place.ends_with(".rs:1") && is_header {
            questions.push(format!("{place} {line}"));
        }
    }
    assert!(questions.is_empty(), "module headers that are questions: {questions:#?}");
}
