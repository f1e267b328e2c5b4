//! Documents refer to each other by links that lead somewhere, and code refers to documents that
//! exist.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below `folder` with one of the extensions, but for what was built.
fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !name.starts_with("target") && name != "run" {
                files(&path, extensions, found);
            }
        } else if path.extension().is_some_and(|e| extensions.iter().any(|own| e == *own)) {
            found.push(path);
        }
    }
}

/// The anchors of a document's headings, as Git hosts and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    };
    headings.map(anchor).collect()
}

/// The text outside of fenced examples and of `code`.
fn prose(text: &str) -> String {
    let mut is_example = false;
    let mut out = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_example = !is_example;
        } else if !is_example {
            for (index, part) in line.split('`').enumerate() {
                if index % 2 == 0 {
                    out.push_str(part);
                } else {
                    out.push('_');
                }
            }
            out.push('\n');
        }
    }
    out
}

/// The targets of `[label](target)` in a document's prose.
fn targets(prose: &str) -> Vec<String> {
    let after = prose.match_indices("](").map(|(at, _)| &prose[at + 2..]);
    after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// Every relative link leads to a file, and its anchor to a heading there.
#[test]
fn links_lead_somewhere() {
    let mut all = Vec::new();
    files(&root(), &["md"], &mut all);
    assert!(all.len() > 20, "the documents have moved");
    let mut broken = Vec::new();
    for path in all {
        let text = fs::read_to_string(&path).unwrap();
        for target in targets(&prose(&text)) {
            if target.starts_with("http") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
            let is_heading = || anchors(&fs::read_to_string(&to).unwrap()).contains(anchor);
            if !to.exists() || (!anchor.is_empty() && !is_heading()) {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}

/// A document names another one by a link; code names those that exist.
#[test]
fn named_documents_exist() {
    let mut all = Vec::new();
    files(&root(), &["md", "rs", "py", "toml"], &mut all);
    let mut wrong = Vec::new();
    for path in all {
        let is_document = path.extension().is_some_and(|e| e == "md");
        let text = fs::read_to_string(&path).unwrap();
        let text = if is_document { prose(&text) } else { text };
        for (at, _) in text.match_indices("docs/") {
            let rest = &text[at..];
            let is_part = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
            let name = rest.split(|c| !is_part(c)).next().unwrap().trim_end_matches('.');
            let is_link = ["](", "["].iter().any(|mark| text[..at].ends_with(mark))
                || text[..at].ends_with("../");
            if !name.ends_with(".md") || is_link {
                continue;
            }
            if is_document || !root().join(name).exists() {
                wrong.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "documents that are no links, or do not exist: {wrong:#?}");
}

/// The paths that a text stands for: `a/{b,c}.rs` is two.
fn paths(text: &str) -> Vec<String> {
    let Some((before, rest)) = text.split_once('{') else { return vec![text.to_owned()] };
    let Some((inner, after)) = rest.split_once('}') else { return vec![text.to_owned()] };
    let each = inner.split(',').map(|part| format!("{before}{part}{after}"));
    each.flat_map(|path| paths(&path)).collect()
}

/// A file or folder of the sources that a document names in `code` is there.
#[test]
fn named_sources_exist() {
    let mut all = Vec::new();
    files(&root(), &["md"], &mut all);
    let mut missing = Vec::new();
    // Records of what was measured name what there was.
    let is_record = |path: &PathBuf| path.starts_with(root().join("results"));
    for path in all.iter().filter(|path| !is_record(path)) {
        let text = fs::read_to_string(path).unwrap();
        for quoted in text.split('`').skip(1).step_by(2) {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "/-_.{,}".contains(c);
            let is_source = ["crates/", "scripts/", "vectors/", "python/"]
                .iter()
                .any(|folder| quoted.starts_with(folder));
            if is_source && quoted.chars().all(is_part) {
                let gone = paths(quoted).into_iter().filter(|path| !root().join(path).exists());
                missing.extend(gone.map(|gone| format!("{}: {gone}", path.display())));
            }
        }
    }
    assert!(missing.is_empty(), "sources that are not there: {missing:#?}");
}

/// The site's summary has each page once.
#[test]
fn summary_is_complete() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut pages = Vec::new();
    files(&root().join("docs"), &["md"], &mut pages);
    let mut missing = Vec::new();
    for page in pages {
        let name = page.strip_prefix(root().join("docs")).unwrap().display().to_string();
        if name != "SUMMARY.md" && summary.matches(&format!("({name})")).count() != 1 {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "not once in docs/SUMMARY.md: {missing:?}");
}
