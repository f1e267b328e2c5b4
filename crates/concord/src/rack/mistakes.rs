//! Mistakes in a rack file, each reported in one line: the place, and what to write instead.

use std::fmt;

use toml::de::{DeTable, DeValue};

use super::VERSION;
use super::names::{Names, Shape, flag_of_up};

/// A mistake, with its place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The keys that it concerns, such as `replica.0.addr`, the likeliest first.
    places: Vec<String>,
    message: String,
    /// The message for a mistake that was made with flags, if its remedy is a different one.
    flags: Option<String>,
}

impl Mistake {
    /// A mistake at one key.
    pub fn at(place: impl Into<String>, message: impl Into<String>) -> Mistake {
        Mistake { places: vec![place.into()], message: message.into(), flags: None }
    }

    /// Settings that do not fit each other.
    pub fn of_misfit(places: &[&str], misfit: &Misfit) -> Mistake {
        let Misfit { why, keys, flags } = misfit;
        let flags = Some(format!("{why}: say {flags}"));
        Mistake { flags, ..Mistake::among(places, format!("{why}: write {keys}")) }
    }

    /// A mistake that concerns several keys, of which the file may have only one.
    pub fn among(places: &[&str], message: impl Into<String>) -> Mistake {
        let places = places.iter().map(ToString::to_string).collect();
        Mistake { places, message: message.into(), flags: None }
    }

    /// The same mistake within the section `place`.
    #[must_use]
    pub fn within(mut self, place: &str) -> Mistake {
        for inner in &mut self.places {
            *inner = format!("{place}.{inner}");
        }
        self
    }

    /// The message as `:<line>: <message>`, without the line if the file has none of the keys.
    pub fn in_file(&self, text: &str) -> String {
        let line = self.line_in(text).map_or_else(String::new, |line| format!(":{line}"));
        format!("{line}: {}", self.message)
    }

    /// The line of the file that the mistake is about.
    pub fn line_in(&self, text: &str) -> Option<usize> {
        let file = DeTable::parse(text).ok()?;
        let found: Vec<_> = self.places.iter().map(|place| find(file.get_ref(), place)).collect();
        let whole = found.iter().find(|(_, is_whole)| *is_whole);
        let at = whole.or(found.first()).and_then(|(at, _)| *at);
        at.map(|at| line_at(text, at))
    }
}

/// The message alone, with the remedy for flags.
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.flags.as_ref().unwrap_or(&self.message))
    }
}

/// Settings that do not fit each other, and the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The reason why they do not fit.
    pub why: &'static str,
    /// Keys of the rack file that fit.
    pub keys: &'static str,
    /// Flags that fit.
    pub flags: &'static str,
}

/// The position of a key in the file, or of the section that lacks it; and whether the key was
/// found.
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

/// An error of the parser as `:<line>: <message>`.
pub fn unreadable(text: &str, error: &toml::de::Error) -> String {
    let version = toml::from_str::<toml::Table>(text).ok();
    let version = version.and_then(|file| file.get("version")?.as_integer());
    if let Some(version) = version.filter(|version| *version != i64::from(VERSION)) {
        return other_version(version).in_file(text);
    }
    let message = error.message().replace('\n', "; ");
    let Some(span) = error.span() else { return format!(": {message}") };
    let number = line_at(text, span.start);
    let source = text.lines().nth(number - 1).unwrap_or_default().trim();
    let line = Line { text, number, source, names: Names::new() };
    let (number, message) = if DeTable::parse(text).is_ok() {
        (number, line.misread(&message))
    } else if message == "duplicate key" {
        line.repeated()
    } else {
        let what = line.hint().unwrap_or(message);
        (number, format!("{what}: `{source}`"))
    };
    format!(":{number}: {message}")
}

/// The mistake of a file of another version than this program's.
pub fn other_version(version: i64) -> Mistake {
    Mistake::at("version", format!("version is {version}; this concord reads version {VERSION}"))
}

/// The types as the parser names them, and the advice for a person.
const KINDS: [(&str, &str); 8] = [
    ("u64", "write a whole number, 0 or more"),
    ("u32", "write a whole number from 0 to 4294967295"),
    ("u16", "write a whole number from 0 to 65535"),
    ("u8", "write a whole number from 0 to 255"),
    ("f64", "write a number"),
    ("a string", "write text in double quotes"),
    ("a boolean", "write true or false"),
    ("path string", "write a path in double quotes"),
];
/// Quotation marks that word processors write.
const CURLED: [char; 8] = ['“', '”', '„', '‟', '‘', '’', '«', '»'];
/// The beginnings of comments in other languages.
const COMMENTS: [&str; 4] = [";", "//", "--", "/*"];

/// The line at which the parser stopped.
struct Line<'a> {
    text: &'a str,
    number: usize,
    source: &'a str,
    names: Names,
}

impl Line<'_> {
    /// The name of the section, if the line begins one.
    fn section(&self) -> Option<&str> {
        header(self.source)
    }

    /// The key and its value as they are written; a table within the line hides the key.
    fn entry(&self) -> Option<(&str, &str)> {
        let (key, value) = self.source.split_once('=')?;
        (self.section().is_none() && !value.contains('{')).then_some((key.trim(), value.trim()))
    }

    /// The shape of the value that the line's key expects.
    fn shape(&self) -> Option<Shape> {
        let (key, _) = self.entry()?;
        self.names.shape(key.rsplit('.').next().unwrap_or(key))
    }

    /// The likely reason why the line is not TOML.
    fn hint(&self) -> Option<String> {
        let bare = outside_quotes(self.source);
        if bare.contains(CURLED) {
            return Some("text is written in plain double quotes, \"".to_string());
        }
        let ends_in_comment = COMMENTS.iter().any(|mark| bare.contains(&format!(" {mark}")));
        if ends_in_comment || COMMENTS.iter().any(|mark| bare.starts_with(mark)) {
            return Some("comments begin with #".to_string());
        }
        let (_, value) = self.entry()?;
        if value.is_empty() || value.starts_with('#') {
            return Some("a value is missing".to_string());
        }
        if self.source.matches('"').count() % 2 == 1 {
            return Some("text stands between two double quotes, of which one is missing".into());
        }
        let is_word = |c: char| c.is_ascii_alphabetic() || ".:/".contains(c);
        if value.contains(['"', '\'']) || !value.contains(is_word) {
            return None;
        }
        match self.shape() {
            Some(shape @ (Shape::Boolean | Shape::Whole | Shape::Number)) => Some(shape.remedy("")),
            _ => Some("text is written in double quotes".to_string()),
        }
    }

    /// The message for a repeated key or section: the line to change, and how.
    fn repeated(&self) -> (usize, String) {
        let source = self.source;
        let Some(section) = self.section() else {
            return (self.number, format!("this key is there twice: `{source}`"));
        };
        let above = self.text.lines().take(self.number - 1);
        let first = above.map(str::trim).zip(1..).find(|(line, _)| header(line) == Some(section));
        let Some((line, first)) = first else {
            return (self.number, format!("this section is there twice: `{source}`"));
        };
        let is_several = self.names.shape_at(section) == Some(Shape::Sections);
        if is_several && !line.starts_with("[[") {
            (first, format!("there may be several of this section: write [[{section}]]"))
        } else if !is_several && source.starts_with("[[") {
            (self.number, format!("there is one of this section: write [{section}]"))
        } else {
            let line = format!("this section is there twice, first in line {first}: `{source}`");
            (self.number, line)
        }
    }

    /// The parser's message about TOML that is no rack file, in the terms of the reference.
    fn misread(&self, message: &str) -> String {
        if let Some(section) = self.section()
            && (message.starts_with("invalid type") || message.starts_with("wanted "))
        {
            return self.misplaced(section, message);
        }
        if message == "invalid socket address syntax" {
            return self.no_address();
        }
        let is_section = self.section().is_some();
        if let Some(unknown) = message.strip_prefix("unknown field ") {
            return self.unknown(unknown, is_section);
        }
        let message = message
            .replace("unknown variant", "unknown value")
            .replace("missing field", "this section lacks the key");
        let key = self.entry().map(|(key, _)| format!("{key}: ")).unwrap_or_default();
        let wrong = message.strip_prefix("invalid ").and_then(|rest| rest.split_once(": "));
        if let Some((found, expected)) = wrong.and_then(|(_, rest)| rest.rsplit_once(", expected "))
        {
            let known = KINDS.iter().find(|(theirs, _)| expected == *theirs);
            let known = known.map(|(_, ours)| ours.to_string());
            return match known.or_else(|| self.remedy()) {
                Some(remedy) => format!("{key}found {found}; {remedy}"),
                None => format!("{key}{message}"),
            };
        }
        match (message.strip_prefix("expected a size"), self.entry()) {
            (Some(like), Some((_, value))) => format!("{key}found `{value}`; write a size{like}"),
            _ if message.starts_with("wanted ") => {
                let (_, value) = self.entry().unwrap_or_default();
                let remedy = self.remedy().unwrap_or(message);
                format!("{key}found `{value}`; {remedy}")
            }
            _ => message,
        }
    }

    /// The way in which the line's key is written.
    fn remedy(&self) -> Option<String> {
        let (key, _) = self.entry()?;
        self.shape().map(|shape| shape.remedy(key))
    }

    /// The message for a section that may, or may not, be repeated, or that is a key.
    fn misplaced(&self, section: &str, message: &str) -> String {
        let above = || self.text.lines().take(self.number - 1);
        let shape = self.names.shape_at(section);
        if section.starts_with("group.") && !above().any(|line| header(line) == Some("group")) {
            return format!(
                "[[{section}]] stands below the [[group]] that it is of; there is none above"
            );
        }
        match shape {
            Some(shape) if !shape.is_section() => {
                let remedy = shape.remedy(section);
                format!("`{section}` is a key and no section: {remedy}, as {section} = ...")
            }
            _ if message.starts_with("invalid type: map, expected a sequence") => {
                format!("there may be several of this section: write [[{section}]]")
            }
            _ => format!("there is one of this section: write [{section}]"),
        }
    }

    /// The message for an address that has a wrong port, or is no address.
    fn no_address(&self) -> String {
        let value = self.entry().map(|(_, value)| value).unwrap_or_default();
        let text = value.split('"').nth(1).unwrap_or_default();
        match text.rsplit_once(':') {
            Some((ip, port)) if ip.parse::<std::net::Ipv4Addr>().is_ok() => no_port(port),
            _ => "write an IP address and a port in double quotes, like \"10.0.0.7:9001\"".into(),
        }
    }

    /// The message for an unknown name: where it belongs, or the most similar known name, or all of
    /// them.
    fn unknown(&self, message: &str, is_section: bool) -> String {
        let names = |text: &str| -> Vec<String> {
            text.split('`').skip(1).step_by(2).map(str::to_string).collect()
        };
        let (found, expected) = message.split_once(", expected ").unwrap_or((message, ""));
        let known = self.names.of_kind(&names(expected), is_section);
        let what = if is_section { "section" } else { "key" };
        let unknown = names(found).into_iter().next().unwrap_or_default();
        let group = format!("group.{unknown}");
        let belongs = match is_section {
            true if self.names.shape_at(&group).is_some_and(|shape| shape.is_section()) => {
                vec![format!("below a [[group]], as [[{group}]]")]
            }
            true => Vec::new(),
            false => self.names.homes(&unknown),
        };
        if !belongs.is_empty() {
            let homes = belongs.join(" or ");
            return format!("unknown {what} {found} here; it belongs {homes}");
        }
        let distance = |name: &String| strsim::damerau_levenshtein(&unknown, name);
        let near = known.iter().map(|name| (distance(name), name)).min();
        if let Some((_, name)) = near.filter(|(distance, _)| *distance <= 1 + unknown.len() / 3) {
            return format!("unknown {what} {found}; the nearest known one is `{name}`");
        }
        if let Some(flag) = flag_of_up(&unknown).filter(|_| !is_section) {
            return format!("unknown key {found}: it is a flag of `concord up`, {flag}");
        }
        if known.is_empty() {
            return format!("unknown {what} {found}: there is none here");
        }
        let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        format!("unknown {what} {found}, expected one of {}", known.join(", "))
    }
}

/// The message for text that is no port.
pub fn no_port(text: &str) -> String {
    format!("the port is 1 to 65535, not {text:?}")
}

/// The name of the section that a line begins, if it does.
fn header(line: &str) -> Option<&str> {
    let (inner, _) = line.trim().strip_prefix('[')?.split_once(']')?;
    Some(inner.trim_start_matches('[').trim())
}

/// The part of a line outside of double quotes and comments.
fn outside_quotes(line: &str) -> String {
    let outside = line.split('"').step_by(2).collect::<Vec<&str>>().join("\"\"");
    outside.split('#').next().unwrap_or_default().to_string()
}
