//! The checker that is too simple to be wrong: every order is tried, nothing is remembered.

use crate::command::{Command, parse};
use crate::model::{Moment, Next, State, Want, step};
use crate::{Operation, Reply};

/// Whether the operations, all of one key, have an order. Exponential.
pub(super) fn is_linearizable(history: &[Operation]) -> bool {
    let commands: Vec<Command> = history.iter().map(|o| parse(&o.cmd).unwrap().1).collect();
    let mut taken = vec![false; history.len()];
    any_order(history, &commands, &mut taken, &State::default())
}

fn any_order(
    history: &[Operation],
    commands: &[Command],
    taken: &mut Vec<bool>,
    state: &State,
) -> bool {
    let missing = |(index, o): (usize, &Operation)| if taken[index] { None } else { o.return_ns };
    // The next moment is no later than the first return that is still missing.
    let Some(until_ns) = history.iter().enumerate().filter_map(missing).min() else {
        return true;
    };
    if state.expiry.is_some_and(|e| e.earliest_ns <= until_ns)
        && any_order(history, commands, taken, &State::default())
    {
        return true;
    }
    for index in 0..history.len() {
        let operation = &history[index];
        if taken[index] || operation.call_ns > until_ns {
            continue;
        }
        let overtakes = |before: usize| {
            let other = &history[before];
            let is_earlier = other.client == operation.client
                && other.ordinal.is_some_and(|o| operation.ordinal.is_some_and(|own| o < own));
            let reads = commands[before].is_read() && commands[index].is_read();
            is_earlier && !reads && !taken[before] && other.return_ns.is_some()
        };
        if operation.return_ns.is_some() && (0..history.len()).any(overtakes) {
            continue;
        }
        let moment = Moment {
            call_ns: operation.call_ns,
            return_ns: operation.return_ns.unwrap_or(u64::MAX),
            early_ns: 0,
            grace_ns: 0,
            calm: None,
        };
        if state.expiry.is_some_and(|e| moment.call_ns > e.latest_ns) {
            continue; // It has to expire first.
        }
        let reply = operation.reply.as_ref().filter(|reply| **reply != Reply::Unseen);
        let want = reply.map_or(Want::Anything, Want::Reply);
        let next = match step(state, &commands[index], want, &moment) {
            None => continue,
            Some(Next::Same) => state.clone(),
            Some(Next::State(next)) => next,
        };
        taken[index] = true;
        let found = any_order(history, commands, taken, &next);
        taken[index] = false;
        if found {
            return true;
        }
    }
    false
}
