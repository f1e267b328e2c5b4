//! The pages of the docs, their tables, and the sources that they speak of, for tests of docs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn below(dir: &Path, extension: &str, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            below(&path, extension, all);
        } else if path.extension().is_some_and(|own| own == extension) {
            all.push(path);
        }
    }
}

/// A page below docs/.
pub fn page(name: &str) -> String {
    let path = root().join("docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The pages that a user reads, with their names.
pub fn pages() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    for folder in ["start", "guides", "operate", "reference"] {
        below(&root().join("docs").join(folder), "md", &mut paths);
    }
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// Every page of the docs, those of who changes the code too, with their names.
pub fn all_pages() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    below(&root().join("docs"), "md", &mut paths);
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// All sources, tests and scripts as one text.
pub fn everything() -> String {
    let mut paths = Vec::new();
    for (folder, extension) in
        [("crates", "rs"), ("crates", "py"), ("scripts", "py"), ("python", "py")]
    {
        below(&root().join(folder), extension, &mut paths);
    }
    let texts = paths.iter().map(|path| std::fs::read_to_string(path).unwrap());
    texts.collect::<Vec<String>>().join("\n")
}

/// The rows of the table below a heading, cell by cell; the heading's own line is not in it.
pub fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let below = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{heading}"));
    let lines = below.1.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |row: &str| {
        let inner = row.trim().trim_matches('|');
        inner.split(" | ").map(|cell| cell.trim().to_string()).collect()
    };
    rows.map(cells).collect()
}

/// What stands between backticks.
pub fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// All sources as one text, in which a string that goes on in the next line is in one piece.
pub fn sources() -> String {
    let mut paths = Vec::new();
    below(&root().join("crates"), "rs", &mut paths);
    paths.retain(|path| !path.components().any(|part| part.as_os_str() == "tests"));
    let mut all = String::new();
    for path in paths {
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let mut line = line.to_string();
            while let Some(begun) = line.strip_suffix('\\') {
                line = begun.to_string() + lines.next().unwrap_or_default().trim_start();
            }
            all += &line;
            all.push('\n');
        }
    }
    all
}

/// Constants by their names: the expressions that are their values.
pub fn constants(sources: &str) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut rest = sources;
    while let Some((_, from)) = rest.split_once("const ") {
        rest = from;
        let Some((name, typed)) = from.split_once(':') else { break };
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(is_name) {
            continue;
        }
        let Some((_, value)) = typed.split_once(" = ").or_else(|| typed.split_once(" =\n")) else {
            continue;
        };
        let value = value.split(';').next().unwrap_or_default().trim().to_string();
        all.entry(name.to_string()).or_default().push(value);
    }
    all
}

/// An operator, and what it does.
type Operator = (&'static str, fn(u128, u128) -> u128);

/// The values that a constant's expression may have: numbers, `*`, `<<`, `+`, and other constants,
/// of which there may be several with one name.
pub fn values(expression: &str, all: &BTreeMap<String, Vec<String>>, depth: u32) -> Vec<u128> {
    let text = expression.trim().trim_start_matches('(').trim_end_matches(')');
    if depth > 8 {
        return Vec::new();
    }
    let operators: [Operator; 3] =
        [(" + ", |a, b| a + b), (" * ", |a, b| a * b), (" << ", |a, b| a << b)];
    for (operator, apply) in operators {
        let Some((left, right)) = text.split_once(operator) else { continue };
        let (left, right) = (values(left, all, depth + 1), values(right, all, depth + 1));
        return left.iter().flat_map(|a| right.iter().map(|b| apply(*a, *b))).collect();
    }
    for (call, ns) in
        [("Duration::from_secs(", 1_000_000_000), ("Duration::from_millis(", 1_000_000)]
    {
        if let Some(inner) = text.strip_prefix(call) {
            return values(inner, all, depth + 1).iter().map(|value| value * ns).collect();
        }
    }
    if let Ok(number) = text.replace('_', "").parse() {
        return vec![number];
    }
    let name = text.rsplit("::").next().unwrap_or_default();
    let known = all.get(name).into_iter().flatten();
    known.flat_map(|own| values(own, all, depth + 1)).collect()
}
