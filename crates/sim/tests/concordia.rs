//! Concordia in every interleaving of a few calls (docs/internals/concordia.md): three nodes and
//! their switch, evictions, loss, packets that come twice, any order.
#![allow(clippy::unwrap_used)]

use concord_core::{Guards, MS, SEC};
use concord_memory::{Access, Call, Coherence};
use concord_sim::concordia::explore::{End, Explored, Setup, explore};
use concord_sim::concordia::litmus::{LITMUS, MP_FENCED, SB_FENCED};
use concord_sim::concordia::{Fault, Plan, Shape, Totals, run};
use concord_wire::concordia::Tag;

const A: Tag = Tag(0);
const B: Tag = Tag(1);

fn read(id: u64, tag: Tag) -> Call {
    Call { id, tag, access: Access::Read { offset_bytes: 0, size_bytes: 1 } }
}

fn write(id: u64, tag: Tag) -> Call {
    Call { id, tag, access: Access::Write { offset_bytes: 0, data: vec![id as u8] } }
}

/// One block, caches of one block, nothing goes wrong but the order.
fn setup(guards: Guards, calls: Vec<Vec<Call>>) -> Setup {
    let coherence = Coherence::Concordia;
    let shape = Shape { nodes: 3, cache_ways: 1, lanes: 2, coherence, guards };
    Setup {
        shape,
        blocks: vec![A, B],
        at_home: Vec::new(),
        moves: Vec::new(),
        before: Vec::new(),
        calls,
        under_way: 1,
        losses: 0,
        doubles: 0,
        resends: 0,
        end: End::Never,
        states_max: 60_000,
    }
}

/// How many states each case has.
const STATES: [usize; 19] = [
    778, 1938, 44706, 2036, 15104, 55, 29211, 371, 1201, 39575, 23541, 1097, 2518, 152, 1158, 935,
    552, 6242, 2799,
];

/// What is explored, by name.
fn cases(guards: Guards) -> Vec<(&'static str, Setup)> {
    let base = |calls| setup(guards, calls);
    let contended = vec![vec![], vec![write(1, A), read(2, A)], vec![read(3, A), write(4, A)]];
    let three = vec![vec![write(1, A)], vec![write(2, A)], vec![read(3, A)]];
    let evicting = vec![vec![read(5, A)], vec![read(6, B)], vec![read(7, B)]];
    let shared = vec![(1, write(1, A)), (2, read(2, A))];
    let crossing = vec![vec![], vec![read(3, B)], vec![read(4, A)]];
    let full = vec![(1, write(1, A)), (2, write(2, B))];
    let one = vec![vec![], vec![write(3, A)], vec![]];
    let owned = || vec![(1, write(1, A))];
    let beside = vec![vec![], vec![read(4, A), write(5, A)], vec![write(6, A)]];
    let evicted = vec![vec![], vec![read(4, B), write(5, A)], vec![read(6, A)]];
    let back = vec![vec![], vec![read(4, B)], vec![write(5, A), read(6, B)]];
    let two = vec![vec![], vec![write(4, A)], vec![read(5, A)]];
    let home = |calls| Setup { blocks: vec![B], at_home: vec![A], ..setup(guards, calls) };
    let there = vec![A];
    let return_trip = vec![A, A];
    vec![
        ("two nodes write and read", base(contended.clone())),
        ("three nodes", base(three.clone())),
        (
            "copies of a modified block are evicted",
            Setup { before: shared.clone(), ..base(evicting) },
        ),
        ("caches are full", Setup { before: full, ..base(crossing) }),
        ("a copy comes twice", Setup { doubles: 1, ..base(contended.clone()) }),
        (
            "packets are lost",
            Setup { losses: 1, resends: 1, before: shared.clone(), ..base(one.clone()) },
        ),
        (
            "packets are lost, two nodes",
            Setup { losses: 1, resends: 1, before: owned(), ..base(contended.clone()) },
        ),
        ("two calls at a node", Setup { under_way: 2, ..base(beside) }),
        ("a write during an eviction", Setup { under_way: 2, before: owned(), ..base(evicted) }),
        ("a write-back comes twice", Setup { doubles: 1, before: owned(), ..base(back) }),
        (
            "a request is sent again, and a copy is late",
            Setup {
                resends: 1,
                before: owned(),
                ..base(vec![vec![], vec![read(4, B), write(5, A)], vec![write(2, A)]])
            },
        ),
        ("a home owns the block", home(contended.clone())),
        ("a home owns the block, three nodes", home(three)),
        (
            "a home owns the block, packets are lost",
            Setup { losses: 1, resends: 1, before: shared.clone(), ..home(one.clone()) },
        ),
        (
            "a home owns the block, a copy comes twice",
            Setup { doubles: 1, before: owned(), ..home(two.clone()) },
        ),
        ("a block goes to the switch", Setup { moves: there.clone(), ..home(two.clone()) }),
        ("a block comes back", Setup { moves: there, before: owned(), ..base(two.clone()) }),
        (
            "a block goes and comes back, packets are lost",
            Setup {
                moves: return_trip.clone(),
                losses: 1,
                resends: 1,
                before: shared.clone(),
                ..home(one.clone())
            },
        ),
        (
            "a block goes and comes back, a copy comes twice",
            Setup { moves: return_trip, doubles: 1, before: shared, ..home(one) },
        ),
    ]
}

/// How many states each of these has.
const ENDS: [usize; 15] =
    [560, 560, 560, 820, 820, 820, 6506, 6506, 6506, 522, 522, 522, 764, 764, 764];

/// Epochs that end, by name: in all states of the epoch before, and with each node hearing of it at
/// any time.
fn ends(guards: Guards) -> Vec<(String, Setup)> {
    let one = vec![vec![], vec![write(3, A)], vec![read(4, A)]];
    let evicting = vec![vec![], vec![write(3, A)], vec![read(4, B)]];
    let modified = vec![(2, write(2, A))];
    let base = |calls, in_switch: bool| {
        let base = Setup { before: modified.clone(), ..setup(guards, calls) };
        let (blocks, at_home) = (vec![A], vec![B]);
        if in_switch {
            Setup { blocks, at_home, ..base }
        } else {
            Setup { blocks: vec![], at_home: vec![A, B], ..base }
        }
    };
    let alone = vec![vec![], vec![write(3, A)], vec![]];
    let shared = vec![(1, write(1, A)), (2, read(2, A))];
    let moving = Setup { moves: vec![A], ..base(alone.clone(), false) };
    let back = Setup { moves: vec![A], before: shared, ..base(alone, true) };
    let racks = [
        ("a write and a read", base(one.clone(), true)),
        ("a write and a read, at home", base(one, false)),
        ("a write and an eviction, at home", base(evicting, false)),
        ("a write, and the block moves", moving),
        ("a write of a shared block, which comes back", back),
    ];
    let ends = [End::AllStay, End::Dies(1), End::Dies(2)];
    let all = racks.into_iter().flat_map(|(name, setup)| {
        ends.map(|end| (format!("{name}, {end:?}"), Setup { end, ..setup.clone() }))
    });
    all.collect()
}

fn show(name: &str, found: &Explored) {
    println!(
        "{name}: {} states, {} steps, complete: {}",
        found.states, found.steps, found.is_complete
    );
    if let Some((why, trace)) = &found.violation {
        println!("  {why}");
        for (number, step) in (1..).zip(trace) {
            println!("  {number}. {step}");
        }
    }
}

/// Explores each case to its end; the numbers of states.
fn states<N: Into<String>>(cases: Vec<(N, Setup)>) -> Vec<usize> {
    let states = |(name, setup): (N, Setup)| {
        let name = name.into();
        let found = explore(&setup);
        show(&name, &found);
        assert_eq!(found.violation, None, "{name}");
        assert!(found.is_complete, "{name}");
        found.states
    };
    cases.into_iter().map(states).collect()
}

/// One writer or many readers, the newest value, copysets that cover who has copies, no lock left,
/// and every call answered: in all states.
#[test]
fn three_nodes_are_coherent_in_every_interleaving() {
    assert_eq!(states(cases(Guards::ALL)), STATES);
}

/// After an epoch, each block has its newest value, or is lost with a node that is gone: in all
/// states in which it may end, prepared by hand or not.
#[test]
fn an_epoch_that_ends_leaves_the_newest_value_or_none() {
    assert_eq!(states(ends(Guards::ALL)), ENDS);
}

/// Loss, doubles, any order, pauses and cuts; caches of few blocks: what programs see is
/// linearizable, every call is answered, and at rest nothing is locked.
#[test]
fn memories_from_seeds_are_linearizable_and_come_to_rest() {
    let mut totals = Totals::default();
    for seed in 1..=400 {
        let ran = run(&Plan::draw(seed));
        assert_eq!(ran.violation, None, "concord sim --system concordia --seed {seed:#x}");
        totals.add(&ran.totals);
    }
    println!("{totals:?}");
    let t = totals;
    for count in [t.answered, t.hits, t.events_done, t.failed, t.resent, t.invalidated] {
        assert!(count > 1_000, "{t:?}");
    }
    for count in [t.written_back, t.stale, t.at_homes, t.added, t.refused, t.removed] {
        assert!(count > 500, "{t:?}");
    }
    for count in [t.epochs, t.unknown, t.lost, t.renewed, t.left, t.unleased] {
        assert!(count > 30, "{t:?}");
    }
}

/// A node that leaves takes nothing with it, and nor does another switch (item 3).
#[test]
fn nothing_is_lost_where_all_leave_in_time() {
    let mut totals = Totals::default();
    for seed in 1..=60 {
        let plan = Plan::draw(seed);
        let leaves = (1..4).map(|n| (n * 1_500 * MS, Fault::Leave(n as usize % plan.nodes, SEC)));
        let switches = (1..3).map(|n| (n * 2_000 * MS + 900 * MS, Fault::RestartSwitch(300 * MS)));
        let faults = leaves.chain(switches).collect();
        let loss_ppm = plan.loss_ppm.min(5_000);
        let plan = Plan { faults, calls: 60, think_ns: 150 * MS, loss_ppm, ..plan };
        let ran = run(&plan);
        assert_eq!(ran.violation, None, "seed {seed}");
        assert_eq!((ran.totals.lost, ran.totals.unknown), (0, 0), "seed {seed}: {:?}", ran.totals);
        totals.add(&ran.totals);
    }
    assert!(totals.left > 100, "{totals:?}");
}

/// What threads read of two words is explained by one order of all accesses, and nearly all that
/// orders explain is seen. (100,000 runs of each: `CONCORD_LITMUS=100000`.)
#[test]
fn litmus_tests_show_one_order_of_all_accesses() {
    let runs = std::env::var("CONCORD_LITMUS").ok().map_or(2_000, |runs| runs.parse().unwrap());
    let both = [Coherence::Concordia, Coherence::Base];
    for (coherence, litmus) in both.into_iter().flat_map(|c| LITMUS.map(|litmus| (c, litmus))) {
        let (allowed, seen) = (litmus.allowed(), litmus.run(runs, 1, coherence, Guards::ALL));
        let counts = (seen.len(), allowed.len());
        println!("{} {coherence:?}: {counts:?} outcomes, {seen:?}", litmus.name);
        assert!(!allowed.contains(litmus.forbidden), "{}", litmus.name);
        let odd: Vec<_> = seen.keys().filter(|outcome| !allowed.contains(*outcome)).collect();
        assert!(odd.is_empty(), "{}: {odd:?}", litmus.name);
        assert!(2 * seen.len() > allowed.len(), "{}: {seen:?}", litmus.name);
    }
}

/// The same where homes own all blocks, and the switch none.
#[test]
fn memories_of_the_base_are_linearizable_and_come_to_rest() {
    let mut totals = Totals::default();
    for seed in 1..=200 {
        let ran = run(&Plan { coherence: Coherence::Base, ..Plan::draw(seed) });
        assert_eq!(ran.violation, None, "seed {seed:#x}");
        totals.add(&ran.totals);
    }
    assert_eq!((totals.added, totals.refused), (0, 0), "{totals:?}");
    assert!(totals.events_done > 1_000, "{totals:?}");
}

/// Adds one, synchronously where writes are not.
fn add(id: u64, tag: Tag) -> Call {
    Call { id, tag, access: Access::FetchAdd { offset_bytes: 0, add: 1 } }
}

/// How many states each case of GAM's coherence has.
const GAM: [usize; 6] = [1284, 2884, 257, 816, 2111, 1058];

/// Homes that gather, by name.
fn gam_cases(guards: Guards) -> Vec<(&'static str, Setup)> {
    let gam = |calls| {
        let base = setup(guards, calls);
        let shape = Shape { coherence: Coherence::Gam, ..base.shape };
        Setup { shape, blocks: Vec::new(), at_home: vec![A, B], ..base }
    };
    let contended = vec![vec![], vec![add(1, A), read(2, A)], vec![read(3, A), add(4, A)]];
    let one = vec![vec![], vec![add(3, A)], vec![read(4, A)]];
    let shared = vec![(1, add(1, A)), (2, read(2, A))];
    let evicted = vec![vec![], vec![read(4, B), add(5, A)], vec![read(6, A)]];
    vec![
        ("two nodes write and read", gam(contended.clone())),
        ("three nodes", gam(vec![vec![add(1, A)], vec![add(2, A)], vec![read(3, A)]])),
        ("an eviction", Setup { before: shared.clone(), ..gam(evicted) }),
        ("a copy comes twice", Setup { doubles: 1, before: shared.clone(), ..gam(one.clone()) }),
        (
            "packets are lost",
            Setup { losses: 1, resends: 1, before: shared.clone(), ..gam(one.clone()) },
        ),
        ("the epoch ends", Setup { end: End::AllStay, before: shared, ..gam(one) }),
    ]
}

/// Homes that gather: the newest value, one writer or many readers, no lock left.
#[test]
fn homes_of_gam_are_coherent_in_every_interleaving() {
    assert_eq!(states(gam_cases(Guards::ALL)), GAM);
}

/// The same faults in GAM's coherence: each word is coherent, fences wait for the writes before
/// them, every call is answered, and at rest nothing is locked.
#[test]
fn memories_of_gam_are_coherent_and_fences_hold() {
    let mut totals = Totals::default();
    for seed in 1..=200 {
        let ran = run(&Plan { coherence: Coherence::Gam, ..Plan::draw(seed) });
        assert_eq!(ran.violation, None, "seed {seed:#x}");
        totals.add(&ran.totals);
    }
    println!("{totals:?}");
    assert_eq!((totals.added, totals.refused), (0, 0), "{totals:?}");
    assert!(totals.events_done > 1_000 && totals.fences > 500, "{totals:?}");
}

/// Asynchronous writes show in SB and MP, and in no other test; with fences they show in none.
#[test]
fn litmus_tests_of_gam_show_what_fences_are_for() {
    let runs = std::env::var("CONCORD_LITMUS").ok().map_or(2_000, |runs| runs.parse().unwrap());
    for litmus in LITMUS.into_iter().chain([SB_FENCED, MP_FENCED]) {
        let seen = litmus.run(runs, 1, Coherence::Gam, Guards::ALL);
        let allowed = litmus.allowed();
        println!("{} of GAM: {seen:?}", litmus.name);
        let odd: Vec<_> = seen.keys().filter(|outcome| !allowed.contains(*outcome)).collect();
        if ["SB", "MP"].contains(&litmus.name) {
            assert_eq!(odd, [litmus.forbidden], "{}: asynchronous writes", litmus.name);
        } else {
            assert!(odd.is_empty(), "{}: {odd:?}", litmus.name);
        }
    }
}

#[test]
fn equal_plans_of_concordia_run_alike() {
    let plan = Plan::draw(3);
    assert_eq!(run(&plan).digest, run(&plan).digest);
    assert_ne!(run(&plan).digest, run(&Plan { seed: 4, ..plan }).digest);
}

#[cfg(feature = "mutants")]
mod mutants {
    use super::*;
    use concord_core::Guard;

    /// Those that the explorer's small racks show. (`OneEvent` has no case yet, and `WriterWanted`
    /// is about progress: `c14_readers_wait_for_a_refused_writer` in `concord-switch`.)
    const ALL: [Guard; 17] = [
        Guard::EventOnce,
        Guard::UnlockOnce,
        Guard::CheckTable,
        Guard::HomeStale,
        Guard::CopyVersion,
        Guard::WrittenBack,
        Guard::GivenKept,
        Guard::AnswerEvent,
        Guard::AllInvalidated,
        Guard::RoomFirst,
        Guard::EvictedUnwritten,
        Guard::NewerBlock,
        Guard::FirstCopy,
        Guard::MovedRequest,
        Guard::MoveOnce,
        Guard::MoveLocked,
        Guard::UnlockCompared,
    ];

    #[test]
    fn guards_of_concordia_are_caught_by_the_explorer() {
        let mut missed = Vec::new();
        for guard in ALL {
            let caught = cases(Guards::without(guard)).into_iter().find_map(|(name, setup)| {
                let (why, trace) = explore(&setup).violation?;
                Some(format!("{name}, {} steps: {why}", trace.len()))
            });
            match caught {
                Some(why) => println!("without {guard:?}: {why}"),
                None => missed.push(guard),
            }
        }
        assert_eq!(missed, []);
    }

    #[test]
    fn guards_of_epochs_are_caught_by_the_explorer() {
        for guard in [Guard::InTransit, Guard::LostKnown] {
            let caught = ends(Guards::without(guard)).into_iter().find_map(|(name, setup)| {
                let (why, trace) = explore(&setup).violation?;
                Some(format!("{name}, {} steps: {why}", trace.len()))
            });
            println!("without {guard:?}: {caught:?}");
            assert!(caught.is_some(), "{guard:?}");
        }
    }

    /// Those of epochs and leases, which seeds show. (`MemorySurvivor` is rare, one seed of 4,000:
    /// `c9_nobody_goes_on_while_all_members_are_silent` in `concord-control`. `UnopenedEpoch` takes
    /// a node that leaves unheard while all others die:
    /// `c10_without_the_guard_an_old_value_comes_back` in `concord-memory`.)
    const EPOCHS: [Guard; 6] = [
        Guard::MemoryLease,
        Guard::MemoryOutsiders,
        Guard::CoherenceEpoch,
        Guard::AllReports,
        Guard::InTransit,
        Guard::LostKnown,
    ];

    #[test]
    fn guards_of_gam_are_caught_by_the_explorer() {
        let caught = gam_cases(Guards::without(Guard::HomeGathered)).into_iter().find_map(|c| {
            let (why, trace) = explore(&c.1).violation?;
            Some(format!("{}, {} steps: {why}", c.0, trace.len()))
        });
        println!("{caught:?}");
        assert!(caught.is_some());
    }

    #[test]
    fn guards_of_gam_are_caught_by_seeds() {
        let mut missed = Vec::new();
        for guard in [Guard::HomeGathered, Guard::FenceWaits, Guard::OwnWriteFirst] {
            let guards = Guards::without(guard);
            let starts = (1..=STARTS).map(|start| start * 1_000_000);
            let mut seeds: Vec<u64> = starts
                .map(|first| {
                    let found = (first..first + SEEDS_MAX).find(|seed| {
                        let plan = Plan { guards, invariants: false, ..Plan::draw(*seed) };
                        run(&Plan { coherence: Coherence::Gam, ..plan }).violation.is_some()
                    });
                    found.map_or(u64::MAX, |seed| seed - first + 1)
                })
                .collect();
            seeds.sort_unstable();
            println!("without {guard:?}: {seeds:?}");
            if seeds[seeds.len() / 2] > SEEDS_MAX {
                missed.push(guard);
            }
        }
        assert_eq!(missed, []);
    }

    /// Without all acknowledgements a write is over before all have seen it.
    #[test]
    fn litmus_tests_catch_a_write_that_waits_for_nobody() {
        let caught = LITMUS.iter().filter(|litmus| {
            let guards = Guards::without(Guard::AllInvalidated);
            let seen = litmus.run(2_000, 1, Coherence::Concordia, guards);
            seen.contains_key(litmus.forbidden)
        });
        let names: Vec<&str> = caught.map(|litmus| litmus.name).collect();
        println!("{names:?}");
        assert!(names.contains(&"SB"), "{names:?}");
    }

    /// A late copy of a request rarely meets a block that has moved there and back, and an unlock
    /// that is not answered is so by the home once its block is cold. The explorer has each within
    /// twelve steps.
    const RARE: [Guard; 3] = [Guard::UnlockOnce, Guard::FirstCopy, Guard::MovedRequest];

    /// Starts from which seeds are counted until one fails.
    const STARTS: u64 = 9;
    /// The median of them has to find a guard's absence within so many seeds.
    const SEEDS_MAX: u64 = 1_000;

    /// How many seeds from `first` on until one fails; invariants are off: a program has to see it,
    /// or the end.
    fn seeds_until(first: u64, guards: Guards) -> Option<(u64, String)> {
        (first..first + SEEDS_MAX).find_map(|seed| {
            let plan = Plan { guards, invariants: false, ..Plan::draw(seed) };
            Some((seed - first + 1, run(&plan).violation?))
        })
    }

    #[test]
    fn guards_of_concordia_are_caught_by_seeds() {
        let mut missed = Vec::new();
        for guard in ALL.into_iter().filter(|guard| !RARE.contains(guard)).chain(EPOCHS) {
            let starts = (1..=STARTS).map(|start| start * 1_000_000);
            let counts: Vec<_> =
                starts.map(|first| seeds_until(first, Guards::without(guard))).collect();
            let mut seeds: Vec<u64> =
                counts.iter().map(|c| c.as_ref().map_or(u64::MAX, |c| c.0)).collect();
            seeds.sort_unstable();
            let median = seeds[seeds.len() / 2];
            let why = counts.iter().flatten().next().map(|c| c.1.lines().next().unwrap_or(""));
            println!("without {guard:?}: {seeds:?}: {}", why.unwrap_or("-"));
            if median > SEEDS_MAX {
                missed.push(guard);
            }
        }
        assert_eq!(missed, []);
    }
}
