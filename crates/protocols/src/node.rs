//! A replica of whichever protocol, for those who host it: the simulator and the runtime.

use alloc::boxed::Box;

use concord_core::machine::{Deadline, Persist, Relevance};
use concord_core::{Machine, Now, Position};
use concord_engine::Engine;
use concord_log::{Batch, Entry};
use concord_wire::control::{Config, Member, Protocol};
use concord_wire::{Addr, Sink};

use crate::counters::ReplicaCounters;
use crate::journal::{BadEntry, DiskState};
use crate::log::Log;
use crate::quorum::QuorumReplica;
use crate::replica::Replica;
use crate::retire::Retired;
use crate::setup::{Phase, ReplicaConfig};
use crate::status::ReplicaStatus;

/// A replica. The protocols have one outside; this passes on to the one inside.
#[derive(Clone, Debug)]
pub enum Node<E> {
    /// Primary-backup, chain replication and CRAQ.
    Replica(Box<Replica<E>>),
    /// Viewstamped Replication, NOPaxos and Raft.
    Vr(Box<QuorumReplica<E>>),
}

macro_rules! inside {
    ($self:expr, $node:pat => $does:expr) => {
        match $self {
            Node::Replica($node) => $does,
            Node::Vr($node) => $does,
        }
    };
}

impl<E: Engine> Machine for Node<E> {
    type Persist = Batch;

    fn handle(&mut self, now: Now, _from: Addr, packet: &mut [u8], sink: &mut impl Sink) {
        inside!(self, node => node.handle(now, packet, sink));
    }

    fn tick(&mut self, now: Now, sink: &mut impl Sink) {
        inside!(self, node => node.tick(now, sink));
    }

    fn deadline(&self) -> Deadline {
        inside!(self, node => node.deadline())
    }

    fn flush(&mut self, now: Now, sink: &mut impl Sink) {
        inside!(self, node => node.flush(now, sink));
    }

    fn relevance(&self, packet: &[u8]) -> Relevance {
        inside!(self, node => node.relevance(packet))
    }

    /// What is to be written to the disk, if the batch before is durable.
    fn poll_persist(&mut self) -> Option<Persist<Batch>> {
        inside!(self, node => node.poll_persist())
    }

    fn persisted(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        inside!(self, node => node.persisted(now, number, sink));
    }
}

impl<E: Engine> Node<E> {
    /// A replica of `protocol` that knows nobody yet.
    pub fn new(protocol: Protocol, setup: ReplicaConfig, engine: E) -> Node<E> {
        match protocol {
            Protocol::PrimaryBackup | Protocol::Chain | Protocol::Craq => {
                Node::Replica(Box::new(Replica::new(setup, engine)))
            }
            Protocol::Vr | Protocol::NoPaxos | Protocol::Raft => {
                Node::Vr(Box::new(QuorumReplica::new(setup, engine)))
            }
        }
    }

    /// Takes what the engine has completed.
    pub fn engine_ready(&mut self, now: Now, sink: &mut impl Sink) {
        inside!(self, node => node.engine_ready(now, sink));
    }

    /// So many packets wait at its host behind a batch: said before [`Machine::flush`], where the
    /// host knows.
    pub fn note_queue(&mut self, packets: usize) {
        match self {
            Node::Replica(_) => {}
            Node::Vr(vr) => vr.note_queue(packets),
        }
    }

    /// The next entry of the log that an earlier start of it wrote ([`Replica::restore`]).
    ///
    /// # Errors
    /// [`BadEntry`]: it is not one of this protocol or engine.
    pub fn restore(&mut self, now: Now, entry: &Entry<'_>) -> Result<(), BadEntry> {
        inside!(self, node => node.restore(now, entry))
    }

    /// How many operations the engine still owes of what was restored.
    #[must_use]
    pub fn restoring(&self) -> usize {
        inside!(self, node => node.restoring())
    }

    /// From now on everything is kept on a disk ([`Replica::keep`]).
    ///
    /// # Errors
    /// [`BadEntry`]: the state is not whole.
    pub fn keep(&mut self, now: Now, kept: DiskState, before: (u64, u64)) -> Result<(), BadEntry> {
        inside!(self, node => node.keep(now, kept, before))
    }

    /// The process ends in order, and says nothing any more: what is to be written is the last.
    pub fn close(&mut self) {
        inside!(self, node => node.close());
    }

    /// What was handed out is written, and of no more use: its memory is.
    pub fn disk_is_done_with(&mut self, batch: Batch) {
        inside!(self, node => node.disk_is_done_with(batch));
    }

    /// Whether the disk has room, as it is found now: writes are refused where it has none.
    pub fn disk_room(&mut self, is_short: bool) {
        inside!(self, node => node.disk_room(is_short));
    }

    /// What stands on the disk is damaged: another snapshot takes the place of all before.
    pub fn renew_snapshot(&mut self) {
        inside!(self, node => node.renew_snapshot());
    }

    /// The disk failed, for good: the replica leaves.
    pub fn disk_failed(&mut self) {
        inside!(self, node => node.disk_failed());
    }

    /// Tells it to end: it leaves in order.
    pub fn retire(&mut self, now: Now) {
        inside!(self, node => node.retire(now));
    }

    /// Whether it has left, if it was told to end: its host may end it.
    #[must_use]
    pub fn retired(&self, now: Now) -> Option<Retired> {
        inside!(self, node => node.retired(now))
    }

    /// The engine, for drivers that feed it.
    pub fn engine_mut(&mut self) -> &mut E {
        inside!(self, node => node.engine_mut())
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        inside!(self, node => node.engine())
    }

    /// Who this replica is, and in which life.
    #[must_use]
    pub fn member(&self) -> &Member {
        inside!(self, node => node.member())
    }

    /// The newest configuration of the controller that it knows.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        inside!(self, node => node.config())
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &Log {
        inside!(self, node => node.log())
    }

    /// The last record executed here.
    #[must_use]
    pub fn executed(&self) -> Position {
        inside!(self, node => node.executed())
    }

    /// Up to where the log is committed, as far as is known here.
    #[must_use]
    pub fn committed(&self) -> Position {
        inside!(self, node => node.committed())
    }

    /// Whether it holds the lease without which nobody answers a read alone (trap T2).
    #[must_use]
    pub fn holds_lease(&self, now: Now) -> bool {
        inside!(self, node => node.holds_lease(now))
    }

    /// A digest of the client table, equal on replicas that executed the same: for tests.
    #[must_use]
    pub fn sessions_digest(&self) -> u64 {
        inside!(self, node => node.sessions_digest())
    }

    /// What every protocol counts.
    #[must_use]
    pub fn counters(&self) -> &ReplicaCounters {
        inside!(self, node => node.counters())
    }

    /// Every counter, the protocol's own too: name, help, value.
    pub fn each_counter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let own = match self {
            Node::Replica(_) => None,
            Node::Vr(vr) => Some(vr.vr_counters().each()),
        };
        self.counters().each().chain(own.into_iter().flatten())
    }

    /// Where the replica stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        inside!(self, node => node.phase())
    }

    /// What to show of the replica.
    #[must_use]
    pub fn status(&self, now: Now) -> ReplicaStatus {
        inside!(self, node => node.status(now))
    }
}
