//! Databases over real processes: replies are those of a redis-server, and replicas that copied the
//! state or came back from their disks tell the databases apart.

use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::common::*;

/// What one client says to a server and to a rack.
const LINES: [&str; 62] = [
    "SET k zero",
    "SELECT 1",
    "GET k",
    "SET k one EX 1000",
    "MSET a 1 b 2 c 3",
    "SELECT 15",
    "RPUSH l x y z",
    "SELECT 16",
    "SELECT x",
    "DBSIZE",
    "LMPOP 2 none l LEFT",
    "BLPOP none l 1",
    "SORT l BY w_* GET # GET v_*",
    "XADD s 1-1 f v",
    "XREAD STREAMS s 0",
    "XREADGROUP GROUP g c STREAMS s >",
    "XGROUP CREATE s g 0",
    "XREADGROUP GROUP g c STREAMS s >",
    "MOVE l 1",
    "MOVE l 1",
    "MOVE s 15",
    "MOVE none 16",
    "KEYS *",
    "RANDOMKEY",
    "SCAN 0 COUNT 9000",
    "SCAN 0 MATCH t* COUNT 9000",
    "SELECT 1",
    "LRANGE l 0 -1",
    "COPY k k DB 2",
    "COPY k k",
    "COPY k l DB 1",
    "COPY k k DB 0 REPLACE",
    "COPY k k DB x",
    "SELECT 0",
    "GET k",
    "TTL k",
    "EVAL return(redis.call('SET',KEYS[1]..':'..ARGV[1],redis.call('GET',KEYS[1]))) 1 k x",
    "KEYS k*",
    "SELECT 2",
    "KEYS *",
    "EVAL return{redis.call('KEYS','*'),KEYS[1],redis.call('DBSIZE')} 1 k",
    "EVAL return(redis.call('INCR','n'..ARGV[1])) 0 1",
    "DEL k n1",
    "EVAL_RO return(redis.call('RANDOMKEY')) 0",
    "WATCH k",
    "MULTI",
    "SET k two",
    "SELECT 1",
    "SET k one",
    "LPOP l",
    "DBSIZE",
    "EVAL return(redis.call('GET','k')) 0",
    "FLUSHDB",
    "SET new 1",
    "EXEC",
    "KEYS *",
    "SELECT 2",
    "FLUSHDB ASYNC",
    "DBSIZE",
    "SELECT 0",
    "DBSIZE",
    "SELECT 1",
];

/// A whole reply as text.
fn whole(client: &mut Resp, first: Option<&str>) -> String {
    let (line, value) = match first {
        Some(words) => {
            let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            client.call(&args).unwrap()
        }
        None => client.next().unwrap(),
    };
    let mut text = format!("{line} {}", String::from_utf8_lossy(&value));
    if let Some(count) = line.strip_prefix('*').and_then(|count| count.parse::<i64>().ok()) {
        (0..count).for_each(|_| text += &format!("{} ", whole(client, None)));
    }
    text.trim_end().to_string()
}

/// What all databases hold, as one client sees it.
fn contents(client: &mut Resp) -> Vec<String> {
    let mut all = Vec::new();
    for database in 0..16 {
        client.say(&format!("SELECT {database}"));
        let keys = whole(client, Some("KEYS *"));
        let mut keys: Vec<&str> = keys.split(' ').skip(1).filter(|w| !w.starts_with('$')).collect();
        keys.sort_unstable();
        all.push(format!("{database}: {} {}", client.say("DBSIZE"), keys.join(" ")));
        all.push(format!("{} {}", client.say("GET k"), client.say("TTL k") == ":-1"));
    }
    all
}

/// Keys come in an order of each server's own.
fn sorted(reply: &str) -> String {
    let mut words: Vec<&str> = reply.split(' ').collect();
    words.sort_unstable();
    words.join(" ")
}

/// The replies are those of a redis-server.
fn are_as_in_redis(rack: &Rack) {
    let server = PlainRedis::start();
    let mut ours = rack.client();
    let mut theirs = Resp::open(server.listen);
    for line in LINES {
        let replies = [whole(&mut ours, Some(line)), whole(&mut theirs, Some(line))];
        let [ours, theirs] = replies.map(|reply| match line.contains("KEYS") {
            true => sorted(&reply),
            false => reply,
        });
        assert_eq!(ours, theirs, "{line}");
    }
    assert_eq!(contents(&mut ours), contents(&mut theirs));
    ours.say("FLUSHALL");
}

/// A client that waits hears of its own database alone, and by the key that it named.
fn waits(rack: &Rack) {
    let (mut waiting, mut pushing) = (rack.client(), rack.client());
    waiting.say("SELECT 3");
    let listen = spawn(move || whole(&mut waiting, Some("BLPOP q other 20")));
    sleep(Duration::from_millis(300));
    assert_eq!(pushing.say("RPUSH q zero"), ":1");
    pushing.say("SELECT 3");
    pushing.say("RPUSH q three");
    assert_eq!(listen.join().unwrap(), "*2 $1 q $5 three");
    pushing.say("FLUSHALL");
}

fn fill(client: &mut Resp) {
    for database in [0, 1, 9] {
        assert_eq!(client.say(&format!("SELECT {database}")), "+OK");
        for n in 0..=database + 40 {
            client.say(&format!("SET key:{n} {database} EX 100000"));
        }
        client.say(&format!("SET k {database}"));
    }
}

/// A replica that somebody started by hand.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Replicas that copied the state, one after the other, until each has it from another.
fn those_that_copied_answer(name: &str, more: &[&str]) {
    let rack = Rack::start(name, more);
    are_as_in_redis(&rack);
    waits(&rack);
    let mut client = rack.client();
    fill(&mut client);
    let before = contents(&mut client);
    let mut again = Vec::new();
    for victim in ["1", "2", "3"] {
        Rack::signal(rack.pid(&format!("replica-{victim}")), "-9");
        until("epoch without it", || rack.open_replicas() == 2);
        let arguments = ["replica", "--config", &rack.file(), "--node", victim];
        let started = Command::new(CONCORD).args(arguments).stdout(Stdio::null()).spawn();
        again.push(Started(started.unwrap()));
        until("epoch with it", || rack.open_replicas() == 3);
        assert_eq!(contents(&mut client), before, "{victim}");
    }
    client.say("SELECT 9");
    assert_eq!(client.say("FLUSHDB"), "+OK");
    let after = contents(&mut client);
    assert_eq!((&after[..18], &after[20..]), (&before[..18], &before[20..]));
    assert_eq!(after[18], "9: :0 ");
}

/// All replicas come back from their disks.
fn come_back(name: &str, more: &[&str]) {
    let flags = [&["--durability", "fsync"], more].concat();
    let rack = Rack::start(name, &flags);
    let mut client = rack.client();
    fill(&mut client);
    client.say("SELECT 1");
    assert_eq!(client.say("FLUSHDB"), "+OK");
    assert_eq!(client.say("SET k again"), "+OK");
    let before = contents(&mut client);
    rack.cut_power();
    let rack = rack.again(name, &flags);
    let mut client = rack.client();
    until("all as before", || contents(&mut client) == before);
    client.say("SELECT 0");
    assert_eq!(client.say("FLUSHDB"), "+OK");
    assert_eq!(contents(&mut client)[2..], before[2..]);
}

#[test]
fn replicas_with_the_memory_engine_tell_databases_apart() {
    those_that_copied_answer("databases-memory", &[]);
    come_back("databases-memory-disk", &[]);
}

#[test]
fn replicas_with_redis_servers_tell_databases_apart() {
    those_that_copied_answer("databases-redis", &["--engine", "redis"]);
    come_back("databases-redis-disk", &["--engine", "redis"]);
}

#[test]
fn databases_are_those_of_redis_under_vr() {
    for engine in ["memory", "redis"] {
        let flags = ["--protocol", "vr", "--engine", engine];
        let rack = Rack::start(&format!("databases-vr-{engine}"), &flags);
        are_as_in_redis(&rack);
        waits(&rack);
    }
}
