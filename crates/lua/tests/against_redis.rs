//! Scripts on the memory engine against a real redis-server: replies equal byte for byte.

#![allow(clippy::unwrap_used)] // A test outside a test function, for clippy.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use concord_engine::acl::sent::argument;
use concord_engine::acl::{Catalogue, Rights, merged};
use concord_engine::databases::stored;
use concord_engine::script::split_published;
use concord_engine::{
    Class, Command, CommandBuf, Context, Engine, Memory, Progress, Shimmed, resp,
};

struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    /// `None` if there is no redis-server on this machine.
    fn start() -> Option<(Server, UnixStream)> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("concord-lua-against-redis-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let process = Process::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir", "/tmp"])
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let server = Server { process, socket };
        for _ in 0..200 {
            if let Ok(stream) = UnixStream::connect(&server.socket) {
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                return Some((server, stream));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not answer at {}", server.socket.display());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn ask(stream: &mut UnixStream, args: &[&[u8]]) -> Vec<u8> {
    let mut request = Vec::new();
    resp::array(&mut request, args.len());
    args.iter().for_each(|arg| resp::bulk(&mut request, arg));
    stream.write_all(&request).unwrap();
    let mut reply = Vec::new();
    let mut chunk = [0; 65_536];
    while resp::value_length(&reply) != Some(reply.len()) {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "the server closed the connection after {request:?}");
        reply.extend_from_slice(&chunk[..read]);
    }
    reply
}

struct Ours {
    engine: Shimmed<Memory>,
    position: u64,
    resp3: bool,
    database: u8,
}

impl Ours {
    fn new() -> Ours {
        let engine = Shimmed::new(Memory::new(0))
            .with_scripts(concord_lua::run)
            .with_functions(concord_lua::load);
        Ours { engine, position: 0, resp3: false, database: 0 }
    }

    fn call(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.position += 1;
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let context = Context {
            now_ms,
            entropy: 7,
            position: self.position,
            resp3: self.resp3,
            ..Context::default()
        };
        let mut buf = CommandBuf::new();
        let is_list = |args: &[&[u8]]| args[0] == b"FUNCTION" && args[1] == b"LIST";
        let is_read = args[0].ends_with(b"_RO") || is_list(args);
        let class = if is_read { Class::Read } else { Class::Write };
        buf.encode(0, args.iter().copied());
        let command = buf.set_database(self.database);
        let mut reply = Vec::new();
        let command = Command::parse(command).unwrap();
        assert_eq!(self.engine.submit(&context, class, &command, &mut reply), Progress::Done);
        reply
    }
}

/// Scripts, separated by lines of dashes. Each gets keys `k` and `l` and arguments `a`, `2` and ``.
const SCRIPTS: &str = include_str!("scripts.lua");

/// The same, where databases matter: what looks at all keys, or names keys in a reply.
const OF_DATABASE: [&str; 14] = [
    "return redis.call('FLUSHDB')",
    "return KEYS",
    "redis.call('MSET', KEYS[1], 1, KEYS[2], 2, 'computed', 3) return redis.call('DBSIZE')",
    "local all = redis.call('KEYS', '*') table.sort(all) return all",
    "return redis.call('KEYS', 'comp*')",
    "local all = redis.call('SCAN', '0', 'COUNT', 9000) table.sort(all[2]) return all",
    "return redis.call('SCAN', 0, 'MATCH', 'l*', 'COUNT', 9000)",
    "redis.call('DEL', KEYS[1], KEYS[2]) return redis.call('RANDOMKEY')",
    "redis.call('RPUSH', 'q', 'y', 'x') redis.call('MSET', 'w_x', 1, 'w_y', 2, 'v_x', 'X', 'v_y', 'Y') \
     return redis.call('SORT', 'q', 'BY', 'w_*', 'GET', 'v_*', 'GET', '#')",
    "return redis.call('LMPOP', 2, 'none', 'q', 'LEFT')",
    "return redis.pcall('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', 'none', '>')",
    "redis.call('XADD', 's', '1-1', 'f', 'v') return redis.call('XREAD', 'STREAMS', 's', 0)",
    "redis.call('SET', 'timed', 1, 'EX', 100) redis.call('RENAME', 'timed', KEYS[1]) \
     return {redis.call('TTL', KEYS[1]), redis.call('FLUSHDB'), redis.call('DBSIZE'), redis.call('TTL', KEYS[1])}",
    "return redis.call('RANDOMKEY')",
];

fn compare(resp3: bool, database: u8) {
    let Some((_server, mut stream)) = Server::start() else {
        eprintln!("skipped: no redis-server");
        return;
    };
    let mut ours = Ours::new();
    ours.resp3 = resp3;
    if resp3 {
        ask(&mut stream, &[b"HELLO", b"3"]);
    }
    ours.database = database;
    if database != 0 {
        // What others hold is not to be seen.
        ours.call(&[b"MSET", b"k", b"zero", b"other", b"x", &stored(7, b"k"), b"seven"]);
        ask(&mut stream, &[b"SELECT", database.to_string().as_bytes()]);
    }
    let mut differ = 0;
    let mut compared = 0;
    for script in SCRIPTS.split("\n----\n").chain(OF_DATABASE) {
        for name in [&b"EVAL"[..], b"EVAL_RO"] {
            let args: [&[u8]; 8] = [name, script.as_bytes(), b"2", b"k", b"l", b"a", b"2", b""];
            let theirs = ask(&mut stream, &args);
            let [k, l] = [b"k", b"l"].map(|key| stored(database, key));
            let args: [&[u8]; 8] = [name, script.as_bytes(), b"2", &k, &l, b"a", b"2", b""];
            let ours = ours.call(&args);
            compared += 1;
            if ours != theirs {
                differ += 1;
                let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                eprintln!("{script}\n   ours: {:?}\n theirs: {:?}", show(&ours), show(&theirs));
            }
        }
    }
    assert_eq!(differ, 0, "of {compared} scripts");
}

#[test]
fn scripts_answer_what_redis_answers() {
    compare(false, 0);
}

#[test]
fn scripts_answer_what_redis_answers_in_resp3() {
    compare(true, 0);
}

#[test]
fn scripts_answer_what_redis_answers_in_another_database() {
    compare(false, 5);
    compare(true, 5);
}

/// Rules behind `=`, and scripts of a user who has them.
const RIGHTS: &str = include_str!("../../engine/tests/rights.txt");

#[test]
fn scripts_of_users_answer_what_redis_answers() {
    let Some((server, mut admin)) = Server::start() else {
        eprintln!("skipped: no redis-server");
        return;
    };
    let mut user = UnixStream::connect(&server.socket).unwrap();
    let (mut ours, mut sent, mut differ) = (Ours::new(), Vec::new(), 0);
    let all = Catalogue::default();
    for line in RIGHTS.lines() {
        if let Some(rules) = line.strip_prefix("= ") {
            let words: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
            let begin = [&b"ACL"[..], b"SETUSER", b"bob", b"reset", b"on", b"nopass"].into_iter();
            let set: Vec<&[u8]> =
                begin.chain(words.iter().copied()).chain([&b"+eval"[..]]).collect();
            assert_eq!(ask(&mut admin, &set), b"+OK\r\n", "{rules}");
            ask(&mut user, &[b"AUTH", b"bob", b"x"]);
            ask(&mut admin, &[b"FLUSHALL"]);
            ours.call(&[b"FLUSHALL"]);
            let (mut rights, mut text) = (Rights::default(), Vec::new());
            for rule in merged(words).unwrap() {
                rights.apply(&all, &rule).unwrap();
            }
            rights.describe(&all, &mut text);
            sent = argument(&text);
            continue;
        }
        let theirs = ask(&mut user, &[b"EVAL", line.as_bytes(), b"0"]);
        let own = ours.call(&[b"EVAL", line.as_bytes(), &sent, b"0"]);
        // What is published stands in front.
        let (_, published) = split_published(&own);
        if own[published..] != theirs {
            differ += 1;
            let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            eprintln!("{line}\n   ours: {:?}\n theirs: {:?}", show(&own), show(&theirs));
        }
    }
    assert_eq!(differ, 0);
}

/// Libraries of one function each, named as their number and `f`; `|` stands for an end of a line.
/// What a load answers is compared, and then what the function answers, by FCALL and FCALL_RO, with
/// two keys and three arguments.
const LIBRARIES: &str = include_str!("libraries.txt");

/// What is wrong with the first line of a library, or what a library does while it is loaded.
const LOADS: &str = include_str!("loads.txt");

fn compare_functions(resp3: bool) {
    let Some((_server, mut stream)) = Server::start() else {
        eprintln!("skipped: no redis-server");
        return;
    };
    let mut ours = Ours::new();
    ours.resp3 = resp3;
    if resp3 {
        ask(&mut stream, &[b"HELLO", b"3"]);
    }
    let (mut differ, mut compared) = (0, 0);
    let mut same = |args: &[&[u8]]| {
        compared += 1;
        let (theirs, ours) = (ask(&mut stream, args), ours.call(args));
        if ours != theirs {
            differ += 1;
            let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let args: Vec<String> = args.iter().map(|arg| show(arg)).collect();
            eprintln!("{args:?}\n   ours: {:?}\n theirs: {:?}", show(&ours), show(&theirs));
        }
    };
    for line in LOADS.lines() {
        same(&[b"FUNCTION", b"LOAD", b"REPLACE", line.replace('|', "\n").as_bytes()]);
    }
    same(&[b"FUNCTION", b"FLUSH"]);
    for (number, line) in LIBRARIES.lines().enumerate() {
        let name = format!("f{number}");
        let code = format!("#!lua name=l{number}|{}", line.replace("NAME", &name));
        same(&[b"FUNCTION", b"LOAD", code.replace('|', "\n").as_bytes()]);
        for call in [&b"FCALL"[..], b"FCALL_RO", b"FCALL"] {
            same(&[call, name.as_bytes(), b"2", b"k", b"l", b"a", b"2", b""]);
        }
        let name = format!("l{number}");
        // The order of several hangs on the server's hash table.
        if line.contains("for i") {
            continue;
        }
        same(&[b"FUNCTION", b"LIST", b"LIBRARYNAME", name.as_bytes(), b"WITHCODE"]);
        same(&[b"FUNCTION", b"STATS"]);
    }
    for line in [
        "FCALL f0",
        "FCALL F0 0",
        "FCALL f0 x",
        "FCALL f0 -1 a",
        "FCALL f0 2 a",
        "FCALL nosuch 1",
        "FCALL nosuch x",
        "FUNCTION LOAD x",
        "FUNCTION LOAD a b",
        "FUNCTION DELETE nosuch",
        "FUNCTION DELETE L1",
        "FUNCTION FLUSH bad",
        "FUNCTION LIST bad",
        "FUNCTION LIST LIBRARYNAME",
        "FUNCTION LIST LIBRARYNAME L1",
        "FUNCTION LIST LIBRARYNAME nosuch WITHCODE",
        "FUNCTION LIST WITHCODE WITHCODE",
        "FUNCTION LIST LIBRARYNAME l1 LIBRARYNAME l1",
        "FUNCTION RESTORE x",
        "FUNCTION RESTORE x bad",
        "FUNCTION DELETE l1",
        "FUNCTION STATS",
    ] {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        // How many arguments there have to be a gateway says.
        if args != [&b"FCALL"[..], b"f0"] {
            same(&args);
        }
    }
    assert_eq!(differ, 0, "of {compared} commands");
}

#[test]
fn functions_answer_what_redis_answers() {
    compare_functions(false);
}

#[test]
fn functions_answer_what_redis_answers_in_resp3() {
    compare_functions(true);
}

#[test]
fn libraries_move_between_redis_and_us() {
    let Some((_server, mut stream)) = Server::start() else {
        eprintln!("skipped: no redis-server");
        return;
    };
    let mut ours = Ours::new();
    let long = "-- a comment that repeats itself, a comment that repeats itself\n".repeat(600);
    let codes = ["return 1".to_owned(), format!("{long} return 2")];
    for (number, code) in codes.iter().enumerate() {
        let register = format!("redis.register_function('f{number}', function() {code} end)");
        let text = format!("#!lua name=l{number}\n{register}");
        ask(&mut stream, &[b"FUNCTION", b"LOAD", text.as_bytes()]);
    }
    let payload = |reply: &[u8]| resp::bulk_payload(reply).unwrap().to_vec();
    let theirs = payload(&ask(&mut stream, &[b"FUNCTION", b"DUMP"]));
    assert_eq!(ours.call(&[b"FUNCTION", b"RESTORE", &theirs]), b"+OK\r\n");
    assert_eq!(ours.call(&[b"FCALL", b"f1", b"0"]), b":2\r\n");
    let own = payload(&ours.call(&[b"FUNCTION", b"DUMP"]));
    for policy in [&b"APPEND"[..], b"REPLACE", b"FLUSH"] {
        for payload in [&own, &theirs] {
            let args: [&[u8]; 4] = [b"FUNCTION", b"RESTORE", payload, policy];
            // Which of the libraries is found first hangs on the server's hash table.
            let both = [ours.call(&args), ask(&mut stream, &args)];
            let is_refused = |reply: &Vec<u8>| {
                reply.starts_with(b"-ERR Library l") && reply.ends_with(b" already exists\r\n")
            };
            assert!(both[0] == both[1] || both.iter().all(is_refused), "{policy:?}: {both:?}");
        }
    }
    // A function of the same name in another library.
    let other = b"#!lua name=other\nredis.register_function('f1', function() return 3 end)";
    for args in [
        &[&b"FUNCTION"[..], b"FLUSH"][..],
        &[b"FUNCTION", b"LOAD", other],
        &[b"FUNCTION", b"RESTORE", &own, b"REPLACE"],
        &[b"FUNCTION", b"RESTORE", &own, b"APPEND"],
        &[b"FCALL", b"f1", b"0"],
        &[b"FCALL", b"f0", b"0"],
        &[b"FUNCTION", b"RESTORE", &own, b"FLUSH"],
        &[b"FCALL", b"f1", b"0"],
    ] {
        assert_eq!(ours.call(args), ask(&mut stream, args), "{args:?}");
    }
}

/// An interpreter has room for 8,000 values that Rust holds; with one more the process ended, and
/// so did all replicas.
#[test]
fn bug_18_32_many_values_at_once_end_no_process() {
    let mut ours = Ours::new();
    let many: Vec<&[u8]> = vec![b"x"; 20_000];
    let eval = |script: &'static str| [&b"EVAL"[..], script.as_bytes()];
    let args = [&eval("return {#ARGV, ARGV[20000]}")[..], &[b"0"], &many].concat();
    assert_eq!(ours.call(&args), b"*2\r\n:20000\r\n$1\r\nx\r\n");
    let args = [&eval("return {#KEYS, KEYS[20000]}")[..], &[b"20000"], &many].concat();
    assert_eq!(ours.call(&args), b"*2\r\n:20000\r\n$1\r\nx\r\n");
    let make = "local list, map = {}, {} for i = 1, 20000 do list[i] = 'v' .. i map['k' .. i] = list[i] end \
        local some = {} for i = 1, 7000 do some[i] = list[i] end \
        local function gathered(f) \
        local text = 'local f = ... return function(...) return f(' .. string.rep(\"'x', \", 200) .. '...) end' \
        for _ = 1, 6 do f = loadstring(text, '@more')(f) end return f(unpack(some)) end ";
    for (script, reply) in [
        ("return #cmsgpack.pack(map) > 200000", ":1"),
        ("return #cmsgpack.unpack(cmsgpack.pack(list))", ":20000"),
        ("return cmsgpack.unpack(cmsgpack.pack(map)).k20000", "$6"),
        ("return #cjson.encode(map) > 200000", ":1"),
        ("return cjson.decode(cjson.encode(map)).k20000", "$6"),
        ("return #cjson.decode(cjson.encode(list))", ":20000"),
        ("return {map = map}", "*40000"),
        ("return {set = map}", "*20000"),
        ("return redis.call('RPUSH', 'l', unpack(some))", ":7000"),
        ("return redis.pcall('RPUSH', 'l', unpack(some))", ":14000"),
        ("return #redis.call('LRANGE', 'l', 0, -1)", ":14000"),
        ("return redis.pcall(unpack(some))", "-ERR Unknown Redis command"),
        ("return cjson.encode(unpack(some))", ""),
        ("return cmsgpack.pack(unpack(some))", ""),
        ("return bit.bor(unpack(some))", ""),
        ("return redis.log(unpack(some))", ""),
        ("return redis.sha1hex(unpack(some))", ""),
        ("return struct.pack(unpack(some))", ""),
        ("return #{struct.unpack(string.rep('c1', 9000), string.rep('x', 9000))}", ""),
        ("return #{cmsgpack.unpack(string.rep(cmsgpack.pack('x'), 9000))}", ""),
        ("return string.format(unpack(some))", ""),
        ("return string.find(unpack(some))", ""),
        ("return string.gsub(unpack(some))", ""),
        ("return #{string.byte(string.rep('x', 7000), 1, -1)}", ":7000"),
        ("return math.random(unpack(some))", ""),
        ("return math.max(1, 2)", ":2"),
        ("return #table.concat(list)", ""),
        ("return tostring(unpack(some))", ""),
        ("return redis.error_reply(unpack(some))", ""),
        // Gathered beyond what `unpack` gives.
        ("return gathered(redis.pcall)", "-ERR more:1: too many arguments"),
        ("return gathered(cjson.encode)", "-ERR more:1: too many arguments"),
        ("return gathered(cmsgpack.pack)", "-ERR more:1: too many arguments"),
        ("return gathered(struct.pack)", "-ERR more:1: too many arguments"),
        ("return gathered(bit.bor)", "-ERR more:1: too many arguments"),
        ("return gathered(string.find)", "-ERR more:1: too many arguments"),
        ("return gathered(math.random)", "-ERR more:1: too many arguments"),
        ("return gathered(string.gmatch('x', 'x'))", "$1"),
        ("return gathered(tostring)", "$1"),
        ("return gathered(redis.replicate_commands)", "-ERR more:1: too many arguments"),
        ("return gathered(function(...) return select('#', ...) end)", ":8200"),
        ("return {pcall(gathered, redis.call)}", "*2"),
        // Natives that call functions, within each other, and one that is given much in the end.
        (
            "local depth = 0 local function down() depth = depth + 1 \
             if depth > 150 then return tostring(redis.pcall('RPUSH', 'm', unpack(some))) end \
             return (string.gsub('x', '(x)', down)) end return down()",
            "",
        ),
        (
            "local text = \"local f = ... return function(...) return f('RPUSH', 'n', \" .. string.rep(\"'x', \", 240) .. '...) end' \
             local push, depth = loadstring(text)(redis.pcall), 0 \
             local captures = string.rep('(x)', 32) local function down() \
             pcall(push, unpack(some)) depth = depth + 1 \
             return (string.gsub(string.rep('x', 32), captures, down, 1)) end return {pcall(down)}",
            "",
        ),
        ("return #redis.call('LRANGE', 'm', 0, -1)", ""),
        (
            "local all = {} for i = 1, 9000 do all[i] = string.gmatch('x', 'x') end return #all",
            ":9000",
        ),
        (
            "local all = {} for i = 1, 9000 do all[i] = coroutine.wrap(function() coroutine.yield(i) end) all[i]() end \
             return #all",
            ":9000",
        ),
        (
            "local all = {} for i = 1, 9000 do all[i] = loadstring('return ' .. i) end return all[9000]()",
            ":9000",
        ),
    ] {
        let script = format!("{make}{script}");
        let found = ours.call(&[b"EVAL", script.as_bytes(), b"0"]);
        let found = String::from_utf8_lossy(&found[..found.len().min(60)]).into_owned();
        assert!(found.starts_with(reply), "{script}: {found}");
    }
}
