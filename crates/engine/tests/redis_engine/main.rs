//! The Redis engine against a real redis-server (7.0 or newer must be installed).
#![allow(clippy::unwrap_used)]

mod databases;
mod functions;
mod long;
mod rights;
mod scripts;
mod stored;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use concord_engine::copy::{PLACE_END, next_place, place_of_key, ticket_of_cursor};
use concord_engine::{
    Class, Command, CommandBuf, Completion, Context, Engine, Progress, RedisEngine, Shimmed,
};

const NOW_MS: u64 = 1_700_000_000_000;

/// A redis-server of its own, ended when dropped.
struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    fn start(extra: &[&str]) -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("concord-redis-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let child = Server::spawn(&dir, extra);
        Server { child, dir }
    }

    fn spawn(dir: &PathBuf, extra: &[&str]) -> Child {
        let child = Process::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(["--enable-debug-command", "local", "--unixsocket"])
            .arg(dir.join("s"))
            .arg("--dir")
            .arg(dir)
            .args(extra)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be installed");
        while UnixStream::connect(dir.join("s")).is_err() {
            sleep(Duration::from_millis(5));
        }
        child
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Server::spawn(&self.dir, &[]);
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.join("s")).unwrap()
    }

    /// What redis-cli prints for a command on a connection of its own.
    fn cli(&self, args: &[&str]) -> String {
        let output = Process::new("redis-cli")
            .arg("-s")
            .arg(self.dir.join("s"))
            .args(args)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim_end().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// One replica's engine, its server, and a driver that blocks.
struct Replica {
    server: Server,
    stream: UnixStream,
    engine: Shimmed<RedisEngine>,
    position: u64,
    context: Context,
}

fn encode(args: &[&str]) -> Vec<u8> {
    let name = args[0].to_ascii_uppercase();
    let key_index = match name.as_str() {
        "EVAL" | "EVAL_RO" => 3,
        "OBJECT" => 2,
        "DBSIZE" | "KEYS" | "SCAN" | "RANDOMKEY" | "FLUSHALL" | "FLUSHDB" | "COMMAND" | "EXEC" => 0,
        _ if args.len() > 1 => 1,
        _ => 0,
    };
    CommandBuf::new().encode(key_index, args.iter().map(|arg| arg.as_bytes())).to_vec()
}

impl Replica {
    fn new(decide: bool) -> Replica {
        Replica::with(decide, 67_108_800)
    }

    /// Its server takes and makes strings of so many bytes at most.
    fn with(decide: bool, string_bytes_max: usize) -> Replica {
        let limit = string_bytes_max.to_string();
        let server = Server::start(&["--proto-max-bulk-len", &limit]);
        let context = Context { now_ms: NOW_MS, decide, ..Context::default() };
        let engine = Shimmed::new(RedisEngine::new().with_compiler(scripts::compile));
        let mut replica =
            Replica { stream: server.connect(), server, engine, position: 0, context };
        replica.greet();
        assert!(replica.redis().ready(), "{:?}", replica.redis().lost_reason());
        replica
    }

    fn redis(&mut self) -> &mut RedisEngine {
        self.engine.backend_mut()
    }

    fn greet(&mut self) {
        self.redis().connected();
        let until = |r: &mut Replica| r.redis().lost_reason().is_some() || r.redis().ready();
        while !until(self) {
            assert!(self.pump(), "the connection closed");
        }
    }

    fn reconnect(&mut self) {
        self.redis().disconnected();
        self.stream = self.server.connect();
        self.redis().connected();
    }

    fn send_all(&mut self) -> bool {
        let output = self.redis().output().to_vec();
        let ok = self.stream.write_all(&output).is_ok();
        self.redis().sent(output.len());
        ok
    }

    /// Sends all, receives something; false if the connection is closed.
    fn pump(&mut self) -> bool {
        let ok = self.send_all();
        let mut bytes = [0; 1 << 16];
        let count = self.stream.read(&mut bytes).unwrap_or(0);
        self.redis().input(&bytes[..count]);
        ok && count > 0
    }

    fn submit(&mut self, class: Class, command: &[u8]) -> Option<Completion> {
        let mut context = self.context;
        if class == Class::Write {
            self.position += 1;
            context.position = self.position;
        }
        let command = Command::parse(command).unwrap();
        let mut reply = Vec::new();
        let done = self.engine.submit(&context, class, &command, &mut reply) == Progress::Done;
        done.then_some(Completion { reply, ..Completion::default() })
    }

    fn wait(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.engine.poll() {
                return completion;
            }
            let reason = self.redis().lost_reason().map(str::to_string);
            assert_eq!(reason, None, "the engine is lost");
            assert!(self.pump(), "the connection closed");
        }
    }

    fn run(&mut self, class: Class, command: &[u8]) -> Completion {
        let done = self.submit(class, command);
        done.unwrap_or_else(|| self.wait())
    }

    fn write(&mut self, args: &[&str]) -> String {
        String::from_utf8_lossy(&self.run(Class::Write, &encode(args)).reply).into()
    }

    fn read(&mut self, args: &[&str]) -> String {
        String::from_utf8_lossy(&self.run(Class::Read, &encode(args)).reply).into()
    }

    fn applied(&self) -> String {
        self.server.cli(&["-n", "1", "GET", "concord:applied"])
    }
}

/// Executes at a head and, as a replica would, at a follower; both states must stay equal.
struct Pair {
    head: Replica,
    follower: Replica,
}

impl Pair {
    fn new() -> Pair {
        Pair { head: Replica::new(true), follower: Replica::new(false) }
    }

    fn write(&mut self, args: &[&str]) -> String {
        self.write_encoded(encode(args), args)
    }

    fn write_encoded(&mut self, command: Vec<u8>, args: &[&str]) -> String {
        let text = self.write_both(command, args);
        self.assert_equal(args);
        text
    }

    /// Without a look at the states.
    fn write_both(&mut self, command: Vec<u8>, args: &[&str]) -> String {
        let done = self.head.run(Class::Write, &command);
        let replicated = done.effect.clone().unwrap_or(command);
        // The follower gets clock and protocol with the record.
        self.follower.context = Context { decide: false, ..self.head.context };
        let follower = self.follower.run(Class::Write, &replicated);
        if done.effect.is_none() {
            assert_eq!(done.reply, follower.reply, "{args:?}");
        }
        String::from_utf8_lossy(&done.reply).into()
    }

    fn assert_equal(&mut self, after: &[&str]) {
        assert_eq!(self.head.position, self.follower.position);
        let digest = |server: &Server| server.cli(&["DEBUG", "DIGEST"]);
        let head = digest(&self.head.server);
        assert_eq!(head.len(), 40, "{head}");
        assert_eq!(head, digest(&self.follower.server), "{after:?}");
        assert_eq!(self.head.engine.next_expiry_ms(), self.follower.engine.next_expiry_ms());
        // No time to live ever reaches a server (trap T12).
        let keyspace = self.follower.server.cli(&["INFO", "keyspace"]);
        assert_eq!(keyspace.matches("expires=").count(), keyspace.matches("expires=0").count());
    }
}

/// Writes and reads in order with the applied number beside the data.
#[test]
fn ordered_writes_and_reads_with_the_applied_number() {
    let mut r = Replica::new(true);
    assert_eq!(r.write(&["SET", "k", "v"]), "+OK\r\n");
    assert_eq!(r.read(&["GET", "k"]), "$1\r\nv\r\n");
    assert_eq!(r.write(&["LPUSH", "l", "a", "b"]), ":2\r\n");
    assert_eq!(r.write(&["INCR", "l"]).split(' ').next(), Some("-WRONGTYPE"));
    assert_eq!(r.applied(), "3", "a write that fails when it runs counts as applied");
    // Pipelined: submitted all, completed in order.
    for _ in 0..100 {
        assert_eq!(r.submit(Class::Write, &encode(&["INCR", "n"])), None);
        assert_eq!(r.submit(Class::Read, &encode(&["GET", "n"])), None);
    }
    for n in 1..=100 {
        assert_eq!(r.wait().reply, format!(":{n}\r\n").into_bytes());
        let shown = n.to_string();
        assert_eq!(r.wait().reply, format!("${}\r\n{n}\r\n", shown.len()).into_bytes());
    }
    assert_eq!(r.applied(), "103");
    assert!(r.redis().commands().unwrap().count() > 200);
}

#[test]
fn what_the_server_refuses_at_queueing_gives_its_own_error() {
    let mut r = Replica::new(true);
    let args = "-ERR wrong number of arguments for 'append' command\r\n";
    assert_eq!(r.write(&["APPEND", "k"]), args);
    let unknown = "-ERR unknown command 'FOO', with args beginning with: 'k' 'v' \r\n";
    assert_eq!(r.write(&["FOO", "k", "v"]), unknown);
    assert_eq!(r.write(&["SET", "k", "1"]), "+OK\r\n");
    assert_eq!(r.applied(), "3");
    // An expired key goes even if the command behind is refused.
    assert_eq!(r.write(&["SET", "k", "1", "PX", "5"]), "+OK\r\n");
    r.context.now_ms += 6;
    assert_eq!(r.read(&["GET", "k"]), "$1\r\n1\r\n");
    assert_eq!(r.write(&["APPEND", "k"]), args);
    assert_eq!(r.read(&["EXISTS", "k"]), ":0\r\n");
    assert_eq!(r.engine.next_expiry_ms(), None);
}

#[test]
fn clients_never_see_the_applied_number_and_flushall_keeps_it() {
    let mut r = Replica::new(true);
    r.write(&["SET", "k", "v"]);
    assert_eq!(r.read(&["DBSIZE"]), ":1\r\n");
    assert_eq!(r.read(&["KEYS", "*"]), "*1\r\n$1\r\nk\r\n");
    assert_eq!(r.read(&["RANDOMKEY"]), "$1\r\nk\r\n");
    assert!(r.read(&["SCAN", "0"]).ends_with("*1\r\n$1\r\nk\r\n"));
    assert_eq!(r.read(&["GET", "concord:applied"]), "$-1\r\n");
    assert_eq!(r.write(&["SET", "concord:applied", "77"]), "+OK\r\n");
    assert_eq!(r.applied(), "2");
    for flush in ["FLUSHALL", "FLUSHDB"] {
        r.write(&["SET", "k", "v"]);
        assert_eq!(r.write(&[flush]), "+OK\r\n");
        assert_eq!(r.read(&["DBSIZE"]), ":0\r\n");
        assert_eq!(r.applied(), r.position.to_string());
    }
    assert!(r.read(&["COMMAND", "COUNT"]).starts_with(':'));
}

#[test]
fn what_would_part_the_replicas_is_refused() {
    let mut r = Replica::new(true);
    for line in [
        "MOVE k 1",
        "COPY k l DB 1",
        "EXEC k",
        "MULTI",
        "SELECT 1",
        "HELLO 3",
        "SUBSCRIBE k",
        "SHUTDOWN NOSAVE",
        "EVALSHA 0123 1 k",
        "SPOP k 2000000",
        "DEBUG SLEEP 1",
        "CONFIG SET maxmemory 1",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let reply = r.write(&args);
        assert!(reply.contains("supported"), "{line}: {reply}");
    }
    assert_eq!(r.applied(), "12", "a refused write counts as applied");
    assert!(r.read(&["SET", "k", "v"]).contains("came as a read"));
    assert!(r.read(&["XREAD", "BLOCK", "0", "STREAMS", "k", "0"]).contains("not supported"));
    assert_eq!(r.read(&["XREAD", "STREAMS", "k", "0"]), "*-1\r\n");
    assert_eq!(r.read(&["OBJECT", "ENCODING", "k"]), "$-1\r\n");
    assert_eq!(r.read(&["GETRANGE", "k", "0", "-1"]), "$0\r\n\r\n");
}

#[test]
fn what_waits_does_not_wait_here_and_has_redis_replies() {
    let mut r = Replica::new(true);
    assert_eq!(r.write(&["BLPOP", "k", "l", "0"]), "*-1\r\n");
    assert_eq!(r.write(&["BLMOVE", "k", "l", "LEFT", "LEFT", "0"]), "$-1\r\n");
    assert_eq!(r.write(&["BZPOPMIN", "z", "0"]), "*-1\r\n");
    r.write(&["RPUSH", "l", "a", "b"]);
    r.write(&["ZADD", "z", "1", "m"]);
    assert_eq!(r.write(&["BLPOP", "k", "l", "0"]), "*2\r\n$1\r\nl\r\n$1\r\na\r\n");
    assert_eq!(r.write(&["BRPOPLPUSH", "l", "k", "0"]), "$1\r\nb\r\n");
    assert_eq!(r.write(&["BZPOPMAX", "z", "0"]), "*3\r\n$1\r\nz\r\n$1\r\nm\r\n$1\r\n1\r\n");
    assert!(r.write(&["BLPOP", "k", "x"]).starts_with("-ERR timeout is not a float"));
}

#[test]
fn random_draws_are_decided_once() {
    let mut p = Pair::new();
    let members: Vec<String> = (0..200).map(|n| format!("m{n}")).collect();
    let mut sadd = vec!["SADD", "s"];
    sadd.extend(members.iter().map(String::as_str));
    assert_eq!(p.write(&sadd), ":200\r\n");
    for _ in 0..20 {
        assert!(p.write(&["SPOP", "s"]).starts_with("$"));
        assert!(p.write(&["SPOP", "s", "5"]).starts_with("*5\r\n"));
    }
    p.head.context.resp3 = true;
    assert!(p.write(&["SPOP", "s", "1000"]).starts_with("~80\r\n"));
    assert_eq!(p.write(&["SPOP", "s"]), "_\r\n");
    p.head.context.resp3 = false;
    for _ in 0..300 {
        assert!(p.write(&["XADD", "x", "MAXLEN", "~", "100", "*", "f", "v"]).starts_with('$'));
    }
    assert!(
        p.write(&["XADD", "x", "99999999999999-*", "f", "v"]).ends_with("99999999999999-0\r\n")
    );
    assert_eq!(p.write(&["XADD", "none", "NOMKSTREAM", "*", "f", "v"]), "$-1\r\n");
    assert!(p.write(&["XADD", "s2", "*"]).contains("wrong number"));
    p.write(&["XTRIM", "x", "MAXLEN", "~", "10"]);
}

#[test]
fn the_protocol_is_that_of_each_request() {
    let mut r = Replica::new(true);
    r.write(&["HSET", "h", "f", "v"]);
    for n in 0..20 {
        r.context.resp3 = n % 3 == 0;
        assert_eq!(r.submit(Class::Read, &encode(&["HGETALL", "h"])), None);
    }
    for n in 0..20 {
        let start: &[u8] = if n % 3 == 0 { b"%1\r\n" } else { b"*2\r\n" };
        assert!(r.wait().reply.starts_with(start), "{n}");
    }
    r.context.resp3 = true;
    assert_eq!(r.write(&["ZADD", "z", "INCR", "1.5", "m"]), ",1.5\r\n");
    assert_eq!(r.read(&["GET", "none"]), "_\r\n");
}

#[test]
fn a_killed_connection_is_replaced_and_nothing_is_done_twice() {
    let mut r = Replica::new(true);
    r.write(&["INCR", "n"]);
    // Idle: nothing is lost, whatever waits is sent on the new connection.
    r.server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert!(!r.pump());
    r.redis().disconnected();
    assert_eq!(r.submit(Class::Write, &encode(&["INCR", "n"])), None);
    assert_eq!(r.submit(Class::Read, &encode(&["GET", "n"])), None);
    r.reconnect();
    assert_eq!(r.wait().reply, b":2\r\n");
    assert_eq!(r.wait().reply, b"$1\r\n2\r\n");
    // A write that was applied while its reply is lost: the replica has to leave.
    r.submit(Class::Write, &encode(&["INCR", "n"]));
    r.send_all();
    while r.server.cli(&["GET", "n"]) != "3" {
        sleep(Duration::from_millis(1));
    }
    r.reconnect();
    while r.redis().lost_reason().is_none() {
        assert!(r.pump());
    }
    assert!(r.redis().lost_reason().unwrap().contains("reply was lost"));
    assert!(r.engine.lost());
    assert_eq!(r.server.cli(&["GET", "n"]), "3");
}

/// The server is stopped while a write sits in its socket, unread; the connection is dropped and a
/// new one made. When the server goes on, it must not run the old connection's write after it
/// answered what is applied.
#[test]
fn what_the_server_had_not_read_of_the_old_connection_runs_once() {
    for _ in 0..5 {
        let mut r = Replica::new(true);
        r.write(&["INCR", "n"]);
        let signal = |name: &str, r: &Replica| {
            let pid = r.server.child.id().to_string();
            assert!(Process::new("kill").args([name, &pid]).status().unwrap().success());
        };
        signal("-STOP", &r);
        r.submit(Class::Write, &encode(&["INCR", "n"]));
        r.send_all();
        r.reconnect();
        r.send_all();
        signal("-CONT", &r);
        while r.redis().lost_reason().is_none() {
            if let Some(done) = r.engine.poll() {
                assert_eq!(done.reply, b":2\r\n");
                break;
            }
            assert!(r.pump());
        }
        assert_eq!(r.server.cli(&["GET", "n"]), "2");
    }
}

#[test]
fn a_restarted_server_is_lost_and_a_strange_one_is_refused() {
    let mut r = Replica::new(true);
    r.write(&["SET", "k", "v"]);
    r.server.restart();
    r.reconnect();
    while r.redis().lost_reason().is_none() {
        assert!(r.pump());
    }
    assert!(r.redis().lost_reason().unwrap().contains("restarted"));

    let refused = |extra: &[&str], set: bool| {
        let server = Server::start(extra);
        if set {
            server.cli(&["SET", "k", "v"]);
        }
        let engine = Shimmed::new(RedisEngine::new());
        let stream = server.connect();
        let context = Context::default();
        let mut r = Replica { server, stream, engine, position: 0, context };
        r.greet();
        r.redis().lost_reason().unwrap().to_string()
    };
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    assert!(refused(&evicting, false).contains("maxmemory-policy must be noeviction"));
    assert!(refused(&evicting[..2], false).contains("maxmemory must be 0"));
    assert!(refused(&[], true).contains("start it empty"));
}

/// A database that someone emptied is noticed at the next connection.
#[test]
fn emptied_database_is_noticed_on_reconnect() {
    let mut r = Replica::new(true);
    r.write(&["SET", "k", "v"]);
    r.server.cli(&["FLUSHALL"]);
    r.reconnect();
    while r.redis().lost_reason().is_none() {
        assert!(r.pump());
    }
    assert!(r.redis().lost_reason().unwrap().contains("applied position 0"));
}

/// redis-py's Lock (redis/lock.py, LUA_RELEASE_SCRIPT, LUA_EXTEND_SCRIPT, LUA_REACQUIRE_SCRIPT).
const RELEASE: &str = "
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        redis.call('del', KEYS[1])
        return 1
";
const EXTEND: &str = "
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        local expiration = redis.call('pttl', KEYS[1])
        if not expiration then
            expiration = 0
        end
        if expiration < 0 then
            return 0
        end

        local newttl = ARGV[2]
        if ARGV[3] == \"0\" then
            newttl = ARGV[2] + expiration
        end
        redis.call('pexpire', KEYS[1], newttl)
        return 1
";
const REACQUIRE: &str = "
        local token = redis.call('get', KEYS[1])
        if not token or token ~= ARGV[1] then
            return 0
        end
        redis.call('pexpire', KEYS[1], ARGV[2])
        return 1
";

#[test]
fn the_lock_of_redis_py_works_with_its_times_to_live() {
    let mut p = Pair::new();
    assert_eq!(p.write(&["SET", "lock", "me", "NX", "PX", "1000"]), "+OK\r\n");
    assert_eq!(p.write(&["SET", "lock", "you", "NX", "PX", "1000"]), "$-1\r\n");
    assert_eq!(p.write(&["EVAL", EXTEND, "1", "lock", "you", "500", "0"]), ":0\r\n");
    p.head.context.now_ms += 100;
    assert_eq!(p.write(&["EVAL", EXTEND, "1", "lock", "me", "500", "0"]), ":1\r\n");
    assert_eq!(p.head.engine.next_expiry_ms(), Some(NOW_MS + 1500));
    assert_eq!(p.write(&["EVAL", REACQUIRE, "1", "lock", "me", "700"]), ":1\r\n");
    assert_eq!(p.head.engine.next_expiry_ms(), Some(NOW_MS + 800));
    assert_eq!(p.head.read(&["PTTL", "lock"]), ":700\r\n");
    assert_eq!(p.write(&["EVAL", RELEASE, "1", "lock", "you"]), ":0\r\n");
    assert_eq!(p.write(&["EVAL", RELEASE, "1", "lock", "me"]), ":1\r\n");
    assert_eq!(p.head.engine.next_expiry_ms(), None);
    assert_eq!(p.write(&["SET", "lock", "you", "NX", "PX", "5"]), "+OK\r\n");
    p.head.context.now_ms += 5;
    // It is due: the script finds no lock.
    assert_eq!(p.write(&["EVAL", RELEASE, "1", "lock", "you"]), ":0\r\n");
}

#[test]
fn scripts_answer_as_on_a_plain_server() {
    let mut p = Pair::new();
    let plain = Server::start(&[]);
    let mut stream = plain.connect();
    for resp3 in [false, true] {
        speak(&mut p, &mut stream, resp3);
        for script in [
            "return 1",
            "return",
            "return nil",
            "return false",
            "return true",
            "return 'x' -- a comment",
            "return {1, 'two', {3, nil, 4}, false}",
            "return {ok = 'fine'}",
            "return {err = 'ERR my own'}",
            "return redis.status_reply('s')",
            "return redis.error_reply('MY error')",
            "return 3.99",
            "return ARGV",
            "return #ARGV",
            "return KEYS[1] .. ARGV[2]",
            "return redis.sha1hex('')",
            "return redis.call('SET', KEYS[1], 'v')",
            "return redis.call('set', KEYS[1], 'v', 'nx')",
            "return redis.call('SET', KEYS[1], 'w', 'XX', 'KEEPTTL')",
            "return redis.call('SET', KEYS[1], 'x', 'GET')",
            "return redis.call('APPEND', KEYS[1], 12)",
            "return redis.call('APPEND', KEYS[1], 1.5)",
            "return redis.call('GET', KEYS[1])",
            "return redis.pcall('INCR', KEYS[1])",
            "return {redis.call('EXISTS', KEYS[1]), redis.pcall('TTL', KEYS[1])}",
            "return redis.call('DEL', KEYS[1])",
            "return {redis.call('TTL', KEYS[1]), redis.call('PTTL', KEYS[1])}",
            "return redis.call('EXPIRE', KEYS[1], 100)",
            "return redis.call('SETEX', KEYS[1], 100, 'v')",
            "return {redis.call('TTL', KEYS[1]), redis.call('PERSIST', KEYS[1])}",
            "return {redis.call('PERSIST', KEYS[1]), redis.call('TTL', KEYS[1])}",
            "return redis.call('SET', KEYS[1], 'v', 'EX', 100, 'NX')",
            "return redis.call('SET', KEYS[1], 'v', 'PX', '100000')",
            "return redis.call('TTL', KEYS[1])",
            "return redis.call('EXPIRE', KEYS[1], 200, 'LT')",
            "return redis.call('EXPIRE', KEYS[1], 200, 'GT')",
            "return redis.pcall('EXPIRE', KEYS[1], 'x')",
            "return redis.pcall('SET', KEYS[1], 'v', 'EX', 0)",
            "return redis.pcall('SET', KEYS[1], 'v', 'EX')",
            "return redis.pcall('SETEX', KEYS[1], 5)",
            "return redis.pcall('GET')",
            "return redis.call('EXPIRE', KEYS[1], -1)",
            "return redis.call('EXISTS', KEYS[1])",
            "return redis.call('RPUSH', KEYS[1], 'a', 'b', 'c')",
            "local t = {} for i = 1, 3 do t[i] = redis.call('LPOP', KEYS[1]) end return t",
            "return redis.call('HSET', KEYS[1], 'a', '1', 'b', '2')",
            "return redis.call('HGETALL', KEYS[1])",
            "return redis.call('HKEYS', KEYS[1])",
            "return cjson.encode({1, 2})",
            "return redis.call('DEL', KEYS[1])",
            "#!lua flags=no-writes\nreturn redis.call('EXISTS', KEYS[1])",
        ] {
            let line = ["EVAL", script, "1", "k", "a", "b"];
            let ours = p.write(&line);
            let theirs = ask(&mut stream, &line);
            assert!(scripts::alike(&ours, &theirs), "{script} (RESP3: {resp3}): {ours} {theirs}");
        }
        // Errors that are raised name the script's line; its digest differs from the plain one's.
        for script in ["\nfoo()", "return redis.call('NONE')", "error('x')", "x =", "redis.call()"]
        {
            let line = ["EVAL", script, "1", "k"];
            let (ours, theirs) = (p.write(&line), ask(&mut stream, &line));
            let head = |text: &str| text.chars().take(24).collect::<String>();
            assert_eq!(head(&ours), head(&theirs), "{script}: {ours}");
        }
    }
    for wrong in [["EVAL", "return 1", "7", "k"], ["EVAL", "return 1", "x", "k"]] {
        assert_eq!(p.write(&wrong), ask(&mut stream, &wrong));
    }
}

/// Both speak RESP3 from here on, or RESP2.
fn speak(p: &mut Pair, stream: &mut UnixStream, resp3: bool) {
    p.head.context.resp3 = resp3;
    ask(stream, &["HELLO", if resp3 { "3" } else { "2" }]);
}

/// The reply to a command on a connection that is not ours.
fn ask(stream: &mut UnixStream, args: &[&str]) -> String {
    let mut request = format!("*{}\r\n", args.len());
    for arg in args {
        request += &format!("${}\r\n{arg}\r\n", arg.len());
    }
    stream.write_all(request.as_bytes()).unwrap();
    let (mut reply, mut scanner) = (Vec::new(), concord_engine::resp_scan::Scanner::new());
    while scanner.scan(&reply).unwrap().is_none() {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        reply.extend_from_slice(&bytes[..count]);
    }
    String::from_utf8_lossy(&reply).into()
}

#[test]
fn scripts_cannot_part_the_replicas() {
    let mut p = Pair::new();
    for script in [
        "return redis.call('OBJECT', 'FREQ', KEYS[1])",
        "return redis.call('MOVE', KEYS[1], 1)",
        "return redis.call('INFO')",
    ] {
        let reply = p.write(&["EVAL", script, "1", "k", "EX"]);
        assert!(reply.contains("not supported in scripts"), "{script}: {reply}");
    }
    let now = "return redis.call('TIME')";
    let time = p.write(&["EVAL", now, "1", "k"]);
    assert_eq!(time, "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n");
    // Hash tables that each server orders by a seed of its own.
    let fill = "for i = 1, 600 do redis.call('SADD', KEYS[1], 'm' .. i) end";
    p.write(&["EVAL", fill, "1", "s"]);
    p.write(&["EVAL", "return redis.call('SMEMBERS', KEYS[1])", "1", "s"]);
    let fill = "for i = 1, 600 do redis.call('HSET', KEYS[1], 'f' .. i, i) end";
    p.write(&["EVAL", fill, "1", "h"]);
    p.write(&["EVAL", "return redis.call('HGETALL', KEYS[1])", "1", "h"]);
    p.write(&["EVAL", "return redis.call('HVALS', KEYS[1])", "1", "h"]);
    let draws = "return math.random(1000000)";
    p.write(&["EVAL", draws, "1", "k"]);
    assert_eq!(
        p.head.read(&["EVAL_RO", "return redis.call('SCARD', KEYS[1])", "1", "s"]),
        ":600\r\n"
    );
    let reply = p.head.read(&["EVAL_RO", "return redis.call('EXPIRE', KEYS[1], 9)", "1", "s"]);
    assert!(reply.contains("Write commands are not allowed"), "{reply}");
    assert_eq!(p.head.engine.next_expiry_ms(), None);
}

/// A script that touches another key fails in the words of redis cluster.
#[test]
fn bug_15_12_undeclared_key_fails_as_in_redis_cluster() {
    let mut p = Pair::new();
    for call in [
        "'INCR', 'other'",
        "'GET', 'other'",
        "'EXPIRE', 'other', 10",
        "'SET', 'other', 'v', 'EX', 10",
        "'DEL', KEYS[1], 'other'",
        "'MSET', KEYS[1], 1, 'other', 2",
        "'LMOVE', KEYS[1], 'other', 'LEFT', 'LEFT'",
        "'BITOP', 'AND', KEYS[1], 'other'",
        "'ZUNIONSTORE', KEYS[1], 2, KEYS[1], 'other'",
        "'GEORADIUS', KEYS[1], 0, 0, 1, 'm', 'STORE', 'other'",
        "'XREAD', 'STREAMS', KEYS[1], 'other', 0, 0",
        "'XINFO', 'STREAM', 'other'",
    ] {
        let raised = p.write(&["EVAL", &format!("return redis.call({call})"), "1", "k"]);
        let text = "-ERR Script attempted to access a non local key in a cluster node";
        assert!(raised.starts_with(text), "{call}: {raised}");
        let caught = format!("return redis.pcall({call})['err']");
        assert!(p.write(&["EVAL", &caught, "1", "k"]).contains("non local key"), "{call}");
        assert_eq!(p.head.read(&["EXISTS", "other"]), ":0\r\n", "{call}");
        assert_eq!(p.head.read(&["EXISTS", "k"]), ":0\r\n", "{call}");
    }
    for (call, answer) in [
        ("'MSET', KEYS[1], 1, KEYS[1], 2", "+OK\r\n"),
        ("'DEL', KEYS[1], KEYS[1]", ":1\r\n"),
        ("'ZADD', KEYS[1], 1, 'm'", ":1\r\n"),
        ("'ZUNIONSTORE', KEYS[1], 1, KEYS[1]", ":1\r\n"),
        ("'PING'", "+PONG\r\n"),
    ] {
        let script = format!("return redis.call({call})");
        assert_eq!(p.write(&["EVAL", &script, "1", "k"]), answer, "{call}");
    }
    for keys in ["'FLUSHALL'", "'DBSIZE'", "'KEYS', '*'", "'SCAN', 0", "'RANDOMKEY'"] {
        let reply = p.write(&["EVAL", &format!("return redis.call({keys})"), "1", "k"]);
        assert!(reply.contains("non local key"), "{keys}: {reply}");
    }
    let publish = p.write(&["EVAL", "return redis.call('PUBLISH', 'c', 'm')", "1", "k"]);
    assert_eq!(publish, ">3\r\n$7\r\npublish\r\n$1\r\nc\r\n$1\r\nm\r\n:0\r\n");
}

#[test]
fn a_key_that_a_script_replaces_loses_its_time_to_live() {
    let mut p = Pair::new();
    for script in [
        "redis.call('SET', KEYS[1], 'w')",
        "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 'w')",
        "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'w')",
        "redis.call('GETSET', KEYS[1], 'w')",
        "redis.call('PERSIST', KEYS[1])",
        "redis.call('GETDEL', KEYS[1])",
        "redis.call('EXPIREAT', KEYS[1], 5)",
    ] {
        p.write(&["DEL", "k"]);
        p.write(&["SET", "k", "v", "EX", "10"]);
        p.write(&["EVAL", "redis.call('APPEND', KEYS[1], 'w')", "1", "k"]);
        assert_eq!(p.head.engine.next_expiry_ms(), Some(NOW_MS + 10_000));
        p.write(&["EVAL", script, "1", "k"]);
        assert_eq!(p.head.engine.next_expiry_ms(), None, "{script}");
    }
}

/// Copies `from` to `to`, which executes what `from` does as far as the copy has come.
fn copy_under_writes(from: &mut Replica, to: &mut Replica) -> u32 {
    let (mut place, mut chunks, mut n) = (0, 0, 0u64);
    // What waits until no value is under way.
    let mut held: Vec<Vec<String>> = Vec::new();
    while place != PLACE_END {
        let is_rest = ticket_of_cursor(place) != 0;
        let mut follow = |to: &mut Replica, args: &[&str]| {
            if is_rest {
                held.push(args.iter().map(ToString::to_string).collect());
            } else if place_of_key(args[1].as_bytes()) < place {
                to.write(args);
            }
        };
        for _ in 0..3 {
            n += 1;
            let key = format!("k{}", n * 7_919 % 300);
            let value = n.to_string();
            let ttl = (NOW_MS + 50_000 + n).to_string();
            for args in [
                &["INCR", &format!("n{key}")][..],
                &["SET", &key, &value, "PXAT", &ttl],
                &["RPUSH", &format!("l{key}"), &value],
                &["DEL", &format!("gone{}", n % 300)],
            ] {
                from.write(args);
                follow(to, args);
            }
        }
        while !from.engine.prepare_copy() {
            from.pump();
        }
        let mut chunk = Vec::new();
        // Behind writes that were submitted and are not answered yet.
        assert_eq!(from.submit(Class::Write, &encode(&["INCR", "late"])), None);
        follow(to, &["INCR", "late"]);
        assert_eq!(from.engine.copy(place, 2_000, &mut chunk), Progress::Pending);
        assert_eq!(from.submit(Class::Read, &encode(&["GET", "late"])), None);
        assert!(from.wait().reply.starts_with(b":"));
        chunk = from.wait().reply;
        assert!(from.wait().reply.starts_with(b"$"));
        if to.engine.install(&chunk).unwrap() == Progress::Pending {
            assert_eq!(to.wait(), Completion::default());
        }
        place = next_place(&chunk).unwrap();
        for args in held.extract_if(.., |_| ticket_of_cursor(place) == 0) {
            if place_of_key(args[1].as_bytes()) < place {
                to.write(&args.iter().map(String::as_str).collect::<Vec<_>>());
            }
        }
        chunks += 1;
    }
    from.engine.end_copy();
    chunks
}

#[test]
fn a_copy_taken_while_writes_go_on_is_equal() {
    let (mut from, mut to) = (Replica::new(true), Replica::new(false));
    for n in 0..300 {
        let members = [format!("s{n}"), n.to_string(), "member".to_string()];
        from.write(&["SADD", &members[0], &members[1], &members[2]]);
        from.write(&["XADD", &format!("x{n}"), "5-1", "f", "v"]);
        from.write(&["SET", &format!("gone{n}"), &"v".repeat(n)]);
        from.write(&["ZADD", &format!("z{n}"), "1.5", "m"]);
    }
    assert!(copy_under_writes(&mut from, &mut to) > 10);
    let digest = |server: &Server| server.cli(&["DEBUG", "DIGEST"]);
    // The applied number is in the digest too.
    for replica in [&mut from, &mut to] {
        replica.position = 1_000_000;
        replica.write(&["SET", "end", "1"]);
    }
    assert_eq!(digest(&from.server), digest(&to.server));
    assert_eq!(from.engine.next_expiry_ms(), to.engine.next_expiry_ms());
    assert_eq!(to.server.cli(&["INFO", "keyspace"]).matches("expires=0").count(), 2);
    // And once more, into an engine that has data.
    if to.engine.clear() == Progress::Pending {
        to.wait();
    }
    assert_eq!(to.server.cli(&["DBSIZE"]), "0");
    copy_under_writes(&mut from, &mut to);
    to.position = from.position;
    for replica in [&mut from, &mut to] {
        replica.write(&["SET", "end", "1"]);
    }
    assert_eq!(digest(&from.server), digest(&to.server));
}

/// No string is made longer than a reply by appending or in scripts.
#[test]
fn bug_16_17_strings_are_bounded_by_a_replys_length() {
    let mut replica = Replica::new(true);
    assert_eq!(replica.write(&["SETRANGE", "k", "67108799", "x"]), ":67108800\r\n");
    let refused = "-ERR string exceeds maximum allowed size";
    for args in [
        &["APPEND", "k", "x"][..],
        &["EVAL", "return redis.call('APPEND', KEYS[1], 'x')", "1", "k"],
        &["EVAL", "return redis.call('SET', KEYS[1], string.rep('x', 67108801))", "1", "k"],
        &["EVAL", "return redis.call('SETRANGE', KEYS[1], 67108800, 'x')", "1", "k"],
    ] {
        let reply = replica.write(args);
        assert!(reply.starts_with(refused), "{args:?}: {reply}");
    }
    assert_eq!(replica.read(&["STRLEN", "k"]), ":67108800\r\n");
}

#[test]
fn a_copied_value_may_be_longer_than_any_argument_of_a_client() {
    let (mut from, mut to) = (Replica::new(true), Replica::with(false, 1 << 20));
    let long: String =
        (0..400_000u64).map(|n| format!("{:x}", n.wrapping_mul(n) * 7_919)).collect();
    from.write(&["SET", "long", &long]);
    copy_under_writes(&mut from, &mut to);
    assert_eq!(to.read(&["STRLEN", "long"]), format!(":{}\r\n", long.len()));
    let limit = to.server.cli(&["CONFIG", "GET", "proto-max-bulk-len"]);
    assert!(limit.ends_with("67108800"), "{limit}");
}
