//! Falcon's queue in every interleaving of tasks, requests, repairs and what comes round
//! (docs/internals/falcon.md). The numbers of states are asserted: another program has others.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use concord_sim::falcon::explore::{Explored, Load, Setup, explore};
use concord_sim::falcon::{Plan, Totals, run as run_rack};
use concord_switch::{Form, QueueLayout};

use Form::{Paired, Printed, Repair};

fn run(name: &str, setup: &Setup) -> Explored {
    let began = Instant::now();
    let found = explore(setup).unwrap();
    println!(
        "{:?}, {name}: {} states, {} steps, complete {}, {:.1} s",
        setup.layout.form,
        found.states,
        found.steps,
        found.is_complete,
        began.elapsed().as_secs_f64()
    );
    if let Some((why, lines)) = &found.violation {
        println!("  {why}:\n    {}", lines.join("\n    "));
    }
    found
}

/// Explores it, sees nothing wrong, and so many states.
fn right(name: &str, setup: &Setup, states: usize) {
    let found = run(name, setup);
    assert_eq!(found.violation, None);
    assert!(found.is_complete);
    if std::env::var_os("CONCORD_EXPLORE").is_none_or(|way| way != "count") {
        assert_eq!(found.states, states, "{name}");
    }
}

/// The same in another form.
fn in_form(setup: &Setup, form: Form) -> Setup {
    Setup { layout: QueueLayout { form, ..setup.layout }, ..setup.clone() }
}

/// A queue whose pointers wrap.
fn wraps(form: Form, slots: u32, capacity: u32) -> Setup {
    let layout = QueueLayout::one(slots, capacity, form);
    let begin_at = (u32::MAX - 1, u32::MAX - 1);
    Setup { layout, begin_at, ..Setup::new(form, slots) }
}

/// How a task is overwritten, if the pointers are as they are printed.
fn overwritten(setup: &Setup) -> (String, Vec<String>) {
    let overwrites_only = true;
    run("overwrites", &Setup { overwrites_only, ..setup.clone() }).violation.unwrap()
}

/// Two slots: an empty poll drives retrieve_ptr ahead, and three tasks find room before it is set
/// back.
#[test]
fn hole_an_empty_poll_and_three_tasks_overwrite_the_first() {
    let setup = Setup { submissions: vec![4], polls: 3, ..Setup::new(Printed, 2) };
    let (why, trace) = overwritten(&setup);
    assert_eq!(why, "task 0 with ticket 0 is not in its slot any more");
    let trace: Vec<&str> = trace.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(trace, ["Poll", "Submit(1)", "Submit(1)", "Submit(1)"]);
    right("the same", &in_form(&setup, Paired), 53);
    right("the same", &in_form(&setup, Repair), 141);
}

/// Two slots, and nobody asks in vain: a full queue is repaired late, and add_ptr goes back over a
/// task that was accepted since.
#[test]
fn hole_a_late_repair_of_a_full_queue_goes_back_over_a_task() {
    let submissions = vec![8];
    let setup = Setup { submissions, polls: 6, asks_in_vain: false, ..Setup::new(Printed, 2) };
    let (why, trace) = overwritten(&setup);
    assert_eq!(why, "task 2 with ticket 3 is not in its slot any more");
    assert_eq!(trace.len(), 9, "{trace:#?}");
    right("the same", &in_form(&setup, Paired), 83);
    right("the same", &in_form(&setup, Repair), 7_071);
}

/// As printed, tasks are refused while there is room: add_ptr is ahead until its repair is there.
#[test]
fn hole_a_task_is_refused_while_there_is_room() {
    let setup = Setup { submissions: vec![4], polls: 1, ..Setup::new(Printed, 2) };
    let setup = Setup { asks_in_vain: false, ..setup };
    let (why, trace) = run("refusals", &setup).violation.unwrap();
    assert_eq!((&why[..], trace.len()), ("then refused with 1 tasks in the queue", 4));
}

/// Eight tasks, alone and together; six requests, of which some wait in the switch; queues of two
/// slots and of three in four; pointers that wrap.
#[test]
fn every_interleaving_hands_tasks_out_once() {
    let cases = [
        (Paired, 2, 2, [3_593, 33_199, 4_543, 2_174]),
        (Paired, 4, 3, [2_732, 23_944, 3_914, 2_127]),
        (Repair, 2, 2, [19_396, 36_108, 15_545, 11_241]),
        (Repair, 4, 3, [3_983, 9_942, 5_512, 3_820]),
    ];
    for (form, slots, capacity, states) in cases {
        let base = wraps(form, slots, capacity);
        // `repair` has more states: `large` goes through those of eight tasks.
        let tasks = if form == Paired { 8 } else { 6 };
        let alone = Setup { submissions: vec![tasks], requests: 4, polls: 2, ..base.clone() };
        right("alone", &alone, states[0]);
        let (one, two) = if form == Paired { (4, 2) } else { (2, 2) };
        let together = Setup { submissions: vec![one, two], requests: 6, ..base.clone() };
        right("together", &together, states[1]);
        let late =
            Setup { submissions: vec![3, 1], requests: 3, polls: 1, moments: 1, ..base.clone() };
        right("somebody waits too long", &late, states[2]);
        let replaced =
            Setup { submissions: vec![3, 1], requests: 1, polls: 2, replacements: 1, ..base };
        right("another switch id", &replaced, states[3]);
    }
}

/// What comes round is lost, or comes twice.
#[test]
fn every_loss_and_duplicate_keeps_the_queue_intact() {
    let cases = [
        (Paired, 2, 2, [947, 1_716, 211]),
        (Paired, 4, 3, [780, 1_462, 181]),
        (Repair, 2, 2, [1_934, 7_717, 1_555]),
        (Repair, 4, 3, [847, 2_265, 241]),
    ];
    for (form, slots, capacity, states) in cases {
        let base = Setup {
            submissions: vec![2, 1],
            requests: 3,
            polls: 1,
            ..wraps(form, slots, capacity)
        };
        right("lost", &Setup { losses: 1, ..base.clone() }, states[0]);
        right("double", &Setup { doubles: 1, ..base.clone() }, states[1]);
        let refused =
            Setup { submissions: vec![4], requests: 1, polls: 2, losses: 1, doubles: 1, ..base };
        right("refused, lost and double", &refused, states[2]);
    }
}

/// Two slots for each of the queues and priorities.
fn several(queues: u8, priorities: u8) -> Setup {
    let rings = 2 * u32::from(queues) * u32::from(priorities);
    let one = wraps(Paired, 2 * rings, 2);
    Setup { layout: QueueLayout { queues, priorities, ..one.layout }, ..one }
}

fn load(queue: u8, priority: u8, submissions: Vec<u8>) -> Load {
    Load { queue, priority, submissions, ..Load::default() }
}

/// An executor of two queues asks one and the other and waits in both; what comes from one while it
/// has a task from the other it gives back.
#[test]
fn two_queues_with_one_executor_of_both() {
    let base = Setup { executor: true, ..several(2, 1) };
    let more = vec![load(1, 0, vec![1])];
    let alone = Setup { submissions: vec![2], more: more.clone(), ..base.clone() };
    right("an executor of two queues", &alone, 2_096);
    let beside = Setup { submissions: vec![1], requests: 1, more, ..base };
    right("and another one of the first", &beside, 907);
}

/// Tasks of a higher priority come first, and go to who waits; a ticket without a task is skipped,
/// or an executor asks again.
#[test]
fn two_priorities_of_a_queue() {
    let base = several(1, 2);
    let more = vec![load(0, 1, vec![2])];
    let alone = Setup { submissions: vec![2], requests: 2, polls: 2, more, ..base.clone() };
    right("two priorities", &alone, 1_765);
    let more = vec![load(0, 1, vec![1, 1])];
    let setup = Setup { submissions: vec![1], requests: 2, polls: 1, more, ..base };
    right("together", &setup, 1_222);
    right("lost", &Setup { losses: 1, ..setup.clone() }, 2_094);
    right("somebody waits too long", &Setup { moments: 1, ..setup.clone() }, 3_869);
    right("another switch id", &Setup { replacements: 1, ..setup.clone() }, 5_455);
    let more = vec![load(0, 1, vec![2])];
    right("double", &Setup { doubles: 1, more, ..setup }, 887);
}

/// Two of the priorities of each of two queues, and an executor of both.
#[test]
fn two_queues_of_four_priorities() {
    let more = vec![load(0, 3, vec![1]), load(1, 1, vec![1])];
    let setup = Setup { submissions: vec![1], executor: true, more, ..several(2, 4) };
    right("two queues of four priorities", &setup, 13_250);
}

/// Minutes: `CONCORD_EXPLORE=large cargo test --release -p concord-sim --test falcon large`.
#[test]
fn large_runs_of_both_forms() {
    if std::env::var_os("CONCORD_EXPLORE").is_none_or(|way| way != "large") {
        return;
    }
    let more = vec![load(0, 1, vec![1, 1])];
    let urgent = Setup { submissions: vec![1, 1], requests: 3, polls: 1, more, ..several(1, 2) };
    let urgent = Setup { losses: 1, doubles: 1, states_max: 4_000_000, ..urgent };
    assert_eq!(run("two priorities", &urgent).violation, None);
    let more = vec![load(1, 0, vec![1, 1])];
    let both = Setup { submissions: vec![1, 1], executor: true, more, ..several(2, 1) };
    assert_eq!(run("two queues", &Setup { states_max: 4_000_000, ..both }).violation, None);
    for (form, slots, capacity) in [(Paired, 2, 2), (Paired, 4, 4), (Repair, 2, 2), (Repair, 4, 3)]
    {
        let base = wraps(form, slots, capacity);
        let alone = Setup { submissions: vec![8], requests: 4, polls: 2, ..base.clone() };
        let mixed =
            Setup { submissions: vec![4, 2], requests: 4, polls: 2, losses: 1, doubles: 1, ..base };
        for (name, setup) in [("alone", alone), ("mixed", mixed)] {
            let setup = Setup { states_max: 4_000_000, ..setup };
            assert_eq!(run(name, &setup).violation, None);
        }
    }
}

/// How many seeds: `CONCORD_FALCON_SEEDS=100000`, from `CONCORD_FALCON_FIRST` on.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let first = number("CONCORD_FALCON_FIRST").unwrap_or(1);
    first..first + number("CONCORD_FALCON_SEEDS").unwrap_or(default)
}

/// Owners, workers and switches from a seed, with all that goes wrong: every task is over once, in
/// time, and none that is never to be run twice is.
#[test]
fn racks_from_seeds_end_every_task_once() {
    let mut totals = Totals::default();
    for seed in seeds(300) {
        let plan = Plan::draw(seed);
        let ran = run_rack(&plan);
        assert_eq!(ran.violation, None, "seed {seed}: {plan:#?}");
        totals.add(&ran.totals);
    }
    println!("{totals:#?}");
    let t = totals;
    assert!(t.done > 0 && t.failed > 0 && t.unknown > 0 && t.refused > 0, "{t:?}");
    assert!(t.unheard > 0 && t.forgotten > 0 && t.leases_over > 0, "{t:?}");
    assert!(t.cancelled_tasks > 0 && t.orphans > 0 && t.resumed > 0, "{t:?}");
    assert!(t.cancelled > 0 && t.other_switch > 0 && t.claims_refused > 0, "{t:?}");
    assert!(t.moved > 0 && t.returned > 0 && t.prefetched > 0, "{t:?}");
}

/// 131 tasks that are never run twice have one executor of their classes. Before each begins it
/// waits for two syncs, that of the last outcome and its own: with 60 ms at most they take 7.9 s
/// together on average, beside 1.8 s of runs.
#[test]
fn bug_21_sim1_only_executor_has_time_for_two_syncs_a_task() {
    let plan = Plan::draw(0x0fa1_c001_7057);
    assert_eq!(run_rack(&plan).violation, None, "{plan:#?}");
}

#[test]
fn a_seed_replays() {
    for seed in 1..5 {
        let ran = [run_rack(&Plan::draw(seed)), run_rack(&Plan::draw(seed))];
        assert_eq!(ran[0].digest, ran[1].digest);
        assert_eq!(ran[0].totals, ran[1].totals);
    }
}

#[cfg(feature = "mutants")]
mod guards {
    use concord_core::{Guard, Guards};

    use super::*;

    fn caught(guard: Guard, setup: &Setup) {
        let without = Setup { guards: Guards::without(guard), ..setup.clone() };
        let found = run(&format!("without {guard:?}"), &without);
        assert!(found.violation.is_some(), "{guard:?} was not caught in {} states", found.states);
    }

    /// `SkippedTicket` is removed by `concord-switch`'s tests.
    #[test]
    fn each_guard_of_the_queue_is_caught_when_removed() {
        let base = Setup { submissions: vec![4], polls: 2, ..Setup::new(Repair, 2) };
        caught(Guard::RepairGeneration, &Setup { doubles: 1, ..base.clone() });
        caught(Guard::RoundSwitch, &Setup { replacements: 1, ..base.clone() });
        let waits =
            Setup { submissions: vec![2], requests: 2, moments: 1, ..Setup::new(Paired, 2) };
        caught(Guard::WaitExpiry, &waits);
    }

    /// Those of the owner's answers and the old switch's assignments cost runs that are for
    /// nothing, and no more: `concord-scheduler`'s tests remove them.
    #[test]
    fn each_guard_of_owners_and_workers_is_caught_when_removed() {
        for guard in [
            Guard::TaskLease,
            Guard::Claim,
            Guard::FirstResult,
            Guard::DurableCommit,
            Guard::TaskClass,
        ] {
            let guards = Guards::without(guard);
            let found = seeds(2_000).find_map(|seed| {
                let ran = run_rack(&Plan { guards, ..Plan::draw(seed) });
                ran.violation.map(|why| (seed, why))
            });
            println!("without {guard:?}: {found:?}");
            assert!(found.is_some(), "{guard:?} was not caught");
        }
    }
}
