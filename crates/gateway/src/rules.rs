//! What a user may do, as Redis 7.0 has it: rules, and what is allowed by them. A user has one set of rules, and perhaps
//! further ones (selectors), any one of which has to allow a command as a whole.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use concord_engine::glob_matches;
use concord_engine::table::categories::{self, CATEGORIES};
use sha2::{Digest, Sha256};

/// Room for so many commands, in words of bits.
const WORDS: usize = 7;

/// What is wrong with a rule, in Redis' words.
pub(crate) type Wrong = &'static str;

const UNKNOWN: Wrong = "Unknown command or category name in ACL";
const SYNTAX: Wrong = "Syntax error";
const NO_PASSWORD: Wrong = "The password you are trying to remove from the user does not exist";
const BAD_HASH: Wrong = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal \
     characters";
const AFTER_ALL_KEYS: Wrong = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have \
     any effect. Try 'resetkeys' to start with an empty list of patterns";
const AFTER_ALL_CHANNELS: Wrong = "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not \
     have any effect. Try 'resetchannels' to start with an empty list of channels";
const FIRST_ARG: Wrong = "Allowing first-arg of a subcommand is not supported";

/// All commands that rules may name, in order, so that subcommands follow their commands.
#[derive(Debug)]
pub(crate) struct Catalogue {
    /// With their categories, a bit for each.
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

    /// That of a command with these arguments: of its subcommand, if it has this one.
    pub(crate) fn find_call(&self, args: &[&[u8]]) -> Option<usize> {
        let text = |arg: &[u8]| String::from_utf8_lossy(arg).to_ascii_lowercase();
        let name = text(args.first()?);
        let whole = self.find(&name)?;
        let sub = args.get(1).filter(|_| self.has_subcommands(whole));
        let found = sub.and_then(|sub| self.find(&format!("{name}|{}", text(sub))));
        Some(found.unwrap_or(whole))
    }

    pub(crate) fn name(&self, command: usize) -> &'static str {
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
    pub(crate) fn of_category(&self, bit: u32) -> impl Iterator<Item = &'static str> {
        self.commands.iter().filter(move |(_, own)| own & bit != 0).map(|(name, _)| *name)
    }

    /// The commands that get at data, in scripts or not.
    fn of_data(&self) -> impl Iterator<Item = usize> {
        (0..self.commands.len())
            .filter(|command| self.commands[*command].1 & categories::OF_DATA != 0)
    }
}

/// What is done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub reads: bool,
    pub writes: bool,
}

impl Access {
    pub(crate) const BOTH: Access = Access { reads: true, writes: true };

    fn covers(self, asked: Access) -> bool {
        (self.reads || !asked.reads) && (self.writes || !asked.writes)
    }
}

/// A command as far as rules look at it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// Its number in the catalogue; `None` if that does not have it.
    pub command: Option<usize>,
    pub args: &'a [&'a [u8]],
    /// Where its keys stand, and what is done with them.
    pub keys: &'a [(usize, Access)],
    /// Where its channels stand.
    pub channels: &'a [usize],
    /// They are patterns.
    pub are_patterns: bool,
}

/// Why a command is not allowed: the later, the nearer it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Denied {
    Command,
    /// The key at this argument.
    Key(usize),
    Channel(usize),
}

/// One set of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    all_keys: bool,
    all_channels: bool,
    /// All commands, without exception.
    all_commands: bool,
    /// Also those that nobody knows yet.
    future: bool,
    allowed: [u64; WORDS],
    /// Of commands that are not allowed: first arguments with which they are.
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

    fn set_all(&mut self, is_allowed: bool) {
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

    /// How many commands of a category are allowed, and are not.
    fn count(&self, all: &Catalogue, bit: u32) -> (usize, usize) {
        let of = (0..all.commands.len()).filter(|command| all.commands[*command].1 & bit != 0);
        let (on, off): (Vec<usize>, Vec<usize>) = of.partition(|command| self.has(*command));
        (on.len(), off.len())
    }

    /// Applies a rule.
    fn apply(&mut self, all: &Catalogue, rule: &[u8]) -> Result<(), Wrong> {
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
    pub(crate) fn keys_text(&self) -> Vec<u8> {
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
    pub(crate) fn channels_text(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let of = |pattern: &Vec<u8>| [b"&", &pattern[..]].concat();
        self.channels.iter().map(of).collect::<Vec<_>>().join(&b' ')
    }

    /// Rules that allow the same commands: few ones, as Redis 7.0 finds them. Categories of which more commands are
    /// to be switched than not are taken, the best first, and then single commands.
    pub(crate) fn commands_text(&self, all: &Catalogue) -> String {
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

    fn describe(&self, all: &Catalogue, out: &mut Vec<u8>) {
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

    fn allows_command(&self, call: &Call<'_>) -> bool {
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
    pub(crate) fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let fits = |own: &Vec<u8>| match is_pattern {
            true => own == channel,
            false => glob_matches(own, channel),
        };
        self.all_channels || self.channels.iter().any(fits)
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Denied> {
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

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub name: Vec<u8>,
    pub is_on: bool,
    /// Every password is right.
    pub no_password: bool,
    /// Whether payloads of RESTORE are looked through, if a rule said so. They always are.
    sanitizes: Option<bool>,
    /// SHA-256 of passwords, in lower-case hex.
    pub passwords: Vec<String>,
    pub root: Selector,
    pub selectors: Vec<Selector>,
}

impl User {
    /// Who may do nothing, and cannot log in.
    pub(crate) fn new(name: &[u8]) -> User {
        User {
            name: name.to_vec(),
            is_on: false,
            no_password: false,
            sanitizes: None,
            passwords: Vec::new(),
            root: Selector::default(),
            selectors: Vec::new(),
        }
    }

    /// Who may do everything, with this password or without.
    pub(crate) fn all_powerful(name: &[u8], password: Option<&[u8]>) -> User {
        let mut user = User { is_on: true, ..User::new(name) };
        user.root.set_all(true);
        (user.root.all_keys, user.root.all_channels) = (true, true);
        match password {
            Some(password) => user.passwords.push(hash_of(password)),
            None => user.no_password = true,
        }
        user
    }

    /// Everything is allowed, so that nothing has to be looked at.
    pub(crate) fn may_all(&self) -> bool {
        self.root.all_commands && self.root.all_keys && self.root.all_channels
    }

    /// Applies the rules of ACL SETUSER, all or none. An error names the rule.
    pub(crate) fn apply_all(&mut self, all: &Catalogue, rules: &[&[u8]]) -> Result<(), String> {
        let mut user = self.clone();
        for rule in merged(rules)? {
            user.apply(all, &rule).map_err(|wrong| {
                let rule = String::from_utf8_lossy(&rule);
                format!("Error in ACL SETUSER modifier '{rule}': {wrong}")
            })?;
        }
        *self = user;
        Ok(())
    }

    fn apply(&mut self, all: &Catalogue, rule: &[u8]) -> Result<(), Wrong> {
        match &rule.to_ascii_lowercase()[..] {
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"nopass" => {
                self.no_password = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.no_password = false;
                self.passwords.clear();
            }
            b"sanitize-payload" => self.sanitizes = Some(true),
            b"skip-sanitize-payload" => self.sanitizes = Some(false),
            b"clearselectors" => self.selectors.clear(),
            b"reset" => {
                *self = User { sanitizes: Some(true), ..User::new(&self.name) };
            }
            [b'>' | b'#', ..] => {
                let hash = hash_by(rule, b'>')?;
                if !self.passwords.contains(&hash) {
                    self.passwords.push(hash);
                }
                self.no_password = false;
            }
            [b'<' | b'!', ..] => {
                let hash = hash_by(rule, b'<')?;
                let at = self.passwords.iter().position(|own| *own == hash);
                self.passwords.remove(at.ok_or(NO_PASSWORD)?);
            }
            [b'(', .., b')'] => {
                let mut selector = Selector::default();
                let rules = rule[1..rule.len() - 1].split(u8::is_ascii_whitespace);
                for rule in rules.filter(|rule| !rule.is_empty()) {
                    selector.apply(all, rule)?;
                }
                self.selectors.push(selector);
            }
            _ => self.root.apply(all, rule)?,
        }
        Ok(())
    }

    /// Its flags, as Redis names them.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = alloc::vec![if self.is_on { "on" } else { "off" }];
        if self.no_password {
            flags.push("nopass");
        }
        match self.sanitizes {
            Some(true) => flags.push("sanitize-payload"),
            Some(false) => flags.push("skip-sanitize-payload"),
            None => {}
        }
        flags
    }

    /// Its line of ACL LIST.
    pub(crate) fn describe(&self, all: &Catalogue) -> Vec<u8> {
        let mut out = [b"user ", &self.name[..], b" "].concat();
        for flag in self.flags() {
            out.extend_from_slice(flag.as_bytes());
            out.push(b' ');
        }
        for hash in &self.passwords {
            out.extend_from_slice(format!("#{hash} ").as_bytes());
        }
        self.root.describe(all, &mut out);
        for selector in &self.selectors {
            out.extend_from_slice(b" (");
            selector.describe(all, &mut out);
            out.push(b')');
        }
        out
    }

    /// Whether this is one of its passwords.
    pub(crate) fn accepts(&self, password: &[u8]) -> bool {
        let hash = hash_of(password);
        let is_it = |own: &String| {
            let pairs = own.bytes().zip(hash.bytes());
            pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
        };
        // All are looked at, so that the time does not say which one it was.
        let any = self.passwords.iter().filter(|own| is_it(own)).count() > 0;
        self.is_on && (self.no_password || any)
    }

    /// All sets of rules.
    pub(crate) fn all_selectors(&self) -> impl Iterator<Item = &Selector> {
        [&self.root].into_iter().chain(&self.selectors)
    }

    /// Whether one set of rules allows the command.
    pub(crate) fn check(&self, call: &Call<'_>) -> Result<(), Denied> {
        let mut nearest = Denied::Command;
        for selector in self.all_selectors() {
            match selector.check(call) {
                Ok(()) => return Ok(()),
                Err(denied) => nearest = nearest.max(denied),
            }
        }
        Err(nearest)
    }

    /// Whether it may run this command on whatever keys.
    pub(crate) fn may_on_all_keys(&self, call: &Call<'_>) -> bool {
        self.all_selectors().any(|own| own.allows_command(call) && own.all_keys)
    }

    /// Whether it may do whatever a script could: everything with data and channels.
    pub(crate) fn may_what_scripts_may(&self, all: &Catalogue) -> bool {
        let publishes = ["publish", "spublish"].into_iter().filter_map(|name| all.find(name));
        let of_data = || all.of_data().chain(publishes.clone());
        self.all_selectors().any(|own| {
            own.all_keys && own.all_channels && of_data().all(|command| own.has(command))
        })
    }
}

/// The hash that a rule adds or removes: of a password behind `sign`, otherwise as it is.
fn hash_by(rule: &[u8], sign: u8) -> Result<String, Wrong> {
    let text = &rule[1..];
    if rule[0] == sign {
        return Ok(hash_of(text));
    }
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 64 || !text.iter().all(is_hex) {
        return Err(BAD_HASH);
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// SHA-256 in lower-case hex.
pub(crate) fn hash_of(text: &[u8]) -> String {
    hex(&Sha256::digest(text))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Rules, where those of a selector between parentheses are one.
fn merged(rules: &[&[u8]]) -> Result<Vec<Vec<u8>>, String> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<Vec<u8>> = None;
    for rule in rules {
        let joined = match open.take() {
            Some(before) => [&before[..], b" ", rule].concat(),
            None if rule.starts_with(b"(") => rule.to_vec(),
            None => {
                all.push(rule.to_vec());
                continue;
            }
        };
        match joined.ends_with(b")") {
            true => all.push(joined),
            false => open = Some(joined),
        }
    }
    match open {
        Some(open) => {
            let shown = String::from_utf8_lossy(&open).into_owned();
            Err(format!("Unmatched parenthesis in acl selector starting at '{shown}'."))
        }
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(rules: &str) -> User {
        let all = Catalogue::default();
        let mut user = User::new(b"u");
        let rules: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
        user.apply_all(&all, &rules).unwrap();
        user
    }

    fn line(rules: &str) -> String {
        let all = Catalogue::default();
        let line = user(rules).describe(&all);
        // What it says is what it is.
        let rest = line.strip_prefix(b"user u ").unwrap();
        let again = user(core::str::from_utf8(rest).unwrap());
        assert_eq!(again.describe(&all), line);
        String::from_utf8(rest.to_vec()).unwrap()
    }

    /// Each line as redis-server 7.0.15 answers it, but for the order of single commands, which is there that of a hash
    /// table.
    #[test]
    fn users_are_described_as_by_redis() {
        for (rules, expected) in [
            (
                "+@all -@all +@read -@read +get +client -client|id",
                "off resetchannels -@all +client -client|id +get",
            ),
            (
                "allcommands -client|id -@hash +hget %RW~z %W~w (+get ~a allchannels)",
                "off ~z %W~w resetchannels +@all -@hash -client|id +hget (~a &* -@all +get)",
            ),
            (
                "on nopass ~a* %R~r* &ch* +@read +config|get -mget +select|0 (~x* +set)",
                "on nopass ~a* %R~r* resetchannels &ch* -@all +@read +config|get -mget +select|0 \
              (~x* resetchannels -@all +set)",
            ),
            ("reset", "off sanitize-payload resetchannels -@all"),
            ("on nopass allkeys allchannels +@all", "on nopass ~* &* +@all"),
            ("%R~a %W~a", "off ~a resetchannels -@all"),
        ] {
            assert_eq!(line(rules), expected, "{rules}");
        }
        let all = Catalogue::default();
        for name in CATEGORIES {
            let text = user(&format!("+@all -@{name}")).root.commands_text(&all);
            assert_eq!(text, format!("+@all -@{name}"));
            let text = user(&format!("-@all +@{name}")).root.commands_text(&all);
            assert_eq!(text, format!("-@all +@{name}"));
        }
    }

    #[test]
    fn what_is_wrong_with_a_rule_is_said_in_redis_words() {
        let all = Catalogue::default();
        for (rules, expected) in [
            ("nope", "Error in ACL SETUSER modifier 'nope': Syntax error"),
            ("on", ""),
            ("+config|get|x", FIRST_ARG),
            ("-select|0", UNKNOWN),
            ("+config|nope", UNKNOWN),
            ("+@nope", UNKNOWN),
            ("<x", NO_PASSWORD),
            ("#x", BAD_HASH),
            ("%X~a", SYNTAX),
            ("%~a", SYNTAX),
            ("allkeys ~a", AFTER_ALL_KEYS),
            ("&* &a", AFTER_ALL_CHANNELS),
            ("(~a", "Unmatched parenthesis in acl selector starting at '(~a'."),
            ("(on)", SYNTAX),
        ] {
            let mut user = User::new(b"u");
            let before = user.clone();
            let rules: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
            match user.apply_all(&all, &rules) {
                Ok(()) => assert_eq!(expected, ""),
                Err(text) => {
                    assert!(text.ends_with(expected), "{text}");
                    assert_eq!(user, before, "an error changes nothing");
                }
            }
        }
    }

    #[test]
    fn passwords_are_kept_as_hashes() {
        let user = user("on >one >two <one");
        assert!(user.accepts(b"two") && !user.accepts(b"one") && !user.accepts(b""));
        let hash = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";
        assert_eq!(user.passwords, [hash]);
    }

    #[test]
    fn one_set_of_rules_has_to_allow_the_whole_command() {
        let all = Catalogue::default();
        let check = |rules: &str, call: &str, keys: &[(usize, Access)]| {
            let args: Vec<&[u8]> = call.split(' ').map(str::as_bytes).collect();
            let command = all.find_call(&args);
            let (channels, are_patterns): (&[usize], bool) = (&[], false);
            user(rules).check(&Call { command, args: &args, keys, channels, are_patterns })
        };
        let (reads, writes) =
            (Access { reads: true, writes: false }, Access { reads: false, writes: true });
        assert_eq!(check("+get ~a", "get a", &[(1, reads)]), Ok(()));
        assert_eq!(check("+get ~a", "get b", &[(1, reads)]), Err(Denied::Key(1)));
        assert_eq!(check("+get ~a", "set a 1", &[(1, writes)]), Err(Denied::Command));
        assert_eq!(check("+set %R~a", "set a 1", &[(1, writes)]), Err(Denied::Key(1)));
        assert_eq!(check("+get (+set ~a)", "set a 1", &[(1, writes)]), Ok(()));
        assert_eq!(check("+select|1", "select 1", &[]), Ok(()));
        assert_eq!(check("+select|1", "select 2", &[]), Err(Denied::Command));
        assert_eq!(check("+config|get", "CONFIG GET x", &[]), Ok(()));
        assert_eq!(check("+config|get", "config set x 1", &[]), Err(Denied::Command));
        assert_eq!(check("+@all -config|set", "config set x 1", &[]), Err(Denied::Command));
        assert_eq!(check("+@all", "command.of.the.future", &[]), Ok(()));
        assert_eq!(check("+@all -get", "command.of.the.future", &[]), Ok(()));
        assert_eq!(check("+get", "command.of.the.future", &[]), Err(Denied::Command));
        assert!(user("+@all allkeys allchannels").may_what_scripts_may(&all));
        assert!(user("+@all -config allkeys allchannels").may_what_scripts_may(&all));
        assert!(!user("+@all -flushall allkeys allchannels").may_what_scripts_may(&all));
        assert!(!user("+@all ~a allchannels").may_what_scripts_may(&all));
    }
}
