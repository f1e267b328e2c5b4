//! Harmony from seeds (docs/internals/harmony.md): hosts and switches over links with queues, with
//! loss, doubled and late control packets, hosts and switches that restart.
#![allow(clippy::unwrap_used)]

use concord_sim::harmony::{Plan, Totals, run};

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
