//! The `concord` command. Read [`cli`] for its commands, [`rack`] for the file that describes a
//! rack, and [`up`] for how a whole rack is started.
//!
//! Every error is one line on standard error, with an exit status other than 0.
#![forbid(unsafe_code)]
// In a build without the lab's commands, the parts of a rack that only these use are unused.
#![cfg_attr(not(feature = "lab"), allow(dead_code, unused_imports))]

#[cfg(feature = "lab")]
mod bench;
mod cli;
#[cfg(feature = "lab")]
mod fuzz;
mod net;
#[cfg(feature = "lab")]
mod network;
mod problems;
mod rack;
mod reference;
#[cfg(feature = "lab")]
mod reproduce;
#[cfg(feature = "lab")]
mod results;
mod roles;
#[cfg(feature = "lab")]
mod sim;
mod status;
mod systems;
mod torture;
mod up;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use concord_check::Verdict;
use concord_runtime::{Context, Error};

use cli::{CheckArgs, Cli, Command};
use systems::{concordia, falcon, netcraq, store};

/// The exit status of a check without a result; a wrong command line has it, too.
const NOT_SHOWN: u8 = 2;

/// The error for a command that this build leaves out for want of the feature `lab`.
#[cfg(not(feature = "lab"))]
const NO_LAB: &str = "this build has the commands of a rack alone, as `make up` builds it; `make build` \
                      builds target/release/concord, which simulates, reproduces and measures, too";

fn main() -> ExitCode {
    let done = match &Cli::parse().command {
        Command::Up(args) => up::run(args),
        Command::Switch(args) => roles::switch(args),
        Command::Replica(args) => store::replica(args),
        Command::Gateway(args) => store::gateway(args),
        Command::Controller(args) => roles::controller(args),
        Command::Status(args) => return exit(status::run(args)),
        Command::Wait(args) => status::wait(args),
        Command::Voters(args) => store::voters(args),
        Command::Explain(args) => match falcon::task(&args.command) {
            Some(task) => falcon::explain(&args.config, task),
            None => store::explain(args),
        },
        Command::Worker(args) => return exit(falcon::worker(args)),
        Command::Owner(args) => falcon::owner(args),
        Command::Node(args) => concordia::node(args),
        Command::Memory(args) => concordia::memory(args),
        Command::Submit(args) => return exit(falcon::submit(args)),
        Command::Job(args) => falcon::job(args),
        Command::Drain(args) => falcon::drain(args),
        Command::Coord(args) => return netcraq::coord(args),
        Command::Reap => {
            falcon::reap();
            Ok(())
        }
        Command::Log(args) => roles::log(args),
        Command::Backup(args) => store::backup(args),
        Command::Restore(args) => store::restore(args),
        Command::Check(args) => return check(args),
        #[cfg(feature = "lab")]
        Command::Bench(args) => bench::run(args),
        #[cfg(feature = "lab")]
        Command::Net(args) => network::run(args),
        #[cfg(feature = "lab")]
        Command::Reproduce(args) => reproduce::run(args),
        #[cfg(feature = "lab")]
        Command::Sim(args) => return exit_of_check(sim::run_command(args)),
        #[cfg(feature = "lab")]
        Command::Fuzz(args) => return exit_of_check(fuzz::run_command(args)),
        #[cfg(not(feature = "lab"))]
        Command::Bench(_)
        | Command::Net(_)
        | Command::Reproduce(_)
        | Command::Sim(_)
        | Command::Fuzz(_) => {
            return exit_of_check(Err(Error::new(NO_LAB)));
        }
        Command::Completions(args) => reference::completions(args),
        Command::Man(args) => reference::man(args),
        Command::Reference => reference::print(),
        Command::Torture(args) => return exit_of_check(tortured(args)),
    };
    exit(done.map(|()| ExitCode::SUCCESS))
}

fn exit(done: Result<ExitCode, Error>) -> ExitCode {
    done.unwrap_or_else(|e| {
        eprintln!("concord: {e}");
        ExitCode::FAILURE
    })
}

/// The exit status of a command that checks something, where 1 reports a violation: an error is no
/// result.
fn exit_of_check(done: Result<ExitCode, Error>) -> ExitCode {
    done.unwrap_or_else(|e| {
        eprintln!("concord: {e}");
        ExitCode::from(NOT_SHOWN)
    })
}

/// `concord check`: 0 if linearizable, 1 if not, 2 if the search gave up or the history cannot be
/// read, 3 if too few operations were checked.
fn check(args: &CheckArgs) -> ExitCode {
    exit_of_check(check_history(args))
}

/// `concord torture`, over a chain of switches if the arguments name one.
fn tortured(args: &torture::TortureArgs) -> Result<ExitCode, Error> {
    let Some(file) = &args.coord else { return torture::run(args, None) };
    let patience = Duration::from_secs(args.timeout);
    let (place, layout) = netcraq::place(file, args.group.as_deref(), None, patience)?;
    torture::run(args, Some((place, layout.value_bytes)))
}

/// A hint beside an error about a history, if the file has the name of a rack file.
fn hint_of_rack_file(path: &Path) -> &'static str {
    let is_toml = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
    let hint = "; for a rack file, `concord status --config FILE` reads and checks it";
    if is_toml { hint } else { "" }
}

fn check_history(args: &CheckArgs) -> Result<ExitCode, Error> {
    let name = args.file.display();
    let file = File::open(&args.file).cannot(format!("read {name}"))?;
    let options = concord_check::Options {
        time_max: Some(Duration::from_secs(args.seconds)),
        judged_percent_min: concord_check::JUDGED_PERCENT_MIN,
        ..concord_check::Options::default()
    };
    let report = concord_check::check_file(BufReader::new(file), &options)
        .map_err(|e| Error::new(format!("{name}: {e}{}", hint_of_rack_file(&args.file))))?;
    println!("{report}");
    Ok(match report.verdict {
        Verdict::Ok => ExitCode::SUCCESS,
        Verdict::Violation => ExitCode::FAILURE,
        Verdict::Unknown => ExitCode::from(NOT_SHOWN),
        Verdict::TooLittle => ExitCode::from(3),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_file_is_not_taken_for_a_history_without_a_hint() {
        assert!(hint_of_rack_file(Path::new("run/rack.toml")).contains("concord status --config"));
        assert_eq!(hint_of_rack_file(Path::new("history.jsonl")), "");
    }
}
