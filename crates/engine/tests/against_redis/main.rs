//! The memory engine against a real redis-server: random commands with edge cases, replies equal
//! byte for byte. Where Redis leaves the order open (sets, KEYS, SCAN), elements are compared
//! sorted; where it draws at random, only the shape is.

#![allow(clippy::unwrap_used)] // A test outside a test function, for clippy.

mod restore;
mod streams;
mod values;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use concord_core::rng::Rng;
use concord_engine::{
    Class, Command, CommandBuf, CommandTable, Context, Engine, Memory, Progress, Shimmed, resp,
};

const SERVER: &str = "redis-server";
const COMMANDS: usize = 40_000;

/// A server at a socket of its own in the file system: a free port may be taken before it is bound.
struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    /// `None` if there is no redis-server on this machine.
    fn start(extra: &[&str]) -> Option<Server> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("concord-against-redis-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let process = Process::new(SERVER)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir", "/tmp"])
            .arg("--unixsocket")
            .arg(&socket)
            .args(extra)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        Some(Server { process, socket })
    }

    fn connect(&self) -> Connection {
        for _ in 0..200 {
            if let Ok(stream) = UnixStream::connect(&self.socket) {
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                return Connection { stream };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not answer at {}", self.socket.display());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let _ = std::fs::remove_file(&self.socket);
    }
}

struct Connection {
    stream: UnixStream,
}

impl Connection {
    fn call(&mut self, args: &[Vec<u8>]) -> Vec<u8> {
        let mut request = Vec::new();
        resp::array(&mut request, args.len());
        args.iter().for_each(|arg| resp::bulk(&mut request, arg));
        self.stream.write_all(&request).unwrap();
        let mut reply = Vec::new();
        let mut chunk = [0; 65_536];
        while resp::value_length(&reply) != Some(reply.len()) {
            let read = self.stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the server closed the connection");
            reply.extend_from_slice(&chunk[..read]);
        }
        reply
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// What each command looks like. `|` separates alternatives of a word, `,` words of an
/// alternative; capitals in braces are drawn: key, value, integer, small, float, member, score
/// bound, lex bound, time in the future, point in time.
const TEMPLATES: &[&str] = &[
    "SET {K} {V} NX|XX|GET|NX,GET|XX,GET|NX,XX|KEEPTTL|BAD|| EX,{T}|PX,{T}000|EXAT,{P}|EX,{I}||||||",
    "SET {K} {V}",
    "SET {K} {V} {I}|KEEPTTL|PX EX,{T}|GET||",
    "GET|STRLEN|GETDEL {K}",
    "GETEX {K} PERSIST|EX,{T}|PXAT,{P}000|EX,{I}|KEEPTTL||",
    "SETNX|GETSET|APPEND {K} {V}",
    "SETEX {K} {T}|{I} {V}",
    "PSETEX {K} {T}000|{I} {V}",
    "GETRANGE|SUBSTR {K} {I}|{S} {I}|{S}",
    "SETRANGE {K} {S}|{S}|-1|536870912|x {V}",
    "INCR|DECR {K}",
    "INCRBY|DECRBY {K} {I}|{S}",
    "INCRBYFLOAT {K} {F}",
    "SETBIT {K} {S}|{S}|-1|4294967296|x 0|1|2|x",
    "GETBIT {K} {S}|{I}",
    "BITCOUNT {K} {S},{S}|{I},{I}|{S}| BIT|BYTE|BAD||",
    "BITPOS {K} 0|1|2|x {S}|{S},{S}|{S},{S},BIT|{I},{I},BYTE|",
    "DEL|UNLINK|EXISTS|TYPE|TOUCH {K}",
    "EXPIRE {K} {T}|{T}|-1|{I} NX|XX|GT|LT|GT,LT|NX,XX|XX,GT|BAD||",
    "PEXPIRE {K} {T}000|{T}000|-1|{I} NX|XX|GT|LT||",
    "EXPIREAT {K} {P} NX|XX|GT|LT||",
    "PEXPIREAT {K} {P}000|{I} NX|XX|GT|LT||",
    "TTL|PTTL|EXPIRETIME|PEXPIRETIME|PERSIST {K}",
    "HSET|HMSET {K} {M} {V} {M},{V}|{M}||",
    "HSETNX {K} {M} {V}",
    "HGET|HSTRLEN|HEXISTS {K} {M}",
    "HMGET {K} {M} {M}||{M},{M},{M},{M},{M},{M},{M},{M}",
    "HGETALL|HKEYS|HVALS|HLEN {K}",
    "HDEL {K} {M} {M}||",
    "HINCRBY {K} {M} {I}|{S}",
    "HINCRBYFLOAT {K} {M} {F}",
    "HSCAN {K} -1",
    "HSCAN|ZSCAN {K} 0|0|x COUNT,1000|COUNT,0|COUNT,x|MATCH,*1*|MATCH|BAD,1||",
    "LPUSH|RPUSH|LPUSHX|RPUSHX {K} {V} {V}||{V},{V}",
    "LPOP|RPOP {K} {S}|{I}|{S},1||||",
    "LLEN {K}",
    "LRANGE {K} {S}|{I} {S}|{I}",
    "LINDEX {K} {S}|{I}",
    "LSET {K} {S}|{I} {V}",
    "LINSERT {K} BEFORE|AFTER|BAD {V} {V}",
    "LREM {K} {S}|{I} {V}",
    "LTRIM {K} {S}|-{S} {S}|-{S}|-1|-1",
    "LPOS {K} {V} RANK,{S}|RANK,{I}|RANK| COUNT,{S}|COUNT,{I}|| MAXLEN,{S}|MAXLEN,{I}|||",
    "SADD|SREM|SMISMEMBER {K} {M} {M}||{M},{M}",
    "SISMEMBER {K} {M}",
    "SCARD|SMEMBERS {K}",
    "SSCAN {K} 0 COUNT,1000",
    "SPOP {K} 1000|0|-1|x|1,2",
    "SRANDMEMBER|HRANDFIELD|ZRANDMEMBER {K} {S}|-{S}|x|{S},BAD|-9223372036854775808||",
    "HRANDFIELD {K} 1000|-3|{S} WITHVALUES",
    "ZRANDMEMBER {K} 1000|-3|{S} WITHSCORES",
    "ZADD {K} NX|XX|GT|LT|NX,XX|GT,LT|NX,GT|||| CH||| INCR||| {F}|{S}|{S}|{S} {M} {S},{M}|{S}||",
    "ZADD {K} {S} {M} {S},{M}|",
    "ZADD {K} 5 {M} 5 {M}",
    "ZINCRBY {K} {F}|{S} {M}",
    "ZREM|ZMSCORE {K} {M} {M}|",
    "ZSCORE|ZRANK|ZREVRANK {K} {M}",
    "ZCARD {K}",
    "ZCOUNT|ZREMRANGEBYSCORE {K} {B} {B}",
    "ZRANGE|ZREVRANGE {K} {S}|{I} {S}|{I} WITHSCORES||BAD|LIMIT,0,1|REV",
    "ZRANGE {K} {B} {B} BYSCORE REV|| LIMIT,{S},{S}|LIMIT,1,-1|| WITHSCORES||",
    "ZRANGEBYSCORE|ZREVRANGEBYSCORE {K} {B} {B} WITHSCORES|| LIMIT,{S},{S}|LIMIT,-1,2|LIMIT,1|",
    "ZPOPMIN|ZPOPMAX {K} {S}|{I}||{S},1",
    "ZREMRANGEBYRANK {K} {S}|-{S} {S}|{I}",
    // All scores must be equal here: the key is one that nothing else adds to.
    "ZADD lex 5 {M} 5 {M}",
    "ZRANGE lex {L} {L} BYLEX REV|| LIMIT,{S},{S}|| WITHSCORES||||",
    "ZRANGEBYLEX|ZREVRANGEBYLEX lex {L} {L} LIMIT,{S},{S}||",
    "ZLEXCOUNT lex {L} {L}",
    "ZREMRANGEBYLEX lex {L} {L}",
    "RENAME|RENAMENX {K} {K}",
    "COPY {K} {K} REPLACE|DB,0|DB,x|BAD||||",
    "DEL|UNLINK|EXISTS|TOUCH|MGET {K} {K} {K}|",
    "MSET|MSETNX {K} {V} {K} {V}",
    "LMOVE {K} {K} LEFT|RIGHT|BAD LEFT|RIGHT|right",
    "RPOPLPUSH {K} {K}",
    "LMPOP 1|2|0|x {K} {K}|{K}||LEFT LEFT|RIGHT|BAD COUNT,{S}|COUNT,{I}|||",
    "ZMPOP 1|2|0|x {K} {K}|{K}||MIN MIN|MAX|BAD COUNT,{S}|COUNT,{I}|||",
    "SMOVE {K} {K} {M}",
    "SINTER|SUNION|SDIFF {K} {K}| {K}|",
    "SINTERSTORE|SUNIONSTORE|SDIFFSTORE {K} {K} {K}|",
    "SINTERCARD|ZINTERCARD 1|2|3|0|x {K} {K} LIMIT,{S}|LIMIT,{I}|LIMIT||||",
    "ZUNION|ZINTER|ZDIFF 1|2|2|2|0|x {K} {K} WEIGHTS,{S},{F}|AGGREGATE,SUM|AGGREGATE,MAX|AGGREGATE,BAD|||| WITHSCORES||BAD",
    "ZUNIONSTORE|ZINTERSTORE|ZDIFFSTORE {K} 1|2|2|2|0|x {K} {K} WEIGHTS,2,3|WEIGHTS,1|AGGREGATE,MIN||||| WITHSCORES|||||",
    "ZRANGESTORE {K} {K} {S}|{I} {S}|{I}|-1 REV||",
    "ZRANGESTORE {K} {K} {B} {B} BYSCORE LIMIT,{S},{S}||REV||WITHSCORES",
    "BITOP AND|OR|XOR|NOT|BAD {K} {K} {K}||",
    "BITFIELD {K} OVERFLOW,SAT|OVERFLOW,FAIL|OVERFLOW,WRAP|OVERFLOW,BAD|||| GET|SET|INCRBY|BAD u8|i8|u63|u64|i64|i5|u1|x #1|{S}|{I}|3 {S}|{I}|-7| GET,u4,0|SET,i8,#2,{I}||",
    "BITFIELD {K} OVERFLOW,SAT|OVERFLOW,FAIL|OVERFLOW,WRAP||| SET|INCRBY u8|i8|u63|i64|i5|u1 #1|{S}|3 {S}|{I}|-7",
    "BITFIELD_RO {K} GET|GET|SET u8|i8|i64|x #1|{S}|{I} {S}||",
    "SORT|SORT_RO {K} ALPHA| ASC|DESC|| LIMIT,{S},{S}|LIMIT,-1,{S}|LIMIT,{I},{S}|LIMIT,1|||| STORE,{K}|BAD|||||",
    "SORT|SORT_RO {K} BY,k*|BY,k*->m1|BY,{K} DESC|| GET,#|GET,k*|GET,k*->m1|GET,x|| LIMIT,{S},{S}|| STORE,{K}||",
    "SORT|SORT_RO {K} BY nosort DESC|ASC|| LIMIT,{S},{S}||",
    "LCS {K} {K} LEN|IDX|LEN,IDX|BAD|||| MINMATCHLEN,{S}|MINMATCHLEN,{I}|MINMATCHLEN|||| WITHMATCHLEN||",
    "GEOADD {K} 13.{S} 38.{S} {M}",
    "GEOPOS|GEOHASH {K} {M}",
    "GEODIST {K} {M} {M} km|",
    "GEOSEARCH {K} FROMLONLAT 13 38 BYRADIUS 100 km ASC WITHDIST",
    "OBJECT REFCOUNT|FREQ|BAD {K} {V}||||",
    "DBSIZE",
    "SCAN 0 COUNT,1000 TYPE,string|TYPE,zset|TYPE,bad|MATCH,k?|MATCH,[k-z]*||",
    "KEYS *|k*|k[1-3]",
    "FLUSHALL|FLUSHDB ASYNC|SYNC|BAD",
    "GET|SET|EXPIRE|TTL|HSET|LPUSH|ZADD|SADD|ZRANGE {K}",
    "GET|SETEX|TTL|EXPIRE|LPOP|ZSCORE|DBSIZE {K} 1|1,2|1,2,3|1,2,3,4",
    "NOSUCH {K} {V}|| {V}||",
];

struct Generator {
    rng: Rng,
    /// Ids of streams are about here.
    ids: u64,
}

impl Generator {
    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.rng.below(all.len() as u64) as usize]
    }

    fn draw(&mut self, kind: char) -> String {
        const INTEGERS: &[&str] = &[
            "0",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775808",
            "1.5",
            "",
            "x",
            " 1",
            "01",
            "+1",
            "-0",
            "100",
            "9223372036854775",
        ];
        const FLOATS: &[&str] = &[
            "0.1",
            "-0.1",
            "1e3",
            "3.0e-5",
            "inf",
            "-inf",
            "nan",
            "x",
            "",
            "1.5",
            "-2.25",
            "1e40",
            "12345678901234567890",
            "0.30000000000000004",
            "1e-20",
            "1e17",
            "5",
            "+3",
            ".5",
            "7.",
        ];
        const BOUNDS: &[&str] = &[
            "-inf", "+inf", "(1", "(3", "2", "5", "x", "(", "inf", "0.5", "(-1", "nan", "-1", "7",
        ];
        const LEX: &[&str] = &["-", "+", "[m1", "(m3", "[m5", "(m2", "[", "m1", "x", "(m9", "+x"];
        match kind {
            'K' => format!("k{}", self.rng.below(10)),
            'V' => match self.rng.below(8) {
                0 => String::new(),
                1 => self.draw('F'),
                2 => self.draw('I'),
                3 => "line\r\nbreak \u{ff}".to_string(),
                _ => self.rng.below(12).to_string(),
            },
            'I' => self.pick(INTEGERS).to_string(),
            'S' => self.rng.below(8).to_string(),
            'F' => self.pick(FLOATS).to_string(),
            'M' => match self.rng.below(10) {
                0 => String::new(),
                1 => self.rng.below(5).to_string(),
                _ => format!("m{}", self.rng.below(8)),
            },
            'B' => self.pick(BOUNDS).to_string(),
            'L' => self.pick(LEX).to_string(),
            'T' => self.rng.between(100, 5000).to_string(),
            'P' => match self.rng.below(4) {
                0 => "1".to_string(),
                _ => self.rng.between(4_000_000_000, 4_000_000_010).to_string(),
            },
            'X' => self.id(),
            'Y' => self.any_id(),
            'G' => format!("g{}", self.rng.below(3)),
            'C' => format!("c{}", self.rng.below(3)),
            'O' => self.degrees(180),
            'A' => self.degrees(85),
            'D' => match self.rng.below(6) {
                0 => self.draw('F'),
                1 => "0".to_string(),
                _ => self.rng.below(15_000).to_string(),
            },
            'U' => self.pick(&["m", "km", "KM", "km", "ft", "mi", "Mi", "x"]).to_string(),
            'E' => self.rng.below(30_000).to_string(),
            other => panic!("no such placeholder: {other}"),
        }
    }

    fn degrees(&mut self, max: u64) -> String {
        match self.rng.below(12) {
            0 => format!("-{max}"),
            1 => max.to_string(),
            2 => self.draw('F'),
            3 => "85.05112878".to_string(),
            _ => format!("{}", self.rng.below(2_000 * max) as f64 / 1000.0 - max as f64),
        }
    }

    fn fill(&mut self, word: &str) -> Vec<u8> {
        let mut out = String::new();
        let mut rest = word;
        while let Some(at) = rest.find('{') {
            out.push_str(&rest[..at]);
            let kind = rest[at + 1..].chars().next().unwrap();
            out.push_str(&self.draw(kind));
            rest = &rest[at + 3..];
        }
        out.push_str(rest);
        out.into_bytes()
    }

    fn command(&mut self, template: &str) -> Vec<Vec<u8>> {
        let mut args = Vec::new();
        for word in template.split(' ') {
            let alternatives: Vec<&str> = word.split('|').collect();
            let chosen = self.pick(&alternatives);
            if !chosen.is_empty() {
                args.extend(chosen.split(',').map(|part| self.fill(part)));
            }
        }
        args
    }
}

/// How the replies of a command are compared.
fn comparable(args: &[Vec<u8>], reply: &[u8]) -> Vec<u8> {
    let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
    if reply.starts_with(b"-") || reply.starts_with(b"_") || reply.starts_with(b"$") {
        let random = matches!(&name[..], "SRANDMEMBER" | "HRANDFIELD" | "ZRANDMEMBER" | "SPOP");
        return if random { reply[..1].to_vec() } else { reply.to_vec() };
    }
    match &name[..] {
        "OBJECT" => reply[..1].to_vec(),
        // In the order of a set, of which a part is taken.
        "SORT" | "SORT_RO" if args.iter().any(|a| a == b"nosort") => {
            reply[..resp::line_length(reply).unwrap()].to_vec()
        }
        // In the order of a set.
        "SORT" | "SORT_RO" if args.iter().any(|a| a.eq_ignore_ascii_case(b"BY")) => {
            sorted_lines(reply)
        }
        // Of a hash or sorted set, too, that was large once.
        "SMEMBERS" | "KEYS" | "SCAN" | "SSCAN" | "HSCAN" | "ZSCAN" | "SINTER" | "SUNION"
        | "SDIFF" => sorted_lines(reply),
        "SPOP" => sorted_lines(reply),
        "SRANDMEMBER" | "HRANDFIELD" | "ZRANDMEMBER" => {
            reply[..resp::line_length(reply).unwrap()].to_vec()
        }
        _ => reply.to_vec(),
    }
}

fn sorted_lines(reply: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = reply.split(|&b| b == b'\n').collect();
    lines.sort_unstable();
    lines.join(&b'\n')
}

/// Times to live are counted from two clock readings.
fn equal_within_clocks(args: &[Vec<u8>], ours: &[u8], theirs: &[u8]) -> bool {
    let slack = match &args[0].to_ascii_uppercase()[..] {
        b"PTTL" | b"PEXPIRETIME" => 2_000,
        b"TTL" | b"EXPIRETIME" => 2,
        _ => return false,
    };
    let value = |reply: &[u8]| -> Option<i64> {
        resp::number(reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?)
    };
    match (value(ours), value(theirs)) {
        (Some(ours), Some(theirs)) => ours > 0 && theirs > 0 && (ours - theirs).abs() <= slack,
        _ => false,
    }
}

struct Ours {
    engine: Shimmed<Memory>,
    table: CommandTable,
    buf: CommandBuf,
    position: u64,
}

impl Ours {
    fn new() -> Ours {
        let engine = Shimmed::new(Memory::new(0));
        Ours { engine, table: CommandTable::memory(), buf: CommandBuf::new(), position: 0 }
    }

    fn key_index(&self, args: &[Vec<u8>]) -> u8 {
        let sub = args.get(1).map(Vec::as_slice);
        let Some(spec) = self.table.spec_of(&args[0], sub) else { return 0 };
        let plain: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let places = concord_engine::keys::places(spec, &args[0].to_ascii_uppercase(), &plain);
        match places.first() {
            Some(first) if places.iter().all(|at| plain[*at] == plain[*first]) => *first as u8,
            Some(_) | None => 0,
        }
    }

    fn encode(&mut self, args: &[Vec<u8>]) -> Vec<u8> {
        let key_index = self.key_index(args);
        self.buf.encode(key_index, args.iter().map(Vec::as_slice)).to_vec()
    }

    fn call(&mut self, args: &[Vec<u8>], now_ms: u64, resp3: bool) -> Vec<u8> {
        let spec = self.table.spec_of(&args[0], args.get(1).map(Vec::as_slice));
        let class = spec.and_then(|spec| spec.class()).unwrap_or(Class::Write);
        let bytes = self.encode(args);
        self.submit(&bytes, class, now_ms, resp3)
    }

    fn submit(&mut self, bytes: &[u8], class: Class, now_ms: u64, resp3: bool) -> Vec<u8> {
        self.position += u64::from(class == Class::Write);
        let position = if class == Class::Write { self.position } else { 0 };
        let entropy = self.position;
        // As the node that orders says it.
        let memory_full = self.engine.is_full();
        let context = Context {
            now_ms,
            entropy,
            position,
            resp3,
            decide: true,
            memory_full,
            ..Context::default()
        };
        let mut reply = Vec::new();
        let command = Command::parse(bytes).unwrap();
        let progress = self.engine.submit(&context, class, &command, &mut reply);
        assert_eq!(progress, Progress::Done);
        assert_eq!(resp::value_length(&reply), Some(reply.len()), "one whole reply");
        reply
    }
}

fn show(args: &[Vec<u8>]) -> String {
    args.iter().map(|arg| format!("{:?} ", String::from_utf8_lossy(arg))).collect()
}

/// The reply of MULTI, the commands, EXEC.
fn transaction(connection: &mut Connection, commands: &[Vec<Vec<u8>>]) -> Vec<u8> {
    connection.call(&words("MULTI"));
    for command in commands {
        connection.call(command);
    }
    connection.call(&words("EXEC"))
}

#[test]
fn random_commands_get_the_replies_of_redis() {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connections = [server.connect(), server.connect()];
    connections[1].call(&words("HELLO 3"));
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut generator = Generator { rng: Rng::new(seed), ids: 1 };
    let mut ours = Ours::new();
    let mut replica = Ours::new();
    let mut differences = Vec::new();
    for step in 0..COMMANDS {
        let template = generator.pick(TEMPLATES);
        let args = generator.command(template);
        let resp3 = generator.rng.chance(1, 3);
        let is_flush = args[0].starts_with(b"FLUSH");
        if is_flush && generator.rng.chance(9, 10) {
            continue;
        }
        if args[0] == b"DBSIZE" {
            // Redis counts a key whose time was in the past until something looks at it.
            connections[0].call(&words("EXISTS k0 k1 k2 k3 k4 k5 k6 k7 k8 k9 lex"));
        }
        let theirs = connections[usize::from(resp3)].call(&args);
        let now_ms = now_ms();
        let mine = ours.call(&args, now_ms, resp3);
        assert_eq!(mine, replica.call(&args, now_ms, resp3), "two replicas: {}", show(&args));
        if comparable(&args, &mine) != comparable(&args, &theirs)
            && !equal_within_clocks(&args, &mine, &theirs)
        {
            let (mine, theirs) = (String::from_utf8_lossy(&mine), String::from_utf8_lossy(&theirs));
            differences
                .push(format!("{step} resp3={resp3} {}\n  {mine:?}\n  {theirs:?}", show(&args)));
            if differences.len() > 30 {
                break;
            }
        }
        let mut due = Vec::new();
        ours.engine.due(now_ms, None, 10, &|_, _| false, &mut due);
        assert!(due.is_empty(), "no key of this test expires by itself");
    }
    assert!(differences.is_empty(), "SEED={seed}\n{}", differences.join("\n"));
    assert_eq!(ours.engine.digest(), replica.engine.digest());
}

#[test]
fn transactions_on_one_key_get_the_replies_of_redis() {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connection = server.connect();
    let mut ours = Ours::new();
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut generator = Generator { rng: Rng::new(seed), ids: 1 };
    let templates: Vec<&&str> = TEMPLATES
        .iter()
        .filter(|t| {
            t.contains("{K}")
                && !["SPOP", "RAND", "SSCAN", "HSCAN", "SORT", "PTTL", "lex", "SUNION|SDIFF {K}"]
                    .iter()
                    .any(|x| t.contains(x))
        })
        .collect();
    let mut compared = 0;
    while compared < COMMANDS / 10 {
        let key = format!("k{}", generator.rng.below(4)).into_bytes();
        let commands: Vec<Vec<Vec<u8>>> = (0..generator.rng.between(1, 6))
            .map(|_| {
                let at = generator.rng.below(templates.len() as u64) as usize;
                let mut args = generator.command(templates[at]);
                if args.len() > 1 {
                    args[1] = key.clone();
                }
                args
            })
            .filter(|args| args.len() > 1 && args[0] != b"SMEMBERS")
            .collect();
        if commands.is_empty() {
            continue;
        }
        let theirs = transaction(&mut connection, &commands);
        if theirs.starts_with(b"-EXECABORT") {
            continue;
        }
        compared += 1;
        let parts: Vec<Vec<u8>> = commands.iter().map(|args| ours.encode(args)).collect();
        let name = [&b"CONCORD.EXEC"[..]];
        let all = name.iter().copied().chain(parts.iter().map(Vec::as_slice));
        let exec = CommandBuf::new().encode(0, all).to_vec();
        let mine = ours.submit(&exec, Class::Write, now_ms(), false);
        let refused = b"a condition with a time in the past is not supported here";
        if mine.windows(refused.len()).any(|part| part == refused) {
            // Documented: what follows may differ, so both begin anew.
            connection.call(&words("FLUSHALL"));
            ours.call(&words("FLUSHALL"), now_ms(), false);
            continue;
        }
        let shown: String = commands.iter().map(|args| show(args) + "\n").collect();
        let (mine, theirs) = (String::from_utf8_lossy(&mine), String::from_utf8_lossy(&theirs));
        assert_eq!(mine, theirs, "SEED={seed}\n{shown}");
    }
}

#[test]
fn the_table_is_that_of_the_server() {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    for hello in ["HELLO 2", "HELLO 3"] {
        let mut connection = server.connect();
        connection.call(&words(hello));
        let loaded = CommandTable::from_resp(&connection.call(&words("COMMAND"))).unwrap();
        assert!(loaded.count() > 200, "{}", loaded.count());
        assert!(loaded.find_sub(b"XGROUP", b"CREATE").unwrap().class() == Some(Class::Write));
        for ours in CommandTable::memory().specs() {
            match loaded.find(ours.name.as_bytes()) {
                Some(theirs) => assert_eq!(ours, theirs),
                None => assert!(["cas", "cad", "delex"].contains(&&*ours.name), "{}", ours.name),
            }
        }
    }
}

#[test]
fn memory_that_is_used_up_gets_the_error_of_redis() {
    let Some(server) = Server::start(&["--maxmemory", "1"]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connection = server.connect();
    let mut ours = Ours::new();
    ours.engine = Shimmed::new(Memory::new(1));
    ours.call(&words("SET full 1"), 1, false);
    for line in ["SET k v", "GET full", "DEL k", "LPUSH k v", "LPUSH k", "HSET k f v", "EXPIRE k 9"]
    {
        let (mine, theirs) = (ours.call(&words(line), 1, false), connection.call(&words(line)));
        if line != "GET full" {
            assert_eq!(String::from_utf8_lossy(&mine), String::from_utf8_lossy(&theirs), "{line}");
        }
    }
}
