//! The calls of clients, and their outcomes: commands that the checker knows, which the client's
//! own translation turns into calls of the chain.

use concord_check::Reply;
use concord_client::coord::Ended;
use concord_client::coord_commands::{CoordCall, Said};
use concord_core::Rng;

use super::plan::Plan;

/// The reply to a client as Redis would give it; `None` if the outcome is unknown.
pub(super) fn reply_to(call: &CoordCall, ended: &Ended) -> Option<Reply> {
    Some(match call.said(ended)? {
        Said::Nil => Reply::Nil,
        Said::Simple(_) => Reply::Ok,
        Said::Int(number) => Reply::Int(number),
        Said::Bulk(value) => Reply::bulk(value),
        Said::Error(why) => Reply::Error(why),
    })
}

/// A command as it stands in the history.
pub(super) type Words = Vec<Vec<u8>>;

/// The call for a command, by the translation that ships.
pub(super) fn call_of(words: &Words, plan: &Plan) -> Result<CoordCall, String> {
    let slices: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    CoordCall::new(&slices, plan.layout.value_bytes.into(), 0)
}

fn cmd(parts: &[&[u8]]) -> Words {
    parts.iter().map(|part| part.to_vec()).collect()
}

fn ms(rng: &mut Rng, plan: &Plan) -> Vec<u8> {
    rng.between(1, plan.ttl_ms_max).to_string().into_bytes()
}

/// The lock that clients take for a time.
const LOCK: &[u8] = b"lock";

/// Takes the lock for a time, with a value that only this client uses.
pub(super) fn lock(rng: &mut Rng, plan: &Plan, own: &[u8]) -> Words {
    cmd(&[b"SET", LOCK, own, b"NX", b"PX", &ms(rng, plan)])
}

/// Releases the lock, if it still has this value.
pub(super) fn unlock(own: &[u8]) -> Words {
    cmd(&[b"CAD", LOCK, own])
}

/// Draws a write that sets or changes a time to live.
fn draw_ttl(rng: &mut Rng, plan: &Plan, key: &[u8], own: &[u8]) -> Words {
    let ttl = ms(rng, plan);
    match rng.below(6) {
        0 | 1 => cmd(&[b"SET", key, own, b"PX", &ttl]),
        2 => cmd(&[b"SET", key, own, b"NX", b"PX", &ttl]),
        3 => cmd(&[b"SET", key, own, b"KEEPTTL"]),
        4 => cmd(&[b"PEXPIRE", key, &ttl]),
        _ => cmd(&[b"PERSIST", key]),
    }
}

/// Draws a client's next call.
pub(super) fn draw(rng: &mut Rng, plan: &Plan, (client, request): (usize, u32)) -> Words {
    let key = format!("k{}", rng.below(u64::from(plan.keys))).into_bytes();
    if rng.below(100) < plan.reads_percent {
        return cmd(&[b"GET", &key]);
    }
    let own = value(rng, plan, (client, request));
    let expected = value(rng, plan, (client, request));
    if rng.below(100) < plan.ttls_percent {
        return draw_ttl(rng, plan, &key, &own);
    }
    match rng.below(8) {
        0 | 1 => cmd(&[b"SET", &key, &own]),
        2 => cmd(&[b"SET", &key, &own, b"NX"]),
        3 => cmd(&[b"SET", &key, &own, b"XX"]),
        4 => cmd(&[b"SET", &key, &own, b"IFEQ", &expected]),
        5 => cmd(&[b"CAD", &key, &expected]),
        6 => cmd(&[b"DEL", &key]),
        _ => cmd(&[b"INCR", &key]),
    }
}

/// Draws a value: a small number, which others may write too, or a long text in which every word
/// identifies its writer.
fn value(rng: &mut Rng, plan: &Plan, (client, request): (usize, u32)) -> Vec<u8> {
    if rng.chance(1, 2) {
        return rng.below(6).to_string().into_bytes();
    }
    // Eight bytes, the length of a word.
    let part = format!("{client:02}-{request:04}.");
    part.repeat(usize::from(plan.layout.words())).into_bytes()
}
