//! `concord submit`, `concord job` and `concord explain TASK`: what a person asks an owner.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use concord_runtime::{Context as _, Error, key_file};
use serde_json::{Value, json};

use super::args::{JobArgs, JobCommand, OwnerSelector, SubmitArgs};
use super::roles::key_path;
use crate::net::http;
use crate::rack::{Rack, in_file, pick_member};
use crate::status::print;

const ASK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an owner is asked to wait for outcomes, in ms; then it is asked again.
const WAIT_MS: u64 = 5_000;
/// How often it is looked whether the job before is over.
const AFTER_LOOK: Duration = Duration::from_millis(100);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Who asks an owner.
#[derive(Debug)]
pub struct Client {
    listen: SocketAddr,
    token: String,
}

impl Client {
    /// Of the owner that is asked.
    ///
    /// # Errors
    /// One line that says what is wrong with the rack file or the key file.
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
        Ok(Client { listen: own.reached(), token })
    }

    /// What whoever asks has to show.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Asks it, and gives what it answers.
    ///
    /// # Errors
    /// What it refused with, or that it does not answer.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<Value, Error> {
        let listen = self.listen;
        let answered = http(listen, method, path, &self.token, body, ASK_TIMEOUT);
        let (status, answer) = answered.map_err(|e| {
            Error::new(format!(
                "no answer of the owner at {listen}: {e}; `concord status` says how it is"
            ))
        })?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
        match status {
            200..300 => Ok(answer),
            _ => Err(Error::new(answer["error"].as_str().map_or_else(
                || format!("the owner at {listen} answered with {status}"),
                str::to_string,
            ))),
        }
    }

    fn get(&self, path: &str) -> Result<Value, Error> {
        self.ask("GET", path, &[])
    }

    /// Hands on all outcomes of a job that there are; if it waits, all that come, too.
    ///
    /// # Errors
    /// What it refused with, or that it does not answer.
    pub fn each_result(
        &self,
        job: &str,
        what: &str,
        waits: bool,
        mut each: impl FnMut(&Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut from = 0;
        loop {
            let wait_ms = if waits { WAIT_MS } else { 0 };
            let path = format!("/jobs/{job}/{what}?from={from}&wait_ms={wait_ms}");
            let page = self.get(&path)?;
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

/// `2s`, `500ms`, `100us`, `1m`: in microseconds.
fn microseconds(flag: &str, text: &str) -> Result<u64, Error> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[digits..] {
        "us" => Some(1),
        "ms" => Some(1_000),
        "s" => Some(1_000_000),
        "m" => Some(60_000_000),
        _ => None,
    };
    let number: Option<u64> = text[..digits].parse().ok();
    let time = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    time.ok_or_else(|| {
        Error::new(format!("{flag} {text:?} is not a time; write it like 100us, 500ms, 2s or 1m"))
    })
}

/// `0-9999`.
fn array(text: &str) -> Result<(u32, u32), Error> {
    let numbers = text
        .split_once('-')
        .and_then(|(first, last)| Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?)));
    let (first, last) = numbers.ok_or_else(|| {
        Error::new(format!("--array {text:?}: write the first and the last number, like 0-9999"))
    })?;
    if last < first {
        return Err(Error::new(format!(
            "--array {first}-{last} goes backward: write --array {last}-{first}"
        )));
    }
    Ok((first, last))
}

/// The lines of a file, or of standard input.
fn lines(path: &Path) -> Result<Vec<String>, Error> {
    let name = path.display();
    let read = |input: &mut dyn BufRead| input.lines().collect::<std::io::Result<Vec<String>>>();
    if path == Path::new("-") {
        return read(&mut std::io::stdin().lock()).cannot("read lines from standard input");
    }
    let file = std::fs::File::open(path).cannot(format!("read {name}"))?;
    read(&mut BufReader::new(file)).cannot(format!("read {name}"))
}

/// A job as an owner reads it.
fn job(args: &SubmitArgs) -> Result<Value, Error> {
    let mut job = json!({ "once": args.once, "retries": args.retries.unwrap_or(0) });
    job["attached"] = json!(args.wait && !args.detach);
    if let Some(text) = &args.array {
        job["array"] = json!(array(text)?);
    }
    if let Some(path) = &args.lines {
        job["lines"] = json!(lines(path)?);
    }
    if let Some(limit) = &args.limit {
        let ms = microseconds("--limit", limit)?.div_ceil(1_000);
        let ms = u32::try_from(ms).ok().filter(|ms| *ms > 0);
        let wrong = || Error::new(format!("--limit {limit}: from 1ms to 1,000 hours"));
        job["limit_ms"] = json!(ms.ok_or_else(wrong)?);
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
        job[what] = json!(args.command);
    }
    if let Some(directory) = &args.dir {
        job["directory"] = json!(directory);
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
    if let Some(before) = args.after {
        after(&owner, before)?;
    }
    let taken = owner.ask("POST", "/jobs", job.to_string().as_bytes())?;
    let number = taken["job"].to_string();
    print(&format!("job {number}: {} tasks\n", taken["tasks"]))?;
    if !args.wait {
        return Ok(ExitCode::SUCCESS);
    }
    let mut progress = Progress::new(&number, taken["tasks"].as_u64().unwrap_or(0));
    owner.each_result(&number, "results", true, |told| {
        progress.count(told);
        Ok(())
    })?;
    progress.end();
    let summary = owner.get(&format!("/jobs/{number}"))?;
    let is_done = summary["done"] == summary["tasks"];
    let more = if is_done { String::new() } else { format!("; concord job dead {number}") };
    print(&format!("job {number}: {}{more}\n", in_words(&summary)))?;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits until all tasks of a job are done.
fn after(owner: &Client, job: u32) -> Result<(), Error> {
    loop {
        let summary = owner.get(&format!("/jobs/{job}"))?;
        if summary["is_over"] == true {
            if summary["done"] == summary["tasks"] {
                return Ok(());
            }
            let how = in_words(&summary);
            return Err(Error::new(format!("--after {job}: {how}; nothing was submitted")));
        }
        std::thread::sleep(AFTER_LOOK);
    }
}

/// What a person sees of a job meanwhile, on a terminal's standard error.
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

/// "9990 done, 10 failed in 3.2 s".
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
        JobCommand::Results { job, json, wait } => {
            owner.each_result(job, "results", *wait, |told| print(&result(told, *json)))
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

/// How a task ended, for a person or a program.
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
        let _ = writeln!(line, "  [cut: it is {} bytes long]", told["output_bytes"]);
    }
    line
}

/// What `concord explain` was given, if it is a task: `7.42`.
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

    #[test]
    fn times_and_arrays_are_read_or_refused_with_one_line() {
        let us = |text| microseconds("--limit", text).map_err(|e| e.to_string());
        assert_eq!(us("2s"), Ok(2_000_000));
        assert_eq!((us("100us"), us("5ms"), us("1m")), (Ok(100), Ok(5_000), Ok(60_000_000)));
        for wrong in ["", "2", "s", "-1s", "1.5s", "2h", "99999999999999999999s"] {
            assert!(us(wrong).unwrap_err().contains("500ms, 2s or 1m"), "{wrong}");
        }
        assert_eq!(array("0-9999").unwrap(), (0, 9_999));
        assert_eq!(array("7-7").unwrap(), (7, 7));
        let backward = array("9-0").unwrap_err().to_string();
        assert_eq!(backward, "--array 9-0 goes backward: write --array 0-9");
        for wrong in ["", "9", "a-b", "1-", "-1-2", "1-99999999999"] {
            assert!(array(wrong).unwrap_err().to_string().contains("like 0-9999"), "{wrong}");
        }
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
