//! FLAIR's switch program (the thesis' chapter 4): it tracks which key groups are stable, and which
//! replicas hold their newest writes. Reads of stable groups go to followers, whose replies are
//! checked; all other requests go to the leader.
//!
//! The steps of Figure 17, and where they are:
//! 1. the session's cells are read (stages 0 to 2), first of all in every pass;
//! 2. the operation: [`Flair::process`];
//! 3. the request is validated: its session, and the age of the last heartbeat (`registers.rs`);
//! 4. a write takes the next `session_seq_num` (stage 2);
//! 5. a reply to a write is compared with its group's `seq_num` (stage 3);
//! 6. the key group array (stages 3 to 6): a write makes its group unstable, the reply to the last
//!    one stable; a read looks at it. Writes of all keys have cells of their own (trap T13);
//! 7. and 8. a read's group is stable, or it goes to the leader;
//! 9. a follower's reply is checked: the group has the number that the read was stamped with;
//! 10. the forwarding logic picks a follower (`forwarding.rs`), where load awareness is on by the
//!     weights that the leader computes;
//! 11. to the leader: writes, reads of unstable groups, reads whose reply is stale;
//! 12. to the client: replies;
//! 13. the header's fields are filled in, and the packet is made one of the other kind.
//!
//! **The switch steps down by the packet's time**: a packet that arrives later than
//! `switch_stepdown` after the probe that the leader's last heartbeat echoed is dropped (trap T26).
//! The paper's switch is inactive from then on. Here the session goes on with the next heartbeat:
//! no packet has passed meanwhile, so all cells are still valid.
//!
//! **Requests of several objects** count as requests of all keys.

mod forwarding;
mod layout;
mod registers;
mod upload;

use alloc::boxed::Box;
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Guard, Guards, Instant, Now, ObjectId, SwitchId};
use concord_pisa::{Report, Verdict};
use concord_wire::control::{Config, Message as _};
use concord_wire::flair::{
    Followers, Group, Heartbeat, OP_HEARTBEAT, Packet, PacketMut, REPLICAS_MAX, SessionMessage, Sid,
};
use concord_wire::{Addr, Flags, Kind, Op, Reason, Repr, WireError, kind, op, rpc};

use crate::program::{
    Count, Gauge, Ingress, Injection, Load, LoadError, Refused, Settings, SwitchProgram, Takes,
    Wants,
};
use crate::store::{self, Store, row};

use forwarding::Forwarding;
pub use layout::{FlairError, GROUP_BITS_MAX, GROUP_BITS_MIN, KeyGroupSettings};
use registers::{At, Concerns, ReadPass, Registers, Replied, Sequenced};
use upload::{Repair, Upload, UploadCounters, confirmation};

/// The reason why a packet ends at the switch. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// A reason of every program for replicas.
    Store(store::DropReason),
    /// There is no session, or its leader was not heard lately.
    NoSession,
    /// The packet is a reply or a heartbeat of another session.
    OtherSession,
    /// The packet is a reply to a write with a number that was never given out.
    Impossible,
    /// The packet is a reply that is not one of FLAIR's: it was never checked.
    Unchecked,
}

impl From<store::DropReason> for DropReason {
    fn from(reason: store::DropReason) -> DropReason {
        DropReason::Store(reason)
    }
}

concord_core::counters! {
    /// Counts of what the program did, beside those of every program for replicas.
    pub struct FlairCounters {
        /// Writes to one key group that the switch numbered.
        writes_of_group,
        /// Writes to all keys that the switch numbered.
        writes_of_all_keys,
        /// Registrations of sessions that the switch numbered; they concern no key.
        writes_of_nothing,
        /// Reads of a stable key group, sent to a replica that holds it.
        reads_stable,
        /// Reads sent to the leader because a write of their key group is in progress.
        reads_unstable,
        /// Reads of a stable key group sent to the leader because no other reachable replica is
        /// known to hold the group.
        reads_no_holder,
        /// Replies to writes that made their key group stable.
        replies_stable,
        /// Replies to writes that left their key group unstable because a later write is in
        /// progress.
        replies_later,
        /// Followers' replies to reads that passed the switch's check.
        replies_checked,
        /// Followers' replies to reads that were stale; the switch sent the reads to the leader
        /// instead.
        replies_stale,
        /// Followers' replies to reads that were stale and too long to become reads again; dropped,
        /// so that their clients ask again.
        replies_refused,
        /// Heartbeats of the current session.
        heartbeats,
        /// Packets dropped because there is no session, or its leader was silent for too long.
        dropped_no_session,
        /// Replies and heartbeats dropped because they belong to another session.
        dropped_other_session,
        /// Replies to writes dropped because the switch has not given out their number.
        dropped_impossible,
        /// Replies dropped because they do not have FLAIR's header: the switch could not check
        /// them.
        dropped_unchecked,
    }
}

/// FLAIR's switch program.
#[derive(Clone, Debug)]
pub struct Flair {
    settings: KeyGroupSettings,
    guards: Guards,
    store: Store,
    /// The view of the configuration, and the node of its leader.
    view: u32,
    leader: u16,
    registers: Box<Registers>,
    forwarding: Forwarding,
    upload: Upload,
    repair: Repair,
    counters: FlairCounters,
    upload_counters: UploadCounters,
}

type Outcome = Result<(Addr, usize), DropReason>;

/// The data plane.
impl Flair {
    #[inline]
    fn at(&self, now: Instant) -> At {
        let is_checked = self.guards.on(Guard::SwitchStepDown);
        let stepdown_ns = if is_checked { self.settings.stepdown_ns } else { u64::MAX };
        At { now, stepdown_ns }
    }

    /// The key group of an object: the most significant bits of its id (§4.3.2).
    #[inline]
    fn group_of(&self, obj_id: ObjectId) -> u32 {
        obj_id.0 >> (32 - u32::from(self.settings.group_bits))
    }

    #[inline]
    fn concerns(&self, hdr: &Repr) -> Concerns {
        if hdr.is_of_many() {
            Concerns::All
        } else if hdr.flags.has(Flags::REGISTER) && !hdr.flags.has(Flags::INTERNAL) {
            Concerns::Nothing
        } else {
            Concerns::Group(self.group_of(hdr.obj_id))
        }
    }

    /// The id of this switch: the packets that it sends carry it; those of an earlier rack carry
    /// another one (trap T28).
    fn switch_id(&self) -> SwitchId {
        self.store.routes().map_or(SwitchId(0), |routes| routes.switch_id)
    }

    fn leader_addr(&self) -> Result<Addr, DropReason> {
        let routes = self.store.routes().ok_or(store::DropReason::Unconfigured)?;
        Ok(routes.head)
    }

    /// Packets that every program for replicas takes: clients' requests, and replicas' packets
    /// without FLAIR's header.
    fn of_all_stores(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Outcome {
        let hdr = rpc::Packet::parse(bytes).map_err(store::DropReason::Malformed)?.repr();
        match hdr.op {
            Op::Write => self.on_write(ingress, &hdr, bytes),
            Op::Read => self.on_read(ingress, &hdr, bytes),
            Op::WriteReply | Op::ReadReply => Err(DropReason::Unchecked),
            Op::WRest
            | Op::WRestAck
            | Op::Pull
            | Op::Fragment
            | Op::Push
            | Op::WriteCompletion
            | Op::Sweep => {
                let mut packet =
                    rpc::PacketMut::parse(bytes).map_err(store::DropReason::Malformed)?;
                let size_bytes = packet.view().bytes().len();
                Ok((self.store.pass_on(&hdr, &mut packet)?, size_bytes))
            }
        }
    }

    /// Processes a write request (§4.3.3).
    fn on_write(&mut self, ingress: &Ingress<'_>, hdr: &Repr, bytes: &mut [u8]) -> Outcome {
        let leader = self.leader_addr()?;
        let concerns = self.concerns(hdr);
        let (at, counter_max) = (self.at(ingress.at), self.settings.counter_max());
        let mut packet = PacketMut::enter(bytes).map_err(store::DropReason::Malformed)?;
        let (sid, counter) = match self.registers.ports().write(at, concerns, counter_max) {
            Sequenced::Number(sid, counter) => (sid, counter),
            Sequenced::NoSession => return Err(DropReason::NoSession),
            Sequenced::Exhausted => return Err(store::DropReason::SeqExhausted.into()),
        };
        match concerns {
            Concerns::Group(_) => self.counters.writes_of_group += 1,
            Concerns::All => self.counters.writes_of_all_keys += 1,
            Concerns::Nothing => self.counters.writes_of_nothing += 1,
        }
        // The reply has to say, too, that the write is of all keys.
        if concerns == Concerns::All {
            packet.set_flags(hdr.flags.with(Flags::WILDCARD));
        }
        packet.stamp(self.switch_id(), sid.number(counter), concord_core::Position(0));
        Ok((leader, packet.size_bytes()))
    }

    /// Processes a read request (§4.3.4).
    fn on_read(&mut self, ingress: &Ingress<'_>, hdr: &Repr, bytes: &mut [u8]) -> Outcome {
        let leader = self.leader_addr()?;
        let (at, with_all) = (self.at(ingress.at), self.guards.on(Guard::AllKeysGroup));
        let group = self.group_of(hdr.obj_id);
        let read = self.registers.ports().read(at, group, with_all);
        if !read.session.is_live {
            return Err(DropReason::NoSession);
        }
        let (to, reason) = match self.holder(hdr, &read) {
            Ok(to) => (to, Reason::Fast),
            Err(reason) => (leader, reason),
        };
        let counters = &mut self.counters;
        match reason {
            Reason::Fast => counters.reads_stable += 1,
            Reason::SlowUnstable => counters.reads_unstable += 1,
            Reason::SlowNoHolder => counters.reads_no_holder += 1,
            other => self.store.count_slow(other),
        }
        let mut packet = PacketMut::enter(bytes).map_err(store::DropReason::Malformed)?;
        packet.set_reason(reason);
        packet.set_flags(hdr.flags.set(Flags::FAST, reason == Reason::Fast));
        packet.stamp(self.switch_id(), read.session.sid.number(read.seq_num), read.log_idx);
        Ok((to, packet.size_bytes()))
    }

    /// The follower that answers a read, or the reason why the leader does.
    fn holder(&self, hdr: &Repr, read: &ReadPass) -> Result<Addr, Reason> {
        if hdr.is_of_many() {
            return Err(Reason::SlowAllKeys);
        }
        if !read.all_is_stable {
            return Err(Reason::SlowWildcard);
        }
        if !read.is_stable && self.guards.on(Guard::UnstableGroup) {
            return Err(Reason::SlowUnstable);
        }
        // A retry may go to the leader: the replica that was asked first may be the only other one.
        let spares_leader = self.settings.avoid_leader && read.is_pending && hdr.attempt == 0;
        let choice = (row(hdr, self.settings.run_bits), hdr.attempt);
        let to = self.forwarding.choose(read.followers, spares_leader, choice);
        to.ok_or(Reason::SlowNoHolder)
    }

    /// Processes a replica's packet with FLAIR's header.
    fn of_a_replica(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Outcome {
        let hdr = Packet::parse(bytes).map_err(store::DropReason::Malformed)?.repr();
        if hdr.switch != self.switch_id() && self.guards.on(Guard::SwitchSession) {
            return Err(DropReason::OtherSession);
        }
        match hdr.common.op {
            Op::WriteReply => self.on_write_reply(ingress, &hdr, bytes),
            Op::ReadReply => self.on_read_reply(ingress, &hdr, bytes),
            Op::Write
            | Op::Read
            | Op::WRest
            | Op::WRestAck
            | Op::Pull
            | Op::Fragment
            | Op::Push
            | Op::WriteCompletion
            | Op::Sweep => Err(DropReason::Unchecked),
        }
    }

    fn on_write_reply(
        &mut self,
        ingress: &Ingress<'_>,
        hdr: &concord_wire::flair::Repr,
        bytes: &mut [u8],
    ) -> Outcome {
        let (concerns, seq) = (self.concerns(&hdr.common), hdr.common.seq);
        let number = (Sid::of(seq), seq.counter, self.guards.on(Guard::SwitchSession));
        let holds = (hdr.log_idx, hdr.cflwrs);
        let at = self.at(ingress.at);
        match self.registers.ports().write_reply(at, concerns, number, holds) {
            Replied::Stable => self.counters.replies_stable += 1,
            Replied::Later => self.counters.replies_later += 1,
            Replied::OtherSession => return Err(DropReason::OtherSession),
            Replied::Impossible => return Err(DropReason::Impossible),
            Replied::NoSession => return Err(DropReason::NoSession),
        }
        self.reply(&hdr.common, bytes)
    }

    fn on_read_reply(
        &mut self,
        ingress: &Ingress<'_>,
        hdr: &concord_wire::flair::Repr,
        bytes: &mut [u8],
    ) -> Outcome {
        let (seq, at) = (hdr.common.seq, self.at(ingress.at));
        let with_all = self.guards.on(Guard::AllKeysGroup);
        let group = self.group_of(hdr.common.obj_id);
        let read = self.registers.ports().read(at, group, with_all);
        if Sid::of(seq) != read.session.sid && self.guards.on(Guard::SwitchSession) {
            return Err(DropReason::OtherSession);
        }
        if !read.session.is_live {
            return Err(DropReason::NoSession);
        }
        let is_leaders = hdr.common.node.0 == self.leader;
        let is_good = seq.counter == read.seq_num || !self.guards.on(Guard::StaleReply);
        if is_leaders {
            return self.reply(&hdr.common, bytes);
        }
        if is_good {
            self.counters.replies_checked += 1;
            return self.reply(&hdr.common, bytes);
        }
        let leader = self.leader_addr()?;
        let mut packet = PacketMut::parse(bytes).map_err(store::DropReason::Malformed)?;
        if packet.ask_again(self.switch_id(), read.session.sid.number(read.seq_num)) {
            self.counters.replies_stale += 1;
            return Ok((leader, packet.size_bytes()));
        }
        self.counters.replies_refused += 1;
        Ok((self.store.on_reply(&hdr.common)?, packet.refuse()))
    }

    /// Sends a reply to the client, without FLAIR's header. The reply to a no-op of the switch ends
    /// here, and so does that to a replica's own write.
    fn reply(&mut self, hdr: &Repr, bytes: &mut [u8]) -> Outcome {
        if hdr.flags.has(Flags::INTERNAL) {
            return Err(store::DropReason::Consumed.into());
        }
        let to = self.store.on_reply(hdr)?;
        let packet = PacketMut::parse(bytes).map_err(store::DropReason::Malformed)?;
        Ok((to, packet.leave()))
    }

    /// Processes a heartbeat (§4.3.6): the answer carries the switch's clock.
    fn on_heartbeat(&mut self, now: Instant, bytes: &mut [u8]) -> Outcome {
        let beat = Heartbeat::parse(bytes).map_err(store::DropReason::Malformed)?;
        let leader = self.leader_addr()?;
        if beat.switch != self.switch_id() {
            return Err(DropReason::OtherSession);
        }
        let probe = if self.guards.on(Guard::HeartbeatProbe) { beat.probe } else { now };
        let own = self.registers.ports().heartbeat(now, (beat.sid, probe), beat.caught_up);
        if own != beat.sid {
            return Err(DropReason::OtherSession);
        }
        self.counters.heartbeats += 1;
        let answered = Heartbeat::answer(bytes, now).map_err(store::DropReason::Malformed)?;
        Ok((leader, answered))
    }

    /// Sends the control plane's own confirmation to the leader.
    fn on_confirmation(&self, ingress: &Ingress<'_>, bytes: &[u8]) -> Outcome {
        let is_own = self.store.routes().is_some_and(|routes| routes.switch == ingress.sender);
        if !is_own {
            return Err(DropReason::Unchecked);
        }
        Ok((self.leader_addr()?, bytes.len()))
    }

    fn drop(&mut self, reason: DropReason) -> Verdict<DropReason> {
        match reason {
            DropReason::Store(reason) => self.store.count_drop(reason),
            DropReason::NoSession => self.counters.dropped_no_session += 1,
            DropReason::OtherSession => self.counters.dropped_other_session += 1,
            DropReason::Impossible => self.counters.dropped_impossible += 1,
            DropReason::Unchecked => self.counters.dropped_unchecked += 1,
        }
        Verdict::Drop(reason)
    }
}

/// The control plane.
impl Flair {
    /// The part that it shares with the other programs for replicas.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The program's counters.
    #[must_use]
    pub fn counters(&self) -> &FlairCounters {
        &self.counters
    }

    /// The id of the session that began last; 0 if none did.
    #[must_use]
    pub fn sid(&self) -> Sid {
        Sid(self.registers.session_id.peek(0))
    }

    /// The key group of an object: the number of its last write, and its other cells.
    #[must_use]
    pub fn group(&self, obj_id: ObjectId) -> (u32, Group) {
        self.registers.group(Concerns::Group(self.group_of(obj_id)))
    }

    /// The same of the cells for writes of all keys.
    #[must_use]
    pub fn all_keys(&self) -> (u32, Group) {
        self.registers.group(Concerns::All)
    }

    /// Fills the forwarding tables with the members that the leader hears, by their bits in the
    /// session.
    fn fill(&mut self) {
        let Some(routes) = self.store.routes() else { return self.forwarding.clear() };
        let addr = |node: &u16| routes.replicas.iter().find(|r| r.0 == *node).map(|r| r.1);
        let addrs: Vec<Option<Addr>> = self.upload.replicas().iter().map(addr).collect();
        let leader = self.upload.replicas().iter().position(|node| *node == self.leader);
        if addrs.is_empty() {
            return self.forwarding.clear();
        }
        let leader = leader.unwrap_or(REPLICAS_MAX);
        self.forwarding.fill(addrs, leader, self.upload.weights());
    }

    /// Ends the session: no packet passes until another one is active.
    fn end_session(&mut self) {
        self.registers.reset();
        self.upload.forget();
        self.forwarding.clear();
    }
}

impl Load for Flair {
    fn load(settings: &Settings) -> Result<Flair, LoadError> {
        let own = settings.sections.key_groups;
        own.check()?;
        Ok(Flair {
            settings: own,
            guards: settings.guards,
            store: Store::default(),
            view: 0,
            leader: 0,
            registers: Box::new(Registers::new(&own)),
            forwarding: Forwarding::default(),
            upload: Upload::default(),
            repair: Repair::new(settings.addr, own.repair_interval_ns, own.group_bits),
            counters: FlairCounters::default(),
            upload_counters: UploadCounters::default(),
        })
    }
}

impl SwitchProgram for Flair {
    type Reason = DropReason;

    #[inline]
    fn takes(&self, kind: Kind) -> Takes {
        match kind {
            Kind::Store | Kind::Flair => Takes::Data,
            Kind::FlairSession => Takes::Control,
            _ => Takes::Nothing,
        }
    }

    /// A session does not span views, so another view's configuration ends it. Within a view, a
    /// configuration tells which members the leader hears.
    fn install(&mut self, _: Now, config: &Config) -> Result<Option<Injection>, Refused> {
        let head = config.head().ok_or(Refused)?.node;
        if config.members.len() > REPLICAS_MAX {
            return Err(Refused);
        }
        let is_new = self.store.install(config)?;
        if is_new {
            self.upload.begin_anew();
        }
        if is_new || (config.epoch, head) != (self.view, self.leader) {
            self.end_session();
        }
        (self.view, self.leader) = (config.epoch, head);
        self.fill();
        Ok(None)
    }

    fn uninstall(&mut self) {
        self.store.routes = None;
        self.end_session();
    }

    fn process(&mut self, ingress: &Ingress<'_>, bytes: &mut [u8]) -> Verdict<DropReason> {
        let outcome = match kind(bytes) {
            Ok(Kind::Store) => self.of_all_stores(ingress, bytes),
            Ok(Kind::Flair) if op(bytes) == OP_HEARTBEAT => self.on_heartbeat(ingress.at, bytes),
            Ok(Kind::Flair) => self.of_a_replica(ingress, bytes),
            Ok(Kind::FlairSession) => self.on_confirmation(ingress, bytes),
            Ok(_) => Err(store::DropReason::Malformed(WireError::Op).into()),
            Err(error) => Err(store::DropReason::Malformed(error).into()),
        };
        match outcome {
            Ok((to, size_bytes)) => Verdict::Forward { to, size_bytes },
            Err(reason) => self.drop(reason),
        }
    }

    fn malformed(&mut self, error: WireError) {
        self.store.count_drop(store::DropReason::Malformed(error));
    }

    /// Processes a message of a session's start from the leader of the configured view.
    fn control(&mut self, now: Now, packet: &[u8]) -> Result<Option<Injection>, WireError> {
        let message = SessionMessage::parse(packet)?;
        let (from, view) = message.sender();
        let is_leaders = self.store.routes().is_some()
            && message.switch() == self.switch_id()
            && (view.0, from.0) == (self.view, self.leader);
        if !is_leaders {
            self.upload_counters.session_messages_refused += 1;
            return Ok(None);
        }
        let (count, wants) =
            (&mut self.upload_counters, (self.guards, self.settings.load_awareness));
        let step = self.upload.take(&message, &mut self.registers, wants, count);
        self.fill();
        Ok(step.map(|step| confirmation(&message, step, now.instant)))
    }

    #[inline]
    fn look(&mut self, now: Instant) -> Wants {
        let unstable = self.registers.unstable.peek(0);
        let repairs = self.upload.is_active() && self.guards.on(Guard::GroupRepair);
        self.repair.look(now, repairs, unstable);
        let last = self.registers.session_seq_num.peek(0);
        if last >= self.settings.ask_at() { Wants::SwitchId } else { Wants::Nothing }
    }

    fn upkeep(&mut self, now: Instant) -> Option<Injection> {
        self.repair.upkeep(now, &self.registers)
    }

    fn deadline(&self) -> Deadline {
        self.repair.deadline()
    }

    /// It is ready once a session is active.
    fn is_ready(&self) -> bool {
        self.upload.is_active()
    }

    fn gauges(&self) -> Vec<Gauge> {
        let gauge = |name, help, value: u32| Gauge { name, help, value: value.into() };
        alloc::vec![
            gauge("session", "The number of the current session.", self.sid().0),
            gauge(
                "sequence",
                "The last number given out in the session.",
                self.registers.session_seq_num.peek(0)
            ),
            gauge("groups", "Key groups.", self.settings.groups()),
            gauge(
                "groups_unstable",
                "Key groups with a write in progress, all keys counted as one.",
                self.registers.unstable.peek(0)
            ),
        ]
    }

    fn counts(&self) -> Vec<Count> {
        let noops = [("repairs", "No-ops for groups that stayed unstable.", self.repair.noops)];
        let own = self.counters.each().chain(self.upload_counters.each());
        self.store.counters().each().chain(own).chain(noops).collect()
    }

    fn describe(&self) -> Report {
        Report { tables: forwarding::report(), ..Report::new("flair", self.registers.report()) }
    }
}

const _: () = assert!(Followers::ALL.0.count_ones() as usize == REPLICAS_MAX);
