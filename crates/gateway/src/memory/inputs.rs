//! The gateway's memory for parts of commands. Of each connection a little is read at a time; a
//! command that is longer needs one of a few places, first come, first served, and its connection
//! is read no further until it has one. A very long one needs a place of another kind in addition,
//! of which there are fewer. Who has a place is to send its command in time, if others
//! wait.

use alloc::collections::VecDeque;

use concord_core::Instant;

use crate::connection::{Connection, ConnectionId, InputPlace, Wait};
use crate::memory::STUCK_NS;

/// Most bytes of commands that are read of a connection without a place, in advance or in part.
pub const INPUT_BYTES_MAX: usize = 16 << 10;
/// Most connections that have a place: each takes up to 2 MiB.
pub const LONG_INPUTS_MAX: usize = 128;
/// Most bytes that are read at once of a connection with a place.
pub const READ_BYTES_MAX: usize = 64 << 10;

/// Longest part of a command that a connection with a place has; a longer one needs another place.
pub const LONG_BYTES_MAX: usize = 2 << 20;
/// Most connections that have a place for a very long command, up to the largest.
pub const VERY_LONG_INPUTS_MAX: usize = 4;

/// The places.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    taken: usize,
    /// Connections that wait for a place; some may be gone.
    waiting: VecDeque<ConnectionId>,
    /// The same of those for very long commands, whose connections have one of the others, too.
    taken_more: usize,
    waiting_more: VecDeque<ConnectionId>,
}

impl Inputs {
    /// A connection was given input, or commands of it were looked at.
    pub(crate) fn note(&mut self, now: Instant, connection: &mut Connection, went_on: bool) {
        let is_long = connection.input.len() >= INPUT_BYTES_MAX;
        let is_very_long = connection.input.len() >= LONG_BYTES_MAX;
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
            InputPlace::Has(_) | InputPlace::WaitsForMore | InputPlace::HasMore(_) if !is_long => {
                self.forget(connection);
            }
            InputPlace::Has(_) if is_very_long && self.taken_more < VERY_LONG_INPUTS_MAX => {
                self.taken_more += 1;
                connection.place = InputPlace::HasMore(now);
            }
            InputPlace::Has(_) if is_very_long => {
                connection.place = InputPlace::WaitsForMore;
                self.waiting_more.push_back(connection.id);
            }
            InputPlace::WaitsForMore if is_very_long => {}
            InputPlace::WaitsForMore => connection.place = InputPlace::Has(now),
            InputPlace::HasMore(_) if !is_very_long => {
                self.taken_more -= 1;
                connection.place = InputPlace::Has(now);
            }
            InputPlace::Has(_) if went_on || connection.wait != Wait::Nothing => {
                connection.place = InputPlace::Has(now);
            }
            InputPlace::HasMore(_) if went_on || connection.wait != Wait::Nothing => {
                connection.place = InputPlace::HasMore(now);
            }
            InputPlace::Has(_) | InputPlace::HasMore(_) => {}
        }
    }

    /// A connection is gone, or needs no place any more.
    pub(crate) fn forget(&mut self, connection: &mut Connection) {
        let place = core::mem::take(&mut connection.place);
        if matches!(place, InputPlace::None | InputPlace::Waits) {
            return;
        }
        self.taken -= 1;
        self.taken_more -= usize::from(matches!(place, InputPlace::HasMore(_)));
        connection.input.shrink_to(INPUT_BYTES_MAX);
    }

    /// Who is next to have a place, if there is one.
    pub(crate) fn poll(&mut self) -> Option<ConnectionId> {
        let next = if self.taken < LONG_INPUTS_MAX { self.waiting.pop_front() } else { None };
        next.or_else(|| match self.taken_more < VERY_LONG_INPUTS_MAX {
            true => self.waiting_more.pop_front(),
            false => None,
        })
    }

    /// Gives a place to a connection that still waits for one; whether it does.
    pub(crate) fn give(&mut self, now: Instant, connection: &mut Connection) -> bool {
        match connection.place {
            InputPlace::Waits if self.taken < LONG_INPUTS_MAX => {
                self.taken += 1;
                connection.place = InputPlace::Has(now);
            }
            InputPlace::WaitsForMore if self.taken_more < VERY_LONG_INPUTS_MAX => {
                self.taken_more += 1;
                connection.place = InputPlace::HasMore(now);
            }
            // It waited for the other kind when it was put down.
            InputPlace::Waits => {
                self.waiting.push_back(connection.id);
                return false;
            }
            InputPlace::WaitsForMore => {
                self.waiting_more.push_back(connection.id);
                return false;
            }
            InputPlace::None | InputPlace::Has(_) | InputPlace::HasMore(_) => return false,
        }
        true
    }

    /// Whether somebody waits.
    pub(crate) fn are_short(&self) -> bool {
        !self.waiting.is_empty() || !self.waiting_more.is_empty()
    }

    /// Whether somebody waits for what a connection has.
    fn is_short_of(&self, place: InputPlace) -> bool {
        let has_more = matches!(place, InputPlace::HasMore(_));
        !self.waiting.is_empty() || (has_more && !self.waiting_more.is_empty())
    }

    /// Whether a client has owed the rest of its command for long, while others wait for its place.
    pub(crate) fn is_stuck(&self, now: Instant, connection: &Connection) -> bool {
        let (InputPlace::Has(since) | InputPlace::HasMore(since)) = connection.place else {
            return false;
        };
        self.is_short_of(connection.place)
            && connection.wait == Wait::Nothing
            && now.since(since) >= STUCK_NS
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
            InputPlace::Waits | InputPlace::WaitsForMore => 0,
            InputPlace::Has(_) | InputPlace::HasMore(_) => READ_BYTES_MAX,
            InputPlace::None => INPUT_BYTES_MAX.saturating_sub(self.input.len()).max(1),
        }
    }
}
