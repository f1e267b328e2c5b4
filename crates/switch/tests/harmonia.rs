//! Tests of the program, packet by packet: the paper's rules and the traps, each by name.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use concord_core::{Guards, NodeId, Seq, SwitchId};
use concord_pisa::Verdict;
use concord_switch::craq::Craq;
use concord_switch::forward::Forward;
use concord_switch::{
    ConfigError, DropReason, Harmonia, Layout, Load as _, LoadError, SwitchProgram as _,
};
use concord_wire::control::{Config, Program, Protocol};
use concord_wire::header::at;
use concord_wire::rpc::HEADER_BYTES;
use concord_wire::{Addr, Flags, Op, Reason, Repr};

/// A program that has seen its first completion: number 1 of object 99.
fn ready(layout: Layout) -> Harmonia {
    let mut p = program(layout);
    assert_eq!(write(&mut p, 99), Ok(1));
    complete(&mut p, 99, 1);
    p
}

fn reason(p: &mut Harmonia, obj_id: u32) -> Reason {
    let (to, out) = read(p, obj_id);
    let fast = out.reason == Reason::Fast;
    assert_eq!(out.flags.has(Flags::FAST), fast);
    assert!(fast || to == replica(3), "slow reads go to the tail");
    out.reason
}

/// Algorithm 1 numbers writes, and keeps reads of objects in flight slow.
#[test]
fn algorithm_1_numbers_writes_and_keeps_dirty_reads_slow() {
    let mut p = ready(Layout::DEFAULT);
    assert_eq!(write(&mut p, 5), Ok(2));
    assert_eq!(write(&mut p, 6), Ok(3));
    assert_eq!(write(&mut p, 5), Ok(4));
    assert_eq!(reason(&mut p, 5), Reason::SlowDirty);
    complete(&mut p, 5, 2);
    assert_eq!(reason(&mut p, 5), Reason::SlowDirty, "its last write is still in flight");
    complete(&mut p, 6, 3);
    complete(&mut p, 5, 4);
    let (_, out) = read(&mut p, 5);
    assert_eq!(out.reason, Reason::Fast);
    assert_eq!(out.last_committed, Seq::new(OWN, 4));
    complete(&mut p, 6, 3);
    assert_eq!(p.view().last_committed, 4, "an old completion does not take it back");
    assert_eq!(p.view().occupied, 0);
}

/// No read is fast before the first completion with the switch's own id.
#[test]
fn section_6_3_no_fast_read_before_the_first_own_completion() {
    let mut p = program(Layout::DEFAULT);
    assert_eq!(reason(&mut p, 1), Reason::SlowNotReady);
    assert_eq!(write(&mut p, 2), Ok(1));
    complete_of(&mut p, SwitchId(OWN.0 - 1), 2, 1);
    assert_eq!(reason(&mut p, 1), Reason::SlowNotReady);
    complete(&mut p, 2, 1);
    assert_eq!(reason(&mut p, 1), Reason::Fast);
}

/// A completion of an old switch is ignored, and its reply is still forwarded.
#[test]
fn section_6_3_old_switchs_completion_is_ignored() {
    let mut p = ready(Layout::DEFAULT);
    assert_eq!(write(&mut p, 5), Ok(2));
    let flags = Flags::COMPLETION;
    for switch_id in [OWN.0 - 1, OWN.0 + 1] {
        let seq = Seq::new(SwitchId(switch_id), 2);
        let reply = Repr { flags, seq, ..request(Op::WriteReply, 5) };
        assert_eq!(run(&mut p, reply), Ok((CLIENT, reply)));
    }
    assert_eq!(p.counters().completions_foreign, 2);
    assert_eq!((reason(&mut p, 5), p.view().last_committed), (Reason::SlowDirty, 1));
    let own = Repr { flags, seq: Seq::new(OWN, 2), ..request(Op::WriteReply, 5) };
    assert_eq!(run(&mut p, own), Ok((CLIENT, own)), "a piggybacked completion is forwarded");
    assert_eq!((reason(&mut p, 5), p.view().last_committed), (Reason::Fast, 2));
}

#[test]
fn a_reply_without_the_flag_completes_nothing() {
    let mut p = ready(Layout::DEFAULT);
    assert_eq!(write(&mut p, 5), Ok(2));
    let reply = Repr { seq: Seq::new(OWN, 2), ..request(Op::WriteReply, 5) };
    assert_eq!(run(&mut p, reply), Ok((CLIENT, reply)));
    assert_eq!((reason(&mut p, 5), p.view().last_committed), (Reason::SlowDirty, 1));
}

#[test]
fn a_completion_with_a_number_never_given_out_is_ignored() {
    let mut p = ready(Layout::DEFAULT);
    assert_eq!(write(&mut p, 5), Ok(2));
    complete(&mut p, 5, 3);
    complete(&mut p, 5, 0);
    assert_eq!(p.counters().completions_impossible, 2);
    assert_eq!((reason(&mut p, 5), p.view().last_committed), (Reason::SlowDirty, 1));
}

#[test]
fn section_6_2_a_write_can_sit_in_two_stages_at_once() {
    let mut p = ready(layout(2, 16));
    let (a, b) = (1, colliding(1, 1, 16, 1)[0]);
    assert_eq!(write(&mut p, b), Ok(2));
    assert_eq!(write(&mut p, a), Ok(3), "its first slot is taken");
    complete(&mut p, b, 2);
    assert_eq!(write(&mut p, a), Ok(4), "and now it is free");
    assert_eq!(cells(&p, a), [(0, 4), (1, 3)]);
    assert_eq!(p.view().occupied, 2);

    // Deletion compares each cell: the completion of 3 must not remove 4, and that of 4 leaves
    // nothing.
    complete(&mut p, a, 3);
    assert_eq!(cells(&p, a), [(0, 4)]);
    assert_eq!(reason(&mut p, a), Reason::SlowDirty);
    complete(&mut p, a, 4);
    assert_eq!((cells(&p, a), p.view().occupied), (vec![], 0));
}

#[test]
fn section_6_2_lookup_is_any_stage() {
    let mut p = ready(layout(2, 16));
    let (a, b) = (1, colliding(1, 1, 16, 1)[0]);
    write(&mut p, b).unwrap();
    write(&mut p, a).unwrap();
    complete(&mut p, b, 2);
    assert_eq!(cells(&p, a), [(1, 3)]);
    assert_eq!(reason(&mut p, a), Reason::SlowDirty);
}

/// A write that finds no slot is dropped, and its number is burnt.
#[test]
fn section_7_2_write_without_a_slot_is_dropped() {
    let mut p = ready(layout(2, 16));
    let others = colliding(1, 2, 16, 2);
    assert_eq!(write(&mut p, others[0]), Ok(2));
    assert_eq!(write(&mut p, others[1]), Ok(3));
    assert_eq!(write(&mut p, 1), Err(DropReason::TableFull));
    assert_eq!(p.counters().dropped_table_full, 1);
    assert_eq!(write(&mut p, others[0]), Ok(5), "an object's own cell is always good for it");
    assert_eq!(reason(&mut p, 1), Reason::Fast, "nothing of it is in flight");
    complete(&mut p, others[1], 3);
    assert_eq!(write(&mut p, 1), Ok(6));
}

#[test]
fn section_7_1_a_stray_cell_is_taken_over_by_a_write() {
    let mut p = ready(layout(1, 16));
    let others = colliding(1, 1, 16, 2);
    assert_eq!(write(&mut p, others[0]), Ok(2));
    let elsewhere = (2..).find(|o| *o != 1 && !colliding(*o, 1, 16, 2).contains(&1)).unwrap();
    assert_eq!(write(&mut p, elsewhere), Ok(3));
    // 2 is lost; 3 completes, so 2 can never be executed any more (§6.2).
    complete(&mut p, elsewhere, 3);
    assert_eq!(write(&mut p, 1), Ok(4));
    assert_eq!(p.counters().strays_replaced, 1);
    assert_eq!((cells(&p, others[0]), cells(&p, 1)), (vec![], vec![(0, 4)]));
    assert_eq!(p.view().occupied, 1);
}

#[test]
fn section_6_2_a_read_removes_its_own_stray_and_is_fast() {
    let mut p = ready(Layout::DEFAULT);
    assert_eq!(write(&mut p, 5), Ok(2));
    assert_eq!(write(&mut p, 6), Ok(3));
    complete(&mut p, 6, 3);
    assert_eq!((cells(&p, 5).len(), p.view().occupied), (1, 1));
    assert_eq!(reason(&mut p, 5), Reason::Fast);
    assert_eq!((cells(&p, 5).len(), p.view().occupied, p.counters().strays_read), (0, 0, 1));
}

/// A write of all keys makes every read slow until its completion.
#[test]
fn t13_all_keys_write_makes_every_read_slow() {
    let mut p = ready(Layout::DEFAULT);
    assert_eq!(write_with(&mut p, 0, Flags::WILDCARD), Ok(2));
    assert_eq!(p.view().occupied, 0, "it takes no slot");
    assert_eq!(write(&mut p, 5), Ok(3));
    assert_eq!(reason(&mut p, 5), Reason::SlowWildcard);
    assert_eq!(reason(&mut p, 6), Reason::SlowWildcard);
    complete(&mut p, 0, 2);
    assert_eq!(reason(&mut p, 6), Reason::Fast);
    assert_eq!(reason(&mut p, 5), Reason::SlowDirty);
    let all_keys = Repr { flags: Flags::WILDCARD, ..request(Op::Read, 6) };
    let (to, out) = run(&mut p, all_keys).unwrap();
    assert_eq!((to, out.reason), (replica(3), Reason::SlowAllKeys));
}

/// A write that repeatedly finds no slot is of all keys in the end.
#[test]
fn bug_15_31_write_that_never_finds_a_slot_becomes_all_keys() {
    let mut p = ready(layout(1, 1));
    let again = |p: &mut Harmonia, attempt| run(p, Repr { attempt, ..request(Op::Write, 6) });
    assert_eq!(write(&mut p, 5), Ok(2));
    for attempt in 0..3 {
        assert_eq!(again(&mut p, attempt).map(|_| ()), Err(DropReason::TableFull));
    }
    let (to, out) = again(&mut p, 3).unwrap();
    assert_eq!((to, out.seq, p.counters().writes_overdue), (replica(1), Seq::new(OWN, 6), 1));
    assert!(out.flags.has(Flags::WILDCARD));
    complete(&mut p, 5, 2);
    assert_eq!(
        (reason(&mut p, 6), reason(&mut p, 7)),
        (Reason::SlowWildcard, Reason::SlowWildcard)
    );
    complete(&mut p, 6, 6);
    assert_eq!(reason(&mut p, 6), Reason::Fast);
    let (_, out) = again(&mut p, 3).unwrap();
    assert!(!out.flags.has(Flags::WILDCARD), "where there is a slot it takes that");
}

#[test]
fn t18_a_no_op_is_numbered_and_takes_no_slot() {
    let mut p = program(layout(1, 1));
    assert_eq!(write(&mut p, 5), Ok(1));
    assert_eq!(write(&mut p, 6), Err(DropReason::TableFull));
    assert_eq!(write_with(&mut p, 6, Flags::NOOP), Ok(3));
    complete(&mut p, 0, 3);
    assert_eq!(write(&mut p, 6), Ok(4), "all that was in the way is stray now");
}

/// A sweep through the pipeline clears strays only.
#[test]
fn t19_sweep_clears_strays_only() {
    let mut p = ready(layout(2, 16));
    assert_eq!(write(&mut p, 1), Ok(2));
    assert_eq!(write(&mut p, 2), Ok(3));
    assert_eq!(write(&mut p, 3), Ok(4));
    complete(&mut p, 3, 4);
    // The trap's trace: the slot of a stray is rewritten before the sweep reaches it.
    assert_eq!(write(&mut p, 1), Ok(5));
    for index in 0..16 {
        sweep(&mut p, index);
    }
    assert_eq!(cells(&p, 1).last().map(|c| c.1), Some(5));
    assert_eq!(cells(&p, 2), []);
    assert_eq!((p.view().occupied, p.counters().strays_swept), (1, 1));
    assert_eq!(reason(&mut p, 1), Reason::SlowDirty);
}

#[test]
fn t20_an_object_id_of_zero_is_as_dirty_as_any() {
    let mut p = ready(layout(1, 1));
    assert_eq!(reason(&mut p, 0), Reason::Fast);
    assert_eq!(write(&mut p, 0), Ok(2));
    assert_eq!(reason(&mut p, 0), Reason::SlowDirty);
    assert_eq!(write(&mut p, 1), Err(DropReason::TableFull), "the cell is not empty");
    complete(&mut p, 0, 2);
    assert_eq!((reason(&mut p, 0), p.view().occupied), (Reason::Fast, 0));
}

/// At the end of an 8-bit counter writes are dropped, and reads go on.
#[test]
fn t20_end_of_an_8_bit_counter_drops_writes() {
    let mut p = program(Layout { counter_bits: 8, ..layout(1, 16) });
    for counter in 1..=255 {
        assert_eq!(write(&mut p, 5), Ok(counter));
    }
    for _ in 0..300 {
        assert_eq!(write(&mut p, 5), Err(DropReason::SeqExhausted));
        assert_eq!(write_with(&mut p, 5, Flags::NOOP), Err(DropReason::SeqExhausted));
    }
    assert_eq!((p.view().seq, p.counters().dropped_seq_exhausted), (255, 600));
    assert_eq!(reason(&mut p, 6), Reason::SlowNotReady);
    complete(&mut p, 5, 255);
    assert_eq!(reason(&mut p, 5), Reason::Fast);
    install(&mut p, &config(2, OWN.0 + 1));
    assert_eq!((p.view().seq, p.view().last_committed), (0, 0));
    let (_, out) = run(&mut p, request(Op::Write, 5)).unwrap();
    assert_eq!(out.seq, Seq::new(SwitchId(OWN.0 + 1), 1));
}

#[test]
fn t20_a_32_bit_counter_is_full_width() {
    assert_eq!(Layout::DEFAULT.counter_max(), u32::MAX);
}

/// Each retry of a read goes to another replica, and reads are spread.
#[test]
fn t21_read_retries_reach_other_replicas() {
    // With and without read affinity.
    for layout in [Layout::DEFAULT, Layout { run_bits: 0, ..Layout::DEFAULT }] {
        let mut p = ready(layout);
        let (mut hits, mut all_three) = ([0; 3], 0);
        for run_of_reads in 0..3_000 {
            let number = concord_core::RequestNumber(run_of_reads << layout.run_bits);
            let tried: Vec<Addr> = (0..3)
                .map(|attempt| {
                    let hdr = Repr { attempt, request: number, ..request(Op::Read, 1) };
                    run(&mut p, hdr).unwrap().0
                })
                .collect();
            // At the end of the table of choices the third replica may be the first again.
            assert!(tried[0] != tried[1] && tried[1] != tried[2]);
            all_three += u32::from(tried[0] != tried[2]);
            hits[(1..=3).position(|node| replica(node) == tried[0]).unwrap()] += 1;
        }
        assert!(hits.iter().all(|h| (900..1_100).contains(h)), "{hits:?}");
        assert!(all_three > 2_970, "{all_three}");
    }
}

/// Sixteen reads of a client in a row go to one replica, and the runs are spread.
#[test]
fn read_affinity_of_sixteen() {
    let mut p = ready(Layout::DEFAULT);
    let mut to = |number| {
        let hdr = Repr { request: concord_core::RequestNumber(number), ..request(Op::Read, 1) };
        run(&mut p, hdr).unwrap().0
    };
    let mut hits = [0; 3];
    for run in 0..3_000 {
        let first = to(16 * run);
        assert!((1..16).all(|number| to(16 * run + number) == first));
        hits[(1..=3).position(|node| replica(node) == first).unwrap()] += 1;
    }
    assert!(hits.iter().all(|h| (900..1_100).contains(h)), "{hits:?}");
}

/// The destinations of a read of all keys under CRAQ, attempt by attempt.
fn readers_of_all_keys(guards: Guards) -> Vec<Addr> {
    let craq =
        Config { kind: Protocol::Craq.into(), program: Program::Craq, ..config(2, OWN.0 + 1) };
    let mut p: Craq = load(Layout::DEFAULT, guards, &craq);
    let all_keys = Repr { flags: Flags::WILDCARD, ..request(Op::Read, 0) };
    (0..3).map(|attempt| run(&mut p, Repr { attempt, ..all_keys }).unwrap().0).collect()
}

#[test]
fn bug_15_6_a_read_of_all_keys_goes_to_one_reader() {
    assert_eq!(readers_of_all_keys(Guards::ALL), [replica(3); 3]);
}

#[cfg(feature = "mutants")]
#[test]
fn bug_15_6_is_seen_without_its_guard() {
    let readers = readers_of_all_keys(Guards::without(concord_core::Guard::OneReader));
    assert!(readers[0] != readers[1] && readers[1] != readers[2] && readers[0] != readers[2]);
}

#[test]
fn a_membership_change_under_one_id_keeps_the_dirty_set() {
    let mut p = ready(Layout::DEFAULT);
    assert_eq!(write(&mut p, 5), Ok(2));
    let mut without_2 = config(2, OWN.0);
    without_2.members.remove(1);
    install(&mut p, &without_2);
    assert_eq!(reason(&mut p, 5), Reason::SlowDirty);
    for attempt in 0..10 {
        let (to, _) = run(&mut p, Repr { attempt, ..request(Op::Read, 6) }).unwrap();
        assert_ne!(to, replica(2));
    }
}

#[test]
fn without_help_it_is_a_plain_switch() {
    let plain = Config { program: Program::Forward, ..config(2, OWN.0 + 1) };
    let mut p: Forward = load(Layout::DEFAULT, Guards::ALL, &plain);
    let numbered = Repr { seq: Seq::new(OWN, 3), ..request(Op::Write, 5) };
    let (to, out) = run(&mut p, numbered).unwrap();
    assert_eq!((to, out.seq), (replica(1), Seq::NONE));
    let claimed_fast = Repr { flags: Flags::FAST, ..request(Op::Read, 5) };
    let (to, out) = run(&mut p, claimed_fast).unwrap();
    assert_eq!((to, out.reason, out.flags), (replica(3), Reason::SlowUnaided, Flags::default()));
    let reply = Repr { flags: Flags::COMPLETION, ..request(Op::WriteReply, 5) };
    assert_eq!(run(&mut p, reply), Ok((CLIENT, reply)));
    assert_eq!(p.describe().arrays, [], "it has no registers");
}

/// Every other packet is forwarded unchanged, or dropped with a reason.
#[test]
fn other_packets_are_forwarded_or_dropped_with_a_reason() {
    let mut p = program(Layout::DEFAULT);
    for (op, to) in [
        (Op::WRest, replica(1)),
        (Op::WRestAck, CLIENT),
        (Op::ReadReply, CLIENT),
        (Op::Fragment, CLIENT),
        (Op::Push, CLIENT),
    ] {
        assert_eq!(run(&mut p, request(op, 5)), Ok((to, request(op, 5))));
    }
    let pull = |node| Repr { node: NodeId(node), ..request(Op::Pull, 5) };
    assert_eq!(run(&mut p, pull(2)), Ok((replica(2), pull(2))));
    assert_eq!(run(&mut p, pull(9)), Err(DropReason::NoSuchNode));
    let nobody = Repr { client: Addr::default(), ..request(Op::ReadReply, 5) };
    assert_eq!(run(&mut p, nobody), Err(DropReason::NoClient));
    let to_itself = Repr { client: SWITCH, ..request(Op::ReadReply, 5) };
    assert_eq!(run(&mut p, to_itself), Err(DropReason::Consumed), "else it loops for ever");
    assert_eq!(p.view().seq, 0);
}

/// A switch that does not know its replicas drops every packet, and numbers none.
#[test]
fn switch_without_replicas_drops() {
    let mut p = Harmonia::load(&settings(Layout::DEFAULT, Guards::ALL)).unwrap();
    for op in Op::ALL {
        let expected =
            if *op == Op::Sweep { DropReason::Consumed } else { DropReason::Unconfigured };
        assert_eq!(run(&mut p, request(*op, 5)), Err(expected), "{op:?}");
    }
    assert_eq!((p.view().seq, p.counters().dropped_unconfigured), (0, Op::ALL.len() as u64 - 1));
}

#[test]
fn padding_is_cut_off_and_what_is_malformed_is_counted() {
    let mut p = program(Layout::DEFAULT);
    let mut bytes = Vec::new();
    request(Op::Read, 5).emit(b"body", &mut bytes);
    bytes.extend_from_slice(&[0; 40]);
    let Verdict::Forward { size_bytes, .. } = process(&mut p, &mut bytes) else {
        panic!("dropped")
    };
    let length = HEADER_BYTES + 4;
    assert_eq!(size_bytes, length);
    for cut in 0..length {
        assert!(matches!(
            process(&mut p, &mut bytes[..cut]),
            Verdict::Drop(DropReason::Malformed(_))
        ));
    }
    bytes[at::OP] = 15;
    assert!(matches!(process(&mut p, &mut bytes), Verdict::Drop(DropReason::Malformed(_))));
    let counted = (p.counters().malformed_truncated, p.counters().malformed_op);
    assert_eq!(counted, (length as u64, 1));
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let new = |l| match Harmonia::load(&settings(l, Guards::ALL)) {
        Err(LoadError::Config(error)) => Some(error),
        Err(
            LoadError::NotHere(_)
            | LoadError::Queue(_)
            | LoadError::Flair(_)
            | LoadError::Chain(_)
            | LoadError::Blocks(_)
            | LoadError::Links(_),
        )
        | Ok(_) => None,
    };
    assert_eq!(new(layout(0, 16)), Some(ConfigError::TableStages(0)));
    assert_eq!(new(layout(9, 16)), Some(ConfigError::TableStages(9)));
    assert_eq!(new(layout(1, 17)), Some(ConfigError::Slots(17)));
    assert_eq!(new(layout(1, 0)), Some(ConfigError::Slots(0)));
    let narrow = Layout { counter_bits: 1, ..layout(1, 16) };
    assert_eq!(new(narrow), Some(ConfigError::CounterBits(1)));
    let long = Layout { run_bits: 17, ..layout(1, 16) };
    assert_eq!(new(long), Some(ConfigError::RunBits(17)));
    assert_eq!(new(layout(8, 1)), None);
}

#[test]
fn section_7_2_the_stage_table_fits_an_asic_with_1_5_mib() {
    let report = program(Layout::DEFAULT).describe();
    assert_eq!((report.stages(), report.recirculations_max), (7, 7));
    assert_eq!(report.sram_bytes(), 3 * 65_536 * 8 + 4 * 4);
    assert!(report.fits(&concord_pisa::ASIC));
    assert!(program(layout(8, 1)).describe().fits(&concord_pisa::ASIC));
}

/// The removal of a guard must be caught by a test (style: "a check that guards safety is itself
/// checked"): these tests show how the rules above fail without each guard.
#[cfg(feature = "mutants")]
mod mutants {
    use super::*;
    use concord_core::{Guard, Guards};

    #[test]
    fn without_drop_on_full_a_write_in_flight_is_read_fast() {
        let mut p = guarded(layout(1, 1), Guards::without(Guard::DropOnFull));
        assert_eq!(write(&mut p, 1), Ok(1));
        complete(&mut p, 1, 1);
        assert_eq!(write(&mut p, 1), Ok(2));
        assert_eq!(write(&mut p, 2), Ok(3));
        assert_eq!(reason(&mut p, 2), Reason::Fast);
        assert_eq!(p.counters().writes_untracked, 1);
    }

    #[test]
    fn without_the_dirty_set_a_write_in_flight_is_read_fast() {
        let mut p = guarded(Layout::DEFAULT, Guards::without(Guard::DirtySet));
        assert_eq!(write(&mut p, 1), Ok(1));
        complete(&mut p, 1, 1);
        assert_eq!(write(&mut p, 1), Ok(2));
        assert_eq!(reason(&mut p, 1), Reason::Fast);
    }

    #[test]
    fn without_the_first_completion_a_new_switch_reads_fast_at_once() {
        let mut p = guarded(Layout::DEFAULT, Guards::without(Guard::FirstCompletion));
        let (_, out) = read(&mut p, 1);
        assert_eq!((out.reason, out.last_committed), (Reason::Fast, Seq::new(OWN, 0)));
    }
}

/// With several cores, a read could load its last-committed point before, and find its object clean
/// after, a completion that another core handles: read-behind replicas would then answer from a
/// state before the write. Here a packet has the registers to itself for its pass, so the point of
/// a read covers the last write of every object that it finds clean.
#[test]
fn t24_fast_read_point_covers_its_objects_last_write() {
    let mut rng = concord_core::Rng::new(24);
    let mut p = ready(layout(2, 8));
    let mut newest = [0; 8];
    let mut in_flight: Vec<(u32, u32)> = Vec::new();
    let mut fast = 0;
    for _ in 0..20_000 {
        let obj_id = rng.below(8) as u32;
        match rng.below(4) {
            0 => {
                if let Ok(counter) = write(&mut p, obj_id) {
                    newest[obj_id as usize] = counter;
                    in_flight.push((obj_id, counter));
                }
            }
            1 | 2 if !in_flight.is_empty() => {
                let (obj_id, counter) = in_flight.remove(0);
                complete(&mut p, obj_id, counter);
            }
            _ => {
                let (_, out) = read(&mut p, obj_id);
                if out.reason == Reason::Fast {
                    assert!(out.last_committed.counter >= newest[obj_id as usize]);
                    fast += 1;
                }
            }
        }
    }
    assert!(fast > 1_000, "{fast}");
}
