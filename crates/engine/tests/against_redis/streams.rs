//! Streams and consumer groups against a real redis-server. Ids are given, so that both have the
//! same; what shows a clock is not compared.

use super::*;

const COMMANDS: usize = 40_000;

const TEMPLATES: &[&str] = &[
    "XADD {K} {X} {M} {V}",
    "XADD {K} {X} {M} {V}",
    "XADD {K} {X} {M} {V} {M},{V}|{M}|",
    "XADD {K} NOMKSTREAM|| MAXLEN|MINID|MAXLEN ~|=||| {S}|{I}|{X}|{S}0 LIMIT,{S}|LIMIT,{I}|LIMIT|||| {X}|7-*|99999-* {M} {V}",
    "XADD {K} LIMIT|NOMKSTREAM|BAD||| {Y} {M} {V}",
    "XLEN {K}",
    "XRANGE|XREVRANGE {K} {Y} {Y} COUNT,{S}|COUNT,{I}|COUNT|BAD,1|||",
    "XRANGE {K} - + ",
    "XREVRANGE {K} + - COUNT,{S}",
    "XREAD COUNT,{S}|COUNT,{I}||| NOACK|BLOCK,x|BLOCK,-1|GROUP,g,c||||||| STREAMS|BAD|STREAMS|STREAMS|STREAMS {K} {K}||| {Y}|$|>|0 {Y}|0||||",
    "XDEL {K} {X}|{Y} {X}||",
    "XDEL {K} {X} {X} {X}",
    "XTRIM {K} MAXLEN|MINID|BAD ~|=|| {S}|{I}|{X} LIMIT,{S}|LIMIT,0||||",
    "XTRIM {K} LIMIT 0|1 BAD|",
    "XSETID {K} {X}|{Y} ENTRIESADDED,{S}|ENTRIESADDED,{S}00|ENTRIESADDED,{I}||| MAXDELETEDID,{X}||BAD|",
    "XINFO STREAM|GROUPS|STREAM|GROUPS|BAD {K}",
    "XINFO STREAM {K} FULL COUNT,{S}|COUNT,{I}|BAD|||",
    "XINFO CONSUMERS {K} {G}",
    "XGROUP CREATE {K} {G} $|0|{X}|{Y} MKSTREAM||BAD|ENTRIESREAD,{S}|ENTRIESREAD,-1|ENTRIESREAD,{I}||||",
    "XGROUP CREATE {K} {G} $|0 MKSTREAM",
    "XGROUP SETID {K} {G} $|0|{X}|{Y} ENTRIESREAD,{S}|ENTRIESREAD,-1|MKSTREAM||||",
    "XGROUP DESTROY {K} {G}",
    "XGROUP CREATECONSUMER|DELCONSUMER {K} {G} {C}",
    "XGROUP BAD|CREATE|DESTROY|SETID|DELCONSUMER {K} {G} a|| b|",
    "XREADGROUP GROUP {G} {C} COUNT,{S}|COUNT,{I}|||| NOACK|||| STREAMS {K} >",
    "XREADGROUP GROUP {G} {C} COUNT,{S}|||| STREAMS {K} {Y}|0|0",
    "XREADGROUP GROUP {G} {C} BLOCK,x|NOACK||| STREAMS|BAD|STREAMS|STREAMS {K} {K}| >|$|0 >|0",
    "XACK {K} {G} {X}|{Y} {X}||",
    "XACK {K} {G} {X} {X} {X} {X}",
    "XPENDING {K} {G}",
    "XPENDING {K} {G} IDLE,0|IDLE,99999999|IDLE,x|||||| {Y} {Y} {S}|{I} {C}|||BAD,BAD,BAD",
    "XPENDING {K} {G} - + 10 {C}|",
    "XCLAIM {K} {G} {C} 0|0|0|99999999|x|-1 {X} {X}|{X},{X}|| IDLE,0|IDLE,x|TIME,1000|TIME,x|RETRYCOUNT,{S}|RETRYCOUNT,x|LASTID,{X}||||| FORCE||| JUSTID|BAD||||",
    "XAUTOCLAIM {K} {G} {C} 0|0|0|99999999|x|-1 {Y}|-|0-0 COUNT,{S}|COUNT,{I}|||| JUSTID|BAD||||",
    "DEL {K}",
    "TYPE|EXISTS {K}",
    "COPY {K} {K} REPLACE",
    "SET k4 {V}",
];

impl Generator {
    /// An id, mostly one that may be there, more and more as time goes.
    pub(crate) fn id(&mut self) -> String {
        self.ids += u64::from(self.rng.chance(1, 8));
        let ms = (self.ids + self.rng.below(4)).saturating_sub(self.rng.below(6));
        match self.rng.below(5) {
            0 => format!("{ms}"),
            _ => format!("{ms}-{}", self.rng.below(3)),
        }
    }

    pub(crate) fn any_id(&mut self) -> String {
        const IDS: &[&str] = &[
            "0-0",
            "0",
            "-",
            "+",
            "-",
            "+",
            "$",
            "(",
            "(-",
            "(5",
            "x",
            "1-x",
            "1-",
            "-1",
            "",
            " 1",
            "+2-01",
            "01-+1",
            "1-2-3",
            "18446744073709551615-18446744073709551615",
            "(18446744073709551615-18446744073709551615",
            "18446744073709551616",
            "(0-0",
        ];
        match self.rng.below(3) {
            0 => self.pick(IDS).to_string(),
            1 => format!("({}", self.id()),
            _ => self.id(),
        }
    }
}

/// The reply without what shows a clock: the times of deliveries and of consumers.
fn without_clock(args: &[Vec<u8>], reply: &[u8]) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = reply.split(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
    let is = |word: &[u8]| args[0].eq_ignore_ascii_case(word);
    let is_number = |line: &[u8]| line.starts_with(b":");
    for at in 1..lines.len() {
        let of_time =
            [&b"seen-time\r"[..], b"idle\r"].iter().any(|name| lines[at - 1].starts_with(name));
        let followed = lines.get(at + 1).is_some_and(|next| is_number(next));
        let masked = is_number(&lines[at])
            && (of_time || (is(b"XPENDING") || is(b"XINFO")) && followed && is_pair(&lines, at));
        if masked {
            lines[at] = b":time\r".to_vec();
        }
    }
    let text = lines.join(&b'\n');
    // How many nodes a radix tree has is its own affair.
    let tree = b"radix-tree-nodes\r\n:";
    match text.windows(tree.len()).position(|part| part == tree) {
        Some(at) => {
            let rest = text[at + tree.len()..].iter().position(|&b| b == b'\n').unwrap_or(0);
            [&text[..at], &text[at + tree.len() + rest..]].concat()
        }
        None => text,
    }
}

/// Whether a number and the next one are the time and the count of a delivery: a name or an id is
/// before them.
fn is_pair(lines: &[Vec<u8>], at: usize) -> bool {
    !lines[at - 1].starts_with(b":") && !lines[at - 1].starts_with(b"*")
}

#[test]
fn streams_and_groups_get_the_replies_of_redis() {
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
        if template.starts_with("DEL") && generator.rng.chance(3, 4) {
            continue;
        }
        if generator.rng.chance(1, 400) {
            // Ids that are the highest there is end a stream.
            ours.call(&words("FLUSHALL"), 0, false);
            replica.call(&words("FLUSHALL"), 0, false);
            connections[0].call(&words("FLUSHALL"));
        }
        let args = generator.command(template);
        let resp3 = generator.rng.chance(1, 3);
        let theirs = connections[usize::from(resp3)].call(&args);
        let now_ms = now_ms();
        let mine = ours.call(&args, now_ms, resp3);
        assert_eq!(mine, replica.call(&args, now_ms, resp3), "two replicas: {}", show(&args));
        if without_clock(&args, &mine) != without_clock(&args, &theirs) {
            let (mine, theirs) = (String::from_utf8_lossy(&mine), String::from_utf8_lossy(&theirs));
            differences
                .push(format!("{step} resp3={resp3} {}\n  {mine:?}\n  {theirs:?}", show(&args)));
            if differences.len() > 12 {
                break;
            }
        }
        if step % 500 == 0 {
            // A replica that copied goes on as the others do.
            let mut copy = Ours::new();
            let (mut from, mut chunk) = (0, Vec::new());
            while from != concord_engine::copy::PLACE_END {
                chunk.clear();
                assert_eq!(ours.engine.copy(from, 10_000, &mut chunk), Progress::Done);
                from = concord_engine::copy::next_place(&chunk).unwrap();
                assert_eq!(copy.engine.install(&chunk), Ok(Progress::Done));
            }
            assert_eq!(copy.engine.digest(), ours.engine.digest());
            assert_eq!(copy.engine.memory_bytes(), ours.engine.memory_bytes());
            copy.position = replica.position;
            replica = copy;
        }
    }
    assert!(differences.is_empty(), "SEED={seed}\n{}", differences.join("\n"));
    assert_eq!(ours.engine.digest(), replica.engine.digest());
}
