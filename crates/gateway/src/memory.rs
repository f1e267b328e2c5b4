//! What replies take of the gateway's memory: a bound for each connection, and one for all. A reply
//! counts from when its bytes are asked of a replica until the client has read them. Nothing is dropped
//! and nobody is refused: a connection at its bound sends no further command, and is not read.
//!
//! - What all may take is shared: the less is free, the less each connection may take (as switches share
//!   their buffers: Choudhury, Hahne 1998), so that those who do not read cannot take it all.
//! - Replies of several packets are granted in the order of the commands, so that the one that a client
//!   waits for is never behind later ones. Part of the memory is for these alone.
//! - A reply of one packet is never waited for: there are as many as commands are unanswered.

use alloc::collections::VecDeque;

use concord_core::{Duration, Instant, SEC};

use crate::connection::{Connection, ConnectionId};

/// Most bytes of replies that all connections take together, beside [`RESERVED_BYTES`] of each.
pub const REPLIES_BYTES_MAX: usize = 256 << 20;
/// Most bytes of unread replies of one connection before its commands wait; one reply may come on top.
pub const CONNECTION_REPLIES_BYTES_MAX: usize = 4 << 20;
/// What a connection may take however little is free.
pub const RESERVED_BYTES: usize = 16 << 10;
/// A connection takes at most that share of what is free.
const SHARE: usize = 8;
/// Kept for replies whose turn it is to be written.
const FIRST_BYTES_RESERVED: usize = 64 << 20;
/// A client that reads nothing for that long, while others wait for the memory, is disconnected.
pub const STUCK_NS: Duration = 10 * SEC;
/// How often such clients are looked for.
const LOOK_NS: Duration = SEC;

/// The replies of all connections.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Bytes that connections hold, or were granted.
    held_bytes: usize,
    /// The most that was ever held.
    most_bytes: usize,
    /// Connections for whose next reply there was no room, first come, first served.
    pub short: VecDeque<ConnectionId>,
    look_at: Instant,
    /// Most bytes of one connection.
    connection_bytes_max: usize,
}

impl Memory {
    /// Nothing is held; a connection may take so many bytes.
    pub(crate) fn new(connection_bytes_max: usize) -> Memory {
        Memory {
            held_bytes: 0,
            most_bytes: 0,
            short: VecDeque::new(),
            look_at: Instant(0),
            connection_bytes_max,
        }
    }

    /// Takes note of what a connection holds by now.
    pub(crate) fn note(&mut self, now: Instant, connection: &mut Connection) {
        if connection.output.is_empty() {
            connection.unread_since = None;
        } else {
            connection.unread_since.get_or_insert(now);
        }
        let now_bytes = connection.reply_bytes();
        self.held_bytes = self.held_bytes - connection.noted_bytes + now_bytes;
        connection.noted_bytes = now_bytes;
        self.most_bytes = self.most_bytes.max(self.held_bytes);
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, connection: &Connection) {
        self.held_bytes -= connection.noted_bytes;
    }

    /// What is held now, and the most that ever was.
    pub(crate) fn held_and_most_bytes(&self) -> (usize, usize) {
        (self.held_bytes, self.most_bytes)
    }

    fn free_bytes(&self) -> usize {
        REPLIES_BYTES_MAX.saturating_sub(self.held_bytes)
    }

    /// How much a connection may hold before its commands wait.
    pub(crate) fn limit_bytes(&self) -> usize {
        (self.free_bytes() / SHARE).max(RESERVED_BYTES).min(self.connection_bytes_max)
    }

    pub(crate) fn is_full(&self, connection: &Connection) -> bool {
        connection.reply_bytes() >= self.limit_bytes()
    }

    /// Whether a reply of `bytes` may be asked for; `is_first` if it is the next to be written.
    pub(crate) fn grants(&self, connection: &Connection, bytes: usize, is_first: bool) -> Grant {
        // Half is for what is read next, half for what comes before its turn.
        let limit_bytes = (self.limit_bytes() / 2).max(1);
        if is_first && connection.output.len() < limit_bytes {
            return if bytes <= self.free_bytes() { Grant::Yes } else { Grant::NoRoom };
        }
        if connection.reply_bytes() + bytes > limit_bytes {
            return Grant::NotYet;
        }
        let free_bytes = self.free_bytes().saturating_sub(FIRST_BYTES_RESERVED);
        if bytes <= free_bytes { Grant::Yes } else { Grant::NoRoom }
    }

    /// Whether it is time to look for clients that are in the way of others; `are_others_short` if
    /// somebody waits for something else than this memory.
    pub(crate) fn must_look(&mut self, now: Instant, are_others_short: bool) -> bool {
        let must = now >= self.deadline(are_others_short);
        if must {
            self.look_at = now.after(LOOK_NS);
        }
        must
    }

    pub(crate) fn deadline(&self, are_others_short: bool) -> Instant {
        let is_short = are_others_short || !self.short.is_empty();
        if is_short { self.look_at } else { Instant::NEVER }
    }
}

/// Whether a long reply may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    Yes,
    /// When the connection has read more.
    NotYet,
    /// When others have read more.
    NoRoom,
}
