//! Scripts that may touch any key, and scripts in transactions.

use super::*;

/// EVAL or EVAL_RO of any keys: the arguments behind the name.
pub(super) fn any(args: &[&str]) -> Vec<u8> {
    CommandBuf::new().encode(0, args.iter().map(|arg| arg.as_bytes())).to_vec()
}

pub(super) fn exec(lines: &[&[&str]]) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = lines
        .iter()
        .map(|line| match line[0] {
            "EVAL" | "LMPOP" | "ZMPOP" | "FUNCTION" | "FCALL" | "FCALL_RO" => any(line),
            // Those that wait.
            name if name.starts_with('B') => any(line),
            _ => encode(line),
        })
        .collect();
    let args = [&b"CONCORD.EXEC"[..]].into_iter().chain(parts.iter().map(Vec::as_slice));
    CommandBuf::new().encode(0, args).to_vec()
}

/// The same, but for times: a plain server's pass.
pub(super) fn alike(ours: &str, theirs: &str) -> bool {
    let number = |line: &str| line.strip_prefix(':')?.parse::<u64>().ok();
    let is_alike = |(ours, theirs): (&str, &str)| {
        let is_time = |(a, b): (u64, u64)| a.max(b) > 9 && (a.abs_diff(b) < 30 || a == 0);
        ours == theirs || number(ours).zip(number(theirs)).is_some_and(is_time)
    };
    ours.lines().count() == theirs.lines().count() && ours.lines().zip(theirs.lines()).all(is_alike)
}

impl Pair {
    fn eval(&mut self, args: &[&str]) -> String {
        let line: Vec<&str> = ["EVAL"].iter().chain(args).copied().collect();
        self.write_both(any(&line), &line)
    }

    pub(super) fn exec(&mut self, lines: &[&[&str]]) -> String {
        self.write_both(exec(lines), lines[0])
    }
}

/// Each is executed with the keys a, b, c and an argument.
pub(super) const SCRIPTS: [&str; 60] = [
    "redis.call('MSET', 'x1', 1, 'x2', 2, KEYS[1], 3) return redis.call('MGET', 'x1', 'x2', KEYS[1], 'no')",
    "return redis.call('DEL', 'x1', 'x2', KEYS[1])",
    "redis.call('SET', KEYS[1], 'v', 'EX', 100) redis.call('SETEX', KEYS[2], 200, 'w') return redis.call('TTL', KEYS[1])",
    "return {redis.call('TTL', KEYS[1]), redis.call('TTL', KEYS[2]), redis.call('TTL', KEYS[3])}",
    "redis.call('RENAME', KEYS[1], KEYS[3]) return {redis.call('TTL', KEYS[1]), redis.call('TTL', KEYS[3])}",
    "redis.call('COPY', KEYS[3], 'copied') return {redis.call('TTL', 'copied'), redis.call('TTL', KEYS[3])}",
    "return redis.call('RENAMENX', 'copied', KEYS[2])",
    "return redis.call('COPY', 'copied', KEYS[2], 'REPLACE')",
    "return {redis.call('TTL', KEYS[2]), redis.call('PERSIST', KEYS[2]), redis.call('TTL', KEYS[2])}",
    "return redis.pcall('RENAME', 'none', 'other')",
    "for i = 1, 20 do redis.call('SET', 'n:' .. i, i, 'PX', 100000 + i) end return redis.call('DBSIZE')",
    "local t = {} for i = 1, 20 do t[i] = redis.call('TTL', 'n:' .. i) end return t",
    "local all = redis.call('KEYS', 'n:1*') table.sort(all) return all",
    "local all = redis.call('SCAN', '0', 'MATCH', 'n:2*', 'COUNT', 1000) table.sort(all[2]) return all",
    "return {redis.call('GETEX', 'n:1', 'EX', 500), redis.call('TTL', 'n:1')}",
    "return {redis.call('GETEX', 'n:1', 'PERSIST'), redis.call('TTL', 'n:1'), redis.call('GETEX', 'none')}",
    "return redis.pcall('GETEX', 'n:1', 'EX', 0)",
    "return redis.call('GETDEL', 'n:2')",
    "return {redis.call('SET', 'n:3', 'v', 'XX', 'GET', 'EX', 900), redis.call('TTL', 'n:3')}",
    "return {redis.call('SET', 'n:3', 'w', 'NX', 'GET', 'EX', 990), redis.call('TTL', 'n:3')}",
    "return {redis.call('SET', 'n:3', 'w', 'KEEPTTL'), redis.call('TTL', 'n:3')}",
    "redis.call('SET', 'n:3', 'w') return redis.call('TTL', 'n:3')",
    "redis.call('RPUSH', 'l', 1, 2, 3) redis.call('EXPIRE', 'l', 50) return redis.call('LMOVE', 'l', 'm', 'LEFT', 'RIGHT')",
    "redis.call('LMOVE', 'l', 'm', 'LEFT', 'RIGHT') redis.call('RPOPLPUSH', 'l', 'm') return {redis.call('EXISTS', 'l'), redis.call('TTL', 'l')}",
    "redis.call('RPUSH', 'l', 1) return redis.call('TTL', 'l')",
    "return redis.call('LMPOP', 2, 'none', 'm', 'LEFT', 'COUNT', 10)",
    "redis.call('SADD', 's1', 'a', 'b', 'c') redis.call('SADD', 's2', 'b', 'c', 'd') return redis.call('SINTERSTORE', 's3', 's1', 's2')",
    "redis.call('EXPIRE', 's3', 100) redis.call('SUNIONSTORE', 's3', 's1', 's2') return redis.call('TTL', 's3')",
    "redis.call('EXPIRE', 's3', 100) redis.call('SDIFFSTORE', 's3', 's1', 's1') return redis.call('EXISTS', 's3')",
    "redis.call('SADD', 's3', 'x') return redis.call('TTL', 's3')",
    "return redis.call('SMOVE', 's1', 's2', 'a')",
    "return {redis.call('SPOP', 's3'), redis.call('SPOP', 's3'), redis.call('EXISTS', 's3'), redis.call('SRANDMEMBER', 's3')}",
    "return redis.pcall('SPOP', 's1', -1)",
    "return #redis.call('SPOP', 's1', 10)",
    "return redis.call('SPOP', 's1', 10)",
    "return #redis.call('SRANDMEMBER', 's2', -7)",
    "return #redis.call('SRANDMEMBER', 's2', 7)",
    "redis.call('ZADD', 'z1', 1, 'a', 2, 'b') redis.call('ZADD', 'z2', 5, 'b') return redis.call('ZUNIONSTORE', 'z3', 2, 'z1', 'z2')",
    "return redis.call('ZRANGE', 'z3', 0, -1, 'WITHSCORES')",
    "return #redis.call('ZRANDMEMBER', 'z3', 2, 'WITHSCORES')",
    "redis.call('HSET', 'h', 'f', 1) return {redis.call('HRANDFIELD', 'h'), redis.call('HRANDFIELD', 'h', 1, 'WITHVALUES'), redis.call('HGETALL', 'h')}",
    "return redis.pcall('HRANDFIELD', 'h', 1, 'WITHSCORES')",
    "redis.call('SET', 'b1', 'abc') redis.call('SET', 'b2', 'abd', 'EX', 100) redis.call('BITOP', 'AND', 'b2', 'b1', 'b2') return redis.call('TTL', 'b2')",
    "redis.call('RPUSH', 'so', 3, 1, 2) redis.call('SET', 'b2', 1, 'EX', 100) redis.call('SORT', 'so', 'STORE', 'b2') return {redis.call('TTL', 'b2'), redis.call('LRANGE', 'b2', 0, -1)}",
    "redis.call('XADD', 'st', '5-1', 'f', 'v') return redis.call('XADD', 'st', '5-*', 'f', 'v')",
    "return redis.call('XINFO', 'STREAM', 'st')[2]",
    "return redis.call('XREAD', 'STREAMS', 'st', 0)",
    "redis.call('XGROUP', 'CREATE', 'gr', 'g', '0', 'MKSTREAM') redis.call('XADD', 'gr', '1-1', 'f', 'v') return redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', 'gr', '>')",
    "redis.call('GEOADD', 'geo', 13, 38, 'p') redis.call('SET', 'b3', 1, 'EX', 100) redis.call('GEORADIUS', 'geo', 13, 38, 9, 'km', 'STORE', 'b3') return redis.call('TTL', 'b3')",
    "return redis.pcall('SELECT', '0')",
    "return redis.pcall('GET', {})",
    "return redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], 'none')",
    "return redis.call('EXPIRE', KEYS[2], ARGV[1])",
    "return redis.call('EXPIRE', KEYS[2], -1)",
    "return redis.pcall('MSETNX', 'y1', 1, 'x1', 2)",
    "return redis.pcall('MSETNX', 'y2', 1, 'y1', 2)",
    "return redis.pcall('MSET', 'y2')",
    "return redis.pcall('INCR', 'l')",
    "return {redis.call('FLUSHALL'), redis.call('DBSIZE'), redis.call('TTL', KEYS[2])}",
    "redis.call('SET', KEYS[1], 1, 'EX', 100) return redis.call('TTL', KEYS[1])",
];

#[test]
fn scripts_of_any_keys_answer_as_on_a_plain_server() {
    let mut p = Pair::new();
    let plain = Server::start(&[]);
    let mut stream = plain.connect();
    for resp3 in [false, true] {
        speak(&mut p, &mut stream, resp3);
        for script in SCRIPTS {
            let line = ["EVAL", script, "3", "a", "b", "c", "77"];
            let ours = p.eval(&line[1..]);
            let theirs = ask(&mut stream, &line);
            assert!(alike(&ours, &theirs), "{script} (RESP3: {resp3}): {ours} {theirs}");
        }
    }
    p.assert_equal(&["all"]);
    // Commands in between change what scripts are told.
    for line in [
        &["SET", "k", "v", "EX", "100"][..],
        &["EVAL", "return redis.call('TTL', 'k')", "0"],
        &["EXPIRE", "k", "50"],
        &["EVAL", "return redis.call('TTL', 'k')", "0"],
        &["PERSIST", "k"],
        &["EVAL", "return redis.call('TTL', 'k')", "0"],
        &["EVAL", "return redis.call('EXPIRE', 'k', 70)", "0"],
        &["TTL", "k"],
        &["DEL", "k"],
        &["EVAL", "return redis.call('TTL', 'k')", "0"],
        &["FLUSHALL"],
        &["EVAL", "redis.call('SET', 'k', 1, 'EX', 90) return redis.call('TTL', 'k')", "0"],
        &["TTL", "k"],
    ] {
        let ours = if line[0] == "EVAL" { p.eval(&line[1..]) } else { p.write(line) };
        let theirs = ask(&mut stream, line);
        assert!(alike(&ours, &theirs), "{line:?}: {ours} {theirs}");
    }
}

#[test]
fn what_is_drawn_in_scripts_is_drawn_alike() {
    let mut p = Pair::new();
    for seed in 0..20 {
        p.head.context.entropy = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
        p.eval(&["for i = 1, 600 do redis.call('SADD', 's', 'm' .. i) redis.call('HSET', 'h', 'f' .. i, i) end", "0"]);
        for draw in [
            "return redis.call('SPOP', 's')",
            "return redis.call('SPOP', 's', 7)",
            "return redis.call('SRANDMEMBER', 's', 7)",
            "return redis.call('SRANDMEMBER', 's', -7)",
            "return redis.call('HRANDFIELD', 'h', -3, 'WITHVALUES')",
            "return redis.call('RANDOMKEY')",
            "return redis.call('SCAN', 0)",
            "return redis.call('SSCAN', 's', 0)",
            "return redis.call('HSCAN', 'h', 0, 'MATCH', 'f1*')",
            "return redis.call('SUNION', 's', 's')",
            "return redis.call('XADD', 'x', '*', 'f', 'v')",
            "return redis.call('XADD', 'x', 'MAXLEN', '~', '5', '*', 'f', 'v')",
        ] {
            let reply = p.eval(&[draw, "0"]);
            assert!(!reply.starts_with('-'), "{draw}: {reply}");
        }
        let same = p.exec(&[
            &["EVAL", "return redis.call('SRANDMEMBER', 's')", "0"],
            &["EVAL", "return redis.call('SRANDMEMBER', 's')", "0"],
            &["SPOP", "s", "3"],
            &["XADD", "x", "*", "f", "v"],
        ]);
        assert!(same.starts_with("*4\r\n") && !same.contains("-ERR"), "{same}");
    }
    p.assert_equal(&["all"]);
    // A stream's time never goes back.
    p.eval(&["return redis.call('XADD', 'y', '9000000000000-5', 'f', 'v')", "0"]);
    let id = p.eval(&["return redis.call('XADD', 'y', '*', 'f', 'v')", "0"]);
    assert_eq!(id, "$15\r\n9000000000000-6\r\n");
}

#[test]
fn a_key_that_is_due_is_gone_for_a_script_that_touches_it() {
    let mut p = Pair::new();
    for key in ["d1", "d2", "d3", "stays"] {
        p.write(&["SET", key, "v", "PX", if key == "stays" { "90000" } else { "1000" }]);
    }
    p.head.context.now_ms += 2_000;
    // Who only reads sees it until it is deleted.
    let read = any(&["EVAL_RO", "return {redis.call('GET', 'd1'), redis.call('PTTL', 'd1')}", "0"]);
    let reply = p.head.run(Class::Read, &read).reply;
    assert_eq!(reply, b"*2\r\n$1\r\nv\r\n:0\r\n");
    assert_eq!(p.eval(&["return redis.call('GET', 'd' .. 1)", "0"]), "$-1\r\n");
    assert_eq!(p.eval(&["return redis.call('EXISTS', 'd2', 'stays')", "1", "d2"]), ":1\r\n");
    // It did not write otherwise; a third is due still.
    assert_eq!(p.head.engine.next_expiry_ms(), Some(NOW_MS + 1_000));
    let reply = p.exec(&[&["INCR", "d3"], &["EVAL", "return redis.call('GET', 'd3')", "0"]]);
    assert_eq!(reply, "*2\r\n:1\r\n$1\r\n1\r\n");
    assert_eq!(p.head.engine.next_expiry_ms(), Some(NOW_MS + 90_000));
}

#[test]
fn what_a_script_did_to_times_to_live_before_it_failed_is_known() {
    let mut p = Pair::new();
    p.write(&["SET", "k", "v"]);
    let fails = "redis.call('EXPIRE', 'k', 10) error('no')";
    assert!(p.eval(&[fails, "0"]).starts_with("-ERR"));
    assert_eq!(p.write(&["TTL", "k"]), ":10\r\n");
    // The same of one that has a single key.
    let fails = "redis.call('EXPIRE', KEYS[1], 20) error('no')";
    assert!(p.write(&["EVAL", fails, "1", "k"]).starts_with("-ERR"));
    assert_eq!(p.write(&["TTL", "k"]), ":20\r\n");
    assert_eq!(p.eval(&["return redis.call('TTL', 'k')", "0"]), ":20\r\n");
    assert_eq!(p.head.server.cli(&["-n", "1", "EXISTS", "concord:told"]), "0");
}

#[test]
fn a_transaction_with_scripts_answers_as_on_a_plain_server() {
    let mut p = Pair::new();
    let plain = Server::start(&[]);
    let mut stream = plain.connect();
    let transactions: [&[&[&str]]; 8] = [
        &[
            &["SET", "k", "v", "EX", "100"],
            &["EVAL", "return redis.call('TTL', 'k')", "0"],
            &["EXPIRE", "k", "50"],
            &["EVAL", "return redis.call('TTL', 'k')", "1", "k"],
            &["TTL", "k"],
            &["INCR", "n"],
            &["GET", "k"],
        ],
        &[
            &["EVAL", "redis.call('EXPIRE', 'k', 90) error('x')", "0"],
            &["TTL", "k"],
            &["DEL", "k", "n"],
            &["TTL", "k"],
        ],
        &[&["EVAL", "return 1", "0"], &["INCR", "l", "x"]],
        &[
            &["RPUSH", "l", "1", "2"],
            &["EVAL", "return redis.call('EXPIRE', 'l', 70)", "0"],
            &["LPOP", "l"],
            &["INCR", "l"],
            &["RENAME", "l", "m"],
            &["TTL", "m"],
            &["LPOP", "m"],
            &["TTL", "m"],
            &["DBSIZE"],
        ],
        &[
            &["EVAL", "return redis.call('SET', 'q', 1, 'EX', 70)", "0"],
            &["FLUSHALL"],
            &["EVAL", "return redis.call('SET', 'r', 1, 'EX', 70)", "0"],
            &["TTL", "q"],
            &["TTL", "r"],
        ],
        &[&["EVAL", "return redis.call('TTL', 'r')", "0"], &["HSET", "h", "f", "1"]],
        &[
            &["HGETALL", "h"],
            &["EVAL", "return redis.call('HGETALL', 'h')", "0"],
            &["MGET", "r", "q"],
        ],
        &[
            &[
                "EVAL",
                "redis.call('RPUSH', 'w', 1, 2, 3, 4, 5, 6) return redis.call('ZADD', 'y', 1, 'a', 2, 'b', 3, 'c')",
                "0",
            ],
            &["BLPOP", "none", "w", "0"],
            &["BRPOP", "w", "none", "0.5"],
            &["BLMOVE", "w", "v", "LEFT", "RIGHT", "1"],
            &["BRPOPLPUSH", "w", "v", "1"],
            &["BLMPOP", "1", "2", "none", "w", "LEFT", "COUNT", "5"],
            &["EXISTS", "w"],
            &["LMPOP", "1", "w", "LEFT"],
            &["BLPOP", "w", "none", "1"],
            &["BRPOP", "h", "v", "1"],
            &["BLPOP", "v", "x"],
            &["BLPOP", "v", "-1"],
            &["BLMOVE", "w", "v", "LEFT", "RIGHT", "1"],
            &["BLMPOP", "1", "1", "w", "LEFT"],
            &["BZPOPMIN", "none", "y", "1"],
            &["BZPOPMAX", "y", "1"],
            &["BZMPOP", "1", "2", "none", "y", "MIN"],
            &["BZPOPMIN", "y", "1"],
            &["BZMPOP", "1", "1", "y", "MIN"],
            &["ZMPOP", "1", "y", "MIN"],
        ],
    ];
    let head = |text: &str| text.split(" script: ").next().unwrap().to_string();
    for lines in transactions {
        ask(&mut stream, &["MULTI"]);
        lines.iter().for_each(|line| drop(ask(&mut stream, line)));
        let theirs = ask(&mut stream, &["EXEC"]);
        let ours = p.exec(lines);
        if theirs.starts_with("-EXECABORT") {
            assert!(ours.starts_with('-'), "{lines:?}: {ours}");
        } else {
            assert!(alike(&head(&ours), &head(&theirs)), "{lines:?}: {ours} {theirs}");
        }
    }
    // Which looks at the states, too.
    assert!(alike(&p.write(&["TTL", "r"]), &ask(&mut stream, &["TTL", "r"])));
}

#[test]
fn scripts_and_commands_in_a_pipeline_keep_their_order() {
    let mut p = Pair::new();
    let plain = Server::start(&[]);
    let mut stream = plain.connect();
    let mut lines: Vec<Vec<String>> = Vec::new();
    for n in 0..400u32 {
        let key = format!("k{}", n * 7 % 5);
        let line = match n.wrapping_mul(2_654_435_761) >> 28 {
            0..=2 => format!("SET|{key}|{n}|EX|{}", 100 + n),
            3 => format!("EVAL|return redis.call('TTL', '{key}')|0"),
            4 => format!("EVAL|return redis.call('EXPIRE', '{key}', {})|0", 500 + n),
            5 => format!("EVAL|return redis.call('SET', '{key}', {n})|0"),
            6 => format!("EVAL|redis.call('SET', KEYS[1], 1, 'EX', {}) return 1|1|{key}", 900 + n),
            7 => format!("DEL|{key}"),
            8 => format!("EVAL|return redis.call('DEL', '{key}')|0"),
            9 => format!("EXPIRE|{key}|{}", 700 + n),
            10 => format!("PERSIST|{key}"),
            11 => "EVAL|return redis.call('DBSIZE')|0".to_string(),
            _ => format!("TTL|{key}"),
        };
        lines.push(line.split('|').map(str::to_string).collect());
    }
    let mut expected = Vec::new();
    for replica in [&mut p.head, &mut p.follower] {
        let mut got = Vec::new();
        for line in &lines {
            let args: Vec<&str> = line.iter().map(String::as_str).collect();
            let bytes =
                if line[0] == "EVAL" && line[2] == "0" { any(&args) } else { encode(&args) };
            // Some wait for a moment, so that there are such as wait for others.
            got.extend(replica.submit(Class::Write, &bytes));
            while got.len() < expected.len() && replica.engine.poll().is_some() {}
        }
        while got.len() < lines.len() {
            got.push(replica.wait());
        }
        let got: Vec<String> =
            got.iter().map(|done| String::from_utf8_lossy(&done.reply).into()).collect();
        if expected.is_empty() {
            for line in &lines {
                let args: Vec<&str> = line.iter().map(String::as_str).collect();
                expected.push(ask(&mut stream, &args));
            }
        }
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert!(alike(got, expected), "{at}: {:?}: {got} {expected}", lines[at]);
        }
    }
    p.assert_equal(&["all"]);
}

#[test]
fn many_changed_deadlines_are_told_in_between() {
    let mut p = Pair::new();
    p.eval(&["return 1", "0"]);
    for replica in [&mut p.head, &mut p.follower] {
        for n in 0..5_000 {
            replica.submit(Class::Write, &encode(&["SET", &format!("k{n}"), "v", "EX", "100"]));
        }
        (0..5_000).for_each(|_| drop(replica.wait()));
        replica.write(&["DEL", "k17"]);
        let told = replica.server.cli(&["-n", "1", "HLEN", "concord:deadlines"]);
        assert!(told.parse::<u32>().unwrap() > 3_000, "{told}");
    }
    let sum = "local n = 0 for i = 0, 4999 do n = n + redis.call('TTL', 'k' .. i) end return n";
    assert_eq!(p.eval(&[sum, "0"]), format!(":{}\r\n", 4_999 * 100 - 2));
    assert_eq!(p.head.server.cli(&["-n", "1", "HLEN", "concord:deadlines"]), "4999");
}

/// A connection that breaks under scripts loses and repeats nothing.
#[test]
fn t11_connection_loss_under_scripts() {
    for cut in [1, 300, 9_000, 30_000, 100_000] {
        let mut r = Replica::new(true);
        r.write(&["SET", "k", "v", "EX", "100"]);
        for _ in 0..6 {
            let count = "redis.call('EXPIRE', 'k', 50 + redis.call('INCR', 'n')) return redis.call('TTL', 'k')";
            assert_eq!(r.submit(Class::Write, &any(&["EVAL", count, "0"])), None);
        }
        let output = r.redis().output().to_vec();
        let length = output.len().min(cut);
        r.stream.write_all(&output[..length]).unwrap();
        r.redis().sent(length);
        r.reconnect();
        let mut replies = Vec::new();
        while replies.len() < 6 && r.redis().lost_reason().is_none() {
            match r.engine.poll() {
                Some(done) => replies.push(String::from_utf8(done.reply).unwrap()),
                None => assert!(r.pump(), "the connection closed"),
            }
        }
        if r.redis().lost_reason().is_none() {
            let expected: Vec<String> = (51..57).map(|ttl| format!(":{ttl}\r\n")).collect();
            assert_eq!(replies, expected, "cut at {cut}");
            assert_eq!(r.read(&["GET", "n"]), "$1\r\n6\r\n");
        }
    }
}

#[test]
fn a_copy_taken_while_scripts_write_keys_of_any_name_is_whole() {
    let (mut from, mut to) = (Replica::new(true), Replica::new(false));
    for n in 0..300 {
        from.write(&["SET", &format!("k{n}"), "v", "EX", "100"]);
    }
    let (mut place, mut n) = (0, 0);
    let mut copied = std::collections::BTreeSet::new();
    while place < PLACE_END {
        while !from.engine.prepare_copy() {
            from.pump();
        }
        n += 1;
        // Of places that are not copied yet, so that the copy must bring them.
        for n in n * 1_000..n * 1_000 + 50 {
            let key = format!("new{n}");
            if place_of_key(key.as_bytes()) > place {
                let put = "return redis.call('SET', 'new' .. ARGV[1], 1, 'EX', 50)".to_string();
                from.run(Class::Write, &any(&["EVAL", &put, "0", &n.to_string()]));
                copied.insert(key);
            }
        }
        let mut chunk = Vec::new();
        assert_eq!(from.engine.copy(place, 2_000, &mut chunk), Progress::Pending);
        chunk = from.wait().reply;
        if to.engine.install(&chunk).unwrap() == Progress::Pending {
            to.wait();
        }
        place = next_place(&chunk).unwrap();
    }
    from.engine.end_copy();
    assert!(copied.len() > 20, "{}", copied.len());
    for replica in [&mut from, &mut to] {
        let sum =
            "local n = 0 for _, key in ipairs(ARGV) do n = n + redis.call('TTL', key) end return n";
        let args: Vec<&str> =
            ["EVAL", sum, "0"].into_iter().chain(copied.iter().map(String::as_str)).collect();
        let reply = replica.run(Class::Write, &any(&args)).reply;
        assert_eq!(reply, format!(":{}\r\n", copied.len() * 50).into_bytes());
        assert_eq!(replica.server.cli(&["DBSIZE"]), (300 + copied.len()).to_string());
    }
}

#[test]
fn what_scripts_publish_comes_in_front_of_the_reply() {
    let mut p = Pair::new();
    let both = "redis.call('SET', 'k', 1) redis.call('PUBLISH', 'c', ARGV[1]) redis.call('SPUBLISH', 'd', '') return 'x'";
    let pushed =
        ">6\r\n$7\r\npublish\r\n$1\r\nc\r\n$1\r\nm\r\n$8\r\nspublish\r\n$1\r\nd\r\n$0\r\n\r\n";
    assert_eq!(p.eval(&[both, "0", "m"]), format!("{pushed}$1\r\nx\r\n"));
    let reply = p.exec(&[&["EVAL", both, "0", "m"], &["GET", "k"]]);
    assert_eq!(reply, format!("{pushed}*2\r\n$1\r\nx\r\n$1\r\n1\r\n"));
    let reads = any(&["EVAL_RO", "return redis.call('PUBLISH', 'c', 'm')", "0"]);
    let reply = String::from_utf8(p.head.run(Class::Read, &reads).reply).unwrap();
    assert!(reply.contains("Write commands are not allowed"), "{reply}");
}

#[test]
fn consumer_groups_answer_as_on_a_plain_server() {
    let mut p = Pair::new();
    let plain = Server::start(&[]);
    let mut stream = plain.connect();
    for resp3 in [false, true] {
        speak(&mut p, &mut stream, resp3);
        for line in [
            "DEL s",
            "XREADGROUP GROUP g c STREAMS s >",
            "XGROUP CREATE s g 0 MKSTREAM",
            "XREADGROUP GROUP g c STREAMS s >",
            "XADD s 1-1 f v",
            "XADD s 2-1 f v",
            "XADD s 3-1 f v",
            "XADD s 4-1 f v",
            "XADD s 5-1 f v",
            "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
            "XREADGROUP GROUP g d NOACK COUNT 1 STREAMS s >",
            "XREADGROUP GROUP g d STREAMS s >",
            "XREADGROUP GROUP g d STREAMS s 0",
            "XPENDING s g",
            "XPENDING s g - + 10",
            "XPENDING s g - + 10 d",
            "XPENDING s g IDLE 100000 - + 10",
            "XPENDING s none - + 10",
            "XCLAIM s g e 100000 1-1 2-1",
            "XCLAIM s g e 0 1-1",
            "XCLAIM s g e 0 2-1 JUSTID",
            "XCLAIM s g e 0 9-9",
            "XCLAIM s g e 0 3-1 FORCE RETRYCOUNT 7",
            "XCLAIM s g e x 3-1",
            "XCLAIM s none e 0 3-1",
            "XPENDING s g - + 10 e",
            "XACK s g 1-1",
            "XDEL s 4-1",
            "XAUTOCLAIM s g f 0 - COUNT 2",
            "XAUTOCLAIM s g f 0 2-1 JUSTID",
            "XAUTOCLAIM s g f 100000 -",
            "XAUTOCLAIM s none f 0 -",
            "XAUTOCLAIM s g f 0 - COUNT 576460752303423488",
            "XAUTOCLAIM s g f 0 - COUNT 8070450532247928833",
            "XAUTOCLAIM s g f 0 - COUNT 0",
            "XPENDING s g - + 10",
            "XPENDING s g",
            "XINFO GROUPS s",
        ] {
            let line: Vec<&str> = line.split(' ').collect();
            // So that the plain server's idle times are seen to be times.
            sleep(Duration::from_millis(if line[0] == "XPENDING" { 12 } else { 0 }));
            let (ours, theirs) = (p.group_command(&line), ask(&mut stream, &line));
            assert!(alike(&ours, &theirs), "{line:?} (RESP3: {resp3}): {ours} {theirs}");
        }
        p.assert_equal(&["all"]);
    }
}

impl Pair {
    /// A command of streams, whose key is not always the first.
    fn group_command(&mut self, line: &[&str]) -> String {
        let key = match line[0] {
            "XREADGROUP" => line.len() - 2,
            "XINFO" | "XGROUP" => 2,
            _ => 1,
        };
        let bytes =
            CommandBuf::new().encode(key as u8, line.iter().map(|arg| arg.as_bytes())).to_vec();
        if line[0] == "XINFO" {
            return String::from_utf8(self.head.run(Class::Read, &bytes).reply).unwrap();
        }
        self.write_both(bytes, line)
    }
}

#[test]
fn what_has_passed_since_a_delivery_is_told_by_the_log() {
    let mut p = Pair::new();
    p.group_command(&["XGROUP", "CREATE", "s", "g", "0", "MKSTREAM"]);
    p.write(&["XADD", "s", "1-1", "f", "v"]);
    p.write(&["XADD", "s", "2-1", "f", "v"]);
    p.group_command(&["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"]);
    let idle = |reply: &str| -> u64 {
        reply.split("\r\n").filter_map(|line| line.strip_prefix(':')?.parse().ok()).next().unwrap()
    };
    for passed in [0, 5_000, 100_000, 50_000_000] {
        p.head.context.now_ms = NOW_MS + passed;
        let reply = p.group_command(&["XPENDING", "s", "g", "-", "+", "1"]);
        let idle = idle(&reply);
        assert!(idle <= passed && idle + 32 >= passed, "{passed}: {reply}");
    }
    p.head.context.now_ms = NOW_MS + 5_000;
    assert_eq!(p.group_command(&["XCLAIM", "s", "g", "d", "5001", "1-1", "JUSTID"]), "*0\r\n");
    assert_eq!(
        p.group_command(&["XCLAIM", "s", "g", "d", "4900", "1-1", "JUSTID"]),
        "*1\r\n$3\r\n1-1\r\n"
    );
    let claimed = p.group_command(&["XAUTOCLAIM", "s", "g", "e", "4900", "-", "JUSTID"]);
    assert!(claimed.contains("2-1") && !claimed.contains("1-1"), "{claimed}");
}

#[test]
fn what_is_drawn_is_drawn_alike_where_nobody_decides() {
    let mut p = Pair::new();
    p.head.context.decide = false;
    for _ in 0..10 {
        p.head.context.entropy += 77;
        for line in [
            &["SADD", "s", "a", "b", "c", "d", "e", "f"][..],
            &["SPOP", "s"],
            &["SPOP", "s", "3"],
            &["SPOP", "none"],
            &["XADD", "x", "*", "f", "v"],
            &["XADD", "x", "MAXLEN", "5", "*", "f", "v"],
        ] {
            let reply = p.write(line);
            assert!(!reply.starts_with('-'), "{line:?}: {reply}");
        }
    }
}

#[test]
fn bug_18_7_what_stands_in_a_scripts_arguments_has_not_too_many() {
    let mut p = Pair::new();
    let limit = "is not supported: with more than 7000 arguments";
    let long = |line: &str, argc: usize| {
        let args = line.split(' ').chain(std::iter::repeat("1")).take(argc);
        args.map(str::to_string).collect::<Vec<String>>()
    };
    for decide in [true, false] {
        p.head.context.decide = decide;
        for line in [
            "XPENDING s g - +",
            "XCLAIM s g c 0",
            "XAUTOCLAIM s g c 0",
            "XREADGROUP GROUP g c STREAMS",
            "XADD s *",
            "XADD s NOMKSTREAM *",
        ] {
            for argc in [7_001, 65_534] {
                let line = long(line, argc);
                let args: Vec<&str> = line.iter().map(String::as_str).collect();
                let words = args.iter().map(|arg| arg.as_bytes());
                let bytes = CommandBuf::new().encode(1, words).to_vec();
                let reply = p.write_both(bytes, &args[..2]);
                assert!(reply.contains(limit), "{} {argc}: {reply}", args[0]);
            }
        }
        let line = long("XADD s *", 6_999);
        let args: Vec<&str> = line.iter().map(String::as_str).collect();
        assert!(p.write(&args).starts_with('$'));
        let line = long("XPENDING s g - + 1 c", 7_000);
        let args: Vec<&str> = line.iter().map(String::as_str).collect();
        assert!(p.write(&args).contains("syntax error"));
    }
    // What would be a script beside scripts; all is refused, and what is due stays.
    p.write(&["SET", "k1", "v", "PX", "1000"]);
    p.head.context.now_ms += 2_000;
    for argc in [7_000, 7_001, 9_000, 65_534] {
        let keys: Vec<String> = (1..argc).map(|n| format!("k{n}")).collect();
        let del: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        let bytes = CommandBuf::new().encode(0, del.iter().map(|arg| arg.as_bytes())).to_vec();
        let eval = any(&["EVAL", "return redis.call('SET', 'k3', 1)", "0"]);
        let parts = [&b"CONCORD.EXEC"[..], &eval, &bytes];
        let exec = CommandBuf::new().encode(0, parts).to_vec();
        let reply = p.write_both(exec, &["DEL"]);
        if argc > 7_000 {
            assert!(reply.starts_with("-ERR too many arguments"), "{argc}: {reply}");
        } else {
            assert_eq!(reply, "*2\r\n+OK\r\n:1\r\n");
            p.write(&["SET", "k1", "v", "PX", "1000"]);
            p.head.context.now_ms += 2_000;
        }
        assert_eq!(p.head.read(&["GET", "k1"]), "$1\r\nv\r\n");
    }
    p.assert_equal(&["all"]);
}

/// A flush in a script leaves nothing untold that a later script tells.
#[test]
fn bug_18_8_flush_in_a_script_reports_everything() {
    let mut r = Replica::new(true);
    let eval = |script: &str| any(&["EVAL", script, "0"]);
    r.run(Class::Write, &eval("return 1"));
    r.submit(Class::Write, &eval("return redis.call('FLUSHALL')"));
    r.submit(Class::Write, &eval("return redis.call('SET', 'k', 'v', 'PX', 5000)"));
    // The first is over, the second under way.
    assert_eq!(r.wait().reply, b"+OK\r\n");
    r.submit(Class::Write, &eval("return redis.call('SET', 'k', 'w')"));
    r.wait();
    r.wait();
    assert_eq!(r.engine.next_expiry_ms(), None);
    assert_eq!(r.server.cli(&["-n", "1", "HLEN", "concord:deadlines"]), "0");
}

/// A script of one key in a transaction touches no other.
#[test]
fn bug_18_9_one_key_script_in_a_transaction() {
    let mut p = Pair::new();
    let other = "KEYS[1] = 'b' return redis.call('SET', KEYS[1], 1)";
    let of_one = encode(&["EVAL", other, "1", "a"]);
    let own = encode(&["EVAL", "return redis.call('SET', KEYS[1], 1, 'EX', 100)", "1", "a"]);
    let of_any = any(&["EVAL", other, "1", "a"]);
    let dbsize = encode(&["EVAL", "return redis.call('DBSIZE')", "1", "a"]);
    let ttl = encode(&["EVAL_RO", "return redis.call('TTL', KEYS[1])", "1", "a"]);
    let mut run = |parts: &[&[u8]]| {
        let args = [&b"CONCORD.EXEC"[..]].into_iter().chain(parts.iter().copied());
        p.write_both(CommandBuf::new().encode(0, args).to_vec(), &["EXEC"])
    };
    let not_local = "-ERR Script attempted to access a non local key in a cluster node";
    for part in [&of_one, &dbsize] {
        let reply = run(&[part]);
        assert!(reply.starts_with(&format!("*1\r\n{not_local}")), "{reply}");
    }
    assert_eq!(run(&[&own, &ttl, &of_any]), "*3\r\n+OK\r\n:100\r\n+OK\r\n");
    p.assert_equal(&["all"]);
}

/// Executes a script without an end at `r`, stops it, and waits for its end or for that of the
/// engine.
pub(super) fn stop(r: &mut Replica, class: Class, command: &[u8]) -> Option<Completion> {
    r.server.cli(&["CONFIG", "SET", "lua-time-limit", "20"]);
    assert_eq!(r.submit(class, command), None);
    r.send_all();
    while r.server.cli(&["SCRIPT", "KILL"]) != "OK" {
        sleep(Duration::from_millis(10));
    }
    r.redis().script_stopped();
    while r.redis().lost_reason().is_none() {
        if let Some(done) = r.engine.poll() {
            return Some(done);
        }
        assert!(r.pump());
    }
    None
}

/// A script that was stopped answers alike at all replicas.
#[test]
fn bug_18_11_stopped_script_answers_alike() {
    let endless = "while true do end";
    // Alone in a transaction: EXEC is an error, at the backups too.
    let mut p = Pair::new();
    let reply_part = any(&["CONCORD.REPLY", "+PONG\r\n"]);
    let parts = [&b"CONCORD.EXEC"[..], &any(&["EVAL", endless, "0"]), &reply_part];
    let done = stop(&mut p.head, Class::Write, CommandBuf::new().encode(0, parts)).unwrap();
    assert!(done.stopped && done.reply.starts_with(b"-ERR the script ran for too long"));
    let follower = p.follower.run(Class::Write, &done.effect.unwrap());
    assert_eq!(follower.reply, done.reply);
    p.assert_equal(&["all"]);
    // A read is none of the others' business.
    let reads = ["EVAL_RO", endless, "0"];
    let parts = [&b"CONCORD.EXEC"[..], &encode(&["GET", "k"]), &any(&reads)];
    let done = stop(&mut p.head, Class::Read, CommandBuf::new().encode(0, parts)).unwrap();
    assert!(done.reply.starts_with(b"*2\r\n$-1\r\n-ERR the script ran for too long"));
    // Beside questions for digests it is alone.
    let question = encode(&["DEBUG", "DIGEST-VALUE", "a"]);
    let question: Vec<u8> = {
        let asked = Command::parse(&question).unwrap();
        CommandBuf::new().encode(2, asked.args()).to_vec()
    };
    let parts = [&b"CONCORD.EXEC"[..], &question, &any(&["EVAL", endless, "0"]), &question];
    let done = stop(&mut p.head, Class::Write, CommandBuf::new().encode(0, parts)).unwrap();
    assert!(done.stopped && done.reply.starts_with(b"-ERR the script ran for too long"));
    let follower = p.follower.run(Class::Write, &done.effect.unwrap());
    assert_eq!(follower.reply, done.reply);
    p.assert_equal(&["all"]);
    let parts = [&b"CONCORD.EXEC"[..], &question, &any(&reads)];
    let done = stop(&mut p.head, Class::Read, CommandBuf::new().encode(0, parts)).unwrap();
    let reply = String::from_utf8(done.reply).unwrap();
    assert!(reply.starts_with("*2\r\n*1\r\n+"), "{reply}");
    assert!(reply.contains("\r\n-ERR the script ran for too long"), "{reply}");
    // It tells nobody of its only key, which would be a change, while a replica is copied.
    while !p.head.engine.prepare_copy() {
        p.head.pump();
    }
    let own = encode(&["EVAL", "while true do redis.call('GET', KEYS[1]) end", "1", "a"]);
    let parts = [&b"CONCORD.EXEC"[..], &question, &own, &question];
    let done = stop(&mut p.head, Class::Write, CommandBuf::new().encode(0, parts)).unwrap();
    assert!(done.stopped && done.reply.starts_with(b"-ERR the script ran for too long"));
    p.follower.run(Class::Write, &done.effect.unwrap());
    p.head.engine.end_copy();
    // Not where something was done before it: a key that was due is gone at this replica alone.
    p.write(&["SET", "k", "v", "PX", "1000"]);
    p.head.context.now_ms += 2_000;
    assert_eq!(stop(&mut p.head, Class::Write, &encode(&["EVAL", endless, "1", "k"])), None);
    assert!(p.head.redis().lost_reason().is_some() && p.head.engine.is_poisoned());
}

#[test]
fn digests_are_told_as_of_before_and_behind_a_script() {
    let mut p = Pair::new();
    let ask =
        |key: &[u8]| CommandBuf::new().encode(2, [&b"DEBUG"[..], b"DIGEST-VALUE", key]).to_vec();
    let mut run = |script: &str, keys: &str| {
        let script = match keys {
            "1" => encode(&["EVAL", script, "1", "a"]),
            _ => any(&["EVAL", script, "0"]),
        };
        let parts = [&b"CONCORD.EXEC"[..], &ask(b"a"), &script, &ask(b"a")];
        let command = CommandBuf::new().encode(0, parts).to_vec();
        let reply = p.write_both(command, &["EXEC"]);
        let lines: Vec<String> = reply.lines().map(str::to_string).collect();
        assert_eq!((&lines[0][..], &lines[1][..], &lines[4][..]), ("*3", "*1", "*1"), "{reply}");
        (lines[2].clone(), lines[3].clone(), lines[5].clone())
    };
    let none = format!("+{}", "0".repeat(40));
    let (before, said, behind) = run("return redis.call('SET', KEYS[1], 1, 'PX', 1000)", "1");
    assert_eq!((before, &said[..]), (none.clone(), "+OK"));
    assert_ne!(behind, none);
    let (before, said, same) = run("return redis.call('INCRBY', 'a', 0)", "0");
    assert_eq!((before, &said[..]), (behind.clone(), ":1"));
    assert_eq!(same, behind);
    // One that is due is gone before.
    p.head.context.now_ms += 2_000;
    p.follower.context.now_ms += 2_000;
    let parts = [&b"CONCORD.EXEC"[..], &ask(b"a"), &any(&["EVAL", "return 1", "0"]), &ask(b"a")];
    let reply = p.write_both(CommandBuf::new().encode(0, parts).to_vec(), &["EXEC"]);
    assert_eq!(reply, format!("*3\r\n*1\r\n{none}\r\n:1\r\n*1\r\n{none}\r\n"));
    p.assert_equal(&["all"]);
}

/// The reply of a script that nested deeper than 32 was taken for that to the whole transaction.
#[test]
fn bug_18_36_deep_reply_in_a_transaction_is_an_element() {
    let mut p = Pair::new();
    let deep = "local t = {} for i = 1, 40 do t = {t} end return t";
    let reply = p.exec(&[&["SET", "a", "1"], &["EVAL", deep, "0"], &["GET", "a"]]);
    let deep = format!("{}*0\r\n", "*1\r\n".repeat(40));
    assert_eq!(reply, format!("*3\r\n+OK\r\n{deep}$1\r\n1\r\n"));
}

/// What hangs on addresses and on the collector was another thing at each server.
#[test]
fn bug_18_37_objects_are_shown_alike_at_all_replicas() {
    let mut p = Pair::new();
    for script in [
        "redis.call('SET', 'a', tostring({}) .. tostring(function() end) .. tostring(redis))",
        "redis.call('SET', 'b', _G.tostring({}) .. loadstring('return tostring({})')())",
        "redis.call('SET', 'c', gcinfo() + collectgarbage('count') + _G.collectgarbage())",
    ] {
        p.eval(&[script, "0"]);
    }
    p.assert_equal(&["a", "b", "c", "all"]);
    let shown = "local t = {} return {tostring(t), tostring(t), tostring(12), tostring(nil), \
                 tostring(setmetatable({}, {__tostring = function() return 'own' end}))}";
    let reply = p.eval(&[shown, "0"]);
    let lines: Vec<&str> = reply.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
    assert_eq!(lines, ["table: 0x000000000001", "table: 0x000000000001", "12", "nil", "own"]);
}

/// A server's own answer hangs on its allocator, and on what the value was before.
#[test]
fn memory_usage_in_a_script_is_alike_at_all_replicas() {
    let mut p = Pair::new();
    p.eval(&[
        "redis.call('SET', 'text', ('x'):rep(1000)) redis.call('RPUSH', 'list', 'a', 'b')",
        "0",
    ]);
    let script = "local sizes = {} for i, key in ipairs(KEYS) do sizes[i] = redis.call('memory', 'usage', key) \
                  end redis.call('SET', 'sum', sizes[1] + sizes[2]) return sizes";
    let reply = p.eval(&[script, "3", "text", "list", "none"]);
    assert_eq!(reply, "*3\r\n:1068\r\n:196\r\n$-1\r\n");
    p.assert_equal(&["text", "list", "sum", "all"]);
    let reply = p.eval(&["return redis.call('MEMORY', 'DOCTOR')", "0"]);
    assert!(reply.starts_with("-ERR 'memory' is not supported in scripts here"), "{reply}");
}

#[test]
fn what_scripts_may_not_change_says_so() {
    let mut p = Pair::new();
    for script in [
        "setmetatable(_G, {})",
        "local g = getmetatable(_G) g.__index = {}",
        "_G.redis = 1",
        "redis.call = function() return 1 end",
        "setmetatable(redis, {})",
        "local g = getmetatable(redis) g.__newindex = nil",
        "loadstring('setmetatable(_G, {})')()",
        "setmetatable(getmetatable(_G), {})",
    ] {
        let reply = p.eval(&[script, "0"]);
        assert!(reply.contains("Attempt to modify a readonly table"), "{script}: {reply}");
    }
    let script = "local t = setmetatable({}, {__index = function() return 7 end}) return t.x";
    assert_eq!(p.eval(&[script, "0"]), ":7\r\n");
    assert_eq!(
        p.eval(&["return {type(redis.call), type(redis.log), type(_G.redis)}", "0"]),
        "*3\r\n$8\r\nfunction\r\n$8\r\nfunction\r\n$5\r\ntable\r\n"
    );
}

#[test]
fn bug_18_14_what_a_script_publishes_is_bounded() {
    let mut p = Pair::new();
    let publish = "for i = 1, ARGV[2] do redis.call('PUBLISH', 'c', string.rep('m', ARGV[1])) end";
    let published = |reply: String| reply.matches("$7\r\npublish").count();
    let mib = 1 << 20;
    let reply = p.eval(&[publish, "0", &(mib + 1).to_string(), "1"]);
    assert!(reply.starts_with("-ERR value is larger than 1 MiB"), "{reply:.200}");
    assert_eq!(published(p.eval(&[publish, "0", &mib.to_string(), "3"])), 3);
    let reply = p.eval(&[publish, "0", &mib.to_string(), "4"]);
    assert!(reply.contains("-ERR a script publishes more than 4 MiB"));
    assert_eq!(published(reply), 3);
}

#[test]
fn bug_18_15_a_script_that_was_not_compiled_is_not_known() {
    let mut p = Pair::new();
    for script in ["#!lua flags=bad\nreturn 1", "#!js\nreturn 1", "return ("] {
        let first = p.eval(&[script, "0"]);
        assert!(first.starts_with("-ERR") && !first.contains("NOSCRIPT"), "{first}");
        assert_eq!(p.eval(&[script, "0"]), first);
    }
}

/// redis-server 7.0.15 ends by the first of these.
#[test]
fn bug_18_31_an_error_without_a_text_ends_no_server() {
    let mut p = Pair::new();
    for raised in
        ["{x = 1}", "{}", "setmetatable({}, {__index = function() error('x') end})", "{err = {}}"]
    {
        let script = format!("redis.call('INCR', 'n') error({raised})");
        let reply = p.eval(&[&script, "0"]);
        assert!(reply.starts_with("-ERR unknown error"), "{raised}: {reply}");
        let caught = format!("local ok, e = pcall(function() error({raised}) end) return type(e)");
        if !raised.contains("__index") {
            assert_eq!(p.eval(&[&caught, "0"]), "$5\r\ntable\r\n");
        }
        let within = format!("return coroutine.wrap(function() error({raised}) end)()");
        assert!(p.eval(&[&within, "0"]).starts_with("-ERR unknown error"));
    }
    for (raised, text) in
        [("{err = 'MY error'}", "-MY error"), ("{err = 5}", "-5"), ("nil", "-ERR nil")]
    {
        let reply = p.eval(&[&format!("error({raised})"), "0"]);
        assert!(reply.starts_with(text), "{raised}: {reply}");
    }
    assert_eq!(p.eval(&["return 1, 2", "0"]), ":1\r\n");
    assert_eq!(p.eval(&["return nil", "0"]), "$-1\r\n");
    assert_eq!(p.write(&["GET", "n"]), "$1\r\n4\r\n");
}

/// In the place of the interpreter's compiler.
pub(super) fn compile(code: &[u8]) -> Result<(), Vec<u8>> {
    let is_wrong = code.starts_with(b"return 1 end)");
    if is_wrong {
        Err(b"ERR Error compiling script (new function): \"no\"\nLua".to_vec())
    } else {
        Ok(())
    }
}

/// The server would end by it, as by an error without a text: it closes the function that it stands
/// in.
#[test]
fn bug_18_34_a_text_that_is_no_script_by_itself_is_not_executed() {
    let mut p = Pair::new();
    let text = "return 1 end), error({}), (function()";
    for script in [text.to_string(), format!("#!lua flags=allow-oom\n{text}")] {
        for _ in 0..2 {
            let reply = p.eval(&[&script, "0"]);
            assert_eq!(reply, "-ERR Error compiling script (new function): \"no\" Lua\r\n");
        }
    }
    assert_eq!(p.eval(&["return 1", "0"]), ":1\r\n");
}

#[test]
fn bug_18_33_a_reply_that_nests_deep_ends_no_replica() {
    let mut p = Pair::new();
    for script in [
        "local a = {} local b = {a} a[1] = b return a",
        "local a = {} for i = 1, 5000 do a = {a} end return a",
        "local a = {} for i = 1, 200 do a = {map = {k = a}} end return a",
    ] {
        let reply = p.eval(&[script, "0"]);
        assert!(reply.ends_with("-ERR reached lua stack limit\r\n"), "{reply}");
    }
    let nested = "local a = {} for i = 1, 100 do a = {a} end return {a, parent = a}";
    assert_eq!(p.eval(&[nested, "0"]), "*1\r\n".repeat(101) + "*0\r\n");
    let parts = exec(&[&["EVAL", "local a = {} for i = 1, 5000 do a = {a} end return a", "0"]]);
    assert!(p.write_encoded(parts, &["EXEC"]).ends_with("stack limit\r\n"));
}
