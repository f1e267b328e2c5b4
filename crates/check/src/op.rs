//! An operation on one key, as the search sees it.

use crate::Reply;
use crate::command::{Command, Condition, Ttl};
use crate::model::{Moment, is_inert};

/// An operation on one key.
#[derive(Clone, Debug)]
pub(crate) struct Op<'h> {
    /// Its index in the history.
    pub(crate) source: u32,
    pub(crate) command: Command,
    pub(crate) moment: Moment,
    /// The time in ns by which it had taken effect: its return, or the return of an operation that
    /// saw its effect; `u64::MAX` if that is unknown.
    pub(crate) until_ns: u64,
    /// The reply, or `None` if the outcome is unknown.
    pub(crate) reply: Option<&'h Reply>,
    /// Whether its reply shows that it changed nothing.
    pub(crate) inert: bool,
    /// Whether the state that it leaves does not depend on the one that it finds.
    pub(crate) overwrites: bool,
    /// The completed operations, by `source`, that it must not overtake, since its client sent them
    /// before it or a list shows that they came before it.
    pub(crate) after: Vec<u32>,
}

impl<'h> Op<'h> {
    pub(crate) fn new(
        source: u32,
        command: Command,
        moment: Moment,
        reply: Option<&'h Reply>,
    ) -> Op<'h> {
        let overwrites = match &command {
            Command::Set { condition: Condition::Always, get: false, ttl, .. } => *ttl != Ttl::Keep,
            Command::Del | Command::Flush => true,
            _ => false,
        };
        let inert = reply.is_some_and(|reply| is_inert(&command, reply));
        let until_ns = moment.return_ns;
        Op { source, command, until_ns, moment, reply, inert, overwrites, after: Vec::new() }
    }

    /// The same operation with its outcome made unknown: everything that it could explain before,
    /// it still can.
    pub(crate) fn opened(&self) -> Op<'h> {
        let moment = Moment { return_ns: u64::MAX, ..self.moment };
        Op::new(self.source, self.command.clone(), moment, None)
    }
}

impl Op<'_> {
    /// Whether it may set a time to live.
    pub(crate) fn has_lifetime(&self) -> bool {
        lifetime_ms(&self.command).is_some()
    }

    /// The time to live in ms that it may set, the last one if it sets several.
    pub(crate) fn lifetime_ms(&self) -> Option<u64> {
        lifetime_ms(&self.command)
    }
}

fn lifetime_ms(command: &Command) -> Option<u64> {
    match command {
        Command::Set { ttl: Ttl::Set(ttl_ms), .. } => Some(*ttl_ms),
        Command::Expire(ttl_ms) if *ttl_ms > 0 => Some(ttl_ms.unsigned_abs()),
        Command::Exec(commands) => commands.iter().rev().find_map(lifetime_ms),
        _ => None,
    }
}
