//! INFO: the gateway's own state, and a replica's answer about the data. Names and formats of the
//! fields are those of redis-server 7.0 (`server.c`, `genRedisInfoString`); a field that would be
//! meaningless is left out. Sections about the data cost one read of all keys, which does not
//! access any key.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use concord_client::Class;
use concord_core::{MS, Now, SEC, US};
use concord_engine::databases::DATABASES;
use concord_engine::info::{field, number};
use concord_engine::resp;
use concord_engine::ttl::INFO_COMMAND;
use concord_wire::Sink;

use crate::connection::local::REDIS_VERSION;
use crate::connection::subscriptions::Sort;
use crate::connection::{SlotState, Subject, Wanted};
use crate::process::Process;
use crate::state::{CommandContext, Core, Flow};

/// The sources of the sections, beside the gateway's own counters.
struct Facts<'a> {
    now: Now,
    /// A replica's answer (`concord_engine::info`); `None` if there was none in time.
    data: Option<&'a [u8]>,
}

struct Section {
    name: &'static str,
    /// Whether INFO without arguments contains it.
    is_default: bool,
    needs_data: bool,
    lines: fn(&Core, &Facts<'_>, &mut String),
}

const fn section(name: &'static str, lines: fn(&Core, &Facts<'_>, &mut String)) -> Section {
    Section { name, is_default: true, needs_data: false, lines }
}

const SECTIONS: [Section; 13] = [
    section("Server", server),
    section("Clients", clients),
    Section { needs_data: true, ..section("Memory", memory) },
    section("Persistence", persistence),
    Section { needs_data: true, ..section("Stats", stats) },
    section("Replication", replication),
    section("CPU", cpu),
    section("Modules", |_, _, _| {}),
    Section { is_default: false, ..section("Commandstats", commandstats) },
    section("Errorstats", errorstats),
    section("Cluster", |_, _, out| out.push_str("cluster_enabled:0\r\n")),
    Section { needs_data: true, ..section("Keyspace", keyspace) },
    section("Concord", |core, _, out| out.push_str(&core.rack_info)),
];

impl Wanted {
    /// The sections in the arguments of INFO, by default `default`.
    fn of(args: &[&[u8]]) -> Wanted {
        let is = |arg: &[u8], name: &str| arg.eq_ignore_ascii_case(name.as_bytes());
        let by_default = args.is_empty() || args.iter().any(|arg| is(arg, "default"));
        let all = args.iter().any(|arg| is(arg, "all") || is(arg, "everything"));
        let mut wanted = Wanted(0);
        for (at, section) in SECTIONS.iter().enumerate() {
            let named = args.iter().any(|arg| is(arg, section.name));
            if named || all || by_default && section.is_default {
                wanted.0 |= 1 << at;
            }
        }
        wanted
    }

    fn sections(self) -> impl Iterator<Item = &'static Section> {
        SECTIONS.iter().enumerate().filter(move |(at, _)| self.0 & (1 << at) != 0).map(|(_, s)| s)
    }
}

impl Core {
    /// INFO [section ...]
    pub(crate) fn info(
        &mut self,
        call: &mut CommandContext<'_>,
        args: &[&[u8]],
        sink: &mut impl Sink,
    ) -> Flow {
        let wanted = Wanted::of(&args[1..]);
        if wanted.sections().any(|section| section.needs_data) {
            self.command.encode(0, [INFO_COMMAND]);
            return self.submit(call, Class::Read, Subject::AllKeys, SlotState::Info(wanted), sink);
        }
        self.count.commands_local += 1;
        let text = self.info_reply(call.now, wanted, &[], call.connection.resp3);
        call.connection.answer(|out| out.extend_from_slice(&text));
        Flow::Went
    }

    /// The reply to an INFO within MULTI: the current state, and a replica's last answer about the
    /// data.
    pub(crate) fn info_now(&self, call: &CommandContext<'_>, args: &[&[u8]]) -> Vec<u8> {
        let wanted = Wanted::of(&args[1..]);
        self.info_reply(call.now, wanted, &self.last_figures, call.connection.resp3)
    }

    /// The reply to INFO. `replied` is a replica's answer, which may be an error.
    pub(crate) fn info_reply(
        &self,
        now: Now,
        wanted: Wanted,
        replied: &[u8],
        resp3: bool,
    ) -> Vec<u8> {
        let facts = Facts { now, data: resp::bulk_payload(replied) };
        let mut text = String::new();
        for section in wanted.sections() {
            let separator = if text.is_empty() { "" } else { "\r\n" };
            let _ = write!(text, "{separator}# {}\r\n", section.name);
            (section.lines)(self, &facts, &mut text);
        }
        let mut out = Vec::new();
        if resp3 {
            // A verbatim string.
            let _ = write!(text, "\r\n");
            out.extend_from_slice(format!("={}\r\ntxt:", text.len() + 2).as_bytes());
            out.extend_from_slice(text.as_bytes());
        } else {
            resp::bulk(&mut out, text.as_bytes());
        }
        out
    }
}

/// Writes a line; writing to a string does not fail.
macro_rules! line {
    ($out:expr, $($format:tt)*) => {{
        let _ = write!($out, $($format)*);
        $out.push_str("\r\n");
    }};
}

/// Bytes in the largest unit (a power of 1,024) that they reach.
fn human(bytes: u64) -> String {
    if bytes < 1 << 10 {
        return format!("{bytes}B");
    }
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let (unit, log) = units.into_iter().find(|(_, log)| bytes >> log > 0).unwrap_or(("K", 10));
    format!("{:.2}{unit}", bytes as f64 / (1u64 << log) as f64)
}

fn server(core: &Core, facts: &Facts<'_>, out: &mut String) {
    let (process, now) = (&core.process, facts.now);
    let uptime = now.instant.since(core.started_at.unwrap_or(now.instant)) / SEC;
    line!(out, "redis_version:{REDIS_VERSION}");
    line!(out, "concord_version:{}", env!("CARGO_PKG_VERSION"));
    line!(out, "redis_mode:standalone");
    line!(out, "os:{}", process.os);
    line!(out, "arch_bits:{}", usize::BITS);
    line!(out, "multiplexing_api:epoll");
    line!(out, "process_id:{}", process.id);
    line!(out, "run_id:{}", core.run_id);
    line!(out, "tcp_port:{}", core.setup.port);
    line!(out, "server_time_usec:{}", now.unix_ms * 1_000);
    line!(out, "uptime_in_seconds:{uptime}");
    line!(out, "uptime_in_days:{}", uptime / 86_400);
    line!(out, "executable:{}", process.executable);
    line!(out, "concord_gateway:{}", core.setup.node);
}

fn clients(core: &Core, _: &Facts<'_>, out: &mut String) {
    line!(out, "connected_clients:{}", core.connected);
    line!(out, "cluster_connections:0");
    line!(out, "maxclients:{}", core.setup.connections_max);
    line!(out, "blocked_clients:{}", core.waiters.count() + core.members.waiting());
    line!(out, "tracking_clients:{}", core.tracking.counts()[0]);
    line!(out, "clients_in_timeout_table:0");
}

fn memory(core: &Core, facts: &Facts<'_>, out: &mut String) {
    let data = facts.data.unwrap_or_default();
    let mut both = |name: &str, bytes: Option<u64>| {
        if let Some(bytes) = bytes {
            line!(out, "{name}:{bytes}");
            line!(out, "{name}_human:{}", human(bytes));
        }
    };
    let (used, peak) = (number(data, "used_memory"), number(data, "used_memory_peak"));
    both("used_memory", used);
    both("used_memory_rss", number(data, "used_memory_rss"));
    both("used_memory_peak", peak);
    both("maxmemory", number(data, "maxmemory"));
    if let (Some(used), Some(peak @ 1..)) = (used, peak) {
        line!(out, "used_memory_peak_perc:{:.2}%", used as f64 * 100.0 / peak as f64);
    }
    line!(out, "number_of_cached_scripts:{}", core.scripts.count());
    line!(out, "maxmemory_policy:noeviction");
    for name in ["mem_fragmentation_ratio", "mem_allocator"] {
        if let Some(value) = field(data, name) {
            line!(out, "{name}:{}", String::from_utf8_lossy(value));
        }
    }
    line!(out, "concord_data_known:{}", u8::from(facts.data.is_some()));
    line!(out, "concord_gateway_rss:{}", core.process.resident_bytes);
    line!(out, "concord_gateway_unread_replies:{}", core.memory.held_and_most_bytes().0);
}

/// The section of the gateway, which stores nothing. `concord status` shows what replicas store,
/// and how.
fn persistence(core: &Core, facts: &Facts<'_>, out: &mut String) {
    for name in [
        "loading",
        "async_loading",
        "rdb_bgsave_in_progress",
        "aof_enabled",
        "aof_rewrite_in_progress",
        "aof_rewrite_scheduled",
        "module_fork_in_progress",
        "rdb_changes_since_last_save",
    ] {
        line!(out, "{name}:0");
    }
    // The values of a redis-server that is configured not to save: dashboards read these.
    let up_ms = facts.now.instant.since(core.started_at.unwrap_or(facts.now.instant)) / MS;
    line!(out, "rdb_last_save_time:{}", facts.now.unix_ms.saturating_sub(up_ms) / 1_000);
    for name in ["rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"] {
        line!(out, "{name}:ok");
    }
    for name in [
        "rdb_last_bgsave_time_sec",
        "rdb_current_bgsave_time_sec",
        "aof_last_rewrite_time_sec",
        "aof_current_rewrite_time_sec",
    ] {
        line!(out, "{name}:-1");
    }
}

fn stats(core: &Core, facts: &Facts<'_>, out: &mut String) {
    let (count, client) = (&core.count, core.client.counters());
    let (traffic, since) = (&core.traffic, &core.counted_from);
    let rates = traffic.rates(facts.now.instant, count.commands);
    line!(out, "total_connections_received:{}", count.connections - since.connections);
    line!(out, "total_commands_processed:{}", count.commands - since.commands);
    line!(out, "instantaneous_ops_per_sec:{:.0}", rates.commands);
    line!(out, "total_net_input_bytes:{}", traffic.input_bytes - since.input_bytes);
    line!(out, "total_net_output_bytes:{}", traffic.output_bytes - since.output_bytes);
    line!(out, "instantaneous_input_kbps:{:.2}", rates.input_bytes / 1_024.0);
    line!(out, "instantaneous_output_kbps:{:.2}", rates.output_bytes / 1_024.0);
    line!(out, "rejected_connections:{}", count.connections_refused - since.refused);
    if let Some(expired) = facts.data.and_then(|data| number(data, "expired_keys")) {
        line!(out, "expired_keys:{expired}");
    }
    line!(out, "evicted_keys:0");
    line!(out, "keyspace_hits:{}", count.keyspace_hits - since.hits);
    line!(out, "keyspace_misses:{}", count.keyspace_misses - since.misses);
    for (name, sort) in [
        ("pubsub_channels", Sort::Channel),
        ("pubsub_patterns", Sort::Pattern),
        ("pubsubshard_channels", Sort::Shard),
    ] {
        line!(out, "{name}:{}", core.exchange.channels.names(sort).len());
    }
    let [_, keys, items, prefixes] = core.tracking.counts();
    line!(out, "tracking_total_keys:{keys}");
    line!(out, "tracking_total_items:{items}");
    line!(out, "tracking_total_prefixes:{prefixes}");
    line!(out, "evicted_clients:{}", count.clients_given_up);
    line!(out, "concord_clients_over_limit:{}", count.clients_over_limit);
    line!(out, "total_error_replies:{}", core.errors.total());
    line!(out, "concord_reads:{}", client.read_replies);
    line!(out, "concord_reads_fast:{}", client.fast_reads);
    line!(out, "concord_writes:{}", client.write_replies);
    line!(out, "concord_writes_unknown:{}", client.writes_unknown);
    for (class, latencies) in [("read", &core.reads), ("write", &core.writes)] {
        for percent in [50, 99] {
            let us = latencies.percentile_ns(percent) / US;
            line!(out, "concord_{class}_p{percent}_us:{us}");
        }
    }
}

/// To a client there is one server, without replicas.
fn replication(core: &Core, _: &Facts<'_>, out: &mut String) {
    line!(out, "role:master");
    line!(out, "connected_slaves:0");
    line!(out, "master_failover_state:no-failover");
    line!(out, "master_replid:{}", core.run_id);
    line!(out, "master_replid2:{}", "0".repeat(core.run_id.len()));
    line!(out, "master_repl_offset:0");
    line!(out, "second_repl_offset:-1");
    line!(out, "repl_backlog_active:0");
}

/// The CPU usage of the gateway's process.
fn cpu(core: &Core, _: &Facts<'_>, out: &mut String) {
    let Process { all, main, children, .. } = &core.process;
    for (whose, time) in [("", all), ("_children", children), ("_main_thread", main)] {
        for (name, us) in [("sys", time.system_us), ("user", time.user_us)] {
            line!(out, "used_cpu_{name}{whose}:{}.{:06}", us / 1_000_000, us % 1_000_000);
        }
    }
}

fn commandstats(core: &Core, _: &Facts<'_>, out: &mut String) {
    for entry in core.commands.called() {
        let (name, refused, failed) = (&entry.name, entry.refused, entry.failed);
        let calls = entry.calls - refused;
        line!(out, "cmdstat_{name}:calls={calls},rejected_calls={refused},failed_calls={failed}");
    }
}

fn errorstats(core: &Core, _: &Facts<'_>, out: &mut String) {
    for (word, count) in core.errors.by_word() {
        line!(out, "errorstat_{word}:count={count}");
    }
}

/// A line for each database that has keys, as in Redis, or one line for all of them if a replica
/// does not know.
fn keyspace(_: &Core, facts: &Facts<'_>, out: &mut String) {
    let names = (0..DATABASES).map(|database| format!("db{database}"));
    let told = names.filter_map(|name| Some((field(facts.data?, &name)?, name)));
    let before = out.len();
    told.for_each(|(value, name)| line!(out, "{name}:{}", String::from_utf8_lossy(value)));
    if out.len() > before {
        return;
    }
    let of = |name| number(facts.data.unwrap_or_default(), name);
    if let (Some(keys @ 1..), Some(expires), Some(ttl)) = (of("keys"), of("expires"), of("avg_ttl"))
    {
        line!(out, "db0:keys={keys},expires={expires},avg_ttl={ttl}");
    }
}

/// 160 bits in hexadecimal, as Redis names a run of the server.
pub(crate) fn run_id(words: [u64; 3]) -> String {
    let text: String = words.iter().map(|word| format!("{word:016x}")).collect();
    text[..40].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(args: &[&[u8]]) -> Vec<&'static str> {
        Wanted::of(args).sections().map(|section| section.name).collect()
    }

    #[test]
    fn sections_are_chosen_as_redis_does() {
        assert_eq!(names(&[b"keyspace", b"CPU", b"nosuch"]), ["CPU", "Keyspace"]);
        assert!(names(&[b"nosuch"]).is_empty());
        assert_eq!(names(&[]), names(&[b"default"]));
        assert!(!names(&[]).contains(&"Commandstats"));
        assert_eq!(names(&[b"ALL"]).len(), SECTIONS.len());
        assert_eq!(names(&[b"everything"]).len(), SECTIONS.len());
        assert!(names(&[b"default", b"commandstats"]).contains(&"Commandstats"));
    }

    #[test]
    fn bytes_are_shown_in_units_as_redis_does() {
        let shown = [(0, "0B"), (1_023, "1023B"), (941_192, "919.13K"), (25_276_510_208, "23.54G")];
        for (bytes, text) in shown {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn a_run_has_40_hexadecimal_digits() {
        assert_eq!(run_id([1, u64::MAX, 2]), "0000000000000001ffffffffffffffff00000000");
    }
}
