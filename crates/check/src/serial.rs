//! Is a history of transactions over several keys strictly serializable?
//!
//! In the manner of Elle (Kingsbury and Alvaro, VLDB 2020): what transactions read tells which must
//! come before which, and so does real time; if these dependencies have a cycle there is no order.
//! Values are unique for each key, so that a read names whose write it saw.
//!
//! - A list that is only appended to shows the order of all appends that were ever seen: nothing is
//!   left to guess, and a history without a cycle has an order.
//! - Of a register it is known whose write was read. Which of two writes came first is known where
//!   a transaction read the one and wrote the other, and where the one had returned before the
//!   other was called. Other orders are not guessed: what is found is a violation, but not each is
//!   found.
//!
//! Dependencies (Adya): ww, a write after the one before it; wr, a read after the write that it
//! saw; rw, a write after a read that did not see it; and real time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

/// What a transaction did to a key, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Appended a value to a list.
    Append(u64, u64),
    /// Read a list.
    List(u64, Vec<u64>),
    /// Wrote a register.
    Write(u64, u64),
    /// Read a register; `None`: it was not there.
    Read(u64, Option<u64>),
}

/// One that was executed, or of which nobody knows. What surely was not executed is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// When it was sent, in ns.
    pub call_ns: u64,
    /// When its reply came; `None`: nobody knows whether it was executed, and it read nothing.
    pub return_ns: Option<u64>,
    /// What it did.
    pub accesses: Vec<Access>,
}

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The other wrote this key after it.
    WriteWrite(u64),
    /// The other saw what it wrote.
    WriteRead(u64),
    /// The other wrote what it did not see.
    ReadWrite(u64),
    /// It had returned before the other was called.
    RealTime,
}

/// Why there is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A value was read that nobody wrote, or that was not executed.
    Unwritten {
        /// Who read it.
        reader: usize,
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A transaction does not see what it wrote itself, or sees two states of a key.
    Internal {
        /// Which one.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// What another transaction had written so far was read, before all of it was there.
    Intermediate {
        /// Who read it.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// Two reads of a list of which neither is the beginning of the other, or a value that is in it
    /// twice.
    Order {
        /// Who read it.
        reader: usize,
        /// The key.
        key: u64,
    },
    /// Each comes before the next, and the last before the first.
    Cycle(Vec<(usize, Edge)>),
}

impl Anomaly {
    /// The transactions that show it.
    #[must_use]
    pub fn transactions(&self) -> Vec<usize> {
        match self {
            Anomaly::Unwritten { reader, .. }
            | Anomaly::Internal { reader, .. }
            | Anomaly::Intermediate { reader, .. }
            | Anomaly::Order { reader, .. } => vec![*reader],
            Anomaly::Cycle(cycle) => cycle.iter().map(|(at, _)| *at).collect(),
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

/// Whether there is an order of all transactions in which each sees what those before it wrote, and
/// which keeps to real time.
///
/// # Errors
/// An [`Anomaly`] that shows that there is none.
pub fn check_transactions(all: &[Transaction]) -> Result<(), Anomaly> {
    let views = views(all)?;
    let executed = executed(all, &views);
    let mut graph = Graph::new(all.len());
    lists(&executed, &views, &mut graph)?;
    registers(all, &executed, &views, &mut graph)?;
    real_time(all, &mut graph);
    graph.cycle().map_or(Ok(()), |cycle| Err(Anomaly::Cycle(cycle)))
}

/// What a transaction has to do with one key.
#[derive(Clone, Debug, Default)]
struct View {
    /// The list as others left it, if it was read.
    list: Option<Vec<u64>>,
    /// All of it, with what was appended before it was read.
    seen: Vec<u64>,
    appended: Vec<u64>,
    /// The register as others left it, if it was read.
    register: Option<Option<u64>>,
    written: Vec<u64>,
}

type Views = Vec<BTreeMap<u64, View>>;

/// What each transaction saw of others, once it is known to have seen its own.
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

/// Whose writes of a key are known: by value.
fn writers<'a>(views: &'a Views, of: impl Fn(&'a View) -> &'a [u64]) -> HashMap<(u64, u64), usize> {
    let mut writers = HashMap::new();
    for (writer, own) in views.iter().enumerate() {
        for (key, view) in own {
            writers.extend(of(view).iter().map(|value| ((*key, *value), writer)));
        }
    }
    writers
}

/// Which transactions were surely executed: their replies came, or somebody saw what they wrote.
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

/// The dependencies of lists.
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
    // What was executed and nobody saw comes after all that somebody saw.
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
            if let Some(value) = list.last() {
                let writer = writers[&(*key, *value)];
                if views[writer][key].appended.last() != Some(value) && writer != reader {
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

/// The dependencies of registers.
fn registers(
    all: &[Transaction],
    executed: &[bool],
    views: &Views,
    graph: &mut Graph,
) -> Result<(), Anomaly> {
    let writers = writers(views, |view| &view.written);
    for (reader, own) in views.iter().enumerate() {
        for (key, view) in own {
            let Some(Some(value)) = view.register else { continue };
            let Some(writer) = writers.get(&(*key, value)) else {
                return Err(Anomaly::Unwritten { reader, key: *key, value });
            };
            if views[*writer][key].written.last() != Some(&value) {
                return Err(Anomaly::Intermediate { reader, key: *key });
            }
            graph.add(*writer, reader, Edge::WriteRead(*key));
        }
    }
    // Who surely wrote a key, by when it was called.
    let mut written: BTreeMap<u64, Vec<(u64, usize)>> = BTreeMap::new();
    for (writer, own) in views.iter().enumerate() {
        for (key, view) in own {
            if executed[writer] && !view.written.is_empty() {
                written.entry(*key).or_default().push((all[writer].call_ns, writer));
            }
        }
    }
    for (key, list) in &mut written {
        list.sort_unstable();
        for (reader, own) in views.iter().enumerate() {
            let Some(value) = own.get(key).and_then(|view| view.register) else { continue };
            let writer = value.map(|value| writers[&(*key, value)]);
            if let (Some(writer), false) = (writer, own[key].written.is_empty()) {
                graph.add(writer, reader, Edge::WriteWrite(*key));
            }
            // Writes that come after the one that was seen.
            let after = |other: usize| match writer {
                None => true,
                Some(writer) => {
                    let overwrote = views[other][key].register == Some(value) && value.is_some();
                    let returned = all[writer].return_ns;
                    overwrote || returned.is_some_and(|at| at < all[other].call_ns)
                }
            };
            for (_, other) in list.iter().filter(|(_, other)| after(*other)) {
                if Some(*other) != writer {
                    graph.add(reader, *other, Edge::ReadWrite(*key));
                }
            }
        }
    }
    Ok(())
}

/// Who had returned before whom. A chain of moments, so that there are few edges.
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

/// Transactions, moments behind them, and what comes before what.
struct Graph {
    transactions: usize,
    edges: Vec<Vec<(usize, Edge)>>,
}

impl Graph {
    fn new(transactions: usize) -> Graph {
        Graph { transactions, edges: vec![Vec::new(); transactions] }
    }

    /// Adds moments, and says which is the first.
    fn moments(&mut self, count: usize) -> usize {
        let first = self.edges.len();
        self.edges.resize(first + count, Vec::new());
        first
    }

    fn add(&mut self, one: usize, two: usize, edge: Edge) {
        if one != two {
            self.edges[one].push((two, edge));
        }
    }

    /// A shortest cycle through some transaction of a strongly connected component, if there is
    /// one.
    fn cycle(&self) -> Option<Vec<(usize, Edge)>> {
        let component = self.components();
        let mut sizes: HashMap<usize, usize> = HashMap::new();
        component.iter().for_each(|own| *sizes.entry(*own).or_default() += 1);
        let in_one = |at: &usize| sizes[&component[*at]] > 1;
        let start = (0..self.transactions).find(in_one)?;
        let mut from: HashMap<usize, (usize, Edge)> = HashMap::new();
        let mut queue = std::collections::VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for (next, edge) in
                self.edges[at].iter().filter(|(n, _)| component[*n] == component[at])
            {
                if from.contains_key(next) {
                    continue;
                }
                from.insert(*next, (at, *edge));
                if *next == start {
                    return Some(self.back(start, &from));
                }
                queue.push_back(*next);
            }
        }
        None
    }

    /// The cycle that comes back to `start`, without its moments.
    fn back(&self, start: usize, from: &HashMap<usize, (usize, Edge)>) -> Vec<(usize, Edge)> {
        let (mut cycle, mut at) = (Vec::new(), start);
        loop {
            let (before, edge) = from[&at];
            if before < self.transactions {
                cycle.push((before, edge));
            }
            at = before;
            if at == start {
                cycle.reverse();
                return cycle;
            }
        }
    }

    /// The strongly connected component of each node (Tarjan), without recursion.
    fn components(&self) -> Vec<usize> {
        const NEW: usize = usize::MAX;
        let count = self.edges.len();
        let (mut index, mut low) = (vec![NEW; count], vec![0; count]);
        let (mut component, mut on_stack) = (vec![NEW; count], vec![false; count]);
        let (mut stack, mut next, mut found) = (Vec::new(), 0, 0);
        for root in 0..count {
            if index[root] != NEW {
                continue;
            }
            let mut path = vec![(root, 0)];
            while let Some((at, edge)) = path.pop() {
                if edge == 0 {
                    (index[at], low[at]) = (next, next);
                    next += 1;
                    stack.push(at);
                    on_stack[at] = true;
                }
                if let Some((to, _)) = self.edges[at].get(edge) {
                    path.push((at, edge + 1));
                    if index[*to] == NEW {
                        path.push((*to, 0));
                    } else if on_stack[*to] {
                        low[at] = low[at].min(index[*to]);
                    }
                    continue;
                }
                if low[at] == index[at] {
                    while let Some(member) = stack.pop() {
                        on_stack[member] = false;
                        component[member] = found;
                        if member == at {
                            break;
                        }
                    }
                    found += 1;
                }
                if let Some((parent, _)) = path.last() {
                    low[*parent] = low[*parent].min(low[at]);
                }
            }
        }
        component
    }
}
