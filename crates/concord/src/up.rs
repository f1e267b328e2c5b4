//! `concord up`: a whole rack on this machine, with a process for each role.

pub mod children;
pub mod place;

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use concord_runtime::{Context, Error, state_file};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::UpArgs;
use crate::net::http_get;
use crate::rack::Rack;
use crate::systems::{self, Earlier};
use children::Children;

/// The maximum time until a rack serves, in seconds.
const READY_S_MAX: u64 = 30;
/// The interval at which the loading of data is then reported, in seconds.
const SAY_S: u64 = 10;
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// The time after a failure until the next attempt.
const AGAIN_INTERVAL: Duration = Duration::from_millis(500);

/// Runs a rack until SIGINT, SIGTERM or SIGHUP.
///
/// # Errors
/// One line for a person; no process is left running then.
pub fn run(args: &UpArgs) -> Result<(), Error> {
    let (rack, ports) = place::rack(args)?;
    // The files in it, such as logs, contain commands and keys: only its owner may read them. A
    // directory that existed before keeps its mode.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.run_dir)
        .cannot(format!("create the run directory {}", args.run_dir.display()))?;
    let _lock = lock(&args.run_dir)?;
    let file = args.run_dir.join("rack.toml");
    let before = Rack::read(&file).ok().filter(|_| file.exists());
    let earlier = Earlier { run_dir: &args.run_dir, rack: before.as_ref() };
    let is_fresh = begins_without_data(&earlier, &rack)?;
    for system in systems::all() {
        let notes = system.prepare(before.as_ref(), &rack)?;
        notes.iter().for_each(|line| println!("{line}"));
    }
    write_private(&file, &rack.to_toml()?)?;
    let hangup = (!concord_runtime::ignores_hangup()).then_some(SIGHUP);
    let ends = [SIGINT, SIGTERM, SIGCHLD].into_iter().chain(hangup);
    let mut signals = Signals::new(ends).cannot("handle signals")?;
    drop(ports);
    let started = Instant::now();
    let mut children = Children::start(&rack, &file, args, is_fresh)?;
    children.write_pids()?;
    print_rack(&rack, &children, &file);
    if !wait_until_ready(&rack, &mut children, &mut signals)? {
        println!("Stopped.");
        return Ok(());
    }
    print_ready(&rack, &file, started.elapsed());
    let restarts = match (args.no_restart, args.restart_gateways) {
        (false, _) => Restarts::All,
        (true, true) => Restarts::Gateways,
        (true, false) => Restarts::None,
    };
    supervise(&mut children, &mut signals, restarts, &rack)
}

/// Whether the rack begins anew because no data of the previous one is left; its controller then
/// begins anew, too. A group whose data is gone begins anew beside others that continue.
fn begins_without_data(earlier: &Earlier<'_>, rack: &Rack) -> Result<bool, Error> {
    let mut has_data = false;
    for system in systems::all() {
        has_data |= system.has_data(earlier, rack)?;
    }
    let kept_nothing = |rack: &Rack| Ok::<bool, Error>(!children::keeps_data(rack)?);
    let before = earlier.rack.map(kept_nothing).transpose()?;
    if kept_nothing(rack)? || (!has_data && before == Some(true)) {
        return Ok(true);
    }
    for system in systems::all() {
        state_file::forget(&rack.controller()?.state, &system.gone(earlier, rack)?)?;
    }
    Ok(false)
}

/// Locks a run directory, which has the rack file, the logs and the controller's state of one rack.
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

/// Writes a file that only its owner can read, since it may contain a password.
fn write_private(path: &PathBuf, text: &str) -> Result<(), Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let _ = std::fs::remove_file(path);
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.cannot(format!("create {}", path.display()))?;
    file.write_all(text.as_bytes()).cannot(format!("write {}", path.display()))
}

fn print_rack(rack: &Rack, children: &Children, file: &Path) {
    for group in rack.groups().iter().flatten() {
        let headline = systems::of(group.kind).headline(rack, group);
        match group.is_store() {
            true => println!("Concord: {headline}"),
            false => println!("Concord, {}: {headline}", group.name),
        }
    }
    println!();
    println!("  {:<13} {:>8}  {:<22} {:<22} log", "role", "pid", "UDP", "HTTP");
    for child in children.iter() {
        let http = child.http.map_or_else(|| "-".to_string(), |a| a.to_string());
        let log = child.log.display();
        println!("  {:<13} {:>8}  {:<22} {http:<22} {log}", child.name, child.pid(), child.udp);
    }
    println!("\n  rack file: {}", file.display());
    println!();
    for note in systems::all().flat_map(|system| system.notes(rack)) {
        println!("  {note}");
    }
    println!();
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
    let how: Vec<String> = systems::all().flat_map(|system| system.how_to_use(rack)).collect();
    println!("Ready after {:.1} s. {}", took.as_secs_f64(), how.join("\n"));
    println!("How it is: concord status --config {}", file.display());
    println!("Ctrl-C stops all of it.");
}

/// Waits until the rack serves; returns `false` if a signal came before.
fn wait_until_ready(
    rack: &Rack,
    children: &mut Children,
    signals: &mut Signals,
) -> Result<bool, Error> {
    let started = Instant::now();
    let mut said = 0;
    loop {
        if signals.pending().any(|s| s != SIGCHLD) {
            return Ok(false);
        }
        if let Some(dead) = children.reap().first() {
            return Err(Error::new(format!("the rack did not start: {dead}")));
        }
        let Some(missing) = what_is_missing(rack) else { return Ok(true) };
        let waited_s = started.elapsed().as_secs();
        if waited_s >= READY_S_MAX {
            if let Some(loading) = loading(rack) {
                // However much data there is, it is loaded once; the user may stop waiting.
                if waited_s >= READY_S_MAX + said * SAY_S {
                    said = (waited_s - READY_S_MAX) / SAY_S + 1;
                    println!("Waiting since {waited_s} s: {loading} ...");
                }
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
            let why = controllers_problem(rack).unwrap_or(missing);
            return Err(Error::new(format!("no service after {READY_S_MAX} s: {why}")));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// The replicas whose processes run but that do not serve yet: they load their data, or wait for a
/// disk.
fn loading(rack: &Rack) -> Option<String> {
    let answers = |http| http_get(http, "/status", ASK_TIMEOUT).is_ok();
    let groups = rack.groups().ok()?;
    let replicas = groups.iter().flat_map(|group| group.replicas.iter());
    let silent = replicas.filter(|replica| replica.http.is_some_and(|http| !answers(http)));
    let nodes: Vec<String> = silent.map(|replica| replica.node.to_string()).collect();
    match nodes.len() {
        0 => None,
        1 => Some(format!("replica {} loads its data, or waits for its disk", nodes[0])),
        _ => {
            Some(format!("replicas {} load their data, or wait for their disks", nodes.join(", ")))
        }
    }
}

/// The reason why the rack does not serve yet; `None` if every system serves, and the switch helps
/// if it is configured to.
fn what_is_missing(rack: &Rack) -> Option<String> {
    if let Some(missing) = systems::all().find_map(|system| system.missing(rack)) {
        return Some(missing);
    }
    let switch = rack.switch.as_ref().and_then(|s| s.http);
    (!is_said(switch, "ready")).then(|| "the switch has not seen a write completed".to_string())
}

/// The controller's problem, if it reports one.
fn controllers_problem(rack: &Rack) -> Option<String> {
    let http = rack.controller.as_ref()?.http?;
    let status = http_get(http, "/status", ASK_TIMEOUT).ok()?;
    let status: serde_json::Value = serde_json::from_slice(&status).ok()?;
    Some(format!("PROBLEM: {}", status["problem"].as_str()?))
}

/// Whether a role's `/status` reports that `what` is true; assumed of a role without an HTTP port.
#[must_use]
pub fn is_said(http: Option<SocketAddr>, what: &str) -> bool {
    let Some(http) = http else { return true };
    let status = http_get(http, "/status", ASK_TIMEOUT).ok();
    let status = status.and_then(|body| serde_json::from_slice::<serde_json::Value>(&body).ok());
    status.is_some_and(|s| s[what] == true)
}

/// The roles that are restarted when they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restarts {
    All,
    Gateways,
    None,
}

/// Reports roles that die, and restarts those that can be, until a signal comes. Then, or when no
/// process is left, everything stops.
fn supervise(
    children: &mut Children,
    signals: &mut Signals,
    restarts: Restarts,
    rack: &Rack,
) -> Result<(), Error> {
    let mut said = None;
    loop {
        for dead in children.reap() {
            eprintln!("concord: {dead}");
        }
        if restarts != Restarts::None {
            let planned = children.plan_restarts(restarts == Restarts::Gateways);
            for line in planned.into_iter().chain(children.restart()) {
                eprintln!("concord: {line}");
            }
        }
        // A full disk is no reason to end running processes: writing is tried again.
        let failed = children.write_pids().err().map(|error| error.to_string());
        if failed.is_some() && failed != said {
            eprintln!("concord: {}; it is tried again", failed.as_deref().unwrap_or_default());
        }
        said = failed;
        if !children.has_core() {
            return Err(Error::new("controller, switch and replicas have ended"));
        }
        let is_told = if children.has_restarts() || said.is_some() {
            let is_soon = children.has_restarts();
            std::thread::sleep(if is_soon { LOOK_INTERVAL } else { AGAIN_INTERVAL });
            signals.pending().any(|s| s != SIGCHLD)
        } else {
            signals.wait().any(|s| s != SIGCHLD)
        };
        if is_told {
            println!("\nStopping ...");
            children.stop();
            let farewells = systems::all().filter_map(|system| system.farewell(rack));
            let farewells: Vec<&str> = ["Stopped."].into_iter().chain(farewells).collect();
            println!("{}", farewells.join(" "));
            return Ok(());
        }
    }
}
