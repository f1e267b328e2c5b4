//! CLIENT PAUSE: commands of this gateway's clients wait. And clients that say nothing for long (`timeout`).

use alloc::vec::Vec;

use concord_core::{Instant, MS, Now, SEC};
use concord_engine::resp;
use concord_engine::table::UpperName;
use concord_wire::Sink;

use crate::commands::{Failure, Handling};
use crate::connection::{Connection, ConnectionId, Wait};
use crate::gateway::{Gateway, list};
use crate::state::{Core, Turn};
use concord_client::Class;

/// Which commands wait, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Paused {
    until: Instant,
    /// Commands that only read go on.
    writes_only: bool,
}

/// What waits, and who is idle.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    paused: Option<Paused>,
    /// It is over, and nobody has gone on yet.
    is_news: bool,
    /// Clients that say nothing for so many seconds are disconnected; 0: none is.
    pub idle_seconds: u64,
    looks_at: Instant,
}

impl Pause {
    /// Until then, and not shorter than it was.
    pub(crate) fn begin(&mut self, until: Instant, writes_only: bool) {
        let before = self.paused.unwrap_or(Paused { until, writes_only });
        self.paused = Some(Paused {
            until: until.max(before.until),
            writes_only: writes_only && before.writes_only,
        });
    }

    pub(crate) fn end(&mut self) {
        self.is_news |= self.paused.take().is_some();
    }

    /// Whether a command must wait.
    pub(crate) fn holds(&self, now: Instant, may_write: bool) -> bool {
        self.paused.is_some_and(|own| now < own.until && (may_write || !own.writes_only))
    }

    pub(crate) fn deadline(&self) -> Instant {
        let idle = if self.idle_seconds > 0 { self.looks_at } else { Instant::NEVER };
        self.paused.map_or(Instant::NEVER, |own| own.until).min(idle)
    }
}

impl Core {
    /// Whether the command has to wait for the end of CLIENT PAUSE.
    pub(crate) fn must_pause(&self, turn: &Turn<'_>, handling: Handling) -> bool {
        self.pause.holds(turn.now.instant, may_write(turn.connection, handling))
    }
}

fn may_write(connection: &Connection, handling: Handling) -> bool {
    match handling {
        Handling::OneKey(class, _) | Handling::Keys(class) | Handling::AllKeys(class) => {
            class == Class::Write
        }
        Handling::Several(several) => several.class == Class::Write,
        Handling::Script { read_only, .. } | Handling::Call { read_only } => !read_only,
        Handling::Exec => connection.multi.as_ref().is_some_and(|multi| multi.writes),
        Handling::Blocks(_) | Handling::Container | Handling::Function | Handling::PubSub(_) => {
            true
        }
        _ => false,
    }
}

/// CLIENT PAUSE timeout [WRITE | ALL]
pub(crate) fn pause(
    core: &mut Core,
    turn: &mut Turn<'_>,
    timeout: &[u8],
    mode: Option<&[u8]>,
) -> Result<(), Failure> {
    let writes_only = match mode.map(UpperName::of) {
        None => false,
        Some(mode) if mode.is(b"ALL") => false,
        Some(mode) if mode.is(b"WRITE") => true,
        Some(_) => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
    };
    let ms = resp::number(timeout).ok_or("ERR timeout is not an integer or out of range")?;
    let ms = u64::try_from(ms).map_err(|_| "ERR timeout is negative")?;
    let until = turn.now.instant.after(ms.min(u64::from(u32::MAX)) * MS);
    core.pause.begin(until, writes_only);
    turn.connection.ok();
    Ok(())
}

impl Gateway {
    /// Ends a pause whose time is over, lets go on who waited, and disconnects who is idle.
    pub(crate) fn look_after_pause(&mut self, now: Now, sink: &mut impl Sink) {
        if self.core.pause.paused.is_some_and(|own| own.until <= now.instant) {
            self.core.pause.end();
        }
        if core::mem::take(&mut self.core.pause.is_news) {
            let waits = self.connections.values().filter(|c| c.wait == Wait::Paused);
            let mut ids: Vec<ConnectionId> = waits.map(|c| c.id).collect();
            ids.sort_unstable();
            for id in ids {
                self.go_on(now, id, sink);
            }
        }
        self.end_idle(now.instant);
    }

    fn end_idle(&mut self, now: Instant) {
        let pause = &mut self.core.pause;
        if pause.idle_seconds == 0 || now < pause.looks_at {
            return;
        }
        pause.looks_at = now.after(SEC);
        let longest = pause.idle_seconds.saturating_mul(SEC);
        for connection in self.connections.values_mut() {
            let is_idle = now.since(connection.active_at) > longest
                && connection.slots.is_empty()
                && connection.subscriber.is_empty()
                && !connection.is_monitor
                && connection.wait == Wait::Nothing;
            if is_idle {
                connection.closing = true;
                list(&mut self.ready, connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_gets_no_shorter_and_no_weaker() {
        let mut pause = Pause::default();
        pause.begin(Instant(10), true);
        assert!(pause.holds(Instant(9), true) && !pause.holds(Instant(9), false));
        pause.begin(Instant(5), false);
        assert!(pause.holds(Instant(9), false) && !pause.holds(Instant(10), true));
        pause.begin(Instant(20), true);
        assert!(pause.holds(Instant(19), false));
        pause.end();
        assert!(!pause.holds(Instant(0), true) && pause.is_news);
    }
}
