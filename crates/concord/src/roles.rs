//! The roles that every rack has, as processes, built from the rack file. The roles of a system are
//! in its folder of [`crate::systems`].

use concord_control::{ControllerConfig, Recover};
use concord_core::Incarnation;
use concord_runtime::driver::DriverOptions;
use concord_runtime::roles::controller::ControllerSetup;
use concord_runtime::roles::switch::SwitchSetup;
use concord_runtime::roles::{
    GroupNames, Place, controller as controller_role, switch as switch_role,
};
use concord_runtime::{Context as _, Error};
use concord_switch::pisa::{ASIC, Report};
use concord_switch::{AgentConfig, ChainSeat, Host as _, Hosted, Sections, SwitchProgram as _};
use concord_wire::control::Program;
use concord_wire::{Addr, GroupId};

use crate::cli::{ControllerArgs, LogCommand, LogCommandArgs, SwitchArgs};
use crate::rack::{Group, Rack, in_file, pick, pick_member, wire};

/// The unspecified address.
const NOBODY: Addr = Addr { ip: 0, port: 0 };
/// The node number of the controller, and of the switch that is active at first.
const FIRST: u16 = 1;

/// `concord controller`.
///
/// # Errors
/// One line for a person.
pub fn controller(args: &ControllerArgs) -> Result<(), Error> {
    args.log.init()?;
    let rack = Rack::read_whole(&args.config)?;
    let own = rack.controller()?;
    let options = DriverOptions { supervised: args.supervised, cpu_share: None };
    let place = Place { node: FIRST, addr: wire(own.addr), http: own.http, options };
    let groups = rack.groups()?;
    let config = ControllerConfig {
        failure_ns: rack.failure_ns(),
        switch_failure_ns: rack.switch_failure_ns(),
        fresh: args.fresh,
        recover: args.recover.then_some(Recover { gone: gone(&groups, &args.gone)? }),
        // The role draws the number of the rack.
        ..ControllerConfig::new(groups.iter().map(Group::setup).collect(), wire(own.addr))
    };
    controller_role::run(
        &place,
        ControllerSetup { config, names: names(&groups), state: own.state.clone() },
    )
}

/// Parses the replicas that are gone for good: `2`, or `sessions:2` if there are several groups.
fn gone(groups: &[Group<'_>], said: &[String]) -> Result<Vec<(GroupId, u16)>, Error> {
    let one = |text: &String| {
        let (name, node) = match text.split_once(':') {
            Some((name, node)) => (Some(name), node),
            None => (None, text.as_str()),
        };
        let named = groups.iter().find(|group| name == Some(group.name));
        let group = named.or(groups.first().filter(|_| name.is_none() && groups.len() == 1));
        let names: Vec<&str> = groups.iter().map(|group| group.name).collect();
        let (group, node) = group.zip(node.parse().ok()).ok_or_else(|| {
            let (names, first) = (names.join(", "), names.first().unwrap_or(&""));
            Error::new(format!(
                "--gone {text}: say which group and number, like {first}:2; there are {names}"
            ))
        })?;
        Ok((group.id, node))
    };
    said.iter().map(one).collect()
}

/// `concord switch`.
///
/// # Errors
/// One line for a person.
pub fn switch(args: &SwitchArgs) -> Result<(), Error> {
    if args.describe {
        let rack = args.config.as_deref().map(Rack::read).transpose()?.unwrap_or_default();
        let own: Vec<Program> = rack.groups()?.iter().map(|group| group.program).collect();
        let programs = if args.programs.is_empty() { &own } else { &args.programs };
        return describe(programs, rack.sections());
    }
    args.log.init()?;
    let config = args.config.as_deref();
    let config = config.ok_or_else(|| Error::new("say --config with the rack file"))?;
    let rack = Rack::read_whole(config)?;
    let groups = rack.groups()?;
    let seat = match &args.group {
        Some(name) => {
            let wanted = (Some(&name[..]), args.node);
            let (group, own) = pick_member("switch", &groups, |g| g.switches, |s| s.node, wanted)
                .map_err(in_file(config))?;
            Some((own, ChainSeat::new(group.id, own.node), group.chain_length()))
        }
        None => None,
    };
    let (node, addr, http) = if let Some((own, ..)) = seat {
        (own.node, own.addr, own.http)
    } else if args.standby {
        let own = pick("standby", &rack.standby, |s| s.node, args.node);
        let own = own.map_err(in_file(config))?;
        (own.node, own.addr, own.http)
    } else {
        let own = rack.switch()?;
        (FIRST, own.addr, own.http)
    };
    let options = DriverOptions { supervised: args.supervised, cpu_share: None };
    let place = Place { node, addr: wire(addr), http, options };
    let setup = SwitchSetup {
        controller: wire(rack.controller()?.addr),
        program: groups.first().map_or(Program::Forward, |group| group.program),
        names: names(&groups),
        sections: rack.sections(),
        faults: rack.faults.rates(),
        standby: args.standby,
        chain: seat.map(|(_, seat, length)| (seat, length)),
    };
    switch_role::run(&place, &setup)
}

/// The names of the groups, for logs and status.
fn names(groups: &[Group<'_>]) -> GroupNames {
    GroupNames::new(groups.iter().map(|group| (group.id, group.name.to_string())))
}

/// Prints the resources of an ASIC that the programs need together. Returns an error if that is
/// more than it has.
fn describe(programs: &[Program], sections: Sections) -> Result<(), Error> {
    let report = together(programs, sections)?;
    crate::status::print(&format!("{report}\n"))?;
    report.excess(&ASIC).map_or(Ok(()), |excess| Err(Error::new(excess)))
}

/// The resources of an ASIC that the programs need together. `programs` must not be empty.
///
/// # Errors
/// If one cannot be loaded.
pub fn together(programs: &[Program], sections: Sections) -> Result<Report, Error> {
    let config = AgentConfig { sections, ..AgentConfig::new(Incarnation(0), NOBODY, NOBODY) };
    let settings = config.settings();
    let describe = |program: &Program| {
        let hosted = Hosted::host(*program, &settings).cannot("describe the switch's table")?;
        Ok(hosted.describe())
    };
    let reports: Vec<Report> = programs.iter().map(describe).collect::<Result<_, Error>>()?;
    let all = reports.into_iter().reduce(Report::beside);
    all.ok_or_else(|| Error::new("say which programs"))
}

/// `concord log`.
///
/// # Errors
/// One line that names the file.
pub fn log(args: &LogCommandArgs) -> Result<(), Error> {
    let LogCommand::Inspect { directory } = &args.command;
    crate::status::print(&concord_runtime::directory::inspect(directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica that is gone is named with its group if there are several.
    #[test]
    fn bug_17_7_missing_node_is_named_with_its_group() {
        let one = Rack::default();
        let said = |rack: &Rack, text: &str| {
            let gone = gone(&rack.groups().unwrap(), &[text.to_string()]);
            gone.map_or_else(|e| e.to_string(), |gone| format!("{}:{}", gone[0].0.0, gone[0].1))
        };
        assert_eq!((said(&one, "2"), said(&one, "store:2")), ("0:2".into(), "0:2".into()));
        let text =
            "[[replica]]\nnode = 1\naddr = \"127.0.0.1:1\"\n[[group]]\nname = \"b\"\nnumber = 7\n";
        let two = Rack::parse(text).unwrap();
        assert_eq!((said(&two, "b:2"), said(&two, "store:2")), ("7:2".into(), "0:2".into()));
        for wrong in ["2", "c:2", "b:", "b:x", "b"] {
            let line = said(&two, wrong);
            assert!(line.ends_with("like store:2; there are store, b"), "{line}");
        }
    }

    #[test]
    fn programs_together_are_held_against_an_asic() {
        let two = [Program::Harmonia, Program::NoPaxos];
        let report = together(&two, Sections::DEFAULT).unwrap();
        assert_eq!((report.stages(), report.multicast_groups), (7, 1));
        assert_eq!((report.sram_bytes_in(0), report.excess(&ASIC)), (4 + 4, None));
        let mut large = Sections::DEFAULT;
        large.table.layout.slots = 1 << 17;
        assert_eq!(together(&[Program::Harmonia], large).unwrap().excess(&ASIC), None);
        let report = together(&[Program::Harmonia; 2], large).unwrap();
        let excess = "harmonia, harmonia: stage 2 takes 2.0 MiB of register memory, of which an \
                      ASIC has 1.2 MiB in a stage";
        assert_eq!(report.excess(&ASIC).as_deref(), Some(excess));
    }
}
