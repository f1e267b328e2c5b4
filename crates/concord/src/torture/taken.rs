//! The elements of queues that were taken, and violations among them.

use std::collections::BTreeMap;

/// The command by which a worker took an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// BLPOP.
    First,
    /// BRPOP.
    Last,
    /// BLMOVE to the worker's own list.
    Moved,
}

/// An element that a worker took.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) queue: u64,
    pub(super) element: String,
    pub(super) way: Way,
}

/// The outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It was acknowledged.
    Done,
    /// It was not executed, and never will be.
    Refused,
    /// Its outcome is unknown.
    Unknown,
}

/// A push: its queue, and the time when it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Push {
    pub(super) became: Pushed,
    pub(super) queue: u64,
    pub(super) call_ns: u64,
}

/// A pop of unknown outcome.
#[derive(Clone, Debug)]
pub(super) struct LostPop {
    pub(super) queues: Vec<u64>,
    /// The time by which it was over, in ns.
    pub(super) until_ns: u64,
}

/// The observations of all clients.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The pushes, by element: producer and number.
    pub(super) pushed: BTreeMap<String, Push>,
    /// The elements that each worker took, in order.
    pub(super) taken: Vec<Vec<Taken>>,
    /// The elements left in queues.
    pub(super) left: Vec<String>,
    /// Pops of unknown outcome, which may have taken an element.
    pub(super) unknown: Vec<LostPop>,
    /// Whether the elements left in queues could not be read, so that lost elements are not known.
    pub(super) is_left_unknown: bool,
    /// The number of moves of unknown outcome.
    pub(super) moves_unknown: u64,
    /// The number of workers that died.
    pub(super) died: u64,
    pub(super) errors: BTreeMap<String, u64>,
}

/// The violations in the observations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Elements that went to several workers, or several times to one.
    pub(super) twice: Vec<String>,
    /// Elements that were never pushed, or whose push was refused.
    pub(super) from_nowhere: Vec<String>,
    /// Elements whose pushes were acknowledged, that no worker took, and that no pop of unknown
    /// outcome can explain.
    pub(super) lost: Vec<String>,
    /// Elements of one producer that a worker popped from one end of a queue in another order than
    /// that of their pushes.
    pub(super) out_of_order: Vec<String>,
}

impl Wrong {
    pub(super) fn is_any(&self) -> bool {
        *self != Wrong::default()
    }
}

/// The producer and the number of an element.
fn parts(element: &str) -> Option<(&str, u64)> {
    let (producer, number) = element.rsplit_once('-')?;
    Some((producer, number.parse().ok()?))
}

pub(super) fn judge(seen: &Seen) -> Wrong {
    let mut wrong = Wrong::default();
    let mut count: BTreeMap<&str, u64> = BTreeMap::new();
    let taken = seen.taken.iter().flatten().map(|taken| taken.element.as_str());
    for element in taken.chain(seen.left.iter().map(String::as_str)) {
        *count.entry(element).or_default() += 1;
    }
    for (element, count) in &count {
        if *count > 1 {
            wrong.twice.push((*element).to_string());
        }
        if matches!(seen.pushed.get(*element).map(|push| push.became), None | Some(Pushed::Refused))
        {
            wrong.from_nowhere.push((*element).to_string());
        }
    }
    let is_lost = |(element, push): &(&String, &Push)| {
        push.became == Pushed::Done && !count.contains_key(element.as_str())
    };
    if !seen.is_left_unknown {
        let lost: Vec<(&String, &Push)> = seen.pushed.iter().filter(is_lost).collect();
        wrong.lost = unexplained(&lost, &seen.unknown);
    }
    for taken in &seen.taken {
        let mut last: BTreeMap<(u64, &str), u64> = BTreeMap::new();
        for taken in taken.iter().filter(|taken| taken.way == Way::First) {
            // An element that was pushed late came after others.
            let is_known =
                seen.pushed.get(&taken.element).is_some_and(|push| push.became == Pushed::Done);
            let Some((producer, number)) = parts(&taken.element).filter(|_| is_known) else {
                continue;
            };
            let before = last.entry((taken.queue, producer)).or_insert(number);
            if number < *before {
                wrong.out_of_order.push(taken.element.clone());
            }
            *before = number.max(*before);
        }
    }
    wrong
}

/// The lost elements that no pop of unknown outcome can have taken. Each such pop took at most one
/// element, of one of its queues, that was pushed before the pop was over.
fn unexplained(lost: &[(&String, &Push)], pops: &[LostPop]) -> Vec<String> {
    let may_take = |pop: &LostPop, push: &Push| {
        pop.queues.contains(&push.queue) && push.call_ns <= pop.until_ns
    };
    // The element that each pop is assumed to have taken.
    let mut takes: Vec<Option<usize>> = vec![None; pops.len()];
    let mut left = Vec::new();
    for (at, (element, _)) in lost.iter().enumerate() {
        // A pop for the element, for which other elements may have to change theirs: an augmenting
        // path, breadth first.
        let mut from: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        let mut queue = vec![(at, None)];
        let (mut next, mut free) = (0, None);
        while let (Some((own, before)), None) = (queue.get(next).copied(), free) {
            next += 1;
            for (pop, _) in pops.iter().enumerate().filter(|(_, pop)| may_take(pop, lost[own].1)) {
                if from.contains_key(&pop) {
                    continue;
                }
                from.insert(pop, before);
                match takes[pop] {
                    Some(other) => queue.push((other, Some(pop))),
                    None => {
                        free = Some(pop);
                        break;
                    }
                }
            }
        }
        let Some(mut pop) = free else {
            left.push((*element).clone());
            continue;
        };
        while let Some(before) = from[&pop] {
            takes[pop] = takes[before];
            pop = before;
        }
        takes[pop] = Some(at);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(element: &str, way: Way) -> Taken {
        Taken { queue: 1, element: element.into(), way }
    }

    fn push(became: Pushed) -> Push {
        Push { became, queue: 1, call_ns: 50 }
    }

    /// Two workers took four of five elements, and one is left.
    fn good() -> Seen {
        let pushed = (0..5).map(|n| (format!("0-{n}"), push(Pushed::Done))).collect();
        let first = vec![taken("0-0", Way::First), taken("0-2", Way::First)];
        let second = vec![taken("0-3", Way::Moved), taken("0-1", Way::Moved)];
        Seen { pushed, taken: vec![first, second], left: vec!["0-4".into()], ..Seen::default() }
    }

    #[test]
    fn what_is_wrong_with_queues_is_told() {
        assert!(!judge(&good()).is_any());
        let mut seen = good();
        seen.taken[1].push(taken("0-0", Way::Moved));
        assert_eq!(judge(&seen).twice, ["0-0"]);
        let mut seen = good();
        seen.left.push("0-4".into());
        assert_eq!(judge(&seen).twice, ["0-4"]);
        let mut seen = good();
        seen.pushed.insert("0-3".into(), push(Pushed::Refused));
        assert_eq!(judge(&seen).from_nowhere, ["0-3"]);
        let mut seen = good();
        seen.taken[0].push(taken("1-0", Way::First));
        assert_eq!(judge(&seen).from_nowhere, ["1-0"]);
        let mut seen = good();
        seen.taken[0].swap(0, 1);
        assert_eq!(judge(&seen).out_of_order, ["0-0"]);
        // An element that no worker reported: a pop whose client died may have taken it, a move may
        // not.
        let mut seen = good();
        seen.taken[1].pop();
        seen.moves_unknown = 1;
        assert_eq!(judge(&seen).lost, ["0-1"]);
        seen.unknown = vec![LostPop { queues: vec![1], until_ns: 60 }];
        assert!(!judge(&seen).is_any());
        seen.pushed.insert("0-1".into(), push(Pushed::Unknown));
        seen.unknown.clear();
        assert!(!judge(&seen).is_any());
    }

    /// A pop of unknown outcome explains one element, of its queues and its time.
    #[test]
    fn bug_25_6_a_lost_pop_explains_one_element_that_it_could_take() {
        let mut seen = good();
        seen.taken[1].clear();
        let pop = |queue, until_ns| LostPop { queues: vec![0, queue], until_ns };
        // There are more lost pops than elements, and only one of them may have taken one.
        seen.unknown = vec![pop(2, 60), pop(3, 60), pop(1, 49), pop(1, 60)];
        assert_eq!(judge(&seen).lost, ["0-3"]);
        seen.unknown.push(pop(1, 50));
        assert!(!judge(&seen).is_any());
        // The first can choose between two pops, and has to leave one to the second.
        seen.pushed.insert("0-3".into(), Push { queue: 2, ..push(Pushed::Done) });
        seen.unknown = vec![LostPop { queues: vec![1, 2], until_ns: 60 }, pop(1, 60)];
        assert!(!judge(&seen).is_any());
        seen.is_left_unknown = true;
        seen.unknown.clear();
        assert!(judge(&seen).lost.is_empty());
    }
}
