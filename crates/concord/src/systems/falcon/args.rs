//! The command line of workers, owners and jobs.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::RoleArgs;

/// `concord worker`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example, with a rack file that has [[group.worker]] entries, and the key file that it names copied beside it:
  host-c$ concord worker --config rack.toml --node 1 --slots 8 --allow-exec --has gpu

It ends when what it runs has ended, but a second after it was told to at the latest; what runs for longer is killed,
and begun again elsewhere.")]
pub struct WorkerArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Of which `[[group]]`; not needed where only one has workers
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Tasks that it runs at a time, instead of the rack file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4_096))]
    pub slots: Option<u16>,
    /// It executes commands, as whoever started it
    #[arg(long)]
    pub allow_exec: bool,
    /// It has this, like gpu, instead of what the rack file says of it; some worker of the rack
    /// file has it
    #[arg(long, value_name = "NAME")]
    pub has: Vec<String>,
    /// Tasks that each executor may have beside the one that it runs, instead of the rack file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=64))]
    pub prefetch: Option<u8>,
}

/// `concord owner`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example, with a rack file that has a [[group.owner]] entry, and the key file that it names copied beside it:
  host-d$ concord owner --config rack.toml

Its jobs are in its memory, and end with it; with a journal they go on when it is started again. What runs when it is
killed is killed when its lease is over.")]
pub struct OwnerArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Of which `[[group]]`; not needed where only one has owners
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Where its jobs are written down, so that they outlive it, instead of the rack file's
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
}

/// Which owner is asked.
#[derive(Args, Clone, Debug)]
pub struct OwnerSelector {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml")]
    pub config: PathBuf,
    /// Of which `[[group]]`; not needed where only one has owners
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Which owner of the group; the first one if not said
    #[arg(long, value_name = "N")]
    pub owner: Option<u16>,
}

/// `concord submit`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord submit --array 0-9999 --retries 3 --limit 2s --wait -- convert {}.png {}.jpg
  ls *.log | concord submit --lines - --wait -- gzip {}
  concord submit --once -- ./charge-customers
  concord submit --priority 3 --needs gpu -- ./render
  concord submit --near 2 --locality-wait 50ms -- ./count /data/part-7
  concord submit --array 1-100000 --no-op --wait
  concord submit --array 1-100000 --handler --wait -- python3 -u handler.py

{} in the command stands for the task's number or line. A command finds CONCORD_JOB, CONCORD_TASK and
CONCORD_ATTEMPT in its environment. Of its output the first 1 MiB is kept. It prints the job's
number, and with --wait ends with 0 if all tasks are done, else with 1.")]
pub struct SubmitArgs {
    /// Where
    #[command(flatten)]
    pub asked: OwnerSelector,
    /// A task for each number from A to B
    #[arg(long, value_name = "A-B", conflicts_with = "lines")]
    pub array: Option<String>,
    /// A task for each line of the file; - for standard input
    #[arg(long, value_name = "FILE")]
    pub lines: Option<PathBuf>,
    /// How often a task that failed is tried again [default: 0]
    #[arg(long, value_name = "N", conflicts_with = "once")]
    pub retries: Option<u16>,
    /// How long a task may take, like 500ms, 2s or 1m [default: for ever]
    #[arg(long, value_name = "TIME")]
    pub limit: Option<String>,
    /// How urgent: 3 is the most, and before all others
    #[arg(long, value_name = "0-3", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub priority: Option<u8>,
    /// Only workers that have this run it, like gpu
    #[arg(long, value_name = "NAME")]
    pub needs: Option<String>,
    /// At this worker, if it is free soon enough
    #[arg(long, value_name = "NODE")]
    pub near: Option<u16>,
    /// How long tasks wait for that worker before any other one may have them [default: 100ms]
    #[arg(long, value_name = "TIME", requires = "near")]
    pub locality_wait: Option<String>,
    /// No task is ever run twice: of one whose worker dies it stays unknown whether it was done
    #[arg(long)]
    pub once: bool,
    /// Where commands run [default: where the worker was started]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<String>,
    /// Wait until all tasks are over; if this command ends before, the job is cancelled within 10
    /// seconds
    #[arg(long)]
    pub wait: bool,
    /// With --wait: the job goes on if this command ends
    #[arg(long)]
    pub detach: bool,
    /// Wait first until all tasks of this job are done; if some are not, nothing is submitted
    #[arg(long, value_name = "JOB")]
    pub after: Option<u32>,
    /// Tasks that do nothing, instead of a command
    #[arg(long, conflicts_with_all = ["sleep", "spin", "command"])]
    pub no_op: bool,
    /// Tasks that sleep for so long
    #[arg(long, value_name = "TIME", conflicts_with_all = ["spin", "command"])]
    pub sleep: Option<String>,
    /// Tasks that keep a core busy for so long
    #[arg(long, value_name = "TIME", conflicts_with = "command")]
    pub spin: Option<String>,
    /// The command is a handler: it stays, and is given one task after another on its standard
    /// input (docs/internals/falcon.md, Handlers)
    #[arg(long, conflicts_with_all = ["no_op", "sleep", "spin"])]
    pub handler: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND",
          required_unless_present_any = ["no_op", "sleep", "spin"])]
    pub command: Vec<String>,
}

/// `concord job`.
#[derive(Args, Clone, Debug)]
pub struct JobArgs {
    /// Where
    #[command(flatten)]
    pub asked: OwnerSelector,
    /// What to do
    #[command(subcommand)]
    pub command: JobCommand,
}

/// What to do with jobs.
#[derive(Clone, Debug, Subcommand)]
pub enum JobCommand {
    /// List the last thousand jobs
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show how a job is
    Show {
        /// The job's number
        job: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show how the tasks of a job ended and what they gave, in the order in which they did
    Results {
        /// The job's number
        job: String,
        /// As JSON, a line each
        #[arg(long)]
        json: bool,
        /// Go on until the last one
        #[arg(long)]
        wait: bool,
    },
    /// Show the tasks that failed for good, are lost or unknown
    Dead {
        /// The job's number
        job: String,
        /// As JSON, a line each
        #[arg(long)]
        json: bool,
    },
    /// End all tasks of a job that are not over; what runs is killed
    Cancel {
        /// The job's number
        job: String,
    },
    /// Print what HTTP clients have to show: Authorization: Bearer TOKEN
    Token,
}
