//! Users and what they may do (ACL), as far as replicas know of them: one text, which gateways
//! write and read, and which replicas keep beside their data as they keep libraries
//! ([`mod@crate::functions`]). They do not look into it, so that replicas of different versions
//! never differ about a rule; but for the line that says which events are wanted
//! ([`mod@crate::events`]).
//!
//! `CONCORD.USERS GET known` answers version and text, or null if the version is `known`.
//! `CONCORD.USERS SET known text` replaces the text if its version is `known`, and answers the new
//! version; otherwise it changes nothing, and answers version and text as they are.

use alloc::vec::Vec;

use concord_core::hash::hash64;

use crate::table::UpperName;
use crate::{Class, resp};

/// The name under which a copy has the users; no key can have it ([`crate::databases`]).
pub const USERS_KEY: &[u8] = b"\xff\xfedb~users";
/// The internal command that gateways read and write them by.
pub const USERS_COMMAND: &[u8] = b"CONCORD.USERS";
/// The largest size of the text, in bytes.
pub const USERS_BYTES_MAX: usize = 512 << 10;

/// The text and how often it was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Users {
    version: u64,
    text: Vec<u8>,
}

impl Users {
    /// Whether the users were never changed.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Users::default()
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    pub(crate) fn clear(&mut self) {
        *self = Users::default();
    }

    /// Bytes of memory, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.text.len() as u64
    }

    /// Equal if and only if version and text are, but for one in 2^64.
    pub(crate) fn digest(&self) -> u64 {
        if self.is_empty() { 0 } else { hash64(self.version, &self.text) }
    }

    /// For a copy.
    pub(crate) fn save(&self) -> Vec<u8> {
        [&self.version.to_be_bytes(), &self.text[..]].concat()
    }

    /// Decodes what [`Users::save`] wrote; `None` if the bytes are something else.
    pub(crate) fn restore(saved: &[u8]) -> Option<Users> {
        let (version, text) = saved.split_first_chunk()?;
        Some(Users { version: u64::from_be_bytes(*version), text: text.to_vec() })
    }

    /// Executes the command with these arguments, its name first; the reply.
    pub(crate) fn execute(&mut self, class: Class, args: &[&[u8]]) -> Vec<u8> {
        let mut reply = Vec::new();
        let known = |text: &[u8]| resp::number(text).and_then(|number| u64::try_from(number).ok());
        match args {
            [_, get, version] if UpperName::of(get).is(b"GET") => match known(version) {
                Some(version) if version == self.version => resp::null(&mut reply, false),
                _ => self.show(&mut reply),
            },
            [_, set, version, text]
                if UpperName::of(set).is(b"SET")
                    && class == Class::Write
                    && text.len() <= USERS_BYTES_MAX =>
            {
                if known(version) == Some(self.version) {
                    self.version += 1;
                    self.text = text.to_vec();
                    resp::integer(&mut reply, self.version as i64);
                } else {
                    self.show(&mut reply);
                }
            }
            _ => resp::error(&mut reply, b"ERR CONCORD.USERS: malformed"),
        }
        reply
    }

    fn show(&self, reply: &mut Vec<u8>) {
        resp::array(reply, 2);
        resp::integer(reply, self.version as i64);
        resp::bulk(reply, &self.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_replaced_only_by_who_knows_it() {
        let mut users = Users::default();
        let mut run = |command: &str| {
            let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            users.execute(Class::Write, &args)
        };
        assert_eq!(run("CONCORD.USERS GET 0"), b"$-1\r\n");
        assert_eq!(run("CONCORD.USERS SET 0 one"), b":1\r\n");
        assert_eq!(run("CONCORD.USERS SET 0 two"), b"*2\r\n:1\r\n$3\r\none\r\n");
        assert_eq!(run("CONCORD.USERS SET 1 two"), b":2\r\n");
        assert_eq!(run("CONCORD.USERS GET 1"), b"*2\r\n:2\r\n$3\r\ntwo\r\n");
        assert!(run("CONCORD.USERS SET x").starts_with(b"-ERR"));
        let read = users.execute(Class::Read, &[USERS_COMMAND, b"SET", b"2", b"x"]);
        assert!(read.starts_with(b"-ERR"), "a read changes nothing");
        let restored = Users::restore(&users.save()).unwrap();
        assert_eq!((restored.digest(), &restored), (users.digest(), &users));
        assert_eq!(Users::restore(b"short"), None);
    }
}
