//! The processes of a rack. Each has the read end of a pipe as its standard input. When `up` ends,
//! for whatever reason, the pipe closes, and the processes end.

use std::io::{Read, Seek, SeekFrom};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use concord_runtime::{Context, Error};

use crate::cli::UpArgs;
use crate::rack::{Group, Rack};
use crate::systems::{self, falcon};

/// The time that a role may take to end before it is killed.
const STOP_MAX: Duration = Duration::from_secs(3);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The roles that are restarted when they end: their state is elsewhere, or was only in their
/// memory. A chain's switch is restarted, too. The others (controller, switch of the rack, replica)
/// start with options that say where their state comes from; which of them are right after an end
/// only a person, or the controller, knows.
const RESTARTED: [&str; 4] = ["worker", "owner", "gateway", "node"];
/// The pause before a role is restarted. It doubles each time that the role ran for less than
/// [`STEADY`], so that one that cannot start does not spin. Clients of an owner that is gone retry
/// for a minute, in which it is started a dozen times.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(5);
const STEADY: Duration = Duration::from_secs(2);
/// The number of bytes at the end of a log in which the last line is looked for.
const TAIL_BYTES: u64 = 4_096;

/// The address at which a role listens for its peers, and the address of its status.
pub type Listens = (SocketAddrV4, Option<SocketAddr>);

/// The process of a role.
#[derive(Debug)]
pub struct Role {
    /// The name of the role, such as `replica 2`.
    pub name: String,
    /// The address at which it listens for its peers.
    pub udp: SocketAddrV4,
    /// The address of its status.
    pub http: Option<SocketAddr>,
    /// The file with its output.
    pub log: PathBuf,
    args: Vec<String>,
    child: Child,
    ended: bool,
    /// Whether it ended because a user had it drained: it is not restarted then.
    is_drained: bool,
    began: Instant,
    /// The pause before its restart; and the time of the restart, if one is planned.
    pause: Duration,
    start_at: Option<Instant>,
}

/// The pause before a role is restarted that ran for `ran`; `last` is the previous pause.
fn next_pause(ran: Duration, last: Duration) -> Duration {
    if ran >= STEADY || last.is_zero() {
        return RESTART_PAUSE;
    }
    (last * 2).min(RESTART_PAUSE_MAX)
}

impl Role {
    /// The id of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn is_gateway(&self) -> bool {
        self.args.first().is_some_and(|role| role == "gateway")
    }

    /// Whether it is a switch of a chain, which starts without content and copies that of the
    /// others.
    fn is_of_chain(&self) -> bool {
        self.args.first().is_some_and(|role| role == "switch")
            && self.args.iter().any(|arg| arg == "--group")
    }

    fn is_restarted(&self) -> bool {
        let is_listed = self.args.first().is_some_and(|role| RESTARTED.contains(&&role[..]));
        is_listed || self.is_of_chain()
    }
}

/// All processes, in the order of their start.
#[derive(Debug)]
pub struct Children {
    all: Vec<Role>,
    run_dir: PathBuf,
    /// The flags that every role gets.
    flags: Vec<String>,
    /// The content of the file `pids`.
    pids: Option<String>,
}

impl Children {
    /// Starts every role of `rack`, whose file is `file`, as `args` say. With `is_fresh`, no
    /// earlier state is used.
    ///
    /// # Errors
    /// If a role cannot be started; those started before it end.
    pub fn start(
        rack: &Rack,
        file: &Path,
        args: &UpArgs,
        is_fresh: bool,
    ) -> Result<Children, Error> {
        let (run_dir, flags) = (args.run_dir.clone(), args.log.flags());
        let mut children = Children { all: Vec::new(), run_dir, flags, pids: None };
        let controller = rack.controller()?;
        // The replicas' data in memory is gone with the previous rack; data on disk is used.
        let how: &[&str] = match (is_fresh, args.recover) {
            (true, _) => &["--fresh"],
            (false, true) => &["--recover"],
            (false, false) => &[],
        };
        children.add("controller", None, how, file, (controller.addr, controller.http))?;
        if rack.needs_switch() {
            let switch = rack.switch()?;
            children.add("switch", None, &[], file, (switch.addr, switch.http))?;
        }
        for standby in &rack.standby {
            let (node, more) = (Some(standby.node), ["--standby"]);
            children.add("standby", node, &more, file, (standby.addr, standby.http))?;
        }
        systems::all().try_for_each(|system| system.start(rack, file, &mut children))?;
        Ok(children)
    }

    /// Starts a member of a group.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn add_member(
        &mut self,
        group: &Group<'_>,
        role: &str,
        node: u16,
        file: &Path,
        listens: Listens,
    ) -> Result<(), Error> {
        let more = ["--group", group.name];
        let names = (group.member_name(role, node), group.member_stem(role, node));
        self.start_role(role, names, Some(node), &more, file, listens)
    }

    /// Starts a role that belongs to no group.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn add(
        &mut self,
        role: &str,
        node: Option<u16>,
        more: &[&str],
        file: &Path,
        listens: Listens,
    ) -> Result<(), Error> {
        let name = node.map_or(role.to_string(), |node| format!("{role} {node}"));
        let stem = name.replace(' ', "-");
        let command = if role == "standby" { "switch" } else { role };
        self.start_role(command, (name, stem), node, more, file, listens)
    }

    fn start_role(
        &mut self,
        command: &str,
        (name, stem): (String, String),
        node: Option<u16>,
        more: &[&str],
        file: &Path,
        (udp, http): Listens,
    ) -> Result<(), Error> {
        let file = file.display().to_string();
        let mut args = vec![command.to_string(), "--supervised".to_string()];
        args.extend(["--config".to_string(), file]);
        args.extend(more.iter().map(|&arg| arg.to_string()));
        args.extend(self.flags.iter().cloned());
        if let Some(node) = node {
            args.extend(["--node".to_string(), node.to_string()]);
        }
        let log = self.run_dir.join(format!("{stem}.log"));
        let _ = std::fs::remove_file(&log);
        let child = spawn(&args, &log)?;
        let (began, pause, start_at) = (Instant::now(), Duration::ZERO, None);
        self.all.push(Role {
            name,
            udp,
            http,
            log,
            args,
            child,
            ended: false,
            is_drained: false,
            began,
            pause,
            start_at,
        });
        Ok(())
    }

    /// All processes.
    pub fn iter(&self) -> impl Iterator<Item = &Role> {
        self.all.iter()
    }

    /// Whether a controller, a switch or a replica is alive: without any of them the other roles,
    /// which are restarted whenever they end, serve nobody.
    #[must_use]
    pub fn has_core(&self) -> bool {
        self.all.iter().any(|role| !role.ended && !role.is_restarted())
    }

    /// The processes that ended since the last call: one line each.
    pub fn reap(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for role in self.all.iter_mut().filter(|role| !role.ended) {
            if let Ok(Some(status)) = role.child.try_wait() {
                role.ended = true;
                role.is_drained = status.code() == Some(i32::from(falcon::DRAINED));
                if role.is_drained {
                    lines.push(format!(
                        "{} (pid {}) was drained, and has ended",
                        role.name,
                        role.pid()
                    ));
                    continue;
                }
                let last =
                    last_line(&role.log).map_or_else(String::new, |line| format!(": {line}"));
                let (name, pid, how) = (&role.name, role.pid(), how_it_ended(status));
                lines.push(format!("{name} (pid {pid}) {how}{last}"));
            }
        }
        lines
    }

    /// Plans the restart of the roles that ended, as far as they are restarted: all of those, or
    /// only gateways. Returns a line for each.
    pub fn plan_restarts(&mut self, gateways_only: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for role in self.all.iter_mut().filter(|role| role.ended && role.start_at.is_none()) {
            if role.is_drained || !role.is_restarted() || (gateways_only && !role.is_gateway()) {
                continue;
            }
            role.pause = next_pause(role.began.elapsed(), role.pause);
            role.start_at = Some(Instant::now() + role.pause);
            let (name, seconds) = (&role.name, role.pause.as_secs_f64());
            lines.push(format!("{name} is started again in {seconds:.1} s"));
        }
        lines
    }

    /// Whether a restart is planned.
    #[must_use]
    pub fn has_restarts(&self) -> bool {
        self.all.iter().any(|role| role.start_at.is_some())
    }

    /// Restarts the roles whose pause is over; returns a line for each.
    pub fn restart(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for role in self.all.iter_mut().filter(|role| role.ended) {
            if role.start_at.take_if(|at| *at <= Instant::now()).is_none() {
                continue;
            }
            role.began = Instant::now();
            match spawn(&role.args, &role.log) {
                Ok(child) => {
                    role.child = child;
                    role.ended = false;
                    lines.push(format!("{} (pid {}) was started again", role.name, role.pid()));
                }
                // As if it had ended at once: it is tried again later.
                Err(error) => lines.push(format!("{} was not started again: {error}", role.name)),
            }
        }
        lines
    }

    /// Writes `<name> <pid>` of each living process to the file `pids` in the run directory.
    ///
    /// # Errors
    /// The system's.
    pub fn write_pids(&mut self) -> Result<(), Error> {
        let path = self.run_dir.join("pids");
        let alive = self.all.iter().filter(|role| !role.ended);
        let lines: String =
            alive.map(|r| format!("{} {}\n", r.name.replace(' ', "-"), r.pid())).collect();
        if self.pids.as_ref() == Some(&lines) {
            return Ok(());
        }
        // Renamed into place, so that scripts never see half of it.
        let temporary = self.run_dir.join("pids.new");
        std::fs::write(&temporary, &lines)
            .and_then(|()| std::fs::rename(&temporary, &path))
            .cannot(format!("write {}", path.display()))?;
        self.pids = Some(lines);
        Ok(())
    }

    /// Ends all processes and waits for them: the gateways first, which answer pending requests.
    pub fn stop(&mut self) {
        self.end(Role::is_gateway);
        self.end(|_| true);
        let _ = std::fs::remove_file(self.run_dir.join("pids"));
    }

    fn end(&mut self, which: impl Fn(&Role) -> bool) {
        self.all.iter_mut().for_each(|role| role.start_at = None);
        for role in self.all.iter_mut().filter(|role| which(role)) {
            drop(role.child.stdin.take());
        }
        let started = Instant::now();
        loop {
            let _ = self.reap();
            if !self.all.iter().any(|role| which(role) && !role.ended) {
                return;
            }
            if started.elapsed() > STOP_MAX {
                for role in self.all.iter_mut().filter(|role| which(role) && !role.ended) {
                    // It may have ended just now; then there is nothing to kill.
                    let _ = role.child.kill();
                    let _ = role.child.wait();
                    role.ended = true;
                }
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether the data of any group outlives the rack.
///
/// # Errors
/// If the groups do not fit together.
pub fn keeps_data(rack: &Rack) -> Result<bool, Error> {
    let keeps = |group: &Group<'_>| systems::of(group.kind).keeps_data(group);
    Ok(rack.groups()?.iter().any(keeps))
}

fn spawn(args: &[String], log: &Path) -> Result<Child, Error> {
    let name = args.first().map_or("", String::as_str);
    let exe = std::env::current_exe().cannot("find this program")?;
    let open = || std::fs::OpenOptions::new().create(true).append(true).open(log);
    let out = open().cannot(format!("create {}", log.display()))?;
    let err = open().cannot(format!("create {}", log.display()))?;
    // Replicas access all of their memory: huge pages save the tenth of their time that page tables
    // take (docs/internals/harmonia.md). A setting of the user has priority.
    let tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or(concord_runtime::TUNABLES.into());
    Command::new(exe)
        .args(args)
        .env("GLIBC_TUNABLES", tunables)
        .stdin(Stdio::piped())
        .stdout(out)
        .stderr(err)
        .spawn()
        .cannot(format!("start the {name}"))
}

fn how_it_ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_string(),
    }
}

/// The error or panic with which a role ended, if it printed one: the last line that is not a log
/// line.
fn last_line(log: &Path) -> Option<String> {
    let mut file = std::fs::File::open(log).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL_BYTES))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    // Log lines begin with their time, or are JSON.
    let is_logged = line.starts_with('{') || line.starts_with(|c: char| c.is_ascii_digit());
    (!is_logged).then(|| line.strip_prefix("concord: ").unwrap_or(line).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A role that ends at once again and again is restarted ever later; one that ran for a while
    /// is restarted soon.
    #[test]
    fn pauses_between_starts_grow_and_begin_anew() {
        let (mut pause, mut all) = (Duration::ZERO, vec![]);
        for _ in 0..10 {
            pause = next_pause(Duration::from_millis(50), pause);
            all.push(pause.as_millis());
        }
        assert_eq!(all, [200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000, 5_000, 5_000]);
        assert_eq!(next_pause(STEADY, pause), RESTART_PAUSE);
    }
}
