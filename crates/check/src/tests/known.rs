//! One history per property, named after it.

use super::{bulk, exact, op, open, verdict};
use crate::Reply::{self, Array, Error, Int, Nil, Ok};
use crate::Verdict::{self, Violation};
use crate::{Calm, Operation, Options, check, check_file};

const MS: u64 = 1_000_000;

#[track_caller]
fn good(history: &[Operation]) {
    assert_eq!(verdict(history), Verdict::Ok);
}

#[track_caller]
fn bad(history: &[Operation]) {
    assert_eq!(verdict(history), Violation);
}

#[test]
fn a_concurrent_read_sees_the_old_or_the_new_value() {
    for seen in ["a", "b"] {
        good(&[
            op(1, 0, 1, "SET k a", Ok),
            op(1, 10, 20, "SET k b", Ok),
            op(2, 12, 18, "GET k", bulk(seen)),
        ]);
    }
}

#[test]
fn a_read_after_the_write_returned_must_not_be_stale() {
    bad(&[op(1, 0, 1, "SET k a", Ok), op(1, 2, 3, "SET k b", Ok), op(2, 4, 5, "GET k", bulk("a"))]);
}

#[test]
fn equal_times_are_concurrent() {
    good(&[
        op(1, 0, 1, "SET k a", Ok),
        op(1, 2, 3, "SET k b", Ok),
        op(2, 3, 5, "GET k", bulk("a")),
    ]);
}

#[test]
fn an_acknowledged_write_must_not_be_lost() {
    bad(&[op(1, 0, 1, "SET k a", Ok), op(2, 4, 5, "GET k", Nil)]);
    bad(&[op(1, 0, 9, "INCR k", Int(1)), op(2, 0, 9, "INCR k", Int(1))]);
}

#[test]
fn an_increment_must_not_be_executed_twice() {
    bad(&[op(1, 0, 9, "INCR k", Int(1)), op(2, 10, 11, "GET k", bulk("2"))]);
    bad(&[open(1, 0, "INCR k"), op(2, 10, 11, "GET k", bulk("2"))]);
    good(&[open(1, 0, "INCR k"), open(3, 0, "INCR k"), op(2, 10, 11, "GET k", bulk("2"))]);
}

/// Trap T22.
#[test]
fn a_pipeline_sees_its_own_writes_and_no_later_ones() {
    let sent = |ordinal, at, cmd: &str, reply| Operation {
        ordinal: Some(ordinal),
        ..op(1, 10, at, cmd, reply)
    };
    let pipeline = |first, second| {
        let other = op(2, 0, 1, "SET k old", Ok);
        vec![
            other,
            sent(1, 20, "GET k", first),
            sent(2, 20, "SET k new", Ok),
            sent(3, 20, "GET k", second),
        ]
    };
    good(&pipeline(bulk("old"), bulk("new")));
    bad(&pipeline(bulk("old"), bulk("old")));
    bad(&pipeline(bulk("new"), bulk("new")));
    // Reads among each other have no order, and what nobody knows the end of has none.
    let mut two = vec![op(2, 0, 90, "SET k x", Ok)];
    two.extend([sent(1, 30, "GET k", bulk("x")), sent(2, 30, "GET k", Nil)]);
    good(&two);
    let mut open = pipeline(bulk("old"), bulk("old"));
    (open[2].return_ns, open[2].reply) = (None, None);
    good(&open);
}

#[test]
fn a_transaction_takes_effect_at_one_moment() {
    let exec = "EXEC 2 INCR k 2 INCR k";
    let answered = |a, b| Array(vec![Int(a), Int(b)]);
    good(&[op(1, 0, 9, exec, answered(1, 2)), op(2, 0, 9, "INCR k", Int(3))]);
    bad(&[op(1, 0, 9, exec, answered(1, 3)), op(2, 0, 9, "INCR k", Int(2))]);
    good(&[open(1, 0, exec), op(2, 10, 11, "GET k", bulk("2"))]);
    bad(&[open(1, 0, exec), op(2, 10, 11, "GET k", bulk("1"))]);
    bad(&[op(1, 0, 9, exec, Array(vec![Int(1)]))]);
}

#[test]
fn what_was_executed_took_effect_whatever_it_answered() {
    let unseen = |at| op(1, 5, at, "DEL k", Reply::Unseen);
    good(&[op(1, 0, 1, "SET k a", Ok), unseen(9), op(2, 6, 8, "GET k", bulk("a"))]);
    bad(&[op(1, 0, 1, "SET k a", Ok), unseen(9), op(2, 10, 11, "GET k", bulk("a"))]);
}

fn items(items: &[&str]) -> Reply {
    Array(items.iter().map(|i| bulk(i)).collect())
}

/// Fourteen pushes at a time, of which nobody knows what they answered: without the order in which
/// a list shows them that would be 14! orders.
#[test]
fn a_list_shows_in_which_order_its_elements_were_pushed() {
    let names: Vec<String> = (0..14).map(|n| format!("e{}", n * 5 % 14)).collect();
    let list = |swapped: bool, left: bool| {
        let mut elements: Vec<&str> = names.iter().map(String::as_str).collect();
        if swapped {
            elements.swap(3, 9);
        }
        if left {
            elements.reverse();
        }
        items(&elements)
    };
    for left in [false, true] {
        let push = if left { "LPUSH" } else { "RPUSH" };
        let mut history: Vec<Operation> =
            (0..14).map(|n| op(n, 0, 10 + n, &format!("{push} l e{n}"), Reply::Unseen)).collect();
        history.push(op(20, 5, 90, "LRANGE l 0 -1", list(false, left)));
        history.push(op(21, 100, 110, "LRANGE l 2 11", {
            let Array(all) = list(false, left) else { panic!() };
            Array(all[2..=11].to_vec())
        }));
        good(&history);
        history.push(op(22, 100, 110, "LRANGE l 0 -1", list(true, left)));
        bad(&history);
    }
}

#[test]
fn reads_must_not_go_back_from_new_to_old() {
    bad(&[
        op(1, 0, 1, "SET k a", Ok),
        op(1, 10, 100, "SET k b", Ok),
        op(2, 20, 30, "GET k", bulk("b")),
        op(3, 40, 50, "GET k", bulk("a")),
    ]);
}

#[test]
fn set_nx_must_not_be_won_twice() {
    bad(&[op(1, 0, 9, "SET k a NX", Ok), op(2, 0, 9, "SET k b NX", Ok)]);
    bad(&[op(1, 0, 9, "SETNX k a", Int(1)), op(2, 0, 9, "SETNX k b", Int(1))]);
    good(&[op(1, 0, 9, "SET k a NX", Ok), op(2, 0, 9, "SET k b NX", Nil)]);
    good(&[
        op(1, 0, 9, "SET k a NX", Ok),
        op(2, 0, 9, "SET k b NX", Ok),
        op(3, 0, 9, "DEL k", Int(1)),
    ]);
}

#[test]
fn getdel_must_not_give_the_value_twice() {
    let twice = |second| {
        [
            op(1, 0, 1, "SET k a", Ok),
            op(1, 2, 9, "GETDEL k", bulk("a")),
            op(2, 2, 9, "GETDEL k", second),
        ]
    };
    bad(&twice(bulk("a")));
    good(&twice(Nil));
}

#[test]
fn a_sorted_set_gives_its_least_and_each_once() {
    let added = [op(1, 0, 1, "ZADD k 7 a", Int(1)), op(1, 2, 3, "ZADD k 5 b", Int(1))];
    let popped =
        |at, member, score| op(2, at, at + 10, "ZPOPMIN k", Array(vec![bulk(member), bulk(score)]));
    let with = |more: &[Operation]| [&added[..], more].concat();
    good(&with(&[popped(10, "b", "5"), popped(30, "a", "7"), op(2, 50, 51, "ZCARD k", Int(0))]));
    bad(&with(&[popped(10, "a", "7")]));
    bad(&with(&[popped(10, "b", "5"), popped(12, "b", "5")]));
    bad(&with(&[popped(10, "b", "7")]));
    bad(&with(&[op(2, 10, 11, "ZPOPMIN k", Array(vec![]))]));
    good(&with(&[open(3, 5, "ZPOPMAX k"), popped(10, "b", "5"), op(2, 30, 31, "ZCARD k", Int(0))]));
    good(&with(&[op(2, 10, 11, "ZADD k 9 b", Int(0)), popped(12, "a", "7")]));
    bad(&with(&[op(2, 10, 11, "ZADD k 9 b", Int(1))]));
    bad(&with(&[op(2, 10, 11, "GET k", Nil)]));
}

#[test]
fn two_pops_must_not_get_the_same_element() {
    let pops = |second| {
        [
            op(1, 0, 1, "RPUSH k a b", Int(2)),
            op(1, 2, 9, "LPOP k", bulk("a")),
            op(2, 2, 9, "LPOP k", bulk(second)),
        ]
    };
    bad(&pops("a"));
    good(&pops("b"));
}

#[test]
fn a_key_must_not_expire_before_its_time() {
    let read = |call, at, reply| [op(1, 5, 8, "SET k a PX 1", Ok), op(2, call, at, "GET k", reply)];
    bad(&read(MS, MS + 4, Nil));
    good(&read(MS, MS + 5, Nil));
    good(&read(MS, MS + 5, bulk("a")));
    bad(&[
        op(1, 5, 8, "SET k a PX 1", Ok),
        op(1, 9, 10, "PERSIST k", Int(1)),
        op(2, 2 * MS, 3 * MS, "GET k", Nil),
    ]);
}

#[test]
fn a_key_must_be_gone_after_its_time_and_the_grace() {
    let read = |call, reply| [op(1, 5, 8, "SET k a PX 1", Ok), op(2, call, call, "GET k", reply)];
    good(&read(MS + 8, bulk("a")));
    bad(&read(MS + 9, bulk("a")));
    good(&read(MS + 9, Nil));
    let with_grace = Options { grace_ns: 10, ..exact() };
    assert!(check(&read(MS + 18, bulk("a")), &with_grace).unwrap().is_ok());
    assert!(!check(&read(MS + 19, bulk("a")), &with_grace).unwrap().is_ok());
    let early = Options { early_ns: 10, ..exact() };
    assert!(check(&read(MS - 5, Nil), &early).unwrap().is_ok());
}

#[test]
fn a_key_must_be_gone_sooner_in_the_calm() {
    let read =
        |set, call| [op(1, set, set, "SET k a PX 1", Ok), op(2, call, call, "GET k", bulk("a"))];
    let calm = Some(Calm { from_ns: 100, grace_ns: 3 });
    let calm = Options { grace_ns: 1_000, calm, ..exact() };
    let is_right = |history: &[Operation]| check(history, &calm).unwrap().is_ok();
    // Set in the calm, and before.
    assert!(is_right(&read(200, MS + 203)) && !is_right(&read(200, MS + 204)));
    assert!(is_right(&read(5, MS + 103)) && !is_right(&read(5, MS + 104)));
    // Never later than without one.
    let late = Options { grace_ns: 1, ..calm };
    assert!(!check(&read(200, MS + 202), &late).unwrap().is_ok());
}

#[test]
fn an_expired_key_must_not_come_back() {
    bad(&[
        op(1, 5, 8, "SET k a PX 1", Ok),
        op(2, MS + 6, MS + 6, "GET k", Nil),
        op(2, MS + 7, MS + 7, "GET k", bulk("a")),
    ]);
}

#[test]
fn a_time_to_live_follows_its_commands() {
    let later = |cmd: &str, reply: Reply| {
        [
            op(1, 1, 2, "SET k a EX 1", Ok),
            op(1, 3, 4, cmd, reply),
            op(1, 9000 * MS, 9000 * MS + 1, "EXISTS k", Int(1)),
        ]
    };
    bad(&later("SET k b KEEPTTL", Ok));
    bad(&later("APPEND k b", Int(2)));
    bad(&later("EXPIRE k 8", Int(1)));
    good(&later("EXPIRE k 9", Int(1)));
    good(&later("SET k b", Ok));
    good(&later("GETSET k b", bulk("a")));
    good(&[
        op(1, 0, 1, "SET k a", Ok),
        op(1, 2, 3, "PEXPIRE k 0", Int(1)),
        op(1, 4, 5, "GET k", Nil),
    ]);
}

#[test]
fn a_write_of_unknown_outcome_may_appear_late() {
    good(&[
        op(1, 0, 1, "SET k a", Ok),
        open(2, 2, "SET k b"),
        op(1, 10, 11, "GET k", bulk("a")),
        op(1, 1000, 1001, "GET k", bulk("b")),
    ]);
}

#[test]
fn a_write_of_unknown_outcome_must_not_appear_before_its_call() {
    bad(&[op(1, 0, 1, "GET k", bulk("b")), open(2, 2, "SET k b")]);
}

#[test]
fn a_write_of_unknown_outcome_must_not_appear_and_disappear() {
    bad(&[
        op(1, 0, 1, "SET k a", Ok),
        open(2, 2, "SET k b"),
        op(1, 10, 11, "GET k", bulk("b")),
        op(1, 12, 13, "GET k", bulk("a")),
    ]);
}

#[test]
fn a_write_of_unknown_outcome_takes_effect_at_most_once() {
    bad(&[
        open(2, 0, "SET k b"),
        op(1, 10, 11, "GET k", bulk("b")),
        op(1, 12, 13, "SET k a", Ok),
        op(1, 14, 15, "GET k", bulk("b")),
    ]);
}

#[test]
fn writes_of_unknown_outcome_may_build_on_each_other() {
    let built = |seen: &str| {
        [
            op(1, 0, 1, "SET k a", Ok),
            open(2, 2, "APPEND k 1"),
            open(3, 2, "APPEND k 2"),
            open(4, 2, "APPEND k 3"),
            open(5, 2, "SET k z"),
            op(1, 10, 11, "GET k", bulk(seen)),
        ]
    };
    for seen in ["a", "a1", "a321", "a213", "z31", "z"] {
        good(&built(seen));
    }
    for seen in ["az", "a11", "1", "z4"] {
        bad(&built(seen));
    }
}

/// A write of unknown outcome that nobody read still explains what it did.
#[test]
fn an_unread_write_of_unknown_outcome_explains_effects() {
    good(&[open(2, 0, "SET k secret"), op(1, 10, 11, "DEL k", Int(1))]);
    good(&[open(2, 0, "SET k secret"), op(1, 10, 11, "STRLEN k", Int(6))]);
    bad(&[open(2, 0, "SET k secret"), op(1, 10, 11, "STRLEN k", Int(7))]);
    bad(&[
        open(2, 0, "SET k secret"),
        op(1, 10, 11, "DEL k", Int(1)),
        op(1, 12, 13, "DEL k", Int(1)),
    ]);
    good(&[
        open(2, 0, "SET k secret"),
        op(1, 10, 11, "INCR k", Error("ERR value is not an integer".into())),
    ]);
}

#[test]
fn a_value_that_can_be_made_up_in_two_ways_proves_neither_write() {
    good(&[
        op(1, 0, 1, "SET k 1", Ok),
        open(2, 2, "APPEND k 2"),
        open(3, 2, "SET k 12"),
        op(1, 4, 5, "GET k", bulk("12")),
        op(1, 6, 7, "SET k z", Ok),
        op(1, 8, 9, "GET k", bulk("z2")),
    ]);
}

#[test]
fn an_error_is_predicted_or_means_that_nothing_was_done() {
    let wrong = || Error("WRONGTYPE Operation against".into());
    good(&[op(1, 0, 1, "LPUSH k a", Int(1)), op(1, 2, 3, "GET k", wrong())]);
    bad(&[op(1, 0, 1, "SET k a", Ok), op(1, 2, 3, "GET k", wrong())]);
    bad(&[
        op(1, 0, 1, "SET k 7", Ok),
        op(1, 2, 3, "INCR k", Error("ERR value is not an integer".into())),
    ]);
    good(&[op(1, 0, 1, "SET k a", Error("BUSY retry".into())), op(1, 2, 3, "GET k", Nil)]);
    bad(&[op(1, 0, 1, "SET k a", Error("BUSY retry".into())), op(1, 2, 3, "GET k", bulk("a"))]);
}

#[test]
fn compare_and_set_and_delete_see_the_value_that_is_there() {
    let after = |cmd: &str, reply: Reply, seen: Reply| {
        [op(1, 0, 1, "SET k a", Ok), op(1, 2, 3, cmd, reply), op(1, 4, 5, "GET k", seen)]
    };
    good(&after("CAS k a b", Int(1), bulk("b")));
    good(&after("CAS k x b", Int(0), bulk("a")));
    bad(&after("CAS k x b", Int(1), bulk("b")));
    bad(&after("CAS k a b", Int(0), bulk("a")));
    good(&after("CAD k a", Int(1), Nil));
    good(&[op(1, 2, 3, "CAS k a b", Int(-1)), op(1, 4, 5, "CAD k a", Int(-1))]);
    bad(&[op(1, 2, 3, "CAS k a b", Int(0))]);
    bad(&after("CAD k x", Int(1), Nil));
    good(&after("SET k b IFEQ a", Ok, bulk("b")));
    good(&after("SET k b IFEQ x", Nil, bulk("a")));
    bad(&after("SET k b IFEQ x", Ok, bulk("b")));
    good(&after("SET k b XX GET", bulk("a"), bulk("b")));
    good(&after("SET k b NX GET", bulk("a"), bulk("a")));
}

#[test]
fn flushall_is_part_of_every_keys_history() {
    let history = |seen| {
        [
            op(1, 0, 1, "SET k a", Ok),
            op(1, 0, 1, "SET l a", Ok),
            op(2, 2, 3, "FLUSHALL", Ok),
            op(1, 4, 5, "GET k", Nil),
            op(1, 4, 5, "GET l", seen),
        ]
    };
    good(&history(Nil));
    bad(&history(bulk("a")));
}

#[test]
fn sets_and_hashes_and_lists_are_modelled() {
    let mut history = vec![
        op(1, 0, 1, "SADD s a b a", Int(2)),
        op(1, 2, 3, "SISMEMBER s b", Int(1)),
        op(1, 4, 5, "SREM s a b c", Int(2)),
        op(1, 6, 7, "EXISTS s", Int(0)),
        op(1, 0, 1, "HSET h f 1 g 2", Int(2)),
        op(1, 2, 3, "HSET h f 3", Int(0)),
        op(1, 4, 5, "HGET h f", bulk("3")),
        op(1, 6, 7, "HDEL h f g", Int(2)),
        op(1, 8, 9, "EXISTS h", Int(0)),
        op(1, 0, 1, "LPUSH l a b", Int(2)),
        op(1, 2, 3, "RPUSH l c", Int(3)),
        op(1, 4, 5, "LRANGE l 0 -1", items(&["b", "a", "c"])),
        op(1, 6, 7, "LRANGE l -2 -2", items(&["a"])),
        op(1, 8, 9, "RPOP l 2", items(&["c", "a"])),
        op(1, 10, 11, "LLEN l", Int(1)),
    ];
    good(&history);
    for at in 0..history.len() {
        let right = history[at].reply.replace(Int(77));
        bad(&history);
        history[at].reply = right;
    }
}

/// The report says what could not be next and the counterexample is small.
#[test]
fn counterexample_is_small() {
    let mut history = Vec::new();
    for n in 0..500 {
        history.push(op(1, 20 * n, 20 * n + 9, &format!("SET k v{n}"), Ok));
        history.push(op(2, 20 * n + 10, 20 * n + 15, "GET k", bulk(&format!("v{n}"))));
        history.push(open(3, 20 * n + 10, &format!("SET other u{n}")));
    }
    history.push(op(4, 8_010, 8_012, "GET k", bulk("v399")));
    let report = check(&history, &exact()).unwrap();
    assert_eq!((report.violations.len(), report.keys, report.unknown), (1, 2, 500));
    let violation = &report.violations[0];
    assert_eq!(violation.state, "v400");
    assert_eq!(violation.stuck[0].model, "v400");
    let clients: Vec<u64> = violation.counterexample.iter().map(|o| o.client).collect();
    assert_eq!(clients, [1, 4], "{report}");
    assert_eq!(violation.writers, [op(1, 20 * 399, 20 * 399 + 9, "SET k v399", Ok)]);
    let text = report.to_string();
    assert!(text.contains("NOT LINEARIZABLE") && text.contains("GET k -> v399"), "{text}");
    assert_eq!(report.to_json()["verdict"], "violation");
}

#[test]
fn a_search_out_of_budget_is_unknown_never_ok() {
    let mut history: Vec<_> = (0..14).map(|n| op(n, 0, 99, &format!("SET k v{n}"), Ok)).collect();
    history.push(op(99, 200, 201, "GET k", bulk("nobody")));
    let few = Options { configs_max: 1000, ..exact() };
    let report = check(&history, &few).unwrap();
    assert_eq!(report.verdict, Verdict::Unknown, "{report}");
    assert_eq!(verdict(&history), Violation);
}

#[test]
fn a_line_that_cannot_be_checked_is_named() {
    for (line, what) in [
        (r#"{"client":1,"call":5,"return":4,"cmd":["GET","k"],"reply":{"kind":"nil"}}"#, "before"),
        (r#"{"client":1,"call":5,"return":6,"cmd":["GET","k"]}"#, "without a reply"),
        (
            r#"{"client":1,"call":5,"return":6,"cmd":["WAIT","1"],"reply":{"kind":"nil"}}"#,
            "no model",
        ),
        (r#"{"client":1,"call":5,"return":6,"cmd":[],"reply":{"kind":"nil"}}"#, "arguments"),
        ("nonsense", "not an operation"),
    ] {
        let file =
            format!("{}\n{line}\n", r#"{"client":1,"call":5,"return":null,"cmd":["INCR","k"]}"#);
        let error = check_file(file.as_bytes(), &exact()).unwrap_err();
        assert!(error.line == 2 && error.message.contains(what), "{error}");
    }
}

/// Keys that a KEYS or a whole SCAN named.
fn names(keys: &[&str]) -> Reply {
    Array(keys.iter().map(|key| bulk(key)).collect())
}

#[test]
fn keys_names_what_exists_at_some_moment() {
    let set = |name: &str| op(1, 0, 10, &format!("SET {name} v"), Ok);
    good(&[set("a"), set("b"), op(2, 20, 21, "KEYS *", names(&["b", "a"]))]);
    bad(&[set("a"), set("b"), op(2, 20, 21, "KEYS *", names(&["a"]))]);
    bad(&[set("a"), op(2, 20, 21, "KEYS *", names(&["a", "never-set"]))]);
    // While it is set, both; and what a reader saw stays.
    for seen in [&["a"][..], &[]] {
        good(&[set("a"), op(2, 5, 6, "KEYS *", names(seen))]);
    }
    bad(&[set("a"), op(2, 5, 6, "KEYS *", names(&["a"])), op(3, 7, 8, "GET a", Nil)]);
    bad(&[set("a"), op(2, 20, 21, "FLUSHALL", Ok), op(3, 22, 23, "KEYS *", names(&["a"]))]);
}

#[test]
fn a_write_that_keys_saw_must_not_be_lost() {
    bad(&[open(1, 0, "SET a v"), op(2, 5, 6, "KEYS *", names(&["a"])), op(2, 7, 8, "GET a", Nil)]);
}

#[test]
fn a_part_of_a_scan_says_nothing_of_other_keys() {
    let scan = |from: &str, next: &str, keys: &[&str]| {
        op(2, 20, 21, &format!("SCAN {from} COUNT 10"), Array(vec![bulk(next), names(keys)]))
    };
    let both = [op(1, 0, 10, "SET a v", Ok), op(1, 0, 10, "SET b v", Ok)];
    let with = |scan: Operation| [both[0].clone(), both[1].clone(), scan];
    good(&with(scan("0", "7", &["a"])));
    good(&with(scan("7", "0", &["b"])));
    bad(&with(scan("0", "0", &["b"])));
    bad(&with(scan("0", "7", &["c"])));
}

#[test]
fn a_count_of_keys_is_between_the_least_and_the_most() {
    for (count, is_good) in [(1, false), (2, true), (3, true), (4, false)] {
        let history = [
            op(1, 0, 10, "SET a v", Ok),
            op(1, 0, 10, "SET b v", Ok),
            op(3, 15, 25, "SET c v", Ok),
            op(2, 20, 21, "DBSIZE", Int(count)),
        ];
        if is_good { good(&history) } else { bad(&history) }
    }
}

#[test]
fn sets_and_hashes_answer_whole_in_any_order() {
    let set = [op(1, 0, 1, "SADD s a b", Int(2))];
    let with = |cmd: &str, reply: Reply| [set[0].clone(), op(1, 2, 3, cmd, reply)];
    good(&with("SMEMBERS s", names(&["b", "a"])));
    bad(&with("SMEMBERS s", names(&["b", "b"])));
    bad(&with("SMEMBERS s", names(&["a"])));
    good(&with("SCARD s", Int(2)));
    let hash = [op(1, 0, 1, "HSET h f 1 g 2", Int(2))];
    let with = |cmd: &str, reply: Reply| [hash[0].clone(), op(1, 2, 3, cmd, reply)];
    good(&with("HGETALL h", names(&["g", "2", "f", "1"])));
    bad(&with("HGETALL h", names(&["g", "1", "f", "2"])));
    good(&with("HLEN h", Int(2)));
}

#[test]
fn a_command_of_a_transaction_that_was_refused_had_no_effect() {
    let with = |seen: &str| {
        let refused = Error("OOM command not allowed".into());
        let replies = Array(vec![bulk("1"), refused, Int(2)]);
        [
            op(1, 0, 1, "SET k 1", Ok),
            op(1, 2, 3, "EXEC 2 GET k 3 SET k 7 2 INCR k", replies),
            op(1, 4, 5, "GET k", bulk(seen)),
        ]
    };
    good(&with("2"));
    bad(&with("8"));
}
