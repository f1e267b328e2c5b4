//! Several who wait for one key try in one request (docs/reference/semantics/blocking.md, "Commands
//! that wait"): as a transaction, so that nothing comes between their tries, in the order of their
//! line.

use alloc::vec::Vec;

use concord_client::{Done, Outcome};
use concord_core::Now;
use concord_engine::resp;
use concord_engine::ttl::EXEC_COMMAND;
use concord_wire::Sink;

use crate::connection::{ConnectionId, SlotState};
use crate::gateway::{Gateway, list};
use crate::state::Core;

/// The index of a pop's only key.
const KEY_AT: u8 = 1;

impl Core {
    /// Encodes the tries of all of these into `self.command`.
    pub(crate) fn encode_tries(&mut self, ids: &[ConnectionId]) {
        let mut tries = Vec::with_capacity(ids.len());
        for id in ids {
            tries.push(self.command.encode(KEY_AT, self.waiters.command(*id)).to_vec());
        }
        let tries = tries.iter().map(Vec::as_slice);
        self.command.encode(0, [EXEC_COMMAND].into_iter().chain(tries));
    }
}

impl Gateway {
    /// A request with the tries of these ended: each gets its own reply, and is blocked or goes on.
    pub(crate) fn take_together(
        &mut self,
        now: Now,
        ids: &[ConnectionId],
        done: Done,
        sink: &mut impl Sink,
    ) {
        self.core.events.hint();
        self.core.writes.add(done.trace.latency_ns);
        if let Some(first) = ids.iter().find_map(|id| self.connections.get(id)) {
            self.core.slow_log.note(now, first, &done);
        }
        let parts = match done.outcome {
            Outcome::Reply => {
                resp::array_items(&done.reply).filter(|parts| parts.len() == ids.len())
            }
            _ => None,
        };
        if let Some(line) = ids.iter().find_map(|id| self.core.waiters.only_line(*id)) {
            let found = parts.iter().flatten().filter(|part| !resp::is_null(part)).count();
            self.core.waiters.note_found(line, ids.len(), found, done.reply.len());
        }
        for (n, id) in ids.iter().enumerate() {
            let Some(connection) = self.connections.get_mut(id) else {
                self.core.take_gone(now, *id, &done);
                continue;
            };
            let is_blocked =
                connection.slots.front().map(|s| matches!(s.state, SlotState::Blocked));
            if is_blocked != Some(true) {
                continue;
            }
            // An error is that of all of them.
            let reply = parts.as_ref().map_or(&done.reply[..], |parts| parts[n]).to_vec();
            let is_last = n + 1 == ids.len();
            self.core.take_tried(now, connection, (done.outcome, reply), is_last);
            self.core.memory.note(now.instant, connection);
            list(&mut self.ready, connection);
            if connection.is_unblocked() {
                self.go_on(now, *id, sink);
            }
        }
        self.core.client.give_back(done.reply);
        self.core.client.give_back(done.command);
    }
}
