//! The command line of `concord coord`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `concord coord`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord coord put leader host-a              prints the version that it has now
  concord coord put leader host-b --if-version 1099511627777
  concord coord put leader host-a --if-absent --ttl 10s
  concord coord get leader --with-version
  concord coord cas state idle busy
  concord coord incr tickets 5
  concord coord ls jobs/
  concord coord watch leader                   a line for each change that it sees
  concord coord lock nightly --ttl 10s --wait 30s -- ./backup.sh

Ends with 0 if it is done; 1 if there is no such key, or a condition does not hold; 2 for a mistake in what was
said; 3 if no switch answered in time: then it is not known whether a write was done. `lock` ends as its command
does, with 4 if it had to kill that. docs/guides/coordination.md says what is promised.")]
pub struct CoordArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml", global = true)]
    pub config: PathBuf,
    /// Which chain, where the rack has several
    #[arg(long, value_name = "NAME", global = true)]
    pub group: Option<String>,
    /// The switch to ask first, by its number: the nearest
    #[arg(long, value_name = "N", global = true)]
    pub nearest: Option<u16>,
    /// How long it tries, like 500ms or 5s
    #[arg(long, value_name = "TIME", default_value = "5s", global = true)]
    pub timeout: String,
    /// What to do
    #[command(subcommand)]
    pub command: CoordCommand,
}

/// What to do with a key.
#[derive(Clone, Debug, Subcommand)]
pub enum CoordCommand {
    /// Print a key's value
    Get {
        /// The key: 1 to 32 bytes
        name: String,
        /// Print its version before it
        #[arg(long)]
        with_version: bool,
        /// Print how long it lives yet, in ms, before it; `-`: without end
        #[arg(long)]
        with_ttl: bool,
    },
    /// Set a key, and print its new version
    Put {
        /// The key: 1 to 32 bytes
        name: String,
        /// Its value: 64 bytes at most, if the rack file says nothing else
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Only if it has this version
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
        /// Only if there is no such key
        #[arg(long, conflicts_with = "if_version")]
        if_absent: bool,
        /// It ends after so long, like 500ms or 10s; without this it lives until it is deleted
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
    },
    /// Delete a key
    Del {
        /// The key
        name: String,
        /// Only if it has this version
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
    },
    /// Set a key that has a certain value, and print its new version
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
        /// What is added
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
    },
    /// List the keys, in the order of their bytes
    Ls {
        /// Only those that begin so
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Print a key's version and value, and again when it has changed: changes in quick succession
    /// may show as one, the last is always shown
    Watch {
        /// The key
        name: String,
        /// End after so many lines
        #[arg(long, value_name = "N")]
        count: Option<u64>,
        /// Time from one look to the next
        #[arg(long, value_name = "TIME", default_value = "50ms")]
        every: String,
    },
    /// Run a command while holding a lock, with its fencing token in CONCORD_TOKEN
    Lock {
        /// The key that is the lock
        name: String,
        /// Its lease: so long after the last renewal the lock can be another's
        #[arg(long, value_name = "TIME", default_value = "10s")]
        ttl: String,
        /// How long to wait for it
        #[arg(long, value_name = "TIME", default_value = "0s")]
        wait: String,
        /// The command, which is killed if the lease cannot be renewed in time
        #[arg(required = true, last = true, value_name = "CMD")]
        command: Vec<String>,
    },
}
