//! Rules, and what is allowed by them.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use crate::glob_matches;
use crate::table::categories::{self, CATEGORIES};

/// The room for commands, in words of bits.
const WORDS: usize = 7;

/// The reason for which a rule is invalid, in Redis' words.
pub type Wrong = &'static str;

const UNKNOWN: Wrong = "Unknown command or category name in ACL";
pub(super) const SYNTAX: Wrong = "Syntax error";
const AFTER_ALL_KEYS: Wrong = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have \
     any effect. Try 'resetkeys' to start with an empty list of patterns";
const AFTER_ALL_CHANNELS: Wrong = "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not \
     have any effect. Try 'resetchannels' to start with an empty list of channels";
const FIRST_ARG: Wrong = "Allowing first-arg of a subcommand is not supported";

/// All commands that rules may name, in order, so that subcommands follow their commands.
#[derive(Debug)]
pub struct Catalogue {
    /// The commands with their categories, a bit for each.
    commands: Vec<(&'static str, u32)>,
}

impl Default for Catalogue {
    fn default() -> Catalogue {
        let mut commands: Vec<(&str, u32)> = categories::commands().collect();
        commands.sort_unstable();
        assert!(commands.len() <= WORDS * 64, "a bit for each command");
        Catalogue { commands }
    }
}

impl Catalogue {
    /// The number of the command or subcommand (`config|get`) of this name, in lower case.
    fn find(&self, name: &str) -> Option<usize> {
        self.commands.binary_search_by(|(own, _)| (*own).cmp(name)).ok()
    }

    /// The index of a command with these arguments, or of its subcommand, if it has this one.
    #[must_use]
    pub fn find_call(&self, args: &[&[u8]]) -> Option<usize> {
        let text = |arg: &[u8]| String::from_utf8_lossy(arg).to_ascii_lowercase();
        let name = text(args.first()?);
        let whole = self.find(&name)?;
        let sub = args.get(1).filter(|_| self.has_subcommands(whole));
        let found = sub.and_then(|sub| self.find(&format!("{name}|{}", text(sub))));
        Some(found.unwrap_or(whole))
    }

    /// Whether there is such a command, with the subcommand that the arguments name.
    #[must_use]
    pub fn has_call(&self, args: &[&[u8]]) -> bool {
        let names_sub = |command: usize| self.name(command).contains('|');
        self.find_call(args).is_some_and(|command| {
            args.len() < 2 || !self.has_subcommands(command) || names_sub(command)
        })
    }

    /// The commands that have subcommands, each between spaces.
    pub(crate) fn containers(&self) -> Vec<u8> {
        let has = |command: &usize| self.has_subcommands(*command);
        let names = (0..self.commands.len()).filter(has).map(|command| self.name(command));
        names.fold(alloc::vec![b' '], |all, name| [&all, name.as_bytes(), b" "].concat())
    }

    /// All of them, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.commands.iter().map(|(name, _)| *name)
    }

    /// The name of a command or subcommand (`config|get`).
    #[must_use]
    pub fn name(&self, command: usize) -> &'static str {
        self.commands[command].0
    }

    fn has_subcommands(&self, command: usize) -> bool {
        self.with_subcommands(command).len() > 1
    }

    /// The command and its subcommands.
    fn with_subcommands(&self, command: usize) -> core::ops::Range<usize> {
        let name = self.name(command);
        let is_sub = |(other, _): &&(&str, u32)| {
            other.strip_prefix(name).is_some_and(|rest| rest.starts_with('|'))
        };
        let subs = self.commands[command + 1..].iter().take_while(is_sub).count();
        command..command + 1 + subs
    }

    /// The commands of a category, as ACL CAT names them.
    pub fn of_category(&self, bit: u32) -> impl Iterator<Item = &'static str> {
        self.commands.iter().filter(move |(_, own)| own & bit != 0).map(|(name, _)| *name)
    }
}

/// The access to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its value is told, in part at least.
    pub reads: bool,
    /// Whether it is changed.
    pub writes: bool,
}

impl Access {
    /// Reads and writes it.
    pub const BOTH: Access = Access { reads: true, writes: true };

    /// Reads, writes, both, or neither.
    pub(crate) const fn letter(self) -> u8 {
        match (self.reads, self.writes) {
            (true, true) => b'b',
            (true, false) => b'r',
            (false, true) => b'w',
            (false, false) => b'n',
        }
    }

    fn covers(self, asked: Access) -> bool {
        (self.reads || !asked.reads) && (self.writes || !asked.writes)
    }
}

/// A command as far as rules look at it.
#[derive(Debug)]
pub struct Call<'a> {
    /// Its number in the catalogue; `None` if that does not have it.
    pub command: Option<usize>,
    /// Its arguments, the name first.
    pub args: &'a [&'a [u8]],
    /// The indices of its keys, with the access to each.
    pub keys: &'a [(usize, Access)],
    /// The indices of its channels.
    pub channels: &'a [usize],
    /// Whether they are patterns.
    pub are_patterns: bool,
}

/// Why a command is not allowed: the later, the nearer it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    /// The command.
    Command,
    /// The key at this argument.
    Key(usize),
    /// The channel at this argument.
    Channel(usize),
}

/// One set of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub(super) all_keys: bool,
    pub(super) all_channels: bool,
    /// All commands, without exception.
    pub(super) all_commands: bool,
    /// Whether commands of future versions are allowed.
    future: bool,
    allowed: [u64; WORDS],
    /// The first arguments with which commands are allowed that otherwise are not.
    first_args: BTreeMap<usize, Vec<String>>,
    keys: Vec<(Access, Vec<u8>)>,
    channels: Vec<Vec<u8>>,
}

impl Selector {
    fn has(&self, command: usize) -> bool {
        self.allowed[command / 64] & (1 << (command % 64)) != 0
    }

    fn set_one(&mut self, command: usize, is_allowed: bool) {
        let bit = 1 << (command % 64);
        match is_allowed {
            true => self.allowed[command / 64] |= bit,
            false => {
                self.allowed[command / 64] &= !bit;
                self.all_commands = false;
            }
        }
        self.first_args.remove(&command);
    }

    fn set(&mut self, all: &Catalogue, command: usize, is_allowed: bool) {
        all.with_subcommands(command).for_each(|command| self.set_one(command, is_allowed));
    }

    pub(super) fn set_all(&mut self, is_allowed: bool) {
        self.allowed = [if is_allowed { u64::MAX } else { 0 }; WORDS];
        (self.all_commands, self.future) = (is_allowed, is_allowed);
        self.first_args.clear();
    }

    fn set_category(&mut self, all: &Catalogue, bit: u32, is_allowed: bool) {
        for command in 0..all.commands.len() {
            if all.commands[command].1 & bit != 0 {
                self.set(all, command, is_allowed);
            }
        }
    }

    /// The numbers of commands of a category that are allowed, and that are not.
    fn count(&self, all: &Catalogue, bit: u32) -> (usize, usize) {
        let of = (0..all.commands.len()).filter(|command| all.commands[*command].1 & bit != 0);
        let (on, off): (Vec<usize>, Vec<usize>) = of.partition(|command| self.has(*command));
        (on.len(), off.len())
    }

    /// Applies a rule.
    pub(super) fn apply(&mut self, all: &Catalogue, rule: &[u8]) -> Result<(), Wrong> {
        match &rule.to_ascii_lowercase()[..] {
            b"allkeys" | b"~*" => {
                self.all_keys = true;
                self.keys.clear();
            }
            b"resetkeys" => {
                self.all_keys = false;
                self.keys.clear();
            }
            b"allchannels" | b"&*" => {
                self.all_channels = true;
                self.channels.clear();
            }
            b"resetchannels" => {
                self.all_channels = false;
                self.channels.clear();
            }
            b"allcommands" | b"+@all" => self.set_all(true),
            b"nocommands" | b"-@all" => self.set_all(false),
            [b'~' | b'%', ..] => return self.apply_key(rule),
            [b'&', ..] => {
                if self.all_channels {
                    return Err(AFTER_ALL_CHANNELS);
                }
                let pattern = pattern(&rule[1..])?;
                if !self.channels.contains(&pattern) {
                    self.channels.push(pattern);
                }
            }
            [sign @ (b'+' | b'-'), b'@', category @ ..] => {
                let bit = core::str::from_utf8(category).ok().and_then(categories::bit_of);
                self.set_category(all, bit.ok_or(UNKNOWN)?, *sign == b'+');
            }
            [sign @ (b'+' | b'-'), name @ ..] => {
                let name = core::str::from_utf8(name).map_err(|_| UNKNOWN)?;
                match (all.find(name), name.rsplit_once('|')) {
                    (Some(command), _) => self.set(all, command, *sign == b'+'),
                    (None, Some((name, arg))) if *sign == b'+' => {
                        let command = all.find(name).ok_or(UNKNOWN)?;
                        if name.contains('|') {
                            return Err(FIRST_ARG);
                        }
                        // Else it would not be read as it is written (`describe`).
                        let is_odd =
                            |byte| matches!(byte, b'(' | b')' | 0) || byte.is_ascii_whitespace();
                        if arg.is_empty() || arg.bytes().any(is_odd) {
                            return Err(SYNTAX);
                        }
                        if all.has_subcommands(command) {
                            return Err(UNKNOWN);
                        }
                        let args = self.first_args.entry(command).or_default();
                        if !args.iter().any(|own| own == arg) {
                            args.push(arg.to_string());
                        }
                    }
                    _ => return Err(UNKNOWN),
                }
            }
            _ => return Err(SYNTAX),
        }
        Ok(())
    }

    /// `~pattern`, or `%R~pattern` and its kin.
    fn apply_key(&mut self, rule: &[u8]) -> Result<(), Wrong> {
        if self.all_keys {
            return Err(AFTER_ALL_KEYS);
        }
        let at = rule.iter().position(|byte| *byte == b'~').ok_or(SYNTAX)?;
        let mut access = Access::BOTH;
        if rule[0] == b'%' {
            access = Access { reads: false, writes: false };
            for byte in &rule[1..at] {
                match byte.to_ascii_uppercase() {
                    b'R' if !access.reads => access.reads = true,
                    b'W' if !access.writes => access.writes = true,
                    _ => return Err(SYNTAX),
                }
            }
            if at == 1 {
                return Err(SYNTAX);
            }
        }
        let pattern = pattern(&rule[at + 1..])?;
        match self.keys.iter_mut().find(|(_, own)| *own == pattern) {
            Some((own, _)) => {
                own.reads |= access.reads;
                own.writes |= access.writes;
            }
            None => self.keys.push((access, pattern)),
        }
        Ok(())
    }

    /// The patterns of keys, as rules.
    #[must_use]
    pub fn keys_text(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let of = |(access, pattern): &(Access, Vec<u8>)| {
            let sign: &[u8] = match access {
                // `~*` would be the rule that no pattern may follow.
                Access { reads: true, writes: true } if pattern == b"*" => b"%RW~",
                Access { reads: true, writes: true } => b"~",
                Access { reads: true, .. } => b"%R~",
                Access { .. } => b"%W~",
            };
            [sign, pattern].concat()
        };
        self.keys.iter().map(of).collect::<Vec<_>>().join(&b' ')
    }

    /// The patterns of channels, as rules.
    #[must_use]
    pub fn channels_text(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let of = |pattern: &Vec<u8>| [b"&", &pattern[..]].concat();
        self.channels.iter().map(of).collect::<Vec<_>>().join(&b' ')
    }

    /// Rules that allow the same commands: few ones, as Redis 7.0 finds them. Categories of which
    /// more commands are to be switched than not are taken, the best first, and then single
    /// commands.
    #[must_use]
    pub fn commands_text(&self, all: &Catalogue) -> String {
        let is_additive = !self.future;
        let mut text = String::from(if is_additive { "-@all" } else { "+@all" });
        let sign = if is_additive { '+' } else { '-' };
        let mut shown = Selector::default();
        shown.set_all(!is_additive);
        let mut left = self.clone();
        let mut applied = 0;
        loop {
            let mut best: Option<(u32, &str, usize, usize)> = None;
            for (place, name) in CATEGORIES.iter().enumerate() {
                let bit = 1 << place;
                let (on, off) = left.count(all, bit);
                let (same, differ) = if is_additive { (on, off) } else { (off, on) };
                let is_better = best.is_none_or(|(_, _, best_same, best_differ)| {
                    differ < best_differ || differ == best_differ && same > best_same
                });
                if applied & bit == 0 && same > differ && is_better {
                    best = Some((bit, name, same, differ));
                }
            }
            let Some((bit, name, ..)) = best else { break };
            let _ = write!(text, " {sign}@{name}");
            shown.set_category(all, bit, is_additive);
            left.set_category(all, bit, !is_additive);
            applied |= bit;
        }
        for command in 0..all.commands.len() {
            let is_allowed = self.has(command);
            if is_allowed != shown.has(command) {
                let sign = if is_allowed { '+' } else { '-' };
                let _ = write!(text, " {sign}{}", all.name(command));
                shown.set(all, command, is_allowed);
            }
            for arg in self.first_args.get(&command).into_iter().flatten() {
                let _ = write!(text, " +{}|{arg}", all.name(command));
            }
        }
        text
    }

    pub(super) fn describe(&self, all: &Catalogue, out: &mut Vec<u8>) {
        let keys = self.keys_text();
        if !keys.is_empty() {
            out.extend_from_slice(&keys);
            out.push(b' ');
        }
        if !self.all_channels {
            out.extend_from_slice(b"resetchannels ");
        }
        let channels = self.channels_text();
        if !channels.is_empty() {
            out.extend_from_slice(&channels);
            out.push(b' ');
        }
        out.extend_from_slice(self.commands_text(all).as_bytes());
    }

    /// The same in lines of words, for code that has only strings: the commands that are allowed
    /// (after a `+`) or not (after a `-`), those with first arguments, keys and channels. Each word
    /// is between spaces.
    pub(super) fn lines(&self, all: &Catalogue, out: &mut Vec<u8>) {
        let sign = if self.future { b'-' } else { b'+' };
        out.extend_from_slice(&[sign, b' ']);
        for command in (0..all.commands.len()).filter(|c| self.has(*c) != self.future) {
            out.extend_from_slice(all.name(command).as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(b"\n ");
        for (command, args) in &self.first_args {
            for arg in args {
                out.extend_from_slice(format!("{}|{arg} ", all.name(*command)).as_bytes());
            }
        }
        out.push(b'\n');
        for (access, pattern) in &self.keys {
            out.push(access.letter());
            out.extend_from_slice(pattern);
            out.push(b' ');
        }
        out.extend_from_slice(if self.all_keys { b"*\n" } else { b"\n" });
        for pattern in &self.channels {
            out.push(b'&');
            out.extend_from_slice(pattern);
            out.push(b' ');
        }
        out.extend_from_slice(if self.all_channels { b"*\n" } else { b"\n" });
    }

    pub(super) fn allows_command(&self, call: &Call<'_>) -> bool {
        if self.all_commands {
            return true;
        }
        let Some(command) = call.command else { return self.future };
        let is_first = |args: &Vec<String>| {
            let given = call.args.get(1);
            given.is_some_and(|arg| args.iter().any(|own| arg.eq_ignore_ascii_case(own.as_bytes())))
        };
        self.has(command) || self.first_args.get(&command).is_some_and(is_first)
    }

    fn allows_key(&self, key: &[u8], access: Access) -> bool {
        let fits =
            |(own, pattern): &(Access, Vec<u8>)| own.covers(access) && glob_matches(pattern, key);
        self.all_keys || self.keys.iter().any(fits)
    }

    /// Whether it allows a channel; a pattern only if that very one is allowed.
    #[must_use]
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let fits = |own: &Vec<u8>| match is_pattern {
            true => own == channel,
            false => glob_matches(own, channel),
        };
        self.all_channels || self.channels.iter().any(fits)
    }

    pub(super) fn check(&self, call: &Call<'_>) -> Result<(), Denied> {
        if !self.allows_command(call) {
            return Err(Denied::Command);
        }
        let denied = |(at, access): &&(usize, Access)| !self.allows_key(call.args[*at], *access);
        if let Some((at, _)) = call.keys.iter().find(denied) {
            return Err(Denied::Key(*at));
        }
        let denied = |at: &&usize| !self.allows_channel(call.args[**at], call.are_patterns);
        match call.channels.iter().find(denied) {
            Some(at) => Err(Denied::Channel(*at)),
            None => Ok(()),
        }
    }
}

/// A pattern, in which Redis has no spaces.
fn pattern(text: &[u8]) -> Result<Vec<u8>, Wrong> {
    match text.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
        true => Err(SYNTAX),
        false => Ok(text.to_vec()),
    }
}
