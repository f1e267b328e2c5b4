//! Helpers that the tests over real processes share: a rack with its processes, and a plain RESP
//! client.
#![allow(dead_code, clippy::unwrap_used)]

pub mod counters;
pub mod pages;
pub mod units;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// The program under test: the one that was built with the tests, or `CONCORD_PROGRAM`, which may
/// be optimized further.
#[derive(Clone, Copy)]
pub struct Program;

pub const CONCORD: Program = Program;

impl AsRef<std::ffi::OsStr> for Program {
    fn as_ref(&self) -> &std::ffi::OsStr {
        static PATH: LazyLock<std::ffi::OsString> = LazyLock::new(|| {
            let other = std::env::var_os("CONCORD_PROGRAM");
            other.unwrap_or_else(|| env!("CARGO_BIN_EXE_concord").into())
        });
        &PATH
    }
}

/// A directory of a test's own, gone with it, but where what is in it may tell why the test failed.
pub struct Directory(PathBuf);

impl std::ops::Deref for Directory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<std::ffi::OsStr> for Directory {
    fn as_ref(&self) -> &std::ffi::OsStr {
        self.0.as_ref()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

pub fn directory(name: &str) -> Directory {
    static DIRECTORIES: AtomicU16 = AtomicU16::new(0);
    let id = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("concord-up-{}-{id}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    Directory(path)
}

pub fn concord(args: &[&str]) -> Output {
    Command::new(CONCORD).args(args).stdin(Stdio::null()).output().unwrap()
}

/// The only line on standard error of a command that must fail.
pub fn refused(args: &[&str]) -> String {
    let output = concord(args);
    assert!(!output.status.success(), "{args:?} must fail");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.trim_end().lines().count(), 1, "one line, not: {text}");
    text.trim_end().to_string()
}

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{name}: {n}?")))
}

/// Whether a thread of the process has not ended: a zombie has, and the last to end frees its
/// ports.
pub fn is_alive(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state is the third field, behind the name in brackets.
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        state.is_some_and(|state| !"ZX".contains(state))
    })
}

/// The processes that `pid` started.
pub fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task");
    let threads = std::fs::read_dir(path).into_iter().flatten().flatten();
    let of_thread = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
    };
    let text: Vec<String> = threads.map(of_thread).collect();
    text.iter().flat_map(|t| t.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

/// How long a test waits for what must come: no limit on speed, machines are slow at times.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn until(what: &str, done: impl FnMut() -> bool) {
    until_within(what, PATIENCE, done);
}

pub fn until_within(what: &str, patience: Duration, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < patience, "no {what} after {patience:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A rack, and the processes of its roles by name.
pub struct Rack {
    pub up: Child,
    pub run: Directory,
    /// Where the first gateway listens.
    pub listen: SocketAddr,
}

/// A flag of tests: `up` starts again what it can.
pub const RESTARTS: &str = "--restarts";

impl Rack {
    /// Starts a rack and waits until it serves. `up` finds free ports for the roles, and between
    /// that and their use a test beside this one may take one: then it is tried again.
    pub fn start(name: &str, more: &[&str]) -> Rack {
        for _ in 0..3 {
            match Rack::try_start(name, more) {
                Ok(rack) => return rack,
                Err(text) if text.contains("address in use") => print!("{name}: {text}"),
                Err(text) => panic!("the rack {name} does not get ready: {text}"),
            }
        }
        panic!("the rack {name} finds no ports");
    }

    /// Starts a rack whose processes have ended again, in its run directory.
    pub fn again(mut self, name: &str, more: &[&str]) -> Rack {
        let _ = self.up.wait();
        let run = std::mem::replace(&mut self.run, directory(&format!("{name}-none")));
        Rack::start_at(run, more)
    }

    /// Starts a rack in a run directory that may have data.
    pub fn start_at(mut run: Directory, more: &[&str]) -> Rack {
        for _ in 0..3 {
            match Rack::start_in(run, more) {
                Ok(rack) => return rack,
                Err((text, own)) if text.contains("address in use") => run = own,
                Err((text, _)) => panic!("the rack does not get ready again: {text}"),
            }
        }
        panic!("the rack finds no ports");
    }

    /// Every process is killed at once.
    pub fn cut_power(&self) {
        let mut pids: Vec<u32> = self.pids().into_iter().map(|(_, pid)| pid).collect();
        pids.insert(0, self.up.id());
        let words: Vec<String> = pids.iter().map(ToString::to_string).collect();
        // Stopped first, so that nobody ends in order because another one is gone.
        for signal in ["-STOP", "-KILL"] {
            let status = Command::new("kill").arg(signal).args(&words).status().unwrap();
            assert!(status.success());
        }
        until("end of what was killed", || pids[1..].iter().all(|pid| !is_alive(*pid)));
    }

    fn try_start(name: &str, more: &[&str]) -> Result<Rack, String> {
        Rack::start_in(directory(name), more).map_err(|(text, _)| text)
    }

    fn start_in(run: Directory, more: &[&str]) -> Result<Rack, (String, Directory)> {
        let port = free_ports();
        let listen = format!("127.0.0.1:{port}");
        // What is on disk is tested where a test says so.
        let says = |more: &[&str]| more.contains(&"--durability");
        let durability: &[&str] = if says(more) { &[] } else { &["--durability", "none"] };
        // Who dies stays dead, where a test does not say otherwise.
        let (restarts, more): (Vec<&str>, Vec<&str>) =
            more.iter().copied().partition(|flag| *flag == RESTARTS);
        let no_restart: &[&str] = if restarts.is_empty() { &["--no-restart"] } else { &[] };
        let mut up = Command::new(CONCORD)
            .args(["up", "--listen", &listen])
            .args(no_restart)
            .arg("--run-dir")
            .arg(&run)
            .args(durability)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(up.stdout.take().unwrap()).lines();
        let mut errors = up.stderr.take().unwrap();
        let ready = lines.any(|line| line.unwrap().starts_with("Ready"));
        // Whoever drops the rack ends its roles too, ready or not.
        let mut rack = Rack { up, run, listen: listen.parse().unwrap() };
        if !ready {
            let _ = rack.up.wait();
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            let run = std::mem::replace(&mut rack.run, directory("none"));
            return Err((text, run));
        }
        // Somebody has to read on, or `up` could not print.
        std::thread::spawn(move || lines.for_each(drop));
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr()));
        Ok(rack)
    }

    pub fn pids(&self) -> Vec<(String, u32)> {
        let text = std::fs::read_to_string(self.run.join("pids")).unwrap();
        let pair = |line: &str| {
            let (name, pid) = line.split_once(' ').unwrap();
            (name.to_string(), pid.parse().unwrap())
        };
        text.lines().map(pair).collect()
    }

    pub fn pid(&self, name: &str) -> u32 {
        self.pids().into_iter().find(|(n, _)| n == name).unwrap().1
    }

    /// Sends a signal; after a kill -9 the process is gone, and its ports are free.
    pub fn signal(pid: u32, signal: &str) {
        let status = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
        assert!(status.success());
        if signal == "-9" {
            until("end of what was killed", || !is_alive(pid));
        }
    }

    pub fn file(&self) -> String {
        self.run.join("rack.toml").display().to_string()
    }
}

impl Rack {
    /// What `concord status --json` says.
    pub fn status(&self) -> serde_json::Value {
        let output = concord(&["status", "--json", "--config", &self.file()]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What a role says of itself; null if it does not answer.
    pub fn role(&self, name: &str, node: u64) -> serde_json::Value {
        let arguments = ["status", "--json", "--interval-ms", "10", "--config", &self.file()];
        let status: serde_json::Value =
            serde_json::from_slice(&concord(&arguments).stdout).unwrap();
        let roles = status["roles"].as_array().unwrap();
        let found = roles.iter().find(|r| r["role"] == name && r["node"] == node);
        found.map_or(serde_json::Value::Null, |r| r["status"].clone())
    }

    /// The members of the epoch in force.
    pub fn members(&self) -> Vec<u64> {
        let members = self.role("controller", 1)["members"].clone();
        members.as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64).collect()
    }

    /// How many replicas are open.
    pub fn open_replicas(&self) -> usize {
        let status = self.status();
        let roles = status["roles"].as_array().unwrap();
        let is_open =
            |r: &&serde_json::Value| r["role"] == "replica" && r["status"]["phase"] == "open";
        roles.iter().filter(is_open).count()
    }

    /// The sum of a counter over all roles of a kind.
    pub fn counter(status: &serde_json::Value, role: &str, name: &str) -> u64 {
        let roles = status["roles"].as_array().unwrap();
        let of = roles.iter().filter(|r| r["role"] == role);
        of.filter_map(|r| r["status"]["counters"][name].as_u64()).sum()
    }

    /// A client of the first gateway.
    pub fn client(&self) -> Resp {
        Resp::open(self.listen)
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

/// A role that a person started by hand, and the file of what it logs.
pub struct ByHand(Child, pub PathBuf);

impl ByHand {
    /// The role, with its node and the like.
    pub fn start(rack: &Rack, args: &[&str]) -> ByHand {
        let path = rack.run.join(format!("by-hand-{}.log", args.join("")));
        let log = std::fs::File::create(&path).unwrap();
        let mut command = Command::new(CONCORD);
        command.arg(args[0]).args(["--config", &rack.file()]).args(&args[1..]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        ByHand(command.spawn().unwrap(), path)
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port whose next ones are free too, for further gateways, below those that the system gives to
/// connections. Tests of one process run at once, so each takes its own range; processes start at
/// different ones.
pub fn free_ports() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 1_000) as u16;
    loop {
        let range = (start + TAKEN.fetch_add(1, Ordering::Relaxed)) % 1_000;
        let first = 20_000 + range * 8;
        let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        if (first..first + 8).all(|port| free(&port)) {
            return first;
        }
    }
}

/// A blocking connection; replies as raw RESP.
pub struct Resp {
    stream: BufReader<TcpStream>,
}

impl Resp {
    /// Connects; a gateway that is being started again gets some seconds.
    pub fn open(target: SocketAddr) -> Resp {
        let mut stream = TcpStream::connect(target);
        for _ in 0..100 {
            if stream.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            stream = TcpStream::connect(target);
        }
        let stream = stream.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Resp { stream: BufReader::new(stream) }
    }

    /// The same, which waits so long for each reply.
    pub fn waiting(self, limit: Duration) -> Resp {
        self.stream.get_ref().set_read_timeout(Some(limit)).unwrap();
        self
    }

    /// The reply's first line and, for a bulk string, its bytes. An error if the connection broke.
    pub fn call(&mut self, args: &[&[u8]]) -> std::io::Result<(String, Vec<u8>)> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.next()
    }

    /// The next reply, or the next part of one, as [`Resp::call`] gives it.
    pub fn next(&mut self) -> std::io::Result<(String, Vec<u8>)> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_string();
        let mut value = Vec::new();
        if let Some(length) = line.strip_prefix('$').and_then(|l| l.parse::<usize>().ok()) {
            value.resize(length + 2, 0);
            self.stream.read_exact(&mut value)?;
            value.truncate(length);
        }
        Ok((line, value))
    }

    /// A command of words; its reply as text.
    pub fn say(&mut self, words: &str) -> String {
        let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let (line, value) = self.call(&args).unwrap();
        if line.starts_with('$') && line != "$-1" {
            return String::from_utf8(value).unwrap();
        }
        line
    }
}

/// Resident memory of a process in bytes, now and at most.
pub fn memory(pid: u32) -> (usize, usize) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let of = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1_024
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// A redis-server of its own, as the oracle.
pub struct PlainRedis {
    process: Child,
    pub listen: SocketAddr,
}

impl PlainRedis {
    /// On a port that no connection takes as its own: one that the system chooses may be another
    /// test's by the time at which the server listens, and then that one's server answers here.
    pub fn start() -> PlainRedis {
        let port = free_ports();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", "/tmp"])
            .args(["--save", "", "--appendonly", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| {
                panic!("redis-server is needed ({e}): scripts/install-test-packages installs it")
            });
        let listen = SocketAddr::from(([127, 0, 0, 1], port));
        let server = PlainRedis { process, listen };
        until("redis-server", || TcpStream::connect(listen).is_ok());
        let info = Resp::open(listen).say("INFO server");
        assert!(info.contains(&format!("process_id:{}\r", server.process.id())), "{port}: {info}");
        server
    }
}

impl Drop for PlainRedis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
