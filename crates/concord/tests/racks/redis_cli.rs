//! Debian's redis-cli against a rack and against a redis-server that hold the same: what an
//! operator sees by INFO, --stat, --bigkeys, --memkeys and --latency.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::*;

/// What redis-cli prints until it ends, or for so long.
fn cli(listen: SocketAddr, args: &[&str], at_most: Option<Duration>) -> String {
    // What is written into a pipe comes when it is a page full, if nobody asks for lines.
    let mut child = Command::new("stdbuf")
        .args(["-oL", "redis-cli", "-h", &listen.ip().to_string(), "-p"])
        .arg(listen.port().to_string())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(time) = at_most {
        std::thread::sleep(time);
        child.kill().unwrap();
    }
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    text
}

/// Keys of each type, all of different sizes; some with a time to live.
fn load(listen: SocketAddr) {
    let mut redis = Resp::open(listen);
    for n in 0..300 {
        redis.say(&format!("SET string:{n} {}", "v".repeat(n + 1)));
        if n % 3 == 0 {
            redis.say(&format!("EXPIRE string:{n} 1000"));
        }
    }
    for n in 1..=20 {
        for m in 0..n {
            redis.say(&format!("RPUSH list:{n} item:{m}"));
            redis.say(&format!("SADD set:{n} member:{m}"));
            redis.say(&format!("HSET hash:{n} field:{m} value"));
            redis.say(&format!("ZADD zset:{n} {m} member:{m}"));
        }
    }
}

/// The sections of INFO by name, in order: names and values.
fn sections(text: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let mut all: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        match (line.strip_prefix("# "), line.split_once(':')) {
            (Some(name), _) => all.push((name.to_string(), BTreeMap::new())),
            (None, Some((name, value))) => {
                let (_, fields) = all.last_mut().unwrap();
                fields.insert(name.to_string(), value.to_string());
            }
            (None, None) => panic!("no line of INFO: {line}"),
        }
    }
    all
}

/// With each number as 9: whole, with its decimals; sizes in units as `9.99M`.
fn form(value: &str) -> String {
    let mut out = String::new();
    let mut decimals = false;
    for c in value.chars() {
        match c {
            '0'..='9' if !decimals && out.ends_with('9') => {}
            '0'..='9' => out.push('9'),
            _ => out.push(c),
        }
        decimals = c == '.' || decimals && c.is_ascii_digit();
    }
    out.replace(['K', 'M', 'G'], "B").replace("9.99B", "9B")
}

/// Fields that say who the server is: of each its own.
const NAMES: [&str; 7] =
    ["os", "run_id", "executable", "master_replid", "mem_allocator", "role", "redis_version"];

/// Each section and field has the name and the form that redis-server gives it, in its place, or is
/// Concord's own by its name.
fn compare_info(ours: &str, theirs: &str) {
    let (ours, theirs) = (sections(ours), sections(theirs));
    let names =
        |all: &[(String, _)]| -> Vec<String> { all.iter().map(|(name, _)| name.clone()).collect() };
    assert_eq!(names(&ours), [&names(&theirs)[..], &["Concord".to_string()]].concat());
    for (name, fields) in &ours {
        let Some((_, wanted)) = theirs.iter().find(|(section, _)| section == name) else {
            continue;
        };
        for (field, value) in fields.iter().filter(|(field, _)| !field.starts_with("concord_")) {
            let wanted =
                wanted.get(field).unwrap_or_else(|| panic!("{name}: {field} is not Redis'"));
            let is_own = NAMES.contains(&field.as_str());
            assert!(is_own || form(value) == form(wanted), "{field}: {value}, not like {wanted}");
        }
    }
}

fn value<'a>(info: &'a str, name: &str) -> &'a str {
    let mut lines = info.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).trim_end()
}

fn number(info: &str, name: &str) -> f64 {
    value(info, name).parse().unwrap_or_else(|_| panic!("{name}: {}", value(info, name)))
}

/// From the summary on.
fn summary(text: &str) -> &str {
    &text[text.find("-------- summary -------").unwrap_or_else(|| panic!("no summary: {text}"))..]
}

/// The columns of a line of --stat: keys, memory in MB, clients, blocked, requests, connections.
fn columns(text: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_string).collect();
    text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).map(words).collect()
}

fn an_operator_sees_what_redis_shows(engine: &str) {
    let rack = Rack::start(&format!("cli-{engine}"), &["--engine", engine]);
    let plain = PlainRedis::start();
    until("the engine's commands", || rack.client().say("MEMORY USAGE k") == "$-1");
    load(rack.listen);
    load(plain.listen);
    let both = |args: &[&str]| (cli(rack.listen, args, None), cli(plain.listen, args, None));

    let (ours, theirs) = both(&["INFO"]);
    compare_info(&ours, &theirs);
    let of_db =
        |info: &str| value(info, "db0").rsplit_once(',').map(|(start, _)| start.to_string());
    assert_eq!(of_db(&ours), Some("keys=380,expires=100".to_string()));
    assert_eq!(of_db(&ours), of_db(&theirs));
    let ttl: f64 = value(&ours, "db0").rsplit_once("avg_ttl=").unwrap().1.parse().unwrap();
    assert!(ttl > 900e3 && ttl <= 1_000e3, "{ttl}");
    let used = number(&ours, "used_memory");
    assert!(used > 380.0 * 64.0 + 45_000.0 && used < 16e6, "{used}");
    assert!(number(&ours, "used_memory_peak") >= used);
    assert!(number(&ours, "uptime_in_seconds") < 300.0);
    // The system counts in ticks, and none may have ended in this process yet.
    until("CPU time that was used", || {
        let info = cli(rack.listen, &["INFO", "cpu"], None);
        number(&info, "used_cpu_user") + number(&info, "used_cpu_sys") > 0.0
    });
    assert!(number(&ours, "total_commands_processed") >= 1_240.0);
    assert_eq!(number(&ours, "concord_data_known"), 1.0);
    let everything = cli(rack.listen, &["INFO", "everything"], None);
    assert!(everything.contains("\ncmdstat_rpush:calls=210,rejected_calls=0"), "{everything}");

    let (ours, theirs) = both(&["--bigkeys"]);
    assert_eq!(summary(&ours), summary(&theirs));
    let (ours, theirs) = both(&["--memkeys"]);
    assert_eq!(summary(&ours).lines().count(), summary(&theirs).lines().count());
    assert!(ours.contains("Sampled 380 keys in the keyspace!"), "{ours}");
    assert!(ours.contains("300 strings with ") && ours.contains("20 zsets with "), "{ours}");

    let stat = |listen| cli(listen, &["--stat", "-i", "0.3"], Some(Duration::from_secs(3)));
    let (ours, theirs) = (columns(&stat(rack.listen)), columns(&stat(plain.listen)));
    assert!(ours.len() >= 3 && theirs.len() >= 3, "{ours:?}\n{theirs:?}");
    for line in &ours {
        // keys, memory, clients, blocked, requests, more of them, connections
        assert_eq!((line.len(), line[0].as_str(), line[3].as_str()), (7, "380", "0"), "{line:?}");
        assert!(line[1].ends_with(['K', 'M']) && line[5].starts_with("(+"), "{line:?}");
        assert!(line[4].parse::<u64>().unwrap() > 1_240, "{line:?}");
    }
    assert_eq!(theirs[0].len(), 7);

    // min, max and average in ms, and how many: one line when a second is over.
    let (ours, theirs) = both(&["--latency"]);
    for text in [&ours, &theirs] {
        let last: Vec<&str> = text.lines().last().unwrap_or_default().split(' ').collect();
        assert_eq!(last.len(), 4, "{text}");
        assert!(last[3].parse::<u64>().unwrap() > 10, "{text}");
    }
    let history = |listen| {
        let text = cli(listen, &["--latency-history", "-i", "1"], Some(Duration::from_secs(3)));
        text.matches("seconds range").count()
    };
    assert!(history(rack.listen) >= 1 && history(plain.listen) >= 1);
}

#[test]
fn bug_16_8_redis_cli_shows_a_rack_as_it_does_a_redis_server() {
    an_operator_sees_what_redis_shows("memory");
}

/// Redis cli shows a rack of redis servers as it does one.
#[test]
fn bug_16_8_redis_cli_shows_a_rack_of_redis_servers() {
    an_operator_sees_what_redis_shows("redis");
}
