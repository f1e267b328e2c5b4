//! The state of this replica's disk, and the messages that wait for it (trap T7;
//! docs/operate/durability.md has the table of which data is durable before which message).
//!
//! The replica puts every record into the journal as it takes it, and passes it on at once. Whoever
//! hosts it writes what has gathered, one batch at a time, and says when that is durable. A replica
//! without a disk has a journal that is off: everything counts as durable at once, and nothing is
//! gathered.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use concord_core::machine::Persist;
use concord_core::{Duration, Guard, Guards, Instant, MS, NodeId, Position, SEC};
use concord_log::{Batch, Marks, Origin, PART_BYTES_MAX, Part, TooLong, ViewMarks};
use concord_wire::control::{Config, DataDir, LogEnd};

use crate::early::Parts;
use crate::parts::{PART_RESULTS, PART_TABLE};

mod pieces;

/// What the disk has makes no sense to this replica, though every byte is what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEntry;

/// Bytes of log behind the beginning of the newest snapshot after which another one begins.
pub const SNAPSHOT_EVERY_BYTES: u64 = 128 << 20;
/// Members' snapshots are apart by this much of the log between two, times a node's number: the
/// golden section, so that no two of a few are close.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// What has gathered for the disk by then is enough.
const GATHERED_BYTES_MAX: usize = 4 << 20;
/// A snapshot goes on later when more has gathered than this share of the log between two snapshots
/// (1 MiB): what gathers in one piece is moved when it grows, and the loop waits for that.
const GATHERED_BEFORE_PARTS: u64 = 128;
/// Most memory that is kept for the next batch.
const REUSED_BYTES_MAX: usize = 8 << 20;
/// No record is taken while so much waits for the disk: it has no room, or stands still.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// A disk, as the replica knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskState {
    /// The directory's number.
    pub storage: u64,
    /// The state was there at the start, or it was a new directory: nothing that was synced was
    /// lost.
    pub is_intact: bool,
    /// What stands there beside the data, of this start.
    pub marks: Marks,
    /// Bytes of log after which another snapshot begins.
    pub snapshot_every_bytes: u64,
    /// Records may be missing at the end that an earlier start had acknowledged.
    pub owed: bool,
    /// Nothing that is acknowledged waits for the disk: it is synced now and then.
    pub acks_early: bool,
}

/// How long records gather that nobody waits for: with the sync itself, and the heartbeat that ends
/// the wait, about a second.
pub const INTERVAL_NS: Duration = 800 * MS;
/// After so long, since the group before is still on its way to the disk, nothing more is taken
/// until both are there: with [`INTERVAL_NS`], what may be lost was acknowledged within two
/// seconds.
const LATE_NS: Duration = 1_200 * MS;

/// Most time between two looks at the disk that counts.
const LOOK_NS_MAX: Duration = SEC;
/// A disk is slow whose syncs take more than this share of a lease.
const SLOW_SHARE: u64 = 8;
/// So many syncs one after the other an election takes, in half of the patience with it.
const SYNCS: u64 = 3;
const SLOW_NS_MAX: Duration = 10 * SEC;
/// A disk is as slow as the second fastest of so many syncs: one that hung twice is not slow.
const SYNCS_SEEN: usize = 4;

/// How far a snapshot of the own state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot {
    number: u64,
    /// The part that is taken next, or is being made, when nothing is left of objects.
    part: u64,
    /// The cursor of what is left of objects of which pieces were written: it comes first.
    rest: Option<u64>,
    /// As of which position, while it is being made.
    made_at: Option<Position>,
}

/// Where a configuration that was heard of is on its way to the disk.
#[derive(Clone, Debug)]
struct Waiting {
    config: Config,
    is_handed_out: bool,
}

/// The journal of a replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    /// `None`: nothing is kept.
    kept: Option<DiskState>,
    /// The state that is here is what a rack begins with, of which nothing was heard yet.
    origin: Option<Origin>,
    is_dead: bool,
    /// What has gathered.
    batch: Batch,
    /// How many batches were handed out and became durable, and how many there will be with what
    /// has gathered.
    handed_out: u64,
    durable_batches: u64,
    /// Where the log ends with the batch that is under way.
    under_way: Position,
    /// Up to where the own log is durable.
    durable: Position,
    /// A member of the epoch waits for its disk, be it this one or another.
    is_group_waited_for: bool,
    /// Up to where the log of every member before this one is, as they said (chain, CRAQ).
    before: Position,
    /// Up to where the one that comes next was told that it is durable, up to where it has heard,
    /// and when to say so again.
    told: Position,
    confirmed: Position,
    tell_again_at: Option<Instant>,
    /// The batch with which a copied state is complete.
    copied_in: u64,
    /// And with which the last epoch is noted in which all that was agreed is here.
    held_in: u64,
    waiting: Option<Waiting>,
    /// Memory for the batch that comes next.
    spare: Option<Batch>,
    snapshots: u64,
    /// The newest snapshot that was asked for since something on the disk is damaged.
    renewal: u64,
    /// Whose it is.
    node: NodeId,
    /// Which of them is a copy that is being installed, or the last that was.
    copied_as: u64,
    snapshot: Option<Snapshot>,
    /// What was copied early for it and is not written yet.
    early: Parts,
    /// Early parts that are to be written behind what is left of objects, and their bytes.
    early_waiting: VecDeque<(Position, Vec<u8>)>,
    early_waiting_bytes: usize,
    /// Snapshots that were given up because a part was too long.
    refused: u64,
    /// The engine still makes a part of a snapshot that was given up.
    is_owed: bool,
    /// A snapshot was given up: the engine may hold objects of it that were under way.
    has_left_objects: bool,
    /// Bytes of log since the beginning of the newest snapshot.
    log_bytes: u64,
    /// Bytes of snapshots in what has gathered.
    part_bytes: usize,
    /// VR: up to where the log is known to be committed, and up to where the disk is told that.
    committed: Position,
    said_committed: Position,
    /// VR: the batch with which the newest promises are durable.
    promised_in: u64,
    /// Where nothing that is acknowledged waits for the disk: since when records gather, and
    /// whether the batch is to be written now.
    gathers_since: Option<Instant>,
    is_due: bool,
    /// The newest batch that gathered for too long: nothing more is taken before it is durable.
    late_in: u64,
    /// For how long the group that is under way is on its way, and when that was looked at.
    silent_ns: Duration,
    looked_at: Option<Instant>,
    /// How long each of the newest groups was on its way.
    syncs_ns: [Option<Duration>; SYNCS_SEEN],
    /// The disk has no room.
    is_short: bool,
    /// What was there was given up, and nothing was written since that a state could begin with.
    is_empty_after_reset: bool,
}

impl Journal {
    /// Everything is kept from now on, behind `end`, up to where the disk has it.
    pub(crate) fn keep(&mut self, node: NodeId, kept: DiskState, end: Position, log_bytes: u64) {
        self.node = node;
        let is_intact = kept.is_intact;
        debug_assert!(kept.marks.owes == (kept.owed || kept.acks_early));
        if kept.marks.config.is_some() || !is_intact {
            self.origin = None;
        }
        self.snapshots = kept.marks.run << 32;
        self.kept = Some(kept);
        self.durable = end;
        self.under_way = end;
        self.log_bytes = log_bytes;
        if !is_intact {
            // What is left there of a copy that never was whole is nothing that anything follows.
            self.reset(Guards::ALL);
        }
    }

    /// What was gone through is what a rack begins with.
    pub(crate) fn begin_with(&mut self, origin: Origin) {
        self.origin = Some(origin);
    }

    /// What the rack begins with, if it has not begun here yet.
    pub(crate) fn origin(&self) -> Option<Origin> {
        self.origin
    }

    /// Whether an earlier start acknowledged records that may be missing here.
    pub(crate) fn is_owed(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.owed)
    }

    /// Whether anything is kept.
    pub(crate) fn is_on(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether the disk failed.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// The disk failed: nothing becomes durable any more.
    pub(crate) fn die(&mut self) {
        self.is_dead = true;
        self.batch.clear();
    }

    /// The directory, and the run on it, if anything is kept.
    pub(crate) fn data_dir(&self) -> Option<DataDir> {
        self.kept.as_ref().map(|kept| DataDir { id: kept.storage, run: kept.marks.run })
    }

    /// Whether all that was ever synced, or acknowledged, was there at this start, if anything is
    /// kept.
    pub(crate) fn is_intact(&self) -> Option<bool> {
        self.kept.as_ref().map(|kept| kept.is_intact && !kept.owed)
    }

    /// Whether records wait for the disk before anything is acknowledged that comes of them.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.acks_early)
    }

    /// Up to where the own log counts as durable.
    pub(crate) fn durable(&self) -> Position {
        if self.is_waited_for() { self.durable } else { Position(u64::MAX) }
    }

    /// Up to where the logs of all members before this one do, as far as is known.
    pub(crate) fn before(&self) -> Position {
        if self.is_group_waited_for { self.before } else { Position(u64::MAX) }
    }

    /// Whether what is executed may not be committed yet, for a disk here or at another member.
    pub(crate) fn delays_commits(&self) -> bool {
        self.is_on() || self.is_group_waited_for
    }

    /// Whether the disk has room.
    pub(crate) fn set_short(&mut self, is_short: bool) {
        self.is_short = is_short;
    }

    /// Whether the disk has no room.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Bytes that wait for the disk.
    #[cfg(test)]
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.batch.len()
    }

    /// Whether the disk is late with what it was given: nothing more is taken.
    pub(crate) fn is_late(&self, guards: Guards) -> bool {
        self.is_stuffed() && guards.on(Guard::JournalRoom)
    }

    /// Whether as much waits for the disk as may, or for as long.
    fn is_stuffed(&self) -> bool {
        self.batch.len() > WAITING_BYTES_MAX || self.durable_batches < self.late_in
    }

    /// Time passed: what has gathered for long enough is to be written.
    pub(crate) fn pass(&mut self, now: Instant) {
        self.look_at_disk(now);
        if self.batch.is_empty() {
            self.gathers_since = None;
        } else {
            let since = *self.gathers_since.get_or_insert(now);
            self.is_due |= now.since(since) >= INTERVAL_NS;
            if !self.is_waited_for() && now.since(since) >= LATE_NS {
                self.late_in = self.handed_out + 1;
            }
        }
    }

    /// A disk without room tries again by itself, and is not silent.
    fn look_at_disk(&mut self, now: Instant) {
        let waits = self.durable_batches < self.handed_out && !self.is_short;
        let before = self.looked_at.replace(now).filter(|_| waits);
        if !waits {
            (self.silent_ns, self.looked_at) = (0, None);
        } else if let Some(before) = before {
            // Whoever slept did not listen meanwhile.
            self.silent_ns += now.since(before).min(LOOK_NS_MAX);
        }
    }

    /// Whether the disk owes an answer for so long that the replica is of no use to its group. In a
    /// group whose disks all hang the replicas give up one after the other, by their `rank`, and
    /// the last one stays.
    pub(crate) fn is_hung(&self, silence_max_ns: Duration, rank: u64) -> bool {
        self.silent_ns >= silence_max_ns + rank * silence_max_ns / 2
    }

    /// By how much longer than with a fast disk an election or a view change may take: each of its
    /// steps waits for a sync. One that is under way does not count: a disk that hangs is not slow,
    /// and whoever is patient with it would stay so for long after.
    pub(crate) fn slow_ns(&self, lease_ns: Duration) -> Duration {
        let mut seen_ns = self.syncs_ns;
        seen_ns.sort_unstable_by_key(|ns| ns.unwrap_or(Duration::MAX));
        // Of one or two the fastest, of more the second.
        let usual_ns = seen_ns[usize::from(seen_ns[2].is_some())].unwrap_or(0);
        if usual_ns * SLOW_SHARE < lease_ns { 0 } else { (usual_ns * SYNCS).min(SLOW_NS_MAX) }
    }

    /// The process ends in order, and acknowledges nothing any more: with what has gathered nothing
    /// is owed.
    pub(crate) fn close(&mut self) {
        if self.kept.as_ref().is_some_and(|kept| kept.acks_early && !kept.owed) {
            self.marks(|marks| marks.owes = false);
            self.is_due = true;
        }
    }

    /// Whether all that was copied is durable.
    pub(crate) fn has_copied(&self) -> bool {
        !self.is_on() || self.durable_batches >= self.copied_in
    }

    /// An epoch opens, in which a member waits for its disk or none does: nothing is known of those
    /// before this one, if there are any.
    pub(crate) fn open(&mut self, is_first: bool, is_group_waited_for: bool) {
        self.is_group_waited_for = is_group_waited_for;
        self.before = if is_first { Position(u64::MAX) } else { Position(0) };
        (self.told, self.confirmed) = (Position(0), Position(0));
        self.tell_again_at = None;
    }

    /// A member before this one said up to where all logs from the first on are durable.
    pub(crate) fn hear_before(&mut self, durable: Position) {
        self.before = self.before.max(durable);
    }

    /// The one that comes next has heard that all logs up to here are durable up to there.
    pub(crate) fn confirm(&mut self, durable: Position) {
        self.confirmed = self.confirmed.max(durable);
    }

    /// What the one that comes next is to be told now, and again `again_ns` later if it does not
    /// say that it heard.
    pub(crate) fn tell(&mut self, now: Instant, again_ns: u64) -> Option<Position> {
        let durable = self.durable().min(self.before());
        if !self.is_group_waited_for || durable <= self.confirmed {
            self.tell_again_at = None;
            return None;
        }
        let is_again = self.tell_again_at.is_none_or(|at| now >= at);
        if durable <= self.told && !is_again {
            return None;
        }
        self.told = durable;
        self.tell_again_at = Some(now.after(again_ns));
        Some(durable)
    }

    /// When to say it again.
    pub(crate) fn tell_at(&self) -> Instant {
        self.tell_again_at.unwrap_or(Instant::NEVER)
    }

    /// A record took its place in the log.
    pub(crate) fn record(&mut self, record: Option<&[u8]>) {
        let Some(record) = record.filter(|_| self.is_on() && !self.is_dead) else { return };
        self.is_empty_after_reset = false;
        self.batch.record(record);
    }

    /// A record between the parts of a snapshot cannot be executed by whoever has some of the keys
    /// only, and what it touches was not copied early: nobody could begin with that. Another one
    /// begins when an eighth of the log has gathered that one begins after.
    pub(crate) fn postpone_snapshot(&mut self) {
        if self.snapshot.is_none() {
            return;
        }
        self.end_snapshot();
        let every_bytes = self.kept.as_ref().map_or(0, |kept| kept.snapshot_every_bytes);
        self.log_bytes = self.due_bytes() - every_bytes / 8;
    }

    /// Bytes of log after which the next snapshot begins: from half of what was asked for to one
    /// and a half, so that the members of a group take theirs at different positions.
    fn due_bytes(&self) -> u64 {
        let every_bytes = self.kept.as_ref().map_or(0, |kept| kept.snapshot_every_bytes);
        let nth = u64::from(self.node.0).wrapping_add(self.snapshots);
        let share = u128::from(nth.wrapping_mul(SPREAD) >> 32);
        every_bytes / 2 + ((u128::from(every_bytes) * share) >> 32) as u64
    }

    fn marks(&mut self, change: impl FnOnce(&mut Marks)) {
        if let Some(kept) = self.kept.as_mut().filter(|_| !self.is_dead) {
            change(&mut kept.marks);
            self.batch.marks(&kept.marks);
        }
    }

    /// All that was agreed in that epoch is here: what an earlier start owed, too.
    pub(crate) fn hold(&mut self, epoch: u32) {
        let is_known = |kept: &DiskState| kept.marks.held_epoch == epoch && !kept.owed;
        if self.kept.as_ref().is_some_and(|kept| !is_known(kept)) {
            self.settle_debt();
            self.marks(|marks| marks.held_epoch = epoch);
            self.held_in = self.handed_out + 1;
            self.is_due = true;
        }
    }

    /// Whether the disk has what was noted last of that ([`Journal::hold`]).
    pub(crate) fn has_held(&self) -> bool {
        !self.is_on() || self.durable_batches >= self.held_in
    }

    /// Whatever an earlier start acknowledged is here, or given up.
    fn settle_debt(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.owed = false;
            kept.marks.owes = kept.acks_early;
        }
    }

    /// What is here is given up.
    pub(crate) fn reset(&mut self, guards: Guards) {
        if !self.is_on() || self.is_dead {
            return;
        }
        self.batch.reset();
        (self.is_due, self.is_empty_after_reset) = (true, true);
        self.marks(|marks| marks.held_epoch = 0);
        self.lower(Position(0), guards);
        (self.committed, self.said_committed) = (Position(0), Position(0));
        self.end_snapshot();
        self.log_bytes = 0;
    }

    /// VR: what is behind `end` in the log is given up.
    pub(crate) fn cut(&mut self, end: LogEnd, guards: Guards) {
        if self.is_on() && !self.is_dead {
            self.batch.cut(end);
            self.lower(Position(end.position), guards);
        }
    }

    /// What comes behind `end` now is not on the disk, as what was there before.
    fn lower(&mut self, end: Position, guards: Guards) {
        if guards.on(Guard::DurableCut) {
            (self.durable, self.under_way) = (self.durable.min(end), self.under_way.min(end));
        }
    }

    /// VR: the log is known to be committed up to there. The disk is told with what is written
    /// next.
    pub(crate) fn commit(&mut self, committed: Position) {
        self.committed = committed;
    }

    /// VR: what the replica promises, and relies on, is to be durable before it says anything that
    /// comes of it: [`Journal::has_promised`].
    pub(crate) fn promise(&mut self, view: Option<ViewMarks>, vote: u16, config: Option<&Config>) {
        let is_known = |kept: &DiskState| {
            kept.marks.view == view
                && kept.marks.vote == vote
                && kept.marks.config.as_ref() == config
                && !(kept.owed && view.is_some())
        };
        if self.kept.as_ref().is_none_or(is_known) || self.is_dead {
            return;
        }
        if view.as_ref().is_some_and(|view| view.last_normal > 0) && self.is_empty_after_reset {
            // The log of that view is here, and has no record yet.
            self.is_empty_after_reset = false;
            self.batch.cut(LogEnd::default());
        }
        if view.is_some() {
            self.settle_debt();
        }
        if config.is_some() {
            self.origin = None;
        }
        let config = config.cloned();
        self.marks(|marks| (marks.view, marks.vote, marks.config) = (view, vote, config));
        self.promised_in = self.handed_out + 1;
        self.is_due = true;
    }

    /// VR: whether all that was promised is durable.
    pub(crate) fn has_promised(&self) -> bool {
        !self.is_on() || (self.durable_batches >= self.promised_in && !self.is_dead)
    }

    /// A configuration was heard of that is to be durable before anything is made of it. Whether it
    /// has to wait for that.
    pub(crate) fn wait_for(&mut self, config: &Config) -> bool {
        if !self.is_on() || self.is_dead {
            return false;
        }
        self.origin = None;
        if self.waiting.as_ref().is_none_or(|waiting| waiting.config.epoch < config.epoch) {
            self.marks(|marks| marks.config = Some(config.clone()));
            self.waiting = Some(Waiting { config: config.clone(), is_handed_out: false });
            self.is_due = true;
        }
        true
    }

    /// What is to be written, if the batch before is durable: then call [`Journal::persisted`].
    pub(crate) fn poll(&mut self, end: Position) -> Option<Persist<Batch>> {
        let is_under_way = self.durable_batches < self.handed_out;
        let is_due = self.is_due || self.is_waited_for() || self.batch.len() > GATHERED_BYTES_MAX;
        if is_under_way || self.batch.is_empty() || self.is_dead || !is_due {
            return None;
        }
        (self.is_due, self.gathers_since) = (false, None);
        if self.committed > self.said_committed {
            self.said_committed = self.committed;
            self.batch.committed(self.committed.0);
        }
        self.handed_out += 1;
        self.under_way = end;
        let part_bytes = core::mem::take(&mut self.part_bytes);
        self.log_bytes += self.batch.len().saturating_sub(part_bytes) as u64;
        if let Some(waiting) = &mut self.waiting {
            waiting.is_handed_out = true;
        }
        let next = self.spare.take().unwrap_or_default();
        Some(Persist { number: self.handed_out, what: core::mem::replace(&mut self.batch, next) })
    }

    /// What was handed out, and whose memory is of use: memory that was never touched costs the
    /// loop more than all it puts there.
    pub(crate) fn reuse(&mut self, mut batch: Batch) {
        if batch.capacity() <= REUSED_BYTES_MAX {
            batch.clear();
            self.spare = Some(batch);
        }
    }

    /// What was handed out is durable; the configuration that waited for that.
    pub(crate) fn persisted(&mut self, number: u64) -> Option<Config> {
        if number != self.handed_out {
            return None;
        }
        self.durable_batches = number;
        self.syncs_ns.rotate_left(1);
        self.syncs_ns[SYNCS_SEEN - 1] = Some(self.silent_ns);
        (self.silent_ns, self.looked_at) = (0, None);
        self.durable = self.durable.max(self.under_way);
        let waiting = self.waiting.take_if(|waiting| waiting.is_handed_out)?;
        Some(waiting.config)
    }

    /// A part of a state that is being copied from another replica was installed.
    pub(crate) fn copied(&mut self, part: &Part<'_>) {
        if !self.is_on() || self.is_dead {
            return;
        }
        if part.is_first {
            self.snapshots += 1;
            self.copied_as = self.snapshots;
        }
        if self.put(&Part { snapshot: self.copied_as, ..*part }).is_err() {
            // What is copied cannot be kept: whoever sent it has no such bound.
            return self.die();
        }
        if part.is_last {
            self.copied_in = self.handed_out + 1;
            self.is_due = true;
        }
    }

    fn put(&mut self, part: &Part<'_>) -> Result<(), TooLong> {
        if part.bytes.len() > PART_BYTES_MAX {
            return Err(TooLong { bytes: part.bytes.len() });
        }
        if part.is_first {
            (self.log_bytes, self.is_empty_after_reset) = (0, false);
            // Who begins with this part knows no more.
            self.said_committed = Position(part.position);
            // What is before goes once the snapshot is whole.
            if let Some(kept) = &self.kept {
                self.batch.marks(&kept.marks);
            }
        }
        self.batch.part(part)?;
        self.part_bytes += part.bytes.len();
        Ok(())
    }

    /// What stands on the disk is damaged: another snapshot is to take the place of all before. If
    /// the last one was such a snapshot, the next one waits for some more log: where none can be
    /// read back, none goes, and they would fill the disk.
    pub(crate) fn renew(&mut self) {
        if self.renewal != 0 && self.renewal == self.snapshots {
            let every_bytes = self.kept.as_ref().map_or(0, |kept| kept.snapshot_every_bytes);
            return self.log_bytes = self.log_bytes.max(self.due_bytes() - every_bytes / 8);
        }
        self.renewal = self.snapshots + 1;
        self.log_bytes = self.log_bytes.max(self.due_bytes());
    }

    /// The number of the part of a snapshot that is to be taken now, if one is.
    pub(crate) fn part_wanted(&mut self) -> Option<u64> {
        let every_bytes = self.kept.as_ref()?.snapshot_every_bytes;
        let is_enough = self.batch.len() as u64 > every_bytes / GATHERED_BEFORE_PARTS;
        self.is_due |= is_enough && self.snapshot.is_some();
        let has_to_wait = self.is_short || is_enough;
        if self.is_dead || self.is_owed || has_to_wait {
            return None;
        }
        match self.snapshot {
            None => (self.log_bytes >= self.due_bytes()).then_some(PART_TABLE),
            Some(snapshot) => snapshot.made_at.is_none().then(|| snapshot.wanted()),
        }
    }

    /// That part is being made, as of `position`. With the first one a snapshot begins: not before,
    /// since whoever is asked for it may not be ready, and copy another one's state first.
    pub(crate) fn begin_part(&mut self, position: Position) {
        let begun = self.snapshot.get_or_insert_with(|| {
            self.snapshots += 1;
            Snapshot { number: self.snapshots, part: PART_TABLE, rest: None, made_at: None }
        });
        begun.made_at = Some(position);
    }

    /// As of which position the part `number` is being made.
    pub(crate) fn part_position(&mut self, number: u64) -> Option<Position> {
        if core::mem::take(&mut self.is_owed) {
            return None;
        }
        self.snapshot.filter(|s| s.wanted() == number)?.made_at
    }

    /// That part is made; `next` is the cursor behind it, if there is more.
    pub(crate) fn end_part(&mut self, end: LogEnd, bytes: &[u8], next: Option<u64>) {
        if let Some(part) = self.early.flush() {
            self.put_early(part);
        }
        let Some(snapshot) = &mut self.snapshot else { return };
        let begun = *snapshot;
        snapshot.made_at = None;
        let part = Part {
            snapshot: snapshot.number,
            number: snapshot.wanted(),
            position: end.position,
            hash: end.hash,
            is_first: snapshot.part == 0,
            is_last: next.is_none(),
            bytes,
        };
        match next {
            Some(next) => snapshot.lead_to(next),
            None => self.snapshot = None,
        }
        if self.put(&part).is_err() {
            // The log is as it was, and goes on; another one is tried later.
            self.snapshot = Some(Snapshot { made_at: None, ..begun });
            return self.refuse_snapshot();
        }
        self.put_waiting();
    }

    /// Whether a snapshot was given up since this was asked last.
    pub(crate) fn take_left_objects(&mut self) -> bool {
        core::mem::take(&mut self.has_left_objects)
    }

    /// Whether a snapshot of the own state is under way.
    pub(crate) fn is_snapshotting(&self) -> bool {
        self.snapshot.is_some()
    }

    /// A snapshot that is not whole is given up; another one begins.
    pub(crate) fn end_snapshot(&mut self) {
        self.early.clear();
        (self.early_waiting, self.early_waiting_bytes) = (VecDeque::new(), 0);
        if let Some(snapshot) = self.snapshot.take() {
            self.has_left_objects = true;
            self.is_owed |= snapshot.made_at.is_some();
            self.log_bytes = self.log_bytes.max(self.due_bytes());
        }
    }
}

/// A part that came, for the disk.
pub(crate) fn part(end: LogEnd, number: u64, bytes: &[u8]) -> Part<'_> {
    Part {
        snapshot: 0,
        number,
        position: end.position,
        hash: end.hash,
        is_first: number == PART_TABLE,
        is_last: number == PART_RESULTS,
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use concord_log::{Entry, Identity, Writer, entries};

    use super::*;

    const STORAGE: u64 = 7;
    pub(super) const EVERY_BYTES: u64 = 1 << 20;
    pub(super) const NODE: NodeId = NodeId(1);
    pub(super) const NOTHING: LogEnd = LogEnd { position: 1, hash: 2 };

    /// Nobody waits for what it writes.
    pub(super) fn journal() -> Journal {
        let kept = DiskState {
            storage: STORAGE,
            is_intact: true,
            marks: Marks { owes: true, ..Marks::default() },
            snapshot_every_bytes: EVERY_BYTES,
            owed: false,
            acks_early: true,
        };
        let mut journal = Journal::default();
        journal.keep(NODE, kept, Position(1), EVERY_BYTES);
        journal.log_bytes = journal.due_bytes();
        journal
    }

    /// The names and numbers of the parts of a batch.
    pub(super) fn parts(mut batch: Batch) -> Vec<(u64, u64)> {
        let mut writer = Writer::new(Identity { storage: STORAGE, node: 1, engine: None }, 1, 1);
        let mut file = Vec::new();
        writer.begin_segment(&mut file);
        writer.seal(batch.bytes());
        file.extend_from_slice(batch.bytes());
        let of = |entry| match entry {
            (_, Entry::Part(part)) => Some((part.snapshot, part.number)),
            _ => None,
        };
        entries(STORAGE, 1, &file, 0).filter_map(of).collect()
    }

    /// A snapshot of the own state was wanted while another's was being copied, and the copy went
    /// on under its name: once it was whole all segments went that stood before the other's first
    /// part, that of the copy too.
    #[test]
    fn bug_19_15_a_copy_keeps_its_name_while_a_snapshot_is_wanted() {
        let mut journal = journal();
        journal.copied(&part(NOTHING, PART_TABLE, b"table"));
        journal.renew();
        assert_eq!(journal.part_wanted(), Some(PART_TABLE));
        journal.copied(&part(NOTHING, PART_RESULTS, b"results"));
        let copy = journal.poll(Position(1)).unwrap();
        assert_eq!(parts(copy.what), [(1, PART_TABLE), (1, PART_RESULTS)]);
        journal.persisted(copy.number);
        journal.begin_part(Position(1));
        journal.end_part(NOTHING, b"table", Some(0));
        journal.is_due = true;
        assert_eq!(parts(journal.poll(Position(1)).unwrap().what), [(2, PART_TABLE)]);
    }

    /// Where no snapshot could be read back, the next one began at once, until the disk was full.
    #[test]
    fn bug_22_140_snapshots_after_damage_are_apart() {
        let mut journal = journal();
        let snapshot = |journal: &mut Journal| {
            let number = journal.part_wanted()?;
            journal.begin_part(Position(0));
            journal.end_snapshot();
            (journal.is_owed, journal.log_bytes) = (false, 0);
            Some(number)
        };
        journal.renew();
        assert_eq!(snapshot(&mut journal), Some(PART_TABLE), "the first one at once");
        journal.renew();
        assert_eq!(journal.part_wanted(), None);
        let (due, every) = (journal.due_bytes(), EVERY_BYTES);
        assert_eq!(journal.log_bytes, due - every / 8, "an eighth later");
        journal.log_bytes = due;
        assert_eq!(snapshot(&mut journal), Some(PART_TABLE));
        journal.renew();
        assert!(journal.log_bytes >= journal.due_bytes(), "the last one was of the usual kind");
    }

    /// Where the disk stood still nothing bounded what was acknowledged and on no disk.
    #[test]
    fn bug_19_23_unwritten_backlog_is_about_a_second() {
        let mut journal = journal();
        let at = |ms: u64| Instant(SEC + ms * MS);
        journal.record(Some(b"a record"));
        journal.pass(at(0));
        journal.pass(at(800));
        let first = journal.poll(Position(2)).unwrap();
        journal.record(Some(b"a record"));
        journal.pass(at(900));
        journal.pass(at(2_099));
        assert!(!journal.is_stuffed() && journal.poll(Position(3)).is_none());
        journal.pass(at(2_100));
        assert!(journal.is_stuffed(), "nothing more is taken");
        journal.persisted(first.number);
        let second = journal.poll(Position(3)).unwrap();
        journal.pass(at(5_000));
        assert!(journal.is_stuffed(), "before that is durable, too");
        journal.persisted(second.number);
        assert!(!journal.is_stuffed());
    }

    /// A disk had no limit: as long as it hung, nothing was committed behind it.
    #[test]
    fn bug_22_5_a_disk_that_owes_a_group_for_too_long_hangs() {
        let mut journal = journal();
        journal.record(Some(b"a record"));
        journal.is_due = true;
        let number = journal.poll(Position(2)).unwrap().number;
        let limit = 10 * SEC;
        let mut at = SEC;
        let pass_to = |journal: &mut Journal, at: &mut u64, end: u64| {
            while *at <= end {
                journal.pass(Instant(*at));
                *at += 50 * MS;
            }
        };
        pass_to(&mut journal, &mut at, 10 * SEC);
        assert!(!journal.is_hung(limit, 0));
        pass_to(&mut journal, &mut at, 11 * SEC);
        assert!(journal.is_hung(limit, 0) && !journal.is_hung(limit, 1), "one after the other");
        pass_to(&mut journal, &mut at, 16 * SEC);
        assert!(journal.is_hung(limit, 1));
        journal.set_short(true);
        journal.pass(Instant(at));
        assert!(!journal.is_hung(limit, 0), "it has no room, and tries again");
        journal.set_short(false);
        pass_to(&mut journal, &mut at, 20 * SEC);
        // A replica that slept did not listen.
        journal.pass(Instant(at + 3_600 * SEC));
        assert!(!journal.is_hung(limit, 0));
        journal.persisted(number);
        journal.pass(Instant(at + 3_700 * SEC));
        assert!(!journal.is_hung(MS, 0));
    }

    /// Where a sync took 0.4 s every view change and every election was given up before its steps
    /// were durable.
    #[test]
    fn bug_22_6_patience_follows_the_time_that_syncs_take() {
        let (mut journal, lease_ns) = (journal(), SEC);
        let mut at = SEC;
        let sync = |journal: &mut Journal, at: &mut u64, takes: u64| {
            journal.record(Some(b"a record"));
            journal.is_due = true;
            let number = journal.poll(Position(2)).unwrap().number;
            let end = *at + takes;
            while *at <= end {
                journal.pass(Instant(*at));
                *at += 10 * MS;
            }
            journal.persisted(number);
        };
        sync(&mut journal, &mut at, 50 * MS);
        assert_eq!(journal.slow_ns(lease_ns), 0, "as with a fast disk");
        sync(&mut journal, &mut at, 60 * SEC);
        assert_eq!(journal.slow_ns(lease_ns), 0, "it hung once");
        (0..4).for_each(|_| sync(&mut journal, &mut at, 400 * MS));
        assert_eq!(journal.slow_ns(lease_ns), SYNCS * 400 * MS);
        (0..3).for_each(|_| sync(&mut journal, &mut at, 0));
        assert_eq!(journal.slow_ns(lease_ns), 0, "it is fast again");
        (0..4).for_each(|_| sync(&mut journal, &mut at, 60 * SEC));
        assert_eq!(journal.slow_ns(lease_ns), SLOW_NS_MAX);
    }

    /// What was durable is given up, and other records take its place: how much of them counts as
    /// durable before they are written.
    fn durable_after(gives_up: fn(&mut Journal, Guards), guards: Guards) -> Position {
        let mut journal = journal();
        journal.kept.as_mut().unwrap().acks_early = false;
        journal.record(Some(b"a record"));
        let number = journal.poll(Position(5)).unwrap().number;
        journal.persisted(number);
        assert_eq!(journal.durable(), Position(5));
        gives_up(&mut journal, guards);
        journal.record(Some(b"another one"));
        journal.durable()
    }

    /// A follower would acknowledge what its disk does not have.
    #[test]
    fn t7_records_given_up_are_durable_no_more() {
        let cut: fn(&mut Journal, Guards) = |journal, guards| {
            journal.cut(LogEnd { position: 3, hash: 2 }, guards);
        };
        let reset: fn(&mut Journal, Guards) = |journal, guards| journal.reset(guards);
        assert_eq!(durable_after(cut, Guards::ALL), Position(3));
        assert_eq!(durable_after(reset, Guards::ALL), Position(0));
        #[cfg(feature = "mutants")]
        for gives_up in [cut, reset] {
            assert_eq!(durable_after(gives_up, Guards::without(Guard::DurableCut)), Position(5));
        }
    }

    /// A snapshot begins once the log has grown enough unless something keeps it.
    #[test]
    fn snapshot_begins_when_the_log_has_grown() {
        let wanted = |keeps: fn(&mut Journal)| {
            let mut journal = journal();
            journal.log_bytes = journal.due_bytes();
            keeps(&mut journal);
            journal.part_wanted()
        };
        assert_eq!(wanted(|_| ()), Some(PART_TABLE));
        assert_eq!(wanted(|journal| journal.log_bytes -= 1), None);
        assert_eq!(wanted(|journal| journal.is_dead = true), None, "the disk failed");
        assert_eq!(
            wanted(|journal| journal.is_short = true),
            None,
            "there is no space on the disk"
        );
        // One was given up while the engine made a part of it: that one comes first, and is of no
        // use.
        let given_up = |journal: &mut Journal| {
            journal.begin_part(Position(1));
            journal.end_snapshot();
        };
        assert_eq!(wanted(given_up), None);
        let mut journal = journal();
        given_up(&mut journal);
        assert_eq!(journal.part_position(PART_TABLE), None);
        assert_eq!(journal.part_wanted(), Some(PART_TABLE));
    }

    /// A snapshot waits until what has gathered is written and that is soon.
    #[test]
    fn snapshot_waits_for_the_backlog() {
        let mut journal = journal();
        journal.begin_part(Position(1));
        journal.end_part(NOTHING, &[0; (EVERY_BYTES / GATHERED_BEFORE_PARTS) as usize], Some(0));
        assert_eq!(journal.part_wanted(), None);
        let batch = journal.poll(Position(1)).unwrap();
        journal.reuse(batch.what);
        journal.persisted(batch.number);
        assert_eq!(journal.part_wanted(), Some(1));
        journal.begin_part(Position(1));
        journal.end_part(NOTHING, b"objects", None);
        journal.is_due = true;
        let last = journal.poll(Position(1)).unwrap().what;
        assert_eq!((parts(last.clone()), last.ends_snapshot()), (vec![(1, 1)], Some(1)));
    }
}
