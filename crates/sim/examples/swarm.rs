//! `swarm [PROTOCOL] FIRST COUNT [GUARD]`: runs seeds, of one protocol if it is named, with a guard
//! removed if one is named (that needs `--features mutants`), and prints the first violation and
//! the totals.

use std::time::Instant;

use concord_core::guard::{ALL_GUARDS, Guards};
use concord_sim::{Aim, Plan, Totals, parse_protocol, run};

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let protocol = args.first().and_then(|name| parse_protocol(name).ok());
    args.drain(..usize::from(protocol.is_some()));
    let draw = |seed| Plan::draw_aimed(seed, Aim { protocol, ..Aim::default() });
    let number = |at: usize| args.get(at).and_then(|a| a.parse().ok());
    let (first, count) = (number(0).unwrap_or(0u64), number(1).unwrap_or(1_000u64));
    let guards = guards(args.get(2).map(String::as_str));
    let began = Instant::now();
    let mut totals = Totals::default();
    for seed in first..first + count {
        let outcome = run(&Plan { guards, ..draw(seed) });
        totals.add(&outcome.totals);
        if let Some(violation) = outcome.violation {
            println!("seed {seed}, after {}: {violation}", seed - first + 1);
            println!("{:#?}", draw(seed));
            std::process::exit(1);
        }
    }
    println!("{totals}{count} seeds in {:?}", began.elapsed());
}

fn guards(name: Option<&str>) -> Guards {
    let Some(name) = name else { return Guards::ALL };
    let found = ALL_GUARDS.into_iter().find(|g| format!("{g:?}") == name);
    let Some(guard) = found else {
        eprintln!("no guard {name}; there are {ALL_GUARDS:?}");
        std::process::exit(2);
    };
    without(guard)
}

#[cfg(feature = "mutants")]
fn without(guard: concord_core::Guard) -> Guards {
    Guards::without(guard)
}

#[cfg(not(feature = "mutants"))]
fn without(_: concord_core::Guard) -> Guards {
    eprintln!("removing a guard needs --features mutants");
    std::process::exit(2)
}
