//! Output that a client has not read: one buffer, not much longer than that is.

use alloc::vec::Vec;

/// Replies that are as long are not to make a buffer of unread replies twice as large.
const LONG_REPLY_BYTES: usize = 16 << 10;
/// The number of consumed bytes that a buffer may keep.
const SLACK_BYTES: usize = 64 << 10;
/// Or this divisor of the unread size, if that is more: each byte is moved at most so many times,
/// however little a client reads at a time.
const SLACK_SHARE: usize = 4;

/// A buffer of many short replies grows by that share of it.
const GROWTH_SHARE: usize = 8;

/// The replies that a client has not read. They are counted by their length, and may be held for
/// long.
#[derive(Debug, Default)]
pub(crate) struct Output {
    buffer: Vec<u8>,
    /// Bytes of the buffer that were read.
    read: usize,
}

impl Output {
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.read..]
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len() - self.read
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer to which replies are appended.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// The replies, if none was read.
    pub(crate) fn into_vec(self) -> Vec<u8> {
        self.buffer
    }

    /// Appends a reply.
    pub(crate) fn append(&mut self, reply: &[u8]) {
        append(&mut self.buffer, reply);
    }

    /// Cuts the unread bytes to `unread`.
    pub(crate) fn cut(&mut self, unread: usize) {
        self.buffer.truncate(self.read + unread);
    }

    /// Notes that the client has read `bytes`.
    pub(crate) fn took(&mut self, bytes: usize) {
        self.read = (self.read + bytes).min(self.buffer.len());
        let unread = self.len();
        if unread > 0 && self.read < SLACK_BYTES.max(unread / SLACK_SHARE) {
            return;
        }
        self.buffer.drain(..self.read);
        self.read = 0;
        if self.buffer.capacity() - unread > SLACK_BYTES {
            self.buffer.shrink_to(unread.max(SLACK_BYTES));
        }
    }
}

/// Appends a reply to what a client has not read. Where it is long the buffer gets room for it and
/// no more: it may be held for long, and is counted by its length. Where many short ones are unread
/// it grows by a share of them.
pub(crate) fn append(output: &mut Vec<u8>, reply: &[u8]) {
    let is_full = output.capacity() - output.len() < reply.len();
    if reply.len() >= LONG_REPLY_BYTES {
        output.reserve_exact(reply.len());
    } else if is_full && output.len() >= SLACK_BYTES * GROWTH_SHARE {
        output.reserve_exact(output.len() / GROWTH_SHARE);
    }
    output.extend_from_slice(reply);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_16_4_what_was_read_takes_no_memory() {
        let mut output = Output::default();
        (0..40).for_each(|_| output.append(&[b'v'; 100_000]));
        let mut moved = 0;
        while !output.is_empty() {
            let before = output.unread().len();
            output.took(10_000);
            assert_eq!(output.len(), before - 10_000);
            let most = output.len() + (output.len() / SLACK_SHARE).max(SLACK_BYTES) + SLACK_BYTES;
            assert!(output.buffer.capacity() <= most, "{} of {}", output.buffer.capacity(), before);
            moved += if output.read == 0 { output.len() } else { 0 };
        }
        assert!(moved <= 4_000_000 * SLACK_SHARE, "{moved}");
        output.append(b"+OK\r\n");
        assert_eq!(output.unread(), b"+OK\r\n");
    }
}
