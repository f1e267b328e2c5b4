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

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use graph::Graph;

/// What a transaction did to a key. The first number is the key, the second the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Appended a value to a list.
    Append(u64, u64),
    /// Read a list.
    List(u64, Vec<u64>),
    /// Wrote a register.
    Write(u64, u64),
    /// Read a register; `None` if it had no value.
    Read(u64, Option<u64>),
}

/// A transaction that was executed, or may have been. One that was certainly not executed is left
/// out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The time in ns at which it was sent.
    pub call_ns: u64,
    /// The time in ns of its reply. `None` if it is not known whether it was executed; it then read
    /// nothing.
    pub return_ns: Option<u64>,
    /// Its accesses, in order.
    pub accesses: Vec<Access>,
}

/// The reason that one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The other overwrote this key after it.
    WriteWrite(u64),
    /// The other saw its write of this key.
    WriteRead(u64),
    /// The other wrote a value of this key that it did not see.
    ReadWrite(u64),
    /// It had returned before the other was called.
    RealTime,
}

/// A proof that there is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A read value was written by no transaction that was executed.
    Unwritten {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A transaction does not see its own write, or sees two states of a key.
    Internal {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// A read saw the first writes of another transaction without its last ones.
    Intermediate {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// Two reads of a list of which neither is a prefix of the other, or a list that has a value
    /// twice.
    Order {
        /// The reading transaction.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// Each transaction comes before the next, and the last before the first.
    Cycle(Vec<(usize, Edge)>),
    /// Every order was tried.
    NoOrder {
        /// The candidates for the next place where the longest order ended.
        stuck: Vec<usize>,
    },
}

/// The decision on a history that shows no anomaly.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// This is an order of all transactions that were executed. It was replayed.
    Ordered(Vec<usize>),
    /// Neither an order nor a proof that there is none was found, because this ran out.
    Open(&'static str),
}

impl Decision {
    /// Whether there is an order.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        matches!(self, Decision::Ordered(_))
    }
}

impl Anomaly {
    /// The transactions that the anomaly involves.
    #[must_use]
    pub fn transactions(&self) -> Vec<usize> {
        match self {
            Anomaly::Unwritten { reader, .. }
            | Anomaly::Internal { reader, .. }
            | Anomaly::Intermediate { reader, .. }
            | Anomaly::Order { reader, .. } => vec![*reader],
            Anomaly::Cycle(cycle) => cycle.iter().map(|(at, _)| *at).collect(),
            Anomaly::NoOrder { stuck } => stuck.clone(),
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Anomaly::Unwritten { reader, key, value } => {
                write!(f, "transaction {reader} read {value} of key {key}, which nobody wrote")
            }
            Anomaly::Internal { reader, key } => {
                write!(f, "transaction {reader} does not see its own writes of key {key}")
            }
            Anomaly::Intermediate { reader, key } => {
                write!(f, "transaction {reader} saw key {key} amid another transaction")
            }
            Anomaly::Order { reader, key } => {
                write!(f, "transaction {reader} saw key {key} in another order than others did")
            }
            Anomaly::NoOrder { stuck } => {
                write!(
                    f,
                    "every order was tried; where the longest ends none of {stuck:?} can be next"
                )
            }
            Anomaly::Cycle(cycle) => {
                let Some((first, _)) = cycle.first() else { return write!(f, "a cycle") };
                for (at, edge) in cycle {
                    let why = match edge {
                        Edge::WriteWrite(key) => format!("it wrote key {key} before"),
                        Edge::WriteRead(key) => format!("what it wrote of key {key} was seen by"),
                        Edge::ReadWrite(key) => format!("of key {key} it did not see"),
                        Edge::RealTime => "it had returned before".to_string(),
                    };
                    write!(f, "{at} ({why}) -> ")?;
                }
                write!(f, "{first}")
            }
        }
    }
}

/// Decides whether there is an order of all transactions in which each sees what those before it
/// wrote, and which respects real time.
///
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

/// A read of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saw {
    key: usize,
    /// The transaction whose write it saw, or `None` if it saw that there was none.
    writer: Option<usize>,
}

/// The registers of a history, by number.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    names: Vec<u64>,
    /// The values of others that each transaction read.
    reads: Vec<Vec<Saw>>,
    /// The registers that each executed transaction wrote.
    writes: Vec<Vec<usize>>,
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
