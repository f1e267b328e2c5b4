//! Makes a small counterexample.
//!
//! Dropping operations at will would be wrong: without its write, any read of a value is a
//! violation. Each step here only makes a history easier to order, so that the rest is wrong by
//! itself:
//!
//! - operations called after the point that no order gets past are dropped, and so is what came
//!   before a state that is known for certain (see [`crate::start`]);
//! - an operation that changed nothing is dropped;
//! - the outcome of a write is made unknown.
//!
//! The operations that are still completed at the end are the counterexample. The writes of the
//! values that they saw are listed beside it.

use crate::op::Op;
use crate::report::Violation;
use crate::start::{Tries, changes, latest_start, until};
use crate::{Operation, Reply};

/// The largest number of operations that are tried one by one.
const OPERATIONS_MAX: usize = 2_000;

/// Fills in the counterexample of `violation`, unless none smaller than the history is found in
/// bounded time.
pub(crate) fn minimise(violation: &mut Violation, ops: &[Op<'_>], operations: &[Operation]) {
    let mut tries = Tries::new();
    // No order gets past the return of the first of the stuck operations, but explaining why may
    // take the replies of the others.
    let ends = violation.stuck.iter().filter_map(|stuck| stuck.operation.return_ns);
    let (Some(first_ns), Some(last_ns)) = (ends.clone().min(), ends.max()) else { return };
    let found = [first_ns, last_ns, u64::MAX].into_iter().find_map(|end_ns| {
        let all = until(ops, end_ns);
        match latest_start(&all, &mut tries) {
            Some((start, rest)) => Some((all, Some(start), rest)),
            None if tries.no_order(&all) => Some((all.clone(), None, all)),
            None => None,
        }
    });
    let Some((all, first, mut ops)) = found else { return };
    if ops.len() <= OPERATIONS_MAX {
        ops = relax(ops, first, &mut tries);
    }
    let operation = |op: &Op<'_>| operations[op.source as usize].clone();
    ops.retain(|op| op.reply.is_some());
    violation.counterexample = ops.iter().map(operation).collect();
    violation.writers =
        all.iter().filter(|op| wrote_what_was_seen(op, &ops, operations)).map(operation).collect();
}

/// Whether `op` is a write, not among `shown`, with an argument that one of `shown` saw.
fn wrote_what_was_seen(op: &Op<'_>, shown: &[Op<'_>], operations: &[Operation]) -> bool {
    let args = operations[op.source as usize].cmd.get(2..).unwrap_or_default();
    let saw =
        |other: &Op<'_>| matches!(other.reply, Some(Reply::Bulk(seen)) if args.contains(seen));
    changes(op) && shown.iter().all(|other| other.source != op.source) && shown.iter().any(saw)
}

/// Makes the outcomes of operations unknown, as many at a time as still leaves a violation.
/// `first`, which stands for everything before it, is kept.
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
            if anything_new && tries.no_order(&fewer) {
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
