//! The graph of transactions (an edge says that one comes before another), and its cycles.

use std::collections::HashMap;

use super::transaction::Edge;

/// The nodes are the transactions, followed by moments of real time. Edges say what comes before
/// what.
pub(super) struct Graph {
    pub(super) transactions: usize,
    pub(super) edges: Vec<Vec<(usize, Edge)>>,
}

impl Graph {
    pub(super) fn new(transactions: usize) -> Graph {
        Graph { transactions, edges: vec![Vec::new(); transactions] }
    }

    /// Adds `count` moments, and returns the number of the first.
    pub(super) fn moments(&mut self, count: usize) -> usize {
        let first = self.edges.len();
        self.edges.resize(first + count, Vec::new());
        first
    }

    pub(super) fn add(&mut self, one: usize, two: usize, edge: Edge) {
        if one != two {
            self.edges[one].push((two, edge));
        }
    }

    /// A shortest cycle through some transaction of a strongly connected component, if there is
    /// one.
    pub(super) fn cycle(&self) -> Option<Vec<(usize, Edge)>> {
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

    /// The cycle that returns to `start`, without the moments in it.
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
    pub(super) fn components(&self) -> Vec<usize> {
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
