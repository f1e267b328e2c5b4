//! Questions that come twice, clocks that went back, ways that are cut in one direction.

use concord_wire::control::CopyMessage;

use super::*;
use concord_wire::fragment::FragmentHdr;

const ALL: [usize; 3] = [0, 1, 2];

impl Group {
    /// Node `index` asks for a new stream; the question's bytes.
    fn ask_anew(&mut self, index: usize) -> Vec<u8> {
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        self.nodes[index].follow(&mut sent);
        let question = sent[0].1.clone();
        self.route(index, sent);
        self.run();
        question
    }
}

/// Node 2 asks its leader for a stream, and for another. Both questions come once more, later.
fn late_questions(guards: Guards) -> Group {
    let mut g = Group::founded(3, guards);
    let mut questions = vec![];
    for _ in 0..2 {
        questions.push(g.ask_anew(2));
        (0..3).for_each(|_| {
            g.set(0, "k", "v");
            g.run();
        });
    }
    for question in questions {
        g.deliver(0, &question);
        g.run();
    }
    g.set(0, "k", "last");
    g.run();
    g.pass(2_000);
    g
}

/// A stream s number is not used again by late questions.
#[test]
fn bug_15_15_late_questions_do_not_reuse_a_stream() {
    let g = late_questions(Guards::ALL);
    assert_eq!(g.nodes[2].ordered.log.end(), g.nodes[0].ordered.log.end());
    assert_eq!(g.digests()[0], g.digests()[2]);
}

/// A follower whose stream is begun anew under its number starves.
#[cfg(feature = "mutants")]
#[test]
fn bug_15_15_reused_stream_number_starves_its_follower() {
    let g = late_questions(Guards::without(Guard::StreamOnce));
    assert!(g.nodes[2].ordered.log.end().position < g.nodes[0].ordered.log.end().position);
}

/// Node 2 lacks what is not kept any more. The first answers that say so get lost.
#[test]
fn bug_15_15_lost_log_mismatch_answer_is_repeated() {
    let mut g = Group::founded(3, Guards::ALL);
    g.isolate(2);
    for n in 0..200 {
        g.set(0, "k", &alloc::format!("{n}"));
        g.pass(1);
    }
    g.cuts = vec![(0, 2)];
    g.ask_anew(2);
    g.pass(60);
    assert!(g.nodes[0].vr_count.too_far_behind > 1, "{:?}", g.nodes[0].vr_count);
    g.cuts.clear();
    g.pass(500);
    assert_eq!(g.digests()[0], g.digests()[2]);
}

/// A stream was begun, none of its packets arrived, and its records are gone. Its number cannot be
/// used again, so another one is asked for.
#[test]
fn bug_15_15_unseen_abandoned_stream_gets_another_number() {
    let mut g = Group::founded(3, Guards::ALL);
    g.isolate(2);
    g.set(0, "k", "v");
    g.pass(1);
    g.cuts = vec![(0, 2)];
    let stream = g.nodes[2].inbound.stream() + 1;
    g.ask_anew(2);
    assert_eq!(g.nodes[0].leading.followers[2].streamed, Some(stream));
    // It hears nobody, and asks nobody to leave the view.
    for n in 0..200 {
        g.set(0, "k", &alloc::format!("{n}"));
        g.pass(1);
        let now = g.now.instant;
        g.nodes[2].suspicion.hear_leader(now);
    }
    assert!(g.nodes[0].leading.followers[2].sender.is_none(), "its records are gone");
    g.cuts.clear();
    g.pass(1_500);
    assert_eq!(g.nodes[2].ordered.log.end(), g.nodes[0].ordered.log.end());
    assert_eq!(g.digests()[0], g.digests()[2]);
}

/// The leader drops from its log all that it has executed, and then, in a later view, what it had
/// logged alone. The next switch's clock is behind.
#[test]
fn bug_15_17_the_time_of_a_record_that_was_dropped_is_kept() {
    let mut g = Group::founded_as(Protocol::NoPaxos, 3, Guards::ALL);
    for n in 0..5 {
        g.cast_set(&ALL, "k", &alloc::format!("{n}"));
        g.pass(5);
    }
    let executed = g.nodes[0].executed.0;
    assert_eq!(executed, g.nodes[0].ordered.log.end().position);
    g.isolate(0);
    for n in 0..60 {
        g.cast_set(&[0], "alone", &alloc::format!("{n}"));
    }
    assert_eq!(
        g.nodes[0].ordered.log.base().position,
        executed,
        "nothing that was executed is kept"
    );
    g.pass(400);
    g.cuts.clear();
    g.pass(400);
    assert_eq!(g.nodes[0].ordered.log.end().position, executed);
    g.configure(2);
    g.pass(50);
    g.counter = 0;
    g.now.unix_ms -= 3_000;
    g.cast_set(&ALL, "k", "after");
    g.pass(200);
    assert!(g.nodes.iter().all(|n| n.executed.0 == executed + 1));
    assert_eq!(g.nodes[0].ordered.log.end(), g.nodes[1].ordered.log.end(), "one record, one time");
    assert_eq!(g.nodes[0].ordered.log.end(), g.nodes[2].ordered.log.end());
}

/// The followers hear their leader, and it hears nobody.
fn deaf_leader(protocol: Protocol, guards: Guards) -> Group {
    let mut g = Group::founded_as(protocol, 3, guards);
    g.pass(50);
    g.cuts = vec![(1, 0), (2, 0)];
    g.pass(4 * LEASE_NS / MS);
    g
}

/// A leader that hears no quorum leaves its view and the others go on.
#[test]
fn bug_15_18_deaf_leader_leaves_its_view() {
    for protocol in [Protocol::Vr, Protocol::NoPaxos] {
        let mut g = deaf_leader(protocol, Guards::ALL);
        let leader = g.leader().unwrap();
        assert_ne!(leader, 0, "{protocol:?}");
        g.cast_set(if protocol.is_sequenced() { &ALL } else { &[1] }, "k", "v");
        g.pass(20);
        assert_eq!(g.to_client.len(), 1);
        assert_eq!(g.get(leader, "k", None).unwrap().2, "v");
        let view = g.nodes[leader].view;
        g.pass(1_000);
        assert_eq!(g.nodes[leader].view, view, "it disturbs nobody");
        assert_eq!(g.nodes[0].vr_count.stepped_aside, 1);
        g.cuts.clear();
        g.pass(500);
        assert!(g.nodes.iter().all(|n| n.stage == Stage::Normal && n.view == view));
        assert_eq!(g.digests()[0], g.digests()[1]);
    }
}

/// A leader that hears nobody and stays lets nobody else lead.
#[cfg(feature = "mutants")]
#[test]
fn bug_15_18_deaf_leader_that_stays_blocks_others() {
    let mut g = deaf_leader(Protocol::Vr, Guards::without(Guard::StepAside));
    g.pass(5_000);
    assert_eq!(g.leader(), Some(0));
    g.set(0, "k", "v");
    g.pass(1_000);
    assert!(g.to_client.is_empty());
}

/// A leader that slept reads first what was said meanwhile.
#[test]
fn bug_15_18_leader_that_slept_reads_its_messages_first() {
    let mut g = Group::founded(3, Guards::ALL);
    g.pass(50);
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    let later = g.now.instant.after(3 * LEASE_NS);
    g.nodes[0].tick(Now { instant: later, ..g.now }, &mut sent);
    assert!(g.nodes[0].is_leader());
}

/// A follower that copies the state acknowledges nothing. It is heard of.
#[test]
fn bug_15_18_a_follower_that_copies_the_state_is_heard_of() {
    let mut g = Group::founded(3, Guards::ALL);
    g.pass(5);
    g.isolate(2);
    let view = g.nodes[0].view;
    for _ in 0..10 * LEASE_NS / MS {
        // Follower 1 asks for a part of the state now and then, and says nothing else.
        let attempt = u64::from(g.nodes[1].group.tag_of(g.nodes[1].crash_vector.mine())) << 32 | 1;
        let ask = CopyMessage::Ask { epoch: view.0, from: 2, attempt, part: 0, index: 0 };
        let mut bytes = vec![];
        ask.emit(&mut bytes);
        g.cuts.push((1, 0));
        g.pass(1);
        g.deliver(0, &bytes);
    }
    assert!(g.nodes[0].is_leader() && g.nodes[0].view == view);
}

/// However many view changes failed the next one is given up in four leases.
#[test]
fn bug_15_19_failed_view_changes_give_up_in_four_leases() {
    let mut g = Group::founded(3, Guards::ALL);
    let (mut sent, now): (Vec<(Addr, Vec<u8>)>, Now) = (vec![], g.now);
    for _ in 0..20 {
        let next = ViewNumber(g.nodes[1].view.0 + 1);
        g.nodes[1].enter_view(now, next, &mut sent);
    }
    assert!(!g.nodes[1].suspects(now.instant.after(4 * LEASE_NS - 1)));
    assert!(g.nodes[1].suspects(now.instant.after(4 * LEASE_NS)));
}

/// No view comes after the last number: nothing overflows, and no view is entered twice.
#[test]
fn bug_15_19_at_the_end_of_the_view_numbers_there_is_no_panic() {
    let mut g = Group::founded(3, Guards::ALL);
    g.pass(5);
    for node in 0..2 {
        let forged = g.nodes[2].message(ViewNumber(u32::MAX), VrBody::StartViewChange);
        let mut bytes = vec![];
        forged.emit(&mut bytes);
        g.deliver(node, &bytes);
    }
    g.pass(5_000);
    assert!(g.nodes[..2].iter().all(|n| n.view == ViewNumber(u32::MAX)));
    // There is no next one, and that is counted.
    let (now, node) = (g.now, &mut g.nodes[0]);
    let (next, stage) = (node.next_view(1), node.stage);
    node.enter_view(now, next, &mut vec![]);
    assert_eq!((node.vr_count.views_exhausted, node.stage), (1, stage));
}

/// A write of several packets: its body is staged at the leader, its numbered packet is lost on the
/// way to the leader alone.
#[test]
fn bug_15_19_staged_write_missed_by_the_leader_alone() {
    let mut g = Group::founded_as(Protocol::NoPaxos, 3, Guards::ALL);
    let view = g.nodes[0].view;
    let mut command = CommandBuf::new();
    let caught_up = command.encode(1, [&b"SET"[..], b"k", b"staged"]).to_vec();
    let hdr = FragmentHdr { version: 9, total_bytes: caught_up.len() as u32, index: 0, count: 1 };
    let write = Repr { flags: Flags::BODY_STAGED, ..g.request(b"k") };
    let (mut bytes, mut body, mut name) = (vec![], vec![], vec![]);
    hdr.emit_of(&caught_up, &mut body);
    hdr.emit(&mut name);
    Repr { op: Op::WRest, ..write }.emit(&body, &mut bytes);
    g.deliver(0, &bytes);
    g.to_client.clear();
    g.cast(&[1, 2], write, &name);
    g.cast_set(&ALL, "l", "w");
    g.cast_set(&[1, 2], "m", "x");
    g.cast_set(&ALL, "n", "y");
    g.pass(50);
    assert_eq!(g.nodes[0].view, view, "no view change");
    assert_eq!(g.to_client.len(), 4);
    assert_eq!(g.get(0, "k", None).unwrap().2, "staged");
    assert!(g.nodes.iter().all(|n| n.ordered.log.end() == g.nodes[0].ordered.log.end()));
    assert!(g.digests().iter().all(|d| *d == g.digests()[0]));
}

#[test]
fn fragments_of_a_body_are_for_the_leader_alone() {
    let mut g = Group::founded(3, Guards::ALL);
    let hdr = FragmentHdr { version: 9, total_bytes: 4, index: 0, count: 1 };
    let (mut bytes, mut body) = (vec![], vec![]);
    hdr.emit_of(b"body", &mut body);
    Repr { op: Op::WRest, ..g.request(b"k") }.emit(&body, &mut bytes);
    g.deliver(1, &bytes);
    g.deliver(1, &bytes);
    assert_eq!((g.nodes[1].count.writes_not_head, g.to_client.len()), (2, 0));
    g.deliver(0, &bytes);
    assert_eq!((g.nodes[0].count.writes_not_head, g.to_client.len()), (0, 1), "it has it");
}

/// Node 1 heard of the last record late, and leads; then node 2 does, which lacks what node 1
/// stamped. Times to live that node 1 gave must not be over earlier for that.
#[test]
fn bug_15_32_fetching_leader_is_not_ahead_of_the_stamp() {
    let mut g = Group::founded(3, Guards::ALL);
    g.cut(0, 1);
    let write = g.request(b"a");
    let mut command = CommandBuf::new();
    let body = command.encode(1, [&b"SET"[..], b"a", b"1", b"PX", b"100000"]).to_vec();
    g.cast(&[0], write, &body);
    g.pass(90);
    g.cuts.clear();
    g.pass(60);
    g.isolate(0);
    g.pass(4 * LEASE_NS / MS);
    assert_eq!(g.leader(), Some(1));
    g.cuts.clear();
    g.isolate(2);
    g.pass(60);
    g.set(1, "k", "v");
    g.pass(5);
    let ahead = |g: &Group| {
        let read = |index: usize| g.nodes[index].ordered.clock.read(g.now.unix_ms) as i64;
        read(2) - read(0)
    };
    assert!(ahead(&g) > 30, "{}", ahead(&g));
    g.cuts.clear();
    g.isolate(1);
    g.pass(5 * LEASE_NS / MS);
    assert_eq!(g.leader(), Some(2));
    assert!(g.nodes[2].vr_count.records_transferred > 0 && ahead(&g) <= 2, "{}", ahead(&g));
}
