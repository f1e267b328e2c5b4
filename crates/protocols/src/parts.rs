//! The parts in which a replica's state is copied, as they travel, in any protocol:
//! - the client table, with where it stands in the log: records are streamed from there on;
//! - the objects, chunk by chunk ([`concord_engine::copy`]): each as of a position of the log;
//! - the results in the client table: of requests that were executed before their object was
//!   copied.

use alloc::vec::Vec;

use concord_core::{Guard, Guards, Position};
use concord_engine::Command;
use concord_engine::copy::{
    PLACE_EARLY, PLACE_END, next_place, place, place_of_cursor, ticket_of_cursor,
};
use concord_engine::several::{Restricted, restrict};
use concord_wire::control::{CopyMessage, Message as _};
use concord_wire::fragment::{Assembly, FRAGMENT_BYTES, FragmentHdr};
use concord_wire::record::Record;
use concord_wire::{Addr, Flags, Sink};
use serde::{Deserialize, Serialize};

use crate::early::{Here, asked, parse};
use crate::part_number::REST;
pub(crate) use crate::part_number::is_rest;
use crate::sessions::{SAVED_BYTES_MAX, SavedSessions};

/// The part that is asked for first: [`Table`].
pub(crate) const PART_TABLE: u64 = 0;
/// The objects from cursor c on are part `PART_OBJECTS + c`: a place, or what is left of the
/// objects there.
pub(crate) const PART_OBJECTS: u64 = 1;
/// The last part: [`SavedSessions`].
pub(crate) const PART_RESULTS: u64 = PART_OBJECTS + PLACE_END;

/// The number of the part of objects that begins at a cursor.
pub(crate) fn number_of(cursor: u64) -> u64 {
    if ticket_of_cursor(cursor) == 0 { PART_OBJECTS + cursor } else { REST | cursor }
}

/// The cursor that a part of objects begins at.
pub(crate) fn cursor_of_part(number: u64) -> u64 {
    if is_rest(number) { number & !REST } else { number.saturating_sub(PART_OBJECTS) }
}

/// The number of the part that goes on with the objects of a part of objects, if one does.
pub(crate) fn rest_of(bytes: &[u8]) -> Option<u64> {
    let next = match parse(bytes) {
        Some(early) => next_place(early.chunk),
        None => next_place(bytes),
    };
    next.ok().filter(|next| ticket_of_cursor(*next) != 0).map(number_of)
}

/// What a question for a part is to its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// A later part was asked for since.
    Stale,
    /// It goes on with a part that is not the newest any more: it is to be had of nobody.
    Gone,
    /// It is the newest one, and was made or is being made.
    Begun,
    /// It is to be made.
    New,
}

/// What the question for `part` is where `own` is the newest part; `newest`: the newest one that
/// was asked for, but for those that go on with pieces of it.
pub(crate) fn consider(part: u64, own: Option<&Part>, newest: &mut u64) -> Demand {
    let is_begun = own.is_some_and(|own| own.number == part);
    if is_rest(part) {
        let leads = own.and_then(|own| own.bytes.as_deref()).and_then(rest_of) == Some(part);
        return match is_begun {
            true => Demand::Begun,
            false if leads => Demand::New,
            false => Demand::Gone,
        };
    }
    let last = own.map(|own| if is_rest(own.number) { *newest } else { own.number });
    // Pieces that go on with it were asked for since, or a later one.
    if !is_begun && last.is_some_and(|last| last >= part) {
        return Demand::Stale;
    }
    *newest = part;
    if is_begun { Demand::Begun } else { Demand::New }
}

/// How far whoever copies has come with the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// All before this place are here.
    pub(crate) from: u64,
    /// The cursor of what is left of objects of which pieces are here: nothing is executed before
    /// that has come.
    pub(crate) rest: Option<u64>,
}

impl Reached {
    /// The number of the part that comes next, for whoever took so many early parts.
    pub(crate) fn wanted(&self, taken: u64) -> u64 {
        self.rest.map_or_else(|| asked(PART_OBJECTS + self.from, taken), number_of)
    }

    /// Behind a chunk that leads to `next`; `None` if it brings nothing, or goes on with pieces
    /// that are not here.
    pub(crate) fn behind(self, next: u64, continues: bool) -> Option<Reached> {
        if continues != self.rest.is_some() {
            return None;
        }
        let place = place_of_cursor(next);
        let rest = (ticket_of_cursor(next) != 0).then_some(next);
        if self.rest.is_some_and(|own| place_of_cursor(own) == PLACE_EARLY) {
            return (place == PLACE_EARLY).then_some(Reached { rest, ..self });
        }
        match rest {
            _ if place == PLACE_EARLY => None,
            Some(_) => (place >= self.from).then_some(Reached { rest, ..self }),
            None => (place > self.from).then_some(Reached { from: place, rest }),
        }
    }

    /// Behind a part of keys that were copied early, which leads to `next`.
    pub(crate) fn behind_early(self, next: u64) -> Option<Reached> {
        let is_early = self.rest.is_none() && place_of_cursor(next) == PLACE_EARLY;
        let rest = (ticket_of_cursor(next) != 0).then_some(next);
        is_early.then_some(Reached { rest, ..self })
    }

    /// Whether all objects are here.
    pub(crate) fn is_all(&self) -> bool {
        self.from == PLACE_END && self.rest.is_none()
    }
}

/// Fragments that one question is answered by.
const FRAGMENTS_MAX: u32 = 32;
/// Bytes of the running hash, which stands before the [`Table`].
pub(crate) const HASH_BYTES: usize = 8;

/// The first part: where the copy stands in the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    /// The newest sequence number up to there.
    pub last_seq: u64,
    /// The stamp of the last record.
    pub last_now_ms: u64,
    pub sessions: SavedSessions,
    /// Raft: the term of the last record. It stands behind the others, and nowhere where it is 0.
    #[serde(skip)]
    pub term: u32,
    /// Raft: who votes, if that was ever changed (`quorum/raft/voters.rs`). It stands behind the
    /// term.
    #[serde(skip)]
    pub voters: Vec<u8>,
}

impl Table {
    /// The table with the running hash before it.
    pub(crate) fn emit(&self, hash: u64) -> Vec<u8> {
        let mut bytes = postcard::to_extend(self, hash.to_be_bytes().to_vec()).unwrap_or_default();
        if self.term > 0 || !self.voters.is_empty() {
            bytes.extend_from_slice(&self.term.to_be_bytes());
            bytes.extend_from_slice(&self.voters);
        }
        bytes
    }

    /// The running hash and the table.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(u64, Table)> {
        let (hash, table) = bytes.split_first_chunk::<HASH_BYTES>()?;
        let (table, rest) = postcard::take_from_bytes::<Table>(table).ok()?;
        let (term, voters) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let (term, voters) = (u32::from_be_bytes(*term), voters.to_vec());
        Some((u64::from_be_bytes(*hash), Table { term, voters, ..table }))
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
    /// VR: whether it is as of before the view began, and can be made anew. A follower that copied
    /// from an earlier leader may need it as of later.
    pub(crate) fn is_early(&self, view_start: Position, executed: Position) -> bool {
        self.position < view_start && self.position < executed
    }

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

/// Tells whoever asked for part `number`, which goes on with pieces of an object, that it is gone:
/// an empty part. Its copy begins anew, unless it has that part by now.
pub(crate) fn say_gone(
    (epoch, attempt): (u32, u64),
    number: u64,
    addr: Addr,
    scratch: &mut Vec<u8>,
    sink: &mut impl Sink,
) {
    let (position, total_bytes, index) = (0, 0, 0);
    let (part, piece) = (number, Vec::new());
    CopyMessage::Piece { epoch, attempt, part, position, total_bytes, index, piece }.emit(scratch);
    sink.send(addr, scratch);
}

/// Longest part that is taken, in bytes: an object is never cut.
const PART_BYTES_MAX: usize = 1 << 30;
// Whatever is in the client table, a replica can join.
const _: () = assert!(SAVED_BYTES_MAX < PART_BYTES_MAX);

/// What a replica that has the objects before place `from` can execute of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Executable {
    /// All of it.
    All,
    /// Nothing: its objects are yet to come, and their chunks will show what it did.
    Nothing,
    /// This command: the rest concerns objects that are yet to come.
    Part(Vec<u8>),
    /// What it does to one object hangs on others, and some of both are here: the copy begins anew.
    Entangled,
}

impl Executable {
    /// The command that is executed, of a record with `command`.
    pub(crate) fn command<'a>(&'a self, command: &'a [u8]) -> &'a [u8] {
        match self {
            Executable::Part(part) => part,
            Executable::All | Executable::Nothing | Executable::Entangled => command,
        }
    }

    /// Of `record`, if the objects before place `from` are here, and what was copied early.
    pub(crate) fn of(record: &Record<'_>, from: u64, here: &Here, guards: Guards) -> Executable {
        let is_of_one = record.further.is_empty() && !record.flags.has(Flags::WILDCARD);
        if is_of_one || !guards.on(Guard::SeveralCopied) {
            let is_here = record.flags.has(Flags::WILDCARD)
                || place(record.obj_id) < from
                || (!here.is_empty() && here.has_of(record.command, from));
            return if is_here { Executable::All } else { Executable::Nothing };
        }
        // What is no command is refused by all alike.
        let Ok(command) = Command::parse(record.command) else { return Executable::All };
        match restrict(&command, &|key| here.has(key, from)) {
            // The first chunk shows what it did, and nothing was copied early before that.
            Restricted::Entangled if from == 0 => Executable::Nothing,
            Restricted::Entangled if here.has_of_script(record.position) => Executable::All,
            Restricted::All => Executable::All,
            Restricted::Nothing => Executable::Nothing,
            Restricted::Part(command) => Executable::Part(command),
            Restricted::Entangled => Executable::Entangled,
        }
    }
}

/// What a fragment of a part is to who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The part is whole.
    Last,
    /// The last one of what was asked for: it is time to ask on.
    LastAsked,
    /// One of many, or of no use.
    OfMany,
    /// The part is gone at its source, and cannot be made anew.
    Gone,
}

/// Puts a fragment to the others of its `part`, or begins another; `asked` is the first one of the
/// last question.
pub(crate) fn take_piece(
    part: &mut Option<Assembly>,
    asked: u32,
    hdr: FragmentHdr,
    piece: &[u8],
) -> Piece {
    if hdr.total_bytes == 0 {
        return Piece::Gone;
    }
    if hdr.index >= hdr.fragments() || hdr.total_bytes as usize > PART_BYTES_MAX {
        return Piece::OfMany;
    }
    let other =
        |own: &mut Assembly| own.version() != hdr.version || own.total_bytes() != hdr.total_bytes;
    part.take_if(other);
    let own = part.get_or_insert_with(|| Assembly::new(hdr));
    own.add(&hdr, piece);
    if own.is_complete() {
        Piece::Last
    } else if hdr.index + 1 == asked.saturating_add(FRAGMENTS_MAX).min(hdr.fragments()) {
        Piece::LastAsked
    } else {
        Piece::OfMany
    }
}

pub(crate) fn first_missing(part: &Assembly) -> u32 {
    let fragments = part.total_bytes().div_ceil(concord_wire::fragment::FRAGMENT_BYTES as u32);
    (0..fragments).find(|index| !part.has(*index)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::sessions::Sessions;
    use concord_core::{Epoch, Guards, RequestNumber, SessionId};
    use concord_engine::CommandBuf;
    use concord_engine::copy::place_of_key;
    use concord_wire::record::Record;
    use concord_wire::{Flags, FurtherIds};

    fn table_of_long_results(count: u64) -> Sessions {
        let mut sessions = Sessions::new(Guards::ALL);
        let result = alloc::vec![7; 1 << 20];
        for n in 0..=count {
            let record = Record {
                position: Position(n + 1),
                epoch: Epoch(1),
                flags: if n == 0 { Flags::REGISTER } else { Flags(0) },
                low_delta: n.saturating_sub(1) as u16,
                session: SessionId(7),
                request: RequestNumber(n),
                ..Record::EMPTY
            };
            sessions.admit(&record);
            sessions.complete(SessionId(7), RequestNumber(n), &result);
        }
        sessions
    }

    #[test]
    fn bug_15_13_a_client_table_of_many_long_results_is_copied() {
        let sessions = table_of_long_results(40);
        let table = Table {
            last_seq: 9,
            last_now_ms: 8,
            sessions: sessions.save(),
            term: 0,
            voters: Vec::new(),
        };
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
                    Piece::OfMany | Piece::Gone => {}
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

    #[test]
    fn a_table_says_the_term_and_the_voters_where_there_are_any() {
        let mut longest = 0;
        for (term, voters) in [(0, vec![]), (3, vec![]), (0, vec![7]), (3, vec![7, 8])] {
            let sessions = Sessions::new(Guards::ALL).save();
            let table = Table { last_seq: 9, last_now_ms: 8, sessions, term, voters };
            let bytes = table.emit(77);
            let (hash, copy) = Table::parse(&bytes).unwrap();
            assert_eq!((hash, copy.last_seq, copy.last_now_ms), (77, 9, 8));
            assert_eq!((copy.term, copy.voters), (table.term, table.voters));
            assert!(bytes.len() > longest, "where there are none it is as it was");
            longest = bytes.len();
        }
        assert!(Table::parse(b"short").is_none());
    }

    #[test]
    fn a_part_of_before_the_view_is_made_anew_once_that_can_be() {
        let part = |position| Part { number: 1, position: Position(position), bytes: None };
        let is_early = |at, start, executed| part(at).is_early(Position(start), Position(executed));
        assert!(is_early(4, 5, 5));
        assert!(!is_early(5, 5, 6), "the view began with it");
        assert!(!is_early(4, 5, 4), "nothing more was executed");
    }

    /// A key, and its place.
    fn key_at(n: u8) -> ([u8; 2], u64) {
        ([b'k', n], place_of_key(&[b'k', n]))
    }

    #[test]
    fn of_a_record_that_is_executed_whose_objects_were_copied() {
        let (key, at) = key_at(b'a');
        let obj_id = concord_core::hash::object_id(&key);
        let record = Record { obj_id, ..Record::EMPTY };
        let of = |from| Executable::of(&record, from, &Here::default(), Guards::ALL);
        assert_eq!((of(at), of(at + 1)), (Executable::Nothing, Executable::All));
        // Of several each for itself.
        let (other, behind) = (b'b'..=b'z').map(key_at).find(|(_, behind)| *behind > at).unwrap();
        let further = FurtherIds::new(&[concord_core::hash::object_id(&other)]).unwrap();
        let mut commands = [CommandBuf::new(), CommandBuf::new(), CommandBuf::new()];
        let [set, both, one] = &mut commands;
        let set = set.encode(0, [&b"MSET"[..], &key, b"1", &other, b"2"]);
        let record = Record { obj_id, further, command: set, ..Record::EMPTY };
        let of = |from| Executable::of(&record, from, &Here::default(), Guards::ALL);
        assert_eq!((of(at), of(behind + 1)), (Executable::Nothing, Executable::All));
        let part = Executable::Part(one.encode(0, [&b"MSET"[..], &key, b"1"]).to_vec());
        assert_eq!((of(at + 1), of(behind)), (part.clone(), part.clone()));
        assert!(part.command(set) != set && Executable::All.command(set) == set);
        // What is done to one hangs on the other.
        let both = both.encode(0, [&b"MSETNX"[..], &key, b"1", &other, b"2"]);
        let record = Record { command: both, ..record };
        assert_eq!(
            Executable::of(&record, behind, &Here::default(), Guards::ALL),
            Executable::Entangled
        );
        // One of all keys, as if it named several.
        let flags = Flags::WILDCARD;
        let record = Record { flags, further: FurtherIds::NONE, command: b"no command", ..record };
        assert_eq!(Executable::of(&record, 0, &Here::default(), Guards::ALL), Executable::All);
    }

    /// Fragments are asked for by and by and those of no use change nothing.
    #[test]
    fn fragments_are_requested_gradually() {
        let total_bytes = (FRAGMENTS_MAX + 2) * FRAGMENT_BYTES as u32;
        let hdr = FragmentHdr { version: 5, total_bytes, index: 0, count: 1 };
        let (mut part, piece) = (None, [7; FRAGMENT_BYTES]);
        let mut take = |hdr, asked| take_piece(&mut part, asked, hdr, &piece);
        let beyond = FragmentHdr { index: FRAGMENTS_MAX + 2, ..hdr };
        assert_eq!(take(beyond, 0), Piece::OfMany);
        let huge = FragmentHdr { total_bytes: PART_BYTES_MAX as u32 + 1, ..hdr };
        assert_eq!(take(huge, 0), Piece::OfMany);
        for index in 0..FRAGMENTS_MAX - 1 {
            assert_eq!(take(FragmentHdr { index, ..hdr }, 0), Piece::OfMany);
        }
        let last_asked = FragmentHdr { index: FRAGMENTS_MAX - 1, ..hdr };
        assert_eq!(take(last_asked, 0), Piece::LastAsked);
        let last = FragmentHdr { index: FRAGMENTS_MAX + 1, ..hdr };
        assert_eq!(take(last, FRAGMENTS_MAX), Piece::LastAsked, "the one before it is lacking");
        assert_eq!(part.as_ref().map(first_missing), Some(FRAGMENTS_MAX));
        let rest = FragmentHdr { index: FRAGMENTS_MAX, ..hdr };
        let mut whole = part.clone();
        assert_eq!(take_piece(&mut whole, FRAGMENTS_MAX, rest, &piece), Piece::Last);
        // As of another position it is another part, and so it is if it has another length.
        for other in [
            FragmentHdr { version: 6, ..rest },
            FragmentHdr { total_bytes: total_bytes - 1, ..rest },
        ] {
            let mut own = part.clone();
            take_piece(&mut own, 0, other, &piece);
            assert_eq!(own.as_ref().map(first_missing), Some(0));
        }
    }
}
