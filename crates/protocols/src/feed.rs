//! The feeder's side of a copy: the member that commits (tail, primary) gives its state to replicas
//! that join, part by part, and streams its records to them, while writes go on.
//!
//! The parts, in this order, each asked for by the joining replica when it has the one before:
//! - the client table, with where it stands in the log: records are streamed from there on;
//! - the objects, chunk by chunk ([`concord_engine::copy`]): each as of a position of the log;
//! - the results in the client table: of requests that were executed before their object was copied.
//!
//! Nobody waits for a joining replica. Records are kept for it up to half of what the log may hold;
//! one that falls further behind begins anew.

use alloc::vec::Vec;

use concord_core::{Epoch, Guard, Instant, NodeId, Now, Position};
use concord_engine::copy::PLACE_END;
use concord_engine::{Engine, Progress};
use concord_wire::control::{Config, CopyMessage, LogEnd, Member, Message as _};
use concord_wire::fragment::{FRAGMENT_BYTES, FragmentHdr};
use concord_wire::link::Ack;
use concord_wire::{Addr, Sink};
use serde::{Deserialize, Serialize};

use crate::link::Sender;
use crate::replica::{Phase, Replica};
use crate::sessions::SavedSessions;
use crate::writes::Pending;

/// The part that is asked for first: [`Table`].
pub(crate) const PART_TABLE: u64 = 0;
/// The objects from place p on are part `PART_OBJECTS + p`.
pub(crate) const PART_OBJECTS: u64 = 1;
/// The last part: [`SavedSessions`].
pub(crate) const PART_RESULTS: u64 = PART_OBJECTS + PLACE_END;
/// Fragments that one question is answered by.
pub(crate) const FRAGMENTS_MAX: u32 = 32;
/// Records kept behind what is committed, for joining replicas whose feeder changes.
const TAIL_RECORDS: u64 = 8_192;

/// Bytes of the running hash, which stands before the [`Table`].
const HASH_BYTES: usize = 8;

/// The first part: where the copy stands in the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    /// The newest sequence number up to there.
    pub last_seq: u64,
    /// The stamp of the last record.
    pub last_now_ms: u64,
    pub sessions: SavedSessions,
}

impl Table {
    /// The table with the running hash before it.
    pub(crate) fn emit(&self, hash: u64) -> Vec<u8> {
        postcard::to_extend(self, hash.to_be_bytes().to_vec()).unwrap_or_default()
    }

    /// The running hash and the table.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(u64, Table)> {
        let (hash, table) = bytes.split_first_chunk::<HASH_BYTES>()?;
        Some((u64::from_be_bytes(*hash), postcard::from_bytes(table).ok()?))
    }
}

/// A part of the state that is being sent, or made.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) number: u64,
    pub(crate) position: Position,
    /// `None` until the engine, or the records before, are through.
    pub(crate) bytes: Option<Vec<u8>>,
}

impl Part {
    /// Sends some fragments to `addr`, from `first` on, if the part is made.
    pub(crate) fn send(
        &self,
        (epoch, attempt): (u32, u64),
        first: u32,
        addr: Addr,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) {
        let Some(bytes) = &self.bytes else { return };
        let hdr = FragmentHdr {
            version: self.position.0,
            total_bytes: bytes.len() as u32,
            index: first,
            count: FRAGMENTS_MAX,
        };
        let end = hdr.fragments().min(first.saturating_add(FRAGMENTS_MAX));
        for index in first..end {
            let piece = CopyMessage::Piece {
                epoch,
                attempt,
                part: self.number,
                position: self.position.0,
                total_bytes: hdr.total_bytes,
                index,
                piece: bytes[FragmentHdr { index, ..hdr }.range()].to_vec(),
            };
            piece.emit(scratch);
            debug_assert!(!scratch.is_empty(), "a packet holds {FRAGMENT_BYTES} bytes of a part");
            sink.send(addr, scratch);
        }
    }
}

/// What the feeder keeps for a joining replica.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    node: NodeId,
    addr: Addr,
    /// Which copy; an older one's questions are ignored.
    attempt: u64,
    /// Where the replica's records begin, at the latest. Before that is committed it gets no last
    /// part: as a member it might be asked for records that it never had.
    base: Position,
    /// `None` before its table was taken, and when it was told to begin anew.
    pub sender: Option<Sender>,
    /// It fell too far behind, and was told to begin anew; it says so by a higher attempt.
    is_dropped: bool,
    part: Option<Part>,
}

impl Feed {
    fn begun(node: NodeId, addr: Addr, attempt: u64) -> Feed {
        Feed { node, addr, attempt, base: Position(0), sender: None, is_dropped: false, part: None }
    }
}

impl<E: Engine> Replica<E> {
    /// The member that feeds joining replicas: the one that commits.
    pub(crate) fn feeder(&self) -> Option<&Member> {
        self.config.as_ref().and_then(Config::reader)
    }

    pub(crate) fn joining_addr(&self, node: NodeId) -> Option<Addr> {
        let joining = &self.config.as_ref()?.joining;
        joining.iter().find(|m| m.node == node.0).map(|m| m.addr)
    }

    /// Whether this replica feeds the others in `epoch`, and `node` is one of them.
    fn feeds(&self, epoch: Epoch, node: NodeId) -> Option<Addr> {
        if self.phase != Phase::Open || !self.is_epoch(epoch) || !self.is_acker() {
            return None;
        }
        self.joining_addr(node)
    }

    /// A joining replica has a state already, from another feeder or from when it was a member: if
    /// its log is the beginning of ours, records are enough (trap T5).
    pub(crate) fn on_resume(
        &mut self,
        epoch: Epoch,
        (from, attempt): (NodeId, u64),
        end: LogEnd,
        sink: &mut impl Sink,
    ) {
        let Some(addr) = self.feeds(epoch, from) else { return };
        let (me, node) = (self.node(), self.node().0);
        if self.feeds.iter().all(|feed| feed.node != from) {
            let position = Position(end.position);
            let known = self.log.hash_at(position);
            let agrees = known == Some(end.hash) || !self.setup.guards.on(Guard::EpochAgreement);
            if known.is_none() || !agrees {
                let apart = CopyMessage::Apart { epoch: epoch.0, from: node, attempt };
                return self.send_control(addr, &apart, sink);
            }
            let sender = Some(Sender::new(me, epoch, (from, addr), position, attempt));
            self.feeds.push(Feed { base: position, sender, ..Feed::begun(from, addr, attempt) });
        }
        let known = self.feeds.iter().find(|feed| feed.node == from);
        match known {
            Some(feed) if feed.attempt == attempt && feed.sender.is_some() => {
                let resumed = CopyMessage::Resumed { epoch: epoch.0, from: node, attempt };
                self.send_control(addr, &resumed, sink);
            }
            _ => self.say_apart_again(from, sink),
        }
    }

    /// A joining replica that was told to begin anew goes on as before: it has not heard of it. The
    /// word is for the copy that was dropped, and means nothing to a later one.
    fn say_apart_again(&mut self, node: NodeId, sink: &mut impl Sink) {
        let feed = self.feeds.iter().find(|feed| feed.node == node && feed.sender.is_none());
        if let Some(feed) = feed
            && feed.is_dropped
            && self.setup.guards.on(Guard::ApartAgain)
        {
            let (epoch, from) = (self.epoch().0, self.node().0);
            let (addr, attempt) = (feed.addr, feed.attempt);
            self.send_control(addr, &CopyMessage::Apart { epoch, from, attempt }, sink);
        }
    }

    pub(crate) fn on_copy_ask(
        &mut self,
        epoch: Epoch,
        (from, attempt): (NodeId, u64),
        part: u64,
        index: u32,
        sink: &mut impl Sink,
    ) {
        let Some(addr) = self.feeds(epoch, from) else { return };
        if part > PART_RESULTS || !self.engine.prepare_copy() {
            return;
        }
        let at = match self.feeds.iter().position(|feed| feed.node == from) {
            Some(at) => at,
            None if part == PART_TABLE => {
                self.feeds.push(Feed::begun(from, addr, attempt));
                self.feeds.len() - 1
            }
            None => return,
        };
        let feed = &mut self.feeds[at];
        if attempt > feed.attempt && part == PART_TABLE {
            *feed = Feed::begun(from, addr, attempt);
        }
        if part == PART_RESULTS && feed.base > self.committed {
            return;
        }
        let is_behind = feed.part.as_ref().is_some_and(|own| own.number > part);
        if attempt == feed.attempt && feed.is_dropped {
            return self.say_apart_again(from, sink);
        }
        if attempt != feed.attempt || is_behind || (part != PART_TABLE && feed.sender.is_none()) {
            return;
        }
        if feed.part.as_ref().is_none_or(|own| own.number < part) {
            self.take_part(epoch, at, part);
        }
        let feed = &self.feeds[at];
        if let Some(part) = &feed.part {
            part.send((epoch.0, feed.attempt), index, feed.addr, &mut self.scratch, sink);
        }
    }

    /// Takes a part of the state as it is behind everything submitted so far.
    fn take_part(&mut self, epoch: Epoch, at: usize, number: u64) {
        let position = Position(self.submitted.position);
        let me = self.node();
        let feed = &mut self.feeds[at];
        let mut bytes = Vec::new();
        let mut is_made = true;
        if number == PART_TABLE {
            let peer = (feed.node, feed.addr);
            feed.base = position;
            feed.sender = Some(Sender::new(me, epoch, peer, position, feed.attempt));
            let table = Table {
                last_seq: self.last_seq.to_u64(),
                last_now_ms: self.last_now_ms,
                sessions: self.sessions.save(),
            };
            bytes = table.emit(0);
            if !self.pending.is_empty() {
                self.pending.push_back(Pending::Table(feed.node, bytes));
                (bytes, is_made) = (Vec::new(), false);
            }
        } else if number < PART_RESULTS {
            let bytes_max = self.setup.copy_bytes;
            let from = number - PART_OBJECTS;
            is_made = self.engine.copy(from, bytes_max, &mut bytes) == Progress::Done;
            if !is_made {
                self.pending.push_back(Pending::Copy(feed.node, number));
            }
        } else {
            bytes = postcard::to_allocvec(&self.sessions.save()).unwrap_or_default();
        }
        feed.part = Some(Part { number, position, bytes: None });
        if is_made {
            let node = feed.node;
            self.part_taken(node, number, bytes);
        }
    }

    /// Everything before a part was executed, and its bytes are there.
    pub(crate) fn part_taken(&mut self, node: NodeId, number: u64, mut bytes: Vec<u8>) {
        self.count.parts_copied += 1;
        let feed = self.feeds.iter_mut().find(|feed| feed.node == node);
        let Some(part) = feed.and_then(|feed| feed.part.as_mut()) else { return };
        if part.number != number || part.bytes.is_some() {
            return;
        }
        if number == PART_TABLE {
            let hash = self.log.hash_at(part.position);
            let Some((to, hash)) = bytes.first_chunk_mut::<HASH_BYTES>().zip(hash) else { return };
            *to = hash.to_be_bytes();
        }
        part.bytes = Some(bytes);
    }

    /// An acknowledgement by a joining replica.
    pub(crate) fn on_feed_ack(&mut self, now: Now, ack: &Ack, sink: &mut impl Sink) {
        let committed = self.committed;
        let feed = self.feeds.iter_mut().find(|feed| feed.node == ack.from);
        let Some(sender) = feed.and_then(|feed| feed.sender.as_mut()) else {
            return self.say_apart_again(ack.from, sink);
        };
        sender.on_ack(now.instant, ack, &self.log, committed, &mut self.scratch, sink);
    }

    /// Sends records to joining replicas, as far as they were executed here. One for whom they are
    /// not kept any more begins anew.
    pub(crate) fn pump_feeds(&mut self, now: Now, sink: &mut impl Sink) {
        let (epoch, from) = (self.epoch().0, self.node().0);
        let base = self.log.base().position;
        for feed in &mut self.feeds {
            let Some(sender) = feed.sender.as_mut() else { continue };
            if sender.first_needed().0 <= base {
                feed.sender = None;
                feed.is_dropped = true;
                feed.part = None;
                self.count.feeds_dropped += 1;
                CopyMessage::Apart { epoch, from, attempt: feed.attempt }.emit(&mut self.scratch);
                sink.send(feed.addr, &self.scratch);
                continue;
            }
            let (log, scratch) = (&self.log, &mut self.scratch);
            sender.pump(now.instant, log, self.executed, self.committed, scratch, sink);
        }
    }

    pub(crate) fn tick_feeds(&mut self, now: Now, sink: &mut impl Sink) {
        for sender in self.feeds.iter_mut().filter_map(|feed| feed.sender.as_mut()) {
            sender.tick(now.instant, &self.log, self.committed, &mut self.scratch, sink);
        }
    }

    pub(crate) fn feeds_deadline(&self) -> Instant {
        let senders = self.feeds.iter().filter_map(|feed| feed.sender.as_ref());
        senders.map(Sender::deadline).min().unwrap_or(Instant::NEVER)
    }

    /// Up to where records may be forgotten while somebody joins, if `position` is committed.
    pub(crate) fn forgettable(&self, position: Position) -> Position {
        if self.log.is_half_full(&self.setup.limits) {
            return position;
        }
        let tail = self.log.end().position.saturating_sub(TAIL_RECORDS);
        let senders = self.feeds.iter().filter_map(|feed| feed.sender.as_ref());
        let needed = senders.map(|sender| sender.first_needed().0 - 1).min();
        position.min(Position(tail)).min(Position(needed.unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::{Piece, first_missing, take_piece};
    use crate::sessions::Sessions;
    use concord_core::{Guards, RequestNumber, SessionId};
    use concord_wire::record::Record;
    use concord_wire::{Flags, Status};

    fn table_of_long_results(count: u64) -> Sessions {
        let mut sessions = Sessions::new(Guards::ALL);
        let result = alloc::vec![7; 1 << 20];
        for n in 0..=count {
            let record = Record {
                position: Position(n + 1),
                hash: 0,
                epoch: Epoch(1),
                flags: if n == 0 { Flags::REGISTER } else { Flags(0) },
                low_delta: n.saturating_sub(1) as u16,
                seq: concord_core::Seq::NONE,
                session: SessionId(7),
                request: RequestNumber(n),
                now_ms: 0,
                obj_id: concord_core::ObjectId(0),
                further: concord_wire::FurtherIds::NONE,
                after_delta: 0,
                attempt: 0,
                client: Addr::default(),
                refused: Status::Ok,
                command: b"",
                reply: b"",
            };
            sessions.admit(&record);
            sessions.complete(SessionId(7), RequestNumber(n), &result);
        }
        sessions
    }

    #[test]
    fn bug_15_13_a_client_table_of_many_long_results_is_copied() {
        let sessions = table_of_long_results(40);
        let table = Table { last_seq: 9, last_now_ms: 8, sessions: sessions.save() };
        let bytes = Some(table.emit(77));
        let part = Part { number: PART_TABLE, position: Position(41), bytes };
        let (mut copied, mut scratch, mut asked) = (None, Vec::new(), 0);
        'copy: loop {
            let mut sent: Vec<(Addr, Vec<u8>)> = Vec::new();
            part.send((1, 1), asked, Addr::default(), &mut scratch, &mut sent);
            for (_, packet) in sent {
                let Ok(CopyMessage::Piece { position, total_bytes, index, piece, .. }) =
                    CopyMessage::parse(&packet)
                else {
                    unreachable!("the part is sent by pieces")
                };
                let hdr = FragmentHdr { version: position, total_bytes, index, count: 1 };
                match take_piece(&mut copied, asked, hdr, &piece) {
                    Piece::Last => break 'copy,
                    Piece::LastAsked => asked = copied.as_ref().map_or(0, first_missing),
                    Piece::OfMany => {}
                }
            }
        }
        let bytes = copied.map(concord_wire::fragment::Assembly::into_bytes).unwrap_or_default();
        assert!(bytes.len() > 40 << 20);
        let mut copy = Sessions::new(Guards::ALL);
        let (hash, table) = Table::parse(&bytes).unwrap();
        copy.restore(table.sessions);
        assert!(hash == 77 && copy.save() == sessions.save());
    }
}
