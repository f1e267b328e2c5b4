//! Commands of several keys at a replica that has only some of the keys, since it is copying the
//! state: the effect of a command on each key must not depend on the others.

use alloc::vec::Vec;

use crate::command::{Command, CommandBuf};
use crate::functions::FUNCTIONS_KEY;
use crate::plan::When;
use crate::redis::{is_script, runs_script};
use crate::resp;
use crate::table::UpperName;
use crate::ttl::{EXEC_COMMAND, REFUSE_COMMAND, REPLY_COMMAND, WATCHED_COMMAND, watched};
use crate::users::{USERS_COMMAND, USERS_KEY};

/// The keys of `command`, which names one or says by its own name where they are; those of a
/// transaction are those of its commands.
#[must_use]
pub fn keys<'a>(command: &Command<'a>) -> Vec<&'a [u8]> {
    if let Some(key) = command.key() {
        return alloc::vec![key];
    }
    let name = UpperName::of(command.name());
    match name.bytes() {
        EXEC_COMMAND => {
            let parts = command.args().skip(1).filter_map(|arg| Command::parse(arg).ok());
            parts.flat_map(|part| keys(&part)).collect()
        }
        b"MSET" | b"MSETNX" | WATCHED_COMMAND => command.args().skip(1).step_by(2).collect(),
        _ => match Where::of(&name) {
            Some(at) => at.keys(command),
            None => Vec::new(),
        },
    }
}

/// The arguments of a command that are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// All from this index on.
    From(usize),
    /// The first and the second argument.
    Two,
    /// All arguments but the last one.
    ButLast,
    /// As many as the argument at this index says, after it.
    Counted(usize),
    /// The same, and the first argument.
    FirstAndCounted,
    /// The first half of the arguments after STREAMS.
    Streams,
    /// The first argument, and the one after the last STORE.
    Sort,
    /// The same of a GEORADIUS or GEORADIUSBYMEMBER.
    Radius,
}

impl Where {
    fn of(name: &UpperName) -> Option<Where> {
        Some(match name.bytes() {
            b"DEL" | b"UNLINK" | b"EXISTS" | b"TOUCH" | b"MGET" | b"MSET" | b"MSETNX"
            | b"CONCORD.DIGEST" | b"SINTER" | b"SUNION" | b"SDIFF" | b"SINTERSTORE"
            | b"SUNIONSTORE" | b"SDIFFSTORE" | b"PFCOUNT" | b"PFMERGE" => Where::From(1),
            b"BITOP" => Where::From(2),
            b"RENAME" | b"RENAMENX" | b"COPY" | b"LMOVE" | b"RPOPLPUSH" | b"SMOVE"
            | b"ZRANGESTORE" | b"GEOSEARCHSTORE" | b"LCS" | b"BLMOVE" | b"BRPOPLPUSH" => Where::Two,
            b"BLPOP" | b"BRPOP" | b"BZPOPMIN" | b"BZPOPMAX" => Where::ButLast,
            b"BLMPOP" | b"BZMPOP" => Where::Counted(2),
            b"XREAD" | b"XREADGROUP" => Where::Streams,
            b"SORT" | b"SORT_RO" => Where::Sort,
            b"GEORADIUS" | b"GEORADIUSBYMEMBER" => Where::Radius,
            b"LMPOP" | b"ZMPOP" | b"SINTERCARD" | b"ZINTERCARD" | b"ZUNION" | b"ZINTER"
            | b"ZDIFF" => Where::Counted(1),
            b"ZUNIONSTORE" | b"ZINTERSTORE" | b"ZDIFFSTORE" => Where::FirstAndCounted,
            _ => return None,
        })
    }

    fn keys<'a>(self, command: &Command<'a>) -> Vec<&'a [u8]> {
        let counted = |at: usize| {
            let number = command.args().nth(at).and_then(resp::number);
            let number = number.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            command.args().skip(at + 1).take(number)
        };
        match self {
            Where::From(first) => command.args().skip(first).collect(),
            Where::ButLast => command.args().take(command.argc() - 1).skip(1).collect(),
            Where::Two => command.args().skip(1).take(2).collect(),
            Where::Counted(at) => counted(at).collect(),
            Where::Streams => {
                let args: Vec<&[u8]> = command.args().collect();
                crate::keys::streams(&args).into_iter().map(|at| args[at]).collect()
            }
            Where::Sort => {
                let args: Vec<&[u8]> = command.args().collect();
                crate::keys::sort(&args).into_iter().map(|at| args[at]).collect()
            }
            Where::Radius => {
                let args: Vec<&[u8]> = command.args().collect();
                crate::keys::radius(&args).into_iter().map(|at| args[at]).collect()
            }
            Where::FirstAndCounted => command.args().skip(1).take(1).chain(counted(2)).collect(),
        }
    }
}

/// The effect of a write of several keys on the time to live of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Removed if the key is, according to an EXISTS after the command.
    MayGo,
    /// Removed if the command was performed.
    Goes,
    /// Replaced by that of the first key if the command was performed.
    IsThatOfTheFirst,
}

/// The fates of the keys of a write, by their place among its keys, and what in its reply shows
/// that it was performed; `None` if they are all alike ([`crate::plan`]), or unknown.
pub(crate) fn fates(name: &UpperName, keys: usize) -> Option<(When, Vec<(usize, Fate)>)> {
    let first = |fate| alloc::vec![(0, fate)];
    Some(match name.bytes() {
        b"RENAME" => (When::Ok, alloc::vec![(1, Fate::IsThatOfTheFirst), (0, Fate::Goes)]),
        b"RENAMENX" => (When::One, alloc::vec![(1, Fate::IsThatOfTheFirst), (0, Fate::Goes)]),
        b"COPY" => (When::One, alloc::vec![(1, Fate::IsThatOfTheFirst)]),
        b"LMOVE" | b"RPOPLPUSH" | b"SMOVE" | b"BLMOVE" | b"BRPOPLPUSH" => {
            (When::NotError, first(Fate::MayGo))
        }
        b"LMPOP" | b"ZMPOP" | b"BLPOP" | b"BRPOP" | b"BLMPOP" | b"BZPOPMIN" | b"BZPOPMAX"
        | b"BZMPOP" => (When::NotError, (0..keys).map(|place| (place, Fate::MayGo)).collect()),
        b"SINTERSTORE" | b"SUNIONSTORE" | b"SDIFFSTORE" | b"ZUNIONSTORE" | b"ZINTERSTORE"
        | b"ZDIFFSTORE" | b"ZRANGESTORE" | b"GEOSEARCHSTORE" | b"BITOP" => {
            (When::NotError, first(Fate::Goes))
        }
        b"SORT" | b"GEORADIUS" | b"GEORADIUSBYMEMBER" if keys > 1 => {
            (When::NotError, alloc::vec![(1, Fate::Goes)])
        }
        b"PFMERGE" | b"XREADGROUP" | b"SORT" | b"SORT_RO" | b"GEORADIUS" | b"GEORADIUSBYMEMBER" => {
            (When::NotError, Vec::new())
        }
        _ => return None,
    })
}

/// Whether a command of this name has several keys, where it says of none that it is the only one.
#[must_use]
pub fn names_keys(name: &UpperName) -> bool {
    Where::of(name).is_some()
}

/// The part of a write that concerns the keys that are here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restricted {
    /// All of it.
    All,
    /// None: the write concerns no key that is here.
    Nothing,
    /// This command, which does the same to those that are here.
    Part(Vec<u8>),
    /// The effect on one key depends on others.
    Entangled,
}

/// The part of the write `command` that concerns the keys for which `is_here` returns true.
#[must_use]
pub fn restrict(command: &Command<'_>, is_here: &dyn Fn(&[u8]) -> bool) -> Restricted {
    if let Some(key) = command.key() {
        return if is_here(key) { Restricted::All } else { Restricted::Nothing };
    }
    let name = UpperName::of(command.name());
    match name.bytes() {
        b"DEL" | b"UNLINK" => keep(command, 1, is_here),
        b"MSET" => keep(command, 2, is_here),
        // These change nothing, or everything that is here.
        b"MGET" | b"EXISTS" | b"TOUCH" | b"SINTER" | b"SUNION" | b"SDIFF" | b"SINTERCARD"
        | b"ZINTER" | b"ZUNION" | b"ZDIFF" | b"ZINTERCARD" | b"PFCOUNT" | b"LCS" | b"XREAD" => {
            Restricted::Nothing
        }
        b"FLUSHALL" | b"FLUSHDB" => Restricted::All,
        // Libraries come with the first part of a copy.
        b"FUNCTION" if is_here(FUNCTIONS_KEY) => Restricted::All,
        b"FUNCTION" => Restricted::Nothing,
        USERS_COMMAND if is_here(USERS_KEY) => Restricted::All,
        USERS_COMMAND => Restricted::Nothing,
        b"SORT" | b"SORT_RO" if keys(command).len() < 2 => Restricted::Nothing,
        EXEC_COMMAND => restrict_exec(command, is_here),
        // Within a transaction all of whose keys are here.
        WATCHED_COMMAND => Restricted::All,
        // It changes nothing.
        REFUSE_COMMAND => Restricted::All,
        _ => restrict_whole(command, is_here),
    }
}

/// A command of which no part can be executed: all of it where all its keys are here, nothing where
/// none is.
fn restrict_whole(command: &Command<'_>, is_here: &dyn Fn(&[u8]) -> bool) -> Restricted {
    let keys = keys(command);
    // A sort may look at keys that it computes, a script at any.
    if keys.is_empty() || runs_script(command) || sorts_by_keys(command) {
        return Restricted::Entangled;
    }
    match keys.iter().filter(|key| is_here(key)).count() {
        0 => Restricted::Nothing,
        here if here == keys.len() => Restricted::All,
        _ => Restricted::Entangled,
    }
}

/// The keys to copy before a write, so that a receiver of the state can execute all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs<'a> {
    /// None: the write can be executed in parts.
    Nothing,
    /// These keys.
    Keys(Vec<&'a [u8]>),
    /// These keys, and what its scripts touch.
    Scripts(Vec<&'a [u8]>),
    /// Everything, as far as can be said before.
    All,
}

/// The keys to copy before the write `command`.
#[must_use]
pub fn needs<'a>(command: &Command<'a>) -> Needs<'a> {
    if command.key().is_some() {
        return Needs::Nothing;
    }
    if runs_script(command) {
        let is_exec = UpperName::of(command.name()).is(EXEC_COMMAND);
        let is_plain = !is_exec || parts(command).all(|part| is_plain_beside_scripts(&part));
        return if is_plain { Needs::Scripts(keys(command)) } else { Needs::All };
    }
    let keys = keys(command);
    let entangles =
        |here: Option<&[u8]>| restrict(command, &|key| Some(key) == here) == Restricted::Entangled;
    let any = entangles(None) || keys.iter().any(|key| entangles(Some(key)));
    match any {
        false => Needs::Nothing,
        true if restrict(command, &|_| true) == Restricted::All => Needs::Keys(keys),
        true => Needs::All,
    }
}

/// Whether a command of a transaction with scripts touches the keys that it names, or is a script
/// that says what it touches.
fn is_plain_beside_scripts(part: &Command<'_>) -> bool {
    if is_script(part) {
        return part.key().is_some() || !part.name().to_ascii_uppercase().ends_with(b"_RO");
    }
    let name = UpperName::of(part.name());
    let is_known = name.is(REPLY_COMMAND) || !keys(part).is_empty();
    is_known && !sorts_by_keys(part)
}

fn parts<'a>(exec: &Command<'a>) -> impl Iterator<Item = Command<'a>> {
    exec.args().skip(1).filter_map(|arg| Command::parse(arg).ok())
}

fn sorts_by_keys(command: &Command<'_>) -> bool {
    crate::keys::sorts_by_keys(&command.args().collect::<Vec<&[u8]>>())
}

/// A command whose keys come every `step` arguments, each with what is done to it.
fn keep(command: &Command<'_>, step: usize, is_here: &dyn Fn(&[u8]) -> bool) -> Restricted {
    let args: Vec<&[u8]> = command.args().collect();
    if !(args.len() - 1).is_multiple_of(step) {
        // An error, whatever is here.
        return Restricted::All;
    }
    let mut kept: Vec<&[u8]> = args[..1].to_vec();
    for each in args[1..].chunks_exact(step).filter(|each| is_here(each[0])) {
        kept.extend_from_slice(each);
    }
    part_of(command, &kept)
}

/// A transaction: of each of its commands what is left.
fn restrict_exec(command: &Command<'_>, is_here: &dyn Fn(&[u8]) -> bool) -> Restricted {
    if watched(command).is_some() && !keys(command).into_iter().all(is_here) {
        // Whether it runs depends on keys that may not be here. (If none is here, nothing happens
        // to them.)
        let parts = command.args().skip(2).filter_map(|arg| Command::parse(arg).ok());
        let mut parts = parts.map(|part| restrict(&part, is_here));
        let concerns_none = parts.all(|left| left == Restricted::Nothing);
        return if concerns_none { Restricted::Nothing } else { Restricted::Entangled };
    }
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for arg in command.args().skip(1) {
        let Ok(part) = Command::parse(arg) else { return Restricted::All };
        match restrict(&part, is_here) {
            Restricted::All => kept.push(arg.to_vec()),
            Restricted::Part(part) => kept.push(part),
            Restricted::Nothing => {}
            Restricted::Entangled => return Restricted::Entangled,
        }
    }
    let args: Vec<&[u8]> =
        [command.name()].into_iter().chain(kept.iter().map(Vec::as_slice)).collect();
    if command.args().eq(args.iter().copied()) {
        return Restricted::All;
    }
    let left = part_of(command, &args);
    // Random choices depend on the number of earlier commands, and the rest of a script's bound on
    // what they read.
    let draws = |part: &Vec<u8>| {
        Command::parse(part).is_ok_and(|part| part.name().eq_ignore_ascii_case(b"SPOP"))
    };
    let is_part = matches!(left, Restricted::Part(_));
    if is_part && (runs_script(command) || kept.iter().any(draws)) {
        return Restricted::Entangled;
    }
    left
}

fn part_of(command: &Command<'_>, kept: &[&[u8]]) -> Restricted {
    match kept.len() {
        1 => Restricted::Nothing,
        all if all == command.argc() && command.args().eq(kept.iter().copied()) => Restricted::All,
        _ => Restricted::Part(CommandBuf::new().encode(0, kept.iter().copied()).to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(key_index: u8, args: &[&[u8]]) -> Vec<u8> {
        CommandBuf::new().encode(key_index, args.iter().copied()).to_vec()
    }

    fn restricted(bytes: &[u8]) -> Restricted {
        restrict(&Command::parse(bytes).unwrap(), &|key| key.starts_with(b"h"))
    }

    /// Of a write of several keys what concerns those that are here is left.
    #[test]
    fn restriction_to_present_keys() {
        let part = |args: &[&[u8]]| Restricted::Part(encode(0, args));
        let all = encode(0, &[b"MSET", b"h1", b"1", b"x", b"2", b"h3", b"3"]);
        assert_eq!(restricted(&all), part(&[b"MSET", b"h1", b"1", b"h3", b"3"]));
        assert_eq!(restricted(&encode(0, &[b"del", b"x", b"h"])), part(&[b"del", b"h"]));
        assert_eq!(restricted(&encode(0, &[b"DEL", b"x", b"y"])), Restricted::Nothing);
        assert_eq!(restricted(&encode(0, &[b"DEL", b"h", b"h2"])), Restricted::All);
        assert_eq!(
            restricted(&encode(0, &[b"MSETNX", b"x", b"1", b"h", b"2"])),
            Restricted::Entangled
        );
        assert_eq!(restricted(&encode(0, &[b"FLUSHALL"])), Restricted::All);
        assert_eq!(restricted(&encode(1, &[b"INCR", b"x"])), Restricted::Nothing);
        assert_eq!(restricted(&encode(1, &[b"INCR", b"h"])), Restricted::All);
    }

    #[test]
    fn of_a_transaction_what_is_left_of_each_command_is_left() {
        let incr = |key: &[u8]| encode(1, &[b"INCR", key]);
        let (del, msetnx) =
            (encode(0, &[b"DEL", b"x", b"h"]), encode(0, &[b"MSETNX", b"h", b"1", b"x", b"2"]));
        let exec = |parts: &[&[u8]]| {
            let args: Vec<&[u8]> =
                [EXEC_COMMAND].into_iter().chain(parts.iter().copied()).collect();
            encode(0, &args)
        };
        let left = exec(&[&incr(b"h"), &encode(0, &[b"DEL", b"h"])]);
        let all = exec(&[&incr(b"x"), &incr(b"h"), &del]);
        assert_eq!(restricted(&all), Restricted::Part(left));
        assert_eq!(restricted(&exec(&[&incr(b"h"), &incr(b"h2")])), Restricted::All);
        assert_eq!(restricted(&exec(&[&incr(b"x")])), Restricted::Nothing);
        assert_eq!(restricted(&exec(&[&incr(b"h"), &msetnx])), Restricted::Entangled);
    }

    /// What is drawn in a transaction hangs on the commands before.
    #[test]
    fn bug_18_13_drawn_values_depend_on_earlier_commands() {
        let exec = |parts: &[&[u8]]| {
            let args: Vec<&[u8]> =
                [EXEC_COMMAND].into_iter().chain(parts.iter().copied()).collect();
            encode(0, &args)
        };
        let incr = encode(1, &[b"INCR", b"x"]);
        for drawn in [
            encode(1, &[b"spop", b"h"]),
            encode(3, &[b"EVAL", b"return redis.call('SPOP', KEYS[1])", b"1", b"h"]),
        ] {
            assert_eq!(restricted(&exec(&[&incr, &drawn])), Restricted::Entangled);
            assert_eq!(restricted(&exec(&[&drawn])), Restricted::All);
        }
        let elsewhere = encode(1, &[b"SPOP", b"x"]);
        assert_eq!(restricted(&exec(&[&incr, &elsewhere])), Restricted::Nothing);
    }
}
