//! The table of commands: arity, flags, where the keys stand. The memory engine's table is static;
//! with the Redis engine it is the server's own reply to COMMAND.

use alloc::borrow::Cow;
use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::{Class, resp};

pub mod categories;
mod memory_specs;

/// Longest command name, a subcommand's with its container's included.
pub const NAME_BYTES_MAX: usize = 48;

/// The largest number of a server's commands that are loaded, with subcommands.
const COMMANDS_MAX: usize = 4096;

/// A command's name in capitals, on the stack. Empty if it is too long to be a command's.
#[derive(Clone, Copy, Debug)]
pub struct UpperName {
    bytes: [u8; NAME_BYTES_MAX],
    length: usize,
}

impl Default for UpperName {
    fn default() -> UpperName {
        UpperName { bytes: [0; NAME_BYTES_MAX], length: 0 }
    }
}

impl UpperName {
    /// The capitals of `name`.
    #[must_use]
    pub fn of(name: &[u8]) -> UpperName {
        let mut upper = UpperName::default();
        upper.set(name);
        upper
    }

    /// Becomes the capitals of `name`. Where every request has a name, this costs less than a new
    /// one: bytes that were written one by one are not read at once as a whole.
    #[inline]
    pub fn set(&mut self, name: &[u8]) {
        self.length = if name.len() <= NAME_BYTES_MAX { name.len() } else { 0 };
        for (to, from) in self.bytes.iter_mut().zip(&name[..self.length]) {
            *to = from.to_ascii_uppercase();
        }
    }

    /// The capitals.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Whether it is `name`, which is in capitals.
    #[must_use]
    pub fn is(&self, name: &[u8]) -> bool {
        self.bytes() == name
    }

    /// As error texts show it.
    #[must_use]
    pub fn lower(&self) -> String {
        self.bytes().iter().map(|b| b.to_ascii_lowercase() as char).collect()
    }
}

/// The flags of a command (Redis 7.0, COMMAND INFO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

const FLAG_NAMES: [&str; 21] = [
    "write",
    "readonly",
    "denyoom",
    "admin",
    "pubsub",
    "noscript",
    "blocking",
    "loading",
    "stale",
    "skip_monitor",
    "skip_slowlog",
    "asking",
    "fast",
    "no_auth",
    "no_async_loading",
    "no_multi",
    "movablekeys",
    "no_mandatory_keys",
    "allow_busy",
    "may_replicate",
    "module",
];

impl Flags {
    /// May change the data.
    pub const WRITE: Flags = Flags(1);
    /// Does not.
    pub const READONLY: Flags = Flags(1 << 1);
    /// Refused when memory is short.
    pub const DENYOOM: Flags = Flags(1 << 2);
    /// Administration of the server.
    pub const ADMIN: Flags = Flags(1 << 3);
    /// Publish and subscribe.
    pub const PUBSUB: Flags = Flags(1 << 4);
    /// Not allowed in scripts.
    pub const NOSCRIPT: Flags = Flags(1 << 5);
    /// May block the client.
    pub const BLOCKING: Flags = Flags(1 << 6);
    /// Constant or logarithmic time.
    pub const FAST: Flags = Flags(1 << 12);
    /// The indices of keys depend on the arguments.
    pub const MOVABLEKEYS: Flags = Flags(1 << 16);

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Their names, as COMMAND gives them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (0..FLAG_NAMES.len()).filter(move |i| self.0 & (1 << i) != 0).map(|i| FLAG_NAMES[i])
    }

    fn of_name(name: &[u8]) -> Flags {
        let index = FLAG_NAMES.iter().position(|known| known.as_bytes() == name);
        Flags(index.map_or(0, |index| 1 << index))
    }
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandSpec {
    /// The name in lower case; that of a subcommand is `container|subcommand`.
    pub name: Cow<'static, str>,
    /// The number of arguments with the name; the smallest number if negative.
    pub arity: i32,
    /// What it does.
    pub flags: Flags,
    /// Index of the first key; 0 if there is none.
    pub first_key: i32,
    /// Index of the last key; negative: counted from the end (-1 is the last argument).
    pub last_key: i32,
    /// Distance between keys.
    pub step: i32,
    /// The group in COMMAND DOCS; empty if unknown.
    pub group: Cow<'static, str>,
    /// One sentence for COMMAND DOCS; empty if unknown.
    pub summary: Cow<'static, str>,
}

impl CommandSpec {
    /// Whether this number of arguments, with the name, is valid.
    #[must_use]
    pub fn accepts(&self, argc: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { argc >= wanted } else { argc == wanted }
    }

    /// Read or write, as declared; `None` for what is neither (PING, CONFIG, EVAL, ...).
    #[must_use]
    pub fn class(&self) -> Option<Class> {
        if self.flags.has(Flags::WRITE) {
            return Some(Class::Write);
        }
        self.flags.has(Flags::READONLY).then_some(Class::Read)
    }
}

/// A reply that is not a command table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableError {
    /// The offset in the reply.
    pub offset_bytes: usize,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a reply to COMMAND of Redis: unexpected bytes at {}", self.offset_bytes)
    }
}

/// All commands of an engine.
#[derive(Clone, Debug)]
pub struct CommandTable {
    specs: Vec<CommandSpec>,
    by_name: HashMap<Vec<u8>, usize, FxBuildHasher>,
}

impl CommandTable {
    /// The commands of the memory engine.
    #[must_use]
    pub fn memory() -> CommandTable {
        CommandTable::new(memory_specs::MEMORY.to_vec())
    }

    fn new(specs: Vec<CommandSpec>) -> CommandTable {
        let name = |(i, spec): (usize, &CommandSpec)| (spec.name.to_ascii_uppercase().into(), i);
        let by_name = specs.iter().enumerate().map(name).collect();
        CommandTable { specs, by_name }
    }

    /// Loads a server's reply to COMMAND (RESP2 or RESP3), subcommands too. Unknown flags are
    /// ignored; groups and summaries are those of the memory engine's table where it has them.
    ///
    /// # Errors
    /// [`TableError`] if it is not such a reply.
    pub fn from_resp(bytes: &[u8]) -> Result<CommandTable, TableError> {
        let mut reader = Reader { bytes, at: 0 };
        let mut specs = Vec::new();
        let count = reader.aggregate()?;
        for _ in 0..count {
            reader.command(&mut specs, true)?;
        }
        if reader.at != bytes.len() {
            return Err(reader.error());
        }
        let mut table = CommandTable::new(specs);
        for known in &memory_specs::MEMORY {
            if let Some(&index) = table.by_name.get(known.name.to_ascii_uppercase().as_bytes()) {
                table.specs[index].group = known.group.clone();
                table.specs[index].summary = known.summary.clone();
            }
        }
        Ok(table)
    }

    /// All commands, subcommands too.
    #[must_use]
    pub fn specs(&self) -> &[CommandSpec] {
        &self.specs
    }

    /// Number of commands, without subcommands.
    #[must_use]
    pub fn count(&self) -> usize {
        self.specs.iter().filter(|spec| !spec.name.contains('|')).count()
    }

    /// The command of this name, in any case.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&CommandSpec> {
        self.by_name.get(UpperName::of(name).bytes()).map(|&index| &self.specs[index])
    }

    /// The subcommand `sub` of the container `name` (OBJECT ENCODING), in any case.
    #[must_use]
    pub fn find_sub(&self, name: &[u8], sub: &[u8]) -> Option<&CommandSpec> {
        self.find(&[name, b"|", sub].concat())
    }

    /// The command of this name, or its subcommand where only that is read or write.
    #[must_use]
    pub fn spec_of(&self, name: &[u8], first_arg: Option<&[u8]>) -> Option<&CommandSpec> {
        let spec = self.find(name)?;
        match first_arg {
            Some(sub) if spec.class().is_none() => Some(self.find_sub(name, sub).unwrap_or(spec)),
            _ => Some(spec),
        }
    }

    /// Read or write, as the engine declares the command.
    #[must_use]
    pub fn class_of(&self, name: &[u8]) -> Option<Class> {
        self.find(name)?.class()
    }

    /// Appends the reply to COMMAND.
    pub fn encode_all(&self, out: &mut Vec<u8>, resp3: bool) {
        resp::array(out, self.count());
        for spec in self.specs.iter().filter(|spec| !spec.name.contains('|')) {
            self.encode_spec(out, spec, resp3);
        }
    }

    /// Appends the reply to COMMAND COUNT.
    pub fn encode_count(&self, out: &mut Vec<u8>) {
        resp::integer(out, self.count() as i64);
    }

    /// Appends the reply to COMMAND INFO with these names; that to COMMAND if there are none.
    pub fn encode_info(&self, out: &mut Vec<u8>, names: &[&[u8]], resp3: bool) {
        if names.is_empty() {
            return self.encode_all(out, resp3);
        }
        resp::array(out, names.len());
        for name in names {
            match self.find(name) {
                Some(spec) => self.encode_spec(out, spec, resp3),
                None => resp::null_array(out, resp3),
            }
        }
    }

    /// Appends the reply to COMMAND DOCS with these names (none: all): summary and group.
    pub fn encode_docs(&self, out: &mut Vec<u8>, names: &[&[u8]], resp3: bool) {
        let named = |name: &&[u8]| self.find(name);
        let chosen: Vec<&CommandSpec> = if names.is_empty() {
            self.specs.iter().filter(|spec| !spec.name.contains('|')).collect()
        } else {
            names.iter().filter_map(named).collect()
        };
        resp::map(out, chosen.len(), resp3);
        for spec in chosen {
            resp::bulk(out, spec.name.as_bytes());
            resp::map(out, 2, resp3);
            for text in ["summary", &spec.summary, "group", &spec.group] {
                resp::bulk(out, text.as_bytes());
            }
        }
    }

    /// The ten elements of Redis 7.0; of tips and key specifications none.
    fn encode_spec(&self, out: &mut Vec<u8>, spec: &CommandSpec, resp3: bool) {
        resp::array(out, 10);
        resp::bulk(out, spec.name.as_bytes());
        resp::integer(out, i64::from(spec.arity));
        resp::set(out, spec.flags.names().count(), resp3);
        for name in spec.flags.names() {
            resp::simple(out, name);
        }
        for number in [spec.first_key, spec.last_key, spec.step] {
            resp::integer(out, i64::from(number));
        }
        resp::set(out, categories::names_of(&spec.name).count(), resp3);
        for name in categories::names_of(&spec.name) {
            out.extend_from_slice(b"+@");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        resp::array(out, 0);
        resp::array(out, 0);
        let is_sub = |sub: &&CommandSpec| {
            sub.name.split_once('|').is_some_and(|(container, _)| container == spec.name)
        };
        resp::array(out, self.specs.iter().filter(is_sub).count());
        for sub in self.specs.iter().filter(is_sub) {
            self.encode_spec(out, sub, resp3);
        }
    }
}

/// Reads a reply to COMMAND from front to back.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn error(&self) -> TableError {
        TableError { offset_bytes: self.at }
    }

    /// Skips one value and returns it.
    fn value(&mut self) -> Result<&'a [u8], TableError> {
        let rest = &self.bytes[self.at..];
        let length = resp::value_length(rest).ok_or(self.error())?;
        self.at += length;
        Ok(&rest[..length])
    }

    /// Enters an array or set; returns the number of its elements.
    fn aggregate(&mut self) -> Result<usize, TableError> {
        let rest = &self.bytes[self.at..];
        let line = resp::line_length(rest).ok_or(self.error())?;
        let count = match rest[0] {
            b'*' | b'~' => resp::number(&rest[1..line - 2]),
            _ => None,
        };
        let count = count.and_then(|count| usize::try_from(count).ok()).ok_or(self.error())?;
        self.at += line;
        Ok(count)
    }

    fn text(&mut self) -> Result<&'a [u8], TableError> {
        let error = self.error();
        match self.value()? {
            [b'+', text @ .., b'\r', b'\n'] => Ok(text),
            value => resp::bulk_payload(value).ok_or(error),
        }
    }

    fn integer(&mut self) -> Result<i32, TableError> {
        let error = self.error();
        let number = match self.value()? {
            [b':', digits @ .., b'\r', b'\n'] => resp::number(digits),
            _ => None,
        };
        number.and_then(|number| i32::try_from(number).ok()).ok_or(error)
    }

    /// One command and its subcommands.
    fn command(&mut self, specs: &mut Vec<CommandSpec>, top: bool) -> Result<(), TableError> {
        let elements = self.aggregate()?;
        if elements < 6 || specs.len() >= COMMANDS_MAX {
            return Err(self.error());
        }
        let name = str::from_utf8(self.text()?).map_err(|_| self.error())?.to_owned();
        let arity = self.integer()?;
        let mut flags = Flags::default();
        for _ in 0..self.aggregate()? {
            flags.0 |= Flags::of_name(self.text()?).0;
        }
        let (first_key, last_key, step) = (self.integer()?, self.integer()?, self.integer()?);
        specs.push(CommandSpec {
            name: Cow::Owned(name.to_ascii_lowercase().to_string()),
            arity,
            flags,
            first_key,
            last_key,
            step,
            group: Cow::Borrowed(""),
            summary: Cow::Borrowed(""),
        });
        for element in 6..elements {
            if element == 9 && top {
                for _ in 0..self.aggregate()? {
                    self.command(specs, false)?;
                }
            } else {
                self.value()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_survives_its_own_encoding_in_resp2_and_resp3() {
        let table = CommandTable::memory();
        for resp3 in [false, true] {
            let mut bytes = Vec::new();
            table.encode_all(&mut bytes, resp3);
            let loaded = CommandTable::from_resp(&bytes).unwrap();
            assert_eq!(loaded.specs(), table.specs());
            for cut in (0..bytes.len()).step_by(97) {
                assert!(CommandTable::from_resp(&bytes[..cut]).is_err());
            }
        }
    }

    /// Names are found in any case and subcommands by their container.
    #[test]
    fn lookup_ignores_case_and_finds_subcommands() {
        let reply = b"*1\r\n*10\r\n$6\r\nobject\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n\
            *1\r\n*6\r\n$15\r\nobject|encoding\r\n:3\r\n*2\r\n+readonly\r\n+new_flag\r\n:2\r\n:2\r\n:1\r\n";
        let table = CommandTable::from_resp(reply).unwrap();
        assert_eq!(table.count(), 1);
        assert_eq!(table.class_of(b"Object"), None);
        let sub = table.find_sub(b"OBJECT", b"encoding").unwrap();
        assert_eq!((sub.class(), sub.first_key), (Some(Class::Read), 2));
        let memory = CommandTable::memory();
        assert_eq!(memory.class_of(b"gEt"), Some(Class::Read));
        assert_eq!(memory.class_of(b"SPOP"), Some(Class::Write));
        assert!(memory.find(b"set").unwrap().accepts(5));
        assert!(!memory.find(b"get").unwrap().accepts(3));
        assert!(memory.find(&[b'x'; 99]).is_none());
    }
}
