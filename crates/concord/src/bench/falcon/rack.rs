//! The rack: its tasks are submitted by a program that owns them ([`Submitter`]), or by the owner's
//! process over HTTP.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use concord_core::Instant;
use concord_runtime::falcon::tasks::{Submitter, SubmitterSetup, TaskJob};
use concord_runtime::{Context as _, Error, clock, key_file};
use concord_scheduler::Outcome;
use serde_json::{Value, json};

use super::{Queue, Single, TasksArgs};
use crate::bench::load::check_stop;
use crate::bench::rig::{Process, Scratch, free_port};
use crate::rack::{Rack, wire};
use crate::systems::falcon::{CLOCK, Client, OwnerSelector, key_path};

/// The maximum time to wait for an outcome.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The function number of a no-op.
const NO_OP: u16 = 0;

/// A running rack.
#[derive(Debug)]
pub(super) struct Workers {
    pub tasks: Submitter,
    pub owner: Client,
    pub run_dir: PathBuf,
    pub listen: String,
    _up: Process,
    _scratch: Scratch,
}

impl Workers {
    pub(super) fn start(args: &TasksArgs, prefetch: u8) -> Result<Workers, Error> {
        let scratch = Scratch::new()?;
        let exe = std::env::current_exe().cannot("find this program")?;
        let run_dir = scratch.path.join("run");
        let listen = free_port()?.to_string();
        let mut command = Command::new(exe);
        command
            .args(["up", "--system", "falcon", "--listen", &listen])
            .args(["--workers", &args.workers.to_string(), "--slots", &args.slots.to_string()])
            .args(["--prefetch", &prefetch.to_string()])
            .arg("--run-dir")
            .arg(&run_dir);
        let mut up = Process::start(&mut command, scratch.path.join("up.log"))?;
        up.wait_until(|printed| printed.contains("Ready after"))
            .map_err(|e| Error::new(format!("the rack did not start: {e}")))?;
        let config = run_dir.join("rack.toml");
        let rack = Rack::read(&config)?;
        let groups = rack.groups()?;
        let group = groups.first().ok_or_else(|| Error::new("the rack has no group"))?;
        let setup = SubmitterSetup {
            controller: Some(wire(rack.controller()?.addr)),
            group: group.id,
            lease_ns: group.task_lease_ns(),
            ..SubmitterSetup::new(rack.switch()?.addr, key_file::read(key_path(&config, group)?)?)
        };
        let tasks = Submitter::new(&setup)?;
        let owner = Client::of(&OwnerSelector { config, group: None, owner: None })?;
        Ok(Workers { tasks, owner, run_dir, listen, _up: up, _scratch: scratch })
    }

    /// Submits a job to the owner's process, and waits until it is over; returns the time, in
    /// seconds.
    pub(super) fn over_http(&self, job: &Value) -> Result<f64, Error> {
        check_stop()?;
        let taken = self.owner.ask("POST", "/jobs", job.to_string().as_bytes())?;
        let number = taken["job"].to_string();
        self.owner.each_result(&number, "results", true, |_| check_stop())?;
        let summary = self.owner.ask("GET", &format!("/jobs/{number}"), &[])?;
        if summary["done"] != summary["tasks"] {
            return Err(Error::new(format!(
                "{} of {} tasks are done",
                summary["done"], summary["tasks"]
            )));
        }
        Ok(summary["seconds"].as_f64().unwrap_or(f64::INFINITY))
    }

    /// Runs tasks that do nothing.
    pub(super) fn no_ops(&self, count: u32) -> Result<f64, Error> {
        self.over_http(&json!({"function": "no-op", "array": [1, count]}))
    }

    /// Runs commands that do nothing.
    pub(super) fn commands(&self, count: u32) -> Result<f64, Error> {
        let job = json!({"command": ["/bin/true"], "array": [1, count]});
        self.over_http(&job)
    }

    /// The share of a core that each of its processes uses when idle.
    pub(super) fn idle(&self, span: Duration) -> Result<Vec<(String, f64)>, Error> {
        let path = self.run_dir.join("pids");
        let text = std::fs::read_to_string(&path).cannot("read the rack's pids")?;
        let all: Vec<(&str, &str)> = text.lines().filter_map(|l| l.split_once(' ')).collect();
        let before: Vec<u64> = all.iter().map(|(_, pid)| cpu_ns(pid)).collect();
        std::thread::sleep(span);
        let used = all.iter().zip(before).map(|((name, pid), before)| {
            let ns = cpu_ns(pid).saturating_sub(before);
            (name.to_string(), ns as f64 / span.as_nanos() as f64)
        });
        Ok(used.collect())
    }

    fn outcome(&mut self) -> Result<Vec<u8>, Error> {
        match self.tasks.wait(WAIT_MAX)?.map(|told| told.outcome) {
            Some(Outcome::Done(output)) => Ok(output),
            Some(other) => Err(Error::new(format!("a task is not done but {other:?}"))),
            None => Err(Error::new("a task has no result after a minute")),
        }
    }
}

/// The CPU time of a process' threads, in ns.
fn cpu_ns(pid: &str) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let used = |thread: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    threads.map_or(0, |threads| threads.flatten().filter_map(used).sum())
}

impl Queue for Workers {
    fn single(&mut self) -> Result<Single, Error> {
        let began = clock::now().instant;
        let full = || Error::new("the owner takes no job");
        self.tasks.submit(TaskJob::of(CLOCK, [Vec::new()])).ok_or_else(full)?;
        let output = self.outcome()?;
        let now = clock::now().instant;
        let started = Instant(output.first_chunk().map_or(0, |b| u64::from_be_bytes(*b)));
        Ok(Single { start_ns: started.since(began), result_ns: now.since(began) })
    }

    fn many(&mut self, count: u32) -> Result<(), Error> {
        let full = || Error::new("the owner takes no job");
        let no_ops = TaskJob::of(NO_OP, (0..count).map(|_| Vec::new()));
        self.tasks.submit(no_ops).ok_or_else(full)?;
        (0..count).try_for_each(|_| self.outcome().map(drop))
    }
}
