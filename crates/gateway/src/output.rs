//! What a client has not read: one buffer, as long as that is.

use alloc::vec::Vec;

/// Replies that are as long are not to make a buffer of unread replies twice as large.
const LONG_REPLY_BYTES: usize = 16 << 10;

/// Appends a reply to what a client has not read. Where it is long the buffer gets room for it and no more: it
/// may be held for long, and is counted by its length.
pub(crate) fn append(output: &mut Vec<u8>, reply: &[u8]) {
    if reply.len() >= LONG_REPLY_BYTES {
        output.reserve_exact(reply.len());
    }
    output.extend_from_slice(reply);
}
