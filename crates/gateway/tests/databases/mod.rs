//! Databases, at a gateway before a fake rack.

use super::common::{World, request};
use concord_core::{MS, SEC};

/// The replies to these lines, a space for each line's end.
fn ask(world: &mut World, lines: &[&str]) -> String {
    world.ask(lines).replace("\r\n", " ")
}

fn say(world: &mut World, id: u64, line: &str) {
    world.input(id, format!("{line}\r\n").as_bytes());
    world.run_for(20 * MS);
}

fn heard(world: &mut World, id: u64) -> String {
    let bytes = std::mem::take(world.received.get_mut(&id).unwrap());
    String::from_utf8_lossy(&bytes).replace("\r\n", " ")
}

#[test]
fn each_database_has_its_own_keys() {
    let mut w = World::new(1);
    let lines = ["SET k zero", "SELECT 1", "GET k", "SET k one", "MSET a 1 b 2", "SELECT 15"];
    assert_eq!(ask(&mut w, &lines), "+OK +OK $-1 +OK +OK +OK ");
    assert_eq!(ask(&mut w, &["EXISTS k a", "SELECT 1", "MGET k a"]), ":0 +OK *2 $3 one $1 1 ");
    assert_eq!(ask(&mut w, &["DEL a b", "SELECT 0", "GET k"]), ":2 +OK $4 zero ");
    for (line, error) in [
        ("SELECT 16", "DB index is out of range"),
        ("SELECT -1", "DB index is out of range"),
        ("SELECT x", "value is not an integer or out of range"),
    ] {
        assert_eq!(ask(&mut w, &[line]), format!("-ERR {error} "));
    }
    let list = ask(&mut w, &["SELECT 7", "CLIENT INFO"]);
    assert!(list.contains(" db=7 "), "{list}");
    assert_eq!(ask(&mut w, &["CONFIG GET databases"]), "*2 $9 databases $2 16 ");
    assert!(ask(&mut w, &["RESET", "CLIENT LIST"]).contains(" db=0 "));
    assert!(ask(&mut w, &["SELECT 3", "HELLO 3", "CLIENT LIST"]).contains(" db=3 "));
}

#[test]
fn what_looks_at_all_keys_looks_at_those_of_the_database() {
    let mut w = World::new(2);
    ask(&mut w, &["MSET a 0 b 0 c 0", "SELECT 1", "MSET a 1 d 1", "SELECT 0"]);
    assert_eq!(ask(&mut w, &["DBSIZE", "SELECT 1", "DBSIZE"]), ":3 +OK :2 ");
    let sorted = |reply: String| {
        let mut words: Vec<&str> = reply.split(' ').filter(|w| w.len() == 1).collect();
        words.sort_unstable();
        words.join(" ")
    };
    assert_eq!(sorted(ask(&mut w, &["KEYS *"])), "a d");
    assert_eq!(sorted(ask(&mut w, &["KEYS [b-z]"])), "d");
    assert_eq!(sorted(ask(&mut w, &["SCAN 0 COUNT 10000"])), "0 a d");
    assert_eq!(sorted(ask(&mut w, &["SCAN 0 MATCH d COUNT 10000"])), "0 d");
    for _ in 0..10 {
        assert!(["$1 a ", "$1 d "].contains(&&*ask(&mut w, &["RANDOMKEY"])));
    }
    assert_eq!(ask(&mut w, &["SELECT 0"]), "+OK ");
    assert_eq!(sorted(ask(&mut w, &["KEYS *"])), "a b c");
    assert_eq!(sorted(ask(&mut w, &["SCAN 0 COUNT 10000"])), "0 a b c");
    assert_eq!(sorted(ask(&mut w, &["KEYS d"])), "");
    // Only its own keys go.
    assert_eq!(ask(&mut w, &["FLUSHDB", "DBSIZE", "SELECT 1", "DBSIZE"]), "+OK :0 +OK :2 ");
    assert_eq!(ask(&mut w, &["SELECT 2", "SET x 1", "FLUSHDB", "DBSIZE"]), "+OK +OK +OK :0 ");
    assert_eq!(ask(&mut w, &["RANDOMKEY", "SELECT 1", "DBSIZE"]), "$-1 +OK :2 ");
    ask(&mut w, &["SET t 1 EX 10", "SELECT 12", "SET x 1"]);
    let info = ask(&mut w, &["INFO keyspace"]);
    let lines = "# Keyspace db1:keys=3,expires=1,avg_ttl=10000 db12:keys=1,expires=0,avg_ttl=0 ";
    assert!(info.contains(lines), "{info}");
    assert_eq!(ask(&mut w, &["FLUSHALL", "DBSIZE"]), "+OK :0 ");
}

#[test]
fn keys_go_to_other_databases_with_their_times_to_live() {
    let mut w = World::new(3);
    assert_eq!(ask(&mut w, &["SET k v EX 100", "MOVE k 5", "EXISTS k"]), "+OK :1 :0 ");
    assert_eq!(ask(&mut w, &["MOVE k 5", "SET k w", "MOVE k 5"]), ":0 +OK :0 ");
    assert_eq!(ask(&mut w, &["SELECT 5", "GET k", "TTL k"]), "+OK $1 v :100 ");
    assert_eq!(ask(&mut w, &["COPY k k DB 6", "COPY k k DB 6", "COPY k k DB 0"]), ":1 :0 :0 ");
    assert_eq!(ask(&mut w, &["COPY k k DB 0 REPLACE", "SELECT 0", "GET k"]), ":1 +OK $1 v ");
    assert_eq!(ask(&mut w, &["SELECT 6", "TTL k"]), "+OK :100 ");
    let same = "-ERR source and destination objects are the same ";
    assert_eq!(ask(&mut w, &["MOVE k 6"]), same);
    assert_eq!(ask(&mut w, &["COPY k k"]), same);
    assert_eq!(
        ask(&mut w, &["MULTI", "MOVE k 16", "GET k", "EXEC"]),
        "+OK +QUEUED +QUEUED *2 -ERR DB index is out of range $1 v "
    );
    // In a transaction as well.
    assert_eq!(
        ask(&mut w, &["MULTI", "MOVE k 7", "MOVE none 7", "SELECT 7", "GET k", "EXEC"]),
        "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 :1 :0 +OK $1 v "
    );
}

#[test]
fn replies_name_keys_as_the_client_does() {
    let mut w = World::new(4);
    w.connect(2);
    w.run_for(SEC);
    say(&mut w, 2, "SELECT 4");
    assert_eq!(ask(&mut w, &["SELECT 4"]), "+OK ");
    for (line, push, reply) in [
        ("BLPOP a b 0", "RPUSH b 1 2", "*2 $1 b $1 1 "),
        ("BLMPOP 0 2 f g LEFT COUNT 2", "RPUSH g 7 8 9", "*2 $1 g *2 $1 7 $1 8 "),
        ("BZPOPMIN x y 0", "ZADD y 1 m 2 n", "*3 $1 y $1 m $1 1 "),
        ("XREAD BLOCK 0 STREAMS s $", "XADD s 1-1 f v", "*1 *2 $1 s *1 *2 $3 1-1 *2 $1 f $1 v "),
    ] {
        say(&mut w, 1, line);
        assert_eq!(heard(&mut w, 1), "", "{line}");
        say(&mut w, 2, push);
        w.run_for(20 * MS);
        assert_eq!(heard(&mut w, 1), reply, "{line}");
        heard(&mut w, 2);
    }
    // Nobody there hears of another database.
    say(&mut w, 1, "BLPOP q 1");
    for line in ["SELECT 3", "RPUSH q 1", "SELECT 0", "RPUSH q 1"] {
        say(&mut w, 2, line);
    }
    w.run_for(2 * SEC);
    assert_eq!(heard(&mut w, 1), "*-1 ");
    let group = "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option ";
    assert_eq!(ask(&mut w, &["XREADGROUP GROUP g c STREAMS s >"]), group);
    assert_eq!(ask(&mut w, &["LMPOP 2 a b LEFT"]), "*2 $1 b *1 $1 2 ");
    assert_eq!(
        ask(&mut w, &["MULTI", "LMPOP 1 g LEFT", "GET k", "XREAD STREAMS s 0", "KEYS g", "EXEC"]),
        "+OK +QUEUED +QUEUED +QUEUED +QUEUED *4 *2 $1 g *1 $1 9 $-1 \
         *1 *2 $1 s *1 *2 $3 1-1 *2 $1 f $1 v *0 "
    );
    assert_eq!(
        ask(&mut w, &["HELLO 3", "XREAD STREAMS s 0"]).split(" %1 ").last(),
        Some("$1 s *1 *2 $3 1-1 *2 $1 f $1 v ")
    );
    let explained = ask(&mut w, &["CONCORD EXPLAIN XREAD STREAMS s 0"]);
    assert!(explained.contains("$1 s *1 "), "{explained}");
}

/// A transaction selects for what is queued behind it and for the connection once it is executed.
#[test]
fn select_within_a_transaction() {
    let mut w = World::new(5);
    let lines = ["SET k 0", "MULTI", "SELECT 1", "SET k 1", "SELECT 2", "SET k 2", "EXEC"];
    let queued = "+QUEUED ".repeat(4);
    assert_eq!(ask(&mut w, &lines), format!("+OK +OK {queued}*4 +OK +OK +OK +OK "));
    assert_eq!(ask(&mut w, &["GET k", "SELECT 1", "GET k"]), "$1 2 +OK $1 1 ");
    assert_eq!(ask(&mut w, &["MULTI", "SELECT 0", "DISCARD", "GET k"]), "+OK +QUEUED +OK $1 1 ");
    let aborted = ask(&mut w, &["MULTI", "SELECT 0", "NOSUCH", "EXEC", "GET k"]);
    assert!(aborted.ends_with("errors. $1 1 "), "{aborted}");
    assert_eq!(ask(&mut w, &["MULTI", "SELECT 0", "EXEC", "GET k"]), "+OK +QUEUED *1 +OK $1 0 ");
    // Behind one that watches it is not known before the reply: all in one pipeline.
    for (write, behind) in [("SET k 9", "1"), ("SET k 0", "0")] {
        ask(&mut w, &["SELECT 1", "SET k 1", "SELECT 0", "SET k 0"]);
        let lines = ["WATCH k", write, "SELECT 1", "MULTI", "SELECT 0", "SET l 1", "EXEC", "GET k"];
        let replies = ask(&mut w, &lines);
        assert!(replies.ends_with(&format!("$1 {behind} ")), "{write}: {replies}");
    }
}

#[test]
fn keys_are_watched_in_their_databases() {
    let mut w = World::new(6);
    w.connect(2);
    w.run_for(SEC);
    assert_eq!(ask(&mut w, &["SELECT 1", "WATCH k", "SELECT 2"]), "+OK +OK +OK ");
    say(&mut w, 2, "SET k other");
    assert_eq!(ask(&mut w, &["MULTI", "SET k 2", "EXEC"]), "+OK +QUEUED *1 +OK ");
    assert_eq!(ask(&mut w, &["SELECT 1", "WATCH k", "SELECT 2"]), "+OK +OK +OK ");
    say(&mut w, 2, "SELECT 1");
    say(&mut w, 2, "SET k other");
    assert_eq!(ask(&mut w, &["MULTI", "SET k 3", "EXEC"]), "+OK +QUEUED *-1 ");
}

#[test]
fn a_key_of_database_0_may_look_like_one_of_another() {
    let mut w = World::new(7);
    let stored = concord_engine::databases::stored(1, b"k");
    let say = |w: &mut World, args: &[&[u8]]| {
        w.input(1, &request(args));
        w.run_for(SEC);
        std::mem::take(w.received.get_mut(&1).unwrap())
    };
    assert_eq!(say(&mut w, &[b"SET", &stored, b"zero"]), b"+OK\r\n");
    assert_eq!(say(&mut w, &[b"SELECT", b"1"]), b"+OK\r\n");
    assert_eq!(say(&mut w, &[b"GET", b"k"]), b"$-1\r\n");
    assert_eq!(say(&mut w, &[b"SET", b"k", &stored]), b"+OK\r\n");
    let named = [b"*1\r\n$6\r\n", &stored[..], b"\r\n"].concat();
    assert_eq!(say(&mut w, &[b"GET", b"k"]), named[4..]);
    assert_eq!(say(&mut w, &[b"SELECT", b"0"]), b"+OK\r\n");
    assert_eq!(say(&mut w, &[b"GET", &stored]), b"$4\r\nzero\r\n");
    assert_eq!(say(&mut w, &[b"KEYS", b"*"]), named);
    assert_eq!(say(&mut w, &[b"DBSIZE"]), b":1\r\n");
    assert_eq!(say(&mut w, &[b"DEL", &stored]), b":1\r\n");
    assert_eq!(say(&mut w, &[b"DBSIZE"]), b":0\r\n");
}
