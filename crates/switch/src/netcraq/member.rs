//! The control plane of a switch that is a member of a chain: it registers with the controller,
//! takes the group's configurations, opens epochs, asks for leases and grants them, and copies what
//! a chain holds. A machine without I/O, in no packet's path; what it changes are tables.
//!
//! **An epoch opens** along the chain. A member that was told of it grants no lease any more, and
//! waits until no switch outside of the epoch can hold one that it granted (trap T2). Then the head
//! is agreed; every other member compares the digests of its registers with those of its
//! predecessor once that is agreed, copies the blocks that differ, and is agreed when none does. A
//! predecessor has all that its successors have, so that no version is lost (trap T5), and nothing
//! changes while the chain compares: nobody holds a lease of the new epoch. Once the tail is agreed
//! all are, and the tail says so. From then on members ask each other for leases, and who holds all
//! of them answers.
//!
//! **A switch joins** by copying from the tail in the same way, while writes go on: the tail's
//! acknowledgements name the cells that changed meanwhile. What it missed it copies when the epoch
//! opens in which it is the tail (hole N6). A switch that lost its place, or has started again, is
//! a stranger: it begins with nothing (trap T4).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Epoch, Guard, Guards, Instant, Leases, MS, NodeId};
use concord_wire::control::{
    Assembly, BLOCKS, ChainMessage, Config, Digest, GroupKind, Heard, Held, LeaseMessage,
    Member as Named, Membership, Message as _, ReplicaAlive, Standing,
};
use concord_wire::netcraq::{CHAIN_NUMBER_MAX, Op, Repr, Stamp, VERSIONS_OF_A_CHAIN};
use concord_wire::{Addr, GroupId, Kind, Sink, WireError};

use super::layout::ChainLayout;
use super::names::{Names, names_after};
use super::stages::Stages;
use super::{Place, Plane};
use crate::program::Settings;

/// Cells and sessions that are asked for at a time.
const COPIES_AT_ONCE: usize = 128;
/// Time from one such batch to the next, in ns.
const COPIES_EVERY_NS: Duration = MS;
/// Time from one question about digests or about the opening to the next, in ns.
const ASK_EVERY_NS: Duration = 3 * MS;
/// Comparisons after which a joining switch says that it has copied: the first finds all that is
/// there, the others what changed meanwhile or was lost. The rest is copied when the epoch opens.
const COPY_ROUNDS: u32 = 3;
/// Comparisons in vain after which a member gives its place up: what it holds is not what its
/// predecessor holds, and copying does not help.
const VAIN_ROUNDS_MAX: u32 = 300;
/// A switch of the epoch that is not heard for so many intervals between two signs of life is not
/// heard.
const UNHEARD_INTERVALS: u64 = 3;
/// Most cells and sessions that are to be asked for.
const WANTED_MAX: usize = 1 << 17;

/// The place in a chain that a switch is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSeat {
    /// Which group the chain is.
    pub group: GroupId,
    /// The switch's number in it, above 0.
    pub node: u16,
    /// How long a lease is, in ns: so long, at most, nothing is written after a member fell silent.
    pub lease_ns: Duration,
    /// Time from one sign of life to the next, in ns.
    pub alive_interval_ns: Duration,
}

impl ChainSeat {
    /// A switch of a chain, with the default times.
    #[must_use]
    pub const fn new(group: GroupId, node: u16) -> ChainSeat {
        ChainSeat { group, node, lease_ns: 250 * MS, alive_interval_ns: 50 * MS }
    }
}

/// What the program of such a switch is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainMember {
    /// Its place.
    pub seat: ChainSeat,
    /// This run of the switch.
    pub incarnation: u64,
    /// Where the controller listens.
    pub controller: Addr,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In no chain.
    Out,
    /// It copies from the tail.
    Joining { copied: bool },
    /// A member, the epoch is not open here. `agreed`: it holds what its predecessor holds, which
    /// is agreed too.
    Opening { agreed: bool },
    /// A member; the epoch is open here.
    Open,
}

/// What is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Cell(u32),
    Session(u16),
}

/// The control plane of a member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    told: ChainMember,
    own: Addr,
    guards: Guards,
    heard: Heard,
    assembly: Assembly,
    config: Option<Config>,
    stage: Stage,
    leases: Leases,
    /// It has been in an open epoch since it became a member: it has all that was committed.
    caught_up: bool,
    /// The switch id of the chain that its registers are of.
    founded: u32,
    /// It gives its place up.
    leaving: bool,
    /// The chain's other switches have other sizes: it can have no place.
    is_misfit: bool,
    wanted: VecDeque<Wanted>,
    /// Comparisons in this epoch that found something to copy, or, joining, of any kind.
    rounds: u32,
    /// When each other switch of the epoch was heard last.
    heard_at: BTreeMap<u16, Instant>,
    /// The head's.
    names: Names,
    /// The head's: the slot of the session that is given next.
    next_slot: u32,
    alive_at: Instant,
    /// When the next batch of what is wanted is asked for.
    copy_at: Instant,
    /// When the next question is asked.
    ask_at: Instant,
    /// Whether the source was asked for its digests, and has not answered.
    is_asking: bool,
    outbox: Vec<(Addr, Vec<u8>)>,
    scratch: Vec<u8>,
}

impl Member {
    pub(super) fn new(told: ChainMember, settings: &Settings) -> Member {
        Member {
            told,
            own: settings.addr,
            guards: settings.guards,
            heard: Heard::default(),
            assembly: Assembly::new(1),
            config: None,
            stage: Stage::Out,
            leases: Leases::new(told.seat.lease_ns),
            caught_up: false,
            founded: 0,
            leaving: false,
            is_misfit: false,
            wanted: VecDeque::new(),
            rounds: 0,
            heard_at: BTreeMap::new(),
            names: Names::new(settings.guards, settings.sections.chain.cells),
            // Heads begin at different ones, so that a new one seldom gives what is in use.
            next_slot: told.incarnation as u32,
            alive_at: Instant(0),
            copy_at: Instant(0),
            ask_at: Instant::NEVER,
            is_asking: false,
            outbox: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// What it has to say to others.
    pub(super) fn speak(&mut self, sink: &mut impl Sink) {
        for (to, packet) in self.outbox.drain(..) {
            sink.send(to, &packet);
        }
    }

    /// A cell has changed at the tail while this switch copies.
    pub(super) fn want_cell(&mut self, cell: u32) {
        self.want(Wanted::Cell(cell));
    }

    fn want(&mut self, wanted: Wanted) {
        if self.wanted.len() < WANTED_MAX {
            self.wanted.push_back(wanted);
        }
    }

    fn is_own(&self, member: &Named) -> bool {
        let own = (self.told.seat.node, self.told.incarnation);
        (member.node, member.incarnation) == own && member.addr == self.own
    }

    fn epoch(&self) -> u32 {
        self.config.as_ref().map_or(0, |config| config.epoch)
    }

    fn members(&self) -> &[Named] {
        self.config.as_ref().map_or(&[], |config| &config.members)
    }

    /// A member of the epoch, or a switch that joins in it.
    fn addr_of(&self, node: u16) -> Option<Addr> {
        let config = self.config.as_ref()?;
        let mut all = config.members.iter().chain(&config.joining);
        all.find(|member| member.node == node).map(|member| member.addr)
    }

    /// From whom it copies: its predecessor; of a joining switch, the tail.
    fn source(&self) -> Option<Named> {
        let members = self.members();
        match members.iter().position(|member| self.is_own(member)) {
            Some(index) => members.get(index.checked_sub(1)?).copied(),
            None => members.last().copied(),
        }
    }

    fn is_tail(&self) -> bool {
        self.members().last().is_some_and(|member| self.is_own(member))
    }

    /// A message to the control plane.
    pub(super) fn on_message(
        &mut self,
        now: Instant,
        packet: &[u8],
        plane: &mut Plane<'_>,
    ) -> Result<(), WireError> {
        match concord_wire::kind(packet)? {
            Kind::Lease => self.on_lease(now, LeaseMessage::parse(packet)?, plane),
            Kind::Chain => self.on_chain(now, ChainMessage::parse(packet)?, plane),
            _ => self.on_membership(now, Membership::parse(packet)?, plane),
        }
        Ok(())
    }

    fn on_membership(&mut self, now: Instant, message: Membership, plane: &mut Plane<'_>) {
        match message {
            Membership::Configure(part) => {
                if let Some(config) = self.assembly.take(part) {
                    self.on_config(now, config, plane);
                }
            }
            // A controller that makes its state anew, or a client.
            Membership::WhoIsWho { client } => {
                if let Some(config) = &self.config {
                    config.send(client, &mut self.scratch, &mut self.outbox);
                }
            }
            Membership::Reach { epoch, from, ask } if epoch == self.epoch() => {
                self.heard_at.insert(from, now);
                if ask {
                    let node = self.told.seat.node;
                    self.send(from, &Membership::Reach { epoch, from: node, ask: false });
                }
            }
            _ => {}
        }
    }

    /// The next epoch. What is not newer than the one before says nothing.
    fn on_config(&mut self, now: Instant, config: Config, plane: &mut Plane<'_>) {
        let is_chain = config.kind == GroupKind::Switches && !config.members.is_empty();
        if !is_chain || config.epoch <= self.heard.epoch || config.switch_id > CHAIN_NUMBER_MAX {
            return;
        }
        self.heard = Heard { rack: config.rack, epoch: config.epoch, switch_id: config.switch_id };
        self.leases.close();
        self.wanted.clear();
        self.names.begin();
        (self.rounds, self.is_asking) = (0, false);
        (self.copy_at, self.ask_at, self.alive_at) = (now, now, now);
        let index = config.members.iter().position(|member| self.is_own(member));
        let joins = config.joining.iter().any(|member| self.is_own(member));
        // Registers of a chain that was given up are no part of this one.
        let is_other_chain = self.founded != 0 && self.founded != config.switch_id;
        let stays = index.is_some() || (joins && matches!(self.stage, Stage::Joining { .. }));
        if is_other_chain || (!stays && self.guards.on(Guard::ChainStranger)) {
            plane.stages.reset();
            self.caught_up = false;
        }
        self.founded = config.switch_id;
        self.stage = match (index, joins) {
            (Some(_), _) => Stage::Opening { agreed: false },
            (None, true) => Stage::Joining { copied: false },
            (None, false) => Stage::Out,
        };
        let others = config.members.iter().chain(&config.joining);
        self.heard_at = others.map(|member| (member.node, now)).collect();
        *plane.place = (self.stage != Stage::Out).then(|| Place {
            group: config.group,
            epoch: Epoch(config.epoch),
            node: NodeId(self.told.seat.node),
            index: index.unwrap_or(config.members.len()),
            members: config.members.iter().map(|member| member.addr).collect(),
            joining: config.joining.iter().map(|member| member.addr).collect(),
            is_open: false,
            answers_until: Instant(0),
            versions: versions_of(config.switch_id),
            gives_names: true,
        });
        if self.stage == Stage::Out {
            (self.caught_up, self.leaving) = (false, false);
        }
        plane.sweep.begin(now);
        self.config = Some(config);
    }

    fn on_lease(&mut self, now: Instant, message: LeaseMessage, plane: &mut Plane<'_>) {
        let in_force = (self.stage == Stage::Open).then(|| self.epoch());
        match message {
            LeaseMessage::Request { epoch, from, asked_at } if in_force == Some(epoch) => {
                let known = self.members().iter().find(|member| member.node == from);
                let Some(holder) = known.map(|member| member.incarnation) else { return };
                self.heard_at.insert(from, now);
                self.leases.grant(now, NodeId(from), holder);
                let node = self.told.seat.node;
                self.send(from, &LeaseMessage::Grant { epoch, from: node, asked_at });
            }
            LeaseMessage::Grant { epoch, from, asked_at } if in_force == Some(epoch) => {
                self.heard_at.insert(from, now);
                self.leases.on_grant(now, NodeId(from), Instant(asked_at));
                self.fill_until(plane);
            }
            LeaseMessage::Request { .. }
            | LeaseMessage::Grant { .. }
            | LeaseMessage::Release { .. } => {}
        }
    }

    /// The register that the data plane compares with a packet's time.
    fn fill_until(&self, plane: &mut Plane<'_>) {
        if let Some(place) = plane.place {
            place.answers_until = self.leases.held_until();
        }
    }

    fn on_chain(&mut self, now: Instant, message: ChainMessage, plane: &mut Plane<'_>) {
        let (NodeId(from), Epoch(epoch)) = message.sender();
        if let Some(client) = client_of(&message) {
            return self.on_question(now, client, message, plane);
        }
        if epoch != self.epoch() || self.addr_of(from).is_none() {
            return;
        }
        self.heard_at.insert(from, now);
        let node = self.told.seat.node;
        let is_agreed = matches!(self.stage, Stage::Open | Stage::Opening { agreed: true });
        match message {
            ChainMessage::AskBlocks { .. } if is_agreed => {
                let (cells, sessions) = digests(plane.layout, plane.stages);
                self.send(from, &ChainMessage::Blocks { epoch, from: node, cells, sessions });
            }
            ChainMessage::Blocks { cells, sessions, .. } => {
                if self.source().is_some_and(|source| source.node == from) {
                    self.compare(now, (&cells, &sessions), plane);
                }
            }
            ChainMessage::AskOpen { .. } if self.stage == Stage::Open => {
                self.send(from, &ChainMessage::Open { epoch, from: node });
            }
            ChainMessage::Open { .. } => {
                let is_tails = self.members().last().is_some_and(|tail| tail.node == from);
                if is_tails && self.stage == (Stage::Opening { agreed: true }) {
                    self.open(now, plane);
                }
            }
            ChainMessage::AskBlocks { .. }
            | ChainMessage::AskOpen { .. }
            | ChainMessage::Find { .. }
            | ChainMessage::Found { .. }
            | ChainMessage::AskSession { .. }
            | ChainMessage::Session { .. }
            | ChainMessage::List { .. }
            | ChainMessage::Listed { .. } => {}
        }
    }

    /// A client asks which cell is a name's, and the like. The head answers while it holds all
    /// leases: then no other switch has given cells meanwhile, and what it has not got is not
    /// there.
    fn on_question(
        &mut self,
        now: Instant,
        client: Addr,
        mut message: ChainMessage,
        plane: &mut Plane<'_>,
    ) {
        let (NodeId(asked_by), Epoch(of)) = message.sender();
        let is_other_epoch = asked_by != 0 && of != self.epoch();
        if self.stage != Stage::Open || is_other_epoch || client == Addr::default() {
            return;
        }
        let (epoch, from) = (self.epoch(), self.told.seat.node);
        let Some(head) = self.members().first().copied() else { return };
        if !self.is_own(&head) {
            // At most one hop.
            if asked_by == 0 {
                message.set_sender(NodeId(from), Epoch(epoch));
                self.send(head.node, &message);
            }
            return;
        }
        if now >= self.leases.held_until() && self.guards.on(Guard::ChainLease) {
            return;
        }
        let answer = match message {
            ChainMessage::Find { number, name, gives, .. } => {
                let finding = self.names.find(plane.stages, name, gives);
                finding.map(|finding| ChainMessage::Found { epoch, from, number, finding })
            }
            ChainMessage::AskSession { number, .. } => {
                let given = self.give_session(plane);
                given.map(|(slot, generation)| ChainMessage::Session {
                    epoch,
                    from,
                    number,
                    slot,
                    generation,
                })
            }
            ChainMessage::List { number, after, .. } => {
                let names = names_after(plane.stages, plane.layout.cells, after);
                Some(ChainMessage::Listed { epoch, from, number, names })
            }
            _ => None,
        };
        if let Some(answer) = answer {
            answer.emit_in(self.told.seat.group, &mut self.scratch);
            self.outbox.push((client, self.scratch.clone()));
        }
    }

    /// A session that may be begun: the slots take turns, so that one is another's only once as
    /// many others were given as there are. Nothing of it is replicated: it is its client's once
    /// the chain has committed its OPEN.
    fn give_session(&mut self, plane: &Plane<'_>) -> Option<(u16, u32)> {
        let sessions = plane.layout.sessions;
        for _ in 0..sessions {
            let slot = self.next_slot & (sessions - 1);
            self.next_slot = self.next_slot.wrapping_add(1);
            let generation = plane.stages.peek_session(slot).generation() + 1;
            if generation <= Stamp::NUMBER_MAX {
                return Some((slot as u16, generation));
            }
        }
        None
    }

    /// What the source holds: where it differs from what is here, it is copied.
    fn compare(
        &mut self,
        now: Instant,
        (cells, sessions): (&[Digest], &[Digest]),
        plane: &mut Plane<'_>,
    ) {
        let is_waiting = matches!(self.stage, Stage::Joining { copied: false })
            || self.stage == Stage::Opening { agreed: false };
        if !is_waiting || !self.is_asking {
            return;
        }
        self.is_asking = false;
        let (own_cells, own_sessions) = digests(plane.layout, plane.stages);
        if (cells.len(), sessions.len()) != (own_cells.len(), own_sessions.len()) {
            self.is_misfit = true;
            return;
        }
        for cell in differing(plane.layout.cells, cells, &own_cells) {
            self.want(Wanted::Cell(cell));
        }
        for slot in differing(plane.layout.sessions, sessions, &own_sessions) {
            self.want(Wanted::Session(slot as u16));
        }
        let is_same = self.wanted.is_empty();
        self.rounds += 1;
        if let Stage::Joining { copied } = &mut self.stage {
            if is_same || self.rounds >= COPY_ROUNDS {
                *copied = true;
                self.alive_at = now;
            }
        } else if is_same {
            self.agree(now, plane);
        } else if self.rounds > VAIN_ROUNDS_MAX {
            self.leaving = true;
        }
    }

    /// It holds what its predecessor holds. Once the tail does, the epoch is open.
    fn agree(&mut self, now: Instant, plane: &mut Plane<'_>) {
        self.stage = Stage::Opening { agreed: true };
        (self.rounds, self.ask_at) = (0, now);
        if !self.is_tail() {
            return;
        }
        self.open(now, plane);
        let (epoch, from) = (self.epoch(), self.told.seat.node);
        for node in self.others() {
            self.send(node, &ChainMessage::Open { epoch, from });
        }
    }

    fn open(&mut self, now: Instant, plane: &mut Plane<'_>) {
        self.stage = Stage::Open;
        self.caught_up = true;
        let others = self.others();
        self.leases.open(now, others.into_iter().map(NodeId));
        if let Some(place) = plane.place {
            place.is_open = true;
        }
        self.fill_until(plane);
        plane.sweep.begin(now);
        self.alive_at = now;
    }

    fn others(&self) -> Vec<u16> {
        let own = self.told.seat.node;
        self.members().iter().map(|member| member.node).filter(|node| *node != own).collect()
    }

    /// Until when a switch that is no member may answer by a lease that was granted here.
    fn outsiders_until(&self) -> Instant {
        if !self.guards.on(Guard::ChainOutsiders) {
            return Instant(0);
        }
        let members = self.members();
        self.leases.others_until(|node| members.iter().any(|member| member.node == node.0))
    }

    pub(super) fn tick(&mut self, now: Instant, plane: &mut Plane<'_>) {
        match self.stage {
            Stage::Out => {}
            Stage::Joining { .. } => self.copy(now, plane.layout),
            Stage::Opening { agreed: false } if now >= self.outsiders_until() => {
                let compares = self.guards.on(Guard::ChainAgreement);
                if self.source().is_none() || !compares {
                    self.agree(now, plane);
                } else {
                    self.copy(now, plane.layout);
                }
            }
            Stage::Opening { agreed: true } if now >= self.ask_at => {
                self.ask_at = now.after(ASK_EVERY_NS);
                let (epoch, from) = (self.epoch(), self.told.seat.node);
                if let Some(tail) = self.members().last().map(|member| member.node) {
                    self.send(tail, &ChainMessage::AskOpen { epoch, from });
                }
            }
            Stage::Open if now >= self.leases.next_request() => {
                self.leases.on_requested(now);
                let (epoch, from) = (self.epoch(), self.told.seat.node);
                for node in self.others() {
                    self.send(node, &LeaseMessage::Request { epoch, from, asked_at: now.0 });
                }
            }
            Stage::Opening { .. } | Stage::Open => {}
        }
        if now >= self.alive_at {
            self.alive_at = now.after(self.told.seat.alive_interval_ns);
            self.send_alive(now);
        }
    }

    /// Asks the source for the next cells and sessions, and, once all were asked for, for its
    /// digests.
    fn copy(&mut self, now: Instant, layout: &ChainLayout) {
        let Some(source) = self.source() else { return };
        let (epoch, node) = (self.epoch(), self.told.seat.node);
        if !self.wanted.is_empty() && now >= self.copy_at {
            let base = Repr {
                group: self.told.seat.group,
                from: NodeId(node),
                epoch: Epoch(epoch),
                client: self.own,
                ..Repr::new(Op::Copy, 0, layout.words())
            };
            for wanted in self.wanted.drain(..self.wanted.len().min(COPIES_AT_ONCE)) {
                let packet = match wanted {
                    Wanted::Cell(cell) => Repr { cell, has_content: true, ..base },
                    Wanted::Session(slot) => Repr { stamp: Stamp(slot.into()), ..base },
                };
                self.outbox.push((source.addr, packet.packet()));
            }
            self.copy_at = now.after(COPIES_EVERY_NS);
        }
        let has_copied = self.stage == (Stage::Joining { copied: true });
        if self.wanted.is_empty() && now >= self.ask_at && !has_copied {
            // What was asked for is here by the next time, as a rule.
            self.ask_at = now.after(ASK_EVERY_NS);
            self.is_asking = true;
            self.send(source.node, &ChainMessage::AskBlocks { epoch, from: node });
        }
    }

    fn send_alive(&mut self, now: Instant) {
        let (epoch, from) = (self.epoch(), self.told.seat.node);
        let caught_up = self.caught_up;
        let standing = match self.stage {
            _ if self.leaving || self.is_misfit => Standing::Leaving,
            Stage::Out => Standing::Out,
            Stage::Joining { copied: false } => Standing::Copying,
            Stage::Joining { copied: true } => Standing::Copied,
            Stage::Opening { .. } => Standing::Opening { caught_up },
            Stage::Open => Standing::Open { caught_up },
        };
        let patience_ns = UNHEARD_INTERVALS * self.told.seat.alive_interval_ns;
        let is_silent = |at: &Instant| now.since(*at) > patience_ns;
        let unheard = self.heard_at.iter().filter(|(node, at)| **node != from && is_silent(at));
        let alive = ReplicaAlive {
            member: Named { node: from, incarnation: self.told.incarnation, addr: self.own },
            sent_at: now.0,
            heard: self.heard,
            standing,
            held: Held::default(),
            data_dir: None,
            unheard: unheard.map(|(node, _)| *node).collect(),
        };
        Membership::ReplicaAlive(alive).emit_in(self.told.seat.group, &mut self.scratch);
        self.outbox.push((self.told.controller, self.scratch.clone()));
        if self.stage == Stage::Out {
            return;
        }
        for node in self.others() {
            self.send(node, &Membership::Reach { epoch, from, ask: true });
        }
    }

    fn send(&mut self, node: u16, message: &impl concord_wire::control::Message) {
        if let Some(to) = self.addr_of(node) {
            message.emit_in(self.told.seat.group, &mut self.scratch);
            self.outbox.push((to, self.scratch.clone()));
        }
    }

    /// When [`Member::copy`] has something to do.
    fn next_copy(&self) -> Instant {
        match self.stage {
            _ if !self.wanted.is_empty() => self.copy_at,
            Stage::Joining { copied: true } => Instant::NEVER,
            _ => self.ask_at,
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        let next = match self.stage {
            _ if !self.outbox.is_empty() => Deadline { at: Instant(0), reason: "to be said" },
            Stage::Out => Deadline::NONE,
            Stage::Opening { agreed: false } => {
                let at = self.outsiders_until().max(self.next_copy());
                Deadline { at, reason: "an epoch opens" }
            }
            Stage::Opening { agreed: true } => {
                Deadline { at: self.ask_at, reason: "an epoch opens" }
            }
            Stage::Joining { .. } => Deadline { at: self.next_copy(), reason: "to be copied" },
            Stage::Open => Deadline { at: self.leases.next_request(), reason: "a lease" },
        };
        next.min(Deadline { at: self.alive_at, reason: "sign of life" })
    }
}

/// Who is answered, if it is a client's question.
fn client_of(message: &ChainMessage) -> Option<Addr> {
    match message {
        ChainMessage::Find { client, .. }
        | ChainMessage::AskSession { client, .. }
        | ChainMessage::List { client, .. } => Some(*client),
        _ => None,
    }
}

/// The versions that there may be in a chain of that number: above the first, up to the second.
fn versions_of(number: u32) -> (u64, u64) {
    let base = u64::from(number.saturating_sub(1)) * VERSIONS_OF_A_CHAIN;
    (base, base + VERSIONS_OF_A_CHAIN - 1)
}

/// How many cells, or sessions, of `all` are in a block.
fn block_of(all: u32) -> u32 {
    all.div_ceil(BLOCKS as u32).max(1)
}

/// The digests of all blocks: of the cells, and of the sessions.
fn digests(layout: &ChainLayout, stages: &Stages) -> (Vec<Digest>, Vec<Digest>) {
    let of_block = |all: u32, block: u32, fold: &dyn Fn(u64, u32) -> u64| {
        let first = block * block_of(all);
        (first..all.min(first + block_of(all))).fold(u64::from(block), fold).to_be_bytes()
    };
    let blocks = |all: u32| 0..all.div_ceil(block_of(all));
    let cell = |hash, cell| stages.words_of_cell(cell).fold(hash, mix);
    let session = |hash, slot| stages.words_of_session(slot).fold(hash, mix);
    let cells = blocks(layout.cells).map(|block| of_block(layout.cells, block, &cell));
    let sessions = blocks(layout.sessions).map(|block| of_block(layout.sessions, block, &session));
    (cells.collect(), sessions.collect())
}

/// A word more of a digest.
fn mix(hash: u64, word: u64) -> u64 {
    let mut mixed = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// What lies in the blocks whose digests differ.
fn differing<'a>(
    all: u32,
    one: &'a [Digest],
    other: &'a [Digest],
) -> impl Iterator<Item = u32> + 'a {
    let blocks = (0..).zip(one.iter().zip(other)).filter(|(_, (one, other))| one != other);
    let size = block_of(all);
    blocks.flat_map(move |(block, _)| block * size..all.min((block + 1) * size))
}
