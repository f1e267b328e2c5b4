//! Follower leases (FLAIR §4.5): reads at the followers of a Raft leader, whose switch does nothing
//! for them.

use super::*;
use concord_core::Position;

/// Three founders, of which node 0 leads and the others hold leases.
fn founded() -> Group {
    let mut g = Group::unconfigured(Protocol::Raft, 3, Guards::ALL);
    g.program = Program::Forward;
    g.nodes.iter_mut().for_each(|node| node.setup.reads = crate::SlowReads::FollowerLease);
    g.configure(1);
    g.pass(5);
    assert_eq!(g.leader(), Some(0));
    let hello = Repr { flags: Flags::REGISTER, ..g.request(b"") };
    g.send(0, hello, &[]);
    g.set(0, "k", "v");
    g.pass(60);
    g.to_client.clear();
    g
}

/// Whether node `index` has a lease of its leader.
fn is_granted(g: &Group, index: usize) -> bool {
    let node = &g.nodes[index];
    let log = (node.ordered.end(), node.executed);
    let read = Repr::new(Op::Read);
    node.group_leases.refuse(g.now.instant, &read, log, Guards::ALL).is_none()
}

/// A follower answers unless a write of the key group is on its way.
#[test]
fn flair_4_5_follower_answers_unless_its_group_is_written() {
    let mut g = founded();
    assert_eq!(g.get(1, "k", None).unwrap(), (Reason::Leased, 2, "v".into()));
    // The record is at the followers, and they have not heard that it is committed.
    g.set(0, "k", "w");
    g.run();
    assert_eq!(g.get(1, "k", None).unwrap(), (Reason::RefusedRevoked, 1, "w".into()));
    assert_eq!(g.get(1, "other", None).unwrap(), (Reason::Leased, 2, "nil".into()));
    g.pass(1);
    assert_eq!(g.get(1, "k", None).unwrap(), (Reason::Leased, 2, "w".into()));
    let count = &g.nodes[1].count;
    assert_eq!((count.reads_fast, count.refused_revoked, count.refused_lease), (3, 1, 0));
}

/// A read of all keys is the leaders and so is any while the state is copied.
#[test]
fn all_keys_reads_and_copying_go_to_the_leader() {
    let mut g = founded();
    let (mut command, mut bytes) = (CommandBuf::new(), vec![]);
    let read = Repr { op: Op::Read, flags: Flags::WILDCARD, ..g.request(b"") };
    read.emit(command.encode(0, [&b"DBSIZE"[..]]), &mut bytes);
    g.deliver(1, &bytes);
    g.run();
    let (repr, size) = g.to_client.pop().unwrap();
    assert_eq!(
        (repr.reason, repr.node, &size[..]),
        (Reason::RefusedLease, NodeId(1), &b":1\r\n"[..])
    );
    let copying = crate::quorum::copy::copying::Copying::begin(1, LogEnd { position: 9, hash: 9 });
    g.nodes[1].copying = Some(copying);
    assert_eq!(g.get(1, "k", None).unwrap(), (Reason::RefusedLease, 1, "v".into()));
    assert_eq!(g.nodes[1].count.refused_lease, 2);
}

/// A follower that is cut off answers as long as its lease and a write waits for that.
#[test]
fn t2_cut_off_follower_delays_writes_for_its_lease() {
    let mut g = founded();
    g.isolate(2);
    g.set(0, "k", "w");
    g.pass(20);
    assert!(g.to_client.is_empty(), "a quorum has it, and a holder of a lease has not");
    assert_eq!(g.get(2, "k", None).unwrap(), (Reason::Leased, 3, "v".into()));
    assert_eq!(g.get(1, "k", None).unwrap(), (Reason::RefusedRevoked, 1, "v".into()));
    g.to_client.clear();
    let until = g.nodes[0].holders_until();
    assert!(until > g.now.instant && g.nodes[0].deadline().at <= until);
    let mut passed_ms = 20;
    while g.to_client.is_empty() {
        g.pass(1);
        passed_ms += 1;
    }
    assert!((40..=LEASE_NS / MS).contains(&passed_ms), "{passed_ms}");
    assert_eq!(g.get(2, "k", None), None, "its lease was over before");
}

/// Node 2 asks for leases and gets none of the log: writes wait for the lease that it has, and for
/// no other.
#[test]
fn a_follower_that_lags_gets_no_lease_so_that_writes_wait_once() {
    let mut g = founded();
    g.unheard = vec![2];
    g.set(0, "k", "w");
    g.pass(LEASE_NS / MS + 20);
    assert_eq!(g.to_client.len(), 1);
    assert!(g.nodes[0].vr_count.read_leases_refused > 0 && !is_granted(&g, 2));
    g.set(0, "k", "x");
    g.run();
    assert_eq!(g.to_client.len(), 2, "at once");
    g.unheard.clear();
    g.pass(300);
    assert_eq!(g.get(2, "k", None).unwrap(), (Reason::Leased, 3, "x".into()));
}

/// Whether the leader grants node 2 a lease.
fn grants(g: &mut Group) -> bool {
    let (now, entry) = (g.now.instant, g.nodes[2].crash_vector.mine());
    let before = g.nodes[0].vr_count;
    let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
    g.nodes[0].grant_reads(now, 2, (entry, now.0), &mut sent);
    let count = &g.nodes[0].vr_count;
    let granted = count.read_leases_granted - before.read_leases_granted;
    assert_eq!(granted + count.read_leases_refused - before.read_leases_refused, 1);
    assert_eq!(sent.len() as u64, granted);
    granted == 1
}

#[test]
fn whom_a_write_would_wait_for_long_gets_no_lease() {
    let mut g = founded();
    for _ in 0..300 {
        g.set(0, "k", "v");
        g.run();
    }
    assert!(grants(&mut g));
    let committed = g.nodes[0].committed.0;
    for (behind, is_near) in [(256, true), (257, false)] {
        g.nodes[0].leading.followers[2].acked = Position(committed - behind);
        assert_eq!(grants(&mut g), is_near);
    }
    g.nodes[0].leading.followers[2].acked = Position(committed);
    g.nodes[0].leading.followers[2].retires = true;
    assert!(!grants(&mut g), "it was told to end");
    g.nodes[0].leading.followers[2].retires = false;
    g.nodes[0].leading.followers[2].outgoing_copy = Some(super::super::follower::OutgoingCopy {
        attempt: 1,
        part: None,
        asked: 0,
        early: Default::default(),
    });
    assert!(!grants(&mut g), "it copies the state");
    g.nodes[0].leading.followers[2].outgoing_copy = None;
    assert!(grants(&mut g));
    g.nodes[0].leading.followers[2].sender = None;
    assert!(!grants(&mut g), "it has not said where its log ends");
    // A follower grants nothing, and neither does a leader whose followers answer no reads.
    let (now, entry) = (g.now.instant, g.nodes[2].crash_vector.mine());
    g.nodes[0].setup.reads = crate::SlowReads::default();
    for index in 0..2 {
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        g.nodes[index].grant_reads(now, 2, (entry, now.0), &mut sent);
        assert!(sent.is_empty());
    }
}

/// A lease is of the leader of the term and for the incarnation that asked.
#[test]
fn lease_is_bound_to_term_and_incarnation() {
    let mut g = founded();
    g.cuts = vec![(0, 2)];
    g.pass(LEASE_NS / MS + 5);
    assert!(!is_granted(&g, 2));
    let (now, view, mine) = (g.now, g.nodes[2].view, g.nodes[2].crash_vector.mine());
    let other = CrashVectorEntry { incarnation: mine.incarnation + 1, ..mine };
    let mut hear = |from, view, entry| {
        g.nodes[2].on_read_lease(now, (from, view), (entry, now.instant.0), 0);
        is_granted(&g, 2)
    };
    assert!(!hear(1, view, mine), "of another follower");
    assert!(!hear(0, ViewNumber(view.0 + 1), mine));
    assert!(!hear(0, view, other), "an earlier incarnation asked");
    assert!(hear(0, view, mine));
    g.nodes[2].stage = Stage::Starting;
    g.now.instant = now.instant.after(LEASE_NS);
    let now = g.now;
    g.nodes[2].on_read_lease(now, (0, view), (mine, now.instant.0), 0);
    assert!(!is_granted(&g, 2), "its log is not that of the term yet");
}

/// Its engine is a server of its own, whose state may be that of a script.
#[test]
fn a_follower_answers_nothing_that_a_script_may_have_written() {
    let mut g = founded();
    g.nodes[1].scripts.note(Position(1), Seq::NONE);
    assert_eq!(g.get(1, "k", None).unwrap(), (Reason::Leased, 2, "v".into()));
    g.nodes[1].setup.replicate_replies = true;
    assert_eq!(g.get(1, "k", None).unwrap(), (Reason::RefusedRevoked, 1, "v".into()));
    g.nodes[2].setup.replicate_replies = true;
    assert_eq!(g.get(2, "k", None).unwrap(), (Reason::Leased, 3, "v".into()), "there was none");
}

#[test]
fn a_lease_that_was_given_back_delays_no_write() {
    let mut g = founded();
    g.isolate(2);
    let incarnation = g.nodes[2].crash_vector.mine().incarnation;
    g.nodes[0].release_reads(NodeId(3), incarnation + 1);
    g.set(0, "k", "w");
    g.run();
    assert!(g.to_client.is_empty(), "another incarnation's");
    g.nodes[0].release_reads(NodeId(3), incarnation);
    g.set(0, "k", "x");
    g.run();
    assert_eq!(g.to_client.len(), 2);
}
