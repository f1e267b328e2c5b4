//! Groups of every protocol in rough weather: the network loses, duplicates and delays, nodes die
//! and come back with nothing or with their disks, or are cut off. Clients count: what they read
//! tells whether each increment was executed once, and whether it was seen by all who came later.
#![allow(clippy::unwrap_used)]

mod disk;
mod rack;

use concord_wire::control::Protocol;
use rack::{ALL, CALM, CLIENTS, Call, NODES, ROUGH, Rack, total};

/// Packets that a long value takes.
const FRAGMENTS: u64 = 3;
/// Those that keep their data on disks.
const DURABLE: [Protocol; 3] = [Protocol::PrimaryBackup, Protocol::Chain, Protocol::Craq];

/// Where nothing is lost, each thing is counted as often as it is done.
fn counts_are_right(rack: &Rack) {
    let (protocol, of) = (rack.protocol, |name| total(rack, name));
    let nodes = u64::from(NODES);
    let count =
        |wanted: fn(&Call) -> bool| rack.history.iter().filter(|c| wanted(c)).count() as u64;
    // A registration is a write, too.
    let writes = count(|c| c.is_write) + CLIENTS as u64;
    assert_eq!(of("records_applied"), nodes * writes, "{protocol:?}");
    // Under NOPaxos all replicas take the switch's numbers.
    if protocol != Protocol::NoPaxos {
        assert_eq!(of("writes_ordered"), writes, "{protocol:?}");
    }
    let answered = ["reads_fast", "reads_slow", "reads_clean", "reads_dirty"].map(of);
    assert_eq!(answered.iter().sum::<u64>(), count(|c| !c.is_write), "{protocol:?}");
    let long = count(|c| c.is_write && c.key.starts_with("own"));
    assert_eq!(of("fragments_staged"), FRAGMENTS * long, "{protocol:?}");
    let epochs = if protocol.is_quorum() { 0 } else { nodes };
    assert_eq!(of("epochs_opened"), epochs, "{protocol:?}");
    assert_eq!(of("version_queries"), of("version_answers"), "{protocol:?}");
    assert_eq!(of("version_queries") > 0, protocol == Protocol::Craq);
}

#[test]
fn in_calm_weather_nothing_is_lost_or_sent_twice() {
    for protocol in ALL {
        let mut rack = Rack::new(protocol, 1, CALM);
        rack.pass(1_500);
        rack.close();
        let done = rack.history.len();
        assert!(done > 2_000, "{protocol:?}: {done}");
        counts_are_right(&rack);
        for name in [
            "link_resent",
            "link_held",
            "duplicates",
            "refused_requests",
            "seq_gaps",
            "writes_out_of_order",
            "bodies_missing",
            "fragments_refused",
            "malformed",
            "unexpected",
            "members_apart",
            "reads_misrouted",
            "writes_log_full",
            "refused_lease",
        ] {
            assert_eq!(total(&rack, name), 0, "{protocol:?}: {name}");
        }
    }
}

/// In rough weather each write is executed once and seen by all who come later.
#[test]
fn writes_execute_once_in_rough_weather() {
    for protocol in ALL {
        for seed in 0..3 {
            let mut rack = Rack::new(protocol, seed, ROUGH);
            rack.pass(1_500);
            rack.close();
            assert!(rack.history.len() > 200, "{protocol:?}: {}", rack.history.len());
        }
    }
}

#[test]
fn nodes_that_die_come_back_with_all_that_was_acknowledged() {
    for protocol in ALL {
        for seed in 0..3 {
            let mut rack = Rack::new(protocol, seed, ROUGH);
            rack.pass(300);
            for entry in 0..3 {
                let victim = 1 + rack.rng.below(u64::from(NODES)) as u16;
                rack.cut_power(victim);
                rack.pass(600);
                rack.start(victim, 20 + entry);
                rack.recover("a node came back with nothing");
            }
            rack.pass(200);
            rack.close();
        }
    }
}

#[test]
fn nodes_that_were_cut_off_go_on_with_the_others() {
    for protocol in ALL {
        for seed in 0..3 {
            let mut rack = Rack::new(protocol, seed, ROUGH);
            rack.pass(300);
            for ms in [40, 150, 600] {
                rack.cut = Some(1 + rack.rng.below(u64::from(NODES)) as u16);
                rack.pass(ms);
                rack.cut = None;
                rack.recover("a node was cut off");
            }
            rack.pass(200);
            rack.close();
        }
    }
}

/// When the power of all goes what was acknowledged is on their disks.
#[test]
fn t7_power_cut_of_all_keeps_acknowledged_writes() {
    for protocol in DURABLE {
        for seed in 0..3 {
            let mut rack = Rack::on_disks(protocol, seed, ROUGH);
            for entry in 0..3 {
                rack.pass(400);
                (1..=NODES).for_each(|n| rack.cut_power(n));
                rack.pass(50);
                (1..=NODES).for_each(|n| rack.start(n, 20 + entry));
                rack.recover("the power of all had gone");
            }
            rack.close();
            assert!(rack.history.len() > 100, "{protocol:?}: {}", rack.history.len());
        }
    }
}

/// Nodes that come back with their disks soon or late go on with the others.
#[test]
fn t4_returning_nodes_go_on_with_the_others() {
    for protocol in DURABLE {
        for seed in 0..3 {
            let mut rack = Rack::on_disks(protocol, seed, ROUGH);
            rack.pass(300);
            for (entry, ms) in [(20, 60), (21, 700), (22, 60)] {
                let victim = 1 + rack.rng.below(u64::from(NODES)) as u16;
                rack.cut_power(victim);
                rack.pass(ms);
                rack.start(victim, entry);
                rack.recover("a node came back with its disk");
            }
            rack.close();
        }
    }
}
