//! A copy that is taken while writes go on is equal to its source when all chunks were installed.
#![allow(clippy::unwrap_used)]

use concord_core::rng::Rng;
use concord_engine::copy::{
    PLACE_END, continues, next_place, place_of_cursor, place_of_key, ticket_of_cursor,
};
use concord_engine::functions::{Declared, FunctionFlags};
use concord_engine::several::{Restricted, restrict};
use concord_engine::{Class, Command, CommandBuf, Context, Engine, Memory, Progress, Shimmed};

type Store = Shimmed<Memory>;

fn line(rng: &mut Rng, now_ms: u64) -> Vec<String> {
    let n = rng.below(200);
    let (m, v) = (rng.below(20), rng.next_u64() % 1000);
    let text = match n % 5 {
        0 => match rng.below(6) {
            0 => format!("DEL s{n}"),
            1 => format!("SET s{n} v{v} PX 30"),
            2 => format!("SET s{n} w{v} NX"),
            3 => format!("PERSIST s{n}"),
            _ => format!("APPEND s{n} {v}"),
        },
        1 if rng.chance(1, 3) => format!("HDEL h{n} f{m}"),
        1 => format!("HSET h{n} f{m} {v}"),
        2 if rng.chance(1, 2) => format!("RPOP l{n}"),
        2 => format!("LPUSH l{n} {v}"),
        // What comes out hangs on the order of the members.
        3 if rng.chance(1, 3) => format!("SPOP t{n}"),
        3 => format!("SADD t{n} m{m}"),
        _ if rng.chance(1, 3) => format!("ZREM z{n} m{m}"),
        _ => format!("ZINCRBY z{n} 1.5 m{m}"),
    };
    let text = match rng.below(300) {
        0 if rng.chance(1, 20) => "FLUSHALL".to_string(),
        1..=20 => format!("PEXPIREAT s{} {}", n / 5 * 5, now_ms + rng.below(40)),
        _ => text,
    };
    text.split(' ').map(String::from).collect()
}

/// Writes to a few large keys, of each type.
fn write_to_large(rng: &mut Rng) -> Vec<String> {
    let (n, m, v) = (rng.below(3), rng.below(400), rng.next_u64() % 1000);
    let text = match rng.below(12) {
        0 | 1 => format!("HSET lh{n} f{m} {v}"),
        2 => format!("RPUSH ll{n} a{v} b{v} c{v}"),
        3 => format!("LPOP ll{n}"),
        4 => format!("SADD lt{n} m{m} x{v}"),
        5 => format!("SPOP lt{n}"),
        6 | 7 => format!("ZADD lz{n} {v} m{m}"),
        8 => format!("APPEND ls{n} piece{v}"),
        9 => format!("XADD lx{n} * f {v}"),
        10 => format!("HDEL lh{n} f{m}"),
        _ => match rng.below(40) {
            0 => format!("DEL lh{n}"),
            1 => format!("SET lt{n} instead"),
            2 => format!("SADD lt{n} m"),
            3 => format!("RENAME lz{n} lz{n}"),
            4 => format!("XGROUP CREATE lx{n} g{m} 0"),
            5 => format!("XREADGROUP GROUP g{m} c COUNT 5 STREAMS lx{n} >"),
            6 => format!("PEXPIREAT ll{n} {}", 4_000 + v),
            7 => format!("PERSIST ll{n}"),
            _ => format!("SETRANGE ls{n} {m} xyz"),
        },
    };
    text.split(' ').map(String::from).collect()
}

/// An object was one part of a snapshot, however large: above 1 GiB the log could not be read
/// again, and all keys were lost; and each replica's loop stood still for as long as the part took.
/// It is copied in pieces now, and the pieces are of one point, whatever is written between them.
#[test]
fn bug_22_1_an_object_is_copied_in_pieces() {
    let (mut pieces, mut largest) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut source, mut target) = (Store::new(Memory::new(0)), Store::new(Memory::new(0)));
        let (mut position, mut cursor) = (0, 0);
        // What the target executes once no object is under way.
        let mut held: Vec<(Context, Vec<String>)> = Vec::new();
        while cursor < PLACE_END || ticket_of_cursor(cursor) != 0 {
            // At times nobody writes while an object is under way.
            let writes = if seed % 3 == 0 { 3 } else { 1 };
            for _ in 0..rng.below(writes) + if position == 0 { 12_000 } else { 0 } {
                position += 1;
                let now_ms = 1_000 + position / 4;
                let entropy = rng.next_u64();
                let context = Context { now_ms, entropy, position, ..Context::default() };
                let args = if rng.chance(1, 2) {
                    write_to_large(&mut rng)
                } else {
                    line(&mut rng, now_ms)
                };
                if args.len() == 1 {
                    continue;
                }
                write(&mut source, &context, &args);
                held.push((context, args));
            }
            assert!(source.prepare_copy());
            let mut chunk = Vec::new();
            assert_eq!(source.copy(cursor, 500, &mut chunk), Progress::Done);
            let goes_on = ticket_of_cursor(cursor) != 0;
            assert_eq!(goes_on, continues(&chunk));
            pieces += u32::from(goes_on);
            if !goes_on {
                for (context, args) in held.drain(..) {
                    let place =
                        place_of_key(args[if args[0] == "XGROUP" { 2 } else { 1 }].as_bytes());
                    let place = match &args[0][..] {
                        "XREADGROUP" => place_of_key(args[7].as_bytes()),
                        _ => place,
                    };
                    if place < place_of_cursor(cursor) {
                        write(&mut target, &context, &args);
                    }
                }
            }
            assert_eq!(target.install(&chunk), Ok(Progress::Done));
            largest = largest.max(chunk.len());
            cursor = next_place(&chunk).unwrap();
        }
        for (context, args) in held {
            write(&mut target, &context, &args);
        }
        assert_eq!(source.digest(), target.digest(), "seed {seed}");
        assert_eq!(source.memory_bytes(), target.memory_bytes(), "seed {seed}");
        assert_eq!(source.next_expiry_ms(), target.next_expiry_ms());
    }
    assert!(pieces > 2_000 && largest < 5_000, "{pieces} pieces of up to {largest} bytes");
}

/// Where all keys go while an object is under way, and where nobody knows of its ticket, the copy
/// begins at its place again and says so.
#[test]
fn an_object_that_is_not_under_way_any_more_begins_again() {
    let mut source = Store::new(Memory::new(0));
    let run = |source: &mut Store, line: &str| {
        let args: Vec<String> = line.split(' ').map(String::from).collect();
        write(source, &Context { now_ms: 1_000, position: 1, ..Context::default() }, &args);
    };
    let copy = |source: &mut Store, cursor| {
        let mut chunk = Vec::new();
        assert_eq!(source.copy(cursor, 100, &mut chunk), Progress::Done);
        (next_place(&chunk).unwrap(), continues(&chunk))
    };
    for n in 0..100 {
        run(&mut source, &format!("RPUSH l item{n}"));
    }
    let (begun, _) = copy(&mut source, 0);
    let (second, goes_on) = copy(&mut source, begun);
    assert!(goes_on && ticket_of_cursor(second) > ticket_of_cursor(begun));
    assert!(!copy(&mut source, begun).1, "that piece was given already");
    run(&mut source, "FLUSHALL");
    assert_eq!(copy(&mut source, second), (PLACE_END, false));
    for n in 0..100 {
        run(&mut source, &format!("RPUSH l item{n}"));
    }
    let (begun, _) = copy(&mut source, 0);
    source.end_copy();
    assert!(!copy(&mut source, begun).1);
}

/// A write to a large object of which pieces are copied had all the rest made at once: the loop
/// stood still for as long as the object was large. It waits, the rest is made step by step, and
/// the copy is as of before it.
#[test]
fn bug_22_7_write_to_an_object_under_way_waits_in_steps() {
    let store = || Store::new(Memory::new(0).with_ready_bytes(10_000));
    let (mut source, mut target) = (store(), store());
    let context = Context { now_ms: 1_000, position: 1, ..Context::default() };
    let line = |text: &str| -> Vec<String> { text.split(' ').map(String::from).collect() };
    for n in 0..5_000 {
        write(&mut source, &context, &line(&format!("HSET h field{n} value{n}")));
    }
    let before = source.digest();
    let copy = |source: &mut Store, target: &mut Store, from| {
        let mut chunk = Vec::new();
        assert_eq!(source.copy(from, 500, &mut chunk), Progress::Done);
        assert_eq!(target.install(&chunk), Ok(Progress::Done));
        next_place(&chunk).unwrap()
    };
    let mut cursor = copy(&mut source, &mut target, 0);
    let mut ask = |class, text: &str| {
        let mut buffer = CommandBuf::new();
        let bytes = buffer.encode(1, text.split(' ').map(str::as_bytes));
        let command = Command::parse(bytes).unwrap();
        source.submit(&context, class, &command, &mut Vec::new())
    };
    assert_eq!(ask(Class::Write, "HSET h field0 other"), Progress::Pending);
    assert_eq!(ask(Class::Read, "HGET h field0"), Progress::Pending, "in its turn");
    let (mut steps, mut replies) = (0, Vec::new());
    while replies.len() < 2 {
        assert!(source.works(), "nothing else wakes it");
        match source.poll() {
            Some(done) => replies.push(done.reply),
            None => steps += 1,
        }
    }
    assert_eq!(replies, [b":0\r\n".to_vec(), b"$5\r\nother\r\n".to_vec()]);
    assert!(steps > 10, "{steps} steps");
    while cursor != PLACE_END {
        cursor = copy(&mut source, &mut target, cursor);
    }
    assert_eq!(target.digest(), before);
    write(&mut target, &context, &line("HSET h field0 other"));
    assert_eq!(source.digest(), target.digest());
    // What goes as a whole leaves its value to the copy, and waits for nothing.
    let before = source.digest();
    let mut cursor = copy(&mut source, &mut target, 0);
    write(&mut source, &context, &line("DEL h"));
    while cursor != PLACE_END {
        cursor = copy(&mut source, &mut target, cursor);
    }
    assert_eq!(target.digest(), before);
}

fn write(engine: &mut Store, context: &Context, args: &[String]) {
    let keyless = args.len() == 1;
    let mut buffer = CommandBuf::new();
    let bytes = buffer.encode(u8::from(!keyless), args.iter().map(|arg| arg.as_bytes()));
    let command = Command::parse(bytes).unwrap();
    let mut reply = Vec::new();
    assert_eq!(engine.submit(context, Class::Write, &command, &mut reply), Progress::Done);
}

fn copy(seed: u64, bytes_max: usize) -> u32 {
    let mut rng = Rng::new(seed);
    let (mut source, mut target) = (Store::new(Memory::new(0)), Store::new(Memory::new(0)));
    let mut position = 0;
    let (mut copied_to, mut chunks, mut largest) = (0, 0, 0);
    while copied_to < PLACE_END {
        for _ in 0..rng.below(8) + if position == 0 { 2_000 } else { 0 } {
            position += 1;
            let now_ms = 1_000 + position;
            let entropy = rng.next_u64();
            let context = Context { now_ms, entropy, position, ..Context::default() };
            let args = line(&mut rng, now_ms);
            write(&mut source, &context, &args);
            let is_here = args.get(1).is_none_or(|key| place_of_key(key.as_bytes()) < copied_to);
            if is_here {
                write(&mut target, &context, &args);
            }
        }
        assert!(source.prepare_copy());
        let mut chunk = Vec::new();
        assert_eq!(source.copy(copied_to, bytes_max, &mut chunk), Progress::Done);
        assert_eq!(target.install(&chunk), Ok(Progress::Done));
        copied_to = next_place(&chunk).unwrap();
        chunks += 1;
        largest = largest.max(chunk.len());
    }
    source.end_copy();
    assert!(largest < bytes_max + 2_000, "up to {largest} bytes");
    assert_eq!(source.digest(), target.digest(), "seed {seed}");
    assert_eq!(source.memory_bytes(), target.memory_bytes());
    assert_eq!(source.next_expiry_ms(), target.next_expiry_ms());
    assert_eq!(target.clear(), Progress::Done);
    assert_eq!((target.keys(), target.memory_bytes(), target.next_expiry_ms()), (0, 0, None));
    chunks
}

#[test]
fn a_copy_taken_while_writes_go_on_is_equal() {
    let chunks: u32 = (0..50).map(|seed| copy(seed, 500)).sum();
    assert!(chunks > 500, "{chunks} chunks");
}

/// A transaction of searches in lists, of which there is work for some only.
fn searches(rng: &mut Rng) -> Vec<u8> {
    let mut args = vec![b"CONCORD.EXEC".to_vec()];
    for _ in 0..2 + rng.below(4) {
        let (key, v) = (format!("l{}", rng.below(40)), rng.below(4).to_string());
        let line = match rng.below(3) {
            0 => format!("RPUSH {key} {v} {v} {v} {v} {v} {v}"),
            1 => format!("LREM {key} 1 {v}"),
            _ => format!("LTRIM {key} 1 -1"),
        };
        args.push(CommandBuf::new().encode(1, line.split(' ').map(str::as_bytes)).to_vec());
    }
    CommandBuf::new().encode(0, args.iter().map(Vec::as_slice)).to_vec()
}

fn submit(engine: &mut Store, context: &Context, bytes: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    let command = Command::parse(bytes).unwrap();
    assert_eq!(engine.submit(context, Class::Write, &command, &mut reply), Progress::Done);
    reply
}

/// Which of a transaction's commands are refused since there is too much work hangs on none of the
/// others: at a replica that has some of their keys the same are.
#[test]
fn bug_16_16_copies_equal_where_transactions_are_partly_refused() {
    let (mut refused, mut parts) = (0, 0);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let limited = || Store::new(Memory::new(0).with_work_max(2));
        let (mut source, mut target) = (limited(), limited());
        let (mut position, mut copied_to) = (0, 0);
        while copied_to < PLACE_END {
            for _ in 0..rng.below(3) + if position == 0 { 100 } else { 0 } {
                position += 1;
                let context = Context { now_ms: 1_000, position, ..Context::default() };
                let bytes = searches(&mut rng);
                let reply = submit(&mut source, &context, &bytes);
                refused += reply.windows(8).filter(|text| text == b"too much").count();
                let is_here = |key: &[u8]| place_of_key(key) < copied_to;
                match restrict(&Command::parse(&bytes).unwrap(), &is_here) {
                    Restricted::All => drop(submit(&mut target, &context, &bytes)),
                    Restricted::Part(part) => {
                        parts += 1;
                        drop(submit(&mut target, &context, &part));
                    }
                    Restricted::Nothing => {}
                    Restricted::Entangled => panic!("each of its commands has one key"),
                }
            }
            assert!(source.prepare_copy());
            let mut chunk = Vec::new();
            assert_eq!(source.copy(copied_to, 700, &mut chunk), Progress::Done);
            assert_eq!(target.install(&chunk), Ok(Progress::Done));
            copied_to = next_place(&chunk).unwrap();
        }
        assert_eq!(source.digest(), target.digest(), "seed {seed}");
    }
    assert!(refused > 1_000 && parts > 100, "{refused} {parts}");
}

/// The library's only function has its code as its name.
fn named_by_code(code: &[u8], _cost: &mut u64) -> Result<Vec<Declared>, Vec<u8>> {
    let name = code.trim_ascii().to_vec();
    Ok(vec![Declared { name, description: None, flags: FunctionFlags::default() }])
}

/// A command on libraries, alone or beside others, of which some collide.
fn on_libraries(rng: &mut Rng) -> Vec<u8> {
    let (n, m) = (rng.below(6), rng.below(6));
    let text = format!("#!lua name=l{n}\nf{m}");
    let encode = |args: &[&[u8]]| {
        let key_index = u8::from(args[0] == b"SET");
        CommandBuf::new().encode(key_index, args.iter().copied()).to_vec()
    };
    let key = format!("s{}", rng.below(200));
    let own = match rng.below(8) {
        0 => encode(&[b"FUNCTION", b"DELETE", format!("l{n}").as_bytes()]),
        1 if rng.chance(1, 4) => encode(&[b"FUNCTION", b"FLUSH"]),
        2 | 3 => encode(&[b"FUNCTION", b"LOAD", b"REPLACE", text.as_bytes()]),
        4..=6 => encode(&[b"FUNCTION", b"LOAD", text.as_bytes()]),
        _ => encode(&[b"SET", key.as_bytes(), text.as_bytes()]),
    };
    if rng.chance(1, 3) {
        return encode(&[b"CONCORD.EXEC", &own, &encode(&[b"SET", key.as_bytes(), b"v"]), &own]);
    }
    own
}

/// Whoever has any key has every library: what finds one among the writes, or does not, does so at
/// each replica.
#[test]
fn libraries_are_in_front_of_every_key_of_a_copy() {
    let (mut nothing, mut libraries) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let store = || Store::new(Memory::new(0)).with_functions(named_by_code);
        let (mut source, mut target) = (store(), store());
        let (mut position, mut copied_to) = (0, 0);
        while copied_to < PLACE_END {
            for _ in 0..rng.below(4) + if position == 0 { 30 } else { 0 } {
                position += 1;
                let context = Context { now_ms: 1_000, position, ..Context::default() };
                let bytes = on_libraries(&mut rng);
                let reply = submit(&mut source, &context, &bytes);
                let is_here = |key: &[u8]| place_of_key(key) < copied_to;
                match restrict(&Command::parse(&bytes).unwrap(), &is_here) {
                    Restricted::All => assert_eq!(submit(&mut target, &context, &bytes), reply),
                    Restricted::Part(part) => drop(submit(&mut target, &context, &part)),
                    Restricted::Nothing => nothing += 1,
                    Restricted::Entangled => panic!("nothing hangs on keys"),
                }
            }
            assert!(source.prepare_copy());
            let mut chunk = Vec::new();
            assert_eq!(source.copy(copied_to, 300, &mut chunk), Progress::Done);
            libraries += usize::from(chunk.windows(10).any(|part| part == b"~functions"));
            assert_eq!(target.install(&chunk), Ok(Progress::Done));
            copied_to = next_place(&chunk).unwrap();
        }
        let call = CommandBuf::new().encode(0, [&b"FUNCTION"[..], b"DUMP"]).to_vec();
        let context = Context::default();
        let [own, theirs] = [&mut source, &mut target].map(|one| submit(one, &context, &call));
        assert_eq!(own, theirs, "seed {seed}");
        assert_eq!(source.digest(), target.digest(), "seed {seed}");
        assert_eq!(source.memory_bytes(), target.memory_bytes());
        assert_eq!(target.clear(), Progress::Done);
        assert_eq!(target.memory_bytes(), 0);
    }
    assert!(nothing > 1_000 && libraries > 200 && libraries <= 300, "{nothing} {libraries}");
}

/// FLUSHALL leaves them, and nothing that tells of keys tells of them.
#[test]
fn libraries_are_no_keys() {
    let mut store = Store::new(Memory::new(0)).with_functions(named_by_code);
    let mut ask = |line: &str| {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let bytes = CommandBuf::new().encode(0, args).to_vec();
        String::from_utf8(submit(&mut store, &Context::default(), &bytes)).unwrap()
    };
    assert_eq!(ask("FUNCTION LOAD #!lua\tname=l\nf"), "$1\r\nl\r\n");
    assert_eq!(ask("FLUSHALL"), "+OK\r\n");
    assert_eq!(ask("DBSIZE"), ":0\r\n");
    assert_eq!(ask("KEYS *"), "*0\r\n");
    assert_eq!(ask("SCAN 0"), "*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(ask("RANDOMKEY"), "$-1\r\n");
    assert!(ask("FUNCTION STATS").ends_with(":1\r\n$15\r\nfunctions_count\r\n:1\r\n"));
}

/// Users are in a copy as libraries are, and `FLUSHALL` leaves them.
#[test]
fn users_are_in_front_of_every_key_of_a_copy() {
    let (mut source, mut target) = (Store::new(Memory::new(0)), Store::new(Memory::new(0)));
    let context = Context::default();
    let ask = |store: &mut Store, line: &str| {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let bytes = CommandBuf::new().encode(0, args).to_vec();
        let restricted = restrict(&Command::parse(&bytes).unwrap(), &|_| false);
        if line.starts_with("CONCORD.USERS") {
            assert_eq!(restricted, Restricted::Nothing, "where the first part is not there yet");
        }
        String::from_utf8(submit(store, &context, &bytes)).unwrap()
    };
    let empty = source.digest();
    assert_eq!(ask(&mut source, "CONCORD.USERS SET 0 one"), ":1\r\n");
    assert_eq!(ask(&mut source, "CONCORD.USERS SET 1 two"), ":2\r\n");
    assert_ne!(source.digest(), empty);
    assert_eq!(ask(&mut source, "FLUSHALL") + &ask(&mut source, "DBSIZE"), "+OK\r\n:0\r\n");
    assert!(source.prepare_copy());
    let mut chunk = Vec::new();
    assert_eq!(source.copy(0, 1 << 20, &mut chunk), Progress::Done);
    assert_eq!(target.install(&chunk), Ok(Progress::Done));
    assert_eq!(ask(&mut target, "CONCORD.USERS GET 0"), "*2\r\n:2\r\n$3\r\ntwo\r\n");
    assert_eq!((source.digest(), source.memory_bytes()), (target.digest(), target.memory_bytes()));
    assert_eq!(target.clear(), Progress::Done);
    assert_eq!(target.digest(), empty);
}

#[test]
fn bytes_that_are_no_chunk_are_refused() {
    let mut source = Store::new(Memory::new(0));
    for n in 0..50 {
        let args: Vec<String> = format!("HSET h{n} f v").split(' ').map(String::from).collect();
        write(&mut source, &Context::default(), &args);
    }
    let mut chunk = Vec::new();
    assert_eq!(source.copy(0, 1 << 20, &mut chunk), Progress::Done);
    for cut in 0..chunk.len() {
        let mut target = Store::new(Memory::new(0));
        match target.install(&chunk[..cut]) {
            Ok(_) => assert!(target.keys() < 50 && !target.lost()),
            Err(_) => assert_eq!(target.keys(), 0, "nothing was set"),
        }
    }
    let mut target = Store::new(Memory::new(0));
    let key_length = usize::from(chunk[8 + 3]);
    // The value's tag.
    chunk[8 + 16 + key_length] = 99;
    assert!(target.install(&chunk).is_err());
    assert!(target.lost(), "half a chunk may be set: the engine is of no use");
}
