//! A program that uses every verdict, in the seat that ships: in a chain of three switches on the
//! packet-level network, each with a seat of its own; in every interleaving of a few packets; and
//! from seeds, with faults. In user space: `crates/switch/tests/seat.rs`.
#![allow(clippy::unwrap_used)]

#[path = "../../switch/tests/probe/mod.rs"]
#[allow(dead_code)]
mod probe;

use std::collections::{BTreeMap, HashSet};

use concord_core::{Addr, Incarnation, Instant, MS, Machine as _, Now, Rng};
use concord_sim::engine::{EventQueue, Time};
use concord_sim::net::{
    Ecn, HostIndex, LinkSpec, NetEvent, Network, NodeIndex, Packet, Routing, Topology,
};
use concord_switch::{AgentConfig, FaultRates, Loop, SwitchAgent};
use concord_wire::control::{Config, Member, Membership, Message as _, Program, Protocol};
use concord_wire::{GroupId, group};
use probe::{Ask, Probe, ROUNDS_MAX, ask, metadata_of};

concord_switch::hosted! {
    /// The probe, by a name of the wire that is not needed here.
    #[derive(Clone, Debug)]
    enum Only {
        /// The probe.
        Craq(Probe),
    }
}

type Agent = SwitchAgent<Only>;
type Sent = Vec<(Addr, Vec<u8>)>;

const SWITCHES: u32 = 3;
const PS: u64 = 1_000;
const NOBODY: Addr = Addr { ip: 99, port: 1 };

fn host(n: u32) -> Addr {
    Addr { ip: 1 + n, port: 7 }
}

fn at(ns: u64) -> Now {
    Now { instant: Instant(ns), unix_ms: 0 }
}

/// The group that the program of a switch is for.
fn group_of(switch: u32) -> GroupId {
    GroupId(1 + switch as u16)
}

/// A switch with the probe, which knows the three hosts.
fn agent(switch: u32, change: impl Fn(&mut AgentConfig)) -> Agent {
    let own = Addr { ip: 50 + switch, port: 7 };
    let mut config = AgentConfig::new(Incarnation(1), own, NOBODY);
    config.program = Program::Craq;
    change(&mut config);
    let mut agent = Agent::new(config).unwrap();
    let member = |n: u32| Member { node: 1 + n as u16, incarnation: 1, addr: host(n) };
    let config = Config {
        epoch: 1,
        group: group_of(switch),
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: own,
        kind: Protocol::Craq.into(),
        program: Program::Craq,
        members: (0..3).map(member).collect(),
        joining: Vec::new(),
    };
    let (mut packet, mut sent) = (Vec::new(), Sent::new());
    Membership::Configure(config.into()).emit(&mut packet);
    agent.handle(at(0), NOBODY, &mut packet, &mut sent);
    agent.tick(at(0), &mut sent);
    agent
}

enum Event {
    Net(NetEvent<Vec<u8>>),
    /// A switch is to be woken.
    Wake(u32),
}

impl From<NetEvent<Vec<u8>>> for Event {
    fn from(event: NetEvent<Vec<u8>>) -> Event {
        Event::Net(event)
    }
}

/// Three switches in a row, and a host at each.
struct Chain {
    network: Network<Vec<u8>>,
    queue: EventQueue<Event>,
    switches: Vec<Agent>,
    /// What came to hosts: which one, when (ns), what.
    got: Vec<(u32, u64, Vec<u8>)>,
}

impl Chain {
    fn new() -> Chain {
        let mut topology = Topology::new(SWITCHES);
        let link = LinkSpec {
            bits_per_s: 10_000_000_000,
            propagation_ps: 500_000,
            queue_bytes_max: 1 << 16,
        };
        let nodes: Vec<NodeIndex> = (0..SWITCHES).map(|_| topology.add_switch(400_000)).collect();
        for (n, switch) in nodes.iter().enumerate() {
            topology.connect(NodeIndex(n as u32), *switch, link);
        }
        nodes.windows(2).for_each(|pair| topology.connect(pair[0], pair[1], link));
        let mut network = Network::new(&topology, Routing::Ecmp, 1).unwrap();
        nodes.iter().for_each(|node| network.set_programmed(*node));
        let switches = (0..SWITCHES).map(|n| agent(n, |_| {})).collect();
        Chain { network, queue: EventQueue::new(), switches, got: Vec::new() }
    }

    fn packet(from: u32, to: u32, body: Vec<u8>) -> Packet<Vec<u8>> {
        let size_bytes = body.len() as u32 + 42;
        let (from, to) = (HostIndex(from), HostIndex(to));
        Packet {
            to,
            from,
            size_bytes,
            flow_label: 0,
            class: 0,
            kind: 0,
            ecn: Ecn::Not,
            path: 0,
            body,
        }
    }

    /// A host asks the switch at the far end of the row, or that of another group on the way.
    fn ask(&mut self, from: u32, switch: u32, what: Ask) {
        let packet = Chain::packet(from, switch, ask(group_of(switch), what));
        self.network.send(&mut self.queue, packet);
    }

    fn now_ns(&self) -> u64 {
        self.queue.now().0 / PS
    }

    /// What a switch sent leaves by its ports; and it is woken when it wants to be.
    fn leave(&mut self, switch: u32, from: u32, sent: Sent) {
        for (to, bytes) in sent {
            let Some(to) = (0..SWITCHES).find(|n| host(*n) == to) else { continue };
            let packet = Chain::packet(from, to, bytes);
            self.network.send_from(&mut self.queue, NodeIndex(SWITCHES + switch), packet);
        }
        let wake = self.switches[switch as usize].deadline().at;
        if wake < Instant(100 * MS) {
            self.queue.schedule(Time((wake.0 * PS).max(self.queue.now().0)), Event::Wake(switch));
        }
    }

    fn run(&mut self) {
        while let Some((_, event)) = self.queue.next() {
            assert!(self.queue.taken() < 100_000, "it comes to rest");
            let mut sent = Sent::new();
            match event {
                Event::Wake(switch) => {
                    let now = at(self.now_ns());
                    self.switches[switch as usize].tick(now, &mut sent);
                    // Nobody in particular is at the port of what comes round.
                    self.leave(switch, switch, sent);
                }
                Event::Net(event) => {
                    let Some(there) = self.network.handle(&mut self.queue, event) else { continue };
                    let mut packet = there.packet;
                    let Some(switch) = there.node.0.checked_sub(SWITCHES) else {
                        self.got.push((there.node.0, self.now_ns(), packet.body));
                        continue;
                    };
                    let from = host(packet.from.0);
                    // Others' packets, and what another switch's program sent, pass.
                    if group(&packet.body) != group_of(switch) {
                        self.network.send_from(&mut self.queue, there.node, packet);
                        continue;
                    }
                    let now = at(self.now_ns());
                    self.switches[switch as usize].handle(now, from, &mut packet.body, &mut sent);
                    self.leave(switch, packet.from.0, sent);
                }
            }
        }
    }

    fn take(&mut self) -> Vec<(u32, u64, Vec<u8>)> {
        self.run();
        std::mem::take(&mut self.got)
    }
}

#[test]
fn every_verdict_is_carried_out_in_a_chain_of_three_switches() {
    let mut chain = Chain::new();
    let hosts = |got: &[(u32, u64, Vec<u8>)]| {
        let mut hosts: Vec<u32> = got.iter().map(|(host, ..)| *host).collect();
        hosts.sort_unstable();
        hosts
    };
    for switch in 0..SWITCHES {
        for from in 0..SWITCHES {
            // What leaves a program for a host at the same switch is delivered there, and not seen
            // again.
            chain.ask(from, switch, Ask::Drop);
            assert_eq!(chain.take().len(), 0);
            chain.ask(from, switch, Ask::Forward);
            assert_eq!(hosts(&chain.take()), [0], "to the first of the group");
            let asked = chain.now_ns();
            chain.ask(from, switch, Ask::Reply);
            let got = chain.take();
            assert_eq!(hosts(&got), [from]);
            let there_and_back_ns = got[0].1 - asked;
            chain.ask(from, switch, Ask::Group);
            let got = chain.take();
            let copies: BTreeMap<u32, u8> =
                got.iter().map(|(host, _, bytes)| (*host, *bytes.last().unwrap())).collect();
            assert_eq!(
                copies,
                BTreeMap::from([(0, 0), (1, 1), (2, 2)]),
                "egress makes them differ"
            );
            let asked = chain.now_ns();
            chain.ask(from, switch, Ask::Round(2));
            let got = chain.take();
            assert_eq!((hosts(&got), metadata_of(&got[0].2).len()), (vec![from], 3));
            let round_ns = 2 * Loop::DEFAULT.delay_ns;
            // Nanoseconds of the switch and picoseconds of the network.
            let took_ns = got[0].1 - asked;
            assert!(
                took_ns.abs_diff(there_and_back_ns + round_ns) <= 3,
                "its way round: {took_ns} ns"
            );
        }
        // Those that asked get copies by their ports.
        for from in [0, 2] {
            chain.ask(from, switch, Ask::Remember);
        }
        assert_eq!(chain.take().len(), 0);
        chain.ask(1, switch, Ask::Ports);
        assert_eq!(hosts(&chain.take()), [0, 2]);
    }
    let counters = chain.network.counters();
    assert_eq!((counters.dropped_port, counters.dropped_host), (0, 0));
}

/// A switch, packets that may come in any order or get lost, and what became of those that came.
#[derive(Clone)]
struct Small {
    agent: Agent,
    now_ns: u64,
    flying: Vec<(u32, Ask)>,
    came: Vec<(u32, Ask)>,
    sent: Sent,
}

fn probe_of(agent: &Agent) -> &Probe {
    let Only::Craq(probe) = agent.program();
    probe
}

impl Small {
    fn deliver(&self, which: usize) -> Small {
        let mut next = self.clone();
        let (from, what) = next.flying.remove(which);
        let mut packet = ask(group_of(0), what);
        next.agent.handle(at(next.now_ns), host(from), &mut packet, &mut next.sent);
        next.came.push((from, what));
        next
    }

    fn lose(&self, which: usize) -> Small {
        let mut next = self.clone();
        next.flying.remove(which);
        next
    }

    fn is_waiting(&self) -> bool {
        self.agent.deadline().reason == "a packet comes round"
    }

    /// Until the next packet comes round.
    fn wait(&self) -> Small {
        let mut next = self.clone();
        next.now_ns = next.agent.deadline().at.0;
        next.agent.tick(at(next.now_ns), &mut next.sent);
        next
    }

    fn key(&self) -> String {
        format!("{:?} {:?} {:?} {:?}", self.agent, self.flying, self.came, self.sent)
    }

    /// At the end: each packet that came did what it asked for, once.
    fn check(&self) {
        let (mut passes, mut expected) = (0, Vec::new());
        let mut remembered: Vec<u32> = Vec::new();
        for (from, what) in &self.came {
            passes += 1;
            match what {
                Ask::Drop => {}
                Ask::Forward => expected.push(host(0)),
                Ask::Reply => expected.push(host(*from)),
                Ask::Group => expected.extend((0..3).map(host)),
                Ask::Remember => remembered.push(*from),
                Ask::Ports => expected.extend(remembered.iter().map(|n| host(*n))),
                Ask::Round(rounds) => {
                    passes += u32::from(*rounds);
                    expected.push(host(*from));
                }
            }
        }
        assert_eq!(probe_of(&self.agent).passes(), passes);
        let mut got: Vec<Addr> = self.sent.iter().map(|(to, _)| *to).collect();
        got.sort_unstable_by_key(|a| (a.ip, a.port));
        expected.sort_unstable_by_key(|a| (a.ip, a.port));
        assert_eq!(got, expected);
        for (_, bytes) in &self.sent {
            let found = metadata_of(bytes);
            assert!(found.is_sorted_by(|a, b| a < b), "each pass saw those before it: {found:?}");
        }
    }
}

#[test]
fn every_verdict_is_carried_out_in_every_interleaving() {
    let flying = vec![
        (0, Ask::Round(2)),
        (1, Ask::Round(1)),
        (2, Ask::Remember),
        (0, Ask::Ports),
        (1, Ask::Group),
    ];
    let (agent, none) = (agent(0, |_| {}), Vec::new());
    let first = Small { agent, now_ns: 1, flying, came: none, sent: Sent::new() };
    let (mut seen, mut ends) = (HashSet::new(), 0);
    let mut left = vec![first];
    while let Some(state) = left.pop() {
        if !seen.insert(state.key()) {
            continue;
        }
        if state.is_waiting() {
            left.push(state.wait());
        }
        for which in 0..state.flying.len() {
            left.extend([state.deliver(which), state.lose(which)]);
        }
        if state.flying.is_empty() && !state.is_waiting() {
            ends += 1;
            state.check();
        }
    }
    assert_eq!((seen.len(), ends), (6_978, 2_225));
}

/// Packets drawn at random through a switch that loses, doubles and delays them, with little room
/// to come round.
fn drawn(seed: u64) -> (Sent, u64) {
    let mut rng = Rng::new(seed);
    let ppm = 100_000;
    let faults = FaultRates { seed, drop_ppm: ppm, duplicate_ppm: ppm, reorder_ppm: ppm };
    let recirculation = Loop { delay_ns: 700, packets_max: 3 };
    let mut switch = agent(0, |config| {
        (config.faults, config.recirculation) = (faults, recirculation);
    });
    let (mut sent, mut now_ns) = (Sent::new(), 1);
    // Few enough that eight bits count the passes.
    for _ in 0..80 {
        now_ns += rng.below(500);
        let what = match rng.below(12) {
            0 => Ask::Drop,
            1 => Ask::Forward,
            2 => Ask::Reply,
            3 => Ask::Group,
            4 => Ask::Remember,
            5 => Ask::Ports,
            _ => Ask::Round(rng.below(u64::from(ROUNDS_MAX) + 2) as u8),
        };
        let mut packet = ask(group_of(0), what);
        let from = host(rng.below(3) as u32);
        switch.handle(at(now_ns), from, &mut packet, &mut sent);
        switch.tick(at(now_ns), &mut sent);
    }
    for _ in 0..2 * u64::from(ROUNDS_MAX) {
        now_ns += recirculation.delay_ns;
        switch.tick(at(now_ns), &mut sent);
    }
    assert_ne!(switch.deadline().reason, "a packet comes round", "seed {seed}");
    let fabric = switch.fabric();
    for (_, bytes) in &sent {
        let found = metadata_of(bytes);
        assert!(found.len() <= 1 + usize::from(ROUNDS_MAX), "seed {seed}: {found:?}");
        assert!(found.is_sorted_by(|a, b| a < b), "seed {seed}: {found:?}");
    }
    (sent, fabric.recirculations_lost.min(1) + fabric.recirculations_excess.min(1))
}

/// Every verdict is carried out from seeds with faults and a seed replays.
#[test]
fn every_verdict_from_seeds_with_faults() {
    let mut both = 0;
    for seed in 0..200 {
        let (sent, bounds) = drawn(seed);
        assert!(sent.len() > 20, "seed {seed}");
        both += u64::from(bounds == 2);
        if seed % 20 == 0 {
            assert_eq!(drawn(seed).0, sent, "seed {seed}");
        }
    }
    assert!(both > 50, "most seeds meet the bounds of the way round, not {both}");
}
