//! The operations of one key, laid out for the search.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::command::{Command, Condition};
use crate::lists::keep_order_of_pushes;
use crate::op::Op;
use crate::seen::{forget_unseen, settle_seen};

/// The largest number of pending operations, summed over all returns, that a plan may list.
const PENDING_MAX: usize = 1 << 26;

/// The operations of one key, with those that were pending at each return.
pub(crate) struct Plan<'h> {
    /// Operations that completed, or were seen and count as completed, by `until_ns`.
    pub(crate) done: Vec<Op<'h>>,
    /// Operations of unknown outcome, by call.
    pub(crate) open: Vec<Op<'h>>,
    /// For each completed operation, its bit, which is unique among those pending at one time.
    pub(crate) slot: Vec<u16>,
    pub(crate) pending_words: usize,
    pub(crate) open_words: usize,
    /// For each completed operation, those that it must not overtake; empty if no client pipelined.
    after: Vec<Vec<u32>>,
    /// Classes of open operations with the same effect: it does not matter which of a class took
    /// effect.
    pub(crate) classes: Vec<Vec<u32>>,
    /// Whether an open operation compares or counts the value of a string.
    pub(crate) open_looks_at_strings: bool,
    pending_from: Vec<u32>,
    pending: Vec<u32>,
}

impl<'h> Plan<'h> {
    /// Lays out the operations, which may be in any order. Reads of unknown outcome say nothing and
    /// are dropped.
    ///
    /// # Errors
    /// There is more concurrency than can be searched.
    pub(crate) fn new(ops: impl IntoIterator<Item = Op<'h>>) -> Result<Plan<'h>, &'static str> {
        let says_something = |op: &Op<'_>| op.reply.is_some() || !op.command.is_read();
        let mut ops: Vec<Op<'h>> = ops.into_iter().filter(says_something).collect();
        settle_seen(&mut ops);
        let (mut done, mut open): (Vec<_>, Vec<_>) =
            ops.into_iter().partition(|op| op.until_ns < u64::MAX);
        done.sort_by_key(|op| (op.until_ns, op.moment.call_ns, op.source));
        open.sort_by_key(|op| (op.moment.call_ns, op.source));
        let last_ns = done.last().map_or(0, |op| op.until_ns);
        open.retain(|op| op.moment.call_ns <= last_ns);
        forget_unseen(&done, &mut open);
        keep_order_of_pushes(&mut done, &open);
        let open_looks_at_strings = open.iter().any(|op| {
            matches!(
                op.command,
                Command::IncrBy(_)
                    | Command::Cas { .. }
                    | Command::Cad(_)
                    | Command::Exec(_)
                    | Command::Set { condition: Condition::IfEqual(_), .. }
            )
        });
        let mut plan = Plan {
            slot: vec![0; done.len()],
            pending_words: 1,
            open_words: open.len().div_ceil(64),
            after: order_of(&done),
            classes: Vec::new(),
            open_looks_at_strings,
            pending_from: Vec::with_capacity(done.len() + 1),
            pending: Vec::new(),
            done,
            open,
        };
        plan.sweep()?;
        plan.classify();
        Ok(plan)
    }

    /// The completed operations that were called before the operation `prefix` returned and
    /// returned no earlier than it, by return.
    pub(crate) fn pending(&self, prefix: usize) -> &[u32] {
        match (self.pending_from.get(prefix), self.pending_from.get(prefix + 1)) {
            (Some(&from), Some(&to)) => &self.pending[from as usize..to as usize],
            _ => &[],
        }
    }

    /// The completed operations that `op` must not overtake.
    pub(crate) fn after(&self, op: u32) -> &[u32] {
        self.after.get(op as usize).map_or(&[], Vec::as_slice)
    }

    fn sweep(&mut self) -> Result<(), &'static str> {
        let mut by_call: Vec<u32> = (0..self.done.len() as u32).collect();
        by_call.sort_by_key(|op| (self.done[*op as usize].moment.call_ns, *op));
        let mut called = by_call.into_iter().peekable();
        let mut active: Vec<u32> = Vec::new();
        let mut free: Vec<u16> = Vec::new();
        let mut slots = 0u16;
        for prefix in 0..self.done.len() {
            let now_ns = self.done[prefix].until_ns;
            while let Some(op) =
                called.next_if(|op| self.done[*op as usize].moment.call_ns <= now_ns)
            {
                let at = active.partition_point(|other| *other < op);
                active.insert(at, op);
                self.slot[op as usize] = match free.pop() {
                    Some(slot) => slot,
                    None if slots == u16::MAX => return Err("too many concurrent operations"),
                    None => {
                        slots += 1;
                        slots - 1
                    }
                };
            }
            self.pending_from.push(self.pending.len() as u32);
            self.pending.extend_from_slice(&active);
            if self.pending.len() > PENDING_MAX {
                return Err("too many concurrent operations");
            }
            // The operation `prefix` is the first active one: it was called, and returned first.
            free.push(self.slot[active.remove(0) as usize]);
        }
        self.pending_from.push(self.pending.len() as u32);
        self.pending_words = usize::from(slots).div_ceil(64).max(1);
        Ok(())
    }

    fn classify(&mut self) {
        for index in 0..self.open.len() as u32 {
            let op = &self.open[index as usize];
            let same = |class: &&mut Vec<u32>| {
                let first = &self.open[class[0] as usize];
                // A time to live counts from the call.
                !op.has_lifetime() && first.command == op.command
            };
            match self.classes.iter_mut().find(same) {
                Some(class) => class.push(index),
                None => self.classes.push(vec![index]),
            }
        }
    }
}

/// For each of `done`, by position, the operations that it must not overtake.
fn order_of(done: &[Op<'_>]) -> Vec<Vec<u32>> {
    if done.iter().all(|op| op.after.is_empty()) {
        return Vec::new();
    }
    let places = done.iter().enumerate().map(|(at, op)| (op.source, at as u32));
    let places: HashMap<u32, u32, FxBuildHasher> = places.collect();
    let place = |source: &u32| places.get(source).copied();
    done.iter().map(|op| op.after.iter().filter_map(place).collect()).collect()
}
