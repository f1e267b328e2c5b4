//! Checks whether a history of transactions over several keys is strictly serializable.
//!
//! The method is that of Elle (Kingsbury and Alvaro, VLDB 2020) and Cobra (Tan and others, OSDI
//! 2020): the values that transactions read show which of them came before which, and so does real
//! time. If these dependencies have a cycle, there is no order. Values are unique for each key, so
//! that a read identifies the write that it saw.
//!
//! 1. **Known dependencies.** A list that is only appended to shows the order of all appends that
//!    were ever seen. For a read of a register the write that it saw is known.
//! 2. **Saturation.** Of two writes of a register one comes first, with all its readers: a
//!    constraint with two sides (the polygraph of Papadimitriou, 1979). If one side would close a
//!    cycle, the other holds, which may decide further ones. This is repeated until nothing
//!    changes.
//! 3. **Search.** The rest is searched: orders of all transactions that respect the dependencies
//!    are tried one transaction at a time, with backtracking, and dead ends are remembered, within
//!    a budget.
//! 4. **Replay.** The order that was found is executed on plain lists and registers. A history is
//!    accepted only if each transaction reads there what it read.
//!
//! So a history is accepted only with an order, and is a violation only if all orders were ruled
//! out. If the budget does not suffice, the result is [`Decision::Open`], which is never accepted.
//!
//! Dependencies (Adya): ww, a write after the one before it; wr, a read after the write that it
//! saw; rw, a write after a read that did not see it; and real time.

mod decide;
mod graph;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use graph::Graph;
pub use transaction::{Access, Anomaly, Decision, Edge, Transaction};
use transaction::{Registers, Saw};

/// Decides whether there is an order of all transactions in which each sees what those before it
/// wrote, and which respects real time.
///
/// # Errors
/// An [`Anomaly`], which proves that there is none.
pub fn check_transactions(all: &[Transaction]) -> Result<Decision, Anomaly> {
    let views = views(all)?;
    if are_values_repeated(&views) {
        return Ok(Decision::Open("values of their own: a key was written the same value twice"));
    }
    let executed = executed(all, &views);
    let mut graph = Graph::new(all.len());
    lists(&executed, &views, &mut graph)?;
    let registers = registers(&executed, &views, &mut graph)?;
    real_time(all, &mut graph);
    decide::decide(all, &executed, &registers, &mut graph)
}

/// Whether `order` is an order of all transactions that were executed: each occurs once, real time
/// is respected, and each reads what those before it left. Transactions of unknown outcome may be
/// in it or not.
#[must_use]
pub fn is_order(all: &[Transaction], order: &[usize]) -> bool {
    decide::replays(all, order)
}

/// The accesses of a transaction to one key.
#[derive(Clone, Debug, Default)]
struct View {
    /// The list as others left it, if the transaction read it.
    list: Option<Vec<u64>>,
    /// The whole list as it was read, with the transaction's own earlier appends.
    seen: Vec<u64>,
    appended: Vec<u64>,
    /// The register as others left it, if the transaction read it.
    register: Option<Option<u64>>,
    written: Vec<u64>,
}

type Views = Vec<BTreeMap<u64, View>>;

/// The values of others that each transaction saw, after checking that it saw its own.
fn views(all: &[Transaction]) -> Result<Views, Anomaly> {
    let mut views = Views::new();
    for (reader, transaction) in all.iter().enumerate() {
        let mut own: BTreeMap<u64, View> = BTreeMap::new();
        for access in &transaction.accesses {
            let (Access::Append(key, _)
            | Access::List(key, _)
            | Access::Write(key, _)
            | Access::Read(key, _)) = access;
            let key = *key;
            let view = own.entry(key).or_default();
            match access {
                Access::Append(_, value) => view.appended.push(*value),
                Access::Write(_, value) => view.written.push(*value),
                Access::List(_, values) => {
                    let others = values.strip_suffix(&view.appended[..]);
                    let same = |list: &Option<Vec<u64>>| {
                        list.as_deref().is_none_or(|list| Some(list) == others)
                    };
                    let Some(others) = others.filter(|_| same(&view.list)) else {
                        return Err(Anomaly::Internal { reader, key });
                    };
                    (view.list, view.seen) = (Some(others.to_vec()), values.clone());
                }
                Access::Read(_, value) => match view.written.last() {
                    Some(own) if Some(*own) != *value => {
                        return Err(Anomaly::Internal { reader, key });
                    }
                    Some(_) => {}
                    None if view.register.is_some_and(|seen| seen != *value) => {
                        return Err(Anomaly::Internal { reader, key });
                    }
                    None => view.register = Some(*value),
                },
            }
        }
        views.push(own);
    }
    Ok(views)
}

/// The transaction that wrote each value of a key.
fn writers<'a>(views: &'a Views, of: impl Fn(&'a View) -> &'a [u64]) -> HashMap<(u64, u64), usize> {
    let mut writers = HashMap::new();
    for (writer, own) in views.iter().enumerate() {
        for (key, view) in own {
            writers.extend(of(view).iter().map(|value| ((*key, *value), writer)));
        }
    }
    writers
}

/// The transactions that were certainly executed: they have a reply, or another transaction saw
/// what they wrote.
fn executed(all: &[Transaction], views: &Views) -> Vec<bool> {
    let mut executed: Vec<bool> = all.iter().map(|own| own.return_ns.is_some()).collect();
    let (appended, written) =
        (writers(views, |view| &view.appended), writers(views, |view| &view.written));
    for (key, view) in views.iter().flatten() {
        let listed = view.seen.iter().filter_map(|value| appended.get(&(*key, *value)));
        let read = view.register.flatten().and_then(|value| written.get(&(*key, value)));
        listed.chain(read).for_each(|writer| executed[*writer] = true);
    }
    executed
}

/// Adds the dependencies of lists.
fn lists(executed: &[bool], views: &Views, graph: &mut Graph) -> Result<(), Anomaly> {
    let writers = writers(views, |view| &view.appended);
    let mut orders: BTreeMap<u64, (usize, &[u64])> = BTreeMap::new();
    for (reader, own) in views.iter().enumerate() {
        for (key, view) in own.iter().filter(|(_, view)| view.list.is_some()) {
            let longest = orders.entry(*key).or_insert((reader, &view.seen));
            if view.seen.len() > longest.1.len() {
                *longest = (reader, &view.seen);
            }
        }
    }
    // An executed append that no transaction saw comes after all that were seen.
    let seen: HashSet<(u64, u64)> =
        orders.iter().flat_map(|(key, (_, order))| order.iter().map(|v| (*key, *v))).collect();
    let mut unseen: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for ((key, value), writer) in &writers {
        let is_seen = seen.contains(&(*key, *value));
        if !is_seen && executed[*writer] {
            unseen.entry(*key).or_default().insert(*writer);
        }
    }
    for (key, (reader, order)) in &orders {
        let mut before: BTreeSet<u64> = BTreeSet::new();
        for value in *order {
            if !writers.contains_key(&(*key, *value)) {
                return Err(Anomaly::Unwritten { reader: *reader, key: *key, value: *value });
            }
            if !before.insert(*value) {
                return Err(Anomaly::Order { reader: *reader, key: *key });
            }
        }
        let of = |value: &u64| writers[&(*key, *value)];
        if !are_in_blocks(order, *reader, of, views, *key) {
            return Err(Anomaly::Intermediate { reader: *reader, key: *key });
        }
        for pair in order.windows(2) {
            graph.add(of(&pair[0]), of(&pair[1]), Edge::WriteWrite(*key));
        }
        if let Some(last) = order.last() {
            let others = unseen.get(key).into_iter().flatten();
            others.for_each(|other| graph.add(of(last), *other, Edge::WriteWrite(*key)));
        }
    }
    for (reader, own) in views.iter().enumerate() {
        for (key, view) in own {
            let (Some(list), Some((_, order))) = (&view.list, orders.get(key)) else { continue };
            if !order.starts_with(&view.seen) {
                return Err(Anomaly::Order { reader, key: *key });
            }
            // The reader's own append is not part of this list: it read the list before it
            // appended.
            if list.iter().any(|value| writers[&(*key, *value)] == reader) {
                return Err(Anomaly::Internal { reader, key: *key });
            }
            if let Some(value) = list.last() {
                let writer = writers[&(*key, *value)];
                if views[writer][key].appended.last() != Some(value) {
                    return Err(Anomaly::Intermediate { reader, key: *key });
                }
                graph.add(writer, reader, Edge::WriteRead(*key));
            }
            match order.get(list.len()) {
                Some(next) => graph.add(reader, writers[&(*key, *next)], Edge::ReadWrite(*key)),
                None => {
                    let others = unseen.get(key).into_iter().flatten();
                    others.for_each(|other| graph.add(reader, *other, Edge::ReadWrite(*key)));
                }
            }
        }
    }
    Ok(())
}

/// Whether a value was written twice to one key, so that a read of it does not identify its writer.
fn are_values_repeated(views: &Views) -> bool {
    let mut all = HashSet::new();
    let mut values = views.iter().flatten().flat_map(|(key, view)| {
        let appended = view.appended.iter().map(|value| (true, *key, *value));
        appended.chain(view.written.iter().map(|value| (false, *key, *value)))
    });
    values.any(|value| !all.insert(value))
}

/// Whether the elements of a list are those of one transaction after another, each with all that it
/// appended. The reader's own appends at the end may be incomplete.
fn are_in_blocks(
    order: &[u64],
    reader: usize,
    writer_of: impl Fn(&u64) -> usize,
    views: &Views,
    key: u64,
) -> bool {
    let mut rest = order;
    while let Some(first) = rest.first() {
        let writer = writer_of(first);
        let appended = &views[writer][&key].appended;
        if let Some(others) = rest.strip_prefix(&appended[..]) {
            rest = others;
        } else {
            return writer == reader && appended.starts_with(rest);
        }
    }
    true
}

/// Adds the dependencies of registers that follow at once.
fn registers(executed: &[bool], views: &Views, graph: &mut Graph) -> Result<Registers, Anomaly> {
    let writers = writers(views, |view| &view.written);
    let mut all = Registers::default();
    let mut numbers: HashMap<u64, usize> = HashMap::new();
    for (reader, own) in views.iter().enumerate() {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (name, view) in own {
            if view.register.is_none() && view.written.is_empty() {
                continue;
            }
            let key = *numbers.entry(*name).or_insert_with(|| {
                all.names.push(*name);
                all.names.len() - 1
            });
            if executed[reader] && !view.written.is_empty() {
                writes.push(key);
            }
            let Some(value) = view.register else { continue };
            let Some(value) = value else {
                reads.push(Saw { key, writer: None });
                continue;
            };
            let Some(writer) = writers.get(&(*name, value)).copied() else {
                return Err(Anomaly::Unwritten { reader, key: *name, value });
            };
            if writer == reader {
                return Err(Anomaly::Internal { reader, key: *name });
            }
            if views[writer][name].written.last() != Some(&value) {
                return Err(Anomaly::Intermediate { reader, key: *name });
            }
            graph.add(writer, reader, Edge::WriteRead(*name));
            reads.push(Saw { key, writer: Some(writer) });
        }
        all.reads.push(reads);
        all.writes.push(writes);
    }
    Ok(all)
}

/// Adds the order of real time: which transactions had returned before which were called. A chain
/// of moments keeps the number of edges small.
fn real_time(all: &[Transaction], graph: &mut Graph) {
    let mut returns: Vec<(u64, usize)> =
        all.iter().enumerate().filter_map(|(at, t)| Some((t.return_ns?, at))).collect();
    returns.sort_unstable();
    let first = graph.moments(returns.len());
    for (at, (_, transaction)) in returns.iter().enumerate() {
        graph.add(*transaction, first + at, Edge::RealTime);
        if at > 0 {
            graph.add(first + at - 1, first + at, Edge::RealTime);
        }
    }
    for (at, transaction) in all.iter().enumerate() {
        let before = returns.partition_point(|(return_ns, _)| *return_ns < transaction.call_ns);
        if before > 0 {
            graph.add(first + before - 1, at, Edge::RealTime);
        }
    }
}
