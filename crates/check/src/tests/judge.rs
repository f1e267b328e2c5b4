//! Wrong histories that were accepted, right ones that were rejected, and what was not judged.

use super::{bulk, exact, op, open, verdict};
use crate::start::{Tries, latest_start};
use crate::{JUDGED_PERCENT_MIN, Operation, Options, Reply, Verdict, check};

/// A search that gives up proves nothing: eight open pushes of numbers lead to more lists than are
/// looked at.
#[test]
fn bug_25_3_a_count_of_keys_is_never_a_pass_by_giving_up() {
    let count = |opens: u64| {
        let mut history = vec![op(1, 0, 10, "LPUSH l e", Reply::Int(1))];
        history.extend((0..opens).map(|n| open(2 + n, 1, &format!("LPUSH l 1{n}"))));
        history.push(op(20, 20, 30, "DBSIZE", Reply::Int(0)));
        verdict(&history)
    };
    assert_eq!(count(2), Verdict::Violation);
    assert_ne!(count(8), Verdict::Ok);
}

/// KEYS names each key once. SCAN may name one twice.
#[test]
fn bug_25_5_a_key_that_keys_names_twice() {
    let keys = |names: &[&str]| Reply::Array(names.iter().map(|name| bulk(name)).collect());
    let mut history =
        vec![op(1, 0, 10, "SET a 1", Reply::Ok), op(1, 20, 30, "KEYS *", keys(&["a", "a"]))];
    assert_eq!(verdict(&history), Verdict::Violation);
    history[1].reply = Some(keys(&["a"]));
    assert_eq!(verdict(&history), Verdict::Ok);
    let scanned = Reply::Array(vec![bulk("0"), keys(&["a", "a"])]);
    history[1] = op(1, 20, 30, "SCAN 0", scanned);
    assert_eq!(verdict(&history), Verdict::Ok);
}

/// What an APPEND of unseen reply adds comes between what open ones add.
#[test]
fn bug_25_7_an_append_of_unseen_reply_beside_open_ones() {
    let history = [
        op(1, 0, 10, "SET k a", Reply::Ok),
        open(2, 11, "APPEND k y"),
        open(3, 11, "APPEND k y"),
        op(4, 12, 20, "APPEND k x", Reply::Unseen),
        op(1, 30, 40, "GET k", bulk("ayyx")),
    ];
    assert_eq!(verdict(&history), Verdict::Ok);
}

/// What had undone a push of unseen reply is left out where another push is taken for the start: so
/// is that push.
#[test]
fn bug_25_8_a_push_of_unseen_reply_before_a_start() {
    let mut history = vec![
        op(1, 0, 10, "RPUSH l e1", Reply::Unseen),
        op(1, 20, 30, "LPOP l", bulk("e1")),
        op(1, 40, 50, "RPUSH l e2", Reply::Int(1)),
        op(1, 60, 70, "LRANGE l 0 -1", Reply::Array(vec![bulk("e2")])),
    ];
    let start = |history: &[Operation]| {
        let ops: Vec<_> = history.iter().enumerate().map(|(at, o)| super::op_of(at, o)).collect();
        latest_start(&ops, &mut Tries::new()).map(|(source, _)| source)
    };
    assert_eq!(start(&history), None);
    // One that was under way with it.
    (history[0].return_ns, history[1].call_ns, history[1].return_ns) = (Some(45), 30, Some(39));
    assert_eq!(start(&history), None);
    // What it is for is still found.
    history[3].reply = Some(Reply::Array(vec![bulk("e3")]));
    assert_eq!(start(&history), Some(2));
}

/// One definition of what was judged.
#[test]
fn bug_25_10_what_was_refused_or_unknown_is_not_judged() {
    let asks = Options { judged_percent_min: JUDGED_PERCENT_MIN, ..exact() };
    assert_eq!(check(&[], &asks).unwrap().verdict, Verdict::TooLittle);
    let refused = |n| op(1, n, n + 1, "SET k v", Reply::Error("ERR no".into()));
    let mut history: Vec<_> = (0..95).map(refused).collect();
    assert_eq!(check(&history, &asks).unwrap().verdict, Verdict::TooLittle);
    history.extend((0..4).map(|n| open(2, n, "SET k v")));
    history.push(op(3, 200, 201, "GET other", Reply::Nil));
    let report = check(&history, &asks).unwrap();
    assert_eq!(report.verdict, Verdict::TooLittle);
    assert_eq!((report.judged, report.unknown, report.refused), (1, 4, 95));
    history.extend((0..12).map(|n| op(3, 300 + n, 301 + n, "GET other", Reply::Nil)));
    assert_eq!(check(&history, &asks).unwrap().verdict, Verdict::Ok);
    history.push(op(3, 400, 401, "GET other", bulk("x")));
    assert_eq!(check(&history, &asks).unwrap().verdict, Verdict::Violation);
}

/// A time to live is judged by what looks at the key when it has to be gone.
#[test]
fn bug_25_4_how_many_expiries_could_be_judged() {
    let ms = 1_000_000;
    let set = op(1, 0, ms, "SET k v PX 1", Reply::Ok);
    let judged = |last: Operation| {
        let expiries = check(&[set.clone(), last], &exact()).unwrap().expiries;
        (expiries.set, expiries.judged)
    };
    assert_eq!(judged(op(1, ms + 1, 3 * ms, "GET k", Reply::Nil)), (1, 0));
    assert_eq!(judged(op(1, 2 * ms + 1, 3 * ms, "GET k", Reply::Nil)), (1, 1));
    assert_eq!(judged(op(1, 2 * ms + 1, 3 * ms, "SET k w", Reply::Ok)), (1, 0));
    assert_eq!(judged(op(1, 2 * ms + 1, 3 * ms, "SET k w NX", Reply::Ok)), (1, 1));
}
