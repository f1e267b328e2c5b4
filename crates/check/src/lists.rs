//! The order in which the elements of a list were pushed.
//!
//! A reply that shows a list shows the order in which those of its elements were pushed that came
//! from one side, and each from one operation only. A search need not try all orders of concurrent
//! pushes of unseen replies, only those that agree.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::Reply;
use crate::command::Command;
use crate::op::Op;

/// For each element, the operation (by position) that pushed it, and whether on the left; `None` if
/// several operations did.
type Pushes<'a> = HashMap<&'a [u8], Option<(usize, bool)>, FxBuildHasher>;

/// Notes for each push of `done` the earlier ones that it must not overtake, according to the lists
/// that replies show.
pub(crate) fn keep_order_of_pushes(done: &mut [Op<'_>], open: &[Op<'_>]) {
    for (later, earlier) in shown(done, open) {
        let source = done[earlier].source;
        done[later].after.push(source);
    }
}

/// Pairs of pushes by position: a push, and one that came before it.
fn shown(done: &[Op<'_>], open: &[Op<'_>]) -> Vec<(usize, usize)> {
    let mut order = Vec::new();
    let is_look = |op: &Op<'_>| matches!(op.command, Command::Lrange(..));
    if !done.iter().any(is_look) {
        return order;
    }
    let pushes = pushes(done, open);
    for op in done.iter().filter(|op| is_look(op)) {
        let Some(Reply::Array(items)) = op.reply else { continue };
        let mut right = None;
        let mut left = None;
        for item in items {
            let Reply::Bulk(element) = item else { continue };
            let Some(Some((at, is_left))) = pushes.get(element.as_slice()) else { continue };
            let last = if *is_left { &mut left } else { &mut right };
            match last.replace(*at) {
                Some(before) if before == *at => {}
                Some(before) if *is_left => order.push((before, *at)),
                Some(before) => order.push((*at, before)),
                None => {}
            }
        }
    }
    order.sort_unstable();
    order.dedup();
    order
}

/// For each element, the one completed operation that pushed it, if there is just one.
fn pushes<'a>(done: &'a [Op<'_>], open: &'a [Op<'_>]) -> Pushes<'a> {
    let mut pushes = Pushes::default();
    for (at, op) in done.iter().enumerate() {
        add(&op.command, Some(at), &mut pushes);
    }
    open.iter().for_each(|op| add(&op.command, None, &mut pushes));
    pushes
}

fn add<'a>(command: &'a Command, at: Option<usize>, pushes: &mut Pushes<'a>) {
    match command {
        Command::Push { left, values } => {
            let own = at.map(|at| (at, *left));
            for value in values {
                pushes.entry(value).and_modify(|known| *known = None).or_insert(own);
            }
        }
        // An operation within a transaction has no position of its own.
        Command::Exec(commands) => commands.iter().for_each(|part| add(part, None, pushes)),
        _ => {}
    }
}
