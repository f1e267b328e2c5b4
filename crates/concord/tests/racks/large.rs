//! Large values, and clients that do not read, over real processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::common::*;

const MIB: usize = 1 << 20;

fn value(fill: usize) -> Vec<u8> {
    vec![b'a' + (fill % 26) as u8; MIB]
}

fn key(number: usize) -> Vec<u8> {
    format!("large-{number}").into_bytes()
}

/// Does `what` for each number at the same time, each with a connection of its own; how long all of
/// it took from when all were connected, and how many replies were as they should be.
fn at_once(
    listen: SocketAddr,
    count: usize,
    what: impl Fn(&mut Resp, usize) -> Result<(), String> + Sync,
) -> (Duration, Vec<String>) {
    let barrier = std::sync::Barrier::new(count + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let (barrier, what) = (&barrier, &what);
                scope.spawn(move || {
                    let mut client = Resp::open(listen);
                    barrier.wait();
                    what(&mut client, number)
                })
            })
            .collect();
        barrier.wait();
        let began = Instant::now();
        let ended: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        (began.elapsed(), ended.into_iter().filter_map(Result::err).collect())
    })
}

/// How long a machine that does something else meanwhile may take: `CONCORD_LARGE_SECONDS`.
fn seconds_max() -> Duration {
    Duration::from_secs(setting("CONCORD_LARGE_SECONDS", 30))
}

#[test]
fn bug_15_4_many_large_values_at_once_are_all_answered() {
    // One reply of 200 MiB is longer than a reply may be: it comes element by element.
    let rack = Rack::start("large", &["--split-reads"]);
    let set = |client: &mut Resp, number: usize| {
        let (line, _) = client.call(&[b"SET", &key(number), &value(number)]).unwrap();
        if line == "+OK" { Ok(()) } else { Err(line) }
    };
    let get = |client: &mut Resp, number: usize| {
        let (line, bytes) = client.call(&[b"GET", &key(number % 100)]).unwrap();
        if bytes == value(number % 100) { Ok(()) } else { Err(line) }
    };
    let (took, wrong) = at_once(rack.listen, 100, set);
    println!("100 parallel SETs of 1 MiB: {took:?}, wrong: {wrong:?}");
    assert!(wrong.is_empty() && took < seconds_max(), "{took:?} {wrong:?}");
    let (took, wrong) = at_once(rack.listen, 300, get);
    println!("300 parallel GETs of 1 MiB: {took:?}, wrong: {wrong:?}");
    assert!(wrong.is_empty() && took < seconds_max(), "{took:?} {wrong:?}");
    // One command for 200 MiB: its elements come as they do.
    let mut stream = BufReader::new(TcpStream::connect(rack.listen).unwrap());
    stream.get_mut().set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = b"*201\r\n$4\r\nMGET\r\n".to_vec();
    for number in 0..200 {
        let key = key(number % 100);
        command.extend_from_slice(format!("${}\r\n", key.len()).as_bytes());
        command.extend_from_slice(&key);
        command.extend_from_slice(b"\r\n");
    }
    let began = Instant::now();
    stream.get_mut().write_all(&command).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert_eq!(line, "*200\r\n");
    let mut element = vec![0; MIB + 2];
    for number in 0..200 {
        line.clear();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, format!("${MIB}\r\n"), "element {number}");
        stream.read_exact(&mut element).unwrap();
        assert!(element[..MIB] == value(number % 100), "element {number}");
    }
    println!("MGET of 200 values of 1 MiB: {:?}", began.elapsed());
    assert!(began.elapsed() < seconds_max());
    let status = rack.status();
    for name in ["replies_gone", "body_missing", "writes_unknown", "read_timeouts"] {
        assert_eq!(Rack::counter(&status, "gateway", name), 0, "{name}");
    }
}

/// The 99th percentile of what a small request takes.
fn p99(client: &mut Resp) -> Duration {
    let mut took: Vec<Duration> = (0..1_000)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(client.say("EXISTS large-0"), ":1");
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// Clients that do not read take bounded memory and leave others alone.
#[test]
fn bug_16_4_unread_clients_take_bounded_memory() {
    let rack = Rack::start("unread", &["--split-reads"]);
    let mut client = rack.client();
    let long = vec![b'v'; 400_000];
    for number in 0..100 {
        let (line, _) = client.call(&[b"SET", &key(number), &long]).unwrap();
        assert_eq!(line, "+OK");
    }
    let gateway = rack.pid("gateway-1");
    let quiet = p99(&mut client);
    let (before, _) = memory(gateway);
    let mut mget = b"*101\r\n$4\r\nMGET\r\n".to_vec();
    for number in 0..100 {
        let key = key(number);
        mget.extend_from_slice(format!("${}\r\n", key.len()).as_bytes());
        mget.extend_from_slice(&key);
        mget.extend_from_slice(b"\r\n");
    }
    // Five ask for 800 MB each, many for a little; none of them reads.
    let mut silent = Vec::new();
    for _ in 0..5 {
        let mut stream = TcpStream::connect(rack.listen).unwrap();
        stream.write_all(&mget.repeat(20)).unwrap();
        silent.push(stream);
    }
    for number in 0..500 {
        let mut stream = TcpStream::connect(rack.listen).unwrap();
        let get = format!("GET large-{}\r\n", number % 100);
        stream.write_all(get.repeat(10).as_bytes()).unwrap();
        silent.push(stream);
    }
    // While they get what they may have, the machine is busy; then nobody else is slower for them.
    let patience = (2 * quiet).max(Duration::from_millis(2));
    let mut busy = p99(&mut client);
    until("small requests as fast as before", || {
        busy = p99(&mut client);
        busy < patience
    });
    let (now, most) = memory(gateway);
    println!(
        "p99 {quiet:?}, then {busy:?}; memory {} MiB, then {} MiB, at most {} MiB",
        before / MIB,
        now / MIB,
        most / MIB
    );
    // What replies may take (256 MiB), what buffers grow by doubling, and the gateway itself.
    let bound = before + 400 * MIB;
    assert!(most < bound, "{} MiB, more than {} MiB", most / MIB, bound / MIB);
    drop(silent);
    until("room", || {
        rack.status()["roles"]
            .as_array()
            .unwrap()
            .iter()
            .any(|role| role["role"] == "gateway" && role["status"]["gauges"]["reply_bytes"] == 0.0)
    });
}
