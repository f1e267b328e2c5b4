//! The replica machine: its state, its inputs, and which role it has in the epoch.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{Duration, Epoch, Guards, Instant, MS, NodeId, Now, Position, Seq, counters};
use concord_engine::Engine;
use concord_wire::control::{Config, Control, LogEnd, Member, Protocol};
use concord_wire::link::{Ack, Data};
use concord_wire::{Addr, Kind, Op, Packet, Sink, WireError, link};

use crate::applied::Applied;
use crate::bodies::{Kept, Staging};
use crate::lease::Leases;
use crate::link::{Arrival, BrokenStream, Receiver, Sender};
use crate::log::Log;
use crate::sessions::Sessions;
use crate::writes::{Pending, Turn};

/// How long a silence between neighbours lasts at most, so that acknowledgements and commits
/// travel when no records do.
const KEEPALIVE_NS: Duration = 50 * MS;
const ALIVE_NS: Duration = 100 * MS;
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
    /// Replicate the ordering node's replies: for engines that are servers of their own.
    pub replicate_replies: bool,
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
        /// Reads that waited until a write was committed (primary).
        reads_waited,
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
        /// Writes whose staged body was not there.
        bodies_missing,
        /// Reply fragments sent on request.
        fragments_pulled,
        /// Requests for fragments of a reply that is gone.
        fragments_gone,
        /// Expired keys turned into numbered deletes.
        expiries_sent,
        /// Epochs opened.
        epochs_opened,
        /// Records fetched from a member with a longer log.
        records_fetched,
        /// Malformed datagrams dropped.
        malformed,
        /// Packets of no use here dropped.
        unexpected,
    }
}

/// Where a replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In no epoch: it answers nothing.
    Out,
    /// Its epoch is known; members are agreeing on their logs (trap T5).
    Opening,
    /// It takes part.
    Open,
    /// It left for good: its engine was lost, or its log diverged.
    Left,
}

/// A replica of a primary-backup or chain group.
#[derive(Debug)]
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
    /// The wall clock of the last record; never falls along the log.
    pub(crate) last_now_ms: u64,
    /// The last record handed to the engine; at least `executed`.
    pub(crate) submitted: LogEnd,
    /// The last record executed here.
    pub(crate) executed: Position,
    /// Up to here every member has executed, as far as this replica knows.
    pub(crate) committed: Position,
    /// Operations that wait for the engine, in order.
    pub(crate) pending: VecDeque<Pending>,
    /// Primary: executed writes that wait for the backups, in order.
    pub(crate) uncommitted: VecDeque<Turn>,
    /// Primary: reads that wait for writes to commit, by the position they wait for.
    pub(crate) waiting_reads: BTreeMap<(Position, u64), Vec<u8>>,
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
    pub(crate) fetching: Vec<u8>,
    pub(crate) next_alive: Instant,
    pub(crate) next_retry: Instant,
    pub(crate) next_expiry: Instant,
    pub(crate) next_keepalive: Instant,
    pub(crate) expiring: Vec<(Vec<u8>, u64, Instant)>,
    pub(crate) reply: Vec<u8>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) count: ReplicaCounters,
}

/// What `concord status` shows of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The node.
    pub node: NodeId,
    /// Where it stands.
    pub phase: Phase,
    /// Its epoch; 0 if none.
    pub epoch: Epoch,
    /// "head", "middle", "tail", "primary", "backup", "alone" or "none".
    pub role: &'static str,
    /// The active switch.
    pub switch_id: u32,
    /// The end of its log.
    pub executed: Position,
    /// Up to where it knows the log to be committed.
    pub committed: Position,
    /// Whether it may answer alone.
    pub leased: bool,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of data.
    pub memory_bytes: u64,
    /// Number of client sessions.
    pub sessions: usize,
}

impl<E: Engine> Replica<E> {
    /// A replica that knows nobody yet.
    pub fn new(setup: ReplicaConfig, engine: E) -> Replica<E> {
        Replica {
            engine,
            phase: Phase::Out,
            config: None,
            sessions: Sessions::new(setup.guards),
            applied: Applied::default(),
            leases: Leases::new(setup.lease_ns),
            log: Log::default(),
            last_seq: Seq::NONE,
            last_now_ms: 0,
            submitted: LogEnd::default(),
            executed: Position(0),
            committed: Position(0),
            pending: VecDeque::new(),
            uncommitted: VecDeque::new(),
            waiting_reads: BTreeMap::new(),
            staging: Staging::default(),
            kept: Kept::default(),
            senders: Vec::new(),
            receiver: None,
            ends: Vec::new(),
            unopened: Vec::new(),
            agreed: None,
            fetching: Vec::new(),
            next_alive: Instant(0),
            next_retry: Instant::NEVER,
            next_expiry: Instant(0),
            next_keepalive: Instant::NEVER,
            expiring: Vec::new(),
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
            Ok(Kind::Control) => self.on_control(now, bytes, sink),
            Err(error) => Err(error),
        };
        if handled.is_err() {
            self.count.malformed += 1;
        }
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
            Op::Pull => self.on_pull(&packet, sink)?,
            Op::WRestAck
            | Op::WriteCompletion
            | Op::WriteReply
            | Op::ReadReply
            | Op::Fragment
            | Op::Sweep => self.count.unexpected += 1,
        }
        Ok(())
    }

    fn on_link(&mut self, now: Now, bytes: &[u8], sink: &mut impl Sink) -> Result<(), WireError> {
        match bytes[3] {
            link::OP_DATA => self.on_data(now, &Data::parse(bytes)?, sink),
            _ => self.on_ack(now, &Ack::parse(bytes)?, sink),
        }
        Ok(())
    }

    fn on_control(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), WireError> {
        match Control::parse(bytes)? {
            Control::Configure(config) => self.on_configure(now, config, sink),
            Control::EpochState { epoch, from, end, ask } => {
                self.on_epoch_state(now, Epoch(epoch), (NodeId(from), end), ask, sink);
            }
            Control::Fetch { epoch, from, position } => {
                self.on_fetch(Epoch(epoch), NodeId(from), Position(position), sink);
            }
            Control::Fetched { epoch, position, total_bytes, offset, piece } => {
                let at = (Position(position), total_bytes, offset);
                self.on_fetched(now, Epoch(epoch), at, &piece, sink);
            }
            Control::Open { epoch, from, end } => {
                self.on_open(now, Epoch(epoch), NodeId(from), end, sink);
            }
            Control::Opened { epoch, from } => {
                if self.is_epoch(Epoch(epoch)) {
                    self.unopened.retain(|node| node.0 != from);
                }
            }
            Control::LeaseRequest { epoch, from, asked_at } => {
                self.on_lease_request(now, Epoch(epoch), NodeId(from), asked_at, sink);
            }
            Control::LeaseGrant { epoch, from, asked_at } => {
                if self.is_epoch(Epoch(epoch)) && self.phase == Phase::Open {
                    self.leases.on_grant(NodeId(from), Instant(asked_at));
                }
            }
            Control::ReplicaAlive { .. }
            | Control::SwitchAlive { .. }
            | Control::WhoIsWho { .. }
            | Control::Vr(_) => {
                self.count.unexpected += 1;
            }
        }
        Ok(())
    }

    fn on_data(&mut self, now: Now, data: &Data<'_>, sink: &mut impl Sink) {
        let expected = self.receiver.as_ref().is_some_and(|r| r.peer == data.from);
        if self.phase != Phase::Open || !self.is_epoch(data.epoch) || !expected {
            self.count.link_dropped += 1;
            return;
        }
        let Some(mut receiver) = self.receiver.take() else { return };
        match receiver.offer(data) {
            Arrival::InOrder => {
                self.on_piece(now, &mut receiver, data.first, data.last, data.piece, sink);
                while let Some((first, last, piece)) = receiver.next_held() {
                    self.on_piece(now, &mut receiver, first, last, &piece, sink);
                }
            }
            Arrival::Held => self.count.link_held += 1,
            Arrival::Dropped => self.count.link_dropped += 1,
        }
        if self.phase == Phase::Open {
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
            self.on_record(now, piece, sink);
            return;
        }
        match receiver.join(first, last, piece) {
            Ok(None) => {}
            Ok(Some(record)) => {
                self.on_record(now, &record, sink);
                receiver.reuse(record);
            }
            Err(BrokenStream) => self.leave(),
        }
    }

    fn on_ack(&mut self, now: Now, ack: &Ack, sink: &mut impl Sink) {
        if self.phase != Phase::Open || !self.is_epoch(ack.epoch) {
            self.count.link_dropped += 1;
            return;
        }
        let committed = self.committed;
        let Some(sender) = self.senders.iter_mut().find(|s| s.peer == ack.from) else { return };
        let before = sender.resent;
        sender.on_ack(now.instant, ack, &self.log, committed, &mut self.scratch, sink);
        self.count.link_resent += sender.resent - before;
        if self.is_protocol(Protocol::Chain) {
            self.raise_committed(ack.committed.min(self.executed));
        } else {
            self.commit_acknowledged(now, sink);
        }
        self.pump(now, sink);
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

    pub(crate) fn switch_addr(&self) -> Addr {
        self.config.as_ref().map_or(Addr::default(), |c| c.switch)
    }

    /// Sends records to those who come next, as far as they were executed here.
    pub(crate) fn pump(&mut self, now: Now, sink: &mut impl Sink) {
        for sender in &mut self.senders {
            let (log, scratch) = (&self.log, &mut self.scratch);
            sender.pump(now.instant, log, self.executed, self.committed, scratch, sink);
        }
    }

    pub(crate) fn raise_committed(&mut self, position: Position) {
        if position > self.committed {
            self.committed = position;
            self.log.truncate(position);
        }
    }

    /// Fail-stop: it answers nothing any more, and asks the controller to take it out.
    pub(crate) fn leave(&mut self) {
        self.phase = Phase::Left;
        self.receiver = None;
        self.senders.clear();
        self.leases.close();
    }

    /// The end of a batch of packets: acknowledgements go out once.
    pub fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        if self.engine.lost() && self.phase != Phase::Left {
            self.leave();
        }
        if self.receiver.as_ref().is_some_and(|r| r.ack_due) {
            self.send_ack(now, sink);
        }
    }

    fn send_ack(&mut self, now: Now, sink: &mut impl Sink) {
        let (epoch, node) = (self.epoch(), self.node());
        let (executed, committed) = (self.executed, self.committed);
        let Some(receiver) = self.receiver.as_mut() else { return };
        let peer = receiver.peer;
        receiver.ack(epoch, node, executed, committed).emit(&mut self.scratch);
        self.next_keepalive = now.instant.after(KEEPALIVE_NS);
        if let Some(addr) = self.member_addr(peer) {
            sink.send(addr, &self.scratch);
        }
    }

    pub(crate) fn member_addr(&self, node: NodeId) -> Option<Addr> {
        let members = &self.config.as_ref()?.members;
        members.iter().find(|m| m.node == node.0).map(|m| m.addr)
    }

    /// Time passed.
    pub fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        let t = now.instant;
        if t >= self.next_alive {
            self.next_alive = t.after(ALIVE_NS);
            let alive = Control::ReplicaAlive {
                member: self.setup.me,
                epoch: self.epoch().0,
                open: self.phase == Phase::Open,
                leaving: self.phase == Phase::Left,
            };
            self.send_control(self.setup.controller, &alive, sink);
        }
        if t >= self.next_retry {
            self.retry_opening(now, sink);
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
        self.pump(now, sink);
        if t >= self.next_keepalive {
            self.next_keepalive = t.after(KEEPALIVE_NS);
            self.send_ack(now, sink);
        }
        if t >= self.next_expiry {
            self.send_expiries(now, sink);
        }
    }

    /// When to call [`Replica::tick`] next.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let mut d = Deadline { at: self.next_alive, reason: "heartbeat" };
        d = d.min(Deadline { at: self.next_retry, reason: "open the epoch" });
        if self.phase != Phase::Open {
            return d;
        }
        d = d.min(Deadline { at: self.leases.next_request(), reason: "renew leases" });
        if self.receiver.is_some() {
            d = d.min(Deadline { at: self.next_keepalive, reason: "acknowledge" });
        }
        for sender in &self.senders {
            d = d.min(Deadline { at: sender.deadline(), reason: "link time-out" });
        }
        if self.is_head() && self.engine.next_expiry_ms().is_some() {
            d = d.min(Deadline { at: self.next_expiry, reason: "expire keys" });
        }
        d
    }

    pub(crate) fn send_control(&mut self, to: Addr, message: &Control, sink: &mut impl Sink) {
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

    /// What to show of the replica.
    #[must_use]
    pub fn status(&self, now: Now) -> ReplicaStatus {
        ReplicaStatus {
            node: self.node(),
            phase: self.phase,
            epoch: self.epoch(),
            role: self.role(),
            switch_id: self.config.as_ref().map_or(0, |c| c.switch_id),
            executed: self.executed,
            committed: self.committed,
            leased: self.holds_lease(now),
            keys: self.engine.keys(),
            memory_bytes: self.engine.memory_bytes(),
            sessions: self.sessions.len(),
        }
    }

    fn role(&self) -> &'static str {
        let Some(config) = &self.config else { return "none" };
        if matches!(self.phase, Phase::Out | Phase::Left) {
            return "none";
        }
        let alone = config.members.len() == 1;
        match (alone, config.protocol, self.is_head(), self.is_reader()) {
            (true, ..) => "alone",
            (false, Protocol::PrimaryBackup, true, _) => "primary",
            (false, Protocol::PrimaryBackup, false, _) => "backup",
            (false, Protocol::Vr, ..) => "none",
            (false, Protocol::Chain, true, _) => "head",
            (false, Protocol::Chain, false, true) => "tail",
            (false, Protocol::Chain, false, false) => "middle",
        }
    }
}
