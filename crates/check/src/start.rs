//! Cuts a history down to the part that has no order.
//!
//! Ruling out every order of a long history with many open operations takes forever; ruling out
//! every order of its last few operations does not. Two cuts never turn a history that has an order
//! into one that has none:
//!
//! - [`until`] a moment: operations called later are dropped, and those that had not returned by
//!   then become operations of unknown outcome.
//! - from a start on ([`latest_start`]): the start is an operation whose reply alone shows the
//!   state that it leaves, while no other completed write was in progress. It stands for everything
//!   that came before it, except open operations.

use std::time::{Duration, Instant};

use crate::Reply;
use crate::command::{Command, Condition, Ttl};
use crate::op::Op;
use crate::plan::Plan;
use crate::search::{Budget, Outcome, Search};

/// The budget of one try.
const TRY: Budget = Budget {
    configs_max: 200_000,
    memory_bytes_max: 1 << 28,
    time_max: Some(Duration::from_millis(500)),
};
/// The largest number of tries, and the longest time that they take together.
const TRIES_MAX: usize = 2_000;
const TIME_MAX: Duration = Duration::from_secs(5);
/// The number of starting points that are tried.
const STARTS_MAX: usize = 16;

/// The tries that are left.
pub(crate) struct Tries {
    left: usize,
    started: Instant,
}

impl Tries {
    pub(crate) fn new() -> Tries {
        Tries { left: TRIES_MAX, started: Instant::now() }
    }

    pub(crate) fn out(&self) -> bool {
        self.left == 0 || self.started.elapsed() > TIME_MAX
    }

    /// Whether every order of `ops` was ruled out.
    pub(crate) fn no_order(&mut self, ops: &[Op<'_>]) -> bool {
        if self.out() {
            return false;
        }
        self.left -= 1;
        let Ok(plan) = Plan::new(ops.iter().cloned()) else { return false };
        Search::new(&plan, TRY).run_thoroughly() == Outcome::Violation
    }
}

/// Whether the operation may have changed anything.
pub(crate) fn changes(op: &Op<'_>) -> bool {
    !op.inert && !op.command.is_read()
}

/// The operations called by `end_ns`, in the order of their calls.
pub(crate) fn until<'h>(ops: &[Op<'h>], end_ns: u64) -> Vec<Op<'h>> {
    let mut kept: Vec<Op<'h>> = ops
        .iter()
        .filter(|op| op.moment.call_ns <= end_ns)
        .map(|op| if op.moment.return_ns > end_ns { op.opened() } else { op.clone() })
        .collect();
    kept.sort_by_key(|op| (op.moment.call_ns, op.source));
    kept
}

/// The operation that stands for `op` and everything before it, if `op`'s reply alone shows the
/// state that it left.
fn standing_for<'h>(op: &Op<'h>, lifetimes: bool) -> Option<Op<'h>> {
    let value_of = |text: &[u8], ttl: Ttl| Command::Set {
        value: text.into(),
        condition: Condition::Always,
        get: false,
        ttl,
    };
    let command = match (&op.command, op.reply?) {
        (Command::Flush, Reply::Ok)
        | (Command::Del, Reply::Int(_))
        | (Command::GetDel, Reply::Nil | Reply::Bulk(_))
        | (Command::Pop { .. } | Command::Get, Reply::Nil)
        | (Command::Exists | Command::Llen, Reply::Int(0)) => Command::Flush,
        (Command::Set { value, get: false, ttl, .. }, Reply::Ok) if *ttl != Ttl::Keep => {
            value_of(value, *ttl)
        }
        (Command::SetNx(value), Reply::Int(1))
        | (Command::GetSet(value), Reply::Nil | Reply::Bulk(_)) => value_of(value, Ttl::Clear),
        // The list was missing before.
        (Command::Push { values, .. }, Reply::Int(length)) if *length == values.len() as i64 => {
            return Some(op.clone());
        }
        (Command::IncrBy(_), Reply::Int(value)) if !lifetimes => {
            value_of(value.to_string().as_bytes(), Ttl::Clear)
        }
        (Command::Get, Reply::Bulk(value)) if !lifetimes => value_of(value, Ttl::Clear),
        _ => return None,
    };
    Some(Op::new(op.source, command, op.moment, Some(&Reply::Ok)))
}

/// What is left of an operation when everything before `start` is dropped.
///
/// An executed operation of unseen reply that was in progress at the same time as the start may
/// have come before it, and so may what undid it: it may take effect now, but need not. One that
/// had returned before is part of what the start stands for.
fn after_start<'h>(op: &Op<'h>, start: &Op<'h>) -> Option<Op<'h>> {
    if op.source == start.source {
        return None;
    }
    let is_open = op.reply.is_none() && op.moment.return_ns == u64::MAX;
    if is_open || op.moment.call_ns > start.moment.return_ns {
        return Some(op.clone());
    }
    let is_under_way = op.moment.return_ns >= start.moment.call_ns;
    (op.reply.is_none() && is_under_way).then(|| op.opened())
}

/// The latest start from which on there is no order, with the operations from it on, in the order
/// of their calls. `ops` are in that order too.
pub(crate) fn latest_start<'h>(ops: &[Op<'h>], tries: &mut Tries) -> Option<(u32, Vec<Op<'h>>)> {
    let lifetimes = ops.iter().any(Op::has_lifetime);
    let is_write = |op: &Op<'_>| op.reply.is_some() && changes(op);
    // The call of the next completed write after each operation.
    let mut next_write_ns = vec![u64::MAX; ops.len()];
    let mut next_ns = u64::MAX;
    for (index, op) in ops.iter().enumerate().rev() {
        next_write_ns[index] = next_ns;
        if is_write(op) {
            next_ns = op.moment.call_ns;
        }
    }
    let mut written_ns = None;
    let mut starts = Vec::new();
    for (op, next_ns) in ops.iter().zip(next_write_ns) {
        let alone = written_ns < Some(op.moment.call_ns) && next_ns > op.moment.return_ns;
        if alone {
            starts.extend(standing_for(op, lifetimes));
        }
        if is_write(op) {
            written_ns = written_ns.max(Some(op.moment.return_ns));
        }
    }
    let mut back = 1;
    for _ in 0..STARTS_MAX {
        let start = starts.get(starts.len().checked_sub(back)?)?;
        let mut rest = vec![start.clone()];
        rest.extend(ops.iter().filter_map(|op| after_start(op, start)));
        rest.sort_by_key(|op| (op.moment.call_ns, op.source));
        if tries.no_order(&rest) {
            return Some((start.source, rest));
        }
        back = if back < 4 { back + 1 } else { back * 2 };
    }
    None
}
