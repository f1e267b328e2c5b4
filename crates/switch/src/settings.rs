//! The settings with which programs are loaded. A system whose programs have settings of their own
//! has a section here.

use core::fmt;

use concord_core::Guards;
use concord_wire::Addr;
use concord_wire::control::Program;

use crate::concordia::{BlocksError, BlocksLayout};
use crate::falcon::{QueueError, QueueLayout};
use crate::flair::{FlairError, KeyGroupSettings};
use crate::harmonia::{ConfigError, TableSettings};
use crate::harmony::{LinksError, LinksLayout};
use crate::netcraq::{ChainError, ChainLayout, ChainMember};

/// The settings of a program, which uses the parts that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The address at which the switch listens.
    pub addr: Addr,
    /// The guards that are on.
    pub guards: Guards,
    /// The settings of each system.
    pub sections: Sections,
    /// The place that the switch itself is to have in a chain, if this is a program of that chain.
    pub member: Option<ChainMember>,
}

/// The settings of each system's programs.
#[derive(Clone, Copy, Debug)]
pub struct Sections {
    /// Programs for replicas: the sizes of sequencer and dirty set, and the intervals of their
    /// upkeep.
    pub table: TableSettings,
    /// Falcon's queue of tasks.
    pub queue: QueueLayout,
    /// FLAIR's key groups.
    pub key_groups: KeyGroupSettings,
    /// NetCRAQ's cells and sessions.
    pub chain: ChainLayout,
    /// The blocks that Concordia's switch can own.
    pub blocks: BlocksLayout,
    /// The hosts and virtual links of Harmony's switch.
    pub links: LinksLayout,
}

impl Sections {
    /// The defaults.
    pub const DEFAULT: Sections = Sections {
        table: TableSettings::DEFAULT,
        queue: QueueLayout::DEFAULT,
        key_groups: KeyGroupSettings::DEFAULT,
        chain: ChainLayout::DEFAULT,
        blocks: BlocksLayout::DEFAULT,
        links: LinksLayout::DEFAULT,
    };
}

/// The reason why a program cannot be loaded with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The settings of a program for replicas are not valid.
    Config(ConfigError),
    /// The settings of Falcon's queue are not valid.
    Queue(QueueError),
    /// The settings of FLAIR's key groups are not valid.
    Flair(FlairError),
    /// The settings of NetCRAQ's cells are not valid.
    Chain(ChainError),
    /// The settings of Concordia's blocks are not valid.
    Blocks(BlocksError),
    /// The settings of Harmony's virtual links are not valid.
    Links(LinksError),
    /// This switch does not have the program.
    NotHere(Program),
}

impl From<ConfigError> for LoadError {
    fn from(error: ConfigError) -> LoadError {
        LoadError::Config(error)
    }
}

impl From<QueueError> for LoadError {
    fn from(error: QueueError) -> LoadError {
        LoadError::Queue(error)
    }
}

impl From<FlairError> for LoadError {
    fn from(error: FlairError) -> LoadError {
        LoadError::Flair(error)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Config(error) => error.fmt(f),
            LoadError::Queue(error) => error.fmt(f),
            LoadError::Flair(error) => error.fmt(f),
            LoadError::Chain(error) => error.fmt(f),
            LoadError::Blocks(error) => error.fmt(f),
            LoadError::Links(error) => error.fmt(f),
            LoadError::NotHere(program) => {
                write!(f, "this switch has no program {}", program.name())
            }
        }
    }
}

impl core::error::Error for LoadError {}
