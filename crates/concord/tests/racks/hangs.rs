//! Racks whose redis-servers do not answer: a script that does not end, a server that was stopped.
//! Other clients are served again within a stated time, and no replica is lost to a script that can
//! be stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;

/// A script that changes nothing may run for 5 s; what was sent again meanwhile may make the same
/// at other replicas, at the same time. The rest is for the machine.
const SCRIPT_PAUSE_MAX: Duration = Duration::from_secs(9);
/// An engine may be silent for 10 s; then its replica leaves, which costs a change of the epoch.
const SILENCE_PAUSE_MAX: Duration = Duration::from_secs(16);

const STOPPED: &str = "-ERR the script ran for too long and was stopped; it has changed nothing";

/// A rack with redis-servers, whose gateway has heard of their commands.
fn start(name: &str, more: &[&str]) -> Rack {
    let rack = Rack::start(name, &[&["--engine", "redis"], more].concat());
    let mut client = rack.client();
    until("script", || client.call(&[b"EVAL", b"return 1", b"1", b"k"]).unwrap().0 == ":1");
    rack
}

/// Ends what others do, whatever becomes of its owner.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `trouble` beside a client that writes and reads; the longest time that it was not served.
fn longest_pause(rack: &Rack, after: Duration, trouble: impl FnOnce()) -> Duration {
    let listen = rack.listen;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut client = Resp::open(listen);
            let (mut longest, mut last, mut n) = (Duration::ZERO, Instant::now(), 0u64);
            while !done.load(Ordering::Relaxed) {
                n += 1;
                let value = n.to_string();
                let (set, _) = client.call(&[b"SET", b"other", value.as_bytes()]).unwrap();
                let (get, got) = client.call(&[b"GET", b"other"]).unwrap();
                if set == "+OK" && !get.starts_with('-') {
                    assert_eq!(got, value.as_bytes());
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            longest.max(last.elapsed())
        });
        let ends = Ends(&done);
        trouble();
        std::thread::sleep(after);
        drop(ends);
        other.join().unwrap()
    })
}

fn an_endless_script_is_stopped(protocol: &str, more: &[&str]) {
    let arguments = [&["--protocol", protocol], more].concat();
    let rack = start(&format!("endless-{protocol}"), &arguments);
    for name in ["EVAL_RO", "EVAL"] {
        let pause = longest_pause(&rack, Duration::from_secs(1), || {
            let args = [name.as_bytes(), b"while true do end", b"1", b"k"];
            assert_eq!(rack.client().call(&args).unwrap().0, STOPPED, "{protocol} {name}");
        });
        println!("{protocol}: {name} without an end: others waited for {pause:?}");
        assert!(pause < SCRIPT_PAUSE_MAX, "{protocol} {name}: {pause:?}");
        assert_eq!(rack.open_replicas(), 3, "{protocol} {name}");
    }
}

#[test]
fn bug_15_7_a_script_without_an_end_is_stopped_in_a_chain() {
    an_endless_script_is_stopped("chain", &[]);
}

/// A script without an end is stopped under primary backup and craq.
#[test]
fn bug_15_7_endless_script_stopped_primary_backup_craq() {
    an_endless_script_is_stopped("primary-backup", &[]);
    an_endless_script_is_stopped("craq", &["--accel", "none"]);
}

/// A script without an end is stopped under vr and nopaxos.
#[test]
fn bug_15_7_endless_script_stopped_vr_nopaxos() {
    an_endless_script_is_stopped("vr", &[]);
    an_endless_script_is_stopped("nopaxos", &[]);
}

/// A script that wrote and does not end costs one replica.
#[test]
fn bug_15_7_endless_script_that_wrote_costs_one_replica() {
    let file = directory("poison-file");
    let config = file.join("rack.toml");
    std::fs::write(&config, "script_seconds = 8\n").unwrap();
    let rack = start("poison", &["--config", &config.display().to_string()]);
    let pause = longest_pause(&rack, Duration::from_secs(4), || {
        let script = b"redis.call('SET', KEYS[1], 'v') while true do end";
        let (reply, _) = rack.client().call(&[b"EVAL", script, b"1", b"k"]).unwrap();
        assert!(reply.starts_with("-UNKNOWN"), "{reply}");
    });
    println!("a script that wrote and does not end: others waited for {pause:?}");
    assert!(pause < 3 * SCRIPT_PAUSE_MAX, "{pause:?}");
    assert_eq!(rack.open_replicas(), 2);
    assert_eq!(rack.client().say("GET k"), "$-1", "nothing of it was kept");
}

/// A server that is stopped costs its replica and comes back.
#[test]
fn bug_15_7_stopped_server_costs_its_replica() {
    let rack = start("stopped", &[]);
    let server = children(rack.pid("replica-2"))[0];
    let pause = longest_pause(&rack, Duration::from_secs(1), || {
        Rack::signal(server, "-STOP");
        until("epoch without it", || rack.open_replicas() == 2);
    });
    println!("a redis-server that was stopped: others waited for {pause:?}");
    assert!(pause < SILENCE_PAUSE_MAX, "{pause:?}");
    // Whoever is heard of again copies what it missed.
    Rack::signal(server, "-CONT");
    until("epoch with it", || rack.open_replicas() == 3);
}

/// A script that counts a key up so often.
const COUNTS: &[u8] =
    b"for i = 1, tonumber(ARGV[1]) do redis.call('INCR', KEYS[1]) end return 'done'";

/// The number with which it takes about that long at one server, where so many execute it one after
/// the other.
fn count_for(rack: &Rack, wanted: Duration, servers: u32) -> u64 {
    let (mut client, mut count) = (rack.client(), 1_000u64);
    loop {
        let began = Instant::now();
        let times = count.to_string();
        let args = [b"EVAL", COUNTS, b"1", b"warm", times.as_bytes()];
        assert_eq!(client.call(&args).unwrap().1, b"done");
        let took = began.elapsed() / servers;
        if took > Duration::from_millis(300) {
            return (count as f64 * wanted.as_secs_f64() / took.as_secs_f64()) as u64;
        }
        count *= 3;
    }
}

/// Scripts wait for each other, on a busy machine for long.
const PATIENCE: Duration = Duration::from_secs(240);

fn scripts_of_seconds_cost_no_replica(protocol: &str, seconds: u64, servers: u32) {
    let rack = start(&format!("seconds-{protocol}"), &["--protocol", protocol]);
    let count = count_for(&rack, Duration::from_secs(seconds), servers).to_string();
    let epochs = |rack: &Rack| rack.role("replica", 1)["epoch"].clone();
    let before = epochs(&rack);
    let (done, listen) = (AtomicBool::new(false), rack.listen);
    let (mut sets, mut busy) = (0, 0);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let (mut client, mut replies) = (Resp::open(listen).waiting(PATIENCE), Vec::new());
            while !done.load(Ordering::Relaxed) {
                replies.push(client.call(&[b"SET", b"other", b"v"]).unwrap().0);
                std::thread::sleep(Duration::from_millis(20));
            }
            replies
        });
        let ends = Ends(&done);
        let script = |key: &'static str| {
            let args = [b"EVAL", COUNTS, b"1", key.as_bytes(), count.as_bytes()];
            let (status, reply) = Resp::open(listen).waiting(PATIENCE).call(&args).unwrap();
            assert_eq!(reply, b"done", "{key}: {status}");
        };
        let scripts: Vec<_> =
            ["a", "b", "c"].map(|key| scope.spawn(move || script(key))).into_iter().collect();
        let began = Instant::now();
        scripts.into_iter().for_each(|own| own.join().unwrap());
        println!("{protocol}: three scripts took {:?}", began.elapsed());
        drop(ends);
        for reply in others.join().unwrap() {
            assert!(reply == "+OK" || reply.starts_with("-BUSY "), "{protocol}: {reply}");
            *(if reply == "+OK" { &mut sets } else { &mut busy }) += 1;
        }
    });
    println!("{protocol}: {sets} SETs of others, {busy} of which heard that the rack is busy");
    assert_eq!((rack.open_replicas(), epochs(&rack)), (3, before), "{protocol}");
    assert!(sets > 0);
    let mut client = rack.client();
    for key in ["a", "b", "c"] {
        assert_eq!(client.say(&format!("GET {key}")), count, "{protocol}");
    }
}

/// Three scripts of some seconds each, which change something: nobody leaves, and others get an
/// answer.
#[test]
fn bug_22_110_scripts_of_seconds_cost_no_replica() {
    scripts_of_seconds_cost_no_replica("chain", 3, 3);
    // The leader, then the others together.
    scripts_of_seconds_cost_no_replica("vr", 2, 2);
}
