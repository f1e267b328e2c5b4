//! Switches as members of a chain: epochs, leases, copies, and the chain's interaction with the
//! rest of the switch. Packets arrive at once and in order, except at switches that are cut off.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, VecDeque};

use concord_core::{Epoch, Guards, Incarnation, Instant, MS, Machine, Now, SEC};
use concord_switch::{Agent, AgentConfig, ChainLayout, ChainSeat, Loop};
use concord_wire::control::{
    ChainMessage, Config, Finding, GroupKind, Member, Membership, Message as _, Program,
    ReplicaAlive, Standing,
};
use concord_wire::netcraq::{Command, Name, Op, Outcome, Repr, Stamp, State, Words};
use concord_wire::{Addr, GroupId, Kind};

const CHAIN: GroupId = GroupId(3);
const CLIENT: Addr = Addr { ip: 9, port: 9_000 };
const CONTROLLER: Addr = Addr { ip: 8, port: 1 };
const LEASE_NS: u64 = 100 * MS;

fn addr(node: u16) -> Addr {
    Addr { ip: 1, port: 7_000 + node }
}

const LAYOUT: ChainLayout =
    ChainLayout { cells: 128, sessions: 128, value_bytes: 16, patience_ns: 20 * MS };

fn switch(node: u16, incarnation: u64, layout: ChainLayout, is_alone: bool) -> Agent {
    switch_with(Guards::ALL, node, incarnation, layout, is_alone)
}

fn switch_with(
    guards: Guards,
    node: u16,
    incarnation: u64,
    layout: ChainLayout,
    is_alone: bool,
) -> Agent {
    let seat = ChainSeat { lease_ns: LEASE_NS, ..ChainSeat::new(CHAIN, node) };
    let told = AgentConfig::new(Incarnation(incarnation), addr(node), CONTROLLER);
    let mut told =
        AgentConfig { chain: Some((seat, is_alone)), recirculation: Loop::AT_ONCE, ..told };
    (told.sections.chain, told.guards) = (layout, guards);
    Agent::new(told).unwrap()
}

fn name(key: u32) -> Name {
    Name::new(format!("key-{key}").as_bytes()).unwrap()
}

/// Switches 1 to 3, some of which may be cut off from each other and from the controller.
struct Rig {
    agents: Vec<Agent>,
    incarnations: Vec<u64>,
    now_ns: u64,
    cut: Vec<u16>,
    epoch: u32,
    founded: u32,
    /// The answers that clients got, and the last message of each switch to the controller.
    answers: Vec<Repr>,
    /// Findings that clients got, and their knowledge of keys: the cell, and the epoch and version
    /// at that time.
    found: Vec<(u32, Finding)>,
    cells: BTreeMap<u32, (u32, Epoch, u64)>,
    said: Vec<Option<ReplicaAlive>>,
    requests: u32,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(Guards::ALL)
    }

    fn with(guards: Guards) -> Rig {
        let agents = (1..=3).map(|node| switch_with(guards, node, 1, LAYOUT, true)).collect();
        Rig {
            agents,
            incarnations: vec![1; 3],
            now_ns: SEC,
            cut: vec![],
            epoch: 0,
            founded: 1,
            answers: vec![],
            found: vec![],
            cells: BTreeMap::new(),
            said: vec![None, None, None],
            requests: 0,
        }
    }

    fn now(&self) -> Now {
        Now { instant: Instant(self.now_ns), unix_ms: 0 }
    }

    fn is_cut(&self, one: Addr, other: Addr) -> bool {
        let is_off = |at: Addr| self.cut.iter().any(|node| addr(*node) == at);
        (is_off(one) || is_off(other)) && one != CLIENT && other != CLIENT
    }

    /// Delivers a packet and those that it causes.
    fn deliver(&mut self, from: Addr, to: Addr, bytes: Vec<u8>) {
        let mut way = VecDeque::from([(from, to, bytes)]);
        while let Some((from, to, mut bytes)) = way.pop_front() {
            if self.is_cut(from, to) {
                continue;
            }
            if to == CLIENT {
                match ChainMessage::parse(&bytes) {
                    Ok(ChainMessage::Found { epoch, finding, .. }) => {
                        self.found.push((epoch, finding));
                    }
                    _ => self.answers.push(Repr::parse(&bytes).unwrap()),
                }
            } else if to == CONTROLLER {
                self.hears(&bytes);
            } else {
                let index = usize::from(to.port - 7_001);
                let (now, mut sent) = (self.now(), Vec::new());
                self.agents[index].handle(now, from, &mut bytes, &mut sent);
                self.agents[index].tick(now, &mut sent);
                way.extend(sent.into_iter().map(|(next, bytes)| (to, next, bytes)));
            }
        }
    }

    fn hears(&mut self, bytes: &[u8]) {
        if let Ok(Membership::ReplicaAlive(alive)) = Membership::parse(bytes) {
            let index = usize::from(alive.member.node - 1);
            self.said[index] = Some(alive);
        }
    }

    fn standing(&self, node: u16) -> Standing {
        self.said[usize::from(node - 1)].as_ref().unwrap().standing
    }

    /// Lets `ns` pass, and wakes every switch that is due.
    fn passes(&mut self, ns: u64) {
        for _ in 0..ns / MS {
            self.now_ns += MS;
            for index in 0..self.agents.len() {
                let (now, mut sent) = (self.now(), Vec::new());
                self.agents[index].tick(now, &mut sent);
                let from = addr(index as u16 + 1);
                sent.into_iter().for_each(|(to, bytes)| self.deliver(from, to, bytes));
            }
        }
    }

    /// Sends the configuration of the next epoch to the switches that are not cut off.
    fn configure(&mut self, members: &[u16], joining: &[u16]) {
        self.epoch += 1;
        let member = |node: &u16| Member {
            node: *node,
            incarnation: self.incarnations[usize::from(*node - 1)],
            addr: addr(*node),
        };
        let config = Config {
            epoch: self.epoch,
            group: CHAIN,
            rack: 1,
            switch_id: self.founded,
            switch_incarnation: 0,
            switch: Addr::default(),
            kind: GroupKind::Switches,
            program: Program::NetCraq,
            members: members.iter().map(member).collect(),
            joining: joining.iter().map(member).collect(),
        };
        let mut bytes = Vec::new();
        Membership::Configure(config.into()).emit_in(CHAIN, &mut bytes);
        (1..=3).for_each(|node| self.deliver(CONTROLLER, addr(node), bytes.clone()));
    }

    fn asks(&mut self, node: u16, packet: Repr) -> Option<Repr> {
        self.answers.clear();
        let packet = Repr { group: CHAIN, client: CLIENT, ..packet };
        self.deliver(CLIENT, addr(node), packet.packet());
        self.answers.first().copied()
    }

    /// The cell of a key, which the client knows or asks for.
    fn find(&mut self, node: u16, key: u32, gives: bool) -> Option<Finding> {
        if let Some((cell, _, version)) = self.cells.get(&key).copied() {
            return Some(Finding::At { cell, version });
        }
        self.found.clear();
        let find = ChainMessage::Find {
            epoch: 0,
            from: 0,
            client: CLIENT,
            number: 1,
            name: name(key),
            gives,
        };
        let mut bytes = Vec::new();
        find.emit_in(CHAIN, &mut bytes);
        self.deliver(CLIENT, addr(node), bytes);
        let (epoch, finding) = self.found.first().copied()?;
        if let Finding::At { cell, version } = finding {
            self.cells.insert(key, (cell, Epoch(epoch), version));
        }
        Some(finding)
    }

    fn set(&mut self, node: u16, key: u32, text: &[u8]) -> Option<(Outcome, u64)> {
        let Finding::At { cell, version } = self.find(node, key, true)? else { return None };
        self.requests += 1;
        let (state, value) =
            (State::present(version, text.len() as u8, false), Words::new(text).unwrap());
        let stamp = Stamp::new(5, 1, self.requests);
        let packet = Repr { state, value, name: name(key), stamp, ..Repr::new(Op::Write, cell, 2) };
        let packet = Repr { is_given: true, epoch: self.cells[&key].1, ..packet };
        let answer = self.asks(node, packet)?;
        if answer.outcome == Outcome::Taken {
            self.cells.remove(&key);
            return self.set(node, key, text);
        }
        Some((answer.outcome, answer.basis))
    }

    /// The value of a key; empty if there is none, or if the switch answers every time that its
    /// cell has another name.
    fn get(&mut self, node: u16, key: u32) -> Option<Vec<u8>> {
        for _ in 0..3 {
            let Finding::At { cell, .. } = self.find(node, key, false)? else { break };
            let answer =
                self.asks(node, Repr { name: name(key), ..Repr::new(Op::Read, cell, 2) })?;
            if answer.outcome != Outcome::Taken {
                let length = usize::from(answer.state.length_bytes());
                return Some(answer.value.bytes()[..length].to_vec());
            }
            self.cells.remove(&key);
        }
        Some(vec![])
    }

    fn del(&mut self, node: u16, key: u32) -> Option<Outcome> {
        let Finding::At { cell, .. } = self.find(node, key, false)? else {
            return Some(Outcome::Absent);
        };
        self.requests += 1;
        let (stamp, command) = (Stamp::new(5, 1, self.requests), Command::Del);
        let packet = Repr { name: name(key), stamp, command, ..Repr::new(Op::Write, cell, 2) };
        self.asks(node, packet).map(|answer| answer.outcome)
    }

    /// An open chain of the switches 1, 2 and 3.
    fn open() -> Rig {
        Rig::open_with(Guards::ALL)
    }

    fn open_with(guards: Guards) -> Rig {
        let mut rig = Rig::with(guards);
        rig.configure(&[1, 2, 3], &[]);
        rig.passes(10 * MS);
        assert!((1..=3).all(|node| rig.standing(node) == Standing::Open { caught_up: true }));
        rig
    }
}

/// A switch that only clients reach answers only as long as its leases last, and until then no
/// other switch answers in the next epoch (traps T2 and T31, hole N5).
#[test]
fn t2_a_switch_answers_as_long_as_it_holds_all_leases() {
    let mut rig = Rig::open();
    assert_eq!(rig.set(1, 0, b"old"), Some((Outcome::Done, 1)));
    assert_eq!(rig.get(2, 0).unwrap(), b"old");
    rig.cut = vec![2];
    rig.configure(&[1, 3], &[]);
    let mut alone_ns = 0;
    while rig.get(2, 0).is_some() {
        assert_eq!(rig.set(1, 0, b"new"), None, "while 2 may answer nothing is written");
        assert_eq!(rig.get(3, 0), None);
        rig.passes(MS);
        alone_ns += MS;
    }
    assert!(alone_ns <= LEASE_NS, "{alone_ns}");
    rig.passes(LEASE_NS);
    assert_eq!(rig.set(1, 0, b"new").map(|(outcome, _)| outcome), Some(Outcome::Done));
    assert_eq!((rig.get(3, 0).unwrap(), rig.get(2, 0)), (b"new".to_vec(), None));
}

/// The leases of a chain continue while the controller is away for minutes (trap T8).
#[test]
fn t8_leases_of_a_chain_go_on_without_its_controller() {
    let mut rig = Rig::open();
    rig.passes(10 * SEC);
    assert_eq!(rig.set(3, 0, b"on"), Some((Outcome::Done, 1)));
    for node in 1..=3 {
        assert_eq!(rig.get(node, 0).unwrap(), b"on");
    }
}

/// A newcomer copies cells and sessions while writes go on, and then what was written meanwhile;
/// after that it is the tail, and has all that was committed (hole N6).
#[test]
fn n6_a_newcomer_has_all_that_was_committed_meanwhile() {
    let mut rig = Rig::new();
    rig.configure(&[1, 2], &[]);
    rig.passes(10 * MS);
    for cell in 0..100 {
        assert_eq!(rig.set(1, cell, b"before"), Some((Outcome::Done, 1)));
    }
    rig.configure(&[1, 2], &[3]);
    rig.passes(2 * MS);
    for cell in 50..110 {
        rig.set(1, cell, b"meanwhile").unwrap();
        rig.passes(MS);
    }
    assert_eq!(rig.standing(3), Standing::Copied);
    assert_eq!(rig.get(3, 0), None, "it answers nothing");
    // A write that the newcomer misses; then both other members fail.
    rig.cut = vec![3];
    rig.set(1, 7, b"unheard").unwrap();
    rig.cut = vec![];
    rig.configure(&[1, 2, 3], &[]);
    rig.passes(20 * MS);
    assert_eq!(rig.standing(3), Standing::Open { caught_up: true });
    rig.cut = vec![1, 2];
    rig.configure(&[3], &[]);
    rig.passes(2 * LEASE_NS);
    assert_eq!(rig.get(3, 0).unwrap(), b"before");
    assert_eq!(rig.get(3, 7).unwrap(), b"unheard");
    assert_eq!(rig.get(3, 80).unwrap(), b"meanwhile");
    // The session's last request is there too: it is not executed a second time.
    rig.requests -= 1;
    assert_eq!(rig.set(3, 7, b"unheard"), Some((Outcome::Done, 2)));
}

/// A switch that was removed, or has restarted, begins with empty registers (trap T4).
#[test]
fn t4_a_switch_that_lost_its_place_begins_with_nothing() {
    let mut rig = Rig::open();
    rig.set(1, 0, b"x").unwrap();
    rig.configure(&[1, 2], &[]);
    assert_eq!(rig.agents[2].program().chain().unwrap().peek(0).0, State(0));
    rig.passes(60 * MS);
    assert_eq!(rig.standing(3), Standing::Out);
    // A new incarnation hears of an epoch in which the previous one was a member.
    rig.agents[1] = switch(2, 2, LAYOUT, true);
    rig.configure(&[1, 2], &[]);
    rig.passes(2 * LEASE_NS);
    assert_eq!((rig.standing(2), rig.get(2, 0)), (Standing::Out, None));
    assert_eq!(rig.get(1, 0), None, "nor does the other one go on without it");
}

/// Registers outlive epochs; a chain that is founded anew begins empty, and with higher versions
/// than any before.
#[test]
fn n8_no_version_comes_back_in_a_chain_that_is_founded_anew() {
    let mut rig = Rig::open();
    assert_eq!(rig.set(1, 0, b"x"), Some((Outcome::Done, 1)));
    rig.configure(&[2, 3, 1], &[]);
    rig.passes(10 * MS);
    assert_eq!(rig.set(1, 0, b"y"), Some((Outcome::Done, 2)));
    rig.founded = 2;
    rig.configure(&[1, 2, 3], &[]);
    rig.passes(10 * MS);
    assert_eq!(rig.get(1, 0).unwrap(), b"");
    assert_eq!(rig.set(1, 0, b"z"), Some((Outcome::Done, (1 << 40) + 1)));
}

/// No two names share a cell, whichever switch is asked. The cell of a deleted key goes to another
/// name once no other cell is left, and the name that had it gets another one (hole N8).
#[test]
fn n8_every_name_has_a_cell_of_its_own() {
    let mut rig = Rig::open();
    for key in 0..LAYOUT.cells {
        assert_eq!(rig.set(1 + (key % 3) as u16, key, b"x"), Some((Outcome::Done, 1)));
    }
    let mut cells: Vec<u32> = rig.cells.values().map(|(cell, ..)| *cell).collect();
    cells.sort_unstable();
    assert_eq!(cells, (0..LAYOUT.cells).collect::<Vec<_>>());
    assert_eq!(rig.find(2, 999, true), Some(Finding::Full));
    assert_eq!(rig.find(2, 999, false), Some(Finding::Absent));
    assert_eq!(rig.del(3, 7), Some(Outcome::Done));
    let of_seven = rig.cells[&7];
    assert_eq!(rig.set(1, 999, b"new"), Some((Outcome::Done, 3)));
    assert_eq!(rig.cells[&999].0, of_seven.0);
    // A client with an old mapping neither writes nor reads another key, and asks again.
    assert_eq!(rig.set(1, 7, b"old"), None, "no cell is left");
    assert_eq!((rig.get(2, 7), rig.get(3, 999)), (Some(vec![]), Some(b"new".to_vec())));
    assert_eq!(rig.del(1, 999), Some(Outcome::Done));
    rig.cells.remove(&7);
    assert_eq!(rig.set(2, 7, b"again"), Some((Outcome::Done, 5)));
    assert_eq!((rig.get(3, 7), rig.get(1, 999)), (Some(b"again".to_vec()), Some(vec![])));
}

/// A cell that a head gave cannot be taken in the next epoch: its successor may have given the name
/// another cell, or the cell to another name (hole N8).
#[test]
fn n8_a_cell_that_an_earlier_epoch_gave_is_not_taken() {
    let mut rig = Rig::open();
    let given = rig.find(1, 1, true);
    assert_eq!(given, rig.find(2, 1, true), "the same as long as it may be taken");
    let delayed = rig.cells.remove(&1).unwrap();
    rig.configure(&[2, 3], &[]);
    rig.passes(2 * LEASE_NS);
    assert_eq!(rig.find(2, 2, true), given, "the cell was not taken, and is another name's");
    assert_eq!(rig.set(2, 1, b"one").map(|(outcome, _)| outcome), Some(Outcome::Done));
    let before = rig.cells.insert(1, delayed).unwrap();
    assert_eq!(rig.set(3, 1, b"uno").map(|(outcome, _)| outcome), Some(Outcome::Done));
    assert_eq!(rig.cells[&1].0, before.0, "it was told, and asked again");
    assert_eq!(rig.set(2, 2, b"two").map(|(outcome, _)| outcome), Some(Outcome::Done));
    assert_eq!((rig.get(2, 1), rig.get(3, 2)), (Some(b"uno".to_vec()), Some(b"two".to_vec())));
}

/// The cell of a deleted key goes to another name, and the tail does not hear of it at first.
/// Returns the outcome of writing the key again meanwhile, and the tail's answer to a client that
/// knows the old cell.
fn a_displaced_name(guards: Guards) -> (Option<Outcome>, Option<Vec<u8>>) {
    let mut rig = Rig::open_with(guards);
    assert!((0..LAYOUT.cells).all(|key| rig.set(1, key, b"x").is_some()));
    [7, 8].into_iter().for_each(|key| assert_eq!(rig.del(1, key), Some(Outcome::Done)));
    let old = rig.cells.remove(&7).unwrap();
    rig.cut = vec![2];
    assert_eq!(rig.set(1, 999, b"other"), None);
    assert_eq!(rig.cells[&999].0, old.0);
    rig.cut = vec![];
    let written = rig.set(1, 7, b"again").map(|(outcome, _)| outcome);
    rig.cells.insert(7, old);
    (written, rig.get(3, 7))
}

#[test]
fn n8_a_displaced_name_waits_until_all_know() {
    assert_eq!(a_displaced_name(Guards::ALL), (None, Some(vec![])));
}

/// A switch with other sizes cannot copy the content, and reports that it leaves.
#[test]
fn a_switch_of_other_sizes_gets_no_place() {
    let mut rig = Rig::new();
    rig.agents[2] = switch(3, 1, ChainLayout { cells: 32, ..LAYOUT }, true);
    rig.configure(&[1, 2], &[]);
    rig.configure(&[1, 2], &[3]);
    rig.passes(60 * MS);
    assert_eq!(rig.standing(3), Standing::Leaving);
    rig.configure(&[1, 2], &[]);
    rig.passes(60 * MS);
    assert_eq!(rig.standing(3), Standing::Leaving, "nor does it ask again");
}

/// A switch of both the rack and a chain registers for both: when another switch takes its place in
/// the rack, the chain goes on.
#[test]
fn a_chain_stays_where_another_switch_takes_the_rack() {
    let mut rig = Rig::new();
    rig.agents[0] = switch(1, 1, LAYOUT, false);
    rig.configure(&[1, 2, 3], &[]);
    rig.passes(10 * MS);
    rig.set(1, 0, b"x").unwrap();
    let deposes = Config {
        epoch: 9,
        group: GroupId(0),
        rack: 1,
        switch_id: 2,
        switch_incarnation: 7,
        switch: addr(9),
        kind: concord_wire::control::Protocol::Chain.into(),
        program: Program::Harmonia,
        members: vec![Member { node: 1, incarnation: 1, addr: addr(5) }],
        joining: vec![],
    };
    let mut bytes = Vec::new();
    Membership::Configure(deposes.into()).emit(&mut bytes);
    rig.deliver(CONTROLLER, addr(1), bytes);
    assert_eq!(rig.agents[0].counters().deposed, 1);
    assert_eq!(rig.get(1, 0).unwrap(), b"x");
    let (mut sent, now) = (Vec::new(), Now { instant: Instant(rig.now_ns + SEC), unix_ms: 0 });
    rig.agents[0].tick(now, &mut sent);
    let says = sent.iter().filter(|(to, _)| *to == CONTROLLER);
    let says: Vec<_> = says.map(|(_, b)| (concord_wire::kind(b), concord_wire::group(b))).collect();
    assert_eq!(says.len(), 2);
    assert!(says.iter().all(|(kind, _)| *kind == Ok(Kind::Membership)));
    assert_eq!((says[0].1, says[1].1), (GroupId(0), CHAIN));
}

/// The consequences of leaving out one of the checks.
#[cfg(feature = "mutants")]
mod guards {
    use concord_core::Guard;

    use super::*;

    /// Without the wait for outsiders' leases, the next epoch makes writes while a removed switch
    /// that misses them still answers; without the lease it answers for ever.
    #[test]
    fn a_removed_switch_answers_an_old_value() {
        for guard in [Guard::ChainOutsiders, Guard::ChainLease] {
            let mut rig = Rig::open_with(Guards::without(guard));
            assert_eq!(rig.set(1, 0, b"old"), Some((Outcome::Done, 1)));
            rig.cut = vec![2];
            rig.configure(&[1, 3], &[]);
            rig.passes(if guard == Guard::ChainOutsiders { 5 * MS } else { 2 * LEASE_NS });
            assert_eq!(rig.set(1, 0, b"new").map(|(outcome, _)| outcome), Some(Outcome::Done));
            assert_eq!(rig.get(2, 0).unwrap(), b"old", "without {guard:?}");
        }
    }

    /// Without the agreement, a tail lacks writes that were committed while it copied.
    #[test]
    fn a_new_tail_lacks_an_acknowledged_write() {
        let mut rig = Rig::with(Guards::without(Guard::ChainAgreement));
        rig.configure(&[1, 2], &[]);
        rig.passes(10 * MS);
        rig.configure(&[1, 2], &[3]);
        rig.passes(50 * MS);
        rig.cut = vec![3];
        rig.set(1, 7, b"unheard").unwrap();
        rig.cut = vec![];
        rig.configure(&[1, 2, 3], &[]);
        rig.passes(20 * MS);
        assert_eq!((rig.get(1, 7).unwrap(), rig.get(3, 7).unwrap()), (b"unheard".to_vec(), vec![]));
    }

    /// Without `NameDisplaced` the tail answers that a key does not exist whose write was
    /// acknowledged.
    #[test]
    fn a_written_key_is_not_to_be_found() {
        let seen = a_displaced_name(Guards::without(Guard::NameDisplaced));
        assert_eq!(seen, (Some(Outcome::Done), Some(vec![])));
    }

    /// Without `ChainStranger` a removed head restores writes that were never committed.
    #[test]
    fn a_removed_switch_keeps_what_it_had() {
        let mut rig = Rig::open_with(Guards::without(Guard::ChainStranger));
        rig.cut = vec![1];
        assert_eq!(rig.set(1, 0, b"nobody's"), None);
        rig.configure(&[2, 3], &[]);
        rig.cut = vec![];
        rig.configure(&[2, 3], &[1]);
        let (state, ..) = rig.agents[0].program().chain().unwrap().peek(0);
        assert_eq!(state.version(), 1, "a version that the chain gives to another write");
    }
}
