//! Viewstamped Replication and NOPaxos. Two moments: in the first the leader says what is committed
//! (Harmonia §8.3: the COMMIT-ACK phase), in the second what was missed is asked for.

use concord_sim::explore::{Budget, Prepared};
use concord_wire::control::Protocol;

use super::{full, holds, holds_from, one, short, tiny, writes};
use Protocol::{NoPaxos, Vr};

#[test]
fn any_order_of_packets() {
    holds("any order", Vr, full(), Budget::NOTHING, 790);
    holds("any order", NoPaxos, full(), Budget::NOTHING, 878);
}

#[test]
fn any_order_of_packets_and_completions() {
    let one = Budget { moments: 1, ..Budget::NOTHING };
    holds("any order, one moment", Vr, short(), one, 8_243);
    holds("any order, one moment", NoPaxos, short(), one, 13_342);
    let two = Budget { moments: 2, ..Budget::NOTHING };
    holds("any order, two moments", Vr, short(), two, 88_455);
}

#[test]
fn a_packet_arrives_twice() {
    let budget = Budget { duplicates: 1, moments: 1, ..Budget::NOTHING };
    holds("one duplicate", Vr, tiny(), budget, 16_776);
    holds("one duplicate", NoPaxos, tiny(), budget, 27_626);
}

#[test]
fn a_packet_is_lost() {
    let budget = Budget { losses: 1, moments: 1, ..Budget::NOTHING };
    holds("one loss", Vr, tiny(), budget, 13_220);
    holds("one loss", NoPaxos, tiny(), budget, 17_829);
    let two = Budget { moments: 2, ..budget };
    holds("one loss, which is asked for", NoPaxos, tiny(), two, 403_520);
}

/// In a wait who does not hear the leader leaves the view. A client writes, and asks until it is
/// answered.
#[test]
fn a_packet_is_lost_and_time_passes() {
    let budget = Budget { losses: 1, waits: 1, ..Budget::NOTHING };
    holds("one loss, time passes", Vr, writes(), budget, 752_673);
}

/// The leader or another dies; if it was the leader, there is a view change.
#[test]
fn a_replica_dies() {
    let budget = Budget { crashes: 1, waits: 1, ..Budget::NOTHING };
    holds("one crash", Vr, one(), budget, 327_387);
}

/// Racks whose leader is dead, and of which every choice of replicas missed the first write.
pub(crate) fn leaderless() -> Vec<Prepared> {
    (0..8).map(|missed| Prepared::Missed { missed, leader_dies: true }).collect()
}

/// Racks in which followers have not seen the write, which the leader, replica 0, has.
pub(crate) fn followers_missed() -> Vec<Prepared> {
    [0b010, 0b100, 0b110].map(|missed| Prepared::Missed { missed, leader_dies: false }).to_vec()
}

/// NOPaxos' view change. (From a rack that is ready there are more than 8 million states.)
#[test]
fn the_leader_died_and_some_have_the_write() {
    holds_from("view change", NoPaxos, leaderless(), tiny(), Budget::NOTHING, 453_472);
    let budget = Budget { losses: 1, ..Budget::NOTHING };
    holds_from("view change, one loss", NoPaxos, leaderless(), writes(), budget, 631_630);
}

/// NOPaxos' gap agreement.
#[test]
fn followers_missed_the_write_and_time_passed() {
    holds_from("gaps", NoPaxos, followers_missed(), writes(), Budget::NOTHING, 145_332);
}
