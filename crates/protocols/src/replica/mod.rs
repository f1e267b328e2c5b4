//! A replica of a primary-backup, chain or CRAQ group: its parts, and what it makes of them.
//!
//! Each part owns its state and is told what it needs; it sends what is its own, or says what is to
//! be done: `role` (who orders, passes on, commits, reads), `streams` (records on their way),
//! `queue` (what waits for the engine), `unanswered` and `asking` (what waits for others),
//! `opening` (what an epoch begins with), `copy` and `source` (how a replica joins, from both
//! sides), `journal` (what is on its disk), `report` (what the controller is told). The other files
//! are the replica's own, by subject: they import the parts and this file, and none of these
//! imports them.

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
    /// A configuration of several packets, of which some came.
    assembly: Assembly,
    serving: Serving<E>,
    ordered: Ordered,
    applied: Applied,
    leases: Leases,
    /// The last record handed to the engine; at least `executed`.
    submitted: LogEnd,
    /// The last record executed here.
    executed: Position,
    /// Up to here every member has executed, as far as this replica knows.
    committed: Position,
    queue: Queue,
    unanswered: Unanswered,
    asking: Asking,
    streams: Streams,
    opening: Opening,
    /// All that was agreed when the epoch opened is executed here. False after the replica was let
    /// in, until it is: it answers no reads before.
    caught_up: bool,
    copy: Copy,
    source: SnapshotSource,
    journal: Journal,
    /// No epoch opens here before: what was granted by an earlier start may be held until then
    /// (trap T2).
    quiet_until: Instant,
    /// The last epoch in which this replica had all that was agreed; 0 if what is here is not that.
    held_epoch: u32,
    report: Report,
    /// It was told to end.
    retiring: Option<Retiring>,
    next_retry: Instant,
    /// CRAQ: the held record that is being executed.
    record: Vec<u8>,
    scratch: Vec<u8>,
    count: ReplicaCounters,
}

impl<E: Engine> Replica<E> {
    /// A replica that knows nobody yet.
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

    /// Which guards are on.
    pub(crate) fn guards(&self) -> Guards {
        self.setup.guards
    }

    /// Whether it holds a lease of every other member (trap T2).
    #[must_use]
    pub fn holds_lease(&self, now: Now) -> bool {
        self.phase == Phase::Open && self.leases.is_held(now.instant)
    }

    /// Where the replica stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// What holds in the group now.
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

    /// Drops the records that nobody needs any more. In CRAQ the engine may yet have to execute
    /// what is committed.
    fn truncate_log(&mut self) {
        let position = self.committed.min(self.executed);
        let log = &mut self.ordered.log;
        let position = self.source.forgettable(position, log, &self.setup.limits);
        log.truncate(position);
    }

    /// This replica's log cannot be gone on with: it copies anew, or leaves.
    fn on_log_mismatch(&mut self) {
        if self.phase == Phase::Joining {
            self.invalidate_copy()
        } else {
            self.fail_stop_diverged()
        }
    }

    /// It leaves, and comes back with nothing: what is here is not what the others have.
    fn fail_stop_diverged(&mut self) {
        self.journal.reset(self.setup.guards);
        self.fail_stop();
    }

    /// Whether all that was agreed is executed here by now.
    fn note_caught_up(&mut self) {
        let end = self.opening.agreed();
        self.caught_up |= end.is_some_and(|end| {
            self.executed.0 >= end.position && self.is_durable(Position(end.position))
        });
        if self.caught_up {
            self.note_held(self.role.epoch().0);
        }
    }

    /// Whether all up to `position`, and the state that it goes on from, would be here after a
    /// power cut.
    fn is_durable(&self, position: Position) -> bool {
        let is_durable = self.journal.durable() >= position && self.journal.has_copied();
        is_durable || !self.setup.guards.on(Guard::DurableCaughtUp)
    }

    /// All that was agreed in that epoch is here.
    fn note_held(&mut self, epoch: u32) {
        self.held_epoch = epoch;
        self.journal.hold(epoch);
    }

    /// Fail-stop: it answers nothing any more, and asks the controller to take it out.
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

    /// To all other members.
    fn tell_others(&mut self, message: &impl Message, sink: &mut impl Sink) {
        message.emit(&mut self.scratch);
        for member in self.role.others() {
            sink.send(member.addr, &self.scratch);
        }
    }
}
