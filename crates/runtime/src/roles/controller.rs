//! The controller with its state in a file (trap T3).

use std::path::PathBuf;

use concord_control::{Controller, ControllerConfig};
use concord_core::machine::Deadline;
use concord_core::{MS, Now};
use concord_wire::Addr;
use concord_wire::control::Standing;
use serde_json::json;

use crate::driver::Role;
use crate::error::Error;
use crate::http::Snapshot;
use crate::poller::Event;
use crate::roles::Place;
use crate::state_file::StateFile;
use crate::udp::Outbox;

/// What a controller is told beside its place.
#[derive(Clone, Debug)]
pub struct ControllerSetup {
    /// Whom it expects, and how they replicate.
    pub config: ControllerConfig,
    /// Where its state is.
    pub state: PathBuf,
}

#[derive(Debug)]
struct ControllerRole {
    node: u16,
    controller: Controller,
    file: StateFile,
}

/// Runs a controller until it is told to end.
///
/// # Errors
/// One line for a person; among them, that another controller holds the file, and that the state
/// could not be written: a controller that cannot persist must not speak.
pub fn run(place: &Place, setup: ControllerSetup) -> Result<(), Error> {
    let (file, state) = StateFile::open(&setup.state)?;
    let mut driver = place.driver()?;
    let controller = Controller::new(setup.config, state);
    driver.run(&mut ControllerRole { node: place.node, controller, file })
}

impl ControllerRole {
    fn persist(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        while let Some(state) = self.controller.poll_persist() {
            self.file.write(&state)?;
            self.controller.persisted(now, out);
        }
        Ok(())
    }
}

impl Role for ControllerRole {
    fn packet(&mut self, now: Now, _from: Addr, packet: &mut [u8], out: &mut Outbox) {
        self.controller.handle(now, packet, out);
    }

    fn event(&mut self, _event: Event, _out: &mut Outbox) -> Result<(), Error> {
        Ok(())
    }

    fn tick(&mut self, now: Now, out: &mut Outbox) {
        self.controller.tick(now, out);
    }

    fn flush(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        self.persist(now, out)
    }

    fn deadline(&self) -> Deadline {
        self.controller.deadline()
    }

    fn snapshot(&self, now: Now) -> Snapshot {
        let mut s = Snapshot::new("controller", self.node);
        s.count(self.controller.counters().each());
        let state = self.controller.state();
        let config = state.config.as_ref();
        let epoch = config.map_or(0, |c| c.epoch);
        s.gauge("epoch", "The configuration in force.", epoch.into());
        s.gauge("switch_id", "The last switch id granted.", state.last_switch_id.into());
        let members = config.map_or(0, |c| c.members.len());
        s.gauge("members", "Replicas in the configuration.", members as f64);
        s.tell("epoch", epoch);
        s.tell("switch_id", config.map_or(0, |c| c.switch_id));
        s.tell("protocol", config.map(|c| format!("{:?}", c.protocol)));
        s.tell("accelerated", config.map(|c| c.accelerated));
        let members = config.map_or(&[][..], |c| &c.members);
        let nodes: Vec<u16> = members.iter().map(|m| m.node).collect();
        let joining = config.map_or(&[][..], |c| &c.joining);
        let joining: Vec<u16> = joining.iter().map(|m| m.node).collect();
        let known: Vec<_> = self
            .controller
            .replicas(now)
            .map(|(member, epoch, standing, silent_ns)| {
                json!({
                    "node": member.node,
                    "addr": member.addr.to_string(),
                    "member": members.iter().any(|m| m == &member),
                    "joining": joining.contains(&member.node),
                    "epoch": epoch,
                    "open": matches!(standing, Standing::Open { .. }),
                    "standing": standing_name(standing),
                    "silent_ms": silent_ns / MS,
                })
            })
            .collect();
        let switches: Vec<_> = self
            .controller
            .switches(now)
            .map(|(incarnation, addr, standby, silent_ns)| {
                json!({
                    "addr": addr.to_string(),
                    "active": incarnation == state.switch_incarnation,
                    "standby": standby,
                    "silent_ms": silent_ns / MS,
                })
            })
            .collect();
        s.tell("members", nodes);
        s.tell("joining", joining);
        s.tell("replicas", known);
        s.tell("switches", switches);
        s.tell("problem", self.controller.problem().map(|p| p.to_string()));
        s
    }
}

fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Out => "out",
        Standing::Copying => "copying",
        Standing::Copied => "copied",
        Standing::Opening { .. } => "opening",
        Standing::Open { whole: false } => "catching up",
        Standing::Open { whole: true } => "open",
        Standing::Leaving => "leaving",
    }
}
