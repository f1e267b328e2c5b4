//! The elements of queues that were taken, and violations among them.

use std::collections::BTreeMap;

/// How an element got to its worker.
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

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It was acknowledged.
    Done,
    /// It was not executed, and never will be.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// What all of them saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Elements: producer and number.
    pub(super) pushed: BTreeMap<String, Pushed>,
    /// What each worker took, in its order.
    pub(super) taken: Vec<Vec<Taken>>,
    /// What was left in queues.
    pub(super) left: Vec<String>,
    /// Pops that may have taken an element for nobody.
    pub(super) unknown: u64,
    /// Moves of which nobody was told.
    pub(super) moves_unknown: u64,
    /// Workers that died.
    pub(super) died: u64,
    pub(super) errors: BTreeMap<String, u64>,
}

/// What is wrong with what was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Elements that went to several workers, or to one several times.
    pub(super) twice: Vec<String>,
    /// Elements that nobody has pushed, or whose push was refused.
    pub(super) from_nowhere: Vec<String>,
    /// Elements whose pushes were acknowledged and that went to nobody, more than pops were lost.
    pub(super) lost: Vec<String>,
    /// Elements of one producer that a worker popped from one end of a queue in another order than
    /// they were pushed.
    pub(super) out_of_order: Vec<String>,
}

impl Wrong {
    pub(super) fn is_any(&self) -> bool {
        *self != Wrong::default()
    }
}

/// Producer and number of an element.
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
        if matches!(seen.pushed.get(*element), None | Some(Pushed::Refused)) {
            wrong.from_nowhere.push((*element).to_string());
        }
    }
    let is_lost = |(element, pushed): &(&String, &Pushed)| {
        **pushed == Pushed::Done && !count.contains_key(element.as_str())
    };
    let lost: Vec<String> =
        seen.pushed.iter().filter(is_lost).map(|(element, _)| element.clone()).collect();
    if lost.len() as u64 > seen.unknown {
        wrong.lost = lost;
    }
    for taken in &seen.taken {
        let mut last: BTreeMap<(u64, &str), u64> = BTreeMap::new();
        for taken in taken.iter().filter(|taken| taken.way == Way::First) {
            // What was pushed late came behind others.
            let is_known = seen.pushed.get(&taken.element) == Some(&Pushed::Done);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(element: &str, way: Way) -> Taken {
        Taken { queue: 1, element: element.into(), way }
    }

    /// Two workers took four of five elements, and one is left.
    fn good() -> Seen {
        let pushed = (0..5).map(|n| (format!("0-{n}"), Pushed::Done)).collect();
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
        seen.pushed.insert("0-3".into(), Pushed::Refused);
        assert_eq!(judge(&seen).from_nowhere, ["0-3"]);
        let mut seen = good();
        seen.taken[0].push(taken("1-0", Way::First));
        assert_eq!(judge(&seen).from_nowhere, ["1-0"]);
        let mut seen = good();
        seen.taken[0].swap(0, 1);
        assert_eq!(judge(&seen).out_of_order, ["0-0"]);
        // One that nobody was told of: a pop whose client died may have taken it, a move may not.
        let mut seen = good();
        seen.taken[1].pop();
        seen.moves_unknown = 1;
        assert_eq!(judge(&seen).lost, ["0-1"]);
        seen.unknown = 1;
        assert!(!judge(&seen).is_any());
        seen.pushed.insert("0-1".into(), Pushed::Unknown);
        seen.unknown = 0;
        assert!(!judge(&seen).is_any());
    }
}
