//! Long replies of writes over real processes: they arrive, cost what a GET of as much costs, and
//! what is longer than a reply may be is refused before it takes effect.
//!
//! `make replies` measures them (`CONCORD_RESULTS` is where its table goes, `CONCORD_PROGRAM` a
//! program that was built with optimization).

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::common::*;

const MIB: usize = 1 << 20;
/// Bytes of an element of the lists that are popped.
const ELEMENT: usize = 1_024;
/// Elements that are pushed by one command, which has to be shorter than 1 MiB.
const PUSHED: usize = 900;
/// What the docs say a reply has at most.
const REPLY_MIB_MAX: usize = 64;
const REFUSED: &str = "-ERR the reply would be longer than 64 MiB";

/// A connection whose replies are counted, not kept.
struct Counting(BufReader<TcpStream>);

/// The first line of a reply, and its bytes with all lines of lengths.
type Counted = (String, usize);

impl Counting {
    fn open(listen: SocketAddr) -> Counting {
        let stream = TcpStream::connect(listen).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Counting(BufReader::with_capacity(MIB, stream))
    }

    fn send(&mut self, args: &[&[u8]]) {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request).unwrap();
    }

    fn reply(&mut self) -> Counted {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the connection is closed");
        let mut bytes = line.len();
        let number = |line: &str| line[1..].trim_end().parse::<i64>().unwrap();
        match line.as_bytes()[0] {
            b'$' if number(&line) >= 0 => {
                let length = number(&line) as u64 + 2;
                let read = std::io::copy(&mut (&mut self.0).take(length), &mut std::io::sink());
                assert_eq!(read.unwrap(), length);
                bytes += length as usize;
            }
            b'*' => bytes += (0..number(&line)).map(|_| self.reply().1).sum::<usize>(),
            _ => {}
        }
        (line.trim_end().to_string(), bytes)
    }

    fn call(&mut self, args: &[&[u8]]) -> Counted {
        self.send(args);
        self.reply()
    }

    fn say(&mut self, words: &str) -> String {
        let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.call(&args).0
    }

    fn push(&mut self, key: &str, count: usize, bytes: usize) {
        let element = vec![b'e'; bytes];
        let at_once = (PUSHED * ELEMENT / bytes).max(1);
        let mut left = count;
        while left > 0 {
            let now = left.min(at_once);
            let mut args = vec![&b"RPUSH"[..], key.as_bytes()];
            args.resize(2 + now, &element);
            left -= now;
            assert_eq!(self.call(&args).0, format!(":{}", count - left));
        }
    }
}

/// A script that changes something and answers a value six times. (A script of the memory engine
/// has 32 MiB for what it holds, and a reply of a command is there twice while it is converted.)
const SIX_TIMES: &[u8] = b"redis.call('SET', KEYS[1], 'done') \
    local s = redis.call('GET', KEYS[2]) return {s, s, s, s, s, s}";

/// The writes that are measured, each beside a GET, and another read.
const COMMANDS: [&str; 5] = ["GETDEL", "LPOP", "EVAL", "EXEC", "LRANGE"];

/// Makes what the commands of a size answer: a string, a sixth of it, and a list.
fn fill(client: &mut Counting, mib: usize) {
    let piece = vec![b'v'; MIB];
    for _ in 0..mib {
        client.call(&[b"APPEND", format!("string-{mib}").as_bytes(), &piece]);
    }
    assert_eq!(client.say(&format!("STRLEN string-{mib}")), format!(":{}", mib * MIB));
    let script = b"return redis.call('SET', KEYS[1], \
        redis.call('GETRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1))";
    let (sixth, string) = (format!("sixth-{mib}"), format!("string-{mib}"));
    let length = (mib * MIB / 6).to_string();
    let args = [&b"EVAL"[..], script, b"2", sixth.as_bytes(), string.as_bytes(), length.as_bytes()];
    assert_eq!(client.call(&args).0, "+OK");
    client.push(&format!("list-{mib}"), mib * MIB / ELEMENT, ELEMENT);
}

/// Sends a command whose reply has so many MiB; how long it took until the reply's last byte.
fn measured(client: &mut Counting, command: &str, mib: usize) -> Duration {
    measured_with_cpu(client, &[], command, mib).0
}

/// The same, and the CPU time of these processes meanwhile.
fn measured_with_cpu(
    client: &mut Counting,
    pids: &[u32],
    command: &str,
    mib: usize,
) -> (Duration, Duration) {
    let (string, sixth) = (format!("string-{mib}"), format!("sixth-{mib}"));
    let (list, count) = (format!("list-{mib}"), (mib * MIB / ELEMENT).to_string());
    match command {
        "GETDEL" => assert_eq!(client.say(&format!("COPY {string} gone REPLACE")), ":1"),
        "LPOP" => assert_eq!(client.say(&format!("COPY {list} gone REPLACE")), ":1"),
        "EXEC" => {
            for line in ["MULTI", "SET done x", &format!("GET {string}")] {
                assert!(["+OK", "+QUEUED"].contains(&&*client.say(line)), "{line}");
            }
        }
        _ => {}
    }
    let (began, cpu) = (Instant::now(), cpu_time(pids));
    let (line, bytes) = match command {
        "GET" => client.call(&[b"GET", string.as_bytes()]),
        "GETDEL" => client.call(&[b"GETDEL", b"gone"]),
        "LPOP" => client.call(&[b"LPOP", b"gone", count.as_bytes()]),
        "LRANGE" => client.call(&[b"LRANGE", list.as_bytes(), b"0", b"-1"]),
        "EVAL" => client.call(&[b"EVAL", SIX_TIMES, b"2", b"done", sixth.as_bytes()]),
        _ => client.call(&[b"EXEC"]),
    };
    let (took, cpu) = (began.elapsed(), cpu_time(pids).saturating_sub(cpu));
    assert!(bytes >= mib * MIB - 5, "{command} of {mib} MiB: {line}, {bytes} bytes");
    if ["GETDEL", "LPOP"].contains(&command) {
        assert_eq!(client.say("EXISTS gone"), ":0");
    }
    (took, cpu)
}

/// Writes whose replies would be longer than a reply may be: what each said, and whether anything
/// was changed. (A string is never so long that it cannot be answered.)
fn too_long(client: &mut Counting) -> Vec<(&'static str, String, bool)> {
    const MORE: usize = REPLY_MIB_MAX + 1;
    client.push("long-list", MORE, MIB - 1_024);
    let piece = vec![b'v'; MIB];
    for _ in 0..MORE / 6 + 1 {
        client.call(&[b"APPEND", b"long-sixth", &piece]);
    }
    let mut seen = Vec::new();
    let length = |client: &mut Counting| client.say("LLEN long-list");
    let before = length(client);
    let said = client.say(&format!("LPOP long-list {}", MORE + 9));
    seen.push(("LPOP", said, length(client) != before));
    let args = [b"EVAL", SIX_TIMES, b"2", b"eval", b"long-sixth"];
    let said = client.call(&args).0;
    seen.push(("EVAL", said, client.say("EXISTS eval") != ":0"));
    for line in ["MULTI", "SET exec x", "LRANGE long-list 0 -1", "GET long-sixth"] {
        client.say(line);
    }
    let said = client.say("EXEC");
    seen.push(("EXEC", said, client.say("EXISTS exec") != ":0"));
    seen
}

fn judge_too_long(rack: &str, seen: &[(&str, String, bool)]) {
    for (command, said, is_changed) in seen {
        assert!(said.starts_with(REFUSED), "{rack}: {command}: {said}");
        assert!(!is_changed, "{rack}: {command}: {said}");
    }
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}

/// The CPU time that all processes of a rack have used, redis-servers too.
fn cpu_time(pids: &[u32]) -> Duration {
    let mut ns = 0;
    for pid in pids {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            ns += text.split(' ').next().and_then(|own| own.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Duration::from_nanos(ns)
}

/// What a command took beside the GETs that were sent in turn with it.
#[derive(Debug, Default)]
struct Beside {
    took: Vec<Duration>,
    get_took: Vec<Duration>,
    cpu: Duration,
    get_cpu: Duration,
}

impl Beside {
    /// The median, and its ratio to that of the GETs; the ratio of the CPU times.
    fn shown(&self) -> (Duration, f64, f64) {
        let (took, get) = (median(self.took.clone()), median(self.get_took.clone()));
        let cpu = self.cpu.as_secs_f64() / self.get_cpu.as_secs_f64().max(1e-9);
        (took, took.as_secs_f64() / get.as_secs_f64(), cpu)
    }
}

/// So many rounds of a size, in the order of [`COMMANDS`]: in each every command is measured behind
/// a GET, so that a machine that is slower for a while is so for both.
fn rounds_of(client: &mut Counting, pids: &[u32], mib: usize, rounds: u64) -> Vec<Beside> {
    let mut all: Vec<Beside> = COMMANDS.iter().map(|_| Beside::default()).collect();
    for _ in 0..rounds {
        for (command, own) in COMMANDS.iter().zip(&mut all) {
            let before = cpu_time(pids);
            own.get_took.push(measured(client, "GET", mib));
            own.get_cpu += cpu_time(pids).saturating_sub(before);
            let (took, cpu) = measured_with_cpu(client, pids, command, mib);
            own.took.push(took);
            own.cpu += cpu;
        }
    }
    all
}

/// Replies of 1 and 9 MiB arrive, and what is too long changes nothing, with both engines.
#[test]
fn bug_24_2_long_replies_of_writes_arrive() {
    for engine in ["memory", "redis"] {
        let rack = Rack::start(&format!("replies-{engine}"), &["--engine", engine]);
        let mut client = Counting::open(rack.listen);
        until("the commands are known", || client.say("COPY none other") == ":0");
        for mib in [1, 9] {
            fill(&mut client, mib);
            println!("{engine}, {mib} MiB: {:?}", rounds_of(&mut client, &[], mib, 1));
        }
        let seen = too_long(&mut client);
        println!("{engine}, more than {REPLY_MIB_MAX} MiB: {seen:?}");
        judge_too_long(engine, &seen);
        assert_eq!(rack.status()["wrong"], serde_json::json!([]), "{engine}");
    }
}

/// `make replies`: at most twice the time of a GET of as much.
#[test]
#[ignore = "minutes: make replies"]
fn long_replies_cost_what_a_get_costs() {
    let rounds = setting("CONCORD_ROUNDS", 7);
    let mut table = format!("| rack | MiB | GET | {} |\n|---|---|---|", COMMANDS.join(" | "));
    table += &"---|".repeat(COMMANDS.len());
    let mut slow = Vec::new();
    for (protocol, engine) in
        ["chain", "raft", "vr"].iter().flat_map(|own| [(*own, "memory"), (*own, "redis")])
    {
        let name = format!("{protocol}, {engine}");
        let flags = ["--protocol", protocol, "--engine", engine, "--durability", "fsync"];
        let rack = Rack::start(&format!("replies-{protocol}-{engine}"), &flags);
        let mut client = Counting::open(rack.listen);
        until("the commands are known", || client.say("COPY none other") == ":0");
        let roles: Vec<u32> = rack.pids().into_iter().map(|(_, pid)| pid).collect();
        let pids: Vec<u32> =
            roles.iter().flat_map(|pid| [vec![*pid], children(*pid)].concat()).collect();
        for mib in [1, 8, 32, 63] {
            client.say("FLUSHALL");
            fill(&mut client, mib);
            let all = rounds_of(&mut client, &pids, mib, rounds);
            let gets = all.iter().flat_map(|own| own.get_took.iter().copied()).collect();
            let get = median(gets).as_secs_f64() * 1e3;
            write!(table, "\n| {name} | {mib} | {get:.1} ms |").unwrap();
            for (command, own) in COMMANDS.iter().zip(&all) {
                let (took, ratio, cpu) = own.shown();
                let ms = took.as_secs_f64() * 1e3;
                write!(table, " {ms:.1} ms ({ratio:.2}, CPU {cpu:.2}) |").unwrap();
                if ratio > 2.0 && *command != "LRANGE" {
                    slow.push(format!("{name}: {command} of {mib} MiB: {ratio:.2}"));
                }
            }
            println!("{}", table.lines().last().unwrap());
        }
        client.say("FLUSHALL");
        let seen = too_long(&mut client);
        judge_too_long(&name, &seen);
        assert_eq!(rack.status()["wrong"], serde_json::json!([]), "{name}");
    }
    println!("{table}\n\nslower than twice a GET: {slow:#?}");
    if let Ok(results) = std::env::var("CONCORD_RESULTS") {
        let path = std::path::Path::new(&results).join("table.md");
        std::fs::write(path, table + "\n").unwrap();
    }
    assert!(slow.is_empty(), "{slow:#?}");
}
