//! Sections of a scenario's file: values by key, within bounds, and errors that name line and key.

use std::fmt;
use std::ops::RangeInclusive;

use toml::Value;

use crate::engine::{NS, US};

/// Reads a file that a scenario names; an error is one line with the file's name.
pub type Files<'a> = dyn Fn(&str) -> Result<String, String> + 'a;

/// The maximum of times in a file: an hour, in ps.
const TIME_PS_MAX: u64 = 3_600_000_000 * US;

/// The valid bandwidths of links: below, the time of a packet would overflow.
pub(super) const BITS_PER_S: RangeInclusive<u64> = 1_000_000..=100_000_000_000_000;

/// The reason why a scenario cannot be run: one line that says what is wrong, where, and what to
/// do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError(pub(super) String);

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key or a value may be any text.
        let one_line = |c: char| if c.is_control() { ' ' } else { c };
        f.write_str(&self.0.chars().map(one_line).collect::<String>())
    }
}

impl std::error::Error for ScenarioError {}

pub(super) fn wrong<T>(why: impl Into<String>) -> Result<T, ScenarioError> {
    Err(ScenarioError(why.into()))
}

/// A table of the file. The keys that were asked for are the valid ones.
pub(super) struct Section<'a> {
    name: String,
    text: &'a str,
    table: toml::Table,
    known: Vec<&'static str>,
}

/// The name in `known` that is nearest to `unknown`, if one is near enough.
pub(super) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |name: &'a str| (strsim::damerau_levenshtein(unknown, name), name);
    let (distance, name) = known.map(distance).min()?;
    (distance <= 1 + unknown.len() / 3).then_some(name)
}

/// The suggestion "did you mean" with that name, or a list of all names.
pub(super) fn hint(unknown: &str, known: &[&str]) -> String {
    match nearest(unknown, known.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("there are {}", known.join(", ")),
    }
}

impl<'a> Section<'a> {
    pub(super) fn new(name: &str, text: &'a str, table: toml::Table) -> Section<'a> {
        Section { name: name.to_string(), text, table, known: Vec::new() }
    }

    /// The line of a key, from 1; the section's own if the key is not there.
    fn line(&self, key: &str) -> usize {
        let is_root = self.name.is_empty();
        let header = format!("[{}]", self.name);
        let table = if is_root { format!("[{key}") } else { format!("[{}.{key}", self.name) };
        let (mut own, mut is_inside) = (1, is_root);
        for (at, line) in (1..).zip(self.text.lines().map(str::trim)) {
            let begins = |with: &str, ends: [char; 2]| {
                let rest = line.strip_prefix(with);
                rest.is_some_and(|rest| rest.trim_start().starts_with(ends))
            };
            if begins(&table, [']', '.']) || is_inside && begins(key, ['=', '.']) {
                return at;
            }
            if line.starts_with('[') {
                is_inside = line.starts_with(&header) && !is_root;
                own = if is_inside { at } else { own };
            }
        }
        own
    }

    fn place(&self, key: &str) -> String {
        let section =
            if self.name.is_empty() { String::new() } else { format!("[{}] ", self.name) };
        format!("line {}: {section}{key}", self.line(key))
    }

    /// An error about the value of a key.
    pub(super) fn error(&self, key: &str, why: impl fmt::Display) -> ScenarioError {
        let value = self.table.get(key).map(|value| format!(" = {value}")).unwrap_or_default();
        let value: String =
            value.chars().take(60).map(|c| if c == '\n' { ' ' } else { c }).collect();
        ScenarioError(format!("{}{value}: {why}", self.place(key)))
    }

    pub(super) fn value(&mut self, key: &'static str) -> Option<&Value> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.table.get(key)
    }

    pub(super) fn required<T>(
        &self,
        key: &str,
        value: Option<T>,
        example: &str,
    ) -> Result<T, ScenarioError> {
        let why = format!("{} is missing: write {key} = {example}", self.place(key));
        value.map_or_else(|| wrong(why), Ok)
    }

    /// Reads a whole number.
    pub(super) fn whole(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ScenarioError> {
        let Some(value) = self.value(key).cloned() else { return Ok(None) };
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        match number {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (low, high) = (range.start(), range.end());
                let high = match *high {
                    high if high >= i64::MAX as u64 => "on".to_string(),
                    high => format!("to {high}"),
                };
                Err(self.error(key, format!("a whole number from {low} {high}")))
            }
        }
    }

    /// Reads a whole number of 32 bits.
    pub(super) fn whole_u32(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, ScenarioError> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        Ok(self.whole(key, range)?.map(|number| number as u32))
    }

    /// Reads a number, with or without a fraction.
    pub(super) fn number(
        &mut self,
        key: &'static str,
        (low, high): (f64, f64),
    ) -> Result<Option<f64>, ScenarioError> {
        let Some(value) = self.value(key).cloned() else { return Ok(None) };
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
        match number {
            Some(number) if number >= low && number <= high => Ok(Some(number)),
            _ => Err(self.error(key, format!("a number from {low} to {high}"))),
        }
    }

    /// Reads a time whose key ends in `_ns` or `_us`; returns ps.
    pub(super) fn time(&mut self, key: &'static str) -> Result<Option<u64>, ScenarioError> {
        let unit = if key.ends_with("_us") || key.contains("_us_") { US } else { NS };
        let most = (TIME_PS_MAX / unit) as f64;
        Ok(self.number(key, (0.0, most))?.map(|time| (time * unit as f64).round() as u64))
    }

    /// Reads a bandwidth whose key ends in `_gbps`; returns bits per second.
    pub(super) fn rate(&mut self, key: &'static str) -> Result<Option<u64>, ScenarioError> {
        Ok(self.number(key, (1e-3, 1e5))?.map(|gbps| (gbps * 1e9).round() as u64))
    }

    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<String>, ScenarioError> {
        let Some(value) = self.value(key).cloned() else { return Ok(None) };
        match value {
            Value::String(text) => Ok(Some(text)),
            _ => Err(self.error(key, "a text in double quotes")),
        }
    }

    /// Reads one of several names; returns its index.
    pub(super) fn choice(
        &mut self,
        key: &'static str,
        names: &[&str],
    ) -> Result<Option<usize>, ScenarioError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        match names.iter().position(|name| *name == text) {
            Some(place) => Ok(Some(place)),
            None => Err(self.error(key, hint(&text, names))),
        }
    }

    pub(super) fn list(&mut self, key: &'static str) -> Result<Option<Vec<Value>>, ScenarioError> {
        let Some(value) = self.value(key).cloned() else { return Ok(None) };
        match value {
            Value::Array(list) => Ok(Some(list)),
            _ => Err(self.error(key, "a list in brackets")),
        }
    }

    /// A table below this one; an empty one if it does not exist.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Section<'a>, ScenarioError> {
        let name = if self.name.is_empty() { key.into() } else { format!("{}.{key}", self.name) };
        match self.value(key).cloned() {
            None => Ok(Section::new(&name, self.text, toml::Table::new())),
            Some(Value::Table(table)) => Ok(Section::new(&name, self.text, table)),
            Some(_) => Err(self.error(key, format!("a section: write [{name}]"))),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Checks that every key was asked for.
    pub(super) fn finish(self) -> Result<(), ScenarioError> {
        let unknown = self.table.keys().find(|key| !self.known.contains(&key.as_str()));
        let Some(unknown) = unknown else { return Ok(()) };
        let what = if self.table[unknown].is_table() { "section" } else { "key" };
        let hint = if self.known.is_empty() {
            "none is read here".into()
        } else {
            hint(unknown, &self.known)
        };
        wrong(format!("{}: unknown {what}; {hint}", self.place(unknown)))
    }
}
