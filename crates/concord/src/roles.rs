//! The roles as processes: from the rack file to the runtime.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use concord_control::{ControllerConfig, GroupSetup, Recover};
use concord_core::Incarnation;
use concord_runtime::disk::DiskFault;
use concord_runtime::driver::DriverOptions;
use concord_runtime::roles::controller::ControllerSetup;
use concord_runtime::roles::gateway::GatewaySetup;
use concord_runtime::roles::replica::{DiskSetup, EngineSetup, ReplicaSetup};
use concord_runtime::roles::switch::SwitchSetup;
use concord_runtime::roles::{Place, controller, gateway, replica, switch};
use concord_runtime::{Context as _, Error};

use concord_switch::pisa::{ASIC, Report};
use concord_switch::{AgentConfig, Host as _, Hosted, Layout, SwitchProgram as _};
use concord_wire::Addr;
use concord_wire::GroupId;
use concord_wire::control::Program;

use crate::cli::{ControllerArgs, LogCommand, LogCommandArgs, ReplicaArgs, RoleArgs, SwitchArgs};
use crate::rack::{Durability, Engine, Rack, pick, wire};

/// Nobody's address.
const NOBODY: Addr = Addr { ip: 0, port: 0 };
/// The controller, and the switch that is the active one at first.
const FIRST: u16 = 1;

/// `concord controller`.
///
/// # Errors
/// One line for a person.
pub fn controller(args: &ControllerArgs) -> Result<(), Error> {
    args.log.init()?;
    let rack = Rack::read(&args.config)?;
    let own = rack.controller()?;
    let options = DriverOptions { supervised: args.supervised, cpu_share: None };
    let place = Place { node: FIRST, addr: wire(own.addr), http: own.http, options };
    let nodes = rack.replica.iter().map(|r| r.node).collect();
    let replicas = GroupSetup::replicas(nodes, rack.protocol.wire(), rack.program());
    let config = ControllerConfig {
        failure_ns: rack.failure_ns(),
        fresh: args.fresh,
        recover: args.recover.then(|| Recover { gone: args.gone.clone() }),
        // The rack's number is drawn by the role.
        ..ControllerConfig::new(vec![replicas], wire(own.addr))
    };
    controller::run(&place, ControllerSetup { config, state: own.state.clone() })
}

/// `concord switch`.
///
/// # Errors
/// One line for a person.
pub fn switch(args: &SwitchArgs) -> Result<(), Error> {
    let rack = args.config.as_deref().map(Rack::read).transpose()?;
    if args.describe {
        let layout = rack.as_ref().map_or(Layout::DEFAULT, |rack| rack.table.layout());
        let own = [rack.map_or(Program::Harmonia, |rack| rack.program())];
        let programs = if args.programs.is_empty() { &own[..] } else { &args.programs };
        return describe(programs, layout);
    }
    args.log.init()?;
    let rack = rack.ok_or_else(|| Error::new("say --config with the rack file"))?;
    let (node, addr, http) = if args.standby {
        let own = pick("standby", &rack.standby, |s| s.node, args.node)?;
        (own.node, own.addr, own.http)
    } else {
        let own = rack.switch()?;
        (FIRST, own.addr, own.http)
    };
    let options = DriverOptions { supervised: args.supervised, cpu_share: None };
    let place = Place { node, addr: wire(addr), http, options };
    let setup = SwitchSetup {
        controller: wire(rack.controller()?.addr),
        program: rack.program(),
        layout: rack.table.layout(),
        faults: rack.faults.rates(),
        standby: args.standby,
    };
    switch::run(&place, &setup)
}

/// Prints what the programs take of an ASIC together. An error if that is more than there is.
fn describe(programs: &[Program], layout: Layout) -> Result<(), Error> {
    let report = together(programs, layout)?;
    crate::status::print(&format!("{report}\n"))?;
    report.excess(&ASIC).map_or(Ok(()), |excess| Err(Error::new(excess)))
}

/// What the programs take together; at least one.
fn together(programs: &[Program], layout: Layout) -> Result<Report, Error> {
    let config = AgentConfig { layout, ..AgentConfig::new(Incarnation(0), NOBODY, NOBODY) };
    let settings = config.settings();
    let describe = |program: &Program| {
        let hosted = Hosted::host(*program, &settings).cannot("describe the switch's table")?;
        Ok(hosted.describe())
    };
    let reports: Vec<Report> = programs.iter().map(describe).collect::<Result<_, Error>>()?;
    let all = reports.into_iter().reduce(Report::beside);
    all.ok_or_else(|| Error::new("say which programs"))
}

/// `concord replica`.
///
/// # Errors
/// One line for a person.
pub fn replica(replica_args: &ReplicaArgs) -> Result<(), Error> {
    let args = &replica_args.role;
    args.log.init()?;
    let mut rack = Rack::read(&args.config)?;
    rack.durability = replica_args.durability.unwrap_or(rack.durability);
    rack.check().map_err(Error::new)?;
    let own = pick("replica", &rack.replica, |r| r.node, args.node)?;
    let options = DriverOptions { supervised: args.supervised, cpu_share: own.cpu_share };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let setup = ReplicaSetup {
        group: GroupId::FIRST,
        protocol: rack.protocol.wire(),
        controller: wire(rack.controller()?.addr),
        lease_ns: rack.lease_ns(),
        replies_via_switch: rack.replies_via_switch,
        memory_bytes_max: rack.maxmemory.0,
        disk: match rack.durability {
            Durability::None => None,
            Durability::Fsync => {
                let default = || PathBuf::from(format!("data/replica-{}", own.node));
                let said = replica_args.data_dir.clone().or_else(|| own.data_dir.clone());
                let hold_ms = rack.faults.disk_hold_ms;
                let hold = (hold_ms > 0).then(|| Duration::from_millis(hold_ms));
                let fault = DiskFault { hold, fail_sync: None };
                Some(DiskSetup { directory: said.unwrap_or_else(default), fault })
            }
        },
        engine: match rack.engine {
            Engine::Memory => EngineSetup::Memory,
            Engine::Redis => EngineSetup::Redis {
                program: rack.redis_server.clone(),
                directory: own
                    .directory
                    .clone()
                    .unwrap_or_else(|| PathBuf::from(format!("replica-{}", own.node))),
            },
        },
    };
    replica::run(&place, &setup)
}

/// `concord log`.
///
/// # Errors
/// One line that names the file.
pub fn log(args: &LogCommandArgs) -> Result<(), Error> {
    let LogCommand::Inspect { directory } = &args.command;
    crate::status::print(&concord_runtime::directory::inspect(directory)?)
}

/// `concord gateway`.
///
/// # Errors
/// One line for a person.
pub fn gateway(args: &RoleArgs) -> Result<(), Error> {
    args.log.init()?;
    let rack = Rack::read(&args.config)?;
    let own = pick("gateway", &rack.gateway, |g| g.node, args.node)?;
    let options = DriverOptions { supervised: args.supervised, cpu_share: None };
    let place = Place { node: own.node, addr: wire(own.addr), http: own.http, options };
    let setup = GatewaySetup {
        group: GroupId::FIRST,
        switch: wire(rack.switch()?.addr),
        controller: wire(rack.controller()?.addr),
        listen: own.listen,
        requirepass: rack.requirepass.clone(),
        splits_reads: rack.split_reads,
        redis: rack.engine == Engine::Redis,
        memory_bytes_max: rack.maxmemory.0,
        rack_info: rack_info(&rack),
    };
    gateway::run(&place, &setup)
}

/// The section `Concord` of INFO.
fn rack_info(rack: &Rack) -> String {
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map_or_else(String::new, |value| value.get_name().to_string())
    };
    format!(
        "protocol:{}\r\naccel:{}\r\nengine:{}\r\nreplicas:{}\r\ngateways:{}\r\n",
        name(rack.protocol.to_possible_value()),
        name(rack.accel.to_possible_value()),
        name(rack.engine.to_possible_value()),
        rack.replica.len(),
        rack.gateway.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_together_are_held_against_an_asic() {
        let two = [Program::Harmonia, Program::NoPaxos];
        let report = together(&two, Layout::DEFAULT).unwrap();
        assert_eq!((report.stages(), report.multicast_groups), (7, 1));
        assert_eq!((report.sram_bytes_in(0), report.excess(&ASIC)), (4 + 4, None));
        let large = Layout { slots: 1 << 17, ..Layout::DEFAULT };
        assert_eq!(together(&[Program::Harmonia], large).unwrap().excess(&ASIC), None);
        let report = together(&[Program::Harmonia; 2], large).unwrap();
        let excess = "harmonia, harmonia: stage 3 takes 2.0 MiB of register memory, of which an \
                      ASIC has 1.2 MiB in a stage";
        assert_eq!(report.excess(&ASIC).as_deref(), Some(excess));
    }
}
