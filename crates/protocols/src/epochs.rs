//! Epochs: who is a member, and how members agree on one log before they go on (traps T2 to T5).
//!
//! An epoch opens at a member when (1) the head has heard the end of every member's log, has fetched
//! what a longer one holds and said so, and (2) no node outside the epoch can still hold a lease that
//! this member granted. A change of the switch is an epoch like any other, so that all members have
//! agreed to refuse the old switch's fast reads before the new one sends anything (Harmonia §6.3).

use concord_core::{Epoch, Guard, Instant, NodeId, Now, Position};
use concord_engine::Engine;
use concord_wire::Sink;
use concord_wire::control::{
    Config, CopyMessage, LeaseMessage, LogEnd, Member, Membership, Message, Protocol,
};
use concord_wire::record::Record;

use crate::fetch::Fetching;
use crate::join::Stage;
use crate::link::{Receiver, Sender};
use crate::replica::{Phase, RETRY_NS, Replica};

impl<E: Engine> Replica<E> {
    pub(crate) fn on_configure(&mut self, now: Now, config: Config, sink: &mut impl Sink) {
        if config.epoch <= self.epoch().0 {
            return;
        }
        // The controller believes only who has heard of its configuration.
        self.next_alive = now.instant;
        let me = self.setup.me;
        let incarnation_counts = self.setup.guards.on(Guard::Incarnation);
        let is_me = |m: &Member| {
            m.node == me.node && (m.incarnation == me.incarnation || !incarnation_counts)
        };
        let (member, joining) =
            (config.members.iter().any(is_me), config.joining.iter().any(is_me));
        if self.phase == Phase::Left {
            if self.engine.lost() || member || joining {
                self.config = Some(config);
                return;
            }
            // It is out: what is here is of no use, but another copy may be.
            self.spoil_copy();
        }
        let was_member = matches!(self.phase, Phase::Opening | Phase::Open);
        self.whole &= was_member;
        self.receiver = None;
        self.senders.clear();
        self.feeds.clear();
        self.engine.end_copy();
        self.leases.close();
        self.ends.clear();
        self.unopened.clear();
        self.agreed = None;
        self.fetching = Fetching::default();
        self.waiting_reads.clear();
        self.asking.forget();
        self.has_joining = !config.joining.is_empty();
        self.reach.begin(now.instant, config.members.iter().filter(|m| !is_me(m)), member);
        self.config = Some(config);
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
        if self.copy.stage != Stage::Whole {
            // It was let in on the word of a copy that it has given up since.
            return self.leave();
        }
        self.phase = Phase::Opening;
        self.execute_held(sink);
        self.retry_opening(now, sink);
        self.try_open(now, sink);
    }

    fn end(&self) -> LogEnd {
        self.log.end()
    }

    fn others(&self) -> impl Iterator<Item = &Member> {
        let me = self.setup.me.node;
        self.config.iter().flat_map(|c| c.members.iter()).filter(move |m| m.node != me)
    }

    /// Says again what others may have missed, until the epoch is open everywhere.
    pub(crate) fn retry_opening(&mut self, now: Now, sink: &mut impl Sink) {
        self.next_retry = now.instant.after(RETRY_NS);
        match self.phase {
            Phase::Opening => {
                self.tell_others(&self.epoch_state(true), sink);
                self.fetch_longer(now, sink);
                self.try_open(now, sink);
            }
            Phase::Open if self.lacks_senders() => self.tell_others(&self.epoch_state(true), sink),
            Phase::Open if !self.unopened.is_empty() => self.say_open(sink),
            Phase::Joining => self.keep_joining(now, sink),
            Phase::Open | Phase::Out | Phase::Left => self.next_retry = Instant::NEVER,
        }
    }

    fn epoch_state(&self, ask: bool) -> Membership {
        let (epoch, from) = (self.epoch().0, self.node().0);
        Membership::EpochState { epoch, from, end: self.end(), ask }
    }

    pub(crate) fn tell_others(&mut self, message: &impl Message, sink: &mut impl Sink) {
        message.emit(&mut self.scratch);
        for member in self.others() {
            sink.send(member.addr, &self.scratch);
        }
    }

    fn say_open(&mut self, sink: &mut impl Sink) {
        let Some(end) = self.agreed else { return };
        let open = Membership::Open { epoch: self.epoch().0, from: self.node().0, end };
        open.emit(&mut self.scratch);
        for member in self.others().filter(|m| self.unopened.contains(&NodeId(m.node))) {
            sink.send(member.addr, &self.scratch);
        }
    }

    pub(crate) fn on_epoch_state(
        &mut self,
        now: Now,
        epoch: Epoch,
        (from, end): (NodeId, LogEnd),
        ask: bool,
        sink: &mut impl Sink,
    ) {
        let Some(addr) = self.member_addr(from) else { return };
        if !self.is_epoch(epoch) || !matches!(self.phase, Phase::Opening | Phase::Open) {
            return;
        }
        if ask {
            self.send_control(addr, &self.epoch_state(false), sink);
        }
        match self.phase {
            Phase::Opening => {
                match self.ends.iter_mut().find(|(node, _)| *node == from) {
                    Some(known) => known.1 = end,
                    None => self.ends.push((from, end)),
                }
                self.fetch_longer(now, sink);
                self.try_open(now, sink);
            }
            Phase::Open => {
                if self.is_head()
                    && ask
                    && let Some(end) = self.agreed
                {
                    // It has not heard the head's word yet.
                    let open = Membership::Open { epoch: epoch.0, from: self.node().0, end };
                    self.send_control(addr, &open, sink);
                }
                self.add_sender(from, end, sink);
            }
            Phase::Out | Phase::Joining | Phase::Left => {}
        }
    }

    /// Head: opens once every member's log is known and none is longer. Others: once the head said
    /// so. Nobody: before the leases that it granted to nodes outside the epoch have run out.
    pub(crate) fn try_open(&mut self, now: Now, sink: &mut impl Sink) {
        if self.phase != Phase::Opening || !self.pending.is_empty() {
            return;
        }
        if self.is_head() && self.agreed.is_none() {
            let heard = self.ends.len() == self.others().count();
            let longest = self.ends.iter().map(|(_, end)| end.position).max().unwrap_or(0);
            let agreement = self.setup.guards.on(Guard::EpochAgreement);
            if !agreement || (heard && longest <= self.end().position) {
                self.agreed = Some(self.end());
            }
        }
        let until = {
            let config = self.config.as_ref();
            let member =
                |node: NodeId| config.is_some_and(|c| c.members.iter().any(|m| m.node == node.0));
            self.leases.others_until(member)
        };
        let waited = now.instant >= until || !self.setup.guards.on(Guard::Lease);
        if self.agreed.is_none() || !waited {
            return;
        }
        self.open(now, sink);
    }

    fn open(&mut self, now: Now, sink: &mut impl Sink) {
        self.phase = Phase::Open;
        self.count.epochs_opened += 1;
        self.note_whole();
        // What was committed in an earlier epoch and executed while this one opened.
        self.let_go();
        let me = self.node();
        let others: alloc::vec::Vec<NodeId> = self.others().map(|m| NodeId(m.node)).collect();
        self.leases.open(now.instant, others.iter().copied());
        self.receiver = self.predecessor().map(|node| Receiver::new(node, 0));
        self.next_keepalive = now.instant;
        for (node, end) in self.ends.clone() {
            self.add_sender(node, end, sink);
        }
        if self.is_head() {
            self.unopened = others;
            self.say_open(sink);
            self.next_retry = now.instant.after(RETRY_NS);
        } else {
            let opened = Membership::Opened { epoch: self.epoch().0, from: me.0 };
            let head = self.config.as_ref().and_then(Config::head).map(|m| m.addr);
            if let Some(addr) = head {
                self.send_control(addr, &opened, sink);
            }
            self.next_retry = now.instant.after(RETRY_NS);
        }
        self.next_alive = now.instant;
        self.settle_old_writes(now, sink);
        self.request_leases(now, sink);
    }

    fn index(&self) -> Option<usize> {
        self.config.as_ref()?.members.iter().position(|m| m.node == self.setup.me.node)
    }

    fn predecessor(&self) -> Option<NodeId> {
        let config = self.config.as_ref()?;
        let index = self.index()?.checked_sub(1)?;
        let from = match config.protocol {
            Protocol::Chain | Protocol::Craq => index,
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos => 0,
        };
        Some(NodeId(config.members[from].node))
    }

    /// Whether a neighbour has not said yet where its log ends, so that nothing can be sent to it.
    fn lacks_senders(&self) -> bool {
        let Some((config, index)) = self.config.as_ref().zip(self.index()) else { return false };
        let wanted = match config.protocol {
            Protocol::Chain | Protocol::Craq => usize::from(index + 1 < config.members.len()),
            Protocol::PrimaryBackup if index == 0 => config.members.len() - 1,
            Protocol::PrimaryBackup | Protocol::Vr | Protocol::NoPaxos => 0,
        };
        self.senders.len() < wanted
    }

    /// A stream to whoever comes next. One whose log is not the beginning of ours, or ends before
    /// what is kept, cannot go on from it (trap T5).
    fn add_sender(&mut self, node: NodeId, end: LogEnd, sink: &mut impl Sink) {
        let Some(config) = &self.config else { return };
        let Some(index) = self.index() else { return };
        let next = match config.protocol {
            Protocol::Chain | Protocol::Craq => {
                config.members.get(index + 1).is_some_and(|m| m.node == node.0)
            }
            Protocol::PrimaryBackup => index == 0,
            Protocol::Vr | Protocol::NoPaxos => false,
        };
        let known = self.senders.iter().any(|s| s.peer == node);
        if let Some(addr) = self.member_addr(node)
            && next
            && !known
        {
            let (me, epoch, position) = (self.node(), self.epoch(), Position(end.position));
            let is_longer = end.position > self.end().position;
            let agrees = self.log.hash_at(position) == Some(end.hash);
            if !is_longer && !agrees && self.setup.guards.on(Guard::EpochAgreement) {
                self.count.members_apart += 1;
                let apart = CopyMessage::Apart { epoch: epoch.0, from: me.0, attempt: 0 };
                return self.send_control(addr, &apart, sink);
            }
            self.senders.push(Sender::new(me, epoch, (node, addr), position, 0));
        }
    }

    pub(crate) fn on_open(
        &mut self,
        now: Now,
        epoch: Epoch,
        from: NodeId,
        end: LogEnd,
        sink: &mut impl Sink,
    ) {
        let head = self.config.as_ref().and_then(Config::head).map(|m| (m.node, m.addr));
        let Some((node, addr)) = head else { return };
        if !self.is_epoch(epoch) || node != from.0 || self.is_head() {
            return;
        }
        match self.phase {
            Phase::Opening => {
                if end.position < self.end().position && self.setup.guards.on(Guard::EpochAgreement)
                {
                    // The head agreed to less than it was told: it never heard our end.
                    return;
                }
                self.agreed = Some(end);
                self.try_open(now, sink);
            }
            Phase::Open => {
                let opened = Membership::Opened { epoch: epoch.0, from: self.node().0 };
                self.send_control(addr, &opened, sink);
            }
            Phase::Out | Phase::Joining | Phase::Left => {}
        }
    }

    pub(crate) fn request_leases(&mut self, now: Now, sink: &mut impl Sink) {
        self.leases.on_requested(now.instant);
        let request = LeaseMessage::Request {
            epoch: self.epoch().0,
            from: self.node().0,
            asked_at: now.instant.0,
        };
        self.tell_others(&request, sink);
    }

    pub(crate) fn on_lease_request(
        &mut self,
        now: Now,
        epoch: Epoch,
        from: NodeId,
        asked_at: u64,
        sink: &mut impl Sink,
    ) {
        let Some(Member { addr, incarnation, .. }) = self.member_of(from) else { return };
        if self.phase != Phase::Open || !self.is_epoch(epoch) {
            return;
        }
        self.leases.grant(now.instant, from, incarnation);
        let grant = LeaseMessage::Grant { epoch: epoch.0, from: self.node().0, asked_at };
        self.send_control(addr, &grant, sink);
    }

    /// A record that came from the one before, or that the head fetched.
    pub(crate) fn on_record(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        if self.phase == Phase::Joining && !self.copy.is_streamed() {
            return;
        }
        let Ok(record) = Record::parse(bytes) else { return self.part_ways() };
        let end = self.log.end();
        if record.position.0 <= end.position {
            // The members' ends were told while records were on their way.
            return;
        }
        let hash = concord_wire::record::running_hash(end.hash, bytes);
        let gap = record.position.0 != end.position + 1;
        if gap || (hash != record.hash && self.setup.guards.on(Guard::EpochAgreement)) {
            // Another history than the one before (trap T5): only a snapshot could mend it.
            return self.part_ways();
        }
        let mut buffer = self.log.buffer();
        buffer.extend_from_slice(bytes);
        self.log.push(buffer, record.hash);
        self.last_now_ms = record.now_ms;
        self.clock.note(record.now_ms, now.unix_ms);
        if self.phase == Phase::Joining && !self.joins_record(now, sink) {
            return;
        }
        if self.holds_back() {
            return self.hold(&record);
        }
        self.follow(&record, sink);
    }
}
