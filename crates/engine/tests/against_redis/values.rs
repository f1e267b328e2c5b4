//! Geo commands and HyperLogLogs against a real redis-server.

use super::*;

const COMMANDS: usize = 30_000;

const GEO: &[&str] = &[
    "GEOADD {K} NX|XX|CH|NX,XX|BAD||||| {O} {A} {M} {O},{A},{M}|{O},{A}||||",
    "GEOADD {K} {O} {A} {M} {O} {A} {M} {O} {A} {M} {O} {A} {M}",
    "ZADD {K} {F} {M}",
    "ZREM {K} {M}",
    "DEL|TYPE {K}",
    "SET s x",
    "GEOPOS|GEOHASH {K}|s|none {M} {M} {M}|",
    "GEOPOS|GEOHASH {K}",
    "GEODIST {K}|{K}|{K}|s|none {M} {M} {U}||| m|||||",
    "GEOSEARCH {K}|{K}|{K}|s|none FROMLONLAT|FROMLONLAT|FROMMEMBER {O} {A} BYRADIUS|BYBOX {D} {D}|| {U} ASC|DESC WITHDIST|WITHCOORD|WITHHASH|ANY|COUNT,{S}||||||",
    "GEOSEARCH {K} FROMLONLAT {O} {A} BYRADIUS {D} {U} ASC|DESC|| WITHDIST,WITHCOORD,WITHHASH|",
    "GEOSEARCH {K} FROMLONLAT {O} {A} BYBOX {D} {D} {U} ASC|DESC|| WITHDIST,WITHCOORD,WITHHASH|",
    "GEOSEARCH {K} FROMMEMBER {M} BYRADIUS {D} {U} COUNT {S}|{I} ANY|||| WITHDIST|",
    "GEOSEARCH {K}|none|s BYBOX|FROMMEMBER|ASC {D} {D}|{M} {U} BYRADIUS|FROMMEMBER|BAD {D} {U} ASC|",
    "GEOSEARCHSTORE {K}|s {K}|{K}|none|s FROMLONLAT {O} {A} BYRADIUS {D} {U} COUNT,{S}|ASC|WITHDIST|||| STOREDIST|",
    "GEORADIUS|GEORADIUS_RO {K}|{K}|{K}|s|none {O} {A} {D} {U} WITHDIST|WITHCOORD|WITHHASH|||| ASC|DESC|BAD|||| COUNT,{S}|COUNT,{I}|COUNT,3,ANY|COUNT|ANY||||||",
    "GEORADIUS {K} {O} {A} {D} {U} STORE|STOREDIST {K}|| WITHDIST|STORE|STORE,{K}|ASC|COUNT,2|||||",
    "GEORADIUSBYMEMBER|GEORADIUSBYMEMBER_RO {K}|{K}|{K}|s|none {M} {D} {U} WITHDIST|WITHCOORD|WITHHASH|||| ASC|DESC|||| COUNT,{S}|COUNT,3,ANY|||||| STORE,{K}|STOREDIST,{K}|||||||",
    "EXPIRE {K} {T}",
    "TTL {K}",
    "ZCARD {K}",
    "ZRANGE {K} 0 -1 WITHSCORES",
];

/// Redis leaves the order of equal distances open where it sorts a part; a score that is a distance
/// may differ in its last bit.
fn same(args: &[Vec<u8>], mine: &[u8], theirs: &[u8]) -> bool {
    if mine == theirs || equal_within_clocks(args, mine, theirs) {
        return true;
    }
    let has = |word: &[u8]| args.iter().any(|arg| arg.eq_ignore_ascii_case(word));
    if has(b"COUNT") {
        return mine.len() == theirs.len();
    }
    let values = |reply: &[u8]| -> Vec<f64> {
        let lines = String::from_utf8_lossy(reply).into_owned();
        let lines = lines.split("\r\n").map(|line| line.trim_start_matches(','));
        lines.filter_map(|line| line.parse().ok()).collect()
    };
    let (mine, theirs) = (values(mine), values(theirs));
    let is_near = |(a, b): (&f64, &f64)| a == b || ((a - b) / b).abs() < 1e-15;
    has(b"WITHSCORES")
        && mine.len() == theirs.len()
        && mine.iter().zip(&theirs).filter(|(a, b)| **a > 99.0 || **b > 99.0).all(is_near)
}

fn differences(templates: &[&str], seed: u64, same: impl Fn(&[Vec<u8>], &[u8], &[u8]) -> bool) {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connections = [server.connect(), server.connect()];
    connections[1].call(&words("HELLO 3"));
    let mut generator = Generator { rng: Rng::new(seed), ids: 1 };
    let (mut ours, mut replica) = (Ours::new(), Ours::new());
    let mut differences = Vec::new();
    for step in 0..COMMANDS {
        let template = generator.pick(templates);
        let args = generator.command(template);
        let resp3 = generator.rng.chance(1, 3);
        let theirs = connections[usize::from(resp3)].call(&args);
        let now_ms = now_ms();
        let mine = ours.call(&args, now_ms, resp3);
        assert_eq!(mine, replica.call(&args, now_ms, resp3), "two replicas: {}", show(&args));
        if mine.starts_with(b"-INVALIDOBJ") && theirs.starts_with(b"-INVALIDOBJ") {
            // Redis has added what stood before the broken part.
            connections[0].call(&words("FLUSHALL"));
            ours.call(&words("FLUSHALL"), now_ms, false);
            replica.call(&words("FLUSHALL"), now_ms, false);
        }
        if !same(&args, &mine, &theirs) {
            let (mine, theirs) = (String::from_utf8_lossy(&mine), String::from_utf8_lossy(&theirs));
            let shown = show(&args);
            differences.push(format!("{step} resp3={resp3} {shown}\n  {mine:?}\n  {theirs:?}"));
            if differences.len() > 12 {
                break;
            }
        }
    }
    assert!(differences.is_empty(), "SEED={seed}\n{}", differences.join("\n"));
    assert_eq!(ours.engine.digest(), replica.engine.digest());
}

pub fn seed() -> u64 {
    std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap())
}

#[test]
fn geo_commands_get_the_replies_of_redis() {
    differences(GEO, seed(), same);
}

#[test]
fn places_and_distances_print_as_those_of_redis() {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connection = server.connect();
    let mut ours = Ours::new();
    let mut rng = Rng::new(seed());
    let mut both = |args: &[Vec<u8>]| {
        let (mine, theirs) = (ours.call(args, 1, false), connection.call(args));
        assert_eq!(
            String::from_utf8_lossy(&mine),
            String::from_utf8_lossy(&theirs),
            "{}",
            show(args)
        );
    };
    for round in 0..60 {
        // All over the world, or within some degrees.
        let scale = if round % 2 == 0 { 1.0 } else { 0.001 };
        let mut add = words("GEOADD g");
        for member in 0..500 {
            let degrees = |rng: &mut Rng, max: f64| {
                let part = rng.below(1 << 53) as f64 / (1u64 << 52) as f64 - 1.0;
                (part * max * scale).to_string().into_bytes()
            };
            let (longitude, latitude) = (degrees(&mut rng, 180.0), degrees(&mut rng, 85.05));
            add.extend([longitude, latitude, format!("m{member}").into_bytes()]);
        }
        both(&add);
        let members: Vec<String> = (0..500).map(|member| format!("m{member}")).collect();
        both(&words(&format!("GEOPOS g {}", members.join(" "))));
        both(&words(&format!("GEOHASH g {}", members.join(" "))));
        for member in &members {
            let unit = ["m", "km", "ft", "mi"][rng.below(4) as usize];
            both(&words(&format!("GEODIST g {member} m{} {unit}", rng.below(500))));
        }
        for radius in ["1", "100", "3000", "15000", "30000"] {
            both(&words(&format!("GEOSEARCH g FROMMEMBER m7 BYRADIUS {radius} km WITHDIST")));
            both(&words(&format!("GEOSEARCH g FROMMEMBER m8 BYBOX {radius} 900 km WITHDIST ASC")));
        }
    }
}

const HYPERLOGLOG: &[&str] = &[
    "PFADD {K} {V} {V}|||{V},{V},{V},{M}",
    "PFADD {K} {E} {E} {E} {E} {E} {E} {E} {E} {E} {E}",
    "PFADD {K}",
    "PFMERGE {K} {K}|| {K}||",
    "DEL {K}",
    "RPUSH list x",
    "SET {K} HYLL|x|",
    "SETRANGE {K} {S} \u{1}",
    "GET {K}",
    "EXPIRE|TTL {K} 1000",
    "PFADD|PFMERGE|PFCOUNT list {K} {K}",
];

#[test]
fn hyperloglogs_have_the_bytes_of_redis() {
    differences(HYPERLOGLOG, seed(), |args, mine, theirs| {
        mine == theirs || equal_within_clocks(args, mine, theirs)
    });
}

/// Hyperloglogs count as those of redis and counting changes none.
#[test]
fn hyperloglog_counts_match_redis() {
    let Some(server) = Server::start(&[]) else {
        println!("SKIPPED: there is no {SERVER} on this machine (apt install redis-server)");
        return;
    };
    let mut connection = server.connect();
    let mut ours = Ours::new();
    let mut both = |args: &[Vec<u8>]| {
        let (mine, theirs) = (ours.call(args, 1, false), connection.call(args));
        assert_eq!(mine, theirs, "{}", show(args));
        mine
    };
    for key in ["a", "b", "c"] {
        let mut next = 0u64;
        for size in [1u64, 2, 10, 100, 500, 1000, 3000, 10_000, 50_000] {
            let add: Vec<String> = (next..size).map(|n| format!("{key}{n}")).collect();
            next = size;
            for part in add.chunks(500) {
                both(&words(&format!("PFADD {key} {}", part.join(" "))));
            }
            both(&words(&format!("GET {key}")));
            both(&words(&format!("PFMERGE sum {key} a")));
            both(&words("GET sum"));
            // Of one key Redis notes the count in its string; of several it does not.
            for keys in ["a b", "a b c", "sum c none"] {
                both(&words(&format!("PFCOUNT {keys}")));
            }
            both(&words(&format!("PFCOUNT {key} {key}")));
        }
    }
    for key in ["a", "b", "c", "sum", "none"] {
        let before = ours.call(&words(&format!("GET {key}")), 1, false);
        let count = words(&format!("PFCOUNT {key}"));
        assert_eq!(ours.call(&count, 1, false), connection.call(&count));
        assert_eq!(ours.call(&words(&format!("GET {key}")), 1, false), before);
    }
}
