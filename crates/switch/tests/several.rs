//! Tests of requests of several objects: a pass for each of them.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use concord_core::{Guards, Incarnation, Instant, Machine, Now, ObjectId, Seq, SwitchId};
use concord_pisa::{Metadata, Verdict};
use concord_switch::nopaxos_harmonia::NoPaxosHarmonia;
use concord_switch::{
    Agent, AgentConfig, DropReason, Harmonia, Ingress, Layout, Loop, PortTable, SwitchProgram,
};
use concord_wire::control::{Config, Membership, Message as _, Program, Protocol};
use concord_wire::nopaxos::Stamp;
use concord_wire::{Addr, Flags, FurtherIds, Op, Packet, Reason, Repr};

/// A request of several objects.
fn of(op: Op, objects: &[u32]) -> Repr {
    let further: Vec<ObjectId> = objects[1..].iter().copied().map(ObjectId).collect();
    Repr { further: FurtherIds::new(&further).unwrap(), ..request(op, objects[0]) }
}

/// A packet on its way: its bytes, the number of its passes, and the metadata of the last one.
struct Way {
    bytes: Vec<u8>,
    passes: u8,
    metadata: Metadata,
}

impl Way {
    fn of(hdr: Repr) -> Way {
        let mut bytes = Vec::new();
        hdr.emit(b"body", &mut bytes);
        Way { bytes, passes: 0, metadata: Metadata::default() }
    }

    /// Runs another pass; `None` if the packet is recirculated.
    fn pass<P>(&mut self, program: &mut P) -> Option<Result<(Option<Addr>, Repr), DropReason>>
    where
        P: SwitchProgram<Reason = DropReason>,
    {
        let ports = PortTable::default();
        let first = Ingress::first(Now::default(), CLIENT, &ports);
        let (passes, metadata) = (self.passes, self.metadata);
        let verdict = program.process(&Ingress { passes, metadata, ..first }, &mut self.bytes);
        let out = || Packet::parse(&self.bytes).unwrap().repr();
        Some(match verdict {
            Verdict::Forward { to, .. } => Ok((Some(to), out())),
            Verdict::Multicast { .. } => Ok((None, out())),
            Verdict::Drop(reason) => Err(reason),
            Verdict::Recirculate { metadata, .. } => {
                (self.passes, self.metadata) = (self.passes + 1, metadata);
                return None;
            }
            other => panic!("{other:?}"),
        })
    }
}

/// Runs all passes of a packet; returns their number, and the outcome.
fn run_all<P>(program: &mut P, hdr: Repr) -> (u8, Result<(Option<Addr>, Repr), DropReason>)
where
    P: SwitchProgram<Reason = DropReason>,
{
    let mut way = Way::of(hdr);
    for passes in 1..=9 {
        if let Some(end) = way.pass(program) {
            return (passes, end);
        }
    }
    panic!("it comes round for ever")
}

fn ready_with(layout: Layout, guards: Guards) -> Harmonia {
    let mut p = guarded(layout, guards);
    write(&mut p, 99).unwrap();
    complete(&mut p, 99, 1);
    p
}

fn reason(p: &mut Harmonia, objects: &[u32]) -> Reason {
    run_all(p, of(Op::Read, objects)).1.unwrap().1.reason
}

/// A write of several objects has one number and a slot for each.
#[test]
fn one_number_and_a_slot_per_object() {
    let mut p = ready_with(Layout::DEFAULT, Guards::ALL);
    let objects = [1, 2, 3, 4, 5, 6, 7, 8];
    let (passes, end) = run_all(&mut p, of(Op::Write, &objects));
    let (to, out) = end.unwrap();
    assert_eq!((passes, to, out.seq), (8, Some(replica(1)), Seq::new(OWN, 2)));
    assert!(!out.flags.has(Flags::WILDCARD) && out.further.len() == 7);
    assert_eq!((p.view().occupied, p.view().seq, p.view().wildcard_seq), (8, 2, 0));
    for object in objects {
        assert_eq!(
            (cells(&p, object), read(&mut p, object).1.reason),
            (vec![(0, 2)], Reason::SlowDirty)
        );
    }
    assert_eq!(reason(&mut p, &[9, 10]), Reason::Fast);
    // The completion names the first object; the entries of the others turn stray.
    complete(&mut p, 1, 2);
    assert_eq!(p.view().occupied, 7);
    assert_eq!(reason(&mut p, &objects), Reason::Fast);
    assert_eq!(p.view().occupied, 0);
    assert_eq!((p.counters().writes_several, p.counters().reads_several), (1, 2));
}

/// A write one of whose objects finds no slot is dropped, and its entries turn stray.
#[test]
fn partial_slots_drop_the_write_and_leave_strays() {
    let layout = layout(1, 2);
    let mut p = ready_with(layout, Guards::ALL);
    // Another object has the only slot that the second one could take.
    let second = (1..).find(|o| colliding(*o, 1, 2, 1) != [99]).unwrap();
    let blocker = colliding(second, 1, 2, 1)[0];
    let first = (1..)
        .find(|o| ![second, blocker].contains(o) && !colliding(second, 1, 2, 50).contains(o))
        .unwrap();
    assert_eq!(write(&mut p, blocker), Ok(2));
    let (passes, end) = run_all(&mut p, of(Op::Write, &[first, second]));
    assert_eq!((passes, end), (2, Err(DropReason::TableFull)));
    assert_eq!(cells(&p, first), [(0, 3)]);
    assert_eq!(reason(&mut p, &[first]), Reason::SlowDirty, "its number is burnt");
    assert_eq!(write(&mut p, blocker), Ok(4));
    complete(&mut p, blocker, 4);
    assert_eq!(reason(&mut p, &[first]), Reason::Fast);
    assert_eq!(p.view().occupied, 0);
}

/// A write of two objects to a dirty set of one slot, and its second attempt.
fn without_room(guards: Guards) -> [Result<(Option<Addr>, Repr), DropReason>; 2] {
    let mut p = ready_with(layout(1, 1), guards);
    [0, 1].map(|attempt| run_all(&mut p, Repr { attempt, ..of(Op::Write, &[1, 2]) }).1)
}

/// A write whose own objects share a slot succeeds when it is retried.
#[test]
fn bug_18_2_objects_sharing_a_slot_get_through_on_retry() {
    let [first, second] = without_room(Guards::ALL);
    assert_eq!(first, Err(DropReason::TableFull));
    let (to, out) = second.unwrap();
    assert_eq!((to, out.seq.counter), (Some(replica(1)), 3));
    assert!(out.flags.has(Flags::WILDCARD) && out.further.len() == 1);
}

/// A write that others overtake gets a new number, and becomes one of all keys.
#[test]
fn overtaken_write_becomes_all_keys() {
    let mut p = ready_with(Layout::DEFAULT, Guards::ALL);
    let mut way = Way::of(of(Op::Write, &[1, 2, 3]));
    assert!(way.pass(&mut p).is_none() && way.pass(&mut p).is_none());
    assert_eq!(write(&mut p, 7), Ok(3));
    let (to, out) = way.pass(&mut p).unwrap().unwrap();
    assert_eq!((to, out.seq), (Some(replica(1)), Seq::new(OWN, 4)));
    assert!(out.flags.has(Flags::WILDCARD));
    assert_eq!((p.view().seq, p.view().wildcard_seq, p.counters().writes_overtaken), (4, 4, 1));
    complete(&mut p, 7, 3);
    for object in [1, 2, 3, 1_000] {
        assert_eq!(read(&mut p, object).1.reason, Reason::SlowWildcard);
    }
    complete(&mut p, 1, 4);
    assert_eq!(reason(&mut p, &[1, 2, 3]), Reason::Fast);
}

/// A read of several objects is fast only if each is clean, and gets the last point.
#[test]
fn fast_read_needs_every_object_clean() {
    let mut p = ready_with(Layout::DEFAULT, Guards::ALL);
    assert_eq!(write(&mut p, 2), Ok(2));
    let (passes, end) = run_all(&mut p, of(Op::Read, &[1, 2, 3]));
    let (to, out) = end.unwrap();
    assert_eq!((passes, to, out.reason), (2, Some(replica(3)), Reason::SlowDirty));
    assert!(!out.flags.has(Flags::FAST));
    // The write of the second completes between the first pass and the second: it must be seen.
    let mut way = Way::of(of(Op::Read, &[1, 2]));
    assert!(way.pass(&mut p).is_none());
    complete(&mut p, 2, 2);
    let (_, out) = way.pass(&mut p).unwrap().unwrap();
    assert_eq!((out.reason, out.last_committed), (Reason::Fast, Seq::new(OWN, 2)));
    assert!(out.flags.has(Flags::FAST));
    let all = Repr { flags: Flags::WILDCARD, ..of(Op::Read, &[1, 2]) };
    assert_eq!(run_all(&mut p, all).1.unwrap().1.reason, Reason::SlowAllKeys);
}

#[test]
fn nothing_goes_on_under_another_switch_id_than_it_began_with() {
    let mut p = ready_with(Layout::DEFAULT, Guards::ALL);
    let mut written = Way::of(of(Op::Write, &[1, 2]));
    let mut asked = Way::of(of(Op::Read, &[3, 4]));
    assert!(written.pass(&mut p).is_none() && asked.pass(&mut p).is_none());
    install(&mut p, &config(2, OWN.0 + 1));
    assert_eq!(written.pass(&mut p), Some(Err(DropReason::Outlived)));
    assert_eq!((p.view().occupied, p.counters().outlived), (0, 1));
    let new = SwitchId(OWN.0 + 1);
    let hdr = Repr { seq: Seq::new(new, 1), ..request(Op::WriteCompletion, 9) };
    run(&mut p, request(Op::Write, 9)).unwrap();
    run(&mut p, hdr).unwrap_err();
    assert_eq!(asked.pass(&mut p).unwrap().unwrap().1.reason, Reason::SlowNotReady);
}

fn sequencer(layout: Layout) -> NoPaxosHarmonia {
    let config = Config {
        kind: Protocol::NoPaxos.into(),
        program: Program::NoPaxosHarmonia,
        ..config(1, OWN.0)
    };
    let mut program: NoPaxosHarmonia = load(layout, Guards::ALL, &config);
    let mut stamp = Vec::new();
    let said = Stamp {
        view: concord_core::Epoch(1),
        from: concord_core::NodeId(1),
        now_ms: 5,
        memory_full: false,
        disk_full: false,
    };
    said.emit(&mut stamp);
    program.control(Now::default(), &stamp).unwrap();
    program
}

/// Under NOPaxos the number stays, and a write that finds no slot goes on as a no-op.
#[test]
fn t23_nopaxos_number_stays_and_becomes_a_no_op() {
    let mut p = sequencer(Layout::DEFAULT);
    let mut way = Way::of(of(Op::Write, &[1, 2]));
    assert!(way.pass(&mut p).is_none());
    let other = run_all(&mut p, request(Op::Write, 2)).1.unwrap().1;
    let (_, out) = way.pass(&mut p).unwrap().unwrap();
    assert_eq!((out.seq.counter + 1, out.flags, out.time_ms), (other.seq.counter, Flags(0), 5));
    // The second object's cell keeps the higher number.
    assert_eq!(cells(p.harmonia(), 2), [(0, other.seq.counter)]);
    let mut p = sequencer(layout(1, 1));
    let (passes, end) = run_all(&mut p, of(Op::Write, &[1, 2]));
    let (to, out) = end.unwrap();
    assert!(out.flags.has(Flags::NOOP) && to.is_none() && passes == 2);
}

fn switch(way: Loop) -> Agent {
    let base = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    let mut agent = Agent::new(AgentConfig { recirculation: way, ..base }).unwrap();
    let mut bytes = Vec::new();
    Membership::Configure(config(1, OWN.0).into()).emit(&mut bytes);
    agent.handle(Now::default(), CONTROLLER, &mut bytes, &mut Vec::new());
    agent
}

/// A write of three objects, then one of another, in one batch; returns the packets that leave,
/// with number and flags.
fn batch(way: Loop) -> Vec<(u32, Flags)> {
    let mut agent = switch(way);
    let mut sent: Vec<(Addr, Vec<u8>)> = Vec::new();
    for hdr in [of(Op::Write, &[1, 2, 3]), request(Op::Write, 4)] {
        let mut bytes = Vec::new();
        hdr.emit(b"", &mut bytes);
        agent.handle(Now::default(), CLIENT, &mut bytes, &mut sent);
    }
    for ns in [0, 1_000, 2_000] {
        agent.tick(Now { instant: Instant(ns), unix_ms: 0 }, &mut sent);
    }
    let to_head = sent.iter().filter(|(to, _)| *to == replica(1));
    let reprs = to_head.map(|(_, bytes)| Packet::parse(bytes).unwrap().repr());
    reprs.map(|repr| (repr.seq.counter, repr.flags)).filter(|(_, f)| !f.has(Flags::NOOP)).collect()
}

/// Where recirculation takes no time no write is overtaken; where it does, no write is lost.
#[test]
fn instant_rounds_overtake_nothing() {
    assert_eq!(batch(Loop::AT_ONCE), [(2, Flags(0)), (3, Flags(0))]);
    assert_eq!(batch(Loop::DEFAULT), [(3, Flags(0)), (4, Flags::WILDCARD)]);
}

#[cfg(feature = "mutants")]
mod guards {
    use super::*;
    use concord_core::Guard;

    #[test]
    fn several_entered_without_it_a_read_of_a_later_object_is_fast() {
        let mut p = ready_with(Layout::DEFAULT, Guards::without(Guard::SeveralEntered));
        run_all(&mut p, of(Op::Write, &[1, 2])).1.unwrap();
        assert_eq!(reason(&mut p, &[2]), Reason::Fast);
    }

    #[test]
    fn several_again_without_it_such_a_write_never_gets_through() {
        let [_, second] = without_room(Guards::without(Guard::TriedAgain));
        assert_eq!(second, Err(DropReason::TableFull));
    }

    /// Without the guard `SeveralClean` a read is fast whatever is in flight.
    #[test]
    fn several_clean_unguarded_reads_are_always_fast() {
        let mut p = ready_with(Layout::DEFAULT, Guards::without(Guard::SeveralClean));
        write(&mut p, 2).unwrap();
        assert_eq!(reason(&mut p, &[1, 2]), Reason::Fast);
    }
}
