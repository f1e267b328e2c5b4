//! Handlers: processes that stay, and get one task after another on their standard input. A short
//! task then costs two small writes, and no process of its own.
//!
//! The message to a handler: the length of the rest (4 bytes, big-endian), JID (4), the task's
//! number (4), the attempt (2), the parameters. Its answer: the length of the rest (4), a status
//! (1; 0 is success, others count as exit statuses), the output. Its standard error is the
//! worker's. If its task is cancelled, it gets SIGTERM, and has a moment to clean up before it is
//! killed.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::rc::Rc;
use std::sync::Arc;

use concord_core::{Instant, MS, SEC};
use concord_wire::tasks::{ANSWER_BYTES_MAX, Attempt, Ended};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::descendants::{SharedDescendants, watched};
use super::processes::{
    CommandBody, Finished, cannot_execute, command_of, how_it_ended, spawn_watched,
};
use super::reaper::kill;
use crate::error::{Context, Error};
use crate::poller::{Event, Interest, Poller, Token};

/// The lowest of their tokens, far above those of commands.
const TOKEN_MIN: u64 = 1 << 48;
/// The number of tokens of a handler. The first is its key; they stand for its end, its output and
/// its input.
const TOKENS: u64 = 4;
const READ_BYTES: usize = 64 << 10;
/// The bytes of the length and status.
const ANSWER_HEADER_BYTES: usize = 5;
/// The bytes of length, JID, TID and attempt.
const TASK_HEADER_BYTES: usize = 14;

/// The time in ns that a handler has to end after its task was cancelled or its output was closed.
const GRACE_NS: u64 = 200 * MS;
/// The time in ns that an idle handler stays: its job may be over.
const IDLE_NS: u64 = 60 * SEC;

/// The task that a handler executes.
#[derive(Debug)]
struct Given {
    run: u32,
    /// The bytes that are not written to it yet.
    unsaid: Vec<u8>,
    said: usize,
    /// The first bytes of its answer, before the output.
    header: Vec<u8>,
    output: Vec<u8>,
    /// The bytes of output that have arrived.
    output_bytes: u64,
}

impl Given {
    /// The length of the output, once it is known.
    fn output_length(&self) -> Option<u64> {
        let length = self.header.first_chunk::<4>().filter(|_| self.header.len() == 5)?;
        Some(u64::from(u32::from_be_bytes(*length)).saturating_sub(1))
    }

    /// Takes bytes of the answer, and returns how many belong to it; `None` if this is not a valid
    /// answer.
    fn take(&mut self, bytes: &[u8]) -> Option<usize> {
        let missing = ANSWER_HEADER_BYTES - self.header.len();
        let (header, rest) = bytes.split_at(missing.min(bytes.len()));
        self.header.extend_from_slice(header);
        if self.header.len() >= 4 && self.header[..4] == [0; 4] {
            return None;
        }
        let Some(length) = self.output_length() else { return Some(bytes.len()) };
        let wanted = (length - self.output_bytes).min(rest.len() as u64) as usize;
        let room = ANSWER_BYTES_MAX - self.output.len();
        self.output.extend_from_slice(&rest[..wanted.min(room)]);
        self.output_bytes += wanted as u64;
        Some(header.len() + wanted)
    }

    /// Whether it has answered, after reading all of the task.
    fn is_answered(&self) -> bool {
        self.output_length() == Some(self.output_bytes) && self.unsaid.is_empty()
    }

    /// Whether it has answered a task that it has not read: its next bytes would be taken for the
    /// rest.
    fn is_early(&self) -> bool {
        self.output_length() == Some(self.output_bytes) && !self.unsaid.is_empty()
    }

    fn finish(self) -> Finished {
        let ended = match self.header.get(4) {
            Some(0) => Ended::Done,
            Some(status) => Ended::Exited(*status),
            None => Ended::Failed,
        };
        let Given { run, output, output_bytes, .. } = self;
        Finished { run, ended, output, output_bytes, is_returned: false }
    }
}

#[derive(Debug)]
struct Handler {
    /// The command for which it was started.
    body: Arc<CommandBody>,
    child: Child,
    /// Readable once it has ended.
    end: OwnedFd,
    says: ChildStdout,
    hears: ChildStdin,
    given: Option<Given>,
    /// Whether it is to end: it gets nothing more, and its outcome is not wanted.
    is_killed: bool,
    /// When it is killed, after it was told that its task is cancelled, or has closed its output.
    kill_at: Option<Instant>,
    /// The time since which it is idle.
    idle_since: Instant,
    /// The ordinal of its last task, over all handlers.
    used: u64,
}

impl Handler {
    fn is_for(&self, body: &CommandBody) -> bool {
        self.body.argv == body.argv
            && self.body.directory == body.directory
            && self.body.environment == body.environment
    }

    fn is_idle(&self) -> bool {
        self.given.is_none() && !self.is_killed && self.kill_at.is_none()
    }

    /// Its input or output is closed: it has a moment to end by itself, so that its own status is
    /// reported.
    fn let_end(&mut self) {
        if self.kill_at.is_none() {
            self.kill_at = Some(crate::clock::now().instant.after(GRACE_NS));
        }
    }

    /// Writes the rest of the task. Returns whether a part is left. A handler that does not read
    /// any more ends: its end says how.
    fn say(&mut self) -> bool {
        let Some(given) = &mut self.given else { return false };
        while given.said < given.unsaid.len() {
            match self.hears.write(&given.unsaid[given.said..]) {
                Ok(count) => given.said += count,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => {
                    self.let_end();
                    return false;
                }
            }
        }
        given.unsaid = Vec::new();
        false
    }
}

/// All handlers of a worker.
#[derive(Debug)]
pub(super) struct Handlers {
    poller: Rc<Poller>,
    descendants: SharedDescendants,
    /// The largest number of idle handlers that stay.
    idle_max: usize,
    all: BTreeMap<u64, Handler>,
    next_token: u64,
    uses: u64,
    buffer: Vec<u8>,
}

impl Handlers {
    pub(super) fn new(
        poller: Rc<Poller>,
        descendants: SharedDescendants,
        idle_max: usize,
    ) -> Handlers {
        let (all, next_token, buffer) = (BTreeMap::new(), TOKEN_MIN, vec![0; READ_BYTES]);
        Handlers { poller, descendants, idle_max, all, next_token, uses: 0, buffer }
    }

    /// Whether an event with that token is a handler's.
    pub(super) fn owns(token: Token) -> bool {
        token.0 >= TOKEN_MIN
    }

    /// The number of handlers.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Gives a task to an idle handler, or to a new one. `Err` if the run ended with that.
    pub(super) fn start(
        &mut self,
        run: u32,
        of: Attempt,
        body: &Arc<CommandBody>,
        parameters: &[u8],
    ) -> Result<(), Finished> {
        let free = self.all.iter().find(|(_, handler)| handler.is_idle() && handler.is_for(body));
        let key = match free.map(|(key, _)| *key) {
            Some(key) => key,
            None => self.spawn(body).map_err(|error| cannot_execute(run, body, &error))?,
        };
        let mut unsaid = Vec::with_capacity(TASK_HEADER_BYTES + parameters.len());
        let length = (TASK_HEADER_BYTES - 4 + parameters.len()) as u32;
        unsaid.extend_from_slice(&length.to_be_bytes());
        unsaid.extend_from_slice(&of.jid.to_be_bytes());
        unsaid.extend_from_slice(&body.number(of.tid).to_be_bytes());
        unsaid.extend_from_slice(&of.attempt.to_be_bytes());
        unsaid.extend_from_slice(parameters);
        let (said, header, output) = (0, Vec::new(), Vec::new());
        self.uses += 1;
        if let Some(handler) = self.all.get_mut(&key) {
            handler.used = self.uses;
            handler.given = Some(Given { run, unsaid, said, header, output, output_bytes: 0 });
            if handler.say() {
                let interest = Interest { read: false, write: true, end: false };
                if self.poller.add(&handler.hears, Token(key + 2), interest).is_err() {
                    // It would wait for the rest for ever: its end says how.
                    kill(handler.child.id());
                }
            }
        }
        Ok(())
    }

    fn spawn(&mut self, body: &Arc<CommandBody>) -> std::io::Result<u64> {
        self.make_room();
        let mut command = command_of(&body.argv, body)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mark = self.descendants.borrow_mut().mark(&mut command);
        let descendants = Rc::clone(&self.descendants);
        let (child, (end, hears, says)) = spawn_watched(command, |child| {
            watched(&descendants, child, mark, |child| self.watch(child))
        })?;
        let (body, key) = (Arc::clone(body), self.next_token);
        let (given, is_killed, used) = (None, false, self.uses);
        let (kill_at, idle_since) = (None, crate::clock::now().instant);
        let handler =
            Handler { body, child, end, says, hears, given, is_killed, kill_at, idle_since, used };
        self.all.insert(key, handler);
        self.next_token += TOKENS;
        Ok(key)
    }

    /// Lets the poller watch its end and its output.
    fn watch(&mut self, child: &mut Child) -> Result<(OwnedFd, ChildStdin, ChildStdout), Error> {
        let what = "watch a handler";
        let gone = || Error::new(what);
        let hears = child.stdin.take().ok_or_else(gone)?;
        let says = child.stdout.take().ok_or_else(gone)?;
        rustix::io::ioctl_fionbio(&says, true).cannot(what)?;
        rustix::io::ioctl_fionbio(&hears, true).cannot(what)?;
        let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).cannot(what)?;
        self.poller.add(&end, Token(self.next_token), Interest::READ)?;
        self.poller.add(&says, Token(self.next_token + 1), Interest::READ)?;
        Ok((end, hears, says))
    }

    /// Ends the handlers that have been idle the longest, until one more may stay.
    fn make_room(&mut self) {
        loop {
            let idle = || self.all.iter().filter(|(_, handler)| handler.is_idle());
            let oldest = idle().min_by_key(|(_, handler)| handler.used).map(|(key, _)| *key);
            match oldest {
                Some(key) if idle().count() >= self.idle_max => self.end(key),
                _ => return,
            }
        }
    }

    fn end(&mut self, key: u64) {
        if let Some(handler) = self.all.get_mut(&key) {
            handler.is_killed = true;
            kill(handler.child.id());
        }
    }

    /// Ends a run whose outcome is not wanted, and its handler. If the run was cancelled, the
    /// handler is told first.
    pub(super) fn kill(&mut self, now: Instant, run: u32, is_cancelled: bool) {
        let has = |handler: &Handler| handler.given.as_ref().is_some_and(|given| given.run == run);
        let Some((key, handler)) = self.all.iter_mut().find(|(_, handler)| has(handler)) else {
            return;
        };
        let key = *key;
        if is_cancelled && kill_process(Pid::from_child(&handler.child), Signal::TERM).is_ok() {
            handler.is_killed = true;
            handler.kill_at = Some(now.after(GRACE_NS));
        } else {
            self.end(key);
        }
    }

    /// The time at which the next handler is killed that was told to end.
    pub(super) fn wakes_at(&self) -> Instant {
        let at = self.all.values().filter_map(|handler| {
            let idle = handler.is_idle().then(|| handler.idle_since.after(IDLE_NS));
            handler.kill_at.or(idle)
        });
        at.min().unwrap_or(Instant::NEVER)
    }

    /// Kills the handlers that were told to end and have not in their time, and those that have
    /// been idle for too long.
    pub(super) fn end_late(&mut self, now: Instant) {
        for handler in self.all.values_mut() {
            if handler.is_idle() && handler.idle_since.after(IDLE_NS) <= now {
                handler.is_killed = true;
                kill(handler.child.id());
            }
            if handler.kill_at.take_if(|at| *at <= now).is_some() {
                kill(handler.child.id());
            }
        }
    }

    /// Handles one of their descriptors that is ready. Returns a run if it ended with that.
    pub(super) fn event(&mut self, event: Event) -> Result<Option<Finished>, Error> {
        let key = event.token.0 - (event.token.0 - TOKEN_MIN) % TOKENS;
        match event.token.0 - key {
            0 => self.ended(key),
            1 => Ok(self.heard(key)),
            _ => {
                if let Some(handler) = self.all.get_mut(&key)
                    && !handler.say()
                {
                    self.poller.remove(&handler.hears);
                }
                Ok(None)
            }
        }
    }

    /// Reads a handler's output.
    fn heard(&mut self, key: u64) -> Option<Finished> {
        let handler = self.all.get_mut(&key)?;
        loop {
            let count = match handler.says.read(&mut self.buffer) {
                // A handler that closed its output answers nothing: its end says how.
                Ok(0) => {
                    self.poller.remove(&handler.says);
                    handler.let_end();
                    break;
                }
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let taken = handler.given.as_mut().and_then(|given| given.take(&self.buffer[..count]));
            let is_early = handler.given.as_ref().is_some_and(Given::is_early);
            if taken != Some(count) || is_early {
                // The output is longer than an answer, or invalid: no further output can be
                // interpreted.
                let given = handler.given.take();
                self.end(key);
                let why =
                    "the handler said what is no answer (docs/internals/falcon.md, Handlers)\n";
                return given.map(|given| Finished::failed(given.run, Ended::Failed, why));
            }
            if let Some(given) = handler.given.take_if(|given| given.is_answered()) {
                handler.idle_since = crate::clock::now().instant;
                return (!handler.is_killed).then(|| given.finish());
            }
        }
        None
    }

    fn ended(&mut self, key: u64) -> Result<Option<Finished>, Error> {
        // The output read before may be a complete answer.
        let answer = self.heard(key);
        let Some(mut handler) = self.all.remove(&key) else { return Ok(answer) };
        self.poller.remove(&handler.end);
        self.poller.remove(&handler.says);
        self.poller.remove(&handler.hears);
        kill(handler.child.id());
        self.descendants.borrow_mut().ended(handler.child.id())?;
        let status = handler.child.wait().cannot("wait for a handler")?;
        let left = handler.given.filter(|_| !handler.is_killed).map(|given| {
            let ended = match how_it_ended(status) {
                Ended::Done => Ended::Failed,
                other => other,
            };
            Finished::failed(given.run, ended, "the handler ended without an answer\n")
        });
        Ok(answer.or(left))
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for handler in self.all.values_mut() {
            kill(handler.child.id());
            let _ = handler.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::falcon::worker::descendants::Descendants;

    const OF: Attempt = Attempt { uid: 1, jid: 7, tid: 2, attempt: 3 };

    /// A handler that answers with what it got, by a program of a few lines.
    fn echo() -> Arc<CommandBody> {
        python(
            "import sys, os\n\
             i, o = sys.stdin.buffer, sys.stdout.buffer\n\
             while True:\n\
             \x20 n = i.read(4)\n\
             \x20 if len(n) < 4: break\n\
             \x20 b = i.read(int.from_bytes(n, 'big'))\n\
             \x20 w = b[10:]\n\
             \x20 if w == b'die': os._exit(9)\n\
             \x20 if w == b'rubbish': o.write(b'\\0\\0\\0\\0'); o.flush(); continue\n\
             \x20 if w == b'wait': import time; time.sleep(60)\n\
             \x20 s = 4 if w == b'four' else 0\n\
             \x20 r = b'%d ' % os.getpid() + b.hex().encode() if len(w) < 100 else w\n\
             \x20 o.write((len(r) + 1).to_bytes(4, 'big') + bytes([s]) + r)\n\
             \x20 o.flush()\n",
        )
    }

    fn python(program: &str) -> Arc<CommandBody> {
        let argv = ["/usr/bin/python3", "-c", program].map(ToString::to_string).to_vec();
        Arc::new(CommandBody { argv, first: 40, ..CommandBody::default() })
    }

    fn handlers(idle_max: usize) -> Handlers {
        let poller = Rc::new(Poller::new().unwrap());
        Handlers::new(poller, Descendants::shared(None).unwrap(), idle_max)
    }

    fn now() -> concord_core::Instant {
        crate::clock::now().instant
    }

    fn next(handlers: &mut Handlers, ms: u64) -> Option<Finished> {
        let (mut raw, mut events, began) = (vec![], vec![], Instant::now());
        while began.elapsed() < Duration::from_millis(ms) {
            let now = crate::clock::now().instant;
            let poller = Rc::clone(&handlers.poller);
            poller.wait(now, now.after(10_000_000), &mut raw, &mut events).unwrap();
            for event in &events {
                if let Some(finished) = handlers.event(*event).unwrap() {
                    return Some(finished);
                }
            }
        }
        None
    }

    fn ran(handlers: &mut Handlers, run: u32, body: &Arc<CommandBody>, word: &[u8]) -> Finished {
        if let Err(finished) = handlers.start(run, OF, body, word) {
            return finished;
        }
        let began = Instant::now();
        loop {
            if let Some(finished) = next(handlers, 20) {
                return finished;
            }
            // As the worker's loop does.
            handlers.end_late(now());
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }

    #[test]
    fn a_handler_stays_and_gets_one_task_after_another() {
        let (mut h, body) = (handlers(2), echo());
        let first = ran(&mut h, 1, &body, b"x");
        let text = String::from_utf8(first.output).unwrap();
        let (pid, got) = text.split_once(' ').unwrap();
        assert_eq!((first.run, first.ended, got), (1, Ended::Done, "000000070000002a000378"));
        let second = ran(&mut h, 2, &body, b"four");
        assert_eq!((second.run, second.ended), (2, Ended::Exited(4)));
        assert!(second.output.starts_with(pid.as_bytes()), "the same process");
        // Longer than a pipe holds, both ways, and than what is kept.
        let long = vec![b'a'; ANSWER_BYTES_MAX + 7];
        let third = ran(&mut h, 3, &body, &long);
        assert_eq!((third.ended, third.output_bytes), (Ended::Done, long.len() as u64));
        assert!(third.output == long[..ANSWER_BYTES_MAX]);
        assert_eq!((h.len(), ran(&mut h, 4, &body, b"").ended), (1, Ended::Done));
    }

    /// A handler that ends by itself, with a status of its own, was not killed.
    #[test]
    fn bug_21_65_a_handler_that_exits_is_told_with_its_status() {
        let mut h = handlers(2);
        let exits =
            python("import os, time; os.close(1); os.close(0); time.sleep(0.05); os._exit(3)");
        let told = ran(&mut h, 1, &exits, b"x");
        assert_eq!((told.run, told.ended), (1, Ended::Exited(3)));
        // One that says nothing any more, and stays, is not waited for.
        let stays = python("import os, time; os.close(1); time.sleep(60)");
        h.start(2, OF, &stays, b"x").unwrap();
        let began = Instant::now();
        let told = loop {
            if let Some(told) = next(&mut h, 20) {
                break told;
            }
            h.end_late(now());
            assert!(began.elapsed() < Duration::from_secs(20));
        };
        assert_eq!((told.run, told.ended), (2, Ended::Killed(9)));
    }

    /// A handler for which nobody has a task any more ends.
    #[test]
    fn bug_21_66_a_handler_that_has_nothing_to_do_for_long_ends() {
        let (mut h, body) = (handlers(2), echo());
        assert_eq!(ran(&mut h, 1, &body, b"x").ended, Ended::Done);
        h.end_late(now().after(IDLE_NS / 2));
        assert!(h.all.values().all(Handler::is_idle));
        assert!(h.wakes_at() <= now().after(IDLE_NS));
        h.end_late(now().after(IDLE_NS));
        let began = Instant::now();
        while h.len() > 0 {
            assert!(next(&mut h, 10).is_none());
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }

    #[test]
    fn two_tasks_have_two_handlers_and_those_too_many_end() {
        let (mut h, body) = (handlers(1), echo());
        h.start(1, OF, &body, b"wait").unwrap();
        assert_eq!(ran(&mut h, 2, &body, b"y").run, 2);
        assert_eq!(h.len(), 2);
        h.kill(now(), 1, false);
        let other = python("import time; time.sleep(60)");
        h.start(3, OF, &other, b"").unwrap();
        let began = Instant::now();
        while h.len() > 1 {
            assert!(next(&mut h, 10).is_none(), "nobody wants to know");
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        assert!(h.all.values().all(|handler| handler.is_for(&other)));
    }

    #[test]
    fn one_whose_task_is_cancelled_is_told_and_killed_if_it_goes_on() {
        let directory = std::env::temp_dir().join(format!("concord-term-{}", std::process::id()));
        let _ = std::fs::remove_file(&directory);
        let path = directory.display();
        let polite = python(&format!(
            "import signal, time, sys\n\
             def told(*_): open('{path}', 'w').write('told'); sys.exit()\n\
             signal.signal(signal.SIGTERM, told)\n\
             open('{path}', 'w').close()\n\
             time.sleep(60)\n"
        ));
        let deaf = python(
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
        );
        let mut h = handlers(2);
        h.start(1, OF, &polite, b"").unwrap();
        let began = Instant::now();
        while !directory.exists() {
            assert!(began.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
        }
        h.kill(now(), 1, true);
        h.start(2, OF, &deaf, b"").unwrap();
        h.kill(now(), 2, true);
        let began = Instant::now();
        while h.len() > 0 {
            assert!(next(&mut h, 20).is_none(), "nobody wants to know");
            h.end_late(now());
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        // How far the polite one got in its moment the machine's load decides; a whole word or
        // none.
        let text = std::fs::read_to_string(&directory).unwrap();
        assert!(text.is_empty() || text == "told", "{text}");
        println!("told: {}", !text.is_empty());
        std::fs::remove_file(&directory).unwrap();
    }

    #[test]
    fn one_that_ends_or_says_what_is_no_answer_fails_its_task_alone() {
        let (mut h, body) = (handlers(2), echo());
        let died = ran(&mut h, 1, &body, b"die");
        assert_eq!(died.ended, Ended::Exited(9));
        assert_eq!(died.output, b"the handler ended without an answer\n");
        assert_eq!(ran(&mut h, 2, &body, b"z").ended, Ended::Done);
        let rubbish = ran(&mut h, 3, &body, b"rubbish");
        assert_eq!(rubbish.ended, Ended::Failed);
        assert_eq!(ran(&mut h, 4, &body, b"z").ended, Ended::Done);
        let body = CommandBody { argv: vec!["no-such-handler".to_string()], ..Default::default() };
        let missing = ran(&mut h, 5, &Arc::new(body), b"");
        assert_eq!(missing.ended, Ended::Exited(127));
        assert_eq!(ran(&mut h, 6, &python("pass"), b"").ended, Ended::Failed);
        let deaf = python("import os, time; os.close(0); time.sleep(60)");
        let told = ran(&mut h, 7, &deaf, &vec![0; 1 << 20]);
        assert_eq!(told.ended, Ended::Killed(9));
        let mute = python("import os, time; os.close(1); time.sleep(60)");
        assert_eq!(ran(&mut h, 8, &mute, b"").ended, Ended::Killed(9));
    }
}
