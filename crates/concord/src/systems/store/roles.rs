//! Replicas and gateways as processes, built from the rack file.

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum as _;
use concord_core::{MS, SEC};
use concord_runtime::Error;
use concord_runtime::coord::CoordPlace;
use concord_runtime::disk::DiskFault;
use concord_runtime::driver::DriverOptions;
use concord_runtime::redis_server::BusyLimits;
use concord_runtime::roles::gateway::{ChainSetup, GatewaySetup};
use concord_runtime::roles::replica::{DiskSetup, EngineSetup, ReplicaSetup};
use concord_runtime::roles::{Place, gateway as gateway_role, replica as replica_role};

use super::{Accel, Durability, Engine, GatewayPlace, Protocol};
use crate::cli::{ReplicaArgs, RoleArgs};
use crate::rack::{Group, Rack, in_file, line_of, pick, pick_member, wire};
use crate::systems::netcraq;

/// `concord replica`.
///
/// # Errors
/// One line for a person.
pub fn replica(replica_args: &ReplicaArgs) -> Result<(), Error> {
    let args = &replica_args.role;
    args.log.init()?;
    let rack = Rack::read_whole(&args.config)?;
    let groups = rack.groups()?;
    let wanted = (replica_args.group.as_deref(), args.node);
    let (mut group, own) = pick_member("replica", &groups, |g| g.replicas, |r| r.node, wanted)
        .map_err(in_file(&args.config))?;
    group.durability = replica_args.durability.unwrap_or(group.durability);
    group.check().map_err(|mistake| Error::new(mistake.to_string()))?;
    let options = DriverOptions { supervised: args.supervised, cpu_share: own.cpu_share };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let setup = ReplicaSetup {
        group: group.id,
        protocol: group.protocol.wire(),
        controller: wire(rack.controller()?.addr),
        lease_ns: rack.lease_ns(),
        replies_via_switch: rack.replies_via_switch,
        reads: rack.reads.of_leader(),
        tells_queue: group.program.checks_replies() && rack.key_groups.load_awareness,
        compare_ns: rack.compare_ms.saturating_mul(MS),
        damage: rack
            .faults
            .damage
            .as_ref()
            .map(|dir| dir.join(group.member_stem("replica", own.node))),
        memory_bytes_max: group.maxmemory.0,
        log_memory_bytes: usize::try_from(rack.log_memory.0).unwrap_or(usize::MAX),
        disk: match group.durability {
            Durability::None => None,
            Durability::Fsync | Durability::Interval => {
                let default = || Path::new("data").join(group.member_stem("replica", own.node));
                let said = replica_args.data_dir.clone().or_else(|| own.data_dir.clone());
                let hold_ms = rack.faults.disk_hold_ms;
                let hold = (hold_ms > 0).then(|| Duration::from_millis(hold_ms));
                let hang = rack.faults.disk_hang.as_ref();
                let hang = hang.map(|dir| dir.join(group.member_stem("replica", own.node)));
                let fault = DiskFault { hold, hang, ..DiskFault::default() };
                let acks_early = group.durability == Durability::Interval;
                let directory = said.unwrap_or_else(default);
                let scrub_rest = Some(Duration::from_secs(rack.scrub_seconds));
                let scrub_rest = scrub_rest.filter(|rest| !rest.is_zero());
                Some(DiskSetup { directory, acks_early, scrub_rest, fault })
            }
        },
        engine: match group.engine {
            Engine::Memory => EngineSetup::Memory,
            Engine::Redis => EngineSetup::Redis {
                program: rack.redis_server.clone(),
                limits: BusyLimits {
                    longest_ns: rack.script_seconds.saturating_mul(SEC),
                    ..BusyLimits::default()
                },
                directory: own
                    .directory
                    .clone()
                    .unwrap_or_else(|| group.member_stem("replica", own.node).into()),
            },
        },
    };
    replica_role::run(&place, &setup)
}

/// `concord gateway`.
///
/// # Errors
/// One line for a person.
pub fn gateway(args: &RoleArgs) -> Result<(), Error> {
    args.log.init()?;
    let rack = Rack::read_whole(&args.config)?;
    let own = pick("gateway", &rack.gateway, |g| g.node, args.node);
    let own = own.map_err(in_file(&args.config))?;
    let at = rack.gateway.iter().position(|gateway| gateway.node == own.node).unwrap_or_default();
    let options = DriverOptions { supervised: args.supervised, cpu_share: None };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let group = rack.group_of(own)?;
    let serves = |other: &GatewayPlace| rack.group_of(other).is_ok_and(|of| of.id == group.id);
    let others = rack.gateway.iter().filter(|other| other.node != own.node && serves(other));
    let others = others.map(|other| (other.node, wire(other.addr))).collect();
    let setup = GatewaySetup {
        group: group.id,
        switch: wire(rack.switch()?.addr),
        controller: wire(rack.controller()?.addr),
        others,
        listen: own.listen,
        listen_said_in: line_of(&args.config, &format!("gateway.{at}.listen")),
        requirepass: rack.requirepass.clone(),
        splits_reads: rack.split_reads,
        readers: match rack.reads.are_chosen() && group.protocol == Protocol::Raft {
            true => group.replicas.iter().map(|replica| replica.node).collect(),
            false => Vec::new(),
        },
        redis: group.engine == Engine::Redis,
        memory_bytes_max: group.maxmemory.0,
        replies_bytes_max: usize::try_from(rack.reply_memory.0).unwrap_or(usize::MAX),
        value_bytes_max: usize::try_from(rack.max_value.0).unwrap_or(usize::MAX),
        chain: coord_chain(&rack, &args.config)?,
        rack_info: rack_info(&rack, &group),
    };
    gateway_role::run(&place, &setup)
}

/// The chain whose keys the gateway serves, if the file has a prefix for them.
fn coord_chain(rack: &Rack, file: &Path) -> Result<Option<ChainSetup>, Error> {
    if rack.coord_prefix.is_empty() {
        return Ok(None);
    }
    let (place, layout) = netcraq::place(file, None, None, Duration::ZERO)?;
    let (prefix, value_bytes) = (rack.coord_prefix.clone().into_bytes(), layout.value_bytes);
    let CoordPlace { group, switches, .. } = place;
    Ok(Some(ChainSetup { prefix, group, switches, value_bytes }))
}

/// The section `Concord` of INFO.
fn rack_info(rack: &Rack, group: &Group<'_>) -> String {
    let accel = Accel::of(group.program);
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map_or_else(String::new, |value| value.get_name().to_string())
    };
    format!(
        "protocol:{}\r\naccel:{}\r\nengine:{}\r\nreplicas:{}\r\ngateways:{}\r\n",
        name(group.protocol.to_possible_value()),
        name(accel.to_possible_value()),
        name(group.engine.to_possible_value()),
        group.replicas.len(),
        rack.gateway.len(),
    )
}
