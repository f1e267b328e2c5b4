//! The systems that a rack can run, each in a folder or file of its own: its part of the rack file,
//! its place in `up` and `status`, and its simulation in `sim`. What belongs to no system
//! (controller, switch, addresses, processes) is in [`crate::rack`], [`crate::up`] and
//! [`crate::status`], which name no system.
//!
//! A further system is a file here with its [`System`], a line in [`ALL`] and one in [`Choice`].

pub mod concordia;
pub mod falcon;
#[cfg(feature = "lab")]
pub mod frame;
#[cfg(feature = "lab")]
pub mod harmony;
pub mod netcraq;
#[cfg(feature = "lab")]
pub mod simulated;
pub mod store;

use std::path::Path;

use clap::ValueEnum;
use concord_runtime::Error;
use concord_wire::GroupId;
use serde_json::{Map, Value};

use crate::cli::UpArgs;
use crate::rack::{Group, Kind, Rack};
use crate::status::Role;
use crate::up::children::Children;
use crate::up::place::Ports;

// The items that `up` uses, and the systems' sections of the rack file.
pub use concordia::{Coherence, MemoryPlace, Shape, check as check_memory};
pub use falcon::{OwnerPlace, Queue, WorkerPlace};
pub use netcraq::{Cells, ChainPlace};
pub use store::Earlier;

/// All systems.
const ALL: [&dyn System; 4] =
    [&store::Store, &falcon::Falcon, &netcraq::NetCraq, &concordia::Concordia];

/// A system, as `--system` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// A replicated store: Redis' protocol, with or without the switch's help
    #[default]
    #[value(alias = "harmonia")]
    Store,
    /// Tasks for workers, with a queue in the switch
    Falcon,
    /// Small keys, locks and counters in a chain of switches
    Netcraq,
    /// A shared memory, kept coherent by the switch, with a store at each of its nodes
    Concordia,
}

impl Choice {
    /// The system.
    #[must_use]
    pub fn system(self) -> &'static dyn System {
        match self {
            Choice::Store => &store::Store,
            Choice::Falcon => &falcon::Falcon,
            Choice::Netcraq => &netcraq::NetCraq,
            Choice::Concordia => &concordia::Concordia,
        }
    }
}

/// A system, as the commands use it.
pub trait System: Sync {
    /// The kind of the members of its groups.
    fn kind(&self) -> Kind;

    /// `up`: adds a group of the system to a rack that has none, for `--system`.
    fn add(&self, rack: &mut Rack);

    /// `up`: overrides the file by flags.
    fn overlay(&self, rack: &mut Rack, args: &UpArgs);

    /// `up`: claims the ports that are given, before other roles take free ports.
    ///
    /// # Errors
    /// One line that names the port that is not available.
    fn claim(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error>;

    /// `up`: places the roles that the file leaves out, at free ports of this host.
    ///
    /// # Errors
    /// One line that names the flag at fault, or says that no port is free.
    fn place(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error>;

    /// `up`: whether this run directory has data of the system's groups, with which `rack`
    /// continues.
    ///
    /// # Errors
    /// One line that names the flag that does not fit the existing data. Nothing was written then.
    fn has_data(&self, _earlier: &Earlier<'_>, _rack: &Rack) -> Result<bool, Error> {
        Ok(false)
    }

    /// `up`: the groups that the controller's state may contain, and whose data ended with their
    /// processes: they begin anew.
    ///
    /// # Errors
    /// If the run directory cannot be read.
    fn gone(&self, _earlier: &Earlier<'_>, _rack: &Rack) -> Result<Vec<GroupId>, Error> {
        Ok(Vec::new())
    }

    /// `up`: examines the data of its groups in this run directory, which belonged to the rack
    /// `before`; returns messages about it.
    ///
    /// # Errors
    /// One line.
    fn prepare(&self, _before: Option<&Rack>, _rack: &Rack) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// `up`: starts its roles, after controller and switches.
    ///
    /// # Errors
    /// If a process cannot be started.
    fn start(&self, rack: &Rack, file: &Path, children: &mut Children) -> Result<(), Error>;

    /// `up`: the description of a group, in one line.
    fn headline(&self, rack: &Rack, group: &Group<'_>) -> String;

    /// `up`: what its groups still lack before they serve; `None` if nothing.
    fn missing(&self, rack: &Rack) -> Option<String>;

    /// `up`: whether the data of a group outlives the rack.
    fn keeps_data(&self, group: &Group<'_>) -> bool;

    /// `up`: notes to print before the rack starts, one per line.
    fn notes(&self, rack: &Rack) -> Vec<String>;

    /// `up`: instructions to print once the rack serves, one per line.
    fn how_to_use(&self, rack: &Rack) -> Vec<String>;

    /// `up`: a note to print after the rack has stopped.
    fn farewell(&self, rack: &Rack) -> Option<&'static str>;

    /// `status`: its roles, without controller and switches.
    ///
    /// # Errors
    /// If the rack file does not fit together.
    fn roles(&self, rack: &Rack) -> Result<Vec<Role>, Error>;

    /// `status`: the description of one of its roles from the role's `/status`, in one line; `None`
    /// for a role of another system.
    fn describe(&self, role: &Value) -> Option<String>;

    /// `status`: the settings of a group in the rack file, as an object.
    fn settings(&self, group: &Group<'_>) -> Map<String, Value>;

    /// `status`: statistics of a group, from the `/status` of each of its members.
    fn figures(&self, members: &[&Value]) -> Map<String, Value>;

    /// `status`: problems of a group as a whole, from the `/status` of each of its members.
    fn wrong(&self, _group: &Group<'_>, _members: &[&Value]) -> Vec<String> {
        Vec::new()
    }

    /// `status`: the settings and statistics of a group, in a line or two.
    fn describe_group(&self, told: &Value) -> String;
}

/// All systems.
pub fn all() -> impl Iterator<Item = &'static dyn System> {
    ALL.into_iter()
}

/// The system of a group.
#[must_use]
pub fn of(kind: Kind) -> &'static dyn System {
    match kind {
        Kind::Replicas => &store::Store,
        Kind::Workers => &falcon::Falcon,
        Kind::Switches => &netcraq::NetCraq,
        Kind::Memory => &concordia::Concordia,
    }
}
