//! A shared memory as real processes: what one node's clients write the others' read, nothing is
//! lost by restarts, and what a dead node alone had says LOST.

use std::net::SocketAddr;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::common::*;

struct Memory {
    rack: Rack,
    /// Where each node's clients connect, by number from 1.
    listens: Vec<SocketAddr>,
}

impl Memory {
    fn start(name: &str, nodes: usize, more: &[&str]) -> Memory {
        let count = nodes.to_string();
        let own = ["--system", "concordia", "--nodes", &count];
        let rack = Rack::start(name, &[&own[..], more].concat());
        let first = rack.listen;
        let listen = |at: usize| SocketAddr::new(first.ip(), first.port() + at as u16);
        Memory { rack, listens: (0..nodes).map(listen).collect() }
    }

    fn client(&self, node: usize) -> Resp {
        Resp::open(self.listens[node - 1])
    }

    fn pid(&self, node: usize) -> u32 {
        self.rack.pid(&format!("memory-node-{node}"))
    }

    fn nodes(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.listens.len()
    }

    /// `concord <command> --config <this rack> ...`
    fn say(&self, command: &[&str], args: &[&str]) -> Output {
        concord(&[command, &["--config", &self.rack.file()], args].concat())
    }

    fn waits(&self) {
        let waited = self.say(&["wait"], &[]);
        assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
    }
}

/// The line of a reply, or the value of a bulk string.
fn told(client: &mut Resp, words: &[&str]) -> String {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let (line, value) = client.call(&words).unwrap();
    if line.starts_with('$') && line != "$-1" { String::from_utf8(value).unwrap() } else { line }
}

/// Every node's clients count one key up at once, while the memory changes, and give how often they
/// were told a sum, and how many outcomes they do not know.
fn count_up(memory: &Memory, times: u64) -> (u64, u64) {
    let count = |listen: SocketAddr| {
        let (mut client, mut known, mut unknown) = (Resp::open(listen), 0, 0);
        while known < times {
            match client.call(&[b"INCR", b"n"]) {
                Ok((line, _)) if line.starts_with(':') => known += 1,
                Ok((line, _)) => assert!(line.starts_with("-NONODE"), "{line}"),
                Err(_) => {
                    unknown += 1;
                    until("node again", || std::net::TcpStream::connect(listen).is_ok());
                    client = Resp::open(listen);
                }
            }
        }
        (known, unknown)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = memory.listens.iter().map(|at| scope.spawn(move || count(*at))).collect();
        let sums = all.into_iter().map(|thread| thread.join().unwrap());
        sums.fold((0, 0), |sum, (known, unknown)| (sum.0 + known, sum.1 + unknown))
    })
}

#[test]
fn keys_of_a_shared_memory_are_at_all_nodes() {
    let memory = Memory::start("memory-keys", 4, &[]);
    let mut clients: Vec<Resp> = memory.nodes().map(|node| memory.client(node)).collect();
    for key in 0..40 {
        let (key, value) = (format!("key{key}"), "x".repeat(key * 20));
        assert_eq!(told(&mut clients[0], &["SET", &key, &value]), "+OK");
        for client in &mut clients {
            assert_eq!(told(client, &["GET", &key]), value);
        }
    }
    let (known, unknown) = count_up(&memory, 500);
    assert_eq!((told(&mut clients[2], &["GET", "n"]), unknown), (known.to_string(), 0));
    assert_eq!(told(&mut clients[1], &["CAS", "n", "2000", "other"]), ":1");
    assert_eq!(
        told(&mut clients[3], &["INCR", "n"]),
        "-ERR value is not an integer or out of range"
    );
    assert_eq!(told(&mut clients[0], &["DEL", "n", "key1", "none"]), ":2");
    assert_eq!(told(&mut clients[3], &["EXISTS", "n", "key2"]), ":1");
    let full = told(&mut clients[3], &["SET", "key", &"x".repeat(2_000)]);
    assert!(full.starts_with("-ERR key and value have 2003 bytes"), "{full}");

    let targets: Vec<String> = memory.listens.iter().map(ToString::to_string).collect();
    let mut args = vec!["torture", "--strings", "--json", "--ops", "20000", "--keys", "12"];
    targets.iter().for_each(|target| args.extend(["--target", target]));
    let tortured = concord(&args);
    let report = String::from_utf8_lossy(&tortured.stdout).into_owned();
    assert_eq!(tortured.status.code(), Some(0), "{report}");

    let explained = memory.say(&["memory", "explain"], &["key2"]);
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    for wanted in ["block: ", "home: node ", "owner: ", "node 4: "] {
        assert!(text.contains(wanted), "{text}");
    }
    let status = memory.rack.status();
    assert_eq!(status["wrong"].as_array().map(Vec::len), Some(0), "{status}");
    assert!(Rack::counter(&status, "node", "memory_hits") > 0, "{status}");
}

#[test]
fn mistakes_of_a_shared_memory_get_one_line() {
    let run = directory("memory-mistakes");
    let run = run.display().to_string();
    for (flags, wanted) in [
        (&["--nodes", "33"][..], "--nodes 33: a shared memory has 1 to 32 nodes"),
        (&["--nodes", "0"], "--nodes 0: a shared memory has 1 to 32 nodes"),
        (
            &["--block-bytes", "3000"],
            "block_bytes is 3000; it must be one of 512, 1024, 2048, 4096",
        ),
    ] {
        let line = refused(&[&["up", "--system", "concordia", "--run-dir", &run], flags].concat());
        assert!(line.contains(wanted), "{line}");
    }
    let line = refused(&["up", "--run-dir", &run, "--nodes", "3"]);
    assert!(line.contains("say --system concordia"), "{line}");
}

/// Each node is told to end, one after the other, while all count; then the switch is another one.
#[test]
fn restarts_of_a_shared_memory_lose_nothing() {
    let memory = Memory::start("memory-rolling", 3, &[RESTARTS, "--standbys", "1"]);
    let mut client = memory.client(1);
    for key in 0..100 {
        let key = key.to_string();
        assert_eq!(told(&mut client, &["SET", &key, &key]), "+OK");
    }
    let (known, unknown) = std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(&memory, 3_000));
        for node in memory.nodes() {
            let old = memory.pid(node);
            Rack::signal(old, "-TERM");
            until("node that was started again", || {
                let pids = memory.rack.pids();
                let name = format!("memory-node-{node}");
                pids.iter().any(|(own, pid)| *own == name && *pid != old)
            });
            memory.waits();
        }
        Rack::signal(memory.rack.pid("switch"), "-9");
        counting.join().unwrap()
    });
    let mut client = memory.client(2);
    let sum: u64 = told(&mut client, &["GET", "n"]).parse().unwrap();
    assert!((known..=known + unknown).contains(&sum), "{sum} of {known} and {unknown}");
    for key in 0..100 {
        let key = key.to_string();
        assert_eq!(told(&mut client, &["GET", &key]), key);
    }
}

/// A node is killed: the others go on, its keys say LOST, and are empty once they are renewed.
#[test]
fn keys_of_a_killed_memory_node_say_lost() {
    let memory = Memory::start("memory-killed", 4, &[]);
    let mut client = memory.client(4);
    let keys: Vec<String> = (0..200).map(|key| format!("key{key}")).collect();
    for key in &keys {
        assert_eq!(told(&mut client, &["SET", key, "old"]), "+OK");
    }
    // Nodes 1 and 2 have copies of some.
    let (mut first, mut second) = (memory.client(1), memory.client(2));
    for key in &keys[..100] {
        assert_eq!(told(&mut first, &["GET", key]), "old");
    }
    let killed = Instant::now();
    Rack::signal(memory.pid(4), "-9");
    let mut lost = Vec::new();
    for key in &keys {
        let reply = told(&mut second, &["GET", key]);
        match &reply[..] {
            "old" => {}
            _ if reply.starts_with("-LOST") => lost.push(key),
            _ => panic!("{key}: {reply} after {:?}", killed.elapsed()),
        }
    }
    assert!(lost.iter().all(|key| !keys[..100].contains(key)), "copies live on: {lost:?}");
    assert!(lost.len() > 20, "node 4 wrote them all: {lost:?}");
    // Three failure times of a debug build on a busy machine, and not the 5 s of a command each.
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert!(told(&mut first, &["SET", lost[0], "new"]).starts_with("-LOST"));
    let renewed = memory.say(&["memory", "renew"], &[]);
    let text = String::from_utf8_lossy(&renewed.stdout).into_owned();
    assert!(renewed.status.success() && text.contains("node 4 does not answer"), "{text}");
    for key in &lost {
        assert_eq!(told(&mut first, &["GET", key]), "$-1");
        assert_eq!(told(&mut first, &["SET", key, "new"]), "+OK");
        assert_eq!(told(&mut second, &["GET", key]), "new");
    }
}
