//! The path of events from the backend, and from changes of deadlines, into the feed
//! ([`mod@crate::events`]).

use alloc::collections::VecDeque;

use super::Shimmed;
use crate::Context;
use crate::backend::Backend;
use crate::events::{Classes, Event};
use crate::plan::Happened;

/// What a step raised: each with the number of its command.
pub(super) type Raised = VecDeque<(usize, Event)>;

impl<B: Backend> Shimmed<B> {
    /// The text that gateways keep was written, at this position of the log, or copied: it may want
    /// other events.
    pub(super) fn note_wanted(&mut self, position: u64) {
        let nothing = Classes::default();
        let wanted = Classes::of_text(self.users.text());
        let wanted = if wanted.are_told() { wanted } else { nothing };
        let is_built = self.backend.want_events(wanted);
        self.event_buffer.want(position, if is_built { wanted } else { nothing });
    }

    /// What the backend did belongs to the write that is executed.
    pub(crate) fn buffer_raised(&mut self, context: &Context) {
        let mut raised = self.take_raised(context);
        self.buffer_before(&mut raised, usize::MAX);
    }

    /// What the backend did in a step.
    pub(super) fn take_raised(&mut self, context: &Context) -> Raised {
        if !self.event_buffer.is_on() {
            return Raised::default();
        }
        self.event_buffer.begin(context.position);
        self.backend.take_events().into()
    }

    /// What commands before this one did.
    pub(super) fn buffer_before(&mut self, raised: &mut Raised, command: usize) {
        while let Some((index, _)) = raised.front()
            && *index < command
            && let Some((_, event)) = raised.pop_front()
        {
            self.event_buffer.push(event);
        }
    }

    /// Something that the backend does not know of happened to a key.
    pub(super) fn tell_event(&mut self, happened: Happened, key: &[u8]) {
        if !self.event_buffer.is_on() {
            return;
        }
        let event = |class, name| Event { class, name, key: key.to_vec() };
        match happened {
            Happened::Expire => self.event_buffer.push(event(Classes::GENERIC, "expire")),
            Happened::Persist => self.event_buffer.push(event(Classes::GENERIC, "persist")),
            Happened::SetInThePast => {
                // What the backend did in its place.
                let was_there = self.event_buffer.take_back("del", key);
                let is_set = self.event_buffer.take_back("set", key);
                if !was_there && !is_set {
                    self.event_buffer.push(event(Classes::NEW, "new"));
                }
                self.event_buffer.push(event(Classes::STRING, "set"));
                self.event_buffer.push(event(Classes::GENERIC, "expire"));
                self.event_buffer.push(event(Classes::EXPIRED, "expired"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    use super::*;
    use crate::events::{Heard, read};
    use crate::{Class, Command, CommandBuf, Engine, Memory};

    struct Run {
        engine: Shimmed<Memory>,
        position: u64,
        now_ms: u64,
    }

    impl Run {
        fn new() -> Run {
            Run { engine: Shimmed::new(Memory::new(0)), position: 0, now_ms: 1_000 }
        }

        fn submit(&mut self, class: Class, bytes: &[u8]) -> Vec<u8> {
            self.position += u64::from(class == Class::Write);
            let position = if class == Class::Write { self.position } else { 0 };
            let context = Context { now_ms: self.now_ms, position, ..Context::default() };
            let mut reply = Vec::new();
            let command = Command::parse(bytes).expect("it was encoded here");
            self.engine.submit(&context, class, &command, &mut reply);
            reply
        }

        fn say(&mut self, line: &str) {
            let key = u8::from(line.contains(' ') && !line.starts_with("CONCORD.USERS"));
            let several = ["RENAME", "COPY", "MSET", "SMOVE"].iter().any(|n| line.starts_with(n));
            let key = if several { 0 } else { key };
            let bytes = CommandBuf::new().encode(key, line.split(' ').map(str::as_bytes)).to_vec();
            self.submit(Class::Write, &bytes);
        }

        fn want(&mut self, classes: &str) {
            let version = format!("{}", self.engine.users.save()[7]);
            let text = format!("events {classes}");
            let args = [b"CONCORD.USERS", &b"SET"[..], version.as_bytes(), text.as_bytes()];
            let bytes = CommandBuf::new().encode(0, args).to_vec();
            assert!(self.submit(Class::Write, &bytes).starts_with(b":"));
        }

        fn heard(&mut self) -> Vec<Heard> {
            let args = [&b"CONCORD.EVENTS"[..], b"GET", b"0", b"0"];
            let bytes = CommandBuf::new().encode(0, args).to_vec();
            read(&self.submit(Class::Read, &bytes)).expect("an answer").2
        }

        fn told(&mut self) -> Vec<String> {
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let heard = self.heard().into_iter();
            heard.map(|event| format!("{} {}", text(event.name), text(event.key))).collect()
        }
    }

    /// Commands of a transaction are told of one by one with what becomes of deadlines.
    #[test]
    fn transaction_events_and_deadlines_one_by_one() {
        let mut run = Run::new();
        run.say("SET before 1");
        run.want("KEA");
        let part =
            |line: &str| CommandBuf::new().encode(1, line.split(' ').map(str::as_bytes)).to_vec();
        let parts =
            ["SET a 1 PX 100", "LPUSH l x", "LPOP l", "PERSIST a", "EXPIRE a 1", "GETDEL a"];
        let parts: Vec<Vec<u8>> = parts.into_iter().map(part).collect();
        let args = [&b"CONCORD.EXEC"[..]].into_iter().chain(parts.iter().map(Vec::as_slice));
        let exec = CommandBuf::new().encode(0, args).to_vec();
        run.submit(Class::Write, &exec);
        let wanted =
            ["set a", "expire a", "lpush l", "lpop l", "del l", "persist a", "expire a", "del a"];
        assert_eq!(run.told(), wanted);
    }

    #[test]
    fn a_key_whose_time_has_come_is_told_of_once() {
        let mut run = Run::new();
        run.want("Ex$");
        ["SET a 1 PX 100", "SET b 1 PX 100"].iter().for_each(|line| run.say(line));
        run.now_ms = 2_000;
        run.say("SET a 2");
        ["CONCORD.EXPIRE b 1100", "CONCORD.EXPIRE b 1100"].iter().for_each(|line| run.say(line));
        assert_eq!(run.told(), ["set a", "set b", "expired a", "set a", "expired b"]);
        assert!(run.heard().iter().all(|event| event.by_event && !event.by_key));
    }

    #[test]
    fn a_copy_has_the_setting_and_what_it_brings_is_no_news() {
        let mut run = Run::new();
        ["SET a 1", "SET b 1"].iter().for_each(|line| run.say(line));
        run.want("KEAn");
        let mut chunk = Vec::new();
        run.engine.copy(0, usize::MAX, &mut chunk);
        let mut joined = Run { position: run.position, ..Run::new() };
        assert!(joined.engine.install(&chunk).is_ok());
        assert!(joined.told().is_empty());
        joined.say("SET c 1");
        assert_eq!(joined.told(), ["new c", "set c"]);
        joined.engine.clear();
        joined.say("SET d 1");
        assert!(joined.told().is_empty());
    }
}
