//! Calls of clients, and what they hear: the packets of a chain, and the commands that the checker
//! knows.

use concord_check::Reply;
use concord_core::Rng;
use concord_wire::netcraq::{Command, Condition, Name, Op, Outcome, Repr, State, Words};

use super::plan::Plan;

fn is_number(value: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

fn state_of(value: &[u8]) -> State {
    match is_number(value) {
        Some(_) => State::present(0, 8, true),
        None => State::present(0, value.len() as u8, false),
    }
}

fn words_of(value: &[u8]) -> Words {
    match is_number(value) {
        Some(number) => {
            let mut words = Words::default();
            words.0[0] = number as u64;
            words
        }
        None => Words::new(value).unwrap_or_default(),
    }
}

fn with_value(packet: Repr, value: &[u8]) -> Repr {
    Repr { state: state_of(value), value: words_of(value), ..packet }
}

/// What a client hears, as Redis would say it.
pub(super) fn reply_to(cmd: &[Vec<u8>], packet: &Repr) -> Reply {
    let name = cmd.first().map_or(&b""[..], |name| &name[..]);
    let refused = |why: &str| Reply::Error(why.into());
    match (name, packet.outcome) {
        (_, Outcome::NoCell) => refused("NOCELL no cell is left, or there is no such session"),
        (b"GET", Outcome::Done) if packet.state.is_number() => {
            Reply::bulk((packet.value.0[0] as i64).to_string())
        }
        (b"GET", Outcome::Done) => {
            let length = usize::from(packet.state.length_bytes());
            Reply::bulk(&packet.value.bytes()[..length])
        }
        (b"GET", _) => Reply::Nil,
        (b"SET", Outcome::Done) => Reply::Ok,
        (b"SET", _) => Reply::Nil,
        (b"INCR", Outcome::Done) => Reply::Int(packet.number as i64),
        (b"INCR", _) => refused("ERR value is not an integer or out of range"),
        (b"CAD", Outcome::Absent) => Reply::Int(-1),
        (b"DEL" | b"CAD", Outcome::Done) => Reply::Int(1),
        (_, _) => Reply::Int(0),
    }
}

/// A key.
fn key(rng: &mut Rng, plan: &Plan) -> (Vec<u8>, Name) {
    let text = format!("k{}", rng.below(u64::from(plan.keys))).into_bytes();
    let name = Name::new(&text).unwrap_or_default();
    (text, name)
}

/// What a client calls: the packet, whose cell it has yet to find, and the command for the history.
pub(super) fn draw(
    rng: &mut Rng,
    plan: &Plan,
    (client, request): (usize, u32),
) -> (Repr, Vec<Vec<u8>>) {
    let (key, name) = key(rng, plan);
    let words = plan.layout.words();
    let read = Repr { name, ..Repr::new(Op::Read, 0, words) };
    let cmd = |parts: &[&[u8]]| parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>();
    if rng.below(100) < plan.reads_percent {
        return (read, cmd(&[b"GET", &key]));
    }
    let write = Repr { op: Op::Write, ..read };
    let own = value(rng, plan, (client, request));
    let expected = value(rng, plan, (client, request));
    let set = with_value(write, &own);
    let expecting = |packet: Repr| {
        let state = state_of(&expected);
        Repr {
            condition: Condition::Equal,
            expected: words_of(&expected),
            expected_state: (state.length_bytes(), state.is_number()),
            ..packet
        }
    };
    let del = Repr { command: Command::Del, ..write };
    match rng.below(8) {
        0 | 1 => (set, cmd(&[b"SET", &key, &own])),
        2 => (Repr { condition: Condition::Absent, ..set }, cmd(&[b"SET", &key, &own, b"NX"])),
        3 => (Repr { condition: Condition::Present, ..set }, cmd(&[b"SET", &key, &own, b"XX"])),
        4 => (expecting(set), cmd(&[b"SET", &key, &own, b"IFEQ", &expected])),
        5 => (expecting(del), cmd(&[b"CAD", &key, &expected])),
        6 => (del, cmd(&[b"DEL", &key])),
        _ => {
            let incr = Repr { command: Command::Incr, number: 1, ..write };
            (incr, cmd(&[b"INCR", &key]))
        }
    }
}

/// A small number, which others may write too, or a long text, of which every word says whose
/// it is.
fn value(rng: &mut Rng, plan: &Plan, (client, request): (usize, u32)) -> Vec<u8> {
    if rng.chance(1, 2) {
        return rng.below(6).to_string().into_bytes();
    }
    // Eight bytes, as a word has.
    let part = format!("{client:02}-{request:04}.");
    part.repeat(usize::from(plan.layout.words())).into_bytes()
}
