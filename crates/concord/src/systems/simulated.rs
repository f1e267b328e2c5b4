//! The systems that `concord sim` simulates.

use std::process::ExitCode;

use clap::ValueEnum;
use concord_core::Guards;
use concord_runtime::Error;

use crate::sim::SimArgs;
use crate::systems::{concordia, falcon, harmony, netcraq, store};

/// A system, as `concord sim --system` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Simulated {
    /// A replicated store: Redis' protocol, with or without the switch's help
    #[default]
    #[value(alias = "harmonia")]
    Store,
    /// Tasks for workers, with a queue in the switch
    Falcon,
    /// A store in a chain of switches
    Netcraq,
    /// A shared memory, kept coherent by the switch
    Concordia,
    /// A network whose messages reserve their paths
    Harmony,
}

impl Simulated {
    /// Replays a seed, or runs many, with the given `guards`.
    ///
    /// # Errors
    /// Flags that do not apply to the system; a file that cannot be read, written or understood.
    pub fn simulate(self, args: &SimArgs, guards: Guards) -> Result<ExitCode, Error> {
        match self {
            Simulated::Store => store::simulate(args, guards),
            Simulated::Falcon => falcon::simulate(args, guards),
            Simulated::Netcraq => netcraq::simulate(args, guards),
            Simulated::Concordia => concordia::simulate(args, guards),
            Simulated::Harmony => harmony::simulate(args, guards),
        }
    }
}
