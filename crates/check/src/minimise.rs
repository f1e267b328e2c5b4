//! A small counterexample.
//!
//! Dropping operations at will would be wrong: without the write of it, any read of a value is a
//! violation. What is done here only ever makes a history easier to order, so that what is left is
//! wrong by itself:
//!
//! - what was called after the point that no order gets past goes;
//! - what came before a write that overwrites everything and overlaps no other write goes;
//! - an operation that changed nothing goes;
//! - a write is made one of unknown outcome.
//!
//! What is left completed is the counterexample; the writes of the values that it saw are named
//! beside it.

use std::time::{Duration, Instant};

use crate::plan::{Op, Plan};
use crate::report::Violation;
use crate::search::{Budget, Outcome, Search};
use crate::{Operation, Reply};

/// Budget of one try.
const TRY: Budget = Budget {
    configs_max: 200_000,
    memory_bytes_max: 1 << 28,
    time_max: Some(Duration::from_millis(500)),
};
/// Most tries, and the longest that they take together.
const TRIES_MAX: usize = 2_000;
const TIME_MAX: Duration = Duration::from_secs(5);
/// How many operations are tried one by one.
const OPERATIONS_MAX: usize = 2_000;
/// How many starting points are tried.
const STARTS_MAX: usize = 12;

/// Tries that are left.
struct Tries {
    left: usize,
    started: Instant,
}

impl Tries {
    fn out(&self) -> bool {
        self.left == 0 || self.started.elapsed() > TIME_MAX
    }

    /// Where the search gets stuck if there is no order for `ops`: the latest return that it got
    /// past, in ns. `None` if there is an order, or nobody knows.
    fn stuck_ns(&mut self, ops: Vec<Op<'_>>) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let plan = Plan::new(ops).ok()?;
        let mut search = Search::new(&plan, TRY);
        match search.run() {
            Outcome::Violation => plan.done.get(search.furthest_prefix()).map(|op| op.until_ns),
            Outcome::Linearizable | Outcome::GaveUp(_) => None,
        }
    }
}

/// Fills in the counterexample of `violation`, unless none smaller than the history is found in
/// bounded time.
pub(crate) fn minimise(violation: &mut Violation, ops: &[Op<'_>], operations: &[Operation]) {
    let mut tries = Tries { left: TRIES_MAX, started: Instant::now() };
    // No order gets past the first of the stuck operations to return.
    let ends = violation.stuck.iter().filter_map(|stuck| stuck.operation.return_ns);
    let Some(end_ns) = ends.min() else { return };
    let mut ops: Vec<Op<'_>> =
        ops.iter().filter(|op| op.moment.call_ns <= end_ns).cloned().collect();
    ops.sort_by_key(|op| (op.moment.call_ns, op.source));
    let all = ops.clone();
    let mut first = None;
    if let Some((start, rest)) = latest_start(&ops, &mut tries) {
        (first, ops) = (Some(start), rest);
    } else if tries.stuck_ns(ops.clone()).is_none() {
        return;
    }
    if ops.len() <= OPERATIONS_MAX {
        ops = relax(ops, first, &mut tries);
    }
    let operation = |op: &Op<'_>| operations[op.source as usize].clone();
    ops.retain(|op| op.reply.is_some());
    violation.counterexample = ops.iter().map(operation).collect();
    violation.writers =
        all.iter().filter(|op| wrote_what_was_seen(op, &ops, operations)).map(operation).collect();
}

/// Whether a write that is not among `shown` has an argument that one of them saw.
fn wrote_what_was_seen(op: &Op<'_>, shown: &[Op<'_>], operations: &[Operation]) -> bool {
    let args = operations[op.source as usize].cmd.get(2..).unwrap_or_default();
    let saw =
        |other: &Op<'_>| matches!(other.reply, Some(Reply::Bulk(seen)) if args.contains(seen));
    changes(op) && shown.iter().all(|other| other.source != op.source) && shown.iter().any(saw)
}

fn changes(op: &Op<'_>) -> bool {
    !op.inert && !op.command.is_read()
}

/// The latest write that overwrites everything, overlaps no other completed write and still leads
/// to a violation; and the history from it on.
fn latest_start<'h>(ops: &[Op<'h>], tries: &mut Tries) -> Option<(u32, Vec<Op<'h>>)> {
    let writes: Vec<&Op<'_>> = ops.iter().filter(|op| op.reply.is_some() && changes(op)).collect();
    // `ops` are by call: a write is alone if all before returned earlier and the next came later.
    let mut returned_ns = 0;
    let mut starts = Vec::new();
    for (index, op) in writes.iter().enumerate() {
        let next_ns = writes.get(index + 1).map_or(u64::MAX, |next| next.moment.call_ns);
        let alone = returned_ns < op.moment.call_ns || index == 0;
        // The reply of a DEL depends on what was there.
        let starts_anew = op.overwrites && op.reply == Some(&Reply::Ok);
        if alone && starts_anew && next_ns > op.moment.return_ns {
            starts.push((op.source, op.moment));
        }
        returned_ns = returned_ns.max(op.moment.return_ns);
    }
    let mut back = 1;
    for _ in 0..STARTS_MAX {
        let &(source, start) = starts.get(starts.len().checked_sub(back)?)?;
        let from = |op: &&Op<'_>| {
            op.reply.is_none() || op.moment.call_ns > start.return_ns || op.source == source
        };
        let rest: Vec<Op<'_>> = ops.iter().filter(from).cloned().collect();
        if tries.stuck_ns(rest.clone()).is_some() {
            return Some((source, rest));
        }
        back = if back < 4 { back + 1 } else { back * 2 };
    }
    None
}

/// Makes operations say less, as many at a time as still leaves a violation; all but `first`,
/// which stands for all that came before it.
fn relax<'h>(mut ops: Vec<Op<'h>>, first: Option<u32>, tries: &mut Tries) -> Vec<Op<'h>> {
    let mut chunk = ops.len().div_ceil(2);
    loop {
        let mut end = ops.len();
        while end > 0 && !tries.out() {
            let from = end.saturating_sub(chunk);
            let mut fewer = ops[..from].to_vec();
            for op in &ops[from..end] {
                match op.reply {
                    Some(_) if Some(op.source) == first => fewer.push(op.clone()),
                    Some(_) if !changes(op) => {}
                    Some(_) => fewer.push(op.opened()),
                    None => fewer.push(op.clone()),
                }
            }
            fewer.extend_from_slice(&ops[end..]);
            let may_go = |op: &Op<'_>| op.reply.is_some() && Some(op.source) != first;
            let anything_new = ops[from..end].iter().any(may_go);
            if anything_new && tries.stuck_ns(fewer.clone()).is_some() {
                ops = fewer;
            }
            end = from;
        }
        if chunk == 1 || tries.out() {
            return ops;
        }
        chunk = chunk.div_ceil(2);
    }
}
