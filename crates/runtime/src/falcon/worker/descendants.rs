//! Descendants of commands: none outlives its command, even if it left its process group and its
//! session.
//!
//! The worker is a subreaper: a process whose parent ended becomes the worker's own child. Each
//! command finds a mark in its environment, which its descendants inherit. So a child of the worker
//! that is not a command belongs to the run that its mark names, and is killed if that run is over.
//! A child without a mark is killed once no run is left that may have started it, unless another
//! process may have: a program that had children before it became a worker, as in `agent & exec
//! concord worker`, and the first process of a container, inherit children that no command started.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::Duration;

use concord_core::{Instant, MS, SEC};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use super::reaper::{Reaper, kill};
use crate::error::{Context, Error};
use crate::roles::unique;

/// The name of the environment variable with the mark.
const MARK: &str = "CONCORD_RUN";
/// The interval in ns of checks while killed processes have not ended.
const AGAIN_NS: u64 = 5 * MS;
/// The interval in ns of checks while commands run, in order to reap processes that ended by
/// themselves.
const LOOK_NS: u64 = SEC;
/// The number of checks by the reaper, and the pause between them.
const REAPER_LOOKS_MAX: usize = 100;
const REAPER_PAUSE: Duration = Duration::from_millis(10);

/// The descendants of commands and handlers, which share it.
pub(super) type SharedDescendants = Rc<RefCell<Descendants>>;

#[derive(Debug)]
pub(super) struct Descendants {
    /// The process that does the same when the worker is gone. `None` in tests.
    reaper: Option<Reaper>,
    /// The prefix of this worker's marks.
    mark: String,
    /// The number of the next command.
    next: u64,
    /// The running commands by process id, with their numbers.
    commands: BTreeMap<u32, u64>,
    going: BTreeSet<u64>,
    /// Processes without a mark, each with the number of the next command when it was first seen.
    strays: BTreeMap<u32, u64>,
    /// Whether only commands can have started these.
    owns_strays: bool,
    sweep_at: Instant,
    /// Processes that were killed but still exist, and the time in ns until the next check.
    killed: BTreeSet<u32>,
    pause_ns: u64,
}

/// Whether a process that becomes a worker may take a child without a mark for a command's.
fn owns_strays(own: u32, children: &[u32]) -> bool {
    own != 1 && children.is_empty()
}

/// The owner of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Of the command of that number.
    Own(u64),
    /// It belongs to another worker.
    Foreign,
    /// It has no mark.
    Unsaid,
}

impl Descendants {
    /// Makes this process a subreaper, and starts a reaper if there is a program for one.
    pub(super) fn shared(program: Option<Vec<String>>) -> Result<SharedDescendants, Error> {
        let mark = format!("{:016x}", unique()?);
        let owns_strays = owns_strays(std::process::id(), &children());
        let start = |program| -> Result<Reaper, Error> {
            rustix::process::set_child_subreaper(Some(getpid())).cannot("become a subreaper")?;
            Reaper::start(program, &mark)
        };
        Ok(Rc::new(RefCell::new(Descendants {
            reaper: program.map(start).transpose()?,
            mark,
            next: 1,
            commands: BTreeMap::new(),
            going: BTreeSet::new(),
            strays: BTreeMap::new(),
            owns_strays,
            sweep_at: Instant::NEVER,
            killed: BTreeSet::new(),
            pause_ns: AGAIN_NS,
        })))
    }

    /// Sets `owns_strays`, for tests, which are threads of one process.
    #[cfg(test)]
    pub(super) fn own_strays(&mut self, owns: bool) {
        self.owns_strays = owns;
    }

    /// Marks a command that is about to be started, and returns its number.
    pub(super) fn mark(&mut self, command: &mut Command) -> u64 {
        let number = self.next;
        self.next += 1;
        command.env(MARK, format!("{}.{number}", self.mark));
        number
    }

    /// Notes that a command was started.
    fn began(&mut self, pid: u32, number: u64) -> Result<(), Error> {
        self.commands.insert(pid, number);
        self.going.insert(number);
        self.sweep_at = self.sweep_at.min(crate::clock::now().instant.after(LOOK_NS));
        self.reaper.as_mut().map_or(Ok(()), |reaper| reaper.began(pid))
    }

    /// Notes that a command ended and is about to be waited for.
    pub(super) fn ended(&mut self, pid: u32) -> Result<(), Error> {
        if let Some(number) = self.commands.remove(&pid) {
            self.going.remove(&number);
            self.sweep_at = Instant(0);
        }
        self.reaper.as_mut().map_or(Ok(()), |reaper| reaper.ended(pid))
    }

    /// The time of the next check.
    pub(super) fn wakes_at(&self) -> Instant {
        self.sweep_at
    }

    /// Kills the remaining processes of commands that are over.
    pub(super) fn sweep(&mut self, now: Instant) {
        if now < self.sweep_at {
            return;
        }
        let reaper = self.reaper.as_ref().map(Reaper::pid);
        let is_other = |pid: &u32| !self.commands.contains_key(pid) && reaper != Some(*pid);
        let others: Vec<u32> = children().into_iter().filter(is_other).collect();
        self.strays.retain(|pid, _| others.contains(pid));
        let mut left = BTreeSet::new();
        for pid in others {
            let is_over = match whose(pid, &self.mark) {
                Whose::Own(number) => !self.going.contains(&number),
                Whose::Foreign => continue,
                Whose::Unsaid => {
                    let next = *self.strays.entry(pid).or_insert(self.next);
                    self.owns_strays && self.going.first().is_none_or(|oldest| *oldest >= next)
                }
            };
            if is_over {
                end(pid);
            }
            let own = i32::try_from(pid).ok().and_then(Pid::from_raw);
            if let Some(own) = own {
                // A process that is gone leaves no zombie to wait for.
                let _ = waitpid(Some(own), WaitOptions::NOHANG);
            }
            // If it is gone, the processes that it started are the worker's children from now on.
            if is_over {
                left.insert(pid);
            }
        }
        self.look_again(now, left);
    }

    /// Schedules the next check after processes of finished commands were killed. Those that cannot
    /// be killed, since they are another user's or wait for a disk, are tried less and less often.
    fn look_again(&mut self, now: Instant, killed: BTreeSet<u32>) {
        let is_same = killed == self.killed;
        self.pause_ns = if is_same { (2 * self.pause_ns).min(LOOK_NS) } else { AGAIN_NS };
        self.sweep_at = match (killed.is_empty(), self.commands.is_empty()) {
            (false, _) => now.after(self.pause_ns),
            (true, false) => now.after(LOOK_NS),
            (true, true) => Instant::NEVER,
        };
        self.killed = killed;
    }
}

/// Starts to watch a command that was just started. If it cannot be watched, the caller kills it,
/// and it counts as not begun.
pub(super) fn watched<T>(
    descendants: &SharedDescendants,
    child: &mut Child,
    number: u64,
    watch: impl FnOnce(&mut Child) -> Result<T, Error>,
) -> Result<T, Error> {
    let began = descendants.borrow_mut().began(child.id(), number);
    let watched = began.and_then(|()| watch(child));
    if watched.is_err() {
        // It was not waited for, so its number still refers to it.
        let _ = descendants.borrow_mut().ended(child.id());
    }
    watched
}

/// The processes whose parent this one is.
fn children() -> Vec<u32> {
    let own = std::process::id();
    // An orphan becomes a child of the first thread.
    if let Ok(text) = std::fs::read_to_string(format!("/proc/self/task/{own}/children")) {
        return text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
        fields.and_then(|mut fields| fields.nth(1)?.parse().ok()) == Some(own)
    };
    all().into_iter().filter(is_child).collect()
}

/// All processes.
fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The owner of a process according to the environment with which it was started.
fn whose(pid: u32, mark: &str) -> Whose {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut own = environment.split(|byte| *byte == 0).filter_map(|variable| {
        let value = variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(value).ok()
    });
    let Some(value) = own.next() else { return Whose::Unsaid };
    let number = value.strip_prefix(mark).and_then(|rest| rest.strip_prefix('.')?.parse().ok());
    number.map_or(Whose::Foreign, Whose::Own)
}

/// Kills a process, and the group that it leads, if any.
fn end(pid: u32) {
    kill(pid);
    if let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw) {
        // The process may be gone.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills, after the worker is gone, everything that its commands started, until nothing is found
/// twice in a row.
pub(super) fn kill_marked(mark: &str) {
    let own = std::process::id();
    let mut quiet = 0;
    for _ in 0..REAPER_LOOKS_MAX {
        let is_marked = |pid: &u32| *pid != own && matches!(whose(*pid, mark), Whose::Own(_));
        let left: Vec<u32> = all().into_iter().filter(is_marked).collect();
        left.iter().for_each(|pid| end(*pid));
        quiet = if left.is_empty() { quiet + 1 } else { 0 };
        if quiet == 2 {
            return;
        }
        std::thread::sleep(REAPER_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};

    /// A command that cannot be watched leaves nothing: no group to be killed, which may be
    /// another one's by then, and no number by which strays stay.
    #[test]
    fn bug_21_84_a_command_that_cannot_be_watched_leaves_nothing() {
        let program = ["sh", "-c", "cat > /dev/null"].map(str::to_string).to_vec();
        let shared = Descendants::shared(None).unwrap();
        let mark = shared.borrow().mark.clone();
        shared.borrow_mut().reaper = Some(Reaper::start(program, &mark).unwrap());
        let mut child = Command::new("sleep").arg("60").env(MARK, "x").spawn().unwrap();
        let refused = |_: &mut Child| Err::<(), Error>(Error::new("no descriptor"));
        assert!(watched(&shared, &mut child, 1, refused).is_err());
        let own = shared.borrow();
        let groups = own.reaper.as_ref().map(Reaper::groups);
        assert_eq!((groups, own.commands.len(), own.going.len()), (Some(0), 0, 0));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Who had children before it was a worker, or is a container's first process, kills nothing
    /// that no mark says is a command's.
    #[test]
    fn bug_21_81_what_was_there_before_the_worker_stays() {
        assert!(owns_strays(7, &[]) && !owns_strays(7, &[9]) && !owns_strays(1, &[]));
    }

    /// What cannot be killed is looked for less and less often; what is new, at once.
    #[test]
    fn bug_21_87_what_cannot_be_killed_is_looked_for_less_often() {
        let shared = Descendants::shared(None).unwrap();
        let mut own = shared.borrow_mut();
        let mut pause = |pids: &[u32]| {
            own.look_again(Instant(0), pids.iter().copied().collect());
            own.sweep_at.0 / MS
        };
        let pauses: Vec<u64> = (0..10).map(|_| pause(&[7])).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        assert_eq!([pause(&[7, 8]), pause(&[7, 8])], [5, 10]);
    }

    /// After its worker a command's descendants are found by their mark.
    #[test]
    fn bug_21_71_the_reaper_kills_what_left_its_group() {
        let start = |mark: &str| {
            let mut command = Command::new("sleep");
            command.arg("60").env(MARK, mark).process_group(0).spawn().unwrap()
        };
        let (mut own, mut other) = (start("abc.1"), start("abcd.1"));
        super::super::reaper::reap(&b"=abc\n"[..]);
        assert_eq!(own.wait().unwrap().signal(), Some(9));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
