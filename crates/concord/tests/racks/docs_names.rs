//! Names that the docs have in backticks: files, functions, metrics and keys exist, and each test
//! that docs/internals/bugs.md names is one.

use std::collections::BTreeSet;

use crate::common::pages::*;

/// Names that are others': of papers, of libraries, of systems.
const OTHERS: [&str; 1] = ["decode_range"];

/// Whether it is a name in lower case of several words: `replies_paced`.
fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_plain = text.chars().all(is_part) && text.starts_with(|c: char| c.is_ascii_lowercase());
    is_plain && text.contains('_') && !text.ends_with('_')
}

/// Every word of all sources, tests and scripts.
fn known_words() -> BTreeSet<String> {
    let text = everything();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_string).collect()
}

/// A metric has the program's name in front at its address, its role's and its group's; and a
/// counter says so at its end.
fn is_metric(name: &str, known: &BTreeSet<String>) -> bool {
    let Some(own) = name.strip_prefix("concord_") else { return false };
    let own = own.strip_suffix("_total").unwrap_or(own);
    let behind = |rest: &str| rest.split_once('_').map(|(_, rest)| rest.to_string());
    let role = behind(own);
    let group = role.as_deref().and_then(behind);
    [Some(own.to_string()), role, group].into_iter().flatten().any(|word| known.contains(&word))
}

/// A counter, a gauge, a key of the rack file or of a status, a function: whatever the docs name
/// as the code does.
#[test]
fn docs_names_are_in_the_code() {
    let known = known_words();
    let mut missing = BTreeSet::new();
    for (page, text) in all_pages() {
        for quoted in quoted(&text) {
            let name = quoted.trim_end_matches("()");
            let is_known = known.contains(name) || is_metric(name, &known);
            let is_test = name.starts_with("bug_");
            if is_name(name) && !is_test && !is_known && !OTHERS.contains(&name) {
                missing.insert(format!("{page}: `{name}`"));
            }
        }
    }
    assert!(missing.is_empty(), "not in the code: {missing:#?}");
}

#[test]
fn docs_files_exist() {
    let folders = ["crates/", "docs/", "results/", "scripts/", "vectors/", "python/"];
    let is_path = |text: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let is_below = folders.iter().any(|folder| text.starts_with(folder));
        is_below && text.chars().all(is_part) && !text.contains("NAME")
    };
    let mut missing = BTreeSet::new();
    for (page, text) in all_pages() {
        let paths = quoted(&text).into_iter().filter(|text| is_path(text));
        missing.extend(paths.filter(|path| !root().join(path).exists()).map(|p| (page.clone(), p)));
    }
    assert!(missing.is_empty(), "no such files: {missing:#?}");
}

/// A row of bugs.md names the test that reproduces the defect, or the beginning of its name.
#[test]
fn docs_tests_of_bugs_exist() {
    let known = known_words();
    let text = page("internals/bugs.md");
    let mut missing = Vec::new();
    let mut count = 0;
    for quoted in quoted(&text) {
        let name = quoted.rsplit("::").next().unwrap_or_default();
        if !name.starts_with("bug_") {
            continue;
        }
        count += 1;
        // `bug_15_6` and `bug_15_6_*` are all tests of that defect.
        let is_number = name.chars().filter(|c| *c == '_').count() == 2;
        let begin = name.strip_suffix('*').or(is_number.then_some(name));
        let is_known = match begin {
            Some(begin) => known.iter().any(|own| own.starts_with(begin)),
            None => known.contains(name),
        };
        if !is_known {
            missing.push(name.to_string());
        }
    }
    assert!(count > 200, "{count}");
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}
