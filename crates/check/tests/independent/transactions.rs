//! Transactions of lists and registers.

use std::collections::{BTreeMap, HashSet};

use concord_check::Access::{Append, List, Read, Write};
use concord_check::{Access, Decision, Transaction, check_transactions};
use concord_core::Rng;

use super::{histories, moments};

/// All lists, and all registers as lists of what was written.
pub type State = BTreeMap<(bool, u64), Vec<u64>>;

fn list(state: &State, key: u64) -> Vec<u64> {
    state.get(&(true, key)).cloned().unwrap_or_default()
}

fn register(state: &State, key: u64) -> Option<u64> {
    state.get(&(false, key)).and_then(|all| all.last().copied())
}

fn write(state: &mut State, access: &Access) {
    match access {
        Append(key, value) => state.entry((true, *key)).or_default().push(*value),
        // What was overwritten is of no more use.
        Write(key, value) => *state.entry((false, *key)).or_default() = vec![*value],
        List(..) | Read(..) => {}
    }
}

/// Whether some order explains all: each is tried.
pub fn has_order(history: &[Transaction]) -> bool {
    any_order(history, 0, &State::new(), &mut HashSet::new())
}

fn any_order(
    history: &[Transaction],
    done: u64,
    state: &State,
    seen: &mut HashSet<(u64, State)>,
) -> bool {
    let left = || (0..history.len()).filter(|at| done >> at & 1 == 0);
    let Some(first_ns) = left().filter_map(|at| history[at].return_ns).min() else { return true };
    if !seen.insert((done, state.clone())) {
        return false;
    }
    left().filter(|at| history[*at].call_ns <= first_ns).any(|at| {
        let mut next = state.clone();
        let fits = history[at].accesses.iter().all(|access| {
            write(&mut next, access);
            match access {
                List(key, values) => list(&next, *key) == *values,
                Read(key, value) => register(&next, *key) == *value,
                Append(..) | Write(..) => true,
            }
        });
        fits && any_order(history, done | 1 << at, &next, seen)
    })
}

/// What a store does wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// Some of the keys of an MSET are written, and later the others.
    TornWrite,
    /// Some of the keys of an MGET are read, and later the others.
    TornRead,
    /// All keys of an MGET are read as they were a while ago.
    StaleRead,
    /// A transaction reads what another overwrites, and overwrites that.
    LostUpdate,
    /// A transaction reads two keys, another writes the one, and it writes the other.
    WriteSkew,
}

/// What clients are to do: its accesses, whose reads are filled in when they are executed.
fn draw(rng: &mut Rng, wrong: Wrong, next: &mut u64) -> Vec<Access> {
    let mut value = || {
        *next += 1;
        *next
    };
    let keys = 2;
    match wrong {
        Wrong::Nothing => (0..1 + rng.below(3))
            .map(|_| match (rng.below(3), rng.below(4)) {
                (key, 0) => Append(key, value()),
                (key, 1) => List(key, Vec::new()),
                (key, 2) => Write(key, value()),
                (key, _) => Read(key, None),
            })
            .collect(),
        Wrong::LostUpdate if rng.chance(2, 3) => {
            let key = rng.below(keys);
            vec![Read(key, None), Write(key, value())]
        }
        Wrong::WriteSkew if rng.chance(2, 3) => {
            vec![Read(0, None), Read(1, None), Write(rng.below(keys), value())]
        }
        _ if rng.chance(1, 2) => (0..keys).map(|key| Write(key, value())).collect(),
        _ => (0..keys).map(|key| Read(key, None)).collect(),
    }
}

fn with_reads(state: &State, access: &Access) -> Access {
    match access {
        List(key, _) => List(*key, list(state, *key)),
        Read(key, _) => Read(*key, register(state, *key)),
        Append(..) | Write(..) => access.clone(),
    }
}

/// What a store's clients see: each transaction is executed at its moment.
pub fn run(rng: &mut Rng, count: u64, wrong: Wrong) -> Vec<Transaction> {
    let moments = moments(rng, count, 1_000);
    let victim = rng.below(count);
    let (mut state, mut history, mut next) = (State::new(), Vec::new(), 0);
    let (mut states, mut is_spent) = (vec![State::new()], wrong == Wrong::Nothing);
    // What a torn transaction has yet to do: writes, or reads of a transaction.
    let mut rest: Option<(usize, Access)> = None;
    for (number, (_, [call_ns, _, return_ns])) in (0..).zip(moments) {
        let own = draw(rng, wrong, &mut next);
        let reads = own.iter().all(|access| matches!(access, Read(..) | List(..)));
        let writes = own.iter().all(|access| matches!(access, Write(..) | Append(..)));
        let is_wrong = number >= victim && !is_spent;
        let stale = states[states.len().saturating_sub(2 + rng.below(2) as usize)].clone();
        let done = rest.take();
        let mut accesses = Vec::new();
        let torn = match wrong {
            Wrong::TornWrite => writes,
            Wrong::TornRead => reads,
            _ => false,
        };
        let is_stale = is_wrong
            && match wrong {
                Wrong::StaleRead => reads,
                Wrong::LostUpdate | Wrong::WriteSkew => !reads && !writes,
                _ => false,
            };
        for access in own {
            if is_wrong && torn && accesses.len() == 1 {
                rest = Some((history.len(), access.clone()));
                is_spent = true;
                accesses.push(access);
                continue;
            }
            let mut of = state.clone();
            if is_stale {
                of.clone_from(&stale);
                is_spent = true;
            }
            write(&mut of, &access);
            write(&mut state, &access);
            accesses.push(with_reads(&of, &access));
        }
        let only_writes = accesses.iter().all(|access| matches!(access, Append(..) | Write(..)));
        let is_known = !only_writes || !rng.chance(1, 8);
        let return_ns = is_known.then_some(return_ns);
        history.push(Transaction { call_ns, return_ns, accesses });
        if let Some((at, access)) = done {
            write(&mut state, &access);
            if let Some(last) = history[at].accesses.last_mut() {
                *last = with_reads(&state, &access);
            }
        }
        states.push(state.clone());
    }
    history
}

/// A read sees something else, or a transaction has other times.
fn mutate(rng: &mut Rng, history: &mut [Transaction]) {
    let at = rng.below(history.len() as u64) as usize;
    let other = rng.below(history.len() as u64) as usize;
    let theirs = history[other].accesses.clone();
    let own = &mut history[at];
    if own.return_ns.is_none() {
        return;
    }
    if rng.chance(1, 3) {
        let by = rng.below(6_000);
        own.call_ns += by;
        own.return_ns = own.return_ns.map(|at| at + by);
        return;
    }
    for access in &mut own.accesses {
        for theirs in &theirs {
            match (&mut *access, theirs) {
                (Read(key, value), Write(of, written)) if key == of => *value = Some(*written),
                (Read(key, value), Read(of, seen)) if key == of => *value = *seen,
                (List(key, values), Append(of, written)) if key == of => values.push(*written),
                (List(key, values), List(of, seen)) if key == of => values.clone_from(seen),
                _ => {}
            }
        }
    }
    let index = rng.below(own.accesses.len() as u64) as usize;
    match &mut own.accesses[index] {
        List(_, values) if values.len() > 1 && rng.chance(1, 2) => values.swap(0, 1),
        List(_, values) if rng.chance(1, 4) => drop(values.pop()),
        _ if rng.chance(1, 4) => own.accesses.reverse(),
        _ => {}
    }
}

/// Whether there is an order, as the checker says.
pub fn is_accepted(history: &[Transaction]) -> bool {
    match check_transactions(history) {
        Ok(Decision::Ordered(order)) => {
            assert!(concord_check::is_order(history, &order));
            true
        }
        Ok(Decision::Open(why)) => panic!("{why}: {history:#?}"),
        Err(_) => false,
    }
}

#[test]
fn transactions_agree_with_every_order() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..histories() {
        let mut rng = Rng::new(seed);
        let kinds = [Wrong::Nothing, Wrong::TornWrite, Wrong::TornRead, Wrong::LostUpdate];
        let (kind, count) = (kinds[rng.below(4) as usize], 3 + rng.below(6));
        let mut history = run(&mut rng, count, kind);
        for _ in 0..3 {
            let expected = has_order(&history);
            (good, bad) = (good + u64::from(expected), bad + u64::from(!expected));
            assert_eq!(is_accepted(&history), expected, "seed {seed}: {history:#?}");
            mutate(&mut rng, &mut history);
        }
    }
    assert!(good * 2 > histories() && bad * 4 > histories(), "{good} good, {bad} bad");
}
