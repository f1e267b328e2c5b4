//! Concordia: nodes of a shared memory, each with a store for Redis clients, and the switch that
//! keeps the memory coherent.

mod args;
mod look;
mod roles;
mod section;
#[cfg(feature = "lab")]
mod sim;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use concord_runtime::Error;
use concord_wire::control::MEMORY_NODES_MAX;
use serde_json::{Map, Value, json};

use super::System;
use crate::cli::UpArgs;
use crate::rack::{Group, GroupPlace, Kind, LOCALHOST, Rack};
use crate::status::{Role, counter, share};
use crate::up::children::Children;
use crate::up::is_said;
use crate::up::place::{Ports, port_after, wanted};

pub use args::{MemoryArgs, NodeArgs};
pub use look::memory;
pub use roles::node;
pub use section::{Coherence, MemoryPlace, Shape, check};
#[cfg(feature = "lab")]
pub use sim::simulate;

/// The number and the name of the group that `concord up` makes.
const NUMBER: u16 = 1;
const NAME: &str = "memory";
const NODES: u16 = 4;
/// The default port at which the first node serves Redis clients.
const LISTEN_PORT: u16 = 7390;

/// A shared memory.
#[derive(Debug)]
pub struct Concordia;

fn groups(rack: &mut Rack) -> impl Iterator<Item = &mut GroupPlace> {
    rack.group.iter_mut().filter(|group| group.kind == Kind::Memory)
}

/// All nodes of a rack, each with its group.
fn nodes<'a>(groups: &'a [Group<'a>]) -> impl Iterator<Item = (&'a Group<'a>, &'a MemoryPlace)> {
    groups.iter().flat_map(|group| group.nodes.iter().map(move |node| (group, node)))
}

impl System for Concordia {
    fn kind(&self) -> Kind {
        Kind::Memory
    }

    fn add(&self, rack: &mut Rack) {
        if groups(rack).next().is_none() {
            rack.group.push(GroupPlace::new(NAME, NUMBER, Kind::Memory));
        }
    }

    fn overlay(&self, rack: &mut Rack, args: &UpArgs) {
        for group in groups(rack) {
            group.block_bytes = args.block_bytes.or(group.block_bytes);
            group.coherence = args.coherence.or(group.coherence);
        }
    }

    /// Claims the addresses at which nodes listen, if they are given; `--listen` is for gateways
    /// and owners if there are any.
    fn claim(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
        let wants_any = args.nodes.is_some() || args.block_bytes.is_some();
        if groups(rack).next().is_none() && (wants_any || args.coherence.is_some()) {
            let why = "--nodes, --block-bytes and --coherence are for racks with a shared memory: say --system \
                       concordia";
            return Err(Error::new(why));
        }
        if let Some(count) = args.nodes.filter(|n| !(1..=MEMORY_NODES_MAX).contains(&(*n).into())) {
            return Err(Error::new(format!(
                "--nodes {count}: a shared memory has 1 to {MEMORY_NODES_MAX} nodes"
            )));
        }
        let others = rack.group.iter().any(|group| group.kind != Kind::Memory);
        let is_free = rack.gateway.is_empty() && !others;
        let first = match args.listen.filter(|_| is_free) {
            Some(listen) => listen,
            None => SocketAddr::new(IpAddr::V4(LOCALHOST), LISTEN_PORT),
        };
        let mut next = Some(first.port());
        for group in groups(rack) {
            for node in &mut group.memory {
                node.listen = ports.claim(node.listen)?;
            }
            for node in 1..=wanted("node", group.memory.len(), args.nodes, NODES)? {
                let port =
                    next.ok_or_else(|| Error::new("--listen: no ports left for the nodes"))?;
                let listen = ports.claim(SocketAddr::new(first.ip(), port))?;
                let (addr, http) = (ports.udp()?, ports.http()?);
                group.memory.push(MemoryPlace { node, addr, http, listen });
                next = port_after(port, 1);
            }
        }
        Ok(())
    }

    fn place(&self, _rack: &mut Rack, _args: &UpArgs, _ports: &mut Ports) -> Result<(), Error> {
        Ok(())
    }

    fn start(&self, rack: &Rack, file: &Path, children: &mut Children) -> Result<(), Error> {
        for (group, node) in nodes(&rack.groups()?) {
            children.add_member(group, "node", node.node, file, (node.addr, node.http))?;
        }
        Ok(())
    }

    fn headline(&self, _rack: &Rack, group: &Group<'_>) -> String {
        let (count, Shape { block_bytes, range_blocks, coherence, .. }) =
            (group.nodes.len(), group.memory);
        let mib = (range_blocks * u64::from(block_bytes) * 32) >> 20;
        let by = match coherence {
            Coherence::Concordia => "kept coherent by the switch (Concordia)",
            Coherence::Base => "kept coherent by the blocks' homes",
            Coherence::Gam => "kept coherent by the blocks' homes, which gather acknowledgements",
        };
        format!(
            "a shared memory of {count} nodes, up to {mib} MiB in blocks of {block_bytes} bytes, {by}"
        )
    }

    fn keeps_data(&self, _group: &Group<'_>) -> bool {
        false
    }

    /// `None` once every node serves.
    fn missing(&self, rack: &Rack) -> Option<String> {
        let groups = rack.groups().unwrap_or_default();
        let (group, node) = nodes(&groups).find(|(_, node)| !is_said(node.http, "serving"))?;
        Some(format!("{} does not serve", group.member_name("node", node.node)))
    }

    fn notes(&self, rack: &Rack) -> Vec<String> {
        let groups = rack.groups().unwrap_or_default();
        let own = groups.iter().filter(|group| group.kind == Kind::Memory);
        own.map(|group| {
            let name = group.name;
            format!(
                "{name}: a node that dies takes the part of the memory with it that it alone had"
            )
        })
        .collect()
    }

    fn how_to_use(&self, rack: &Rack) -> Vec<String> {
        let groups = rack.groups().unwrap_or_default();
        let mut lines = Vec::new();
        for group in groups.iter().filter(|group| group.kind == Kind::Memory) {
            let all: Vec<String> =
                group.nodes.iter().map(|node| node.reached().to_string()).collect();
            lines.push(format!("Redis clients of {} connect to {}.", group.name, all.join(", ")));
            if let Some(node) = group.nodes.first() {
                let (host, port) = (node.reached().ip(), node.reached().port());
                lines.push(format!("  redis-cli -h {host} -p {port} INCR visits"));
            }
        }
        lines
    }

    fn farewell(&self, rack: &Rack) -> Option<&'static str> {
        let has_any = rack.group.iter().any(|group| group.kind == Kind::Memory);
        has_any.then_some("What was in the shared memory has ended with it.")
    }

    fn roles(&self, rack: &Rack) -> Result<Vec<Role>, Error> {
        let groups = rack.groups()?;
        let role = |(group, node): (&Group<'_>, &MemoryPlace)| {
            Role::member(group, "node", node.node, node.addr, node.http).known_as(node.reached())
        };
        Ok(nodes(&groups).map(role).collect())
    }

    fn describe(&self, role: &Value) -> Option<String> {
        if role["role"] != "node" {
            return None;
        }
        let status = &role["status"];
        let gauge = |name: &str| status["gauges"][name].as_f64().unwrap_or(0.0);
        let rate = |name: &str| role["rates"][name].as_f64().unwrap_or(0.0);
        let lost = match gauge("blocks_lost") {
            0.0 => String::new(),
            blocks => format!(", {blocks} blocks LOST (concord memory renew)"),
        };
        Some(format!(
            "epoch {}, {:.0} commands/s, {:.0} events/s, {} blocks at home, {} in its cache{lost}",
            status["epoch"],
            rate("commands"),
            rate("memory_events"),
            gauge("blocks_home"),
            gauge("blocks_cached"),
        ))
    }

    fn settings(&self, group: &Group<'_>) -> Map<String, Value> {
        let Shape { block_bytes, range_blocks, cache_blocks, coherence } = group.memory;
        let all = [
            ("program", json!(group.program.name())),
            ("block_bytes", json!(block_bytes)),
            ("range_blocks", json!(range_blocks)),
            ("cache_blocks", json!(cache_blocks)),
            ("coherence", json!(coherence)),
        ];
        all.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }

    fn figures(&self, members: &[&Value]) -> Map<String, Value> {
        let sum = |name: &str| members.iter().map(|status| counter(status, name)).sum::<f64>();
        let hits = sum("memory_hits");
        [("hit_share".to_string(), share(hits, sum("memory_misses")))].into_iter().collect()
    }

    fn describe_group(&self, told: &Value) -> String {
        let hits = match told["hit_share"].as_f64() {
            Some(share) => format!(", {:.0}% of the accesses from caches", share * 100.0),
            None => String::new(),
        };
        let (bytes, coherence) = (&told["block_bytes"], told["coherence"].as_str().unwrap_or("?"));
        format!("a shared memory, blocks of {bytes} bytes, coherence {coherence}{hits}")
    }
}
