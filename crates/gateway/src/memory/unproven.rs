//! The window of unread long replies of clients that have not shown that they read any.
//!
//! A client that will not read cannot be told from one that will before the kernels at both ends
//! are full. So the unread bytes of such clients are bounded ([`UNREAD_BYTES_MAX`]). A client that
//! reads leaves the window in a moment, so that thousands of them share it one after the other.
//! Clients that do not read leave it at a pace ([`PACE_BYTES`]), which is the memory that a crowd
//! of them gets each second.

use alloc::collections::BTreeMap;

use concord_core::{Duration, Instant, SEC};

use crate::connection::Connection;

/// The largest size of such unread replies, in bytes; one more reply may exceed it.
const UNREAD_BYTES_MAX: usize = 8 << 20;
/// Bytes a second that leave although they are unread.
const PACE_BYTES: u64 = 2 << 20;
/// The longest time for which one client's bytes stay in the window, however many they are.
const LEAVE_MAX_NS: Duration = SEC;

/// The replies last fetched for clients that have not shown that they read.
#[derive(Debug, Default)]
pub(crate) struct Unproven {
    /// The bytes of each, in the order of arrival.
    held: BTreeMap<u64, usize>,
    /// All of that.
    bytes: usize,
    next: u64,
    /// Since when the first one is the first.
    since: Instant,
}

impl Unproven {
    /// Whether another reply may be fetched, for a client with `more_bytes` of additional room.
    pub(crate) fn has_room(&mut self, now: Instant, more_bytes: usize) -> bool {
        while self.leave_at() <= now
            && let Some((_, bytes)) = self.held.pop_first()
        {
            self.since = self.since.after(stay_ns(bytes));
            self.bytes -= bytes;
        }
        self.bytes < UNREAD_BYTES_MAX + more_bytes
    }

    /// Whether the connection holds such replies, and no more than `few` do.
    pub(crate) fn is_among_few(&self, connection: &Connection, few: usize) -> bool {
        connection.unproven.is_some() && self.held.len() <= few
    }

    /// When there is more room at the latest; at once if there is some.
    pub(crate) fn room_at(&self, more_bytes: usize) -> Instant {
        if self.bytes < UNREAD_BYTES_MAX + more_bytes { Instant(0) } else { self.leave_at() }
    }

    fn leave_at(&self) -> Instant {
        let first = self.held.first_key_value();
        first.map_or(Instant::NEVER, |(_, bytes)| self.since.after(stay_ns(*bytes)))
    }

    /// A reply is fetched for a connection, which is counted until it is read.
    pub(crate) fn add(&mut self, now: Instant, connection: &mut Connection) {
        if connection.unproven.is_some_and(|place| self.held.contains_key(&place)) {
            return;
        }
        if self.held.is_empty() {
            self.since = now;
        }
        connection.unproven = Some(self.next);
        self.held.insert(self.next, 0);
        self.next += 1;
    }

    /// Takes note of what a connection holds by now.
    pub(crate) fn note(&mut self, now: Instant, connection: &mut Connection) {
        let Some(place) = connection.unproven else { return };
        let bytes = if connection.reads_long() { 0 } else { connection.fetched_bytes() };
        if bytes == 0 {
            connection.unproven = None;
            let first = self.held.first_key_value().map(|(first, _)| *first);
            self.bytes -= self.held.remove(&place).unwrap_or(0);
            if first == Some(place) {
                self.since = now;
            }
        } else if let Some(held) = self.held.get_mut(&place) {
            self.bytes = self.bytes - *held + bytes;
            *held = bytes;
        }
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, connection: &Connection) {
        let held = connection.unproven.and_then(|place| self.held.remove(&place));
        self.bytes -= held.unwrap_or(0);
    }
}

fn stay_ns(bytes: usize) -> Duration {
    (bytes as u64).saturating_mul(SEC).div_euclid(PACE_BYTES).min(LEAVE_MAX_NS)
}
