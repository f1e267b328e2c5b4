//! Epochs: the membership, and how members agree on one log before they go on (traps T2 to T5).
//!
//! An epoch opens at a member when (1) the head has heard the end of every member's log, has
//! fetched what a longer one holds and said so, and (2) no node outside the epoch can still hold a
//! lease that this member granted. A change of the switch is an epoch like any other, so that all
//! members have agreed to refuse the old switch's fast reads before the new one sends anything
//! (Harmonia §6.3).

use alloc::vec::Vec;

use concord_core::{Epoch, Guard, Instant, NodeId, Now, Position};
use concord_engine::Engine;
use concord_wire::control::{
    Config, CopyMessage, LeaseMessage, LogEnd, Member, Membership, Message as _,
};
use concord_wire::fragment::FragmentHdr;
use concord_wire::record::Record;
use concord_wire::{Addr, Sink};

use super::Replica;
use super::opening::{ASKED_MAX, Fetch, Opening};
use crate::link::{Receiver, Sender};
use crate::ordered::{Fit, Room};
use crate::setup::{Phase, RETRY_NS};

impl<E: Engine> Replica<E> {
    pub(super) fn on_configure(&mut self, now: Now, config: Config, sink: &mut impl Sink) {
        let is_of_its_kind = config.protocol().is_some_and(|protocol| !protocol.is_quorum());
        if config.epoch <= self.role.epoch().0 || !is_of_its_kind {
            return;
        }
        // Others are told that this replica knows the configuration only once that is durable.
        if self.setup.guards.on(Guard::DurableEpoch) && self.journal.wait_for(&config) {
            return;
        }
        self.configure(now, config, sink);
    }

    /// Handles a new configuration.
    pub(super) fn configure(&mut self, now: Now, config: Config, sink: &mut impl Sink) {
        // The controller believes only replicas that have heard of its configuration.
        self.report.hurry(now.instant);
        let me = self.setup.me;
        let incarnation_counts = self.setup.guards.on(Guard::Incarnation);
        let is_me = |m: &Member| {
            m.node == me.node && (m.incarnation == me.incarnation || !incarnation_counts)
        };
        let (member, joining) =
            (config.members.iter().any(is_me), config.joining.iter().any(is_me));
        if self.phase == Phase::Left {
            if self.serving.engine.lost() || self.journal.is_dead() || member || joining {
                self.role.config = Some(config);
                return;
            }
            // It is not a member: its state is useless, but another copy may not be.
            self.invalidate_copy();
        }
        let was_member = matches!(self.phase, Phase::Opening | Phase::Open);
        self.caught_up &= was_member;
        self.streams.close();
        self.source.begin(!config.joining.is_empty());
        self.serving.engine.end_copy();
        self.journal.end_snapshot();
        self.leases.close();
        self.opening = Opening::default();
        self.unanswered.forget_reads();
        self.asking.forget();
        self.report.begin(now.instant, config.members.iter().filter(|m| !is_me(m)), member);
        self.role.config = Some(config);
        if joining && !member {
            return self.join(now, sink);
        }
        if !member {
            self.phase = Phase::Out;
            self.next_retry = Instant::NEVER;
            if let Some(retiring) = &mut self.retiring {
                retiring.next_at = now.instant;
            }
            return;
        }
        if !self.copy.is_caught_up() {
            // It was made a member because of a copy that it has discarded since.
            return self.fail_stop();
        }
        self.phase = Phase::Opening;
        self.execute_held(sink);
        self.retry_opening(now, sink);
        self.try_open(now, sink);
    }

    /// Repeats messages that others may have missed, until the epoch is open everywhere.
    pub(super) fn retry_opening(&mut self, now: Now, sink: &mut impl Sink) {
        self.next_retry = now.instant.after(RETRY_NS);
        match self.phase {
            Phase::Opening => {
                self.tell_others(&self.epoch_state(true), sink);
                self.fetch_longer(now, sink);
                self.try_open(now, sink);
            }
            Phase::Open if self.lacks_senders() => self.tell_others(&self.epoch_state(true), sink),
            Phase::Open if !self.opening.unopened().is_empty() => self.say_open(sink),
            Phase::Joining => self.keep_joining(now, sink),
            Phase::Open | Phase::Out | Phase::Left => self.next_retry = Instant::NEVER,
        }
    }

    fn epoch_state(&self, ask: bool) -> Membership {
        let (epoch, from) = (self.role.epoch().0, self.role.node().0);
        let waits = self.journal.is_waited_for();
        Membership::EpochState { epoch, from, end: self.ordered.log.end(), ask, waits }
    }

    /// Whether any member is known to wait for its disk. The head has heard from all when it opens
    /// the epoch.
    fn is_group_waited_for(&self) -> bool {
        self.journal.is_waited_for() || self.opening.is_waited_for()
    }

    fn open_message(&self, end: LogEnd) -> Membership {
        let (epoch, from) = (self.role.epoch().0, self.role.node().0);
        Membership::Open { epoch, from, end, waits: self.is_group_waited_for() }
    }

    fn say_open(&mut self, sink: &mut impl Sink) {
        let Some(end) = self.opening.agreed() else { return };
        self.open_message(end).emit(&mut self.scratch);
        let unopened = self.opening.unopened();
        for member in self.role.others().filter(|m| unopened.contains(&NodeId(m.node))) {
            sink.send(member.addr, &self.scratch);
        }
    }

    pub(super) fn on_epoch_state(
        &mut self,
        now: Now,
        epoch: Epoch,
        (from, end): (NodeId, LogEnd),
        (ask, waits): (bool, bool),
        sink: &mut impl Sink,
    ) {
        let Some(addr) = self.role.member_addr(from) else { return };
        if !self.role.is_epoch(epoch) || !matches!(self.phase, Phase::Opening | Phase::Open) {
            return;
        }
        if ask {
            self.send_control(addr, &self.epoch_state(false), sink);
        }
        match self.phase {
            Phase::Opening => {
                self.opening.hear(from, end, waits);
                self.fetch_longer(now, sink);
                self.try_open(now, sink);
            }
            Phase::Open => {
                if self.role.is_head()
                    && ask
                    && let Some(end) = self.opening.agreed()
                {
                    // It has not received the head's message yet.
                    self.send_control(addr, &self.open_message(end), sink);
                }
                self.add_sender(from, end, sink);
            }
            Phase::Out | Phase::Joining | Phase::Left => {}
        }
    }

    /// Opens the epoch. Head: once every member's log is known and none is longer. Others: once the
    /// head said so. In both cases not before the leases that it granted to nodes outside the epoch
    /// have run out.
    pub(super) fn try_open(&mut self, now: Now, sink: &mut impl Sink) {
        let is_idle = self.queue.is_empty() || !self.setup.guards.on(Guard::OpensIdle);
        if self.phase != Phase::Opening || !is_idle {
            return;
        }
        if self.role.is_head() && self.opening.agreed().is_none() {
            let (end, others) = (self.ordered.log.end(), self.role.others().count());
            let agreement = self.setup.guards.on(Guard::EpochAgreement);
            if !agreement || self.opening.is_longest(end, others) {
                self.opening.agree(end);
            }
        }
        let until = self.leases.others_until(|node| self.role.is_member(node));
        let guards = self.setup.guards;
        let waited = (now.instant >= until || !guards.on(Guard::Lease)) && !self.is_quiet(now);
        if self.opening.agreed().is_none() || !waited {
            return;
        }
        self.open(now, sink);
    }

    /// Whether leases that an earlier start of this replica granted may still hold (trap T2).
    pub(super) fn is_quiet(&self, now: Now) -> bool {
        now.instant < self.quiet_until && self.setup.guards.on(Guard::QuietStart)
    }

    fn open(&mut self, now: Now, sink: &mut impl Sink) {
        self.phase = Phase::Open;
        self.count.epochs_opened += 1;
        self.journal.open(self.role.predecessor().is_none(), self.is_group_waited_for());
        self.note_caught_up();
        let me = self.role.node();
        let others: Vec<NodeId> = self.role.others().map(|m| NodeId(m.node)).collect();
        self.leases.open(now.instant, others.iter().copied());
        let receiver = self.role.predecessor().map(|node| Receiver::new(node, 0));
        self.streams.receive(now.instant, receiver);
        let ends = self.opening.ends().to_vec();
        for (node, end) in &ends {
            self.add_sender(*node, *end, sink);
        }
        let has_all = |end: &LogEnd| end.position >= self.ordered.log.end().position;
        if ends.len() == others.len() && ends.iter().all(|(_, end)| has_all(end)) {
            // Records committed in an earlier epoch may have been executed while this one opened.
            // (If a member lags, they are dropped with the next commit.)
            self.truncate_log();
        }
        if self.role.is_head() {
            self.opening.begin_telling(others);
            self.say_open(sink);
            self.next_retry = now.instant.after(RETRY_NS);
        } else {
            let opened = Membership::Opened { epoch: self.role.epoch().0, from: me.0 };
            let head = self.role.head().map(|m| m.addr);
            if let Some(addr) = head {
                self.send_control(addr, &opened, sink);
            }
            self.next_retry = now.instant.after(RETRY_NS);
        }
        self.report.hurry(now.instant);
        self.settle_old_writes(now, sink);
        self.request_leases(now, sink);
    }

    /// Whether a neighbour has not named the end of its log yet, so that nothing can be sent to it.
    fn lacks_senders(&self) -> bool {
        self.streams.successors() < self.role.successors()
    }

    /// Adds a stream to a successor. If its log is not a prefix of ours, or ends before the kept
    /// records, it cannot be continued (trap T5).
    fn add_sender(&mut self, node: NodeId, end: LogEnd, sink: &mut impl Sink) {
        let next = self.role.is_successor(node) && !self.streams.goes_to(node);
        let Some(addr) = self.role.member_addr(node).filter(|_| next) else { return };
        let (me, epoch, position) = (self.role.node(), self.role.epoch(), Position(end.position));
        let is_longer = position > self.ordered.end();
        let agrees = self.ordered.log.hash_at(position) == Some(end.hash);
        if !is_longer && !agrees && self.setup.guards.on(Guard::EpochAgreement) {
            return self.say_log_mismatch(epoch, addr, sink);
        }
        self.streams.add(Sender::new(me, epoch, (node, addr), position, 0));
    }

    /// Tells a member that its log does not match ours, or is too short.
    fn say_log_mismatch(&mut self, epoch: Epoch, addr: Addr, sink: &mut impl Sink) {
        self.count.members_apart += 1;
        let from = self.role.node().0;
        let apart = CopyMessage::LogMismatch { epoch: epoch.0, from, attempt: 0 };
        self.send_control(addr, &apart, sink);
    }

    pub(super) fn on_open(
        &mut self,
        now: Now,
        epoch: Epoch,
        from: NodeId,
        (end, waits): (LogEnd, bool),
        sink: &mut impl Sink,
    ) {
        let head = self.role.head().map(|m| (m.node, m.addr));
        let Some((node, addr)) = head else { return };
        if !self.role.is_epoch(epoch) || node != from.0 || self.role.is_head() {
            return;
        }
        match self.phase {
            Phase::Opening => {
                let is_shorter = end.position < self.ordered.log.end().position;
                if is_shorter && self.setup.guards.on(Guard::EpochAgreement) {
                    // The head agreed to less than it was told: it never heard of our end.
                    return;
                }
                self.opening.agree(end);
                self.opening.hear_waits(waits);
                self.try_open(now, sink);
            }
            Phase::Open => {
                let opened = Membership::Opened { epoch: epoch.0, from: self.role.node().0 };
                self.send_control(addr, &opened, sink);
            }
            Phase::Out | Phase::Joining | Phase::Left => {}
        }
    }

    pub(super) fn request_leases(&mut self, now: Now, sink: &mut impl Sink) {
        self.leases.on_requested(now.instant);
        let request = LeaseMessage::Request {
            epoch: self.role.epoch().0,
            from: self.role.node().0,
            asked_at: now.instant.0,
        };
        self.tell_others(&request, sink);
    }

    pub(super) fn on_lease_request(
        &mut self,
        now: Now,
        epoch: Epoch,
        from: NodeId,
        asked_at: u64,
        sink: &mut impl Sink,
    ) {
        let Some(Member { addr, incarnation, .. }) = self.role.member_of(from) else { return };
        if self.phase != Phase::Open || !self.role.is_epoch(epoch) {
            return;
        }
        self.leases.grant(now.instant, from, incarnation);
        let grant = LeaseMessage::Grant { epoch: epoch.0, from: self.role.node().0, asked_at };
        self.send_control(addr, &grant, sink);
    }

    /// Takes a record from the predecessor, or one that the head fetched.
    pub(super) fn on_record(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        if self.phase == Phase::Joining && !self.copy.is_streamed() {
            return;
        }
        let Ok(record) = Record::parse(bytes) else { return self.on_log_mismatch() };
        match self.ordered.fit(&record, bytes) {
            // The members' ends were exchanged while records were in flight.
            Fit::Known => return,
            // The history differs from that of the member before (trap T5): only a snapshot could
            // repair it.
            Fit::Gap => return self.on_log_mismatch(),
            Fit::Mismatch if self.setup.guards.on(Guard::EpochAgreement) => {
                return self.on_log_mismatch();
            }
            Fit::Mismatch | Fit::Next => {}
        }
        self.ordered.take(Room::admitted(), &record, bytes, now.unix_ms);
        self.journal.record(Some(bytes));
        if self.phase == Phase::Joining && !self.joins_record(now, sink) {
            return;
        }
        if self.holds_back() {
            return self.hold(&record);
        }
        self.follow(&record, sink);
    }

    /// The longest log wins (trap T5): the head asks for the records that another member has beyond
    /// its own. A record may have hundreds of fragments (trap T17): received ones are kept, and
    /// only missing ones are asked for. The last fragment of a question leads to the next question,
    /// so that a lost fragment costs a round trip and not a timeout.
    pub(super) fn fetch_longer(&mut self, now: Now, sink: &mut impl Sink) {
        self.take_fetched(now, sink);
        if !self.role.is_head() || !self.setup.guards.on(Guard::EpochAgreement) {
            return;
        }
        let Some(wanted) = self.opening.fetch(self.ordered.end()) else { return };
        let Fetch { of, position, index, missing } = wanted;
        let Some(addr) = self.role.member_addr(of) else { return };
        let (epoch, from) = (self.role.epoch().0, self.role.node().0);
        let fetch = CopyMessage::Fetch { epoch, from, position: position.0, index, missing };
        self.send_control(addr, &fetch, sink);
    }

    /// Answers the head's question for a record.
    pub(super) fn on_fetch(
        &mut self,
        epoch: Epoch,
        from: NodeId,
        position: Position,
        (first, missing): (u32, u64),
        sink: &mut impl Sink,
    ) {
        let Some(addr) = self.role.member_addr(from) else { return };
        if !self.role.is_epoch(epoch) || self.phase != Phase::Opening {
            return;
        }
        let log = &self.ordered.log;
        let Some((record, hash)) = log.record(position).zip(log.hash_at(position)) else {
            if position <= log.oldest() && self.setup.guards.on(Guard::FetchLogMismatch) {
                // It came with a copy, which has only what was committed: the head lacks some of
                // that.
                self.say_log_mismatch(epoch, addr, sink);
            }
            return;
        };
        let total_bytes = record.len() as u32;
        let fragments = FragmentHdr { version: hash, total_bytes, index: 0, count: 1 }.fragments();
        let asked = (0..ASKED_MAX).filter(|bit| missing & (1 << bit) != 0);
        for index in asked.filter_map(|bit| first.checked_add(bit)).take_while(|i| *i < fragments) {
            let hdr = FragmentHdr { version: hash, total_bytes, index, count: 1 };
            let piece = record[hdr.range()].to_vec();
            let (epoch, position) = (epoch.0, position.0);
            CopyMessage::Fetched { epoch, position, hash, total_bytes, index, piece }
                .emit(&mut self.scratch);
            sink.send(addr, &self.scratch);
            self.count.fragments_fetched += 1;
        }
    }

    /// Takes a fragment of a record that the head asked for.
    pub(super) fn on_fetched(
        &mut self,
        now: Now,
        epoch: Epoch,
        position: Position,
        hdr: FragmentHdr,
        piece: &[u8],
        sink: &mut impl Sink,
    ) {
        if !self.role.is_epoch(epoch) || self.phase != Phase::Opening {
            return;
        }
        if self.opening.take((position, self.ordered.end()), &hdr, piece) {
            self.fetch_longer(now, sink);
        }
    }

    /// Takes the fetched record, once nothing is pending: a write that this replica ordered itself
    /// may still move the end of its log.
    fn take_fetched(&mut self, now: Now, sink: &mut impl Sink) {
        if self.phase != Phase::Opening || !self.queue.is_empty() {
            return;
        }
        let Some(record) = self.opening.take_fetched(self.ordered.end()) else { return };
        self.count.records_fetched += 1;
        self.on_record(now, &record, sink);
        self.try_open(now, sink);
    }

    /// A joining replica asks whether it is heard.
    pub(super) fn on_reach(&mut self, epoch: Epoch, from: NodeId, ask: bool, sink: &mut impl Sink) {
        let is_member = matches!(self.phase, Phase::Opening | Phase::Open);
        if ask
            && is_member
            && self.role.is_epoch(epoch)
            && let Some(addr) = self.role.joining_addr(from)
        {
            let from = self.role.node().0;
            let answer = Membership::Reach { epoch: epoch.0, from, ask: false };
            self.send_control(addr, &answer, sink);
        }
    }

    /// Notes that a member sent something in an epoch.
    pub(super) fn note_heard(&mut self, now: Now, said: Option<(u32, u16)>) {
        if let Some((epoch, from)) = said
            && self.role.is_epoch(Epoch(epoch))
        {
            self.report.hear(now.instant, from);
        }
    }
}
