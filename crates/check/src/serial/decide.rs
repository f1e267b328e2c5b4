//! The order of the writes of a register: what follows from the dependencies, and what has to be
//! tried.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::graph::Graph;
use super::transaction::{Access, Anomaly, Decision, Edge, Registers, Transaction};

/// The largest transitive closure, in words of 64 bits. For larger graphs only the search decides.
const CLOSURE_WORDS_MAX: usize = 1 << 25;
/// The largest number of steps of the search.
const STEPS_MAX: usize = 2_000_000;
/// The largest number of words of the remembered dead ends.
const DEAD_ENDS_WORDS_MAX: usize = 1 << 25;
/// The largest number of transactions that are named when the search is stuck.
const STUCK_MAX: usize = 16;
/// The writer of a register's initial value.
const NOBODY: usize = usize::MAX;

/// Decides whether the transactions have an order that keeps to the graph.
pub(super) fn decide(
    all: &[Transaction],
    executed: &[bool],
    registers: &Registers,
    graph: &mut Graph,
) -> Result<Decision, Anomaly> {
    let groups = Groups::new(registers, executed);
    groups.begin(registers, graph);
    saturate(registers, &groups, graph)?;
    match Search::new(all, executed, registers, graph).run() {
        Found::Order(order) if replays(all, &order) => Ok(Decision::Ordered(order)),
        // This would be a mistake of this checker, so it never counts as a pass.
        Found::Order(_) => Ok(Decision::Open("explanations: the order found does not replay")),
        Found::Nothing(stuck) => Err(Anomaly::NoOrder { stuck }),
        Found::GaveUp(why) => Ok(Decision::Open(why)),
    }
}

/// The writers of each register, and the readers of each write.
struct Groups {
    /// For each register, its executed writers, each with the others that read its value.
    writers: Vec<Vec<(usize, Vec<usize>)>>,
    /// For each register, the transactions that saw its initial value.
    first: Vec<Vec<usize>>,
}

impl Groups {
    fn new(registers: &Registers, executed: &[bool]) -> Groups {
        let keys = registers.names.len();
        let (mut writers, mut first) = (vec![Vec::new(); keys], vec![Vec::new(); keys]);
        let mut places = HashMap::new();
        for (writer, own) in registers.writes.iter().enumerate() {
            for key in own {
                places.insert((*key, writer), writers[*key].len());
                writers[*key].push((writer, Vec::new()));
            }
        }
        for (reader, own) in registers.reads.iter().enumerate().filter(|(at, _)| executed[*at]) {
            for saw in own {
                match saw.writer.and_then(|writer| places.get(&(saw.key, writer))) {
                    Some(place) => writers[saw.key][*place].1.push(reader),
                    None => first[saw.key].push(reader),
                }
            }
        }
        Groups { writers, first }
    }

    /// Readers of the initial value come before all writers.
    fn begin(&self, registers: &Registers, graph: &mut Graph) {
        for (key, readers) in self.first.iter().enumerate() {
            for reader in readers {
                for (writer, _) in &self.writers[key] {
                    graph.add(*reader, *writer, Edge::ReadWrite(registers.names[key]));
                }
            }
        }
    }
}

/// Adds the edges that follow from the graph until there are no more.
///
/// # Errors
/// A cycle, as an [`Anomaly`].
fn saturate(registers: &Registers, groups: &Groups, graph: &mut Graph) -> Result<(), Anomaly> {
    loop {
        if let Some(cycle) = graph.cycle() {
            return Err(Anomaly::Cycle(cycle));
        }
        if groups.writers.iter().all(|writers| writers.len() < 2) {
            return Ok(());
        }
        let Some(reach) = Reach::new(graph) else { return Ok(()) };
        let mut more = Vec::new();
        for (key, writers) in groups.writers.iter().enumerate() {
            let name = registers.names[key];
            for (at, one) in writers.iter().enumerate() {
                for other in &writers[at + 1..] {
                    put_in_order(&reach, (one, other), name, &mut more);
                    put_in_order(&reach, (other, one), name, &mut more);
                }
            }
        }
        if more.is_empty() {
            return Ok(());
        }
        more.into_iter().for_each(|(from, to, edge)| graph.add(from, to, edge));
    }
}

type Group = (usize, Vec<usize>);

/// If `one` with all its readers cannot come before `other`, then `other` with all its readers
/// comes before `one`.
fn put_in_order(
    reach: &Reach,
    (one, other): (&Group, &Group),
    name: u64,
    more: &mut Vec<(usize, usize, Edge)>,
) {
    let members = |group: &Group, but: usize| {
        let all = [group.0].into_iter().chain(group.1.iter().copied());
        all.filter(|at| *at != but).collect::<Vec<usize>>()
    };
    if !members(one, other.0).iter().any(|member| reach.is_before(other.0, *member)) {
        return;
    }
    for member in members(other, one.0) {
        if !reach.is_before(member, one.0) {
            let is_writer = member == other.0;
            let edge = if is_writer { Edge::WriteWrite(name) } else { Edge::ReadWrite(name) };
            more.push((member, one.0, edge));
        }
    }
}

/// The transitive closure of a graph: which node comes before which.
struct Reach {
    width: usize,
    words: Vec<u64>,
}

impl Reach {
    /// The closure of a graph without cycles; `None` if it is too large.
    fn new(graph: &Graph) -> Option<Reach> {
        let width = graph.transactions.div_ceil(64);
        let length = width.checked_mul(graph.edges.len())?;
        if length > CLOSURE_WORDS_MAX {
            return None;
        }
        // Without cycles each node is a component, and those that come after it have lower numbers.
        let mut order: Vec<(usize, usize)> =
            graph.components().into_iter().enumerate().map(|(at, number)| (number, at)).collect();
        order.sort_unstable();
        let mut reach = Reach { width, words: vec![0; length] };
        let mut row = vec![0; width];
        for (_, at) in order {
            row.fill(0);
            for (to, _) in &graph.edges[at] {
                let theirs = &reach.words[to * width..][..width];
                row.iter_mut().zip(theirs).for_each(|(own, word)| *own |= word);
                if *to < graph.transactions {
                    row[to / 64] |= 1 << (to % 64);
                }
            }
            reach.words[at * width..][..width].copy_from_slice(&row);
        }
        Some(reach)
    }

    fn is_before(&self, one: usize, other: usize) -> bool {
        self.words[one * self.width + other / 64] >> (other % 64) & 1 == 1
    }
}

enum Found {
    Order(Vec<usize>),
    /// Every order was ruled out: the candidates for the next place where the longest ended.
    Nothing(Vec<usize>),
    GaveUp(&'static str),
}

/// A step of the search: the candidates that are left, and what was taken to get here.
struct Frame {
    choices: Vec<usize>,
    cursor: usize,
}

/// The changes made by taking a transaction.
struct Taken {
    transaction: usize,
    /// The transaction, and the moments that passed with it.
    nodes: Vec<usize>,
    /// The registers that it wrote, each with its writer before.
    before: Vec<(usize, usize)>,
}

/// A search for an order, one transaction after another.
///
/// - A transaction may be next if everything that the graph puts before it was taken, each register
///   that it read is as it saw it, and all others that have to see what it overwrites have done so.
/// - A candidate that fits and wrote no register is taken at once, without an alternative: any
///   order that takes it later also works with it taken now.
/// - The set of taken transactions and the last writer of each register determine what may follow:
///   such a configuration is not visited again once it led nowhere. Configurations are compared in
///   full.
struct Search<'a> {
    registers: &'a Registers,
    graph: &'a Graph,
    executed: &'a [bool],
    /// For each node, the number of nodes that it still waits for.
    waits: Vec<usize>,
    /// The nodes that wait for none, by return.
    ready: BTreeSet<(u64, usize)>,
    returns: Vec<u64>,
    /// The executed transactions by call.
    by_call: Vec<usize>,
    places: Vec<usize>,
    is_done: Vec<bool>,
    done: usize,
    /// All of `by_call` before this index are taken.
    prefix: usize,
    last_writer: Vec<usize>,
    /// For each write, the number of readers that have yet to see it.
    unread: HashMap<(usize, usize), usize>,
    taken: Vec<Taken>,
    dead_ends: HashSet<Box<[usize]>>,
    dead_words: usize,
}

impl<'a> Search<'a> {
    fn new(
        all: &[Transaction],
        executed: &'a [bool],
        registers: &'a Registers,
        graph: &'a Graph,
    ) -> Search<'a> {
        let mut waits = vec![0; graph.edges.len()];
        for (to, _) in graph.edges.iter().flatten() {
            waits[*to] += 1;
        }
        let mut by_call: Vec<usize> = (0..all.len()).filter(|at| executed[*at]).collect();
        by_call.sort_by_key(|at| (all[*at].call_ns, *at));
        let mut places = vec![0; all.len()];
        by_call.iter().enumerate().for_each(|(place, at)| places[*at] = place);
        let mut unread = HashMap::new();
        for (_, own) in registers.reads.iter().enumerate().filter(|(at, _)| executed[*at]) {
            for saw in own {
                *unread.entry((saw.key, saw.writer.unwrap_or(NOBODY))).or_default() += 1;
            }
        }
        let returns: Vec<u64> = all.iter().map(|own| own.return_ns.unwrap_or(u64::MAX)).collect();
        let is_ready = |at: &&usize| waits[**at] == 0;
        let ready = by_call.iter().filter(is_ready).map(|at| (returns[*at], *at)).collect();
        Search {
            registers,
            graph,
            executed,
            waits,
            ready,
            returns,
            places,
            is_done: vec![false; all.len()],
            done: 0,
            prefix: 0,
            last_writer: vec![NOBODY; registers.names.len()],
            unread,
            taken: Vec::new(),
            by_call,
            dead_ends: HashSet::new(),
            dead_words: 0,
        }
    }

    fn run(mut self) -> Found {
        let mut frames = vec![Frame { choices: self.choices(), cursor: 0 }];
        let (mut furthest, mut stuck, mut steps) = (0, self.stuck(), 0);
        while self.done < self.by_call.len() {
            let Some(frame) = frames.last_mut() else { return Found::Nothing(stuck) };
            let Some(next) = frame.choices.get(frame.cursor).copied() else {
                // This configuration is a dead end.
                if self.dead_words > DEAD_ENDS_WORDS_MAX {
                    return Found::GaveUp("memory for dead ends of the search of an order");
                }
                let key = self.key();
                self.dead_words += key.len() + 4;
                self.dead_ends.insert(key);
                frames.pop();
                self.undo();
                continue;
            };
            frame.cursor += 1;
            steps += 1;
            if steps > STEPS_MAX {
                return Found::GaveUp("steps of the search of an order");
            }
            self.take(next);
            if !self.dead_ends.is_empty() && self.dead_ends.contains(&self.key()) {
                self.undo();
                continue;
            }
            let choices = self.choices();
            if self.done > furthest {
                furthest = self.done;
                if choices.is_empty() {
                    stuck = self.stuck();
                }
            }
            frames.push(Frame { choices, cursor: 0 });
        }
        Found::Order(self.taken.iter().map(|taken| taken.transaction).collect())
    }

    fn stuck(&self) -> Vec<usize> {
        self.ready.iter().map(|(_, at)| *at).take(STUCK_MAX).collect()
    }

    /// The candidates for the next place, the first to return first.
    fn choices(&self) -> Vec<usize> {
        let mut choices = Vec::new();
        for (_, at) in self.ready.iter().filter(|(_, at)| self.fits(*at)) {
            if self.registers.writes[*at].is_empty() {
                return vec![*at];
            }
            choices.push(*at);
        }
        choices
    }

    fn fits(&self, at: usize) -> bool {
        let reads = &self.registers.reads[at];
        let sees =
            reads.iter().all(|saw| self.last_writer[saw.key] == saw.writer.unwrap_or(NOBODY));
        sees && self.registers.writes[at].iter().all(|key| {
            let own = usize::from(reads.iter().any(|saw| saw.key == *key));
            self.unread.get(&(*key, self.last_writer[*key])).is_none_or(|left| *left == own)
        })
    }

    fn take(&mut self, transaction: usize) {
        let (graph, mut nodes, mut at) = (self.graph, vec![transaction], 0);
        self.ready.remove(&(self.returns[transaction], transaction));
        while let Some(node) = nodes.get(at).copied() {
            at += 1;
            for (to, _) in &graph.edges[node] {
                self.waits[*to] -= 1;
                if self.waits[*to] > 0 {
                    continue;
                }
                if *to >= graph.transactions {
                    nodes.push(*to);
                } else if self.executed[*to] {
                    self.ready.insert((self.returns[*to], *to));
                }
            }
        }
        for saw in &self.registers.reads[transaction] {
            if let Some(left) = self.unread.get_mut(&(saw.key, saw.writer.unwrap_or(NOBODY))) {
                *left -= 1;
            }
        }
        let mut before = Vec::new();
        for key in &self.registers.writes[transaction] {
            before.push((*key, std::mem::replace(&mut self.last_writer[*key], transaction)));
        }
        self.is_done[transaction] = true;
        self.done += 1;
        while self.by_call.get(self.prefix).is_some_and(|at| self.is_done[*at]) {
            self.prefix += 1;
        }
        self.taken.push(Taken { transaction, nodes, before });
    }

    fn undo(&mut self) {
        let Some(Taken { transaction, nodes, before }) = self.taken.pop() else { return };
        for node in nodes {
            for (to, _) in &self.graph.edges[node] {
                if self.waits[*to] == 0 && *to < self.graph.transactions {
                    self.ready.remove(&(self.returns[*to], *to));
                }
                self.waits[*to] += 1;
            }
        }
        for saw in &self.registers.reads[transaction] {
            if let Some(left) = self.unread.get_mut(&(saw.key, saw.writer.unwrap_or(NOBODY))) {
                *left += 1;
            }
        }
        before.into_iter().for_each(|(key, writer)| self.last_writer[key] = writer);
        self.is_done[transaction] = false;
        self.done -= 1;
        self.prefix = self.prefix.min(self.places[transaction]);
        self.ready.insert((self.returns[transaction], transaction));
    }

    /// The configuration: the set of taken transactions, and the last writer of each register.
    fn key(&self) -> Box<[usize]> {
        let mut key = vec![self.prefix];
        let mut left = self.done - self.prefix;
        for at in &self.by_call[self.prefix..] {
            if left == 0 {
                break;
            }
            if self.is_done[*at] {
                key.push(*at);
                left -= 1;
            }
        }
        key.extend_from_slice(&self.last_writer);
        key.into()
    }
}

/// Whether each transaction, executed in this order, reads what those before it left, independently
/// of everything else that was derived; and whether the order respects real time and contains each
/// transaction that returned exactly once.
pub(super) fn replays(all: &[Transaction], order: &[usize]) -> bool {
    let mut is_in = vec![false; all.len()];
    let mut called_ns = 0;
    let mut lists: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut registers: HashMap<u64, u64> = HashMap::new();
    for at in order {
        let Some(own) = all.get(*at) else { return false };
        if std::mem::replace(&mut is_in[*at], true) {
            return false;
        }
        // A transaction before it was called after this one had returned.
        if own.return_ns.is_some_and(|return_ns| return_ns < called_ns) {
            return false;
        }
        called_ns = own.call_ns.max(called_ns);
        for access in &own.accesses {
            let fits = match access {
                Access::Append(key, value) => {
                    lists.entry(*key).or_default().push(*value);
                    true
                }
                Access::Write(key, value) => {
                    registers.insert(*key, *value);
                    true
                }
                Access::List(key, values) => {
                    lists.get(key).map_or(values.is_empty(), |own| own == values)
                }
                Access::Read(key, value) => registers.get(key) == value.as_ref(),
            };
            if !fits {
                return false;
            }
        }
    }
    all.iter().zip(is_in).all(|(own, is_in)| is_in || own.return_ns.is_none())
}
