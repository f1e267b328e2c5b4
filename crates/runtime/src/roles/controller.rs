//! The controller with its state in a file (trap T3).

use std::path::PathBuf;

use concord_control::{Controller, ControllerConfig};
use concord_core::machine::Deadline;
use concord_core::{MS, Now};
use concord_wire::Addr;
use concord_wire::control::{Config, Member, Standing};
use serde_json::json;
use tracing::{error, info, warn};

use crate::driver::Role;
use crate::error::Error;
use crate::http::{Health, Snapshot};
use crate::logging;
use crate::poller::Event;
use crate::roles::{Place, unique};
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
    logged: Logged,
}

/// What was logged last.
#[derive(Debug, Default)]
struct Logged {
    config: Option<Config>,
    problem: Option<String>,
    has_recovered: bool,
}

/// Runs a controller until it is told to end.
///
/// # Errors
/// One line for a person; among them, that another controller holds the file, and that the state
/// could not be written: a controller that cannot persist must not speak.
pub fn run(place: &Place, setup: ControllerSetup) -> Result<(), Error> {
    let (file, state) = StateFile::open(&setup.state)?;
    let _span = logging::span("controller", place.node).entered();
    let mut driver = place.driver()?;
    let config = ControllerConfig { rack: unique()?, ..setup.config };
    let controller = Controller::new(config, state);
    let epoch = controller.state().config.as_ref().map_or(0, |c| c.epoch);
    info!(addr = %place.addr, epoch, state = %setup.state.display(), "started");
    let logged = Logged::default();
    driver.run(&mut ControllerRole { node: place.node, controller, file, logged })?;
    info!("stopped");
    Ok(())
}

/// The changes from one configuration to the next: a line each.
fn log_changes(controller: &Controller, now: Now, old: Option<&Config>, new: &Config) {
    let epoch = new.epoch;
    let nothing = (&[][..], &[][..]);
    let (members, joining) = old.map_or(nothing, |c| (&c.members[..], &c.joining[..]));
    let has = |places: &[Member], m: &Member| places.contains(m);
    for gone in members.iter().chain(joining) {
        if !has(&new.members, gone) && !has(&new.joining, gone) {
            let known = controller.replicas(now).find(|(m, ..)| m.node == gone.node);
            let silent_ms = known.map_or(0, |(.., silent_ns)| silent_ns / MS);
            let standing = known.map_or("unknown", |(_, _, standing, _)| standing_name(standing));
            let other_incarnation = known.is_some_and(|(m, ..)| m.incarnation != gone.incarnation);
            let replica = gone.node;
            warn!(epoch, replica, silent_ms, standing, other_incarnation, "replica removed");
        }
    }
    for come in new.joining.iter().filter(|m| !has(joining, m)) {
        info!(epoch, replica = come.node, addr = %come.addr, "replica joins");
    }
    for come in new.members.iter().filter(|m| !has(members, m)) {
        info!(epoch, replica = come.node, addr = %come.addr, "replica is a member");
    }
    if old.is_none_or(|c| (c.switch_id, c.switch) != (new.switch_id, new.switch)) {
        info!(epoch, switch_id = new.switch_id, addr = %new.switch, "switch is active");
    }
    info!(epoch, members = %nodes(&new.members), joining = %nodes(&new.joining), "new epoch");
}

/// Numbers with spaces between.
fn nodes(members: &[Member]) -> String {
    members.iter().map(|m| m.node.to_string()).collect::<Vec<_>>().join(" ")
}

impl ControllerRole {
    fn persist(&mut self, now: Now, out: &mut Outbox) -> Result<(), Error> {
        while let Some(state) = self.controller.poll_persist() {
            self.file.write(&state)?;
            self.controller.persisted(now, out);
        }
        Ok(())
    }

    fn log(&mut self, now: Now) {
        let config = self.controller.state().config.as_ref();
        let epoch = config.map_or(0, |c| c.epoch);
        if let Some(new) = config
            && self.logged.config.as_ref().is_none_or(|old| old.epoch != new.epoch)
        {
            log_changes(&self.controller, now, self.logged.config.as_ref(), new);
            self.logged.config = Some(new.clone());
        }
        if let Some(recovered) = self.controller.recovered().filter(|_| !self.logged.has_recovered)
        {
            self.logged.has_recovered = true;
            warn!(epoch, "{recovered}");
        }
        let problem = self.controller.problem().map(|p| p.to_string());
        if problem != self.logged.problem {
            match &problem {
                Some(problem) => error!(epoch, problem, "PROBLEM"),
                None => info!(epoch, "the problem is over"),
            }
            self.logged.problem = problem;
        }
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
        self.persist(now, out)?;
        self.log(now);
        Ok(())
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
        s.tell("recovered", self.controller.recovered().map(ToString::to_string));
        s.tell("switch_id", config.map_or(0, |c| c.switch_id));
        s.tell("protocol", config.map(|c| format!("{:?}", c.protocol)));
        s.tell("program", config.map(|c| c.program.name()));
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
        let problem = self.controller.problem().map(|p| p.to_string());
        s.health = match (&problem, epoch) {
            (Some(problem), _) => Health::NotYet(problem.clone()),
            (None, 0) => Health::NotYet("no epoch yet: not all replicas were heard of".to_string()),
            (None, _) => Health::Ok,
        };
        s.tell("problem", problem);
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
