//! Every interleaving of small racks (`concord_sim::explore`, docs/exhaustive.md): how many states
//! there are, and that none is wrong; each guard removed, how it comes to a wrong one.
//!
//! `CONCORD_EXPLORE=large` goes through the larger racks, too: minutes to hours.

use std::time::Instant;

use concord_sim::explore::{Budget, Call, Explored, Setup, explore};
use concord_wire::control::Protocol;

use Call::{Get, Set};
use Protocol::{Chain, PrimaryBackup};

/// One client writes, and reads back; the other reads twice.
fn full() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1"), Get("k")], vec![Get("k"), Get("k")]]
}

/// One client writes, the other reads twice.
fn short() -> Vec<Vec<Call>> {
    vec![vec![Set("k", "1")], vec![Get("k"), Get("k")]]
}

fn run(name: &str, setup: Setup) -> Explored {
    let began = Instant::now();
    let protocol = setup.protocol;
    let found = explore(setup);
    println!(
        "{protocol:?}, {name}: {} states, {} steps, {} ends, {} deep, complete {}, {:.1} s",
        found.states,
        found.transitions,
        found.ends,
        found.depth,
        found.is_complete,
        began.elapsed().as_secs_f64()
    );
    if let Some((why, lines)) = &found.violation {
        println!("  {why}:");
        lines.iter().for_each(|line| println!("    {line}"));
    }
    found
}

#[test]
#[ignore]
fn probe() {
    let n = |name: &str| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(0) as u8;
    let budget = Budget {
        losses: n("L"),
        duplicates: n("D"),
        crashes: n("C"),
        restarts: n("T"),
        isolations: n("I"),
        replacements: n("R"),
        rivals: n("V"),
        waits: n("W"),
    };
    let scripts = if std::env::var_os("SHORT").is_some() { short() } else { full() };
    let states_max = std::env::var("MAX").ok().and_then(|s| s.parse().ok()).unwrap_or(500_000);
    for protocol in [Chain, PrimaryBackup] {
        run(
            &format!("{budget:?}"),
            Setup { budget, states_max, ..Setup::new(protocol, scripts.clone()) },
        );
    }
}

#[cfg(feature = "mutants")]
mod guards {
    use super::*;
    use concord_core::{Guard, Guards};

    fn is_missed(name: &str, setup: Setup) {
        let found = run(&format!("without {name}"), setup);
        assert!(found.violation.is_some(), "nothing is wrong without {name}");
    }

    fn without(guard: Guard, protocol: Protocol, scripts: Vec<Vec<Call>>, budget: Budget) {
        let guards = Guards::without(guard);
        is_missed(&format!("{guard:?}"), Setup { guards, budget, ..Setup::new(protocol, scripts) });
    }

    #[test]
    fn last_committed() {
        without(Guard::LastCommitted, Chain, short(), Budget::default());
    }

    #[test]
    fn in_order_writes() {
        let scripts = vec![vec![Set("k", "1")], vec![Set("k", "2"), Get("k"), Get("k")]];
        without(Guard::InOrderWrites, Chain, scripts, Budget::default());
    }

    #[test]
    fn client_table() {
        let budget = Budget { losses: 1, waits: 1, ..Budget::default() };
        without(Guard::ClientTable, Chain, vec![vec![Call::Incr("k")]], budget);
    }

    #[test]
    fn prefix() {
        let scripts = vec![vec![Set("a", "1")], vec![Set("k", "1")], vec![Get("k"), Get("k")]];
        let budget = Budget { losses: 1, waits: 1, ..Budget::default() };
        without(Guard::Prefix, Chain, scripts, budget);
    }

    #[test]
    fn incarnation() {
        let scripts = vec![vec![Set("k", "1"), Get("k")]];
        let budget = Budget { restarts: 1, ..Budget::default() };
        without(Guard::Incarnation, Chain, scripts, budget);
    }

    #[test]
    fn lease() {
        let scripts = vec![vec![Set("k", "1"), Get("k")]];
        let budget = Budget { isolations: 1, waits: 1, ..Budget::default() };
        without(Guard::Lease, Chain, scripts, budget);
    }

    #[test]
    fn lease_clock() {
        let scripts = vec![vec![Set("k", "1"), Get("k")]];
        let budget = Budget { isolations: 1, waits: 1, ..Budget::default() };
        without(Guard::LeaseClock, Chain, scripts, budget);
    }

    #[test]
    fn epoch_agreement() {
        let scripts = vec![vec![Set("k", "1")], vec![Set("k", "2")]];
        let budget = Budget { crashes: 1, waits: 1, ..Budget::default() };
        without(Guard::EpochAgreement, PrimaryBackup, scripts, budget);
    }

    #[test]
    fn first_completion() {
        let budget = Budget { replacements: 1, waits: 1, ..Budget::default() };
        without(Guard::FirstCompletion, Chain, short(), budget);
    }

    /// In an ordered network the dirty set alone is enough (§6.2), and is missed.
    #[test]
    fn dirty_set_and_drop_on_full() {
        let base = Guards::without(Guard::LastCommitted);
        let ordered =
            |guards, scripts| Setup { ordered: true, guards, ..Setup::new(Chain, scripts) };
        let two = vec![vec![Set("a", "1")], vec![Set("k", "1")], vec![Get("k"), Get("k")]];
        let mut small = ordered(base, two);
        small.layout.slots = 1;
        assert!(run("ordered", ordered(base, full())).violation.is_none());
        assert!(run("ordered, one slot", small.clone()).violation.is_none());
        is_missed("DirtySet", ordered(base.and_without(Guard::DirtySet), short()));
        is_missed("DropOnFull", Setup { guards: base.and_without(Guard::DropOnFull), ..small });
    }
}
