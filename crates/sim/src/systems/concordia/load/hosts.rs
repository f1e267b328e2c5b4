//! The shipped nodes and switch at hosts that take time for accesses and messages.

use std::collections::VecDeque;

use concord_core::rng::splitmix64;
use concord_core::{Epoch, Guards, Instant, Machine as _, NodeId, Now, Rng};
use concord_memory::{Access, Call, Coherence, Node, NodeSettings};
use concord_pisa::Metadata;
use concord_switch::{BlocksLayout, Concordia, PortTable};
use concord_wire::concordia::{GlobalStatus, Op, Repr, Tag};
use concord_wire::{Addr, GroupId};

use super::super::rack::{Flight, SWITCH, addr, config, pass, place_of, switch};
use super::setup::{Load, Measured, System};
use crate::engine::{EventQueue, NS, Time};

/// The length of a block in bytes: a block is one packet.
const BLOCK_BYTES: usize = 512;
/// The number of blocks in a set of Concordia's cache (§6).
const WAYS: usize = 8;
/// Events that a node may have in progress: more than threads, since an eviction is an event, and
/// an event ends only when its unlock is acknowledged.
const LANES: usize = 16;
/// Numbers of blocks in a range, so that those in use are spread like hashed addresses.
const RANGE_BLOCKS: u64 = 1 << 32;
/// The servers of a host, beside one for each thread.
const HOME_AGENT: usize = 0;
const CACHE_AGENT: usize = 1;
const SERVERS: usize = 2;

enum Event {
    Switch(Vec<u8>),
    Arrive(usize, Vec<u8>),
    Free(usize, usize),
    Next(usize, usize),
    Wake(usize),
}

/// A thread of a program.
#[derive(Clone, Copy)]
struct Thread {
    last: Tag,
    /// The number of its calls.
    made: u64,
    /// When it made the call that it waits for.
    waits_since: Option<u64>,
}

struct Host {
    node: Node,
    queues: Vec<VecDeque<Vec<u8>>>,
    is_busy: Vec<bool>,
    threads: Vec<Thread>,
    wake_at: u64,
}

struct Hosts<'a> {
    load: &'a Load,
    rng: Rng,
    now: u64,
    queue: EventQueue<Event>,
    hosts: Vec<Host>,
    switch: Concordia,
    ports: PortTable,
    seen: Measured,
    wrong: Option<String>,
}

/// Runs a load.
pub(super) fn measure(load: &Load) -> Result<Measured, String> {
    let mut hosts = Hosts::new(load)?;
    hosts.fill()?;
    hosts.begin();
    hosts.run(load.warm_up_ns)?;
    let before = hosts.counted();
    hosts.seen = Measured::default();
    hosts.run(load.measure_ns)?;
    let after = hosts.counted();
    let (failed, resent) = (after.0 - before.0, after.1 - before.1);
    Ok(Measured { failed, resent, ns: load.measure_ns, ..hosts.seen })
}

impl<'a> Hosts<'a> {
    fn new(load: &'a Load) -> Result<Hosts<'a>, String> {
        let layout = BlocksLayout { ways: 6, way_blocks: load.way_blocks.next_power_of_two() };
        let switch = switch(layout, Guards::ALL, &config(1, load.nodes))?;
        let (mut ports, addrs) = (PortTable::default(), (0..load.nodes).map(addr));
        let addrs: Vec<Addr> = addrs.collect();
        if !ports.fill(&addrs) {
            return Err("a node has no port".into());
        }
        let host = |place: u8| {
            let settings = NodeSettings {
                node: NodeId(1 + u16::from(place)),
                place,
                group: GroupId(0),
                epoch: Epoch(1),
                nodes: addrs.clone(),
                homes: (0..load.nodes).collect(),
                switch: SWITCH,
                coherence: match load.system {
                    System::Concordia => Coherence::Concordia,
                    System::Base | System::Grappa => Coherence::Base,
                    System::Gam => Coherence::Gam,
                },
                block_bytes: BLOCK_BYTES,
                range_blocks: RANGE_BLOCKS,
                cache_sets: (load.cache_blocks / WAYS).max(1),
                cache_ways: WAYS,
                lanes: LANES,
                guards: Guards::ALL,
            };
            let node = Node::new(settings).map_err(|why| why.to_string())?;
            let servers = SERVERS + load.threads;
            Ok(Host {
                node,
                queues: vec![VecDeque::new(); servers],
                is_busy: vec![false; servers],
                threads: vec![Thread { last: Tag(0), made: 0, waits_since: None }; load.threads],
                wake_at: u64::MAX,
            })
        };
        Ok(Hosts {
            load,
            rng: Rng::new(load.seed),
            now: 1,
            queue: EventQueue::new(),
            hosts: (0..load.nodes).map(host).collect::<Result<_, String>>()?,
            switch,
            ports,
            seen: Measured::default(),
            wrong: None,
        })
    }

    /// The tag of a block, which belongs to `owner` alone or is shared. GAM's cache is fully
    /// associative; for it, blocks are numbered so that they fill all sets equally.
    fn tag(&self, owner: Option<usize>, index: u64) -> Tag {
        let nodes = u64::from(self.load.nodes);
        let (range, own) = ((index % nodes) as u16, owner.map_or(0, |owner| 1 + owner as u64));
        let number = if self.load.system == System::Gam {
            own * (self.load.private_blocks + self.load.shared_blocks) + index / nodes
        } else {
            splitmix64(own << 40 | index) % RANGE_BLOCKS
        };
        Tag::new(range, number)
    }

    fn clock(&self) -> Now {
        Now { instant: Instant(self.now), unix_ms: 0 }
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.queue.schedule(Time(at_ns.max(self.now) * NS), event);
    }

    /// The number of failed requests, and of packets that were sent again.
    fn counted(&self) -> (u64, u64) {
        let counters = self.hosts.iter().map(|host| host.node.counters());
        counters.fold((0, 0), |all, own| (all.0 + own.failed, all.1 + own.resent))
    }

    /// Runs packets without time until none is left.
    fn settle(&mut self, sent: Vec<Flight>) {
        let mut flights: VecDeque<Flight> = sent.into();
        while let Some((to, mut bytes)) = flights.pop_front() {
            if to == SWITCH {
                flights.extend(self.through_switch(bytes));
                continue;
            }
            let (now, mut sent) = (self.clock(), Vec::new());
            self.hosts[place_of(to)].node.handle(now, SWITCH, &mut bytes, &mut sent);
            flights.extend(sent);
        }
    }

    fn through_switch(&mut self, bytes: Vec<u8>) -> Vec<Flight> {
        let (mut bytes, mut round, mut sent): (_, Option<Metadata>, Vec<Flight>) =
            (bytes, None, Vec::new());
        loop {
            let passed = pass(&mut self.switch, &self.ports, round, &mut bytes);
            sent.extend(passed.sent);
            let Some((metadata, next)) = passed.round else { return sent };
            (round, bytes) = (Some(metadata), next);
        }
    }

    /// Fills the caches, and lets the switch own the shared blocks, as in a memory that has run for
    /// long. If there are writes, a private block is modified; a shared one has had its last write,
    /// and as many reads since as uniform accesses leave. Without writes, shared blocks have copies
    /// everywhere.
    fn fill(&mut self) -> Result<(), String> {
        let load = self.load;
        if load.system == System::Concordia && load.sharing_percent > 0 {
            for index in 0..load.shared_blocks {
                let (tag, now, mut sent) = (self.tag(None, index), self.clock(), Vec::new());
                self.hosts[usize::from(tag.range())].node.migrate(now, tag, &mut sent);
                self.settle(sent);
            }
        }
        let has_writes = load.reads_percent < 100;
        let mut order: Vec<u64> = (0..load.private_blocks).collect();
        for place in 0..self.hosts.len() {
            for at in (1..order.len()).rev() {
                order.swap(at, self.rng.below(at as u64 + 1) as usize);
            }
            for index in &order {
                if load.sharing_percent == 100 {
                    break;
                }
                let tag = self.tag(Some(place), *index);
                self.touch(place, tag, !has_writes)?;
            }
        }
        for index in 0..if load.sharing_percent > 0 { load.shared_blocks } else { 0 } {
            let tag = self.tag(None, index);
            if !has_writes {
                (0..self.hosts.len()).try_for_each(|place| self.touch(place, tag, true))?;
                continue;
            }
            let mut is_read = false;
            loop {
                let place = self.rng.below(u64::from(load.nodes)) as usize;
                self.touch(place, tag, is_read)?;
                is_read = true;
                if self.rng.below(100) >= load.reads_percent {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Makes an access without time.
    fn touch(&mut self, place: usize, tag: Tag, is_read: bool) -> Result<(), String> {
        let call = self.access(0, tag, is_read);
        let (now, mut sent) = (self.clock(), Vec::new());
        self.hosts[place].node.call(now, call, &mut sent);
        self.settle(sent);
        match self.hosts[place].node.poll_done() {
            Some(done) if done.result.is_ok() => Ok(()),
            other => Err(format!("an access at rest ends with {other:?}")),
        }
    }

    fn access(&mut self, id: u64, tag: Tag, is_read: bool) -> Call {
        let offset_bytes = 8 * self.rng.below(BLOCK_BYTES as u64 / 8) as usize;
        let access = if is_read {
            Access::Read { offset_bytes, size_bytes: 8 }
        } else {
            Access::Write { offset_bytes, data: id.to_le_bytes().to_vec() }
        };
        Call { id, tag, access }
    }

    fn begin(&mut self) {
        for host in 0..self.hosts.len() {
            for thread in 0..self.load.threads {
                let at = self.now + self.rng.below(1_000);
                self.at(at, Event::Next(host, thread));
            }
            self.sleep(host);
        }
    }

    fn run(&mut self, ns: u64) -> Result<(), String> {
        let end = self.now + ns;
        while let Some((at, event)) = self.queue.next_until(Time(end * NS)) {
            self.now = at.0 / NS;
            self.happens(event);
            if let Some(why) = self.wrong.take() {
                return Err(why);
            }
        }
        self.now = end;
        Ok(())
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Switch(bytes) => {
                let at = self.now + self.load.costs.way_ns / 2;
                for (to, bytes) in self.through_switch(bytes) {
                    self.at(at, Event::Arrive(place_of(to), bytes));
                }
            }
            Event::Arrive(host, bytes) => {
                let server = self.server(&bytes);
                self.hosts[host].queues[server].push_back(bytes);
                if !self.hosts[host].is_busy[server] {
                    self.serve(host, server);
                }
            }
            Event::Free(host, server) => {
                self.hosts[host].is_busy[server] = false;
                self.serve(host, server);
            }
            Event::Next(host, thread) => self.call(host, thread),
            Event::Wake(host) => {
                if self.now < self.hosts[host].wake_at {
                    return;
                }
                self.hosts[host].wake_at = u64::MAX;
                let (now, mut sent) = (self.clock(), Vec::new());
                self.hosts[host].node.tick(now, &mut sent);
                let end = self.send(host, None, self.now, sent);
                self.done(host, end);
                self.sleep(host);
            }
        }
    }

    /// The server of a host that handles a packet.
    fn server(&self, bytes: &[u8]) -> usize {
        let Ok((packet, _)) = Repr::parse(bytes) else { return HOME_AGENT };
        let is_gathered = self.load.system == System::Gam && packet.provider.is_some();
        match packet.op {
            op if op.is_request() => {
                let is_copys = packet.is_locked && packet.status != GlobalStatus::Unshared;
                if is_copys { CACHE_AGENT } else { HOME_AGENT }
            }
            Op::Ack if is_gathered => HOME_AGENT,
            Op::Ack | Op::Data | Op::Written | Op::Unlocked => {
                SERVERS + usize::from(packet.lane) % self.load.threads
            }
            _ => HOME_AGENT,
        }
    }

    /// Whether a packet costs nothing: see [`super`].
    fn is_free(&self, bytes: &[u8]) -> bool {
        let op = || Repr::parse(bytes).map(|(packet, _)| packet.op);
        self.load.system == System::Gam && matches!(op(), Ok(Op::Unlock | Op::Unlocked))
    }

    fn serve(&mut self, host: usize, server: usize) {
        let Some(mut bytes) = self.hosts[host].queues[server].pop_front() else { return };
        let is_free = self.is_free(&bytes);
        let from_self = Repr::parse(&bytes).is_ok_and(|(p, _)| usize::from(p.from.0) == host + 1);
        let is_packet = u64::from(!is_free && !from_self);
        self.seen.packets += is_packet;
        self.seen.home_packets += if server == HOME_AGENT { is_packet } else { 0 };
        let (now, mut sent) = (self.clock(), Vec::new());
        self.hosts[host].node.handle(now, SWITCH, &mut bytes, &mut sent);
        let cost = if is_free { 0 } else { self.load.costs.message_ns };
        let end = self.send(host, Some(server), self.now + cost, sent);
        self.hosts[host].is_busy[server] = true;
        self.at(end, Event::Free(host, server));
        self.done(host, end);
        self.sleep(host);
    }

    /// Sends packets one after the other, from `at_ns` on; returns when the last one has left.
    fn send(&mut self, host: usize, by: Option<usize>, at_ns: u64, sent: Vec<Flight>) -> u64 {
        let (costs, mut at) = (self.load.costs, at_ns);
        for (to, bytes) in sent {
            if to != SWITCH && place_of(to) == host {
                self.at(at, Event::Arrive(host, bytes));
                continue;
            }
            if !self.is_free(&bytes) {
                at += costs.message_ns;
                self.seen.packets += 1;
                self.seen.home_packets += u64::from(by == Some(HOME_AGENT));
            }
            if to == SWITCH {
                self.at(at + costs.way_ns / 2, Event::Switch(bytes));
            } else {
                self.at(at + costs.way_ns, Event::Arrive(place_of(to), bytes));
            }
        }
        at
    }

    /// Lets threads whose calls have ended make their next call.
    fn done(&mut self, host: usize, at_ns: u64) {
        while let Some(done) = self.hosts[host].node.poll_done() {
            let thread = (done.id % self.load.threads as u64) as usize;
            if let Err(why) = done.result {
                self.wrong = Some(format!("an access is refused: {why:?}"));
            }
            let since = self.hosts[host].threads[thread].waits_since.take();
            self.seen.accesses += 1;
            if let Some(since) = since.filter(|since| *since < self.now) {
                self.seen.waited.0 += 1;
                self.seen.waited.1 += self.now - since;
            }
            self.at(at_ns + self.load.costs.hit_ns, Event::Next(host, thread));
        }
    }

    fn call(&mut self, host: usize, thread: usize) {
        let load = self.load;
        let last = self.hosts[host].threads[thread].last;
        let repeats = last != Tag(0) && self.rng.below(100) < load.locality_percent;
        let tag = if repeats {
            last
        } else if self.rng.below(100) < load.sharing_percent {
            let index = self.rng.below(load.shared_blocks);
            self.tag(None, index)
        } else {
            let index = self.rng.below(load.private_blocks);
            self.tag(Some(host), index)
        };
        let own = &mut self.hosts[host].threads[thread];
        (own.last, own.made, own.waits_since) = (tag, own.made + 1, Some(self.now));
        let id = own.made * load.threads as u64 + thread as u64;
        let is_read = self.rng.below(100) < load.reads_percent;
        let call = self.access(id, tag, is_read);
        let (now, mut sent) = (self.clock(), Vec::new());
        self.hosts[host].node.call(now, call, &mut sent);
        let is_silent = sent.is_empty();
        let end = self.send(host, None, self.now, sent);
        let before = self.seen.accesses;
        self.done(host, end);
        self.seen.hits += if is_silent { self.seen.accesses - before } else { 0 };
        self.sleep(host);
    }

    /// Schedules a node's next deadline.
    fn sleep(&mut self, host: usize) {
        let due = self.hosts[host].node.deadline().at;
        if due != Instant::NEVER && due.0 < self.hosts[host].wake_at {
            self.hosts[host].wake_at = due.0;
            self.at(due.0, Event::Wake(host));
        }
    }
}
