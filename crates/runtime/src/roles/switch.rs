//! The switch in user space.

use concord_core::machine::Deadline;
use concord_core::{Incarnation, Now};
use concord_switch::harmonia::Layout;
use concord_switch::{Agent, AgentConfig, FaultRates, Status};
use concord_wire::Addr;
use tracing::info;

use crate::driver::Role;
use crate::error::{Context, Error};
use crate::http::{Health, Snapshot};
use crate::logging;
use crate::poller::Event;
use crate::roles::{Place, unique};
use crate::udp::Outbox;

/// What a switch is told beside its place.
#[derive(Clone, Copy, Debug)]
pub struct SwitchSetup {
    /// Where the controller listens.
    pub controller: Addr,
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

impl Switch {
    fn log(&mut self) {
        let s = self.agent.status();
        let seen = (s.switch_id.0, s.epoch.0, is_ready(&s));
        if std::mem::replace(&mut self.logged, seen) != seen {
            let (switch_id, epoch, ready) = seen;
            info!(epoch, switch_id, ready, "state");
        }
    }
}

/// Whether it does what it is there for. Who stands by, or was never told otherwise, has no switch id.
fn is_ready(s: &Status) -> bool {
    s.switch_id.0 > 0 && (s.last_committed > 0 || !s.accelerated)
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
    fn packet(&mut self, now: Now, _from: Addr, packet: &mut [u8], out: &mut Outbox) {
        self.agent.handle(now, packet, out);
    }

    fn event(&mut self, _event: Event, _out: &mut Outbox) -> Result<(), Error> {
        Ok(())
    }

    fn tick(&mut self, now: Now, out: &mut Outbox) {
        self.agent.tick(now, out);
    }

    fn flush(&mut self, _now: Now, _out: &mut Outbox) -> Result<(), Error> {
        self.log();
        Ok(())
    }

    fn deadline(&self) -> Deadline {
        self.agent.deadline()
    }

    fn snapshot(&self, _now: Now) -> Snapshot {
        let status = self.agent.status();
        let mut s = Snapshot::new("switch", self.node);
        s.count(status.program.each());
        s.count(status.agent.each());
        s.count(status.faults.each());
        s.gauge("switch_id", "The id that the controller granted.", status.switch_id.0.into());
        s.gauge("epoch", "The epoch of the configuration.", status.epoch.0.into());
        s.gauge("sequence", "The last sequence number given out.", status.seq.into());
        s.gauge("last_committed", "The largest number committed.", status.last_committed.into());
        s.gauge("dirty_set_occupied", "Slots of the dirty set in use.", status.occupied.into());
        s.gauge("dirty_set_slots", "Slots of the dirty set.", status.slots.into());
        s.tell("switch_id", status.switch_id.0);
        s.tell("epoch", status.epoch.0);
        s.tell("accelerated", status.accelerated);
        s.tell("ready", is_ready(&status));
        if !is_ready(&status) && !self.standby {
            s.health = Health::NotYet("no write was completed through this switch yet".to_string());
        }
        s
    }
}
