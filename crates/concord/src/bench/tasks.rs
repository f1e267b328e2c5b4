//! `concord bench tasks`: how many tasks a second a rack of workers does, and how long one waits for its start and its
//! result, by its owner's clock.

use std::process::Command;

use clap::Args;
use concord_runtime::{Context as _, Error};
use serde_json::{Value, json};

use super::load::check_stop;
use super::report::{Results, Table, load_average};
use super::rig::{Process, Scratch, free_port};
use crate::systems::falcon::{Asked, Client};

/// `concord bench tasks`.
#[derive(Args, Clone, Debug)]
pub struct TasksArgs {
    /// No-ops that are submitted at once
    #[arg(long, value_name = "N", default_value_t = 200_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tasks: u32,
    /// No-ops that are submitted one after another
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub singles: u32,
    /// Commands (/bin/true) that are submitted at once
    #[arg(long, value_name = "N", default_value_t = 2_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub commands: u32,
    /// Workers of the rack
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub workers: u16,
    /// Tasks that each runs at a time
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub slots: u16,
}

/// Runs it.
///
/// # Errors
/// One line for a person; nothing is left running.
pub fn bench(args: &TasksArgs, results: &Results) -> Result<(), Error> {
    let scratch = Scratch::new()?;
    let exe = std::env::current_exe().cannot("find this program")?;
    let run_dir = scratch.path.join("run");
    let mut command = Command::new(exe);
    command
        .args(["up", "--system", "falcon", "--listen", &free_port()?.to_string()])
        .args(["--workers", &args.workers.to_string(), "--slots", &args.slots.to_string()])
        .arg("--run-dir")
        .arg(&run_dir);
    let mut up = Process::start(&mut command, scratch.path.join("up.log"))?;
    up.wait_until(|printed| printed.contains("Ready after"))
        .map_err(|e| Error::new(format!("the rack did not start: {e}")))?;
    let asked = Asked { config: run_dir.join("rack.toml"), group: None, owner: None };
    let owner = Client::of(&asked)?;
    let mut table = Table::new(&[
        "what",
        "tasks",
        "tasks/s",
        "start p50 us",
        "start p99 us",
        "result p50 us",
        "result p99 us",
        "load avg",
    ]);
    singles(args.singles, &owner, &mut table)?;
    let no_ops = json!({"function": "no-op", "array": [1, args.tasks]});
    at_once("no-ops at once", args.tasks, &no_ops, &owner, &mut table)?;
    let commands = json!({"command": ["/bin/true"], "array": [1, args.commands]});
    at_once("/bin/true at once", args.commands, &commands, &owner, &mut table)?;
    results.csv("tasks", &table)
}

/// Submits a job, waits until it is over, and gives its number.
fn done(owner: &Client, job: &Value) -> Result<String, Error> {
    check_stop()?;
    let taken = owner.ask("POST", "/jobs", job.to_string().as_bytes())?;
    let number = taken["job"].to_string();
    owner.each_result(&number, "results", true, |_| check_stop())?;
    Ok(number)
}

/// One task after another: each waits for nobody.
fn singles(count: u32, owner: &Client, table: &mut Table) -> Result<(), Error> {
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    let mut seconds = 0.0;
    for _ in 0..count {
        let number = done(owner, &json!({"function": "no-op"}))?;
        let way = owner.ask("GET", &format!("/jobs/{number}/tasks/0"), &[])?;
        let us = |name: &str| way[name].as_f64().unwrap_or(0.0) * 1e3;
        starts.push(us("started_ms"));
        ends.push(us("over_ms"));
        seconds += us("over_ms") / 1e6;
    }
    let percentile = |of: &mut Vec<f64>, percent: usize| {
        of.sort_by(f64::total_cmp);
        let at = (of.len() * percent).div_ceil(100).saturating_sub(1);
        format!("{:.0}", of.get(at).copied().unwrap_or(0.0))
    };
    table.row(vec![
        "no-ops one by one".to_string(),
        count.to_string(),
        format!("{:.0}", f64::from(count) / seconds),
        percentile(&mut starts, 50),
        percentile(&mut starts, 99),
        percentile(&mut ends, 50),
        percentile(&mut ends, 99),
        load_average(),
    ]);
    table.print_last();
    Ok(())
}

/// All at once: how many a second.
fn at_once(
    name: &str,
    count: u32,
    job: &Value,
    owner: &Client,
    table: &mut Table,
) -> Result<(), Error> {
    let number = done(owner, job)?;
    let summary = owner.ask("GET", &format!("/jobs/{number}"), &[])?;
    if summary["done"] != count {
        return Err(Error::new(format!("{name}: {} of {count} tasks are done", summary["done"])));
    }
    let rate = f64::from(count) / summary["seconds"].as_f64().unwrap_or(f64::INFINITY);
    let none = || "-".to_string();
    let rate = format!("{rate:.0}");
    let cells = [name.to_string(), count.to_string(), rate, none(), none(), none(), none()];
    table.row(cells.into_iter().chain([load_average()]).collect());
    table.print_last();
    Ok(())
}
