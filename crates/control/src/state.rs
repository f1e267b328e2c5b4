//! What a controller writes down, and what it cannot do.

use alloc::vec::Vec;
use core::fmt;

use concord_core::{Guard, Guards};
use concord_wire::control::Config;
use serde::{Deserialize, Serialize};

/// What is persisted. `version` rises by one with each write: the compare-and-swap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Number of this state.
    pub version: u64,
    /// The configuration in force; `None` before the first.
    pub config: Option<Config>,
    /// The switch's life to which the active switch id was granted.
    pub switch_incarnation: u64,
    /// The last switch id that was granted; never goes back (trap T20).
    pub last_switch_id: u32,
    /// Earlier lives of the switch: one that wakes up is not granted anything again.
    pub retired_switches: Vec<u64>,
    /// The members that have everything that was ever committed before this configuration. Never
    /// empty once there is a configuration: no other one would be safe.
    pub whole: Vec<u16>,
}

impl State {
    /// The compare-and-swap: whether this state may take the place of the stored one (trap T3). Of
    /// two controllers that go on from the same state, one is refused.
    #[must_use]
    pub fn follows(&self, stored: Option<&State>, guards: Guards) -> bool {
        let before = stored.map_or(0, |stored| stored.version);
        self.version == before + 1 || !guards.on(Guard::EpochSwap)
    }
}

/// Why the controller cannot do what it should; for a person to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A switch asks for an id, and every id was granted (trap T20).
    SwitchIdsExhausted,
    /// Every epoch number was used.
    EpochsExhausted,
    /// No member is left that has everything that was committed.
    NobodyWhole,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Problem::SwitchIdsExhausted => {
                "every switch id was granted: no other switch can take over; begin anew with another \
                 state file"
            }
            Problem::EpochsExhausted => {
                "every epoch number was used: nothing can change any more; begin anew with another \
                 state file"
            }
            Problem::NobodyWhole => {
                "no member that has all the data is alive; if none comes back, --fresh gives the data \
                 up"
            }
        })
    }
}
