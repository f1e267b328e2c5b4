//! A replica of a primary-backup, chain or CRAQ group: its parts, and the replica that joins them.
//!
//! Each part owns its state and is told what it needs. It sends its own messages, or says what is
//! to be done: `role` (which member orders, passes on, commits, reads), `streams` (records in
//! flight), `queue` (operations that wait for the engine), `unanswered` and `asking` (operations
//! that wait for other members), `opening` (the beginning of an epoch), `copy` and `source`
//! (joining, from both sides), `journal` (the disk), `report` (reports to the controller). The
//! other files are the replica's own, by subject: they import the parts and this file, and none of
//! these imports them.

mod asking;
mod copy;
mod craq;
mod disk;
mod donor;
mod early;
mod epochs;
mod input;
mod join;
mod opening;
mod queue;
mod reads;
mod report;
mod restore;
mod retire;
mod role;
mod source;
mod status;
mod streams;
mod time;
mod unanswered;
mod writes;

use alloc::vec::Vec;

use concord_core::{Guard, Guards, Instant, Leases, Now, Position, Seq};
use concord_engine::Engine;
use concord_wire::control::{Assembly, LogEnd, Message};
use concord_wire::{Addr, Sink};

use crate::applied::Applied;
use crate::counters::ReplicaCounters;
use crate::journal::Journal;
use crate::ordered::Ordered;
use crate::retire::Retiring;
use crate::serve::Serving;
use crate::setup::{InForce, Phase, ReplicaConfig};
use crate::shown::shown;

use asking::Asking;
use copy::Copy;
use opening::Opening;
use queue::Queue;
use report::Report;
use role::Role;
use source::SnapshotSource;
use streams::Streams;
use unanswered::Unanswered;

/// A replica of a primary-backup, chain or CRAQ group.
#[derive(Clone, Debug)]
pub struct Replica<E> {
    setup: ReplicaConfig,
    phase: Phase,
    role: Role,
    /// A configuration of several packets, of which some have arrived.
    assembly: Assembly,
    serving: Serving<E>,
    ordered: Ordered,
    applied: Applied,
    leases: Leases,
    /// The last record given to the engine; at least `executed`.
    submitted: LogEnd,
    /// The last record executed here.
    executed: Position,
    /// The position up to which every member has executed, as far as this replica knows.
    committed: Position,
    queue: Queue,
    unanswered: Unanswered,
    asking: Asking,
    streams: Streams,
    opening: Opening,
    /// Whether everything that was agreed when the epoch opened is executed here. It is false after
    /// the replica became a member, until then: it answers no reads before.
    caught_up: bool,
    copy: Copy,
    source: SnapshotSource,
    journal: Journal,
    /// No epoch opens here before this time: leases granted by an earlier start may still be held
    /// (trap T2).
    quiet_until: Instant,
    /// The last epoch in which this replica had everything that was agreed, or 0 if the local state
    /// is not that.
    held_epoch: u32,
    report: Report,
    /// Set once it was told to end.
    retiring: Option<Retiring>,
    next_retry: Instant,
    /// CRAQ: the held record that is being executed.
    record: Vec<u8>,
    scratch: Vec<u8>,
    count: ReplicaCounters,
}

impl<E: Engine> Replica<E> {
    /// A replica that knows no other yet.
    pub fn new(setup: ReplicaConfig, engine: E) -> Replica<E> {
        Replica {
            phase: Phase::Out,
            assembly: Assembly::new(1),
            role: Role::new(setup.me),
            serving: Serving::new(&setup, engine),
            ordered: Ordered::new(&setup.limits),
            applied: Applied::default(),
            leases: Leases::new(setup.lease_ns),
            submitted: LogEnd::default(),
            executed: Position(0),
            committed: Position(0),
            queue: Queue::default(),
            unanswered: Unanswered::default(),
            asking: Asking::default(),
            streams: Streams::default(),
            opening: Opening::default(),
            caught_up: false,
            copy: Copy::default(),
            source: SnapshotSource::default(),
            journal: Journal::default(),
            quiet_until: Instant(0),
            held_epoch: 0,
            report: Report::default(),
            retiring: None,
            next_retry: Instant::NEVER,
            record: Vec::new(),
            scratch: Vec::new(),
            count: ReplicaCounters::default(),
            setup,
        }
    }

    shown!(role.config);

    /// The newest sequence number that it took, or saw in a record.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.ordered.last_seq
    }

    /// The guards that are on.
    pub(crate) fn guards(&self) -> Guards {
        self.setup.guards
    }

    /// Whether it holds a lease of every other member (trap T2).
    #[must_use]
    pub fn holds_lease(&self, now: Now) -> bool {
        self.phase == Phase::Open && self.leases.is_held(now.instant)
    }

    /// The phase of the replica.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The current settings of the group.
    fn in_force(&self) -> InForce {
        let (epoch, switch) = (self.role.epoch(), self.role.switch_addr());
        InForce { epoch, switch, checked: None, clock: self.ordered.clock }
    }

    fn raise_committed(&mut self, position: Position) {
        if position > self.committed {
            self.committed = position;
            self.applied.commit(position);
            self.truncate_log();
        }
    }

    /// Drops the records that no member needs any more. In CRAQ the engine may still have to
    /// execute committed ones.
    fn truncate_log(&mut self) {
        let position = self.committed.min(self.executed);
        let log = &mut self.ordered.log;
        let position = self.source.forgettable(position, log, &self.setup.limits);
        log.truncate(position);
    }

    /// This replica's log cannot be continued: it copies the state anew, or leaves.
    fn on_log_mismatch(&mut self) {
        if self.phase == Phase::Joining {
            self.invalidate_copy()
        } else {
            self.fail_stop_diverged()
        }
    }

    /// Leaves, and comes back without any state: the local one differs from the others'.
    fn fail_stop_diverged(&mut self) {
        self.journal.reset(self.setup.guards);
        self.fail_stop();
    }

    /// Notes whether everything that was agreed is executed here by now.
    fn note_caught_up(&mut self) {
        let end = self.opening.agreed();
        self.caught_up |= end.is_some_and(|end| {
            self.executed.0 >= end.position && self.is_durable(Position(end.position))
        });
        if self.caught_up {
            self.note_held(self.role.epoch().0);
        }
    }

    /// Whether everything up to `position`, with the state on which it builds, would survive a
    /// power cut.
    fn is_durable(&self, position: Position) -> bool {
        let is_durable = self.journal.durable() >= position && self.journal.has_copied();
        is_durable || !self.setup.guards.on(Guard::DurableCaughtUp)
    }

    /// Notes that everything that was agreed in that epoch is here.
    fn note_held(&mut self, epoch: u32) {
        self.held_epoch = epoch;
        self.journal.hold(epoch);
    }

    /// Fail-stop: it answers nothing any more, and asks the controller to remove it.
    fn fail_stop(&mut self) {
        self.phase = Phase::Left;
        self.streams.close();
        self.source.clear();
        self.leases.close();
    }

    fn send_control(&mut self, to: Addr, message: &impl Message, sink: &mut impl Sink) {
        message.emit(&mut self.scratch);
        sink.send(to, &self.scratch);
    }

    /// Sends to all other members.
    fn tell_others(&mut self, message: &impl Message, sink: &mut impl Sink) {
        message.emit(&mut self.scratch);
        for member in self.role.others() {
            sink.send(member.addr, &self.scratch);
        }
    }
}
