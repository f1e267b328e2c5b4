//! Commands do not outlive their worker, however it ends. A process beside the worker knows the
//! process groups of all running commands, and kills them when the worker is gone: nothing else
//! could after a kill -9.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::descendants;
use crate::error::{Context, Error};

/// The worker's handle of that process.
#[derive(Debug)]
pub(super) struct Reaper {
    program: Vec<String>,
    child: Child,
    /// The groups that it was told.
    groups: BTreeSet<u32>,
    mark: String,
}

impl Reaper {
    /// Starts it: `program` runs [`reap`] on its standard input. Processes with `mark` in their
    /// environment were started by commands of this worker.
    pub(super) fn start(program: Vec<String>, mark: &str) -> Result<Reaper, Error> {
        let child = spawn(&program)?;
        let mark = format!("={mark}\n");
        let mut reaper = Reaper { program, child, groups: BTreeSet::new(), mark: mark.clone() };
        reaper.tell(&mark)?;
        Ok(reaper)
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Tells it that a command began: its process group is to be killed if the worker is gone.
    pub(super) fn began(&mut self, group: u32) -> Result<(), Error> {
        self.groups.insert(group);
        self.tell(&format!("+{group}\n"))
    }

    /// Tells it that a command ended. Its process was not waited for yet, so the number is still
    /// its own.
    pub(super) fn ended(&mut self, group: u32) -> Result<(), Error> {
        self.groups.remove(&group);
        self.tell(&format!("-{group}\n"))
    }

    /// Writes a line to it. If it is gone, another one is started in its place.
    fn tell(&mut self, line: &str) -> Result<(), Error> {
        let input = self.child.stdin.as_mut();
        if input.is_some_and(|input| input.write_all(line.as_bytes()).is_ok()) {
            return Ok(());
        }
        let _ = self.child.wait();
        self.child = spawn(&self.program)?;
        let groups = self.groups.iter().map(|group| format!("+{group}\n"));
        let all: String = std::iter::once(self.mark.clone()).chain(groups).collect();
        let input = self.child.stdin.as_mut();
        input.map_or(Ok(()), |input| input.write_all(all.as_bytes())).cannot("tell the reaper")
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Starts it in a process group of its own: signals from a terminal that end the worker do not end
/// it.
fn spawn(program: &[String]) -> Result<Child, Error> {
    use std::os::unix::process::CommandExt;
    let (name, args) = program.split_first().ok_or_else(|| Error::new("no reaper to start"))?;
    Command::new(name)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .cannot(format!("start {name}"))
}

/// Kills a process group, if a command can have that number.
pub(super) fn kill(group: u32) {
    let pid = i32::try_from(group).ok().filter(|group| *group > 1).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The group may be gone.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// The main loop of that process: reads lines `+<group>`, `-<group>` and `=<mark>` until the end of
/// input, and then kills the remaining processes of these groups, and those with the mark in their
/// environment.
pub fn reap(input: impl BufRead) {
    let mut groups = BTreeSet::new();
    let mut mark = String::new();
    for line in input.lines() {
        let Ok(line) = line else { break };
        if let Some(own) = line.strip_prefix('=') {
            mark = own.to_string();
            continue;
        }
        match line.split_at_checked(1).map(|(sign, group)| (sign, group.parse::<u32>())) {
            Some(("+", Ok(group))) => {
                groups.insert(group);
            }
            Some(("-", Ok(group))) => {
                groups.remove(&group);
            }
            _ => {}
        }
    }
    for group in groups {
        kill(group);
    }
    if !mark.is_empty() {
        descendants::kill_marked(&mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};

    #[test]
    fn who_is_left_at_the_end_is_killed_with_all_that_it_started() {
        let start = || {
            let mut command = Command::new("sh");
            // Marked, so that no other test takes it for a stray.
            command.args(["-c", "sleep 60 & sleep 60"]).env("CONCORD_RUN", "x");
            command.process_group(0).spawn().unwrap()
        };
        let (mut ended, mut left) = (start(), start());
        let lines = format!("+{}\n+{}\n-{}\nx\n+1\n\n", ended.id(), left.id(), ended.id());
        reap(lines.as_bytes());
        assert_eq!(left.wait().unwrap().signal(), Some(9));
        assert!(ended.try_wait().unwrap().is_none());
        kill(ended.id());
        assert_eq!(ended.wait().unwrap().signal(), Some(9));
    }
}
