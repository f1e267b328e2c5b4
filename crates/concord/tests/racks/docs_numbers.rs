//! Numbers, names of constants, flags and messages that the docs state are those of the code.

use std::collections::BTreeSet;

use crate::common::concord;
use crate::common::pages::*;

/// "10 s (`STUCK_NS`)": the number and its unit in front of a constant in brackets.
fn stated(page: &str) -> Vec<(u128, String)> {
    let text = page.replace('\n', " ");
    let mut found = Vec::new();
    for (at, _) in text.match_indices(" (`") {
        let name: String = text[at + 3..].chars().take_while(|c| *c != '`').collect();
        let before: Vec<&str> = text[..at].split_whitespace().rev().take(3).collect();
        let [last, second, third] = before[..] else { continue };
        let number = amount(last)
            .or_else(|| amount(&format!("{second} {last}")))
            .or_else(|| amount(&format!("{third} {second}")));
        found.extend(number.map(|number| (number, name)));
    }
    found
}

/// A number as the docs write it, with its unit: bytes, or nanoseconds.
fn amount(text: &str) -> Option<u128> {
    let mut words = text.split_whitespace();
    let number: u128 = words.next()?.replace(',', "").parse().ok()?;
    let unit = match words.next().unwrap_or_default().trim_end_matches([',', ';', '.', ':']) {
        "KiB" => 1 << 10,
        "MiB" | "MiB/s" => 1 << 20,
        "GiB" => 1 << 30,
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "million" => 1_000_000,
        "of" | "about" => return None,
        _ => 1,
    };
    Some(number * unit)
}

fn is_constant(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    name.contains('_') && name.len() > 4 && name.chars().all(is_part)
}

/// Names of what is set from outside: no constants of the code.
const FROM_OUTSIDE: [&str; 8] =
    ["CONCORD_", "GLIBC_", "RUST_", "CLOCK_", "O_", "TCP_", "EVAL", "FCALL"];

#[test]
fn docs_numbers_beside_a_constant_are_its_value() {
    let sources = sources();
    let constants = constants(&sources);
    let (mut checked, mut differ) = (BTreeSet::new(), Vec::new());
    let mut compare = |page: &str, number: u128, name: &str| {
        let Some(known) = constants.get(name) else { return };
        let values: Vec<u128> = known.iter().flat_map(|own| values(own, &constants, 0)).collect();
        if values.is_empty() {
            return;
        }
        checked.insert(name.to_string());
        if !values.contains(&number) {
            differ.push(format!("{page}: {number} beside {name}, which is {values:?}"));
        }
    };
    for (name, text) in pages() {
        for (number, constant) in stated(&text) {
            compare(&name, number, &constant);
        }
    }
    // | 16 KiB of ... | `INPUT_BYTES_MAX` | ... |
    for row in table(&page("reference/semantics/limits.md"), "### Of a gateway") {
        let number = amount(row[0].trim_start_matches("at most "));
        let first = quoted(&row[1]).into_iter().next();
        if let (Some(number), Some(first)) = (number, first) {
            compare("semantics.md", number, &first);
        }
    }
    println!("compared: {checked:?}");
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(checked.len() >= 8, "only {checked:?} could be compared");
}

#[test]
fn docs_constants_are_in_the_code() {
    let constants = constants(&sources());
    let mut missing = Vec::new();
    for (page, text) in pages() {
        for name in quoted(&text).into_iter().filter(|name| is_constant(name)) {
            let is_outside = FROM_OUTSIDE.iter().any(|prefix| name.starts_with(prefix));
            if !is_outside && !constants.contains_key(&name) {
                missing.push(format!("{page}: `{name}`"));
            }
        }
    }
    assert!(missing.is_empty(), "not in the code: {}", missing.join(", "));
}

/// Every flag that a page names beside `concord` is one of the commands'.
#[test]
fn docs_flags_are_those_of_the_commands() {
    let reference = page("reference/reference.md");
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
    };
    let known: BTreeSet<String> =
        reference.match_indices("--").map(|(at, _)| word(&reference[at..])).collect();
    let mut missing = Vec::new();
    for (page, text) in pages().into_iter().filter(|(page, _)| page != "reference.md") {
        for line in text.lines().filter(|line| line.contains("concord ")) {
            for (at, _) in line.match_indices(" --") {
                let flag = word(&line[at + 1..]);
                let before = line[..at].rfind("concord ");
                let is_own = before.is_some_and(|from| {
                    let between = &line[from..at];
                    !between.contains(['`', '|', ';', '&']) && !line[..from].ends_with("-p ")
                });
                if is_own && flag != "--help" && flag.len() > 2 && !known.contains(&flag) {
                    missing.push(format!("{page}: {flag} in {line}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    // And the reference is what the commands say (a test beside the code compares all of it).
    let help = String::from_utf8(concord(&["up", "--help"]).stdout).unwrap();
    assert!(help.contains("--run-dir") && known.contains("--run-dir"));
}

/// What stands in an example for what a rack has.
const NAMES: [&str; 8] = [
    "replica N",
    "store runs PrimaryBackup",
    "a raft",
    "worker",
    "gateway",
    "switch",
    "replicas",
    "replica",
];

/// The parts of a message that are the same each time.
fn fixed_parts(message: &str) -> Vec<String> {
    let mut text = message.trim_start_matches("PROBLEM: ").replace(char::is_numeric, "...");
    for name in NAMES {
        text = text.replace(name, "...");
    }
    let parts = text.split("...").flat_map(|part| part.split(": ").flat_map(|p| p.split(", ")));
    let trimmed = parts.map(|part| part.trim_matches(|c: char| !c.is_ascii_alphabetic()));
    trimmed.filter(|part| part.len() >= 8).map(str::to_string).collect()
}

/// What the docs quote of messages and logs is in the code, word for word.
#[test]
fn docs_messages_are_those_of_the_code() {
    let sources = sources();
    // A name or a number is put in where the code has braces.
    let known: Vec<&str> = sources.lines().filter(|line| line.contains('"')).collect();
    let operations = page("operate/operations.md");
    let problems = page("operate/problems.md");
    let quotes = problems.lines().filter_map(|line| line.strip_prefix('>'));
    let troubles = quotes.flat_map(quoted).collect::<Vec<String>>();
    let logs = table(&operations, "### Logs");
    let logs = logs.into_iter().flat_map(|row| quoted(&row[1])).collect();
    let messages: Vec<String> = [troubles, logs].concat();
    let mut missing = Vec::new();
    for message in &messages {
        for part in fixed_parts(message) {
            if !known.iter().any(|line| line.contains(&part)) {
                missing.push(format!("{message}: {part:?}"));
            }
        }
    }
    assert!(messages.len() > 40, "{}", messages.len());
    assert!(missing.is_empty(), "not in the code:\n{}", missing.join("\n"));
}
