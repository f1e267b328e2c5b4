//! One client's connection: its settings, its input, and its commands in order.

pub(crate) mod client;
pub(crate) mod databases;
pub(crate) mod held;
pub(crate) mod id;
pub(crate) mod local;
pub(crate) mod multi;
pub(crate) mod pause;
pub(crate) mod room;
pub(crate) mod subscriptions;
pub(crate) mod traffic;
pub(crate) mod watch;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use concord_client::{Class, Size, Withdrawn};
use concord_core::{Instant, ObjectId, RequestNumber, hash};
use concord_engine::resp;
use concord_wire::{FurtherIds, OBJECTS_MAX};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::blocking::attempt::Wanted as WantedCommand;
use crate::commands::key_names::{Named, Shown};
use crate::commands::split_reads::Parts;
pub use crate::connection::id::ConnectionId;
use crate::connection::subscriptions::{Message, Subscriber};
use crate::connection::watch::{Watch, Watching};
use crate::memory::output::Output;
use crate::memory::tentative::Expected;
use crate::request::Parser;
use crate::tracking::ClientTracking;
use crate::tracking::footprint::Footprint;
use crate::users::user::User;

/// The number of unanswered commands of a connection, and of their requests, above which its input
/// waits.
pub(crate) const SLOTS_MAX: usize = 1_024;
/// The limit of unanswered requests of a new connection, and of one with long replies.
const REQUESTS_START: usize = 512;
const REQUESTS_MIN: usize = 4;

/// All connections. They are never iterated where the order could be observed.
pub(crate) type Connections = HashMap<ConnectionId, Box<Connection>, FxBuildHasher>;

/// The objects that a command concerns: one, several, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Object(ObjectId),
    Objects(ObjectId, FurtherIds),
    AllKeys,
}

impl Subject {
    /// The subject of a command with these keys: each object once, or all keys if there are too
    /// many.
    pub(crate) fn of_keys<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Subject {
        let mut ids: Vec<ObjectId> = Vec::new();
        for key in keys {
            let id = hash::object_id(key);
            if !ids.contains(&id) {
                ids.push(id);
            }
            if ids.len() > OBJECTS_MAX {
                return Subject::AllKeys;
            }
        }
        match ids.split_first() {
            None => Subject::AllKeys,
            Some((first, [])) => Subject::Object(*first),
            Some((first, further)) => match FurtherIds::new(further) {
                Some(further) => Subject::Objects(*first, further),
                None => Subject::AllKeys,
            },
        }
    }

    /// Whether it names this object.
    fn names(&self, object: ObjectId) -> bool {
        match self {
            Subject::Object(own) => *own == object,
            Subject::Objects(first, further) => {
                *first == object || further.as_slice().contains(&object)
            }
            Subject::AllKeys => false,
        }
    }
}

/// The place of one command in the order of replies.
#[derive(Debug)]
pub(crate) struct Slot {
    pub class: Class,
    pub subject: Subject,
    /// Whether RESP3 was in force when the command arrived.
    pub resp3: bool,
    pub state: SlotState,
    /// The translation of the rack's reply.
    pub shown: Shown,
    /// The objects that the command reads and writes, if they are tracked.
    pub footprint: Option<Box<Footprint>>,
    /// Whether its reply is not written (CLIENT REPLY).
    pub is_silent: bool,
    /// The index of the command, until it is known whether it failed.
    pub command: Option<usize>,
}

/// Whether commands are replied to (CLIENT REPLY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    #[default]
    On,
    Off,
    /// The next command gets no reply.
    SkipNext,
}

#[derive(Debug)]
pub(crate) enum SlotState {
    /// Its reply has not arrived.
    Waiting,
    /// Its reply is wanted together with the path that it took.
    Explaining,
    /// INFO: a replica's answer has not arrived.
    Info(Wanted),
    /// WATCH: the digests of its keys have not arrived.
    Watching(Box<Watching>),
    /// XREAD after `$`: the last ids have not arrived.
    Asking(Box<WantedCommand>),
    /// It waits for an element, or for an attempt to find one.
    Blocked,
    /// It has this reply, which waits until other gateways know of the command.
    Gated(Vec<u8>),
    /// It has this reply, which waits for earlier ones to be written.
    Ready(Vec<u8>),
    /// It is a read of several keys that is split: the replies so far.
    Parts(Box<Parts>),
}

impl Slot {
    pub(crate) fn waiting(class: Class, subject: Subject, resp3: bool) -> Slot {
        Slot {
            class,
            subject,
            resp3,
            state: SlotState::Waiting,
            shown: Shown::AsIs,
            footprint: None,
            is_silent: false,
            command: None,
        }
    }

    /// Whether its reply has not arrived.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, SlotState::Waiting)
    }

    /// Whether its reply has not arrived, and needs no processing.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_waiting() && self.footprint.is_none() && matches!(self.shown, Shown::AsIs)
    }

    /// Whether an unanswered request of this slot is of `class` and concerns `object`.
    fn holds(&self, class: Class, object: ObjectId) -> bool {
        self.class == class
            && match &self.state {
                SlotState::Ready(_) | SlotState::Gated(_) => false,
                SlotState::Waiting
                | SlotState::Explaining
                | SlotState::Info(_)
                | SlotState::Asking(_)
                | SlotState::Blocked
                | SlotState::Watching(_) => self.subject.names(object),
                SlotState::Parts(parts) => parts.holds(object),
            }
    }
}

/// The unanswered requests of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unanswered {
    pub reads: u32,
    pub writes: u32,
    /// The number of those that concern all keys, and of the reads among these.
    pub all_keys: u32,
    pub all_keys_reads: u32,
}

/// The slot that a reply of the rack is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub connection: ConnectionId,
    pub slot: u64,
    pub part: u32,
    pub class: Class,
    pub is_of_all_keys: bool,
    /// Whether the command only reads, even if it was sent as a write.
    pub only_reads: bool,
    /// The granted length of its reply in bytes.
    pub granted_bytes: u32,
    /// The expected length of its reply, until it is known.
    pub expected: Expected,
    /// The command's hash if its last reply was long ([`crate::commands::long_reads`]), otherwise
    /// 0.
    pub long_read: u64,
}

/// The place of a connection among those with long commands ([`crate::memory::inputs`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InputPlace {
    /// It needs no place.
    #[default]
    None,
    Waits,
    /// It has a place, and its client has owed the rest of a command since this time.
    Has(Instant),
    /// It has a place, and waits for one of those for very long commands.
    WaitsForMore,
    /// As `Has`, with one of the places for very long commands.
    HasMore(Instant),
}

/// The wanted sections of INFO, one a bit ([`crate::commands::info`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted(pub u16);

/// A long reply that waits for room.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Its length in bytes.
    pub bytes: u32,
    pub what: Offered,
}

#[derive(Debug)]
pub(crate) enum Offered {
    /// The reply to a write, which the replicas keep.
    Write(RequestNumber),
    /// A read that was withdrawn, and will be submitted anew.
    Read(Withdrawn, Target),
}

/// The condition for which a connection's next command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing but its own bytes.
    Nothing,
    /// The replies to earlier commands that it must not overtake (trap T22).
    Order(Class, Subject),
    /// Fewer unanswered commands.
    Slots,
    /// Room among the rack's unanswered requests.
    Room(Class, Size),
    /// The client, which does not read its replies.
    Output,
    /// An element that the command before it waits for.
    Blocked,
    /// Every reply before it.
    Quiet,
    /// The other gateways, which do not know of the preceding subscription.
    Subscribed,
    /// The other gateways, to which too many messages are in flight.
    Others,
    /// The end of CLIENT PAUSE.
    Paused,
    /// The controller's answer about the members.
    Members,
    /// The chain of switches: its answer to the preceding command, or a free way to it.
    Chain,
    /// The rack's users: they are not known yet, or the preceding command changes them.
    Users,
}

/// More bytes than the kernels at both ends buffer for a connection: a client to which this much
/// was written does read.
const READS_BYTES: u64 = 64 << 20;

/// The commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    /// The commands, encoded.
    pub commands: Vec<Vec<u8>>,
    pub bytes: usize,
    /// Their bytes, with each script's text counted.
    pub full_bytes: usize,
    /// References to the scripts' texts that it contains.
    pub texts: Vec<Vec<u8>>,
    /// Their keys, without duplicates.
    pub keys: Vec<Vec<u8>>,
    /// Whether one of them concerns all keys.
    pub of_all_keys: bool,
    /// Whether one of them writes.
    pub writes: bool,
    /// The messages that it publishes.
    pub published: Vec<Message>,
    /// The places that name keys in the reply to each command.
    pub named: Vec<Option<Named>>,
    /// The objects that they read and write, if they are tracked.
    pub footprint: Option<Box<Footprint>>,
    /// The connection's database before it.
    pub database: u8,
    /// The commands in the form in which monitors see them.
    pub shown: Vec<Vec<u8>>,
    /// Whether a command was refused, so that EXEC aborts.
    pub failed: bool,
}

impl Multi {
    /// Drops its contents, since it will never be executed.
    fn abort(&mut self) {
        *self = Multi { database: self.database, failed: true, ..Multi::default() };
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub peer: String,
    /// The address of the gateway's end.
    pub local: String,
    pub name: Vec<u8>,
    /// The library's name and version (CLIENT SETINFO).
    pub library: (Vec<u8>, Vec<u8>),
    pub since: Instant,
    pub active_at: Instant,
    /// The arrival of the first command that waits in `input`, or of the last one's bytes.
    pub came_at: Instant,
    pub resp3: bool,
    /// Whether it has given a password, or needed none when it connected.
    pub authenticated: bool,
    /// The user of its commands.
    pub user: Arc<User>,
    /// The database of its commands.
    pub database: u8,
    /// The slot of a pending EXEC after which the connection has another database; and the database
    /// to which it returns if the transaction is not executed.
    pub selecting: Option<(u64, u8)>,
    pub input: Vec<u8>,
    /// Its place among the connections with long input.
    pub place: InputPlace,
    pub parser: Parser,
    pub output: Output,
    /// The commands whose replies are not written yet. The first one has the number `first_slot`.
    pub slots: VecDeque<Slot>,
    pub first_slot: u64,
    /// The bytes of replies that arrived before earlier ones.
    pub ready_bytes: usize,
    /// The bytes of replies that were requested from replicas and have not arrived.
    pub granted_bytes: usize,
    /// The bytes that the gateway's memory counts for it.
    pub noted_bytes: usize,
    /// Long replies that wait for room, by slot and part; and the bytes that their reads take.
    pub offers: BTreeMap<(u64, u32), Offer>,
    pub offer_bytes: usize,
    /// The limit of unanswered requests, which is lower while replies are long.
    pub requests_max: usize,
    /// Whether its last reply was short, if there was one: the next one is expected to be like it.
    pub was_short: Option<bool>,
    /// Whether it is in the list of connections for which there was no room.
    pub is_short: bool,
    /// Whether its client has sent more while a long reply was due: it reads such replies.
    asked_on: bool,
    /// The number of bytes that were written to it.
    pub written_bytes: u64,
    /// Its place among those that have not shown that they read ([`crate::memory::unproven`]).
    pub unproven: Option<u64>,
    /// The time at which its client last read something, if there is more to read.
    pub unread_since: Option<Instant>,
    /// Whether it is to be closed with its replies unread.
    pub is_given_up: bool,
    pub unanswered: Unanswered,
    pub last_write: Option<RequestNumber>,
    /// Whether the last slot's command is over several keys, and not all of them were sent.
    pub is_splitting: bool,
    /// Whether there are bytes after the waiting command.
    pub has_more: bool,
    pub wait: Wait,
    pub multi: Option<Box<Multi>>,
    pub watch: Watch,
    pub subscriber: Subscriber,
    /// The messages that pending EXECs publish, by slot.
    pub publishes: VecDeque<(u64, Vec<Message>)>,
    /// Whether to close it once every reply is written.
    pub closing: bool,
    /// Whether its client sends no more.
    pub has_ended: bool,
    /// Whether it is in the gateway's list of connections to be handled.
    pub is_listed: bool,
    /// The indices of the last command and its subcommand, for CLIENT LIST.
    pub last_command: Option<usize>,
    pub last_sub: String,
    pub commands: u64,
    /// The bytes of commands that had arrived when the last one was handled.
    pub query_bytes: usize,
    pub replies: Replies,
    /// Whether the current command has no reply.
    pub is_silent: bool,
    /// The state of CLIENT TRACKING.
    pub tracking: Option<Box<ClientTracking>>,
    /// Bytes other than replies, each to be written before the reply in this slot.
    pub pushes: VecDeque<(u64, Vec<u8>)>,
    /// Whether it sees all commands (MONITOR).
    pub is_monitor: bool,
}

impl Connection {
    pub(crate) fn new(
        id: ConnectionId,
        peer: &str,
        now: Instant,
        authenticated: bool,
        user: Arc<User>,
    ) -> Connection {
        Connection {
            id,
            peer: peer.into(),
            local: String::new(),
            name: Vec::new(),
            library: (Vec::new(), Vec::new()),
            since: now,
            active_at: now,
            came_at: now,
            resp3: false,
            authenticated,
            user,
            database: 0,
            selecting: None,
            input: Vec::new(),
            place: InputPlace::None,
            parser: Parser::default(),
            output: Output::default(),
            slots: VecDeque::new(),
            first_slot: 0,
            ready_bytes: 0,
            granted_bytes: 0,
            noted_bytes: 0,
            offers: BTreeMap::new(),
            offer_bytes: 0,
            requests_max: REQUESTS_START,
            was_short: None,
            is_short: false,
            asked_on: false,
            written_bytes: 0,
            unproven: None,
            unread_since: None,
            is_given_up: false,
            unanswered: Unanswered::default(),
            last_write: None,
            is_splitting: false,
            has_more: false,
            wait: Wait::Nothing,
            multi: None,
            watch: Watch::default(),
            subscriber: Subscriber::default(),
            publishes: VecDeque::new(),
            closing: false,
            has_ended: false,
            is_listed: false,
            last_command: None,
            last_sub: String::new(),
            commands: 0,
            query_bytes: 0,
            replies: Replies::On,
            is_silent: false,
            tracking: None,
            pushes: VecDeque::new(),
            is_monitor: false,
        }
    }

    /// Whether a request must wait (trap T22): a read for earlier writes of its object, a write for
    /// earlier reads; a command over all keys for everything, and everything for it, except reads
    /// for reads. Writes do not wait for writes: each names the one before, and replicas keep that
    /// order.
    ///
    /// A connection that only reads or only writes pays one comparison.
    pub(crate) fn must_wait(&self, class: Class, subject: Subject) -> bool {
        let Unanswered { reads, writes, all_keys, all_keys_reads } = self.unanswered;
        let all_keys = match class {
            Class::Read => all_keys - all_keys_reads,
            Class::Write => all_keys,
        };
        let (against, other) = match class {
            Class::Read => (writes, Class::Write),
            Class::Write => (reads, Class::Read),
        };
        // A transaction's reads after WATCH must not be older than the watched state; two reads may
        // be answered by two replicas.
        if class == Class::Read && self.watch.is_unanswered() && self.is_watching(subject) {
            return true;
        }
        let is_held = |object| self.slots.iter().any(|slot| slot.holds(other, object));
        match subject {
            Subject::AllKeys if class == Class::Read => writes > 0,
            Subject::AllKeys => reads + writes > 0,
            Subject::Object(object) => all_keys > 0 || against > 0 && is_held(object),
            Subject::Objects(first, further) => {
                let mut objects = further.as_slice().iter().copied().chain([first]);
                all_keys > 0 || against > 0 && objects.any(is_held)
            }
        }
    }

    /// Whether one of a subject's keys is among those of an unanswered WATCH.
    fn is_watching(&self, subject: Subject) -> bool {
        let mut watches =
            self.slots.iter().filter(|slot| matches!(slot.state, SlotState::Watching(_)));
        watches.any(|slot| match subject {
            _ if slot.subject == Subject::AllKeys => true,
            Subject::AllKeys => true,
            Subject::Object(object) => slot.subject.names(object),
            Subject::Objects(first, further) => {
                let mut objects = further.as_slice().iter().copied().chain([first]);
                objects.any(|object| slot.subject.names(object))
            }
        })
    }

    /// Notes that a request was sent.
    pub(crate) fn note_sent(&mut self, class: Class, subject: Subject) {
        match class {
            Class::Read => self.unanswered.reads += 1,
            Class::Write => self.unanswered.writes += 1,
        }
        let of_all = u32::from(subject == Subject::AllKeys);
        self.unanswered.all_keys += of_all;
        self.unanswered.all_keys_reads += of_all * u32::from(class == Class::Read);
    }

    /// Notes that a request ended, and whether it concerned all keys.
    pub(crate) fn note_done(&mut self, class: Class, is_of_all_keys: bool) {
        match class {
            Class::Read => self.unanswered.reads -= 1,
            Class::Write => self.unanswered.writes -= 1,
        }
        let of_all = u32::from(is_of_all_keys);
        self.unanswered.all_keys -= of_all;
        self.unanswered.all_keys_reads -= of_all * u32::from(class == Class::Read);
    }

    /// The bytes of all its replies: unread, waiting for earlier ones, and requested.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.fetched_bytes() + self.offer_bytes
    }

    /// The same, without those that were not requested.
    pub(crate) fn fetched_bytes(&self) -> usize {
        self.output.len() + self.ready_bytes + self.granted_bytes
    }

    /// Whether the limit of unanswered requests permits another one.
    pub(crate) fn has_room_for_request(&self) -> bool {
        ((self.unanswered.reads + self.unanswered.writes) as usize) < self.requests_max
    }

    pub(crate) fn has_nothing_unanswered(&self) -> bool {
        self.unanswered.reads + self.unanswered.writes == 0
    }

    /// The expected length of the reply to its next read.
    pub(crate) fn expected(&self) -> Expected {
        match self.was_short {
            Some(true) => Expected::Short,
            None if self.has_nothing_unanswered() => Expected::First,
            None | Some(false) => Expected::Long,
        }
    }

    /// A short reply came: raises the limit of unanswered requests.
    pub(crate) fn note_short_reply(&mut self) {
        self.requests_max = (self.requests_max + 1).min(SLOTS_MAX);
        self.was_short = Some(true);
    }

    /// A long reply has to wait: lowers the limit, since further replies would wait too, and would
    /// be read in vain.
    pub(crate) fn note_long_reply(&mut self) {
        self.requests_max = (self.requests_max / 2).max(REQUESTS_MIN);
    }

    /// Notes input from its client, which shows that it reads long replies if it was given one and
    /// waits for nothing else.
    pub(crate) fn note_input(&mut self) {
        let waited = self.slots.is_empty() && self.output.is_empty() && self.input.is_empty();
        self.asked_on |= waited && self.was_short == Some(false);
    }

    /// Whether its client is known to read long replies.
    pub(crate) fn reads_long(&self) -> bool {
        self.asked_on || self.written_bytes >= READS_BYTES
    }

    /// Whether the reply to a part of a command is the next to be written.
    pub(crate) fn is_next_reply(&self, slot: u64, part: u32) -> bool {
        let first = self.slots.front().filter(|_| slot == self.first_slot);
        first.is_some_and(|slot| match &slot.state {
            SlotState::Parts(parts) => parts.is_next(part),
            SlotState::Waiting
            | SlotState::Explaining
            | SlotState::Info(_)
            | SlotState::Watching(_)
            | SlotState::Asking(_)
            | SlotState::Blocked
            | SlotState::Gated(_)
            | SlotState::Ready(_) => true,
        })
    }

    /// The number that the next slot gets.
    pub(crate) fn next_slot(&self) -> u64 {
        self.first_slot + self.slots.len() as u64
    }

    pub(crate) fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        self.slots.get_mut(number.checked_sub(self.first_slot)? as usize)
    }

    /// Adds a place in the order of replies for the current command.
    pub(crate) fn push_slot(&mut self, slot: Slot) {
        let (is_silent, command) = (self.is_silent, self.last_command);
        self.slots.push_back(Slot { is_silent, command, ..slot });
    }

    /// Answers a command that does not need the rack, in order.
    pub(crate) fn answer(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.slots.is_empty() {
            write(self.output.end());
            self.first_slot += 1;
            return;
        }
        let mut reply = Vec::new();
        write(&mut reply);
        self.ready_bytes += reply.len();
        let mut slot = Slot::waiting(Class::Read, Subject::AllKeys, self.resp3);
        slot.state = SlotState::Ready(reply);
        self.push_slot(slot);
    }

    /// Answers with an error.
    pub(crate) fn refuse(&mut self, text: &str) {
        self.answer(|out| resp::error(out, text.as_bytes()));
    }

    /// Ends the transaction without executing it.
    pub(crate) fn end_multi(&mut self) {
        if let Some(multi) = self.multi.take() {
            self.database = multi.database;
        }
    }

    /// A request was refused before it was parsed as a command: an open transaction must not be
    /// executed. Its memory is freed.
    pub(crate) fn abort_multi(&mut self) {
        if let Some(multi) = &mut self.multi {
            multi.abort();
        }
    }

    /// The transaction in this slot has its reply, or will have none.
    pub(crate) fn end_selecting(&mut self, slot: u64, reply: &[u8]) {
        if let Some((_, before)) = self.selecting.take_if(|(own, _)| *own == slot)
            && (!reply.starts_with(b"*") || resp::is_null(reply))
        {
            self.database = before;
        }
    }

    /// Answers `+OK`.
    pub(crate) fn ok(&mut self) {
        self.answer(|out| out.extend_from_slice(resp::OK));
    }

    /// Sets the reply of the command that waits for an element, which is the connection's only one.
    pub(crate) fn unblock(&mut self, reply: Vec<u8>) {
        let blocked = self.slots.front_mut().filter(|s| matches!(s.state, SlotState::Blocked));
        if let Some(slot) = blocked {
            let reply = core::mem::take(&mut slot.shown).show(reply);
            self.ready_bytes += reply.len();
            slot.state = SlotState::Ready(reply);
        }
        self.write_in_turn();
    }

    /// Whether the blocking command has its reply.
    pub(crate) fn is_unblocked(&self) -> bool {
        let is_blocked =
            |slot: &Slot| matches!(slot.state, SlotState::Blocked | SlotState::Asking(_));
        self.wait == Wait::Blocked && !self.slots.iter().any(is_blocked)
    }

    /// Writes bytes other than a reply between two replies.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let is_within = |slot: &Slot| matches!(slot.state, SlotState::Parts(_));
        if self.slots.front().is_some_and(is_within) {
            self.subscriber.held.extend_from_slice(bytes);
            self.ready_bytes += bytes.len();
        } else {
            self.output.append(bytes);
        }
    }

    /// Writes bytes other than a reply after the replies to all commands so far: their content must
    /// not be overtaken by what those commands have read. A blocked command has read nothing.
    pub(crate) fn push_behind(&mut self, bytes: Vec<u8>) {
        let waits = |slot: &Slot| matches!(slot.state, SlotState::Blocked | SlotState::Asking(_));
        if self.slots.front().is_none_or(waits) {
            return self.push(&bytes);
        }
        self.ready_bytes += bytes.len();
        self.pushes.push_back((self.next_slot(), bytes));
    }

    /// Writes the bytes that precede the next reply.
    fn write_pushes(&mut self) {
        while let Some((_, bytes)) = self.pushes.pop_front_if(|(slot, _)| *slot <= self.first_slot)
        {
            self.ready_bytes -= bytes.len();
            self.output.append(&bytes);
        }
    }

    /// Writes every reply that is next in order.
    pub(crate) fn write_in_turn(&mut self) {
        self.write_replies();
        let is_within = |slot: &Slot| matches!(slot.state, SlotState::Parts(_));
        if !self.subscriber.held.is_empty() && !self.slots.front().is_some_and(is_within) {
            let held = core::mem::take(&mut self.subscriber.held);
            self.ready_bytes -= held.len();
            self.output.append(&held);
        }
    }

    fn write_replies(&mut self) {
        self.write_pushes();
        while let Some(slot) = self.slots.front_mut() {
            let before_it = self.output.len();
            match &mut slot.state {
                SlotState::Waiting
                | SlotState::Explaining
                | SlotState::Info(_)
                | SlotState::Blocked
                | SlotState::Gated(_)
                | SlotState::Watching(_)
                | SlotState::Asking(_) => return,
                SlotState::Parts(parts) => {
                    let before = parts.held_bytes();
                    let is_whole = parts.write(slot.resp3, self.output.end());
                    self.ready_bytes -= before - parts.held_bytes();
                    if slot.is_silent {
                        self.output.cut(before_it);
                    }
                    if !is_whole {
                        return;
                    }
                }
                SlotState::Ready(reply) => {
                    self.ready_bytes -= reply.len();
                    if !slot.is_silent {
                        self.output.append(reply);
                    }
                }
            }
            self.slots.pop_front();
            self.first_slot += 1;
            self.write_pushes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Subject = Subject::Object(ObjectId(1));
    const B: Subject = Subject::Object(ObjectId(2));

    fn connection_with(requests: &[(Class, Subject)]) -> Connection {
        let user = Arc::new(User::all_powerful(b"default", None));
        let mut c = Connection::new(ConnectionId(1), "", Instant(0), true, user);
        for (class, subject) in requests {
            c.slots.push_back(Slot::waiting(*class, *subject, false));
            c.note_sent(*class, *subject);
        }
        c
    }

    /// A read waits for writes of its object and a write for reads.
    #[test]
    fn t22_reads_and_writes_of_an_object_wait() {
        use Class::{Read, Write};
        let c = connection_with(&[(Write, A), (Read, B)]);
        assert!(c.must_wait(Read, A) && c.must_wait(Write, B));
        assert!(!c.must_wait(Read, B) && !c.must_wait(Write, A));
        assert!(c.must_wait(Read, Subject::AllKeys) && c.must_wait(Write, Subject::AllKeys));
        let c = connection_with(&[(Write, Subject::AllKeys)]);
        assert!(c.must_wait(Read, A) && c.must_wait(Write, A));
        let mut c = connection_with(&[(Write, A)]);
        c.note_done(Write, false);
        c.slots[0].state = SlotState::Ready(Vec::new());
        assert!(!c.must_wait(Read, A) && !c.must_wait(Read, Subject::AllKeys));
    }

    /// A command of several keys waits for each of them and is waited for by each.
    #[test]
    fn t22_several_keys_wait_in_both_directions() {
        use Class::{Read, Write};
        let several = Subject::of_keys([&b"a"[..], b"b", b"a"]);
        let one = |key: &[u8]| Subject::of_keys([key]);
        assert!(matches!(several, Subject::Objects(_, further) if further.len() == 1));
        let c = connection_with(&[(Write, several)]);
        assert!(c.must_wait(Read, one(b"a")) && c.must_wait(Read, one(b"b")));
        assert!(!c.must_wait(Read, one(b"c")) && !c.must_wait(Write, one(b"a")));
        let c = connection_with(&[(Write, one(b"b"))]);
        assert!(c.must_wait(Read, several) && !c.must_wait(Write, several));
        let keys: Vec<[u8; 1]> = (0..9).map(|n| [n]).collect();
        let all = Subject::of_keys(keys.iter().map(|key| &key[..]));
        assert_eq!(all, Subject::AllKeys);
        assert!(matches!(
            Subject::of_keys(keys[1..].iter().map(|key| &key[..])),
            Subject::Objects(..)
        ));
    }
}
