//! Large commands over real processes: the limits that docs/reference/semantics/limits.md states,
//! each tried at its bound and one above it, and what large commands cost others.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::pages::{page, table};
use crate::common::*;

const MIB: usize = 1 << 20;
/// Machines are slow at times, and 64 MiB go to three replicas.
const WAIT: Duration = Duration::from_secs(120);

/// A number as the table writes it, with its unit.
fn amount(cell: &str) -> usize {
    let words: Vec<&str> = cell.split_whitespace().collect();
    let number: usize = words[0].replace(',', "").parse().unwrap_or_else(|e| panic!("{cell}: {e}"));
    let unit = match words.get(1).copied().unwrap_or_default() {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => 1,
    };
    number * unit
}

/// The limits of the page: what each is of, its amount, and the error beyond it.
fn limits() -> BTreeMap<String, (usize, String)> {
    let rows = table(&page("reference/semantics/limits.md"), "### Of commands and data");
    let limit = |row: Vec<String>| {
        let error = row[3].trim_matches('`').trim_end_matches("...").trim().to_string();
        (row[0].clone(), (amount(&row[1]), error))
    };
    rows.into_iter().map(limit).collect()
}

/// A value of that many bytes, no two pages of which are equal.
fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 4_096 * 7 + at % 251) as u8).collect()
}

/// A connection whose replies may take long.
fn open(rack: &Rack) -> Resp {
    rack.client().waiting(WAIT)
}

/// The first line of the reply.
fn line(client: &mut Resp, args: &[&[u8]]) -> String {
    client.call(args).unwrap().0
}

/// Tries limits of the page one by one.
struct Trial<'a> {
    rack: &'a Rack,
    limits: BTreeMap<String, (usize, String)>,
}

impl Trial<'_> {
    /// The limit of `what`: at the bound the reply begins as is `wanted`, and one above it as the
    /// page's error.
    fn at(&mut self, what: &str, wanted: &str, mut ask: impl FnMut(&mut Resp, usize) -> String) {
        let (bound, error) = self.limits.remove(what).unwrap_or_else(|| panic!("no row {what}"));
        let mut client = open(self.rack);
        let said = ask(&mut client, bound);
        assert!(said.starts_with(wanted), "{what}, {bound}: {said:.200}");
        let said = ask(&mut client, bound + 1);
        assert!(said.starts_with(&error), "{what}, {bound} + 1: {said:.200}, not {error}");
        assert_eq!(open(self.rack).say("FLUSHALL"), "+OK");
        println!("{what}: {bound}");
    }

    fn values(&mut self) {
        self.at("a value, or another argument that is not named below", "+OK", |client, bytes| {
            let value = value(bytes);
            let said = line(client, &[b"SET", b"k", &value]);
            if said == "+OK" {
                let (_, got) = client.call(&[b"GET", b"k"]).unwrap();
                assert!(got == value, "another value");
            }
            said
        });
        self.at("a key, a name, a script or a published message", ":0", |client, bytes| {
            let name = vec![b'k'; bytes];
            assert_eq!(line(client, &[b"PUBLISH", b"c", &name])[..1] == *":", bytes <= MIB);
            line(client, &[b"EXISTS", &name])
        });
        self.at("a string that commands make longer", ":", |client, bytes| {
            let at = (bytes - 1).to_string();
            line(client, &[b"SETRANGE", b"k", at.as_bytes(), b"x"])
        });
        let listen = self.rack.listen;
        self.at("arguments of a command", ":", |client, count| {
            if count > 1 << 20 {
                // The connection is closed at once, whatever else is on its way.
                let mut stream = TcpStream::connect(listen).unwrap();
                stream.write_all(format!("*{count}\r\n").as_bytes()).unwrap();
                let mut said = String::new();
                stream.read_to_string(&mut said).unwrap();
                return said;
            }
            let args: Vec<&[u8]> =
                [&b"RPUSH"[..], b"list"].into_iter().chain(vec![&b"x"[..]; count - 2]).collect();
            let said = line(client, &args);
            assert_eq!(said, format!(":{}", count - 2));
            said
        });
    }

    fn commands(&mut self) {
        self.at("all arguments of a command", "+OK", |client, bytes| {
            let (half, beside) = (value(bytes / 2), 4 + 5 * 4 + "MSETab".len());
            let rest = value(bytes - bytes / 2 - beside);
            line(client, &[b"MSET", b"a", &half, b"b", &rest])
        });
        let queue = |client: &mut Resp, commands: &[Vec<&[u8]>]| {
            assert_eq!(client.say("MULTI"), "+OK");
            let said = commands.iter().map(|args| line(client, args));
            let refused = said.filter(|said| said != "+QUEUED").last();
            let executed = line(client, &[b"EXEC"]);
            if executed.starts_with('*') {
                (0..commands.len()).for_each(|_| drop(client.next().unwrap()));
            }
            refused.unwrap_or(executed)
        };
        self.at("a transaction, its watched keys included", "*2", |client, bytes| {
            // Each command has eight bytes beside its arguments, which have four each.
            let (first, other) = (value(bytes / 2), value(bytes - bytes / 2 - 2 * 24));
            queue(client, &[vec![b"SET", b"a", &first], vec![b"SET", b"b", &other]])
        });
        self.at("commands of a transaction", "*", |client, count| {
            queue(client, &vec![vec![&b"INCR"[..], b"n"]; count])
        });
    }
}

/// The longest iterations of the roles' loops of late, in ms of their own time.
fn longest_ms(rack: &Rack) -> Vec<String> {
    let status = rack.status();
    let roles = status["roles"].as_array().unwrap().iter();
    let of = |role: &serde_json::Value| {
        let ns = role["status"]["loop_longest_cpu_ns"].as_f64().unwrap_or_default();
        format!("{} {:.0}", role["name"].as_str().unwrap_or("?"), ns / 1e6)
    };
    roles.map(of).collect()
}

fn every_limit_is_true(name: &str, more: &[&str]) {
    let rack = Rack::start(name, more);
    let limits = limits();
    let mut trial = Trial { rack: &rack, limits };
    until("the commands are known", || rack.client().say("SETRANGE k 3 x") == ":4");
    trial.values();
    trial.commands();
    assert!(trial.limits.is_empty(), "not tried: {:?}", trial.limits);
    println!("{name}: longest iterations in ms: {}", longest_ms(&rack).join(", "));
    assert_eq!(rack.status()["wrong"], serde_json::json!([]), "{name}");
    let controller = std::fs::read_to_string(rack.run.join("controller.log")).unwrap();
    assert!(!controller.contains("replica removed"), "{name}: {controller}");
}

/// A MiB was the limit of values, arguments and whole transactions, and 65,535 that of arguments.
#[test]
fn bug_22_152_every_limit_of_the_page_is_true() {
    every_limit_is_true("limits-chain", &[]);
}

#[test]
fn bug_22_152_every_limit_is_true_with_the_redis_engine() {
    every_limit_is_true("limits-redis", &["--engine", "redis"]);
}

/// A value of 64 MiB, and half a million keys at once, at each protocol.
#[test]
fn bug_22_152_large_commands_of_every_protocol() {
    for protocol in ["chain", "primary-backup", "craq", "vr", "nopaxos", "raft"] {
        let accel: &[&str] = match protocol {
            "craq" | "raft" => &["--accel", "none"],
            _ => &[],
        };
        let flags = [&["--protocol", protocol], accel].concat();
        let rack = Rack::start(&format!("huge-{protocol}"), &flags);
        let (mut client, value) = (open(&rack), value(64 * MIB - 64));
        assert_eq!(line(&mut client, &[b"SET", b"k", &value]), "+OK", "{protocol}");
        assert!(client.call(&[b"GET", b"k"]).unwrap().1 == value, "{protocol}");
        let keys: Vec<Vec<u8>> = (0..300_000).map(|n| format!("k{n}").into_bytes()).collect();
        let pairs = keys.iter().flat_map(|key| [&key[..], b"v"]);
        let mset: Vec<&[u8]> = [&b"MSET"[..]].into_iter().chain(pairs).collect();
        assert_eq!(line(&mut client, &mset), "+OK", "{protocol}");
        assert_eq!(client.say("DBSIZE"), ":300001", "{protocol}");
        println!("{protocol}: longest iterations in ms: {}", longest_ms(&rack).join(", "));
        assert_eq!(rack.status()["wrong"], serde_json::json!([]), "{protocol}");
    }
}
