//! `concord coord lock`: a lock with a lease and a fencing token, made of the chain's conditional
//! writes alone.
//!
//! The lock is a key. Its value names the holder and the duration of the lease. Each renewal
//! changes its version, and extends its time to live: the lease, and a margin for the difference of
//! clocks. When that is over, the chain deletes the key by a write of its head. A client that waits
//! sets the key once it does not exist; or, if no switch deletes it, once the version has not
//! changed for a whole lease by the client's own clock, counted from the answer that showed it. The
//! holder counts its lease from before its request (hole N9), and kills its command before the
//! lease is over. So no two clocks are compared: they only have to run at the same rate.
//!
//! The token is the version at which the lock was taken. Versions only increase, even after a
//! delete and in a chain that is founded anew: of two holders, the later one has the higher token.

use std::io::{IsTerminal as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use concord_client::coord::{self, Ended};
use concord_runtime::coord::{is_there, value_of};
use concord_runtime::{Context as _, Error, clock};
use concord_wire::netcraq::{Condition, Name, Outcome, Repr, State, Words};
use rustix::process::{Pid, Signal, kill_process_group};

use super::commands::{Chain, Failed, NO_ANSWER, named};

/// The exit status if the command was killed because another client could soon take the lock.
const LOST: u8 = 4;
/// The base of the exit status of a command that a signal has ended, as in shells: this plus the
/// signal.
const SIGNALLED: i32 = 128;
/// The minimum duration of a lease.
const TTL_MIN: Duration = Duration::from_millis(100);
/// The maximum duration of a lease, in ms: a day.
const TTL_MS_MAX: u64 = 86_400_000;
/// The holder renews after this part of the lease, and kills the command this part before its end.
const RENEWALS: u32 = 4;
const KILLS: u32 = 8;
/// Other clients wait longer than the lease by this part of it, since clocks run at different
/// rates.
const DRIFT: u32 = 50;
/// The maximum interval at which the command, and another client's lock, are checked.
const LOOK: Duration = Duration::from_millis(10);
const POLL: Duration = Duration::from_millis(25);
/// The environment variable by which `concord reap` recognizes the processes to kill.
const MARK: &str = "CONCORD_RUN";

/// A lock that is held: the version of the key, the token, and the time of the last request.
struct Held {
    version: u64,
    token: u64,
    asked_at: Instant,
}

/// The lock that this process wants.
struct Lock<'a> {
    chain: &'a mut Chain,
    name: &'a str,
    key: Name,
    ttl: Duration,
    /// The value that only this process writes.
    value: (State, Words),
    text: String,
}

/// Runs a command while the lock is held.
///
/// # Errors
/// If another client has the lock for as long as this waits, if no switch answers, or for a mistake
/// in the arguments.
pub(super) fn run(
    chain: &mut Chain,
    name: &str,
    ttl: Duration,
    wait: Duration,
    command: &[String],
) -> Result<ExitCode, Failed> {
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    if ttl < TTL_MIN || ttl_ms > TTL_MS_MAX {
        return Err(Error::new("--ttl: a lease has 100ms to 24h").into());
    }
    let drawn = clock::entropy().cannot("get randomness")?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (host, pid) = (host.trim(), std::process::id());
    let mut text = format!("{ttl_ms} {drawn:016x} {host}:{pid}");
    // In the shortest values there is room for the lease and half of the random part.
    let is_whole = |at: &usize| text.is_char_boundary(*at);
    let most = text.len().min(chain.value_bytes());
    text.truncate((0..=most).rev().find(is_whole).unwrap_or(0));
    let value = chain.value(&text)?;
    let mut lock = Lock { key: named(name)?, chain, name, ttl, value, text };
    let held = lock.acquire(wait)?;
    lock.hold(held, &format!("{drawn:016x}"), command)
}

/// The duration of a lock's lease, from its value.
fn lease_of(value: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?;
    let ms: u64 = text.split(' ').next()?.parse().ok()?;
    text.contains(' ').then_some(Duration::from_millis(ms.min(TTL_MS_MAX)))
}

impl Lock<'_> {
    /// Acquires the lock, as soon as it is free.
    fn acquire(&mut self, wait: Duration) -> Result<Held, Failed> {
        let began = Instant::now();
        // The version of another client's lock that was seen, and the time since when.
        let mut seen: Option<(u64, Instant)> = None;
        loop {
            let answer = self.chain.client.read(self.key)?.ok_or(NO_ANSWER)?;
            let read_at = Instant::now();
            let found = value_of(&answer);
            let (condition, basis) = match is_there(&answer) {
                false => (Condition::Absent, 0),
                // An earlier write of this process whose answer was lost: the lease counts from the
                // next one.
                true if found == self.text.as_bytes() => (Condition::Version, answer.basis),
                true => {
                    let lease = lease_of(&found).ok_or_else(|| {
                        Failed::Refused(format!("the key {} is no lock", self.name))
                    })?;
                    let since = seen.filter(|(version, _)| *version == answer.basis);
                    let (version, since) = since.unwrap_or((answer.basis, read_at));
                    seen = Some((version, since));
                    if read_at.duration_since(since) <= lease + lease / DRIFT {
                        let holder = String::from_utf8_lossy(&found).into_owned();
                        self.pause(began, wait, &holder)?;
                        continue;
                    }
                    (Condition::Version, version)
                }
            };
            if let Some(held) = self.set(condition, basis, None)? {
                return Ok(held);
            }
        }
    }

    /// Waits for a moment, if there is time left.
    fn pause(&self, began: Instant, wait: Duration, holder: &str) -> Result<(), Failed> {
        if began.elapsed() >= wait {
            let name = self.name;
            return Err(Failed::Refused(format!("the lock {name} is held by {holder}")));
        }
        std::thread::sleep(POLL.min(wait.saturating_sub(began.elapsed())));
        Ok(())
    }

    /// Sets the key to its own value; `None` if the outcome is unknown.
    fn set(
        &mut self,
        condition: Condition,
        basis: u64,
        patience: Option<Duration>,
    ) -> Result<Option<Held>, Failed> {
        let asked_at = Instant::now();
        let (state, words) = self.value;
        let lease = self.ttl + self.ttl / DRIFT;
        let deadline = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let call = Repr { basis, deadline, ..coord::set(self.key, condition, state, words) };
        let ended = match patience {
            Some(patience) => self.chain.client.call_within(call, patience)?,
            None => self.chain.client.call(call)?,
        };
        match ended {
            Ended::Answer(answer) if answer.outcome == Outcome::Done => {
                let (version, token) = (answer.basis, answer.basis);
                Ok(Some(Held { version, token, asked_at }))
            }
            Ended::Answer(answer) if answer.outcome == Outcome::NoCell => {
                Err(Failed::Refused(format!("no cell is left for {}", self.name)))
            }
            _ => Ok(None),
        }
    }

    /// Runs the command, and renews the lease meanwhile.
    fn hold(&mut self, mut held: Held, mark: &str, command: &[String]) -> Result<ExitCode, Failed> {
        let mut running = match Running::start(command, held.token, mark) {
            Ok(running) => running,
            Err(error) => {
                self.release(&held);
                return Err(error.into());
            }
        };
        let kill_after = self.ttl - self.ttl / KILLS;
        loop {
            if let Some(status) = running.child.try_wait().cannot("wait for the command")? {
                running.end();
                self.release(&held);
                let code = status.code().or(status.signal().map(|n| SIGNALLED + n)).unwrap_or(1);
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
            let age = held.asked_at.elapsed();
            if age >= kill_after {
                running.end();
                let name = self.name;
                eprintln!(
                    "concord: the lease of {name} could not be renewed: its command was killed"
                );
                return Ok(ExitCode::from(LOST));
            }
            if age >= self.ttl / RENEWALS {
                self.renew(&mut held, kill_after - age)?;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Renews the lease if that is possible at once, since the command has to be watched.
    fn renew(&mut self, held: &mut Held, left: Duration) -> Result<(), Failed> {
        let patience = left.min(self.ttl / KILLS);
        if let Some(next) = self.set(Condition::Version, held.version, Some(patience))? {
            *held = Held { token: held.token, ..next };
            return Ok(());
        }
        // The renewal may have been executed; the lease then counts from before this read at the
        // latest.
        let asked_at = held.asked_at;
        let read = self.chain.client.call_within(coord::get(self.key), patience)?;
        if let Ended::Answer(answer) = read
            && is_there(&answer)
            && value_of(&answer) == self.text.as_bytes()
        {
            *held = Held { version: answer.basis, token: held.token, asked_at };
        }
        Ok(())
    }

    /// Deletes the key, if it still belongs to this process. If no switch answers, the lease ends
    /// by itself.
    fn release(&mut self, held: &Held) {
        let call = coord::del(self.key, Condition::Version);
        let _ = self.chain.client.call(Repr { basis: held.version, ..call });
    }
}

/// A running command, and the process that kills it if this one ends.
struct Running {
    child: Child,
    reaper: Child,
}

impl Running {
    /// Starts the command in a process group of its own; the reaper knows it by its environment
    /// before it begins.
    fn start(command: &[String], token: u64, mark: &str) -> Result<Running, Error> {
        let own = std::env::current_exe().cannot("find this program")?;
        let mut reaper = Command::new(own)
            .arg("reap")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .cannot("start what kills the command")?;
        let said =
            reaper.stdin.as_mut().map(|input| input.write_all(format!("={mark}\n").as_bytes()));
        said.transpose().cannot("start what kills the command")?;
        let (name, args) = command.split_first().ok_or_else(|| Error::new("say a command"))?;
        // A background process group must not read from the terminal.
        let input = if std::io::stdin().is_terminal() { Stdio::null() } else { Stdio::inherit() };
        let child = Command::new(name)
            .args(args)
            .env("CONCORD_TOKEN", token.to_string())
            .env(MARK, format!("{mark}.1"))
            .stdin(input)
            .process_group(0)
            .spawn();
        match child {
            Ok(child) => Ok(Running { child, reaper }),
            Err(error) => {
                drop(reaper.stdin.take());
                let _ = reaper.wait();
                Err(error).cannot(format!("start {name}"))
            }
        }
    }

    /// Kills the command: its process group, and processes that have left it.
    fn end(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
        drop(self.reaper.stdin.take());
        let _ = self.reaper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locks_value_says_how_long_its_lease_is() {
        assert_eq!(lease_of(b"10000 ab host:1"), Some(Duration::from_secs(10)));
        for other in [&b"host"[..], b"10000", b"", b"x y", &[0xff, b' ']] {
            assert_eq!(lease_of(other), None);
        }
    }
}
