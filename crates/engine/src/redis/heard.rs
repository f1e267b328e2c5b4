//! Keyspace events of a server ([`mod@crate::events`]): what it publishes of them on a connection
//! of their own, and which write each belongs to.
//!
//! While events are wanted, each write is sent with marks: a PUBLISH to [`MARKS`] of nothing in
//! front of it, of `|` behind each of its commands, and of its position behind the last. A server
//! tells a subscriber of everything in the order in which it did it, so that what stands between
//! the marks is what the commands did. A write is complete when its last mark was heard, or never
//! will be. Scripts say themselves what the server cannot know ([`NOTES`]: `prologue.lua`): what
//! became of deadlines, and which deletions and removals stand for something else.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::databases::of_key;
use crate::events::{Classes, Event, known};
use crate::resp_scan::{Scanner, elements, number, text};

use super::{Ask, Kind, RedisEngine, encode};

/// The channel of marks.
const MARKS: &[u8] = b"concord:mark";
/// The channel of what scripts do to deadlines, and the like.
const NOTES: &[u8] = b"concord:note";
/// The server's channels of events: all data is in its database 0.
const EVENTS: &[u8] = b"__keyevent@0__:";
/// Which events the server publishes; and those of new keys, from Redis 7 on.
const WANTED: &[u8] = b"AE";
const WANTED_TOO: &[u8] = b"AEn";

/// What stands for a command's place in marks.
const NEXT: &[u8] = b"|";

/// Appends the mark in front of a write.
pub(super) fn mark_begin(out: &mut Vec<u8>) {
    encode(out, [&b"PUBLISH"[..], MARKS, b""]);
}

/// Appends the mark behind a command.
pub(super) fn mark_next(out: &mut Vec<u8>) {
    encode(out, [&b"PUBLISH"[..], MARKS, NEXT]);
}

/// Appends the mark behind a write.
pub(super) fn mark_end(out: &mut Vec<u8>, position: &[u8]) {
    encode(out, [&b"PUBLISH"[..], MARKS, position]);
}

/// A write whose events have to be heard before it is complete.
#[derive(Debug)]
pub(super) struct Awaited {
    pub position: u64,
    /// Keys that were deleted first, since they were due.
    pub due: Vec<Vec<u8>>,
    /// Commands that are an SPOP, as another replica executed it.
    pub spops: Vec<usize>,
    /// Commands that delete the keys of a database by name, of which Redis tells nothing.
    pub flushes: Vec<usize>,
}

/// Events that are not told.
#[derive(Debug)]
struct Hidden {
    name: &'static str,
    /// Of this key; `None`: of any.
    key: Option<Vec<u8>>,
    /// Only the first.
    is_one: bool,
}

/// What is heard, or to be heard.
#[derive(Debug, Default)]
pub(super) struct Listening {
    is_up: bool,
    /// The server was told to publish events.
    pub is_wanted: bool,
    inbox: Vec<u8>,
    scanner: Scanner,
    /// Of the write that is being heard: each with the number of its command.
    events: Vec<(usize, Event)>,
    command: usize,
    /// What a script said of the next events: they are told otherwise.
    hidden: Option<Hidden>,
    /// Writes that were heard whole.
    heard: VecDeque<(u64, Vec<(usize, Event)>)>,
    /// Of writes up to there nothing more will be heard.
    lost_up_to: u64,
}

impl Listening {
    /// What is to be sent on a new connection.
    pub(super) fn greeting() -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out, [&b"SUBSCRIBE"[..], MARKS, NOTES]);
        encode(&mut out, [&b"PSUBSCRIBE"[..], &[EVENTS, b"*"].concat()]);
        out
    }

    /// Whether the server tells of what is sent from now on.
    fn is_up(&self) -> bool {
        self.is_up
    }

    pub(super) fn are_told(&self) -> bool {
        self.is_up && self.is_wanted
    }

    /// The connection is gone, with what it had to say of writes up to there.
    pub(super) fn lose(&mut self, submitted: u64) {
        let (is_wanted, heard) = (self.is_wanted, core::mem::take(&mut self.heard));
        *self = Listening { is_wanted, heard, lost_up_to: submitted, ..Listening::default() };
    }

    /// Takes bytes; false if they are no replies.
    pub(super) fn input(&mut self, bytes: &[u8]) -> bool {
        let mut inbox = core::mem::take(&mut self.inbox);
        inbox.extend_from_slice(bytes);
        let mut start = 0;
        let is_right = loop {
            match self.scanner.scan(&inbox[start..]) {
                Ok(Some(length)) => {
                    self.on_message(&inbox[start..start + length]);
                    start += length;
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        inbox.drain(..start);
        self.inbox = inbox;
        is_right
    }

    fn on_message(&mut self, frame: &[u8]) {
        let words: Vec<&[u8]> = elements(frame).filter_map(text).collect();
        match words[..] {
            [b"psubscribe", ..] => self.is_up = true,
            [b"message", MARKS, mark] => self.on_mark(mark),
            [b"message", NOTES, note] => self.on_note(note),
            [b"pmessage", _, channel, key] => {
                let name = channel.strip_prefix(EVENTS).unwrap_or_default();
                self.on_event(name, key);
            }
            _ => {}
        }
    }

    fn on_mark(&mut self, mark: &[u8]) {
        self.hidden = None;
        match mark {
            b"" => {
                self.events.clear();
                self.command = 0;
            }
            NEXT => self.command += 1,
            position => {
                let position = number(position).and_then(|n| u64::try_from(n).ok());
                let events = core::mem::take(&mut self.events);
                self.heard.extend(position.map(|position| (position, events)));
            }
        }
    }

    /// `name key`, where a key is concerned.
    fn on_note(&mut self, note: &[u8]) {
        let space = note.iter().position(|byte| *byte == b' ').unwrap_or(note.len());
        let (name, key) = (&note[..space], note.get(space + 1..).unwrap_or_default());
        let of_key = |name, is_one| Some(Hidden { name, key: Some(key.to_vec()), is_one });
        self.hidden = match name {
            b"expired" => of_key("del", true),
            b"spop" => of_key("srem", false),
            // What the command did was taken back, as if it had not happened.
            b"undone" => {
                self.events.retain(|(command, _)| *command != self.command);
                None
            }
            // A database is flushed by name.
            b"flush" => Some(Hidden { name: "del", key: None, is_one: false }),
            _ => None,
        };
        self.push(name, key);
    }

    fn on_event(&mut self, name: &[u8], key: &[u8]) {
        if let Some(hidden) = &self.hidden
            && hidden.key.as_ref().is_none_or(|own| own == key)
        {
            let is_it = hidden.name.as_bytes() == name;
            if hidden.is_one || !is_it {
                self.hidden = None;
            }
            if is_it {
                return;
            }
        }
        self.push(name, key);
    }

    fn push(&mut self, name: &[u8], key: &[u8]) {
        // A newer server has events that Redis 7.0 has not.
        let Some((class, name)) = known(name) else { return };
        self.events.push((self.command, Event { class, name, key: key.to_vec() }));
    }

    /// The events of a write; `None` while they have not been heard.
    pub(super) fn take(&mut self, awaited: &Awaited) -> Option<Vec<(usize, Event)>> {
        while self.heard.front().is_some_and(|(position, _)| *position < awaited.position) {
            self.heard.pop_front();
        }
        if self.heard.front().is_some_and(|(position, _)| *position == awaited.position)
            && let Some((_, mut events)) = self.heard.pop_front()
        {
            awaited.translate(&mut events);
            return Some(events);
        }
        let never = !self.is_up || awaited.position <= self.lost_up_to || !self.heard.is_empty();
        never.then(Vec::new)
    }
}

impl Awaited {
    /// Makes of what the server did what Redis would tell of the commands that were meant.
    fn translate(&self, events: &mut Vec<(usize, Event)>) {
        for key in &self.due {
            let is_it = |(_, event): &&mut (usize, Event)| event.name == "del" && event.key == *key;
            if let Some((_, event)) = events.iter_mut().find(is_it) {
                (event.class, event.name) = (Classes::EXPIRED, "expired");
            }
        }
        events.retain(|(command, event)| event.name != "del" || !self.flushes.contains(command));
        for (command, event) in &mut *events {
            if event.name == "srem" && self.spops.contains(command) {
                event.name = "spop";
            }
        }
        for at in 1..events.len() {
            let (from, to) = (&events[at - 1].1, &events[at].1);
            let is_rename = from.name == "rename_from" && to.name == "rename_to";
            if is_rename && of_key(&from.key) != of_key(&to.key) {
                events[at - 1].1.name = "move_from";
                events[at].1.name = "move_to";
            }
        }
    }
}

impl RedisEngine {
    /// What is to be sent on a new connection for events, over which nothing else is sent.
    #[must_use]
    pub fn events_greeting() -> Vec<u8> {
        Listening::greeting()
    }

    /// Takes bytes of that connection. False: it is of no use any more.
    pub fn events_input(&mut self, bytes: &[u8]) -> bool {
        self.listening.input(bytes)
    }

    /// That connection is gone: nothing is heard of the writes that were submitted.
    pub fn events_lost(&mut self) {
        self.listening.lose(self.submitted);
    }

    /// Whether the server tells of events, if they are wanted.
    #[must_use]
    pub fn listens(&self) -> bool {
        self.listening.is_up()
    }

    /// Has the server tell of events from the next write on, or not; false if nobody listens.
    pub(super) fn listen_for(&mut self, classes: Classes) -> bool {
        if !self.listening.is_up() {
            return false;
        }
        let is_wanted = classes.are_told();
        if core::mem::replace(&mut self.listening.is_wanted, is_wanted) == is_wanted {
            return true;
        }
        let set = |wanted: &[u8]| {
            let mut request = Vec::new();
            let setting = [&b"CONFIG"[..], b"SET", b"notify-keyspace-events", wanted];
            encode(&mut request, setting);
            request
        };
        if is_wanted {
            self.enqueue_own(set(WANTED), Kind::Tell, 1);
            // An older server knows no events of new keys.
            self.enqueue_own(set(WANTED_TOO), Kind::Ask(Ask::Nothing), 1);
        } else {
            self.enqueue_own(set(b""), Kind::Tell, 1);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp;

    fn message(words: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        resp::array(&mut out, words.len());
        words.iter().for_each(|word| resp::bulk(&mut out, word));
        out
    }

    /// Marks by themselves, notes behind `!`, events as `name key`.
    fn hear(listening: &mut Listening, said: &[&str]) {
        for one in said {
            let bytes = match (one.strip_prefix('!'), one.split_once(' ')) {
                (Some(note), _) => message(&[b"message", NOTES, note.as_bytes()]),
                (None, Some((name, key))) => {
                    let channel = [EVENTS, name.as_bytes()].concat();
                    message(&[b"pmessage", b"*", &channel, key.as_bytes()])
                }
                (None, None) => message(&[b"message", MARKS, one.as_bytes()]),
            };
            // However the bytes are cut.
            let (head, tail) = bytes.split_at(bytes.len() / 2);
            assert!(listening.input(head) && listening.input(tail));
        }
    }

    fn awaited(position: u64) -> Awaited {
        Awaited { position, due: Vec::new(), spops: Vec::new(), flushes: Vec::new() }
    }

    fn names(events: Option<Vec<(usize, Event)>>) -> Option<Vec<(usize, &'static str)>> {
        events.map(|events| events.into_iter().map(|(at, event)| (at, event.name)).collect())
    }

    fn up() -> Listening {
        let mut listening = Listening::default();
        assert!(!listening.is_up());
        assert!(listening.input(&message(&[b"psubscribe", b"x", b"3"])) && listening.is_up());
        listening
    }

    #[test]
    fn events_belong_to_the_writes_between_whose_marks_they_stand() {
        let mut own = up();
        hear(&mut own, &["restore copied", "", "del a", "set a", "|", "lpush l", "rpush l", "|"]);
        assert_eq!(names(own.take(&awaited(7))), None, "its end was not heard");
        hear(&mut own, &["7", "", "8", "", "set b", "9"]);
        let first = Awaited { due: alloc::vec![b"a".to_vec()], ..awaited(7) };
        let wanted = [(0, "expired"), (0, "set"), (1, "lpush"), (1, "rpush")];
        assert_eq!(names(own.take(&first)), Some(wanted.to_vec()));
        assert_eq!(names(own.take(&awaited(8))), Some(Vec::new()));
        // One that is sent without marks, or whose marks were lost.
        assert_eq!(names(own.take(&awaited(9))), Some(alloc::vec![(0, "set")]));
        assert_eq!(names(own.take(&awaited(10))), None);
        own.lose(10);
        assert_eq!(names(own.take(&awaited(10))), Some(Vec::new()));
    }

    #[test]
    fn what_stands_for_something_else_is_told_as_that() {
        let mut own = up();
        let said = ["", "srem s", "|", "del a", "del b", "|", "3"];
        hear(&mut own, &said);
        let write = Awaited { spops: alloc::vec![0], flushes: alloc::vec![1], ..awaited(3) };
        assert_eq!(names(own.take(&write)), Some(alloc::vec![(0, "spop")]));
        let said = [
            "",
            "!expired a",
            "del a",
            "set a",
            "!expire a",
            "del b",
            "!spop s",
            "srem s",
            "srem s",
            "del s",
        ];
        hear(&mut own, &said);
        hear(&mut own, &["!flush", "del x", "del y", "set z", "4"]);
        let told = ["expired", "set", "expire", "del", "spop", "del", "set"];
        let told: Vec<(usize, &str)> = told.into_iter().map(|name| (0, name)).collect();
        assert_eq!(names(own.take(&awaited(4))), Some(told));
        let moved = ["", "rename_from a", "rename_to \u{0}", "5"];
        hear(&mut own, &moved);
        assert_eq!(names(own.take(&awaited(5))).unwrap()[0].1, "rename_from");
    }
}
