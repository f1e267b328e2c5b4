//! The gateway's memory for replies: a bound for each connection, and one for all. A reply counts
//! from the request for its bytes until the client has read them. Nothing is dropped and no client
//! is refused: a connection at its bound sends no further command, and is not read. A client that
//! writes all of a pipeline before it reads anything would then wait for ever, and is disconnected
//! ([`OVER_LIMIT_NS`]).
//!
//! - The total is shared: the less is free, the less each connection may take (as switches share
//!   their buffers: Choudhury, Hahne 1998), so that clients that do not read cannot take all of it.
//! - Replies of several packets are granted in the order of the commands, so that the one that a
//!   client waits for never waits for later ones. A part of the memory is for these alone.
//! - A reply of one packet never waits: there are at most as many as unanswered commands.
//!
//! If clients that do not read have taken the room, freed memory goes to the next of them. Other
//! clients should not wait for that, so under this *pressure* long replies are fetched few at a
//! time ([`FETCHED_PRESSED_MAX`]), and stuck clients are given up one by one. Clients that read
//! never cause pressure: their replies are unread for less than [`UNREAD_NS`].
//!
//! Clients that have not yet shown that they read long replies share a small window of unread ones
//! ([`crate::memory::unproven`]). A client has shown it if it sends a command after it got a long
//! reply, or if more was written to it than its and the gateway's kernel hold. Among the others, a
//! client that is newer than all clients served so far finds a little more room (at most three in a
//! row); otherwise the newest connection and the oldest take turns. So a new client does not wait
//! for a crowd that came before it.

pub(crate) mod inputs;
pub(crate) mod output;
pub(crate) mod tentative;
pub(crate) mod unproven;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::cmp::Ordering;

use concord_core::{Duration, Instant, MS, SEC};

use crate::connection::{Connection, ConnectionId, Wait};
use crate::memory::unproven::Unproven;

/// The largest total size of replies of all connections, in bytes, beside [`RESERVED_BYTES`] of
/// each.
pub const REPLIES_BYTES_MAX: usize = 256 << 20;
/// The least that it may be set to: what is kept for replies whose turn it is, twice.
pub const REPLIES_BYTES_MIN: usize = 2 * FIRST_BYTES_RESERVED;
/// The size of a connection's unread replies at which its commands wait, in bytes; one more reply
/// may exceed it.
pub const CONNECTION_REPLIES_BYTES_MAX: usize = REPLIES_BYTES_MAX / SHARE;
/// The size that a connection may take even if nothing is free, in bytes.
pub const RESERVED_BYTES: usize = 16 << 10;
/// A connection takes at most that share of what is free.
pub(crate) const SHARE: usize = 4;
/// Kept for replies whose turn it is to be written.
const FIRST_BYTES_RESERVED: usize = 64 << 20;
/// The part of it that is reserved for clients that have shown that they read.
const READERS_BYTES_RESERVED: usize = 32 << 20;
/// A client that reads nothing for that long, while others wait for the memory, is disconnected.
pub const STUCK_NS: Duration = 10 * SEC;
/// The interval of the search for such clients. They are given up one by one until the next search,
/// since closing a socket with megabytes in it takes time.
const LOOK_NS: Duration = SEC;
/// The time after which a client that has reached its bound, sends further commands and reads
/// nothing is disconnected, whether or not others wait: one that writes all of a pipeline before it
/// reads would wait for ever.
pub const OVER_LIMIT_NS: Duration = 30 * SEC;
/// The shortest gap between two of them; the longer one applies if no client that reads is waiting.
const GIVE_UP_GAP_NS: Duration = 10 * MS;
const GIVE_UP_GAP_IDLE_NS: Duration = 200 * MS;
/// Clients that have read nothing for that long count as ones that do not read.
const UNREAD_NS: Duration = 200 * MS;
/// The divisor of the total: if such clients hold this share while there is too little room, the
/// gateway is under pressure. With less there is always enough room: a reply has at most 64 MiB,
/// and as much is reserved for the next ones.
const SHORT_SHARE: usize = 2;
/// Pressure lasts for so long after its last sign.
const PRESSURE_NS: Duration = 3 * SEC;
/// The largest number of long replies that are fetched at once under pressure.
pub(crate) const FETCHED_PRESSED_MAX: usize = 2;
/// The additional room for clients that are newer than all served ones; then the largest number of
/// such clients in a row.
const NEWCOMERS_BYTES: usize = 2 << 20;
const NEWCOMERS_IN_ROW_MAX: u32 = 3;
/// So few clients that have not shown that they read are no crowd: each of them may have its share.
const FEW: usize = 4;
/// The time after which clients that have not shown that they read are checked again if there was
/// no room.
const RETRY_NS: Duration = 20 * MS;

/// The replies of all connections.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Bytes that connections hold, or were granted.
    held_bytes: usize,
    /// The largest size ever held, in bytes.
    most_bytes: usize,
    /// Connections for whose next reply there was no room, first come, first served.
    short: VecDeque<ConnectionId>,
    /// The waiting clients that have not shown that they read; then whether the newest one is next,
    /// or the oldest one.
    short_new: BTreeSet<ConnectionId>,
    is_newest_next: bool,
    /// The newest client ever served; then the number of successive clients that were newer than
    /// all before.
    newest_served: ConnectionId,
    newcomers_in_row: u32,
    /// When they are looked at again where there was no room.
    new_again_at: Instant,
    unproven: Unproven,
    look_at: Instant,
    /// Clients to give up, when the last one was, and the gap that spreads them until the next
    /// look.
    stuck: VecDeque<ConnectionId>,
    given_up_at: Instant,
    give_up_gap_ns: Duration,
    pressed_until: Instant,
    /// Connections whose commands wait until their clients read. Some of them may have read by now.
    at_limit: BTreeSet<ConnectionId>,
    /// The bound of all connections together, in bytes.
    bytes_max: usize,
    /// The bound of one connection, in bytes.
    connection_bytes_max: usize,
}

impl Memory {
    /// An empty memory with these bounds for all connections and for each.
    pub(crate) fn new(bytes_max: usize, connection_bytes_max: usize) -> Memory {
        Memory {
            held_bytes: 0,
            most_bytes: 0,
            short: VecDeque::new(),
            short_new: BTreeSet::new(),
            is_newest_next: false,
            newest_served: ConnectionId(0),
            newcomers_in_row: 0,
            new_again_at: Instant(0),
            unproven: Unproven::default(),
            look_at: Instant(0),
            stuck: VecDeque::new(),
            given_up_at: Instant(0),
            give_up_gap_ns: 0,
            pressed_until: Instant(0),
            at_limit: BTreeSet::new(),
            bytes_max: bytes_max.max(REPLIES_BYTES_MIN),
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
        self.unproven.note(now, connection);
        if waits_for_client(connection) {
            self.at_limit.insert(connection.id);
        }
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, connection: &Connection) {
        self.held_bytes -= connection.noted_bytes;
        self.unproven.forget(connection);
    }

    /// The present size and the largest ever, in bytes.
    pub(crate) fn held_and_most_bytes(&self) -> (usize, usize) {
        (self.held_bytes, self.most_bytes)
    }

    fn free_bytes(&self) -> usize {
        self.bytes_max.saturating_sub(self.held_bytes)
    }

    fn short_bytes(&self) -> usize {
        self.bytes_max / SHORT_SHARE
    }

    /// Keeps the connections at their limit that still wait.
    pub(crate) fn keep_at_limit(&mut self, still_waits: impl Fn(ConnectionId) -> bool) {
        self.at_limit.retain(|id| still_waits(*id));
    }

    /// The size of a connection's replies at which its commands wait, in bytes.
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
            let reserved = if connection.reads_long() { 0 } else { READERS_BYTES_RESERVED };
            let free_bytes = self.free_bytes().saturating_sub(reserved);
            return if bytes <= free_bytes { Grant::Yes } else { Grant::NoRoom };
        }
        if connection.reply_bytes() + bytes > limit_bytes {
            return Grant::NotYet;
        }
        let free_bytes = self.free_bytes().saturating_sub(FIRST_BYTES_RESERVED);
        if bytes <= free_bytes { Grant::Yes } else { Grant::NoRoom }
    }

    /// Whether it is time to search for clients that hold up others; `are_others_short` if a client
    /// waits for another resource than this memory.
    pub(crate) fn must_look(&mut self, now: Instant, are_others_short: bool) -> bool {
        let must = now >= self.look_due(are_others_short);
        if must {
            self.look_at = now.after(LOOK_NS);
        }
        must
    }

    pub(crate) fn deadline(&self, are_others_short: bool) -> Instant {
        let look_at = self.look_due(are_others_short);
        let newest = self.short_new.last();
        let new_at = newest.map_or(Instant::NEVER, |newest| {
            self.unproven.room_at(self.newcomer_bytes(*newest)).max(self.new_again_at)
        });
        let at = look_at.min(new_at);
        if self.stuck.is_empty() { at } else { at.min(self.give_up_at()) }
    }

    fn give_up_at(&self) -> Instant {
        let least_ns = if self.short.is_empty() { GIVE_UP_GAP_IDLE_NS } else { GIVE_UP_GAP_NS };
        self.given_up_at.after(self.give_up_gap_ns.max(least_ns))
    }

    fn look_due(&self, are_others_short: bool) -> Instant {
        let is_short = are_others_short || self.is_short() || !self.at_limit.is_empty();
        if is_short { self.look_at } else { Instant::NEVER }
    }

    /// Whether a connection waits for room.
    pub(crate) fn is_short(&self) -> bool {
        !self.short.is_empty() || !self.short_new.is_empty()
    }

    /// There is no room for a connection's next reply; `was_tried` if it was its turn.
    pub(crate) fn add_short(&mut self, now: Instant, connection: &mut Connection, was_tried: bool) {
        if connection.is_short {
            return;
        }
        connection.is_short = true;
        let id = connection.id;
        if !connection.reads_long() {
            if self.short_new.is_empty() {
                self.newcomers_in_row = 0;
            }
            self.short_new.insert(id);
            if self.new_again_at <= now {
                self.put_off_new(now);
            }
        } else if was_tried {
            self.short.push_front(id);
        } else {
            self.short.push_back(id);
        }
    }

    /// The next connection that there may be room for by now.
    pub(crate) fn next_short(&mut self) -> Option<ConnectionId> {
        self.short.pop_front()
    }

    /// Whether that connection is the next one.
    pub(crate) fn is_next_short(&self, id: ConnectionId) -> bool {
        self.short.front() == Some(&id)
    }

    /// The next one of those that have not shown that they read.
    pub(crate) fn next_short_new(&mut self, now: Instant) -> Option<ConnectionId> {
        if now < self.new_again_at {
            return None;
        }
        let newest = *self.short_new.last()?;
        if self.is_newcomer(newest) && self.unproven.has_room(now, NEWCOMERS_BYTES) {
            return self.short_new.pop_last();
        }
        if !self.unproven.has_room(now, 0) {
            return None;
        }
        self.is_newest_next = !self.is_newest_next;
        if self.is_newest_next { self.short_new.pop_last() } else { self.short_new.pop_first() }
    }

    /// Whether a connection is newer than all that were served, and not too many of those were in a
    /// row.
    fn is_newcomer(&self, id: ConnectionId) -> bool {
        id >= self.newest_served && self.newcomers_in_row < NEWCOMERS_IN_ROW_MAX
    }

    /// Bytes that a connection may find beyond what all others share.
    fn newcomer_bytes(&self, id: ConnectionId) -> usize {
        if self.is_newcomer(id) { NEWCOMERS_BYTES } else { 0 }
    }

    /// There was no room for the one that was tried.
    pub(crate) fn put_off_new(&mut self, now: Instant) {
        self.new_again_at = now.after(RETRY_NS);
    }

    /// Whether a connection's long reply may be fetched, as to whether its client is known to read.
    pub(crate) fn may_take(&mut self, now: Instant, connection: &Connection) -> bool {
        let more_bytes = self.newcomer_bytes(connection.id);
        // A client that goes on is no crowd as long as few do.
        let goes_on = self.short_new.len() < FEW && self.unproven.is_among_few(connection, FEW);
        connection.reads_long() || self.unproven.has_room(now, more_bytes) || goes_on
    }

    /// A long reply is fetched.
    pub(crate) fn take(&mut self, now: Instant, connection: &mut Connection) {
        if connection.reads_long() {
            return;
        }
        self.unproven.add(now, connection);
        match connection.id.cmp(&self.newest_served) {
            Ordering::Less => self.newcomers_in_row = 0,
            Ordering::Equal => {}
            Ordering::Greater => {
                self.newest_served = connection.id;
                self.newcomers_in_row += 1;
            }
        }
    }

    /// Whether clients that have not shown that they read wait for each other.
    pub(crate) fn is_crowded(&self) -> bool {
        !self.short_new.is_empty()
    }

    /// Takes the result of a search: the stuck clients, whether one of them holds replies, and the
    /// size held by all clients that read nothing.
    pub(crate) fn looked(
        &mut self,
        now: Instant,
        stuck: Vec<ConnectionId>,
        holds_replies: bool,
        unread_bytes: usize,
    ) {
        if holds_replies || unread_bytes >= self.short_bytes() {
            self.pressed_until = now.after(PRESSURE_NS);
        }
        let gap_ns = if self.short.is_empty() { GIVE_UP_GAP_IDLE_NS } else { GIVE_UP_GAP_NS };
        self.give_up_gap_ns = (LOOK_NS / (stuck.len() as u64).max(1)).max(gap_ns);
        self.stuck = stuck.into();
    }

    /// The next client to give up, if it still is in the way of others.
    pub(crate) fn next_stuck(&mut self, now: Instant) -> Option<ConnectionId> {
        if now < self.give_up_at() {
            return None;
        }
        let next = self.stuck.pop_front()?;
        self.given_up_at = now;
        Some(next)
    }

    /// Whether clients that do not read have taken the room.
    pub(crate) fn is_pressed(&self, now: Instant) -> bool {
        now < self.pressed_until
    }

    /// Whether a client has read nothing for so long, while others wait for the memory.
    pub(crate) fn is_stuck(&self, now: Instant, connection: &Connection) -> bool {
        // Under pressure some wait though there is room.
        let is_short = self.is_short() && self.held_bytes >= self.short_bytes();
        is_short
            && connection.reply_bytes() > RESERVED_BYTES
            && unread_for(now, connection) >= STUCK_NS
    }
}

/// Whether a client is at its bound, sends further commands, and has read nothing for so long.
pub(crate) fn is_over_limit(now: Instant, connection: &Connection) -> bool {
    waits_for_client(connection) && unread_for(now, connection) >= OVER_LIMIT_NS
}

/// Whether further commands of a client wait until it has read: for its bound, or for replies that
/// are fetched when it has read more.
pub(crate) fn waits_for_client(connection: &Connection) -> bool {
    let is_last = connection.is_splitting && !connection.has_more;
    let waits = connection.wait == Wait::Output
        || connection.wait != Wait::Nothing && !connection.offers.is_empty();
    waits && !is_last && !connection.output.is_empty()
}

/// The size of the unread replies of a client that has read nothing for a while; otherwise 0.
pub(crate) fn unread_bytes(now: Instant, connection: &Connection) -> usize {
    if unread_for(now, connection) >= UNREAD_NS { connection.reply_bytes() } else { 0 }
}

fn unread_for(now: Instant, connection: &Connection) -> Duration {
    connection.unread_since.map_or(0, |since| now.since(since))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_18_16_only_clients_that_do_not_read_bring_pressure() {
        let mut memory = Memory::new(REPLIES_BYTES_MAX, CONNECTION_REPLIES_BYTES_MAX);
        let (now, later) = (Instant(SEC), Instant(SEC + MS));
        memory.looked(now, alloc::vec![ConnectionId(1)], false, 0);
        assert!(!memory.is_pressed(later));
        memory.looked(now, alloc::vec![ConnectionId(1)], true, 0);
        assert!(memory.is_pressed(later));
    }
}
