//! Scripts that are stopped, or take the engine with them.

use super::*;

const SCRIPT: [&str; 4] = ["EVAL", "while true do end", "1", "k"];
const STOPPED: &str =
    "-ERR the script ran for too long and was stopped; it has changed nothing\r\n";

#[test]
fn bug_15_7_a_script_that_the_leader_stopped_is_void_for_all() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).stops = true;
        b.write(Flags(0), &SCRIPT);
        b.write(Flags(0), &["SET", "after", "v"]);
        b.pass(60, to_all);
        assert_eq!(b.write_replies(), [STOPPED, "+OK\r\n"], "{protocol:?}");
        assert_eq!(b.scripts(), [0; 3], "{protocol:?}: nobody else may run it to its end");
        for node in 1..=3 {
            assert_eq!(b.at(node).phase(), Phase::Open, "{protocol:?} {node}");
            assert_eq!(b.at(node).executed(), b.at(1).executed(), "{protocol:?} {node}");
        }
        b.server(1).stops = false;
        b.write(Flags(0), &SCRIPT);
        b.pass(60, to_all);
        assert_eq!((b.write_replies(), b.scripts()), (vec![":1\r\n".into()], [1; 3]));
    }
}

/// What has nothing to execute behind a script that was stopped is not stuck.
#[test]
fn bug_18_6_no_op_after_a_stopped_script_is_not_stuck() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).hangs = true;
        b.server(1).stops = true;
        b.write(Flags(0), &SCRIPT);
        // Of a replica's own, as the time that the log tells where keys have times to live.
        b.write(Flags::INTERNAL, &[]);
        b.pass(5, to_all);
        b.server(1).hangs = false;
        b.pass(60, to_all);
        assert_eq!(b.write_replies(), [STOPPED], "{protocol:?}");
        for node in 1..=3 {
            assert_eq!(b.at(node).executed(), b.at(1).executed(), "{protocol:?} {node}");
        }
        b.write(Flags(0), &["SET", "after", "v"]);
        b.pass(60, to_all);
        assert_eq!(b.write_replies(), ["+OK\r\n"], "{protocol:?}");
        assert_eq!(b.at(1).phase(), Phase::Open, "{protocol:?}");
    }
}

#[test]
fn a_transaction_with_a_script_is_decided_on_like_a_script() {
    let script = CommandBuf::new().encode(3, SCRIPT.iter().map(|arg| arg.as_bytes())).to_vec();
    let exec = ["CONCORD.EXEC", std::str::from_utf8(&script).unwrap()];
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).stops = true;
        b.write(Flags(0), &exec);
        b.pass(60, to_all);
        assert_eq!((b.write_replies(), b.scripts()), (vec![STOPPED.into()], [0; 3]));
        b.server(1).stops = false;
        b.write(Flags(0), &exec);
        b.pass(5, no_word_of_the_first);
        assert_eq!(b.write_replies(), [""; 0], "{protocol:?}: no quorum knows of it");
        b.pass(60, to_all);
        assert_eq!((b.write_replies(), b.scripts()), (vec!["*1\r\n:1\r\n".into()], [1; 3]));
    }
}

/// Nobody hears of a script before its leader has executed it.
#[test]
fn bug_15_7_nobody_hears_of_an_unexecuted_script() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).hangs = true;
        b.write(Flags(0), &SCRIPT);
        b.pass(SILENCE_MS / 4, to_all);
        assert_eq!(b.scripts(), [0; 3], "{protocol:?}");
        b.server(1).hangs = false;
        b.pass(60, to_all);
        assert_eq!(b.scripts(), [0, 1, 1], "{protocol:?}");
    }
}

/// A follower that stops what its leader executed leaves.
#[test]
fn bug_15_7_follower_that_stops_an_executed_script_fails() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(3).stops = true;
        b.write(Flags(0), &SCRIPT);
        b.pass(60, to_all);
        assert_eq!((b.at(2).phase(), b.at(3).phase()), (Phase::Open, Phase::Left), "{protocol:?}");
    }
}

/// A script that takes the leader s engine is void for the others.
#[test]
fn bug_15_7_script_that_takes_the_leaders_engine_is_aborted() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).hangs = true;
        b.write(Flags(0), &SCRIPT);
        b.pass(2, to_all);
        b.server(1).is_poisoned = true;
        b.pass(600, to_all);
        assert_eq!(b.write_replies().first().map(String::as_str), Some(STOPPED), "{protocol:?}");
        assert_eq!((b.at(1).phase(), b.scripts()), (Phase::Left, [0; 3]), "{protocol:?}");
        let leader = b.leader().unwrap();
        assert_ne!(leader, 1);
        assert_eq!(b.at(2).executed(), b.at(3).executed(), "{protocol:?}");
    }
}

/// Nobody executes a void script while the next one runs.
#[test]
fn bug_18_47_aborted_script_stays_unexecuted() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).stops = true;
        b.write(Flags(0), &SCRIPT);
        b.write(Flags(0), &SCRIPT);
        // The first is stopped, and the second runs while it is made void.
        b.server(1).lets = 1;
        b.pass(60, to_all);
        assert_eq!(b.write_replies(), [STOPPED], "{protocol:?}");
        assert_eq!(b.scripts(), [0; 3], "{protocol:?}");
        b.server(1).lets = usize::MAX;
        b.pass(60, to_all);
        assert_eq!((b.write_replies(), b.scripts()), (vec![STOPPED.into()], [0; 3]));
        for node in 1..=3 {
            assert_eq!(b.at(node).phase(), Phase::Open, "{protocol:?} {node}");
            assert_eq!(b.at(node).executed(), b.at(1).executed(), "{protocol:?} {node}");
        }
    }
}

/// A server keeps the answers of one receive back until it has executed all of it.
#[test]
fn bug_15_7_script_after_a_batch_takes_no_other_engine() {
    for protocol in [Protocol::Chain, Protocol::PrimaryBackup, Protocol::Craq] {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).hangs = true;
        b.write(Flags(0), &["SET", "before", "v"]);
        b.write(Flags(0), &SCRIPT);
        b.write(Flags(0), &SCRIPT);
        b.pass(2, to_all);
        b.server(1).is_poisoned = true;
        b.pass(2, to_all);
        let unknown = |(repr, _): &(Repr, Vec<u8>)| repr.status == Status::Stale;
        let told: Vec<u64> =
            b.answers.iter().filter(|a| unknown(a)).map(|(repr, _)| repr.request.0).collect();
        assert_eq!(told, [3, 4], "{protocol:?}: nobody may send a script to the next replica");
        assert_eq!(b.at(1).phase(), Phase::Left, "{protocol:?}");
    }
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).hangs = true;
        b.write(Flags(0), &["SET", "before", "v"]);
        b.write(Flags(0), &SCRIPT);
        b.write(Flags(0), &SCRIPT);
        b.pass(2, to_all);
        b.server(1).is_poisoned = true;
        b.pass(800, to_all);
        assert_eq!((b.at(1).phase(), b.scripts()), (Phase::Left, [0; 3]), "{protocol:?}");
        assert_ne!(b.leader().unwrap(), 1);
        assert_eq!(b.at(2).executed(), b.at(3).executed(), "{protocol:?}");
        b.write(Flags(0), &["SET", "after", "v"]);
        b.pass(60, to_all);
        assert_eq!(b.write_replies().last().map(String::as_str), Some("+OK\r\n"), "{protocol:?}");
    }
}

/// A script that a leader stopped and the next one executes costs the first.
#[test]
fn bug_15_7_stopped_then_executed_script_costs_the_first_leader() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(1).stops = true;
        b.write(Flags(0), &SCRIPT);
        // Its word does not get to the switch, and then it is cut off.
        let others = |f: &Flight| f.0 != 1 && f.1 != (Addr { ip: 1, port: 1 });
        b.pass(1, to_all);
        b.pass(4 * LEASE_MS, others);
        assert!(matches!(b.leader(), Some(2 | 3)), "{protocol:?}");
        b.pass(4 * LEASE_MS, to_all);
        assert_eq!(b.scripts(), [0, 1, 1], "{protocol:?}");
        assert_eq!(b.at(1).phase(), Phase::Left, "{protocol:?}");
    }
}

/// Records pass, but nobody hears of the leader what is committed.
fn no_word_of_the_first(flight: &Flight) -> bool {
    flight.0 != 1 || is(&flight.2, Kind::Link, OP_DATA)
}

/// The first replica is cut off.
fn without_the_first(flight: &Flight) -> bool {
    flight.0 != 1 && flight.1 != Addr { ip: 1, port: 1 }
}

/// A leader executes a script and is gone before anybody heard of it; its successor has to stop the
/// script.
fn successor_stops(protocol: Protocol, guards: Guards) -> (Vec<String>, [usize; 3]) {
    let mut b = Bench::new(protocol, guards);
    b.write(Flags(0), &SCRIPT);
    b.pass(5, no_word_of_the_first);
    assert_eq!(b.scripts(), [1, 0, 0], "{protocol:?}");
    // Whichever it is.
    b.server(2).stops = true;
    b.server(3).stops = true;
    b.pass(8 * LEASE_MS, without_the_first);
    assert!(matches!(b.leader(), Some(2 | 3)), "{protocol:?}: {:?}", b.leader());
    (b.write_replies(), b.scripts())
}

/// A script is answered once a quorum knows that it ran to its end.
#[test]
fn bug_15_28_script_is_answered_once_a_quorum_knows() {
    for protocol in QUORUM {
        assert_eq!(
            successor_stops(protocol, Guards::ALL),
            (vec![STOPPED.into()], [1, 0, 0]),
            "{protocol:?}: one answer, of who decided"
        );
    }
}

#[cfg(feature = "mutants")]
#[test]
fn bug_15_28_is_seen_without_its_guard() {
    let without = Guards::without(concord_core::Guard::ScriptKnown);
    for protocol in QUORUM {
        let answers: Vec<String> = vec![":1\r\n".into(), STOPPED.into()];
        assert_eq!(successor_stops(protocol, without).0, answers, "{protocol:?}");
    }
}

#[test]
fn bug_15_28_what_was_executed_behind_a_script_waits_too() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.write(Flags(0), &SCRIPT);
        b.write(Flags(0), &["SET", "k", "v"]);
        b.pass(5, no_word_of_the_first);
        b.read(1, 1, &["GET", "k"]);
        b.read(1, 2, &["GET", "other"]);
        b.pass(5, no_word_of_the_first);
        assert!(b.answers.is_empty(), "{protocol:?}: {:?}", b.answers);
        b.pass(20, to_all);
        let replies: Vec<&[u8]> = b.answers.iter().map(|(_, body)| &body[..]).collect();
        let replies: Vec<&[u8]> = replies.into_iter().filter(|r| !r.is_empty()).collect();
        let in_order: [&[u8]; 4] = [b":1\r\n", b"+OK\r\n", b"$1\r\nv\r\n", b"$-1\r\n"];
        assert_eq!(replies, in_order, "{protocol:?}");
    }
}

/// A script that was answered is made void by no later leader.
#[test]
fn bug_15_28_answered_script_is_never_aborted() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.write(Flags(0), &SCRIPT);
        let second = Addr { ip: 1, port: 2 };
        b.pass(10, |f| f.1 != second || no_word_of_the_first(f));
        assert_eq!((b.write_replies(), b.scripts()), (vec![":1\r\n".into()], [1, 0, 1]));
        b.server(2).stops = true;
        b.pass(5 * LEASE_MS, without_the_first);
        assert_eq!(b.at(2).phase(), Phase::Left, "{protocol:?}: it cannot do what was done");
        b.pass(10 * LEASE_MS, to_all);
        assert_eq!(b.scripts(), [1, 0, 1], "{protocol:?}");
        assert_eq!([1, 3].map(|n| b.at(n).phase()), [Phase::Open; 2], "{protocol:?}");
        b.write(Flags(0), &["SET", "k", "v"]);
        b.pass(60, to_all);
        assert_eq!(b.write_replies(), ["+OK\r\n"], "{protocol:?}");
    }
}

/// The engine of a leader answers a read after the leader heard of its successor, which may make
/// the script void.
#[test]
fn bug_18_20_old_leader_answers_no_read_after_a_script() {
    for protocol in QUORUM {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.write(Flags(0), &SCRIPT);
        b.pass(5, no_word_of_the_first);
        assert_eq!(b.scripts(), [1, 0, 0], "{protocol:?}");
        b.server(1).hangs = true;
        b.read(1, 1, &["GET", "k"]);
        // It does not come to the script yet, and may have to stop it.
        b.server(2).hangs = true;
        b.pass(SILENCE_MS - 100, |flight| flight.0 != 1);
        assert_ne!(b.leader(), Some(1), "{protocol:?}");
        assert_ne!(b.at(1).phase(), Phase::Left, "{protocol:?}");
        b.answers.clear();
        b.server(1).hangs = false;
        b.pass(50, |flight| flight.0 != 1);
        assert_eq!(b.read_replies(), [b""; 0], "{protocol:?}");
    }
}

/// A follower refuses fast reads that are older than a script.
#[test]
fn bug_15_28_follower_refuses_reads_older_than_a_script() {
    // Raft is without fast reads here.
    for protocol in [Protocol::Vr, Protocol::NoPaxos] {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.write(Flags(0), &SCRIPT);
        b.pass(60, to_all);
        b.answers.clear();
        let mut reasons = Vec::new();
        for (number, seen) in [(1, b.counter - 1), (2, b.counter)] {
            let seen = Seq::new(SwitchId(1), seen);
            b.read_as(3, number, (Flags::FAST, seen), &["GET", "other"]);
            b.pass(5, to_all);
            let read = b.answers.iter().find(|(repr, _)| repr.op == Op::ReadReply);
            reasons.push(read.map(|(repr, _)| repr.reason));
            b.answers.clear();
        }
        let expected = [Reason::RefusedNewer, Reason::Fast].map(Some);
        assert_eq!(reasons, expected, "{protocol:?}");
    }
}

/// A quorum read at a follower that has executed a script goes to the leader at once.
#[test]
fn quorum_read_after_a_script_goes_to_the_leader() {
    let (reads, limits) = (SlowReads::Quorum, Limits::default());
    let mut b = Bench::reading(Protocol::Raft, reads, Guards::ALL, limits);
    let passed_on = |b: &mut Bench, node: u16, number: u64| {
        b.wire.clear();
        b.read_as(node, number, (Flags(0), Seq::NONE), &["GET", "k"]);
        let to =
            |f: &Flight| Packet::parse(&f.2).is_ok_and(|p| p.op() == Op::Read).then_some(f.1.port);
        b.wire.iter().filter_map(to).collect::<Vec<_>>()
    };
    assert_eq!(passed_on(&mut b, 3, 1), [0; 0], "there was no script");
    b.write(Flags(0), &SCRIPT);
    b.pass(60, to_all);
    assert_eq!(b.leader(), Some(1));
    assert_eq!((passed_on(&mut b, 3, 2), passed_on(&mut b, 1, 3)), (vec![1], vec![]));
}

/// Raft with quorum reads: reads that wait while the first script is executed are the leader's,
/// which withholds what they saw; a read that was passed on already is not passed on again.
#[test]
fn bug_20_6_quorum_read_waiting_for_a_script_is_passed_on() {
    for is_forwarded in [false, true] {
        let (reads, limits) = (SlowReads::Quorum, Limits::default());
        let mut b = Bench::reading(Protocol::Raft, reads, Guards::ALL, limits);
        // Two have it in their logs, and the leader alone has executed it.
        b.write(Flags(0), &SCRIPT);
        b.pass(5, no_word_of_the_first);
        let flags = if is_forwarded { Flags::FORWARDED } else { Flags(0) };
        b.read_as(3, 1, (flags, Seq::NONE), &["GET", "k"]);
        b.pass(5, no_word_of_the_first);
        assert!(b.answers.is_empty(), "{:?}", b.answers);
        b.pass(60, |f| f.1 != Addr { ip: 1, port: 2 });
        assert_eq!(b.scripts(), [1, 0, 1]);
        let read = b.answers.iter().find(|(repr, _)| repr.op == Op::ReadReply);
        let by = read.map(|(repr, _)| repr.node.0);
        assert_eq!(by, (!is_forwarded).then_some(1), "the leader, or nobody");
        assert_eq!(b.at(3).counters().reads_dropped, u64::from(is_forwarded));
    }
}

/// The head decides before there is a record, so that what a record says was decided.
#[test]
fn what_a_head_decided_of_a_script_nobody_else_makes_void() {
    for protocol in CHAIN_FAMILY {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.server(2).stops = true;
        b.write(Flags(0), &SCRIPT);
        b.pass(80, to_all);
        assert_eq!([1, 2].map(|n| b.at(n).phase()), [Phase::Open, Phase::Left], "{protocol:?}");
        assert_eq!(b.scripts()[..2], [1, 0], "{protocol:?}");
        assert!(!b.write_replies().iter().any(|r| r == STOPPED), "{protocol:?}");
    }
}

/// Otherwise a part waits until whoever copies asks again, 20 ms later.
#[test]
fn bug_19_22_a_part_goes_out_when_the_engine_has_made_it() {
    for protocol in CHAIN_FAMILY {
        let mut b = Bench::new(protocol, Guards::ALL);
        let joins = Member { incarnation: 11, ..member(3) };
        b.configure_as(2, vec![member(1), member(2)], vec![joins]);
        b.pass(400, |flight| flight.1 != member(3).addr);
        // Whoever answers reads has the copy to give.
        let donor = if protocol == Protocol::PrimaryBackup { 1 } else { 2 };
        let (attempt, from) = (7, 3);
        let ask = |part| {
            let mut bytes = Vec::new();
            CopyMessage::Ask { epoch: 2, from, attempt, part, index: 0 }.emit(&mut bytes);
            bytes
        };
        let pieces = |b: &mut Bench| -> Vec<u64> {
            let sent = std::mem::take(&mut b.wire).into_iter();
            sent.filter_map(|(_, to, bytes)| match CopyMessage::parse(&bytes) {
                Ok(CopyMessage::Piece { part, .. }) if to == member(3).addr => Some(part),
                _ => None,
            })
            .collect()
        };
        b.hand(donor, &ask(0));
        b.engines();
        assert_eq!(pieces(&mut b), [0], "{protocol:?}: the client table");
        b.server(donor).hangs = true;
        b.hand(donor, &ask(1));
        b.engines();
        assert_eq!(pieces(&mut b), [0; 0], "{protocol:?}: it is being made");
        b.server(donor).hangs = false;
        b.engines();
        assert_eq!(pieces(&mut b), [1], "{protocol:?}");
    }
}
