//! State transfer where the log alone is not enough (VRR §5.2): a replica that needs records which
//! its leader has truncated copies the state, while writes go on.
//!
//! The parts, their order and the records that may be executed between them are those of joining
//! replicas ([`crate::parts`]): the client table, the objects chunk by chunk, each as of a position
//! of the log, the results. Here the leader is the donor, and a chunk contains committed data only.
//!
//! A replica that copies has discarded its log. Until it has another one, it neither acknowledges
//! nor grants nor leads, and its vote is that of an empty log. It may vote, although it has
//! promised more: its log did not match the leader's where the leader's begins, so everything
//! before was logged by a quorum without it, and everything after was never acknowledged by it. So
//! every committed record is in the log of another voter of any quorum. And it must be able to
//! vote: otherwise a group of three would stand still forever when another member recovers, which
//! waits for two in normal status.

use alloc::vec::Vec;

use concord_core::{Guard, Instant, Now, Position, Seq, ViewNumber};
use concord_engine::copy::{continues, next_place};
use concord_engine::{Engine, Progress};
use concord_wire::Sink;
use concord_wire::control::{CopyMessage, LogEnd};
use concord_wire::fragment::FragmentHdr;
use concord_wire::record::Record;
use concord_wire::vr::{LastRecord, VrBody};

use crate::early::{PART_EARLY, Waiting, parse, part_of};
use crate::journal::part;
use crate::link::BrokenStream;
use crate::parts::{
    Demand, Executable, PART_OBJECTS, PART_RESULTS, PART_TABLE, Part, Piece, Table, consider,
    cursor_of_part, first_missing, is_rest, say_gone, take_piece,
};
use crate::quorum::copy::copying::{Copying, PART_NONE};
use crate::quorum::follower::OutgoingCopy;
use crate::quorum::queue::Pending;
use crate::quorum::raft::voters::Configuration;
use crate::quorum::scripts::decisions::Scripts;
use crate::quorum::{QuorumReplica, Stage};
use crate::sessions::SavedSessions;

impl<E: Engine> QuorumReplica<E> {
    /// The leader's log begins at `base`, after everything that was offered as common to both. What
    /// precedes it is committed: if this log contains `base`, the prefix up to it is common.
    pub(in crate::quorum) fn on_log_mismatch_message(
        &mut self,
        now: Now,
        (from, view): (usize, ViewNumber),
        (stream, base): (u16, LogEnd),
        sink: &mut impl Sink,
    ) {
        let ours =
            view == self.view && stream == self.inbound.stream() && !self.inbound.is_streaming();
        let peer = self.inbound.peer();
        let asked = peer.is_some_and(|peer| self.group.index_of(peer) == Some(from));
        if !ours || !asked {
            return;
        }
        if self.copying.is_none() && self.ordered.log.end_at(base.position) == Some(base) {
            self.committed = self.committed.max(Position(base.position));
            self.execute_committed(now, sink);
            return self.follow(sink);
        }
        if matches!(self.stage, Stage::Normal | Stage::Starting) {
            let fetched = self.inbound.target();
            let copied = self.copying.as_ref().map(|copying| copying.target);
            // A follower in normal status has less than what is committed.
            self.copy_state(fetched.or(copied).unwrap_or_default(), sink);
        }
    }

    /// Discards the local state, in favour of the leader's state and its log up to `target` at
    /// least.
    pub(in crate::quorum) fn copy_state(&mut self, target: LogEnd, sink: &mut impl Sink) {
        self.stage = Stage::Starting;
        self.leases.close();
        self.inbound.end_stream();
        self.copies += 1;
        let attempt =
            u64::from(self.group.tag_of(self.crash_vector.mine())) << 32 | u64::from(self.copies);
        let before = self.copying.as_ref().map_or(LastRecord::default(), |copying| copying.floor);
        let floor = before.max(self.group.voters.last_record());
        self.copying = Some(Copying { floor, ..Copying::begin(attempt, target) });
        self.keep_copying(sink);
    }

    /// This replica has a new incarnation from now on: it asks for missing data under that name.
    pub(in crate::quorum) fn renew_copy(&mut self) {
        let tag = self.group.tag_of(self.crash_vector.mine());
        if let Some(copying) = self.copying.as_mut() {
            self.copies += 1;
            copying.attempt = u64::from(tag) << 32 | u64::from(self.copies);
            copying.part = None;
        }
    }

    /// Another view has begun, whose log ended at `target`. The copied data is committed, so that
    /// the new leader has it too: the copy goes on.
    pub(in crate::quorum) fn go_on_copying(
        &mut self,
        now: Now,
        target: LogEnd,
        sink: &mut impl Sink,
    ) {
        let Some(copying) = self.copying.as_mut() else { return };
        if copying.has_pieces() {
            // The rest of the object is available from that leader only.
            return self.copy_state(target, sink);
        }
        (copying.target, copying.part) = (target, None);
        if copying.begun && copying.wanted != PART_TABLE {
            self.cut_log(self.submitted.0);
            self.follow(sink);
        }
        self.keep_copying(sink);
        self.finish_copy(now, sink);
    }

    /// Whether the local log does not count for a vote, and the local state does not suffice to
    /// lead.
    pub(in crate::quorum) fn has_given_up(&self) -> bool {
        self.copying.is_some() && self.setup.guards.on(Guard::CaughtUp)
    }

    /// Begins the copy, once nothing waits for the engine, and asks for what has not arrived.
    pub(in crate::quorum) fn keep_copying(&mut self, sink: &mut impl Sink) {
        let Some(copying) = self.copying.as_mut() else { return };
        if !copying.begun {
            if !self.pending.is_empty() {
                return;
            }
            copying.begun = true;
            if self.serving.forget() == Progress::Pending {
                self.pending.push_back(Pending::Install);
            }
            self.stand_at(LogEnd::default(), Seq::NONE, (0, 0));
            self.journal.reset(self.setup.guards);
            self.count.copies_begun += 1;
        }
        self.ask_part(sink);
    }

    fn ask_part(&mut self, sink: &mut impl Sink) {
        let Some(copying) = self.copying.as_mut().filter(|c| c.wanted < PART_NONE) else { return };
        copying.asked = copying.part.as_ref().map_or(0, first_missing);
        let ask = CopyMessage::Ask {
            epoch: self.view.0,
            from: self.setup.me.node,
            attempt: copying.attempt,
            part: copying.wanted_number(),
            index: copying.asked,
        };
        if let Some(leader) = self.group.leader_addr(self.view) {
            self.send_control(leader, &ask, sink);
        }
    }

    /// The log begins after `end`, whose record had that number, time and term.
    pub(in crate::quorum) fn stand_at(
        &mut self,
        end: LogEnd,
        seq: Seq,
        (now_ms, term): (u64, u32),
    ) {
        let position = Position(end.position);
        self.ordered.reset(end, seq, now_ms);
        (self.committed, self.submitted, self.executed) = (position, position, position);
        let of_server = self.setup.replicate_replies.then_some((self.view, seq));
        self.scripts = Scripts::copied_up_to(position, of_server);
        (self.executed_seq, self.base_now_ms) = (seq, now_ms);
        self.base_term = ViewNumber(term);
        self.group.voters.reset(None);
        self.ordered.clock.note(now_ms, self.local_ms);
        self.inbound.forget_executed();
        self.leading.forget_completions();
    }

    /// Takes a fragment of a part.
    pub(in crate::quorum) fn on_copy_piece(
        &mut self,
        now: Now,
        (attempt, part): (u64, u64),
        hdr: FragmentHdr,
        piece: &[u8],
        sink: &mut impl Sink,
    ) {
        // Parts wait for the disk as records do: those that it cannot keep up with are asked for
        // again.
        let is_late = self.journal.is_late(self.setup.guards);
        let is_copying = self.stage == Stage::Starting && !is_late;
        let Some(copying) = self.copying.as_mut().filter(|_| is_copying) else {
            return;
        };
        let wanted = copying.begun && (copying.attempt, copying.wanted_number()) == (attempt, part);
        if !wanted {
            return;
        }
        match take_piece(&mut copying.part, copying.asked, hdr, piece) {
            Piece::Last => self.try_install(now, sink),
            Piece::LastAsked => self.ask_part(sink),
            Piece::OfMany => {}
            // For parts that can be made again this is never said.
            Piece::Gone if copying.has_pieces() => self.begin_copy_anew(sink),
            Piece::Gone => {}
        }
    }

    /// Installs a received part, once the records before it have arrived too. Then the next one is
    /// asked for, or the copy is done.
    fn try_install(&mut self, now: Now, sink: &mut impl Sink) {
        let end = self.ordered.end();
        let Some(copying) = self.copying.as_mut() else { return };
        if let Some(part) = copying.ready(end, self.submitted) {
            let (attempt, target) = (copying.attempt, copying.target);
            let position = Position(part.version());
            let installed = match copying.wanted {
                PART_TABLE => self.install_table(position, &part.into_bytes(), sink),
                PART_RESULTS => self.install_results(&part.into_bytes()),
                _ => self.install_objects(now, position, &part.into_bytes(), sink),
            };
            match installed {
                _ if !self.goes_on_with(attempt) => return,
                Some(next) => {
                    if let Some(copying) = self.copying.as_mut() {
                        copying.wanted = next;
                    }
                    self.ask_part(sink);
                }
                None => self.copy_state(target, sink),
            }
        }
        self.finish_copy(now, sink);
    }

    fn install_table(
        &mut self,
        position: Position,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Option<u64> {
        let (hash, table) = Table::parse(bytes)?;
        let end = LogEnd { position: position.0, hash };
        self.stand_at(end, Seq::from_u64(table.last_seq), (table.last_now_ms, table.term));
        self.group.voters.reset(Configuration::parse_copied(&table.voters));
        self.serving.sessions.restore(table.sessions);
        self.journal.copied(&part(end, PART_TABLE, bytes));
        self.follow(sink);
        Some(PART_OBJECTS)
    }

    fn install_objects(
        &mut self,
        now: Now,
        position: Position,
        chunk: &[u8],
        sink: &mut impl Sink,
    ) -> Option<u64> {
        let early = parse(chunk);
        let copying = self.copying.as_ref()?;
        let (attempt, wanted, reached) = (copying.attempt, copying.wanted, copying.reached());
        // A first chunk brings some objects, and nothing is copied early before it.
        let reached = match &early {
            Some(_) if wanted == PART_OBJECTS => None,
            Some(early) => reached.behind_early(next_place(early.chunk).ok()?),
            None => reached.behind(next_place(chunk).ok()?, continues(chunk)),
        };
        let reached = reached?;
        // Pieces are as of where the first one was.
        if early.is_some() || !continues(chunk) {
            // The leader had executed up to here: it is committed.
            self.committed = self.committed.max(position);
            self.execute_committed(now, sink);
            if self.submitted != position || !self.goes_on_with(attempt) {
                return None;
            }
        }
        let end = LogEnd { position: position.0, hash: 0 };
        if let Some(early) = early {
            self.install_chunk(early.chunk)?;
            let copying = self.copying.as_mut()?;
            copying.here.take(&early);
            copying.has_objects(reached);
            self.journal.copied(&part(end, PART_EARLY, chunk));
            return Some(wanted);
        }
        self.install_chunk(chunk)?;
        let copying = self.copying.as_mut()?;
        copying.has_objects(reached);
        let next = copying.wanted;
        self.journal.copied(&part(end, wanted, chunk));
        Some(next)
    }

    /// Whether that copy is still being made: a record before a part may have restarted it, and
    /// with a slow engine the old state stays until nothing waits for it.
    fn goes_on_with(&self, attempt: u64) -> bool {
        let is_same = |copying: &Copying| copying.attempt == attempt;
        self.stage == Stage::Starting && self.copying.as_ref().is_some_and(is_same)
    }

    /// Lets the engine install objects.
    pub(in crate::quorum) fn install_chunk(&mut self, chunk: &[u8]) -> Option<()> {
        if self.serving.engine.install(chunk).ok()? == Progress::Pending {
            self.pending.push_back(Pending::Install);
        }
        self.count.chunks_installed += 1;
        Some(())
    }

    fn install_results(&mut self, bytes: &[u8]) -> Option<u64> {
        self.learn_results(bytes)?;
        self.journal.copied(&part(self.ordered.log.end(), PART_RESULTS, bytes));
        Some(PART_NONE)
    }

    pub(in crate::quorum) fn learn_results(&mut self, bytes: &[u8]) -> Option<()> {
        let saved: SavedSessions = postcard::from_bytes(bytes).ok()?;
        self.serving.sessions.learn(&saved);
        Some(())
    }

    /// Makes the status normal, once the log has reached its target.
    fn finish_copy(&mut self, now: Now, sink: &mut impl Sink) {
        let end = self.ordered.end();
        if self.copying.take_if(|copying| copying.is_done(end)).is_some() {
            self.count.copies_whole += 1;
            self.begin_normal(now.instant);
            self.learn_committed(now, self.heard_committed, sink);
        }
    }

    /// A record after the copy's beginning has arrived.
    pub(in crate::quorum) fn on_copied_record(
        &mut self,
        now: Now,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), BrokenStream> {
        if self.takes_no_more() {
            let target = self.copying.as_ref().map(|copying| copying.target);
            self.copy_state(target.unwrap_or_default(), sink);
            return Ok(());
        }
        self.append(bytes)?;
        self.try_install(now, sink);
        Ok(())
    }

    /// Restarts the copy: a write mixed objects that are here with others, or the rest of one is
    /// gone.
    pub(in crate::quorum) fn begin_copy_anew(&mut self, sink: &mut impl Sink) {
        self.count.copies_entangled += 1;
        let target = self.copying.as_ref().map(|copying| copying.target);
        self.copy_state(target.unwrap_or_default(), sink);
    }

    /// The part of a record that can be executed: all of it, unless the state is being copied.
    #[inline]
    pub(in crate::quorum) fn executable(&self, record: &Record<'_>) -> Executable {
        match &self.copying {
            Some(copying) => copying.executable(record, self.setup.guards),
            None => Executable::All,
        }
    }

    /// Leader: a member asks for a part of the state.
    pub(in crate::quorum) fn on_copy_ask(
        &mut self,
        now: Instant,
        from: usize,
        attempt: u64,
        (part, index): (u64, u32),
        sink: &mut impl Sink,
    ) {
        let of_incarnation =
            (attempt >> 32) as u32 == self.group.tag_of(self.crash_vector.of(from));
        if !self.is_leader()
            || !of_incarnation
            || !(is_rest(part) || part_of(part).0 <= PART_RESULTS)
            || !self.serving.engine.prepare_copy()
        {
            return;
        }
        let view_start = self.leading.view_start();
        let Some(follower) = self.leading.followers.get_mut(from) else { return };
        follower.copied_at = Some(now);
        let known =
            follower.outgoing_copy.as_ref().map_or(0, |outgoing_copy| outgoing_copy.attempt);
        if attempt > known {
            follower.outgoing_copy =
                Some(OutgoingCopy { attempt, part: None, asked: 0, early: Waiting::default() });
        }
        let Some(outgoing_copy) = follower
            .outgoing_copy
            .as_mut()
            .filter(|outgoing_copy| outgoing_copy.attempt == attempt)
        else {
            return;
        };
        let mut found = consider(part, outgoing_copy.part.as_ref(), &mut outgoing_copy.asked);
        let (wanted, taken) = part_of(part);
        if found == Demand::New
            && !matches!(wanted, PART_TABLE | PART_RESULTS)
            && !is_rest(part)
            && let Some((position, bytes)) = outgoing_copy.early.take(wanted == PART_OBJECTS, taken)
        {
            outgoing_copy.part = Some(Part { number: part, position, bytes: Some(bytes) });
            found = Demand::Begun;
        }
        // A part that continues pieces belongs to this leader, and cannot be made again.
        let is_early = |own: &Part| {
            index == 0 && !is_rest(own.number) && own.is_early(view_start, self.executed)
        };
        match found {
            Demand::Stale => return,
            Demand::Gone => {
                let addr = self.group.members()[from].addr;
                let of = (self.view.0, attempt);
                return say_gone(of, part, addr, &mut self.scratch, sink);
            }
            Demand::Begun if !outgoing_copy.part.as_ref().is_some_and(is_early) => {}
            Demand::Begun | Demand::New => self.take_part(from, part),
        }
        let addr = self.group.members()[from].addr;
        let outgoing_copy = self.leading.followers.get(from).and_then(|f| f.outgoing_copy.as_ref());
        if let Some(part) = outgoing_copy.and_then(|outgoing_copy| outgoing_copy.part.as_ref()) {
            part.send((self.view.0, attempt), index, addr, &mut self.scratch, sink);
        }
    }

    /// Takes a part of the state for a member, or for the own disk, with the objects as of
    /// everything submitted so far.
    pub(in crate::quorum) fn take_part(&mut self, to: usize, asked: u64) {
        let (number, _) = part_of(asked);
        // A result exists once its request was executed.
        let position = if number == PART_RESULTS { self.executed } else { self.submitted };
        let mut bytes = Vec::new();
        if number == PART_TABLE {
            let record =
                self.ordered.log.record(position).and_then(|bytes| Record::parse(bytes).ok());
            let last = record.map_or((self.executed_seq, self.base_now_ms), |r| (r.seq, r.now_ms));
            let table = Table {
                last_seq: last.0.max(self.executed_seq).to_u64(),
                last_now_ms: last.1,
                term: if self.group.elects() { self.term_at(position).0 } else { 0 },
                voters: self.group.voters.as_of(position).map_or(Vec::new(), Configuration::copied),
                sessions: self.serving.sessions.save(),
            };
            bytes = table.emit(self.ordered.log.hash_at(position).unwrap_or_default());
        } else if number == PART_RESULTS {
            bytes = postcard::to_allocvec(&self.serving.sessions.save()).unwrap_or_default();
        }
        let is_chunk = number != PART_TABLE && number != PART_RESULTS;
        let made = !is_chunk || {
            let from = cursor_of_part(number);
            let bytes_max = self.setup.part_bytes(to == self.group.me());
            self.serving.engine.copy(from, bytes_max, &mut bytes) == Progress::Done
        };
        if !made {
            self.pending.push_back(Pending::Copy { to, number: asked, position });
        }
        self.count.parts_copied += 1;
        if to == self.group.me() {
            self.journal.begin_part(position);
            if made {
                self.snapshot_part(number, &bytes);
            }
            return;
        }
        if let Some(outgoing_copy) =
            self.leading.followers.get_mut(to).and_then(|f| f.outgoing_copy.as_mut())
        {
            outgoing_copy.part =
                Some(Part { number: asked, position, bytes: made.then_some(bytes) });
        }
    }

    /// The engine has made a chunk: its first fragments are sent at once, since the member that
    /// asked for it asks again only after a while.
    pub(in crate::quorum) fn chunk_made(
        &mut self,
        to: usize,
        (number, position): (u64, Position),
        bytes: Vec<u8>,
        sink: &mut impl Sink,
    ) {
        if to == self.group.me() {
            return self.snapshot_part(number, &bytes);
        }
        let (view, view_start, executed) = (self.view.0, self.leading.view_start(), self.executed);
        let Some(outgoing_copy) =
            self.leading.followers.get_mut(to).and_then(|f| f.outgoing_copy.as_mut())
        else {
            return;
        };
        let attempt = outgoing_copy.attempt;
        let part =
            outgoing_copy.part.as_mut().filter(|p| (p.number, p.position) == (number, position));
        let Some(part) = part else { return };
        part.bytes = Some(bytes);
        if is_rest(part.number) || !part.is_early(view_start, executed) {
            let addr = self.group.members()[to].addr;
            part.send((view, attempt), 0, addr, &mut self.scratch, sink);
        }
    }

    /// Leader: drops the data kept for members that copy.
    pub(in crate::quorum) fn end_feed(&mut self, to: usize) {
        let fed = self.leading.followers.get_mut(to).and_then(|f| f.outgoing_copy.take()).is_some();
        let is_copied = self.journal.is_snapshotting();
        if fed && !is_copied && self.leading.followers.iter().all(|f| f.outgoing_copy.is_none()) {
            self.serving.engine.end_copy();
        }
    }

    /// Says that the log begins after the end of the other's.
    pub(in crate::quorum) fn say_log_mismatch(
        &mut self,
        to: usize,
        stream: u16,
        sink: &mut impl Sink,
    ) {
        self.vr_count.too_far_behind += 1;
        let base = self.ordered.log.base();
        self.say(to, VrBody::LogMismatch { stream, base }, sink);
    }
}
