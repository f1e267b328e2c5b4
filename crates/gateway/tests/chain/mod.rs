//! Keys of a chain of switches. None of them answers here: what a chain does is the racks' tests'.

use concord_core::{Epoch, MS, Machine as _, NodeId, SEC};
use concord_gateway::{ChainSetup, ConnectionId};
use concord_wire::control::{ChainMessage, Finding, Message as _};
use concord_wire::netcraq::{Op, Outcome, Repr, State};
use concord_wire::{Addr, GroupId};

use crate::common::{CHAIN, World, heard, say};

/// Calls that are under way at a time.
const CALLERS: u64 = 64;

fn world() -> World {
    let mut world = World::new(1);
    let rng = concord_core::Rng::new(2);
    let setup = ChainSetup {
        prefix: b"@".to_vec(),
        group: GroupId(7),
        switches: vec![CHAIN],
        value_bytes: 64,
    };
    world.gateway.serve_chain(setup, rng);
    // It has a session, and has looked at the store's keys.
    assert_eq!(say(&mut world, 1, &["SET other 1"]), "+OK\r\n");
    world.run_for(SEC);
    world.executed();
    world
}

/// Keys that were in the store before the prefix was said, in whatever database, are found once,
/// and none is changed.
#[test]
fn keys_of_the_store_below_the_prefix_are_found() {
    for (lines, found) in [
        (&["SET k 1", "SET a@b 2"][..], None),
        (&["SET k 1", "SET @a 2"], Some("@a")),
        (&["SELECT 3", "SET @b 2", "SELECT 0"], Some("@b")),
    ] {
        let mut world = World::new(1);
        assert!(say(&mut world, 1, lines).lines().all(|reply| reply == "+OK"));
        for number in 0..3_000 {
            let _ = say(&mut world, 1, &[&format!("SET key-{number} 1")]);
        }
        let setup = ChainSetup {
            prefix: b"@".to_vec(),
            group: GroupId(7),
            switches: vec![CHAIN],
            value_bytes: 64,
        };
        world.gateway.serve_chain(setup, concord_core::Rng::new(2));
        world.executed();
        world.run_for(SEC);
        let told = world.gateway.shadowed_key();
        assert_eq!(told, found.map(|name| (name.as_bytes(), &b"@"[..])), "{lines:?}");
        let executed = world.executed();
        assert!(executed.iter().all(|command| command == "SCAN "), "{executed:?}");
        assert!(found.is_some() || executed.len() > 6, "{executed:?}");
        world.run_for(SEC);
        assert_eq!(world.executed(), Vec::<String>::new(), "it looks once");
    }
}

/// A chain that does not answer holds up the commands after its own, and nothing is out of order.
#[test]
fn t22_commands_wait_for_a_chain_and_a_chain_for_commands() {
    let mut world = world();
    world.input(1, b"SET k a\r\nSET @k b\r\nSET k c\r\nGET @k\r\nGET k\r\n");
    assert!(world.to_chain.is_empty(), "the first one is not answered");
    world.run_for(SEC);
    assert_eq!(heard(&mut world, 1), "+OK\r\n");
    assert_eq!(world.executed(), ["SET k"]);
    assert!(world.to_chain.len() > 2, "it asks again");
    let replies = world.replies(1) + &world.replies(1);
    let replies: Vec<&str> = replies.lines().collect();
    assert!(replies[0].starts_with("-UNKNOWN the outcome of this write"), "{replies:?}");
    assert!(replies[2].starts_with("-TIMEOUT no switch of the chain answered"), "{replies:?}");
    assert_eq!((replies[1], &replies[3..]), ("+OK", &["$1", "c"][..]));
    assert_eq!(world.executed(), ["SET k", "GET k"]);
}

/// What a chain cannot do reaches neither the chain nor the store (hole N11).
#[test]
fn n11_what_a_chain_cannot_do_has_no_effect() {
    let mut world = world();
    for (line, reply) in [
        ("WATCH @k", "-ERR keys of the chain are not for transactions\r\n"),
        ("EVAL return(1) 2 k @k", "-ERR keys of the chain are not for scripts\r\n"),
        ("CONCORD EXPLAIN EVAL return(1) 1 @k", "-ERR keys of the chain are not for scripts\r\n"),
        ("CONCORD EXPLAIN SET k @v", "-ERR CONCORD EXPLAIN is for commands that only read\r\n"),
    ] {
        assert_eq!(say(&mut world, 1, &[line]), reply, "{line}");
    }
    for line in [
        "RENAME k @k",
        "MSET k 1 @k 2",
        "LPUSH @k 1",
        "BLPOP @k k 0",
        "SET @k 1 EX 0",
        "CONCORD EXPLAIN MGET @k k",
        "CONCORD EXPLAIN CONCORD EXPLAIN GET @k",
    ] {
        let reply = say(&mut world, 1, &[line]);
        assert!(reply.starts_with("-ERR ") && reply.lines().count() == 1, "{line}: {reply}");
    }
    assert_eq!(say(&mut world, 1, &["HELLO 3", "CLIENT TRACKING ON"]).lines().last(), Some("+OK"));
    let reply = say(&mut world, 1, &["GET @k"]);
    assert_eq!(reply, "-ERR keys of the chain are not for clients that track keys\r\n");
    world.connect(2);
    let replies = say(&mut world, 2, &["MULTI", "SET k 1", "SET @k 1", "EXEC"]);
    let replies: Vec<&str> = replies.lines().collect();
    assert_eq!(replies[2], "-ERR keys of the chain are not for transactions");
    assert!(replies[3].starts_with("-EXECABORT"), "{replies:?}");
    assert!(world.to_chain.is_empty());
    assert!(world.executed().is_empty());
}

/// What the chain says to what it was sent last.
fn chain_says(world: &mut World, packet: Vec<u8>) {
    let (now, mut sent, mut packet) = (world.now(), vec![], packet);
    world.gateway.handle(now, Addr::default(), &mut packet, &mut sent);
    world.after_input(sent);
}

/// Answers the question where the key is, if there is one, and then the request with `answer`.
fn chain_answers(world: &mut World, finding: Finding, answer: impl Fn(Repr) -> Repr) {
    for _ in 0..4 {
        let Some(packet) = world.to_chain.pop() else { return };
        let mut says = Vec::new();
        let (epoch, from) = (6, 1);
        match ChainMessage::parse(&packet) {
            Ok(ChainMessage::Find { number, .. }) => {
                let found = ChainMessage::Found { epoch, from, number, finding };
                found.emit_in(GroupId(7), &mut says);
            }
            Ok(ChainMessage::AskSession { number, .. }) => {
                let (slot, generation) = (0, 1);
                let session = ChainMessage::Session { epoch, from, number, slot, generation };
                session.emit_in(GroupId(7), &mut says);
            }
            _ => {
                let asked = Repr::parse(&packet).unwrap();
                let opens = asked.command == concord_wire::netcraq::Command::Open;
                let outcome = Outcome::Refused;
                let answer = if opens { Repr { outcome, ..asked } } else { answer(asked) };
                let op = if asked.op == Op::Read { Op::ReadReply } else { Op::WriteReply };
                let words = if op == Op::ReadReply { asked.words } else { 0 };
                let (from, epoch) = (NodeId(3), Epoch(6));
                says = Repr { op, words, from, epoch, ..answer }.packet();
            }
        }
        chain_says(world, says);
    }
}

/// Which switch answered, and why: clean, dirty at the one that was asked, ordered, or no such key.
#[test]
fn explain_says_which_switch_answered_and_why() {
    let mut world = world();
    let at = Finding::At { cell: 2, version: 0 };
    let read = |asked| Repr { outcome: Outcome::Done, basis: 9, has_content: true, ..asked };
    let mut told = |line: &str, finding: Finding, answer: &dyn Fn(Repr) -> Repr| {
        world.input(1, line.as_bytes());
        world.run_for(MS);
        chain_answers(&mut world, finding, answer);
        world.to_chain.clear();
        world.run_for(MS);
        let text = heard(&mut world, 1);
        let lines: Vec<String> = text.lines().map(str::to_string).collect();
        lines.into_iter().filter(|line| !line.starts_with('$')).collect::<Vec<_>>()
    };
    let absent = told("CONCORD EXPLAIN GET @k\r\n", Finding::Absent, &read);
    assert_eq!(absent[..3], ["*16", "path", "head"], "{absent:?}");
    assert_eq!(absent[5..7], ["switch", ":1"], "{absent:?}");
    let clean = told("concord explain get @k\r\n", at, &|asked| Repr {
        state: State::present(9, 8, true),
        ..read(asked)
    });
    assert_eq!(clean[1..3], ["path", "clean"]);
    let figures = ["switch", ":3", "attempts", ":1", "epoch", ":6", "latency_us"];
    assert_eq!(clean[5..12], figures, "{clean:?}");
    assert_eq!(clean[13..], ["version", ":9", "reply", "0"], "{clean:?}");
    let dirty = told("CONCORD EXPLAIN STRLEN @k\r\n", at, &|asked| {
        let read = read(asked).for_member(NodeId(2));
        Repr { state: State::present(9, 4, false), ..read }
    });
    assert_eq!(dirty[1..3], ["path", "dirty"]);
    assert!(dirty[4].contains("under way at switch 2,"), "{dirty:?}");
    assert_eq!(dirty[15..], ["reply", ":4"], "{dirty:?}");
    let done = |asked| Repr { outcome: Outcome::Done, basis: 10, ..asked };
    let ordered = told("CONCORD EXPLAIN SET @k v\r\n", at, &done);
    assert_eq!(ordered[1..3], ["path", "ordered"], "{ordered:?}");
    assert_eq!(ordered[13..], ["version", ":10", "reply", "+OK"], "{ordered:?}");
}

/// CLIENT PAUSE holds a write that is to be explained, as it holds the write itself.
#[test]
fn a_pause_of_writes_holds_explained_ones() {
    let mut world = world();
    assert_eq!(say(&mut world, 1, &["CLIENT PAUSE 60000 WRITE"]), "+OK\r\n");
    world.input(1, b"CONCORD EXPLAIN SET @k v\r\n");
    assert!(world.to_chain.is_empty());
    world.connect(2);
    world.input(2, b"CONCORD EXPLAIN GET @k\r\n");
    assert!(!world.to_chain.is_empty());
}

/// All callers were those of clients that had gone: whoever waited for one waited for good.
#[test]
fn bug_a_gone_clients_caller_serves_the_next() {
    let mut world = world();
    for id in 2..2 + CALLERS {
        world.connect(id);
        world.input(id, b"GET @k\r\n");
    }
    world.input(1, b"GET @k\r\nPING\r\n");
    for id in 2..2 + CALLERS {
        world.gateway.closed(ConnectionId(id));
    }
    world.run_for(6 * SEC);
    assert_eq!(heard(&mut world, 1), "");
    let replies = world.replies(1);
    assert!(replies.starts_with("-TIMEOUT ") && replies.ends_with("\r\n+PONG\r\n"), "{replies}");
}
