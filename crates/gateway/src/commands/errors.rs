//! Counts of error replies by their first word (INFO errorstats).

use alloc::collections::BTreeMap;
use alloc::string::String;

use concord_engine::resp_scan;

/// As in Redis: an error whose first word is longer counts as an `ERR`.
const WORD_BYTES_MAX: usize = 31;
/// The number of words that are counted separately, and the word that counts all others. Scripts
/// can raise any error.
const WORDS_MAX: usize = 128;
const OTHERS: &str = "OTHER";
/// Longer replies to transactions are not searched for errors.
const SEARCHED_BYTES_MAX: usize = 64 << 10;

/// The error replies since the last CONFIG RESETSTAT.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    by_word: BTreeMap<String, u64>,
    total: u64,
}

impl Errors {
    /// Counts the error `text`, which has no `-` in front.
    pub(crate) fn note(&mut self, text: &[u8]) {
        self.total += 1;
        let word = text.split(|&byte| byte == b' ').next().unwrap_or_default();
        let is_word = word.len() < text.len() && (1..=WORD_BYTES_MAX).contains(&word.len());
        let word = if is_word { word } else { b"ERR" };
        // As in Redis: other characters would break the format of INFO.
        let safe = |byte: &u8| if b"#:\r\n".contains(byte) { b'_' } else { *byte };
        let word: alloc::vec::Vec<u8> = word.iter().map(safe).collect();
        let word = String::from_utf8_lossy(&word).into_owned();
        let is_known = self.by_word.len() < WORDS_MAX || self.by_word.contains_key(&word);
        let word = if is_known { word } else { OTHERS.into() };
        *self.by_word.entry(word).or_default() += 1;
    }

    /// Counts a reply if it is an error or, for a transaction (`is_exec`), the errors among its
    /// elements.
    pub(crate) fn note_reply(&mut self, reply: &[u8], is_exec: impl Fn() -> bool) {
        match reply.split_first() {
            Some((b'-', text)) => self.note(text.trim_ascii_end()),
            Some((b'*', _)) if is_exec() && may_have_errors(reply) => resp_scan::elements(reply)
                .filter_map(|element| element.strip_prefix(b"-"))
                .for_each(|text| self.note(text.trim_ascii_end())),
            _ => {}
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The words, each with the number of its replies.
    pub(crate) fn by_word(&self) -> impl Iterator<Item = (&str, u64)> {
        self.by_word.iter().map(|(word, count)| (word.as_str(), *count))
    }
}

fn may_have_errors(reply: &[u8]) -> bool {
    reply.len() <= SEARCHED_BYTES_MAX && reply.windows(2).any(|pair| pair == b"\n-")
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn errors_are_counted_by_their_first_words() {
        let mut errors = Errors::default();
        for reply in
            ["-ERR no\r\n", "-WRONGTYPE no\r\n", "-ERR\r\n", "-alone\r\n", "+OK\r\n", ":1\r\n"]
        {
            errors.note_reply(reply.as_bytes(), || false);
        }
        errors.note(b"A:B no");
        errors.note(b"a-word-that-is-longer-than-any-other no");
        let exec = b"*3\r\n-ERR no\r\n+OK\r\n-OOM no\r\n";
        errors.note_reply(exec, || false);
        errors.note_reply(exec, || true);
        let counts: Vec<_> = errors.by_word().collect();
        assert_eq!(counts, [("A_B", 1), ("ERR", 5), ("OOM", 1), ("WRONGTYPE", 1)]);
        assert_eq!(errors.total(), 8);
    }

    #[test]
    fn words_that_scripts_make_up_do_not_grow_without_bound() {
        let mut errors = Errors::default();
        for number in 0..1_000 {
            errors.note(format!("E{number} no").as_bytes());
        }
        errors.note(b"E0 no");
        assert_eq!((errors.by_word().count(), errors.total()), (WORDS_MAX + 1, 1_001));
        assert!(errors.by_word().any(|one| one == (OTHERS, 1_000 - WORDS_MAX as u64)));
        assert_eq!(errors.by_word().next(), Some(("E0", 2)));
    }
}
