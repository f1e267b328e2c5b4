//! A replica's data on its disk: restored at its start, written from then on.

use std::time::{Duration, Instant};

use concord_core::machine::Persist;
use concord_core::{Machine as _, SEC};
use concord_engine::Engine;
use concord_log::{Batch, Begin, EngineKind, Entry, Marks};
use concord_protocols::{DiskState, Node, SNAPSHOT_EVERY_BYTES};
use concord_wire::control::{GroupKind, Protocol};
use concord_wire::{Addr, OfGroup, Sink};
use tracing::{error, info, warn};

use super::replica::{DiskSetup, EngineIo};
use super::unique;
use crate::clock;
use crate::directory::Directory;
use crate::disk::Disk;
use crate::error::{Context, Error};
use crate::http::Snapshot;
use crate::scrub::{Pace, Scrub};

/// The bytes that are scrubbed in a second, which hardly load a disk.
const SCRUB_BYTES_PER_SECOND: u64 = 8 << 20;
/// The number of operations that the engine may owe while the log is replayed.
const RESTORING_MAX: usize = 1_024;
/// The pause while an engine owes operations.
const ENGINE_PAUSE: Duration = Duration::from_micros(50);
/// The time after which a disk that owes a sync is reported to hang.
const HANGS: Duration = Duration::from_secs(1);
/// The time after which a process ends without its last sync, and the interval of checks.
const CLOSE_MAX: Duration = Duration::from_secs(2);
const DISK_PAUSE: Duration = Duration::from_micros(200);

/// A replica's disk.
#[derive(Debug)]
pub(super) struct ReplicaDisk {
    disk: Disk,
    /// The scrubbing of the log, if there is any.
    scrub: Option<Scrub>,
    /// The number of batches that were handed over.
    batches: u64,
    has_failed: bool,
    /// Whether the disk has no room.
    is_short: bool,
    directory: String,
    storage: u64,
    acks_early: bool,
    log_bytes: u64,
    syncs: u64,
    sync_ns: u64,
    /// The time since which the disk owes a sync.
    waits_since: Option<Instant>,
    /// Whether it was logged that it hangs.
    is_said_to_hang: bool,
    restored: u64,
}

impl ReplicaDisk {
    /// Replays the contents of the directory into a new replica.
    ///
    /// # Errors
    /// One line that names the file, or why the directory cannot be used.
    pub(super) fn restore<E: Engine, F: EngineIo<E>>(
        node: u16,
        setup: &DiskSetup,
        (protocol, engine, lease_ns): (Protocol, EngineKind, u64),
        replica: &mut OfGroup<Node<E>>,
        engine_io: &mut F,
    ) -> Result<ReplicaDisk, Error> {
        let (path, began) = (&setup.directory, Instant::now());
        let (mut directory, aside) = Directory::open_or_set_aside(path, node, unique()?)?;
        if let Some(error) = aside {
            error!(%error, "the data directory is damaged: this replica begins without data");
        }
        let found = directory.found().clone();
        if let Some(GroupKind::Replicas(kept)) = found.marks.config.as_ref().map(|c| c.kind)
            && kept != protocol
        {
            return Err(Error::new(format!(
                "{}: kept under {kept:?}, and {protocol:?} cannot go on from that: give this replica another \
                 data_dir, or the protocol of before",
                path.display()
            )));
        }
        directory.take_over(engine)?;
        let refuse = |_| Error::new(format!("{}: not of this protocol or engine", path.display()));
        directory.each_entry(|entry: Entry<'_>| {
            if let Entry::Origin(_) = entry {
                drain(replica, engine_io, 0)?;
            }
            replica.restore(clock::now(), &entry).map_err(refuse)?;
            drain(replica, engine_io, RESTORING_MAX)
        })?;
        drain(replica, engine_io, 0)?;
        let before_ns = found.marks.lease_ns;
        let marks = Marks {
            run: found.marks.run + 1,
            lease_ns: before_ns.max(lease_ns),
            owes: setup.acks_early || found.marks.owes,
            ..found.marks.clone()
        };
        let (storage, log_bytes) = (directory.storage(), directory.bytes());
        let kept = DiskState {
            storage,
            is_intact: found.begin != Begin::Nothing,
            marks: marks.clone(),
            snapshot_every_bytes: SNAPSHOT_EVERY_BYTES,
            owed: found.marks.owes,
            acks_early: setup.acks_early,
        };
        let disk = Disk::start(directory, node, &marks, setup.fault.clone())?;
        let pace = |rest| Pace { rest, bytes_per_second: SCRUB_BYTES_PER_SECOND };
        let start = |rest| Scrub::start(path.clone(), pace(rest), disk.bell());
        let scrub = setup.scrub_rest.map(start).transpose()?;
        replica.keep(clock::now(), kept, (log_bytes, before_ns)).map_err(refuse)?;
        let is_short = disk.is_short();
        replica.disk_room(is_short);
        let (records, run) = (found.end.position, marks.run);
        let took_ms = began.elapsed().as_millis() as u64;
        let directory = path.display().to_string();
        info!(directory, run, records, log_bytes, took_ms, "restored");
        if let Some(cut) = found.cut {
            warn!(
                segment = cut.segment,
                offset = cut.offset,
                "an incomplete last group was cut off"
            );
        }
        if found.marks.owes {
            warn!(records, "it was not stopped cleanly: what it acknowledged last may be missing");
        }
        Ok(ReplicaDisk {
            disk,
            scrub,
            batches: 0,
            has_failed: false,
            is_short,
            directory,
            storage,
            acks_early: setup.acks_early,
            log_bytes,
            syncs: 0,
            sync_ns: 0,
            waits_since: None,
            is_said_to_hang: false,
            restored: records,
        })
    }

    /// The disk, to be watched.
    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Handles the disk's answers.
    pub(super) fn ready<E: Engine>(&mut self, replica: &mut OfGroup<Node<E>>, out: &mut impl Sink) {
        match self.disk.take() {
            Ok(Some(written)) => {
                self.syncs += 1;
                self.waits_since = None;
                (self.sync_ns, self.log_bytes) = (written.sync_ns, written.log_bytes);
                replica.disk_is_done_with(written.batch);
                replica.persisted(clock::now(), self.batches, out);
            }
            Ok(None) => {}
            Err(error) => self.fail(&error, replica),
        }
        let found = self.scrub.as_mut().and_then(Scrub::take_damage);
        if let Some(damage) = self.disk.take_damage().or(found) {
            error!(damage, "the log on disk is damaged: another snapshot takes its place");
            replica.renew_snapshot();
        }
        let is_short = self.disk.is_short();
        if std::mem::replace(&mut self.is_short, is_short) != is_short {
            match is_short {
                true => warn!("the disk has no room: writes are refused until it has"),
                false => info!("the disk has room again"),
            }
            replica.disk_room(is_short);
        }
    }

    /// Logs once that the disk has not answered for long, and once that it does again.
    pub(super) fn look(&mut self) {
        let waits = self.waits_since.filter(|_| !self.is_short).map(|since| since.elapsed());
        let hangs = waits.is_some_and(|waits| waits >= HANGS);
        if hangs && !self.is_said_to_hang {
            warn!(
                directory = self.directory,
                "the disk has not answered for a second: writes may wait for it, and if it stays silent \
                 this replica leads no more, or leaves its group"
            );
            self.is_said_to_hang = true;
        } else if self.is_said_to_hang && !hangs && !self.is_short {
            info!("the disk answers again");
            self.is_said_to_hang = false;
        }
    }

    /// Logs once that the machine gave up the disk, which it does silently.
    pub(super) fn say_given_up(&self) {
        let seconds = self.waits_since.map_or(0, |since| since.elapsed().as_secs());
        error!(
            directory = self.directory,
            seconds,
            "the disk does not answer: the replica leaves, and comes back once the disk answers"
        );
    }

    /// Writes a batch. The machine hands out no other one before it is told that this one is
    /// durable.
    pub(super) fn write<E: Engine>(&mut self, batch: Batch, replica: &mut OfGroup<Node<E>>) {
        self.batches += 1;
        self.waits_since = Some(Instant::now());
        if let Err(error) = self.disk.write(batch) {
            self.fail(&error, replica);
        }
    }

    /// At the end of the process, when the machine sends nothing any more: writes what has
    /// gathered, and marks that nothing is owed.
    pub(super) fn close<E: Engine>(&mut self, replica: &mut OfGroup<Node<E>>) {
        let began = Instant::now();
        let mut nobody: Vec<(Addr, Vec<u8>)> = Vec::new();
        replica.close();
        while !self.has_failed && began.elapsed() < CLOSE_MAX {
            if self.syncs == self.batches {
                let Some(Persist { what, .. }) = replica.poll_persist() else { return };
                self.write(what, replica);
            }
            std::thread::sleep(DISK_PAUSE);
            self.ready(replica, &mut nobody);
        }
    }

    /// The disk has failed: nothing becomes durable any more. The replica lives on to tell the
    /// controller that it leaves.
    fn fail<E: Engine>(&mut self, error: &Error, replica: &mut OfGroup<Node<E>>) {
        if !self.has_failed {
            self.has_failed = true;
            error!(%error, "the disk failed: the replica leaves");
            replica.disk_failed();
        }
    }

    /// The name of the durability mode in the rack file.
    pub(super) fn durability(&self) -> &'static str {
        if self.acks_early { "interval" } else { "fsync" }
    }

    /// Adds the disk's figures to a snapshot.
    pub(super) fn tell(&self, s: &mut Snapshot) {
        let help = "Times that the disk made durable what had gathered.";
        s.count(std::iter::once(("disk_syncs", help, self.syncs)));
        s.gauge(
            "disk_log_bytes",
            "Bytes of the log and its snapshot on disk.",
            self.log_bytes as f64,
        );
        let help = "How long the last sync took, in seconds.";
        s.gauge("disk_last_sync_seconds", help, self.sync_ns as f64 / SEC as f64);
        let waits_ns = self.waits_since.map_or(0, |since| since.elapsed().as_nanos() as u64);
        let help = "For how long the disk owes the sync that is under way, in seconds.";
        s.gauge("disk_waits_seconds", help, waits_ns as f64 / SEC as f64);
        let failed = f64::from(u8::from(self.has_failed));
        s.gauge("disk_failed", "Whether the disk failed: the replica leaves.", failed);
        let short = f64::from(u8::from(self.is_short));
        s.gauge("disk_full", "Whether the disk has no room: writes are refused.", short);
        if let Some(scrub) = self.scrub.as_ref().map(Scrub::progress) {
            let help = "Times that all of the log on disk was read again.";
            s.count(std::iter::once(("scrub_passes", help, scrub.passes)));
            let help = "Times that damage was found by that.";
            s.count(std::iter::once(("scrub_damages", help, scrub.damages)));
            let help = "How much of the pass under way, or of the last one, was read, in percent.";
            s.gauge("scrub_percent", help, scrub.percent as f64);
            s.tell("scrub_damage", scrub.damage);
        }
        s.tell("disk_full", self.is_short);
        s.tell("data_dir", self.directory.clone());
        s.tell("storage", format!("{:016x}", self.storage));
        s.tell("log_bytes", self.log_bytes);
        s.tell("last_sync_ns", self.sync_ns.max(waits_ns));
        s.tell("disk_waits_ns", waits_ns);
        s.tell("restored_records", self.restored);
        s.tell("disk_failed", self.has_failed);
    }
}

/// Waits until the engine owes at most `most` operations.
fn drain<E: Engine, F: EngineIo<E>>(
    replica: &mut OfGroup<Node<E>>,
    engine_io: &mut F,
    most: usize,
) -> Result<(), Error> {
    let mut nobody: Vec<(Addr, Vec<u8>)> = Vec::new();
    while replica.restoring() > most {
        let before = replica.restoring();
        engine_io.pump(replica.engine_mut())?;
        replica.engine_ready(clock::now(), &mut nobody);
        if replica.engine().lost() {
            return Err(Error::new("the engine was lost")).cannot("go through the log");
        }
        if replica.restoring() == before && !replica.engine().works() {
            std::thread::sleep(ENGINE_PAUSE);
        }
    }
    Ok(())
}
