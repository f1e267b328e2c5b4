//! Connections whose next command waits for room among the rack's unanswered requests: first come,
//! first served, for writes, and for reads by the expected length of their replies.

use alloc::collections::VecDeque;

use concord_client::{Class, Size};

use crate::connection::ConnectionId;
use crate::memory::tentative::{Expected, Tentative};

/// The order in which kinds of reads take turns.
const TURNS: [Expected; 3] = [Expected::Short, Expected::First, Expected::Long];

/// All waiting connections; some may be gone.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// The reads, in the order of [`TURNS`].
    reads: [Reads; TURNS.len()],
    /// The kind of reads whose turn it is, so that none starves.
    call: usize,
    /// The writes by size: small ones do not wait for large ones.
    writes: [VecDeque<ConnectionId>; Size::ALL.len()],
}

#[derive(Debug, Default)]
struct Reads {
    /// Connections without requests in flight: clients that wait for each reply do not wait for
    /// those that pipeline.
    first: VecDeque<ConnectionId>,
    more: VecDeque<ConnectionId>,
    /// Whether `first` is next: the two take turns, so that neither starves.
    is_first_next: bool,
}

impl Reads {
    fn next(&mut self) -> Option<ConnectionId> {
        self.is_first_next = !self.is_first_next;
        let (first, more) = (&mut self.first, &mut self.more);
        let (next, other) = if self.is_first_next { (first, more) } else { (more, first) };
        next.pop_front().or_else(|| other.pop_front())
    }
}

impl Waiting {
    /// Adds a connection. `is_first` if it has no request in flight.
    pub(crate) fn push(
        &mut self,
        id: ConnectionId,
        (class, size): (Class, Size),
        expected: Expected,
        is_first: bool,
    ) {
        let reads = match expected {
            Expected::Short => &mut self.reads[0],
            Expected::First => &mut self.reads[1],
            Expected::Long => &mut self.reads[2],
        };
        let queue = match class {
            Class::Read if is_first => &mut reads.first,
            Class::Read => &mut reads.more,
            Class::Write => &mut self.writes[size as usize],
        };
        queue.push_back(id);
    }

    /// Whether no connection waits.
    pub(crate) fn is_empty(&self) -> bool {
        let none = |reads: &Reads| reads.first.is_empty() && reads.more.is_empty();
        self.writes.iter().all(VecDeque::is_empty) && self.reads.iter().all(none)
    }

    /// The connection that may send the next read.
    pub(crate) fn next_read(&mut self, tentative: &Tentative) -> Option<ConnectionId> {
        for _ in TURNS {
            let call = self.call;
            self.call = (call + 1) % TURNS.len();
            if tentative.has_room(TURNS[call])
                && let Some(id) = self.reads[call].next()
            {
                return Some(id);
            }
        }
        None
    }

    /// The connection that may send the next write of this size.
    pub(crate) fn next_write(&mut self, size: Size) -> Option<ConnectionId> {
        self.writes[size as usize].pop_front()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn all(waiting: &mut Waiting, tentative: &Tentative) -> Vec<u64> {
        core::iter::from_fn(|| waiting.next_read(tentative)).map(|id| id.0).collect()
    }

    /// Reads of those who wait for each reply and of those who pipeline take turns.
    #[test]
    fn waiting_and_pipelined_reads_alternate() {
        let mut waiting = Waiting::default();
        let mut push = |id, class, is_first| {
            waiting.push(ConnectionId(id), (class, Size::Small), Expected::Long, is_first);
        };
        for id in 1..=3 {
            push(id, Class::Read, false);
        }
        push(9, Class::Read, true);
        push(5, Class::Write, true);
        assert_eq!(all(&mut waiting, &Tentative::default()), [9, 1, 2, 3]);
        let huge = (Class::Write, Size::Huge);
        waiting.push(ConnectionId(6), huge, Expected::Short, true);
        let mut next = |size| waiting.next_write(size).map(|id| id.0);
        assert_eq!([Size::Small, Size::Small, Size::Large].map(&mut next), [Some(5), None, None]);
        assert_eq!((next(Size::Huge), waiting.is_empty()), (Some(6), true));
    }

    #[test]
    fn under_pressure_only_those_wait_that_ask_for_much() {
        let mut waiting = Waiting::default();
        for (id, expected) in (1..).zip(TURNS) {
            waiting.push(ConnectionId(id), (Class::Read, Size::Small), expected, true);
            waiting.push(ConnectionId(id + 3), (Class::Read, Size::Small), expected, true);
        }
        let mut tentative = Tentative::default();
        tentative.is_pressed = true;
        while tentative.has_room(Expected::Long) {
            tentative.sent(Expected::Long);
        }
        assert_eq!(all(&mut waiting, &tentative), [1, 2, 4, 5]);
        assert_eq!(all(&mut waiting, &Tentative::default()), [3, 6]);
    }
}
