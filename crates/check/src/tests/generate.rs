//! Random histories of one atomic key: every operation takes effect at a moment between its call
//! and its return.

use std::cell::Cell;
use std::collections::BTreeMap;

use concord_core::Rng;

use crate::Operation;
use crate::command::parse;
use crate::model::{Moment, Next, State, Want, step};

/// What a random history is made of.
pub(super) struct Shape {
    pub(super) clients: u64,
    pub(super) operations: u64,
    /// Of 1000 operations, how many have an unknown outcome.
    pub(super) open_per_mille: u64,
    /// A unit of time, ns; operations take up to 10.
    pub(super) unit_ns: u64,
    /// Of 1000 operations, how many are slow.
    pub(super) slow_per_mille: u64,
    /// How many times longer those take.
    pub(super) slow_times: u64,
    /// Keys; commands without a key do not go with more than one.
    pub(super) keys: u64,
    pub(super) commands: fn(&mut Rng, u64) -> String,
}

/// Any command on one key with few values, so that wrong types and equal values occur.
pub(super) fn any_command(rng: &mut Rng, _: u64) -> String {
    let v = rng.below(3);
    let w = rng.below(3);
    match rng.below(36) {
        0..=2 => format!("SET k {v}"),
        3 => format!("SET k {v} NX"),
        4 => format!("SET k x{v} XX"),
        5 => format!("SET k {v} GET"),
        6 => format!("SET k {v} IFEQ {w}"),
        7 => format!("SET k {v} PX 1"),
        8 => format!("SET k {v} KEEPTTL"),
        9..=12 => "GET k".into(),
        13 => format!("SETNX k {v}"),
        14 => format!("GETSET k {v}"),
        15 => "GETDEL k".into(),
        16 | 17 => format!("APPEND k {v}"),
        18 => "STRLEN k".into(),
        19 | 20 => "INCR k".into(),
        21 => format!("DECRBY k {v}"),
        22 | 23 => "DEL k".into(),
        24 => "EXISTS k".into(),
        25 => format!("CAS k {v} {w}"),
        26 => format!("CAD k {v}"),
        27 => "PEXPIRE k 1".into(),
        28 => "PERSIST k".into(),
        29 => format!("LPUSH k {v}"),
        30 => format!("RPUSH k {v} {w}"),
        31 => "LPOP k".into(),
        32 => "LRANGE k 0 -1".into(),
        33 => format!("SADD k {v}"),
        34 => format!("HSET k {v} {w}"),
        _ => "EXISTS k".into(),
    }
}

/// Some commands of [`any_command`] as one, or one by itself.
pub(super) fn exec_command(rng: &mut Rng, n: u64) -> String {
    if rng.chance(1, 2) {
        return any_command(rng, n);
    }
    let mut text = String::from("EXEC");
    for _ in 0..rng.between(1, 3) {
        let command = any_command(rng, n);
        text += &format!(" {} {command}", command.split(' ').count());
    }
    text
}

/// Makes pipelines of what clients did one after the other: of some operations the call moves to
/// that of the one before. The order of each client stays as it was.
pub(super) fn pipelined(rng: &mut Rng, history: &mut [Operation]) {
    let mut by_call: Vec<usize> = (0..history.len()).collect();
    by_call.sort_by_key(|at| (history[*at].client, history[*at].call_ns));
    for (ordinal, at) in by_call.iter().enumerate() {
        history[*at].ordinal = Some(ordinal as u64);
        let before = ordinal.checked_sub(1).map(|before| &history[by_call[before]]);
        let before = before.filter(|o| o.client == history[*at].client);
        if let Some(call_ns) = before.map(|o| o.call_ns)
            && rng.chance(2, 3)
        {
            history[*at].call_ns = call_ns;
        }
    }
}

/// Strings with values of their own, as the end-to-end test writes them.
pub(super) fn string_command(rng: &mut Rng, n: u64) -> String {
    match rng.below(20) {
        0..=2 => format!("SET k v{n}"),
        3 => format!("SET k v{n} NX"),
        4 => format!("SET k v{n} PX 1"),
        5 | 6 => format!("APPEND k +{n}"),
        7 => "GETDEL k".into(),
        8 => "DEL k".into(),
        9 => "STRLEN k".into(),
        _ => "GET k".into(),
    }
}

/// A list with elements of their own.
pub(super) fn list_command(rng: &mut Rng, n: u64) -> String {
    match rng.below(20) {
        0..=4 => format!("LPUSH k e{n}"),
        5 | 6 => format!("RPUSH k e{n}"),
        7..=13 => "LPOP k".into(),
        14 => "DEL k".into(),
        15 => "LLEN k".into(),
        _ => "LRANGE k 0 5".into(),
    }
}

/// A counter.
pub(super) fn counter_command(rng: &mut Rng, _: u64) -> String {
    match rng.below(20) {
        0..=9 => "INCR k".into(),
        10 => "DEL k".into(),
        11 => "SET k 5 NX".into(),
        _ => "GET k".into(),
    }
}

/// Everything that one key takes with values of their own: types collide.
pub(super) fn mixed_command(rng: &mut Rng, n: u64) -> String {
    match rng.below(8) {
        0 | 1 => list_command(rng, n),
        2 => counter_command(rng, n),
        _ => string_command(rng, n),
    }
}

/// A history that is linearizable by construction, by call.
pub(super) fn atomic_history(rng: &mut Rng, shape: &Shape) -> Vec<Operation> {
    let mut free_at = vec![0u64; shape.clients as usize];
    let mut history = Vec::new();
    let mut points: Vec<(u64, usize)> = Vec::new();
    for n in 0..shape.operations {
        let client = rng.below(shape.clients);
        let free = &mut free_at[client as usize];
        let slow = if rng.chance(shape.slow_per_mille, 1000) { shape.slow_times } else { 1 };
        let call_ns = *free + 1 + rng.below(3 * shape.unit_ns);
        let return_ns = call_ns + rng.below(10 * shape.unit_ns * slow + 1);
        *free = return_ns;
        let cmd = (shape.commands)(rng, n);
        let mut operation = super::op(client, call_ns, return_ns, &cmd, crate::Reply::Nil);
        if shape.keys > 1 {
            operation.cmd[1] = format!("k{}", rng.below(shape.keys)).into_bytes();
        }
        if !rng.chance(shape.open_per_mille, 1000) {
            points.push((rng.between(call_ns, return_ns), history.len()));
        } else {
            (operation.return_ns, operation.reply) = (None, None);
            // Soon, late, or never.
            match rng.below(3) {
                0 => points.push((rng.between(call_ns, return_ns), history.len())),
                1 => points.push((call_ns + rng.below(1000 * shape.unit_ns), history.len())),
                _ => {}
            }
        }
        history.push(operation);
    }
    points.sort_unstable();
    let mut states: BTreeMap<Vec<u8>, State> = BTreeMap::new();
    for (point_ns, index) in points {
        let operation = &mut history[index];
        let (key, command) = parse(&operation.cmd).unwrap();
        let state = states.entry(key.unwrap_or_default().to_vec()).or_default();
        let moment = Moment {
            call_ns: operation.call_ns,
            return_ns: operation.return_ns.unwrap_or(u64::MAX),
            early_ns: 0,
            grace_ns: 0,
            calm: None,
        };
        let due = |e: crate::model::state::Expiry| {
            e.latest_ns < point_ns || (e.earliest_ns <= point_ns && rng.chance(1, 2))
        };
        if state.expiry.is_some_and(due) {
            *state = State::default();
        }
        let told = Cell::new(None);
        let next = step(state, &command, Want::Tell(&told), &moment).unwrap();
        if operation.return_ns.is_some() {
            operation.reply = told.take();
        }
        if let Next::State(next) = next {
            *state = next;
        }
    }
    history.sort_by_key(|operation| operation.call_ns);
    history
}
