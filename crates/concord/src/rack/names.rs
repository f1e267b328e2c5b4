//! The names in the rack file, from its schema, and how a value of each is written.

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use schemars::schema_for;
use serde_json::{Map, Value};

use super::Rack;
use crate::cli::Cli;

/// The shape of the value of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One section.
    Section,
    /// A section that may be repeated.
    Sections,
    /// One of several words.
    Words(Vec<String>),
    /// True or false.
    Boolean,
    /// A whole number.
    Whole,
    /// Any number.
    Number,
    /// A list.
    List,
    /// Text, such as an address, a size or a path.
    Text,
}

impl Shape {
    /// Whether it has a header of its own.
    #[must_use]
    pub fn is_section(&self) -> bool {
        matches!(self, Shape::Section | Shape::Sections)
    }

    /// The advice on how to write a value of `name`.
    #[must_use]
    pub fn remedy(&self, name: &str) -> String {
        match self {
            Shape::Section => format!("it is a section: write [{name}]"),
            Shape::Sections => format!("it is a section: write [[{name}]]"),
            Shape::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                format!("write one of {}", words.join(", "))
            }
            Shape::Boolean => "write true or false".to_string(),
            Shape::Whole => "write a whole number".to_string(),
            Shape::Number => "write a number".to_string(),
            Shape::List => "write a list of text, like [\"gpu\"]".to_string(),
            Shape::Text => "write text in double quotes".to_string(),
        }
    }
}

/// The names of the rack file.
#[derive(Debug)]
pub struct Names(Value);

impl Names {
    /// The names that this program reads.
    #[must_use]
    pub fn new() -> Names {
        Names(schema_for!(Rack).to_value())
    }

    /// The shape of `name` at the top level; or, if the top level has no such name, in any section.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<Shape> {
        let top = self.0["properties"].get(name);
        let sections = self.0["$defs"].as_object().into_iter().flat_map(Map::values);
        let below = sections.filter_map(|section| section["properties"].get(name));
        top.into_iter().chain(below).next().map(|value| self.shape_of(value))
    }

    /// The shape at a path such as `group.replica`.
    #[must_use]
    pub fn shape_at(&self, path: &str) -> Option<Shape> {
        let mut table = Some(&self.0);
        let mut found = None;
        for step in path.split('.') {
            let value = table?["properties"].get(step.trim())?;
            table = self.section(value);
            found = Some(value);
        }
        found.map(|value| self.shape_of(value))
    }

    /// Those of `names`, of one section or the top level, that are sections, or that are not.
    #[must_use]
    pub fn of_kind(&self, names: &[String], sections: bool) -> Vec<String> {
        let wanted: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let all = self.0["$defs"].as_object().into_iter().flat_map(Map::values);
        let own = std::iter::once(&self.0).chain(all).find_map(|table| {
            let keys = table["properties"].as_object()?;
            let has: BTreeSet<&str> = keys.keys().map(String::as_str).collect();
            (has == wanted).then_some(keys)
        });
        let is_section = |name: &str| own.is_some_and(|own| self.shape_of(&own[name]).is_section());
        names.iter().filter(|name| is_section(name) == sections).cloned().collect()
    }

    /// The places of a key with this name, such as `in [queue]`.
    #[must_use]
    pub fn homes(&self, name: &str) -> Vec<String> {
        let mut homes = Vec::new();
        if self.0["properties"].get(name).is_some() {
            homes.push("to the top level, above the first section".to_string());
        }
        self.homes_below(&self.0, "", name, &mut homes);
        if homes.is_empty() {
            let group = self.section(&self.0["properties"]["group"]).unwrap_or(&Value::Null);
            self.homes_below(group, "group.", name, &mut homes);
        }
        homes
    }

    fn homes_below(&self, table: &Value, prefix: &str, name: &str, homes: &mut Vec<String>) {
        for (section, value) in table["properties"].as_object().into_iter().flatten() {
            let Some(own) = self.section(value) else { continue };
            if own["properties"].get(name).is_some() {
                homes.push(match self.shape_of(value) {
                    Shape::Sections => format!("in [[{prefix}{section}]]"),
                    _ => format!("in [{prefix}{section}]"),
                });
            }
        }
    }

    /// The schema of `value`, without references and without the option to leave it out.
    fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        let one = value["anyOf"].as_array().and_then(|any| any.first()).unwrap_or(value);
        let name = one["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        name.map_or(one, |name| &self.0["$defs"][name])
    }

    /// The schema of a section, if `value` is one, or several.
    fn section<'a>(&'a self, value: &'a Value) -> Option<&'a Value> {
        let is_list = value["type"] == "array";
        let own = self.resolved(if is_list { &value["items"] } else { value });
        own["properties"].is_object().then_some(own)
    }

    fn shape_of(&self, value: &Value) -> Shape {
        let own = self.resolved(value);
        let said = &own["type"];
        let is = |wanted: &str| match said {
            Value::Array(all) => all.iter().any(|one| one == wanted),
            one => one == wanted,
        };
        let words = own["oneOf"].as_array().into_iter().flatten().map(|one| &one["const"]);
        let words = words.chain(own["enum"].as_array().into_iter().flatten());
        let words: Vec<String> = words.filter_map(|w| Some(w.as_str()?.to_string())).collect();
        match (self.section(value).is_some(), is("array")) {
            (true, true) => Shape::Sections,
            (true, false) => Shape::Section,
            (false, true) => Shape::List,
            (false, false) if !words.is_empty() => Shape::Words(words),
            (false, false) if is("boolean") => Shape::Boolean,
            (false, false) if is("integer") => Shape::Whole,
            (false, false) if is("number") => Shape::Number,
            (false, false) => Shape::Text,
        }
    }
}

/// The flag of `concord up` of this name, if there is no key of that name.
#[must_use]
pub fn flag_of_up(name: &str) -> Option<String> {
    let command = Cli::command();
    let up = command.find_subcommand("up")?;
    let flag = up.get_arguments().find(|flag| flag.get_id() == name && name != "config")?;
    Some(format!("--{}", flag.get_long()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_says_how_each_name_is_written() {
        let names = Names::new();
        for (name, shape) in [
            ("switch", Shape::Section),
            ("table", Shape::Section),
            ("replica", Shape::Sections),
            ("split_reads", Shape::Boolean),
            ("failure_ms", Shape::Whole),
            ("slots", Shape::Whole),
            ("cpu_share", Shape::Number),
            ("has", Shape::List),
            ("listen", Shape::Text),
            ("maxmemory", Shape::Text),
        ] {
            assert_eq!(names.shape(name), Some(shape), "{name}");
        }
        assert_eq!(
            names.shape("accel").map(|shape| shape.remedy("accel")),
            Some("write one of \"harmonia\", \"flair\", \"none\"".to_string())
        );
        assert_eq!(names.shape_at("group.worker"), Some(Shape::Sections));
        assert_eq!(names.shape_at("gateway.group"), Some(Shape::Text));
        assert_eq!(names.shape("acel"), None);
        assert_eq!(flag_of_up("system").as_deref(), Some("--system"));
        assert_eq!(flag_of_up("config"), None);
    }
}
