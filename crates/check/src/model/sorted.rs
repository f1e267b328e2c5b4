//! The model of sorted sets.

use std::collections::BTreeSet;

use super::state::{Got, Next, State, Stepped, Value, Want, WrongType};
use crate::command::{Bytes, Command};

pub(super) fn sorted_step(state: &State, command: &Command, want: Want<'_>) -> Stepped {
    let empty = BTreeSet::new();
    let ranked = match &state.value {
        Value::Missing => &empty,
        Value::Sorted(ranked) => ranked,
        _ => return Err(WrongType),
    };
    Ok(match command {
        Command::Zadd(score, member) => {
            let old = ranked.iter().find(|(_, own)| own == member);
            want.check(&Got::Int(i64::from(old.is_none()))).and_then(|()| {
                let mut then: BTreeSet<(i64, Bytes)> = ranked.clone();
                if let Some(old) = old {
                    then.remove(old);
                }
                then.insert((*score, member.clone()));
                if then == *ranked { Some(Next::Same) } else { state.put(Value::Sorted(then)) }
            })
        }
        Command::Zpop { least } => {
            let taken = if *least { ranked.first() } else { ranked.last() };
            want.check(&Got::Ranked(taken)).and_then(|()| match taken {
                None => Some(Next::Same),
                Some(_) if ranked.len() == 1 => State::gone(),
                Some(taken) => {
                    let mut then = ranked.clone();
                    then.remove(taken);
                    state.put(Value::Sorted(then))
                }
            })
        }
        _ => want.same(&Got::Int(ranked.len() as i64)),
    })
}
