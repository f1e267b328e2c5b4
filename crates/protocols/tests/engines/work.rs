//! Engines that are at work on one operation for long.

use super::*;

/// The engine of `node` works on the operation that it is given next, until [`ends`].
fn begins(b: &mut Bench, node: u16) {
    let since = b.now().instant;
    b.server(node).hangs = true;
    b.server(node).at_work_since = Some(since);
}

fn ends(b: &mut Bench, node: u16) {
    b.server(node).hangs = false;
    b.server(node).at_work_since = None;
}

/// What clients heard of requests that have no outcome yet: of which, and the ms that it took.
fn working(b: &Bench) -> Vec<(Op, u64)> {
    let working = b.answers.iter().filter(|(repr, _)| repr.status == Status::Working);
    working.map(|(repr, _)| (repr.op, repr.time_ms)).collect()
}

/// An engine that works is not given up, however long it does, and nobody else leads meanwhile.
#[test]
fn bug_22_110_an_engine_at_work_is_not_given_up() {
    for protocol in CHAIN_FAMILY.into_iter().chain(QUORUM) {
        for node in 1..=3 {
            let mut b = Bench::new(protocol, Guards::ALL);
            let leader = b.leader();
            begins(&mut b, node);
            b.write(Flags(0), &["SET", "k", "v"]);
            b.pass(5 * SILENCE_MS, to_all);
            assert_eq!((b.at(node).phase(), b.leader()), (Phase::Open, leader), "{protocol:?}");
            ends(&mut b, node);
            b.pass(60, to_all);
            assert_eq!(b.write_replies().pop().unwrap(), "+OK\r\n", "{protocol:?} {node}");
            assert_eq!(b.at(node).executed(), b.at(1).executed(), "{protocol:?} {node}");
        }
    }
}

/// Whoever asks again hears that an engine works, of who orders or of who comes after it; the retry
/// is not ordered.
#[test]
fn bug_22_110_who_asks_again_hears_of_the_work() {
    let works_at = |protocol: Protocol| match protocol {
        // The record is passed on before it is executed.
        Protocol::Craq => vec![1, 3],
        _ if protocol.is_quorum() => vec![1],
        _ => vec![1, 2, 3],
    };
    for protocol in CHAIN_FAMILY.into_iter().chain([Protocol::Vr, Protocol::Raft]) {
        for node in works_at(protocol) {
            let mut b = Bench::new(protocol, Guards::ALL);
            begins(&mut b, node);
            b.write(Flags(0), &["SET", "k", "v"]);
            b.pass(3_000, to_all);
            assert_eq!(working(&b), [], "{protocol:?} {node}: it was the first attempt");
            let before = b.at(1).counters().writes_ordered;
            b.again(1);
            let said = working(&b);
            assert_eq!(said.len(), 1, "{protocol:?} {node}");
            assert!(said[0].0 == Op::WriteReply && said[0].1 >= 2_000, "{protocol:?}: {said:?}");
            assert_eq!(b.at(1).counters().writes_ordered, before, "{protocol:?} {node}");
            // One that is new is ordered, and hears of it.
            b.write(Flags(0), &["SET", "other", "v"]);
            b.pass(1, to_all);
            assert_eq!(working(&b).len(), 2, "{protocol:?} {node}");
            assert_eq!(b.at(1).counters().writes_ordered, before + 1, "{protocol:?} {node}");
            b.answers.clear();
            ends(&mut b, node);
            b.pass(60, to_all);
            assert_eq!(b.write_replies(), ["+OK\r\n"; 2], "{protocol:?} {node}");
        }
    }
}

/// A read that waits for an engine at work hears of it when it is asked again.
#[test]
fn bug_22_110_a_read_that_is_asked_again_hears_of_the_work() {
    for protocol in CHAIN_FAMILY.into_iter().chain(QUORUM) {
        let reader =
            if protocol.is_quorum() || protocol == Protocol::PrimaryBackup { 1 } else { 3 };
        let mut b = Bench::new(protocol, Guards::ALL);
        begins(&mut b, reader);
        b.read(reader, 1, &["GET", "k"]);
        b.pass(1_500, to_all);
        assert_eq!(working(&b), [], "{protocol:?}");
        b.read(reader, 1, &["GET", "k"]);
        b.pass(1, to_all);
        let said = working(&b);
        assert_eq!(said.len(), 1, "{protocol:?}");
        assert!(said[0].0 == Op::ReadReply && said[0].1 >= 1_000, "{protocol:?}: {said:?}");
    }
}

/// A long reply stands in no record: each replica has its own.
#[test]
fn bug_22_112_a_long_reply_is_not_replicated() {
    for protocol in CHAIN_FAMILY {
        let mut b = Bench::new(protocol, Guards::ALL);
        b.write(Flags(0), &["SETRANGE", "k", "300000", "x"]);
        b.pass(60, to_all);
        assert_eq!(b.write_replies(), [":300001\r\n"], "{protocol:?}");
        let streamed = std::cell::Cell::new(0);
        let count = |flight: &Flight| {
            let is_data = is(&flight.2, Kind::Link, OP_DATA);
            streamed.set(streamed.get() + if is_data { flight.2.len() } else { 0 });
            true
        };
        b.write(Flags(0), &["GETDEL", "k"]);
        b.pass(60, count);
        let mut answers = b.answers.drain(..);
        let (repr, first) = answers.find(|(repr, _)| repr.op == Op::WriteReply).unwrap();
        drop(answers);
        assert!(repr.flags.has(Flags::MORE), "{protocol:?}");
        assert!(first.len() > 1_000 && streamed.get() < 4_000, "{protocol:?}: {streamed:?}");
        for node in 1..=3 {
            assert_eq!(b.at(node).phase(), Phase::Open, "{protocol:?} {node}");
            assert_eq!(b.at(node).executed(), b.at(1).executed(), "{protocol:?} {node}");
        }
    }
}
