//! A replica's own redis-server: starts it as a child process, and moves bytes between it and the
//! [`RedisEngine`].
//!
//! The server listens only on a Unix socket in the replica's directory, keeps nothing on disk and
//! evicts nothing (trap T11). It ends with the thread that started it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use concord_core::{Duration as Ns, Instant as Monotonic, SEC};
use concord_engine::{Backend, RedisEngine, STRING_BYTES_MAX};

use crate::error::{Context, Error};

mod busy;

pub use busy::BusyLimits;
use busy::{Busy, Owed, used_us};

/// The time until the server must listen, and until it must have answered the greeting.
const START_MAX: Duration = Duration::from_secs(10);
const START_STEP: Duration = Duration::from_millis(5);
/// The bytes received at once.
const RECEIVE_BYTES: usize = 256 << 10;
/// The number of receives of one [`RedisServer::pump`], so that packets are served in between.
const RECEIVES_MAX: usize = 8;
/// The number of lines of the server's log that an error shows.
const LOG_LINES_SHOWN: usize = 1;
/// The time in ms after which a server that executes a script accepts SCRIPT KILL.
const SCRIPT_MS: u64 = 1_000;
/// The interval in ns at which its size is asked for while operations come.
const SIZE_NS: Ns = SEC;
const SCRIPT_KILL: &[u8] = b"*2\r\n$6\r\nSCRIPT\r\n$4\r\nKILL\r\n";

/// The result of [`RedisServer::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// The connection is the same. Call [`concord_engine::Engine::poll`] for finished operations.
    Same,
    /// The connection broke and was replaced: watch the new descriptor.
    Reconnected,
}

/// A running redis-server and the connection to it; both end when this is dropped.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    stream: UnixStream,
    socket: PathBuf,
    log: PathBuf,
    buffer: Vec<u8>,
    /// A second connection, for commands while a script runs on the first.
    control: UnixStream,
    /// The bytes received on it, up to the end of a line.
    heard: Vec<u8>,
    /// A third connection, on which the server reports keyspace events.
    events: UnixStream,
    /// Whether that connection was replaced since [`RedisServer::take_events_descriptor`] was last
    /// called.
    has_new_events: bool,
    busy: Busy,
    /// The time limits of operations.
    limits: BusyLimits,
    /// When to ask for its size again.
    size_at: Monotonic,
}

impl RedisServer {
    /// Starts `program` (`redis-server`, or a path) in the directory `dir`, which is made if
    /// missing, and greets it: afterwards `engine` is ready.
    ///
    /// # Errors
    /// If the directory cannot be made, the program is missing or ends at once, or the server is
    /// none that the engine can use.
    pub fn start(
        program: &str,
        dir: &Path,
        engine: &mut RedisEngine,
    ) -> Result<RedisServer, Error> {
        fs::create_dir_all(dir).cannot(format_args!("make {}", dir.display()))?;
        let dir = fs::canonicalize(dir).cannot(format_args!("find {}", dir.display()))?;
        let (socket, log) = (dir.join("redis.sock"), dir.join("redis.log"));
        // The socket of a server that was killed would be taken for the new one's.
        let _ = fs::remove_file(&socket);
        let mut child = spawn(program, &dir, &socket, &log)?;
        let stream = match connect_to_new(&mut child, &socket, &log) {
            Ok(stream) => stream,
            Err(e) => {
                let _ = (child.kill(), child.wait());
                return Err(e);
            }
        };
        let buffer = vec![0; RECEIVE_BYTES];
        let control = open(&socket).cannot("connect to redis-server once more")?;
        let (heard, busy) = (Vec::new(), Busy::default());
        let events = open(&socket).cannot("connect to redis-server for events")?;
        let mut server = RedisServer {
            child,
            stream,
            socket,
            log,
            buffer,
            control,
            heard,
            events,
            has_new_events: true,
            busy,
            limits: BusyLimits::default(),
            size_at: Monotonic(0),
        };
        server.events.write_all(&RedisEngine::events_greeting()).cannot("subscribe to events")?;
        server.greet(engine)?;
        Ok(server)
    }

    /// Changes the limits of operations.
    #[must_use]
    pub fn with_limits(mut self, limits: BusyLimits) -> RedisServer {
        self.limits = limits;
        self
    }

    /// When to call [`RedisServer::watch`].
    #[must_use]
    pub fn watch_at(&self) -> Monotonic {
        self.busy.look_at()
    }

    /// Checks the server if it takes long. A script that has changed nothing is stopped after
    /// [`BusyLimits::stop_ns`]; one that has goes on, up to [`BusyLimits::longest_ns`]: it could be
    /// ended only together with the server. Other commands end by themselves. Call this often.
    pub fn watch(&mut self, now: Monotonic, engine: &mut RedisEngine) {
        if now >= self.size_at {
            self.size_at = now.after(SIZE_NS);
            engine.refresh_size();
        }
        if !engine.owes() {
            self.busy.end();
            return engine.set_at_work(None);
        }
        let answered = engine.answered();
        if self.busy.begin(answered, now) {
            engine.set_at_work(None);
        }
        if now < self.busy.look_at() {
            return;
        }
        self.listen(now, engine);
        let (decides, stops_cleanly) = (engine.decides(), engine.stops_cleanly());
        let owed = Owed { decides, stops_cleanly };
        let used_us = used_us(self.child.id());
        let look = self.busy.look(now, (&owed, &self.limits), used_us);
        engine.set_at_work(look.at_work_since);
        if look.stops {
            // Nothing else is written to this connection, so that there is room.
            self.busy.is_told = self.control.write(SCRIPT_KILL).is_ok();
        }
    }

    /// Reads the server's answer to SCRIPT KILL.
    fn listen(&mut self, now: Monotonic, engine: &mut RedisEngine) {
        let mut bytes = [0; 512];
        while self.busy.is_told
            && let Ok(count @ 1..) = self.control.read(&mut bytes)
        {
            self.heard.extend_from_slice(&bytes[..count]);
            while let Some(end) = self.heard.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                self.busy.is_told = false;
                if line.starts_with(b"+OK") {
                    engine.script_stopped();
                } else if line.starts_with(b"-UNKILLABLE") {
                    self.busy.runs_on(now);
                    if self.busy.is_over {
                        engine.script_runs_on();
                    }
                }
            }
        }
    }

    /// The descriptor to watch for reading, and for writing while [`RedisEngine::output`] is not
    /// empty.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Another descriptor to watch for reading, if it has changed since the last call.
    pub fn take_events_descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        core::mem::take(&mut self.has_new_events).then(|| self.events.as_fd())
    }

    /// The server's process id.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Moves bytes both ways, as many as possible without waiting. A broken connection is replaced.
    ///
    /// # Errors
    /// The engine is lost, or the server cannot be reached any more: the replica must leave (trap
    /// T4).
    pub fn pump(&mut self, engine: &mut RedisEngine) -> Result<Pumped, Error> {
        let mut pumped = Pumped::Same;
        if self.send(engine).and_then(|()| self.receive(engine)).is_err() {
            engine.disconnected();
            self.stream = open(&self.socket).map_err(|e| {
                Error::new(format!("redis-server is gone ({e}); {}", log_tail(&self.log)))
            })?;
            engine.connected();
            self.busy = Busy::default();
            pumped = Pumped::Reconnected;
        }
        self.listen_to_events(engine);
        match engine.lost_reason() {
            Some(why) => Err(Error::new(format!("the redis-server is of no use any more: {why}"))),
            None => Ok(pumped),
        }
    }

    fn send(&mut self, engine: &mut RedisEngine) -> std::io::Result<()> {
        while !engine.output().is_empty() {
            match self.stream.write(engine.output()) {
                Ok(count) => engine.sent(count),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn receive(&mut self, engine: &mut RedisEngine) -> std::io::Result<()> {
        for _ in 0..RECEIVES_MAX {
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    // The server reports that it stopped a script before it reports how the script
                    // ended.
                    self.listen(crate::clock::now().instant, engine);
                    engine.input(&self.buffer[..count]);
                    if count < self.buffer.len() {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        self.send(engine)
    }

    /// Reads the server's events. A broken connection is replaced, and its events are lost.
    fn listen_to_events(&mut self, engine: &mut RedisEngine) {
        let broke = loop {
            match self.events.read(&mut self.buffer) {
                Ok(0) => break true,
                Ok(count) if !engine.events_input(&self.buffer[..count]) => break true,
                Ok(count) if count < self.buffer.len() => break false,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => break e.kind() != ErrorKind::WouldBlock,
            }
        };
        if !broke {
            return;
        }
        engine.events_lost();
        if let Ok(mut events) = open(&self.socket)
            && events.write_all(&RedisEngine::events_greeting()).is_ok()
        {
            (self.events, self.has_new_events) = (events, true);
        }
    }

    /// Waits until the server has answered the greeting.
    fn greet(&mut self, engine: &mut RedisEngine) -> Result<(), Error> {
        engine.connected();
        let started = Instant::now();
        while !(engine.ready() && engine.listens()) {
            if started.elapsed() > START_MAX {
                return Err(Error::new("redis-server listens but does not answer"));
            }
            self.pump(engine)?;
            if engine.lost() || engine.ready() && engine.listens() {
                continue;
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
        let _ = fs::remove_file(&self.socket);
    }
}

/// The major version in the output of `--version` (`Redis server v=7.0.15 sha=...`).
fn major_version(text: &str) -> Option<u32> {
    let version = text.split_once("v=")?.1;
    version.split('.').next()?.parse().ok()
}

/// The arguments that let a server answer DEBUG DIGEST-VALUE, which WATCH needs: older ones need
/// none. An error if it cannot be started, since setpriv, which starts it later, does not say so.
fn debug_args(program: &str) -> Result<&'static [&'static str], Error> {
    let output = Command::new(program).arg("--version").output().map_err(|e| {
        let why = match e.kind() {
            ErrorKind::NotFound if program.contains('/') => "no such file".to_string(),
            ErrorKind::NotFound => "no such program; is redis installed?".to_string(),
            ErrorKind::PermissionDenied => "permission denied".to_string(),
            _ => e.to_string(),
        };
        Error::new(format!("cannot start {program}: {why}"))
    })?;
    Ok(match major_version(&String::from_utf8_lossy(&output.stdout)) {
        Some(7..) => &["--enable-debug-command", "local"],
        Some(_) | None => &[],
    })
}

fn spawn(program: &str, dir: &Path, socket: &Path, log: &Path) -> Result<Child, Error> {
    let debug_args = debug_args(program)?;
    let server_args = |command: &mut Command| {
        command
            // Scripts sort what they draw from (`prologue.lua`), and Lua compares by the server's
            // locale.
            .env("LC_ALL", "C")
            .args(debug_args)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(["--maxmemory", "0", "--maxmemory-policy", "noeviction", "--timeout", "0"])
            .args(["--lua-time-limit", &SCRIPT_MS.to_string()])
            // A longer string could not be read back. Copied values are set under another limit.
            .args(["--proto-max-bulk-len", &STRING_BYTES_MAX.to_string()])
            // Events are read as fast as replies.
            .args(["--client-output-buffer-limit", "pubsub 0 0 0"])
            .args(["--unixsocketperm", "700", "--unixsocket"])
            .arg(socket)
            .arg("--dir")
            .arg(dir)
            .arg("--logfile")
            .arg(log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    };
    // setpriv (util-linux) lets the kernel end the server when this thread ends, and then executes
    // it: the process id is the server's.
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL", "--", program]);
    let child = match server_args(&mut bound) {
        Err(e) if e.kind() == ErrorKind::NotFound => server_args(&mut Command::new(program)),
        other => other,
    };
    child.cannot(format_args!("start {program}"))
}

/// Connects as soon as the server listens.
fn connect_to_new(child: &mut Child, socket: &Path, log: &Path) -> Result<UnixStream, Error> {
    let started = Instant::now();
    loop {
        let why = match open(socket) {
            Ok(stream) => return Ok(stream),
            Err(e) => e,
        };
        if let Some(status) = child.try_wait().cannot("look after redis-server")? {
            let shown = log_tail(log);
            return Err(Error::new(format!("redis-server ended at once ({status}); {shown}")));
        }
        if started.elapsed() > START_MAX || why.kind() == ErrorKind::InvalidInput {
            let socket = socket.display();
            return Err(Error::new(format!("cannot connect to redis-server at {socket}: {why}")));
        }
        sleep(START_STEP);
    }
}

fn open(socket: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// The path of the log, and its last lines.
fn log_tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let skip = text.lines().count().saturating_sub(LOG_LINES_SHOWN);
    let last: Vec<&str> = text.lines().skip(skip).collect();
    format!("its log {} ends: {}", log.display(), last.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use concord_engine::{Class, CommandBuf, Context as Operation, Engine, Progress, Shimmed};

    const SHORT: BusyLimits = BusyLimits { stop_ns: SEC, longest_ns: 3 * SEC };

    fn incr(engine: &mut Shimmed<RedisEngine>, position: u64) {
        let mut buf = CommandBuf::new();
        let bytes = buf.encode(1, [&b"INCR"[..], b"n"]);
        let command = concord_engine::Command::parse(bytes).unwrap();
        let context = Operation { position, ..Operation::default() };
        let progress = engine.submit(&context, Class::Write, &command, &mut Vec::new());
        assert_eq!(progress, Progress::Pending);
    }

    fn wait(server: &mut RedisServer, engine: &mut Shimmed<RedisEngine>) -> Vec<u8> {
        loop {
            if let Some(done) = engine.poll() {
                return done.reply;
            }
            server.watch(crate::clock::now().instant, engine.backend_mut());
            server.pump(engine.backend_mut()).unwrap();
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_version_is_read_from_what_servers_print() {
        let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64";
        assert_eq!(major_version(redis), Some(7));
        assert_eq!(major_version("Valkey server v=8.1.0 sha=0"), Some(8));
        assert_eq!(major_version("KeyDB 6"), None);
    }

    #[test]
    fn a_server_that_is_not_there_is_said_and_no_log() {
        let line = |program| debug_args(program).unwrap_err().to_string();
        assert_eq!(line("/usr/bin/redis-srv"), "cannot start /usr/bin/redis-srv: no such file");
        let unknown = "cannot start redis-srv-0: no such program; is redis installed?";
        assert_eq!(line("redis-srv-0"), unknown);
    }

    #[test]
    fn a_server_is_started_answers_is_reconnected_and_ends() {
        let dir = std::env::temp_dir().join(format!("concord-driver-{}", std::process::id()));
        let mut engine = Shimmed::new(RedisEngine::new());
        let mut server = RedisServer::start("redis-server", &dir, engine.backend_mut()).unwrap();
        for position in 1..=1000 {
            incr(&mut engine, position);
        }
        for count in 1..=1000 {
            assert_eq!(wait(&mut server, &mut engine), format!(":{count}\r\n").into_bytes());
        }
        // Somebody kills the idle connection.
        let mut other = UnixStream::connect(dir.join("redis.sock")).unwrap();
        other.write_all(b"CLIENT KILL TYPE normal\r\n").unwrap();
        other.read_exact(&mut [0; 4]).unwrap();
        while server.pump(engine.backend_mut()).unwrap() != Pumped::Reconnected {
            sleep(Duration::from_millis(1));
        }
        incr(&mut engine, 1001);
        assert_eq!(wait(&mut server, &mut engine), b":1001\r\n");
        // The server dies: the replica has to leave.
        let _ = (server.child.kill(), server.child.wait());
        let error = server.pump(engine.backend_mut()).unwrap_err().to_string();
        assert!(error.contains("redis-server is gone"), "{error}");
        drop(server);
        assert!(!dir.join("redis.sock").exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    /// Has the engine execute EVAL or EVAL_RO, for a while at most; its reply.
    fn eval(
        (server, engine): (&mut RedisServer, &mut Shimmed<RedisEngine>),
        (name, script): (&str, &str),
        (position, decide): (u64, bool),
    ) -> Option<concord_engine::Completion> {
        let mut buf = CommandBuf::new();
        let args = [name.as_bytes(), script.as_bytes(), b"1", b"k"];
        let bytes = buf.encode(3, args).to_vec();
        let command = concord_engine::Command::parse(&bytes).unwrap();
        let class = if position > 0 { Class::Write } else { Class::Read };
        let context = Operation { position, decide, ..Operation::default() };
        engine.submit(&context, class, &command, &mut Vec::new());
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(20) {
            if let Some(done) = engine.poll() {
                return Some(done);
            }
            server.watch(crate::clock::now().instant, engine.backend_mut());
            if server.pump(engine.backend_mut()).is_err() {
                return None;
            }
            sleep(Duration::from_millis(1));
        }
        panic!("{script} does not end");
    }

    /// A script that does not end is stopped and one that wrote loses the engine.
    #[test]
    fn bug_15_7_endless_script_is_stopped_or_loses_the_engine() {
        let dir = std::env::temp_dir().join(format!("concord-driver3-{}", std::process::id()));
        let mut engine = Shimmed::new(RedisEngine::new());
        let server = RedisServer::start("redis-server", &dir, engine.backend_mut()).unwrap();
        let mut server = server.with_limits(SHORT);
        let both = (&mut server, &mut engine);
        let read = eval((both.0, both.1), ("EVAL_RO", "while true do end"), (0, false)).unwrap();
        assert!(read.stopped && read.effect.is_none());
        let text = "-ERR the script ran for too long and was stopped; it has changed nothing\r\n";
        assert_eq!(String::from_utf8_lossy(&read.reply), text);
        let loops = "while true do pcall(function() while true do end end) end";
        let wrote = eval((both.0, both.1), ("EVAL", loops), (1, true)).unwrap();
        assert!(wrote.stopped);
        assert_eq!(String::from_utf8_lossy(&wrote.reply), text);
        let effect = wrote.effect.unwrap();
        let effect = concord_engine::Command::parse(&effect).unwrap();
        assert_eq!(effect.name(), b"CONCORD.REFUSE");
        // What a script says of itself counts for nothing.
        let liar = "error({err = 'ERR Script killed by user with SCRIPT KILL...'})";
        let lied = eval((both.0, both.1), ("EVAL", liar), (2, true)).unwrap();
        assert!(!lied.stopped && lied.effect.is_none());
        incr(both.1, 3);
        assert_eq!(wait(both.0, both.1), b":1\r\n");
        let poison = "redis.call('SET', KEYS[1], 'v') while true do end";
        assert_eq!(eval((both.0, both.1), ("EVAL", poison), (4, true)), None);
        assert!(engine.lost() && engine.is_poisoned());
        drop(server);
        fs::remove_dir_all(&dir).unwrap();
    }

    /// A script behind a record in one receive is stopped as soon.
    #[test]
    fn bug_15_7_script_after_a_record_is_stopped_as_soon() {
        let dir = std::env::temp_dir().join(format!("concord-driver4-{}", std::process::id()));
        let mut engine = Shimmed::new(RedisEngine::new());
        let server = RedisServer::start("redis-server", &dir, engine.backend_mut()).unwrap();
        let mut server = server.with_limits(SHORT);
        let set = |position, key| (Class::Write, position, 1, vec![&b"SET"[..], key, b"v"]);
        let script = &b"while redis.call('EXISTS', KEYS[1]) == 1 do end"[..];
        let run = (Class::Read, 0, 3, vec![b"EVAL_RO", script, b"1", b"k"]);
        // The server knows the script by then, so that it comes in one receive with the record,
        // whose answer is kept back until the script is over.
        for steps in [vec![run.clone()], vec![set(1, b"k")], vec![set(2, b"other"), run]] {
            let started = Instant::now();
            for (class, position, key, args) in &steps {
                let mut buf = CommandBuf::new();
                let command = buf.encode(*key, args.iter().copied());
                let command = concord_engine::Command::parse(command).unwrap();
                let context = Operation { position: *position, ..Operation::default() };
                engine.submit(&context, *class, &command, &mut Vec::new());
            }
            let mut stopped = Vec::new();
            while stopped.len() < steps.len() {
                server.watch(crate::clock::now().instant, engine.backend_mut());
                server.pump(engine.backend_mut()).unwrap();
                stopped.extend(std::iter::from_fn(|| engine.poll()).map(|done| done.stopped));
                sleep(Duration::from_millis(1));
            }
            assert_eq!(stopped.last(), Some(&(steps.len() == 2)));
            assert!(started.elapsed().as_nanos() < u128::from(2 * SHORT.longest_ns));
        }
        drop(server);
        fs::remove_dir_all(&dir).unwrap();
    }

    /// The number of keys is asked for though there are few operations.
    #[test]
    fn bug_22_113_the_number_of_keys_is_asked_for() {
        let dir = std::env::temp_dir().join(format!("concord-driver5-{}", std::process::id()));
        let mut engine = Shimmed::new(RedisEngine::new());
        let mut server = RedisServer::start("redis-server", &dir, engine.backend_mut()).unwrap();
        for position in 1..=5 {
            let mut buf = CommandBuf::new();
            let key = format!("key:{position}");
            let bytes = buf.encode(1, [&b"INCR"[..], key.as_bytes()]);
            let command = concord_engine::Command::parse(bytes).unwrap();
            let context = Operation { position, ..Operation::default() };
            engine.submit(&context, Class::Write, &command, &mut Vec::new());
            assert_eq!(wait(&mut server, &mut engine), b":1\r\n");
        }
        let started = Instant::now();
        while engine.keys() != 5 {
            assert!(started.elapsed() < START_MAX, "{} keys", engine.keys());
            server.watch(crate::clock::now().instant, engine.backend_mut());
            server.pump(engine.backend_mut()).unwrap();
            sleep(Duration::from_millis(1));
        }
        drop(server);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_missing_program_is_one_clear_line() {
        let dir = std::env::temp_dir().join(format!("concord-driver2-{}", std::process::id()));
        let mut engine = RedisEngine::new();
        let error = RedisServer::start("no-such-redis", &dir, &mut engine).unwrap_err();
        assert!(error.to_string().contains("no-such-redis") || error.to_string().contains("ended"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
