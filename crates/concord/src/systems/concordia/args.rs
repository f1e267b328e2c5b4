//! The command line of memory nodes, and of who looks at them.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::RoleArgs;

/// `concord node`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example, with a rack file that has [[group.memory]] entries:
  host-c$ concord node --config rack.toml --node 1

When it is told to end (SIGTERM) it hands over its part of the memory and what its cache alone has to the other
nodes, within 20 s; a second SIGTERM ends it at once, and loses that. docs/guides/shared-memory.md has more.")]
pub struct NodeArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Of which `[[group]]`; not needed where only one has memory nodes
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
}

/// `concord memory`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord memory explain user:1            whose block the key is in, its lock, its copies, and why
  concord memory explain --block 3:4711    the same of block 4711 of range 3
  concord memory renew                     blocks that were lost with a node are empty from now on")]
pub struct MemoryArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml", global = true)]
    pub config: PathBuf,
    /// Which group, where there are several shared memories
    #[arg(long, value_name = "NAME", global = true)]
    pub group: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub command: MemoryCommand,
}

/// What to do with a shared memory.
#[derive(Clone, Debug, Subcommand)]
pub enum MemoryCommand {
    /// Show where a key's block is: its home and its owner and why, its lock, state and copies
    Explain {
        /// The key
        #[arg(required_unless_present = "block")]
        key: Option<String>,
        /// A block instead, as RANGE:NUMBER
        #[arg(long, value_name = "RANGE:NUMBER", value_parser = block, conflicts_with = "key")]
        block: Option<(u16, u64)>,
    },
    /// Give up what was lost with a node: blocks that are LOST are empty from now on
    Renew,
}

/// A block, as `3:4711`.
fn block(text: &str) -> Result<(u16, u64), String> {
    let parts = text.split_once(':');
    let parsed = parts.and_then(|(range, block)| Some((range.parse().ok()?, block.parse().ok()?)));
    parsed
        .filter(|(range, _)| *range < 32)
        .ok_or_else(|| "write a range of 0 to 31 and a block's number, like 3:4711".to_string())
}
