//! Commands that wait while clients are paused, and the disconnecting of idle clients
//! ([`crate::connection::pause`]).

use alloc::vec::Vec;

use concord_client::Class;
use concord_core::{Instant, Now, SEC};
use concord_wire::Sink;

use crate::commands::Handling;
use crate::connection::{Connection, ConnectionId, Wait};
use crate::gateway::{Gateway, list};
use crate::state::{CommandContext, Core};

impl Core {
    /// Whether the command must wait for the end of CLIENT PAUSE.
    pub(crate) fn must_pause(&self, call: &CommandContext<'_>, handling: Handling) -> bool {
        self.pause.holds(call.now.instant, may_write(call.connection, handling))
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

impl Gateway {
    /// Ends a pause whose time is over, lets waiting commands go on, and disconnects idle clients.
    pub(crate) fn look_after_pause(&mut self, now: Now, sink: &mut impl Sink) {
        if self.core.pause.is_over(now.instant) {
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
