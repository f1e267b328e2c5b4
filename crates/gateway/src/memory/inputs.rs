//! The gateway's memory for parts of commands. Of each connection a little is read at a time; a
//! command that is longer needs one of a few places, first come, first served, and its connection
//! is read no further until it has one. Who has a place is to send its command in time, if others
//! wait.

use alloc::collections::VecDeque;

use concord_core::Instant;

use crate::connection::{Connection, ConnectionId, InputPlace, Wait};
use crate::memory::STUCK_NS;

/// Most bytes of commands that are read of a connection without a place, in advance or in part.
pub const INPUT_BYTES_MAX: usize = 16 << 10;
/// Most connections that have a place: each takes up to a command of the largest size.
pub const LONG_INPUTS_MAX: usize = 128;
/// Most bytes that are read at once of a connection with a place.
pub const READ_BYTES_MAX: usize = 64 << 10;

/// The places.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    taken: usize,
    /// Connections that wait for a place; some may be gone.
    waiting: VecDeque<ConnectionId>,
}

impl Inputs {
    /// A connection was given input, or commands of it were looked at.
    pub(crate) fn note(&mut self, now: Instant, connection: &mut Connection, went_on: bool) {
        let is_long = connection.input.len() >= INPUT_BYTES_MAX;
        match connection.place {
            InputPlace::None if is_long && self.taken < LONG_INPUTS_MAX => {
                self.taken += 1;
                connection.place = InputPlace::Has(now);
            }
            InputPlace::None if is_long => {
                connection.place = InputPlace::Waits;
                self.waiting.push_back(connection.id);
            }
            InputPlace::None => {}
            InputPlace::Waits if is_long => {}
            InputPlace::Waits => connection.place = InputPlace::None,
            InputPlace::Has(_) if !is_long => self.forget(connection),
            InputPlace::Has(_) if went_on || connection.wait != Wait::Nothing => {
                connection.place = InputPlace::Has(now);
            }
            InputPlace::Has(_) => {}
        }
    }

    /// A connection is gone, or needs no place any more.
    pub(crate) fn forget(&mut self, connection: &mut Connection) {
        if let InputPlace::Has(_) = core::mem::take(&mut connection.place) {
            self.taken -= 1;
            connection.input.shrink_to(INPUT_BYTES_MAX);
        }
    }

    /// Who is next to have a place, if there is one.
    pub(crate) fn poll(&mut self) -> Option<ConnectionId> {
        if self.taken < LONG_INPUTS_MAX { self.waiting.pop_front() } else { None }
    }

    /// Gives a place to a connection that still waits for one; whether it does.
    pub(crate) fn give(&mut self, now: Instant, connection: &mut Connection) -> bool {
        let waits = connection.place == InputPlace::Waits;
        if waits {
            self.taken += 1;
            connection.place = InputPlace::Has(now);
        }
        waits
    }

    /// Whether somebody waits.
    pub(crate) fn are_short(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a client has owed the rest of its command for long, while others wait for its place.
    pub(crate) fn is_stuck(&self, now: Instant, connection: &Connection) -> bool {
        let InputPlace::Has(since) = connection.place else { return false };
        self.are_short() && connection.wait == Wait::Nothing && now.since(since) >= STUCK_NS
    }
}

impl Connection {
    /// Whether no more is read of it.
    fn is_ending(&self) -> bool {
        self.closing || self.has_ended
    }

    /// How many bytes may be read of it now; 0 for none.
    pub(crate) fn input_room(&self) -> usize {
        if matches!(self.wait, Wait::Blocked | Wait::Subscribed | Wait::Users) && !self.is_ending()
        {
            // What comes waits here; that its client has gone shows.
            return INPUT_BYTES_MAX.saturating_sub(self.input.len());
        }
        match self.place {
            _ if self.is_ending() || self.wait != Wait::Nothing => 0,
            InputPlace::Waits => 0,
            InputPlace::Has(_) => READ_BYTES_MAX,
            InputPlace::None => INPUT_BYTES_MAX.saturating_sub(self.input.len()).max(1),
        }
    }
}
