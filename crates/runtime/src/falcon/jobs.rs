//! Jobs as whoever submits them writes and reads them: JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use concord_core::{Instant, MS, Now};
use concord_scheduler::{
    Book, FoundJob, Job, JobRecord, Outcome, TASKS_OPEN_MAX, TaskOutcome, TaskSpec, Trace,
};
use concord_wire::falcon::{CLASSES_MAX, PRIORITIES_MAX, Parameters};
use concord_wire::tasks::{BODY_BYTES_MAX, Ended, Function};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::worker::CommandBody;

/// Characters of a job's title at most: a command may be [`BODY_BYTES_MAX`] bytes long, and a list
/// shows a thousand jobs.
const TITLE_CHARS_MAX: usize = 200;

/// How long tasks wait for the node near which they are to run, in ms, if nobody says otherwise.
const LOCALITY_WAIT_MS: u64 = 100;

/// What is submitted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Submitted {
    command: Option<Vec<String>>,
    handler: Option<Vec<String>>,
    directory: Option<String>,
    function: Option<String>,
    us: Option<u64>,
    array: Option<(u32, u32)>,
    lines: Option<Vec<String>>,
    once: bool,
    retries: u16,
    limit_ms: u32,
    priority: u8,
    needs: Option<String>,
    near: Option<u16>,
    locality_wait_ms: Option<u64>,
    /// It is cancelled if nobody asks for its results.
    attached: bool,
}

/// Which executors there are.
#[derive(Clone, Debug, Default)]
pub struct Executors {
    /// The names of their classes: the first is class 1.
    pub classes: Vec<String>,
    /// The workers' nodes.
    pub nodes: Vec<u16>,
}

impl Executors {
    /// The class of that name.
    fn class(&self, name: &str) -> Result<u8, String> {
        let found = (1..).zip(&self.classes).find(|(_, own)| *own == name);
        found.map(|(class, _)| class).ok_or_else(|| match self.classes.join(", ") {
            none if none.is_empty() => {
                format!("no worker has {name:?}: the rack file says of none what it has")
            }
            names => format!("no worker has {name:?}: there are {names}"),
        })
    }

    fn node(&self, node: u16) -> Result<u16, String> {
        let nodes: Vec<String> = self.nodes.iter().map(u16::to_string).collect();
        let why = || format!("there is no worker {node}: there are {}", nodes.join(", "));
        self.nodes.contains(&node).then_some(node).ok_or_else(why)
    }
}

/// Where a job's tasks are to run, and before which others.
fn places(submitted: &Submitted, executors: &Executors) -> Result<Job, String> {
    let Submitted { priority, needs, near, locality_wait_ms, .. } = submitted;
    if *priority >= PRIORITIES_MAX {
        return Err(format!("priority {priority}: from 0 to {}", PRIORITIES_MAX - 1));
    }
    let ms = locality_wait_ms.unwrap_or(LOCALITY_WAIT_MS);
    if locality_wait_ms.is_some() && near.is_none() {
        return Err("locality_wait_ms is for tasks that are to run near a node: say near".into());
    }
    Ok(Job {
        priority: *priority,
        needs: needs.as_deref().map_or(Ok(0), |name| executors.class(name))?,
        near: near.map(|node| executors.node(node)).transpose()?,
        locality_wait_ns: ms.saturating_mul(MS),
        ..Job::default()
    })
}

/// A job that was read, and what is kept of it for whoever asks.
#[derive(Debug)]
pub(super) struct Read {
    pub job: Job,
    pub title: String,
    pub first: u32,
    /// The name of the class that it needs.
    pub needs: String,
    pub attached: bool,
}

/// What a journal has of a job beside its tasks.
type Note = (String, u32, String, bool);

/// A job that was found in a journal goes into the book, with how its tasks ended; whether it is
/// attached.
pub(super) fn found(book: &mut Book, now: Now, found: &FoundJob) -> bool {
    let (title, first, needs, is_attached): Note =
        postcard::from_bytes(&found.note).unwrap_or_default();
    // Clocks of another start of this host say nothing: how long ago it was the wall clock says.
    let age_ms = now.unix_ms.saturating_sub(found.unix_ms);
    let instant = Instant(now.instant.0.saturating_sub(age_ms.saturating_mul(MS)));
    let taken_at = Now { instant, unix_ms: found.unix_ms };
    let Job { tasks, once, retries, limit_ms, priority, near, .. } = &found.job;
    let mut record = JobRecord::new(found.jid, title, tasks.len() as u32, taken_at);
    (record.first, record.once) = (first, *once);
    (record.retries, record.limit_ms) = (*retries, *limit_ms);
    (record.priority, record.needs, record.near) = (*priority, needs, *near);
    book.open(record);
    for told in &found.outcomes {
        let over_at = instant.after(told.over_ns);
        book.note(TaskOutcome {
            jid: found.jid,
            tid: told.tid,
            attempts: told.attempts,
            outcome: told.outcome.clone(),
            output_bytes: told.output_bytes,
            trace: Trace { taken_at: instant, over_at, ..Trace::default() },
        });
    }
    is_attached
}

/// Finds the class that a job of a journal needs by its name: classes have the numbers that the
/// rack file gives them now. `Some`: no worker has that any more, and its tasks wait in a queue
/// that nobody asks.
///
/// # Errors
/// One line, where there is no such queue.
pub(super) fn find_class(
    job: &mut FoundJob,
    executors: &Executors,
) -> Result<Option<String>, String> {
    let (_, _, needs, _): Note = postcard::from_bytes(&job.note).unwrap_or_default();
    if needs.is_empty() {
        return Ok(None);
    }
    if let Ok(class) = executors.class(&needs) {
        job.job.needs = class;
        return Ok(None);
    }
    let free = u8::try_from(executors.classes.len() + 1).ok().filter(|class| *class < CLASSES_MAX);
    let jid = job.jid;
    job.job.needs = free.ok_or_else(|| {
        format!("job {jid} needs {needs:?}, which no worker of the rack file has any more")
    })?;
    Ok(Some(needs))
}

impl Read {
    /// What a journal has of it beside its tasks.
    pub(super) fn note(&self) -> Vec<u8> {
        postcard::to_allocvec(&(&self.title, self.first, &self.needs, self.attached))
            .unwrap_or_default()
    }

    /// Its record, once it was taken.
    pub(super) fn record(&self, jid: u32, tasks: u32, now: Now) -> JobRecord {
        let mut record = JobRecord::new(jid, self.title.clone(), tasks, now);
        record.first = self.first;
        record.once = self.job.once;
        record.retries = self.job.retries;
        record.limit_ms = self.job.limit_ms;
        record.priority = self.job.priority;
        record.needs.clone_from(&self.needs);
        record.near = self.job.near;
        record
    }
}

/// Reads a job.
///
/// # Errors
/// One line that says what is wrong with it.
pub(super) fn read(body: &[u8], executors: &Executors) -> Result<Read, String> {
    let submitted: Submitted =
        serde_json::from_slice(body).map_err(|e| format!("not a job: {e}"))?;
    let first = submitted.array.map_or(0, |(first, _)| first);
    let What { function, body: shared, title } = what(&submitted, first)?;
    let us = submitted.us.unwrap_or(0).to_be_bytes();
    let is_timed = matches!(function, Function::Sleep | Function::Spin);
    if submitted.once && submitted.retries > 0 {
        return Err("a task that runs at most once has no retries: say once or retries".to_string());
    }
    let places = places(&submitted, executors)?;
    let texts = texts(&submitted)?;
    let mut long = BTreeMap::new();
    let mut tasks = Vec::with_capacity(texts.len());
    for (tid, text) in (0..).zip(&texts) {
        let bytes = if is_timed { &us[..] } else { text.as_bytes() };
        let parameters = match Parameters::new(bytes) {
            Some(parameters) => parameters,
            None => {
                long.insert(tid, Arc::from(bytes));
                Parameters::default()
            }
        };
        tasks.push(TaskSpec { function: function.number(), parameters });
    }
    let Submitted { once, retries, limit_ms, needs, attached, .. } = submitted;
    let job = Job { tasks, body: shared, long, once, retries, limit_ms, ..places };
    Ok(Read { job, title, first, needs: needs.unwrap_or_default(), attached })
}

/// What its tasks execute, what they share, and how a person names it.
struct What {
    function: Function,
    body: Option<Arc<[u8]>>,
    title: String,
}

fn what(submitted: &Submitted, first: u32) -> Result<What, String> {
    let named = |function: Function, name: &str| {
        let us = submitted.us.map_or_else(String::new, |us| format!(" {us} us"));
        Ok(What { function, body: None, title: format!("{name}{us}") })
    };
    let (argv, function) = match (&submitted.command, &submitted.handler) {
        (Some(_), Some(_)) => return Err("a job has a command or a handler, not both".to_string()),
        (None, Some(argv)) => (Some(argv), Function::Handler),
        (command, None) => (command.as_ref(), Function::Command),
    };
    match (argv, submitted.function.as_deref()) {
        (Some(_), Some(_)) => Err("a job has a command or a function, not both".to_string()),
        (None, Some("no-op")) => named(Function::NoOp, "no-op"),
        (None, Some("sleep")) => named(Function::Sleep, "sleep"),
        (None, Some("spin")) => named(Function::Spin, "spin"),
        (None, Some(other)) => {
            Err(format!("there is no function {other:?}: no-op, sleep, spin, or a command"))
        }
        (None, None) => Err("a job has a command or a function".to_string()),
        (Some(argv), None) => {
            if argv.first().is_none_or(String::is_empty) {
                return Err("the command is empty".to_string());
            }
            if argv.iter().any(|arg| arg.contains('\0')) {
                return Err(
                    "the command has a zero byte, which no program can be given".to_string()
                );
            }
            let title = title_of(argv);
            let body =
                CommandBody { argv: argv.clone(), directory: submitted.directory.clone(), first };
            let body = postcard::to_allocvec(&body).map_err(|e| e.to_string())?;
            if body.len() > BODY_BYTES_MAX {
                let length = body.len();
                return Err(format!(
                    "the command is {length} bytes long, of at most {BODY_BYTES_MAX}"
                ));
            }
            Ok(What { function, body: Some(body.into()), title })
        }
    }
}

/// What stands for `{}` in each task.
fn texts(submitted: &Submitted) -> Result<Vec<String>, String> {
    let most = |count: u64| {
        let is_too_many = count > TASKS_OPEN_MAX as u64;
        is_too_many
            .then(|| format!("{count} tasks, of at most {TASKS_OPEN_MAX}: submit several jobs"))
    };
    match (submitted.array, &submitted.lines) {
        (Some(_), Some(_)) => Err("a job has an array or lines, not both".to_string()),
        (None, None) => Ok(vec!["0".to_string()]),
        (Some((first, last)), None) => {
            if last < first {
                return Err(format!(
                    "the array {first}-{last} goes backward: write {last}-{first}"
                ));
            }
            most(u64::from(last - first) + 1).map_or(Ok(()), Err)?;
            Ok((first..=last).map(|index| index.to_string()).collect())
        }
        (None, Some(lines)) => {
            most(lines.len() as u64).map_or(Ok(()), Err)?;
            if lines.is_empty() {
                return Err("no lines: there is nothing to do".to_string());
            }
            for (at, line) in lines.iter().enumerate() {
                let (number, length) = (at + 1, line.len());
                if length > BODY_BYTES_MAX {
                    return Err(format!(
                        "line {number} is {length} bytes long, of at most {BODY_BYTES_MAX}"
                    ));
                }
                if line.contains('\0') {
                    return Err(format!("line {number} has a zero byte"));
                }
            }
            Ok(lines.clone())
        }
    }
}

/// A command as a list shows it: its words, cut where they are too long.
fn title_of(argv: &[String]) -> String {
    let mut title = argv.join(" ");
    if let Some((end, _)) = title.char_indices().nth(TITLE_CHARS_MAX) {
        title.truncate(end);
        title.push_str("...");
    }
    title
}

/// A job in a line.
pub(super) fn summary(job: &JobRecord, running: usize, now: Now) -> Value {
    let end = job.over_at.unwrap_or(now.instant);
    let c = job.counts;
    json!({
        "job": job.jid,
        "title": job.title,
        "tasks": job.tasks,
        "first": job.first,
        "is_over": job.over_at.is_some(),
        "running": running,
        "waiting": (job.tasks - c.over()) as usize - running,
        "done": c.done,
        "failed": c.failed,
        "unknown": c.unknown,
        "lost": c.lost,
        "cancelled": c.cancelled,
        "once": job.once,
        "retries": job.retries,
        "limit_ms": job.limit_ms,
        "priority": job.priority,
        "needs": job.needs,
        "near": job.near,
        "taken_unix_ms": job.taken_at.unix_ms,
        "seconds": end.since(job.taken_at.instant) as f64 / 1e9,
    })
}

/// How a task ended: a word, what a person reads, and what a command gave.
fn ended(outcome: &Outcome) -> (&'static str, Option<String>, &[u8]) {
    match outcome {
        Outcome::Done(output) => ("done", None, output),
        Outcome::Failed(ended, output) => {
            let why = match ended {
                Ended::Done | Ended::Failed => None,
                Ended::TimedOut => Some("took longer than its limit".to_string()),
                Ended::Exited(127) => Some("exit status 127: no such command".to_string()),
                Ended::Exited(126) => Some("exit status 126: cannot be executed".to_string()),
                Ended::Exited(status) => Some(format!("exit status {status}")),
                Ended::Killed(signal) => Some(format!("killed by signal {signal}")),
            };
            ("failed", why, output)
        }
        Outcome::Unknown => {
            let why = "its worker went silent: it may have been done, and is not run again";
            ("unknown", Some(why.to_string()), &[])
        }
        Outcome::Lost => ("lost", Some("too many workers went silent running it".to_string()), &[]),
        Outcome::Cancelled => ("cancelled", None, &[]),
    }
}

/// How a task of a job ended.
pub(super) fn result(job: &JobRecord, told: &TaskOutcome) -> Value {
    let (how, why, output) = ended(&told.outcome);
    let mut out = Map::new();
    let mut set = |name: &str, value: Value| out.insert(name.to_string(), value);
    set("task", job.first.saturating_add(told.tid).into());
    set("how", how.into());
    set("attempts", told.attempts.into());
    if let Some(why) = why {
        set("why", why.into());
    }
    match &told.outcome {
        Outcome::Failed(Ended::Exited(status), _) => _ = set("status", (*status).into()),
        Outcome::Failed(Ended::Killed(signal), _) => _ = set("signal", (*signal).into()),
        Outcome::Done(_) => _ = set("status", 0.into()),
        Outcome::Failed(..) | Outcome::Unknown | Outcome::Lost | Outcome::Cancelled => {}
    }
    if told.output_bytes > 0 {
        set("output", String::from_utf8_lossy(output).into());
        set("output_bytes", told.output_bytes.into());
        set("is_cut", (told.output_bytes > output.len() as u64).into());
    }
    Value::Object(out)
}

/// A task's way: when what was, in ms after its job was taken.
pub(super) fn way(task: u32, jid: u32, stands: &str, attempts: u16, trace: &Trace) -> Value {
    let since = |at: Instant| (at != Instant(0)).then(|| at.since(trace.taken_at) as f64 / 1e6);
    let again: Map<String, Value> = trace
        .again
        .each()
        .filter(|(_, times)| *times > 0)
        .map(|(why, times)| (why.to_string(), times.into()))
        .collect();
    let worker = (trace.started_at != Instant(0)).then(|| trace.worker.to_string());
    json!({
        "job": jid,
        "task": task,
        "stands": stands,
        "attempts": attempts,
        "ticket": (trace.queued_at != Instant(0)).then_some(trace.ticket),
        "worker": worker,
        "queued_ms": since(trace.queued_at),
        "handed_out_ms": since(trace.passed_at),
        "started_ms": since(trace.started_at),
        "over_ms": since(trace.over_at),
        "again": again,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_core::{Machine as _, SessionId};
    use concord_scheduler::{Found, Journal, JournaledOwner, OwnerConfig};

    /// Two workers, one of them with a GPU.
    fn read(body: &[u8]) -> Result<Read, String> {
        let executors = Executors { classes: vec!["gpu".into()], nodes: vec![1, 2] };
        super::read(body, &executors)
    }

    #[test]
    fn where_tasks_are_to_run_is_read() {
        let text = br#"{"function": "no-op", "priority": 3, "needs": "gpu", "near": 2}"#;
        let found = read(text).unwrap();
        assert_eq!((found.job.priority, found.job.needs, found.job.near), (3, 1, Some(2)));
        assert_eq!((found.job.locality_wait_ns, &found.needs[..]), (100 * MS, "gpu"));
        let of = |field: &str| refused(&format!("{{\"function\": \"no-op\", {field}}}"));
        assert_eq!(of(r#""needs": "tpu""#), r#"no worker has "tpu": there are gpu"#);
        assert_eq!(of(r#""near": 7"#), "there is no worker 7: there are 1, 2");
        assert_eq!(of(r#""priority": 4"#), "priority 4: from 0 to 3");
        assert!(of(r#""locality_wait_ms": 4"#).contains("say near"));
    }

    #[test]
    fn bug_21_35_a_job_of_a_journal_needs_a_class_by_its_name() {
        let classes = |names: &[&str]| {
            let classes = names.iter().map(ToString::to_string).collect();
            Executors { classes, nodes: vec![1] }
        };
        let text = br#"{"function": "no-op", "needs": "gpu"}"#;
        let taken = super::read(text, &classes(&["gpu"])).unwrap();
        let addr = concord_wire::Addr { ip: 1, port: 1 };
        let config = OwnerConfig::new(SessionId(1), addr, addr);
        let (journal, mut bytes) = Journal::create(1);
        let mut owner = JournaledOwner::resume(config, Now::default(), journal, &Found::default());
        let jid = owner.submit(Now::default(), taken.job.clone(), &taken.note()).unwrap();
        while let Some(persist) = owner.poll_persist() {
            bytes.extend(persist.what);
            owner.persisted(Now::default(), persist.number, &mut Vec::new());
        }
        let found = Journal::recover(&bytes).unwrap().unwrap();
        let needs = |names: &[&str]| {
            let mut job = found.jobs[&jid].clone();
            find_class(&mut job, &classes(names)).map(|gone| (job.job.needs, gone))
        };
        assert_eq!(needs(&["gpu"]), Ok((1, None)));
        assert_eq!(needs(&["cuda", "gpu"]), Ok((2, None)));
        assert_eq!(needs(&["cuda"]), Ok((2, Some("gpu".to_string()))));
        let all = ["a", "b", "c", "d", "e", "f", "g"];
        assert!(needs(&all).unwrap_err().starts_with("job 1 needs \"gpu\""));
    }

    fn refused(text: &str) -> String {
        let line = read(text.as_bytes()).map(|read| read.title).unwrap_err();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn jobs_are_read() {
        let text =
            r#"{"command": ["echo", "{}"], "array": [98, 101], "retries": 3, "limit_ms": 9}"#;
        let read_job = read(text.as_bytes()).unwrap();
        let job = &read_job.job;
        assert_eq!((job.tasks.len(), job.retries, job.limit_ms, job.once), (4, 3, 9, false));
        assert_eq!((&read_job.title[..], read_job.first), ("echo {}", 98));
        assert_eq!(job.tasks[2].parameters.bytes(), b"100");
        let long = json!({ "command": ["echo", "ü".repeat(1000)] }).to_string();
        let title = format!("echo {}...", "ü".repeat(195));
        assert_eq!(read(long.as_bytes()).unwrap().title, title);
        let body: CommandBody = postcard::from_bytes(job.body.as_ref().unwrap()).unwrap();
        assert_eq!((&body.argv[..], body.first), (&["echo".to_string(), "{}".to_string()][..], 98));
        let text = r#"{"command": ["x"], "lines": ["short", "longer than sixteen bytes"]}"#;
        let job = read(text.as_bytes()).unwrap().job;
        assert_eq!(job.tasks[0].parameters.bytes(), b"short");
        assert_eq!(job.long.get(&1).map(|b| b.len()), Some(25));
        let text = br#"{"handler": ["serve"], "lines": ["a"]}"#;
        assert_eq!(read(text).unwrap().job.tasks[0].function, Function::Handler.number());
        let job = read(br#"{"function": "sleep", "us": 1500}"#).unwrap().job;
        assert_eq!((job.tasks.len(), job.tasks[0].function), (1, Function::Sleep.number()));
        assert_eq!(job.tasks[0].parameters.bytes(), 1_500u64.to_be_bytes());
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_one_line() {
        assert!(refused("{").starts_with("not a job: EOF"));
        assert!(refused(r#"{"comand": []}"#).contains("unknown field `comand`"));
        assert!(refused("{}").contains("a command or a function"));
        assert!(refused(r#"{"command": ["a"], "handler": ["b"]}"#).contains("not both"));
        assert!(refused(r#"{"command": []}"#).contains("empty"));
        assert!(refused(r#"{"command": ["a\u0000"]}"#).contains("zero byte"));
        assert!(refused(r#"{"function": "dance"}"#).contains("no-op, sleep, spin"));
        let backward = refused(r#"{"function": "no-op", "array": [9, 0]}"#);
        assert_eq!(backward, "the array 9-0 goes backward: write 0-9");
        assert!(refused(r#"{"function": "no-op", "array": [0, 4294967295]}"#).contains("1048576"));
        assert!(refused(r#"{"function": "no-op", "lines": []}"#).contains("nothing to do"));
        assert!(
            refused(r#"{"function": "no-op", "once": true, "retries": 1}"#).contains("retries")
        );
        let long = "x".repeat(BODY_BYTES_MAX + 1);
        let line = refused(&format!(r#"{{"command": ["x"], "lines": ["y", "{long}"]}}"#));
        assert_eq!(line, "line 2 is 1048577 bytes long, of at most 1048576");
        assert!(refused(&format!(r#"{{"command": ["{long}"]}}"#)).contains("the command is 10485"));
    }
}
