//! The client table (trap T16): a write is executed at most once.
//!
//! A session has an id that is unique for each start of a process, and is registered through the
//! replicated log. Each request carries the number of the session's lowest unanswered request, and
//! the table keeps every result from there on. Only records change it, in log order, so that it is
//! the same at every replica.
//!
//! A late duplicate of a registration must not bring an evicted session back with an empty table.
//! So a registration names a log position that its client has heard of, and is refused if a session
//! that registered after that position was evicted.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::Cell;

use concord_core::{Guard, Guards, Position, RequestNumber, SessionId};
use concord_engine::DONE_TOO_LONG;
use concord_wire::record::Record;
use concord_wire::rpc::BODY_BYTES_MAX;
use concord_wire::{Flags, REPLY_BYTES_MAX, Status, WINDOW_MAX};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use serde::{Deserialize, Serialize};

/// The default for the largest number of sessions; the one that has been without a write for
/// longest makes room.
pub const SESSIONS_MAX: usize = 1_024;
/// The largest total size of the long results in the table, in bytes. Beyond it, the oldest of the
/// session that has the most are dropped: the request stays executed, and a retry is answered that
/// its outcome is unknown.
pub const RESULTS_BYTES_MAX: usize = 128 << 20;
const INLINE_BYTES: usize = 22;
/// The reply to a write that was refused because a disk has no room.
pub const DISK_FULL_REPLY: &[u8] =
    b"-DISKFULL the disk of a replica has no room: writes are refused until it has\r\n";
/// The largest size of the encoded table, in bytes: each result has its kind and its length with
/// it.
pub const SAVED_BYTES_MAX: usize =
    RESULTS_BYTES_MAX + SESSIONS_MAX * (64 + WINDOW_MAX as usize * (INLINE_BYTES + 6));

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Execute its command.
    Execute,
    /// Executed before: answer with the stored result.
    Duplicate,
    /// Nothing to execute: the record only has its place in the log.
    Nothing,
    /// Not executed: answer with this status.
    Refused(Status),
}

#[derive(Clone, Debug)]
enum Entry {
    Empty,
    Running,
    Short(u8, [u8; INLINE_BYTES]),
    /// A long result; once it was asked for with its version, if it takes several packets, since
    /// clients name the version in each request for fragments.
    Long(Box<[u8]>, Cell<Option<u64>>),
    /// Executed; there was no room for the result.
    Dropped,
}

#[derive(Clone, Debug)]
struct Session {
    /// The lowest unanswered request, to which entry 0 belongs: all requests below were answered or
    /// abandoned.
    low: u64,
    entries: VecDeque<Entry>,
    registered: Position,
    last_used: Position,
    /// The total size of the session's long results, in bytes.
    long_bytes: usize,
}

/// The version of a result that takes several packets (trap T17), the same at every replica.
fn version_of(result: &[u8]) -> Option<u64> {
    (result.len() > BODY_BYTES_MAX).then(|| concord_core::hash::hash64(0, result))
}

/// The client table.
#[derive(Clone, Debug)]
pub struct Sessions {
    by_id: HashMap<u64, Session, FxBuildHasher>,
    /// The position of the last registration among all evicted sessions.
    evicted: Position,
    sessions_max: usize,
    /// The total size of all long results, in bytes; then its bound.
    long_bytes: usize,
    long_bytes_max: usize,
    /// The number of results that were dropped for lack of room.
    dropped: u64,
    guards: Guards,
}

/// The client table for another replica (trap T16: it is in snapshots).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSessions {
    evicted: u64,
    /// Ascending by id.
    sessions: Vec<SavedSession>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedSession {
    id: u64,
    low: u64,
    registered: u64,
    last_used: u64,
    entries: Vec<SavedEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SavedEntry {
    Empty,
    /// Executed, or about to be; the saving replica does not have the result yet.
    Running,
    Result(Vec<u8>),
    /// Executed; there was no room for the result.
    Dropped,
}

impl Sessions {
    /// An empty table.
    #[must_use]
    pub fn new(guards: Guards) -> Sessions {
        Sessions {
            by_id: HashMap::default(),
            evicted: Position(0),
            sessions_max: SESSIONS_MAX,
            long_bytes: 0,
            long_bytes_max: RESULTS_BYTES_MAX,
            dropped: 0,
            guards,
        }
    }

    /// The same table with room for `sessions_max` sessions.
    #[must_use]
    pub fn with_room_for(self, sessions_max: usize) -> Sessions {
        Sessions { sessions_max, ..self }
    }

    /// Forgets all sessions.
    pub fn forget(&mut self) {
        *self = Sessions::new(self.guards).with_room_for(self.sessions_max);
    }

    /// Forgets all sessions, and refuses to register again those that registered up to `position`.
    pub fn give_up(&mut self, position: Position) {
        self.forget();
        self.evicted = position;
    }

    /// Number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Decides what to do with the next record, and marks a request to execute as running.
    pub fn admit(&mut self, record: &Record<'_>) -> Verdict {
        if record.flags.has(Flags::NOOP) {
            return Verdict::Nothing;
        }
        if record.flags.has(Flags::INTERNAL) {
            let makes_sense = record.refused == Status::Ok || !self.guards.on(Guard::OwnWrites);
            return if makes_sense { Verdict::Execute } else { Verdict::Refused(record.refused) };
        }
        if record.flags.has(Flags::REGISTER) {
            return self.register(record.session, record.request, record.position);
        }
        let guards = self.guards;
        let Some(session) = self.by_id.get_mut(&record.session.0) else {
            return Verdict::Refused(Status::SessionExpired);
        };
        session.last_used = record.position;
        let request = record.request.0;
        let before = session.long_bytes;
        session.raise_low(request.saturating_sub(u64::from(record.low_delta)));
        self.long_bytes -= before - session.long_bytes;
        if !guards.on(Guard::ClientTable) {
            return Verdict::Execute;
        }
        if request < session.low {
            return Verdict::Refused(Status::Stale);
        }
        let at = request - session.low;
        if at >= WINDOW_MAX {
            return Verdict::Refused(Status::Window);
        }
        match session.entries.get(at as usize) {
            Some(Entry::Running | Entry::Short(..) | Entry::Long(..) | Entry::Dropped) => {
                return Verdict::Duplicate;
            }
            Some(Entry::Empty) | None => {}
        }
        if record.refused != Status::Ok {
            return Verdict::Refused(record.refused);
        }
        // In a forged record the delta may exceed the number.
        let after = request.checked_sub(u64::from(record.after_delta));
        if record.after_delta != 0 && !after.is_some_and(|after| session.done(after)) {
            return Verdict::Refused(Status::Order);
        }
        if session.entries.len() <= at as usize {
            session.entries.resize(at as usize + 1, Entry::Empty);
        }
        session.entries[at as usize] = Entry::Running;
        if record.flags.has(Flags::DISK_FULL) {
            // A retry gets the same answer, even if there is room by then.
            self.complete(record.session, record.request, DISK_FULL_REPLY);
            return Verdict::Duplicate;
        }
        Verdict::Execute
    }

    /// Stores the result of an executed request.
    pub fn complete(&mut self, session: SessionId, request: RequestNumber, reply: &[u8]) {
        self.complete_with(session, request, reply.into());
    }

    /// The same, with a result that is given away where it is long.
    pub fn complete_with(
        &mut self,
        session: SessionId,
        request: RequestNumber,
        reply: Cow<'_, [u8]>,
    ) {
        let Some(session) = self.by_id.get_mut(&session.0) else { return };
        let Some(at) = request.0.checked_sub(session.low) else { return };
        // Nobody could fetch a longer one.
        let reply = if reply.len() > REPLY_BYTES_MAX { DONE_TOO_LONG.into() } else { reply };
        if let Some(entry) = session.entries.get_mut(at as usize) {
            let before = entry.long_bytes();
            *entry = Entry::result(reply);
            session.long_bytes = session.long_bytes - before + entry.long_bytes();
            self.long_bytes = self.long_bytes - before + entry.long_bytes();
        }
        self.drop_results();
    }

    /// Drops long results beyond their bound.
    fn drop_results(&mut self) {
        while self.long_bytes > self.long_bytes_max {
            // Ids are unique, so the order of the map does not matter.
            let most = self.by_id.iter_mut().max_by_key(|(id, s)| (s.long_bytes, **id));
            let Some((_, session)) = most else { return };
            let before = session.long_bytes;
            self.dropped += session.drop_results(before / 2);
            self.long_bytes -= before - session.long_bytes;
        }
    }

    /// The number of results that were dropped for lack of room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The stored result of a request.
    #[must_use]
    pub fn result(&self, session: SessionId, request: RequestNumber) -> Option<&[u8]> {
        match self.entry(session, request)? {
            Entry::Short(length, bytes) => Some(&bytes[..*length as usize]),
            Entry::Long(bytes, _) => Some(bytes),
            Entry::Empty | Entry::Running | Entry::Dropped => None,
        }
    }

    /// The kept result of a request, if it is one of many packets, and its version. That takes no
    /// longer for a longer result, but for the first time: a client asks once for every few
    /// fragments, and only one replica.
    #[must_use]
    pub fn long_result(&self, session: SessionId, request: RequestNumber) -> Option<(&[u8], u64)> {
        match self.entry(session, request)? {
            Entry::Long(bytes, version) => {
                let known = version.get().or_else(|| version_of(bytes));
                version.set(known);
                Some((bytes, known?))
            }
            Entry::Empty | Entry::Running | Entry::Short(..) | Entry::Dropped => None,
        }
    }

    fn entry(&self, session: SessionId, request: RequestNumber) -> Option<&Entry> {
        let session = self.by_id.get(&session.0)?;
        session.entries.get(request.0.checked_sub(session.low)? as usize)
    }

    /// Whether a request was executed, or abandoned: its body is of no use any more.
    #[must_use]
    pub fn was_executed(&self, session: SessionId, request: RequestNumber) -> bool {
        self.by_id.get(&session.0).is_some_and(|session| session.done(request.0))
    }

    fn register(&mut self, id: SessionId, heard: RequestNumber, position: Position) -> Verdict {
        if let Some(session) = self.by_id.get_mut(&id.0) {
            session.last_used = position;
            return Verdict::Nothing;
        }
        if heard.0 < self.evicted.0 {
            return Verdict::Refused(Status::Stale);
        }
        if self.by_id.len() >= self.sessions_max {
            // Positions are unique, so that every replica picks the same one in any map order.
            let oldest = self.by_id.iter().min_by_key(|(_, s)| s.last_used).map(|(id, _)| *id);
            if let Some(evicted) = oldest.and_then(|oldest| self.by_id.remove(&oldest)) {
                self.evicted = self.evicted.max(evicted.registered);
                self.long_bytes -= evicted.long_bytes;
            }
        }
        let (entries, long_bytes) = (VecDeque::new(), 0);
        let (registered, last_used) = (position, position);
        self.by_id.insert(id.0, Session { low: 1, entries, registered, last_used, long_bytes });
        Verdict::Nothing
    }

    /// The table for another replica.
    #[must_use]
    pub fn save(&self) -> SavedSessions {
        let save = |(id, session): (&u64, &Session)| SavedSession {
            id: *id,
            low: session.low,
            registered: session.registered.0,
            last_used: session.last_used.0,
            entries: session.entries.iter().map(Entry::save).collect(),
        };
        let mut sessions: Vec<SavedSession> = self.by_id.iter().map(save).collect();
        sessions.sort_unstable_by_key(|session| session.id);
        SavedSessions { evicted: self.evicted.0, sessions }
    }

    /// A digest of the table, equal on replicas that executed the same.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let saved = postcard::to_allocvec(&self.save()).unwrap_or_default();
        concord_core::hash::hash64(0, &saved)
    }

    /// Replaces the table by another replica's.
    pub fn restore(&mut self, saved: SavedSessions) {
        self.evicted = Position(saved.evicted);
        self.by_id.clear();
        self.long_bytes = 0;
        for session in saved.sessions {
            let entries: VecDeque<Entry> =
                session.entries.iter().map(SavedEntry::restore).collect();
            let restored = Session {
                low: session.low,
                long_bytes: entries.iter().map(Entry::long_bytes).sum(),
                entries,
                registered: Position(session.registered),
                last_used: Position(session.last_used),
            };
            self.long_bytes += restored.long_bytes;
            self.by_id.insert(session.id, restored);
        }
    }

    /// Takes over the results of requests that were not executed here.
    pub fn learn(&mut self, saved: &SavedSessions) {
        for from in &saved.sessions {
            let Some(session) = self.by_id.get_mut(&from.id) else { continue };
            for (request, entry) in (from.low..).zip(&from.entries) {
                let at = request.checked_sub(session.low).map(|at| at as usize);
                if let SavedEntry::Result(_) | SavedEntry::Dropped = entry
                    && let Some(own) = at.and_then(|at| session.entries.get_mut(at))
                    && matches!(own, Entry::Running)
                {
                    *own = entry.restore();
                    session.long_bytes += own.long_bytes();
                    self.long_bytes += own.long_bytes();
                }
            }
        }
        self.drop_results();
    }
}

impl Entry {
    fn result(reply: Cow<'_, [u8]>) -> Entry {
        if reply.len() > INLINE_BYTES {
            return Entry::Long(reply.into_owned().into(), Cell::new(None));
        }
        let mut short = [0; INLINE_BYTES];
        short[..reply.len()].copy_from_slice(&reply);
        Entry::Short(reply.len() as u8, short)
    }

    fn long_bytes(&self) -> usize {
        match self {
            Entry::Long(bytes, _) => bytes.len(),
            Entry::Empty | Entry::Running | Entry::Short(..) | Entry::Dropped => 0,
        }
    }

    fn save(&self) -> SavedEntry {
        match self {
            Entry::Dropped => SavedEntry::Dropped,
            Entry::Empty => SavedEntry::Empty,
            Entry::Running => SavedEntry::Running,
            Entry::Short(length, bytes) => SavedEntry::Result(bytes[..*length as usize].to_vec()),
            Entry::Long(bytes, _) => SavedEntry::Result(bytes.to_vec()),
        }
    }
}

impl SavedEntry {
    fn restore(&self) -> Entry {
        match self {
            SavedEntry::Empty => Entry::Empty,
            SavedEntry::Running => Entry::Running,
            SavedEntry::Dropped => Entry::Dropped,
            SavedEntry::Result(reply) => Entry::result(reply.into()),
        }
    }
}

impl Session {
    fn raise_low(&mut self, low: u64) {
        while self.low < low {
            let Some(entry) = self.entries.pop_front() else {
                self.low = low;
                return;
            };
            self.long_bytes -= entry.long_bytes();
            self.low += 1;
        }
    }

    /// Drops the session's oldest long results until they have at most `bytes_max` bytes. Returns
    /// the number dropped.
    fn drop_results(&mut self, bytes_max: usize) -> u64 {
        let mut dropped = 0;
        for entry in &mut self.entries {
            if self.long_bytes <= bytes_max {
                break;
            }
            let bytes = entry.long_bytes();
            if bytes > 0 {
                *entry = Entry::Dropped;
                self.long_bytes -= bytes;
                dropped += 1;
            }
        }
        dropped
    }

    /// Whether `request` was executed or abandoned, or an earlier record of it is being executed.
    fn done(&self, request: u64) -> bool {
        match request.checked_sub(self.low) {
            None => true,
            Some(at) => !matches!(self.entries.get(at as usize), None | Some(Entry::Empty)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::{Epoch, ObjectId, Seq};
    use concord_wire::Addr;

    fn record(session: u64, request: u64, low: u64, after: u64) -> Record<'static> {
        Record {
            position: Position(request),
            hash: 0,
            epoch: Epoch(1),
            flags: Flags(0),
            low_delta: (request - low) as u16,
            seq: Seq::NONE,
            session: SessionId(session),
            request: RequestNumber(request),
            now_ms: 0,
            obj_id: ObjectId(0),
            further: concord_wire::FurtherIds::NONE,
            after_delta: if after == 0 { 0 } else { (request - after) as u16 },
            attempt: 0,
            client: Addr::default(),
            refused: Status::Ok,
            command: b"",
            reply: b"",
        }
    }

    /// A registration at a position, by a client that heard of position `heard`.
    fn hello(session: u64, heard: u64, position: u64) -> Record<'static> {
        let position = Position(position);
        Record { flags: Flags::REGISTER, position, ..record(session, heard, heard, 0) }
    }

    fn registered() -> Sessions {
        let mut table = Sessions::new(Guards::ALL);
        let hello = hello(7, 0, 1);
        assert_eq!(table.admit(&hello), Verdict::Nothing);
        table
    }

    /// The retry of a lost request is executed after a later one.
    #[test]
    fn t16a_lost_request_retry_after_a_later_one() {
        let mut table = registered();
        assert_eq!(table.admit(&record(7, 6, 5, 0)), Verdict::Execute);
        table.complete(SessionId(7), RequestNumber(6), b"six");
        assert_eq!(table.admit(&record(7, 5, 5, 0)), Verdict::Execute);
        assert_eq!(table.admit(&record(7, 6, 5, 0)), Verdict::Duplicate);
        assert_eq!(table.result(SessionId(7), RequestNumber(6)), Some(&b"six"[..]));
    }

    #[test]
    fn t16b_a_stranger_gets_nobodys_replies() {
        let mut table = registered();
        assert_eq!(table.admit(&record(8, 1, 1, 0)), Verdict::Refused(Status::SessionExpired));
    }

    #[test]
    fn t16c_an_answered_request_is_refused_and_never_executed_again() {
        let mut table = registered();
        assert_eq!(table.admit(&record(7, 1, 1, 0)), Verdict::Execute);
        assert_eq!(table.admit(&record(7, 2, 2, 0)), Verdict::Execute);
        assert_eq!(table.admit(&record(7, 1, 1, 0)), Verdict::Refused(Status::Stale));
    }

    #[test]
    fn t16c_a_request_of_an_evicted_session_is_refused() {
        let mut table = registered();
        for id in 0..SESSIONS_MAX as u64 {
            assert_eq!(table.admit(&hello(1_000 + id, 0, 100 + id)), Verdict::Nothing);
        }
        assert_eq!(table.len(), SESSIONS_MAX);
        assert_eq!(table.admit(&record(7, 1, 1, 0)), Verdict::Refused(Status::SessionExpired));
    }

    /// A late duplicate of a registration brings no evicted session back.
    #[test]
    fn t16c_late_registration_revives_no_session() {
        let mut table = registered();
        assert_eq!(table.admit(&record(7, 1, 1, 0)), Verdict::Execute);
        for id in 0..SESSIONS_MAX as u64 {
            table.admit(&hello(1_000 + id, 0, 100 + id));
        }
        assert_eq!(table.admit(&hello(7, 0, 5_000)), Verdict::Refused(Status::Stale));
        assert_eq!(table.admit(&record(7, 1, 1, 0)), Verdict::Refused(Status::SessionExpired));
        // A stranger is refused once, is told the position, and comes again.
        assert_eq!(table.admit(&hello(8, 0, 5_001)), Verdict::Refused(Status::Stale));
        assert_eq!(table.admit(&hello(8, 5_001, 5_002)), Verdict::Nothing);
        assert_eq!(table.admit(&record(8, 1, 1, 0)), Verdict::Execute);
        assert_eq!(table.len(), SESSIONS_MAX);
    }

    #[test]
    fn t16_the_table_is_in_snapshots() {
        let mut table = registered();
        let long = [b'x'; 100];
        for (request, reply) in [(1, &b"one"[..]), (3, &long)] {
            table.admit(&record(7, request, 1, 0));
            table.complete(SessionId(7), RequestNumber(request), reply);
        }
        table.admit(&record(7, 4, 1, 0));
        let mut copy = Sessions::new(Guards::ALL);
        copy.restore(table.save());
        assert_eq!(copy.save(), table.save());
        for request in [1, 3, 4] {
            assert_eq!(copy.admit(&record(7, request, 1, 0)), Verdict::Duplicate);
        }
        assert_eq!(copy.admit(&record(7, 2, 1, 0)), Verdict::Execute);
        assert_eq!(copy.result(SessionId(7), RequestNumber(3)), Some(&long[..]));
        // What ran at the source meanwhile is learned, what ran here stays.
        table.complete(SessionId(7), RequestNumber(4), b"four");
        copy.complete(SessionId(7), RequestNumber(2), b"two");
        copy.admit(&record(7, 9, 3, 0));
        copy.learn(&table.save());
        assert_eq!(copy.result(SessionId(7), RequestNumber(4)), Some(&b"four"[..]));
        assert_eq!(copy.result(SessionId(7), RequestNumber(9)), None);
        assert_eq!(copy.admit(&record(7, 2, 2, 0)), Verdict::Refused(Status::Stale));
    }

    #[test]
    fn t22_a_write_waits_for_the_write_before_it() {
        let mut table = registered();
        assert_eq!(table.admit(&record(7, 2, 1, 1)), Verdict::Refused(Status::Order));
        assert_eq!(table.admit(&record(7, 1, 1, 0)), Verdict::Execute);
        assert_eq!(table.admit(&record(7, 2, 1, 1)), Verdict::Execute);
        // Abandoned: nothing below the lowest unanswered request is waited for.
        assert_eq!(table.admit(&record(7, 9, 9, 8)), Verdict::Execute);
    }

    /// The bytes of results are bounded and what was executed stays so.
    #[test]
    fn bug_15_13_result_bytes_are_bounded() {
        let mut table = registered();
        table.long_bytes_max = 10_000;
        table.admit(&hello(8, 0, 2));
        let complete = |table: &mut Sessions, session, request, bytes: usize| {
            assert_eq!(table.admit(&record(session, request, 1, 0)), Verdict::Execute);
            table.complete(SessionId(session), RequestNumber(request), &alloc::vec![1; bytes]);
        };
        complete(&mut table, 8, 1, 2_000);
        for request in 1..=100 {
            complete(&mut table, 7, request, 1_000);
            assert!(table.long_bytes <= 10_000);
        }
        // Who has most loses the oldest; nothing is executed again for that.
        assert!(table.result(SessionId(8), RequestNumber(1)).is_some());
        assert_eq!(table.result(SessionId(7), RequestNumber(1)), None);
        assert!(table.result(SessionId(7), RequestNumber(100)).is_some());
        assert_eq!(table.admit(&record(7, 1, 1, 0)), Verdict::Duplicate);
        assert!(table.dropped() > 90);
        let mut copy = Sessions::new(Guards::ALL);
        copy.restore(table.save());
        assert_eq!((copy.save(), copy.long_bytes), (table.save(), table.long_bytes));
        assert_eq!(copy.admit(&record(7, 1, 1, 0)), Verdict::Duplicate);
        // What is answered takes no room any more.
        copy.admit(&record(7, 101, 101, 0));
        assert_eq!(copy.long_bytes, 2_000);
    }

    #[test]
    fn the_window_bounds_the_table() {
        let mut table = registered();
        let far = record(7, WINDOW_MAX + 1, 1, 0);
        assert_eq!(table.admit(&far), Verdict::Refused(Status::Window));
        assert!(table.by_id[&7].entries.len() <= 1);
    }

    #[test]
    fn bug_15_13_results_that_are_learned_count_too() {
        let (mut source, mut copy) = (registered(), registered());
        for (request, bytes) in [(1, 100), (2, 70), (3, 5)] {
            for table in [&mut source, &mut copy] {
                assert_eq!(table.admit(&record(7, request, 1, 0)), Verdict::Execute);
            }
            let reply = alloc::vec![1; bytes];
            source.complete(SessionId(7), RequestNumber(request), &reply);
        }
        copy.learn(&source.save());
        assert_eq!((copy.long_bytes, copy.by_id[&7].long_bytes), (170, 170));
        copy.learn(&source.save());
        assert_eq!(copy.long_bytes, 170, "it knows them");
        copy.admit(&record(7, 4, 2, 0));
        assert_eq!((copy.long_bytes, copy.by_id[&7].long_bytes), (70, 70));
    }

    #[test]
    fn bug_15_13_there_is_no_more_room_for_results_that_are_learned() {
        let (mut source, mut copy) = (registered(), registered());
        copy.long_bytes_max = 170;
        for request in [1, 2] {
            source.admit(&record(7, request, 1, 0));
            copy.admit(&record(7, request, 1, 0));
            source.complete(SessionId(7), RequestNumber(request), &[1; 100]);
        }
        copy.learn(&source.save());
        assert_eq!((copy.long_bytes, copy.dropped()), (100, 1));
        assert_eq!(copy.result(SessionId(7), RequestNumber(1)), None);
        assert!(copy.result(SessionId(7), RequestNumber(2)).is_some());
    }

    #[test]
    fn the_results_of_an_evicted_session_take_no_room() {
        let mut table = registered().with_room_for(1);
        table.admit(&record(7, 1, 1, 0));
        table.complete(SessionId(7), RequestNumber(1), &[1; 100]);
        assert_eq!(table.long_bytes, 100);
        table.admit(&hello(8, 0, 2));
        assert_eq!((table.len(), table.long_bytes), (1, 0));
        table.admit(&record(8, 1, 1, 0));
        table.complete(SessionId(8), RequestNumber(1), &[1; 50]);
        assert_eq!(table.long_bytes, 50);
    }

    #[test]
    fn t16c_sessions_that_were_given_up_do_not_come_back() {
        let mut table = registered().with_room_for(3);
        table.give_up(Position(5));
        assert!(table.is_empty() && table.sessions_max == 3);
        assert_eq!(table.admit(&hello(7, 4, 9)), Verdict::Refused(Status::Stale));
        assert_eq!(table.admit(&hello(7, 5, 10)), Verdict::Nothing);
    }

    /// A forged packet names a request before the first one.
    #[test]
    fn bug_22_105_what_comes_before_the_first_request_is_refused() {
        let mut table = registered();
        let forged = Record { after_delta: 5, ..record(7, 2, 1, 0) };
        assert_eq!(table.admit(&forged), Verdict::Refused(Status::Order));
    }
}
