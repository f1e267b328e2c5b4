//! Falcon's clients where an owner is another one, where they are stopped, and where their results
//! are long; and workers that others share their process with, or that are drained.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use crate::common::*;
use crate::falcon::{Jobs, Killed, runs};

/// A program in Python that has an executor of a rack.
fn python(jobs: &Jobs, program: &str) -> Child {
    let package = format!("{}/../../python", env!("CARGO_MANIFEST_DIR"));
    Command::new("/usr/bin/python3")
        .args(["-c", program])
        .env("PYTHONPATH", package)
        .env("CONCORD_OWNER", jobs.rack.listen.to_string())
        .env("CONCORD_TOKEN", jobs.token())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The system's Python, and those that are here, by name or of pyenv, of the versions that
/// `pyproject.toml` allows.
pub(crate) fn pythons() -> Vec<String> {
    let is_here = |python: &String| {
        Command::new(python).arg("--version").output().is_ok_and(|told| told.status.success())
    };
    let home = std::env::var("HOME").unwrap_or_default();
    let own = std::fs::read_dir(format!("{home}/.pyenv/versions"));
    let own: Vec<_> = own.into_iter().flatten().flatten().map(|version| version.path()).collect();
    let mut all = vec!["/usr/bin/python3".to_string()];
    for minor in 9..=13 {
        let is_its = |path: &&std::path::PathBuf| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&format!("3.{minor}.")))
        };
        let of_pyenv = own.iter().filter(is_its).map(|path| path.join("bin/python3"));
        let of_pyenv = of_pyenv.map(|path| path.display().to_string());
        all.extend(of_pyenv.chain([format!("python3.{minor}")]).find(is_here));
    }
    println!("{}", all.join(", "));
    all
}

/// The next line that it prints.
fn line(of: &mut Child) -> String {
    let mut text = String::new();
    let mut byte = [0];
    while of.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        text.push(char::from(byte[0]));
    }
    text
}

/// A call is one request, whoever waits for it; an answer that is lost, late or another owner's
/// loses no call, and has none run twice that says so.
#[test]
fn one_python_call_is_one_request() {
    let clients = format!("{}/tests/clients", env!("CARGO_MANIFEST_DIR"));
    let package = format!("{}/../../python", env!("CARGO_MANIFEST_DIR"));
    for python in pythons() {
        let output = Command::new(&python)
            .args(["-W", "error", "-c", "import falcon_exchanges; falcon_exchanges.main()"])
            .env("PYTHONPATH", format!("{package}:{clients}"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{python}: {errors}");
    }
}

/// Calls that are submitted and waited for one by one go on when their owner, which has a journal,
/// is killed and started again; none that is once runs twice.
#[test]
fn single_python_calls_outlive_their_owner() {
    let jobs = Jobs::start("falcon-singles", &[RESTARTS, "--journal", "--slots", "4"]);
    let mut calls = Killed(python(
        &jobs,
        "import concord, os, sys, tempfile, threading, time\n\
         path = tempfile.mkdtemp()\n\
         with open(path + '/single_calls.py', 'w') as file:\n\
         \x20 file.write('import os\\ndef once(path): os.close(os.open(path, os.O_CREAT | os.O_EXCL))\\n')\n\
         sys.path.insert(0, path)\n\
         import single_calls\n\
         failed, done, ends = [], [0], threading.Event()\n\
         def client(number):\n\
         \x20 at = 0\n\
         \x20 while not ends.is_set():\n\
         \x20   at += 1\n\
         \x20   try: executor.submit(single_calls.once, f'{path}/{number}.{at}').result(60); done[0] += 1\n\
         \x20   except Exception as error: failed.append(repr(error))\n\
         with concord.Executor(once=True, path=[path, os.environ['PYTHONPATH']]) as executor:\n\
         \x20 threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]\n\
         \x20 [thread.start() for thread in threads]\n\
         \x20 for line in sys.stdin: print(done[0], flush=True)\n\
         \x20 ends.set()\n\
         \x20 [thread.join() for thread in threads]\n\
         print(failed, flush=True)\n",
    ));
    let mut asks = calls.0.stdin.take().unwrap();
    let mut done = || {
        asks.write_all(b"\n").unwrap();
        line(&mut calls.0).parse::<u64>().unwrap()
    };
    for _ in 0..3 {
        let before = done();
        until("calls", || done() > before + 20);
        let owner = jobs.rack.pid("tasks-owner-1");
        Rack::signal(owner, "-9");
        until("owner", || jobs.say("job", &["ls"]).status.success());
    }
    let before = done();
    until("calls of the last owner", || done() > before + 20);
    drop(asks);
    assert_eq!(line(&mut calls.0), "[]");
}

/// An owner without a journal that is started again counts jobs from 1: whoever waited for its job
/// 1 is not told of another one's, and cancels none.
#[test]
fn bug_21_80_another_owners_job_is_not_taken_for_ones_own() {
    let jobs = Jobs::start("falcon-other-owner", &[RESTARTS, "--slots", "4"]);
    let file = jobs.rack.file();
    let mut executor = Killed(python(
        &jobs,
        "import concord, time\n\
         with concord.Executor(path=[__import__('os').environ['PYTHONPATH']]) as executor:\n\
         \x20 future = executor.submit(time.sleep, 60)\n\
         \x20 while not future._place: time.sleep(0.01)\n\
         \x20 print('ready', flush=True)\n\
         \x20 print(repr(future.exception(60)), flush=True)\n",
    ));
    assert_eq!(line(&mut executor.0), "ready");
    let starts = |args: &[&str]| {
        let mut command = Command::new(CONCORD);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        Killed(command.spawn().unwrap())
    };
    let submits = |more: &[&str]| {
        let mut own = starts(&[&["submit", "--config", &file, "--wait"][..], more].concat());
        assert!(line(&mut own.0).starts_with("job "));
        own
    };
    let mut waits = submits(&["--", "sleep", "47.71"]);
    let mut cancels = submits(&["--", "sleep", "47.71"]);
    let both = jobs.submit(&["--array", "0-1", "--", "sh", "-c", "[ {} = 0 ] || sleep 47.71"]);
    let mut reads = starts(&["job", "--config", &file, "results", "--wait", &both]);
    assert!(line(&mut reads.0).starts_with("task 0: done"));
    let all = [&executor, &waits, &cancels].map(|own| own.0.id());
    all.iter().for_each(|pid| Rack::signal(*pid, "-STOP"));
    let owner = jobs.rack.pid("tasks-owner-1");
    Rack::signal(owner, "-9");
    until("owner", || jobs.say("job", &["ls"]).status.success());
    for job in ["1", "2", "3"] {
        assert_eq!(jobs.submit(&["--sleep", "5s"]), job);
    }
    Rack::signal(all[2], "-INT");
    all.iter().for_each(|pid| Rack::signal(*pid, "-CONT"));
    let ended = |own: &mut Killed| {
        let status = own.0.wait().unwrap();
        let mut text = String::new();
        BufReader::new(own.0.stderr.take().unwrap()).read_to_string(&mut text).unwrap();
        (status.code(), text)
    };
    let (status, text) = ended(&mut waits);
    assert_ne!(status, Some(0), "{text}");
    assert!(text.contains("started again without a journal"), "{text}");
    let (_, text) = ended(&mut cancels);
    assert!(text.contains("started again without a journal"), "{text}");
    let (status, text) = ended(&mut reads);
    assert_ne!(status, Some(0), "{text}");
    assert!(text.contains("started again without a journal"), "{text}");
    let told = line(&mut executor.0);
    assert!(told.contains("lost") && told.contains("without a journal"), "{told}");
    for job in ["1", "2", "3"] {
        assert_eq!(jobs.results(job)[&0]["how"], "done", "nobody cancelled it");
    }
    until("end of what nobody owns", || !runs("sleep 47.71"));
}

/// What the program that became a worker had started before is nobody's command.
#[test]
fn bug_21_81_what_was_started_before_the_worker_goes_on() {
    let jobs = Jobs::start("falcon-before", &["--workers", "1"]);
    Rack::signal(jobs.rack.pid("tasks-worker-1"), "-9");
    let program = "setsid sleep 47.81 & echo $!; exec \"$0\" worker --config \"$1\"";
    let worker = Command::new("sh")
        .args(["-c", program])
        .arg(CONCORD)
        .arg(jobs.rack.file())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut worker = Killed(worker);
    let mut text = String::new();
    BufReader::new(worker.0.stdout.as_mut().unwrap()).read_line(&mut text).unwrap();
    let agent: u32 = text.trim().parse().unwrap();
    for _ in 0..3 {
        let done = jobs.text("submit", &["--array", "0-9", "--wait", "--", "true"]);
        assert!(done.contains("10 done"), "{done}");
    }
    assert!(runs("sleep 47.81"), "it was killed");
    Rack::signal(worker.0.id(), "-TERM");
    worker.0.wait().unwrap();
    assert!(runs("sleep 47.81"), "it was killed at the worker's end");
    Rack::signal(agent, "-KILL");
}

/// The page of jobs: a task has one row, however many looks overlap, and a second click on "try
/// again" has the first one's key.
#[test]
fn bug_21_89_the_page_shows_each_task_once() {
    let own = env!("CARGO_MANIFEST_DIR");
    let program = format!("{own}/tests/clients/jobs_page.js");
    let page = format!("{own}/../runtime/src/http/jobs.html");
    match Command::new("node").args([program, page]).output() {
        Ok(told) => assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr)),
        Err(error) => eprintln!("not tried without node: {error}"),
    }
}

/// A worker that is drained, over HTTP or by its command, takes no more tasks, ends what it runs,
/// ends, and is not started again; the other one does the rest.
#[test]
fn a_drained_worker_ends_what_it_runs() {
    let jobs = Jobs::start("falcon-drained", &[RESTARTS, "--slots", "2"]);
    let at = jobs.rack.run.join("ran");
    let script = format!("echo {{}} >> {}; sleep 1.5", at.display());
    let four = jobs.submit(&["--array", "0-3", "--once", "--", "sh", "-c", &script]);
    until("all four", || crate::falcon::lines(&at).len() == 4);
    let pid = jobs.rack.pid("tasks-worker-2");
    let token = jobs.token();
    let told = jobs.http(
        &format!("POST /workers/2/drain?within_ms=60000 HTTP/1.1\r\nAuthorization: Bearer {token}"),
        "",
    );
    assert!(told.contains("\"tasks\":2,\"worker\":2"), "{told}");
    let more = jobs.submit(&["--array", "0-5", "--once", "--", "true"]);
    assert!(jobs.results(&four).values().all(|told| told["how"] == "done"));
    assert_eq!(jobs.results(&more).len(), 6);
    until("its end", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(!jobs.say("drain", &["2"]).status.success(), "nobody is there");
    assert!(!jobs.say("drain", &["9"]).status.success());
    // What does not end in time is begun again elsewhere: here once the other one is drained, too.
    let slow = jobs.submit(&["--", "sleep", "47.91"]);
    until("its start", || runs("sleep 47.91"));
    let text = jobs.text("drain", &["1", "--within", "300ms"]);
    assert!(text.contains("the 1 that it has"), "{text}");
    until("its end", || !runs("sleep 47.91"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    let pids = std::fs::read_to_string(jobs.rack.run.join("pids")).unwrap();
    assert!(!pids.contains("worker"), "{pids}");
    assert_eq!(jobs.show(&slow)["waiting"], 1);
}
