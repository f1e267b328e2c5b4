//! The scripts that the gateway remembers.

pub(crate) mod eval;
pub(crate) mod functions;
pub(crate) mod locality;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cell::Cell;

use concord_engine::CommandTable;
use concord_engine::script::hash_of;

use crate::scripts::locality::touches_first_key_alone;

/// The largest number of remembered scripts, and their largest total size. The oldest go first,
/// except those that were used since.
const SCRIPTS_MAX: usize = 1_000;
const BYTES_MAX: usize = 16 << 20;
/// SHA-1 in lower-case hex: the name of a script, as Redis gives it.
pub(crate) type Sha = [u8; 40];

fn sha_of(text: &[u8]) -> Option<Sha> {
    let mut sha: Sha = text.try_into().ok()?;
    sha.make_ascii_lowercase();
    Some(sha)
}

/// A script that is remembered.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) text: Vec<u8>,
    /// Whether it uses only its first key.
    pub(crate) is_local: bool,
    was_used: Cell<bool>,
}

/// The scripts that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    by_sha: BTreeMap<Sha, Remembered>,
    order: VecDeque<Sha>,
    bytes: usize,
}

impl Scripts {
    /// The script of that name.
    pub(crate) fn get(&self, sha: &[u8]) -> Option<&Remembered> {
        let script = self.by_sha.get(&sha_of(sha)?)?;
        script.was_used.set(true);
        Some(script)
    }

    /// The number of remembered scripts.
    pub(crate) fn count(&self) -> usize {
        self.by_sha.len()
    }

    /// Remembers a script, and names it.
    pub(crate) fn remember(&mut self, script: &[u8], table: &CommandTable) -> Sha {
        let sha = hash_of(script);
        if let Some(known) = self.by_sha.get(&sha) {
            known.was_used.set(true);
            return sha;
        }
        while self.order.len() >= SCRIPTS_MAX || self.bytes + script.len() > BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            if self.by_sha.get(&oldest).is_some_and(|script| script.was_used.replace(false)) {
                self.order.push_back(oldest);
                continue;
            }
            self.bytes -= self.by_sha.remove(&oldest).map_or(0, |script| script.text.len());
        }
        let is_local = touches_first_key_alone(script, table);
        let text = script.to_vec();
        self.by_sha.insert(sha, Remembered { text, is_local, was_used: Cell::new(false) });
        self.order.push_back(sha);
        self.bytes += script.len();
        sha
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn scripts_are_found_by_sha1_in_any_case_and_the_oldest_go() {
        let mut scripts = Scripts::default();
        let table = CommandTable::memory();
        let sha = scripts.remember(b"return 1", &table);
        assert_eq!(&sha, b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(scripts.get(&sha.to_ascii_uppercase()).unwrap().text, b"return 1");
        assert!(scripts.get(b"e0e1").is_none());
        for i in 0..2 * SCRIPTS_MAX {
            scripts.remember(format!("return {i}0").as_bytes(), &table);
        }
        assert!(scripts.get(&sha).is_none());
        scripts.remember(&alloc::vec![b'x'; BYTES_MAX], &table);
        assert_eq!((scripts.order.len(), scripts.by_sha.len()), (1, 1));
    }

    #[test]
    fn a_script_that_is_used_again_and_again_stays() {
        let mut scripts = Scripts::default();
        let table = CommandTable::memory();
        let sha = scripts.remember(b"return 1", &table);
        let once = scripts.remember(b"return 2", &table);
        for i in 0..5 * SCRIPTS_MAX {
            scripts.remember(format!("return {i}0").as_bytes(), &table);
            if i % (SCRIPTS_MAX / 2) == 0 {
                assert!(scripts.get(&sha).is_some(), "{i}");
            }
        }
        assert!(scripts.get(&once).is_none());
        assert_eq!((scripts.order.len(), scripts.by_sha.len()), (SCRIPTS_MAX, SCRIPTS_MAX));
    }
}
