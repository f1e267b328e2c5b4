//! The command line of `concord coord`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `concord coord`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord coord put leader host-a              prints its new version
  concord coord put leader host-b --if-version 1099511627777
  concord coord put leader host-a --if-absent --ttl 10s
  concord coord get leader --with-version
  concord coord cas state idle busy
  concord coord incr tickets 5
  concord coord ls jobs/
  concord coord watch leader                   a line for each change
  concord coord lock nightly --ttl 10s --wait 30s -- ./backup.sh

Ends with 0 if it is done; 1 if the key does not exist, or a condition does not hold; 2 for a mistake in the arguments;
3 if no switch answered in time: it is then unknown whether a write was executed. `lock` ends with the status of its
command, or with 4 if it had to kill the command. docs/guides/coordination.md has the guarantees.")]
pub struct CoordArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml", global = true)]
    pub config: PathBuf,
    /// The chain, if the rack has several
    #[arg(long, value_name = "NAME", global = true)]
    pub group: Option<String>,
    /// The number of the switch to ask first: the nearest
    #[arg(long, value_name = "N", global = true)]
    pub nearest: Option<u16>,
    /// The maximum time for retries, such as 500ms or 5s
    #[arg(long, value_name = "TIME", default_value = "5s", global = true)]
    pub timeout: String,
    /// The command
    #[command(subcommand)]
    pub command: CoordCommand,
}

/// The commands on keys.
#[derive(Clone, Debug, Subcommand)]
pub enum CoordCommand {
    /// Print a key's value
    Get {
        /// The key: 1 to 32 bytes
        name: String,
        /// Print the key's version before its value
        #[arg(long)]
        with_version: bool,
        /// Print the key's remaining time to live before its value, in ms; `-` if it has none
        #[arg(long)]
        with_ttl: bool,
    },
    /// Set a key, and print its new version
    Put {
        /// The key: 1 to 32 bytes
        name: String,
        /// Its value: at most 64 bytes, unless the rack file has another limit
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Only if the key has this version
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
        /// Only if the key does not exist
        #[arg(long, conflicts_with = "if_version")]
        if_absent: bool,
        /// Its time to live, such as 500ms or 10s; without it, the key lives until it is deleted
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
    },
    /// Delete a key
    Del {
        /// The key
        name: String,
        /// Only if the key has this version
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
    },
    /// Set a key if it has a given value, and print its new version
    Cas {
        /// The key
        name: String,
        /// The value that it must have
        #[arg(allow_hyphen_values = true)]
        old: String,
        /// Its new value
        #[arg(allow_hyphen_values = true)]
        new: String,
    },
    /// Add to a number, and print the sum; a missing key counts as 0
    Incr {
        /// The key
        name: String,
        /// The number to add
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
    },
    /// List the keys, in the order of their bytes
    Ls {
        /// Only keys with this prefix
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Print a key's version and value, and again when it has changed: changes in quick succession
    /// may appear as one, and the last is always printed
    Watch {
        /// The key
        name: String,
        /// End after this number of lines
        #[arg(long, value_name = "N")]
        count: Option<u64>,
        /// The interval at which the key is read
        #[arg(long, value_name = "TIME", default_value = "50ms")]
        every: String,
    },
    /// Run a command while holding a lock, with its fencing token in CONCORD_TOKEN
    Lock {
        /// The key that is the lock
        name: String,
        /// The duration of its lease: the time after the last renewal from which on another client
        /// can take the lock
        #[arg(long, value_name = "TIME", default_value = "10s")]
        ttl: String,
        /// The maximum time to wait for the lock
        #[arg(long, value_name = "TIME", default_value = "0s")]
        wait: String,
        /// The command, which is killed if the lease cannot be renewed in time
        #[arg(required = true, last = true, value_name = "CMD")]
        command: Vec<String>,
    },
}
