//! The switch in user space.

use concord_core::{Incarnation, Nothing, Now};
use concord_switch::agent::ProgramStatus;
use concord_switch::{
    Agent, AgentConfig, ChainSeat, FaultRates, Host as _, Hosted, Loop, Sections,
};
use concord_wire::control::Program;
use concord_wire::{Addr, GroupId};
use serde_json::{Value, json};
use tracing::info;

use crate::driver::{Persisted, Role};
use crate::error::{Context, Error};
use crate::http::{Health, Snapshot};
use crate::logging;
use crate::roles::{GroupNames, Place, unique};

/// The configuration of a switch, beside its place.
#[derive(Clone, Debug)]
pub struct SwitchSetup {
    /// The address of the controller.
    pub controller: Addr,
    /// The program that it runs until the controller names another one.
    pub program: Program,
    /// The names of the rack's groups.
    pub names: GroupNames,
    /// The settings of programs.
    pub sections: Sections,
    /// The rates of injected faults.
    pub faults: FaultRates,
    /// Whether it is a standby, which takes over only when the active switch is silent.
    pub standby: bool,
    /// The chain that it is there for, and for nothing else: then it is no switch of the rack. And
    /// how many members that is to have.
    pub chain: Option<(ChainSeat, usize)>,
}

#[derive(Debug)]
struct Switch {
    node: u16,
    names: GroupNames,
    agent: Agent,
    /// How many members its chain is to have.
    chain_length: usize,
    /// The switch id, the epoch and whether it helps, as logged last.
    logged: (u32, u32, bool),
}

/// Runs a switch until it is told to end.
///
/// # Errors
/// One line for a person.
pub fn run(place: &Place, setup: &SwitchSetup) -> Result<(), Error> {
    let _span = logging::span("switch", place.node).entered();
    let mut driver = place.driver()?;
    info!(addr = %place.addr, standby = setup.standby, "started");
    let mut config = AgentConfig::new(Incarnation(unique()?), place.addr, setup.controller);
    config.recirculation = Loop::AT_ONCE;
    config.program = setup.program;
    config.sections = setup.sections;
    config.faults = setup.faults;
    config.standby = setup.standby;
    config.chain = setup.chain.map(|(seat, _)| (seat, true));
    let agent = Agent::new(config).cannot("make the switch's registers")?;
    let (node, names) = (place.node, setup.names.clone());
    let chain_length = setup.chain.map_or(0, |(_, length)| length);
    let mut role = Switch { node, names, agent, chain_length, logged: (0, 0, false) };
    driver.run(&mut role)?;
    info!("stopped");
    Ok(())
}

impl Switch {
    /// The prefix of the metrics of a group's program.
    fn prefix(&self, group: GroupId) -> String {
        self.names.of(group).replace(|c: char| !c.is_ascii_alphanumeric(), "_") + "_"
    }

    /// A program in `/status`.
    fn told(&self, program: &ProgramStatus) -> Value {
        let gauges: serde_json::Map<String, Value> =
            program.gauges.iter().map(|g| (g.name.to_string(), g.value.into())).collect();
        json!({
            "group": program.group.0,
            "name": self.names.of(program.group),
            "program": program.program.name(),
            "switch_id": program.switch_id.0,
            "epoch": program.epoch.0,
            "ready": program.is_ready,
            "gauges": gauges,
        })
    }
}

impl Role for Switch {
    type Machine = Agent;

    fn machine(&mut self) -> &mut Agent {
        &mut self.agent
    }

    fn persist(&mut self, what: Nothing) -> Result<Persisted, Error> {
        match what {}
    }

    fn log(&mut self, _now: Now) {
        let agent = &self.agent;
        let seen = (agent.switch_id().0, agent.epoch().0, agent.is_ready());
        if std::mem::replace(&mut self.logged, seen) != seen {
            let (switch_id, epoch, ready) = seen;
            let program = agent.program().program().name();
            info!(epoch, switch_id, ready, program, "state");
        }
    }

    fn snapshot(&self, _now: Now) -> Snapshot {
        let status = self.agent.status();
        let mut s = Snapshot::new("switch", self.node);
        s.count(status.agent.each());
        s.count(status.fabric.each());
        s.count(status.faults.each());
        // With several groups, the metrics of all but the first begin with the group's name.
        for (at, program) in status.programs.iter().enumerate() {
            let part = if at == 0 { String::new() } else { self.prefix(program.group) };
            s.count_as(&part, program.counts.iter().copied());
            let (id, epoch) = (program.switch_id.0, program.epoch.0);
            s.gauge_as(&part, "switch_id", "The id that the controller granted.", id.into());
            s.gauge_as(&part, "epoch", "The epoch of the configuration.", epoch.into());
            for gauge in &program.gauges {
                s.gauge_as(&part, gauge.name, gauge.help, gauge.value as f64);
            }
        }
        let chain = self.agent.programs().find_map(Hosted::chain);
        let standing = chain.and_then(|chain| chain.standing().zip(chain.length()));
        s.tell("member", standing.is_some_and(|((_, _, is_open), _)| is_open));
        if let Some(((epoch, index, is_open), length)) = standing {
            let place =
                json!({ "epoch": epoch, "index": index, "length": length, "open": is_open });
            s.tell("chain", place);
        }
        let told: Vec<Value> = status.programs.iter().map(|program| self.told(program)).collect();
        s.tell("programs", told);
        // A spare: it has heard of an epoch of a chain that is as long as it should be.
        let others = chain.and_then(|chain| chain.others());
        let stands_by = status.stands_by || others.is_some_and(|n| n >= self.chain_length);
        s.tell("stands_by", stands_by);
        let Some(program) = status.programs.first() else { return s };
        s.tell("switch_id", program.switch_id.0);
        s.tell("epoch", program.epoch.0);
        s.tell("program", program.program.name());
        s.tell("ready", status.programs.iter().all(|program| program.is_ready));
        let waits = status.programs.iter().find(|program| !program.is_ready);
        if let Some(program) = waits.filter(|_| !stands_by) {
            let of = if self.names.are_several() {
                self.names.of(program.group) + ": "
            } else {
                String::new()
            };
            s.health = Health::NotYet(match (chain.is_some(), standing) {
                (false, _) => format!("{of}no write was completed through this switch yet"),
                (true, None) => format!("{of}the controller has not made it a member"),
                (true, Some(_)) => format!("{of}a member of the chain, not open yet"),
            });
        }
        s
    }
}
