//! Commands that wait, over real processes: queues whose workers are at two gateways, with every
//! protocol and both engines, while the node that orders writes is killed. Each element goes to one
//! worker.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;

/// What a worker got, and how many of its pops may have taken an element that it has not seen.
type Got = (Vec<String>, usize);

/// Pops until told that all was pushed, and then until there is nothing.
fn work(target: SocketAddr, command: &str, is_over: &AtomicBool) -> Got {
    let (mut client, mut got, mut unknown) = (Resp::open(target), Vec::new(), 0);
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    loop {
        let was_over = is_over.load(Ordering::Relaxed);
        let element = |client: &mut Resp| client.next().and_then(|_| client.next());
        let popped = match client.call(&words) {
            Ok((line, _)) if line == "*2" => element(&mut client),
            other => other,
        };
        match popped {
            Ok((line, element)) if line.starts_with('$') => {
                got.push(String::from_utf8(element).unwrap());
            }
            Ok((line, _)) if line == "*-1" && was_over => return (got, unknown),
            Ok((line, _)) if line == "*-1" || line.starts_with("-TRYAGAIN") => {}
            Ok((line, _)) if line.starts_with("-UNKNOWN") => unknown += 1,
            Ok((line, _)) => panic!("{command}: {line}"),
            Err(_) => {
                unknown += 1;
                client = Resp::open(target);
            }
        }
    }
}

/// Pushes elements of its own for some time; each with whether it was acknowledged.
fn produce(target: SocketAddr, name: usize, time: Duration) -> Vec<(String, bool)> {
    let (mut client, started) = (Resp::open(target), Instant::now());
    let mut pushed = Vec::new();
    while started.elapsed() < time {
        let element = format!("{name}-{}", pushed.len());
        let queue = ["q", "r"][pushed.len() % 2];
        match client.call(&[b"LPUSH", queue.as_bytes(), element.as_bytes()]) {
            Ok((reply, _)) => pushed.push((element, reply.starts_with(':'))),
            Err(_) => {
                pushed.push((element, false));
                client = Resp::open(target);
            }
        }
        if pushed.len().is_multiple_of(50) {
            // The workers catch up, and wait.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    pushed
}

fn queue(name: &str, more: &[&str], victim: Option<&str>) {
    let rack = Rack::start(name, &[&["--gateways", "2"], more].concat());
    let second = SocketAddr::from(([127, 0, 0, 1], rack.listen.port() + 1));
    let targets = [rack.listen, second];
    let is_over = AtomicBool::new(false);
    let (workers, pushed): (Vec<Got>, Vec<_>) = std::thread::scope(|scope| {
        let commands = ["BRPOP q r 1", "BRPOP r q 1", "BRPOP q 1", "BRPOP r 1", "BLPOP r q 0.5"];
        let is_over = &is_over;
        let workers: Vec<_> = (0..10)
            .map(|n| scope.spawn(move || work(targets[n % 2], commands[n / 2], is_over)))
            .collect();
        let time = Duration::from_millis(if victim.is_some() { 4_000 } else { 1_500 });
        let producers: Vec<_> =
            (0..2).map(|n| scope.spawn(move || produce(targets[n], n, time))).collect();
        if let Some(victim) = victim {
            std::thread::sleep(Duration::from_millis(700));
            Rack::signal(rack.pid(victim), "-9");
        }
        let pushed: Vec<_> = producers.into_iter().flat_map(|p| p.join().unwrap()).collect();
        is_over.store(true, Ordering::Relaxed);
        (workers.into_iter().map(|w| w.join().unwrap()).collect(), pushed)
    });
    let unknown: usize = workers.iter().map(|(_, unknown)| unknown).sum();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for element in workers.iter().flat_map(|(got, _)| got) {
        *seen.entry(element).or_default() += 1;
    }
    let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{name}: popped twice: {twice:?}");
    let is_lost = |(element, acknowledged): &&(String, bool)| {
        *acknowledged && !seen.contains_key(element.as_str())
    };
    let lost: Vec<_> = pushed.iter().filter(is_lost).collect();
    let got: Vec<usize> = workers.iter().map(|(got, _)| got.len()).collect();
    println!("{name}: {} pushed, popped {got:?}, {unknown} unknown", pushed.len());
    assert!(lost.len() <= unknown, "{name}: popped for nobody: {lost:?}");
    let mut client = rack.client();
    assert_eq!((client.say("LLEN q"), client.say("LLEN r")), (":0".into(), ":0".into()));
}

#[test]
fn each_element_goes_to_one_worker_with_the_memory_engine() {
    queue("pop-chain", &[], None);
    queue("pop-nopaxos", &["--protocol", "nopaxos"], None);
    queue("pop-craq", &["--protocol", "craq", "--accel", "none"], None);
}

#[test]
fn each_element_goes_to_one_worker_with_the_redis_engine() {
    queue("pop-chain-redis", &["--engine", "redis"], None);
    queue("pop-vr-redis", &["--engine", "redis", "--protocol", "vr"], None);
    queue("pop-pb-redis", &["--engine", "redis", "--protocol", "primary-backup"], None);
}

/// The node that orders dies and each element goes to one worker.
#[test]
fn orderer_dies_each_element_to_one_worker() {
    queue("pop-head", &[], Some("replica-1"));
    queue("pop-primary", &["--protocol", "primary-backup"], Some("replica-1"));
    queue("pop-craq-head", &["--protocol", "craq", "--accel", "none"], Some("replica-1"));
    queue("pop-vr-leader", &["--protocol", "vr"], Some("replica-1"));
    queue("pop-nopaxos-leader", &["--protocol", "nopaxos"], Some("replica-1"));
}

/// The replica that answers dies and each element goes to one worker.
#[test]
fn reader_dies_each_element_to_one_worker() {
    queue("pop-tail", &[], Some("replica-3"));
    queue("pop-head-redis", &["--engine", "redis"], Some("replica-1"));
}

/// What is popped for clients of a gateway that dies may be lost with it, one element each.
#[test]
fn a_gateway_dies_and_nobody_gets_an_element_twice() {
    queue("pop-gateway", &["--restart-gateways"], Some("gateway-2"));
}

/// What is told of a push at one gateway reaches who waits at the other, well before anybody looks.
#[test]
fn who_waits_at_one_gateway_hears_of_a_push_at_the_other() {
    for protocol in ["chain", "primary-backup", "craq", "vr", "nopaxos"] {
        let accel = if protocol == "craq" { "none" } else { "harmonia" };
        let more = ["--gateways", "2", "--protocol", protocol, "--accel", accel];
        let rack = Rack::start(&format!("push-{protocol}"), &more);
        let second = SocketAddr::from(([127, 0, 0, 1], rack.listen.port() + 1));
        let (mut waits, mut pushes) = (Resp::open(second), rack.client());
        let mut times: Vec<Duration> = (0..9)
            .map(|n| {
                std::thread::scope(|scope| {
                    let waits = &mut waits;
                    let waiting = scope.spawn(move || {
                        assert_eq!(waits.say("BLPOP k 10"), "*2");
                        waits.next().unwrap();
                        assert_eq!(waits.next().unwrap().1, format!("{n}").as_bytes());
                        Instant::now()
                    });
                    std::thread::sleep(Duration::from_millis(100));
                    let pushed_at = Instant::now();
                    assert_eq!(pushes.say(&format!("RPUSH k {n}")), ":1");
                    waiting.join().unwrap().duration_since(pushed_at)
                })
            })
            .collect();
        times.sort();
        println!("{protocol}: {:?} from a push to its pop", times[4]);
        assert!(times[4] < Duration::from_millis(300), "{protocol}: {times:?}");
        let status = rack.status();
        assert!(Rack::counter(&status, "replica", "waiting_told") >= 9, "{protocol}");
    }
}

/// WAIT answers as many replicas as have what was acknowledged, and waits for more as long as it
/// says.
#[test]
fn wait_counts_the_replicas_that_have_what_was_written() {
    for (name, more, counts) in [
        ("wait-chain", &[][..], (2, 1)),
        ("wait-vr-redis", &["--protocol", "vr", "--engine", "redis"], (1, 1)),
    ] {
        let rack = Rack::start(name, more);
        let mut client = rack.client();
        assert_eq!(client.say("SET k v"), "+OK");
        assert_eq!(client.say(&format!("WAIT {} 0", counts.0)), format!(":{}", counts.0), "{name}");
        let refused = "This Redis command is not allowed from script";
        let script: [&[u8]; 3] = [b"EVAL", b"return redis.call('wait', 0, 0)", b"0"];
        assert!(client.call(&script).unwrap().0.contains(refused), "{name}");
        Rack::signal(rack.pid("replica-3"), "-KILL");
        until("a write without the replica", || client.say("SET k w") == "+OK");
        until("the members are known", || client.say("WAIT 0 0") == format!(":{}", counts.1));
        let began = Instant::now();
        assert_eq!(client.say("WAIT 3 200"), format!(":{}", counts.1), "{name}");
        assert!(began.elapsed() >= Duration::from_millis(200), "{name}");
    }
}

/// One whole reply: the words of its bulk strings.
fn words_of(client: &mut Resp, command: &str) -> Vec<String> {
    let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let mut words = Vec::new();
    let (mut left, mut reply) = (1, client.call(&args));
    loop {
        let (line, value) = reply.unwrap();
        left -= 1;
        match line.strip_prefix('*').and_then(|count| count.parse::<i64>().ok()) {
            Some(count) => left += count.max(0),
            None if line.starts_with('$') => words.push(String::from_utf8(value).unwrap()),
            None => words.push(line),
        }
        if left == 0 {
            return words;
        }
        reply = client.next();
    }
}

/// Readers of a stream at one gateway get every entry that is added at the other, consumers of a
/// group each its own.
#[test]
fn streams_are_waited_for_with_both_engines() {
    for (name, more) in [
        ("stream-chain", &[][..]),
        ("stream-nopaxos", &["--protocol", "nopaxos"]),
        ("stream-chain-redis", &["--engine", "redis"]),
    ] {
        let rack = Rack::start(name, &[&["--gateways", "2"], more].concat());
        let second = SocketAddr::from(([127, 0, 0, 1], rack.listen.port() + 1));
        let mut adds = rack.client();
        let has_groups = !name.ends_with("redis");
        assert_eq!(adds.say("XADD s * n old").len(), "1700000000000-0".len());
        if has_groups {
            assert_eq!(adds.say("XGROUP CREATE s g $"), "+OK");
        }
        let read = |from: &'static str| {
            let mut client = Resp::open(second);
            std::thread::spawn(move || {
                let mut from = from.to_string();
                let mut seen = Vec::new();
                while seen.last() != Some(&"9".to_string()) {
                    let words =
                        words_of(&mut client, &format!("XREAD BLOCK 5000 STREAMS s {from}"));
                    from.clone_from(&words[words.len() - 3]);
                    seen.extend(words[1..].chunks_exact(3).map(|entry| entry[2].clone()));
                }
                seen
            })
        };
        let readers = [read("$"), read("$"), read("0")];
        let consumers: Vec<_> = (0..if has_groups { 2 } else { 0 })
            .map(|n| {
                let mut client = Resp::open(second);
                std::thread::spawn(move || {
                    let command = format!("XREADGROUP GROUP g c{n} COUNT 1 BLOCK 1000 STREAMS s >");
                    let mut seen = Vec::new();
                    loop {
                        let words = words_of(&mut client, &command);
                        let Some(number) = words.get(3) else { return seen };
                        seen.push(number.clone());
                        assert_eq!(client.say(&format!("XACK s g {}", words[1])), ":1");
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        let all: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        for number in &all {
            assert!(adds.say(&format!("XADD s * n {number}")).contains('-'));
            std::thread::sleep(Duration::from_millis(10));
        }
        let [first, other, from_begin] = readers.map(|reader| reader.join().unwrap());
        assert_eq!((&first, &other), (&all, &all), "{name}");
        assert_eq!(from_begin[0], "old");
        assert_eq!(from_begin[1..], all);
        let mut seen: Vec<String> = consumers.into_iter().flat_map(|c| c.join().unwrap()).collect();
        seen.sort();
        assert_eq!(seen, if has_groups { all } else { Vec::new() }, "{name}");
        if has_groups {
            assert_eq!(words_of(&mut adds, "XPENDING s g")[0], ":0");
        }
    }
}
