use super::*;
use crate::engine::Time;
use crate::net::slowdown::Slowdowns;

const LEAF_SPINE: &str = "\
[topology]
kind = \"leaf-spine\"
tors = 2
hosts_per_tor = 4
spines = 2
host_gbps = 10
oversubscription = 2
propagation_ns = 200

[buffers]
shared_bytes = 1000000
ecn_bytes = 30000

[workload]
kind = \"poisson\"
sizes = \"websearch\"
duration_us = 3000
warm_up_us = 500

[transport.dctcp]
gain_shift = 4

[run]
loads = [0.3]
";

fn no_files(name: &str) -> Result<String, String> {
    Err(format!("cannot read {name}"))
}

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, &no_files)
}

fn point(transport: TransportKind, load: impl Into<Option<f64>>) -> Point {
    Point { transport, load: load.into(), seed: 1 }
}

fn pattern(workload: &str) -> Scenario {
    let (head, _) = LEAF_SPINE.split_once("[workload]").unwrap();
    parse(&format!("{head}[workload]\n{workload}")).unwrap()
}

/// Oversubscription 2:1: the two spine links of a ToR switch carry half of the rate of its hosts.
#[test]
fn a_scenario_has_the_links_that_its_file_says() {
    let scenario = parse(LEAF_SPINE).unwrap();
    let experiment =
        scenario.experiment(&point(TransportKind::Dctcp, 0.5), &Options::default()).unwrap();
    let spine = experiment.topology.links().iter().find(|(a, _, _)| a.0 >= 8).unwrap();
    assert_eq!(spine.2.bits_per_s, 10_000_000_000);
    assert_eq!(experiment.warm_up, Time(500 * US));
    assert_eq!((scenario.links_between_max(), scenario.host_bits_per_s()), (4, 10_000_000_000));
}

/// Each transport ends every flow at a low load, and none in less than its ideal time.
#[test]
fn points_of_each_transport_end_their_flows() {
    // Messages of 30 MB hold a slot of 1.25 Gb/s for long: requests have to wait.
    let patient = "[transport.harmony]\nadmission_us = 1000000\n\n[run]";
    let scenario = parse(&LEAF_SPINE.replace("[run]", patient)).unwrap();
    for transport in TransportKind::ALL {
        let point = point(transport, 0.2);
        let (experiment, outcome) = scenario.run(&point, &Options::default()).unwrap();
        let s = Slowdowns::of(&experiment, &outcome, 0..=u64::MAX);
        assert!(s.flows > 0 && s.unfinished == 0, "{transport:?}: {s:?}");
        assert!(s.min > 0.999 && s.min <= s.p50 && s.p50 <= s.p99 && s.p99 <= s.p999, "{s:?}");
        for (planned, flow) in experiment.flows.iter().zip(&outcome.flows) {
            assert_eq!(flow.received_bytes, planned.spec.bytes, "{transport:?}");
        }
        let offered: u64 = experiment.flows.iter().map(|flow| flow.spec.bytes).sum();
        assert!(outcome.arrived_bytes > 0 && outcome.arrived_bytes <= offered, "{transport:?}");
    }
}

/// A flow without an end is counted, never omitted, and its received bytes are known.
#[test]
fn unfinished_flows_are_counted() {
    let text = LEAF_SPINE.replace("warm_up_us = 500", "drain_us = 0");
    let scenario = parse(&text).unwrap();
    let point = point(TransportKind::Dctcp, 0.9);
    let (experiment, outcome) = scenario.run(&point, &Options::default()).unwrap();
    let s = Slowdowns::of(&experiment, &outcome, 0..=u64::MAX);
    assert_eq!((s.flows, s.unfinished), (experiment.flows.len(), outcome.unfinished()));
    assert!(s.unfinished > 0);
    let partly = outcome.flows.iter().filter(|f| f.ended.is_none() && f.received_bytes > 0);
    assert!(partly.count() > 0);
}

/// Statistics of ports end with the arrivals: a long drain does not dilute them.
#[test]
fn ports_are_measured_while_flows_arrive() {
    let scenario = parse(LEAF_SPINE).unwrap();
    let point = point(TransportKind::Dctcp, 0.6);
    let (_, whole) = scenario.run(&point, &Options::default()).unwrap();
    let cut_off = Options { is_cut_off: true, ..Options::default() };
    let (_, cut) = scenario.run(&point, &cut_off).unwrap();
    assert!(whole.ended > cut.ended);
    assert_eq!((whole.ports, whole.arrived_bytes), (cut.ports, cut.arrived_bytes));
}

/// Every invalid key or value gives one line that says what is wrong, where, and what to do.
#[test]
fn bad_scenarios_are_one_clear_line() {
    for (from, to, says) in [
        ("tors = 2", "tor = 2", "line 1: [topology] tors is missing"),
        (
            "spines = 2",
            "spines = 2\nspine_gpbs = 4",
            "line 6: [topology] spine_gpbs: unknown key; did you mean `spine_gbps`?",
        ),
        ("[buffers]", "[bufers]", "line 10: bufers: unknown section; did you mean `buffers`?"),
        (
            "gain_shift",
            "gian_shift",
            "line 21: [transport.dctcp] gian_shift: unknown key; did you mean `gain_shift`?",
        ),
        ("[transport.dctcp]", "[transport.dtcp]", "unknown section; did you mean `dctcp`?"),
        ("tors = 2", "tors = 0", "[topology] tors = 0: a whole number from 1 to 16384"),
        ("tors = 2", "tors = 4000000000", "from 1 to 16384"),
        ("tors = 2", "tors = 16000", "64000 hosts: at least 2, at most 16384"),
        (
            "tors = 2\nhosts_per_tor = 4\nspines = 2",
            "tors = 4096\nhosts_per_tor = 4\nspines = 4096",
            "16793600 links: at most 262144",
        ),
        ("host_gbps = 10", "host_gbps = -1", "host_gbps = -1: a number from"),
        ("host_gbps = 10", "host_gbps = nan", "host_gbps = nan: a number from"),
        ("oversubscription = 2", "oversubscription = 0", "oversubscription = 0"),
        (
            "\"websearch\"",
            "\"webserch\"",
            "line 16: [workload] sizes = \"webserch\": did you mean `websearch`?",
        ),
        ("\"websearch\"", "[[10, 0.5]]", "its share is not 1"),
        ("\"websearch\"", "0", "sizes = 0: a whole number from 1"),
        ("\"leaf-spine\"", "\"ring\"", "there are leaf-spine, fat-tree"),
        ("warm_up_us = 500", "warm_up_us = 3000", "it has to end before duration_us"),
        ("ecn_bytes = 30000", "ecn_bytes = 1000000", "nothing would ever be marked"),
        ("loads = [0.3]", "loads = [1.3]", "at most 1"),
        ("loads = [0.3]", "transports = [\"dctpc\"]", "no transport dctpc: did you mean `dctcp`?"),
        ("[topology]", "[topology", "line 1"),
    ] {
        let why = parse(&LEAF_SPINE.replace(from, to)).map(|_| to).unwrap_err().to_string();
        assert!(why.contains(says) && !why.contains('\n'), "{to}: {why}");
    }
    let scenario = parse(LEAF_SPINE).unwrap();
    let why = |p| scenario.check(&p).unwrap_err().to_string();
    assert!(why(point(TransportKind::Dctcp, 1.5)).contains("a load of 1.5"));
    assert!(why(point(TransportKind::Dctcp, None)).contains("need a load"));
    let unmarked = parse(&LEAF_SPINE.replace("ecn_bytes = 30000", "")).unwrap();
    let why = unmarked.check(&point(TransportKind::Dctcp, 0.5)).unwrap_err().to_string();
    assert!(why.contains("give ecn_bytes"), "{why}");
    let long = pattern(
        "kind = \"incast\"\nsenders = 1\nbytes = 1000000000000\n\
         [transport.newreno]\npayload_bytes = 64\n",
    );
    let why = long.experiment(&point(TransportKind::NewReno, None), &Options::default());
    let why = why.map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("a flow of 15625000000 packets of 64 bytes"), "{why}");
    let spray = LEAF_SPINE.replace("tors = 2", "tors = 2\nrouting = \"spray\"");
    let why = parse(&spray).unwrap().check(&point(TransportKind::NewReno, 0.5)).unwrap_err();
    assert!(why.to_string().contains("use ecmp"), "{why}");
}

/// Errors of graphs: an unreachable host, unknown names in links and flows, hosts with two links.
#[test]
fn bad_graphs_are_one_clear_line() {
    let text = |links: &str, flow: &str| {
        format!(
            "[topology]\nkind = \"links\"\nhosts = [\"web\", \"db\"]\nswitches = 2\n\
             links = [{links}]\n[workload]\nkind = \"flows\"\nflows = [{flow}]\n"
        )
    };
    let (whole, flow) = (
        "[\"web\", \"s0\", 10, 100], [\"db\", \"s1\", 10, 100], [\"s0\", \"s1\", 10, 100]",
        "[\"web\", \"db\", 5000, 1]",
    );
    let scenario = parse(&text(whole, flow)).unwrap();
    let (_, outcome) =
        scenario.run(&point(TransportKind::NewReno, None), &Options::default()).unwrap();
    assert_eq!(outcome.unfinished(), 0);
    for (links, flow, says) in [
        (
            "[\"web\", \"s0\", 10, 100], [\"db\", \"s1\", 10, 100]",
            flow,
            "not connected: no path from web to db",
        ),
        (
            "[\"web\", \"s0\", 10, 100], [\"dd\", \"s0\", 10, 100]",
            flow,
            "link 2: unknown host or switch \"dd\"; did you mean `db`?",
        ),
        ("[\"web\", \"s0\", 10, 100]", flow, "host db has 0 links"),
        ("[\"web\", \"s0\", 0, 100]", flow, "link 1: 0 Gb/s: from 0.001 to 100000"),
        ("[\"s0\", \"s0\", 1, 100]", flow, "link 1: both ends are the same node"),
        (whole, "[\"web\", \"bd\", 5000, 1]", "flow 1: unknown host \"bd\": did you mean `db`?"),
        (whole, "[\"web\", \"web\", 5000, 1]", "two hosts"),
    ] {
        let why = parse(&text(links, flow)).map(|_| ()).unwrap_err().to_string();
        assert!(why.contains(says) && !why.contains('\n'), "{why}");
    }
}

/// Every pattern runs on every topology.
#[test]
fn patterns_run_on_every_topology() {
    for workload in [
        "kind = \"incast\"\nsenders = 7\nbytes = 64000\n",
        "kind = \"permutation\"\nbytes = 100000\n",
        "kind = \"all-to-all\"\nbytes = 5000\n",
        "kind = \"ring-all-reduce\"\nbytes = 80000\n",
    ] {
        let scenario = pattern(workload);
        let point = point(TransportKind::Dctcp, None);
        let (_, outcome) = scenario.run(&point, &Options::default()).unwrap();
        assert_eq!(outcome.unfinished(), 0, "{workload}");
    }
    let rest =
        "host_gbps = 10\npropagation_ns = 100\n[workload]\nkind = \"permutation\"\nbytes = 9000\n";
    for (head, hosts) in [
        ("kind = \"fat-tree\"\nk = 4\n", 16),
        ("kind = \"dumbbell\"\npairs = 3\nbetween_gbps = 10\n", 6),
    ] {
        let scenario = parse(&format!("[topology]\n{head}{rest}")).unwrap();
        let point = point(TransportKind::NewReno, None);
        let (experiment, outcome) = scenario.run(&point, &Options::default()).unwrap();
        assert_eq!((experiment.flows.len(), outcome.unfinished()), (hosts, 0));
    }
}

/// For any text the reader returns a scenario or a one-line error, and never panics.
#[test]
fn any_text_is_a_scenario_or_one_line() {
    let inputs = std::env::var("CONCORD_NET_INPUTS").ok().and_then(|text| text.parse().ok());
    let mut rng = Rng::new(7);
    for _ in 0..inputs.unwrap_or(4_000u64) {
        let mut bytes = LEAF_SPINE.as_bytes().to_vec();
        for _ in 0..rng.between(1, 6) {
            if bytes.len() < 2 {
                break;
            }
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] = b"0123456789.-[]=\"\nxe"[rng.below(19) as usize],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"0123456789.-[]=\"\nxe"[rng.below(19) as usize]),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Err(why) = parse(&text) {
            assert!(!why.to_string().contains('\n'), "{why}");
        }
    }
}
