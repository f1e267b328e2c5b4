//! Tests of the agent: keepalives, configurations, no-ops, sweeps, and the exhaustion of numbers.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use concord_core::{Incarnation, Instant, MS, Machine, Now, Seq, SwitchId};
use concord_switch::{Agent, AgentConfig, FaultRates, Layout, SwitchProgram as _};
use concord_wire::control::{
    Config, GroupKind, Heard, Membership, Message as _, Program, Protocol,
};
use concord_wire::{Addr, Flags, GroupId, Op, Packet, Reason, Repr, header};

type Sent = Vec<(Addr, Vec<u8>)>;

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: 0 }
}

fn agent(layout: Layout) -> Agent {
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    told.sections.table.layout = layout;
    Agent::new(told).unwrap()
}

fn handle(agent: &mut Agent, now: Now, hdr: Repr) -> Sent {
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    hdr.emit(b"body", &mut bytes);
    agent.handle(now, CLIENT, &mut bytes, &mut sent);
    sent
}

fn configure(agent: &mut Agent, now: Now, config: &Config) -> Sent {
    let (mut bytes, mut sent) = (Vec::new(), Sent::new());
    Membership::Configure(config.clone().into()).emit(&mut bytes);
    agent.handle(now, CLIENT, &mut bytes, &mut sent);
    sent
}

fn tick(agent: &mut Agent, now: Now) -> Sent {
    let mut sent = Sent::new();
    agent.tick(now, &mut sent);
    sent
}

/// Wakes the agent at each of its deadlines until `until_ms`; returns the packets that it sent.
fn run_until(agent: &mut Agent, until_ms: u64) -> Sent {
    let mut sent = Sent::new();
    for _ in 0..100_000 {
        let wake = agent.deadline().at;
        if wake > at(until_ms).instant {
            return sent;
        }
        agent.tick(Now { instant: wake, unix_ms: 0 }, &mut sent);
        assert!(agent.deadline().at > wake, "a deadline that is served moves on");
    }
    panic!("the agent spins");
}

/// The numbers of the no-ops among `sent`, all of which went to the head.
fn noops(sent: &Sent) -> Vec<u32> {
    let noop = |(to, bytes): &(Addr, Vec<u8>)| {
        let hdr = Packet::parse(bytes).ok()?.repr();
        assert_eq!((*to, hdr.op, hdr.client), (replica(1), Op::Write, SWITCH));
        assert!(hdr.flags.has(Flags::NOOP));
        Some(hdr.seq.counter)
    };
    sent.iter().filter_map(noop).collect()
}

fn alive(sent: &Sent) -> Vec<(u64, u32)> {
    let of = |(to, bytes): &(Addr, Vec<u8>)| match Membership::parse(bytes) {
        Ok(Membership::SwitchAlive { incarnation, addr, epoch, .. }) => {
            assert_eq!((*to, addr), (CONTROLLER, SWITCH));
            Some((incarnation, epoch))
        }
        _ => None,
    };
    sent.iter().filter_map(of).collect()
}

fn completion(obj_id: u32, counter: u32) -> Repr {
    Repr { seq: Seq::new(OWN, counter), ..request(Op::WriteCompletion, obj_id) }
}

fn read_reason(agent: &mut Agent, now: Now, obj_id: u32) -> Reason {
    let sent = handle(agent, now, request(Op::Read, obj_id));
    Packet::parse(&sent[0].1).unwrap().repr().reason
}

#[test]
fn it_says_that_it_lives_and_drops_data_until_it_is_configured() {
    let mut a = agent(Layout::DEFAULT);
    assert_eq!(handle(&mut a, at(0), request(Op::Write, 1)), []);
    assert_eq!(a.program().store().counters().dropped_unconfigured, 1);
    assert_eq!(alive(&run_until(&mut a, 250)), [(40, 0); 3]);
    configure(&mut a, at(260), &config(4, OWN.0));
    assert_eq!(alive(&tick(&mut a, at(260))), [(40, 4)], "at once: the controller waits for it");
    let status = &a.status().programs[0];
    assert_eq!((status.switch_id, status.epoch.0), (OWN, 4));
    assert_eq!((status.program, status.is_ready), (Program::Harmonia, false));
    assert_eq!(a.program().gauge("dirty_set_slots"), 3 * 65_536);
}

#[test]
fn t18_after_activation_a_read_only_load_gets_the_fast_path() {
    let mut a = agent(Layout::DEFAULT);
    assert_eq!(noops(&configure(&mut a, at(0), &config(1, OWN.0))), [1]);
    assert_eq!(read_reason(&mut a, at(1), 5), Reason::SlowNotReady);
    assert_eq!(noops(&run_until(&mut a, 45)), [2, 3], "again until one completes");
    assert!(!a.is_ready());
    assert_eq!(handle(&mut a, at(46), completion(0, 2)), []);
    assert!(a.is_ready());
    assert_eq!(read_reason(&mut a, at(47), 5), Reason::Fast);
    assert_eq!(noops(&run_until(&mut a, 2_000)), [], "and then no more");
}

#[test]
fn t18_the_reply_to_a_no_op_ends_at_the_switch() {
    let mut a = agent(Layout::DEFAULT);
    configure(&mut a, at(0), &config(1, OWN.0));
    let (flags, client) = (Flags::COMPLETION.with(Flags::NOOP), SWITCH);
    let reply = Repr { flags, client, seq: Seq::new(OWN, 1), ..Repr::new(Op::WriteReply) };
    assert_eq!(handle(&mut a, at(1), reply), []);
    assert_eq!(a.program().view().last_committed, 1);
}

#[test]
fn t18_a_table_full_of_strays_heals() {
    let mut a = agent(layout(1, 1));
    configure(&mut a, at(0), &config(1, OWN.0));
    handle(&mut a, at(1), completion(0, 1));
    assert_eq!(handle(&mut a, at(2), request(Op::Write, 5)).len(), 1);
    // The write is lost after the switch: it will never have a completion, and all other writes are
    // dropped.
    for ms in 3..20 {
        assert_eq!(handle(&mut a, at(ms), request(Op::Write, 6)), []);
    }
    let sent = noops(&run_until(&mut a, 22));
    assert_eq!(sent.len(), 1);
    handle(&mut a, at(23), completion(0, sent[0]));
    assert_eq!(handle(&mut a, at(24), request(Op::Write, 6)).len(), 1);
}

#[test]
fn t18_no_no_op_while_completions_come() {
    let mut a = agent(Layout::DEFAULT);
    configure(&mut a, at(0), &config(1, OWN.0));
    handle(&mut a, at(1), completion(0, 1));
    for i in 0..50 {
        handle(&mut a, at(2 + i * 10), request(Op::Write, i as u32));
        handle(&mut a, at(10 + i * 10), completion(i as u32, i as u32 + 1));
        assert_eq!(noops(&run_until(&mut a, 11 + i * 10)), [], "one is in flight all the time");
    }
}

#[test]
fn t18_a_lost_write_of_all_keys_does_not_keep_reads_slow() {
    let mut a = agent(Layout::DEFAULT);
    configure(&mut a, at(0), &config(1, OWN.0));
    handle(&mut a, at(1), completion(0, 1));
    handle(&mut a, at(2), Repr { flags: Flags::WILDCARD, ..request(Op::Write, 0) });
    assert_eq!(read_reason(&mut a, at(3), 5), Reason::SlowWildcard);
    assert_eq!(noops(&run_until(&mut a, 23)), [3]);
    handle(&mut a, at(24), completion(0, 3));
    assert_eq!(read_reason(&mut a, at(25), 5), Reason::Fast);
}

#[test]
fn t19_strays_are_swept_in_chunks_and_then_it_is_quiet() {
    let mut a = agent(layout(3, 4_096));
    configure(&mut a, at(0), &config(1, OWN.0));
    for obj_id in 0..1_000 {
        handle(&mut a, at(1), request(Op::Write, obj_id));
    }
    assert_eq!(a.program().view().occupied, 1_000);
    // The first 900 writes were lost; of the last 100 only one is committed so far.
    handle(&mut a, at(2), completion(900, 902));
    assert_eq!(a.program().view().occupied, 999);
    tick(&mut a, at(10));
    assert!((100..999).contains(&a.program().view().occupied), "one chunk at a time");
    run_until(&mut a, 60);
    assert_eq!((a.program().view().occupied, a.program().store().counters().sweep_laps), (99, 1));
    let last = a.program().view().seq;
    handle(&mut a, at(61), completion(0, last));
    run_until(&mut a, 200);
    assert_eq!(a.program().view().occupied, 0);
    assert_eq!(a.deadline().reason, "sign of life", "nothing else to do");
}

#[test]
fn an_old_epoch_and_a_used_switch_id_are_ignored() {
    let mut a = agent(Layout::DEFAULT);
    configure(&mut a, at(0), &config(5, OWN.0));
    handle(&mut a, at(1), request(Op::Write, 5));
    configure(&mut a, at(2), &config(4, OWN.0 + 1));
    assert_eq!((a.epoch().0, a.counters().configures_old), (5, 1));
    configure(&mut a, at(3), &config(6, OWN.0 - 1));
    configure(&mut a, at(3), &config(6, 0));
    let empty = Config { members: vec![], ..config(6, OWN.0) };
    configure(&mut a, at(3), &empty);
    let unaided = Config { program: Program::Forward, ..config(6, OWN.0) };
    configure(&mut a, at(3), &unaided);
    assert_eq!((a.epoch().0, a.counters().configures_refused), (5, 4));
    assert_eq!((a.switch_id(), a.program().view().seq, a.program().view().occupied), (OWN, 2, 1));
}

/// Under VR epochs are views. Those of a group that was founded anew, beside a switch that keeps
/// running, begin at 1; switch ids continue. Without this, the switch followed the previous group
/// until the new views had overtaken the old ones.
#[test]
fn bug_15_19_later_switch_id_begins_with_the_refounded_views() {
    let mut a = agent(Layout::DEFAULT);
    let vr = |epoch, id| Config { kind: Protocol::Vr.into(), ..config(epoch, id) };
    configure(&mut a, at(0), &vr(40, OWN.0));
    handle(&mut a, at(1), request(Op::Write, 5));
    configure(&mut a, at(2), &vr(4, OWN.0 + 1));
    assert_eq!((a.epoch().0, a.switch_id().0), (4, OWN.0 + 1));
    assert_eq!(a.program().view().occupied, 0, "nothing of the group before");
    configure(&mut a, at(3), &vr(41, OWN.0));
    configure(&mut a, at(3), &vr(3, OWN.0 + 1));
    assert_eq!((a.epoch().0, a.switch_id().0), (4, OWN.0 + 1));
    // Another switch took its place; then a grant to this one arrives late.
    let other = Config { switch: CONTROLLER, ..vr(5, OWN.0 + 3) };
    configure(&mut a, at(4), &other);
    configure(&mut a, at(5), &vr(3, OWN.0 + 2));
    assert!(a.epoch().0 == 5 && a.counters().configures_old > 0);
}

/// A new id starts empty and the same id keeps the dirty set.
#[test]
fn section_6_3_new_id_starts_empty_same_id_keeps_the_dirty_set() {
    let mut a = agent(Layout::DEFAULT);
    configure(&mut a, at(0), &config(5, OWN.0));
    handle(&mut a, at(1), request(Op::Write, 5));
    assert_eq!(noops(&configure(&mut a, at(2), &config(6, OWN.0))), []);
    assert_eq!((a.program().view().occupied, a.program().view().seq), (1, 2));
    handle(&mut a, at(3), completion(0, 1));
    assert_eq!(read_reason(&mut a, at(3), 6), Reason::Fast);
    assert_eq!(noops(&configure(&mut a, at(4), &config(7, OWN.0 + 1))), [1]);
    assert_eq!(
        (a.program().view().occupied, a.program().view().seq, a.program().view().last_committed),
        (0, 1, 0)
    );
    assert_eq!(read_reason(&mut a, at(5), 6), Reason::SlowNotReady);
}

/// A switch that is replaced falls silent and needs a new id to return.
#[test]
fn replaced_switch_is_silent_until_a_new_id() {
    let mut a = agent(Layout::DEFAULT);
    configure(&mut a, at(0), &config(5, OWN.0));
    let other = Config { switch: Addr { ip: 1, port: 1 }, ..config(6, OWN.0 + 1) };
    configure(&mut a, at(1), &other);
    assert_eq!(handle(&mut a, at(2), request(Op::Read, 5)), []);
    configure(&mut a, at(3), &config(5, OWN.0));
    configure(&mut a, at(3), &Config { switch_incarnation: 41, ..config(7, OWN.0) });
    assert_eq!(a.switch_id(), SwitchId(0), "its registers are gone: the id is used up");
    assert_eq!(alive(&run_until(&mut a, 1)), [(41, 6); 1], "as a new life, that stands by");
    let again = Config { switch_incarnation: 41, ..config(7, OWN.0 + 2) };
    assert_eq!(noops(&configure(&mut a, at(4), &again)), [1]);
}

/// A switch that slept through its replacement returns under a new incarnation.
#[test]
fn switch_that_slept_returns_as_a_new_incarnation() {
    for (active, standby) in [(Addr { ip: 1, port: 1 }, true), (SWITCH, false)] {
        let mut a = agent(Layout::DEFAULT);
        configure(&mut a, at(0), &config(5, OWN.0));
        run_until(&mut a, 50);
        let mut sent = Sent::new();
        for incarnation in [39, LIFE, LIFE] {
            let mut bytes = Vec::new();
            Membership::SwitchRetired { incarnation, switch: active }.emit(&mut bytes);
            a.handle(at(60), CONTROLLER, &mut bytes, &mut sent);
        }
        assert_eq!(handle(&mut a, at(61), request(Op::Read, 5)), []);
        let told = tick(&mut a, at(61));
        let (addr, epoch) = (SWITCH, 5);
        let heard = Heard { rack: 1, epoch, switch_id: OWN.0 };
        let sent_at = at(61).instant.0;
        let alive =
            Membership::SwitchAlive { incarnation: 41, addr, sent_at, epoch, heard, standby };
        assert_eq!(Membership::parse(&told[0].1), Ok(alive));
    }
}

/// A restarted switch ignores messages to its previous incarnation.
#[test]
fn restarted_switch_ignores_its_predecessors_words() {
    let mut a = agent(Layout::DEFAULT);
    let before = Config { switch_incarnation: 39, ..config(5, OWN.0) };
    assert_eq!(configure(&mut a, at(0), &before), []);
    assert_eq!((a.counters().configures_other_life, a.epoch().0), (1, 0));
    assert_eq!(handle(&mut a, at(0), request(Op::Write, 1)), []);
    assert_eq!(noops(&configure(&mut a, at(1), &config(6, OWN.0 + 1))), [1]);
}

#[test]
fn t20_it_asks_for_a_new_id_before_the_numbers_run_out() {
    let mut a = agent(Layout { counter_bits: 8, ..layout(3, 16) });
    configure(&mut a, at(0), &config(1, OWN.0));
    tick(&mut a, at(0));
    for _ in 2..240 {
        assert_eq!(handle(&mut a, at(1), request(Op::Write, 5)).len(), 1);
    }
    assert_eq!(alive(&tick(&mut a, at(1))), []);
    assert_eq!(handle(&mut a, at(1), request(Op::Write, 5)).len(), 1);
    assert_eq!(alive(&tick(&mut a, at(1))), [(41, 1)], "at once, as a new life");
    for _ in 241..=255 {
        assert_eq!(handle(&mut a, at(1), request(Op::Write, 5)).len(), 1, "there are some left");
    }
    assert_eq!(handle(&mut a, at(1), request(Op::Write, 5)), []);
    assert_eq!(a.counters().switch_ids_asked, 1);
    configure(&mut a, at(2), &Config { switch_incarnation: 41, ..config(2, OWN.0 + 1) });
    assert_eq!(handle(&mut a, at(3), request(Op::Write, 5)).len(), 1);
    assert_eq!(alive(&tick(&mut a, at(3))), [(41, 2)]);
    for _ in 0..300 {
        handle(&mut a, at(4), request(Op::Write, 5));
    }
    assert_eq!(alive(&tick(&mut a, at(4))), [(42, 2)], "and so for the next");
}

/// Under XDP packets do not come in here: programs read their registers at intervals.
#[test]
fn t20_late_looker_asks_later_and_t18_sends_no_ops() {
    let layout = Layout { counter_bits: 8, ..layout(3, 16) };
    let mut told = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    (told.sections.table.layout, told.look_after_ns) = (layout, MS);
    let mut a = Agent::new(told).unwrap();
    assert_eq!(noops(&configure(&mut a, at(0), &config(1, OWN.0))), [1]);
    assert!(
        !noops(&run_until(&mut a, 30)).is_empty(),
        "nothing was completed: the no-op comes again"
    );
    // A completion enables the fast path, and is seen a millisecond later: then no more no-ops.
    handle(&mut a, at(30), completion(5, 1));
    assert_eq!(noops(&run_until(&mut a, 60)), []);
    for _ in 2..245 {
        handle(&mut a, at(61), request(Op::Write, 5));
    }
    assert_eq!((alive(&tick(&mut a, at(61))), a.counters().switch_ids_asked), (vec![], 0));
    assert_eq!(a.deadline().at, at(62).instant);
    assert_eq!(alive(&run_until(&mut a, 62)), [(41, 1)]);
    assert_eq!(a.counters().switch_ids_asked, 1);
}

#[test]
fn without_help_there_are_no_no_ops() {
    let mut a = agent(Layout::DEFAULT);
    let unaided = Config { program: Program::Forward, ..config(1, OWN.0) };
    assert_eq!(configure(&mut a, at(0), &unaided), []);
    assert_eq!(handle(&mut a, at(1), request(Op::Write, 5)).len(), 1);
    assert_eq!(noops(&run_until(&mut a, 500)), []);
}

#[test]
fn what_a_switch_cannot_use_is_counted() {
    let mut a = agent(Layout::DEFAULT);
    let mut control = Vec::new();
    Membership::WhoIsWho { client: CLIENT }.emit(&mut control);
    let mut link = Vec::new();
    let epoch = concord_core::Epoch(1);
    let ack = concord_wire::link::Ack {
        epoch,
        from: concord_core::NodeId(1),
        stream: 0,
        next: 0,
        held: 0,
        applied: concord_core::Position(0),
        committed: concord_core::Position(0),
        entry: 0,
        is_short: false,
        is_at_work: false,
        queue: 0,
    };
    ack.emit(&mut link);
    let mut sent = Sent::new();
    for bytes in [&mut control, &mut link] {
        a.handle(at(0), CLIENT, bytes, &mut sent);
    }
    control[concord_wire::header::at::OP] = 200;
    a.handle(at(0), CLIENT, &mut control, &mut sent);
    a.handle(at(0), CLIENT, &mut [], &mut sent);
    a.handle(at(0), CLIENT, &mut [1, 2, 3, 4, 5], &mut sent);
    let (s, p) = (a.status(), a.program().store().counters());
    assert_eq!((s.agent.misdirected, s.agent.control_malformed), (2, 1));
    assert_eq!((p.malformed_truncated, p.malformed_magic), (1, 1));
    assert_eq!(sent, []);
}

#[test]
fn each_program_for_replicas_counts_what_no_parser_takes() {
    for program in [
        Program::Forward,
        Program::Harmonia,
        Program::Craq,
        Program::NoPaxos,
        Program::NoPaxosHarmonia,
    ] {
        let config = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
        let mut a = Agent::new(AgentConfig { program, ..config }).unwrap();
        let mut wrong = [0; 128];
        wrong[..2].copy_from_slice(&concord_wire::MAGIC.to_be_bytes());
        wrong[2] = concord_wire::VERSION + 1;
        for bytes in [&mut [][..], &mut [1, 2, 3, 4, 5], &mut wrong] {
            a.handle(at(0), CLIENT, bytes, &mut Sent::new());
        }
        let c = a.program().store().counters();
        let seen = [c.malformed_truncated, c.malformed_magic, c.malformed_version];
        assert_eq!(seen, [1, 1, 1], "{program:?}");
    }
}

#[test]
fn faults_concern_what_passes_and_not_the_signs_of_life() {
    let faults = FaultRates { seed: 1, drop_ppm: 1_000_000, ..FaultRates::default() };
    let base = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    let mut a = Agent::new(AgentConfig { faults, ..base }).unwrap();
    let mut passed = configure(&mut a, at(0), &config(1, OWN.0)).len();
    for obj_id in 0..1_000 {
        passed += handle(&mut a, at(1), request(Op::Read, obj_id)).len();
    }
    let f = a.status().faults;
    assert_eq!(passed as u64 + f.faults_dropped_in + f.faults_dropped_out, 1_001);
    assert!(f.faults_dropped_in > 400 && f.faults_dropped_out > 200, "{f:?}");
    assert_eq!(alive(&tick(&mut a, at(100))).len(), 1);
}

/// The epochs that the switch reports to have heard of, by group.
fn heard(sent: &Sent) -> Vec<(GroupId, u32)> {
    let of = |(_, bytes): &(Addr, Vec<u8>)| match Membership::parse(bytes) {
        Ok(Membership::SwitchAlive { heard, .. }) => Some((header::group(bytes), heard.epoch)),
        _ => None,
    };
    sent.iter().filter_map(of).collect()
}

/// A seat that another group takes forgets what it heard for the first group.
#[test]
fn bug_17_2_seat_taken_by_another_group_forgets() {
    let mut a = agent(layout(1, 4));
    // For an earlier incarnation of the switch: the seat stays unused.
    let other = Config { group: GroupId(5), switch_incarnation: LIFE - 1, ..config(9, OWN.0) };
    configure(&mut a, at(1), &other);
    configure(&mut a, at(2), &config(3, OWN.0));
    assert_eq!(heard(&tick(&mut a, at(200))), [(GroupId(0), 3)]);
}

#[test]
fn bug_17_2_workers_have_a_switch_that_forwards() {
    let mut a = agent(layout(1, 4));
    let workers = Config {
        group: GroupId(5),
        kind: GroupKind::Workers,
        program: Program::Forward,
        ..config(1, OWN.0)
    };
    configure(&mut a, at(1), &workers);
    assert_eq!((a.counters().configured, a.counters().configures_refused), (1, 0));
    configure(&mut a, at(2), &config(1, OWN.0 + 1));
    assert_eq!(heard(&tick(&mut a, at(200))), [(GroupId(5), 1), (GroupId(0), 1)]);
}

/// A switch with one program checks the group of packets, too.
#[test]
fn single_group_switch_takes_no_foreign_packets() {
    let own = GroupId(5);
    let mut a = agent(layout(1, 4));
    let sent = configure(&mut a, at(1), &Config { group: own, ..config(1, OWN.0) });
    assert_eq!((noops(&sent), header::group(&sent[0].1)), (vec![1], own));
    for group in [GroupId(0), GroupId(6)] {
        assert_eq!(handle(&mut a, at(2), Repr { group, ..request(Op::Write, 3) }), []);
    }
    assert_eq!(a.counters().misdirected, 2);
    let sent = handle(&mut a, at(3), Repr { group: own, ..request(Op::Write, 3) });
    assert_eq!((sent[0].0, header::group(&sent[0].1)), (replica(1), own));
    let seq = Packet::parse(&sent[0].1).unwrap().repr().seq;
    assert_eq!(seq.counter, 2, "what was dropped has taken no number");
}
