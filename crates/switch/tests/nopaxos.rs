//! Tests of the programs as NOPaxos' sequencer: every write gets a number and goes to all replicas.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use concord_core::{Epoch, Guards, Incarnation, Instant, Machine, NodeId, Now, Seq};
use concord_pisa::{Copies, Verdict};
use concord_switch::nopaxos::NoPaxos;
use concord_switch::nopaxos_harmonia::NoPaxosHarmonia;
use concord_switch::{Agent, AgentConfig, DropReason, Layout, Load, SwitchProgram};
use concord_wire::control::{Config, Membership, Message as _, Program, Protocol};
use concord_wire::nopaxos::Stamp;
use concord_wire::{Addr, Flags, Op, Packet, Repr};

fn stamp_of(view: u32, now_ms: u64, memory_full: bool) -> Stamp {
    Stamp { view: Epoch(view), from: NodeId(1), now_ms, memory_full, disk_full: false }
}

fn configured(program: Program) -> Config {
    Config { kind: Protocol::NoPaxos.into(), program, ..config(1, OWN.0) }
}

/// A program that has the log's time.
fn stamped<P: Load>(layout: Layout, program: Program) -> P {
    let mut p: P = load(layout, Guards::ALL, &configured(program));
    let mut stamp = Vec::new();
    stamp_of(1, 1_000, false).emit(&mut stamp);
    assert!(p.control(Now::default(), &stamp).unwrap().is_some(), "a no-op is its first write");
    p
}

fn with_dirty_set(layout: Layout) -> NoPaxosHarmonia {
    stamped(layout, Program::NoPaxosHarmonia)
}

/// Runs a write through the program; it must go to all replicas.
fn cast<P>(program: &mut P, hdr: Repr) -> Result<Repr, DropReason>
where
    P: SwitchProgram<Reason = DropReason>,
{
    let mut bytes = Vec::new();
    hdr.emit(b"body", &mut bytes);
    match process(program, &mut bytes) {
        Verdict::Multicast { to: Copies::Group(group), size_bytes } => {
            let members = (0..).map_while(|index| program.member(group, index));
            assert!(members.eq([replica(1), replica(2), replica(3)]));
            Ok(Packet::parse(&bytes[..size_bytes]).unwrap().repr())
        }
        Verdict::Drop(reason) => Err(reason),
        other => panic!("a write goes to all: {other:?}"),
    }
}

fn every_write_gets_the_next_number(p: &mut impl SwitchProgram<Reason = DropReason>) {
    for counter in 1..=5 {
        let out = cast(p, request(Op::Write, 7)).unwrap();
        assert_eq!(out.seq, Seq::new(OWN, counter));
        assert_eq!(out.flags, Flags::default());
    }
}

/// Whether a write carries that memory is full, after a stamp of that view with or without it.
fn is_full_after(p: &mut impl SwitchProgram<Reason = DropReason>, view: u32, full: bool) -> bool {
    let mut stamp = Vec::new();
    stamp_of(view, 1_000, full).emit(&mut stamp);
    assert!(p.control(Now::default(), &stamp).is_ok());
    cast(p, request(Op::Write, 7)).unwrap().flags.has(Flags::MEMORY_FULL)
}

fn a_group_founded_anew_stamps_in_views_of_its_own<P>(program: Program)
where
    P: Load + SwitchProgram<Reason = DropReason>,
{
    let mut p: P = stamped(Layout::DEFAULT, program);
    assert!(is_full_after(&mut p, 40, true));
    let anew = Config { switch_id: OWN.0 + 1, ..configured(program) };
    assert!(p.install(Now::default(), &anew).is_ok());
    assert!(!is_full_after(&mut p, 2, false));
    assert!(is_full_after(&mut p, 3, true));
}

/// A group that is founded anew stamps in its own views.
#[test]
fn bug_17_1_refounded_group_stamps_in_its_own_views() {
    a_group_founded_anew_stamps_in_views_of_its_own::<NoPaxos>(Program::NoPaxos);
    a_group_founded_anew_stamps_in_views_of_its_own::<NoPaxosHarmonia>(Program::NoPaxosHarmonia);
}

/// A switch gets another id after writes had gone through another switch for long: the log's time
/// continues from its leader's, far behind the one that this switch stamped under the previous id.
fn a_new_id_begins_with_the_leader_s_time<P>(program: Program)
where
    P: Load + SwitchProgram<Reason = DropReason>,
{
    let says = |p: &mut P, view, now_ms| {
        let mut stamp = Vec::new();
        stamp_of(view, now_ms, false).emit(&mut stamp);
        p.control(Now::default(), &stamp).unwrap().is_some()
    };
    let mut p: P = stamped(Layout::DEFAULT, program);
    assert!(!says(&mut p, 2, 9_000));
    assert_eq!(cast(&mut p, request(Op::Write, 7)).unwrap().time_ms, 9_000);
    let next = Config { epoch: 3, switch_id: OWN.0 + 1, ..configured(program) };
    assert!(p.install(Now::default(), &next).is_ok());
    assert_eq!(cast(&mut p, request(Op::Write, 7)).unwrap_err(), DropReason::Unstamped);
    assert!(says(&mut p, 3, 2_000), "a no-op is its first write");
    assert_eq!(cast(&mut p, request(Op::Write, 7)).unwrap().time_ms, 2_000);
}

/// A switch with a new id forgets the time that it stamped.
#[test]
fn bug_15_35_new_switch_id_forgets_the_stamped_time() {
    a_new_id_begins_with_the_leader_s_time::<NoPaxos>(Program::NoPaxos);
    a_new_id_begins_with_the_leader_s_time::<NoPaxosHarmonia>(Program::NoPaxosHarmonia);
}

/// Members that are not in the leader's view yet get the writes, and no reads.
#[test]
fn bug_19_24_writes_go_to_members_that_answer_no_reads_too() {
    let mut p = with_dirty_set(Layout::DEFAULT);
    let mut config = configured(Program::NoPaxosHarmonia);
    config.joining = config.members.split_off(1);
    assert!(p.install(Now::default(), &config).is_ok());
    cast(&mut p, request(Op::Write, 7)).unwrap();
    let routes = p.harmonia().store().routes().unwrap();
    assert_eq!(routes.replicas, [(1, replica(1))]);
}

/// Under NOPaxos every write gets the next number, with and without Harmonia.
#[test]
fn nopaxos_writes_are_numbered_consecutively() {
    let mut p = with_dirty_set(Layout::DEFAULT);
    every_write_gets_the_next_number(&mut p);
    assert_eq!(p.harmonia().view().occupied, 1, "one object");
    let mut alone: NoPaxos = stamped(Layout::DEFAULT, Program::NoPaxos);
    every_write_gets_the_next_number(&mut alone);
    let names: Vec<_> = alone.describe().arrays.iter().map(|array| array.name).collect();
    assert_eq!(names, ["seq"], "all that a sequencer needs");
}

/// T23: if it were dropped, every replica would miss its number, at the cost of an agreement.
#[test]
fn t23_a_write_without_a_slot_goes_on_as_a_no_op() {
    let mut p = with_dirty_set(layout(1, 1));
    assert_eq!(cast(&mut p, request(Op::Write, 1)).unwrap().flags, Flags::default());
    let full = cast(&mut p, request(Op::Write, 2)).unwrap();
    assert_eq!((full.flags, full.seq), (Flags::NOOP, Seq::new(OWN, 2)));
    assert_eq!(
        (p.harmonia().counters().writes_as_noop, p.harmonia().counters().dropped_table_full),
        (1, 0)
    );
    assert_eq!(cast(&mut p, request(Op::Write, 1)).unwrap().seq.counter, 3);
}

/// T23: the session number and the switch id are one number, and so are their counters.
#[test]
fn t23_ordering_number_is_the_slots() {
    let mut p = with_dirty_set(Layout::DEFAULT);
    let out = cast(&mut p, request(Op::Write, 5)).unwrap();
    assert_eq!(cells(p.harmonia(), 5), [(0, out.seq.counter)]);
    complete(&mut p, 5, out.seq.counter);
    assert_eq!(
        (p.harmonia().view().occupied, p.harmonia().view().last_committed),
        (0, out.seq.counter)
    );
    let next = Config {
        kind: Protocol::NoPaxos.into(),
        program: Program::NoPaxosHarmonia,
        ..config(2, OWN.0 + 1)
    };
    install(&mut p, &next);
    assert!(!is_full_after(&mut p, 2, false));
    assert_eq!(cast(&mut p, request(Op::Write, 5)).unwrap().seq.counter, 2, "a new session");
}

/// Under NOPaxos the agent sends a write to each replica with the log's time.
#[test]
fn nopaxos_write_goes_to_each_replica_with_log_time() {
    let mut agent = Agent::new(AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER)).unwrap();
    let now = Now { instant: Instant(1_000), unix_ms: 77_000 };
    let config = Config {
        kind: Protocol::NoPaxos.into(),
        program: Program::NoPaxosHarmonia,
        ..config(1, OWN.0)
    };
    let mut sent: Vec<(Addr, Vec<u8>)> = Vec::new();
    let mut bytes = Vec::new();
    Membership::Configure(config.into()).emit(&mut bytes);
    agent.handle(now, CLIENT, &mut bytes, &mut sent);
    sent.clear();
    request(Op::Write, 5).emit(b"body", &mut bytes);
    agent.handle(now, CLIENT, &mut bytes.clone(), &mut sent);
    assert!(sent.is_empty(), "it has not heard the log's time");
    let mut stamp = Vec::new();
    stamp_of(1, 55_000, true).emit(&mut stamp);
    agent.handle(now, CLIENT, &mut stamp.clone(), &mut sent);
    sent.clear();
    // The log's time advances with the switch's clock, whatever the clock's absolute value.
    let now = Now { unix_ms: 77_100, ..now };
    agent.handle(now, CLIENT, &mut bytes, &mut sent);
    let to: Vec<Addr> = sent.iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [replica(1), replica(2), replica(3)]);
    let out = Packet::parse(&sent[0].1).unwrap().repr();
    assert_eq!(out.time_ms, 55_101, "100 ms, and a hundredth");
    assert!(out.flags.has(Flags::MEMORY_FULL));
    // A leader that was deposed is ignored; the time never falls.
    stamp_of(0, 99_000, false).emit(&mut stamp);
    agent.handle(now, CLIENT, &mut stamp.clone(), &mut Vec::new());
    stamp_of(1, 50_000, true).emit(&mut stamp);
    agent.handle(now, CLIENT, &mut stamp, &mut Vec::new());
    let mut again = Vec::new();
    request(Op::Write, 5).emit(b"body", &mut bytes);
    agent.handle(now, CLIENT, &mut bytes, &mut again);
    let out = Packet::parse(&again[0].1).unwrap().repr();
    assert_eq!(out.time_ms, 55_101);
    assert!(out.flags.has(Flags::MEMORY_FULL));
    assert!(sent.iter().all(|(_, bytes)| *bytes == sent[0].1));
}
