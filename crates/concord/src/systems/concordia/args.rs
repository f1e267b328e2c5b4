//! The command line of memory nodes, and of `concord memory`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::RoleArgs;

/// `concord node`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example, with a rack file that has [[group.memory]] entries:
  host-c$ concord node --config rack.toml --node 1

On SIGTERM it hands over its part of the memory, and the data that only its cache has, to the other nodes, within
20 s; a second SIGTERM ends it at once, and loses these. docs/guides/shared-memory.md has more.")]
pub struct NodeArgs {
    /// The arguments of every role
    #[command(flatten)]
    pub role: RoleArgs,
    /// The name of its `[[group]]`; may be omitted if only one group has memory nodes
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
}

/// `concord memory`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord memory explain user:1            whose block the key is in, its lock, its copies, and why
  concord memory explain --block 3:4711    the same for block 4711 of range 3
  concord memory renew                     blocks that were lost with a node become empty")]
pub struct MemoryArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml", global = true)]
    pub config: PathBuf,
    /// The group, if there are several shared memories
    #[arg(long, value_name = "NAME", global = true)]
    pub group: Option<String>,
    /// The command
    #[command(subcommand)]
    pub command: MemoryCommand,
}

/// The commands on a shared memory.
#[derive(Clone, Debug, Subcommand)]
pub enum MemoryCommand {
    /// Show the state of a key's block: its home, its owner and why, its lock, status and copies
    Explain {
        /// The key
        #[arg(required_unless_present = "block")]
        key: Option<String>,
        /// A block instead of a key, as RANGE:NUMBER
        #[arg(long, value_name = "RANGE:NUMBER", value_parser = block, conflicts_with = "key")]
        block: Option<(u16, u64)>,
    },
    /// Give up data that was lost with a node: blocks that are LOST become empty
    Renew,
}

/// Parses a block, such as `3:4711`.
fn block(text: &str) -> Result<(u16, u64), String> {
    let parts = text.split_once(':');
    let parsed = parts.and_then(|(range, block)| Some((range.parse().ok()?, block.parse().ok()?)));
    parsed
        .filter(|(range, _)| *range < 32)
        .ok_or_else(|| "write a range of 0 to 31 and a block's number, like 3:4711".to_string())
}
