//! The commands by family: what the comparison with a real server (`tests/against_redis.rs`)
//! cannot show, and one script each that needs no server.

use super::*;
use crate::command::CommandBuf;
use crate::ttl::step_of;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};

fn call(memory: &mut Memory, class: Class, context: &Context, args: &[&[u8]]) -> String {
    let key_index = u8::from(args.len() > 1);
    let bytes = CommandBuf::new().encode(key_index, args.iter().copied()).to_vec();
    let commands = [Command::parse(&bytes).unwrap()];
    let step = step_of(class, commands[0].key(), &commands);
    let mut reply = Vec::new();
    memory.submit(context, &step, &mut reply);
    assert_eq!(resp::value_length(&reply), Some(reply.len()));
    String::from_utf8_lossy(&reply).replace("\r\n", " ").trim().to_string()
}

fn run(memory: &mut Memory, line: &str) -> String {
    let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let limit = memory.memory_bytes_max();
    let memory_full = limit != 0 && memory.memory_bytes() > limit;
    call(memory, Class::Write, &Context { memory_full, ..Context::default() }, &args)
}

/// `command => reply`, one a line.
fn script(memory: &mut Memory, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (command, expected) = line.split_once(" => ").unwrap();
        assert_eq!(run(memory, command), expected, "{line}");
    }
}

#[test]
fn strings_compare_and_set_and_compare_and_delete() {
    script(
        &mut Memory::new(0),
        "CAS k a b => :-1
         SET k a => +OK
         CAS k x b => :0
         CAS k a b => :1
         SET k c IFEQ x => $-1
         SET k c IFEQ b GET => $1 b
         GET k => $1 c
         SET none c IFEQ b => $-1
         SET k d NX IFEQ c => -ERR syntax error
         DELEX k IFEQ x => :0
         DELEX k IFEQ c => :1
         CAD k c => :-1
         SET k d => +OK
         CAD k c => :0
         CAD k d => :1
         RPUSH l a => :1
         CAS l a b => -WRONGTYPE Operation against a key holding the wrong kind of value
         DELEX l => :1
         DBSIZE => :0",
    );
}

#[test]
fn strings_count_and_add_as_redis_does() {
    script(
        &mut Memory::new(0),
        "INCR n => :1
         INCRBY n 9223372036854775806 => :9223372036854775807
         INCR n => -ERR increment or decrement would overflow
         DECRBY n -9223372036854775808 => -ERR decrement would overflow
         INCRBYFLOAT f 0.1 => $3 0.1
         INCRBYFLOAT f 0.2 => $3 0.3
         INCRBYFLOAT f inf => -ERR increment would produce NaN or Infinity
         APPEND s ab => :2
         SETRANGE s 3 d => :4
         GETRANGE s -2 -1 => $2 \0d
         SETBIT s 7 0 => :1
         BITCOUNT s 0 0 => :2",
    );
}

#[test]
fn bug_16_11_no_string_is_made_longer_than_a_reply() {
    let memory = &mut Memory::new(0);
    script(
        memory,
        "SETRANGE s 536870911 x => -ERR string exceeds maximum allowed size (proto-max-bulk-len)
         SETRANGE s 67108800 x => -ERR string exceeds maximum allowed size (proto-max-bulk-len)
         SETBIT s 4294967295 1 => -ERR string exceeds maximum allowed size (proto-max-bulk-len)
         BITFIELD s SET u8 #67108800 1 => -ERR string exceeds maximum allowed size (proto-max-bulk-len)
         EXISTS s => :0
         GETBIT s 4294967295 => :0
         SETBIT s 4294967296 1 => -ERR bit offset is not an integer or out of range
         SETRANGE s 67108799 x => :67108800
         APPEND s y => -ERR string exceeds maximum allowed size (proto-max-bulk-len)
         SETRANGE s 0 abc => :67108800
         GETRANGE s 0 2 => $3 abc
         BITCOUNT s => :14",
    );
}

#[test]
fn hashes_keep_the_order_of_their_fields() {
    script(
        &mut Memory::new(0),
        "HSET h a 1 b 2 c 3 => :3
         HSET h a 9 d 4 => :1
         HDEL h b x => :1
         HKEYS h => *3 $1 a $1 c $1 d
         HVALS h => *3 $1 9 $1 3 $1 4
         HINCRBY h a -10 => :-1
         HSET h a => -ERR wrong number of arguments for 'hset' command
         HDEL h a c d => :3
         EXISTS h => :0",
    );
}

#[test]
fn lists_remove_and_find_from_both_ends() {
    script(
        &mut Memory::new(0),
        "RPUSH l a b a c a => :5
         LPOS l a RANK -1 => :4
         LPOS l a COUNT 0 MAXLEN 3 => *2 :0 :2
         LREM l -2 a => :2
         LRANGE l 0 -1 => *3 $1 a $1 b $1 c
         LINSERT l AFTER b x => :4
         LTRIM l 1 2 => +OK
         LPOP l 5 => *2 $1 b $1 x
         LPOP l 5 => *-1
         EXISTS l => :0",
    );
}

#[test]
fn sorted_sets_range_by_rank_score_and_name() {
    script(
        &mut Memory::new(0),
        "ZADD z 1 a 2 b 3 c => :3
         ZADD z GT CH 0 a 5 b => :1
         ZRANGE z 0 -1 => *3 $1 a $1 c $1 b
         ZRANGE z (1 +inf BYSCORE LIMIT 1 1 => *1 $1 b
         ZRANGE z +inf -inf BYSCORE REV LIMIT 0 2 => *2 $1 b $1 c
         ZADD z INCR 0.5 a => $3 1.5
         ZADD z XX INCR 1 none => $-1
         ZPOPMAX z => *2 $1 b $1 5
         ZREMRANGEBYRANK z 0 -1 => :2
         EXISTS z => :0
         ZADD z inf m => :1
         ZINCRBY z -inf m => -ERR resulting score is not a number (NaN)
         ZADD z 1e400 m => -ERR value is not a valid float",
    );
}

#[test]
fn random_choices_are_decided_by_the_entropy_alone() {
    let draw = |entropy: u64| {
        let mut memory = Memory::new(0);
        for member in 0..50 {
            run(&mut memory, &alloc::format!("SADD s {member}"));
        }
        let context = Context { entropy, ..Context::default() };
        let popped = call(&mut memory, Class::Write, &context, &[b"SPOP", b"s", b"5"]);
        (popped, memory.digest())
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

/// A choice without repetition has distinct elements and reaches all.
#[test]
fn distinct_choice_reaches_all_elements() {
    let mut rng = Rng::new(3);
    let mut reached = BTreeSet::new();
    for _ in 0..200 {
        let chosen = random_indices(&mut rng, 7, 20);
        let distinct: BTreeSet<usize> = chosen.iter().copied().collect();
        assert_eq!(distinct.len(), 7);
        reached.extend(distinct);
    }
    assert_eq!(reached.len(), 20);
    assert_eq!(random_indices(&mut rng, 30, 20).len(), 20);
    assert_eq!(random_indices(&mut rng, -30, 20).len(), 30);
    assert_eq!(random_count(b"-9000000000"), Err(OUT_OF_RANGE));
}

/// All elements that a scan returns; `change` runs between two calls.
fn scan_all(
    memory: &mut Memory,
    command: &str,
    mut change: impl FnMut(&mut Memory),
) -> Vec<String> {
    let mut found = Vec::new();
    let mut cursor = String::from("0");
    for _ in 0..10_000 {
        let reply = run(memory, &command.replace("CURSOR", &cursor));
        let mut words = reply.split(' ');
        cursor = words.nth(2).unwrap().to_string();
        found.extend(words.skip(2).step_by(2).map(str::to_string));
        if cursor == "0" {
            return found;
        }
        change(memory);
    }
    panic!("the scan does not end");
}

#[test]
fn a_key_that_is_there_during_a_whole_scan_is_returned() {
    let mut memory = Memory::new(0);
    for key in 0..3000 {
        run(&mut memory, &alloc::format!("SET stay{key} v"));
        run(&mut memory, &alloc::format!("SET go{key} v"));
    }
    let mut round = 0;
    let found = scan_all(&mut memory, "SCAN CURSOR MATCH stay* COUNT 50", |memory| {
        for key in 0..20 {
            run(memory, &alloc::format!("DEL go{}", round * 20 + key));
            run(memory, &alloc::format!("SET new{} v", round * 20 + key));
        }
        round += 1;
    });
    let distinct: BTreeSet<&String> = found.iter().collect();
    assert_eq!(distinct.len(), 3000);
    assert!(round > 20, "the scan took several calls");
}

#[test]
fn an_element_that_is_there_during_a_whole_scan_is_returned() {
    for (add, command) in [("SADD c m", "SSCAN"), ("HSET c m", "HSCAN"), ("ZADD c 1 m", "ZSCAN")] {
        let mut memory = Memory::new(0);
        for at in 0..2000 {
            let value = if command == "HSCAN" { " v" } else { "" };
            run(&mut memory, &alloc::format!("{add}{at}{value}"));
        }
        let remove = if command == "HSCAN" {
            "HDEL"
        } else if command == "SSCAN" {
            "SREM"
        } else {
            "ZREM"
        };
        let mut round = 1000;
        let line = alloc::format!("{command} c CURSOR COUNT 10");
        let found = scan_all(&mut memory, &line, |memory| {
            for _ in 0..10 {
                run(memory, &alloc::format!("{remove} c m{round}"));
                round += 1;
            }
        });
        let stayed = found.iter().filter_map(|m| m.strip_prefix('m')?.parse::<u32>().ok());
        let stayed: BTreeSet<u32> = stayed.filter(|at| *at < 1000).collect();
        assert_eq!(stayed.len(), 1000, "{command}");
        assert!(round > 1100, "{command} took several calls");
    }
}

#[test]
fn bytes_are_counted_exactly_and_return_to_zero() {
    let mut memory = Memory::new(0);
    let mut rng = Rng::new(1);
    let lines = [
        "SET K 123",
        "APPEND K 45",
        "SETRANGE K 9 x",
        "SETBIT K 99 1",
        "HSET K f 1 g 22",
        "HDEL K f",
        "RPUSH K a bb",
        "LSET K 0 xyz",
        "LREM K 0 a",
        "LINSERT K AFTER a long",
        "LPOP K",
        "LTRIM K 1 3",
        "SADD K a b c",
        "SREM K a",
        "SPOP K",
        "ZADD K 1 a 2 b",
        "ZREM K a",
        "ZINCRBY K 1 b",
        "DEL K",
        "GETDEL K",
        "INCR K",
        "HINCRBYFLOAT K f 1.5",
        "SET K v",
        "HSETNX K h v",
        "ZPOPMIN K",
    ];
    for _ in 0..20_000 {
        let line = lines[rng.below(lines.len() as u64) as usize];
        run(&mut memory, &line.replace('K', &alloc::format!("k{}", rng.below(5))));
    }
    for key in 0..5 {
        run(&mut memory, &alloc::format!("DEL k{key}"));
    }
    assert_eq!((memory.keys(), memory.memory_bytes()), (0, 0));
}

/// Only commands that take memory are refused when it is used up.
#[test]
fn only_commands_that_take_memory_are_refused() {
    let mut memory = Memory::new(100);
    script(
        &mut memory,
        "SET k 0123456789012345678901234567890123456789 => +OK
         SET l v => -OOM command not allowed when used memory > 'maxmemory'.
         SET l => -ERR wrong number of arguments for 'set' command
         GETRANGE k 0 1 => $2 01
         DEL k => :1
         SET l v => +OK",
    );
}

/// Every command of the table is executed by the engine or the shim.
#[test]
fn every_table_command_is_executed() {
    let memory = Memory::new(0);
    let by_shim = [
        "setex",
        "psetex",
        "getex",
        "expire",
        "pexpire",
        "expireat",
        "pexpireat",
        "persist",
        "ttl",
        "pttl",
        "expiretime",
        "pexpiretime",
        "command",
        // As RENAMENX.
        "move",
        // By the interpreter that the shim is given.
        "eval",
        "eval_ro",
        "evalsha",
        "evalsha_ro",
        "fcall",
        "fcall_ro",
        // By the shim.
        "function",
    ];
    // A container executes its subcommands.
    for spec in memory.table.specs().iter().filter(|spec| !spec.name.contains('|')) {
        let has_handler = memory.handlers.contains_key(spec.name.to_ascii_uppercase().as_bytes());
        assert_eq!(has_handler, !by_shim.contains(&&*spec.name), "{}", spec.name);
    }
}

#[test]
fn unknown_commands_are_refused_and_several_keys_are_not() {
    script(
        &mut Memory::new(0),
        "Nosuch a b => -ERR unknown command 'Nosuch', with args beginning with: 'a' 'b'
         MSET a 1 b 2 => +OK
         MSET a 1 b => -ERR wrong number of arguments for 'mset' command
         MSETNX c 1 a 2 => :0
         MGET a b c => *3 $1 1 $1 2 $-1
         EXISTS a a c => :2
         DEL a b c => :2
         COMMAND BAD => -ERR unknown subcommand 'BAD'. Try COMMAND HELP.",
    );
    let mut memory = Memory::new(0);
    assert!(
        run(&mut memory, "COMMAND INFO get").starts_with("*1 *10 $3 get :2 *2 +readonly +fast")
    );
    assert!(run(&mut memory, "COMMAND DOCS get").contains("$6 string"));
}

#[test]
fn memory_usage_is_what_a_key_takes_of_what_is_counted() {
    let mut memory = Memory::new(0);
    let mut call = |line: &[&[u8]]| {
        let bytes = CommandBuf::new().encode(0, line.iter().copied()).to_vec();
        let command = Command::parse(&bytes).unwrap();
        let mut reply = Vec::new();
        memory.execute(Class::Write, &command, &Context::default(), 0, &mut reply);
        (alloc::string::String::from_utf8(reply).unwrap(), memory.store.used_bytes())
    };
    let (_, used) = call(&[b"SET", b"key", &[b'v'; 100]]);
    let usage = [&b"memory"[..], b"usage", b"key"];
    assert_eq!(call(&usage).0, format!(":{used}\r\n"));
    let (_, more) = call(&[b"HSET", b"h", b"field", b"value"]);
    assert_eq!(
        call(&[b"MEMORY", b"USAGE", b"h", b"SAMPLES", b"0"]).0,
        format!(":{}\r\n", more - used)
    );
    assert_eq!(call(&[b"MEMORY", b"USAGE", b"nosuch"]).0, "$-1\r\n");
    assert_eq!(call(&[b"MEMORY", b"USAGE", b"h", b"SAMPLES", b"-1"]).0, "-ERR syntax error\r\n");
    assert_eq!(call(&[b"MEMORY", b"USAGE", b"h", b"x"]).0, "-ERR syntax error\r\n");
    assert!(call(&[b"MEMORY", b"DOCTOR"]).0.starts_with("-ERR unknown subcommand"));
}

#[test]
fn sort_weighs_by_strings_and_fields_and_stores_a_list() {
    script(
        &mut Memory::new(0),
        "RPUSH l 3 10 1 2 => :4
         SORT l => *4 $1 1 $1 2 $1 3 $2 10
         SORT l DESC LIMIT 1 2 => *2 $1 3 $1 2
         SORT l ALPHA => *4 $1 1 $2 10 $1 2 $1 3
         MSET w1 9 w2 8 w3 7 w10 6 => +OK
         SORT l BY w* => *4 $2 10 $1 3 $1 2 $1 1
         SORT l BY nosort LIMIT 0 2 GET # GET w* => *4 $1 3 $1 7 $2 10 $1 6
         HSET h1 f one => :1
         SORT l LIMIT 0 2 GET h*->f STORE d => :2
         LRANGE d 0 -1 => *2 $3 one $0 
         SORT nosuch STORE d => :0
         EXISTS d => :0
         RPUSH l x => :5
         SORT l => -ERR One or more scores can't be converted into double
         SORT_RO l STORE d => -ERR syntax error
         BITFIELD b SET u8 0 255 GET i8 0 OVERFLOW FAIL INCRBY u8 0 1 => *3 :0 :-1 $-1
         SET a abc => +OK
         BITOP XOR b a a => :3
         OBJECT ENCODING a => $6 embstr",
    );
}

/// A command that looks at too much is refused and changes nothing.
#[test]
fn bug_16_16_costly_command_is_refused_unchanged() {
    let mut memory = Memory::new(0).with_work_max(100);
    for element in 0..10 {
        run(&mut memory, &format!("SADD s {element}"));
        run(&mut memory, &format!("ZADD z 1 {element}"));
        run(&mut memory, &format!("RPUSH l {element}"));
    }
    run(&mut memory, "SET d old");
    let (five, ten) = (" s".repeat(5), " s".repeat(10));
    let refused = "-ERR too much work for one command or script";
    for (line, reply) in [
        (format!("SUNIONSTORE d{five}"), ":10"),
        (format!("SUNIONSTORE d{five} s"), refused),
        (format!("SUNION{five} s"), refused),
        (format!("SINTERSTORE d{ten}"), ":10"),
        (format!("SINTERSTORE d{ten} s"), refused),
        (format!("SINTERSTORE d{ten} s nothing"), ":0"),
        (format!("SINTERCARD 11{ten} s"), refused),
        (format!("SDIFFSTORE d{ten} s"), refused),
        (format!("SDIFFSTORE d nothing{ten} s"), ":0"),
        ("ZUNIONSTORE d 2 z z".to_string(), ":10"),
        ("ZUNIONSTORE d 3 z z z".to_string(), refused),
        (format!("ZINTERSTORE d 11{ten} z"), refused),
        (format!("ZDIFFSTORE d 11 z{ten}"), refused),
        (format!("SORT l{} STORE d", " GET x*".repeat(8)), ":80"),
        (format!("SORT l{} STORE d", " GET x*".repeat(9)), refused),
    ] {
        run(&mut memory, "SET d old");
        let got = run(&mut memory, &line);
        assert!(got.starts_with(reply), "{line}: {got}");
        if reply == refused {
            assert_eq!(run(&mut memory, "GET d"), "$3 old", "{line}");
        }
    }
}

/// The commands of a script share what they may look at.
#[test]
fn bug_16_16_script_commands_share_a_budget() {
    let mut memory = Memory::new(0).with_work_max(100);
    (0..10).for_each(|element| {
        run(&mut memory, &format!("SADD s {element}"));
    });
    let half = format!("SUNIONSTORE d{}", " s".repeat(3));
    memory.begin_script();
    assert_eq!(run(&mut memory, &half), ":10");
    assert!(run(&mut memory, &half).starts_with("-ERR too much work"));
    assert_eq!(run(&mut memory, "FLUSHALL"), "+OK");
    assert_eq!(run(&mut memory, "SET k v"), "+OK", "what is not counted goes on");
    (0..11).for_each(|element| {
        run(&mut memory, &format!("SADD s {element}"));
    });
    assert!(run(&mut memory, &half).starts_with("-ERR too much work"));
    memory.end_script(Class::Write, &mut Vec::new());
    assert_eq!(run(&mut memory, &half), ":11", "the next operation has its own");
}

/// Reads end once their replies are longer than any may be.
#[test]
fn bug_16_16_reads_end_at_the_reply_limit() {
    let mut memory = Memory::new(0);
    run(&mut memory, &format!("SET k {}", "v".repeat(8 << 20)));
    let long = run(&mut memory, &format!("MGET{}", " k".repeat(9)));
    assert!(long.starts_with("-ERR the reply is longer"), "{}", long.len());
    let get = CommandBuf::new().encode(1, [&b"GET"[..], b"k"]).to_vec();
    let set = CommandBuf::new().encode(1, [&b"SET"[..], b"k", b"w"]).to_vec();
    let mut commands: Vec<Command<'_>> = (0..9).map(|_| Command::parse(&get).unwrap()).collect();
    commands.push(Command::parse(&set).unwrap());
    let step = step_of(Class::Write, Some(b"k"), &commands);
    let mut reply = Vec::new();
    memory.submit(&Context::default(), &step, &mut reply);
    assert_eq!(reply, NOT_DONE_TOO_LONG, "nothing of a transaction is done then");
    for _ in 0..12 {
        memory.begin_script();
        assert!(run(&mut memory, "GET k").starts_with("$8388608"), "each script begins anew");
        memory.end_script(Class::Read, &mut Vec::new());
    }
}

#[test]
fn bug_16_16_each_command_of_a_transaction_has_its_own_work() {
    let mut memory = Memory::new(0).with_work_max(100);
    (0..10).for_each(|element| {
        run(&mut memory, &format!("SADD s {element}"));
    });
    let args: Vec<&[u8]> = core::iter::once(&b"SUNIONSTORE"[..]).chain([&b"s"[..]; 5]).collect();
    let bytes = CommandBuf::new().encode(0, args).to_vec();
    let commands = [Command::parse(&bytes).unwrap(); 3];
    let step = step_of(Class::Write, None, &commands);
    let mut reply = Vec::new();
    memory.submit(&Context::default(), &step, &mut reply);
    assert_eq!(reply, b":10\r\n:10\r\n:10\r\n");
}

/// A script that executes its arguments as a command.
fn calls(
    script: &crate::script::Script<'_>,
    host: &mut dyn crate::script::Host,
    reply: &mut Vec<u8>,
) -> crate::script::Ran {
    host.call(false, script.args, reply);
    crate::script::Ran::Ended
}

fn exec_with_scripts(memory: Memory, lines: &[&str]) -> Vec<u8> {
    let mut engine = crate::Shimmed::new(memory).with_scripts(calls);
    let parts: Vec<Vec<u8>> = lines
        .iter()
        .map(|line| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let key_index = u8::from(matches!(args[0], b"GET" | b"SET" | b"SADD"));
            CommandBuf::new().encode(key_index, args).to_vec()
        })
        .collect();
    let args = [&b"CONCORD.EXEC"[..]].into_iter().chain(parts.iter().map(Vec::as_slice));
    let exec = CommandBuf::new().encode(0, args).to_vec();
    let mut reply = Vec::new();
    let command = Command::parse(&exec).unwrap();
    crate::Engine::submit(&mut engine, &Context::default(), Class::Write, &command, &mut reply);
    reply
}

/// Replies beside a script in a transaction are bounded together.
#[test]
fn bug_18_10_transaction_replies_beside_a_script_are_bounded() {
    let mut memory = Memory::new(0);
    run(&mut memory, &format!("SET k {}", "v".repeat(30 << 20)));
    let lines = ["GET k", "EVAL x 0 GET k", "GET k", "EVAL x 0 GET k", "EVAL x 0 GET k", "GET k"];
    let reply = exec_with_scripts(memory, &lines);
    assert!(reply.len() < 100 << 20, "{}", reply.len());
    let end = String::from_utf8_lossy(&reply[reply.len() - 200..]).into_owned();
    assert_eq!(end.matches("-ERR the reply is longer than 64 MiB").count(), 3, "{end}");
}

#[test]
fn bug_18_10_commands_beside_a_script_share_their_work() {
    let mut memory = Memory::new(0).with_work_max(100);
    (0..10).for_each(|element| {
        run(&mut memory, &format!("SADD s {element}"));
    });
    let union = "SUNION s s s";
    let script = format!("EVAL x 0 {union}");
    let reply = exec_with_scripts(memory, &[union, &script, union, "SET k v"]);
    let text = String::from_utf8(reply).unwrap();
    assert!(text.starts_with("*4\r\n*10\r\n"), "{text}");
    assert_eq!(text.matches("-ERR too much work").count(), 1, "{text}");
    assert!(text.ends_with("+OK\r\n"), "{text}");
}

#[test]
fn bug_18_12_bitop_looks_at_its_longest_string_once_for_each() {
    let mut memory = Memory::new(0).with_work_max(100);
    // Four elements.
    run(&mut memory, &format!("SET k {}", "v".repeat(512)));
    let bitop = |keys: usize| format!("BITOP OR d{}", " k".repeat(keys));
    assert_eq!(run(&mut memory, &bitop(25)), ":512");
    assert!(run(&mut memory, &bitop(26)).starts_with("-ERR too much work"));
    // A short one counts as the longest: the result has its length.
    let short = format!("BITOP OR d k{}", " none".repeat(25));
    assert!(run(&mut memory, &short).starts_with("-ERR too much work"));
}

#[test]
fn bug_18_14_what_a_script_publishes_is_bounded() {
    let publish = |bytes: usize| format!("EVAL x 0 PUBLISH c {}", "m".repeat(bytes));
    let run = |lines: &[String]| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        String::from_utf8(exec_with_scripts(Memory::new(0), &lines)).unwrap()
    };
    let reply = run(&[publish((1 << 20) + 1)]);
    assert!(reply.starts_with("*1\r\n-ERR value is larger than 1 MiB"));
    let reply = run(&alloc::vec![publish(1 << 20); 5]);
    assert!(reply.starts_with(">9\r\n"));
    assert_eq!(reply.matches("-ERR a script publishes more than 4 MiB").count(), 2);
}

#[test]
fn what_looks_at_much_is_refused_before_it_changes_anything() {
    let mut memory = Memory::new(0).with_work_max(1000);
    let refused = |reply: String, line: &str| {
        assert!(reply.starts_with("-ERR too much work"), "{line}: {reply}");
    };
    let long = "x".repeat(200);
    run(&mut memory, &format!("MSET a {long} b {long}"));
    refused(run(&mut memory, "LCS a b"), "LCS");
    let many = "PFCOUNT 1 2 3 4 5 6 7 8";
    assert_eq!(run(&mut memory, "PFCOUNT 1 2 3 4 5 6 7"), ":0");
    refused(run(&mut memory, many), many);
    for member in 0..200 {
        run(&mut memory, &format!("GEOADD places 13.{member} 38 m{member}"));
    }
    refused(run(&mut memory, "GEOSEARCH places FROMLONLAT 13 38 BYRADIUS 99 km"), "GEOSEARCH");
    let store = "GEOSEARCHSTORE a places FROMLONLAT 13 38 BYRADIUS 99 km";
    refused(run(&mut memory, store), store);
    assert_eq!(run(&mut memory, "GEOSEARCH places FROMLONLAT 0 0 BYRADIUS 1 km"), "*0");
    assert_eq!(run(&mut memory, "STRLEN a"), ":200");
    // 20 bytes that say that they are 32 MiB.
    let mut payload = b"\0\xc3\x04\x80\x02\0\0\0\0a\xe0\0".to_vec();
    crate::rdb::seal(&mut payload);
    let args: [&[u8]; 5] = [b"RESTORE", b"a", b"0", &payload, b"REPLACE"];
    let reply = call(&mut memory, Class::Write, &Context::default(), &args);
    refused(reply, "RESTORE");
    assert_eq!(run(&mut memory, "STRLEN a"), ":200");
}

/// Executes a write of these commands.
fn write_all(memory: &mut Memory, lines: &[&str]) -> Vec<u8> {
    let encoded: Vec<Vec<u8>> = lines
        .iter()
        .map(|line| CommandBuf::new().encode(1, line.split(' ').map(str::as_bytes)).to_vec())
        .collect();
    let commands: Vec<Command<'_>> =
        encoded.iter().map(|bytes| Command::parse(bytes).unwrap()).collect();
    let mut reply = Vec::new();
    let step = step_of(Class::Write, None, &commands);
    memory.submit(&Context::default(), &step, &mut reply);
    reply
}

/// What would be answered by more than a reply may hold is refused before it takes effect.
#[test]
fn bug_22_111_a_write_with_too_long_a_reply_changes_nothing() {
    let mut memory = Memory::new(0);
    for n in 0..66 {
        let element = format!("{n:02}{}", "v".repeat(1 << 20));
        run(&mut memory, &format!("RPUSH l {element}"));
        run(&mut memory, &format!("ZADD z {n} {element}"));
        run(&mut memory, &format!("SADD s {element}"));
    }
    let before = (memory.digest(), memory.memory_bytes());
    for line in [
        "LPOP l 66",
        "RPOP l 64",
        "ZPOPMIN z 66",
        "ZPOPMAX z 64",
        "SPOP s 64",
        "LMPOP 1 l LEFT COUNT 66",
        "ZMPOP 1 z MAX COUNT 66",
    ] {
        assert_eq!(write_all(&mut memory, &[line]), NOT_DONE_TOO_LONG, "{line}");
        assert_eq!((memory.digest(), memory.memory_bytes()), before, "{line}");
    }
    let all = ["SET other v", "LRANGE l 0 -1", "DEL l", "INCR n"];
    assert_eq!(write_all(&mut memory, &all), NOT_DONE_TOO_LONG);
    assert_eq!((memory.digest(), memory.memory_bytes()), before);
    for line in ["LPOP l 63", "ZPOPMIN z 63", "SPOP s 63"] {
        let reply = write_all(&mut memory, &[line]);
        assert!(reply.starts_with(b"*") && reply.len() > 63 << 20, "{line}");
    }
    assert_eq!(run(&mut memory, "LLEN l"), ":3");
}
