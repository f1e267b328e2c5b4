//! Packets in the network: order, drops, paths, crashes; and that a run is a function of its seed.
#![allow(clippy::unwrap_used)]

use concord_core::Rng;
use concord_sim::engine::{EventQueue, NS, Time, US};
use concord_sim::net::{
    Ecn, HostIndex, HostSpec, KINDS, LeafSpine, LinkSpec, NetEvent, Network, NodeIndex, Packet,
    Permutation, Routing, Topology, TopologyError, WindowedConfig,
};

type Queue = EventQueue<NetEvent<u64>>;

const LINK: LinkSpec =
    LinkSpec { bits_per_s: 100_000_000_000, propagation_ps: 200 * NS, queue_bytes_max: u64::MAX };

const CLOS: LeafSpine = LeafSpine {
    tors: 4,
    hosts_per_tor: 4,
    spines: 4,
    host_link: LINK,
    spine_link: LINK,
    pipeline_ps: 450 * NS,
};

fn packet(from: u32, to: u32, class: u8, body: u64) -> Packet<u64> {
    Packet {
        to: HostIndex(to),
        from: HostIndex(from),
        size_bytes: 1_500,
        flow_label: 0,
        class,
        kind: 0,
        ecn: Ecn::Not,
        path: 0,
        body,
    }
}

/// Runs to the end; what was delivered: time, node, packet.
fn drain(queue: &mut Queue, network: &mut Network<u64>) -> Vec<(u64, u32, Packet<u64>)> {
    let mut delivered = Vec::new();
    while let Some((now, event)) = queue.next() {
        if let Some(d) = network.handle(queue, event) {
            delivered.push((now.0, d.node.0, d.packet));
        }
    }
    delivered
}

fn assert_conserved(network: &Network<u64>) {
    let c = network.counters();
    assert_eq!(c.sent, c.delivered + c.dropped_port + c.dropped_host + c.lost_in_crash, "{c:?}");
}

#[test]
fn a_lone_packet_takes_the_sum_of_its_path() {
    let topology = Topology::leaf_spine(&CLOS);
    let mut network = Network::new(&topology, Routing::Spray, 1).unwrap();
    let mut queue = Queue::new();
    network.send(&mut queue, packet(0, 15, 0, 0));
    network.send(&mut queue, packet(4, 5, 0, 0));
    let delivered = drain(&mut queue, &mut network);
    // 1,500 bytes are 120 ns. In the rack: two links and one pipeline; across: four and three.
    let times: Vec<_> = delivered.iter().map(|(at, node, _)| (*at, *node)).collect();
    assert_eq!(times, [(2 * 320 * NS + 450 * NS, 5), (4 * 320 * NS + 3 * 450 * NS, 15)]);
    assert_eq!(network.counters().hops, 6);
}

#[test]
fn each_class_is_first_in_first_out() {
    let topology = Topology::single_rack(9, LINK, 0);
    let mut network = Network::new(&topology, Routing::Ecmp, 1).unwrap();
    let (mut queue, mut delivered) = (Queue::new(), Vec::new());
    let mut rng = Rng::new(1);
    let mut until = Time(0);
    for body in 0..4_000 {
        let sender = 1 + rng.below(8) as u32;
        let mut p = packet(sender, 0, rng.below(8) as u8, body);
        p.size_bytes = rng.between(64, 1_500) as u32;
        network.send(&mut queue, p);
        // A mean packet takes 63 ns: first the receiver's link keeps up, then it does not.
        until = until.after(if body < 2_000 { 80 * NS } else { 30 * NS });
        while let Some((_, event)) = queue.next_until(until) {
            delivered.extend(network.handle(&mut queue, event).map(|d| d.packet));
        }
    }
    delivered.extend(drain(&mut queue, &mut network).into_iter().map(|(_, _, p)| p));
    assert_eq!(delivered.len(), 4_000);
    let mut newest = [[0; 8]; 9];
    for p in &delivered {
        let last = &mut newest[p.from.0 as usize][usize::from(p.class)];
        assert!(p.body >= *last, "a packet of its sender and class was overtaken");
        *last = p.body;
    }
    assert_conserved(&network);
}

/// The highest class that waits goes first but nothing is interrupted.
#[test]
fn highest_class_first_without_preemption() {
    let mut topology = Topology::new(2);
    topology.connect(NodeIndex(0), NodeIndex(1), LINK);
    let mut network = Network::new(&topology, Routing::Ecmp, 1).unwrap();
    let mut queue = Queue::new();
    for (body, class) in [7, 3, 1, 0, 3, 0].into_iter().enumerate() {
        network.send(&mut queue, packet(0, 1, class, body as u64));
    }
    let order: Vec<_> = drain(&mut queue, &mut network).iter().map(|(_, _, p)| p.body).collect();
    // The class 7 packet was on the wire already.
    assert_eq!(order, [0, 3, 5, 2, 1, 4]);
}

#[test]
fn a_full_buffer_drops_and_counts() {
    let link = LinkSpec { queue_bytes_max: 10 * 1_500, ..LINK };
    // Class 0 counts the packet on the wire as well.
    for (class, room) in [(0, 10), (1, 11)] {
        let mut topology = Topology::new(2);
        topology.connect(NodeIndex(0), NodeIndex(1), link);
        let mut network = Network::new(&topology, Routing::Ecmp, 1).unwrap();
        let mut queue = Queue::new();
        for body in 0..25 {
            network.send(&mut queue, packet(0, 1, class, body));
        }
        let delivered: Vec<_> =
            drain(&mut queue, &mut network).iter().map(|(_, _, p)| p.body).collect();
        assert_eq!(delivered, (0..room).collect::<Vec<_>>(), "the last to come are dropped");
        assert_eq!(network.counters().dropped_port, 25 - room);
        let port = network.ports().next().unwrap();
        assert_eq!((port.packets, port.bytes, port.dropped), (room, room * 1_500, 25 - room));
        assert_eq!(port.backlog_bytes_max, 15_000);
        assert_conserved(&network);
        // There is room again when it was sent.
        network.send(&mut queue, packet(0, 1, class, 99));
        assert_eq!(drain(&mut queue, &mut network).len(), 1);
    }
}

#[test]
fn packets_are_conserved_through_drops_and_crashes() {
    let small = LinkSpec { queue_bytes_max: 6_000, ..LINK };
    let clos = LeafSpine { host_link: small, spine_link: small, ..CLOS };
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let routing = if seed % 2 == 0 { Routing::Spray } else { Routing::Ecmp };
        let mut network = Network::new(&Topology::leaf_spine(&clos), routing, seed).unwrap();
        let spec = HostSpec { cores: 2, service_ps: [300 * NS; KINDS], queue_packets_max: 5 };
        for host in 0..4 {
            network.set_host(HostIndex(host), spec.clone());
        }
        let mut queue = Queue::new();
        for step in 0..3_000 {
            let (from, to) = (rng.below(16) as u32, rng.below(6) as u32);
            network.send(&mut queue, packet(from, to, rng.below(3) as u8, step));
            if step % 500 == 499 {
                network.crash(HostIndex(rng.below(4) as u32));
            }
            while let Some((_, event)) = queue.next_until(Time(step * 20 * NS)) {
                network.handle(&mut queue, event);
            }
        }
        drain(&mut queue, &mut network);
        assert_conserved(&network);
        let c = network.counters();
        assert!(c.dropped_port > 0 && c.dropped_host > 0 && c.lost_in_crash > 0, "{c:?}");
    }
}

/// A crash loses what was served and what waited and nothing later.
#[test]
fn crash_loses_served_and_waiting_packets() {
    let mut topology = Topology::new(2);
    topology.connect(NodeIndex(0), NodeIndex(1), LINK);
    let mut network = Network::new(&topology, Routing::Ecmp, 1).unwrap();
    let spec = HostSpec { service_ps: [10 * US; KINDS], ..HostSpec::default() };
    network.set_host(HostIndex(1), spec);
    let mut queue = Queue::new();
    for body in 0..3 {
        network.send(&mut queue, packet(0, 1, 0, body));
    }
    while let Some((_, event)) = queue.next_until(Time(US)) {
        assert!(network.handle(&mut queue, event).is_none());
    }
    network.crash(HostIndex(1));
    network.send(&mut queue, packet(0, 1, 0, 7));
    let delivered = drain(&mut queue, &mut network);
    let after: Vec<_> = delivered.iter().map(|(at, _, p)| (*at, p.body)).collect();
    assert_eq!(after, [(US + 320 * NS + 10 * US, 7)]);
    assert_eq!(network.counters().lost_in_crash, 3);
}

/// Ecmp keeps a flow on one path and spreads flows while spraying spreads packets.
#[test]
fn ecmp_spreads_flows_and_spraying_packets() {
    let topology = Topology::leaf_spine(&CLOS);
    // Links of ToR 0: four to its hosts, then four to the spines, sending port first.
    let up = |network: &Network<u64>| -> Vec<u64> {
        let ports: Vec<_> = network.ports().collect();
        (4..8).map(|link| ports[2 * link].packets).collect()
    };
    let send = |routing, flows: u32| {
        let mut network = Network::new(&topology, routing, 3).unwrap();
        let mut queue = Queue::new();
        for body in 0..4_000u32 {
            let flow_label = body % flows;
            network.send(&mut queue, Packet { flow_label, ..packet(0, 12, 0, 0) });
        }
        drain(&mut queue, &mut network);
        up(&network)
    };
    let one = send(Routing::Ecmp, 1);
    assert_eq!(one.iter().filter(|&&n| n > 0).count(), 1, "{one:?}");
    for spread in [send(Routing::Ecmp, 4_000), send(Routing::Spray, 1)] {
        // 1,000 each, with a standard deviation of 27.
        assert!(spread.iter().all(|n| (860..1_140).contains(n)), "{spread:?}");
    }
}

#[test]
fn a_switch_with_a_program_hands_its_packets_to_the_driver() {
    let topology = Topology::single_rack(3, LINK, 450 * NS);
    let mut network = Network::new(&topology, Routing::Ecmp, 1).unwrap();
    network.set_programmed(NodeIndex(3));
    let mut queue = Queue::new();
    network.send(&mut queue, packet(0, 1, 0, 5));
    let mut seen = Vec::new();
    while let Some((now, event)) = queue.next() {
        let Some(delivery) = network.handle(&mut queue, event) else { continue };
        seen.push((now.0, delivery.node.0, delivery.packet.body));
        if delivery.node == NodeIndex(3) {
            // The program sends the packet to someone else, and a copy of it.
            for to in [2, 0] {
                let to = HostIndex(to);
                let packet = Packet { to, ..delivery.packet.clone() };
                network.send_from(&mut queue, NodeIndex(3), packet);
            }
        }
    }
    let (at_switch, at_host) = (770 * NS, 1_090 * NS);
    assert_eq!(seen, [(at_switch, 3, 5), (at_host, 2, 5), (at_host, 0, 5)]);
    assert_conserved(&network);
}

#[test]
fn a_topology_that_cannot_work_is_refused() {
    let new = |t: &Topology| Network::<()>::new(t, Routing::Ecmp, 1).err();
    let mut topology = Topology::new(2);
    let host = HostIndex(0);
    assert_eq!(new(&topology), Some(TopologyError::Links { host, links: 0 }));
    let (a, b) = (topology.add_switch(0), topology.add_switch(0));
    topology.connect(NodeIndex(0), a, LINK);
    topology.connect(NodeIndex(1), b, LINK);
    let (from, to) = (HostIndex(1), HostIndex(0));
    assert_eq!(new(&topology), Some(TopologyError::Unreachable { from, to }));
    topology.connect(a, b, LINK);
    assert_eq!(new(&topology), None);
    topology.connect(NodeIndex(9), b, LINK);
    assert_eq!(new(&topology), Some(TopologyError::NoSuchNode(NodeIndex(9))));
}

/// A small permutation through buffers that overflow, so that timeouts happen too.
fn small(seed: u64) -> Permutation {
    let link = LinkSpec { queue_bytes_max: 15_000, ..LINK };
    Permutation {
        network: LeafSpine { host_link: LINK, spine_link: link, ..CLOS },
        routing: Routing::Spray,
        transport: WindowedConfig {
            window: 64,
            data_bytes: 1_500,
            ack_bytes: 64,
            timeout_ps: 100 * US,
        },
        flow_bytes: 300_000,
        start_within_ps: US,
        seed,
    }
}

#[test]
fn a_permutation_is_a_function_of_its_seed_in_every_build() {
    let report = small(1).run().unwrap();
    assert_eq!(report, small(1).run().unwrap());
    assert_ne!(report.digest, small(2).run().unwrap().digest);
    assert_eq!((report.unfinished, report.completion_ps.len()), (0, 16));
    assert!(report.network.dropped_port > 0 && report.transport.timeouts > 0);
    // The same in debug and release and on every machine; a change of it is a change of the model.
    assert_eq!((report.digest, report.events), (11_576_150_983_045_336_737, 23_219));
}

#[test]
fn every_flow_ends_though_packets_are_lost() {
    for seed in 10..30 {
        for routing in [Routing::Spray, Routing::Ecmp] {
            let report = Permutation { routing, ..small(seed) }.run().unwrap();
            assert_eq!(report.unfinished, 0);
            // No flow is faster than its bytes on its link.
            assert!(report.completion_ps[0] > 300_000 * 80);
        }
    }
}
