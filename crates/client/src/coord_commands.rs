//! Redis' commands for keys of a chain (NetCRAQ): which call of [`crate::coord`] a command is, and
//! what its client is told.
//!
//! | command | |
//! |---|---|
//! | GET, EXISTS, STRLEN, TTL, PTTL, TYPE | a read |
//! | SET with NX, XX, IFEQ and EX, PX, EXAT, PXAT, KEEPTTL; SETNX, SETEX, PSETEX | a conditional write |
//! | DEL, UNLINK, CAD | a deletion |
//! | CAS | a conditional write |
//! | INCR, DECR, INCRBY, DECRBY | an addition |
//! | EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT, PERSIST | a deadline |
//!
//! Each is for one key. Any other command is refused, with a line that says why.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use concord_core::{Epoch, MS, NodeId};
use concord_wire::netcraq::{
    Condition, NAME_BYTES_MAX, Name, Op, Outcome, Repr, State, TTL_MAX_NS, Words,
};

use crate::coord::{Ended, del, expire, get, incr, left_ns, set};

/// Times to live are shorter than this, in ms.
const TTL_MS_MAX: i64 = (TTL_MAX_NS / MS) as i64;
const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing.
    Nil,
    /// A simple string: OK, or a type.
    Simple(&'static str),
    /// A number.
    Int(i64),
    /// A value.
    Bulk(Vec<u8>),
    /// An error.
    Error(String),
}

/// Which way a call went (CONCORD EXPLAIN).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// `clean`, `dirty`, `ordered` or `head`.
    pub path: &'static str,
    /// Why, in words.
    pub reason: String,
    /// The switch that answered, by its number in the chain's group.
    pub switch: NodeId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The version that the answer is of: of a write that was done, the one that it made; 0 if the
    /// key has no cell.
    pub version: u64,
}

impl Way {
    /// The way of the call with this answer.
    #[must_use]
    pub fn of(answer: &Repr) -> Way {
        let (path, reason) = match (answer.op, answer.outcome, answer.sent_on_by()) {
            (Op::ReadReply, _, None) => {
                let reason = "no write of the key was under way at the switch that was asked, or it is the tail";
                ("clean", reason.to_string())
            }
            (Op::ReadReply, _, Some(NodeId(asked))) => {
                let reason = alloc::format!(
                    "a write of the key was under way at switch {asked}, which sent the read to the tail"
                );
                ("dirty", reason)
            }
            (_, Outcome::NoCell, _) => ("head", "no cell is left for the key".to_string()),
            (Op::WriteReply, _, _) => {
                let reason = "the head has ordered it, each switch has taken it over, and the tail has answered";
                ("ordered", reason.to_string())
            }
            _ => ("head", "the chain has no such key, as its head says".to_string()),
        };
        let (switch, epoch, version) = (answer.from, answer.epoch, answer.basis);
        Way { path, reason, switch, epoch, version }
    }
}

/// What of an answer its client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Value,
    Exists,
    Length,
    TtlSeconds,
    TtlMs,
    Type,
    /// OK, or nothing.
    Done,
    /// 1 or 0.
    Whether,
    /// 1, 0, or -1 if there is no such key.
    Compared,
    Sum,
}

/// A command, as a call of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordCall {
    /// The call.
    pub packet: Repr,
    wants: Wants,
}

/// The value of these bytes as a cell has it: a number if it is written as numbers are printed.
/// `None`: it is longer than `value_bytes`.
#[must_use]
pub fn value_of_bytes(bytes: &[u8], value_bytes: usize) -> Option<(State, Words)> {
    if let Some(number) = integer(bytes) {
        let mut words = Words::default();
        words.0[0] = number as u64;
        return Some((State::present(0, 8, true), words));
    }
    let words = Words::new(bytes).filter(|_| bytes.len() <= value_bytes)?;
    Some((State::present(0, bytes.len() as u8, false), words))
}

/// The bytes of a value that an answer has: a number as text.
#[must_use]
pub fn bytes_of_value(answer: &Repr) -> Vec<u8> {
    if answer.state.is_number() {
        return (answer.value.0[0] as i64).to_string().into_bytes();
    }
    let bytes = answer.value.bytes();
    bytes[..usize::from(answer.state.length_bytes()).min(bytes.len())].to_vec()
}

/// A number, written as numbers are printed.
fn integer(bytes: &[u8]) -> Option<i64> {
    let number: i64 = core::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == bytes).then_some(number)
}

fn number(bytes: &[u8]) -> Result<i64, String> {
    integer(bytes).ok_or_else(|| NOT_A_NUMBER.to_string())
}

/// A time: how many ms a unit has, and whether it is a date.
#[derive(Clone, Copy)]
struct Unit {
    ms: i64,
    is_date: bool,
}

impl Unit {
    const SECONDS: Unit = Unit { ms: 1_000, is_date: false };
    const MS: Unit = Unit { ms: 1, is_date: false };

    const fn date(self) -> Unit {
        Unit { is_date: true, ..self }
    }

    /// How long it is from now on, in ms, of what a command says; it may be over.
    fn ttl_ms(self, text: &[u8], unix_ms: u64, name: &str) -> Result<i64, String> {
        let invalid = || alloc::format!("ERR invalid expire time in '{name}' command");
        let ms = number(text)?.checked_mul(self.ms).ok_or_else(invalid)?;
        let now = if self.is_date { i64::try_from(unix_ms).unwrap_or(i64::MAX) } else { 0 };
        let ttl_ms = ms.checked_sub(now).ok_or_else(invalid)?;
        if ttl_ms > TTL_MS_MAX { Err(invalid()) } else { Ok(ttl_ms) }
    }
}

impl CoordCall {
    /// The call of a command of these words, the first in upper case; values of the chain have at
    /// most `value_bytes`. `unix_ms`: what EXPIREAT and its kin count from.
    ///
    /// # Errors
    /// A line for the client.
    pub fn new(words: &[&[u8]], value_bytes: usize, unix_ms: u64) -> Result<CoordCall, String> {
        let name = words.first().and_then(|name| core::str::from_utf8(name).ok()).unwrap_or("");
        let Some(arity) = arity(name) else {
            return Err(alloc::format!(
                "ERR {name} is not a command for keys of the chain: they know GET, SET, DEL, EXISTS, INCR, EXPIRE, TTL \
                 and their kin"
            ));
        };
        let is_short = words.len() < arity.0;
        if is_short || arity.1.is_some_and(|most| words.len() > most) {
            let lower = name.to_ascii_lowercase();
            let is_of_several = matches!(name, "DEL" | "UNLINK" | "EXISTS") && !is_short;
            return Err(match is_of_several {
                true => alloc::format!("ERR {name} takes one key of the chain at a time"),
                false => alloc::format!("ERR wrong number of arguments for '{lower}' command"),
            });
        }
        let key = Name::new(words[1]).ok_or_else(|| {
            alloc::format!("ERR a key of the chain has 1 to {NAME_BYTES_MAX} bytes, none of them 0")
        })?;
        let context = Context { name, key, value_bytes, unix_ms };
        context.call(&words[2..])
    }

    /// Whether the call changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.packet.op == Op::Read
    }

    /// What the client is told of how it ended; `None`: nobody knows.
    #[must_use]
    pub fn said(&self, ended: &Ended) -> Option<Said> {
        let Ended::Answer(answer) = ended else { return None };
        let error = |why: &str| Some(Said::Error(why.to_string()));
        match answer.outcome {
            Outcome::NoCell => return error("NOCELL no cell of the chain is left for this key"),
            Outcome::NotNumber => return error(NOT_A_NUMBER),
            Outcome::Busy | Outcome::Taken | Outcome::Stale => return None,
            Outcome::Done | Outcome::Absent | Outcome::Refused => {}
        }
        let is_done = answer.outcome == Outcome::Done;
        let ttl = |unit_ns: u64| match (is_done, left_ns(answer)) {
            (false, _) => -2,
            (true, None) => -1,
            (true, Some(ns)) => (ns.saturating_add(unit_ns / 2) / unit_ns) as i64,
        };
        Some(match self.wants {
            Wants::Value if is_done => Said::Bulk(bytes_of_value(answer)),
            Wants::Done if is_done => Said::Simple("OK"),
            Wants::Value | Wants::Done => Said::Nil,
            Wants::Length if is_done => Said::Int(bytes_of_value(answer).len() as i64),
            Wants::Exists | Wants::Whether | Wants::Length => Said::Int(i64::from(is_done)),
            Wants::Compared if answer.outcome == Outcome::Absent => Said::Int(-1),
            Wants::Compared => Said::Int(i64::from(is_done)),
            Wants::TtlSeconds => Said::Int(ttl(1_000 * MS)),
            Wants::TtlMs => Said::Int(ttl(MS)),
            Wants::Type => Said::Simple(if is_done { "string" } else { "none" }),
            Wants::Sum => Said::Int(answer.number as i64),
        })
    }
}

/// How many words a command has: at least, and at most.
fn arity(name: &str) -> Option<(usize, Option<usize>)> {
    Some(match name {
        "GET" | "EXISTS" | "STRLEN" | "TTL" | "PTTL" | "TYPE" | "DEL" | "UNLINK" | "INCR"
        | "DECR" | "PERSIST" => (2, Some(2)),
        "SETNX" | "CAD" | "INCRBY" | "DECRBY" | "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" => {
            (3, Some(3))
        }
        "SETEX" | "PSETEX" | "CAS" => (4, Some(4)),
        "SET" => (3, None),
        _ => return None,
    })
}

/// What a command says, beside its further words.
struct Context<'a> {
    name: &'a str,
    key: Name,
    value_bytes: usize,
    unix_ms: u64,
}

impl Context<'_> {
    fn call(&self, words: &[&[u8]]) -> Result<CoordCall, String> {
        let key = self.key;
        let of = |packet: Repr, wants: Wants| Ok(CoordCall { packet, wants });
        match (self.name, words) {
            ("GET", _) => of(get(key), Wants::Value),
            ("EXISTS", _) => of(get(key), Wants::Exists),
            ("STRLEN", _) => of(get(key), Wants::Length),
            ("TTL", _) => of(get(key), Wants::TtlSeconds),
            ("PTTL", _) => of(get(key), Wants::TtlMs),
            ("TYPE", _) => of(get(key), Wants::Type),
            ("DEL" | "UNLINK", _) => of(del(key, Condition::Always), Wants::Whether),
            ("INCR", _) => of(incr(key, 1), Wants::Sum),
            ("DECR", _) => of(incr(key, -1), Wants::Sum),
            ("PERSIST", _) => of(expire(key, 0), Wants::Whether),
            ("SETNX", [value]) => of(self.set(value, Condition::Absent)?, Wants::Whether),
            ("CAD", [expected]) => {
                of(self.expecting(del(key, Condition::Equal), expected)?, Wants::Compared)
            }
            ("CAS", [expected, value]) => {
                let set = self.set(value, Condition::Equal)?;
                let set = Repr { keeps_deadline: true, ..set };
                of(self.expecting(set, expected)?, Wants::Compared)
            }
            ("INCRBY", [by]) => of(incr(key, number(by)?), Wants::Sum),
            ("DECRBY", [by]) => {
                let by = number(by)?.checked_neg().ok_or("ERR decrement would overflow")?;
                of(incr(key, by), Wants::Sum)
            }
            ("EXPIRE", [text]) => self.expire(text, Unit::SECONDS),
            ("PEXPIRE", [text]) => self.expire(text, Unit::MS),
            ("EXPIREAT", [text]) => self.expire(text, Unit::SECONDS.date()),
            ("PEXPIREAT", [text]) => self.expire(text, Unit::MS.date()),
            ("SETEX", [text, value]) => self.set_for(text, Unit::SECONDS, value),
            ("PSETEX", [text, value]) => self.set_for(text, Unit::MS, value),
            ("SET", [value, options @ ..]) => self.set_with(value, options),
            _ => Err(SYNTAX.to_string()),
        }
    }

    fn value(&self, bytes: &[u8]) -> Result<(State, Words), String> {
        value_of_bytes(bytes, self.value_bytes).ok_or_else(|| {
            let (own, most) = (bytes.len(), self.value_bytes);
            alloc::format!("ERR the value has {own} bytes; values of the chain have {most} at most")
        })
    }

    fn set(&self, value: &[u8], condition: Condition) -> Result<Repr, String> {
        let (state, words) = self.value(value)?;
        Ok(set(self.key, condition, state, words))
    }

    fn expecting(&self, packet: Repr, expected: &[u8]) -> Result<Repr, String> {
        let (state, expected) = self.value(expected)?;
        let expected_state = (state.length_bytes(), state.is_number());
        Ok(Repr { condition: Condition::Equal, expected, expected_state, ..packet })
    }

    /// The time to live of a SET, in ns.
    fn lifetime(&self, text: &[u8], unit: Unit) -> Result<u64, String> {
        let name = self.name.to_ascii_lowercase();
        let ttl_ms = unit.ttl_ms(text, self.unix_ms, &name)?;
        let invalid = || alloc::format!("ERR invalid expire time in '{name}' command");
        u64::try_from(ttl_ms).ok().filter(|ms| *ms > 0).map(|ms| ms * MS).ok_or_else(invalid)
    }

    fn set_for(&self, text: &[u8], unit: Unit, value: &[u8]) -> Result<CoordCall, String> {
        let deadline = self.lifetime(text, unit)?;
        let packet = Repr { deadline, ..self.set(value, Condition::Always)? };
        Ok(CoordCall { packet, wants: Wants::Done })
    }

    /// A deadline; one that is over deletes the key.
    fn expire(&self, text: &[u8], unit: Unit) -> Result<CoordCall, String> {
        let ttl_ms = unit.ttl_ms(text, self.unix_ms, &self.name.to_ascii_lowercase())?;
        let ttl_ns = u64::try_from(ttl_ms).unwrap_or(0) * MS;
        let packet = match ttl_ns {
            0 => del(self.key, Condition::Always),
            _ => expire(self.key, ttl_ns),
        };
        Ok(CoordCall { packet, wants: Wants::Whether })
    }

    fn set_with(&self, value: &[u8], options: &[&[u8]]) -> Result<CoordCall, String> {
        let mut packet = self.set(value, Condition::Always)?;
        let (mut is_timed, mut options) = (false, options.iter());
        while let Some(option) = options.next() {
            let option = option.to_ascii_uppercase();
            let unit = match &option[..] {
                b"NX" | b"XX" | b"IFEQ" if packet.condition != Condition::Always => {
                    return Err(SYNTAX.to_string());
                }
                b"NX" => {
                    packet.condition = Condition::Absent;
                    continue;
                }
                b"XX" => {
                    packet.condition = Condition::Present;
                    continue;
                }
                b"IFEQ" => {
                    let expected = options.next().ok_or(SYNTAX)?;
                    packet = self.expecting(packet, expected)?;
                    continue;
                }
                b"GET" => return Err("ERR SET with GET is not for keys of the chain".to_string()),
                _ if is_timed => return Err(SYNTAX.to_string()),
                b"KEEPTTL" => {
                    (packet.keeps_deadline, is_timed) = (true, true);
                    continue;
                }
                b"EX" => Unit::SECONDS,
                b"PX" => Unit::MS,
                b"EXAT" => Unit::SECONDS.date(),
                b"PXAT" => Unit::MS.date(),
                _ => return Err(SYNTAX.to_string()),
            };
            let text = options.next().ok_or(SYNTAX)?;
            (packet.deadline, is_timed) = (self.lifetime(text, unit)?, true);
        }
        Ok(CoordCall { packet, wants: Wants::Done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_wire::netcraq::Command;

    fn call(text: &str) -> Result<CoordCall, String> {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        CoordCall::new(&words, 16, 10_000)
    }

    fn packet(text: &str) -> Repr {
        call(text).unwrap_or_else(|why| panic!("{text}: {why}")).packet
    }

    #[test]
    fn commands_of_redis_are_calls_of_the_chain() {
        assert_eq!(packet("GET k").op, Op::Read);
        let set = packet("SET k v NX PX 20");
        assert_eq!((set.condition, set.deadline), (Condition::Absent, 20 * MS));
        let set = packet("SET k 12 XX EXAT 12");
        assert_eq!((set.condition, set.deadline), (Condition::Present, 2_000 * MS));
        assert!(set.state.is_number() && packet("SET k v keepttl").keeps_deadline);
        let set = packet("SET k v IFEQ 7");
        assert_eq!((set.condition, set.expected_state), (Condition::Equal, (8, true)));
        assert_eq!(packet("EXPIRE k 2").deadline, 2_000 * MS);
        assert_eq!(packet("PEXPIRE k -1").command, Command::Del);
        assert_eq!(packet("PEXPIREAT k 9999").command, Command::Del);
        assert_eq!(packet("DECRBY k 3").number as i64, -3);
    }

    #[test]
    fn what_the_chain_cannot_do_is_refused_in_one_line() {
        let long = alloc::format!("SET k {}", "x".repeat(17));
        let name = alloc::format!("GET {}", "x".repeat(33));
        for text in [
            "APPEND k v",
            "MSET k v",
            "DEL k l",
            "EXISTS k l",
            "GET",
            "SET k",
            "SET k v NX XX",
            "SET k v PX",
            "SET k v PX 0",
            "SET k v EX 9223372036854775807",
            "SET k v GET",
            "SET k v EX 1 KEEPTTL",
            "SETEX k 0 v",
            "EXPIRE k 1 NX",
            "EXPIRE k soon",
            "INCRBY k 1.5",
            "DECRBY k -9223372036854775808",
            &long,
            &name,
        ] {
            let line = call(text).unwrap_err();
            let is_error = line.starts_with("ERR ") && !line.contains('\n');
            assert!(is_error, "{text}: {line}");
        }
    }

    #[test]
    fn answers_are_said_as_redis_says_them() {
        let said = |text: &str, outcome, deadline| {
            let call = call(text).unwrap();
            let op = if call.is_read() { Op::ReadReply } else { Op::WriteReply };
            let (state, value) = value_of_bytes(b"-7", 16).unwrap();
            let answer = Repr { op, outcome, state, value, deadline, number: 4, ..call.packet };
            call.said(&Ended::Answer(answer))
        };
        use Outcome::{Absent, Done, NoCell, NotNumber, Refused, Stale};
        let int = |number| Some(Said::Int(number));
        assert_eq!(said("GET k", Done, 0), Some(Said::Bulk(b"-7".to_vec())));
        assert_eq!(said("GET k", Absent, 0), Some(Said::Nil));
        assert_eq!(said("SET k v", Done, 0), Some(Said::Simple("OK")));
        assert_eq!(said("SET k v NX", Refused, 0), Some(Said::Nil));
        assert_eq!((said("STRLEN k", Done, 0), said("STRLEN k", Absent, 0)), (int(2), int(0)));
        assert_eq!((said("CAD k v", Absent, 0), said("CAD k v", Refused, 0)), (int(-1), int(0)));
        assert_eq!((said("TTL k", Absent, 0), said("TTL k", Done, 0)), (int(-2), int(-1)));
        assert_eq!(said("TTL k", Done, 1_600 * MS), int(2));
        assert_eq!(said("PTTL k", Done, 1_600 * MS), int(1_600));
        assert_eq!((said("INCR k", Done, 0), said("DEL k", Absent, 0)), (int(4), int(0)));
        assert_eq!(said("TYPE k", Done, 0), Some(Said::Simple("string")));
        for outcome in [NotNumber, NoCell] {
            assert!(matches!(said("INCR k", outcome, 0), Some(Said::Error(_))));
        }
        assert_eq!(said("INCR k", Stale, 0), None);
    }
}
