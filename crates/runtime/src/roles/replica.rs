//! A replica, with the memory engine or a redis-server.

use std::path::PathBuf;
use std::rc::Rc;

use concord_core::machine::Deadline;
use concord_core::{Duration, Instant, MS, Now};
use concord_engine::memory::Memory;
use concord_engine::{Engine, RedisEngine, Shimmed};
use concord_log::Batch;
use concord_log::EngineKind;
pub use concord_protocols::{HEARTBEAT_NS, SlowReads};
use concord_protocols::{Limits, Node, Phase, ReplicaConfig, Retired};
use concord_wire::control::{Member, Protocol};
use concord_wire::{Addr, GroupId, OfGroup};
use tracing::{error, info, warn};

use crate::clock;
use crate::disk::DiskFault;
use crate::driver::{Driver, Persisted, ROLE_TOKEN_MIN, Role, Stop};
use crate::error::Error;
use crate::http::{Health, Snapshot};
use crate::logging;
use crate::poller::{Event, Interest, Poller, Token};
use crate::redis_server::{BusyLimits, Pumped, RedisServer};
use crate::roles::replica_disk::ReplicaDisk;
use crate::roles::{Place, unique};
use crate::udp::{self, Outbox};

/// The configuration of a replica, beside its place.
#[derive(Clone, Debug)]
pub struct ReplicaSetup {
    /// The group of the replica.
    pub group: GroupId,
    /// The group's replication protocol.
    pub protocol: Protocol,
    /// The address of the controller.
    pub controller: Addr,
    /// The duration of a lease in ns.
    pub lease_ns: Duration,
    /// Whether replies to reads go through the switch too.
    pub replies_via_switch: bool,
    /// The way in which a leader that answers a read alone knows that it still leads.
    pub reads: SlowReads,
    /// Whether it tells its leader how many packets wait for it, for a switch that balances reads
    /// by load.
    pub tells_queue: bool,
    /// The interval at which the replicas compare a part of their data, in ns; 0 for never.
    pub compare_ns: Duration,
    /// For tests: the replica damages one of its keys once this file is there, and removes it.
    pub damage: Option<PathBuf>,
    /// The bytes of data above which writes that need memory are refused; 0 for no limit.
    pub memory_bytes_max: u64,
    /// The approximate bytes of the log that are kept in memory for replicas that were away.
    pub log_memory_bytes: usize,
    /// The engine that holds the data.
    pub engine: EngineSetup,
    /// The data that is kept on disk; `None` for nothing.
    pub disk: Option<DiskSetup>,
}

/// The configuration of a replica's disk.
#[derive(Clone, Debug)]
pub struct DiskSetup {
    /// Its data directory.
    pub directory: PathBuf,
    /// Whether writes are acknowledged before they are on disk, which is synced each second.
    pub acks_early: bool,
    /// The rest between two scrubs of the whole log; `None` for no scrubbing.
    pub scrub_rest: Option<std::time::Duration>,
    /// Faults of the disk, for tests.
    pub fault: DiskFault,
}

/// The engine of a replica.
#[derive(Clone, Debug)]
pub enum EngineSetup {
    /// The memory engine, in this process.
    Memory,
    /// A redis-server of its own, which ends with the replica.
    Redis {
        /// The program to start.
        program: String,
        /// Its directory, for socket and log.
        directory: PathBuf,
        /// The time limits of its operations.
        limits: BusyLimits,
    },
}

impl EngineSetup {
    /// The kind that a data directory names.
    fn kind(&self) -> EngineKind {
        match self {
            EngineSetup::Memory => EngineKind::Memory,
            EngineSetup::Redis { .. } => EngineKind::Redis,
        }
    }
}

/// Input and output of an engine that is not in this process.
pub(super) trait EngineIo<E> {
    /// Handles the connection to the engine's server: bytes came, or may be sent.
    fn pump(&mut self, engine: &mut E) -> Result<(), Error>;

    /// Whether operations wait to be sent.
    fn has_output(&self, engine: &E) -> bool;

    /// The next time to call [`EngineIo::watch`]; it is also called in every event-loop iteration.
    fn watch_at(&self) -> Instant {
        Instant::NEVER
    }

    /// Ensures that nothing keeps the engine busy forever.
    fn watch(&mut self, _now: Instant, _engine: &mut E) {}
}

/// For the memory engine, which completes at once and needs no input or output.
#[derive(Debug)]
struct NoEngineIo;

impl<E> EngineIo<E> for NoEngineIo {
    fn pump(&mut self, _engine: &mut E) -> Result<(), Error> {
        Ok(())
    }

    fn has_output(&self, _engine: &E) -> bool {
        false
    }
}

/// Moves bytes between the engine and its redis-server.
#[derive(Debug)]
struct RedisIo {
    /// The server, or `None` once the engine is lost: the replica then leaves (traps T4, T11).
    server: Option<RedisServer>,
    poller: Rc<Poller>,
    interest: Interest,
}

const SERVER: Token = Token(ROLE_TOKEN_MIN);
const DISK: Token = Token(ROLE_TOKEN_MIN + 1);
const EVENTS: Token = Token(ROLE_TOKEN_MIN + 2);

impl RedisIo {
    fn new(mut server: RedisServer, poller: Rc<Poller>) -> Result<RedisIo, Error> {
        let interest = Interest::READ;
        poller.add(server.descriptor(), SERVER, interest)?;
        if let Some(events) = server.take_events_descriptor() {
            poller.add(events, EVENTS, Interest::READ)?;
        }
        Ok(RedisIo { server: Some(server), poller, interest })
    }
}

impl EngineIo<Shimmed<RedisEngine>> for RedisIo {
    fn pump(&mut self, engine: &mut Shimmed<RedisEngine>) -> Result<(), Error> {
        let Some(server) = &mut self.server else { return Ok(()) };
        match server.pump(engine.backend_mut()) {
            Ok(Pumped::Same) => {}
            Ok(Pumped::Reconnected) => {
                self.interest = Interest::READ;
                self.poller.add(server.descriptor(), SERVER, self.interest)?;
            }
            // The replica lives on to tell the controller that it leaves.
            Err(e) if engine.lost() => {
                error!(error = %e, "the storage engine is lost: the replica leaves");
                self.server = None;
                return Ok(());
            }
            Err(e) => return Err(e),
        }
        if let Some(events) = server.take_events_descriptor() {
            self.poller.add(events, EVENTS, Interest::READ)?;
        }
        let write = !engine.backend().output().is_empty();
        if write != self.interest.write {
            self.interest.write = write;
            self.poller.change(server.descriptor(), SERVER, self.interest)?;
        }
        Ok(())
    }

    fn watch_at(&self) -> Instant {
        self.server.as_ref().map_or(Instant::NEVER, RedisServer::watch_at)
    }

    fn watch(&mut self, now: Instant, engine: &mut Shimmed<RedisEngine>) {
        if let Some(server) = &mut self.server {
            server.watch(now, engine.backend_mut());
        }
        if engine.lost()
            && self.server.take().is_some()
            && let Some(why) = engine.backend().lost_reason()
        {
            eprintln!("concord: the redis-server is of no use any more: {why}");
        }
    }

    fn has_output(&self, engine: &Shimmed<RedisEngine>) -> bool {
        // While the socket is full, the poller says when to continue.
        self.server.is_some() && !self.interest.write && !engine.backend().output().is_empty()
    }
}

#[derive(Debug)]
struct ReplicaRole<E, F> {
    node: u16,
    replica: OfGroup<Node<E>>,
    engine_io: F,
    /// Its disk, if it keeps its data on one.
    replica_disk: Option<ReplicaDisk>,
    /// The phase, place, epoch and switch id that were logged last.
    logged: Option<(Phase, &'static str, u32, u32)>,
    /// The time since which it is in no configuration; `None` once that was logged, or if it is in
    /// one.
    out_since: Option<Instant>,
    /// Whether a majority of its group decides. Such a group keeps the replicas with which it
    /// began.
    is_quorum: bool,
    is_stopping: bool,
    /// Its address, and the next time to check how many packets wait there; `None` if that is not
    /// wanted.
    queue: Option<(Addr, Instant)>,
    /// For tests: see [`ReplicaSetup::damage`].
    damage: Option<PathBuf>,
}

/// The time that a replica waits for a configuration before it logs why there may be none.
const OUTSIDE_NS: Duration = 5_000 * MS;
/// The interval between two checks of its own queue: a leader weighs them once a second.
const QUEUE_LOOK_NS: Duration = 20 * MS;

impl<E: Engine, F> ReplicaRole<E, F> {
    /// Logs why no configuration names it, once it has waited for one.
    fn log_outside(&mut self, now: Instant, phase: Phase) {
        let Some(since) = self.out_since else { return };
        if phase != Phase::Out {
            self.out_since = None;
        } else if since == Instant::NEVER {
            self.out_since = Some(now);
        } else if now.since(since) >= OUTSIDE_NS {
            self.out_since = None;
            match self.is_quorum {
                true => warn!(
                    "no configuration names this replica: the group waits for others (see `concord status`), or serves \
                     without it, since under VR, NOPaxos and Raft it keeps the replicas that it began with"
                ),
                false => warn!(
                    "no configuration names this replica: the controller is not reached, or waits for others (see \
                     `concord status`)"
                ),
            }
        }
    }

    fn engine_ready(&mut self, out: &mut Outbox) {
        let (replica, mut sink) = self.replica.input(out);
        replica.engine_ready(clock::now(), &mut sink);
    }

    /// At the end of the process, writes what was acknowledged and is not on disk yet.
    fn close(&mut self) {
        if let Some(replica_disk) = &mut self.replica_disk {
            replica_disk.close(&mut self.replica);
        }
    }
}

/// Runs a replica until it is told to end.
///
/// # Errors
/// One line for a person.
pub fn run(place: &Place, setup: &ReplicaSetup) -> Result<(), Error> {
    let _span = logging::span("replica", place.node).entered();
    let mut driver = place.driver()?;
    info!(addr = %place.addr, protocol = ?setup.protocol, "started");
    // Each start is another incarnation: a restarted replica is a stranger (trap T4).
    let me = Member { node: place.node, incarnation: unique()?, addr: place.addr };
    let config = ReplicaConfig {
        lease_ns: setup.lease_ns,
        replies_via_switch: setup.replies_via_switch,
        limits: Limits { log_memory_bytes: setup.log_memory_bytes, ..Limits::default() },
        reads: setup.reads,
        compare_ns: setup.compare_ns,
        ..ReplicaConfig::new(me, setup.controller)
    };
    let done = match &setup.engine {
        EngineSetup::Memory => {
            let engine = Shimmed::new(Memory::new(setup.memory_bytes_max))
                .with_scripts(concord_lua::run)
                .with_functions(concord_lua::load);
            let replica = OfGroup::new(setup.group, Node::new(setup.protocol, config, engine));
            begin(&mut driver, place.node, setup, replica, NoEngineIo)
        }
        EngineSetup::Redis { program, directory, limits } => {
            let backend = RedisEngine::new()
                .with_memory_max(setup.memory_bytes_max)
                .with_compiler(concord_lua::compile);
            let mut engine = Shimmed::new(backend).with_functions(concord_lua::load);
            let server = RedisServer::start(program, directory, engine.backend_mut())?;
            let server = server.with_limits(*limits);
            // A server cannot say what a range of its keys holds in a bounded time.
            let config = ReplicaConfig { replicate_replies: true, compare_ns: 0, ..config };
            let replica = OfGroup::new(setup.group, Node::new(setup.protocol, config, engine));
            let engine_io = RedisIo::new(server, driver.poller())?;
            begin(&mut driver, place.node, setup, replica, engine_io)
        }
    };
    info!("stopped");
    done
}

/// Restores the data from the disk, if there is one, and runs the replica.
fn begin<E: Engine, F: EngineIo<E>>(
    driver: &mut Driver,
    node: u16,
    setup: &ReplicaSetup,
    mut replica: OfGroup<Node<E>>,
    mut engine_io: F,
) -> Result<(), Error> {
    let replica_disk = match &setup.disk {
        Some(disk) => {
            let replica_disk = ReplicaDisk::restore(
                node,
                disk,
                (setup.protocol, setup.engine.kind(), setup.lease_ns),
                &mut replica,
                &mut engine_io,
            )?;
            driver.poller().add(replica_disk.disk(), DISK, Interest::READ)?;
            Some(replica_disk)
        }
        None => None,
    };
    let (logged, is_stopping) = (None, false);
    let queue = setup.tells_queue.then(|| (replica.member().addr, Instant(0)));
    driver.run(&mut ReplicaRole {
        node,
        replica,
        engine_io,
        replica_disk,
        logged,
        out_since: Some(Instant::NEVER),
        is_quorum: setup.protocol.is_quorum(),
        is_stopping,
        queue,
        damage: setup.damage.clone(),
    })
}

impl<E: Engine, F: EngineIo<E>> Role for ReplicaRole<E, F> {
    type Machine = OfGroup<Node<E>>;

    fn machine(&mut self) -> &mut OfGroup<Node<E>> {
        &mut self.replica
    }

    fn persist(&mut self, what: Batch) -> Result<Persisted, Error> {
        if let Some(replica_disk) = &mut self.replica_disk {
            replica_disk.write(what, &mut self.replica);
        }
        Ok(Persisted::Later)
    }

    fn event(&mut self, event: Event, out: &mut Outbox) -> Result<(), Error> {
        if event.token == DISK {
            if let Some(replica_disk) = &mut self.replica_disk {
                replica_disk.ready(&mut self.replica, out);
            }
            return Ok(());
        }
        self.engine_io.pump(self.replica.engine_mut())?;
        // Reads that completed are answered only under a lease that still holds after they were
        // received (trap T1).
        self.engine_ready(out);
        Ok(())
    }

    fn attend(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        if self.engine_io.has_output(self.replica.engine()) {
            self.engine_io.pump(self.replica.engine_mut())?;
            self.engine_ready(out);
        }
        self.engine_io.watch(now.instant, self.replica.engine_mut());
        if let Some(replica_disk) = &mut self.replica_disk {
            replica_disk.look();
        }
        if let Some(file) = &self.damage
            && file.exists()
            && self.replica.engine_mut().damage(now.instant.0).is_some()
        {
            warn!("a key of this replica was changed, as the rack file's faults say");
            // A file that stays means more damage, which is a fault of the same kind.
            let _ = std::fs::remove_file(file);
        }
        if let Some((addr, next_at)) = &mut self.queue
            && *next_at <= now.instant
        {
            *next_at = now.instant.after(QUEUE_LOOK_NS);
            self.replica.note_queue(udp::waiting(*addr));
        }
        Ok(())
    }

    fn log(&mut self, now: Now) {
        let s = self.replica.status(now);
        let seen = (s.phase, s.role, s.epoch.0, s.switch_id);
        if self.logged.replace(seen) != Some(seen) {
            let (phase, place) = (phase_name(s.phase), s.role);
            let (epoch, switch_id, executed) = (s.epoch.0, s.switch_id, s.executed.0);
            info!(epoch, phase, place, switch_id, executed, "state");
            let mut counters = self.replica.each_counter();
            let is_silent =
                |(name, _, count): (&str, &str, u64)| name == "disks_silent" && count > 0;
            if s.phase == Phase::Left
                && counters.any(is_silent)
                && let Some(replica_disk) = &self.replica_disk
            {
                replica_disk.say_given_up();
            }
        }
        self.log_outside(now.instant, s.phase);
    }

    /// A replica that ends alone leaves in order. If the whole rack ends, none waits for another.
    fn stop(&mut self, now: Now, why: Stop) -> bool {
        if why == Stop::Rack {
            self.close();
            return true;
        }
        if !self.is_stopping {
            self.is_stopping = true;
            info!(epoch = self.replica.status(now).epoch.0, "leaves");
            self.replica.retire(now);
        }
        let Some(how) = self.replica.retired(now) else { return false };
        self.close();
        let epoch = self.replica.status(now).epoch.0;
        match how {
            Retired::InOrder => info!(epoch, "left: the others go on"),
            Retired::Alone => {
                warn!(epoch, "stops, and is the only member: the group stands still without it")
            }
            Retired::InVain => warn!(
                epoch,
                "stops, though the others have not gone on without it yet: the controller is not \
                 reached, or no other replica has all the data"
            ),
        }
        true
    }

    fn wakes_at(&self) -> Deadline {
        let at = self.engine_io.watch_at();
        Deadline { at, reason: "is a script running?" }
    }

    fn snapshot(&self, now: Now) -> Snapshot {
        let status = self.replica.status(now);
        let mut s = Snapshot::new("replica", self.node);
        if status.phase != Phase::Open {
            s.health = Health::NotYet(format!("{}, not open", phase_name(status.phase)));
        }
        s.count(self.replica.each_counter());
        s.count(self.replica.of_group_counters().each());
        s.gauge("epoch", "The epoch that it is in; in VR the view.", status.epoch.0.into());
        s.gauge("executed", "The end of its log.", status.executed.0 as f64);
        s.gauge("committed", "Up to where its log is committed.", status.committed.0 as f64);
        s.gauge("leased", "Whether it may answer alone.", f64::from(u8::from(status.leased)));
        s.gauge("keys", "Number of keys.", status.keys as f64);
        s.gauge("memory_bytes", "Bytes that the data takes.", status.memory_bytes as f64);
        s.gauge("log_memory_bytes", "Of the log, kept for replicas that were away.", {
            self.replica.log().tail_bytes() as f64
        });
        s.gauge("sessions", "Client sessions.", status.sessions as f64);
        let help =
            "Who orders writes: how far the log's time is behind this node's clock, in seconds.";
        s.gauge("log_behind_seconds", help, status.log_behind_ms as f64 / 1e3);
        if let Some(replica_disk) = &self.replica_disk {
            replica_disk.tell(&mut s);
        }
        s.tell("durability", self.replica_disk.as_ref().map_or("none", ReplicaDisk::durability));
        s.tell("phase", phase_name(status.phase));
        s.tell("place", status.role);
        s.tell("epoch", status.epoch.0);
        s.tell("switch_id", status.switch_id);
        s.tell("executed", status.executed.0);
        s.tell("committed", status.committed.0);
        s.tell("copied_percent", status.copied_percent);
        s.tell("leased", status.leased);
        s.tell("keys", status.keys);
        s.tell("memory_bytes", status.memory_bytes);
        s
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Out => "out",
        Phase::Joining => "joining",
        Phase::Opening => "opening",
        Phase::Open => "open",
        Phase::Left => "left",
    }
}
