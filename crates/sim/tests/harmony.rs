//! Harmony (docs/internals/harmony.md) from seeds: hosts and switches over links with queues, with
//! loss, doubled and late control packets, hosts and switches that restart. And every interleaving
//! of a few messages over small networks.
#![allow(clippy::unwrap_used)]

use concord_core::Guards;
use concord_sim::harmony::explore::{Message, Setup, explore};
use concord_sim::harmony::{Plan, Topology, Totals, run};

/// Seeds in which all checks hold, and the paths that they have to have taken.
#[test]
fn seeds_of_harmony_hold() {
    let mut all = Totals::default();
    for seed in 0..300 {
        let ran = run(&Plan::draw(seed));
        assert_eq!(ran.violation, None, "seed {seed}: {:?}", Plan::draw(seed));
        let most = all.queued_per_mille_max.max(ran.totals.queued_per_mille_max);
        all.add(&ran.totals);
        all.queued_per_mille_max = most;
    }
    println!("{all:?}");
    for (name, _, count) in all.each() {
        assert!(count > 0, "{name} never happens");
    }
}

/// A seed is a run: equal plans, equal runs.
#[test]
fn seed_of_harmony_replays() {
    for seed in 0..5 {
        let plan = Plan::draw(seed);
        assert_eq!(run(&plan).digest, run(&plan).digest);
    }
}

/// A network that is small enough for every interleaving.
struct Case {
    name: &'static str,
    setup: Setup,
    /// The states and steps that it has.
    counts: (usize, usize),
}

fn cases(guards: Guards) -> Vec<Case> {
    let one = |to, packets| vec![Message { to, packets }];
    let pair = Topology { tors: 1, tor_hosts: 2, spines: 0, slots: 1 };
    let three = Topology { tor_hosts: 3, ..pair };
    let two_slots = Topology { slots: 2, ..pair };
    let tree = Topology { tors: 2, tor_hosts: 1, spines: 1, slots: 1 };
    // Both messages come from one ToR switch, and go to one each.
    let fork = Topology { tors: 3, tor_hosts: 2, spines: 1, slots: 1 };
    let new = |topology, messages| Setup { guards, ..Setup::new(topology, messages) };
    let once = |setup: Setup| Setup { tries_again: false, ..setup };
    let both = || new(pair, vec![one(1, 1), one(0, 1)]);
    let alone = || new(pair, vec![one(1, 2), vec![]]);
    let short = || new(pair, vec![one(1, 1), vec![]]);
    let incast = |packets| new(three, vec![vec![], one(0, packets), one(0, 1)]);
    let twice = vec![Message { to: 1, packets: 1 }; 2];
    let case = |name, counts, setup| Case { name, setup, counts };
    vec![
        case("both ways", (177, 297), both()),
        case("two slots", (1_630, 2_604), new(two_slots, vec![one(1, 3), one(0, 1)])),
        case("lost", (761, 937), Setup { losses: 2, ..alone() }),
        case("doubled", (194, 404), Setup { doubles: 2, ..once(alone()) }),
        case("late", (1_251, 2_022), Setup { lates: 1, ..alone() }),
        case("late and doubled", (6_329, 15_543), Setup { lates: 1, doubles: 1, ..short() }),
        case("an incast", (879, 1_848), Setup { doubles: 1, ..incast(1) }),
        case(
            "a sender begins anew",
            (935, 1_124),
            Setup { restarts: vec![0], ..once(new(pair, vec![twice, vec![]])) },
        ),
        case("a receiver begins anew", (8_280, 12_962), Setup { restarts: vec![1], ..both() }),
        case(
            "a receiver of two begins anew",
            (14_911, 21_530),
            Setup { restarts: vec![0], ..once(incast(2)) },
        ),
        case("a switch begins anew", (583, 1_117), Setup { restarts: vec![2], ..once(both()) }),
        case("a tree", (467, 701), Setup { losses: 1, ..new(tree, vec![one(1, 1), vec![]]) }),
        case(
            "a spine begins anew",
            (5_771, 11_867),
            Setup { restarts: vec![9], ..once(new(fork, vec![one(2, 2), one(4, 1)])) },
        ),
    ]
}

/// All states of small networks of the hosts and switches that ship.
#[test]
fn small_networks_hold_in_every_interleaving() {
    for Case { name, setup, counts } in cases(Guards::ALL) {
        let found = explore(&setup).unwrap();
        println!("{name}: {} states, {} steps", found.states, found.steps);
        assert_eq!(found.violation, None, "{name}");
        assert_eq!((found.states, found.steps, found.is_complete), (counts.0, counts.1, true));
    }
}

/// The guards whose removal the explorer catches. The others, which need a host that stands still,
/// longer messages, or two of them off at a time, have tests of their own
/// (docs/internals/harmony.md).
#[cfg(feature = "mutants")]
#[test]
fn guards_of_harmony_are_caught_by_the_explorer() {
    use concord_core::Guard;
    let mut missed = Vec::new();
    for guard in [
        Guard::GrantOnce,
        Guard::MessageOnce,
        Guard::OwnerFrees,
        Guard::ReservationExpires,
        Guard::SwitchRestart,
        Guard::DataReserved,
    ] {
        let caught = cases(Guards::without(guard)).into_iter().find_map(|case| {
            let setup = Setup { states_max: 20_000, ..case.setup };
            let (why, trace) = explore(&setup).unwrap().violation?;
            Some(format!("{}, {} steps: {why}", case.name, trace.len()))
        });
        println!("without {guard:?}: {caught:?}");
        missed.extend(caught.is_none().then_some(guard));
    }
    assert_eq!(missed, []);
}
