//! The command line of workers, owners and jobs.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::RoleArgs;

/// `concord worker`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example, with a rack file that has [[group.worker]] entries, and the key file that it names copied beside it:
  host-c$ concord worker --config rack.toml --node 1 --slots 8 --allow-exec --has gpu

On SIGTERM it takes no more tasks, and ends once its running tasks have ended, after --drain at the latest; tasks that
run for longer are killed, and begin again elsewhere. A second SIGTERM ends it at once.")]
pub struct WorkerArgs {
    /// The arguments of every role
    #[command(flatten)]
    pub role: RoleArgs,
    /// The name of its `[[group]]`; may be omitted if only one group has workers
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Number of tasks that it runs at a time, instead of the rack file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4_096))]
    pub slots: Option<u16>,
    /// Execute commands, as the user who started it
    #[arg(long)]
    pub allow_exec: bool,
    /// A feature that it has, such as gpu, instead of those in the rack file; some worker in the
    /// rack file must have it
    #[arg(long, value_name = "NAME")]
    pub has: Vec<String>,
    /// Number of tasks that each executor fetches ahead, instead of the rack file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=64))]
    pub prefetch: Option<u8>,
    /// The time that running tasks may take after it was told to end, such as 10m
    #[arg(long, value_name = "TIME", default_value = "700ms")]
    pub drain: String,
}

/// `concord owner`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example, with a rack file that has a [[group.owner]] entry, and the key file that it names copied beside it:
  host-d$ concord owner --config rack.toml

Its jobs are in its memory, and end with it; with a journal they continue when it is restarted. If it is killed, tasks
that are running are killed when their leases expire.")]
pub struct OwnerArgs {
    /// The arguments of every role
    #[command(flatten)]
    pub role: RoleArgs,
    /// The name of its `[[group]]`; may be omitted if only one group has owners
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// The file with its journal of jobs, so that they outlive it, instead of the rack file's
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
}

/// `concord drain`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord drain 2                                 worker 2 ends once its running tasks have ended
  concord drain 2 --within 10m                    after 10 minutes running tasks are killed, and begin again elsewhere

concord up does not restart a drained worker. Other supervisors recognize it by its exit status, 4.")]
pub struct DrainArgs {
    /// The owner to ask
    #[command(flatten)]
    pub asked: OwnerSelector,
    /// The worker's number in the rack file
    #[arg(value_name = "WORKER")]
    pub worker: u16,
    /// The maximum time for running tasks; without it, they may take any time
    #[arg(long, value_name = "TIME")]
    pub within: Option<String>,
}

/// The owner to ask.
#[derive(Args, Clone, Debug)]
pub struct OwnerSelector {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml")]
    pub config: PathBuf,
    /// The name of the `[[group]]`; may be omitted if only one group has owners
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// The owner of the group, by its number [default: the first]
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
  find . -name '*.log' -print0 | concord submit --lines - -0 --wait --keep-order -- wc -l
  concord submit --after 7,8 --after any:9 -- ./summary
  concord submit --array 0-99 --after each:7 --max-running 10 --grace 5s -- ./second-step {}

With --array or --lines, {} in the command stands for the task's number or line, and {{}} for {}; a command for lines
without {} gets the line as its last argument. A command has CONCORD_JOB, CONCORD_TASK and CONCORD_ATTEMPT in its
environment. The first 1 MiB of its output is kept.

concord submit prints the job's number. With --wait it ends with 0 if all tasks are done, otherwise with 1, or with a
single command's own status; Ctrl-C then cancels the job, except with --detach. If the owner is gone, it retries for a
minute.")]
pub struct SubmitArgs {
    /// The owner to ask
    #[command(flatten)]
    pub asked: OwnerSelector,
    /// Make a task for each number, such as 0-99, 0-99:2 for every second one, or 1,5,7-9
    #[arg(long, value_name = "NUMBERS", conflicts_with = "lines")]
    pub array: Option<String>,
    /// Make a task for each line of the file; - for standard input
    #[arg(long, value_name = "FILE")]
    pub lines: Option<PathBuf>,
    /// Lines end with a zero byte, as in the output of find -print0
    #[arg(short = '0', long, requires = "lines")]
    pub null: bool,
    /// How many times a failed task is tried again [default: 0]
    #[arg(long, value_name = "N", conflicts_with = "once")]
    pub retries: Option<u16>,
    /// The pause before a failed task is tried again, which doubles each time [default: 500ms]
    #[arg(long, value_name = "TIME", requires = "retries")]
    pub retry_delay: Option<String>,
    /// The time between SIGTERM and SIGKILL for a command that is cancelled or takes too long
    /// [default: SIGKILL at once]
    #[arg(long, value_name = "TIME", conflicts_with = "handler")]
    pub grace: Option<String>,
    /// The maximum number of the job's tasks in progress at a time [default: all of them]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_running: Option<u32>,
    /// The maximum time of a task, such as 500ms, 1.5s, 2m or 1h [default: unlimited]
    #[arg(long, value_name = "TIME")]
    pub limit: Option<String>,
    /// The priority: 3 is the highest, and precedes all others
    #[arg(long, value_name = "0-3", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub priority: Option<u8>,
    /// Run it only on workers that have this feature, such as gpu
    #[arg(long, value_name = "NAME")]
    pub needs: Option<String>,
    /// Run it on this worker, if that is free soon enough
    #[arg(long, value_name = "NODE")]
    pub near: Option<u16>,
    /// The time that tasks wait for that worker before any other one may run them [default: 100ms]
    #[arg(long, value_name = "TIME", requires = "near")]
    pub locality_wait: Option<String>,
    /// Never run a task twice: if its worker dies, it stays unknown whether the task was done
    #[arg(long)]
    pub once: bool,
    /// The directory of commands at their worker; . is the directory of this command [default: that
    /// in which the worker was started]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// A variable of the commands' environment: with its value, or with the value that it has here
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Wait until all tasks are over; if this command ends before, the job is cancelled within 10
    /// seconds
    #[arg(long)]
    pub wait: bool,
    /// With --wait: let the job continue if this command ends
    #[arg(long)]
    pub detach: bool,
    /// With --wait: print the tasks' outputs, each as a whole when its task is over
    #[arg(long, requires = "wait")]
    pub outputs: bool,
    /// As --outputs, but in the order of the tasks
    #[arg(long, requires = "wait")]
    pub keep_order: bool,
    /// With --wait: write a line for each task that is over
    #[arg(long, value_name = "FILE", requires = "wait")]
    pub joblog: Option<PathBuf>,
    /// Begin after another job has ended: ok:JOB (or JOB), if all of its tasks are done, and be
    /// cancelled otherwise; any:JOB, however it ended; not-ok:JOB, if some are not done; each:JOB,
    /// each task when the task of that job in the same place is done
    #[arg(long, value_name = "[WHEN:]JOB", value_delimiter = ',')]
    pub after: Vec<String>,
    /// Make tasks that do nothing, instead of running a command
    #[arg(long, conflicts_with_all = ["sleep", "spin", "command"])]
    pub no_op: bool,
    /// Make tasks that sleep for this time
    #[arg(long, value_name = "TIME", conflicts_with_all = ["spin", "command"])]
    pub sleep: Option<String>,
    /// Make tasks that keep a core busy for this time
    #[arg(long, value_name = "TIME", conflicts_with = "command")]
    pub spin: Option<String>,
    /// The command is a handler: it keeps running, and gets one task after another on its standard
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
    /// The owner to ask
    #[command(flatten)]
    pub asked: OwnerSelector,
    /// The command
    #[command(subcommand)]
    pub command: JobCommand,
}

/// The commands on jobs.
#[derive(Clone, Debug, Subcommand)]
pub enum JobCommand {
    /// List the last thousand jobs
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the state of a job
    Show {
        /// The job's number
        job: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the outcomes and outputs of a job's tasks, in the order in which they ended
    Results {
        /// The job's number
        job: String,
        /// As JSON, one line each
        #[arg(long)]
        json: bool,
        /// Continue until the last task has ended
        #[arg(long)]
        wait: bool,
        /// Write each task's output, unchanged, into a file named by the task's number
        #[arg(long, value_name = "DIR", conflicts_with = "json")]
        to: Option<PathBuf>,
    },
    /// Show a line for each task that is over: number, outcome, status, attempts, seconds, bytes
    Log {
        /// The job's number
        job: String,
    },
    /// Try the failed, lost and unknown tasks of a job again, as a new job
    Retry {
        /// The job's number
        job: String,
        /// The cancelled tasks, too
        #[arg(long)]
        cancelled: bool,
    },
    /// Show the tasks that failed for good, are lost, or unknown
    Dead {
        /// The job's number
        job: String,
        /// As JSON, one line each
        #[arg(long)]
        json: bool,
    },
    /// End all tasks of a job that are not over; running ones are killed
    Cancel {
        /// The job's number
        job: String,
    },
    /// Print the token that HTTP clients must send: Authorization: Bearer TOKEN
    Token,
}
