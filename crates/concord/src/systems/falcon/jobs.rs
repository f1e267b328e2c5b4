//! `concord submit`, `concord job` and `concord explain TASK`: requests of a person to an owner.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, IsTerminal as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use concord_runtime::{Context as _, Error, key_file};
use serde_json::{Value, json};

use super::args::{JobArgs, JobCommand, OwnerSelector, SubmitArgs};
use super::outputs::{JobLog, LOG_HEADER, Printer, bytes_of, log_line};
use super::roles::key_path;
use crate::net::{PersistentConnection, http};
use crate::rack::{Rack, in_file, pick_member};
use crate::status::print;

const ASK_TIMEOUT: Duration = Duration::from_secs(60);
/// The time that an owner may hold a request for outcomes, in ms; then it is repeated.
const WAIT_MS: u64 = 5_000;
/// The time for which a request to an owner that is gone is repeated, and the interval: with a
/// journal, an owner continues its jobs after a restart.
const AWAY_MAX: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(200);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// A client of an owner.
#[derive(Debug)]
pub struct Client {
    listen: SocketAddr,
    token: String,
    /// The connection on which it waits for results.
    kept: RefCell<PersistentConnection>,
    /// The incarnation of the owner whose jobs it asks for. A later incarnation without a journal
    /// has other jobs with the same numbers.
    incarnation: Option<String>,
}

impl Clone for Client {
    /// The clone has a connection of its own.
    fn clone(&self) -> Client {
        Client::at(self.listen, self.token.clone(), self.incarnation.clone())
    }
}

/// The failure of a request.
#[derive(Debug)]
enum Asking {
    Answered(Value),
    Refused(Error),
    /// The owner is gone, or is about to end; and whether it may have accepted the request.
    Away(Error, bool),
    /// The owner was restarted without its jobs.
    Other(Error),
}

impl Client {
    /// A client of the owner that the arguments select.
    ///
    /// # Errors
    /// One line with the mistake in the rack file or the key file.
    pub fn of(asked: &OwnerSelector) -> Result<Client, Error> {
        let rack = Rack::read(&asked.config)?;
        let groups = rack.groups()?;
        let name = asked.group.as_deref();
        let first = groups.iter().find(|group| name.is_none_or(|name| name == group.name));
        let first = first.and_then(|group| group.owners.first()).map(|owner| owner.node);
        let wanted = (name, asked.owner.or(first));
        let (group, own) = pick_member("owner", &groups, |g| g.owners, |o| o.node, wanted)
            .map_err(in_file(&asked.config))?;
        let token = key_file::token(key_file::read(key_path(&asked.config, &group)?)?);
        Ok(Client::at(own.reached(), token, None))
    }

    fn at(listen: SocketAddr, token: String, incarnation: Option<String>) -> Client {
        Client { listen, token, kept: RefCell::default(), incarnation }
    }

    /// The token that requests must have.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Makes a request; returns the answer.
    ///
    /// # Errors
    /// The owner's refusal, or that it does not answer.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<Value, Error> {
        match self.ask_once(method, path, body) {
            Asking::Answered(answer) => Ok(answer),
            Asking::Refused(error) | Asking::Away(error, _) | Asking::Other(error) => Err(error),
        }
    }

    /// As [`Client::ask`]; repeats the request while the owner is gone for a while.
    fn ask_again(&self, method: &str, path: &str, body: &[u8]) -> Result<Value, Error> {
        let began = Instant::now();
        loop {
            match self.ask_once(method, path, body) {
                Asking::Answered(answer) => return Ok(answer),
                Asking::Away(..) if began.elapsed() < AWAY_MAX => std::thread::sleep(AGAIN),
                Asking::Refused(error) | Asking::Away(error, _) | Asking::Other(error) => {
                    return Err(error);
                }
            }
        }
    }

    /// A client that asks for the jobs of the owner's current incarnation.
    fn named(&self) -> Result<Client, Error> {
        let own = Client::at(self.listen, self.token.clone(), None);
        let told = own.ask_again("GET", "/owner", &[])?;
        Ok(Client { incarnation: told["owner"].as_str().map(str::to_string), ..own })
    }

    /// Submits a job, repeatedly if the owner is gone for a while: it is one job nevertheless, and
    /// never runs twice if it must not. Returns the client for further requests about it, and the
    /// answer.
    fn submit(&self, job: &Value) -> Result<(Client, Value), Error> {
        let (began, text) = (Instant::now(), job.to_string());
        let (mut own, mut may_run) = (self.named()?, false);
        loop {
            match own.ask_once("POST", "/jobs", text.as_bytes()) {
                Asking::Answered(answer) => return Ok((own, answer)),
                Asking::Away(_, may_be_taken) if began.elapsed() < AWAY_MAX => {
                    may_run |= may_be_taken;
                    std::thread::sleep(AGAIN);
                }
                Asking::Other(_) if may_run && job["once"] == true => {
                    return Err(Error::new(
                        "the owner ended without an answer, and was started again without a journal: the job may have \
                         been run, and is not submitted again",
                    ));
                }
                // If the earlier incarnation had accepted the job, the job ended with it.
                Asking::Other(_) if began.elapsed() < AWAY_MAX => own = self.named()?,
                Asking::Refused(error) | Asking::Away(error, _) | Asking::Other(error) => {
                    return Err(error);
                }
            }
        }
    }

    fn ask_once(&self, method: &str, path: &str, body: &[u8]) -> Asking {
        let listen = self.listen;
        let path = match &self.incarnation {
            Some(own) => format!("{path}{}owner={own}", if path.contains('?') { '&' } else { '?' }),
            None => path.to_string(),
        };
        let asked = match method {
            "GET" => self.kept.borrow_mut().get(listen, &path, &self.token, ASK_TIMEOUT),
            _ => http(listen, method, &path, &self.token, body, ASK_TIMEOUT),
        };
        let (status, answer) = match asked {
            Ok(answered) => answered,
            Err(e) => {
                let why = format!(
                    "no answer of the owner at {listen}: {e}; `concord status` says how it is"
                );
                let was_sent = e.kind() != std::io::ErrorKind::ConnectionRefused;
                return Asking::Away(Error::new(why), was_sent);
            }
        };
        let answer: Value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
        let error = || {
            Error::new(answer["error"].as_str().map_or_else(
                || format!("the owner at {listen} answered with {status}"),
                str::to_string,
            ))
        };
        match status {
            200..300 => Asking::Answered(answer),
            503 => Asking::Away(error(), true),
            410 if self.incarnation.is_some() => Asking::Other(error()),
            _ => Asking::Refused(error()),
        }
    }

    fn get(&self, path: &str) -> Result<Value, Error> {
        self.ask("GET", path, &[])
    }

    /// Passes on all outcomes of a job that exist; with `waits`, also those that come later.
    ///
    /// # Errors
    /// The owner's refusal, or that it does not answer.
    pub fn each_result(
        &self,
        job: &str,
        what: &str,
        waits: bool,
        mut each: impl FnMut(&Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let is_named = self.incarnation.is_some() || !waits;
        let own = if is_named { self.clone() } else { self.named()? };
        let mut from = 0;
        loop {
            let wait_ms = if waits { WAIT_MS } else { 0 };
            let path = format!("/jobs/{job}/{what}?from={from}&wait_ms={wait_ms}");
            let page = if waits { own.ask_again("GET", &path, &[])? } else { own.get(&path)? };
            let results = page["results"].as_array().map_or(&[][..], Vec::as_slice);
            results.iter().try_for_each(&mut each)?;
            let next = page["next"].as_u64().unwrap_or(from);
            let is_end = page["is_last"] == true || (!waits && next == from);
            from = next;
            if is_end {
                return Ok(());
            }
        }
    }
}

/// Parses a duration such as `2s`, `1.5s`, `500ms`, `100us`, `1m`, `1h`; returns it in
/// microseconds.
pub fn microseconds(flag: &str, text: &str) -> Result<u64, Error> {
    in_microseconds(text).ok_or_else(|| {
        Error::new(format!(
            "{flag} {text:?} is not a time; write it like 100us, 500ms, 1.5s, 2m or 1h"
        ))
    })
}

fn in_microseconds(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit: u64 = match &text[end..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return None,
    };
    let (whole, part) = text[..end].split_once('.').unwrap_or((&text[..end], "0"));
    let us = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    // Digits below a microsecond, or after the ninth, have no effect.
    let is_number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let nano: u64 = format!("{part:0<9.9}").parse().ok().filter(|_| is_number)?;
    let part_us = u128::from(nano) * u128::from(unit) / 1_000_000_000;
    us.checked_add(u64::try_from(part_us).ok()?)
}

/// The numbers of an array's tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Numbers {
    /// The first and the last number of a range.
    All(u32, u32),
    Some(Vec<u32>),
}

/// The maximum number of numbers of an array that is not a range.
const NUMBERS_MAX: usize = 1 << 20;

/// Parses an array such as `0-9999`, `0-99:2` or `1,5,7-9`.
fn array(text: &str) -> Result<Numbers, Error> {
    let wrong = || {
        Error::new(format!(
            "--array {text:?}: write the first and the last number, like 0-9999, 0-99:2 for each second one, or several \
             like 1,5,7-9"
        ))
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (first, last, step) = (number(first)?, number(last)?, number(step)?);
        if last < first {
            return Err(Error::new(format!(
                "--array {first}-{last} goes backward: write --array {last}-{first}"
            )));
        }
        if step == 1 && part == text {
            return Ok(Numbers::All(first, last));
        }
        let count = (last - first).checked_div(step).ok_or_else(wrong)? as usize;
        if all.len() + count >= NUMBERS_MAX {
            let why = format!("--array {text}: at most {NUMBERS_MAX} numbers");
            return Err(Error::new(why));
        }
        all.extend((first..=last).step_by(step as usize));
    }
    all.sort_unstable();
    all.dedup();
    Ok(Numbers::Some(all))
}

/// Parses a dependency such as `7` or `any:8` into the form that an owner reads.
fn after(text: &str) -> Result<Value, Error> {
    let (when, job) = text.split_once(':').unwrap_or(("ok", text));
    let is_known = ["ok", "any", "not-ok", "each"].contains(&when);
    let job = job.parse::<u32>().ok().filter(|_| is_known);
    let wrong = || {
        Error::new(format!(
            "--after {text:?}: write a job's number, or ok:, any:, not-ok: or each: and the number"
        ))
    };
    Ok(json!({ "job": job.ok_or_else(wrong)?, "when": when }))
}

/// Parses `NAME=VALUE`, or `NAME` with the value that it has in this process.
fn variable(text: &str) -> Result<(String, String), Error> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_string(), value.to_string()));
    }
    let value = std::env::var(text);
    let value = value.map_err(|e| Error::new(format!("--env {text}: {e}; write {text}=VALUE")))?;
    Ok((text.to_string(), value))
}

/// The lines of a file, or of standard input, without their terminators.
fn lines(path: &Path, is_null: bool) -> Result<Vec<Vec<u8>>, Error> {
    let name = path.display();
    let end = if is_null { 0 } else { b'\n' };
    let read = |input: &mut dyn BufRead| input.split(end).collect::<std::io::Result<Vec<_>>>();
    let mut all = if path == Path::new("-") {
        read(&mut std::io::stdin().lock()).cannot("read lines from standard input")?
    } else {
        let file = std::fs::File::open(path).cannot(format!("read {name}"))?;
        read(&mut BufReader::new(file)).cannot(format!("read {name}"))?
    };
    for line in all.iter_mut().filter(|line| !is_null && line.ends_with(b"\r")) {
        line.pop();
    }
    Ok(all)
}

/// Lines in the form that an owner reads: as text, if all of them are.
fn lines_of(all: Vec<Vec<u8>>) -> (&'static str, Value) {
    if all.iter().all(|line| std::str::from_utf8(line).is_ok()) {
        let text = |line: &Vec<u8>| String::from_utf8_lossy(line).into_owned();
        return ("lines", json!(all.iter().map(text).collect::<Vec<_>>()));
    }
    let hex =
        |line: &Vec<u8>| line.iter().fold(String::new(), |text, b| text + &format!("{b:02x}"));
    ("lines_hex", json!(all.iter().map(hex).collect::<Vec<_>>()))
}

/// A random name, which no other job has.
fn key() -> Result<String, Error> {
    let mut bytes = [0u8; 16];
    let mut file = std::fs::File::open("/dev/urandom").cannot("read /dev/urandom")?;
    file.read_exact(&mut bytes).cannot("read /dev/urandom")?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// A job in the form that an owner reads.
fn job(args: &SubmitArgs) -> Result<Value, Error> {
    let mut job = json!({ "once": args.once, "retries": args.retries.unwrap_or(0) });
    job["attached"] = json!(args.wait && !args.detach);
    // A request whose answer is lost is repeated, and still makes only one job.
    job["key"] = json!(key()?);
    match args.array.as_deref().map(array).transpose()? {
        Some(Numbers::All(first, last)) => job["array"] = json!([first, last]),
        Some(Numbers::Some(numbers)) => job["numbers"] = json!(numbers),
        None => {}
    }
    if let Some(path) = &args.lines {
        let (name, all) = lines_of(lines(path, args.null)?);
        job[name] = all;
    }
    for (flag, name, time) in
        [("--limit", "limit_ms", &args.limit), ("--grace", "grace_ms", &args.grace)]
    {
        let Some(time) = time else { continue };
        let ms = microseconds(flag, time)?.div_ceil(1_000);
        let ms = u32::try_from(ms).ok().filter(|ms| *ms > 0);
        let wrong = || Error::new(format!("{flag} {time}: from 1ms to 1,000 hours"));
        job[name] = json!(ms.ok_or_else(wrong)?);
    }
    if let Some(delay) = &args.retry_delay {
        job["retry_delay_ms"] = json!(microseconds("--retry-delay", delay)?.div_ceil(1_000));
    }
    if let Some(most) = args.max_running {
        job["running_max"] = json!(most);
    }
    let after: Result<Vec<Value>, Error> = args.after.iter().map(|text| after(text)).collect();
    job["after"] = json!(after?);
    for text in &args.env {
        let (name, value) = variable(text)?;
        job["environment"][name] = json!(value);
    }
    if let Some(priority) = args.priority {
        job["priority"] = json!(priority);
    }
    if let Some(needs) = &args.needs {
        job["needs"] = json!(needs);
    }
    if let Some(near) = args.near {
        job["near"] = json!(near);
    }
    if let Some(wait) = &args.locality_wait {
        job["locality_wait_ms"] = json!(microseconds("--locality-wait", wait)?.div_ceil(1_000));
    }
    for (flag, function, time) in
        [("--sleep", "sleep", &args.sleep), ("--spin", "spin", &args.spin)]
    {
        if let Some(time) = time {
            job["us"] = json!(microseconds(flag, time)?);
            job["function"] = json!(function);
        }
    }
    if args.no_op {
        job["function"] = json!("no-op");
    }
    if !args.command.is_empty() {
        let what = if args.handler { "handler" } else { "command" };
        let mut command = args.command.clone();
        // As with xargs, each line is an argument.
        let has_place = |arg: &String| arg.replace("{{}}", "").contains("{}");
        if args.lines.is_some() && !args.handler && !command.iter().any(has_place) {
            command.push("{}".to_string());
        }
        job[what] = json!(command);
    }
    if let Some(directory) = &args.dir {
        let directory = std::path::absolute(directory).cannot("find the current directory")?;
        let text = directory.to_str().ok_or_else(|| {
            Error::new(format!("--dir {}: its name is not UTF-8", directory.display()))
        });
        job["directory"] = json!(text?);
    }
    Ok(job)
}

/// `concord submit`.
///
/// # Errors
/// One line for a person.
pub fn submit(args: &SubmitArgs) -> Result<ExitCode, Error> {
    let job = job(args)?;
    let owner = Client::of(&args.asked)?;
    let mut log = args.joblog.as_deref().map(JobLog::create).transpose()?;
    let (owner, taken) = if args.wait {
        owner.submit(&job)?
    } else {
        let taken = owner.ask("POST", "/jobs", job.to_string().as_bytes())?;
        (owner, taken)
    };
    let number = taken["job"].to_string();
    let prints = args.outputs || args.keep_order;
    // If outputs are printed, standard output has nothing else.
    let say = |line: String| match prints {
        true => write!(std::io::stderr(), "{line}").cannot("write to standard error"),
        false => print(&line),
    };
    say(format!("job {number}: {} tasks\n", taken["tasks"]))?;
    if !args.wait {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.detach {
        cancel_on_signals(owner.clone(), number.clone())?;
    }
    let is_one = taken["tasks"] == 1;
    let mut status = None;
    let mut progress = Progress::new(&number, taken["tasks"].as_u64().unwrap_or(0));
    let mut printer = Printer::new(args.keep_order.then(|| numbers_of(&job, &taken)));
    owner.each_result(&number, "results", true, |told| {
        progress.count(told);
        status = exit_status(told).filter(|_| is_one);
        log.as_mut().map_or(Ok(()), |log| log.note(told))?;
        if prints { printer.print(told) } else { Ok(()) }
    })?;
    progress.end();
    let summary = owner.ask_again("GET", &format!("/jobs/{number}"), &[])?;
    let is_done = summary["done"] == summary["tasks"];
    say(format!("job {number}: {}{}\n", in_words(&summary), next_step(&number, &summary)))?;
    let failed = status.map_or(ExitCode::FAILURE, ExitCode::from);
    Ok(if is_done { ExitCode::SUCCESS } else { failed })
}

/// The command that tells why tasks are not done. Tasks that were cancelled are not among the dead.
fn next_step(number: &str, summary: &Value) -> String {
    let count = |name: &str| summary[name].as_u64().unwrap_or(0);
    if count("failed") + count("unknown") + count("lost") > 0 {
        return format!("; concord job dead {number}");
    }
    if count("cancelled") > 0 {
        return format!("; concord job results {number}");
    }
    String::new()
}

/// The numbers of a job's tasks, in order.
fn numbers_of(job: &Value, taken: &Value) -> Vec<u64> {
    if let Some(numbers) = job["numbers"].as_array() {
        return numbers.iter().filter_map(Value::as_u64).collect();
    }
    let first = job["array"][0].as_u64().unwrap_or(0);
    (first..first + taken["tasks"].as_u64().unwrap_or(0)).collect()
}

/// Handles Ctrl-C: the first ends the job's tasks at once, and then this command; a second one ends
/// only this command.
fn cancel_on_signals(owner: Client, job: String) -> Result<(), Error> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).cannot("handle signals")?;
    let work = move || {
        let Some(signal) = signals.forever().next() else { return };
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                std::process::exit(128 + signal);
            }
        });
        let told = owner.ask("DELETE", &format!("/jobs/{job}"), &[]);
        let line = match told {
            Ok(told) => format!("\njob {job}: {} tasks cancelled\n", told["cancelled"]),
            Err(error) => format!("\nconcord: job {job} was not cancelled: {error}\n"),
        };
        let _ = std::io::stderr().write_all(line.as_bytes());
        std::process::exit(128 + signal);
    };
    let named = std::thread::Builder::new().name("signals".to_string());
    named.spawn(work).cannot("start the thread that handles signals").map(drop)
}

/// The exit status that a shell would have if it had run the task itself: the command's status, or
/// 128 plus the signal.
fn exit_status(told: &Value) -> Option<u8> {
    let number = |name: &str| told[name].as_u64().and_then(|number| u8::try_from(number).ok());
    let status = number("status").or_else(|| number("signal")?.checked_add(128));
    status.filter(|status| *status > 0)
}

/// The progress of a job, shown on a terminal's standard error.
#[derive(Debug)]
struct Progress {
    job: String,
    tasks: u64,
    over: u64,
    not_done: u64,
    said_at: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    fn new(job: &str, tasks: u64) -> Progress {
        let is_shown = std::io::stderr().is_terminal();
        Progress { job: job.to_string(), tasks, over: 0, not_done: 0, said_at: None, is_shown }
    }

    fn count(&mut self, told: &Value) {
        self.over += 1;
        self.not_done += u64::from(told["how"] != "done");
        let is_time = self.said_at.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL);
        if self.is_shown && is_time {
            self.said_at = Some(Instant::now());
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", self.line());
        }
    }

    fn line(&self) -> String {
        let Progress { job, tasks, over, not_done, .. } = self;
        let percent = over * 100 / tasks.max(&1);
        let not_done = if *not_done > 0 { format!(", {not_done} not done") } else { String::new() };
        format!("job {job}: {over} of {tasks} over ({percent}%){not_done}")
    }

    fn end(&self) {
        if self.is_shown && self.said_at.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The summary in words: "9990 done, 10 failed in 3.2 s".
fn in_words(summary: &Value) -> String {
    let words = ["running", "waiting", "done", "failed", "unknown", "lost", "cancelled"];
    let some = words.iter().filter(|word| summary[**word] != 0);
    let some: Vec<String> = some.map(|word| format!("{} {word}", summary[*word])).collect();
    let seconds = summary["seconds"].as_f64().unwrap_or(0.0);
    let since = if summary["is_over"] == true { "in" } else { "after" };
    format!("{} {since} {seconds:.3} s", some.join(", "))
}

/// `concord job`.
///
/// # Errors
/// One line for a person.
pub fn run(args: &JobArgs) -> Result<(), Error> {
    let owner = Client::of(&args.asked)?;
    match &args.command {
        JobCommand::Token => print(&format!("{}\n", owner.token)),
        JobCommand::Ls { json } => {
            let all = owner.get("/jobs")?;
            if *json {
                return print(&format!("{all:#}\n"));
            }
            let line = |job: &Value| {
                let title = job["title"].as_str().unwrap_or("");
                format!("{:>6}  {}  {}\n", job["job"], in_words(job), shortened(title))
            };
            print(&all.as_array().into_iter().flatten().map(line).collect::<String>())
        }
        JobCommand::Show { job, json } => {
            let job = owner.get(&format!("/jobs/{job}"))?;
            print(&if *json { format!("{job:#}\n") } else { shown(&job) })
        }
        JobCommand::Results { job, wait, to: Some(directory), .. } => {
            let name = directory.display();
            std::fs::create_dir_all(directory).cannot(format!("create {name}"))?;
            let (mut count, mut cut) = (0, 0);
            owner.each_result(job, "results", *wait, |told| {
                let path = directory.join(told["task"].to_string());
                std::fs::write(&path, bytes_of(told))
                    .cannot(format!("write {}", path.display()))?;
                count += 1;
                cut += u32::from(told["is_cut"] == true);
                Ok(())
            })?;
            let cut = if cut > 0 { format!(", {cut} of them cut") } else { String::new() };
            print(&format!("{count} outputs are in {name}{cut}\n"))
        }
        JobCommand::Results { job, json, wait, to: None } => {
            owner.each_result(job, "results", *wait, |told| print(&result(told, *json)))
        }
        JobCommand::Log { job } => {
            print(LOG_HEADER)?;
            owner.each_result(job, "results", false, |told| print(&log_line(told)))
        }
        JobCommand::Retry { job, cancelled } => {
            let more = if *cancelled { "?cancelled=1" } else { "" };
            let taken = owner.ask("POST", &format!("/jobs/{job}/retry{more}"), &[])?;
            print(&format!("job {}: {} tasks\n", taken["job"], taken["tasks"]))
        }
        JobCommand::Dead { job, json } => {
            owner.each_result(job, "dead", false, |told| print(&result(told, *json)))
        }
        JobCommand::Cancel { job } => {
            let told = owner.ask("DELETE", &format!("/jobs/{job}"), &[])?;
            print(&format!("job {}: {} tasks cancelled\n", told["job"], told["cancelled"]))
        }
    }
}

fn shortened(title: &str) -> String {
    let short: String = title.chars().take(60).collect();
    if short.len() < title.len() { short + "..." } else { short }
}

fn shown(job: &Value) -> String {
    let (title, limit_ms) = (job["title"].as_str().unwrap_or(""), &job["limit_ms"]);
    let mut out = format!("job {}: {}\n", job["job"], in_words(job));
    let _ = writeln!(out, "  {title}");
    let first = job["first"].as_u64().unwrap_or(0);
    let last = first + job["tasks"].as_u64().unwrap_or(1).saturating_sub(1);
    let _ = writeln!(out, "  tasks {first} to {last}");
    let how = if job["once"] == true {
        "at most once".to_string()
    } else {
        format!("at least once, {} retries", job["retries"])
    };
    let limit =
        if *limit_ms == 0 { "no limit".to_string() } else { format!("limit {limit_ms} ms") };
    let _ = writeln!(out, "  {how}, {limit}");
    let needs = job["needs"].as_str().unwrap_or("");
    let mut places = vec![format!("priority {}", job["priority"])];
    if !needs.is_empty() {
        places.push(format!("needs {needs}"));
    }
    if let Some(node) = job["near"].as_u64() {
        places.push(format!("near worker {node}"));
    }
    let _ = writeln!(out, "  {}", places.join(", "));
    out
}

/// The outcome of a task, for a person or as JSON.
fn result(told: &Value, json: bool) -> String {
    if json {
        return format!("{told}\n");
    }
    let mut line = format!("task {}: {}", told["task"], told["how"].as_str().unwrap_or("?"));
    if let Some(why) = told["why"].as_str() {
        let _ = write!(line, ", {why}");
    }
    if told["attempts"].as_u64().unwrap_or(1) > 1 {
        let _ = write!(line, ", after {} attempts", told["attempts"]);
    }
    line += "\n";
    let output = told["output"].as_str().unwrap_or("");
    for text in output.lines() {
        let _ = writeln!(line, "  {text}");
    }
    if told["is_cut"] == true {
        let how = if told["is_dropped"] == true { "dropped for want of room" } else { "cut" };
        let _ = writeln!(line, "  [{how}: it is {} bytes long]", told["output_bytes"]);
    }
    line
}

/// The task in the arguments of `concord explain`, such as `7.42`, if it is one.
#[must_use]
pub fn task(words: &[String]) -> Option<(u32, u32)> {
    let [word] = words else { return None };
    let (job, task) = word.split_once('.')?;
    Some((job.parse().ok()?, task.parse().ok()?))
}

/// `concord explain TASK`.
///
/// # Errors
/// One line for a person.
pub fn explain(config: &Path, (job, task): (u32, u32)) -> Result<(), Error> {
    let asked = OwnerSelector { config: config.to_path_buf(), group: None, owner: None };
    let way = Client::of(&asked)?.get(&format!("/jobs/{job}/tasks/{task}"))?;
    print(&explained(&way))
}

fn explained(way: &Value) -> String {
    let stands = way["stands"].as_str().unwrap_or("?");
    let mut out = format!("task {}.{} {stands}", way["job"], way["task"]);
    let _ = writeln!(out, ", attempt {}", way["attempts"]);
    let mut step = |name: &str, at: &Value, more: String| {
        if let Some(ms) = at.as_f64() {
            let _ = writeln!(out, "  {name:<12} {ms:>10.3} ms{more}");
        }
    };
    step("submitted", &json!(0.0), String::new());
    step("queued", &way["queued_ms"], format!("   ticket {}", way["ticket"]));
    step("handed out", &way["handed_out_ms"], String::new());
    let worker = way["worker"].as_str().map_or_else(String::new, |w| format!("   at worker {w}"));
    step("started", &way["started_ms"], worker);
    step("over", &way["over_ms"], String::new());
    for (why, times) in way["again"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "  again: {why}, {times} times");
    }
    if way["result"].is_object() {
        out += &result(&way["result"], false);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `job dead` does not list tasks that were cancelled.
    #[test]
    fn what_to_ask_next_tells_why_tasks_are_not_done() {
        let next = |name: &str| next_step("7", &json!({ "tasks": 3, "done": 2, name: 1 }));
        for dead in ["failed", "unknown", "lost"] {
            assert_eq!(next(dead), "; concord job dead 7");
        }
        assert_eq!(next("cancelled"), "; concord job results 7");
        assert_eq!(next("waiting"), "");
    }

    #[test]
    fn times_and_arrays_are_read_or_refused_with_one_line() {
        let us = |text| microseconds("--limit", text).map_err(|e| e.to_string());
        assert_eq!(us("2s"), Ok(2_000_000));
        assert_eq!((us("100us"), us("5ms"), us("1m")), (Ok(100), Ok(5_000), Ok(60_000_000)));
        assert_eq!(
            (us("1.5s"), us("1h"), us("0.25ms")),
            (Ok(1_500_000), Ok(3_600_000_000), Ok(250))
        );
        assert_eq!((us("1.9999999999us"), us("0.5h")), (Ok(1), Ok(1_800_000_000)));
        for wrong in ["", "2", "s", "-1s", "1.s", ".5s", "1.5.5s", "2d", "99999999999999999999s"] {
            assert!(us(wrong).unwrap_err().contains("1.5s, 2m or 1h"), "{wrong}");
        }
        assert_eq!(array("0-9999").unwrap(), Numbers::All(0, 9_999));
        assert_eq!(array("7-7").unwrap(), Numbers::All(7, 7));
        assert_eq!(array("9").unwrap(), Numbers::All(9, 9));
        let some = |numbers: &[u32]| Numbers::Some(numbers.to_vec());
        assert_eq!(array("0-9:4").unwrap(), some(&[0, 4, 8]));
        assert_eq!(array("7-9,1,5,8").unwrap(), some(&[1, 5, 7, 8, 9]));
        let backward = array("9-0").unwrap_err().to_string();
        assert_eq!(backward, "--array 9-0 goes backward: write --array 0-9");
        for wrong in ["", "a-b", "1-", "-1-2", "1-99999999999", "1-9:0", "1-9:", "1,,2"] {
            assert!(array(wrong).unwrap_err().to_string().contains("like 0-9999"), "{wrong}");
        }
    }

    /// Arguments are turned into the form that an owner reads, or refused with one line.
    #[test]
    fn dependencies_variables_and_lines_are_read() {
        assert_eq!(after("7").unwrap(), json!({ "job": 7, "when": "ok" }));
        assert_eq!(after("not-ok:8").unwrap(), json!({ "job": 8, "when": "not-ok" }));
        for wrong in ["", "x", "any:", "ever:7", "7:any"] {
            assert!(after(wrong).unwrap_err().to_string().contains("each:"), "{wrong}");
        }
        assert_eq!(variable("A=b=c").unwrap(), ("A".to_string(), "b=c".to_string()));
        assert!(variable("NO_SUCH_VARIABLE").unwrap_err().to_string().contains("=VALUE"));
        let text = |lines: &[&str]| lines_of(lines.iter().map(|l| l.as_bytes().to_vec()).collect());
        assert_eq!(text(&["a", "ü"]), ("lines", json!(["a", "ü"])));
        assert_eq!(lines_of(vec![vec![255, 10]]), ("lines_hex", json!(["ff0a"])));
        let path = std::env::temp_dir().join(format!("concord-lines-{}", std::process::id()));
        std::fs::write(&path, b"a\r\nb\n\nc\0d").unwrap();
        let read = |is_null| lines(&path, is_null).unwrap();
        let all: [&[u8]; 4] = [b"a", b"b", b"", b"c\0d"];
        assert_eq!(read(false), all);
        let all: [&[u8]; 2] = [b"a\r\nb\n\nc", b"d"];
        assert_eq!(read(true), all);
        std::fs::remove_file(&path).unwrap();
    }

    /// `concord submit --wait` of a single command ends with the command's own status.
    #[test]
    fn one_command_ends_with_its_own_status() {
        let status = |told: Value| exit_status(&told);
        assert_eq!(status(json!({"how": "failed", "status": 3})), Some(3));
        assert_eq!(status(json!({"how": "failed", "signal": 15})), Some(143));
        assert_eq!(status(json!({"how": "done", "status": 0})), None);
        assert_eq!(status(json!({"how": "unknown"})), None);
    }

    #[test]
    fn a_task_to_be_explained_is_told_from_a_command() {
        let words = |text: &str| text.split(' ').map(str::to_string).collect::<Vec<_>>();
        assert_eq!(task(&words("7.42")), Some((7, 42)));
        for command in ["GET 7.42", "PING", "7", "7.x", "1.2.3"] {
            assert_eq!(task(&words(command)), None, "{command}");
        }
    }

    #[test]
    fn progress_says_how_many_are_over_and_not_done() {
        let mut progress = Progress { is_shown: false, ..Progress::new("7", 3) };
        progress.count(&json!({"how": "done"}));
        assert_eq!(progress.line(), "job 7: 1 of 3 over (33%)");
        progress.count(&json!({"how": "lost"}));
        assert_eq!(progress.line(), "job 7: 2 of 3 over (66%), 1 not done");
    }

    #[test]
    fn what_is_shown_reads_well() {
        let told = json!({"task": 3, "how": "failed", "why": "exit status 2", "attempts": 4,
            "output": "a\nb", "output_bytes": 5_000, "is_cut": true});
        let shown = "task 3: failed, exit status 2, after 4 attempts\n  a\n  b\n  \
                     [cut: it is 5000 bytes long]\n";
        assert_eq!(result(&told, false), shown);
        let way = json!({"job": 7, "task": 42, "stands": "is over", "attempts": 2, "ticket": 9,
            "worker": "127.0.0.1:1", "queued_ms": 0.5, "handed_out_ms": null, "started_ms": 1.25,
            "over_ms": 2, "again": {"it failed": 1}});
        let text = explained(&way);
        assert!(text.starts_with("task 7.42 is over, attempt 2\n  submitted"), "{text}");
        assert!(text.contains("   ticket 9\n") && text.contains("again: it failed, 1 times"));
        assert!(!text.contains("handed out"), "{text}");
    }
}
