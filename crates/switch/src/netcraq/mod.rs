//! NetCRAQ: a chain of switches that store keys and values, and answer clients themselves
//! (docs/internals/netcraq.md).
//!
//! The head alone orders writes, and takes one at a time for each cell: the next is answered "busy"
//! until the tail has acknowledged the previous one. So a cell has at most two versions in the
//! whole chain, the newest and the committed one, a member holds one of them, and no decision
//! depends on a version that may never be committed. A write takes two passes at the head. The
//! first reads the registers and decides; the second changes them if the cell's state is still the
//! one that the first saw. The head then sends an UPDATE: the cell's content with its version, and
//! the session's request with its outcome, which every member applies in one pass, in this order.
//! The tail answers the client, recirculates the packet, and acknowledges to all other members.
//!
//! Numbered steps: **1** check the epoch, **2** check that this member may process the packet,
//! **3** access the registers (`stages`), **4** send the result.
//!
//! The control plane decides which switches are members, which epoch is open, and until when a
//! switch may answer (`member.rs`). At the head it also decides which cell a name has (`names.rs`).

mod expiry;
mod layout;
mod member;
mod names;
pub mod printed;
mod stages;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use concord_core::machine::Deadline;
use concord_core::{Epoch, Guard, Guards, Instant, NodeId, Now};
use concord_pisa::{Copies, Metadata, Report, Verdict};
use concord_wire::control::{Config, GroupKind};
use concord_wire::netcraq::{
    Command, Condition, Name, Op, Outcome, Repr, Stamp, State, WORDS_MAX, Words,
};
use concord_wire::{Addr, GroupId, Kind, Sink, WireError};

use crate::program::{
    Copied, Count, Gauge, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram,
    Takes, Wants,
};
use member::Member;
use stages::{Ask, Phv, Stages};

pub use layout::{CELLS_MAX, ChainError, ChainLayout, VALUE_BYTES};
pub use member::{ChainMember, ChainSeat};

/// The multicast group of all other members.
const OTHERS: u16 = 0;
/// The maximum number of packets that one sweep sends again.
const RESENT_MAX: usize = 64;

/// The reason why a packet ends at the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The packet is malformed.
    Malformed(WireError),
    /// The switch is not a member of a chain.
    Unconfigured,
    /// The packet is of another epoch, whose chain no longer exists, or does not exist yet.
    OtherEpoch,
    /// The packet is for another member.
    Misdirected,
    /// The switch holds no lease at the packet's time, or its epoch is not open.
    NoLease,
    /// The packet's values are of another size than this chain's.
    OtherSize,
    /// The packet does not say where its answer goes.
    NoAddress,
    /// The version to be sent again is acknowledged by now.
    Settled,
    /// The packet's work is done.
    Consumed,
}

concord_core::counters! {
    /// Counts of reads and writes by their fate.
    pub struct NetCraqCounters {
        /// Reads that were answered here, of a clean version.
        reads_clean,
        /// Reads that went on to the tail, since the version here was dirty.
        reads_to_tail,
        /// Reads that the tail answered for another member.
        reads_for_others,
        /// Writes that the head numbered.
        writes_numbered,
        /// Writes that the head refused, by their condition or for another reason that is not
        /// passing.
        writes_refused,
        /// Writes that found another one of their cell under way.
        writes_busy,
        /// Writes that came again, and were answered with what became of them.
        writes_repeated,
        /// Writes of a session that had gone on.
        writes_stale,
        /// Writes that went on to the head.
        writes_to_head,
        /// Numbered writes that were newer than what the member had.
        updates_taken,
        /// Numbered writes that it had.
        updates_old,
        /// Acknowledgements that cleaned a version.
        acknowledgements_taken,
        /// Acknowledgements of another version than the one here.
        acknowledgements_old,
        /// Keys that ended at their deadline: each by a write that the head numbered.
        expired,
        /// Versions that were sent again, since they were not acknowledged for long.
        resent,
        /// Packets dropped because they are of another epoch.
        dropped_other_epoch,
        /// Packets dropped because they are for another member.
        dropped_misdirected,
        /// Packets dropped because the switch may not answer: it holds no lease, or its epoch is
        /// not open.
        dropped_no_lease,
        /// What other switches copied from here: cells, and sessions' requests.
        copied,
        /// Packets dropped because their values are of another size.
        dropped_other_size,
        /// Packets dropped because they do not say where their answer goes.
        dropped_no_address,
        /// Packets dropped because the switch is no member of a chain.
        dropped_unconfigured,
        /// What was to be sent again, and was acknowledged by then.
        settled,
        /// Acknowledgements, which end at the switch by design.
        consumed,
        /// Packets dropped because they are malformed.
        malformed,
    }
}

/// The place of this switch in the chain, and those of the others: tables that the control plane
/// fills.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    group: GroupId,
    epoch: Epoch,
    node: NodeId,
    /// The position of this member, 0 for the head; for a joining switch, the number of members.
    index: usize,
    members: Vec<Addr>,
    joining: Vec<Addr>,
    /// Whether the epoch is open here.
    is_open: bool,
    /// A register: the time until which packets may be answered, by the leases.
    answers_until: Instant,
    /// The range of versions: above the first, and at most the second. A chain that is founded anew
    /// has another range, so that no version returns.
    versions: (u64, u64),
    /// Whether the head gives names their cells ([`names`]); otherwise the client knows them.
    gives_names: bool,
}

impl Place {
    /// The version after this one.
    fn next(&self, version: u64) -> u64 {
        version.max(self.versions.0) + 1
    }

    fn is_head(&self) -> bool {
        self.index == 0
    }

    fn is_tail(&self) -> bool {
        self.index + 1 == self.members.len()
    }

    fn is_joining(&self) -> bool {
        self.index >= self.members.len()
    }

    fn knows(&self, addr: Addr) -> bool {
        self.members.iter().chain(&self.joining).any(|known| *known == addr)
    }

    fn tail(&self) -> Addr {
        self.members.last().copied().unwrap_or(Addr::default())
    }
}

/// NetCRAQ's switch program.
#[derive(Clone, Debug)]
pub struct NetCraq {
    own: Addr,
    guards: Guards,
    layout: ChainLayout,
    place: Option<Place>,
    /// The time of arrival of the packet that is in the pipeline.
    at: Instant,
    /// The highest epoch of any configuration.
    epoch_max: u32,
    stages: Stages,
    sweep: Sweep,
    /// The control plane of a switch that registers with a controller. Without it the chain is as
    /// [`SwitchProgram::install`] was told, and no lease is needed.
    member: Option<Box<Member>>,
    counters: NetCraqCounters,
}

/// The control plane's sweeps over all cells.
#[derive(Clone, Debug, Default)]
struct Sweep {
    /// The states that were dirty at the last sweep, by cell.
    seen: Vec<(u32, State)>,
    /// The versions that are to be sent again.
    due: Vec<(u32, State)>,
    at: Instant,
    /// The cells of keys whose deadlines have passed.
    expired: Vec<u32>,
    /// The time of the next look for such keys.
    expire_at: Instant,
}

impl Sweep {
    /// Restarts at a new epoch: what was sent in the previous one may be lost with it.
    fn begin(&mut self, now: Instant) {
        *self = Sweep { at: now, expire_at: now, ..Sweep::default() };
    }
}

/// The parts of a switch that its control plane reads and changes.
struct Plane<'a> {
    layout: &'a ChainLayout,
    stages: &'a mut Stages,
    place: &'a mut Option<Place>,
    sweep: &'a mut Sweep,
}

impl Load for NetCraq {
    fn load(settings: &Settings) -> Result<NetCraq, LoadError> {
        let layout = settings.sections.chain;
        layout.check().map_err(LoadError::Chain)?;
        Ok(NetCraq {
            own: settings.addr,
            guards: settings.guards,
            layout,
            place: None,
            at: Instant(0),
            epoch_max: 0,
            stages: Stages::new(&layout, settings.guards),
            sweep: Sweep::default(),
            member: settings.member.map(|told| Box::new(Member::new(told, settings))),
            counters: NetCraqCounters::default(),
        })
    }
}

/// The output of a pass.
enum Leaves {
    /// To one address.
    To(Addr, Repr),
    /// To the client.
    Answer(Repr),
    /// Recirculated, for the second pass.
    Round(Repr, State),
    /// To the client, and recirculated, to be acknowledged to the other members.
    AnswerAndRound(Repr),
    /// To all other members.
    Others(Repr),
}

impl NetCraq {
    fn drop(&mut self, reason: DropReason) -> Verdict<DropReason> {
        let c = &mut self.counters;
        match reason {
            DropReason::Malformed(_) => c.malformed += 1,
            DropReason::Unconfigured => c.dropped_unconfigured += 1,
            DropReason::OtherEpoch => c.dropped_other_epoch += 1,
            DropReason::Misdirected => c.dropped_misdirected += 1,
            DropReason::NoLease => c.dropped_no_lease += 1,
            DropReason::OtherSize => c.dropped_other_size += 1,
            DropReason::NoAddress => c.dropped_no_address += 1,
            DropReason::Settled => c.settled += 1,
            DropReason::Consumed => c.consumed += 1,
        }
        Verdict::Drop(reason)
    }

    /// Steps 1 and 2, and then those of each operation.
    fn dispatch(
        &mut self,
        place: &Place,
        ingress: &Ingress<'_>,
        packet: Repr,
    ) -> Result<Leaves, DropReason> {
        self.at = ingress.at;
        let is_round = ingress.passes > 0;
        let epoch = if is_round { Epoch(ingress.metadata.0[1] as u32) } else { packet.epoch };
        let is_of_client = !is_round && packet.from == NodeId(0);
        let is_own = epoch == place.epoch || !self.guards.on(Guard::ChainEpoch);
        if !is_own && !is_of_client {
            return Err(DropReason::OtherEpoch);
        }
        if is_of_client && packet.client == Addr::default() && ingress.sender != self.own {
            return Err(DropReason::NoAddress);
        }
        if packet.words != 0 && packet.words != self.layout.words() {
            return Err(DropReason::OtherSize);
        }
        // Traps T2 and T31: whether the switch may answer alone, by the packet's time.
        let has_lease = ingress.at < place.answers_until || !self.guards.on(Guard::ChainLease);
        let answers = place.is_open && has_lease;
        match (packet.op, is_round) {
            (Op::Read, false) | (Op::Write | Op::Expire, _) if !answers => Err(DropReason::NoLease),
            (Op::Read, false) => self.on_read(place, packet),
            (Op::Write, false) => self.on_write(place, packet),
            (Op::Expire, false) if ingress.sender == self.own && place.is_head() => {
                self.on_expiry(place, packet)
            }
            (Op::Write | Op::Expire, true) => {
                self.on_second_pass(place, State(ingress.metadata.0[0]), packet)
            }
            (Op::Update, false) if !is_of_client => self.on_update(place, answers, packet),
            (Op::Acknowledgement, true) => Ok(Leaves::Others(packet)),
            (Op::Acknowledgement, false) if !is_of_client && place.is_joining() => {
                // The acknowledgement names a version that is not here.
                if let Some(member) = &mut self.member {
                    member.want_cell(packet.cell);
                }
                Err(DropReason::Consumed)
            }
            (Op::Acknowledgement, false) if !is_of_client => {
                let ask = Ask::Clean;
                let mut phv = self.phv(place, ask, &packet);
                self.stages.run(&mut phv);
                let c = &mut self.counters;
                c.acknowledgements_taken += u64::from(phv.has_state);
                c.acknowledgements_old += u64::from(!phv.has_state);
                Err(DropReason::Consumed)
            }
            (Op::Resend, false) if ingress.sender == self.own => {
                if answers {
                    self.on_resend(place, packet)
                } else {
                    Err(DropReason::NoLease)
                }
            }
            (Op::Copy, false) if !is_of_client => self.on_copy(place, packet),
            _ => Err(DropReason::Misdirected),
        }
    }

    fn phv(&self, place: &Place, ask: Ask, packet: &Repr) -> Phv {
        Phv {
            pass: concord_pisa::Pass::begin(),
            ask,
            is_tail: place.is_tail() || place.is_joining(),
            cell: packet.cell,
            state: packet.state,
            has_state: false,
            name: packet.name,
            writer: Stamp(0),
            stamp: packet.stamp,
            session: Stamp(0),
            has_session: false,
            outcome: packet.outcome,
            basis: packet.basis,
            number: packet.number,
            value: packet.value,
            deadline: packet.deadline,
            at: self.at,
            time: packet.time,
        }
    }

    /// Addresses a packet to another member.
    fn to_member(place: &Place, to: Addr, packet: Repr) -> Leaves {
        Leaves::To(to, Repr { from: place.node, epoch: place.epoch, ..packet })
    }

    /// Algorithm 1, lines 4 to 14: answers a clean version, and sends the read of a dirty one to
    /// the tail, in one hop.
    fn on_read(&mut self, place: &Place, packet: Repr) -> Result<Leaves, DropReason> {
        let is_of_member = packet.from != NodeId(0);
        if is_of_member && !place.is_tail() {
            return Err(DropReason::Misdirected);
        }
        if packet.cell >= self.layout.cells {
            let outcome = Outcome::NoCell;
            return Ok(Leaves::Answer(Repr { op: Op::ReadReply, outcome, ..packet }));
        }
        let mut phv = self.phv(place, Ask::Look, &packet);
        self.stages.run(&mut phv);
        // What the tail has is committed, whether or not it is acknowledged to the others.
        let must_ask = phv.state.is_dirty() && !place.is_tail() && self.guards.on(Guard::DirtyRead);
        if must_ask {
            self.counters.reads_to_tail += 1;
            return Ok(NetCraq::to_member(place, place.tail(), packet));
        }
        let c = &mut self.counters;
        if is_of_member {
            c.reads_for_others += 1
        } else {
            c.reads_clean += 1
        }
        let is_here = phv.name == packet.name || !self.guards.on(Guard::CellName);
        let is_present = phv.state.is_present() && !self.ends_by_itself(&phv);
        let outcome = match (is_present, is_here) {
            (true, true) => Outcome::Done,
            (true, false) => Outcome::Taken,
            (false, false) if place.gives_names => Outcome::Taken,
            (false, _) => Outcome::Absent,
        };
        let has_content = outcome == Outcome::Done;
        let value = if has_content { phv.value } else { Words::default() };
        let (state, basis) = (phv.state.clean(), phv.state.version());
        let state = if has_content { state } else { State::deleted(basis) };
        let deadline = if has_content { expiry::left_ns(&phv) } else { 0 };
        let read = Repr { has_content, state, basis, value, deadline, ..packet };
        let answer = Repr { op: Op::ReadReply, outcome, time: 0, ..read };
        Ok(Leaves::Answer(if is_of_member { answer.for_member(packet.from) } else { answer }))
    }

    /// Lines 15 to 26, at the head alone: the first pass of a write reads everything, and decides.
    fn on_write(&mut self, place: &Place, packet: Repr) -> Result<Leaves, DropReason> {
        // A member that passes on a client's packet has checked the epoch.
        let is_of_epoch = packet.from != NodeId(0) || packet.epoch == place.epoch;
        // A session can use any cell: its request makes two passes, as every write does.
        let opens = packet.command == Command::Open;
        let cell = if opens { packet.cell & (self.layout.cells - 1) } else { packet.cell };
        let packet = Repr { cell, is_given: packet.is_given && is_of_epoch, ..packet };
        if !place.is_head() && self.guards.on(Guard::HeadOrders) {
            if packet.from != NodeId(0) {
                return Err(DropReason::Misdirected);
            }
            self.counters.writes_to_head += 1;
            return Ok(NetCraq::to_member(place, place.members[0], packet));
        }
        let slot = u32::from(packet.stamp.slot());
        if packet.cell >= self.layout.cells || slot >= self.layout.sessions {
            return Ok(Leaves::Answer(answer(packet, Outcome::NoCell)));
        }
        let mut phv = self.phv(place, Ask::Look, &packet);
        self.stages.run(&mut phv);
        if self.guards.on(Guard::SessionRequest) {
            if packet.stamp < phv.session {
                self.counters.writes_stale += 1;
                return Ok(Leaves::Answer(answer(packet, Outcome::Stale)));
            }
            if packet.stamp == phv.session {
                self.counters.writes_repeated += 1;
                return Ok(self.again(place, packet, &phv));
            }
        }
        let is_under_way = phv.state.is_dirty() && !place.is_tail();
        if is_under_way && self.guards.on(Guard::OneWrite) {
            self.counters.writes_busy += 1;
            return Ok(Leaves::Answer(answer(packet, Outcome::Busy)));
        }
        let seen = phv.state;
        if seen.version() >= place.versions.1 {
            return Ok(Leaves::Answer(answer(packet, Outcome::NoCell)));
        }
        if expiry::is_due(&phv) {
            // The key ends first; the client asks again.
            return Ok(NetCraq::expires(place, packet, &phv));
        }
        let (outcome, state) = self.decide(place, &packet, &mut phv);
        let (number, value, deadline) = (phv.number, phv.value, phv.deadline);
        let decided = Repr { outcome, state, number, value, deadline, ..packet };
        let (is_given, keeps_deadline) = (false, false);
        Ok(Leaves::Round(Repr { is_given, keeps_deadline, ..decided }, seen))
    }

    /// Decides the fate of a write: the outcome and the new state, with content and number in
    /// `phv`.
    fn decide(&self, place: &Place, packet: &Repr, phv: &mut Phv) -> (Outcome, State) {
        let seen = phv.state;
        let has_name = phv.name == packet.name || !self.guards.on(Guard::CellName);
        let is_present = seen.is_present() && has_name;
        let (found, version) = (phv.value, seen.version());
        phv.number = 0;
        let refused = |outcome| (outcome, seen);
        if packet.command == Command::Open {
            phv.number = packet.number;
            return refused(Outcome::Refused);
        }
        let is_given = packet.is_given && packet.state.version() == version;
        let may_take = is_given || !place.gives_names || !self.guards.on(Guard::NameGiven);
        if !has_name && (seen.is_present() || !may_take) {
            return refused(Outcome::Taken);
        }
        let (length, is_number) = packet.expected_state;
        let is_equal = found == packet.expected
            && (seen.length_bytes(), seen.is_number()) == (length, is_number);
        match packet.condition {
            Condition::Always => {}
            Condition::Absent if is_present => return refused(Outcome::Refused),
            Condition::Absent => {}
            Condition::Present | Condition::Version | Condition::Equal if !is_present => {
                return refused(Outcome::Absent);
            }
            Condition::Version if version != packet.basis => return refused(Outcome::Refused),
            Condition::Equal if !is_equal => return refused(Outcome::Refused),
            Condition::Present | Condition::Version | Condition::Equal => {}
        }
        let next = place.next(version);
        let kept = if is_present { phv.deadline } else { 0 };
        let deadline = expiry::deadline(phv, packet.deadline);
        match packet.command {
            Command::Set => {
                phv.deadline = if packet.keeps_deadline { kept } else { deadline };
                let is_number = packet.state.is_number();
                phv.value = packet.value;
                phv.number = if is_number { phv.value.0[0] } else { 0 };
                let state = State::present(next, packet.state.length_bytes(), is_number);
                (Outcome::Done, state)
            }
            Command::Open => refused(Outcome::Refused),
            Command::Del if !is_present => refused(Outcome::Absent),
            Command::Del => {
                (phv.value, phv.deadline) = (Words::default(), 0);
                (Outcome::Done, State::deleted(next))
            }
            Command::Expire if !is_present => refused(Outcome::Absent),
            Command::Expire if (kept, deadline) == (0, 0) => refused(Outcome::Refused),
            Command::Expire => {
                phv.deadline = deadline;
                // As who learns of the request from the cell has it (`NetCraq::content`).
                phv.number = if seen.is_number() { found.0[0] } else { 0 };
                (Outcome::Done, seen.as_version(next))
            }
            Command::Incr => {
                let was = match is_present {
                    true if !seen.is_number() => return refused(Outcome::NotNumber),
                    true => found.0[0] as i64,
                    false => 0,
                };
                let Some(sum) = was.checked_add(packet.number as i64) else {
                    return refused(Outcome::NotNumber);
                };
                (phv.value, phv.number) = (Words::default(), sum as u64);
                phv.value.0[0] = sum as u64;
                phv.deadline = kept;
                (Outcome::Done, State::present(next, 8, true))
            }
        }
    }

    /// Repeats the outcome of a request that was decided before, with the content if the cell still
    /// has the version that the request wrote.
    fn again(&self, place: &Place, packet: Repr, phv: &Phv) -> Leaves {
        let has_content = phv.writer == packet.stamp;
        let (outcome, basis, number) = (phv.outcome, phv.basis, phv.number);
        let told = Repr { outcome, basis, number, has_content, time: phv.time, ..packet };
        if !has_content {
            return self.onward(place, told);
        }
        let (state, name, value) = (phv.state.clean(), phv.name, phv.value);
        self.onward(place, Repr { state, name, value, deadline: self.kept(phv), ..told })
    }

    /// Passes a decided request from the head to the next member; in a chain of one, to the client.
    fn onward(&self, place: &Place, packet: Repr) -> Leaves {
        if place.is_tail() || !self.guards.on(Guard::TailAnswers) {
            let outcome = packet.outcome;
            return Leaves::Answer(answer(packet, outcome));
        }
        let update = Repr { op: Op::Update, ..packet };
        NetCraq::to_member(place, self.next(place), update)
    }

    /// The next member; the tail itself if there is none.
    fn next(&self, place: &Place) -> Addr {
        let next = place.members.get(place.index + 1).copied().unwrap_or(place.tail());
        if self.guards.on(Guard::MemberByMember) { next } else { place.tail() }
    }

    /// The head's second pass: changes the registers if the state is the one that the first pass
    /// saw.
    fn on_second_pass(
        &mut self,
        place: &Place,
        seen: State,
        packet: Repr,
    ) -> Result<Leaves, DropReason> {
        let is_done = packet.outcome == Outcome::Done;
        let ask = if is_done { Ask::Claim(seen) } else { Ask::Hold(seen) };
        let basis = packet.state.version();
        let packet = Repr { basis, ..packet };
        let mut phv = self.phv(place, ask, &packet);
        self.stages.run(&mut phv);
        if packet.op == Op::Expire {
            return self.on_expired(place, packet, &phv);
        }
        // A request with this stamp was decided between the passes: of a copy of it, or of another
        // client that was given the same session.
        let is_decided = !is_done && !phv.has_session && self.guards.on(Guard::SecondPass);
        if !phv.has_state || is_decided {
            self.counters.writes_busy += 1;
            return Ok(Leaves::Answer(answer(packet, Outcome::Busy)));
        }
        let c = &mut self.counters;
        if is_done {
            c.writes_numbered += 1
        } else {
            c.writes_refused += 1
        }
        self.sweep.notes(&phv);
        Ok(self.onward(place, Repr { has_content: is_done, time: phv.time, ..packet }))
    }

    /// Applies a numbered write at each member after the head, up to the tail, which commits it
    /// only while it may answer. The same packets carry the copied content while an epoch opens or
    /// a switch joins.
    fn on_update(
        &mut self,
        place: &Place,
        answers: bool,
        packet: Repr,
    ) -> Result<Leaves, DropReason> {
        let is_known = packet.cell < self.layout.cells
            && u32::from(packet.stamp.slot()) < self.layout.sessions;
        if place.is_head() || !is_known {
            return Err(DropReason::Misdirected);
        }
        if place.is_tail() && place.is_open && !answers {
            return Err(DropReason::NoLease);
        }
        let ask = if packet.has_content { Ask::Apply } else { Ask::Record };
        let mut phv = self.phv(place, ask, &packet);
        self.stages.run(&mut phv);
        let c = &mut self.counters;
        if phv.has_state {
            c.updates_taken += 1
        } else {
            c.updates_old += 1
        }
        if !place.is_open && packet.client == Addr::default() {
            return Err(DropReason::Consumed);
        }
        if !place.is_tail() {
            return Ok(NetCraq::to_member(place, self.next(place), packet));
        }
        let acknowledgement = Repr {
            op: Op::Acknowledgement,
            words: 0,
            deadline: 0,
            time: 0,
            from: place.node,
            epoch: place.epoch,
            ..packet
        };
        let has_client = packet.client != Addr::default();
        Ok(match (has_client, packet.has_content) {
            (true, true) => Leaves::AnswerAndRound(acknowledgement),
            (true, false) => Leaves::Answer(answer(packet, packet.outcome)),
            (false, true) => Leaves::Others(acknowledgement),
            (false, false) => return Err(DropReason::Consumed),
        })
    }

    /// Answers a switch that copies: the content of a cell, or of a session, is read in one pass,
    /// and sent as an UPDATE.
    fn on_copy(&mut self, place: &Place, packet: Repr) -> Result<Leaves, DropReason> {
        let is_known = packet.cell < self.layout.cells
            && u32::from(packet.stamp.slot()) < self.layout.sessions;
        if place.is_joining() || !place.knows(packet.client) || !is_known {
            return Err(DropReason::Misdirected);
        }
        let mut phv = self.phv(place, Ask::Look, &packet);
        self.stages.run(&mut phv);
        self.counters.copied += 1;
        let (client, time) = (Addr::default(), phv.time);
        let update = Repr { op: Op::Update, client, time, ..packet };
        let update = if packet.has_content {
            self.content(update, &phv, phv.writer)
        } else {
            let (stamp, outcome, basis) = (phv.session, phv.outcome, phv.basis);
            Repr { stamp, outcome, basis, number: phv.number, ..update }
        };
        Ok(NetCraq::to_member(place, packet.client, update))
    }

    /// The content of a cell, as the outcome of the request that wrote it.
    fn content(&self, packet: Repr, phv: &Phv, stamp: Stamp) -> Repr {
        let (state, basis) = (phv.state.clean(), phv.state.version());
        let (name, value) = (phv.name, phv.value);
        let number = if state.is_number() { value.0[0] } else { 0 };
        let (has_content, outcome) = (true, Outcome::Done);
        let (deadline, time) = (self.kept(phv), phv.time);
        let packet = Repr { deadline, time, ..packet };
        Repr { state, basis, name, value, number, stamp, has_content, outcome, ..packet }
    }

    /// Sends a version that was not acknowledged for long down the chain again, with the request
    /// that wrote it. A tail that has inherited the version acknowledges it.
    fn on_resend(&mut self, place: &Place, packet: Repr) -> Result<Leaves, DropReason> {
        let is_tail = place.is_tail();
        let ask = if is_tail { Ask::Inherit } else { Ask::Look };
        let mut phv = self.phv(place, ask, &packet);
        self.stages.run(&mut phv);
        if phv.state != packet.state.dirty() {
            return Err(DropReason::Settled);
        }
        self.counters.resent += 1;
        let is_told = self.guards.on(Guard::ResentRequest);
        let stamp = if is_told { phv.writer } else { Stamp(0) };
        let content = self.content(packet, &phv, stamp);
        if is_tail {
            let (from, epoch) = (place.node, place.epoch);
            let op = Op::Acknowledgement;
            let (deadline, time) = (0, 0);
            let told = Repr { op, words: 0, from, epoch, deadline, time, ..content };
            return Ok(Leaves::Others(told));
        }
        Ok(NetCraq::to_member(place, self.next(place), Repr { op: Op::Update, ..content }))
    }

    /// Step 4: rewrites the packet in place.
    fn leave(&mut self, place: &Place, leaves: Leaves, bytes: &mut [u8]) -> Verdict<DropReason> {
        let mut write = |packet: &Repr| packet.write(bytes).unwrap_or(0);
        match leaves {
            Leaves::To(to, packet) => Verdict::Forward { to, size_bytes: write(&packet) },
            Leaves::Answer(packet) => {
                let to = packet.client;
                Verdict::Forward { to, size_bytes: write(&answered(place, packet)) }
            }
            Leaves::Round(packet, seen) => {
                let metadata = Metadata([seen.0, u64::from(place.epoch.0)]);
                Verdict::Recirculate { metadata, size_bytes: write(&packet) }
            }
            Leaves::AnswerAndRound(packet) => {
                let metadata = Metadata([0, u64::from(place.epoch.0)]);
                let size_bytes = write(&packet);
                Verdict::Mirror { to: packet.client, copy_bytes: size_bytes, metadata, size_bytes }
            }
            Leaves::Others(packet) => {
                Verdict::Multicast { to: Copies::Group(OTHERS), size_bytes: write(&packet) }
            }
        }
    }

    /// The content of a cell, as the control plane reads it: its state, name and value.
    #[must_use]
    pub fn peek(&self, cell: u32) -> (State, Name, Words) {
        let (name, value) = self.stages.peek(cell);
        (self.stages.peek_state(cell), name, value)
    }

    /// A cell's deadline, and the chain's time as the control plane knows it; 0: it has none.
    #[must_use]
    pub fn peek_deadline(&self, cell: u32, now: Instant) -> (u64, u64) {
        (self.stages.peek_deadline(cell), self.stages.time(now))
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &NetCraqCounters {
        &self.counters
    }

    /// Hashes what distinguishes its states: registers and tables.
    pub fn hash_registers(&self, hasher: &mut impl Hasher) {
        for cell in self.stages.cells() {
            cell.hash(hasher);
        }
        self.place.as_ref().map(|place| (place.epoch.0, place.index)).hash(hasher);
    }

    /// The packet that a sweep injects to send a cell's version again, if the version is dirty.
    #[must_use]
    pub fn resend(&self, cell: u32) -> Option<Injection> {
        let state = self.stages.peek_state(cell);
        state.is_dirty().then(|| self.injection(Op::Resend, cell, state))
    }

    fn injection(&self, op: Op, cell: u32, state: State) -> Injection {
        let (group, epoch) = self.place.as_ref().map(|p| (p.group, p.epoch)).unwrap_or_default();
        let from = self.place.as_ref().map_or(NodeId(0), |place| place.node);
        let packet = Repr::new(op, cell, self.layout.words());
        Injection::new(&Repr { state: state.clean(), group, epoch, from, ..packet }.packet())
    }

    /// Sweeps over all cells: versions that were already dirty in the last sweep are to be sent
    /// again.
    fn look_for_dirty(&mut self, now: Instant) {
        self.sweep.at = now.after(self.layout.patience_ns);
        let states = (0..self.layout.cells).map(|cell| (cell, self.stages.peek_state(cell)));
        let dirty: Vec<(u32, State)> = states.filter(|(_, state)| state.is_dirty()).collect();
        let again = dirty.iter().filter(|seen| self.sweep.seen.binary_search(seen).is_ok());
        self.sweep.due = again.copied().take(RESENT_MAX).collect();
        self.sweep.seen = dirty;
    }

    /// The control plane, and the parts of the switch that it changes.
    fn control_plane(&mut self) -> Option<(&mut Member, Plane<'_>)> {
        let NetCraq { member, layout, stages, place, sweep, .. } = self;
        Some((member.as_deref_mut()?, Plane { layout, stages, place, sweep }))
    }

    /// Its state as a member of a chain that a controller configures: the epoch, its position from
    /// the head on, and whether the epoch is open here.
    #[must_use]
    pub fn standing(&self) -> Option<(u32, usize, bool)> {
        let place = self.place.as_ref().filter(|place| !place.is_joining())?;
        Some((place.epoch.0, place.index, place.is_open))
    }

    /// The number of members of the newest chain that this switch has heard of, if it is not in it.
    #[must_use]
    pub fn others(&self) -> Option<usize> {
        self.member.as_ref().filter(|_| self.place.is_none())?.members_heard()
    }

    /// The number of members of the chain, if this switch is in it.
    #[must_use]
    pub fn length(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.members.len())
    }
}

/// The answer to a write.
fn answer(packet: Repr, outcome: Outcome) -> Repr {
    let packet = Repr { is_given: false, keeps_deadline: false, ..packet };
    Repr { op: Op::WriteReply, words: 0, outcome, deadline: 0, time: 0, ..packet }
}

fn answered(place: &Place, packet: Repr) -> Repr {
    Repr { from: place.node, epoch: place.epoch, ..packet }
}

impl SwitchProgram for NetCraq {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        match kind {
            Kind::NetCraq => Takes::Data,
            Kind::Membership | Kind::Lease | Kind::Chain if self.member.is_some() => Takes::Control,
            _ => Takes::Nothing,
        }
    }

    /// The chain's members are switches, and this switch is the one with its address. Registers
    /// outlive epochs.
    fn install(&mut self, now: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        let is_older = config.epoch < self.epoch_max;
        if config.kind != GroupKind::Switches || config.members.is_empty() || is_older {
            return Err(Refused);
        }
        self.epoch_max = config.epoch;
        let members: Vec<Addr> = config.members.iter().map(|member| member.addr).collect();
        let index = members.iter().position(|addr| *addr == self.own);
        self.place = index.map(|index| Place {
            group: config.group,
            epoch: Epoch(config.epoch),
            node: NodeId(config.members[index].node),
            index,
            members,
            joining: Vec::new(),
            is_open: true,
            answers_until: Instant::NEVER,
            versions: (0, State::VERSION_MAX),
            gives_names: false,
        });
        // Every dirty version is due at the second sweep.
        self.sweep.begin(now.instant);
        Ok(None)
    }

    fn uninstall(&mut self) {
        self.place = None;
        self.stages.reset();
        self.sweep = Sweep::default();
    }

    fn process(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let packet = match Repr::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.drop(DropReason::Malformed(error)),
        };
        let Some(place) = self.place.take() else { return self.drop(DropReason::Unconfigured) };
        let verdict = match self.dispatch(&place, ingress, packet) {
            Ok(leaves) => self.leave(&place, leaves, bytes),
            Err(reason) => self.drop(reason),
        };
        self.place = Some(place);
        verdict
    }

    fn member(&self, group: u16, index: usize) -> Option<Addr> {
        let place = self.place.as_ref().filter(|_| group == OTHERS)?;
        let all = place.members.iter().chain(&place.joining);
        all.filter(|addr| **addr != self.own).nth(index).copied()
    }

    fn rewrites_copies(&self) -> bool {
        true
    }

    /// Rewrites copies: the one for the client becomes the answer, the others acknowledgements.
    fn egress(&mut self, copy: &Copied, bytes: &mut [u8]) {
        let Ok(packet) = Repr::parse(bytes) else { return };
        let is_member = self.place.as_ref().is_some_and(|place| place.knows(copy.to));
        if packet.op == Op::Acknowledgement && !is_member {
            let _ = Repr { op: Op::WriteReply, ..packet }.write(bytes);
        }
    }

    fn malformed(&mut self, error: WireError) {
        let _: Verdict<_> = self.drop(DropReason::Malformed(error));
    }

    fn look(&mut self, _: Instant) -> Wants {
        Wants::Nothing
    }

    fn control(&mut self, now: Now, packet: &[u8]) -> Result<Option<Injection>, WireError> {
        let (member, mut plane) = self.control_plane().ok_or(WireError::Op)?;
        member.on_message(now.instant, packet, &mut plane)?;
        Ok(None)
    }

    fn speak(&mut self, sink: &mut impl Sink) {
        if let Some(member) = &mut self.member {
            member.speak(sink);
        }
    }

    fn upkeep(&mut self, now: Instant) -> Option<Injection> {
        if let Some((member, mut plane)) = self.control_plane() {
            member.tick(now, &mut plane);
        }
        self.place.as_ref().filter(|place| place.is_open)?;
        if self.sweep.due.is_empty() && now >= self.sweep.at {
            self.look_for_dirty(now);
        }
        if let Some((cell, state)) = self.sweep.due.pop() {
            return Some(self.injection(Op::Resend, cell, state));
        }
        self.next_expiry(now)
    }

    fn deadline(&self) -> Deadline {
        let sweep = match (&self.place, self.sweep.due.is_empty()) {
            (Some(place), true) if place.is_open => {
                Deadline { at: self.sweep.at, reason: "versions not acknowledged" }
            }
            (Some(place), false) if place.is_open => {
                Deadline { at: Instant(0), reason: "versions to send again" }
            }
            _ => Deadline::NONE,
        };
        let sweep = sweep.min(self.next_look());
        self.member.as_ref().map_or(sweep, |member| sweep.min(member.deadline()))
    }

    fn is_ready(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.is_open)
    }

    fn gauges(&self) -> Vec<Gauge> {
        let states = (0..self.layout.cells).map(|cell| self.stages.peek_state(cell));
        let (mut keys, mut dirty) = (0, 0);
        for state in states {
            keys += u64::from(state.is_present());
            dirty += u64::from(state.is_dirty());
        }
        let gauge = |name, help, value| Gauge { name, help, value };
        alloc::vec![
            gauge("chain_keys", "Keys in the chain, as this member has them.", keys),
            gauge("chain_dirty", "Keys whose newest version the tail has not acknowledged.", dirty),
        ]
    }

    fn counts(&self) -> Vec<Count> {
        self.counters.each().collect()
    }

    fn describe(&self) -> Report {
        Report {
            recirculations_max: 1,
            multicast_groups: 1,
            ..Report::new("netcraq", self.stages.report())
        }
    }
}

// A value of the maximum length has as many words as one on the wire.
const _: () = assert!(VALUE_BYTES[2] as usize == 8 * WORDS_MAX);
