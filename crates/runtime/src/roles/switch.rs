//! The switch in user space.

use concord_core::{Incarnation, Nothing, Now};
use concord_switch::Layout;
use concord_switch::{Agent, AgentConfig, FaultRates, Host as _, Loop};
use concord_wire::Addr;
use concord_wire::control::Program;
use tracing::info;

use crate::driver::{Kept, Role};
use crate::error::{Context, Error};
use crate::http::{Health, Snapshot};
use crate::logging;
use crate::roles::{Place, unique};

/// What a switch is told beside its place.
#[derive(Clone, Copy, Debug)]
pub struct SwitchSetup {
    /// Where the controller listens.
    pub controller: Addr,
    /// What it runs until the controller names another program.
    pub program: Program,
    /// The size of the registers.
    pub layout: Layout,
    /// Faults on purpose.
    pub faults: FaultRates,
    /// It takes over when the active switch is silent, not at once.
    pub standby: bool,
}

#[derive(Debug)]
struct Switch {
    node: u16,
    standby: bool,
    agent: Agent,
    /// Switch id, epoch and whether it helps, as logged last.
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
    config.layout = setup.layout;
    config.faults = setup.faults;
    config.standby = setup.standby;
    let agent = Agent::new(config).cannot("make the switch's registers")?;
    let (node, standby) = (place.node, setup.standby);
    let mut role = Switch { node, standby, agent, logged: (0, 0, false) };
    driver.run(&mut role)?;
    info!("stopped");
    Ok(())
}

impl Role for Switch {
    type Machine = Agent;

    fn machine(&mut self) -> &mut Agent {
        &mut self.agent
    }

    fn persist(&mut self, what: Nothing) -> Result<Kept, Error> {
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
        // A rack has one group: the metrics of several would have the same names.
        let Some(program) = status.programs.into_iter().next() else { return s };
        s.count(program.counts.into_iter());
        s.gauge("switch_id", "The id that the controller granted.", program.switch_id.0.into());
        s.gauge("epoch", "The epoch of the configuration.", program.epoch.0.into());
        for gauge in program.gauges {
            s.gauge(gauge.name, gauge.help, gauge.value as f64);
        }
        s.tell("switch_id", program.switch_id.0);
        s.tell("epoch", program.epoch.0);
        s.tell("program", program.program.name());
        s.tell("ready", program.is_ready);
        if !program.is_ready && !self.standby {
            s.health = Health::NotYet("no write was completed through this switch yet".to_string());
        }
        s
    }
}
