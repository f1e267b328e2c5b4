//! DUMP and RESTORE against a real redis-server: each loads what the other wrote.

use super::values::seed;
use super::*;

/// Lines that make a value of key `v`, of any type and any size.
fn fill(rng: &mut Rng) -> Vec<Vec<Vec<u8>>> {
    let sizes = [1, 3, 20, 129, 700];
    let size = sizes[rng.below(5) as usize];
    let text = |rng: &mut Rng| match rng.below(8) {
        0 => Vec::new(),
        1 => (rng.below(300) as i64 - 150).to_string().into_bytes(),
        2 => (rng.next_u64() as i64 >> rng.below(64)).to_string().into_bytes(),
        3 => vec![b'x'; rng.below(300) as usize],
        4 => b"abc".repeat(rng.below(2000) as usize),
        5 => (0..rng.below(70)).map(|_| rng.below(256) as u8).collect(),
        _ => format!("text {}", rng.below(1000)).into_bytes(),
    };
    let short = |rng: &mut Rng, at: u64| match rng.below(3) {
        0 => at.to_string().into_bytes(),
        _ => format!("m{at}").into_bytes(),
    };
    let line = |name: &str, rest: Vec<Vec<u8>>| {
        let mut line = words(&format!("{name} v"));
        line.extend(rest);
        line
    };
    let is_plain = rng.chance(1, 2);
    match rng.below(7) {
        0 => vec![line("SET", vec![text(rng)])],
        1 => (0..size).map(|_| line("RPUSH", vec![text(rng)])).collect(),
        2 => {
            let number = |rng: &mut Rng| (rng.next_u64() as i64 >> rng.below(64)).to_string();
            let all = (0..size).map(|_| line("SADD", vec![number(rng).into_bytes()]));
            all.collect()
        }
        3 => (0..size).map(|_| line("SADD", vec![text(rng)])).collect(),
        4 => (0..size)
            .map(|at| {
                let value = if is_plain { short(rng, at) } else { text(rng) };
                line("HSET", vec![short(rng, at), value])
            })
            .collect(),
        5 => {
            let scores = ["0", "-1", "1.5", "inf", "-inf", "0.1", "1e17", "123456789", "-2.25e-7"];
            (0..size)
                .map(|at| {
                    let score = scores[rng.below(scores.len() as u64) as usize];
                    line("ZADD", vec![score.into(), short(rng, at)])
                })
                .collect()
        }
        _ => {
            let mut lines = vec![];
            for at in 1..=size {
                let (ms, seq) = (10 + at / 3, at % 3 + 1);
                let mut fields = vec![format!("{ms}-{seq}").into_bytes()];
                let names = if rng.chance(1, 5) { rng.between(1, 3) } else { 2 };
                fields
                    .extend((0..2 * names).map(|n| {
                        if n % 2 == 0 { format!("f{n}").into_bytes() } else { text(rng) }
                    }));
                lines.push(line("XADD", fields));
                if rng.chance(1, 8) {
                    lines.push(words(&format!("XDEL v {ms}-{seq}")));
                }
            }
            if rng.chance(1, 2) {
                lines.push(words("XGROUP CREATE v g 0"));
                lines.push(words("XGROUP CREATE v empty 11-2"));
                for consumer in 0..3 {
                    lines.push(words(&format!(
                        "XREADGROUP GROUP g c{consumer} COUNT 9 STREAMS v >"
                    )));
                }
                lines.push(words("XACK v g 10-2 11-1 11-2"));
            }
            lines
        }
    }
}

/// What a key holds, in an order that hangs on nothing.
fn content(key: &str, call: &mut dyn FnMut(&[Vec<u8>]) -> Vec<u8>) -> Vec<String> {
    let kind = call(&words(&format!("TYPE {key}")));
    let lines: &[&str] = match &kind[..] {
        b"+string\r\n" => &["GET {}"],
        b"+list\r\n" => &["LRANGE {} 0 -1"],
        b"+set\r\n" => &["SMEMBERS {}"],
        b"+hash\r\n" => &["HGETALL {}"],
        b"+zset\r\n" => &["ZRANGE {} 0 -1 WITHSCORES"],
        b"+stream\r\n" => {
            &["XRANGE {} - +", "XPENDING {} g", "XINFO GROUPS {}", "XPENDING {} g - + 99"]
        }
        other => panic!("{key}: {}", String::from_utf8_lossy(other)),
    };
    let is_unordered = kind == b"+set\r\n" || kind == b"+hash\r\n";
    lines
        .iter()
        .map(|line| {
            let reply = call(&words(&line.replace("{}", key)));
            let comparable = match line.split(' ').next() {
                _ if is_unordered => sorted_lines(&reply),
                // Each line of deliveries tells how long ago it was.
                Some("XPENDING") if line.contains("99") => without_times(&reply),
                _ => reply,
            };
            String::from_utf8_lossy(&comparable).replace(&format!("key '{key}'"), "key")
        })
        .collect()
}

fn without_times(reply: &[u8]) -> Vec<u8> {
    let lines = reply.split(|byte| *byte == b'\n').enumerate();
    let kept = lines.filter(|(at, _)| at % 7 != 6).map(|(_, line)| line);
    kept.collect::<Vec<_>>().join(&b'\n')
}

fn bulk(reply: &[u8]) -> Vec<u8> {
    resp::bulk_payload(reply).unwrap().to_vec()
}

fn restore(key: &str, payload: &[u8]) -> Vec<Vec<u8>> {
    let mut args = words(&format!("RESTORE {key} 0"));
    args.extend([payload.to_vec(), b"REPLACE".to_vec()]);
    args
}

#[test]
fn each_loads_what_the_other_wrote() {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connection = server.connect();
    let mut ours = Ours::new();
    let mut rng = Rng::new(seed());
    for _ in 0..400 {
        connection.call(&words("FLUSHALL"));
        for line in fill(&mut rng) {
            connection.call(&line);
        }
        let at = now_ms();
        let theirs = bulk(&connection.call(&words("DUMP v")));
        assert_eq!(ours.call(&restore("v", &theirs), at, false), b"+OK\r\n");
        let wanted = content("v", &mut |args| connection.call(args));
        assert_eq!(content("v", &mut |args| ours.call(args, at, false)), wanted);
        let mine = bulk(&ours.call(&words("DUMP v"), at, false));
        assert_eq!(connection.call(&restore("w", &mine)), b"+OK\r\n");
        assert_eq!(content("w", &mut |args| connection.call(args)), wanted);
        // Sets and hashes keep their order, and so all that hangs on it.
        ours.call(&restore("w", &mine), at, false);
        assert_eq!(bulk(&ours.call(&words("DUMP w"), at, false)), mine);
    }
}

/// A payload of this type, as it is sealed by a copy that only does so.
fn sealed(content: &[u8]) -> Vec<u8> {
    let mut out = content.to_vec();
    out.extend_from_slice(&[10, 0]);
    let sum = out.iter().fold(0u64, |sum, byte| {
        (0..8).fold(sum ^ u64::from(*byte), |sum, _| {
            if sum & 1 == 1 { sum >> 1 ^ 0x95ac_9329_ac4b_c9b5 } else { sum >> 1 }
        })
    });
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// A ziplist, as Redis packed small collections before 7.0.
fn ziplist(texts: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    let (mut before, mut last) = (0, 10);
    for text in texts {
        last = 10 + body.len();
        let start = body.len();
        if before < 254 {
            body.push(before as u8);
        } else {
            body.push(254);
            body.extend_from_slice(&(before as u32).to_le_bytes());
        }
        match text.parse::<i64>() {
            Ok(small @ 0..=12) => body.push(0xf1 + small as u8),
            Ok(value) => match (i8::try_from(value), i16::try_from(value)) {
                (Ok(value), _) => body.extend_from_slice(&[0xfe, value as u8]),
                (_, Ok(value)) => {
                    body.push(0xc0);
                    body.extend_from_slice(&value.to_le_bytes());
                }
                _ => {
                    body.push(0xe0);
                    body.extend_from_slice(&value.to_le_bytes());
                }
            },
            Err(_) if text.len() < 64 => body.push(text.len() as u8),
            Err(_) => body.extend_from_slice(&[0x40 | (text.len() >> 8) as u8, text.len() as u8]),
        }
        if text.parse::<i64>().is_err() {
            body.extend_from_slice(text.as_bytes());
        }
        before = body.len() - start;
    }
    let mut out = (body.len() as u32 + 11).to_le_bytes().to_vec();
    out.extend_from_slice(&(last as u32).to_le_bytes());
    out.extend_from_slice(&(texts.len() as u16).to_le_bytes());
    out.extend(body);
    out.push(255);
    out
}

/// Payloads of forms that Redis 7.0 reads and does not write.
fn older() -> Vec<Vec<u8>> {
    let long = "y".repeat(300);
    let texts = ["a", "1", "-7", "200", "12", &long, "b", "99999999999", "c", "-300"];
    let numbers = ["m", "-7.5", "a", "1", "e", "12", "d", "200"];
    let string = |bytes: &[u8]| {
        let mut out = vec![0x40 | (bytes.len() >> 8) as u8, bytes.len() as u8];
        out.extend_from_slice(bytes);
        out
    };
    let packed = |kind: u8, texts: &[&str]| [vec![kind], string(&ziplist(texts))].concat();
    let lists = [vec![14, 2], string(&ziplist(&texts)), string(&ziplist(&["x"]))].concat();
    let sorted = b"\x03\x04\x01a\x031.5\x01b\xfe\x01c\xff\x01d\x01x".to_vec();
    let plain_list = b"\x12\x02\x01\x03abc\x02\x09\x09\0\0\0\x01\0\x05\x01\xff".to_vec();
    let mut all = vec![packed(10, &texts), packed(12, &numbers), packed(13, &texts), lists];
    all.extend([sorted[..16].to_vec(), plain_list]);
    all.iter().map(|content| sealed(content)).collect()
}

#[test]
fn older_forms_are_read_as_redis_reads_them() {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connection = server.connect();
    let mut ours = Ours::new();
    for payload in older() {
        let (mine, theirs) = (
            ours.call(&restore("v", &payload), 1, false),
            connection.call(&restore("v", &payload)),
        );
        assert_eq!(String::from_utf8_lossy(&mine), String::from_utf8_lossy(&theirs), "{payload:?}");
        if theirs == b"+OK\r\n" {
            let wanted = content("v", &mut |args| connection.call(args));
            assert_eq!(content("v", &mut |args| ours.call(args, 1, false)), wanted);
        }
    }
}

#[test]
fn times_to_live_and_errors_are_those_of_redis() {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connection = server.connect();
    connection.call(&words("RPUSH l a b c"));
    let payload = bulk(&connection.call(&words("DUMP l")));
    let mut newer = payload.clone();
    newer[payload.len() - 10] = 11;
    let payloads =
        [payload.clone(), newer, payload[1..].to_vec(), vec![], sealed(&[1]), sealed(b"\xff")];
    let mut ours = Ours::new();
    ours.call(&words("RPUSH l a b c"), now_ms(), false);
    let mut rng = Rng::new(seed());
    let far = (now_ms() + 5_000_000).to_string();
    let ttls =
        ["0", "0", "100000", "9223372036854775807", "1", &far, "-1", "x", "00", "5000000000"];
    let options =
        ["REPLACE", "ABSTTL", "IDLETIME", "FREQ", "5", "-1", "300", "BAD", "replace", "x"];
    for _ in 0..3000 {
        let pick =
            |rng: &mut Rng, all: &[&str]| all[rng.below(all.len() as u64) as usize].to_string();
        let ttl = pick(&mut rng, &ttls);
        let mut args = words(&format!("RESTORE k{} {ttl}", rng.below(3)));
        let wrong = rng.chance(1, 4);
        args.push(payloads[if wrong { rng.below(6) as usize } else { 0 }].clone());
        let mut given: Vec<String> = (0..rng.below(4)).map(|_| pick(&mut rng, &options)).collect();
        // A short time to live would be over at some moment of this test.
        if ttl == "1" || ttl == far {
            given.push("ABSTTL".into());
        }
        args.extend(given.into_iter().map(String::into_bytes));
        for args in [args, words(&format!("PTTL k{}", rng.below(3))), words("EXISTS k0 k1 k2")] {
            let (mine, theirs) = (ours.call(&args, now_ms(), false), connection.call(&args));
            assert!(
                mine == theirs || equal_within_clocks(&args, &mine, &theirs),
                "{}: {} {}",
                show(&args),
                String::from_utf8_lossy(&mine),
                String::from_utf8_lossy(&theirs)
            );
        }
        if rng.chance(1, 6) {
            let del = words(&format!("DEL k{}", rng.below(3)));
            assert_eq!(ours.call(&del, now_ms(), false), connection.call(&del));
        }
    }
}

/// Any bytes: no panic, no more memory than is bounded, and what was loaded can be used.
#[test]
fn any_payload_is_loaded_or_refused() {
    let mut rng = Rng::new(seed());
    let mut payloads = older();
    if let Some(server) = Server::start(&[]) {
        let mut connection = server.connect();
        for _ in 0..60 {
            connection.call(&words("FLUSHALL"));
            fill(&mut rng).iter().for_each(|line| drop(connection.call(line)));
            payloads.push(bulk(&connection.call(&words("DUMP v"))));
        }
    }
    let mut ours = Ours::new();
    ours.engine = Shimmed::new(Memory::new(0).with_work_max(20_000));
    let mut loaded = 0;
    for _ in 0..60_000 {
        let from = &payloads[rng.below(payloads.len() as u64) as usize];
        let mut bytes = from[..from.len().saturating_sub(10)].to_vec();
        if rng.chance(1, 20) {
            bytes = (0..rng.below(60)).map(|_| rng.below(256) as u8).collect();
            bytes.insert(0, rng.below(22) as u8);
        }
        for _ in 0..rng.between(1, 4) {
            let at = rng.below(bytes.len().clamp(1, 200) as u64) as usize;
            let value = [0, 1, 0x7f, 0x80, 0x81, 0xc3, 0xff, rng.below(256) as u8];
            match rng.below(4) {
                0 => bytes.truncate(bytes.len() - at.min(bytes.len())),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => bytes.insert(at.min(bytes.len()), value[rng.below(8) as usize]),
                _ if at < bytes.len() => bytes[at] = value[rng.below(8) as usize],
                _ => {}
            }
        }
        let reply = ours.call(&restore("v", &sealed(&bytes)), 1, false);
        assert!(reply == b"+OK\r\n" || reply.starts_with(b"-ERR "), "{bytes:?}");
        assert!(ours.engine.memory_bytes() < 16 << 20, "{bytes:?}");
        if reply == b"+OK\r\n" {
            loaded += 1;
            let mine = bulk(&ours.call(&words("DUMP v"), 1, false));
            assert_eq!(ours.call(&restore("w", &mine), 1, false), b"+OK\r\n", "{bytes:?}");
            for line in [
                "XADD v * f v",
                "XDEL v 11-1 12-2",
                "XTRIM v MAXLEN ~ 2",
                "XTRIM v MAXLEN 1",
                "XREADGROUP GROUP g c9 STREAMS v >",
                "XGROUP DELCONSUMER v g c1",
                "XINFO STREAM v FULL",
                "XINFO GROUPS v",
                "LPOP v 2",
                "SPOP v 2",
                "HDEL v m1",
                "ZPOPMIN v",
                "PFADD v x",
                "GEOHASH v m1",
            ] {
                ours.call(&words(line), 50, false);
            }
        }
        ours.call(&words("DEL v w"), 1, false);
    }
    assert!(loaded > 1000, "{loaded}");
}
