//! The state of this replica's disk, and the messages that wait for it (trap T7;
//! docs/operate/durability.md has the table of which data is durable before which message).
//!
//! The replica puts every record into the journal when it accepts it, and passes it on at once. Its
//! host writes the gathered data, one batch at a time, and reports when a batch is durable. The
//! journal of a replica without a disk is off: everything counts as durable at once, and nothing is
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

/// An entry of the log on disk is not possible for this replica, although it was read as it was
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEntry;

/// The number of bytes of log since the beginning of a snapshot after which the next one begins.
pub const SNAPSHOT_EVERY_BYTES: u64 = 128 << 20;
/// A member's snapshots are offset by this fraction of the interval, times its node number. It is
/// the golden ratio, so that no two of a few members are close.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// A group of this many gathered bytes is written without waiting longer.
const GATHERED_BYTES_MAX: usize = 4 << 20;
/// A snapshot pauses while more than this fraction of the log between two snapshots (1 MiB) has
/// gathered: a growing buffer is copied, and the event loop waits for that.
const GATHERED_BEFORE_PARTS: u64 = 128;
/// The largest buffer that is kept for the next batch, in bytes.
const REUSED_BYTES_MAX: usize = 8 << 20;
/// No record is accepted while this many bytes wait for the disk, which is full or does not answer.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The state of a disk, as the replica knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskState {
    /// The directory's storage id.
    pub storage: u64,
    /// Whether nothing that was ever synced was lost: the state was complete at the start, or the
    /// directory was new.
    pub is_intact: bool,
    /// The marks of this start, beside the data.
    pub marks: Marks,
    /// The number of bytes of log after which the next snapshot begins.
    pub snapshot_every_bytes: u64,
    /// Whether records that an earlier start had acknowledged may be missing at the end.
    pub owed: bool,
    /// Whether acknowledgements do not wait for the disk, which is synced about once a second.
    pub acks_early: bool,
}

/// The time for which records gather that no acknowledgement waits for: with the sync, and the
/// heartbeat that ends the wait, about a second.
pub const INTERVAL_NS: Duration = 800 * MS;
/// Once a group has gathered for this long, because the one before is still being written, nothing
/// more is accepted until both are durable; nor once the first of the latter waits for
/// [`INTERVAL_NS`] longer than this. So the acknowledged writes that may be lost are those of two
/// seconds.
const LATE_NS: Duration = 1_200 * MS;

/// The longest time between two checks of the disk that counts as its silence.
const LOOK_NS_MAX: Duration = SEC;
/// A disk is slow if its syncs take more than this fraction of a lease.
const SLOW_SHARE: u64 = 8;
/// The number of successive syncs of an election, which have to fit in half of its time-out.
const SYNCS: u64 = 3;
const SLOW_NS_MAX: Duration = 10 * SEC;
/// The number of recent syncs of which the second fastest says how slow a disk is: one that hung
/// twice is not slow.
const SYNCS_SEEN: usize = 4;

/// The progress of a snapshot of this replica's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot {
    number: u64,
    /// The next part, or the one that is being made, once no object is unfinished.
    part: u64,
    /// The cursor of the rest of unfinished objects, which precedes the next part.
    rest: Option<u64>,
    /// The position of the part that is being made, if one is.
    made_at: Option<Position>,
}

/// The state of a configuration that has to be durable before it takes effect.
#[derive(Clone, Debug)]
struct Waiting {
    config: Config,
    is_handed_out: bool,
}

/// The journal of a replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    /// `None`: there is no disk.
    kept: Option<DiskState>,
    /// The origin of a restored state, with which a rack begins that has no configuration yet.
    origin: Option<Origin>,
    is_dead: bool,
    /// The gathered data.
    batch: Batch,
    /// The number of batches that were handed out to the host.
    handed_out: u64,
    durable_batches: u64,
    /// The end of the log with the batch that is being written.
    under_way: Position,
    /// The position up to which this replica's log is durable.
    durable: Position,
    /// Whether any member of the epoch waits for its disk.
    is_group_waited_for: bool,
    /// The position up to which the logs of all members before this one are durable, as they
    /// reported (chain, CRAQ).
    before: Position,
    /// The durable position that was sent to the next member; then the one that it confirmed, and
    /// the time to send it again.
    told: Position,
    confirmed: Position,
    tell_again_at: Option<Instant>,
    /// The batch that completes a copied state.
    copied_in: u64,
    /// The batch that notes the last epoch in which this replica has all that was agreed.
    held_in: u64,
    waiting: Option<Waiting>,
    /// A buffer for the next batch.
    spare: Option<Batch>,
    snapshots: u64,
    /// The newest snapshot that was requested because of damage on the disk.
    renewal: u64,
    /// Whose it is.
    node: NodeId,
    /// The number of the snapshot that is a copy from another member: the one being installed, or
    /// the last one.
    copied_as: u64,
    snapshot: Option<Snapshot>,
    /// Keys that were copied early for the snapshot and are not written yet.
    early: Parts,
    /// Early parts to write after the rest of unfinished objects.
    early_waiting: VecDeque<(Position, Vec<u8>)>,
    early_waiting_bytes: usize,
    /// The number of snapshots given up because a part was too long.
    refused: u64,
    /// Whether the engine is still making a part of a snapshot that was given up.
    is_owed: bool,
    /// Whether a snapshot was given up, of which the engine may hold unfinished objects.
    has_left_objects: bool,
    /// The number of bytes of log since the beginning of the newest snapshot.
    log_bytes: u64,
    /// The number of gathered bytes that belong to snapshots.
    part_bytes: usize,
    /// VR: the position up to which the log is known to be committed; then the one that the disk
    /// has.
    committed: Position,
    said_committed: Position,
    /// VR: the batch that makes the newest promises durable.
    promised_in: u64,
    /// If acknowledgements do not wait for the disk: since when records gather; then whether the
    /// batch has to be written now.
    gathers_since: Option<Instant>,
    is_due: bool,
    /// The same of the batch that is being written.
    written_since: Option<Instant>,
    /// The newest batch that was not durable for too long: nothing more is accepted before it is.
    late_in: u64,
    /// The time for which the present group is being written, and the time of that measurement.
    silent_ns: Duration,
    looked_at: Option<Instant>,
    /// The time that each of the newest groups took.
    syncs_ns: [Option<Duration>; SYNCS_SEEN],
    /// Whether the disk has no room.
    is_short: bool,
    /// Whether the earlier content was given up and nothing was written since with which a state
    /// could begin.
    is_empty_after_reset: bool,
}

impl Journal {
    /// Turns the journal on: the disk has the log up to `end`, and gets everything after it.
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
            // Nothing may follow the parts of a copy that was never completed.
            self.reset(Guards::ALL);
        }
    }

    /// Notes that the restored state is one with which a rack begins.
    pub(crate) fn begin_with(&mut self, origin: Origin) {
        self.origin = Some(origin);
    }

    /// The origin with which the rack begins, if it has not begun here yet.
    pub(crate) fn origin(&self) -> Option<Origin> {
        self.origin
    }

    /// Whether an earlier start acknowledged records that may be missing here.
    pub(crate) fn is_owed(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.owed)
    }

    /// Whether there is a disk.
    pub(crate) fn is_on(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether the disk failed.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Notes that the disk failed: nothing becomes durable any more.
    pub(crate) fn die(&mut self) {
        self.is_dead = true;
        self.batch.clear();
    }

    /// The directory and the run on it, if there is a disk.
    pub(crate) fn data_dir(&self) -> Option<DataDir> {
        self.kept.as_ref().map(|kept| DataDir { id: kept.storage, run: kept.marks.run })
    }

    /// Whether all that was ever synced or acknowledged was there at this start; `None` without a
    /// disk.
    pub(crate) fn is_intact(&self) -> Option<bool> {
        self.kept.as_ref().map(|kept| kept.is_intact && !kept.owed)
    }

    /// Whether acknowledgements of records wait for the disk.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.acks_early)
    }

    /// The position up to which this replica's log counts as durable.
    pub(crate) fn durable(&self) -> Position {
        if self.is_waited_for() { self.durable } else { Position(u64::MAX) }
    }

    /// The position up to which the logs of all members before this one count as durable, as far as
    /// is known.
    pub(crate) fn before(&self) -> Position {
        if self.is_group_waited_for { self.before } else { Position(u64::MAX) }
    }

    /// Whether executed records may be uncommitted because of a disk here or at another member.
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

    /// Whether the disk is so late that nothing more is accepted.
    pub(crate) fn is_late(&self, guards: Guards) -> bool {
        self.is_stuffed() && guards.on(Guard::JournalRoom)
    }

    /// Whether as much data waits for the disk, or for as long, as may.
    fn is_stuffed(&self) -> bool {
        self.batch.len() > WAITING_BYTES_MAX || self.durable_batches < self.late_in
    }

    /// Handles the passing of time: data that has gathered for long enough has to be written.
    pub(crate) fn pass(&mut self, now: Instant) {
        self.look_at_disk(now);
        let is_late = |since: Instant| now.since(since) >= INTERVAL_NS + LATE_NS;
        if !self.is_waited_for() && self.written_since.is_some_and(is_late) {
            self.late_in = self.late_in.max(self.handed_out);
        }
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

    /// Measures the disk's silence. A disk without room is retried by its thread, and does not
    /// count as silent.
    fn look_at_disk(&mut self, now: Instant) {
        let waits = self.durable_batches < self.handed_out && !self.is_short;
        let before = self.looked_at.replace(now).filter(|_| waits);
        if !waits {
            (self.silent_ns, self.looked_at) = (0, None);
        } else if let Some(before) = before {
            // A paused process did not notice an answer.
            self.silent_ns += now.since(before).min(LOOK_NS_MAX);
        }
    }

    /// Whether the disk has not answered for so long that the replica is useless to its group. If
    /// the disks of a whole group hang, its replicas give up one after the other, by `rank`, and
    /// the last one stays.
    pub(crate) fn is_hung(&self, silence_max_ns: Duration, rank: u64) -> bool {
        self.silent_ns >= silence_max_ns + rank * silence_max_ns / 2
    }

    /// The time that an election or a view change may take in addition, since each of its steps
    /// waits for a sync. The sync in progress does not count: a disk that hangs is not slow, and
    /// the additional time would last long after it.
    pub(crate) fn slow_ns(&self, lease_ns: Duration) -> Duration {
        let mut seen_ns = self.syncs_ns;
        seen_ns.sort_unstable_by_key(|ns| ns.unwrap_or(Duration::MAX));
        // Of one or two syncs the fastest, of more the second fastest.
        let usual_ns = seen_ns[usize::from(seen_ns[2].is_some())].unwrap_or(0);
        if usual_ns * SLOW_SHARE < lease_ns { 0 } else { (usual_ns * SYNCS).min(SLOW_NS_MAX) }
    }

    /// Prepares for a graceful end, after which nothing is acknowledged: with the gathered data,
    /// nothing acknowledged is missing on the disk.
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

    /// Opens an epoch in which some member waits for its disk, or none does. What is durable at
    /// members before this one is not known yet.
    pub(crate) fn open(&mut self, is_first: bool, is_group_waited_for: bool) {
        self.is_group_waited_for = is_group_waited_for;
        self.before = if is_first { Position(u64::MAX) } else { Position(0) };
        (self.told, self.confirmed) = (Position(0), Position(0));
        self.tell_again_at = None;
    }

    /// Handles the report of the member before this one: the position up to which all logs from the
    /// first member's on are durable.
    pub(crate) fn hear_before(&mut self, durable: Position) {
        self.before = self.before.max(durable);
    }

    /// Notes that the next member has received the report up to `durable`.
    pub(crate) fn confirm(&mut self, durable: Position) {
        self.confirmed = self.confirmed.max(durable);
    }

    /// The durable position to report to the next member now; it is repeated after `again_ns` until
    /// it is confirmed.
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

    /// The time of the repetition.
    pub(crate) fn tell_at(&self) -> Instant {
        self.tell_again_at.unwrap_or(Instant::NEVER)
    }

    /// Gathers a record that was appended to the log.
    pub(crate) fn record(&mut self, record: Option<&[u8]>) {
        let Some(record) = record.filter(|_| self.is_on() && !self.is_dead) else { return };
        self.is_empty_after_reset = false;
        self.batch.record(record);
    }

    /// Gives up the present snapshot: it has a record between its parts that cannot be executed
    /// with only some of the keys, which were not copied early. No state could begin with that.
    /// Another snapshot begins after an eighth of the usual length of log.
    pub(crate) fn postpone_snapshot(&mut self) {
        if self.snapshot.is_none() {
            return;
        }
        self.end_snapshot();
        let every_bytes = self.kept.as_ref().map_or(0, |kept| kept.snapshot_every_bytes);
        self.log_bytes = self.due_bytes() - every_bytes / 8;
    }

    /// The number of bytes of log after which the next snapshot begins: from half of the setting to
    /// one and a half, so that the members of a group make theirs at different positions.
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

    /// Notes that this replica has all that was agreed in that epoch, with the records that an
    /// earlier start may have lost.
    pub(crate) fn hold(&mut self, epoch: u32) {
        let is_known = |kept: &DiskState| kept.marks.held_epoch == epoch && !kept.owed;
        if self.kept.as_ref().is_some_and(|kept| !is_known(kept)) {
            self.settle_debt();
            self.marks(|marks| marks.held_epoch = epoch);
            self.held_in = self.handed_out + 1;
            self.is_due = true;
        }
    }

    /// Whether the last [`Journal::hold`] is durable.
    pub(crate) fn has_held(&self) -> bool {
        !self.is_on() || self.durable_batches >= self.held_in
    }

    /// Clears the mark of lost records: everything that an earlier start acknowledged is here, or
    /// given up.
    fn settle_debt(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.owed = false;
            kept.marks.owes = kept.acks_early;
        }
    }

    /// Gives up all content.
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

    /// VR: cuts the log after `end`.
    pub(crate) fn cut(&mut self, end: LogEnd, guards: Guards) {
        if self.is_on() && !self.is_dead {
            self.batch.cut(end);
            self.lower(Position(end.position), guards);
        }
    }

    /// Lowers the durable position to `end`: the disk does not have the records that will follow.
    fn lower(&mut self, end: Position, guards: Guards) {
        if guards.on(Guard::DurableCut) {
            (self.durable, self.under_way) = (self.durable.min(end), self.under_way.min(end));
        }
    }

    /// VR: notes that the log is known to be committed up to `committed`. The next batch has it.
    pub(crate) fn commit(&mut self, committed: Position) {
        self.committed = committed;
    }

    /// VR: gathers the promises of the replica and what they rely on. They have to be durable
    /// before any message that follows from them: [`Journal::has_promised`].
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
            // The log of the view is here, and is empty.
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

    /// VR: whether all promises are durable.
    pub(crate) fn has_promised(&self) -> bool {
        !self.is_on() || (self.durable_batches >= self.promised_in && !self.is_dead)
    }

    /// Gathers a configuration that has to be durable before it takes effect. Returns whether it
    /// has to wait.
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

    /// The next batch to write, if the one before is durable. Call [`Journal::persisted`] once it
    /// is durable.
    pub(crate) fn poll(&mut self, end: Position) -> Option<Persist<Batch>> {
        let is_under_way = self.durable_batches < self.handed_out;
        let is_due = self.is_due || self.is_waited_for() || self.batch.len() > GATHERED_BYTES_MAX;
        if is_under_way || self.batch.is_empty() || self.is_dead || !is_due {
            return None;
        }
        self.is_due = false;
        self.written_since = self.gathers_since.take();
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

    /// Takes a written batch back for its memory: fresh memory costs the loop more than the data
    /// put there.
    pub(crate) fn reuse(&mut self, mut batch: Batch) {
        if batch.capacity() <= REUSED_BYTES_MAX {
            batch.clear();
            self.spare = Some(batch);
        }
    }

    /// Notes that a batch is durable. Returns the configuration that waited for it.
    pub(crate) fn persisted(&mut self, number: u64) -> Option<Config> {
        if number != self.handed_out {
            return None;
        }
        self.durable_batches = number;
        self.written_since = None;
        self.syncs_ns.rotate_left(1);
        self.syncs_ns[SYNCS_SEEN - 1] = Some(self.silent_ns);
        (self.silent_ns, self.looked_at) = (0, None);
        self.durable = self.durable.max(self.under_way);
        let waiting = self.waiting.take_if(|waiting| waiting.is_handed_out)?;
        Some(waiting.config)
    }

    /// Gathers a part of a copied state that was installed.
    pub(crate) fn copied(&mut self, part: &Part<'_>) {
        if !self.is_on() || self.is_dead {
            return;
        }
        if part.is_first {
            self.snapshots += 1;
            self.copied_as = self.snapshots;
        }
        if self.put(&Part { snapshot: self.copied_as, ..*part }).is_err() {
            // The part is too long to be stored: the sender has no such bound.
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
            // A state that begins with this part knows of no later commit.
            self.said_committed = Position(part.position);
            // Earlier segments are removed once the snapshot is complete.
            if let Some(kept) = &self.kept {
                self.batch.marks(&kept.marks);
            }
        }
        self.batch.part(part)?;
        self.part_bytes += part.bytes.len();
        Ok(())
    }

    /// Requests a snapshot that replaces all earlier content, which is damaged. If the last
    /// snapshot was such a one, the next one waits for some more log: while none can be read back,
    /// nothing is removed, and snapshots would fill the disk.
    pub(crate) fn renew(&mut self) {
        if self.renewal != 0 && self.renewal == self.snapshots {
            let every_bytes = self.kept.as_ref().map_or(0, |kept| kept.snapshot_every_bytes);
            return self.log_bytes = self.log_bytes.max(self.due_bytes() - every_bytes / 8);
        }
        self.renewal = self.snapshots + 1;
        self.log_bytes = self.log_bytes.max(self.due_bytes());
    }

    /// The number of the snapshot's part to make now, if there is one.
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

    /// Notes that the part is being made, as of `position`. A snapshot begins with its first part,
    /// and not with the request for it: a replica that is not ready may have to copy another
    /// member's state first.
    pub(crate) fn begin_part(&mut self, position: Position) {
        let begun = self.snapshot.get_or_insert_with(|| {
            self.snapshots += 1;
            Snapshot { number: self.snapshots, part: PART_TABLE, rest: None, made_at: None }
        });
        begun.made_at = Some(position);
    }

    /// The position of the part `number` that is being made.
    pub(crate) fn part_position(&mut self, number: u64) -> Option<Position> {
        if core::mem::take(&mut self.is_owed) {
            return None;
        }
        self.snapshot.filter(|s| s.wanted() == number)?.made_at
    }

    /// Gathers a finished part; `next` is the cursor after it, if there is more.
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
            // The log continues as it was; another snapshot is tried later.
            self.snapshot = Some(Snapshot { made_at: None, ..begun });
            return self.refuse_snapshot();
        }
        self.put_waiting();
    }

    /// Whether a snapshot was given up since the last call.
    pub(crate) fn take_left_objects(&mut self) -> bool {
        core::mem::take(&mut self.has_left_objects)
    }

    /// Whether a snapshot of this replica's state is being made.
    pub(crate) fn is_snapshotting(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Gives up an incomplete snapshot, so that another one begins.
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

/// A part of a state, as the disk has it.
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
mod tests;
