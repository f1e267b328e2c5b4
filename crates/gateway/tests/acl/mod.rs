//! Users: what they may do, as redis-server 7.0.15 has it, and how the rack keeps them.

use concord_core::SEC;
use concord_gateway::ConnectionId;

use crate::common::{Mood, World, say};

const NO_KEY: &str =
    "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
const NO_CHANNEL: &str =
    "-NOPERM this user has no permissions to access one of the channels used as arguments\r\n";

fn shared(seed: u64) -> World {
    let mut w = World::new(seed);
    w.gateway.share_users(&[7; 32]);
    w.run_for(SEC / 10);
    w
}

#[test]
fn a_user_may_do_what_its_rules_say() {
    for mut w in [World::new(1), shared(1)] {
        w.connect(2);
        let rules =
            "ACL SETUSER bob on >pw ~a* %R~r* &c* +@all -@hash +select|3 -config +config|get";
        assert_eq!(say(&mut w, 1, &[rules]), "+OK\r\n");
        assert_eq!(say(&mut w, 2, &["AUTH bob pw", "ACL WHOAMI"]), "+OK\r\n$3\r\nbob\r\n");
        for (asked, reply) in [
            ("SET a 1", "+OK\r\n"),
            ("GET r", "$-1\r\n"),
            ("GET b", NO_KEY),
            ("SET r 1", NO_KEY),
            ("MGET a b", NO_KEY),
            ("COPY a r", NO_KEY),
            ("EXISTS r", ":0\r\n"),
            ("EXISTS x", NO_KEY),
            ("HGET a f", "-NOPERM this user has no permissions to run the 'hget' command\r\n"),
            ("hgetall", "-ERR wrong number of arguments for 'hgetall' command\r\n"),
            ("CONFIG GET port", "*2\r\n$4\r\nport\r\n$4\r\n7379\r\n"),
            (
                "CONFIG SET hz 10",
                "-NOPERM this user has no permissions to run the 'config|set' command\r\n",
            ),
            ("PUBLISH d x", NO_CHANNEL),
            ("PUBLISH c1 x", ":0\r\n"),
            ("PSUBSCRIBE c1*", NO_CHANNEL),
            ("WATCH b", NO_KEY),
            (
                "SORT a BY w_*",
                "-ERR BY option of SORT denied due to insufficient ACL permissions.\r\n",
            ),
            (
                "SORT a GET w_*",
                "-ERR GET option of SORT denied due to insufficient ACL permissions.\r\n",
            ),
            ("SELECT 4", "+OK\r\n"),
            ("SELECT 0", "+OK\r\n"),
            ("CONCORD EXPLAIN GET b", NO_KEY),
            ("MULTI", "+OK\r\n"),
            ("GET b", NO_KEY),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"),
            // Scripts go to the rack, with the rules.
            ("EVAL \"return 1\" 0", "+return 1\r\n"),
            ("EVAL \"return 1\" 1 b", NO_KEY),
            (
                "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0",
                "-NOSCRIPT No matching script. Please use EVAL.\r\n",
            ),
            ("FCALL f 1 b", NO_KEY),
            ("FCALL f 1 a", "-ERR Function not found\r\n"),
        ] {
            let found = say(&mut w, 2, &[asked]);
            assert!(
                found == reply || found.starts_with(reply) && asked.contains(" 1"),
                "{asked}: {found}"
            );
        }
        assert!(say(&mut w, 2, &["HGET a f"]).starts_with("-NOPERM"));
        let log = say(&mut w, 1, &["ACL LOG 1"]);
        assert!(
            log.contains("$6\r\nreason\r\n$7\r\ncommand\r\n$7\r\ncontext\r\n$8\r\ntoplevel"),
            "{log}"
        );
        assert!(log.contains(" cmd=hget user=bob "), "{log}");
        // Rules hold at once for connections that are there.
        assert_eq!(say(&mut w, 1, &["ACL SETUSER bob -set"]), "+OK\r\n");
        let refused = "-NOPERM this user has no permissions to run the 'set' command\r\n";
        assert_eq!(say(&mut w, 2, &["SET a 1"]), refused);
        assert_eq!(say(&mut w, 1, &["CLIENT KILL USER bob", "ACL DELUSER bob x"]), ":1\r\n:1\r\n");
        w.connect(3);
        assert!(say(&mut w, 3, &["AUTH bob pw"]).starts_with("-WRONGPASS"));
        assert!(say(&mut w, 1, &["ACL LOG"]).contains("\r\nauth\r\n"));
    }
}

#[test]
fn the_rules_of_a_user_go_to_the_rack_with_its_scripts() {
    let rules = |w: &mut World| {
        let sent = std::mem::take(&mut w.store.rules);
        sent.into_iter().map(|rules| String::from_utf8(rules).unwrap()).collect::<Vec<_>>()
    };
    let mut w = shared(11);
    w.connect(2);
    let set = "ACL SETUSER bob on nopass ~a* &c +@scripting +get (~b* +set)";
    assert_eq!(say(&mut w, 1, &[set, "FUNCTION STATS"]).lines().next(), Some("+OK"));
    assert_eq!(say(&mut w, 2, &["AUTH bob x"]), "+OK\r\n");
    let scripts = [
        "EVAL \"return 1\" 0",
        "EVAL_RO \"return redis.call('get',KEYS[1])\" 1 a",
        "MULTI",
        "EVAL \"return 1\" 0",
        "FCALL f 0",
        "EXEC",
        "FCALL_RO f 0",
    ];
    say(&mut w, 1, &scripts);
    assert!(rules(&mut w).is_empty(), "who may do everything has none");
    say(&mut w, 2, &scripts);
    let expected = "~a* resetchannels &c -@all +@scripting +get (~b* resetchannels -@all +set)";
    assert_eq!(rules(&mut w), [expected; 5]);
    // They are those of the moment.
    assert_eq!(say(&mut w, 1, &["ACL SETUSER bob -get"]), "+OK\r\n");
    say(&mut w, 2, &["EVAL \"return 1\" 0"]);
    assert_eq!(rules(&mut w), [expected.replace(" +get", "")]);
    let many: String = (0..2_000).map(|n| format!(" ~key{n:05}")).collect();
    assert_eq!(say(&mut w, 1, &[&format!("ACL SETUSER bob{many}")]), "+OK\r\n");
    let found = say(&mut w, 2, &["EVAL \"return 1\" 0"]);
    assert!(found.starts_with("-ERR the rules of this user take more than 16 KiB"), "{found}");
    // Of what is slow they are no part.
    assert_eq!(
        say(&mut w, 1, &["ACL SETUSER bob resetkeys ~a", "CONFIG SET slowlog-log-slower-than 1"]),
        "+OK\r\n".repeat(2)
    );
    say(&mut w, 2, &["EVAL \"return 7\" 1 a"]);
    let log = say(&mut w, 1, &["SLOWLOG GET"]);
    assert!(log.contains("return 7") && !log.contains("resetchannels"), "{log}");
}

#[test]
fn who_is_deleted_or_may_not_listen_any_more_is_disconnected() {
    let mut w = shared(2);
    (2..=4).for_each(|id| w.connect(id));
    say(&mut w, 1, &["ACL SETUSER eve on nopass allkeys +@all &c &d*"]);
    (2..=4).for_each(|id| assert_eq!(say(&mut w, id, &["AUTH eve x"]), "+OK\r\n"));
    say(&mut w, 2, &["SUBSCRIBE c"]);
    say(&mut w, 3, &["PSUBSCRIBE d*"]);
    assert_eq!(w.gateway.connection_count(), 4);
    say(&mut w, 1, &["ACL SETUSER eve resetchannels &c"]);
    assert_eq!(w.gateway.connection_count(), 3, "the one that listens to d*");
    assert_eq!(say(&mut w, 4, &["MULTI", "GET a"]), "+OK\r\n+QUEUED\r\n");
    say(&mut w, 1, &["ACL SETUSER eve -get"]);
    assert!(say(&mut w, 4, &["EXEC"]).starts_with("-EXECABORT"));
    // Its own end it hears of.
    assert_eq!(say(&mut w, 4, &["ACL DELUSER eve"]), ":1\r\n");
    assert!(w.gateway.wants_close(ConnectionId(4)));
    assert!(w.gateway.output(ConnectionId(2)).is_none(), "so is the other");
}

#[test]
fn the_default_user_has_requirepass_until_somebody_changes_it() {
    let mut w = World::with(3, |config| config.requirepass = Some(b"one".to_vec()));
    w.gateway.share_users(&[7; 32]);
    assert!(say(&mut w, 1, &["GET a"]).starts_with("-NOAUTH"));
    assert!(
        say(&mut w, 1, &["AUTH one", "ACL LIST"]).contains("user default on #7692c3ad3540bb80")
    );
    assert_eq!(say(&mut w, 1, &["CONFIG SET requirepass two", "PING"]), "+OK\r\n+PONG\r\n");
    assert_eq!(
        say(&mut w, 1, &["CONFIG GET requirepass"]),
        "*2\r\n$11\r\nrequirepass\r\n$3\r\ntwo\r\n"
    );
    w.connect(2);
    assert!(say(&mut w, 2, &["AUTH one"]).starts_with("-WRONGPASS"));
    assert_eq!(say(&mut w, 2, &["AUTH default two"]), "+OK\r\n");
    assert_eq!(say(&mut w, 1, &["CONFIG SET requirepass \"\""]), "+OK\r\n");
    w.connect(3);
    assert_eq!(say(&mut w, 3, &["PING"]), "+PONG\r\n");
    assert!(say(&mut w, 3, &["AUTH two"]).starts_with("-ERR AUTH <password> called without any"));
}

/// What another gateway changed is seen within a second and never lost.
#[test]
fn remote_change_is_seen_within_a_second() {
    let mut w = shared(4);
    assert_eq!(say(&mut w, 1, &["ACL SETUSER bob on nopass +get"]), "+OK\r\n");
    // Its gateway is not heard here.
    let eve = b"user eve on nopass resetchannels -@all +get";
    w.store.write_elsewhere(&[&b"CONCORD.USERS"[..], b"SET", b"1", &eve[..]]);
    assert_eq!(say(&mut w, 1, &["ACL USERS"]), "*2\r\n$3\r\nbob\r\n$7\r\ndefault\r\n");
    // A change is made to what is there, and to nothing older.
    assert_eq!(say(&mut w, 1, &["ACL SETUSER tom on"]), "+OK\r\n");
    assert_eq!(say(&mut w, 1, &["ACL USERS"]), "*3\r\n$7\r\ndefault\r\n$3\r\neve\r\n$3\r\ntom\r\n");
    w.store.write_elsewhere(&[&b"CONCORD.USERS"[..], b"SET", b"3", &b""[..]]);
    w.run_for(SEC + SEC / 10);
    assert_eq!(say(&mut w, 1, &["ACL USERS"]), "*1\r\n$7\r\ndefault\r\n");
    assert!(say(&mut w, 1, &["MULTI", "ACL SETUSER bob on", "EXEC"]).contains("inside MULTI"));
    assert_eq!(say(&mut w, 1, &["ACL DELUSER nobody"]), ":0\r\n");
    assert!(say(&mut w, 1, &["CONCORD.USERS GET 0"]).starts_with("-ERR"));
}

#[test]
fn paused_clients_wait_and_go_on() {
    let mut w = shared(5);
    w.connect(2);
    assert_eq!(say(&mut w, 1, &["CLIENT PAUSE 300 WRITE"]), "+OK\r\n");
    assert_eq!(say(&mut w, 2, &["GET a", "SET a 1", "GET a"]), "$-1\r\n");
    assert_eq!(say(&mut w, 1, &["CLIENT UNPAUSE"]), "+OK\r\n");
    assert_eq!(say(&mut w, 2, &[]), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(say(&mut w, 1, &["CLIENT PAUSE 300"]), "+OK\r\n");
    assert_eq!(say(&mut w, 1, &["PING"]) + &say(&mut w, 2, &["GET a"]), "");
    w.run_for(SEC / 2);
    assert_eq!(say(&mut w, 1, &[]) + &say(&mut w, 2, &[]), "+PONG\r\n$1\r\n1\r\n");
    for (asked, error) in [
        ("x", "timeout is not an integer or out of range"),
        ("-1", "timeout is negative"),
        ("1 READ", "CLIENT PAUSE mode must be WRITE or ALL"),
    ] {
        let found = say(&mut w, 1, &[&format!("CLIENT PAUSE {asked}")]);
        assert_eq!(found, format!("-ERR {error}\r\n"));
    }
}

#[test]
fn idle_clients_are_disconnected_if_that_is_wanted() {
    let mut w = World::new(6);
    w.connect(2);
    say(&mut w, 2, &["SUBSCRIBE c"]);
    assert_eq!(say(&mut w, 1, &["CONFIG SET timeout 3"]), "+OK\r\n");
    w.run_for(2 * SEC);
    assert_eq!(say(&mut w, 1, &["PING"]), "+PONG\r\n");
    w.run_for(6 * SEC);
    assert!(w.gateway.wants_close(ConnectionId(1)) && !w.gateway.wants_close(ConnectionId(2)));
}

/// A change that changes nothing here goes to the rack all the same.
#[test]
fn bug_18_41_no_op_change_is_still_sent() {
    let mut w = shared(7);
    assert_eq!(say(&mut w, 1, &["ACL SETUSER bob on nopass +get"]), "+OK\r\n");
    // Another gateway, which is not heard here, gives bob a right and makes eve.
    let both =
        b"user bob on nopass resetchannels -@all +get +set\nuser eve on nopass resetchannels -@all";
    w.store.write_elsewhere(&[&b"CONCORD.USERS"[..], b"SET", b"1", &both[..]]);
    assert_eq!(say(&mut w, 1, &["ACL SETUSER bob -set"]), "+OK\r\n");
    let list = say(&mut w, 1, &["ACL LIST"]);
    assert!(list.contains("-@all +get\r\n") && !list.contains("+set"), "{list}");
    let tom = b"user tom on nopass resetchannels -@all";
    w.store.write_elsewhere(&[&b"CONCORD.USERS"[..], b"SET", b"3", &tom[..]]);
    assert_eq!(say(&mut w, 1, &["ACL DELUSER tom"]), ":1\r\n");
}

/// A command that was sent in part goes on whatever the rules are by now.
#[test]
fn bug_18_42_partly_sent_command_ignores_new_rules() {
    let mut w = World::with(8, |config| {
        (config.splits_reads, config.client.reads_max) = (true, 100);
    });
    w.gateway.share_users(&[7; 32]);
    w.run_for(SEC / 10);
    assert_eq!(say(&mut w, 1, &["ACL SETUSER sp on nopass ~* +@all -debug"]), "+OK\r\n");
    w.connect(2);
    assert_eq!(say(&mut w, 2, &["AUTH sp x"]), "+OK\r\n");
    let keys: String = (0..1_000).map(|n| format!(" k{n}")).collect();
    w.input(2, format!("MGET{keys}\r\nMGET a\r\n").as_bytes());
    w.input(1, b"ACL SETUSER sp -mget\r\n");
    w.run_for(SEC);
    let found = say(&mut w, 2, &["PING"]);
    let refused = "-NOPERM this user has no permissions to run the 'mget' command\r\n+PONG\r\n";
    assert!(found.starts_with("*1000\r\n") && found.ends_with(refused), "{} bytes", found.len());
}

#[test]
fn bug_18_44_an_error_is_no_answer_to_who_the_users_are() {
    let mut w = World::new(9);
    w.store.mood = Mood::Fails;
    w.gateway.share_users(&[7; 32]);
    w.run_for(SEC / 10);
    assert_eq!(
        say(&mut w, 1, &["PING"]),
        "",
        "nobody is served before it is known who may do what"
    );
    w.store.mood = Mood::Serves;
    w.run_for(SEC + SEC / 10);
    assert_eq!(say(&mut w, 1, &[]), "+PONG\r\n");
}

/// Users that the rack has lost are forgotten and can be made anew.
#[test]
fn bug_18_45_lost_users_are_forgotten_and_recreated() {
    let mut w = shared(10);
    assert_eq!(say(&mut w, 1, &["ACL SETUSER bob on", "ACL SETUSER eve on"]), "+OK\r\n+OK\r\n");
    // The last second before a power cut is lost, or all of it.
    w.store.lose_all();
    assert_eq!(say(&mut w, 1, &["ACL SETUSER tom on"]), "+OK\r\n");
    assert_eq!(say(&mut w, 1, &["ACL USERS"]), "*2\r\n$7\r\ndefault\r\n$3\r\ntom\r\n");
    w.store.lose_all();
    w.run_for(SEC + SEC / 10);
    assert_eq!(say(&mut w, 1, &["ACL USERS"]), "*1\r\n$7\r\ndefault\r\n");
}
