//! The nodes of a shared memory and their switch, as they ship, without time: packets wait until
//! the caller lets them arrive.

use std::hash::Hash as _;

use concord_core::{Epoch, Guard, Guards, Incarnation, Machine as _, NodeId, Now};
use concord_memory::{
    Access, Aim, Call, Coherence, Done, Item, LineState, Node, NodeSettings, Report, Stage,
    of_range, rebuild,
};
use concord_pisa::{Copies, Metadata, Verdict};
use concord_switch::{
    AgentConfig, BlocksLayout, Concordia, Ingress, Load as _, PortTable, SwitchProgram as _,
};
use concord_wire::concordia::{Copyset, GlobalStatus, Repr, Tag};
use concord_wire::control::{Config, GroupKind, Member, Program};
use concord_wire::{Addr, GroupId};
use rustc_hash::FxHasher;

use crate::systems::frame;

/// The address of the switch.
pub(super) const SWITCH: Addr = Addr { ip: 1, port: 1 };
/// The length of a block in bytes: the minimum.
const BLOCK_BYTES: usize = 512;
/// The maximum number of rounds until the rack comes to rest.
const ROUNDS_MAX: usize = 64;

/// The parameters of a rack.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of nodes.
    pub nodes: u8,
    /// The number of blocks in a cache.
    pub cache_ways: usize,
    /// The maximum number of events that a node has in progress.
    pub lanes: usize,
    /// Whether the switch takes part in coherence.
    pub coherence: Coherence,
    /// The guards that are on.
    pub guards: Guards,
}

/// A packet in flight: its destination, and its bytes.
pub type Flight = (Addr, Vec<u8>);

/// A rack: the nodes and their switch.
#[derive(Clone)]
pub struct Rack {
    switch: Concordia,
    ports: PortTable,
    /// The nodes, by place.
    pub nodes: Vec<Node>,
    /// The packets in flight, sorted, so that equal states are equal however they were reached.
    pub flights: Vec<Flight>,
    /// The newest value of each block: its first byte.
    newest: Vec<(Tag, u8)>,
    /// The number of calls with an outcome, by node.
    pub done: Vec<usize>,
    /// The nodes that have heard of another epoch, or are gone: they stand still.
    pub stopped: Vec<bool>,
    guards: Guards,
}

/// The address of the node at a place.
pub(super) fn addr(place: u8) -> Addr {
    Addr { ip: 2, port: 10 + u16::from(place) }
}

/// The place of the node with an address.
pub(super) fn place_of(to: Addr) -> usize {
    usize::from(to.port - 10)
}

/// The configuration of a memory.
pub(super) fn config(epoch: u32, nodes: u8) -> Config {
    let member =
        |place: u8| Member { node: 1 + u16::from(place), incarnation: 1, addr: addr(place) };
    Config {
        epoch,
        group: GroupId(0),
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: SWITCH,
        kind: GroupKind::Memory,
        program: Program::Concordia,
        members: (0..nodes).map(member).collect(),
        joining: Vec::new(),
    }
}

/// A switch that serves a memory.
///
/// # Errors
/// The reason why there can be none.
pub(super) fn switch(
    layout: BlocksLayout,
    guards: Guards,
    config: &Config,
) -> Result<Concordia, String> {
    let mut told = AgentConfig::new(Incarnation(1), SWITCH, SWITCH);
    told.sections.blocks = layout;
    let told = AgentConfig { guards, ..told };
    let mut switch = Concordia::load(&told.settings()).map_err(|why| why.to_string())?;
    match switch.install(Now::default(), config) {
        Ok(_) => Ok(switch),
        Err(_) => Err("the switch refuses the memory".into()),
    }
}

/// The packets that leave a switch after a pass.
#[derive(Default)]
pub(super) struct Passed {
    /// Packets to nodes.
    pub(super) sent: Vec<Flight>,
    /// The recirculated packet, with its metadata.
    pub(super) round: Option<(Metadata, Vec<u8>)>,
}

/// Runs a packet's pass, the first one if `round` is `None`.
pub(super) fn pass(
    switch: &mut Concordia,
    ports: &PortTable,
    round: Option<Metadata>,
    bytes: &mut [u8],
) -> Passed {
    let first = Ingress::first(Now::default(), SWITCH, ports);
    let ingress = match round {
        Some(metadata) => Ingress { passes: 1, metadata, ..first },
        None => first,
    };
    let mut passed = Passed::default();
    match switch.process(&ingress, bytes) {
        Verdict::Recirculate { metadata, size_bytes } => {
            passed.round = Some((metadata, bytes[..size_bytes].to_vec()));
        }
        Verdict::Forward { to, size_bytes } => {
            passed.sent.push((to, bytes[..size_bytes].to_vec()));
        }
        Verdict::Multicast { to: Copies::Ports(to), size_bytes } => {
            let to = to.filter_map(|port| ports.addr_of(port));
            passed.sent.extend(to.map(|to| (to, bytes[..size_bytes].to_vec())));
        }
        _ => {}
    }
    passed
}

impl Rack {
    /// A rack at rest, with these blocks owned by the switch, and those by their homes.
    ///
    /// # Panics
    /// If there can be no such rack.
    #[must_use]
    pub fn new(shape: &Shape, blocks: &[Tag], at_home: &[Tag]) -> Rack {
        let layout = BlocksLayout { ways: 2, way_blocks: 2 };
        let switch = switch(layout, shape.guards, &config(1, shape.nodes)).expect("a small switch");
        let mut ports = PortTable::default();
        let addrs: Vec<Addr> = (0..shape.nodes).map(addr).collect();
        assert!(ports.fill(&addrs), "every node has a port");
        let node = |place| {
            let settings = NodeSettings {
                node: NodeId(1 + u16::from(place)),
                place,
                group: GroupId(0),
                epoch: Epoch(1),
                nodes: addrs.clone(),
                homes: (0..shape.nodes).collect(),
                switch: SWITCH,
                coherence: shape.coherence,
                block_bytes: BLOCK_BYTES,
                range_blocks: 16,
                cache_sets: 1,
                cache_ways: shape.cache_ways,
                lanes: shape.lanes,
                guards: shape.guards,
            };
            Node::new(settings).expect("a small node")
        };
        let nodes: Vec<Node> = (0..shape.nodes).map(node).collect();
        let newest = blocks.iter().chain(at_home).map(|tag| (*tag, 0)).collect();
        let done = vec![0; nodes.len()];
        let stopped = vec![false; nodes.len()];
        let (flights, guards) = (Vec::new(), shape.guards);
        let mut rack = Rack { switch, ports, nodes, flights, newest, done, stopped, guards };
        for tag in blocks {
            assert!(rack.migrate(*tag), "it is at its home");
            let settled = rack.settle(&[]);
            assert_eq!(settled, Ok(()), "the switch takes it");
        }
        rack
    }

    fn send(&mut self, sent: Vec<Flight>) {
        frame::add_in_order(&mut self.flights, sent);
    }

    /// Handles a packet at the switch; a recirculated packet makes its next pass at once.
    fn at_switch(&mut self, packet: &[u8]) {
        let (mut bytes, mut round, mut sent) = (packet.to_vec(), None, Vec::new());
        loop {
            let passed = pass(&mut self.switch, &self.ports, round, &mut bytes);
            sent.extend(passed.sent);
            let Some((metadata, next)) = passed.round else { break };
            (round, bytes) = (Some(metadata), next);
        }
        self.send(sent);
    }

    /// Delivers a packet.
    ///
    /// # Errors
    /// A program has observed a wrong value.
    pub fn comes(&mut self, (to, bytes): &Flight) -> Result<(), String> {
        if *to == SWITCH {
            self.at_switch(bytes);
            return Ok(());
        }
        let (place, mut sent) = (place_of(*to), Vec::new());
        if self.stopped[place] {
            return Ok(());
        }
        let mut bytes = bytes.clone();
        self.nodes[place].handle(Now::default(), SWITCH, &mut bytes, &mut sent);
        self.send(sent);
        Ok(())
    }

    /// Makes a program's call at a node.
    pub fn call(&mut self, place: usize, call: Call) {
        let mut sent = Vec::new();
        self.nodes[place].call(Now::default(), call, &mut sent);
        self.send(sent);
    }

    /// Continues the event of a lane.
    pub fn wake(&mut self, place: usize, lane: usize) {
        let mut sent = Vec::new();
        self.nodes[place].wake(Now::default(), lane, &mut sent);
        self.send(sent);
    }

    fn home(&self, tag: Tag) -> &Node {
        &self.nodes[usize::from(tag.range())]
    }

    /// Lets the home of a block begin to move it to the switch or back, if it can.
    pub fn migrate(&mut self, tag: Tag) -> bool {
        let mut sent = Vec::new();
        let home = &mut self.nodes[usize::from(tag.range())];
        let begins = home.migrate(Now::default(), tag, &mut sent);
        self.send(sent);
        begins
    }

    /// Lets a home send again the packet of its move.
    pub fn send_move(&mut self, place: usize) {
        let mut sent = Vec::new();
        self.nodes[place].send_move(Now::default(), &mut sent);
        self.send(sent);
    }

    /// A block's status, version and copyset, and whether it is locked, at its owner.
    fn block(&self, tag: Tag) -> Option<(GlobalStatus, u64, Copyset, bool)> {
        self.switch.peek(tag).or_else(|| self.home(tag).owned(tag))
    }

    /// Takes the outcomes of calls at a node; `calls` are those that the node got. A write counts
    /// from here on, and a read must return the newest value.
    ///
    /// # Errors
    /// A program has observed a wrong value.
    pub fn hear(&mut self, place: usize, calls: &[Call]) -> Result<(), String> {
        while let Some(Done { id, result }) = self.nodes[place].poll_done() {
            self.done[place] += 1;
            let Some(call) = calls.iter().find(|call| call.id == id) else { continue };
            let newest = self.newest.iter_mut().find(|(tag, _)| *tag == call.tag);
            let Some((_, newest)) = newest else { continue };
            match (&call.access, result) {
                (Access::Write { data, .. }, Ok(_)) => *newest = data[0],
                (Access::FetchAdd { add, .. }, Ok(read)) if read[0] == *newest => {
                    *newest = newest.wrapping_add(*add as u8);
                }
                (_, Ok(read)) if read[0] != *newest => {
                    return Err(format!(
                        "node {place} reads {} of block {:x}, and the newest is {newest}",
                        read[0], call.tag.0
                    ));
                }
                (_, Ok(_)) => {}
                (_, Err(why)) => return Err(format!("node {place} is told {why:?}")),
            }
        }
        Ok(())
    }

    /// The lanes whose event may go on, and whether that needs no retransmission: a request that
    /// failed is retried once its lock may be free.
    pub fn lanes(&self) -> Vec<(usize, usize, bool)> {
        let mut all = Vec::new();
        let moving = self.nodes.iter().enumerate().filter(|(place, _)| !self.stopped[*place]);
        for (place, node) in moving {
            for (lane, event) in node.events() {
                let (tag, home) = (event.tag, self.home(event.tag));
                let is_locked = self.block(tag).is_some_and(|(_, _, _, is_locked)| is_locked);
                let is_wanted = self.switch.is_wanted(tag) || home.is_wanted(tag);
                let is_free =
                    !is_locked && !home.is_moving(tag) && (event.aim != Aim::Read || !is_wanted);
                match event.stage {
                    Stage::Waiting if is_free => all.push((place, lane, true)),
                    Stage::Waiting => {}
                    _ => all.push((place, lane, false)),
                }
            }
        }
        all
    }

    /// Checks the invariants of every state: one writer or many readers, copies with the newest
    /// value, and copysets that cover the nodes with a copy.
    ///
    /// # Errors
    /// The invariant that is violated.
    pub fn check(&self) -> Result<(), String> {
        for (tag, newest) in &self.newest {
            let (home, is_in_switch) = (self.home(*tag), self.switch.peek(*tag).is_some());
            if !home.is_moving(*tag) && home.owned(*tag).is_some() == is_in_switch {
                return Err(format!("block {:x} has two owners, or none", tag.0));
            }
            let lines = self.nodes.iter().enumerate().flat_map(|(place, node)| {
                node.lines().filter(|l| l.tag == *tag && l.is_valid()).map(move |l| (place, l))
            });
            let holders: Vec<_> = lines.collect();
            let writers = holders.iter().filter(|(_, l)| l.state == LineState::Modified).count();
            if writers > 1 || writers == 1 && holders.len() > 1 {
                let all: Vec<_> = holders.iter().map(|(place, l)| (place, l.state)).collect();
                return Err(format!("block {:x} has a writer beside others: {all:?}", tag.0));
            }
            for (place, line) in &holders {
                if line.data[0] != *newest {
                    return Err(format!(
                        "node {place} has {} in block {:x}, and the newest is {newest}",
                        line.data[0], tag.0
                    ));
                }
                let is_noted = self.block(*tag).is_some_and(|(_, _, set, _)| set.has(*place as u8));
                let ends = |(_, event): (usize, &concord_memory::Event)| {
                    event.tag == *tag && event.stage == Stage::Unlocking
                };
                if !is_noted && !self.nodes[*place].events().any(ends) {
                    return Err(format!(
                        "node {place} has a copy of block {:x}, and is not in its copyset",
                        tag.0
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that without further faults all calls would be answered, and that afterwards no lock
    /// is held, copysets name the nodes that hold copies, and a home that counts as up to date has
    /// the newest value.
    ///
    /// # Errors
    /// The condition that is violated.
    pub fn settle(&mut self, calls: &[Vec<Call>]) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            while !self.flights.is_empty() {
                let flight = self.flights.remove(0);
                self.comes(&flight)?;
                for (place, calls) in calls.iter().enumerate() {
                    self.hear(place, calls)?;
                }
                self.check()?;
            }
            let is_moving = |node: &Node| node.moves().is_some();
            if self.nodes.iter().all(|n| n.events().count() == 0 && !is_moving(n)) {
                return self.is_settled();
            }
            for place in 0..self.nodes.len() {
                self.send_move(place);
            }
            let lanes: Vec<(usize, usize)> = (self.nodes.iter().enumerate())
                .flat_map(|(place, node)| node.events().map(move |(lane, _)| (place, lane)))
                .collect();
            // Continue the lanes one after the other, so that requests that failed together do not
            // fail together again.
            for (place, lane) in lanes {
                self.wake(place, lane);
                while !self.flights.is_empty() {
                    let flight = self.flights.remove(0);
                    self.comes(&flight)?;
                    for (place, calls) in calls.iter().enumerate() {
                        self.hear(place, calls)?;
                    }
                }
            }
        }
        Err("it does not come to rest".into())
    }

    /// Checks the rebuilt ranges once all nodes have heard of another epoch, and `dead` is gone. A
    /// block has its newest value, or is lost; it is not lost if no node is gone, or some node has
    /// a copy.
    ///
    /// # Errors
    /// The condition that is violated.
    pub fn ends(&self, dead: Option<usize>) -> Result<(), String> {
        let stays = |place: u8| dead != Some(place.into());
        let is_in_doubt = dead.is_some() && self.guards.on(Guard::LostKnown);
        let left = || self.nodes.iter().enumerate().filter(|(place, _)| stays(*place as u8));
        let report = |(place, node): (usize, &Node)| {
            let mut remains = node.clone().dissolve(self.guards.on(Guard::InTransit));
            let range = place as u16;
            let own = remains.ranges.entry(range).or_default();
            let (base, is_orphan, is_tainted) = (0, false, false);
            let mut items = vec![Item::Claim { range, base, is_orphan, is_tainted }];
            let doubts = remains.doubts.iter().filter(|_| is_in_doubt);
            items.extend(of_range(range, own, doubts, &stays));
            items.extend(remains.copies);
            items.push(Item::End { label: 0, since: 1 });
            Report::whole(items)
        };
        let reports: Vec<Report> = left().map(report).collect();
        for (tag, newest) in &self.newest {
            let range = rebuild(tag.range(), 1, &reports, true);
            let has_copy = |node: &Node| node.lines().any(|l| l.tag == *tag && l.is_valid());
            let is_copied = left().any(|(_, node)| has_copy(node));
            let value = range.blocks.get(tag).map_or(0, |block| block.data[0]);
            if range.is_lost(*tag) {
                if dead.is_none() || is_copied {
                    return Err(format!("another epoch loses block {:x}", tag.0));
                }
            } else if value != *newest {
                let block = tag.0;
                return Err(format!(
                    "another epoch begins with {value} in block {block:x}, and the newest is {newest}"
                ));
            }
        }
        Ok(())
    }

    fn is_settled(&self) -> Result<(), String> {
        if let Some(place) = self.nodes.iter().position(|node| node.waiting() > 0) {
            return Err(format!("a call at node {place} waits, and nothing is under way"));
        }
        for (tag, newest) in &self.newest {
            let Some((status, _, copyset, is_locked)) = self.block(*tag) else { continue };
            let block = tag.0;
            if is_locked {
                return Err(format!("block {block:x} is locked, and nothing is under way"));
            }
            for (place, node) in self.nodes.iter().enumerate() {
                let has = node.lines().any(|line| line.tag == *tag && line.is_valid());
                if has != copyset.has(place as u8) {
                    return Err(format!(
                        "block {block:x}: {copyset:?}, and node {place} has {has}"
                    ));
                }
            }
            let home = self.nodes[usize::from(tag.range())].home_data(*tag)[0];
            let is_newest = matches!(status, GlobalStatus::Unshared | GlobalStatus::Shared);
            if is_newest && home != *newest {
                return Err(format!(
                    "block {block:x} is {status:?}, and its home has {home}, not {newest}"
                ));
            }
        }
        Ok(())
    }

    /// Hashes what distinguishes its states.
    pub fn hash_state(&self, hasher: &mut FxHasher) {
        self.switch.hash_registers(hasher);
        for node in &self.nodes {
            node.hash_state(hasher);
        }
        (&self.flights, &self.newest, &self.done, &self.stopped).hash(hasher);
    }
}

/// The description of a packet, for traces.
pub fn describe((to, bytes): &Flight) -> String {
    let to =
        if *to == SWITCH { "the switch".to_string() } else { format!("node {}", place_of(*to)) };
    let Ok((packet, _)) = Repr::parse(bytes) else { return format!("{to}: malformed") };
    let Repr { op, outcome, place, lane, number, tag, version, status, copyset, .. } = packet;
    format!(
        "{to} gets {op:?} {outcome:?} of {place}.{lane}#{number}, block {:x} v{version} {status:?} {:b}",
        tag.0, copyset.0
    )
}
