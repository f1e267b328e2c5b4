//! Client-side caching: nobody keeps what was written and hears nothing of it.

use std::collections::BTreeMap;

use concord_core::{MS, Rng, SEC};
use concord_gateway::ConnectionId;

use crate::common::{self, Mood, World, request};

/// A world with a client 1 in RESP3 that tracks, and a client 2.
fn world(seed: u64, how: &str) -> World {
    let mut world = World::new(seed);
    world.connect(2);
    world.connect(3);
    world.ask(&["HELLO 3"]);
    assert_eq!(world.ask(&[&format!("CLIENT TRACKING ON {how}")]), "+OK\r\n");
    world
}

/// What a client hears in 20 ms, in one line.
fn say(world: &mut World, id: u64, lines: &[&str]) -> String {
    common::say(world, id, lines).replace("\r\n", " ")
}

fn heard(world: &mut World, id: u64) -> String {
    common::heard(world, id).replace("\r\n", " ")
}

fn invalid(keys: &[&str]) -> String {
    let keys: String = keys.iter().map(|key| format!("${} {key} ", key.len())).collect();
    let count = keys.matches('$').count();
    format!(">2 $10 invalidate *{count} {keys}")
}

#[test]
fn who_has_read_a_key_hears_of_the_next_write_once() {
    let mut w = world(1, "");
    assert_eq!(say(&mut w, 1, &["GET a", "MGET a b", "STRLEN c"]), "_ *2 _ _ :0 ");
    assert_eq!(say(&mut w, 2, &["SET a 1", "SET d 1", "GET a"]), "+OK +OK $1 1 ");
    assert_eq!(heard(&mut w, 1), invalid(&["a"]));
    say(&mut w, 2, &["SET a 2", "MSET b 1 c 1"]);
    assert_eq!(heard(&mut w, 1), invalid(&["b"]) + &invalid(&["c"]));
    // Its own write too, behind the reply.
    assert_eq!(say(&mut w, 1, &["GET a", "SET a 3"]), format!("$1 2 +OK {}", invalid(&["a"])));
    assert_eq!(say(&mut w, 1, &["GET a"]), "$1 3 ");
    // A write that failed, and what is of another type.
    say(&mut w, 2, &["LPUSH a x", "INCR d"]);
    assert_eq!(heard(&mut w, 1), "");
    assert_eq!(say(&mut w, 1, &["LLEN a", "CLIENT TRACKING OFF"]).matches("WRONGTYPE").count(), 1);
    say(&mut w, 2, &["SET a 4"]);
    assert_eq!(heard(&mut w, 1), "");
}

#[test]
fn what_is_written_elsewhere_is_heard_within_a_second_or_so() {
    for seed in 0..20 {
        let mut w = world(seed, "");
        say(&mut w, 1, &["GET a", "HGETALL h", "LRANGE l 0 -1"]);
        w.run_for(3 * SEC);
        assert_eq!(heard(&mut w, 1), "", "nothing was written");
        w.store.write_elsewhere(&[b"SET", b"a", b"1"]);
        w.run_for(1_100 * MS);
        assert_eq!(heard(&mut w, 1), invalid(&["a"]));
        w.store.write_elsewhere(&[b"HSET", b"h", b"f", b"v"]);
        w.run_for(1_100 * MS);
        assert_eq!(heard(&mut w, 1), invalid(&["h"]));
        say(&mut w, 1, &["GET a"]);
        w.store.write_elsewhere(&[b"DEL", b"a"]);
        w.run_for(1_100 * MS);
        assert_eq!(heard(&mut w, 1), invalid(&["a"]), "seed {seed}");
    }
}

#[test]
fn a_rack_that_does_not_answer_makes_all_that_was_read_invalid() {
    let mut w = world(3, "");
    say(&mut w, 1, &["GET a", "GET b"]);
    w.store.mood = Mood::Dead;
    w.run_for(8 * SEC);
    let told = heard(&mut w, 1);
    assert!(told.contains("$1 a") && told.contains("$1 b"), "{told}");
    w.store.mood = Mood::Serves;
    w.run_for(SEC);
    assert_eq!(say(&mut w, 1, &["GET a"]), "_ ");
}

/// Every value that a client holds is the one that the rack has, once nothing was written for a
/// second or so: whatever was read and written when, by whom, within transactions and scripts, with
/// any delays.
#[test]
fn no_client_keeps_an_old_value() {
    for (seed, how) in (0..60).zip(["", "NOLOOP", "OPTOUT", "BCAST"].iter().cycle()) {
        let mut w = world(seed, how);
        let mut rng = Rng::new(seed);
        let mut cache: BTreeMap<String, String> = BTreeMap::new();
        let mut asked: std::collections::VecDeque<String> = Default::default();
        let mut left = String::new();
        for n in 0..400u32 {
            let key = format!("k{}", rng.below(4));
            let value = format!("{n}");
            match rng.below(8) {
                0..=2 => {
                    w.input(1, format!("GET {key}\r\n").as_bytes());
                    asked.push_back(key.clone());
                }
                3 => {
                    w.input(1, format!("MULTI\r\nGET {key}\r\nEXEC\r\n").as_bytes());
                    asked.push_back(format!("*{key}"));
                }
                4 => w.input(2, &request(&[b"SET", key.as_bytes(), value.as_bytes()])),
                5 => w.input(3, format!("MSET {key} x{value} k1 y{value}\r\n").as_bytes()),
                6 => w.store.write_elsewhere(&[b"SET", key.as_bytes(), value.as_bytes()]),
                _ => w.input(2, format!("DEL {key}\r\n").as_bytes()),
            }
            let ns = rng.below(3 * MS);
            w.run_for(ns);
            take(&mut w, &mut left, &mut asked, &mut cache);
        }
        w.run_for(1_200 * MS);
        take(&mut w, &mut left, &mut asked, &mut cache);
        assert!(asked.is_empty() && left.is_empty(), "{left}");
        for (key, value) in &cache {
            let now = say(&mut w, 2, &[&format!("GET {key}")]);
            let now = now.split(' ').rfind(|word| !word.is_empty()).unwrap_or_default();
            let now = if now == "$-1" { "_" } else { now };
            assert_eq!(now, value, "seed {seed}, {how}: {key}");
        }
    }
}

/// Reads what came for client 1: values into its cache, and invalidations out of it.
fn take(
    w: &mut World,
    left: &mut String,
    asked: &mut std::collections::VecDeque<String>,
    cache: &mut BTreeMap<String, String>,
) {
    w.received.get_mut(&2).unwrap().clear();
    left.push_str(&heard(w, 1));
    let text = core::mem::take(left);
    let mut words = text.split(' ').filter(|word| !word.is_empty()).peekable();
    while let Some(word) = words.next() {
        match word {
            ">2" => {
                assert_eq!(words.next(), Some("$10"));
                assert_eq!(words.next(), Some("invalidate"));
                let Some(count) = words.next().unwrap().strip_prefix('*') else {
                    cache.clear();
                    continue;
                };
                for _ in 0..count.parse::<usize>().unwrap() {
                    words.next();
                    cache.remove(words.next().unwrap());
                }
            }
            "+OK" | "+QUEUED" | "*1" => {}
            reply => {
                let value = if reply == "_" { "_" } else { words.next().unwrap() };
                let key = asked.pop_front().unwrap();
                cache.insert(key.trim_start_matches('*').into(), value.into());
            }
        }
    }
}

#[test]
fn modes_are_those_of_redis() {
    let mut w = world(5, "OPTIN");
    say(&mut w, 1, &["GET a", "CLIENT CACHING YES", "GET b", "GET c"]);
    say(&mut w, 2, &["MSET a 1 b 1 c 1"]);
    assert_eq!(heard(&mut w, 1), invalid(&["b"]));
    say(&mut w, 1, &["CLIENT CACHING YES", "MULTI", "GET a", "GET c", "EXEC", "GET b"]);
    say(&mut w, 2, &["MSET a 2 b 2 c 2"]);
    assert_eq!(heard(&mut w, 1), invalid(&["a"]) + &invalid(&["c"]));

    let mut w = world(5, "NOLOOP");
    say(&mut w, 1, &["MGET a b", "SET a 1"]);
    assert_eq!(heard(&mut w, 1), "");
    say(&mut w, 2, &["SET b 1"]);
    assert_eq!(heard(&mut w, 1), invalid(&["b"]));
    // What it read behind its own write, in one transaction, is its to be told of.
    assert_eq!(
        say(&mut w, 1, &["MULTI", "SET a 5", "GET a", "EXEC"]),
        "+OK +QUEUED +QUEUED *2 +OK $1 5 "
    );
    say(&mut w, 2, &["SET a 6"]);
    assert_eq!(heard(&mut w, 1), invalid(&["a"]));

    let mut w = world(6, "BCAST PREFIX a: PREFIX b:");
    say(&mut w, 2, &["MSET a:1 1 c:1 1 a:2 1 b:1 1"]);
    assert_eq!(heard(&mut w, 1), invalid(&["a:1", "a:2"]) + &invalid(&["b:1"]));
    // What anybody at this gateway has read.
    say(&mut w, 2, &["GET a:3", "GET c:3"]);
    w.store.write_elsewhere(&[b"SET", b"a:3", b"1"]);
    w.store.write_elsewhere(&[b"SET", b"c:3", b"1"]);
    w.run_for(1_100 * MS);
    assert_eq!(heard(&mut w, 1), invalid(&["a:3"]));
    // What was written here, and is gone.
    say(&mut w, 2, &["SET a:4 1"]);
    assert_eq!(heard(&mut w, 1), invalid(&["a:4"]));
    w.store.write_elsewhere(&[b"DEL", b"a:4"]);
    w.run_for(1_100 * MS);
    assert_eq!(heard(&mut w, 1), invalid(&["a:4"]));
}

#[test]
fn all_keys_and_other_databases() {
    let mut w = world(7, "");
    say(&mut w, 1, &["SELECT 3", "GET a"]);
    say(&mut w, 2, &["SET a 1"]);
    assert_eq!(heard(&mut w, 1), "", "of another database");
    say(&mut w, 2, &["SELECT 3", "SET a 1"]);
    assert_eq!(heard(&mut w, 1), invalid(&["a"]));
    say(&mut w, 1, &["GET a"]);
    say(&mut w, 2, &["FLUSHALL"]);
    assert_eq!(heard(&mut w, 1), ">2 $10 invalidate _ ");
    say(&mut w, 1, &["GET a", "MULTI", "FLUSHDB", "EXEC"]);
    assert_eq!(heard(&mut w, 1), "");
}

#[test]
fn transactions_and_scripts_are_told_behind_their_replies() {
    let mut w = world(8, "");
    say(&mut w, 1, &["MSET a 1 b 1", "GET a"]);
    let told = say(&mut w, 1, &["MULTI", "INCR a", "GET b", "EXEC"]);
    assert_eq!(told, format!("+OK +QUEUED +QUEUED *2 :2 $1 1 {}", invalid(&["a"])));
    say(&mut w, 2, &["SET b 2"]);
    assert_eq!(heard(&mut w, 1), invalid(&["b"]));
    let told = say(&mut w, 1, &["MULTI", "GET a", "SET a 7", "GET a", "EXEC"]);
    assert!(told.ends_with(&invalid(&["a"])), "{told}");
    // The transaction is not executed: nothing was read.
    say(&mut w, 1, &["WATCH a"]);
    say(&mut w, 2, &["SET a 8"]);
    assert_eq!(say(&mut w, 1, &["MULTI", "GET a", "EXEC", "PING"]), "+OK +QUEUED _ +PONG ");
    say(&mut w, 2, &["SET a 9"]);
    assert_eq!(heard(&mut w, 1), "");
}

#[test]
fn somebody_else_is_told_instead() {
    let mut w = World::new(9);
    w.connect(2);
    w.connect(3);
    say(&mut w, 2, &["SUBSCRIBE __redis__:invalidate"]);
    assert_eq!(say(&mut w, 1, &["CLIENT TRACKING ON REDIRECT 2", "GET a"]), "+OK $-1 ");
    say(&mut w, 3, &["SET a 1"]);
    assert_eq!(heard(&mut w, 2), "*3 $7 message $20 __redis__:invalidate *1 $1 a ");
    say(&mut w, 1, &["GET a"]);
    say(&mut w, 3, &["FLUSHALL"]);
    assert_eq!(heard(&mut w, 2), "*3 $7 message $20 __redis__:invalidate $-1 ");
    say(&mut w, 1, &["HELLO 3", "GET a"]);
    w.gateway.closed(ConnectionId(2));
    say(&mut w, 3, &["SET a 1"]);
    assert_eq!(heard(&mut w, 1), ">2 $21 tracking-redir-broken :2 ");
    assert!(say(&mut w, 1, &["CLIENT TRACKINGINFO"]).contains("$15 broken_redirect"));
}

/// docs/internals/bugs.md, 18.66: cashews does so.
#[test]
fn bug_18_66_self_redirect_is_told_after_subscribing() {
    for (options, reads) in [(" BCAST PREFIX a", false), ("", true)] {
        let mut w = World::new(9);
        w.connect(2);
        say(&mut w, 1, &[&format!("CLIENT TRACKING ON REDIRECT 1{options}")]);
        if reads {
            say(&mut w, 1, &["GET a"]);
        }
        say(&mut w, 2, &["SET a 1"]);
        assert_eq!(heard(&mut w, 1), "", "it could not tell it from a reply");
        if reads {
            say(&mut w, 1, &["GET a"]);
        }
        say(&mut w, 1, &["SUBSCRIBE __redis__:invalidate"]);
        say(&mut w, 2, &["SET a 2"]);
        assert_eq!(heard(&mut w, 1), "*3 $7 message $20 __redis__:invalidate *1 $1 a ");
        say(&mut w, 2, &["FLUSHALL"]);
        assert_eq!(heard(&mut w, 1), "*3 $7 message $20 __redis__:invalidate $-1 ");
    }
}

#[test]
fn too_many_keys_are_told_of_and_forgotten() {
    let mut w = world(10, "");
    ["GET a", "GET b", "GET c"].iter().for_each(|get| drop(say(&mut w, 1, &[get])));
    assert!(say(&mut w, 2, &["INFO stats"]).contains("tracking_total_keys:3 "));
    say(&mut w, 2, &["CONFIG SET tracking-table-max-keys 1"]);
    assert_eq!(heard(&mut w, 1), invalid(&["a"]) + &invalid(&["b"]));
    assert_eq!(say(&mut w, 1, &["GET d"]), format!("_ {}", invalid(&["c"])));
    w.gateway.closed(ConnectionId(1));
    assert!(say(&mut w, 2, &["INFO stats"]).contains("tracking_total_keys:0 "));
}

/// A client that goes while its write is under way: others hear of it.
#[test]
fn a_write_whose_client_is_gone_is_told() {
    let mut w = world(11, "BCAST");
    w.input(2, b"SET a 1\r\n");
    w.gateway.closed(ConnectionId(2));
    w.run_for(20 * MS);
    assert_eq!(heard(&mut w, 1), invalid(&["a"]));
}
