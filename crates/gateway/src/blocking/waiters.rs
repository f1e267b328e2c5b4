//! Clients that wait for an element (BLPOP and the like), in lines: one for each awaited key; for a
//! stream one for each consumer group, and one for each client that reads for itself. A command
//! that found nothing joins the lines of its keys, and is tried again when one of them is woken.
//! The first in the line tries, or several together if they want one element each
//! ([`crate::blocking::shared_attempt`]); if they find something the next ones try, until one finds
//! nothing. This module chooses the tries and their times; the gateway sends them.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;

use concord_core::{Duration, Instant, MS, ObjectId, SEC, hash};
use concord_engine::blocking::{Awaited, Form};
use concord_wire::OBJECTS_MAX;
use concord_wire::rpc::BODY_BYTES_MAX;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::blocking::attempt::Wanted;
use crate::connection::ConnectionId;

/// The shortest interval at which a key without notifications is checked, and at which keys are
/// checked at all.
const LOOK_NS: Duration = SEC;
const LOOK_APART_NS: Duration = MS;
/// The largest total size of waiting commands, in bytes.
const BYTES_MAX: usize = 64 << 20;
/// The largest number of tries in one request, which is also the first for a new key.
const WIDTH_MAX: usize = 16;
const WIDTH_AT_FIRST: usize = 4;
/// The largest size of a try in a request beside its text, in bytes.
const TRY_BYTES: usize = 32;
/// Tries that found more than this each, in bytes, are sent one by one, since each reply has a
/// limit of its own.
const SHORT_BYTES: usize = 4 << 10;

/// The result of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// An element, or an error that ends it: the reply is the client's.
    Reply,
    Nothing,
    /// A key that is of another type.
    WrongType,
    /// The try was not executed.
    NotExecuted,
}

/// The reason for which a wait ends without an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Timeout,
    /// CLIENT UNBLOCK ... ERROR.
    Error,
}

/// A key for which clients wait.
#[derive(Debug)]
struct Line {
    awaited: Awaited,
    /// The consumer group.
    group: Option<Vec<u8>>,
    key: Vec<u8>,
    object: ObjectId,
    queue: VecDeque<ConnectionId>,
    /// Whether the key may have an element, so that the first in the line has to try.
    is_woken: bool,
    is_listed: bool,
    /// The number of clients at the front that try in one request, by the results of the last
    /// tries.
    width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineId(u64);

#[derive(Debug)]
struct Waiter {
    wanted: Wanted,
    resp3: bool,
    /// The lines of its keys, in their order.
    lines: Vec<LineId>,
    until: Option<Instant>,
    /// The keys of the try that is due or in progress.
    trying: Option<Range<usize>>,
    is_sent: bool,
    /// Whether the try continues with the later keys.
    tries_all: bool,
    /// Whether this is the first try, whose errors are those of a command that does not wait.
    is_first: bool,
    /// One of its keys is of another type by now: each is tried by itself.
    is_apart: bool,
    /// The end of the wait if the try in progress finds nothing.
    end: Option<End>,
}

impl Waiter {
    /// Whether its try may go in one request with others': it is of one key, which it alone names,
    /// and of one element.
    fn may_share(&self) -> bool {
        self.wanted.blocking.form == Form::Pop && self.wanted.keys.len() == 1
    }

    /// The largest size of its try in a request, in bytes.
    fn try_bytes(&self) -> usize {
        self.wanted.text_bytes() + TRY_BYTES
    }
}

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: HashMap<ConnectionId, Waiter, FxBuildHasher>,
    lines: BTreeMap<u64, Line>,
    next_line: u64,
    by_object: BTreeMap<ObjectId, Vec<LineId>>,
    due: BTreeSet<(Instant, ConnectionId)>,
    /// Lines that were woken and not looked at.
    woken: VecDeque<LineId>,
    /// Tries that are to be sent.
    tries: VecDeque<ConnectionId>,
    ended: VecDeque<(ConnectionId, End)>,
    /// Lines in the order in which they are looked at; some may be gone.
    round: VecDeque<LineId>,
    looked_at: Instant,
    bytes: usize,
}

impl Waiters {
    /// The number of waiting clients.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is room for a command.
    pub(crate) fn has_room(&self, wanted: &Wanted) -> bool {
        self.bytes + wanted.bytes() <= BYTES_MAX
    }

    /// A command came. It is tried, unless others wait for one of its keys already.
    pub(crate) fn begin(&mut self, now: Instant, id: ConnectionId, wanted: Wanted, resp3: bool) {
        if self.lines.is_empty() {
            self.looked_at = now;
        }
        self.bytes += wanted.bytes();
        let until = wanted.timeout_ns.map(|ns| now.after(ns));
        self.due.extend(until.map(|until| (until, id)));
        let awaited = wanted.blocking.awaited;
        let mut lines: Vec<LineId> = Vec::with_capacity(wanted.keys.len());
        let mut is_alone = true;
        for key in wanted.keys() {
            let line_id = self.line(awaited, wanted.group.as_deref(), key);
            if let Some(line) = self.lines.get_mut(&line_id.0)
                && !lines.contains(&line_id)
            {
                is_alone &= line.queue.is_empty();
                line.queue.push_back(id);
            }
            lines.push(line_id);
        }
        let all = lines.clone();
        let waiter = Waiter {
            wanted,
            resp3,
            lines,
            until,
            trying: None,
            is_sent: false,
            tries_all: false,
            is_first: true,
            is_apart: false,
            end: None,
        };
        self.waiting.insert(id, waiter);
        if is_alone {
            self.try_from(id, 0, true);
        } else {
            all.into_iter().for_each(|line| self.wake(line));
        }
    }

    /// The line of a key.
    fn line(&mut self, awaited: Awaited, group: Option<&[u8]>, key: &[u8]) -> LineId {
        let object = hash::object_id(key);
        let of_object = self.by_object.entry(object).or_default();
        let is_it = |id: &&LineId| {
            let line = self.lines.get(&id.0);
            // A client that reads a stream for itself gets the same entries as others.
            let is_shared = awaited != Awaited::Entry || group.is_some();
            line.is_some_and(|line| {
                is_shared
                    && line.awaited == awaited
                    && line.key == key
                    && line.group.as_deref() == group
            })
        };
        if let Some(id) = of_object.iter().find(is_it) {
            return *id;
        }
        let id = LineId(self.next_line);
        self.next_line += 1;
        of_object.push(id);
        let line = Line {
            awaited,
            group: group.map(<[u8]>::to_vec),
            key: key.to_vec(),
            object,
            queue: VecDeque::new(),
            is_woken: false,
            is_listed: false,
            width: WIDTH_AT_FIRST,
        };
        self.lines.insert(id.0, line);
        self.round.push_back(id);
        id
    }

    /// Makes the first in the line try.
    fn wake(&mut self, id: LineId) {
        let Some(line) = self.lines.get_mut(&id.0) else { return };
        line.is_woken = true;
        if !line.is_listed {
            line.is_listed = true;
            self.woken.push_back(id);
        }
    }

    /// An object was written; `None`: any may have been.
    pub(crate) fn written(&mut self, object: Option<ObjectId>) {
        let lines: Vec<LineId> = match object {
            Some(object) => self.by_object.get(&object).cloned().unwrap_or_default(),
            None => self.lines.keys().copied().map(LineId).collect(),
        };
        lines.into_iter().for_each(|line| self.wake(line));
    }

    /// Notes that a key exists, possibly without a notification.
    pub(crate) fn there_is(&mut self, key: &[u8]) {
        self.written(Some(hash::object_id(key)));
    }

    /// The keys from `first` on that one request names.
    fn group(waiter: &Waiter, first: usize) -> Range<usize> {
        let most = match waiter.wanted.blocking.form {
            // The destination is named, too.
            Form::Move => 1,
            Form::Pop | Form::Counted | Form::Streams if waiter.is_apart => 1,
            Form::Pop | Form::Counted | Form::Streams => OBJECTS_MAX,
        };
        let begin = first - first % most;
        begin..(begin + most).min(waiter.wanted.keys.len())
    }

    /// Makes a client try the keys from `first` on that fit into one request, and then the later
    /// ones if `tries_all`.
    fn try_from(&mut self, id: ConnectionId, first: usize, tries_all: bool) {
        let Some(waiter) = self.waiting.get_mut(&id) else { return };
        waiter.trying = Some(Waiters::group(waiter, first));
        waiter.is_sent = false;
        waiter.tries_all = tries_all;
        self.tries.push_back(id);
    }

    /// The client whose try is due next.
    pub(crate) fn next_try(&mut self) -> Option<ConnectionId> {
        loop {
            self.look_at_woken();
            let id = *self.tries.front()?;
            if self.waiting.get(&id).is_some_and(|w| w.trying.is_some() && !w.is_sent) {
                return Some(id);
            }
            self.tries.pop_front();
        }
    }

    /// The command of a try: of that which is to be sent, or on the one key that it waits for.
    pub(crate) fn command(&self, id: ConnectionId) -> Vec<&[u8]> {
        let waiter = self.waiting.get(&id);
        waiter.map_or(Vec::new(), |w| w.wanted.on(w.trying.clone().unwrap_or(0..1)))
    }

    /// The clients whose tries go in one request with that of `id`, with itself: one key is tried
    /// in the order of its line, at one moment, so that no client overtakes another. They fit into
    /// one packet.
    pub(crate) fn together(&self, id: ConnectionId) -> Vec<ConnectionId> {
        let alone = Vec::from([id]);
        let Some(own) = self.waiting.get(&id).filter(|w| w.may_share()) else { return alone };
        let line = own.lines.first().and_then(|line| self.lines.get(&line.0));
        let Some(line) = line.filter(|line| line.queue.front() == Some(&id)) else { return alone };
        let mut bytes = TRY_BYTES + own.try_bytes();
        let mut joins = |other: &ConnectionId| {
            let other = self.waiting.get(other);
            other.is_some_and(|other| {
                bytes += other.try_bytes();
                let is_free = other.trying.is_none() && other.resp3 == own.resp3;
                is_free && other.may_share() && bytes <= BODY_BYTES_MAX
            })
        };
        let others = line.queue.iter().take(line.width).skip(1).take_while(|other| joins(other));
        alone.into_iter().chain(others.copied()).collect()
    }

    /// The line of a client, if it is in exactly one.
    pub(crate) fn only_line(&self, id: ConnectionId) -> Option<LineId> {
        self.waiting.get(&id).filter(|w| w.may_share()).and_then(|w| w.lines.first().copied())
    }

    /// Notes the result of a request: of its tries, `found` found something, of `bytes` in total.
    pub(crate) fn note_found(&mut self, line: LineId, tried: usize, found: usize, bytes: usize) {
        let Some(line) = self.lines.get_mut(&line.0) else { return };
        line.width = match found {
            0 => 1,
            _ if bytes / found > SHORT_BYTES => 1,
            _ if found == tried => (2 * tried).min(WIDTH_MAX),
            _ => found + 1,
        };
    }

    /// Makes the first in each woken line try, unless its try is in progress: then its end decides.
    fn look_at_woken(&mut self) {
        while let Some(id) = self.woken.pop_front() {
            let Some(line) = self.lines.get_mut(&id.0) else { continue };
            line.is_listed = false;
            let Some(first) = line.queue.front().copied().filter(|_| line.is_woken) else {
                continue;
            };
            let Some(waiter) = self.waiting.get(&first) else { continue };
            if waiter.trying.is_none()
                && let Some(key) = waiter.lines.iter().position(|own| *own == id)
            {
                self.try_from(first, key, false);
            }
        }
    }

    /// The try that was next was sent, with those of these: what they find, or do not, is newer
    /// than what was told so far.
    pub(crate) fn sent(&mut self, ids: &[ConnectionId]) {
        self.tries.pop_front();
        for id in ids {
            let Some(waiter) = self.waiting.get_mut(id) else { continue };
            waiter.is_sent = true;
            let tried = waiter.trying.get_or_insert(0..1).clone();
            for line in &waiter.lines[tried] {
                if let Some(line) = self.lines.get_mut(&line.0) {
                    line.is_woken = false;
                }
            }
        }
    }

    /// Whether its wait ends with the try in progress.
    pub(crate) fn is_ending(&self, id: ConnectionId) -> bool {
        self.waiting.get(&id).is_some_and(|waiter| waiter.end.is_some())
    }

    /// Whether a connection waits as a consumer of a group that was there when it began.
    pub(crate) fn has_waited_in_group(&self, id: ConnectionId) -> bool {
        let waiter = self.waiting.get(&id);
        waiter.is_some_and(|waiter| !waiter.is_first && waiter.wanted.group.is_some())
    }

    /// Handles the end of a client's try; `is_last` if it was the last one of its request. Returns
    /// whether its reply is for the client.
    pub(crate) fn tried(&mut self, id: ConnectionId, found: Found, is_last: bool) -> bool {
        let Some(waiter) = self.waiting.get_mut(&id) else { return true };
        let tried = waiter.trying.take().unwrap_or_default();
        waiter.is_sent = false;
        let is_move = waiter.wanted.blocking.form == Form::Move;
        let goes_on = waiter.tries_all && tried.end < waiter.lines.len();
        match found {
            Found::Reply if !is_last => {
                // The next ones find out by themselves whether there is more.
                self.forget(id);
                return true;
            }
            Found::Reply => return self.end_with_reply(id, tried),
            Found::WrongType if waiter.is_first || is_move => {
                return self.end_with_reply(id, tried);
            }
            Found::NotExecuted if waiter.is_first || waiter.end.is_some() => {
                return self.end_with_reply(id, tried);
            }
            Found::WrongType if tried.len() > 1 => {
                // It still waits for its keys of the right type.
                waiter.is_apart = true;
                self.try_from(id, 0, true);
            }
            Found::NotExecuted if waiter.may_share() => {
                // The first of the clients that tried with it.
                let lines = waiter.lines.clone();
                lines.into_iter().for_each(|line| self.wake(line));
            }
            Found::NotExecuted => {
                let tries_all = waiter.tries_all;
                self.try_from(id, tried.start, tries_all);
            }
            Found::Nothing | Found::WrongType if goes_on => self.try_from(id, tried.end, true),
            Found::Nothing | Found::WrongType => {
                waiter.is_first = false;
                match waiter.end {
                    Some(end) => {
                        self.ended.push_back((id, end));
                        self.forget(id);
                    }
                    None => self.look_again(id),
                }
            }
        }
        false
    }

    /// Ends a wait with a reply: there may be more for the next clients.
    fn end_with_reply(&mut self, id: ConnectionId, tried: Range<usize>) -> bool {
        let lines = self.waiting.get(&id).map_or(Vec::new(), |w| w.lines[tried].to_vec());
        self.forget(id);
        lines.into_iter().for_each(|line| self.wake(line));
        true
    }

    /// Lines of a waiter that were woken while it tried.
    fn look_again(&mut self, id: ConnectionId) {
        let lines = self.waiting.get(&id).map_or(Vec::new(), |waiter| waiter.lines.clone());
        for line in lines {
            if self.lines.get(&line.0).is_some_and(|line| line.is_woken) {
                self.wake(line);
            }
        }
    }

    /// A waiter is gone, or has its reply.
    pub(crate) fn forget(&mut self, id: ConnectionId) {
        let Some(waiter) = self.waiting.remove(&id) else { return };
        self.bytes -= waiter.wanted.bytes();
        if let Some(until) = waiter.until {
            self.due.remove(&(until, id));
        }
        for line_id in waiter.lines {
            let Some(line) = self.lines.get_mut(&line_id.0) else { continue };
            line.queue.retain(|other| *other != id);
            if line.queue.is_empty() {
                self.remove_line(line_id);
            } else if line.is_woken || waiter.is_sent {
                // The others may not know of what it found.
                self.wake(line_id);
            }
        }
    }

    fn remove_line(&mut self, id: LineId) {
        let Some(line) = self.lines.remove(&id.0) else { return };
        if let Some(of_object) = self.by_object.get_mut(&line.object) {
            of_object.retain(|other| *other != id);
            if of_object.is_empty() {
                self.by_object.remove(&line.object);
            }
        }
        if self.round.len() > 2 * self.lines.len() + 16 {
            self.round.retain(|id| self.lines.contains_key(&id.0));
        }
    }

    /// Ends waits whose time has come. One that may find something tries once more.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((at, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, id));
            if let Some(waiter) = self.waiting.get_mut(&id) {
                waiter.until = None;
            }
            self.end(id, End::Timeout);
        }
    }

    /// Ends a wait without an element, unless the try in progress finds one. Returns false if the
    /// client does not wait.
    pub(crate) fn end(&mut self, id: ConnectionId, end: End) -> bool {
        let Some(waiter) = self.waiting.get_mut(&id) else { return false };
        let is_woken = |line: &LineId| self.lines.get(&line.0).is_some_and(|line| line.is_woken);
        let may_find = waiter.is_first || waiter.lines.iter().any(is_woken);
        if waiter.trying.is_none() && !(may_find && end == End::Timeout) {
            self.ended.push_back((id, end));
            self.forget(id);
            return true;
        }
        let is_trying = waiter.trying.is_some();
        waiter.end.get_or_insert(end);
        if !is_trying {
            self.try_from(id, 0, true);
        }
        true
    }

    /// The next wait that ended without an element.
    pub(crate) fn poll_end(&mut self) -> Option<(ConnectionId, End)> {
        self.ended.pop_front()
    }

    /// The key to check now, since there may be no notification of its writes.
    pub(crate) fn next_look(&mut self, now: Instant) -> Option<Vec<u8>> {
        if now < self.look_at() {
            return None;
        }
        self.looked_at = now;
        while let Some(id) = self.round.pop_front() {
            let Some(line) = self.lines.get(&id.0) else { continue };
            self.round.push_back(id);
            return Some(line.key.clone());
        }
        None
    }

    /// When to look at the next key.
    fn look_at(&self) -> Instant {
        if self.lines.is_empty() {
            return Instant::NEVER;
        }
        self.looked_at.after((LOOK_NS / self.lines.len() as u64).max(LOOK_APART_NS))
    }

    /// When there is something to do that nothing but time brings about.
    pub(crate) fn deadline(&self) -> Instant {
        let due = self.due.first().map_or(Instant::NEVER, |(at, _)| *at);
        due.min(self.look_at())
    }

    /// Whether a connection waits.
    pub(crate) fn has(&self, id: ConnectionId) -> bool {
        self.waiting.contains_key(&id)
    }
}
