//! The systems that a rack can run, a folder or file each: a system's part of the rack file, and
//! its place in `up` and `status`, and what `sim` runs of it. What belongs to no system
//! (controller, switch, addresses, processes) is in [`crate::rack`], [`crate::up`] and
//! [`crate::status`], which name none.
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

// What `up` finds, and their sections of the rack file.
pub use concordia::{Coherence, MemoryPlace, Shape, check as check_memory};
pub use falcon::{OwnerPlace, Queue, WorkerPlace};
pub use netcraq::{Cells, ChainPlace};
pub use store::Earlier;

/// All of them.
const ALL: [&dyn System; 4] =
    [&store::Store, &falcon::Falcon, &netcraq::NetCraq, &concordia::Concordia];

/// A system by the word that `--system` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// A replicated store: Redis' protocol, with the switch's help or without
    #[default]
    #[value(alias = "harmonia")]
    Store,
    /// Tasks for workers, whose queue is in the switch
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

/// What the command asks of a system.
pub trait System: Sync {
    /// What the members of its groups are.
    fn kind(&self) -> Kind;

    /// `up`: puts a group of it into a rack that has none of it, as `--system` asks.
    fn add(&self, rack: &mut Rack);

    /// `up`: flags over the file.
    fn overlay(&self, rack: &mut Rack, args: &UpArgs);

    /// `up`: roles whose ports are given, before others take ports that are free.
    ///
    /// # Errors
    /// One line that says which port cannot be had.
    fn claim(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error>;

    /// `up`: the roles that the file leaves out, at free ports of this host.
    ///
    /// # Errors
    /// One line that says which flag is at fault, or that there are no ports.
    fn place(&self, rack: &mut Rack, args: &UpArgs, ports: &mut Ports) -> Result<(), Error>;

    /// `up`: whether there is data of its groups in this run directory, which `rack` goes on with.
    ///
    /// # Errors
    /// One line that says which flag does not fit what is there. Nothing was written.
    fn has_data(&self, _earlier: &Earlier<'_>, _rack: &Rack) -> Result<bool, Error> {
        Ok(false)
    }

    /// `up`: its groups that the controller's state may know, and whose data ended with their
    /// processes: they are founded anew.
    ///
    /// # Errors
    /// If what is there cannot be read.
    fn gone(&self, _earlier: &Earlier<'_>, _rack: &Rack) -> Result<Vec<GroupId>, Error> {
        Ok(Vec::new())
    }

    /// `up`: looks at what its groups kept, in this run directory as the rack `before`; what there
    /// is to say of that.
    ///
    /// # Errors
    /// One line.
    fn prepare(&self, _before: Option<&Rack>, _rack: &Rack) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// `up`: starts its roles, once controller and switches were started.
    ///
    /// # Errors
    /// If a process cannot be started.
    fn start(&self, rack: &Rack, file: &Path, children: &mut Children) -> Result<(), Error>;

    /// `up`: a group of it in a line.
    fn headline(&self, rack: &Rack, group: &Group<'_>) -> String;

    /// `up`: what its groups still lack until they serve; `None` if nothing.
    fn missing(&self, rack: &Rack) -> Option<String>;

    /// `up`: whether what a group of it holds outlives the rack.
    fn keeps_data(&self, group: &Group<'_>) -> bool;

    /// `up`: what is to be known before it starts, a line each.
    fn notes(&self, rack: &Rack) -> Vec<String>;

    /// `up`: how it is used, once it serves, a line each.
    fn how_to_use(&self, rack: &Rack) -> Vec<String>;

    /// `up`: what is to be known once it has stopped.
    fn farewell(&self, rack: &Rack) -> Option<&'static str>;

    /// `status`: its roles, but controller and switches.
    ///
    /// # Errors
    /// If the rack file does not fit together.
    fn roles(&self, rack: &Rack) -> Result<Vec<Role>, Error>;

    /// `status`: what one of its roles says of itself, as `/status` has it, in a line. `None`: it
    /// is another system's.
    fn describe(&self, role: &Value) -> Option<String>;

    /// `status`: what the rack file says of a group, as an object.
    fn settings(&self, group: &Group<'_>) -> Map<String, Value>;

    /// `status`: figures of a group, from what `/status` of each of its members says.
    fn figures(&self, members: &[&Value]) -> Map<String, Value>;

    /// `status`: what needs attention in a group as a whole, from what `/status` of each of its
    /// members says.
    fn wrong(&self, _group: &Group<'_>, _members: &[&Value]) -> Vec<String> {
        Vec::new()
    }

    /// `status`: a group's settings and figures, in a line or two.
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
