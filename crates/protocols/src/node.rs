//! A replica of any protocol, for its hosts: the simulator and the runtime.

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

/// A replica of any protocol. It passes every call on to the machine inside.
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

    /// The next batch for the disk, if the one before is durable.
    fn poll_persist(&mut self) -> Option<Persist<Batch>> {
        inside!(self, node => node.poll_persist())
    }

    fn persisted(&mut self, now: Now, number: u64, sink: &mut impl Sink) {
        inside!(self, node => node.persisted(now, number, sink));
    }
}

impl<E: Engine> Node<E> {
    /// A replica of `protocol` without a configuration.
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

    /// Takes the operations that the engine has completed.
    pub fn engine_ready(&mut self, now: Now, sink: &mut impl Sink) {
        inside!(self, node => node.engine_ready(now, sink));
    }

    /// Notes the number of packets that wait at the host after a batch. Called before
    /// [`Machine::flush`] by hosts that know it.
    pub fn note_queue(&mut self, packets: usize) {
        match self {
            Node::Replica(_) => {}
            Node::Vr(vr) => vr.note_queue(packets),
        }
    }

    /// Reads the next entry of the log that an earlier start wrote ([`Replica::restore`]).
    ///
    /// # Errors
    /// [`BadEntry`]: the entry is not one of this protocol or engine.
    pub fn restore(&mut self, now: Now, entry: &Entry<'_>) -> Result<(), BadEntry> {
        inside!(self, node => node.restore(now, entry))
    }

    /// The number of restored operations that the engine has not completed yet.
    #[must_use]
    pub fn restoring(&self) -> usize {
        inside!(self, node => node.restoring())
    }

    /// Keeps everything on a disk from now on ([`Replica::keep`]).
    ///
    /// # Errors
    /// [`BadEntry`]: the restored state is incomplete.
    pub fn keep(&mut self, now: Now, kept: DiskState, before: (u64, u64)) -> Result<(), BadEntry> {
        inside!(self, node => node.keep(now, kept, before))
    }

    /// Prepares for a graceful end: the replica sends nothing any more, and its next batch is the
    /// last.
    pub fn close(&mut self) {
        inside!(self, node => node.close());
    }

    /// Takes a written batch back, to reuse its memory.
    pub fn disk_is_done_with(&mut self, batch: Batch) {
        inside!(self, node => node.disk_is_done_with(batch));
    }

    /// Notes whether the disk is short of room: writes are then refused.
    pub fn disk_room(&mut self, is_short: bool) {
        inside!(self, node => node.disk_room(is_short));
    }

    /// Notes that the data on disk is damaged: a new snapshot replaces it.
    pub fn renew_snapshot(&mut self) {
        inside!(self, node => node.renew_snapshot());
    }

    /// Notes that the disk failed for good: the replica leaves.
    pub fn disk_failed(&mut self) {
        inside!(self, node => node.disk_failed());
    }

    /// Tells the replica to leave gracefully.
    pub fn retire(&mut self, now: Now) {
        inside!(self, node => node.retire(now));
    }

    /// Whether a replica that was told to leave has left, so that its host may end it.
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

    /// This replica's node, address and incarnation.
    #[must_use]
    pub fn member(&self) -> &Member {
        inside!(self, node => node.member())
    }

    /// The newest configuration that it knows.
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

    /// The position up to which the log is committed, as far as is known here.
    #[must_use]
    pub fn committed(&self) -> Position {
        inside!(self, node => node.committed())
    }

    /// Whether it holds the lease that a replica needs to answer a read alone (trap T2).
    #[must_use]
    pub fn holds_lease(&self, now: Now) -> bool {
        inside!(self, node => node.holds_lease(now))
    }

    /// A digest of the client table, equal at replicas that executed the same records; for tests.
    #[must_use]
    pub fn sessions_digest(&self) -> u64 {
        inside!(self, node => node.sessions_digest())
    }

    /// The counters of every protocol.
    #[must_use]
    pub fn counters(&self) -> &ReplicaCounters {
        inside!(self, node => node.counters())
    }

    /// Name, help and value of every counter, also of those of one protocol.
    pub fn each_counter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let own = match self {
            Node::Replica(_) => None,
            Node::Vr(vr) => Some(vr.vr_counters().each()),
        };
        self.counters().each().chain(own.into_iter().flatten())
    }

    /// The replica's phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        inside!(self, node => node.phase())
    }

    /// The state to show to people.
    #[must_use]
    pub fn status(&self, now: Now) -> ReplicaStatus {
        inside!(self, node => node.status(now))
    }
}
