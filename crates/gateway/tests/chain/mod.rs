//! Keys of a chain of switches. None of them answers here: what a chain does is the racks' tests'.

use concord_core::SEC;
use concord_gateway::{ChainSetup, ConnectionId};
use concord_wire::GroupId;

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
    world
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
        ("CONCORD EXPLAIN GET @k", "-ERR keys of the chain are not for CONCORD EXPLAIN\r\n"),
    ] {
        assert_eq!(say(&mut world, 1, &[line]), reply, "{line}");
    }
    for line in ["RENAME k @k", "MSET k 1 @k 2", "LPUSH @k 1", "BLPOP @k k 0", "SET @k 1 EX 0"] {
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
