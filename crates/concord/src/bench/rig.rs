//! Processes that a bench starts, and that end when it ends for any reason.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use concord_runtime::{Context, Error};
use concord_wire::Addr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::cgroup::Cap;
use super::load::check_stop;
use crate::rack::{LOCALHOST, Rack, wire};
use crate::systems::store::{Accel, Durability, Engine, Protocol};

/// The maximum time until a rack serves, or a process ends after SIGTERM.
const READY_MAX: Duration = Duration::from_secs(40);
const STOP_MAX: Duration = Duration::from_secs(8);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The path of the rack file below the directory of a rig.
const RACK: &str = "run/rack.toml";
const PIDS: &str = "run/pids";

/// Leases far longer than the stalls of a CPU quota: a capped replica is slow, not dead.
const CAPPED: &str = "lease_ms = 4000\nfailure_ms = 20000\n";
/// The corresponding setting of FLAIR's switch, which steps down before a lease is over.
const CAPPED_STEPDOWN: &str = "stepdown_ms = 3500\n";

/// A directory of this bench, removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    /// The path of the directory.
    pub path: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    /// A new directory.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> Result<Scratch, Error> {
        Scratch::below(&std::env::temp_dir())
    }

    /// A new directory whose files are in memory, if the machine has such a place.
    ///
    /// # Errors
    /// The system's.
    pub fn in_memory() -> Result<Scratch, Error> {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Scratch::below(memory) } else { Scratch::new() }
    }

    /// A new directory below `parent`.
    ///
    /// # Errors
    /// The system's.
    pub fn below(parent: &Path) -> Result<Scratch, Error> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("concord-bench-{}-{number}", std::process::id());
        let path = parent.join(name);
        std::fs::create_dir(&path).cannot(format!("make the directory {}", path.display()))?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A port at which no process listens.
///
/// # Errors
/// If there is none.
pub fn free_port() -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind((LOCALHOST, 0)).cannot("find a free port")?;
    listener.local_addr().cannot("find a free port")
}

/// A process that ends with its owner: it is asked to end, then killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, whose output goes to `log`.
    ///
    /// # Errors
    /// The system's.
    pub fn start(command: &mut Command, log: PathBuf) -> Result<Process, Error> {
        let file = std::fs::File::create(&log).cannot(format!("create {}", log.display()))?;
        let error = file.try_clone().cannot("share a log")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(error)
            .spawn()
            .cannot(format!("start {}", command.get_program().display()))?;
        Ok(Process { child, log })
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) {
        let _ = self.child.wait();
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` returns `true` for its output.
    ///
    /// # Errors
    /// If the process ended, with the end of its output; if it took too long; or a signal came.
    pub fn wait_until(&mut self, mut ready: impl FnMut(&str) -> bool) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            check_stop()?;
            let printed = std::fs::read_to_string(&self.log).unwrap_or_default();
            if ready(&printed) {
                return Ok(());
            }
            let last = printed.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("");
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Error::new(format!("it ended with {status}: {last}")));
            }
            if started.elapsed() > READY_MAX {
                return Err(Error::new(format!("not ready in time: {last}")));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
            && matches!(self.child.try_wait(), Ok(None))
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if started.elapsed() > STOP_MAX {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// The parameters of a rack.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The replication protocol.
    pub protocol: Protocol,
    /// The number of replicas.
    pub replicas: u16,
    /// How the switch helps.
    pub accel: Accel,
    /// Whether replicas are to be capped later, for which leases must be long.
    pub capped: bool,
    /// The share of a core for the replicas' own token bucket, if it is used.
    pub bucket: Option<f64>,
    /// Which writes survive a crash; `none` for comparisons with systems that persist nothing.
    pub durability: Durability,
    /// The number of key groups of FLAIR's switch; `None` for the default.
    pub key_groups: Option<u32>,
    /// Where replicas keep their data.
    pub engine: Engine,
}

impl Shape {
    /// A rack of this number of replicas, with the switch's help if the protocol can use it; in
    /// memory, without caps, and without durability.
    pub fn new(protocol: Protocol, replicas: u16) -> Shape {
        let accel = if protocol == Protocol::Craq { Accel::None } else { Accel::default() };
        Shape {
            protocol,
            replicas,
            accel,
            capped: false,
            bucket: None,
            durability: Durability::None,
            key_groups: None,
            engine: Engine::default(),
        }
    }
}

/// A running rack. Its processes end before its cgroups and its directory are removed.
#[derive(Debug)]
pub struct Rig {
    up: Process,
    /// The parameters with which it was started.
    shape: Shape,
    /// The address for Redis clients.
    pub listen: SocketAddr,
    /// The address for native clients.
    pub switch: Addr,
    /// The ids of the replicas' processes.
    pub replicas: Vec<u32>,
    caps: Vec<Cap>,
    scratch: Scratch,
}

impl Rig {
    /// Starts `concord up`, and waits until it serves.
    ///
    /// # Errors
    /// If it does not serve.
    pub fn start(shape: Shape) -> Result<Rig, Error> {
        Rig::start_below(&std::env::temp_dir(), shape)
    }

    /// As [`Rig::start`], with the data on the disk of `parent`.
    ///
    /// # Errors
    /// If it does not serve.
    pub fn start_below(parent: &Path, shape: Shape) -> Result<Rig, Error> {
        let scratch = Scratch::below(parent)?;
        let listen = free_port()?;
        let up = up(&scratch.path, listen, shape)?;
        let rack = Rack::read(&scratch.path.join(RACK))?;
        let switch = wire(rack.switch()?.addr);
        let replicas = replica_pids(&scratch.path.join(PIDS))?;
        Ok(Rig { up, shape, listen, switch, replicas, caps: Vec::new(), scratch })
    }

    /// The path of the rack file.
    pub fn config(&self) -> PathBuf {
        self.scratch.path.join(RACK)
    }

    /// Kills every process of the rack at once.
    ///
    /// # Errors
    /// If the processes are not known.
    pub fn kill_all(&mut self) -> Result<(), Error> {
        let path = self.scratch.path.join(PIDS);
        let text = std::fs::read_to_string(&path).cannot(format!("read {}", path.display()))?;
        let own = text.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok());
        let pids = std::iter::once(self.up.pid()).chain(own);
        let pids: Vec<Pid> = pids.filter_map(|p| Pid::from_raw(i32::try_from(p).ok()?)).collect();
        let ends: Vec<_> = pids.iter().map(|pid| pidfd_open(*pid, PidfdFlags::empty())).collect();
        // Stopped first, so that no process ends in order because another one is gone.
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &pids {
                let _ = kill_process(*pid, signal);
            }
        }
        // Their ports are free once they are gone; a process without a descriptor was gone before.
        for end in ends.into_iter().flatten() {
            let mut ended = [PollFd::new(&end, PollFlags::IN)];
            let longest = Timespec { tv_sec: STOP_MAX.as_secs().cast_signed(), tv_nsec: 0 };
            poll(&mut ended, Some(&longest)).cannot("wait for a process to end")?;
        }
        self.up.wait();
        Ok(())
    }

    /// Restarts a rack that was killed, with its data.
    ///
    /// # Errors
    /// If it does not serve.
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.up = up(&self.scratch.path, self.listen, self.shape)?;
        self.replicas = replica_pids(&self.scratch.path.join(PIDS))?;
        Ok(())
    }

    /// Kills a replica.
    pub fn kill_replica(&self, node: u16) {
        let pid = self.replicas.get(usize::from(node) - 1).and_then(|pid| i32::try_from(*pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Restarts a replica that was killed, as a separate process.
    ///
    /// # Errors
    /// The system's.
    pub fn start_replica(&self, node: u16) -> Result<Process, Error> {
        let exe = std::env::current_exe().cannot("find this program")?;
        let mut command = Command::new(exe);
        command.args(["replica", "--node", &node.to_string(), "--config"]).arg(self.config());
        Process::start(&mut command, self.scratch.path.join("replica-again.log"))
    }

    /// Caps each replica to `share` of a core from now on.
    ///
    /// # Errors
    /// If the machine does not allow it.
    pub fn cap(&mut self, share: f64) -> Result<(), Error> {
        self.caps = capped(&self.replicas, share)?;
        Ok(())
    }

    /// The CPU time used so far by each replica's main thread, in ns.
    pub fn replica_cpu_ns(&self) -> Vec<u64> {
        let used = |pid: &u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        self.replicas.iter().map(|pid| used(pid).unwrap_or(0)).collect()
    }
}

/// Starts `concord up` with its run directory below `at`, and waits until it serves.
fn up(at: &Path, listen: SocketAddr, shape: Shape) -> Result<Process, Error> {
    let exe = std::env::current_exe().cannot("find this program")?;
    let mut command = Command::new(exe);
    command.arg("up").args(["--listen", &listen.to_string()]);
    command.args(["--replicas", &shape.replicas.to_string()]);
    command.args(["--durability", &name_of(shape.durability)]);
    command.args(["--protocol", &name_of(shape.protocol)]);
    command.args(["--accel", &name_of(shape.accel)]);
    command.args(["--engine", &name_of(shape.engine)]);
    command.arg("--run-dir").arg(at.join("run"));
    if let Some(share) = shape.bucket {
        command.args(["--cpu-share", &share.to_string()]);
    }
    let groups = shape.key_groups.map(|groups| format!("[key_groups]\ngroups = {groups}\n"));
    let text = if shape.capped { CAPPED } else { "" };
    let stepdown = if shape.capped && groups.is_some() { CAPPED_STEPDOWN } else { "" };
    let text = text.to_string() + &groups.unwrap_or_default() + stepdown;
    if !text.is_empty() {
        let config = at.join("bench.toml");
        std::fs::write(&config, text).cannot(format!("write {}", config.display()))?;
        command.arg("--config").arg(config);
    }
    let mut up = Process::start(&mut command, at.join("up.log"))?;
    up.wait_until(|printed| printed.contains("Ready after"))
        .map_err(|e| Error::new(format!("the rack did not start: {e}")))?;
    Ok(up)
}

/// Caps each process to `share` of a core until the caps are dropped, which must happen after the
/// process has ended.
///
/// # Errors
/// If the machine does not allow it.
pub fn capped(pids: &[u32], share: f64) -> Result<Vec<Cap>, Error> {
    let cap_one = |pid: &u32| {
        let cap = Cap::new(&format!("concord-bench-{}-{pid}", std::process::id()), share)?;
        cap.put(*pid)?;
        Ok(cap)
    };
    pids.iter().map(cap_one).collect()
}

/// The name of a value on the command line.
pub fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |name| name.get_name().to_string())
}

fn replica_pids(path: &Path) -> Result<Vec<u32>, Error> {
    let text = std::fs::read_to_string(path).cannot(format!("read {}", path.display()))?;
    let replicas = text.lines().filter(|line| line.starts_with("replica-"));
    let pids = replicas.filter_map(|line| line.rsplit(' ').next()?.parse().ok());
    Ok(pids.collect())
}
