//! `concord up`: a whole rack on this machine, each role a process of its own.

mod children;
mod place;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use concord_runtime::{Context, Error};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::UpArgs;
use crate::net::{Redis, Reply, http_get};
use crate::rack::{Accel, Durability, Engine, Protocol, Rack};
use children::Children;

/// Longest time until a rack serves.
const READY_S_MAX: u64 = 30;
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs a rack until SIGINT or SIGTERM.
///
/// # Errors
/// One line for a person; nothing is left running then.
pub fn run(args: &UpArgs) -> Result<(), Error> {
    let (rack, ports) = place::rack(args)?;
    std::fs::create_dir_all(&args.run_dir)
        .cannot(format!("create the run directory {}", args.run_dir.display()))?;
    let _lock = lock(&args.run_dir)?;
    let file = args.run_dir.join("rack.toml");
    write_private(&file, &rack.to_toml()?)?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGCHLD]).cannot("handle signals")?;
    drop(ports);
    let started = Instant::now();
    let mut children = Children::start(&rack, &file, &args.run_dir, args.log.flags())?;
    children.write_pids()?;
    print_rack(&rack, &children, &file);
    if !wait_until_ready(&rack, &mut children, &mut signals)? {
        println!("Stopped.");
        return Ok(());
    }
    print_ready(&rack, &file, started.elapsed());
    supervise(&mut children, &mut signals, args.restart_gateways, rack.durability)
}

/// One rack in a run directory: the file, the logs and the controller's state are there.
fn lock(run_dir: &Path) -> Result<std::fs::File, Error> {
    let path = run_dir.join("lock");
    let file = std::fs::File::create(&path).cannot(format!("create {}", path.display()))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(
        |_| {
            let dir = run_dir.display();
            Error::new(format!("another rack runs in {dir}; choose another with --run-dir"))
        },
    )?;
    Ok(file)
}

/// Writes a file that only its owner reads: there may be a password in it.
fn write_private(path: &PathBuf, text: &str) -> Result<(), Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let _ = std::fs::remove_file(path);
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.cannot(format!("create {}", path.display()))?;
    file.write_all(text.as_bytes()).cannot(format!("write {}", path.display()))
}

fn print_rack(rack: &Rack, children: &Children, file: &Path) {
    let protocol = match rack.protocol {
        Protocol::Chain => "chain replication",
        Protocol::PrimaryBackup => "primary-backup replication",
        Protocol::Vr => "Viewstamped Replication",
        Protocol::Craq => "CRAQ",
        Protocol::NoPaxos => "NOPaxos",
    };
    let accel = match rack.accel {
        Accel::Harmonia => "reads at every replica (Harmonia)",
        Accel::None => "without the switch's help",
    };
    let engine = match rack.engine {
        Engine::Memory => "memory engine",
        Engine::Redis => "Redis engine",
    };
    println!("Concord: {} replicas, {protocol}, {accel}, {engine}\n", rack.replica.len());
    println!("  {:<13} {:>8}  {:<22} {:<22} log", "role", "pid", "UDP", "HTTP");
    for child in children.iter() {
        let http = child.http.map_or_else(|| "-".to_string(), |a| a.to_string());
        let log = child.log.display();
        println!("  {:<13} {:>8}  {:<22} {http:<22} {log}", child.name, child.pid(), child.udp);
    }
    println!("\n  rack file: {}", file.display());
    match rack.durability {
        Durability::None => {
            println!("\n  *** NOTHING IS ON DISK: the data is gone when the rack stops. ***");
            println!("  (--durability fsync keeps it.)\n");
        }
        Durability::Fsync => {
            println!("  data: synced to every replica's disk before it is acknowledged\n");
        }
    }
    if rack.faults.disk_hold_ms > 0 {
        println!("  *** A FAULT ON PURPOSE: disks have what was synced, and nothing else. ***\n");
    }
    if rack.faults.any() {
        let f = &rack.faults;
        println!(
            "  *** FAULTS ON PURPOSE, of a million packets: {} lost, {} sent twice, {} reordered. ***\n",
            f.drop_per_million, f.duplicate_per_million, f.reorder_per_million
        );
    }
    println!("Waiting until the rack serves ...");
}

fn print_ready(rack: &Rack, file: &Path, took: Duration) {
    println!("Ready after {:.1} s. Redis clients connect to:", took.as_secs_f64());
    for gateway in &rack.gateway {
        let (host, port) = (gateway.listen.ip(), gateway.listen.port());
        println!("  redis-cli -h {host} -p {port}");
    }
    println!("How it is: concord status --config {}", file.display());
    println!("Ctrl-C stops all of it.");
}

/// True when the rack serves; false if a signal came before.
fn wait_until_ready(
    rack: &Rack,
    children: &mut Children,
    signals: &mut Signals,
) -> Result<bool, Error> {
    let started = Instant::now();
    loop {
        if signals.pending().any(|s| s != SIGCHLD) {
            return Ok(false);
        }
        if let Some(dead) = children.reap().first() {
            return Err(Error::new(format!("the rack did not start: {dead}")));
        }
        let Some(missing) = what_is_missing(rack) else { return Ok(true) };
        if started.elapsed().as_secs() >= READY_S_MAX {
            return Err(Error::new(format!("no service after {READY_S_MAX} s: {missing}")));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// `None` when writes are executed through every gateway, every gateway knows all commands, and the
/// switch helps if it is to.
fn what_is_missing(rack: &Rack) -> Option<String> {
    for gateway in &rack.gateway {
        if let Err(e) = write_through(gateway.listen, &rack.requirepass) {
            return Some(format!("gateway {}: {e}", gateway.node));
        }
    }
    let is = |http: Option<SocketAddr>, what: &str| {
        let Some(http) = http else { return true };
        let status = http_get(http, "/status", ASK_TIMEOUT).ok();
        let status =
            status.and_then(|body| serde_json::from_slice::<serde_json::Value>(&body).ok());
        status.is_some_and(|s| s[what] == true)
    };
    // With the Redis engine a gateway has to ask for the server's commands first.
    if let Some(gateway) = rack.gateway.iter().find(|g| !is(g.http, "serving")) {
        return Some(format!("gateway {} does not know the engine's commands yet", gateway.node));
    }
    let ready = is(rack.switch.as_ref().and_then(|s| s.http), "ready");
    (!ready).then(|| "the switch has not seen a write completed".to_string())
}

/// A write that changes nothing.
fn write_through(listen: SocketAddr, password: &str) -> std::io::Result<()> {
    let mut redis = Redis::connect(listen, password, ASK_TIMEOUT)?;
    match redis.call(&[b"DEL", b"concord:no such key"])? {
        Reply::Text(_) => Ok(()),
        Reply::Error(why) => Err(std::io::Error::other(why)),
        Reply::Array(_) => Err(std::io::Error::other("an array for DEL")),
    }
}

/// Reports who dies until a signal comes; then, or when nobody is left, everything stops.
fn supervise(
    children: &mut Children,
    signals: &mut Signals,
    restart_gateways: bool,
    durability: Durability,
) -> Result<(), Error> {
    loop {
        for dead in children.reap() {
            eprintln!("concord: {dead}");
        }
        if restart_gateways {
            for name in children.restart_gateways()? {
                eprintln!("concord: {name} was started again");
            }
        }
        children.write_pids()?;
        if children.running() == 0 {
            return Err(Error::new("every role has ended"));
        }
        if signals.wait().any(|s| s != SIGCHLD) {
            println!("\nStopping ...");
            children.stop();
            match durability {
                Durability::None => println!("Stopped. The data is gone with it."),
                Durability::Fsync => println!("Stopped. The data is on disk."),
            }
            return Ok(());
        }
    }
}
