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

/// Words of a private language that the code once had, each with the field's word for it. A part
/// of an identifier, as in `feeder_of` or `FeederKind`, counts.
const RETIRED_WORDS: [(&str, &str); 7] = [
    ("feeder", "donor, snapshot source"),
    ("keeper", "what it owns: a disk, a cache"),
    ("spoil", "invalidate, abort, corrupt"),
    ("bury", "retire counters, end"),
    ("lives", "incarnations, crash vector"),
    ("disown", "report as lost"),
    ("maieth", "ordinal"),
];
/// Names of types that said nothing of what the type is.
const RETIRED_TYPES: [(&str, &str); 8] = [
    ("Turn", "PendingWrite, CommandContext, Admission"),
    ("ReadTurn", "PendingRead"),
    ("Asked", "RequestHeader, or what is asked for"),
    ("Kept", "DiskState, ReplyCache, Persisted"),
    ("Life", "CrashVectorEntry"),
    ("Lives", "CrashVector"),
    ("Feed", "OutgoingCopy, EventBuffer"),
    ("Feeds", "SnapshotSource"),
];
/// Names that users see in metrics keep such a word until they have an alias.
const VISIBLE_NAMES: [&str; 1] = ["stale_lives"];

/// The words of an identifier: `next_alive` and `NextAlive` have two.
fn words(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in identifier.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase() || c.is_numeric();
        if c != '_' {
            words.last_mut().unwrap().extend(c.to_lowercase());
        }
    }
    words
}

/// A line without its comment and without its texts.
fn code_of(line: &str) -> String {
    if comment(line).is_some() {
        return String::new();
    }
    let mut parts = line.split('"');
    let mut code = parts.next().unwrap().to_owned();
    while let (Some(_), Some(outside)) = (parts.next(), parts.next()) {
        code.push(' ');
        code.push_str(outside);
    }
    code
}

#[test]
fn words_of_identifiers() {
    assert_eq!(words("next_alive"), ["next", "alive"]);
    assert_eq!(words("NextAlive"), ["next", "alive"]);
    assert_eq!(words("KEEPER_MAX"), ["keeper", "max"]);
}

/// Identifiers use the field's words (GLOSSARY.md); names of tests are sentences, and may not.
#[test]
fn vocabulary() {
    let mut found = Vec::new();
    let mut is_test = false;
    for (place, line) in lines() {
        let code = code_of(&line);
        let was_test = std::mem::replace(&mut is_test, code.trim() == "#[test]");
        if was_test || place.starts_with("core/tests/style.rs") {
            continue;
        }
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        for identifier in code.split(|c| !is_part(c)).filter(|name| !name.is_empty()) {
            let parts = words(identifier);
            let word = RETIRED_WORDS.iter().find(|(word, _)| parts.iter().any(|part| part == word));
            let name = RETIRED_TYPES.iter().find(|(name, _)| *name == identifier);
            if let Some((_, better)) = word.or(name)
                && !VISIBLE_NAMES.contains(&identifier)
            {
                found.push(format!("{place} {identifier}: say {better}"));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
