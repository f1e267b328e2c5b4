//! The reference of commands, flags and settings, generated from the code that reads them:
//! docs/reference/reference.md, man pages, completions.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};
use concord_runtime::{Context, Error};
use schemars::schema_for;
use serde_json::Value;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::rack::Rack;

const HEAD: &str = "\
# Reference

The rack file and the commands, as `concord reference` prints them from the code: change it there, then
`CONCORD_BLESS=1 cargo test -p concord reference`. How they are used: docs/operate/operations.md.
";

/// The example of a rack on several hosts.
const EXAMPLE: &str = "\
version = 1

[controller]
addr = \"10.0.0.1:7000\"
http = \"10.0.0.1:9000\"
state = \"/var/lib/concord/controller.state\"

[switch]
addr = \"10.0.0.2:7000\"
http = \"10.0.0.2:9000\"

[[replica]]
node = 1
addr = \"10.0.0.3:7000\"
http = \"10.0.0.3:9000\"
data_dir = \"/var/lib/concord/replica\"

[[replica]]
node = 2
addr = \"10.0.0.4:7000\"
http = \"10.0.0.4:9000\"
data_dir = \"/var/lib/concord/replica\"

[[gateway]]
node = 1
addr = \"10.0.0.5:7000\"
http = \"10.0.0.5:9000\"
listen = \"10.0.0.5:6379\"
";

/// `concord completions`.
///
/// # Errors
/// If standard output cannot be written to.
pub fn completions(args: &CompletionsArgs) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "concord", &mut script);
    crate::status::print(&String::from_utf8_lossy(&script))
}

/// `concord man`.
///
/// # Errors
/// If the directory cannot be written to.
pub fn man(args: &ManArgs) -> Result<(), Error> {
    let what = || format!("write man pages to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).cannot(what())?;
    clap_mangen::generate_to(Cli::command(), &args.dir).cannot(what())
}

/// `concord reference`.
///
/// # Errors
/// If standard output cannot be written to.
pub fn print() -> Result<(), Error> {
    crate::status::print(&reference())
}

fn reference() -> String {
    let mut out = HEAD.to_string();
    rack_file(&mut out);
    out += "\n## Commands\n";
    let mut all = Cli::command();
    all.build();
    for command in all.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        describe(command, &mut out);
    }
    linked(&out)
}

/// Turns documents that help texts name into links from the reference.
fn linked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("docs/") {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "/-.".contains(c);
        let end = rest[at..].find(|c| !is_part(c)).map_or(rest.len(), |length| at + length);
        let path = rest[at..end].trim_end_matches('.');
        out.push_str(&rest[..at]);
        match path.strip_prefix("docs/").and_then(|path| path.rsplit_once('/')) {
            Some((folder, file)) if file.ends_with(".md") => {
                let _ = write!(out, "[{file}](../{folder}/{file})");
            }
            Some(_) | None => out.push_str(path),
        }
        rest = &rest[at + path.len()..];
    }
    out.push_str(rest);
    out
}

/// Writes the sections of the rack file, with their keys.
fn rack_file(out: &mut String) {
    let schema = schema_for!(Rack).to_value();
    *out += "
## The rack file
TOML. `concord up` runs a file without any role, and writes the whole of it to `run/rack.toml`. Where each role runs on a
host of its own, all hosts have the same file:

```toml
";
    *out += EXAMPLE;
    *out += "\
```

Each role looks itself up by its section, and by `--node` where there are several. `addr` is `host:port` over IPv4, as the
other roles reach it; a host name is looked up once, when the role starts. `http` and `listen` are IP addresses with a port.

A section in double brackets comes once for each role of its kind. The keys of the top level stand above the first section.
Every key has a default or may be left out, unless it says *required*. An unknown key is an error, and so is what does not
fit together: one line with the file's name and the number of the line.

### Top level
";
    let sections = keys(&schema, &schema, out);
    write_sections(&schema, "", sections, out);
}

/// Writes sections, and those within them.
fn write_sections(
    root: &Value,
    within: &str,
    sections: Vec<(&str, &Value, bool)>,
    out: &mut String,
) {
    for (name, section, is_list) in sections {
        let (open, close) = if is_list { ("[[", "]]") } else { ("[", "]") };
        let description = text(section, "description");
        let _ = writeln!(out, "\n### `{open}{within}{name}{close}`\n{description}\n");
        let inner = keys(root, section, out);
        write_sections(root, &format!("{within}{name}."), inner, out);
    }
}

/// Writes a table of the plain keys of a section; returns its subsections: name, schema, and
/// whether it is a list.
fn keys<'a>(
    root: &'a Value,
    section: &'a Value,
    out: &mut String,
) -> Vec<(&'a str, &'a Value, bool)> {
    *out += "| key | value | default | |\n|---|---|---|---|\n";
    let mut sections = Vec::new();
    let mut choices = String::new();
    let required = section["required"].as_array();
    for (name, key) in section["properties"].as_object().into_iter().flatten() {
        let resolved = resolve(root, key);
        if resolved["type"] == "object" {
            sections.push((name.as_str(), resolved, false));
            continue;
        }
        let items = resolve(root, &resolved["items"]);
        if resolved["type"] == "array" && items["type"] == "object" {
            sections.push((name.as_str(), items, true));
            continue;
        }
        let is_required = required.is_some_and(|all| all.iter().any(|r| r == name));
        let default = match &key["default"] {
            Value::Null if is_required => "*required*".to_string(),
            Value::Null => String::new(),
            value => format!("`{value}`"),
        };
        let description = text(key, "description");
        let _ = writeln!(out, "| `{name}` | {} | {default} | {description} |", values(resolved));
        for choice in resolved["oneOf"].as_array().into_iter().flatten() {
            let value = text(choice, "const");
            let _ = writeln!(choices, "- `{name} = \"{value}\"`: {}", text(choice, "description"));
        }
    }
    if !choices.is_empty() {
        let _ = write!(out, "\n{choices}");
    }
    sections
}

/// Follows the reference in a key's schema.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let one_of_two =
        schema["anyOf"].as_array().and_then(|any| any.iter().find(|s| s["type"] != "null"));
    let schema = one_of_two.unwrap_or(schema);
    let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    name.map_or(schema, |name| &root["$defs"][name])
}

/// The possible values of a key.
fn values(schema: &Value) -> String {
    let constants = |all: &Vec<Value>| -> Vec<String> {
        all.iter()
            .flat_map(|v| v["const"].as_str().or(v.as_str()))
            .map(|v| format!("`\"{v}\"`"))
            .collect()
    };
    if let Some(all) = schema["oneOf"].as_array().or(schema["enum"].as_array()) {
        return constants(all).join(" ");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str),
        kind => kind.as_str(),
    };
    match kind {
        Some("string") => "text",
        Some("integer") => "number",
        Some("number") => "number, perhaps with a fraction",
        Some("boolean") => "`true` `false`",
        Some("array") => "list of texts",
        Some(_) | None => "",
    }
    .to_string()
}

/// The text of a schema, in one line.
fn text(schema: &Value, name: &str) -> String {
    schema[name].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|")
}

/// Writes a command, its flags and its subcommands.
fn describe(command: &Command, out: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(out, "\n### `{name}`\n{about}.");
    let mut inner: Vec<&Command> = command.get_subcommands().collect();
    inner.retain(|c| !c.is_hide_set() && c.get_name() != "help");
    let mut args: Vec<&Arg> = command.get_arguments().collect();
    args.retain(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()));
    if !args.is_empty() {
        *out += "\n| | |\n|---|---|\n";
        for arg in args {
            let _ = writeln!(out, "| {} | {} |", written(arg), help(arg));
        }
    }
    if let Some(after) = command.get_after_help() {
        let _ = writeln!(out, "\n```text\n{after}\n```");
    }
    for command in inner {
        describe(command, out);
    }
}

/// The notation of an argument.
fn written(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    match (arg.get_long(), value) {
        (Some(long), Some(value)) if arg.get_action().takes_values() => {
            format!("`--{long} <{value}>`")
        }
        (Some(long), _) => format!("`--{long}`"),
        (None, value) => format!("`<{}>`", value.unwrap_or_else(|| arg.get_id().to_string())),
    }
}

/// The meaning of an argument, its possible values, and its default.
fn help(arg: &Arg) -> String {
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default().replace('\n', " ");
    let possible = arg.get_possible_values();
    let possible: Vec<String> = possible
        .iter()
        .filter(|v| !v.is_hide_set())
        .map(|v| format!("`{}`", v.get_name()))
        .collect();
    if !possible.is_empty() && arg.get_action().takes_values() {
        let _ = write!(help, ": {}", possible.join(", "));
    }
    let default: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    if !default.is_empty() && arg.get_action().takes_values() {
        let _ = write!(help, " [default: {}]", default.join(","));
    }
    help.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_as_it_is_committed() {
        const FILE: &str =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/reference.md");
        let now = reference();
        if std::env::var_os("CONCORD_BLESS").is_some() {
            std::fs::write(FILE, &now).unwrap();
        }
        let committed = std::fs::read_to_string(FILE).unwrap();
        assert!(
            committed == now,
            "docs/reference/reference.md is old: CONCORD_BLESS=1 cargo test -p concord reference"
        );
    }

    #[test]
    fn the_example_is_a_rack() {
        let rack = Rack::parse(EXAMPLE).unwrap();
        assert_eq!((rack.replica.len(), rack.gateway.len()), (2, 1));
    }

    #[test]
    fn every_command_has_a_man_page_and_completions() {
        let dir = std::env::temp_dir().join(format!("concord-man-{}", std::process::id()));
        man(&ManArgs { dir: dir.clone() }).unwrap();
        let pages = std::fs::read_dir(&dir).unwrap().count();
        let named = std::fs::read_to_string(dir.join("concord-up.1")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(pages > 10 && named.contains("three replicas"), "{pages} pages");
        let mut bash = Vec::new();
        clap_complete::generate(
            clap_complete::Shell::Bash,
            &mut Cli::command(),
            "concord",
            &mut bash,
        );
        assert!(String::from_utf8(bash).unwrap().contains("--protocol"));
    }
}
