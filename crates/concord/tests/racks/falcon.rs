//! Workers, an owner and the switch's queue as real processes: jobs are done, what makes no sense
//! gets one line, and no accepted task is lost when a switch or a worker dies or stops.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::falcon_clients::pythons;
use serde_json::Value;

/// As an answer of the owner has them.
type Task = Value;

pub(crate) struct Jobs {
    pub(crate) rack: Rack,
}

impl Jobs {
    pub(crate) fn start(name: &str, more: &[&str]) -> Jobs {
        Jobs { rack: Rack::start(name, &[&["--system", "falcon"][..], more].concat()) }
    }

    /// `concord <command> --config <this rack> ...`
    pub(crate) fn say(&self, command: &str, args: &[&str]) -> Output {
        concord(&[&[command, "--config", &self.rack.file()][..], args].concat())
    }

    pub(crate) fn text(&self, command: &str, args: &[&str]) -> String {
        let output = self.say(command, args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command} {args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// One line of a command that must fail.
    fn refused(&self, command: &str, args: &[&str]) -> String {
        refused(&[&[command, "--config", &self.rack.file()][..], args].concat())
    }

    /// Submits a job, and gives its number.
    pub(crate) fn submit(&self, args: &[&str]) -> String {
        let text = self.text("submit", args);
        let number = text.strip_prefix("job ").and_then(|rest| rest.split(':').next());
        number.unwrap_or_else(|| panic!("{text}")).to_string()
    }

    pub(crate) fn show(&self, job: &str) -> Value {
        serde_json::from_str(&self.text("job", &["show", "--json", job])).unwrap()
    }

    /// How its tasks ended, by their numbers: each once.
    pub(crate) fn results(&self, job: &str) -> BTreeMap<u64, Task> {
        let text = self.text("job", &["results", "--wait", "--json", job]);
        let mut all = BTreeMap::new();
        for line in text.lines() {
            let told: Value = serde_json::from_str(line).unwrap();
            let number = told["task"].as_u64().unwrap();
            assert!(all.insert(number, told).is_none(), "task {number} has two outcomes");
        }
        all
    }

    /// Asks the owner as any HTTP client does.
    pub(crate) fn http(&self, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.rack.listen).unwrap();
        let length = body.len();
        let request = format!(
            "{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn way(&self, token: &str, job: &str, task: u64) -> Value {
        let head =
            format!("GET /jobs/{job}/tasks/{task} HTTP/1.1\r\nAuthorization: Bearer {token}");
        let text = self.http(&head, "");
        serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    }

    pub(crate) fn token(&self) -> String {
        self.text("job", &["token"]).trim().to_string()
    }
}

/// Whether a process has these words in its command line.
pub(crate) fn runs(words: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.any(|line| line.trim_end() == words)
}

/// What the tasks with long outputs write.
fn expected(task: u64) -> String {
    "x".repeat(200_000) + &format!("{task}\n")
}

#[test]
fn jobs_are_done_and_tell_how() {
    let jobs = Jobs::start("falcon-jobs", &["--slots", "4"]);
    let done = jobs.text("submit", &["--array", "0-1999", "--no-op", "--wait"]);
    assert!(done.contains("job 1: 2000 tasks\njob 1: 2000 done in "), "{done}");

    let job =
        jobs.submit(&["--array", "95-104", "--wait", "--", "sh", "-c", "echo n={} $CONCORD_TASK"]);
    let results = jobs.results(&job);
    assert_eq!(results.len(), 10);
    for (task, told) in &results {
        assert_eq!(told["output"], format!("n={task} {task}\n"));
    }

    let lines = jobs.rack.run.join("lines");
    std::fs::write(&lines, "short\na line of more than sixteen bytes\n").unwrap();
    let lines = lines.display().to_string();
    let job = jobs.submit(&["--lines", &lines, "--wait", "--", "echo", "<{}>"]);
    assert_eq!(jobs.results(&job)[&1]["output"], "<a line of more than sixteen bytes>\n");

    let many = "i={}; head -c 200000 /dev/zero | tr '\\0' x; echo $i";
    let job = jobs.submit(&["--array", "0-19", "--wait", "--", "sh", "-c", many]);
    for (task, told) in &jobs.results(&job) {
        assert_eq!(
            (&told["output_bytes"], &told["is_cut"]),
            (&expected(*task).len().into(), &false.into())
        );
        assert!(told["output"] == expected(*task), "task {task} gave something else");
    }

    let third = "sleep 0.05; test $CONCORD_ATTEMPT = 3";
    let job = jobs.submit(&["--retries", "3", "--wait", "--", "sh", "-c", third]);
    assert_eq!(jobs.results(&job)[&0]["attempts"], 3);
    let text = jobs.text("explain", &[&format!("{job}.0")]);
    assert!(text.contains("ticket ") && text.contains("at worker 127.0.0.1:"), "{text}");
    assert!(text.contains("again: it failed, 2 times"), "{text}");

    let outcomes = [
        ("exit 3", "failed, exit status 3"),
        ("kill -9 $$", "failed, killed by signal 9"),
        ("sleep 47.11", "failed, took longer than its limit"),
        ("head -c 3000000 /dev/zero | tr '\\0' x", "[cut: it is 3000000 bytes long]"),
    ];
    for (command, expected) in outcomes {
        let args = ["--limit", "300ms", "--wait", "--", "sh", "-c", command];
        let output = jobs.say("submit", &args);
        assert_eq!(output.status.success(), expected.starts_with('['), "{command}");
        let text = String::from_utf8(output.stdout).unwrap();
        let job = text.split([' ', ':']).nth(1).unwrap();
        let told = jobs.text("job", &["results", job]);
        assert!(told.contains(expected), "{command}: {told}");
    }
    until("end of what took too long", || !runs("sleep 47.11"));

    let job = jobs.submit(&["--array", "1-20", "--", "sleep", "47.12"]);
    until("run", || jobs.show(&job)["running"] == 8);
    assert!(jobs.text("job", &["cancel", &job]).contains("20 tasks cancelled"));
    assert_eq!(jobs.show(&job)["cancelled"], 20);
    until("end of what was cancelled", || !runs("sleep 47.12"));

    let all = jobs.text("job", &["ls"]);
    assert!(all.contains("2000 done in") && all.contains("20 cancelled in"), "{all}");
    let status = jobs.text("status", &[]);
    assert!(status.contains("0 tasks in the queue") && status.contains("slots run"), "{status}");
}

#[test]
fn what_makes_no_sense_gets_one_line_and_nothing_is_lost() {
    let jobs = Jobs::start("falcon-input", &["--workers", "1", "--slots", "2"]);
    let backward = jobs.refused("submit", &["--array", "9-0", "--no-op"]);
    assert_eq!(backward, "concord: --array 9-0 goes backward: write --array 0-9");
    let limit = jobs.refused("submit", &["--limit", "2 s", "--no-op"]);
    assert!(limit.contains("like 100us, 500ms, 1.5s, 2m or 1h"), "{limit}");
    let long = jobs.rack.run.join("long");
    std::fs::write(&long, "x".repeat((1 << 20) + 1)).unwrap();
    let line = jobs.refused("submit", &["--lines", &long.display().to_string(), "--", "echo"]);
    assert_eq!(line, "concord: line 1 is 1048577 bytes long, of at most 1048576");
    for command in ["show", "results", "dead", "cancel"] {
        let line = jobs.refused("job", &[command, "77"]);
        assert!(line.starts_with("concord: there is no job 77"), "{line}");
    }
    let line = jobs.refused("explain", &["77.1"]);
    assert!(line.starts_with("concord: there is no job 77"), "{line}");

    let token = jobs.token();
    let post = format!("POST /jobs HTTP/1.1\r\nAuthorization: Bearer {token}");
    assert!(jobs.http(&post, "{\"command\": ").starts_with("HTTP/1.1 400"));
    assert!(jobs.http(&post, "{\"comand\": []}").contains("unknown field `comand`"));
    assert!(jobs.http("POST /jobs HTTP/1.1", "{}").starts_with("HTTP/1.1 401"));
    assert!(jobs.http("GET /jobs HTTP/1.1", "").starts_with("HTTP/1.1 401"));

    let job = jobs.say("submit", &["--wait", "--", "no-such-command-here"]);
    assert!(!job.status.success());
    let told = jobs.text("job", &["dead", "1"]);
    assert!(told.starts_with("task 0: failed, exit status 127: no such command\n"), "{told}");
    // Parameters as long as may be come as they are.
    std::fs::write(&long, "y".repeat(100_000)).unwrap();
    let job = jobs.submit(&[
        "--lines",
        &long.display().to_string(),
        "--wait",
        "--",
        "sh",
        "-c",
        "echo -n $0 | wc -c",
        "{}",
    ]);
    assert_eq!(jobs.results(&job)[&0]["output"], "100000\n");
    // A key that others can read is refused.
    let key = jobs.rack.run.join("key");
    Command::new("chmod").arg("644").arg(&key).status().unwrap();
    let line = jobs.refused("job", &["ls"]);
    assert!(line.contains("has mode 0644") && line.contains("chmod 600"), "{line}");
    Command::new("chmod").arg("600").arg(&key).status().unwrap();
    // More tasks than fit into the queue wait, and are done.
    let done = jobs.text("submit", &["--array", "1-200000", "--no-op", "--wait"]);
    assert!(done.contains("200000 done in"), "{done}");
}

/// The next task that is begun after this moment is done this much later.
fn next_done(jobs: &Jobs, job: &str) -> Duration {
    let began = Instant::now();
    // What ran has ended by then.
    std::thread::sleep(Duration::from_millis(60));
    let before = jobs.show(job)["done"].as_u64().unwrap();
    until("next task", || jobs.show(job)["done"].as_u64().unwrap() > before);
    began.elapsed()
}

#[test]
fn a_switch_dies_and_no_task_is_lost() {
    let jobs = Jobs::start("falcon-switch", &["--standbys", "1", "--slots", "4"]);
    let job = jobs.submit(&["--array", "0-1999", "--sleep", "8ms"]);
    let once = jobs.submit(&["--array", "0-199", "--sleep", "8ms", "--once"]);
    until("first results", || jobs.show(&job)["done"].as_u64().unwrap() > 100);
    Rack::signal(jobs.rack.pid("switch"), "-9");
    let took = next_done(&jobs, &job);
    println!("the next task was done {} ms after the switch died", took.as_millis());
    assert!(took < Duration::from_secs(5), "{took:?}");
    let results = jobs.results(&job);
    assert!(results.len() == 2_000 && results.values().all(|told| told["how"] == "done"));
    // What had begun when the switch died goes on, and what had not is submitted again.
    let results = jobs.results(&once);
    assert!(results.len() == 200 && results.values().all(|told| told["how"] == "done"));
}

/// The lines that commands wrote into a file.
pub(crate) fn lines(path: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_string).collect()
}

/// A worker dies or stops and no task is lost and none that is once runs twice.
#[test]
fn worker_death_loses_and_repeats_nothing() {
    let jobs = Jobs::start("falcon-worker", &["--slots", "6"]);
    let token = jobs.token();
    let wrote = jobs.rack.run.join("wrote");
    let once = format!("echo {{}} >> {}; sleep 0.8", wrote.display());
    let address = |name: &str| {
        let rack = std::fs::read_to_string(jobs.rack.file()).unwrap();
        let node = name.rsplit('-').next().unwrap();
        let of =
            rack.split("[[group.worker]]").find(|part| part.contains(&format!("node = {node}\n")));
        let line = of.unwrap().lines().find(|line| line.starts_with("addr = ")).unwrap();
        line.split('"').nth(1).unwrap().to_string()
    };
    let at = |job: &str, tasks: u64, address: &str| {
        (0..tasks).filter(|task| jobs.way(&token, job, *task)["worker"] == address).count()
    };
    // Killed.
    let victim = "tasks-worker-1";
    let again = jobs.submit(&["--array", "0-2", "--", "sleep", "0.813"]);
    let once_job = jobs.submit(&["--array", "0-5", "--once", "--", "sh", "-c", &once]);
    let more = jobs.submit(&["--array", "0-2", "--", "sleep", "0.813"]);
    let running = |job: &str| jobs.show(job)["running"].as_u64().unwrap();
    until("run", || running(&again) + running(&once_job) + running(&more) == 12);
    let own = address(victim);
    let (had, had_once) = (at(&again, 3, &own) + at(&more, 3, &own), at(&once_job, 6, &own));
    assert_eq!(had + had_once, 6, "all executors are busy");
    Rack::signal(jobs.rack.pid(victim), "-9");
    let died = Instant::now();
    if had > 0 {
        let moved = || at(&again, 3, &own) + at(&more, 3, &own) == 0;
        until("next attempts", moved);
        println!(
            "{had} tasks of a dead worker began again {} ms later",
            died.elapsed().as_millis()
        );
        assert!(died.elapsed() < Duration::from_secs(10));
    }
    for job in [&again, &more] {
        let results = jobs.results(job);
        assert!(results.len() == 3, "{results:?}");
        assert!(results.values().all(|told| told["how"] == "done"), "{results:?}");
    }
    let results = jobs.results(&once_job);
    let unknown = results.values().filter(|told| told["how"] == "unknown").count();
    assert_eq!((results.len(), unknown), (6, had_once), "{results:?}");
    assert_eq!(lines(&wrote).len(), 6, "each was begun once");
    // Stopped for longer than its lease, with all that it runs.
    std::fs::remove_file(&wrote).unwrap();
    let other = jobs.rack.pid("tasks-worker-2");
    let again = jobs.submit(&["--array", "0-3", "--retries", "1", "--sleep", "300ms"]);
    let once_job = jobs.submit(&["--array", "0-1", "--once", "--", "sh", "-c", &once]);
    until("run", || jobs.show(&once_job)["running"] == 2);
    Rack::signal(other, "-STOP");
    std::thread::sleep(Duration::from_millis(1_500));
    Rack::signal(other, "-CONT");
    let results = jobs.results(&again);
    assert!(
        results.len() == 4 && results.values().all(|told| told["how"] == "done"),
        "{results:?}"
    );
    let results = jobs.results(&once_job);
    let known = ["done", "unknown"].map(Value::from);
    assert!(results.values().all(|told| known.contains(&told["how"])), "{results:?}");
    let mut begun = lines(&wrote);
    begun.sort_unstable();
    assert_eq!(begun, ["0", "1"], "each was begun once");
    // It is none of the dead worker's any more.
    until("end of the dead worker's commands", || !runs("sleep 0.8") && !runs("sleep 0.813"));
    // And the rack goes on.
    let done = jobs.text("submit", &["--array", "1-500", "--no-op", "--wait"]);
    assert!(done.contains("500 done in"), "{done}");
}

/// Commands are executed only where that is allowed and a signal ends a worker in order.
#[test]
fn exec_needs_permission_and_signals_end_workers_in_order() {
    let jobs = Jobs::start("falcon-exec", &["--workers", "1"]);
    let pid = jobs.rack.pid("tasks-worker-1");
    let job = jobs.submit(&["--", "sh", "-c", "sleep 0.4; echo done"]);
    until("run", || jobs.show(&job)["running"] == 1);
    Rack::signal(pid, "-TERM");
    assert_eq!(jobs.results(&job)[&0]["output"], "done\n", "it ends what it runs first");
    until("end of the worker", || !is_alive(pid));
    // Another one in its place, which is not allowed to.
    let file = jobs.rack.file();
    let text =
        std::fs::read_to_string(&file).unwrap().replace("allow_exec = true", "allow_exec = false");
    let other = jobs.rack.run.join("other.toml");
    std::fs::write(&other, text).unwrap();
    let mut worker = Command::new(CONCORD)
        .args(["worker", "--config", &other.display().to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = jobs.say("submit", &["--wait", "--", "true"]);
    assert!(!output.status.success());
    let told = jobs.text("job", &["dead", "2"]);
    assert!(told.contains("this worker was not started with --allow-exec"), "{told}");
    assert!(jobs.text("submit", &["--no-op", "--wait"]).contains("1 done in"));
    worker.kill().unwrap();
    worker.wait().unwrap();
}

/// Handlers stay and get one task after another; Python's executor stands on them.
#[test]
fn handlers_stay_and_python_has_an_executor_of_them() {
    let jobs = Jobs::start("falcon-python", &["--slots", "2"]);
    let clients = format!("{}/tests/clients", env!("CARGO_MANIFEST_DIR"));
    let package = format!("{}/../../python", env!("CARGO_MANIFEST_DIR"));
    let token = jobs.token();
    let file = jobs.rack.file();
    let directory = std::path::Path::new(&file).parent().unwrap().display().to_string();
    let program = "import sys, falcon_executor; falcon_executor.main(*sys.argv[1:])";
    let output = Command::new("/usr/bin/python3")
        .args(["-c", program, &jobs.rack.listen.to_string(), &token, &directory])
        .env("PYTHONPATH", format!("{package}:{clients}"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    println!("{}", text(&output.stdout));
    // A command that is no handler: one line says so, and the worker goes on.
    let job = jobs.submit(&["--handler", "--", "echo", "hello"]);
    let told = &jobs.results(&job)[&0];
    assert_eq!(told["how"], "failed");
    let why = told["output"].as_str().unwrap();
    assert!(why.contains("no answer") || why.contains("without an answer"), "{why}");
    let done = jobs.text("submit", &["--wait", "--", "true"]);
    assert!(done.contains("1 done"), "{done}");
}

/// Runs a function of `falcon_worker.py` with each Python that is here.
fn python_worker(function: &str) {
    let name = format!("concord-worker-{function}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let clients = format!("{}/tests/clients", env!("CARGO_MANIFEST_DIR"));
    let package = format!("{}/../../python", env!("CARGO_MANIFEST_DIR"));
    let program = format!("import sys, falcon_worker; falcon_worker.{function}(sys.argv[1])");
    for python in pythons() {
        let output = Command::new(&python)
            .args(["-c", &program])
            .arg(&directory)
            .env("PYTHONPATH", format!("{package}:{clients}"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{python}: {errors}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A worker's Python imports beside its environment, gives its children nothing to read, and tells
/// exceptions on Python 3.9.
#[test]
fn bug_21_64_a_worker_in_python_keeps_its_tasks_to_itself() {
    python_worker("main");
}

/// What a call logs comes to its caller, also if an earlier call has set up logging.
#[test]
fn bug_21_98_each_calls_logs_come_to_its_caller() {
    python_worker("logs");
}

/// A command that kills its worker is given up after two, what it left in another session ends with
/// it, and workers and owners are started again.
#[test]
fn bug_21_70_a_command_that_kills_workers_is_given_up() {
    let jobs = Jobs::start("falcon-deadly", &[RESTARTS, "--journal", "--slots", "2"]);
    let deadly = "setsid sleep 47.31 & sleep 0.1; kill -9 $PPID; sleep 47.32";
    let job = jobs.submit(&["--", "sh", "-c", deadly]);
    let told = &jobs.results(&job)[&0];
    assert_eq!((&told["how"], &told["attempts"]), (&"lost".into(), &2.into()), "{told}");
    let why = told["why"].as_str().unwrap();
    assert!(why.starts_with("two workers or more went silent"), "{why}");
    until("end of all that it started", || !runs("sleep 47.31") && !runs("sleep 47.32"));
    let done = jobs.text("submit", &["--array", "1-200", "--no-op", "--wait"]);
    assert!(done.contains("200 done in"), "{done}");
    // An owner that dies is there again, and knows its jobs; what ran goes on.
    let wrote = jobs.rack.run.join("wrote");
    let slow = format!("echo {{}} >> {}; sleep 3", wrote.display());
    let slow = jobs.submit(&["--array", "1-2", "--once", "--", "sh", "-c", &slow]);
    until("run", || lines(&wrote).len() == 2);
    let owner = jobs.rack.pid("tasks-owner-1");
    Rack::signal(owner, "-9");
    until("owner", || jobs.say("job", &["ls"]).status.success());
    assert_ne!(jobs.rack.pid("tasks-owner-1"), owner);
    let results = jobs.results(&slow);
    let known = ["done", "unknown"].map(Value::from);
    assert!(results.values().all(|told| known.contains(&told["how"])), "{results:?}");
    let done = results.values().filter(|told| told["how"] == "done").count();
    println!("{done} of 2 tasks went on over the restart of their owner");
    assert_eq!(lines(&wrote).len(), 2, "each was begun once");
}

/// What left its session ends when its command is cancelled, ends or takes too long, and when its
/// worker is killed.
#[test]
fn bug_21_71_nothing_is_left_of_a_command() {
    let jobs = Jobs::start("falcon-sessions", &["--workers", "1", "--slots", "4"]);
    let escapes = |seconds: &str, more: &str| {
        format!("setsid sh -c 'setsid sleep {seconds} & sleep {seconds}' & sleep 0.2; {more}")
    };
    let job = jobs.submit(&["--wait", "--", "sh", "-c", &escapes("47.41", "echo over")]);
    assert_eq!(jobs.results(&job)[&0]["output"], "over\n");
    until("end", || !runs("sleep 47.41"));
    jobs.say(
        "submit",
        &["--wait", "--limit", "500ms", "--", "sh", "-c", &escapes("47.42", "sleep 9")],
    );
    until("end after the limit", || !runs("sleep 47.42"));
    let job = jobs.submit(&["--", "sh", "-c", &escapes("47.43", "sleep 9")]);
    until("run", || runs("sleep 47.43"));
    jobs.text("job", &["cancel", &job]);
    until("end after a cancel", || !runs("sleep 47.43"));
    jobs.submit(&["--", "sh", "-c", &escapes("47.44", "sleep 9")]);
    until("run", || runs("sleep 47.44"));
    Rack::signal(jobs.rack.pid("tasks-worker-1"), "-9");
    until("end with the worker", || !runs("sleep 47.44"));
}

/// What xargs, GNU parallel and Slurm have: outputs in order, bytes as they are, a log, arrays with
/// steps, steps after steps, and another try of what failed.
#[test]
fn jobs_as_users_of_other_tools_expect_them() {
    let jobs = Jobs::start("falcon-users", &["--slots", "4"]);
    let path = |name: &str| jobs.rack.run.join(name).display().to_string();
    // Names that are no text, each as the last argument, in their order.
    std::fs::write(path("names"), b"b\xff\0a\nb\0").unwrap();
    let args = [
        "--lines",
        &path("names"),
        "-0",
        "--wait",
        "--keep-order",
        "--joblog",
        &path("log"),
        "--env",
        "WORD=is",
        "--",
        "sh",
        "-c",
        "printf '%s %s\\n' $WORD \"$1\"",
        "x",
    ];
    let output = jobs.say("submit", &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"is b\xff\nis a\nb\n");
    let log = lines(std::path::Path::new(&path("log")));
    assert_eq!((log.len(), &log[0][..]), (3, "task\thow\tstatus\tattempts\tseconds\tbytes"));
    jobs.text("job", &["results", "--to", &path("outputs"), "1"]);
    assert_eq!(std::fs::read(path("outputs/0")).unwrap(), b"is b\xff\n");
    // Steps: each element after another job's, few at a time.
    let some = format!("test {{}} != 4 || test -e {}", path("now"));
    let first = jobs.submit(&["--array", "0-6:2", "--", "sh", "-c", &some]);
    let second = jobs.submit(&[
        "--array",
        "10-13",
        "--after",
        &format!("each:{first}"),
        "--max-running",
        "1",
        "--",
        "sh",
        "-c",
        "echo {}",
    ]);
    let told = jobs.results(&second);
    let how = |task: u64| told[&task]["how"].as_str().unwrap().to_string();
    assert_eq!([how(10), how(11), how(12), how(13)], ["done", "done", "cancelled", "done"]);
    std::fs::write(path("now"), "").unwrap();
    let again = jobs.text("job", &["retry", &first]);
    let again = again.split([' ', ':']).nth(1).unwrap().to_string();
    assert_eq!(jobs.results(&again).keys().copied().collect::<Vec<_>>(), [4]);
    assert_eq!(jobs.show(&again)["done"], 1);
    // SIGTERM, and then time to put things away.
    let grace = "trap 'echo put away; exit 0' TERM; echo begun; while :; do sleep 0.01; done";
    let job = jobs.submit(&["--grace", "9s", "--limit", "300ms", "--", "sh", "-c", grace]);
    let told = &jobs.results(&job)[&0];
    let output = told["output"].as_str().unwrap();
    assert!(output.starts_with("begun\n") && output.ends_with("put away\n"), "{output}");
    assert!(told["why"].as_str().unwrap().contains("limit"), "{told}");
    // Ctrl-C ends what runs.
    let file = jobs.rack.file();
    let args = ["submit", "--config", &file, "--wait", "--", "sleep", "47.51"];
    let mut waits = Killed(Command::new(CONCORD).args(args).stdout(Stdio::null()).spawn().unwrap());
    until("run", || runs("sleep 47.51"));
    Rack::signal(waits.0.id(), "-INT");
    assert_eq!(waits.0.wait().unwrap().code(), Some(130));
    until("end", || !runs("sleep 47.51"));
}

/// An owner that dies again and again under attached clients: no task of theirs is lost, and none
/// that is once is begun twice. With `CONCORD_LONG=1`, fifty times under twenty clients.
#[test]
fn owner_dies_often_under_attached_clients() {
    let is_long = std::env::var_os("CONCORD_LONG").is_some();
    let (deaths, clients) = if is_long { (50, 20) } else { (4, 6) };
    let jobs = Jobs::start("falcon-owner-dies", &["--journal", "--slots", "4"]);
    let file = jobs.rack.file();
    let wrote = jobs.rack.run.join("wrote");
    let tasks = format!("0-{}", deaths * 40);
    let start = |client: u32| {
        let line = format!("echo {client}.{{}} >> {}; sleep 0.05", wrote.display());
        let args = ["submit", "--config", &file, "--wait", "--array", &tasks];
        let more: &[&str] = match client % 2 {
            0 => &["--sleep", "20ms"],
            _ => &["--once", "--", "sh", "-c", &line],
        };
        let mut command = Command::new(CONCORD);
        command.args(args).args(more).stdout(Stdio::null()).stderr(Stdio::null());
        Killed(command.spawn().unwrap())
    };
    let mut all: Vec<Killed> = (1..=clients).map(start).collect();
    until("jobs", || {
        let told = jobs.say("job", &["ls", "--json"]).stdout;
        serde_json::from_slice::<Value>(&told)
            .is_ok_and(|all| all.as_array().is_some_and(|all| all.len() == clients as usize))
    });
    Rack::signal(jobs.rack.pid("tasks-owner-1"), "-9");
    for death in 1..=deaths {
        let again = std::cell::RefCell::new(Killed(owner_again(&jobs)));
        until("owner", || {
            if again.borrow_mut().0.try_wait().unwrap().is_some() {
                *again.borrow_mut() = Killed(owner_again(&jobs));
            }
            jobs.say("job", &["ls"]).status.success()
        });
        std::thread::sleep(Duration::from_millis(700));
        if death == deaths {
            for client in &mut all {
                // Those of tasks that are once may end with some unknown.
                client.0.wait().unwrap();
            }
            for job in 1..=clients {
                let told = jobs.show(&job.to_string());
                let over = told["done"].as_u64().unwrap() + told["unknown"].as_u64().unwrap();
                assert_eq!(
                    (&told["tasks"], told["is_over"] == true),
                    (&over.into(), true),
                    "{told}"
                );
                assert!(told["once"] == true || told["unknown"] == 0, "{told}");
            }
        }
    }
    let mut begun = lines(&wrote);
    let count = begun.len();
    begun.sort_unstable();
    begun.dedup();
    assert_eq!(begun.len(), count, "none was begun twice");
}

/// Starts the owner again, by hand.
fn owner_again(jobs: &Jobs) -> std::process::Child {
    let log = std::fs::File::create(jobs.rack.run.join("owner-again.log")).unwrap();
    Command::new(CONCORD)
        .args(["owner", "--config", &jobs.rack.file()])
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A process that is killed when the test ends, however it does.
pub(crate) struct Killed(pub(crate) std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whoever waits for a job finds it again when its owner is back.
#[test]
fn bug_21_53_attached_work_goes_on_when_its_owner_is_back() {
    let jobs = Jobs::start("falcon-attached-again", &["--journal", "--slots", "4"]);
    let file = jobs.rack.file();
    let args = ["submit", "--config", &file, "--wait", "--array", "0-799", "--sleep", "5ms"];
    let mut attached = Killed(Command::new(CONCORD).args(args).spawn().unwrap());
    until("first results", || {
        // It is not there at once.
        let shown = jobs.say("job", &["show", "--json", "1"]).stdout;
        let shown: Value = serde_json::from_slice(&shown).unwrap_or_default();
        shown["done"].as_u64().is_some_and(|done| done > 50)
    });
    Rack::signal(jobs.rack.pid("tasks-owner-1"), "-9");
    let again = std::cell::RefCell::new(Killed(owner_again(&jobs)));
    until("owner", || {
        if again.borrow_mut().0.try_wait().unwrap().is_some() {
            *again.borrow_mut() = Killed(owner_again(&jobs));
        }
        jobs.say("job", &["ls"]).status.success()
    });
    assert!(attached.0.wait().unwrap().success());
    assert_eq!(jobs.show("1")["done"], 800);
}

/// With a journal jobs outlive their owner and none that is once runs twice.
#[test]
fn journaled_jobs_outlive_their_owner() {
    let jobs = Jobs::start("falcon-journal", &["--journal", "--slots", "4"]);
    let wrote = jobs.rack.run.join("wrote");
    let over = jobs.submit(&["--array", "5-7", "--wait", "--", "echo", "{}"]);
    let again = jobs.submit(&["--array", "0-999", "--sleep", "8ms"]);
    let append = format!("echo {{}} >> {}; sleep 0.1", wrote.display());
    let once = jobs.submit(&["--array", "0-39", "--once", "--", "sh", "-c", &append]);
    until("first results", || jobs.show(&again)["done"].as_u64().unwrap() > 100);
    until("first of those that are once", || jobs.show(&once)["done"].as_u64().unwrap() > 0);
    let told = jobs.text("job", &["results", "--json", &again]);
    Rack::signal(jobs.rack.pid("tasks-owner-1"), "-9");
    // An address that is not free yet is tried again.
    let killed = std::cell::RefCell::new(Killed(owner_again(&jobs)));
    until("owner", || {
        if killed.borrow_mut().0.try_wait().unwrap().is_some() {
            *killed.borrow_mut() = Killed(owner_again(&jobs));
        }
        jobs.say("job", &["ls"]).status.success()
    });
    let line = refused(&["owner", "--config", &jobs.rack.file()]);
    assert!(line.contains("address in use") || line.contains("another owner holds"), "{line}");
    let results = jobs.results(&again);
    assert!(results.len() == 1_000 && results.values().all(|told| told["how"] == "done"));
    // What was told is told again, in the same order.
    let later = jobs.text("job", &["results", "--json", &again]);
    // How long they ran is not written down.
    let each = |text: &str| {
        let mut all: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        all.iter_mut().for_each(|told| _ = told.as_object_mut().unwrap().remove("ran_ms"));
        all
    };
    let (told, later) = (each(&told), each(&later));
    assert!(later[..told.len()] == told[..]);
    let results = jobs.results(&once);
    let unknown = results.values().filter(|told| told["how"] == "unknown").count();
    let done = results.values().filter(|told| told["how"] == "done").count();
    println!("of 40 tasks that are once {unknown} are unknown");
    assert_eq!((results.len(), unknown + done), (40, 40), "{results:?}");
    let mut begun = lines(&wrote);
    let all = begun.len();
    begun.sort_unstable();
    begun.dedup();
    assert_eq!(begun.len(), all, "each was begun once");
    assert_eq!(jobs.results(&over)[&6]["output"], "6\n");
    let next = jobs.submit(&["--no-op", "--wait"]);
    assert_eq!(next.parse::<u32>().unwrap(), once.parse::<u32>().unwrap() + 1);
}

/// Without a journal jobs end with their owner, and the next one numbers its own from 1.
#[test]
fn bug_24_14_job_numbers_begin_anew_without_a_journal() {
    let jobs = Jobs::start("falcon-numbers", &[RESTARTS, "--slots", "1"]);
    let numbers = [jobs.submit(&["--no-op", "--wait"]), jobs.submit(&["--no-op", "--wait"])];
    assert_eq!(numbers, ["1", "2"]);
    Rack::signal(jobs.rack.pid("tasks-owner-1"), "-9");
    until("no job of before", || {
        let listed = jobs.say("job", &["ls", "--json"]);
        listed.status.success() && !String::from_utf8_lossy(&listed.stdout).contains("\"job\"")
    });
    assert_eq!(jobs.submit(&["--no-op", "--wait"]), "1");
}

/// A job ends with its submitter unless it is detached and one may wait for another.
#[test]
fn job_ends_with_its_submitter_unless_detached() {
    let jobs = Jobs::start("falcon-attached", &["--slots", "4"]);
    let start = |more: &[&str]| {
        let file = jobs.rack.file();
        let args = [&["submit", "--config", &file, "--wait"][..], more].concat();
        Killed(Command::new(CONCORD).args(args).stdout(Stdio::null()).spawn().unwrap())
    };
    let attached = start(&["--", "sleep", "47.21"]);
    until("run", || runs("sleep 47.21"));
    let detached = start(&["--detach", "--", "sleep", "14"]);
    until("run", || runs("sleep 14"));
    drop(attached);
    drop(detached);
    // Meanwhile: one that waits for another, and one that would in vain.
    let first = jobs.submit(&["--array", "1-8", "--sleep", "300ms"]);
    let second = jobs.submit(&["--after", &first, "--no-op"]);
    assert_eq!(jobs.show(&second)["running"], 0);
    until("end of the second", || jobs.show(&second)["is_over"] == true);
    assert_eq!((&jobs.show(&first)["done"], &jobs.show(&second)["done"]), (&8.into(), &1.into()));
    let fails = jobs.submit(&["--", "false"]);
    let never = jobs.submit(&["--after", &format!("{fails},any:{first}"), "--no-op"]);
    let told = &jobs.results(&never)[&0];
    assert_eq!(told["how"], "cancelled");
    let why = format!("job {fails}, after which it was to run, has tasks that are not done");
    assert_eq!(told["why"], why);
    let line = jobs.refused("submit", &["--after", "77", "--no-op"]);
    assert!(line.starts_with("concord: there is no job 77"), "{line}");
    // The page shows nothing to whoever has no token.
    let page = jobs.http("GET / HTTP/1.1", "");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("text/html"), "{page:.300}");
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page:.600}");
    assert!(jobs.http("GET /workers HTTP/1.1", "").starts_with("HTTP/1.1 401"));
    let head = format!("GET /workers HTTP/1.1\r\nAuthorization: Bearer {}", jobs.token());
    assert!(jobs.http(&head, "").contains("\"worker\":\"127.0.0.1:"));
    until("end of the job without a submitter", || !runs("sleep 47.21"));
    assert_eq!(jobs.show("1")["cancelled"], 1);
    until("end of the other one", || jobs.show("2")["is_over"] == true);
    assert_eq!(jobs.show("2")["done"], 1);
}

#[test]
fn tasks_go_to_workers_of_their_class_and_near_their_node() {
    let first = free_ports();
    let worker = |node: u16, more: &str| {
        let addr = format!("127.0.0.1:{}", first + node);
        let text = format!(
            "[[group.worker]]\nnode = {node}\naddr = \"{addr}\"\nslots = 2\nallow_exec = true\n{more}"
        );
        (addr, text)
    };
    let group = "[[group]]\nname = \"tasks\"\nnumber = 1\nkind = \"workers\"\n";
    let (plain, one) = worker(1, "");
    let (gpu, two) = worker(2, "has = [\"gpu\"]\n");
    let file = std::env::temp_dir().join(format!("concord-classes-{}.toml", std::process::id()));
    std::fs::write(&file, [group, &one, &two].concat()).unwrap();
    let jobs = Jobs::start("falcon-classes", &["--config", &file.display().to_string()]);
    std::fs::remove_file(&file).unwrap();
    let token = jobs.token();
    let ran_at = |job: &str, tasks: u64, worker: &str| {
        let results = jobs.results(job);
        assert!(results.len() as u64 == tasks && results.values().all(|t| t["how"] == "done"));
        (0..tasks).filter(|task| jobs.way(&token, job, *task)["worker"] == *worker).count() as u64
    };
    let needs = jobs.submit(&["--array", "0-19", "--needs", "gpu", "--", "true"]);
    assert_eq!(ran_at(&needs, 20, &gpu), 20, "each at the worker that has a GPU");
    // A node that is free gets its tasks; one that is busy keeps them waiting for so long, and no
    // longer.
    let near =
        jobs.submit(&["--array", "0-1", "--near", "1", "--locality-wait", "20s", "--", "true"]);
    assert_eq!(ran_at(&near, 2, &plain), 2, "near the first worker");
    let busy = jobs.submit(&["--array", "0-1", "--near", "1", "--", "sleep", "60"]);
    until("busy", || jobs.show(&busy)["running"] == 2);
    let moved =
        jobs.submit(&["--array", "0-1", "--near", "1", "--locality-wait", "50ms", "--", "true"]);
    assert_eq!(ran_at(&moved, 2, &gpu), 2, "the other worker, after the wait");
    jobs.text("job", &["cancel", &busy]);
    let line = jobs.refused("submit", &["--needs", "tpu", "--", "true"]);
    assert!(line.contains("tpu"), "{line}");
    let line = jobs.refused("submit", &["--near", "3", "--", "true"]);
    assert!(line.contains('3'), "{line}");
}

/// Tasks of a job, of which one is submitted every 100 ms: 20,000 tasks a second.
const TASKS_OF_JOB: u64 = 2_000;

/// `CONCORD_TASKS=600000`: half a minute of that.
#[test]
fn at_many_tasks_a_second_none_is_lost_whoever_dies_or_stops() {
    let size = std::env::var("CONCORD_TASKS").ok().and_then(|text| text.parse().ok());
    let tasks: u64 = size.unwrap_or(40_000);
    let jobs = Jobs::start("falcon-many", &["--standbys", "1", "--workers", "3", "--slots", "8"]);
    let token = jobs.token();
    let ask = |what: &str, body: &str| -> Value {
        let head = format!("{what} HTTP/1.1\r\nAuthorization: Bearer {token}");
        let text = jobs.http(&head, body);
        serde_json::from_str(text.rsplit("\r\n\r\n").next().unwrap()).unwrap()
    };
    let done = || {
        let all = ask("GET /jobs", "");
        all.as_array().unwrap().iter().map(|job| job["done"].as_u64().unwrap()).sum::<u64>()
    };
    let began = Instant::now();
    let submit_all = || {
        let last = TASKS_OF_JOB - 1;
        let job = format!("{{\"function\": \"no-op\", \"array\": [0, {last}]}}");
        for n in 0..tasks / TASKS_OF_JOB {
            let at = began + Duration::from_millis(100) * n as u32;
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            assert_eq!(ask("POST /jobs", &job)["tasks"], TASKS_OF_JOB);
        }
        began.elapsed()
    };
    let fail = || {
        until("the first tenth", || done() > tasks / 10);
        Rack::signal(jobs.rack.pid("tasks-worker-2"), "-9");
        let owner = jobs.rack.pid("tasks-owner-1");
        Rack::signal(owner, "-STOP");
        std::thread::sleep(Duration::from_millis(400));
        Rack::signal(owner, "-CONT");
        until("the next", || done() > tasks / 4);
        Rack::signal(jobs.rack.pid("switch"), "-9");
        let died = Instant::now();
        // What was under way by then comes first.
        std::thread::sleep(Duration::from_millis(60));
        let before = done();
        until("next task", || done() > before || before == tasks);
        println!("the next task was done {} ms after the switch died", died.elapsed().as_millis());
    };
    let submitted = std::thread::scope(|scope| {
        let submitting = scope.spawn(submit_all);
        fail();
        submitting.join().unwrap()
    });
    for job in 1..=tasks / TASKS_OF_JOB {
        let results = jobs.results(&job.to_string());
        assert_eq!(results.len() as u64, TASKS_OF_JOB);
        assert!(results.values().all(|told| told["how"] == "done"));
    }
    let rate = tasks as f64 / submitted.as_secs_f64();
    println!("{tasks} tasks, {rate:.0} a second submitted, with all that went wrong");
}
