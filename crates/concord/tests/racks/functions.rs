//! Libraries of functions on racks with both engines: they are there after the power of all went,
//! at a replica that joins while they are called and changed, and in a backup.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;

/// A library whose function `bump` adds this to a counter, and `look` reads it.
fn library(by: u64) -> Vec<u8> {
    format!(
        "#!lua name=counters\nlocal by = {by}\nredis.register_function('bump', function(keys) \
         return redis.call('INCRBY', keys[1], by) end)\nredis.register_function{{function_name = 'look', \
         callback = function(keys) return redis.call('GET', keys[1]) end, flags = {{'no-writes'}}}}"
    )
    .into_bytes()
}

fn load(client: &mut Resp, by: u64) {
    let (_, name) = client.call(&[b"FUNCTION", b"LOAD", b"REPLACE", &library(by)]).unwrap();
    assert_eq!(name, b"counters");
}

fn is_up(client: &mut Resp) -> bool {
    client.say("SET up 1") == "+OK"
}

fn survive(name: &str, more: &[&str]) {
    let flags = [&["--durability", "fsync"], more].concat();
    let mut rack = Rack::start(name, &flags);
    let mut client = rack.client();
    until("it serves", || is_up(&mut client));
    load(&mut client, 5);
    assert_eq!(client.say("FCALL bump 1 n"), ":5");
    assert_eq!(client.say("FCALL_RO look 1 n"), "5");
    assert!(client.say("FCALL_RO bump 1 n").starts_with("-ERR Can not execute a script"));
    assert_eq!(client.say("FLUSHALL"), "+OK");
    assert_eq!(client.say("DBSIZE"), ":0");
    assert_eq!(client.say("FCALL bump 1 n"), ":5");
    // In a transaction, which changes the library for its second call.
    client.say("MULTI");
    client.say("FCALL bump 1 n");
    client.call(&[b"FUNCTION", b"LOAD", b"REPLACE", &library(100)]).unwrap();
    client.say("FCALL bump 1 n");
    assert_eq!(client.say("EXEC"), "*3");
    let replies: Vec<_> = (0..3).map(|_| client.next().unwrap()).collect();
    assert_eq!((&*replies[0].0, &*replies[1].1, &*replies[2].0), (":10", &b"counters"[..], ":110"));
    assert_eq!(client.say("GET n"), "110");
    rack.cut_power();
    rack = rack.again(name, &flags);
    let mut client = rack.client();
    until("it serves again", || is_up(&mut client));
    assert_eq!(client.say("FCALL bump 1 n"), ":210");
    assert_eq!(client.say("FCALL_RO look 1 n"), "210");

    let place = directory(&format!("{name}-backups"));
    let target = place.join("one");
    let made = concord(&["backup", "--config", &rack.file(), &target.display().to_string()]);
    assert!(made.status.success(), "{made:?}");
    drop(rack);
    let run = directory(&format!("{name}-restored"));
    let words = ["restore", &target.display().to_string(), "--run-dir", &run.display().to_string()];
    let restored = concord(&words);
    assert!(restored.status.success(), "{restored:?}");
    let rack = Rack::start_at(run, &flags);
    let mut client = rack.client();
    until("the restored one serves", || is_up(&mut client));
    assert_eq!(client.say("FCALL bump 1 n"), ":310");
    assert_eq!(client.say("FUNCTION DELETE counters"), "+OK");
    assert_eq!(client.say("FCALL bump 1 n"), "-ERR Function not found");
}

#[test]
fn libraries_survive_a_power_cut_and_a_backup() {
    survive("functions-chain", &[]);
}

/// Libraries survive a power cut and a backup with redis servers.
#[test]
fn libraries_survive_power_cut_and_backup() {
    survive("functions-redis", &["--engine", "redis"]);
}

#[test]
fn libraries_survive_a_power_cut_and_a_backup_under_vr() {
    survive("functions-vr", &["--protocol", "vr"]);
}

/// A replica joins while libraries are loaded and called; then all others are gone, and it calls
/// what they would.
fn join(name: &str, more: &[&str]) {
    let rack = Rack::start(name, more);
    let mut client = rack.client();
    until("it serves", || is_up(&mut client));
    for n in 0..2_000 {
        assert_eq!(client.say(&format!("SET kept:{n} {n}")), "+OK");
    }
    load(&mut client, 1);
    let is_over = AtomicBool::new(false);
    let mut again = None;
    let (by, sum) = std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut client = rack.client();
            let (mut by, mut sum) = (1, 0);
            while !is_over.load(Ordering::Relaxed) {
                by += 1;
                load(&mut client, by);
                assert_eq!(client.say("FCALL bump 1 n"), format!(":{}", sum + by));
                sum += by;
                // A copy begins anew at each call: it gets its time.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            (by, sum)
        });
        Rack::signal(rack.pid("replica-3"), "-9");
        until("epoch without it", || !rack.members().contains(&3));
        again = Some(ByHand::start(&rack, &["replica", "--node", "3"]));
        until("epoch with it", || {
            rack.members().contains(&3) && rack.role("replica", 3)["phase"] == "open"
        });
        is_over.store(true, Ordering::Relaxed);
        calls.join().unwrap()
    });
    for other in 1..=2 {
        Rack::signal(rack.pid(&format!("replica-{other}")), "-9");
    }
    until("epoch of it alone", || rack.members() == [3]);
    let mut client = rack.client();
    until("it serves alone", || is_up(&mut client));
    assert_eq!(client.say("FCALL_RO look 1 n"), sum.to_string());
    assert_eq!(client.say("FCALL bump 1 n"), format!(":{}", sum + by));
}

#[test]
fn a_replica_that_joins_has_the_libraries() {
    join("functions-join", &[]);
}

#[test]
fn a_replica_that_joins_with_its_redis_server_has_the_libraries() {
    join("functions-join-redis", &["--engine", "redis"]);
}
