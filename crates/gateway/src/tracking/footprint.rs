//! The keys that a command reads and writes, as far as clients have to be told of them
//! ([`crate::tracking`]), and the encoding of its reads together with digests.
//!
//! A command whose reads are tracked goes to the rack as a transaction: digests of the keys, then
//! the command. If it may write too, the digests follow once more, so that its own writes are
//! known.

use alloc::vec::Vec;

use concord_client::Outcome;
use concord_engine::ttl::EXEC_COMMAND;
use concord_engine::{CommandBuf, resp, resp_scan};

/// The largest number of keys whose digests are read with a command; the values of a command that
/// reads more are not to be cached.
pub(crate) const DIGESTS_MAX: usize = 1_024;

/// The keys of a command, and the client for which they are tracked.
#[derive(Debug, Default)]
pub(crate) struct Footprint {
    /// Keys that the client may cache, each once.
    pub reads: Vec<Vec<u8>>,
    /// The client itself is told of them; otherwise only those who asked for their prefixes.
    pub is_own: bool,
    pub writes: Vec<Vec<u8>>,
    /// All keys are written.
    pub flushes: bool,
    /// There is a script in it: what it writes is among its keys.
    pub has_script: bool,
    /// Keys are deleted, and by nothing that is worth a look at them.
    pub deletes: bool,
    /// Keys that it reads while the client watches them, each once, and which WATCH that is.
    pub watched: Vec<Vec<u8>>,
    pub watch_number: u64,
    /// The places of digests around the reply.
    pub digests: Digests,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Digests {
    /// No digests.
    #[default]
    None,
    /// Before the reply to one command, and after it if `behind`.
    One { behind: bool },
    /// The same for the replies of a transaction.
    Exec { behind: bool },
}

/// The digests of the keys read, before and after; an empty one is unknown.
pub(crate) type Seen = (Vec<Vec<u8>>, Vec<Vec<u8>>);

impl Footprint {
    pub(crate) fn is_empty(&self) -> bool {
        !self.asks() && self.writes.is_empty() && !self.flushes
    }

    /// Whether digests are to come with the reply.
    pub(crate) fn asks(&self) -> bool {
        !self.reads.is_empty() || !self.watched.is_empty()
    }

    /// The keys whose digests are to come.
    pub(crate) fn asked(&self) -> impl ExactSizeIterator<Item = &Vec<u8>> {
        let (reads, watched) = (self.reads.len(), self.watched.len());
        (0..reads + watched).map(move |at| match at.checked_sub(reads) {
            None => &self.reads[at],
            Some(at) => &self.watched[at],
        })
    }

    /// Whether it has written something, as far as its end says.
    pub(crate) fn may_have_written(&self, outcome: Outcome, reply: &[u8]) -> bool {
        if self.writes.is_empty() && !self.flushes {
            return false;
        }
        match outcome {
            Outcome::Reply if self.has_script => true,
            Outcome::Reply => !reply.starts_with(b"-") && !resp::is_null(reply),
            Outcome::WriteUnknown | Outcome::TooLarge => true,
            Outcome::ReadTimeout
            | Outcome::Busy
            | Outcome::WriteNotExecuted
            | Outcome::Malformed => false,
        }
    }

    /// Adds what another command of the same transaction does. What is watched EXEC itself
    /// compares.
    pub(crate) fn add(&mut self, other: Footprint) {
        for key in other.reads {
            add(&mut self.reads, &key);
        }
        for key in other.writes {
            add(&mut self.writes, &key);
        }
        self.is_own |= other.is_own;
        self.flushes |= other.flushes;
        self.has_script |= other.has_script;
        self.deletes = false;
    }

    /// Commands that ask for the digests of what is read.
    pub(crate) fn questions(&self) -> Vec<Vec<u8>> {
        let ask = |key: &Vec<u8>| {
            CommandBuf::new().encode(2, [&b"DEBUG"[..], b"DIGEST-VALUE", key]).to_vec()
        };
        self.asked().map(ask).collect()
    }

    /// Encodes a command with the digests.
    pub(crate) fn surround(&mut self, command: &mut CommandBuf, writes: bool) {
        let (inner, questions) = (command.bytes().to_vec(), self.questions());
        let asked = || questions.iter().map(Vec::as_slice);
        let behind = asked().filter(|_| writes);
        let parts = [EXEC_COMMAND].into_iter().chain(asked()).chain([&inner[..]]).chain(behind);
        command.encode(0, parts);
        self.digests = Digests::One { behind: writes };
    }

    /// Removes the digests from a reply; `None` if there are none, since nothing was executed.
    pub(crate) fn take_digests(&self, reply: &mut Vec<u8>) -> Option<Seen> {
        let (behind, is_exec) = match self.digests {
            Digests::None => return None,
            Digests::One { behind } => (behind, false),
            Digests::Exec { behind } => (behind, true),
        };
        if !reply.starts_with(b"*") || resp::is_null(reply) {
            return None;
        }
        let count = self.asked().len();
        let head = resp::line_length(reply)?;
        let all: Vec<&[u8]> = resp_scan::elements(reply).collect();
        let inner = all.len().checked_sub(count * (1 + usize::from(behind)))?;
        let bytes_of = |elements: &[&[u8]]| elements.iter().map(|e| e.len()).sum::<usize>();
        let digests = |elements: &[&[u8]]| elements.iter().map(|e| digest_in(e)).collect();
        let seen: Seen = (
            digests(&all[..count]),
            digests(if behind { &all[count + inner..] } else { &all[..count] }),
        );
        let start = head + bytes_of(&all[..count]);
        let end = start + bytes_of(&all[count..count + inner]);
        let mut out = Vec::with_capacity(end - start + 16);
        if is_exec {
            resp::array(&mut out, inner);
        }
        out.extend_from_slice(&reply[start..end]);
        *reply = out;
        Some(seen)
    }
}

/// The digest in the reply to a question; an empty one if there is none.
pub(crate) fn digest_in(reply: &[u8]) -> Vec<u8> {
    let text = reply.strip_prefix(b"*1\r\n+").and_then(|text| text.strip_suffix(b"\r\n"));
    text.unwrap_or_default().to_vec()
}

/// Adds a key, once.
pub(crate) fn add(keys: &mut Vec<Vec<u8>>, key: &[u8]) {
    // Few, or all of one command, where one that comes twice does no harm.
    if keys.len() > DIGESTS_MAX || !keys.iter().any(|own| own == key) {
        keys.push(key.to_vec());
    }
}

/// Encodes a report to other gateways: these keys were written, or all.
pub(crate) fn encode_written(keys: &[Vec<u8>], flushes: bool) -> Vec<u8> {
    let mut out = Vec::from([u8::from(flushes)]);
    for key in keys {
        out.extend_from_slice(&(key.len() as u32).to_be_bytes());
        out.extend_from_slice(key);
    }
    out
}

pub(crate) fn parse_written(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, bool)> {
    let (flushes, mut rest) = bytes.split_first()?;
    let mut keys = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (key, behind) = behind.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        keys.push(key.to_vec());
        rest = behind;
    }
    Some((keys, *flushes != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn footprint(digests: Digests) -> Footprint {
        Footprint { reads: vec![b"a".to_vec(), b"b".to_vec()], digests, ..Footprint::default() }
    }

    #[test]
    fn digests_are_taken_off_a_reply() {
        let mut reply = b"*3\r\n*1\r\n+11\r\n*1\r\n+22\r\n$1\r\nv\r\n".to_vec();
        let seen = footprint(Digests::One { behind: false }).take_digests(&mut reply).unwrap();
        assert_eq!(
            (&reply[..], seen.0),
            (&b"$1\r\nv\r\n"[..], vec![b"11".to_vec(), b"22".to_vec()])
        );
        let mut reply =
            b"*6\r\n*1\r\n+11\r\n*1\r\n+22\r\n+A\r\n*1\r\n+B\r\n*1\r\n+11\r\n-no\r\n".to_vec();
        let seen = footprint(Digests::Exec { behind: true }).take_digests(&mut reply).unwrap();
        assert_eq!(reply, b"*2\r\n+A\r\n*1\r\n+B\r\n");
        assert_eq!(seen.1, vec![b"11".to_vec(), vec![]]);
        for nothing in [&b"-ERR no\r\n"[..], b"*-1\r\n", b"_\r\n", b"*1\r\n+x\r\n"] {
            let mut reply = nothing.to_vec();
            assert!(footprint(Digests::One { behind: false }).take_digests(&mut reply).is_none());
            assert_eq!(reply, nothing);
        }
    }

    #[test]
    fn what_was_written_survives() {
        let keys = vec![b"a".to_vec(), vec![], vec![7; 300]];
        assert_eq!(parse_written(&encode_written(&keys, false)), Some((keys, false)));
        assert_eq!(parse_written(&encode_written(&[], true)), Some((vec![], true)));
        assert_eq!(parse_written(&[]), None);
        assert_eq!(parse_written(&[0, 0, 0, 0, 9, 1]), None);
    }
}
