//! Packets of earlier incarnations of a node, which arrive late.

use super::*;

/// The message of a packet between replicas.
fn said(bytes: &[u8]) -> Option<VrBody> {
    VrMessage::parse(bytes).ok().map(|message| message.body)
}

impl Group {
    /// Node `index` alone leaves its view for the next one.
    fn leave_alone(&mut self, index: usize) {
        let (now, next) = (self.now, ViewNumber(self.nodes[index].view.0 + 1));
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        self.nodes[index].enter_view(now, next, &mut sent);
        self.route(index, sent);
    }

    /// A question of recovery of node `index` in incarnation `incarnation`, to node `to`: it
    /// restarts, and nobody hears it.
    fn aborted_incarnation(&mut self, index: usize, incarnation: u64, to: usize) -> Vec<u8> {
        self.isolate(index);
        self.held_way = Some((index, to));
        self.restart(index, incarnation);
        self.pass(2);
        self.held_way = None;
        self.cuts.clear();
        let held = self.held.drain(..);
        let mut asked = held.filter(|(_, _, bytes)| said(bytes) == Some(VrBody::Recovery));
        asked.next().unwrap().2
    }
}

/// Of five, node 4 lives anew, of which node 3 has not heard; node 3 granted a lease to it. What
/// its earlier life said when it left the view arrives at node 3.
fn lease_of_a_new_incarnation(guards: Guards) -> Group {
    let mut g = Group::founded(5, guards);
    g.pass(50);
    g.isolate(4);
    g.held_way = Some((4, 3));
    g.leave_alone(4);
    let left = g.held.drain(..).find(|(_, _, b)| said(b) == Some(VrBody::StartViewChange));
    let (_, _, left) = left.unwrap();
    (g.held_way, g.cuts) = (None, vec![(4, 3)]);
    g.restart(4, 900);
    g.pass(300);
    assert!(g.nodes[4].is_intact());
    // Nodes 0 and 3 grant to it, nodes 1 and 2 did so long ago.
    g.cuts = vec![(4, 1), (4, 2)];
    g.pass(LEASE_NS / MS + 50);
    while g.nodes[4].leases.next_request().since(g.now.instant) < 32 * MS {
        g.pass(1);
    }
    assert!(g.nodes[4].is_leased(g.now.instant));
    g.isolate(4);
    g.deliver(3, &left);
    g.leave_alone(1);
    g.run();
    g
}

/// A replica waits for the lease of a new life though the earlier one left the view.
#[test]
fn bug_15_14_new_incarnations_lease_is_waited_for() {
    let mut g = lease_of_a_new_incarnation(Guards::ALL);
    for ms in 0..LEASE_NS / MS {
        let leased = g.nodes[4].is_leased(g.now.instant);
        let begun = g.leader().is_some_and(|leader| g.nodes[leader].view > g.nodes[4].view);
        assert!(!(leased && begun), "after {ms} ms");
        g.pass(1);
    }
    g.pass(50);
    assert_eq!(g.leader(), Some(1));
}

/// Without lives in lease messages a lease outlives its view.
#[cfg(feature = "mutants")]
#[test]
fn bug_15_14_without_incarnations_a_lease_outlives_its_view() {
    let g = lease_of_a_new_incarnation(Guards::without(Guard::LeaseIncarnation));
    assert_eq!(g.leader(), Some(1));
    assert!(g.nodes[4].is_leased(g.now.instant) && g.nodes[4].view < g.nodes[1].view);
}

/// A grant to an earlier life of the asker is on its way until the asker's host has been up again
/// for as long as it was then.
#[test]
fn bug_15_19_a_grant_to_an_earlier_life_is_no_lease_of_the_next() {
    let mut g = Group::founded(3, Guards::ALL);
    g.pass(50);
    let view = g.nodes[2].view;
    let grant = |g: &Group, to| {
        let body = VrBody::LeaseGrant { asked_at: g.now.instant.0, to };
        let mut bytes = vec![];
        g.nodes[1].message(view, body).emit(&mut bytes);
        bytes
    };
    let earlier = g.nodes[2].own_entry();
    g.restart(2, 900);
    g.pass(300);
    assert!(g.nodes[2].is_intact() && g.nodes[2].view == view);
    let (now, held) = (g.now.instant, g.nodes[2].leases.held_of(g.now.instant, |_| true));
    assert_eq!(held, 2);
    g.nodes[2].leases.open(now, [NodeId(1), NodeId(2)].into_iter());
    let late = grant(&g, earlier);
    g.deliver(2, &late);
    assert_eq!(g.nodes[2].leases.held_of(g.now.instant, |_| true), 0);
    let own = grant(&g, g.nodes[2].own_entry());
    g.deliver(2, &own);
    assert_eq!(g.nodes[2].leases.held_of(g.now.instant, |_| true), 1);
}

/// An aborted life of which others heard ends no later one.
#[test]
fn bug_15_16_aborted_incarnation_ends_no_later_one() {
    for (index, is_late) in (0..3).flat_map(|index| [(index, false), (index, true)]) {
        let mut g = Group::founded(3, Guards::ALL);
        g.set(0, "k", "v");
        g.pass(5);
        let other = (index + 1) % 3;
        let late = g.aborted_incarnation(index, 900, other);
        if is_late {
            // The next life has the same count.
            g.restart(index, 300);
            g.pass(1_000);
            assert!(g.nodes[index].is_intact());
            g.deliver(other, &late);
        } else {
            g.deliver(other, &late);
            g.packets.clear();
            g.restart(index, 300);
        }
        g.pass(1_000);
        let count = if is_late { 1 } else { 2 };
        assert_eq!(g.nodes[index].own_entry(), CrashVectorEntry { count, incarnation: 300 });
        assert!(g.nodes.iter().all(|n| n.is_intact() && n.stage == Stage::Normal));
        let leader = g.leader().unwrap();
        g.set(leader, "k", "after");
        g.pass(100);
        assert_eq!(g.digests()[0], g.digests()[1]);
        assert_eq!(g.digests()[0], g.digests()[2]);
    }
}

/// Without a higher life an aborted one ends a later one for good.
#[cfg(feature = "mutants")]
#[test]
fn bug_15_16_without_a_raise_an_aborted_incarnation_wins() {
    let mut g = Group::founded(5, Guards::without(Guard::IncarnationRaised));
    let late = g.aborted_incarnation(4, 900, 1);
    g.isolate(1);
    g.restart(4, 300);
    g.pass(1_000);
    assert!(g.nodes[4].is_intact());
    g.deliver(1, &late);
    g.cuts.clear();
    g.pass(1_000);
    assert_eq!(g.nodes[4].stage, Stage::Left);
}

/// It hears of the aborted life when it has all answers and fetches the log. The answers were given
/// to a life that counts no more.
#[test]
fn bug_15_16_raised_incarnation_is_announced() {
    let mut g = Group::founded(5, Guards::ALL);
    let late = g.aborted_incarnation(4, 900, 1);
    // Node 1 hears of the aborted life alone.
    g.cut(1, 4);
    g.deliver(1, &late);
    g.packets.clear();
    g.restart(4, 300);
    g.pass(LEASE_NS / MS - 5);
    // The log does not come for a while.
    g.cuts.push((4, 0));
    g.pass(10);
    assert_eq!((g.nodes[4].stage, g.nodes[4].recovery.is_under_way()), (Stage::Starting, true));
    // Two of the others do not hear of anything.
    g.cuts = vec![(4, 0), (0, 2), (1, 2), (4, 2), (0, 3), (1, 3), (4, 3)];
    g.pass(50);
    assert_eq!(g.nodes[4].own_entry(), CrashVectorEntry { count: 2, incarnation: 300 });
    g.cuts.retain(|cut| *cut != (4, 0));
    for _ in 0..300 {
        g.pass(1);
        let entry = g.nodes[4].own_entry();
        let aware = g.nodes[..4].iter().filter(|n| n.crash_vector.of(4) == entry).count();
        assert!(!g.nodes[4].is_intact() || aware >= 3, "{aware} know of it");
    }
    g.cuts.clear();
    g.pass(1_000);
    assert!(g.nodes[4].is_intact());
}

/// A packet in which this node's life has the highest count is forged. It costs a replica, and no
/// panic.
#[test]
fn bug_15_16_a_life_above_which_there_is_none_is_no_panic() {
    let mut g = Group::founded(3, Guards::ALL);
    let mut crash_vector = g.nodes[1].crash_vector.vector().to_vec();
    crash_vector[0] = CrashVectorEntry { count: u32::MAX, incarnation: 1 };
    let (group, view) = (g.nodes[1].group.id(), g.nodes[1].view.0);
    let body = VrBody::Suspect;
    let mut bytes = vec![];
    VrMessage { body, group, from: 2, view, crash_vector }.emit(&mut bytes);
    g.deliver(0, &bytes);
    assert_eq!(g.nodes[0].stage, Stage::Left);
    g.pass(500);
    assert!(g.leader().is_some());
}

/// The members of a group in which node 2 lives as `incarnation`, with switch `switch_id`.
fn founders(g: &Group, incarnation: u64, switch_id: u32) -> Vec<u8> {
    let mut next = Config { epoch: 50, ..config(g.protocol, g.nodes.len(), switch_id) };
    next.members[2].incarnation = incarnation;
    let mut bytes = vec![];
    Membership::Configure(next.into()).emit(&mut bytes);
    bytes
}

/// The controller is started with --fresh beside a rack of which one replica restarted since it was
/// founded.
#[test]
fn bug_15_19_refounded_group_begins_empty() {
    for protocol in [Protocol::Vr, Protocol::NoPaxos] {
        let mut g = Group::founded_as(protocol, 3, Guards::ALL);
        let all = [0, 1, 2];
        for n in 0..20 {
            g.cast_set(
                if protocol.is_sequenced() { &all } else { &[0] },
                "old",
                &alloc::format!("{n}"),
            );
            g.pass(2);
        }
        g.restart(2, 900);
        g.pass(300);
        let view = g.nodes[0].view;
        // What members of the first group said last comes late.
        let executed = Position(g.nodes[0].executed.0 + 1_000);
        let ack = |node: &Node, epoch| concord_wire::link::Ack {
            epoch,
            from: node.group.node(),
            stream: 0,
            next: 0,
            held: 0,
            applied: executed,
            committed: executed,
            entry: node.group.tag_of(node.crash_vector.mine()),
            is_short: false,
            is_at_work: false,
            queue: 0,
        };
        let acks: Vec<_> = g.nodes.iter().map(|n| ack(n, n.epoch())).collect();
        let next = founders(&g, 900, 2);
        (0..3).for_each(|to| g.deliver(to, &next));
        g.run();
        g.pass(50);
        assert!(g.nodes.iter().all(|n| n.stage == Stage::Normal && n.is_intact()));
        assert_eq!((g.leader(), g.nodes[0].view), (Some(0), view), "the same number");
        for (from, ack) in acks.iter().enumerate() {
            let mut bytes = vec![];
            ack.emit(&mut bytes);
            (0..3).filter(|to| *to != from).for_each(|to| g.deliver(to, &bytes));
        }
        assert!(g.nodes.iter().all(|n| n.heard_committed < executed));
        assert!(g.nodes[0].leading.followers.iter().all(|f| f.acked < executed));
        assert_eq!(g.get(0, "old", None).unwrap().2, "nil");
        g.counter = 0;
        let hello = Repr { flags: Flags::REGISTER, ..g.request(b"") };
        let to: &[usize] = if protocol.is_sequenced() { &all } else { &[0] };
        g.cast(to, hello, &[]);
        g.run();
        g.cast_set(to, "k", "new");
        g.pass(20);
        assert_eq!(g.get(0, "k", None).unwrap().2, "new");
        assert!(g.digests().iter().all(|d| *d == g.digests()[0]));
        assert!(g.nodes.iter().all(|n| n.serving.engine.keys() == 1));
    }
}

/// A process that has no place in the group that was founded anew is of the past.
#[test]
fn bug_15_19_whoever_is_no_founder_of_the_next_group_leaves() {
    let mut g = Group::founded(3, Guards::ALL);
    let next = founders(&g, 900, 2);
    (0..3).for_each(|to| g.deliver(to, &next));
    assert_eq!(g.nodes[2].stage, Stage::Left);
    // Leases that it was granted in the group before are waited for.
    g.pass(300);
    assert!(g.leader().is_some());
}

/// Raft with quorum reads. What node 1 answered to node 2 is on its way until node 2 has been
/// started again, and asks its first question anew; a write was committed between, of which node 2
/// has not heard. What it answers to a read.
fn quorum_read_of_a_new_incarnation(guards: Guards) -> Option<String> {
    let mut g = Group::founded_as(Protocol::Raft, 3, guards);
    let by_quorum = |g: &mut Group| {
        for node in &mut g.nodes {
            node.setup.reads = crate::SlowReads::Quorum;
            node.group.config.as_mut().unwrap().program = Program::Forward;
        }
    };
    by_quorum(&mut g);
    g.set(0, "k", "old");
    g.pass(50);
    let term = g.nodes[1].view;
    g.cuts = vec![(0, 2)];
    g.held_way = Some((1, 2));
    assert_eq!(g.get(2, "k", None), None, "nobody has answered it");
    let late = g.held.drain(..).find(|(_, _, b)| matches!(said(b), Some(VrBody::LogEndIs { .. })));
    let (_, _, late) = late.unwrap();
    (g.held_way, g.cuts) = (None, vec![]);
    g.restart(2, 900);
    by_quorum(&mut g);
    g.pass(300);
    assert!(g.nodes[2].is_intact() && g.nodes[1].view == term);
    g.cuts = vec![(0, 2), (1, 2)];
    g.to_client.clear();
    g.set(0, "k", "new");
    g.run();
    assert_eq!(g.to_client.len(), 1, "it is acknowledged");
    assert_eq!(g.get(2, "k", None), None);
    g.deliver(2, &late);
    let read = g.to_client.pop().map(|(_, body)| String::from_utf8(body).unwrap());
    if guards == Guards::ALL {
        g.cuts.clear();
        g.pass(30);
        assert!(g.to_client.pop().unwrap().1.ends_with(b"new\r\n"), "it is asked again");
    }
    read
}

/// Where a log ends is no answer to the next life of the asker.
#[test]
fn bug_20_5_log_end_is_no_answer_to_a_later_incarnation() {
    assert_eq!(quorum_read_of_a_new_incarnation(Guards::ALL), None);
}

/// Without its guard a quorum read is answered from the past.
#[cfg(feature = "mutants")]
#[test]
fn bug_20_5_unguarded_quorum_read_is_stale() {
    let stale = quorum_read_of_a_new_incarnation(Guards::without(Guard::QuorumIncarnation));
    assert_eq!(stale.as_deref(), Some("$3\r\nold\r\n"));
}
