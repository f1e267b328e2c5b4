//! Strict serializability: histories known good and known bad, and small random ones against every
//! order.

use concord_core::Rng;

use crate::serial::{Access, Anomaly, Transaction, check_transactions};
use Access::{Append, List, Read, Write};

const X: u64 = 1;
const Y: u64 = 2;

fn at(call_ns: u64, return_ns: u64, accesses: &[Access]) -> Transaction {
    Transaction { call_ns, return_ns: Some(return_ns), accesses: accesses.to_vec() }
}

fn unknown(call_ns: u64, accesses: &[Access]) -> Transaction {
    Transaction { call_ns, return_ns: None, accesses: accesses.to_vec() }
}

fn is_cycle(history: &[Transaction]) -> bool {
    matches!(check_transactions(history), Err(Anomaly::Cycle(_)))
}

#[test]
fn transactions_that_have_an_order_are_accepted() {
    let lists = [
        at(0, 10, &[Append(X, 1), Append(Y, 1)]),
        at(5, 20, &[List(X, vec![1]), Append(X, 2), List(X, vec![1, 2])]),
        at(12, 30, &[List(X, vec![1, 2]), List(Y, vec![1])]),
        // It was executed, though its client does not know.
        unknown(14, &[Append(Y, 3)]),
        at(40, 50, &[List(Y, vec![1, 3])]),
        unknown(45, &[Append(Y, 4)]),
    ];
    assert_eq!(check_transactions(&lists), Ok(()));
    let registers = [
        at(0, 10, &[Write(X, 1), Write(Y, 1)]),
        at(5, 20, &[Read(X, Some(1)), Write(X, 2), Read(X, Some(2))]),
        at(5, 9, &[Read(X, None), Read(Y, None)]),
        at(21, 30, &[Read(X, Some(2)), Read(Y, Some(1))]),
        unknown(22, &[Write(Y, 9)]),
    ];
    assert_eq!(check_transactions(&registers), Ok(()));
    assert_eq!(check_transactions(&[]), Ok(()));
}

#[test]
fn a_torn_read_of_two_keys_is_a_cycle() {
    let torn =
        [at(0, 10, &[Append(X, 1), Append(Y, 1)]), at(0, 10, &[List(X, vec![1]), List(Y, vec![])])];
    assert!(is_cycle(&torn));
    let torn =
        [at(0, 10, &[Write(X, 1), Write(Y, 1)]), at(0, 10, &[Read(X, Some(1)), Read(Y, None)])];
    assert!(is_cycle(&torn));
}

#[test]
fn a_long_fork_is_a_cycle() {
    // Two readers see two writes in either order; each key by itself is linearizable.
    let fork = [
        at(0, 100, &[Append(X, 1)]),
        at(0, 100, &[Append(Y, 1)]),
        at(0, 100, &[List(X, vec![1]), List(Y, vec![])]),
        at(0, 100, &[List(X, vec![]), List(Y, vec![1])]),
    ];
    assert!(is_cycle(&fork));
    for left_out in 0..4 {
        let mut rest = fork.to_vec();
        rest.remove(left_out);
        if left_out > 1 {
            assert_eq!(check_transactions(&rest), Ok(()));
        }
    }
}

#[test]
fn write_skew_and_a_lost_update_are_cycles() {
    let skew = [
        at(0, 10, &[List(X, vec![]), Append(Y, 1)]),
        at(0, 10, &[List(Y, vec![]), Append(X, 1)]),
        at(20, 30, &[List(X, vec![1]), List(Y, vec![1])]),
    ];
    assert!(is_cycle(&skew));
    let lost = [at(0, 10, &[Read(X, None), Write(X, 1)]), at(0, 10, &[Read(X, None), Write(X, 2)])];
    assert!(is_cycle(&lost));
}

#[test]
fn what_real_time_forbids_is_a_cycle() {
    let stale = [at(0, 10, &[Append(X, 1)]), at(11, 20, &[List(X, vec![])])];
    assert!(is_cycle(&stale));
    let concurrent = [at(0, 12, &[Append(X, 1)]), at(11, 20, &[List(X, vec![])])];
    assert_eq!(check_transactions(&concurrent), Ok(()));
    let stale =
        [at(0, 10, &[Write(X, 1)]), at(11, 20, &[Write(X, 2)]), at(21, 30, &[Read(X, Some(1))])];
    assert!(is_cycle(&stale));
}

#[test]
fn what_nobody_wrote_and_what_is_amid_a_transaction_is_told() {
    let bad = |history: &[Transaction]| check_transactions(history).unwrap_err();
    let unwritten = bad(&[at(0, 1, &[List(X, vec![7])])]);
    assert_eq!(unwritten, Anomaly::Unwritten { reader: 0, key: X, value: 7 });
    let amid = bad(&[at(0, 9, &[Append(X, 1), Append(X, 2)]), at(0, 9, &[List(X, vec![1])])]);
    assert!(matches!(amid, Anomaly::Intermediate { .. } | Anomaly::Cycle(_)), "{amid}");
    let amid = bad(&[at(0, 9, &[Write(X, 1), Write(X, 2)]), at(0, 9, &[Read(X, Some(1))])]);
    assert_eq!(amid, Anomaly::Intermediate { reader: 1, key: X });
    let orders = [
        at(0, 9, &[Append(X, 1)]),
        at(0, 9, &[Append(X, 2)]),
        at(0, 9, &[List(X, vec![1, 2])]),
        at(0, 9, &[List(X, vec![2])]),
    ];
    assert_eq!(bad(&orders), Anomaly::Order { reader: 3, key: X });
    let own = bad(&[at(0, 9, &[Append(X, 1), List(X, vec![])])]);
    assert_eq!(own, Anomaly::Internal { reader: 0, key: X });
    let twice = bad(&[at(0, 9, &[Append(X, 1)]), at(0, 9, &[List(X, vec![1, 1])])]);
    assert_eq!(twice, Anomaly::Order { reader: 1, key: X });
}

#[test]
fn a_cycle_is_told_in_words() {
    let torn =
        [at(0, 10, &[Append(X, 1), Append(Y, 1)]), at(0, 10, &[List(X, vec![1]), List(Y, vec![])])];
    let anomaly = check_transactions(&torn).unwrap_err();
    assert_eq!(anomaly.transactions(), [0, 1]);
    let text = anomaly.to_string();
    assert_eq!(text, "0 (what it wrote of key 1 was seen by) -> 1 (of key 2 it did not see) -> 0");
}

/// A few transactions that were executed at moments within their calls, on lists or on registers;
/// then every key is read.
fn executed(rng: &mut Rng, lists: bool) -> Vec<Transaction> {
    let count = 2 + rng.below(4);
    let mut calls: Vec<(u64, u64, u64)> = (0..count)
        .map(|_| {
            let moment = rng.below(100);
            (moment, moment.saturating_sub(rng.below(30)), moment + 1 + rng.below(30))
        })
        .collect();
    calls.sort_unstable();
    let (mut state, mut next) = (vec![Vec::new(); 3], 0);
    let mut history = Vec::new();
    for (_, call_ns, return_ns) in calls {
        let is_unknown = rng.chance(1, 8);
        let mut accesses = Vec::new();
        for _ in 0..1 + rng.below(3) {
            let key = rng.below(3);
            let own: &mut Vec<u64> = &mut state[key as usize];
            match (rng.chance(1, 2) && !is_unknown, lists) {
                (true, true) => accesses.push(List(key, own.clone())),
                (true, false) => accesses.push(Read(key, own.last().copied())),
                (false, _) => {
                    next += 1;
                    own.push(next);
                    accesses.push(if lists { Append(key, next) } else { Write(key, next) });
                }
            }
        }
        let return_ns = (!is_unknown).then_some(return_ns);
        history.push(Transaction { call_ns, return_ns, accesses });
    }
    let all = |key: u64| match lists {
        true => List(key, state[key as usize].clone()),
        false => Read(key, state[key as usize].last().copied()),
    };
    history.push(at(1_000, 1_010, &[all(0), all(1), all(2)]));
    history
}

/// Whether some order of the transactions, of which those of unknown outcome may be left out,
/// explains all.
fn has_order(history: &[Transaction], done: u32, state: &[Vec<u64>]) -> bool {
    let is_left = |at: usize| done & (1 << at) == 0;
    let open = || (0..history.len()).filter(|at| is_left(*at) && history[*at].return_ns.is_some());
    if open().next().is_none() {
        return true;
    }
    let first_return = open().filter_map(|at| history[at].return_ns).min().unwrap_or(u64::MAX);
    for at in (0..history.len()).filter(|at| is_left(*at)) {
        if history[at].call_ns > first_return {
            continue;
        }
        let mut state = state.to_vec();
        let fits = history[at].accesses.iter().all(|access| match access {
            Append(key, value) | Write(key, value) => {
                state[*key as usize].push(*value);
                true
            }
            List(key, values) => state[*key as usize] == *values,
            Read(key, value) => state[*key as usize].last() == value.as_ref(),
        });
        if fits && has_order(history, done | 1 << at, &state) {
            return true;
        }
    }
    false
}

#[test]
fn small_histories_agree_with_every_order() {
    let (mut bad, mut missed) = (0, 0);
    for seed in 0..4_000 {
        let mut rng = Rng::new(seed);
        let lists = rng.chance(1, 2);
        let mut history = executed(&mut rng, lists);
        assert_eq!(check_transactions(&history), Ok(()), "seed {seed}: {history:#?}");
        // A reply of another moment, or another time.
        for _ in 0..1 + rng.below(2) {
            let at = rng.below(history.len() as u64) as usize;
            match rng.below(3) {
                0 => {
                    let access = history[at].accesses.iter_mut().find_map(|access| match access {
                        List(_, values) if !values.is_empty() => Some(values),
                        _ => None,
                    });
                    if let Some(values) = access {
                        values.pop();
                    }
                }
                1 => {
                    let later = 20 + rng.below(60);
                    let own = &mut history[at];
                    own.call_ns += later;
                    own.return_ns = own.return_ns.map(|at| at + later);
                }
                _ => {
                    let other = rng.below(history.len() as u64) as usize;
                    let times = (history[at].call_ns, history[at].return_ns);
                    if times.1.is_some() && history[other].return_ns.is_some() {
                        let own = (history[other].call_ns, history[other].return_ns);
                        (history[at].call_ns, history[at].return_ns) = own;
                        (history[other].call_ns, history[other].return_ns) = times;
                    }
                }
            }
        }
        let (found, is_right) =
            (check_transactions(&history), has_order(&history, 0, &vec![vec![]; 3]));
        bad += u32::from(!is_right);
        if found.is_err() {
            assert!(!is_right, "seed {seed}: {found:?}: {history:#?}");
        } else if lists {
            assert!(is_right, "seed {seed}: {history:#?}");
        } else {
            missed += u32::from(!is_right);
        }
    }
    assert!(bad > 800, "too few histories are bad: {bad}");
    assert!(missed < bad / 5, "of registers {missed} of {bad} bad histories were not found");
}
