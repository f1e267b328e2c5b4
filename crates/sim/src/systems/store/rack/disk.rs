//! The disk of each replica, with the bytes that the runtime writes. What is synced survives a
//! power cut; what is not may be torn or lost.

use std::collections::BTreeMap;

use concord_core::machine::Persist;
use concord_core::{MS, Machine as _, Rng};
use concord_engine::Engine;
use concord_log::{Batch, Begin, Entry, Found, Identity, Marks, Recovery, Writer, entries};
use concord_protocols::{DiskState, Phase};
use concord_wire::OfGroup;

use super::{Rack, Replica, Role, Slot};
use crate::world::{Event, REPLICAS};

/// The size of an atomic write, in bytes.
const SECTOR: usize = 512;
/// The size of a read, in bytes.
const BLOCK: usize = 4_096;
/// With `interval`, the maximum age of a record that is not on disk when another enters the log, in
/// ns: the two seconds that are promised, and a heartbeat until the replica checks.
const UNSYNCED_NS_MAX: u64 = 2_200 * MS;

/// A data directory, and the data that is being written to it.
#[derive(Debug)]
pub(super) struct ReplicaDisk {
    node: u16,
    storage: u64,
    files: BTreeMap<u64, Vec<u8>>,
    writer: Writer,
    under_way: Option<Batch>,
    /// The replica's number of the batch that is being written.
    number: u64,
    /// The snapshot that is being written, and its first segment.
    snapshot: Option<(u64, u64)>,
    /// The number of starts of the process: completions of an earlier process are ignored.
    incarnation: u64,
    /// Whether the next sync fails.
    fails: bool,
    /// The time until which the disk has room for only `left_bytes` more bytes, in ns.
    short_until_ns: u64,
    left_bytes: usize,
    /// The time until which the disk hangs, in ns.
    hangs_until_ns: u64,
    /// The position of the last group of records that was synced: segment and offset.
    last: (u64, usize),
    /// Whether a bit is flipped before the next start.
    flips: bool,
    /// Whether a place cannot be read from the next start on.
    blanks: bool,
    /// The place that cannot be read.
    unreadable: Option<(u64, u64)>,
    unsynced: Unsynced,
    /// The end of the durable part of the log: when the last batch was handed out, and now.
    handed_out: u64,
    durable: u64,
    copy: Option<Copy>,
    rng: Rng,
}

/// A copy of a directory that was made while its process ran.
#[derive(Debug)]
struct Copy {
    files: BTreeMap<u64, Vec<u8>>,
    /// The end of the part of the log in the copy that the controller was told of.
    end: u64,
    /// The time since when the directory has had more than the copy, in ns.
    older_since_ns: Option<u64>,
}

/// The time after which the controller has been told of what a disk has, in ns, even if keepalives
/// are lost.
const TOLD_NS: u64 = 400 * MS;

/// The time since when records of a log have not been on its disk.
#[derive(Debug, Default)]
struct Unsynced {
    /// The time since when records are being written, and since when others gather after them, in
    /// ns.
    under_way_ns: Option<u64>,
    gathering_ns: Option<u64>,
    /// The process, its view, and the end of its log when it was last looked at.
    seen: (u64, u32, u64),
}

impl Unsynced {
    /// Notes the end of the log of a process in a view. If the log grew, returns how long the
    /// oldest record before the new ones has waited for the disk, in ns.
    fn see(&mut self, now_ns: u64, seen: (u64, u32, u64)) -> Option<u64> {
        let before = core::mem::replace(&mut self.seen, seen);
        let is_same = (before.0, before.1) == (seen.0, seen.1);
        if !is_same || seen.2 <= before.2 {
            return None;
        }
        let gathering_ns = *self.gathering_ns.get_or_insert(now_ns);
        Some(now_ns - self.under_way_ns.unwrap_or(gathering_ns))
    }

    /// Notes that the process was paused: it could not check meanwhile.
    fn stood_still_until(&mut self, until_ns: u64) {
        for since in [&mut self.under_way_ns, &mut self.gathering_ns].into_iter().flatten() {
            *since = until_ns.max(*since);
        }
    }
}

impl ReplicaDisk {
    pub(super) fn new(node: u16, seed: u64) -> ReplicaDisk {
        let mut rng = Rng::new(seed ^ u64::from(node) << 32 ^ 0xd15c_b17e);
        let storage = rng.next_u64();
        ReplicaDisk {
            node,
            storage,
            files: BTreeMap::new(),
            writer: Writer::new(Identity { storage, node, engine: None }, 1, 1),
            under_way: None,
            number: 0,
            snapshot: None,
            incarnation: 0,
            fails: false,
            short_until_ns: 0,
            left_bytes: 0,
            hangs_until_ns: 0,
            last: (0, 0),
            flips: false,
            blanks: false,
            unreadable: None,
            unsynced: Unsynced::default(),
            handed_out: 0,
            durable: 0,
            copy: None,
            rng,
        }
    }

    /// Whether the disk hangs.
    pub(super) fn hangs(&self, now_ns: u64) -> bool {
        now_ns < self.hangs_until_ns
    }

    /// Replaces the disk by an empty one.
    fn replace(&mut self) {
        let (incarnation, storage) = (self.incarnation, self.rng.next_u64());
        *self = ReplicaDisk {
            storage,
            incarnation,
            ..ReplicaDisk::new(self.node, self.rng.next_u64())
        };
    }

    fn append(&mut self, bytes: &[u8]) {
        self.files.entry(self.writer.segment()).or_default().extend_from_slice(bytes);
    }

    fn begin_segment(&mut self) {
        let mut bytes = Vec::new();
        self.writer.begin_segment(&mut bytes);
        self.append(&bytes);
    }

    /// Completes the batch that is being written, if there is one: it is on disk.
    fn finish(&mut self) -> Option<Batch> {
        let mut batch = self.under_way.take()?;
        self.unsynced.under_way_ns = None;
        if let Some(snapshot) = batch.begins_snapshot() {
            self.begin_segment();
            self.snapshot = Some((snapshot, self.writer.segment()));
        }
        self.writer.seal(batch.bytes());
        let bytes = batch.bytes().to_vec();
        let segment = self.writer.segment();
        self.last = (segment, self.files.get(&segment).map_or(0, Vec::len));
        self.append(&bytes);
        if let Some((_, segment)) =
            self.snapshot.filter(|(id, _)| batch.ends_snapshot() == Some(*id))
        {
            self.files.retain(|number, _| *number >= segment);
            self.snapshot = None;
        }
        Some(batch)
    }

    /// The power is cut, or the process dies and the machine's cache is lost: of the batch that is
    /// being written, any subset of sectors is on disk.
    fn cut(&mut self) {
        let Some(mut batch) = self.under_way.take() else { return };
        if self.rng.chance(1, 4) {
            return;
        }
        if batch.begins_snapshot().is_some() {
            self.begin_segment();
        }
        self.writer.seal(batch.bytes());
        let mut bytes = batch.bytes().to_vec();
        if self.rng.chance(1, 2) {
            bytes.truncate(self.rng.below(bytes.len() as u64 + 1) as usize);
        }
        if self.rng.chance(1, 2) {
            for sector in bytes.chunks_mut(SECTOR) {
                if self.rng.chance(1, 2) {
                    sector.fill(0);
                }
            }
        }
        self.append(&bytes);
    }

    /// Flips a bit of the synced data, before the last group: damage in the last group looks like a
    /// group that was never completed. The batch that is being written is lost.
    fn flip(&mut self) {
        self.under_way = None;
        let (segment, end) = self.last;
        let before = self.files.iter_mut().filter(|(number, _)| **number <= segment);
        let mut bytes: Vec<(&u64, &mut Vec<u8>, usize)> = before
            .map(|(number, file)| {
                let len = if *number == segment { end.min(file.len()) } else { file.len() };
                (number, file, len)
            })
            .collect();
        let all: usize = bytes.iter().map(|(.., len)| len).sum();
        if all == 0 {
            return;
        }
        let mut at = self.rng.below(all as u64) as usize;
        let bit = self.rng.below(8) as u8;
        for (_, file, len) in &mut bytes {
            if at < *len {
                file[at] ^= 1 << bit;
                return;
            }
            at -= *len;
        }
    }

    /// Makes a block unreadable, anywhere on the disk.
    fn blank(&mut self) {
        let blocks = |bytes: &Vec<u8>| bytes.len().div_ceil(BLOCK) as u64;
        let all: u64 = self.files.values().map(blocks).sum();
        let mut at = if all == 0 { return } else { self.rng.below(all) };
        for (number, bytes) in &mut self.files {
            if at < blocks(bytes) {
                let from = at as usize * BLOCK;
                let end = bytes.len().min(from + BLOCK);
                bytes[from..end].fill(0);
                self.unreadable = Some((*number, from as u64));
                return;
            }
            at -= blocks(bytes);
        }
    }

    /// Finds the data that can be trusted; truncates an incomplete last group.
    fn recover(&mut self) -> Result<Found, String> {
        let mut recovery = Recovery::new(self.storage);
        self.unreadable = self.unreadable.filter(|(segment, _)| self.files.contains_key(segment));
        if let Some((segment, offset)) = self.unreadable {
            recovery.unreadable(segment, offset);
        }
        for (number, bytes) in &self.files {
            recovery.segment(*number, bytes);
        }
        let found = recovery.finish().map_err(|damage| format!("its log: {damage}"))?;
        self.files.retain(|number, _| !found.empty.contains(number));
        if let Some(cut) = found.cut {
            if cut.offset == 0 {
                self.files.remove(&cut.segment);
            } else if let Some(file) = self.files.get_mut(&cut.segment) {
                file.truncate(cut.offset as usize);
            }
        }
        let identity = Identity { storage: self.storage, node: self.node, engine: None };
        self.writer = Writer::new(identity, found.next_segment, found.next_group);
        self.snapshot = None;
        Ok(found)
    }

    /// Reads the log once more.
    fn each(&self, found: &Found, mut each: impl FnMut(&Entry<'_>) -> bool) -> bool {
        let (first, from) = match found.begin {
            Begin::Start => (0, 0),
            Begin::At { segment, offset, .. } => (segment, offset),
            Begin::Nothing => return true,
        };
        self.files.range(first..).all(|(segment, bytes)| {
            let from = if *segment == first { from } else { 0 };
            entries(self.storage, *segment, bytes, from).all(|(_, entry)| each(&entry))
        })
    }
}

impl Rack<'_> {
    /// Whether a replica's data survives its process.
    pub(super) fn keeps(&self, node: usize) -> bool {
        self.is_replica(node) && self.plan.disks.keeps(node - REPLICAS)
    }

    /// Gives the replica another, empty disk.
    pub(super) fn lose_disk(&mut self, node: usize) {
        if self.keeps(node) {
            self.disks[node - REPLICAS].replace();
        }
    }

    /// Restores a replica that starts from its disk.
    pub(super) fn restore(&mut self, node: usize, replica: &mut OfGroup<Replica>) {
        if !self.keeps(node) {
            return;
        }
        let now = self.world.clock(node);
        let disk = &mut self.disks[node - REPLICAS];
        let mut flips = core::mem::take(&mut disk.flips);
        if flips {
            disk.flip();
        }
        disk.cut();
        if core::mem::take(&mut disk.blanks) {
            disk.blank();
        }
        flips |= disk.unreadable.is_some();
        disk.incarnation += 1;
        disk.unsynced = Unsynced::default();
        disk.fails = false;
        let found = match disk.recover() {
            Ok(found) => found,
            // The directory is set aside.
            Err(_) if flips => {
                self.totals.damaged += 1;
                disk.replace();
                match disk.recover() {
                    Ok(found) => found,
                    Err(why) => return self.broken = Some(why),
                }
            }
            Err(why) => return self.broken = Some(self.standing(&why)),
        };
        let mut nothing = crate::world::Outgoing::default();
        let restored = disk.each(&found, |entry| {
            let is_good = replica.restore(now, entry).is_ok();
            while replica.restoring() > 0 && !replica.engine().lost() {
                replica.engine_mut().backend_mut().release();
                replica.engine_ready(now, &mut nothing);
            }
            is_good
        });
        let (before_ns, lease_ns) = (found.marks.lease_ns, self.plan.lease_ns);
        let run = found.marks.run + 1;
        let (acks_early, owed) = (self.plan.disks.acks_early(node - REPLICAS), found.marks.owes);
        let lease_ns = before_ns.max(lease_ns);
        let marks = Marks { run, lease_ns, owes: acks_early || owed, ..found.marks.clone() };
        disk.begin_segment();
        let mut batch = Batch::default();
        batch.marks(&marks);
        disk.under_way = Some(batch);
        disk.finish();
        let kept = DiskState {
            storage: disk.storage,
            is_intact: found.begin != Begin::Nothing,
            marks,
            snapshot_every_bytes: self.plan.disks.snapshot_bytes,
            owed,
            acks_early,
        };
        let kept = replica.keep(now, kept, (0, before_ns));
        replica.disk_room(self.world.now_ns < disk.short_until_ns);
        if !restored || kept.is_err() {
            self.broken = Some(self.standing("it cannot go through its own log"));
        }
        self.totals.restored += u64::from(found.end.position > 0);
    }

    /// Begins to write the records that a replica has gathered.
    pub(super) fn write_disk(&mut self, node: usize) {
        if !self.keeps(node) {
            return;
        }
        self.look_at_unsynced(node);
        self.look_at_copy(node);
        let disk = &mut self.disks[node - REPLICAS];
        let Role::Replica(replica) = &mut self.slots[node].role else { return };
        if disk.under_way.is_some() {
            return;
        }
        let Some(Persist { number, what }) = replica.poll_persist() else { return };
        (disk.under_way, disk.number) = (Some(what), number);
        disk.handed_out = replica.log().end().position;
        disk.unsynced.under_way_ns = disk.unsynced.gathering_ns.take();
        let (least_ns, most_ns) = self.plan.disks.syncs_ns();
        let takes_ns = disk.rng.between(least_ns, most_ns);
        let incarnation = disk.incarnation;
        self.world.push(self.world.now_ns + takes_ns.max(1), Event::Disk { node, incarnation });
    }

    /// With `interval`: checks that no record enters a log while an earlier one has been missing on
    /// disk for too long. It could be acknowledged, and be lost with the earlier one. In a chain
    /// with a slow engine, writes enter the log that arrived earlier, so that only quorum protocols
    /// are checked.
    fn look_at_unsynced(&mut self, node: usize) {
        let early = self.plan.disks.acks_early(node - REPLICAS) && self.plan.protocol.is_quorum();
        let Some(replica) = self.slots[node].replica().filter(|_| early) else { return };
        let (now_ns, paused_until_ns) = (self.world.now_ns, self.slots[node].paused_until_ns);
        let now = self.world.clock(node);
        let epoch = if replica.phase() == Phase::Open { replica.status(now).epoch.0 } else { 0 };
        let seen = (replica.member().incarnation, epoch, replica.log().end().position);
        let unsynced = &mut self.disks[node - REPLICAS].unsynced;
        unsynced.stood_still_until(paused_until_ns.min(now_ns));
        let waited_ns = unsynced.see(now_ns, seen).filter(|_| epoch > 0).unwrap_or(0);
        if waited_ns > UNSYNCED_NS_MAX && self.plan.invariants && self.broken.is_none() {
            let why = format!(
                "{} takes a record though its disk has lacked an earlier one for {} ms",
                self.name_of(node),
                waited_ns / MS
            );
            self.broken = Some(self.standing(&why));
        }
    }

    /// Delivers a sync that ended while the replica was paused.
    pub(super) fn wake_disk(&mut self, node: usize) {
        if self.keeps(node) {
            let incarnation = self.disks[node - REPLICAS].incarnation;
            self.world.push(self.world.now_ns, Event::Disk { node, incarnation });
        }
    }

    /// A sync ends.
    pub(super) fn disk_synced(&mut self, node: usize, incarnation: u64) {
        if self.disks[node - REPLICAS].incarnation != incarnation {
            return;
        }
        let until_ns = self.slots[node].paused_until_ns;
        if until_ns > self.world.now_ns {
            return self.world.push(until_ns, Event::Disk { node, incarnation });
        }
        let now = self.world.clock(node);
        let disk = &mut self.disks[node - REPLICAS];
        let Role::Replica(replica) = &mut self.slots[node].role else { return };
        if disk.hangs(self.world.now_ns) {
            let until_ns = disk.hangs_until_ns;
            return self.world.push(until_ns, Event::Disk { node, incarnation });
        }
        if self.world.now_ns < disk.short_until_ns {
            let bytes = disk.under_way.as_ref().map_or(0, Batch::len);
            match disk.left_bytes.checked_sub(bytes) {
                Some(left) => disk.left_bytes = left,
                // The batch waits for room.
                None => {
                    let until_ns = disk.short_until_ns;
                    return self.world.push(until_ns, Event::Disk { node, incarnation });
                }
            }
        }
        if disk.fails {
            replica.disk_failed();
        } else if let Some(batch) = disk.finish() {
            disk.durable = disk.handed_out;
            replica.disk_is_done_with(batch);
            replica.persisted(now, disk.number, &mut self.outgoing);
        }
        replica.flush(now, &mut self.outgoing);
        self.world.note(5, node, &[]);
        self.after(node, 0);
    }

    /// Lets the next sync of a replica's disk fail: the replica leaves for good.
    pub(super) fn fail_sync(&mut self, node: usize) {
        if self.keeps(node) {
            self.disks[node - REPLICAS].fails = true;
            self.slots[node].engine_lost = true;
        }
    }

    /// Leaves a replica's disk with room for only `bytes` more bytes for a while.
    pub(super) fn fill_disk(&mut self, node: usize, for_ns: u64, bytes: usize) {
        if !self.keeps(node) {
            return;
        }
        let disk = &mut self.disks[node - REPLICAS];
        // A write that waits for the end of an earlier such fault ends no sooner.
        disk.short_until_ns = disk.short_until_ns.max(self.world.now_ns + for_ns);
        disk.left_bytes = bytes;
        self.world.push(disk.short_until_ns, Event::Room { node });
        self.look_for_room(node);
    }

    /// Ends the lack of room, and a hang.
    pub(super) fn make_room(&mut self, node: usize) {
        if self.keeps(node) && self.disks[node - REPLICAS].hangs(self.world.now_ns) {
            self.disks[node - REPLICAS].hangs_until_ns = self.world.now_ns;
            self.wake_disk(node);
        }
        if self.keeps(node) && self.disks[node - REPLICAS].short_until_ns > self.world.now_ns {
            self.disks[node - REPLICAS].short_until_ns = self.world.now_ns;
            self.look_for_room(node);
            self.wake_disk(node);
        }
    }

    /// Makes a replica's disk hang for a while.
    pub(super) fn hang_disk(&mut self, node: usize, for_ns: u64) {
        if self.keeps(node) {
            let disk = &mut self.disks[node - REPLICAS];
            // As in `fill_disk`.
            disk.hangs_until_ns = disk.hangs_until_ns.max(self.world.now_ns + for_ns);
        }
    }

    /// Makes a replica's disk hang for so long that the replica may leave, for good; with a quorum
    /// protocol it does not leave.
    pub(super) fn hang_disk_for_good(&mut self, node: usize, for_ns: u64) {
        self.hang_disk(node, for_ns);
        if self.keeps(node) && !self.plan.protocol.is_quorum() {
            self.slots[node].engine_lost = true;
        }
    }

    /// Tells the replica whether its disk has room.
    pub(super) fn look_for_room(&mut self, node: usize) {
        let is_short = self.world.now_ns < self.disks[node - REPLICAS].short_until_ns;
        if let Role::Replica(replica) = &mut self.slots[node].role {
            replica.disk_room(is_short);
        }
    }

    /// Lets a bit on a replica's disk flip before its next start.
    pub(super) fn flip_bit(&mut self, node: usize) {
        if self.keeps(node) && !matches!(self.slots[node].role, Role::Dead) {
            self.disks[node - REPLICAS].flips = true;
        }
    }

    /// Makes a place of a replica's disk unreadable from its next start on.
    pub(super) fn blank_place(&mut self, node: usize) {
        if self.keeps(node) && !matches!(self.slots[node].role, Role::Dead) {
            self.disks[node - REPLICAS].blanks = true;
        }
    }

    /// The end of the part of its log that a replica reports to the controller as durable.
    fn told_of_disk(&self, node: usize) -> u64 {
        let durable = self.disks[node - REPLICAS].durable;
        let committed = || self.slots[node].replica().map_or(0, |r| r.committed().0);
        if self.plan.protocol.is_quorum() { durable.min(committed()) } else { durable }
    }

    /// Notes since when a copy has been older than the directory.
    fn look_at_copy(&mut self, node: usize) {
        let (now_ns, told) = (self.world.now_ns, self.told_of_disk(node));
        let copy = self.disks[node - REPLICAS].copy.as_mut();
        if let Some(copy) = copy.filter(|copy| told > copy.end) {
            copy.older_since_ns.get_or_insert(now_ns);
        }
    }

    /// Copies a replica's directory as it is now.
    pub(super) fn copy_disk(&mut self, node: usize) {
        if self.keeps(node) {
            let end = self.told_of_disk(node);
            let disk = &mut self.disks[node - REPLICAS];
            disk.copy = Some(Copy { files: disk.files.clone(), end, older_since_ns: None });
        }
    }

    /// Cuts the power of a replica, or of all, and puts the copy in the place of its directory. If
    /// the difference is so recent that the controller was not told of it, the copy could not be
    /// told from the directory, which therefore stays.
    pub(super) fn put_back(&mut self, node: usize, for_ns: u64, others_ns: u64) {
        if matches!(self.slots[node].role, Role::Dead) {
            return;
        }
        if others_ns > 0 {
            let others = REPLICAS..REPLICAS + self.replicas;
            others.filter(|n| *n != node).for_each(|other| self.cut_power(other, others_ns));
        }
        self.cut_power(node, for_ns);
        if self.keeps(node) {
            let now_ns = self.world.now_ns;
            let disk = &mut self.disks[node - REPLICAS];
            let copy = disk.copy.take();
            let is_told = |copy: &Copy| {
                copy.older_since_ns.is_some_and(|since_ns| now_ns - since_ns >= TOLD_NS)
            };
            if let Some(copy) = copy.filter(is_told) {
                (disk.files, disk.under_way) = (copy.files, None);
            }
        }
    }

    /// Cuts the power of a replica, and restores it some time later.
    pub(super) fn cut_power(&mut self, node: usize, for_ns: u64) {
        if matches!(self.slots[node].role, Role::Dead) {
            return;
        }
        let is_broken =
            self.slots[node].engine_lost && self.keeps(node) && self.disks[node - REPLICAS].fails;
        self.retire_counters(node);
        self.disks[node - REPLICAS].incarnation += 1;
        self.slots[node] = Slot {
            retiring_for_ns: Some(for_ns),
            engine_lost: is_broken,
            // What makes the replica look dead goes on.
            troubled_until_ns: self.slots[node].troubled_until_ns,
            ..Slot::new(Role::Dead)
        };
        self.trouble(node, for_ns);
        self.world.push(self.world.now_ns + for_ns, Event::Start { node });
    }
}
