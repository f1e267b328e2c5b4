//! The verdict on a history, and the reasons for it.

use std::cell::Cell;
use std::fmt;

use serde::Serialize;

use crate::Operation;
use crate::history::{Shown, json_bytes};
use crate::model::{State, Value, Want, step};
use crate::plan::Plan;
use crate::search::Furthest;

/// The number of last operations in order that a violation shows.
const ORDER_SHOWN: usize = 8;
/// The number of operations of any other list that are shown.
const LIST_SHOWN: usize = 24;

/// The verdict on a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every key has an order.
    Ok,
    /// Some key has none.
    Violation,
    /// No violation was found, but a search gave up.
    Unknown,
    /// No violation was found, but too few operations were judged: see
    /// [`crate::Options::judged_percent_min`].
    #[serde(rename = "too little was judged")]
    TooLittle,
}

/// Counts of times to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expiries {
    /// Those set by operations with a reply.
    pub set: usize,
    /// Those of them that were judged: the next operation that looked at the key was called when
    /// the key had to be gone.
    pub judged: usize,
}

impl Expiries {
    /// Adds the counts of another key.
    pub fn add(&mut self, other: Expiries) {
        self.set += other.set;
        self.judged += other.judged;
    }
}

/// A key whose operations have no order.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// The key.
    #[serde(with = "json_bytes")]
    pub key: Vec<u8>,
    /// The number of completed operations on the key.
    pub operations: usize,
    /// The number of operations of unknown outcome on the key that could matter.
    pub unknown: usize,
    /// The number of completed operations that could be put in order.
    pub ordered: usize,
    /// The last of them, in that order.
    pub last_ordered: Vec<Operation>,
    /// The state of the key after them.
    pub state: String,
    /// The operations of which one had to come next, though each was answered as no store in that
    /// state would.
    pub stuck: Vec<Stuck>,
    /// A part of the history that has no order either, whatever the outcome of all other writes
    /// after its first operation; by call. Empty if none was found in bounded time.
    pub counterexample: Vec<Operation>,
    /// The other writes of values that the counterexample's operations saw.
    pub writers: Vec<Operation>,
}

/// An operation that could not come next.
#[derive(Clone, Debug, Serialize)]
pub struct Stuck {
    /// The operation.
    pub operation: Operation,
    /// The reply that the model gives in that state.
    pub model: String,
}

/// A key whose search gave up.
#[derive(Clone, Debug, Serialize)]
pub struct GaveUp {
    /// The key.
    #[serde(with = "json_bytes")]
    pub key: Vec<u8>,
    /// The resource or limit that ran out.
    pub why: String,
    /// The place where the search was stuck: a violation that is not proven.
    pub suspect: Option<Violation>,
}

/// The result of a check, for people (`Display`) and for programs ([`Report::to_json`]).
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The verdict.
    pub verdict: Verdict,
    /// The number of operations in the history.
    pub operations: usize,
    /// The number of keys that they name.
    pub keys: usize,
    /// The number of operations of unknown outcome.
    pub unknown: usize,
    /// The number of operations whose reply is an error that says that nothing was executed.
    pub refused: usize,
    /// The number of operations whose replies were compared with the model: all others.
    pub judged: usize,
    /// The times to live that were set, and how many of them could be judged.
    pub expiries: Expiries,
    /// The configurations visited, over all keys.
    pub configurations: usize,
    /// The duration of the check in ms.
    pub elapsed_ms: u64,
    /// The keys without an order, by key.
    pub violations: Vec<Violation>,
    /// The keys whose search gave up, by key.
    pub gave_up: Vec<GaveUp>,
}

impl Report {
    /// Whether every key has an order.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.verdict == Verdict::Ok
    }

    /// Whether too few of the operations were judged to conclude anything.
    #[must_use]
    pub fn is_too_little(&self) -> bool {
        crate::is_too_little(self.judged, self.operations)
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Violation {
    /// A violation by a count of keys that is below the least or above the most that there can have
    /// been.
    pub(crate) fn of_count(operation: Operation, least: i64, most: i64) -> Violation {
        Violation {
            key: operation.cmd.first().cloned().unwrap_or_default(),
            operations: 1,
            unknown: 0,
            ordered: 0,
            last_ordered: Vec::new(),
            state: "all keys".to_owned(),
            stuck: vec![Stuck { operation, model: format!("{least} to {most}") }],
            counterexample: Vec::new(),
            writers: Vec::new(),
        }
    }

    /// A violation by a reply of KEYS that names a key twice.
    pub(crate) fn of_keys(operation: Operation, key: &[u8]) -> Violation {
        let mut violation = Violation::of_count(operation, 0, 0);
        violation.stuck[0].model = format!("each key once, and not {} twice", Shown(key));
        violation
    }

    pub(crate) fn new(
        key: &[u8],
        plan: &Plan<'_>,
        found: &Furthest,
        operations: &[Operation],
    ) -> Violation {
        let done = |index: &u32| &plan.done[*index as usize];
        let shown = found.order.len().saturating_sub(ORDER_SHOWN);
        let stuck = found.stuck.iter().map(|index| {
            let op = done(index);
            let overdue = found.state.expiry.is_some_and(|e| op.moment.call_ns > e.latest_ns);
            let missing = State::default();
            let state = if overdue { &missing } else { &found.state };
            let told = Cell::new(None);
            step(state, &op.command, Want::Tell(&told), &op.moment);
            let model = told.take().map_or_else(String::new, |reply| reply.to_string());
            Stuck { operation: operations[op.source as usize].clone(), model }
        });
        Violation {
            key: key.to_vec(),
            operations: plan.done.len(),
            unknown: plan.open.len(),
            ordered: found.order.len(),
            last_ordered: found.order[shown..]
                .iter()
                .map(|index| operations[done(index).source as usize].clone())
                .collect(),
            state: describe(&found.state),
            stuck: stuck.collect(),
            counterexample: Vec::new(),
            writers: Vec::new(),
        }
    }
}

fn describe(state: &State) -> String {
    let list = |items: &mut dyn Iterator<Item = String>| {
        let mut shown: Vec<String> = items.take(LIST_SHOWN + 1).collect();
        if shown.len() > LIST_SHOWN {
            shown[LIST_SHOWN] = "...".to_owned();
        }
        shown.join(", ")
    };
    let text = |bytes: &[u8]| Shown(bytes).to_string();
    let value = match &state.value {
        Value::Missing => "missing".to_owned(),
        // The value that the plan substitutes for values that no operation saw.
        Value::Str(value) if !value.is_empty() && value.iter().all(|b| *b == 0xff) => {
            format!("{} bytes that some write of unknown outcome left", value.len())
        }
        Value::Str(value) => text(value),
        Value::List(items) => format!("list [{}]", list(&mut items.iter().map(|i| text(i)))),
        Value::Set(items) => format!("set {{{}}}", list(&mut items.iter().map(|i| text(i)))),
        Value::Hash(fields) => {
            let pairs = &mut fields.iter().map(|(f, v)| format!("{}: {}", text(f), text(v)));
            format!("hash {{{}}}", list(pairs))
        }
        Value::Sorted(ranked) => {
            let pairs =
                &mut ranked.iter().map(|(score, member)| format!("{score}: {}", text(member)));
            format!("sorted set {{{}}}", list(pairs))
        }
    };
    match state.expiry {
        None => value,
        Some(expiry) => {
            let ms = |ns: u64| ns / 1_000_000;
            match expiry.latest_ns {
                u64::MAX => format!("{value}, may expire from {} ms", ms(expiry.earliest_ns)),
                latest_ns => format!(
                    "{value}, expires between {} and {} ms",
                    ms(expiry.earliest_ns),
                    ms(latest_ns)
                ),
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "linearizable",
            Verdict::Violation => "NOT LINEARIZABLE",
            Verdict::Unknown => "UNKNOWN: the search gave up",
            Verdict::TooLittle => "TOO LITTLE WAS JUDGED",
        };
        writeln!(
            f,
            "{verdict}: {} operations on {} keys, {} judged, {} of unknown outcome, {} refused; \
             {} of {} times to live judged; {} configurations in {} ms",
            self.operations,
            self.keys,
            self.judged,
            self.unknown,
            self.refused,
            self.expiries.judged,
            self.expiries.set,
            self.configurations,
            self.elapsed_ms
        )?;
        for violation in &self.violations {
            write!(f, "\nkey {}: no order. {violation}", Shown(&violation.key))?;
        }
        for gave_up in &self.gave_up {
            writeln!(f, "\nkey {}: gave up, out of {}.", Shown(&gave_up.key), gave_up.why)?;
            gave_up.suspect.iter().try_for_each(|suspect| write!(f, "{suspect}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "The longest order found has {} of {} completed operations; {} of unknown outcome \
             could come in anywhere. Times in ms.",
            self.ordered, self.operations, self.unknown
        )?;
        if !self.last_ordered.is_empty() {
            writeln!(f, "  the last of the longest order:")?;
            self.last_ordered.iter().try_for_each(|op| writeln!(f, "    {op}"))?;
        }
        writeln!(f, "  then the key is: {}", self.state)?;
        writeln!(f, "  and none of those that may be next can be:")?;
        for stuck in self.stuck.iter().take(LIST_SHOWN) {
            writeln!(f, "    {}  (a store would answer {})", stuck.operation, stuck.model)?;
        }
        if self.counterexample.is_empty() {
            return Ok(());
        }
        writeln!(f, "  these have no order, even if all other writes took effect late or never:")?;
        show(f, &self.counterexample)?;
        if self.writers.is_empty() {
            return Ok(());
        }
        writeln!(f, "  and these wrote what they saw:")?;
        show(f, &self.writers)
    }
}

fn show(f: &mut fmt::Formatter<'_>, operations: &[Operation]) -> fmt::Result {
    operations.iter().take(LIST_SHOWN).try_for_each(|op| writeln!(f, "    {op}"))?;
    match operations.len().saturating_sub(LIST_SHOWN) {
        0 => Ok(()),
        more => writeln!(f, "    and {more} more"),
    }
}
