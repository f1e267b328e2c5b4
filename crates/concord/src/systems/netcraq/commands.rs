//! `concord coord`: reads and writes of a chain's keys.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use concord_client::coord::{self, Ended};
use concord_runtime::Error;
use concord_runtime::coord::{CoordClient, CoordPlace, is_there, value_of};
use concord_switch::ChainLayout;
use concord_wire::netcraq::{Condition, NAME_BYTES_MAX, Name, Outcome, Repr, State, Words};

use super::args::{CoordArgs, CoordCommand};
use super::lock;
use crate::rack::{Kind, Rack, in_file, wire};
use crate::status::print;
use crate::systems::falcon::microseconds;

/// The minimum and the maximum time to live of a key, in ns.
const TTL_MIN_NS: u64 = 1_000_000;
const TTL_MAX_NS: u64 = 100 * 365 * 86_400 * 1_000_000_000;
/// The exit status if the key does not exist, or a condition does not hold.
const REFUSED: u8 = 1;
/// The exit status of a mistake in the command.
const MISTAKE: u8 = 2;
/// The exit status if no switch answered.
const UNKNOWN: u8 = 3;

/// The failure of a command.
#[derive(Debug)]
pub(super) enum Failed {
    /// The key does not exist, or a condition does not hold.
    Refused(String),
    /// No switch answered; with the consequence.
    Unknown(&'static str),
    /// A mistake, or the system's error.
    Mistake(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Mistake(error)
    }
}

/// The failure of a read that no switch answered.
pub(super) const NO_ANSWER: Failed = Failed::Unknown("no switch answered in time");
/// The failure of a write that no switch answered.
const MAYBE: Failed =
    Failed::Unknown("no switch answered in time: it may have been done, or be done yet");

/// Runs `concord coord`; returns the exit status, and prints a line on standard error if it is not
/// 0.
pub fn run(args: &CoordArgs) -> ExitCode {
    let (status, line) = match done(args) {
        Ok(code) => return code,
        Err(Failed::Refused(line)) => (REFUSED, line),
        Err(Failed::Unknown(line)) => (UNKNOWN, line.to_string()),
        Err(Failed::Mistake(error)) => (MISTAKE, error.to_string()),
    };
    eprintln!("concord: {line}");
    ExitCode::from(status)
}

/// A connection to a chain.
pub(super) struct Chain {
    pub(super) client: CoordClient,
    /// The maximum length of a value, in bytes.
    value_bytes: usize,
    keys: u32,
}

fn done(args: &CoordArgs) -> Result<ExitCode, Failed> {
    let mut chain = chain(args)?;
    let chain = &mut chain;
    match &args.command {
        CoordCommand::Get { name, with_version, with_ttl } => {
            let answer = chain.client.read(named(name)?)?.ok_or(NO_ANSWER)?;
            if !is_there(&answer) {
                return Err(Failed::Refused(format!("there is no key {name}")));
            }
            say(&answer, *with_version, *with_ttl)?;
        }
        CoordCommand::Put { name, value, if_version, if_absent, ttl } => {
            let condition = match (if_version, if_absent) {
                (Some(_), _) => Condition::Version,
                (None, true) => Condition::Absent,
                (None, false) => Condition::Always,
            };
            let (state, words) = chain.value(value)?;
            let call = coord::set(named(name)?, condition, state, words);
            let (basis, deadline) = (if_version.unwrap_or(0), lifetime(ttl.as_deref())?);
            let answer = chain.write(name, Repr { basis, deadline, ..call })?;
            print(&format!("{}\n", answer.basis))?;
        }
        CoordCommand::Del { name, if_version } => {
            let condition = if_version.map_or(Condition::Always, |_| Condition::Version);
            let call = coord::del(named(name)?, condition);
            chain.write(name, Repr { basis: if_version.unwrap_or(0), ..call })?;
        }
        CoordCommand::Cas { name, old, new } => {
            let (expected_state, expected) = chain.value(old)?;
            let (state, words) = chain.value(new)?;
            let call = coord::set(named(name)?, Condition::Equal, state, words);
            let expected_state = (expected_state.length_bytes(), expected_state.is_number());
            let answer = chain.write(name, Repr { expected, expected_state, ..call })?;
            print(&format!("{}\n", answer.basis))?;
        }
        CoordCommand::Incr { name, by } => {
            let answer = chain.write(name, coord::incr(named(name)?, *by))?;
            print(&format!("{}\n", answer.number as i64))?;
        }
        CoordCommand::Ls { prefix } => {
            let names = chain.client.names()?.ok_or(NO_ANSWER)?;
            let bytes = names.iter().map(|name| name.bytes()[..name.length_bytes()].to_vec());
            let own = bytes.filter(|name| name.starts_with(prefix.as_bytes()));
            let lines: String =
                own.map(|name| String::from_utf8_lossy(&name).into_owned() + "\n").collect();
            print(&lines)?;
        }
        CoordCommand::Watch { name, count, every } => {
            watch(chain, name, *count, time("--every", every)?)?;
        }
        CoordCommand::Lock { name, ttl, wait, command } => {
            let (ttl, wait) = (time("--ttl", ttl)?, time("--wait", wait)?);
            return lock::run(chain, name, ttl, wait, command);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses a duration that a flag gives.
fn time(flag: &str, text: &str) -> Result<Duration, Error> {
    microseconds(flag, text).map(Duration::from_micros)
}

/// The time to live of a key, in ns; 0 for none.
fn lifetime(text: Option<&str>) -> Result<u64, Error> {
    let Some(text) = text else { return Ok(0) };
    let ttl_ns = u64::try_from(time("--ttl", text)?.as_nanos()).unwrap_or(u64::MAX);
    if !(TTL_MIN_NS..=TTL_MAX_NS).contains(&ttl_ns) {
        return Err(Error::new(
            "--ttl: a key lives for 1ms to 100 years, or without --ttl for good",
        ));
    }
    Ok(ttl_ns)
}

/// The chain that the arguments select.
fn chain(args: &CoordArgs) -> Result<Chain, Error> {
    let patience = time("--timeout", &args.timeout)?;
    let (place, layout) = place(&args.config, args.group.as_deref(), args.nearest, patience)?;
    let client = CoordClient::new(&place)?;
    Ok(Chain { client, value_bytes: layout.value_bytes.into(), keys: layout.cells })
}

/// The addresses of a chain in a rack file, and the size of its store.
///
/// # Errors
/// If the chain or the switch does not exist.
pub fn place(
    file: &Path,
    group: Option<&str>,
    nearest: Option<u16>,
    patience: Duration,
) -> Result<(CoordPlace, ChainLayout), Error> {
    let rack = Rack::read_whole(file)?;
    let groups = rack.groups()?;
    let chains: Vec<_> = groups.iter().filter(|group| group.kind == Kind::Switches).collect();
    let names = || chains.iter().map(|group| group.name).collect::<Vec<_>>().join(", ");
    let named = |name: &str| {
        let found = chains.iter().find(|group| group.name == name);
        found.ok_or_else(|| Error::new(format!("there is no chain {name}; there are: {}", names())))
    };
    let group = match (group, &chains[..]) {
        (Some(name), _) => named(name),
        (None, [one]) => Ok(one),
        (None, []) => Err(Error::new("the rack has no chain: `concord up --system netcraq`")),
        (None, _) => Err(Error::new(format!("which chain? Say --group with one of {}", names()))),
    };
    let group = group.map_err(in_file(file))?;
    let mut switches: Vec<_> = group.switches.iter().collect();
    if let Some(nearest) = nearest {
        let at = switches.iter().position(|switch| switch.node == nearest);
        let none = || Error::new(format!("--nearest {nearest}: there is no such switch"));
        let own = switches.remove(at.ok_or_else(none)?);
        switches.insert(0, own);
    }
    let layout = rack.chain.layout();
    let switches = switches.into_iter().map(|switch| wire(switch.addr)).collect();
    Ok((CoordPlace { group: group.id, switches, words: layout.words(), patience }, layout))
}

/// The name of a key.
pub(super) fn named(name: &str) -> Result<Name, Error> {
    Name::new(name.as_bytes()).ok_or_else(|| {
        let bytes = name.len();
        Error::new(format!("a key has 1 to {NAME_BYTES_MAX} bytes, none of them 0, not {bytes}"))
    })
}

/// The number in a text, if it is written as numbers are printed.
fn number_of(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

impl Chain {
    /// A value in the form of a cell.
    pub(super) fn value(&self, text: &str) -> Result<(State, Words), Error> {
        if let Some(number) = number_of(text) {
            let mut words = Words::default();
            words.0[0] = number as u64;
            return Ok((State::present(0, 8, true), words));
        }
        let fits = Words::new(text.as_bytes()).filter(|_| text.len() <= self.value_bytes);
        let words = fits.ok_or_else(|| {
            let (own, most) = (text.len(), self.value_bytes);
            Error::new(format!(
                "the value has {own} bytes; values of this chain have {most} at most"
            ))
        })?;
        Ok((State::present(0, text.len() as u8, false), words))
    }

    /// The maximum length of a value, in bytes.
    pub(super) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Executes a write.
    fn write(&mut self, name: &str, call: Repr) -> Result<Repr, Failed> {
        let Ended::Answer(answer) = self.client.call(call)? else { return Err(MAYBE) };
        let line = match answer.outcome {
            Outcome::Done => return Ok(answer),
            Outcome::Absent => format!("there is no key {name}"),
            Outcome::Refused if call.condition == Condition::Absent => {
                format!("there is a key {name} already")
            }
            Outcome::Refused if call.condition == Condition::Version => {
                format!("{name} has version {}", answer.basis)
            }
            Outcome::Refused => format!("{name} has another value"),
            Outcome::NotNumber => {
                format!("{name} is not a number, or the sum is beyond 64 bits")
            }
            Outcome::NoCell => {
                format!("no cell is left for {name}: the chain has {} keys", self.keys)
            }
            Outcome::Busy | Outcome::Taken | Outcome::Stale => return Err(MAYBE),
        };
        Err(Failed::Refused(line))
    }
}

fn say(answer: &Repr, with_version: bool, with_ttl: bool) -> Result<(), Error> {
    let value = value_of(answer);
    let value = String::from_utf8_lossy(&value);
    let version = if with_version { format!("{} ", answer.basis) } else { String::new() };
    let ttl = match (with_ttl, coord::left_ns(answer)) {
        (false, _) => String::new(),
        (true, None) => "- ".into(),
        (true, Some(ns)) => format!("{} ", ns.div_ceil(1_000_000)),
    };
    print(&format!("{version}{ttl}{value}\n"))
}

/// Prints the value of a key, and again whenever it has changed.
fn watch(chain: &mut Chain, name: &str, count: Option<u64>, every: Duration) -> Result<(), Failed> {
    let key = named(name)?;
    let mut before: Option<(bool, u64)> = None;
    let mut lines = 0;
    while count.is_none_or(|count| lines < count) {
        // If no switch answers for a moment, it continues.
        if let Some(answer) = chain.client.read(key)? {
            let seen = (is_there(&answer), answer.basis * u64::from(is_there(&answer)));
            if before.replace(seen) != Some(seen) {
                lines += 1;
                match seen.0 {
                    true => say(&answer, true, false)?,
                    false => print("- there is no such key\n")?,
                }
                continue;
            }
        }
        std::thread::sleep(every);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_is_printed_as_numbers() {
        assert_eq!((number_of("-5"), number_of("0")), (Some(-5), Some(0)));
        for text in ["05", "+5", "", "-0", "5 ", "9223372036854775808"] {
            assert_eq!(number_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_key_lives_for_a_time_that_a_switch_can_count() {
        assert_eq!(lifetime(None).unwrap(), 0);
        assert_eq!(lifetime(Some("2s")).unwrap(), 2_000_000_000);
        for ttl in ["0s", "500us", "4000000000s"] {
            let line = lifetime(Some(ttl)).unwrap_err().to_string();
            assert!(line.starts_with("--ttl"), "{line}");
        }
    }

    #[test]
    fn names_have_1_to_32_bytes() {
        assert!(named("a").is_ok() && named(&"x".repeat(32)).is_ok());
        for name in ["", &"x".repeat(33), "a\0b"] {
            let line = named(name).unwrap_err().to_string();
            assert!(line.starts_with("a key has 1 to 32 bytes"), "{line}");
        }
    }
}
