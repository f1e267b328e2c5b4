//! Replicas that are told to end.

use super::*;
use crate::retire::Retired;

impl Group {
    fn retire(&mut self, index: usize) {
        let now = self.now;
        self.nodes[index].retire(now);
    }

    /// Whom the leader last told the switch of.
    fn readers(&self) -> Vec<u16> {
        let configs = self.to_switch.iter().rev().filter_map(|b| match Membership::parse(b) {
            Ok(Membership::Configure(part)) => part.complete(),
            _ => None,
        });
        configs.take(1).flat_map(|c| c.members.iter().map(|m| m.node).collect::<Vec<_>>()).collect()
    }
}

#[test]
fn a_leader_that_goes_hands_its_view_on_and_writes_go_on() {
    for protocol in [Protocol::Vr, Protocol::NoPaxos] {
        let mut g = Group::founded_as(protocol, 3, Guards::ALL);
        let all = [0, 1, 2];
        let to = if protocol.is_sequenced() { &all[..] } else { &all[..1] };
        g.cast_set(to, "k", "v");
        g.pass(5);
        // Who would lead next is dead: the view goes to the one behind it.
        g.isolate(1);
        g.pass(LEASE_NS / MS);
        let view = g.nodes[0].view;
        g.retire(0);
        g.pass(10);
        assert_eq!(g.leader(), Some(2), "{protocol:?}");
        assert_eq!(g.nodes[0].vr_count.handed_on, 1);
        assert_eq!(g.nodes[2].view, ViewNumber(view.0 + 2));
        g.cuts.clear();
        let to = if protocol.is_sequenced() { &all[..] } else { &all[2..] };
        g.cast_set(to, "k", "w");
        g.pass(30);
        assert_eq!(g.get(2, "k", None).unwrap().2, "w", "{protocol:?}");
        g.pass(150);
        assert_eq!(g.nodes[0].retired(g.now), Some(Retired::InOrder), "{protocol:?}");
    }
}

/// A follower that goes gets no reads any more and no vote waits for its lease.
#[test]
fn retiring_follower_gets_no_reads() {
    let mut g = Group::founded(3, Guards::ALL);
    let seq = g.set(0, "k", "v");
    g.pass(60);
    g.to_switch.clear();
    g.retire(2);
    g.pass(2);
    assert_eq!(g.readers(), [1, 2], "the switch is told at once");
    assert_eq!(g.get(2, "k", Some(seq)).unwrap().0, Reason::Fast, "reads under way are answered");
    assert_eq!(g.nodes[2].retired(g.now), None);
    while g.nodes[2].retired(g.now).is_none() {
        g.pass(1);
    }
    assert_eq!(g.nodes[2].retired(g.now), Some(Retired::InOrder));
    assert_eq!(g.get(2, "k", Some(seq)), None);
    // It is gone; the leader too hands its view on, and the other one votes at once.
    g.isolate(2);
    g.retire(0);
    g.pass(5);
    assert_eq!(g.leader(), Some(1));
}

/// A lease that an earlier incarnation gave back is not the later ones.
#[test]
fn t2_returned_lease_is_of_its_incarnation() {
    let mut g = Group::founded(3, Guards::ALL);
    g.pass(60);
    g.retire(2);
    g.held_way = Some((2, 1));
    while g.nodes[2].retired(g.now).is_none() {
        g.pass(1);
    }
    let held = core::mem::take(&mut g.held);
    let is_release = |bytes: &[u8]| {
        VrMessage::parse(bytes).is_ok_and(|m| m.body == VrBody::Retire { released: true })
    };
    let release = held.into_iter().map(|(.., bytes)| bytes).find(|b| is_release(b)).unwrap();
    g.held_way = None;
    g.restart(2, 777);
    g.pass(3 * LEASE_NS / MS);
    assert!(g.nodes[2].is_intact());
    g.pass(60);
    g.deliver(1, &release);
    let until = g.nodes[1].leases.others_until(|node| node != NodeId(3));
    assert!(until > g.now.instant, "the later one may still answer");
}
