//! The network against queueing theory. Seeds are fixed; tolerances come from the standard error,
//! by batch means, since the waits of one queue are not independent.
#![allow(clippy::unwrap_used)]

use concord_core::Rng;
use concord_sim::engine::{EventQueue, NS, SEC, Time, US};
use concord_sim::net::{
    Ecn, HostIndex, HostSpec, KINDS, LinkSpec, NetEvent, Network, NodeIndex, Packet, Routing,
    Topology,
};

const BITS_PER_S: u64 = 100_000_000_000;
const PROPAGATION_PS: u64 = 200 * NS;
const BATCHES: usize = 50;

/// Packets of a class: fixed size, Poisson arrivals.
#[derive(Clone, Copy)]
struct Source {
    class: u8,
    bytes: u32,
    load: f64,
}

impl Source {
    fn service_ps(self) -> f64 {
        f64::from(self.bytes) * 8.0 * SEC as f64 / BITS_PER_S as f64
    }

    /// Arrivals per ps.
    fn rate(self) -> f64 {
        self.load / self.service_ps()
    }
}

enum Event {
    Net(NetEvent<u64>),
    Send(usize),
}

impl From<NetEvent<u64>> for Event {
    fn from(event: NetEvent<u64>) -> Event {
        Event::Net(event)
    }
}

fn link() -> LinkSpec {
    LinkSpec { bits_per_s: BITS_PER_S, propagation_ps: PROPAGATION_PS, queue_bytes_max: u64::MAX }
}

/// Two hosts, back to back; the body of a packet is when it was sent.
fn pair() -> Network<u64> {
    let mut topology = Topology::new(2);
    topology.connect(NodeIndex(0), NodeIndex(1), link());
    Network::new(&topology, Routing::Ecmp, 1).unwrap()
}

/// Time of each delivered packet from `send` to delivery, by source.
fn run(network: &mut Network<u64>, sources: &[Source], packets: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut rng = Rng::new(seed);
    let mut queue = EventQueue::new();
    let mut gap = |source: Source| (-(1.0 - rng.unit()).ln() / source.rate()).round() as u64;
    for (index, &source) in sources.iter().enumerate() {
        queue.schedule(Time(gap(source)), Event::Send(index));
    }
    let mut times: Vec<Vec<f64>> = sources.iter().map(|_| Vec::new()).collect();
    while times.iter().any(|t| t.len() < packets) {
        let (now, event) = queue.next().unwrap();
        match event {
            Event::Send(index) => {
                let Source { class, bytes, .. } = sources[index];
                let packet = Packet {
                    to: HostIndex(1),
                    from: HostIndex(0),
                    size_bytes: bytes,
                    flow_label: index as u32,
                    class,
                    kind: 0,
                    ecn: Ecn::Not,
                    path: 0,
                    body: now.0,
                };
                network.send(&mut queue, packet);
                queue.schedule(now.after(gap(sources[index])), Event::Send(index));
            }
            Event::Net(event) => {
                if let Some(delivery) = network.handle(&mut queue, event) {
                    let Packet { flow_label, body, .. } = delivery.packet;
                    times[flow_label as usize].push((now.0 - body) as f64);
                }
            }
        }
    }
    times
}

/// Mean, and its standard error.
fn batch_means(values: &[f64]) -> (f64, f64) {
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let size = values.len() / BATCHES;
    // The first batch is thrown away: the queue was empty.
    let means: Vec<f64> = values.chunks_exact(size).skip(1).map(mean).collect();
    let all = mean(&means);
    let variance =
        means.iter().map(|m| (m - all).powi(2)).sum::<f64>() / (means.len() as f64 - 1.0);
    (all, (variance / means.len() as f64).sqrt())
}

/// The mean of `values` is `theory`, as far as this many values can tell.
fn assert_mean(values: &[f64], theory: f64, what: &str) {
    let (mean, error) = batch_means(values);
    println!("{what}: {mean:.0} ps, theory {theory:.0} ps, standard error {error:.0} ps");
    assert!(error < 0.02 * theory, "{what}: too few packets, standard error {error}");
    assert!((mean - theory).abs() < 3.0 * error, "{what}: {mean} instead of {theory}");
}

#[test]
fn mean_waiting_time_is_that_of_m_d_1() {
    for load in [0.3, 0.6, 0.8] {
        let source = Source { class: 0, bytes: 1_500, load };
        let times = run(&mut pair(), &[source], 400_000, 1);
        let service = source.service_ps();
        let waits: Vec<f64> =
            times[0].iter().map(|t| t - service - PROPAGATION_PS as f64).collect();
        // Pollaczek and Khinchine, for a constant service time.
        let theory = load * service / (2.0 * (1.0 - load));
        assert_mean(&waits, theory, &format!("M/D/1, load {load}"));
    }
}

#[test]
fn a_core_is_an_m_d_1_server_too() {
    let source = Source { class: 0, bytes: 125, load: 0.01 };
    let mut network = pair();
    // 10 ns of 1 in 100 on the wire; 700 ns at the core: a load of 0.7.
    let spec = HostSpec { service_ps: [700 * NS; KINDS], ..HostSpec::default() };
    network.set_host(HostIndex(1), spec);
    let times = run(&mut network, &[source], 400_000, 2);
    let fixed = source.service_ps() + (PROPAGATION_PS + 700 * NS) as f64;
    let waits: Vec<f64> = times[0].iter().map(|t| t - fixed).collect();
    let theory = 0.7 * 700e3 / (2.0 * (1.0 - 0.7));
    // Packets of a link are 10 ns apart at least, and wait for 0.05 ns in the mean.
    assert_mean(&waits, theory, "M/D/1 at a core");
}

/// Cobham (1954): the mean waits of an M/G/1 queue with non-preemptive priorities.
fn cobham(sources: &[Source]) -> Vec<f64> {
    let residual: f64 =
        sources.iter().map(|s| s.rate() * s.service_ps().powi(2)).sum::<f64>() / 2.0;
    let mut above = 0.0;
    let wait = |source: &Source| {
        let before = 1.0 - above;
        above += source.load;
        residual / (before * (1.0 - above))
    };
    sources.iter().map(wait).collect()
}

fn assert_priorities(sources: &[Source], seed: u64) {
    let times = run(&mut pair(), sources, 300_000, seed);
    for ((source, theory), times) in sources.iter().zip(cobham(sources)).zip(times) {
        let fixed = source.service_ps() + PROPAGATION_PS as f64;
        let waits: Vec<f64> = times.iter().map(|t| t - fixed).collect();
        assert_mean(&waits, theory, &format!("class {}, {} in use", source.class, sources.len()));
    }
}

#[test]
fn two_classes_wait_as_non_preemptive_priorities_do() {
    let high = Source { class: 0, bytes: 500, load: 0.3 };
    let low = Source { class: 1, bytes: 1_500, load: 0.5 };
    assert_priorities(&[high, low], 3);
}

#[test]
fn classes_below_the_first_do_too() {
    let high = Source { class: 2, bytes: 1_500, load: 0.4 };
    let low = Source { class: 6, bytes: 500, load: 0.3 };
    assert_priorities(&[high, low], 4);
}

#[test]
fn three_classes_do_too() {
    let sources =
        [(0, 200), (3, 1_500), (7, 700)].map(|(class, bytes)| Source { class, bytes, load: 0.25 });
    assert_priorities(&sources, 5);
}

#[test]
fn a_host_saturates_at_its_cores_over_its_service_time() {
    for cores in [1, 4] {
        let mut network = pair();
        let spec = HostSpec { cores, service_ps: [US; KINDS], queue_packets_max: 100 };
        network.set_host(HostIndex(1), spec);
        let mut queue: EventQueue<NetEvent<u64>> = EventQueue::new();
        // 1,000 packets of 10 ns each in the first 10 us, many more than it can serve.
        for _ in 0..1_000 {
            let packet = Packet {
                to: HostIndex(1),
                from: HostIndex(0),
                size_bytes: 125,
                ..Packet::default()
            };
            network.send(&mut queue, packet);
        }
        let mut ends = Vec::new();
        while let Some((now, event)) = queue.next() {
            if network.handle(&mut queue, event).is_some() {
                ends.push(now.0);
            }
        }
        // Each core is done with a packet every us, without a pause.
        let first = 10 * NS + PROPAGATION_PS + US;
        for (index, end) in ends.iter().enumerate() {
            let (turn, core) = (index as u64 / u64::from(cores), index as u64 % u64::from(cores));
            assert_eq!(*end, first + turn * US + core * 10 * NS);
        }
        let counters = network.counters();
        // In 10 us its cores have begun with about ten packets each; 100 wait; the rest is lost.
        assert_eq!(counters.delivered, ends.len() as u64);
        assert_eq!(counters.delivered, 100 + 10 * u64::from(cores));
        assert_eq!(counters.dropped_host, 1_000 - counters.delivered);
    }
}
