//! NewReno and DCTCP against what theory says of them, on a dumbbell.
#![allow(clippy::unwrap_used)]

use concord_sim::engine::{MS, NS, SEC, Time, US};
use concord_sim::net::{
    After, Dcpim, DcpimConfig, Dctcp, Experiment, Fastpass, FastpassConfig, FlowSpec, HostIndex,
    Hpcc, HpccConfig, LeafSpine, LinkSpec, Marking, NewReno, NodeIndex, Outcome, PlannedFlow,
    PortReport, QueueSpec, Routing, Slowdowns, Tcp, TcpConfig, Topology, Transport, Windowed,
    WindowedConfig, workload,
};

/// Bandwidth between the switches; hosts have ten times as much.
const BITS_PER_S: u64 = 1_000_000_000;
const FRAME_BYTES: u64 = 1_538;

fn link(bits_per_s: u64, propagation_ps: u64, queue_bytes_max: u64) -> LinkSpec {
    LinkSpec { bits_per_s, propagation_ps, queue_bytes_max }
}

/// `pairs` endless flows over one link with that propagation delay and buffer.
fn dumbbell(
    pairs: u32,
    propagation_ps: u64,
    buffer_bytes: u64,
    marking: Option<u64>,
) -> Experiment {
    let host = link(10 * BITS_PER_S, US, u64::MAX);
    let between = link(BITS_PER_S, propagation_ps, buffer_bytes);
    let flow = |pair: u32| PlannedFlow {
        spec: FlowSpec { from: HostIndex(pair), to: HostIndex(pairs + pair), bytes: 1 << 40 },
        at: Time(u64::from(pair) * 100 * US),
        after: None,
    };
    Experiment {
        topology: Topology::dumbbell(pairs, host, between, 0),
        routing: Routing::Ecmp,
        queues: QueueSpec { marking: marking.map(Marking::at), ..QueueSpec::default() },
        flows: (0..pairs).map(flow).collect(),
        triggers: Vec::new(),
        warm_up: Time(2 * SEC),
        measure_until: Time(8 * SEC),
        until: Time(8 * SEC),
        watch: None,
        capture: Vec::new(),
        seed: 1,
    }
}

fn bottleneck(outcome: &Outcome) -> PortReport {
    *outcome.ports.iter().find(|p| p.bits_per_s == BITS_PER_S && p.from < p.to).unwrap()
}

fn within(measured: f64, expected: f64, share: f64) -> bool {
    (measured / expected - 1.0).abs() <= share
}

/// A window that swings between W/2 and W, with W what path and buffer hold: the mean over time is
/// 7/9 W, since a round trip is as long as the window is.
#[test]
fn newreno_queue_follows_its_sawtooth() {
    // A round trip of 2 ms without queues; the buffer is as large.
    let bdp = BITS_PER_S as f64 * 0.002 / 8.0;
    let mut tcp = Tcp::new(TcpConfig::default(), NewReno);
    let outcome = dumbbell(1, MS, bdp as u64, None).run(&mut tcp).unwrap();
    let port = bottleneck(&outcome);
    let expected = 7.0 / 9.0 * 2.0 * bdp - bdp;
    let mean = port.waiting_bytes_mean();
    assert!(within(mean, expected, 0.05), "mean queue {mean:.0}, expected {expected:.0}");
    assert!(port.use_share() > 0.995, "use {}", port.use_share());
    let timeouts = outcome.transport.iter().find(|(name, _)| *name == "timeouts").unwrap().1;
    assert_eq!(timeouts, 0, "each loss is repaired by a fast recovery");
}

/// With no buffer to speak of the window swings between W/2 and W below the path's capacity: three
/// quarters of the link are used.
#[test]
fn newreno_without_buffer_uses_three_quarters() {
    let mut tcp = Tcp::new(TcpConfig::default(), NewReno);
    let outcome = dumbbell(1, MS, 3 * FRAME_BYTES, None).run(&mut tcp).unwrap();
    let share = bottleneck(&outcome).use_share();
    assert!(within(share, 0.75, 0.05), "{share} of the link");
}

/// DCTCP §3.3: the queue's maximum is K + N packets, its amplitude is half the root of
/// 2 N (C RTT + K), in packets; the link stays full.
#[test]
fn dctcp_queue_stays_about_its_threshold() {
    for (pairs, k) in [(2u32, 20u64), (2, 65), (10, 65)] {
        let mut tcp = Tcp::new(TcpConfig::default(), Dctcp::default());
        let marking = Some(k * FRAME_BYTES);
        let outcome = dumbbell(pairs, 50 * US, 4_000_000, marking).run(&mut tcp).unwrap();
        let port = bottleneck(&outcome);
        let most = port.queue.waiting_bytes_max as f64 / FRAME_BYTES as f64;
        let mean = port.waiting_bytes_mean() / FRAME_BYTES as f64;
        let path = BITS_PER_S as f64 * 108e-6 / 8.0 / FRAME_BYTES as f64;
        let amplitude = 0.5 * (2.0 * f64::from(pairs) * (path + k as f64)).sqrt();
        let top = (k + u64::from(pairs)) as f64;
        assert!(port.use_share() > 0.995, "N={pairs} K={k}: use {}", port.use_share());
        assert!(most <= top + f64::from(pairs) + 2.0, "N={pairs} K={k}: most {most:.1}");
        let low = top - amplitude - f64::from(pairs) - 2.0;
        assert!((low..=top).contains(&mean), "N={pairs} K={k}: mean {mean:.1} not {low:.1}..{top}");
        assert_eq!(port.queue.dropped, 0);
    }
}

/// Flows of equal paths get equal shares.
#[test]
fn dctcp_flows_share_the_link() {
    let mut tcp = Tcp::new(TcpConfig::default(), Dctcp::default());
    let mut experiment = dumbbell(4, 50 * US, 4_000_000, Some(65 * FRAME_BYTES));
    for flow in &mut experiment.flows {
        flow.spec.bytes = 100_000_000;
    }
    let outcome = experiment.run(&mut tcp).unwrap();
    let times: Vec<_> = outcome.flows.iter().map(|f| f.completion_ps().unwrap()).collect();
    let (least, most) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
    assert!(least * 100 >= most * 90, "{times:?}");
}

/// A flow alone on an idle network takes its ideal time, to the picosecond, if its window is no
/// limit and its last packet is full; over links of different speeds too. With a short last packet
/// the ideal time is a lower bound.
#[test]
fn a_lone_flow_takes_its_ideal_time() {
    let config = TcpConfig { first_window: 1 << 20, ..TcpConfig::default() };
    for bytes in [1, 1_460, 146_000, 1_460_000, 1_461, 1_000_001] {
        let mut experiment = dumbbell(2, 50 * US, 1 << 40, None);
        experiment.flows.truncate(1);
        experiment.flows[0].spec.bytes = bytes;
        let outcome = experiment.run(&mut Tcp::new(config, NewReno)).unwrap();
        let flow = outcome.flows[0];
        // Integer times of a byte are rounded down once for each packet and link.
        let taken = flow.completion_ps().unwrap();
        let slack = 3 * (bytes / 1_460 + 2);
        assert!(taken + slack >= flow.ideal_ps, "{bytes} bytes: {taken} {flow:?}");
        // A short last packet waits for the full one before it: at most its time on all links.
        let is_full = bytes == 1 || bytes % 1_460 == 0;
        let wait = if is_full { 0 } else { 15 * US };
        assert!(taken <= flow.ideal_ps + wait + slack, "{bytes} bytes: {taken} {flow:?}");
    }
}

/// Losses of every kind are repaired: buffers of two packets, many flows, each ends; the receiver
/// counts each byte once.
#[test]
fn every_flow_ends_through_heavy_loss() {
    for seed in 0..10 {
        let mut experiment = dumbbell(16, 10 * US, 2 * FRAME_BYTES, None);
        experiment.seed = seed;
        experiment.warm_up = Time(0);
        experiment.until = Time(60 * SEC);
        for (index, flow) in experiment.flows.iter_mut().enumerate() {
            flow.spec.bytes = 20_000 * (index as u64 + 1) + seed;
            flow.at = Time(seed * index as u64 * US);
        }
        let outcome = experiment.run(&mut Tcp::new(TcpConfig::default(), NewReno)).unwrap();
        assert!(outcome.network.dropped_port > 0);
        assert_eq!(outcome.unfinished(), 0, "{:?}", outcome.transport);
    }
}

/// A run is a function of its seed.
#[test]
fn equal_runs_have_equal_digests() {
    let run = |seed| {
        let topology = Topology::fat_tree(4, link(BITS_PER_S, 200 * NS, 30_000), 450 * NS);
        let mut experiment = dumbbell(8, US, 0, Some(9_000));
        experiment.topology = topology;
        experiment.seed = seed;
        for flow in &mut experiment.flows {
            flow.spec.bytes = 300_000;
        }
        experiment.run(&mut Tcp::new(TcpConfig::default(), Dctcp::default())).unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).digest, run(2).digest, "another seed hashes flows to other ways");
}

/// A flow that waits for another begins when that one has ended.
#[test]
fn a_flow_begins_after_the_one_before_it() {
    let mut experiment = dumbbell(2, US, 1 << 30, None);
    for flow in &mut experiment.flows {
        flow.spec.bytes = 50_000;
    }
    experiment.flows[1].after = Some(After::Flow(0));
    experiment.flows[1].at = Time(3 * US);
    let outcome = experiment.run(&mut Tcp::new(TcpConfig::default(), NewReno)).unwrap();
    let (first, second) = (outcome.flows[0], outcome.flows[1]);
    assert_eq!(second.began.unwrap().0, first.ended.unwrap().0 + 3 * US);
    assert_eq!(outcome.unfinished(), 0);
}

/// HPCC §5.2: the busiest link is used at eta, 95%, with almost nothing queued, whatever maxStage;
/// the first round trip's burst has drained long before. Flows of equal paths get equal shares.
#[test]
fn hpcc_uses_95_percent_with_almost_no_queue() {
    for (pairs, stages_max) in [(1, 5), (2, 0), (2, 5), (8, 0), (8, 5)] {
        let gbps_100 = 100 * BITS_PER_S;
        let mut experiment = dumbbell(pairs, US, 0, None);
        let (host, between) = (link(gbps_100, US, u64::MAX), link(gbps_100, US, 32_000_000));
        experiment.topology = Topology::dumbbell(pairs, host, between, 0);
        (experiment.warm_up, experiment.measure_until) = (Time(4 * MS), Time(8 * MS));
        experiment.until = Time(8 * MS);
        for flow in &mut experiment.flows {
            flow.at = Time(flow.at.0 / 100);
        }
        let round_trip_ps = experiment.topology.round_trip_ps_max(1_090, 102);
        let config = HpccConfig { stages_max, round_trip_ps, ..HpccConfig::default() };
        let mut hpcc = Hpcc::new(config);
        let outcome = experiment.run(&mut hpcc).unwrap();
        let is_bottleneck = |p: &&PortReport| p.from.0 == 2 * pairs && p.to.0 == 2 * pairs + 1;
        let port = outcome.ports.iter().find(is_bottleneck).unwrap();
        let (used, mean) = (port.use_share(), port.waiting_bytes_mean());
        let what = format!("N={pairs} maxStage={stages_max}: {used:.4} used, {mean:.0} B wait");
        println!("{what}, at most {}", port.queue.waiting_bytes_max);
        assert!((0.93..=0.98).contains(&used), "{what}");
        assert!(mean < 5.0 * 1_090.0, "{what}");
        assert_eq!(outcome.network.dropped_port, 0, "{what}");
        let shares: Vec<u64> = outcome.flows.iter().map(|flow| flow.received_bytes).collect();
        let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
        assert!(least * 10 >= most * 8, "{what}: {shares:?}");
    }
}

/// Everything that is lost is sent again, in incasts through buffers of some packets.
#[test]
fn hpcc_repairs_losses() {
    let mut experiment = dumbbell(16, US, 20_000, None);
    experiment.warm_up = Time(0);
    experiment.until = Time(60 * SEC);
    for (index, flow) in experiment.flows.iter_mut().enumerate() {
        (flow.spec.bytes, flow.at) = (50_000 * (index as u64 + 1) + 7, Time(0));
    }
    let round_trip_ps = experiment.topology.round_trip_ps_max(1_090, 102);
    let mut hpcc = Hpcc::new(HpccConfig { round_trip_ps, ..HpccConfig::default() });
    let outcome = experiment.run(&mut hpcc).unwrap();
    assert!(outcome.network.dropped_port > 0);
    assert_eq!(outcome.unfinished(), 0, "{:?}", outcome.transport);
    for (flow, planned) in outcome.flows.iter().zip(&experiment.flows) {
        assert_eq!(flow.received_bytes, planned.spec.bytes);
    }
}

/// The plain window runs behind the same trait.
#[test]
fn windowed_is_a_transport_like_others() {
    let config =
        WindowedConfig { window: 8, data_bytes: 1_500, ack_bytes: 64, timeout_ps: 500 * US };
    let mut windowed = Windowed::new(config);
    let mut experiment = dumbbell(4, US, 4 * FRAME_BYTES, None);
    for flow in &mut experiment.flows {
        flow.spec.bytes = 90_000;
    }
    let outcome = experiment.run(&mut windowed).unwrap();
    assert_eq!((outcome.unfinished(), windowed.unfinished()), (0, 0));
    assert_eq!(windowed.wire_bytes(3_001).all, 4_500);
    assert_eq!(outcome.ports[0].from, NodeIndex(0));
}

/// A leaf-spine of 2 racks of 8 hosts, 100 Gb/s, with links as in dcPIM's simulator.
fn small_leaf_spine() -> Topology {
    let host_link = link(1_000_000_000 * 100, 200 * NS, 500_000);
    let spine_link = link(1_000_000_000 * 400, 200 * NS, 500_000);
    let (tors, hosts_per_tor, spines, pipeline_ps) = (2, 8, 2, 450 * NS);
    Topology::leaf_spine(&LeafSpine {
        tors,
        hosts_per_tor,
        spines,
        host_link,
        spine_link,
        pipeline_ps,
    })
}

fn dcpim_config(topology: &Topology) -> DcpimConfig {
    DcpimConfig {
        control_round_trip_ps: topology.round_trip_ps_max(40, 40),
        window_bytes: topology.round_trip_ps_max(1_500, 40) / 80,
        ..DcpimConfig::default()
    }
}

/// dcPIM carries a load of 0.6 of web search, whose long flows are matched, without a loss; and a
/// short flow's time hardly depends on it.
#[test]
fn dcpim_matches_long_flows() {
    let topology = small_leaf_spine();
    let config = dcpim_config(&topology);
    let mut rng = concord_core::Rng::new(1);
    let sizes = workload::Sizes::imc10();
    let flows =
        workload::poisson(16, 100_000_000_000, &sizes, 0.6, Time(2 * MS), &mut rng).unwrap();
    let mut experiment = dumbbell(2, US, 0, None);
    (experiment.topology, experiment.routing) = (topology, Routing::Spray);
    (experiment.flows, experiment.warm_up) = (flows, Time(MS / 2));
    (experiment.measure_until, experiment.until) = (Time(2 * MS), Time(20 * MS));
    let mut dcpim = Dcpim::new(config, 1);
    let outcome = experiment.run(&mut dcpim).unwrap();
    println!("{:?}", outcome.transport);
    assert_eq!((outcome.unfinished(), outcome.network.dropped_port), (0, 0));
    for (flow, planned) in outcome.flows.iter().zip(&experiment.flows) {
        assert_eq!(flow.received_bytes, planned.spec.bytes);
    }
    let short = Slowdowns::of(&experiment, &outcome, 0..=10_000);
    let long = Slowdowns::of(&experiment, &outcome, 200_000..=u64::MAX);
    println!("short {short:?}\nlong {long:?}");
    assert!(short.p50 < 1.5 && short.p99 < 5.0, "{short:?}");
    assert!(long.p50 < 10.0, "{long:?}");
    // Equal runs are equal.
    let again = experiment.run(&mut Dcpim::new(config, 1)).unwrap();
    assert_eq!(again.digest, outcome.digest);
}

/// What an incast of short flows loses is matched, and arrives once.
#[test]
fn dcpim_repairs_losses() {
    let topology = Topology::single_rack(17, link(10 * BITS_PER_S, US, 20_000), 0);
    let mut config = dcpim_config(&topology);
    config.window_bytes = 60_000;
    let mut rng = concord_core::Rng::new(1);
    let mut experiment = dumbbell(2, US, 0, None);
    experiment.topology = topology;
    experiment.flows = workload::incast(17, 16, 50_000, &mut rng).unwrap();
    (experiment.warm_up, experiment.until) = (Time(0), Time(SEC));
    let outcome = experiment.run(&mut Dcpim::new(config, 1)).unwrap();
    assert!(outcome.network.dropped_port > 0, "{:?}", outcome.network);
    assert_eq!(outcome.unfinished(), 0, "{:?}", outcome.transport);
}

/// Fastpass: no packet waits in a switch, a message begins within the admission time or is
/// rejected, and what is accepted ends then: its ideal time after its first timeslot.
#[test]
fn fastpass_messages_never_wait_in_a_switch() {
    let link = link(100 * BITS_PER_S, 200 * NS, 500_000);
    let (host_link, spine_link, pipeline_ps) = (link, link, 450 * NS);
    let leaf_spine =
        LeafSpine { tors: 2, hosts_per_tor: 8, spines: 8, host_link, spine_link, pipeline_ps };
    for (topology, load) in [
        (Topology::leaf_spine(&leaf_spine), 0.3),
        (Topology::leaf_spine(&leaf_spine), 0.9),
        (Topology::fat_tree(4, link, pipeline_ps), 0.3),
    ] {
        let mut rng = concord_core::Rng::new(1);
        let sizes = workload::Sizes::fixed(90 * 1_460);
        let gbps_100 = 100 * BITS_PER_S;
        let mut experiment = dumbbell(2, US, 0, None);
        experiment.flows =
            workload::poisson(16, gbps_100, &sizes, load, Time(2 * MS), &mut rng).unwrap();
        experiment.topology = topology;
        (experiment.warm_up, experiment.measure_until) = (Time(0), Time(SEC));
        experiment.until = Time(SEC);
        let config = FastpassConfig { admission_ps: 60 * US, ..FastpassConfig::default() };
        let outcome = experiment.run(&mut Fastpass::new(config)).unwrap();
        let rejected = outcome.rejected.unwrap();
        println!("load {load}: {} messages, {:?}", outcome.flows.len(), outcome.transport);
        assert_eq!(outcome.unfinished() as u64, rejected);
        assert_eq!(rejected > 0, load > 0.8, "load {load}: {rejected}");
        for port in outcome.ports.iter().filter(|port| port.from.0 >= 16) {
            assert_eq!(port.queue.waiting_bytes_max, 0, "load {load}: {port:?}");
        }
        for flow in outcome.flows.iter().filter(|flow| flow.ended.is_some()) {
            let most = flow.ideal_ps + config.arbiter_round_trip_ps + config.admission_ps + US;
            assert!(flow.completion_ps().unwrap() <= most, "{flow:?}");
        }
    }
}
