//! Tests of the seat: every verdict, recirculated packets, and several programs on one switch. The
//! programs are Harmonia and one of another kind that does what its packets ask for.
#![allow(clippy::unwrap_used)]

mod common;
mod probe;

use common::*;
use concord_core::{Guards, Incarnation, Instant, MS, Machine, Now, SwitchId};
use concord_switch::{
    AgentConfig, FaultRates, Harmonia, Host as _, Layout, Loop, SwitchAgent, SwitchProgram as _,
};
use concord_wire::control::{Config, Member, Membership, Message as _, Program, Protocol};
use concord_wire::objects::FURTHER_MAX;
use concord_wire::{Addr, Flags, GroupId, Op, Packet, Repr, header};
use probe::{Ask, Probe, ask, metadata_of};

concord_switch::hosted! {
    /// The programs of these tests. The probe uses a name of the wire format that is not needed
    /// here.
    #[derive(Clone, Debug)]
    enum Both {
        /// Harmonia.
        Harmonia(Harmonia),
        /// The probe.
        Craq(Probe),
    }
}

type Agent = SwitchAgent<Both>;
type Sent = Vec<(Addr, Vec<u8>)>;

const PROBED: GroupId = GroupId(3);
const SECOND: GroupId = GroupId(4);

fn at(ns: u64) -> Now {
    Now { instant: Instant(ns), unix_ms: 0 }
}

fn node(n: u16) -> Addr {
    Addr { ip: 0x0a00_0200 + u32::from(n), port: 7002 }
}

/// A configuration of the probe's group: three nodes.
fn probed(epoch: u32, switch_id: u32) -> Config {
    let member = |n| Member { node: n, incarnation: 1, addr: node(n) };
    Config {
        group: PROBED,
        kind: Protocol::Craq.into(),
        program: Program::Craq,
        members: (1..=3).map(member).collect(),
        ..config(epoch, switch_id)
    }
}

fn switch(change: impl Fn(&mut AgentConfig)) -> Agent {
    let mut config = AgentConfig::new(Incarnation(LIFE), SWITCH, CONTROLLER);
    config.sections.table.layout = layout(3, 1_024);
    change(&mut config);
    Agent::new(config).unwrap()
}

fn send(agent: &mut Agent, now: Now, from: Addr, bytes: &[u8]) -> Sent {
    let mut sent = Sent::new();
    agent.handle(now, from, &mut bytes.to_vec(), &mut sent);
    sent
}

fn configure(agent: &mut Agent, now: Now, config: &Config) -> Sent {
    let mut bytes = Vec::new();
    Membership::Configure(config.clone().into()).emit(&mut bytes);
    send(agent, now, CONTROLLER, &bytes)
}

fn tick(agent: &mut Agent, now: Now) -> Sent {
    let mut sent = Sent::new();
    agent.tick(now, &mut sent);
    sent.retain(|(to, _)| *to != CONTROLLER);
    sent
}

/// A switch with only the probe.
fn alone() -> Agent {
    let mut agent = switch(|config| config.program = Program::Craq);
    assert_eq!(configure(&mut agent, at(0), &probed(1, OWN.0)), []);
    assert_eq!(tick(&mut agent, at(0)), []);
    agent
}

/// A switch with Harmonia for a rack, and the probe for another group.
fn both() -> Agent {
    let mut agent = switch(|_| {});
    assert_eq!(configure(&mut agent, at(0), &config(1, OWN.0)).len(), 1, "a no-op");
    assert_eq!(configure(&mut agent, at(0), &probed(1, OWN.0)), []);
    agent
}

fn bytes_of(hdr: Repr, group: GroupId) -> Vec<u8> {
    let mut bytes = Vec::new();
    hdr.emit(b"body", &mut bytes);
    header::set_group(&mut bytes, group);
    bytes
}

/// The probe of a switch, for its registers.
fn probe(agent: &Agent) -> &Probe {
    agent
        .programs()
        .find_map(|both| match both {
            Both::Craq(probe) => Some(probe),
            Both::Harmonia(_) => None,
        })
        .unwrap()
}

#[test]
fn each_verdict_is_carried_out() {
    let mut a = alone();
    let asked = ask(PROBED, Ask::Drop);
    assert_eq!(send(&mut a, at(1), CLIENT, &asked), []);
    let mut padded = ask(PROBED, Ask::Forward);
    padded.extend_from_slice(&[0; 9]);
    let asked = ask(PROBED, Ask::Forward);
    assert_eq!(send(&mut a, at(1), CLIENT, &padded), [(node(1), asked)]);
    let asked = ask(PROBED, Ask::Reply);
    assert_eq!(send(&mut a, at(1), CLIENT, &asked), [(CLIENT, asked.clone())]);
    assert_eq!(probe(&a).counts()[0].2, 1, "the drop is counted");
}

#[test]
fn copies_go_to_all_of_a_group_and_egress_makes_them_differ() {
    let mut a = alone();
    let sent = send(&mut a, at(1), CLIENT, &ask(PROBED, Ask::Group));
    let seen: Vec<_> = sent.iter().map(|(to, bytes)| (*to, *bytes.last().unwrap())).collect();
    assert_eq!(seen, [(node(1), 0), (node(2), 1), (node(3), 2)]);
}

/// Copies go to the ports of a bitmap, and an address that stays keeps its port.
#[test]
fn bitmap_copies_and_stable_ports() {
    let mut a = alone();
    // The probe's bitmap has the ports of all earlier senders that asked for it.
    for n in [3, 1] {
        assert_eq!(send(&mut a, at(1), node(n), &ask(PROBED, Ask::Remember)), []);
    }
    let to = |sent: &Sent| sent.iter().map(|(to, _)| *to).collect::<Vec<_>>();
    let sent = send(&mut a, at(2), CLIENT, &ask(PROBED, Ask::Ports));
    assert_eq!(to(&sent), [node(1), node(3)]);
    // Node 2 returns with another port number; node 1 is gone, and the others keep their ports.
    let mut next = probed(2, OWN.0);
    next.members.rotate_left(1);
    next.members.truncate(2);
    configure(&mut a, at(3), &next);
    let sent = send(&mut a, at(4), CLIENT, &ask(PROBED, Ask::Ports));
    assert_eq!((to(&sent), a.fabric().ports_empty), (vec![node(3)], 1));
    send(&mut a, at(5), node(1), &ask(PROBED, Ask::Remember));
    let sent = send(&mut a, at(6), CLIENT, &ask(PROBED, Ask::Ports));
    assert_eq!(to(&sent), [node(3)], "from the uplink nobody in particular comes");
}

#[test]
fn a_packet_comes_round_after_others_with_what_it_had_learnt() {
    let mut a = alone();
    assert_eq!(send(&mut a, at(100), CLIENT, &ask(PROBED, Ask::Round(2))), []);
    assert_eq!((a.deadline().at, a.deadline().reason), (Instant(1_100), "a packet comes round"));
    assert_eq!(tick(&mut a, at(1_099)), []);
    // Two other packets pass in between; the second arrives when the first pass is over.
    send(&mut a, at(1_099), CLIENT, &ask(PROBED, Ask::Drop));
    send(&mut a, at(1_100), CLIENT, &ask(PROBED, Ask::Drop));
    assert_eq!(a.deadline().at, Instant(2_100));
    let sent = tick(&mut a, at(2_100));
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, CLIENT, "it is still the sender's");
    // The passes that the probe had seen before the first, second and third of this packet.
    assert_eq!(metadata_of(&sent[0].1), [1, 3, 5]);
    assert_eq!(a.fabric().recirculations, 2);
    assert_ne!(a.deadline().reason, "a packet comes round");
}

#[test]
fn a_packet_comes_round_no_more_often_than_its_program_says() {
    let mut a = alone();
    send(&mut a, at(0), CLIENT, &ask(PROBED, Ask::Round(9)));
    for pass in 1..10 {
        assert_eq!(tick(&mut a, at(1_000 * pass)), []);
    }
    let seen = (a.fabric().recirculations, a.fabric().recirculations_excess);
    assert_eq!(seen, (u64::from(probe::ROUNDS_MAX), 1));
}

#[test]
fn packets_that_find_no_room_to_come_round_are_lost_and_counted() {
    let way = Loop { delay_ns: 500, packets_max: 3 };
    let mut a = switch(|config| {
        config.program = Program::Craq;
        config.recirculation = way;
    });
    configure(&mut a, at(0), &probed(1, OWN.0));
    for _ in 0..5 {
        assert_eq!(send(&mut a, at(1), CLIENT, &ask(PROBED, Ask::Round(1))), []);
    }
    assert_eq!((a.fabric().recirculations, a.fabric().recirculations_lost), (3, 2));
    assert_eq!(tick(&mut a, at(501)).len(), 3);
    send(&mut a, at(502), CLIENT, &ask(PROBED, Ask::Round(1)));
    assert_eq!(tick(&mut a, at(1_002)).len(), 1, "there is room again");
}

/// A message to the control plane and the upkeep inject packets.
#[test]
fn control_messages_and_upkeep_inject_packets() {
    let mut a = alone();
    let sent = send(&mut a, at(1), CLIENT, &probe::message(PROBED, 5));
    assert_eq!(sent.len(), 1, "what the message asked for");
    assert_eq!(sent[0].0, node(1));
    assert_eq!(a.deadline().reason, "the probe's beat");
    assert_eq!(a.deadline().at, Instant(5 * MS));
    assert_eq!(tick(&mut a, at(5 * MS)).len(), 1);
    assert_eq!(a.deadline().at, Instant(10 * MS));
    assert_eq!(probe(&a).looks(), 3, "after its configuration and after each pass");
    let mut bad = probe::message(PROBED, 5);
    bad.truncate(header::COMMON_BYTES);
    header::set_length(&mut bad);
    send(&mut a, at(1), CLIENT, &bad);
    assert_eq!(a.counters().control_malformed, 1);
}

#[test]
fn two_programs_share_a_switch_and_each_gets_its_packets() {
    let mut a = both();
    let names: Vec<_> = a.programs().map(|p| p.program().name()).collect();
    assert_eq!(names, ["harmonia", "craq"]);
    // Packets of Harmonia and the probe, alternating.
    for n in 2..=50 {
        let write = bytes_of(request(Op::Write, n), GroupId(0));
        let sent = send(&mut a, at(1), CLIENT, &write);
        assert_eq!(Packet::parse(&sent[0].1).unwrap().repr().seq.counter, n);
        assert_eq!(sent[0].0, replica(1));
        assert_eq!(send(&mut a, at(1), CLIENT, &ask(PROBED, Ask::Group)).len(), 3);
        assert_eq!(send(&mut a, at(1), CLIENT, &ask(PROBED, Ask::Round(1))), []);
        assert_eq!(tick(&mut a, at(1_001 + u64::from(n))).len(), 1);
    }
    assert_eq!(a.program().gauge("dirty_set_occupied"), 49);
    assert_eq!(probe(&a).passes(), 3 * 49);
    // Packets of one program's kind with the other's group, and of a group that does not exist.
    for (bytes, misdirected) in [
        (bytes_of(request(Op::Write, 99), PROBED), 1),
        (ask(GroupId(0), Ask::Reply), 2),
        (ask(GroupId(9), Ask::Reply), 3),
    ] {
        assert_eq!(send(&mut a, at(2), CLIENT, &bytes), []);
        assert_eq!(a.counters().misdirected, misdirected);
    }
}

#[test]
fn what_changes_in_one_group_leaves_the_other_as_it_is() {
    let mut a = both();
    let write = bytes_of(request(Op::Write, 5), GroupId(0));
    send(&mut a, at(1), CLIENT, &write);
    send(&mut a, at(1), CLIENT, &ask(PROBED, Ask::Drop));
    let mut fewer = probed(7, OWN.0);
    fewer.members.pop();
    configure(&mut a, at(2), &fewer);
    let standing = |a: &Agent| {
        let of = |p: &concord_switch::agent::ProgramStatus| (p.group, p.epoch.0, p.switch_id);
        a.status().programs.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(standing(&a), [(GroupId(0), 1, OWN), (PROBED, 7, OWN)]);
    assert_eq!(a.program().gauge("dirty_set_occupied"), 1);
    configure(&mut a, at(3), &config(2, OWN.0 + 1));
    let next = SwitchId(OWN.0 + 1);
    assert_eq!(standing(&a), [(GroupId(0), 2, next), (PROBED, 7, OWN)]);
    assert_eq!((a.program().gauge("dirty_set_occupied"), probe(&a).passes()), (0, 1));
    // Each group's keepalive names the group.
    let mut sent = Sent::new();
    a.tick(at(200 * MS), &mut sent);
    let alive: Vec<_> = sent
        .iter()
        .filter_map(|(_, bytes)| match Membership::parse(bytes) {
            Ok(Membership::SwitchAlive { epoch, .. }) => Some((header::group(bytes), epoch)),
            _ => None,
        })
        .collect();
    assert_eq!(alive, [(GroupId(0), 2), (PROBED, 7)]);
    // When another switch takes over, it does so for all groups at once.
    configure(&mut a, at(4), &Config { switch: CLIENT, ..probed(8, OWN.0 + 2) });
    assert_eq!(standing(&a), [(GroupId(0), 2, SwitchId(0)), (PROBED, 8, SwitchId(0))]);
    assert_eq!(send(&mut a, at(5), CLIENT, &write), []);
}

/// Two groups can run the same program, each with its own registers.
#[test]
fn two_groups_run_one_program_apart() {
    let mut a = both();
    let second = Config { group: SECOND, ..config(1, OWN.0) };
    assert_eq!(configure(&mut a, at(0), &second).len(), 1, "a no-op of its own");
    let counter = |a: &mut Agent, group| {
        let sent = send(a, at(1), CLIENT, &bytes_of(request(Op::Write, 5), group));
        Packet::parse(&sent[0].1).unwrap().repr().seq.counter
    };
    let counters = [GroupId(0), GroupId(0), SECOND].map(|group| counter(&mut a, group));
    assert_eq!(counters, [2, 3, 2]);
    let report = a.describe();
    let rounds = u32::from(probe::ROUNDS_MAX).max(FURTHER_MAX as u32);
    assert_eq!((report.stages(), report.recirculations_max), (7, rounds));
    assert_eq!(report.program, "harmonia, craq, harmonia");
}

#[test]
fn a_group_gets_a_seat_at_its_own_switch_alone() {
    let mut a = both();
    // Groups that another switch serves, or that this one served before it restarted.
    configure(&mut a, at(1), &Config { group: SECOND, switch: CLIENT, ..probed(1, OWN.0) });
    let before = Config { switch_incarnation: LIFE - 1, ..probed(1, OWN.0) };
    configure(&mut a, at(1), &Config { group: SECOND, ..before });
    assert_eq!((a.status().programs.len(), a.counters().configures_refused), (2, 2));
    configure(&mut a, at(2), &Config { group: SECOND, ..probed(1, OWN.0) });
    assert_eq!((a.status().programs.len(), a.counters().configures_refused), (3, 2));
}

#[test]
fn a_seat_that_a_group_had_is_not_another_ones() {
    let mut a = alone();
    // Another switch replaces this one, which remembers the group's epoch.
    configure(&mut a, at(1), &Config { switch: CLIENT, ..probed(2, OWN.0 + 1) });
    let again = Config { switch_incarnation: LIFE + 1, ..probed(1, OWN.0) };
    configure(&mut a, at(2), &Config { group: SECOND, ..again });
    let groups: Vec<GroupId> = a.status().programs.iter().map(|p| p.group).collect();
    assert_eq!(groups, [PROBED, SECOND]);
}

#[test]
fn a_program_for_which_there_is_no_room_is_refused() {
    // A stage of each is 1 MiB of the 1.25 MiB that an ASIC has.
    let mut a = switch(|config| {
        config.sections.table.layout = Layout { slots: 1 << 17, ..Layout::DEFAULT };
    });
    configure(&mut a, at(0), &config(1, OWN.0));
    let second = Config { group: SECOND, ..config(1, OWN.0) };
    assert_eq!(configure(&mut a, at(0), &second), []);
    assert_eq!((a.counters().configures_refused, a.status().programs.len()), (1, 1));
    configure(&mut a, at(0), &probed(1, OWN.0));
    assert_eq!(a.status().programs.len(), 2, "a small one fits beside it");
}

#[test]
fn another_program_takes_a_seat_under_a_new_switch_id_only() {
    let mut a = alone();
    let harmonia = Config { group: PROBED, ..config(2, OWN.0) };
    assert_eq!(configure(&mut a, at(1), &harmonia), []);
    assert_eq!(a.counters().configures_refused, 1);
    send(&mut a, at(2), CLIENT, &ask(PROBED, Ask::Round(1)));
    let harmonia = Config { group: PROBED, ..config(2, OWN.0 + 1) };
    let sent = configure(&mut a, at(2), &harmonia);
    assert!(Packet::parse(&sent[0].1).unwrap().repr().flags.has(Flags::NOOP));
    assert_eq!(a.program().program(), Program::Harmonia);
    assert_eq!(tick(&mut a, at(2_000)), [], "the probe's packets went with it");
    let Both::Harmonia(harmonia) = a.program() else { panic!("the probe") };
    assert_eq!(harmonia.counters().malformed_op, 0, "and it got none of them");
    // A program that no switch of this kind has is refused, too.
    let (protocol, program) = (Protocol::NoPaxos, Program::NoPaxos);
    let unknown = Config { group: SECOND, kind: protocol.into(), program, ..config(1, OWN.0 + 1) };
    configure(&mut a, at(3), &unknown);
    assert_eq!((a.counters().configures_refused, a.status().programs.len()), (2, 1));
}

#[test]
fn faults_concern_copies_and_replies_too() {
    let mut a = switch(|config| {
        config.program = Program::Craq;
        config.guards = Guards::ALL;
        config.faults = FaultRates { seed: 1, duplicate_ppm: 1_000_000, ..FaultRates::default() };
    });
    configure(&mut a, at(0), &probed(1, OWN.0));
    assert_eq!(send(&mut a, at(1), CLIENT, &ask(PROBED, Ask::Reply)).len(), 2);
    assert_eq!(send(&mut a, at(1), CLIENT, &ask(PROBED, Ask::Group)).len(), 6);
}
