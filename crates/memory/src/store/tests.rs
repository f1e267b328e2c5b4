//! Tests of stores at the nodes of a memory without a switch: homes keep blocks coherent.
#![allow(clippy::unwrap_used)]

use alloc::string::ToString as _;
use core::ops::Range;

use concord_core::{Guards, MS, NodeId};
use concord_wire::GroupId;
use concord_wire::concordia::home_place;
use concord_wire::control::{Config, GroupKind, Member, Membership, Message as _, Program};

use super::*;
use crate::{Coherence, MemberSettings};

const LEASE_MS: u64 = 100;
const GROUP: GroupId = GroupId(1);
const RANGE_BLOCKS: u64 = 64;

fn at(ms: u64) -> Now {
    Now { instant: Instant(ms * MS), unix_ms: ms }
}

fn place(node: u16) -> Addr {
    Addr { ip: 3, port: node }
}

/// Stores by node, with a session each, and the packets in flight.
struct Rig {
    ms: u64,
    stores: BTreeMap<u16, Store>,
    epoch: u32,
    flights: Vec<(Addr, Vec<u8>)>,
}

impl Rig {
    fn new(nodes: Range<u16>) -> Rig {
        let mut rig = Rig { ms: 1, stores: BTreeMap::new(), epoch: 0, flights: Vec::new() };
        nodes.clone().for_each(|node| rig.start(node, b""));
        rig.begins(&nodes.collect::<Vec<_>>());
        rig.runs(2 * LEASE_MS);
        rig
    }

    fn start(&mut self, node: u16, password: &[u8]) {
        let settings = MemberSettings {
            node: NodeId(node),
            incarnation: u64::from(node),
            addr: place(node),
            controller: Addr { ip: 4, port: 4 },
            group: GROUP,
            block_bytes: 512,
            range_blocks: RANGE_BLOCKS,
            cache_sets: 4,
            cache_ways: 4,
            lanes: 4,
            coherence: Coherence::Base,
            lease_ns: LEASE_MS * MS,
            guards: Guards::ALL,
        };
        let memory = MemoryNode::new(at(self.ms), settings).unwrap();
        let mut store = Store::new(memory, password);
        store.opened(1);
        self.stores.insert(node, store);
    }

    /// Sends the configuration of the next epoch to all nodes.
    fn begins(&mut self, members: &[u16]) {
        self.epoch += 1;
        let member =
            |node: &u16| Member { node: *node, incarnation: u64::from(*node), addr: place(*node) };
        let config = Config {
            epoch: self.epoch,
            group: GROUP,
            rack: 1,
            switch_id: 1,
            switch_incarnation: 1,
            switch: Addr { ip: 1, port: 1 },
            kind: GroupKind::Memory,
            program: Program::Concordia,
            members: members.iter().map(member).collect(),
            joining: Vec::new(),
        };
        for part in config.parts() {
            let mut bytes = Vec::new();
            Membership::Configure(part).emit_in(GROUP, &mut bytes);
            for store in self.stores.values_mut() {
                store.handle(at(self.ms), place(0), &mut bytes.clone(), &mut self.flights);
            }
        }
    }

    fn runs(&mut self, ms: u64) {
        for _ in 0..ms {
            self.ms += 1;
            for store in self.stores.values_mut() {
                store.tick(at(self.ms), &mut self.flights);
            }
            for _ in 0..10_000 {
                if self.flights.is_empty() {
                    break;
                }
                let (to, mut bytes) = self.flights.remove(0);
                if let Some(store) = self.stores.get_mut(&to.port).filter(|_| to.ip == 3) {
                    store.handle(at(self.ms), place(0), &mut bytes, &mut self.flights);
                }
            }
        }
    }

    fn asks(&mut self, node: u16, line: &str) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let store = self.stores.get_mut(&node).unwrap();
        store.command(at(self.ms), 1, &words, &mut self.flights);
    }

    /// The answer of a node; empty if there is none yet.
    fn answer(&mut self, node: u16) -> String {
        let output = self.stores.get_mut(&node).unwrap().output(1).unwrap();
        String::from_utf8(core::mem::take(output)).unwrap().trim_end().to_string()
    }

    fn says(&mut self, node: u16, line: &str) -> String {
        self.asks(node, line);
        self.runs(20);
        self.answer(node)
    }
}

#[test]
fn keys_are_one_store_at_all_nodes() {
    let mut rig = Rig::new(1..4);
    for key in 0..50 {
        assert_eq!(rig.says(1, &alloc::format!("SET key{key} {key}")), "+OK");
    }
    for key in 0..50 {
        let (text, node) = (key.to_string(), 2 + key % 2);
        let wanted = alloc::format!("${}\r\n{text}", text.len());
        assert_eq!(rig.says(node, &alloc::format!("GET key{key}")), wanted);
    }
    for node in [1, 2, 3, 1, 2] {
        rig.says(node, "INCR n");
    }
    assert_eq!(rig.says(3, "GET n"), "$1\r\n5");
    assert_eq!(rig.says(3, "CAS n 5 other"), ":1");
    assert_eq!(rig.says(1, "CAS n 5 more"), ":0");
    assert_eq!(rig.says(2, "EXISTS key0 key1 none n"), ":3");
    assert_eq!(rig.says(2, "DEL key0 key1 none"), ":2");
    assert_eq!(rig.says(1, "GET key0"), "$-1");
    assert!(rig.says(1, "LPUSH key0 1").starts_with("-ERR unknown command"));
    assert!(rig.says(1, "GET").starts_with("-ERR wrong number of arguments"));
    let long = alloc::format!("SET key {}", "x".repeat(600));
    assert!(rig.says(1, &long).starts_with("-ERR key and value have 603 bytes"));
}

/// All nodes increment a key at the same time: no increment is lost.
#[test]
fn increments_of_all_nodes_sum_up() {
    let mut rig = Rig::new(1..5);
    let mut answered = 0;
    for _ in 0..2_000 {
        for node in 1..5 {
            let store = rig.stores.get_mut(&node).unwrap();
            if store.is_idle(1) {
                rig.asks(node, "INCR n");
            }
            answered += rig.answer(node).lines().count();
        }
        rig.runs(1);
    }
    rig.runs(100);
    answered += (1..5).map(|node| rig.answer(node).lines().count()).sum::<usize>();
    assert!(answered > 400, "{answered}");
    let wanted = alloc::format!("${}\r\n{answered}", answered.to_string().len());
    assert_eq!(rig.says(2, "GET n"), wanted);
}

/// A key whose home is the given node.
fn key_at(home: u16, members: &[u16]) -> String {
    let own = members.iter().position(|node| *node == home).unwrap() as u8;
    let keys = (0..).map(|key| alloc::format!("at{key}"));
    let is_there = |key: &String| {
        home_place(place_of_key(key.as_bytes(), RANGE_BLOCKS).range(), members) == Some(own)
    };
    keys.into_iter().find(is_there).unwrap()
}

/// A key whose only copy a dead node had is LOST, with instructions in the reply, until it is
/// renewed.
#[test]
fn lost_keys_say_so_until_they_are_renewed() {
    let mut rig = Rig::new(1..4);
    let (lost, kept) = (key_at(3, &[1, 2, 3]), key_at(1, &[1, 2, 3]));
    for key in [&lost, &kept] {
        assert_eq!(rig.says(3, &alloc::format!("SET {key} 1")), "+OK");
    }
    // Node 1 has a copy of that key.
    assert_eq!(rig.says(1, &alloc::format!("GET {kept}")), "$1\r\n1");
    rig.stores.remove(&3);
    rig.begins(&[1, 2]);
    rig.runs(3 * LEASE_MS);
    assert_eq!(rig.says(2, &alloc::format!("GET {kept}")), "$1\r\n1");
    for line in [alloc::format!("GET {lost}"), alloc::format!("SET {lost} 2")] {
        assert!(rig.says(2, &line).starts_with("-LOST "), "{line}");
    }
    let both = alloc::format!("DEL {kept} {lost}");
    assert!(
        rig.says(1, &both).starts_with("-UNKNOWN 1 of 2 keys are done, the others are not: LOST")
    );
    let block = place_of_key(lost.as_bytes(), RANGE_BLOCKS);
    let homes: Vec<String> =
        (1..3).map(|n| rig.says(n, &alloc::format!("CONCORD EXPLAIN {lost}"))).collect();
    let wanted = alloc::format!("since node {} is no member", block.range() + 1);
    assert!(homes.iter().all(|text| text.contains(&wanted)), "{homes:?}");
    assert_eq!(homes.iter().filter(|text| text.contains("lost: yes")).count(), 1, "{homes:?}");
    let renewed = [1, 2].map(|node| rig.says(node, "CONCORD RENEW"));
    assert!(renewed.iter().any(|count| count != ":0"), "{renewed:?}");
    assert_eq!(rig.says(1, "CONCORD RENEW"), ":0");
    assert_eq!(rig.says(2, &alloc::format!("SET {lost} 2")), "+OK");
    assert_eq!(rig.says(1, &alloc::format!("GET {lost}")), "$1\r\n2");
}

/// A command waits for a change of members, 5 s at most; then the reply says that it was not done,
/// and it never is.
#[test]
fn commands_wait_five_seconds_at_most() {
    let mut rig = Rig::new(1..3);
    let key = key_at(2, &[1, 2]);
    assert_eq!(rig.says(2, &alloc::format!("SET {key} 1")), "+OK");
    // Node 2 is silent, and the controller does not report it.
    let silent = rig.stores.remove(&2).unwrap();
    rig.asks(1, &alloc::format!("INCR {key}"));
    rig.runs(4_900);
    assert_eq!(rig.answer(1), "");
    rig.runs(200);
    assert!(rig.answer(1).starts_with("-NONODE "));
    rig.stores.insert(2, silent);
    rig.runs(500);
    assert_eq!(rig.says(1, &alloc::format!("GET {key}")), "$1\r\n1");
    // A command that waits while the members change is done after that.
    rig.stores.remove(&2);
    rig.asks(1, "INCR n");
    rig.begins(&[1]);
    rig.runs(3 * LEASE_MS);
    let reply = rig.answer(1);
    assert!([":1", "-LOST"].iter().any(|wanted| reply.starts_with(wanted)), "{reply}");
    assert_eq!(rig.stores[&1].waiting(), 0);
}

/// Without the password no command is executed; with it all are.
#[test]
fn a_password_is_asked_for() {
    let mut rig = Rig::new(1..2);
    rig.start(1, b"secret");
    rig.begins(&[1]);
    rig.runs(3 * LEASE_MS);
    assert!(rig.says(1, "GET a").starts_with("-NOAUTH"));
    assert!(rig.says(1, "HELLO 2").starts_with("-NOAUTH"));
    assert!(rig.says(1, "AUTH other").starts_with("-WRONGPASS"));
    assert!(rig.says(1, "GET a").starts_with("-NOAUTH"));
    assert_eq!(rig.says(1, "AUTH default secret"), "+OK");
    assert_eq!(rig.says(1, "SELECT 0"), "+OK");
    assert!(rig.says(1, "HELLO 3").starts_with("-NOPROTO"));
}

/// A client that disconnects takes its command with it, and others go on.
#[test]
fn a_client_that_is_gone_holds_up_nobody() {
    let mut rig = Rig::new(1..3);
    let key = key_at(2, &[1, 2]);
    rig.asks(1, &alloc::format!("SET {key} 1"));
    rig.stores.get_mut(&1).unwrap().closed(1);
    assert_eq!(rig.stores[&1].waiting(), 0);
    rig.stores.get_mut(&1).unwrap().opened(1);
    rig.runs(20);
    assert_eq!(rig.answer(1), "");
    assert_eq!(rig.says(2, &alloc::format!("SET {key} 2")), "+OK");
    assert_eq!(rig.says(1, &alloc::format!("GET {key}")), "$1\r\n2");
}
