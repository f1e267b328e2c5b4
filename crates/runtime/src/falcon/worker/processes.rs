//! The commands that a worker runs: each in a process group of its own, which is killed as a whole
//! when the command has ended or is to end, so that nothing of it is left.

use std::collections::BTreeMap;
use std::io::{ErrorKind, PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;

use concord_wire::tasks::{Attempt, Ended, OUTPUT_BYTES_MAX};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::handlers::SharedReaper;
use super::reaper::kill;
use crate::driver::ROLE_TOKEN_MIN;
use crate::error::{Context, Error};
use crate::poller::{Event, Interest, Poller, Token};

/// Bytes of output read at once.
const READ_BYTES: usize = 64 << 10;
/// Most reads of what is left when a command has ended: what it started may write on.
const LAST_READS_MAX: usize = 64;
/// As shells have it.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The body of a job of commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandBody {
    /// The program and its arguments; `{}` in them stands for the task's parameters.
    pub argv: Vec<String>,
    /// Where it runs; the worker's own directory if not said.
    pub directory: Option<String>,
    /// The number of the first task.
    pub first: u32,
}

/// A run that ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub run: u32,
    pub ended: Ended,
    pub output: Vec<u8>,
    pub output_bytes: u64,
}

impl Finished {
    /// A run that never began.
    pub(super) fn failed(run: u32, ended: Ended, why: &str) -> Finished {
        let (output, output_bytes) = (why.as_bytes().to_vec(), why.len() as u64);
        Finished { run, ended, output, output_bytes }
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
    /// Nobody wants to know how it ends.
    is_killed: bool,
}

/// All commands that run.
#[derive(Debug)]
pub(super) struct Processes {
    poller: Rc<Poller>,
    reaper: SharedReaper,
    /// Two tokens each, of which the first, an even one, is the key: of its end, of its output.
    all: BTreeMap<u64, Process>,
    next_token: u64,
    buffer: Vec<u8>,
}

impl Processes {
    pub(super) fn new(poller: Rc<Poller>, reaper: SharedReaper) -> Processes {
        Processes {
            poller,
            reaper,
            all: BTreeMap::new(),
            next_token: ROLE_TOKEN_MIN + 4,
            buffer: vec![0; READ_BYTES],
        }
    }

    /// How many run, or were killed and have not ended.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Starts a command. `Err`: it ended by that.
    pub(super) fn start(
        &mut self,
        run: u32,
        of: Attempt,
        body: &CommandBody,
        parameters: &[u8],
    ) -> Result<(), Finished> {
        let text = std::str::from_utf8(parameters)
            .map_err(|_| Finished::failed(run, Ended::Failed, "the parameters are no text"))?;
        let argv: Vec<String> = body.argv.iter().map(|arg| arg.replace("{}", text)).collect();
        self.spawn(run, of, body, &argv).map_err(|error| {
            let body = CommandBody { argv, ..body.clone() };
            cannot_execute(run, &body, &error)
        })
    }

    fn spawn(
        &mut self,
        run: u32,
        of: Attempt,
        body: &CommandBody,
        argv: &[String],
    ) -> std::io::Result<()> {
        let mut command = command_of(argv, body)?;
        let (read, write) = pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(write.try_clone()?)
            .stderr(write)
            .env("CONCORD_JOB", of.jid.to_string())
            .env("CONCORD_TASK", body.first.saturating_add(of.tid).to_string())
            .env("CONCORD_ATTEMPT", of.attempt.to_string());
        let (child, end) = spawn_watched(command, |child| self.watch(child, &read))?;
        let (output, output_bytes, is_killed) = (Vec::new(), 0, false);
        let process =
            Process { run, child, end, pipe: Some(read), output, output_bytes, is_killed };
        self.all.insert(self.next_token, process);
        self.next_token += 2;
        Ok(())
    }

    /// Has the poller watch its end and its output, and the reaper know of it.
    fn watch(&mut self, child: &Child, read: &PipeReader) -> Result<OwnedFd, Error> {
        if let Some(reaper) = self.reaper.borrow_mut().as_mut() {
            reaper.began(child.id())?;
        }
        let what = "watch a command";
        rustix::io::ioctl_fionbio(read, true).cannot(what)?;
        let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).cannot(what)?;
        self.poller.add(&end, Token(self.next_token), Interest::READ)?;
        self.poller.add(read, Token(self.next_token + 1), Interest::READ)?;
        Ok(end)
    }

    /// A run is to end; nobody wants to know how.
    pub(super) fn kill(&mut self, run: u32) {
        for process in self.all.values_mut().filter(|process| process.run == run) {
            process.is_killed = true;
            kill(process.child.id());
        }
    }

    /// One of their descriptors is ready; perhaps a run ended by that.
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
        // What it started ends with it. It was not waited for: the group's number is its own.
        kill(process.child.id());
        if let Some(reaper) = self.reaper.borrow_mut().as_mut() {
            reaper.ended(process.child.id())?;
        }
        let status = process.child.wait().cannot("wait for a command")?;
        let Process { run, output, output_bytes, is_killed, .. } = process;
        let finished = Finished { run, ended: how_it_ended(status), output, output_bytes };
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

/// What is left to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Perhaps,
    NothingNow,
    Nothing,
}

impl Process {
    /// One read. Of what is too much only the length is kept.
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

/// A command of a job, in a process group of its own, where it is to run.
pub(super) fn command_of(argv: &[String], body: &CommandBody) -> std::io::Result<Command> {
    let none = || std::io::Error::new(ErrorKind::NotFound, "no command");
    let (name, args) = argv.split_first().ok_or_else(none)?;
    let mut command = Command::new(name);
    command.args(args).process_group(0);
    if let Some(directory) = &body.directory {
        command.current_dir(directory);
    }
    // `concord up` sets it for its own roles.
    if std::env::var_os("GLIBC_TUNABLES").is_some_and(|set| set == crate::TUNABLES) {
        command.env_remove("GLIBC_TUNABLES");
    }
    Ok(command)
}

/// Starts a command and has it watched. What cannot be watched is killed.
pub(super) fn spawn_watched<T>(
    mut command: Command,
    watch: impl FnOnce(&mut Child) -> Result<T, Error>,
) -> std::io::Result<(Child, T)> {
    let mut child = command.spawn()?;
    // The ends that the command writes into are its own now.
    drop(command);
    match watch(&mut child) {
        Ok(watched) => Ok((child, watched)),
        Err(error) => {
            kill(child.id());
            let _ = child.wait();
            Err(std::io::Error::other(error.to_string()))
        }
    }
}

/// What cannot be started ends as it does in a shell.
pub(super) fn cannot_execute(run: u32, body: &CommandBody, error: &std::io::Error) -> Finished {
    let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    let name = body.argv.first().map_or("", String::as_str);
    let inside = body.directory.as_ref().map_or_else(String::new, |d| format!(" in {d}"));
    let why = format!("concord: cannot execute {name}{inside}: {error}\n");
    Finished::failed(run, Ended::Exited(status), &why)
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

    fn body(argv: &[&str]) -> CommandBody {
        CommandBody { argv: argv.iter().map(ToString::to_string).collect(), ..Default::default() }
    }

    fn processes() -> (Rc<Poller>, Processes) {
        let poller = Rc::new(Poller::new().unwrap());
        (Rc::clone(&poller), Processes::new(poller, SharedReaper::default()))
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
        let Finished { run: number, ended, output, output_bytes } = run(&body, "a b");
        assert_eq!((number, ended), (5, Ended::Exited(3)));
        let text = String::from_utf8(output).unwrap();
        assert_eq!((&text[..], output_bytes), ("7 42 3\n<a b>\n", 13));
        assert_eq!(run(&super::tests::body(&["true"]), "").ended, Ended::Done);
        let killed = run(&super::tests::body(&["sh", "-c", "kill -TERM $$"]), "");
        assert_eq!(killed.ended, Ended::Killed(15));
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
        processes.kill(2);
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
