//! Viewstamped Replication (Liskov, Cowling: *Viewstamped Replication Revisited*, 2012, cited as
//! VRR) with Harmonia's help (Harmonia §8.3), as a state machine without I/O. NOPaxos is the same
//! with another source of the log (`sequence`, `gaps`). Raft is the same with another way to choose
//! the leader and its log (`elections`, `ballot`); its terms are views here.
//!
//! Read [`QuorumReplica`] first, then `input` (dispatch), `normal` (writes), `reads`, `views` (view
//! changes), `recovery` (of a replica that lost everything), `crash_vector` (why that is safe
//! without a disk), `copy` (of the state, for a member that lacks too many records), `disk` and
//! `restore` (durability, and restarts). Each imports the parts that it works with, which own their
//! state (`group`, `change`, `ballot`, `leading`, `follower`, `inbound`, `suspicion`, `recovering`,
//! `copying`, `sequence`, `scripts`, `withheld`, `farewell`). No part imports any of them.
//!
//! The replicas change views by themselves. The controller founds the group and grants switch ids.
//! The leader tells the switch that it leads, with the view as the configuration's epoch, so that
//! the switch ignores a stale leader. A new switch needs a view change: a view has one switch, and
//! no lease of an earlier view is valid once it has begun (Harmonia §6.3, trap T2).

mod copy;
mod disk;
mod execute;
mod farewell;
mod flair;
mod follower;
mod group;
mod input;
mod leading;
mod nopaxos;
mod normal;
mod queue;
mod raft;
mod reads;
mod restore;
mod retire;
mod scripts;
mod status;
mod suspicion;
mod vr;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::machine::Deadline;
use concord_core::{
    Duration, Epoch, Guard, Instant, Leases, MS, Now, Position, Seq, SwitchId, ViewNumber, counters,
};
use concord_engine::Engine;
use concord_wire::control::{Assembly, LogEnd, Member, Membership, Message, ReplicaAlive};
use concord_wire::vr::{SwitchIncarnation, VrBody, VrMessage};
use concord_wire::{Addr, Sink};

use crate::counters::ReplicaCounters;
use crate::flair::Session;
use crate::flair_weights::Queue;
use crate::journal::Journal;
use crate::link::Sender;
use crate::ordered::Ordered;
use crate::serve::Serving;
use crate::setup::{ALIVE_NS, InForce, RETRY_NS, ReplicaConfig};
use crate::shown::shown;

use copy::copying::Copying;
use copy::inbound::Inbound;
use farewell::Farewell;
use group::Group;
use leading::Leading;
use nopaxos::sequence::Sequence;
use queue::Pending;
use raft::ballot::Ballot;
pub use raft::voters::ChangeRefused;
use reads::group_leases::GroupLeases;
use reads::quorum_reads::QuorumReads;
use scripts::decisions::Scripts;
use scripts::withheld::Withheld;
use suspicion::Suspicion;
use vr::change::Change;
pub use vr::crash_vector::{CrashVector, Heard};
use vr::recovering::Recovery;

/// The shortest interval of the leader's heartbeats, while it sends nothing else. A leader leaves
/// its view when its disk has owed a sync for this share of
/// [`Limits::disk_silence_ns`](crate::Limits::disk_silence_ns).
const LEADS_SHARE: u64 = 2;
const BEAT_NS: Duration = 50 * MS;

counters! {
    /// The counters of a quorum replica beside [`ReplicaCounters`].
    pub struct QuorumCounters {
        /// Sessions begun at a switch that checks replies (FLAIR).
        sessions_begun,
        /// Requests dropped because they belong to another session than this view's.
        other_session,
        /// Fast reads refused because this replica has not executed enough of its log (Harmonia
        /// §8.3).
        refused_behind,
        /// Slow reads that waited for the leader's lease, or until the log with which its view
        /// began was executed.
        reads_waited_leader,
        /// View changes that this replica took part in. A steady rise means that leaders fail or
        /// are suspected.
        view_changes,
        /// Views begun by this replica as their leader.
        views_led,
        /// Views and elections refused because they would have begun with a log that lacks
        /// committed records: a data directory was put back, or damaged. Must stay 0.
        lacked_committed,
        /// Data directories of this replica that were older than the state of its node: restored
        /// copies.
        older_directories,
        /// Times that this replica could not leave its view because all view numbers are used up:
        /// no view change is possible any more, and the group has to be founded anew (`--fresh`).
        views_exhausted,
        /// Views that this replica left as their leader because it could not reach a quorum.
        stepped_aside,
        /// Views that this replica left as their leader because its storage engine did not answer.
        stepped_down,
        /// Views that this replica left as their leader because its process was told to shut down.
        handed_on,
        /// Views that this replica joined at their leader's request.
        views_joined,
        /// Recoveries that this replica began.
        recoveries,
        /// Recoveries that this replica completed: its log is complete again.
        recovered,
        /// COMMIT packets sent because no PREPARE could carry the commit point.
        commits_sent,
        /// WRITE-COMPLETIONs sent after a quorum had executed the write.
        completions_sent,
        /// Records fetched from a replica with a more recent log, or from the leader, before a view
        /// began.
        records_transferred,
        /// Streams of records requested again.
        streams_restarted,
        /// Times that a replica lacked records that are not retained any more, and had to copy the
        /// state.
        too_far_behind,
        /// Messages dropped because their sender has restarted since.
        stale_lives,
        /// Messages dropped because they belong to another view or another group.
        other_view,
        /// Rounds in which the leader asked a quorum whether it still leads, for waiting reads
        /// (ReadIndex).
        reads_confirmed,
        /// Rounds in which this replica asked the members where their logs end, for waiting reads
        /// (quorum reads).
        quorum_asked,
        /// Read leases that this replica granted as the leader.
        read_leases_granted,
        /// Read leases that this replica did not grant because writes would have waited for their
        /// holders.
        read_leases_refused,
        /// Raft: changes of voters that this replica logged as the leader.
        voters_changed,
        /// Raft: terms that this replica left as their leader because it is no voter any more.
        voted_out,
        /// NOPaxos: requests to the leader for a write that this replica missed.
        gaps_asked,
        /// NOPaxos: writes sent to a leader that had missed them.
        gaps_filled,
        /// NOPaxos: views begun because all replicas missed a write.
        gaps_agreed,
    }
}

/// VRR's status, and what comes before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The group is not known.
    Out,
    /// "normal".
    Normal,
    /// "view-change": the replica has left its view, and the next one has not begun.
    ViewChange,
    /// The leader has said that the view has begun; its log is being fetched.
    Starting,
    /// "recovering": the present view of the others is not known.
    Recovering,
    /// The replica has left for good: its engine was lost, or its log diverged.
    Left,
}

/// A replica of a VR group.
#[derive(Clone, Debug)]
pub struct QuorumReplica<E> {
    setup: ReplicaConfig,
    serving: Serving<E>,
    ordered: Ordered,
    journal: Journal,
    /// Packets to send once all promises are durable.
    held: Vec<(Addr, Vec<u8>)>,
    stage: Stage,
    group: Group,
    /// A configuration of several packets, in assembly.
    assembly: Assembly,
    /// Whether the state here belongs to an earlier group, and has to be forgotten.
    gives_up: bool,
    /// Whether its disk is intact and has never held a promise.
    is_new: bool,
    crash_vector: CrashVector,
    /// "view-number"; never decreases.
    view: ViewNumber,
    /// The latest view in which the status was normal; the log is of that view.
    last_normal: ViewNumber,
    /// The switch of the view.
    switch: SwitchIncarnation,
    /// NOPaxos: the sequence of writes from the switch.
    sequence: Sequence,
    /// This node's clock at the input that is being handled.
    local_ms: u64,
    /// "commit-number": a quorum has all records up to here. At most the log's end.
    committed: Position,
    /// The last record handed to the engine; at most `committed`.
    submitted: Position,
    /// The last record executed; at most `submitted`.
    executed: Position,
    /// The newest sequence number executed: the highest that a fast read may name (P1).
    executed_seq: Seq,
    /// Operations that wait for the engine, in order.
    pending: VecDeque<Pending>,
    scripts: Scripts,
    withheld: Withheld,
    leases: Leases,
    /// Raft with follower leases: the leases for reads of key groups.
    group_leases: GroupLeases,
    /// Raft with quorum reads: the reads that wait.
    quorum_reads: QuorumReads,
    leading: Leading,
    /// The leader's session at a switch that checks replies.
    session: Session,
    /// The queue at this replica's host, for the leader's weights.
    queue: Queue,
    inbound: Inbound,
    /// The stream to a new leader that lacks records of this log.
    helper: Option<Sender>,
    suspicion: Suspicion,
    /// The newest commit point that the leader sent in this view.
    heard_committed: Position,
    /// The highest commit point that any leader sent to this process: the log of every later leader
    /// reaches at least there.
    told_committed: Position,
    change: Change,
    /// Raft: this replica's vote and candidacy.
    ballot: Ballot,
    /// Raft: the silence of the leader after which this replica suspects it.
    silence_ns: Duration,
    recovery: Recovery,
    /// The copy of the state in progress, if the log does not reach far enough.
    copying: Option<Copying>,
    /// The number of copies begun in this incarnation.
    copies: u32,
    /// The time stamp of the record at the log's base: should the log be cut there, the next record
    /// is not stamped lower.
    base_now_ms: u64,
    /// The view of that record.
    base_term: ViewNumber,
    /// The end of a restored origin: no record up to there belongs to a view of this rack.
    origin_end: Position,
    /// The progress of a graceful shutdown, once the replica was told to end.
    farewell: Option<Farewell>,
    next_alive: Instant,
    next_retry: Instant,
    next_beat: Instant,
    scratch: Vec<u8>,
    count: ReplicaCounters,
    vr_count: QuorumCounters,
}

impl<E: Engine> QuorumReplica<E> {
    /// A replica without a group.
    pub fn new(setup: ReplicaConfig, engine: E) -> QuorumReplica<E> {
        QuorumReplica {
            serving: Serving::new(&setup, engine),
            ordered: Ordered::new(&setup.limits),
            journal: Journal::default(),
            held: Vec::new(),
            stage: Stage::Out,
            group: Group::new(setup.me),
            assembly: Assembly::new(1),
            gives_up: false,
            is_new: false,
            crash_vector: CrashVector::default(),
            view: ViewNumber(0),
            last_normal: ViewNumber(0),
            switch: SwitchIncarnation::default(),
            sequence: Sequence::default(),
            local_ms: 0,
            committed: Position(0),
            submitted: Position(0),
            executed: Position(0),
            executed_seq: Seq::NONE,
            pending: VecDeque::new(),
            scripts: Scripts::default(),
            withheld: Withheld::default(),
            leases: Leases::new(setup.lease_ns),
            group_leases: GroupLeases::new(setup.lease_ns),
            quorum_reads: QuorumReads::default(),
            leading: Leading::default(),
            session: Session::default(),
            queue: Queue::default(),
            inbound: Inbound::new(setup.me.incarnation),
            helper: None,
            suspicion: Suspicion::default(),
            heard_committed: Position(0),
            told_committed: Position(0),
            change: Change::default(),
            ballot: Ballot::new(setup.me.incarnation ^ u64::from(setup.me.node)),
            silence_ns: setup.lease_ns,
            recovery: Recovery::default(),
            copying: None,
            copies: 0,
            base_now_ms: 0,
            base_term: ViewNumber(0),
            origin_end: Position(0),
            farewell: None,
            next_alive: Instant(0),
            next_retry: Instant::NEVER,
            next_beat: Instant::NEVER,
            scratch: Vec::new(),
            count: ReplicaCounters::default(),
            vr_count: QuorumCounters::default(),
            setup,
        }
    }

    shown!(group.config);

    fn message(&self, view: ViewNumber, body: VrBody) -> VrMessage {
        VrMessage {
            body,
            group: self.group.id(),
            from: self.setup.me.node,
            view: view.0,
            crash_vector: self.crash_vector.vector().to_vec(),
        }
    }

    fn say(&mut self, to: usize, body: VrBody, sink: &mut impl Sink) {
        let message = self.message(self.view, body);
        if let Some(addr) = self.group.members().get(to).map(|m| m.addr) {
            self.send_control(addr, &message, sink);
        }
    }

    fn say_all(&mut self, body: VrBody, sink: &mut impl Sink) {
        self.tell_all(&self.message(self.view, body), sink);
    }

    fn tell_all(&mut self, message: &impl Message, sink: &mut impl Sink) {
        message.emit(&mut self.scratch);
        for (_, member) in self.group.others() {
            sink.send(member.addr, &self.scratch);
        }
    }

    fn send_control(&mut self, to: Addr, message: &impl Message, sink: &mut impl Sink) {
        message.emit(&mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// The view `by` numbers after the present one. At the largest number that is the present one,
    /// and entering it has no effect ([`QuorumReplica::enter_view`]).
    fn next_view(&self, by: usize) -> ViewNumber {
        ViewNumber(self.view.0.saturating_add(by as u32))
    }

    /// Whether this replica leads its view, its status being normal.
    fn is_leader(&self) -> bool {
        self.stage == Stage::Normal && self.group.is_mine(self.view)
    }

    /// Whether a message of `view` belongs to the present view.
    fn is_view(&self, view: ViewNumber) -> bool {
        view == self.view || !self.setup.guards.on(Guard::View)
    }

    /// The epoch, switch and clock that hold in the group now.
    fn in_force(&self) -> InForce {
        let (epoch, switch) = (self.epoch(), self.switch.addr);
        let checked = self.group.checks_replies().then_some(SwitchId(self.switch.id));
        InForce { epoch, switch, checked, clock: self.ordered.clock }
    }

    /// The epoch in packets to clients.
    fn epoch(&self) -> Epoch {
        Epoch(self.view.0)
    }

    /// The last record known to be committed, and its hash.
    fn committed_end(&self) -> LogEnd {
        self.ordered.log.end_at(self.committed.0).unwrap_or(self.ordered.log.base())
    }

    /// A leader that is silent as long as a lease lasts is suspected: whatever it was granted is
    /// over about then. Where syncs are slow, what it promised may not be durable before, and what
    /// it says waits for that.
    fn suspect_ns(&self) -> Duration {
        self.setup.lease_ns + self.slow_ns()
    }

    /// The time that the syncs of an election or a view change take; 0 with quick disks.
    fn slow_ns(&self) -> Duration {
        self.journal.slow_ns(self.setup.lease_ns)
    }

    fn beat_ns(&self) -> Duration {
        BEAT_NS.min(self.setup.lease_ns / 5)
    }

    /// Fail-stop: the replica answers nothing any more.
    fn fail_stop(&mut self) {
        self.stage = Stage::Left;
        self.inbound.close();
        self.helper = None;
        self.leading.followers.clear();
        self.leases.close();
    }

    pub(super) fn take_time(&mut self, now: Now, sink: &mut impl Sink) {
        let t = now.instant;
        self.local_ms = now.unix_ms;
        self.journal.pass(t);
        self.recovery.start(t);
        self.suspicion.tick(t, self.suspect_ns() / 2);
        self.tick_retiring(now, sink);
        if t >= self.serving.work_at() && self.stage != Stage::Left {
            self.take_done(now, sink);
        }
        self.watch_engine(now, sink);
        if t >= self.next_alive {
            self.next_alive = t.after(ALIVE_NS);
            let alive = ReplicaAlive {
                member: self.setup.me,
                sent_at: t.0,
                heard: self.heard(),
                standing: self.standing(),
                held: self.held(),
                data_dir: self.journal.data_dir(),
                unheard: Vec::new(),
            };
            let alive = match self.voting() {
                Some(voting) => Membership::VoterAlive { alive, voting },
                None => Membership::ReplicaAlive(alive),
            };
            self.send_control(self.setup.controller, &alive, sink);
            let made = self.serving.digests();
            if !made.is_empty() {
                let Member { node, incarnation, .. } = self.setup.me;
                let compared = Membership::Compared { node, incarnation, made };
                self.send_control(self.setup.controller, &compared, sink);
            }
            self.take_switch(now, sink);
        }
        if matches!(self.stage, Stage::Out | Stage::Left) {
            return;
        }
        if t >= self.next_retry {
            self.next_retry = t.after(RETRY_NS);
            self.retry(now, sink);
        }
        if self.stage == Stage::Normal && t >= self.leases.next_request() {
            self.request_leases(now, sink);
        }
        self.tick_senders(t, sink);
        if self.is_leader() {
            self.tick_gap(now, sink);
            if t >= self.holders_until() {
                self.commit_acknowledged(now, sink);
            }
        }
        if self.is_leader() {
            self.tick_leader(now, sink);
        } else if t >= self.next_beat && self.inbound.is_open() {
            self.send_ack(t, sink);
        }
    }

    /// Gives up an engine that is silent for too long, since committed records pile up. A leader
    /// that cannot execute lets another replica lead before that; so does one whose disk hangs,
    /// which accepts no more records once too many wait.
    fn watch_engine(&mut self, now: Now, sink: &mut impl Sink) {
        let watches = !matches!(self.stage, Stage::Out | Stage::Left);
        let owes = watches && self.owes();
        if self.serving.gives_up_engine(now.instant, owes, &mut self.count) {
            self.fail_stop();
        } else if self.is_leader() && !self.group.is_alone() && !self.may_lead() {
            self.vr_count.stepped_down += 1;
            if self.group.elects() {
                return self.hand_over(now, sink);
            }
            self.enter_view(now, self.next_view(1), sink);
        }
    }

    /// Whether the engine owes an answer. If a script was stopped, the answer was given already.
    fn owes(&self) -> bool {
        !self.pending.is_empty() && !self.scripts.is_stopped()
    }

    /// Whether the replica is fit to lead: its engine and its disk answer, and it was not told to
    /// end.
    fn may_lead(&self) -> bool {
        if self.farewell.is_some() {
            return false;
        }
        let silence_ns = self.setup.limits.disk_silence_ns / LEADS_SHARE;
        let is_silent = self.serving.is_engine_silent() || self.journal.is_hung(silence_ns, 0);
        !is_silent || !self.setup.guards.on(Guard::StepDown)
    }

    /// Repeats messages that others may have missed.
    fn retry(&mut self, now: Now, sink: &mut impl Sink) {
        self.ask_log_ends(now, sink);
        match self.stage {
            Stage::Normal if self.is_leader() => {
                self.confirm_reads(now, sink);
                self.say_start_view(sink);
                self.say_aborted(sink);
            }
            Stage::Normal | Stage::Starting => {
                if !self.inbound.is_streaming() {
                    self.ask_again(sink);
                }
                self.keep_copying(sink);
            }
            Stage::ViewChange if self.group.elects() => self.retry_election(now, sink),
            Stage::ViewChange => self.retry_view_change(now, sink),
            Stage::Recovering => self.retry_recovery(now, sink),
            Stage::Out | Stage::Left => {}
        }
        self.mind_leader(now, sink);
    }

    /// When to call [`QuorumReplica::tick`] next, or [`QuorumReplica::flush`].
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let mut d = Deadline { at: self.next_alive, reason: "heartbeat" };
        d = d.min(Deadline { at: self.retiring_at(), reason: "leave" });
        if self.stage != Stage::Left {
            d = d.min(Deadline { at: self.serving.work_at(), reason: "a script goes on" });
        }
        if matches!(self.stage, Stage::Out | Stage::Left) {
            return d;
        }
        d = d.min(Deadline { at: self.next_retry, reason: "say again" });
        // Without a stream nothing is acknowledged.
        if self.is_leader() || self.inbound.is_open() {
            d = d.min(Deadline { at: self.next_beat, reason: "beat" });
        }
        let at = self.serving.watch_at(self.owes());
        d = d.min(Deadline { at, reason: "is the engine silent?" });
        for sender in
            self.leading.followers.iter().filter_map(|f| f.sender.as_ref()).chain(&self.helper)
        {
            d = d.min(Deadline { at: sender.deadline(), reason: "link time-out" });
        }
        if self.stage != Stage::Normal {
            return d;
        }
        d = d.min(Deadline { at: self.leases.next_request(), reason: "renew leases" });
        if self.is_leader() {
            d = d.min(Deadline { at: self.leading.commit_due(), reason: "COMMIT" });
            d = d.min(Deadline { at: self.gap_deadline(), reason: "a missing number" });
            d = d.min(Deadline { at: self.leading.lag_deadline(), reason: "a follower lags" });
            d = d.min(Deadline { at: self.leading.next_switch(), reason: "tell the switch" });
            d = d.min(Deadline { at: self.session.next_at(), reason: "session of the switch" });
            d = d.min(Deadline { at: self.holders_until(), reason: "a lease of a follower ends" });
            d = d.min(Deadline { at: self.serving.expire_at(), reason: "expire keys" });
            d = d.min(Deadline { at: self.serving.compare_at(), reason: "compare states" });
        }
        d
    }
}

#[cfg(test)]
mod tests;
