//! docs/reference/commands.md: what became of each command at each engine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::compare::{How, how};
use crate::generator::{SUBSCRIBERS, UNDRAWN};

/// What was seen of one form at one engine.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Replies that were compared, and equal.
    pub equal: u64,
    pub refused: BTreeMap<String, u64>,
    /// Differences that are known: the reasons.
    pub known: BTreeSet<&'static str>,
}

pub type BySeen = BTreeMap<String, Seen>;

/// What is not drawn here.
const UNCOMPARED: &str =
    "see docs/reference/semantics.md (`crates/gateway/tests/{tracking,acl}`, results/redis-suite)";
const AS_SUBSCRIBER: &str =
    "as in Redis (`crates/concord/tests/racks/pubsub.rs`, `crates/concord/tests/clients`)";
/// What stands before the reasons in a cell.
const REFUSED: &str = "refused";

fn cell(form: &str, seen: &Seen) -> String {
    let mut parts = Vec::new();
    if seen.equal > 0 {
        parts.push(match how(form) {
            How::Exact => "equal".to_string(),
            How::AnyOrder => "equal, in any order".to_string(),
            How::Cursor => "equal; cursors are each server's own".to_string(),
            How::Drawn => "drawn at random".to_string(),
            How::Clocks => "equal within clocks".to_string(),
            How::Own(why) => format!("different: {why}"),
        });
    }
    parts.extend(seen.known.iter().map(|why| format!("different: {why}")));
    if !seen.refused.is_empty() {
        let reasons: Vec<&str> = seen.refused.keys().map(String::as_str).collect();
        parts.push(format!("{REFUSED}: {}", reasons.join("; ")));
    }
    if parts.is_empty() { "never drawn".into() } else { parts.join(". ") }
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md")
}

const HEAD: &str = "\
# Commands

Generated: `CONCORD_DIFF_WRITE=1 CONCORD_DIFF_COMMANDS=300000 cargo test -p concord --test
differential`. Do not edit. The test draws commands from the server's own COMMAND DOCS (redis-server
7.0.15: options in every combination, edge cases, arguments dropped, doubled, swapped), sends them to
a rack of three replicas through its gateway, pipelined, in RESP2 and RESP3, and to a plain
redis-server, and compares the replies byte for byte.

- *equal*: every reply was. *In any order*: Redis leaves the order open. *Drawn at random*: as many
  items, of the same kind. *Within clocks*: a time to live, read a little later.
- *different*: for this reason; errors are still compared.
- *refused*: by an error that says so; where it stands beside *equal*, only some forms are.

Concord's own commands: `CAS`, `CAD`, `DELEX`, `SET ... IFEQ` (memory
engine), `CONCORD EXPLAIN`.

With the Redis engine `XADD key *`, `XREADGROUP`, `XCLAIM`, `XAUTOCLAIM`, `XPENDING`, and what draws or has to do with
times to live beside a script in `MULTI`, have 7,000 arguments at most; `SPOP` draws from a set of 100,000
members at most in a script, beside one in `MULTI`, and under VR, NOPaxos and Raft.

`INFO [section ...]` has the sections of redis-server 7.0, `default`, `all` and `everything` too, and of
their fields those that say something true here, in its form (`crates/concord/tests/racks/redis_cli.rs`
compares them). What is the gateway's: `Server`, `Clients`, `Persistence` (a gateway stores nothing; docs/operate/durability.md),
`Replication` (to a client there is one server), `CPU` (the time of the gateway's process, in steps of
10 ms, 0.1 s old at most), `Cluster`, `Commandstats` (calls, rejected and failed calls), `Errorstats`, `Concord` (the
rack), and of `Stats` connections, commands, errors, bytes and rates (`number_of_cached_scripts` too); `CONFIG RESETSTAT` sets them back. What one replica tells
(one read of all keys, behind the connection's earlier commands; it looks at no key): `used_memory`,
`used_memory_peak` and `maxmemory` (the data and its times to live, as the limit counts them; with the Redis
engine what its server uses, `used_memory_rss`, `mem_fragmentation_ratio` and `mem_allocator` too), `db0` to `db15`
(keys, how many have a time to live, and its average in ms), `expired_keys`. Peak and expired keys count from
the start of the replica that answers. If none answers before the read's deadline these are left out, and
`concord_data_known` is 0. Left out always: hits and misses (replicas share the reads), snapshots and
append-only files, forks, defragmentation, latencies by command. `MEMORY USAGE` is what a key adds to
`used_memory` of the memory engine, or what the server says. redis-cli's `--stat`, `--bigkeys`, `--memkeys`,
`--latency` and `--latency-history` work as they do with a redis-server. `CONFIG SET` of what tunes the insides
of a Redis server is kept by the gateway, and changes nothing (docs/reference/semantics.md).

| command | memory engine | Redis engine |
|---|---|---|
";

/// The whole document.
pub fn document(memory: &BySeen, redis: &BySeen) -> String {
    let names: BTreeSet<&String> = memory.keys().chain(redis.keys()).collect();
    let of_subscribers =
        SUBSCRIBERS.iter().chain(UNDRAWN).map(|name| (*name).to_string()).collect();
    let names: BTreeSet<String> =
        names.into_iter().cloned().chain::<Vec<_>>(of_subscribers).collect();
    let nothing = Seen::default();
    let mut text = HEAD.to_string();
    for name in &names {
        let cell = |seen: &BySeen| match SUBSCRIBERS.contains(&&**name) {
            _ if UNDRAWN.contains(&&**name) => UNCOMPARED.to_string(),
            true => AS_SUBSCRIBER.to_string(),
            false => cell(name, seen.get(name).unwrap_or(&nothing)),
        };
        text.push_str(&format!("| {name} | {} | {} |\n", cell(memory), cell(redis)));
    }
    text
}

pub fn write(text: &str) {
    std::fs::write(path(), text).unwrap();
}

/// What was seen but is not written there: a shorter run sees less, never something else. A rare
/// form may be refused that the writing run did not draw, but for no new reason.
pub fn missing(engine: &str, seen: &BySeen) -> Vec<String> {
    let text = std::fs::read_to_string(path()).unwrap_or_default();
    let column = if engine == "memory" { 2 } else { 3 };
    let written: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            Some((*cells.get(1)?, *cells.get(column)?))
        })
        .collect();
    let mut missing = Vec::new();
    for (form, seen) in seen {
        let Some(cell) = written.get(&**form) else {
            missing.push(format!("{form} is not in docs/reference/commands.md"));
            continue;
        };
        let is_new = |why: &&String| !written.values().any(|cell| cell.contains(why.as_str()));
        let only_refused = seen.equal == 0 && seen.known.is_empty();
        if only_refused && !cell.contains(REFUSED) {
            missing.push(format!("{form}: refused, and docs/reference/commands.md says {cell:?}"));
        }
        for why in seen.refused.keys().filter(is_new) {
            missing.push(format!(
                "{form}: refused ({why}), which is not in docs/reference/commands.md"
            ));
        }
    }
    missing
}
