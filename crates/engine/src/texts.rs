//! Texts of scripts within a transaction: each travels once.
//!
//! A gateway sends a script by its text, whether its client named it by its hash or not. In a
//! transaction each further script of a text that stands in it before has, in the text's place, a
//! mark and the text's hash. Replicas put the text there again before they look at anything else;
//! so a reference means the same at each, and never depends on what one remembers.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::command::{Command, CommandBuf};
use crate::redis::is_script;
use crate::script::hash_of;
use crate::ttl::EXEC_COMMAND;

/// Precedes a hash: no script in Lua begins with it.
const MARK: &[u8] = b"\xff\xfetext:";
/// Shorter texts are not worth a reference.
const TEXT_BYTES_MIN: usize = 128;
/// Longest transaction with all texts in their places, in bytes.
pub const EXPANDED_BYTES_MAX: usize = 256 << 20;
/// The place of a script's text among its arguments.
const TEXT_AT: usize = 1;

/// The reference that replaces this text from its second occurrence on; `None` if the text is
/// short.
#[must_use]
pub fn reference(text: &[u8]) -> Option<Vec<u8>> {
    (text.len() >= TEXT_BYTES_MIN).then(|| [MARK, &hash_of(text)].concat())
}

/// `command` with `text` in the place of its text, if it is a script.
#[must_use]
pub fn with_text(command: &Command<'_>, text: &[u8]) -> Vec<u8> {
    let args = command.args().enumerate().map(|(at, arg)| if at == TEXT_AT { text } else { arg });
    let mut changed = CommandBuf::new();
    changed.encode(command.key_index(), args);
    changed.set_database(command.database()).to_vec()
}

/// The text of a script; `None` if `command` is not one.
#[must_use]
pub fn text_of<'a>(command: &Command<'a>) -> Option<&'a [u8]> {
    if is_script(command) { command.args().nth(TEXT_AT) } else { None }
}

/// A transaction that has references, with all texts in their places; `None` if it has none, or is
/// no transaction. One that refers to what does not stand before it, or would be longer than
/// [`EXPANDED_BYTES_MAX`], is left as it is: what is no Lua fails by itself.
#[must_use]
pub fn expanded(exec: &Command<'_>) -> Option<Vec<u8>> {
    let is_reference = |part: &[u8]| {
        let text = Command::parse(part).ok().and_then(|part| text_of(&part));
        text.is_some_and(|text| text.starts_with(MARK))
    };
    let is_exec = exec.name().eq_ignore_ascii_case(EXEC_COMMAND);
    if !is_exec || !exec.args().skip(1).any(is_reference) {
        return None;
    }
    let mut texts: BTreeMap<[u8; 40], &[u8]> = BTreeMap::new();
    let (mut parts, mut bytes): (Vec<Vec<u8>>, usize) = (Vec::new(), 0);
    for part in exec.args().skip(1) {
        let command = Command::parse(part).ok();
        let text = command.as_ref().and_then(text_of);
        let hash: Option<[u8; 40]> =
            text.and_then(|text| text.strip_prefix(MARK)).and_then(|hash| hash.try_into().ok());
        let full = match (command, hash.and_then(|hash| texts.get(&hash))) {
            (Some(command), Some(text)) => with_text(&command, text),
            _ => part.to_vec(),
        };
        if let Some(text) = text.filter(|text| text.len() >= TEXT_BYTES_MIN) {
            texts.entry(hash_of(text)).or_insert(text);
        }
        bytes = bytes.saturating_add(full.len());
        if bytes > EXPANDED_BYTES_MAX {
            return None;
        }
        parts.push(full);
    }
    let args = [exec.name()].into_iter().chain(parts.iter().map(Vec::as_slice));
    Some(CommandBuf::new().encode(exec.key_index(), args).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &[u8], key: &[u8]) -> Vec<u8> {
        CommandBuf::new().encode(3, [&b"EVAL"[..], text, b"1", key]).to_vec()
    }

    fn exec(parts: &[Vec<u8>]) -> Vec<u8> {
        let args = [EXEC_COMMAND].into_iter().chain(parts.iter().map(Vec::as_slice));
        CommandBuf::new().encode(0, args).to_vec()
    }

    /// A text that stands before takes the place of its reference, and of no other one.
    #[test]
    fn bug_22_115_a_texts_place_is_taken_by_its_first_one() {
        let long = [&b"return redis.call('GET', KEYS[1]) --"[..], &[b'x'; 200]].concat();
        let refers = reference(&long).unwrap();
        assert_eq!(reference(b"return 1"), None);
        let set = CommandBuf::new().encode(1, [&b"SET"[..], b"k", b"v"]).to_vec();
        let sent = exec(&[set.clone(), script(&long, b"a"), script(&refers, b"b"), set.clone()]);
        let full = exec(&[set.clone(), script(&long, b"a"), script(&long, b"b"), set.clone()]);
        assert_eq!(expanded(&Command::parse(&sent).unwrap()), Some(full.clone()));
        assert_eq!(expanded(&Command::parse(&full).unwrap()), None, "there is none");
        // What refers to something that does not stand before it is no script.
        let before = exec(&[script(&refers, b"b"), script(&long, b"a")]);
        assert_eq!(expanded(&Command::parse(&before).unwrap()), Some(before));
        assert_eq!(expanded(&Command::parse(&script(&refers, b"b")).unwrap()), None);
    }

    #[test]
    fn a_transaction_is_not_made_longer_than_it_may_be() {
        let long = alloc::vec![b'x'; 1 << 20];
        let refers = script(&reference(&long).unwrap(), b"b");
        let mut parts = alloc::vec![script(&long, b"a")];
        parts.extend((0..270).map(|_| refers.clone()));
        assert_eq!(expanded(&Command::parse(&exec(&parts)).unwrap()), None);
    }
}
