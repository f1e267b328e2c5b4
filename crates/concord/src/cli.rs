//! The command line: commands, flags, and their help texts.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use concord_runtime::Error;
use concord_runtime::logging::{self, Format};
use concord_wire::control::Program;

use crate::rack::{Bytes, GATEWAYS_MAX, REPLICAS_MAX, STANDBYS_MAX, WORKERS_MAX};
use crate::systems;
use crate::systems::store::{Accel, Durability, Engine, Protocol, Reads};
use crate::systems::{concordia, falcon, netcraq};

/// A Redis-compatible, linearizable, replicated store whose reads scale with its replicas.
#[derive(Debug, Parser)]
#[command(
    name = "concord",
    version,
    about,
    after_help = "\
Start a rack on this machine:    concord up
Use it:                          redis-cli -p 7379
Look at it:                      concord status"
)]
pub struct Cli {
    /// The command
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a whole rack on this machine and keep it until Ctrl-C
    Up(UpArgs),
    /// Run the switch of a rack
    Switch(SwitchArgs),
    /// Run one replica of a rack
    Replica(ReplicaArgs),
    /// Run one gateway of a rack, which Redis clients connect to
    Gateway(RoleArgs),
    /// Run one worker of a rack, which executes tasks
    Worker(falcon::WorkerArgs),
    /// Run one owner of tasks of a rack, which jobs are submitted to
    Owner(falcon::OwnerArgs),
    /// Run one node of a shared memory, which Redis clients connect to
    Node(concordia::NodeArgs),
    /// Run the controller of a rack
    Controller(ControllerArgs),
    /// Submit a job: tasks that the rack's workers execute
    Submit(falcon::SubmitArgs),
    /// List, show and cancel jobs
    Job(falcon::JobArgs),
    /// Have a worker take no more tasks, and end once its running tasks have ended
    Drain(falcon::DrainArgs),
    /// Read and write the keys of a chain of switches; hold a lock in it
    Coord(netcraq::CoordArgs),
    /// Examine a shared memory: where a key is and why, and what was lost
    Memory(concordia::MemoryArgs),
    /// Show the state of a running rack
    Status(StatusArgs),
    /// Wait until nothing is wrong with a running rack
    Wait(WaitArgs),
    /// Show which members of a Raft group are voters, and change that
    Voters(VotersArgs),
    /// Execute a command, and show which path it took through the rack, and why
    Explain(ExplainArgs),
    /// Inspect a replica's data directory
    Log(LogCommandArgs),
    /// Back up the data of a rack, which may be running, into a directory
    Backup(BackupArgs),
    /// Create the data directories of a new rack from a backup
    Restore(RestoreArgs),
    /// Check a recorded history for linearizability
    Check(CheckArgs),
    /// Simulate a rack, its faults and its history from a seed, and check it
    #[cfg(feature = "lab")]
    Sim(crate::sim::SimArgs),
    /// Fuzz groups of replicas: any packet may arrive at any time, late and repeatedly
    #[cfg(feature = "lab")]
    Fuzz(crate::fuzz::FuzzArgs),
    /// Hammer Redis endpoints with concurrent clients, and check the history that they saw
    Torture(crate::torture::TortureArgs),
    /// Run benchmarks: YCSB, scale-out, and redis-server and etcd for comparison
    #[cfg(feature = "lab")]
    Bench(crate::bench::BenchArgs),
    /// Simulate a network packet by packet: topologies, workloads and transports from a file
    #[cfg(feature = "lab")]
    Net(crate::network::NetArgs),
    /// Reproduce a paper's figures in the simulator
    #[cfg(feature = "lab")]
    Reproduce(crate::reproduce::ReproduceArgs),
    #[cfg(not(feature = "lab"))]
    #[command(hide = true)]
    Sim(LeftOut),
    #[cfg(not(feature = "lab"))]
    #[command(hide = true)]
    Fuzz(LeftOut),
    #[cfg(not(feature = "lab"))]
    #[command(hide = true)]
    Bench(LeftOut),
    #[cfg(not(feature = "lab"))]
    #[command(hide = true)]
    Net(LeftOut),
    #[cfg(not(feature = "lab"))]
    #[command(hide = true)]
    Reproduce(LeftOut),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write a man page for each command
    Man(ManArgs),
    /// Kill the process groups named on standard input when that ends (for `concord worker`)
    #[command(hide = true)]
    Reap,
    /// Print docs/reference/reference.md
    #[command(hide = true)]
    Reference,
}

/// The arguments of a command that this build leaves out for want of the feature `lab`: any.
#[cfg(not(feature = "lab"))]
#[derive(Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub struct LeftOut {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _flags: Vec<String>,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line of text
    #[default]
    Text,
    /// A JSON object per line
    Json,
}

/// The log of every process of a rack, which goes to standard error.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// The format of log lines
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// The lowest level to log: error, warn, info, debug, trace, or off
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
}

impl LogArgs {
    /// Starts logging.
    ///
    /// # Errors
    /// One line that names the known levels.
    pub fn init(&self) -> Result<(), Error> {
        let format = match self.log_format {
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        };
        logging::init(format, &self.log_level)
    }

    /// The flags that give another process the same settings.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        let format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        ["--log-format", format, "--log-level", &self.log_level].map(str::to_string).to_vec()
    }
}

/// `concord up`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord up                                      three replicas, redis-cli -p 7379
  concord up --replicas 5 --protocol primary-backup
  concord up --accel none                         chain replication without the switch's help
  concord up --protocol craq --accel none         CRAQ: reads at every replica, without the switch's help
  concord up --gateways 2
  concord up --fault-drop 10000                   the switch loses 1% of the packets
  concord up --durability interval                synced every second: a power cut may lose the last one
  concord up --durability none                    nothing is on disk: for caches and benchmarks
  concord up --system falcon --standbys 1         workers for tasks: concord submit
  concord up --system netcraq --switches 4        keys and locks in a chain of switches: concord coord
  concord up --system concordia --nodes 4         a shared memory: redis-cli -p 7390 to 7393
  concord up --config my-rack.toml

The data is in data/ below the run directory; the next concord up serves it again.")]
pub struct UpArgs {
    /// The rack file; flags override its values
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// The system that the rack runs [default: store]
    #[arg(long, value_enum)]
    pub system: Option<systems::Choice>,
    /// Number of replicas [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(REPLICAS_MAX)))]
    pub replicas: Option<u16>,
    /// The replication protocol [default: chain]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// How the switch helps the protocol [default: harmonia]
    #[arg(long, value_enum)]
    pub accel: Option<Accel>,
    /// How a VR or Raft group answers reads that the switch does not help with [default:
    /// leader-lease]
    #[arg(long, value_enum)]
    pub reads: Option<Reads>,
    /// Where replicas keep the data [default: memory]
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,
    /// What survives a power cut of all replicas [default: fsync]
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,
    /// Where the first gateway serves Redis clients; further gateways take the next ports [default:
    /// 127.0.0.1:7379]. In a rack without gateways: where jobs are submitted [default:
    /// 127.0.0.1:7380], or where the first node of a shared memory serves clients [default:
    /// 127.0.0.1:7390]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// Number of gateways [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(GATEWAYS_MAX)))]
    pub gateways: Option<u16>,
    /// Number of workers, with --system falcon [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(WORKERS_MAX)))]
    pub workers: Option<u16>,
    /// Number of tasks that each worker runs at a time [default: the number of cores, at least 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4_096))]
    pub slots: Option<u16>,
    /// Number of tasks that each executor of a worker fetches ahead while it runs one, so that the
    /// next begins at once; useful for short tasks [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=64))]
    pub prefetch: Option<u8>,
    /// Number of switches of the chain, 1 to 8, with --system netcraq; where the rack file says
    /// its `length`, of its spares, too [default: 3]
    #[arg(long, value_name = "N")]
    pub switches: Option<u16>,
    /// With --system falcon: keep a journal of jobs in the run directory, so that they outlive
    /// their owner
    #[arg(long)]
    pub journal: bool,
    /// Number of nodes, 1 to 32, with --system concordia [default: 4]
    #[arg(long, value_name = "N")]
    pub nodes: Option<u16>,
    /// Length of a shared memory's blocks in bytes: 512, 1024, 2048 or 4096 [default: 1024]
    #[arg(long, value_name = "BYTES")]
    pub block_bytes: Option<u32>,
    /// How a shared memory is kept coherent [default: concordia]
    #[arg(long, value_enum)]
    pub coherence: Option<systems::Coherence>,
    /// Number of standby switches, which take over when the active one dies [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=i64::from(STANDBYS_MAX)))]
    pub standbys: Option<u16>,
    /// The run directory: for the rack file, the logs and the controller's state
    #[arg(long, value_name = "DIR", default_value = "run")]
    pub run_dir: PathBuf,
    /// With --no-restart: restart gateways that die nevertheless
    #[arg(long)]
    pub restart_gateways: bool,
    /// Do not restart workers, owners, gateways and memory nodes that end
    #[arg(long)]
    pub no_restart: bool,
    /// Rebuild a lost state file of the controller from the state of the replicas
    #[arg(long)]
    pub recover: bool,
    /// The password that clients must AUTH with
    #[arg(long, value_name = "PASSWORD")]
    pub requirepass: Option<String>,
    /// Let MGET, EXISTS and TOUCH of several keys read each key by itself: faster, and not atomic
    #[arg(long)]
    pub split_reads: bool,
    /// The maximum size of the data at each replica, such as 512mb; 0 for none
    #[arg(long, value_name = "BYTES")]
    pub maxmemory: Option<Bytes>,
    /// Stages of the switch's dirty set [default: 3]
    #[arg(long, value_name = "N")]
    pub table_stages: Option<u8>,
    /// Slots in each stage of the dirty set, a power of two [default: 65536]
    #[arg(long, value_name = "N")]
    pub table_slots: Option<u32>,
    /// Fault injection: packets that the switch drops, per million
    #[arg(long, value_name = "PER_MILLION")]
    pub fault_drop: Option<u32>,
    /// Fault injection: packets that the switch duplicates, per million
    #[arg(long, value_name = "PER_MILLION")]
    pub fault_duplicate: Option<u32>,
    /// Fault injection: packets that the switch reorders, per million
    #[arg(long, value_name = "PER_MILLION")]
    pub fault_reorder: Option<u32>,
    /// Fault injection: each sync of a replica's disk takes this long, in ms, and until then its
    /// file has none or half of the data
    #[arg(long, value_name = "MS")]
    pub fault_disk_hold: Option<u64>,
    /// Fault injection: no sync of a replica's disk ends while this directory has a file with the
    /// name of the replica, such as replica-2
    #[arg(long, value_name = "DIRECTORY")]
    pub fault_disk_hang: Option<PathBuf>,
    /// The share of a core that each replica may use, for benchmarks (0.05 is a twentieth)
    #[arg(long, value_name = "SHARE")]
    pub cpu_share: Option<f64>,
    /// The redis-server to start with --engine redis [default: redis-server]
    #[arg(long, value_name = "PATH")]
    pub redis_server: Option<String>,
    /// The log of the roles
    #[command(flatten)]
    pub log: LogArgs,
}

/// The arguments of every role.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example, with the rack file that `concord up` writes to run/rack.toml, its addresses changed:
  host-a$ concord controller --config rack.toml
  host-b$ concord switch --config rack.toml
  host-c$ concord replica --config rack.toml --node 1
  host-d$ concord gateway --config rack.toml --node 1")]
pub struct RoleArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml")]
    pub config: PathBuf,
    /// Its number in the rack file; may be omitted if there is only one such role
    #[arg(long, value_name = "N")]
    pub node: Option<u16>,
    /// Its log
    #[command(flatten)]
    pub log: LogArgs,
    /// End when standard input ends (for `concord up`)
    #[arg(long, hide = true)]
    pub supervised: bool,
}

/// `concord replica`.
#[derive(Args, Clone, Debug)]
pub struct ReplicaArgs {
    /// The arguments of every role
    #[command(flatten)]
    pub role: RoleArgs,
    /// Its group, by the name in the rack file; may be omitted if no other group has a replica with
    /// that number
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Its data directory, instead of the rack file's `data_dir`
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// What survives a power cut, instead of the rack file's `durability`; the same for all
    /// replicas of the group
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,
}

/// `concord log`.
#[derive(Args, Clone, Debug)]
pub struct LogCommandArgs {
    /// The command
    #[command(subcommand)]
    pub command: LogCommand,
}

/// The commands on a data directory.
#[derive(Clone, Debug, Subcommand)]
pub enum LogCommand {
    /// Show the content of a data directory, and whether it is intact
    #[command(after_help = "\
Example:
  concord log inspect run/data/replica-1

Ends with 1, and a line with the file and the offset, if something before the end is damaged or missing.
Nothing is changed, and a replica may be running with the directory.")]
    Inspect {
        /// The data directory
        directory: PathBuf,
    },
}

/// `concord backup`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord backup backups/monday
  concord backup --config rack.toml --group sessions backups/sessions
  concord backup --data-dir data/replica-2 backups/rest      of a replica that is down
  concord backup --verify backups/monday                     ends with 1 if a part is missing or damaged

A backup has all writes acknowledged before it was started, and is consistent: it ends at one position of the
log. Run it on the machine of a member of the group. docs/operate/operations.md has more.")]
pub struct BackupArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml")]
    pub config: PathBuf,
    /// The group, if there are several
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Back up the directory of a single replica, without a running rack: only the data that this
    /// replica has
    #[arg(long, value_name = "DIR", conflicts_with = "group")]
    pub data_dir: Option<PathBuf>,
    /// Verify an existing backup: all of its files, by length and SHA-256, and its log
    #[arg(long, conflicts_with_all = ["group", "data_dir"])]
    pub verify: bool,
    /// The directory to write, which must not exist yet
    #[arg(value_name = "BACKUP")]
    pub target: PathBuf,
}

/// `concord restore`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord restore backups/monday --run-dir run2 && concord up --run-dir run2
  concord restore backups/monday --config rack.toml                       of all replicas, on this machine
  concord restore backups/monday --node 2 --data-dir data/replica-2       of one, on its machine

All replicas begin with the same backup, and the controller without a state file. It is a new rack: writes
acknowledged after the backup are not in it, and earlier sessions end.")]
pub struct RestoreArgs {
    /// The directory that `concord backup` wrote
    #[arg(value_name = "BACKUP")]
    pub backup: PathBuf,
    /// The run directory of a rack that `concord up` will start on this machine
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "data_dir", "node"])]
    pub run_dir: Option<PathBuf>,
    /// The number of replicas of that rack
    #[arg(long, value_name = "N", default_value_t = 3, requires = "run_dir",
          value_parser = clap::value_parser!(u16).range(1..=i64::from(REPLICAS_MAX)))]
    pub replicas: u16,
    /// The rack file with the data directories of the replicas
    #[arg(long, value_name = "FILE.toml", conflicts_with = "data_dir")]
    pub config: Option<PathBuf>,
    /// The group in that rack file, if there are several
    #[arg(long, value_name = "NAME", requires = "config")]
    pub group: Option<String>,
    /// A single replica to restore, by its number
    #[arg(long, value_name = "N")]
    pub node: Option<u16>,
    /// The data directory of that replica
    #[arg(long, value_name = "DIR", requires = "node")]
    pub data_dir: Option<PathBuf>,
}

/// Parses the name of a switch program.
fn program(name: &str) -> Result<Program, String> {
    Program::named(name)
        .ok_or_else(|| format!("there are {}", Program::ALL.map(Program::name).join(", ")))
}

/// `concord switch`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord switch --config rack.toml
  concord switch --config rack.toml --standby   the rack file's [[standby]]: takes over from a dead one
  concord switch --describe                     the stage table, SRAM and recirculations
  concord switch --describe --programs harmonia,nopaxos        of two programs on one switch")]
pub struct SwitchArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", required_unless_present = "describe")]
    pub config: Option<PathBuf>,
    /// Take over only once the active switch is silent: run a `[[standby]]` of the rack file
    #[arg(long)]
    pub standby: bool,
    /// Run a switch of a chain: a `[[group.switch]]` of this group
    #[arg(long, value_name = "NAME", conflicts_with = "standby")]
    pub group: Option<String>,
    /// The number of the `[[standby]]` or `[[group.switch]]`; may be omitted if there is only one
    #[arg(long, value_name = "N")]
    pub node: Option<u16>,
    /// Print the resources of a switch ASIC that its programs need, and exit
    #[arg(long)]
    pub describe: bool,
    /// Its programs, instead of those in the rack file; several share the switch
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', requires = "describe",
          value_parser = program)]
    pub programs: Vec<Program>,
    /// Its log
    #[command(flatten)]
    pub log: LogArgs,
    /// End when standard input ends (for `concord up`)
    #[arg(long, hide = true)]
    pub supervised: bool,
}

/// `concord controller`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
A controller whose state file was lost, or is not the newest, decides nothing and reports that. Then:
  concord controller --config rack.toml --recover            every member of the newest epoch is alive
  concord controller --config rack.toml --recover --gone 2   replica 2, a member, is gone for good
  concord controller --config rack.toml --recover --gone sessions:2    of several groups

It listens for twice failure_ms, and continues with the members of the newest epoch that any replica has
heard of, with numbers above all that were used. If no member with all the data is left, it continues
with the newest data that is, and reports what is lost.")]
pub struct ControllerArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml")]
    pub config: PathBuf,
    /// Begin a new rack with the replicas that register, and give up the data of earlier members
    #[arg(long)]
    pub fresh: bool,
    /// Rebuild a lost state file from the state of the replicas
    #[arg(long, conflicts_with = "fresh")]
    pub recover: bool,
    /// A replica that is gone for good; writes that only this replica has are lost. If it is heard
    /// from, it stays a member. With several groups, the name of its group precedes the number:
    /// sessions:2
    #[arg(long, value_name = "N", requires = "recover", value_delimiter = ',')]
    pub gone: Vec<String>,
    /// Its log
    #[command(flatten)]
    pub log: LogArgs,
    /// End when standard input ends (for `concord up`)
    #[arg(long, hide = true)]
    pub supervised: bool,
}

/// `concord status`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord status
  concord status --json | jq .fast_read_share

Ends with 0 if every role answers, every replica is a member and the controller has no PROBLEM;
otherwise with 1. docs/operate/operations.md lists the keys of the JSON.")]
pub struct StatusArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml")]
    pub config: PathBuf,
    /// Print the status as JSON
    #[arg(long)]
    pub json: bool,
    /// The time over which rates and latencies are measured, in ms
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub interval_ms: u64,
}

/// `concord wait`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example, in a rolling restart:
  systemctl restart concord-replica && concord wait && echo next

Ends with 0 once every role answers and does its work, every replica is a member and the controller has
no PROBLEM; with 1 and one line with the remaining problems when the time is over.")]
pub struct WaitArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml")]
    pub config: PathBuf,
    /// The maximum time to wait, in seconds
    #[arg(long = "timeout", value_name = "S", default_value_t = 60)]
    pub timeout_s: u64,
}

/// `concord voters`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord voters                  who votes, and who leads
  concord voters --remove 3       before replica 3 is gone for long, or if it is lost for good
  concord voters --add 3          once it is back

A non-voter follows the log, but counts in no majority, and answers no reads. One voter is changed at a
time. Ends with 0 once the change is committed; with 1 and one line if it is refused, or not committed
when the time is over (it may be committed later).")]
pub struct VotersArgs {
    /// The rack file
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml")]
    pub config: PathBuf,
    /// The group, if there are several Raft groups
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Make this replica a voter
    #[arg(long, value_name = "NODE", conflicts_with = "remove")]
    pub add: Option<u16>,
    /// Make this replica a non-voter
    #[arg(long, value_name = "NODE")]
    pub remove: Option<u16>,
    /// The maximum time to wait, in seconds
    #[arg(long = "timeout", value_name = "S", default_value_t = 10)]
    pub timeout_s: u64,
}

impl VotersArgs {
    /// The replica to change, and whether it is to be a voter.
    #[must_use]
    pub fn change(&self) -> Option<(u16, bool)> {
        self.add.map(|node| (node, true)).or(self.remove.map(|node| (node, false)))
    }
}

/// `concord explain`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  concord explain GET user:1
  concord explain --user ann --password secret GET user:1
  concord explain 7.42            task 42 of job 7: its ticket, its worker, its attempts and why")]
pub struct ExplainArgs {
    /// The rack file, for the gateway's address and password
    #[arg(long, value_name = "FILE.toml", default_value = "run/rack.toml")]
    pub config: PathBuf,
    /// The gateway to use, instead of the first in the rack file
    #[arg(long, value_name = "ADDR:PORT")]
    pub gateway: Option<SocketAddr>,
    /// The user to log in as, instead of `default`; requires --password
    #[arg(long, value_name = "NAME", requires = "password")]
    pub user: Option<String>,
    /// The password, instead of the rack file's `requirepass`; other users of this machine can see
    /// it in the list of processes
    #[arg(long, value_name = "PASSWORD")]
    pub password: Option<String>,
    /// The command to execute and explain; or a task, as JOB.TASK
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `concord check`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  concord check history.jsonl

Ends with 0 if the history is linearizable, 1 if not, 2 if the search ran out of its budget.")]
pub struct CheckArgs {
    /// The history, one JSON object per line
    pub file: PathBuf,
    /// The maximum duration of the search, in seconds
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub seconds: u64,
}

/// `concord completions`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  concord completions bash > /etc/bash_completion.d/concord")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `concord man`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  concord man /usr/local/share/man/man1 && man concord-up")]
pub struct ManArgs {
    /// The directory, which is created if it does not exist
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_mean_what_they_say() {
        let line = "concord up --replicas 5 --protocol primary-backup --accel none --maxmemory 1gb";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Up(up) = cli.command else { panic!("up") };
        assert_eq!(up.replicas, Some(5));
        assert_eq!(up.protocol, Some(Protocol::PrimaryBackup));
        assert_eq!(up.accel, Some(Accel::None));
        assert_eq!(up.maxmemory, Some(Bytes(1 << 30)));
        let line = "concord switch --describe --programs harmonia,nopaxos";
        let Command::Switch(switch) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("switch")
        };
        assert_eq!(switch.programs, [Program::Harmonia, Program::NoPaxos]);
        let wrong = "concord switch --describe --programs harmonia,flow";
        let error = Cli::try_parse_from(wrong.split(' ')).unwrap_err().to_string();
        assert!(error.contains("'flow'") && error.contains("forward, harmonia, craq"), "{error}");
        for bad in [
            "switch --config r.toml --programs craq",
            "up --replicas 0",
            "up --listen 7379",
            "up --protocol ring",
            "switch",
        ] {
            assert!(Cli::try_parse_from(format!("concord {bad}").split(' ')).is_err(), "{bad}");
        }
    }
}
