//! Managed ports: shared buffers, marks, telemetry, failures; fat trees.
#![allow(clippy::unwrap_used)]

use concord_core::Rng;
use concord_sim::engine::{EventQueue, NS, Time, US};
use concord_sim::net::{
    Ecn, Hop, HostIndex, LinkSpec, Marking, NetEvent, Network, NodeIndex, Packet, QueueSpec,
    Routing, SHARES, Topology,
};

type Body = Vec<Hop>;
type Queue = EventQueue<NetEvent<Body>>;

const LINK: LinkSpec =
    LinkSpec { bits_per_s: 100_000_000_000, propagation_ps: 200 * NS, queue_bytes_max: 15_000 };
/// Time of a packet on a link.
const PACKET_PS: u64 = 120 * NS;

fn packet(from: u32, to: u32, class: u8) -> Packet<Body> {
    let (to, from) = (HostIndex(to), HostIndex(from));
    Packet { to, from, size_bytes: 1_500, class, ecn: Ecn::Capable, ..Packet::default() }
}

fn managed(topology: &Topology, spec: QueueSpec) -> Network<Body> {
    let mut network = Network::new(topology, Routing::Ecmp, 1).unwrap();
    network.manage(spec);
    network
}

fn drain(queue: &mut Queue, network: &mut Network<Body>) -> Vec<(u64, Packet<Body>)> {
    let mut delivered = Vec::new();
    while let Some((now, event)) = queue.next() {
        delivered.extend(network.handle(queue, event).map(|d| (now.0, d.packet)));
    }
    delivered
}

fn assert_conserved(network: &Network<Body>) {
    let c = network.counters();
    assert_eq!(c.sent, c.delivered + c.dropped_port + c.dropped_host + c.lost_on_link, "{c:?}");
    assert_eq!(network.held_bytes(), 0, "buffers are empty at rest");
}

/// Sends `each` packets from each host but 0 to host 0, at once.
fn incast(queue: &mut Queue, network: &mut Network<Body>, hosts: u32, each: u32) {
    for from in 1..hosts {
        for _ in 0..each {
            network.send(queue, packet(from, 0, 1));
        }
    }
}

/// Without drops a managed port sends what a plain one sends, at the same picosecond.
#[test]
fn a_managed_port_is_as_fast_as_a_plain_one() {
    let link = LinkSpec { queue_bytes_max: u64::MAX, ..LINK };
    let topology = Topology::single_rack(9, link, 450 * NS);
    let run = |is_managed: bool| {
        let mut network: Network<Body> = Network::new(&topology, Routing::Ecmp, 1).unwrap();
        if is_managed {
            network.manage(QueueSpec::default());
        }
        let (mut queue, mut rng, mut until) = (Queue::new(), Rng::new(1), Time(0));
        let mut delivered = Vec::new();
        for _ in 0..2_000 {
            let mut p = packet(1 + rng.below(8) as u32, 0, 1 + rng.below(7) as u8);
            p.size_bytes = rng.between(64, 1_500) as u32;
            network.send(&mut queue, p);
            until = until.after(70 * NS);
            while let Some((now, event)) = queue.next_until(until) {
                let done = network.handle(&mut queue, event);
                delivered.extend(done.map(|d| (now.0, d.packet.from, d.packet.size_bytes)));
            }
        }
        let rest = drain(&mut queue, &mut network);
        delivered.extend(rest.into_iter().map(|(at, p)| (at, p.from, p.size_bytes)));
        delivered
    };
    let (plain, managed) = (run(false), run(true));
    assert_eq!(plain.len(), 2_000);
    assert!(plain == managed, "some packet differs in time or order");
}

/// One port may take the whole shared buffer, or the share of the dynamic threshold: with alpha
/// 1 a lone port gets half of the buffer, with 8 eight ninths.
#[test]
fn a_shared_buffer_and_its_dynamic_threshold() {
    let topology = Topology::single_rack(9, LINK, 0);
    for (share, kept) in [(0, 100), (SHARES, 50), (8 * SHARES, 89)] {
        let spec = QueueSpec { shared_bytes_max: Some(150_000), share, ..QueueSpec::default() };
        let mut network = managed(&topology, spec);
        let mut queue = Queue::new();
        incast(&mut queue, &mut network, 9, 40);
        drain(&mut queue, &mut network);
        let port = network.port_between(NodeIndex(9), NodeIndex(0)).unwrap();
        let counters = network.queue_counters(queue.now()).0[port as usize];
        let most = counters.waiting_bytes_max / 1_500;
        assert!(most.abs_diff(kept) <= 1, "share {share}: {most} packets waited, not {kept}");
        assert!(counters.dropped > 0);
        assert_conserved(&network);
    }
}

/// Ports of one switch share its buffer: a second busy port leaves less to the first.
#[test]
fn two_ports_share_one_buffer() {
    let topology = Topology::single_rack(10, LINK, 0);
    let spec = QueueSpec { shared_bytes_max: Some(150_000), share: SHARES, ..QueueSpec::default() };
    let mut network = managed(&topology, spec);
    let mut queue = Queue::new();
    for from in 2..10 {
        for n in 0..40 {
            network.send(&mut queue, packet(from, n % 2, 1));
        }
    }
    drain(&mut queue, &mut network);
    let counters = network.queue_counters(queue.now()).0;
    for host in 0..2 {
        let port = network.port_between(NodeIndex(10), NodeIndex(host)).unwrap();
        let most = counters[port as usize].waiting_bytes_max / 1_500;
        // A third is 33; the port that fills first has a little more until the other one is full.
        assert!((32..=36).contains(&most), "a third each, not {most}");
    }
    assert_conserved(&network);
}

/// DCTCP §3.1: what finds more than K waiting is marked, nothing else; hosts mark nothing, and no
/// packet that cannot carry a mark has one.
#[test]
fn marks_above_the_threshold_only() {
    let topology = Topology::single_rack(9, LINK, 0);
    let spec = QueueSpec {
        shared_bytes_max: Some(10_000_000),
        marking: Some(Marking::at(30_000)),
        ..QueueSpec::default()
    };
    for ecn in [Ecn::Capable, Ecn::Not] {
        let mut network = managed(&topology, spec);
        let mut queue = Queue::new();
        for from in 1..9 {
            for _ in 0..10 {
                network.send(&mut queue, Packet { ecn, ..packet(from, 0, 1) });
            }
        }
        let delivered = drain(&mut queue, &mut network);
        assert_eq!(delivered.len(), 80);
        let marked = delivered.iter().filter(|(_, p)| p.ecn == Ecn::Marked).count();
        // 8 come in the time that 1 leaves: 7 n wait after n rounds, the first 21 find room.
        let expected = if ecn == Ecn::Capable { 51..=60 } else { 0..=0 };
        assert!(expected.contains(&marked), "{marked} marked");
        assert!(delivered.iter().take(20).all(|(_, p)| p.ecn != Ecn::Marked));
    }
}

/// Between the two thresholds the share of marks grows linearly.
#[test]
fn marks_by_probability_between_two_thresholds() {
    let topology = Topology::single_rack(9, LINK, 0);
    let marking = Marking { min_bytes: 0, max_bytes: 1_200_000, share: SHARES };
    let spec = QueueSpec {
        shared_bytes_max: Some(10_000_000),
        marking: Some(marking),
        ..QueueSpec::default()
    };
    let mut network = managed(&topology, spec);
    let mut queue = Queue::new();
    incast(&mut queue, &mut network, 9, 100);
    let delivered = drain(&mut queue, &mut network);
    let marked = delivered.iter().filter(|(_, p)| p.ecn == Ecn::Marked).count();
    // The queue grows from 0 to 700 of 800 packets: 0.44 of the marks in the mean.
    assert!((300..400).contains(&marked), "{marked} of 800 marked");
}

/// HPCC §3.1: what telemetry says is the queue at departure, not at arrival.
#[test]
fn telemetry_shows_the_queue_at_departure() {
    let mut topology = Topology::new(2);
    topology.connect(NodeIndex(0), NodeIndex(1), LINK);
    let mut network = managed(&topology, QueueSpec::default());
    network.set_telemetry(|body, hop| body.push(*hop));
    let mut queue = Queue::new();
    for _ in 0..4 {
        network.send(&mut queue, packet(0, 1, 1));
    }
    let hops: Vec<Hop> =
        drain(&mut queue, &mut network).into_iter().map(|(_, p)| p.body[0]).collect();
    let seen: Vec<_> = hops.iter().map(|h| (h.waiting_bytes, h.sent_bytes, h.at_ps)).collect();
    // The first left at once, when it was alone.
    let expected = [
        (0, 1_500, 0),
        (3_000, 3_000, PACKET_PS),
        (1_500, 4_500, 2 * PACKET_PS),
        (0, 6_000, 3 * PACKET_PS),
    ];
    assert_eq!(seen, expected);
    assert!(hops.iter().all(|h| h.bits_per_s == LINK.bits_per_s && h.port == 0));
}

/// A queue's area over time is the time that its packets wait, all together.
#[test]
fn the_mean_queue_is_the_waits_over_time() {
    let mut topology = Topology::new(2);
    topology.connect(NodeIndex(0), NodeIndex(1), LINK);
    let mut network = managed(&topology, QueueSpec::default());
    network.watch(0, |_| None);
    let mut queue = Queue::new();
    for _ in 0..4 {
        network.send(&mut queue, packet(0, 1, 1));
    }
    drain(&mut queue, &mut network);
    let area = network.queue_counters(queue.now()).0[0].waiting_area;
    assert_eq!(area, u128::from((1 + 2 + 3) * PACKET_PS * 1_500));
    let waits: u64 = network.visits().iter().map(|v| v.left_ps - v.came_ps).sum();
    assert_eq!(waits, 6 * PACKET_PS);
    // Statistics that begin anew forget it.
    network.begin_statistics(queue.now());
    assert_eq!(network.queue_counters(queue.now().after(US)).0[0].waiting_area, 0);
}

/// No pause is ever sent; a run that would have paused says so.
#[test]
fn a_run_that_would_have_paused_says_so() {
    let topology = Topology::single_rack(9, LINK, 0);
    let pauses = |each| {
        let spec = QueueSpec {
            shared_bytes_max: Some(300_000),
            pause_share: SHARES / 8,
            ..QueueSpec::default()
        };
        let mut network = managed(&topology, spec);
        let mut queue = Queue::new();
        incast(&mut queue, &mut network, 9, each);
        drain(&mut queue, &mut network);
        assert_conserved(&network);
        let counters = network.queue_counters(queue.now()).0;
        counters.iter().filter(|c| c.would_pause > 0).count()
    };
    assert_eq!(pauses(2), 0);
    assert_eq!(pauses(40), 8, "each of the eight inputs");
}

/// A program that routes by itself: the packet goes where the port leads.
#[test]
fn a_switch_sends_by_a_given_port() {
    let mut topology = Topology::new(2);
    let switches: Vec<_> = (0..4).map(|_| topology.add_switch(0)).collect();
    topology.connect(NodeIndex(0), switches[0], LINK);
    topology.connect(NodeIndex(1), switches[3], LINK);
    for middle in [1, 2] {
        topology.connect(switches[0], switches[middle], LINK);
        topology.connect(switches[middle], switches[3], LINK);
    }
    let mut network = managed(&topology, QueueSpec::default());
    network.set_programmed(switches[0]);
    let mut queue = Queue::new();
    for _ in 0..20 {
        network.send(&mut queue, packet(0, 1, 1));
    }
    let port = network.port_between(switches[0], switches[2]).unwrap();
    assert_eq!(network.port_ends(port), (switches[0], switches[2]));
    assert_eq!(network.ports_towards(switches[0], HostIndex(1)).len(), 2);
    let mut delivered = 0;
    while let Some((_, event)) = queue.next() {
        if let Some(d) = network.handle(&mut queue, event) {
            if d.node == switches[0] {
                network.send_by_port(&mut queue, port, d.packet);
            } else {
                delivered += 1;
            }
        }
    }
    assert_eq!(delivered, 20);
    let sent = network.ports().nth(port as usize).unwrap().packets;
    assert_eq!(sent, 20, "all by the port that was given");
}

/// What waits for a link that fails is lost, and what is on it; then packets are lost until the
/// routes change, and come again when it is mended.
#[test]
fn a_link_fails_and_returns() {
    let mut topology = Topology::new(2);
    let (left, right) = (topology.add_switch(0), topology.add_switch(0));
    topology.connect(NodeIndex(0), left, LINK);
    topology.connect(NodeIndex(1), right, LINK);
    topology.connect(left, right, LINK);
    let middle = topology.add_switch(0);
    topology.connect(left, middle, LINK);
    topology.connect(middle, right, LINK);
    let mut network = managed(&topology, QueueSpec::default());
    let mut queue = Queue::new();
    for _ in 0..10 {
        network.send(&mut queue, packet(0, 1, 1));
    }
    // Until the third packet is on the link between the switches.
    let until = Time(320 * NS + 2 * PACKET_PS + 10 * NS);
    while let Some((_, event)) = queue.next_until(until) {
        assert!(network.handle(&mut queue, event).is_none());
    }
    network.set_link(until, 2, false);
    assert_eq!(drain(&mut queue, &mut network).len(), 0, "the first three were on the link");
    assert_eq!(network.counters().lost_on_link, 10);
    network.send(&mut queue, packet(0, 1, 1));
    assert_eq!(drain(&mut queue, &mut network).len(), 0, "nobody knows yet");
    network.reroute();
    network.send(&mut queue, packet(0, 1, 1));
    assert_eq!(drain(&mut queue, &mut network).len(), 1, "by the longer way");
    // No way is left: lost, and no panic.
    network.set_switch(queue.now(), middle, false);
    network.reroute();
    network.send(&mut queue, packet(0, 1, 1));
    assert_eq!(drain(&mut queue, &mut network).len(), 0);
    network.set_link(queue.now(), 2, true);
    network.reroute();
    network.send(&mut queue, packet(0, 1, 1));
    assert_eq!(drain(&mut queue, &mut network).len(), 1);
    assert_conserved(&network);
}

/// Packets before a failure, during and after it: each is delivered, dropped or lost, whatever
/// fails when.
#[test]
fn failures_at_random_lose_no_count_of_a_packet() {
    let topology = Topology::fat_tree(4, LINK, 450 * NS);
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let spec = QueueSpec {
            shared_bytes_max: Some(60_000),
            share: SHARES,
            pause_share: SHARES / 8,
            ..QueueSpec::default()
        };
        let mut network = managed(&topology, spec);
        let (mut queue, mut until) = (Queue::new(), Time(0));
        let links = topology.links().len() as u64;
        for _ in 0..2_000 {
            let from = rng.below(16) as u32;
            let to = (from + 1 + rng.below(15) as u32) % 16;
            network.send(&mut queue, packet(from, to, rng.below(8) as u8));
            match rng.below(40) {
                0 => network.set_link(until, rng.below(links) as u32, rng.chance(1, 2)),
                1 => {
                    let switch = NodeIndex(16 + rng.below(20) as u32);
                    network.set_switch(until, switch, rng.chance(1, 2));
                }
                2 => network.reroute(),
                _ => {}
            }
            until = until.after(10 * NS);
            while let Some((_, event)) = queue.next_until(until) {
                network.handle(&mut queue, event);
            }
        }
        drain(&mut queue, &mut network);
        assert_conserved(&network);
        let c = network.counters();
        assert!(c.lost_on_link > 0 && c.delivered > 0, "{c:?}");
    }
}

/// Al-Fares et al. 2008: k^3/4 hosts, 5k^2/4 switches, (k/2)^2 ways between pods.
#[test]
fn a_fat_tree_has_its_switches_and_ways() {
    let topology = Topology::fat_tree(8, LINK, 0);
    assert_eq!((topology.hosts(), topology.switches()), (128, 80));
    assert_eq!(topology.links().len(), 3 * 128);
    let network: Network<Body> = Network::new(&topology, Routing::Ecmp, 1).unwrap();
    let edge = NodeIndex(128);
    assert_eq!(network.ports_towards(edge, HostIndex(0)).len(), 1, "its own host");
    assert_eq!(network.ports_towards(edge, HostIndex(4)).len(), 4, "in its pod");
    assert_eq!(network.ports_towards(edge, HostIndex(127)).len(), 4, "in another pod");
    let aggregation = NodeIndex(128 + 32);
    assert_eq!(network.ports_towards(aggregation, HostIndex(127)).len(), 4);
    assert_eq!(network.ports_towards(aggregation, HostIndex(4)).len(), 1);
}
