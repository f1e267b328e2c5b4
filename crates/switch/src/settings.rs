//! The settings of programs, given when they are loaded. A system whose programs have settings of
//! their own has a section here.

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

/// What a program is told. Each takes what it needs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Where the switch listens.
    pub addr: Addr,
    /// Which guards are on.
    pub guards: Guards,
    /// The systems' own.
    pub sections: Sections,
    /// The place in a chain that the switch itself is there for, if it is a program of that chain.
    pub member: Option<ChainMember>,
}

/// The settings of each system's programs.
#[derive(Clone, Copy, Debug)]
pub struct Sections {
    /// Programs for replicas: the sizes of sequencer and dirty set, and how they are kept clean.
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

/// A program that cannot be loaded so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// What it was told cannot be.
    Config(ConfigError),
    /// The queue that it was told cannot be.
    Queue(QueueError),
    /// The key groups that it was told cannot be.
    Flair(FlairError),
    /// The chain's cells that it was told cannot be.
    Chain(ChainError),
    /// The memory's blocks that it was told cannot be.
    Blocks(BlocksError),
    /// The virtual links that it was told cannot be.
    Links(LinksError),
    /// This switch does not have it.
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
