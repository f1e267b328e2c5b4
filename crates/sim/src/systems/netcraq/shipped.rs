//! Chains of the switch program that ships, for the explorer and the rack: the packets that leave a
//! pass, and the content that each version of a key must have.

use std::hash::Hash as _;

use concord_core::{Guards, Incarnation, Instant, Now};
use concord_pisa::{Metadata, Verdict};
use concord_switch::program::Copied;
use concord_switch::{
    AgentConfig, ChainLayout, Ingress, Load as _, LoadError, NetCraq, PortTable, SwitchProgram as _,
};
use concord_wire::control::{Config, GroupKind, Member, Program};
use concord_wire::netcraq::{Command, Condition, Name, Op, Outcome, Repr, Stamp, State, Words};
use concord_wire::{Addr, GroupId};
use rustc_hash::FxHasher;

use super::explore::{Answer, Call, Chain, Flight};

/// The network of the switches, as part of their addresses.
const SWITCHES: u32 = 10;
/// The network of the clients, as part of their addresses.
const CLIENTS: u32 = 20;

/// The address of a member.
#[must_use]
pub fn addr_of(member: usize) -> Addr {
    Addr { ip: SWITCHES, port: 1 + member as u16 }
}

/// The address of a client.
#[must_use]
pub fn client_of(client: usize) -> Addr {
    Addr { ip: CLIENTS, port: 1 + client as u16 }
}

/// The member with an address.
#[must_use]
pub fn member_at(addr: Addr) -> Option<usize> {
    (addr.ip == SWITCHES && addr.port > 0).then(|| usize::from(addr.port - 1))
}

/// The client with an address.
#[must_use]
pub fn client_at(addr: Addr) -> Option<usize> {
    (addr.ip == CLIENTS && addr.port > 0).then(|| usize::from(addr.port - 1))
}

/// A switch of a chain, without a configuration.
///
/// # Errors
/// The store is not possible: the reason.
pub fn switch(member: usize, layout: ChainLayout, guards: Guards) -> Result<NetCraq, LoadError> {
    let mut told = AgentConfig::new(Incarnation(1), addr_of(member), Addr::default());
    (told.sections.chain, told.guards) = (layout, guards);
    NetCraq::load(&told.settings())
}

/// The configuration of a chain of these members, the head first.
#[must_use]
pub fn config(epoch: u32, members: &[usize]) -> Config {
    let member =
        |index: &usize| Member { node: 1 + *index as u16, incarnation: 1, addr: addr_of(*index) };
    Config {
        epoch,
        group: GroupId::FIRST,
        rack: 1,
        switch_id: 1,
        switch_incarnation: 1,
        switch: addr_of(members.first().copied().unwrap_or(0)),
        kind: GroupKind::Switches,
        program: Program::NetCraq,
        members: members.iter().map(member).collect(),
        joining: Vec::new(),
    }
}

/// The result of a pass: the packets that leave, and a recirculated one.
#[derive(Debug, Default)]
pub struct Passed {
    /// The packets that leave, with their destinations.
    pub sent: Vec<(Addr, Vec<u8>)>,
    /// The recirculated packet, with the metadata for its next pass.
    pub round: Option<(Metadata, Vec<u8>)>,
}

/// Runs one pass of a packet.
pub fn pass(
    program: &mut NetCraq,
    now: Instant,
    sender: Addr,
    round: Option<Metadata>,
    bytes: &mut [u8],
) -> Passed {
    let ports = PortTable::default();
    let first = Ingress::first(Now { instant: now, unix_ms: 0 }, sender, &ports);
    let ingress =
        Ingress { passes: u8::from(round.is_some()), metadata: round.unwrap_or_default(), ..first };
    let mut passed = Passed::default();
    match program.process(&ingress, bytes) {
        Verdict::Drop(_) => {}
        Verdict::Forward { to, size_bytes } => passed.sent.push((to, bytes[..size_bytes].to_vec())),
        Verdict::Reply { size_bytes } => passed.sent.push((sender, bytes[..size_bytes].to_vec())),
        Verdict::Multicast { size_bytes, .. } => {
            let mut index = 0;
            while let Some(to) = program.member(0, index) {
                let mut copy = bytes[..size_bytes].to_vec();
                program.egress(&Copied { index, port: None, to }, &mut copy);
                passed.sent.push((to, copy));
                index += 1;
            }
        }
        Verdict::Mirror { to, copy_bytes, metadata, size_bytes } => {
            let mut copy = bytes[..copy_bytes].to_vec();
            program.egress(&Copied { index: 0, port: None, to }, &mut copy);
            passed.sent.push((to, copy));
            passed.round = Some((metadata, bytes[..size_bytes].to_vec()));
        }
        Verdict::Recirculate { metadata, size_bytes } => {
            passed.round = Some((metadata, bytes[..size_bytes].to_vec()));
        }
    }
    passed
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Does {
    /// Reads the key.
    Read,
    /// Sets the key to this number.
    Set(u8),
    /// Sets the key if it does not exist.
    SetAbsent(u8),
    /// Sets the key to the second number if it has the first.
    Swap(u8, u8),
    /// Adds 1.
    Incr,
    /// Deletes the key.
    Del,
}

/// A key with its number; `None` if the key does not exist.
type Content = Option<(Name, u64)>;

/// The content of a key after a call, or the outcome if the call does not change it.
fn model(name: Name, does: Does, was: Content) -> Result<Content, Outcome> {
    let own = was.filter(|(other, _)| *other == name).map(|(_, number)| number);
    if was.is_some() && own.is_none() {
        return Err(Outcome::Taken);
    }
    let to = |number: u64| Ok(Some((name, number)));
    match (does, own) {
        (Does::Read, _) => Ok(was),
        (Does::SetAbsent(_), Some(_)) => Err(Outcome::Refused),
        (Does::Set(number) | Does::SetAbsent(number), _) => to(number.into()),
        (Does::Swap(..) | Does::Del, None) => Err(Outcome::Absent),
        (Does::Swap(from, number), Some(found)) if found == u64::from(from) => to(number.into()),
        (Does::Swap(..), Some(_)) => Err(Outcome::Refused),
        (Does::Incr, found) => to(found.unwrap_or(0) + 1),
        (Does::Del, Some(_)) => Ok(None),
    }
}

/// A chain of switches with one cell.
#[derive(Clone, Debug)]
pub struct ShippedChain {
    members: Vec<Option<NetCraq>>,
    epoch: u32,
    layout: ChainLayout,
    /// For each client, the key that it calls, and its operations.
    calls: Vec<(Name, Vec<Does>)>,
    /// The content of each version, as the head has numbered them, from 1 on, and the call that
    /// wrote it.
    versions: Vec<(Stamp, Content)>,
}

impl ShippedChain {
    /// A chain of this number of switches. Each client calls one key.
    ///
    /// # Panics
    /// If there can be no such chain.
    #[must_use]
    pub fn new(switches: usize, guards: Guards, calls: &[(&str, Vec<Call<Does>>)]) -> ShippedChain {
        let sessions = calls.len().next_power_of_two() as u32;
        let layout = ChainLayout { cells: 1, sessions, value_bytes: 16, patience_ns: 1 };
        let all: Vec<usize> = (0..switches).collect();
        let config = config(1, &all);
        let member = |index| {
            let mut program = switch(index, layout, guards).ok()?;
            program.install(Now::default(), &config).ok()?;
            Some(program)
        };
        let members: Vec<Option<NetCraq>> = (0..switches).map(member).collect();
        assert!(members.iter().all(Option::is_some), "there is such a chain");
        let of = |(name, calls): &(&str, Vec<Call<Does>>)| {
            let name = Name::new(name.as_bytes()).unwrap_or_default();
            (name, calls.iter().map(|call| call.does).collect())
        };
        let calls = calls.iter().map(of).collect();
        ShippedChain { members, epoch: 1, layout, calls, versions: Vec::new() }
    }

    fn live(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|index| self.members[*index].is_some()).collect()
    }

    fn state(&self, member: usize) -> State {
        self.members[member].as_ref().map_or(State(0), |program| program.peek(0).0)
    }

    fn head(&self) -> State {
        self.live().first().map_or(State(0), |head| self.state(*head))
    }

    fn tail(&self) -> State {
        self.live().last().map_or(State(0), |tail| self.state(*tail))
    }

    /// The content that a version must have; version 0 is an empty cell.
    fn content(&self, version: u64) -> Content {
        version.checked_sub(1).and_then(|at| self.versions.get(at as usize)).and_then(|v| v.1)
    }

    fn call_of(&self, stamp: Stamp) -> Option<(Name, Does)> {
        let (name, calls) = self.calls.get(usize::from(stamp.slot()))?;
        Some((*name, *calls.get(stamp.request() as usize - 1)?))
    }

    /// Notes the version of a write with this `stamp`, if the head has numbered it.
    fn numbered(&mut self, stamp: Stamp) -> Result<(), String> {
        let version = self.head().version();
        if version as usize <= self.versions.len() {
            return Ok(());
        }
        if version as usize != self.versions.len() + 1 {
            return Err(format!("the head has version {version} after {}", self.versions.len()));
        }
        if self.versions.iter().any(|(other, _)| *other == stamp) {
            return Err(format!("{stamp:?} is executed twice"));
        }
        let (name, does) = self.call_of(stamp).ok_or("a version of no call")?;
        let becomes = model(name, does, self.content(version - 1))
            .map_err(|why| format!("{does:?} is executed, which has to be {why:?}"))?;
        self.versions.push((stamp, becomes));
        Ok(())
    }

    /// The answer in a packet, with its rank.
    fn answer(&self, from: usize, packet: &Repr) -> Result<Answer, String> {
        let (client, request) =
            (client_at(packet.client).ok_or("an answer for nobody")?, packet.stamp);
        let number = request.request() as usize - 1;
        let basis = packet.basis;
        let says = format!("{:?} of version {basis} from {from}", packet.outcome);
        if matches!(packet.outcome, Outcome::Busy | Outcome::Stale | Outcome::NoCell) {
            return Ok(Answer { client, number, rank: None, says });
        }
        if basis > self.tail().version() {
            return Err(format!("{says}: the tail has not committed it"));
        }
        let (name, does) = self.call_of(request).ok_or("an answer to no call")?;
        let wrong = |has_to: String| Err(format!("{says}, to {does:?}, which has to be {has_to}"));
        if packet.op == Op::ReadReply {
            let found = (packet.outcome, packet.value.0[0]);
            let is_right = match self.content(basis) {
                None => found.0 == Outcome::Absent,
                Some((other, _)) if other != name => found.0 == Outcome::Taken,
                Some((_, number)) => found == (Outcome::Done, number),
            };
            return if is_right {
                Ok(Answer { client, number, rank: Some(basis), says })
            } else {
                wrong(format!("{:?}", self.content(basis)))
            };
        }
        if packet.outcome == Outcome::Done {
            let own = self.versions.get(basis as usize - 1).map(|(stamp, _)| *stamp);
            if own != Some(request) {
                return wrong(format!("{own:?}'s"));
            }
        } else if model(name, does, self.content(basis)) != Err(packet.outcome) {
            return wrong("done".into());
        }
        Ok(Answer { client, number, rank: Some(basis), says })
    }

    fn flights(&mut self, at: usize, passed: Passed) -> Result<Vec<Flight<Packet>>, String> {
        let mut all = Vec::new();
        for (to, bytes) in passed.sent {
            if let Some(member) = member_at(to) {
                all.push(Flight::To(member, Packet { bytes, round: None }));
            } else {
                let packet = Repr::parse(&bytes).map_err(|error| error.to_string())?;
                all.push(Flight::Answer(self.answer(at, &packet)?));
            }
        }
        if let Some((metadata, bytes)) = passed.round {
            all.push(Flight::To(at, Packet { bytes, round: Some(metadata.0) }));
        }
        Ok(all)
    }
}

/// A packet in flight, or recirculated.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Packet {
    bytes: Vec<u8>,
    round: Option<[u64; 2]>,
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ok(packet) = Repr::parse(&self.bytes) else { return f.write_str("no packet") };
        let round = if self.round.is_some() { " (again)" } else { "" };
        let Repr { op, command, condition, state, stamp, epoch, .. } = packet;
        write!(f, "{op:?}{round}")?;
        if op == Op::Write {
            write!(f, " {command:?} {condition:?}")?;
        }
        let (slot, request, version) = (stamp.slot(), stamp.request(), state.version());
        write!(f, " of {slot}.{request}, version {version}, epoch {}", epoch.0)
    }
}

/// The packet of a call.
#[must_use]
pub fn packet_of(name: Name, cell: u32, words: u8, stamp: Stamp, does: Does) -> Repr {
    let number = |value: u8| {
        let mut words = Words::default();
        words.0[0] = value.into();
        words
    };
    let op = if does == Does::Read { Op::Read } else { Op::Write };
    let base = Repr { name, stamp, ..Repr::new(op, cell, words) };
    let set = |value| Repr { state: State::present(0, 8, true), value: number(value), ..base };
    match does {
        Does::Read => base,
        Does::Set(value) => set(value),
        Does::SetAbsent(value) => Repr { condition: Condition::Absent, ..set(value) },
        Does::Swap(from, value) => Repr {
            condition: Condition::Equal,
            expected: number(from),
            expected_state: (8, true),
            ..set(value)
        },
        Does::Incr => Repr { command: Command::Incr, number: 1, ..base },
        Does::Del => Repr { command: Command::Del, ..base },
    }
}

impl Chain for ShippedChain {
    type Packet = Packet;
    type Does = Does;

    fn packet(&self, client: usize, number: usize, call: Call<Does>) -> Packet {
        let stamp = Stamp::new(client as u16, 0, number as u32 + 1);
        let packet = packet_of(self.calls[client].0, 0, self.layout.words(), stamp, call.does);
        let bytes = Repr { client: client_of(client), ..packet }.packet();
        Packet { bytes, round: None }
    }

    fn is_answered(_: Does) -> bool {
        true
    }

    fn comes(&mut self, at: usize, packet: Packet) -> Result<Vec<Flight<Packet>>, String> {
        let live = self.live();
        // Clients ask another member if theirs was removed.
        let is_call = packet.round.is_none()
            && Repr::parse(&packet.bytes).is_ok_and(|packet| packet.from.0 == 0);
        let at = if is_call && !live.contains(&at) { live[0] } else { at };
        let Packet { mut bytes, round } = packet;
        let stamp = Repr::parse(&bytes).map(|packet| packet.stamp).unwrap_or_default();
        let Some(program) = &mut self.members[at] else { return Ok(Vec::new()) };
        // Only a switch's control plane sends in the switch's own name.
        let sender = Addr { ip: 30, port: 1 };
        let passed = pass(program, Instant(0), sender, round.map(Metadata), &mut bytes);
        self.numbered(stamp)?;
        self.flights(at, passed)
    }

    fn resend(&mut self, at: usize) -> Result<Vec<Flight<Packet>>, String> {
        let Some(program) = &mut self.members[at] else { return Ok(Vec::new()) };
        let Some(mut injection) = program.resend(0) else { return Ok(Vec::new()) };
        let passed = pass(program, Instant(0), addr_of(at), None, injection.packet());
        self.flights(at, passed)
    }

    fn take_out(&mut self, at: usize, shown: u64) -> Result<bool, String> {
        if self.live().len() < 2 || self.members[at].is_none() {
            return Ok(false);
        }
        self.members[at] = None;
        self.epoch += 1;
        let live = self.live();
        let config = config(self.epoch, &live);
        for index in live {
            let program = self.members[index].as_mut().ok_or("no such member")?;
            program.install(Now::default(), &config).map_err(|_| "it refuses its chain")?;
        }
        let version = self.head().version();
        if version < shown {
            return Err(format!("version {shown} was answered, and the new head has {version}"));
        }
        self.versions.truncate(version as usize);
        Ok(true)
    }

    fn members(&self) -> usize {
        self.members.len()
    }

    fn is_settled(&self) -> Result<(), String> {
        let head = self.head();
        for index in self.live() {
            let state = self.state(index);
            if state.is_dirty() || state != head {
                return Err(format!("{index} has {state:?}, and the head {head:?}"));
            }
        }
        Ok(())
    }

    /// Checks that versions never increase along the chain, that the tail has every clean version,
    /// and that each version has its content at every member.
    fn check(&self) -> Result<(), String> {
        let (live, tail) = (self.live(), self.tail());
        for pair in live.windows(2) {
            let (before, behind) = (self.state(pair[0]).version(), self.state(pair[1]).version());
            if behind > before {
                return Err(format!("{} has version {before}, {} has {behind}", pair[0], pair[1]));
            }
        }
        for index in live {
            let Some(program) = &self.members[index] else { continue };
            let (state, name, value) = program.peek(0);
            if !state.is_dirty() && state.version() > tail.version() {
                return Err(format!("{index} takes version {} as clean", state.version()));
            }
            let content = state.is_present().then_some((name, value.0[0]));
            if content != self.content(state.version()) {
                return Err(format!("{index} has {content:?} as version {}", state.version()));
            }
        }
        Ok(())
    }

    fn fingerprint(&self, hasher: &mut FxHasher) {
        for member in &self.members {
            member.is_some().hash(hasher);
            if let Some(program) = member {
                program.hash_registers(hasher);
            }
        }
        self.versions.hash(hasher);
        self.epoch.hash(hasher);
    }
}
