//! An operation as requests of the server.

use alloc::vec::Vec;

use concord_core::rng::splitmix64;

use super::script::ScriptOptions;
use super::{
    APPLIED_DATABASE, APPLIED_KEY, Awaited, Draws, Kind, Operation, RedisEngine, effects, guarded,
    heard, rights, script,
};
use crate::backend::{Reach, Step};
use crate::script::hash_of;
use crate::ttl::EXEC_COMMAND;
use crate::{Class, Command, Context, resp};

/// `step` with `commands` in place of its own, as requests.
pub(super) fn encode_step(
    context: &Context,
    step: &Step<'_>,
    commands: &[Command<'_>],
    engine: &RedisEngine,
) -> Operation {
    let (known, is_copied) = (&engine.known, engine.copier.is_some());
    let has_databases = engine.has_databases;
    // What is wrong with a command the server says best.
    let is_right = |command: &Command<'_>| {
        let spec = engine.table.as_ref().and_then(|table| table.find(command.name()));
        spec.is_some_and(|spec| spec.accepts(command.argc()))
    };
    let mut request = Vec::new();
    let (mut draws, mut arrays, mut taught) = (Vec::new(), Vec::new(), Vec::new());
    let mut entropy = context.entropy;
    let is_write = step.class == Class::Write;
    let key = step.key.unwrap_or_default();
    let of_one = step.key.filter(|_| step.delete_first);
    let due = of_one.iter().copied().chain(step.due.iter().copied());
    let delete_first = is_write && due.clone().next().is_some();
    let want_exists = is_write && step.want_exists && step.key.is_some();
    let is_marked = is_write && engine.listening.are_told();
    let asked = ScriptOptions { is_copied, has_databases, is_heard: is_marked };
    let mut awaited = is_marked.then(|| Awaited {
        position: context.position,
        due: due.clone().map(<[u8]>::to_vec).collect(),
        spops: Vec::new(),
        flushes: Vec::new(),
    });
    let is_guarded =
        is_write && !delete_first && !context.is_passed && commands.iter().all(is_right);
    let looked_at = is_guarded.then(|| {
        let class_of = |name| engine.table.as_ref()?.find(name)?.class();
        guarded::looked_at(commands, |command| class_of(command.name()) != Some(Class::Read))
    });
    let looked_at = looked_at.unwrap_or_default();
    if !looked_at.is_empty() {
        guarded::guard(&mut request, &looked_at);
    }
    if is_marked {
        heard::mark_begin(&mut request);
    }
    if delete_first {
        encode(&mut request, [&b"DEL"[..]].into_iter().chain(due));
    }
    if is_write {
        encode(&mut request, [&b"MULTI"[..]]);
    }
    for (index, command) in commands.iter().enumerate() {
        if is_marked && index > 0 {
            heard::mark_next(&mut request);
        }
        if let Some(awaited) = &mut awaited {
            awaited.spops.extend(effects::was_spop(command).then_some(index));
            awaited.flushes.extend(script::flushes(command).then_some(index));
        }
        let is_shared = engine.has_databases || command.database() != 0;
        if is_shared && script::is_of_database(command) && is_right(command) {
            entropy = splitmix64(entropy);
            let args = script::of_database(command, entropy);
            encode(&mut request, args.iter().map(Vec::as_slice));
            continue;
        }
        let draws_here = is_write && effects::draws(command);
        if draws_here && context.decide {
            draws.push(Draws { index, command: command.bytes().to_vec() });
        } else if (draws_here || effects::tells_time(command)) && is_right(command) {
            // Nobody has executed it before who would have said what he drew.
            entropy = splitmix64(entropy);
            let in_place = script::in_place_of(command, step.class);
            let in_place = Command::parse(&in_place).expect("it was encoded here");
            // It touches no deadline.
            let step = Step { reach: Reach::AnyKey { is_timed: false }, ..*step };
            let asked = ScriptOptions { is_copied: false, ..asked };
            let args = script::wrap(&in_place, context, &step, entropy, known, asked);
            let args = args.unwrap_or_default();
            teach(&mut taught, index, &in_place, &args);
            encode(&mut request, args.iter().map(Vec::as_slice));
            arrays.extend(script::answers_null_array(&in_place).then_some(index));
            continue;
        }
        let wrapped = is_script(command).then(|| {
            // Scripts of one transaction draw differently.
            entropy = splitmix64(entropy);
            script::wrap(command, context, step, entropy, known, asked)
        });
        match wrapped.flatten() {
            Some(args) => {
                arrays.extend(script::answers_null_array(command).then_some(index));
                teach(&mut taught, index, command, &args);
                encode(&mut request, args.iter().map(Vec::as_slice));
            }
            None if script::keeps_its_count(command) => {
                // Of one key the server would keep the count in its string, at this replica alone.
                encode(&mut request, command.args().chain(command.args().nth(1)));
            }
            None => encode(&mut request, command.args()),
        }
    }
    let has_scripts = is_write && commands.iter().any(is_script);
    let mut kind = Kind::Read;
    if is_write {
        let position = alloc::format!("{}", context.position);
        if is_marked {
            // Behind the last command, and behind all.
            if !commands.is_empty() {
                heard::mark_next(&mut request);
            }
            heard::mark_end(&mut request, position.as_bytes());
        }
        encode(&mut request, [&b"SELECT"[..], APPLIED_DATABASE]);
        if has_scripts {
            encode(&mut request, [&b"LRANGE"[..], script::TOLD_KEY, b"0", b"-1"]);
            encode(&mut request, [&b"DEL"[..], script::TOLD_KEY]);
        }
        encode(&mut request, [&b"SET"[..], APPLIED_KEY, position.as_bytes()]);
        encode(&mut request, [&b"SELECT"[..], b"0"]);
        encode(&mut request, [&b"EXEC"[..]]);
        if want_exists {
            encode(&mut request, [&b"EXISTS"[..], key]);
        }
        kind = Kind::Write { position: context.position, delete_first, want_exists };
    }
    Operation {
        request,
        kind,
        commands: commands.len(),
        questions: commands.iter().filter(|command| is_question(command)).count(),
        resp3: context.resp3,
        switched: false,
        decides: !is_write || context.decide,
        refusal: None,
        draws,
        arrays,
        taught,
        has_scripts,
        is_beside: step.is_beside,
        is_guarded: !looked_at.is_empty(),
        awaited,
    }
}

/// Whether `command` asks for the digest of a key, and so changes nothing.
pub(crate) fn is_question(command: &Command<'_>) -> bool {
    command.name().eq_ignore_ascii_case(b"DEBUG")
}

/// Notes that the script of `command`, which is sent as `args`, will be known to the server.
fn teach(
    taught: &mut Vec<(usize, Vec<u8>, [u8; 40])>,
    index: usize,
    command: &Command<'_>,
    args: &[Vec<u8>],
) {
    let [name, text, ..] = args else { return };
    if let Some(own) = command.args().nth(1).filter(|_| name == command.name()) {
        let own = script::name_of(own, rights::rules_of(command).is_some());
        taught.push((index, own.into_owned(), hash_of(text)));
    }
}

fn parts<'a>(exec: &Command<'a>) -> impl Iterator<Item = Command<'a>> {
    exec.args().skip(1).filter_map(|part| Command::parse(part).ok())
}

/// Whether `command` is a script, calls a function, or is a transaction that has one of these.
#[must_use]
pub fn runs_script(command: &Command<'_>) -> bool {
    let is_exec = command.name().eq_ignore_ascii_case(EXEC_COMMAND);
    is_script(command) || is_exec && parts(command).any(|part| is_script(&part))
}

/// What runs scripts.
const SCRIPTS: [&[u8]; 4] = [b"EVAL", b"EVAL_RO", b"FCALL", b"FCALL_RO"];

/// Whether `command` is a script, or calls a function.
#[must_use]
pub fn is_script(command: &Command<'_>) -> bool {
    let name = command.name();
    SCRIPTS.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Appends a request.
pub(super) fn encode<'a>(
    out: &mut Vec<u8>,
    args: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
) {
    let args = args.into_iter();
    resp::array(out, args.clone().count());
    for arg in args {
        resp::bulk(out, arg);
    }
}
