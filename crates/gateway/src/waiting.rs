//! Connections whose next command waits for room among the rack's unanswered requests: first come, first
//! served, for reads and for writes each.

use alloc::collections::VecDeque;

use concord_client::Class;

use crate::connection::ConnectionId;

/// All that wait; some may be gone.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    reads: VecDeque<ConnectionId>,
    /// Those that have nothing under way: clients that wait for each reply do not wait for those that
    /// pipeline.
    first_reads: VecDeque<ConnectionId>,
    /// The two take turns, so that neither starves.
    is_first_next: bool,
    writes: VecDeque<ConnectionId>,
}

impl Waiting {
    /// A connection waits; `is_first` if it has nothing under way.
    pub(crate) fn push(&mut self, id: ConnectionId, class: Class, is_first: bool) {
        let queue = match class {
            Class::Read if is_first => &mut self.first_reads,
            Class::Read => &mut self.reads,
            Class::Write => &mut self.writes,
        };
        queue.push_back(id);
    }

    /// The connection that may send the next read.
    pub(crate) fn next_read(&mut self) -> Option<ConnectionId> {
        self.is_first_next = !self.is_first_next;
        let (first, more) = (&mut self.first_reads, &mut self.reads);
        let (next, other) = if self.is_first_next { (first, more) } else { (more, first) };
        next.pop_front().or_else(|| other.pop_front())
    }

    /// The connection that may send the next write.
    pub(crate) fn next_write(&mut self) -> Option<ConnectionId> {
        self.writes.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_those_who_wait_for_each_reply_and_of_those_who_pipeline_take_turns() {
        let mut waiting = Waiting::default();
        for id in 1..=3 {
            waiting.push(ConnectionId(id), Class::Read, false);
        }
        waiting.push(ConnectionId(9), Class::Read, true);
        waiting.push(ConnectionId(5), Class::Write, true);
        let order: [Option<u64>; 5] = core::array::from_fn(|_| waiting.next_read().map(|id| id.0));
        assert_eq!(order, [Some(9), Some(1), Some(2), Some(3), None]);
        assert_eq!((waiting.next_write(), waiting.next_write()), (Some(ConnectionId(5)), None));
    }
}
