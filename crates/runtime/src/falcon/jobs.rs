//! Jobs in JSON, as clients submit and read them.

use std::collections::BTreeMap;
use std::sync::Arc;

use concord_core::{Instant, MS, Now};
use concord_scheduler::{
    Book, FoundJob, Job, JobRecord, Outcome, TASKS_OPEN_MAX, TaskOutcome, TaskSpec, Trace,
};
use concord_wire::Addr;
use concord_wire::falcon::{CLASSES_MAX, PRIORITIES_MAX, Parameters};
use concord_wire::tasks::{BODY_BYTES_MAX, Ended, Function};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::worker::CommandBody;

/// The number of characters of a job's title: a command may be [`BODY_BYTES_MAX`] bytes long, and a
/// list shows a thousand jobs.
const TITLE_CHARS_MAX: usize = 200;

/// The default delay in ms before a failed task is tried again; it doubles with each further
/// attempt.
const RETRY_DELAY_MS: u64 = 500;

/// The default time in ms that tasks wait for the node near which they are to run.
const LOCALITY_WAIT_MS: u64 = 100;

/// The body of a submission.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Submitted {
    command: Option<Vec<String>>,
    handler: Option<Vec<String>>,
    directory: Option<String>,
    function: Option<String>,
    us: Option<u64>,
    array: Option<(u32, u32)>,
    /// The tasks' numbers, if they are not consecutive.
    numbers: Option<Vec<u32>>,
    lines: Option<Vec<String>>,
    /// The lines if one of them is not text: each in hexadecimal digits.
    lines_hex: Option<Vec<String>>,
    /// Variables of its tasks' environment.
    environment: BTreeMap<String, String>,
    grace_ms: u32,
    retry_delay_ms: Option<u64>,
    running_max: u32,
    after: Vec<After>,
    once: bool,
    retries: u16,
    limit_ms: u32,
    priority: u8,
    needs: Option<String>,
    near: Option<u16>,
    locality_wait_ms: Option<u64>,
    /// Whether the job is cancelled when no client asks for its results any more.
    attached: bool,
    /// A name chosen by the client: a second submission with the same key is taken for the first
    /// one, sent again.
    key: String,
}

/// The condition under which a job that runs after another one begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum When {
    /// All tasks of the other job succeeded.
    #[default]
    Ok,
    /// All tasks of the other job are over.
    Any,
    /// All tasks of the other job are over, and some did not succeed.
    NotOk,
    /// Each task begins when the other job's task in the same place has succeeded.
    Each,
}

/// The job after which another one runs, and on which condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct After {
    pub job: u32,
    #[serde(default)]
    pub when: When,
}

/// The executors that exist.
#[derive(Clone, Debug, Default)]
pub struct Executors {
    /// The names of their classes. The first is class 1.
    pub classes: Vec<String>,
    /// The workers of the rack file: their nodes and addresses.
    pub workers: BTreeMap<u16, Addr>,
}

impl Executors {
    /// The number of the class with this name.
    pub(super) fn class(&self, name: &str) -> Result<u8, String> {
        let found = (1..).zip(&self.classes).find(|(_, own)| *own == name);
        found.map(|(class, _)| class).ok_or_else(|| match self.classes.join(", ") {
            none if none.is_empty() => {
                format!("no worker has {name:?}: the rack file says of none what it has")
            }
            names => format!("no worker has {name:?}: there are {names}"),
        })
    }

    fn node(&self, node: u16) -> Result<u16, String> {
        let nodes: Vec<String> = self.workers.keys().map(u16::to_string).collect();
        let why = || format!("there is no worker {node}: there are {}", nodes.join(", "));
        self.workers.contains_key(&node).then_some(node).ok_or_else(why)
    }
}

/// Determines where a job's tasks are to run, and their priority.
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

/// A job that was read, with what is kept of it for later requests.
#[derive(Debug)]
pub(super) struct Read {
    pub job: Job,
    pub title: String,
    pub first: u32,
    /// The name of the class of executors that it needs.
    pub needs: String,
    pub attached: bool,
    pub key: String,
    /// The numbers of its tasks, if they are not consecutive from `first`.
    pub numbers: Vec<u32>,
    /// The jobs after which it runs.
    pub after: Vec<After>,
}

/// The largest number of characters of a key.
pub(super) const KEY_CHARS_MAX: usize = 64;

/// The part of a job that a journal keeps beside its tasks.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Note {
    title: String,
    first: u32,
    needs: String,
    is_attached: bool,
    pub key: String,
    numbers: Vec<u32>,
    pub after: Vec<After>,
    retry_ns: u64,
    running_max: u32,
}

/// The note as earlier versions wrote it.
#[derive(Default, Deserialize)]
struct KeyedNote(String, u32, String, bool, String);
#[derive(Default, Deserialize)]
struct FirstNote(String, u32, String, bool);

impl Note {
    /// The note of a job in a journal.
    pub(super) fn of(job: &FoundJob) -> Note {
        if let Ok(note) = postcard::from_bytes(&job.note) {
            return note;
        }
        let KeyedNote(title, first, needs, is_attached, key) = postcard::from_bytes(&job.note)
            .unwrap_or_else(|_| {
                let FirstNote(title, first, needs, is_attached) =
                    postcard::from_bytes(&job.note).unwrap_or_default();
                KeyedNote(title, first, needs, is_attached, String::new())
            });
        Note { title, first, needs, is_attached, key, ..Note::default() }
    }

    /// Restores the rest of a job of a journal. It waits again for the jobs after which it runs.
    pub(super) fn complete(&self, job: &mut FoundJob) {
        job.job.retry_ns = self.retry_ns;
        job.job.running_max = self.running_max;
        job.job.is_held = !self.after.is_empty();
    }
}

/// Adds a job of a journal to the book, with the outcomes of its tasks. Returns whether it is
/// attached.
pub(super) fn found(book: &mut Book, now: Now, found: &FoundJob) -> bool {
    let Note { title, first, needs, is_attached, numbers, .. } = Note::of(found);
    // Monotonic clocks of an earlier start of this host are not comparable: the job's age follows
    // from the wall clock.
    let age_ms = now.unix_ms.saturating_sub(found.unix_ms);
    let instant = Instant(now.instant.0.saturating_sub(age_ms.saturating_mul(MS)));
    let taken_at = Now { instant, unix_ms: found.unix_ms };
    let Job { tasks, once, retries, limit_ms, priority, near, .. } = &found.job;
    let mut record = JobRecord::new(found.jid, title, tasks.len() as u32, taken_at);
    (record.first, record.numbers, record.once) = (first, numbers, *once);
    (record.retries, record.limit_ms) = (*retries, *limit_ms);
    (record.priority, record.needs, record.near) = (*priority, needs, *near);
    book.open(record);
    let is_read = is_attached && !found.is_over();
    if is_read {
        book.attach(found.jid);
    }
    for (number, told) in found.outcomes.iter().enumerate() {
        if is_read {
            // If there is no room for all outcomes, the reader needs the first ones sooner than the
            // last ones.
            book.read(found.jid, number);
        }
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
    book.unread(found.jid);
    is_attached
}

/// Finds the class that a job of a journal needs, by its name: classes have the numbers of the
/// current rack file. `Some` if no worker has that class any more, so that the job's tasks would
/// wait in a queue that none asks.
///
/// # Errors
/// One line, if there is no such queue.
pub(super) fn find_class(
    job: &mut FoundJob,
    executors: &Executors,
) -> Result<Option<String>, String> {
    let needs = Note::of(job).needs;
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
    /// The part of the job that a journal keeps beside its tasks.
    pub(super) fn note(&self) -> Vec<u8> {
        let note = Note {
            title: self.title.clone(),
            first: self.first,
            needs: self.needs.clone(),
            is_attached: self.attached,
            key: self.key.clone(),
            numbers: self.numbers.clone(),
            after: self.after.clone(),
            retry_ns: self.job.retry_ns,
            running_max: self.job.running_max,
        };
        postcard::to_allocvec(&note).unwrap_or_default()
    }

    /// Its record, once it was accepted.
    pub(super) fn record(&self, jid: u32, tasks: u32, now: Now) -> JobRecord {
        let mut record = JobRecord::new(jid, self.title.clone(), tasks, now);
        record.first = self.first;
        record.numbers.clone_from(&self.numbers);
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
    let mut submitted: Submitted =
        serde_json::from_slice(body).map_err(|e| format!("not a job: {e}"))?;
    let first = submitted.array.map_or(0, |(first, _)| first);
    let texts = texts(&mut submitted)?;
    let What { function, body: shared, title } = what(&submitted, first)?;
    let us = submitted.us.unwrap_or(0).to_be_bytes();
    let is_timed = matches!(function, Function::Sleep | Function::Spin);
    if submitted.once && submitted.retries > 0 {
        return Err("a task that runs at most once has no retries: say once or retries".to_string());
    }
    if submitted.key.chars().count() > KEY_CHARS_MAX {
        return Err(format!("the key is longer than {KEY_CHARS_MAX} characters"));
    }
    let places = places(&submitted, executors)?;
    let mut long = BTreeMap::new();
    let mut tasks = Vec::with_capacity(texts.len());
    for (tid, text) in (0..).zip(&texts) {
        let bytes = if is_timed { &us[..] } else { &text[..] };
        let parameters = match Parameters::new(bytes) {
            Some(parameters) => parameters,
            None => {
                long.insert(tid, Arc::from(bytes));
                Parameters::default()
            }
        };
        tasks.push(TaskSpec { function: function.number(), parameters });
    }
    let Submitted { once, retries, limit_ms, needs, attached, key, running_max, after, .. } =
        submitted;
    let retry_ns = submitted.retry_delay_ms.unwrap_or(RETRY_DELAY_MS).saturating_mul(MS);
    let is_held = !after.is_empty();
    let job = Job {
        tasks,
        body: shared,
        long,
        once,
        retries,
        limit_ms,
        retry_ns,
        running_max,
        is_held,
        ..places
    };
    let numbers = submitted.numbers.unwrap_or_default();
    let needs = needs.unwrap_or_default();
    Ok(Read { job, title, first, needs, attached, key, numbers, after })
}

/// The command that its tasks execute, the settings that they share, and the job's title.
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
            // Without an array or lines, braces stand for themselves.
            let has_parameters = submitted.array.is_some()
                || submitted.numbers.is_some()
                || submitted.lines.is_some()
                || submitted.lines_hex.is_some();
            let is_filled = has_parameters || submitted.handler.is_some();
            let word = |arg: &String| match is_filled {
                true => arg.clone(),
                false => arg.replace("{}", "{{}}"),
            };
            let argv = argv.iter().map(word).collect();
            for (name, value) in &submitted.environment {
                if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                    return Err(format!("{name:?} is no variable of an environment"));
                }
            }
            let body = CommandBody {
                argv,
                directory: submitted.directory.clone(),
                first,
                numbers: submitted.numbers.clone().unwrap_or_default(),
                environment: submitted.environment.clone().into_iter().collect(),
                grace_ms: submitted.grace_ms,
            };
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

/// Decodes hexadecimal digits.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    text.len().is_multiple_of(2).then(|| text.as_bytes().chunks(2).map(pair).collect())?
}

/// Encodes bytes as hexadecimal digits.
fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
    text
}

/// The parameters of each task, which replace `{}`.
fn texts(submitted: &mut Submitted) -> Result<Vec<Vec<u8>>, String> {
    let most = |count: u64| {
        let is_too_many = count > TASKS_OPEN_MAX as u64;
        is_too_many
            .then(|| format!("{count} tasks, of at most {TASKS_OPEN_MAX}: submit several jobs"))
    };
    let (lines, hex) = (submitted.lines.take(), submitted.lines_hex.take());
    // Whether there are lines determines the meaning of braces.
    submitted.lines = lines.is_some().then(Vec::new);
    submitted.lines_hex = hex.is_some().then(Vec::new);
    let numbers = match (submitted.array, &submitted.numbers) {
        (Some(_), Some(_)) => return Err("a job has an array or numbers, not both".to_string()),
        (Some((first, last)), None) if last < first => {
            return Err(format!("the array {first}-{last} goes backward: write {last}-{first}"));
        }
        (Some((first, last)), None) => Some((u64::from(last - first) + 1, first..=last)),
        (None, Some(numbers)) if numbers.is_empty() => {
            return Err("no numbers: there is nothing to do".to_string());
        }
        (None, Some(numbers)) => {
            most(numbers.len() as u64).map_or(Ok(()), Err)?;
            if !numbers.is_sorted_by(|one, next| one < next) {
                return Err("numbers are to be different, and the smallest first".to_string());
            }
            let text = |number: &u32| number.to_string().into_bytes();
            return match (lines, hex) {
                (None, None) => Ok(numbers.iter().map(text).collect()),
                _ => Err("a job has numbers or lines, not both".to_string()),
            };
        }
        (None, None) => None,
    };
    let lines = match (numbers, lines, hex) {
        (None, None, None) => return Ok(vec![b"0".to_vec()]),
        (Some((count, numbers)), None, None) => {
            most(count).map_or(Ok(()), Err)?;
            return Ok(numbers.map(|number| number.to_string().into_bytes()).collect());
        }
        (None, Some(lines), None) => lines.into_iter().map(String::into_bytes).collect(),
        (None, None, Some(hex)) => {
            let lines: Option<Vec<Vec<u8>>> = hex.iter().map(|text| from_hex(text)).collect();
            lines.ok_or("a line of lines_hex is not an even number of hexadecimal digits")?
        }
        _ => return Err("a job has an array or lines, not both".to_string()),
    };
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
        if line.contains(&0) {
            return Err(format!("line {number} has a zero byte"));
        }
    }
    Ok(lines)
}

/// A command for a list: its words, cut if they are too long.
fn title_of(argv: &[String]) -> String {
    let mut title = argv.join(" ");
    if let Some((end, _)) = title.char_indices().nth(TITLE_CHARS_MAX) {
        title.truncate(end);
        title.push_str("...");
    }
    title
}

/// The summary of a job for a list.
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

/// A task's outcome: a word, an explanation for a person, and its output.
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
        Outcome::Lost => {
            let why = "two workers or more went silent while they ran it: it is not tried again";
            ("lost", Some(why.to_string()), &[])
        }
        Outcome::Cancelled => ("cancelled", None, &[]),
    }
}

/// The outcome of a task, in JSON.
pub(super) fn result(job: &JobRecord, told: &TaskOutcome) -> Value {
    let (how, mut why, output) = ended(&told.outcome);
    if told.outcome == Outcome::Cancelled && !job.cancelled_why.is_empty() {
        why = Some(job.cancelled_why.to_string());
    }
    let mut out = Map::new();
    let mut set = |name: &str, value: Value| out.insert(name.to_string(), value);
    set("task", job.number(told.tid).into());
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
    let Trace { started_at, over_at, .. } = told.trace;
    if started_at != Instant(0) {
        set("ran_ms", (over_at.since(started_at) as f64 / 1e6).into());
    }
    if told.output_bytes > 0 {
        let text = String::from_utf8_lossy(output);
        if matches!(text, std::borrow::Cow::Owned(_)) {
            set("output_hex", to_hex(output).into());
        }
        set("output", text.into());
        set("output_bytes", told.output_bytes.into());
        set("is_cut", (told.output_bytes > output.len() as u64).into());
        if output.is_empty() {
            set("is_dropped", true.into());
        }
    }
    Value::Object(out)
}

/// The times of a task's events in JSON, in ms after its job was accepted.
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
        let executors = Executors {
            classes: vec!["gpu".into()],
            workers: [1, 2].map(|n| (n, Addr::default())).into(),
        };
        super::read(body, &executors)
    }

    /// `python3 -c 'd = {}'` is what it says.
    #[test]
    fn bug_21_56_without_array_and_lines_braces_are_braces() {
        let argv = |text: &str| {
            let job = read(text.as_bytes()).unwrap().job;
            postcard::from_bytes::<CommandBody>(job.body.as_ref().unwrap()).unwrap().argv
        };
        assert_eq!(argv(r#"{"command": ["d = {}"]}"#), ["d = {{}}"]);
        assert_eq!(argv(r#"{"command": ["d = {}"], "array": [1, 2]}"#), ["d = {}"]);
        assert_eq!(argv(r#"{"handler": ["d = {}"]}"#), ["d = {}"]);
    }

    /// Of an output that was dropped for want of room its outcome says so; and why a task was
    /// cancelled.
    #[test]
    fn bug_21_50_what_was_dropped_and_why_it_was_cancelled_is_told() {
        let mut record = JobRecord::new(1, String::new(), 1, Now::default());
        let mut told = TaskOutcome {
            jid: 1,
            tid: 0,
            attempts: 1,
            outcome: Outcome::Done(Vec::new()),
            output_bytes: 9,
            trace: Trace::default(),
        };
        let said = result(&record, &told);
        assert_eq!((&said["is_dropped"], &said["output"]), (&json!(true), &json!("")));
        (told.outcome, told.output_bytes) = (Outcome::Done(b"out".to_vec()), 3);
        assert_eq!(result(&record, &told)["is_dropped"], Value::Null);
        told.outcome = Outcome::Cancelled;
        record.cancelled_why = "because".to_string();
        assert_eq!(result(&record, &told)["why"], "because");
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
            Executors { classes, workers: [(1, Addr::default())].into() }
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

    /// Notes and bodies of owners that knew less are read.
    #[test]
    fn older_notes_and_bodies_are_read() {
        let (journal, mut bytes) = Journal::create(1);
        let addr = concord_wire::Addr { ip: 1, port: 1 };
        let config = OwnerConfig::new(SessionId(1), addr, addr);
        let mut owner = JournaledOwner::resume(config, Now::default(), journal, &Found::default());
        let job = || Job { tasks: vec![TaskSpec::default(); 2], ..Job::default() };
        let first = postcard::to_allocvec(&("title", 4u32, "gpu", true)).unwrap();
        let keyed = postcard::to_allocvec(&("title", 4u32, "gpu", true, "key")).unwrap();
        let text = br#"{"function": "no-op", "numbers": [3, 7], "after": [{"job": 1}], "retry_delay_ms": 9, "running_max": 5}"#;
        let newest = read(text).unwrap().note();
        for note in [&first, &keyed, &newest] {
            owner.submit(Now::default(), job(), note).unwrap();
        }
        while let Some(persist) = owner.poll_persist() {
            bytes.extend(persist.what);
            owner.persisted(Now::default(), persist.number, &mut Vec::new());
        }
        let mut found = Journal::recover(&bytes).unwrap().unwrap();
        let note = |jid: u32| Note::of(&found.jobs[&jid]);
        assert_eq!((note(1).first, note(1).is_attached, &note(1).key[..]), (4, true, ""));
        assert_eq!((&note(2).title[..], &note(2).key[..]), ("title", "key"));
        let note = note(3);
        assert_eq!((&note.numbers[..], note.after.len()), (&[3, 7][..], 1));
        let job = found.jobs.get_mut(&3).unwrap();
        note.complete(job);
        let Job { retry_ns, running_max, is_held, .. } = job.job;
        assert_eq!((retry_ns, running_max, is_held), (9 * MS, 5, true));
        let body = postcard::to_allocvec(&(vec!["a"], None::<String>, 4u32)).unwrap();
        let body = CommandBody::read(&body).unwrap();
        assert_eq!((&body.argv[..], body.number(2)), (&["a".to_string()][..], 6));
    }

    /// Lines and outputs that are no text keep their bytes.
    #[test]
    fn lines_and_outputs_are_the_bytes_that_they_were() {
        let job = read(br#"{"command": ["x"], "lines_hex": ["ff0a", "6f6B"]}"#).unwrap().job;
        let bytes: Vec<_> = job.tasks.iter().map(|task| task.parameters.bytes().to_vec()).collect();
        assert_eq!(bytes, [vec![255, 10], b"ok".to_vec()]);
        for wrong in ["f", "fg", "\u{e4}"] {
            let line = refused(&format!(r#"{{"command": ["x"], "lines_hex": ["{wrong}"]}}"#));
            assert!(line.contains("hexadecimal"), "{line}");
        }
        let mut told = TaskOutcome {
            jid: 1,
            tid: 0,
            attempts: 1,
            outcome: Outcome::Done(vec![255, 10]),
            output_bytes: 2,
            trace: Trace::default(),
        };
        let record = JobRecord::new(1, String::new(), 1, Now::default());
        assert_eq!(result(&record, &told)["output_hex"], "ff0a");
        told.outcome = Outcome::Done(b"ok".to_vec());
        assert_eq!(result(&record, &told)["output_hex"], Value::Null);
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
        assert!(refused(r#"{"function": "no-op", "numbers": []}"#).contains("nothing to do"));
        assert!(refused(r#"{"function": "no-op", "numbers": [2, 2]}"#).contains("different"));
        let both = refused(r#"{"function": "no-op", "numbers": [2], "lines": ["a"]}"#);
        assert!(both.contains("not both"));
        let variable = refused(r#"{"command": ["x"], "environment": {"A=": "b"}}"#);
        assert!(variable.contains("no variable"));
        assert!(
            refused(r#"{"function": "no-op", "once": true, "retries": 1}"#).contains("retries")
        );
        let long = "x".repeat(BODY_BYTES_MAX + 1);
        let line = refused(&format!(r#"{{"command": ["x"], "lines": ["y", "{long}"]}}"#));
        assert_eq!(line, "line 2 is 1048577 bytes long, of at most 1048576");
        assert!(refused(&format!(r#"{{"command": ["{long}"]}}"#)).contains("the command is 10485"));
    }
}
