//! The snapshot source's state for joining replicas: the number of each one's copy, its current
//! part, and its stream of records.
//!
//! No member waits for a joining replica. Records are kept for it up to half of what the log may
//! hold, and after that as many as the log's tail has; a replica that falls further behind restarts
//! its copy.

use alloc::vec::Vec;

use concord_core::{Epoch, Instant, NodeId, Position};
use concord_wire::control::{CopyMessage, Message as _};
use concord_wire::link::Ack;
use concord_wire::{Addr, Sink};

use crate::early::{Copied, Waiting, part_of};
use crate::limits::Limits;
use crate::link::Sender;
use crate::log::Log;
use crate::parts::{
    Demand, HASH_BYTES, PART_OBJECTS, PART_RESULTS, PART_TABLE, Part, consider, is_rest,
};

/// The number of records kept after they are committed, for joining replicas whose donor changes.
const TAIL_RECORDS: u64 = 8_192;

/// The donor's state for a joining replica.
#[derive(Clone, Debug)]
struct OutgoingCopy {
    node: NodeId,
    addr: Addr,
    /// The number of its copy; questions of an older one are ignored.
    attempt: u64,
    /// The latest possible beginning of the replica's records. It gets its last part only once that
    /// is committed: as a member it might otherwise be asked for records that it never had.
    base: Position,
    /// The stream to it; `None` before its table was taken, and after it was told to restart.
    sender: Option<Sender>,
    /// Whether it fell too far behind, and was told to restart; a higher attempt acknowledges that.
    is_dropped: bool,
    part: Option<Part>,
    /// The newest part that was asked for, except those that continue pieces of it.
    asked: u64,
    /// Keys that were copied early, and come before the next chunk.
    early: Waiting,
    /// Whether more waits for it than permitted.
    is_overrun: bool,
}

impl OutgoingCopy {
    fn begun((node, addr): (NodeId, Addr), attempt: u64) -> OutgoingCopy {
        OutgoingCopy {
            node,
            addr,
            attempt,
            base: Position(0),
            sender: None,
            is_dropped: false,
            part: None,
            asked: 0,
            early: Waiting::default(),
            is_overrun: false,
        }
    }
}

/// All replicas of which this one is the donor.
#[derive(Clone, Debug, Default)]
pub(super) struct SnapshotSource {
    source: Vec<OutgoingCopy>,
    /// Whether there are joining replicas, for which records may be kept, whichever member is their
    /// donor.
    has_joining: bool,
}

/// The reaction to a question for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartAnswer {
    /// Nothing.
    Nothing,
    /// The replica has not heard that it must restart.
    Dropped,
    /// The replica has pieces of an object of which there is no more here.
    Gone,
    /// The part is made unless it `is_made`, and sent.
    Serve { is_made: bool },
}

impl SnapshotSource {
    /// Begins an epoch: no copy has begun.
    pub(super) fn begin(&mut self, has_joining: bool) {
        self.source.clear();
        self.has_joining = has_joining;
    }

    /// Ends all copies.
    pub(super) fn clear(&mut self) {
        self.source.clear();
    }

    /// Whether there are no copies.
    pub(super) fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    fn of(&mut self, node: NodeId) -> Option<&mut OutgoingCopy> {
        self.source.iter_mut().find(|copy_out| copy_out.node == node)
    }

    /// Whether `node` has a copy here, or was told to restart.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.source.iter().any(|copy_out| copy_out.node == node)
    }

    /// A replica whose log is a prefix of ours gets records alone.
    pub(super) fn resume(&mut self, peer: (NodeId, Addr), attempt: u64, sender: Sender) {
        let base = Position(sender.first_needed().0 - 1);
        self.source.push(OutgoingCopy {
            base,
            sender: Some(sender),
            ..OutgoingCopy::begun(peer, attempt)
        });
    }

    /// Whether the copy `attempt` of `node` gets records.
    pub(super) fn streams(&self, node: NodeId, attempt: u64) -> bool {
        let copy_out = self.source.iter().find(|copy_out| copy_out.node == node);
        copy_out.is_some_and(|copy_out| copy_out.attempt == attempt && copy_out.sender.is_some())
    }

    /// The address and the copy of a replica that was told to restart, and goes on as before
    /// because it has not heard of it. The message is for the copy that was dropped, and means
    /// nothing to a later one.
    pub(super) fn dropped(&self, node: NodeId) -> Option<(Addr, u64)> {
        let copy_out = self
            .source
            .iter()
            .find(|copy_out| copy_out.node == node && copy_out.sender.is_none())?;
        copy_out.is_dropped.then_some((copy_out.addr, copy_out.attempt))
    }

    /// A replica asks for a part, for its copy `attempt`.
    pub(super) fn on_ask(
        &mut self,
        peer: (NodeId, Addr),
        attempt: u64,
        part: u64,
        committed: Position,
    ) -> PartAnswer {
        if !self.knows(peer.0) {
            match part {
                PART_TABLE => {}
                part if is_rest(part) => return PartAnswer::Gone,
                _ => return PartAnswer::Nothing,
            }
            self.source.push(OutgoingCopy::begun(peer, attempt));
        }
        let Some(copy_out) = self.of(peer.0) else { return PartAnswer::Nothing };
        if attempt > copy_out.attempt && part == PART_TABLE {
            *copy_out = OutgoingCopy::begun(peer, attempt);
        }
        let (wanted, taken) = part_of(part);
        if wanted == PART_RESULTS && copy_out.base > committed {
            return PartAnswer::Nothing;
        }
        if attempt == copy_out.attempt && copy_out.is_dropped {
            return PartAnswer::Dropped;
        }
        if attempt != copy_out.attempt || (part != PART_TABLE && copy_out.sender.is_none()) {
            return PartAnswer::Nothing;
        }
        match consider(part, copy_out.part.as_ref(), &mut copy_out.asked) {
            Demand::Stale => return PartAnswer::Nothing,
            Demand::Gone => return PartAnswer::Gone,
            Demand::Begun => return PartAnswer::Serve { is_made: true },
            Demand::New => {}
        }
        let is_chunk = wanted != PART_TABLE && wanted != PART_RESULTS && !is_rest(part);
        if is_chunk
            && let Some((position, bytes)) = copy_out.early.take(wanted == PART_OBJECTS, taken)
        {
            copy_out.part = Some(Part { number: part, position, bytes: Some(bytes) });
            return PartAnswer::Serve { is_made: true };
        }
        PartAnswer::Serve { is_made: false }
    }

    /// The client table is taken for `node`, as of `position`: records are streamed from there on.
    pub(super) fn begin_stream(
        &mut self,
        (me, epoch): (NodeId, Epoch),
        node: NodeId,
        at: Position,
    ) {
        let Some(copy_out) = self.of(node) else { return };
        copy_out.base = at;
        copy_out.sender = Some(Sender::new(me, epoch, (node, copy_out.addr), at, copy_out.attempt));
    }

    /// A part is being made for `node`, as of `position`.
    pub(super) fn begin_part(&mut self, node: NodeId, number: u64, position: Position) {
        if let Some(copy_out) = self.of(node) {
            copy_out.part = Some(Part { number, position, bytes: None });
        }
    }

    /// Everything before a part was executed, and its bytes are ready.
    pub(super) fn end_part(&mut self, node: NodeId, number: u64, mut bytes: Vec<u8>, log: &Log) {
        let Some(part) = self.of(node).and_then(|copy_out| copy_out.part.as_mut()) else { return };
        if part.number != number || part.bytes.is_some() {
            return;
        }
        if number == PART_TABLE {
            let hash = log.hash_at(part.position);
            let Some((to, hash)) = bytes.first_chunk_mut::<HASH_BYTES>().zip(hash) else { return };
            *to = hash.to_be_bytes();
        }
        part.bytes = Some(bytes);
    }

    /// Whether keys are copied early for any replica.
    pub(super) fn copy_early(&self) -> bool {
        self.source.iter().any(|copy_out| copy_out.sender.is_some() && copy_out.early.is_on())
    }

    /// Keys were copied early.
    pub(super) fn copied_early(&mut self, copied: &Copied, mut fork: impl FnMut(u64) -> u64) {
        let is_on = |copy_out: &&mut OutgoingCopy| {
            copy_out.early.is_on() && copy_out.sender.is_some() && !copy_out.is_overrun
        };
        for copy_out in self.source.iter_mut().filter(is_on) {
            let own = copied.fork(&mut fork);
            copy_out.is_overrun = own.is_none_or(|own| !copy_out.early.add(&own));
        }
    }

    /// Sends fragments of its part to `node`, from `index` on, if it is made.
    pub(super) fn send_part(
        &mut self,
        epoch: Epoch,
        node: NodeId,
        index: u32,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        let Some(copy_out) = self.of(node) else { return };
        if let Some(part) = &copy_out.part {
            part.send((epoch.0, copy_out.attempt), index, copy_out.addr, scratch, sink);
        }
    }

    /// A part for `node` is made: its first fragments are sent at once, since the replica that
    /// asked for it asks again only after a while.
    pub(super) fn push_part(
        &mut self,
        epoch: Epoch,
        node: NodeId,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        if self.of(node).is_some_and(|copy_out| copy_out.sender.is_some()) {
            self.send_part(epoch, node, 0, scratch, sink);
        }
    }

    /// Handles an acknowledgement by a joining replica; false if no records are streamed to it.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        ack: &Ack,
        (log, committed): (&Log, Position),
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(sender) = self.of(ack.from).and_then(|copy_out| copy_out.sender.as_mut()) else {
            return false;
        };
        sender.on_ack(now, ack, log, committed, scratch, sink);
        true
    }

    /// Sends records, as far as they were executed here. A replica whose records are not kept any
    /// more is told by `me` to restart. Returns the number of replicas that were told so.
    pub(super) fn pump(
        &mut self,
        now: Instant,
        (me, epoch): (NodeId, Epoch),
        (log, executed, committed): (&Log, Position, Position),
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> u64 {
        let mut dropped = 0;
        for copy_out in &mut self.source {
            let Some(sender) = copy_out.sender.as_mut() else { continue };
            if sender.first_needed() <= log.oldest() || copy_out.is_overrun {
                copy_out.sender = None;
                copy_out.is_dropped = true;
                copy_out.part = None;
                dropped += 1;
                let (epoch, from, attempt) = (epoch.0, me.0, copy_out.attempt);
                CopyMessage::LogMismatch { epoch, from, attempt }.emit(scratch);
                sink.send(copy_out.addr, scratch);
                continue;
            }
            sender.pump(now, log, executed, committed, scratch, sink);
        }
        dropped
    }

    /// Handles the passing of time: what seems lost is sent again.
    pub(super) fn tick(
        &mut self,
        now: Instant,
        (log, committed): (&Log, Position),
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        for sender in self.source.iter_mut().filter_map(|copy_out| copy_out.sender.as_mut()) {
            sender.tick(now, log, committed, scratch, sink);
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        let senders = self.source.iter().filter_map(|copy_out| copy_out.sender.as_ref());
        senders.map(Sender::deadline).min().unwrap_or(Instant::NEVER)
    }

    /// The position up to which records may be dropped while a replica joins, if `position` is
    /// committed.
    pub(super) fn forgettable(&self, position: Position, log: &Log, limits: &Limits) -> Position {
        if !self.has_joining || log.is_half_full(limits) {
            return position;
        }
        let tail = log.end().position.saturating_sub(TAIL_RECORDS);
        let senders = self.source.iter().filter_map(|copy_out| copy_out.sender.as_ref());
        let needed = senders.map(|sender| sender.first_needed().0 - 1).min();
        position.min(Position(tail)).min(Position(needed.unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use concord_wire::control::LogEnd;

    use super::*;

    const ME: NodeId = NodeId(1);
    const EPOCH: Epoch = Epoch(4);
    const JOINER: (NodeId, Addr) = (NodeId(7), Addr { ip: 7, port: 7 });

    /// A log of records 11 to 20, of which those up to 15 are committed.
    fn log() -> Log {
        let mut log = Log::starting_at(LogEnd { position: 10, hash: 100 });
        (1..=10).for_each(|n| log.push(&[n; 100], 0));
        log
    }

    fn asks(source: &mut SnapshotSource, attempt: u64, part: u64) -> PartAnswer {
        source.on_ask(JOINER, attempt, part, Position(15))
    }

    /// The joiner has begun its copy 1, with the table as of position 12.
    fn begun() -> SnapshotSource {
        let mut source = SnapshotSource::default();
        source.begin(true);
        assert_eq!(asks(&mut source, 1, PART_TABLE), PartAnswer::Serve { is_made: false });
        source.begin_part(JOINER.0, PART_TABLE, Position(12));
        source.begin_stream((ME, EPOCH), JOINER.0, Position(12));
        source
    }

    /// Fragments that are sent of the part that was made.
    fn sent(source: &mut SnapshotSource) -> Vec<Vec<u8>> {
        let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
        source.push_part(EPOCH, JOINER.0, &mut vec![], &mut sent);
        assert!(sent.iter().all(|(to, _)| *to == JOINER.1));
        let pieces = sent.iter().filter_map(|(_, bytes)| match CopyMessage::parse(bytes) {
            Ok(CopyMessage::Piece { piece, .. }) => Some(piece),
            _ => None,
        });
        pieces.collect()
    }

    #[test]
    fn a_copy_begins_with_the_table_and_goes_on_part_by_part() {
        let mut source = SnapshotSource::default();
        source.begin(true);
        assert_eq!(
            asks(&mut source, 1, PART_OBJECTS),
            PartAnswer::Nothing,
            "there is no such copy"
        );
        assert!(!source.knows(JOINER.0));
        let rest = crate::parts::number_of(5 | 1 << 33);
        assert_eq!(asks(&mut source, 1, rest), PartAnswer::Gone, "it is to be had of nobody");
        assert_eq!(asks(&mut source, 1, PART_TABLE), PartAnswer::Serve { is_made: false });
        assert_eq!(
            asks(&mut source, 1, PART_OBJECTS),
            PartAnswer::Nothing,
            "it has no records yet"
        );
        let mut source = begun();
        assert!(
            source.streams(JOINER.0, 1) && !source.streams(JOINER.0, 2) && !source.streams(ME, 1)
        );
        assert_eq!(asks(&mut source, 1, PART_TABLE), PartAnswer::Serve { is_made: true });
        assert_eq!(asks(&mut source, 1, PART_OBJECTS), PartAnswer::Serve { is_made: false });
        source.begin_part(JOINER.0, PART_OBJECTS, Position(14));
        assert_eq!(asks(&mut source, 1, PART_TABLE), PartAnswer::Nothing, "it has that one by now");
        assert_eq!(asks(&mut source, 0, PART_OBJECTS), PartAnswer::Nothing, "an older copy's");
        assert_eq!(asks(&mut source, 2, PART_OBJECTS), PartAnswer::Nothing);
        assert_eq!(asks(&mut source, 2, PART_TABLE), PartAnswer::Serve { is_made: false }, "anew");
        assert!(!source.streams(JOINER.0, 1) && !source.streams(JOINER.0, 2));
    }

    /// The last part waits until what is before the replicas records is committed.
    #[test]
    fn last_part_waits_for_commits() {
        for (at, asked) in [(15, PartAnswer::Serve { is_made: false }), (16, PartAnswer::Nothing)] {
            let mut source = begun();
            source.begin_stream((ME, EPOCH), JOINER.0, Position(at));
            assert_eq!(asks(&mut source, 1, PART_RESULTS), asked);
            assert_eq!(asks(&mut source, 1, PART_OBJECTS), PartAnswer::Serve { is_made: false });
        }
    }

    /// A part goes out once it is made and the table with the hash of where it stands.
    #[test]
    fn part_goes_out_once_made_with_its_hash() {
        let (mut source, log) = (begun(), log());
        assert!(sent(&mut source).is_empty());
        source.end_part(JOINER.0, PART_OBJECTS, b"of another part".to_vec(), &log);
        assert!(sent(&mut source).is_empty());
        source.end_part(JOINER.0, PART_TABLE, b"--hash--table".to_vec(), &log);
        let hash = log.hash_at(Position(12)).unwrap().to_be_bytes();
        let table = [&hash[..], b"table"].concat();
        assert_eq!(sent(&mut source), core::slice::from_ref(&table));
        source.end_part(JOINER.0, PART_TABLE, b"made a second time".to_vec(), &log);
        assert_eq!(sent(&mut source), [table]);
        source.begin_part(JOINER.0, PART_OBJECTS, Position(13));
        source.end_part(JOINER.0, PART_OBJECTS, b"the objects".to_vec(), &log);
        assert_eq!(sent(&mut source), [b"the objects"]);
    }

    /// A replica whose records are gone begins anew once it has heard of it.
    #[test]
    fn copy_restarts_once_records_are_gone() {
        let (mut source, mut log) = (begun(), log());
        let pump = |source: &mut SnapshotSource, log: &Log| {
            let mut sent: Vec<(Addr, Vec<u8>)> = vec![];
            let known = (log, Position(14), Position(12));
            let now = Instant(0);
            let dropped = source.pump(now, (ME, EPOCH), known, &mut vec![], &mut sent);
            (dropped, sent.len())
        };
        assert_eq!((source.deadline(), source.dropped(JOINER.0)), (Instant::NEVER, None));
        assert_eq!(pump(&mut source, &log), (0, 1), "records 13 and 14 fit a packet");
        assert!(source.deadline() < Instant::NEVER);
        log.truncate(Position(12));
        assert_eq!(pump(&mut source, &log), (0, 0), "it needs 13");
        log.truncate(Position(13));
        assert_eq!(pump(&mut source, &log), (1, 1), "the word of that");
        assert_eq!(pump(&mut source, &log), (0, 0));
        assert_eq!(source.dropped(JOINER.0), Some((JOINER.1, 1)));
        assert_eq!(asks(&mut source, 1, PART_OBJECTS), PartAnswer::Dropped);
        assert_eq!(asks(&mut source, 2, PART_TABLE), PartAnswer::Serve { is_made: false });
        assert_eq!(source.dropped(JOINER.0), None);
    }

    /// Records are kept for replicas that join and for those that may.
    #[test]
    fn records_are_retained_for_joiners() {
        let (log, limits) = (log(), Limits::default());
        let forgettable =
            |source: &SnapshotSource, log: &Log| source.forgettable(Position(15), log, &limits).0;
        let mut source = SnapshotSource::default();
        assert_eq!(forgettable(&source, &log), 15, "nobody joins");
        source.begin(true);
        assert_eq!(forgettable(&source, &log), 0, "its tail is that long");
        let mut long = Log::starting_at(LogEnd { position: TAIL_RECORDS + 3, hash: 0 });
        (0..10).for_each(|_| long.push(&[7], 0));
        assert_eq!(forgettable(&source, &long), 13, "all but the tail");
        let mut source = begun();
        assert_eq!(forgettable(&source, &long), 12, "the joiner's first is 13");
        let small = Limits { log_records_max: 20, ..limits };
        assert_eq!(source.forgettable(Position(15), &long, &small).0, 15, "the log is half full");
        source.clear();
        assert_eq!(forgettable(&source, &long), 13);
    }

    /// The joiner has all up to 12, and gets the rest of the log.
    fn resumed(log: &Log) -> SnapshotSource {
        let mut source = SnapshotSource::default();
        source.begin(true);
        let sender = Sender::new(ME, EPOCH, JOINER, Position(12), 1);
        source.resume(JOINER, 1, sender);
        let known = (log, log_end(log), Position(12));
        let mut out: Vec<(Addr, Vec<u8>)> = vec![];
        assert_eq!(source.pump(Instant(0), (ME, EPOCH), known, &mut vec![], &mut out), 0);
        assert_eq!(out.len(), 1);
        source
    }

    fn log_end(log: &Log) -> Position {
        Position(log.end().position)
    }

    /// A replica that resumes gets its last part once what it had is committed.
    #[test]
    fn resuming_replica_gets_its_last_part() {
        let mut source = resumed(&log());
        assert!(source.knows(JOINER.0) && source.streams(JOINER.0, 1));
        let mut last = |committed| source.on_ask(JOINER, 1, PART_RESULTS, Position(committed));
        assert_eq!(last(11), PartAnswer::Nothing);
        assert_eq!(last(12), PartAnswer::Serve { is_made: false });
        source.begin(false);
        assert!(!source.knows(JOINER.0) && !source.streams(JOINER.0, 1));
    }

    #[test]
    fn a_joining_replica_is_sent_again_what_it_does_not_acknowledge() {
        let log = log();
        let mut source = resumed(&log);
        let mut out: Vec<(Addr, Vec<u8>)> = vec![];
        let late = source.deadline();
        source.tick(Instant(late.0 - 1), (&log, Position(12)), &mut vec![], &mut out);
        assert_eq!(out.len(), 0);
        source.tick(late, (&log, Position(12)), &mut vec![], &mut out);
        assert_eq!(out.len(), 1);
        // What it has said of its stream is that the first packet came.
        let mut receiver = crate::link::Receiver::new(ME, 1);
        receiver.offer(&concord_wire::link::Data::parse(&out[0].1).unwrap());
        let ack = receiver.ack(EPOCH, JOINER.0, Position(20), Position(12));
        let mut heard =
            |ack: &Ack| source.on_ack(late, ack, (&log, Position(12)), &mut vec![], &mut out);
        assert!(!heard(&Ack { from: ME, ..ack }), "nothing is streamed there");
        assert!(heard(&ack));
        assert_eq!(source.deadline(), Instant::NEVER);
    }

    #[test]
    fn records_are_kept_for_the_slowest_of_those_who_join() {
        let mut long = Log::starting_at(LogEnd { position: TAIL_RECORDS + 3, hash: 0 });
        (0..20).for_each(|_| long.push(&[7], 0));
        let mut source = begun();
        let other = (NodeId(8), Addr { ip: 8, port: 8 });
        source.resume(other, 1, Sender::new(ME, EPOCH, other, Position(11), 1));
        let limits = Limits::default();
        assert_eq!(source.forgettable(Position(15), &long, &limits).0, 11);
        assert_eq!(source.forgettable(Position(9), &long, &limits).0, 9, "what is committed alone");
    }

    #[test]
    fn a_part_is_pushed_to_a_replica_that_gets_records_alone() {
        let (mut source, log) = (SnapshotSource::default(), log());
        source.begin(true);
        assert_eq!(asks(&mut source, 1, PART_TABLE), PartAnswer::Serve { is_made: false });
        source.begin_part(JOINER.0, PART_TABLE, Position(12));
        source.end_part(JOINER.0, PART_TABLE, b"--hash--table".to_vec(), &log);
        assert!(sent(&mut source).is_empty());
        source.begin_stream((ME, EPOCH), JOINER.0, Position(12));
        assert_eq!(sent(&mut source).len(), 1);
    }
}
