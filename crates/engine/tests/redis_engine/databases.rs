//! Commands on all keys of one database, where the server holds those of several.

use concord_engine::databases::{Names, show, stored};

use super::*;

/// A command of `database`; the key is the first argument.
fn of(database: u8, line: &str) -> Vec<u8> {
    let args: Vec<&str> = line.split(' ').collect();
    let mut keys: Vec<Vec<u8>> = args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
    let is_whole = ["DBSIZE", "RANDOMKEY", "FLUSHDB", "FLUSHALL"].contains(&args[0]);
    if !is_whole {
        keys[1] = stored(database, &keys[1]).into_owned();
    }
    let mut command = CommandBuf::new();
    command.encode(u8::from(!is_whole), keys.iter().map(Vec::as_slice));
    command.set_database(if is_whole { database } else { 0 }).to_vec()
}

fn exec(parts: &[Vec<u8>]) -> Vec<u8> {
    let args = [&b"CONCORD.EXEC"[..]].into_iter().chain(parts.iter().map(Vec::as_slice));
    CommandBuf::new().encode(0, args).to_vec()
}

impl Pair {
    fn write_of(&mut self, database: u8, line: &str) -> String {
        self.write_encoded(of(database, line), &[line])
    }

    fn read_of(&mut self, database: u8, line: &str) -> String {
        let command = of(database, line);
        let replies = [&mut self.head, &mut self.follower]
            .map(|replica| replica.run(Class::Read, &command).reply);
        let name = line.split(' ').next().unwrap();
        let [head, follower] = replies.map(|r| show(Names::of(name.as_bytes()), database, r));
        if name != "RANDOMKEY" {
            assert_eq!(head, follower, "{line}");
        }
        String::from_utf8(head).unwrap()
    }

    fn sizes(&mut self) -> Vec<String> {
        (0..4).map(|database| self.read_of(database, "DBSIZE").trim().to_string()).collect()
    }
}

#[test]
fn what_is_of_one_database_leaves_the_others_alone() {
    let mut p = Pair::new();
    // Nothing is there but keys of database 0.
    p.write_of(0, "SET a 1");
    assert_eq!(p.write_of(1, "FLUSHDB"), "+OK\r\n");
    assert_eq!(p.sizes(), [":1", ":0", ":0", ":0"]);
    assert_eq!(p.read_of(1, "RANDOMKEY"), "$-1\r\n");
    assert_eq!(p.write_of(0, "FLUSHDB"), "+OK\r\n");
    for (database, keys) in [(0, 40), (1, 3), (2, 1)] {
        for n in 0..keys {
            p.write_of(database, &format!("SET k{n} {database} PX {}", 100_000 + n));
        }
    }
    assert_eq!(p.sizes(), [":40", ":3", ":1", ":0"]);
    assert_eq!(p.read_of(2, "RANDOMKEY"), "$2\r\nk0\r\n");
    assert_eq!(p.read_of(3, "RANDOMKEY"), "$-1\r\n");
    assert_eq!(p.read_of(2, "TTL k0"), ":100\r\n");
    assert_eq!(p.write_of(2, "FLUSHDB x"), "-ERR syntax error\r\n");
    // What is submitted behind it waits for it.
    let flush = of(2, "FLUSHDB async");
    for r in [&mut p.head, &mut p.follower] {
        assert_eq!(r.submit(Class::Write, &of(2, "SET k1 x")), None);
        assert_eq!(r.submit(Class::Write, &flush), None);
        assert_eq!(r.submit(Class::Write, &of(2, "SET k0 y")), None);
        assert_eq!(r.submit(Class::Read, &of(2, "TTL k0")), None);
        assert_eq!(r.submit(Class::Read, &of(2, "DBSIZE")), None);
        let replies: Vec<_> = (0..5).map(|_| String::from_utf8(r.wait().reply).unwrap()).collect();
        assert_eq!(replies, ["+OK\r\n", "+OK\r\n", "+OK\r\n", ":-1\r\n", ":1\r\n"]);
    }
    p.assert_equal(&["FLUSHDB"]);
    assert_eq!(p.sizes(), [":40", ":3", ":1", ":0"]);
    assert_eq!(p.write_of(0, "FLUSHDB"), "+OK\r\n");
    assert_eq!(p.sizes(), [":0", ":3", ":1", ":0"]);
    assert_eq!(p.read_of(1, "TTL k0"), ":100\r\n");
    assert_eq!(p.read_of(0, "RANDOMKEY"), "$-1\r\n");
    assert_eq!(p.write_of(0, "SET x 1"), "+OK\r\n");
    let transaction = [of(1, "FLUSHDB"), of(1, "DBSIZE"), of(1, "SET n 1"), of(0, "DBSIZE")];
    assert_eq!(p.write_encoded(exec(&transaction), &["EXEC"]), "*4\r\n+OK\r\n:0\r\n+OK\r\n:1\r\n");
    assert_eq!(p.read_of(1, "TTL n"), ":-1\r\n");
    assert_eq!(p.sizes(), [":1", ":1", ":1", ":0"]);
    assert_eq!(p.write_of(3, "FLUSHALL"), "+OK\r\n");
    assert_eq!(p.sizes(), [":0", ":0", ":0", ":0"]);
}

#[test]
fn an_engine_that_copied_another_tells_databases_apart() {
    let mut source = Replica::new(true);
    for (database, keys) in [(0, 5), (3, 7)] {
        for n in 0..keys {
            source.run(Class::Write, &of(database, &format!("SET k{n} v PX 100000")));
        }
    }
    let mut copy = Replica::new(false);
    while !source.engine.prepare_copy() {
        source.pump();
    }
    let mut from = 0;
    while from < PLACE_END {
        let mut chunk = Vec::new();
        if source.engine.copy(from, 100, &mut chunk) == Progress::Pending {
            chunk = source.wait().reply;
        }
        from = next_place(&chunk).unwrap();
        if copy.engine.install(&chunk).unwrap() == Progress::Pending {
            copy.wait();
        }
    }
    for r in [&mut source, &mut copy] {
        r.position = 12;
        let size = |r: &mut Replica, n| r.run(Class::Read, &of(n, "DBSIZE")).reply;
        assert_eq!([size(r, 0), size(r, 3)], [b":5\r\n", b":7\r\n"]);
        assert_eq!(r.run(Class::Write, &of(0, "FLUSHDB")).reply, b"+OK\r\n");
        assert_eq!([size(r, 0), size(r, 3)], [b":0\r\n", b":7\r\n"]);
        assert_eq!(r.run(Class::Read, &of(3, "TTL k6")).reply, b":100\r\n");
        let figures = r.run(Class::Read, &encode(&["CONCORD.INFO"])).reply;
        let figures = String::from_utf8(figures).unwrap();
        assert!(figures.contains("keys:7\r\nexpires:7\r\n"), "{figures}");
    }
}

/// What scripts do that looks at all keys, or names keys in a reply.
const WHOLE: [&str; 22] = [
    "return KEYS",
    "redis.call('MSET', KEYS[1], 1, KEYS[2], 2, 'computed', 3) return redis.call('DBSIZE')",
    "local all = redis.call('KEYS', '*') table.sort(all) return all",
    "local all = redis.call('KEYS', 'comp*') return all",
    "local all = redis.call('SCAN', '0', 'COUNT', 1000) table.sort(all[2]) return all",
    "return redis.call('SCAN', 0, 'MATCH', 'b*', 'COUNT', 1000)",
    "redis.call('DEL', KEYS[1], KEYS[2]) return redis.call('RANDOMKEY')",
    "redis.call('RPUSH', 'l', 'q', 'p') redis.call('MSET', 'w_p', 1, 'w_q', 2, 'v_p', 'P', 'v_q', 'Q') \
     return redis.call('SORT', 'l', 'BY', 'w_*', 'GET', 'v_*', 'GET', '#')",
    "return {redis.call('SORT', 'l', 'ALPHA', 'STORE', 'sorted'), redis.call('LRANGE', 'sorted', 0, -1)}",
    "return redis.call('LMPOP', 2, 'none', 'l', 'LEFT')",
    "return redis.pcall('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', 'none', '>')",
    "redis.call('XADD', 's', '1-1', 'f', 'v') return redis.call('XREAD', 'STREAMS', 's', 0)",
    "redis.call('RPUSH', 'bl', 1) return redis.call('EXPIRE', 'bl', 1000)",
    "return redis.call('BLMPOP', 0, 2, 'none', 'bl', 'LEFT')",
    "return {redis.call('RPUSH', 'bl', 2), redis.call('TTL', 'bl')}",
    "redis.call('ZADD', 'bz', 1, 'm') return {redis.call('BZMPOP', 0, 1, 'bz', 'MIN'), redis.call('EXISTS', 'bz')}",
    "return {redis.call('BLMPOP', 0, 1, 'none', 'LEFT'), redis.pcall('BLMPOP', 'x', 1, 'bl', 'LEFT')}",
    "redis.call('SET', 'timed', 1, 'EX', 100) return redis.call('RENAME', 'timed', KEYS[1])",
    "return {redis.call('TTL', KEYS[1]), redis.call('FLUSHDB'), redis.call('DBSIZE'), redis.call('TTL', KEYS[1])}",
    "return redis.call('RANDOMKEY')",
    "return redis.call('SET', KEYS[1], 'v')",
    "return redis.call('TTL', KEYS[1])",
];

fn eval(database: u8, script: &str, keys: &[&str]) -> Vec<u8> {
    let stored: Vec<_> = keys.iter().map(|key| stored(database, key.as_bytes())).collect();
    let count = keys.len().to_string();
    let head = [&b"EVAL"[..], script.as_bytes(), count.as_bytes()];
    let args = head.into_iter().chain(stored.iter().map(|key| &**key)).chain([&b"77"[..]]);
    let mut command = CommandBuf::new();
    command.encode(0, args);
    command.set_database(database).to_vec()
}

#[test]
fn scripts_of_another_database_answer_as_on_a_plain_server() {
    let (mut p, plain) = (Pair::new(), Server::start(&[]));
    let mut stream = plain.connect();
    for (resp3, database) in [(false, 13), (true, 3), (false, 0)] {
        speak(&mut p, &mut stream, resp3);
        ask(&mut stream, &["SELECT", &database.to_string()]);
        // What others hold is not to be seen.
        for other in [if database == 0 { 3 } else { 0 }, 7] {
            for key in ["a", "computed", "w_p", "other"] {
                p.write_of(other, &format!("SET {key} {other} PX 100000"));
            }
        }
        for script in WHOLE.iter().chain(&scripts::SCRIPTS) {
            if script.contains("SELECT") {
                continue;
            }
            let ours = p.write_both(eval(database, script, &["a", "b", "c"]), &[script]);
            let theirs = ask(&mut stream, &["EVAL", script, "3", "a", "b", "c", "77"]);
            let alike = scripts::alike(&ours, &theirs);
            assert!(alike, "{script} (RESP3: {resp3}, {database}): {ours} {theirs}");
            if script.contains("FLUSHDB") {
                assert_eq!(p.read_of(7, "TTL other"), ":100\r\n");
            }
        }
        p.assert_equal(&["all"]);
        p.write_of(0, "FLUSHALL");
        ask(&mut stream, &["FLUSHALL"]);
    }
}

#[test]
fn a_script_stays_in_its_database() {
    let mut p = Pair::new();
    let mut say = |line: &str| {
        let script = format!("return redis.pcall({line})");
        p.write_encoded(eval(2, &script, &["k"]), &[line])
    };
    assert_eq!(say("'SELECT', 2"), "+OK\r\n");
    for line in ["'SELECT', 0", "'MOVE', 'k', 1", "'COPY', 'k', 'k', 'DB', 1"] {
        assert!(say(line).contains("a script stays in the database of its client"), "{line}");
    }
    // In transactions, beside commands of other databases.
    let transaction = [
        of(0, "SET k zero"),
        eval(
            2,
            "redis.call('SET', KEYS[1], 'two', 'EX', 50) return redis.call('GET', 'k')",
            &["k"],
        ),
        of(2, "SPOP none"),
        of(0, "FLUSHDB"),
        of(2, "TTL k"),
        eval(0, "return redis.call('EXISTS', 'k')", &[]),
    ];
    assert_eq!(
        p.write_encoded(exec(&transaction), &["EXEC"]),
        "*6\r\n+OK\r\n$3\r\ntwo\r\n$-1\r\n+OK\r\n:50\r\n:0\r\n"
    );
    assert_eq!(p.read_of(2, "TTL k"), ":50\r\n");
    // A script of a client that looks like ours.
    let mut command = CommandBuf::new();
    let words = "EVAL,return redis.pcall(unpack(ARGV)),0,INCR,n".split(',').map(str::as_bytes);
    command.encode(0, words);
    let command = command.set_database(2).to_vec();
    assert_eq!(p.write_encoded(command, &["EVAL"]), ":1\r\n");
    assert_eq!(p.sizes(), [":0", ":0", ":2", ":0"]);
}

/// Executes each in `database`, and on a plain server.
fn compare(p: &mut Pair, database: u8, scripts: &[&str]) {
    let plain = Server::start(&[]);
    let mut stream = plain.connect();
    ask(&mut stream, &["SELECT", &database.to_string()]);
    for script in scripts {
        let ours = p.write_both(eval(database, script, &["a", "b"]), &[script]);
        let theirs = ask(&mut stream, &["EVAL", script, "2", "a", "b", "77"]);
        // A script's hash is another here.
        let cut = |reply: &str| reply.split(" script: ").next().unwrap().trim_end().to_string();
        assert_eq!(cut(&ours), cut(&theirs), "{script} ({database})");
    }
    p.assert_equal(&["all"]);
}

/// Keys that begin like a prefix have their own names in scripts.
#[test]
fn prefix_like_keys_in_scripts() {
    for database in [0, 2] {
        compare(
            &mut Pair::new(),
            database,
            &[
                r"redis.call('SET', '\255\254dbx', 1) return redis.call('GET', '\255\254dbx')",
                "return redis.call('KEYS', '*')",
                "return redis.call('SCAN', 0, 'COUNT', 1000)",
                "return redis.call('RANDOMKEY')",
                r"return redis.call('KEYS', '\255\254db*')",
                r"return redis.pcall('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', '\255\254dbax', '>')",
                r"return redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', '\255\254dbcx', '>')",
                r"return redis.pcall('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', '\255\254db', '>')",
            ],
        );
    }
}

#[test]
fn what_a_script_loads_is_in_its_database_too() {
    let scripts = [
        "return loadstring(\"return redis.call('SET', KEYS[1], ...)\")('x')",
        "return loadstring(\"return _G.redis.call('SET', 'b', ARGV[1], 'EX', 100)\")()",
        "return loadstring(\"return loadstring('return redis.call(...)')(...)\")('TTL', 'b')",
        "local parts = {'return redis', '.call(\"GET\",', ' \"a\") -- ', ''} local at = 0 \
         return load(function() at = at + 1 return parts[at] end)()",
        "return _G.redis.call('GET', 'b')",
        "return _G['_G'].loadstring('return redis.call(\"EXISTS\", KEYS[1], KEYS[2])')()",
        "return {_G.tostring(_G.KEYS[2]), _G.redis == redis, _G.load == load}",
        "local _, wrong = loadstring('return 1 +') return wrong",
        "local _, wrong = loadstring('return 1 end, function()') return wrong",
        "local _, wrong = loadstring('error(', '@name') return wrong",
        "local _, wrong = load(function() error('why') end) return wrong",
        "return loadstring('error(1)')()",
        "return loadstring('return x')()",
        "return loadstring('x = 1')()",
        "return _G.x",
        "_G.x = 1",
        "return redis.call('DBSIZE')",
    ];
    for database in [0, 3] {
        let mut p = Pair::new();
        compare(&mut p, database, &scripts);
        // What lies behind the wrapper; and a text that closes what it stands in, which is not
        // executed.
        for script in [
            "return getmetatable(redis).__index.call('SET', 'k', 1)",
            "return getmetatable(_G).__index.redis.call('SET', 'k', 1)",
            "return 1 end), redis.call('SET', 'k', 1), (function() return 2",
        ] {
            p.write_both(eval(database, script, &[]), &[script]);
        }
        let size = |n| if n == database { ":2" } else { ":0" };
        assert_eq!(p.sizes(), [0, 1, 2, 3].map(size));
    }
}
