use concord_core::Rng;

use super::{hpcc, htsim};
use crate::engine::{NS, SEC, Time, US};
use crate::net::experiment::{After, TriggerKind};
use crate::net::scenario::{Options, Point, Scenario, TransportKind};
use crate::net::topology::HostIndex;

/// 16 hosts in two pods, three tiers.
const TOPO: &str = "\
# a comment
Nodes 16
Tiers 3
Podsize 8

Tier 0
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 2
Queue_Down 200000
Downlink_Latency_ns 1000
Switch_Latency_ns 450

Tier 1
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 2
Queue_Up 100000
Queue_Down 300000
Downlink_Latency_ns 500
Bundle 1

Tier 2
Downlink_speed_Gbps 200
Radix_Down 2
Downlink_Latency_ns 2000
";

const CM: &str = "\
Nodes 16
Connections 6
Triggers 3
0->9 id 1 start 5000 size 2000 recv_done_trigger 1
1->9 id 2 start 0 size 3000 send_done_trigger 1
9->0 id 3 trigger 1 size 4000 send_done_trigger 2
9->1 id 4 trigger 2 size 100 recv_done_trigger 3
2->3 id 5 trigger 3 size 100 prio 2
2->3 id 6 trigger 3 size 100
trigger id 1 barrier count 2
trigger id 2 oneshot
trigger id 3 multishot
";

/// Switches 0 and 5, hosts 1, 2, 3 and 4.
const HPCC_TOPOLOGY: &str = "\
6 2 5
0 5
1 0 100Gbps 0.001ms 0
2 0 100Gbps 1000ns 0
3 5 100Gbps 1us 0
4 5 25Gbps 1us 0.000000
0 5 400Gbps 0.000002s 0
";

const HPCC_FLOWS: &str = "\
2
1 3 3 100 200000 2.000000
4 2 3 100 1 2.5
";

#[test]
fn topo_is_a_clos_network() {
    let topology = htsim::topology(TOPO, 1_000_000).unwrap();
    // 4 ToR switches, 2 aggregation switches in each of 2 pods, 4 core switches.
    assert_eq!((topology.hosts(), topology.switches()), (16, 4 + 4 + 4));
    let count = |gbps: u64, ns: u64| {
        let links = topology.links().iter().map(|link| link.2);
        let is_it = |l: &crate::net::topology::LinkSpec| {
            (l.bits_per_s, l.propagation_ps) == (gbps * 1_000_000_000, ns * NS)
        };
        links.filter(is_it).count()
    };
    assert_eq!((count(100, 1_000), count(200, 500), count(200, 2_000)), (16, 8, 8));
    assert_eq!(topology.links()[0].2.queue_bytes_max, 200_000);
    assert_eq!(topology.links()[16].2.queue_bytes_max, 300_000);
    assert_eq!(topology.links()[24].2.queue_bytes_max, 100_000);
    assert!(topology.check().is_ok());
    assert_eq!(topology.links_between_max(), 6);
}

#[test]
fn cm_has_flows_and_triggers() {
    let read = htsim::connections(CM, 16).unwrap();
    let first = read.flows[0];
    assert_eq!((first.spec.from, first.spec.to), (HostIndex(0), HostIndex(9)));
    assert_eq!((first.spec.bytes, first.at, first.after), (2_000, Time(5_000), None));
    assert_eq!(read.flows[2].after, Some(After::Trigger(0)));
    let kinds: Vec<_> = read.triggers.iter().map(|trigger| trigger.kind).collect();
    assert_eq!(kinds, [TriggerKind::After(2), TriggerKind::After(1), TriggerKind::Each]);
    assert_eq!(read.triggers[0].causes, [0, 1]);
}

/// A barrier waits for both flows; a trigger of one shot follows; a trigger of several shots begins
/// one flow for each activation, so the last flow never begins, and is reported as such.
#[test]
fn triggers_begin_flows_in_their_order() {
    let files = |name: &str| Ok(if name == "a.topo" { TOPO } else { CM }.to_string());
    let text = "[topology]\nkind = \"htsim\"\nfile = \"a.topo\"\n\
                [workload]\nkind = \"htsim\"\nfile = \"a.cm\"\n";
    let scenario = Scenario::parse(text, &files).unwrap();
    for transport in [TransportKind::NewReno, TransportKind::Windowed] {
        let point = Point { transport, load: None, seed: 1 };
        let (_, outcome) = scenario.run(&point, &Options::default()).unwrap();
        let began: Vec<_> = outcome.flows.iter().map(|flow| flow.began).collect();
        let ended: Vec<_> = outcome.flows.iter().map(|flow| flow.ended).collect();
        assert_eq!((began[0], began[1]), (Some(Time(5_000)), Some(Time(0))));
        assert_eq!(began[2], ended[0].max(ended[1]));
        assert_eq!((began[3], began[4]), (ended[2], ended[3]));
        assert_eq!((began[5], ended[5]), (None, None));
        assert_eq!(outcome.unfinished(), 1);
    }
}

/// Hosts keep their numbers in the file as names.
#[test]
fn hpcc_files_are_a_scenario() {
    let read = hpcc::topology(HPCC_TOPOLOGY, 1).unwrap();
    assert_eq!(read.numbers, [1, 2, 3, 4, 0, 5]);
    let propagation = |link: usize| read.topology.links()[link].2.propagation_ps;
    assert_eq!([0, 1, 2, 4].map(propagation), [US, US, US, 2 * US]);
    let files = |name: &str| match name {
        "topology.txt" => Ok(HPCC_TOPOLOGY.to_string()),
        _ => Ok(HPCC_FLOWS.to_string()),
    };
    let text = "[topology]\nkind = \"hpcc\"\nfile = \"topology.txt\"\n\
                [workload]\nkind = \"hpcc\"\nfile = \"flow.txt\"\nlimit_us = 3000000\n";
    let scenario = Scenario::parse(text, &files).unwrap();
    let point = Point { transport: TransportKind::NewReno, load: None, seed: 1 };
    let (experiment, outcome) = scenario.run(&point, &Options::default()).unwrap();
    assert_eq!(outcome.unfinished(), 0);
    assert_eq!(outcome.flows[0].began, Some(Time(2 * SEC)));
    let number = |host: HostIndex| scenario.names.of(host.into()).parse().unwrap();
    let lines: Vec<String> = hpcc::fct(&experiment, &outcome, number).collect();
    assert!(lines[0].starts_with("0b000101 0b000301 10000 100 200000 2000000000 "), "{lines:?}");
    assert!(lines[1].starts_with("0b000401 0b000201 10000 100 1 2500000000 "), "{lines:?}");
    let numbers = |line: &str| -> Vec<u64> {
        line.split(' ').skip(4).map(|word| word.parse().unwrap()).collect()
    };
    for line in &lines {
        let [_, _, took, ideal] = numbers(line)[..] else { panic!("{line}") };
        assert!(took >= ideal && ideal > 0, "{line}");
    }
}

/// Every error in a file is one line, with the line's number where there is one.
#[test]
fn bad_files_are_one_clear_line() {
    for (from, to, says) in [
        ("Nodes 16", "Nodez 16", "line 2: Nodez is no key of the header"),
        ("Nodes 16", "Nodes 0", "line 2: Nodes 0: 1 to 65536"),
        ("Nodes 16", "Nodes 18", "18 is no multiple of 8"),
        ("Tiers 3", "Tiers 4", "Tiers 2 or 3"),
        ("Radix_Down 4", "Radix_Down 3", "8 is no multiple of 3"),
        ("Radix_Up 2\nQueue_Down", "Queue_Down", "tier 0 has no Radix_Up"),
        (
            "Radix_Down 2\nDownlink_Latency_ns 2000",
            "Radix_Down 4\nDownlink_Latency_ns 2000",
            "the pods need 2",
        ),
        ("Bundle 1", "Bundle", "line 21: Bundle has no number"),
        ("Bundle 1", "Bundle 65536", "2 is no multiple of 65536"),
        ("Tier 2", "Tier 3", "line 23: tier 3: there are 0, 1 and 2"),
    ] {
        let text = TOPO.replace(from, to);
        assert_ne!(text, TOPO, "{from}");
        let why = htsim::topology(&text, 1).map(|_| ()).unwrap_err();
        assert!(why.contains(says) && !why.contains('\n'), "{to}: {why}");
    }
    for (from, to, says) in [
        ("Connections 6", "Connections 7", "says 7 connections, the file has 6: it is truncated"),
        ("Connections 6", "Connections 5", "says 5 connections, the file has 6"),
        ("Connections 6\n", "", "no Connections"),
        ("Triggers 3", "Triggers 4", "says 4 triggers, the file has 3: it is truncated"),
        ("0->9", "0->16", "line 4: unknown host 16: there are 0 to 15"),
        ("0->9", "9->9", "line 4: host 9 sends to itself"),
        ("0->9", "0-9", "line 4: 0-9 is neither a connection nor a trigger"),
        ("size 2000", "sise 2000", "line 4: sise is no word of a connection"),
        ("start 5000 ", "", "line 4: give start (in ps) or trigger"),
        ("start 5000", "start 5000 trigger 1", "line 4: give start (in ps) or trigger"),
        ("size 2000", "size 0", "line 4: the connection has no size above 0"),
        ("9->1 id 4 trigger 2", "9->1 id 4 trigger 8", "line 7: trigger 8 is not defined"),
        ("send_done_trigger 2", "send_done_trigger 9", "line 6: trigger 9 is not defined"),
        ("barrier count 2", "barrier", "line 10: a barrier needs a count above 0"),
        ("id 2 oneshot", "id 1 oneshot", "line 11: trigger id 1"),
        ("Nodes 16", "Nodes 17", "Nodes 17, but the topology has 16 hosts"),
        ("Triggers 3", "Failures 1", "line 3: failures are not simulated"),
    ] {
        let text = CM.replace(from, to);
        assert_ne!(text, CM, "{from}");
        let why = htsim::connections(&text, 16).unwrap_err();
        assert!(why.contains(says) && !why.contains('\n'), "{to}: {why}");
    }
    for (from, to, says) in [
        ("6 2 5", "6 2 6", "the first line says 6 links, the file has 5"),
        ("6 2 5", "6 7 5", "line 1: 6 nodes, 7 switches"),
        ("6 2 5", "0 0 5", "line 1: 0 nodes, 0 switches: from 2"),
        ("4 5 25Gbps", "6 5 25Gbps", "line 6: unknown node 6: there are 0 to 5"),
        ("25Gbps", "25Gbit", "line 6: bandwidth 25Gbit: a number with Gbps"),
        ("25Gbps", "25bps", "line 6: bandwidth 25 b/s"),
        ("0.001ms", "0.001", "line 3: delay 0.001: a number with ns"),
        ("0.000000", "0.01", "line 6: error rate 0.01: bit errors are not simulated"),
    ] {
        let text = HPCC_TOPOLOGY.replace(from, to);
        assert_ne!(text, HPCC_TOPOLOGY, "{from}");
        let why = hpcc::topology(&text, 1).map(|_| ()).unwrap_err();
        assert!(why.contains(says) && !why.contains('\n'), "{to}: {why}");
    }
    let host = |word: &str| word.parse().ok().filter(|&n| n < 5).map(HostIndex);
    for (from, to, says) in [
        ("2\n1", "3\n1", "says 3 flows, the file has 2: truncated?"),
        ("1 3 3", "1 x 3", "line 2: unknown host \"x\""),
        ("1 3 3", "1 1 3", "line 2: a flow has two hosts"),
        ("2.5", "-2.5", "line 3: begins at -2.5 s: from 0 to 3600"),
    ] {
        let why = hpcc::flows(&HPCC_FLOWS.replace(from, to), host).unwrap_err();
        assert!(why.contains(says) && !why.contains('\n'), "{to}: {why}");
    }
}

/// For any text a reader returns a bounded result or a one-line error, and never panics.
#[test]
fn any_text_is_read_or_is_one_line() {
    let inputs = std::env::var("CONCORD_NET_INPUTS").ok().and_then(|text| text.parse().ok());
    let mut rng = Rng::new(11);
    let host = |word: &str| word.parse().ok().filter(|&n| n < 5).map(HostIndex);
    let words =
        ["0", "-1", "65536", "4294967296", "1e300", "nan", "->", "id", "size", "Tier 2", "\n", "#"];
    for _ in 0..inputs.unwrap_or(20_000u64) {
        let kind = rng.below(4) as usize;
        let mut text = [TOPO, CM, HPCC_TOPOLOGY, HPCC_FLOWS][kind].to_string();
        for _ in 0..rng.between(1, 5) {
            // The texts are ASCII, and remain so.
            let at = rng.below(text.len() as u64 + 1) as usize;
            match rng.below(4) {
                0 => text.truncate(at),
                1 if at < text.len() => drop(text.remove(at)),
                2 => {
                    let end = text[at..].find([' ', '\n']).map_or(text.len(), |end| at + end);
                    text.replace_range(at..end, words[rng.below(words.len() as u64) as usize]);
                }
                _ => text.insert_str(at, words[rng.below(words.len() as u64) as usize]),
            }
        }
        let why = match kind {
            0 => htsim::topology(&text, 1).map(|read| read.links().len()).err(),
            1 => htsim::connections(&text, 16).map(|read| read.flows.len()).err(),
            2 => hpcc::topology(&text, 1).map(|read| read.numbers.len()).err(),
            _ => hpcc::flows(&text, host).map(|read| read.len()).err(),
        };
        assert!(why.as_ref().is_none_or(|why| !why.contains('\n')), "{text}: {why:?}");
    }
}
