//! A user: who it is, and what it may do ([`concord_engine::acl`]), as Redis 7.0 has it.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use concord_engine::acl::{Catalogue, Rights, Wrong, merged};
use sha2::{Digest, Sha256};

const NO_PASSWORD: Wrong = "The password you are trying to remove from the user does not exist";
const BAD_HASH: Wrong = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal \
     characters";

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
    pub rights: Rights,
}

impl User {
    /// A user that may do nothing, and cannot log in.
    pub(crate) fn new(name: &[u8]) -> User {
        User {
            name: name.to_vec(),
            is_on: false,
            no_password: false,
            sanitizes: None,
            passwords: Vec::new(),
            rights: Rights::default(),
        }
    }

    /// A user that may do everything, with this password or without one.
    pub(crate) fn all_powerful(name: &[u8], password: Option<&[u8]>) -> User {
        let mut user = User { is_on: true, rights: Rights::all(), ..User::new(name) };
        match password {
            Some(password) => user.passwords.push(hash_of(password)),
            None => user.no_password = true,
        }
        user
    }

    /// Everything is allowed, so that nothing has to be looked at.
    pub(crate) fn may_all(&self) -> bool {
        self.rights.are_all()
    }

    /// Applies the rules of ACL SETUSER, all or none. An error names the rule.
    pub(crate) fn apply_all(&mut self, all: &Catalogue, rules: &[&[u8]]) -> Result<(), String> {
        let mut user = self.clone();
        let unmatched = |open: Vec<u8>| {
            let shown = String::from_utf8_lossy(&open).into_owned();
            format!("Unmatched parenthesis in acl selector starting at '{shown}'.")
        };
        for rule in merged(rules.iter().copied()).map_err(unmatched)? {
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
            b"clearselectors" => self.rights.selectors.clear(),
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
            _ => self.rights.apply(all, rule)?,
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
        self.rights.describe(all, &mut out);
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
}

/// The hash that a rule adds or removes: of a password after `sign`, otherwise the given one.
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

#[cfg(test)]
mod tests {
    use concord_engine::acl::{Access, Call, Denied};
    use concord_engine::table::categories::CATEGORIES;

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

    /// Each line as redis-server 7.0.15 answers it, but for the order of single commands, which is
    /// there that of a hash table.
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
            let text = user(&format!("+@all -@{name}")).rights.root.commands_text(&all);
            assert_eq!(text, format!("+@all -@{name}"));
            let text = user(&format!("-@all +@{name}")).rights.root.commands_text(&all);
            assert_eq!(text, format!("-@all +@{name}"));
        }
    }

    const UNKNOWN: &str = "Unknown command or category name in ACL";
    const SYNTAX: &str = "Syntax error";
    const AFTER_ALL_KEYS: &str = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not \
         have any effect. Try 'resetkeys' to start with an empty list of patterns";
    const AFTER_ALL_CHANNELS: &str = "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and \
         does not have any effect. Try 'resetchannels' to start with an empty list of channels";
    const FIRST_ARG: &str = "Allowing first-arg of a subcommand is not supported";

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
            user(rules).rights.check(&Call { command, args: &args, keys, channels, are_patterns })
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
    }
}
