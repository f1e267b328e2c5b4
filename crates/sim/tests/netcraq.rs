//! NetCRAQ in every interleaving of a few calls (docs/internals/netcraq.md): where both algorithms
//! break as printed, and that the program that ships does not. The numbers of states are asserted:
//! another program has others. And chains from seeds.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use concord_core::{Guards, MS, SEC};
use concord_sim::netcraq::explore::{Call, Chain, Explored, Flight, Setup, explore};
use concord_sim::netcraq::netchain::{self, NetChainChain};
use concord_sim::netcraq::printed::{Does, PrintedChain};
use concord_sim::netcraq::shipped::{Does as D, ShippedChain};
use concord_sim::netcraq::{Cut, Fault, Plan, Totals, run as run_plan};
use concord_switch::ChainLayout;
use concord_switch::netchain::SeqWidth;
use concord_switch::netcraq::printed::{Copied, PrintedForm, PrintedSwitch, Role, Sent};
use concord_wire::netcraq::{Printed, PrintedOp};

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

fn printed(form: PrintedForm, switches: usize, calls: Vec<Vec<Call<Does>>>) -> Setup<PrintedChain> {
    Setup { settles: false, ..Setup::new(PrintedChain::new(form, switches), calls) }
}

/// Nothing is lost and nothing overtakes: w2 is committed, and read at the tail; w1's
/// acknowledgement, which has no version, has cleaned w2 at the head, which answers w1.
#[test]
fn n1_an_acknowledgement_without_a_version_shows_w1_after_w2() {
    let calls = vec![
        vec![at(0, Does::Write(1)), at(0, Does::Write(2))],
        vec![at(1, Does::Read), at(0, Does::Read)],
    ];
    let (why, steps) = wrong("N1", &printed(mended(4), 2, calls));
    assert_eq!(why, "client 1 hears 1 from 0, which is older than what was seen before it called");
    assert_eq!(steps, 13);
}

/// Two acknowledgements that are reordered leave the old value at the head, as clean, for good.
#[test]
fn n1_reordered_acknowledgements_leave_an_old_value_for_good() {
    let calls = vec![vec![at(0, Does::Write(1)), at(0, Does::Write(2))]];
    let setup = Setup { settles: true, ..printed(mended(4), 2, calls) };
    let (why, steps) = wrong("N1, reordered", &setup);
    assert_eq!((&why[..], steps), ("at rest 0 has 1, and the tail 2", 5));
}

/// A lost acknowledgement leaves the key dirty for good: each read goes to the tail.
#[test]
fn n1_a_lost_acknowledgement_leaves_a_key_dirty_for_good() {
    let calls = vec![vec![at(0, Does::Write(1))]];
    let setup = Setup { settles: true, losses: 1, ..printed(mended(4), 2, calls) };
    let (why, steps) = wrong("N1, lost", &setup);
    assert_eq!((&why[..], steps), ("at rest 0 is dirty", 3));
}

/// Line 19: the write goes to the cell that is clean by definition, and the head shows what the
/// tail lacks.
#[test]
fn n2_a_first_write_goes_to_the_clean_cell_and_is_shown() {
    let calls = vec![vec![at(0, Does::Write(1))], vec![at(0, Does::Read)]];
    let (why, steps) = wrong("N2", &printed(PrintedForm::as_printed(4), 3, calls));
    assert_eq!((&why[..], steps), ("0 shows 1, which is not committed", 4));
}

/// Lines 20 and 26: a write that goes to the tail passes the member in between, which answers the
/// old value until the acknowledgement is there.
#[test]
fn n3_a_write_forwarded_to_the_tail_bypasses_a_member() {
    let form = PrintedForm { appends_first: true, ..PrintedForm::as_printed(4) };
    let calls = vec![vec![at(0, Does::Write(1))], vec![at(2, Does::Read), at(1, Does::Read)]];
    let (why, steps) = wrong("N3", &printed(form, 3, calls));
    assert_eq!(why, "client 1 hears 0 from 1, which is older than what was seen before it called");
    assert_eq!(steps, 9);
}

/// A write that enters at another member than the head (§III.A.3 lets any take it) is not at the
/// head.
#[test]
fn n3_the_head_answers_the_old_value_after_a_write_elsewhere() {
    let calls = vec![vec![at(1, Does::Write(1))], vec![at(2, Does::Read), at(0, Does::Read)]];
    let (why, steps) = wrong("N3, elsewhere", &printed(mended(4), 3, calls));
    assert_eq!(why, "client 1 hears 0 from 0, which is older than what was seen before it called");
    assert_eq!(steps, 9);
}

/// After n lost acknowledgements every write is dropped, without a word, for good.
#[test]
fn n4_after_n_lost_acknowledgements_no_write_is_taken() {
    let mut chain = PrintedChain::new(mended(4), 2);
    let write = |value| Printed { op: PrintedOp::Write, key_id: 0, value: [value; 16] };
    let [head, tail] = chain.switches() else { panic!("two switches") };
    for value in 1..=3 {
        let Sent::Onward(sent) = head.process(write(value)) else { panic!("{value} is taken") };
        // The tail commits it; its acknowledgement is lost.
        assert!(matches!(tail.process(sent), Sent::Multicast(_)));
    }
    for value in 4..=9 {
        assert_eq!(head.process(write(value)), Sent::Dropped, "{value}");
    }
}

/// Nothing is lost: while n writes are under way, the next is dropped at one member alone, the
/// others have it.
#[test]
fn n4_a_write_is_dropped_at_one_member_alone() {
    let mut chain = PrintedChain::new(mended(2), 3);
    let [head, middle, tail] = chain.switches() else { panic!("three switches") };
    let write = |value| Printed { op: PrintedOp::Write, key_id: 0, value: [value; 16] };
    assert_eq!(head.process(write(1)), Sent::Onward(write(1)));
    assert_eq!(middle.process(write(1)), Sent::Onward(write(1)));
    let Sent::Multicast(acknowledgement) = tail.process(write(1)) else { panic!("it commits") };
    // The head has the acknowledgement, the member between not yet.
    assert_eq!(head.process(acknowledgement), Sent::Consumed);
    assert_eq!(head.process(write(2)), Sent::Onward(write(2)));
    assert_eq!(middle.process(write(2)), Sent::Dropped);
    assert!(!head.is_clean(0), "the head waits for an acknowledgement that never comes");
}

/// The old head's delayed write arrives after its successor's: the tail goes back. Nothing in the
/// packet says from when it is.
#[test]
fn n5_the_old_heads_delayed_write_goes_over_its_successors() {
    let mut chain = PrintedChain::new(mended(4), 3);
    let [head, middle, tail] = chain.switches() else { panic!("three switches") };
    let write = |value| Printed { op: PrintedOp::Write, key_id: 0, value: [value; 16] };
    let Sent::Onward(delayed) = head.process(write(1)) else { panic!("it is taken") };
    middle.set_role(Role::Head);
    assert_eq!(middle.process(write(2)), Sent::Onward(write(2)));
    assert!(matches!(tail.process(write(2)), Sent::Multicast(_)));
    assert_eq!(tail.value(0), [2; 16]);
    assert!(matches!(middle.process(delayed), Sent::Onward(_)));
    assert!(matches!(tail.process(delayed), Sent::Multicast(_)));
    assert_eq!(tail.value(0), [1; 16], "an old write over a committed one");
}

/// A removed tail, or a member that only clients reach, answers what it has as clean (traps T2,
/// T25, T31).
#[test]
fn n5_a_removed_tail_answers_what_it_had() {
    let mut chain = PrintedChain::new(mended(4), 3);
    let [head, middle, removed] = chain.switches() else { panic!("three switches") };
    middle.set_role(Role::Tail);
    let write = Printed { op: PrintedOp::Write, key_id: 0, value: [1; 16] };
    let Sent::Onward(sent) = head.process(write) else { panic!("it is taken") };
    let Sent::Multicast(acknowledgement) = middle.process(sent) else { panic!("it commits") };
    assert_eq!(head.process(acknowledgement), Sent::Consumed);
    let read = Printed { op: PrintedOp::Read, key_id: 0, value: [0; 16] };
    let reply = |value| Sent::Reply(Printed { op: PrintedOp::ReadReply, value, ..read });
    assert_eq!(head.process(read), reply([1; 16]));
    assert_eq!(removed.process(read), reply([0; 16]));
}

/// A copy of the indices before the values, with a write in between: the new tail lacks an
/// acknowledged write.
#[test]
fn n6_a_copy_beside_a_write_lacks_what_was_acknowledged() {
    let mut chain = PrintedChain::new(mended(4), 2);
    let [head, tail] = chain.switches() else { panic!("two switches") };
    let write = Printed { op: PrintedOp::Write, key_id: 0, value: [1; 16] };
    let mut newcomer = PrintedSwitch::new(mended(4), Role::Tail);
    newcomer.copy(tail, Copied::Objects);
    let Sent::Onward(sent) = head.process(write) else { panic!("it is taken") };
    let Sent::Multicast(acknowledgement) = tail.process(sent) else { panic!("it commits") };
    assert_eq!(head.process(acknowledgement), Sent::Consumed);
    newcomer.copy(tail, Copied::Indices);
    assert_eq!((head.value(0), newcomer.value(0)), ([1; 16], [0; 16]));
}

/// A new tail never acknowledges what it inherited: its predecessors stay dirty.
#[test]
fn n6_a_new_tail_acknowledges_nothing_that_it_inherited() {
    let mut chain = PrintedChain::new(mended(4), 3);
    let [head, middle, _] = chain.switches() else { panic!("three switches") };
    let write = Printed { op: PrintedOp::Write, key_id: 0, value: [1; 16] };
    let Sent::Onward(sent) = head.process(write) else { panic!("it is taken") };
    assert!(matches!(middle.process(sent), Sent::Onward(_)));
    middle.set_role(Role::Tail);
    let read = Printed { op: PrintedOp::Read, key_id: 0, value: [0; 16] };
    assert_eq!(head.process(read), Sent::Tail(read));
    assert_eq!(
        middle.process(read),
        Sent::Reply(Printed { op: PrintedOp::ReadReply, value: [1; 16], ..read })
    );
    assert!(!head.is_clean(0) && !middle.is_clean(0));
}

/// A client that asks again writes again: its retry goes over another's write that was read
/// meanwhile (NetChain, which does answer).
#[test]
fn n7_a_retried_write_is_executed_twice() {
    let calls = vec![vec![at(0, netchain::Does::Write(1))]];
    let chain = NetChainChain::new(2, SeqWidth::Wide, 0);
    let setup = Setup { retries: 1, settles: false, ..Setup::new(chain, calls) };
    let (why, steps) = wrong("N7", &setup);
    assert_eq!((&why[..], steps), ("1 was written twice", 6));
}

/// A delete is a write of some value (§III.A.3): 128 bits have no mark for it, and each value may
/// be a key's.
#[test]
fn n8_a_deleted_key_is_a_key_with_that_value() {
    let mut tail = PrintedSwitch::new(mended(4), Role::Tail);
    let mut never = PrintedSwitch::new(mended(4), Role::Tail);
    let zeroes = Printed { op: PrintedOp::Write, key_id: 0, value: [0; 16] };
    assert!(matches!(tail.process(zeroes), Sent::Multicast(_)));
    let read = Printed { op: PrintedOp::Read, ..zeroes };
    assert_eq!(tail.process(read), never.process(read), "set to zeroes, deleted, never there");
}

/// An old mapping writes another name's key: the packet has a number and no name.
#[test]
fn n8_an_old_mapping_writes_another_names_key() {
    let mut tail = PrintedSwitch::new(mended(4), Role::Tail);
    let write = |value| Printed { op: PrintedOp::Write, key_id: 0, value: [value; 16] };
    // Number 0 was name a's, and is name b's by now; a's client does not know.
    assert!(matches!(tail.process(write(2)), Sent::Multicast(_)));
    assert!(matches!(tail.process(write(1)), Sent::Multicast(_)));
    assert_eq!(tail.value(0), [1; 16]);
}

/// NetChain's number has 16 bits: from the 65,536th write on a key takes no more.
#[test]
fn n10_netchain_takes_no_write_after_65_536() {
    let calls = vec![vec![at(0, netchain::Does::Write(1))]];
    let of = |width| Setup::new(NetChainChain::new(2, width, 65_535), calls.clone());
    let (why, steps) = wrong("N10", &of(SeqWidth::Published));
    assert_eq!((&why[..], steps), ("it does not come to rest", 1));
    right("N10, wide", &of(SeqWidth::Wide), 5);
}

/// NetChain with what its printed form has: nobody asks again, and no number runs out.
#[test]
fn netchain_in_order_shows_the_tail_alone() {
    use netchain::Does::{Read, Write};
    let calls = vec![vec![at(0, Write(1)), at(0, Read)], vec![at(0, Write(2)), at(0, Read)]];
    let setup = Setup::new(NetChainChain::new(3, SeqWidth::Wide, 0), calls);
    let setup = Setup { settles: false, ..setup };
    right("NetChain", &setup, 146);
}

fn shipped_with(guards: Guards, calls: &[(&str, Vec<Call<D>>)]) -> Setup<ShippedChain> {
    let chain = ShippedChain::new(3, guards, calls);
    Setup::new(chain, calls.iter().map(|(_, calls)| calls.clone()).collect())
}

/// Sets, increments and swaps of two clients, a reader that goes from member to member, two names
/// of one cell.
fn cases(guards: Guards) -> Vec<(&'static str, Setup<ShippedChain>)> {
    let of = |calls: &[(&str, Vec<Call<D>>)]| shipped_with(guards, calls);
    let order = of(&[
        ("a", vec![at(0, D::Set(1)), at(1, D::Incr)]),
        ("a", vec![at(0, D::Read), at(1, D::Read)]),
        ("a", vec![at(2, D::Read)]),
    ]);
    let two = of(&[("a", vec![at(0, D::Incr), at(1, D::Read)]), ("a", vec![at(2, D::Incr)])]);
    let swaps = of(&[
        ("a", vec![at(0, D::SetAbsent(1)), at(2, D::Del)]),
        ("a", vec![at(0, D::SetAbsent(2))]),
    ]);
    let names = of(&[("a", vec![at(0, D::Set(1)), at(1, D::Del)]), ("b", vec![at(0, D::Set(2))])]);
    let one = of(&[("a", vec![at(0, D::Incr), at(0, D::Incr)]), ("a", vec![at(1, D::Read)])]);
    vec![
        ("order", order),
        ("two writers, twice", Setup { doubles: 1, ..two.clone() }),
        ("two writers ask again", Setup { retries: 1, ..two.clone() }),
        ("two writers, lost", Setup { losses: 1, resends: 1, ..two.clone() }),
        ("locks", Setup { doubles: 1, ..swaps.clone() }),
        ("names", Setup { doubles: 1, ..names }),
        ("a member dies", Setup { take_outs: 1, retries: 1, ..one }),
        ("a member dies, two writers", Setup { take_outs: 1, resends: 1, ..two }),
        ("a member dies, locks", Setup { take_outs: 1, ..swaps }),
    ]
}

/// Three switches: order, loss, doubles, retries, resends, a member that dies.
#[test]
fn three_switches_are_right_in_every_interleaving() {
    let states = [12_455, 23_547, 22_368, 36_775, 36_432, 35_130, 168_813, 121_474, 12_001];
    for ((name, setup), states) in cases(Guards::ALL).into_iter().zip(states) {
        right(name, &setup, states);
    }
}

/// What was acknowledged stays, whoever dies, in a chain of any length; a chain of one is a switch
/// by itself.
#[test]
fn chains_from_seeds_are_linearizable_and_come_to_rest() {
    let mut totals = Totals::default();
    for seed in 1..=400 {
        let ran = run_plan(&Plan::draw(seed));
        assert_eq!(ran.violation, None, "concord sim --system netcraq --seed {seed:#x}");
        totals.add(&ran.totals);
    }
    println!("{totals:?}");
    let t = totals;
    for count in [t.answered, t.unknown, t.reads_clean, t.reads_to_tail, t.writes, t.busy] {
        assert!(count > 100, "{t:?}");
    }
    assert!(t.repeated > 100 && t.resent > 100 && t.no_lease > 100 && t.copied > 100, "{t:?}");
    assert!(t.taken_out > 100 && t.joined > 100 && t.taken > 100, "{t:?}");
    assert!(t.expired > 100 && t.held > 100, "{t:?}");
}

/// A chain with the times and sizes that it has by default, whose clients write without a pause.
fn under_load(members: usize, calls: u32, faults: Vec<(u64, Fault)>) -> Plan {
    Plan {
        members,
        spares: 0,
        layout: ChainLayout::DEFAULT,
        lease_ns: 250 * MS,
        failure_ns: 300 * MS,
        alive_ns: 50 * MS,
        persist_ns: 5 * MS,
        clients: 8,
        keys: 4_096,
        calls,
        think_ns: 0,
        reads_percent: 20,
        ttls_percent: 0,
        locks_percent: 0,
        drift_ppm: 0,
        latency_ns: (20_000, 60_000),
        round_ns: 10_000,
        loss_ppm: 0,
        duplicate_ppm: 0,
        late_ppm: 0,
        late_ns: 0,
        patience_ns: MS,
        attempts: 40,
        faults,
        invariants: false,
        ..Plan::draw(9)
    }
}

/// Head, middle or tail killed, paused for longer than it may be silent, cut from all but clients:
/// writes go on within 0.75 s, of which 0.3 are for its silence.
#[test]
fn a_chain_writes_on_within_three_quarters_of_a_second() {
    for switch in 0..3 {
        let cut = Cut::AllButClients(switch);
        let faults =
            [Fault::Crash(switch, None), Fault::Pause(switch, 5 * SEC), Fault::Cut(cut, 5 * SEC)];
        for fault in faults {
            let ran = run_plan(&under_load(3, 4_000, vec![(200 * MS, fault)]));
            assert_eq!(ran.violation, None, "{fault:?}: {:?}", ran.totals);
            let longest = ran.pauses.iter().map(|(_, ns)| *ns).max().unwrap();
            println!("{fault:?}: {} ms of {:?}", longest / MS, ran.pauses);
            assert!(longest > 200 * MS && longest <= 750 * MS, "{fault:?}: {longest}");
        }
    }
}

/// A switch that comes back copies 4,096 keys, and is a member within a second. Writes stand still
/// meanwhile for what it copies once more as its epoch opens, and for the clients' patience, which
/// has doubled by then.
#[test]
fn a_switch_that_returns_is_a_member_within_a_second() {
    let plan = under_load(4, 6_000, vec![(100 * MS, Fault::Crash(2, Some(SEC)))]);
    let ran = run_plan(&plan);
    assert_eq!(ran.violation, None, "{:?}", ran.totals);
    println!("{:?}, pauses {:?}, {:?}", ran.returns_ns, ran.pauses, ran.totals);
    assert_eq!(ran.returns_ns.len(), 1);
    assert!(ran.returns_ns[0] <= SEC, "{:?}", ran.returns_ns);
    let of_join = ran.pauses.iter().filter(|(at, _)| *at > 1_000 * MS).map(|(_, ns)| *ns);
    assert!(of_join.max().unwrap_or(0) <= 150 * MS, "{:?}", ran.pauses);
    assert!(ran.totals.copied >= 3_500, "{:?}", ran.totals);
}

#[test]
fn equal_plans_of_netcraq_run_alike() {
    let plan = Plan { faults: vec![(5 * MS, Fault::Pause(0, MS))], ..Plan::draw(3) };
    assert_eq!(run_plan(&plan).digest, run_plan(&plan).digest);
    assert_ne!(run_plan(&plan).digest, run_plan(&Plan { seed: 4, ..plan }).digest);
}

/// Answers go to whoever called, in the order in which they leave.
#[test]
fn a_shipped_chain_answers_a_write_from_its_tail() {
    let calls = [("a", vec![at(0, D::Set(1))])];
    let mut chain = ShippedChain::new(3, Guards::ALL, &calls);
    let mut flights = vec![Flight::To(0, chain.packet(0, 0, calls[0].1[0]))];
    let mut passes = 0;
    let mut says = Vec::new();
    while !flights.is_empty() {
        match flights.remove(0) {
            Flight::To(at, packet) => {
                passes += 1;
                flights.extend(chain.comes(at, packet).unwrap());
            }
            Flight::Answer(answer) => says.push(answer.says),
        }
    }
    assert_eq!(says, ["Done of version 1 from 2"]);
    // Two at the head, one between, two at the tail, and an acknowledgement at each of the others.
    assert_eq!(passes, 7);
    chain.is_settled().unwrap();
}

/// A check is itself checked: without it, some seed or some interleaving is wrong.
#[cfg(feature = "mutants")]
mod guards {
    use concord_core::Guard;

    use super::*;

    /// Of the data plane of a chain whose members are given: what the explorer sees.
    const OF_A_CHAIN: [Guard; 12] = [
        Guard::AcknowledgedVersion,
        Guard::DirtyRead,
        Guard::MemberByMember,
        Guard::HeadOrders,
        Guard::NewerVersion,
        Guard::SessionRequest,
        Guard::ReplicatedRequest,
        Guard::ResentRequest,
        Guard::OneWrite,
        Guard::SecondPass,
        Guard::TailAnswers,
        Guard::CellName,
    ];

    /// Of members that come and go: what seeds see. `ChainEpoch` is not among them: what a removed
    /// head sent comes to switches that are newer, or heads themselves, unless several die within
    /// moments. `switch::n5_an_update_of_an_earlier_epoch_is_not_acknowledged` shows it, and
    /// `switch::n8_a_displaced_name_waits_until_all_know` shows `NameDisplaced`. Six seeds of
    /// 34,000 show `SentRequest`, which has a directed test in four packets
    /// (`client::bug_24_43_a_write_that_was_sent_ends_by_its_own_answer`). Nor do 1,000 seeds show
    /// `ChainClock`, for which a key has to outlive a head
    /// (`switch::n9_a_new_heads_time_goes_on_from_the_old_ones`), and `ChainAgreement`, since there
    /// are times to live and a lock
    /// (`switch::n6_a_newcomer_has_all_that_was_committed_meanwhile`), nor `ExpiryNumbered`, since
    /// the clocks drift and the judge allows for that
    /// (`switch::t12_a_key_is_there_until_its_end_is_numbered`).
    const OF_MEMBERS: [Guard; 6] = [
        Guard::ChainLease,
        Guard::ChainOutsiders,
        Guard::ChainStranger,
        Guard::NameGiven,
        Guard::DeadlineKept,
        Guard::LeaseAsked,
    ];

    /// How many seeds from `first` on until one fails; the invariants are off: a client has to see
    /// it, or the end.
    fn seeds_until(first: u64, guards: Guards) -> Option<(u64, String)> {
        (first..first + 1_000).find_map(|seed| {
            let plan = Plan { guards, invariants: false, ..Plan::draw(seed) };
            Some((seed - first + 1, run_plan(&plan).violation?))
        })
    }

    #[test]
    fn every_guard_of_netcraq_is_caught_by_seeds() {
        let mut missed = Vec::new();
        // That a retry comes after a resend and a death is rare: the explorer has it in six steps.
        // So is an acknowledgement of one write that comes after another one (2,779 seeds): it has
        // that in 14.
        let rare = [Guard::ResentRequest, Guard::AcknowledgedVersion];
        let of_a_chain = OF_A_CHAIN.into_iter().filter(|guard| !rare.contains(guard));
        for guard in of_a_chain.chain(OF_MEMBERS) {
            match seeds_until(1_000_000, Guards::without(guard)) {
                Some((seeds, why)) => {
                    println!("without {guard:?}: {seeds} seeds: {}", why.lines().next().unwrap());
                }
                None => missed.push(guard),
            }
        }
        assert_eq!(missed, []);
    }

    #[test]
    fn every_guard_of_netcraq_is_caught_by_the_explorer() {
        let mut missed = Vec::new();
        for guard in OF_A_CHAIN {
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
}
