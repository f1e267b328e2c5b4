//! The replica machine: its state, its inputs, and which role it has in the epoch.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{
    Duration, Epoch, Guard, Guards, Instant, Leases, LogClock, MS, NodeId, Now, Position, Seq,
    counters,
};
use concord_engine::Engine;
use concord_wire::control::{
    Config, CopyMessage, LeaseMessage, LogEnd, Member, Membership, Message, Protocol, Standing,
};
use concord_wire::craq::{OP_QUERY, VersionAnswer, VersionQuery};
use concord_wire::fragment::FragmentHdr;
use concord_wire::link::{Ack, Data};
use concord_wire::record::Record;
use concord_wire::{Addr, Kind, Op, Packet, Sink, WireError, link, op};

use crate::applied::Applied;
use crate::bodies::{Kept, Staging};
use crate::craq::Asking;
use crate::expiry::Expiring;
use crate::feed::Feed;
use crate::fetch::Fetching;
use crate::join::Copy;
use crate::limits::Limits;
use crate::link::{Arrival, BrokenStream, Receiver, Sender};
use crate::log::Log;
use crate::reach::Reach;
use crate::reads::Waiting;
use crate::retire::Retiring;
use crate::serve::Serving;
use crate::sessions::Sessions;
use crate::watch::{EngineWatch, Reading};
use crate::writes::{Pending, Turn};

/// How long a silence between neighbours lasts at most, so that acknowledgements and commits
/// travel when no records do.
const KEEPALIVE_NS: Duration = 50 * MS;
pub(crate) const ALIVE_NS: Duration = 100 * MS;
pub(crate) const RETRY_NS: Duration = 20 * MS;

/// What a replica is told at its start.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The node, this life of it, and where it listens.
    pub me: Member,
    /// Where the controller listens.
    pub controller: Addr,
    /// How long a lease lasts, in ns; the pause after a member died is about as long (trap T2).
    pub lease_ns: Duration,
    /// Replies to reads go through the switch too, as in a rack; else straight to the client.
    pub replies_via_switch: bool,
    /// About how many bytes a chunk of objects has that is copied to a joining replica.
    pub copy_bytes: usize,
    /// VR, NOPaxos: about how many executed records are kept for members that lag; who lacks older
    /// ones copies the state.
    pub records_kept: usize,
    /// Replicate the ordering node's replies: for engines that are servers of their own.
    pub replicate_replies: bool,
    /// How much is held of what grows with load.
    pub limits: Limits,
    /// Which guards are on; all of them outside tests.
    pub guards: Guards,
}

counters! {
    /// What a replica counted.
    pub struct ReplicaCounters {
        /// Reads answered alone on the switch's word (fast path).
        reads_fast,
        /// Reads answered by the normal protocol.
        reads_slow,
        /// Fast reads refused because a newer write was applied here.
        refused_newer,
        /// Fast reads refused because no lease was held.
        refused_lease,
        /// Fast reads refused because they came from another switch than the active one.
        refused_switch,
        /// Reads of the normal protocol passed on because this is not the one who answers them.
        reads_misrouted,
        /// Reads dropped because this replica may not answer at the moment.
        reads_dropped,
        /// Retries of reads that the engine is executing still, dropped; and reads beyond
        /// what may wait for it.
        reads_queued,
        /// Writes dropped because too much waits for the engine.
        writes_queued,
        /// Times that the engine was given up because it answered nothing for too long.
        engines_silent,
        /// Reads that waited until a write was committed (primary).
        reads_waited,
        /// Reads answered alone, no write of their object being under way (CRAQ).
        reads_clean,
        /// Reads of objects with a write under way (CRAQ): the tail was asked.
        reads_dirty,
        /// Version queries sent to the tail (CRAQ); one covers all reads of a batch.
        version_queries,
        /// Version queries answered, as the tail (CRAQ).
        version_answers,
        /// Version queries and answers dropped: another epoch, no lease, not the tail (CRAQ).
        version_refused,
        /// Writes ordered (head or primary).
        writes_ordered,
        /// Records applied.
        records_applied,
        /// Writes dropped because a newer number was seen before.
        writes_out_of_order,
        /// Writes dropped because they come from another switch than the active one.
        writes_other_switch,
        /// Writes dropped because this replica does not order.
        writes_not_head,
        /// Writes dropped because members lag too far behind.
        writes_log_full,
        /// Retries answered from the client table.
        duplicates,
        /// Requests refused by the client table.
        refused_requests,
        /// Sequence numbers that never arrived at the head: writes lost on the way.
        seq_gaps,
        /// Link packets sent again to a neighbour: gaps that were fetched.
        link_resent,
        /// Link packets that came out of order and were held.
        link_held,
        /// Link packets dropped: another epoch, a duplicate, or no room.
        link_dropped,
        /// Body fragments staged.
        fragments_staged,
        /// Body fragments refused.
        fragments_refused,
        /// Body fragments refused for now: other bodies had all the room.
        bodies_without_room,
        /// Writes whose staged body was not there.
        bodies_missing,
        /// Reply fragments sent on request.
        fragments_pulled,
        /// Requests for fragments of a reply that is gone.
        fragments_gone,
        /// Long read replies refused for now: others had all the room.
        replies_without_room,
        /// Expired keys turned into numbered deletes.
        expiries_sent,
        /// Epochs opened.
        epochs_opened,
        /// Records fetched from a member with a longer log.
        records_fetched,
        /// Fragments of records sent to the head that lacks them.
        fragments_fetched,
        /// Reads dropped because what was agreed is not executed here yet.
        reads_not_whole,
        /// Copies of another member's state begun.
        copies_begun,
        /// Times that a joining replica went on from records, without a copy or amid one.
        copies_resumed,
        /// Copies that came to their end.
        copies_whole,
        /// Chunks of objects installed.
        chunks_installed,
        /// Parts of the state taken for joining replicas.
        parts_copied,
        /// Joining replicas that fell too far behind and were told to begin anew.
        feeds_dropped,
        /// Members told that their log is not ours, or too short.
        members_apart,
        /// Malformed datagrams dropped.
        malformed,
        /// Packets of no use here dropped.
        unexpected,
    }
}

/// Where a replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In no epoch: it answers nothing, and asks to be let in.
    Out,
    /// It copies the state from a member, to become one; it answers nothing.
    Joining,
    /// Its epoch is known; members are agreeing on their logs (trap T5).
    Opening,
    /// It takes part.
    Open,
    /// It left: its engine was lost, for good, or its log diverged, until it is out and may copy.
    Left,
}

/// A replica of a primary-backup, chain or CRAQ group.
#[derive(Clone, Debug)]
pub struct Replica<E> {
    pub(crate) setup: ReplicaConfig,
    pub(crate) engine: E,
    pub(crate) phase: Phase,
    /// The configuration in force; never goes back to a lower epoch.
    pub(crate) config: Option<Config>,
    pub(crate) sessions: Sessions,
    pub(crate) applied: Applied,
    pub(crate) leases: Leases,
    pub(crate) log: Log,
    /// The newest sequence number in the log or in the head's hands.
    pub(crate) last_seq: Seq,
    /// The stamp of the last record; it falls along the log only where no key has a time to live.
    pub(crate) last_now_ms: u64,
    /// The log's time.
    pub(crate) clock: LogClock,
    /// The last record handed to the engine; at least `executed`.
    pub(crate) submitted: LogEnd,
    /// The last record executed here.
    pub(crate) executed: Position,
    /// Up to here every member has executed, as far as this replica knows.
    pub(crate) committed: Position,
    /// Operations that wait for the engine, in order.
    pub(crate) pending: VecDeque<Pending>,
    /// Bytes of the commands among them.
    pub(crate) pending_bytes: usize,
    /// The reads among them.
    pub(crate) reading: Reading,
    pub(crate) engine_watch: EngineWatch,
    /// Primary: executed writes that wait for the backups, in order.
    pub(crate) uncommitted: VecDeque<Turn>,
    /// Primary: replies to reads that wait for writes to commit.
    pub(crate) waiting_reads: Waiting,
    /// CRAQ: reads that wait for the tail's answer.
    pub(crate) asking: Asking,
    pub(crate) staging: Staging,
    pub(crate) kept: Kept,
    pub(crate) senders: Vec<Sender>,
    pub(crate) receiver: Option<Receiver>,
    /// Ends of the other members' logs in this epoch, as they said.
    pub(crate) ends: Vec<(NodeId, LogEnd)>,
    /// Members that have not said that they opened the epoch (head).
    pub(crate) unopened: Vec<NodeId>,
    /// The end of the agreed log, once the head said so.
    pub(crate) agreed: Option<LogEnd>,
    /// All that was agreed when the epoch opened is executed here. False after the replica was let
    /// in, until it is: it answers no reads before.
    pub(crate) whole: bool,
    pub(crate) copy: Copy,
    /// Joining replicas that this one feeds.
    pub(crate) feeds: Vec<Feed>,
    /// Whether there are joining replicas, for whom records may be kept.
    pub(crate) has_joining: bool,
    /// The last epoch in which this replica had all that was agreed; 0 if what is here is not that.
    pub(crate) held_epoch: u32,
    /// Which members it hears of.
    pub(crate) reach: Reach,
    /// What the controller was told last.
    pub(crate) said: Option<Standing>,
    /// It was told to end.
    pub(crate) retiring: Option<Retiring>,
    pub(crate) fetching: Fetching,
    pub(crate) next_alive: Instant,
    pub(crate) next_retry: Instant,
    pub(crate) next_keepalive: Instant,
    pub(crate) expiring: Expiring,
    pub(crate) reply: Vec<u8>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) count: ReplicaCounters,
}

impl<E: Engine> Replica<E> {
    /// A replica that knows nobody yet.
    pub fn new(setup: ReplicaConfig, engine: E) -> Replica<E> {
        Replica {
            engine,
            phase: Phase::Out,
            config: None,
            sessions: Sessions::new(setup.guards).with_room_for(setup.limits.sessions_max),
            applied: Applied::default(),
            leases: Leases::new(setup.lease_ns),
            log: Log::default(),
            last_seq: Seq::NONE,
            last_now_ms: 0,
            clock: LogClock::default(),
            submitted: LogEnd::default(),
            executed: Position(0),
            committed: Position(0),
            pending: VecDeque::new(),
            pending_bytes: 0,
            reading: Reading::default(),
            engine_watch: EngineWatch::new(setup.limits.engine_silence_ns),
            uncommitted: VecDeque::new(),
            waiting_reads: Waiting::default(),
            asking: Asking::default(),
            staging: Staging::default(),
            kept: Kept::new(setup.me.incarnation),
            senders: Vec::new(),
            receiver: None,
            ends: Vec::new(),
            unopened: Vec::new(),
            agreed: None,
            whole: false,
            copy: Copy::default(),
            feeds: Vec::new(),
            has_joining: false,
            held_epoch: 0,
            reach: Reach::default(),
            said: None,
            retiring: None,
            fetching: Fetching::default(),
            next_alive: Instant(0),
            next_retry: Instant::NEVER,
            next_keepalive: Instant::NEVER,
            expiring: Expiring::default(),
            reply: Vec::new(),
            scratch: Vec::new(),
            count: ReplicaCounters::default(),
            setup,
        }
    }

    /// Takes one datagram.
    pub fn handle(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) {
        let handled = match concord_wire::kind(bytes) {
            Ok(Kind::Harmonia) => self.on_harmonia(now, bytes, sink),
            Ok(Kind::Link) => self.on_link(now, bytes, sink),
            Ok(Kind::Craq) => self.on_craq(now, bytes, sink),
            Ok(Kind::Membership) => self.on_membership(now, bytes, sink),
            Ok(Kind::Lease) => self.on_lease(now, bytes, sink),
            Ok(Kind::Copy) => self.on_copy(now, bytes, sink),
            Ok(Kind::Vr | Kind::NoPaxos) => {
                self.count.unexpected += 1;
                Ok(())
            }
            Err(error) => Err(error),
        };
        if handled.is_err() {
            self.count.malformed += 1;
        }
        self.pump_full(now, sink);
    }

    fn on_harmonia(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let packet = Packet::parse(bytes)?;
        match packet.op() {
            Op::Read => self.on_read(now, &packet, sink),
            Op::Write => self.on_write(now, &packet, sink),
            Op::WRest => self.on_wrest(now, &packet, sink)?,
            Op::Pull => self.serving().pull(now, &packet, sink)?,
            Op::WRestAck
            | Op::WriteCompletion
            | Op::WriteReply
            | Op::ReadReply
            | Op::Fragment
            | Op::Push
            | Op::Sweep => self.count.unexpected += 1,
        }
        Ok(())
    }

    fn on_link(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        match op(bytes) {
            link::OP_DATA => self.on_data(now, &Data::parse(bytes)?, sink),
            _ => self.on_ack(now, &Ack::parse(bytes)?, sink),
        }
        Ok(())
    }

    fn on_craq(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        match op(bytes) {
            OP_QUERY => self.on_version_query(now, &VersionQuery::parse(bytes)?, sink),
            _ => self.on_version_answer(now, &VersionAnswer::parse(bytes)?, sink),
        }
        Ok(())
    }

    fn on_membership(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        let message = Membership::parse(bytes)?;
        self.note_heard(now, message.member_heard());
        match message {
            Membership::Configure(config) => self.on_configure(now, config, sink),
            Membership::EpochState { epoch, from, end, ask } => {
                self.on_epoch_state(now, Epoch(epoch), (NodeId(from), end), ask, sink);
            }
            Membership::Open { epoch, from, end } => {
                self.on_open(now, Epoch(epoch), NodeId(from), end, sink);
            }
            Membership::Opened { epoch, from } => {
                if self.is_epoch(Epoch(epoch)) {
                    self.unopened.retain(|node| node.0 != from);
                }
            }
            Membership::Reach { epoch, from, ask } => {
                self.on_reach(Epoch(epoch), NodeId(from), ask, sink);
            }
            // A controller that lost its state.
            Membership::WhoIsWho { client } => {
                if let Some(config) = self.config.clone() {
                    self.send_control(client, &Membership::Configure(config), sink);
                }
            }
            Membership::ReplicaAlive { .. }
            | Membership::SwitchAlive { .. }
            | Membership::SwitchRetired { .. } => self.count.unexpected += 1,
        }
        Ok(())
    }

    fn on_lease(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        let message = LeaseMessage::parse(bytes)?;
        self.note_heard(now, message.member_heard());
        match message {
            LeaseMessage::Request { epoch, from, asked_at } => {
                self.on_lease_request(now, Epoch(epoch), NodeId(from), asked_at, sink);
            }
            LeaseMessage::Grant { epoch, from, asked_at } => {
                if self.is_epoch(Epoch(epoch)) && self.phase == Phase::Open {
                    let is_asked = self.setup.guards.on(Guard::LeaseClock);
                    let counted = if is_asked { Instant(asked_at) } else { now.instant };
                    self.leases.on_grant(now.instant, NodeId(from), counted);
                }
            }
            LeaseMessage::Release { from, incarnation } => {
                self.leases.release(NodeId(from), incarnation, self.setup.guards);
                self.try_open(now, sink);
            }
        }
        Ok(())
    }

    /// About copies of records and of the state.
    fn on_copy(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        let message = CopyMessage::parse(bytes)?;
        self.note_heard(now, message.member_heard());
        match message {
            CopyMessage::Fetch { epoch, from, position, index, missing } => {
                let wanted = (index, missing);
                self.on_fetch(Epoch(epoch), NodeId(from), Position(position), wanted, sink);
            }
            CopyMessage::Fetched { epoch, position, hash, total_bytes, index, piece } => {
                let hdr = FragmentHdr { version: hash, total_bytes, index, count: 1 };
                self.on_fetched(now, Epoch(epoch), Position(position), hdr, &piece, sink);
            }
            CopyMessage::Resume { epoch, from, attempt, end } => {
                self.on_resume(Epoch(epoch), (NodeId(from), attempt), end, sink);
            }
            CopyMessage::Resumed { epoch, from, attempt } => {
                self.on_resumed(now, Epoch(epoch), (NodeId(from), attempt), sink);
            }
            CopyMessage::Apart { epoch, from, attempt } => {
                self.on_apart(now, Epoch(epoch), NodeId(from), attempt);
            }
            CopyMessage::Ask { epoch, from, attempt, part, index } => {
                self.on_copy_ask(Epoch(epoch), (NodeId(from), attempt), part, index, sink);
            }
            CopyMessage::Piece { epoch, attempt, part, position, total_bytes, index, piece } => {
                let hdr = FragmentHdr { version: position, total_bytes, index, count: 1 };
                self.on_copy_piece(now, Epoch(epoch), (attempt, part), hdr, &piece, sink);
            }
        }
        Ok(())
    }

    fn on_data(&mut self, now: Now, data: &Data<'_>, sink: &mut impl Sink) {
        let expected = self.receiver.as_ref().is_some_and(|r| r.peer == data.from);
        if !self.takes_part() || !self.is_epoch(data.epoch) || !expected {
            self.count.link_dropped += 1;
            return;
        }
        let Some(mut receiver) = self.receiver.take() else { return };
        match receiver.offer(data) {
            Arrival::InOrder => {
                self.on_piece(now, &mut receiver, data.first, data.last, data.piece, sink);
                while self.takes_part()
                    && let Some((first, last, piece)) = receiver.next_held()
                {
                    self.on_piece(now, &mut receiver, first, last, &piece, sink);
                }
            }
            Arrival::Held => self.count.link_held += 1,
            Arrival::Dropped => self.count.link_dropped += 1,
        }
        if self.phase == Phase::Joining && self.copy.is_streamed() {
            self.receiver = Some(receiver);
            self.copy.committed = self.copy.committed.max(data.committed);
            self.raise_committed(data.committed.min(self.executed));
        } else if self.phase == Phase::Open {
            self.receiver = Some(receiver);
            // A backup hears from its primary what is committed, and may forget it.
            if self.is_protocol(Protocol::PrimaryBackup) {
                self.raise_committed(data.committed.min(self.executed));
            }
        }
    }

    fn on_piece(
        &mut self,
        now: Now,
        receiver: &mut Receiver,
        first: bool,
        last: bool,
        piece: &[u8],
        sink: &mut impl Sink,
    ) {
        if first && last && !receiver.is_partial() {
            let mut rest = piece;
            while self.takes_part() && !rest.is_empty() {
                let Some((record, behind)) = Record::split_first(rest) else {
                    return self.part_ways();
                };
                self.on_record(now, record, sink);
                rest = behind;
            }
            return;
        }
        match receiver.join(first, last, piece) {
            Ok(None) => {}
            Ok(Some(record)) => {
                self.on_record(now, &record, sink);
                receiver.reuse(record);
            }
            Err(BrokenStream) => self.part_ways(),
        }
    }

    fn on_ack(&mut self, now: Now, ack: &Ack, sink: &mut impl Sink) {
        if self.phase != Phase::Open || !self.is_epoch(ack.epoch) {
            self.count.link_dropped += 1;
            return;
        }
        let committed = self.committed;
        let Some(sender) = self.senders.iter_mut().find(|s| s.peer == ack.from) else {
            return self.on_feed_ack(now, ack, sink);
        };
        let before = sender.resent;
        sender.on_ack(now.instant, ack, &self.log, committed, &mut self.scratch, sink);
        self.count.link_resent += sender.resent - before;
        if self.is_protocol(Protocol::Craq) {
            self.commit_up_to(ack.committed, sink);
        } else if self.is_protocol(Protocol::Chain) {
            self.raise_committed(ack.committed.min(self.executed));
        } else {
            self.commit_acknowledged(now, sink);
        }
    }

    /// Whether it takes records, as a member or to become one.
    fn takes_part(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Joining)
    }

    /// Whether this replica is in `epoch`.
    pub(crate) fn is_epoch(&self, epoch: Epoch) -> bool {
        self.config.as_ref().is_some_and(|c| c.epoch == epoch.0)
    }

    pub(crate) fn is_protocol(&self, protocol: Protocol) -> bool {
        self.config.as_ref().is_some_and(|c| c.protocol == protocol)
    }

    /// Whether this replica orders writes: the head, the primary.
    pub(crate) fn is_head(&self) -> bool {
        self.config.as_ref().and_then(Config::head).is_some_and(|m| m.node == self.setup.me.node)
    }

    /// Whether this replica answers the reads of the normal protocol: the tail, the primary.
    pub(crate) fn is_reader(&self) -> bool {
        self.config.as_ref().and_then(Config::reader).is_some_and(|m| m.node == self.setup.me.node)
    }

    /// Whether this replica commits and replies to writes: the tail, the primary.
    pub(crate) fn is_acker(&self) -> bool {
        self.is_reader()
    }

    pub(crate) fn node(&self) -> NodeId {
        NodeId(self.setup.me.node)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.config.as_ref().map_or(0, |c| c.epoch))
    }

    /// What serves clients.
    pub(crate) fn serving(&mut self) -> Serving<'_, E> {
        Serving {
            node: self.node(),
            epoch: self.epoch(),
            addr: self.setup.me.addr,
            switch: self.switch_addr(),
            replies_via_switch: self.setup.replies_via_switch,
            engine: &mut self.engine,
            sessions: &self.sessions,
            staging: &mut self.staging,
            kept: &mut self.kept,
            expiring: &mut self.expiring,
            clock: self.clock,
            reply: &mut self.reply,
            scratch: &mut self.scratch,
            count: &mut self.count,
        }
    }

    pub(crate) fn switch_addr(&self) -> Addr {
        self.config.as_ref().map_or(Addr::default(), |c| c.switch)
    }

    /// Sends records to those who come next, as far as they may be passed on.
    fn pump(&mut self, now: Now, sink: &mut impl Sink) {
        let upto = self.passed();
        for sender in &mut self.senders {
            let (log, scratch) = (&self.log, &mut self.scratch);
            sender.pump(now.instant, log, upto, self.committed, scratch, sink);
        }
        if !self.feeds.is_empty() {
            self.pump_feeds(now, sink);
        }
    }

    /// Sends full packets of records in the middle of a batch.
    pub(crate) fn pump_full(&mut self, now: Now, sink: &mut impl Sink) {
        if self.phase != Phase::Open {
            return;
        }
        let upto = self.passed();
        for sender in &mut self.senders {
            let (log, scratch) = (&self.log, &mut self.scratch);
            sender.pump_full(now.instant, log, upto, self.committed, scratch, sink);
        }
    }

    pub(crate) fn raise_committed(&mut self, position: Position) {
        if position > self.committed {
            self.committed = position;
            self.applied.commit(position);
            self.let_go();
        }
    }

    /// Drops the records that nobody needs any more. In CRAQ the engine may yet have to execute what is
    /// committed.
    pub(crate) fn let_go(&mut self) {
        let position = self.committed.min(self.executed);
        let position = if self.has_joining { self.forgettable(position) } else { position };
        self.log.truncate(position);
    }

    /// This replica's log cannot be gone on with: it copies anew, or leaves.
    pub(crate) fn part_ways(&mut self) {
        if self.phase == Phase::Joining { self.spoil_copy() } else { self.leave() }
    }

    /// Whether all that was agreed is executed here by now.
    pub(crate) fn note_whole(&mut self) {
        self.whole |= self.agreed.is_some_and(|end| self.executed.0 >= end.position);
        if self.whole {
            self.held_epoch = self.epoch().0;
        }
    }

    /// Fail-stop: it answers nothing any more, and asks the controller to take it out.
    pub(crate) fn leave(&mut self) {
        self.phase = Phase::Left;
        self.receiver = None;
        self.senders.clear();
        self.feeds.clear();
        self.leases.close();
    }

    /// Whether it needs the engine's answers: who has left, or is out, waits for as long as it takes.
    fn is_watching(&self) -> bool {
        matches!(self.phase, Phase::Joining | Phase::Opening | Phase::Open)
    }

    /// An engine that is silent for too long is given up: everybody who waits for this replica would
    /// wait for ever.
    fn watch_engine(&mut self, now: Instant) {
        self.engine_watch.look(now, self.is_watching() && !self.pending.is_empty());
        if self.engine_watch.is_dead() && self.setup.guards.on(Guard::EngineSilence) {
            self.engine_watch.answered();
            self.count.engines_silent += 1;
            self.part_ways();
        }
    }

    /// The end of a batch of inputs: records and acknowledgements that piled up go out.
    pub fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        if self.engine.lost() && self.phase != Phase::Left {
            self.disown_poison(sink);
            self.leave();
        }
        if self.phase == Phase::Open {
            if self.is_head() && self.expiring.goes_on(self.settled()) {
                self.expire(now, sink);
            }
            self.pump(now, sink);
        }
        if self.receiver.as_ref().is_some_and(|r| r.ack_due) {
            self.send_ack(now, sink);
        }
        if self.asking.is_due() {
            self.ask_version(now, sink);
        }
    }

    /// Head: has keys deleted whose time has come.
    fn expire(&mut self, now: Now, sink: &mut impl Sink) {
        if !self.log.is_half_full(&self.setup.limits) {
            let (settled, last_ms) = (self.settled(), self.last_now_ms);
            let guards = self.setup.guards;
            self.serving().expire(now, (settled, last_ms), guards, sink);
        }
    }

    /// Head: up to where its own writes are at whoever comes next. Clients wait for their commits;
    /// without a bound of their own, these would fill the log.
    fn settled(&self) -> Position {
        let passed = self.senders.iter().map(|s| s.applied).min().unwrap_or(self.executed);
        passed.min(self.executed)
    }

    fn send_ack(&mut self, now: Now, sink: &mut impl Sink) {
        let (epoch, node) = (self.epoch(), self.node());
        let (passed, committed) = (self.passed(), self.committed);
        let Some(receiver) = self.receiver.as_mut() else { return };
        let peer = receiver.peer;
        receiver.ack(epoch, node, passed, committed).emit(&mut self.scratch);
        self.next_keepalive = now.instant.after(KEEPALIVE_NS);
        if let Some(addr) = self.member_addr(peer) {
            sink.send(addr, &self.scratch);
        }
    }

    pub(crate) fn member_of(&self, node: NodeId) -> Option<Member> {
        let members = &self.config.as_ref()?.members;
        members.iter().find(|m| m.node == node.0).copied()
    }

    pub(crate) fn member_addr(&self, node: NodeId) -> Option<Addr> {
        self.member_of(node).map(|m| m.addr)
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        let t = now.instant;
        self.watch_engine(t);
        let standing = self.standing();
        if t >= self.next_alive || self.said != Some(standing) {
            self.next_alive = t.after(self.alive_ns());
            self.said = Some(standing);
            self.say_alive(now, standing, sink);
        }
        if t >= self.next_retry {
            self.retry_opening(now, sink);
        }
        self.tick_retiring(t, sink);
        if t >= self.next_keepalive && self.receiver.is_some() {
            self.next_keepalive = t.after(KEEPALIVE_NS);
            self.send_ack(now, sink);
        }
        if self.phase != Phase::Open {
            return;
        }
        if t >= self.leases.next_request() {
            self.request_leases(now, sink);
        }
        for sender in &mut self.senders {
            let before = sender.resent;
            sender.tick(t, &self.log, self.committed, &mut self.scratch, sink);
            self.count.link_resent += sender.resent - before;
        }
        self.tick_feeds(now, sink);
        if self.expiring.is_due(t) && self.is_head() {
            self.expire(now, sink);
        }
        if t >= self.asking.retry_at() {
            self.ask_version(now, sink);
        }
    }

    /// When to call [`Replica::tick`] next.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let mut d = Deadline { at: self.next_alive, reason: "heartbeat" };
        d = d.min(Deadline { at: self.next_retry, reason: "open the epoch, or join" });
        if let Some(retiring) = &self.retiring {
            d = d.min(Deadline { at: retiring.next_at, reason: "give leases back" });
        }
        if self.is_watching() {
            let at = self.engine_watch.next_at(!self.pending.is_empty());
            d = d.min(Deadline { at, reason: "is the engine silent?" });
        }
        if self.receiver.is_some() {
            d = d.min(Deadline { at: self.next_keepalive, reason: "acknowledge" });
        }
        if self.phase != Phase::Open {
            return d;
        }
        d = d.min(Deadline { at: self.leases.next_request(), reason: "renew leases" });
        for sender in &self.senders {
            d = d.min(Deadline { at: sender.deadline(), reason: "link time-out" });
        }
        d = d.min(Deadline { at: self.asking.retry_at(), reason: "ask the tail again" });
        d = d.min(Deadline { at: self.feeds_deadline(), reason: "link time-out" });
        if self.is_head() && self.engine.next_expiry_ms().is_some() {
            d = d.min(Deadline { at: self.expiring.next_at, reason: "expire keys" });
        }
        d
    }

    pub(crate) fn send_control(&mut self, to: Addr, message: &impl Message, sink: &mut impl Sink) {
        message.emit(&mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// The engine, for drivers that feed it.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Who this replica is, and in which life.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.setup.me
    }

    /// The configuration in force here.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The newest sequence number that it took, or saw in a record.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// The last record executed here.
    #[must_use]
    pub fn executed(&self) -> Position {
        self.executed
    }

    /// Up to where the log is committed, as far as is known here.
    #[must_use]
    pub fn committed(&self) -> Position {
        self.committed
    }

    /// Whether it holds a lease of every other member (trap T2).
    #[must_use]
    pub fn holds_lease(&self, now: Now) -> bool {
        self.phase == Phase::Open && self.leases.is_held(now.instant)
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &ReplicaCounters {
        &self.count
    }

    /// Where the replica stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }
}
