//! Tasks from Python: the rack's executor compared with Dask and Ray, each in a process of the same
//! script, which prints its measurements in a line.

use std::process::Command;

use serde_json::Value;

use super::TasksArgs;

const SCRIPT: &str = include_str!("peers.py");

/// The measurements of a run of the script.
#[derive(Debug)]
pub(super) struct Measured {
    /// The time to the start of single calls, in us.
    pub start_us: Vec<f64>,
    pub result_us: Vec<f64>,
    pub calls_per_second: f64,
}

/// Runs the script.
///
/// # Errors
/// One line with the reason why it cannot be measured here.
pub(super) fn measure(
    system: &str,
    args: &TasksArgs,
    owner: Option<(&str, &str)>,
) -> Result<Measured, String> {
    let mut command = Command::new(&args.python);
    command.args(["-c", SCRIPT, system]);
    command.args(
        [args.singles, args.calls, u32::from(args.workers * args.slots)].map(|n| n.to_string()),
    );
    let package = std::env::current_dir().unwrap_or_default().join("python");
    let beside = std::env::var("PYTHONPATH").unwrap_or_default();
    command.env("PYTHONPATH", format!("{}:{beside}", package.display()));
    if let Some((listen, token)) = owner {
        command.env("CONCORD_OWNER", listen).env("CONCORD_TOKEN", token);
    }
    let Ok(output) = command.output() else {
        return Err(format!("{system}: there is no {}: left out", args.python));
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or("");
    let told: Value = serde_json::from_str(last).unwrap_or(Value::Null);
    if let Some(why) = told["missing"].as_str() {
        return Err(format!("{system} is left out: {why}"));
    }
    if !output.status.success() || !told.is_object() {
        let error = String::from_utf8_lossy(&output.stderr);
        let line = error.lines().rev().find(|line| !line.is_empty()).unwrap_or("it says nothing");
        return Err(format!("{system} is left out: it cannot be measured: {line}"));
    }
    let numbers = |name: &str| {
        let all = told[name].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().filter_map(Value::as_f64).collect()
    };
    Ok(Measured {
        start_us: numbers("start_us"),
        result_us: numbers("result_us"),
        calls_per_second: told["calls_per_second"].as_f64().unwrap_or(0.0),
    })
}
