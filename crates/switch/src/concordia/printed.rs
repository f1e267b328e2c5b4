//! The switch as the paper prints it (§5.1.1, §5.3.2, figures 5 and 8), for one block. Tests use it
//! to show where it breaks.
//!
//! | array | what it holds | a packet does |
//! |---|---|---|
//! | LAST-UNLOCK | each requester's newest executed unlock | an unlock's second pass compares and sets |
//! | LOCK | a writer, or how many readers | locks, or is refused; unlocks by the score |
//! | SCOREBOARD | two lock scores of each requester: of odd and of even numbers | counts up; the second pass of an unlock resets |
//! | G-STATUS, COPYSET | as their names say | fill the request; an unlock sets them |
//!
//! The paper leaves one thing open: a request that the check table refuses goes round to release
//! its lock, but what happens to its score is not said. Here the score stays. Tags, homes and
//! migration are left out.

use concord_wire::concordia::{Copyset, GlobalStatus, NODES_MAX, Op};

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The lock was refused: a failed ACK goes to the requester.
    Failed,
    /// The check refused it: it goes round to release its lock, and then a failed ACK goes to the
    /// requester.
    Refused,
    /// The forward table sends it on, with the block's status and copyset.
    On(GlobalStatus, Copyset),
}

/// One block of the switch.
#[derive(Clone, Debug)]
pub struct PrintedBlock {
    /// Whether a writer holds the lock.
    pub is_write: bool,
    /// The number of readers that hold the lock.
    pub readers: u16,
    /// G-STATUS.
    pub status: GlobalStatus,
    /// COPYSET.
    pub copyset: Copyset,
    scores: [[u16; 2]; NODES_MAX],
    last_unlock: [u64; NODES_MAX],
}

impl PrintedBlock {
    /// A block of which no node has a copy.
    #[must_use]
    pub const fn new() -> PrintedBlock {
        PrintedBlock {
            is_write: false,
            readers: 0,
            status: GlobalStatus::Unshared,
            copyset: Copyset(0),
            scores: [[0; 2]; NODES_MAX],
            last_unlock: [0; NODES_MAX],
        }
    }

    /// Processes a coherence request of a requester's event: lock, score, check. A requester is a
    /// node here.
    #[must_use]
    pub fn request(&mut self, op: Op, requester: u8, number: u64) -> Passed {
        let is_read = op.is_shared();
        let may = !self.is_write && (is_read || self.readers == 0);
        if may && is_read {
            self.readers += 1;
        } else if may {
            self.is_write = true;
        }
        let score = &mut self.scores[usize::from(requester)][(number % 2) as usize];
        *score += u16::from(may);
        if *score == 0 {
            return Passed::Failed;
        }
        let has_copy = self.copyset.has(requester);
        let is_valid = match op {
            Op::ReadMiss | Op::WriteMiss => !has_copy,
            Op::WriteShared | Op::EvictShared => has_copy && self.status == GlobalStatus::Shared,
            _ => has_copy && self.status == GlobalStatus::Modified,
        };
        if is_valid { Passed::On(self.status, self.copyset) } else { Passed::Refused }
    }

    /// The second pass of a request that was [`Passed::Refused`]: releases its lock.
    pub fn give_back(&mut self, op: Op) {
        if op.is_shared() {
            self.readers = self.readers.saturating_sub(1);
        } else {
            self.is_write = false;
        }
    }

    /// The first pass of an unlock: returns the score, which the packet carries round.
    #[must_use]
    pub fn unlock_first_pass(&self, requester: u8, number: u64) -> u16 {
        self.scores[usize::from(requester)][(number % 2) as usize]
    }

    /// The second pass of an unlock: compares the number, and releases the lock by the score.
    pub fn unlock_second_pass(
        &mut self,
        op: Op,
        (requester, number): (u8, u64),
        score: u16,
        (status, copyset): (GlobalStatus, Copyset),
    ) {
        let last = &mut self.last_unlock[usize::from(requester)];
        if number <= *last {
            return;
        }
        *last = number;
        self.status = status;
        if op.is_shared() {
            self.readers = self.readers.saturating_sub(score);
            self.copyset = self.copyset.with(copyset);
        } else {
            self.is_write = false;
            self.copyset = copyset;
        }
        self.scores[usize::from(requester)][(number % 2) as usize] = 0;
    }
}

impl Default for PrintedBlock {
    fn default() -> PrintedBlock {
        PrintedBlock::new()
    }
}
