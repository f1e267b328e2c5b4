//! A fixed set of seeds for every commit: no violation, and no thin runs.

use concord_core::MS;
use concord_sim::{Aim, Fault, Node, Plan, Totals, run};
use concord_wire::control::Protocol;

/// Seeds of one test; `CONCORD_SEEDS` sets another number.
fn seeds() -> u64 {
    std::env::var("CONCORD_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(400)
}

#[test]
fn every_seed_is_linearizable_and_makes_progress() {
    let mut totals = Totals::default();
    for seed in 0..seeds() {
        let outcome = run(&Plan::draw(seed));
        if let Some(violation) = outcome.violation {
            panic!(
                "seed {seed}: {violation}\nreplay: cargo run -p concord-sim --example swarm -- {seed} 1"
            );
        }
        totals.add(&outcome.totals);
    }
    println!("{totals}");
    let r = &totals.replicas;
    // What no run of the set saw was not tested.
    for (name, seen) in [
        ("fast reads", totals.fast_reads),
        ("unknown outcomes", totals.unknown),
        ("full tables", totals.switch.dropped_table_full),
        ("writes of all keys", totals.switch.writes_wildcard),
        ("staged bodies", r.fragments_staged),
        ("pulled replies", r.fragments_pulled),
        ("refused: newer", r.refused_newer),
        ("refused: lease", r.refused_lease),
        ("retries from the table", r.duplicates),
        ("refused by the table", r.refused_requests),
        ("out of order", r.writes_out_of_order),
        ("gaps fetched", r.link_resent),
        ("held", r.link_held),
        ("waited", r.reads_waited),
        ("expiries", r.expiries_sent),
    ] {
        assert!(seen > 0, "no run saw: {name}");
    }
}

fn draw_vr(seed: u64) -> Plan {
    Plan::draw_aimed(seed, Aim { protocol: Some(Protocol::Vr), ..Aim::default() })
}

#[test]
fn every_seed_of_vr_is_linearizable_and_makes_progress() {
    let mut totals = Totals::default();
    for seed in 0..seeds() {
        let outcome = run(&draw_vr(seed));
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}\nreplay: concord sim --protocol vr --seed {seed}");
        }
        totals.add(&outcome.totals);
    }
    println!("{totals}");
    let (r, v) = (&totals.replicas, &totals.vr);
    for (name, seen) in [
        ("fast reads", totals.fast_reads),
        ("refused: behind", v.refused_behind),
        ("refused: lease", r.refused_lease),
        ("waited for the leader's lease", v.reads_waited_leader),
        ("retries from the table", r.duplicates),
        ("out of order", r.writes_out_of_order),
        ("another switch's numbers", r.writes_other_switch),
        ("expiries", r.expiries_sent),
        ("views led", v.views_led),
        ("views joined", v.views_joined),
        ("records transferred", v.records_transferred),
        ("recoveries", v.recovered),
        ("stale lives", v.stale_lives),
    ] {
        assert!(seen > 0, "no run saw: {name}");
    }
}

#[test]
fn one_seed_replays() {
    for plan in (0..5).flat_map(|seed| [Plan::draw(seed), draw_vr(seed)]) {
        let (a, b) = (run(&plan), run(&plan));
        assert_eq!(a.history, b.history);
        assert_eq!(a.totals, b.totals);
    }
}

/// docs/bugs.md, 1: the first packet after a pause made the controller call everybody else silent.
#[test]
fn bug_1_a_controller_that_slept_removes_nobody_for_it() {
    let pause = Fault::Pause { node: Node::Controller, for_ns: 1_500 * MS };
    for seed in 0..20 {
        let plan = Plan { seed, think_ns: 50 * MS, ..Plan::default() };
        let plan =
            plan.with_fault(100 * MS, pause).with_fault(250 * MS, Fault::Kill { replica: 0 });
        let outcome = run(&plan);
        assert_eq!(outcome.violation, None, "seed {seed}");
        // The first epoch, and the one without the dead replica.
        assert_eq!(outcome.totals.epochs, 2, "seed {seed}");
    }
}
