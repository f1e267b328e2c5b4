//! What is wrong with a rack file, in one line: where, and what to write in its place.

use std::fmt;

use schemars::schema_for;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::{Rack, VERSION};

/// Something that does not fit, and where the file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Keys that have to do with it, as `replica.0.addr`, the likeliest first.
    places: Vec<String>,
    message: String,
}

impl Mistake {
    /// Of one key.
    pub fn at(place: impl Into<String>, message: impl Into<String>) -> Mistake {
        Mistake { places: vec![place.into()], message: message.into() }
    }

    /// Of several keys, of which the file may have one alone.
    pub fn among(places: &[&str], message: impl Into<String>) -> Mistake {
        let places = places.iter().map(ToString::to_string).collect();
        Mistake { places, message: message.into() }
    }

    /// Within the section `place`.
    #[must_use]
    pub fn within(mut self, place: &str) -> Mistake {
        for inner in &mut self.places {
            *inner = format!("{place}.{inner}");
        }
        self
    }

    /// As `:<line>: <message>`, without the line if the file says nothing of it.
    pub fn in_file(&self, text: &str) -> String {
        let Ok(file) = DeTable::parse(text) else { return format!(": {self}") };
        let found: Vec<_> = self.places.iter().map(|place| find(file.get_ref(), place)).collect();
        let whole = found.iter().find(|(_, is_whole)| *is_whole);
        let at = whole.or(found.first()).and_then(|(at, _)| *at);
        at.map_or_else(|| format!(": {self}"), |at| format!(":{}: {self}", line_at(text, at)))
    }
}

/// The message alone.
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Where in the file a key is, or the section that lacks it, and whether it was the key.
fn find(file: &DeTable<'_>, place: &str) -> (Option<usize>, bool) {
    let mut at = None;
    let mut table = Some(file);
    let mut list = None;
    for step in place.split('.') {
        let value: &DeValue<'_> = match (list.take(), table.take()) {
            (Some(all), _) => {
                let all: &toml::de::DeArray<'_> = all;
                let Some(one) = step.parse().ok().and_then(|n: usize| all.get(n)) else {
                    return (at, false);
                };
                at = Some(one.span().start);
                one.get_ref()
            }
            (None, Some(keys)) => {
                let Some((key, value)) = keys.get_key_value(step) else { return (at, false) };
                at = Some(key.span().start);
                value.get_ref()
            }
            (None, None) => return (at, false),
        };
        list = value.as_array();
        table = value.as_table();
    }
    (at, true)
}

fn line_at(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// What the parser says of a file, as `:<line>: <message>`.
pub fn unreadable(text: &str, error: &toml::de::Error) -> String {
    let version = toml::from_str::<toml::Table>(text).ok();
    let version = version.and_then(|file| file.get("version")?.as_integer());
    if let Some(version) = version.filter(|version| *version != i64::from(VERSION)) {
        return other_version(version).in_file(text);
    }
    let line = error.span().map(|span| line_at(text, span.start));
    let source = line.and_then(|line| text.lines().nth(line - 1)).unwrap_or_default();
    let is_toml = DeTable::parse(text).is_ok();
    let message = reworded(&error.message().replace('\n', "; "), source.trim(), is_toml);
    line.map_or_else(|| format!(": {message}"), |line| format!(":{line}: {message}"))
}

/// The file is of another version than this program.
pub fn other_version(version: i64) -> Mistake {
    Mistake::at("version", format!("version is {version}; this concord reads version {VERSION}"))
}

/// What the parser expects, and how a person is told to write it.
const KINDS: [(&str, &str); 9] = [
    ("u64", "write a whole number, 0 or more"),
    ("u32", "write a whole number from 0 to 4294967295"),
    ("u16", "write a whole number from 0 to 65535"),
    ("u8", "write a whole number from 0 to 255"),
    ("f64", "write a number"),
    ("a string", "write text in double quotes"),
    ("a boolean", "write true or false"),
    ("path string", "write a path in double quotes"),
    ("socket address", "write an IP address and a port in double quotes, like \"10.0.0.7:9001\""),
];

/// The parser's message about the line `source`, in the words of the reference.
fn reworded(message: &str, source: &str, is_toml: bool) -> String {
    let section = source.trim_matches(['[', ']']);
    if !is_toml {
        let what = if message == "duplicate key" { "this key is there twice" } else { message };
        let (_, value) = source.split_once('=').unwrap_or_default();
        let is_bare = !value.contains(['"', '\''])
            && value.contains(|c: char| c.is_ascii_alphabetic() || ".:/".contains(c));
        let what = if is_bare { "text is written in double quotes" } else { what };
        return format!("{what}: `{source}`");
    } else if message.starts_with("invalid type: map, expected a sequence") {
        return format!("there may be several of this section: write [[{section}]]");
    } else if message.starts_with("invalid type") && source.starts_with("[[") {
        return format!("there is one of this section: write [{section}]");
    } else if message == "invalid socket address syntax" {
        return KINDS[8].1.to_string();
    }
    let is_section = source.starts_with('[');
    let message = message
        .replace("unknown field", if is_section { "unknown section" } else { "unknown key" })
        .replace("unknown variant", "unknown value")
        .replace("missing field", "this section lacks the key");
    if message.starts_with("unknown ") {
        return nearest(&message);
    }
    let wrong = message.strip_prefix("invalid ").and_then(|rest| rest.split_once(": "));
    let Some((found, expected)) = wrong.and_then(|(_, rest)| rest.rsplit_once(", expected "))
    else {
        return message;
    };
    let known = KINDS.iter().find(|(theirs, _)| expected == *theirs);
    known.map_or(message.clone(), |(_, ours)| format!("found {found}; {ours}"))
}

/// The message of an unknown name, with the nearest of those that were expected in place of them all.
fn nearest(message: &str) -> String {
    let Some((found, expected)) = message.split_once(", expected ") else {
        return message.to_string();
    };
    let names = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).map(str::to_string).collect()
    };
    let (unknown, known) = (names(found), names(expected));
    let Some(unknown) = unknown.first() else { return message.to_string() };
    if found.starts_with("unknown key") {
        let homes = homes(unknown);
        if !homes.is_empty() {
            return format!("{found} here; it belongs {}", homes.join(" or "));
        }
    }
    let by_distance =
        known.iter().map(|name| (strsim::damerau_levenshtein(unknown, name), name)).min();
    let near = by_distance.filter(|(distance, _)| *distance <= 1 + unknown.len() / 3);
    near.map_or_else(
        || message.to_string(),
        |(_, name)| format!("{found}; the nearest known one is `{name}`"),
    )
}

/// The sections that have a key of this name.
fn homes(name: &str) -> Vec<String> {
    let schema = schema_for!(Rack).to_value();
    let mut homes = Vec::new();
    if schema["properties"].get(name).is_some() {
        homes.push("to the top level, above the first section".to_string());
    }
    let properties = schema["properties"].as_object();
    for (section, value) in properties.into_iter().flatten() {
        let is_list = value["type"] == "array";
        let of = if is_list { &value["items"] } else { value };
        let one = of["anyOf"].as_array().and_then(|any| any.first()).unwrap_or(of);
        let definition = one["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let keys = definition.map_or(&Value::Null, |d| &schema["$defs"][d]["properties"]);
        if keys.get(name).is_some() {
            homes.push(format!(
                "in {}",
                if is_list { format!("[[{section}]]") } else { format!("[{section}]") }
            ));
        }
    }
    homes
}
