//! A rack whose roles are services of their own, as docs/operate/operations.md says: each is
//! started by the document's command, and restarted by SIGTERM and the same command again. And
//! clients that use it meanwhile, and tell for how long they were not served.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::{CONCORD, Directory, Resp, concord, directory, free_ports, until};

/// A service.
struct Unit {
    name: String,
    args: Vec<String>,
    child: Child,
}

/// All of a rack.
pub struct Units {
    pub run: Directory,
    /// Where the gateways listen.
    pub gateways: [SocketAddr; 2],
    units: Vec<Unit>,
}

/// A place in the rack file, with ports that no connection takes as its own.
fn place(section: &str, more: &str) -> String {
    let port = free_ports();
    let (addr, http) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
    format!("\n{section}\n{more}addr = \"{addr}\"\nhttp = \"{http}\"\n")
}

impl Units {
    /// A controller, a switch, three replicas, two gateways. `top` begins the rack file; without
    /// `durability` in it nothing is on disk.
    pub fn start(name: &str, top: &str) -> Units {
        let run = directory(name);
        let first = free_ports();
        let gateways = [first, first + 1].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let state = run.join("controller.state");
        // Only racks that say so keep their data.
        let keeps = top.contains("durability");
        let none = if keeps { "" } else { "durability = \"none\"" };
        let mut text = format!("{none}\n{top}\n");
        text += &place("[controller]", &format!("state = {state:?}\n"));
        text += &place("[switch]", "");
        for node in 1..=3 {
            let data_dir = run.join(format!("data-{node}"));
            let kept = if keeps { format!("data_dir = {data_dir:?}\n") } else { String::new() };
            text += &place("[[replica]]", &format!("node = {node}\n{kept}"));
        }
        for (node, listen) in (1..).zip(gateways) {
            let more = format!("node = {node}\nlisten = \"{listen}\"\n");
            text += &place("[[gateway]]", &more);
        }
        std::fs::write(run.join("rack.toml"), text).unwrap();
        let mut rack = Units { run, gateways, units: Vec::new() };
        for role in ["controller", "switch"] {
            rack.add(role, &[role]);
        }
        for node in ["1", "2", "3"] {
            rack.add(&format!("replica-{node}"), &["replica", "--node", node]);
        }
        for node in ["1", "2"] {
            rack.add(&format!("gateway-{node}"), &["gateway", "--node", node]);
        }
        rack.wait();
        rack
    }

    /// Changes what stands in the rack file.
    pub fn replace(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.file()).unwrap();
        assert!(text.contains(from), "{from} is not in the rack file");
        std::fs::write(self.file(), text.replace(from, to)).unwrap();
    }

    pub fn file(&self) -> String {
        self.run.join("rack.toml").display().to_string()
    }

    /// Adds a place to the rack file.
    pub fn append(&self, section: &str, more: &str) {
        let text = std::fs::read_to_string(self.file()).unwrap();
        std::fs::write(self.file(), text + &place(section, more)).unwrap();
    }

    /// Takes what was appended last out of the rack file.
    pub fn take_out(&self, section: &str) {
        let text = std::fs::read_to_string(self.file()).unwrap();
        let upto = text.rfind(section).unwrap();
        std::fs::write(self.file(), &text[..upto]).unwrap();
    }

    /// Starts a service that was not there.
    pub fn add(&mut self, name: &str, args: &[&str]) {
        let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
        args.extend(["--config".into(), self.file(), "--log-format".into(), "json".into()]);
        let child = self.spawn(name, &args);
        self.units.push(Unit { name: name.into(), args, child });
    }

    fn spawn(&self, name: &str, args: &[String]) -> Child {
        let path = self.run.join(format!("{name}.log"));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        let mut command = Command::new(CONCORD);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn at(&mut self, name: &str) -> &mut Unit {
        self.units.iter_mut().find(|unit| unit.name == name).unwrap()
    }

    /// `systemctl stop`; how long it took.
    pub fn stop(&mut self, name: &str) -> Duration {
        let began = Instant::now();
        let unit = self.at(name);
        super::Rack::signal(unit.child.id(), "-TERM");
        assert!(unit.child.wait().unwrap().success(), "{name}");
        began.elapsed()
    }

    /// `kill -9`.
    pub fn kill(&mut self, name: &str) {
        let unit = self.at(name);
        unit.child.kill().unwrap();
        unit.child.wait().unwrap();
    }

    /// It stands still meanwhile.
    pub fn pause(&self, name: &str, meanwhile: impl FnOnce()) {
        let unit = self.units.iter().find(|unit| unit.name == name).unwrap();
        super::Rack::signal(unit.child.id(), "-STOP");
        meanwhile();
        super::Rack::signal(unit.child.id(), "-CONT");
    }

    /// `systemctl start`.
    pub fn start_again(&mut self, name: &str) {
        let args = self.at(name).args.clone();
        let child = self.spawn(name, &args);
        self.at(name).child = child;
    }

    /// `systemctl restart`.
    pub fn restart(&mut self, name: &str) -> Duration {
        let took = self.stop(name);
        self.start_again(name);
        took
    }

    /// `concord wait`.
    pub fn wait(&self) {
        let output = concord(&["wait", "--config", &self.file()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// What a role says of itself; null if it does not answer.
    pub fn role(&self, role: &str, node: u64) -> Value {
        let args = ["status", "--json", "--interval-ms", "10", "--config", &self.file()];
        let status: Value = serde_json::from_slice(&concord(&args).stdout).unwrap_or_default();
        let roles = status["roles"].as_array().cloned().unwrap_or_default();
        let found = roles.iter().find(|r| r["role"] == role && r["node"] == node);
        found.map_or(Value::Null, |r| r["status"].clone())
    }

    pub fn members(&self) -> Vec<u64> {
        let members = self.role("controller", 1)["members"].clone();
        members.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    }

    /// What a role has logged.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.run.join(format!("{name}.log"))).unwrap()
    }

    /// The lines of a role's log with that message.
    pub fn logged(&self, name: &str, message: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.run.join(format!("{name}.log"))).unwrap();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == message).collect()
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        for unit in &mut self.units {
            let _ = unit.child.kill();
            let _ = unit.child.wait();
        }
    }
}

/// When a line was logged.
pub fn time_of(line: &Value) -> SystemTime {
    let text = line["timestamp"].as_str().unwrap();
    let number = |from: usize, to: usize| text[from..to].parse::<u64>().unwrap();
    assert!(text.ends_with('Z'), "{text} is not in UTC");
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    // Days since 1970 by the Gregorian calendar, the year beginning in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + number(11, 13)) * 60 + number(14, 16)) * 60 + number(17, 19);
    let fraction: f64 = text[19..text.len() - 1].parse().unwrap();
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_secs_f64(fraction)
}

/// A time without an answer to a write, as a client saw it.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Pause {
    pub fn length(&self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }
}

/// What clients saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Times between the answers to two writes of a client.
    pauses: Vec<Pause>,
    /// Replies that are errors.
    pub errors: Vec<String>,
    /// Connections that came to their end, each with at most one command that was not answered.
    pub ends: u64,
    pub writes: u64,
}

impl Seen {
    /// The longest pause that overlaps that time.
    pub fn longest(&self, (from, until): (SystemTime, SystemTime)) -> Pause {
        let overlaps = |p: &&Pause| p.from <= until && p.until >= from;
        let longest = self.pauses.iter().filter(overlaps).max_by_key(|p| p.length());
        *longest.unwrap_or_else(|| panic!("no write from {from:?} to {until:?}"))
    }
}

/// Counts a key up until told to end. A connection that ends is made anew to the other gateway.
fn count_up(n: usize, gateways: [SocketAddr; 2], done: &AtomicBool) -> Seen {
    let (key, mut seen) = (format!("counter:{n}"), Seen::default());
    let (mut at, mut acknowledged, mut unknown) = (n % 2, 0u64, 0u64);
    let mut client = Resp::open(gateways[at]);
    let mut last = SystemTime::now();
    while !done.load(Ordering::Relaxed) {
        let answer = client.call(&[b"INCR", key.as_bytes()]);
        let answer = answer.and_then(|(line, _)| {
            let value: Option<u64> = line.strip_prefix(':').and_then(|v| v.parse().ok());
            let Some(value) = value else {
                unknown += 1;
                seen.errors.push(line);
                return Ok(());
            };
            let now = SystemTime::now();
            seen.pauses.push(Pause { from: last, until: now });
            (last, acknowledged) = (now, acknowledged + 1);
            assert!((acknowledged..=acknowledged + unknown).contains(&value), "{key}: {value}");
            let (line, read) = client.call(&[b"GET", key.as_bytes()])?;
            if line.starts_with('-') {
                seen.errors.push(line);
            } else {
                assert_eq!(String::from_utf8_lossy(&read), value.to_string());
            }
            Ok(())
        });
        if answer.is_err() {
            // The command may have been executed.
            (seen.ends, unknown, at) = (seen.ends + 1, unknown + 1, 1 - at);
            client = Resp::open(gateways[at]);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    seen.pauses.push(Pause { from: last, until: SystemTime::now() });
    let value: u64 = client.say(&format!("GET {key}")).parse().unwrap();
    assert!((acknowledged..=acknowledged + unknown).contains(&value), "{key}: {value}");
    seen.writes = acknowledged;
    seen
}

/// Ends what others do, whatever becomes of its owner.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something while so many clients of both gateways write and read.
pub fn while_used(rack: &mut Units, clients: usize, doing: impl FnOnce(&mut Units)) -> Seen {
    let (gateways, done) = (rack.gateways, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let count = |n: usize| {
            let done = &done;
            scope.spawn(move || count_up(n, gateways, done))
        };
        let all: Vec<_> = (0..clients).map(count).collect();
        let ends = Ends(&done);
        std::thread::sleep(Duration::from_millis(300));
        doing(rack);
        std::thread::sleep(Duration::from_millis(300));
        drop(ends);
        let mut seen = Seen::default();
        for client in all {
            let own = client.join().unwrap();
            seen.pauses.extend(own.pauses);
            seen.errors.extend(own.errors);
            seen.ends += own.ends;
            seen.writes += own.writes;
        }
        seen
    })
}

/// Does a step, and gives when that was.
pub fn timed(step: impl FnOnce()) -> (SystemTime, SystemTime) {
    let began = SystemTime::now();
    step();
    (began, SystemTime::now())
}

/// Waits until replicas have gone on without one.
pub fn until_gone(rack: &Units, node: u64) {
    until("epoch without it", || !rack.members().contains(&node));
}
