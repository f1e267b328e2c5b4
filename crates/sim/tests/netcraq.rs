//! NetCRAQ in every interleaving of a few calls (docs/internals/netcraq.md): where both algorithms
//! break as printed, and that the program that ships does not. The numbers of states are asserted:
//! another program has others.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use concord_core::Guards;
use concord_sim::netcraq::explore::{Call, Chain, Explored, Setup, explore};
use concord_sim::netcraq::netchain::{self, NetChainChain};
use concord_sim::netcraq::printed::{Does, PrintedChain};
use concord_sim::netcraq::shipped::{self, ShippedChain};
use concord_switch::netchain::SeqWidth;
use concord_switch::netcraq::printed::PrintedForm;

fn run<C: Chain>(name: &str, setup: &Setup<C>) -> Explored {
    let began = Instant::now();
    let found = explore(setup);
    println!(
        "{name}: {} states, {} steps, complete {}, {:.1} s",
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
fn right<C: Chain>(name: &str, setup: &Setup<C>, states: usize) {
    let found = run(name, setup);
    assert_eq!(found.violation, None, "{name}");
    assert!(found.is_complete, "{name}");
    if std::env::var_os("CONCORD_EXPLORE").is_none_or(|way| way != "count") {
        assert_eq!(found.states, states, "{name}");
    }
}

/// What goes wrong, and in how many steps at least.
fn wrong<C: Chain>(name: &str, setup: &Setup<C>) -> (String, usize) {
    let (why, trace) = run(name, setup).violation.unwrap();
    (why, trace.len())
}

fn at<D>(at: usize, does: D) -> Call<D> {
    Call { at, does }
}

/// Both mends that make other holes visible.
fn mended(versions: u32) -> PrintedForm {
    PrintedForm { appends_first: true, by_member: true, ..PrintedForm::as_printed(versions) }
}

#[test]
fn n1_an_acknowledgement_without_a_version_cleans_a_later_write() {
    let calls = vec![
        vec![at(0, Does::Write(1)), at(0, Does::Write(2))],
        vec![at(1, Does::Read), at(0, Does::Read)],
    ];
    let setup = Setup { settles: false, ..Setup::new(PrintedChain::new(mended(4), 2), calls) };
    let (why, steps) = wrong("N1", &setup);
    println!("{why} {steps}");
}

#[test]
fn n2_a_first_write_goes_to_the_clean_cell_and_is_shown() {
    let calls = vec![vec![at(0, Does::Write(1))], vec![at(0, Does::Read)]];
    let form = PrintedForm::as_printed(4);
    let setup = Setup::new(PrintedChain::new(form, 3), calls);
    let (why, steps) = wrong("N2", &setup);
    println!("{why} {steps}");
}

fn shipped_setup(calls: &[(&str, Vec<Call<shipped::Does>>)]) -> Setup<ShippedChain> {
    let chain = ShippedChain::new(3, Guards::ALL, calls);
    Setup::new(chain, calls.iter().map(|(_, calls)| calls.clone()).collect())
}

#[test]
fn every_interleaving_is_right() {
    use shipped::Does as D;
    let calls = [
        ("a", vec![at(0, D::Set(1)), at(0, D::Incr)]),
        ("a", vec![at(1, D::Incr), at(0, D::Read)]),
    ];
    right("order", &shipped_setup(&calls), 0);
    let _ = (NetChainChain::new(3, SeqWidth::Wide, 0), netchain::Does::Read);
}
