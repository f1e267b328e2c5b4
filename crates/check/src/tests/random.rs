//! Random histories: what is linearizable by construction is accepted, and on small histories the
//! verdict is that of the brute-force checker.

use std::time::Instant;

use concord_core::Rng;

use super::brute::is_linearizable;
use super::generate::{
    Shape, any_command, atomic_history, counter_command, exec_command, list_command, mixed_command,
    pipelined, string_command,
};
use super::{exact, op_of, verdict};
use crate::command::parse;
use crate::model::is_inert;
use crate::op::Op;
use crate::start::{Tries, latest_start, until};
use crate::{Operation, Options, Reply, Verdict, check};

/// Gives one operation the reply of another, or a random one.
fn mutate(rng: &mut Rng, history: &mut [Operation]) {
    let at = rng.below(history.len() as u64) as usize;
    let other = rng.below(history.len() as u64) as usize;
    if history[at].reply.is_none() {
        return;
    }
    let reply = match (rng.below(4), history[other].reply.clone()) {
        (0 | 1, Some(reply)) => reply,
        (2, _) => Reply::Int(rng.below(3) as i64),
        _ => Reply::bulk(rng.below(3).to_string()),
    };
    history[at].reply = Some(reply);
}

fn agree_with_brute_force(seeds: std::ops::Range<u64>, unit_ns: u64, open_per_mille: u64) {
    let mut bad = 0;
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            clients: 4,
            operations: 3 + rng.below(5),
            open_per_mille,
            unit_ns,
            slow_per_mille: 0,
            slow_times: 1,
            keys: 1,
            commands: if rng.chance(1, 2) { any_command } else { mixed_command },
        };
        let mut history = atomic_history(&mut rng, &shape);
        assert_eq!(verdict(&history), Verdict::Ok, "seed {seed}: {history:#?}");
        assert!(is_linearizable(&history), "seed {seed}: {history:#?}");
        for _ in 0..3 {
            mutate(&mut rng, &mut history);
            let expected = is_linearizable(&history);
            bad += u64::from(!expected);
            let expected = if expected { Verdict::Ok } else { Verdict::Violation };
            assert_eq!(verdict(&history), expected, "seed {seed}: {history:#?}");
        }
    }
    assert!(bad > count / 2, "too few of the histories are bad: {bad} of {}", 3 * count);
}

#[test]
fn small_histories_agree_with_brute_force() {
    agree_with_brute_force(0..3000, 100, 100);
}

#[test]
fn small_histories_with_expiry_agree_with_brute_force() {
    // Times to live of 1 ms pass while operations of a few hundred us go on.
    agree_with_brute_force(10_000..13_000, 100_000, 100);
}

/// Small histories of many unknown outcomes agree with brute force.
#[test]
fn brute_force_agrees_on_unknown_outcomes() {
    agree_with_brute_force(20_000..23_000, 100_000, 500);
}

/// Elements of their own, pushed on both sides and seen: the order that a list shows is no more
/// than what is so in every order.
#[test]
fn small_histories_of_lists_agree_with_brute_force() {
    let (mut bad, mut reordered) = (0, 0);
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            clients: 4,
            operations: 4 + rng.below(5),
            open_per_mille: 100,
            unit_ns: 100_000,
            slow_per_mille: 0,
            slow_times: 1,
            keys: 1,
            commands: |rng, n| match rng.below(10) {
                0 => "LPOP k".into(),
                1 => format!("LPUSH k e{}", n / 2),
                2 => format!("EXEC 3 RPUSH k e{n} 3 LPUSH k f{n}"),
                3 => format!("RPUSH k e{n} f{n}"),
                4 | 5 => format!("LPUSH k e{n}"),
                6 | 7 => format!("RPUSH k e{n}"),
                _ => "LRANGE k 0 -1".into(),
            },
        };
        let mut history = atomic_history(&mut rng, &shape);
        for operation in &mut history {
            if operation.reply.is_some() && rng.chance(1, 3) {
                operation.reply = Some(Reply::Unseen);
            }
        }
        assert_eq!(verdict(&history), Verdict::Ok, "seed {seed}: {history:#?}");
        let lists = history.iter_mut().filter_map(|operation| match &mut operation.reply {
            Some(Reply::Array(items)) if items.len() > 1 => Some(items),
            _ => None,
        });
        for items in lists {
            let at = rng.below(items.len() as u64 - 1) as usize;
            items.swap(at, at + 1);
            reordered += 1;
        }
        let expected = is_linearizable(&history);
        bad += u64::from(!expected);
        let expected = if expected { Verdict::Ok } else { Verdict::Violation };
        assert_eq!(verdict(&history), expected, "seed {seed}: {history:#?}");
    }
    assert!(bad > 200 && reordered > 2 * bad / 3, "too few: {bad}, {reordered}");
}

/// Two operations of a client change places in its pipeline.
fn swap(rng: &mut Rng, history: &mut [Operation]) {
    let (at, other) = (rng.below(history.len() as u64), rng.below(history.len() as u64));
    let (at, other) = (at as usize, other as usize);
    let is_same = history[at].client == history[other].client;
    if is_same && history[at].call_ns == history[other].call_ns {
        (history[at].ordinal, history[other].ordinal) =
            (history[other].ordinal, history[at].ordinal);
    }
}

/// Some clients send ahead, some commands are several at once, and of some executed ones nobody
/// knows what they answered.
#[test]
fn brute_force_agrees_on_pipelines_and_transactions() {
    let (mut bad, mut by_order) = (0, 0);
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            clients: 3,
            operations: 3 + rng.below(5),
            open_per_mille: 100,
            unit_ns: if rng.chance(1, 2) { 100 } else { 100_000 },
            slow_per_mille: 0,
            slow_times: 1,
            keys: 1,
            commands: exec_command,
        };
        let mut history = atomic_history(&mut rng, &shape);
        pipelined(&mut rng, &mut history);
        for operation in &mut history {
            if operation.reply.is_some() && rng.chance(1, 10) {
                operation.reply = Some(Reply::Unseen);
            }
        }
        assert_eq!(verdict(&history), Verdict::Ok, "seed {seed}: {history:#?}");
        assert!(is_linearizable(&history), "seed {seed}: {history:#?}");
        for _ in 0..3 {
            if rng.chance(1, 2) {
                mutate(&mut rng, &mut history);
            } else {
                swap(&mut rng, &mut history);
            }
            let expected = is_linearizable(&history);
            let mut unordered = history.clone();
            unordered.iter_mut().for_each(|operation| operation.ordinal = None);
            bad += u64::from(!expected);
            by_order += u64::from(!expected && is_linearizable(&unordered));
            let expected = if expected { Verdict::Ok } else { Verdict::Violation };
            assert_eq!(verdict(&history), expected, "seed {seed}: {history:#?}");
        }
    }
    assert!(bad > 1_000 && by_order > 100, "too few are bad: {bad}, {by_order} by their order");
}

#[test]
fn what_is_minimised_has_no_order_and_only_says_less() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            clients: 3,
            operations: 7,
            open_per_mille: 200,
            unit_ns: 100_000,
            slow_per_mille: 0,
            slow_times: 1,
            keys: 1,
            commands: any_command,
        };
        let mut history = atomic_history(&mut rng, &shape);
        mutate(&mut rng, &mut history);
        let report = check(&history, &exact()).unwrap();
        let Some(violation) = report.violations.first() else { continue };
        let core = &violation.counterexample;
        let listed: String = history.iter().map(|o| format!("{o}\n")).collect();
        let known = !core.is_empty() && core.iter().all(|o| history.contains(o));
        assert!(known, "seed {seed}:\n{listed}{report}");
        // The others that changed anything since the first do not help without their outcome.
        let mut relaxed = history.clone();
        let since = |o: &Operation| o.return_ns.is_some_and(|at| at >= core[0].call_ns);
        relaxed.retain(|o| core.contains(o) || !changed_nothing(o));
        for operation in relaxed.iter_mut().filter(|o| since(o) && !core.contains(o)) {
            (operation.return_ns, operation.reply) = (None, None);
        }
        assert!(
            !is_linearizable(&relaxed) || has_equal_operations(&history),
            "seed {seed}:\n{listed}{report}"
        );
    }
}

fn changed_nothing(operation: &Operation) -> bool {
    let (_, command) = parse(&operation.cmd).unwrap();
    operation.reply.as_ref().is_some_and(|reply| is_inert(&command, reply))
}

fn has_equal_operations(history: &[Operation]) -> bool {
    history.iter().enumerate().any(|(i, o)| history[..i].contains(o))
}

#[test]
fn a_part_without_an_order_proves_that_the_whole_has_none() {
    let mut proven = 0;
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            clients: 3,
            operations: 7,
            open_per_mille: 200,
            unit_ns: 100_000,
            slow_per_mille: 0,
            slow_times: 1,
            keys: 1,
            commands: if rng.chance(1, 2) { any_command } else { mixed_command },
        };
        let mut history = atomic_history(&mut rng, &shape);
        if rng.chance(1, 2) {
            mutate(&mut rng, &mut history);
        }
        let ops: Vec<Op<'_>> = history.iter().enumerate().map(|(at, o)| op_of(at, o)).collect();
        let has_order = is_linearizable(&history);
        for end_ns in history.iter().filter_map(|o| o.return_ns) {
            let part = until(&ops, end_ns);
            let proof = latest_start(&part, &mut Tries::new());
            let listed: String = history.iter().map(|o| format!("{o}\n")).collect();
            assert!(proof.is_none() || !has_order, "seed {seed}, until {end_ns}:\n{listed}");
            proven += u32::from(proof.is_some());
        }
    }
    assert!(proven > 500, "{proven}");
}

#[test]
fn medium_histories_are_accepted() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let commands = [any_command, string_command, list_command, counter_command, mixed_command];
        let shape = Shape {
            clients: 1 + rng.below(8),
            operations: 300,
            open_per_mille: rng.below(60),
            unit_ns: rng.between(1_000, 100_000),
            slow_per_mille: rng.below(20),
            slow_times: 20,
            keys: 1,
            commands: commands[seed as usize % commands.len()],
        };
        let history = atomic_history(&mut rng, &shape);
        let report = check(&history, &exact()).unwrap();
        assert!(report.is_ok(), "seed {seed}: {report}");
    }
}

/// Checks histories of four kinds of commands on eight keys; prints how long it took.
fn check_long(seed: u64, operations: u64, open_per_mille: u64, slow_times: u64) {
    let named = [
        ("strings", string_command as fn(&mut Rng, u64) -> String),
        ("list", list_command),
        ("counter", counter_command),
        ("mixed", mixed_command),
    ];
    for (name, commands) in named {
        let shape = Shape {
            clients: 16,
            operations,
            open_per_mille,
            unit_ns: 100_000,
            slow_per_mille: 30,
            slow_times,
            keys: 8,
            commands,
        };
        let history = atomic_history(&mut Rng::new(seed), &shape);
        let report = check(&history, &exact()).unwrap();
        println!("seed {seed}, {name}, slow x{slow_times}: {report}");
        assert!(report.is_ok(), "seed {seed}, {name}: {report}");
    }
}

#[test]
fn long_histories_of_sixteen_clients_on_eight_keys_are_accepted() {
    check_long(1, 16_000, 10, 20);
}

/// `cargo test --release -p concord-check -- --ignored --nocapture` shows the speed.
#[test]
#[ignore = "takes minutes without --release"]
fn two_hundred_thousand_operations_accepted() {
    for seed in 1..4 {
        check_long(seed, 200_000, 2, 20);
        check_long(seed, 200_000, 2, 100);
        check_long(seed, 200_000, 10, 20);
        check_long(seed, 200_000, 10, 100);
    }
}

/// A stale read late in a long history is found, and the search does not just give up.
#[test]
#[ignore = "takes minutes without --release"]
fn stale_read_among_two_hundred_thousand() {
    let kinds = [string_command as fn(&mut Rng, u64) -> String, mixed_command];
    for (seed, commands) in kinds.into_iter().enumerate() {
        let shape = Shape {
            clients: 16,
            operations: 200_000,
            open_per_mille: 2,
            unit_ns: 100_000,
            slow_per_mille: 30,
            slow_times: 20,
            keys: 8,
            commands,
        };
        let mut history = atomic_history(&mut Rng::new(seed as u64), &shape);
        // A value of one write; any other may be explained by writes of unknown outcome.
        let own = |seen: &[u8]| seen.starts_with(b"v");
        let is_bulk = |o: &Operation| {
            o.cmd[..2] == [b"GET".to_vec(), b"k3".to_vec()]
                && matches!(&o.reply, Some(Reply::Bulk(seen)) if own(seen))
        };
        let old = history.iter().position(is_bulk).unwrap();
        let at = history.len() - 1 - history.iter().rev().position(is_bulk).unwrap();
        history[at].reply = history[old].reply.clone();
        let report = check(&history, &Options { threads: 2, ..Options::default() }).unwrap();
        println!("{report}");
        assert_eq!(report.verdict, Verdict::Violation);
    }
}

/// Prints the time of a check of a small history, as the simulator does thousands of.
#[test]
fn three_hundred_operations_take_less_than_a_moment() {
    let shape = Shape {
        clients: 8,
        operations: 300,
        open_per_mille: 20,
        unit_ns: 100_000,
        slow_per_mille: 30,
        slow_times: 20,
        keys: 4,
        commands: mixed_command,
    };
    let histories: Vec<_> =
        (0..100).map(|seed| atomic_history(&mut Rng::new(seed), &shape)).collect();
    let started = Instant::now();
    for history in &histories {
        assert!(check(history, &exact()).unwrap().is_ok());
    }
    println!("{} us a history", started.elapsed().as_micros() / histories.len() as u128);
}
