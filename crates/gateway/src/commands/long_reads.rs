//! Reads whose replies were long the last time, so that they need not be attempted when there is no
//! room for their replies.

use alloc::vec;
use alloc::vec::Vec;

use concord_core::hash::hash64;

/// The number of remembered reads; a further one replaces another.
const KNOWN: usize = 1_024;

/// The lengths of replies, by the hashes of their commands.
#[derive(Debug)]
pub(crate) struct LongReads {
    known: Vec<(u64, u32)>,
}

impl Default for LongReads {
    fn default() -> LongReads {
        LongReads { known: vec![(0, 0); KNOWN] }
    }
}

impl LongReads {
    /// Notes the length of a command's reply, and returns the command's hash.
    pub(crate) fn note(&mut self, command: &[u8], bytes: u32) -> u64 {
        let hash = hash64(0, command);
        self.known[place(hash)] = (hash, bytes);
        hash
    }

    /// Notes that the reply to the command with that hash was short.
    pub(crate) fn forget(&mut self, hash: u64) {
        let known = &mut self.known[place(hash)];
        if known.0 == hash {
            *known = (0, 0);
        }
    }

    /// The length of the last reply, if it was long.
    pub(crate) fn bytes(&self, command: &[u8]) -> Option<u32> {
        let hash = hash64(0, command);
        let (known, bytes) = self.known[place(hash)];
        (known == hash && bytes > 0).then_some(bytes)
    }
}

fn place(hash: u64) -> usize {
    hash as usize % KNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_long_is_known_until_it_is_short() {
        let mut long = LongReads::default();
        assert_eq!(long.bytes(b"GET a"), None);
        let hash = long.note(b"GET a", 70_000);
        assert_eq!((long.bytes(b"GET a"), long.bytes(b"GET b")), (Some(70_000), None));
        long.forget(hash + 1);
        assert_eq!(long.bytes(b"GET a"), Some(70_000));
        long.forget(hash);
        assert_eq!(long.bytes(b"GET a"), None);
    }
}
