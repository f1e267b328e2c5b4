//! The commands that a worker runs: each in a process group of its own, which is killed as a whole
//! when the command has ended or is to end, so that nothing of it is left.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;

use concord_core::{Instant, MS};
use concord_wire::tasks::{Attempt, Ended, OUTPUT_BYTES_MAX};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};

use super::descendants::{SharedDescendants, watched};
use super::reaper::kill;
use crate::driver::ROLE_TOKEN_MIN;
use crate::error::{Context, Error};
use crate::poller::{Event, Interest, Poller, Token};

/// The bytes of output read at once.
const READ_BYTES: usize = 64 << 10;
/// The largest number of reads after a command has ended: its descendants may go on writing.
const LAST_READS_MAX: usize = 64;
/// The longest arguments of a command in bytes, with its parameters filled in: what Linux accepts
/// with a stack of 8 MiB.
const ARGV_BYTES_MAX: usize = 2 << 20;
/// The exit status of a shell for it.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The body of a job of commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandBody {
    /// The program and its arguments. In those of a command `{}` stands for the task's parameters,
    /// and `{{}}` for `{}`.
    pub argv: Vec<String>,
    /// Its directory; the worker's own if there is none.
    pub directory: Option<String>,
    /// The number of the first task.
    pub first: u32,
    /// The tasks' numbers, if they are not consecutive from `first`.
    pub numbers: Vec<u32>,
    /// Variables of its environment, beside the worker's own.
    pub environment: Vec<(String, String)>,
    /// The time in ms between SIGTERM and SIGKILL if it is cancelled or takes too long. With 0 it
    /// is killed at once.
    pub grace_ms: u32,
}

/// The body as earlier versions of owners wrote it.
#[derive(Deserialize)]
struct FirstBody {
    argv: Vec<String>,
    directory: Option<String>,
    first: u32,
}

impl CommandBody {
    /// Parses a body that an owner sent.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<CommandBody> {
        postcard::from_bytes(bytes).ok().or_else(|| {
            let FirstBody { argv, directory, first } = postcard::from_bytes(bytes).ok()?;
            Some(CommandBody { argv, directory, first, ..CommandBody::default() })
        })
    }

    /// The number of a task, as shown to a person.
    #[must_use]
    pub fn number(&self, tid: u32) -> u32 {
        let own = self.numbers.get(tid as usize).copied();
        own.unwrap_or_else(|| self.first.saturating_add(tid))
    }
}

/// A run that ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub run: u32,
    pub ended: Ended,
    pub output: Vec<u8>,
    pub output_bytes: u64,
    /// Whether it did not begin because this host lacks something that it may have again later: the
    /// task goes back to its owner.
    pub is_returned: bool,
}

impl Finished {
    /// The outcome of a run that never began.
    pub(super) fn failed(run: u32, ended: Ended, why: &str) -> Finished {
        let (output, output_bytes) = (why.as_bytes().to_vec(), why.len() as u64);
        Finished { run, ended, output, output_bytes, is_returned: false }
    }
}

#[derive(Debug)]
struct Process {
    run: u32,
    child: Child,
    /// Readable once it has ended.
    end: OwnedFd,
    pipe: Option<PipeReader>,
    output: Vec<u8>,
    output_bytes: u64,
    /// Whether its outcome is not wanted.
    is_killed: bool,
    /// Whether its time limit has passed.
    is_late: bool,
    grace_ns: u64,
    /// When it is killed, after it was told to end.
    kill_at: Option<Instant>,
}

/// The result of stopping a run whose time limit has passed.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It was killed; this is its outcome, with the output so far.
    Told(Finished),
    /// It was told to end; its outcome follows when it has.
    Later,
}

/// All running commands.
#[derive(Debug)]
pub(super) struct Processes {
    poller: Rc<Poller>,
    descendants: SharedDescendants,
    /// The commands by key. Each has two tokens, of which the first, an even one, is the key: one
    /// for its end, one for its output.
    all: BTreeMap<u64, Process>,
    next_token: u64,
    buffer: Vec<u8>,
}

impl Processes {
    pub(super) fn new(poller: Rc<Poller>, descendants: SharedDescendants) -> Processes {
        Processes {
            poller,
            descendants,
            all: BTreeMap::new(),
            next_token: ROLE_TOKEN_MIN + 4,
            buffer: vec![0; READ_BYTES],
        }
    }

    /// The number that run, or were killed and have not ended.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Starts a command. `Err` if it ended with that.
    pub(super) fn start(
        &mut self,
        run: u32,
        of: Attempt,
        body: &CommandBody,
        parameters: &[u8],
    ) -> Result<(), Finished> {
        let argv = filled(&body.argv, parameters).map_err(|bytes| {
            let name = body.argv.first().map_or("", String::as_str);
            let why = format!(
                "concord: cannot execute {name}: with the task's line in place of {{}} its arguments are {bytes} bytes \
                 long, of at most {ARGV_BYTES_MAX}\n"
            );
            Finished::failed(run, Ended::Exited(NOT_EXECUTABLE), &why)
        })?;
        self.spawn(run, of, body, &argv).map_err(|error| {
            let argv = argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            let body =
                CommandBody { argv, directory: body.directory.clone(), ..Default::default() };
            cannot_execute(run, &body, &error)
        })
    }

    fn spawn(
        &mut self,
        run: u32,
        of: Attempt,
        body: &CommandBody,
        argv: &[OsString],
    ) -> std::io::Result<()> {
        let mut command = command_of(argv, body)?;
        let (read, write) = pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(write.try_clone()?)
            .stderr(write)
            .env("CONCORD_JOB", of.jid.to_string())
            .env("CONCORD_TASK", body.number(of.tid).to_string())
            .env("CONCORD_ATTEMPT", of.attempt.to_string());
        let mark = self.descendants.borrow_mut().mark(&mut command);
        let descendants = Rc::clone(&self.descendants);
        let (child, end) = spawn_watched(command, |child| {
            watched(&descendants, child, mark, |child| self.watch(child, &read))
        })?;
        let process = Process {
            run,
            child,
            end,
            pipe: Some(read),
            output: Vec::new(),
            output_bytes: 0,
            is_killed: false,
            is_late: false,
            grace_ns: u64::from(body.grace_ms) * MS,
            kill_at: None,
        };
        self.all.insert(self.next_token, process);
        self.next_token += 2;
        Ok(())
    }

    /// Lets the poller watch its end and its output.
    fn watch(&mut self, child: &Child, read: &PipeReader) -> Result<OwnedFd, Error> {
        let what = "watch a command";
        rustix::io::ioctl_fionbio(read, true).cannot(what)?;
        let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).cannot(what)?;
        self.poller.add(&end, Token(self.next_token), Interest::READ)?;
        self.poller.add(read, Token(self.next_token + 1), Interest::READ)?;
        Ok(end)
    }

    /// Ends a run whose outcome is not wanted. If it was cancelled, it is told first if its job
    /// says so; without a lease it is killed at once.
    pub(super) fn kill(&mut self, now: Instant, run: u32, is_cancelled: bool) {
        for process in self.all.values_mut().filter(|process| process.run == run) {
            process.is_killed = true;
            if !is_cancelled || !process.terminate(now) {
                kill(process.child.id());
            }
        }
    }

    /// Ends a run whose time limit has passed; its outcome is reported.
    pub(super) fn stop(&mut self, now: Instant, run: u32) -> Option<Stopped> {
        let process = self.all.values_mut().find(|process| process.run == run)?;
        process.is_late = true;
        if process.terminate(now) {
            return Some(Stopped::Later);
        }
        process.is_killed = true;
        kill(process.child.id());
        for _ in 0..LAST_READS_MAX {
            if process.read(&mut self.buffer) != Left::Perhaps {
                break;
            }
        }
        let (output, output_bytes) = (std::mem::take(&mut process.output), process.output_bytes);
        let ended = Ended::TimedOut;
        let told = Finished { run, ended, output, output_bytes, is_returned: false };
        Some(Stopped::Told(told))
    }

    /// The time at which the next command is killed that was told to end.
    pub(super) fn wakes_at(&self) -> Instant {
        let at = self.all.values().filter_map(|process| process.kill_at).min();
        at.unwrap_or(Instant::NEVER)
    }

    /// Kills the commands that were told to end and have not in their time.
    pub(super) fn end_late(&mut self, now: Instant) {
        for process in self.all.values_mut() {
            if process.kill_at.take_if(|at| *at <= now).is_some() {
                kill(process.child.id());
            }
        }
    }

    /// Handles one of their descriptors that is ready. Returns a run if it ended with that.
    pub(super) fn event(&mut self, event: Event) -> Result<Option<Finished>, Error> {
        let token = event.token.0;
        let key = token & !1;
        let Some(process) = self.all.get_mut(&key) else { return Ok(None) };
        if token != key {
            if process.read(&mut self.buffer) == Left::Nothing
                && let Some(pipe) = process.pipe.take()
            {
                self.poller.remove(&pipe);
            }
            return Ok(None);
        }
        let Some(mut process) = self.all.remove(&key) else { return Ok(None) };
        self.poller.remove(&process.end);
        for _ in 0..LAST_READS_MAX {
            if process.read(&mut self.buffer) != Left::Perhaps {
                break;
            }
        }
        if let Some(pipe) = &process.pipe {
            self.poller.remove(pipe);
        }
        // Its descendants end with it. It was not waited for, so the group's number is still its
        // own.
        kill(process.child.id());
        self.descendants.borrow_mut().ended(process.child.id())?;
        let status = process.child.wait().cannot("wait for a command")?;
        let Process { run, output, output_bytes, is_killed, is_late, .. } = process;
        let ended = if is_late { Ended::TimedOut } else { how_it_ended(status) };
        let finished = Finished { run, ended, output, output_bytes, is_returned: false };
        Ok((!is_killed).then_some(finished))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in self.all.values_mut() {
            kill(process.child.id());
            let _ = process.child.wait();
        }
    }
}

/// Whether output is left to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Perhaps,
    NothingNow,
    Nothing,
}

impl Process {
    /// Tells it, and all processes of its group, to end; it is killed when its grace is over.
    /// `false` if it has no grace.
    fn terminate(&mut self, now: Instant) -> bool {
        if self.grace_ns == 0 {
            return false;
        }
        if self.kill_at.is_none() {
            self.kill_at = Some(now.after(self.grace_ns));
            // The process may be gone.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::TERM);
        }
        true
    }

    /// Reads once. Of output beyond the limit only the length is kept.
    fn read(&mut self, buffer: &mut [u8]) -> Left {
        let Some(pipe) = &mut self.pipe else { return Left::Nothing };
        match pipe.read(buffer) {
            Ok(0) => Left::Nothing,
            Ok(count) => {
                let room = OUTPUT_BYTES_MAX - self.output.len();
                self.output.extend_from_slice(&buffer[..count.min(room)]);
                self.output_bytes += count as u64;
                Left::Perhaps
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Left::NothingNow
            }
            Err(_) => Left::Nothing,
        }
    }
}

/// A command of a job, in a process group of its own and in its directory.
pub(super) fn command_of(
    argv: &[impl AsRef<OsStr>],
    body: &CommandBody,
) -> std::io::Result<Command> {
    let none = || std::io::Error::new(ErrorKind::NotFound, "no command");
    let (name, args) = argv.split_first().ok_or_else(none)?;
    let mut command = Command::new(name);
    command.args(args).process_group(0);
    command.envs(body.environment.iter().map(|(name, value)| (name, value)));
    if let Some(directory) = &body.directory {
        command.current_dir(directory);
    }
    // `concord up` sets it for its own roles.
    if std::env::var_os("GLIBC_TUNABLES").is_some_and(|set| set == crate::TUNABLES) {
        command.env_remove("GLIBC_TUNABLES");
    }
    Ok(command)
}

/// Starts a command and watches it. If it cannot be watched, it is killed.
pub(super) fn spawn_watched<T>(
    mut command: Command,
    watch: impl FnOnce(&mut Child) -> Result<T, Error>,
) -> std::io::Result<(Child, T)> {
    let mut child = command.spawn()?;
    // Only the command holds the writing ends now.
    drop(command);
    match watch(&mut child) {
        Ok(watched) => Ok((child, watched)),
        Err(error) => {
            kill(child.id());
            let _ = child.wait();
            Err(std::io::Error::new(ErrorKind::ResourceBusy, error.to_string()))
        }
    }
}

/// The arguments with the parameters filled in. `Err` with their length in bytes, if that exceeds
/// what a program may be given.
fn filled(argv: &[String], text: &[u8]) -> Result<Vec<OsString>, usize> {
    const ESCAPED: &str = "{{}}";
    let places = |arg: &String| arg.matches("{}").count() - arg.matches(ESCAPED).count();
    let bytes = |arg: &String| arg.len() + 1 + places(arg).saturating_mul(text.len());
    let all = argv.iter().map(bytes).fold(0, usize::saturating_add);
    if all > ARGV_BYTES_MAX {
        return Err(all);
    }
    let fill = |arg: &String| {
        let filled =
            |part: &str| part.split("{}").map(str::as_bytes).collect::<Vec<_>>().join(text);
        let parts: Vec<Vec<u8>> = arg.split(ESCAPED).map(filled).collect();
        OsString::from_vec(parts.join(&b"{}"[..]))
    };
    Ok(argv.iter().map(fill).collect())
}

/// Whether this host lacks descriptors, processes or memory, which it may have again later.
fn is_for_want(error: &std::io::Error) -> bool {
    let lacks = [
        rustix::io::Errno::MFILE,
        rustix::io::Errno::NFILE,
        rustix::io::Errno::AGAIN,
        rustix::io::Errno::NOMEM,
    ];
    // Watching fails for the same reasons.
    error.kind() == ErrorKind::ResourceBusy
        || error.raw_os_error().is_some_and(|raw| lacks.iter().any(|l| l.raw_os_error() == raw))
}

/// The outcome of a command that cannot be started: as in a shell; for lack of descriptors or
/// processes it is given back.
pub(super) fn cannot_execute(run: u32, body: &CommandBody, error: &std::io::Error) -> Finished {
    let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    let name = body.argv.first().map_or("", String::as_str);
    let inside = body.directory.as_ref().map_or_else(String::new, |d| format!(" in {d}"));
    let why = format!("concord: cannot execute {name}{inside}: {error}\n");
    let is_returned = is_for_want(error);
    Finished { is_returned, ..Finished::failed(run, Ended::Exited(status), &why) }
}

pub(super) fn how_it_ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Done,
        (Some(code), _) => Ended::Exited(code as u8),
        (None, Some(signal)) => Ended::Killed(signal as u8),
        (None, None) => Ended::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use crate::falcon::worker::descendants::Descendants;

    fn body(argv: &[&str]) -> CommandBody {
        CommandBody { argv: argv.iter().map(ToString::to_string).collect(), ..Default::default() }
    }

    fn processes() -> (Rc<Poller>, Processes) {
        let poller = Rc::new(Poller::new().unwrap());
        (Rc::clone(&poller), Processes::new(poller, Descendants::shared(None).unwrap()))
    }

    /// What ends first, or within that time.
    fn next(poller: &Poller, processes: &mut Processes, ms: u64) -> Option<Finished> {
        let (mut raw, mut events, began) = (vec![], vec![], Instant::now());
        while began.elapsed() < Duration::from_millis(ms) {
            let now = crate::clock::now().instant;
            poller.wait(now, now.after(10_000_000), &mut raw, &mut events).unwrap();
            for event in &events {
                if let Some(finished) = processes.event(*event).unwrap() {
                    return Some(finished);
                }
            }
        }
        None
    }

    fn now() -> concord_core::Instant {
        crate::clock::now().instant
    }

    fn run(body: &CommandBody, parameters: &str) -> Finished {
        let (poller, mut processes) = processes();
        let of = Attempt { uid: 1, jid: 7, tid: 2, attempt: 3 };
        match processes.start(5, of, body, parameters.as_bytes()) {
            Ok(()) => next(&poller, &mut processes, 20_000).unwrap(),
            Err(finished) => finished,
        }
    }

    #[test]
    fn a_command_gives_its_output_and_its_status() {
        let told = "echo $CONCORD_JOB $CONCORD_TASK $CONCORD_ATTEMPT; echo \"$0\" >&2; exit 3";
        let body = CommandBody { first: 40, ..body(&["sh", "-c", told, "<{}>"]) };
        let Finished { run: number, ended, output, output_bytes, .. } = run(&body, "a b");
        assert_eq!((number, ended), (5, Ended::Exited(3)));
        let text = String::from_utf8(output).unwrap();
        assert_eq!((&text[..], output_bytes), ("7 42 3\n<a b>\n", 13));
        assert_eq!(run(&super::tests::body(&["true"]), "").ended, Ended::Done);
        let killed = run(&super::tests::body(&["sh", "-c", "kill -TERM $$"]), "");
        assert_eq!(killed.ended, Ended::Killed(15));
    }

    /// `{{}}` is a pair of braces, and a line that would take gigabytes of arguments is refused
    /// before it does.
    #[test]
    fn bug_21_56_braces_have_an_escape_and_arguments_a_length() {
        let all = |args: &[&str], text: &str| filled(&body(args).argv, text.as_bytes());
        let some = |args: &[&str]| Ok(args.iter().map(OsString::from).collect());
        assert_eq!(
            all(&["a{}b{}", "{{}}", "{{{}}}", "{"], "x"),
            some(&["axbx", "{}", "{{}}", "{"])
        );
        let (many, line) = ("{}".repeat(1_000), "x".repeat(1 << 20));
        assert_eq!(all(&["echo", &many], &line), Err(5 + 2_001 + (1_000 << 20)));
        let refused = run(&body(&["echo", &many]), &line);
        assert_eq!(refused.ended, Ended::Exited(126));
        let text = String::from_utf8(refused.output).unwrap();
        assert!(text.contains("of at most 2097152") && text.len() < 200, "{text}");
    }

    /// What a host lacks for a moment is no failure of the task.
    #[test]
    fn bug_21_57_a_task_goes_back_where_descriptors_are_missing() {
        let lacks = |errno: rustix::io::Errno| {
            let error = std::io::Error::from_raw_os_error(errno.raw_os_error());
            cannot_execute(1, &body(&["true"]), &error).is_returned
        };
        use rustix::io::Errno;
        assert!([Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM].map(lacks) == [true; 4]);
        assert!([Errno::NOENT, Errno::ACCESS].map(lacks) == [false; 2]);
        let unwatched =
            spawn_watched(command_of(&body(&["true"]).argv, &body(&[])).unwrap(), |_| {
                Err::<(), _>(Error::new("no descriptor"))
            });
        assert!(is_for_want(&unwatched.unwrap_err()));
    }

    /// At its limit a command had written something: it is told.
    #[test]
    fn bug_21_67_a_command_that_takes_too_long_has_its_output() {
        let (poller, mut processes) = processes();
        let of = Attempt::default();
        processes.start(1, of, &body(&["sh", "-c", "echo so far; sleep 60"]), b"").unwrap();
        let began = Instant::now();
        while processes.all.values().all(|process| process.output.is_empty()) {
            assert!(next(&poller, &mut processes, 10).is_none());
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        let Some(Stopped::Told(told)) = processes.stop(now(), 1) else { panic!("it has no time") };
        assert_eq!((told.ended, &told.output[..]), (Ended::TimedOut, &b"so far\n"[..]));
        while processes.len() > 0 {
            assert!(next(&poller, &mut processes, 10).is_none(), "it is told once");
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }

    #[test]
    fn what_cannot_be_executed_ends_as_it_does_in_a_shell() {
        let missing = run(&body(&["no-such-command-here"]), "");
        assert_eq!(missing.ended, Ended::Exited(127));
        let text = String::from_utf8(missing.output).unwrap();
        assert!(text.starts_with("concord: cannot execute no-such-command-here: "), "{text}");
        assert_eq!(run(&body(&["/etc/passwd"]), "").ended, Ended::Exited(126));
        let nowhere = CommandBody { directory: Some("/no/such".to_string()), ..body(&["true"]) };
        let text = String::from_utf8(run(&nowhere, "").output).unwrap();
        assert!(text.contains("true in /no/such"), "{text}");
        let none = run(&CommandBody::default(), "");
        assert_eq!(none.ended, Ended::Exited(127));
    }

    #[test]
    fn of_a_long_output_the_first_is_kept_and_all_is_counted() {
        let finished = run(&body(&["head", "-c", "3000000", "/dev/zero"]), "");
        assert_eq!((finished.ended, finished.output_bytes), (Ended::Done, 3_000_000));
        assert!(finished.output == vec![0; OUTPUT_BYTES_MAX]);
    }

    /// With `--grace` a command is told to end, has its time for that, and its outcome has what it
    /// said in it; what does not end by then is killed.
    #[test]
    fn a_command_with_grace_is_told_before_it_is_killed() {
        let (poller, mut processes) = processes();
        let of = Attempt::default();
        let told = "trap 'echo put away; exit 3' TERM; echo begun; while :; do sleep 0.01; done";
        let body = CommandBody { grace_ms: 20_000, ..body(&["sh", "-c", told]) };
        let began = |processes: &mut Processes, poller: &Rc<Poller>| {
            let since = Instant::now();
            while processes.all.values().all(|process| process.output.is_empty()) {
                assert!(next(poller, processes, 10).is_none());
                assert!(since.elapsed() < Duration::from_secs(20));
            }
        };
        processes.start(1, of, &body, b"").unwrap();
        began(&mut processes, &poller);
        assert!(matches!(processes.stop(now(), 1), Some(Stopped::Later)));
        let finished = next(&poller, &mut processes, 20_000).unwrap();
        assert_eq!(finished.ended, Ended::TimedOut);
        // Some shells tell of the sleep that was told to end as well.
        let text = String::from_utf8(finished.output).unwrap();
        assert!(text.starts_with("begun\n") && text.ends_with("put away\n"), "{text}");
        // One without a lease has no time, nor has one whose time is over.
        for is_cancelled in [false, true] {
            let told = "trap '' TERM; echo begun; while :; do sleep 0.01; done";
            let body = CommandBody { grace_ms: 50, ..super::tests::body(&["sh", "-c", told]) };
            processes.start(2, of, &body, b"").unwrap();
            began(&mut processes, &poller);
            processes.kill(now(), 2, is_cancelled);
            assert_eq!(processes.wakes_at() != concord_core::Instant::NEVER, is_cancelled);
            let since = Instant::now();
            while processes.len() > 0 {
                processes.end_late(now());
                assert!(next(&poller, &mut processes, 10).is_none(), "nobody wants to know");
                assert!(since.elapsed() < Duration::from_secs(20));
            }
        }
    }

    /// What left its command's group and session ends with it: at its end and when it is killed,
    /// also where its environment does not say whose it is.
    #[test]
    fn bug_21_71_what_left_its_session_ends_with_its_command() {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let (poller, mut processes) = processes();
        // Other tests have children.
        processes.descendants.borrow_mut().own_strays(true);
        let of = Attempt::default();
        let is_alive = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        for (run, is_killed, env) in [(1, false, ""), (2, true, ""), (3, false, "env -i")] {
            let path = std::env::temp_dir().join(format!("escaped-{}-{run}", std::process::id()));
            let file = path.display();
            let escapes = format!(
                "{env} setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 60\" > {file} & exec sleep 60' > /dev/null &
                 until [ -s {file} ]; do sleep 0.01; done; {}",
                if is_killed { "sleep 60" } else { ":" }
            );
            processes.start(run, of, &body(&["sh", "-c", &escapes]), b"").unwrap();
            let since = Instant::now();
            let pid = loop {
                let _ = next(&poller, &mut processes, 10);
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                if let Ok(pid) = text.trim().parse::<u32>() {
                    break pid;
                }
                assert!(since.elapsed() < Duration::from_secs(20));
            };
            if is_killed {
                assert!(is_alive(pid));
                processes.kill(now(), run, false);
            }
            while processes.len() > 0 || is_alive(pid) {
                let _ = next(&poller, &mut processes, 10);
                processes.descendants.borrow_mut().sweep(now());
                assert!(since.elapsed() < Duration::from_secs(20), "{pid} of run {run} is left");
            }
            let _ = std::fs::remove_file(&path);
        }
    }

    /// The processes of a group that have not ended.
    fn alive(group: u32) -> usize {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = all.filter_map(|p| std::fs::read_to_string(p.path().join("stat")).ok());
        let fields = stats.filter_map(|s| Some(s.rsplit_once(") ")?.1.to_string()));
        let own = |fields: &String| {
            let mut fields = fields.split(' ');
            fields.next() != Some("Z") && fields.nth(1) == Some(&group.to_string()[..])
        };
        fields.filter(own).count()
    }

    /// What was killed takes a moment to end.
    fn none_is_left(group: u32) {
        let began = Instant::now();
        while alive(group) > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "some of {group} are left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn nothing_is_left_of_what_ended_or_was_killed() {
        let (poller, mut processes) = processes();
        let of = Attempt::default();
        processes.start(1, of, &body(&["sh", "-c", "sleep 60 & echo"]), b"").unwrap();
        let group = processes.all.values().next().unwrap().child.id();
        // It does not wait for what was started and holds the pipe.
        assert_eq!(next(&poller, &mut processes, 20_000).unwrap().ended, Ended::Done);
        none_is_left(group);
        processes.start(2, of, &body(&["sh", "-c", "sleep 60 & sleep 60"]), b"").unwrap();
        let group = processes.all.values().next().unwrap().child.id();
        processes.kill(now(), 2, true);
        let began = Instant::now();
        while processes.len() > 0 {
            assert!(next(&poller, &mut processes, 10).is_none(), "nobody wants to know");
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        none_is_left(group);
        assert!(!std::path::Path::new(&format!("/proc/{group}")).exists(), "no zombie");
        processes.start(3, of, &body(&["sleep", "60"]), b"").unwrap();
        let group = processes.all.values().next().unwrap().child.id();
        drop(processes);
        assert!(!std::path::Path::new(&format!("/proc/{group}")).exists());
    }
}
