//! Keyspace events (Redis 7.0 `notify.c`): the effects of commands on keys, for clients that
//! subscribe to them.
//!
//! While the rack's setting names classes of events ([`Classes`], a line of the text that gateways
//! share, [`mod@crate::users`]), an engine keeps the newest events in the order of the log, each at
//! its [`Place`]. A gateway with subscribers reads them by a linearizable read, from the place up
//! to which it has them. So it gets the events of each committed write once, in the common order,
//! also of other gateways' writes, of scripts and of expiry.
//!
//! `CONCORD.EVENTS GET position index` answers the events after that place: position and index of
//! the last one, whether there are more, and three elements for each event: its name, the key as it
//! is stored, and whether it is wanted by key (1), by event (2), or both (3). `CONCORD.EVENTS END`
//! answers the same without events: the place of the newest.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::BitOr;

use crate::table::UpperName;
use crate::{resp, resp_scan};

/// The internal read by which gateways hear of events.
pub const EVENTS_COMMAND: &[u8] = b"CONCORD.EVENTS";
/// The beginning of the line with the wanted events, in the text that gateways share.
const LINE: &[u8] = b"events ";
/// The largest number of events that are kept, and their largest total size.
const EVENTS_MAX: usize = 1 << 16;
const BYTES_MAX: usize = 8 << 20;
/// The size of an event without its key, in bytes.
const EVENT_BYTES: usize = 64;
/// The largest size of the events in one answer, unless it is a single one, in bytes.
const ANSWER_BYTES_MAX: usize = 24 << 10;
/// The size of an event in an answer without its key, in bytes.
const ANSWER_EVENT_BYTES: usize = 64;

/// Classes of events, and whether they are told by key, by event, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes(u16);

impl Classes {
    /// Told on `__keyspace@<db>__:<key>`.
    pub const BY_KEY: Classes = Classes(1);
    /// Told on `__keyevent@<db>__:<event>`.
    pub const BY_EVENT: Classes = Classes(1 << 1);
    /// Events of keys of any type: del, expire, rename_from ...
    pub const GENERIC: Classes = Classes(1 << 2);
    /// Of strings.
    pub const STRING: Classes = Classes(1 << 3);
    /// Of lists.
    pub const LIST: Classes = Classes(1 << 4);
    /// Of sets.
    pub const SET: Classes = Classes(1 << 5);
    /// Of hashes.
    pub const HASH: Classes = Classes(1 << 6);
    /// Of sorted sets.
    pub const SORTED: Classes = Classes(1 << 7);
    /// A key was deleted because its time had come.
    pub const EXPIRED: Classes = Classes(1 << 8);
    /// Never: nothing is evicted.
    const EVICTED: Classes = Classes(1 << 9);
    /// Of streams.
    pub const STREAM: Classes = Classes(1 << 10);
    /// Never: there are no modules.
    const MODULE: Classes = Classes(1 << 11);
    /// A key is there that was not.
    pub const NEW: Classes = Classes(1 << 12);
    /// A read found no key.
    pub const MISSED: Classes = Classes(1 << 13);
    /// `A`.
    const ALL: Classes = Classes(0b1111_1111_1100);

    /// Each with its letter, in the order in which Redis shows them.
    const LETTERS: [(u8, Classes); 14] = [
        (b'g', Classes::GENERIC),
        (b'$', Classes::STRING),
        (b'l', Classes::LIST),
        (b's', Classes::SET),
        (b'h', Classes::HASH),
        (b'z', Classes::SORTED),
        (b'x', Classes::EXPIRED),
        (b'e', Classes::EVICTED),
        (b't', Classes::STREAM),
        (b'd', Classes::MODULE),
        (b'n', Classes::NEW),
        (b'K', Classes::BY_KEY),
        (b'E', Classes::BY_EVENT),
        (b'm', Classes::MISSED),
    ];

    /// The classes that these letters name; `None` if one of them names none.
    #[must_use]
    pub fn parse(letters: &[u8]) -> Option<Classes> {
        letters.iter().try_fold(Classes::default(), |all, letter| {
            if *letter == b'A' {
                return Some(all | Classes::ALL);
            }
            let (_, class) = Classes::LETTERS.iter().find(|(own, _)| own == letter)?;
            Some(all | *class)
        })
    }

    /// Letters that say it, as CONFIG GET shows them. As in Redis 7.0, `n` is not among them where
    /// all others are.
    #[must_use]
    pub fn show(self) -> String {
        let is_all = self.has_all(Classes::ALL);
        let (mut text, hidden) = (String::new(), Classes::ALL | Classes::NEW);
        if is_all {
            text.push('A');
        }
        for (letter, class) in Classes::LETTERS {
            if self.has(class) && !(is_all && hidden.has(class)) {
                text.push(char::from(letter));
            }
        }
        text
    }

    /// The line that says it in the text that gateways keep for all; none if nothing is wanted.
    #[must_use]
    pub fn line(self) -> Option<Vec<u8>> {
        let own = Classes::LETTERS.iter().filter(|(_, class)| self.has(*class));
        let letters: Vec<u8> = own.map(|(letter, _)| *letter).collect();
        (!letters.is_empty()).then(|| [LINE, &letters].concat())
    }

    /// The classes that the text names.
    #[must_use]
    pub fn of_text(text: &[u8]) -> Classes {
        let mut lines = text.split(|byte| *byte == b'\n');
        let letters = lines.find_map(|line| line.strip_prefix(LINE)).unwrap_or_default();
        // A letter of a newer gateway's says nothing here.
        let known = letters.iter().filter_map(|letter| Classes::parse(&[*letter]));
        known.fold(Classes::default(), |all, class| all | class)
    }

    /// Whether one of these is among them.
    #[must_use]
    #[inline]
    pub fn has(self, other: Classes) -> bool {
        self.0 & other.0 != 0
    }

    fn has_all(self, other: Classes) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether anything is told of any event.
    #[must_use]
    pub fn are_told(self) -> bool {
        self.has(Classes::BY_KEY | Classes::BY_EVENT)
    }

    /// The kinds of messages that announce it, as bits.
    fn ways(self) -> u8 {
        (self.0 & 3) as u8
    }
}

impl BitOr for Classes {
    type Output = Classes;

    fn bitor(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }
}

/// Something that happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its class.
    pub class: Classes,
    /// As Redis names it.
    pub name: &'static str,
    /// As it is stored.
    pub key: Vec<u8>,
}

/// The events of Redis 7.0, by their classes.
const KNOWN: [(Classes, &[&str]); 9] = [
    (
        Classes::GENERIC,
        &[
            "del",
            "expire",
            "persist",
            "rename_from",
            "rename_to",
            "move_from",
            "move_to",
            "copy_to",
            "restore",
        ],
    ),
    (Classes::STRING, &["set", "setrange", "append", "incrby", "incrbyfloat", "setbit", "pfadd"]),
    (
        Classes::LIST,
        &["lpush", "rpush", "lpop", "rpop", "linsert", "lset", "lrem", "ltrim", "sortstore"],
    ),
    (Classes::SET, &["sadd", "srem", "spop", "sinterstore", "sunionstore", "sdiffstore"]),
    (Classes::HASH, &["hset", "hdel", "hincrby", "hincrbyfloat"]),
    (
        Classes::SORTED,
        &[
            "zadd",
            "zincr",
            "zrem",
            "zremrangebyrank",
            "zremrangebyscore",
            "zremrangebylex",
            "zpopmin",
            "zpopmax",
            "zunionstore",
            "zinterstore",
            "zdiffstore",
            "zrangestore",
            "geosearchstore",
            "georadiusstore",
        ],
    ),
    (
        Classes::STREAM,
        &[
            "xadd",
            "xdel",
            "xtrim",
            "xsetid",
            "xgroup-create",
            "xgroup-setid",
            "xgroup-destroy",
            "xgroup-createconsumer",
            "xgroup-delconsumer",
        ],
    ),
    (Classes::EXPIRED, &["expired"]),
    (Classes::NEW, &["new"]),
];

/// The class of an event, and its name.
pub(crate) fn known(name: &[u8]) -> Option<(Classes, &'static str)> {
    KNOWN.iter().find_map(|(class, names)| {
        let name = names.iter().find(|own| own.as_bytes() == name)?;
        Some((*class, *name))
    })
}

/// The events that a backend collects while it executes.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// The wanted classes; none if there are no subscribers.
    classes: Classes,
    /// Which of the step's commands is executed.
    index: usize,
    events: Vec<(usize, Event)>,
}

impl Collector {
    /// These are wanted from now on.
    pub(crate) fn want(&mut self, classes: Classes) {
        self.classes = classes;
    }

    pub(crate) fn wanted(&self) -> Classes {
        self.classes
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.classes != Classes::default()
    }

    /// The step's command of this number is executed from now on.
    pub(crate) fn begin(&mut self, index: usize) {
        self.index = index;
    }

    #[inline]
    pub(crate) fn raise(&mut self, class: Classes, name: &'static str, key: &[u8]) {
        if self.classes.has(class) {
            self.push(class, name, key);
        }
    }

    /// A function of its own, so that writes without subscribers are not slower.
    #[cold]
    #[inline(never)]
    fn push(&mut self, class: Classes, name: &'static str, key: &[u8]) {
        self.events.push((self.index, Event { class, name, key: key.to_vec() }));
    }

    /// Removes and returns the collected events, each with the number of its command.
    pub(crate) fn take(&mut self) -> Vec<(usize, Event)> {
        core::mem::take(&mut self.events)
    }

    /// An attempt failed: what it collected from there on did not happen.
    pub(crate) fn forget_from(&mut self, count: usize) {
        self.events.truncate(count);
    }

    pub(crate) fn count(&self) -> usize {
        self.events.len()
    }
}

/// The place of an event: the position of its write in the log, and its number among the write's
/// events, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The position of the write.
    pub position: u64,
    /// Among its events.
    pub index: u64,
}

impl Place {
    /// The place after all events of the write at `position`.
    fn behind(position: u64) -> Place {
        Place { position, index: u64::MAX >> 1 }
    }
}

/// The newest events.
#[derive(Debug, Default)]
pub(crate) struct EventBuffer {
    classes: Classes,
    events: VecDeque<(Place, Event, u8)>,
    bytes: usize,
    /// The last write that was executed since events are wanted; 0 if that is not known.
    position: u64,
    /// The place of the last event.
    last: Place,
    /// The position from which on they are wanted.
    since: u64,
    /// Whether the operation being executed was ordered before `since`.
    is_early: bool,
    /// While a script is executed here: what it did, which may be undone.
    held: Option<VecDeque<Event>>,
}

impl EventBuffer {
    /// Events of these classes are wanted from this write on.
    pub(crate) fn want(&mut self, position: u64, classes: Classes) {
        if !self.classes.are_told() && classes.are_told() {
            self.since = position;
        }
        self.classes = classes;
        if self.is_on() {
            self.position = position;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = EventBuffer::default();
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.classes.are_told()
    }

    /// The write at this position is executed.
    pub(crate) fn begin(&mut self, position: u64) {
        self.is_early = position < self.since;
        self.position = self.position.max(position);
    }

    /// Adds an event of the operation.
    pub(crate) fn push(&mut self, event: Event) {
        if !self.is_on() || !self.classes.has(event.class) || self.is_early || self.position == 0 {
            return;
        }
        if let Some(held) = &mut self.held {
            // More would push the others out in the end.
            if held.len() == EVENTS_MAX {
                held.pop_front();
            }
            return held.push_back(event);
        }
        let is_first = self.last.position != self.position;
        let index = if is_first { 1 } else { self.last.index + 1 };
        self.last = Place { position: self.position, index };
        self.bytes += event.key.len() + EVENT_BYTES;
        self.events.push_back((self.last, event, self.classes.ways()));
        while self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest, _)) = self.events.pop_front() else { break };
            self.bytes -= oldest.key.len() + EVENT_BYTES;
        }
    }

    /// A script begins: what it does is told when it has ended.
    pub(crate) fn hold(&mut self) {
        self.held = Some(VecDeque::new());
    }

    /// Ends the operation. Its events are announced if `stays`.
    pub(crate) fn release(&mut self, stays: bool) {
        let held = self.held.take().filter(|_| stays);
        held.into_iter().flatten().for_each(|event| self.push(event));
    }

    /// The last event, if it is this one, of the write that is executed: it is told otherwise.
    pub(crate) fn take_back(&mut self, name: &str, key: &[u8]) -> bool {
        if let Some(held) = &mut self.held {
            let is_it = held.back().is_some_and(|event| event.name == name && event.key == key);
            if is_it {
                held.pop_back();
            }
            return is_it;
        }
        let is_it = |(place, event, _): &(Place, Event, u8)| {
            place.position == self.position && event.name == name && event.key == key
        };
        if !self.events.back().is_some_and(is_it) {
            return false;
        }
        self.events.pop_back();
        self.bytes -= key.len() + EVENT_BYTES;
        true
    }

    /// Executes the command with these arguments, its name first; the reply.
    pub(crate) fn execute(&self, args: &[&[u8]]) -> Vec<u8> {
        let number = |text: &[u8]| resp::number(text).and_then(|n| u64::try_from(n).ok());
        let mut reply = Vec::new();
        match args {
            [_, end] if UpperName::of(end).is(b"END") => {
                answer(&mut reply, self.end(), false, &[]);
            }
            [_, get, position, index] if UpperName::of(get).is(b"GET") => {
                match (number(position), number(index)) {
                    (Some(position), Some(index)) => {
                        self.show(Place { position, index }, &mut reply);
                    }
                    _ => resp::error(&mut reply, b"ERR CONCORD.EVENTS: malformed"),
                }
            }
            _ => resp::error(&mut reply, b"ERR CONCORD.EVENTS: malformed"),
        }
        reply
    }

    fn end(&self) -> Place {
        if self.position == 0 { self.last } else { Place::behind(self.position) }
    }

    fn show(&self, after: Place, reply: &mut Vec<u8>) {
        if self.position != 0 && after.position > self.position {
            // The log was begun anew, or has lost its end.
            return answer(reply, self.end(), false, &[]);
        }
        // A gateway without a place gets everything since events are wanted.
        let is_first = after == Place::default();
        let after = if is_first { Place::behind(self.since) } else { after };
        let first = self.events.partition_point(|(place, ..)| *place <= after);
        let (mut bytes, mut shown) = (0, Vec::new());
        for one in self.events.range(first..) {
            bytes += one.1.key.len() + ANSWER_EVENT_BYTES;
            if bytes > ANSWER_BYTES_MAX && !shown.is_empty() {
                break;
            }
            shown.push(one);
        }
        let has_more = first + shown.len() < self.events.len();
        let up_to = match shown.last() {
            Some((place, ..)) if has_more => *place,
            _ => self.end().max(after),
        };
        answer(reply, up_to, has_more, &shown);
    }
}

fn answer(reply: &mut Vec<u8>, up_to: Place, has_more: bool, events: &[&(Place, Event, u8)]) {
    resp::array(reply, 3 + 3 * events.len());
    for number in [up_to.position, up_to.index, u64::from(has_more)] {
        resp::integer(reply, number as i64);
    }
    for (_, event, ways) in events {
        resp::bulk(reply, event.name.as_bytes());
        resp::bulk(reply, &event.key);
        resp::integer(reply, i64::from(*ways));
    }
}

/// An event as a gateway hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// As Redis names it.
    pub name: Vec<u8>,
    /// As it is stored.
    pub key: Vec<u8>,
    /// Whether it is told by key.
    pub by_key: bool,
    /// Whether it is told by event.
    pub by_event: bool,
}

/// Parses an answer of CONCORD.EVENTS: the place up to which it goes, whether there is more, and
/// the events.
#[must_use]
pub fn read(reply: &[u8]) -> Option<(Place, bool, Vec<Heard>)> {
    let number = |element: &[u8]| {
        let text = element.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
        u64::try_from(resp::number(text)?).ok()
    };
    let mut elements = resp_scan::elements(reply);
    let (position, index) = (number(elements.next()?)?, number(elements.next()?)?);
    let has_more = number(elements.next()?)? != 0;
    let mut events = Vec::new();
    while let Some(name) = elements.next() {
        let (name, key) = (resp_scan::text(name)?, resp_scan::text(elements.next()?)?);
        let ways = number(elements.next()?)?;
        let (by_key, by_event) = (ways & 1 != 0, ways & 2 != 0);
        events.push(Heard { name: name.to_vec(), key: key.to_vec(), by_key, by_event });
    }
    Some((Place { position, index }, has_more, events))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_shown_as_redis_shows_them() {
        let shown = |text: &str| Classes::parse(text.as_bytes()).map(Classes::show);
        for (text, wanted) in [
            ("KEA", "AKE"),
            ("nmKEA", "AKEm"),
            ("gKE", "gKE"),
            ("$lshzxetdmn", "$lshzxetdnm"),
            ("tdxeKEzhsl$g", "AKE"),
            ("", ""),
            ("K", "K"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(wanted), "{text}");
        }
        assert_eq!(shown("Kq"), None);
        let all = Classes::parse(b"KEAn").unwrap();
        let text = [b"user bob on", &all.line().unwrap()[..]].join(&b'\n');
        assert_eq!(Classes::of_text(&text), all);
        assert_eq!(Classes::of_text(b"events K?$"), Classes::parse(b"K$").unwrap());
        assert_eq!(Classes::of_text(b"user events on"), Classes::default());
        assert_eq!(Classes::default().line(), None);
    }

    fn event(name: &'static str, key: &str) -> Event {
        Event { class: Classes::GENERIC, name, key: key.as_bytes().to_vec() }
    }

    fn event_buffer(classes: &str) -> EventBuffer {
        let mut event_buffer = EventBuffer::default();
        event_buffer.want(7, Classes::parse(classes.as_bytes()).unwrap());
        event_buffer
    }

    /// The names of what is behind a place, the place up to which they are, and whether there is
    /// more.
    fn behind(
        event_buffer: &EventBuffer,
        position: u64,
        index: u64,
    ) -> (Vec<Vec<u8>>, Place, bool) {
        let (position, index) = (alloc::format!("{position}"), alloc::format!("{index}"));
        let args = [EVENTS_COMMAND, b"GET", position.as_bytes(), index.as_bytes()];
        let (place, has_more, events) = read(&event_buffer.execute(&args)).unwrap();
        (events.into_iter().map(|event| event.name).collect(), place, has_more)
    }

    #[test]
    fn each_event_is_told_once_behind_its_place() {
        let mut event_buffer = event_buffer("Kg");
        event_buffer.begin(8);
        event_buffer.push(event("del", "a"));
        event_buffer.push(event("expire", "b"));
        event_buffer.begin(9);
        event_buffer.push(event("persist", "b"));
        event_buffer.push(Event { class: Classes::LIST, ..event("lpush", "l") });
        let names =
            |names: &[&str]| names.iter().map(|n| n.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(behind(&event_buffer, 0, 0).0, names(&["del", "expire", "persist"]));
        assert_eq!(behind(&event_buffer, 8, 1).0, names(&["expire", "persist"]));
        let (none, place, has_more) = behind(&event_buffer, 9, 1);
        assert!(none.is_empty() && place == Place::behind(9) && !has_more);
        let end = read(&event_buffer.execute(&[EVENTS_COMMAND, b"END"])).unwrap();
        assert_eq!(end, (Place::behind(9), false, Vec::new()));
        assert!(event_buffer.execute(&[EVENTS_COMMAND, b"GET", b"-1", b"0"]).starts_with(b"-ERR"));
        // A log that was begun anew has nothing behind a place that it does not reach.
        assert_eq!(behind(&event_buffer, 100, 0).1, Place::behind(9));
    }

    /// Who has heard nothing hears of what came since events are wanted.
    #[test]
    fn late_listener_hears_events_since_wanted() {
        let mut event_buffer = event_buffer("KEg");
        event_buffer.begin(8);
        event_buffer.push(event("del", "a"));
        event_buffer.want(9, Classes::default());
        event_buffer.begin(10);
        event_buffer.push(event("del", "b"));
        assert_eq!(behind(&event_buffer, 7, 0).0.len(), 1, "what was there can still be read");
        event_buffer.want(11, Classes::parse(b"Eg").unwrap());
        assert_eq!(behind(&event_buffer, 0, 0).0.len(), 0);
        event_buffer.begin(12);
        event_buffer.push(event("del", "c"));
        assert_eq!(behind(&event_buffer, 0, 0).0.len(), 1);
    }

    #[test]
    fn answers_and_what_is_kept_are_bounded() {
        let mut event_buffer = event_buffer("KEg");
        let key = "k".repeat(10_000);
        for position in 8..2_000 {
            event_buffer.begin(position);
            event_buffer.push(event("del", &key));
        }
        assert!(event_buffer.bytes <= BYTES_MAX && event_buffer.events.len() < 1_000);
        let (mut place, mut heard) = (Place { position: 8, index: 0 }, 0);
        loop {
            let (names, up_to, has_more) = behind(&event_buffer, place.position, place.index);
            assert!((1..=2).contains(&names.len()));
            (place, heard) = (up_to, heard + names.len());
            if !has_more {
                break;
            }
        }
        assert_eq!((heard, place), (event_buffer.events.len(), Place::behind(1_999)));
    }
}
