//! The control plane of a switch that is a member of a chain: it registers with the controller,
//! installs the group's configurations, opens epochs, requests and grants leases, and copies the
//! content of the chain. It is a state machine without I/O, on the path of no packet; all that it
//! changes are tables.
//!
//! **An epoch opens** along the chain. A member that hears of the epoch grants no more leases of
//! the old one, and waits until no switch outside of the new epoch can hold a lease that it granted
//! (trap T2). Then the head agrees; every other member compares the digests of its registers with
//! those of its predecessor once that has agreed, copies the blocks that differ, and agrees when
//! none does. A predecessor has everything that its successors have, so no version is lost (trap
//! T5), and nothing changes while the chain compares, since no member holds a lease of the new
//! epoch. Once the tail has agreed all have, and the tail announces it. From then on members
//! request leases from each other, and a member that holds the leases of all others answers
//! clients.
//!
//! **A switch joins** by copying from the tail in the same way, while writes go on: the tail's
//! acknowledgements name the cells that changed meanwhile. It copies what it missed when the epoch
//! opens in which it is the tail (hole N6). A switch that lost its place, or has restarted, counts
//! as a stranger: it begins with empty registers (trap T4).

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

/// The number of cells and sessions that are requested at a time.
const COPIES_AT_ONCE: usize = 128;
/// The time between two such batches, in ns.
const COPIES_EVERY_NS: Duration = MS;
/// The time between two requests for digests, or for the opening of the epoch, in ns.
const ASK_EVERY_NS: Duration = 3 * MS;
/// Comparisons after which a joining switch reports that it has copied: the first finds all that
/// there is, the others what changed meanwhile or was lost. It copies the rest when the epoch
/// opens.
const COPY_ROUNDS: u32 = 3;
/// Comparisons without success after which a member gives up its place: its content differs from
/// its predecessor's, and copying does not help.
const VAIN_ROUNDS_MAX: u32 = 300;
/// The number of keepalive intervals after which a silent switch of the epoch is reported as not
/// heard.
const UNHEARD_INTERVALS: u64 = 3;
/// The maximum number of cells and sessions in the queue of requests.
const WANTED_MAX: usize = 1 << 17;

/// The place in a chain that a switch is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSeat {
    /// The group of the chain.
    pub group: GroupId,
    /// The node number of the switch in it, above 0.
    pub node: u16,
    /// The duration of a lease, in ns: the longest time for which nothing is written after a member
    /// falls silent.
    pub lease_ns: Duration,
    /// The time between two keepalives, in ns.
    pub alive_interval_ns: Duration,
}

impl ChainSeat {
    /// A switch of a chain, with the default durations.
    #[must_use]
    pub const fn new(group: GroupId, node: u16) -> ChainSeat {
        ChainSeat { group, node, lease_ns: 250 * MS, alive_interval_ns: 50 * MS }
    }
}

/// The settings of the program of such a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainMember {
    /// Its place in the chain.
    pub seat: ChainSeat,
    /// This incarnation of the switch.
    pub incarnation: u64,
    /// The address of the controller.
    pub controller: Addr,
}

/// The progress of a switch in its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is in no chain.
    Out,
    /// It joins by copying from the tail; `copied`: enough for the controller to admit it.
    Joining { copied: bool },
    /// It is a member, and the epoch is not open here. `agreed`: it has the same content as its
    /// predecessor, which has agreed too.
    Opening { agreed: bool },
    /// It is a member, and the epoch is open here.
    Open,
}

/// An item that is to be copied.
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
    /// Whether it was in an open epoch since it became a member: then it has all that was
    /// committed.
    caught_up: bool,
    /// The switch id of the chain whose content its registers hold.
    founded: u32,
    /// Whether it gives up its place.
    leaving: bool,
    /// Whether the chain's other switches have other sizes, so that it can have no place.
    is_misfit: bool,
    wanted: VecDeque<Wanted>,
    /// The number of comparisons in this epoch: while joining all of them, later those in vain.
    rounds: u32,
    /// When each other switch of the epoch was last heard.
    heard_at: BTreeMap<u16, Instant>,
    /// At the head: which cell each name has.
    names: Names,
    /// At the head: the slot of the next session.
    next_slot: u32,
    alive_at: Instant,
    /// When the next batch of wanted items is requested.
    copy_at: Instant,
    /// When the next question is asked.
    ask_at: Instant,
    /// Whether a request for the source's digests is unanswered.
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
            // Heads begin at different slots, so that a new head seldom gives a slot that is in
            // use.
            next_slot: told.incarnation as u32,
            alive_at: Instant(0),
            copy_at: Instant(0),
            ask_at: Instant::NEVER,
            is_asking: false,
            outbox: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Sends the messages that are queued for other nodes.
    pub(super) fn speak(&mut self, sink: &mut impl Sink) {
        for (to, packet) in self.outbox.drain(..) {
            sink.send(to, &packet);
        }
    }

    /// Notes that a cell has changed at the tail while this switch copies.
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

    /// The address of a member of the epoch, or of a switch that joins in it.
    fn addr_of(&self, node: u16) -> Option<Addr> {
        let config = self.config.as_ref()?;
        let mut all = config.members.iter().chain(&config.joining);
        all.find(|member| member.node == node).map(|member| member.addr)
    }

    /// The switch from which it copies: its predecessor; for a joining switch, the tail.
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

    /// Processes a message to the control plane.
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
            // Sent by a controller that rebuilds its state, or by a client.
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

    /// How many members the newest epoch has that it has heard of.
    pub(super) fn members_heard(&self) -> Option<usize> {
        self.config.as_ref().map(|config| config.members.len())
    }

    /// Installs the next epoch. A configuration that is not newer is ignored.
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
        // The registers of an earlier chain are not part of this one.
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

    /// Fills the register that the data plane compares with a packet's time.
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

    /// Answers a client's question, such as which cell a name has. The head answers while it holds
    /// the leases of all members: then no other switch has given cells meanwhile, and a name that
    /// it does not know does not exist.
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
            // The question is passed on at most once.
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

    /// A session that a client may open: slots are given in turn, so that a slot goes to another
    /// client only after all others were given. None of this is replicated: the session is the
    /// client's once the chain has committed its OPEN.
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

    /// Compares the digests of the source with its own, and copies the blocks that differ.
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

    /// It has the same content as its predecessor. Once this is true of the tail, the epoch is
    /// open.
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

    /// Until when a switch that is not a member may answer by a lease that was granted here.
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

    /// Requests the next cells and sessions from the source; once all were requested, its digests.
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
            // Allow the requested items time to arrive.
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

/// The client that gets the answer, if the message is a client's question.
fn client_of(message: &ChainMessage) -> Option<Addr> {
    match message {
        ChainMessage::Find { client, .. }
        | ChainMessage::AskSession { client, .. }
        | ChainMessage::List { client, .. } => Some(*client),
        _ => None,
    }
}

/// The range of versions in a chain with this number: above the first, up to the second.
fn versions_of(number: u32) -> (u64, u64) {
    let base = u64::from(number.saturating_sub(1)) * VERSIONS_OF_A_CHAIN;
    (base, base + VERSIONS_OF_A_CHAIN - 1)
}

/// The number of cells, or sessions, in a block, if there are `all` of them.
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

/// Adds a word to a digest.
fn mix(hash: u64, word: u64) -> u64 {
    let mut mixed = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The cells, or sessions, in the blocks whose digests differ.
fn differing<'a>(
    all: u32,
    one: &'a [Digest],
    other: &'a [Digest],
) -> impl Iterator<Item = u32> + 'a {
    let blocks = (0..).zip(one.iter().zip(other)).filter(|(_, (one, other))| one != other);
    let size = block_of(all);
    blocks.flat_map(move |(block, _)| block * size..all.min((block + 1) * size))
}
