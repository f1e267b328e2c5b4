//! A node of a shared memory: its machine over UDP, and the clients of its store over TCP.

mod clients;

use std::net::SocketAddr;

use concord_core::{Duration, Guards, Instant, NodeId, Nothing, Now, SEC};
use concord_memory::{Coherence, LANES_MAX, MemberSettings, MemoryNode, Store};
use concord_wire::{Addr, GroupId, OfGroup};
use tracing::{info, warn};

use crate::driver::{Persisted, ROLE_TOKEN_MIN, Role, STOP_NS_MAX, Stop};
use crate::error::Error;
use crate::http::{Health, Snapshot};
use crate::logging;
use crate::poller::{Event, Token};
use crate::roles::{Place, unique};
use crate::udp::Outbox;

use clients::Clients;

/// Blocks of a set of the cache.
pub const CACHE_WAYS: usize = 8;
/// How long a node that was told to end has to hand over what it has, in ns.
const LEAVE_NS: Duration = 20 * SEC;
/// How often it is counted how many blocks are here, in ns: it takes a walk over all of them.
const COUNT_NS: Duration = SEC;

const LISTENER: Token = Token(ROLE_TOKEN_MIN);

/// What a node is told beside its place.
#[derive(Clone, Debug)]
pub struct MemorySetup {
    /// The group that it is in.
    pub group: GroupId,
    /// Where the controller listens.
    pub controller: Addr,
    /// Where Redis clients connect.
    pub listen: SocketAddr,
    /// What clients must AUTH with; empty for nothing.
    pub requirepass: String,
    /// Length of a block in bytes: the same at all nodes.
    pub block_bytes: usize,
    /// Blocks of each of the 32 ranges: the same at all nodes.
    pub range_blocks: u64,
    /// Blocks that the cache holds, at least.
    pub cache_blocks: usize,
    /// How long a lease is, in ns: the same at all nodes.
    pub lease_ns: Duration,
    /// Who keeps blocks coherent: the same at all nodes.
    pub coherence: Coherence,
}

/// How many blocks are here, and how many are lost of its ranges.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    kept: usize,
    cached: usize,
    lost: u64,
}

#[derive(Debug)]
struct NodeRole {
    node: u16,
    store: OfGroup<Store>,
    clients: Clients,
    is_leaving: bool,
    /// It is to hand over what it has, to members that go on.
    hands_over: bool,
    counted: Counted,
    count_at: Instant,
    /// As logged last: the epoch, whether it is open, and lost blocks.
    logged: (u32, bool, u64),
}

/// Runs a node until it is told to end: then it hands over what it has, if others are there.
///
/// # Errors
/// One line for a person.
pub fn run(place: &Place, setup: &MemorySetup) -> Result<(), Error> {
    let _span = logging::span("node", place.node).entered();
    let mut driver = place.driver()?;
    let settings = MemberSettings {
        node: NodeId(place.node),
        incarnation: unique()?,
        addr: place.addr,
        controller: setup.controller,
        group: setup.group,
        block_bytes: setup.block_bytes,
        range_blocks: setup.range_blocks,
        cache_sets: setup.cache_blocks.div_ceil(CACHE_WAYS),
        cache_ways: CACHE_WAYS,
        lanes: LANES_MAX,
        coherence: setup.coherence,
        lease_ns: setup.lease_ns,
        guards: Guards::ALL,
    };
    let memory = MemoryNode::new(crate::clock::now(), settings);
    let memory = memory.map_err(|wrong| Error::new(wrong.to_string()))?;
    let store = Store::new(memory, setup.requirepass.as_bytes());
    let mut role = NodeRole {
        node: place.node,
        store: OfGroup::new(setup.group, store),
        clients: Clients::new(driver.poller(), LISTENER, setup.listen)?,
        is_leaving: false,
        hands_over: false,
        counted: Counted::default(),
        count_at: Instant(0),
        logged: (0, false, 0),
    };
    info!(addr = %place.addr, listen = %setup.listen, "started");
    driver.run(&mut role)?;
    match role.hands_over && !role.has_left() {
        true => warn!("stopped, and did not hand over what it had"),
        false => info!("stopped"),
    }
    Ok(())
}

impl NodeRole {
    fn has_left(&self) -> bool {
        self.store.memory().has_left() || self.store.memory().is_alone()
    }

    /// Why it serves nobody, if it does not.
    fn not_yet(&self, now: Now) -> Option<String> {
        let memory = self.store.memory();
        match memory.epoch() {
            _ if self.is_leaving => Some("it leaves the memory".to_string()),
            0 => Some("the controller has not made it a member yet".to_string()),
            epoch if memory.node().is_none() => {
                Some(format!("not all members have told what they have in epoch {epoch} yet"))
            }
            _ if !memory.is_leased(now) => {
                Some("it holds no lease: another member does not answer".to_string())
            }
            _ => None,
        }
    }
}

impl Role for NodeRole {
    type Machine = OfGroup<Store>;

    fn machine(&mut self) -> &mut OfGroup<Store> {
        &mut self.store
    }

    fn persist(&mut self, what: Nothing) -> Result<Persisted, Error> {
        match what {}
    }

    fn event(&mut self, event: Event, out: &mut Outbox) -> Result<(), Error> {
        if event.token == LISTENER {
            return self.clients.accept(&mut self.store);
        }
        self.clients.event(event, &mut self.store, out);
        Ok(())
    }

    fn attend(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        self.clients.serve(now, &mut self.store, out);
        if self.count_at <= now.instant {
            self.count_at = now.instant.after(COUNT_NS);
            let node = self.store.memory().node();
            self.counted = node.map_or_else(Counted::default, |node| Counted {
                kept: node.kept(),
                cached: node.lines().filter(|line| line.is_valid()).count(),
                lost: node.lost(),
            });
        }
        Ok(())
    }

    fn log(&mut self, _now: Now) {
        let memory = self.store.memory();
        let (epoch, is_open) = (memory.epoch(), memory.node().is_some());
        let seen = (epoch, is_open, self.counted.lost);
        let logged = std::mem::replace(&mut self.logged, seen);
        if (logged.0, logged.1) != (epoch, is_open) {
            let members: Vec<u16> = memory.members().map(|member| member.node).collect();
            info!(epoch, is_open, ?members, "state");
        }
        if is_open && seen.2 > logged.2 {
            let blocks = seen.2;
            warn!(
                blocks,
                "blocks of its ranges are lost: their only copies were at a node that is gone"
            );
        }
    }

    /// Hands over what it has, and answers what is under way.
    fn stop(&mut self, now: Now, why: Stop) -> bool {
        if !self.is_leaving {
            self.is_leaving = true;
            self.clients.close_listener();
            if why == Stop::Signal && !self.store.memory().is_alone() {
                self.hands_over = true;
                // Whoever waits is refused: nothing is sent for it.
                self.store.leave(now, &mut Vec::new());
            }
        }
        why == Stop::Rack || self.has_left()
    }

    fn stop_ns(&self, why: Stop) -> u64 {
        match why {
            Stop::Rack => STOP_NS_MAX,
            Stop::Signal => LEAVE_NS,
        }
    }

    fn snapshot(&self, now: Now) -> Snapshot {
        let mut s = Snapshot::new("node", self.node);
        let memory = self.store.memory();
        s.count(self.store.counters().each());
        s.count_as("member_", memory.counters().each());
        s.count_as("memory_", memory.node_counters().each());
        s.count(self.store.of_group_counters().each());
        let Counted { kept, cached, lost } = self.counted;
        let connections = self.store.session_count() as f64;
        s.gauge("connections_open", "Connections that are open.", connections);
        let waiting = self.store.waiting() as f64;
        s.gauge("waiting", "Commands that wait for the memory.", waiting);
        let help = "Blocks of its ranges that are not zeroes.";
        s.gauge("blocks_home", help, kept as f64);
        s.gauge("blocks_cached", "Blocks of which its cache has a copy.", cached as f64);
        let help =
            "Blocks of its ranges that are lost: their only copies were at a node that is gone.";
        s.gauge("blocks_lost", help, lost as f64);
        s.gauge("epoch", "The configuration that it is in.", memory.epoch().into());
        let not_yet = self.not_yet(now);
        s.tell("epoch", memory.epoch());
        s.tell("member", memory.epoch() > 0);
        s.tell("serving", not_yet.is_none());
        s.tell("leaving", self.is_leaving);
        let members: Vec<u16> = memory.members().map(|member| member.node).collect();
        s.tell("members", members);
        if let Some(why) = not_yet {
            s.health = Health::NotYet(why);
        }
        s
    }
}
