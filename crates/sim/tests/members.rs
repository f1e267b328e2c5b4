//! Membership, and progress of the rack: the controller is cut off, or two replicas from each
//! other, with the times that ship (`lease_ms`, `failure_ms` of the rack file).

use concord_core::{MS, SEC};
use concord_sim::{Disks, Fault, Node, Outcome, Plan, run};
use concord_wire::control::Protocol;

const CUT_AT_NS: u64 = SEC;
/// Within that time after two replicas were cut from each other writes go on.
const WRITES_GO_ON_NS: u64 = 2 * SEC;
const PROTOCOLS: [Protocol; 6] = [
    Protocol::Chain,
    Protocol::PrimaryBackup,
    Protocol::Craq,
    Protocol::Vr,
    Protocol::NoPaxos,
    Protocol::Raft,
];

/// About 250 operations a second for so long, with some loss.
fn plan(protocol: Protocol, seed: u64, for_ns: u64) -> Plan {
    Plan {
        seed,
        clients: 1,
        connections: 2,
        think_ns: 20 * MS,
        keys: 20,
        operations: (for_ns / (4 * MS)) as usize,
        lease_ns: 500 * MS,
        failure_ns: 1_500 * MS,
        loss_ppm: 2_000,
        ..Plan::of(protocol)
    }
}

/// The longest time without the end of a write, of those between two times.
fn longest_pause_ns(outcome: &Outcome, from_ns: u64, to_ns: u64) -> u64 {
    let is_write = |cmd: &[Vec<u8>]| cmd.first().is_some_and(|c| !c.starts_with(b"GET"));
    let writes = outcome.history.iter().filter(|o| is_write(&o.cmd) && o.reply.is_some());
    let mut ends: Vec<u64> = writes.filter_map(|o| o.return_ns).collect();
    ends.retain(|end| (from_ns..to_ns).contains(end));
    ends.extend([from_ns, to_ns]);
    ends.sort_unstable();
    ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// The rack is watched for longer than a failure takes after a cut.
fn watched_until(plan: Plan, at_ns: u64) -> Plan {
    plan.with_fault(at_ns, Fault::ClockJump { node: Node::Controller, by_ms: 0 })
}

/// Without a guard, the mend that it is: what a run finds then.
#[cfg(feature = "mutants")]
fn without(guard: concord_core::Guard, plan: &Plan) -> Option<String> {
    run(&Plan { guards: concord_core::Guards::without(guard), ..plan.clone() }).violation
}

/// Without its guard a controller that was cut off is caught.
#[cfg(feature = "mutants")]
#[test]
fn bug_16_1_unguarded_cut_controller_is_caught() {
    let fault = Fault::CutController { with_switch: false, for_ns: 6 * SEC };
    let plan = plan(Protocol::Chain, 1, 11 * SEC).with_fault(CUT_AT_NS, fault);
    let text = without(concord_core::Guard::Deaf, &watched_until(plan, 11 * SEC)).unwrap();
    assert!(text.contains("and all are well"), "{text}");
}

/// Without its guard two replicas that are cut stop writes.
#[cfg(feature = "mutants")]
#[test]
fn bug_16_2_unguarded_cut_replicas_stop_writes() {
    let fault = Fault::CutPair { one: 0, other: 1, for_ns: 8 * SEC };
    let plan = plan(Protocol::Chain, 1, 10 * SEC).with_fault(CUT_AT_NS, fault);
    let guards = concord_core::Guards::without(concord_core::Guard::CutPair);
    let outcome = run(&Plan { guards, ..watched_until(plan, CUT_AT_NS + 8 * SEC) });
    let pause_ns = longest_pause_ns(&outcome, CUT_AT_NS, CUT_AT_NS + 8 * SEC);
    assert!(pause_ns > WRITES_GO_ON_NS, "{} ms", pause_ns / MS);
}

#[test]
fn bug_16_1_nobody_leaves_because_the_controller_was_cut_off() {
    for (n, protocol) in PROTOCOLS.into_iter().enumerate() {
        for (m, seconds) in [2, 6, 20].into_iter().enumerate() {
            for with_switch in [false, true] {
                let (for_ns, seed) = (seconds * SEC, 100 * n as u64 + 10 * m as u64);
                let plan = plan(protocol, seed, CUT_AT_NS + for_ns + 4 * SEC)
                    .with_fault(CUT_AT_NS, Fault::CutController { with_switch, for_ns });
                let plan = watched_until(plan, CUT_AT_NS + for_ns + 4 * SEC);
                let outcome = run(&plan);
                let name = format!("{protocol:?}, {seconds} s, with the switch: {with_switch}");
                assert_eq!(outcome.violation, None, "{name}");
                let control = &outcome.totals.control;
                assert_eq!((control.removed_silent, control.epochs), (0, 1), "{name}");
                assert_eq!(outcome.totals.replicas.copies_begun, 0, "{name}");
                let ends_ns = CUT_AT_NS + for_ns;
                if !with_switch {
                    let pause_ns = longest_pause_ns(&outcome, CUT_AT_NS, ends_ns + 3 * SEC);
                    assert!(pause_ns < SEC, "{name}: no write for {} ms", pause_ns / MS);
                }
            }
        }
    }
}

/// Writes go on while two replicas are cut from each other.
#[test]
fn bug_16_2_writes_go_on_while_two_replicas_are_cut() {
    for (n, protocol) in PROTOCOLS.into_iter().enumerate() {
        for (one, other) in [(0, 1), (1, 2), (0, 2)] {
            let (for_ns, seed) = (8 * SEC, 1_000 + 10 * n as u64 + one as u64 + other as u64);
            let plan = plan(protocol, seed, CUT_AT_NS + for_ns + 4 * SEC)
                .with_fault(CUT_AT_NS, Fault::CutPair { one, other, for_ns });
            let plan = watched_until(plan, CUT_AT_NS + for_ns + 4 * SEC);
            let outcome = run(&plan);
            let name = format!("{protocol:?}, {one} and {other}");
            assert_eq!(outcome.violation, None, "{name}");
            let ends_ns = CUT_AT_NS + for_ns;
            let pause_ns = longest_pause_ns(&outcome, CUT_AT_NS, ends_ns);
            println!("{name}: longest pause {} ms", pause_ns / MS);
            assert!(pause_ns < WRITES_GO_ON_NS, "{name}: no write for {} ms", pause_ns / MS);
            if !protocol.is_quorum() {
                // It was taken out once, and is a member again when the cut is over.
                let control = &outcome.totals.control;
                assert_eq!((control.removed_cut, control.promoted), (1, 1), "{name}");
            }
        }
    }
}

/// A replica that the controller did not hear until everything healed may be removed just then,
/// though the rack was quick and is to come to rest by now. And a packet of an odd form beside one
/// on a way that is cut does not arrive either: the controller would take itself for one that
/// hears.
#[test]
fn bug_16_sim5_removal_for_an_earlier_cut_is_no_fault() {
    for text in
        [include_str!("plans/cut-until-healed.toml"), include_str!("plans/odd-beside-cut.toml")]
    {
        let plan = Plan::from_toml(text).unwrap();
        assert_eq!(run(&plan).violation, None);
    }
}

/// A replica with a disk that is away for 10 s, and what became of it. So many bytes of the log are
/// kept for it.
fn away(protocol: Protocol, seed: u64, fault: Fault, log_memory_bytes: usize) -> Outcome {
    let mut plan = plan(protocol, seed, CUT_AT_NS + 16 * SEC).with_fault(CUT_AT_NS, fault);
    plan.records_kept = 50;
    plan.disks = Disks { sync_ns: MS, snapshot_bytes: 30_000, ..Disks::default() };
    plan.bounds.log_memory_bytes = log_memory_bytes;
    let outcome = run(&watched_until(plan, CUT_AT_NS + 15 * SEC));
    assert_eq!(outcome.violation, None, "{protocol:?}, {fault:?}");
    outcome
}

/// Who was away for ten seconds goes on from records that are still in memory.
#[test]
fn ten_seconds_away_resumes_from_memory() {
    let for_ns = 10 * SEC;
    for (n, protocol) in PROTOCOLS.into_iter().enumerate() {
        for (m, replica) in [0, 1, 2].into_iter().enumerate() {
            let cut = Fault::PowerCut { replica, for_ns };
            let isolated = Fault::Isolate { replica, for_ns, stale_switch: false };
            // A head that lives on alone orders writes that no other has: its log is not theirs.
            let is_alone = replica == 0 && !protocol.is_quorum();
            for fault in [cut, isolated].into_iter().take(if is_alone { 1 } else { 2 }) {
                let seed = 3_000 + 10 * n as u64 + m as u64;
                let name = format!("{protocol:?}, {fault:?}");
                let copies =
                    |seed, bytes| away(protocol, seed, fault, bytes).totals.replicas.copies_begun;
                assert_eq!(copies(seed, 4 << 20), 0, "{name}");
                // One that the switch's writes reach all along does not lack so much in every seed.
                let tries = if protocol.is_sequenced() { 4 } else { 1 };
                let mut seeds = (seed..).step_by(100).take(tries);
                assert!(seeds.any(|seed| copies(seed, 0) > 0), "{name}");
            }
        }
    }
}
