//! Values of many packets (trap T17): the body goes first, fragment by fragment, acknowledged and
//! never numbered; the numbered packet goes last. A long reply is pulled, fragment by fragment,
//! from the one who gave it.
//!
//! Sub-header at the start of the body of WRest, WRestAck, Pull, Fragment, and of replies with
//! [`crate::Flags::MORE`]:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | version |
//! | 8 | 4 | length of the whole in bytes |
//! | 12 | 4 | index |
//! | 16 | 4 | count |

use alloc::vec::Vec;

use crate::rpc::BODY_BYTES_MAX;
use crate::{COMMAND_BYTES_MAX, REPLY_BYTES_MAX, WireError, u32_at, u64_at};

/// Length of the sub-header in bytes.
pub const FRAGMENT_HEADER_BYTES: usize = 20;
/// The offsets of the fields.
mod at {
    pub(super) const VERSION: usize = 0;
    pub(super) const TOTAL_BYTES: usize = 8;
    pub(super) const INDEX: usize = 12;
    pub(super) const COUNT: usize = 16;
}

/// Payload of every fragment but the last, in bytes.
pub const FRAGMENT_BYTES: usize = 1_248;
/// The largest number of fragments that one Pull asks for.
pub const PULL_MAX: u32 = 64;

/// Longest whole in bytes: a command or a reply.
const WHOLE_BYTES_MAX: usize = COMMAND_BYTES_MAX;

const _: () = assert!(FRAGMENT_BYTES + FRAGMENT_HEADER_BYTES <= BODY_BYTES_MAX);
const _: () = assert!(WHOLE_BYTES_MAX >= REPLY_BYTES_MAX);

/// The sub-header. Fragments are assembled only if responder, version and total are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHdr {
    /// Which content: the hash of a body, or the responder's number of a reply.
    pub version: u64,
    /// Length of the whole in bytes.
    pub total_bytes: u32,
    /// Which fragment, from 0; in a Pull the first one wanted.
    pub index: u32,
    /// In a Pull: how many from `index` on; 0 if the reply is not needed any more. Else 1.
    pub count: u32,
}

impl FragmentHdr {
    /// Reads the sub-header of `body`, and gives what follows.
    ///
    /// # Errors
    /// `Truncated`, or `Field` for a total or an index that cannot be.
    pub fn parse(body: &[u8]) -> Result<(FragmentHdr, &[u8]), WireError> {
        let (head, rest) =
            body.split_at_checked(FRAGMENT_HEADER_BYTES).ok_or(WireError::Truncated)?;
        let hdr = FragmentHdr {
            version: u64_at(head, at::VERSION),
            total_bytes: u32_at(head, at::TOTAL_BYTES),
            index: u32_at(head, at::INDEX),
            count: u32_at(head, at::COUNT),
        };
        let is_whole_too_long = hdr.total_bytes as usize > WHOLE_BYTES_MAX;
        if is_whole_too_long || hdr.index >= hdr.fragments().max(1) {
            return Err(WireError::Field);
        }
        Ok((hdr, rest))
    }

    /// Appends the sub-header.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&self.total_bytes.to_be_bytes());
        out.extend_from_slice(&self.index.to_be_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
    }

    /// Appends the sub-header and what this fragment holds of `message`, `total_bytes` long.
    pub fn emit_of(&self, message: &[u8], out: &mut Vec<u8>) {
        self.emit(out);
        out.extend_from_slice(&message[self.range()]);
    }

    /// The number of fragments of the whole value.
    #[must_use]
    pub fn fragments(&self) -> u32 {
        self.total_bytes.div_ceil(FRAGMENT_BYTES as u32)
    }

    /// Which bytes of the whole fragment `index` holds.
    #[must_use]
    pub fn range(&self) -> core::ops::Range<usize> {
        let start = self.index as usize * FRAGMENT_BYTES;
        start..(start + FRAGMENT_BYTES).min(self.total_bytes as usize)
    }
}

/// Puts a whole together from fragments in any order, each once.
#[derive(Clone, Debug)]
pub struct Assembly {
    hdr: FragmentHdr,
    bytes: Vec<u8>,
    have: Vec<u64>,
    missing: u32,
}

impl Assembly {
    /// For the whole that `hdr` is a fragment of.
    #[must_use]
    pub fn new(hdr: FragmentHdr) -> Assembly {
        let fragments = hdr.fragments();
        Assembly {
            hdr,
            bytes: alloc::vec![0; hdr.total_bytes as usize],
            have: alloc::vec![0; fragments.div_ceil(64) as usize],
            missing: fragments,
        }
    }

    /// Takes a fragment; false if it belongs to another whole or has a wrong length.
    pub fn add(&mut self, hdr: &FragmentHdr, payload: &[u8]) -> bool {
        let range = hdr.range();
        if hdr.version != self.hdr.version
            || hdr.total_bytes != self.hdr.total_bytes
            || payload.len() != range.len()
            || hdr.index >= hdr.fragments()
        {
            return false;
        }
        let (word, bit) = (hdr.index as usize / 64, 1u64 << (hdr.index % 64));
        if self.have[word] & bit == 0 {
            self.have[word] |= bit;
            self.missing -= 1;
            self.bytes[range].copy_from_slice(payload);
        }
        true
    }

    /// Whether every fragment is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Whether fragment `index` is there.
    #[must_use]
    pub fn has(&self, index: u32) -> bool {
        self.have[index as usize / 64] & (1 << (index % 64)) != 0
    }

    /// The number of fragments of the whole value.
    #[must_use]
    pub fn fragments(&self) -> u32 {
        self.hdr.fragments()
    }

    /// The version that is being assembled.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.hdr.version
    }

    /// Length of the whole in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u32 {
        self.hdr.total_bytes
    }

    /// The whole, once complete.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The whole so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hdr(index: u32) -> FragmentHdr {
        FragmentHdr { version: 9, total_bytes: 3_000, index, count: 1 }
    }

    /// Fragments in any order make the whole and strangers are refused.
    #[test]
    fn fragments_join_in_any_order() {
        let message: Vec<u8> = (0..3_000u32).map(|i| i as u8).collect();
        let mut a = Assembly::new(hdr(0));
        for index in [2, 0, 2, 1] {
            assert!(!a.is_complete());
            assert!(a.add(&hdr(index), &message[hdr(index).range()]));
        }
        assert!(!a.add(&FragmentHdr { version: 8, ..hdr(0) }, &message[..FRAGMENT_BYTES]));
        assert!(!a.add(&hdr(2), b"short"));
        assert!(a.is_complete() && a.has(1));
        assert_eq!(a.into_bytes(), message);
    }

    /// The longest command comes in fragments, which is longer than any reply.
    #[test]
    fn bug_22_152_the_longest_command_has_fragments() {
        for (bytes, is_right) in [(COMMAND_BYTES_MAX, true), (COMMAND_BYTES_MAX + 1, false)] {
            let mut body = Vec::new();
            FragmentHdr { total_bytes: bytes as u32, ..hdr(0) }.emit(&mut body);
            assert_eq!(FragmentHdr::parse(&body).is_ok(), is_right);
        }
    }

    /// An empty whole has no fragment: one that says that it is its first is refused.
    #[test]
    fn bug_22_151_empty_whole_has_no_fragment() {
        let empty = FragmentHdr { version: 9, total_bytes: 0, index: 0, count: 1 };
        assert!(!Assembly::new(empty).add(&empty, &[]));
    }

    #[test]
    fn an_index_past_the_end_is_refused() {
        let mut out = Vec::new();
        hdr(3).emit(&mut out);
        assert_eq!(FragmentHdr::parse(&out).unwrap_err(), WireError::Field);
        out.clear();
        hdr(2).emit(&mut out);
        assert_eq!(FragmentHdr::parse(&out).unwrap().0, hdr(2));
    }
}
