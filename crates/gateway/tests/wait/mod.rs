//! WAIT, at a gateway before a fake rack with a controller.

use super::common::{CONTROLLER, World};
use concord_core::{MS, SEC};
use concord_gateway::ConnectionId;
use concord_wire::Addr;
use concord_wire::control::{Config, GroupKind, Member, Program, Protocol};
use concord_wire::header::GroupId;

fn config(epoch: u32, protocol: Protocol, members: u16) -> Config {
    let member = |node| Member { node, incarnation: 1, addr: Addr { ip: 1, port: node } };
    Config {
        epoch,
        group: GroupId(0),
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: Addr { ip: 0x7f00_0001, port: 2 },
        kind: GroupKind::Replicas(protocol),
        program: Program::of(protocol, false),
        members: (1..=members).map(member).collect(),
        joining: vec![],
    }
}

fn world(config: Config) -> World {
    let mut world = World::with(78, |setup| setup.client.controller = Some(CONTROLLER));
    world.config = Some(config);
    world.connect(2);
    world.run_for(SEC);
    world
}

/// What has come for a client since.
fn heard(world: &mut World, id: u64) -> String {
    super::common::heard(world, id).replace("\r\n", " ")
}

fn waiting(world: &mut World, id: u64, line: &str) -> String {
    world.input(id, format!("{line}\r\n").as_bytes());
    world.run_for(20 * MS);
    heard(world, id)
}

#[test]
fn it_answers_how_many_have_what_was_written() {
    for (protocol, members, count) in [
        (Protocol::Chain, 3, 2),
        (Protocol::PrimaryBackup, 2, 1),
        (Protocol::Craq, 5, 4),
        (Protocol::Vr, 3, 1),
        (Protocol::NoPaxos, 5, 2),
        (Protocol::Raft, 3, 1),
        (Protocol::Chain, 1, 0),
    ] {
        let mut w = world(config(1, protocol, members));
        let text = format!("WAIT {count} 0\r\nWAIT 0 0\r\nWAIT -1 10");
        assert_eq!(waiting(&mut w, 1, &text), format!(":{count} ").repeat(3), "{protocol:?}");
        assert_eq!(w.asked, 1, "what was told a moment ago counts");
    }
}

#[test]
fn it_is_answered_once_everything_before_it_is() {
    let mut w = world(config(1, Protocol::Chain, 3));
    w.delay_ns = (30 * MS, 31 * MS);
    w.input(1, b"SET k v\r\nWAIT 1 0\r\nGET k\r\n");
    w.run_for(40 * MS);
    assert_eq!(heard(&mut w, 1), "");
    assert_eq!(w.asked, 0, "the write is not answered");
    w.run_for(SEC);
    assert_eq!(heard(&mut w, 1), "+OK :2 $1 v ");
}

#[test]
fn it_waits_for_more_as_long_as_it_says() {
    let mut w = world(config(1, Protocol::Chain, 3));
    assert_eq!(waiting(&mut w, 1, "WAIT 3 200\r\nPING"), "");
    assert!(waiting(&mut w, 2, "INFO clients").contains("blocked_clients:1"));
    assert!(waiting(&mut w, 2, "CLIENT LIST ID 1").contains("flags=b"));
    w.run_for(200 * MS);
    assert_eq!(heard(&mut w, 1), ":2 +PONG ");
    // For ever, that is until CLIENT UNBLOCK.
    assert_eq!(waiting(&mut w, 1, "WAIT 3 0"), "");
    w.run_for(5 * SEC);
    assert_eq!(heard(&mut w, 1), "");
    assert_eq!(waiting(&mut w, 2, "CLIENT UNBLOCK 1\r\nCLIENT UNBLOCK 1"), ":1 :0 ");
    assert_eq!(heard(&mut w, 1), ":2 ");
    assert_eq!(waiting(&mut w, 1, "WAIT 9223372036854775807 9223372036854775807"), "");
    assert_eq!(waiting(&mut w, 2, "CLIENT UNBLOCK 1 ERROR"), ":1 ");
    assert_eq!(heard(&mut w, 1), "-UNBLOCKED client unblocked via CLIENT UNBLOCK ");
}

#[test]
fn a_change_of_the_members_makes_it_enough() {
    let mut w = world(config(1, Protocol::Chain, 2));
    assert_eq!(waiting(&mut w, 1, "WAIT 2 0"), "");
    w.config = Some(config(2, Protocol::Chain, 3));
    w.run_for(2 * SEC);
    assert_eq!(heard(&mut w, 1), ":2 ");
    w.config = Some(config(3, Protocol::Chain, 1));
    w.run_for(2 * SEC);
    assert_eq!(waiting(&mut w, 1, "WAIT 0 0"), ":0 ");
    // Whoever is gone waits for nothing, and nobody is asked any more.
    assert_eq!(waiting(&mut w, 1, "WAIT 9 0"), "");
    w.gateway.closed(ConnectionId(1));
    w.run_for(2 * SEC);
    let asked = w.asked;
    w.run_for(5 * SEC);
    assert_eq!(w.asked, asked);
}

/// A controller that is silent costs a moment and what it said last counts.
#[test]
fn silent_controller_costs_a_moment() {
    let mut w = world(config(1, Protocol::Vr, 5));
    assert_eq!(waiting(&mut w, 1, "WAIT 1 0"), ":2 ");
    w.config = None;
    w.run_for(2 * SEC);
    assert_eq!(waiting(&mut w, 1, "WAIT 1 0"), "");
    w.run_for(200 * MS);
    assert_eq!(heard(&mut w, 1), ":2 ");
    assert_eq!(waiting(&mut w, 1, "WAIT 1 0"), ":2 ", "it is not asked again at once");
    // Nobody knows of a replica where there is no controller.
    let mut w = World::new(79);
    assert_eq!(w.ask(&["WAIT 0 0", "WAIT 1 10"]), ":0\r\n:0\r\n");
}

#[test]
fn within_multi_it_does_not_wait_and_errors_are_those_of_redis() {
    let mut w = world(config(1, Protocol::Chain, 3));
    let lines = ["MULTI", "SET k v", "WAIT 9 0", "WAIT 1 x", "EXEC"];
    let replies = waiting(&mut w, 1, &lines.join("\r\n"));
    let error = "-ERR timeout is not an integer or out of range";
    assert_eq!(
        replies,
        format!("+OK +QUEUED +QUEUED +QUEUED *3 +OK :2 {error} "),
        "as redis-server 7.0.15, which looks at it when EXEC is executed"
    );
    for (line, error) in [
        ("WAIT", "wrong number of arguments for 'wait' command"),
        ("WAIT 1", "wrong number of arguments for 'wait' command"),
        ("WAIT x 0", "value is not an integer or out of range"),
        ("WAIT x y", "value is not an integer or out of range"),
        ("WAIT 1 1.5", "timeout is not an integer or out of range"),
        ("WAIT 1 -5", "timeout is negative"),
    ] {
        assert_eq!(waiting(&mut w, 1, line), format!("-ERR {error} "), "{line}");
    }
    // A gateway that ends lets nobody wait.
    assert_eq!(waiting(&mut w, 1, "WAIT 9 0"), "");
    w.gateway.shutdown();
    w.after_input(vec![]);
    assert!(heard(&mut w, 1).starts_with("-UNBLOCKED"));
}
