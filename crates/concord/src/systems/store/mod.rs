//! The replicated store: groups of replicas behind gateways for Redis clients, with or without the
//! switch's help.

mod data;
mod explain;
mod kept;
mod roles;
mod section;
#[cfg(feature = "lab")]
mod sim;
mod voters;

use std::io::Error as IoError;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use concord_runtime::Error;
use concord_wire::GroupId;
use serde_json::{Map, Value, json};

use super::{Choice, System};
use crate::cli::UpArgs;
use crate::net::{Redis, Reply};
use crate::rack::{Group, Kind, LOCALHOST, Rack};
use crate::status::{Role, counter, latency, share};
use crate::up::children::Children;
use crate::up::is_said;
use crate::up::place::{Ports, port_after, set, wanted};

pub use data::{backup, restore};
pub use explain::explain;
pub use kept::Earlier;
pub use roles::{gateway, replica};
pub use section::{
    Accel, Durability, Engine, GatewayPlace, KeyGroups, Protocol, Reads, ReplicaPlace, Table,
};
#[cfg(feature = "lab")]
pub use sim::simulate;
pub use voters::{missing_in_file, voters};

const REPLICAS: u16 = 3;
const GATEWAYS: u16 = 1;
const LISTEN_PORT: u16 = 7379;
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// The store.
#[derive(Debug)]
pub struct Store;

impl System for Store {
    fn kind(&self) -> Kind {
        Kind::Replicas
    }

    /// A rack without groups has a store; one with groups gets its replicas when they are placed.
    fn add(&self, _rack: &mut Rack) {}

    fn overlay(&self, rack: &mut Rack, args: &UpArgs) {
        set(&mut rack.protocol, &args.protocol);
        set(&mut rack.accel, &args.accel);
        set(&mut rack.reads, &args.reads);
        set(&mut rack.engine, &args.engine);
        set(&mut rack.durability, &args.durability);
        set(&mut rack.faults.disk_hold_ms, &args.fault_disk_hold);
        if args.fault_disk_hang.is_some() {
            rack.faults.disk_hang.clone_from(&args.fault_disk_hang);
        }
        set(&mut rack.requirepass, &args.requirepass);
        rack.split_reads |= args.split_reads;
        set(&mut rack.maxmemory, &args.maxmemory);
        set(&mut rack.redis_server, &args.redis_server);
        set(&mut rack.table.stages, &args.table_stages);
        set(&mut rack.table.slots, &args.table_slots);
    }

    /// Claims the addresses at which gateways listen, if they are given.
    fn claim(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
        if let (Some(listen), Some(gateway)) = (args.listen, rack.gateway.first_mut()) {
            gateway.listen = listen;
        }
        for gateway in &mut rack.gateway {
            gateway.listen = ports.claim(gateway.listen)?;
        }
        let first = args.listen.unwrap_or(SocketAddr::new(IpAddr::V4(LOCALHOST), LISTEN_PORT));
        for (node, group) in (1..).zip(left_out(rack, args)?) {
            let port = port_after(first.port(), node - 1);
            let port =
                port.ok_or_else(|| Error::new("--listen: no ports left for the gateways"))?;
            let listen = ports.claim(SocketAddr::new(first.ip(), port))?;
            let (addr, http) = (ports.udp()?, ports.http()?);
            rack.gateway.push(GatewayPlace { node, addr, http, group, listen });
        }
        Ok(())
    }

    fn place(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error> {
        if has_store(rack, args) {
            for node in 1..=wanted("replica", rack.replica.len(), args.replicas, REPLICAS)? {
                let replica = placed(args, "", node, ports)?;
                rack.replica.push(replica);
            }
        }
        let stores = rack.group.iter_mut().filter(|group| group.kind == Kind::Replicas);
        for group in stores.filter(|group| group.replica.is_empty()) {
            for node in 1..=REPLICAS {
                let replica = placed(args, &format!("{}-", group.name), node, ports)?;
                group.replica.push(replica);
            }
        }
        let data = args.run_dir.join(kept::DATA);
        let is_durable = rack.durability != Durability::None;
        let said = [(String::new(), is_durable, &mut rack.replica)];
        let groups = rack.group.iter_mut().map(|group| {
            let own = group.durability.map_or(is_durable, |own| own != Durability::None);
            (format!("{}-", group.name), own, &mut group.replica)
        });
        for (prefix, is_durable, replicas) in said.into_iter().chain(groups) {
            for replica in replicas {
                if is_durable && replica.data_dir.is_none() {
                    replica.data_dir = Some(data.join(format!("{prefix}replica-{}", replica.node)));
                }
                set(&mut replica.cpu_share, &args.cpu_share.map(Some));
            }
        }
        Ok(())
    }

    fn has_data(&self, earlier: &Earlier<'_>, rack: &Rack) -> Result<bool, Error> {
        kept::check(earlier, rack)
    }

    fn gone(&self, earlier: &Earlier<'_>, rack: &Rack) -> Result<Vec<GroupId>, Error> {
        kept::gone(earlier, rack)
    }

    fn prepare(&self, before: Option<&Rack>, rack: &Rack) -> Result<Vec<String>, Error> {
        let acks_early = |rack: &Rack| {
            let groups = rack.groups().unwrap_or_default();
            groups.iter().any(|group| group.durability == Durability::Interval)
        };
        let may_owe = acks_early(rack) || before.is_some_and(acks_early);
        if may_owe { data::begin_anew_if_lost(rack) } else { Ok(Vec::new()) }
    }

    fn start(&self, rack: &Rack, file: &Path, children: &mut Children) -> Result<(), Error> {
        for group in rack.groups()?.iter().filter(|group| group.kind == Kind::Replicas) {
            for replica in group.replicas {
                let own = (replica.addr, replica.http);
                children.add_member(group, "replica", replica.node, file, own)?;
            }
        }
        for gateway in &rack.gateway {
            let own = (gateway.addr, gateway.http);
            children.add("gateway", Some(gateway.node), &[], file, own)?;
        }
        Ok(())
    }

    fn headline(&self, rack: &Rack, group: &Group<'_>) -> String {
        let protocol = match group.protocol {
            Protocol::Chain => "chain replication",
            Protocol::PrimaryBackup => "primary-backup replication",
            Protocol::Vr => "Viewstamped Replication",
            Protocol::Craq => "CRAQ",
            Protocol::NoPaxos => "NOPaxos",
            Protocol::Raft => "Raft",
        };
        let accel = if group.program.has_dirty_set() {
            "reads at every replica (Harmonia)"
        } else if group.program.checks_replies() {
            "reads at followers, checked by the switch (FLAIR)"
        } else if group.is_store() && rack.accel == Accel::Harmonia {
            // Refused if the switch cannot help.
            "reads at every replica (Harmonia)"
        } else if rack.reads == Reads::FollowerLease && group.protocol == Protocol::Raft {
            "reads at followers by leases"
        } else if rack.reads == Reads::Quorum && group.protocol == Protocol::Raft {
            "reads at every replica, by a majority's word"
        } else {
            "without the switch's help"
        };
        let engine = match group.engine {
            Engine::Memory => "memory engine",
            Engine::Redis => "Redis engine",
        };
        format!("{} replicas, {protocol}, {accel}, {engine}", group.replicas.len())
    }

    fn keeps_data(&self, group: &Group<'_>) -> bool {
        group.durability != Durability::None
    }

    /// `None` once writes are executed through every gateway, and every gateway knows all commands.
    fn missing(&self, rack: &Rack) -> Option<String> {
        for gateway in &rack.gateway {
            match write_through(gateway.reached(), &rack.requirepass) {
                Ok(()) => {}
                // The rack has another password, or other rights, than the flag says: it serves
                // other clients.
                Err(e) if is_refusal(&e) && is_said(gateway.http, "serving") => {}
                Err(e) => return Some(format!("gateway {}: {e}", gateway.node)),
            }
        }
        // With the Redis engine a gateway first has to ask for the server's commands.
        let knows = |gateway: &&GatewayPlace| !is_said(gateway.http, "serving");
        let gateway = rack.gateway.iter().find(knows)?;
        Some(format!("gateway {} does not know the engine's commands yet", gateway.node))
    }

    fn notes(&self, rack: &Rack) -> Vec<String> {
        let mut notes = match durability(rack) {
            None => Vec::new(),
            Some(Durability::None) => vec![
                "*** NOTHING IS ON DISK: the data is gone when the rack stops. ***".to_string(),
                "(Without --durability none it is kept.)".to_string(),
            ],
            Some(Durability::Interval) => {
                vec![
                    "data: on disk each second; a power cut of all may take the last second"
                        .to_string(),
                ]
            }
            Some(Durability::Fsync) => {
                vec![
                    "data: on disk before it is acknowledged (--durability none keeps nothing)"
                        .to_string(),
                ]
            }
        };
        if rack.faults.disk_hold_ms > 0 {
            let held = "*** A FAULT ON PURPOSE: disks have what was synced, and nothing else. ***";
            notes.push(held.to_string());
        }
        if let Some(dir) = &rack.faults.disk_hang {
            let dir = dir.display();
            notes.push(format!("*** A FAULT ON PURPOSE: disks hang as files in {dir} say. ***"));
        }
        if let Some(dir) = &rack.faults.damage {
            let dir = dir.display();
            notes.push(format!(
                "*** A FAULT ON PURPOSE: keys are damaged as files in {dir} say. ***"
            ));
        }
        notes
    }

    fn how_to_use(&self, rack: &Rack) -> Vec<String> {
        let client = |gateway: &GatewayPlace| {
            let (host, port) = (gateway.reached().ip(), gateway.listen.port());
            let of = gateway.group.as_ref().map_or(String::new(), |name| format!("   ({name})"));
            format!("  redis-cli -h {host} -p {port}{of}")
        };
        let clients: Vec<String> = rack.gateway.iter().map(client).collect();
        let heading = "Redis clients connect to:".to_string();
        if clients.is_empty() { clients } else { [vec![heading], clients].concat() }
    }

    fn farewell(&self, rack: &Rack) -> Option<&'static str> {
        durability(rack).map(|durability| match durability {
            Durability::None => "The data is gone with it.",
            Durability::Fsync | Durability::Interval => "The data is on disk.",
        })
    }

    fn roles(&self, rack: &Rack) -> Result<Vec<Role>, Error> {
        let mut roles = Vec::new();
        for group in rack.groups()?.iter().filter(|group| group.kind == Kind::Replicas) {
            let replicas = group.replicas.iter();
            let own = replicas.map(|r| Role::member(group, "replica", r.node, r.addr, r.http));
            roles.extend(own);
        }
        for gateway in &rack.gateway {
            let own = Role::new("gateway", gateway.node, gateway.addr, gateway.http);
            roles.push(own.known_as(gateway.reached()));
        }
        Ok(roles)
    }

    fn describe(&self, role: &Value) -> Option<String> {
        let status = &role["status"];
        let gauge = |name: &str| status["gauges"][name].as_f64().unwrap_or(0.0);
        let rate = |name: &str| role["rates"][name].as_f64().unwrap_or(0.0);
        match role["role"].as_str() {
            Some("replica") => Some(format!(
                "{}, epoch {}, {}, {} keys, {}, {:.0} writes/s{}",
                where_it_stands(status),
                status["epoch"],
                if status["leased"] == true { "leased" } else { "no lease" },
                gauge("keys"),
                reads(role),
                rate("records_applied"),
                on_disk(status),
            )),
            Some("gateway") => Some(format!(
                "{} connections, {:.0} commands/s, reads {}, writes {}",
                gauge("connections_open"),
                rate("commands"),
                latency(&role["latencies"]["read_seconds"]),
                latency(&role["latencies"]["write_seconds"]),
            )),
            _ => None,
        }
    }

    fn figures(&self, members: &[&Value]) -> Map<String, Value> {
        let sum = |name: &str| members.iter().map(|status| counter(status, name)).sum::<f64>();
        let of = |some: &str, others: &str| share(sum(some), sum(others));
        let mut figures = Map::new();
        figures.insert("fast_read_share".to_string(), of("reads_fast", "reads_slow"));
        figures.insert("clean_read_share".to_string(), of("reads_clean", "reads_dirty"));
        figures
    }

    /// Reports replicas that lost what they had promised: such a replica does not count in a
    /// majority until a majority has told it everything.
    fn wrong(&self, group: &Group<'_>, members: &[&Value]) -> Vec<String> {
        let is_quorum = matches!(group.protocol, Protocol::Vr | Protocol::NoPaxos | Protocol::Raft);
        let (all, lost) =
            (group.replicas.len(), members.iter().filter(|m| m["place"] == "recovering"));
        let lost: Vec<String> = lost.map(|status| status["node"].to_string()).collect();
        if !is_quorum || all - lost.len().min(all) > all / 2 {
            return Vec::new();
        }
        let of = group.member_name("replicas", 0).replace(" 0", "");
        vec![format!(
            "PROBLEM: {of} {} of {all} have lost what they had promised, or an older directory was put back, and the \
             others are no majority: bring their newest directories back; if they are gone, begin a new rack with the \
             newest that is left (`concord backup --data-dir`, `concord restore`)",
            lost.join(" and "),
        )]
    }

    fn describe_group(&self, told: &Value) -> String {
        let share = |name: &str| told[name].as_f64().map(|share| share * 100.0);
        let reads = match (share("fast_read_share"), share("clean_read_share")) {
            (_, Some(clean)) => format!("reads of clean objects: {clean:.1}%"),
            (Some(fast), None) => format!("reads on the fast path: {fast:.1}%"),
            (None, None) => "no reads yet".to_string(),
        };
        let text = |name: &str| told[name].as_str().unwrap_or("?");
        let (protocol, accel, engine) = (text("protocol"), text("accel"), text("engine"));
        format!("{protocol}, {accel}, {engine} engine\n{reads}")
    }

    fn settings(&self, group: &Group<'_>) -> Map<String, Value> {
        let accel = Accel::of(group.program);
        let all = [
            ("protocol", json!(group.protocol)),
            ("accel", json!(accel)),
            ("engine", json!(group.engine)),
        ];
        all.map(|(key, value)| (key.to_string(), value)).into_iter().collect()
    }
}

/// What a replica has on disk, and how long its last sync took; empty without a disk.
fn on_disk(status: &Value) -> String {
    let Some(bytes) = status["log_bytes"].as_f64() else { return String::new() };
    let sync_ms = status["last_sync_ns"].as_f64().unwrap_or(0.0) / 1e6;
    format!(", {:.1} MB on disk, synced in {sync_ms:.1} ms", bytes / 1e6)
}

/// Whether there is, or will be, a store at the top level.
fn has_store(rack: &Rack, args: &UpArgs) -> bool {
    rack.has_store() || args.replicas.is_some() || args.system == Some(Choice::Store)
}

/// The gateways that the file leaves out, each with the name of the group that it serves.
fn left_out(rack: &Rack, args: &UpArgs) -> Result<Vec<Option<String>>, Error> {
    let has_store = has_store(rack, args);
    let groups = rack.group.iter().filter(|group| group.kind == Kind::Replicas);
    let mut served: Vec<Option<String>> = groups.map(|group| Some(group.name.clone())).collect();
    if has_store {
        served.insert(0, None);
    }
    let Some(first) = served.first().cloned() else { return Ok(Vec::new()) };
    let count = wanted("gateway", rack.gateway.len(), args.gateways, GATEWAYS)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let more = std::iter::repeat_n(first, usize::from(count - 1));
    Ok(more.chain(served).collect())
}

/// A replica at free ports of this host.
fn placed(
    args: &UpArgs,
    prefix: &str,
    node: u16,
    ports: &mut Ports,
) -> Result<ReplicaPlace, Error> {
    let (addr, http) = (ports.udp()?, ports.http()?);
    let directory = Some(args.run_dir.join(format!("{prefix}replica-{node}")));
    Ok(ReplicaPlace { node, addr, http, directory, data_dir: None, cpu_share: None })
}

/// Which of the rack's data survives, if there is any: the weakest promise of its groups.
fn durability(rack: &Rack) -> Option<Durability> {
    let groups = rack.groups().unwrap_or_default();
    let mut stores = groups.iter().filter(|group| group.kind == Kind::Replicas);
    let first = stores.next()?.durability;
    let all_same = stores.all(|group| group.durability == first);
    Some(if all_same { first } else { Durability::None })
}

/// Whether a gateway that has the rack's users refuses this login.
fn is_refusal(error: &IoError) -> bool {
    let text = error.to_string();
    let refusals = ["NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH <password> called without"];
    refusals.iter().any(|refusal| text.starts_with(refusal))
}

/// Makes a write that changes nothing.
fn write_through(listen: SocketAddr, password: &str) -> std::io::Result<()> {
    let mut redis = Redis::connect(listen, password, ASK_TIMEOUT)?;
    match redis.call(&[b"DEL", b"concord:no such key"])? {
        Reply::Text(_) => Ok(()),
        Reply::Error(why) => Err(IoError::other(why)),
        Reply::Array(_) => Err(IoError::other("an array for DEL")),
    }
}

/// How a replica answers reads: by Harmonia and the normal protocol, or by CRAQ.
fn reads(role: &Value) -> String {
    let rate = |name: &str| role["rates"][name].as_f64().unwrap_or(0.0);
    let seen = |name: &str| counter(&role["status"], name) > 0.0;
    if seen("reads_clean") || seen("reads_dirty") {
        let (clean, dirty) = (rate("reads_clean"), rate("reads_dirty"));
        return format!("{clean:.0} clean and {dirty:.0} dirty reads/s");
    }
    format!("{:.0} fast and {:.0} slow reads/s", rate("reads_fast"), rate("reads_slow"))
}

/// The progress of a replica: "open, tail", or "joining, 43% copied".
fn where_it_stands(status: &Value) -> String {
    let phase = status["phase"].as_str().unwrap_or("?");
    match status["copied_percent"].as_u64() {
        Some(percent) => format!("{phase}, {percent}% copied"),
        None => format!("{phase}, {}", status["place"].as_str().unwrap_or("?")),
    }
}
