//! The gateway before a fake rack: order, splitting, transactions, errors, backpressure.

#![allow(clippy::unwrap_used)]

mod acl;
mod blocked;
mod chain;
mod client;
mod common;
mod databases;
mod events;
mod functions;
mod health;
mod pubsub;
mod tracking;
mod unread;
mod values;
mod wait;

use common::{Mood, World, request};
use concord_core::{MS, SEC};
use concord_engine::Class;
use concord_gateway::{
    ConnectionId, Gateway, INPUT_BYTES_MAX, LONG_INPUTS_MAX, STUCK_NS, TENTATIVE_MIN,
};

#[test]
fn replies_come_in_order_whatever_the_network_does() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let (mut input, mut expected) = (vec![], String::new());
        for i in 0..200 {
            let (key, value) = (format!("k{}", i % 7), format!("{i}"));
            match i % 4 {
                0 | 1 => {
                    input.extend(request(&[b"SET", key.as_bytes(), value.as_bytes()]));
                    expected.push_str("+OK\r\n");
                }
                2 => {
                    input.extend(request(&[b"PING", value.as_bytes()]));
                    expected.push_str(&format!("${}\r\n{value}\r\n", value.len()));
                }
                _ => {
                    input.extend(request(&[b"ECHO", b"e"]));
                    expected.push_str("$1\r\ne\r\n");
                }
            }
        }
        world.input(1, &input);
        assert_eq!(world.replies(1), expected, "seed {seed}");
    }
}

/// Every command sees what the ones before it on the same connection did.
#[test]
fn t22_a_pipeline_sees_its_own_writes() {
    for seed in 0..30 {
        let mut world = World::new(seed);
        let (mut input, mut expected) = (vec![], String::new());
        let mut values = std::collections::BTreeMap::new();
        let mut rng = concord_core::Rng::new(seed);
        for i in 0..150u64 {
            let key = format!("k{}", rng.below(4));
            match rng.below(5) {
                0 | 1 => {
                    let value = format!("{}", 100 + i);
                    input.extend(request(&[b"SET", key.as_bytes(), value.as_bytes()]));
                    values.insert(key, value);
                    expected.push_str("+OK\r\n");
                }
                2 | 3 => {
                    input.extend(request(&[b"GET", key.as_bytes()]));
                    expected.push_str(&match values.get(&key) {
                        Some(value) => format!("$3\r\n{value}\r\n"),
                        None => "$-1\r\n".into(),
                    });
                }
                _ if rng.below(4) == 0 => {
                    input.extend(request(&[b"FLUSHALL"]));
                    values.clear();
                    expected.push_str("+OK\r\n");
                }
                _ => {
                    input.extend(request(&[b"DBSIZE"]));
                    expected.push_str(&format!(":{}\r\n", values.len()));
                }
            }
        }
        world.input(1, &input);
        assert_eq!(world.replies(1), expected, "seed {seed}");
        assert!(world.gateway.counters().commands_waited > 0);
    }
}

#[test]
fn reads_and_writes_of_other_objects_do_not_wait() {
    let mut world = World::new(1);
    world.store.mood = Mood::Dead;
    world.run_for(MS);
    world.input(1, b"GET a\r\nGET a\r\nGET b\r\nSET c 1\r\nSET c 2\r\nGET d\r\nGET e\r\n");
    assert_eq!(world.gateway.counters().commands_waited, 0);
    assert!(world.gateway.wants_input(ConnectionId(1)));
    world.input(1, b"GET c\r\n");
    assert_eq!(world.gateway.counters().commands_waited, 1);
    assert!(!world.gateway.wants_input(ConnectionId(1)));
}

#[test]
fn input_may_be_cut_at_every_byte() {
    let mut input = request(&[b"SET", b"k", b"a\r\nb"]);
    input.extend(b"GET k\r\n");
    input.extend(request(&[b"MGET", b"k", b"none"]));
    input.extend(request(&[b"nosuch", b"x"]));
    let expected = "+OK\r\n$4\r\na\r\nb\r\n*2\r\n$4\r\na\r\nb\r\n$-1\r\n\
         -ERR unknown command 'nosuch', with args beginning with: 'x' \r\n";
    for cut in 0..=input.len() {
        let mut world = World::new(cut as u64);
        world.input(1, &input[..cut]);
        world.run_for(5 * MS);
        world.input(1, &input[cut..]);
        assert_eq!(world.replies(1), expected, "cut at {cut}");
    }
}

#[test]
fn a_command_of_several_keys_is_one_request_that_names_them() {
    let mut world = World::new(3);
    assert_eq!(world.ask(&["MSET a 1 b 2 c 3"]), "+OK\r\n");
    assert_eq!(world.ask(&["MGET c none a"]), "*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n1\r\n");
    assert_eq!(world.ask(&["MGET b"]), "*1\r\n$1\r\n2\r\n");
    assert_eq!(world.ask(&["EXISTS a b a none", "touch a b"]), ":3\r\n:2\r\n");
    assert_eq!(
        world.ask(&["MSETNX d 1 a 2", "MSETNX d 1 e 2", "UNLINK d e"]),
        ":0\r\n:1\r\n:2\r\n"
    );
    world.executed();
    world.store.log.clear();
    assert_eq!(
        world.ask(&["DEL a b none", "DEL c", "MGET b b"]),
        ":2\r\n:1\r\n*2\r\n$-1\r\n$-1\r\n"
    );
    let of = |key: &str| (Class::Write, "DEL".to_string(), key.to_string(), false);
    assert_eq!(world.store.log[..2], [of(""), of("c")]);
    assert_eq!(
        world.store.log.iter().map(|(.., all_keys)| *all_keys).collect::<Vec<_>>(),
        [false; 3]
    );
    assert_eq!(
        world.ask(&["DEL c", "GET c", "MSET a 1", "GET a"]),
        ":0\r\n$-1\r\n+OK\r\n$1\r\n1\r\n"
    );
    let wrong = "-ERR wrong number of arguments for 'mset' command\r\n";
    assert_eq!(world.ask(&["MSET a 1 b"]), wrong);
    assert!(world.ask(&["PFMERGE a b"]).starts_with("-WRONGTYPE "));
    assert_eq!(world.ask(&["RENAME nosuch b"]), "-ERR no such key\r\n");
    assert_eq!(world.ask(&["LPUSH l 1", "MGET a l"]), ":1\r\n*2\r\n$1\r\n1\r\n$-1\r\n");
    // More keys than a request names.
    let many: Vec<String> = (0..1_000).map(|i| format!("m{i} {i}")).collect();
    assert_eq!(world.ask(&[&format!("MSET {}", many.join(" ")), "DBSIZE"]), "+OK\r\n:1002\r\n");
    let mset = world.store.log.iter().rfind(|(_, name, ..)| name == "MSET").unwrap();
    assert!(mset.3, "it is of all keys");
}

#[test]
fn t22_pipelined_commands_of_several_keys_see_what_came_before() {
    let mut world = World::new(30);
    let reply = world.ask(&[
        "SET a 1",
        "MSET a 2 b 2",
        "MGET a b",
        "INCR b",
        "MGET b a",
        "DEL a b",
        "MGET a b",
    ]);
    let expected = "+OK\r\n+OK\r\n*2\r\n$1\r\n2\r\n$1\r\n2\r\n:3\r\n*2\r\n$1\r\n3\r\n$1\r\n2\r\n:2\r\n\
                    *2\r\n$-1\r\n$-1\r\n";
    assert_eq!(reply, expected);
}

#[test]
fn reads_of_several_keys_go_key_by_key_where_that_is_wanted() {
    let mut world = World::with(3, |config| {
        (config.splits_reads, config.client.reads_max) = (true, 100);
    });
    assert_eq!(world.ask(&["MSET a 1 b 2 c 3"]), "+OK\r\n");
    world.executed();
    assert_eq!(world.ask(&["MGET c none a"]), "*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n1\r\n");
    assert_eq!(world.ask(&["EXISTS a b a none"]), ":3\r\n");
    let mut executed = world.executed();
    executed.sort_unstable();
    let parts = ["EXISTS a", "EXISTS a", "EXISTS b", "EXISTS none", "GET a", "GET c", "GET none"];
    assert_eq!(executed, parts);
    // More parts than the window has room for.
    let many: Vec<String> = (0..1_000).map(|i| format!("m{i}")).collect();
    assert_eq!(world.ask(&[&format!("EXISTS a {}", many.join(" "))]), ":1\r\n");
    assert!(world.gateway.counters().window_full > 0);
}

#[test]
fn transactions_on_one_key_are_one_write() {
    let mut world = World::new(4);
    let reply = world.ask(&["MULTI", "SET k 1", "INCR k", "GET k", "EXEC"]);
    let queued = "+QUEUED\r\n".repeat(3);
    assert_eq!(reply, format!("+OK\r\n{queued}*3\r\n+OK\r\n:2\r\n$1\r\n2\r\n"));
    assert_eq!(world.executed(), ["CONCORD.EXEC "]);
    assert_eq!(
        world.ask(&["MULTI", "SET k 9", "DISCARD", "GET k"]),
        "+OK\r\n+QUEUED\r\n+OK\r\n$1\r\n2\r\n"
    );
    assert_eq!(world.ask(&["MULTI", "EXEC"]), "+OK\r\n*0\r\n");
    assert_eq!(
        world.ask(&["EXEC", "DISCARD"]),
        "-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n"
    );
    world.executed();
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    for bad in ["NOSUCH", "GET", "CONCORD HELP", "EVALSHA 0123 9 k"] {
        let reply = world.ask(&["MULTI", "SET k 1", bad, "EXEC"]);
        assert!(reply.ends_with(abort), "{bad}: {reply}");
    }
    // A script that is not known is an error of its own, and the other commands are executed.
    assert_eq!(
        world.ask(&["MULTI", "SET k 1", "EVALSHA 0123 1 k", "GET k", "EXEC"]),
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n\
         -NOSCRIPT No matching script. Please use EVAL.\r\n$1\r\n1\r\n"
    );
    assert_eq!(world.executed(), ["CONCORD.EXEC "]);
    let reply = world.ask(&["MULTI", "MULTI", "WATCH k", "DEL k", "MSET k 5", "EXEC"]);
    assert!(reply.ends_with("+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n+OK\r\n"), "{reply}");
    assert_eq!(world.executed(), ["CONCORD.EXEC "], "nothing else was executed");
    assert_eq!(world.ask(&["CONFIG SET proto-max-bulk-len 1mb"]), "+OK\r\n");
    let large = vec![b'v'; (1 << 20) + 1];
    world.input(1, b"MULTI\r\n");
    world.input(1, &request(&[b"SET", b"k", &large]));
    world.input(1, b"EXEC\r\n");
    assert!(world.replies(1).ends_with(abort));
    assert_eq!(world.ask(&["UNWATCH"]), "+OK\r\n");
}

/// A transaction is answered with nil if what it watches has changed.
#[test]
fn changed_watched_key_answers_nil() {
    let mut world = World::new(33);
    let nil = "+OK\r\n+QUEUED\r\n*-1\r\n";
    let done = "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n";
    let (sets, begin) = (["MULTI", "SET k 9", "EXEC"], |world: &mut World, id, line: &[u8]| {
        world.input(id, line);
        world.replies(id)
    });
    world.connect(2);
    // In one pipeline: EXEC waits for what WATCH sees.
    let reply = world.ask(&["SET k 1", "WATCH k j", "GET k", "MULTI", "SET k 9", "EXEC", "GET k"]);
    assert_eq!(reply, format!("+OK\r\n+OK\r\n$1\r\n1\r\n{done}$1\r\n9\r\n"));
    // Another client writes in between, to a key that the transaction does not name.
    assert_eq!(world.ask(&["WATCH k j", "GET j"]), "+OK\r\n$-1\r\n");
    assert_eq!(begin(&mut world, 2, b"SET j x\r\n"), "+OK\r\n");
    assert_eq!(world.ask(&sets), nil);
    // EXEC, DISCARD, UNWATCH and RESET end it.
    assert_eq!(world.ask(&sets), done);
    for end in ["UNWATCH", "RESET"] {
        assert_eq!(world.ask(&["WATCH j"]), "+OK\r\n");
        begin(&mut world, 2, b"APPEND j x\r\n");
        assert!(world.ask(&[end]).starts_with('+'));
        assert_eq!(world.ask(&sets), done, "{end}");
    }
    assert_eq!(world.ask(&["WATCH j", "UNWATCH"]), "+OK\r\n+OK\r\n");
    assert_eq!(world.ask(&["WATCH j", "MULTI", "DISCARD"]), "+OK\r\n+OK\r\n+OK\r\n");
    begin(&mut world, 2, b"APPEND j x\r\n");
    assert_eq!(world.ask(&sets), done);
    // What was seen first counts, and own writes do too.
    assert_eq!(world.ask(&["WATCH k", "SET k 3", "WATCH k"]), "+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!(world.ask(&sets), nil);
    // Nothing but reads, and nothing at all.
    assert_eq!(world.ask(&["WATCH j", "MULTI", "EXEC"]), "+OK\r\n+OK\r\n*0\r\n");
    assert_eq!(world.ask(&["WATCH j"]), "+OK\r\n");
    begin(&mut world, 2, b"APPEND j x\r\n");
    assert_eq!(world.ask(&["MULTI", "GET k", "EXEC"]), nil);
    // More than is kept.
    let long = "k".repeat(40_000);
    let reply = world.ask(&[&format!("WATCH {long}"), &format!("WATCH {long}x")]);
    assert!(reply.starts_with("+OK\r\n-ERR the keys that are watched"), "{reply}");
    assert!(world.ask(&["CONCORD.DIGEST k"]).starts_with("-ERR this command is Concord's own"));
}

/// docs/internals/bugs.md, 18.48: a read behind a WATCH could see an older value than the one that
/// was watched.
#[test]
fn bug_18_48_read_after_watch_is_not_older() {
    let other = "WATCH l m n o p q r s t";
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.ask(&["WATCH k j", "GET k", "MGET i j", "GET i", other, "GET l", "DBSIZE"]);
        let executed = world.executed();
        let place = |name: &str| executed.iter().position(|e| e.starts_with(name)).unwrap();
        let first = place("CONCORD.DIGEST");
        let last = |name: &str| executed.iter().rposition(|e| e.starts_with(name)).unwrap();
        let second = last("CONCORD.DIGEST");
        // What is watched is read together with its digest.
        assert!(first < place("CONCORD.EXEC"), "seed {seed}: {executed:?}");
        assert!(second < last("CONCORD.EXEC") && second < place("DBSIZE"), "{seed}: {executed:?}");
    }
}

/// docs/internals/bugs.md, 18.49: an EXEC that only reads was executed before reads that were sent
/// before it.
#[test]
fn bug_18_49_an_exec_that_watches_overtakes_no_read() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.ask(&["WATCH k"]);
        world.ask(&["GET j", "MULTI", "GET j", "EXEC"]);
        let executed = world.executed();
        let last = executed.last().map(String::as_str).unwrap_or_default();
        assert!(last.starts_with("CONCORD.EXEC"), "seed {seed}: {executed:?}");
    }
}

/// docs/internals/bugs.md, 18.50: a key that was changed, read and changed back did not end what
/// watched it.
#[test]
fn bug_18_50_exec_after_a_newer_read_is_refused() {
    let mut world = World::new(7);
    let exec = ["MULTI", "SET l x", "EXEC"];
    let done = "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n";
    let not_done = "+OK\r\n+QUEUED\r\n*-1\r\n";
    let ways: [&[&str]; 5] =
        [&["GET k"], &["MGET j k"], &["STRLEN k"], &["GETRANGE k 0 -1"], &["TYPE k"]];
    for read in ways {
        for first in [None, Some(&b"a"[..])] {
            world.store.write_elsewhere(&[b"DEL", b"k"]);
            let back = |world: &mut World| match first {
                Some(value) => world.store.write_elsewhere(&[b"SET", b"k", value]),
                None => world.store.write_elsewhere(&[b"DEL", b"k"]),
            };
            back(&mut world);
            assert_eq!(world.ask(&["WATCH k"]), "+OK\r\n");
            // Nothing was changed.
            let plain = world.ask(read);
            assert_eq!(world.ask(&exec), done, "{read:?}");
            assert_eq!(world.ask(&["WATCH k"]), "+OK\r\n");
            world.store.write_elsewhere(&[b"SET", b"k", b"bb"]);
            let changed = world.ask(read);
            assert!(read[0].starts_with("TYPE") || changed != plain, "{changed}");
            back(&mut world);
            assert_eq!(world.ask(&exec), not_done, "{read:?}");
            // What was read for an earlier WATCH says nothing.
            assert_eq!(world.ask(&["WATCH k"]), "+OK\r\n");
            world.store.write_elsewhere(&[b"SET", b"k", b"bb"]);
            world.ask(&["GET k", "UNWATCH"]);
            back(&mut world);
            assert_eq!(world.ask(&["WATCH k", "GET k"]).matches("+OK").count(), 1);
            assert_eq!(world.ask(&exec), done, "{read:?}");
        }
    }
}

#[test]
fn a_transaction_has_any_keys_and_none() {
    let mut world = World::new(31);
    let queued = |n| format!("+OK\r\n{}", "+QUEUED\r\n".repeat(n));
    let reply =
        world.ask(&["MULTI", "SET k 1", "INCR l", "MGET k l", "PING", "SELECT 99", "EXEC", "PING"]);
    let replies =
        "*5\r\n+OK\r\n:1\r\n*2\r\n$1\r\n1\r\n$1\r\n1\r\n+PONG\r\n-ERR DB index is out of range\r\n";
    assert_eq!(reply, format!("{}{replies}+PONG\r\n", queued(5)));
    let exec = |class, all_keys| (class, "CONCORD.EXEC".to_string(), String::new(), all_keys);
    assert_eq!(world.store.log, [exec(Class::Write, false)]);
    world.store.log.clear();
    // One that only reads is a read.
    let reply = world.ask(&["MULTI", "GET k", "EXISTS k l", "EXEC"]);
    assert_eq!(reply, format!("{}*2\r\n$1\r\n1\r\n:2\r\n", queued(2)));
    assert_eq!(world.store.log, [exec(Class::Read, false)]);
    world.store.log.clear();
    assert_eq!(
        world.ask(&["MULTI", "PING", "ECHO x", "EXEC"]),
        format!("{}*2\r\n+PONG\r\n$1\r\nx\r\n", queued(2))
    );
    assert_eq!(world.store.log, []);
    let reply = world.ask(&["MULTI", "FLUSHALL", "SET a 1", "DBSIZE", "EXEC"]);
    assert_eq!(reply, format!("{}*3\r\n+OK\r\n+OK\r\n:1\r\n", queued(3)));
    let incrs: Vec<String> = (0..20).map(|n| format!("INCR n{n}")).collect();
    let mut lines = vec!["MULTI"];
    lines.extend(incrs.iter().map(String::as_str));
    lines.push("EXEC");
    assert_eq!(world.ask(&lines), format!("{}*20\r\n{}", queued(20), ":1\r\n".repeat(20)));
    assert_eq!(world.store.log, [exec(Class::Write, true), exec(Class::Write, true)]);
}

#[test]
fn resp3_is_spoken_after_hello_3() {
    let mut world = World::new(5);
    let reply = world.ask(&["GET none", "HELLO 3 SETNAME me", "GET none", "CLIENT GETNAME"]);
    assert!(reply.starts_with("$-1\r\n%7\r\n$6\r\nserver\r\n"), "{reply}");
    assert!(reply.ends_with("_\r\n$2\r\nme\r\n"), "{reply}");
    assert_eq!(
        world.ask(&["MGET none", "CONFIG GET save"]),
        "*1\r\n_\r\n%1\r\n$4\r\nsave\r\n$0\r\n\r\n"
    );
    let reply = world.ask(&["HELLO 4", "HELLO x", "HELLO 2 FOO"]);
    assert!(reply.starts_with("-NOPROTO "), "{reply}");
    assert!(reply.ends_with("-ERR Syntax error in HELLO option 'FOO'\r\n"), "{reply}");
    assert_eq!(world.ask(&["RESET", "GET none"]), "+RESET\r\n$-1\r\n");
}

#[test]
fn nothing_is_done_before_the_password() {
    let mut world = World::with(6, |config| config.requirepass = Some(b"secret".to_vec()));
    let noauth = "-NOAUTH Authentication required.\r\n";
    assert_eq!(world.ask(&["GET k", "NOSUCH", "MULTI"]), noauth.repeat(3));
    assert!(world.ask(&["AUTH wrong1"]).starts_with("-WRONGPASS"));
    assert!(world.ask(&["AUTH other secret"]).starts_with("-WRONGPASS"));
    assert!(world.ask(&["HELLO 3"]).starts_with("-NOAUTH HELLO"));
    assert_eq!(world.ask(&["GET k"]), noauth);
    assert!(world.executed().is_empty());
    assert_eq!(world.ask(&["AUTH secret", "GET k"]), "+OK\r\n$-1\r\n");
    assert_eq!(world.ask(&["RESET", "GET k"]), format!("+RESET\r\n{noauth}"));
    assert!(world.ask(&["HELLO 2 AUTH default secret", "GET k"]).ends_with("$-1\r\n"));
    world.connect(2);
    world.input(2, b"*100\r\n");
    assert!(world.replies(2).contains("unauthenticated multibulk length"));
    assert!(world.gateway.wants_close(ConnectionId(2)));
    let mut open = World::new(6);
    assert!(open.ask(&["AUTH x"]).starts_with("-ERR AUTH <password> called without any password"));
}

#[test]
fn what_is_not_supported_says_so() {
    let mut world = World::new(7);
    for (line, error) in [
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("nosuch a b", "-ERR unknown command 'nosuch', with args beginning with: 'a' 'b' "),
        ("SELECT 16", "-ERR DB index is out of range"),
        ("SELECT x", "-ERR value is not an integer or out of range"),
        ("CLIENT NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP."),
        ("CLIENT", "-ERR wrong number of arguments for 'client' command"),
        ("CONCORD.EXEC x", "-ERR this command is Concord's own"),
    ] {
        assert_eq!(world.ask(&[line]), format!("{error}\r\n"));
    }
    for line in
        ["WAITAOF 1 1 0", "DEBUG SLEEP 0", "CONFIG SET save x", "CLUSTER INFO", "SWAPDB 0 1"]
    {
        assert!(world.ask(&[line]).starts_with("-ERR "), "{line}");
    }
    assert!(world.executed().is_empty());
}

/// Who sends no more has its replies and who waits is gone.
#[test]
fn bug_18_70_half_closed_client_gets_its_replies() {
    let mut w = World::new(12);
    let id = ConnectionId(1);
    // All of it is under way, or waits for that, when the client shuts its side.
    w.input(1, b"SET a 1\r\nGET a\r\nMULTI\r\nINCR a\r\nEXEC\r\nGET");
    w.gateway.ended(id);
    assert!(!w.gateway.wants_input(id) && !w.gateway.wants_close(id) && !w.gateway.is_over(id));
    assert_eq!(w.replies(1), "+OK\r\n$1\r\n1\r\n+OK\r\n+QUEUED\r\n*1\r\n:2\r\n");
    assert!(w.gateway.wants_close(id), "the rest of a command never comes");
    // What would wait for others is over.
    for (id, commands) in
        [(2, "GET a\r\nBLPOP q 0\r\n"), (3, "SUBSCRIBE c\r\n"), (4, "MONITOR\r\n")]
    {
        w.connect(id);
        w.input(id, commands.as_bytes());
        assert!(!w.gateway.is_over(ConnectionId(id)), "{commands}");
        w.gateway.ended(ConnectionId(id));
        w.replies(id);
        assert!(w.gateway.is_over(ConnectionId(id)), "{commands}");
    }
    w.connect(5);
    w.gateway.ended(ConnectionId(5));
    assert!(w.gateway.has_ended(ConnectionId(5)) && w.gateway.wants_close(ConnectionId(5)));
}

#[test]
fn outcomes_are_told_as_they_are() {
    let mut world = World::new(9);
    assert_eq!(world.ask(&["SET k 1"]), "+OK\r\n");
    world.store.mood = Mood::Mute;
    world.executed();
    let reply = world.ask(&["INCR k", "GET j", "PING"]);
    let unknown = "-UNKNOWN the outcome of this write is not known: it may or may not have been \
         executed; do not blindly retry\r\n";
    let timeout = "-TIMEOUT read timed out; it is safe to retry\r\n";
    assert_eq!(reply, format!("{unknown}{timeout}+PONG\r\n"));
    let increments = world.executed().iter().filter(|name| *name == "INCR k").count();
    assert_eq!(increments, 1, "the client table answers retries");
    world.store.mood = Mood::Serves;
    assert_eq!(world.ask(&["GET k"]), "$1\r\n2\r\n");
    let mut world = World::new(9);
    world.store.mood = Mood::Dead;
    let tryagain = "-TRYAGAIN not executed; it is safe to retry\r\n";
    assert_eq!(world.ask(&["INCR k", "DEL a b"]), tryagain.repeat(2));
}

#[test]
fn scripts_are_remembered_and_sent_as_text() {
    let mut world = World::with(10, |config| {
        let eval = b"*1\r\n*6\r\n$4\r\neval\r\n:-3\r\n*1\r\n+noscript\r\n:0\r\n:0\r\n:0\r\n";
        config.table = concord_engine::CommandTable::from_resp(eval).unwrap();
    });
    assert_eq!(
        world.ask(&["EVALSHA 0123 1 k"]),
        "-NOSCRIPT No matching script. Please use EVAL.\r\n"
    );
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert_eq!(world.ask(&["SCRIPT LOAD 'return 1'"]), format!("$40\r\n{sha}\r\n"));
    assert_eq!(world.ask(&[&format!("SCRIPT EXISTS {sha} x")]), "*2\r\n:1\r\n:0\r\n");
    let upper = sha.to_uppercase();
    assert_eq!(world.ask(&[&format!("EVALSHA {upper} 1 k a")]), "+return 1\r\n");
    assert_eq!(world.ask(&["EVAL 'return 2' 2 k k"]), "+return 2\r\n");
    assert_eq!(world.executed(), ["EVAL k", "EVAL k"]);
    assert!(world.ask(&["EVAL x 9 k"]).starts_with("-ERR Number of keys can't be greater"));
    assert!(world.ask(&["EVAL x -1 k"]).starts_with("-ERR Number of keys can't be negative"));
    assert_eq!(
        world.ask(&["SCRIPT FLUSH x", &format!("SCRIPT EXISTS {sha}")]),
        "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n*1\r\n:1\r\n"
    );
    assert_eq!(
        world.ask(&["SCRIPT FLUSH", &format!("SCRIPT EXISTS {sha}")]),
        "+OK\r\n*1\r\n:0\r\n"
    );
}

/// Scripts concern one key where their text says so and all keys where not.
#[test]
fn script_reach_by_its_text() {
    let mut world = World::new(10);
    let get = "'return(redis.call(\"GET\",KEYS[1]))'";
    for (line, all_keys) in [
        (format!("EVAL {get} 1 k"), false),
        (format!("EVAL {get} 2 k k"), false),
        (format!("EVAL {get} 2 k l"), true),
        ("EVAL 'return(redis.call(\"GET\",ARGV[1]))' 1 k l".to_string(), true),
        ("EVAL 'return(redis.call(\"TIME\"))' 0".to_string(), true),
    ] {
        assert!(world.ask(&[&line]).starts_with("+return"), "{line}");
        let last = world.store.log.last().unwrap();
        assert_eq!((last.3, last.2.is_empty()), (all_keys, all_keys), "{line}");
    }
}

#[test]
fn explain_tells_the_path_beside_the_reply() {
    let mut world = World::new(11);
    let reply = world.ask(&["SET k v", "CONCORD EXPLAIN GET k"]);
    assert!(reply.starts_with("+OK\r\n*16\r\n$4\r\npath\r\n$4\r\nfast\r\n"), "{reply}");
    assert!(reply.contains("$7\r\nreplica\r\n:7\r\n$8\r\nattempts\r\n:1\r\n"), "{reply}");
    assert!(reply.ends_with("$5\r\nreply\r\n$1\r\nv\r\n"), "{reply}");
    assert!(world.ask(&["CONCORD EXPLAIN SET k v"]).starts_with("-ERR CONCORD EXPLAIN"));
    assert!(world.ask(&["CONCORD EXPLAIN GET"]).starts_with("-ERR wrong number"));
    assert!(world.ask(&["CONCORD HELP"]).starts_with("*5\r\n"));
}

/// Few reads are out while replies turn out to be long and who waits for each goes first.
#[test]
fn bug_16_4_few_reads_are_out_while_replies_are_long() {
    let mut world = World::with(14, |setup| setup.connections_max = 1_000);
    world.input(1, &request(&[b"SET", b"long", &vec![b'v'; 400_000]]));
    assert_eq!(world.replies(1), "+OK\r\n");
    world.ask(&["SET short v"]);
    let out = |world: &World| world.gateway.client().unanswered();
    // The first replies show that these are long; then many ask at once.
    for (first, last) in [(2, 20), (21, 800)] {
        for id in first..=last {
            world.connect(id);
            world.stuck.push(id);
            world.input(id, "GET long\r\n".repeat(10).as_bytes());
        }
        if first > 2 {
            // Those that were granted, 4 MiB of each connection, and a few that are tried.
            assert!(out(&world) < 19 * 10 + TENTATIVE_MIN, "{}", out(&world));
        }
        world.run_for(20 * MS);
    }
    world.run_for(SEC);
    assert!(longest_wait(&mut world) < 20 * MS);
}

/// The longest that connection 1 waits for a short reply.
fn longest_wait(world: &mut World) -> u64 {
    let mut longest = 0;
    for _ in 0..50 {
        let began = world.at;
        world.input(1, b"EXISTS k\r\n");
        while world.received[&1].is_empty() {
            assert!(world.step(began.after(SEC)), "no reply for a second");
        }
        assert_eq!(world.received.insert(1, vec![]).unwrap(), b":0\r\n");
        longest = longest.max(world.at.since(began));
    }
    longest
}

/// Who was answered shortly waits for nobody elses long replies.
#[test]
fn bug_16_4_short_replies_wait_for_no_long_ones() {
    let mut world = World::with(17, |setup| setup.connections_max = 1_000);
    world.input(1, &request(&[b"SET", b"long", &vec![b'v'; 400_000]]));
    assert_eq!(world.replies(1), "+OK\r\n");
    for (first, last) in [(2, 20), (21, 800)] {
        for id in first..=last {
            world.connect(id);
            world.stuck.push(id);
            world.input(id, "GET long\r\n".repeat(10).as_bytes());
        }
        if first == 2 {
            world.run_for(20 * MS);
            assert_eq!(world.ask(&["EXISTS k"]), ":0\r\n");
        }
    }
    // While hundreds wait to be tried: there and back.
    let longest = longest_wait(&mut world);
    assert!(longest <= 2 * world.delay_ns.1 + MS, "{longest} ns");
}

/// Who waits for room comes before those whose commands come in the same batch.
#[test]
fn waiting_clients_precede_the_same_batch() {
    let mut world = World::with(18, |setup| setup.client.reads_max = 1);
    (2..=6).for_each(|id| world.connect(id));
    world.batch(0, &[(1, "GET a"), (2, "GET b")]);
    for id in 3..=6 {
        world.batch(5 * MS, &[(id, "GET c")]);
    }
    assert_eq!(world.received[&2], b"$-1\r\n", "others overtake it for ever");
}

#[test]
fn who_is_killed_says_nothing_more_in_the_same_batch() {
    let mut world = World::new(19);
    world.connect(2);
    world.batch(0, &[(1, "CLIENT KILL ID 2"), (2, "INCR x")]);
    assert_eq!(world.ask(&["GET x"]), ":1\r\n$-1\r\n");
    world.connect(3);
    assert_eq!(world.ask(&["CLIENT PAUSE 60000 WRITE"]), "+OK\r\n");
    world.batch(0, &[(3, "INCR x")]);
    world.batch(0, &[(1, "CLIENT KILL ID 3\r\nCLIENT UNPAUSE")]);
    assert_eq!(world.ask(&["GET x"]), ":1\r\n+OK\r\n$-1\r\n");
}

#[test]
fn what_waited_for_the_end_of_a_pause_is_tried_at_once() {
    let mut world = World::new(20);
    world.connect(2);
    world.ask(&["RPUSH k a", "CLIENT PAUSE 60000 WRITE"]);
    world.batch(0, &[(2, "BLPOP k 0")]);
    world.batch(0, &[(1, "CLIENT UNPAUSE")]);
    world.run_for(10 * MS);
    assert_eq!(world.received[&2], b"*2\r\n$1\r\nk\r\n$1\r\na\r\n");
}

/// Who waits for each reply goes before those that pipeline.
#[test]
fn bug_16_4_waiting_clients_precede_pipelines() {
    let mut world = World::with(15, |setup| setup.client.reads_max = 4);
    for id in 2..=90 {
        world.connect(id);
        world.input(id, "EXISTS l\r\n".repeat(1_000).as_bytes());
    }
    // Each has had its first by then.
    world.run_for(SEC / 5);
    // There and back twice: until somebody's reply came, and its own.
    let longest = longest_wait(&mut world);
    assert!(longest <= 4 * world.delay_ns.1 + MS, "{longest} ns");
    assert!(world.gateway.client().unanswered() >= 4, "all the while others wanted more");
}

/// Who pipelines does not starve behind many that wait for each reply.
#[test]
fn bug_16_4_pipelines_do_not_starve() {
    let mut world = World::with(16, |setup| setup.client.reads_max = 4);
    for id in 2..=40 {
        world.connect(id);
        world.input(id, b"EXISTS l\r\n");
    }
    world.input(1, "EXISTS k\r\n".repeat(100).as_bytes());
    let until = world.at.after(SEC);
    while world.received[&1].len() < 100 * b":0\r\n".len() {
        assert!(world.step(until), "{} bytes of replies in a second", world.received[&1].len());
        for id in 2..=40 {
            if !world.received.insert(id, vec![]).unwrap().is_empty() {
                world.input(id, b"EXISTS l\r\n");
            }
        }
    }
}

/// As a driver: hands over as much of `bytes` as the gateway has room for; how much that was.
fn give(world: &mut World, id: u64, bytes: &[u8]) -> usize {
    let mut given = 0;
    while given < bytes.len() {
        let room = world.gateway.input_room(ConnectionId(id)).min(bytes.len() - given);
        if room == 0 {
            break;
        }
        world.input(id, &bytes[given..given + room]);
        given += room;
    }
    given
}

/// Parts of commands take bounded memory and nobody keeps a place for long.
#[test]
fn bug_16_4_parts_take_bounded_memory_and_places() {
    let count = LONG_INPUTS_MAX as u64 + 100;
    let mut world = World::with(13, |setup| setup.connections_max = 1_000);
    let set = request(&[b"SET", b"k", &vec![b'v'; 1 << 20]]);
    let all_but_one = &set[..set.len() - 1];
    (2..=count).for_each(|id| world.connect(id));
    let given: Vec<usize> = (1..=count).map(|id| give(&mut world, id, all_but_one)).collect();
    let all: usize = given.iter().sum();
    let bound = LONG_INPUTS_MAX * set.len() + count as usize * INPUT_BYTES_MAX;
    assert!(all <= bound, "{all} bytes, more than {bound}");
    assert_eq!(given.iter().filter(|bytes| **bytes > INPUT_BYTES_MAX).count(), LONG_INPUTS_MAX);
    // Short commands need no place.
    world.connect(count + 1);
    world.input(count + 1, b"PING\r\n");
    assert_eq!(world.replies(count + 1), "+PONG\r\n");
    // One sends the rest: the next in line goes on, and whoever keeps others waiting is closed.
    world.input(1, &set[set.len() - 1..]);
    assert_eq!(world.replies(1), "+OK\r\n");
    let next = LONG_INPUTS_MAX as u64 + 1;
    let rest = give(&mut world, next, &set[given[next as usize - 1]..]);
    assert_eq!(given[next as usize - 1] + rest, set.len());
    assert_eq!(world.replies(next), "+OK\r\n");
    world.run_for(STUCK_NS + 2 * SEC);
    let given_up = world.gateway.counters().clients_given_up;
    assert!((1..=LONG_INPUTS_MAX as u64).contains(&given_up), "{given_up}");
    assert!(world.gateway.wants_input(ConnectionId(count)), "its turn has come");
    assert_eq!(world.ask(&["PING"]), "+PONG\r\n", "who sent all stays");
}

/// The value of a field of INFO.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[test]
fn bug_16_8_info_shows_memory_and_keys_as_a_replica_tells_them() {
    let mut world = World::new(12);
    assert_eq!(world.ask(&["INFO keyspace"]), "$12\r\n# Keyspace\r\n\r\n");
    world.ask(&["SET k v", "SET l v EX 100", "SET m v PX 50000"]);
    world.executed();
    // Behind a write of its connection, in one piece: it is in the figures.
    let info = world.ask(&["SET n v", "INFO"]);
    assert_eq!(world.executed(), ["SET n", "CONCORD.INFO "]);
    assert!(info.starts_with("+OK\r\n$"), "{info}");
    assert_eq!(field(&info, "db0"), Some("keys=4,expires=2,avg_ttl=75000"));
    let used: u64 = field(&info, "used_memory").unwrap().parse().unwrap();
    assert!(used > 4 * 64 && used < 2_000, "{used}");
    assert_eq!(field(&info, "used_memory_human"), Some(&*format!("{used}B")));
    assert_eq!(field(&info, "concord_data_known"), Some("1"));
    assert_eq!(field(&info, "total_commands_processed"), Some("6"));
    // What the gateway knows itself costs the rack nothing.
    let own = world.ask(&["INFO server clients cpu replication persistence commandstats"]);
    assert!(own.contains("# Server\r\n") && own.contains("\r\n\r\n# CPU\r\n"), "{own}");
    assert_eq!(world.executed(), [""; 0]);
    let resp3 = world.ask(&["HELLO 3", "INFO keyspace"]);
    assert!(resp3.contains("=52\r\ntxt:# Keyspace\r\ndb0:keys=4,"), "{resp3}");
}

/// Info of a rack that is silent shows what the gateway knows.
#[test]
fn bug_16_8_info_of_a_silent_rack() {
    let mut world = World::new(12);
    world.ask(&["SET k v"]);
    world.store.mood = Mood::Dead;
    world.input(1, b"INFO\r\nPING\r\n");
    world.run_for(60 * SEC);
    let info = world.replies(1);
    assert!(info.ends_with("+PONG\r\n"), "{info}");
    assert_eq!(field(&info, "concord_data_known"), Some("0"));
    assert_eq!(field(&info, "uptime_in_seconds").map(|n| n != "0"), Some(true));
    assert_eq!((field(&info, "used_memory"), field(&info, "db0")), (None, None), "nothing made up");
}

#[test]
fn memory_usage_is_asked_of_its_key_and_resetstat_begins_anew() {
    let mut world = World::new(12);
    world.ask(&["SET k v", "GET k"]);
    world.executed();
    assert_eq!(world.ask(&["MEMORY USAGE k"]), ":66\r\n");
    assert_eq!(world.ask(&["memory usage nosuch"]), "$-1\r\n");
    assert_eq!(world.executed(), ["MEMORY k", "MEMORY nosuch"]);
    assert!(world.ask(&["MEMORY DOCTOR"]).starts_with("-ERR"));
    assert!(world.ask(&["MEMORY USAGE"]).contains("arguments for 'memory|usage' command"));
    assert!(world.ask(&["CONFIG RESETSTAT"]).starts_with("+OK"));
    let info = world.ask(&["INFO stats"]);
    // RESETSTAT is counted once it has run, INFO once it was sent.
    assert_eq!(field(&info, "total_commands_processed"), Some("2"));
    assert_eq!(field(&info, "total_net_input_bytes"), Some("12"));
    world.gateway.set_memory_bytes_max(1 << 30);
    assert!(world.ask(&["CONFIG GET maxmemory"]).ends_with("$10\r\n1073741824\r\n"));
}

#[test]
fn the_gateway_answers_for_itself() {
    let mut world = World::new(12);
    assert_eq!(
        world.ask(&["PING", "ECHO hi", "SELECT 0", "CLIENT ID"]),
        "+PONG\r\n$2\r\nhi\r\n+OK\r\n:1\r\n"
    );
    assert_eq!(world.ask(&["TIME"]), "*2\r\n$10\r\n1700000000\r\n$6\r\n123000\r\n");
    world.connect(2);
    world.ask(&["CLIENT SETNAME me", "CLIENT SETINFO LIB-NAME redis-py"]);
    let list = world.ask(&["CLIENT LIST"]);
    assert!(list.contains("id=1 addr=127.0.0.1:50001 ") && list.contains("\nid=2 "), "{list}");
    assert!(list.contains("name=me") && list.contains("lib-name=redis-py"), "{list}");
    // Clients read these fields as numbers, and fail where one is not there (redis-py up to 5).
    for field in ["ssub", "qbuf-free", "argv-mem", "multi-mem", "omem", "tot-mem", "redir"] {
        assert_eq!(list.matches(&format!(" {field}=")).count(), 2, "{field}: {list}");
    }
    world.gateway.set_rack_info("concord_replicas:3\r\n".into());
    let info = world.ask(&["GET k", "INFO everything"]);
    for line in ["redis_version:7.0.15", "connected_clients:2", "role:master", "concord_replicas:3"]
    {
        assert!(info.contains(&format!("{line}\r\n")), "{line}: {info}");
    }
    assert!(info.contains("cmdstat_get:calls=1,rejected_calls=0,failed_calls=0\r\n"), "{info}");
    assert!(!world.ask(&["INFO server"]).contains("# Clients"));
    assert_eq!(world.ask(&["COMMAND COUNT"]), format!(":{}\r\n", world.table().count()));
    assert_eq!(world.ask(&["COMMAND GETKEYS SET k v"]), "*1\r\n$1\r\nk\r\n");
    let maxclients = "*2\r\n$10\r\nmaxclients\r\n$3\r\n100\r\n";
    assert_eq!(world.ask(&["CONFIG GET maxcl*"]), maxclients);
    assert_eq!(world.ask(&["QUIT", "PING"]), "+OK\r\n");
    assert!(world.gateway.wants_close(ConnectionId(1)));
}

#[test]
fn the_redis_engine_is_asked_for_its_table() {
    let mut world = World::with(13, |config| {
        config.redis = true;
        config.table = concord_engine::CommandTable::from_resp(b"*0\r\n").unwrap();
    });
    assert!(!world.gateway.is_serving());
    assert!(world.ask(&["SET k 1", "GET k"]).starts_with("-ERR unknown command 'SET'"));
    assert_eq!(world.ask(&["SET k 1", "GET k"]), "+OK\r\n$1\r\n1\r\n");
    assert!(world.gateway.is_serving());
}

#[test]
fn input_waits_when_too_much_is_unanswered_and_goes_on_after() {
    let mut world = World::new(14);
    world.connect(2);
    let many = request(&[b"INCR", b"k"]).repeat(3_000);
    world.input(1, &many);
    assert!(!world.gateway.wants_input(ConnectionId(1)));
    assert!(world.gateway.wants_input(ConnectionId(2)), "its own commands do not wait");
    world.input(2, b"INCR j\r\n");
    let replies = world.replies(1);
    assert_eq!(replies.lines().count(), 3_000);
    assert!(replies.ends_with(":3000\r\n"));
    assert_eq!(world.replies(2), ":1\r\n");
    assert!(world.gateway.wants_input(ConnectionId(1)));
    assert!(world.gateway.counters().window_full > 0);
    world.input(1, &request(&[b"GET", b"k"]).repeat(3_000));
    assert_eq!(world.replies(1).lines().count(), 6_000);
    assert!(world.gateway.counters().slots_full > 0);
}

#[test]
fn input_waits_for_a_client_that_does_not_read() {
    let mut world = World::with(15, |config| config.limits.output_bytes_max = 4 << 20);
    let value = vec![b'v'; 1 << 20];
    world.input(1, &request(&[b"SET", b"k", &value]));
    assert_eq!(world.replies(1), "+OK\r\n");
    world.stuck.push(1);
    for _ in 0..40 {
        world.input(1, b"GET k\r\n");
        world.run_for(SEC / 2);
    }
    assert!(!world.gateway.wants_input(ConnectionId(1)));
    let held = world.gateway.output(ConnectionId(1)).unwrap().len();
    assert!(held < 8 << 20, "{held}");
    world.stuck.clear();
    let output = world.gateway.output(ConnectionId(1)).unwrap().to_vec();
    world.received.get_mut(&1).unwrap().extend(output);
    let mut sent = vec![];
    world.gateway.written(world.now(), ConnectionId(1), held, &mut sent);
    world.after_input(sent);
    for _ in 0..10 {
        world.run_for(SEC);
    }
    assert_eq!(world.replies(1).len(), 40 * ((1 << 20) + 12));
    assert!(world.gateway.wants_input(ConnectionId(1)));
}

#[test]
fn a_closed_connection_is_forgotten_and_the_others_go_on() {
    let mut world = World::new(16);
    world.connect(2);
    world.input(1, &request(&[b"INCR", b"k"]).repeat(600));
    world.input(2, &request(&[b"INCR", b"j"]).repeat(600));
    world.gateway.closed(ConnectionId(1));
    assert!(world.replies(2).ends_with(":600\r\n"));
    assert_eq!(world.gateway.connection_count(), 1);
    assert!(world.gateway.output(ConnectionId(1)).is_none());
    for id in 3..102 {
        world.connect(id);
    }
    assert!(!world.gateway.connected(world.now(), ConnectionId(200), "x"));
    assert!(Gateway::TOO_MANY.starts_with(b"-ERR max number of clients reached"));
}

#[test]
fn a_shutdown_answers_what_was_sent() {
    let mut world = World::new(17);
    world.input(1, b"SET k 1\r\nGET k\r\nGET k\r\n");
    world.gateway.shutdown();
    assert!(!world.gateway.wants_close(ConnectionId(1)));
    assert!(!world.gateway.connected(world.now(), ConnectionId(9), "x"));
    assert_eq!(world.replies(1), "+OK\r\n", "the reads were not sent yet");
    assert!(world.gateway.wants_close(ConnectionId(1)));
}

/// Http is closed without a word and nothing of it is executed.
#[test]
fn bug_16_5_http_is_closed_unexecuted() {
    let post =
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\nContent-Length: 10\r\n\r\nSET evil 1\r\n";
    let get = "GET / HTTP/1.1\r\nhost: 127.0.0.1:6379\r\n\r\nSET evil 1\r\n";
    for (id, (page, answer)) in (2..).zip([(post, ""), (get, "-ERR wrong number of arguments")]) {
        let mut w = World::new(1);
        w.connect(id);
        w.input(id, page.as_bytes());
        assert!(w.gateway.wants_close(ConnectionId(id)));
        w.input(id, b"SET evil 2\r\n");
        let said = w.replies(id);
        assert!(said.starts_with(answer) && said.lines().count() <= 1, "{said}");
        assert_eq!(w.gateway.counters().http_refused, 1);
        assert_eq!(w.executed(), [""; 0]);
        assert_eq!(w.ask(&["EXISTS evil"]), ":0\r\n");
    }
}

#[test]
fn bug_16_5_a_tls_client_is_told_that_the_port_is_plain() {
    let mut w = World::new(1);
    w.input(1, &[0x16]);
    assert_eq!(w.replies(1), "");
    w.input(1, &[3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
    let said = w.replies(1);
    assert!(said.starts_with("-ERR Protocol error: this port does not speak TLS"), "{said}");
    assert!(w.gateway.wants_close(ConnectionId(1)));
}

/// What a script published comes though its client is gone.
#[test]
fn bug_18_14_published_though_its_client_is_gone() {
    let mut w = World::new(3);
    w.input(1, b"SUBSCRIBE c\r\n");
    w.run_for(10 * MS);
    for (id, leaves) in [(2, false), (3, true)] {
        w.connect(id);
        w.input(id, b"EVAL publish 0\r\n");
        if leaves {
            w.gateway.closed(ConnectionId(id));
        }
        w.run_for(50 * MS);
    }
    assert_eq!(w.received[&2], b"+x\r\n");
    let heard = String::from_utf8(w.received[&1].clone()).unwrap();
    assert_eq!(
        heard.matches("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n").count(),
        2,
        "{heard}"
    );
}
